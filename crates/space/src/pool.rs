//! The blocks of a shard's extents and their use.
//!
//! Each extent has two bitmaps:
//! - `committed`: blocks that the durable state names, as far as applied: what a checkpoint writes.
//! - `busy`: these, and blocks handed out for requests under way, and freed ones that may not be
//!   reused yet. A block is handed out only if it is not busy.
//!
//! - POOL-1: a committed block is busy.
//! - POOL-2: replay of the journal on a checkpoint's bitmaps gives `committed` at the end of the
//!   journal, so that blocks of requests cut short by a crash are free again without a search for
//!   them.

mod alloc;
mod discard_map;
#[cfg(test)]
mod fixtures;
mod near;
mod recent;
mod returnable;
mod room;
mod snapshot;
mod upkeep;

use std::cell::RefCell;
use std::collections::{BTreeSet, VecDeque};
use std::rc::{Rc, Weak};

use layout::{BITMAP_SLOTS, Mapping, Superblock};
use smallvec::SmallVec;
use units::{Pba, PbaRange};

use crate::bits::Bits;
use crate::inventory::Inventory;

use alloc::Cursor;
pub use alloc::LARGE_BLOCKS;
use discard_map::{DiscardMap, QUIET_ROUNDS};
pub use discard_map::{RUN_BLOCKS_MIN, Search};
use recent::Recent;
pub use returnable::{ReturnableExtents, Returned};
use room::Free;
pub use snapshot::{ExtentSnapshot, SpaceSnapshot};

/// Blocks that are not handed out whatever they are: 16 MiB. A device that refuses more is not helped by going elsewhere.
const BANNED_MAX: usize = 4096;

/// Blocks handed out together, in order.
pub type Runs = SmallVec<[PbaRange; 1]>;

#[derive(Debug)]
pub(crate) struct Extent {
    start: Pba,
    blocks: u32,
    busy: Bits,
    committed: Rc<Bits>,
    free: u32,
    /// True if `committed` differs from what the last snapshot had.
    changed: bool,
    /// Location of the last checkpoint's bitmap.
    on_disk: Option<Mapping>,
    /// Contents of the last checkpoint's bitmap.
    durable: Rc<Bits>,
    /// Free blocks that are to be discarded.
    stale: DiscardMap,
    /// True if no record in flight can still claim the extent: only then may it be given back.
    owned_durably: bool,
    /// True if it is in `Pool::empty`.
    is_listed: bool,
}

impl Extent {
    /// An extent with only its bitmap slots in use, or as a checkpoint left it.
    fn new(range: PbaRange, loaded: Option<(Bits, Mapping)>) -> Self {
        let blocks = u32::try_from(range.blocks).expect("at most 32 768");
        let (committed, on_disk) = match loaded {
            Some((bits, place)) => (bits, Some(place)),
            None => (Bits::zeroes(), None),
        };
        let mut committed = committed;
        for bit in 0..BITMAP_SLOTS.min(blocks) {
            committed.set(bit);
        }
        let busy = committed.clone();
        let committed = Rc::new(committed);
        let free = blocks - busy.count_below(blocks);
        Self {
            start: range.start,
            blocks,
            busy,
            durable: if on_disk.is_some() { committed.clone() } else { Rc::new(Bits::zeroes()) },
            stale: DiscardMap::none(),
            committed,
            free,
            changed: on_disk.is_none(),
            on_disk,
            owned_durably: on_disk.is_some(),
            is_listed: false,
        }
    }

    fn is_empty(&self) -> bool {
        self.free == self.blocks - BITMAP_SLOTS
    }

    /// Returns whether most of the extent is free, so that it is left to become empty.
    fn is_emptying(&self) -> bool {
        self.free > self.blocks / 2
    }
}

/// The blocks of the extents of a shard.
#[derive(Debug)]
pub struct Pool {
    superblock: Superblock,
    /// By extent number.
    extents: Vec<Option<Box<Extent>>>,
    owned: Vec<u32>,
    /// Positions where allocation continues: for small requests and the engine's own, and for large
    /// ones.
    cursor: Cursor,
    large_cursor: Cursor,
    /// Blocks freed lately, which are taken first.
    recent: Recent,
    /// Extents that were empty at some time since a large request last began with one.
    empty: Vec<u32>,
    /// Extents in which there may be something to discard, and where the search in one goes on.
    unsearched: VecDeque<u32>,
    searched: Option<(u32, u32)>,
    /// Rounds of that search begun, and extents that are still to be considered in the present one.
    round: u64,
    left_in_round: usize,
    /// True if the device is told what is free.
    discards: bool,
    free: Free,
    committed: u64,
    /// Blocks that are not handed out, whatever they are.
    banned: BTreeSet<Pba>,
    /// Banned blocks that are not in use and would otherwise be free.
    withheld: BTreeSet<Pba>,
    /// An inventory in progress, which is told of freed blocks while it exists.
    inventory: Option<Weak<RefCell<Inventory>>>,
}

impl Pool {
    /// A shard without extents.
    pub fn new(superblock: Superblock) -> Self {
        let extents = (0..superblock.extent_count()).map(|_| None).collect();
        Self {
            superblock,
            extents,
            owned: Vec::new(),
            cursor: Cursor::at(0),
            large_cursor: Cursor::at(0),
            recent: Recent::default(),
            empty: Vec::new(),
            unsearched: VecDeque::new(),
            searched: None,
            round: QUIET_ROUNDS,
            left_in_round: 0,
            discards: true,
            free: Free::default(),
            committed: 0,
            banned: BTreeSet::new(),
            withheld: BTreeSet::new(),
            inventory: None,
        }
    }

    /// Blocks that the durable state names.
    pub fn committed(&self) -> u64 {
        self.committed
    }

    /// Blocks of the owned extents.
    pub fn total(&self) -> u64 {
        self.owned.iter().map(|index| u64::from(self.extent(*index).blocks)).sum()
    }

    /// The extents that it owns, ascending.
    pub fn owned(&self) -> &[u32] {
        &self.owned
    }

    /// Returns whether it owns the extent.
    pub fn owns(&self, extent: u32) -> bool {
        self.extents.get(extent as usize).is_some_and(Option::is_some)
    }

    /// Returns whether nothing is in an extent but its bitmaps.
    pub fn is_empty(&self, index: u32) -> bool {
        self.extent(index).is_empty()
    }

    /// Takes in an extent: a fresh one, or as a checkpoint left it.
    pub fn add(&mut self, index: u32, loaded: Option<(Bits, Mapping)>) {
        let extent = Extent::new(self.superblock.extent(index), loaded);
        self.free.add(&extent);
        self.committed += u64::from(extent.committed.count());
        let place = &mut self.extents[index as usize];
        assert!(place.is_none(), "an extent is added once");
        *place = Some(Box::new(extent));
        self.owned.push(index);
        self.list_if_empty(index);
        let range = self.superblock.extent(index);
        let banned: Vec<Pba> = self.banned.range(range.start..range.end()).copied().collect();
        banned.into_iter().for_each(|pba| self.withhold(pba));
    }

    /// Notes that the record that claims the extent took effect, or that there never was one.
    pub fn set_owned_durably(&mut self, index: u32) {
        if let Some(extent) = &mut self.extents[index as usize] {
            extent.owned_durably = true;
        }
    }

    fn extent(&self, index: u32) -> &Extent {
        self.extents[index as usize].as_deref().expect("owned")
    }

    /// The extent and the bit of a block that the pool has.
    fn locate(&mut self, pba: Pba) -> Option<(&mut Extent, u32)> {
        let (index, bit) = self.superblock.locate(pba)?;
        Some((self.extents[index as usize].as_deref_mut()?, bit))
    }

    /// Returns whether all of `range` lies in one extent of the pool.
    pub fn contains(&self, range: PbaRange) -> bool {
        if range.blocks == 0 {
            return false;
        }
        let (first, last) = (range.start, Pba(range.start.0.saturating_add(range.blocks) - 1));
        match (self.superblock.locate(first), self.superblock.locate(last)) {
            (Some((index, bit)), Some((last_index, _))) => {
                index == last_index && self.owns(index) && bit >= BITMAP_SLOTS
            }
            _ => false,
        }
    }

    /// Returns whether the block is part of the durable state.
    pub fn is_committed(&mut self, pba: Pba) -> bool {
        self.locate(pba).is_some_and(|(extent, bit)| extent.committed.get(bit))
    }

    /// Marks these blocks as in use by the durable state, whatever handed them out. Returns how many
    /// were not.
    pub fn commit(&mut self, range: PbaRange) -> u64 {
        let Some((index, first)) = self.superblock.locate(range.start) else { return 0 };
        let Some(extent) = self.extents[index as usize].as_deref_mut() else { return 0 };
        let bits = first..first + u32::try_from(range.blocks).expect("within an extent");
        let (mut newly_committed, mut newly_busy) = (0, 0);
        let Extent { committed, busy, stale, .. } = extent;
        Rc::make_mut(committed).set_range(bits.clone(), |_, were_clear| {
            newly_committed += u64::from(were_clear.count_ones());
        });
        busy.set_range(bits, |word, were_clear| {
            newly_busy += were_clear.count_ones();
            stale.clear_in_word(word, were_clear);
        });
        extent.changed = true;
        self.free.set(extent, extent.free - newly_busy);
        self.committed += newly_committed;
        newly_committed
    }

    /// The durable state no longer names the blocks. They stay busy until [`Pool::release`].
    pub fn uncommit(&mut self, run: PbaRange) {
        let is_told = self.inventory.is_some();
        let Some((extent, first)) = self.locate(run.start) else { return };
        // Only a forged map names blocks of two extents behind each other.
        let end = extent.blocks.min(first + u32::try_from(run.blocks).expect("few"));
        let (start, mut uncommitted, mut to_tell) = (extent.start, 0, Vec::new());
        Rc::make_mut(&mut extent.committed).clear_range(first..end, |word, were_set| {
            uncommitted += u64::from(were_set.count_ones());
            if is_told {
                let bits = (0..64).filter(|bit| were_set >> bit & 1 == 1);
                to_tell.extend(bits.map(|bit| start.plus(64 * word as u64 + bit)));
            }
        });
        extent.changed |= uncommitted > 0;
        self.committed -= uncommitted;
        to_tell.into_iter().for_each(|pba| self.tell_inventory(pba));
    }

    /// The blocks, all of one extent, may be handed out again, but for those that are banned.
    pub fn release(&mut self, run: PbaRange) {
        if self.banned.range(run.start..run.end()).next().is_none() {
            return self.release_all(run);
        }
        let blocks = (run.start.0..run.end().0).map(Pba);
        let (banned, usable): (Vec<_>, Vec<_>) = blocks.partition(|pba| self.banned.contains(pba));
        self.withheld.extend(banned);
        usable.into_iter().for_each(|pba| self.release_all(PbaRange::new(pba, 1)));
    }

    fn release_all(&mut self, run: PbaRange) {
        if self.give_back(run, true) == run.blocks
            && let Some(before) = self.free_before(run)
        {
            self.recent.push(run, before);
        }
    }

    /// A block that the device refuses is not handed out any more, nor given back: `BANNED_MAX` of them. Nothing of this
    /// is durable.
    pub fn ban(&mut self, pba: Pba) {
        if self.banned.len() < BANNED_MAX && self.banned.insert(pba) {
            self.withhold(pba);
        }
    }

    /// Withholds a banned block, if it is not in use.
    fn withhold(&mut self, pba: Pba) {
        let Some((index, bit)) = self.superblock.locate(pba) else { return };
        let Some(extent) = self.extents[index as usize].as_deref_mut() else { return };
        if bit >= BITMAP_SLOTS && extent.busy.set(bit) {
            extent.stale.clear(bit);
            self.free.set(extent, extent.free - 1);
            self.withheld.insert(pba);
        }
    }

    /// Lifts all bans: withheld blocks are free.
    pub fn release_quarantine(&mut self) {
        self.banned.clear();
        let withheld = std::mem::take(&mut self.withheld);
        withheld.into_iter().for_each(|pba| self.release_all(PbaRange::new(pba, 1)));
    }

    /// Blocks that are neither in use nor handed out.
    pub fn withheld(&self) -> u64 {
        self.withheld.len() as u64
    }

    /// Makes blocks of one extent free, and says how many were not; `is_stale`: the device may have something there.
    fn give_back(&mut self, run: PbaRange, is_stale: bool) -> u64 {
        let Some((index, first)) = self.superblock.locate(run.start) else { return 0 };
        let Some(extent) = self.extents[index as usize].as_deref_mut() else { return 0 };
        // Only a forged map names blocks of two extents behind each other.
        let bits = first..extent.blocks.min(first + u32::try_from(run.blocks).expect("few"));
        assert!(!extent.committed.any(bits.clone()), "POOL-1: a block in use is not released");
        let Extent { busy, stale, .. } = extent;
        let mut freed = 0;
        busy.clear_range(bits, |word, were_busy| {
            freed += were_busy.count_ones();
            if is_stale {
                stale.set_in_word(word, were_busy);
            }
        });
        if freed > 0 {
            self.free.set(extent, extent.free + freed);
            if is_stale {
                extent.stale.note_freed(self.round);
                self.note_stale(index);
            }
            self.list_if_empty(index);
        }
        u64::from(freed)
    }

    /// Every block that the durable state names, ascending by extent.
    pub fn for_each_committed(&self, mut visit: impl FnMut(Pba)) {
        for extent in self.extents.iter().flatten() {
            let bits = (0..extent.blocks).filter(|bit| extent.committed.get(*bit));
            bits.for_each(|bit| visit(extent.start.plus(u64::from(bit))));
        }
    }

    /// Counts bits afresh and compares: (committed, free) must be what is kept.
    pub fn recount(&self) -> (u64, u64) {
        let mut sum = (0, 0);
        for extent in self.extents.iter().flatten() {
            let busy = (0..extent.blocks).filter(|bit| extent.busy.get(*bit)).count() as u64;
            sum.0 += u64::from(extent.committed.count());
            sum.1 += u64::from(extent.blocks) - busy;
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::fixtures::owned_durably as pool;
    use super::*;

    /// SPACE-1: the nodes of the checkpoint that gives extents back need blocks themselves.
    #[test]
    fn a_snapshot_gives_back_no_extent_that_its_own_blocks_need() {
        let mut pool = pool(100);
        let mut snapshot =
            pool.snapshot(3000, ReturnableExtents { floor: 3500, keep: 1, undiscarded: 0 });
        assert_eq!((snapshot.returned.len(), pool.owned().len()), (96, 4));
        let mut taken = 0;
        while let Some(run) = pool.alloc_metadata(&mut snapshot, 32) {
            taken += run.blocks;
        }
        assert_eq!(taken, 3000, "then it is told that there are no more");
    }

    /// Also of an extent that comes later, and so many.
    #[test]
    fn banned_blocks_are_never_handed_out() {
        let mut pool = pool(1);
        let blocks = |index| pool.superblock.extent(index).start;
        let (first, second) = (blocks(0).plus(20), blocks(1).plus(30));
        pool.ban(first);
        pool.ban(second);
        pool.add(1, None);
        pool.set_owned_durably(1);
        let free = pool.free();
        assert_eq!((free, pool.withheld()), (2 * 1022 - 2, 2));
        let runs = pool.alloc(u32::try_from(free).expect("few"));
        let has = |pba: Pba| runs.iter().any(|run| run.start <= pba && pba < run.end());
        assert!(!has(first) && !has(second));
        runs.iter().for_each(|run| pool.release(*run));
        assert_eq!(pool.free(), free);
        pool.release_quarantine();
        assert_eq!((pool.free(), pool.withheld()), (free + 2, 0));
        pool.ban(first);
        pool.ban(second);
        assert_eq!((pool.free(), pool.withheld()), (free, 2));
        (0..2 * BANNED_MAX as u64).for_each(|block| pool.ban(Pba((1 << 19) + block)));
        assert_eq!(pool.banned.len(), BANNED_MAX);
    }

    /// An extent whose claim is in a record on its way is not given back: replay would claim it.
    #[test]
    fn a_checkpoint_does_not_make_a_claim_durable_that_is_still_in_flight() {
        let mut pool = pool(2);
        for index in 2..10 {
            pool.add(index, None);
        }
        let spares = ReturnableExtents { floor: 0, keep: 1, undiscarded: 0 };
        let mut snapshot = pool.snapshot(1, spares);
        pool.release_set_aside(&mut snapshot);
        for index in 2..10 {
            let place = Mapping { pba: pool.superblock.extent(index).start, crc: 0 };
            pool.set_on_disk(index, place, &snapshot.extents[&index].bits);
        }
        assert_eq!(pool.snapshot(1, spares).returned, []);
        pool.set_owned_durably(7);
        pool.set_owned_durably(8);
        let returned = [7, 8].map(|extent| Returned { extent, is_stale: false });
        assert_eq!(pool.snapshot(1, spares).returned, returned);
    }
}
