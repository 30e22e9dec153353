//! Fused operations: two commands that follow each other on a queue and are executed as one.
//!
//! - FUSED-1: a first half is paired with the very next command of the queue, or aborted with Missing Fused
//!   Command. So is a second half that follows no first one.
//! - FUSED-2: the driver gets both at once, when the data of both has come. Until then either may fail
//!   alone, and the other is aborted with Failed Fused Command.
//! - FUSED-3: an aborted half is completed when its data has come, for it cannot be taken back.

use nvme_wire::sqe::Fuse;
use nvme_wire::{Sqe, Status};
use units::Instant;

use super::slots::SlotState;
use super::{Connection, SlotId, State, Step};
use crate::Outbox;

/// The state of a slot that holds half of a fused operation.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Half {
    is_first: bool,
    partner: Option<SlotId>,
    /// All of its data has come.
    is_whole: bool,
    /// FUSED-3: what it will be completed with.
    abort: Option<Status>,
}

/// The last command of the queue, if it was a first half.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum FirstHalf {
    None,
    /// It waits for its second half, since then.
    Waiting(SlotId, Instant),
    /// It has failed already.
    Failed,
}

/// The halves of a connection.
pub(super) struct Fusing {
    last: FirstHalf,
    /// Halves that hold all their data and are to be completed (FUSED-3).
    aborted: alloc::vec::Vec<(SlotId, Status)>,
}

/// The relation of a new command to the one before it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Pairing {
    /// Nothing.
    Single,
    First,
    SecondOf(SlotId),
}

impl Fusing {
    pub(super) fn new() -> Self {
        Self { last: FirstHalf::None, aborted: alloc::vec::Vec::with_capacity(2) }
    }

    /// Since when a second half has been owed.
    pub(super) fn waiting_since(&self) -> Option<Instant> {
        match self.last {
            FirstHalf::Waiting(_, since) => Some(since),
            FirstHalf::None | FirstHalf::Failed => None,
        }
    }
}

impl Connection {
    /// The first half of the operation whose second half is in `slot`, while neither is executed.
    #[must_use]
    pub fn first_half_of(&self, slot: SlotId) -> Option<SlotId> {
        let half = self.slots.get(slot).half?;
        half.partner.filter(|_| !half.is_first)
    }

    /// Returns true if the last command is a first half that waits for its second one.
    #[must_use]
    pub fn awaits_second_half(&self) -> bool {
        self.fusing.waiting_since().is_some()
    }

    /// FUSED-1 for a command that has just come.
    pub(super) fn pair(&mut self, sqe: &Sqe) -> Result<Pairing, Status> {
        if !matches!(self.state, State::Live { qid: 1.. }) {
            return Ok(Pairing::Single);
        }
        let last = core::mem::replace(&mut self.fusing.last, FirstHalf::None);
        match (last, sqe.fuse()) {
            (FirstHalf::Waiting(first, _), Fuse::Second) => return Ok(Pairing::SecondOf(first)),
            (FirstHalf::Failed, Fuse::Second) => return Err(Status::ABORTED_FAILED_FUSED),
            (FirstHalf::None, Fuse::Second) => return Err(Status::ABORTED_MISSING_FUSED),
            (FirstHalf::Waiting(first, _), _) => {
                self.abort_half(first, Status::ABORTED_MISSING_FUSED);
            }
            (FirstHalf::None | FirstHalf::Failed, _) => {}
        }
        Ok(if sqe.fuse() == Fuse::First { Pairing::First } else { Pairing::Single })
    }

    /// The command got a slot.
    pub(super) fn paired(&mut self, now: Instant, slot: SlotId, pairing: Pairing) {
        let (is_first, partner) = match pairing {
            Pairing::Single => return,
            Pairing::First => (true, None),
            Pairing::SecondOf(first) => (false, Some(first)),
        };
        self.slots.get_mut(slot).half =
            Some(Half { is_first, partner, is_whole: false, abort: None });
        match partner {
            None => self.fusing.last = FirstHalf::Waiting(slot, now),
            Some(first) => {
                if let Some(half) = &mut self.slots.get_mut(first).half {
                    half.partner = Some(slot);
                }
            }
        }
    }

    /// The command got none.
    pub(super) fn unpaired(&mut self, pairing: Pairing) {
        match pairing {
            Pairing::Single => {}
            Pairing::First => self.fusing.last = FirstHalf::Failed,
            Pairing::SecondOf(first) => self.abort_half(first, Status::ABORTED_FAILED_FUSED),
        }
    }

    /// FUSED-2: a half that is completed before the driver got the pair takes the other one with it.
    pub(super) fn half_failed(&mut self, slot: SlotId) {
        let Some(half) = self.slots.get_mut(slot).half.take() else { return };
        if let Some(partner) = half.partner {
            self.abort_half(partner, Status::ABORTED_FAILED_FUSED);
        } else if matches!(self.fusing.last, FirstHalf::Waiting(first, _) if first == slot) {
            self.fusing.last = FirstHalf::Failed;
        }
    }

    /// Completes the second half of a fused operation, which is in `slot` and not executed, and gives the first half, if
    /// that waits for it, a status of its own. The first half is completed when its data has come (FUSED-3).
    pub fn refuse_halves<O: Outbox>(
        &mut self,
        slot: SlotId,
        (of_first, of_second): (Status, Status),
        out: &mut O,
    ) {
        if let Some(first) = self.first_half_of(slot) {
            self.abort_half(first, of_first);
            self.slots.get_mut(slot).half = None;
        }
        self.complete(slot, of_second, 0, out);
    }

    fn abort_half(&mut self, slot: SlotId, status: Status) {
        let Some(half) = &mut self.slots.get_mut(slot).half else { return };
        half.partner = None;
        if half.is_whole {
            self.fusing.aborted.push((slot, status));
        } else {
            half.abort = Some(status);
        }
    }

    /// A half to be completed, if there is one.
    pub(super) fn poll_aborted<'a, O: Outbox>(&mut self, out: &mut O) -> Option<Step<'a>> {
        let (slot, status) = self.fusing.aborted.pop()?;
        self.complete(slot, status, 0, out);
        Some(Step::Discard { slot, status })
    }

    /// All data of the command in `slot` has come: what follows from that.
    pub(super) fn arrived<'a, O: Outbox>(&mut self, slot: SlotId, out: &mut O) -> Option<Step<'a>> {
        let entry = self.slots.get_mut(slot);
        entry.state = SlotState::Executing;
        let Some(half) = &mut entry.half else { return Some(Step::Execute { slot }) };
        if let Some(status) = half.abort {
            self.complete(slot, status, 0, out);
            return Some(Step::Discard { slot, status });
        }
        half.is_whole = true;
        let (partner, is_first) = (half.partner?, half.is_first);
        if !self.slots.get(partner).half.is_some_and(|half| half.is_whole) {
            return None;
        }
        // From now on they are the driver's, and what it says of one is not said of the other.
        for half in [slot, partner] {
            self.slots.get_mut(half).half = None;
        }
        let (first, second) = if is_first { (slot, partner) } else { (partner, slot) };
        Some(Step::ExecuteFused { first, second })
    }
}
