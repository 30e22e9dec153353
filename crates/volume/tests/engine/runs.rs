//! Counts the pieces of data written in order: each is a device request of a sequential reader.
//! Also checks that overwritten data stays in place: a block never written before costs a sparse
//! file room.

use crate::common::{Sim, TestDevice, check, crash, data, fresh, range, run_many};
use io_traits::Buffer;
use units::{BLOCK_SIZE, Lba};
use uuid::Uuid;
use volume::{Volume, VolumeError, VolumeSpec};

/// Blocks of a request: 128 KiB.
const LARGE: u64 = 32;

fn write_in_order(sim: &mut Sim, volume: &Volume<TestDevice>, blocks: u64, large: u64) {
    let volume = volume.clone();
    run_many(sim, blocks / large, 8, move |n| {
        let volume = volume.clone();
        async move { volume.write(Lba(n * large), data(1, large), None).await.expect("room") }
    });
}

/// Reads in order; returns the device's reads for every hundred requests.
fn pieces_percent(sim: &mut Sim, volume: &Volume<TestDevice>, blocks: u64) -> u64 {
    let before = sim.device.reads();
    sim.run_ok(async {
        for request in 0..blocks / LARGE {
            volume.read(range(request * LARGE, LARGE)).await.expect("sound");
        }
    });
    (sim.device.reads() - before) * 100 / (blocks / LARGE)
}

/// Overwrites `small` blocks anywhere, so many in all, so that what is freed is so many blocks anywhere.
fn age(sim: &mut Sim, volume: &Volume<TestDevice>, blocks: u64, written: u64, small: u64) {
    let writing = volume.clone();
    run_many(sim, written / small, 32, move |n| {
        let volume = writing.clone();
        async move {
            let place = n.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
            let lba = Lba(place % (blocks / small) * small);
            volume.write(lba, data(2, small), None).await.expect("room");
        }
    });
    sim.run_ok(volume.shard().checkpoint()).expect("writable");
}

fn another(
    sim: &mut Sim,
    volume: &Volume<TestDevice>,
    number: u128,
    blocks: u64,
) -> Volume<TestDevice> {
    let spec = VolumeSpec { uuid: Uuid::from_u128(number), name: number.to_string(), blocks };
    sim.run_ok(volume.shard().create_volume(spec)).expect("room")
}

#[test]
fn large_writes_in_order_lie_together_on_a_new_device() {
    for large in [LARGE, 256] {
        let (mut sim, volume) = fresh(&TestDevice::new(1 << 15, false), Some(4096), 1 << 14);
        write_in_order(&mut sim, &volume, 1 << 14, large);
        assert_eq!(pieces_percent(&mut sim, &volume, 1 << 14), 100, "pieces of 100 requests");
        check(&mut sim, volume.shard());
    }
}

/// Free space in single blocks is left to requests for single blocks.
#[test]
fn large_writes_in_order_lie_together_on_a_device_that_aged() {
    let blocks = 3 << 13;
    let (mut sim, volume) = fresh(&TestDevice::new(1 << 16, false), Some(2048), blocks);
    write_in_order(&mut sim, &volume, blocks, LARGE);
    age(&mut sim, &volume, blocks, blocks, 1);
    let aged = pieces_percent(&mut sim, &volume, blocks);
    for round in 0..4 {
        let new = another(&mut sim, &volume, 10 + round, 1 << 13);
        write_in_order(&mut sim, &new, 1 << 13, LARGE);
        let pieces = pieces_percent(&mut sim, &new, 1 << 13);
        eprintln!("pieces of 100 requests: {pieces}, aged {aged}");
        assert!(pieces < 105, "round {round}: {pieces} pieces of 100 requests");
        age(&mut sim, &volume, blocks, blocks / 2, 1);
        sim.run_ok(volume.shard().delete_volume(new.uuid())).expect("there");
        sim.settle();
        sim.run_ok(volume.shard().checkpoint()).expect("writable");
    }
    check(&mut sim, volume.shard());
    let volume = crash(&mut sim);
    check(&mut sim, volume.shard());
}

/// ALLOC-5. On a device with room, whatever else is written there. A new volume finds room of its own.
#[test]
fn what_is_overwritten_at_random_stays_together() {
    let blocks = 3 << 13;
    for small in [1, 4] {
        let (mut sim, volume) = fresh(&TestDevice::new(1 << 17, false), Some(2048), blocks);
        write_in_order(&mut sim, &volume, blocks, LARGE);
        for round in 0..4 {
            age(&mut sim, &volume, blocks, blocks, small);
            let pieces = pieces_percent(&mut sim, &volume, blocks);
            let new = another(&mut sim, &volume, 10 + round, 1 << 13);
            write_in_order(&mut sim, &new, 1 << 13, 1);
            let new_pieces = pieces_percent(&mut sim, &new, 1 << 13);
            eprintln!(
                "writes of {small}: {pieces} pieces of 100 requests, {new_pieces} of another"
            );
            assert!(pieces < 300, "{pieces} pieces of 100 requests");
            assert!(new_pieces < 200, "{new_pieces} pieces of 100 requests");
        }
        check(&mut sim, volume.shard());
    }
}

/// SPAN-3.
#[test]
fn what_cannot_be_read_between_the_blocks_of_a_read_does_no_harm() {
    let (mut sim, volume) = fresh(&TestDevice::new(1 << 14, false), Some(2048), 64);
    let blocks: Vec<u8> = (0..64).flat_map(|tag| [tag; BLOCK_SIZE]).collect();
    let blocks = Buffer::from_bytes(&blocks).into_slice();
    sim.run_ok(volume.write(Lba(0), blocks, None)).expect("room");
    sim.run_ok(volume.write(Lba(5), data(200, 1), None)).expect("room");
    let device = sim.device.clone();
    let mut read = |lba, blocks| {
        let before = device.reads();
        let read = sim.run_ok(volume.read(range(lba, blocks)));
        (read.map(|data| data.to_vec()), device.reads() - before)
    };
    let (whole, requests) = read(0, 32);
    let whole = whole.expect("sound");
    let tags: Vec<u8> = whole.chunks(BLOCK_SIZE).map(|block| block[0]).collect();
    assert_eq!(tags, (0..32).map(|n| if n == 5 { 200 } else { n }).collect::<Vec<_>>());
    assert_eq!(requests, 2, "those around the block that was overwritten together, and that one");
    let fail = |tag| {
        let pba = device.find(data(tag, 1).as_bytes())[0];
        device.faults(|faults| assert_eq!(faults.read_errors.insert(pba.0, u32::MAX), None));
    };
    fail(5);
    assert_eq!(read(0, 32), (Ok(whole), 2 + 2), "the two runs once more, each alone");
    fail(9);
    assert!(matches!(read(0, 32).0, Err(VolumeError::Device(_))));
    assert!(read(0, 9).0.is_ok() && read(10, 22).0.is_ok());
}

/// ALLOC-4. Checkpoints take their share of the device, too, and no more with time.
#[test]
fn overwrites_of_single_blocks_stay_on_blocks_that_the_device_has() {
    let blocks = 2000;
    // What large requests filled is left to them, and taken for that only once.
    for (written_by, filled) in [(1, blocks), (40, 2 * blocks)] {
        let (mut sim, volume) = fresh(&TestDevice::new(1 << 17, false), Some(4096), blocks);
        let superblock = *volume.shard().superblock();
        write_in_order(&mut sim, &volume, blocks, written_by);
        age(&mut sim, &volume, blocks, 3 * blocks, 1);
        let before = sim.device.places_written(&superblock);
        assert!(before < filled + 600, "{before} blocks for {filled}");
        for _ in 0..4 {
            age(&mut sim, &volume, blocks, 2 * blocks, 1);
        }
        let more = sim.device.places_written(&superblock) - before;
        assert!(more < 100, "{} overwrites went to {more} more blocks", 8 * blocks);
        check(&mut sim, volume.shard());
    }
}
