//! Taking a shard into use that was read back: what it builds on is confirmed, and its first checkpoint written.

use std::rc::Rc;

use io_traits::{Device, DeviceError};
use situations::{Phase, Situation, during, situation};
use uuid::Uuid;

use super::checkpoint::CheckpointError;
use super::{Inner, Loss, Mended, Shard};
use crate::OpenError;
use crate::sabotage::{Sabotage, broken};

/// Attempts to begin on a device that refuses blocks, each of which keeps off what was refused before (REFUSED-2).
const START_TRIES: u32 = 16;

/// The handling of a device without space for a checkpoint.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum NoSpace {
    /// The shard is not taken into use.
    Refuses,
    /// It is, and has failed.
    Fails,
}

/// A shard that was read back and may not yet be used: all shards of the device must be recovered, and confirmed.
pub struct Recovered<D: Device> {
    shard: Shard<D>,
    is_new: bool,
}

/// A shard that was read back from what is durable, and may be used when all shards of the device are confirmed (REPERSIST-5).
pub struct Confirmed<D: Device>(Recovered<D>);

impl<D: Device> Recovered<D> {
    pub(super) fn new(shard: Shard<D>, is_new: bool) -> Self {
        Self { shard, is_new }
    }

    async fn repersist(&self) -> Result<(), OpenError> {
        let inner = &self.shard.inner;
        inner.repersist().await.map_err(not_begun)?;
        inner.extents.set_flushed(inner.index, true);
        Ok(())
    }

    /// Makes durable what the shard was read back from, and changes nothing.
    ///
    /// # Errors
    /// The device cannot be written or flushed.
    pub async fn confirm(self) -> Result<Confirmed<D>, OpenError> {
        self.repersist().await?;
        Ok(Confirmed(self))
    }

    /// [Confirms](Recovered::confirm) all of `all`. Where a device has several shards, that comes before any of them is started:
    /// what one has given back by its newest root another may take, and writes to.
    ///
    /// # Errors
    /// As for one; `all` stays as it is, to be confirmed by a later call.
    pub async fn confirm_all(all: &mut Vec<Self>) -> Result<Vec<Confirmed<D>>, OpenError> {
        if !broken(Sabotage::StartOneByOne) {
            for recovered in all.iter() {
                recovered.repersist().await?;
            }
        }
        Ok(all.drain(..).map(Confirmed).collect())
    }

    /// Confirms all shards of a device, and then takes them into use, one after the other.
    ///
    /// # Errors
    /// As [`Recovered::confirm`] and [`Confirmed::start`].
    pub async fn start_all(mut all: Vec<Self>) -> Result<Vec<Shard<D>>, OpenError> {
        let mut shards = Vec::new();
        for confirmed in Self::confirm_all(&mut all).await? {
            shards.push(confirmed.start().await?);
        }
        Ok(shards)
    }

    /// Returns whether it has what can be read, though it could not write its first checkpoint.
    fn can_be_read(&self) -> bool {
        !self.is_new && self.shard.is_failed()
    }

    async fn begin(&self) -> Result<(), OpenError> {
        let inner = &self.shard.inner;
        match self.is_new {
            true => inner.lay_out_journal()?,
            false => inner.drop_contested_extents(),
        }
        inner.allocate_below().await;
        let begun = match inner.repersist().await {
            Ok(()) => {
                let _beginning = during(Phase::FirstCheckpoint);
                inner.take_checkpoint().await
            }
            Err(error) => Err(error),
        };
        begun.map_err(not_begun)?;
        inner.resume_reclaims();
        Ok(())
    }

    /// The same, read back once more: no root leads to what was written, and this one will keep off what was refused
    /// (REFUSED-2).
    async fn keep_off(self) -> Result<Self, OpenError> {
        let failed = &self.shard.inner;
        situation(Situation::StartMadeAgain);
        failed.extents.dispute(failed.index);
        let (device, extents) = (failed.device.clone(), failed.extents.clone());
        let mut fresh =
            Inner::new(device, failed.superblock, failed.index, extents, failed.options);
        fresh.findings = failed.findings.clone();
        fresh.read_back.allow_data_loss(failed.read_back.allows_data_loss());
        let recovered = Shard::read_back(Rc::new(fresh)).await?;
        recovered.shard.inner.avoid_what_was_refused();
        Ok(recovered)
    }

    /// The same, where others may be started before it: not before it is confirmed.
    pub(super) fn until_repersisted(self) -> Self {
        let inner = &self.shard.inner;
        if inner.is_unflushed() {
            inner.extents.set_flushed(inner.index, false);
        }
        self
    }

    pub(crate) fn shard(&self) -> &Shard<D> {
        &self.shard
    }

    /// Damage that was found and cost nothing.
    #[must_use]
    pub fn mended(&self) -> std::cell::Ref<'_, [Mended]> {
        self.shard.mended()
    }

    /// Returns the damage that recovery accepted as lost.
    #[must_use]
    pub fn losses(&self) -> std::cell::Ref<'_, [Loss]> {
        self.shard.inner.read_back.losses()
    }

    /// The volumes that it holds.
    #[must_use]
    pub fn volumes(&self) -> Vec<Uuid> {
        self.shard.volumes().iter().map(crate::Volume::uuid).collect()
    }

    /// Returns whether the shard was never used before.
    #[must_use]
    pub fn is_new(&self) -> bool {
        self.is_new
    }
}

impl<D: Device> Confirmed<D> {
    /// Takes the shard into use: writes a checkpoint, and for a new shard its first root. Only when
    /// every active shard of the device is confirmed.
    ///
    /// # Errors
    /// No extent is free for a new shard, or the device cannot be written.
    pub async fn start(self) -> Result<Shard<D>, OpenError> {
        self.start_with(NoSpace::Refuses).await
    }

    /// As [`Confirmed::start`], but that the device has no space for a checkpoint is no error: the shard returned has failed
    /// ([`Shard::is_failed`]) as it does when that happens later. Its volumes can be read, and it comes back by
    /// [`Shard::reopen`] when there is space.
    ///
    /// # Errors
    /// As [`Confirmed::start`] but for that.
    pub async fn start_even_full(self) -> Result<Shard<D>, OpenError> {
        self.start_with(NoSpace::Fails).await
    }

    async fn start_with(self, no_space: NoSpace) -> Result<Shard<D>, OpenError> {
        let are_all_flushed = self.0.shard.inner.extents.are_all_flushed();
        assert!(
            are_all_flushed || broken(Sabotage::StartOneByOne),
            "REPERSIST-5: all shards are confirmed"
        );
        let mut recovered = self.0;
        let mut tries = 0;
        loop {
            tries += 1;
            match recovered.begin().await {
                Err(OpenError::Device(error))
                    if tries < START_TRIES && recovered.shard.inner.could_go_elsewhere(error) =>
                {
                    recovered = recovered.keep_off().await?;
                }
                // The journal was lost with the checkpoint: what reads see was made durable before (REPERSIST-1).
                Err(OpenError::Device(DeviceError::NoSpace { .. }))
                    if no_space == NoSpace::Fails && recovered.can_be_read() =>
                {
                    break;
                }
                Err(error) => return Err(error),
                Ok(()) => break,
            }
        }
        if tries > 1 {
            // Extents that failed attempts had taken are unowned.
            let inner = &recovered.shard.inner;
            inner.extents.settle_dispute(inner.index);
        }
        Ok(recovered.shard)
    }
}

/// Why a start came to nothing.
fn not_begun(error: CheckpointError) -> OpenError {
    match error {
        CheckpointError::Device(error) => OpenError::Device(error),
        CheckpointError::NoSpace => OpenError::NoExtent,
        CheckpointError::Lost => OpenError::Device(DeviceError::Gone),
    }
}
