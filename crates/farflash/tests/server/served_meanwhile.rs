//! A host acts upon what it knew before, while others have gone on: a device that another served in between, a directory
//! whose news are late, and one that knows of a device that is gone for good.

use crate::etcd::{EtcdProcesses, Wire, first_key, get, is_there};
use crate::support::cluster::{
    client, code, creation, format, host, host_with, lease_ends, listed, nqn, portal, row, text,
    url,
};
use crate::support::host::{connect, filled, on_core};
use crate::support::loop_device::LoopDevice;
use crate::support::skipped::skipped;
use crate::support::{Files, Server, cores, device, run, succeed, until};
use control::ProblemCode;
use serde_json::Value;
use units::Lba;

/// Blocks of a volume that say which they are.
const BLOCKS: u64 = 64;

/// Content of block `lba` of a volume that was written as `generation`.
fn content(generation: u64, lba: u64) -> u64 {
    generation << 32 | lba
}

fn write_all(volume: &Value, generation: u64) {
    let (portal, nqn) = (portal(volume), nqn(volume));
    on_core(|handle| async move {
        let open = connect(&handle, portal, &nqn).await;
        for lba in 0..BLOCKS {
            let block = filled(content(generation, lba));
            open.write(Lba(lba), block).await.expect("it serves");
        }
    });
}

fn holds_all(server: &Server, name: &str, generation: u64) {
    let volume = server.volume_json(&["show", name]);
    let (portal, nqn) = (portal(&volume), nqn(&volume));
    on_core(|handle| async move {
        let open = connect(&handle, portal, &nqn).await;
        for lba in 0..BLOCKS {
            let block = open.read(Lba(lba), 1).await.expect("it serves");
            assert!(block.as_bytes() == filled(content(generation, lba)).as_bytes(), "block {lba}");
        }
    });
}

/// DEVICE-SET-6, attacked: a host that opened a drive, which two machines reach, waits for the directory. Before it has
/// that, another host serves the drive, by more cores than were used of it so far, and gives it back.
///
/// Method: the two ways to the drive are two loop devices over one file.
#[test]
fn what_was_written_while_a_claim_was_waited_for_is_served() {
    let (etcd, files) = (EtcdProcesses::start(1), Files::new());
    let image = files.path("image");
    std::fs::File::create(&image).unwrap().set_len(512 << 20).unwrap();
    let ways = [(); 2].map(|()| LoopDevice::on(&image));
    let ([Some(near), Some(far)], Some(two)) = (ways, cores(2)) else {
        return skipped("two loop devices and two cores are needed");
    };
    let [one_way, other_way] = [&near, &far].map(|way| device(way.path().as_ref()));
    succeed(&["format", "--device", &one_way]);
    let directory = url(etcd.address(0), "test-meanwhile");
    let end = |server: Server| {
        server.signal("TERM");
        assert_eq!(server.wait(), Some(0));
    };
    let a = host(&directory, "a", &one_way);
    write_all(&a.volume_json(&["create", "old", "--size", "64MiB"]), 1);
    end(a);
    let noted = first_key(etcd.address(0), "/farflash/test-meanwhile/claimed/");

    let wire = Wire::new(etcd.address(0));
    wire.delay(&noted.replace("claimed", "devices"));
    let far_directory = url(wire.address(), "test-meanwhile");
    std::thread::scope(|scope| {
        let b = scope.spawn(|| host(&far_directory, "b", &other_way));
        until("it asks for the device", || wire.is_late());
        wire.cut();
        let by_two = ["--cores", two.as_str()];
        let a = host_with(&directory, "a", &one_way, &by_two);
        let made: Vec<Value> =
            ["one", "two"].map(|name| a.volume_json(&["create", name, "--size", "64MiB"])).into();
        assert_ne!(portal(&made[0]), portal(&made[1]), "each has a core of its own");
        write_all(&a.volume_json(&["show", "old"]), 2);
        (3..).zip(&made).for_each(|(generation, volume)| write_all(volume, generation));
        end(a);
        far.forget_what_was_read();
        wire.mend();
        let b = b.join().unwrap();
        let names = ["old", "one", "two"];
        assert_eq!(listed(&b), names.map(|name| row(name, "b", "online")));
        write_all(&b.volume_json(&["create", "new", "--size", "64MiB"]), 5);
        end(b);
        near.forget_what_was_read();
        let a = host_with(&directory, "a", &one_way, &by_two);
        (2..).zip(["old", "one", "two", "new"]).for_each(|(generation, name)| {
            holds_all(&a, name, generation);
        });
    });
}

/// A record that was made a moment ago, and that no host was told of yet, goes with its volume all the same.
#[test]
fn a_volume_that_is_deleted_before_its_record_is_seen_leaves_none() {
    let (etcd, files) = (EtcdProcesses::start(1), Files::new());
    let wire = Wire::new(etcd.address(0));
    let a = host(&url(wire.address(), "test-unseen"), "a", &format(&files, "a"));
    wire.hold();
    a.volume_json(&["create", "v", "--size", "64MiB"]);
    assert!(is_there(etcd.address(0), "/farflash/test-unseen/names/v"));
    assert_eq!(a.volume(&["delete", "--lose-data", "v"]).code, Some(0));
    assert!(!is_there(etcd.address(0), "/farflash/test-unseen/names/v"));
    wire.release();
    a.volume_json(&["create", "v", "--size", "64MiB"]);
}

/// Growth of a volume is recorded before it is made, and with it the change made a moment ago: a host that
/// was just shut out is not offered the volume elsewhere meanwhile. Method: the other host is not told of the
/// change, and the answer about the growth is held back.
#[test]
fn growth_is_recorded_with_what_was_changed_before_it() {
    let (etcd, files) = (EtcdProcesses::start(1), Files::new());
    let wire = Wire::new(etcd.address(0));
    let near = url(wire.address(), "test-growth");
    // Long enough that it is not cut off because the machine is busy.
    let joins = ["--directory", &near, "--host-name", "a", "--host-lease", "60"];
    let a = Server::start_with(&format(&files, "a"), &joins);
    let created = a.volume_json(&["create", "v", "--size", "64MiB", "--owner", "acme"]);
    wire.hold();
    let only = "nqn.2014-08.org.example:only";
    assert_eq!(a.volume(&["restrict", "v", "--host", only]).code, Some(0));
    // Only what changes the sum names it.
    wire.delay_answer("/farflash/test-growth/tenants/acme");
    let api = a.api.clone();
    let resize = move || succeed(&["volume", "resize", "v", "--size", "128MiB", "--api", &api]);
    let resized = std::thread::spawn(resize);
    until("the growth is recorded", || wire.is_late() || resized.is_finished());
    if !wire.is_late() {
        panic!("nothing rests: {:?}", resized.join());
    }
    let key = format!("/farflash/test-growth/volumes/{}", text(&created, "id"));
    let record: Value = serde_json::from_str(&get(etcd.address(0), &key)).unwrap();
    wire.deliver();
    resized.join().unwrap();
    assert_eq!(record["size_bytes"], 128 << 20);
    assert_eq!(record["restrictions"]["hosts"], serde_json::json!([only]));
    wire.release();
}

/// A drive that died keeps the names of its volumes until an operator says that it is gone for good; nor is
/// it forgotten while a host may serve it. A device that was forgotten by mistake has its volumes again when
/// it is back.
#[test]
fn a_device_that_is_gone_for_good_is_forgotten_by_an_operators_word() {
    let (etcd, files) = (EtcdProcesses::start(1), Files::new());
    let directory = url(etcd.address(0), "test-forget");
    let (one, two) = (format(&files, "one"), format(&files, "two"));
    let (a, b) = (host(&directory, "a", &one), host(&directory, "b", &two));
    let lost = client(&a).create(&creation("v")).unwrap().volume.drive.id;
    until("it is known", || listed(&b) == [row("v", "a", "online")]);
    assert_eq!(code(client(&a).forget_device(lost, None)), ProblemCode::DeviceInUse, "its own");
    assert_eq!(
        code(client(&b).forget_device(lost, None)),
        ProblemCode::DeviceInUse,
        "its host lives"
    );
    a.signal("KILL");
    a.wait();
    lease_ends(&directory, "c", &one);
    until("it is seen", || listed(&b) == [row("v", "a", "unreachable")]);
    assert_eq!(code(client(&b).create(&creation("v"))), ProblemCode::NameTaken);
    assert_eq!(code(client(&b).delete("v")), ProblemCode::HostUnreachable);

    // Its host may be there unseen.
    assert_eq!(code(client(&b).forget_device(lost, None)), ProblemCode::DeviceInUse);
    let forget = ["device", "forget", &lost.to_string(), "--api", &b.api];
    let unsaid = run(&forget);
    assert!(unsaid.stderr.contains("--confirm-down a"), "{unsaid:?}");
    succeed(&[&forget[..], &["--confirm-down", "a"]].concat());
    assert_eq!(listed(&b), []);
    assert_eq!(code(client(&b).forget_device(lost, None)), ProblemCode::DeviceNotFound);
    let heir = client(&b).create(&creation("v")).unwrap().volume;
    // It was not gone, after all: both are there, the one that came later by its id.
    let a = host(&directory, "a", &one);
    until("it is known", || listed(&b).contains(&row("v", "a", "online")));
    assert_eq!(client(&b).show("v").unwrap().id, heir.id);
    // One that was given back, and died then.
    a.signal("TERM");
    assert_eq!(a.wait(), Some(0));
    until("it is seen", || listed(&b).iter().any(|(_, _, state)| state == "unreachable"));
    client(&b).forget_device(lost, None).unwrap();
    assert_eq!(listed(&b), [row("v", "b", "online")]);
}
