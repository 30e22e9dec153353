//! The memory that a server may have: that of the machine, or what a control group allows if that is less.

use std::fmt;
use std::path::PathBuf;

use units::ByteLen;

use crate::cgroup;

/// The memory that this process may have.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct MemoryBound {
    /// The most that this process may have.
    pub bytes: ByteLen,
    /// The file of the control group that says so; nothing if it is the machine's.
    pub limited_by: Option<PathBuf>,
}

impl MemoryBound {
    /// Finds the smaller of the machine's memory and the limits of control groups.
    pub fn find() -> Self {
        let known = rustix::system::sysinfo();
        let machine = ByteLen(known.totalram.saturating_mul(known.mem_unit.into()));
        match cgroup::memory().filter(|limit| limit.value < machine.0) {
            Some(limit) => Self { bytes: ByteLen(limit.value), limited_by: Some(limit.file) },
            None => Self::of_machine(machine),
        }
    }

    /// The bound of a machine that has so much, without a limit.
    pub fn of_machine(bytes: ByteLen) -> Self {
        Self { bytes, limited_by: None }
    }

    /// Says what came of a limit.
    pub fn tell(&self, core_memory: ByteLen, map_memory: ByteLen) {
        if let Some(file) = &self.limited_by {
            tracing::info!(
                limit = %self.bytes,
                %core_memory,
                %map_memory,
                "memory is limited by {}",
                file.display()
            );
        }
    }
}

impl fmt::Display for MemoryBound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.limited_by {
            Some(file) => write!(f, "{} that {} allows", self.bytes, file.display()),
            None => write!(f, "{} of this machine", self.bytes),
        }
    }
}
