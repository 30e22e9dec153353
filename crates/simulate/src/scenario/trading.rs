//! Roots that take long to be written: power cuts meanwhile, while shards take what others gave back, and journals that
//! go around.

use units::{Lba, LbaRange};

use super::Boot;
use super::tearing::root_places;
use crate::rig::Rig;

/// Factors by which writes of roots take longer than those of other blocks.
const SLOWER: [u32; 3] = [1, 1000, 4000];
/// Writes of copies of roots that go before the one behind which the power goes.
const WRITES_MAX: u64 = 60;

/// Blocks of a deallocation that takes effect at once.
const CLEARED_AT_ONCE: u64 = 256;

/// The same, so that a journal goes around before a checkpoint ends.
const MUCH_SLOWER: u32 = 10_000;

impl Boot {
    /// Slows roots down, in half of the boots, so that journals go on while checkpoints wait.
    pub(super) fn hold_checkpoints_up(&mut self) {
        if self.rng.one_in(2) {
            self.disk().slow_down((0..self.profile.busy_shards).flat_map(root_places), MUCH_SLOWER);
        }
    }

    /// Has roots take long, and the power go a while after one is asked to be written.
    pub(super) fn cut_at_a_root(&mut self) {
        let busy = self.profile.busy_shards;
        let places = || (0..busy).flat_map(root_places);
        let slower = SLOWER[self.rng.below(SLOWER.len() as u64) as usize];
        self.disk().slow_down(places(), slower);
        let (writes, spread) = (self.rng.below(WRITES_MAX), 1 << self.rng.between(2, 8));
        let events = if self.rng.one_in(2) { u64::MAX } else { self.rng.below(spread) };
        self.disk().crash_after_write_of(places(), writes, events);
    }

    /// Empties a volume, has a checkpoint of its shard give the extents back, and has other shards take them. The giver makes no
    /// record behind that root, so nothing proves that there was one if it is lost.
    pub(super) async fn hand_over(&self, rig: &Rig, choice: u64) {
        let mut models = self.run.volumes();
        models.retain(|model| model.is_usable());
        if models.is_empty() {
            return;
        }
        let giver = models.swap_remove((choice % models.len() as u64) as usize);
        let Some(target) = rig.target(&giver).await else { return };
        let size = giver.likely_size();
        for start in (0..size).step_by(CLEARED_AT_ONCE as usize) {
            let range = LbaRange::new(Lba(start), CLEARED_AT_ONCE.min(size - start));
            let tag = self.run.begin(&giver, range, true);
            self.run.end(&giver, tag, target.clear(range, false).await);
        }
        let taken = rig.shards()[giver.shard].checkpoint().await;
        self.run.check_checkpoint(taken.map_err(Into::into));
        for model in models.iter().filter(|model| model.shard != giver.shard) {
            self.write_all(rig, model).await;
        }
    }
}
