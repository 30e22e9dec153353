//! Reading ahead of sequential readers: its effect, and that it has no other visible one.

use std::collections::BTreeSet;

use io_traits::Buffer;
use units::{BLOCK_SIZE, Lba};
use volume::Volume;

use crate::common::{Sim, TestDevice, data, fresh, range, tags};

const DEVICE_BLOCKS: u64 = 64 << 8;
const BLOCKS: u64 = 1024;
/// Blocks of a request.
const LARGE: u64 = 8;
/// Requests in order before anything else happens.
const READ: u64 = 40;
/// The block that is asked for next.
const NEXT: u64 = READ * LARGE;

/// The tag of a block: its number, reduced to a byte.
fn tag(lba: u64) -> u8 {
    (lba % 251) as u8 + 1
}

/// A volume on a drive that was read in order up to [`NEXT`], and all that is on its way has arrived.
fn read_in_order() -> (Sim, Volume<TestDevice>) {
    read_in_order_from(&TestDevice::new(DEVICE_BLOCKS, false))
}

/// The same on any device.
fn read_in_order_from(device: &TestDevice) -> (Sim, Volume<TestDevice>) {
    let (mut sim, volume) = fresh(device, None, BLOCKS);
    sim.run_ok(async {
        for lba in 0..BLOCKS {
            volume.write(Lba(lba), data(tag(lba), 1), None).await.expect("room");
        }
        for request in 0..READ {
            let found = tags(&volume, request * LARGE, LARGE).await;
            assert_eq!(found, (request * LARGE..).take(8).map(tag).collect::<Vec<_>>());
        }
    });
    sim.settle();
    (sim, volume)
}

/// No read is completed from now on.
fn hold_reads(sim: &Sim) {
    sim.device.faults(|faults| faults.held_reads = (0..DEVICE_BLOCKS).collect::<BTreeSet<u64>>());
}

#[test]
fn who_reads_in_order_need_not_wait_for_the_drive() {
    let (mut sim, volume) = read_in_order();
    hold_reads(&sim);
    let found = sim.run_ok(tags(&volume, NEXT, LARGE));
    assert_eq!(found, (NEXT..).take(8).map(tag).collect::<Vec<_>>());
}

/// Each block is read once, except for data prefetched in vain: a bounded part, and none for reads
/// that are not sequential.
#[test]
fn little_is_read_in_vain() {
    let (mut sim, volume) = read_in_order();
    let before = sim.device.blocks_read();
    sim.run_ok(async {
        for request in READ..BLOCKS / LARGE {
            tags(&volume, request * LARGE, LARGE).await;
        }
    });
    sim.settle();
    let rest = BLOCKS - NEXT;
    let read = sim.device.blocks_read() - before;
    assert!((rest - NEXT / 4..=rest).contains(&read), "{read} blocks were read for {rest}");
    let before = sim.device.blocks_read();
    sim.run_ok(async {
        for request in 0..100 {
            tags(&volume, request * 37 % (BLOCKS / LARGE) * LARGE, LARGE).await;
        }
    });
    sim.settle();
    // Blocks close to a sequential read may belong to it.
    assert!(sim.device.blocks_read() - before <= 110 * LARGE);
}

/// Requests of other lengths than was foreseen, and deallocations just before the reader gets there.
#[test]
fn who_cannot_be_foreseen_costs_a_quarter_at_most() {
    for is_cleared in [false, true] {
        let (mut sim, volume) = read_in_order();
        let before = sim.device.blocks_read();
        let mut at = NEXT;
        sim.run_ok(async {
            while at < BLOCKS - 4 * LARGE {
                let blocks = if is_cleared || at.is_multiple_of(3) { LARGE } else { LARGE + 4 };
                tags(&volume, at, blocks).await;
                at += blocks;
                if is_cleared {
                    volume.unmap(range(at, 1)).await.expect("room");
                }
            }
        });
        sim.settle();
        let (read, needed) = (sim.device.blocks_read() - before, at - NEXT);
        assert!(read <= needed + (NEXT + needed) / 4, "{read} blocks were read for {needed}");
    }
}

/// READ-AHEAD-1.
#[test]
fn what_was_written_or_deallocated_since_is_what_is_read() {
    let (mut sim, volume) = read_in_order();
    let found = sim.run_ok(async {
        volume.write(Lba(NEXT + 1), data(255, 1), None).await.expect("room");
        volume.unmap(range(NEXT + LARGE, 2)).await.expect("room");
        let written = tags(&volume, NEXT, LARGE).await;
        let cleared = tags(&volume, NEXT + LARGE, LARGE).await;
        volume.resize(NEXT + 2 * LARGE + 3).await.expect("room");
        volume.resize(BLOCKS).await.expect("room");
        [written, cleared, tags(&volume, NEXT + 2 * LARGE, LARGE).await]
    });
    let mut expected = [0, 1, 2].map(|n| (NEXT + n * LARGE..).take(8).map(tag).collect::<Vec<_>>());
    expected[0][1] = 255;
    expected[1][..2].fill(0);
    expected[2][3..].fill(0);
    assert_eq!(found, expected);
}

/// A block with the checksum of `block`, and other contents.
fn namesake(block: &[u8; BLOCK_SIZE]) -> [u8; BLOCK_SIZE] {
    let mut other = *block;
    other[0] ^= 1;
    let bit = |n: usize| (BLOCK_SIZE - 4 + n / 8, 1_u8 << (n % 8));
    let plain = checksum::crc32c(&other);
    // What each of the last 32 bits does to the checksum, as a system of equations that is solved by elimination.
    let mut rows: Vec<(u32, u32)> = (0..32)
        .map(|n| {
            let mut flipped = other;
            flipped[bit(n).0] ^= bit(n).1;
            (checksum::crc32c(&flipped) ^ plain, 1 << n)
        })
        .collect();
    let (mut wanted, mut flips) = (checksum::crc32c(block) ^ plain, 0);
    for column in 0..32 {
        let pivot = rows.iter().position(|row| row.0 >> column & 1 == 1).expect("independent");
        let pivot = rows.swap_remove(pivot);
        rows.iter_mut().filter(|row| row.0 >> column & 1 == 1).for_each(|row| {
            *row = (row.0 ^ pivot.0, row.1 ^ pivot.1);
        });
        if wanted >> column & 1 == 1 {
            (wanted, flips) = (wanted ^ pivot.0, flips ^ pivot.1);
        }
    }
    (0..32).filter(|n| flips >> n & 1 == 1).for_each(|n| other[bit(n).0] ^= bit(n).1);
    assert_eq!(checksum::crc32c(&other), checksum::crc32c(block));
    other
}

/// READ-AHEAD-1: place and checksum are what they were, the contents are not.
#[test]
fn an_equal_checksum_is_no_proof() {
    let (mut sim, volume) = read_in_order();
    let first = sim.run_ok(volume.read(range(NEXT, 1))).expect("sound").to_vec();
    let first: [u8; BLOCK_SIZE] = first.try_into().expect("a block");
    let second = namesake(&first);
    let places = sim.device.find(&first);
    sim.run_ok(async {
        for block in [[255; BLOCK_SIZE], second] {
            let data = Buffer::from_bytes(&block).into_slice();
            volume.write(Lba(NEXT), data, None).await.expect("room");
        }
    });
    assert!(places.contains(&sim.device.find(&second)[0]), "the place is not used again");
    let found = sim.run_ok(volume.read(range(NEXT, LARGE))).expect("sound").to_vec();
    assert!(found[..BLOCK_SIZE] == second, "what was there before is read");
}

/// READ-AHEAD-2.
#[test]
fn a_failed_prefetch_fails_no_read() {
    for is_garbled in [false, true] {
        let (mut sim, volume) = fresh(&TestDevice::new(DEVICE_BLOCKS, false), None, BLOCKS);
        sim.run_ok(async {
            for lba in 0..BLOCKS {
                volume.write(Lba(lba), data(tag(lba), 1), None).await.expect("room");
            }
        });
        let place = sim.device.find(&[tag(NEXT + 3); BLOCK_SIZE])[0].0;
        sim.device.faults(|faults| match is_garbled {
            true => drop(faults.garbled_reads.insert(place, 1)),
            false => drop(faults.read_errors.insert(place, 1)),
        });
        let found = sim.run_ok(async {
            for request in 0..READ {
                tags(&volume, request * LARGE, LARGE).await;
            }
            tags(&volume, NEXT, LARGE).await
        });
        assert_eq!(found, (NEXT..).take(8).map(tag).collect::<Vec<_>>());
        assert_eq!(volume.media_errors(), 0);
    }
}

#[test]
fn nothing_is_read_ahead_of_nothing() {
    let (mut sim, volume) = read_in_order();
    for _ in 0..8 {
        assert!(sim.run_ok(volume.read(range(NEXT, 0))).expect("nothing to read").crcs.is_empty());
    }
}

/// A busy drive gets no prefetching reads.
#[test]
fn a_busy_drive_is_not_read_ahead() {
    let (mut sim, volume) = read_in_order();
    sim.run_ok(tags(&volume, NEXT, LARGE));
    sim.settle();
    sim.device.faults(|faults| faults.is_busy = true);
    let before = sim.device.reads();
    sim.run_ok(async {
        for request in READ + 1..READ + 20 {
            tags(&volume, request * LARGE, LARGE).await;
        }
    });
    sim.settle();
    assert!(sim.device.reads() - before < 20, "nothing but what was asked for");
}

/// A device in memory is looked at where it lies, also if that cannot be at times: nothing of it is read ahead.
#[test]
fn a_device_in_memory_is_not_read_ahead() {
    let device = TestDevice::new(DEVICE_BLOCKS, false);
    device.faults(|faults| faults.is_memory = true);
    let (mut sim, volume) = read_in_order_from(&device);
    let before = sim.device.blocks_read();
    sim.run_ok(async {
        for request in READ..READ + 20 {
            tags(&volume, request * LARGE, LARGE).await;
        }
    });
    sim.settle();
    assert_eq!(sim.device.blocks_read() - before, 20 * LARGE);
    hold_reads(&sim);
    let next = volume.clone();
    let told = sim.begin(async move { tags(&next, NEXT + 20 * LARGE, LARGE).await });
    sim.settle();
    assert!(told.borrow().is_none(), "no request asked for it before");
}

/// READ-AHEAD-3.
#[test]
fn prefetched_data_that_is_never_read_is_released() {
    let (mut sim, volume) = read_in_order();
    volume.shard().settle();
    hold_reads(&sim);
    sim.run_ok(tags(&volume, NEXT, LARGE));
    (0..2).for_each(|_| volume.shard().settle());
    sim.device.faults(|faults| faults.held_reads.clear());
    let before = sim.device.reads();
    sim.run_ok(tags(&volume, NEXT + LARGE, LARGE));
    assert!(sim.device.reads() > before);
}
