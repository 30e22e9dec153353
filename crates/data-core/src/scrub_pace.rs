//! The pace of a scrub: no faster than requested, however fast the device is.

use io_traits::{Clock, Device};
use units::{BLOCK_SIZE, Duration, Instant};
use volume::{ScrubStep, Shard, VolumeError};

/// When a scrub may go on. At any time it has done no more than its rate allows since it began, and one step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    bytes_per_second: u64,
    due: Instant,
}

impl Pace {
    /// That of a scrub which begins now, of at most so many bytes a second, and at least of a block.
    pub(super) fn new(now: Instant, bytes_per_second: u64) -> Self {
        Self { bytes_per_second: bytes_per_second.max(BLOCK_SIZE as u64), due: now }
    }

    /// When the next step may begin after one that has cost as much as so many blocks read. What was slow is not made up for.
    fn after(&mut self, now: Instant, cost: u64) -> Instant {
        let bytes = u128::from(cost) * BLOCK_SIZE as u128;
        let nanos = bytes * 1_000_000_000 / u128::from(self.bytes_per_second);
        let pause = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        self.due = self.due.max(now) + pause;
        self.due
    }
}

/// Scrubs a shard at a pace. Each step is passed to `goes_on`, until it returns false.
pub(super) async fn scrub_at<C: Clock, D: Device>(
    clock: &C,
    shard: &Shard<D>,
    pace: &mut Pace,
    mut goes_on: impl FnMut(ScrubStep) -> bool,
) -> Result<(), VolumeError> {
    let mut cursor = shard.scrub();
    while !cursor.is_over() {
        let step = shard.scrub_step(&mut cursor).await?;
        let cost = step.cost;
        if !goes_on(step) {
            return Ok(());
        }
        clock.sleep_until(pace.after(clock.now(), cost)).await;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use io_traits::{Buffer, Spawn};
    use sim::{SimDevice, SimWorld, Simulation};
    use test_support::start_only_shard;
    use units::Lba;
    use uuid::Uuid;
    use volume::{FormatOptions, VolumeSpec};

    use super::*;

    const DEVICE_BLOCKS: u64 = 1 << 14;
    const BLOCKS: u64 = 3000;

    /// A shard of a simulated disk with a volume of so many blocks.
    async fn filled(world: &SimWorld) -> Shard<SimDevice> {
        let device = SimDevice::new(world, DEVICE_BLOCKS);
        let options = FormatOptions { uuid: Uuid::from_u128(1) };
        volume::format(&device, &options).await.expect("a sound disk");
        let shard = start_only_shard(device).await;
        let (committing, checkpointing) = (shard.clone(), shard.clone());
        world.spawn(async move { committing.run_committer().await });
        world.spawn(async move { checkpointing.run_checkpointer().await });
        let spec = VolumeSpec { uuid: Uuid::from_u128(2), name: "v".into(), blocks: BLOCKS };
        let volume = shard.create_volume(spec).await.expect("room");
        for lba in (0..BLOCKS).step_by(100) {
            let data = Buffer::from_bytes(&[7; 100 * BLOCK_SIZE]).into_slice();
            volume.write(Lba(lba), data, None).await.expect("room");
        }
        shard
    }

    /// The bytes checked at any time are no more than the rate times the time since the beginning, and one
    /// step.
    ///
    /// Method: scrub a simulated disk, which is much faster than that, and look at the simulated clock at each step.
    #[test]
    fn a_scrub_is_no_faster_than_its_rate() {
        for rate in [64 << 10, 4 << 20] {
            let simulation = Simulation::new(rate);
            let world = simulation.world();
            let scrubbed = simulation.run(async move {
                let shard = filled(&world).await;
                let begin = world.now();
                let (mut pace, mut checked, mut steps) = (Pace::new(begin, rate), 0, 0);
                let clock = world.clone();
                let scrub = scrub_at(&world, &shard, &mut pace, |step| {
                    let nanos = clock.now().since(begin).as_nanos();
                    let allowed = u128::from(rate) * nanos / 1_000_000_000;
                    assert!(checked <= allowed, "{checked} of {allowed} bytes at {nanos} ns");
                    checked += u128::from(step.blocks) * BLOCK_SIZE as u128;
                    steps += 1;
                    true
                });
                scrub.await.expect("running");
                (steps, checked)
            });
            let (steps, checked) = scrubbed.expect("it ends");
            let data = u128::from(BLOCKS) * BLOCK_SIZE as u128;
            assert!(steps > 10 && checked >= data, "{checked} bytes in {steps} steps");
        }
    }
}
