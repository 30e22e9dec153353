//! Blocks freed lately, which requests and checkpoints take first.
//!
//! - ALLOC-4: blocks freed lately go before those that the cursors come to: what is overwritten again
//!   and again stays on blocks that the device has already, and is not all over it. But a block
//!   goes only if it is free still, not ahead of where large requests go on (ALLOC-1), and not of an
//!   extent of which most is free: that one is left to become empty, unless small requests are
//!   filling it anyway.
//! - ALLOC-6: a large request takes a run freed lately that has room for all of it, under the same rule: what is
//!   overwritten in large pieces stays on blocks that the device has, too. Runs freed in order are taken from their
//!   start, so that what is overwritten in order still lies in order.
//!
//! The remembered blocks are a hint: the bitmaps say which blocks are free, and the cursors find
//! forgotten ones.

use std::collections::VecDeque;

use units::{Pba, PbaRange};

use super::{LARGE_BLOCKS, Pool, Runs};

/// Short runs remembered: more than what some hundred requests free that a slow read holds back, in
/// 64 KiB of memory. The oldest are forgotten.
const SHORT_MAX: usize = 4096;
/// Long ones: the nodes of the last checkpoints, each of them in few runs.
const LONG_MAX: usize = 256;
/// Runs that a request looks at (ALLOC-2).
const ATTEMPTS: usize = 8;

/// Runs of blocks freed lately, the last ones behind.
#[derive(Debug, Default)]
pub(super) struct Recent {
    short: VecDeque<PbaRange>,
    /// Those of [`LARGE_BLOCKS`] and more, which suit the nodes of a checkpoint.
    long: VecDeque<PbaRange>,
}

impl Recent {
    /// The blocks are free again, and the `before` right before them are. What is freed in order makes one run.
    pub(super) fn push(&mut self, freed: PbaRange, before: u64) {
        let start = Pba(freed.start.0 - before);
        if let Some(last) = self.short.back_mut() {
            if last.start <= start && start <= last.end() {
                last.blocks = last.blocks.max(freed.end().0 - last.start.0);
                return;
            }
            if last.blocks >= u64::from(LARGE_BLOCKS) {
                let run = self.short.pop_back().expect("just looked at");
                self.push_run(run);
            }
        }
        let run = PbaRange::new(start, freed.blocks + before);
        push_bounded(&mut self.short, run, SHORT_MAX);
    }

    fn push_run(&mut self, run: PbaRange) {
        if run.blocks >= u64::from(LARGE_BLOCKS) {
            push_bounded(&mut self.long, run, LONG_MAX);
        } else if run.blocks > 0 {
            push_bounded(&mut self.short, run, SHORT_MAX);
        }
    }

    /// The newest run; long ones behind all short ones.
    fn pop(&mut self) -> Option<PbaRange> {
        self.short.pop_back().or_else(|| self.long.pop_back())
    }

    /// The newest long run. It may be the one that grows still.
    fn pop_long(&mut self) -> Option<PbaRange> {
        let is_long = |run: &PbaRange| run.blocks >= u64::from(LARGE_BLOCKS);
        if self.short.back().is_some_and(is_long) {
            self.short.pop_back()
        } else {
            self.long.pop_back()
        }
    }

    pub(super) fn clear(&mut self) {
        self.short.clear();
        self.long.clear();
    }
}

fn push_bounded(runs: &mut VecDeque<PbaRange>, run: PbaRange, most: usize) {
    if runs.len() == most {
        runs.pop_front();
    }
    runs.push_back(run);
}

impl Pool {
    /// Hands out `count` blocks in one run among those freed lately, if a bounded search finds one (ALLOC-4).
    pub(super) fn alloc_recent(&mut self, count: u32) -> Option<PbaRange> {
        self.alloc_remembered(count, Recent::pop, Self::is_for_small)
    }

    /// The same for a large request (ALLOC-6).
    pub(super) fn alloc_recent_large(&mut self, count: u32) -> Option<PbaRange> {
        self.alloc_remembered(count, Recent::pop_long, |pool, index, _| pool.is_for_large(index))
    }

    fn alloc_remembered(
        &mut self,
        count: u32,
        next: fn(&mut Recent) -> Option<PbaRange>,
        may_use: fn(&Self, u32, u32) -> bool,
    ) -> Option<PbaRange> {
        let mut too_short = Runs::new();
        let mut found = None;
        for _ in 0..ATTEMPTS {
            let Some(run) = next(&mut self.recent) else { break };
            let Some(free) = self.still_free(run, may_use) else { continue };
            if free.blocks >= u64::from(count) {
                found = Some(self.take_recent(run, PbaRange::new(free.start, u64::from(count))));
                break;
            }
            too_short.push(run);
        }
        too_short.into_iter().rev().for_each(|run| self.recent.push_run(run));
        found
    }

    /// Hands out `count` blocks for a checkpoint: long runs freed lately, and what is missing elsewhere.
    pub(super) fn alloc_set_aside(&mut self, count: u32) -> Runs {
        let (mut runs, mut rest) = (Runs::new(), u64::from(count));
        while rest > 0 {
            let Some(run) = self.recent.long.pop_back() else { break };
            let Some(free) = self.still_free(run, Self::is_for_small) else { continue };
            let taken = PbaRange::new(free.start, free.blocks.min(rest));
            // Either this is all that is missing, or what is behind a hole in the run comes next.
            rest -= taken.blocks;
            runs.push(self.take_recent(run, taken));
        }
        if rest > 0 {
            runs.extend(self.alloc(u32::try_from(rest).expect("at most `count`")));
        }
        runs
    }

    /// The first blocks of the run that are free still, if `may_use` its extent up to its end.
    fn still_free(&self, run: PbaRange, may_use: fn(&Self, u32, u32) -> bool) -> Option<PbaRange> {
        let (index, first) = self.superblock.locate(run.start)?;
        let extent = self.extents[index as usize].as_deref()?;
        let end = first + u32::try_from(run.blocks).expect("within an extent");
        if !may_use(self, index, end) {
            return None;
        }
        let start = extent.busy.next(false, first, end);
        let blocks = extent.busy.next(true, start, end) - start;
        let free = PbaRange::new(extent.start.plus(u64::from(start)), u64::from(blocks));
        (blocks > 0).then_some(free)
    }

    /// Returns whether small requests may take blocks of the extent up to `end` that were freed
    /// (ALLOC-4).
    pub(super) fn is_for_small(&self, index: u32, end: u32) -> bool {
        let is_at = |place: usize| self.owned.get(place) == Some(&index);
        if is_at(self.large_cursor.place) && self.owned.len() > 1 {
            return end <= self.large_cursor.bit;
        }
        !self.extent(index).is_emptying() || is_at(self.cursor.place)
    }

    /// Returns whether large requests may take blocks of the extent that were freed (ALLOC-6).
    fn is_for_large(&self, index: u32) -> bool {
        let is_at = |place: usize| self.owned.get(place) == Some(&index);
        !self.extent(index).is_emptying() || is_at(self.large_cursor.place)
    }

    /// Takes `taken` out of a run remembered; what is behind it stays remembered.
    fn take_recent(&mut self, run: PbaRange, taken: PbaRange) -> PbaRange {
        self.recent.push_run(PbaRange::new(taken.end(), run.end().0 - taken.end().0));
        let (index, bit) = self.superblock.locate(taken.start).expect("it was free");
        self.take(index, bit, u32::try_from(taken.blocks).expect("within an extent"))
    }
}

#[cfg(test)]
mod tests {
    use layout::BITMAP_SLOTS;
    use units::Pba;

    use super::*;
    use crate::pool::fixtures::used_but_last as pool;

    fn block(pool: &Pool, extent: u32, bit: u32) -> Pba {
        pool.superblock.extent(extent).start.plus(u64::from(bit))
    }

    fn release(pool: &mut Pool, extent: u32, bits: impl Iterator<Item = u32>) {
        bits.for_each(|bit| pool.release(PbaRange::new(block(pool, extent, bit), 1)));
    }

    #[test]
    fn a_small_request_takes_what_was_freed_last() {
        let mut pool = pool(4);
        // Each group keeps the first.
        release(&mut pool, 0, [510, 500, 30, 7, 310, 300].into_iter());
        release(&mut pool, 1, 20..23);
        let at = |pool: &mut Pool| pool.alloc(1)[0].start;
        assert_eq!(pool.alloc(2)[0], PbaRange::new(block(&pool, 1, 20), 2));
        assert_eq!(at(&mut pool), block(&pool, 1, 22));
        assert_eq!(at(&mut pool), block(&pool, 0, 300));
        // A request for more goes elsewhere, and leaves what is too short for it.
        assert_eq!(pool.alloc(4)[0], PbaRange::new(block(&pool, 3, BITMAP_SLOTS), 4));
        assert_eq!(at(&mut pool), block(&pool, 0, 7));
        assert_eq!(at(&mut pool), block(&pool, 0, 500));
        assert_eq!(at(&mut pool), block(&pool, 3, BITMAP_SLOTS + 4));
    }

    #[test]
    fn what_others_took_meanwhile_is_passed_over() {
        let mut pool = pool(4);
        release(&mut pool, 0, 100..104);
        release(&mut pool, 1, [9].into_iter());
        // A write that was made elsewhere and an extent that is no longer ours.
        pool.take(0, 100, 2);
        pool.extents[1] = None;
        pool.owned.retain(|index| *index != 1);
        pool.settle_cursors(Some(3), Some(2));
        assert_eq!(pool.alloc(1)[0].start, block(&pool, 0, 102));
        assert_eq!(pool.alloc(1)[0].start, block(&pool, 0, 103));
        assert_eq!(pool.alloc(1)[0].start, block(&pool, 3, BITMAP_SLOTS));
    }

    /// ALLOC-1.
    #[test]
    fn what_was_freed_where_large_requests_go_on_is_left_to_them() {
        let mut pool = pool(4);
        release(&mut pool, 2, 100..140);
        assert_eq!(pool.alloc(1)[0].start, block(&pool, 3, BITMAP_SLOTS));
        assert_eq!(pool.alloc_large(40), Some(PbaRange::new(block(&pool, 2, 100), 40)));
    }

    /// ALLOC-6.
    #[test]
    fn a_large_request_takes_runs_freed_lately_in_their_order() {
        let mut pool = pool(5);
        release(&mut pool, 0, 500..520);
        release(&mut pool, 1, 100..164);
        let at = |pool: &Pool, extent, bit| Some(PbaRange::new(block(pool, extent, bit), 32));
        assert_eq!(pool.alloc_large(32), at(&pool, 1, 100));
        assert_eq!(pool.alloc_large(32), at(&pool, 1, 132));
        assert_eq!(pool.alloc_large(32), at(&pool, 4, BITMAP_SLOTS), "none has room for all of it");
        assert_eq!(pool.alloc_large(20), Some(PbaRange::new(block(&pool, 0, 500), 20)));
        // Most of an extent is freed: it is left to become empty.
        release(&mut pool, 2, 2..1000);
        assert_eq!(pool.alloc_large(32), at(&pool, 4, BITMAP_SLOTS + 32));
    }

    /// A volume was deleted, and others are overwritten.
    #[test]
    fn an_extent_most_of_which_is_free_becomes_empty() {
        let mut pool = pool(5);
        release(&mut pool, 1, 2..1000);
        release(&mut pool, 0, 300..310);
        for n in 0..2000 {
            let taken = pool.alloc(1)[0].start;
            assert_ne!(pool.superblock.locate(taken).expect("ours").0, 1);
            pool.release(PbaRange::new(taken, 1));
            if n == 1000 {
                release(&mut pool, 1, 1000..1024);
            }
        }
        assert!(pool.extent(1).is_empty());
    }

    #[test]
    fn a_checkpoint_takes_long_runs_freed_lately() {
        let mut pool = pool(4);
        release(&mut pool, 0, 200..240);
        release(&mut pool, 1, (300..400).step_by(2));
        let runs = pool.alloc_set_aside(50);
        let (first, rest) = (block(&pool, 0, 200), block(&pool, 3, BITMAP_SLOTS));
        assert_eq!(runs[..], [PbaRange::new(first, 40), PbaRange::new(rest, 10)]);
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut pool = pool(20);
        for extent in 0..18 {
            release(&mut pool, extent, (BITMAP_SLOTS..1024).step_by(2));
            let runs = (BITMAP_SLOTS + 1..1014).step_by(20);
            runs.for_each(|bit| release(&mut pool, extent, (bit..bit + 9).step_by(2)));
        }
        assert_eq!(pool.recent.short.len(), SHORT_MAX);
        let mut recent = Recent::default();
        for run in 0..1000 {
            (0..10).for_each(|n| recent.push(PbaRange::new(Pba(run * 20 + n), 1), 0));
        }
        assert_eq!((recent.short.len(), recent.long.len()), (1, LONG_MAX));
    }
}
