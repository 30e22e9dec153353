//! Tasks that take all CPUs: the interference of the array's study, on purpose.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_setaffinity};

/// Places of the kernel's cpuset controller: version 1, and version 2.
const CPUSETS: [&str; 2] = ["/sys/fs/cgroup/cpuset", "/sys/fs/cgroup"];

/// Running tasks; they end with this value, or with this process.
pub(super) struct Hogs {
    tasks: Vec<Child>,
    cpuset: Option<PathBuf>,
}

/// The way in which tasks are kept from CPUs.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Confined {
    /// A cpuset of the kernel.
    Cpuset,
    /// The affinity of each task.
    Affinity,
}

impl Hogs {
    /// Starts `count` tasks on whichever CPUs this process may use.
    pub(super) fn start(count: usize) -> io::Result<Self> {
        let parent = std::process::id();
        // A killed parent takes no task with it: each looks for it about ten times a second.
        let script = format!(
            "while [ -d /proc/{parent} ]; do n=0; while [ $n -lt 100000 ]; do n=$((n+1)); done; done"
        );
        let mut hogs = Self { tasks: Vec::new(), cpuset: None };
        for _ in 0..count {
            let mut task = Command::new("sh");
            task.args(["-c", &script]).stdin(Stdio::null()).stdout(Stdio::null());
            hogs.tasks.push(task.spawn()?);
        }
        Ok(hogs)
    }

    /// Keeps the tasks on `cpus`.
    pub(super) fn confine(&mut self, cpus: &[u32]) -> io::Result<Confined> {
        for root in CPUSETS {
            let place = Path::new(root).join(format!("farflash-reproduce-{}", std::process::id()));
            if fs::create_dir(&place).is_err() {
                continue;
            }
            self.cpuset = Some(place.clone());
            if self.enter(&place, cpus).is_ok() {
                return Ok(Confined::Cpuset);
            }
            self.leave_cpuset();
        }
        let mut set = CpuSet::new();
        cpus.iter().for_each(|cpu| set.set(*cpu as usize));
        for task in &self.tasks {
            sched_setaffinity(Some(Pid::from_child(task)), &set)?;
        }
        Ok(Confined::Affinity)
    }

    fn enter(&self, place: &Path, cpus: &[u32]) -> io::Result<()> {
        let list = cpus.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
        fs::write(place.join("cpuset.cpus"), list)?;
        // Version 1 takes no task before it has memory nodes; version 2 inherits them.
        if let Ok(nodes) = fs::read_to_string(place.with_file_name("cpuset.mems")) {
            fs::write(place.join("cpuset.mems"), nodes.trim())?;
        }
        for task in &self.tasks {
            fs::write(place.join("cgroup.procs"), task.id().to_string())?;
        }
        Ok(())
    }

    fn leave_cpuset(&mut self) {
        if let Some(place) = self.cpuset.take() {
            // It can be removed only once it has no task, and an empty one harms nothing.
            let _ = fs::remove_dir(place);
        }
    }
}

impl Drop for Hogs {
    fn drop(&mut self) {
        for task in &mut self.tasks {
            let _ = task.kill();
            let _ = task.wait();
        }
        self.leave_cpuset();
    }
}
