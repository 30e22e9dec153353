//! The ceiling of a device, and rates in the currency of a policy.

use crate::{CLASSES, CostModel, Direction};

/// The throughput of a device within the latency that its operator wants, in blocks of 4 KiB a
/// second: the device ceiling of Decibel, section 3.2.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Ceiling {
    /// Blocks read a second.
    pub reads_per_second: u64,
    /// Blocks written a second.
    pub writes_per_second: u64,
}

/// A rate for each class of cost, in blocks a second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Quota {
    /// By class; see [`CostModel`].
    pub per_second: [f64; CLASSES],
}

impl Quota {
    /// Rates for reads and writes as `model` accounts them. In one currency the two are what a
    /// device does of either kind alone, or a volume of both together; `together` says which.
    #[must_use]
    pub fn new(model: CostModel, reads: f64, writes: f64, together: bool) -> Self {
        match model {
            CostModel::Separate => Self { per_second: [reads, writes] },
            CostModel::WriteCosts { per_mille } => {
                let sum =
                    if together { reads + writes * f64::from(per_mille) / 1000.0 } else { reads };
                Self { per_second: [sum, 0.0] }
            }
        }
    }

    /// The sum.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        let [a, b] = self.per_second;
        let [c, d] = other.per_second;
        Self { per_second: [a + c, b + d] }
    }
}

impl Ceiling {
    /// The ceiling in the currency of `model`.
    #[must_use]
    pub fn quota(&self, model: CostModel) -> Quota {
        Quota::new(model, self.reads_per_second as f64, self.writes_per_second as f64, false)
    }

    /// Blocks a second of one direction.
    #[must_use]
    pub fn rate(&self, direction: Direction) -> u64 {
        match direction {
            Direction::Read => self.reads_per_second,
            Direction::Write => self.writes_per_second,
        }
    }
}
