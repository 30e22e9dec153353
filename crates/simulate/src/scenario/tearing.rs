//! What a power cut may leave of the copies of a root that are being written.

use sim::{Rng, SimDevice};
use units::Pba;
use uuid::Uuid;
use volume::Superblock;

use super::{DEVICE_BLOCKS, EXTENT_BLOCKS, Scenario};

impl Scenario {
    /// Leaves anything, now and then, where copies of roots were written that no flush covered, be it both of a slot: another root
    /// is there, with all that it leads to. A root lies in one sector, so no survival of sectors does that.
    pub(super) fn tear_roots(&self, before: &SimDevice, disk: &SimDevice, rng: &mut Rng) {
        let superblock = Superblock::with_extents(Uuid::nil(), DEVICE_BLOCKS, EXTENT_BLOCKS);
        let superblock = superblock.expect("as it was formatted");
        let unflushed = before.unflushed_blocks();
        let shards = 0..self.profile.shards;
        let slots = shards.flat_map(|shard| [0, 1].map(|slot| superblock.root_places(shard, slot)));
        let places: Vec<Pba> = slots.flatten().filter(|pba| unflushed.contains(pba)).collect();
        for pba in places.into_iter().filter(|_| rng.one_in(2)) {
            disk.spoil(pba);
            let leniency = self.run.leniency();
            self.run.set_leniency(crate::run::Leniency { roots: true, ..leniency });
        }
    }
}
