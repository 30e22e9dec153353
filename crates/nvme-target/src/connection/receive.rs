//! From bytes to steps.

use checksum::crc32c;
use nvme_wire::pdu::{
    CommonHeader, DIGEST_LEN, H2cData, IcReq, PduError, PduFlags, PduLayout, PduType, TermReq,
};
use nvme_wire::{AdminOpcode, Sqe, Status, fabrics};
use strangers::protocol_of;
use units::Instant;
use zerocopy::FromBytes;

use super::slots::{NoSlot, SlotState};
use super::transfer::{Transfer, classify};
use super::{
    ADMIN_IN_CAPSULE_BYTES, Body, CPDA_BYTES, CloseReason, Connection, SlotId, State, Step,
};
use crate::Outbox;
use crate::sabotage::{Sabotage, broken};

const COMMON_HEADER_LEN: usize = 8;
/// Byte offsets in H2CData.
const OFFSET_CCCID: u8 = 8;
const OFFSET_TTAG: u8 = 10;

/// A header that is all there, or what it takes to get there.
enum HeaderCheck {
    Whole(PduLayout),
    /// This many bytes from the start of the PDU are needed.
    Needs(usize),
}

/// Why a command gets no slot.
enum Refusal {
    Status(Status),
    Overrun,
    /// It is an Asynchronous Event Request that waits already.
    Waits,
}

impl Connection {
    /// Takes bytes from the front of `input` up to the next step. Replies that need no driver, such
    /// as ICResp, R2T and refusals of malformed commands, go to `out`.
    pub fn poll<'a, O: Outbox>(
        &mut self,
        now: Instant,
        input: &mut &'a [u8],
        out: &mut O,
    ) -> Step<'a> {
        loop {
            if let State::Closed(reason) = self.state {
                *input = &[];
                return Step::Closed(reason);
            }
            if let Some(step) = self.poll_aborted(out) {
                return step;
            }
            let left = input.len();
            let step = if self.body.is_some() {
                self.poll_body(now, input, out)
            } else {
                self.poll_header(now, input, out)
            };
            if input.len() < left {
                self.owed.on_bytes(now, left - input.len());
            }
            if let Some(step) = step {
                return step;
            }
        }
    }

    fn poll_header<'a, O: Outbox>(
        &mut self,
        now: Instant,
        input: &mut &'a [u8],
        out: &mut O,
    ) -> Option<Step<'a>> {
        if input.is_empty() {
            return Some(Step::NeedMore);
        }
        if self.partial.len == 0 {
            let bytes = *input;
            match self.check_header(bytes) {
                Err(error) => return self.fail(&error, bytes, out),
                Ok(HeaderCheck::Whole(layout)) => {
                    let (header, rest) = bytes.split_at(layout.header_end());
                    *input = rest;
                    return self.on_header(now, header, &layout, out);
                }
                Ok(HeaderCheck::Needs(_)) => {}
            }
        }
        // The rare case: the header lies across chunks and is put together aside.
        let mut partial = core::mem::replace(
            &mut self.partial,
            super::PartialHeader { bytes: [0; super::HEADER_BYTES_MAX], len: 0 },
        );
        loop {
            match self.check_header(&partial.bytes[..partial.len]) {
                Err(error) => break self.fail(&error, &partial.bytes[..partial.len], out),
                Ok(HeaderCheck::Whole(layout)) => {
                    break self.on_header(now, &partial.bytes[..partial.len], &layout, out);
                }
                Ok(HeaderCheck::Needs(needed)) => {
                    if input.is_empty() {
                        self.partial = partial;
                        return Some(Step::NeedMore);
                    }
                    let count = (needed - partial.len).min(input.len());
                    let (bytes, rest) = input.split_at(count);
                    partial.bytes[partial.len..partial.len + count].copy_from_slice(bytes);
                    partial.len += count;
                    *input = rest;
                }
            }
        }
    }

    /// Checks as much of a header as `bytes` holds. The digest comes first, for nothing in a damaged
    /// header can be believed.
    fn check_header(&self, bytes: &[u8]) -> Result<HeaderCheck, PduError> {
        let Some(common) = CommonHeader::from_prefix(bytes) else {
            return Ok(HeaderCheck::Needs(COMMON_HEADER_LEN));
        };
        let Some(pdu) = PduType::from_u8(common.pdu_type) else {
            return Err(PduError::UnknownType { pdu_type: common.pdu_type });
        };
        self.check_sequence(pdu)?;
        let layout = common.layout(self.digests, CPDA_BYTES);
        let digest_flagged = PduFlags(common.flags).contains(PduFlags::HDGSTF);
        let has_digest = matches!(pdu, PduType::CapsuleCmd | PduType::H2cData);
        if self.digests.header && has_digest && digest_flagged {
            let digest_at = pdu.header_len();
            let end = digest_at + DIGEST_LEN;
            if (common.plen.get() as usize) >= end {
                let Some(received) = bytes.get(digest_at..end) else {
                    return Ok(HeaderCheck::Needs(end));
                };
                let received = u32::from_le_bytes(received.try_into().expect("four bytes"));
                let computed = crc32c(&bytes[..digest_at]);
                if received != computed && !broken(Sabotage::TakeWrongHeader) {
                    return Err(PduError::HeaderDigest { pdu, received, computed });
                }
            }
        }
        // A TermReq ends the connection, however it is worded. Of several fields at fault the first is named (TCP, figure 23).
        if pdu != PduType::H2cTermReq {
            common.check_reserved_flags(pdu)?;
        }
        let layout = layout?;
        if bytes.len() < layout.header_end() {
            return Ok(HeaderCheck::Needs(layout.header_end()));
        }
        Ok(HeaderCheck::Whole(layout))
    }

    /// NVME-CONNECTION-1, and that hosts send what hosts send.
    fn check_sequence(&self, pdu: PduType) -> Result<(), PduError> {
        if !pdu.is_from_host() {
            return Err(PduError::InvalidField {
                pdu,
                offset: CommonHeader::OFFSET_TYPE,
                value: pdu as u32,
            });
        }
        let awaits_ic_req = self.state == State::AwaitIcReq;
        if pdu != PduType::H2cTermReq && (pdu == PduType::IcReq) != awaits_ic_req {
            return Err(PduError::Sequence { pdu });
        }
        Ok(())
    }

    /// Acts on a whole header. `None` means that polling goes on.
    fn on_header<'a, O: Outbox>(
        &mut self,
        now: Instant,
        header: &[u8],
        layout: &PduLayout,
        out: &mut O,
    ) -> Option<Step<'a>> {
        if layout.pdu_type != PduType::H2cData {
            self.owed.begin_pdu(None);
        }
        let result = match layout.pdu_type {
            PduType::CapsuleCmd => self.on_capsule(now, header, layout, out),
            PduType::H2cData => self.on_h2c_data(header, layout),
            PduType::IcReq => self.on_ic_req(header, out),
            _ => {
                let term_req = TermReq::read_from_prefix(header).expect("24 bytes").0;
                self.close(CloseReason::HostTerminated(term_req.status()));
                Ok(None)
            }
        };
        match result {
            Ok(step) => step,
            Err(error) => self.fail(&error, header, out),
        }
    }

    fn on_ic_req<'a, O: Outbox>(
        &mut self,
        header: &[u8],
        out: &mut O,
    ) -> Result<Option<Step<'a>>, PduError> {
        let request = IcReq::read_from_prefix(header).expect("128 bytes").0;
        request.check()?;
        self.answer_ic_req(&request, out);
        Ok(None)
    }

    fn on_capsule<'a, O: Outbox>(
        &mut self,
        now: Instant,
        header: &[u8],
        layout: &PduLayout,
        out: &mut O,
    ) -> Result<Option<Step<'a>>, PduError> {
        let sqe = Sqe::read_from_prefix(&header[COMMON_HEADER_LEN..]).expect("64 bytes").0;
        let data_len = u32::try_from(layout.data_len).unwrap_or(u32::MAX);
        if data_len > self.in_capsule_bytes_max {
            return Err(PduError::InvalidField {
                pdu: PduType::CapsuleCmd,
                offset: CommonHeader::OFFSET_PLEN,
                value: u32::try_from(layout.plen).unwrap_or(u32::MAX),
            });
        }
        self.sq_head = if self.sq_head + 1 < self.sq_entries { self.sq_head + 1 } else { 0 };
        let pairing = match self.pair(&sqe) {
            Ok(pairing) => pairing,
            Err(status) => {
                self.refuse(&sqe, status, out);
                self.begin_body(None, 0, layout);
                return Ok(Some(Step::Refused { status }));
            }
        };
        let (slot, transfer) = match self.admit(&sqe, data_len) {
            Ok(admitted) => admitted,
            Err(Refusal::Status(status)) => {
                self.unpaired(pairing);
                self.refuse(&sqe, status, out);
                self.begin_body(None, 0, layout);
                return Ok(Some(Step::Refused { status }));
            }
            Err(Refusal::Waits) => {
                self.begin_body(None, 0, layout);
                return Ok(None);
            }
            Err(Refusal::Overrun) => {
                let error = PduError::Sequence { pdu: PduType::CapsuleCmd };
                self.terminate(&error, CloseReason::QueueOverrun, header, out);
                return Ok(None);
            }
        };
        self.paired(now, slot, pairing);
        Ok(match transfer {
            Transfer::NotFromHost => {
                // Data after a command that has none is dropped.
                self.begin_body(None, 0, layout);
                self.arrived(slot, out)
            }
            Transfer::InCapsule(len_bytes) => {
                self.begin_body(Some(slot), 0, layout);
                Some(Step::Prepare { slot, len_bytes, solicited: false })
            }
            Transfer::Solicited(len_bytes) => {
                Some(Step::Prepare { slot, len_bytes, solicited: true })
            }
        })
    }

    /// Gives a command a slot, unless it is refused.
    fn admit(&mut self, sqe: &Sqe, data_len: u32) -> Result<(SlotId, Transfer), Refusal> {
        let transfer = self.check_command(sqe, data_len).map_err(Refusal::Status)?;
        let (state, len) = match transfer {
            Transfer::NotFromHost => (SlotState::Executing, 0),
            Transfer::InCapsule(len) => (SlotState::Collecting, len),
            Transfer::Solicited(len) => (SlotState::Soliciting, len),
        };
        match self.slots.take(sqe, state, len) {
            Ok(slot) => Ok((slot, transfer)),
            Err(NoSlot::CidInUse) if self.is_event_request_that_waits(sqe) => Err(Refusal::Waits),
            Err(NoSlot::CidInUse) => Err(Refusal::Status(Status::COMMAND_ID_CONFLICT.with_dnr())),
            Err(NoSlot::Overrun) => Err(Refusal::Overrun),
        }
    }

    /// NVME-CONNECTION-7: some hosts send their Asynchronous Event Requests again when they detach.
    fn is_event_request_that_waits(&self, sqe: &Sqe) -> bool {
        let is_event_request =
            |sqe: &Sqe| AdminOpcode(sqe.opcode) == AdminOpcode::ASYNC_EVENT_REQUEST;
        self.state == State::Live { qid: 0 }
            && is_event_request(sqe)
            && self.slots.with_cid(sqe.cid.get()).is_some_and(is_event_request)
    }

    /// NVME-CONNECTION-1 for commands, then the SGL rules.
    fn check_command(&self, sqe: &Sqe, data_len: u32) -> Result<Transfer, Status> {
        let is_connect = fabrics::is_connect(sqe);
        let is_live = matches!(self.state, State::Live { .. });
        if is_connect == is_live {
            return Err(Status::COMMAND_SEQUENCE_ERROR.with_dnr());
        }
        if is_connect {
            check_admin_transfer(sqe)?;
        }
        let transfer = classify(sqe, data_len, self.limits.command_bytes_max())?;
        if transfer != Transfer::NotFromHost && !matches!(self.state, State::Live { qid: 1.. }) {
            check_admin_transfer(sqe)?;
        }
        Ok(transfer)
    }

    /// Errors in solicited data have the status that the specification names (TCP, clause 3.3.2.2).
    fn on_h2c_data<'a>(
        &mut self,
        header: &[u8],
        layout: &PduLayout,
    ) -> Result<Option<Step<'a>>, PduError> {
        let pdu = PduType::H2cData;
        let data = H2cData::read_from_prefix(header).expect("24 bytes").0;
        let (cccid, ttag) = (data.cccid.get(), data.ttag.get());
        let (datao, datal) = (data.datao.get(), data.datal.get());
        let limit = self.limits.h2c_data_bytes_max;
        let Some(slot) = self.slots.used(ttag).filter(|slot| slot.r2t_end > 0) else {
            let value = u32::from(ttag);
            return Err(PduError::InvalidField { pdu, offset: OFFSET_TTAG, value });
        };
        if slot.sqe.cid.get() != cccid && !broken(Sabotage::IgnoreCccid) {
            let value = u32::from(cccid);
            return Err(PduError::InvalidField { pdu, offset: OFFSET_CCCID, value });
        }
        data.check(layout)?;
        if slot.r2t_end == slot.received {
            // All that was asked for has come.
            return Err(PduError::Sequence { pdu });
        }
        if datal > limit {
            return Err(PduError::LimitExceeded { pdu, value: datal, limit });
        }
        let end = u64::from(datao) + u64::from(datal);
        if datao < slot.r2t_start || end > u64::from(slot.r2t_end) {
            return Err(PduError::DataOutOfRange { pdu, offset: datao, length: datal });
        }
        if datao != slot.received {
            return Err(PduError::Sequence { pdu });
        }
        let is_last = end == u64::from(slot.r2t_end);
        let is_last_said = layout.flags.contains(PduFlags::LAST_PDU);
        if is_last_said != is_last && !broken(Sabotage::IgnoreLastPdu) {
            let (offset, value) = (CommonHeader::OFFSET_FLAGS, u32::from(layout.flags.0));
            return Err(PduError::InvalidField { pdu, offset, value });
        }
        let number = slot.r2t_number;
        self.owed.begin_pdu(Some(number));
        self.begin_body(Some(SlotId(ttag)), datao, layout);
        Ok(None)
    }

    fn begin_body(&mut self, slot: Option<SlotId>, offset: u32, layout: &PduLayout) {
        if layout.data_len == 0 {
            return;
        }
        // `on_capsule` and `on_h2c_data` have bounded the length.
        let data_len = u32::try_from(layout.data_len).expect("bounded by a limit of 32 bits");
        self.body = Some(Body {
            slot,
            padding_left: if broken(Sabotage::IgnorePdo) {
                0
            } else {
                layout.data_offset - layout.header_end()
            },
            offset,
            data_len,
            data_left: data_len,
            digest: [0; DIGEST_LEN],
            digest_left: if layout.data_digest { DIGEST_LEN } else { 0 },
        });
    }

    fn poll_body<'a, O: Outbox>(
        &mut self,
        now: Instant,
        input: &mut &'a [u8],
        out: &mut O,
    ) -> Option<Step<'a>> {
        let body = self.body.as_mut()?;
        if body.padding_left > 0 {
            let count = body.padding_left.min(input.len());
            *input = &input[count..];
            body.padding_left -= count;
        }
        if body.padding_left == 0 && body.data_left > 0 && !input.is_empty() {
            let count = input.len().min(body.data_left as usize);
            let (bytes, rest) = input.split_at(count);
            *input = rest;
            let offset = body.offset + (body.data_len - body.data_left);
            body.data_left -= u32::try_from(count).expect("at most data_left");
            if let Some(slot) = body.slot
                && self.slots.get(slot).is_collecting()
            {
                return Some(Step::Data { slot, offset, bytes });
            }
        }
        if body.data_left == 0 && body.digest_left > 0 {
            let count = body.digest_left.min(input.len());
            let is_begun = body.digest_left < DIGEST_LEN;
            let at = if is_begun && broken(Sabotage::DigestOfLastChunk) {
                0
            } else {
                DIGEST_LEN - body.digest_left
            };
            let (bytes, rest) = input.split_at(count);
            body.digest[at..at + count].copy_from_slice(bytes);
            body.digest_left -= count;
            *input = rest;
            if count > 0
                && body.digest_left == 0
                && let Some(slot) = body.slot
                && self.slots.get(slot).is_collecting()
            {
                let received = u32::from_le_bytes(body.digest);
                let (offset, len_bytes) = (body.offset, body.data_len);
                return Some(Step::Digest { slot, offset, len_bytes, received });
            }
        }
        if body.padding_left > 0 || body.data_left > 0 || body.digest_left > 0 {
            return Some(Step::NeedMore);
        }
        let body = self.body.take()?;
        self.end_body(now, body.slot?, body.data_len, out)
    }

    /// A data PDU of the command in `id` is over.
    fn end_body<'a, O: Outbox>(
        &mut self,
        now: Instant,
        id: SlotId,
        data_len: u32,
        out: &mut O,
    ) -> Option<Step<'a>> {
        let slot = self.slots.get_mut(id);
        slot.received += data_len;
        let was_solicited = slot.r2t_end > 0;
        if was_solicited && slot.received < slot.r2t_end {
            return None;
        }
        if was_solicited {
            let number = slot.r2t_number;
            self.owed.end(now, number);
        }
        let slot = self.slots.get_mut(id);
        if let SlotState::Draining(status) = slot.state {
            slot.state = SlotState::Executing;
            self.complete(id, status, 0, out);
            return None;
        }
        if slot.received < slot.transfer_len {
            self.solicit(now, id, out);
            return None;
        }
        if slot.digest_failed {
            slot.state = SlotState::Executing;
            let status = Status::TRANSIENT_TRANSPORT_ERROR;
            self.complete(id, status, 0, out);
            return Some(Step::Discard { slot: id, status });
        }
        self.arrived(id, out)
    }

    fn fail<'a, O: Outbox>(
        &mut self,
        error: &PduError,
        header: &[u8],
        out: &mut O,
    ) -> Option<Step<'a>> {
        let other = match error {
            PduError::UnknownType { .. } if self.state == State::AwaitIcReq => protocol_of(header),
            _ => None,
        };
        let reason = other.map_or(CloseReason::Protocol(*error), CloseReason::OtherProtocol);
        let pdu = PduType::from_u8(header.first().copied().unwrap_or(0xFF));
        if pdu == Some(PduType::H2cTermReq) {
            // One TermReq is not answered by another, whatever is wrong with it.
            self.close(reason);
            return None;
        }
        let quoted = pdu.map_or(COMMON_HEADER_LEN, PduType::header_len).min(header.len());
        self.terminate(error, reason, &header[..quoted], out);
        None
    }
}

/// Checks an admin command that brings data: outside of I/O queues only Connect and Set Features
/// do, and not much. Refusing the others here keeps a host from tying up memory before it has
/// connected.
fn check_admin_transfer(sqe: &Sqe) -> Result<(), Status> {
    let is_known = sqe.opcode == fabrics::OPCODE || sqe.opcode == AdminOpcode::SET_FEATURES.0;
    if !is_known {
        return Err(Status::INVALID_OPCODE.with_dnr());
    }
    if sqe.dptr.length.get() > ADMIN_IN_CAPSULE_BYTES {
        return Err(Status::DATA_SGL_LENGTH_INVALID.with_dnr());
    }
    Ok(())
}
