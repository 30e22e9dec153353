//! `farflash profile` on files: figures, refusals, saved results.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::support::{Files, Server, refused, run, succeed};

/// A file with data in all of its blocks.
fn drive(files: &Files, name: &str) -> PathBuf {
    let path = files.path(name);
    fs::write(&path, vec![7; 1 << 20]).unwrap();
    path
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Method: two files are read twice, without tracing; both results are merged, and compared with each other.
#[test]
fn two_drives_are_profiled_saved_merged_and_compared() {
    let files = Files::new();
    let (one, two) = (drive(&files, "one"), drive(&files, "two"));
    let before = fs::read(&one).unwrap();
    let (first, second, both) = (files.path("first"), files.path("second"), files.path("both"));
    let plot = files.path("plot.svg");
    let measure = |out: &Path| {
        let arguments = [
            "--requests",
            "2000",
            "--warm-up",
            "0.05",
            "--no-causes",
            "--json",
            "--out",
            text(out),
        ];
        let more = ["--plot", text(&plot), "--size", "512KiB"];
        let printed =
            succeed(&[&["profile", text(&one), text(&two)], &arguments[..], &more].concat());
        serde_json::from_str::<Value>(&printed).unwrap()
    };
    let printed = measure(&first);
    let drives = printed["drives"].as_array().unwrap();
    assert_eq!(drives.len(), 2);
    for drive in drives {
        let figures = &drive["figures"];
        assert_eq!((drive["requests"].as_u64(), drive["errors"].as_u64()), (Some(2000), Some(0)));
        assert_eq!(drive["bytes"], 512 << 10);
        let [mean, two_nines, max] =
            ["mean_ns", "p99_ns", "max_ns"].map(|name| figures[name].as_f64().unwrap());
        assert!(mean > 0.0 && mean <= max && two_nines <= max, "{figures}");
        assert!(figures["p99_9_ns"].is_null(), "2000 requests do not carry it: {figures}");
        assert_eq!(drive["missing_requests"]["p99_9_ns"], 8000);
    }
    assert!(printed["runs"][0]["overhead_ns"].as_f64().unwrap() > 0.0);
    assert_eq!(printed["over_drives"]["mean_ns"]["drives"], 2);
    assert!(fs::read_to_string(&plot).unwrap().contains("<svg"));
    assert_eq!(fs::read(&one).unwrap(), before);

    measure(&second);
    let merge = ["profile", "merge", text(&first), text(&second), "--out", text(&both)];
    let merged = succeed(&merge);
    assert!(merged.contains(" 4000 ") && merged.contains("standard deviation"), "{merged}");
    let compared = succeed(&["profile", "compare", text(&first), text(&both), "--json"]);
    let compared: Value = serde_json::from_str(&compared).unwrap();
    assert_eq!(compared["basis"], "drives");
    assert_eq!(compared["changes"][0]["figure"], "mean");
    assert_eq!(compared["changes"][5]["verdict"], "unknown");
    let same = succeed(&["profile", "compare", text(&both), text(&both)]);
    assert!(same.contains("no change beyond the spread"), "{same}");
    refused(&["profile", "merge", text(&first), text(&both)], 2, "is given twice", "each run once");
}

#[test]
fn what_cannot_be_profiled_is_refused_with_the_way_out() {
    let files = Files::new();
    let one = drive(&files, "one");
    let path = text(&one);
    let refuse = |arguments: &[&str], what: &str, remedy: &str| {
        refused(&[&["profile"], arguments].concat(), 2, what, remedy);
    };
    refuse(&["/dev/null"], "neither a block device nor a file", "/dev/nvme0n1");
    refuse(&[text(&files.path("absent"))], "cannot be opened", "may read");
    refuse(&[path, path], "is named twice", "once");
    refuse(&[path, "--size", "1GiB"], "has 1048576 bytes", "smaller --size");
    refuse(&[path, "--cpus", "255"], "cannot run on CPU 255", "can be used");
    refuse(&[path, "--slower-than", "soon"], "soon", "--slower-than");
    refuse(&[path, "--out", path], "is a drive", "another file");
    refuse(&[path, "--plot", path], "is a drive", "another file");
    assert_eq!(fs::read(&one).unwrap(), vec![7; 1 << 20]);
    refuse(&[path, "--seconds", "0"], "no time to measure", "--seconds 10");
    refuse(&["compare", path, path], "no saved profile", "--out");
    let many: Vec<String> = (0..65).map(|n| format!("/dev/absent{n}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    refuse(&many, "65 drives are named, 64 at most", "merge");
}

/// A saved result that is another one's, or newer, is named as such.
#[test]
fn a_file_that_is_no_result_is_refused() {
    let files = Files::new();
    let path = files.path("saved");
    for (content, what) in [
        ("{}", "no saved profile"),
        (r#"{"version":99}"#, "has version 99"),
        ("", "no saved profile"),
    ] {
        fs::write(&path, content).unwrap();
        refused(&["profile", "compare", text(&path), text(&path)], 2, what, "of this version");
    }
}

/// The figures come with and without a tracer, and the report says which it was.
#[test]
fn figures_come_with_causes_or_with_the_reason_why_not() {
    let files = Files::new();
    let one = drive(&files, "one");
    let arguments = ["--requests", "3000", "--warm-up", "0.1", "--slower-than", "1us"];
    let printed = run(&[&["profile", text(&one)], &arguments[..]].concat());
    assert_eq!(printed.code, Some(0), "{printed:?}");
    let is_told = printed.stdout.contains("cause of slow requests")
        || printed.stdout.contains("no causes were looked for");
    assert!(is_told, "{}", printed.stdout);
    assert!(printed.stdout.contains("-: 99.9 % needs 10000 requests"), "{}", printed.stdout);
}

/// Data is overwritten only with both flags, and a drive's blocks are other ones then.
#[test]
fn preconditioning_writes_only_if_it_is_told_to() {
    let files = Files::new();
    let one = drive(&files, "one");
    let before = fs::read(&one).unwrap();
    let measure = ["profile", text(&one), "--requests", "500", "--warm-up", "0", "--no-causes"];
    for flag in ["--precondition", "--destroy-data"] {
        let outcome = run(&[&measure[..], &[flag]].concat());
        assert_eq!(outcome.code, Some(2), "{flag}: {outcome:?}");
        assert!(outcome.stderr.contains("required"), "{flag}: {outcome:?}");
    }
    succeed(&measure);
    assert_eq!(fs::read(&one).unwrap(), before, "nothing was written");
    let both =
        ["--precondition", "--destroy-data", "--round", "0.02", "--json", "--size", "512KiB"];
    let printed: Value = serde_json::from_str(&succeed(&[&measure[..], &both].concat())).unwrap();
    let notes = printed["runs"][0]["notes"].to_string();
    assert!(notes.contains("overwritten"), "{printed}");
    let after = fs::read(&one).unwrap();
    let (part, rest) = after.split_at(512 << 10);
    let is_other = |(new, old): (&[u8], &[u8])| new != old;
    assert!(part.chunks(4096).zip(before.chunks(4096)).all(is_other), "each block was written");
    assert!(rest == &before[512 << 10..], "what lies behind --size was not");
}

/// Method: the settings are applied to a tree of files that stands for the machine. Both measurements and the change in
/// between are shown; undo gives the old value back.
#[test]
fn drives_are_measured_before_and_after_settings() {
    let files = Files::new();
    let one = drive(&files, "one");
    let root = files.path("root");
    let tuned = "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor";
    for (path, content) in [
        (tuned, "powersave\n"),
        (
            "sys/devices/system/cpu/cpu0/cpufreq/scaling_available_governors",
            "performance powersave\n",
        ),
        ("sys/devices/system/cpu/online", "0\n"),
    ] {
        fs::create_dir_all(root.join(path).parent().unwrap()).unwrap();
        fs::write(root.join(path), content).unwrap();
    }
    let (out, record) = (files.path("result"), files.path("record.jsonl"));
    let measure = ["profile", text(&one), "--requests", "500", "--warm-up", "0", "--no-causes"];
    let place = ["--root", text(&root), "--record", text(&record), "--out", text(&out), "--json"];
    let printed = succeed(&[&measure[..], &["--tuned=cpu-governor"], &place].concat());
    let printed: Value = serde_json::from_str(&printed).unwrap();
    for side in ["before", "after"] {
        assert_eq!(printed[side]["drives"][0]["requests"], 500, "{printed}");
    }
    assert_eq!(printed["settings"][0]["outcome"], "changed", "{printed}");
    assert_eq!(printed["comparison"]["basis"], "sample");
    assert_eq!(fs::read_to_string(root.join(tuned)).unwrap(), "performance\n");
    let saved = files.path("result.before");
    succeed(&["profile", "compare", text(&saved), text(&out)]);
    let undo = ["tune", "undo", "--root", text(&root), "--record", text(&record)];
    succeed(&undo);
    assert_eq!(fs::read_to_string(root.join(tuned)).unwrap(), "powersave\n");
    refused(&[&measure[..], &["--tuned=no-such"]].concat(), 2, "no setting `no-such`", "explain");
    // Without causes there is no proposal, and nothing is changed.
    let printed = succeed(&[&measure[..], &["--tuned"], &place].concat());
    assert!(serde_json::from_str::<Value>(&printed).unwrap()["drives"].is_array(), "{printed}");
    assert!(!record.exists() || fs::read(&record).unwrap().is_empty());
}

/// Method: a volume is read through a real server, with its requests counted there, and two modelled drives that take so long
/// that their times show.
#[test]
fn volumes_and_modelled_drives_are_profiled_like_drives() {
    let server = Server::start_with("mem:256MiB", &["--auth", "off"]);
    let made = server.volume_json(&["create", "a", "--size", "16MiB"]);
    let nqn = made["nqn"].as_str().unwrap();
    let volume = format!("tcp://{}/{nqn}", server.portals[0]);
    let measure = |drives: &[&str], requests: &str| -> Value {
        let options = ["--requests", requests, "--warm-up", "0", "--no-causes", "--json"];
        serde_json::from_str(&succeed(&[&["profile"], drives, &options].concat())).unwrap()
    };
    let printed = measure(&[&volume, "--size", "8MiB"], "1500");
    let drive = &printed["drives"][0];
    assert_eq!((&drive["requests"], &drive["bytes"]), (&1500.into(), &(8 << 20).into()));
    assert_eq!(drive["errors"], 0);

    let slow = ["model:m2-960,scale=0.01", "model:m2-960,scale=0.01,seed=2"];
    let printed = measure(&slow, "50");
    for drive in printed["drives"].as_array().unwrap() {
        let mean = drive["figures"]["mean_ns"].as_f64().unwrap();
        assert!((1e6..1e9).contains(&mean), "a hundredth of 25 µs: {mean}");
    }
    let refuse = |arguments: &[&str], what: &str, remedy: &str| {
        refused(&[&["profile"], arguments].concat(), 2, what, remedy);
    };
    refuse(&[&volume, "--size", "1GiB"], "not the part", "smaller --size");
    refuse(&["tcp://127.0.0.1/x"], "tcp://", "farflash volume show");
    refuse(&["model:none"], "m2-960", "name one of these");
    let both = ["--precondition", "--destroy-data"];
    refuse(&[&[&*volume], &both[..]].concat(), "no drive of this host", "block devices");
}
