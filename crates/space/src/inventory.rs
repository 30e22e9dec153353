//! The census of a shard that is in use: its owned blocks, listed one by one while they change.
//!
//! - INVENTORY-1: it begins with all that is in use, which is *expected*. What is seen is expected
//!   no longer.
//! - INVENTORY-2: a block that is freed leaves the inventory, whatever was known of it: its next
//!   owner does not matter.
//! - INVENTORY-3: a block that is seen again, or is still expected when all was seen, is a *doubt*:
//!   where trees change their shape meanwhile, a node may be met twice, or not at all. The owners
//!   of a doubt are looked up in a second walk.
//! - INVENTORY-4: [`DOUBTS_MAX`] doubts are remembered. Further ones are left to the next
//!   inventory.
//!
//! Memory: 4 KiB for each extent in which something is seen, and as much for one that changes
//! meanwhile.

use std::collections::BTreeMap;
use std::rc::Rc;

use layout::{BITMAP_SLOTS, Superblock};
use smallvec::SmallVec;
use units::{Pba, PbaRange};

use crate::Owner;
use crate::bits::Bits;
use crate::census::DOUBTS_MAX;

/// Owners of a doubt that are named.
const OWNERS_MAX: usize = 4;

/// Why a block is doubted.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Doubt {
    /// It was seen twice.
    Twice,
    /// It is in use, and was not seen.
    Unseen,
}

/// The owners of a doubt, each once.
pub type Owners = SmallVec<[Owner; 2]>;

/// The blocks that were in use at its beginning, and those seen since.
#[derive(Debug)]
pub struct Inventory {
    superblock: Superblock,
    expected: BTreeMap<u32, Rc<Bits>>,
    seen: BTreeMap<u32, Bits>,
    doubts: BTreeMap<Pba, (Doubt, Owners)>,
}

impl Inventory {
    /// Begins with the blocks that are in use now, by extent (INVENTORY-1).
    pub fn new(superblock: Superblock, in_use: BTreeMap<u32, Rc<Bits>>) -> Self {
        let (seen, doubts) = (BTreeMap::new(), BTreeMap::new());
        Self { superblock, expected: in_use, seen, doubts }
    }

    /// Something names the block.
    pub fn see(&mut self, pba: Pba) {
        self.excuse(pba);
        let Some((extent, bit)) = self.superblock.locate(pba) else { return };
        if !self.seen.entry(extent).or_insert_with(Bits::zeroes).set(bit) {
            self.doubt(pba, Doubt::Twice);
        }
    }

    /// The block is in use for a reason that may have been seen already.
    pub fn excuse(&mut self, pba: Pba) {
        let Some((extent, bit)) = self.superblock.locate(pba) else { return };
        if let Some(bits) = self.expected.get_mut(&extent)
            && bits.get(bit)
        {
            Rc::make_mut(bits).clear(bit);
        }
    }

    /// The block is no longer in use (INVENTORY-2).
    #[cold]
    pub fn free(&mut self, pba: Pba) {
        self.excuse(pba);
        self.doubts.remove(&pba);
        if let Some((extent, bit)) = self.superblock.locate(pba)
            && let Some(bits) = self.seen.get_mut(&extent)
        {
            bits.clear(bit);
        }
    }

    fn doubt(&mut self, pba: Pba, doubt: Doubt) {
        if self.doubts.len() < DOUBTS_MAX {
            self.doubts.entry(pba).or_insert((doubt, Owners::new()));
        }
    }

    /// The first extent from `from` on of which something may still be expected.
    pub fn next_extent(&self, from: u32) -> Option<u32> {
        self.expected.range(from..).next().map(|(extent, _)| *extent)
    }

    /// Doubts what is still expected of an extent, but for its bitmap slots and the journal.
    pub fn doubt_unseen(&mut self, extent: u32, journal: PbaRange) {
        let Some(bits) = self.expected.remove(&extent) else { return };
        let range = self.superblock.extent(extent);
        let blocks = u32::try_from(range.blocks).expect("an extent has few blocks");
        let mut bit = bits.next(true, BITMAP_SLOTS.min(blocks), blocks);
        while bit < blocks {
            let pba = range.start.plus(u64::from(bit));
            if !(journal.start..journal.end()).contains(&pba) {
                self.doubt(pba, Doubt::Unseen);
            }
            bit = bits.next(true, bit + 1, blocks);
        }
    }

    /// Returns whether there are doubts.
    pub fn has_doubts(&self) -> bool {
        !self.doubts.is_empty()
    }

    /// Notes an owner of the block, which matters if the block is a doubt.
    pub fn note_owner(&mut self, pba: Pba, owner: Owner) {
        if let Some((_, owners)) = self.doubts.get_mut(&pba)
            && !owners.contains(&owner)
            && owners.len() < OWNERS_MAX
        {
            owners.push(owner);
        }
    }

    /// Takes the doubts out.
    pub fn take_doubts(&mut self) -> BTreeMap<Pba, (Doubt, Owners)> {
        std::mem::take(&mut self.doubts)
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    const DATA: Owner = Owner::Data { volume: 1, lba: 7 };
    const OTHER: Owner = Owner::Data { volume: 2, lba: 7 };

    /// One extent of 1 024 blocks, of which those in `in_use` are.
    fn inventory(in_use: &[u32]) -> (Inventory, impl Fn(u32) -> Pba) {
        let superblock = Superblock::with_extents(Uuid::nil(), 1 << 20, 1024).expect("in bounds");
        let mut bits = Bits::zeroes();
        in_use.iter().for_each(|bit| assert!(bits.set(*bit)));
        let start = superblock.extent(3).start;
        let inventory = Inventory::new(superblock, BTreeMap::from([(3, Rc::new(bits))]));
        (inventory, move |bit| start.plus(u64::from(bit)))
    }

    fn unseen(inventory: &mut Inventory, journal: PbaRange) -> Vec<Pba> {
        while let Some(extent) = inventory.next_extent(0) {
            inventory.doubt_unseen(extent, journal);
        }
        let doubts = inventory.take_doubts().into_iter();
        let unseen = doubts.filter(|(_, (doubt, _))| *doubt == Doubt::Unseen);
        unseen.map(|(pba, _)| pba).collect()
    }

    #[test]
    fn what_is_in_use_and_neither_seen_nor_freed_is_a_doubt() {
        let (mut inventory, at) = inventory(&[0, 1, 10, 11, 12, 13, 20, 21]);
        inventory.see(at(10));
        inventory.free(at(11));
        inventory.excuse(at(12));
        // It was free at the beginning.
        inventory.see(at(500));
        let journal = PbaRange::new(at(20), 2);
        assert_eq!(unseen(&mut inventory, journal), [at(13)], "slots and journal are expected");
    }

    #[test]
    fn a_block_that_is_freed_and_used_again_may_be_seen_again() {
        let (mut inventory, at) = inventory(&[10, 11]);
        inventory.see(at(10));
        inventory.free(at(10));
        inventory.see(at(10));
        assert!(!inventory.has_doubts());
        inventory.see(at(10));
        assert!(inventory.has_doubts());
        inventory.note_owner(at(10), DATA);
        inventory.note_owner(at(10), DATA);
        inventory.note_owner(at(10), OTHER);
        inventory.note_owner(at(11), OTHER);
        let doubts: Vec<_> = inventory.take_doubts().into_iter().collect();
        let owners = Owners::from_slice(&[DATA, OTHER]);
        assert_eq!(doubts, [(at(10), (Doubt::Twice, owners))]);
    }

    #[test]
    fn a_doubt_that_is_freed_is_none() {
        let (mut inventory, at) = inventory(&[10]);
        inventory.see(at(10));
        inventory.see(at(10));
        inventory.free(at(10));
        assert!(!inventory.has_doubts());
    }

    #[test]
    fn so_many_doubts_are_remembered_and_no_more() {
        let superblock = Superblock::with_extents(Uuid::nil(), 1 << 20, 32768).expect("in bounds");
        let mut inventory = Inventory::new(superblock, BTreeMap::new());
        let start = superblock.extent(0).start;
        for pba in (2..20_000).map(|bit| start.plus(bit)) {
            inventory.see(pba);
            inventory.see(pba);
        }
        assert_eq!(inventory.take_doubts().len(), DOUBTS_MAX);
    }
}
