//! Chooses the extents that a pool gives back.
//!
//! - RETURNABLE-1: an empty extent that is still to be discarded stays: its owner can use it, and
//!   after a restart knows that data may be left in it. It goes when it was discarded, or when
//!   others run short.
//! - RETURNABLE-2: an extent whose claim is in a record on its way stays: replay would claim it.

use super::{Extent, Pool};

/// The extents that a pool may give back.
#[derive(Clone, Copy, Debug)]
pub struct ReturnableExtents {
    /// Blocks that stay free.
    pub floor: u64,
    /// Empty extents that stay.
    pub keep: u32,
    /// Extents at most that go though they are still to be discarded (RETURNABLE-1).
    pub undiscarded: u32,
}

/// An extent that goes back to the device's allocator.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Returned {
    /// The extent.
    pub extent: u32,
    /// True if something may be left in it to be discarded.
    pub is_stale: bool,
}

impl Pool {
    /// Extents that a snapshot could take out, if it kept none to spare.
    pub fn spares(&self, floor: u64) -> u32 {
        let (mut free, mut count) = (self.free(), 0);
        for index in &self.owned {
            let extent = self.extent(*index);
            if extent.is_spare() && free >= floor + u64::from(extent.free) {
                free -= u64::from(extent.free);
                count += 1;
            }
        }
        count
    }

    /// The extents that a snapshot would take out.
    pub fn choose_spares(&self, spares: ReturnableExtents) -> Vec<Returned> {
        let ReturnableExtents { floor, keep, undiscarded } = spares;
        let current = self.owned.get(self.cursor.place).copied().filter(|_| keep > 0);
        let spare = self.owned.iter().copied().filter(|index| Some(*index) != current);
        let spare = spare.filter(|index| self.extent(*index).is_spare()).map(|extent| {
            let is_stale = self.discards && self.extent(extent).is_to_be_discarded();
            Returned { extent, is_stale }
        });
        let (stale, clean): (Vec<_>, Vec<_>) = spare.partition(|spare| spare.is_stale);
        // What is kept had better be what is still to be discarded.
        let keep = keep as usize;
        let stale_going = stale.len().saturating_sub(keep).min(undiscarded as usize);
        let clean_kept = keep.saturating_sub(stale.len() - stale_going);
        let going = clean.into_iter().skip(clean_kept).chain(stale.into_iter().take(stale_going));
        let mut chosen: Vec<_> = going.collect();
        let mut free = self.free();
        chosen.retain(|spare| {
            let blocks = u64::from(self.extent(spare.extent).free);
            let goes = free >= floor + blocks;
            free -= if goes { blocks } else { 0 };
            goes
        });
        chosen
    }

    /// Takes them out.
    pub(super) fn take_spares(&mut self, spares: ReturnableExtents) -> Vec<Returned> {
        let returned = self.choose_spares(spares);
        let going: Vec<u32> = returned.iter().map(|spare| spare.extent).collect();
        self.take_out(&going);
        returned
    }

    /// Takes out extents in which nothing is.
    pub fn take_out(&mut self, going: &[u32]) {
        let current = self.owned.get(self.cursor.place).copied();
        let large = self.owned.get(self.large_cursor.place).copied();
        for index in going {
            let extent = self.extents[*index as usize].take().expect("owned");
            self.free.remove(&extent);
            self.committed -= u64::from(extent.committed.count());
        }
        if !going.is_empty() {
            let extents = &self.extents;
            self.owned.retain(|index| extents[*index as usize].is_some());
            self.leave_out_of_search();
            self.settle_cursors(current, large);
        }
    }
}

impl Extent {
    /// Returns whether it could go (RETURNABLE-2).
    fn is_spare(&self) -> bool {
        self.is_empty() && self.owned_durably
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::Search;
    use crate::pool::fixtures::owned_durably;

    /// Extents of 1 024 blocks, all of them empty; those in `stale` are to be discarded.
    fn pool(extents: u32, stale: &[u32]) -> Pool {
        let mut pool = owned_durably(extents);
        for index in stale {
            pool.mark_for_discard(*index);
        }
        pool
    }

    fn extents(returned: &[Returned]) -> Vec<u32> {
        returned.iter().map(|returned| returned.extent).collect()
    }

    #[test]
    fn what_is_to_be_discarded_goes_last_and_only_if_asked_for() {
        let pool = pool(6, &[2, 4]);
        let choose = |keep, undiscarded| {
            extents(&pool.choose_spares(ReturnableExtents { floor: 0, keep, undiscarded }))
        };
        // The cursor is in the first; one of those that are stale is kept anyway.
        assert_eq!(choose(1, 0), [1, 3, 5]);
        assert_eq!(choose(1, 1), [1, 3, 5, 2]);
        assert_eq!(choose(1, 9), [1, 3, 5, 2]);
        assert_eq!(choose(0, u32::MAX), [0, 1, 3, 5, 2, 4]);
    }

    /// A round goes on behind extents that go while one of its runs is being discarded.
    #[test]
    fn extents_may_go_while_a_round_looks_for_what_to_discard() {
        let mut pool = pool(4, &[1, 2, 3]);
        pool.begin_round();
        let found = loop {
            match pool.search_stale(400) {
                Search::Found(run) => break run,
                Search::Unfinished => {}
                Search::Done => panic!("all of an extent is stale"),
            }
        };
        pool.take_out(&[2]);
        pool.release_taken(found, false);
        pool.take_out(&[0, 3]);
        let mut discarded = found.blocks;
        while let step @ (Search::Found(_) | Search::Unfinished) = pool.search_stale(400) {
            if let Search::Found(run) = step {
                discarded += run.blocks;
                pool.release_taken(run, false);
            }
        }
        assert_eq!(discarded, 1022, "the extent that is left");
    }

    #[test]
    fn what_was_discarded_goes() {
        let mut pool = pool(3, &[1, 2]);
        let spares = ReturnableExtents { floor: 0, keep: 1, undiscarded: 0 };
        assert_eq!(extents(&pool.choose_spares(spares)), []);
        let mut discarded = 0;
        pool.begin_round();
        loop {
            match pool.search_stale(400) {
                Search::Found(run) => {
                    discarded += run.blocks;
                    pool.release_taken(run, false);
                }
                Search::Unfinished => {}
                Search::Done => break,
            }
        }
        assert_eq!(discarded, 2 * 1022);
        assert_eq!(extents(&pool.take_spares(spares)), [2]);
    }

    #[test]
    fn a_device_that_discards_nothing_has_nothing_kept_back() {
        let mut pool = pool(3, &[1, 2]);
        pool.set_discards(false);
        let returned = pool.choose_spares(ReturnableExtents { floor: 0, keep: 0, undiscarded: 0 });
        assert_eq!(
            returned.iter().map(|r| (r.extent, r.is_stale)).collect::<Vec<_>>(),
            [(0, false), (1, false), (2, false)]
        );
    }
}
