//! Malicious or broken hosts: data that was not asked for in that way, digests that do not match in each PDU that
//! has one, the smallest queues, and the extremes of sizes and numbers.

mod driver;

use checksum::crc32c;
use driver::{
    ALL_DIGESTS, BOTH, Driver, NONE, admin, capsule, connect_data, enable, ic_req, io, pdu,
};
use nvme_target::{CloseReason, ControllerKind, Limits};
use nvme_wire::fabrics::{Connect, Property, PropertySize};
use nvme_wire::feature::{Fid, SetFeatures};
use nvme_wire::io::{Abort, BlockCommand};
use nvme_wire::pdu::{Digests, FatalErrorStatus, H2cData, PduError, PduType, R2t, TermReq};
use nvme_wire::property::offset;
use nvme_wire::{AdminOpcode, IoOpcode, Sqe, Status};
use units::{BLOCK_SIZE, Duration, Instant};
use zerocopy::{FromBytes, IntoBytes};

const FIELD: FatalErrorStatus = FatalErrorStatus::INVALID_PDU_HEADER_FIELD;
const SEQUENCE: FatalErrorStatus = FatalErrorStatus::PDU_SEQUENCE_ERROR;
/// Bytes of a write that is too long for a capsule.
const LONG: usize = 8 * BLOCK_SIZE;

fn command(opcode: IoOpcode, slba: u64, nlb: u32) -> Sqe {
    BlockCommand::new(slba, nlb).encode(opcode, 1, nlb * BLOCK_SIZE as u32)
}

/// A queue that asks for the data of two writes, of commands 1 and 2.
fn asking(digests: Digests) -> (Driver, [R2t; 2]) {
    let mut driver = io(0, digests);
    let asks = [1, 2].map(|cid| {
        driver.feed(&capsule(command(IoOpcode::WRITE, 8 * u64::from(cid), 8), cid, &[], digests));
        let replies = driver.replies();
        assert_eq!(replies[0].pdu, PduType::R2t);
        R2t::read_from_bytes(&replies[0].header).expect("24 bytes")
    });
    (driver, asks)
}

/// Data with any identifiers, offset and length.
fn data(ids: (u16, u16), range: (u32, u32), last: bool, digests: Digests) -> Vec<u8> {
    let header = H2cData::new(ids, range, last, digests, 4);
    pdu(header.as_bytes(), &vec![0xD7; range.1 as usize], digests)
}

fn ids(ask: &R2t) -> (u16, u16) {
    (ask.cccid.get(), ask.ttag.get())
}

/// FES and FEI of the TermReq that ended the connection.
fn term_req(driver: &mut Driver) -> (FatalErrorStatus, u32) {
    assert!(driver.closed.is_some(), "the connection lives: {:?}", driver.replies());
    let replies = driver.replies();
    let last = replies.last().expect("a TermReq");
    assert_eq!(last.pdu, PduType::C2hTermReq);
    let head = TermReq::read_from_bytes(&last.header).expect("24 bytes");
    (head.status(), head.fei.get())
}

/// Method: after the first 4096 bytes for the first of two R2Ts comes data that fits neither.
#[test]
fn data_comes_once_and_in_order_and_for_its_own_command() {
    let out_of_range = FatalErrorStatus::DATA_TRANSFER_OUT_OF_RANGE;
    let whole = LONG as u32;
    for digests in ALL_DIGESTS {
        let (_, [a, b]) = asking(digests);
        let (mine, other) = (ids(&a), ids(&b));
        for (name, bytes, fes, fei) in [
            ("repeated", data(mine, (0, 4096), false, digests), SEQUENCE, 0),
            ("overlapping", data(mine, (4092, 4096), false, digests), SEQUENCE, 0),
            ("behind a gap", data(mine, (4100, 4096), false, digests), SEQUENCE, 0),
            ("another's tag", data((mine.0, other.1), (4096, 4096), false, digests), FIELD, 8),
            ("another's command", data((other.0, mine.1), (0, 4096), false, digests), FIELD, 8),
            ("beyond the end", data(mine, (4096, whole), true, digests), out_of_range, 0),
            ("round the end", data(mine, (u32::MAX - 3, 8), false, digests), out_of_range, 0),
            ("last too early", data(mine, (4096, 4096), true, digests), FIELD, 1),
            ("not the last", data(mine, (4096, whole - 4096), false, digests), FIELD, 1),
        ] {
            let (mut driver, _) = asking(digests);
            driver.feed(&data(mine, (0, 4096), false, digests));
            driver.feed(&bytes);
            assert_eq!(term_req(&mut driver), (fes, fei), "{name}, {digests:?}");
            assert_eq!(driver.executed, 1, "{name}: Connect alone");
        }
    }
}

/// The last byte ended it: an R2T is answered once, and its tag is free then.
#[test]
fn data_for_an_r2t_that_was_answered_is_refused() {
    let (mut driver, [a, _]) = asking(NONE);
    let all = data(ids(&a), (0, LONG as u32), true, NONE);
    driver.feed(&all);
    assert_eq!(driver.completion().status(), Status::SUCCESS);
    driver.feed(&all);
    assert_eq!(term_req(&mut driver), (FIELD, 10));
}

/// Method: of a write the first 4096 bytes were asked for, and have come; then the rest is asked for, or not yet.
#[test]
fn data_of_an_earlier_r2t_is_told_from_data_of_none() {
    for is_asked in [false, true] {
        let mut driver = io(0, NONE);
        driver.grants = false;
        driver.feed(&capsule(command(IoOpcode::WRITE, 8, 8), 1, &[], NONE));
        let (slot, len_bytes) = driver.waiting.pop_front().expect("it waits for memory");
        driver.feed(&data((1, slot.0), (0, 4096), false, NONE));
        assert_eq!(term_req(&mut driver), (FIELD, 10), "no tag was given yet");

        let mut driver = io(0, NONE);
        driver.grants = false;
        driver.feed(&capsule(command(IoOpcode::WRITE, 8, 8), 1, &[], NONE));
        driver.waiting.clear();
        let now = driver.now;
        driver.connection.grant(now, slot, 4096, &mut driver.out);
        driver.feed(&data((1, slot.0), (0, 4096), true, NONE));
        if is_asked {
            driver.connection.grant(now, slot, len_bytes, &mut driver.out);
        }
        assert_eq!(driver.replies().len(), 1 + usize::from(is_asked), "R2Ts");
        driver.feed(&data((1, slot.0), (0, 4096), true, NONE));
        let out_of_range = FatalErrorStatus::DATA_TRANSFER_OUT_OF_RANGE;
        let expected = if is_asked { out_of_range } else { SEQUENCE };
        assert_eq!(term_req(&mut driver), (expected, 0), "asked for the rest: {is_asked}");
    }
}

/// If several fields are at fault the TermReq names the first (TCP, figure 23). Method: two at a
/// time.
#[test]
fn of_several_faults_the_first_field_is_named() {
    let mut greeting = ic_req(NONE);
    (greeting[3], greeting[10]) = (4, 32);
    let mut driver = Driver::new();
    driver.feed(&greeting);
    assert_eq!(term_req(&mut driver), (FIELD, 3));
    let (_, [a, b]) = asking(NONE);
    let good = data(ids(&a), (0, 4096), false, NONE);
    for (at, value, also, fei) in [(1, 0x80, 2, 1), (8, b.cccid.get() as u8, 16, 8)] {
        let mut bytes = good.clone();
        (bytes[at], bytes[also]) = (value, 3);
        let (mut driver, _) = asking(NONE);
        driver.feed(&bytes);
        assert_eq!(term_req(&mut driver), (FIELD, fei));
    }
}

/// An Abort takes no R2T back: it says that it aborted nothing, and the data is taken as if it had not been there.
#[test]
fn a_command_whose_data_is_asked_for_is_not_aborted() {
    let mut admin = admin(ControllerKind::Io, NONE);
    let (mut driver, [a, b]) = asking(NONE);
    for cid in [ids(&a).0, ids(&b).0, 0xFFFF] {
        admin.feed(&capsule(Abort { sqid: 1, cid }.encode(), 9, &[], NONE));
        let cqe = admin.completion();
        assert_eq!((cqe.status(), cqe.dw0()), (Status::SUCCESS, Abort::NOT_ABORTED));
    }
    for ask in [a, b] {
        driver.feed(&data(ids(&ask), (0, LONG as u32), true, NONE));
        assert_eq!(driver.completion().status(), Status::SUCCESS);
    }
}

/// Data PDUs as small as may be bring the command to its end or let the deadline pass; none is empty.
#[test]
fn an_empty_data_pdu_ends_the_connection() {
    for digests in ALL_DIGESTS {
        let (mut driver, [a, _]) = asking(digests);
        driver.feed(&data(ids(&a), (0, 0), false, digests));
        assert_eq!(term_req(&mut driver), (FIELD, 4), "{digests:?}");
    }
}

/// Method: flip each bit of the digests in turn. FEI is the digest that came.
#[test]
fn each_pdu_with_a_header_digest_is_held_to_it() {
    for digests in ALL_DIGESTS.into_iter().filter(|digests| digests.header) {
        let (_, [a, _]) = asking(digests);
        let read = capsule(command(IoOpcode::READ, 0, 1), 7, &[], digests);
        let small = capsule(command(IoOpcode::WRITE, 0, 1), 7, &[1; BLOCK_SIZE], digests);
        let solicited = data(ids(&a), (0, 4096), false, digests);
        for (bytes, header_len) in [(read, 72), (small, 72), (solicited, 24)] {
            for bit in 0..32 {
                let mut bytes = bytes.clone();
                bytes[header_len + bit / 8] ^= 1 << (bit % 8);
                let (mut driver, _) = asking(digests);
                driver.feed(&bytes);
                let received = crc32c(&bytes[..header_len]) ^ 1 << bit;
                let expected = (FatalErrorStatus::HEADER_DIGEST_ERROR, received);
                assert_eq!(term_req(&mut driver), expected, "{header_len} bytes, bit {bit}");
            }
        }
    }
    // These two have none, whatever was agreed.
    let mut greeting = ic_req(BOTH);
    greeting[1] = 1;
    let mut driver = Driver::new();
    driver.feed(&greeting);
    assert_eq!(term_req(&mut driver), (FIELD, 1));
}

/// A TermReq is not answered by another, whatever is wrong with it.
#[test]
fn a_broken_term_req_ends_the_connection_quietly() {
    let error = PduError::Sequence { pdu: PduType::R2t };
    let good = TermReq::encode(PduType::H2cTermReq, &error, &[0; 24]);
    for (at, value) in [(1, 0xFF), (2, 25), (3, 9), (4, 23), (5, 0xFF)] {
        for greeted in [false, true] {
            let mut driver = if greeted { io(0, BOTH) } else { Driver::new() };
            let mut bytes = good.clone();
            bytes[at] = value;
            driver.feed(&bytes);
            assert!(driver.closed.is_some(), "byte {at}");
            assert!(driver.out.is_empty(), "byte {at}: {:?}", driver.replies());
        }
    }
}

/// SQSIZE 1, the smallest: two entries, and two commands at a time.
#[test]
fn the_smallest_queue_takes_two_commands() {
    let mut driver = Driver::new().with_controller();
    driver.feed(&ic_req(NONE));
    let connect = Sqe::from(Connect::new(1, 2, 0));
    let who = connect_data(ControllerKind::Io, 1);
    driver.feed(&capsule(connect, 0, who.as_bytes(), NONE));
    driver.replies();
    for n in 0..5u16 {
        driver.feed(&capsule(command(IoOpcode::READ, 0, 1), n, &[], NONE));
        let replies = driver.replies();
        assert_eq!(replies[1].header[16], n as u8 % 2, "SQHD has two values");
    }
    driver.grants = false;
    for cid in [1, 2] {
        driver.feed(&capsule(command(IoOpcode::WRITE, 0, 8), cid, &[], NONE));
        assert_eq!(driver.closed, None);
    }
    driver.feed(&capsule(command(IoOpcode::WRITE, 0, 8), 3, &[], NONE));
    assert_eq!(driver.closed, Some(CloseReason::QueueOverrun));
}

/// From a tenth of a second to seven weeks.
#[test]
fn the_keep_alive_timer_may_be_as_short_and_as_long_as_can_be_said() {
    for (asked_ms, kept_ms) in [(1, 100), (100, 100), (101, 200), (u32::MAX, u32::MAX)] {
        let expected = Some(Instant(0) + Duration::from_millis(kept_ms.into()));
        let mut driver = Driver::new();
        driver.feed(&ic_req(NONE));
        let connect = Sqe::from(Connect::new(0, 32, asked_ms));
        let who = connect_data(ControllerKind::Io, 0);
        driver.feed(&capsule(connect, 0, who.as_bytes(), NONE));
        let set = Property::set(offset::CC, PropertySize::Four, enable());
        driver.feed(&capsule(Sqe::from(set), 1, &[], NONE));
        let by_connect = driver.controller.as_ref().expect("connected").next_timeout();
        assert_eq!(by_connect, expected, "Connect with {asked_ms} ms");

        let mut driver = admin(ControllerKind::Io, NONE);
        let (fid, value) = (Fid::KEEP_ALIVE_TIMER, asked_ms);
        let set = SetFeatures { fid, save: false, value, nsid: 0 };
        driver.feed(&capsule(set.encode(), 2, &[], NONE));
        assert_eq!(driver.completion().status(), Status::SUCCESS);
        let by_feature = driver.controller.as_ref().expect("connected").next_timeout();
        assert_eq!(by_feature, expected, "Set Features with {asked_ms} ms");
    }
}

/// ATTRIB has two values; each property has one size, and a write of another changes nothing.
#[test]
fn properties_are_accessed_in_their_size_only() {
    let mut driver = admin(ControllerKind::Io, NONE);
    let mut status = |property: Property| {
        driver.feed(&capsule(Sqe::from(property), 5, &[], NONE));
        driver.completion().status().code()
    };
    let is_enabled = Property::get(offset::CSTS, PropertySize::Four);
    for attrib in 2..8 {
        let get = Property { attrib, ..Property::get(offset::CAP, PropertySize::Eight) };
        assert_eq!(status(get), Status::INVALID_FIELD, "ATTRIB {attrib}");
        let set = Property { attrib, ..Property::set(offset::CC, PropertySize::Four, 0) };
        assert_eq!(status(set), Status::INVALID_FIELD, "ATTRIB {attrib}");
    }
    for property in [
        Property::set(offset::CC, PropertySize::Eight, 0),
        Property::set(offset::CAP, PropertySize::Eight, 0),
        Property::set(offset::CC + 2, PropertySize::Four, 0),
        Property::set(u32::MAX, PropertySize::Four, 0),
        Property::get(offset::CC + 1, PropertySize::Four),
        Property::get(u32::MAX, PropertySize::Eight),
    ] {
        assert_eq!(status(property), Status::INVALID_FIELD, "{property:?}");
    }
    driver.feed(&capsule(Sqe::from(is_enabled), 6, &[], NONE));
    assert_eq!(driver.completion().dw0() & 1, 1, "it is ready still");
}

/// Method: as many Asynchronous Event Requests as the queue takes, then Aborts of each of them and of what is not
/// there, again and again. Each is answered, and nothing stays behind.
#[test]
fn a_storm_of_event_requests_and_aborts_leaves_nothing_behind() {
    let mut driver = admin(ControllerKind::Io, NONE);
    for round in 0..200u16 {
        let (mut refused, mut aborted) = (0, 0);
        for cid in 0..30 {
            let request = Sqe::new(AdminOpcode::ASYNC_EVENT_REQUEST.0, 0);
            driver.feed(&capsule(request, cid, &[], NONE));
            if !driver.out.is_empty() {
                let limit = Status::ASYNC_EVENT_LIMIT_EXCEEDED.with_dnr();
                assert_eq!(driver.completion().status(), limit);
                refused += 1;
            }
        }
        assert_eq!((refused, driver.connection.in_flight()), (26, 4), "round {round}");
        for cid in (0..30).rev() {
            driver.feed(&capsule(Abort { sqid: 0, cid }.encode(), 100 + cid, &[], NONE));
            aborted += driver.replies().len() - 1;
        }
        assert_eq!((aborted, driver.connection.in_flight()), (4, 0), "round {round}");
    }
    assert!(driver.connection.slot_count() <= usize::from(Limits::default().queue_entries_max));
}
