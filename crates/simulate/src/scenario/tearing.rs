//! What a power cut may leave of the copies of a root that are being written.

use sim::{Rng, SimDevice};
use units::Pba;
use uuid::Uuid;
use volume::Superblock;

use super::{DEVICE_BLOCKS, EXTENT_BLOCKS, Scenario};

/// The places of a shard's roots.
pub(super) fn root_places(shard: u16) -> impl Iterator<Item = Pba> {
    let superblock = Superblock::with_extents(Uuid::nil(), DEVICE_BLOCKS, EXTENT_BLOCKS);
    let superblock = superblock.expect("as it was formatted");
    [0, 1].into_iter().flat_map(move |slot| superblock.root_places(shard, slot))
}

impl Scenario {
    /// Leaves anything, now and then, where copies of roots were written that no flush covered, be it both of a slot: another root
    /// is there, with all that it leads to. A root lies in one sector, so no survival of sectors does that.
    pub(super) fn tear_roots(&self, before: &SimDevice, disk: &SimDevice, rng: &mut Rng) {
        if rng.one_in(2) {
            return;
        }
        let unflushed = before.unflushed_blocks();
        let places = (0..self.profile.shards).flat_map(root_places);
        let places: Vec<Pba> = places.filter(|pba| unflushed.contains(pba)).collect();
        for pba in places.into_iter().filter(|_| rng.one_in(2)) {
            disk.spoil(pba);
            let leniency = self.run.leniency();
            self.run.set_leniency(crate::run::Leniency { roots: true, ..leniency });
        }
    }
}
