//! The shards of a disk that count as used.

use sim::{DeviceFaults, SimDevice, Simulation, Survival};
use units::{BLOCK_SIZE, Pba};
use uuid::Uuid;
use volume::Superblock;

use super::{DEVICE_BLOCKS, EXTENT_BLOCKS, Scenario};
use crate::profile::Workload;
use crate::seam::SeamDevice;

/// One of so many reads goes astray.
const ASTRAY_ONE_IN: u64 = 2;

impl Scenario {
    /// Each shard that was started counts as used, and no other, as long as one copy of one of its roots is whole: also when
    /// reads go astray.
    ///
    /// Method: damage all other copies on a copy of the disk.
    pub(super) fn prove_use(&mut self, disk: &SimDevice) {
        let is_started = self.run.counts().requests > 0 && !self.run.is_any_copy_harmed();
        if self.profile.workload != Workload::Corrupt || !is_started {
            return;
        }
        let simulation = Simulation::new(self.rng.next_u64());
        let world = simulation.world();
        let survival = Survival::ALL[self.rng.below(Survival::ALL.len() as u64) as usize];
        let copy = disk.after_crash_with(&world, survival);
        let superblock = Superblock::with_extents(Uuid::nil(), DEVICE_BLOCKS, EXTENT_BLOCKS);
        let superblock = superblock.expect("as it was formatted");
        for shard in 0..self.profile.shards {
            let places = [0, 1].into_iter().flat_map(|slot| superblock.root_places(shard, slot));
            let mut roots: Vec<Pba> =
                places.filter(|place| copy.peek(*place).starts_with(b"FSR1")).collect();
            roots.swap_remove(self.rng.below(roots.len() as u64) as usize);
            for root in roots {
                copy.flip_bit(root, self.rng.below(BLOCK_SIZE as u64 * 8) as usize);
            }
        }
        copy.set_faults(DeviceFaults {
            misdirected_read_one_in: ASTRAY_ONE_IN,
            ..DeviceFaults::default()
        });
        let device = SeamDevice::new(&world, copy, self.seam);
        let looking = async move {
            let superblock = volume::read_superblock(&device).await?;
            volume::active_shards(&device, &superblock).await
        };
        let expected: Vec<u16> = (0..self.profile.shards).collect();
        match simulation.run(looking) {
            Ok(Ok(active)) if active == expected => {}
            outcome => self.run.fail(format!("of {expected:?} these count as used: {outcome:?}")),
        }
    }
}
