//! Trees that no kernel makes: a plan may be empty then, but reading and planning end without a panic.

mod machine;

use std::fs;
use std::path::Path;

use host_tune::settings::{self, SETTINGS};
use host_tune::{CpuSet, Intent, Machine, Role, Root, Tuner};
use machine::{Files, put, settings_of};
use random::Rng;

/// Contents that files of another kernel, or a damaged copy, may have.
const ODD: [&str; 18] = [
    "",
    "\n",
    "-1\n",
    "4294967295\n",
    "18446744073709551616\n",
    "0-4294967295\n",
    "8191\n",
    "7-0\n",
    "0-3,,9\n",
    ",",
    "ffffffff,ffffffff\n",
    "ffffffff,ffffffff,xyz\n",
    "[none] mq-deadline\n",
    "none [",
    "\u{0}\u{0}",
    "\u{fffd}é\n",
    "a:b:c : : :\n0:\n:0\n4294967296: 1 2 nvme0q1\n4294967295: 1 nvme0q2\n",
    "0 0 0 0\n0 1\n",
];

fn intent(cores: CpuSet) -> Intent {
    Intent {
        role: Role::FlashServer,
        cores,
        tenants: u32::MAX,
        drives: Vec::new(),
        nics: Vec::new(),
        path_mtu: Some(u32::MAX),
        portal: Some(u16::MAX),
        at_boot: Some(vec!["%n 'é".into()]),
    }
}

/// A whole machine, with CPUs, nodes and interrupts that are named oddly.
fn files() -> Files {
    let mut files = settings_of(&"0-7".parse().expect("a set"), 4);
    put(&mut files, "/sys/devices/system/cpu/online", "0-7\n");
    for cpu in ["0", "1", "7", "8191", "8192", "4294967295", "99999999999", "x", ""] {
        let topology = format!("/sys/devices/system/cpu/cpu{cpu}/topology");
        put(&mut files, format!("{topology}/physical_package_id"), "0\n");
        put(&mut files, format!("{topology}/core_cpus_list"), "0-1\n");
    }
    for node in ["0", "1", "4294967295", "x"] {
        put(&mut files, format!("/sys/devices/system/node/node{node}/cpulist"), "0-3\n");
    }
    files
}

fn write(root: &Path, files: &Files) {
    for (path, content) in files {
        let place = root.join(path.trim_start_matches('/'));
        fs::create_dir_all(place.parent().expect("a parent")).expect("made");
        fs::write(place, content).expect("written");
    }
}

fn plan_and_apply(root: &Path) {
    let tree = Root::new(root);
    let machine = Machine::read(&tree);
    for cores in [machine.online(), CpuSet::default(), std::iter::once(8191).collect()] {
        let plan = settings::propose(&tree, &machine, &intent(cores), |_| true);
        assert!(plan.iter().all(|one| SETTINGS.iter().any(|setting| setting.name == one.setting)));
        let record = root.join("record.jsonl");
        let mut tuner = Tuner::open(tree.clone(), &record).expect("a record");
        tuner.apply(&plan).expect("applied");
        let _ = tuner.verify();
        tuner.undo(|_| true).expect("undone");
    }
}

/// Method: one to eight files of a machine get odd contents, vanish, or become directories; then all CPUs are listed by
/// their directories alone.
#[test]
fn odd_trees_are_planned_applied_and_undone_without_a_panic() {
    let in_memory = Path::new("/dev/shm");
    let made = tempfile::tempdir_in(in_memory).or_else(|_| tempfile::tempdir());
    let directory = made.expect("a directory");
    let whole = files();
    let paths: Vec<&String> = whole.keys().collect();
    for seed in 0..40 {
        let root = directory.path().join(seed.to_string());
        write(&root, &whole);
        let mut rng = Rng::new(seed);
        for _ in 0..=rng.below(8) {
            let path = paths[rng.below(paths.len() as u64) as usize];
            let place = root.join(path.trim_start_matches('/'));
            let odd = ODD[rng.below(ODD.len() as u64) as usize];
            match rng.below(8) {
                0 => drop(fs::remove_file(&place)),
                1 => drop(fs::remove_file(&place).and_then(|()| fs::create_dir(&place))),
                _ => drop(fs::write(&place, odd)),
            }
        }
        if seed % 2 == 0 {
            drop(fs::remove_file(root.join("sys/devices/system/cpu/online")));
        }
        println!("seed {seed}");
        plan_and_apply(&root);
        fs::remove_dir_all(&root).expect("removed");
    }
}
