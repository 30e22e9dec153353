//! Fused Compare and Write, and what becomes of a half whose other half is missing or fails.

mod driver;

use driver::{ALL_DIGESTS, BOTH, Driver, NONE, capsule, h2c_for, io};
use nvme_target::CloseReason;
use nvme_wire::io::BlockCommand;
use nvme_wire::pdu::{CapsuleResp, Digests, PduType};
use nvme_wire::{IoOpcode, Sqe, Status};
use units::{BLOCK_SIZE, Duration};
use zerocopy::FromBytes;

const COMPARE: u16 = 0x10;
const WRITE: u16 = 0x11;

fn half(opcode: IoOpcode, fuse: u8, slba: u64, nlb: u32) -> Sqe {
    let mut sqe = BlockCommand::new(slba, nlb).encode(opcode, 1, nlb * BLOCK_SIZE as u32);
    sqe.flags |= fuse;
    sqe
}

fn compare(slba: u64, nlb: u32) -> Sqe {
    half(IoOpcode::COMPARE, Sqe::FUSE_FIRST, slba, nlb)
}

fn write(slba: u64, nlb: u32) -> Sqe {
    half(IoOpcode::WRITE, Sqe::FUSE_SECOND, slba, nlb)
}

fn blocks(tag: u8, count: usize) -> Vec<u8> {
    vec![tag; count * BLOCK_SIZE]
}

/// Completions since the last call, by command identifier.
fn completions(driver: &mut Driver) -> Vec<(u16, Status)> {
    let replies = driver.replies().into_iter().filter(|reply| reply.pdu == PduType::CapsuleResp);
    let cqes = replies.map(|r| CapsuleResp::read_from_bytes(&r.header).expect("a capsule").cqe);
    let mut all: Vec<_> = cqes.map(|cqe| (cqe.cid.get(), cqe.status().code())).collect();
    all.sort_by_key(|(cid, _)| *cid);
    all
}

/// Sends both halves with their data in the capsules, and returns how they ended.
fn swap(driver: &mut Driver, expected: u8, new: u8, digests: Digests) -> [Status; 2] {
    driver.feed(&capsule(compare(3, 2), COMPARE, &blocks(expected, 2), digests));
    assert_eq!(completions(driver), [], "nothing happens before the second half");
    driver.feed(&capsule(write(3, 2), WRITE, &blocks(new, 2), digests));
    let ended = completions(driver);
    assert_eq!([ended[0].0, ended[1].0], [COMPARE, WRITE]);
    [ended[0].1, ended[1].1]
}

fn stored(driver: &Driver) -> u8 {
    driver.volume.bytes[3 * BLOCK_SIZE]
}

#[test]
fn both_halves_succeed_or_the_compare_fails_and_the_write_is_aborted() {
    for digests in ALL_DIGESTS {
        let mut driver = io(0, digests);
        assert_eq!(swap(&mut driver, 0, 7, digests), [Status::SUCCESS; 2]);
        assert_eq!(stored(&driver), 7);
        let refused = swap(&mut driver, 6, 8, digests);
        assert_eq!(refused, [Status::COMPARE_FAILURE, Status::ABORTED_FAILED_FUSED]);
        assert_eq!(stored(&driver), 7);
        assert_eq!(swap(&mut driver, 7, 8, digests), [Status::SUCCESS; 2]);
        assert_eq!((stored(&driver), driver.connection.in_flight()), (8, 0));
    }
}

/// The data of the halves may come in any order, over R2Ts.
#[test]
fn the_operation_waits_for_the_data_of_both_halves() {
    for second_first in [false, true] {
        let mut driver = io(0, NONE);
        driver.feed(&capsule(compare(3, 8), COMPARE, &[], NONE));
        driver.feed(&capsule(write(3, 8), WRITE, &[], NONE));
        assert_eq!(driver.replies().len(), 2, "two R2Ts");
        // Slots are given out in order, from that of the Connect on, which is free again.
        let of_compare = h2c_for(COMPARE, 0, &blocks(0, 8), 5000, NONE);
        let of_write = h2c_for(WRITE, 1, &blocks(9, 8), 5000, NONE);
        let order = if second_first { [of_write, of_compare] } else { [of_compare, of_write] };
        driver.feed(&order[0]);
        assert_eq!((stored(&driver), driver.connection.in_flight()), (0, 2));
        driver.feed(&order[1]);
        let success = Status::SUCCESS;
        assert_eq!(completions(&mut driver), [(COMPARE, success), (WRITE, success)]);
        assert_eq!(stored(&driver), 9);
    }
}

#[test]
fn a_half_without_its_other_half_is_aborted() {
    let missing = Status::ABORTED_MISSING_FUSED;
    let read = BlockCommand::new(0, 1).encode(IoOpcode::READ, 1, BLOCK_SIZE as u32);
    let mut driver = io(0, NONE);
    driver.feed(&capsule(compare(3, 2), COMPARE, &blocks(0, 2), NONE));
    driver.feed(&capsule(read, 1, &[], NONE));
    assert_eq!(completions(&mut driver), [(1, Status::SUCCESS), (COMPARE, missing)]);
    driver.feed(&capsule(write(3, 2), WRITE, &blocks(1, 2), NONE));
    assert_eq!(completions(&mut driver), [(WRITE, missing)]);
    // A first half behind a first half, the data of the one still on its way.
    driver.feed(&capsule(compare(3, 8), COMPARE, &[], NONE));
    driver.feed(&capsule(compare(3, 2), 2, &blocks(0, 2), NONE));
    driver.feed(&capsule(write(3, 2), WRITE, &blocks(5, 2), NONE));
    assert_eq!(completions(&mut driver), [(2, Status::SUCCESS), (WRITE, Status::SUCCESS)]);
    driver.feed(&h2c_for(COMPARE, 0, &blocks(0, 8), 1 << 15, NONE));
    assert_eq!(completions(&mut driver), [(COMPARE, missing)]);
    assert_eq!((stored(&driver), driver.connection.in_flight()), (5, 0));
}

#[test]
fn a_half_that_is_refused_takes_the_other_one_with_it() {
    let failed = Status::ABORTED_FAILED_FUSED;
    let mut driver = io(0, NONE);
    let mut both = |first: Sqe, second: Sqe| {
        driver.feed(&capsule(first, COMPARE, &blocks(0, 2), NONE));
        driver.feed(&capsule(second, WRITE, &blocks(1, 2), NONE));
        let ended = completions(&mut driver);
        assert_eq!((driver.connection.in_flight(), stored(&driver)), (0, 0));
        [ended[0].1, ended[1].1]
    };
    assert_eq!(both(compare(63, 2), write(63, 2)), [Status::LBA_OUT_OF_RANGE, failed]);
    assert_eq!(both(compare(3, 2), write(63, 2)), [failed, Status::LBA_OUT_OF_RANGE]);
    assert_eq!(both(compare(3, 2), write(4, 2)), [Status::INVALID_FIELD; 2]);
    let wrong = half(IoOpcode::WRITE, Sqe::FUSE_FIRST, 3, 2);
    assert_eq!(both(wrong, write(3, 2)), [Status::INVALID_FIELD, failed]);
    let reserved = half(IoOpcode::WRITE, 3, 3, 2);
    let missing = Status::ABORTED_MISSING_FUSED;
    assert_eq!(both(compare(3, 2), reserved), [missing, Status::INVALID_FIELD]);
    let mut prp = compare(3, 2);
    prp.flags &= 0x3F;
    assert_eq!(both(prp, write(3, 2)), [Status::INVALID_FIELD, failed]);
}

/// Neither half is right if they name different blocks. Method: the data of the first half is asked for, and comes before
/// the second half or behind it; of that no data is asked for.
#[test]
fn halves_that_name_different_blocks_are_both_invalid() {
    let invalid = Status::INVALID_FIELD;
    for (slba, nlb) in [(4, 8), (3, 7), (3, 9)] {
        for data_first in [false, true] {
            let mut driver = io(0, NONE);
            let data = h2c_for(COMPARE, 0, &blocks(0, 8), 1 << 15, NONE);
            driver.feed(&capsule(compare(3, 8), COMPARE, &[], NONE));
            assert_eq!(driver.replies()[0].pdu, PduType::R2t);
            if data_first {
                driver.feed(&data);
            }
            driver.feed(&capsule(write(slba, nlb), WRITE, &[], NONE));
            let mut ended = completions(&mut driver);
            if !data_first {
                assert_eq!(ended, [(WRITE, invalid)], "the R2T is not taken back");
                driver.feed(&data);
                ended.extend(completions(&mut driver));
                ended.sort_by_key(|(cid, _)| *cid);
            }
            assert_eq!(ended, [(COMPARE, invalid), (WRITE, invalid)], "{slba} {nlb}");
            assert_eq!((stored(&driver), driver.connection.in_flight()), (0, 0));
            assert_eq!(swap(&mut driver, 0, 7, NONE), [Status::SUCCESS; 2], "the queue goes on");
        }
    }
}

#[test]
fn a_wrong_data_digest_of_one_half_ends_both() {
    for damaged in [COMPARE, WRITE] {
        let mut driver = io(0, BOTH);
        for (cid, sqe) in [(COMPARE, compare(3, 2)), (WRITE, write(3, 2))] {
            let mut bytes = capsule(sqe, cid, &blocks(0, 2), BOTH);
            if cid == damaged {
                *bytes.last_mut().expect("not empty") ^= 1;
            }
            driver.feed(&bytes);
        }
        let ended = completions(&mut driver);
        let expected = |cid| {
            if cid == damaged {
                Status::TRANSIENT_TRANSPORT_ERROR
            } else {
                Status::ABORTED_FAILED_FUSED
            }
        };
        assert_eq!(ended, [(COMPARE, expected(COMPARE)), (WRITE, expected(WRITE))]);
        assert_eq!(driver.connection.in_flight(), 0);
    }
}

/// A first half holds memory: a host that never sends the second one is cut off.
#[test]
fn a_second_half_that_does_not_come_is_owed() {
    let mut driver = io(0, NONE);
    assert!(!driver.connection.awaits_second_half());
    assert_eq!(swap(&mut driver, 0, 0, NONE), [Status::SUCCESS; 2]);
    assert!(!driver.connection.awaits_second_half(), "both have come");
    driver.feed(&capsule(compare(3, 2), COMPARE, &blocks(0, 2), NONE));
    assert!(driver.connection.awaits_second_half());
    let late = driver.now + Duration::from_secs(31);
    assert_eq!(driver.connection.on_timeout(late), Some(CloseReason::Stalled));
}
