use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use alloc::{format, vec};

use checksum::crc32c;
use iscsi_wire::cdb::opcode as scsi;
use iscsi_wire::pdu::{self, BHS_LEN, Bhs, FINAL, Lengths, NO_TAG, READ, WRITE, opcode};
use iscsi_wire::sense::ScsiStatus;
use iscsi_wire::{Cdb, Sense, text};
use proptest::prelude::*;
use units::Instant;

use super::*;
use crate::chap::Algorithm;
use crate::login::{Authentication, ChapSecret, Secrets};

const NOW: Instant = Instant(1_000_000_000);
const CHALLENGE: [u8; 32] = [0x5A; 32];
const SECRET: &[u8] = b"a secret of 16 b";
const MUTUAL: &[u8] = b"another of 16 by";

/// A PDU that the target has sent.
#[derive(Debug)]
struct Sent {
    bhs: Bhs,
    data: Vec<u8>,
}

/// Takes what was sent apart, and checks lengths, padding and digests.
fn sent(out: &mut Vec<u8>, digests: (bool, bool)) -> Vec<Sent> {
    let (mut rest, mut all) = (out.as_slice(), Vec::new());
    while let Some((header, tail)) = rest.split_first_chunk::<BHS_LEN>() {
        let (bhs, mut tail) = (Bhs::decode(header), tail);
        if digests.0 {
            let (sum, behind) = tail.split_first_chunk::<4>().expect("a header digest");
            assert_eq!(u32::from_le_bytes(*sum), crc32c(header));
            tail = behind;
        }
        let len = bhs.lengths.data_len();
        let (data, behind) = tail.split_at(len.next_multiple_of(4));
        assert!(data[len..].iter().all(|byte| *byte == 0), "padding");
        rest = behind;
        if digests.1 && len > 0 {
            let (sum, behind) = rest.split_first_chunk::<4>().expect("a data digest");
            assert_eq!(u32::from_le_bytes(*sum), crc32c(data));
            rest = behind;
        }
        all.push(Sent { bhs, data: data[..len].to_vec() });
    }
    assert!(rest.is_empty(), "whole PDUs");
    out.clear();
    all
}

/// A PDU with its data, as an initiator sends it.
fn pdu(mut header: [u8; BHS_LEN], data: &[u8], digests: (bool, bool)) -> Vec<u8> {
    header[5..8].copy_from_slice(&Lengths::of_data(data.len()).data);
    let mut bytes = header.to_vec();
    if digests.0 {
        bytes.extend_from_slice(&crc32c(&header).to_le_bytes());
    }
    let mut padded = data.to_vec();
    padded.resize(data.len().next_multiple_of(4), 0);
    bytes.extend_from_slice(&padded);
    if digests.1 && !data.is_empty() {
        bytes.extend_from_slice(&crc32c(&padded).to_le_bytes());
    }
    bytes
}

fn admission(authentication: Option<Authentication>) -> Admission {
    Admission { tsih: 7, authentication }
}

fn authentication() -> Authentication {
    let secrets_of = |user: &str| {
        let secret = ChapSecret {
            secret: SECRET.to_vec().into(),
            mutual: Some(MUTUAL.to_vec().into()),
            target_name: "iqn.2026-01.io.farflash:a".into(),
        };
        let known = if user == "me" { vec![secret] } else { Vec::new() };
        Secrets { known, refusal: pdu::login_status::AUTHENTICATION_FAILURE }
    };
    Authentication { id: 9, challenge: CHALLENGE.to_vec(), secrets_of: Box::new(secrets_of) }
}

/// A connection under test and what its initiator does.
struct Peer {
    target: Connection,
    out: Vec<u8>,
    digests: (bool, bool),
    cmd_sn: u32,
}

/// A step without its bytes.
#[derive(Clone, Debug, PartialEq)]
enum Seen {
    Command(TaskId),
    Data(u32, Vec<u8>),
    Solicit(TaskId),
    Ready(TaskId),
    Targets(String),
    Manage(u8),
    Disordered(TaskId),
    LoggedIn,
    Login,
    Closed(CloseReason),
}

impl Peer {
    fn new() -> Self {
        let target = Connection::new(NOW, &Limits::default());
        Self { target, out: Vec::new(), digests: (false, false), cmd_sn: 100 }
    }

    /// A peer in full feature phase, with these keys negotiated.
    fn logged_in(keys: &[(&str, &str)]) -> Self {
        let mut peer = Self::new();
        let names =
            [("InitiatorName", "iqn.2026-01.a:b"), ("TargetName", "iqn.2026-01.io.farflash:a")];
        let steps = peer.login(0x87, &[&names, keys].concat(), None);
        assert_eq!(steps, [Seen::Login, Seen::LoggedIn]);
        let digest = |key| keys.contains(&(key, "CRC32C"));
        sent(&mut peer.out, (false, false));
        peer.digests = (digest("HeaderDigest"), digest("DataDigest"));
        peer
    }

    fn login(
        &mut self,
        flags: u8,
        pairs: &[(&str, &str)],
        demanded: Option<Authentication>,
    ) -> Vec<Seen> {
        let mut request: pdu::LoginRequest = pdu::blank(opcode::LOGIN_REQUEST | pdu::IMMEDIATE);
        request.flags = flags;
        (request.isid, request.cmd_sn) = ([1; 6], self.cmd_sn.into());
        let mut data = Vec::new();
        pairs.iter().for_each(|(key, value)| text::put(&mut data, key, value));
        let bytes = pdu(request.encode(), &data, (false, false));
        self.feed(&bytes, demanded)
    }

    /// Feeds bytes, one by one if there are few, and collects the steps.
    fn feed(&mut self, bytes: &[u8], mut demanded: Option<Authentication>) -> Vec<Seen> {
        let mut seen = Vec::new();
        let piece = if bytes.len() < 4096 { 7 } else { bytes.len() };
        for mut input in bytes.chunks(piece) {
            loop {
                let step = self.target.poll(NOW, &mut input, &mut self.out);
                let step = match step {
                    Step::NeedMore => break,
                    Step::Login(_) => {
                        seen.push(Seen::Login);
                        let admission = admission(demanded.take());
                        match self.target.admit(admission, &mut self.out) {
                            Some(step) => step,
                            None => continue,
                        }
                    }
                    step => step,
                };
                match step {
                    Step::Command(task) => {
                        let (writable, _) = self.target.expected(task);
                        self.target.expect(task, writable);
                        seen.push(Seen::Command(task));
                    }
                    Step::Data { offset, bytes, .. } => match seen.last_mut() {
                        Some(Seen::Data(from, before)) if *from + before.len() as u32 == offset => {
                            before.extend_from_slice(bytes);
                        }
                        _ => seen.push(Seen::Data(offset, bytes.to_vec())),
                    },
                    Step::Solicit(task) => seen.push(Seen::Solicit(task)),
                    Step::Ready(task) => seen.push(Seen::Ready(task)),
                    Step::SendTargets(which) => seen.push(Seen::Targets(which)),
                    Step::Disordered(task) => seen.push(Seen::Disordered(task)),
                    Step::Manage(request) => seen.push(Seen::Manage(request.flags & 0x7F)),
                    Step::LoggedIn => seen.push(Seen::LoggedIn),
                    Step::Closed(reason) => seen.push(Seen::Closed(reason)),
                    Step::NeedMore | Step::Login(_) => unreachable!("handled before"),
                }
            }
        }
        seen
    }

    fn command(&mut self, flags: u8, cdb: Cdb, edtl: u32, data: &[u8]) -> Vec<Seen> {
        let mut command: pdu::ScsiCommand = pdu::blank(opcode::SCSI_COMMAND);
        (command.flags, command.cdb, command.edtl) = (flags, cdb.0, edtl.into());
        (command.itt, command.cmd_sn) = (self.cmd_sn.into(), self.cmd_sn.into());
        self.cmd_sn += 1;
        let bytes = pdu(command.encode(), data, self.digests);
        self.feed(&bytes, None)
    }

    fn data_out(&mut self, r2t: &pdu::R2t, sn: u32, part: (u32, u32), flags: u8) -> Vec<Seen> {
        let mut data: pdu::DataOut = pdu::blank(opcode::DATA_OUT);
        (data.flags, data.itt, data.ttt) = (flags, r2t.itt, r2t.ttt);
        (data.data_sn, data.buffer_offset) = (sn.into(), part.0.into());
        let bytes: Vec<u8> = (part.0..part.1).map(|at| at as u8).collect();
        let bytes = pdu(data.encode(), &bytes, self.digests);
        self.feed(&bytes, None)
    }

    fn sent(&mut self) -> Vec<Sent> {
        sent(&mut self.out, self.digests)
    }

    fn r2ts(&mut self) -> Vec<pdu::R2t> {
        let sent = self.sent();
        assert!(sent.iter().all(|it| it.bhs.opcode == opcode::R2T), "{sent:?}");
        sent.iter().map(|it| pdu::R2t::decode(&it.bhs.encode())).collect()
    }
}

fn read(blocks: u32) -> Cdb {
    Cdb::with_blocks(scsi::READ_10, 0, blocks)
}

fn write(blocks: u32) -> Cdb {
    Cdb::with_blocks(scsi::WRITE_10, 0, blocks)
}

const TASK: TaskId = TaskId(0);

#[test]
fn a_login_without_authentication_ends_in_one_request() {
    let mut peer = Peer::new();
    let names = [("InitiatorName", "iqn.2026-01.a:b"), ("TargetName", "iqn.2026-01.io.farflash:a")];
    assert_eq!(peer.login(0x87, &names, None), [Seen::Login, Seen::LoggedIn]);
    let sent = peer.sent();
    let response = pdu::LoginResponse::decode(&sent[0].bhs.encode());
    assert_eq!((response.flags, response.status, response.tsih.get()), (0x87, [0, 0], 7));
    assert_eq!(
        (response.sequence.exp_cmd_sn.get(), response.sequence.max_cmd_sn.get()),
        (100, 227)
    );
    let pairs = text::pairs(&sent[0].data).expect("text");
    assert_eq!(pairs, [("TargetPortalGroupTag", "1"), ("MaxRecvDataSegmentLength", "262144")]);
}

#[test]
fn names_are_needed() {
    let refused = |pairs: &[(&str, &str)]| match Peer::new().login(0x87, pairs, None)[..] {
        [Seen::Closed(CloseReason::LoginRefused(status))] => status,
        ref other => panic!("{other:?}"),
    };
    let name = ("InitiatorName", "iqn.2026-01.a:b");
    assert_eq!(refused(&[("TargetName", "iqn.2026-01.b:b")]), [2, 7]);
    assert_eq!(refused(&[name]), [2, 7]);
    assert_eq!(refused(&[name, ("SessionType", "Other")]), [2, 9]);
    assert_eq!(refused(&[name, ("TargetName", "no name")]), [2, 3]);
}

/// Exchanges CHAP's keys. Returns the last steps and what was sent with them.
fn chap(
    proof: impl FnOnce(&[(&str, &str)]) -> Vec<(String, String)>,
) -> (Vec<Seen>, Vec<(String, String)>) {
    let mut peer = Peer::new();
    let names = [
        ("InitiatorName", "iqn.2026-01.a:b"),
        ("TargetName", "iqn.2026-01.io.farflash:a"),
        ("AuthMethod", "CHAP,None"),
    ];
    assert_eq!(peer.login(0x81, &names, Some(authentication())), [Seen::Login]);
    let sent = peer.sent();
    assert_eq!(sent[0].bhs.flags, 0, "it may not go on yet");
    assert_eq!(text::pairs(&sent[0].data).expect("text")[1], ("AuthMethod", "CHAP"));
    assert_eq!(peer.login(0x00, &[("CHAP_A", "6,7,5")], None), []);
    let sent = peer.sent();
    let proof = proof(&text::pairs(&sent[0].data).expect("text"));
    let proof: Vec<_> = proof.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
    let steps = peer.login(0x83, &proof, None);
    let sent = peer.sent();
    let answer = text::pairs(&sent[0].data).expect("text");
    (steps, answer.into_iter().map(|(key, value)| (key.into(), value.into())).collect())
}

fn pair(key: &str, value: &str) -> (String, String) {
    (key.into(), value.into())
}

#[test]
fn chap_is_passed_with_the_secret_and_in_both_directions() {
    let (steps, answer) = chap(|told| {
        let challenge = text::to_hex(&CHALLENGE);
        assert_eq!(told, [("CHAP_A", "7"), ("CHAP_I", "9"), ("CHAP_C", challenge.as_str())]);
        let response = Algorithm::Sha256.response(9, SECRET, &CHALLENGE);
        let own = vec![3; 1024];
        vec![
            pair("CHAP_N", "me"),
            pair("CHAP_R", &text::to_hex(&response)),
            pair("CHAP_I", "4"),
            pair("CHAP_C", &text::to_hex(&own)),
        ]
    });
    assert_eq!(steps, [Seen::LoggedIn]);
    let response = Algorithm::Sha256.response(4, MUTUAL, &[3; 1024]);
    assert_eq!(
        answer,
        [pair("CHAP_N", "iqn.2026-01.io.farflash:a"), pair("CHAP_R", &text::to_hex(&response))]
    );
}

#[test]
fn chap_fails_without_the_secret_or_by_reflection() {
    let proof = |user: &str, secret: &[u8], more: &[(String, String)]| {
        let response = Algorithm::Sha256.response(9, secret, &CHALLENGE);
        [&[pair("CHAP_N", user), pair("CHAP_R", &text::to_hex(&response))], more].concat()
    };
    let failure = [Seen::Closed(CloseReason::LoginRefused([2, 1]))];
    assert_eq!(chap(|_| proof("me", SECRET, &[])).0, [Seen::LoggedIn]);
    assert_eq!(chap(|_| proof("me", b"wrong", &[])).0, failure);
    assert_eq!(chap(|_| proof("you", SECRET, &[])).0, failure);
    let reflected = [pair("CHAP_I", "9"), pair("CHAP_C", &text::to_hex(&CHALLENGE))];
    assert_eq!(chap(|_| proof("me", SECRET, &reflected)).0, failure);
    let long = [pair("CHAP_I", "9"), pair("CHAP_C", &text::to_hex(&[3; 1025]))];
    assert_eq!(chap(|_| proof("me", SECRET, &long)).0, failure);
    assert_eq!(chap(|_| vec![pair("CHAP_N", "me")]).0, failure);
}

/// NEGOTIATION-1.
#[test]
fn authentication_that_is_demanded_cannot_be_skipped() {
    let names = [("InitiatorName", "iqn.2026-01.a:b"), ("TargetName", "iqn.2026-01.io.farflash:a")];
    let failure = [Seen::Login, Seen::Closed(CloseReason::LoginRefused([2, 1]))];
    assert_eq!(
        Peer::new().login(0x87, &names, Some(authentication())),
        failure,
        "operational at once"
    );
    let none = [&names[..], &[("AuthMethod", "None")]].concat();
    assert_eq!(Peer::new().login(0x83, &none, Some(authentication())), failure);
    let mut silent = Peer::new();
    assert_eq!(silent.login(0x83, &names, Some(authentication())), [Seen::Login]);
    assert_eq!(silent.sent()[0].bhs.flags, 0, "no transit");
    assert_eq!(silent.login(0x87, &[], None), [Seen::Closed(CloseReason::LoginRefused([2, 0]))]);
}

/// Residuals of a read: what the initiator expects against what there is.
#[test]
fn reads_tell_how_much_is_missing_or_left_over() {
    for (edtl, len, flag, residual) in
        [(4096, 4096, 0, 0), (8192, 4096, 2, 4096), (100, 4096, 4, 3996)]
    {
        let mut peer = Peer::logged_in(&[]);
        let steps = peer.command(FINAL | READ, read(1), edtl, &[]);
        assert_eq!(steps, [Seen::Command(TASK), Seen::Ready(TASK)]);
        peer.target.data_in_bytes(TASK, &vec![1; len], &mut peer.out);
        let sent = peer.sent();
        let data = pdu::DataIn::decode(&sent[0].bhs.encode());
        assert_eq!((data.flags, data.residual.get()), (FINAL | 1 | flag, residual), "{edtl}");
        assert_eq!(sent[0].data.len(), (edtl as usize).min(len));
    }
    let mut peer = Peer::logged_in(&[]);
    peer.command(FINAL, read(1), 0, &[]);
    peer.target.data_in_bytes(TASK, &[1; 4096], &mut peer.out);
    let response = pdu::ScsiResponse::decode(&peer.sent()[0].bhs.encode());
    assert_eq!((response.opcode, response.flags, response.residual.get()), (0x21, FINAL | 4, 4096));
}

#[test]
fn data_in_keeps_to_segments_and_bursts() {
    let keys = [
        ("MaxRecvDataSegmentLength", "4096"),
        ("MaxBurstLength", "10000"),
        ("HeaderDigest", "CRC32C"),
        ("DataDigest", "CRC32C"),
    ];
    let mut peer = Peer::logged_in(&keys);
    peer.command(FINAL | READ, read(5), 20_480, &[]);
    let bytes: Vec<u8> = (0..20_480_u32).map(|at| (at / 7) as u8).collect();
    peer.target.data_in_bytes(TASK, &bytes, &mut peer.out);
    let sent = peer.sent();
    let lens: Vec<usize> = sent.iter().map(|it| it.data.len()).collect();
    assert_eq!(lens, [4096, 4096, 1808, 4096, 4096, 1808, 480]);
    let mut whole = Vec::new();
    for (number, one) in sent.iter().enumerate() {
        let data = pdu::DataIn::decode(&one.bhs.encode());
        assert_eq!(
            (data.data_sn.get(), data.buffer_offset.get()),
            (number as u32, whole.len() as u32)
        );
        let is_end = whole.len() + one.data.len() == bytes.len();
        let ends_burst = matches!(number, 2 | 5) || is_end;
        assert_eq!(data.flags, if ends_burst { FINAL } else { 0 } | u8::from(is_end), "{number}");
        whole.extend_from_slice(&one.data);
    }
    assert_eq!(whole, bytes);
}

#[test]
fn writes_are_asked_for_by_several_r2ts_at_a_time() {
    let keys = [("MaxBurstLength", "4096"), ("MaxOutstandingR2T", "2"), ("InitialR2T", "Yes")];
    let mut peer = Peer::logged_in(&keys);
    let steps = peer.command(FINAL | WRITE, write(3), 12_288, &[1; 512]);
    let data = Seen::Data(0, vec![1; 512]);
    assert_eq!(steps, [Seen::Command(TASK), data, Seen::Solicit(TASK)]);
    assert!(peer.sent().is_empty(), "nothing is asked for before there is memory");
    peer.target.grant(TASK, &mut peer.out);
    let r2ts = peer.r2ts();
    let asked: Vec<_> = r2ts
        .iter()
        .map(|it| (it.buffer_offset.get(), it.desired_len.get(), it.r2t_sn.get()))
        .collect();
    assert_eq!(asked, [(512, 4096, 0), (4608, 4096, 1)]);
    peer.data_out(&r2ts[0], 0, (512, 2000), 0);
    assert!(peer.sent().is_empty());
    peer.data_out(&r2ts[0], 1, (2000, 4608), FINAL);
    let third = peer.r2ts();
    assert_eq!(
        (third[0].buffer_offset.get(), third[0].desired_len.get(), third[0].r2t_sn.get()),
        (8704, 3584, 2)
    );
    peer.data_out(&r2ts[1], 0, (4608, 8704), FINAL);
    let steps = peer.data_out(&third[0], 0, (8704, 12_288), FINAL);
    assert_eq!(steps.last(), Some(&Seen::Ready(TASK)));
    peer.target.complete(TASK, &Completion::good(12_288), &mut peer.out);
    let response = pdu::ScsiResponse::decode(&peer.sent()[0].bhs.encode());
    assert_eq!((response.flags, response.exp_data_sn.get()), (FINAL, 3));
}

#[test]
fn unsolicited_data_follows_its_command() {
    let keys = [("InitialR2T", "No"), ("FirstBurstLength", "8192"), ("DataDigest", "CRC32C")];
    let mut peer = Peer::logged_in(&keys);
    let steps = peer.command(WRITE, write(3), 12_288, &[1; 1000]);
    assert_eq!(steps, [Seen::Command(TASK), Seen::Data(0, vec![1; 1000])]);
    let mut loose: pdu::R2t = pdu::blank(opcode::R2T);
    (loose.itt, loose.ttt) = (100.into(), NO_TAG.into());
    peer.data_out(&loose, 0, (1000, 4096), 0);
    let steps = peer.data_out(&loose, 1, (4096, 8192), FINAL);
    assert_eq!(steps.last(), Some(&Seen::Solicit(TASK)));
    peer.target.grant(TASK, &mut peer.out);
    assert_eq!(peer.r2ts()[0].buffer_offset.get(), 8192);
}

#[test]
fn clients_of_other_protocols_are_named() {
    for (bytes, name) in [(&b"GET /v1/volumes HTTP/1.1\r\n"[..], "HTTP"), (&[0x16, 3, 1, 2], "TLS")]
    {
        let mut peer = Peer::new();
        let mut input = bytes;
        let step = peer.target.poll(NOW, &mut input, &mut peer.out);
        assert!(
            matches!(step, Step::Closed(CloseReason::OtherProtocol(found)) if found == name),
            "{name}"
        );
    }
}

#[test]
fn data_out_of_order_ends_the_connection() {
    let begin = || {
        let mut peer = Peer::logged_in(&[("MaxBurstLength", "8192")]);
        peer.command(FINAL | WRITE, write(2), 8192, &[]);
        peer.target.grant(TASK, &mut peer.out);
        let r2t = peer.r2ts()[0];
        (peer, r2t)
    };
    let is_refused = |sn, part, flags| {
        let (mut peer, r2t) = begin();
        let steps = peer.data_out(&r2t, sn, part, flags);
        matches!(steps[..], [Seen::Closed(CloseReason::ProtocolError(_))])
    };
    assert!(!is_refused(0, (0, 8192), FINAL));
    let (mut peer, r2t) = begin();
    assert_eq!(peer.data_out(&r2t, 1, (0, 8192), FINAL), [Seen::Disordered(TASK)], "DataSN");
    assert!(is_refused(0, (4, 8192), FINAL), "offset");
    assert!(is_refused(0, (0, 8196), FINAL), "too long");
    assert!(is_refused(0, (0, 4096), FINAL), "FINAL too early");
    assert!(is_refused(0, (0, 8192), 0), "FINAL is missing");
}

#[test]
fn command_numbers_have_a_window() {
    let mut peer = Peer::logged_in(&[]);
    peer.cmd_sn = 400;
    assert_eq!(peer.command(FINAL | READ, read(1), 4096, &[]), [], "beyond the window");
    peer.cmd_sn = 99;
    assert_eq!(peer.command(FINAL | READ, read(1), 4096, &[]), [], "before it");
    peer.cmd_sn = 100;
    for number in 0..128_u8 {
        let id = TaskId(number);
        assert_eq!(
            peer.command(FINAL | READ, read(1), 4096, &[]),
            [Seen::Command(id), Seen::Ready(id)]
        );
    }
    assert_eq!(peer.command(FINAL | READ, read(1), 4096, &[]), [], "the window is closed");
    peer.target.complete(TASK, &Completion::refused(ScsiStatus::Busy), &mut peer.out);
    let response = pdu::ScsiResponse::decode(&peer.sent()[0].bhs.encode());
    let sequence = response.sequence;
    assert_eq!((sequence.exp_cmd_sn.get(), sequence.max_cmd_sn.get()), (228, 228));
    peer.cmd_sn = 228;
    assert_eq!(peer.command(FINAL | READ, read(1), 4096, &[]).len(), 2);
}

#[test]
fn failures_carry_sense_data_and_residuals() {
    let mut peer = Peer::logged_in(&[]);
    peer.command(FINAL | READ, read(1), 4096, &[]);
    peer.target.complete(TASK, &Completion::failed(Sense::LBA_OUT_OF_RANGE), &mut peer.out);
    let sent = peer.sent();
    let response = pdu::ScsiResponse::decode(&sent[0].bhs.encode());
    assert_eq!((response.status, response.flags, response.residual.get()), (2, FINAL | 2, 4096));
    assert_eq!((sent[0].data.len(), &sent[0].data[..3]), (20, &[0, 18, 0x70][..]));
    assert_eq!(sent[0].data[14..16], [0x21, 0]);
}

#[test]
fn pings_are_answered_and_sent() {
    let mut peer = Peer::logged_in(&[]);
    let mut nop: pdu::NopOut = pdu::blank(opcode::NOP_OUT | pdu::IMMEDIATE);
    (nop.itt, nop.ttt, nop.cmd_sn) = (5.into(), NO_TAG.into(), 100.into());
    assert_eq!(peer.feed(&pdu(nop.encode(), b"hello", (false, false)), None), []);
    let sent = peer.sent();
    assert_eq!(
        (sent[0].bhs.opcode, sent[0].bhs.itt.get(), sent[0].data.as_slice()),
        (0x20, 5, &b"hello"[..])
    );
    let limits = Limits::default();
    let later = NOW + limits.idle + limits.idle;
    assert_eq!(peer.target.on_tick(later, &mut peer.out), None);
    let ping = pdu::NopIn::decode(&peer.sent()[0].bhs.encode());
    assert_eq!((ping.itt.get(), ping.ttt.get() == NO_TAG), (NO_TAG, false));
    let answer = |peer: &mut Peer| {
        (nop.itt, nop.ttt) = (NO_TAG.into(), ping.ttt);
        peer.feed(&pdu(nop.encode(), &[], (false, false)), None);
    };
    let too_late = later + limits.stall_timeout + limits.idle;
    let mut silent = Peer::logged_in(&[]);
    silent.target.on_tick(later, &mut silent.out);
    assert_eq!(silent.target.on_tick(too_late, &mut silent.out), Some(CloseReason::Stalled));
    let mut reading = Peer::logged_in(&[]);
    reading.target.on_tick(later, &mut reading.out);
    reading.target.on_taken(later + limits.idle);
    assert_eq!(reading.target.on_tick(too_late, &mut reading.out), None, "it has much to read");
    let mut answer = answer;
    answer(&mut peer);
    assert_eq!(peer.target.on_tick(too_late, &mut peer.out), None);
}

#[test]
fn long_text_answers_go_on_in_further_pdus() {
    let mut peer = Peer::logged_in(&[("MaxRecvDataSegmentLength", "512")]);
    let mut request: pdu::TextRequest = pdu::blank(opcode::TEXT_REQUEST);
    (request.itt, request.ttt, request.cmd_sn) = (5.into(), NO_TAG.into(), 100.into());
    let bytes = pdu(request.encode(), b"SendTargets=All\0", (false, false));
    assert_eq!(peer.feed(&bytes, None), [Seen::Targets("All".into())]);
    let answer: Vec<u8> = format!("TargetName={}\0", "x".repeat(800)).into_bytes();
    peer.target.answer_text(answer.clone(), &mut peer.out);
    let first = peer.sent().remove(0);
    assert_eq!((first.bhs.flags, first.data.len()), (pdu::CONTINUE, 512));
    (request.ttt, request.cmd_sn) = (first.bhs.rest[0], 101.into());
    peer.feed(&pdu(request.encode(), &[], (false, false)), None);
    let last = peer.sent().remove(0);
    assert_eq!((last.bhs.flags, last.bhs.rest[0].get()), (FINAL, NO_TAG));
    assert_eq!([first.data, last.data].concat(), answer);
}

#[test]
fn a_wrong_digest_ends_the_connection() {
    let keys = [("HeaderDigest", "CRC32C"), ("DataDigest", "CRC32C")];
    let mut peer = Peer::logged_in(&keys);
    let mut command: pdu::ScsiCommand = pdu::blank(opcode::SCSI_COMMAND);
    (command.flags, command.edtl, command.cmd_sn) = (FINAL | WRITE, 512.into(), 100.into());
    let sound = pdu(command.encode(), &[7; 512], peer.digests);
    for at in [3, 50, 60, sound.len() - 1] {
        let mut peer = Peer::logged_in(&keys);
        let mut bytes = sound.clone();
        bytes[at] ^= 1;
        let steps = peer.feed(&bytes, None);
        assert_eq!(steps.last(), Some(&Seen::Closed(CloseReason::Digest)), "byte {at}");
    }
    assert_eq!(peer.feed(&sound, None).last(), Some(&Seen::Ready(TASK)));
}

#[test]
fn aborted_tasks_are_not_answered() {
    let mut peer = Peer::logged_in(&[]);
    peer.command(FINAL | READ, read(1), 4096, &[]);
    peer.command(FINAL | WRITE, write(1), 4096, &[]);
    assert_eq!(peer.target.abort(77), Abort::Unknown);
    assert_eq!(peer.target.abort(101), Abort::Forgotten(TaskId(1)), "its data has not come");
    assert_eq!(peer.target.abort(100), Abort::Underway(TASK));
    assert_eq!(peer.target.abort(100), Abort::Unknown);
    peer.target.data_in_bytes(TASK, &[1; 4096], &mut peer.out);
    assert!(peer.sent().is_empty());
    assert_eq!(peer.target.in_flight(), 0);
}

proptest! {
    /// Whatever comes, and however it is divided, the connection takes it or ends, and what it says is whole.
    #[test]
    fn any_bytes_are_taken(bytes in prop::collection::vec(any::<u8>(), 0..2000), is_in: bool, opcode in 0_u8..0x40) {
        let mut peer = if is_in { Peer::logged_in(&[("InitialR2T", "No")]) } else { Peer::new() };
        let mut bytes = bytes;
        if let Some(first) = bytes.first_mut() {
            *first = opcode;
        }
        if bytes.len() > 8 {
            (bytes[4], bytes[5], bytes[6]) = (0, 0, bytes[6] & 1);
        }
        peer.feed(&bytes, None);
        peer.sent();
    }
}
