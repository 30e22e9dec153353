//! Ways to break the care of blocks on purpose, so that tests can show that they would notice.
//!
//! Without the feature `sabotage` nothing is ever broken, and the compiler removes every trace.

mutation_points::mutations! {
    if any(test, feature = "sabotage");
    /// One broken promise.
    #[cfg_attr(not(feature = "sabotage"), allow(unreachable_pub, reason = "named by tests only"))]
    pub enum Sabotage {
        /// FLUSH-1: a flush begins though it is not known what came of the one before.
        FlushBeforeKnown,
        /// A freed block is handed out while it is being read.
        ReuseWhileRead,
    }

    /// Breaks the shards of this thread so from now on, or no more.
    #[cfg_attr(not(feature = "sabotage"), allow(unreachable_pub, reason = "called by tests only"))]
    pub fn sabotage;
    /// Returns whether this promise is broken.
    pub(crate) fn broken;
}
