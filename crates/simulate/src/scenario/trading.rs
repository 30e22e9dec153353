//! Roots that take long to be written: power cuts meanwhile, while shards take what others gave back, and journals that
//! go around.

use super::Boot;
use super::tearing::root_places;

/// Factors by which writes of roots take longer than those of other blocks.
const SLOWER: [u32; 3] = [1, 1000, 4000];
/// Writes of copies of roots that go before the one behind which the power goes.
const WRITES_MAX: u64 = 60;

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
}
