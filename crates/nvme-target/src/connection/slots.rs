//! The commands in flight on one connection.

use alloc::vec::Vec;

use nvme_wire::{Sqe, Status};
use zerocopy::FromZeros;

use super::fused::Half;

/// Names a command in flight: an index below the queue's number of entries. Reused once the command
/// has been completed.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct SlotId(pub u16);

impl SlotId {
    /// As an index into a table with one entry per slot.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// The phase of a command.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum SlotState {
    /// There is none.
    Free,
    /// Its in-capsule data is arriving.
    Collecting,
    /// It waits for [`super::Connection::grant`], or for data that an R2T asked for.
    Soliciting,
    /// The driver has it.
    Executing,
    /// It is done, but its R2T is not: the completion follows the last data PDU.
    Draining(Status),
}

#[derive(Clone, Copy)]
pub(super) struct Slot {
    pub(super) sqe: Sqe,
    pub(super) state: SlotState,
    /// A data digest of this command was wrong.
    pub(super) digest_failed: bool,
    /// Bytes of data that the host has for us.
    pub(super) transfer_len: u32,
    /// Bytes received.
    pub(super) received: u32,
    /// Bytes that the driver has memory for.
    pub(super) granted: u32,
    /// Start of what the last R2T asks for.
    pub(super) r2t_start: u32,
    /// End of what the outstanding R2T asks for; equal to `received` if none is outstanding.
    pub(super) r2t_end: u32,
    /// The number of the last R2T.
    pub(super) r2t_number: u64,
    /// Present if it is half of a fused operation that is not executed yet.
    pub(super) half: Option<Half>,
}

impl Slot {
    /// Returns true if its data is taken in: it is not done yet.
    pub(super) fn is_collecting(&self) -> bool {
        !matches!(self.state, SlotState::Draining(_))
    }
}

/// All slots of a connection. They are made as they are needed, so that a queue which is hardly used takes little.
pub(super) struct Slots {
    /// Largest number of slots.
    max: u16,
    slots: Vec<Slot>,
    /// Command identifier of each slot; meaningless where the slot is free.
    cids: Vec<u16>,
    /// Last in, first out, so that the same few slots stay in the cache.
    free: Vec<SlotId>,
}

/// Why a command gets no slot.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum NoSlot {
    /// As many commands are in flight as the queue has entries.
    Overrun,
    /// The host uses the identifier of a command in flight.
    CidInUse,
}

/// Stands in the identifiers of free slots, so that the scan for a duplicate needs no second look
/// except for this one value.
const CID_OF_FREE_SLOT: u16 = 0xFFFF;

/// Slots that are made at first; then as many again each time.
const FIRST_SLOTS: usize = 4;

impl Slots {
    pub(super) fn new(max: u16) -> Self {
        Self { max, slots: Vec::new(), cids: Vec::new(), free: Vec::new() }
    }

    /// From now on there may be `max`, if that is more than before. Those in use stay where they are.
    pub(super) fn allow(&mut self, max: u16) {
        self.max = self.max.max(max);
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Makes some more if there may be more.
    fn grow(&mut self) {
        let first_new = self.slots.len();
        let len = (first_new * 2).max(FIRST_SLOTS).min(usize::from(self.max));
        let empty = Slot {
            sqe: Sqe::new_zeroed(),
            state: SlotState::Free,
            digest_failed: false,
            transfer_len: 0,
            received: 0,
            granted: 0,
            r2t_start: 0,
            r2t_end: 0,
            r2t_number: 0,
            half: None,
        };
        self.slots.reserve_exact(len - first_new);
        self.slots.resize(len, empty);
        self.cids.resize(len, CID_OF_FREE_SLOT);
        let new = (first_new..len).rev();
        self.free.extend(new.map(|index| SlotId(u16::try_from(index).expect("below `max`"))));
    }

    pub(super) fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Gives `sqe` a slot.
    pub(super) fn take(
        &mut self,
        sqe: &Sqe,
        state: SlotState,
        transfer_len: u32,
    ) -> Result<SlotId, NoSlot> {
        let cid = sqe.cid.get();
        if self.is_in_use(cid) {
            return Err(NoSlot::CidInUse);
        }
        if self.free.is_empty() {
            self.grow();
        }
        let id = self.free.pop().ok_or(NoSlot::Overrun)?;
        self.cids[id.index()] = cid;
        self.slots[id.index()] = Slot {
            sqe: *sqe,
            state,
            digest_failed: false,
            transfer_len,
            received: 0,
            granted: 0,
            r2t_start: 0,
            r2t_end: 0,
            r2t_number: 0,
            half: None,
        };
        Ok(id)
    }

    fn is_in_use(&self, cid: u16) -> bool {
        // No early exit: the compiler then compares many at once.
        let found = self.cids.iter().fold(false, |found, used| found | (*used == cid));
        found
            && (cid != CID_OF_FREE_SLOT
                || self.slots.iter().any(|slot| {
                    slot.state != SlotState::Free && slot.sqe.cid.get() == CID_OF_FREE_SLOT
                }))
    }

    /// The command in flight with this identifier.
    pub(super) fn with_cid(&self, cid: u16) -> Option<&Sqe> {
        let is_it = |slot: &&Slot| slot.state != SlotState::Free && slot.sqe.cid.get() == cid;
        self.slots.iter().find(is_it).map(|slot| &slot.sqe)
    }

    pub(super) fn free(&mut self, id: SlotId) {
        let slot = &mut self.slots[id.index()];
        assert!(slot.state != SlotState::Free, "{id:?} is completed twice");
        slot.state = SlotState::Free;
        self.cids[id.index()] = CID_OF_FREE_SLOT;
        self.free.push(id);
    }

    /// The slot that a host names by its number, if a command is in it.
    pub(super) fn used(&mut self, number: u16) -> Option<&mut Slot> {
        self.slots.get_mut(usize::from(number)).filter(|slot| slot.state != SlotState::Free)
    }

    pub(super) fn get(&self, id: SlotId) -> &Slot {
        &self.slots[id.index()]
    }

    pub(super) fn get_mut(&mut self, id: SlotId) -> &mut Slot {
        &mut self.slots[id.index()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sqe(cid: u16) -> Sqe {
        Sqe { cid: cid.into(), ..Sqe::new(2, 1) }
    }

    #[test]
    fn identifiers_in_flight_are_not_taken_twice() {
        let mut slots = Slots::new(3);
        for cid in [0, 0xFFFF] {
            let id = slots.take(&sqe(cid), SlotState::Executing, 0).expect("room");
            assert_eq!(slots.take(&sqe(cid), SlotState::Executing, 0), Err(NoSlot::CidInUse));
            slots.free(id);
            let again = slots.take(&sqe(cid), SlotState::Executing, 0);
            assert_eq!(again, Ok(id), "the hot slot comes first");
        }
        assert_eq!(slots.in_flight(), 2);
    }

    #[test]
    fn the_number_of_slots_is_the_limit() {
        let mut slots = Slots::new(1);
        slots.take(&sqe(1), SlotState::Executing, 0).expect("room");
        assert_eq!(slots.take(&sqe(2), SlotState::Executing, 0), Err(NoSlot::Overrun));
        slots.allow(40);
        for cid in 2..41 {
            slots.take(&sqe(cid), SlotState::Executing, 0).expect("room");
        }
        assert_eq!(slots.take(&sqe(41), SlotState::Executing, 0), Err(NoSlot::Overrun));
        assert_eq!((slots.len(), slots.in_flight()), (40, 40));
    }

    #[test]
    fn no_more_are_made_than_are_in_use_at_a_time() {
        let mut slots = Slots::new(128);
        for cid in 0..1000 {
            let id = slots.take(&sqe(cid), SlotState::Executing, 0).expect("room");
            slots.free(id);
        }
        assert_eq!(slots.len(), FIRST_SLOTS);
    }
}
