//! Starts with other shards than the one before, behind a root that gave extents back and that no flush covers.

use sim::{DeviceFaults, Rng};
use units::Duration;

use super::Boot;
use super::tearing::root_places;
use crate::rig::Rig;

/// Time after which the space of a deletion is free again.
const RECLAIMED: Duration = Duration::from_millis(100);
/// One of so many flushes fails when extents are given back: that of the root often enough, and not the one before it.
const FLUSH_ERROR_ONE_IN: u64 = 2;

impl Boot {
    /// The shards that this start opens, in its order. Where others may come these are those that were ever started, as many as
    /// there are cores besides, and none is left out in between.
    pub(super) async fn shards_of_start(&self, mut rng: Rng) -> Vec<u16> {
        let profile = &self.profile;
        if !profile.joins {
            return (0..profile.shards).collect();
        }
        if self.is_first {
            return (0..profile.busy_shards).collect();
        }
        let used = match volume::read_superblock(&self.device).await {
            Ok(superblock) => volume::active_shards(&self.device, &superblock).await,
            Err(error) => Err(error),
        };
        let used = used.unwrap_or_else(|error| {
            self.run.fail(format!("the used shards cannot be determined: {error}"));
            Vec::new()
        });
        let used = used.last().map_or(0, |last| last + 1);
        // Behind a root that no flush covers one comes that was not there before, as long as there may be more.
        let cores = match self.is_unflushed {
            true => profile.shards.min(used + 1),
            false => rng.between(profile.busy_shards.into(), profile.shards.into()) as u16,
        };
        let count = used.max(cores);
        if self.cuts_at_roots {
            self.disk().crash_at_write_of((0..used).flat_map(root_places));
        }
        let mut wanted: Vec<u16> = (0..count).collect();
        for place in (1..wanted.len()).rev() {
            wanted.swap(place, rng.below(place as u64 + 1) as usize);
        }
        if self.cuts_at_roots {
            // The one that comes begins.
            wanted.sort_by_key(|shard| *shard < used);
        }
        wanted
    }

    /// Deletes a volume, and has checkpoints give back what it had, while flushes fail: any of them, or only that of the root which
    /// gives back.
    pub(super) async fn give_back(&self, rig: &Rig, mut rng: Rng) {
        let mut usable = self.run.volumes();
        usable.retain(|model| model.is_usable());
        let mut giver = None;
        if !usable.is_empty() {
            let model = usable.swap_remove(rng.below(usable.len() as u64) as usize);
            self.run.begin_delete(&model);
            let outcome = rig.delete(&model).await;
            self.run.end_delete(&model, outcome);
            giver = Some(model.shard as u16).filter(|_| rng.one_in(2));
        }
        rig.pause(RECLAIMED).await;
        if let Some(giver) = giver {
            self.disk().fail_flush_of(root_places(giver));
            let taken = rig.checkpoint().await.map_err(Into::into);
            return self.run.check_checkpoint(taken);
        }
        self.disk().set_faults(DeviceFaults {
            flush_error_one_in: FLUSH_ERROR_ONE_IN,
            ..DeviceFaults::default()
        });
        let taken = rig.checkpoint().await.map_err(Into::into);
        self.run.check_checkpoint(taken);
        self.disk().set_faults(DeviceFaults::default());
    }
}
