//! The number of reads that a drive is given at a time.
//!
//! A virtual drive often serves its queue one by one and says so once, when the queue is empty. Given all that there is,
//! it then has nothing to do until the askers have what they asked for, and ask again: drive and askers take turns. So a
//! part is held back from such a drive, and goes out as soon as the others are done, before anything is made of them.
//!
//! - URING-WINDOW-1: in order, and held only while the drive has others: their completion brings the next ones out.
//! - URING-WINDOW-2: from a drive that completes its reads as each is done, nothing is held. It may well serve all of them
//!   at a time.
//! - URING-WINDOW-3: held in the long run only where more reads get done for it.
//!
//! How a drive completes shows in [`Bursts`], and what holding is good for in a [`Trial`].

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Instant;

use crate::table::Key;

mod bursts;
#[cfg(test)]
mod tests;
mod trial;

use bursts::Bursts;
use trial::Trial;

/// Smallest number of reads of which some are held.
const READS_MIN: usize = 6;

/// The reads of one drive on one core. Cheap to clone; all clones are the same window.
#[derive(Clone, Default)]
pub struct ReadWindow(Rc<RefCell<Window<Key>>>);

impl ReadWindow {
    /// See [`Window::admit`].
    pub(crate) fn admit(&self, key: Key) -> bool {
        self.0.borrow_mut().admit(Instant::now, key)
    }

    /// See [`Window::complete`].
    pub(crate) fn complete(&self, now: Instant) {
        self.0.borrow_mut().complete(now);
    }

    /// See [`Window::next`].
    pub(crate) fn next(&self) -> Option<Key> {
        self.0.borrow_mut().next()
    }

    /// One that gives the drive two reads at a time, whatever it does.
    #[cfg(test)]
    pub(crate) fn of_two() -> Self {
        let window = Self::default();
        window.0.borrow_mut().fixed = Some(2);
        window
    }
}

/// The state behind a [`ReadWindow`]: which of the reads `T` the drive has.
struct Window<T> {
    /// Reads that the drive has.
    given: usize,
    held: VecDeque<T>,
    bursts: Bursts,
    trial: Trial,
    #[cfg(test)]
    fixed: Option<usize>,
}

impl<T> Default for Window<T> {
    fn default() -> Self {
        Self {
            given: 0,
            held: VecDeque::new(),
            bursts: Bursts::default(),
            trial: Trial::default(),
            #[cfg(test)]
            fixed: None,
        }
    }
}

impl<T> Window<T> {
    /// Returns true if the drive is to have `read` at once; it is held if not.
    fn admit(&mut self, now: impl FnOnce() -> Instant, read: T) -> bool {
        if self.given >= self.limit() {
            self.held.push_back(read);
            return false;
        }
        if self.given == 0 {
            self.bursts.start(now());
        }
        self.given += 1;
        true
    }

    /// The drive has completed one. [`Window::next`] says what it gets now.
    fn complete(&mut self, now: Instant) {
        self.bursts.complete(now, self.given, self.held.len());
        self.given = self.given.checked_sub(1).expect("a read that the drive had");
        self.trial.complete(now, self.bursts.are_all() && self.bursts.peak() >= READS_MIN);
    }

    /// One that was held, and that the drive is to have now.
    fn next(&mut self) -> Option<T> {
        if self.given >= self.limit() {
            return None;
        }
        let read = self.held.pop_front()?;
        self.given += 1;
        Some(read)
    }

    /// Reads that the drive is to have at most: three quarters of those that are wanted.
    ///
    /// The rest is to keep it busy until the others have been answered and asked for again, and yet each of its bursts,
    /// which cost something by themselves, is to be large. 20 to 24 of 32 are equally good where this was measured, 28 and
    /// 16 are worse; 5 and 6 of 8 are equally good.
    fn limit(&self) -> usize {
        #[cfg(test)]
        if let Some(fixed) = self.fixed {
            return fixed;
        }
        if !self.trial.holds() {
            return usize::MAX;
        }
        let peak = self.bursts.peak().max(READS_MIN);
        peak - peak / 4
    }
}
