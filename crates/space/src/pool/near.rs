//! Places an overwritten block near the blocks before and behind it.
//!
//! A volume that was written in order lies in order, and would be all over the device after random
//! overwriting if each block went wherever something is free. A sequential read would then need a
//! device request for each block.
//!
//! - ALLOC-5: extents are cut into groups of [`GROUP_BLOCKS`]. A small write goes to the group in
//!   which the blocks before and behind it lie, if they lie in the same one; else it stays in its
//!   own. The first such write to a group that is full goes elsewhere, and what it leaves free is
//!   for the next: a group keeps what was freed in it as long as nothing else of it is free, and
//!   there is a free block for each group: a thirty-second part. A block that went elsewhere comes
//!   back when it is written again.

use block_map::Neighbours;
use layout::BITMAP_SLOTS;
use units::{Pba, PbaRange};

use super::{Extent, LARGE_BLOCKS, Pool};

/// As many as a read of 128 KiB, with which volumes are read in order, has.
const GROUP_BLOCKS: u32 = 32;

/// Blocks of an extent that are kept for each other (ALLOC-5).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Group {
    extent: u32,
    start: u32,
}

impl Extent {
    /// The end of the group that begins at `start`.
    fn group_end(&self, start: u32) -> u32 {
        self.blocks.min(start + GROUP_BLOCKS)
    }

    /// The first run of `count` free blocks in a group.
    fn find_in_group(&self, start: u32, count: u32) -> Option<u32> {
        let end = self.group_end(start);
        let mut at = start;
        loop {
            let first = self.busy.next(false, at, end);
            if first + count > end {
                return None;
            }
            at = self.busy.next(true, first, first + count);
            if at - first == count {
                return Some(first);
            }
        }
    }
}

impl Pool {
    /// Hands out `count` blocks near others in one run, if there is one in their group (ALLOC-5).
    pub fn alloc_near(&mut self, neighbours: Neighbours, count: u32) -> Option<PbaRange> {
        let group = self.group_for(neighbours)?;
        let extent = self.extents[group.extent as usize].as_deref()?;
        // ALLOC-4 goes for these, too.
        if !self.is_for_small(group.extent, extent.group_end(group.start)) {
            return None;
        }
        let first = extent.find_in_group(group.start, count)?;
        Some(self.take(group.extent, first, count))
    }

    fn group_for(&self, Neighbours { before, own, behind }: Neighbours) -> Option<Group> {
        if let (Some(before), Some(behind)) = (before, behind)
            && before.0.abs_diff(behind.0) < u64::from(GROUP_BLOCKS)
        {
            let group = self.group_of(before);
            if group.is_some() && group == self.group_of(behind) {
                return group;
            }
        }
        self.group_of(own?)
    }

    fn group_of(&self, pba: Pba) -> Option<Group> {
        let (extent, bit) = self.superblock.locate(pba)?;
        let within = bit.checked_sub(BITMAP_SLOTS)? % GROUP_BLOCKS;
        Some(Group { extent, start: bit - within })
    }

    /// As many groups as the pool has.
    fn groups(&self) -> u64 {
        self.owned.len() as u64 * u64::from(self.superblock.extent_blocks / GROUP_BLOCKS)
    }

    /// Returns `None` if the blocks just freed are all that is free in their group, which keeps
    /// them (ALLOC-5). Otherwise returns how many blocks right before them are free in the group,
    /// which may have been kept until now.
    pub(super) fn free_before(&self, freed: PbaRange) -> Option<u64> {
        if self.free() < self.groups() {
            return Some(0);
        }
        let last = Pba(freed.end().0 - 1);
        let (Some(group), Some(end)) = (self.group_of(freed.start), self.group_of(last)) else {
            return Some(0);
        };
        let extent = self.extent(group.extent);
        let around = group.start..extent.group_end(end.start);
        let is_all = u64::from(extent.busy.count_clear(around)) == freed.blocks;
        if is_all && freed.blocks < u64::from(LARGE_BLOCKS) {
            return None;
        }
        let first = u32::try_from(freed.start.0 - extent.start.0).expect("within an extent");
        let before = (group.start..first).rev().take_while(|bit| !extent.busy.get(*bit));
        Some(before.count() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::Cursor;
    use crate::pool::fixtures::used_but_last as pool;

    /// A block of extent 0, by its group and its number there.
    fn block(pool: &Pool, group: u32, number: u32) -> Pba {
        let bit = BITMAP_SLOTS + group * GROUP_BLOCKS + number;
        pool.superblock.extent(0).start.plus(u64::from(bit))
    }

    fn near(before: Pba, own: Pba, behind: Pba) -> Neighbours {
        Neighbours { before: Some(before), own: Some(own), behind: Some(behind) }
    }

    #[test]
    fn a_block_goes_where_its_neighbours_are() {
        let mut pool = pool(3);
        let at = |group, number| block(&pool, group, number);
        let (location, own) = ([at(2, 30), at(2, 5)], at(7, 9));
        let (freed, others) = (at(2, 11), at(3, 0));
        pool.release(PbaRange::new(freed, 1));
        pool.release(PbaRange::new(others, 1));
        let between = near(location[0], own, location[1]);
        assert_eq!(pool.alloc_near(between, 2), None, "there is one block");
        assert_eq!(pool.alloc_near(between, 1), Some(PbaRange::new(freed, 1)));
        assert_eq!(pool.alloc_near(between, 1), None, "there was one block");
        let (before, behind) = (block(&pool, 3, 30), block(&pool, 4, 0));
        assert_eq!(pool.alloc_near(near(before, own, behind), 1), None, "in two groups");
        let (before, own) = (location[0], block(&pool, 3, 20));
        let apart = near(before, own, behind);
        assert_eq!(pool.alloc_near(apart, 1), Some(PbaRange::new(others, 1)), "near itself");
    }

    #[test]
    fn a_group_keeps_what_was_freed_first() {
        let mut pool = pool(3);
        let (first, second) = (block(&pool, 2, 11), block(&pool, 2, 20));
        pool.release(PbaRange::new(first, 1));
        let elsewhere = pool.alloc(1)[0].start;
        assert_eq!(pool.superblock.locate(elsewhere), Some((2, BITMAP_SLOTS)));
        pool.release(PbaRange::new(second, 1));
        assert_eq!(pool.alloc(1)[0].start, second, "there is another");
        // What was kept is remembered as soon as it is not all.
        pool.release(PbaRange::new(first.plus(1), 1));
        assert_eq!(pool.alloc(2)[0], PbaRange::new(first, 2));
    }

    #[test]
    fn large_requests_find_what_is_ahead_of_them_untouched() {
        let mut pool = pool(3);
        pool.large_cursor = Cursor { place: 0, bit: BITMAP_SLOTS + 3 * GROUP_BLOCKS };
        for (group, is_taken) in [(2, true), (3, false)] {
            let freed = block(&pool, group, 4);
            pool.release(PbaRange::new(freed, 1));
            let own = Neighbours { own: Some(block(&pool, group, 0)), ..Neighbours::default() };
            assert_eq!(pool.alloc_near(own, 1).is_some(), is_taken, "group {group}");
        }
    }

    #[test]
    fn extents_that_are_all_but_full_are_passed_over_while_others_have_room() {
        let mut pool = pool(4);
        for group in 0..31 {
            let freed = pool.superblock.extent(1).start.plus(u64::from(group * GROUP_BLOCKS + 10));
            pool.release(PbaRange::new(freed, 1));
        }
        assert_eq!((pool.free(), pool.free_in_roomy_extents()), (31 + 1022, 1022));
        // Small requests come to the end of their extent.
        pool.cursor = Cursor { place: 0, bit: 1024 };
        let small = pool.alloc(1)[0].start;
        assert_eq!(pool.superblock.locate(small), Some((3, BITMAP_SLOTS)));
        pool.take(3, BITMAP_SLOTS + 1, 1021);
        assert_eq!((pool.free(), pool.free_in_roomy_extents()), (31, 0));
        assert_eq!(pool.alloc(31).iter().map(|run| run.blocks).sum::<u64>(), 31);
    }
}
