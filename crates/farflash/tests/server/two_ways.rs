//! One device by two paths: what a lock on a file or block device cannot see.

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use crate::etcd::EtcdProcesses;
use crate::support::cluster::{host, url};
use crate::support::file_system::BindMount;
use crate::support::host::on_core;
use crate::support::loop_device::LoopDevice;
use crate::support::skipped::skipped;
use crate::support::{Files, Server, device, refused, run, succeed, tokens, until};
use uuid::Uuid;
use volume::{OwnerMark, Superblock};

const PORTS: [&str; 6] = ["--auth", "off", "--listen", "127.0.0.1:0", "--api", "127.0.0.1:0"];

fn serve(device: &str) -> Vec<&str> {
    [&["serve", "--device", device][..], &PORTS].concat()
}

fn image(files: &Files) -> std::path::PathBuf {
    let image = files.path("image");
    std::fs::File::create(&image).unwrap().set_len(256 << 20).unwrap();
    image
}

/// A refusal by the mark of the process that serves the device, and one by the kernel's lock on a file or drive.
const MARKED: (&str, &str) = ("is in use: process", "stop that process");
const LOCKED: (&str, &str) = ("is in use: mounted, or served by another", "stop the other server");

/// A second server is refused whichever way it comes, also while the first one is stopped; one that was killed keeps its
/// successor waiting by no way.
fn one_at_a_time(near: &str, far: &str, (what, remedy): (&str, &str)) {
    succeed(&["format", "--device", near]);
    let server = Server::start(near);
    server.volume_json(&["create", "v", "--size", "64MiB"]);
    refused(&serve(far), 1, what, remedy);
    refused(&["fsck", "--device", far, "--repair"], 1, what, remedy);
    refused(&["format", "--device", far, "--force"], 1, what, remedy);
    server.pause();
    refused(&serve(far), 1, what, remedy);
    server.resume();
    assert_eq!(server.volume_json(&["list"])["volumes"].as_array().unwrap().len(), 1);
    server.signal("KILL");
    server.wait();
    let outcome = run(&["fsck", "--device", far]);
    assert!(!outcome.stderr.contains("in use"), "{outcome:?}");
    let server = Server::start(far);
    assert_eq!(server.volume_json(&["list"])["volumes"].as_array().unwrap().len(), 1);
    server.signal("TERM");
    assert_eq!(server.wait(), Some(0));
    drop(Server::start(near));
}

#[test]
fn two_loop_devices_over_one_file_have_one_server() {
    let files = Files::new();
    let image = image(&files);
    let [Some(near), Some(far)] = [(); 2].map(|()| LoopDevice::on(&image)) else {
        return skipped("no loop device can be made");
    };
    one_at_a_time(&device(near.path().as_ref()), &device(far.path().as_ref()), MARKED);
}

#[test]
fn a_file_and_a_loop_device_over_it_have_one_server() {
    let files = Files::new();
    let image = image(&files);
    let Some(far) = LoopDevice::on(&image) else {
        return skipped("no loop device can be made");
    };
    one_at_a_time(&device(&image), &device(far.path().as_ref()), MARKED);
}

#[test]
fn a_file_and_a_hard_link_to_it_have_one_server() {
    let files = Files::new();
    let image = image(&files);
    std::fs::hard_link(&image, files.path("link")).unwrap();
    one_at_a_time(&device(&image), &files.device("link"), LOCKED);
    let twice = ["serve", "--device", &device(&image), "--device", &files.device("link")];
    refused(&[&twice[..], &PORTS].concat(), 2, "are the same device", "once for each device");
}

#[test]
fn a_file_and_its_path_by_a_bind_mount_have_one_server() {
    let files = Files::new();
    std::fs::create_dir(files.path("bound")).unwrap();
    std::fs::create_dir(files.path("place")).unwrap();
    let image = files.path("place").join("image");
    std::fs::File::create(&image).unwrap().set_len(256 << 20).unwrap();
    let Some(_mounted) = BindMount::new(&files.path("place"), &files.path("bound"), "rw") else {
        return skipped("nothing can be mounted");
    };
    one_at_a_time(&device(&image), &device(&files.path("bound").join("image")), LOCKED);
}

/// The disk of a partition that is served is neither served nor formatted, by its own path or by that of the file below.
#[test]
fn a_disk_of_whose_partitions_one_is_served_is_left_alone() {
    let files = Files::new();
    let Some(disk) = LoopDevice::new(&files, "disk", 300 << 20) else {
        return skipped("no loop device can be made");
    };
    let Some(partition) = Partition::on(&disk, 1 << 20, 256 << 20) else {
        return skipped("no partition can be made");
    };
    let part = device(partition.path.as_ref());
    succeed(&["format", "--device", &part]);
    let server = Server::start(&part);
    server.volume_json(&["create", "v", "--size", "64MiB"]);
    let (whole, below) = (device(disk.path().as_ref()), device(&disk.image));
    refused(&serve(&whole), 1, LOCKED.0, LOCKED.1);
    refused(&["format", "--device", &whole, "--force"], 1, LOCKED.0, LOCKED.1);
    refused(&serve(&below), 1, LOCKED.0, LOCKED.1);
    refused(&["format", "--device", &below], 1, LOCKED.0, LOCKED.1);
    refused(&["format", "--device", &below, "--force"], 1, LOCKED.0, LOCKED.1);
    assert_eq!(server.volume_json(&["list"])["volumes"].as_array().unwrap().len(), 1);
    server.signal("TERM");
    assert_eq!(server.wait(), Some(0));
    assert_eq!(run(&["fsck", "--device", &part]).code, Some(0));
}

/// A partition of a loop device, which goes with this.
struct Partition {
    disk: String,
    path: String,
}

impl Partition {
    fn on(disk: &LoopDevice, start: u64, bytes: u64) -> Option<Self> {
        let sectors = [start, bytes].map(|bytes| (bytes / 512).to_string());
        let mut command = Command::new("addpart");
        let status = command.args([disk.path(), "1", &sectors[0], &sectors[1]]).status();
        status.ok().filter(|status| status.success())?;
        let made = Self { disk: disk.path().to_owned(), path: format!("{}p1", disk.path()) };
        std::fs::metadata(&made.path).is_ok().then_some(made)
    }
}

impl Drop for Partition {
    fn drop(&mut self) {
        let _ = Command::new("delpart").args([&self.disk, "1"]).status();
    }
}

fn mark_of(image: &Path) -> OwnerMark {
    let mut block = [0; 4096];
    let file = std::fs::File::open(image).unwrap();
    file.read_exact_at(&mut block, Superblock::OWNER_MARK.0 * 4096).unwrap();
    OwnerMark::decode(&block).unwrap()
}

/// A living owner renews its mark. One that finds another's stops serving the device, and says so.
#[test]
fn a_server_whose_device_another_one_takes_stops_serving_it() {
    let files = Files::new();
    let path = image(&files);
    succeed(&["format", "--device", &device(&path)]);
    let server = Server::start(&device(&path));
    server.volume_json(&["create", "v", "--size", "64MiB"]);
    let first = mark_of(&path);
    until("it is renewed", || mark_of(&path).renewals > first.renewals);
    let other = OwnerMark { instance: Uuid::from_u128(7), boot: Uuid::from_u128(8), ..first };
    let mut block = [0; 4096];
    other.encode(&mut block);
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    until("it gives the device up", || {
        file.write_all_at(&block, Superblock::OWNER_MARK.0 * 4096).unwrap();
        let status = run(&["status", "--api", &server.api]);
        status.code == Some(1) && status.stderr.contains("is not served here any more")
    });
    until("its volumes are not served here", || {
        server.volume_json(&["list"])["volumes"][0]["state"] == "unreachable"
    });
}

/// A mark of another machine, or of this one before it was started again, is watched for some seconds, and then replaced; a copy of
/// a device that is served is another device.
#[test]
fn a_mark_that_is_not_renewed_keeps_nothing_off() {
    let files = Files::new();
    let path = image(&files);
    succeed(&["format", "--device", &device(&path)]);
    let server = Server::start(&device(&path));
    std::fs::copy(&path, files.path("copy")).unwrap();
    drop(Server::start(&files.device("copy")));
    let mark = OwnerMark { boot: Uuid::from_u128(7), ..mark_of(&path) };
    drop(server);
    let mut block = [0; 4096];
    mark.encode(&mut block);
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    file.write_all_at(&block, Superblock::OWNER_MARK.0 * 4096).unwrap();
    drop(Server::start(&device(&path)));
}

fn put_mark(image: &Path, mark: &OwnerMark) {
    let mut block = [0; 4096];
    mark.encode(&mut block);
    let file = std::fs::File::options().write(true).open(image).unwrap();
    file.write_all_at(&block, Superblock::OWNER_MARK.0 * 4096).unwrap();
}

/// A replaced token opens its volume for as long as was said, though the clock was set back and the server started again.
#[test]
fn a_clock_that_was_set_back_reopens_no_grace() {
    let files = Files::new();
    let path = image(&files);
    succeed(&["format", "--device", &device(&path)]);
    reopens_no_grace(&path, || Server::start(&device(&path)));
}

/// The same in a cluster, where claims say which host serves a device, and the mark is written for its time alone.
#[test]
fn a_clock_that_was_set_back_reopens_no_grace_in_a_cluster() {
    let (etcd, files) = (EtcdProcesses::start(1), Files::new());
    let path = image(&files);
    succeed(&["format", "--device", &device(&path)]);
    let directory = url(etcd.address(0), "graces");
    reopens_no_grace(&path, || {
        let server = host(&directory, "a", &device(&path));
        // Renewed a moment after the start.
        until("the mark is there", || {
            let mut block = [0; 4096];
            let file = std::fs::File::open(&path).unwrap();
            file.read_exact_at(&mut block, Superblock::OWNER_MARK.0 * 4096).unwrap();
            OwnerMark::decode(&block).is_ok_and(|mark| mark.pid == u64::from(server.pid()))
        });
        server
    });
}

/// Method: instead of the clock going back, the device was last served two hours later than the clock says.
fn reopens_no_grace(path: &Path, start: impl Fn() -> Server) {
    let mut server = start();
    server.volume_json(&["create", "v", "--size", "64MiB"]);
    // Not kept: hosts go on with the token before.
    let changed = server.volume(&["change-auth", "v", "--grace", "1h"]);
    assert_eq!(changed.code, Some(0), "{changed:?}");
    let opens = |server: &Server| {
        let volume = server.volume_json(&["show", "v"]);
        let nqn: nvme_wire::Nqn = volume["nqn"].as_str().unwrap().parse().unwrap();
        let address = volume["address"].as_str().unwrap().parse().unwrap();
        on_core(|handle| async move {
            let options =
                client::Options { reconnect: client::Reconnect::Never, ..tokens::options(&nqn, 7) };
            client::Client::connect(handle.clone(), address, &nqn, options).await.is_ok()
        })
    };
    let shown = server.volume(&["show", "v"]).stdout;
    assert!(opens(&server) && shown.contains("grace      ") && shown.contains("Z\n"), "{shown}");
    for (seconds, is_open) in [(0, true), (7200, false), (0, false)] {
        server.signal("TERM");
        assert_eq!(server.wait(), Some(0));
        let mark = mark_of(path);
        put_mark(path, &OwnerMark { seconds: mark.seconds + seconds, ..mark });
        server = start();
        let volume = server.volume_json(&["show", "v"]);
        for field in ["grace_until", "grace_seconds_left"] {
            assert_eq!(volume.get(field).is_some(), is_open, "{field}");
        }
        assert_eq!(opens(&server), is_open, "served {seconds} s later");
    }
}
