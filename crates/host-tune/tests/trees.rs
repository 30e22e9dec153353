//! Plan, apply and undo on a tree of files, byte by byte, also after a kill at any instant.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use host_tune::settings::{self, SETTINGS};
use host_tune::{
    Applied, Intent, Machine, Proposal, Record, Risk, Role, Root, Saved, State, Target, Tuner,
    Undone,
};
use tempfile::TempDir;

type Files = BTreeMap<String, Vec<u8>>;

fn put(files: &mut Files, path: impl Into<String>, content: impl AsRef<[u8]>) {
    files.insert(path.into(), content.as_ref().to_vec());
}

fn cpus(files: &mut Files) {
    let cpus = "/sys/devices/system/cpu";
    put(files, format!("{cpus}/online"), "0-7\n");
    for node in 0..2 {
        let list = format!("{}-{}\n", node * 4, node * 4 + 3);
        put(files, format!("/sys/devices/system/node/node{node}/cpulist"), list);
    }
    for cpu in 0..8 {
        let path = format!("{cpus}/cpu{cpu}");
        put(files, format!("{path}/topology/physical_package_id"), format!("{}\n", cpu / 4));
        put(files, format!("{path}/topology/core_id"), format!("{}\n", cpu % 4 / 2));
        put(files, format!("{path}/cpufreq/scaling_governor"), "powersave\n");
        let offered = format!("{path}/cpufreq/scaling_available_governors");
        put(files, offered, "performance powersave\n");
        for (state, latency) in [(0, 0), (1, 2), (2, 85)] {
            let state = format!("{path}/cpuidle/state{state}");
            put(files, format!("{state}/latency"), format!("{latency}\n"));
            put(files, format!("{state}/disable"), "0\n");
        }
    }
}

fn devices(files: &mut Files) {
    let queue = "/sys/block/nvme0n1/queue";
    let values = [
        ("rotational", "0\n"),
        ("scheduler", "[mq-deadline] kyber none\n"),
        ("nomerges", "0\n"),
        ("rq_affinity", "1\n"),
        ("wbt_lat_usec", "2000\n"),
    ];
    values.iter().for_each(|(file, value)| put(files, format!("{queue}/{file}"), value));
    put(files, "/sys/block/sda/queue/rotational", "1\n");
    put(files, "/sys/block/sda/queue/scheduler", "[mq-deadline] none\n");
    put(files, "/sys/block/loop0/queue/scheduler", "[none]\n");
    let nic = "/sys/class/net/eth0";
    put(files, format!("{nic}/device/numa_node"), "1\n");
    put(files, format!("{nic}/mtu"), "1500\n");
    for queue in 0..4 {
        put(files, format!("{nic}/queues/rx-{queue}/rps_cpus"), "0f\n");
        put(files, format!("{nic}/queues/tx-{queue}/xps_cpus"), "00\n");
    }
    put(files, "/sys/class/net/lo/mtu", "65536\n");
    let line = |number: u32, name: String| format!(" {number}:  1  2  PCI-MSIX  0-edge  {name}\n");
    let of_drive = (0..5).map(|queue| line(30 + queue, format!("nvme0q{queue}")));
    let of_nic = (0..4).map(|queue| line(40 + queue, format!("eth0-TxRx-{queue}")));
    let lines: String = of_drive.chain(of_nic).collect();
    put(files, "/proc/interrupts", format!("            CPU0       CPU1\n{lines}"));
    for number in (30..35).chain(40..44) {
        put(files, format!("/proc/irq/{number}/smp_affinity_list"), "0-7\n");
    }
}

/// Content of each file of a machine with eight CPUs on two nodes, a drive and a network card.
fn files() -> Files {
    let mut files = Files::new();
    cpus(&mut files);
    devices(&mut files);
    let host = [
        ("/proc/irq/default_smp_affinity", "ff\n"),
        ("/sys/devices/virtual/workqueue/cpumask", "ff\n"),
        ("/proc/sys/net/ipv4/tcp_wmem", "4096\t16384\t4194304\n"),
        ("/proc/sys/net/ipv4/tcp_rmem", "4096\t131072\t6291456\n"),
        ("/proc/sys/net/ipv4/tcp_congestion_control", "bbr\n"),
        ("/proc/sys/net/ipv4/tcp_slow_start_after_idle", "1\n"),
        ("/sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n"),
        ("/proc/sys/vm/stat_interval", "1\n"),
        ("/proc/cmdline", "BOOT_IMAGE=/vmlinuz root=/dev/sda1 quiet\n"),
        ("/proc/77/comm", "irqbalance\n"),
    ];
    host.iter().for_each(|(path, content)| put(&mut files, *path, content));
    files
}

fn tree(files: &Files) -> (TempDir, Root) {
    // In memory where that is possible: each step of an apply flushes.
    let in_memory = Path::new("/dev/shm");
    let made = tempfile::tempdir_in(in_memory).or_else(|_| tempfile::tempdir());
    let directory = made.expect("a directory");
    let root = Root::new(directory.path());
    for (path, content) in files {
        let place = root.at(path);
        fs::create_dir_all(place.parent().expect("a parent")).expect("made");
        fs::write(place, content).expect("written");
    }
    (directory, root)
}

/// All files below `root`, but for the record.
fn contents(root: &Path) -> Files {
    let (mut all, mut left) = (Files::new(), vec![root.to_owned()]);
    while let Some(directory) = left.pop() {
        for entry in fs::read_dir(directory).expect("a directory").flatten() {
            let path = entry.path();
            if path.is_dir() {
                left.push(path);
            } else if !path.ends_with("tune.jsonl") {
                let name = path.strip_prefix(root).expect("below").display().to_string();
                put(&mut all, format!("/{name}"), fs::read(path).expect("read"));
            }
        }
    }
    all
}

fn intent(cores: &str, tenants: u32) -> Intent {
    Intent {
        role: Role::FlashServer,
        cores: cores.parse().expect("a set"),
        tenants,
        drives: Vec::new(),
        nics: Vec::new(),
        path_mtu: Some(9000),
    }
}

/// A file of each notation, and several of one setting: each step of the kill test flushes.
const FEW: [&str; 4] = ["cpu-governor", "block-scheduler", "transparent-huge-pages", "tcp-buffers"];

fn short_plan(root: &Root, intent: &Intent) -> Vec<Proposal> {
    settings::propose(root, &Machine::read(root), intent, |name| FEW.contains(&name))
}

fn plan(root: &Root, intent: &Intent) -> Vec<Proposal> {
    settings::propose(root, &Machine::read(root), intent, |_| true)
}

fn record(directory: &TempDir) -> PathBuf {
    directory.path().join("tune.jsonl")
}

fn tuner(directory: &TempDir, root: &Root) -> Tuner {
    Tuner::open(root.clone(), &record(directory)).expect("a record")
}

#[test]
fn every_setting_proposes_something_for_a_machine_that_has_it_all() {
    let (_directory, root) = tree(&files());
    let plan = plan(&root, &intent("4-7", 4));
    for setting in SETTINGS {
        assert!(plan.iter().any(|one| one.setting == setting.name), "{}", setting.name);
    }
    let of = |path: &str| plan.iter().find(|one| one.path() == Some(path)).map(|one| &*one.then);
    assert_eq!(of("/proc/irq/31/smp_affinity_list"), Some("4"), "the first queue of the drive");
    assert_eq!(of("/proc/irq/30/smp_affinity_list"), None, "the admin queue stays");
    assert_eq!(of("/proc/irq/43/smp_affinity_list"), Some("7"));
    assert_eq!(of("/sys/devices/system/cpu/cpu4/cpuidle/state2/disable"), Some("1"));
    assert_eq!(of("/sys/devices/system/cpu/cpu0/cpuidle/state2/disable"), None);
    assert_eq!(of("/sys/block/sda/queue/scheduler"), None, "it spins");
    assert_eq!(of("/proc/irq/default_smp_affinity"), Some("0000000f"));
    let first = |name: &str| plan.iter().find(|one| one.setting == name).expect(name);
    assert_eq!((first("jumbo-frames").risk, &*first("jumbo-frames").then), (Risk::Network, "9000"));
    let isolated = first("boot-isolcpus");
    assert_eq!((&*isolated.then, isolated.needs_reboot()), ("4-7", true));
    assert_eq!(first("irq-drives").owner.as_deref(), Some("irqbalance"));
}

/// TUNE-3, and undo byte for byte.
#[test]
fn undo_gives_every_byte_back_and_a_second_apply_writes_nothing() {
    let before = files();
    let (directory, root) = tree(&before);
    let intent = intent("2-7", 3);
    let mut tuner = tuner(&directory, &root);
    for proposal in plan(&root, &intent) {
        let applied = tuner.apply(&proposal).expect("recorded");
        assert!(!matches!(applied, Applied::Refused { .. }), "{proposal:?}: {applied}");
    }
    let applied = contents(directory.path());
    assert_ne!(applied, before);
    assert!(tuner.verify().iter().all(|status| status.state == State::Kept));
    for proposal in plan(&root, &intent).iter().filter(|one| one.path().is_some()) {
        assert!(proposal.is_met(), "{proposal:?}");
        assert_eq!(tuner.apply(proposal).expect("recorded"), Applied::Unchanged);
    }
    assert_eq!(contents(directory.path()), applied);
    let undone = tuner.undo(|_| true).expect("recorded");
    assert!(undone.iter().all(|(_, outcome)| *outcome == Undone::Restored));
    assert_eq!(contents(directory.path()), before);
    assert!(!record(&directory).exists());
}

/// TUNE-1. Method: an apply ends after each number of steps, where saving an old value and writing the
/// new one are steps of their own. Another process then undoes, or applies all and undoes.
#[test]
fn a_kill_at_any_step_of_apply_loses_no_old_value() {
    let before = files();
    let intent = intent("4-7", 1);
    let (_directory, root) = tree(&before);
    let steps = 2 * short_plan(&root, &intent).iter().filter(|one| one.path().is_some()).count();
    for (end, goes_on) in (0..=steps).flat_map(|end| [(end, false), (end, true)]) {
        let (directory, root) = tree(&before);
        let plan = short_plan(&root, &intent);
        apply_until(&directory, &root, &plan, end);
        let mut tuner = tuner(&directory, &root);
        if goes_on {
            plan.iter().for_each(|one| drop(tuner.apply(one).expect("recorded")));
        }
        tuner.undo(|_| true).expect("recorded");
        assert_eq!(contents(directory.path()), before, "ended after {end} steps");
    }
}

/// As `Tuner::apply` does it, but no further than `end` steps.
fn apply_until(directory: &TempDir, root: &Root, plan: &[Proposal], end: usize) {
    let mut record = Record::open(&record(directory)).expect("a record");
    let mut left = end;
    for proposal in plan {
        let Target::File { path, form } = &proposal.target else { continue };
        let before = root.read(path).expect("there");
        if left == 0 || proposal.is_met() {
            continue;
        }
        record
            .save(Saved {
                setting: proposal.setting.into(),
                subject: proposal.subject.clone(),
                path: path.clone(),
                form: *form,
                before,
                applied: proposal.then.clone(),
            })
            .expect("saved");
        if left == 1 {
            return;
        }
        root.write(path, format!("{}\n", proposal.then).as_bytes()).expect("written");
        left -= 2;
    }
}

#[test]
fn refusals_and_changes_by_others_are_told_and_lose_nothing() {
    let before = files();
    let (directory, root) = tree(&before);
    let plan = plan(&root, &intent("4-7", 4));
    let mut tuner = tuner(&directory, &root);
    // A drive that was pulled between plan and apply.
    fs::remove_dir_all(root.at("/sys/block/nvme0n1")).expect("removed");
    let gone = plan.iter().find(|one| one.setting == "block-scheduler").expect("proposed");
    let Applied::Refused { reason } = tuner.apply(gone).expect("recorded") else {
        panic!("applied to a drive that is gone")
    };
    assert!(reason.contains("/sys/block/nvme0n1/queue/scheduler"), "{reason}");
    // Another program changes a setting that was applied.
    let pages = plan.iter().find(|one| one.setting == "transparent-huge-pages").expect("proposed");
    assert_eq!(tuner.apply(pages).expect("recorded"), Applied::Changed);
    let path = pages.path().expect("a file");
    fs::write(root.at(path), "[always] madvise never\n").expect("written");
    let status = tuner.verify();
    assert_eq!((status.len(), &status[0].state), (1, &State::Changed));
    assert_eq!(status[0].now.as_deref(), Some("always"));
    tuner.undo(|_| true).expect("recorded");
    assert_eq!(root.read(path).expect("there"), before[path]);
}

#[test]
fn a_machine_that_tells_nothing_gets_no_plan_that_writes() {
    let directory = tempfile::tempdir().expect("a directory");
    let plan = plan(&Root::new(directory.path()), &intent("0-3", 2));
    assert!(plan.iter().all(|one| one.path().is_none()), "{plan:?}");
}
