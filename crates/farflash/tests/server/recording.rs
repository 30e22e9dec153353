//! `farflash volume record`: the requests that hosts send to a volume, recorded by the server and replayed.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Stdio};

use iscsi_wire::Cdb;
use iscsi_wire::cdb::opcode as scsi;
use nvme_wire::Nqn;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use serde_json::Value;
use units::{Lba, LbaRange};

use crate::support::foreign::places;
use crate::support::host::{connect, filled, on_core};
use crate::support::initiator::{Initiator, Names};
use crate::support::users::{self, User};
use crate::support::{Files, Outcome, Server, farflash, nbd, refused, run, succeed};

const BEGINS: &str = "a recording of its requests begins";
const ENDED: &str = "a recording of its requests has ended";
const BENCH: [&str; 4] = ["bench", "--json", "--quiet", "--overwrite"];

/// `farflash volume record v`, which runs.
struct Recorder {
    child: Child,
    path: String,
}

impl Recorder {
    /// Returns when the server records.
    fn start(server: &Server, files: &Files, more: &[&str]) -> Self {
        let path = files.path("recording").to_str().unwrap().to_owned();
        let words = ["volume", "record", "v", "--json", "--api", &server.api, "--out", &path];
        let mut command = farflash(&[&words[..], more].concat());
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = child.spawn().unwrap();
        server.wait_for_log(BEGINS);
        Self { child, path }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// It fetches nothing until [`Self::resume`].
    fn pause(&self) {
        self.signal(Signal::STOP);
        waitid(WaitId::Pid(Pid::from_child(&self.child)), WaitIdOptions::STOPPED).unwrap();
    }

    fn resume(&self) {
        self.signal(Signal::CONT);
    }

    fn wait(self) -> (Outcome, Requests) {
        let outcome = Outcome::from(self.child.wait_with_output().unwrap());
        let text = std::fs::read_to_string(&self.path).unwrap();
        (outcome, Requests::of(&text))
    }

    /// Ends it by Ctrl-C. Returns its summary and the file.
    fn stop(self) -> (Value, Requests) {
        self.signal(Signal::INT);
        let (outcome, requests) = self.wait();
        assert_eq!(outcome.code, Some(0), "{outcome:?}");
        (serde_json::from_str(&outcome.stdout).unwrap(), requests)
    }
}

/// The requests of a file: time, kind, first byte, bytes.
#[derive(Debug)]
struct Requests(Vec<(f64, String, u64, u64)>);

impl Requests {
    fn of(text: &str) -> Self {
        let lines = text.lines().skip(1).filter(|line| !line.starts_with('#'));
        let request = |line: &str| {
            let fields: Vec<&str> = line.split(' ').collect();
            let number = |field: usize| fields[field].parse::<u64>().unwrap();
            (fields[0].parse().unwrap(), fields[1].to_owned(), number(2), number(3))
        };
        Self(lines.map(request).collect())
    }

    /// Kind, first block and blocks of each.
    fn blocks(&self) -> Vec<(&str, u64, u64)> {
        let blocks = |(_, _, offset, bytes): &(f64, String, u64, u64)| {
            assert!(offset % 4096 == 0 && bytes % 4096 == 0, "{self:?}");
            (offset / 4096, bytes / 4096)
        };
        let all = self.0.iter();
        all.map(|it| (it.1.as_str(), blocks(it).0, blocks(it).1)).collect()
    }

    fn count(&self, kind: &str) -> u64 {
        self.0.iter().filter(|request| request.1 == kind).count() as u64
    }
}

fn volume(server: &Server, name: &str) -> (String, Nqn) {
    let made = server.volume_json(&["create", name, "--size", "256MiB"]);
    let nqn = made["nqn"].as_str().unwrap();
    (format!("tcp://{}/{nqn}", server.portals[0]), nqn.parse().unwrap())
}

fn json(arguments: &[&str]) -> Value {
    serde_json::from_str(&succeed(arguments)).unwrap()
}

/// Method: a host of each protocol sends a few requests, one after another; some move no data, one is for another volume.
#[test]
fn a_recording_has_what_hosts_of_every_protocol_ask() {
    let files = Files::new();
    let more = ["--auth", "off", "--iscsi", "127.0.0.1:0", "--nbd", "127.0.0.1:0"];
    let server = Server::start_with("mem:256MiB", &more);
    let (iscsi, nbd) = (places(&server, "iSCSI portal open")[0], places(&server, "NBD open")[0]);
    let ((_, nqn), (_, other), portal) =
        (volume(&server, "v"), volume(&server, "w"), server.portals[0]);
    server.volume_json(&["restrict", "v", "--nbd-network", "127.0.0.0/8"]);
    let recorder = Recorder::start(&server, &files, &["--for", "1h"]);
    on_core(move |handle| async move {
        let volume = connect(&handle, portal, &nqn).await;
        volume.write(Lba(5), filled(7)).await.unwrap();
        volume.read(Lba(1), 7).await.unwrap();
        volume.compare(Lba(5), filled(7)).await.unwrap();
        volume.flush().await.unwrap();
        volume.deallocate(&[LbaRange::new(Lba(5), 1)]).await.unwrap();
        volume.write_zeroes(LbaRange::new(Lba(8), 1)).await.unwrap();
        connect(&handle, portal, &other).await.write(Lba(1), filled(7)).await.unwrap();
    });
    let mut client = nbd::Client::open(nbd, "v").unwrap();
    client.write(9 * 4096, &[3; 2 * 4096]);
    client.read(9 * 4096 + 100, 10);
    // Parts of two blocks.
    client.write(20 * 4096 + 4000, &[3; 200]);
    let shown = server.volume_json(&["show", "v"]);
    let target = format!("iqn.2026-01.io.farflash:{}", shown["id"].as_str().unwrap());
    let names = Names { initiator: "iqn.1993-08.org.debian:01:ab", target: Some(&target) };
    let mut initiator = Initiator::log_in(iscsi, names, None).unwrap();
    initiator.become_ready();
    initiator.write(30, &[1; 4096]);
    initiator.read(31, 3);
    initiator.send(Cdb::with_blocks(scsi::VERIFY_10, 32, 2), &[]);
    let (summary, requests) = recorder.stop();
    let expected = [
        ("w", 5, 1),
        ("r", 1, 7),
        ("r", 5, 1),
        ("w", 9, 2),
        ("r", 9, 1),
        ("w", 20, 2),
        ("w", 30, 1),
        ("r", 31, 3),
        ("r", 32, 2),
    ];
    assert_eq!(requests.blocks(), expected);
    let seconds = summary["seconds"].as_f64().unwrap();
    let times: Vec<f64> = requests.0.iter().map(|request| request.0).collect();
    assert!(times.is_sorted() && times.iter().all(|at| (0.0..=seconds).contains(at)), "{times:?}");
    let counts = ["requests", "reads", "writes", "left_out", "others"].map(|name| &summary[name]);
    assert_eq!(counts, [9, 5, 4, 0, 3], "{summary}");
    let bytes = ["read_bytes", "written_bytes"].map(|name| &summary[name]);
    assert_eq!(bytes, [14 * 4096, 6 * 4096], "{summary}");
    assert_eq!(summary["ended"], "interrupt");
}

/// Method: the load keeps a recording of its own, which has the same requests. The server counts those of the replay.
#[test]
fn a_recording_of_a_load_is_the_load_and_is_replayed_to_the_request() {
    let files = Files::new();
    let server = Server::start_with("mem:256MiB", &["--auth", "off"]);
    let ((first, _), (second, nqn)) = (volume(&server, "v"), volume(&server, "w"));
    let portal = server.portals[0];
    let recorder = Recorder::start(&server, &files, &["--for", "1h"]);
    let own = files.path("own").to_str().unwrap().to_owned();
    // One at a time, so that none overtakes another.
    let load = ["--rw", "randrw", "--bs", "8KiB", "--rate", "500", "--qd", "1", "--seconds", "1"];
    let ran = json(&[&BENCH[..], &["--target", &first, "--record", &own], &load].concat());
    let path = recorder.path.clone();
    let (summary, recorded) = recorder.stop();
    let own = Requests::of(&std::fs::read_to_string(own).unwrap());
    assert_eq!(recorded.blocks(), own.blocks());
    let counts = ["reads", "writes"].map(|name| summary[name].as_u64().unwrap());
    assert_eq!(counts, [recorded.count("r"), recorded.count("w")]);
    assert!(counts.iter().all(|count| *count > 50) && summary["left_out"] == 0, "{summary}");
    // Both are as long: the first request came when the load began.
    let length = |requests: &Requests| requests.0.last().unwrap().0 - requests.0[0].0;
    assert!(length(&recorded) > 0.5 * length(&own), "{} s", length(&recorded));

    let replayed = json(&[&BENCH[..], &["--target", &second, "--replay", &path]].concat());
    for kind in ["read", "write"] {
        for what in ["requests", "bytes"] {
            assert_eq!(replayed[kind][what], ran[kind][what], "{kind} {what}");
        }
    }
    on_core(move |handle| async move {
        let health = connect(&handle, portal, &nqn).await.client().smart_health().await.unwrap();
        let served = [health.host_reads.get(), health.host_writes.get()];
        assert_eq!(served, counts.map(u128::from));
    });
}

/// Method: the client is stopped, so that nothing is fetched while a hundred requests come.
#[test]
fn requests_that_found_no_room_are_told() {
    let files = Files::new();
    let server = Server::start_with("mem:256MiB", &["--auth", "off"]);
    let (target, _) = volume(&server, "v");
    let recorder = Recorder::start(&server, &files, &["--for", "1h", "--buffer", "10"]);
    recorder.pause();
    let load = ["--rw", "randread", "--bytes", "400KiB", "--qd", "1"];
    succeed(&[&BENCH[..], &["--target", &target], &load].concat());
    recorder.resume();
    let (summary, recorded) = recorder.stop();
    assert_eq!(recorded.0.len(), 10);
    let counts = ["requests", "left_out", "others"].map(|name| &summary[name]);
    assert_eq!(counts, [10, 90, 0], "{summary}");
}

/// Method: more requests than three fetches return wait for a client that is stopped, when Ctrl-C comes.
#[test]
fn ctrl_c_leaves_out_no_request_that_had_come() {
    let files = Files::new();
    let server = Server::start_with("mem:256MiB", &["--auth", "off"]);
    let (target, _) = volume(&server, "v");
    let recorder = Recorder::start(&server, &files, &["--for", "1h"]);
    recorder.pause();
    let load = ["--rw", "randread", "--bytes", "120000KiB", "--qd", "32"];
    succeed(&[&BENCH[..], &["--target", &target], &load].concat());
    recorder.signal(Signal::INT);
    recorder.resume();
    let (outcome, recorded) = recorder.wait();
    assert_eq!((outcome.code, recorded.0.len()), (Some(0), 30_000), "{outcome:?}");
}

/// Method: a reader's recording is left alone, cut off by the end of its client, of its time, and of its volume in turn.
#[test]
fn a_volume_has_one_recording_at_a_time_which_ends_with_its_client_its_time_or_the_volume() {
    let files = Files::new();
    let (ops, reader) = (User::operator("ops"), User::reader("p"));
    let list = users::list(&files, &[ops.entry(), reader.entry()]);
    let audit = files.path("audit").to_str().unwrap().to_owned();
    let more = ["--auth", "off", "--api-users", &list, "--audit-log", &audit];
    let server = Server::start_with("mem:256MiB", &more);
    let token = |user: &User, name: &str| {
        std::fs::write(files.path(name), &user.token).unwrap();
        std::fs::set_permissions(files.path(name), Permissions::from_mode(0o600)).unwrap();
        files.path(name).to_str().unwrap().to_owned()
    };
    let (ops, reader) = (token(&ops, "ops"), token(&reader, "reader"));
    let as_ops = ["--api", &server.api, "--api-token-file", &ops];
    succeed(&[&["volume", "create", "v", "--size", "1GiB"][..], &as_ops].concat());
    let as_reader = ["--api-token-file", reader.as_str()];
    let recorder = Recorder::start(&server, &files, &[&as_reader[..], &["--for", "1h"]].concat());

    let second = files.path("second").to_str().unwrap().to_owned();
    let record = |more: &[&'static str]| {
        let words = [&["volume", "record", "v", "--out", &second][..], more, &as_ops].concat();
        words.into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    let refused = |more: &[&'static str], code, what: &str, remedy: &str| {
        let words = record(more);
        refused(&words.iter().map(String::as_str).collect::<Vec<_>>(), code, what, remedy);
    };
    refused(&["--for", "9s"], 1, "requests of `v` are being recorded already", "within 10 s");
    refused(&["--for", "25h"], 2, "longer than a day", "--for 24h");
    assert!(!files.path("second").exists());

    recorder.signal(Signal::KILL);
    server.wait_for_log(ENDED);
    let recorder = Recorder::start(&server, &files, &[&as_reader[..], &["--for", "1s"]].concat());
    let (outcome, requests) = recorder.wait();
    assert_eq!((outcome.code, requests.0.len()), (Some(0), 0), "{outcome:?}");
    let summary: Value = serde_json::from_str(&outcome.stdout).unwrap();
    assert_eq!((&summary["ended"], &summary["seconds"]), (&"time".into(), &1.0.into()));

    let recorder = Recorder::start(&server, &files, &[&as_reader[..], &["--for", "1h"]].concat());
    succeed(&[&["volume", "delete", "v"][..], &as_ops].concat());
    let (outcome, _) = recorder.wait();
    assert_eq!(outcome.code, Some(1), "{outcome:?}");
    assert!(outcome.stderr.contains("ended early: there is no volume"), "{outcome:?}");
    assert!(outcome.stderr.contains("has what was recorded until then"), "{outcome:?}");

    let lines = std::fs::read_to_string(audit).unwrap();
    let lines = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let begun = lines.filter(|line| {
        line["role"] == "reader" && line["method"] == "POST" && line["status"] == 201
    });
    assert_eq!(begun.count(), 3);
    let outcome = run(&["volume", "record", "v", "--api", &server.api, "--out", &second]);
    assert!(outcome.code == Some(2) && outcome.stderr.contains("--for"), "{outcome:?}");
}
