//! Files and drives that are not as they were when they were formatted: larger, missing, read-only.

use std::os::unix::fs::FileExt;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::support::file_system::{BindMount, InMemory};
use crate::support::host::{connect, filled, on_core};
use crate::support::loop_device::LoopDevice;
use crate::support::skipped::skipped;
use crate::support::{Files, Outcome, Server, device, farflash, refused, run, succeed, until};
use serde_json::Value;
use units::Lba;

fn serve(device: &str) -> Vec<&str> {
    let ports = ["--auth", "off", "--listen", "127.0.0.1:0", "--api", "127.0.0.1:0"];
    [&["serve", "--device", device][..], &ports].concat()
}

fn host(volume: &Value, writes: Option<u64>, holds: u64) {
    let nqn = nvme_wire::Nqn::new(volume["nqn"].as_str().unwrap()).unwrap();
    let address = volume["address"].as_str().unwrap().parse().unwrap();
    on_core(|handle| async move {
        let volume = connect(&handle, address, &nqn).await;
        if let Some(value) = writes {
            volume.write(Lba(3), filled(value)).await.unwrap();
        }
        let found = volume.read(Lba(3), 1).await.unwrap();
        assert!(found.as_bytes() == filled(holds).as_bytes());
    });
}

fn capacity(server: &Server) -> u64 {
    control::ApiClient::new(&server.api).unwrap().server().unwrap().devices[0].capacity_bytes
}

fn stop(server: Server) {
    server.signal("TERM");
    assert_eq!(server.wait(), Some(0));
}

/// Space that a file was given is used once that is asked for, and nothing is lost by it; its second superblock counts
/// again.
#[test]
fn a_device_that_was_made_larger_is_grown() {
    let files = Files::new();
    let path = files.device("a");
    succeed(&["format", "--device", &format!("{path},size=128MiB")]);
    let server = Server::start(&path);
    host(&server.volume_json(&["create", "v", "--size", "64MiB"]), Some(1), 1);
    let before = capacity(&server);
    let file = std::fs::File::options().write(true).open(files.path("a")).unwrap();
    file.set_len(512 << 20).unwrap();
    refused(&["grow", "--device", &path], 1, "is in use", "stop the other server");
    stop(server);
    let said = succeed(&["grow", "--device", &path]);
    assert!(said.contains("512 MiB now; before 128 MiB"), "{said}");
    assert!(succeed(&["grow", "--device", &path]).contains("as before"));
    assert_eq!(run(&["fsck", "--device", &path]).code, Some(0));
    let server = Server::start(&path);
    assert!(capacity(&server) > before + (380 << 20));
    host(&server.volume_json(&["show", "v"]), None, 1);
    host(&server.volume_json(&["show", "v"]), Some(2), 2);
    stop(server);
    file.write_all_at(&[0; 4096], 0).unwrap();
    let server = Server::start(&path);
    host(&server.volume_json(&["show", "v"]), None, 2);
    stop(server);
    succeed(&["fsck", "--device", &path, "--repair"]);
}

/// A device is grown while it is served: under writers on two cores no request fails, and none is lost; the space can be used at
/// once. Method: a volume on each core is written and read all the time; the file is made larger twice.
#[test]
fn a_device_grows_while_it_is_served() {
    let files = Files::new();
    let path = files.device("a");
    succeed(&["format", "--device", &format!("{path},size=256MiB")]);
    let server = Server::start_with(&path, &["--cores", "0,1", "--auth", "off"]);
    let ends = Arc::new(AtomicBool::new(false));
    let writers: Vec<_> = ["0", "1"]
        .map(|core| {
            let name = format!("v{core}");
            let volume = server.volume_json(&["create", &name, "--size", "64MiB", "--core", core]);
            let ends = ends.clone();
            std::thread::spawn(move || write_until(&volume, ends))
        })
        .into();
    let file = std::fs::File::options().write(true).open(files.path("a")).unwrap();
    for size in [512_u64 << 20, (700 << 20) + 4096] {
        let before = capacity(&server);
        file.set_len(size).unwrap();
        let status = || run(&["status", "--api", &server.api]).stdout;
        until("it is told", || status().contains(&format!("`farflash device grow {path}` uses")));
        let said = succeed(&["device", "grow", &path, "--api", &server.api]);
        assert!(said.contains(" now; before "), "{said}");
        assert!(succeed(&["device", "grow", "--api", &server.api]).contains("as before"));
        assert!(capacity(&server) > before + (150 << 20));
        until("it is over", || !status().contains("unused"));
        std::thread::sleep(Duration::from_millis(300));
    }
    ends.store(true, Ordering::Relaxed);
    for writer in writers {
        let rounds = writer.join().expect("no request fails");
        assert!(rounds > 20, "{rounds}");
    }
    // More than the device had at first.
    let volume = server.volume_json(&["create", "large", "--size", "400MiB"]);
    fill(&volume, 400 << 20);
    stop(server);
    let checked = run(&["fsck", "--device", &path]);
    assert_eq!(checked.code, Some(0), "{checked:?}");
}

/// Writes blocks and reads them back until `ends`; returns how often.
fn write_until(volume: &Value, ends: Arc<AtomicBool>) -> u64 {
    let nqn = nvme_wire::Nqn::new(volume["nqn"].as_str().unwrap()).unwrap();
    let address = volume["address"].as_str().unwrap().parse().unwrap();
    on_core(move |handle| async move {
        let volume = connect(&handle, address, &nqn).await;
        let mut rounds = 0;
        while !ends.load(Ordering::Relaxed) {
            let lba = Lba(rounds * 7 % 1000);
            volume.write(lba, filled(rounds)).await.unwrap();
            let found = volume.read(lba, 1).await.unwrap();
            assert!(found.as_bytes() == filled(rounds).as_bytes());
            rounds += 1;
        }
        rounds
    })
}

/// Writes a volume to its end.
fn fill(volume: &Value, bytes: u64) {
    let nqn = nvme_wire::Nqn::new(volume["nqn"].as_str().unwrap()).unwrap();
    let address = volume["address"].as_str().unwrap().parse().unwrap();
    on_core(move |handle| async move {
        let volume = connect(&handle, address, &nqn).await;
        let blocks = 256;
        for lba in (0..bytes / 4096).step_by(blocks) {
            let data = io_traits::Buffer::from_bytes(&vec![7; blocks * 4096]).into_slice();
            volume.write(Lba(lba), data).await.unwrap();
        }
    });
}

/// A device that cannot grow is refused with the reason, and so is one that the server does not have.
#[test]
fn a_growth_that_cannot_be_is_refused() {
    let server = Server::start_with("mem:128MiB", &["--auth", "off"]);
    refused(&["device", "grow", "--api", &server.api], 1, "lies in memory", "");
    let unknown = ["device", "grow", "file:/nowhere", "--api", &server.api];
    refused(&unknown, 1, "there is no device", "choose one of");
}

/// Method: the file grows, and something that looks like another format is written where it begins.
#[test]
fn a_device_that_has_grown_and_begins_as_another_is_mended_only_if_that_is_said() {
    let files = Files::new();
    let path = files.device("a");
    succeed(&["format", "--device", &format!("{path},size=128MiB")]);
    let server = Server::start(&path);
    host(&server.volume_json(&["create", "v", "--size", "64MiB"]), Some(1), 1);
    stop(server);
    let file = std::fs::File::options().write(true).open(files.path("a")).unwrap();
    file.set_len(300 << 20).unwrap();
    let mut start = [0; 4096];
    start[..4].copy_from_slice(b"XFSB");
    file.write_all_at(&start, 0).unwrap();
    let before = std::fs::read(files.path("a")).unwrap();
    let what = "a damaged farflash format, whose start is something else (XFS file system)";
    refused(&serve(&path), 1, what, "farflash fsck");
    refused(&["format", "--device", &path], 1, what, "How to give it up");
    let what = "something else (XFS file system), and before that held the farflash device";
    let remedy = format!("`farflash fsck --device {path} --force`");
    for more in [&[][..], &["--repair"]] {
        let outcome = run(&[&["fsck", "--device", &path][..], more].concat());
        assert_eq!(outcome.code, Some(1), "{outcome:?}");
        assert!([what, &remedy].iter().all(|part| outcome.stderr.contains(part)), "{outcome:?}");
    }
    assert!(std::fs::read(files.path("a")).unwrap() == before, "it is as it was");
    let mended = run(&["fsck", "--device", &path, "--force", "--repair"]);
    assert_eq!(mended.code, Some(0), "{mended:?}");
    let server = Server::start(&path);
    host(&server.volume_json(&["show", "v"]), None, 1);
    stop(server);
}

/// Method: the file grows to a size that is no whole number of MiB, and what it began with is overwritten.
#[test]
fn the_last_superblock_of_a_device_that_has_grown_is_found() {
    let files = Files::new();
    let path = files.device("a");
    succeed(&["format", "--device", &format!("{path},size=134230016B")]);
    let server = Server::start(&path);
    host(&server.volume_json(&["create", "v", "--size", "64MiB"]), Some(1), 1);
    stop(server);
    let file = std::fs::File::options().write(true).open(files.path("a")).unwrap();
    file.set_len(300 << 20).unwrap();
    for damage in [[0; 4096], [0xA5; 4096]] {
        file.write_all_at(&damage, 0).unwrap();
        let before = std::fs::read(files.path("a")).unwrap();
        for words in [&serve(&path)[..], &["format", "--device", &path]] {
            let outcome = run(words);
            assert_eq!(outcome.code, Some(1), "{outcome:?}");
            assert!(outcome.stderr.contains("damaged farflash format"), "{outcome:?}");
            assert!(!outcome.stderr.contains("--force"), "{outcome:?}");
            assert!(outcome.stderr.contains("farflash fsck"), "{outcome:?}");
        }
        let found = run(&["fsck", "--device", &path]);
        assert!(found.code == Some(1) && found.stderr.contains("--repair"), "{found:?}");
        assert!(std::fs::read(files.path("a")).unwrap() == before, "it is as it was");
        let mended = run(&["fsck", "--device", &path, "--repair"]);
        assert_eq!(mended.code, Some(0), "{mended:?}");
        let server = Server::start(&path);
        host(&server.volume_json(&["show", "v"]), None, 1);
        stop(server);
    }
}

/// A drive is no different. Method: the file below a loop device grows; the drive's first superblock is overwritten before and after
/// all of it is used.
#[test]
fn a_drive_that_was_made_larger_is_grown_and_its_last_superblock_is_found() {
    let files = Files::new();
    let Some(drive) = LoopDevice::new(&files, "image", (128 << 20) + 12_288) else {
        return skipped("no loop device can be made");
    };
    let path = device(drive.path().as_ref());
    succeed(&["format", "--device", &path]);
    let server = Server::start(&path);
    host(&server.volume_json(&["create", "v", "--size", "64MiB"]), Some(1), 1);
    drive.grow(300 << 20);
    let status = || run(&["status", "--api", &server.api]).stdout;
    until("it is told", || status().contains(&format!("`farflash device grow {path}` uses")));
    stop(server);
    let damage = || {
        let start = std::fs::File::options().write(true).open(drive.path()).unwrap();
        start.write_all_at(&[0; 4096], 0).unwrap();
        start.sync_all().unwrap();
    };
    damage();
    refused(&serve(&path), 1, "a damaged farflash format", "farflash fsck");
    let mended = run(&["fsck", "--device", &path, "--repair"]);
    assert_eq!(mended.code, Some(0), "{mended:?}");
    let server = Server::start(&path);
    let before = capacity(&server);
    let said = succeed(&["device", "grow", &path, "--api", &server.api]);
    assert!(said.contains("300 MiB now; before "), "{said}");
    assert!(capacity(&server) > before + (150 << 20));
    host(&server.volume_json(&["show", "v"]), Some(2), 2);
    stop(server);
    damage();
    let server = Server::start(&path);
    host(&server.volume_json(&["show", "v"]), None, 2);
    stop(server);
}

/// A file system that is not mounted is no device to begin with, whatever the configuration says of blank ones.
#[test]
fn a_file_that_is_missing_or_empty_is_not_made_at_a_start() {
    let files = Files::new();
    let path = files.device("a");
    let sized = format!("{path},size=128MiB");
    let start = [&serve(&sized)[..], &["--format-if-blank"]].concat();
    refused(&start, 1, "a does not exist", "mounted");
    assert!(!files.path("a").exists());
    std::fs::write(files.path("a"), "").unwrap();
    refused(&start, 1, "holds 0 bytes", "");
    assert_eq!(std::fs::metadata(files.path("a")).unwrap().len(), 0);
    drop(Server::start_with(&sized, &["--format-if-blank", "--create"]));
    // Nor do the settings that are shipped ask for one, or for what a blank one becomes.
    let settings = include_str!("../../../../packaging/farflash.toml");
    let keys = settings.lines().filter_map(|line| line.split_once('='));
    let keys: Vec<_> = keys.map(|(key, _)| key.trim_start_matches(['#', ' ']).trim()).collect();
    assert!(keys.contains(&"devices"), "{keys:?}");
    assert!(!keys.iter().any(|key| ["create", "format_if_blank"].contains(key)), "{keys:?}");
    assert!(!settings.contains("size="), "{settings}");
}

#[test]
fn a_drive_that_is_read_only_is_called_so() {
    let files = Files::new();
    let Some(drive) = LoopDevice::new(&files, "image", 256 << 20) else {
        return skipped("no loop device can be made");
    };
    let path = device(drive.path().as_ref());
    succeed(&["format", "--device", &path]);
    let set = |how: &str| {
        assert!(Command::new("blockdev").args([how, drive.path()]).status().unwrap().success());
    };
    set("--setro");
    refused(&serve(&path), 1, "is read-only", "blockdev --setrw");
    refused(&["format", "--device", &path, "--force"], 1, "is read-only", "blockdev --setrw");
    assert_eq!(run(&["fsck", "--device", &path]).code, Some(0), "it can be read");
    set("--setrw");
    drop(Server::start(&path));
}

/// A server that had volumes does not come up empty. Method: at a mount point lie a blank file, an empty one, or nothing, as
/// they may when its file system is not mounted, and all that formats blank devices is allowed.
#[test]
fn a_server_that_had_volumes_does_not_come_up_empty() {
    let files = Files::new();
    std::fs::create_dir(files.path("state")).unwrap();
    std::fs::create_dir(files.path("mount")).unwrap();
    let image = files.path("mount").join("flash.img");
    let device = format!("{},size=128MiB", device(&image));
    let state = format!("STATE_DIRECTORY={}", files.path("state").display());
    let create = ["--format-if-blank", "--create"];
    let start = || Server::start_by("env", &[&state], &device, &create);
    let server = start();
    let remembered = files.path("state").join("devices.json");
    stop(server);
    assert!(!remembered.exists(), "no volume lay there");
    std::fs::remove_file(&image).unwrap();
    let server = start();
    server.volume_json(&["create", "v", "--size", "64MiB"]);
    until("the device is noted", || remembered.exists());
    stop(server);
    std::fs::rename(files.path("mount"), files.path("unmounted")).unwrap();
    std::fs::create_dir(files.path("mount")).unwrap();
    let make: [&dyn Fn(); 3] = [&|| {}, &|| std::fs::write(&image, "").unwrap(), &|| {
        std::fs::File::create(&image).unwrap().set_len(128 << 20).unwrap()
    }];
    for (what, make) in ["nothing", "an empty file", "a blank file"].iter().zip(make) {
        make();
        let before = std::fs::metadata(&image).map(|found| found.len()).ok();
        let words = [&serve(&device)[..], &create].concat();
        let mut command = farflash(&words);
        let outcome =
            Outcome::from(command.env("STATE_DIRECTORY", files.path("state")).output().unwrap());
        assert_eq!(outcome.code, Some(1), "{what}: {outcome:?}");
        for part in ["flash.img is blank, and the farflash device", "mounted", "farflash format"] {
            assert!(outcome.stderr.contains(part), "{what}: {outcome:?}");
        }
        assert_eq!(std::fs::metadata(&image).map(|found| found.len()).ok(), before, "{what}");
    }
    std::fs::remove_dir_all(files.path("mount")).unwrap();
    std::fs::rename(files.path("unmounted"), files.path("mount")).unwrap();
    let server = start();
    assert_eq!(server.volume_json(&["list"])["volumes"].as_array().unwrap().len(), 1);
    stop(server);
}

/// A formatted device without volumes is not served in the place of one with volumes. Method: a spare, which was served elsewhere,
/// lies at the mount point; then beside a device that is sound; and then a person says that the volumes may be gone.
#[test]
fn a_server_that_had_volumes_does_not_come_up_with_an_empty_device() {
    let files = Files::new();
    for directory in ["state", "mount", "lost"] {
        std::fs::create_dir(files.path(directory)).unwrap();
    }
    let image = files.path("mount").join("flash.img");
    let (path, spare, other) = (device(&image), files.device("spare"), files.device("other"));
    for path in [&path, &spare, &other] {
        succeed(&["format", "--device", &format!("{path},size=128MiB")]);
    }
    let state = format!("STATE_DIRECTORY={}", files.path("state").display());
    let start = |more: &[&str]| Server::start_by("env", &[&state], &path, more);
    let server = start(&[]);
    let remembered = files.path("state").join("devices.json");
    server.volume_json(&["create", "v", "--size", "64MiB"]);
    until("the device is noted", || remembered.exists());
    stop(server);
    stop(Server::start(&spare));
    std::fs::rename(&image, files.path("lost").join("flash.img")).unwrap();
    std::fs::rename(files.path("spare"), &image).unwrap();

    let with_state = |words: &[&str]| {
        let mut command = farflash(words);
        Outcome::from(command.env("STATE_DIRECTORY", files.path("state")).output().unwrap())
    };
    let command = format!("rm {}", remembered.display());
    let parts = ["which is empty", "with 1 volume ", "is mounted", &format!("`{command}`")];
    let outcome = with_state(&serve(&path));
    assert_eq!(outcome.code, Some(1), "{outcome:?}");
    assert!(parts.iter().all(|part| outcome.stderr.contains(part)), "{outcome:?}");

    let server = start(&["--device", &other]);
    let status = || run(&["status", "--api", &server.api]);
    let told = status();
    assert_eq!(told.code, Some(1), "{told:?}");
    assert!(parts.iter().all(|part| told.stderr.contains(part)), "{told:?}");
    let metrics = crate::observing::metrics(&server);
    let health = format!("farflash_device_health{{device=\"{path}\"}} 2");
    assert!(metrics.contains(&health), "{metrics}");
    assert!(Command::new("sh").args(["-c", &command]).status().unwrap().success());
    until("it is served", || status().code == Some(0));
    stop(server);

    std::fs::rename(files.path("lost").join("flash.img"), &image).unwrap();
    let server = start(&[]);
    until("the device is noted", || remembered.exists());
    assert_eq!(server.volume_json(&["list"])["volumes"].as_array().unwrap().len(), 1);
    stop(server);
    std::fs::remove_file(&image).unwrap();
    let formatted = with_state(&["format", "--device", &format!("{path},size=128MiB")]);
    assert!(formatted.stderr.contains("with 1 volume was served from there"), "{formatted:?}");
    stop(start(&[]));
}

/// A drive that takes no writes any more is called read-only by all that it fails, and is written again by itself when it can be.
#[test]
fn a_drive_that_becomes_read_only_is_called_so_and_written_again() {
    let files = Files::new();
    let Some(drive) = LoopDevice::new(&files, "image", 256 << 20) else {
        return skipped("no loop device can be made");
    };
    let path = device(drive.path().as_ref());
    succeed(&["format", "--device", &path]);
    let server = Server::start(&path);
    let volume = server.volume_json(&["create", "v", "--size", "64MiB"]);
    host(&volume, Some(1), 1);
    let set = |how: &str| {
        assert!(Command::new("blockdev").args([how, drive.path()]).status().unwrap().success());
    };
    set("--setro");
    let write = |value| {
        let nqn = nvme_wire::Nqn::new(volume["nqn"].as_str().unwrap()).unwrap();
        let address = volume["address"].as_str().unwrap().parse().unwrap();
        on_core(move |handle| async move {
            connect(&handle, address, &nqn).await.write(Lba(3), filled(value)).await.is_ok()
        })
    };
    assert!(!write(2), "it takes no writes");
    host(&volume, None, 1);
    until("what failed says why", || {
        let shown = control::ApiClient::new(&server.api).unwrap().server().unwrap();
        let failure = shown.devices[0].failure.clone().unwrap_or_default();
        assert!(!failure.contains("I/O error"), "{failure}");
        failure.contains("the device is read-only")
    });
    until("the status says so", || {
        let status = run(&["status", "--api", &server.api]);
        status.code == Some(1)
            && status.stderr.contains("read-only")
            && status.stderr.contains("--setrw")
    });
    let metrics = crate::observing::metrics(&server);
    assert!(metrics.contains("kind=\"read_only\"} 1"), "{metrics}");
    set("--setrw");
    until("it is written", || write(3));
    // The health tells still that requests have failed.
    until("it is over", || !run(&["status", "--api", &server.api]).stderr.contains("read-only"));
    host(&volume, None, 3);
    stop(server);
}

/// A file in a file system that is read-only is called so. Method: another mount of it, by which nothing may be written.
#[test]
fn a_file_in_a_read_only_file_system_is_called_so() {
    let files = Files::new();
    let (mount, bound) = (files.path("mount"), files.path("bound"));
    std::fs::create_dir(&mount).unwrap();
    std::fs::create_dir(&bound).unwrap();
    let Some(_mounted) = InMemory::at(&mount, "200m") else {
        return skipped("nothing can be mounted");
    };
    let path = device(&mount.join("image"));
    succeed(&["format", "--device", &format!("{path},size=128MiB")]);
    let _bound =
        BindMount::new(&mount, &bound, "ro").expect("what can be mounted once can be again");
    let read_only = device(&bound.join("image"));
    refused(&serve(&read_only), 1, "is read-only", "mount its file system again");
    assert_eq!(run(&["fsck", "--device", &read_only]).code, Some(0), "it can be read");
    drop(Server::start(&path));
}
