//! CPUs of this machine, and of its reading threads.

use std::fs;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The CPUs that this process may use.
#[must_use]
pub fn allowed_cpus() -> Vec<u32> {
    let Ok(set) = sched_getaffinity(None) else { return vec![0] };
    (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).map(|cpu| cpu as u32).collect()
}

/// The last of the CPUs that this process may use: the first ones have most of the system's own work.
pub(crate) fn default_cpus(drives: usize) -> Vec<u32> {
    let mut cpus = allowed_cpus();
    cpus.split_off(cpus.len().saturating_sub(drives.max(1)))
}

/// Pins the calling thread to one of `cpus`.
pub(crate) fn pin(cpus: &[u32]) -> std::io::Result<()> {
    let mut set = CpuSet::new();
    cpus.iter().for_each(|cpu| set.set(*cpu as usize));
    Ok(sched_setaffinity(None, &set)?)
}

/// Leaves the CPUs of the reading threads, if there are others.
pub(crate) fn leave(readers: &[u32]) {
    let mut others = allowed_cpus();
    others.retain(|cpu| !readers.contains(cpu));
    if !others.is_empty() {
        // If it is refused, the collector runs beside a reader, and is seen as a cause.
        let _ = pin(&others);
    }
}

/// Time that a CPU needs to leave each idle state, as the kernel's driver knows it.
pub(crate) fn leave_idle_ns() -> Vec<u64> {
    let latency = |state: usize| {
        let path = format!("/sys/devices/system/cpu/cpu0/cpuidle/state{state}/latency");
        let us: u64 = fs::read_to_string(path).ok()?.trim().parse().ok()?;
        Some(us * 1000)
    };
    (0..).map_while(latency).collect()
}
