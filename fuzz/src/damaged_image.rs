//! A whole device, damaged: recovered, read, written to, checked, shut down.
//!
//! Promises: nothing panics or runs for ever, whatever the blocks hold; no request goes beyond the
//! device. What cannot be opened or read is an error.

use units::{BLOCK_SIZE, Lba, LbaRange};
use uuid::Uuid;
use volume::{Shard, VolumeSpec, probe};

use crate::image::{self, ImageDevice, READ_BLOCKS, blocks, damaged, open, run_with};
use crate::input::Input;

/// The input is a list of mutations.
pub fn run(data: &[u8]) {
    let device = ImageDevice::new(damaged(&mut Input(data)).image);
    let _ = run_with(&[], probe(&device)).expect("a look ends");
    let Ok(shards) = run_with(&[], open(&device)).expect("recovery ends") else { return };
    run_with(&shards, exercise(&shards)).expect("requests end");
}

async fn exercise(shards: &[Shard<ImageDevice>]) {
    for shard in shards {
        for volume in shard.volumes() {
            let count = volume.blocks();
            let all = LbaRange::new(Lba(0), count.min(READ_BLOCKS));
            if volume.read(all).await.is_err() {
                for lba in 0..all.blocks {
                    let _ = volume.read(LbaRange::new(Lba(lba), 1)).await;
                }
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
        let _ = shard.check(true).await;
        let _ = shard.shutdown().await;
    }
}

/// Nothing damaged; each kind of damage to each block.
pub fn seeds() -> Vec<Vec<u8>> {
    image::seeds()
}
