//! One whole superblock is enough, and no more than that is made of it.

use layout::SUPERBLOCK_MAGIC;
use units::{BLOCK_SIZE, Lba, Pba};
use uuid::Uuid;
use volume::{OpenError, Probe, Structure, Superblock, probe, read_superblock};

use crate::common::{Random, Sim, TestDevice, check, data, fresh, open, tags};
use crate::scrub::scrub;

const DEVICE_BLOCKS: u64 = 64 << 8;
const PLACES: [Pba; 2] = Superblock::places(DEVICE_BLOCKS);

/// A device that was used and shut down, and its superblock.
fn used() -> (Sim, Superblock) {
    let (mut sim, volume) = fresh(&TestDevice::new(DEVICE_BLOCKS, true), None, 1 << 20);
    sim.run_ok(volume.write(Lba(0), data(1, 4), None)).expect("room");
    sim.run_ok(volume.shard().shutdown()).expect("writable");
    let superblock = *volume.shard().superblock();
    (Sim::new(sim.device.after_crash(&mut Random(1)), 1), superblock)
}

fn probed(sim: &mut Sim) -> Probe {
    let device = sim.device.clone();
    sim.run_ok(probe(&device)).expect("readable")
}

fn superblock_of(sim: &mut Sim) -> Result<Superblock, OpenError> {
    let device = sim.device.clone();
    sim.run_ok(read_superblock(&device))
}

fn encoded(superblock: &Superblock) -> [u8; BLOCK_SIZE] {
    let mut block = [0; BLOCK_SIZE];
    superblock.encode(&mut block);
    block
}

fn with(bytes: &[u8], at: usize, mut block: [u8; BLOCK_SIZE]) -> [u8; BLOCK_SIZE] {
    block[at..at + bytes.len()].copy_from_slice(bytes);
    block
}

/// Method: damage one superblock in each way, look, open, scrub, and look at what lies there then.
#[test]
fn a_device_is_served_from_either_superblock_and_the_other_is_rewritten() {
    let (_, superblock) = used();
    let whole = encoded(&superblock);
    let flipped = |byte: usize| with(&[whole[byte] ^ 4], byte, whole);
    let of_tenant = [7; BLOCK_SIZE];
    let ways = [flipped(0), flipped(3), flipped(9), flipped(20), [0; BLOCK_SIZE], of_tenant];
    let ways: Vec<_> = ways.into_iter().map(Some).chain([None]).collect();
    for (place, way) in
        PLACES.into_iter().flat_map(|place| ways.iter().map(move |way| (place, way)))
    {
        let context = format!("{place} {:?}", way.map(|block| block[..12].to_vec()));
        let (mut sim, superblock) = used();
        let (device, whole) = (sim.device.clone(), encoded(&superblock));
        match way {
            Some(block) => device.put(place, *block),
            None => device.faults(|faults| {
                faults.read_errors.insert(place.0, u32::MAX);
            }),
        }
        assert_eq!(probed(&mut sim), Probe::Farflash(superblock), "{context}");
        let shard = open(&mut sim);
        let told: Vec<_> = shard.take_findings().iter().map(|it| (it.pba, it.structure)).collect();
        assert_eq!(told, [(place, Structure::Superblock)], "{context}");
        assert_eq!(shard.media_errors(), 1, "{context}");
        let volume = shard.volume(Uuid::from_u128(1)).expect("there");
        assert_eq!(sim.run_ok(tags(&volume, 0, 5)), [1, 1, 1, 1, 0], "{context}");

        let found = sim.run_ok(scrub(&shard)).0;
        assert_eq!((found.len(), found[0].pba), (1, place), "{context}");
        assert_eq!(shard.media_errors(), 1, "{context}: the same place");
        sim.device.faults(|faults| faults.read_errors.clear());
        assert_eq!(sim.run_ok(scrub(&shard)).0, [], "{context}");
        // It is durable.
        let survivor = sim.device.after_crash(&mut Random(2));
        assert!(survivor.block(place) == whole, "{context}");
        check(&mut sim, &shard);
    }
}

/// Method: fail the reads of each block that is looked at first, one at a time.
#[test]
fn no_single_block_that_cannot_be_read_hides_a_device() {
    for pba in (0..40).chain([DEVICE_BLOCKS - 1]) {
        let (mut sim, superblock) = used();
        sim.device.faults(|faults| {
            faults.read_errors.insert(pba, u32::MAX);
        });
        assert_eq!(probed(&mut sim), Probe::Farflash(superblock), "{pba}");
        assert_eq!(superblock_of(&mut sim), Ok(superblock), "{pba}");
        open(&mut sim);
    }
    let (mut sim, _) = used();
    sim.device.faults(|faults| faults.read_errors.extend(PLACES.map(|pba| (pba.0, u32::MAX))));
    let device = sim.device.clone();
    assert!(sim.run_ok(probe(&device)).is_err(), "both: it may come back");
    assert!(matches!(superblock_of(&mut sim), Err(OpenError::Device(_))));
}

/// A device with a foreign start is not ours because of our remains at its end, nor is it written
/// to.
#[test]
fn a_start_that_is_someone_elses_is_not_served_and_not_mended() {
    let (_, superblock) = used();
    let (zeroes, whole) = ([0; BLOCK_SIZE], encoded(&superblock));
    let starts = [
        ("XFS file system", with(b"XFSB", 0, zeroes)),
        ("ext2, ext3 or ext4 file system", with(b"\x53\xEF", 1080, zeroes)),
        // A partitioning leaves what is before its table.
        ("MBR partition table", with(b"\x55\xAA", 510, whole)),
    ];
    for (name, block) in starts {
        let (mut sim, superblock) = used();
        let shard = open(&mut sim);
        sim.device.put(Pba(0), block);
        assert_eq!(probed(&mut sim), Probe::Overwritten { by: name, superblock });
        assert_eq!(sim.run_ok(scrub(&shard)).0.len(), 1, "{name}");
        assert!(sim.device.block(Pba(0)) == block, "{name} stays");
    }
}

/// Unknown data counts as damage where it is all that differs, and as someone's where the roots behind it are gone, too.
#[test]
fn unknown_data_at_the_start_is_damage_only_if_what_follows_is_ours() {
    for (blocks, is_ours) in [(1, true), (2, false), (256, false)] {
        let (mut sim, superblock) = used();
        (0..blocks).for_each(|pba| sim.device.put(Pba(pba), [0xA5; BLOCK_SIZE]));
        let expected = match is_ours {
            true => Probe::Farflash(superblock),
            false => Probe::Overwritten { by: "unknown data", superblock },
        };
        assert_eq!(probed(&mut sim), expected, "{blocks}");
    }
}

/// Method: put a whole superblock of another size at the end, and anything at the start.
#[test]
fn what_a_format_of_another_size_left_at_the_end_does_not_count() {
    for blocks in [DEVICE_BLOCKS * 2, DEVICE_BLOCKS + 1] {
        for start in
            [[0; BLOCK_SIZE], [0xA5; BLOCK_SIZE], with(&SUPERBLOCK_MAGIC, 0, [9; BLOCK_SIZE])]
        {
            let mut sim = Sim::new(TestDevice::new(DEVICE_BLOCKS, true), 1);
            let other = Superblock::for_device(Uuid::from_u128(9), blocks).expect("in bounds");
            sim.device.put(Pba(0), start);
            sim.device.put(PLACES[1], encoded(&other));
            let found = probed(&mut sim);
            assert!(
                matches!(found, Probe::Foreign(_) | Probe::Traces { .. } | Probe::Damaged(_)),
                "{found:?}"
            );
            assert!(matches!(superblock_of(&mut sim), Err(OpenError::Superblock(_))));
        }
    }
}

/// A device that has grown has its last superblock inside; one that has shrunk has none.
#[test]
fn a_device_of_another_size_is_known_by_its_first_superblock() {
    let ours = Superblock::for_device(Uuid::from_u128(9), DEVICE_BLOCKS).expect("in bounds");
    let member = Superblock { cluster: Some(Uuid::from_u128(5)), ..ours };
    let mut grown = Sim::new(TestDevice::new(DEVICE_BLOCKS * 2, true), 1);
    grown.device.put(Pba(0), encoded(&ours));
    grown.device.put(PLACES[1], encoded(&member));
    assert_eq!(probed(&mut grown), Probe::Farflash(member));
    assert_eq!(superblock_of(&mut grown), Ok(member), "both tell the same");
    let mut shrunk = Sim::new(TestDevice::new(DEVICE_BLOCKS - 1, true), 1);
    shrunk.device.put(Pba(0), encoded(&ours));
    assert_eq!(probed(&mut shrunk), Probe::Farflash(ours));
    let truncated = OpenError::Truncated { formatted: DEVICE_BLOCKS, found: DEVICE_BLOCKS - 1 };
    assert_eq!(superblock_of(&mut shrunk), Err(truncated));
}

/// A first superblock of a later program, or with what this one does not know, is not passed over for an older last one.
#[test]
fn a_first_superblock_that_is_not_understood_counts() {
    let (mut sim, superblock) = used();
    let seal = |mut block: [u8; BLOCK_SIZE]| {
        let crc = checksum::crc32c(&block[12..]);
        block[8..12].copy_from_slice(&crc.to_le_bytes());
        block
    };
    let shard = open(&mut sim);
    let later = seal(with(&[2], 12, encoded(&superblock)));
    let unknown = seal(with(&[1], 50, encoded(&superblock)));
    for (block, expected) in [(later, "OtherVersion(2)"), (unknown, "Damaged(Unknown(")] {
        sim.device.put(Pba(0), block);
        let found = format!("{:?}", probed(&mut sim));
        assert!(found.starts_with(expected), "{found}");
        assert!(matches!(superblock_of(&mut sim), Err(OpenError::Superblock(_))));
        assert_eq!(sim.run_ok(scrub(&shard)).0.len(), 1);
        assert!(sim.device.block(Pba(0)) == block, "it stays");
    }
}

/// CLUSTER-2: a cluster that only one copy names is not lost by a read that goes wrong, nor by a rewritten
/// copy.
#[test]
fn the_cluster_that_one_copy_names_is_never_taken_back() {
    let (mut sim, superblock) = used();
    let member = Superblock { cluster: Some(Uuid::from_u128(5)), ..superblock };
    let shard = open(&mut sim);
    for (place, other) in [(PLACES[0], PLACES[1]), (PLACES[1], PLACES[0])] {
        sim.device.put(place, encoded(&member));
        sim.device.put(other, encoded(&superblock));
        sim.device.faults(|faults| {
            faults.garbled_reads.insert(place.0, 2);
        });
        assert_eq!(superblock_of(&mut sim), Ok(member), "{place}");
        // The server that scrubs began before the device was a cluster's.
        sim.device.flip(other, 20);
        sim.run_ok(scrub(&shard));
        assert!(sim.device.block(other) == encoded(&member), "{place}");
    }
}

/// A foreign program that starts to use a device that was formatted and never served writes where
/// no root can tell the owner.
#[test]
fn an_overwritten_start_is_not_ours_without_roots_that_say_so() {
    let (mut sim, superblock) = used();
    let device = sim.device.clone();
    for parity in [0, 1] {
        let roots =
            (0..superblock.shard_slots).flat_map(|slot| superblock.root_places(slot, parity));
        roots.for_each(|place| device.put(place, [0; BLOCK_SIZE]));
    }
    device.put(Pba(0), [7; BLOCK_SIZE]);
    let taken = probed(&mut sim);
    assert!(
        matches!(taken, Probe::Overwritten { superblock: it, .. } if it == superblock),
        "{taken:?}"
    );
    device.put(Pba(0), [0; BLOCK_SIZE]);
    assert_eq!(probed(&mut sim), Probe::Farflash(superblock), "no program has");
}
