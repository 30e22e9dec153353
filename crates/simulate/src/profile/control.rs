//! Requests of operators.

use sim::Rng;

use super::{Mix, Profile, Workload, errors};

/// Requests of operators, and little else.
const CONTROL: Mix = Mix {
    write: 14,
    clear: 2,
    clear_wide: 1,
    read: 6,
    compare: 1,
    swap: 2,
    resize: 10,
    churn: 6,
    checkpoint: 6,
    scrub: 1,
    share: 0,
    clear_several: 2,
    slo: 14,
    access: 24,
    look: 8,
    knock: 0,
    allot: 0,
    reserve: 0,
};

impl Mix {
    /// The same where there are hosts.
    pub(super) fn of_plane(self) -> Self {
        Self { share: 5, knock: self.access, allot: 1 + self.access / 6, ..self }
    }
}

impl Profile {
    /// The same with the requests of operators, few others, and short boots.
    pub(super) fn controlled(self, rng: &mut Rng) -> Self {
        let shards = if rng.one_in(3) { 2 } else { 1 };
        Self {
            shards,
            busy_shards: shards,
            volumes: self.volumes.max(shards.into()),
            volume_blocks: [8, 40, 1300][rng.below(3) as usize],
            requests: rng.between(4, 16),
            boots: rng.between(2, 4),
            rows: true,
            mix: self.control(),
            faults: if rng.one_in(4) { errors(rng) } else { self.faults },
            ..self
        }
    }

    /// The requests of operators, and few others. Where volumes are to fill the disk, or have a map of three levels, they
    /// stay.
    pub(crate) fn control(&self) -> Mix {
        let mix = if self.plane { CONTROL.of_plane() } else { CONTROL };
        match self.tight || self.workload == Workload::Tall {
            true => Mix { churn: 0, resize: self.mix.resize, ..mix },
            false => mix,
        }
    }
}
