//! An operator's view of a real server: metrics, the dashboard made of them, and its health.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::TcpStream;

use crate::etcd::EtcdProcesses;
use crate::support::users::{self, User};
use crate::support::{Files, Server, cluster, farflash, run, succeed, until};
use serde_json::Value;

pub(crate) fn metrics(server: &Server) -> String {
    metrics_for(server, "")
}

/// Returns the metrics for the caller with this token; without one, for an unauthenticated caller.
fn metrics_for(server: &Server, token: &str) -> String {
    let address = server.api.strip_prefix("http://").unwrap();
    let mut stream = TcpStream::connect(address).unwrap();
    let caller = match token {
        "" => String::new(),
        token => format!("authorization: Bearer {token}\r\n"),
    };
    let request =
        format!("GET /metrics HTTP/1.1\r\nhost: {address}\r\n{caller}connection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    answer
}

/// The value of the only sample that begins so.
#[track_caller]
fn value(metrics: &str, series: &str) -> f64 {
    let mut found = metrics.lines().filter(|line| line.starts_with(series));
    let line = found.next().unwrap_or_else(|| panic!("no {series} in {metrics}"));
    assert!(found.next().is_none(), "{series} twice");
    line.rsplit_once(' ').unwrap().1.parse().unwrap()
}

/// Flushing of writes to a device follows the operator's option, and is shown wherever devices are.
///
/// Method: serve two files, of which one is said to need no flushes, and ask the API, the command and the metrics.
#[test]
fn a_device_that_is_said_to_need_no_flush_is_shown_so() {
    let files = Files::new();
    let [told, found] = ["told", "found"].map(|name| files.device(name));
    for device in [&told, &found] {
        succeed(&["format", "--device", &format!("{device},size=256MiB")]);
    }
    let never = format!("{told},flush=never");
    let server = Server::start_with(&never, &["--device", &found]);
    let shown = control::ApiClient::new(&server.api).unwrap().server().unwrap().devices;
    let of = |name: &str| shown.iter().find(|device| device.name == name).unwrap();
    assert!(!of(&told).volatile_write_cache && of(&found).volatile_write_cache, "{shown:?}");

    let list = succeed(&["device", "list", "--api", &server.api]);
    let head = list.lines().next().unwrap();
    let at = head.find("WRITE CACHE").unwrap();
    let cell = |name: &str| {
        let is_meant = |line: &&str| line.split_whitespace().next() == Some(name);
        let line = list.lines().find(is_meant).unwrap();
        line[at..].split_whitespace().next().unwrap().to_owned()
    };
    assert_eq!([cell(&told), cell(&found)], ["none", "flushed"], "{list}");

    let metrics = metrics(&server);
    let of = |name: &str| {
        let series = format!("farflash_device_volatile_write_cache{{device=\"{name}\"");
        value(&metrics, &series)
    };
    assert_eq!([of(&told), of(&found)], [0.0, 1.0]);
}

/// Drives a volume, and is refused another time.
fn driven() -> Server {
    let server = Server::start_with("mem:256MiB", &["--auth", "on"]);
    let volume = server.volume_json(&["create", "seen", "--size", "64MiB"]);
    let text = |field: &str| volume[field].as_str().unwrap().to_owned();
    let target = format!("tcp://{}/{}", text("address"), text("nqn"));
    let drive = |token: &str, rw: &str| {
        let mut load = farflash(&["bench", "--target", &target, "--overwrite", "--rw", rw]);
        load.args(["--bs", "4KiB", "--qd", "8", "--bytes", "4MiB"]);
        load.env_remove("FARFLASH_CONTROLLER_TOKEN").env("FARFLASH_TOKEN", token);
        load.output().unwrap().status.success()
    };
    assert!(drive(&text("token"), "randwrite"));
    assert!(drive(&text("token"), "randread"));
    let other = server.volume_json(&["create", "other", "--size", "64MiB"]);
    assert!(!drive(other["token"].as_str().unwrap(), "randread"));
    // Without a token.
    assert!(!drive("", "randread"));
    server
}

#[test]
fn metrics_count_what_was_done() {
    let server = driven();
    let metrics = metrics(&server);
    let requests = value(&metrics, "farflash_volume_requests_total{volume=\"seen\"");
    let count = |direction: &str| {
        let line = metrics.lines().find(|line| {
            line.starts_with("farflash_volume_latency_seconds_count{volume=\"seen\"")
                && line.contains(direction)
        });
        line.unwrap().rsplit_once(' ').unwrap().1.parse::<f64>().unwrap()
    };
    assert_eq!(count("\"write\""), 1024.0);
    assert!(count("\"read\"") >= 1024.0);
    assert_eq!(count("\"read\"") + count("\"write\""), requests);
    assert!(!metrics.contains("farflash_volume_latency_seconds_count{volume=\"other\""));
    assert_eq!(value(&metrics, "farflash_core_authentication_failures_total"), 1.0);
    let unfinished = "farflash_core_authentications_unfinished_total";
    until("the end of a connection", || value(&self::metrics(&server), unfinished) == 1.0);
    let left = "the host went without having authenticated";
    server.log_until(|line| line["reason"] == left);
    assert_eq!(value(&metrics, "farflash_device_media_errors_total"), 0.0);
    // What the device's volumes did, its core did.
    let of_device = |name: &str| value(&metrics, &format!("farflash_device_{name}"));
    let of_volume =
        |name: &str| value(&metrics, &format!("farflash_volume_{name}{{volume=\"seen\""));
    for name in ["requests_total", "read_bytes_total", "written_bytes_total"] {
        assert!(of_device(name) > 0.0, "{name}");
        assert_eq!(of_device(name), of_volume(name), "{name}");
    }
    assert_eq!(
        of_device("latency_seconds_count{device=\"mem:256MiB\",core=\"0\",direction=\"write\"}"),
        1024.0
    );
    assert_eq!(value(&metrics, "farflash_map_evictions_total"), 0.0);
    assert_eq!(value(&metrics, "farflash_map_loads_total"), 0.0);
    assert_eq!(value(&metrics, "farflash_map_hits_total"), requests, "one look-up for each");
    let unwell = "farflash_device_errors_total{device=\"mem:256MiB\",core=\"0\",status=";
    assert_eq!(value(&metrics, &format!("{unwell}\"Capacity Exceeded\"}}")), 0.0);
    assert_eq!(of_volume("errors_total"), 0.0);
    assert_eq!(value(&metrics, "farflash_volume_media_errors_total{volume=\"seen\""), 0.0);
    assert_eq!(value(&metrics, "farflash_device_away"), 0.0);
    assert_eq!(value(&metrics, "farflash_api_authentication_failures_total"), 0.0);
    assert_eq!(value(&metrics, "farflash_api_put_off_total"), 0.0);
    let max = value(&metrics, "farflash_core_connections_max");
    assert!(max >= value(&metrics, "farflash_core_connections_let_in") && max > 0.0);
    assert_eq!(value(&metrics, "farflash_volume_connections{volume=\"other\""), 0.0);
    let journal = value(&metrics, "farflash_device_journal_used_ratio");
    assert!(journal > 0.0 && journal < 1.0, "{journal}");
}

#[test]
fn metrics_tell_the_sizes_of_volumes_and_what_they_hold() {
    let server = driven();
    let metrics = metrics(&server);
    let of_volume = |name: &str, volume: &str| {
        value(&metrics, &format!("farflash_volume_{name}_bytes{{volume=\"{volume}\""))
    };
    let sizes = ["seen", "other"].map(|volume| of_volume("size", volume));
    assert_eq!(sizes[1], f64::from(64 << 20));
    let provisioned = "farflash_device_provisioned_bytes{device=\"mem:256MiB\"}";
    assert_eq!(value(&metrics, provisioned), sizes[0] + sizes[1]);
    assert!(of_volume("allocated", "seen") > 0.0);
    assert_eq!(of_volume("allocated", "other"), 0.0);
}

/// An error that a host is told by a status is counted by the status's name: for the device also when the
/// volume is gone.
#[test]
fn metrics_count_errors_by_what_hosts_were_told() {
    let server = Server::start_with("mem:64MiB", &["--auth", "off"]);
    let volume = server.volume_json(&["create", "thin", "--size", "256MiB"]);
    let text = |field: &str| volume[field].as_str().unwrap().to_owned();
    let target = format!("tcp://{}/{}", text("address"), text("nqn"));
    let mut load = farflash(&["bench", "--target", &target, "--overwrite", "--rw", "write"]);
    load.args(["--bs", "64KiB", "--qd", "1", "--bytes", "256MiB"]);
    assert!(!load.output().unwrap().status.success(), "more than the device has");
    let series = "farflash_device_errors_total{device=\"mem:64MiB\",core=\"0\",status=";
    let full = |metrics: &str| value(metrics, &format!("{series}\"Capacity Exceeded\"}}"));
    let before = metrics(&server);
    assert!(full(&before) >= 1.0, "{before}");
    assert_eq!(value(&before, "farflash_volume_errors_total{volume=\"thin\""), full(&before));
    assert_eq!(value(&before, "farflash_device_media_errors_total"), 0.0, "nothing is broken");
    server.volume_json(&["delete", "--lose-data", "thin"]);
    let after = metrics(&server);
    assert!(!after.contains("farflash_volume_errors_total{volume=\"thin\""));
    assert_eq!(full(&after), full(&before));
    let requests = |metrics: &str| value(metrics, "farflash_device_requests_total");
    assert_eq!(requests(&after), requests(&before));
    // No host is let into a volume that is not there.
    let mut load = farflash(&["bench", "--target", &target, "--rw", "read", "--bytes", "64KiB"]);
    assert!(!load.output().unwrap().status.success());
    let refused = "farflash_core_errors_total{core=\"0\",status=\"Attempted Write to Read Only Range, or Connect Invalid Parameters\"}";
    assert!(value(&metrics(&server), refused) >= 1.0);
}

/// Metrics that only a server has that is one of several, with tenants.
fn metrics_of_a_service() -> String {
    let (etcd, files) = (EtcdProcesses::start(1), Files::new());
    let (prometheus, acme) = (User::reader("prometheus"), User::tenant("acme"));
    let quota = "volumes = 1\nprovisioned = \"1GiB\"\nallocated = \"1GiB\"\nshare = 100";
    let users = users::list(&files, &[prometheus.entry(), acme.bounded(quota)]);
    let directory = cluster::url(etcd.address(0), "test-dashboard");
    let device = cluster::format(&files, "a");
    let server = cluster::host_with(&directory, "a", &device, &["--api-users", &users]);
    metrics_for(&server, &prometheus.token)
}

/// A panel of a metric that no server has would stay empty without a word.
#[test]
fn the_dashboard_asks_for_metrics_that_there_are() {
    let metrics = metrics(&driven()) + &metrics_of_a_service();
    let dashboard = include_str!("../../../../packaging/grafana-dashboard.json");
    serde_json::from_str::<Value>(dashboard).unwrap();
    let is_part = |c: char| c.is_ascii_lowercase() || c == '_';
    // Wherever they stand: in panels, and in the lists to choose from.
    let names = dashboard.match_indices("farflash_");
    let names = names.map(|(at, _)| dashboard[at..].split(|c| !is_part(c)).next().unwrap());
    let names: BTreeSet<&str> = names.collect();
    assert!(names.len() > 44, "{names:?}");
    for name in names {
        assert!(
            metrics.contains(&format!("\n{name}{{")) || metrics.contains(&format!("\n{name} ")),
            "{name}"
        );
    }
}

#[test]
fn status_says_that_all_is_well() {
    let server = Server::start_with("mem:256MiB", &["--auth", "off"]);
    // A head without a table says nothing.
    for (list, what, how) in [
        (&["volume", "list"][..], "there are no volumes", "volume create"),
        (&["quota"], "there are no tenants", "api-token"),
    ] {
        let told = run(&[list, &["--api", &server.api]].concat());
        assert!(told.code == Some(0), "{told:?}");
        assert!(told.stdout.contains(what) && told.stdout.contains(how), "{told:?}");
        let document = run(&[list, &["--json", "--api", &server.api]].concat());
        assert!(!document.stdout.contains(what), "{document:?}");
    }
    server.volume_json(&["create", "one", "--size", "64MiB"]);
    let outcome = run(&["status", "--api", &server.api]);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    for word in ["1 volume\n", "open to any host", "good", "mem:256MiB"] {
        assert!(outcome.stdout.contains(word), "{word}: {outcome:?}");
    }
    let unreachable = run(&["status", "--api", "http://127.0.0.1:1"]);
    assert_eq!(unreachable.code, Some(1), "{unreachable:?}");
}

/// The reason for which our library ends I/O queues.
const HOST_RESET: &str = "the host reset its controller";

/// The life of a connection is found in the log by its id, which no other has.
#[test]
fn a_connection_is_followed_through_the_log() {
    let server = Server::start_logging("info,nvme_frontend=debug", "mem:256MiB", &["--auth", "on"]);
    let volume = server.volume_json(&["create", "followed", "--size", "64MiB"]);
    let text = |field: &str| volume[field].as_str().unwrap().to_owned();
    let target = format!("tcp://{}/{}", text("address"), text("nqn"));
    for token in [text("token"), text("controller_token")] {
        let mut load = farflash(&["bench", "--target", &target, "--overwrite", "--rw", "randread"]);
        load.args(["--bs", "4KiB", "--qd", "1", "--bytes", "64KiB"]);
        load.env_remove("FARFLASH_CONTROLLER_TOKEN").env("FARFLASH_TOKEN", token);
        load.output().unwrap();
    }
    // Two that were let in, and one that was not.
    let mut lines = Vec::new();
    for _ in 0..3 {
        lines.extend(server.log_until(|line| line["message"] == "connection ended"));
    }
    let life = |id: &Value| -> Vec<&Value> {
        lines.iter().filter(|line| line["connection"] == *id).collect()
    };
    let messages =
        |id: &Value| life(id).iter().map(|line| line["message"].clone()).collect::<Vec<_>>();
    let accepted = lines.iter().filter(|line| line["message"] == "connection accepted");
    let ids: Vec<&Value> = accepted.map(|line| &line["connection"]).collect();
    let distinct: BTreeSet<&str> = ids.iter().map(|id| id.as_str().unwrap()).collect();
    assert_eq!((ids.len(), distinct.len()), (3, 3), "admin, I/O, refused: {lines:?}");
    let last = ids[2].clone();
    for id in &ids[..2] {
        assert_eq!(
            messages(id),
            ["connection accepted", "connected", "authenticated", "connection ended"]
        );
        let peers: BTreeSet<&str> =
            life(id).iter().map(|line| line["peer"].as_str().unwrap()).collect();
        assert_eq!(peers.len(), 1, "one connection: {lines:?}");
        let life = life(id);
        assert_eq!(life[1]["subsystem"], volume["nqn"]);
        assert_eq!((&life[1]["host"], &life[1]["qid"]), (&life[3]["host"], &life[3]["qid"]));
        let reason = if life[1]["qid"] == 0 { "the host closed it" } else { HOST_RESET };
        assert_eq!(life[3]["reason"], reason);
    }
    assert_eq!(
        messages(&last),
        ["connection accepted", "connected", "authentication failed", "connection ended"]
    );
    assert_eq!(life(&last)[3]["reason"], "authentication failed");
}

/// A log that is not read costs its lines, and nothing else.
#[test]
fn a_log_that_is_not_read_delays_no_request() {
    let server =
        Server::start_logging("info,nvme_frontend=debug", "mem:256MiB", &["--auth", "off"]);
    let volume = server.volume_json(&["create", "unheard", "--size", "64MiB"]);
    let text = |field: &str| volume[field].as_str().unwrap().to_owned();
    let target = format!("tcp://{}/{}", text("address"), text("nqn"));
    let left_out = || value(&metrics(&server), "farflash_log_lines_left_out_total");
    assert_eq!(left_out(), 0.0);
    let unheard = server.unheard();
    crate::support::until("lines are left out", || {
        for _ in 0..1000 {
            drop(TcpStream::connect(server.portals[0]).unwrap());
        }
        left_out() > 0.0
    });
    let load = ["bench", "--target", &target, "--overwrite", "--rw", "randwrite", "--bs", "4KiB"];
    let outcome = run(&[&load[..], &["--qd", "8", "--bytes", "1MiB"]].concat());
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    drop(unheard);
    server.log_until(|line| line["message"] == "connection ended");
    server.signal("TERM");
    assert_eq!(server.wait(), Some(0));
}

/// A host that connects again and again, and never authenticates, gets a few lines; the rest is counted.
#[test]
fn a_stranger_does_not_fill_the_log() {
    const TIMES: u64 = 300;
    let server = Server::start_with("mem:256MiB", &["--auth", "on"]);
    for _ in 0..TIMES {
        let mut stream = TcpStream::connect(server.portals[0]).unwrap();
        stream.set_read_timeout(Some(crate::support::PATIENCE)).unwrap();
        stream.write_all(&[0xA5; 128]).unwrap();
        let _ = stream.read_to_end(&mut Vec::new());
    }
    let (mut written, mut left_out) = (0, 0);
    while written + left_out < TIMES {
        let counts = |line: &Value| line["lines"].is_u64() || line["message"] == "connection ended";
        for line in server.log_until(counts) {
            if line["message"] == "connection ended" {
                let reason = "the host broke the protocol: PDU type 0xa5 does not exist";
                assert_eq!(line["reason"], reason);
                written += 1;
            }
            if let Some(lines) = line["lines"].as_u64() {
                assert_eq!(line["source"], "127.0.0.1", "{line}");
                left_out += lines;
            }
        }
    }
    assert_eq!(written + left_out, TIMES);
    assert!(left_out > 0 && written < TIMES / 2, "{written} lines, {left_out} left out");
}

/// The same for a client that asks the API without a token, however long the paths are.
#[test]
fn a_stranger_does_not_fill_the_log_by_asking_the_api() {
    const TIMES: u64 = 300;
    const LINE_BYTES_MAX: usize = 1024;
    let files = Files::new();
    let users = users::list(&files, &[User::operator("ops").entry()]);
    let server = Server::start_with("mem:256MiB", &["--api-users", &users]);
    let address = server.api.strip_prefix("http://").unwrap();
    let path = "x".repeat(10_000);
    for _ in 0..TIMES {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(crate::support::PATIENCE)).unwrap();
        let head = format!("GET /{path} HTTP/1.1\r\nhost: server\r\nconnection: close\r\n\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 401 "), "{answer}");
    }
    let (mut written, mut left_out) = (0, 0);
    while written + left_out < TIMES {
        let refused = |line: &Value| line["message"] == "API request without a known token";
        let counts = |line: &Value| line["lines"].is_u64() || refused(line);
        for line in server.log_until(counts) {
            written += u64::from(refused(&line));
            assert!(line.to_string().len() < LINE_BYTES_MAX, "{line}");
            if let Some(lines) = line["lines"].as_u64() {
                assert_eq!(line["source"], "127.0.0.1", "{line}");
                left_out += lines;
            }
        }
    }
    assert_eq!(written + left_out, TIMES);
    assert!(left_out > 0 && written < TIMES / 2, "{written} lines, {left_out} left out");
}
