//! Ways to break decisions on purpose, so that tests can show that they would notice.
//!
//! Without the feature `sabotage` nothing is ever broken, and the compiler removes every trace.

mutation_points::mutations! {
    if any(test, feature = "sabotage");
    /// One broken promise.
    #[cfg_attr(not(feature = "sabotage"), allow(unreachable_pub, reason = "named by tests only"))]
    #[cfg_attr(not(any(test, feature = "sabotage")), allow(dead_code, reason = "chosen by tests only"))]
    pub enum Sabotage {
        /// The device of a living host is taken (CLAIM-7).
        TakeFromLiving,
        /// The fence of the former holder is not waited for (TENURE-3).
        NoWaitForFence,
        /// A later mark on the device is not looked at (CLAIM-9).
        IgnoreMark,
        /// A claim that is another's is kept (CLAIM-4).
        KeepLost,
        /// The session goes on when its lease has ended, and its record with it (SESSION-1).
        OutliveLease,
        /// That a watch is silent is not noticed (SESSION-7).
        TrustWatch,
        /// A name is taken that another volume has.
        TakeAnyName,
        /// A change is judged by an old view, or another comes between (QUOTA-1).
        JudgeAlone,
        /// A quota is divided although another has divided it meanwhile.
        RegrantBlindly,
        /// The name of a volume that is gone stays taken.
        KeepName,
    }

    /// Breaks the decisions of this thread so from now on, or no more.
    pub fn sabotage;
    /// Returns whether this promise is broken.
    pub(crate) fn broken;
}
