//! Named situations that the simulator is to reach, and counters of them.
//!
//! A situation is a state or an event of the code under test that few runs come to. The code says that it is there:
//! `situation(Situation::X)`. The simulator counts how often, and names those that it never reached.
//!
//! Without the feature `counted` nothing is counted, and the compiler removes every trace.
//!
//! To add one: a line in `table.rs`, and a call of [`situation`] where it occurs. What the power is to cut into is a
//! [`Phase`], also a line there, and a guard of [`during`].
//!
//! Absent from this crate: what a situation means for a run, and what is checked in it.

#![cfg_attr(not(feature = "counted"), no_std)]

#[cfg(feature = "counted")]
mod counted;
mod table;

#[cfg(feature = "counted")]
pub use counted::{During, apart, begin_world, during, is_during, power_goes, situation, take};
pub use table::{Phase, Share, Situation};

/// Counts the situation if `is_reached` says so. That is asked only where situations are counted.
#[inline(always)]
pub fn situation_if(which: Situation, is_reached: impl FnOnce() -> bool) {
    if cfg!(feature = "counted") && is_reached() {
        situation(which);
    }
}

/// Counts `which` if this happens within `phase`.
#[inline(always)]
pub fn situation_during(phase: Phase, which: Situation) {
    if is_during(phase) {
        situation(which);
    }
}

/// As [`during`], if `is_begun` says so. That is asked only where situations are counted.
#[inline(always)]
#[must_use]
pub fn during_if(phase: Phase, is_begun: impl FnOnce() -> bool) -> Option<During> {
    (cfg!(feature = "counted") && is_begun()).then(|| during(phase))
}

#[cfg(not(feature = "counted"))]
mod uncounted {
    use super::{Phase, Situation};

    /// A phase that lasts until this is dropped.
    #[derive(Debug)]
    pub struct During(());

    /// Does nothing, but callers end phases with `drop`, which is right only where there is something to be dropped.
    impl Drop for During {
        #[inline(always)]
        fn drop(&mut self) {}
    }

    /// The situation is reached.
    #[inline(always)]
    pub const fn situation(_: Situation) {}

    /// A phase begins. It lasts until the guard is dropped.
    #[inline(always)]
    #[must_use]
    pub const fn during(_: Phase) -> During {
        During(())
    }

    /// Returns whether the phase lasts anywhere on this thread.
    #[inline(always)]
    #[must_use]
    pub const fn is_during(_: Phase) -> bool {
        false
    }

    /// Another world begins: no phase of the last one lasts.
    #[inline(always)]
    pub const fn begin_world() {}

    /// The power goes: counts what it cuts into.
    #[inline(always)]
    pub const fn power_goes() {}
}

#[cfg(not(feature = "counted"))]
pub use uncounted::{During, begin_world, during, is_during, power_goes, situation};
