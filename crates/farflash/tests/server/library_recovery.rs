//! The Rust library for ordinary threads, when its server goes away.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use crate::support::gate::Gate;
use crate::support::library::{BLOCK, MIB, cluster, fails, opened, with_token};
use crate::support::proxy::Proxy;
use crate::support::{Files, Server};
use farflash_client::{
    ChangeAuth, Cluster, ErrorKind, NewVolume, OpenOptions, Reply, Request, SENDS_MAX,
};

/// Threads write numbers that go up, each into blocks of its own; the server is killed and comes back
/// at other addresses. No acknowledged write is lost, and no request fails.
#[test]
fn a_killed_server_is_found_again_at_its_new_address() {
    const THREADS: u64 = 4;
    let files = Files::new();
    let device = files.device("image");
    crate::support::succeed(&["format", "--device", &format!("{device},size=256MiB")]);
    let mut server = Some(Server::start_with(&device, &["--auth", "on"]));
    let api_address = server.as_ref().unwrap().api.trim_start_matches("http://").to_owned();
    // One API that is not there, to be passed over.
    let urls = ["http://127.0.0.1:1".to_owned(), format!("http://{api_address}")];
    let cluster = Cluster::new(urls, None).unwrap();
    let created = cluster.create(&NewVolume::new("v", 16 * MIB)).unwrap();
    let volume = cluster.open("v", &with_token(&created.tokens.token)).unwrap();
    let acknowledged: Vec<AtomicU64> = (0..THREADS).map(|_| AtomicU64::new(0)).collect();
    let done = AtomicBool::new(false);
    /// Sets the flag when it goes, also by a failed assertion: the scope waits for its threads.
    struct SetAtEnd<'a>(&'a AtomicBool);
    impl Drop for SetAtEnd<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Release);
        }
    }
    let at = |thread: u64, number: u64| (thread * 64 + number % 64) * BLOCK as u64;
    thread::scope(|scope| {
        let end = SetAtEnd(&done);
        for thread in 0..THREADS {
            let (volume, acknowledged, done) = (&volume, &acknowledged, &done);
            scope.spawn(move || {
                for number in 1_u64.. {
                    let data = number.to_le_bytes().repeat(BLOCK / 8);
                    volume.write_at(&data, at(thread, number)).unwrap();
                    acknowledged[thread as usize].store(number, Ordering::Release);
                    if done.load(Ordering::Acquire) {
                        return;
                    }
                }
            });
        }
        let progress = |more: u64| {
            let goal: Vec<u64> =
                acknowledged.iter().map(|now| now.load(Ordering::Acquire) + more).collect();
            let reached = || {
                let mut all = acknowledged.iter().zip(&goal);
                all.all(|(now, goal)| now.load(Ordering::Acquire) >= *goal)
            };
            crate::support::until("writes go on", reached);
        };
        for _ in 0..3 {
            progress(20);
            let killed = server.take().unwrap();
            killed.signal("KILL");
            assert_eq!(killed.wait(), None);
            let auth = ["--auth", "on"];
            server = Some(Server::start_on(&device, "127.0.0.1:0", &api_address, &auth));
        }
        progress(20);
        drop(end);
    });
    for (thread, last) in (0..).zip(&acknowledged) {
        let last = last.load(Ordering::Acquire);
        for number in last.saturating_sub(63).max(1)..=last {
            let mut back = [0; BLOCK];
            volume.read_at(&mut back, at(thread, number)).unwrap();
            assert_eq!(back[..8], number.to_le_bytes(), "thread {thread}");
        }
    }
    let properties = volume.properties().unwrap();
    assert!(properties.reconnects >= 3 && properties.address == server.unwrap().portals[0]);
}

/// A server that stays away makes requests fail in the time that was agreed on; a later one succeeds.
#[test]
fn requests_fail_when_a_server_stays_away_and_work_when_it_is_back() {
    let files = Files::new();
    let device = files.device("image");
    crate::support::succeed(&["format", "--device", &format!("{device},size=256MiB")]);
    let server = Server::start(&device);
    let api_address = server.api.trim_start_matches("http://").to_owned();
    let cluster = cluster(&server);
    let token = cluster.create(&NewVolume::new("v", MIB)).unwrap().tokens.token;
    let recovery_timeout = Duration::from_millis(200);
    let options = OpenOptions { recovery_timeout, ..with_token(&token) };
    let volume = cluster.open("v", &options).unwrap();
    server.signal("KILL");
    server.wait();
    fails(volume.read_at(&mut [0; BLOCK], 0), ErrorKind::Unreachable, "cannot be reached for");
    let _server = Server::start_on(&device, "127.0.0.1:0", &api_address, &[]);
    volume.read_at(&mut [0; BLOCK], 0).unwrap();
}

/// Neither of two APIs answers any more, and neither hangs up. The volume is found at its old place long
/// before they are given up.
#[test]
fn an_api_that_hangs_does_not_keep_a_volume_from_being_found() {
    let files = Files::new();
    let device = files.device("image");
    crate::support::succeed(&["format", "--device", &format!("{device},size=256MiB")]);
    let server = Server::start(&device);
    let api_address = server.api.trim_start_matches("http://").to_owned();
    let gate = Gate::start(&api_address);
    let portal = server.portals[0].to_string();
    let cluster = Cluster::new([&gate.url, &gate.url], None).unwrap();
    let volume = opened(&cluster, "v", MIB);
    volume.write_at(&[5; BLOCK], 0).unwrap();
    gate.hang();
    server.signal("KILL");
    server.wait();
    let pending = volume.start(Request::Read { offset: 0, len: BLOCK });
    crate::support::until("the cluster is asked", || gate.held() > 0);
    let _server = Server::start_on(&device, &portal, &api_address, &[]);
    let outcome = pending.wait_timeout(crate::support::PATIENCE).ok().expect("an outcome in time");
    let Reply::Data(data) = outcome.unwrap() else { panic!("a read gives data") };
    assert_eq!(data.len(), BLOCK);
}

/// A request on which every connection ends, such as one that kills the server, fails after a few, whether
/// the connection is made again at once or the volume has to be found again. The others succeed.
#[test]
fn a_request_that_ends_every_connection_does_not_do_so_for_ever() {
    let server = Server::start("mem:256MiB");
    let created = cluster(&server).create(&NewVolume::new("v", MIB)).unwrap();
    let proxy = Proxy::start(created.volume.address);
    let place = format!("tcp://{}/{}", proxy.address, created.volume.nqn);
    let volume = farflash_client::open(&place, &with_token(&created.tokens.token)).unwrap();
    proxy.end_at(7);
    let read = |lba: u64| {
        let request = Request::Read { offset: lba * BLOCK as u64, len: BLOCK };
        (lba, volume.start(request))
    };
    for (lba, pending) in (0..16).map(read).collect::<Vec<_>>() {
        let outcome = pending.wait_timeout(crate::support::PATIENCE).ok().expect("an outcome");
        if lba == 7 {
            fails(outcome, ErrorKind::Unreachable, "sent on 6 connections");
        } else {
            outcome.unwrap();
        }
    }
    assert_eq!(proxy.ended(), u32::from(SENDS_MAX));
    volume.read_at(&mut [0; BLOCK], 0).unwrap();
    assert_eq!(proxy.ended(), u32::from(SENDS_MAX));
}

/// A host that fails to authenticate too often is rate-limited with all that share its address. Method: four
/// programs have a volume open, three of them idle, when its token is replaced and their connections are cut;
/// each goes on for a while. Then another one comes with the new token.
#[test]
fn those_who_have_an_old_token_do_not_keep_others_of_their_host_out() {
    let server = Server::start_with("mem:256MiB", &["--auth", "on"]);
    let cluster = cluster(&server);
    let created = cluster.create(&NewVolume::new("v", MIB)).unwrap();
    let old = with_token(&created.tokens.token);
    let volumes = [(); 4].map(|()| cluster.open("v", &old).unwrap());
    let change = ChangeAuth { cut: true, ..ChangeAuth::default() };
    let tokens = cluster.change_auth("v", &change).unwrap();
    let mut block = vec![0; BLOCK];
    let asked = volumes[0].read_at(&mut block, 0);
    assert_eq!(asked.unwrap_err().kind(), ErrorKind::PermissionDenied);
    let volume = cluster.open("v", &with_token(&tokens.token)).expect("it is not put off");
    volume.read_at(&mut block, 0).unwrap();
}
