//! Extents that a shard gives up after rolling back to an older root.
//!
//! - ROLLBACK-1: what the lost root had given back is empty. Nothing was in it when that root's snapshot
//!   was taken: neither what the root before leads to, nor what requests had that were under way.
//!   The journal leads from the root before to that snapshot.
//! - ROLLBACK-2: so an extent in which nothing is when the journal has been replayed goes to any shard that
//!   claims it. That loses nothing, whichever shard is wrong.
//! - ROLLBACK-3: one in which something is belongs to the shard alone: otherwise the device is not opened.
//! - ROLLBACK-4: the next root is without what was left to others. Until it is durable all of this happens
//!   again at each start, whichever shard is read back first.
//! - ROLLBACK-5: nodes of maps that the lost root had rewritten may be gone, and what they named stays in
//!   use until they are given up. A repair with consent does that: for it only that is in use which
//!   something names.

use space::Owner;
use std::collections::BTreeSet;

use io_traits::Device;
use situations::{Situation, situation_if};

use super::Inner;
use super::roots::Roots;
use crate::check::Unread;
use crate::{OpenError, VolumeError};

impl<D: Device> Inner<D> {
    /// Notes whether the shard goes back to an older root, perhaps.
    pub(super) fn detect_rollback(&self, roots: &Roots) {
        let newest = roots.perhaps_newest(&self.superblock, self.index);
        situation_if(Situation::StartFromOlderRoot, || newest.is_some());
        self.read_back.set_root_rolled_back(newest.is_some());
    }

    /// Claims an extent that the root or the journal leads to. One that another has is not claimed from a shard that goes back.
    pub(super) fn claim_extent(&self, extent: u32) -> Result<(), OpenError> {
        match self.read_back.is_root_rolled_back() {
            true => self.extents.claim_unless_owned(extent, self.index)?,
            false => self.extents.claim(extent, self.index)?,
        }
        Ok(())
    }

    /// The journal was replayed: extents in which something is are the shard's (ROLLBACK-3).
    pub(super) async fn claim_used_extents(&self) -> Result<(), OpenError> {
        if !self.read_back.is_root_rolled_back() {
            return Ok(());
        }
        let unnamed = match self.read_back.allows_data_loss() {
            true => self.unnamed_extents().await,
            false => BTreeSet::new(),
        };
        let pool = self.pool.borrow();
        let is_in_use = |extent: &&u32| !pool.is_empty(**extent) && !unnamed.contains(*extent);
        let mut in_use = pool.owned().iter().filter(is_in_use);
        in_use.try_for_each(|extent| self.extents.insist(*extent, self.index))?;
        Ok(())
    }

    /// Extents of which a repair makes all that they have free: what is named there is lost, and given up (ROLLBACK-5).
    async fn unnamed_extents(&self) -> BTreeSet<u32> {
        let mut unnamed: BTreeSet<u32> = self.pool.borrow().owned().iter().copied().collect();
        let unread = self.for_each_owner(|pba, owner| {
            if owner != Owner::Bitmap
                && let Some((extent, _)) = self.superblock.locate(pba)
            {
                unnamed.remove(&extent);
            }
        });
        // What cannot be read names what it always did.
        let may_be_read = |unread: &Unread| matches!(unread.error, VolumeError::Device(_));
        let is_open = unread.await.iter().any(may_be_read);
        if is_open { BTreeSet::new() } else { unnamed }
    }

    /// All shards were read back: what others claim is left to them (ROLLBACK-2), and the rest is the shard's.
    pub(super) fn drop_contested_extents(&self) {
        if !self.read_back.is_root_rolled_back() {
            return;
        }
        let mut pool = self.pool.borrow_mut();
        let is_anothers = |extent: &u32| self.extents.insist(*extent, self.index).is_err();
        let going: Vec<u32> = pool.owned().iter().copied().filter(is_anothers).collect();
        situation_if(Situation::ExtentsLeftToOthers, || !going.is_empty());
        pool.take_out(&going);
        let mut table = self.tables.borrow_mut();
        for key in going.into_iter().map(u64::from) {
            let outcome = table.extents.remove_some(key, key + 1, &mut Vec::new());
            outcome.expect("the extent table is in memory");
        }
    }
}
