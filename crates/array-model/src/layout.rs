//! CPUs of the machine, and the thread of each drive on them.
//!
//! The numbering is that of the study (III-A and figure 5): two sockets of ten cores with two hardware threads each.
//! CPUs `c` and `c + 20` are threads of one core; CPUs 0 to 3 and 20 to 23 are left to the system.

/// Logical CPUs.
pub const CPUS: usize = 40;
/// Drives of the whole array.
pub const DRIVES: usize = 64;
/// Physical cores.
const CORES: usize = 20;
const CORES_PER_SOCKET: usize = 10;
/// The first cores are left to the system.
const SYSTEM_CORES: usize = 4;

/// A logical CPU, below [`CPUS`].
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct CpuIndex(pub u8);

impl CpuIndex {
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        (0..CPUS as u8).map(Self)
    }

    pub(crate) fn at(self) -> usize {
        usize::from(self.0)
    }

    /// The physical core.
    #[must_use]
    pub fn core(self) -> usize {
        self.at() % CORES
    }

    /// The socket.
    #[must_use]
    pub fn socket(self) -> usize {
        self.core() / CORES_PER_SOCKET
    }

    /// The other hardware thread of the core.
    #[must_use]
    pub fn sibling(self) -> Self {
        Self(((self.at() + CORES) % CPUS) as u8)
    }

    /// True for CPUs that are left to the system.
    #[must_use]
    pub fn is_systems(self) -> bool {
        self.core() < SYSTEM_CORES
    }
}

/// Drives that share a physical core (table II of the study).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Density {
    /// Four on a core, two on each of its CPUs: all drives in one run.
    Four,
    /// Two on a core, one on each of its CPUs.
    Two,
    /// One on a core, whose other CPU stays free.
    One,
    /// One drive on the whole machine.
    Alone,
}

/// Threads of one run: which CPU reads each drive.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Layout {
    cpus: Vec<CpuIndex>,
    runs: usize,
}

impl Layout {
    /// The layout by which `drives` drives are read, in as many runs as it takes. `drives` is a multiple of four, at
    /// least four and at most [`DRIVES`]; cores that have no drive then stay idle.
    ///
    /// # Panics
    /// Another number of drives.
    #[must_use]
    pub fn new(density: Density, drives: usize) -> Self {
        assert!(
            drives.is_multiple_of(4) && (4..=DRIVES).contains(&drives),
            "drives come in fours, up to {DRIVES}, not {drives}"
        );
        let cores = SYSTEM_CORES..SYSTEM_CORES + drives / 4;
        // The first hardware threads of all cores, then the second ones, as in figure 5.
        let first = cores.clone().map(|core| CpuIndex(core as u8));
        let second = first.clone().map(CpuIndex::sibling);
        let both: Vec<CpuIndex> = first.clone().chain(second).collect();
        let cpus: Vec<CpuIndex> = match density {
            Density::Four => both.repeat(2),
            Density::Two => both,
            Density::One => first.collect(),
            Density::Alone => first.take(1).collect(),
        };
        let runs = drives / cpus.len();
        Self { cpus, runs }
    }

    /// The CPU of each thread of a run.
    #[must_use]
    pub fn cpus(&self) -> &[CpuIndex] {
        &self.cpus
    }

    /// Runs, with drives of their own, until each drive was read.
    #[must_use]
    pub fn runs(&self) -> usize {
        self.runs
    }

    /// Threads on the fullest logical CPU.
    #[must_use]
    pub fn threads_per_cpu(&self) -> usize {
        self.most(CpuIndex::at)
    }

    /// Drives on the fullest physical core.
    #[must_use]
    pub fn drives_per_core(&self) -> usize {
        self.most(CpuIndex::core)
    }

    fn most(&self, group: impl Fn(CpuIndex) -> usize) -> usize {
        let mut counts = [0; CPUS];
        self.cpus.iter().for_each(|cpu| counts[group(*cpu)] += 1);
        counts.into_iter().max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Figure 5: nvme(0) and nvme(32) on cpu(4), nvme(31) and nvme(63) on cpu(39).
    #[test]
    fn threads_lie_where_the_study_has_them() {
        let layout = Layout::new(Density::Four, DRIVES);
        let cpu = |drive: usize| layout.cpus()[drive].0;
        assert_eq!([cpu(0), cpu(32), cpu(31), cpu(63)], [4, 4, 39, 39]);
        assert!(layout.cpus().iter().all(|cpu| !cpu.is_systems()));
        assert_eq!((CpuIndex(4).sibling(), CpuIndex(39).sibling()), (CpuIndex(24), CpuIndex(19)));
        assert_eq!(
            [0, 9, 10, 19, 20, 29, 30, 39].map(|cpu| CpuIndex(cpu).socket()),
            [0, 0, 1, 1, 0, 0, 1, 1]
        );
    }

    #[test]
    fn every_drive_is_read_once() {
        for density in [Density::Four, Density::Two, Density::One, Density::Alone] {
            for drives in [8, 64] {
                let layout = Layout::new(density, drives);
                assert_eq!(layout.cpus().len() * layout.runs(), drives, "{density:?}");
            }
        }
    }
}
