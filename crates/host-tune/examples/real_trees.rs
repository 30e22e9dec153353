//! Plans, applies and undoes the settings of machines whose `/sys` and `/proc` were copied: each directory of the
//! one that is given holds a tree. Ends with 1 at the first byte that undo does not give back.
//!
//!     cargo run --example real_trees -- DIRECTORY
//!
//! Each tree is tried as it is, and once more with the settings that such copies leave out (governors, idle
//! states, interrupts, a drive and a card). An apply, and an undo, is ended in the middle of each of its writes.

#[path = "../tests/machine/mod.rs"]
mod machine;

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::SystemTime;
use std::{env, fs, thread};

use host_tune::{
    Applied, CpuSet, Intent, Machine, Proposal, Role, Root, State, Tuner, Undone, WriteLimit,
    settings,
};
use machine::settings_of;

/// CPUs of the data plane for the filled trees, at most: each write is tried, and each try applies and undoes all.
const FILLED_CORES: usize = 2;

/// The first difference from what is due.
type Checked<T> = Result<T, String>;

fn main() -> ExitCode {
    let Some(directory) = env::args_os().nth(1) else {
        eprintln!("usage: real_trees DIRECTORY");
        return ExitCode::from(2);
    };
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut trees: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    trees.sort();
    let (count, failed) = (trees.len(), Mutex::new(Vec::new()));
    let left = Mutex::new(trees.into_iter());
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                loop {
                    let Some(tree) = left.lock().expect("a lock").next() else { return };
                    let name = tree.file_name().unwrap_or_default().to_string_lossy().into_owned();
                    match check(&tree) {
                        Ok(line) => println!("{name}: {line}"),
                        Err(error) => {
                            failed.lock().expect("a lock").push(format!("{name}: {error}"))
                        }
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().expect("a lock");
    failed.iter().for_each(|line| eprintln!("{line}"));
    println!("{count} trees, {} failed", failed.len());
    ExitCode::from(u8::from(count == 0 || !failed.is_empty()))
}

/// Tries one tree, as it is and filled.
fn check(tree: &Path) -> Checked<String> {
    let top = top_of(tree);
    let record = tree.with_extension("record").join("tune.jsonl");
    let root = Root::new(&top);
    let machine = Machine::read(&root);
    plausible(&root, &machine)?;
    let online = machine.online();
    let base = contents(&root, None);
    let as_is = try_all(&root, &record, &online, Some(&base))?;
    for (path, content) in settings_of(&online, (online.len() as u32).clamp(1, 2)) {
        // Links in the copy lead to devices that it leaves out.
        let place = root.at(&path);
        let made = fs::create_dir_all(place.parent().expect("a parent"));
        if made.is_ok() && !place.exists() {
            let _ = fs::write(place, content);
        }
    }
    let all = try_once(&root, &record, &plan(&root, &online), Some(&base))?;
    let highest: Vec<u32> = online.iter().collect();
    let first = highest.len().saturating_sub(FILLED_CORES);
    let filled = try_all(&root, &record, &highest[first..].iter().copied().collect(), Some(&base))?;
    let nodes: BTreeSet<u32> = machine.cpus.iter().filter_map(|cpu| cpu.node).collect();
    Ok(format!(
        "{} CPUs, {} cores, {} nodes; {as_is} writes as it is, {all} with all settings, {filled} of these each ended in the middle",
        online.len(),
        machine.first_threads().len(),
        nodes.len(),
    ))
}

/// The directory below `tree` that stands for `/`.
fn top_of(tree: &Path) -> PathBuf {
    let inner = fs::read_dir(tree).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut inner = inner.filter(|path| path.join("sys").is_dir() || path.join("proc").is_dir());
    match tree.join("sys").is_dir() || tree.join("proc").is_dir() {
        true => tree.to_owned(),
        false => inner.next().unwrap_or_else(|| tree.to_owned()),
    }
}

/// Compares what was read with other files that tell the same.
fn plausible(root: &Root, machine: &Machine) -> Checked<()> {
    let online = machine.online();
    for cpu in &machine.cpus {
        let directory = format!("/sys/devices/system/cpu/cpu{}", cpu.id);
        if root.number::<u8>(&format!("{directory}/online")) == Some(0) {
            return Err(format!("CPU {} is offline", cpu.id));
        }
        let siblings = root.text(&format!("{directory}/topology/thread_siblings"));
        if let Some(Ok(siblings)) = siblings.map(|mask| CpuSet::from_mask(&mask)) {
            let of_core = machine.cpus.iter().filter(|other| other.core == cpu.core);
            let of_core: CpuSet = of_core.map(|other| other.id).collect();
            if siblings.contains(cpu.id) && of_core != siblings.and(&online) {
                return Err(format!("CPU {}: threads {of_core}, not {siblings}", cpu.id));
            }
        }
        let Some(node) = cpu.node else { continue };
        let mask = root.text(&format!("/sys/devices/system/node/node{node}/cpumap"));
        if let Some(Ok(cpus)) = mask.map(|mask| CpuSet::from_mask(&mask))
            && !cpus.contains(cpu.id)
        {
            return Err(format!("CPU {} is in node {node}, which has {cpus}", cpu.id));
        }
    }
    let cpus = root.text("/proc/cpuinfo").unwrap_or_default();
    let listed = cpus.lines().filter(|line| line.starts_with("processor")).count();
    if online.is_empty() && listed > 0 {
        return Err(format!("no CPU of {listed}"));
    }
    Ok(())
}

fn plan(root: &Root, cores: &CpuSet) -> Vec<Proposal> {
    let intent = Intent {
        role: Role::FlashServer,
        cores: cores.clone(),
        tenants: 2,
        drives: Vec::new(),
        nics: Vec::new(),
        path_mtu: Some(9000),
        portal: None,
        at_boot: Some(vec!["/usr/bin/farflash".into(), "tune".into(), "apply".into()]),
    };
    settings::propose(root, &Machine::read(root), &intent, |_| true)
}

fn open(root: &Root, record: &Path) -> Checked<Tuner> {
    Tuner::open(root.clone(), record).map_err(|error| error.to_string())
}

fn apply(tuner: &mut Tuner, plan: &[Proposal]) -> Checked<Vec<Applied>> {
    tuner.apply(plan).map_err(|error| error.to_string())
}

fn undo(root: &Root, record: &Path) -> Checked<()> {
    let undone = open(root, record)?.undo(|_| true).map_err(|error| error.to_string())?;
    match undone.iter().find(|(_, outcome)| *outcome != Undone::Restored) {
        None if !record.exists() => Ok(()),
        None => Err("the record is left".into()),
        Some((saved, outcome)) => Err(format!("{}: {outcome}", saved.path)),
    }
}

/// Applies twice and undoes, and compares all files. Returns how many settings were changed.
fn try_once(
    root: &Root,
    record: &Path,
    plan: &[Proposal],
    base: Option<&Contents>,
) -> Checked<usize> {
    let before = contents(root, base);
    let outcomes = apply(&mut open(root, record)?, plan)?;
    let changed = outcomes.iter().filter(|one| **one == Applied::Changed).count();
    if let Some(refused) = outcomes.iter().find(|one| matches!(one, Applied::Refused { .. })) {
        return Err(refused.to_string());
    }
    let applied = contents(root, Some(&before));
    let mut tuner = open(root, record)?;
    if let Some(other) = tuner.verify().iter().find(|status| status.state != State::Kept) {
        return Err(format!("{}: {:?} instead of {}", other.path, other.now, other.applied));
    }
    apply(&mut tuner, plan)?;
    drop(tuner);
    same("a second apply", &applied, &contents(root, Some(&before)))?;
    undo(root, record)?;
    same("undo", &before, &contents(root, Some(&before)))?;
    Ok(changed)
}

/// The same, then with an end in each write of apply and of undo.
fn try_all(root: &Root, record: &Path, cores: &CpuSet, base: Option<&Contents>) -> Checked<u64> {
    let plan = plan(root, cores);
    let before = contents(root, base);
    try_once(root, record, &plan, Some(&before))?;
    let paths: Vec<&str> = plan.iter().filter_map(Proposal::path).collect();
    let of_plan = || paths.iter().map(|path| root.read(path).ok()).collect::<Vec<_>>();
    let old = of_plan();
    let mut end = 0;
    loop {
        let limit = WriteLimit::new(end);
        let limited = root.clone().with_limit(limit.clone());
        let applied = open(&limited, record)?.apply(&plan);
        if applied.is_ok() {
            // Each apply had its end; now those of undo.
            undo(root, record)?;
            break;
        }
        if end % 2 == 1 {
            apply(&mut open(root, record)?, &plan)?;
        }
        undo(root, record)?;
        if of_plan() != old {
            return Err(format!("an apply that ended in write {end} is not undone"));
        }
        end += 1;
    }
    for end_of_undo in 0.. {
        apply(&mut open(root, record)?, &plan)?;
        let limit = WriteLimit::new(end_of_undo);
        let limited = root.clone().with_limit(limit.clone());
        let _ = open(&limited, record)?.undo(|_| true);
        undo(root, record)?;
        if of_plan() != old {
            return Err(format!("an undo that ended in write {end_of_undo} is not undone"));
        }
        if !limit.is_reached() {
            break;
        }
    }
    same("all of these", &before, &contents(root, Some(&before)))?;
    Ok(end)
}

/// A file, directory or link: a hash of its content, and the time of its last change.
#[derive(Clone)]
struct Entry {
    hash: u64,
    changed: (i64, i64),
}

/// All files, directories and links of a tree, and when they were looked at.
struct Contents {
    entries: BTreeMap<PathBuf, Entry>,
    at: i64,
}

/// The contents of a tree. Files that did not change since `base` are not read again, unless they changed so shortly
/// before it that their time would not tell.
fn contents(root: &Root, base: Option<&Contents>) -> Contents {
    let at = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let at = at.map_or(0, |at| at.as_secs().cast_signed());
    let (mut entries, mut left) = (BTreeMap::new(), vec![root.at("/")]);
    while let Some(directory) = left.pop() {
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            let (path, Ok(metadata)) = (entry.path(), entry.metadata()) else { continue };
            let changed = (metadata.ctime(), metadata.ctime_nsec());
            let is_same = |base: &&Contents| changed.0 + 2 < base.at;
            let known = base.filter(is_same).and_then(|base| base.entries.get(&path));
            let known = known.filter(|known| known.changed == changed).map(|known| known.hash);
            let hash = known.unwrap_or_else(|| {
                let mut hasher = DefaultHasher::new();
                match metadata.file_type() {
                    kind if kind.is_dir() => {}
                    kind if kind.is_symlink() => fs::read_link(&path).ok().hash(&mut hasher),
                    _ => fs::read(&path).ok().hash(&mut hasher),
                }
                hasher.finish()
            });
            if metadata.is_dir() {
                left.push(path.clone());
            }
            entries.insert(path, Entry { hash, changed });
        }
    }
    Contents { entries, at }
}

fn same(what: &str, due: &Contents, found: &Contents) -> Checked<()> {
    let hash = |of: &Contents, path: &PathBuf| of.entries.get(path).map(|entry| entry.hash);
    let differs = |path: &&PathBuf| hash(due, path) != hash(found, path);
    match due.entries.keys().chain(found.entries.keys()).find(differs) {
        None => Ok(()),
        Some(path) => Err(format!("{what} left {} other than it was", path.display())),
    }
}
