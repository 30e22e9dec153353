//! Cores in a simulation. Those of tests in several crates are of the types here, so that all that a core is made of is compiled once
//! for all of them.

use std::future::Future;
use std::pin::Pin;

use dataplane::Core;
use io_traits::{Device, World};
use nvme_frontend::{DiscoveryRecord, NvmeCore, NvmeOptions};
use sim::SimWorld;
use volume::{ExtentAllocator, Shard, ShardOptions};

use crate::any_disk::AnyDisk;
use crate::nvme::portal;

/// A core before which any front end can be.
pub type SimCore = Core<SimWorld, AnyDisk>;
/// A core with NVMe/TCP.
pub type SimNvmeCore = NvmeCore<SimWorld, AnyDisk>;

/// Takes the only shard of a formatted device into use.
pub fn only_shard(device: impl Device) -> Pin<Box<dyn Future<Output = Shard<AnyDisk>>>> {
    start_shard(AnyDisk::new(device))
}

/// Not inlined, and no `async fn`: what it calls is to be compiled in this crate.
#[inline(never)]
fn start_shard(device: AnyDisk) -> Pin<Box<dyn Future<Output = Shard<AnyDisk>>>> {
    Box::pin(test_support::start_only_shard(device))
}

/// Starts a server with so many shards of `device`, and lets hosts in. Compiled here, as [`only_shard`].
#[inline(never)]
pub fn serve_nvme(
    world: SimWorld,
    device: AnyDisk,
    shards: u16,
    options: NvmeOptions,
) -> Pin<Box<dyn Future<Output = SimNvmeCore>>> {
    Box::pin(serve_in(world, device, shards, options))
}

/// The same in any world.
pub async fn serve_in<W: World>(
    world: W,
    device: AnyDisk,
    shards: u16,
    core_options: NvmeOptions,
) -> NvmeCore<W, AnyDisk> {
    let superblock = volume::read_superblock(&device).await.expect("formatted");
    let extents = ExtentAllocator::new(&superblock);
    let core = NvmeCore::new(&world, core_options);
    for index in 0..shards {
        let (device, extents, options) = (device.clone(), extents.clone(), ShardOptions::default());
        let recovered = Shard::recover(device, superblock, index, extents, options).await;
        let confirmed = recovered.expect("recoverable").confirm().await.expect("sound");
        core.attach(confirmed.start().await.expect("startable"));
    }
    announce(&core);
    open_portal(&world, &core);
    core
}

/// Lets hosts in.
pub fn open_portal<W: World>(world: &W, core: &NvmeCore<W, AnyDisk>) {
    let listener = world.listen(portal()).expect("a free address");
    let serving = core.clone();
    world.spawn(async move { serving.serve(listener).await });
}

/// Tells the discovery service of all volumes.
pub fn announce<W: World>(core: &NvmeCore<W, AnyDisk>) {
    for status in core.volumes() {
        core.announce(DiscoveryRecord {
            uuid: status.uuid,
            addresses: vec![portal()],
            restrictions: status.access.unwrap_or_default().restrictions,
        });
    }
}
