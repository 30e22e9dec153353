//! Several ranges deallocated as one.

use crate::common::{Random, Sim, TestDevice, data, fresh, open, range, tags};
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

#[test]
fn ranges_that_cannot_go_together_are_left_to_go_one_by_one() {
    let (mut sim, volume) = fresh(&TestDevice::new(1 << 14, false), None, 1 << 20);
    sim.run_ok(async {
        volume.write(Lba(0), data(1, 2000), None).await.expect("room");
        assert_eq!(volume.unmap_together(&[]).await, Ok(true));
        assert_eq!(volume.unmap_together(&[range(3, 0), range(5, 1)]).await, Ok(true));
        for refused in [[range(10, 5), range(12, 5)], [range(1990, 500_000), range(1000, 10)]] {
            assert_eq!(volume.unmap_together(&refused).await, Ok(false));
        }
        let beyond = volume.unmap_together(&[range(100, 1), range((1 << 20) - 1, 2)]).await;
        assert!(matches!(beyond, Err(VolumeError::OutOfRange { .. })));
        let found = tags(&volume, 0, 2000).await;
        assert!((0..).zip(found).all(|(lba, tag)| (tag == 0) == (lba == 5)));
    });
    crate::common::check(&mut sim, volume.shard());
}
