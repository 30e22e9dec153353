//! An extent that goes to another shard before the root without it is durable (CHECKPOINT-4), where the power goes in between:
//! the shard that gave it back still has it, and writes over what the other one acknowledged.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use io_traits::{Buffer, Spawn};
use sim::{SimDevice, SimWorld, Simulation, Survival};
use units::{BLOCK_SIZE, Lba, LbaRange};
use uuid::Uuid;
use volume::{
    ExtentAllocator, FormatOptions, OpenError, Recovered, Sabotage, Shard, ShardOptions, Volume,
    VolumeSpec,
};

const DEVICE_BLOCKS: u64 = 16_384;
/// Blocks of one write.
const RUN: u64 = 250;
/// Blocks that the first shard gives up.
const GIVEN_UP: u64 = 6000;
/// Interval of what shards do by the clock.
const TICK: Duration = Duration::from_millis(5);
/// Tags of what the shards write: the second shard's, and that of the first behind the power cut.
const KEPT: u8 = 7;
const LATER: u8 = 9;

async fn open(world: &SimWorld, disk: &SimDevice) -> Result<Vec<Shard<SimDevice>>, OpenError> {
    let superblock = volume::read_superblock(disk).await?;
    let extents = ExtentAllocator::new(&superblock);
    let mut recovered = Vec::new();
    for index in [0, 1] {
        let options = ShardOptions::default();
        let shard = Shard::recover(disk.clone(), superblock, index, extents.clone(), options);
        recovered.push(shard.await?);
    }
    let shards = Recovered::start_all(recovered).await?;
    for shard in &shards {
        let (a, b) = (shard.clone(), shard.clone());
        world.spawn(async move { a.run_committer().await });
        world.spawn(async move { b.run_checkpointer().await });
        let (ticking, clock) = (shard.clone(), world.clone());
        world.spawn(async move {
            loop {
                clock.delay(TICK, TICK).await;
                ticking.settle();
            }
        });
    }
    Ok(shards)
}

async fn create(shard: &Shard<SimDevice>, number: u128) -> Volume<SimDevice> {
    let (uuid, name) = (Uuid::from_u128(number), format!("v{number}"));
    shard.create_volume(VolumeSpec { uuid, name, blocks: DEVICE_BLOCKS }).await.expect("room")
}

/// Writes as much as the device takes, and notes what was acknowledged.
async fn fill(volume: Volume<SimDevice>, tag: u8, acknowledged: Rc<RefCell<Vec<u64>>>) {
    for lba in (0..DEVICE_BLOCKS - RUN).step_by(RUN as usize) {
        let data = Buffer::from_bytes(&vec![tag; RUN as usize * BLOCK_SIZE]).into_slice();
        if volume.write(Lba(lba), data, None).await.is_err() {
            return;
        }
        acknowledged.borrow_mut().push(lba);
    }
}

/// The disk behind a power cut `after` the second shard began to fill the device, while the first one gives extents back by a
/// root whose write takes long; and what the second shard was told is written.
fn cut(after: Duration) -> (SimDevice, Vec<u64>) {
    let simulation = Simulation::new(1);
    let world = simulation.world();
    let disk = SimDevice::new(&world, DEVICE_BLOCKS);
    let acknowledged = Rc::new(RefCell::new(Vec::new()));
    let (device, told, inner) = (disk.clone(), acknowledged.clone(), world.clone());
    let ended = simulation.run(async move {
        let superblock =
            volume::format(&device, &FormatOptions { uuid: Uuid::from_u128(42) }).await;
        let superblock = superblock.expect("large enough");
        let shards = open(&inner, &device).await.expect("blank");
        let (giver, taker) = (create(&shards[0], 1).await, create(&shards[1], 2).await);
        let data = Buffer::from_bytes(&vec![1; RUN as usize * BLOCK_SIZE]).into_slice();
        for lba in (0..GIVEN_UP).step_by(RUN as usize) {
            giver.write(Lba(lba), data.clone(), None).await.expect("room");
        }
        shards[0].checkpoint().await.expect("a sound disk");
        giver.unmap(LbaRange::new(Lba(0), GIVEN_UP)).await.expect("possible");
        let roots = [0, 1].into_iter().flat_map(|slot| superblock.root_places(0, slot));
        device.slow_down(roots, 1000);
        inner.spawn(fill(taker, KEPT, told));
    });
    ended.expect("nothing waits forever");
    simulation.run_for(after);
    disk.crash();
    (disk, acknowledged.take())
}

/// Says whether all that the second shard acknowledged is there when the first one has filled the device.
fn keeps(disk: &SimDevice, acknowledged: Vec<u64>) -> bool {
    let simulation = Simulation::new(2);
    let world = simulation.world();
    let disk = disk.after_crash_with(&world, Survival::Nothing);
    let kept = simulation.run(async move {
        let Ok(shards) = open(&world, &disk).await else { return false };
        let [giver, taker] = [(0, 1), (1, 2)]
            .map(|(shard, number): (usize, u128)| shards[shard].volume(Uuid::from_u128(number)));
        let (Some(giver), Some(taker)) = (giver, taker) else { return false };
        fill(giver, LATER, Rc::default()).await;
        for lba in acknowledged {
            let read = taker.read(LbaRange::new(Lba(lba), RUN)).await;
            if !read.is_ok_and(|data| data.to_vec().iter().all(|byte| *byte == KEPT)) {
                return false;
            }
        }
        true
    });
    kept.expect("nothing waits forever")
}

/// Counts power cuts, at many moments, by which something acknowledged was lost.
fn losses() -> usize {
    let cut_short = |after| {
        let (disk, acknowledged) = cut(after);
        !keeps(&disk, acknowledged)
    };
    (1..=20).filter(|n| cut_short(3 * *n * TICK)).count()
}

#[test]
fn an_extent_that_is_given_back_too_early_costs_what_another_shard_wrote() {
    assert_eq!(losses(), 0);
    volume::sabotage(Some(Sabotage::ReleaseExtentsEarly));
    let found = losses();
    volume::sabotage(None);
    assert!(found > 0, "no power cut shows it");
}
