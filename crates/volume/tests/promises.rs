//! What a volume is promised is as durable as the volume.

mod common;

use common::{Sim, TestDevice, check, fresh, open};
use units::Slo;
use uuid::Uuid;
use volume::VolumeSpec;

/// A promise given with the volume, one changed later, and the default, each behind a power cut at
/// once and behind a checkpoint.
#[test]
fn a_promise_survives_a_power_cut_and_a_checkpoint() {
    let rate = Slo::Rate { reads_per_second: 10, writes_per_second: 1 << 40 };
    let share = Slo::Share { weight: 7 };
    for checkpointed in [false, true] {
        let device = TestDevice::new(1 << 16, true);
        let (mut sim, volume) = fresh(&device, None, 1 << 10);
        let shard = volume.shard().clone();
        let spec = VolumeSpec { uuid: Uuid::from_u128(2), name: "w".into(), blocks: 9 };
        let other = sim.run_ok(shard.create_volume_with_slo(spec, share)).expect("room");
        assert_eq!((volume.slo(), other.slo()), (Slo::default(), share));
        sim.run_ok(volume.set_slo(rate)).expect("writable");
        if checkpointed {
            sim.run_ok(shard.shutdown()).expect("writable");
        }
        sim = Sim::new(sim.device.after_crash(&mut sim.random), 6);
        let shard = open(&mut sim);
        let slo = |number| shard.volume(Uuid::from_u128(number)).expect("durable").slo();
        assert_eq!((slo(1), slo(2)), (rate, share));
        check(&mut sim, &shard);
    }
}
