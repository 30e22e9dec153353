//! Ways to break the gate on purpose, which its tests must notice.

/// One broken promise.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[cfg_attr(not(test), allow(dead_code, reason = "chosen by tests only"))]
pub(super) enum Sabotage {
    /// G2: a request whose turn came just as its host went keeps its part of the window.
    KeepAdmitted,
    /// G2: requests of a volume that is gone keep their part of the window.
    KeepOfClosed,
    /// G3: requests whose hosts have gone stay in their queue.
    KeepAbandoned,
    /// G4: requests that only time can let in wait until something else happens.
    NoTimer,
    /// A request that is done lets in none of those that wait for room.
    NoPumpWhenDone,
}

#[cfg(test)]
impl Sabotage {
    pub(super) const ALL: [Self; 5] = [
        Self::KeepAdmitted,
        Self::KeepOfClosed,
        Self::KeepAbandoned,
        Self::NoTimer,
        Self::NoPumpWhenDone,
    ];
}

#[cfg(test)]
thread_local! {
    pub(super) static CHOSEN: std::cell::Cell<Option<Sabotage>> =
        const { std::cell::Cell::new(None) };
}

#[cfg(test)]
pub(super) fn broken(which: Sabotage) -> bool {
    CHOSEN.get() == Some(which)
}

#[cfg(not(test))]
pub(super) const fn broken(_: Sabotage) -> bool {
    false
}
