//! Remains of writes that a power cut interrupts: copies of roots, and runs of tenants' blocks.

use std::collections::BTreeSet;

use layout::Root;
use sim::{Rng, SimDevice};
use units::{BLOCK_SIZE, Pba};
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

    /// Damages the disk between two boots, if this run is about that.
    pub(super) fn damage(&self, disk: &SimDevice, seed: u64) {
        if self.profile.trades {
            self.lose_root(disk, &mut Rng::new(seed ^ 3));
        }
        if self.profile.rots {
            self.rot_runs(disk, &mut Rng::new(seed ^ 4));
        }
        if self.profile.stales {
            self.run.make_stale(disk, &mut Rng::new(seed ^ 1));
        }
    }

    /// Damages, now and then, both copies of a shard's newest root, if none of its records proves that there was one. The shard
    /// goes back to the root before, which leads to extents that others have taken since.
    fn lose_root(&self, disk: &SimDevice, rng: &mut Rng) {
        if !rng.one_in(3) {
            return;
        }
        let read = |pba: Pba| Some((Root::decode(&disk.peek(pba)).ok()?.generation, pba));
        let copies = (0..self.profile.busy_shards).filter_map(|shard| {
            let copies: Vec<(u64, Pba)> = root_places(shard).filter_map(read).collect();
            let newest = copies.iter().map(|(generation, _)| *generation).max()?;
            let newest_copies =
                copies.into_iter().filter(move |(generation, _)| *generation == newest);
            (!self.run.is_root_proven(shard, newest)).then_some(newest_copies)
        });
        for (_, pba) in copies.take(1).flatten() {
            self.rot(disk, pba, rng);
        }
    }

    fn rot(&self, disk: &SimDevice, pba: Pba, rng: &mut Rng) {
        let intended = disk.rot_at_rest(pba, rng.below(8 * BLOCK_SIZE as u64) as usize);
        self.run.note_damage(pba, &intended);
    }

    /// Rots some of the blocks that tenants wrote last.
    fn rot_runs(&self, disk: &SimDevice, rng: &mut Rng) {
        for run in self.run.last_runs() {
            if rng.one_in(4) {
                let pba = run.start.plus(rng.below(run.blocks));
                self.rot(disk, pba, rng);
            }
        }
        // The next start may undo their writes.
        self.run.close();
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
