//! Which CPUs there are to be had, and which of them cores are bound to.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// What threads that are no cores may use.
static CPUS: Mutex<Option<Cpus>> = Mutex::new(None);

/// Counts the cores that were bound.
static BOUND: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// Of how many cores this thread has left the CPUs.
    static LEFT: Cell<u64> = const { Cell::new(0) };
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
        BOUND.fetch_add(1, Ordering::Relaxed);
    }
    true
}

/// Takes the calling thread off the CPUs that cores are bound to, one of which may have started it; if there are no
/// others, it may use all. Costs nothing where no core was bound since this thread did so last.
pub fn leave_cores() {
    let bound = BOUND.load(Ordering::Relaxed);
    if LEFT.replace(bound) == bound {
        return;
    }
    let cpus = CPUS.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(Cpus { allowed, of_cores }) = &*cpus else { return };
    let mut others = *allowed;
    (0..CpuSet::MAX_CPU).filter(|cpu| of_cores.is_set(*cpu)).for_each(|cpu| others.unset(cpu));
    let set = if others.count() == 0 { allowed } else { &others };
    // Where it is refused, CPUs were taken from the process meanwhile: the thread stays where it is.
    let _ = sched_setaffinity(None, set);
}
