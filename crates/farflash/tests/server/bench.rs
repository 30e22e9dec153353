//! `farflash bench`: what it refuses, and that it says what it did.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use crate::support::host::{connect, filled, on_core};
use crate::support::{Files, Server, farflash, refused, run, succeed};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use units::Lba;

/// Authentication is off: it is not part of the measurement.
const OPEN: &[&str] = &["--auth", "off"];

fn volume(server: &Server, name: &str, size: &str) -> (String, nvme_wire::Nqn) {
    let made = server.volume_json(&["create", name, "--size", size]);
    let nqn = made["nqn"].as_str().unwrap();
    (format!("tcp://{}/{nqn}", server.portals[0]), nqn.parse().unwrap())
}

/// Method: one block in a place of a large volume that no sample would hit.
#[test]
fn a_volume_that_holds_data_is_not_written_over_by_mistake() {
    let server = Server::start_with("mem:256MiB", OPEN);
    let (target, _) = volume(&server, "a", "1TiB");
    let portal = server.portals[0];
    let write = ["bench", "--target", &target, "--rw", "randwrite", "--bytes", "1MiB", "--quiet"];
    succeed(&[&write[..], &["--range", "64MiB"]].concat());
    refused(&[&write[..], &["--range", "512GiB"]].concat(), 1, "holds data", "--overwrite");
    server.volume_json(&["delete", "--lose-data", "a"]);
    let (target, nqn) = volume(&server, "b", "1TiB");
    on_core(move |handle| async move {
        let volume = connect(&handle, portal, &nqn).await;
        volume.write(Lba((1 << 27) + 12_345), filled(7)).await.unwrap();
    });
    let write = ["bench", "--target", &target, "--rw", "randwrite", "--bytes", "1MiB", "--quiet"];
    refused(&write, 1, "holds data: 4 KiB of it", "--overwrite");
    // A small range is read, and found empty, whatever lies elsewhere.
    succeed(&[&write[..], &["--range", "16MiB"]].concat());
    succeed(&[&write[..], &["--overwrite"]].concat());
}

#[test]
fn a_file_that_holds_data_is_not_written_over_by_mistake() {
    let files = Files::new();
    let file = std::fs::File::create(files.path("a")).unwrap();
    file.set_len(1 << 40).unwrap();
    let target = files.device("a");
    let write = ["bench", "--target", &target, "--rw", "write", "--bytes", "1MiB", "--quiet"];
    file.write_all_at(&[1], (500 << 30) + 54_321).unwrap();
    refused(&write, 1, "holds data: byte 536870966321", "--overwrite");
    succeed(&[&write[..], &["--range", "1GiB"]].concat());
    refused(&[&write[..], &["--range", "1GiB"]].concat(), 1, "holds data: byte 0", "--overwrite");
}

#[test]
fn what_was_not_used_is_not_reported() {
    let server = Server::start_with("mem:256MiB", OPEN);
    let (target, _) = volume(&server, "a", "1GiB");
    let read = ["bench", "--target", &target, "--bytes", "1MiB"];
    let many = [&read[..], &["--connections", "256", "--quiet"]].concat();
    refused(&many, 2, "not the 256 of --connections", "use --connections 128");
    let deep = run(&[&read[..], &["--qd", "1000", "--json"]].concat());
    assert_eq!(deep.code, Some(0), "{deep:?}");
    assert!(deep.stderr.contains("not --qd 1000"), "{deep:?}");
    let json: Value = serde_json::from_str(&deep.stdout).unwrap();
    assert_eq!(json["qd"], 127);
}

#[test]
fn a_check_says_how_much_it_read() {
    let verify = ["bench", "--target", "mem:64MiB", "--rw", "randwrite", "--verify", "--quiet"];
    let verify = [&verify[..], &["--bytes", "16MiB", "--range", "4MiB"]].concat();
    let said = succeed(&verify);
    assert!(said.contains(" blocks at the end, 0 wrong"), "{said}");
    let json = succeed(&[&verify[..], &["--json"]].concat());
    let json: Value = serde_json::from_str(&json).unwrap();
    assert!(json["blocks_checked_at_end"].as_u64().unwrap() > 900, "{json}");
    assert_eq!(json["wrong_at_end"], 0);
}

/// Method: a result by bytes counts what was measured alone, though the same load went on for two seconds before.
#[test]
fn a_warm_up_is_not_measured() {
    let read = ["bench", "--target", "mem:64MiB", "--rw", "randread", "--bytes", "1MiB"];
    let began = Instant::now();
    let json = succeed(&[&read[..], &["--warm-up", "2", "--quiet", "--json"]].concat());
    assert!(began.elapsed() >= Duration::from_secs(2), "{json}");
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["read"]["requests"], 256, "{json}");
    assert!(json["seconds"].as_f64().unwrap() < 2.0, "{json}");
    let endless = [&read[..], &["--warm-up", "1e12"]].concat();
    refused(&endless, 2, "--warm-up", "try --warm-up 1");
}

/// Method: a run of an hour, whose output is a pipe, gets one signal in its midst, and then another run gets two, while its
/// target does not answer.
#[test]
fn ctrl_c_ends_a_run_early_with_its_figures_and_a_second_one_at_once() {
    let begin = |more: &[&str]| {
        let arguments = ["bench", "--rw", "randread", "--seconds", "3600"];
        let mut bench = farflash(&[&arguments[..], more].concat());
        let mut bench = bench
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let stderr = BufReader::new(bench.stderr.take().unwrap());
        (bench, stderr.lines().map(Result::unwrap))
    };
    let interrupt =
        |bench: &Child| kill_process(Pid::from_child(bench), Signal::INT).expect("it runs");
    let says_rate = |line: &String| line.contains("IOPS");
    let (bench, mut said) = begin(&["--target", "mem:64MiB", "--json"]);
    said.find(says_rate).expect("it tells of its first second");
    interrupt(&bench);
    said.find(|line| line.contains("ends early")).expect("it says so");
    let rest = said.collect::<Vec<_>>();
    let ended = bench.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(0), "{rest:?}");
    let json: Value = serde_json::from_slice(&ended.stdout).unwrap();
    assert_eq!(json["cut_short"], true);
    assert!(json["read"]["requests"].as_u64() > Some(0) && json["seconds"].as_f64() < Some(600.0));

    let server = Server::start_with("mem:256MiB", OPEN);
    let (target, _) = volume(&server, "a", "64MiB");
    let (bench, mut said) = begin(&["--target", &target]);
    said.find(says_rate).expect("it tells of its first second");
    server.pause();
    interrupt(&bench);
    said.find(|line| line.contains("ends early")).expect("it says so");
    interrupt(&bench);
    let ended = bench.wait_with_output().unwrap();
    assert_eq!((ended.status.code(), ended.stdout.as_slice()), (Some(130), &b""[..]));
    server.resume();
}

/// The kinds of load that users ask for, and all that is promised of a result.
///
/// Method: an open loop of mixed requests over two connections with digests, most of them to few places, for some intervals.
#[test]
fn a_result_has_latencies_to_six_nines_and_the_course_of_the_run() {
    const RATE: f64 = 400.0;
    let server = Server::start_with("mem:256MiB", OPEN);
    let (target, nqn) = volume(&server, "a", "1GiB");
    let portal = server.portals[0];
    let load =
        ["bench", "--target", &target, "--rw", "randrw", "--rwmixread", "75", "--bs", "8KiB"];
    let open = ["--rate", "400", "--arrivals", "fixed", "--seconds", "2.5"];
    let few = ["--distribution", "zipf:1.4", "--range", "8MiB", "--connections", "2"];
    // Nothing is read but by the load: what the volume holds does not matter.
    let more = ["--qd", "64", "--hdgst", "--ddgst", "--overwrite", "--json", "--quiet"];
    let json = succeed(&[&load[..], &open, &few, &more].concat());
    let json: Value = serde_json::from_str(&json).unwrap();
    let number = |value: &Value| value.as_f64().unwrap_or_else(|| panic!("{value} in {json}"));
    for flag in ["hdgst", "ddgst"] {
        assert_eq!(json[flag], true, "{json}");
    }
    let (reads, writes) = (number(&json["read"]["requests"]), number(&json["write"]["requests"]));
    // As many as arrived, at whatever rate this machine can serve them.
    assert!((0.9..1.1).contains(&((reads + writes) / (2.5 * RATE))), "{json}");
    assert!((0.65..0.85).contains(&(reads / (reads + writes))), "{json}");
    assert_eq!(number(&json["read"]["bytes"]), reads * 8192.0);
    for kind in ["read", "write"] {
        let latency = &json[kind]["latency"];
        let nines = ["min", "p50", "p90", "p99", "p99_9", "p99_99", "p99_999", "p99_9999", "max"];
        let nines = nines.map(|name| number(&latency[format!("{name}_ns")]));
        assert!(nines[0] > 0.0 && nines.is_sorted(), "{nines:?}");
        assert!(!latency["curve"].as_array().unwrap().is_empty(), "{json}");
    }
    let intervals = json["intervals"].as_array().unwrap();
    assert!(intervals.len() >= 2, "{json}");
    let sum = |what: &str| intervals.iter().map(|one| number(&one[what])).sum::<f64>();
    assert_eq!((sum("reads"), sum("writes")), (reads, writes), "{json}");
    let ends = intervals.iter().map(|one| number(&one["end_seconds"]));
    assert!(ends.is_sorted(), "{json}");
    // Few places got most of it: uniform draws would have hit nearly as many places as there are writes.
    let mapped = server.volume_json(&["show", "a"])["allocated_bytes"].as_u64().unwrap();
    assert!(mapped < (writes * 8192.0 / 2.0) as u64, "{mapped} bytes of {writes} writes");
    on_core(move |handle| async move {
        let health = connect(&handle, portal, &nqn).await.client().smart_health().await.unwrap();
        let commands = (health.host_reads.get() as f64, health.host_writes.get() as f64);
        assert_eq!(commands, (reads, writes), "the server counts the same");
    });
}

#[test]
fn each_mistake_names_its_flag() {
    let bench = |more: &[&'static str]| [&["bench", "--target", "mem:64MiB"], more].concat();
    refused(&bench(&["--seconds", "0"]), 2, "--seconds", "--seconds 10");
    refused(&bench(&["--bytes", "0"]), 2, "--bytes 0", "--bytes 1GiB");
    refused(&bench(&["--rate", "0"]), 2, "--rate", "--rate 1000");
    refused(&bench(&["--bs", "1000"]), 2, "--bs 1000 bytes", "--bs 4KiB");
    refused(&bench(&["--rwmixread", "70"]), 2, "--rwmixread", "--rw randrw");
    refused(&bench(&["--ddgst"]), 2, "a local device has none", "--ddgst out");
    refused(&bench(&["--offset", "64MiB"]), 2, "--offset", "smaller --offset");
    refused(&bench(&["--range", "65MiB"]), 2, "--range", "--range 64 MiB");
    refused(&bench(&["--range", "8KiB", "--bs", "16KiB"]), 2, "--bs", "larger --range");
    let busy = ["--rw", "randwrite", "--verify", "--range", "64KiB", "--qd", "32"];
    refused(&bench(&busy), 2, "33 requests", "--qd");
}

#[test]
fn a_wrong_nqn_is_named() {
    let server = Server::start_with("mem:256MiB", OPEN);
    let nqn = "nqn.2014-08.org.nvmexpress:uuid:11111111-2222-3333-4444-555555555555";
    let target = format!("tcp://{}/{nqn}", server.portals[0]);
    let what = format!("has no volume {nqn}");
    refused(&["bench", "--target", &target], 1, &what, "farflash volume");
}

/// A reader that has gone is no failure, and no panic.
#[test]
fn output_to_a_closed_pipe_is_no_failure() {
    let files = Files::new();
    let format = format!("{},size=256MiB", files.device("a"));
    for arguments in [
        &["bench", "--target", "mem:64MiB", "--bytes", "1MiB"][..],
        &["bench", "--target", "mem:64MiB", "--bytes", "1MiB", "--json"],
        &["format", "--device", &format],
    ] {
        let (reader, writer) = std::io::pipe().unwrap();
        let (silent, complaints) = std::io::pipe().unwrap();
        drop((reader, silent));
        let mut command = farflash(arguments);
        command.stdout(Stdio::from(writer)).stderr(Stdio::from(complaints));
        assert_eq!(command.status().unwrap().code(), Some(0), "{arguments:?}");
    }
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let output = farflash(&["bench", "--target", "mem:64MiB", "--bytes", "1MiB", "--quiet"])
        .stdout(full)
        .output()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("cannot be printed"), "{said}");
}

/// Each workload as on a volume of a size that gives hundreds of requests a second. Its rates and sizes to the digit are held
/// to the table in `load`.
#[test]
fn workloads_have_the_rates_and_sizes_of_the_table_at_a_server() {
    const SECONDS: f64 = 2.0;
    // Bounds of reads/s and writes/s for each TB, over any two seconds, and bytes of each kind.
    let table = [
        ("a", 1_900.0..10_100.0, 100.0, [10e3, 500e3]),
        ("b", 1_900.0..6_100.0, 1_000.0, [50e3, 700e3]),
        // With and without a burst of 0.1 s.
        ("c", 1_900.0..9_000.0, 500.0, [15e3, 2e6]),
        ("d", 1_900.0..4_100.0, 150.0, [25e3, 500e3]),
    ];
    let server = Server::start_with("mem:1GiB", OPEN);
    let (target, nqn) = volume(&server, "a", "1GiB");
    let portal = server.portals[0];
    for (name, reads, writes, bytes) in table {
        let load = ["bench", "--target", &target, "--workload", name, "--range", "256MiB"];
        let scale = ["--workload-size", "50GB", "--seconds", "2", "--qd", "64"];
        let json = succeed(&[&load[..], &scale, &["--overwrite", "--json", "--quiet"]].concat());
        let json: Value = serde_json::from_str(&json).unwrap();
        assert_eq!((&json["workload"], &json["rw"]), (&name.into(), &Value::Null));
        assert_eq!(json["errors"], 0, "{json}");
        let per_tb = |kind: &str| json[kind]["requests"].as_f64().unwrap() / SECONDS / 0.05;
        assert!(reads.contains(&per_tb("read")), "{name}: {}", per_tb("read"));
        // Ten writes of the first workload are expected, give or take chance.
        let off = 4.0 * (writes / SECONDS / 0.05_f64).sqrt();
        assert!((per_tb("write") - writes).abs() <= off, "{name}: {}", per_tb("write"));
        for (kind, bytes) in ["read", "write"].into_iter().zip(bytes) {
            let requests = json[kind]["requests"].as_f64().unwrap();
            let mean = json[kind]["bytes"].as_f64().unwrap() / requests;
            assert!((mean - bytes).abs() < 4096.0, "{name}: {mean} bytes of a {kind}");
        }
    }
    // Writes of 2 MB are more than the server takes at once: they came in pieces.
    on_core(move |handle| async move {
        let volume = connect(&handle, portal, &nqn).await;
        assert!(u64::from(volume.max_transfer_blocks()) * 4096 < 2_000_000);
    });
}

/// Latency counts from the intended start: a server that stands still for a second shows in each request that was due.
///
/// Method: a recording of a request each ten milliseconds, by hand. The server is paused for half of it.
#[test]
fn a_replay_counts_the_wait_of_requests_that_were_due() {
    let files = Files::new();
    let mut text = "farflash-requests 1\n".to_owned();
    for request in 0..200 {
        text += &format!("{}.{:02} r {} 4096\n", request / 100, request % 100, request * 4096);
    }
    std::fs::write(files.path("steady"), text).unwrap();
    let server = Server::start_with("mem:256MiB", OPEN);
    let (target, _) = volume(&server, "a", "1GiB");
    let path = files.path("steady");
    let replay = ["bench", "--target", &target, "--replay", path.to_str().unwrap(), "--json"];
    let mut bench = farflash(&[&replay[..], &["--qd", "4"]].concat());
    let mut bench = bench.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(bench.stderr.take().unwrap()).lines().map(Result::unwrap);
    // The first second is over when the line about it comes.
    said.find(|line| line.contains("IOPS")).expect("it tells of its first second");
    server.pause();
    std::thread::sleep(std::time::Duration::from_millis(600));
    server.resume();
    let rest = said.collect::<Vec<_>>();
    let ended = bench.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(0), "{rest:?}");
    let json: Value = serde_json::from_slice(&ended.stdout).unwrap();
    assert_eq!(json["read"]["requests"], 200, "{json}");
    let ms = |name: &str| json["read"]["latency"][name].as_f64().unwrap() / 1e6;
    // About 60 requests were due meanwhile, though only four were outstanding.
    assert!(ms("max_ns") > 500.0 && ms("p90_ns") > 250.0, "{json}");
    assert!(ms("p50_ns") < 100.0, "{json}");
}

/// Method: a run with both kinds of requests is recorded, and replayed twice as fast on another volume; the server counts what
/// it got.
#[test]
fn a_recording_is_replayed_to_the_request() {
    let files = Files::new();
    let path = files.path("recording");
    let path = path.to_str().unwrap();
    let server = Server::start_with("mem:256MiB", OPEN);
    let (first, _) = volume(&server, "a", "256MiB");
    let (second, nqn) = volume(&server, "b", "256MiB");
    let portal = server.portals[0];
    let bench = ["bench", "--json", "--quiet", "--overwrite"];
    let load = ["--rw", "randrw", "--bs", "8KiB", "--rate", "500", "--seconds", "1"];
    let run = |more: &[&str]| -> Value {
        serde_json::from_str(&succeed(&[&bench[..], more].concat())).unwrap()
    };
    let ran = run(&[&["--target", &first, "--record", path][..], &load].concat());
    let text = std::fs::read_to_string(path).unwrap();
    let kinds = |kind: &str| text.lines().filter(|line| line.contains(kind)).count() as u64;
    assert_eq!(ran["read"]["requests"], kinds(" r "), "{text}");
    assert_eq!(ran["write"]["requests"], kinds(" w "));
    let replayed = run(&["--target", &second, "--replay", path, "--speed", "2"]);
    assert_eq!(replayed["replay"], path);
    for kind in ["read", "write"] {
        for what in ["requests", "bytes"] {
            assert_eq!(replayed[kind][what], ran[kind][what], "{kind} {what}");
        }
    }
    let seconds = |json: &Value| json["seconds"].as_f64().unwrap();
    assert!(seconds(&replayed) < 0.75 * seconds(&ran), "{replayed}");
    let requests = (u128::from(kinds(" r ")), u128::from(kinds(" w ")));
    on_core(move |handle| async move {
        let health = connect(&handle, portal, &nqn).await.client().smart_health().await.unwrap();
        assert_eq!((health.host_reads.get(), health.host_writes.get()), requests);
    });
}

#[test]
fn recordings_and_workloads_that_do_not_fit_are_refused() {
    let files = Files::new();
    let path = |name: &str| files.path(name).to_str().unwrap().to_owned();
    let replay = |name: &str| {
        let arguments = ["bench", "--target", "mem:64MiB", "--replay", &path(name)];
        arguments.map(str::to_owned)
    };
    let refused = |arguments: &[String], what: &str, remedy: &str| {
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        refused(&arguments, 2, what, remedy);
    };
    refused(&replay("missing"), "cannot be read", "--record");
    std::fs::write(path("foreign"), "[job]\nrw=randread\n").unwrap();
    refused(&replay("foreign"), "line 1", "--record");
    std::fs::write(path("broken"), "farflash-requests 1\n0 r 0 4096\n1 x 0 4096\n").unwrap();
    refused(&replay("broken"), "line 3: `x` is no kind of request", "that line");
    std::fs::write(path("empty"), "farflash-requests 1\n").unwrap();
    refused(&replay("empty"), "no requests", "record");
    std::fs::write(path("large"), "farflash-requests 1\n0 r 1073741824 4096\n").unwrap();
    refused(&replay("large"), "the target has 64 MiB", "of that size");
    let bench = |more: &[&str]| {
        let all = [&["bench", "--target", "mem:64MiB"], more].concat();
        all.into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    refused(&bench(&["--workload", "c", "--range", "1MiB"]), "do not fit into 1 MiB", "--range");
    // These are the refusals of the parser, which have a form of their own.
    for (more, what) in [
        (&["--workload", "a", "--bs", "4KiB"][..], "cannot be used with '--bs"),
        (&["--workload-size", "1TB"], "--workload <"),
        (&["--replay", "x", "--speed", "0"], "`0` is no pace"),
        (&["--replay", "x", "--range", "1MiB"], "cannot be used with '--range"),
    ] {
        let outcome = run(&[&["bench", "--target", "mem:64MiB"], more].concat());
        assert_eq!(outcome.code, Some(2), "{outcome:?}");
        assert!(outcome.stderr.contains(what), "{outcome:?}");
    }
}
