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
    assert!(applied.contains("may cut the network off; apply it with --network"), "{applied}");
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

const UNIT: &str = "etc/systemd/system/farflash-tune.service";
const ENABLED: &str = "etc/systemd/system/multi-user.target.wants/farflash-tune.service";
const DROP_IN: &str = "etc/systemd/system/farflash.service.d/tune.conf";
const FRAGMENT: &str = "etc/default/grub.d/farflash.cfg";

/// Method: `--persist` on a tree without GRUB, then on one with; the unit's command is compared with the one given.
#[test]
fn what_lasts_over_a_reboot_is_written_and_removed() {
    let files = Files::new();
    let tree = files.path("tree");
    let put = |path: &str, content: &str| {
        fs::create_dir_all(tree.join(path).parent().unwrap()).unwrap();
        fs::write(tree.join(path), content).unwrap();
    };
    MACHINE.iter().for_each(|(path, content)| put(path, content));
    let tune = |what: &[&'static str]| arguments(what, tree.to_str().unwrap());
    let persist = |what| [what, "--persist", "--cores", "1-3", "--skip", "boot-rcu-nocbs"];

    let plan = succeed(&tune(&persist("plan")));
    assert!(
        plan.contains("add to the kernel's command line: isolcpus=1-3 nohz_full=1-3\n"),
        "{plan}"
    );
    put("etc/default/grub", "GRUB_DEFAULT=0\n");
    put("usr/sbin/update-grub", "");
    let plan = succeed(&tune(&persist("plan")));
    assert!(plan.contains("needs one, lasts"), "{plan}");
    let applied = succeed(&tune(&persist("apply")));
    assert!(applied.contains("boot-isolcpus host: 1-3 (after a reboot)"), "{applied}");
    let unit = fs::read_to_string(tree.join(UNIT)).unwrap();
    let command = "tune apply --role flash-server --cores 1-3 --skip boot-rcu-nocbs\n";
    assert!(unit.contains(command), "{unit}");
    assert_eq!(fs::read_link(tree.join(ENABLED)).unwrap(), Path::new("/").join(UNIT));
    let drop_in = fs::read_to_string(tree.join(DROP_IN)).unwrap();
    let priority = "farflash tune apply --cores 1-3 --only realtime-priority\n";
    assert!(drop_in.contains("\nExecStartPost=-+/") && drop_in.ends_with(priority), "{drop_in}");
    let fragment = fs::read_to_string(tree.join(FRAGMENT)).unwrap();
    assert!(
        fragment.ends_with("\"$GRUB_CMDLINE_LINUX isolcpus=1-3 nohz_full=1-3\"\n"),
        "{fragment}"
    );
    assert!(succeed(&tune(&persist("apply"))).ends_with("Changed: 0 values.\n"));
    // In force after a reboot, and still there because of the fragment.
    put("proc/cmdline", "quiet isolcpus=1-3 nohz_full=1-3\n");
    assert!(succeed(&tune(&persist("apply"))).ends_with("Changed: 0 values.\n"));

    let undone = succeed(&tune(&["undo"]));
    assert!(undone.contains("changes with the next reboot"), "{undone}");
    assert!(!tree.join("etc/systemd").exists() && !tree.join("etc/default/grub.d").exists());
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
    refused(&["tune", "confirm", "--record", "/absent/record"], 1, "nothing waits", "--network");
    let confirmed = run(&["tune", "apply", "--confirmed"]);
    assert!(confirmed.code == Some(2) && confirmed.stderr.contains("--network"), "{confirmed:?}");
    assert!(run(&["tune", "explain", "irq-drives"]).stdout.contains("why:"));
}
