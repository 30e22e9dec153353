//! Steps that tests of several crates share.
//!
//! Absent from this crate: worlds and devices, which a test chooses, and anything that serves volumes.

pub mod cgroup;
pub mod etcd;
pub mod fuse_switch;
pub mod skipped;
pub mod waiting;

use io_traits::Device;
use volume::{ExtentAllocator, Shard, ShardOptions};

/// Takes the only shard of a formatted device into use. Panics where that fails.
pub async fn start_only_shard<D: Device>(device: D) -> Shard<D> {
    let superblock = volume::read_superblock(&device).await.expect("formatted");
    let extents = ExtentAllocator::new(&superblock);
    let recovered = Shard::recover(device, superblock, 0, extents, ShardOptions::default()).await;
    let confirmed = recovered.expect("recoverable").confirm().await.expect("a sound disk");
    confirmed.start().await.expect("room for a checkpoint")
}
