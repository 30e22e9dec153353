//! Applies a chunk of received bytes to a queue.

use checksum::{Crc32c, copy, crc32c, crc32c_copy};
use nvme_initiator::sabotage::{Sabotage, broken};
use nvme_initiator::{ConnectionError, Event, Payload, R2tRequest};
use nvme_wire::fabrics::ConnectInvalid;
use nvme_wire::{Cqe, Status};
use units::Instant;

use crate::queue::{Queue, QueueState};
use crate::requests::{Body, Completion, Place, RequestState};
use crate::{Disconnect, Error};

/// Times that a command is sent before a transient error is passed on to the caller.
const ATTEMPTS_MAX: u8 = 4;
/// PDUs up to this are checksummed in one go when they came in pieces: they are hot.
const PIECE: usize = 16 << 10;

/// CRC-32C of the data PDU that passes by.
#[derive(Default)]
pub(crate) struct PayloadDigest {
    /// Offset of the PDU's data in the command's data.
    start: usize,
    /// Bytes of data in the PDU.
    len: usize,
    /// The digest, once all data has passed.
    value: u32,
    /// Takes the data as it comes, if it is more than a [`PIECE`]; else it is done in one go.
    running: Crc32c,
    /// Some of the data went nowhere, so that the digest is not known.
    unknown: bool,
}

impl PayloadDigest {
    fn begin(&mut self, payload: Payload) {
        (self.start, self.len) = (payload.offset as usize, payload.len as usize);
        self.unknown = false;
        if self.len > PIECE {
            self.running = Crc32c::new();
        }
    }

    /// Copies `data` to `buffer[at..]` and takes it in.
    fn copy(&mut self, buffer: &mut [u8], at: usize, data: &[u8]) {
        let end = at + data.len();
        let is_last = end == self.start + self.len;
        let target = &mut buffer[at..end];
        if data.len() == self.len {
            self.value = crc32c_copy(data, target);
        } else if self.len <= PIECE {
            copy(data, target);
            if is_last {
                let start = if broken(Sabotage::DigestOfLastPiece) { at } else { self.start };
                self.value = crc32c(&buffer[start..end]);
            }
        } else {
            self.running.update_and_copy(data, target);
            if is_last {
                self.value = self.running.value();
            }
        }
    }
}

impl Queue {
    /// Takes in received bytes. Fails the link if they break the protocol.
    pub(crate) fn on_chunk(&self, epoch: u64, now: Instant, bytes: &[u8]) {
        let result = self.state.borrow_mut().on_chunk(epoch, now, bytes);
        if let Err(error) = result {
            self.fail(epoch, Disconnect::Protocol(error));
        }
    }
}

impl QueueState {
    fn on_chunk(
        &mut self,
        epoch: u64,
        now: Instant,
        mut bytes: &[u8],
    ) -> Result<(), ConnectionError> {
        self.counters.receives += 1;
        let was_empty = self.outgoing.is_empty();
        loop {
            let Some(link) = self.current(epoch) else { return Ok(()) };
            if let Some(payload) = link.connection.payload() {
                let len = bytes.len().min(payload.len as usize);
                let (data, rest) = bytes.split_at(len);
                self.on_data(payload, data);
                bytes = rest;
                if bytes.is_empty() && len < payload.len as usize {
                    break;
                }
                continue;
            }
            let (taken, event) = link.connection.on_bytes(bytes)?;
            bytes = &bytes[taken..];
            match event {
                None => break,
                Some(Event::Ready) => self.wake_bring_up(),
                Some(Event::Data(payload)) => link.digest.begin(payload),
                Some(Event::DataDigest { slot, received }) => self.on_digest(slot, received),
                Some(Event::R2t(request)) => self.on_r2t(request),
                Some(Event::Completed { slot, cqe, .. }) => self.on_completed(now, slot, cqe),
            }
        }
        self.pump(now);
        if was_empty && !self.outgoing.is_empty() {
            self.wake_sender();
        }
        Ok(())
    }

    /// Moves data to where it belongs.
    fn on_data(&mut self, payload: Payload, data: &[u8]) {
        let link = self.link.as_mut().expect("data comes from a link");
        let request = self.requests.get(link.by_slot[usize::from(payload.slot)]);
        let Body::ToHost { place, .. } = &mut request.command.body else {
            unreachable!("the connection lets data in for commands that want some");
        };
        let (at, with_digest) = (payload.offset as usize, link.connection.digests().data);
        let mut take = |bytes: &mut [u8]| {
            if with_digest {
                link.digest.copy(bytes, at, data);
            } else {
                copy(data, &mut bytes[at..at + data.len()]);
            }
        };
        match place {
            Place::Own(buffer) => take(buffer.as_mut_bytes()),
            Place::Lent(landing, range) => {
                let mut is_taken = false;
                landing.with(&mut |bytes| {
                    is_taken = bytes.get_mut(range.clone()).map(&mut take).is_some();
                });
                link.digest.unknown |= !is_taken;
            }
        }
        let len = u32::try_from(data.len()).expect("at most the payload");
        link.connection.on_payload(len);
        self.counters.bytes_received += u64::from(len);
    }

    fn on_digest(&mut self, slot: u16, received: u32) {
        let link = self.link.as_mut().expect("a digest comes from a link");
        let is_wrong = link.digest.value != received && !broken(Sabotage::TakeWrongData);
        if is_wrong && !link.digest.unknown {
            self.counters.damaged += 1;
            self.requests.get(link.by_slot[usize::from(slot)]).damaged = true;
        }
    }

    /// Sends what the controller asks for.
    fn on_r2t(&mut self, r2t: R2tRequest) {
        let link = self.link.as_mut().expect("an R2T comes from a link");
        let request = self.requests.get(link.by_slot[usize::from(r2t.slot)]);
        let Body::ToController(data) = &request.command.body else {
            unreachable!("the connection lets R2Ts in for commands that send");
        };
        let with_digest = link.connection.digests().data;
        for pdu in link.connection.h2c_pdus(r2t) {
            let (start, end) = (pdu.offset as usize, (pdu.offset + pdu.len) as usize);
            let from = if broken(Sabotage::DigestFromStart) { 0 } else { start };
            let digest = with_digest.then(|| crc32c(&data.as_bytes()[from..end]));
            let data = data.slice(start..end);
            self.outgoing.push_bytes(pdu.header.as_bytes());
            self.outgoing.push_data(data);
            if let Some(digest) = digest {
                self.outgoing.push_bytes(&digest.to_le_bytes());
            }
        }
        self.counters.bytes_sent += u64::from(r2t.len);
    }

    fn on_completed(&mut self, now: Instant, slot: u16, cqe: Cqe) {
        let link = self.link.as_mut().expect("a completion comes from a link");
        let index = link.by_slot[usize::from(slot)];
        self.counters.completed += 1;
        let request = self.requests.get(index);
        let status = cqe.status();
        let again = request.damaged && status.is_success() || is_transient(status);
        if again && request.attempts < ATTEMPTS_MAX && !request.abandoned {
            self.counters.repeated += 1;
            // What no request may hold up does not wait in line (QUEUE-6).
            if request.is_first() && self.submit(now, index) {
                return;
            }
            let request = self.requests.get(index);
            request.state = RequestState::Queued;
            self.queued.push_back(index);
            self.pump(now);
            return;
        }
        let outcome = if !status.is_success() {
            self.counters.failed += 1;
            if !link.open {
                self.refusal = Some(ConnectInvalid::from_dw0(cqe.dw0()));
            }
            let result = cqe.result.get();
            Err(Error::Target { command: request.command.name, status, result })
        } else if request.damaged {
            Err(Error::Damaged { attempts: request.attempts })
        } else {
            let buffer = match std::mem::replace(&mut request.command.body, Body::None) {
                Body::ToHost { place: Place::Own(buffer), .. } => Some(buffer),
                _ => None,
            };
            Ok(Completion { cqe, buffer })
        };
        self.requests.finish(index, outcome);
    }
}

/// Returns true if the same command may well succeed at once: a data digest did not match on the way to the target,
/// or the controller had to interrupt it.
fn is_transient(status: Status) -> bool {
    !status.dnr()
        && matches!(status.code(), Status::TRANSIENT_TRANSPORT_ERROR | Status::COMMAND_INTERRUPTED)
}
