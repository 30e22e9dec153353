//! Creates and deletes the volumes of a shard.

use std::rc::Rc;

use io_traits::Device;
use layout::{ACCESS_BYTES_MAX, NAME_BYTES_MAX, VOLUME_BLOCKS_MAX};
use situations::{Phase, Situation, during, situation_if};
use units::{Lba, LbaRange, SectorSize};
use uuid::Uuid;

use super::{Inner, Shard, SpaceEffect, SpaceRequest};
use crate::holds::Holds;
use crate::locks::lock;
use crate::ops::{Change, Op};
use crate::state::VolumeState;
use crate::{Terms, Volume, VolumeError, VolumeSpec};

impl<D: Device> Shard<D> {
    /// Creates a volume that reads as zeroes. Durable when it returns.
    ///
    /// # Errors
    /// The volume exists, its specification is out of bounds, or the journal is lost.
    pub async fn create_volume(&self, spec: VolumeSpec) -> Result<Volume<D>, VolumeError> {
        self.create_volume_under(spec, Terms::default()).await
    }

    /// As [`Shard::create_volume`], under terms other than the default ones.
    ///
    /// # Errors
    /// As [`Shard::create_volume`].
    pub async fn create_volume_under(
        &self,
        spec: VolumeSpec,
        terms: Terms,
    ) -> Result<Volume<D>, VolumeError> {
        let inner = &self.inner;
        inner.check_open()?;
        let is_long = spec.name.len() > NAME_BYTES_MAX || terms.access.len() > ACCESS_BYTES_MAX;
        let Terms { metadata, sector, .. } = terms;
        let has_small_sectors = sector != SectorSize::Bytes4096;
        let is_both = has_small_sectors && !metadata.is_none();
        if is_long || is_both || spec.blocks > VOLUME_BLOCKS_MAX {
            return Err(VolumeError::Spec);
        }
        let exists = || VolumeError::Exists(spec.uuid);
        if self.volume(spec.uuid).is_some() {
            return Err(exists());
        }
        let _creating = inner.volumes.begin_creation(spec.uuid).ok_or_else(exists)?;
        let number = inner.volumes.take_number().ok_or(VolumeError::Spec)?;
        let state = VolumeState::new(number, spec, (metadata, sector), inner.counters.clone());
        state.slo.set(terms.slo);
        state.set_access(terms.access.into());
        let state = Rc::new(state);
        let reserved_blocks =
            inner.admit(SpaceRequest { data: 0, metadata: 2, effect: SpaceEffect::Growing }).await;
        let volume = Volume::new(self.clone(), state.clone());
        let outcome = match reserved_blocks {
            Ok(reserved_blocks) if has_small_sectors || !metadata.is_none() => {
                inner.found(&state, reserved_blocks).await?;
                volume.journal_noop().await
            }
            Ok(reserved_blocks) => {
                let holds = Holds::node_blocks_only(reserved_blocks);
                inner.submit(Op::new(Change::Create, Some(state.clone()), holds)).await
            }
            Err(error) => Err(error),
        };
        outcome.map(|()| volume)
    }

    /// The shard's volumes, oldest first.
    #[must_use]
    pub fn volumes(&self) -> Vec<Volume<D>> {
        let volumes = self.inner.volumes.all();
        let live = volumes.values().filter(|state| !state.deleted.get());
        live.map(|state| Volume::new(self.clone(), state.clone())).collect()
    }

    /// The volume with this identity.
    #[must_use]
    pub fn volume(&self, uuid: Uuid) -> Option<Volume<D>> {
        let volumes = self.inner.volumes.all();
        let state = volumes.values().find(|state| state.uuid == uuid && !state.deleted.get())?;
        Some(Volume::new(self.clone(), state.clone()))
    }

    /// Deletes a volume. Durable when it returns; the space comes back in the background. Requests
    /// that are under way finish; later ones get [`VolumeError::Deleted`].
    ///
    /// # Errors
    /// There is no such volume, or the journal is lost.
    pub async fn delete_volume(&self, uuid: Uuid) -> Result<(), VolumeError> {
        self.delete_volume_if(uuid, |_| Ok(())).await
    }

    /// As [`Shard::delete_volume`], unless `check` refuses. It is asked when the deletion is next: no request to the volume is under way then, and none begins
    /// before the volume is gone, or its deletion has failed.
    ///
    /// # Errors
    /// As `check` refuses, or as [`Shard::delete_volume`].
    pub async fn delete_volume_if<E: From<VolumeError>>(
        &self,
        uuid: Uuid,
        check: impl FnOnce(&Volume<D>) -> Result<(), E>,
    ) -> Result<(), E> {
        let inner = &self.inner;
        inner.check_open()?;
        let volume = self.volume(uuid).ok_or(VolumeError::Deleted)?;
        let state = volume.state().clone();
        let all = LbaRange::new(Lba(0), u64::MAX);
        situation_if(Situation::DeletionAwaitsRequests, || !state.locks.borrow().is_open(all));
        let guard = lock(&state.locks, all).await;
        let permit = inner.pending_unmap_permit(&state).await?;
        inner.check_open()?;
        if state.deleted.get() {
            return Err(VolumeError::Deleted.into());
        }
        check(&volume)?;
        let holds = Holds::range(guard).and_unmap_place(permit);
        Ok(inner.submit(Op::new(Change::Delete, Some(state), holds)).await?)
    }
}

impl<D: Device> Inner<D> {
    /// Creates a volume by a checkpoint. The journal has no entry for one whose blocks have metadata, or whose
    /// sectors have 512 bytes, so that a program that does not know these meets the descriptor before anything else, and opens nothing.
    async fn found(
        &self,
        state: &Rc<VolumeState>,
        reserved_blocks: u64,
    ) -> Result<(), VolumeError> {
        let _founding = during(Phase::Founding);
        // The share of the tables stands for it.
        self.admission.give_back(reserved_blocks);
        if self.journal.borrow().is_lost() {
            return Err(self.loss_error());
        }
        self.volumes.create_by_checkpoint(state.clone());
        // Once it is begun, its root may be on the device, whatever the shard fails for.
        self.checkpoint_and_wait().await.map_err(|error| match error {
            VolumeError::Device(_) => VolumeError::JournalLost,
            other => other,
        })
    }
}
