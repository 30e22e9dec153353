//! A live server with several devices.

use crate::support::file_system::FileSystem;
use crate::support::host::{connect, filled, on_core};
use crate::support::skipped::skipped;
use crate::support::{Files, Server, refused, run, succeed, until};
use io_traits::Spawn;
use serde_json::Value;
use units::Lba;

/// Formats files of these sizes in MiB; their specifications.
fn formatted(files: &Files, sizes: &[(&str, u64)]) -> Vec<String> {
    let format = |(name, mib): &(&str, u64)| {
        let device = files.device(name);
        succeed(&["format", "--device", &format!("{device},size={mib}MiB")]);
        device
    };
    sizes.iter().map(format).collect()
}

fn serve<'a>(devices: &[&'a str]) -> Vec<&'a str> {
    let flags = ["serve", "--auth", "off", "--listen", "127.0.0.1:0", "--api", "127.0.0.1:0"];
    let devices = devices.iter().flat_map(|device| ["--device", device]);
    flags.into_iter().chain(devices).collect()
}

fn start(devices: &[&str], more: &[&str]) -> Server {
    let others: Vec<&str> = devices[1..].iter().flat_map(|device| ["--device", device]).collect();
    Server::start_with(devices[0], &[&others[..], more].concat())
}

fn document(server: &Server) -> Value {
    let client = control::ApiClient::new(&server.api).unwrap();
    serde_json::to_value(client.server().unwrap()).unwrap()
}

fn write_and_read(server: &Server, volume: &Value, value: u64) {
    let nqn = nvme_wire::Nqn::new(volume["nqn"].as_str().unwrap()).unwrap();
    let address = volume["address"].as_str().unwrap().parse().unwrap();
    assert!(server.portals.contains(&address));
    on_core(|handle| async move {
        let volume = connect(&handle, address, &nqn).await;
        volume.write(Lba(3), filled(value)).await.unwrap();
    });
    read(volume, value);
}

fn read(volume: &Value, value: u64) {
    let nqn = nvme_wire::Nqn::new(volume["nqn"].as_str().unwrap()).unwrap();
    let address = volume["address"].as_str().unwrap().parse().unwrap();
    on_core(|handle| async move {
        let volume = connect(&handle, address, &nqn).await;
        let block = volume.read(Lba(3), 1).await.unwrap();
        assert_eq!(block.as_bytes(), filled(value).as_bytes());
    });
}

#[test]
fn volumes_lie_on_the_device_that_was_named_or_has_most_room() {
    let files = Files::new();
    let devices = formatted(&files, &[("a", 256), ("b", 512)]);
    let (a, b) = (devices[0].as_str(), devices[1].as_str());
    let cores = crate::support::cores(2).or_else(|| crate::support::cores(1)).unwrap();
    let with = ["--cores", &cores];
    let server = start(&[a, &format!("{b},reads-per-second=9000,writes-per-second=5000")], &with);
    let names: Vec<Value> = document(&server)["devices"]
        .as_array()
        .unwrap()
        .iter()
        .map(|d| d["name"].clone())
        .collect();
    assert_eq!(names, [a, b]);
    let roomy = server.volume_json(&["create", "roomy", "--size", "1GiB"]);
    let named = server.volume_json(&["create", "named", "--size", "1GiB", "--device", a]);
    let rate = ["--reads-per-second", "100"];
    let fast = server.volume_json(&[&["create", "fast", "--size", "1GiB"], &rate[..]].concat());
    let table = server.volume(&["list"]).stdout;
    let line = |name: &str| table.lines().find(|line| line.starts_with(name)).unwrap().to_owned();
    assert!(line("roomy").contains(b) && line("named").contains(a), "{table}");
    assert!(!line("named").contains(b), "{table}");
    assert_eq!((&roomy["device"], &named["device"]), (&Value::from(b), &Value::from(a)));
    assert_eq!(fast["device"], b, "the other has no ceiling");
    let api = ["--api", &server.api];
    let lost = ["volume", "create", "lost", "--size", "1GiB", "--device", "file:c"];
    refused(&[&lost[..], &api].concat(), 1, "no device `file:c`", &format!("{a}, {b}"));
    let taken = ["volume", "create", "named", "--size", "1GiB", "--device", b];
    refused(&[&taken[..], &api].concat(), 1, "exists already", "another name");
    write_and_read(&server, &roomy, 1);
    write_and_read(&server, &named, 2);
    write_and_read(&server, &fast, 3);

    // Only on its own device is room taken.
    let list = document(&server);
    let free = |number: usize| list["devices"][number]["free_bytes"].as_u64().unwrap();
    let capacity = |number: usize| list["devices"][number]["capacity_bytes"].as_u64().unwrap();
    assert!(capacity(0) < 256 << 20 && capacity(1) > 256 << 20, "{list}");
    assert_eq!(list["devices"][0]["volatile_write_cache"], true, "a file's metadata is flushed");
    assert!(free(0) < capacity(0) && free(1) < capacity(1));

    // All of it is there after a kill, in whatever order the devices are named.
    server.signal("KILL");
    server.wait();
    let server = start(&[b, a], &with);
    for (before, value) in [(&roomy, 1), (&named, 2), (&fast, 3)] {
        let now = server.volume_json(&["show", before["name"].as_str().unwrap()]);
        assert_eq!((&now["id"], &now["device"]), (&before["id"], &before["device"]));
        read(&now, value);
    }
    // What has a promise stays, also where there is no ceiling any more; without the device it is gone.
    server.signal("TERM");
    assert_eq!(server.wait(), Some(0));
    let server = Server::start_with(a, &with);
    let list = server.volume_json(&["list"]);
    assert_eq!(list["volumes"].as_array().unwrap().len(), 1, "{list}");
}

#[test]
fn each_device_is_set_scrubbed_and_shown_by_its_name() {
    let server = start(&["mem:256MiB", "mem:256MiB", "model:p3700,size=256MiB"], &[]);
    let api = ["--api", server.api.as_str()];
    let device = |arguments: &[&str]| run(&[&["device"], arguments, &api].concat());
    let names = ["mem:256MiB", "mem:256MiB#2", "model:p3700"];
    for (value, name) in names.iter().enumerate() {
        let made = server.volume_json(&[
            "create",
            &format!("v{value}"),
            "--size",
            "1GiB",
            "--device",
            name,
        ]);
        write_and_read(&server, &made, value as u64);
    }
    let set = ["device", "set", "--reads-per-second", "7", "--writes-per-second", "7"];
    refused(
        &[&set[..], &api].concat(),
        2,
        "several devices: mem:256MiB, mem:256MiB#2",
        "device set",
    );
    let set =
        device(&["set", names[1], "--reads-per-second", "7000", "--writes-per-second", "700"]);
    assert_eq!(set.code, Some(0), "{set:?}");
    assert!(set.stdout.contains("mem:256MiB#2") && !set.stdout.contains("p3700"), "{set:?}");
    let rate = ["--reads-per-second", "6000"];
    let slo = |volume: &str| server.volume(&[&["set-slo", volume], &rate[..]].concat());
    assert_eq!(slo("v1").code, Some(0));
    assert!(slo("v0").stderr.contains("device mem:256MiB has no ceiling"));
    let list = document(&server);
    let ceilings: Vec<bool> =
        (0..3).map(|n| list["devices"][n]["sharing"]["ceiling"].is_object()).collect();
    assert_eq!(ceilings, [false, true, false]);
    assert_eq!(list["devices"][1]["sharing"]["unpromised_reads_per_second"], 1000);

    refused(&[&["scrub"], &api[..]].concat(), 2, "several devices", "behind `farflash scrub`");
    let scrubbed = succeed(&[&["scrub", names[2]], &api[..]].concat());
    assert!(scrubbed.starts_with("done"), "{scrubbed}");
    let idle = succeed(&[&["scrub", "--status", names[0]], &api[..]].concat());
    assert!(idle.starts_with("none since"), "{idle}");

    let stats = control::ApiClient::new(&server.api).unwrap().stats().unwrap();
    let shown: Vec<&str> = stats.devices.iter().map(|device| device.name.as_str()).collect();
    assert_eq!(shown, names);
    for (volume, name) in stats.volumes.iter().zip(names) {
        assert_eq!(volume.device, name);
        assert!(volume.flow.written_blocks == 1 && volume.flow.read_blocks == 1, "{volume:?}");
        assert_eq!(volume.promised_reads_per_second.is_some(), name == names[1], "{volume:?}");
    }
    let windows: Vec<bool> = stats
        .devices
        .iter()
        .map(|device| device.windows[0].reads.window_blocks.is_some())
        .collect();
    assert_eq!(windows, [false, true, false]);
}

/// A wrong request is refused before anything is changed, on any device.
#[test]
fn a_device_that_is_wrong_keeps_all_others_as_they_are() {
    let files = Files::new();
    let devices = formatted(&files, &[("a", 256)]);
    let a = devices[0].as_str();
    std::fs::write(files.path("junk"), [0xA5; 1 << 20]).unwrap();
    std::fs::File::create(files.path("blank")).unwrap().set_len(256 << 20).unwrap();
    std::fs::File::create(files.path("empty")).unwrap();
    let (junk, blank) = (files.device("junk"), files.device("blank"));
    let new = format!("{},size=256MiB", files.device("new"));
    let empty = format!("{},size=256MiB", files.device("empty"));
    let before = std::fs::read(files.path("a")).unwrap();
    let format = ["--format-if-blank", "--create"];
    let all = serve(&[a, &blank, &new, &empty, &junk]);
    refused(&[&all[..], &format].concat(), 1, "junk holds something else", "How to give up");
    let small = format!("{},size=1MiB", files.device("small"));
    let all = serve(&[&blank, &new, &small]);
    refused(&[&all[..], &format].concat(), 1, "small cannot be formatted", "size=");
    let lost = format!("{},size=256MiB", files.device("no/such"));
    let all = serve(&[&blank, &new, &empty, &lost]);
    refused(&[&all[..], &format].concat(), 1, "there is no directory", "mkdir");
    for made in ["new", "small"] {
        assert!(!files.path(made).exists(), "{made}");
    }
    assert_eq!(std::fs::metadata(files.path("empty")).unwrap().len(), 0);
    assert!(std::fs::read(files.path("blank")).unwrap().iter().all(|byte| *byte == 0));
    assert!(std::fs::read(files.path("a")).unwrap() == before);
    let server = start(&[a, &blank, &new, &empty], &format);
    assert_eq!(document(&server)["devices"].as_array().unwrap().len(), 4);
}

#[test]
fn a_device_is_given_once() {
    let files = Files::new();
    let devices = formatted(&files, &[("a", 256)]);
    let a = devices[0].as_str();
    refused(&serve(&[a, "mem:64MiB", a]), 2, "a is given twice", "--device once");
    std::os::unix::fs::symlink(files.path("a"), files.path("symlink")).unwrap();
    std::fs::hard_link(files.path("a"), files.path("hard")).unwrap();
    refused(&serve(&[a, &files.device("./a")]), 2, "is given twice", "--device once");
    for other in [&files.device("symlink"), &files.device("hard")] {
        refused(&serve(&[a, other]), 2, "are the same device", "--device once");
    }
    // Also one that is still to be made.
    std::os::unix::fs::symlink(files.path(""), files.path("here")).unwrap();
    let new = ["new", "here/new"].map(|name| format!("{},size=256MiB", files.device(name)));
    let twice = serve(&[&new[0], &new[1]]);
    refused(
        &[&twice[..], &["--format-if-blank", "--create"]].concat(),
        2,
        "the same device",
        "--device once",
    );
    std::fs::copy(files.path("a"), files.path("copy")).unwrap();
    let copy = files.device("copy");
    let outcome = run(&serve(&[a, &copy]));
    assert!(outcome.stderr.contains(a) && outcome.stderr.contains(&copy), "{outcome:?}");
    refused(&serve(&[a, &copy]), 1, "are one device and its copy", "only");
}

#[test]
fn a_configuration_file_names_several_devices() {
    let files = Files::new();
    let path = files.path("farflash.toml");
    let a = files.device("a");
    let list = format!("devices = [\"{a},size=256MiB\", \"mem:64MiB\"]\nformat_if_blank = true\n");
    std::fs::write(&path, list).unwrap();
    let config =
        ["serve", "--config", path.to_str().unwrap(), "--create", "--auth", "off", "--log-json"];
    let ports = ["--listen", "127.0.0.1:0", "--api", "127.0.0.1:0"];
    let server = Server::from_arguments(&[&config[..], &ports].concat());
    let list = document(&server);
    assert_eq!(list["devices"][0]["name"], a);
    assert_eq!(list["devices"][1]["name"], "mem:64MiB");
}

/// Sends a device that hangs more than the kernel would hold by itself for a few CPUs, and says when.
fn fail_to_write(volume: &Value, begun: std::sync::mpsc::Sender<()>) {
    let nqn = nvme_wire::Nqn::new(volume["nqn"].as_str().unwrap()).unwrap();
    let address = volume["address"].as_str().unwrap().parse().unwrap();
    on_core(|handle| async move {
        let volume = connect(&handle, address, &nqn).await;
        let writes = (0..100).map(|block| {
            let (volume, (sender, done)) = (volume.clone(), local_sync::oneshot());
            handle.spawn_now(async move {
                sender.send(volume.write(Lba(10 + block), filled(9)).await.is_err());
            });
            done
        });
        let writes: Vec<_> = writes.collect();
        begun.send(()).unwrap();
        for failed in writes {
            assert_eq!(failed.await, Some(true));
        }
    });
}

/// One of two devices hangs under a server with a hundred writes at it, and they and what is changed on it
/// are answered with errors; meanwhile everything can be done on the other. Then it answers again, and all agree on what was changed.
#[test]
fn a_device_that_hangs_leaves_the_other_alone_and_its_changes_may_come_true() {
    let files = Files::new();
    let Some(file_system) = FileSystem::new(&files.path("")) else {
        return skipped("no file system can be mounted here");
    };
    let devices = formatted(&files, &[("a", 128), ("mount/b", 256)]);
    let (a, b) = (devices[0].as_str(), devices[1].as_str());
    // What is well answers within that also on a busy disk.
    let server = start(&[a, b], &["--device-timeout", "5"]);
    let on =
        |device, name| server.volume_json(&["create", name, "--size", "1GiB", "--device", device]);
    let (good, bad) = (on(a, "good"), on(b, "bad"));
    on(b, "gone");
    write_and_read(&server, &good, 1);
    write_and_read(&server, &bad, 2);
    let health = || {
        let shown = document(&server);
        [0, 1].map(|number| shown["devices"][number]["health"].as_str().unwrap().to_owned())
    };
    assert_eq!(health(), ["good", "good"]);

    let hanging = file_system.hang();
    let restriction = [
        "restrict",
        "bad",
        "--host",
        "nqn.2014-08.org.nvmexpress:uuid:550e8400-e29b-41d4-a716-446655440000",
    ];
    let api = server.api.clone();
    let change = |words: &[&str]| run(&[&["volume"], words, &["--api", &api]].concat());
    let stuck = std::thread::scope(|scope| {
        let (begun, waits) = std::sync::mpsc::channel();
        let crowd = scope.spawn(|| fail_to_write(&bad, begun));
        waits.recv().unwrap();
        let restricting = scope.spawn(|| change(&restriction));
        let deleting = scope.spawn(|| change(&["delete", "--lose-data", "gone"]));
        // Before the device is known to hang.
        write_and_read(&server, &good, 3);
        assert_eq!(server.volume(&["resize", "good", "--size", "2GiB"]).code, Some(0));
        crowd.join().unwrap();
        [restricting.join().unwrap(), deleting.join().unwrap()]
    });
    for outcome in stuck {
        assert!(
            outcome.code == Some(1) && outcome.stderr.contains("the device failed"),
            "{outcome:?}"
        );
    }
    assert_eq!(health(), ["good", "failed"]);
    let shown = document(&server);
    let why = "could not be written: the device no longer answers";
    assert!(shown["devices"][1]["failure"].as_str().is_some_and(|it| it.contains(why)), "{shown}");
    assert!(shown["devices"][0].get("failure").is_none(), "{shown}");
    let status = run(&["status", "--api", &api]);
    assert!(status.stdout.contains(why) && status.stderr.contains(why), "{status:?}");
    write_and_read(&server, &good, 4);
    // It has more room, and takes no changes.
    let made = server.volume_json(&["create", "another", "--size", "1GiB"]);
    assert_eq!(made["device"], a);
    assert_eq!(server.volume(&["delete", "--lose-data", "another"]).code, Some(0));

    drop(hanging);
    server.wait_for_log("is back");
    // A change that reached the device before it was given up comes true, one that came later does not;
    // the API and hosts that connect are told the same.
    let nqn = bad["nqn"].as_str().unwrap();
    until("all know what became of the changes", || {
        let shown = server.volume_json(&["show", "bad"]);
        let closed = shown["restrictions"]["hosts"] != serde_json::json!([]);
        let found = succeed(&["discover", &server.portals[0].to_string()]);
        let listed = server.volume_json(&["list"])["volumes"].as_array().unwrap().len();
        let discovered = found.lines().count() + usize::from(closed);
        closed != found.contains(nqn) && listed == discovered && health()[1] != "failed"
    });
    read(&good, 4);
    server.signal("TERM");
    assert_eq!(server.wait(), Some(0));
}
