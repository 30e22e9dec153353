//! An older version of a map node in the place of the newer one, as a disk leaves it that loses a
//! write: found when the node is read back, unless its checksum is not compared.

use std::cell::RefCell;
use std::rc::Rc;

use io_traits::{Buffer, Device, Spawn};
use sim::{SimDevice, Simulation};
use units::{BLOCK_SIZE, Lba, LbaRange, Pba};
use uuid::Uuid;
use volume::{
    ExtentAllocator, FormatOptions, Shard, ShardOptions, Volume, VolumeError, VolumeSpec,
};

const DEVICE_BLOCKS: u64 = 16_384;

/// The leaves of volume 1 on the disk.
async fn leaves(disk: &SimDevice) -> Vec<(Pba, Buffer)> {
    let mut found = Vec::new();
    for pba in (0..DEVICE_BLOCKS).map(Pba) {
        let block = disk.read(pba, Buffer::new(1)).await.expect("a sound disk");
        let bytes = block.as_bytes();
        if bytes[..5] == *b"FMN1\0" && bytes[8..12] == 1_u32.to_le_bytes() {
            found.push((pba, block));
        }
    }
    found
}

async fn write(volume: &Volume<SimDevice>, tag: u8) {
    let data = Buffer::from_bytes(&[tag; BLOCK_SIZE]).into_slice();
    volume.write(Lba(0), data, None).await.expect("room");
    volume.shard().checkpoint().await.expect("a sound disk");
}

/// Reads from a volume whose only leaf is an older version of itself.
fn read_through_a_stale_node() -> Result<u8, VolumeError> {
    let simulation = Simulation::new(1);
    let world = simulation.world();
    let disk = SimDevice::new(&world, DEVICE_BLOCKS);
    let outcome = Rc::new(RefCell::new(None));
    let result = outcome.clone();
    let ended = simulation.run(async move {
        let superblock = volume::format(&disk, &FormatOptions { uuid: Uuid::from_u128(1) }).await;
        let superblock = superblock.expect("large enough");
        let extents = ExtentAllocator::new(&superblock);
        // So little that nothing stays in memory that may go.
        let options = ShardOptions { map_memory: Some(1), ..ShardOptions::default() };
        let shard = Shard::recover(disk.clone(), superblock, 0, extents, options).await;
        let shard =
            shard.expect("blank").confirm().await.expect("sound").start().await.expect("room");
        let (a, b) = (shard.clone(), shard.clone());
        world.spawn(async move { a.run_committer().await });
        world.spawn(async move { b.run_checkpointer().await });
        let mut volumes = Vec::new();
        for number in 1..3 {
            let (uuid, name) = (Uuid::from_u128(number), format!("v{number}"));
            let spec = VolumeSpec { uuid, name, blocks: 100 };
            volumes.push(shard.create_volume(spec).await.expect("room"));
        }
        write(&volumes[0], 1).await;
        let old = leaves(&disk).await;
        write(&volumes[0], 2).await;
        let new = leaves(&disk).await;
        let new = new.iter().find(|(pba, _)| old.iter().all(|(before, _)| before != pba));
        let (_, old) = old.into_iter().next().expect("a leaf");
        disk.write(new.expect("copied on write").0, old.into_slice()).await.expect("a sound disk");
        // Makes the other volume's leaf go.
        write(&volumes[1], 3).await;
        let read = volumes[0].read(LbaRange::new(Lba(0), 1)).await;
        result.replace(Some(read.map(|data| data.to_vec()[0])));
    });
    ended.expect("nothing waits forever");
    outcome.take().expect("it ran")
}

#[test]
fn a_stale_node_is_found_by_its_checksum_and_by_nothing_else() {
    let honest = read_through_a_stale_node();
    assert!(matches!(honest, Err(VolumeError::CorruptMap { lba: Lba(0), .. })), "{honest:?}");
    block_map::sabotage(Some(block_map::Sabotage::SkipNodeChecksum));
    let broken = read_through_a_stale_node();
    block_map::sabotage(None);
    assert_ne!(broken, Ok(2), "the mutant reads the stale node");
    assert!(!matches!(broken, Err(VolumeError::CorruptMap { .. })), "{broken:?}");
}
