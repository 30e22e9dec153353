//! PDUs that the target sends: answers to commands, data with residuals, rejects, messages.

use alloc::vec::Vec;
use core::ops::Range;

use checksum::crc32c;
use iscsi_wire::Sense;
use iscsi_wire::pdu::{
    self, BHS_LEN, CONTINUE, FINAL, HAS_STATUS, NO_TAG, OVERFLOW, TaskRequest, UNDERFLOW, opcode,
};
use iscsi_wire::sense::ScsiStatus;

use super::task::{AbortedBy, Task, TaskId};
use super::{Abort, Connection};
use crate::outbox::Outbox;

/// The end of a command without data.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Completion {
    /// Its status.
    pub status: ScsiStatus,
    /// Why, if it was not done.
    pub sense: Option<Sense>,
    /// Bytes that the command moves by itself, however many the initiator expects.
    pub len_bytes: u64,
}

impl Completion {
    /// It was done, and moves so many bytes.
    #[must_use]
    pub const fn good(len_bytes: u64) -> Self {
        Self { status: ScsiStatus::Good, sense: None, len_bytes }
    }

    /// It was not done for this reason, and has moved nothing.
    #[must_use]
    pub const fn failed(sense: Sense) -> Self {
        Self { status: ScsiStatus::CheckCondition, sense: Some(sense), len_bytes: 0 }
    }

    /// It was not done, and has moved nothing.
    #[must_use]
    pub const fn refused(status: ScsiStatus) -> Self {
        Self { status, sense: None, len_bytes: 0 }
    }
}

/// The flag and the count that tell how many bytes were expected and how many there are.
fn residual(expected: u32, len_bytes: u64) -> (u8, u32) {
    let expected = u64::from(expected);
    let count = |difference: u64| u32::try_from(difference).unwrap_or(u32::MAX);
    match len_bytes {
        len if len > expected => (OVERFLOW, count(len - expected)),
        len if len < expected => (UNDERFLOW, count(expected - len)),
        _ => (0, 0),
    }
}

impl Connection {
    /// Puts a PDU together: header, data, padding, digests.
    pub(super) fn put(&self, header: &[u8; BHS_LEN], data: &[u8], out: &mut impl Outbox) {
        self.put_header(header, out);
        if !data.is_empty() {
            out.bytes(data);
            self.put_trailer(data.len(), || crc32c(data), out);
        }
    }

    fn put_header(&self, header: &[u8; BHS_LEN], out: &mut impl Outbox) {
        out.bytes(header);
        if self.parameters.header_digest {
            out.bytes(&crc32c(header).to_le_bytes());
        }
    }

    /// Padding and digest of data whose checksum is `crc`.
    fn put_trailer(&self, len: usize, crc: impl FnOnce() -> u32, out: &mut impl Outbox) {
        let padding = &[0; 3][..len.next_multiple_of(4) - len];
        if !padding.is_empty() {
            out.bytes(padding);
        }
        if self.parameters.data_digest {
            let sum = if padding.is_empty() { crc() } else { append_zeroes(crc(), padding) };
            out.bytes(&sum.to_le_bytes());
        }
    }

    /// Ends a command without data.
    pub fn complete(&mut self, id: TaskId, completion: &Completion, out: &mut impl Outbox) {
        let Some(task) = self.tasks.remove(id) else { return };
        if !self.is_over(&task, out) {
            self.put_response(&task, completion, 0, out);
        }
    }

    /// Returns whether a task that has ended was aborted. One that another initiator aborted is answered.
    fn is_over(&mut self, task: &Task, out: &mut impl Outbox) -> bool {
        if task.aborted_by == Some(AbortedBy::Another) {
            self.put_response(task, &Completion::refused(ScsiStatus::TaskAborted), 0, out);
        }
        task.aborted_by.is_some()
    }

    fn put_response(
        &mut self,
        task: &Task,
        completion: &Completion,
        data_ins: u32,
        out: &mut impl Outbox,
    ) {
        let mut response: pdu::ScsiResponse = pdu::blank(opcode::SCSI_RESPONSE);
        let (flag, count) = residual(task.edtl, completion.len_bytes);
        response.flags = FINAL | flag;
        (response.status, response.itt) = (completion.status as u8, task.itt.into());
        (response.residual, response.exp_data_sn) = (count.into(), (data_ins + task.r2t_sn).into());
        let mut data = Vec::new();
        if let Some(sense) = completion.sense {
            let sense = sense.encode();
            data.extend_from_slice(&(sense.len() as u16).to_be_bytes());
            data.extend_from_slice(&sense);
        }
        response.lengths = pdu::Lengths::of_data(data.len());
        response.sequence = self.sequence(true);
        self.put(&response.encode(), &data, out);
    }

    /// Ends a command with data, of which the initiator takes as much as it expects. `append` puts a part of the data
    /// into the outbox, `crc` gives the checksum of one.
    pub fn data_in<O: Outbox>(
        &mut self,
        id: TaskId,
        len_bytes: u64,
        out: &mut O,
        mut append: impl FnMut(&mut O, Range<usize>),
        mut crc: impl FnMut(Range<usize>) -> u32,
    ) {
        let Some(task) = self.tasks.remove(id) else { return };
        if self.is_over(&task, out) {
            return;
        }
        let total = u32::try_from(len_bytes).unwrap_or(u32::MAX).min(task.readable());
        if total == 0 {
            return self.put_response(&task, &Completion::good(len_bytes), 0, out);
        }
        let (mut at, mut data_sn) = (0_u32, 0_u32);
        while at < total {
            let burst_left = self.parameters.burst_max - at % self.parameters.burst_max;
            let len = (total - at).min(self.parameters.send_max).min(burst_left);
            let mut data: pdu::DataIn = pdu::blank(opcode::DATA_IN);
            (data.flags, data.itt, data.ttt) = (0, task.itt.into(), NO_TAG.into());
            (data.data_sn, data.buffer_offset) = (data_sn.into(), at.into());
            data.lengths = pdu::Lengths::of_data(len as usize);
            let is_last = at + len == total;
            if is_last {
                let (flag, count) = residual(task.edtl, len_bytes);
                data.flags = FINAL | HAS_STATUS | flag;
                data.residual = count.into();
            } else if len == burst_left {
                data.flags = FINAL;
            }
            data.sequence = self.sequence(is_last);
            if !is_last {
                data.sequence.stat_sn = 0.into();
            }
            let part = at as usize..(at + len) as usize;
            self.put_header(&data.encode(), out);
            append(out, part.clone());
            self.put_trailer(len as usize, || crc(part), out);
            (at, data_sn) = (at + len, data_sn + 1);
        }
    }

    /// As [`Self::data_in`], with data that is at hand.
    pub fn data_in_bytes(&mut self, id: TaskId, data: &[u8], out: &mut impl Outbox) {
        let append = |out: &mut _, part: Range<usize>| Outbox::bytes(out, &data[part]);
        self.data_in(id, data.len() as u64, out, append, |part| crc32c(&data[part]));
    }

    /// Answers a request to abort or reset.
    pub fn answer_task_request(
        &mut self,
        request: &TaskRequest,
        answer: u8,
        out: &mut impl Outbox,
    ) {
        let mut response: pdu::TaskResponse = pdu::blank(opcode::TASK_RESPONSE);
        (response.response, response.itt) = (answer, request.itt);
        response.sequence = self.sequence(true);
        self.put(&response.encode(), &[], out);
    }

    /// Aborts the task with this tag.
    pub fn abort(&mut self, itt: u32) -> Abort {
        let Some(id) = self.tasks.by_itt(itt) else { return Abort::Unknown };
        self.abort_task(id)
    }

    /// Aborts all tasks. Those that are being executed are not answered when they end.
    pub fn abort_all(&mut self) -> Vec<Abort> {
        let all: Vec<TaskId> = self.tasks.iter().map(|(id, _)| id).collect();
        all.into_iter().map(|id| self.abort_task(id)).collect()
    }

    /// Aborts all tasks in the name of another initiator. Each ends with TASK ABORTED: at once, or when it is not executed any more.
    pub fn abort_all_for_another(&mut self, out: &mut impl Outbox) -> Vec<Abort> {
        let all: Vec<TaskId> = self.tasks.iter().map(|(id, _)| id).collect();
        let abort = |id: TaskId| {
            let Some(task) = self.tasks.get_mut(id) else { return Abort::Unknown };
            task.aborted_by = task.aborted_by.or(Some(AbortedBy::Another));
            if task.is_ready {
                return Abort::Underway(id);
            }
            self.complete(id, &Completion::refused(ScsiStatus::TaskAborted), out);
            Abort::Forgotten(id)
        };
        all.into_iter().map(abort).collect()
    }

    /// Returns whether a task that is being executed was aborted.
    #[must_use]
    pub fn is_aborted(&self, id: TaskId) -> bool {
        self.tasks.get(id).is_some_and(|task| task.aborted_by.is_some())
    }

    fn abort_task(&mut self, id: TaskId) -> Abort {
        let Some(task) = self.tasks.get_mut(id) else { return Abort::Unknown };
        if task.is_ready {
            task.aborted_by = Some(AbortedBy::Itself);
            return Abort::Underway(id);
        }
        self.tasks.remove(id);
        Abort::Forgotten(id)
    }

    /// Answers a text request with these pairs, in as many PDUs as they need.
    pub fn answer_text(&mut self, pairs: Vec<u8>, out: &mut impl Outbox) {
        if let Some(answer) = &mut self.text {
            answer.rest = pairs;
        }
        self.put_text(out);
    }

    /// Sends the next part of a text answer.
    pub(super) fn put_text(&mut self, out: &mut impl Outbox) {
        let Some(mut answer) = self.text.take() else { return };
        let len = answer.rest.len().min(self.parameters.send_max as usize);
        let rest = answer.rest.split_off(len);
        let mut response: pdu::TextResponse = pdu::blank(opcode::TEXT_RESPONSE);
        (response.itt, response.ttt) = (answer.itt.into(), NO_TAG.into());
        response.lengths = pdu::Lengths::of_data(len);
        if !rest.is_empty() {
            (response.flags, response.ttt) = (CONTINUE, self.next_transfer().into());
        }
        response.sequence = self.sequence(true);
        self.put(&response.encode(), &answer.rest, out);
        if !rest.is_empty() {
            answer.rest = rest;
            self.text = Some(answer);
        }
    }

    /// Rejects the PDU with this header.
    pub(super) fn reject(&mut self, reason: u8, header: &[u8; BHS_LEN], out: &mut impl Outbox) {
        let mut reject: pdu::Reject = pdu::blank(opcode::REJECT);
        (reject.reason, reject.itt) = (reason, NO_TAG.into());
        reject.lengths = pdu::Lengths::of_data(header.len());
        reject.sequence = self.sequence(true);
        self.put(&reject.encode(), header, out);
    }

    /// Tells of an event that no command asked for; of sense data, if there is some.
    pub fn tell(
        &mut self,
        event: u8,
        parameters: [u16; 3],
        sense: Option<Sense>,
        out: &mut impl Outbox,
    ) {
        if !self.is_logged_in() {
            return;
        }
        let mut message: pdu::AsyncMessage = pdu::blank(opcode::ASYNC_MESSAGE);
        (message.event, message.itt) = (event, NO_TAG.into());
        message.parameters = parameters.map(Into::into);
        let mut data = Vec::new();
        if let Some(sense) = sense {
            let sense = sense.encode();
            data.extend_from_slice(&(sense.len() as u16).to_be_bytes());
            data.extend_from_slice(&sense);
        }
        message.lengths = pdu::Lengths::of_data(data.len());
        message.sequence = self.sequence(true);
        self.put(&message.encode(), &data, out);
    }
}

/// The checksum of data with `crc`, and zeroes behind it. The register is known by its inverse.
fn append_zeroes(crc: u32, zeroes: &[u8]) -> u32 {
    zeroes.iter().fold(crc, |crc, _| append_zero(crc))
}

/// CRC-32C over one more byte of zero.
fn append_zero(crc: u32) -> u32 {
    const POLYNOMIAL: u32 = 0x82F6_3B78;
    let shifted = (0..8)
        .fold(!crc, |register, _| register >> 1 ^ if register & 1 == 1 { POLYNOMIAL } else { 0 });
    !shifted
}
