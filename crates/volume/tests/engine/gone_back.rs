//! What is left when both copies of the newest root rot: the root before it, and the journal from there on.

use units::{MetadataSize, Pba};
use uuid::Uuid;
use volume::{OpenError, Shard, Superblock, Terms, VolumeSpec};

use crate::common::{Random, Sim, TestDevice, fresh, try_open};

const DEVICE_BLOCKS: u64 = 1 << 14;

/// The places of the newer root, and of the older one.
fn roots(sim: &Sim, superblock: &Superblock) -> [[Pba; 2]; 2] {
    let mut slots = [0, 1].map(|slot| superblock.root_places(0, slot));
    let generation = |places: &[Pba; 2]| {
        layout::Root::decode(&sim.device.block(places[0])).map_or(0, |root| root.generation)
    };
    slots.sort_by_key(|places| std::cmp::Reverse(generation(places)));
    slots
}

/// Both copies of the newest root rot, and `device` is found so.
fn without_newest_root(device: TestDevice, superblock: &Superblock) -> (Sim, [Pba; 2]) {
    let sim = Sim::new(device, 3);
    let newest = roots(&sim, superblock)[0];
    newest.into_iter().for_each(|place| sim.device.flip(place, 50));
    (sim, newest)
}

/// A volume whose blocks have metadata is created by a checkpoint, which the root before knows nothing of.
#[test]
fn a_volume_with_metadata_is_not_forgotten_with_the_root_that_first_has_it() {
    let (mut sim, plain) = fresh(&TestDevice::new(DEVICE_BLOCKS, true), None, 100);
    let superblock = *plain.shard().superblock();
    let spec = VolumeSpec { uuid: Uuid::from_u128(2), name: "m".into(), blocks: 100 };
    let terms = Terms { metadata: MetadataSize::Bytes8, ..Terms::default() };
    sim.run_ok(plain.shard().create_volume_under(spec, terms)).expect("room");
    let (mut sim, _) = without_newest_root(sim.device.after_crash(&mut Random(3)), &superblock);
    let device = sim.device.clone();
    let opened = sim.run_ok(try_open(device));
    let has_it = |shard: &Shard<TestDevice>| shard.volume(Uuid::from_u128(2)).is_some();
    assert!(
        matches!(&opened, Err(OpenError::Journal { .. })) || opened.as_ref().is_ok_and(has_it),
        "{:?}",
        opened.map(|shard| shard.volumes().len())
    );
}
