//! The counters, one set for each thread: a run of the simulator stays on one.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use crate::{Phase, Situation};

thread_local! {
    static REACHED: RefCell<BTreeMap<Situation, u64>> = const { RefCell::new(BTreeMap::new()) };
    /// Guards of each phase, in the world with this number.
    static LASTING: RefCell<BTreeMap<Phase, u32>> = const { RefCell::new(BTreeMap::new()) };
    static WORLD: Cell<u64> = const { Cell::new(0) };
}

/// The situation is reached.
pub fn situation(which: Situation) {
    REACHED.with_borrow_mut(|reached| *reached.entry(which).or_default() += 1);
}

/// Takes the number of times each situation was reached on this thread since the last call.
#[must_use]
pub fn take() -> BTreeMap<Situation, u64> {
    REACHED.take()
}

/// Runs `work` without counting what it reaches.
pub fn apart<T>(work: impl FnOnce() -> T) -> T {
    let before = take();
    let output = work();
    REACHED.set(before);
    output
}

/// A phase that lasts until this is dropped.
#[derive(Debug)]
pub struct During {
    phase: Phase,
    world: u64,
}

/// A phase begins. It lasts until the guard is dropped.
#[must_use]
pub fn during(phase: Phase) -> During {
    LASTING.with_borrow_mut(|lasting| *lasting.entry(phase).or_default() += 1);
    During { phase, world: WORLD.get() }
}

impl Drop for During {
    fn drop(&mut self) {
        if self.world == WORLD.get() {
            LASTING.with_borrow_mut(|lasting| {
                if let Some(guards) = lasting.get_mut(&self.phase) {
                    *guards -= 1;
                }
            });
        }
    }
}

/// Returns whether the phase lasts anywhere on this thread.
#[must_use]
pub fn is_during(phase: Phase) -> bool {
    LASTING.with_borrow(|lasting| lasting.get(&phase).is_some_and(|guards| *guards > 0))
}

/// Another world begins: no phase of the last one lasts.
pub fn begin_world() {
    WORLD.set(WORLD.get() + 1);
    LASTING.with_borrow_mut(BTreeMap::clear);
}

/// The power goes: counts what it cuts into.
pub fn power_goes() {
    let lasting = LASTING.with_borrow(|lasting| {
        let lasting = lasting.iter().filter(|(_, guards)| **guards > 0);
        lasting.filter_map(|(phase, _)| phase.cut()).collect::<Vec<_>>()
    });
    lasting.into_iter().for_each(situation);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A phase that outlives its world, as that of a task does which was never dropped, is not cut into later.
    #[test]
    fn the_power_cuts_into_what_lasts_in_this_world() {
        begin_world();
        let (first, second) = (during(Phase::Replay), during(Phase::Replay));
        drop(first);
        assert!(is_during(Phase::Replay));
        power_goes();
        assert_eq!(take(), BTreeMap::from([(Situation::CutInReplay, 1)]));
        begin_world();
        power_goes();
        let third = during(Phase::Replay);
        drop(second);
        assert!(is_during(Phase::Replay), "that of another world ended");
        drop(third);
        power_goes();
        assert_eq!(take(), BTreeMap::new());
    }

    #[test]
    fn what_is_reached_apart_is_not_counted() {
        situation(Situation::CutInReplay);
        apart(|| situation(Situation::CutInRepair));
        assert_eq!(take(), BTreeMap::from([(Situation::CutInReplay, 1)]));
    }
}
