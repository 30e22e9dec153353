//! The set of blocks that have an owner.
//!
//! - CENSUS-1: one bit for each block of the extents in which a block has an owner: 32 MiB per TiB.
//!   The owners themselves are not kept; a second walk finds those of doubtful blocks.
//! - CENSUS-2: of blocks with two owners, or outside all extents, [`DOUBTS_MAX`] each are
//!   remembered and the others are counted.

use std::collections::{BTreeMap, BTreeSet};

use layout::Superblock;
use units::Pba;

use crate::bits::Bits;

/// Blocks remembered of each kind (CENSUS-2), and findings told of each.
pub const DOUBTS_MAX: usize = 10_000;

/// Blocks of one kind of doubt.
#[derive(Default)]
pub struct Doubts {
    /// Those that are remembered.
    pub blocks: BTreeSet<Pba>,
    /// Further ones.
    pub left_out: u64,
}

impl Doubts {
    /// Remembers one, or counts it.
    pub fn add(&mut self, pba: Pba) {
        if self.blocks.len() < DOUBTS_MAX || self.blocks.contains(&pba) {
            self.blocks.insert(pba);
        } else {
            self.left_out += 1;
        }
    }
}

/// The blocks that are named.
pub struct Census {
    superblock: Superblock,
    extents: BTreeMap<u32, Bits>,
    /// In no extent of the device.
    pub nowhere: Doubts,
    /// Named more than once.
    pub twice: Doubts,
}

impl Census {
    /// Nothing is named yet.
    pub fn new(superblock: Superblock) -> Self {
        let (nowhere, twice) = (Doubts::default(), Doubts::default());
        Self { superblock, extents: BTreeMap::new(), nowhere, twice }
    }

    /// Something names the block.
    pub fn add(&mut self, pba: Pba) {
        let Some((extent, bit)) = self.superblock.locate(pba) else {
            return self.nowhere.add(pba);
        };
        if !self.extents.entry(extent).or_insert_with(Bits::zeroes).set(bit) {
            self.twice.add(pba);
        }
    }

    /// Returns whether the block, which lies in an extent, has an owner.
    pub fn has(&self, pba: Pba) -> bool {
        let located = self.superblock.locate(pba);
        located.is_some_and(|(extent, bit)| {
            self.extents.get(&extent).is_some_and(|bits| bits.get(bit))
        })
    }

    /// Blocks that something names, each once.
    pub fn count(&self) -> u64 {
        let nowhere = self.nowhere.blocks.len() as u64;
        nowhere + self.extents.values().map(|bits| u64::from(bits.count())).sum::<u64>()
    }

    /// Those in extents, ascending.
    pub fn blocks(&self) -> impl Iterator<Item = Pba> {
        self.extents.iter().flat_map(|(extent, bits)| {
            let range = self.superblock.extent(*extent);
            let count = u32::try_from(range.blocks).expect("an extent has few blocks");
            let set = (0..count).filter(|bit| bits.get(*bit));
            set.map(move |bit| range.start.plus(u64::from(bit)))
        })
    }
}
