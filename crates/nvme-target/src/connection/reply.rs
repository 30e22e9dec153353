//! Output to the host: completions, data, R2Ts, the end.

use checksum::crc32c;
use nvme_wire::pdu::{
    C2hData, CapsuleResp, DIGEST_LEN, IcReq, IcResp, PduError, PduFlags, PduType, R2t, TermReq,
};
use nvme_wire::{Cqe, Sqe, Status, fabrics};
use units::Instant;
use zerocopy::IntoBytes;

use super::slots::SlotState;
use super::{CloseReason, Connection, SlotId, State};
use crate::sabotage::{Sabotage, broken};
use crate::{Negotiated, Outbox};

/// Longest header with digest and padding that this side sends: HPDA asks for at most 128.
const DATA_OFFSET_MAX: usize = 128;

impl Connection {
    /// Completes the command in `slot` with `status` and the completion's dwords 0 and 1, and
    /// frees the slot. Works at any time after the command was handed out; data of it that is
    /// still on its way is then dropped.
    pub fn complete<O: Outbox>(&mut self, slot: SlotId, status: Status, result: u64, out: &mut O) {
        self.half_failed(slot);
        let entry = self.slots.get_mut(slot);
        if entry.state == SlotState::Soliciting && entry.r2t_end > entry.received {
            // An R2T cannot be taken back, and the host must not reuse the identifier before it
            // has answered.
            entry.state = SlotState::Draining(status);
            return;
        }
        let cid = entry.sqe.cid.get();
        self.release(slot);
        self.respond(cid, status, result, out);
    }

    /// Completes the command in `slot` with success and `len_bytes` bytes of data, which `append`
    /// puts into `out`. `digest` gives the data's CRC-32C and is asked only if the connection uses
    /// data digests.
    pub fn complete_with_data<O: Outbox>(
        &mut self,
        slot: SlotId,
        len_bytes: u32,
        digest: impl FnOnce() -> u32,
        out: &mut O,
        append: impl FnOnce(&mut O),
    ) {
        let cid = self.slots.get(slot).sqe.cid.get();
        if len_bytes == 0 {
            return self.complete(slot, Status::SUCCESS, 0, out);
        }
        self.release(slot);
        let is_completion = !self.sq_flow_control || broken(Sabotage::SuccessAndCompletion);
        let flags = PduFlags::LAST_PDU.union(PduFlags::SUCCESS.when(is_completion));
        let header =
            C2hData::new(cid, (0, len_bytes), flags, self.digests, self.host_data_alignment);
        let mut head = [0; DATA_OFFSET_MAX];
        head[..24].copy_from_slice(header.as_bytes());
        if self.digests.header {
            let crc = crc32c(&head[..24]).to_le_bytes();
            head[24..24 + DIGEST_LEN].copy_from_slice(&crc);
        }
        out.bytes(&head[..usize::from(header.ch.pdo)]);
        append(out);
        let mut tail = [0; DIGEST_LEN + 24 + DIGEST_LEN];
        let mut len = 0;
        if self.digests.data {
            tail[..DIGEST_LEN].copy_from_slice(&digest().to_le_bytes());
            len = DIGEST_LEN;
        }
        if self.sq_flow_control {
            len += self.encode_response(cid, Status::SUCCESS, 0, &mut tail[len..]);
        }
        if len > 0 {
            out.bytes(&tail[..len]);
        }
    }

    /// Says that there is memory for the first `len_bytes` of the data of the command in `slot`, which
    /// [`super::Step::Prepare`] announced as solicited. May be called again with more.
    pub fn grant<O: Outbox>(&mut self, now: Instant, slot: SlotId, len_bytes: u32, out: &mut O) {
        let entry = self.slots.get_mut(slot);
        if entry.state != SlotState::Soliciting {
            return;
        }
        entry.granted = entry.granted.max(len_bytes.min(entry.transfer_len));
        self.solicit(now, slot, out);
    }

    /// Completes the Connect in `slot`: from now on the connection is a queue.
    pub fn accept<O: Outbox>(&mut self, slot: SlotId, queue: &Negotiated, out: &mut O) {
        self.state = State::Live { qid: queue.qid };
        self.sq_flow_control = queue.sq_flow_control;
        self.sq_entries = queue.entries;
        self.sq_head = 1 % queue.entries.max(1);
        self.in_capsule_bytes_max = if queue.qid == 0 {
            super::ADMIN_IN_CAPSULE_BYTES
        } else {
            self.limits.in_capsule_bytes_max
        };
        let cid = self.slots.get(slot).sqe.cid.get();
        self.release(slot);
        self.slots.allow(queue.entries);
        self.owed.set_entries(queue.entries);
        let mut cqe = Cqe::with_result(cid, Status::SUCCESS, u64::from(queue.result.0));
        let flow_disabled = !queue.sq_flow_control;
        cqe.sqhd = if flow_disabled { fabrics::SQHD_FLOW_DISABLED } else { self.sq_head }.into();
        self.put_header(CapsuleResp::new(cqe, self.digests).as_bytes(), out);
    }

    /// Answers a command that never had a slot.
    pub(super) fn refuse<O: Outbox>(&mut self, sqe: &Sqe, status: Status, out: &mut O) {
        self.respond(sqe.cid.get(), status, 0, out);
    }

    /// Asks for the next part of a command's data that there is memory for.
    pub(super) fn solicit<O: Outbox>(&mut self, now: Instant, slot: SlotId, out: &mut O) {
        let entry = self.slots.get_mut(slot);
        if entry.r2t_end > entry.received || entry.granted <= entry.received {
            return;
        }
        let start = if broken(Sabotage::R2tFromStart) { 0 } else { entry.received };
        let range = (start, entry.granted - entry.received);
        (entry.r2t_start, entry.r2t_end) = (entry.received, entry.granted);
        entry.r2t_number = self.owed.ask(now);
        let r2t = R2t::new(entry.sqe.cid.get(), slot.0, range, self.digests);
        self.put_header(r2t.as_bytes(), out);
    }

    pub(super) fn answer_ic_req<O: Outbox>(&mut self, request: &IcReq, out: &mut O) {
        self.digests = request.digests();
        self.host_data_alignment =
            if broken(Sabotage::IgnoreHpda) { 4 } else { request.data_alignment() };
        self.state = State::AwaitConnect;
        out.bytes(IcResp::new(self.digests, self.limits.h2c_data_bytes_max).as_bytes());
    }

    /// Ends the connection with a TermReq that quotes the header at fault.
    pub(super) fn terminate<O: Outbox>(
        &mut self,
        error: &PduError,
        reason: CloseReason,
        header: &[u8],
        out: &mut O,
    ) {
        out.bytes(&TermReq::encode(PduType::C2hTermReq, error, header));
        self.close(reason);
    }

    pub(super) fn respond<O: Outbox>(
        &mut self,
        cid: u16,
        status: Status,
        result: u64,
        out: &mut O,
    ) {
        let mut bytes = [0; 24 + DIGEST_LEN];
        let len = self.encode_response(cid, status, result, &mut bytes);
        out.bytes(&bytes[..len]);
    }

    fn encode_response(&self, cid: u16, status: Status, result: u64, bytes: &mut [u8]) -> usize {
        let mut cqe = Cqe::with_result(cid, status, result);
        if self.sq_flow_control {
            cqe.sqhd = self.sq_head.into();
        }
        bytes[..24].copy_from_slice(CapsuleResp::new(cqe, self.digests).as_bytes());
        if !self.digests.header {
            return 24;
        }
        let crc = crc32c(&bytes[..24]).to_le_bytes();
        bytes[24..24 + DIGEST_LEN].copy_from_slice(&crc);
        24 + DIGEST_LEN
    }

    fn put_header<O: Outbox>(&self, header: &[u8], out: &mut O) {
        out.bytes(header);
        if self.digests.header {
            out.bytes(&crc32c(header).to_le_bytes());
        }
    }

    /// Frees a slot; payload of it that is still arriving is dropped.
    fn release(&mut self, slot: SlotId) {
        if let Some(body) = &mut self.body
            && body.slot == Some(slot)
        {
            body.slot = None;
        }
        self.slots.free(slot);
    }
}
