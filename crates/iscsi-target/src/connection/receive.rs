//! Framing: headers, data, padding and digests, and the PDUs that are no data of a command.

use alloc::string::ToString;
use alloc::vec::Vec;

use checksum::{Crc32c, crc32c};
use iscsi_wire::pdu::{self, BHS_LEN, Bhs, DIGEST_LEN, FINAL, NO_TAG, opcode, reject};
use iscsi_wire::text;
use strangers::protocol_of;
use units::Instant;

use super::task::{Task, TaskId};
use super::{CloseReason, Connection, Step, TextAnswer};
use crate::negotiate::Answer;
use crate::outbox::Outbox;

/// Bytes of data of a PDU of the login.
const LOGIN_DATA_MAX: usize = 8192;

/// The destination of a PDU's data.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Sink {
    /// It is kept until it is whole.
    Kept,
    /// To a command, from `offset` of what it brings.
    Task { id: TaskId, offset: u32 },
    /// Nowhere.
    Dropped,
}

enum State {
    Header,
    Data { left: usize },
    Trailer { left: usize },
}

/// A PDU on its way in.
pub(super) struct Receiver {
    state: State,
    header: Vec<u8>,
    bhs: Bhs,
    sink: Sink,
    kept: Vec<u8>,
    crc: Crc32c,
    trailer: Vec<u8>,
}

impl Receiver {
    pub(super) fn new() -> Self {
        Self {
            state: State::Header,
            header: Vec::with_capacity(BHS_LEN + DIGEST_LEN),
            bhs: pdu::blank(opcode::NOP_OUT),
            sink: Sink::Dropped,
            kept: Vec::new(),
            crc: Crc32c::new(),
            trailer: Vec::new(),
        }
    }

    /// Bytes of data of the PDU whose header came last.
    pub(super) fn data_len(&self) -> usize {
        self.bhs.lengths.data_len()
    }

    /// Returns whether a part of a PDU has come.
    pub(super) fn is_in_pdu(&self) -> bool {
        !matches!(self.state, State::Header) || !self.header.is_empty()
    }

    /// Returns whether data of a command is on its way in.
    pub(super) fn is_in_data(&self) -> bool {
        !matches!(self.state, State::Header) && matches!(self.sink, Sink::Task { .. })
    }

    /// Takes header bytes; returns whether the header is whole.
    fn take_header(&mut self, input: &mut &[u8], digest: bool) -> bool {
        loop {
            let ahs = if self.header.len() < BHS_LEN { 0 } else { usize::from(self.header[4]) * 4 };
            let total =
                BHS_LEN + ahs + if digest && self.header.len() >= BHS_LEN { DIGEST_LEN } else { 0 };
            let missing = total - self.header.len();
            if missing == 0 {
                return true;
            }
            if input.is_empty() {
                return false;
            }
            let (taken, rest) = input.split_at(missing.min(input.len()));
            self.header.extend_from_slice(taken);
            *input = rest;
        }
    }

    /// Checks the digest of a whole header, and begins a new one.
    fn end_header(&mut self, digest: bool) -> Result<Bhs, CloseReason> {
        let body = self.header.len() - if digest { DIGEST_LEN } else { 0 };
        let (header, sum) = self.header.split_at(body);
        if digest && crc32c(header).to_le_bytes() != sum {
            return Err(CloseReason::Digest);
        }
        let first = header.first_chunk().expect("a whole header");
        self.bhs = Bhs::decode(first);
        self.header.clear();
        Ok(self.bhs)
    }
}

pub(super) type Begun = Result<(Sink, Option<Step<'static>>), CloseReason>;

impl Connection {
    /// Takes in bytes until something is to be done.
    pub fn poll<'a>(
        &mut self,
        now: Instant,
        input: &mut &'a [u8],
        out: &mut impl Outbox,
    ) -> Step<'a> {
        if !input.is_empty() {
            self.last_heard = now;
        }
        if self.is_closed {
            *input = &[];
            return Step::NeedMore;
        }
        let step = loop {
            match self.advance(input, out) {
                Ok(Some(step)) => break step,
                Ok(None) if matches!(self.receiver.state, State::Header) && input.is_empty() => {
                    break Step::NeedMore;
                }
                Ok(None) if input.is_empty() && !self.is_at_end() => break Step::NeedMore,
                Ok(None) => {}
                Err(reason) => break Step::Closed(reason),
            }
        };
        self.is_closed |= matches!(step, Step::Closed(_));
        step
    }

    /// Returns whether the PDU goes on without input.
    fn is_at_end(&self) -> bool {
        matches!(self.receiver.state, State::Data { left: 0 } | State::Trailer { left: 0 })
    }

    fn advance<'a>(
        &mut self,
        input: &mut &'a [u8],
        out: &mut impl Outbox,
    ) -> Result<Option<Step<'a>>, CloseReason> {
        match self.receiver.state {
            State::Header => {
                let digest = self.parameters.header_digest;
                let is_whole = self.receiver.take_header(input, digest);
                // Before it is whole: the words of another protocol make it as long as they please.
                if self.login.is_some()
                    && let Some(other) = protocol_of(&self.receiver.header)
                    && other != "iSCSI"
                {
                    return Err(CloseReason::OtherProtocol(other));
                }
                if !is_whole {
                    return Ok(None);
                }
                let bhs = self.receiver.end_header(digest)?;
                let (sink, step) = self.begin(&bhs, out)?;
                self.receiver.sink = sink;
                self.receiver.crc = Crc32c::new();
                self.receiver.kept.clear();
                self.receiver.state = State::Data { left: bhs.lengths.data_len() };
                Ok(step)
            }
            State::Data { left: 0 } => {
                let len = self.receiver.data_len();
                let digest = self.parameters.data_digest && len > 0;
                let left = len.next_multiple_of(4) - len + if digest { DIGEST_LEN } else { 0 };
                self.receiver.trailer.clear();
                self.receiver.state = State::Trailer { left };
                Ok(None)
            }
            State::Data { left } => {
                let (bytes, rest) = input.split_at(left.min(input.len()));
                *input = rest;
                self.receiver.state = State::Data { left: left - bytes.len() };
                Ok(self.take_data(bytes))
            }
            State::Trailer { left: 0 } => {
                self.receiver.state = State::Header;
                self.check_digest(out)?;
                self.end(out)
            }
            State::Trailer { left } => {
                let (bytes, rest) = input.split_at(left.min(input.len()));
                *input = rest;
                self.receiver.trailer.extend_from_slice(bytes);
                self.receiver.state = State::Trailer { left: left - bytes.len() };
                Ok(None)
            }
        }
    }

    fn take_data<'a>(&mut self, bytes: &'a [u8]) -> Option<Step<'a>> {
        if self.parameters.data_digest {
            self.receiver.crc.update(bytes);
        }
        match &mut self.receiver.sink {
            Sink::Kept => self.receiver.kept.extend_from_slice(bytes),
            Sink::Dropped => {}
            Sink::Task { id, offset } => {
                let (id, from) = (*id, *offset);
                self.data_heard += bytes.len() as u64;
                *offset += u32::try_from(bytes.len()).expect("at most 2^24");
                let wanted = self.tasks.get(id).map_or(0, |task| task.wanted);
                let len = wanted.saturating_sub(from).min(u32::try_from(bytes.len()).unwrap_or(0));
                let bytes = &bytes[..len as usize];
                return (len > 0).then_some(Step::Data { task: id, offset: from, bytes });
            }
        }
        None
    }

    fn check_digest(&mut self, out: &mut impl Outbox) -> Result<(), CloseReason> {
        let receiver = &self.receiver;
        if !self.parameters.data_digest || receiver.data_len() == 0 {
            return Ok(());
        }
        // The digest covers the padding, too.
        let (padding, sum) = receiver.trailer.split_at(receiver.trailer.len() - DIGEST_LEN);
        let mut crc = receiver.crc;
        crc.update(padding);
        if crc.value().to_le_bytes() == sum {
            return Ok(());
        }
        let header = receiver.bhs.encode();
        self.reject(reject::DATA_DIGEST, &header, out);
        // ISCSI-TARGET-2: at error recovery level 0 the session begins again.
        Err(CloseReason::Digest)
    }

    /// Acts on a header. Its data follows.
    fn begin(&mut self, bhs: &Bhs, out: &mut impl Outbox) -> Begun {
        let len = bhs.lengths.data_len();
        if self.login.is_some() {
            let is_login = bhs.operation() == opcode::LOGIN_REQUEST && bhs.lengths.ahs_words == 0;
            if is_login && len <= LOGIN_DATA_MAX {
                return Ok((Sink::Kept, None));
            }
            return Err(CloseReason::ProtocolError("no request of a login"));
        }
        if len > self.limits.receive_max as usize {
            return Err(CloseReason::ProtocolError("more data than was agreed on"));
        }
        match bhs.operation() {
            opcode::SCSI_COMMAND => self.begin_command(bhs, out),
            opcode::DATA_OUT => self.begin_data_out(bhs),
            opcode::NOP_OUT
            | opcode::TASK_REQUEST
            | opcode::TEXT_REQUEST
            | opcode::LOGOUT_REQUEST => {
                let sink = if self.take_number(bhs)? { Sink::Kept } else { Sink::Dropped };
                Ok((sink, None))
            }
            _ => {
                self.reject(reject::COMMAND_NOT_SUPPORTED, &bhs.encode(), out);
                Ok((Sink::Dropped, None))
            }
        }
    }

    /// Returns whether a request is to be carried out, by its number (ISCSI-CONNECTION-3).
    fn take_number(&mut self, bhs: &Bhs) -> Result<bool, CloseReason> {
        if bhs.is_immediate() {
            return Ok(true);
        }
        let number = bhs.rest[1].get();
        let ahead = number.wrapping_sub(self.exp_cmd_sn);
        if ahead == 0 && self.tasks.room() > 0 {
            self.exp_cmd_sn = self.exp_cmd_sn.wrapping_add(1);
            return Ok(true);
        }
        if ahead > 0 && ahead < self.tasks.room() {
            return Err(CloseReason::ProtocolError("a command number is left out"));
        }
        Ok(false)
    }

    fn begin_command(&mut self, bhs: &Bhs, out: &mut impl Outbox) -> Begun {
        let command = pdu::ScsiCommand::decode(&bhs.encode());
        if self.is_discovery() {
            return Err(CloseReason::ProtocolError("a command in a discovery session"));
        }
        if !self.take_number(bhs)? {
            return Ok((Sink::Dropped, None));
        }
        let len = u32::try_from(bhs.lengths.data_len()).expect("24 bits");
        let task = Task::new(&command, bhs.is_immediate());
        let is_alone = task.flags & FINAL != 0;
        let has_data_allowed = len == 0
            || (self.parameters.immediate_data
                && len <= self.parameters.first_burst_max.min(task.writable()));
        if !has_data_allowed || (!is_alone && (self.parameters.initial_r2t || task.writable() == 0))
        {
            return Err(CloseReason::ProtocolError("data that was not agreed on"));
        }
        let Some(id) = self.tasks.add(task) else {
            self.reject(reject::TOO_MANY_IMMEDIATE, &bhs.encode(), out);
            return Ok((Sink::Dropped, None));
        };
        Ok((Sink::Task { id, offset: 0 }, Some(Step::Command(id))))
    }

    /// Acts on a PDU that is whole.
    fn end<'a>(&mut self, out: &mut impl Outbox) -> Result<Option<Step<'a>>, CloseReason> {
        let (bhs, sink) = (self.receiver.bhs, self.receiver.sink);
        match (bhs.operation(), sink) {
            (_, Sink::Task { id, offset }) => Ok(self.end_data(id, &bhs, offset, out)),
            (_, Sink::Dropped) => Ok(None),
            (opcode::LOGIN_REQUEST, _) => {
                let text = core::mem::take(&mut self.receiver.kept);
                Ok(self.on_login(&bhs, &text, out))
            }
            (opcode::NOP_OUT, _) => self.on_nop(&bhs, out).map(|()| None),
            (opcode::TASK_REQUEST, _) => {
                Ok(Some(Step::Manage(pdu::TaskRequest::decode(&bhs.encode()))))
            }
            (opcode::TEXT_REQUEST, _) => self.on_text(&bhs, out),
            (opcode::LOGOUT_REQUEST, _) => self.on_logout(&bhs, out).map(Some),
            _ => Ok(None),
        }
    }

    fn on_nop(&mut self, bhs: &Bhs, out: &mut impl Outbox) -> Result<(), CloseReason> {
        let nop = pdu::NopOut::decode(&bhs.encode());
        if self.ping.is_some_and(|(ttt, _)| ttt == nop.ttt.get()) {
            self.ping = None;
        }
        if nop.itt.get() == NO_TAG {
            return match bhs.is_immediate() {
                true => Ok(()),
                false => {
                    Err(CloseReason::ProtocolError("a NOP-Out that wants no answer is immediate"))
                }
            };
        }
        let mut ping = core::mem::take(&mut self.receiver.kept);
        ping.truncate(self.parameters.send_max as usize);
        let mut answer: pdu::NopIn = pdu::blank(opcode::NOP_IN);
        (answer.itt, answer.ttt, answer.lun) = (nop.itt, NO_TAG.into(), nop.lun);
        answer.lengths = pdu::Lengths::of_data(ping.len());
        answer.sequence = self.sequence(true);
        self.put(&answer.encode(), &ping, out);
        Ok(())
    }

    fn on_text<'a>(
        &mut self,
        bhs: &Bhs,
        out: &mut impl Outbox,
    ) -> Result<Option<Step<'a>>, CloseReason> {
        let request = pdu::TextRequest::decode(&bhs.encode());
        let itt = request.itt.get();
        if request.ttt.get() != NO_TAG {
            let goes_on = self.text.as_ref().is_some_and(|answer| answer.itt == itt);
            if !goes_on {
                self.reject(reject::INVALID_FIELD, &bhs.encode(), out);
                return Ok(None);
            }
            self.put_text(out);
            return Ok(None);
        }
        let received = core::mem::take(&mut self.receiver.kept);
        let pairs = text::pairs(&received).ok().filter(|_| request.flags & FINAL != 0);
        let Some(pairs) = pairs.filter(|_| received.len() <= self.limits.text_max) else {
            self.reject(reject::PROTOCOL_ERROR, &bhs.encode(), out);
            return Ok(None);
        };
        self.text = Some(TextAnswer { itt, rest: Vec::new() });
        let mut answer = Vec::new();
        for (key, value) in pairs {
            match key {
                "SendTargets" => return Ok(Some(Step::SendTargets(value.to_string()))),
                "MaxRecvDataSegmentLength" => {
                    if let Answer::Value(value) =
                        self.parameters.negotiate(key, value, &self.limits)
                    {
                        text::put(&mut answer, key, &value);
                    }
                }
                _ => text::put(&mut answer, key, "NotUnderstood"),
            }
        }
        self.answer_text(answer, out);
        Ok(None)
    }

    fn on_logout(
        &mut self,
        bhs: &Bhs,
        out: &mut impl Outbox,
    ) -> Result<Step<'static>, CloseReason> {
        let request = pdu::LogoutRequest::decode(&bhs.encode());
        let mut response: pdu::LogoutResponse = pdu::blank(opcode::LOGOUT_RESPONSE);
        response.itt = request.itt;
        // Recovery of a connection is beyond level 0.
        let is_recovery = request.flags & 0x7F == 2;
        response.response = if is_recovery { 2 } else { 0 };
        response.time2wait = 2.into();
        response.sequence = self.sequence(true);
        self.put(&response.encode(), &[], out);
        Ok(Step::Closed(CloseReason::LoggedOut))
    }
}
