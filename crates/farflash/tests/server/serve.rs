//! A live server, from outside.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::MetadataExt;
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::support::host::{connect, on_core};
use crate::support::{Files, Outcome, Server, farflash, own_host, refused, run, succeed};
use io_traits::Buffer;
use nvme_wire::Nqn;
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, setrlimit};
use serde_json::json;
use units::Lba;

const GIB: u64 = 1 << 30;

/// Creates a volume; what is shown of it, without what is shown once.
fn create(server: &Server, name: &str, size: &str) -> serde_json::Value {
    let mut made = server.volume_json(&["create", name, "--size", size]);
    let fields = made.as_object_mut().unwrap();
    assert!(fields.remove("token").is_some() && fields.remove("controller_token").is_some());
    made
}

#[test]
fn a_volume_lives_from_create_to_delete() {
    let server = Server::start("mem:256MiB");
    let made = create(&server, "db-1", "10TiB");
    let id = made["id"].as_str().unwrap();
    assert_eq!(made["nqn"], format!("nqn.2014-08.org.nvmexpress:uuid:{id}"));
    assert_eq!(made["address"], server.portals[0].to_string());
    assert_eq!(made["size_bytes"], 10_u64 << 40);
    assert_eq!(made["allocated_bytes"], 0);
    assert_eq!(made["device"], "mem:256MiB");
    let (ip, port) = (server.portals[0].ip(), server.portals[0].port());
    let secret =
        "--config /etc/nvme/config.json  # its token: \"dhchap_key\" of this port in there";
    let nqn = made["nqn"].as_str().unwrap();
    let connect = format!("nvme connect -t tcp -a {ip} -s {port} -n {nqn} {secret}");
    assert_eq!(made["connect"], connect);
    assert!(server.volume(&["show", "db-1"]).stdout.contains(&connect));
    assert_eq!(server.volume_json(&["show", id]), made);
    assert_eq!(server.volume_json(&["list"])["volumes"][0], made);
    let resized = server.volume_json(&["resize", "db-1", "--size", "1GiB"]);
    assert_eq!(resized["size_bytes"], GIB);
    assert_eq!(server.volume_json(&["delete", "--lose-data", "db-1"])["deleted"], "db-1");
    assert_eq!(server.volume_json(&["list"])["volumes"].as_array().unwrap().len(), 0);
}

/// The metadata size of a volume's blocks is chosen when it is created, shown, and kept.
#[test]
fn a_volume_keeps_the_metadata_of_its_blocks() {
    let files = Files::new();
    let device = format!("{},size=1GiB", files.device("a"));
    for round in 0..2 {
        let server = Server::start_with(&device, &["--format-if-blank", "--create"]);
        if round == 0 {
            let made = server.volume_json(&["create", "a", "--size", "1GiB", "--metadata", "16"]);
            assert_eq!(made["metadata_bytes"], 16);
            assert_eq!(create(&server, "b", "1GiB")["metadata_bytes"], 0);
        }
        let shown = server.volume(&["show", "a"]).stdout;
        assert!(shown.contains("metadata   16 bytes a block"), "{shown}");
        assert!(!server.volume(&["show", "b"]).stdout.contains("metadata"));
        server.signal("KILL");
        server.wait();
    }
}

#[test]
fn people_get_words_and_tables() {
    let server = Server::start("mem:256MiB");
    let made = server.volume(&["create", "db-1", "--size", "1.5GiB"]).stdout;
    assert!(made.contains("created db-1 (1.5 GiB), served by core "), "{made}");
    assert!(made.contains("nvme connect -t tcp -a 127.0.0.1 -s "), "{made}");
    let list = server.volume(&["list"]).stdout;
    let lines: Vec<&str> = list.lines().collect();
    assert_eq!(lines.len(), 3, "{list}");
    assert!(lines[0].starts_with("NAME ") && lines[2].starts_with("db-1 "), "{list}");
    assert!(lines[2].contains("1.5 GiB"), "{list}");
    let portal = server.portals[0].to_string();
    assert!(succeed(&["discover", &portal]).starts_with(&portal));
    let gone = server.volume(&["delete", "--lose-data", "db-1"]).stdout;
    assert_eq!(gone, "db-1 is deleted\n");
    let nothing = run(&["discover", &portal]);
    assert_eq!((nothing.code, nothing.stdout.as_str()), (Some(0), ""));
    assert!(nothing.stderr.contains("offers this host no volume"), "{nothing:?}");
}

/// The log can be read without knowing Rust.
#[test]
fn the_log_says_in_words_what_was_changed() {
    let server = Server::start("mem:256MiB");
    server.volume_json(&["create", "a", "--size", "1GiB"]);
    server.volume_json(&["restrict", "a", "--network", "192.0.2.0/24"]);
    server.log_until(|fields| fields["open_to"] == "networks 192.0.2.0/24");
    server.volume_json(&["set-slo", "a", "--share", "50"]);
    server.log_until(|fields| fields["promised"] == "share 50");
    let rates = ["--reads-per-second", "1000", "--writes-per-second", "500"];
    succeed(&[&["device", "set", "--api", &server.api], &rates[..]].concat());
    server.log_until(|fields| {
        fields["reads_per_second"] == 1000 && fields["latency_target_us"] == 500
    });
}

#[test]
fn the_server_s_refusals_reach_the_user() {
    let server = Server::start("mem:256MiB");
    let api = ["--api", &server.api];
    server.volume_json(&["create", "a", "--size", "1GiB"]);
    let refused = |arguments: &[&str], what: &str, remedy: &str| {
        refused(&[&["volume"], arguments, &api].concat(), 1, what, remedy);
    };
    refused(&["create", "a", "--size", "1GiB"], "`a` exists already", "another name");
    refused(&["create", "b", "--size", "1GiB", "--core", "77"], "core 77", "choose one of 0");
    refused(&["show", "b"], "no volume `b`", "farflash volume list");
    refused(&["delete", "Not A Name"], "no such volume", "by its name or UUID");
    refused(&["resize", "b", "--size", "1GiB"], "no volume `b`", "farflash volume list");
}

/// A user that makes a volume smaller is told how much of its data is gone.
#[test]
fn a_smaller_size_says_what_it_cost() {
    let server = Server::start("mem:256MiB");
    let made = create(&server, "a", "1GiB");
    let nqn: Nqn = made["nqn"].as_str().unwrap().parse().unwrap();
    let (address, blocks) = (server.portals[0], 48_u64);
    on_core(|handle| async move {
        let volume = connect(&handle, address, &nqn).await;
        for lba in (0..blocks * 1024).step_by(1024) {
            volume.write(Lba(lba), Buffer::zeroed(1).into_slice()).await.unwrap();
        }
    });
    let said = |size| server.volume(&["resize", "a", "--size", size, "--lose-data"]).stdout;
    assert_eq!(said("64MiB"), "a has now 64 MiB; 128 KiB written beyond are gone\n");
    assert_eq!(said("1GiB"), "a has now 1 GiB\n");
    assert_eq!(said("64MiB"), "a has now 64 MiB; nothing was written beyond\n");
    let smaller = server.volume_json(&["resize", "a", "--size", "4MiB", "--lose-data"]);
    assert_eq!(smaller["cut_off"], json!({ "bytes": 15 * 4096, "at_least": false }));
    assert_eq!(server.volume_json(&["show", "a"]).get("cut_off"), None);
}

/// A change is not lost if its output cannot be printed: a user that does not see the new tokens is told to
/// make others.
#[test]
fn an_outcome_that_cannot_be_printed_is_told_from_one_that_is_none() {
    let (server, files) = (Server::start("mem:256MiB"), Files::new());
    let tokens = files.path("tokens").display().to_string();
    for (arguments, remedy) in [
        (&["create", "a", "--size", "1GiB"][..], "farflash volume change-auth"),
        (&["change-auth", "a", "--token-file", &tokens], "what was asked is done; look with"),
        (&["resize", "a", "--size", "2GiB"], "what was asked is done; look with"),
        (&["show", "a"], "give it somewhere to go"),
    ] {
        let arguments = [&["volume"], arguments, &["--api", &server.api]].concat();
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let outcome: Outcome = farflash(&arguments).stdout(full).output().unwrap().into();
        assert_eq!(outcome.code, Some(1), "{outcome:?}");
        assert!(outcome.stderr.contains(remedy), "{arguments:?}: {outcome:?}");
    }
}

#[test]
fn a_deleted_name_is_free_again_with_a_new_id() {
    let server = Server::start("mem:256MiB");
    let first = server.volume_json(&["create", "a", "--size", "1GiB"]);
    server.volume_json(&["delete", "--lose-data", "a"]);
    let second = server.volume_json(&["create", "a", "--size", "1GiB"]);
    assert_ne!(first["id"], second["id"]);
}

/// Space of the device, as the API shows it, and of the file below it.
#[test]
fn a_deleted_volume_gives_its_space_back() {
    const WRITTEN: u64 = 32 << 20;
    let files = Files::new();
    let device = format!("{},size=256MiB", files.device("a"));
    let server = Server::start_with(&device, &["--format-if-blank", "--create"]);
    let client = control::ApiClient::new(&server.api).unwrap();
    let free = || client.server().unwrap().devices[0].free_bytes;
    let taken = || std::fs::metadata(files.path("a")).unwrap().blocks() * 512;
    let made = create(&server, "a", "1GiB");
    let nqn: Nqn = made["nqn"].as_str().unwrap().parse().unwrap();
    let (address, before) = (server.portals[0], free());
    on_core(|handle| async move {
        let volume = connect(&handle, address, &nqn).await;
        let blocks = WRITTEN / units::BLOCK_SIZE as u64;
        for lba in (0..blocks).step_by(256) {
            let mut data = Buffer::new(256);
            data.as_mut_bytes().fill(0xA5);
            volume.write(Lba(lba), data.into_slice()).await.unwrap();
        }
    });
    assert_eq!(server.volume_json(&["show", "a"])["allocated_bytes"], WRITTEN);
    assert!(free() <= before - WRITTEN && taken() >= WRITTEN, "it was written");
    server.volume_json(&["delete", "--lose-data", "a"]);
    // The map's own blocks come and go with checkpoints.
    let slack = 1 << 20;
    crate::support::until("the device has it back", || free() + slack >= before);
    crate::support::until("so has the file system", || taken() < WRITTEN / 2);
}

/// Method: many clients ask for the same name at once; exactly one may get it.
#[test]
fn one_name_is_given_once() {
    let server = Server::start("mem:256MiB");
    let codes: Vec<Option<i32>> = std::thread::scope(|scope| {
        let api = &server.api;
        let ask =
            || crate::support::run(&["volume", "create", "a", "--size", "1GiB", "--api", api]).code;
        let asking: Vec<_> = (0..8).map(|_| scope.spawn(ask)).collect();
        asking.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(codes.iter().filter(|code| **code == Some(0)).count(), 1, "{codes:?}");
    assert_eq!(server.volume_json(&["list"])["volumes"].as_array().unwrap().len(), 1);
}

#[test]
fn volumes_spread_over_the_cores() {
    let Some(cores) = crate::support::cores(2) else {
        eprintln!("this machine has one core: nothing to spread over");
        return;
    };
    let server = Server::start_with("mem:256MiB", &["--cores", &cores]);
    let [first, second] = [0, 1].map(|at| reactor::allowed_cpus()[at]);
    let core = |name: &str| {
        let made = server.volume_json(&["create", name, "--size", "1GiB"]);
        made["portal"]["core"].as_u64().unwrap()
    };
    let spread = ["a", "b", "c", "d"].map(|name| core(name) as usize);
    assert_eq!(spread, [first, second, first, second]);
    let core = second.to_string();
    let wanted = server.volume_json(&["create", "e", "--size", "1GiB", "--core", &core]);
    assert_eq!(wanted["address"], server.portals[1].to_string());
}

#[test]
fn volumes_survive_an_orderly_end_and_a_kill() {
    let files = Files::new();
    let device = files.device("a");
    succeed(&["format", "--device", &format!("{device},size=1GiB")]);
    let mut expected = Vec::new();
    for (round, signal) in ["TERM", "KILL", "INT", "KILL"].into_iter().enumerate() {
        let server = Server::start(&device);
        let list = server.volume_json(&["list"]);
        let found: Vec<_> = list["volumes"]
            .as_array()
            .unwrap()
            .iter()
            .map(|v| {
                (
                    v["name"].as_str().unwrap().to_owned(),
                    v["id"].as_str().unwrap().to_owned(),
                    v["size_bytes"].as_u64().unwrap(),
                )
            })
            .collect();
        assert_eq!(found, expected, "before {signal}");
        let name = format!("v{round}");
        let made = server.volume_json(&["create", &name, "--size", "1GiB"]);
        server.volume_json(&["resize", &name, "--size", "2GiB"]);
        expected.push((name, made["id"].as_str().unwrap().to_owned(), 2 * GIB));
        server.volume_json(&["create", "gone", "--size", "1GiB"]);
        server.volume_json(&["delete", "--lose-data", "gone"]);
        server.signal(signal);
        let code = server.wait();
        assert_eq!(code, (signal != "KILL").then_some(0));
    }
}

#[test]
fn discovery_lists_the_volumes_of_all_cores_on_every_portal() {
    let list = crate::support::cores(2).or_else(|| crate::support::cores(1)).unwrap();
    let discovery = format!("{}:8009", own_host());
    let server = Server::start_with("mem:256MiB", &["--cores", &list, "--discovery", &discovery]);
    let mut expected: Vec<String> = ["a", "b", "c"]
        .iter()
        .map(|name| server.volume_json(&["create", name, "--size", "1GiB"]))
        .map(|made| {
            format!("{}  {}", made["address"].as_str().unwrap(), made["nqn"].as_str().unwrap())
        })
        .collect();
    server.volume_json(&["delete", "--lose-data", "c"]);
    expected.pop();
    // Discovery has an order of its own.
    expected.sort();
    let mut asked: Vec<String> = server.portals.iter().map(ToString::to_string).collect();
    asked.push(discovery);
    for address in asked {
        let found = succeed(&["discover", &address]);
        let mut found: Vec<&str> = found.lines().collect();
        found.sort_unstable();
        assert_eq!(found, expected, "{address}");
    }
    let json = succeed(&["discover", &server.portals[0].to_string(), "--json"]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let kinds =
        json["subsystems"].as_array().unwrap().iter().map(|it| it["kind"].as_str().unwrap());
    assert_eq!(kinds.filter(|kind| *kind == "nvm").count(), 2, "{json}");
}

#[test]
fn a_device_used_by_two_cores_is_served_by_one() {
    let Some(cores) = crate::support::cores(2) else {
        eprintln!("this machine has one core");
        return;
    };
    let files = Files::new();
    let device = files.device("a");
    succeed(&["format", "--device", &format!("{device},size=1GiB")]);
    let server = Server::start_with(&device, &["--cores", &cores]);
    server.volume_json(&["create", "a", "--size", "1GiB"]);
    server.volume_json(&["create", "b", "--size", "1GiB"]);
    server.signal("TERM");
    assert_eq!(server.wait(), Some(0));
    let server = Server::start(&device);
    let list = server.volume_json(&["list"]);
    for volume in list["volumes"].as_array().unwrap() {
        assert_eq!(volume["address"], server.portals[0].to_string());
    }
    assert_eq!(list["volumes"].as_array().unwrap().len(), 2);
}

#[test]
fn format_if_blank_creates_once_and_keeps_what_is_there() {
    let files = Files::new();
    let device = format!("{},size=256MiB", files.device("a"));
    let server = Server::start_with(&device, &["--format-if-blank", "--create"]);
    server.volume_json(&["create", "a", "--size", "1GiB"]);
    server.signal("TERM");
    assert_eq!(server.wait(), Some(0));
    let server = Server::start_with(&device, &["--format-if-blank", "--create"]);
    assert_eq!(server.volume_json(&["list"])["volumes"].as_array().unwrap().len(), 1);
}

/// Method: kill a server whose portal has a connection, and start the next one on the same ports at
/// once. What the kernel still holds of the first must not make the second fail.
#[test]
fn a_killed_server_can_be_started_again_on_its_ports_and_device() {
    let files = Files::new();
    let device = files.device("a");
    succeed(&["format", "--device", &format!("{device},size=256MiB")]);
    let anywhere = format!("{}:0", own_host());
    let mut first = Server::start_on(&device, &anywhere, &anywhere, &[]);
    let (listen, api) = (first.portals[0].to_string(), first.api["http://".len()..].to_owned());
    let made = create(&first, "a", "1GiB");
    let connection = TcpStream::connect(first.portals[0]).unwrap();
    for _ in 0..3 {
        first.signal("KILL");
        first.wait();
        let next = Server::start_on(&device, &listen, &api, &[]);
        assert_eq!(next.volume_json(&["show", "a"]), made);
        first = next;
    }
    drop(connection);
}

#[test]
fn ipv6_is_served_too() {
    let server = Server::start_on("mem:256MiB", "[::1]:0", "[::1]:0", &[]);
    let made = server.volume_json(&["create", "a", "--size", "1GiB"]);
    let portal = server.portals[0];
    assert_eq!(made["address"], format!("[::1]:{}", portal.port()));
    let connect = format!("nvme connect -t tcp -a ::1 -s {} -n ", portal.port());
    assert!(made["connect"].as_str().unwrap().starts_with(&connect), "{made}");
    let found = succeed(&["discover", &portal.to_string()]);
    assert!(found.starts_with(&format!("[::1]:{}  nqn.", portal.port())), "{found}");
}

/// Method: fill every place that the server has for connections, and ask its API meanwhile; once
/// they are given up, a host gets in again. Some of the flood may have been ended for the rest, and not be gone yet.
#[test]
fn a_flood_of_connections_is_bounded_and_passes() {
    let server = Server::start_with("mem:256MiB", &["--connections-max", "4"]);
    let flood: Vec<_> = (0..256).map(|_| TcpStream::connect(server.portals[0]).unwrap()).collect();
    server.volume_json(&["create", "a", "--size", "1GiB"]);
    let client = control::ApiClient::new(&server.api).unwrap();
    let connections = client.server().unwrap().cores[0].connections;
    assert!(connections <= 4 + dataplane::CONNECTIONS_LEAVING_MAX as u64, "{connections}");
    drop(flood);
    crate::support::until("the flood is given up", || {
        client.server().unwrap().cores[0].connections == 0
    });
    assert!(succeed(&["discover", &server.portals[0].to_string()]).contains("nqn."));
}

#[test]
fn an_idle_connection_does_not_hold_up_the_end() {
    let server = Server::start("mem:256MiB");
    let mut idle = TcpStream::connect(server.portals[0]).unwrap();
    idle.write_all(&[0]).unwrap();
    let asked = Instant::now();
    server.signal("TERM");
    assert_eq!(server.wait(), Some(0));
    assert!(asked.elapsed() < Duration::from_secs(10), "{:?}", asked.elapsed());
    let _ = idle.read_to_end(&mut Vec::new());
}

/// Method: an API request whose body never comes holds up the drain; the second signal does not wait
/// for it.
#[test]
fn a_second_signal_ends_at_once() {
    let server = Server::start("mem:256MiB");
    let mut stuck = TcpStream::connect(server.api.trim_start_matches("http://")).unwrap();
    let head = "POST /v1/volumes HTTP/1.1\r\nhost: api\r\ncontent-type: application/json\r\n\
                content-length: 10\r\nexpect: 100-continue\r\n\r\n";
    stuck.write_all(head.as_bytes()).unwrap();
    // The server asks for the body: the request is in flight.
    let mut answer = [0; 12];
    stuck.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"HTTP/1.1 100");
    server.signal("TERM");
    server.wait_for_log("draining");
    server.signal("INT");
    assert_eq!(server.wait(), Some(1));
}

#[test]
fn the_configuration_file_serves_too() {
    let files = Files::new();
    let path = files.path("farflash.toml");
    let cores = crate::support::cores(1).unwrap();
    std::fs::write(&path, format!("cores = [{cores}]\nadvertise = \"192.0.2.7\"\n")).unwrap();
    let server = Server::start_with("mem:256MiB", &["--config", path.to_str().unwrap()]);
    let made = server.volume_json(&["create", "a", "--size", "1GiB"]);
    assert!(made["address"].as_str().unwrap().starts_with("192.0.2.7:"), "{made}");
}

/// Method: a second server waits for the device of the first; the signal comes while it does.
#[test]
fn a_signal_before_the_server_is_ready_ends_it_in_good_order() {
    let files = Files::new();
    let device = files.device("a");
    succeed(&["format", "--device", &format!("{device},size=256MiB")]);
    let first = Server::start(&device);
    let arguments = ["serve", "--device", &device, "--auth", "off"];
    let free = ["--listen", "127.0.0.1:0", "--api", "127.0.0.1:0"];
    let arguments = [&arguments[..], &free].concat();
    let child = crate::support::farflash(&arguments).stderr(Stdio::piped()).spawn();
    let mut child = child.unwrap();
    let mut log = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains("waiting for") {
        line.clear();
        assert!(log.read_line(&mut line).unwrap() > 0, "it ended without waiting");
    }
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    drop(first);
}

/// Method: what cannot be served is refused with nothing left behind, and what was there as it was.
#[test]
fn format_if_blank_leaves_nothing_behind_when_it_fails() {
    let files = Files::new();
    let serve = |device: &str, cores: &str| {
        let free = ["--listen", "127.0.0.1:0", "--api", "127.0.0.1:0", "--auth", "off"];
        let device =
            ["serve", "--format-if-blank", "--create", "--device", device, "--cores", cores];
        crate::support::run(&[&device[..], &free].concat())
    };
    let one = crate::support::cores(1).unwrap();
    let small = serve(&format!("{},size=1MiB", files.device("a")), &one);
    assert!(small.code == Some(1) && small.stderr.contains("cannot be formatted"), "{small:?}");
    assert!(!files.path("a").exists());
    std::fs::write(files.path("b"), "").unwrap();
    let small = serve(&format!("{},size=1MiB", files.device("b")), &one);
    assert_eq!(small.code, Some(1), "{small:?}");
    assert_eq!(std::fs::metadata(files.path("b")).unwrap().len(), 0);
}

/// Method: a thousand I/O queues of eight hosts, with a request on each; memory is looked at before and
/// after.
#[test]
fn a_thousand_connections_are_served_at_a_time() {
    const CLIENTS: u8 = 8;
    const QUEUES: u16 = 125;
    /// Resident memory that a connection may take, its share of everything included.
    const BYTES_EACH: u64 = 64 << 10;
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
    let server = Server::start("mem:256MiB");
    let made = server.volume_json(&["create", "a", "--size", "1GiB"]);
    let nqn: nvme_wire::Nqn = made["nqn"].as_str().unwrap().parse().unwrap();
    let (portal, before) = (server.portals[0], server.resident_bytes());
    let began = Instant::now();
    let (connections, after) = crate::support::host::on_core(move |handle| async move {
        let mut clients = Vec::new();
        for id in 1..=CLIENTS {
            let options = client::Options {
                queues: QUEUES,
                depth: 8,
                connect_timeout: Duration::from_secs(30),
                ..crate::support::tokens::options(&nqn, id)
            };
            let client = client::Client::connect(handle.clone(), portal, &nqn, options).await;
            let client = client.unwrap();
            assert_eq!(client.queues(), QUEUES);
            let volume = client.volume().await.unwrap();
            // Requests take the queues in turn.
            for request in 0..u64::from(QUEUES) {
                let lba = units::Lba(u64::from(id) * 1000 + request);
                volume.write(lba, crate::support::host::filled(lba.0)).await.unwrap();
            }
            for request in 0..u64::from(QUEUES) {
                let lba = units::Lba(u64::from(id) * 1000 + request);
                let read = volume.read(lba, 1).await.unwrap();
                assert_eq!(read.as_bytes(), crate::support::host::filled(lba.0).as_bytes());
            }
            clients.push(client);
        }
        let api = control::ApiClient::new(&server.api).unwrap();
        let connections = api.server().unwrap().cores[0].connections;
        let after = server.resident_bytes();
        (connections, after)
    });
    assert_eq!(connections, u64::from(CLIENTS) * (u64::from(QUEUES) + 1));
    let each = after.saturating_sub(before) / connections;
    eprintln!("{connections} connections in {:?}, {each} bytes each", began.elapsed());
    assert!(each < BYTES_EACH, "{each} bytes");
    assert!(began.elapsed() < crate::support::PATIENCE, "{:?}", began.elapsed());
}

/// A volume that holds data, or that a host has open, goes only if that is said; of two resizes at once none undoes the other.
#[test]
fn a_volume_in_use_is_deleted_or_made_smaller_only_if_that_is_said() {
    let server = Server::start("mem:256MiB");
    let made = create(&server, "a", "1GiB");
    let nqn: Nqn = made["nqn"].as_str().unwrap().parse().unwrap();
    let address = server.portals[0];
    let refused = |arguments: &[&str], what: &str| {
        let outcome = server.volume(arguments);
        assert_eq!(outcome.code, Some(1), "{arguments:?}: {outcome:?}");
        assert!(outcome.stderr.contains(what), "{arguments:?}: {outcome:?}");
    };
    let shrink = ["resize", "a", "--size", "64MiB"];
    let api = server.api.clone();
    on_core(|handle| async move {
        let volume = connect(&handle, address, &nqn).await;
        for arguments in [&["delete", "a"][..], &shrink] {
            let outcome = run(&[&["volume"], arguments, &["--api", &api]].concat());
            assert!(outcome.stderr.contains("is open on 1 connection"), "{outcome:?}");
        }
        volume.write(Lba(0), Buffer::zeroed(1).into_slice()).await.unwrap();
    });
    refused(&["delete", "a"], "holds 4 KiB");
    refused(&shrink, "--lose-data");
    refused(&["resize", "a", "--size", "2GiB", "--if-size", "3GiB"], "has 1073741824 bytes");
    server.volume_json(&["resize", "a", "--size", "2GiB", "--if-size", "1GiB"]);
    refused(&["resize", "a", "--size", "4GiB", "--if-size", "1GiB"], "look at its size");
    server.volume_json(&["resize", "a", "--size", "64MiB", "--lose-data"]);
    server.volume_json(&["delete", "a", "--lose-data"]);
    create(&server, "empty", "1GiB");
    server.volume_json(&["resize", "empty", "--size", "64MiB"]);
    server.volume_json(&["delete", "empty"]);
}
