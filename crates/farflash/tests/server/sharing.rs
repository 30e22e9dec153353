//! Promises, ceilings and policies of a live server.

use std::process::{Child, Stdio};

use crate::support::{Files, Outcome, Server, farflash, refused, run, succeed};
use serde_json::Value;

const CEILING: &str = "reads-per-second=40000,writes-per-second=20000,latency-target=2ms";

fn device(server: &Server, arguments: &[&str]) -> Outcome {
    run(&[&["device"], arguments, &["--api", &server.api]].concat())
}

fn device_json(server: &Server, arguments: &[&str]) -> Value {
    let outcome = device(server, &[arguments, &["--json"]].concat());
    assert_eq!(outcome.code, Some(0), "{arguments:?}: {outcome:?}");
    serde_json::from_str(&outcome.stdout).unwrap()
}

#[test]
fn promises_are_made_kept_and_refused() {
    let files = Files::new();
    let device_text = files.device("flash");
    let spec = format!("{device_text},size=256MiB,{CEILING},policy=sts");
    let server = Server::start_with(&spec, &["--format-if-blank", "--create"]);
    let rate = ["--reads-per-second", "30000", "--writes-per-second", "5000"];
    let made = server.volume_json(&[&["create", "a", "--size", "1GiB"], &rate[..]].concat());
    assert_eq!(made["slo"]["rate"]["reads_per_second"], 30_000);
    let api = ["--api", &server.api];
    let refusal = |arguments: &[&str], code: i32, what: &str, remedy: &str| {
        refused(&[arguments, &api].concat(), code, what, remedy);
    };
    let more = ["volume", "create", "b", "--size", "1GiB", "--reads-per-second", "10001"];
    refusal(&more, 1, "10000 reads a second left to promise", "ask for less");
    assert_eq!(server.volume_json(&["list"])["volumes"].as_array().unwrap().len(), 1);
    server.volume_json(&["create", "b", "--size", "1GiB", "--share", "50"]);
    let set = server.volume_json(&["set-slo", "b", "--writes-per-second", "15000"]);
    assert_eq!(set["slo"]["rate"]["writes_per_second"], 15_000);
    refusal(&["volume", "set-slo", "b"], 2, "not said", "--share");
    let lower = ["device", "set", "--writes-per-second", "19999"];
    refusal(&lower, 1, "19999", "ask for less");
    refusal(&["device", "set", "--policy", "best"], 1, "there is no policy", "--help");
    refusal(&["device", "set", "mem:7GiB", "--policy", "drr"], 1, "no device", &device_text);
    let listed = device_json(&server, &["list"]);
    let sharing = &listed["devices"][0]["sharing"];
    assert_eq!(
        (&sharing["policy"], &sharing["unpromised_writes_per_second"]),
        (&"sts".into(), &0.into())
    );
    assert!(server.volume(&["list"]).stdout.contains("0 r/s 15000 w/s"));

    // What is promised outlives the server, which may have become slower.
    drop(server);
    let server = Server::start(&format!("{device_text},reads-per-second=100,writes-per-second=50"));
    let listed = server.volume_json(&["list"]);
    assert_eq!(listed["volumes"][0]["slo"]["rate"]["reads_per_second"], 30_000);
    assert_eq!(listed["volumes"][1]["slo"]["rate"]["writes_per_second"], 15_000);
}

#[test]
fn without_a_ceiling_there_are_shares_and_no_rates() {
    let server = Server::start("mem:256MiB");
    let made = server.volume_json(&["create", "a", "--size", "1GiB", "--share", "7"]);
    assert_eq!(made["slo"]["share"], 7);
    let api = ["--api", &server.api];
    let rate = ["volume", "set-slo", "a", "--reads-per-second", "10"];
    refused(&[&rate[..], &api].concat(), 1, "has no ceiling", "farflash device set");
    device_json(&server, &["set", "--reads-per-second", "10", "--writes-per-second", "10"]);
    let set = server.volume_json(&["set-slo", "a", "--reads-per-second", "10"]);
    assert_eq!(set["slo"]["rate"]["reads_per_second"], 10);
    refused(&[&["device", "set", "--no-ceiling"], &api[..]].concat(), 1, "promised rates", "");
}

fn load(target: &str, seconds: &str) -> Child {
    let arguments = ["bench", "--target", target, "--rw", "randrw", "--seconds", seconds];
    let more = ["--qd", "32", "--range", "16MiB", "--overwrite", "--json", "--quiet"];
    let mut command = farflash(&[&arguments[..], &more].concat());
    crate::support::tokens::give(&mut command, target);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Every request of two hosts is answered while policy, ceiling and promises change.
#[test]
fn changes_under_load_lose_nothing() {
    let drive = format!("model:p3700,size=256MiB,scale=0.5,{CEILING}");
    let server = Server::start(&drive);
    let mut hosts = Vec::new();
    for name in ["a", "b"] {
        let made = server.volume_json(&["create", name, "--size", "64MiB"]);
        let nqn = made["nqn"].as_str().unwrap();
        hosts.push(load(&format!("tcp://{}/{nqn}", server.portals[0]), "3"));
    }
    for round in 0..4 {
        for change in [
            &["set", "--policy", "sts"][..],
            &["set", "--no-ceiling"],
            &["set", "--reads-per-second", "9000", "--writes-per-second", "4000"],
            &["set", "--policy", "fcfs"],
            &["set", "--policy", "drr", "--latency-target", "5ms"],
        ] {
            device_json(&server, change);
        }
        server.volume_json(&["set-slo", "a", "--share", &(round * 50 + 1).to_string()]);
    }
    for host in hosts {
        let outcome: Outcome = host.wait_with_output().unwrap().into();
        assert_eq!(outcome.code, Some(0), "{outcome:?}");
    }
    let document = serde_json::from_str::<Value>(&curl(&server, "/v1/stats")).unwrap();
    for volume in document["volumes"].as_array().unwrap() {
        assert!(volume["requests"].as_u64().unwrap() > 100, "{volume}");
        assert_eq!((&volume["queued"], &volume["in_flight"]), (&0.into(), &0.into()), "{volume}");
    }
}

fn stats(server: &Server) -> Value {
    serde_json::from_str(&curl(server, "/v1/stats")).unwrap()
}

/// Blocks read of each volume, by name, and when.
fn reads(server: &Server) -> (u64, Vec<(String, u64)>) {
    let document = stats(server);
    let volumes = document["volumes"].as_array().unwrap().iter();
    let of = |volume: &Value| {
        (volume["name"].as_str().unwrap().to_owned(), volume["read_blocks"].as_u64().unwrap())
    };
    (document["time_ns"].as_u64().unwrap(), volumes.map(of).collect())
}

/// Two cores with a volume each that take all they can get, and a third volume that comes, works and
/// goes meanwhile: all cores together keep to the ceiling, the promise of the first volume is kept,
/// and no request fails.
#[test]
fn cores_share_a_ceiling_and_keep_promises_while_volumes_come_and_go() {
    const CEILING: f64 = 3000.0;
    const PROMISE: f64 = 1200.0;
    /// Hosts that the machine has no time for cannot ask for what they were promised, and a server that
    /// it has no time for looks at its clock late.
    const ATTEMPTS: usize = 5;
    let Some(cores) = crate::support::cores(2) else {
        return eprintln!("this machine has one core: nothing to share between cores");
    };
    let [first, second] = [0, 1].map(|at| reactor::allowed_cpus()[at].to_string());
    let drive = "mem:256MiB,reads-per-second=3000,writes-per-second=1000,latency-target=10ms";
    let server = Server::start_with(drive, &["--cores", &cores]);
    let create = |name: &str, core: &str, more: &[&str]| {
        let made = ["create", name, "--size", "32MiB", "--core", core];
        let made = server.volume_json(&[&made, more].concat());
        let nqn = made["nqn"].as_str().unwrap().to_owned();
        let portal = server.portals[usize::from(core == second)];
        format!("tcp://{portal}/{nqn}")
    };
    let promise = ["--reads-per-second", "1200", "--writes-per-second", "100"];
    let kept = create("kept", &first, &promise);
    let greedy = create("greedy", &second, &[]);
    let mut seen = Vec::new();
    let is_kept = (0..ATTEMPTS).any(|attempt| {
        let old = reads(&server).1;
        let reads_now = |name: &str| blocks_of(&reads(&server).1, name) - blocks_of(&old, name);
        let busy = |name: &str| crate::support::until(name, || reads_now(name) > 100);
        let hosts = [random_reads(&kept, "12"), random_reads(&greedy, "12")];
        busy("kept");
        busy("greedy");
        let (from, before) = reads(&server);
        let guest = create("guest", &second, &[]);
        let guest = random_reads(&guest, "2");
        busy("guest");
        assert!(guest.wait_with_output().unwrap().status.success());
        server.volume_json(&["set-slo", "greedy", "--share", &(attempt + 7).to_string()]);
        let (until, after) = reads(&server);
        assert_eq!(server.volume(&["delete", "--lose-data", "guest"]).code, Some(0));
        for host in hosts {
            let outcome: Outcome = host.wait_with_output().unwrap().into();
            assert_eq!(outcome.code, Some(0), "{outcome:?}");
        }
        let seconds = (until - from) as f64 / 1e9;
        let rate = |name| (blocks_of(&after, name) - blocks_of(&before, name)) as f64 / seconds;
        let (kept, all) = (rate("kept"), rate("kept") + rate("greedy") + rate("guest"));
        seen.push((kept, all));
        // Volumes keep unused quota for a moment.
        kept >= 0.97 * PROMISE && all <= 1.05 * CEILING
    });
    assert!(is_kept, "{seen:.0?} reads/s, of {PROMISE} and of {CEILING}");
}

/// Method: a modelled drive is measured, and what is proposed is served: as a drive of its own, with the
/// ceiling that was proposed. How fast it is, is not looked at.
#[test]
fn a_measured_drive_is_proposed_and_can_be_served() {
    let files = Files::new();
    let (fit, out) = (files.path("mine.toml"), files.path("curves"));
    let (fit, out) = (fit.to_str().unwrap(), out.to_str().unwrap());
    let measure = ["calibrate", "model:p3700,scale=0.02", "--range", "16MiB", "--fit", fit];
    let short = ["--seconds", "0.3", "--latency-target", "10s", "--json", "--out", out];
    let printed = succeed(&[&measure[..], &["--depths", "1,32"], &short].concat());
    let document: Value = serde_json::from_str(&printed).unwrap();
    let points = |share: usize| document["curves"][share]["points"].as_array().unwrap().len();
    assert_eq!([0, 1, 2].map(points), [2; 3], "{document}");
    let rate = |name: &str| document["proposal"][name].as_u64().unwrap().to_string();
    let (reads, writes) = (rate("reads_per_second"), rate("writes_per_second"));
    for file in ["calibration.csv", "calibration.svg"] {
        assert!(files.path("curves").join(file).exists(), "{file}");
    }

    let drive = format!("model:{fit},size=64MiB,reads-per-second={reads}");
    let drive = format!("{drive},writes-per-second={writes},latency-target=10ms");
    let server = Server::start_with(&drive, &[]);
    let made = server.volume_json(&["create", "a", "--size", "32MiB"]);
    let target = format!("tcp://{}/{}", server.portals[0], made["nqn"].as_str().unwrap());
    // It still reads when it is looked at, however late.
    let host = random_reads(&target, "10");
    crate::support::until("it is read", || blocks_of(&self::reads(&server).1, "a") > 0);
    let top = run(&["top", "--once", "--json", "--interval", "0.2", "--api", &server.api]);
    let top: Value = serde_json::from_str(&top.stdout).unwrap();
    assert_eq!(top["volumes"][0]["promised_reads_per_second"].as_f64().unwrap().to_string(), reads);
    assert!(top["devices"][0]["reads_per_second"].as_f64().unwrap() > 0.0, "{top}");
    assert!(top["devices"][0]["windows"][0]["reads"]["window_blocks"].is_u64(), "{top}");
    let text = succeed(&["top", "--once", "--interval", "0.1", "--api", &server.api]);
    assert!(text.contains("PROMISED") && text.contains("blocks being read"), "{text}");
    assert!(host.wait_with_output().unwrap().status.success());
    // A device's sums do not forget volumes that are gone.
    let of_device = || stats(&server)["devices"][0]["flow"]["read_blocks"].as_u64().unwrap();
    let before = of_device();
    assert_eq!(server.volume(&["delete", "--lose-data", "a"]).code, Some(0));
    assert!(before > 0 && of_device() == before, "{before} {}", of_device());

    let alone = [&measure[..], &["--depths", "32"], &short].concat();
    refused(&alone, 2, "has the device to itself", "--depths");
    let writes = [&measure[..], &["--reads", "0"], &short].concat();
    refused(&writes, 2, "reads alone and writes alone", "--reads");
}

/// A host that reads as much as it gets.
fn random_reads(target: &str, seconds: &str) -> Child {
    let arguments = ["bench", "--target", target, "--rw", "randread", "--seconds", seconds];
    let more = ["--qd", "32", "--range", "16MiB", "--json", "--quiet"];
    let mut command = farflash(&[&arguments[..], &more].concat());
    crate::support::tokens::give(&mut command, target);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Number of blocks read of a volume, in such a list. One that is not there was not read.
fn blocks_of(all: &[(String, u64)], name: &str) -> u64 {
    all.iter().find(|(other, _)| other == name).map_or(0, |(_, blocks)| *blocks)
}

/// The body of an answer.
fn curl(server: &Server, path: &str) -> String {
    use std::io::{Read, Write};
    let address = server.api.strip_prefix("http://").unwrap();
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer.split_once("\r\n\r\n").unwrap().1.to_owned()
}
