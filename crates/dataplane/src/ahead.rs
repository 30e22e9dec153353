//! What reads will need, on its way into the processor's caches before their turn comes.
//!
//! A read of one block waits for memory twice where neither its part of the map nor the block is in a cache: longer
//! than all else that it does takes. Commands come many at a time, so one can wait while others are worked on:
//!
//! - A1: when a read comes, it is asked for what leads to its block.
//! - A2: after so many more reads as memory takes that long ([`MAPPINGS`]), that is there, and the block itself is
//!   asked for; but no more than [`BLOCKS`] before the read's turn, since the processor drops what is too much.
//! - A3: nothing is remembered beyond the last command that waits: a read that never ran holds nobody up.
//!
//! All of this is a guess of the order in which commands will run. Where it is wrong, they run no worse than without.

use std::collections::VecDeque;

/// Reads that come while memory answers.
const MAPPINGS: usize = 4;
/// Blocks that are asked for at a time.
const BLOCKS: usize = 8;
/// Reads that are remembered: more than are worth it come only from many connections at once.
const READS_MAX: usize = 256;

/// Reads that have come and not run, the oldest first.
#[derive(Debug)]
pub(crate) struct Ahead<T> {
    /// Those whose blocks have not been asked for.
    reads: VecDeque<T>,
    /// How many blocks were asked for whose reads have not run.
    asked: usize,
}

impl<T> Default for Ahead<T> {
    fn default() -> Self {
        Self { reads: VecDeque::new(), asked: 0 }
    }
}

impl<T> Ahead<T> {
    /// A read has come. Returns one whose block is to be asked for now.
    pub(crate) fn came(&mut self, read: T) -> Option<T> {
        if self.reads.len() < READS_MAX {
            self.reads.push_back(read);
        }
        if self.reads.len() > MAPPINGS { self.next() } else { None }
    }

    /// A read is about to run.
    pub(crate) fn runs(&mut self) {
        self.asked = self.asked.saturating_sub(1);
    }

    /// The next whose block is to be asked for, when reads run.
    pub(crate) fn next(&mut self) -> Option<T> {
        let read = if self.asked < BLOCKS { self.reads.pop_front() } else { None };
        self.asked += usize::from(read.is_some());
        read
    }

    /// A3: no command waits any more.
    pub(crate) fn clear(&mut self) {
        self.reads.clear();
        self.asked = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_asked_for_in_order_behind_their_mappings_and_few_at_a_time() {
        let mut ahead = Ahead::default();
        let early: Vec<usize> = (0..32).filter_map(|read| ahead.came(read)).collect();
        assert_eq!(early, (0..BLOCKS).collect::<Vec<_>>());
        let mut asked = early.len();
        for run in 0..32 {
            ahead.runs();
            while let Some(read) = ahead.next() {
                assert_eq!(read, asked);
                asked += 1;
            }
            assert_eq!(asked, (run + 1 + BLOCKS).min(32), "after read {run}");
        }
    }

    #[test]
    fn a_few_reads_are_asked_for_when_the_first_runs() {
        let mut ahead = Ahead::default();
        assert!((0..MAPPINGS).all(|read| ahead.came(read).is_none()));
        ahead.runs();
        assert!((0..MAPPINGS).all(|read| ahead.next() == Some(read)));
        assert_eq!(ahead.next(), None);
    }

    #[test]
    fn what_never_runs_is_forgotten_and_bounded() {
        let mut ahead = Ahead::default();
        assert_eq!((0..READS_MAX * 2).filter_map(|read| ahead.came(read)).count(), BLOCKS);
        assert!(ahead.reads.len() <= READS_MAX);
        ahead.clear();
        assert_eq!((0..9).filter_map(|read| ahead.came(read)).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
    }
}
