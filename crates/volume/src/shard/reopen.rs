//! A failed shard comes back in the process that goes on.
//!
//! - REOPEN-1: nothing of the failed shard is on its way to the device when it is read back, nor begins
//!   later.
//! - REOPEN-2: what comes back is the device that went away: the same identity, the same size (or a larger one, if it was closed
//!   for that), no older state, and only this server has started the shard meanwhile. Another server that did had all shards of the
//!   device, maybe more than are here: extents that count as free here may be theirs.
//! - REOPEN-3: extents that the failed shard had go to no other shard before the next root is durable.
//! - REOPEN-4: what another writes where the failed shard had a block is no damage: its reader gets the
//!   error that the shard is gone, be it a read, a comparison, a check or a scrub, and nothing is
//!   counted.
//! - REOPEN-5: a volume that does not come back, since its descriptor is damaged, is named: this shard
//!   still knows it.

use std::rc::Rc;

use io_traits::Device;
use situations::{Phase, Situation, during, situation};

use super::{Inner, Loss, Shard};
use crate::{JournalLoss, OpenError, VolumeError, read_superblock};

impl<D: Device> Shard<D> {
    /// Returns whether the journal is lost: nothing is written until the shard is recovered.
    #[must_use]
    pub fn is_failed(&self) -> bool {
        self.inner.journal.borrow().is_lost()
    }

    /// Why the journal is lost, if it is.
    #[must_use]
    pub fn journal_loss(&self) -> Option<JournalLoss> {
        self.inner.journal.borrow().loss()
    }

    /// The device is out of reach for good by the way that this shard has to it: it is as after a request that
    /// failed, also if none was made. [`Shard::reopen_on`] brings it back by another way.
    pub fn give_up(&self) {
        self.inner.lose_journal(JournalLoss::WayGone);
    }

    /// Shuts the shard down, as [`Shard::shutdown`], and waits until nothing of it is on its way to the device (REOPEN-1). It can
    /// come back by [`Shard::reopen`]. Needs both loops to run, or to have ended.
    ///
    /// # Errors
    /// The last checkpoint could not be written.
    pub async fn close(&self) -> Result<(), VolumeError> {
        let closed = self.shutdown().await;
        self.inner.ticked.notify_all();
        std::future::poll_fn(|context| self.inner.poll_leftovers(context)).await;
        closed
    }

    /// Returns whether it takes no more changes, since it was shut down or is about to be.
    #[must_use]
    pub fn is_closing(&self) -> bool {
        self.inner.life.is_stopping()
    }

    /// Says that the device may be larger when its shards are read back the next time. All of them, on all cores, are
    /// closed: a shard that goes on would use the former size.
    pub fn may_have_grown(&self) {
        self.inner.extents.may_grow();
    }

    /// Reads a failed shard back and takes it into use again, as after a restart of the process. The
    /// caller then runs the loops of the shard returned, whose volumes take the places of those of this
    /// one. The latter take no changes meanwhile, can be read until then, and are not to be used later.
    /// Needs both loops of this shard to run, or to have ended.
    ///
    /// After an error everything is as before, and it can be tried again.
    ///
    /// # Errors
    /// The device cannot be read or written, or is not the one that went away.
    pub async fn reopen(&self) -> Result<Self, OpenError> {
        self.reopen_on(self.inner.device.clone()).await
    }

    /// As [`Shard::reopen`], by another way to the same device: what this shard has stays unusable when a drive
    /// was unplugged, also if it is plugged in again.
    ///
    /// # Errors
    /// As [`Shard::reopen`].
    pub async fn reopen_on(&self, device: D) -> Result<Self, OpenError> {
        let _returning = during(Phase::Return);
        let shard = self.read_back_on(device).await;
        situation(match shard {
            Ok(_) => Situation::ShardComesBack,
            Err(_) => Situation::ReturnFails,
        });
        shard
    }

    async fn read_back_on(&self, device: D) -> Result<Self, OpenError> {
        let inner = &self.inner;
        let _ = self.close().await;
        // REOPEN-2.
        let superblock = read_superblock(&device).await?;
        if !inner.extents.is_of_this(&superblock) {
            return Err(OpenError::OtherDevice);
        }
        inner.extents.dispute(inner.index);
        let extents = inner.extents.clone();
        let mut fresh = Inner::new(device, superblock, inner.index, extents, inner.options);
        fresh.findings = inner.findings.clone();
        let recovered = Self::read_back(Rc::new(fresh)).await?;
        if recovered.is_new() || recovered.shard().inner.generation.get() < inner.generation.get() {
            return Err(OpenError::OtherDevice);
        }
        // What was found is of the start before.
        if recovered.shard().starts() - 1 > self.starts().max(inner.started_again.get()) {
            return Err(OpenError::StartedElsewhere);
        }
        inner.started_again.set(recovered.shard().starts());
        let losses = recovered.losses().to_vec();
        // REFUSED-2.
        recovered.shard().inner.avoid_what_was_refused();
        let shard = recovered.confirm().await?.start().await?;
        inner.hand_on_counts(&shard.inner);
        inner.tell_of_losses(&losses);
        // REOPEN-3.
        inner.extents.settle_dispute(inner.index);
        Ok(shard)
    }
}

impl<D: Device> Inner<D> {
    /// Each volume goes on with what it has counted (FINDING-4).
    fn hand_on_counts(&self, successor: &Self) {
        let before = self.volumes.all();
        for (number, state) in &*successor.volumes.all() {
            if let Some(former) = before.get(number) {
                state.stats.set(former.stats.get());
            }
        }
    }

    /// Reports losses of the recovered shard, with what this shard knows of them.
    fn tell_of_losses(&self, losses: &[Loss]) {
        let volumes = self.volumes.all();
        let known = losses.iter().filter_map(|loss| match loss {
            Loss::Volume { number, pba } => Some((volumes.get(number)?, *pba)),
            _ => None,
        });
        self.findings.note_lost(known.filter(|(state, _)| !state.deleted.get()));
    }

    /// Converts the error of a block or node that does not match its pointer (REOPEN-4).
    pub(crate) fn excused(&self, error: VolumeError) -> VolumeError {
        let damage = matches!(error, VolumeError::Corrupt { .. } | VolumeError::CorruptMap { .. });
        if damage && self.life.has_ended() { VolumeError::ShutDown } else { error }
    }

    /// As [`Inner::excused`], for a caller without an error at hand.
    pub(super) fn check_not_succeeded(&self) -> Result<(), VolumeError> {
        if self.life.has_ended() { Err(VolumeError::ShutDown) } else { Ok(()) }
    }
}
