//! Ways to break decisions on purpose, which tests must notice. Outside of them nothing is ever broken.

mutation_points::mutations! {
    if test;
    /// One broken promise.
    #[cfg_attr(not(test), allow(dead_code, reason = "chosen by tests only"))]
    pub(crate) enum Sabotage {
        /// The device of a living host is taken.
        TakeFromLiving,
        /// The fence of the former holder is not waited for (N3).
        NoWaitForFence,
    }

    /// Breaks the decisions of this thread so from now on, or no more.
    pub(crate) fn sabotage;
    /// Returns whether this promise is broken.
    pub(crate) fn broken;
}
