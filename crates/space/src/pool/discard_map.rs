//! Free blocks that the device does not know to be free yet, and that are still to be discarded.
//!
//! - DISCARD-MAP-1: a stale block is free, and was not discarded since something may have been written to it.
//!   Where that is unknown, as after a restart, all free blocks count as stale.
//! - DISCARD-MAP-2: an extent is looked at only if something changed in it that may make a run of stale
//!   blocks, and then waits in a row for it. So where nothing was freed nothing is looked at.
//! - DISCARD-MAP-3: one step looks at a bounded number of runs, however large the pool is.
//! - DISCARD-MAP-4: an extent is looked at when nothing was freed in it for a while, or when it has waited for long.
//!   What is overwritten again and again is thus written to blocks that the device has, as far as it may:
//!   a block that was discarded costs more to write, on a device in memory a page fault.

use layout::BITMAP_SLOTS;
use units::PbaRange;

use super::{Extent, Pool};
use crate::bits::Bits;

/// Shorter runs are left alone where others have blocks beside them: most devices free nothing for them,
/// and they are soon used again.
pub const RUN_BLOCKS_MIN: u32 = 32;
/// Rounds without a freed block after which an extent is looked at (DISCARD-MAP-4): two seconds, if there are four a
/// second. Simulated runs are short.
pub(super) const QUIET_ROUNDS: u64 = if cfg!(feature = "small-structures") { 1 } else { 8 };
/// Rounds after which it is looked at in any case: a minute.
const WAIT_ROUNDS_MAX: u64 = if cfg!(feature = "small-structures") { 8 } else { 240 };
/// Runs and extents that one step looks at (DISCARD-MAP-3): some ten microseconds.
const RUNS_PER_STEP: usize = 512;
const EXTENTS_PER_STEP: usize = 8;

/// The stale blocks of an extent.
#[derive(Debug)]
pub(super) struct DiscardMap {
    bits: Bits,
    count: u32,
    /// True if the stale blocks are yet to be found: all that is free is stale.
    is_unknown: bool,
    /// True if the extent waits to be looked at.
    is_queued: bool,
    /// The round in which it began to wait, and the one in which a block was last freed.
    queued_in: u64,
    freed_in: u64,
}

impl DiscardMap {
    pub(super) fn none() -> Self {
        let bits = Bits::zeroes();
        Self { bits, count: 0, is_unknown: false, is_queued: false, queued_in: 0, freed_in: 0 }
    }

    /// Returns whether the extent has waited long enough in `round` (DISCARD-MAP-4).
    fn is_due(&self, round: u64) -> bool {
        self.freed_in + QUIET_ROUNDS <= round || self.queued_in + WAIT_ROUNDS_MAX <= round
    }

    /// Notes that blocks were freed in `round`.
    pub(super) fn note_freed(&mut self, round: u64) {
        self.freed_in = round;
    }

    fn set(&mut self, bit: u32) {
        self.count += u32::from(self.bits.set(bit));
    }

    #[inline]
    pub(super) fn set_in_word(&mut self, word: usize, mask: u64) {
        self.count += self.bits.set_in_word(word, mask);
    }

    #[inline]
    pub(super) fn clear_in_word(&mut self, word: usize, mask: u64) {
        self.count -= self.bits.clear_in_word(word, mask);
    }

    #[inline]
    pub(super) fn clear(&mut self, bit: u32) {
        self.count -= u32::from(self.bits.clear(bit));
    }
}

/// The outcome of a search step.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Search {
    /// These blocks are taken, and to be discarded.
    Found(PbaRange),
    /// There is more to look at.
    Unfinished,
    /// There is nothing to look at in this round.
    Done,
}

impl Extent {
    /// Returns whether the extent may contain blocks to discard.
    pub(super) fn is_to_be_discarded(&self) -> bool {
        let least = if self.is_empty() { 1 } else { RUN_BLOCKS_MIN };
        self.stale.is_unknown || self.stale.count >= least
    }

    /// Finds out what is stale, if that is unknown.
    fn learn_stale(&mut self) {
        if std::mem::take(&mut self.stale.is_unknown) {
            let free = (BITMAP_SLOTS..self.blocks).filter(|bit| !self.busy.get(*bit));
            free.for_each(|bit| self.stale.set(bit));
        }
    }

    /// The first run from `from` on that is stale, and free in the last checkpoint, too: its ends, at
    /// most `most` blocks apart. Else where the search ended: behind the extent, unless as many runs
    /// were looked at as `attempts` allows.
    ///
    /// Of an empty extent short runs are found, too, and several at once if little is between them.
    fn find_stale(&self, from: u32, most: u32, attempts: &mut usize) -> Result<(u32, u32), u32> {
        let (least, gap) = if self.is_empty() { (1, RUN_BLOCKS_MIN) } else { (RUN_BLOCKS_MIN, 0) };
        let mut at = from;
        while at < self.blocks {
            if *attempts == 0 {
                return Err(at);
            }
            *attempts -= 1;
            let start = self.stale.bits.next(true, at, self.blocks);
            let limit = self.blocks.min(start.saturating_add(most));
            let end = self.durable.next(true, start, self.stale_end(start, limit, gap));
            if end - start >= least {
                return Ok((start, end));
            }
            at = end.max(start + 1);
        }
        Err(self.blocks)
    }

    /// Returns the end of the stale run from `start` on, with all that follows less than `gap`
    /// blocks behind.
    fn stale_end(&self, start: u32, limit: u32, gap: u32) -> u32 {
        let mut end = self.stale.bits.next(false, start, limit);
        loop {
            let next = self.stale.bits.next(true, end, limit.min(end + gap));
            if next == limit.min(end + gap) {
                return end;
            }
            end = self.stale.bits.next(false, next, limit);
        }
    }
}

impl Pool {
    /// Enables or disables discarding.
    pub fn set_discards(&mut self, discards: bool) {
        self.discards = discards;
    }

    /// Begins a round of the search: each extent that waits is considered once.
    pub fn begin_round(&mut self) {
        self.round += 1;
        self.left_in_round = self.unsearched.len();
    }

    /// Extents have gone from the pool: nothing is looked for in them, also in the round in progress.
    pub(super) fn leave_out_of_search(&mut self) {
        let extents = &self.extents;
        let is_there = |index: u32| extents[index as usize].is_some();
        // A round looks at the first ones.
        let of_round = self.unsearched.iter().take(self.left_in_round);
        self.left_in_round = of_round.filter(|index| is_there(**index)).count();
        self.unsearched.retain(|index| is_there(*index));
        self.searched = self.searched.filter(|(index, _)| is_there(*index));
    }

    /// Marks all free blocks of the extent as stale, as their state is unknown (DISCARD-MAP-1). It is looked at in the next
    /// round.
    pub fn mark_for_discard(&mut self, index: u32) {
        if let Some(extent) = self.extents[index as usize].as_deref_mut() {
            extent.stale.is_unknown = true;
            extent.stale.freed_in = 0;
            self.note_stale(index);
        }
    }

    /// The same of all extents.
    pub fn mark_all_for_discard(&mut self) {
        self.owned.clone().into_iter().for_each(|index| self.mark_for_discard(index));
    }

    /// Something changed in an extent that may make a run to discard (DISCARD-MAP-2).
    pub(super) fn note_stale(&mut self, index: u32) {
        if self.discards
            && let Some(extent) = self.extents[index as usize].as_deref_mut()
            && extent.is_to_be_discarded()
            && !std::mem::replace(&mut extent.stale.is_queued, true)
        {
            extent.stale.queued_in = self.round;
            self.unsearched.push_back(index);
        }
    }

    /// One step of the search for stale blocks that lie together and are free in the last checkpoint,
    /// too; takes up to `most` of them.
    pub fn search_stale(&mut self, most: u32) -> Search {
        let mut attempts = RUNS_PER_STEP;
        for _ in 0..EXTENTS_PER_STEP {
            let Some((index, from)) = self.searched.take().or_else(|| self.next_unsearched())
            else {
                return if self.left_in_round == 0 { Search::Done } else { Search::Unfinished };
            };
            let Some(extent) = self.extents[index as usize].as_deref_mut() else { continue };
            let is_learnt = extent.stale.is_unknown;
            extent.learn_stale();
            if is_learnt {
                // That was a look at all of it: the search itself is another step (DISCARD-MAP-3).
                self.searched = Some((index, from));
                break;
            }
            if !extent.is_to_be_discarded() {
                continue;
            }
            match extent.find_stale(from, most, &mut attempts) {
                Ok((start, end)) => {
                    self.searched = Some((index, end));
                    return Search::Found(self.take(index, start, end - start));
                }
                Err(end) if end < extent.blocks => {
                    self.searched = Some((index, end));
                    break;
                }
                Err(_) => {}
            }
        }
        Search::Unfinished
    }

    /// The next extent that is due, if there is one among the next [`EXTENTS_PER_STEP`].
    fn next_unsearched(&mut self) -> Option<(u32, u32)> {
        for _ in 0..EXTENTS_PER_STEP.min(self.left_in_round) {
            self.left_in_round -= 1;
            let index = self.unsearched.pop_front().expect("as many as were there");
            let Some(extent) = self.extents[index as usize].as_deref_mut() else { continue };
            if extent.stale.is_due(self.round) {
                extent.stale.is_queued = false;
                return Some((index, BITMAP_SLOTS));
            }
            self.unsearched.push_back(index);
        }
        None
    }

    /// Blocks that were found are free again; `is_stale`: they could not be discarded.
    pub fn release_taken(&mut self, range: PbaRange, is_stale: bool) {
        self.give_back(range, is_stale);
        if let Some((index, _)) = self.superblock.locate(range.start) {
            // What is left of it may go together now.
            self.note_stale(index);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use layout::Mapping;
    use units::Pba;

    use super::*;
    use crate::pool::fixtures::unused;

    /// Extents of 1 024 blocks, all handed out, and none of it in the last checkpoint.
    fn full_pool(extents: u32) -> Pool {
        let mut pool = unused(extents);
        pool.alloc(u32::try_from(pool.free()).expect("few"));
        pool
    }

    fn release(pool: &mut Pool, extent: u32, bits: impl Iterator<Item = u32>) {
        let start = pool.superblock.extent(extent).start;
        bits.for_each(|bit| pool.release(PbaRange::new(start.plus(u64::from(bit)), 1)));
    }

    /// Steps until nothing is left that is due after a while without freed blocks, and what they found.
    fn search_all(pool: &mut Pool) -> (usize, Vec<PbaRange>) {
        pool.round += QUIET_ROUNDS;
        pool.begin_round();
        let (mut steps, mut found) = (0, Vec::new());
        loop {
            steps += 1;
            match pool.search_stale(4096) {
                Search::Found(run) => found.push(run),
                Search::Unfinished => {}
                Search::Done => return (steps, found),
            }
        }
    }

    /// DISCARD-MAP-2: how many extents there are does not matter, nor what could not be discarded before.
    #[test]
    fn nothing_is_looked_at_where_nothing_was_freed() {
        let mut pool = full_pool(900);
        assert_eq!(search_all(&mut pool), (1, vec![]));
        // Every other block: no run, and looked at once.
        (0..900).for_each(|extent| release(&mut pool, extent, (2..1024).step_by(2)));
        assert!(search_all(&mut pool).0 > 900 / EXTENTS_PER_STEP, "bounded steps (DISCARD-MAP-3)");
        assert_eq!(search_all(&mut pool), (1, vec![]));
        release(&mut pool, 700, (101..171).step_by(2));
        let (steps, found) = search_all(&mut pool);
        let start = pool.superblock.extent(700).start.plus(100);
        assert_eq!((steps, found), (2, vec![PbaRange::new(start, 71)]));
        pool.release_taken(PbaRange::new(start, 71), false);
        assert_eq!(search_all(&mut pool), (1, vec![]), "what was discarded is no news");
    }

    /// A run that is free now but not in the last checkpoint is found after the next checkpoint.
    #[test]
    fn a_run_is_found_when_a_checkpoint_no_longer_has_it() {
        let mut pool = full_pool(2);
        let place = Mapping { pba: pool.superblock.extent(1).start, crc: 0 };
        let mut before = Bits::zeroes();
        (300..400).for_each(|bit| assert!(before.set(bit)));
        pool.set_on_disk(1, place, &Rc::new(before));
        release(&mut pool, 1, 290..410);
        assert_eq!(search_all(&mut pool).1, []);
        pool.set_on_disk(1, place, &Rc::new(Bits::zeroes()));
        let found = search_all(&mut pool).1;
        assert_eq!(found, [PbaRange::new(place.pba.plus(290), 120)]);
        assert_eq!(pool.alloc_large(120), None, "it is not handed out meanwhile");
        pool.release_taken(found[0], false);
        assert_eq!(pool.alloc_large(120), Some(PbaRange::new(Pba(place.pba.0 + 290), 120)));
    }

    /// DISCARD-MAP-4: blocks that are freed go on being used for a while, and not for ever.
    #[test]
    fn an_extent_is_left_alone_while_blocks_are_freed_in_it_but_not_for_long() {
        let mut pool = full_pool(2);
        let rounds_until_found = |pool: &mut Pool, frees: &dyn Fn(&mut Pool, u32)| {
            (1..).find(|round| {
                pool.begin_round();
                let found = pool.search_stale(4096);
                if let Search::Found(run) = found {
                    pool.release_taken(run, false);
                    return true;
                }
                assert_eq!(found, Search::Done);
                frees(pool, *round);
                false
            })
        };
        release(&mut pool, 1, 100..200);
        let quiet = rounds_until_found(&mut pool, &|_, _| {});
        assert_eq!(quiet, Some(QUIET_ROUNDS as u32));
        release(&mut pool, 0, 100..200);
        let busy = rounds_until_found(&mut pool, &|pool, round| {
            release(pool, 0, std::iter::once(300 + 2 * round));
        });
        assert_eq!(busy, Some(WAIT_ROUNDS_MAX as u32));
        assert_eq!(search_all(&mut pool).1, [], "single blocks are left alone");
    }
}
