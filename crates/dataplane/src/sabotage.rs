//! Ways to break a core on purpose, so that tests can show that they would notice.
//!
//! Without the feature `sabotage` nothing is ever broken, and the compiler removes every trace.

/// One broken promise.
#[cfg_attr(not(feature = "sabotage"), allow(unreachable_pub, reason = "named by tests only"))]
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Sabotage {
    /// A token opens its volume when its grace is over.
    KeepExpiredTokens,
    /// Any host may open a volume, whatever its restrictions are.
    IgnoreRestrictions,
    /// Restrictions hold until the server starts again.
    StartForgetsRestrictions,
    /// A change of access holds from the next start on.
    KeepOldAccess,
    /// A change of access holds before it is durable.
    AccessBeforeRecord,
    /// T5: hosts are not cut that are to be cut.
    CutNobody,
    /// T5: hosts are not cut that no longer qualify.
    KeepUnqualified,
    /// The volumes that a start finds are bound by no allotment.
    StartUnbound,
}

#[cfg(feature = "sabotage")]
thread_local! {
    static CHOSEN: std::cell::Cell<Option<Sabotage>> = const { std::cell::Cell::new(None) };
}

/// Breaks the cores of this thread so from now on, or no more.
#[cfg(feature = "sabotage")]
pub fn sabotage(which: Option<Sabotage>) {
    CHOSEN.set(which);
}

/// Whether this promise is broken.
#[cfg(feature = "sabotage")]
pub(crate) fn broken(which: Sabotage) -> bool {
    CHOSEN.get() == Some(which)
}

/// Whether this promise is broken.
#[cfg(not(feature = "sabotage"))]
#[inline(always)]
pub(crate) const fn broken(_: Sabotage) -> bool {
    false
}
