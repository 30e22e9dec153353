//! Exchanges between a host and the target, PDU by PDU: good exchanges as the Linux host makes
//! them, and the answer to each way of breaking the rules.

mod driver;

use driver::{
    ALL_DIGESTS, BOTH, Driver, NONE, Reply, admin, capsule, connect_capsule, connect_data, ic_req,
    io, pdu,
};
use nvme_target::{CloseReason, ControllerKind, Limits};
use nvme_wire::fabrics::{CATTR_DISABLE_SQ_FLOW, Connect, Disconnect};
use nvme_wire::io::{BlockCommand, DatasetManagement, DsmRange};
use nvme_wire::pdu::{
    C2hData, CapsuleCmd, CapsuleResp, CommonHeader, Digests, FatalErrorStatus, H2cData, IcReq,
    IcResp, PduFlags, PduType, R2t, TermReq,
};
use nvme_wire::{AdminOpcode, IoOpcode, SglDescriptor, Sqe, Status};
use units::{BLOCK_SIZE, Duration, Instant};
use zerocopy::{FromBytes, IntoBytes};

fn read(slba: u64, nlb: u32) -> Sqe {
    BlockCommand::new(slba, nlb).encode(IoOpcode::READ, 1, nlb * BLOCK_SIZE as u32)
}

fn write(slba: u64, nlb: u32) -> Sqe {
    BlockCommand::new(slba, nlb).encode(IoOpcode::WRITE, 1, nlb * BLOCK_SIZE as u32)
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i / 7 + i / 4096) as u8).collect()
}

fn kinds(replies: &[Reply]) -> Vec<PduType> {
    replies.iter().map(|reply| reply.pdu).collect()
}

fn r2t(reply: &Reply) -> R2t {
    assert_eq!(reply.pdu, PduType::R2t);
    R2t::read_from_bytes(&reply.header).expect("an R2T")
}

fn h2c(r2t: &R2t, data: &[u8], at: usize, len: usize, last: bool, digests: Digests) -> Vec<u8> {
    let ids = (r2t.cccid.get(), r2t.ttag.get());
    let header = H2cData::new(ids, (at as u32, len as u32), last, digests, 4);
    pdu(header.as_bytes(), &data[at..at + len], digests)
}

/// The TermReq that ended the connection: FES, FEI, quoted header.
fn term_req(driver: &mut Driver) -> (FatalErrorStatus, u32, Vec<u8>) {
    assert!(driver.closed.is_some(), "the connection lives: {:?}", driver.replies());
    let replies = driver.replies();
    let last = replies.last().expect("a TermReq");
    assert_eq!(last.pdu, PduType::C2hTermReq);
    let head = TermReq::read_from_bytes(&last.header).expect("24 bytes");
    (head.status(), head.fei.get(), last.data.clone())
}

#[test]
fn ic_exchange_agrees_on_what_the_host_asks_for() {
    for digests in ALL_DIGESTS {
        let mut driver = Driver::new();
        driver.feed(&ic_req(digests));
        let response = IcResp::read_from_bytes(&driver.out).expect("an ICResp alone");
        assert_eq!(response.check(digests), Ok(()));
        assert_eq!((response.digests(), response.cpda), (digests, 0));
        assert_eq!(response.maxh2cdata.get(), Limits::default().h2c_data_bytes_max);
    }
}

#[test]
fn reads_return_data_with_every_combination_of_digests() {
    for digests in ALL_DIGESTS {
        let mut driver = io(0, digests);
        driver.volume.bytes[..8192].copy_from_slice(&pattern(8192));
        driver.feed(&capsule(read(0, 2), 0x1005, &[], digests));
        let replies = driver.replies();
        assert_eq!(kinds(&replies), [PduType::C2hData, PduType::CapsuleResp], "{digests:?}");
        assert_eq!(replies[0].data, pattern(8192));
        let header = C2hData::read_from_bytes(&replies[0].header).expect("C2HData");
        assert_eq!((header.cccid.get(), header.datao.get(), header.datal.get()), (0x1005, 0, 8192));
        assert_eq!(header.ch.flags & PduFlags::SUCCESS.0, 0);
        assert_ne!(header.ch.flags & PduFlags::LAST_PDU.0, 0);
        let cqe = CapsuleResp::read_from_bytes(&replies[1].header).expect("a capsule").cqe;
        assert_eq!((cqe.cid.get(), cqe.status(), cqe.sqhd.get()), (0x1005, Status::SUCCESS, 2));
    }
}

#[test]
fn without_flow_control_a_read_needs_no_completion() {
    let mut driver = io(CATTR_DISABLE_SQ_FLOW, NONE);
    driver.feed(&capsule(read(3, 1), 9, &[], NONE));
    let replies = driver.replies();
    assert_eq!(kinds(&replies), [PduType::C2hData]);
    let success = PduFlags::LAST_PDU.union(PduFlags::SUCCESS);
    assert_eq!(replies[0].header[1] & 0xC, success.0);
    driver.feed(&capsule(write(3, 1), 9, &pattern(4096), NONE));
    assert_eq!(driver.completion().sqhd.get(), 0);
}

#[test]
fn data_for_the_host_lies_where_hpda_asks() {
    for (hpda, pdo) in [(0, 28), (1, 32), (2, 36), (15, 64), (31, 128)] {
        let mut driver = Driver::new().with_controller();
        let digests = Digests { header: true, data: false };
        driver.feed(IcReq { hpda, ..IcReq::new(digests, 1) }.as_bytes());
        driver.feed(&connect_capsule(ControllerKind::Io, 1, 0, digests));
        driver.out.clear();
        driver.feed(&capsule(read(0, 1), 1, &[], digests));
        assert_eq!(driver.out[3], pdo, "hpda {hpda}");
        assert_eq!(driver.replies()[0].data, vec![0; 4096]);
    }
}

#[test]
fn small_writes_travel_in_the_capsule() {
    for digests in ALL_DIGESTS {
        let mut driver = io(0, digests);
        for (slba, blocks) in [(0, 1), (7, 2), (20, 4)] {
            let data = pattern(blocks * BLOCK_SIZE);
            driver.feed(&capsule(write(slba, blocks as u32), 3, &data, digests));
            assert_eq!(driver.completion().status(), Status::SUCCESS);
            let start = slba as usize * BLOCK_SIZE;
            assert_eq!(driver.volume.bytes[start..start + data.len()], data);
        }
    }
}

#[test]
fn large_writes_are_solicited_and_may_come_in_several_pdus() {
    for digests in ALL_DIGESTS {
        for pieces in [vec![32_768], vec![4096; 8], vec![5000, 3000, 24_768], vec![4, 32_764]] {
            let mut driver = io(0, digests);
            let data = pattern(32_768);
            driver.feed(&capsule(write(2, 8), 0x2011, &[], digests));
            let replies = driver.replies();
            assert_eq!(kinds(&replies), [PduType::R2t]);
            let ask = r2t(&replies[0]);
            assert_eq!((ask.cccid.get(), ask.r2to.get(), ask.r2tl.get()), (0x2011, 0, 32_768));
            let mut at = 0;
            for len in pieces {
                driver.feed(&h2c(&ask, &data, at, len, at + len == data.len(), digests));
                at += len;
            }
            assert_eq!(driver.completion().status(), Status::SUCCESS, "{:?}", driver.closed);
            assert_eq!(driver.volume.bytes[8192..8192 + 32_768], data);
        }
    }
}

#[test]
fn memory_is_asked_for_only_where_it_is_granted() {
    let mut driver = io(0, NONE);
    driver.grants = false;
    let data = pattern(32_768);
    driver.feed(&capsule(write(0, 8), 1, &[], NONE));
    assert!(driver.out.is_empty(), "no R2T without memory");
    driver.grant_all(8192);
    // One R2T at a time: the first asks for what was granted first, the next for the rest.
    let replies = driver.replies();
    assert_eq!(kinds(&replies), [PduType::R2t]);
    let first = r2t(&replies[0]);
    assert_eq!((first.r2to.get(), first.r2tl.get()), (0, 8192));
    driver.feed(&h2c(&first, &data, 0, 8192, true, NONE));
    let replies = driver.replies();
    let second = r2t(&replies[0]);
    assert_eq!((second.r2to.get(), second.r2tl.get()), (8192, 24_576));
    driver.feed(&h2c(&second, &data, 8192, 24_576, true, NONE));
    assert_eq!(driver.completion().status(), Status::SUCCESS);
    assert_eq!(driver.volume.bytes[..32_768], data);
}

#[test]
fn a_wrong_data_digest_fails_its_command_alone() {
    let digests = BOTH;
    let mut driver = io(0, digests);
    let mut bytes = capsule(write(0, 1), 1, &pattern(4096), digests);
    *bytes.last_mut().expect("digest") ^= 1;
    driver.feed(&bytes);
    let cqe = driver.completion();
    assert_eq!(cqe.status(), Status::TRANSIENT_TRANSPORT_ERROR, "retry is allowed");
    assert_eq!((driver.executed, driver.volume.bytes[0]), (1, 0), "only Connect was executed");

    let data = pattern(32_768);
    driver.feed(&capsule(write(0, 8), 2, &[], digests));
    let ask = r2t(&driver.replies()[0]);
    let mut bytes = h2c(&ask, &data, 0, 4096, false, digests);
    bytes[100] ^= 1;
    driver.feed(&bytes);
    assert!(driver.replies().is_empty(), "the rest of the data comes first");
    driver.feed(&h2c(&ask, &data, 4096, 28_672, true, digests));
    assert_eq!(driver.completion().status(), Status::TRANSIENT_TRANSPORT_ERROR);
    driver.feed(&capsule(read(0, 1), 3, &[], digests));
    assert_eq!(driver.replies()[0].data, vec![0; 4096]);
}

#[test]
fn a_wrong_header_digest_ends_the_connection() {
    for at in 0..76 {
        let mut driver = io(0, BOTH);
        let mut bytes = capsule(read(0, 1), 1, &[], BOTH);
        // A changed type or HDGSTF may be noticed as such; anything else by the digest.
        bytes[at] ^= 0x10;
        driver.feed(&bytes);
        let (fes, _, _) = term_req(&mut driver);
        if at > 0 && at != 6 && at != 7 {
            assert_eq!(fes, FatalErrorStatus::HEADER_DIGEST_ERROR, "byte {at}");
        }
    }
}

#[test]
fn refused_commands_take_no_data_and_no_slot() {
    let mut driver = io(0, NONE);
    let outside = write(driver::BLOCKS, 1);
    for cid in 0..100 {
        driver.feed(&capsule(outside, cid, &pattern(4096), NONE));
        assert_eq!(driver.completion().status().code(), Status::LBA_OUT_OF_RANGE);
        driver.feed(&capsule(write(driver::BLOCKS, 8), cid, &[], NONE));
        assert_eq!(driver.completion().status().code(), Status::LBA_OUT_OF_RANGE, "no R2T");
    }
    assert_eq!(driver.connection.in_flight(), 0);
}

#[test]
fn sgl_violations_get_the_status_that_names_them() {
    let one = pattern(4096);
    let in_capsule = SglDescriptor::in_capsule(4096);
    let cases = [
        (SglDescriptor { identifier: 0x00, ..in_capsule }, Status::SGL_DESCRIPTOR_TYPE_INVALID),
        (SglDescriptor { identifier: 0x20, ..in_capsule }, Status::SGL_DESCRIPTOR_TYPE_INVALID),
        (SglDescriptor { identifier: 0x5A, ..in_capsule }, Status::SGL_DESCRIPTOR_TYPE_INVALID),
        (SglDescriptor { address: 8.into(), ..in_capsule }, Status::SGL_OFFSET_INVALID),
        (SglDescriptor { length: 512.into(), ..in_capsule }, Status::DATA_SGL_LENGTH_INVALID),
        (SglDescriptor { length: 8192.into(), ..in_capsule }, Status::DATA_SGL_LENGTH_INVALID),
    ];
    let mut driver = io(0, NONE);
    for (dptr, status) in cases {
        let sqe = Sqe { dptr, ..write(0, 1) };
        let header = CapsuleCmd::new(sqe, one.len(), NONE, 4);
        driver.feed(&pdu(header.as_bytes(), &one, NONE));
        assert_eq!(driver.completion().status(), status.with_dnr(), "{dptr:?}");
    }
    // The length must also be that of the blocks.
    let longer = Sqe { dptr: SglDescriptor::transport(8192), ..read(0, 1) };
    driver.feed(&capsule(longer, 1, &[], NONE));
    assert_eq!(driver.completion().status().code(), Status::DATA_SGL_LENGTH_INVALID);
    let mut prp = read(0, 1);
    prp.flags = 0;
    driver.feed(&capsule(prp, 1, &[], NONE));
    assert_eq!(driver.completion().status().code(), Status::INVALID_FIELD);
}

#[test]
fn the_linux_host_sends_room_for_256_ranges() {
    let mut driver = io(0, NONE);
    driver.volume.bytes.fill(0xEE);
    let mut data = vec![0; 4096];
    data[..16].copy_from_slice(DsmRange::new(1, 2).as_bytes());
    driver.feed(&capsule(DatasetManagement::deallocate(1, 1), 1, &data, NONE));
    assert_eq!(driver.completion().status(), Status::SUCCESS);
    assert_eq!(driver.volume.bytes[4095..4098], [0xEE, 0, 0]);
    assert_eq!(driver.volume.bytes[3 * 4096], 0xEE);
}

#[test]
fn an_identifier_in_flight_is_not_taken_again() {
    let mut driver = io(0, NONE);
    driver.grants = false;
    driver.feed(&capsule(write(0, 8), 5, &[], NONE));
    driver.feed(&capsule(read(0, 1), 5, &[], NONE));
    assert_eq!(driver.completion().status().code(), Status::COMMAND_ID_CONFLICT);
    driver.grant_all(32_768);
    let ask = r2t(&driver.replies()[0]);
    driver.feed(&h2c(&ask, &pattern(32_768), 0, 32_768, true, NONE));
    assert_eq!(driver.completion().status(), Status::SUCCESS, "the first one goes on");
}

#[test]
fn a_host_that_overruns_its_queue_is_cut_off() {
    let mut driver = io(0, NONE);
    driver.grants = false;
    for cid in 0..32 {
        driver.feed(&capsule(write(0, 8), cid, &[], NONE));
    }
    assert_eq!(driver.closed, None);
    driver.feed(&capsule(write(0, 8), 32, &[], NONE));
    assert_eq!(driver.closed, Some(CloseReason::QueueOverrun));
    assert_eq!(term_req(&mut driver).0, FatalErrorStatus::PDU_SEQUENCE_ERROR);
}

#[test]
fn commands_out_of_their_turn_are_sequence_errors() {
    let mut driver = Driver::new();
    driver.feed(&ic_req(NONE));
    driver.replies();
    driver.feed(&capsule(read(0, 1), 1, &[], NONE));
    assert_eq!(driver.completion().status().code(), Status::COMMAND_SEQUENCE_ERROR);
    driver.feed(&capsule(Sqe::new(AdminOpcode::KEEP_ALIVE.0, 0), 2, &[], NONE));
    assert_eq!(driver.completion().status().code(), Status::COMMAND_SEQUENCE_ERROR);
    let mut driver = io(0, NONE);
    driver.feed(&connect_capsule(ControllerKind::Io, 2, 0, NONE));
    assert_eq!(driver.completion().status().code(), Status::COMMAND_SEQUENCE_ERROR);
}

/// A Connect is never answered with Invalid Field in Command, whatever is wrong with its capsule; and it can be repeated.
#[test]
fn a_connect_that_is_wrong_is_told_so_in_its_own_words() {
    let (invalid, length) = (Status::CONNECT_INVALID_PARAMETERS, Status::DATA_SGL_LENGTH_INVALID);
    let who = connect_data(ControllerKind::Io, 0);
    let good = Sqe::from(Connect::new(0, 32, 5000));
    let long = Sqe { dptr: SglDescriptor::transport(2 << 20), ..good };
    for (sqe, data, status, ipo) in [
        (Sqe { flags: 0, ..good }, who.as_bytes(), invalid, 1),
        (Sqe { flags: 0x41, ..good }, who.as_bytes(), invalid, 1),
        (long, &[][..], length, 0),
    ] {
        let mut driver = Driver::new();
        driver.feed(&ic_req(NONE));
        driver.replies();
        driver.feed(&capsule(sqe, 1, data, NONE));
        let cqe = driver.completion();
        assert_eq!((cqe.status(), cqe.dw0()), (status.with_dnr(), ipo), "{:#x}", sqe.flags);
        driver.feed(&capsule(good, 2, who.as_bytes(), NONE));
        assert_eq!(driver.completion().status(), Status::SUCCESS);
    }
}

#[test]
fn connect_tells_whether_flow_control_is_off() {
    for (cattr, sqhd) in [(0, 1), (CATTR_DISABLE_SQ_FLOW, 0xFFFF)] {
        let mut driver = Driver::new();
        driver.feed(&ic_req(NONE));
        driver.replies();
        driver.feed(&connect_capsule(ControllerKind::Io, 0, cattr, NONE));
        let cqe = driver.completion();
        assert_eq!((cqe.dw0(), cqe.sqhd.get()), (u32::from(driver::CNTLID), sqhd));
    }
}

#[test]
fn a_refused_connect_can_be_repeated() {
    let mut driver = Driver::new();
    driver.feed(&ic_req(NONE));
    driver.replies();
    driver.feed(&connect_capsule(ControllerKind::Io, 1, 0, NONE));
    let cqe = driver.completion();
    assert_eq!(cqe.status().code(), Status::CONNECT_INVALID_PARAMETERS);
    assert_eq!(cqe.dw0(), 0x0001_0010, "CNTLID in the data");
    driver.feed(&connect_capsule(ControllerKind::Io, 0, 0, NONE));
    assert_eq!(driver.completion().status(), Status::SUCCESS);
}

#[test]
fn sq_head_counts_commands_and_wraps() {
    let mut driver = io(0, NONE);
    for n in 2..100u16 {
        driver.feed(&capsule(Sqe::new(IoOpcode::FLUSH.0, 1), n, &[], NONE));
        assert_eq!(driver.completion().sqhd.get(), n % 32);
    }
}

#[test]
fn disconnect_succeeds_on_an_io_queue_only() {
    let mut driver = io(0, NONE);
    driver.feed(&capsule(Sqe::from(Disconnect::new()), 1, &[], NONE));
    assert_eq!(driver.completion().status(), Status::SUCCESS);
    let mut driver = admin(ControllerKind::Io, NONE);
    driver.feed(&capsule(Sqe::from(Disconnect::new()), 9, &[], NONE));
    assert_eq!(driver.completion().status().code(), Status::DISCONNECT_INVALID_QUEUE_TYPE);
}

/// Each fault in a PDU, and the FES and FEI that name it.
#[test]
fn faults_in_pdus_get_the_term_req_that_names_them() {
    let field = FatalErrorStatus::INVALID_PDU_HEADER_FIELD;
    let changed = |bytes: Vec<u8>, at: usize, value: u8| {
        let mut bytes = bytes;
        bytes[at] = value;
        bytes
    };
    let read = || capsule(read(0, 1), 1, &[], NONE);
    let small = || capsule(write(0, 1), 1, &pattern(4096), NONE);
    let too_long = capsule(write(0, 5), 1, &pattern(5 * 4096), NONE);
    let cases = [
        ("unknown type", changed(read(), 0, 0x55), field, 0),
        ("a controller's type", changed(read(), 0, 0x05), field, 0),
        ("digest flag unasked", changed(read(), 1, 1), field, 1),
        ("digest flag unasked, with data", changed(small(), 1, 1), field, 1),
        ("reserved flags", changed(read(), 1, 0x10), field, 1),
        ("a flag of data", changed(read(), 1, 4), field, 1),
        ("HLEN", changed(read(), 2, 71), field, 2),
        ("PDO in the header", changed(small(), 3, 64), field, 3),
        ("PDO off a dword", changed(small(), 3, 73), field, 3),
        ("PLEN too short", changed(read(), 4, 71), field, 4),
        ("too much data in the capsule", too_long, field, 4),
        ("second ICReq", ic_req(NONE), FatalErrorStatus::PDU_SEQUENCE_ERROR, 0),
    ];
    for (name, bytes, fes, fei) in cases {
        let mut driver = io(0, NONE);
        driver.feed(&bytes);
        let (actual_fes, actual_fei, quoted) = term_req(&mut driver);
        assert_eq!((actual_fes, actual_fei), (fes, fei), "{name}");
        assert_eq!(quoted, bytes[..quoted.len()], "{name}");
        driver.feed(&read());
        assert!(driver.out.is_empty(), "{name}: nothing is answered after the end");
    }
    let mut driver = Driver::new();
    driver.feed(&read());
    assert_eq!(term_req(&mut driver).0, FatalErrorStatus::PDU_SEQUENCE_ERROR);
}

/// NVME-CONNECTION-7: a common host sends its requests for events again, with the CIDs of those that wait, when it detaches.
#[test]
fn event_requests_that_come_again_while_they_wait_are_the_same() {
    let mut driver = admin(ControllerKind::Io, NONE);
    let event_request = Sqe::new(AdminOpcode::ASYNC_EVENT_REQUEST.0, 0);
    for _ in 0..3 {
        for cid in 20..24 {
            driver.feed(&capsule(event_request, cid, &[], NONE));
        }
    }
    assert!(driver.out.is_empty() && driver.closed.is_none(), "all of them wait");
    assert_eq!(driver.connection.in_flight(), 4);
    let other = capsule(Sqe::new(AdminOpcode::KEEP_ALIVE.0, 0), 20, &[], NONE);
    driver.feed(&other);
    assert_eq!(driver.completion().status().code(), Status::COMMAND_ID_CONFLICT);
    driver.feed(&capsule(event_request, 24, &[], NONE));
    assert_eq!(driver.completion().status().code(), Status::ASYNC_EVENT_LIMIT_EXCEEDED);
}

#[test]
fn clients_of_other_protocols_are_named() {
    for (bytes, name) in [
        (&b"GET / HTTP/1.1\r\nHost: flash-1\r\n\r\n"[..], "HTTP"),
        (&[0x16, 3, 1, 0, 200, 1, 0, 0, 196, 3, 3], "TLS"),
    ] {
        let mut driver = Driver::new();
        driver.feed(bytes);
        assert_eq!(driver.closed, Some(CloseReason::OtherProtocol(name)));
        let (fes, _, _) = term_req(&mut driver);
        assert_eq!(fes, FatalErrorStatus::INVALID_PDU_HEADER_FIELD);
        // Behind an ICReq it is a broken PDU.
        let mut driver = io(0, NONE);
        driver.feed(bytes);
        assert!(matches!(driver.closed, Some(CloseReason::Protocol(_))), "{name}");
    }
}

#[test]
fn wrong_ic_parameters_are_named() {
    let good = IcReq::new(NONE, 1);
    let mut behind = [0; 112];
    behind[111] = 1;
    let unsupported = FatalErrorStatus::UNSUPPORTED_PARAMETER;
    let invalid = FatalErrorStatus::INVALID_PDU_HEADER_FIELD;
    for (request, fes, fei) in [
        (IcReq { pfv: 1.into(), ..good }, unsupported, 8),
        (IcReq { hpda: 32, ..good }, invalid, 10),
        (IcReq { dgst: 0xFC, ..good }, invalid, 11),
        (IcReq { ch: CommonHeader { flags: 2, ..good.ch }, ..good }, invalid, 1),
        (IcReq { ch: CommonHeader { pdo: 128, ..good.ch }, ..good }, invalid, 3),
        (IcReq { reserved: behind, ..good }, invalid, 16),
    ] {
        let mut driver = Driver::new();
        driver.feed(request.as_bytes());
        let (actual_fes, actual_fei, _) = term_req(&mut driver);
        assert_eq!((actual_fes, actual_fei), (fes, fei));
    }
}

#[test]
fn faults_in_solicited_data_get_the_term_req_that_names_them() {
    let data = pattern(65_536);
    let field = FatalErrorStatus::INVALID_PDU_HEADER_FIELD;
    type Change = fn(&mut H2cData);
    let cases: [(&str, Change, FatalErrorStatus, u32); 7] = [
        ("ttag of nothing", |h| h.ttag = 9.into(), field, 10),
        ("ttag beyond the slots", |h| h.ttag = 0xFFFF.into(), field, 10),
        ("cccid of another command", |h| h.cccid = 77.into(), field, 8),
        ("data out of order", |h| h.datao = 4096.into(), FatalErrorStatus::PDU_SEQUENCE_ERROR, 0),
        ("LAST_PDU too early", |h| h.ch.flags = 4, field, 1),
        ("a controller's flag", |h| h.ch.flags = 8, field, 1),
        (
            "beyond the R2T",
            |h| h.datao = 32_768.into(),
            FatalErrorStatus::DATA_TRANSFER_OUT_OF_RANGE,
            0,
        ),
    ];
    for (name, change, fes, fei) in cases {
        let mut driver = io(0, NONE);
        driver.feed(&capsule(write(0, 8), 1, &[], NONE));
        let ask = r2t(&driver.replies()[0]);
        let ids = (ask.cccid.get(), ask.ttag.get());
        let mut header = H2cData::new(ids, (0, 4096), false, NONE, 4);
        change(&mut header);
        driver.feed(&pdu(header.as_bytes(), &data[..4096], NONE));
        let (actual_fes, actual_fei, _) = term_req(&mut driver);
        assert_eq!((actual_fes, actual_fei), (fes, fei), "{name}");
    }
    let limits = Limits { h2c_data_bytes_max: 4096, ..Limits::default() };
    let mut driver = Driver::with_limits(&limits).with_controller();
    driver.feed(&ic_req(NONE));
    driver.feed(&connect_capsule(ControllerKind::Io, 1, 0, NONE));
    driver.feed(&capsule(write(0, 8), 1, &[], NONE));
    let replies = driver.replies();
    let ask = r2t(replies.last().expect("an R2T"));
    driver.feed(&h2c(&ask, &data, 0, 4096, false, NONE));
    assert!(driver.out.is_empty(), "as much as may come in a PDU");
    driver.feed(&h2c(&ask, &data, 4096, 4100, false, NONE));
    assert_eq!(term_req(&mut driver).0, FatalErrorStatus::LIMIT_EXCEEDED);
}

#[test]
fn unsolicited_data_is_refused() {
    let mut driver = io(0, NONE);
    let header = H2cData::new((1, 0), (0, 4096), true, NONE, 4);
    driver.feed(&pdu(header.as_bytes(), &pattern(4096), NONE));
    assert_eq!(term_req(&mut driver).1, 10);
}

#[test]
fn a_hosts_term_req_ends_the_connection_quietly() {
    let mut driver = io(0, BOTH);
    let error = nvme_wire::pdu::PduError::Sequence { pdu: PduType::R2t };
    driver.feed(&TermReq::encode(PduType::H2cTermReq, &error, &[0; 24]));
    let fes = FatalErrorStatus::PDU_SEQUENCE_ERROR;
    let reason = driver.closed.expect("the host ended it");
    assert_eq!(reason, CloseReason::HostTerminated(fes));
    assert_eq!(reason.to_string(), "the host ended it with a TermReq: PDU Sequence Error");
    assert!(driver.out.is_empty());
}

#[test]
fn a_host_that_stops_half_way_is_cut_off() {
    let limits = Limits::default();
    let late = Instant(0) + limits.handshake_timeout;
    let mut driver = Driver::new();
    assert_eq!(driver.connection.next_timeout(), Some(late));
    assert_eq!(driver.connection.on_timeout(Instant(late.0 - 1)), None);
    assert_eq!(driver.connection.on_timeout(late), Some(CloseReason::HandshakeTimeout));

    let stalled = Instant(0) + limits.stall_timeout;
    let mut driver = io(0, NONE);
    assert_eq!(driver.connection.next_timeout(), None, "an idle queue has no deadline here");
    driver.feed(&capsule(read(0, 1), 1, &[], NONE)[..40]);
    assert_eq!(driver.connection.next_timeout(), Some(stalled));
    driver.feed(&capsule(read(0, 1), 1, &[], NONE)[40..]);
    assert_eq!(driver.connection.next_timeout(), None);

    driver.feed(&capsule(write(0, 8), 2, &[], NONE));
    assert_eq!(driver.connection.next_timeout(), Some(stalled), "an R2T is outstanding");
    assert_eq!(driver.connection.on_timeout(stalled), Some(CloseReason::Stalled));
}

/// NVME-CONNECTION-6: a write that takes a slow network ten times the deadline goes on, as long as something of it comes.
#[test]
fn the_deadline_counts_from_the_last_byte() {
    let stall = Limits::default().stall_timeout;
    let pieces: [(&str, Vec<Vec<u8>>); 2] = [
        ("data for an R2T", {
            let mut driver = io(0, NONE);
            driver.feed(&capsule(write(0, 8), 2, &[], NONE));
            let ask = r2t(&driver.replies()[0]);
            let part = |at| h2c(&ask, &[0; 32_768], at, 2048, at == 30_720, NONE);
            (0..32_768).step_by(2048).map(part).collect()
        }),
        (
            "a capsule",
            capsule(write(0, 1), 1, &pattern(4096), NONE).chunks(64).map(<[u8]>::to_vec).collect(),
        ),
    ];
    for (name, pieces) in pieces {
        let mut driver = io(0, NONE);
        if name == "data for an R2T" {
            driver.feed(&capsule(write(0, 8), 2, &[], NONE));
            driver.replies();
        }
        let mut received = None;
        for piece in pieces {
            driver.now = driver.now + (stall - Duration::from_millis(1));
            assert_eq!(driver.connection.on_timeout(driver.now), None, "{name}");
            let before = driver.connection.owed_bytes_received();
            assert_eq!(before.is_some(), driver.connection.owed_since().is_some(), "{name}");
            assert!(before >= received, "{name}: {before:?} after {received:?}");
            driver.feed(&piece);
            received = driver.connection.owed_bytes_received();
            assert!(received.is_none() || received > before, "{name}: {received:?}");
        }
        assert_eq!(driver.completion().status(), Status::SUCCESS, "{name}");
        assert_eq!(driver.connection.next_timeout(), None, "{name}: nothing is owed any more");
        assert_eq!(received, None, "{name}");
    }
}

/// NVME-CONNECTION-6: data for several R2Ts comes one behind the other: those that wait for their turn are not late.
#[test]
fn data_for_an_older_request_is_progress_with_the_later_ones() {
    let mut driver = io(0, NONE);
    let mut asked = Vec::new();
    for cid in 0..8 {
        driver.feed(&capsule(write(8 * u64::from(cid), 8), cid, &[], NONE));
        asked.push(r2t(&driver.replies()[0]));
    }
    for ask in &asked {
        driver.now = driver.now + Duration::from_secs(20);
        assert_eq!(driver.connection.on_timeout(driver.now), None);
        driver.feed(&h2c(ask, &[0; 32_768], 0, 16_384, false, NONE));
        driver.now = driver.now + Duration::from_secs(20);
        assert_eq!(driver.connection.on_timeout(driver.now), None);
        driver.feed(&h2c(ask, &[0; 32_768], 16_384, 16_384, true, NONE));
    }
    assert_eq!(driver.connection.owed_since(), None);
}

#[test]
fn a_command_that_fails_while_its_data_is_on_the_way_is_answered_behind_it() {
    let mut driver = io(0, NONE);
    let data = pattern(32_768);
    driver.feed(&capsule(write(0, 8), 1, &[], NONE));
    let ask = r2t(&driver.replies()[0]);
    let slot = nvme_target::SlotId(ask.ttag.get());
    driver.connection.complete(slot, Status::INTERNAL_ERROR, 0, &mut driver.out);
    assert!(driver.out.is_empty());
    driver.feed(&h2c(&ask, &data, 0, 8192, false, NONE));
    assert!(driver.out.is_empty(), "more is to come");
    driver.feed(&h2c(&ask, &data, 8192, 24_576, true, NONE));
    assert_eq!(driver.completion().status(), Status::INTERNAL_ERROR);
    assert_eq!((driver.connection.in_flight(), driver.volume.bytes[100]), (0, 0));
}

#[test]
fn connect_size_limits_are_kept() {
    let mut driver = Driver::new();
    driver.feed(&ic_req(NONE));
    driver.replies();
    let connect = Connect::new(0, 32, 0);
    driver.feed(&capsule(Sqe::from(connect), 1, &[1; 512], NONE));
    assert_eq!(driver.completion().status().code(), Status::DATA_SGL_LENGTH_INVALID);
    driver.feed(&capsule(Sqe::from(connect), 1, &[1; 8200], NONE));
    assert_eq!(term_req(&mut driver).1, 4);
}

/// NVME-CONNECTION-6: what the host had queued before it saw an R2T comes first; what it goes on with behind that does not
/// hide that the R2T is neglected.
#[test]
fn one_neglected_request_for_data_is_not_hidden_by_other_traffic() {
    let mut driver = io(0, NONE);
    driver.feed(&capsule(write(0, 8), 1, &[], NONE));
    let ask = r2t(&driver.replies()[0]);
    let stall = Limits::default().stall_timeout;
    let mut last_progress = driver.now;
    for pdu in 0..100 {
        driver.now = driver.now + Duration::from_millis(100);
        driver.feed(&capsule(read(0, 1), 2, &[], NONE));
        // Entries of the queue.
        if pdu < 32 {
            last_progress = driver.now;
        }
        assert_eq!(driver.connection.next_timeout(), Some(last_progress + stall), "PDU {pdu}");
    }
    driver.feed(&h2c(&ask, &pattern(32_768), 0, 32_768, true, NONE));
    assert_eq!(driver.connection.next_timeout(), None, "nothing is owed any more");
}

#[test]
fn admin_commands_bring_little_data_or_none() {
    let mut driver = admin(ControllerKind::Io, NONE);
    let with_data = |opcode: AdminOpcode, length| {
        let dptr = SglDescriptor::transport(length);
        capsule(Sqe { dptr, ..Sqe::new(opcode.0, 0) }, 5, &[], NONE)
    };
    driver.feed(&with_data(AdminOpcode::FIRMWARE_IMAGE_DOWNLOAD, 1 << 20));
    assert_eq!(driver.completion().status().code(), Status::INVALID_OPCODE);
    driver.feed(&with_data(AdminOpcode::SET_FEATURES, 8196));
    assert_eq!(driver.completion().status().code(), Status::DATA_SGL_LENGTH_INVALID);
    driver.feed(&with_data(AdminOpcode::SET_FEATURES, 8192));
    assert_eq!(kinds(&driver.replies()), [PduType::R2t]);
    let mut driver = Driver::new();
    driver.feed(&ic_req(NONE));
    driver.replies();
    let dptr = SglDescriptor::transport(1 << 20);
    let connect = Sqe { dptr, ..Sqe::from(Connect::new(0, 32, 0)) };
    driver.feed(&capsule(connect, 5, &[], NONE));
    assert_eq!(driver.completion().status().code(), Status::DATA_SGL_LENGTH_INVALID);
}

#[test]
fn a_solicited_connect_works_too() {
    let mut driver = Driver::new();
    driver.feed(&ic_req(NONE));
    driver.replies();
    let dptr = SglDescriptor::transport(1024);
    let connect = Sqe { dptr, ..Sqe::from(Connect::new(0, 32, 0)) };
    driver.feed(&capsule(connect, 5, &[], NONE));
    let ask = r2t(&driver.replies()[0]);
    let data = driver::connect_data(ControllerKind::Io, 0);
    driver.feed(&h2c(&ask, data.as_bytes(), 0, 1024, true, NONE));
    assert_eq!(driver.completion().status(), Status::SUCCESS);
}

#[test]
fn the_data_of_a_command_without_a_slot_is_skipped() {
    let mut driver = io(0, NONE);
    driver.grants = false;
    driver.feed(&capsule(write(0, 8), 5, &[], NONE));
    let mut both = capsule(write(0, 1), 5, &pattern(4096), NONE);
    both.extend(capsule(Sqe::new(IoOpcode::FLUSH.0, 1), 6, &[], NONE));
    driver.feed(&both);
    let replies = driver.replies();
    assert_eq!(kinds(&replies), [PduType::CapsuleResp, PduType::CapsuleResp]);
    assert_eq!((driver.closed, driver.volume.bytes[100]), (None, 0));
}

#[test]
fn padding_before_data_is_skipped_however_it_is_cut() {
    for digests in ALL_DIGESTS {
        let data = pattern(4096);
        let mut sqe = write(0, 1);
        sqe.dptr = SglDescriptor::in_capsule(4096);
        let header = CapsuleCmd::new(sqe, data.len(), digests, 128);
        let bytes = pdu(header.as_bytes(), &data, digests);
        assert_eq!(bytes[3], 128, "52 or 56 bytes of padding");
        for chunk in [1, 10, 77, 5000] {
            let mut driver = io(0, digests);
            for part in bytes.chunks(chunk) {
                driver.feed(part);
            }
            assert_eq!(driver.completion().status(), Status::SUCCESS);
            assert_eq!(driver.volume.bytes[..4096], data);
        }
    }
}

/// Metadata comes on top of MDTS: a 64th of it. What is longer is refused by its length alone.
#[test]
fn a_transfer_may_be_as_long_as_mdts_with_metadata() {
    let longest = Limits::default().transfer_bytes_max / 64 * 65;
    for (len, status) in [
        (longest, Status::DATA_SGL_LENGTH_INVALID),
        (longest + 4, Status::INVALID_FIELD),
        (longest + longest / 2, Status::INVALID_FIELD),
    ] {
        let mut driver = io(0, NONE);
        let write = BlockCommand::new(0, 1).encode(IoOpcode::WRITE, 1, len);
        driver.feed(&capsule(write, 5, &[], NONE));
        assert_eq!(driver.completion().status().code(), status, "{len} bytes");
    }
}

/// Slots are made as commands need them: one for the Connect, then some, then twice as many each time.
#[test]
fn slots_are_counted_as_they_are_made() {
    let mut driver = io(0, NONE);
    driver.grants = false;
    let write = BlockCommand::new(0, 2).encode(IoOpcode::WRITE, 1, 8192);
    for (cid, slots) in [(1, 1), (2, 4), (3, 4), (4, 4), (5, 8), (6, 8), (7, 8), (8, 8), (9, 16)] {
        driver.feed(&capsule(write, cid, &[], NONE));
        assert_eq!(driver.connection.slot_count(), slots, "{cid}");
        assert_eq!(driver.connection.in_flight(), usize::from(cid), "{cid}");
    }
}

/// Between the header of a PDU with data and the last byte of its digest, data is what comes next.
#[test]
fn it_says_whether_data_comes_next() {
    let data = pattern(BLOCK_SIZE);
    for digests in ALL_DIGESTS {
        let mut driver = io(0, digests);
        let bytes = capsule(write(3, 1), 9, &data, digests);
        let header_end = if digests.header { 76 } else { 72 };
        for (at, byte) in bytes.iter().enumerate() {
            driver.feed(&[*byte]);
            let is_within = at + 1 >= header_end && at + 1 < bytes.len();
            assert_eq!(driver.connection.is_in_data(), is_within, "{digests:?}, byte {at}");
        }
        assert!(driver.completion().status().is_success());
    }
}

/// A command that waits for memory owes nothing: the deadline is that of the R2T beside it.
#[test]
fn only_data_that_was_asked_for_is_owed() {
    let mut driver = io(0, NONE);
    driver.now = Instant(0) + Duration::from_secs(100);
    driver.grants = false;
    driver.feed(&capsule(write(0, 8), 1, &[], NONE));
    assert_eq!(driver.connection.owed_since(), None);
    driver.grants = true;
    driver.feed(&capsule(write(8, 8), 2, &[], NONE));
    assert_eq!(driver.connection.owed_since(), Some(driver.now));
}
