//! Hosts that break one rule each at a live core: each is told which one, nothing stays behind, and no other
//! host notices (PLANE-2, PLANE-3).

use nvme_frontend::nqn_of;
use nvme_wire::fabrics::{CONNECT_DATA_LEN, Connect, Property, PropertySize};
use nvme_wire::io::Abort;
use nvme_wire::pdu::{Digests, FatalErrorStatus, H2cData, R2t, TermReq};
use nvme_wire::property::offset;
use nvme_wire::{AdminOpcode, Cqe, SglDescriptor, Sqe, Status};
use units::{Duration, Lba};
use zerocopy::{FromBytes, IntoBytes};

use crate::support::VOLUME;
use crate::support::raw_host::{
    self, CAPSULE_RESP, RawHost, capsule, connect_command, greeting, read_command, write_command,
};
use crate::support::siege::{BLOCKS, besieged};

const C2H_TERM_REQ: u8 = 3;
const R2T: u8 = 9;
/// Bytes of a write that is too long for a capsule.
const LONG: u32 = 8 * 4096;

/// H2CData of `range` for the command and tag `ids`.
fn solicited(ids: (u16, u16), range: (u32, u32), last: bool) -> Vec<u8> {
    let header = H2cData::new(ids, range, last, Digests::default(), 4);
    [header.as_bytes(), &vec![0xD7; range.1 as usize]].concat()
}

/// Sends a long write of command `cid` and returns what it is asked.
async fn asked(io: &mut RawHost, cid: u16) -> R2t {
    io.send(&capsule(cid, write_command(512, 8), &[])).await.expect("sent");
    let bytes = io.receive(24).await.expect("an R2T");
    assert_eq!(bytes[0], R2T);
    R2t::read_from_bytes(&bytes).expect("24 bytes")
}

async fn completion(host: &mut RawHost) -> Cqe {
    let bytes = host.receive(24).await.expect("a completion");
    assert_eq!(bytes[0], CAPSULE_RESP);
    Cqe::read_from_bytes(&bytes[8..]).expect("16 bytes")
}

/// FES and FEI of what ends the connection, the only thing that is said.
async fn last_words(host: &mut RawHost) -> (FatalErrorStatus, u32) {
    let bytes = host.wait_for_close().await;
    assert_eq!(bytes.first(), Some(&C2H_TERM_REQ), "{bytes:?}");
    let head = TermReq::read_from_prefix(&bytes).expect("24 bytes").0;
    (head.status(), head.fei.get())
}

/// Method: an I/O queue has two R2Ts of its own and the first 4096 bytes for one of them are there; then comes a
/// PDU that breaks a rule.
#[test]
fn a_pdu_that_breaks_a_rule_ends_its_connection_by_name() {
    besieged(1, |siege| async move {
        let (field, sequence) =
            (FatalErrorStatus::INVALID_PDU_HEADER_FIELD, FatalErrorStatus::PDU_SEQUENCE_ERROR);
        let out_of_range = FatalErrorStatus::DATA_TRANSFER_OUT_OF_RANGE;
        type Breach = fn((u16, u16), (u16, u16)) -> Vec<u8>;
        let breaches: [(&str, Breach, FatalErrorStatus, u32); 10] = [
            ("repeated data", |a, _| solicited(a, (0, 4096), false), sequence, 0),
            ("overlapping data", |a, _| solicited(a, (2048, 4096), false), sequence, 0),
            ("data behind a gap", |a, _| solicited(a, (8192, 4096), false), sequence, 0),
            ("another's tag", |a, b| solicited((a.0, b.1), (4096, 4096), false), field, 8),
            ("no one's tag", |a, _| solicited((a.0, 77), (4096, 4096), false), field, 10),
            ("data beyond the end", |a, _| solicited(a, (4096, LONG), true), out_of_range, 0),
            ("no data", |a, _| solicited(a, (4096, 0), false), field, 4),
            ("a second greeting", |_, _| greeting(), sequence, 0),
            ("a controller's PDU", |_, _| vec![C2H_TERM_REQ; 24], field, 0),
            ("no PDU", |_, _| vec![0xEE; 3000], field, 0),
        ];
        for (name, breach, fes, fei) in breaches {
            let (mut io, admin) = siege.io_queue().await;
            let (a, b) = (asked(&mut io, 1).await, asked(&mut io, 2).await);
            let ids = |ask: &R2t| (ask.cccid.get(), ask.ttag.get());
            io.send(&solicited(ids(&a), (0, 4096), false)).await.expect(name);
            io.send(&breach(ids(&a), ids(&b))).await.expect(name);
            assert_eq!(last_words(&mut io).await, (fes, fei), "{name}");
            siege.assert_over_without(&[&admin]).await;
        }
    });
}

/// Method: commands that are wrong in one point each; the connection then does what is right.
#[test]
fn a_command_that_breaks_a_rule_is_refused_by_name() {
    besieged(2, |siege| async move {
        let (mut io, mut admin) = siege.io_queue().await;
        let read = read_command(0, 1);
        let transport = SglDescriptor::transport(4096);
        let keyed = SglDescriptor { identifier: 0x40, ..transport };
        let (again, who) = connect_command(1, 1, &nqn_of(VOLUME));
        for (name, sqe, bytes, status) in [
            ("PRP", Sqe { flags: 0, ..read }, &[][..], Status::INVALID_FIELD),
            ("FUSE", Sqe { flags: 0x43, ..read }, &[], Status::INVALID_FIELD),
            ("NSID", Sqe { nsid: 2.into(), ..read }, &[], Status::INVALID_NAMESPACE_OR_FORMAT),
            ("SLBA", read_command(BLOCKS, 1), &[], Status::LBA_OUT_OF_RANGE),
            ("NLB", read_command(BLOCKS - 1, 2), &[], Status::LBA_OUT_OF_RANGE),
            ("MDTS", read_command(0, 257), &[], Status::INVALID_FIELD),
            ("SGL", Sqe { dptr: keyed, ..read }, &[], Status::SGL_DESCRIPTOR_TYPE_INVALID),
            (
                "length",
                Sqe { dptr: transport, ..read_command(0, 2) },
                &[],
                Status::DATA_SGL_LENGTH_INVALID,
            ),
            ("opcode", Sqe::new(0x7E, 1), &[], Status::INVALID_OPCODE),
            ("Connect", again, &who[..], Status::COMMAND_SEQUENCE_ERROR),
        ] {
            let cqe = io.command(sqe, bytes).await.expect(name);
            assert_eq!(cqe.status(), status.with_dnr(), "{name}");
        }
        for attrib in 2..8 {
            let property = Property::set(offset::CC, PropertySize::Four, 0);
            let odd = Sqe::from(Property { attrib, ..property });
            let cqe = admin.command(odd, &[]).await.expect("answered");
            assert_eq!(cqe.status(), Status::INVALID_FIELD.with_dnr(), "ATTRIB {attrib}");
        }
        io.send(&capsule(9, read, &[])).await.expect("sent");
        io.receive(24 + 4096).await.expect("data");
        assert!(completion(&mut io).await.status().is_success());
        siege.assert_over_without(&[&io, &admin]).await;
    });
}

/// Queues of one entry, which are none, and of two, the smallest.
#[test]
fn a_queue_has_two_entries_or_more() {
    besieged(3, |siege| async move {
        let (first, admin) = siege.io_queue().await;
        let mut io = RawHost::greet(&siege.world).await.expect("greeted");
        // The good host has the first controller, the stranger the second.
        let (_, who) = connect_command(2, 2, &nqn_of(VOLUME));
        for (sqsize, status) in [
            (0, Status::CONNECT_INVALID_PARAMETERS.with_dnr()),
            (128, Status::CONNECT_INVALID_PARAMETERS.with_dnr()),
            (1, Status::SUCCESS),
        ] {
            let connect = Connect { sqsize: sqsize.into(), ..Connect::new(2, 2, 0) };
            let mut sqe = Sqe::from(connect);
            sqe.dptr = SglDescriptor::in_capsule(CONNECT_DATA_LEN);
            let cqe = io.command(sqe, &who).await.expect("answered");
            assert_eq!(cqe.status(), status, "SQSIZE {sqsize}");
        }
        for cid in 0..100 {
            io.send(&capsule(cid, read_command(0, 1), &[])).await.expect("sent");
            io.receive(24 + 4096 + 24).await.expect("data and a completion");
        }
        siege.assert_over_without(&[&first, &admin, &io]).await;
    });
}

/// An Abort of a command whose data is asked for takes nothing back: the data may come, and is written.
#[test]
fn an_abort_leaves_a_write_that_was_asked_for_its_data() {
    besieged(4, |siege| async move {
        let (mut io, mut admin) = siege.io_queue().await;
        let ask = asked(&mut io, 5).await;
        let ids = (ask.cccid.get(), ask.ttag.get());
        io.send(&solicited(ids, (0, 4096), false)).await.expect("sent");
        let abort = admin.command(Abort { sqid: 1, cid: 5 }.encode(), &[]).await.expect("answered");
        assert_eq!((abort.status(), abort.dw0()), (Status::SUCCESS, Abort::NOT_ABORTED));
        io.send(&solicited(ids, (4096, LONG - 4096), true)).await.expect("sent");
        assert!(completion(&mut io).await.status().is_success());
        let written = siege.good.read(Lba(512), 8).await.expect("read");
        assert!(written.as_bytes().iter().all(|byte| *byte == 0xD7));
        drop(written);
        siege.assert_over_without(&[&io, &admin]).await;
    });
}

/// Method: on as many admin queues as a few hosts may have, Asynchronous Event Requests beyond the limit and Aborts
/// of what is there and what is not, thousands of them, sent without reading an answer. The good host works on.
#[test]
fn a_storm_of_aborts_and_event_requests_harms_no_other_host() {
    besieged(5, |siege| async move {
        let mut storm = Vec::new();
        for _ in 0..8 {
            storm.push(siege.io_queue().await);
        }
        let request = Sqe::new(AdminOpcode::ASYNC_EVENT_REQUEST.0, 0);
        for _ in 0..40 {
            for (_, admin) in &mut storm {
                let requests = (0..8).flat_map(|cid| capsule(cid, request, &[]));
                let aborts = (0..16).flat_map(|cid| {
                    let abort = Abort { sqid: u16::from(cid % 2 == 1), cid: cid / 2 };
                    capsule(100 + cid, abort.encode(), &[])
                });
                admin.send(&requests.chain(aborts).collect::<Vec<u8>>()).await.expect("taken in");
            }
            siege.good.read(Lba(0), 1).await.expect("served");
        }
        for (_, admin) in &mut storm {
            let (mut limited, mut aborted) = (0, 0);
            for _ in 0..40 * (8 + 16) {
                let status = completion(admin).await.status().code();
                limited += usize::from(status == Status::ASYNC_EVENT_LIMIT_EXCEEDED);
                aborted += usize::from(status == Status::ABORT_REQUESTED);
            }
            assert_eq!((limited, aborted), (40 * 4, 40 * 4), "each is answered");
        }
        let strangers: Vec<&RawHost> = storm.iter().flat_map(|(io, admin)| [io, admin]).collect();
        siege.assert_over_without(&strangers).await;
    });
}

/// Method: Keep Alive Timeouts of a millisecond and of seven weeks. The one is a tenth of a second and over soon, the
/// other outlasts a day of silence.
#[test]
fn keep_alive_timers_may_be_as_short_and_as_long_as_can_be_said() {
    besieged(6, |siege| async move {
        let mut hosts = Vec::new();
        for kato_ms in [1, u32::MAX] {
            let mut admin = RawHost::greet(&siege.world).await.expect("greeted");
            let (mut sqe, who) = connect_command(0, 0xFFFF, &nqn_of(VOLUME));
            sqe.cdw12 = kato_ms.into();
            let cqe = admin.command(sqe, &who).await.expect("answered");
            assert!(cqe.status().is_success(), "KATO {kato_ms}");
            let cqe = admin.command(raw_host::enable_command(), &[]).await.expect("answered");
            assert!(cqe.status().is_success(), "the timer begins");
            hosts.push(admin);
        }
        siege.sleep(Duration::from_secs(2)).await;
        assert_eq!(siege.strangers(), 1, "the short one is over");
        siege.sleep(Duration::from_secs(86_400)).await;
        let keep_alive = Sqe::new(AdminOpcode::KEEP_ALIVE.0, 0);
        let cqe = hosts[1].command(keep_alive, &[]).await.expect("it lives");
        assert!(cqe.status().is_success());
        siege.assert_over_without(&[&hosts[1]]).await;
    });
}
