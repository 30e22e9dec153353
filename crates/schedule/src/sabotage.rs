//! Ways to break the scheduler on purpose, so that tests can show that they would notice.
//!
//! Without the feature `sabotage` nothing is ever broken, and the compiler removes every trace.

/// One broken promise.
#[cfg_attr(not(feature = "sabotage"), allow(unreachable_pub, reason = "named by tests only"))]
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Sabotage {
    /// A request that leaves at once does not come off the ceiling.
    UnchargedAtOnce,
    /// A request that leaves at once does not come off its flow's quota.
    FreeAtOnce,
    /// What a flow has overdrawn is forgotten when its queue is empty.
    ForgetDebt,
    /// D4: what a flow takes beyond its quota comes off the quota.
    BeyondIsHeldAgainst,
    /// A flow that waits beyond its quota stays there when the quota has come in.
    NoReturn,
    /// A change of the ceiling, also to the same, fills what may be taken at once.
    RefillByCeiling,
    /// The same of a change of a quota.
    RefillByQuota,
    /// T1: unused quota is kept without end.
    KeepUnused,
    /// A core's parts of reads and of writes are both its part of all.
    PartsByPart,
    /// What volumes with a rate leave is given to each with a share, whole.
    RestForEach,
    /// What was under way for a flow that is removed stays in the window.
    WindowOfGone,
}

#[cfg(feature = "sabotage")]
mod chosen {
    extern crate std;

    use core::cell::Cell;

    use super::Sabotage;

    std::thread_local! {
        pub(super) static CHOSEN: Cell<Option<Sabotage>> = const { Cell::new(None) };
    }
}

/// Breaks the schedulers of this thread so from now on, or no more.
#[cfg(feature = "sabotage")]
pub fn sabotage(which: Option<Sabotage>) {
    chosen::CHOSEN.set(which);
}

/// Whether this promise is broken.
#[cfg(feature = "sabotage")]
pub(crate) fn broken(which: Sabotage) -> bool {
    chosen::CHOSEN.get() == Some(which)
}

/// Whether this promise is broken.
#[cfg(not(feature = "sabotage"))]
#[inline(always)]
pub(crate) const fn broken(_: Sabotage) -> bool {
    false
}
