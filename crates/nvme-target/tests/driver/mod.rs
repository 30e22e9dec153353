//! A complete target over memory, as small as a driver of this crate can be: the tests and the fuzz
//! targets play a host against it. It also shows how the pieces fit together.

#![allow(dead_code, reason = "each test uses a part")]

use std::collections::{BTreeMap, VecDeque};

use checksum::crc32c;
use nvme_target::{
    AdminReply, Backend, CloseReason, ConnectRequest, Connection, Controller, ControllerEvent,
    ControllerKind, ControllerParameters, DiscoveryLog, Health, IoCommand, Limits, Namespace,
    NamespaceView, ReceivedBlocks, SlotId, Step, deallocate_ranges, decode_fused, decode_io,
};
use nvme_wire::discovery::{DiscoveryLogEntry, SUBTYPE_NVM};
use nvme_wire::fabrics::{self, CNTLID_DYNAMIC, Connect, ConnectData, Property, PropertySize};
use nvme_wire::pdu::{CapsuleCmd, CapsuleResp, CommonHeader, Digests, IcReq, PduType};
use nvme_wire::property::{Cc, offset};
use nvme_wire::{
    ControllerInstance, Cqe, CrossControllerReset, FabricsType, HostId, Nqn, SglDescriptor, Sqe,
    Status,
};
use units::{BLOCK_SIZE, Instant, LbaRange, MetadataSize, SectorSize};
use zerocopy::{FromBytes, IntoBytes};

pub(crate) const BLOCKS: u64 = 64;
pub(crate) const CNTLID: u16 = 7;
pub(crate) const UUID: [u8; 16] = [0x5A; 16];
pub(crate) const BOTH: Digests = Digests { header: true, data: true };
pub(crate) const NONE: Digests = Digests { header: false, data: false };
pub(crate) const ALL_DIGESTS: [Digests; 4] =
    [NONE, Digests { header: true, data: false }, Digests { header: false, data: true }, BOTH];

/// The volume behind the target, and what else it tells.
pub(crate) struct Volume {
    /// All blocks, each with its metadata behind its data.
    pub(crate) bytes: Vec<u8>,
    pub(crate) blocks: u64,
    pub(crate) metadata: MetadataSize,
    pub(crate) log: DiscoveryLog,
}

impl Volume {
    pub(crate) fn new(blocks: u64, metadata: MetadataSize) -> Self {
        let entry = DiscoveryLogEntry::tcp(
            SUBTYPE_NVM,
            &Nqn::from_uuid(&UUID),
            "127.0.0.1:4420".parse().expect("an address"),
        );
        let log = DiscoveryLog { genctr: 3, entries: vec![entry.into(); 3] };
        let bytes = vec![0; blocks as usize * (BLOCK_SIZE + metadata.bytes())];
        Self { bytes, blocks, metadata, log }
    }

    fn bytes_of(&mut self, range: LbaRange) -> &mut [u8] {
        let each = BLOCK_SIZE + self.metadata.bytes();
        let start = range.start.0 as usize * each;
        &mut self.bytes[start..start + range.blocks as usize * each]
    }

    pub(crate) fn view(&self) -> NamespaceView {
        NamespaceView {
            blocks: self.blocks,
            sector: SectorSize::Bytes4096,
            metadata: self.metadata,
            transfer_blocks_max: 256,
            read_only: false,
        }
    }
}

impl Backend for Volume {
    fn namespace(&self) -> Namespace {
        Namespace { blocks: self.blocks, used_blocks: 3, ..Namespace::default() }
    }

    fn health(&self) -> Health {
        Health { bytes_read: 1024 * 1000, media_errors: 2, ..Health::default() }
    }

    fn discovery_log(&self) -> Option<&DiscoveryLog> {
        Some(&self.log)
    }
}

#[derive(Default)]
struct Payload {
    buffer: Vec<u8>,
    blocks: ReceivedBlocks,
}

/// One connection and all that it needs.
pub(crate) struct Driver {
    pub(crate) connection: Connection,
    pub(crate) controller: Option<Controller>,
    pub(crate) volume: Volume,
    pub(crate) out: Vec<u8>,
    pub(crate) closed: Option<CloseReason>,
    /// Commands executed.
    pub(crate) executed: usize,
    /// True if solicited data is granted at once, and not by [`Driver::grant_all`].
    pub(crate) grants: bool,
    /// The data that waits to be granted.
    pub(crate) waiting: VecDeque<(SlotId, u32)>,
    /// The bytes of it that were granted.
    granted: BTreeMap<SlotId, u32>,
    payloads: Vec<Payload>,
    pub(crate) now: Instant,
}

impl Driver {
    pub(crate) fn new() -> Self {
        Self::with_limits(&Limits::default())
    }

    pub(crate) fn with_limits(limits: &Limits) -> Self {
        Self {
            connection: Connection::new(Instant(0), limits),
            controller: None,
            volume: Volume::new(BLOCKS, MetadataSize::None),
            out: Vec::new(),
            closed: None,
            executed: 0,
            grants: true,
            waiting: VecDeque::new(),
            granted: BTreeMap::new(),
            payloads: Vec::new(),
            now: Instant(0),
        }
    }

    /// Plays the connection of an I/O queue: the controller exists and is enabled.
    pub(crate) fn with_controller(mut self) -> Self {
        let request = connect_request(0);
        let mut controller = Controller::new(self.now, parameters(ControllerKind::Io), &request);
        let set = Property::set(offset::CC, PropertySize::Four, enable());
        controller.on_admin(self.now, SlotId(0), &Sqe::from(set), &[], &self.volume);
        self.controller = Some(controller);
        self
    }

    /// Takes what the host sent.
    pub(crate) fn feed(&mut self, bytes: &[u8]) {
        let mut input = bytes;
        loop {
            let step = self.connection.poll(self.now, &mut input, &mut self.out);
            match step {
                Step::NeedMore => break,
                Step::Closed(reason) => {
                    self.closed = Some(reason);
                    break;
                }
                step => self.on_step(step),
            }
        }
        assert!(input.is_empty(), "every byte is taken");
        self.drain_events();
    }

    fn drain_events(&mut self) {
        while let Some(event) = self.controller.as_mut().and_then(Controller::poll_event) {
            if let ControllerEvent::Async(done) = event {
                self.connection.complete(done.slot, done.status, done.result, &mut self.out);
            }
        }
    }

    fn on_step(&mut self, step: Step<'_>) {
        match step {
            Step::NeedMore | Step::Closed(_) => {}
            Step::Prepare { slot, len_bytes, solicited } => {
                if let Err(statuses) = self.check(slot) {
                    self.connection.refuse_halves(slot, statuses, &mut self.out);
                    return;
                }
                let payload = self.payload(slot);
                payload.buffer.clear();
                payload.buffer.resize(len_bytes as usize, 0);
                payload.blocks.reset();
                if solicited && self.grants {
                    self.connection.grant(self.now, slot, len_bytes, &mut self.out);
                } else if solicited {
                    self.waiting.push_back((slot, len_bytes));
                }
            }
            Step::Data { slot, offset, bytes } => {
                let payload = self.payload(slot);
                payload.blocks.copy(&mut payload.buffer, offset as usize, bytes);
            }
            Step::Digest { slot, offset, len_bytes, received } => {
                let payload = self.payload(slot);
                let digest =
                    payload.blocks.digest(&payload.buffer, offset as usize, len_bytes as usize);
                if digest != received {
                    self.connection.digest_failed(slot);
                }
            }
            Step::Discard { slot, .. } => self.payload(slot).buffer.clear(),
            Step::Refused { .. } => {}
            Step::Execute { slot } => {
                self.executed += 1;
                self.execute(slot);
            }
            Step::ExecuteFused { first, second } => {
                self.executed += 2;
                self.execute_fused(first, second);
            }
        }
    }

    /// Grants all that waits, `piece` bytes more at a time.
    pub(crate) fn grant_all(&mut self, piece: u32) {
        while let Some((slot, len_bytes)) = self.waiting.pop_front() {
            let mut granted = 0;
            while granted < len_bytes {
                granted = (granted + piece).min(len_bytes);
                self.connection.grant(self.now, slot, granted, &mut self.out);
            }
        }
    }

    /// Grants `piece` bytes more of all that waits; the rest goes on waiting.
    pub(crate) fn grant_some(&mut self, piece: u32) {
        for (slot, len_bytes) in &mut self.waiting {
            let granted = self.granted.entry(*slot).or_default();
            *granted = (*granted + piece).min(*len_bytes);
            self.connection.grant(self.now, *slot, *granted, &mut self.out);
        }
        let granted = &mut self.granted;
        self.waiting.retain(|(slot, len_bytes)| {
            let goes_on = granted[slot] < *len_bytes;
            if !goes_on {
                granted.remove(slot);
            }
            goes_on
        });
    }

    fn payload(&mut self, slot: SlotId) -> &mut Payload {
        if self.payloads.len() <= slot.index() {
            self.payloads.resize_with(slot.index() + 1, Payload::default);
        }
        &mut self.payloads[slot.index()]
    }

    /// Checks the command in `slot`. The error holds the status of the first half of the operation that it ends, if
    /// it does, and its own.
    fn check(&self, slot: SlotId) -> Result<(), (Status, Status)> {
        if matches!(self.connection.qid(), None | Some(0)) {
            return Ok(());
        }
        let (view, command) = (self.volume.view(), self.connection.command(slot));
        match self.connection.first_half_of(slot) {
            Some(first) => decode_fused(self.connection.command(first), command, &view).map(drop),
            None => decode_io(command, &view)
                .map(drop)
                .map_err(|status| (Status::ABORTED_FAILED_FUSED, status)),
        }
    }

    fn execute(&mut self, slot: SlotId) {
        let sqe = *self.connection.command(slot);
        let data = std::mem::take(&mut self.payload(slot).buffer);
        match self.connection.qid() {
            None => self.connect(slot, &sqe, &data),
            Some(0) => {
                let controller = self.controller.as_mut().expect("connected");
                let reply = controller.on_admin(self.now, slot, &sqe, &data, &self.volume);
                match reply {
                    AdminReply::Complete { status, result } => {
                        self.connection.complete(slot, status, result, &mut self.out);
                    }
                    AdminReply::Data { mut bytes, zeroes } => {
                        bytes.resize(bytes.len() + zeroes, 0);
                        self.reply(slot, &bytes);
                    }
                    AdminReply::Pending | AdminReply::Persist(_) => {}
                    AdminReply::Reset { id, .. } => {
                        // There is no other controller here.
                        let slot = controller.reset_ended(id).expect("it waits");
                        let done = u64::from(CrossControllerReset::DONE);
                        self.connection.complete(slot, Status::SUCCESS, done, &mut self.out);
                    }
                }
            }
            Some(_) => match self.execute_io(&sqe, &data) {
                Ok(bytes) => self.reply(slot, &bytes),
                Err(status) => self.connection.complete(slot, status, 0, &mut self.out),
            },
        }
    }

    fn execute_fused(&mut self, first: SlotId, second: SlotId) {
        let [expected, new] =
            [first, second].map(|slot| std::mem::take(&mut self.payload(slot).buffer));
        let [compare, write] = [first, second].map(|slot| *self.connection.command(slot));
        let outcome = decode_fused(&compare, &write, &self.volume.view()).and_then(|range| {
            if self.volume.bytes_of(range) != expected {
                return Err((Status::COMPARE_FAILURE, Status::ABORTED_FAILED_FUSED));
            }
            self.volume.bytes_of(range).copy_from_slice(&new);
            Ok(())
        });
        let (of_first, of_second) = outcome.err().unwrap_or((Status::SUCCESS, Status::SUCCESS));
        self.connection.complete(first, of_first, 0, &mut self.out);
        self.connection.complete(second, of_second, 0, &mut self.out);
    }

    fn reply(&mut self, slot: SlotId, bytes: &[u8]) {
        let len = bytes.len() as u32;
        let append = |out: &mut Vec<u8>| out.extend_from_slice(bytes);
        let digest = || crc32c(bytes);
        self.connection.complete_with_data(slot, len, digest, &mut self.out, append);
    }

    fn connect(&mut self, slot: SlotId, sqe: &Sqe, data: &[u8]) {
        let negotiated =
            ConnectRequest::decode(sqe, data, &Limits::default()).and_then(|request| {
                if request.qid > 0 {
                    let missing = nvme_target::ConnectRefusal::UNKNOWN_CONTROLLER;
                    return self.controller.as_mut().ok_or(missing)?.connect_io(&request);
                }
                let kind = if request.subsystem == Nqn::DISCOVERY {
                    ControllerKind::Discovery
                } else {
                    ControllerKind::Io
                };
                let controller = Controller::new(self.now, parameters(kind), &request);
                let negotiated = controller.accept_admin(&request);
                self.controller = Some(controller);
                Ok(negotiated)
            });
        match negotiated {
            Ok(negotiated) => self.connection.accept(slot, &negotiated, &mut self.out),
            Err(refusal) => {
                self.connection.complete(slot, refusal.status, refusal.result, &mut self.out);
            }
        }
    }

    fn execute_io(&mut self, sqe: &Sqe, data: &[u8]) -> Result<Vec<u8>, Status> {
        let view = self.volume.view();
        match decode_io(sqe, &view)? {
            IoCommand::Read { range } => return Ok(self.volume.bytes_of(range).to_vec()),
            IoCommand::Write { range, .. } => self.volume.bytes_of(range).copy_from_slice(data),
            IoCommand::WriteZeroes { range, .. } => self.volume.bytes_of(range).fill(0),
            IoCommand::Deallocate { ranges } => {
                for range in deallocate_ranges(data, ranges, &view)? {
                    self.volume.bytes_of(range).fill(0);
                }
            }
            IoCommand::Compare { range } => {
                if self.volume.bytes_of(range) != data {
                    return Err(Status::COMPARE_FAILURE.with_dnr());
                }
            }
            IoCommand::CompareAndWrite { range } => {
                let (expected, new) = data.split_at(data.len() / 2);
                if self.volume.bytes_of(range) != expected {
                    return Err(Status::COMPARE_FAILURE.with_dnr());
                }
                self.volume.bytes_of(range).copy_from_slice(new);
            }
            IoCommand::Flush
            | IoCommand::Hint
            | IoCommand::Verify { .. }
            | IoCommand::Reserve(_)
            | IoCommand::ReservationReport { .. }
            | IoCommand::Disconnect => {}
        }
        Ok(Vec::new())
    }

    /// The PDUs that the target has sent since the last call.
    pub(crate) fn replies(&mut self) -> Vec<Reply> {
        let bytes = std::mem::take(&mut self.out);
        split(&bytes, self.connection.digests())
    }

    /// The only completion since the last call.
    pub(crate) fn completion(&mut self) -> Cqe {
        let replies = self.replies();
        let [Reply { pdu: PduType::CapsuleResp, header, .. }] = replies.as_slice() else {
            panic!("one completion expected, got {replies:?}");
        };
        CapsuleResp::read_from_prefix(header).expect("a capsule").0.cqe
    }
}

/// A PDU from the target, its digests checked and removed.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Reply {
    pub(crate) pdu: PduType,
    pub(crate) header: Vec<u8>,
    pub(crate) data: Vec<u8>,
}

pub(crate) fn split(mut bytes: &[u8], digests: Digests) -> Vec<Reply> {
    let mut replies = Vec::new();
    while !bytes.is_empty() {
        let common = CommonHeader::from_prefix(bytes).expect("a whole header");
        let pdu = PduType::from_u8(common.pdu_type).expect("a PDU that exists");
        let layout = common.layout(digests, 4).expect("a sound header");
        let (whole, rest) = bytes.split_at(layout.plen);
        bytes = rest;
        let header = whole[..layout.header_len].to_vec();
        if layout.header_digest {
            let digest = &whole[layout.header_len..layout.header_end()];
            assert_eq!(digest, crc32c(&header).to_le_bytes(), "header digest");
        }
        let data_end = layout.data_offset + layout.data_len;
        let data = whole[layout.data_offset..data_end].to_vec();
        if layout.data_digest {
            assert_eq!(whole[data_end..], crc32c(&data).to_le_bytes(), "data digest");
        }
        replies.push(Reply { pdu, header, data });
    }
    replies
}

pub(crate) fn parameters(kind: ControllerKind) -> ControllerParameters {
    ControllerParameters {
        kind,
        instance: ControllerInstance { cntlid: CNTLID, ciu: 1, cirn: 1 },
        subsystem: subsystem(kind),
        serial: "0123456789".into(),
        model: "farflash".into(),
        firmware: "0.1.0".into(),
        limits: Limits::default(),
        volatile_write_cache: false,
        atomic_write_blocks: 256,
        uuid: UUID,
    }
}

pub(crate) fn subsystem(kind: ControllerKind) -> Nqn {
    match kind {
        ControllerKind::Io => Nqn::from_uuid(&UUID),
        ControllerKind::Discovery => Nqn::DISCOVERY,
    }
}

pub(crate) fn host() -> Nqn {
    Nqn::new("nqn.2014-08.org.example:host").expect("a name")
}

pub(crate) fn enable() -> u64 {
    u64::from(Cc::enabled(Cc::CSS_NVM).0)
}

pub(crate) fn connect_data(kind: ControllerKind, qid: u16) -> ConnectData {
    let cntlid = if qid == 0 { CNTLID_DYNAMIC } else { CNTLID };
    ConnectData::new(HostId([9; 16]), &host(), &subsystem(kind), cntlid)
}

pub(crate) fn connect_request(qid: u16) -> ConnectRequest {
    let data = connect_data(ControllerKind::Io, qid);
    let connect = Connect::new(qid, 32, 5000);
    ConnectRequest::decode(&Sqe::from(connect), data.as_bytes(), &Limits::default())
        .expect("well formed")
}

/// A PDU from the host, digests added.
pub(crate) fn pdu(header: &[u8], data: &[u8], digests: Digests) -> Vec<u8> {
    let common = CommonHeader::from_prefix(header).expect("a header");
    let mut bytes = header.to_vec();
    let has_digest = header[0] > 3;
    if digests.header && has_digest {
        bytes.extend_from_slice(&crc32c(header).to_le_bytes());
    }
    if !data.is_empty() {
        bytes.resize(usize::from(common.pdo), 0);
        bytes.extend_from_slice(data);
        if digests.data {
            bytes.extend_from_slice(&crc32c(data).to_le_bytes());
        }
    }
    bytes
}

/// A command capsule; with `data` it is in the capsule.
pub(crate) fn capsule(mut sqe: Sqe, cid: u16, data: &[u8], digests: Digests) -> Vec<u8> {
    sqe.cid = cid.into();
    if !data.is_empty() {
        sqe.dptr = SglDescriptor::in_capsule(data.len() as u32);
    }
    pdu(CapsuleCmd::new(sqe, data.len(), digests, 4).as_bytes(), data, digests)
}

pub(crate) fn ic_req(digests: Digests) -> Vec<u8> {
    IcReq::new(digests, 1).as_bytes().to_vec()
}

pub(crate) fn connect_capsule(
    kind: ControllerKind,
    qid: u16,
    cattr: u8,
    digests: Digests,
) -> Vec<u8> {
    let connect = Connect { cattr, ..Connect::new(qid, 32, if qid == 0 { 5000 } else { 0 }) };
    capsule(Sqe::from(connect), 0, connect_data(kind, qid).as_bytes(), digests)
}

/// A driver whose admin queue is connected and whose controller is enabled.
pub(crate) fn admin(kind: ControllerKind, digests: Digests) -> Driver {
    let mut driver = Driver::new();
    driver.feed(&ic_req(digests));
    driver.feed(&connect_capsule(kind, 0, 0, digests));
    let set = Property::set(offset::CC, PropertySize::Four, enable());
    driver.feed(&capsule(Sqe::from(set), 1, &[], digests));
    driver.replies();
    driver
}

/// A driver whose I/O queue 1 is connected.
pub(crate) fn io(cattr: u8, digests: Digests) -> Driver {
    let mut driver = Driver::new().with_controller();
    driver.feed(&ic_req(digests));
    driver.feed(&connect_capsule(ControllerKind::Io, 1, cattr, digests));
    driver.replies();
    assert_eq!(driver.connection.qid(), Some(1));
    driver
}

pub(crate) fn is_connect(sqe: &Sqe) -> bool {
    sqe.opcode == fabrics::OPCODE && fabrics::fctype(sqe) == FabricsType::CONNECT
}

/// H2CData PDUs for all of `data`, at most `piece` bytes each.
pub(crate) fn h2c_for(cid: u16, ttag: u16, data: &[u8], piece: usize, digests: Digests) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut at = 0;
    for part in data.chunks(piece) {
        let last = at + part.len() == data.len();
        let range = (at as u32, part.len() as u32);
        let header = nvme_wire::pdu::H2cData::new((cid, ttag), range, last, digests, 4);
        bytes.extend(pdu(header.as_bytes(), part, digests));
        at += part.len();
    }
    bytes
}
