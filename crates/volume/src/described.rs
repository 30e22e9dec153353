//! Values that a volume's descriptor holds. Each change of one marks the descriptor as out of date, so that the next
//! checkpoint writes it: a request, replay and repair change them by the same calls.

use std::cell::Cell;
use std::rc::Rc;

use crate::sabotage::{Sabotage, broken};

/// Notes that a descriptor is out of date. Clones are the same note.
#[derive(Clone, Default)]
pub(crate) struct Changed(Rc<Cell<bool>>);

impl Changed {
    /// The next checkpoint writes the descriptor.
    pub(crate) fn mark(&self) {
        self.0.set(true);
    }

    /// Returns whether the descriptor is out of date.
    pub(crate) fn is_marked(&self) -> bool {
        self.0.get()
    }

    /// Makes a change, of which no note is taken if `sabotage` is chosen.
    pub(crate) fn marked_unless<T>(&self, sabotage: Sabotage, change: impl FnOnce() -> T) -> T {
        let was_marked = self.is_marked();
        let outcome = change();
        if broken(sabotage) {
            self.0.set(was_marked);
        }
        outcome
    }

    /// Returns whether the descriptor is out of date, and takes the note away.
    pub(crate) fn take(&self) -> bool {
        self.0.replace(false)
    }
}

/// One value of a descriptor.
pub(crate) struct Described<T> {
    value: Cell<T>,
    changed: Changed,
}

impl<T: Copy> Described<T> {
    /// A value whose changes are noted in `changed`.
    pub(crate) fn new(value: T, changed: &Changed) -> Self {
        Self { value: Cell::new(value), changed: changed.clone() }
    }

    #[inline]
    pub(crate) fn get(&self) -> T {
        self.value.get()
    }

    pub(crate) fn set(&self, value: T) {
        self.replace(value);
    }

    /// Changes the value. Returns the one before.
    pub(crate) fn replace(&self, value: T) -> T {
        self.changed.mark();
        self.value.replace(value)
    }
}
