//! The settings that the study changes one after the other.

/// Scheduling of the reading threads.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Priority {
    /// By CFS, like every other task.
    Fair,
    /// `SCHED_FIFO` at priority 99 (`chrt`).
    Realtime,
}

/// Placement of the drives' interrupts.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Interrupts {
    /// Some were moved to other CPUs by a balancer that does not know the threads.
    Balanced,
    /// Each is handled on the CPU of the drive's thread.
    Pinned,
}

/// Settings of the host and of the drives' firmware.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Tuning {
    /// Scheduling of the reading threads.
    pub priority: Priority,
    /// `isolcpus`, `nohz_full`, `rcu_nocbs` for the readers' CPUs, and `idle=poll`.
    pub isolated: bool,
    /// Placement of interrupts.
    pub interrupts: Interrupts,
    /// The drives save their SMART data regularly.
    pub housekeeping: bool,
}

impl Tuning {
    /// The configuration of figure 6.
    pub const DEFAULT: Self = Self {
        priority: Priority::Fair,
        isolated: false,
        interrupts: Interrupts::Balanced,
        housekeeping: true,
    };
    /// Real-time priority besides, figure 7.
    pub const CHRT: Self = Self { priority: Priority::Realtime, ..Self::DEFAULT };
    /// Isolated CPUs besides, figure 8.
    pub const ISOLCPUS: Self = Self { isolated: true, ..Self::CHRT };
    /// Pinned interrupts besides, figure 9.
    pub const IRQ: Self = Self { interrupts: Interrupts::Pinned, ..Self::ISOLCPUS };
    /// Firmware without housekeeping besides, figure 11.
    pub const FIRMWARE: Self = Self { housekeeping: false, ..Self::IRQ };
}
