//! Assigns CPUs: the available ones, and those of them that cores are bound to.

use std::cell::Cell;
use std::sync::{Mutex, PoisonError};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// CPUs for threads that are no cores.
static CPUS: Mutex<Option<Cpus>> = Mutex::new(None);

thread_local! {
    /// The CPUs that this thread was given when it left those of the cores.
    static GIVEN: Cell<Option<CpuSet>> = const { Cell::new(None) };
}

struct Cpus {
    /// Those of the process before a thread of it was bound.
    allowed: CpuSet,
    of_cores: CpuSet,
}

/// CPUs that this process may run on.
#[must_use]
pub fn allowed_cpus() -> Vec<usize> {
    let Ok(set) = sched_getaffinity(None) else { return Vec::new() };
    (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect()
}

/// Binds the calling thread, a core, to `cpu`; `false` if that CPU is not to be had.
pub(crate) fn pin_to(cpu: usize) -> bool {
    if cpu >= CpuSet::MAX_CPU {
        return false;
    }
    let mut cpus = CPUS.lock().unwrap_or_else(PoisonError::into_inner);
    let allowed = sched_getaffinity(None);
    let mut set = CpuSet::new();
    set.set(cpu);
    if sched_setaffinity(None, &set).is_err() {
        return false;
    }
    if let Ok(allowed) = allowed {
        cpus.get_or_insert(Cpus { allowed, of_cores: CpuSet::new() }).of_cores.set(cpu);
    }
    true
}

/// Takes the calling thread, which is no core, off the CPUs that cores are bound to, one of which may have started it;
/// if there are no others, it may use all. The system is told only where that changes what it was told last.
pub fn leave_cores() {
    let Some(others) = others() else { return };
    if GIVEN.get() == Some(others) {
        return;
    }
    // Where it is refused, CPUs were taken from the process meanwhile: the thread stays where it is.
    if sched_setaffinity(None, &others).is_ok() {
        GIVEN.set(Some(others));
    }
}

/// CPUs for threads that are no cores; `None` while no core was bound to any.
fn others() -> Option<CpuSet> {
    let cpus = CPUS.lock().unwrap_or_else(PoisonError::into_inner);
    let Cpus { allowed, of_cores } = cpus.as_ref()?;
    let mut others = *allowed;
    (0..CpuSet::MAX_CPU).filter(|cpu| of_cores.is_set(*cpu)).for_each(|cpu| others.unset(cpu));
    Some(if others.count() == 0 { *allowed } else { others })
}
