//! Figure 12 of the array's study in real time: reads of this machine's disk beside tasks that take all CPUs, step by step.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use profile::{Drive, FIGURES, Limit, Plan, Profile, SlowerThan, over_drives};
use reproduce::afa::{Measured, real_time_outcome};
use reproduce::{Outcome, Progress};
use user_messages::Failure;
use user_messages::output::note;

use super::hogs::{Confined, Hogs};
use crate::commands::interrupt::Interrupt;

/// Length of a file that is read.
const FILE_BYTES: usize = 64 << 20;
/// Written at once.
const CHUNK_BYTES: usize = 1 << 20;
/// Files that are read at once, at most: each needs a CPU.
const DRIVES_MAX: usize = 8;
/// The paper's two minutes.
const SECONDS: f64 = 120.0;
const WARM_UP: Duration = Duration::from_millis(500);
/// Any real-time priority is above that of all tasks here; the highest would be above the kernel's own threads.
const PRIORITY: u8 = 50;

/// Files for the readers, removed at the end.
struct Files(Vec<PathBuf>);

impl Drop for Files {
    fn drop(&mut self) {
        for path in &self.0 {
            let _ = fs::remove_file(path);
        }
    }
}

/// CPUs of the readers, and those that are left to other tasks.
struct Division {
    readers: Vec<u32>,
    others: Vec<u32>,
}

/// Runs the steps, each for `time` of the paper's two minutes; files are made in `out`.
pub(super) fn run(
    out: &Path,
    time: f64,
    seed: u64,
    progress: Progress<'_>,
) -> Result<Outcome, Failure> {
    if !(time > 0.0 && time <= 1.0) {
        return Err(Failure::usage(
            "a part of the time is above 0 and at most 1",
            "try --time 0.05",
        ));
    }
    let cpus = profile::allowed_cpus();
    let division = divide(&cpus);
    let files = make_files(out, division.readers.len())?;
    let stop = Interrupt::catch(true)?;
    let seconds = Duration::from_secs_f64(SECONDS * time);
    let measure = |realtime| -> Result<Profile, Failure> {
        let drives = files.0.iter().map(|path| {
            Drive::open(path, None).map_err(|error| {
                Failure::usage(error.to_string(), "name a directory of ext4 or XFS with --out")
            })
        });
        let plan = Plan {
            drives: drives.collect::<Result<_, _>>()?,
            cpus: division.readers.clone(),
            limit: Limit::Time(seconds),
            warm_up: WARM_UP,
            slower_than: SlowerThan::WarmUp,
            realtime,
            attribute: false,
            seed,
            stop: stop.flag(),
        };
        profile::run(plan).map_err(|error| Failure::runtime(error.to_string(), "try it as root"))
    };
    let mut hogs = Hogs::start(cpus.len()).map_err(|error| {
        Failure::runtime(format!("no task can be started: {error}"), "install a shell as sh")
    })?;
    let (mut measured, mut missing) = (Vec::new(), Vec::new());
    measured.push(figures("default", &measure(None)?));
    progress(1.0 / 3.0);
    match measure(Some(PRIORITY)) {
        Ok(profile) => measured.push(figures("chrt", &profile)),
        Err(error) => missing.push(("chrt", error.to_string())),
    }
    progress(2.0 / 3.0);
    if division.others.is_empty() {
        missing.push(("isolcpus", "there is only one CPU".to_owned()));
    } else {
        let way = hogs.confine(&division.others).map_err(|error| {
            Failure::runtime(format!("tasks cannot be kept from a CPU: {error}"), "try it as root")
        })?;
        if way == Confined::Affinity {
            note("this system has no cpusets for this user: tasks are confined by their affinity");
        }
        let realtime = missing.is_empty().then_some(PRIORITY);
        measured.push(figures("isolcpus", &measure(realtime)?));
    }
    progress(1.0);
    let irq =
        "it would change the machine's interrupts: `farflash tune apply --only irq-drives` does";
    missing.push(("irq", irq.to_owned()));
    real_time_outcome(&measured, &missing)
        .map_err(|error| Failure::runtime(error.to_string(), "report this"))
}

/// The first CPU is left to other tasks, if there are several.
fn divide(cpus: &[u32]) -> Division {
    let (others, readers) = cpus.split_at(usize::from(cpus.len() > 1));
    let readers: Vec<u32> = readers.iter().copied().take(DRIVES_MAX).collect();
    Division { readers, others: others.to_vec() }
}

fn make_files(out: &Path, count: usize) -> Result<Files, Failure> {
    let failed = |path: &Path, error: std::io::Error| {
        let what = format!("{} cannot be written: {error}", path.display());
        Failure::runtime(what, "name a directory with some room with --out")
    };
    let mut files = Files(Vec::new());
    for number in 0..count {
        let path = out.join(format!("afa-12-{number}.data"));
        let made = fs::File::options().write(true).create_new(true).open(&path);
        let mut file = made.map_err(|error| failed(&path, error))?;
        files.0.push(path.clone());
        // A file of zeroes may have no blocks.
        let chunk = vec![0xA5; CHUNK_BYTES];
        (0..FILE_BYTES / CHUNK_BYTES)
            .try_for_each(|_| file.write_all(&chunk))
            .and_then(|()| file.sync_all())
            .map_err(|error| failed(&path, error))?;
    }
    Ok(files)
}

fn figures(step: &'static str, profile: &Profile) -> Measured {
    let us = FIGURES.map(|figure| over_drives(profile, figure).map(|over| over.mean_ns / 1e3));
    Measured { step, us }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cpu_is_left_to_other_tasks_if_there_are_two() {
        let division = divide(&[2, 3, 5]);
        assert_eq!((division.readers, division.others), (vec![3, 5], vec![2]));
        let alone = divide(&[4]);
        assert_eq!((alone.readers, alone.others), (vec![4], vec![]));
    }
}
