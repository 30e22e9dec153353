//! Cases to measure: a server or device under a shape of load.

use serde::{Deserialize, Serialize};

/// The server or device that answers.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Subject {
    /// The machine's limit.
    Null,
    /// The same for blocks that come from all over a GiB.
    NullScattered,
    /// The same, each checked.
    NullChecked,
    /// farflash on memory: a volume that the cases before have overwritten in blocks of 4 KiB.
    FarflashMem,
    /// The same server: a volume that was written from its first block to its last, once.
    FarflashMemInOrder,
    /// farflash on a file.
    FarflashFile,
    /// A file without a network.
    LocalFile,
    /// The same file over a network, by a server that does nothing else.
    NullFile,
    /// nbdkit on memory.
    NbdkitMem,
    /// nbdkit on a file.
    NbdkitFile,
    /// qemu-nbd on a file.
    QemuNbdFile,
}

/// Load.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
pub(crate) struct Shape {
    pub(crate) write: bool,
    pub(crate) block_bytes: u64,
    pub(crate) depth: u32,
    pub(crate) connections: u32,
    /// Bytes that the addresses are drawn from.
    pub(crate) range_bytes: u64,
}

/// One line of the comparison.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
pub(crate) struct Case {
    pub(crate) subject: Subject,
    pub(crate) shape: Shape,
}

/// One measurement.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
pub(crate) struct Sample {
    pub(crate) iops: f64,
    pub(crate) mean_us: f64,
    pub(crate) p99_us: Option<f64>,
    /// Processor time of the server, or of the issuing program if there is none.
    pub(crate) cpu_us_per_request: Option<f64>,
    pub(crate) system_calls_per_request: Option<f64>,
}

pub(crate) const GIB: u64 = 1 << 30;
const MIB: u64 = 1 << 20;

impl Shape {
    pub(crate) const fn random(write: bool, depth: u32) -> Self {
        Self { write, block_bytes: 4096, depth, connections: 1, range_bytes: GIB }
    }

    pub(crate) const READ_1: Self = Self::random(false, 1);
    pub(crate) const READ_32: Self = Self::random(false, 32);
    pub(crate) const READ_128: Self = Self::random(false, 128);
    pub(crate) const READ_128_HOT: Self = Self { range_bytes: 16 * MIB, ..Self::READ_128 };
    pub(crate) const WRITE_1: Self = Self::random(true, 1);
    pub(crate) const WRITE_32: Self = Self::random(true, 32);
    pub(crate) const LARGE_READ: Self = Self { block_bytes: 128 << 10, ..Self::random(false, 8) };
    pub(crate) const READ_4X32: Self = Self { connections: 4, ..Self::READ_32 };
    pub(crate) const READ_64X8: Self = Self { connections: 64, ..Self::random(false, 8) };

    pub(crate) fn name(&self) -> String {
        let way = if self.write { "write" } else { "read" };
        let size = self.block_bytes >> 10;
        let hot = if self.range_bytes < GIB { ", 16 MiB set" } else { "" };
        let depth = match self.connections {
            1 => format!("depth {}", self.depth),
            many => format!("{many} × depth {}", self.depth),
        };
        format!("random {way} {size} KiB, {depth}{hot}")
    }

    pub(crate) fn outstanding(&self) -> f64 {
        f64::from(self.depth) * f64::from(self.connections)
    }
}

impl Subject {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Null => "null server",
            Self::NullScattered => "null, of 1 GiB",
            Self::NullChecked => "null, checked",
            Self::FarflashMem => "farflash mem:",
            Self::FarflashMemInOrder => "mem:, in order",
            Self::FarflashFile => "farflash file:",
            Self::LocalFile => "local file",
            Self::NullFile => "null, of a file",
            Self::NbdkitMem => "nbdkit memory",
            Self::NbdkitFile => "nbdkit file",
            Self::QemuNbdFile => "qemu-nbd file",
        }
    }

    pub(crate) fn is_on_file(self) -> bool {
        matches!(
            self,
            Self::FarflashFile
                | Self::LocalFile
                | Self::NullFile
                | Self::NbdkitFile
                | Self::QemuNbdFile
        )
    }
}

/// All cases, those that are compared with each other side by side.
pub(crate) fn all() -> Vec<Case> {
    let mut cases = Vec::new();
    let mut add = |shape: Shape, subjects: &[Subject]| {
        cases.extend(subjects.iter().map(|subject| Case { subject: *subject, shape }));
    };
    use Subject::{FarflashFile, FarflashMem, LocalFile, NbdkitFile, NbdkitMem, Null, QemuNbdFile};
    use Subject::{FarflashMemInOrder, NullChecked, NullFile, NullScattered};
    add(Shape::READ_1, &[Null, FarflashMem, NbdkitMem, LocalFile, FarflashFile]);
    add(Shape::READ_32, &[Null, NullScattered, NullChecked, FarflashMem, NbdkitMem]);
    add(Shape::READ_32, &[LocalFile, NullFile, FarflashFile, NbdkitFile, QemuNbdFile]);
    add(Shape::READ_128, &[Null, NullScattered, FarflashMem]);
    add(Shape::READ_128_HOT, &[FarflashMem]);
    add(Shape::WRITE_1, &[Null, FarflashMem]);
    add(Shape::WRITE_32, &[Null, FarflashMem, NbdkitMem]);
    add(Shape::WRITE_32, &[LocalFile, FarflashFile]);
    let large = [Null, NullScattered, NullChecked, FarflashMem, FarflashMemInOrder];
    add(Shape::LARGE_READ, &large);
    add(Shape::READ_4X32, &[FarflashMem]);
    add(Shape::READ_64X8, &[FarflashMem]);
    cases
}
