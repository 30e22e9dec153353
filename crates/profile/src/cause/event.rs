//! Kernel events that tell why a request was slow.

use std::sync::Arc;

/// A task as the scheduler names it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Task {
    /// Thread number; 0 is the idle task.
    pub tid: u32,
    /// Name.
    pub name: Arc<str>,
    /// Priority as the kernel counts: below 100 is real time.
    pub priority: i32,
}

impl Task {
    /// Returns true for the idle task.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.tid == 0
    }

    /// Returns true for a task with a real-time priority.
    #[must_use]
    pub fn is_realtime(&self) -> bool {
        self.priority < 100
    }
}

/// An event on a CPU.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Event {
    /// Time of the monotonic clock.
    pub at_ns: u64,
    /// The CPU.
    pub cpu: u32,
    /// Its kind.
    pub kind: Kind,
}

/// Kinds of events.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Kind {
    /// The CPU goes from one task to another.
    Switch {
        /// The task that ran.
        previous: u32,
        /// The task is still ready to run.
        still_ready: bool,
        /// The task that runs now.
        next: Task,
    },
    /// A task is woken.
    Waking {
        /// The task.
        tid: u32,
    },
    /// The handler of an interrupt, softirq or vector begins.
    InterruptBegin {
        /// Its name.
        name: Arc<str>,
    },
    /// The handler that began last ends.
    InterruptEnd,
    /// The CPU enters an idle state.
    IdleBegin {
        /// The number of the state; 0 polls.
        state: u32,
    },
    /// The CPU leaves its idle state.
    IdleEnd,
    /// A request goes to a drive.
    Issue {
        /// The task that issued it.
        tid: u32,
        /// The drive.
        device: u32,
        /// The first sector.
        sector: u64,
    },
    /// A drive completed a request.
    Complete {
        /// The drive.
        device: u32,
        /// The first sector.
        sector: u64,
    },
}
