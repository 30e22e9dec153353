//! Requests between their submission and the moment in which their caller takes the outcome.
//!
//! A request outlives the connection that carries it: after a reconnect it is sent again. The
//! table has a fixed number of places, so that no request allocates.

use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Waker;

use io_traits::{Buffer, BufferSlice, Landing};
use local_sync::Permit;
use nvme_initiator::Transfer;
use nvme_wire::{Cqe, Sqe};
use units::Duration;
use zerocopy::FromZeros;

use crate::namespace::Namespace;
use crate::queue::SUSPECT_AFTER;
use crate::{Disconnect, Error};

/// A command as its caller hands it in.
pub(crate) struct Command {
    pub(crate) sqe: Sqe,
    /// For error messages.
    pub(crate) name: &'static str,
    pub(crate) body: Body,
    /// The namespace whose format it relies on (NAMESPACE-2).
    pub(crate) namespace: Option<Rc<Namespace>>,
    /// True if it is sent again after a reconnect.
    pub(crate) replay: bool,
    /// Connections of earlier clients on which it was sent and that were lost.
    pub(crate) sends: u8,
    /// Instead of the connection's.
    pub(crate) timeout: Option<Duration>,
}

/// The data of a command.
pub(crate) enum Body {
    None,
    /// `len` bytes go to the start of the place.
    ToHost {
        place: Place,
        len: u32,
    },
    ToController(BufferSlice),
}

/// Destination of received data.
pub(crate) enum Place {
    Own(Buffer),
    /// A part of the caller's memory.
    Lent(Arc<dyn Landing>, Range<usize>),
}

impl Body {
    /// A body that receives `len` bytes. What is left of the last block is zeroes.
    pub(crate) fn to_host(len: u32) -> Self {
        let len_bytes = len as usize;
        let mut buffer = Buffer::new(len_bytes.div_ceil(units::BLOCK_SIZE));
        buffer.as_mut_bytes()[len_bytes..].fill(0);
        Self::ToHost { place: Place::Own(buffer), len }
    }

    /// A body that receives `len` bytes to byte `at` of `landing`.
    pub(crate) fn to_landing(landing: Arc<dyn Landing>, at: usize, len: u32) -> Self {
        Self::ToHost { place: Place::Lent(landing, at..at + len as usize), len }
    }

    /// A body that sends a copy of `bytes`.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Self {
        Self::ToController(Buffer::from_bytes(bytes).into_slice().slice(0..bytes.len()))
    }

    pub(crate) fn transfer(&self) -> Transfer {
        match self {
            Self::None => Transfer::None,
            Self::ToHost { len, .. } => Transfer::ToHost(*len),
            Self::ToController(data) => Transfer::ToController(
                u32::try_from(data.len_bytes()).expect("a command carries less than 4 GiB"),
            ),
        }
    }
}

/// The outcome that a caller gets.
pub(crate) struct Completion {
    pub(crate) cqe: Cqe,
    /// The data of a command that receives some.
    pub(crate) buffer: Option<Buffer>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum RequestState {
    Free,
    /// Waits for a connection.
    Queued,
    /// On a connection.
    Outstanding,
    /// The outcome waits for its caller.
    Done,
}

/// A place in the table.
pub(crate) struct Request {
    pub(crate) state: RequestState,
    /// Order of submission, for the order of repetition.
    pub(crate) sequence: u64,
    pub(crate) attempts: u8,
    /// Connections on which it was sent and that were lost, those of earlier clients among them, and why
    /// the last one of this client was.
    pub(crate) losses: u8,
    pub(crate) lost: Option<Disconnect>,
    /// Data of this attempt did not match its digest.
    pub(crate) damaged: bool,
    /// The caller is gone; the outcome is thrown away.
    pub(crate) abandoned: bool,
    pub(crate) command: Command,
    pub(crate) waker: Option<Waker>,
    pub(crate) outcome: Option<Result<Completion, Error>>,
    /// The right to a place, given back with it.
    permit: Option<Permit>,
}

impl Request {
    /// Returns true if it may be the cause for which its connections ended.
    pub(crate) fn is_suspect(&self) -> bool {
        self.losses >= SUSPECT_AFTER
    }

    /// Returns true if it goes ahead of all requests.
    pub(crate) fn is_first(&self) -> bool {
        self.permit.is_none()
    }
}

/// The places.
pub(crate) struct Requests {
    places: Vec<Request>,
    free: Vec<u16>,
    next_sequence: u64,
}

impl Requests {
    pub(crate) fn new(count: u16) -> Self {
        let place = |_| Request {
            state: RequestState::Free,
            sequence: 0,
            attempts: 0,
            losses: 0,
            lost: None,
            damaged: false,
            abandoned: false,
            command: Command {
                sqe: Sqe::new_zeroed(),
                name: "",
                body: Body::None,
                namespace: None,
                replay: false,
                sends: 0,
                timeout: None,
            },
            waker: None,
            outcome: None,
            permit: None,
        };
        Self {
            places: (0..count).map(place).collect(),
            free: (0..count).rev().collect(),
            next_sequence: 0,
        }
    }

    pub(crate) fn get(&mut self, index: u16) -> &mut Request {
        &mut self.places[usize::from(index)]
    }

    /// Takes a place. There is one for each permit, and some for the commands that need no permit
    /// (QUEUE-6).
    pub(crate) fn occupy(&mut self, command: Command, permit: Option<Permit>) -> u16 {
        let index =
            self.free.pop().expect("there is a place for every caller that may ask for one");
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        let place = &mut self.places[usize::from(index)];
        place.state = RequestState::Queued;
        place.sequence = sequence;
        place.attempts = 0;
        place.losses = command.sends;
        place.lost = None;
        place.damaged = false;
        place.abandoned = false;
        place.command = command;
        place.permit = permit;
        index
    }

    pub(crate) fn free(&mut self, index: u16) {
        let place = &mut self.places[usize::from(index)];
        place.state = RequestState::Free;
        place.command.body = Body::None;
        place.command.namespace = None;
        place.waker = None;
        place.outcome = None;
        place.permit = None;
        self.free.push(index);
    }

    /// Ends a request: its caller is woken, or, if gone, the place freed.
    pub(crate) fn finish(&mut self, index: u16, outcome: Result<Completion, Error>) {
        let place = &mut self.places[usize::from(index)];
        if place.abandoned {
            self.free(index);
            return;
        }
        place.state = RequestState::Done;
        place.outcome = Some(outcome);
        if let Some(waker) = place.waker.take() {
            waker.wake();
        }
    }

    /// Requests in `state`, in order of submission.
    pub(crate) fn in_state(&self, state: RequestState) -> Vec<u16> {
        let mut found: Vec<u16> = (0..)
            .zip(&self.places)
            .filter(|(_, request)| request.state == state)
            .map(|(index, _)| index)
            .collect();
        found.sort_by_key(|index| self.places[usize::from(*index)].sequence);
        found
    }
}
