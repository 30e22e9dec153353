//! Chooses the free blocks that are handed out.
//!
//! - ALLOC-1: small requests fill the holes that others left. Large ones go on behind the last large
//!   one, where small ones do not go while there is room elsewhere: so what is written in order
//!   lies together, and is read with few device requests.
//! - ALLOC-2: each search is bounded, and the next large one goes on where the last one stopped.
//! - ALLOC-3: a request without a matching run takes the blocks in pieces: as long as blocks are free,
//!   it gets them.
//! - ALLOC-4 and ALLOC-6, requests take what was freed lately before they go on: in `recent.rs`. ALLOC-5, what is
//!   overwritten stays near its neighbours: in `near.rs`.

use layout::BITMAP_SLOTS;
use smallvec::SmallVec;
use units::PbaRange;

use super::{Extent, Pool, Runs};

/// From so many blocks on a request is large.
pub const LARGE_BLOCKS: u32 = 8;
/// Runs of free blocks that a small request looks at in one extent, and extents.
const RUN_ATTEMPTS: usize = 64;
const EXTENT_ATTEMPTS: usize = 4;
/// The same for a large one, but runs in all extents together. An extent has some 8 000 runs if every
/// other block is free.
const LARGE_RUN_ATTEMPTS: usize = 256;
const LARGE_EXTENT_ATTEMPTS: usize = 16;

/// The position where the next search for free blocks begins.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cursor {
    /// Place in `Pool::owned`.
    pub(super) place: usize,
    /// Block of that extent.
    pub(super) bit: u32,
}

impl Cursor {
    /// At the begin of an extent.
    pub(super) const fn at(place: usize) -> Self {
        Self { place, bit: BITMAP_SLOTS }
    }
}

impl Extent {
    /// The first run of `count` free blocks from `from` on. Else where the search ended: behind the
    /// extent, unless as many runs were looked at as `attempts` allows, from which they are taken.
    fn find_run(&self, from: u32, count: u32, attempts: &mut usize) -> Result<u32, u32> {
        let mut at = from;
        if self.free < count {
            return Err(self.blocks);
        }
        while *attempts > 0 {
            *attempts -= 1;
            let start = self.busy.next(false, at, self.blocks);
            if start + count > self.blocks {
                return Err(self.blocks);
            }
            let end = self.busy.next(true, start, start + count);
            if end - start >= count {
                return Ok(start);
            }
            at = end;
        }
        Err(at)
    }
}

impl Pool {
    /// Hands out `count` blocks, in one run if there is one nearby. The caller has looked at
    /// [`Pool::free`].
    pub fn alloc(&mut self, count: u32) -> Runs {
        assert!(self.free() >= u64::from(count), "the caller has looked");
        let recent =
            if count > 0 && count < LARGE_BLOCKS { self.alloc_recent(count) } else { None };
        if let Some(run) = recent.or_else(|| self.alloc_run(count)) {
            return SmallVec::from_slice(&[run]);
        }
        let mut runs = Runs::new();
        let (mut rest, mut wanted) = (count, count / 2);
        while rest > 0 {
            wanted = wanted.min(rest);
            let run = match wanted >= LARGE_BLOCKS / 2 {
                true => self.alloc_run(wanted),
                false => Some(self.alloc_fragment(rest)),
            };
            match run {
                Some(run) => {
                    rest -= u32::try_from(run.blocks).expect("at most `rest`");
                    runs.push(run);
                }
                None => wanted /= 2,
            }
        }
        runs
    }

    /// Hands out `count` blocks in one run: one freed lately (ALLOC-6), or else apart from where small requests
    /// fill the holes (ALLOC-1), if a bounded search finds one.
    pub fn alloc_large(&mut self, count: u32) -> Option<PbaRange> {
        if let Some(run) = self.alloc_recent_large(count) {
            return Some(run);
        }
        let mut attempts = LARGE_RUN_ATTEMPTS;
        for _ in 0..LARGE_EXTENT_ATTEMPTS.min(self.owned.len() + 1) {
            let Cursor { place, bit } = self.large_cursor;
            let extent = self.extent(self.owned[place]);
            match extent.find_run(bit, count, &mut attempts) {
                Ok(bit) => {
                    self.large_cursor.bit = bit + count;
                    return Some(self.take(self.owned[place], bit, count));
                }
                Err(end) if end < extent.blocks => {
                    self.large_cursor.bit = end;
                    break;
                }
                Err(_) => self.large_cursor = Cursor::at((place + 1) % self.owned.len()),
            }
        }
        self.alloc_empty(count)
    }

    /// As [`Pool::alloc_large`], from an extent that is or was empty; large requests go on there.
    pub fn alloc_empty(&mut self, count: u32) -> Option<PbaRange> {
        while let Some(index) = self.empty.pop() {
            let Some(extent) = self.extents[index as usize].as_deref_mut() else { continue };
            extent.is_listed = false;
            // Small requests may have been there since.
            if let Ok(bit) = extent.find_run(BITMAP_SLOTS, count, &mut { RUN_ATTEMPTS }) {
                let place = self.owned.iter().position(|owned| *owned == index).expect("owned");
                self.large_cursor = Cursor { place, bit: bit + count };
                return Some(self.take(index, bit, count));
            }
        }
        None
    }

    fn alloc_run(&mut self, count: u32) -> Option<PbaRange> {
        let Cursor { mut place, bit: mut from } = self.cursor;
        for step in 0..EXTENT_ATTEMPTS.min(self.owned.len()) {
            if step > 0 {
                (place, from) = (self.next_place(place), BITMAP_SLOTS);
            }
            if place == self.large_cursor.place && self.owned.len() > 1 {
                continue;
            }
            let extent = self.extent(self.owned[place]);
            if let Ok(bit) = extent.find_run(from, count, &mut { RUN_ATTEMPTS }) {
                self.cursor = Cursor { place, bit: bit + count };
                return Some(self.take(self.owned[place], bit, count));
            }
        }
        None
    }

    /// The next free blocks, at most `count`, wherever they are.
    fn alloc_fragment(&mut self, count: u32) -> PbaRange {
        for step in 0..=self.owned.len() {
            let (place, from) = self.step(step);
            let extent = self.extent(self.owned[place]);
            if extent.free > 0 {
                let bit = extent.busy.next(false, from, extent.blocks);
                if bit < extent.blocks {
                    let end = extent.busy.next(true, bit, extent.blocks.min(bit + count));
                    self.cursor = Cursor { place, bit: end };
                    return self.take(self.owned[place], bit, end - bit);
                }
            }
        }
        unreachable!("ALLOC-3: the count of free blocks says that there is one")
    }

    /// The extent `step` places behind the cursor, and where a search in it begins.
    fn step(&self, step: usize) -> (usize, u32) {
        let place = (self.cursor.place + step) % self.owned.len();
        (place, if step == 0 { self.cursor.bit } else { BITMAP_SLOTS })
    }

    /// Takes blocks of an extent, wherever the cursors are.
    pub(super) fn take(&mut self, index: u32, bit: u32, count: u32) -> PbaRange {
        let extent = self.extents[index as usize].as_deref_mut().expect("owned");
        for bit in bit..bit + count {
            assert!(extent.busy.set(bit), "only free blocks are handed out");
            extent.stale.clear(bit);
        }
        self.free.set(extent, extent.free - count);
        PbaRange::new(extent.start.plus(u64::from(bit)), u64::from(count))
    }

    /// Notes an extent that has come to be empty, for large requests.
    pub(super) fn list_if_empty(&mut self, index: u32) {
        if let Some(extent) = self.extents[index as usize].as_deref_mut()
            && extent.is_empty()
            && !std::mem::replace(&mut extent.is_listed, true)
        {
            self.empty.push(index);
        }
    }

    /// Extents went: the cursors go where `current` and `large`, which they pointed to, are now.
    pub(super) fn settle_cursors(&mut self, current: Option<u32>, large: Option<u32>) {
        let place = |index| self.owned.iter().position(|owned| Some(*owned) == index);
        let (small_place, large_place) = (place(current), place(large));
        self.cursor.place = small_place.unwrap_or(0);
        match large_place {
            Some(place) => self.large_cursor.place = place,
            None => self.large_cursor = Cursor::at(0),
        }
        let extents = &self.extents;
        self.empty.retain(|index| extents[*index as usize].is_some());
    }
}

#[cfg(test)]
mod tests {
    use units::Pba;

    use super::*;
    use crate::pool::fixtures::unused as pool;

    /// Makes a pool with every other block of each extent free.
    fn scattered(extents: u32) -> Pool {
        let mut pool = pool(extents);
        let free = u32::try_from(pool.free()).expect("few");
        let all = pool.alloc(free);
        let blocks = all.iter().flat_map(|run| run.start.0..run.end().0);
        blocks.filter(|pba| pba % 2 == 0).for_each(|pba| pool.release(PbaRange::new(Pba(pba), 1)));
        pool.empty.clear();
        pool
    }

    #[test]
    fn small_requests_fill_holes_and_large_ones_lie_together() {
        let mut pool = scattered(2);
        pool.add(2, None);
        let mut end = None;
        for _ in 0..20 {
            let large = pool.alloc_large(32).expect("an extent is empty");
            assert!(end.is_none_or(|end| end == large.start), "large ones go on behind each other");
            end = Some(large.end());
            let small = pool.alloc(1)[0];
            assert_eq!((small.blocks, small.start.0 % 2), (1, 0), "a hole");
        }
    }

    /// ALLOC-2: what one search does not reach, the next ones do.
    #[test]
    fn large_requests_find_a_run_far_behind_holes_in_the_end() {
        let mut pool = scattered(8);
        let last = pool.superblock.extent(7);
        for pba in last.start.0 + 600..last.start.0 + 640 {
            if pool.contains(PbaRange::new(Pba(pba), 1)) {
                pool.release(PbaRange::new(Pba(pba), 1));
            }
        }
        pool.recent.clear();
        let searches = (0..100).position(|_| pool.alloc_large(32).is_some());
        let searches = searches.expect("there is a run");
        assert!((1..40).contains(&searches), "{searches} searches in vain");
        assert_eq!(pool.alloc_large(32), None, "it was the only one");
    }

    /// ALLOC-3, in few pieces where the holes are not all of one block.
    #[test]
    fn a_request_without_a_run_is_met_in_pieces_as_large_as_there_are() {
        let mut pool = scattered(4);
        for pba in (pool.superblock.extent(1).start.0 + 100..).step_by(20).take(20) {
            (pba..pba + 8).for_each(|pba| pool.release(PbaRange::new(Pba(pba), 1)));
        }
        assert_eq!(pool.alloc(32).len(), 4);
        let free = u32::try_from(pool.free()).expect("few");
        let all = pool.alloc(free);
        assert_eq!(all.iter().map(|run| run.blocks).sum::<u64>(), u64::from(free));
        assert_eq!((pool.free(), pool.recount().1), (0, 0));
    }
}
