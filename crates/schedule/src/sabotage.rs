//! Ways to break the scheduler on purpose, so that tests can show that they would notice.
//!
//! Without the feature `sabotage` nothing is ever broken, and the compiler removes every trace.

mutation_points::mutations! {
    if feature = "sabotage";
    /// One broken promise.
    #[cfg_attr(not(feature = "sabotage"), allow(unreachable_pub, reason = "named by tests only"))]
    pub enum Sabotage {
        /// A request that leaves at once does not come off the ceiling.
        UnchargedAtOnce,
        /// A request that leaves at once does not come off its flow's quota.
        FreeAtOnce,
        /// The overdraft of a flow is forgotten when its queue is empty.
        ForgetDebt,
        /// DRR-4: what a flow takes beyond its quota comes off the quota.
        BeyondIsHeldAgainst,
        /// A flow that waits beyond its quota stays there when the quota has come in.
        NoReturn,
        /// A change of the ceiling, also to the same, fills what may be taken at once.
        RefillByCeiling,
        /// The same of a change of a quota.
        RefillByQuota,
        /// STS-1: unused quota is kept without end.
        KeepUnused,
        /// A core's parts of reads and of writes are both its part of all.
        PartsByPart,
        /// The capacity that volumes with a rate leave is given to each with a share, whole.
        RestForEach,
        /// The requests under way for a flow that is removed stay in the window.
        WindowOfGone,
    }

    /// Breaks the schedulers of this thread so from now on, or no more.
    pub fn sabotage;
    /// Returns whether this promise is broken.
    pub(crate) fn broken;
}
