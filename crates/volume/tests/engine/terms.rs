//! A volume's terms, its service level and access list, are as durable as the volume.

use std::collections::BTreeSet;

use crate::common::{Random, Sim, TestDevice, check, data, fresh, open, tags};
use units::{Lba, Slo};
use uuid::Uuid;
use volume::{ACCESS_BYTES_MAX, Terms, Volume, VolumeError, VolumeSpec};

/// Terms given with the volume, one changed later, and the default, each behind a power cut at
/// once and behind a checkpoint.
#[test]
fn terms_survive_a_power_cut_and_a_checkpoint() {
    let rate = Slo::Rate { reads_per_second: 10, writes_per_second: 1 << 40 };
    let share = Slo::Share { weight: 7 };
    for checkpointed in [false, true] {
        let device = TestDevice::new(1 << 16, true);
        let (mut sim, volume) = fresh(&device, None, 1 << 10);
        let shard = volume.shard().clone();
        let spec = VolumeSpec { uuid: Uuid::from_u128(2), name: "w".into(), blocks: 9 };
        let terms = Terms { slo: share, access: vec![1; 999], ..Terms::default() };
        let other = sim.run_ok(shard.create_volume_under(spec, terms)).expect("room");
        assert_eq!((volume.slo(), other.slo()), (Slo::default(), share));
        assert_eq!((volume.access().len(), &*other.access()), (0, &[1; 999][..]));
        sim.run_ok(volume.set_slo(rate)).expect("writable");
        sim.run_ok(volume.set_access(&[2; ACCESS_BYTES_MAX])).expect("writable");
        let long = sim.run_ok(volume.set_access(&[3; ACCESS_BYTES_MAX + 1]));
        assert_eq!(long, Err(VolumeError::Spec));
        if checkpointed {
            sim.run_ok(shard.shutdown()).expect("writable");
        }
        sim = Sim::new(sim.device.after_crash(&mut sim.random), 6);
        let shard = open(&mut sim);
        let volume = |number| shard.volume(Uuid::from_u128(number)).expect("durable");
        assert_eq!((volume(1).slo(), volume(2).slo()), (rate, share));
        assert_eq!(*volume(1).access(), [2; ACCESS_BYTES_MAX]);
        assert_eq!(*volume(2).access(), [1; 999]);
        check(&mut sim, &shard);
    }
}

/// A change of terms that is on its way when the volume is deleted, and reaches the device behind the checkpoint that is
/// without the volume, does not keep the shard from being opened.
///
/// Method: hold both records, let go that of the deletion, and cut the power when all that follows from it is done.
#[test]
fn a_change_of_terms_beside_a_deletion_costs_nothing() {
    for (seed, access) in (0..8).flat_map(|seed| [(seed, false), (seed, true)]) {
        let (mut sim, volume) = fresh(&TestDevice::new(1 << 16, false), None, 1 << 10);
        let shard = volume.shard().clone();
        let superblock = *shard.superblock();
        let (journal, blocks) = (superblock.extent(0).start.0 + 2, superblock.journal_blocks);
        let used = (shard.journal_used() * f64::from(blocks)).round() as u64;
        let ring: BTreeSet<u64> = (journal..journal + u64::from(blocks)).collect();
        sim.device.faults(|faults| faults.held = ring);

        let (uuid, deleting) = (volume.uuid(), shard.clone());
        let deleted = sim.begin(async move { deleting.delete_volume(uuid).await });
        sim.settle();
        let changing = volume.clone();
        let _changed = sim.begin(async move {
            match access {
                true => changing.set_access(&[1]).await,
                false => changing.set_slo(Slo::Share { weight: 7 }).await,
            }
        });
        sim.settle();
        sim.device.faults(|faults| faults.held.retain(|pba| *pba != journal + used));
        sim.settle();
        assert_eq!(deleted.take(), Some(Ok(())));

        sim = Sim::new(sim.device.after_crash(&mut Random(seed)), 6);
        let shard = open(&mut sim);
        assert!(shard.volume(uuid).is_none());
        check(&mut sim, &shard);
    }
}

/// A change that is refused if the volume holds data is decided when the writes before it have ended, not when it is asked for:
/// else it would take away what was acknowledged meanwhile.
#[test]
fn a_write_under_way_counts_as_data_of_the_volume() {
    #[derive(Debug, PartialEq)]
    enum Kept {
        Holds(u64),
        Failed(VolumeError),
    }
    impl From<VolumeError> for Kept {
        fn from(error: VolumeError) -> Self {
            Self::Failed(error)
        }
    }
    fn unused(volume: &Volume<TestDevice>) -> Result<(), Kept> {
        match volume.mapped_blocks() {
            0 => Ok(()),
            blocks => Err(Kept::Holds(blocks)),
        }
    }
    for shrinks in [false, true] {
        let (mut sim, volume) = fresh(&TestDevice::new(1 << 16, false), None, 1 << 10);
        sim.device.faults(|faults| faults.held = (0..1 << 16).collect());
        let writing = volume.clone();
        let written = sim.begin(async move { writing.write(Lba(5), data(1, 3), None).await });
        sim.settle();
        assert_eq!((written.take(), volume.mapped_blocks()), (None, 0), "it is held");
        let (changing, shard) = (volume.clone(), volume.shard().clone());
        let changed = sim.begin(async move {
            match shrinks {
                true => changing.resize_if(1, unused).await.map(drop),
                false => shard.delete_volume_if(changing.uuid(), unused).await,
            }
        });
        sim.settle();
        assert_eq!(changed.take(), None, "the write is not yet decided");
        sim.device.faults(|faults| faults.held.clear());
        sim.settle();
        assert_eq!(written.take(), Some(Ok(())));
        assert_eq!(changed.take(), Some(Err(Kept::Holds(3))), "shrinks {shrinks}");
        assert_eq!(sim.run_ok(tags(&volume, 5, 3)), [1, 1, 1]);
    }
}
