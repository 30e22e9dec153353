//! Which blocks are named, by all that can name one.
//!
//! - N1: a bit for each block of the extents in which something is named: 32 MiB for a TiB. Who names a block is asked
//!   again, for those of which it matters.
//! - N2: of blocks that are named twice, or that lie where nothing can be named, [`DOUBTS_MAX`] are remembered, and the
//!   others counted.

use std::collections::{BTreeMap, BTreeSet};

use layout::Superblock;
use units::Pba;

use crate::bits::Bits;

/// Blocks remembered of each kind (N2), and findings told of each.
pub(crate) const DOUBTS_MAX: usize = 10_000;

/// Blocks of one kind of doubt.
#[derive(Default)]
pub(crate) struct Doubts {
    pub(crate) blocks: BTreeSet<Pba>,
    /// Further ones.
    pub(crate) left_out: u64,
}

impl Doubts {
    pub(crate) fn add(&mut self, pba: Pba) {
        if self.blocks.len() < DOUBTS_MAX || self.blocks.contains(&pba) {
            self.blocks.insert(pba);
        } else {
            self.left_out += 1;
        }
    }
}

/// The blocks that are named.
pub(crate) struct Census {
    superblock: Superblock,
    extents: BTreeMap<u32, Bits>,
    /// In no extent of the device.
    pub(crate) nowhere: Doubts,
    pub(crate) twice: Doubts,
}

impl Census {
    pub(crate) fn new(superblock: Superblock) -> Self {
        let (nowhere, twice) = (Doubts::default(), Doubts::default());
        Self { superblock, extents: BTreeMap::new(), nowhere, twice }
    }

    /// Something names the block.
    pub(crate) fn add(&mut self, pba: Pba) {
        let Some((extent, bit)) = self.superblock.locate(pba) else {
            return self.nowhere.add(pba);
        };
        if !self.extents.entry(extent).or_insert_with(Bits::zeroes).set(bit) {
            self.twice.add(pba);
        }
    }

    /// Whether something names the block, which lies in an extent.
    pub(crate) fn has(&self, pba: Pba) -> bool {
        let located = self.superblock.locate(pba);
        located.is_some_and(|(extent, bit)| {
            self.extents.get(&extent).is_some_and(|bits| bits.get(bit))
        })
    }

    /// Blocks that something names, each once.
    pub(crate) fn count(&self) -> u64 {
        let nowhere = self.nowhere.blocks.len() as u64;
        nowhere + self.extents.values().map(|bits| u64::from(bits.count())).sum::<u64>()
    }

    /// Those in extents, ascending.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = Pba> {
        self.extents.iter().flat_map(|(extent, bits)| {
            let range = self.superblock.extent(*extent);
            let count = u32::try_from(range.blocks).expect("an extent has few blocks");
            let set = (0..count).filter(|bit| bits.get(*bit));
            set.map(move |bit| range.start.plus(u64::from(bit)))
        })
    }
}
