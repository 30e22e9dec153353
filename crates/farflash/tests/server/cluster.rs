//! Several real servers that share real etcd: one service.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::etcd::{EtcdProcesses, Wire};
use crate::support::cluster::{
    client, code, creation, discovered, format, host, host_with, knows, listed, nqn, offer, portal,
    refused, row, text, url,
};
use crate::support::foreign::{nbd_go, places};
use crate::support::host::{connect, filled, on_core};
use crate::support::initiator::{Initiator, Names};
use crate::support::listener::Listener;
use crate::support::users::{self, User};
use crate::support::{Files, Server, farflash, run, tokens, until};
use control::{ApiClient, ApiError, CreateVolume, ProblemCode, VolumeSize, VolumeState};
use nvme_wire::Nqn;
use rustix::process::Signal;
use serde_json::Value;
use units::Lba;

#[test]
fn any_host_answers_for_all() {
    let (etcd, files) = (EtcdProcesses::start(1), Files::new());
    let directory = url(etcd.address(0), "test-1");
    let a = host(&directory, "a", &format(&files, "a"));
    let b = host(&directory, "b", &format(&files, "b"));
    knows(&a, "b");
    let on_a = a.volume_json(&["create", "on-a", "--size", "64MiB"]);
    let on_b = a.volume_json(&["create", "on-b", "--size", "64MiB", "--on", "b"]);
    let by_label = b.volume_json(&["create", "by-label", "--size", "64MiB", "--on", "rack=of-a"]);
    assert_eq!(
        [text(&on_a, "host"), text(&on_b, "host"), text(&by_label, "host")],
        ["a", "b", "a"]
    );
    assert_eq!(portal(&on_b), b.portals[0]);
    assert_eq!(text(&on_b["labels"], "rack"), "of-b");
    let all = [("by-label", "a"), ("on-a", "a"), ("on-b", "b")];
    let all: Vec<_> = all.map(|(name, host)| row(name, host, "online")).into();
    assert_eq!((listed(&a), listed(&b)), (all.clone(), all));
    let unknown = a.volume(&["create", "x", "--size", "64MiB", "--on", "c"]);
    assert!(unknown.stderr.contains("no host is `c`") && unknown.stderr.contains("a, b"));

    // Discovery offers volumes of the other host, with its portal, and to hosts that may know of them.
    let offers = |server: &Server, volume| discovered(server).contains(&offer(volume));
    until("the other's volumes are found", || offers(&a, &on_b) && offers(&b, &on_a));
    let resized = b.volume_json(&["resize", "on-a", "--size", "128MiB"]);
    assert_eq!(resized["size_bytes"], 128 << 20);
    let stranger = ["restrict", "on-a", "--host", "nqn.2014-08.org.example:other"];
    assert_eq!(b.volume(&stranger).code, Some(0));
    until("the restriction holds elsewhere", || !offers(&b, &on_a) && !offers(&a, &on_a));
    assert_eq!(b.volume(&["restrict", "on-a", "--any-host"]).code, Some(0));
    until("and goes elsewhere", || offers(&b, &on_a));
    // Both hosts have an interface of this name, and they need not be one network.
    assert_eq!(b.volume(&["restrict", "on-a", "--interface", "lo"]).code, Some(0));
    until("its interfaces are its host's", || !offers(&b, &on_a));
    assert!(offers(&a, &on_a));
    // Its host knows its interfaces, whichever host is asked.
    let absent = b.volume(&["restrict", "on-a", "--interface", "nosuch0"]);
    assert!(absent.stderr.contains("host a has no interface nosuch0 now"), "{absent:?}");
    assert_eq!(b.volume(&["restrict", "on-a", "--any-interface"]).code, Some(0));
    until("any interface will do again", || offers(&b, &on_a));
    let by_id = b.volume_json(&["show", text(&on_a, "id")]);
    assert_eq!(by_id["size_bytes"], 128 << 20);
    assert_eq!(b.volume(&["change-auth", "on-a"]).code, Some(0));
    assert_eq!(b.volume(&["delete", "--lose-data", "on-a"]).code, Some(0));
    assert_eq!(a.volume(&["show", "on-a"]).code, Some(1));
    until("a deletion is seen elsewhere", || !offers(&b, &on_a));
    let hosts = run(&["host", "list", "--api", &b.api]);
    assert!(hosts.stdout.contains("online") && hosts.stdout.contains("rack=of-a"), "{hosts:?}");

    // Each name is given once, at whichever host it is asked for.
    let clients = [client(&a), client(&b)];
    for round in 0..10 {
        let made: Vec<bool> = std::thread::scope(|scope| {
            let tries = clients.each_ref().map(|client| {
                scope.spawn(move || client.create(&creation(&format!("race-{round}"))))
            });
            let outcome = |result| match result {
                Ok(_) => true,
                refused => {
                    assert_eq!(code(refused), ProblemCode::NameTaken);
                    false
                }
            };
            tries.map(|tried| outcome(tried.join().unwrap())).into()
        });
        assert_eq!(made.iter().filter(|made| **made).count(), 1, "round {round}");
    }
}

#[test]
fn tenants_are_who_they_are_at_every_host() {
    let (etcd, files) = (EtcdProcesses::start(1), Files::new());
    let directory = url(etcd.address(0), "test-2");
    let known = [User::operator("ops"), User::tenant("acme"), User::tenant("evil")];
    let users = users::list(&files, &known.each_ref().map(User::entry));
    // The hosts know each other's certificates from the directory; clients are given them.
    let start = |name: &str| {
        let tls = files.path(&format!("tls-{name}"));
        let more = ["--api-users", &users, "--api-tls", tls.to_str().unwrap()];
        let server = host_with(&directory, name, &format(&files, name), &more);
        (server, tls.join(control::CERTIFICATE_FILE))
    };
    let (a, b) = (start("a"), start("b"));
    let client = |(server, certificate): &(Server, std::path::PathBuf)| {
        ApiClient::trusting(&server.api, Some(certificate)).unwrap()
    };
    let at = |server: &_, who: usize| client(server).with_token(&known[who].token);
    let made = at(&a, 1).create(&creation("acme-1")).unwrap().volume;
    until("it is seen", || at(&b, 1).show("acme-1").is_ok());
    assert_eq!(at(&b, 1).list().unwrap().volumes, [at(&a, 1).show("acme-1").unwrap()]);
    assert_eq!(at(&b, 0).list().unwrap().volumes.len(), 1);
    // To others it is not there, wherever they ask.
    for server in [&a, &b] {
        assert!(at(server, 2).list().unwrap().volumes.is_empty());
        for key in ["acme-1".to_owned(), made.id.to_string()] {
            assert_eq!(code(at(server, 2).show(&key)), ProblemCode::VolumeNotFound);
            assert_eq!(code(at(server, 2).delete(&key)), ProblemCode::VolumeNotFound);
            assert_eq!(code(client(server).show(&key)), ProblemCode::Unauthenticated);
        }
        assert_eq!(code(at(server, 1).hosts()), ProblemCode::Forbidden);
        until("it knows both hosts", || at(server, 0).hosts().unwrap().hosts.len() == 2);
    }

    // A host that does not encrypt is told nothing by those that do: neither tokens, nor by its answers tokens of volumes.
    let c = host_with(&directory, "c", &format(&files, "c"), &["--api-users", &users]);
    let at_c = |who: usize| ApiClient::new(&c.api).unwrap().with_token(&known[who].token);
    at_c(1).create(&creation("acme-2")).unwrap();
    let state = |name: &str| at(&a, 0).show(name).map(|volume| volume.state).ok();
    until("it is seen", || state("acme-2") == Some(VolumeState::Unreachable));
    let listed = at(&a, 1).list().unwrap().volumes;
    let states: Vec<_> = listed.iter().map(|volume| (volume.name.as_str(), volume.state)).collect();
    let [online, unreachable] = [VolumeState::Online, VolumeState::Unreachable];
    assert_eq!(states, [("acme-1", online), ("acme-2", unreachable)]);
    let there = CreateVolume { on: Some("c".to_owned()), ..creation("acme-3") };
    for refused in [at(&a, 1).create(&there).map(drop), at(&a, 1).delete("acme-2")] {
        let Err(ApiError::Refused(problem)) = refused else { panic!("{refused:?}") };
        assert_eq!(problem.code, ProblemCode::HostUnreachable);
        assert!(problem.detail.contains("is not encrypted"), "{problem:?}");
    }
    assert_eq!(at_c(1).show("acme-1").unwrap().state, VolumeState::Online);
    at_c(1).delete_with_data("acme-2").unwrap();
    at(&b, 1).delete_with_data("acme-1").unwrap();
}

#[test]
fn a_lost_hosts_volumes_are_shown_as_unreachable() {
    let (etcd, files) = (EtcdProcesses::start(1), Files::new());
    let directory = url(etcd.address(0), "test-3");
    let a = host(&directory, "a", &format(&files, "a"));
    let device = format(&files, "b");
    let b = host(&directory, "b", &device);
    a.volume_json(&["create", "on-a", "--size", "64MiB"]);
    let on_b = b.volume_json(&["create", "on-b", "--size", "64MiB"]);
    until("it is found elsewhere", || discovered(&a).contains(text(&on_b, "nqn")));
    b.signal("KILL");
    b.wait();
    let lost = vec![row("on-a", "a", "online"), row("on-b", "b", "unreachable")];
    until("it is shown as unreachable", || listed(&a) == lost);
    until("it is offered no more", || !discovered(&a).contains(text(&on_b, "nqn")));
    let shown = a.volume_json(&["show", "on-b"]);
    assert_eq!((text(&shown, "state"), text(&shown["labels"], "rack")), ("unreachable", "of-b"));
    assert_eq!(text(&shown, "device"), device);
    let api = client(&a);
    assert_eq!(code(api.delete("on-b")), ProblemCode::HostUnreachable);
    assert_eq!(code(api.create(&creation("on-b"))), ProblemCode::NameTaken, "it keeps its name");
    let hosts = run(&["host", "list", "--api", &a.api]).stdout;
    assert!(hosts.contains("lost"), "{hosts}");
    let status = run(&["status", "--api", &a.api]);
    let missing = "the host b is lost, and 1 volume is unreachable";
    assert!(status.code == Some(1) && status.stderr.contains(missing), "{status:?}");
    let status = run(&["status", "--json", "--api", &a.api]);
    let document: Value = serde_json::from_str(&status.stdout).unwrap();
    assert_eq!(document["lost_hosts"], serde_json::json!(["b"]), "{status:?}");
    assert_eq!((status.code, &document["unreachable_volumes"]), (Some(1), &1.into()));
    // It comes back without anybody's word: the device was its own all the time.
    let b = host(&directory, "b", &device);
    let back = vec![row("on-a", "a", "online"), row("on-b", "b", "online")];
    until("it is back", || listed(&a) == back);
    let status = run(&["status", "--api", &a.api]);
    assert_eq!(status.code, Some(0), "{status:?}");
    let shown = a.volume_json(&["show", "on-b"]);
    until("it is offered again", || discovered(&a).contains(&offer(&shown)));
    // One that ends in good order gives its device back, and is not missed as lost.
    b.signal("TERM");
    assert_eq!(b.wait(), Some(0));
    until("its volumes are unreachable", || listed(&a) == lost_names(&a));
    let hosts = run(&["host", "list", "--api", &a.api]).stdout;
    assert!(!hosts.contains("lost"), "{hosts}");
}

/// Method: a volume that is not open to NBD, then is, then is on a host that is lost: asked of the other host each time.
#[test]
fn a_host_tells_of_anothers_volume_by_which_sectors_and_nbd_clients_it_is_opened() {
    const UNKNOWN: u32 = 0x8000_0006;
    const POLICY: u32 = 0x8000_0002;
    let (etcd, files) = (EtcdProcesses::start(1), Files::new());
    let directory = url(etcd.address(0), "test-4");
    let nbd = ["--nbd", "127.0.0.1:0"];
    let a = host_with(&directory, "a", &format(&files, "a"), &nbd);
    let b = host_with(&directory, "b", &format(&files, "b"), &nbd);
    let door = places(&a, "NBD open")[0];
    let made = b.volume_json(&["create", "on-b", "--size", "64MiB", "--sector", "512"]);
    until("it is found elsewhere", || discovered(&a).contains(text(&made, "nqn")));
    assert_eq!(nbd_go(door, "on-b"), UNKNOWN);
    let open = b.volume_json(&["restrict", "on-b", "--nbd-network", "127.0.0.0/8"]);
    until("it is told where it is", || nbd_go(door, "on-b") == POLICY);
    b.volume_json(&["restrict", "on-b", "--nbd-network", "192.0.2.0/24"]);
    until("it is no client's any more", || nbd_go(door, "on-b") == UNKNOWN);
    b.volume_json(&["restrict", "on-b", "--nbd-network", "127.0.0.0/8"]);
    until("it is told where it is", || nbd_go(door, "on-b") == POLICY);
    b.signal("KILL");
    b.wait();
    until("it is lost", || a.volume_json(&["show", "on-b"])["state"] == "unreachable");
    let shown = a.volume_json(&["show", "on-b"]);
    assert_eq!(shown["sector_bytes"], 512);
    assert_eq!((&shown["nbd"], &shown["nbd_uris"]), (&open["nbd"], &open["nbd_uris"]));
    assert_eq!(shown["nbd"]["networks"], serde_json::json!(["127.0.0.0/8"]));
    until("it is found there no more", || nbd_go(door, "on-b") == UNKNOWN);
}

/// Discovery at any host lists the volumes of all that an initiator may open, at the portals of their hosts.
///
/// Method: asked of the other host, a volume is open to one initiator, then to another one, and then lost.
#[test]
fn initiators_find_the_volumes_of_other_hosts() {
    let (etcd, files) = (EtcdProcesses::start(1), Files::new());
    let directory = url(etcd.address(0), "test-iscsi");
    let iscsi = ["--iscsi", "127.0.0.1:0", "--auth", "off"];
    let a = host_with(&directory, "a", &format(&files, "a"), &iscsi);
    let b = host_with(&directory, "b", &format(&files, "b"), &iscsi);
    let [at_a, at_b] = [&a, &b].map(|host| places(host, "iSCSI portal open")[0]);
    let names = ["iqn.2026-01.com.example:one", "iqn.2026-01.com.example:two"];
    let found = |initiator| {
        let names = Names { initiator, target: None };
        Initiator::log_in(at_a, names, None).unwrap().targets()
    };
    let made = b.volume_json(&["create", "on-b", "--size", "64MiB", "--host", names[0]]);
    let target = format!("iqn.2026-01.io.farflash:{}", text(&made, "id"));
    let at_its_host = [(target, format!("{at_b},1"))];
    until("it is found elsewhere", || found(names[0]) == at_its_host);
    assert_eq!(found(names[1]), []);
    b.volume_json(&["restrict", "on-b", "--host", names[1]]);
    until("it is another one's", || found(names[1]) == at_its_host && found(names[0]).is_empty());
    let here = b.volume_json(&["show", "on-b"]);
    b.signal("KILL");
    b.wait();
    until("it is lost", || a.volume_json(&["show", "on-b"])["state"] == "unreachable");
    assert_eq!(a.volume_json(&["show", "on-b"])["iscsi_connect"], here["iscsi_connect"]);
    until("it is found no more", || found(names[1]).is_empty());
}

fn lost_names(server: &Server) -> Vec<(String, String, String)> {
    let mut rows = listed(server);
    for (name, _, state) in &mut rows {
        *state = if name == "on-b" { "unreachable" } else { "online" }.to_owned();
    }
    rows
}

/// Reads and writes a volume until told to stop; the requests that were answered. Panics at an error.
fn load(portal: SocketAddr, nqn: Nqn, stop: Arc<AtomicBool>, done: Arc<AtomicU64>) {
    on_core(move |handle| async move {
        let volume = connect(&handle, portal, &nqn).await;
        let mut number = 0;
        while !stop.load(Ordering::Relaxed) {
            let lba = Lba(number % 1_000);
            number += 1;
            volume.write(lba, filled(number)).await.unwrap();
            let read = volume.read(lba, 1).await.unwrap();
            assert_eq!(read.as_bytes()[..8], number.to_le_bytes());
            done.fetch_add(1, Ordering::Relaxed);
        }
    });
}

fn metrics(server: &Server) -> String {
    let mut stream = TcpStream::connect(server.api.trim_start_matches("http://")).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// Method: of three members one dies, which no host notices, and a second one, which leaves no quorum: it
/// hangs, goes on, dies and is started again. A host reads and writes all the time.
#[test]
fn the_data_path_does_not_need_the_directory() {
    let (mut etcd, files) = (EtcdProcesses::start(3), Files::new());
    let members = [0, 1, 2].map(|member| etcd.address(member).to_string());
    let directory = format!("etcd://{}/test-4", members.join(","));
    let a = host(&directory, "a", &format(&files, "a"));
    let b = host(&directory, "b", &format(&files, "b"));
    let volume = a.volume_json(&["create", "v", "--size", "64MiB"]);
    until("it is seen", || listed(&b) == [row("v", "a", "online")]);
    let (stop, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let (target, stopping, counter) = ((portal(&volume), nqn(&volume)), stop.clone(), done.clone());
    let loading = std::thread::spawn(move || load(target.0, target.1, stopping, counter));
    let goes_on = || {
        let before = done.load(Ordering::Relaxed);
        until("the load goes on", || done.load(Ordering::Relaxed) > before + 100);
    };
    let api = client(&a);
    let refused_while_away = |name: &str| {
        until("changes are refused", || {
            let created = api.create(&creation(name));
            assert!(created.is_err(), "{name} was created without the directory");
            matches!(created, Err(ApiError::Refused(problem))
                if problem.code == ProblemCode::DirectoryUnavailable && problem.status == 503)
        });
        // A change may be refused before the keeper of the session has noticed.
        until("that is said", || api.hosts().unwrap().directory.cut_off.is_some());
        assert_eq!(code(api.delete("v")), ProblemCode::DirectoryUnavailable);
        assert_eq!(listed(&a), [row("v", "a", "online")]);
        assert_eq!(listed(&b), [row("v", "a", "online")], "the last state stays");
        assert!(discovered(&b).contains(text(&volume, "nqn")));
        let status = run(&["status", "--api", &a.api]);
        assert!(
            status.code == Some(1) && status.stderr.contains("the directory is away"),
            "{status:?}"
        );
        assert!(metrics(&a).contains("\nfarflash_directory_connected 0\n"));
        goes_on();
    };
    let taken_again = |name: &str| {
        until("changes are taken again", || api.create(&creation(name)).is_ok());
        // While a leader is elected a session may end that has taken a change.
        until("and all of them", || match api.delete(name) {
            Err(ApiError::Refused(problem)) => problem.code == ProblemCode::VolumeNotFound,
            outcome => outcome.is_ok(),
        });
        until("the other has seen it", || listed(&b) == [row("v", "a", "online")]);
        until("it is connected", || {
            metrics(&a).contains("\nfarflash_directory_connected 1\n")
                && run(&["status", "--api", &a.api]).code == Some(0)
        });
    };
    goes_on();
    etcd.kill(0);
    taken_again("zero");
    // What is left is no quorum: it answers, and agrees to nothing.
    etcd.signal(1, Signal::STOP);
    refused_while_away("one");
    etcd.signal(1, Signal::CONT);
    taken_again("two");
    etcd.kill(1);
    refused_while_away("three");
    etcd.restart(1);
    taken_again("four");
    stop.store(true, Ordering::Relaxed);
    loading.join().expect("no request failed");
}

#[test]
fn a_device_that_is_missing_is_not_forgotten() {
    let (etcd, files) = (EtcdProcesses::start(1), Files::new());
    let directory = url(etcd.address(0), "test-7");
    let (one, two) = (format(&files, "one"), format(&files, "two"));
    let a = host_with(&directory, "a", &one, &["--device", &two]);
    a.volume_json(&["create", "v", "--size", "64MiB", "--device", &two]);
    a.signal("KILL");
    a.wait();
    let a = host(&directory, "a", &one);
    until("it is known", || listed(&a) == [row("v", "a", "unreachable")]);
    assert_eq!(code(client(&a).create(&creation("v"))), ProblemCode::NameTaken);
    assert!(Path::new(two.strip_prefix("file:").unwrap()).exists());
    let usage = farflash(&["serve", "--device", &one, "--take-over"]).output().unwrap();
    assert_eq!(usage.status.code(), Some(2), "without a directory there is no host to take from");
}

/// A tenant's quota counts what it has on all hosts, whichever host it asks, and however fast.
#[test]
fn a_quota_holds_for_all_hosts_together() {
    const MOST: usize = 5;
    let (etcd, files) = (EtcdProcesses::start(1), Files::new());
    let directory = url(etcd.address(0), "test-quota");
    let (tenant, ops) = (User::tenant("acme"), User::operator("ops"));
    let quota = format!("volumes = {MOST}\nprovisioned = \"320MiB\"");
    let users = users::list(&files, &[ops.entry(), tenant.bounded(&quota)]);
    let more = ["--api-users", &users];
    let a = host_with(&directory, "a", &format(&files, "a"), &more);
    let b = host_with(&directory, "b", &format(&files, "b"), &more);
    let acme = |server: &Server| client(server).with_token(&tenant.token);
    let created: Vec<bool> = std::thread::scope(|scope| {
        let tries = (0..8).map(|n| {
            let asked = acme(if n % 2 == 0 { &a } else { &b });
            scope.spawn(move || match asked.create(&creation(&format!("v{n}"))) {
                Ok(_) => true,
                refused => {
                    assert_eq!(code(refused), ProblemCode::QuotaExceeded);
                    false
                }
            })
        });
        let tries: Vec<_> = tries.collect();
        tries.into_iter().map(|one| one.join().unwrap()).collect()
    });
    assert_eq!(created.iter().filter(|created| **created).count(), MOST, "{created:?}");
    // 320 MiB are provisioned: neither host lets one grow, and one that shrinks makes room for another.
    let first = created.iter().position(|created| *created).unwrap();
    let grow = |server: &Server, name: &str, size: u64| {
        let size_bytes = Some(VolumeSize::try_from(size).unwrap());
        acme(server).change(
            name,
            &control::ChangeVolume { size_bytes, lose_data: true, ..Default::default() },
        )
    };
    for server in [&a, &b] {
        assert_eq!(code(grow(server, &format!("v{first}"), 65 << 20)), ProblemCode::QuotaExceeded);
    }
    grow(&b, &format!("v{first}"), 60 << 20).unwrap();
    let last = created.iter().rposition(|created| *created).unwrap();
    until("the room is seen", || grow(&a, &format!("v{last}"), 68 << 20).is_ok());
    assert_eq!(code(grow(&b, &format!("v{last}"), 69 << 20)), ProblemCode::QuotaExceeded);
    // An operator may give it more, and take some away: what the tenant asks next at another host counts it.
    let (first, last) = (format!("v{first}"), format!("v{last}"));
    let operator = client(&a).with_token(&ops.token);
    let resize = |size: u64| {
        let size_bytes = Some(VolumeSize::try_from(size).unwrap());
        operator
            .change(
                &first,
                &control::ChangeVolume { size_bytes, lose_data: true, ..Default::default() },
            )
            .unwrap();
    };
    grow(&b, &last, 60 << 20).unwrap();
    resize(100 << 20);
    assert_eq!(code(grow(&b, &last, 61 << 20)), ProblemCode::QuotaExceeded);
    resize(60 << 20);
    grow(&b, &last, 61 << 20).unwrap();
    operator.delete_with_data(&first).unwrap();
    acme(&b).create(&creation("another")).unwrap();
}

/// A tenant's volume that is written from its beginning.
struct Filled {
    volume: farflash_client::Volume,
    /// Bytes that it holds, all of them behind `begin`.
    held: u64,
    begin: u64,
}

impl Filled {
    const STEP: u64 = 64 << 10;

    fn open(volume: &control::Volume) -> Self {
        let target = format!("tcp://{}/{}", volume.address, volume.nqn);
        let token = tokens::of(&volume.nqn);
        let options = farflash_client::OpenOptions { token, ..Default::default() };
        let volume = farflash_client::open(&target, &options).unwrap();
        Self { volume, held: 0, begin: 0 }
    }

    /// Writes some more; whether that was not refused.
    fn grow(&mut self) -> bool {
        let data = vec![7; usize::try_from(Self::STEP).unwrap()];
        match self.volume.write_at(&data, self.begin + self.held) {
            Ok(()) => {
                self.held += Self::STEP;
                true
            }
            Err(error) => {
                assert!(error.to_string().contains("Capacity Exceeded"), "{error}");
                false
            }
        }
    }

    fn give_back(&mut self, bytes: u64) {
        self.volume.deallocate(self.begin, bytes).unwrap();
        self.begin += bytes;
        self.held -= bytes;
    }
}

/// The space of a tenant's volumes on all hosts stays within its quota, with etcd and without; and the part
/// that one host does not use, another one gets: of a host that is there, and of one whose devices are
/// another's.
#[test]
fn a_quota_of_space_holds_for_all_hosts_together() {
    const QUOTA: u64 = 32 << 20;
    const MOST: u64 = QUOTA / 10 * 9;
    let (mut etcd, files) = (EtcdProcesses::start(1), Files::new());
    let directory = url(etcd.address(0), "test-space");
    let tenant = User::tenant("acme");
    let users = users::list(&files, &[tenant.bounded("allocated = \"32MiB\"")]);
    let more = ["--api-users", &users];
    let devices = ["a", "b"].map(|name| format(&files, name));
    let a = host_with(&directory, "a", &devices[0], &more);
    let b = host_with(&directory, "b", &devices[1], &more);
    let acme = |server: &Server| client(server).with_token(&tenant.token);
    let create = |server: &Server, name: &str| {
        let size = VolumeSize::try_from(128 << 20).unwrap();
        let creation = CreateVolume::new(name.parse().unwrap(), size);
        Filled::open(&tokens::kept_of(acme(server).create(&creation).unwrap()))
    };
    let (mut on_a, mut on_b) = (create(&a, "on-a"), create(&b, "on-b"));
    // More than a half, which the other does not use.
    until("one host uses most of it", || {
        on_a.grow();
        assert!(on_a.held <= QUOTA);
        on_a.held >= MOST
    });
    on_a.give_back(16 << 20);
    let fill = |on_a: &mut Filled, on_b: &mut Filled| {
        until("all of it is used", || {
            let (a, b) = (on_a.grow(), on_b.grow());
            assert!(on_a.held + on_b.held <= QUOTA, "{} and {}", on_a.held, on_b.held);
            !a && !b && on_a.held + on_b.held >= MOST
        });
    };
    fill(&mut on_a, &mut on_b);
    assert!(on_b.held >= 4 << 20, "{}", on_b.held);
    on_a.give_back(4 << 20);
    let before = on_b.held;
    until("what one gave back the other gets", || {
        on_b.grow();
        on_b.held >= before + (1 << 20)
    });
    fill(&mut on_a, &mut on_b);

    // Without etcd each has what it was granted, and no more.
    on_a.give_back(4 << 20);
    etcd.kill(0);
    let before = (on_a.held, on_b.held);
    until("a host uses what it was granted", || on_a.grow() && on_a.held > before.0 + (1 << 20));
    until("both are refused", || {
        let refused = !on_a.grow() & !on_b.grow();
        assert!(on_a.held + on_b.held <= QUOTA, "{} and {}", on_a.held, on_b.held);
        refused
    });
    on_a.give_back(8 << 20);
    until("its blocks are its own", || on_a.grow());
    etcd.restart(0);
    fill(&mut on_a, &mut on_b);

    // A host that takes over another's device has its part of the quota with it.
    on_a.give_back(on_a.held - (8 << 20));
    on_b.give_back(on_b.held - (4 << 20));
    drop((on_a.volume, on_b.volume));
    for server in [a, b] {
        server.signal("KILL");
        server.wait();
    }
    let name = "a";
    let both = ["--device", &devices[1]];
    until("the lease ends", || {
        let refused = refused(&directory, name, &devices[0], &[&more[..], &both].concat());
        refused.stderr.contains("is gone but did not give it back")
    });
    let both = [&more[..], &both, &["--take-over", "--confirm-down", "b"]].concat();
    let a = host_with(&directory, name, &devices[0], &both);
    let mut another = create(&a, "another");
    until("all of it is used", || {
        another.grow();
        assert!(another.held + (12 << 20) <= QUOTA, "{}", another.held);
        another.held + (12 << 20) >= MOST
    });
}

/// A quota of space that comes, becomes more and goes while hosts run is divided among them as one that was there at the
/// start. Method: SIGHUP at each host for each list, and writes at both behind that.
#[test]
fn a_quota_of_space_changes_on_all_hosts() {
    const MIB: u64 = 1 << 20;
    let (etcd, files) = (EtcdProcesses::start(1), Files::new());
    let directory = url(etcd.address(0), "test-changed-space");
    let tenant = User::tenant("acme");
    let list = |quota: &str| users::list(&files, &[tenant.bounded(quota)]);
    let users = list("");
    let more = ["--api-users", &users];
    let hosts = ["a", "b"].map(|name| host_with(&directory, name, &format(&files, name), &more));
    let mut filled = [0, 1].map(|number| {
        let size = VolumeSize::try_from(128 << 20).unwrap();
        let name = format!("v{number}");
        let creation = CreateVolume::new(name.parse().unwrap(), size);
        let acme = client(&hosts[number]).with_token(&tenant.token);
        Filled::open(&tokens::kept_of(acme.create(&creation).unwrap()))
    });
    let reload = |quota: &str| {
        list(quota);
        for host in &hosts {
            host.signal("HUP");
            let read = |line: &Value| line["message"] == "SIGHUP: read again";
            assert_eq!(host.log_until(read).last().unwrap()["kept"], 0);
        }
    };
    while filled[0].held < 4 * MIB {
        assert!(filled.iter_mut().all(Filled::grow), "nothing bounds it");
    }
    for quota in [16 * MIB, 32 * MIB] {
        reload(&format!("allocated = \"{quota}B\""));
        until("all of it is used", || {
            let grown = filled.iter_mut().map(Filled::grow).filter(|grown| *grown).count();
            let held: u64 = filled.iter().map(|one| one.held).sum();
            assert!(held <= quota, "{held}");
            grown == 0 && held >= quota / 10 * 9
        });
    }
    reload("allocated = \"16MiB\"");
    until("both are refused", || !filled.iter_mut().any(Filled::grow));
    reload("");
    let far = 24 * MIB;
    until("nothing bounds it", || {
        filled.iter_mut().for_each(|one| {
            one.grow();
        });
        filled.iter().all(|one| one.held >= far)
    });
}

/// A client that waits at the discovery service of one host hears of volumes that come and go on another, as
/// far as it may see them, and of no others.
///
/// Both clients wait on one core of `a`: what it tells the one it has told the other before.
#[test]
fn who_waits_for_changes_at_one_host_hears_of_those_on_another() {
    let (etcd, files) = (EtcdProcesses::start(1), Files::new());
    let directory = url(etcd.address(0), "test-listening");
    let a = host(&directory, "a", &format(&files, "a"));
    let b = host(&directory, "b", &format(&files, "b"));
    let mut mine = Listener::new(a.portals[0], 1);
    let mut stranger = Listener::new(a.portals[0], 2);
    let (own_host, absent_host) = (
        crate::support::listener::name(1).to_string(),
        crate::support::listener::name(3).to_string(),
    );
    let create = |name: &str, more: &[&str]| {
        nqn(&b.volume_json(&[&["create", name, "--size", "64MiB"], more].concat()))
    };
    let change = |arguments: &[&str]| {
        let changed = b.volume(arguments);
        assert_eq!(changed.code, Some(0), "{changed:?}");
    };

    let own = create("own", &["--host", &own_host]);
    mine.is_told(|volumes| volumes == [own]);
    stranger.is_not_told();
    change(&["delete", "--lose-data", "own"]);
    mine.is_told(<[Nqn]>::is_empty);
    stranger.is_not_told();
    // That the stranger is not told is for what it may see: of a volume for all it is.
    let open = create("open", &[]);
    mine.is_told(|volumes| volumes == [open]);
    stranger.is_told(|volumes| volumes == [open]);
    change(&["delete", "--lose-data", "open"]);
    mine.is_told(<[Nqn]>::is_empty);
    stranger.is_told(<[Nqn]>::is_empty);
    // Out of reach: by a restriction, and because its host is gone.
    let own = create("own", &["--host", &own_host]);
    mine.is_told(|volumes| volumes == [own]);
    change(&["restrict", "own", "--host", &absent_host]);
    mine.is_told(<[Nqn]>::is_empty);
    change(&["restrict", "own", "--host", &own_host]);
    mine.is_told(|volumes| volumes == [own]);
    b.signal("KILL");
    b.wait();
    mine.is_told(<[Nqn]>::is_empty);
    stranger.is_not_told();
}

/// A tenant's change that waits for news of other hosts keeps no other caller from changing the same device.
#[test]
fn a_change_that_waits_for_news_keeps_no_other_waiting() {
    let (etcd, files) = (EtcdProcesses::start(1), Files::new());
    let wire = Wire::new(etcd.address(0));
    let (acme, ops) = (User::tenant("acme"), User::operator("ops"));
    let users = users::list(&files, &[ops.entry(), acme.entry()]);
    let more = ["--api-users", users.as_str()];
    let through_wire = url(wire.address(), "test-news");
    // Long enough that it is not cut off because the machine is busy.
    let joins = ["--directory", &through_wire, "--host-name", "a", "--host-lease", "60"];
    let device = format(&files, "a");
    let a = Server::start_logging("info,cluster=debug", &device, &[&joins[..], &more].concat());
    let directory = url(etcd.address(0), "test-news");
    let b = host_with(&directory, "b", &format(&files, "b"), &more);
    let at = |server: &Server, user: &User| client(server).with_token(&user.token);
    wire.hold();
    at(&b, &acme).create(&creation("elsewhere")).unwrap();
    let mut round = 0;
    // An operator that is late enough finds that the tenant has given up, and learns nothing.
    until("an operator is answered while the tenant waits", || {
        round += 1;
        let waiting = at(&a, &acme);
        let name = format!("waits-{round}");
        let waiting = std::thread::spawn(move || waiting.create(&creation(&name)));
        a.wait_for_log("waiting to see what other hosts changed");
        at(&a, &ops).create(&creation(&format!("does-not-{round}"))).unwrap();
        let still_waits = !waiting.is_finished();
        assert_eq!(code(waiting.join().unwrap()), ProblemCode::DirectoryUnavailable);
        still_waits
    });
    wire.release();
    until("the news is there", || at(&a, &acme).create(&creation("here")).is_ok());
}

/// A device that is missing when its host starts keeps its names; what comes late is claimed as at the start.
#[test]
fn a_device_that_comes_late_is_claimed_as_at_the_start() {
    let (etcd, files) = (EtcdProcesses::start(1), Files::new());
    let directory = url(etcd.address(0), "test-absent");
    let (one, two) = (format(&files, "one"), format(&files, "two"));
    let with_two = ["--device", two.as_str()];
    let a = host_with(&directory, "a", &one, &with_two);
    a.volume_json(&["create", "v", "--size", "64MiB", "--device", &two]);
    a.signal("TERM");
    assert_eq!(a.wait(), Some(0));
    let (at, gone) = (files.path("two"), files.path("gone"));
    std::fs::rename(&at, &gone).unwrap();
    let a = host_with(&directory, "a", &one, &with_two);
    assert_eq!(code(client(&a).create(&creation("v"))), ProblemCode::NameTaken);
    client(&a).create(&creation("w")).unwrap();
    assert_eq!(listed(&a), [row("v", "a", "unreachable"), row("w", "a", "online")]);

    // Another host has it meanwhile, and a copy of it comes here.
    let b = host(&directory, "b", &files.device("gone"));
    until("it is b's", || listed(&a)[0] == row("v", "b", "online"));
    std::fs::copy(&gone, files.path("copy")).unwrap();
    std::fs::rename(files.path("copy"), &at).unwrap();
    let trouble = || {
        let shown = client(&a).server().unwrap().devices.swap_remove(1);
        shown.trouble.unwrap_or_default()
    };
    until("it is refused", || trouble().contains("served by host b, which is alive"));
    std::fs::remove_file(&at).unwrap();
    b.signal("TERM");
    assert_eq!(b.wait(), Some(0));
    std::fs::rename(&gone, &at).unwrap();
    a.wait_for_log("is there");
    until("it is served", || listed(&a)[0] == row("v", "a", "online"));
    until("all is well", || trouble().is_empty());
    let hosts = client(&a).hosts().unwrap().hosts;
    assert_eq!(hosts[0].devices.len(), 2, "{hosts:?}");
}

/// The space used on a device that comes late counts in its tenant's quota from then on.
#[test]
fn a_quota_of_space_counts_a_device_that_comes_late() {
    const QUOTA: u64 = 32 << 20;
    let (etcd, files) = (EtcdProcesses::start(1), Files::new());
    let directory = url(etcd.address(0), "test-absent-space");
    let tenant = User::tenant("acme");
    let users = users::list(&files, &[tenant.bounded("allocated = \"32MiB\"")]);
    let (one, two) = (format(&files, "one"), format(&files, "two"));
    let more = ["--api-users", &users, "--device", two.as_str()];
    let acme = |server: &Server| client(server).with_token(&tenant.token);
    let a = host_with(&directory, "a", &one, &more);
    let create = |name: &str, device: &str| {
        let size = VolumeSize::try_from(128 << 20).unwrap();
        let mut creation = CreateVolume::new(name.parse().unwrap(), size);
        creation.device = Some(device.to_owned());
        Filled::open(&tokens::kept_of(acme(&a).create(&creation).unwrap()))
    };
    let (mut near, mut far) = (create("near", &one), create("far", &two));
    until("near has some", || near.grow() && near.held >= 4 << 20);
    until("far has more", || far.grow() && far.held >= 16 << 20);
    let (near_held, far_held) = (near.held, far.held);
    drop((near, far));
    a.signal("TERM");
    assert_eq!(a.wait(), Some(0));
    std::fs::rename(files.path("two"), files.path("gone")).unwrap();
    let a = host_with(&directory, "a", &one, &more);
    std::fs::rename(files.path("gone"), files.path("two")).unwrap();
    a.wait_for_log("is there");
    let open = |name: &str, held| {
        let opened = Filled::open(&acme(&a).show(name).unwrap());
        Filled { held, ..opened }
    };
    let (mut near, mut far) = (open("near", near_held), open("far", far_held));
    until("all of it is used", || {
        let grown = near.grow() | far.grow();
        assert!(near.held + far.held <= QUOTA, "{} and {}", near.held, far.held);
        !grown && near.held + far.held >= QUOTA / 10 * 9
    });
}
