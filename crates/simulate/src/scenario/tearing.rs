//! Remains of writes that a power cut interrupts: copies of roots, and runs of tenants' blocks.

use std::collections::BTreeSet;

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
    /// Does to the disk what else a power cut may do to writes that no flush covered.
    pub(super) fn tear(&self, before: &SimDevice, disk: &SimDevice, seed: u64) {
        self.tear_roots(before, disk, &mut Rng::new(!seed));
        if self.profile.deaf {
            self.tear_runs(before, disk, &mut Rng::new(seed ^ 2));
        }
    }

    /// Leaves anything, now and then, where copies of roots were written that no flush covered, be it both of a slot: another root
    /// is there, with all that it leads to. A root lies in one sector, so no survival of sectors does that.
    fn tear_roots(&self, before: &SimDevice, disk: &SimDevice, rng: &mut Rng) {
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

    /// Loses, now and then, runs of tenants' blocks that no flush covered, while the journal's records of their writes may be
    /// there: of a write in several runs, any of them.
    fn tear_runs(&self, before: &SimDevice, disk: &SimDevice, rng: &mut Rng) {
        let unflushed: BTreeSet<Pba> = before.unflushed_blocks();
        for run in self.run.last_runs() {
            let blocks = (run.start.0..run.end().0).map(Pba);
            let is_unflushed = blocks.clone().all(|pba| unflushed.contains(&pba));
            if is_unflushed && rng.one_in(3) {
                blocks.for_each(|pba| disk.lose_unflushed(pba, before));
            }
        }
    }
}
