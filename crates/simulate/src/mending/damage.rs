//! Damage to structures, and the losses that it excuses.

use std::collections::{BTreeMap, BTreeSet};

use sim::Rng;
use units::{BLOCK_SIZE, Pba};
use volume::{Finding, Problem, Superblock, VolumeError};

use super::{Mending, VOLUME_BLOCKS, VOLUMES};
use crate::content::{self, Shown};

const EXTENT_TREE: u32 = u32::MAX;
const VOLUME_TREE: u32 = u32::MAX - 1;

/// The losses that the damage excuses.
#[derive(Debug, Default)]
pub(super) struct Harm {
    /// The damaged structures.
    kinds: Vec<Kind>,
    /// Volumes that may be gone.
    pub(super) gone: BTreeSet<u64>,
    /// Volumes of which each block may be empty, an error, or what it was before.
    older: BTreeSet<u64>,
    /// Blocks that may be errors: volume and block.
    blocks: BTreeSet<(u64, u64)>,
}

impl Harm {
    /// Returns true if a block that held these contents, one after the other, may now show `now`.
    pub(super) fn allows(
        &self,
        id: u64,
        lba: u64,
        held: &[Shown],
        now: &Result<Shown, VolumeError>,
    ) -> bool {
        let older = self.older.contains(&id);
        match now {
            Ok(shown) if older => *shown == Shown::Zero || held.contains(shown),
            Ok(shown) => held.last() == Some(shown),
            Err(VolumeError::Corrupt { .. }) => older || self.blocks.contains(&(id, lba)),
            Err(_) => false,
        }
    }

    /// Returns true if the problem may remain after a repair.
    pub(super) fn excuses(&self, problem: &Problem) -> bool {
        let is_data = |error: &VolumeError| matches!(error, VolumeError::Corrupt { .. });
        match problem {
            Problem::Check(Finding::Unreadable(error)) => {
                is_data(error) && !(self.blocks.is_empty() && self.older.is_empty())
            }
            _ => false,
        }
    }
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Kind {
    /// One copy of the superblock.
    Superblock,
    /// One copy of each root.
    Roots,
    /// Both copies of the newest root.
    NewestRoot,
    /// All bitmaps.
    Bitmaps,
    /// The table of extents.
    Extents,
    /// The table of volumes.
    Volumes,
    /// A volume's descriptor.
    Descriptor,
    /// A leaf of a volume's map.
    Leaf,
    /// A record of the journal.
    Record,
    /// A block of data.
    Data,
}

const KINDS: [Kind; 10] = [
    Kind::Superblock,
    Kind::Roots,
    Kind::NewestRoot,
    Kind::Bitmaps,
    Kind::Extents,
    Kind::Volumes,
    Kind::Descriptor,
    Kind::Leaf,
    Kind::Record,
    Kind::Data,
];

type Blocks = [(u64, Vec<u8>)];

fn number(block: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(block[at..at + 4].try_into().expect("four bytes"))
}

/// The places of the blocks that are meant.
fn places(blocks: &Blocks, is_meant: impl Fn(u64, &[u8]) -> bool) -> Vec<u64> {
    blocks.iter().filter(|(pba, block)| is_meant(*pba, block)).map(|(pba, _)| *pba).collect()
}

fn is_node(block: &[u8], tree: u32) -> bool {
    block.starts_with(b"FMN1") && number(block, 8) == tree
}

impl Mending {
    /// Damages one or two structures; returns how many blocks.
    pub(super) fn damage(&mut self, blocks: &Blocks) -> u64 {
        let superblock = blocks.iter().find(|(pba, _)| *pba == 0).map(|(_, block)| &block[..]);
        let layout = Layout::new(superblock.expect("formatted"));
        let mut kinds = vec![KINDS[self.rng.below(KINDS.len() as u64) as usize]];
        if self.rng.one_in(2) {
            kinds.push(KINDS[self.rng.below(KINDS.len() as u64) as usize]);
        }
        kinds.dedup();
        let mut harm = self.harm.borrow_mut();
        let mut damaged = BTreeSet::new();
        for kind in kinds {
            damaged.extend(harm_by(kind, blocks, &layout, &mut self.rng, &mut harm));
            harm.kinds.push(kind);
        }
        for pba in &damaged {
            let bit = self.rng.below(BLOCK_SIZE as u64 * 8) as usize;
            self.disk.flip_bit(Pba(*pba), bit);
        }
        damaged.len() as u64
    }
}

/// Locations of structures, from the superblock's bytes.
struct Layout(Superblock);

impl Layout {
    fn new(block: &[u8]) -> Self {
        let word = |at: usize| u64::from_le_bytes(block[at..at + 8].try_into().expect("eight"));
        Self(Superblock {
            uuid: uuid::Uuid::from_slice(&block[16..32]).expect("sixteen bytes"),
            blocks: word(32),
            extent_blocks: number(block, 40),
            journal_blocks: number(block, 44),
            shard_slots: u16::from_le_bytes([block[48], block[49]]),
            cluster: None,
        })
    }

    /// Both copies of the roots of the first shard, older ones first.
    fn roots(&self, blocks: &Blocks) -> Vec<Vec<u64>> {
        let mut slots = BTreeMap::new();
        for parity in [0, 1] {
            let places = self.0.root_places(0, parity).map(|pba| pba.0);
            let generation = |pba: u64| {
                let (_, block) = blocks.iter().find(|(at, _)| *at == pba)?;
                let whole = block.starts_with(b"FSR1");
                whole.then(|| u64::from_le_bytes(block[24..32].try_into().expect("eight bytes")))
            };
            if let Some(newest) = places.iter().filter_map(|pba| generation(*pba)).max() {
                slots.insert(newest, places.to_vec());
            }
        }
        slots.into_values().collect()
    }
}

/// Returns the blocks that this damages, and adds the losses that it excuses to `harm`.
fn harm_by(
    kind: Kind,
    blocks: &Blocks,
    layout: &Layout,
    rng: &mut Rng,
    harm: &mut Harm,
) -> Vec<u64> {
    let id = rng.between(1, VOLUMES);
    let tree = u32::try_from(id).expect("few");
    let all = 1..=VOLUMES;
    let pick = |places: Vec<u64>, rng: &mut Rng| match places.len() as u64 {
        0 => Vec::new(),
        count => vec![places[rng.below(count) as usize]],
    };
    match kind {
        Kind::Superblock => pick(vec![0, layout.0.blocks - 1], rng),
        Kind::Roots => {
            let slots = layout.roots(blocks).into_iter();
            slots.flat_map(|copies| pick(copies, rng)).collect()
        }
        Kind::NewestRoot => {
            harm.gone.extend(all.clone());
            harm.older.extend(all);
            layout.roots(blocks).pop().unwrap_or_default()
        }
        Kind::Bitmaps => places(blocks, |pba, _| layout.0.is_bitmap(Pba(pba))),
        Kind::Extents => places(blocks, |_, block| is_node(block, EXTENT_TREE)),
        Kind::Volumes => {
            harm.gone.extend(all);
            places(blocks, |_, block| is_node(block, VOLUME_TREE))
        }
        Kind::Descriptor => {
            harm.gone.insert(id);
            places(blocks, |_, block| block.starts_with(b"FVD1") && number(block, 40) == tree)
        }
        Kind::Leaf => {
            harm.older.insert(id);
            let is_leaf = |block: &[u8]| is_node(block, tree) && block[4] == 0;
            let leaf = pick(places(blocks, |_, block| is_leaf(block)), rng);
            let base = leaf.first().and_then(|pba| blocks.iter().find(|(at, _)| at == pba));
            let base = base.map(|(_, block)| block[16..24].to_vec()).unwrap_or_default();
            places(blocks, |_, block| is_leaf(block) && block[16..24] == base)
        }
        Kind::Record => {
            harm.gone.extend(all.clone());
            harm.older.extend(all);
            pick(places(blocks, |_, block| block.starts_with(b"FJR1")), rng)
        }
        Kind::Data => {
            let lba = rng.below(VOLUME_BLOCKS);
            harm.blocks.insert((id, lba));
            places(blocks, |_, block| {
                content::owner(block).is_some_and(|(volume, of, _)| (volume, of) == (id, lba))
            })
        }
    }
}
