//! Boots in rows: what each is for, and how it ends.
//!
//! Any kind follows any other: a clean stop straight behind a replay, so that a checkpoint is made of what was replayed, and
//! another start; power cuts while a start reads back what the start before did, or as soon as it is done; several
//! clean stops; boots that only operators ask anything of.

use sim::Rng;

use crate::profile::Profile;

/// Most boots in a row that do little.
const SHORT_MAX: u64 = 3;
/// Requests of each worker of a boot of operators.
const CONTROL_REQUESTS_MAX: u64 = 5;
/// Events of the disk within which the power goes straight behind a start, as a power of two.
const CUT_SCALE: u64 = 7;

/// The requests of a boot.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Asks {
    /// Requests of the workload.
    All,
    /// Requests of operators.
    Operators,
    /// Nothing.
    Nothing,
}

/// The end of a boot, unless the power goes before.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Ends {
    /// In any way.
    Anyhow,
    /// In order.
    InOrder,
    /// The process ends.
    AtOnce,
    /// The power goes straight behind the start.
    Cut,
}

/// A boot to come.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    pub(super) asks: Asks,
    pub(super) ends: Ends,
    /// True if all data is read at the start.
    pub(super) reads: bool,
}

const USUAL: Plan = Plan { asks: Asks::All, ends: Ends::Anyhow, reads: true };

impl Plan {
    /// All boots of a run; the last one is on a disk that works.
    pub(super) fn draw(profile: &Profile, rng: &mut Rng) -> Vec<Self> {
        let mut plans = Vec::new();
        for _ in 0..profile.boots {
            plans.extend([USUAL]);
            if rng.one_in(if profile.rows { 1 } else { 4 }) {
                plans.extend((0..rng.between(1, SHORT_MAX)).map(|_| Self::short(rng)));
            }
        }
        plans.push(USUAL);
        plans
    }

    fn short(rng: &mut Rng) -> Self {
        let asks = if rng.one_in(2) { Asks::Operators } else { Asks::Nothing };
        let ends = [Ends::InOrder, Ends::InOrder, Ends::AtOnce, Ends::Cut][rng.below(4) as usize];
        Self { asks, ends, reads: rng.one_in(3) }
    }

    /// Returns true if the disk's cache goes on after the boot before this one: it does after every other boot that
    /// runs the workload.
    pub(super) fn goes_on_unflushed(plans: &[Self], boot: usize) -> bool {
        let is_full = |plan: &&Self| plan.asks == Asks::All;
        let before = plans[..boot].iter().filter(is_full).count();
        plans[..boot].last().is_some_and(|last| is_full(&last)) && before % 2 == 1
    }

    /// The profile of such a boot.
    pub(super) fn profile(self, profile: &Profile, rng: &mut Rng) -> Profile {
        match self.asks {
            Asks::All | Asks::Nothing => *profile,
            Asks::Operators => Profile {
                mix: profile.control(),
                requests: rng.between(1, CONTROL_REQUESTS_MAX),
                ..*profile
            },
        }
    }

    /// Events of the disk behind which the power goes when the start is done, if it does.
    pub(super) fn cut_after(self, rng: &mut Rng) -> Option<u64> {
        let spread = 1 << rng.between(1, CUT_SCALE);
        (self.ends == Ends::Cut).then(|| rng.below(spread))
    }
}
