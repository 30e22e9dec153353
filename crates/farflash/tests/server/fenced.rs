//! A host that stops by itself when it is cut off from the directory, and the host that has its devices then.

use std::cell::Cell;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::rc::Rc;

use crate::etcd::{EtcdProcesses, Wire, delete, first_key, forget_addresses, get, is_there, put};
use crate::support::cluster::{
    client, copy, discovered, format, host, host_with, lease_ends, listed, nqn, portal, refused,
    row, url,
};
use crate::support::file_system::FileSystem;
use crate::support::host::{connect, filled, on_core};
use crate::support::loop_device::LoopDevice;
use crate::support::skipped::skipped;
use crate::support::{Files, PATIENCE, Server, run, succeed, tokens, until};
use client::{Client, ConnectError, Options, Reconnect};
use io_traits::Spawn;
use nvme_wire::{Nqn, Status};
use reactor::Handle;
use serde_json::Value;
use units::Lba;

/// Well behind the end of the lease, which is 3 s.
const FENCE: [&str; 2] = ["--fence-after", "8s"];

fn ask(server: &Server, path: &str) -> String {
    let mut stream = TcpStream::connect(server.api.trim_start_matches("http://")).unwrap();
    stream.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// Checks that a server shows everywhere that it is fenced, or nowhere.
fn says(server: &Server, is_fenced: bool) {
    let metric = format!("\nfarflash_fenced {}\n", u8::from(is_fenced));
    assert!(ask(server, "/metrics").contains(&metric));
    assert_eq!(ask(server, "/readyz").starts_with("HTTP/1.0 503"), is_fenced);
    let status = run(&["status", "--api", &server.api]);
    let complains = status.stderr.contains("no volume is served until the directory confirms");
    assert_eq!((status.code, complains), (Some(i32::from(is_fenced)), is_fenced), "{status:?}");
    let state = if is_fenced { "unreachable" } else { "online" };
    assert_eq!(listed(server), [row("v", "a", state)]);
}

/// Returns the error of a host that connects now.
async fn refusal(handle: &Handle, address: SocketAddr, nqn: &Nqn) -> ConnectError {
    let options = Options { reconnect: Reconnect::Never, ..tokens::options(nqn, 7) };
    Client::connect(handle.clone(), address, nqn, options).await.err().expect("it is not let in")
}

/// No volume is served by two hosts. Method: a client writes to one that is cut off, again and again, until
/// that answers no more; the device, of which the other host has a copy, is taken over as soon as that may
/// be. When the other host serves, the first has stopped.
#[test]
fn a_volume_is_served_by_its_host_until_it_stops_and_by_the_next_behind_that() {
    let (etcd, files) = (EtcdProcesses::start(1), Files::new());
    let (directory, wire) = (url(etcd.address(0), "test-fence"), Wire::new(etcd.address(0)));
    let near = url(wire.address(), "test-fence");
    let audit = files.path("audit.jsonl");
    let more = [&FENCE[..], &["--audit-log", audit.to_str().unwrap()]].concat();
    let a = host_with(&near, "a", &format(&files, "a"), &more);
    let volume = a.volume_json(&["create", "v", "--size", "64MiB"]);
    says(&a, false);
    let copied = copy(&files, "a", "b");
    let (at_a, nqn) = (portal(&volume), nqn(&volume));
    on_core(|handle| async move {
        let open = connect(&handle, at_a, &nqn).await;
        open.write(Lba(0), filled(1)).await.expect("it serves");
        let is_serving = Rc::new(Cell::new(true));
        let (writing, serving) = (handle.clone(), is_serving.clone());
        handle.spawn(async move {
            use io_traits::Clock;
            let mut value = 1;
            while open.write(Lba(0), filled(value)).await.is_ok() {
                value += 1;
                writing.sleep_until(writing.now() + units::Duration::from_millis(1)).await;
            }
            serving.set(false);
        });
        let (sender, mut started) = reactor::mailbox();
        std::thread::spawn(move || {
            wire.cut();
            lease_ends(&directory, "b", &copied);
            let word = refused(&directory, "b", &copied, &[]).stderr;
            assert!(word.contains("it has --fence-after"), "{word}");
            // It cannot be seen from there, serving or not.
            forget_addresses(etcd.address(0), "test-fence");
            let b = host_with(&directory, "b", &copied, &["--take-over"]);
            let _ = sender.send((b, wire, etcd));
        });
        let (b, wire, _etcd) = started.recv().await.expect("it takes over");
        assert!(!is_serving.get(), "two serve the volume");
        let at_b = b.portals[0];
        let there = connect(&handle, at_b, &nqn).await;
        there.write(Lba(0), filled(99)).await.expect("it serves");
        a.wait_for_log("fenced: ");
        says(&a, true);
        let refused = refusal(&handle, at_a, &nqn).await;
        let ConnectError::Command(client::Error::Target { status, .. }) = refused else {
            panic!("{refused}")
        };
        assert_eq!(status, Status::NAMESPACE_NOT_READY, "to come again");
        assert!(!discovered(&a).contains(&nqn.to_string()));

        wire.mend();
        a.wait_for_log("the device is served by another host");
        until("it is asked where it is", || listed(&a) == [row("v", "b", "online")]);
        until("others are kept out for good", || {
            ask(&a, "/metrics").contains("\nfarflash_fenced 0\n")
        });
        let refused = refusal(&handle, at_a, &nqn).await;
        assert!(refused.is_refusal(), "{refused}");
        let read = there.read(Lba(0), 1).await.expect("it serves");
        assert_eq!(read.as_bytes(), filled(99).as_bytes());
        a.signal("TERM");
        assert_eq!(a.wait(), Some(0), "it ends in good order, and writes nothing");
        assert_eq!(listed(&b), [row("v", "b", "online")]);
    });
    let deeds = crate::support::audit::deeds(&audit);
    let of = |line: &serde_json::Value| line["method"].as_str().map(str::to_owned);
    let methods: Vec<_> = deeds.iter().filter_map(of).collect();
    assert_eq!(methods, ["FENCE", "FENCE", "SERVE", "SERVE"], "{deeds:?}");
    assert_eq!(deeds[0]["request"]["fence_after_seconds"], 8);
}

/// No other host took the devices: their volumes are served again, with all that was acknowledged.
#[test]
fn a_fenced_host_that_is_back_serves_what_is_its_own() {
    let (etcd, files) = (EtcdProcesses::start(1), Files::new());
    let wire = Wire::new(etcd.address(0));
    let near = url(wire.address(), "test-back");
    let a = host_with(&near, "a", &format(&files, "a"), &FENCE);
    let volume = a.volume_json(&["create", "v", "--size", "64MiB"]);
    let (portal, nqn) = (portal(&volume), nqn(&volume));
    on_core(|handle| async move {
        let open = connect(&handle, portal, &nqn).await;
        open.write(Lba(0), filled(1)).await.expect("it serves");
        for value in 1..3 {
            wire.cut();
            a.wait_for_log("fenced: ");
            open.read(Lba(0), 1).await.expect_err("cut");
            says(&a, true);
            wire.mend();
            a.wait_for_log("the directory confirms it");
            says(&a, false);
            until("discovery offers it", || discovered(&a).contains(&nqn.to_string()));
            let open = connect(&handle, portal, &nqn).await;
            let read = open.read(Lba(0), 1).await.expect("it serves");
            assert_eq!(read.as_bytes(), filled(value).as_bytes());
            open.write(Lba(0), filled(value + 1)).await.expect("it serves");
        }
        wire.cut();
        a.wait_for_log("fenced: ");
        a.signal("TERM");
        assert_eq!(a.wait(), Some(0), "it ends in good order");
    });
}

/// A process that is stopped runs no timer. Method: it is stopped for longer than its fence, while a read waits for it
/// that needs no device, and goes on when its device is another's.
#[test]
fn a_host_that_was_stopped_carries_nothing_out_when_it_goes_on() {
    let (etcd, files) = (EtcdProcesses::start(1), Files::new());
    let directory = url(etcd.address(0), "test-stop");
    let a = host_with(&directory, "a", &format(&files, "a"), &FENCE);
    let volume = a.volume_json(&["create", "v", "--size", "64MiB"]);
    let copied = copy(&files, "a", "b");
    let (portal, nqn) = (portal(&volume), nqn(&volume));
    on_core(|handle| async move {
        // Neither side gives the other up.
        let options = Options {
            reconnect: Reconnect::Never,
            keep_alive: units::Duration::ZERO,
            command_timeout: units::Duration::from_secs(600),
            ..tokens::options(&nqn, 7)
        };
        let open = Client::connect(handle.clone(), portal, &nqn, options).await.unwrap();
        let open = open.volume().await.unwrap();
        open.write(Lba(0), filled(1)).await.expect("it serves");
        a.pause();
        let (waits, (sender, mut read)) = (Rc::new(Cell::new(true)), reactor::mailbox());
        let is_waiting = waits.clone();
        handle.spawn(async move {
            let is_read = open.read(Lba(7), 1).await.is_ok();
            is_waiting.set(false);
            let _ = sender.send(is_read);
        });
        let (sender, mut started) = reactor::mailbox();
        std::thread::spawn(move || {
            lease_ends(&directory, "b", &copied);
            forget_addresses(etcd.address(0), "test-stop");
            let b = host_with(&directory, "b", &copied, &["--take-over"]);
            let _ = sender.send((b, etcd));
        });
        let (b, _etcd) = started.recv().await.expect("it takes over");
        assert!(waits.get(), "it is not answered, and not given up");
        a.resume();
        assert_eq!(read.recv().await, Some(false), "it was carried out");
        a.wait_for_log("the device is served by another host");
        assert_eq!(listed(&b), [row("v", "b", "online")]);
    });
}

/// The confirmation is still needed, and the host at the old addresses is still looked for: but a host that
/// is fenced answers itself that it does not serve.
#[test]
fn a_fenced_host_that_can_be_asked_says_that_it_has_stopped() {
    let (etcd, files) = (EtcdProcesses::start(1), Files::new());
    let (directory, wire) = (url(etcd.address(0), "test-ask"), Wire::new(etcd.address(0)));
    let a = host_with(&url(wire.address(), "test-ask"), "a", &format(&files, "a"), &FENCE);
    a.volume_json(&["create", "v", "--size", "64MiB"]);
    let c = host(&directory, "c", &format(&files, "c"));
    let shown = |id: &str| {
        let hosts = client(&c).hosts().unwrap().hosts;
        hosts.into_iter().find(|host| host.name == id).unwrap().fence_after_seconds
    };
    assert_eq!((shown("a"), shown("c")), (Some(8), None));
    let copied = copy(&files, "a", "b");
    wire.cut();
    lease_ends(&directory, "b", &copied);
    until("it is lost", || listed(&c) == [row("v", "a", "unreachable")]);
    assert_eq!(shown("a"), Some(8), "also when it is lost");
    let b = host_with(&directory, "b", &copied, &["--take-over"]);
    assert_eq!(listed(&b), [row("v", "b", "online")]);
}

/// Method: no wait begins when another has ended.
#[test]
fn several_devices_of_a_lost_host_are_waited_for_together() {
    let (etcd, files) = (EtcdProcesses::start(1), Files::new());
    let directory = url(etcd.address(0), "test-several");
    let devices = ["a1", "a2"].map(|name| format(&files, name));
    let a =
        host_with(&directory, "a", &devices[0], &[&FENCE[..], &["--device", &devices[1]]].concat());
    a.signal("KILL");
    a.wait();
    let copies = [("a1", "b1"), ("a2", "b2")].map(|(from, to)| copy(&files, from, to));
    lease_ends(&directory, "b", &copies[0]);
    let b = host_with(&directory, "b", &copies[0], &["--device", &copies[1], "--take-over"]);
    let said = |device: &str, text: &str| {
        let is_it = |line: &Value| {
            let fields = &line["fields"];
            let message = fields["message"].as_str().unwrap_or_default();
            fields["device"] == device && message.starts_with(text)
        };
        b.starting.iter().position(is_it).unwrap_or_else(|| panic!("{text}: {:?}", b.starting))
    };
    let begun = copies.each_ref().map(|device| said(device, "may still serve"));
    let ended = copies.each_ref().map(|device| said(device, "has stopped by its fence"));
    assert!(begun.iter().max() < ended.iter().min(), "{:?}", b.starting);
}

/// Method: while the host is cut off its claim goes, and another has its name, so that it learns what it lost and is not
/// confirmed. By time alone it would serve for an hour.
#[test]
fn a_host_that_lost_a_claim_says_so_and_serves_when_it_is_confirmed() {
    let (etcd, files) = (EtcdProcesses::start(1), Files::new());
    let (directory, wire) = (etcd.address(0), Wire::new(etcd.address(0)));
    let near = url(wire.address(), "test-lost");
    let a = host_with(&near, "a", &format(&files, "a"), &["--fence-after", "1h"]);
    let own = first_key(directory, "/farflash/test-lost/hosts/");
    let mut other: Value = serde_json::from_str(&get(directory, &own)).unwrap();
    wire.cut();
    a.wait_for_log("the directory is away");
    delete(directory, &first_key(directory, "/farflash/test-lost/devices/"));
    other["id"] = "00000000-0000-4000-8000-000000000000".into();
    let other_key = "/farflash/test-lost/hosts/00000000-0000-4000-8000-000000000000";
    put(directory, other_key, &other.to_string());
    wire.mend();
    a.wait_for_log("fenced: a device is not this host's any more");
    let status = run(&["status", "--api", &a.api]);
    assert!(
        status.stderr.contains("until the directory confirms what is this host's"),
        "{status:?}"
    );
    delete(directory, other_key);
    a.wait_for_log("the directory confirms it");
}

/// The kernel has a write of a host that is fenced when that is told to end. Method: its drive hangs, which is a file on a file
/// system that does, and etcd is back when its core has ended, so that nothing but the write keeps it from giving the drive back.
#[test]
fn a_device_is_not_given_back_while_a_write_to_it_is_under_way() {
    let (etcd, files) = (EtcdProcesses::start(1), Files::new());
    let Some(file_system) = FileSystem::new(&files.path("")) else {
        return skipped("no file system can be mounted");
    };
    let Some(disk) = LoopDevice::new(&files, "mount/disk", 256 << 20) else {
        return skipped("no loop device can be made");
    };
    let device = format!("file:{}", disk.path());
    succeed(&["format", "--device", &device]);
    let (directory, wire) = (etcd.address(0), Wire::new(etcd.address(0)));
    let a = host_with(&url(wire.address(), "test-end"), "a", &device, &FENCE);
    let volume = a.volume_json(&["create", "v", "--size", "64MiB"]);
    let (portal, nqn) = (portal(&volume), nqn(&volume));
    on_core(|handle| async move {
        let open = connect(&handle, portal, &nqn).await;
        let _hanging = file_system.hang();
        let _limit = file_system.hang_at_most(PATIENCE);
        let writer = open.clone();
        handle.spawn(async move {
            let _ = writer.write(Lba(0), filled(1)).await;
        });
        // It comes behind the write, and needs no device.
        open.read(Lba(9), 1).await.expect("it serves");
        wire.cut();
        a.wait_for_log("fenced: ");
        a.signal("TERM");
        until("its core has ended", || TcpStream::connect(portal).is_err());
        wire.mend();
        assert_eq!(a.wait(), Some(1));
        let claim = first_key(directory, "/farflash/test-end/devices/");
        assert!(is_there(directory, &claim));
    });
}
