//! `farflash reproduce --real-time`: that it runs through a real server or on the real machine, and the gross shape.

use std::path::Path;

use crate::attach::can_attach;
use crate::support::skipped::skipped;
use crate::support::{Files, refused, run, succeed};
use serde_json::Value;

/// Method: a very short run on a very slow drive. Timing is not looked at: only that under FCFS the
/// burst gets more than its neighbours, that everyone gets something under every policy, and that
/// three curves and their findings come out.
#[test]
fn figure_13_runs_through_real_connections() {
    let files = Files::new();
    let out = files.path("figures");
    let flags = ["reproduce", "decibel-13", "--real-time", "--time", "0.01", "--scale", "0.01"];
    let printed = succeed(&[&flags[..], &["--json", "--out", out.to_str().unwrap()]].concat());
    let document: Value = serde_json::from_str(&printed).unwrap();
    assert_eq!((&document["real_time"], &document["time"]), (&true.into(), &0.01.into()));
    assert_eq!(document["findings"].as_array().unwrap().len(), 3);
    let csv = std::fs::read_to_string(out.join("decibel-13.csv")).unwrap();
    let rows: Vec<Vec<&str>> = csv.lines().skip(1).map(|row| row.split(',').collect()).collect();
    assert_eq!(rows.len(), 3 * 60);
    let data = document["data"].as_array().unwrap();
    assert_eq!(data.len(), rows.len());
    assert!(data[0]["policy"].is_string() && data[0].as_object().unwrap().len() == rows[0].len());
    let sum = |policy: &str, points: std::ops::Range<usize>, client: usize| -> f64 {
        let of_policy = rows.iter().filter(|row| row[0] == policy);
        let points = of_policy.skip(points.start).take(points.len());
        points.map(|row| row[2 + client].parse::<f64>().unwrap()).sum()
    };
    for policy in ["fcfs", "sts", "drr"] {
        assert!((0..3).all(|client| sum(policy, 0..60, client) > 0.0), "{policy}");
    }
    assert!(sum("fcfs", 20..40, 1) > 1.2 * sum("fcfs", 20..40, 0), "{csv}");
    assert!(out.join("decibel-13.svg").exists());
    refused(&["reproduce", "decibel-7", "--real-time"], 2, "no form in real time", "decibel-13");
}

/// Method: very short runs beside tasks that take all CPUs. Latencies are not compared: only that each step that this
/// machine has gives figures, that missing ones are named, and that no file, task or cpuset stays.
#[test]
fn the_array_is_reproduced_on_this_machine_and_nothing_stays() {
    let files = Files::new();
    let out = files.path("figures");
    let flags = ["reproduce", "afa-12", "--real-time", "--time", "0.005"];
    let printed = succeed(&[&flags[..], &["--json", "--out", out.to_str().unwrap()]].concat());
    let document: Value = serde_json::from_str(&printed).unwrap();
    let data = document["data"].as_array().unwrap();
    assert_eq!(data[0]["step"], "default");
    assert!(data[0]["mean µs"].as_f64().unwrap() > 0.0, "{printed}");
    let findings = document["findings"].as_array().unwrap();
    assert!(findings.iter().any(|finding| finding["what"] == "irq on this machine"), "{printed}");
    assert_eq!(
        data.len()
            + findings
                .iter()
                .filter(|finding| { finding["here"].as_str().unwrap().starts_with("not measured") })
                .count(),
        4,
        "every step is measured or missing: {printed}"
    );
    let mut left: Vec<_> =
        std::fs::read_dir(&out).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["afa-12.csv", "afa-12.json", "afa-12.svg"]);
    refused(&["reproduce", "afa-6", "--real-time"], 2, "no form in real time", "afa-12");
}

/// Method: very short runs, with another file beside. Latencies are not compared: only that all ways are measured in each round, and
/// that no mount, loop device or file stays.
#[test]
fn datastores_are_measured_on_local_and_remote_flash_and_nothing_stays() {
    let datastore = Path::new(env!("CARGO_BIN_EXE_farflash")).with_file_name("farflash-datastore");
    if !datastore.is_file() {
        return skipped("farflash-datastore is not built: `make datastore-test` builds it");
    }
    if !can_attach() {
        return;
    }
    let files = Files::new();
    let out = files.path("figures");
    let shown = out.to_str().unwrap();
    let beside = files.path("beside");
    std::fs::File::create(&beside).unwrap().set_len(2 << 30).unwrap();
    let flags = ["reproduce", "eurosys-4a", "--real-time", "--time", "0.002", "--json", "--out"];
    let flags = [&flags[..], &[shown, "--beside", beside.to_str().unwrap()]].concat();
    let undecided = run(&flags);
    assert_eq!(undecided.code, Some(2), "{undecided:?}");
    assert!(undecided.stderr.contains("  --destroy-data"), "{undecided:?}");
    let printed = succeed(&[&flags[..], &["--destroy-data"]].concat());
    let document: Value = serde_json::from_str(&printed).unwrap();
    let data = document["data"].as_array().unwrap();
    assert_eq!(data.len(), 5 * 3 * 4, "rounds, ways and percentiles: {printed}");
    assert!(data.iter().all(|row| row["latency µs"].as_f64().unwrap() > 0.0), "{printed}");
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    assert!(!mounts.contains(shown), "{mounts}");
    let left = std::fs::read_dir(&out).unwrap();
    let mut left: Vec<String> =
        left.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    left.sort();
    let names = |figure: &str| ["csv", "json", "svg"].map(|kind| format!("{figure}.{kind}"));
    assert_eq!(left, [names("eurosys-4a-at-scale"), names("eurosys-4a")].concat());
    // What was measured is what the figure at the paper's scale is made with.
    let at_scale = &document["at_scale"];
    let costs = at_scale["costs"].as_object().unwrap();
    assert!(costs.values().all(|cost| cost.as_f64().unwrap() > 0.0), "{printed}");
    assert_ne!((&costs["get_ns"], &costs["target_ns"]), (&120_000.into(), &3_400.into()));
    assert!(at_scale["findings"].as_array().unwrap().len() > 1, "{printed}");
}

/// A drive or file is overwritten only if that was asked for, nothing else uses it, and a datastore has room on it.
#[test]
fn a_datastore_beside_the_others_is_refused_where_it_does_not_fit() {
    let files = Files::new();
    let (small, missing) = (files.path("small"), files.path("missing"));
    std::fs::File::create(&small).unwrap().set_len(1 << 30).unwrap();
    let out = files.path("figures");
    let flags = ["reproduce", "eurosys-4a", "--real-time", "--out", out.to_str().unwrap()];
    let beside =
        |path: &str| [&flags[..], &["--beside", path, "--destroy-data"]].concat().join("\n");
    let refused = |flags: &str, what: &str, remedy: &str| {
        refused(&flags.split('\n').collect::<Vec<_>>(), 2, what, remedy);
    };
    refused(&beside(small.to_str().unwrap()), "is smaller than 2 GiB", "--beside a file of 2 GiB");
    refused(&beside(missing.to_str().unwrap()), "cannot be opened", "--beside a file of 2 GiB");
    refused(&beside("/dev/null"), "neither a drive nor a file", "--beside a file of 2 GiB");
    let other = ["reproduce", "eurosys-5", "--real-time", "--beside", "x", "--destroy-data"];
    refused(
        &other.join("\n"),
        "eurosys-5 is not measured on another way",
        "eurosys-4a and eurosys-4b",
    );
}
