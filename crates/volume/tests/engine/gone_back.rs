//! Recovery when both copies of the newest root rot: from the root before it, and the journal from
//! there on.

use layout::Descriptor;
use units::{BLOCK_SIZE, Lba, MetadataSize, Pba};
use uuid::Uuid;
use volume::{
    FsckOptions, Mended, OpenError, Problem, Shard, Structure, Superblock, Terms, VolumeSpec, fsck,
    repair,
};

use crate::common::{
    Crashed, Random, Sim, TestDevice, check, data, fresh, open, range, tags, try_open, try_recover,
};
use crate::sharing::{create, two_shards_on};
use crate::starts::start;

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

/// Nothing was built on the newest root: the one before and the journal have all of it, and the
/// damage is reported.
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
    assert_eq!(report.expect("ours").faults, [], "the start rewrote it");
}

/// Blocks that the newest root no longer needed are reused, as by a write that a crash cut short,
/// so that no record builds on it. Without that root a volume would be taken for damaged whose
/// descriptor was sound.
///
/// Method: `copies` says how many the newest root had. The place of the other one took no writes,
/// and has an older root.
fn no_volume_is_given_up(copies: usize) {
    let (mut sim, volume) = fresh(&TestDevice::new(DEVICE_BLOCKS, true), None, 2000);
    let (superblock, shard) = (*volume.shard().superblock(), volume.shard().clone());
    sim.run_ok(async {
        volume.write(Lba(0), data(1, 100), None).await.expect("room");
        shard.checkpoint().await.expect("writable");
    });
    let older = roots(&sim, &superblock)[1].map(|place| (place, sim.device.block(place)));
    sim.run_ok(async {
        volume.resize(1000).await.expect("writable");
        shard.checkpoint().await.expect("writable");
    });
    let is_older = |block: &[u8]| Descriptor::decode(block).is_ok_and(|found| found.blocks == 2000);
    let places = sim.device.find_by(is_older);
    assert!(!places.is_empty());
    places.into_iter().for_each(|pba| sim.device.put(pba, [3; BLOCK_SIZE]));
    let (mut sim, newest) = without_newest_root(sim.device.after_process_end(), &superblock);
    for (place, block) in &older[copies..] {
        sim.device.put(*place, *block);
    }
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

#[test]
fn no_volume_is_given_up_for_a_root_that_is_lost_unless_that_is_wanted() {
    no_volume_is_given_up(2);
}

#[test]
fn no_volume_is_given_up_for_a_root_whose_only_copy_is_lost_unless_that_is_wanted() {
    no_volume_is_given_up(1);
}

/// Tags of the blocks of a volume that stays, and of the other shard's.
const KEPT: u8 = 7;
const OTHERS: u8 = 9;
/// Blocks of the other shard's volume that are looked at.
const OTHERS_BLOCKS: u64 = 4000;

/// Two shards, of which the second has what the newest root of the first gave back, as the next process finds them. `goes_on`: the
/// first makes changes behind that.
fn with_extents_given_back(goes_on: bool) -> (TestDevice, Superblock) {
    let device = TestDevice::new(DEVICE_BLOCKS, true);
    // Else what is emptied goes with the root behind the one that has it empty.
    device.faults(|faults| faults.has_no_discards = true);
    let (mut sim, shards) = two_shards_on(&device);
    let (kept, big) = (create(&mut sim, &shards, 0, 1), create(&mut sim, &shards, 0, 2));
    let others = create(&mut sim, &shards, 1, 3);
    let giver = shards[0].clone();
    sim.run_ok(async {
        kept.write(Lba(0), data(KEPT, 5), None).await.expect("room");
        for lba in 0..20 {
            big.write(Lba(lba * 250), data(1, 250), None).await.expect("room");
        }
        giver.checkpoint().await.expect("writable");
        for lba in 0..20 {
            big.unmap(range(lba * 250, 250)).await.expect("possible");
        }
    });
    let unreserved = || giver.capacity().device_unreserved;
    let before = unreserved();
    sim.run_ok(giver.checkpoint()).expect("writable");
    let given_back = unreserved() - before;
    assert!(given_back > 2 * 1024, "{given_back}");
    sim.run_ok(async {
        // Those that were never owned go first.
        for lba in (0..).step_by(250).take_while(|_| unreserved() + 1024 > given_back) {
            others.write(Lba(lba), data(OTHERS, 250), None).await.expect("room");
        }
        if goes_on {
            kept.write(Lba(0), data(KEPT + 1, 5), None).await.expect("room");
        }
    });
    (device.after_process_end(), *giver.superblock())
}

fn start_both(sim: &mut Sim, order: &[u16]) -> Result<Vec<Shard<TestDevice>>, OpenError> {
    sim.run_ok(start(sim.device.clone(), order))
}

/// All of the other shard's volume is there, and all fits. Returns the first shard.
fn check_others(sim: &mut Sim, order: [u16; 2]) -> Shard<TestDevice> {
    let mut shards = start_both(sim, &order).unwrap_or_else(|error| panic!("{order:?}: {error}"));
    shards.sort_by_key(Shard::index);
    let others = shards[1].volume(Uuid::from_u128(3)).expect("there");
    let found = sim.run_ok(tags(&others, 0, OTHERS_BLOCKS));
    assert!(found.iter().all(|tag| *tag == OTHERS));
    shards.iter().for_each(|shard| check(sim, shard));
    shards.swap_remove(0)
}

/// ROLLBACK-2: an extent that the lost root had given back, and that another shard has taken, is left to that: nothing is in it
/// of the shard that goes back.
///
/// Method: both orders in which the shards are read back, and the power going at each write of the start.
#[test]
fn what_a_lost_root_had_given_back_is_left_to_who_took_it() {
    let (device, superblock) = with_extents_given_back(false);
    for order in [[0, 1], [1, 0]] {
        for cut in 0.. {
            let (mut sim, _) = without_newest_root(device.after_process_end(), &superblock);
            sim.crash_at = Some(sim.device.completed() + cut);
            let started = sim.run(start(sim.device.clone(), &order));
            let cut_off = matches!(started, Err(Crashed));
            sim = Sim::new(sim.device.after_crash(&mut Random(cut)), cut);
            let shard = check_others(&mut sim, [order[1], order[0]]);
            let kept = shard.volume(Uuid::from_u128(1)).expect("there");
            assert_eq!(sim.run_ok(tags(&kept, 0, 5)), [KEPT; 5]);
            if !cut_off {
                break;
            }
        }
    }
}

/// The same where the shard went on from that root: what came behind it is lost, with consent, and a node that it reused.
#[test]
fn a_repair_leaves_what_a_lost_root_had_given_back_to_who_took_it() {
    let (device, superblock) = with_extents_given_back(true);
    for order in [[0, 1], [1, 0]] {
        let (mut sim, _) = without_newest_root(device.after_process_end(), &superblock);
        let refused = start_both(&mut sim, &order).map(|shards| shards.len());
        assert!(refused.is_err(), "{refused:?}");
        let device = sim.device.clone();
        let repaired = sim.run_ok(repair(&device, true, |_, _| ())).expect("writable");
        assert_eq!(repaired.journals_cut, 1);
        let report = sim.run_ok(fsck(&device, FsckOptions { read_data: true }, |_, _| ()));
        assert_eq!(report.expect("ours").faults, []);
        check_others(&mut sim, order);
    }
}

/// ROLLBACK-3: extents in use are not given up, whichever shard claims them.
///
/// Method: the journal is damaged as well, before what emptied the extents. A repair would go on
/// without that.
#[test]
fn a_shard_that_goes_back_gives_up_nothing_that_is_in_use() {
    let (device, superblock) = with_extents_given_back(true);
    for order in [[0, 1], [1, 0]] {
        let (mut sim, _) = without_newest_root(device.after_process_end(), &superblock);
        let older = sim.device.block(roots(&sim, &superblock)[0][0]);
        let older = layout::Root::decode(&older).expect("whole");
        sim.device.flip(older.journal.start.plus(older.replay.position.into()), 100);
        let device = sim.device.clone();
        let refused = sim.run_ok(repair(&device, true, |_, _| ()));
        assert!(matches!(refused, Err(OpenError::DoubleOwner { .. })), "{refused:?}");
        let refused = start_both(&mut sim, &order).map(|shards| shards.len());
        assert!(refused.is_err(), "{refused:?}");
    }
}
