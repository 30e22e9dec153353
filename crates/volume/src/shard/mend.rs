//! Rebuilds damaged structures that follow from other data.

use space::Owner;
use std::collections::BTreeMap;
use std::fmt;

use io_traits::{Buffer, Device};
use layout::DecodeError;
use situations::{Situation, situation};
use units::{Pba, PbaRange};
use uuid::Uuid;

use super::roots::Roots;
use super::{Damaged, Inner, Shard, Structure};
use crate::check::Unread;
use crate::sabotage::{Sabotage, broken};
use crate::{OpenError, VolumeError};
use space::Bits;
use space::Census;

/// Damage that was found and cost nothing.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Mended {
    /// No copy of a root is whole. If it was the newest one, the shard went back to the one before,
    /// from which the journal led to all that was acknowledged; data that the device has lost or
    /// reused since is an error for its reader.
    Root {
        /// Location of the first copy.
        pba: Pba,
    },
    /// A bitmap was rebuilt from the maps.
    Bitmap {
        /// The extent.
        extent: u32,
        /// Its former location.
        pba: Pba,
    },
    /// The table of the shard's extents was rebuilt from the maps, and their bitmaps with it.
    Extents {
        /// Former location of the damaged node of the table.
        pba: Pba,
    },
}

impl fmt::Display for Mended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Root { pba } => write!(
                f,
                "both copies of the root at {pba} are damaged: if it was the newest, this is the state before it and what the \
                 journal says since, which is all that was acknowledged"
            ),
            Self::Bitmap { extent, pba } => {
                write!(
                    f,
                    "the bitmap of extent {extent} at {pba} is damaged: rebuilt from the maps"
                )
            }
            Self::Extents { pba } => {
                write!(f, "the table of extents at {pba} is damaged: rebuilt from the maps")
            }
        }
    }
}

impl<D: Device> Inner<D> {
    /// Checks that the maps account for all blocks in use, except for what is given up. A node that
    /// the device fails to read is no damage: a later read may succeed, and then the node names the
    /// same blocks as before.
    fn check_all_named(&self, unread: &[Unread], or: OpenError) -> Result<(), OpenError> {
        for unread in unread {
            if let VolumeError::Device(error) = unread.error {
                return Err(error.into());
            }
        }
        let all = unread.is_empty() && !self.hides_blocks();
        if all || self.read_back.allows_data_loss() { Ok(()) } else { Err(or) }
    }

    /// Rebuilds bitmaps of the last checkpoint before the journal is replayed. All maps are read
    /// for that: they alone know the blocks in use. If one of them is damaged, too, the shard is
    /// not opened.
    pub(super) async fn mend_bitmaps(
        &self,
        damaged: &[(u32, Pba)],
        journal: PbaRange,
    ) -> Result<(), OpenError> {
        // A bit for each block: a device has many.
        let zeroes = damaged.iter().map(|(extent, _)| (*extent, Bits::zeroes()));
        let mut used: BTreeMap<u32, Bits> = zeroes.collect();
        let mut note = |pba: Pba| {
            let located = self.superblock.locate(pba);
            if let Some((bits, bit)) = located.and_then(|(e, bit)| Some((used.get_mut(&e)?, bit))) {
                bits.set(bit);
            }
        };
        let unread = self.for_each_owner(|pba, _| note(pba)).await;
        let refusal = self.damaged("bitmap", damaged[0].1, DecodeError::Checksum);
        self.check_all_named(&unread, refusal)?;
        // The journal itself is not known yet.
        (0..journal.blocks).for_each(|block| note(journal.start.plus(block)));
        if broken(Sabotage::MendFromOldBitmap) {
            used = self.used_before(damaged).await;
        }
        let mut pool = self.pool.borrow_mut();
        for (extent, bits) in used {
            let PbaRange { start, blocks } = self.superblock.extent(extent);
            let in_use = (0..blocks).filter(|bit| bits.get(u32::try_from(*bit).expect("few")));
            for bit in in_use {
                pool.commit(PbaRange::new(start.plus(bit), 1));
            }
        }
        for &(extent, pba) in damaged {
            pool.set_changed(extent);
            self.made_good(Mended::Bitmap { extent, pba });
        }
        Ok(())
    }

    /// Notes copies of roots that are damaged.
    pub(super) fn note_roots(&self, roots: &Roots) {
        for &pba in &roots.damaged {
            let structure = Structure::Root;
            self.findings.note(&Damaged { pba, structure, volume: None, lba: None });
        }
        if let Some(pba) = roots.lost_slot(&self.superblock, self.index) {
            self.made_good(Mended::Root { pba });
        }
    }

    /// Without the newest root, what only the one before leads to may have been reused: a volume that is damaged there was not
    /// in the newest, perhaps, and is not given up unasked.
    pub(super) fn check_gone_back(&self, roots: &Roots) -> Result<(), OpenError> {
        match roots.perhaps_newest(&self.superblock, self.index) {
            Some(pba) if self.hides_blocks() && !self.read_back.allows_data_loss() => {
                Err(self.damaged("root", pba, DecodeError::Checksum))
            }
            _ => Ok(()),
        }
    }

    fn made_good(&self, mended: Mended) {
        let (Mended::Root { pba } | Mended::Bitmap { pba, .. } | Mended::Extents { pba }) = mended;
        situation(match mended {
            Mended::Root { .. } => Situation::RootSlotIsLost,
            Mended::Bitmap { .. } => Situation::BitmapRebuilt,
            Mended::Extents { .. } => Situation::ExtentTableRebuilt,
        });
        self.findings.note_told(pba);
        self.read_back.note_mended(mended);
    }

    /// Returns the blocks that the checkpoint before used, by the slots: for a mutant.
    async fn used_before(&self, damaged: &[(u32, Pba)]) -> BTreeMap<u32, Bits> {
        let mut used = BTreeMap::new();
        for &(extent, pba) in damaged {
            let start = self.superblock.extent(extent).start;
            let other = if pba == start { start.plus(1) } else { start };
            if let Ok(block) = self.device.read(other, Buffer::new(1)).await {
                used.insert(extent, Bits::decode(block.as_bytes()));
            }
        }
        used
    }

    /// Rebuilds the table of extents, whose node at `damaged` is damaged: the shard's extents are
    /// those that contain an owned block. An extent without one has no owner now, unless the
    /// journal leads to it. As with bitmaps, all maps are read for that.
    pub(super) async fn mend_extents(
        &self,
        damaged: Pba,
        journal: PbaRange,
    ) -> Result<(), OpenError> {
        let mut used: BTreeMap<u32, Bits> = BTreeMap::new();
        let mut note = |pba| {
            if let Some((extent, bit)) = self.superblock.locate(pba) {
                used.entry(extent).or_insert_with(Bits::zeroes).set(bit);
            }
        };
        let unread = self.for_each_owner(|pba, _| note(pba)).await;
        let refusal = self.damaged("table node", damaged, DecodeError::Checksum);
        self.check_all_named(&unread, refusal)?;
        (0..journal.blocks).for_each(|block| note(journal.start.plus(block)));
        self.read_back.rebuild_extents();
        for (extent, bits) in used {
            let PbaRange { start, blocks } = self.superblock.extent(extent);
            self.adopt(PbaRange::new(start, blocks))?;
            let mut pool = self.pool.borrow_mut();
            let in_use = (0..blocks).filter(|bit| bits.get(u32::try_from(*bit).expect("few")));
            for bit in in_use {
                pool.commit(PbaRange::new(start.plus(bit), 1));
            }
        }
        self.made_good(Mended::Extents { pba: damaged });
        Ok(())
    }

    /// Something of ours lies at `range`: so its extent is ours, too, where no table says which are.
    pub(super) fn adopt(&self, range: PbaRange) -> Result<(), OpenError> {
        let Some((extent, _)) = self.superblock.locate(range.start) else { return Ok(()) };
        if self.read_back.rebuilds_extents() && !self.pool.borrow().owns(extent) {
            self.claim_extent(extent)?;
            let mut pool = self.pool.borrow_mut();
            pool.add(extent, None);
            pool.set_owned_durably(extent);
        }
        Ok(())
    }
}

/// For a check of the whole device, while nothing is under way.
impl<D: Device> Inner<D> {
    /// Returns whether a block lies in an extent of the shard.
    pub(crate) fn owns_block(&self, pba: Pba) -> bool {
        let found = self.superblock.locate(pba);
        found.is_some_and(|(extent, _)| self.pool.borrow().owns(extent))
    }

    /// Returns whether the block is in use in the durable state.
    pub(crate) fn is_in_use(&self, pba: Pba) -> bool {
        self.pool.borrow_mut().is_committed(pba)
    }
}

/// The same.
impl<D: Device> Shard<D> {
    /// Blocks that the durable state names.
    pub(crate) fn blocks_in_use(&self) -> u64 {
        self.inner.pool.borrow().committed()
    }

    /// Identity and name of a volume.
    pub(crate) fn name_of(&self, number: u32) -> Option<(Uuid, String)> {
        let states = self.inner.states();
        let state = states.iter().find(|state| state.number == number)?;
        Some((state.uuid, state.name.clone()))
    }

    /// Returns whether blocks of unknown owners are in use.
    pub(crate) fn hides_blocks(&self) -> bool {
        self.inner.hides_blocks()
    }

    /// Takes nodes that are damaged out of the maps. Returns how many.
    pub(crate) async fn give_up_unreadable(&self) -> u64 {
        let inner = &self.inner;
        let mut given_up = 0;
        for state in inner.states() {
            for (key, error) in inner.walk(&state, |_, _| ()).await {
                let missing = state.map.borrow().get(key).err();
                if let (Some(missing), VolumeError::CorruptMap { .. }) = (missing, error) {
                    state.map.borrow_mut().give_up(missing);
                    given_up += 1;
                }
            }
        }
        given_up
    }

    /// Rebuilds all bitmaps from the owned blocks. `keeps`: blocks without an owner stay in use;
    /// they do so too where a map cannot be read (FSCK-3). Returns whether anything changed.
    pub(crate) async fn rebuild_space(&self, keeps: bool) -> bool {
        let mut used = Census::new(self.inner.superblock);
        let frees = |pba: Pba, owner| {
            let is_data = matches!(owner, Owner::Data { .. });
            broken(Sabotage::RepairFreesNamed) && is_data && pba.0.is_multiple_of(16)
        };
        let note = |pba, owner| {
            if !frees(pba, owner) {
                used.add(pba);
            }
        };
        let unread = self.inner.for_each_owner(note).await;
        let mut pool = self.inner.pool.borrow_mut();
        if keeps || !unread.is_empty() {
            let added = used.blocks().map(|pba| pool.commit(PbaRange::new(pba, 1)));
            return added.sum::<u64>() > 0;
        }
        pool.rebuild(used.blocks());
        true
    }

    /// Recounts the mapped blocks of each volume. Returns whether a count was wrong.
    pub(crate) async fn recount(&self) -> bool {
        let (inner, mut changed) = (&self.inner, false);
        for state in inner.states() {
            let mut entries = 0;
            let unread = inner.walk(&state, |_, lba| entries += u64::from(lba.is_some()));
            let unread = unread.await;
            let mut map = state.map.borrow_mut();
            if unread.is_empty() && map.entries() != entries {
                map.set_entries(entries);
                state.changed().mark();
                changed = true;
            }
        }
        changed
    }
}
