//! The shards of a core: taken into service, looked after, and brought back when their device is.
//!
//! - SHARD-1: of a shard that has failed, changes are errors at once and reads go on as far as the device
//!   answers. Hosts stay connected.
//! - SHARD-2: it is read back again and again, at growing distances, until that succeeds. Then its volumes
//!   take the places of the failed ones, in one step. A volume that the core did not know could not be read
//!   before, and is served. The exception is one whose creation ended in an error: its creator may ask for
//!   it again, and it is deleted.
//! - SHARD-3: the shards of an abandoned device are not looked after, nor shut down: whatever they wrote
//!   would be another's to write.
//! - SHARD-4: damage is named in the log, once for each place, however often and by whatever request it was
//!   met.
//! - SHARD-5: when a device was reopened, no shard goes on by the old handle, also none that works: what it
//!   takes for written may be gone with the old drive's cache. Each is read back by the new handle.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use io_traits::{Device, World};
use local_sync::first_of;
use situations::{Situation, situation_if};
use units::{DeviceIndex, Duration, ShardIndex};
use uuid::Uuid;
use volume::{Shard, VolumeError};

use crate::core::{Core, VolumeStatus};
use crate::devices::{Attached, Way};
use crate::export::Export;
use crate::sabotage::{Sabotage, broken};
use crate::session::VolumeEvent;

/// Pause before a failed shard is read back, and the longest one between two attempts.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

impl<W: World, D: Device> Core<W, D> {
    /// Takes a shard of the first device into service, with all its volumes; returns its number.
    pub fn attach(&self, shard: Shard<D>) -> ShardIndex {
        self.attach_on(DeviceIndex(0), shard)
    }

    /// Takes a shard of any device into service, with all its volumes; returns its number, which counts
    /// those of all devices. The caller numbers the devices, from 0.
    pub fn attach_on(&self, device: DeviceIndex, shard: Shard<D>) -> ShardIndex {
        let volumes = shard.volumes();
        self.run_loops(&shard);
        let mut shards = self.state.shards.borrow_mut();
        let number = shards.push_and_get_key(Attached { shard, device });
        drop(shards);
        for volume in volumes {
            let VolumeStatus { uuid, .. } = self.add_export(volume, number);
            if broken(Sabotage::StartForgetsRestrictions) {
                self.export(uuid).into_iter().for_each(|export| export.forget_restrictions());
            }
        }
        number
    }

    /// Serves a device no more (SHARD-3): its volumes are gone from here, and their connections are cut. The
    /// caller sees to it that the device takes no more requests.
    pub fn abandon(&self, device: DeviceIndex) {
        self.state.care.abandon(device);
        let mut gone = Vec::new();
        self.state.exports.borrow_mut().retain(|_, export| {
            let stays = export.device != device;
            if !stays {
                gone.push(export.clone());
            }
            stays
        });
        gone.iter().for_each(|export| self.retire(export));
    }

    /// Uses a device by another handle from now on, since the old one is dead (SHARD-5). The caller sees to
    /// it that no request uses the old handle any more, and that the new one leads to the same device.
    pub fn renew(&self, device: DeviceIndex, way: D) {
        self.state.care.set_way(device, way);
        self.shards_on(device).iter().for_each(Shard::give_up);
        self.state.care.tell_of_renewal();
    }

    /// Has `told` called with the number of each shard that comes back after a failure, when its volumes
    /// are in place. What was answered with an error may have taken effect in them, and volumes may be
    /// gone; those that it was read back without are named.
    pub fn on_return(&self, told: impl Fn(ShardIndex, BTreeSet<Uuid>) + 'static) {
        self.state.care.set_on_return(Some(Rc::new(told)));
    }

    /// The shards in service, in the order of [`Core::attach`]. One that came back after a failure is
    /// another than before.
    #[must_use]
    pub fn shards(&self) -> Vec<Shard<D>> {
        self.state.shards.borrow().iter().map(|attached| attached.shard.clone()).collect()
    }

    fn numbered_shards(&self) -> Vec<(ShardIndex, Shard<D>)> {
        let shards = self.state.shards.borrow();
        shards.iter_enumerated().map(|(number, it)| (number, it.shard.clone())).collect()
    }

    /// Those of them that lie on a device.
    #[must_use]
    pub fn shards_on(&self, device: DeviceIndex) -> Vec<Shard<D>> {
        let shards = self.state.shards.borrow();
        shards.iter().filter(|it| it.device == device).map(|it| it.shard.clone()).collect()
    }

    pub(crate) fn shard(&self, number: ShardIndex) -> Shard<D> {
        self.state.shards.borrow()[number].shard.clone()
    }

    /// Shuts all shards down together: one whose device hangs holds up no other.
    pub(crate) async fn shut_shards_down(&self) -> Result<(), VolumeError> {
        let kept = self.numbered_shards().into_iter();
        let kept = kept.filter(|(number, _)| !self.is_suspended() && !self.is_abandoned(*number));
        let ends = kept.map(|(_, shard)| {
            log_findings(&shard);
            let (sender, ended) = local_sync::oneshot();
            self.world().spawn(async move { sender.send(shard.shutdown().await) });
            ended
        });
        let mut result = Ok(());
        for ended in ends.collect::<Vec<_>>() {
            result = result.and(ended.await.unwrap_or(Err(VolumeError::ShutDown)));
        }
        result
    }

    fn run_loops(&self, shard: &Shard<D>) {
        let (committing, checkpointing) = (shard.clone(), shard.clone());
        self.world().spawn(async move { committing.run_committer().await });
        self.world().spawn(async move { checkpointing.run_checkpointer().await });
    }

    /// Does what is to be done now and then.
    pub(crate) fn look_after_shards(&self) {
        for (number, shard) in self.numbered_shards() {
            if self.is_suspended() || self.is_abandoned(number) || self.is_held(number) {
                shard.forget_read_ahead();
                continue;
            }
            shard.settle();
            log_findings(&shard);
            self.tell_of_checkpoint(number, &shard);
            if let Some(why) = shard.journal_loss()
                && self.state.care.begin_reopening(number)
            {
                tracing::error!(shard = shard.index(), %why, "cannot be written; trying to bring it back");
                let core = self.clone();
                self.world().spawn(async move {
                    core.bring_back(number, shard).await;
                    core.state.care.end_reopening(number);
                });
            }
        }
    }

    /// Says when a device begins to refuse a checkpoint, and when it takes one again.
    fn tell_of_checkpoint(&self, number: ShardIndex, shard: &Shard<D>) {
        let (error, index) = (shard.checkpoint_error(), shard.index());
        if !self.state.care.note_held_up(number, error.is_some()) {
            return;
        }
        match error {
            Some(error) => tracing::error!(shard = index, %error,
                "cannot take a checkpoint; changes go on while journal and memory have room, then they fail"),
            None => tracing::warn!(shard = index, "takes checkpoints again"),
        }
    }

    pub(crate) fn is_abandoned(&self, number: ShardIndex) -> bool {
        let device = self.state.shards.borrow()[number].device;
        self.state.care.is_abandoned(device)
    }

    /// SHARD-2.
    async fn bring_back(&self, number: ShardIndex, failed: Shard<D>) {
        let index = failed.index();
        let mut pause = FIRST_PAUSE;
        let mut renewed = self.state.care.renewed();
        loop {
            let sleep = self.world().sleep_until(self.world().now() + pause);
            first_of(sleep, renewed).await;
            // Also while it is tried by the old way.
            renewed = self.state.care.renewed();
            if self.is_draining() || self.is_abandoned(number) {
                return;
            }
            let way = self.way_of(number);
            let reopened = match &way {
                Some(way) => failed.reopen_on(way.device.clone()).await,
                None => failed.reopen().await,
            };
            match reopened {
                // No other task would end its loops.
                Ok(_) if self.is_draining() || self.is_abandoned(number) => return,
                Ok(shard) => {
                    let has_hosts = || self.sessions().count() > 0;
                    situation_if(Situation::ShardReturnsUnderHosts, has_hosts);
                    if self.way_of(number).map(|way| way.number) != way.map(|way| way.number) {
                        // SHARD-5: the device was reopened meanwhile.
                        self.replace_shard(number, &shard);
                        return shard.give_up();
                    }
                    return self.take_in_returned(number, &shard);
                }
                Err(error) => {
                    pause = (pause * 2).min(LONGEST_PAUSE);
                    tracing::warn!(shard = index, %error, pause_ms = pause.as_millis(), "is not back yet");
                    self.state.care.attempt_failed(number, error);
                }
            }
        }
    }

    /// Puts a shard that came back in the place of the failed one, and tells of it.
    pub(crate) fn take_in_returned(&self, number: ShardIndex, shard: &Shard<D>) {
        self.replace_shard(number, shard);
        self.tell_of_return(shard);
        self.state.care.tell_of_return(number, &shard.lost_volumes());
    }

    fn tell_of_return(&self, shard: &Shard<D>) {
        log_findings(shard);
        let index = shard.index();
        for mended in shard.mended().iter() {
            tracing::warn!(shard = index, "damage made good: {mended}");
        }
        let lost = shard.lost_volumes();
        if lost.is_empty() {
            tracing::warn!(shard = index, "is back, with all that was acknowledged");
        } else {
            let lost: Vec<String> = lost.iter().map(ToString::to_string).collect();
            tracing::error!(
                shard = index,
                lost = lost.join(", "),
                "is back, but for volumes whose descriptors are damaged: they are not served any more"
            );
        }
    }

    pub(crate) fn way_of(&self, number: ShardIndex) -> Option<Way<D>> {
        let device = self.state.shards.borrow()[number].device;
        self.state.care.way(device)
    }

    /// Has a shard run in the place of another.
    pub(crate) fn put_in_place(&self, number: ShardIndex, shard: &Shard<D>) {
        self.run_loops(shard);
        self.state.shards.borrow_mut()[number].shard = shard.clone();
    }

    fn replace_shard(&self, number: ShardIndex, shard: &Shard<D>) {
        let exports = self.state.exports.borrow();
        let mut left: BTreeMap<Uuid, Rc<Export<W, D>>> = exports
            .iter()
            .filter(|(_, export)| export.shard == number)
            .map(|(uuid, export)| (*uuid, export.clone()))
            .collect();
        drop(exports);
        let mut unknown = Vec::new();
        for volume in shard.volumes() {
            match left.remove(&volume.uuid()) {
                Some(export) => {
                    export.replace_volume(volume);
                    self.bound_by_allowance(&export);
                    self.tell(&export, VolumeEvent::AccessChanged { revoked: false });
                    self.tell(&export, VolumeEvent::Resized);
                }
                None => unknown.push(volume),
            }
        }
        for (uuid, export) in left {
            self.state.exports.borrow_mut().remove(&uuid);
            self.retire(&export);
        }
        self.put_in_place(number, shard);
        for volume in unknown {
            let uuid = volume.uuid();
            if self.state.care.take_unanswered(uuid) {
                let shard = shard.clone();
                self.world().spawn(async move { drop(shard.delete_volume(uuid).await) });
            } else {
                tracing::warn!(%uuid, "a volume could be read again that could not be before");
                self.add_export(volume, number);
            }
        }
    }
}

/// SHARD-4.
pub(crate) fn log_findings<D: Device>(shard: &Shard<D>) {
    for found in shard.take_findings() {
        let volume = found.volume.map(|(id, name)| format!("{name} ({id})"));
        let block = found.lba.map(|lba| lba.0);
        let (shard, what) = (shard.index(), found.structure);
        tracing::error!(shard, %what, at = %found.pba, volume, block, "damaged block");
    }
}
