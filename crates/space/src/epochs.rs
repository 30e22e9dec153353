//! When a freed block may be reused: after every read that began before it was freed.
//!
//! Time is cut into epochs. A read belongs to the epoch in which it began; blocks freed during an
//! epoch are released when no read of it or of an earlier one is left.

use std::collections::VecDeque;

use situations::{Situation, situation};
use units::PbaRange;

use crate::sabotage::{Sabotage, broken};
#[derive(Debug, Default)]
struct Epoch {
    readers: u32,
    freed: Vec<PbaRange>,
}

/// The epochs that still have readers, and the current one.
#[derive(Debug)]
pub struct Epochs {
    /// Number of the front epoch.
    first: u64,
    epochs: VecDeque<Epoch>,
    pending: u64,
    /// Emptied lists, for their memory.
    spare: Vec<Vec<PbaRange>>,
}

impl Default for Epochs {
    /// No read is under way.
    fn default() -> Self {
        let epochs = VecDeque::from([Epoch::default()]);
        Self { first: 0, epochs, pending: 0, spare: Vec::new() }
    }
}

impl Epochs {
    /// Blocks freed and not yet released.
    pub fn pending(&self) -> u64 {
        self.pending
    }

    /// A read begins. Returns its epoch, for [`Epochs::end_read`].
    pub fn begin_read(&mut self) -> u64 {
        let current = self.epochs.back_mut().expect("there is always a current epoch");
        current.readers += 1;
        self.first + self.epochs.len() as u64 - 1
    }

    /// Ends a read. Calls `release` for all blocks that no read can be using any more.
    pub fn end_read(&mut self, epoch: u64, release: impl FnMut(PbaRange)) {
        let index = usize::try_from(epoch - self.first).expect("epochs with readers are kept");
        self.epochs[index].readers -= 1;
        if index == 0 && self.epochs[0].readers == 0 {
            self.drain(release);
        }
    }

    /// Frees blocks that no later read finds. Calls `release` at once if no read is under way.
    pub fn free(&mut self, run: PbaRange, mut release: impl FnMut(PbaRange)) {
        let unread = self.epochs.len() == 1 && self.epochs[0].readers == 0;
        if unread || broken(Sabotage::ReuseWhileRead) {
            return release(run);
        }
        situation(Situation::FreedWhileRead);
        self.pending += run.blocks;
        let current = self.epochs.back_mut().expect("there is always a current epoch");
        match current.freed.last_mut() {
            Some(last) if last.end() == run.start => last.blocks += run.blocks,
            _ => current.freed.push(run),
        }
        if current.readers > 0 {
            let freed = self.spare.pop().unwrap_or_default();
            self.epochs.push_back(Epoch { readers: 0, freed });
            // The run belongs to the epoch whose readers may have found it; blocks freed from now
            // on, to the new one.
        }
    }

    fn drain(&mut self, mut release: impl FnMut(PbaRange)) {
        while self.epochs[0].readers == 0 {
            let mut freed = std::mem::take(&mut self.epochs[0].freed);
            for run in freed.drain(..) {
                self.pending -= run.blocks;
                release(run);
            }
            self.spare.push(freed);
            if self.epochs.len() == 1 {
                self.epochs[0].freed = self.spare.pop().unwrap_or_default();
                break;
            }
            self.epochs.pop_front();
            self.first += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use units::Pba;

    use super::*;

    fn block(pba: u64) -> PbaRange {
        PbaRange::new(Pba(pba), 1)
    }

    #[test]
    fn a_block_waits_for_the_reads_that_began_before_it_was_freed_and_for_no_others() {
        let mut epochs = Epochs::default();
        let mut released = Vec::new();
        epochs.free(block(1), |run| released.push(run));
        assert_eq!(released, [block(1)]);
        let first = epochs.begin_read();
        epochs.free(block(2), |_| panic!("a read is under way"));
        let second = epochs.begin_read();
        epochs.free(block(3), |_| panic!("two reads are under way"));
        let third = epochs.begin_read();
        epochs.end_read(second, |_| panic!("the first read is under way"));
        epochs.end_read(first, |run| released.push(run));
        assert_eq!(released, [block(1), block(2), block(3)]);
        assert_eq!(epochs.pending(), 0);
        epochs.end_read(third, |_| panic!("nothing was freed since"));
        assert_eq!(epochs.epochs.len(), 1);
    }

    #[test]
    fn blocks_freed_without_readers_behind_an_old_read_wait_for_it() {
        let mut epochs = Epochs::default();
        let mut released = Vec::new();
        let old = epochs.begin_read();
        epochs.free(block(1), |_| panic!("a read is under way"));
        for pba in [2, 3, 7] {
            epochs.free(block(pba), |_| panic!("the old read may have found it"));
        }
        assert_eq!(epochs.pending(), 4);
        epochs.end_read(old, |run| released.push(run));
        assert_eq!(released, [block(1), PbaRange::new(Pba(2), 2), block(7)], "what lies together");
    }
}
