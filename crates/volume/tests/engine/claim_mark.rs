//! The claim mark: the host of the cluster that served a device last.

use crate::common::{Random, Sim, TestDevice, check, fresh, open};
use uuid::Uuid;
use volume::{
    ClaimMark, Superblock, join_cluster, leave_cluster, read_claim_mark, read_superblock,
    write_claim_mark,
};

const DEVICE_BLOCKS: u64 = 64 << 8;
const CLUSTER: Uuid = Uuid::from_u128(0xA);

/// A device of the cluster, with a volume.
fn device() -> Sim {
    let (mut sim, volume) = fresh(&TestDevice::new(DEVICE_BLOCKS, true), None, 1 << 20);
    sim.run_ok(volume.shard().shutdown()).expect("writable");
    let device = sim.device.clone();
    sim.run_ok(join_cluster(&device, CLUSTER)).expect("writable");
    sim.settle();
    sim
}

fn superblock(sim: &mut Sim) -> Superblock {
    let device = sim.device.clone();
    sim.run_ok(read_superblock(&device)).expect("whole")
}

fn mark(sim: &mut Sim, number: u64, host: u128) -> ClaimMark {
    let device = superblock(sim).uuid;
    let (host, host_name) = (Uuid::from_u128(host), format!("flash-{host}"));
    ClaimMark { device, cluster: CLUSTER, number, host, host_name }
}

fn read(sim: &mut Sim) -> Option<ClaimMark> {
    let (device, superblock) = (sim.device.clone(), superblock(sim));
    sim.run_ok(read_claim_mark(&device, &superblock)).expect("readable")
}

/// Marks the device. Returns the mark that is then on it.
fn write(sim: &mut Sim, mark: &ClaimMark) -> Option<ClaimMark> {
    let (device, superblock) = (sim.device.clone(), superblock(sim));
    sim.run_ok(write_claim_mark(&device, &superblock, mark)).expect("writable")
}

/// CLAIM-MARK-1 and CLAIM-MARK-3: a mark goes up only, and says nothing of another cluster. What it lies beside is untouched.
#[test]
fn a_mark_goes_up_only_and_ends_with_the_cluster() {
    let sim = &mut device();
    assert_eq!(read(sim), None, "zeroes, as in every image before there were marks");
    let [first, second, other] =
        [(5, 1), (6, 2), (6, 3)].map(|(number, host)| mark(sim, number, host));
    assert_eq!(write(sim, &first), Some(first.clone()));
    assert_eq!(write(sim, &second), Some(second.clone()));
    assert_eq!(write(sim, &first), Some(second.clone()), "an older one");
    assert_eq!(write(sim, &other), Some(second.clone()), "another of the same number");
    assert_eq!(write(sim, &second), Some(second.clone()), "its own");
    let at = sim.device.clone();
    sim.run_ok(leave_cluster(&at)).expect("writable");
    assert_eq!(read(sim), None, "of no cluster");
    sim.run_ok(join_cluster(&at, Uuid::from_u128(0xB))).expect("writable");
    assert_eq!(read(sim), None, "of another cluster");
    let shard = open(sim);
    check(sim, &shard);
}

/// CLAIM-MARK-2: whenever the power goes, the mark is the one before or the new one, and what is done is durable.
///
/// Method: cut the power behind each write and flush of a second mark. Of what was not flushed each sector survives or not by a
/// coin from the seed.
#[test]
fn a_power_cut_leaves_one_of_two_marks() {
    for (cut, seed) in (0..6).flat_map(|cut| (0..20).map(move |seed| (cut, seed))) {
        let mut sim = device();
        let [first, second] = [(5, 1), (6, 2)].map(|(number, host)| mark(&mut sim, number, host));
        write(&mut sim, &first);
        let (at, known) = (sim.device.clone(), superblock(&mut sim));
        sim.crash_at = Some(at.completed() + cut);
        let done = sim.run(write_claim_mark(&at, &known, &second)).is_ok();
        let mut sim = Sim::new(sim.device.after_crash(&mut Random(seed)), seed);
        let left = read(&mut sim);
        assert!(
            left.as_ref() == Some(&second) || left.as_ref() == Some(&first),
            "cut {cut} seed {seed}: {left:?}"
        );
        assert!(!done || left == Some(second), "cut {cut} seed {seed}: what is done is durable");
    }
}

/// CLAIM-MARK-2: one copy is enough, to be read and to be written; with none the device is not marked, and says so.
#[test]
fn one_copy_of_a_mark_is_enough() {
    for kept in [0, 1] {
        let sim = &mut device();
        let [first, second] = [(5, 1), (6, 2)].map(|(number, host)| mark(sim, number, host));
        write(sim, &first);
        let places = superblock(sim).claim_mark_places();
        sim.device.flip(places[1 - kept], 41);
        assert_eq!(read(sim), Some(first));
        let lost = places[1 - kept].0;
        sim.device.faults(|faults| faults.write_errors = [(lost, u32::MAX)].into());
        assert_eq!(write(sim, &second), Some(second.clone()), "copy {kept}");
        sim.device.faults(|faults| {
            faults.write_errors = places.map(|place| (place.0, u32::MAX)).into();
        });
        let (third, at, known) = (mark(sim, 7, 1), sim.device.clone(), superblock(sim));
        assert!(sim.run_ok(write_claim_mark(&at, &known, &third)).is_err());
        assert_eq!(read(sim), Some(second));
    }
}
