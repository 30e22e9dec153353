//! A directory that was restored from a backup, and devices that know better (CLAIM-9).

use crate::etcd::{EtcdProcesses, Wire, forget_addresses};
use crate::support::cluster::{
    FROM_A, client, creation, host, host_with, lease_ends, listed, refused, row, url,
};
use crate::support::loop_device::LoopDevice;
use crate::support::skipped::skipped;
use crate::support::{Files, device, succeed, until};

/// Two ways to one drive, as two machines have that reach it; `None` where there are no loop devices.
fn two_ways(files: &Files) -> Option<[LoopDevice; 2]> {
    let image = files.path("image");
    std::fs::File::create(&image).unwrap().set_len(256 << 20).unwrap();
    let ways = [LoopDevice::on(&image)?, LoopDevice::on(&image)?];
    succeed(&["format", "--device", &device(ways[0].path().as_ref())]);
    Some(ways)
}

/// The host that gave a drive away after the backup starts first, while the one that serves it is cut off: it
/// is refused. When it is wrongly told that no host serves the drive, it has the drive, and the other one
/// stops by the record on the drive, without the directory.
#[test]
fn a_drive_that_was_given_away_after_the_backup_is_not_served_twice() {
    let (mut etcd, files) = (EtcdProcesses::start(1), Files::new());
    let Some([near, far]) = two_ways(&files) else {
        return skipped("two loop devices are needed");
    };
    let [one_way, other_way] = [&near, &far].map(|way| device(way.path().as_ref()));
    let directory = url(etcd.address(0), "test-restored");
    let a = host(&directory, "a", &one_way);
    a.volume_json(&["create", "v", "--size", "64MiB"]);
    etcd.back_up();
    until("etcd is back", || client(&a).create(&creation("w")).is_ok());
    client(&a).delete_with_data("w").unwrap();
    a.signal("TERM");
    assert_eq!(a.wait(), Some(0));
    let wire = Wire::new(etcd.address(0));
    far.forget_what_was_read();
    let b = host(&url(wire.address(), "test-restored"), "b", &other_way);
    wire.cut();
    b.wait_for_log("the directory is away");
    etcd.restore();
    etcd.restart(0);
    etcd.wait(0);

    near.forget_what_was_read();
    let later = refused(&directory, "a", &one_way, &[]);
    let says = ["was claimed by host b later than the directory knows", "--take-over"];
    assert!(says.iter().all(|what| later.stderr.contains(what)), "{later:?}");
    assert_eq!(listed(&b)[0].0, "v", "nothing was taken from it");
    let unsaid = refused(&directory, "a", &one_way, &["--take-over"]);
    assert!(unsaid.stderr.contains("see that b is down"), "{unsaid:?}");
    let a = host_with(&directory, "a", &one_way, &["--take-over", "--confirm-down", "b"]);
    b.wait_for_log("the device is served by another host");
    assert_eq!(listed(&a), [row("v", "a", "online")]);
    // Nor does it come back with the directory.
    wire.mend();
    until("it is told", || listed(&b) == [row("v", "a", "online")]);
}

/// A host that is cut off, and whose drive another one took over by an operator's word that was not true, stops by what the drive says.
#[test]
fn a_host_that_is_cut_off_stops_when_its_drive_carries_anothers_claim() {
    let (etcd, files) = (EtcdProcesses::start(1), Files::new());
    let Some([near, far]) = two_ways(&files) else {
        return skipped("two loop devices are needed");
    };
    let [one_way, other_way] = [&near, &far].map(|way| device(way.path().as_ref()));
    let directory = url(etcd.address(0), "test-carries");
    let wire = Wire::new(etcd.address(0));
    let a = host(&url(wire.address(), "test-carries"), "a", &one_way);
    a.volume_json(&["create", "v", "--size", "64MiB"]);
    wire.cut();
    far.forget_what_was_read();
    lease_ends(&directory, "b", &other_way);
    forget_addresses(etcd.address(0), "test-carries");
    let b = host_with(&directory, "b", &other_way, &FROM_A);
    a.wait_for_log("the device is served by another host");
    assert_eq!(listed(&b), [row("v", "b", "online")]);
}
