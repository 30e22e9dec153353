//! A whole device, damaged: recovered, read, written to, scrubbed, checked, shut down, with less of its maps in memory
//! than they need.
//!
//! Promises: nothing panics or runs for ever, whatever the blocks hold; no request goes beyond the
//! device. What cannot be opened or read is an error.

use units::{BLOCK_SIZE, Lba, LbaRange};
use uuid::Uuid;
use volume::{Shard, Structure, VolumeSpec, probe};

use crate::image::{self, FAR, ImageDevice, READ_BLOCKS, blocks, damaged, open, run_with};
use crate::input::Input;

/// Bytes of memory that the maps may take: some of their nodes, so that others are read again and again.
const MAP_MEMORY: u64 = 6 << 10;
/// Steps of a scrub after which it goes on for ever: each takes at least one of some thousand nodes and extents.
const SCRUB_STEPS_MAX: u32 = 20_000;

/// The input is a list of mutations.
pub fn run(data: &[u8]) {
    let device = ImageDevice::new(damaged(&mut Input(data)).image);
    let _ = run_with(&[], probe(&device)).expect("a look ends");
    let opened = run_with(&[], open(&device, Some(MAP_MEMORY))).expect("recovery ends");
    let Ok(shards) = opened else { return };
    run_with(&shards, exercise(&shards)).expect("requests end");
}

async fn exercise(shards: &[Shard<ImageDevice>]) {
    for shard in shards {
        let _ = scrub(shard).await;
        for volume in shard.volumes() {
            let count = volume.blocks();
            let all = LbaRange::new(Lba(0), count.min(READ_BLOCKS));
            if volume.read(all).await.is_err() {
                for lba in 0..all.blocks {
                    let _ = volume.read(LbaRange::new(Lba(lba), 1)).await;
                }
            }
            for lba in FAR.step_by(30) {
                let _ = volume.read(LbaRange::new(Lba(lba), 1)).await;
            }
            let data = blocks(&[7; 2 * BLOCK_SIZE], volume.metadata_size());
            for lba in [0, 94, 300, count.saturating_sub(2)] {
                let _ = volume.write(Lba(lba), data.clone(), None).await;
            }
            let _ = volume.compare(Lba(29), data.clone()).await;
            let _ = volume.unmap(LbaRange::new(Lba(10), 60)).await;
            let _ = volume.unmap(LbaRange::new(Lba(0), count.min(1500))).await;
            let _ = volume.resize(100).await;
        }
        let uuid = Uuid::from_u128(3);
        let _ = shard.create_volume(VolumeSpec { uuid, name: "three".into(), blocks: 10 }).await;
        let _ = shard.delete_volume(Uuid::from_u128(2)).await;
        let _ = shard.checkpoint().await;
        let _ = scrub(shard).await;
        let _ = shard.check(true).await;
        let _ = shard.shutdown().await;
    }
}

/// Reads all that lies on the device. What it finds, as far as it comes.
async fn scrub(shard: &Shard<ImageDevice>) -> Vec<Structure> {
    let (mut cursor, mut found) = (shard.scrub(), Vec::new());
    for _ in 0..SCRUB_STEPS_MAX {
        if cursor.is_over() {
            return found;
        }
        let Ok(step) = shard.scrub_step(&mut cursor).await else { return found };
        found.extend(step.damaged.into_iter().map(|damaged| damaged.structure));
    }
    panic!("a scrub without end");
}

/// Nothing damaged; each kind of damage to each block.
pub fn seeds() -> Vec<Vec<u8>> {
    image::seeds()
}

#[cfg(test)]
mod tests {
    use layout::NodeView;

    use super::*;

    /// Checks that the structures that the target should reach are there, as long as nothing is damaged.
    ///
    /// Method: a map of two levels for each volume among the blocks; a scrub of the device that finds nothing, and for
    /// which nodes came and went.
    #[test]
    fn the_sound_image_has_inner_nodes_and_is_read_with_a_part_of_its_maps() {
        let image = image::image();
        for tree in [1, 2] {
            let inner = |block: &Vec<u8>| {
                NodeView::decode(block).is_ok_and(|node| node.tree == tree && node.level > 0)
            };
            assert!(image.values().any(inner), "volume {tree}");
        }
        let device = ImageDevice::new(image.clone());
        let opened = run_with(&[], open(&device, Some(MAP_MEMORY)));
        let shards = opened.expect("recovery ends").expect("sound");
        run_with(&shards, async {
            assert_eq!(scrub(&shards[0]).await, []);
            for volume in shards[0].volumes() {
                for lba in FAR {
                    volume.read(LbaRange::new(Lba(lba), 1)).await.expect("sound");
                }
            }
        })
        .expect("requests end");
        let memory = shards[0].map_memory();
        assert!(memory.device_bytes > MAP_MEMORY && memory.evictions > 4, "{memory:?}");
        run_with(&shards, exercise(&shards)).expect("requests end");
    }
}
