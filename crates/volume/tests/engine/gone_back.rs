//! What is left when both copies of the newest root rot: the root before it, and the journal from there on.

use layout::Descriptor;
use units::{BLOCK_SIZE, Lba, MetadataSize, Pba};
use uuid::Uuid;
use volume::{
    FsckOptions, Mended, OpenError, Problem, Shard, Structure, Superblock, Terms, VolumeSpec, fsck,
    repair,
};

use crate::common::{
    Random, Sim, TestDevice, check, data, fresh, open, tags, try_open, try_recover,
};

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

/// Nothing was built on the newest root: the one before and the journal have all of it, and whoever looks is told.
#[test]
fn a_shard_that_goes_back_has_all_and_says_so() {
    let (mut sim, volume) = fresh(&TestDevice::new(DEVICE_BLOCKS, true), None, 2000);
    let (superblock, shard) = (*volume.shard().superblock(), volume.shard().clone());
    sim.run_ok(async {
        volume.write(Lba(0), data(1, 100), None).await.expect("room");
        shard.checkpoint().await.expect("writable");
        volume.write(Lba(50), data(2, 100), None).await.expect("room");
        shard.shutdown().await.expect("writable");
    });
    let (mut sim, newest) = without_newest_root(sim.device.after_process_end(), &superblock);
    let device = sim.device.clone();
    let report = sim.run_ok(fsck(&device, FsckOptions { read_data: true }, |_, _| ()));
    let faults = report.expect("ours").faults;
    let both = |pba| (Some(pba), Problem::Root { twin: false });
    let found: Vec<_> = faults.into_iter().map(|fault| (fault.pba, fault.problem)).collect();
    assert_eq!(found, newest.map(both));
    assert!(!found[0].1.is_beyond_repair());
    let recovered = sim.run_ok(try_recover(device)).expect("all is there");
    assert_eq!(*recovered.mended(), [Mended::Root { pba: newest[0] }]);
    drop(recovered);
    let shard = open(&mut sim);
    let told = shard.take_findings().into_iter().map(|found| (found.pba, found.structure));
    assert_eq!(told.collect::<Vec<_>>(), newest.map(|pba| (pba, Structure::Root)));
    assert_eq!(shard.media_errors(), 2);
    let volume = shard.volume(Uuid::from_u128(1)).expect("there");
    assert_eq!(sim.run_ok(tags(&volume, 0, 150)), [vec![1; 50], vec![2; 100]].concat());
    check(&mut sim, &shard);
    let device = sim.device.clone();
    let report = sim.run_ok(fsck(&device, FsckOptions { read_data: true }, |_, _| ()));
    assert_eq!(report.expect("ours").faults, [], "the start wrote it anew");
}

/// What the newest root no longer needed is reused, as by a write that a crash cut short, so that no record builds on it. Without
/// that root a volume would be taken for damaged whose descriptor was sound.
#[test]
fn no_volume_is_given_up_for_a_root_that_is_lost_unless_that_is_wanted() {
    let (mut sim, volume) = fresh(&TestDevice::new(DEVICE_BLOCKS, true), None, 2000);
    let (superblock, shard) = (*volume.shard().superblock(), volume.shard().clone());
    sim.run_ok(async {
        volume.write(Lba(0), data(1, 100), None).await.expect("room");
        shard.checkpoint().await.expect("writable");
        volume.resize(1000).await.expect("writable");
        shard.checkpoint().await.expect("writable");
    });
    let is_older = |block: &[u8]| Descriptor::decode(block).is_ok_and(|found| found.blocks == 2000);
    let places = sim.device.find_by(is_older);
    assert!(!places.is_empty());
    places.into_iter().for_each(|pba| sim.device.put(pba, [3; BLOCK_SIZE]));
    let (mut sim, newest) = without_newest_root(sim.device.after_process_end(), &superblock);
    let device = sim.device.clone();
    let refused = sim.run_ok(try_open(device.clone())).map(|shard| shard.volumes().len());
    assert!(matches!(refused, Err(OpenError::Damaged { what: "root", .. })), "{refused:?}");
    let refused = sim.run_ok(repair(&device, false, |_, _| ()));
    assert!(matches!(refused, Err(OpenError::Damaged { pba, .. }) if pba == newest[0]));
    let repaired = sim.run_ok(repair(&device, true, |_, _| ())).expect("writable");
    assert_eq!(repaired.volumes_given_up, 1);
    let shard = open(&mut sim);
    assert!(shard.volumes().is_empty());
    check(&mut sim, &shard);
}
