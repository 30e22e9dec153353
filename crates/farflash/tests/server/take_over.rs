//! Taking a device over that another host served, and the fate of the host that had it.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener};

use crate::etcd::{EtcdProcesses, Wire, forget_addresses};
use crate::support::cluster::{
    FROM_A, client, code, copy, creation, discovered, format, host, host_with, lease_ends, listed,
    membership, nqn, offer, portal, refused, row, url,
};
use crate::support::host::{connect, filled, on_core};
use crate::support::{Files, Server, own_host, until};
use control::{ApiClient, ProblemCode, VolumeState};
use serde_json::json;
use units::Lba;

#[test]
fn a_copy_of_a_device_is_served_by_an_operators_word_only() {
    let (etcd, files) = (EtcdProcesses::start(1), Files::new());
    let directory = url(etcd.address(0), "test-5");
    let device = format(&files, "a");
    let a = host(&directory, "a", &device);
    a.volume_json(&["create", "v", "--size", "64MiB"]);
    let copied = copy(&files, "a", "b");
    let alive = refused(&directory, "b", &copied, &[]);
    assert!(alive.stderr.contains("served by host a, which is alive"), "{alive:?}");
    let audit = files.path("audit.jsonl");
    let audited = ["--audit-log", audit.to_str().unwrap()];
    let by_word = [&FROM_A[..], &audited].concat();
    let alive = refused(&directory, "b", &copied, &by_word);
    assert!(alive.stderr.contains("served by host a, which is alive"), "{alive:?}");
    let same = refused(&directory, "a", &copied, &[]);
    assert!(same.stderr.contains("another server on this machine is the host `a`"), "{same:?}");
    a.signal("KILL");
    a.wait();
    let copied = copy(&files, "a", "b");
    until("the lease ends", || {
        let outcome = refused(&directory, "b", &copied, &[]);
        outcome.stderr.contains("is gone but did not give it back")
            && outcome.stderr.contains("--take-over --confirm-down a: it has no --fence-after")
    });
    // For a host that cannot be seen the operator has to confirm, by its name, that it is down.
    for named in [&["--take-over"][..], &["--take-over", "--confirm-down", "b"]] {
        let unsaid = refused(&directory, "b", &copied, &[named, &audited].concat());
        let says = ["which does not stop by itself", "see that a is down", "--confirm-down a"];
        assert!(says.iter().all(|what| unsaid.stderr.contains(what)), "{unsaid:?}");
    }
    let b = host_with(&directory, "b", &copied, &by_word);
    assert_eq!(listed(&b), [row("v", "b", "online")]);
    let deeds = crate::support::audit::deeds(&audit);
    for line in &deeds {
        assert_eq!((&line["caller"], &line["method"]), (&"serve".into(), &"TAKE-OVER".into()));
        assert!(line["path"].as_str().unwrap().ends_with("/test-5"), "{line}");
    }
    assert_eq!(deeds.len(), 8, "each said before and after: {deeds:?}");
    assert_eq!(deeds[6]["request"]["devices"][0].as_str(), Some(copied.as_str()));
    assert!(deeds[1]["outcome"].as_str().unwrap().contains("which is alive"), "{deeds:?}");
    assert!(deeds[3]["outcome"].as_str().unwrap().contains("may still serve"), "{deeds:?}");
    assert_eq!(deeds[7]["outcome"], "done");
    let down = |line: &serde_json::Value| line["request"]["confirmed_down"].clone();
    assert_eq!([2, 4, 6].map(|at| down(&deeds[at])), [json!([]), json!(["b"]), json!(["a"])]);
    let late = refused(&directory, "a", &device, &[]);
    assert!(late.stderr.contains("served by host b, which is alive"), "{late:?}");
    // Given back in good order, it can be had without such words.
    b.signal("TERM");
    assert_eq!(b.wait(), Some(0));
    let a = host(&directory, "a", &device);
    assert_eq!(listed(&a), [row("v", "a", "online")]);
}

/// The same as above, attacked: the word is not true, and the holder can be reached.
#[test]
fn a_host_that_is_alive_is_not_taken_from() {
    let (etcd, files) = (EtcdProcesses::start(1), Files::new());
    let (directory, wire) = (url(etcd.address(0), "test-alive"), Wire::new(etcd.address(0)));
    let near = url(wire.address(), "test-alive");
    let tls = files.path("tls");
    let more = ["--api-tls", tls.to_str().unwrap()];
    let a = host_with(&near, "a", &format(&files, "a"), &more);
    let certificate = tls.join(control::CERTIFICATE_FILE);
    let at_a = ApiClient::trusting(&a.api, Some(&certificate)).unwrap();
    let volume = crate::support::tokens::kept_of(at_a.create(&creation("v")).unwrap());
    let copied = copy(&files, "a", "b");
    wire.cut();
    a.wait_for_log("the directory is away");
    lease_ends(&directory, "b", &copied);
    // It is seen at its API or at its portal, whichever answers first, and is left as it is.
    let addresses = [a.api.trim_start_matches("https://").to_owned(), a.portals[0].to_string()];
    until("it answers in the time that it has", || {
        let seen = refused(&directory, "b", &copied, &FROM_A).stderr;
        let answers = |at: &String| seen.contains(&format!("but which answers at {at}"));
        addresses.iter().any(answers) && seen.contains("stop a there")
    });
    a.wait_for_log("another host asks for a device of this one");
    let (portal, nqn) = (volume.address, volume.nqn.parse().unwrap());
    let a = on_core(move |handle| async move {
        let open = connect(&handle, portal, &nqn).await;
        open.write(Lba(0), filled(1)).await.expect("it serves");
        a
    });
    // A process that is stopped takes connections and says nothing; it may go on at any time.
    a.pause();
    let seen = refused(&directory, "b", &copied, &FROM_A);
    let hangs =
        |at: &String| seen.stderr.contains(&format!("{at} takes connections and says nothing"));
    assert!(addresses.iter().any(hangs), "{seen:?}");
    a.signal("KILL");
    a.wait();
    drop(bind(portal));
    let b = host_with(&directory, "b", &copied, &FROM_A);
    assert_eq!(listed(&b), [row("v", "b", "online")]);
}

/// Takes the address of a server that was killed. The kernel closes what its rings held a moment later.
fn bind(address: SocketAddr) -> TcpListener {
    let mut bound = None;
    until("the address is free", || {
        bound = TcpListener::bind(address).ok();
        bound.is_some()
    });
    bound.unwrap()
}

/// Another program that has the addresses of a host that is gone is told from it.
#[test]
fn who_has_the_addresses_of_a_dead_host_is_not_taken_for_it() {
    let (etcd, files) = (EtcdProcesses::start(1), Files::new());
    let directory = url(etcd.address(0), "test-heirs");
    let device = format(&files, "a");
    let (anywhere, membership) = (format!("{}:0", own_host()), membership(&directory, "a"));
    let membership: Vec<&str> = membership.iter().map(String::as_str).collect();
    let a = Server::start_on(&device, &anywhere, &anywhere, &membership);
    let api: SocketAddr = a.api.trim_start_matches("http://").parse().unwrap();
    let portal = a.portals[0];
    a.signal("KILL");
    a.wait();
    let [at_api, at_portal] = [api, portal].map(bind);
    lease_ends(&directory, "b", &device);
    let silent = refused(&directory, "b", &device, &FROM_A);
    assert!(silent.stderr.contains("takes connections and says nothing"), "{silent:?}");
    for listener in [at_api, at_portal] {
        std::thread::spawn(move || {
            for mut stream in listener.incoming().map_while(Result::ok) {
                let _ = stream.write_all(b"220 ready\r\n");
                let _ = stream.shutdown(Shutdown::Write);
                let _ = stream.read_to_end(&mut Vec::new());
            }
        });
    }
    // On a busy machine they may need longer for an answer than they have.
    let take_over = || host_with(&directory, "b", &device, &FROM_A);
    until("they answer in time", || std::panic::catch_unwind(take_over).is_ok());
}

#[test]
fn a_host_that_was_taken_from_cuts_itself_off() {
    let (etcd, files) = (EtcdProcesses::start(1), Files::new());
    let (directory, wire) = (url(etcd.address(0), "test-6"), Wire::new(etcd.address(0)));
    let a = host_with(&url(wire.address(), "test-6"), "a", &format(&files, "a"), &[]);
    let volume = a.volume_json(&["create", "v", "--size", "64MiB"]);
    let copied = copy(&files, "a", "b");
    wire.cut();
    a.wait_for_log("the directory is away");
    lease_ends(&directory, "b", &copied);
    forget_addresses(etcd.address(0), "test-6");
    let (portal, nqn) = (portal(&volume), nqn(&volume));
    // It serves unseen: with half of the confirmation nothing is taken.
    let unsaid = refused(&directory, "b", &copied, &["--take-over"]);
    assert!(unsaid.stderr.contains("may still serve it unseen"), "{unsaid:?}");
    let b = host_with(&directory, "b", &copied, &FROM_A);
    assert_eq!(listed(&b), [row("v", "b", "online")]);
    on_core(|handle| async move {
        let open = connect(&handle, portal, &nqn).await;
        open.write(Lba(0), filled(1)).await.expect("it does not know yet");
        assert_eq!(code(client(&a).delete("v")), ProblemCode::DirectoryUnavailable);
        wire.mend();
        a.wait_for_log("the device is served by another host");
        until("it is asked where it is", || listed(&a) == [row("v", "b", "online")]);
        open.read(Lba(0), 1).await.expect_err("cut off");
        assert_eq!(code(client(&a).create(&creation("w"))), ProblemCode::DeviceLost);
        let moved = client(&a).show("v").unwrap();
        assert_eq!((moved.state, moved.address), (VolumeState::Online, b.portals[0]));
        assert_eq!(listed(&b), [row("v", "b", "online")], "nothing of the directory was changed");
        let moved_to = b.portals[0].to_string();
        until("discovery tells of it", || discovered(&a).contains(&moved_to));
        a.signal("TERM");
        assert_eq!(a.wait(), Some(0), "it ends in good order, and writes nothing");
        b.volume_json(&["show", "v"]);
    });
}

/// The same, attacked: the new holder has ended in good order before the former one comes back.
#[test]
fn a_host_that_was_taken_from_does_not_go_on_when_no_host_serves() {
    let (etcd, files) = (EtcdProcesses::start(1), Files::new());
    let (directory, wire) = (url(etcd.address(0), "test-back"), Wire::new(etcd.address(0)));
    let a = host(&url(wire.address(), "test-back"), "a", &format(&files, "a"));
    let volume = a.volume_json(&["create", "v", "--size", "64MiB"]);
    let copied = copy(&files, "a", "b");
    wire.cut();
    a.wait_for_log("the directory is away");
    lease_ends(&directory, "b", &copied);
    forget_addresses(etcd.address(0), "test-back");
    let b = host_with(&directory, "b", &copied, &FROM_A);
    let made = b.volume_json(&["create", "made", "--size", "64MiB"]);
    assert_eq!(b.volume(&["delete", "--lose-data", "v"]).code, Some(0));
    b.signal("TERM");
    assert_eq!(b.wait(), Some(0));

    let (portal, nqn) = (portal(&volume), nqn(&volume));
    on_core(|handle| async move {
        let open = connect(&handle, portal, &nqn).await;
        open.write(Lba(0), filled(1)).await.expect("it does not know yet");
        wire.mend();
        a.wait_for_log("the device was taken over by another host");
        // The other host has gone with its record, and is known by its id only.
        until("it is asked what there is", || {
            let listed = listed(&a);
            listed.len() == 1 && (&*listed[0].0, &*listed[0].2) == ("made", "unreachable")
        });
        open.read(Lba(0), 1).await.expect_err("cut off");
        assert_eq!(code(client(&a).create(&creation("w"))), ProblemCode::DeviceLost);
        a.signal("TERM");
        assert_eq!(a.wait(), Some(0), "it ends in good order, and writes nothing");
        let b = host(&directory, "b", &copied);
        assert_eq!(b.volume_json(&["show", "made"])["id"], made["id"]);
    });
}

/// OFFER-1, attacked: a device comes to this host while what the directory tells is on its way. What then comes says that
/// the former host has it no more, and takes nothing back of what this one offers.
#[test]
fn a_volume_that_has_come_is_found_though_the_directory_tells_of_it_late() {
    let (etcd, files) = (EtcdProcesses::start(1), Files::new());
    let (directory, wire) = (url(etcd.address(0), "test-came"), Wire::new(etcd.address(0)));
    let (one, two) = (format(&files, "one"), format(&files, "two"));
    let b = host(&directory, "b", &two);
    let at_b = b.volume_json(&["create", "v", "--size", "64MiB"]);
    let late = files.path("late");
    let device = format!("file:{}", late.display());
    let a = host_with(&url(wire.address(), "test-came"), "a", &one, &["--device", &device]);
    until("it is found elsewhere", || discovered(&a).contains(&offer(&at_b)));
    wire.hold();
    b.signal("TERM");
    assert_eq!(b.wait(), Some(0));
    std::fs::rename(files.path("two"), late).unwrap();
    let has_come = || client(&a).server().unwrap().devices[1].trouble.is_none();
    until("it has come", has_come);
    let c = host(&directory, "c", &format(&files, "c"));
    let last = c.volume_json(&["create", "last", "--size", "64MiB"]);
    wire.release();
    until("all is told", || discovered(&a).contains(&offer(&last)));
    until("it is known to be here", || listed(&a).contains(&row("v", "a", "online")));
    assert!(discovered(&a).contains(&offer(&a.volume_json(&["show", "v"]))));
}

/// A device that comes late is not taken from its host by a confirmation given at the start, when it was not
/// there.
#[test]
fn an_operators_word_is_about_what_is_there_at_the_start() {
    let (etcd, files) = (EtcdProcesses::start(1), Files::new());
    let directory = url(etcd.address(0), "test-word");
    let (one, two) = (format(&files, "one"), format(&files, "two"));
    let b = host(&directory, "b", &two);
    b.volume_json(&["create", "v", "--size", "64MiB"]);
    b.signal("KILL");
    b.wait();
    lease_ends(&directory, "a", &two);
    let (at, gone) = (files.path("two"), files.path("gone"));
    std::fs::rename(&at, &gone).unwrap();
    // Where the directory is stands in a file.
    let config = files.path("config.toml");
    std::fs::write(&config, format!("directory = \"{directory}\"\nhost_name = \"a\"\n")).unwrap();
    let more = ["--device", two.as_str(), "--config", config.to_str().unwrap()];
    let more = [&more[..], &["--take-over", "--confirm-down", "b"]].concat();
    let start = || Server::start_with(&one, &more);
    let a = start();
    std::fs::rename(&gone, &at).unwrap();
    until("it is not taken", || {
        let shown = client(&a).server().unwrap().devices.swap_remove(1);
        shown.trouble.is_some_and(|why| why.contains("is gone but did not give it back"))
    });
    a.signal("TERM");
    assert_eq!(a.wait(), Some(0));
    assert_eq!(listed(&start()), [row("v", "a", "online")]);
}
