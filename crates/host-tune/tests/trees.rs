//! Plan, apply and undo on a tree of files, byte by byte, also after a kill at any instant.

mod machine;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::{fs, io};

use host_tune::settings::{self, SETTINGS};
use host_tune::{
    Applied, Intent, Lasting, Machine, Programs, Proposal, Risk, Role, Root, State, Tuner, Undone,
    WriteLimit,
};
use machine::{Files, put, settings_of};
use tempfile::TempDir;

/// A machine with eight CPUs on two nodes, a drive and a network card.
fn files() -> Files {
    let mut files = settings_of(&"0-7".parse().expect("a set"), 4);
    put(&mut files, "/sys/devices/system/cpu/online", "0-7\n");
    for node in 0..2 {
        let list = format!("{}-{}\n", node * 4, node * 4 + 3);
        put(&mut files, format!("/sys/devices/system/node/node{node}/cpulist"), list);
    }
    for cpu in 0..8 {
        let topology = format!("/sys/devices/system/cpu/cpu{cpu}/topology");
        put(&mut files, format!("{topology}/physical_package_id"), format!("{}\n", cpu / 4));
        let first = cpu / 2 * 2;
        put(&mut files, format!("{topology}/core_cpus_list"), format!("{first}-{}\n", first + 1));
    }
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
            let name = path.strip_prefix(root).expect("below").display().to_string();
            if let Ok(target) = fs::read_link(&path) {
                put(&mut all, format!("/{name}"), target.display().to_string());
            } else if path.is_dir() {
                left.push(path);
            } else if !path.ends_with("tune.jsonl") {
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
        portal: Some(4420),
        at_boot: Some(vec!["/usr/bin/farflash".into(), "tune".into(), "apply".into()]),
    }
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
    let mut files = files();
    put_server(&mut files, "0 0");
    let (_directory, root) = tree(&files);
    let root = root.with_programs(Arc::new(FakeEthtool::default()));
    let plan = plan(&root, &intent("4-7", 4));
    for setting in SETTINGS {
        assert!(plan.iter().any(|one| one.setting == setting.name), "{}", setting.name);
    }
    let of = |path: &str| plan.iter().find(|one| one.path() == Some(path)).map(|one| &*one.then);
    assert_eq!(of("/proc/irq/31/smp_affinity_list"), Some("4"), "the first queue of the drive");
    assert_eq!(of("/proc/irq/30/smp_affinity_list"), None, "the admin queue stays");
    assert_eq!(of("/proc/irq/38/smp_affinity_list"), Some("7"));
    assert_eq!(of("/sys/devices/system/cpu/cpu4/cpuidle/state2/disable"), Some("1"));
    assert_eq!(of("/sys/devices/system/cpu/cpu0/cpuidle/state2/disable"), None);
    assert_eq!(of("/sys/block/sda/queue/scheduler"), None, "it spins");
    assert_eq!(of("/proc/irq/default_smp_affinity"), Some("0f"));
    let first = |name: &str| plan.iter().find(|one| one.setting == name).expect(name);
    assert_eq!((first("jumbo-frames").risk, &*first("jumbo-frames").then), (Risk::Network, "9000"));
    let isolated = first("boot-isolcpus");
    assert_eq!((&*isolated.then, isolated.lasting()), ("4-7", Lasting::FromReboot));
    assert_eq!(first("irq-drives").owners, ["irqbalance"]);
}

/// TUNE-3, and undo byte for byte.
#[test]
fn undo_gives_every_byte_back_and_a_second_apply_writes_nothing() {
    let before = files();
    let (directory, root) = tree(&before);
    let intent = intent("2-7", 3);
    let mut tuner = tuner(&directory, &root);
    let first = plan(&root, &intent);
    let outcomes = tuner.apply(&first).expect("recorded");
    let is_refused = |one: &Applied| matches!(one, Applied::Refused { .. });
    assert!(!outcomes.iter().any(is_refused), "{outcomes:?}");
    let applied = contents(directory.path());
    assert_ne!(applied, before);
    let fragment =
        String::from_utf8_lossy(&applied["/etc/default/grub.d/farflash.cfg"]).into_owned();
    assert!(fragment.contains("isolcpus=2-7 nohz_full=2-7 rcu_nocbs=2-7\"\n"), "{fragment}");
    assert!(tuner.verify().iter().all(|status| status.state == State::Kept));
    let again = plan(&root, &intent);
    assert!(again.iter().all(|one| one.path().is_none() || one.is_met()), "{again:?}");
    let outcomes = tuner.apply(&again).expect("recorded");
    assert!(outcomes.iter().all(|one| matches!(one, Applied::Unchanged | Applied::Left)));
    assert_eq!(contents(directory.path()), applied);
    let undone = tuner.undo(|_| true).expect("recorded");
    assert!(undone.iter().all(|(_, outcome)| *outcome == Undone::Restored));
    assert_eq!(contents(directory.path()), before);
    assert!(!record(&directory).exists());
    assert!(!root.has("/etc/systemd") && !root.has("/etc/default/grub.d"));
}

/// TUNE-1. Method: an apply ends in the middle of its n-th write, for each n; writes of the record count, too.
/// Another process then undoes, or applies all and undoes. The same for an undo.
#[test]
fn a_kill_at_any_write_loses_no_old_value() {
    const FEW: [&str; 6] = [
        "cpu-governor",
        "block-scheduler",
        "transparent-huge-pages",
        "tcp-buffers",
        "boot-unit",
        "boot-arguments",
    ];
    let before = files();
    let (directory, root) = tree(&before);
    let all = plan(&root, &intent("4-7", 1));
    let plan: Vec<_> = all.into_iter().filter(|one| FEW.contains(&one.setting)).collect();
    for (end, kind) in (0..).flat_map(|end| (0..3).map(move |kind| (end, kind))) {
        let limit = WriteLimit::new(end);
        let limited = tuner_within(&directory, &root, &limit);
        match kind {
            2 => {
                tuner(&directory, &root).apply(&plan).expect("recorded");
                let _ = limited().undo(|_| true);
            }
            _ => drop(limited().apply(&plan)),
        }
        let mut tuner = tuner(&directory, &root);
        if kind == 1 {
            tuner.apply(&plan).expect("recorded");
        }
        tuner.undo(|_| true).expect("recorded");
        drop(tuner);
        assert_eq!(contents(directory.path()), before, "ended in write {end}, kind {kind}");
        if kind == 2 && !limit.is_reached() {
            assert!(end > 10, "{end} writes");
            break;
        }
    }
}

fn tuner_within(directory: &TempDir, root: &Root, limit: &WriteLimit) -> impl Fn() -> Tuner {
    let (root, path) = (root.clone().with_limit(limit.clone()), record(directory));
    move || Tuner::open(root.clone(), &path).expect("a record")
}

#[test]
fn refusals_and_changes_by_others_are_told_and_lose_nothing() {
    let before = files();
    let (directory, root) = tree(&before);
    let plan = plan(&root, &intent("4-7", 4));
    let of = |name: &str| plan.iter().find(|one| one.setting == name).expect("proposed").clone();
    let mut tuner = tuner(&directory, &root);
    // A drive that was pulled between plan and apply.
    fs::remove_dir_all(root.at("/sys/block/nvme0n1")).expect("removed");
    let outcomes = tuner.apply(&[of("block-scheduler")]).expect("recorded");
    let [Applied::Refused { reason }] = outcomes.as_slice() else {
        panic!("applied to a drive that is gone")
    };
    assert!(reason.contains("/sys/block/nvme0n1/queue/scheduler"), "{reason}");
    // Another program changes a setting that was applied.
    let pages = of("transparent-huge-pages");
    assert_eq!(tuner.apply(std::slice::from_ref(&pages)).expect("recorded"), [Applied::Changed]);
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
    let wishes = Intent { at_boot: None, ..intent("0-3", 2) };
    let plan = plan(&Root::new(directory.path()), &wishes);
    assert!(plan.iter().all(|one| one.path().is_none()), "{plan:?}");
}

/// After a reboot the number of an interrupt may be another device's: nothing is written back.
#[test]
fn values_that_a_reboot_took_back_are_forgotten_and_what_lasts_is_removed() {
    const BOOT: &str = "/proc/sys/kernel/random/boot_id";
    let mut before = files();
    put(&mut before, BOOT, "one\n");
    let (directory, root) = tree(&before);
    let plan = plan(&root, &intent("4-7", 4));
    tuner(&directory, &root).apply(&plan).expect("recorded");
    let booted = |id: &str| fs::write(root.at(BOOT), id).expect("written");
    for path in before.keys().filter(|path| *path != BOOT && !path.starts_with("/etc")) {
        fs::write(root.at(path), "of the second boot\n").expect("written");
    }
    booted("two\n");
    let undone = tuner(&directory, &root).undo(|_| true).expect("recorded");
    let restored = undone.iter().filter(|(_, outcome)| *outcome == Undone::Restored);
    assert!(restored.map(|(saved, _)| &saved.path).all(|path| path.starts_with("/etc")));
    assert_eq!(root.text("/proc/irq/31/smp_affinity_list").as_deref(), Some("of the second boot"));
    assert!(!root.has("/etc/systemd") && !record(&directory).exists());
}

/// TUNE-4.
#[test]
fn what_is_not_confirmed_is_undone_and_nothing_is_written_without_a_guard() {
    let before = files();
    let (directory, root) = tree(&before);
    let plan = plan(&root, &intent("4-7", 4));
    let mtu: Vec<_> = plan.iter().filter(|one| one.setting == "jumbo-frames").cloned().collect();
    let pages: Vec<_> =
        plan.iter().filter(|one| one.setting.starts_with("trans")).cloned().collect();
    let mut tuner = tuner(&directory, &root);
    let error = tuner.apply_unconfirmed(&mtu, 5, || Err(io::ErrorKind::NotFound.into()));
    error.expect_err("no guard");
    assert_eq!(contents(directory.path()), before);
    tuner.apply(&pages).expect("recorded");
    let guarded = || {
        assert_eq!(root.text("/sys/class/net/eth0/mtu").as_deref(), Some("1500"));
        assert!(record(&directory).exists(), "the old value is saved before");
        Ok(())
    };
    let outcomes = tuner.apply_unconfirmed(&mtu, 5, guarded).expect("recorded");
    assert_eq!(outcomes, [Applied::Changed]);
    assert!(tuner.undo(|saved| saved.is_unconfirmed_at(4)).expect("recorded").is_empty());
    assert_eq!(tuner.undo(|saved| saved.is_unconfirmed_at(5)).expect("recorded").len(), 1);
    assert_eq!(root.text("/sys/class/net/eth0/mtu").as_deref(), Some("1500"));
    tuner.apply_unconfirmed(&mtu, 5, || Ok(())).expect("recorded");
    assert_eq!(tuner.confirm().expect("recorded"), 1);
    assert!(tuner.undo(|saved| saved.is_unconfirmed_at(9)).expect("recorded").is_empty());
    assert_eq!(root.text("/sys/class/net/eth0/mtu").as_deref(), Some("9000"));
    tuner.undo(|_| true).expect("recorded");
    assert_eq!(contents(directory.path()), before);
}

/// A card whose driver has offloads, an indirection table and rules, as the program `ethtool` 6.1 prints them.
#[derive(Debug, Default)]
struct FakeEthtool(Mutex<Card>);

#[derive(Clone, Debug, Default, Eq, PartialEq)]
struct Card {
    on: BTreeSet<String>,
    spread: Option<u32>,
    rules: BTreeMap<u32, (String, String)>,
}

impl Programs for FakeEthtool {
    fn run(&self, program: &str, arguments: &[&str]) -> io::Result<String> {
        assert_eq!(program, "ethtool");
        let mut card = self.0.lock().expect("a lock");
        match arguments {
            ["-k", "eth0"] => {
                let names = [
                    ("tso", "tcp-segmentation-offload"),
                    ("gro", "generic-receive-offload"),
                    ("ntuple", "ntuple-filters"),
                ];
                let state = |name| if card.on.contains(name) { "on" } else { "off" };
                Ok(names.map(|(name, long)| format!("{long}: {}\n", state(name))).concat())
            }
            ["-K", "eth0", name, state] => {
                match *state {
                    "on" => card.on.insert((*name).to_owned()),
                    _ => card.on.remove(*name),
                };
                Ok(String::new())
            }
            ["-x", "eth0"] => {
                let entries = (0..8).map(|at| (at % card.spread.unwrap_or(2)).to_string());
                Ok(format!("    0:   {}\n", entries.collect::<Vec<_>>().join(" ")))
            }
            ["-X", "eth0", "equal", queues] => {
                card.spread = queues.parse().ok();
                Ok(String::new())
            }
            ["-n", "eth0", "rule", place] => {
                let rule = card.rules.get(&place.parse().expect("a number"));
                let (port, queue) = rule.ok_or_else(|| io::Error::other("no such rule"))?;
                let head = "Filter: 1\n\tRule Type: TCP over IPv4\n";
                Ok(format!(
                    "{head}\tDest port: {port} mask: 0x0\n\tAction: Direct to queue {queue}\n"
                ))
            }
            ["-N", "eth0", "delete", place] => {
                card.rules.remove(&place.parse().expect("a number"));
                Ok(String::new())
            }
            [
                "-N",
                "eth0",
                "flow-type",
                "tcp4",
                "dst-port",
                port,
                "action",
                queue,
                "loc",
                place,
            ] => {
                assert!(card.on.contains("ntuple"), "rules are off");
                let place = place.parse().expect("a number");
                card.rules.insert(place, ((*port).to_owned(), (*queue).to_owned()));
                Ok(String::new())
            }
            _ => panic!("ethtool {arguments:?}"),
        }
    }
}

#[test]
fn settings_of_a_card_are_applied_and_taken_back_by_ethtool() {
    let (directory, root) = tree(&files());
    let ethtool = Arc::new(FakeEthtool::default());
    let root = root.with_programs(Arc::<FakeEthtool>::clone(&ethtool));
    let card = || ethtool.0.lock().expect("a lock").clone();
    let taken = ("22".to_owned(), "0".to_owned());
    ethtool.0.lock().expect("a lock").rules.insert(512, taken);
    let before = card();
    let wishes = intent("4-7", 4);
    let names = ["nic-offloads", "receive-spread", "flow-steering"];
    let of_card = |name: &str| names.contains(&name);
    let proposed = || settings::propose(&root, &Machine::read(&root), &wishes, of_card);
    let mut tuner = tuner(&directory, &root);
    let outcomes = tuner.apply(&proposed()).expect("recorded");
    assert!(outcomes.iter().all(|one| *one == Applied::Changed), "{outcomes:?}");
    let after = card();
    assert_eq!((after.on.len(), after.spread, after.rules.len()), (3, Some(4), 5));
    assert_eq!(after.rules[&513], ("4421".to_owned(), "1".to_owned()));
    assert_eq!(after.rules[&516], ("4420".to_owned(), "0".to_owned()), "another's rule is at 512");
    assert!(proposed().iter().all(Proposal::is_met), "{:?}", proposed());
    assert!(tuner.verify().iter().all(|status| status.state == State::Kept));
    tuner.undo(|_| true).expect("recorded");
    assert_eq!(card(), Card { spread: Some(2), ..before });
}

const STAT: &str = "/proc/88/task/90/stat";

/// The words in which the kernel tells of a thread of a server's core; `last` are its priority and the number of its policy.
fn stat(last: &str) -> String {
    let begin = (0..18).map(|_| "1 ").collect::<String>();
    let middle = (0..17).map(|_| "0 ").collect::<String>();
    format!("90 (core-4) S {begin}4711 {middle}{last} 0 0 0\n")
}

fn put_server(files: &mut Files, last: &str) {
    put(files, "/proc/88/comm", "farflash\n");
    put(files, "/proc/88/task/88/comm", "farflash\n");
    put(files, "/proc/88/task/90/comm", "core-4\n");
    put(files, "/proc/88/task/91/comm", "core-1\n");
    put(files, STAT, stat(last));
}

/// The program of util-linux: it sets what the kernel tells.
#[derive(Debug)]
struct FakeChrt(PathBuf);

impl Programs for FakeChrt {
    fn run(&self, program: &str, arguments: &[&str]) -> io::Result<String> {
        let last = match (program, arguments) {
            ("chrt", ["--fifo", "--pid", "10", "90"]) => "10 1",
            ("chrt", ["--batch", "--pid", "0", "90"]) => "0 3",
            _ => panic!("{program} {arguments:?}"),
        };
        fs::write(&self.0, stat(last))?;
        Ok(String::new())
    }
}

/// Method: a thread of a core within `--cores` and one outside; then the first one is gone, and another has its number.
#[test]
fn threads_of_a_running_server_get_a_priority_and_have_their_old_one_back() {
    let mut before = files();
    put_server(&mut before, "0 3");
    let (directory, root) = tree(&before);
    let root = root.clone().with_programs(Arc::new(FakeChrt(root.at(STAT))));
    let machine = Machine::read(&root);
    let proposed = || {
        settings::propose(&root, &machine, &intent("4-7", 4), |name| name == "realtime-priority")
    };
    let plan = proposed();
    let [one] = plan.as_slice() else { panic!("{plan:?}") };
    assert_eq!((one.now.as_deref(), &*one.then), (Some("batch 0"), "fifo 10"));
    assert_eq!(one.lasting(), Lasting::UntilReboot);
    let mut tuner = tuner(&directory, &root);
    assert_eq!(tuner.apply(&plan).expect("recorded"), [Applied::Changed]);
    assert_eq!(root.text(STAT), Some(stat("10 1").trim_end().to_owned()));
    assert!(proposed()[0].is_met());
    assert!(tuner.verify().iter().all(|status| status.state == State::Kept));
    let undone = tuner.undo(|_| true).expect("recorded");
    assert_eq!(undone[0].1, Undone::Restored);
    assert_eq!(contents(directory.path()), before);

    tuner.apply(&plan).expect("recorded");
    let other = stat("10 1").replace("4711", "9999");
    fs::write(root.at(STAT), &other).expect("written");
    assert_eq!(tuner.verify()[0].state, State::Gone);
    assert_eq!(tuner.undo(|_| true).expect("recorded")[0].1, Undone::Gone);
    assert_eq!(root.text(STAT), Some(other.trim_end().to_owned()));
}

/// A setting that would lose data if the drive were not protected is never written.
#[test]
fn a_write_cache_is_left_to_the_operator() {
    let (directory, root) = tree(&files());
    let plan = plan(&root, &intent("4-7", 4));
    let cache = plan.iter().find(|one| one.setting == "block-write-cache").expect("proposed");
    assert!(!cache.is_met() && cache.path().is_none(), "{cache:?}");
    let outcomes = tuner(&directory, &root).apply(std::slice::from_ref(cache));
    assert_eq!(outcomes.expect("recorded"), [Applied::Left]);
    assert_eq!(contents(directory.path()), files());
}
