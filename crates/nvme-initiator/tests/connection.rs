//! The connection against a scripted controller.

use checksum::crc32c;
use nvme_initiator::{Config, Connection, ConnectionError, Event, Transfer};
use nvme_wire::pdu::{
    C2hData, CapsuleCmd, CapsuleResp, Digests, FatalErrorStatus, H2cData, IcReq, IcResp, PduError,
    PduFlags, PduType, R2t, TermReq,
};
use nvme_wire::{Cqe, IoOpcode, Sqe, Status};
use proptest::prelude::*;
use units::{Duration, Instant};
use zerocopy::{FromBytes, IntoBytes};

const BOTH: Digests = Digests { header: true, data: true };
const NONE: Digests = Digests { header: false, data: false };

fn config(digests: Digests) -> Config {
    Config { digests, depth: 4, command_timeout: Duration::from_secs(10), in_capsule_max: 4096 }
}

/// A connection past its handshake.
fn ready(digests: Digests, maxh2cdata: u32) -> Connection {
    let mut sent = Vec::new();
    let mut connection = Connection::new(&config(digests), |bytes| sent.extend_from_slice(bytes));
    assert_eq!(IcReq::read_from_bytes(&sent).expect("128 bytes").digests(), digests);
    let response = IcResp::new(digests, maxh2cdata);
    assert_eq!(connection.on_bytes(response.as_bytes()), Ok((128, Some(Event::Ready))));
    connection
}

/// Submits; returns the slot and the capsule's header.
fn submit(connection: &mut Connection, opcode: IoOpcode, transfer: Transfer) -> (u16, CapsuleCmd) {
    let mut sent = Vec::new();
    let sqe = Sqe::new(opcode.0, 1);
    let slot = connection
        .submit(Instant(0), &sqe, transfer, None, |bytes| sent.extend_from_slice(bytes))
        .expect("a free slot");
    if connection.digests().header {
        assert_eq!(sent[72..76], crc32c(&sent[..72]).to_le_bytes());
    }
    (slot, CapsuleCmd::read_from_prefix(&sent).expect("a capsule").0)
}

fn with_digest(digests: Digests, header: &[u8]) -> Vec<u8> {
    let mut bytes = header.to_vec();
    if digests.header {
        bytes.extend_from_slice(&crc32c(header).to_le_bytes());
    }
    bytes
}

fn c2h(digests: Digests, cid: u16, offset: u32, data: &[u8], flags: PduFlags) -> Vec<u8> {
    let len = u32::try_from(data.len()).expect("short");
    let header = C2hData::new(cid, (offset, len), flags, digests, 4);
    let mut bytes = with_digest(digests, header.as_bytes());
    bytes.extend_from_slice(data);
    if digests.data {
        bytes.extend_from_slice(&crc32c(data).to_le_bytes());
    }
    bytes
}

fn response(digests: Digests, cqe: Cqe) -> Vec<u8> {
    with_digest(digests, CapsuleResp::new(cqe, digests).as_bytes())
}

/// Feeds `bytes` in pieces of `piece`; the events, and the data that passed by.
fn feed(
    connection: &mut Connection,
    bytes: &[u8],
    piece: usize,
) -> Result<(Vec<Event>, Vec<u8>), ConnectionError> {
    let (mut events, mut data) = (Vec::new(), Vec::new());
    for mut rest in bytes.chunks(piece) {
        loop {
            if let Some(payload) = connection.payload() {
                let len = rest.len().min(payload.len as usize);
                data.extend_from_slice(&rest[..len]);
                rest = &rest[len..];
                connection.on_payload(u32::try_from(len).expect("short"));
                if rest.is_empty() && connection.payload().is_some() {
                    break;
                }
            }
            let (taken, event) = connection.on_bytes(rest)?;
            rest = &rest[taken..];
            events.extend(event);
            if taken == 0 && event.is_none() && (rest.is_empty() || connection.payload().is_none())
            {
                break;
            }
        }
    }
    Ok((events, data))
}

/// Method: the same stream whole, byte by byte and in odd pieces; the events must be the same.
#[test]
fn a_read_ends_the_same_however_the_stream_is_cut() {
    for digests in [NONE, BOTH] {
        for piece in [1, 3, 23, 24, 100, 1 << 20] {
            let mut connection = ready(digests, 4096);
            let (slot, capsule) = submit(&mut connection, IoOpcode::READ, Transfer::ToHost(600));
            let cid = capsule.sqe.cid.get();
            let mut stream = c2h(digests, cid, 0, &[1; 512], PduFlags::default());
            let last = PduFlags::LAST_PDU.union(PduFlags::SUCCESS);
            stream.extend(c2h(digests, cid, 512, &[2; 88], last));
            let (events, data) = feed(&mut connection, &stream, piece).expect("honest");
            assert_eq!(data, [[1; 512].as_slice(), &[2; 88]].concat());
            let digests_seen: Vec<u32> = events
                .iter()
                .filter_map(|event| match event {
                    Event::DataDigest { received, .. } => Some(*received),
                    _ => None,
                })
                .collect();
            if digests.data {
                assert_eq!(digests_seen, [crc32c(&[1; 512]), crc32c(&[2; 88])]);
            }
            let done =
                Event::Completed { slot, cqe: Cqe::new(cid, Status::SUCCESS), transferred: 600 };
            assert_eq!(events.last(), Some(&done), "piece {piece}");
            assert_eq!(connection.outstanding(), 0);
        }
    }
}

#[test]
fn a_small_write_goes_in_the_capsule_and_a_large_one_by_r2t() {
    let mut connection = ready(BOTH, 4096);
    let (_, small) = submit(&mut connection, IoOpcode::WRITE, Transfer::ToController(4096));
    assert_eq!((small.ch.pdo, small.ch.plen.get()), (76, 76 + 4096 + 4));
    assert_eq!((small.sqe.dptr.identifier, small.sqe.flags), (0x01, 0x40));
    let (slot, large) = submit(&mut connection, IoOpcode::WRITE, Transfer::ToController(10_000));
    assert_eq!((large.ch.plen.get(), large.sqe.dptr.identifier), (76, 0x5A));
    let cid = large.sqe.cid.get();
    let r2t = with_digest(BOTH, R2t::new(cid, 7, (0, 10_000), BOTH).as_bytes());
    let (events, _) = feed(&mut connection, &r2t, 5).expect("honest");
    let [Event::R2t(request)] = events[..] else { panic!("{events:?}") };
    let pdus: Vec<_> = connection.h2c_pdus(request).collect();
    let runs: Vec<_> = pdus.iter().map(|pdu| (pdu.offset, pdu.len)).collect();
    assert_eq!(runs, [(0, 4096), (4096, 4096), (8192, 1808)], "MAXH2CDATA is 4096");
    for (index, pdu) in pdus.iter().enumerate() {
        let header = pdu.header.as_bytes();
        assert_eq!(header[24..], crc32c(&header[..24]).to_le_bytes());
        let decoded = H2cData::read_from_bytes(&header[..24]).expect("24 bytes");
        assert_eq!((decoded.cccid.get(), decoded.ttag.get()), (cid, 7));
        let last = PduFlags(decoded.ch.flags).contains(PduFlags::LAST_PDU);
        assert_eq!(last, index == 2);
    }
    let done = response(BOTH, Cqe::new(cid, Status::SUCCESS));
    let (events, _) = feed(&mut connection, &done, 1000).expect("honest");
    assert!(matches!(events[..], [Event::Completed { slot: s, .. }] if s == slot));
}

/// A controller that cuts a transfer into crumbs, or asks for more at a time than was offered, would
/// have the host keep a PDU for each.
#[test]
fn r2ts_are_few_and_not_small() {
    let total = 64 * 512;
    let begin = || {
        let mut connection = ready(NONE, 4096);
        let (_, capsule) = submit(&mut connection, IoOpcode::WRITE, Transfer::ToController(total));
        (connection, capsule.sqe.cid.get())
    };
    let ask = |connection: &mut Connection, cid, range| {
        feed(connection, R2t::new(cid, 7, range, NONE).as_bytes(), 99).map(drop)
    };
    let (mut connection, cid) = begin();
    let small = PduError::InvalidField { pdu: PduType::R2t, offset: 16, value: 508 };
    assert_eq!(ask(&mut connection, cid, (0, 508)), Err(small.into()));

    let (mut connection, cid) = begin();
    assert_eq!(ask(&mut connection, cid, (0, total - 4)), Ok(()));
    assert_eq!(ask(&mut connection, cid, (total - 4, 4)), Ok(()), "the end may be small");

    let (mut connection, cid) = begin();
    for n in 0..32 {
        if n == 16 {
            connection.handed_over();
        }
        assert_eq!(ask(&mut connection, cid, (n * 512, 512)), Ok(()));
    }
    let many = PduError::LimitExceeded { pdu: PduType::R2t, value: 17, limit: 16 };
    assert_eq!(ask(&mut connection, cid, (32 * 512, 512)), Err(many.into()));
}

#[test]
fn slots_are_bounded_and_come_back() {
    let mut connection = ready(NONE, 4096);
    let first = submit(&mut connection, IoOpcode::FLUSH, Transfer::None).1.sqe.cid.get();
    for _ in 1..4 {
        submit(&mut connection, IoOpcode::FLUSH, Transfer::None);
    }
    let sqe = Sqe::new(IoOpcode::FLUSH.0, 1);
    let none = connection.submit(Instant(0), &sqe, Transfer::None, None, |_| panic!("no slot"));
    assert_eq!(none, None);
    feed(&mut connection, &response(NONE, Cqe::new(first, Status::SUCCESS)), 99).expect("honest");
    assert_eq!(connection.free_slots(), 1);
    let again = response(NONE, Cqe::new(first, Status::SUCCESS));
    assert_eq!(
        feed(&mut connection, &again, 99),
        Err(ConnectionError::UnknownCommand { pdu: PduType::CapsuleResp, cid: first })
    );
}

#[test]
fn the_oldest_command_times_out_first() {
    let mut connection = ready(NONE, 4096);
    assert_eq!(connection.next_timeout(), None);
    let sqe = Sqe::new(IoOpcode::FLUSH.0, 1);
    let submit = |connection: &mut Connection, at, timeout| {
        connection.submit(Instant(at), &sqe, Transfer::None, timeout, |_| ()).expect("a slot")
    };
    let never = submit(&mut connection, 0, Some(Duration::MAX));
    let slow = submit(&mut connection, 0, None);
    let quick = submit(&mut connection, 5, Some(Duration::from_secs(1)));
    assert_eq!(connection.next_timeout(), Some(Instant(1_000_000_005)));
    assert_eq!(connection.on_timeout(Instant(1_000_000_004)), None);
    assert_eq!(connection.on_timeout(Instant(1_000_000_005)), Some(quick));
    assert_ne!(never, slow);
}

/// Its name, the outstanding command, the bytes for a Command Identifier, the status expected.
type Violation = (&'static str, Transfer, Box<dyn Fn(u16) -> Vec<u8>>, u16);

/// INITIATOR-3 and INITIATOR-4. Method: one violation each against a fresh connection with one
/// outstanding command.
#[test]
fn every_violation_is_an_error_that_names_itself() {
    let read = Transfer::ToHost(4096);
    let write = Transfer::ToController(8192);
    let last = PduFlags::LAST_PDU;
    let cases: Vec<Violation> = vec![
        ("data past the end", read, Box::new(|c| c2h(NONE, c, 0, &[0; 4100], PduFlags(4))), 4),
        ("a gap", read, Box::new(|c| c2h(NONE, c, 512, &[0; 512], PduFlags(4))), 2),
        ("unknown command", read, Box::new(|c| c2h(NONE, c ^ 1, 0, &[0; 512], PduFlags(4))), 1),
        ("data for a write", write, Box::new(|c| c2h(NONE, c, 0, &[0; 512], PduFlags(4))), 2),
        (
            "data behind the last",
            read,
            Box::new(move |c| {
                let mut more = c2h(NONE, c, 0, &[0; 512], last);
                more.extend(c2h(NONE, c, 512, &[0; 512], last));
                more
            }),
            2,
        ),
        ("success before the last", read, Box::new(|c| c2h(NONE, c, 0, &[0; 512], PduFlags(8))), 1),
        (
            "an overlap",
            read,
            Box::new(move |c| {
                let mut twice = c2h(NONE, c, 0, &[0; 512], PduFlags(0));
                twice.extend(c2h(NONE, c, 508, &[0; 512], last));
                twice
            }),
            2,
        ),
        (
            "R2T for a read",
            read,
            Box::new(|c| R2t::new(c, 0, (0, 512), NONE).as_bytes().to_vec()),
            2,
        ),
        (
            "R2T past the end",
            write,
            Box::new(|c| R2t::new(c, 0, (0, 8196), NONE).as_bytes().to_vec()),
            1,
        ),
        (
            "R2T that overflows",
            write,
            Box::new(|c| R2t::new(c, 0, (u32::MAX, 8192), NONE).as_bytes().to_vec()),
            1,
        ),
        (
            "R2T behind a gap",
            write,
            Box::new(|c| R2t::new(c, 0, (512, 512), NONE).as_bytes().to_vec()),
            2,
        ),
        (
            "the same R2T twice",
            write,
            Box::new(|c| R2t::new(c, 0, (0, 512), NONE).as_bytes().repeat(2)),
            2,
        ),
        ("empty R2T", write, Box::new(|c| R2t::new(c, 0, (0, 0), NONE).as_bytes().to_vec()), 1),
        (
            "success without data",
            read,
            Box::new(|c| response(NONE, Cqe::new(c, Status::SUCCESS))),
            2,
        ),
        ("a second ICResp", read, Box::new(|_| IcResp::new(NONE, 4096).as_bytes().to_vec()), 2),
        ("a PDU of the host's", read, Box::new(|_| IcReq::new(NONE, 1).as_bytes().to_vec()), 2),
        ("no such type", read, Box::new(|_| vec![0x0B, 0, 24, 0, 24, 0, 0, 0]), 1),
    ];
    for (name, transfer, violation, fes) in cases {
        let mut connection = ready(NONE, 4096);
        let (_, capsule) = submit(&mut connection, IoOpcode::READ, transfer);
        let stream = violation(capsule.sqe.cid.get());
        let error = feed(&mut connection, &stream, 4096).expect_err(name);
        let term = connection.term_req(&error).expect(name);
        assert_eq!(u16::from_le_bytes([term[8], term[9]]), fes, "{name}: {error}");
        let quoted = &term[24..];
        assert!(stream.windows(quoted.len()).any(|bytes| bytes == quoted), "{name}");
        assert!(!connection.is_ready(), "{name}");
    }
}

#[test]
fn a_damaged_header_is_noticed_and_the_digest_reported() {
    let mut connection = ready(BOTH, 4096);
    let (_, capsule) = submit(&mut connection, IoOpcode::FLUSH, Transfer::None);
    let mut bytes = response(BOTH, Cqe::new(capsule.sqe.cid.get(), Status::SUCCESS));
    bytes[9] ^= 0x10;
    let error = feed(&mut connection, &bytes, 64).expect_err("damaged");
    let ConnectionError::Protocol(PduError::HeaderDigest { received, .. }) = error else {
        panic!("{error}");
    };
    let term = connection.term_req(&error).expect("to be sent");
    assert_eq!(term[10..14], received.to_le_bytes());
}

#[test]
fn the_controllers_reason_to_end_is_kept() {
    let mut connection = ready(NONE, 4096);
    let sequence = PduError::Sequence { pdu: PduType::IcReq };
    let term = TermReq::encode(PduType::C2hTermReq, &sequence, &[0; 72]);
    let error = feed(&mut connection, &term, 10).expect_err("the end");
    assert_eq!(
        error,
        ConnectionError::Terminated { fes: FatalErrorStatus::PDU_SEQUENCE_ERROR, fei: 0 }
    );
    assert_eq!(connection.term_req(&error), None);
}

/// Method: the length of a TermReq below and above what it may be (TCP, clause 3.5).
#[test]
fn a_broken_term_req_is_not_answered() {
    for plen in [8, 23, 153, u32::MAX] {
        let mut connection = ready(NONE, 4096);
        let sequence = PduError::Sequence { pdu: PduType::IcReq };
        let mut term = TermReq::encode(PduType::C2hTermReq, &sequence, &[0; 72]);
        term[4..8].copy_from_slice(&plen.to_le_bytes());
        let error = feed(&mut connection, &term, 10).expect_err("the end");
        assert_eq!(connection.term_req(&error), None, "{plen}: {error}");
        assert!(!connection.is_ready());
    }
}

#[test]
fn nothing_but_icresp_may_come_first() {
    let mut connection = Connection::new(&config(NONE), |_| ());
    let early = response(NONE, Cqe::new(0, Status::SUCCESS));
    assert_eq!(
        feed(&mut connection, &early, 64),
        Err(PduError::Sequence { pdu: PduType::CapsuleResp }.into())
    );
}

/// Method: every CPDA, with and without header digests, in-capsule data and data that is asked for.
#[test]
fn data_starts_where_any_cpda_asks() {
    for (cpda, digests) in (0..=31).flat_map(|cpda| [(cpda, NONE), (cpda, BOTH)]) {
        let mut connection = Connection::new(&config(digests), |_| ());
        let response = IcResp { cpda, ..IcResp::new(digests, 4096) };
        assert_eq!(connection.on_bytes(response.as_bytes()), Ok((128, Some(Event::Ready))));
        let alignment = 4 * (usize::from(cpda) + 1);
        let first = |end: usize| end.div_ceil(alignment) * alignment;
        let sqe = Sqe::new(IoOpcode::WRITE.0, 1);
        let mut capsule = Vec::new();
        connection
            .submit(Instant(0), &sqe, Transfer::ToController(512), None, |bytes| {
                capsule.extend_from_slice(bytes);
            })
            .expect("a free slot");
        let end = if digests.header { 76 } else { 72 };
        assert_eq!(capsule.len(), first(end), "CPDA {cpda}, {digests:?}");
        assert_eq!(usize::from(capsule[3]), first(end), "CPDA {cpda}, {digests:?}");
        let (_, large) = submit(&mut connection, IoOpcode::WRITE, Transfer::ToController(8192));
        let cid = large.sqe.cid.get();
        let r2t = with_digest(digests, R2t::new(cid, 7, (0, 8192), digests).as_bytes());
        let (events, _) = feed(&mut connection, &r2t, 99).expect("honest");
        let [Event::R2t(request)] = events[..] else { panic!("{events:?}") };
        let pdu = connection.h2c_pdus(request).next().expect("data is asked for");
        let end = if digests.header { 28 } else { 24 };
        assert_eq!(pdu.header.as_bytes().len(), first(end), "CPDA {cpda}, {digests:?}");
    }
}

/// Data in the capsule is what fits there, and the data of a Connect.
#[test]
fn data_goes_in_the_capsule_as_far_as_the_controller_takes_it() {
    let mut connection = ready(NONE, 4096);
    let (write, connect) = (Sqe::new(IoOpcode::WRITE.0, 1), Sqe::new(0x7F, 0));
    assert!(connection.sends_in_capsule(&write, 4096));
    assert!(!connection.sends_in_capsule(&write, 4097));
    connection.set_in_capsule_max(0);
    for (len, fits) in [(1, true), (1023, true), (1024, true), (1025, false), (4096, false)] {
        assert!(!connection.sends_in_capsule(&write, len), "{len}");
        assert_eq!(connection.sends_in_capsule(&connect, len), fits, "{len}");
    }
    connection.set_in_capsule_max(8192);
    assert!(connection.sends_in_capsule(&write, 8192));
    assert!(!connection.sends_in_capsule(&write, 8193));
}

/// PSDT is that of SGLs whatever the command says, and its other flags stay.
#[test]
fn a_command_keeps_its_flags_beside_psdt() {
    let mut connection = ready(NONE, 4096);
    for (flags, sent) in [(0, 0x40), (0x01, 0x41), (0x42, 0x42)] {
        let sqe = Sqe { flags, ..Sqe::new(IoOpcode::WRITE.0, 1) };
        let mut capsule = Vec::new();
        connection
            .submit(Instant(0), &sqe, Transfer::None, None, |bytes| {
                capsule.extend_from_slice(bytes);
            })
            .expect("a free slot");
        assert_eq!(capsule[9], sent, "{flags:#x}");
    }
}

/// Every command counts, from its capsule to its completion.
#[test]
fn outstanding_commands_are_counted() {
    let mut connection = ready(NONE, 4096);
    let mut cids = Vec::new();
    for outstanding in 0..4 {
        assert_eq!(
            (connection.outstanding(), connection.free_slots()),
            (outstanding, 4 - outstanding)
        );
        cids.push(submit(&mut connection, IoOpcode::FLUSH, Transfer::None).1.sqe.cid.get());
    }
    for (ended, cid) in cids.into_iter().enumerate() {
        assert_eq!((connection.outstanding(), connection.free_slots()), (4 - ended, ended));
        let done = response(NONE, Cqe::new(cid, Status::SUCCESS));
        feed(&mut connection, &done, 99).expect("honest");
    }
    assert_eq!((connection.outstanding(), connection.free_slots()), (0, 4));
}

proptest! {
    /// INITIATOR-4: any bytes, in any pieces, are events or one error.
    #[test]
    fn no_bytes_make_the_connection_panic(
        noise in proptest::collection::vec(any::<u8>(), 0..600),
        types in proptest::collection::vec((0u8..10, 0u16..8, 0u32..5000, 0u32..5000), 1..8),
        piece in 1usize..200,
        digests in any::<bool>(),
    ) {
        let digests = if digests { BOTH } else { NONE };
        let mut connection = ready(digests, 4096);
        submit(&mut connection, IoOpcode::READ, Transfer::ToHost(4096));
        submit(&mut connection, IoOpcode::WRITE, Transfer::ToController(8192));
        let mut stream = Vec::new();
        for (kind, cid, offset, len) in types {
            match kind {
                0 => stream.extend(with_digest(
                    digests, R2t::new(cid, 1, (offset, len), digests).as_bytes())),
                1..6 => stream.extend(c2h(
                    digests, cid, offset & 0xC00, &vec![0; len as usize], PduFlags(kind << 1 & 0xC))),
                _ => stream.extend(response(digests, Cqe::new(cid, Status::INTERNAL_ERROR))),
            }
        }
        stream.extend(noise);
        let _ = feed(&mut connection, &stream, piece);
    }
}
