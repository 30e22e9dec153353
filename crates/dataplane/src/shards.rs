//! The shards of a core: taken into service, looked after, and brought back when their device is.
//!
//! - H1: of a shard that has failed, changes are errors at once and reads go on as far as the device
//!   answers. Hosts stay connected.
//! - H2: it is read back again and again, at growing distances, until that succeeds. Then its volumes
//!   take the places of the failed ones, in one step.

use std::collections::BTreeMap;
use std::rc::Rc;

use io_traits::{Device, World};
use units::Duration;
use uuid::Uuid;
use volume::Shard;

use crate::core::Core;
use crate::export::Export;

/// Pause before a failed shard is read back, and the longest one between two attempts.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

impl<W: World, D: Device> Core<W, D> {
    /// Takes a shard into service, with all its volumes; returns its number. All shards of a core lie
    /// on one device.
    pub fn attach(&self, shard: Shard<D>) -> usize {
        let number = self.state.shards.borrow().len();
        for volume in shard.volumes() {
            self.add_export(volume, number);
        }
        self.run_loops(&shard);
        self.state.shards.borrow_mut().push(shard);
        number
    }

    /// The shards in service, in the order of [`Core::attach`]. One that came back after a failure is
    /// another than before.
    #[must_use]
    pub fn shards(&self) -> Vec<Shard<D>> {
        self.state.shards.borrow().clone()
    }

    fn run_loops(&self, shard: &Shard<D>) {
        let (committing, checkpointing) = (shard.clone(), shard.clone());
        self.world().spawn(async move { committing.run_committer().await });
        self.world().spawn(async move { checkpointing.run_checkpointer().await });
    }

    /// Does what is to be done now and then.
    pub(crate) fn look_after_shards(&self) {
        for (number, shard) in self.shards().into_iter().enumerate() {
            shard.settle();
            if shard.is_failed() && self.state.reopening.borrow_mut().insert(number) {
                let core = self.clone();
                self.world().spawn(async move {
                    core.bring_back(number, shard).await;
                    core.state.reopening.borrow_mut().remove(&number);
                });
            }
        }
    }

    /// H2.
    async fn bring_back(&self, number: usize, failed: Shard<D>) {
        let index = failed.index();
        tracing::error!(shard = index, "cannot be written; trying to bring it back");
        let mut pause = FIRST_PAUSE;
        loop {
            self.world().sleep_until(self.world().now() + pause).await;
            if self.is_draining() {
                return;
            }
            match failed.reopen().await {
                // Nobody would end its loops.
                Ok(_) if self.is_draining() => return,
                Ok(shard) => {
                    self.replace_shard(number, shard);
                    tracing::warn!(shard = index, "is back, with all that was acknowledged");
                    return;
                }
                Err(error) => {
                    pause = (pause * 2).min(LONGEST_PAUSE);
                    tracing::warn!(shard = index, %error, ?pause, "is not back yet");
                }
            }
        }
    }

    fn replace_shard(&self, number: usize, shard: Shard<D>) {
        let exports = self.state.exports.borrow();
        let mut left: BTreeMap<Uuid, Rc<Export<W, D>>> = exports
            .iter()
            .filter(|(_, export)| export.shard == number)
            .map(|(uuid, export)| (*uuid, export.clone()))
            .collect();
        drop(exports);
        for volume in shard.volumes() {
            match left.remove(&volume.uuid()) {
                Some(export) => {
                    export.replace_volume(volume);
                    for association in self.associations_of(&export) {
                        if association.qualifies(&export) {
                            association.on_namespace_changed();
                        } else {
                            association.cut();
                        }
                    }
                }
                // Its creation was never answered, and whoever wanted it may do so again.
                None => {
                    let (shard, uuid) = (shard.clone(), volume.uuid());
                    self.world().spawn(async move { drop(shard.delete_volume(uuid).await) });
                }
            }
        }
        for (uuid, export) in left {
            self.state.exports.borrow_mut().remove(&uuid);
            self.retire(&export);
        }
        self.run_loops(&shard);
        self.state.shards.borrow_mut()[number] = shard;
    }
}
