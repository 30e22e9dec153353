//! Tasks that never sleep, one for each CPU.

use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_setaffinity};

/// Running tasks; they end with this value, or soon after this process.
pub(super) struct Hogs(Vec<(usize, Child)>);

impl Hogs {
    /// Starts a task on each of `cpus`.
    pub(super) fn start(cpus: &[usize]) -> Result<Self> {
        // A killed parent takes no task with it: each looks for it about ten times a second.
        let script = format!(
            "while [ -d /proc/{} ]; do n=0; while [ $n -lt 100000 ]; do n=$((n+1)); done; done",
            std::process::id()
        );
        let mut hogs = Self(Vec::new());
        for cpu in cpus {
            let mut task = Command::new("sh");
            task.args(["-c", &script]).stdin(Stdio::null()).stdout(Stdio::null());
            let task = task.spawn().context("start a shell")?;
            hogs.0.push((*cpu, task));
        }
        for (cpu, task) in &hogs.0 {
            pin(task, *cpu)?;
        }
        Ok(hogs)
    }

    /// Moves the task of CPU `from` to CPU `to`.
    pub(super) fn leave(&mut self, from: usize, to: usize) -> Result<()> {
        for (cpu, task) in self.0.iter_mut().filter(|(cpu, _)| *cpu == from) {
            pin(task, to)?;
            *cpu = to;
        }
        Ok(())
    }
}

fn pin(task: &Child, cpu: usize) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu);
    Ok(sched_setaffinity(Some(Pid::from_child(task)), &set)?)
}

impl Drop for Hogs {
    fn drop(&mut self) {
        for (_, task) in &mut self.0 {
            // It may have ended already.
            let _ = task.kill();
            let _ = task.wait();
        }
    }
}
