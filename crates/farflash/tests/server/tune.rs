//! `farflash tune` on a tree of files that stands for a machine.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::support::{Files, refused, run, succeed};

const PAGES: &str = "sys/kernel/mm/transparent_hugepage/enabled";
const SCHEDULER: &str = "sys/block/nvme0n1/queue/scheduler";
const MTU: &str = "sys/class/net/eth0/mtu";
const MACHINE: [(&str, &str); 7] = [
    ("sys/devices/system/cpu/online", "0-3\n"),
    ("sys/block/nvme0n1/queue/rotational", "0\n"),
    (SCHEDULER, "[mq-deadline] kyber none\n"),
    (PAGES, "always madvise [never]\n"),
    ("sys/class/net/eth0/device/numa_node", "0\n"),
    (MTU, "1500\n"),
    ("proc/cmdline", "quiet\n"),
];

fn all(tree: &Path) -> Vec<String> {
    MACHINE.iter().map(|(path, _)| fs::read_to_string(tree.join(path)).unwrap()).collect()
}

fn arguments<'a>(what: &[&'a str], root: &'a str) -> Vec<&'a str> {
    [&["tune"], what, &["--root", root]].concat()
}

/// Method: plan, apply, apply again, change a value by hand, verify, undo; all files but the record are compared.
#[test]
fn a_plan_is_applied_verified_and_taken_back_byte_for_byte() {
    let files = Files::new();
    let tree = files.path("tree");
    for (path, content) in MACHINE {
        fs::create_dir_all(tree.join(path).parent().unwrap()).unwrap();
        fs::write(tree.join(path), content).unwrap();
    }
    let before = all(&tree);
    let tune = |what: &[&'static str]| arguments(what, tree.to_str().unwrap());

    let plan = succeed(&tune(&["plan", "--json", "--path-mtu", "9000"]));
    let plan: Vec<Value> = serde_json::from_str(&plan).unwrap();
    assert!(plan.iter().any(|one| one["setting"] == "block-scheduler" && one["then"] == "none"));
    let diff = succeed(&tune(&["plan", "--diff", "--only", "block-scheduler"]));
    assert!(diff.contains("-mq-deadline\n+none\n"), "{diff}");
    assert_eq!(all(&tree), before, "plan writes nothing");

    let applied = succeed(&tune(&["apply", "--path-mtu", "9000"]));
    assert!(applied.contains("may cut the network off"), "{applied}");
    assert_eq!(fs::read_to_string(tree.join(SCHEDULER)).unwrap(), "none\n");
    assert_eq!(fs::read_to_string(tree.join(MTU)).unwrap(), "1500\n");
    assert!(succeed(&tune(&["apply"])).ends_with("Changed: 0 values.\n"));
    succeed(&tune(&["verify"]));
    fs::write(tree.join(SCHEDULER), "[kyber] none\n").unwrap();
    refused(&tune(&["verify"]), 1, "1 value changed since apply", "tune apply");
    succeed(&tune(&["verify", "--skip", "block-scheduler"]));

    succeed(&tune(&["undo"]));
    assert_eq!(all(&tree), before);
    assert!(!tree.join("var/lib/farflash/tune.jsonl").exists());
}

#[test]
fn mistakes_are_told_by_the_flag() {
    refused(
        &["tune", "plan", "--only", "turbo"],
        2,
        "--only: there is no setting `turbo`",
        "explain",
    );
    refused(
        &["tune", "plan", "--drives", "nvme99n9"],
        2,
        "--drives: there is no drive",
        "this host",
    );
    refused(
        &["tune", "plan", "--cores", "8191"],
        2,
        "--cores: CPUs 8191 are not online",
        "these are",
    );
    refused(&["tune", "plan", "--root", "/absent"], 2, "/absent is no directory", "--root");
    refused(&["tune", "explain", "turbo"], 2, "there is no setting `turbo`", "lists all");
    assert!(run(&["tune", "explain", "irq-drives"]).stdout.contains("why:"));
}
