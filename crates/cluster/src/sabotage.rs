//! Deliberately broken decisions, for tests that have to notice them.

use std::cell::Cell;

/// One broken promise.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Sabotage {
    /// The claim is not compared with the one that was read.
    ClaimNotCompared,
    /// The registration of the former holder is not compared (F7).
    HolderNotCompared,
    /// The note of the former holder's registration is not compared (F7).
    RegistrationNotCompared,
    /// A living host's device is taken.
    TakeFromLiving,
    /// The fence of the former holder is not waited for (N3).
    NoWaitForFence,
    /// The wait for a fence has no room for clocks that run apart (N3).
    NoRoomForDrift,
    /// The transaction does not compare the session (E5).
    SessionNotCompared,
    /// A late confirmation undoes the end of a tenure (N4).
    ConfirmWhatIsOver,
    /// Requests to devices never end by time.
    DevicesNeverEnd,
    /// A device that carries a later claim is taken all the same (F9).
    IgnoreMark,
    /// A forgotten device is taken without an operator's word (F8).
    TakeForgotten,
    /// A lost claim does not end the tenure (N4).
    LossDoesNotEnd,
}

thread_local! {
    static CHOSEN: Cell<Option<Sabotage>> = const { Cell::new(None) };
}

/// Breaks this promise in the calling thread from now on; `None` breaks none.
pub fn sabotage(which: Option<Sabotage>) {
    CHOSEN.set(which);
}

pub(crate) fn is_on(which: Sabotage) -> bool {
    CHOSEN.get() == Some(which)
}
