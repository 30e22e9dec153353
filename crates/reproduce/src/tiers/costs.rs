//! Times that the models of the tiers are made of, and where they come from.
//!
//! Costs of iSCSI follow from what "Flash Storage Disaggregation" states of 4 kB reads in section 3.3, not from its results
//! with applications:
//!
//! - One tenant, several processes: 46 500 reads/s over one connection, whose process is then the limit: 21.5 µs of it.
//! - Six tenants: 2.3 times the 6 × 10 500 reads/s of single processes, on six cores: 41.4 µs of CPU.
//! - Each further step divides these by its gain: with six tenants 1.22, 1.075 and 1.11 of all CPU time, with one tenant 1.08,
//!   1.075 and 1.21 of the connection's.
//!
//! The initiator is assumed to cost what the target does.
//!
//! Costs of the datastore and of farflash are stated here, too, and can be replaced by those that were measured on a machine:
//! see [`CpuCosts`].

use serde::Serialize;

/// Software between a datastore and remote Flash.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stack {
    /// CPU time of a request of 4 KiB at the datastore's server.
    pub(crate) initiator_ns: u64,
    /// The same at the Flash server.
    pub(crate) target_ns: u64,
    /// Part of that which a connection does for one request after the other.
    pub(crate) serial_ns: u64,
    /// CPU time of each further byte, on either side.
    pub(crate) ns_per_byte: f64,
    /// Processes of a session, each of which waits for the drive; without, nothing waits.
    pub(crate) processes: Option<u32>,
}

/// Ways to tune an iSCSI target, each with those before.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Step {
    OneProcess,
    /// The default of the package.
    EightProcesses,
    SixProcesses,
    Offload,
    Jumbo,
    Affinity,
}

impl Step {
    /// In the order of figure 3; the default of eight processes is none of them.
    pub(crate) const ALL: [Self; 5] =
        [Self::OneProcess, Self::SixProcesses, Self::Offload, Self::Jumbo, Self::Affinity];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::OneProcess => "one process",
            Self::EightProcesses => "eight processes",
            Self::SixProcesses => "six processes",
            Self::Offload => "NIC offload",
            Self::Jumbo => "jumbo frames",
            Self::Affinity => "interrupt affinity",
        }
    }
}

/// Gain of jumbo frames, which the paper has from 3 to 12 %.
const JUMBO: f64 = 1.075;
/// Loss by more processes than cores.
const TOO_MANY: f64 = 1.1;
/// Copies: two passes over the bytes at 2 GB/s each.
const ISCSI_NS_PER_BYTE: f64 = 1.0;

/// iSCSI at a step of tuning.
pub(crate) fn iscsi(step: Step) -> Stack {
    let (mut target, mut serial) = (41_400.0, 21_500.0);
    if step == Step::EightProcesses {
        (target, serial) = (target * TOO_MANY, serial * TOO_MANY);
    }
    if matches!(step, Step::Offload | Step::Jumbo | Step::Affinity) {
        (target, serial) = (target / 1.22, serial / 1.08);
    }
    if matches!(step, Step::Jumbo | Step::Affinity) {
        (target, serial) = (target / JUMBO, serial / JUMBO);
    }
    if step == Step::Affinity {
        (target, serial) = (target / 1.11, serial / 1.21);
    }
    let processes = match step {
        Step::OneProcess => 1,
        Step::EightProcesses => 8,
        _ => 6,
    };
    Stack {
        initiator_ns: target as u64,
        target_ns: target as u64,
        serial_ns: serial as u64,
        ns_per_byte: ISCSI_NS_PER_BYTE,
        processes: Some(processes),
    }
}

/// CPU times of software that runs on this machine, too, so that they can be measured; those of iSCSI follow from the paper.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct CpuCosts {
    /// A get at the datastore, besides the cost of remote Flash.
    pub get_ns: u64,
    /// A set at the datastore, with the flushes and compactions that it causes.
    pub set_ns: u64,
    /// A read of 4 KiB from farflash: at the datastore's server.
    pub initiator_ns: u64,
    /// The same at the Flash server.
    pub target_ns: u64,
    /// Each further byte of it, on either side.
    pub ns_per_byte: f64,
}

impl CpuCosts {
    /// A get: 6 cores that serve 50 000 a second, as in the paper's worked example. A set: assumed. farflash, by
    /// docs/benchmark-figures.md: 1.67 µs of the server's CPU for a read of 4 KiB at depth 32, no more of a client that drives
    /// 588 000 of them a second, and 48 µs for one of 128 KiB. A drive's queue is assumed to cost as much again as the server,
    /// since that was measured in memory.
    pub const STATED: Self = Self {
        get_ns: 120_000,
        set_ns: 60_000,
        initiator_ns: 1_700,
        target_ns: 3_400,
        ns_per_byte: 0.35,
    };

    /// farflash between a datastore and its Flash: a connection is served by one core.
    pub(crate) fn farflash(&self) -> Stack {
        Stack {
            initiator_ns: self.initiator_ns,
            target_ns: self.target_ns,
            serial_ns: self.target_ns,
            ns_per_byte: self.ns_per_byte,
            processes: None,
        }
    }
}

/// Cores of a datastore server and of a Flash server: one socket.
pub(crate) const CORES: u32 = 6;
/// Reader threads of a datastore.
pub(crate) const READERS: u32 = 16;
/// Part of a get's CPU time before the read of Flash; assumed.
pub(crate) const GET_BEFORE: f64 = 0.6;
/// Share of gets that memory serves: a block cache of 10 to 15 % and 4 of 24 GB in the page cache.
pub(crate) const HITS: f64 = 0.27;
/// Blocks of a read of Flash: 10 kB.
pub(crate) const READ_BLOCKS: u64 = 3;
/// Bytes written to Flash for a set, by flushes and compactions; assumed, between the 100 bytes that it appends ten times over
/// and the whole value of 10 kB.
pub(crate) const BYTES_PER_SET: f64 = 4_000.0;
/// Blocks of a write as the kernel hands it to a drive: 128 KiB.
pub(crate) const WRITE_BLOCKS: u64 = 32;
/// Writes of a datastore outstanding: four background jobs of 500 kB.
pub(crate) const WRITES_MAX: u32 = 16;
/// A datastore writes for so long in each period; assumed.
pub(crate) const WRITE_PERIOD_NS: u64 = 500_000_000;
pub(crate) const WRITE_BURST_NS: u64 = 200_000_000;
/// From one host to another: cables, switch, and kernel, without the wait for the interrupt.
pub(crate) const HOP_NS: u64 = 10_000;
/// Longest wait of a packet for the NIC's interrupt: the driver's default of the NIC.
pub(crate) const INTERRUPT_NS: u64 = 60_000;
/// Bytes a second of a link.
pub(crate) const LINK_BYTES_PER_SECOND: f64 = 1.25e9;
