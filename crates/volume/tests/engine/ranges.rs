//! Several ranges deallocated as one.

use crate::common::{Random, Sim, TestDevice, data, fill, fresh, open, range, tags};
use units::{Lba, LbaRange};
use uuid::Uuid;
use volume::VolumeError;

fn ranges() -> Vec<LbaRange> {
    (0..40).map(|n| range((39 - n) * 25, 7)).collect()
}

/// Method: cut the power behind each completion while 40 ranges are deallocated. They are all there or
/// all gone, and gone if that was acknowledged.
#[test]
fn a_power_cut_deallocates_all_ranges_or_none() {
    let mut outcomes = [0, 0];
    for volatile in [false, true] {
        for cut in 0..12 {
            let device = TestDevice::new(1 << 14, volatile);
            let (mut sim, volume) = fresh(&device, None, 2000);
            for n in 0..4 {
                sim.run_ok(volume.write(Lba(n * 250), data(1, 250), None)).expect("room");
            }
            sim.settle();
            sim.crash_at = Some(sim.device.completed() + cut);
            let acknowledged =
                sim.run(volume.unmap_together(&ranges())).is_ok_and(|done| done == Ok(true));
            let survivor = sim.device.after_crash(&mut Random(cut));
            sim = Sim::new(survivor, cut);
            let volume = open(&mut sim).volume(Uuid::from_u128(1)).expect("durable");
            let found = sim.run_ok(tags(&volume, 0, 1000));
            let gone = found[0] == 0;
            assert!(gone || !acknowledged, "cut {cut}");
            for (lba, tag) in (0_u64..).zip(found) {
                assert_eq!(tag == 0, gone && lba % 25 < 7, "cut {cut} block {lba}");
            }
            outcomes[usize::from(gone)] += 1;
            crate::common::check(&mut sim, volume.shard());
        }
    }
    assert!(outcomes[0] > 0 && outcomes[1] > 0, "{outcomes:?}");
}

/// 256 blocks, the atomic size of a write: ranges that overlap and ranges that touch.
fn overlapping_ranges() -> Vec<LbaRange> {
    (0..64)
        .flat_map(|n| [range(n * 100 + 1, 2), range(n * 100, 2), range(n * 100 + 3, 1)])
        .collect()
}

/// The same on a device that is full, with ranges that overlap: they wait for space for what they change in
/// the map.
#[test]
fn a_power_cut_on_a_full_device_deallocates_all_ranges_or_none() {
    let (mut sim, volume) = fresh(&TestDevice::new(1 << 14, false), None, 1 << 14);
    let filled = fill(&mut sim, &volume);
    assert!(filled > 6400);
    let mut outcomes = [0, 0];
    for cut in 0..16 {
        let survivor = sim.device.after_crash(&mut Random(cut));
        let mut sim = Sim::new(survivor, cut);
        let volume = open(&mut sim).volume(Uuid::from_u128(1)).expect("durable");
        sim.settle();
        let beyond = sim.run_ok(volume.write(Lba(filled), data(1, 256), None));
        assert_eq!(beyond, Err(VolumeError::PoolFull), "the device is full");
        sim.crash_at = Some(sim.device.completed() + cut);
        let done = sim.run(volume.unmap_together(&overlapping_ranges()));
        assert!(done.as_ref().is_err() || matches!(done, Ok(Ok(true))), "cut {cut}: {done:?}");
        let survivor = sim.device.after_crash(&mut Random(cut));
        let mut sim = Sim::new(survivor, cut);
        let volume = open(&mut sim).volume(Uuid::from_u128(1)).expect("durable");
        let found: Vec<u8> =
            (0..6400).step_by(256).flat_map(|at| sim.run_ok(tags(&volume, at, 256))).collect();
        let gone = found[0] == 0;
        assert!(gone || done.is_err(), "cut {cut}");
        for (lba, tag) in (0_u64..).zip(found) {
            assert_eq!(tag == 0, gone && lba % 100 < 4, "cut {cut} block {lba}");
        }
        outcomes[usize::from(gone)] += 1;
        crate::common::check(&mut sim, volume.shard());
    }
    assert!(outcomes[0] > 0 && outcomes[1] > 0, "{outcomes:?}");
}

/// Many at once, so that they wait for each other's space.
#[test]
fn deallocations_of_many_ranges_on_a_full_device_all_go_through() {
    let (mut sim, volume) = fresh(&TestDevice::new(1 << 14, false), None, 1 << 14);
    sim.run_ok(async {
        let mut filled = 0;
        while volume.write(Lba(filled), data(1, 8), None).await.is_ok() {
            filled += 8;
        }
    });
    let writing = volume.clone();
    crate::common::run_many(&mut sim, 40, 10, move |n| {
        let volume = writing.clone();
        async move {
            let ranges: Vec<_> = (0..100).map(|at| range(at * 120 + n * 3, 2)).collect();
            assert_eq!(volume.unmap_together(&ranges).await, Ok(true), "number {n}");
        }
    });
    let found = sim.run_ok(tags(&volume, 0, 120));
    assert!((0..).zip(found).all(|(lba, tag)| (tag == 0) == (lba % 3 < 2)));
    crate::common::check(&mut sim, volume.shard());
}

#[test]
fn ranges_that_cannot_go_together_are_left_to_go_one_by_one() {
    let (mut sim, volume) = fresh(&TestDevice::new(1 << 14, false), None, 1 << 20);
    sim.run_ok(async {
        volume.write(Lba(0), data(1, 2000), None).await.expect("room");
        assert_eq!(volume.unmap_together(&[]).await, Ok(true));
        assert_eq!(volume.unmap_together(&[range(3, 0), range(5, 1)]).await, Ok(true));
        let refused = [range(1990, 500_000), range(1000, 10)];
        assert_eq!(volume.unmap_together(&refused).await, Ok(false));
        let many: Vec<_> = (0..257).map(|n| range(n * 2, 1)).collect();
        assert_eq!(volume.unmap_together(&many).await, Ok(false));
        let beyond = volume.unmap_together(&[range(100, 1), range((1 << 20) - 1, 2)]).await;
        assert!(matches!(beyond, Err(VolumeError::OutOfRange { .. })));
        let found = tags(&volume, 0, 2000).await;
        assert!((0..).zip(found).all(|(lba, tag)| (tag == 0) == (lba == 5)));
        // Those that touch are one, however long that is.
        let touching = [range(1900, 500_000), range(700, 1000), range(1690, 210), range(750, 2)];
        assert_eq!(volume.unmap_together(&touching).await, Ok(true));
        let found = tags(&volume, 0, 2000).await;
        assert!((0..).zip(found).all(|(lba, tag)| (tag == 0) == (lba == 5 || lba >= 700)));
    });
    crate::common::check(&mut sim, volume.shard());
}
