//! Ways to break the gate on purpose, which its tests must notice.

mutation_points::mutations! {
    if test;
    /// One broken promise.
    #[cfg_attr(not(test), allow(dead_code, reason = "chosen by tests only"))]
    pub(super) enum Sabotage {
        /// GATE-2: a request whose turn came just as its host went keeps its part of the window.
        KeepAdmitted,
        /// GATE-2: requests of a volume that is gone keep their part of the window.
        KeepOfClosed,
        /// GATE-3: requests whose hosts have gone stay in their queue.
        KeepAbandoned,
        /// GATE-4: requests that only time can let in wait until something else happens.
        NoTimer,
        /// A request that is done lets in none of those that wait for room.
        NoPumpWhenDone,
    }

    /// Breaks the gates of this thread so from now on, or no more.
    pub(super) fn sabotage;
    /// Returns whether this promise is broken.
    pub(super) fn broken;
}
