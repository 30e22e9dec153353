//! Commands that are outstanding (INITIATOR-1, INITIATOR-2).

use alloc::vec::Vec;

use units::Instant;

use crate::connection::Transfer;

/// No command has this identifier: in the error log it says that an error belongs to none (Base, clause
/// 3.3.3.1 and figure "Error Information Log Entry").
const CID_NONE: u16 = 0xFFFF;

/// An outstanding command.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Command {
    pub(crate) transfer: Transfer,
    /// Bytes received, or asked for by the controller (or sent in the capsule), from the start.
    pub(crate) done: u32,
    /// The controller said that no more data comes.
    pub(crate) has_all: bool,
    /// R2Ts that came in `round` of [`crate::Connection::handed_over`].
    pub(crate) r2ts: u32,
    pub(crate) round: u32,
    /// When it is late.
    pub(crate) deadline: Instant,
}

impl Command {
    pub(crate) fn new(transfer: Transfer, done: u32, deadline: Instant) -> Self {
        Self { transfer, done, has_all: false, r2ts: 0, round: 0, deadline }
    }

    /// Counts an R2T that came in `round`; returns how many of them have not been answered.
    pub(crate) fn count_r2t(&mut self, round: u32) -> u32 {
        let before = if self.round == round { self.r2ts } else { 0 };
        (self.r2ts, self.round) = (before + 1, round);
        self.r2ts
    }
}

struct Slot {
    /// Command Identifier of the command in the slot, or of the next one if it is free.
    cid: u16,
    command: Option<Command>,
}

/// A fixed number of slots.
pub(crate) struct Slots {
    slots: Vec<Slot>,
    free: Vec<u16>,
    /// Low bits of a Command Identifier that are the slot's index.
    index_mask: u16,
}

impl Slots {
    pub(crate) fn new(depth: u16) -> Self {
        let free = (0..depth).rev().collect();
        let slots = (0..depth).map(|cid| Slot { cid, command: None }).collect();
        Self { slots, free, index_mask: depth.next_power_of_two() - 1 }
    }

    pub(crate) fn free_count(&self) -> usize {
        self.free.len()
    }

    pub(crate) fn capacity(&self) -> usize {
        self.slots.len()
    }

    /// Occupies a slot; its index and the command's identifier. `None` if all are occupied.
    pub(crate) fn occupy(&mut self, command: Command) -> Option<(u16, u16)> {
        let index = self.free.pop()?;
        let slot = &mut self.slots[usize::from(index)];
        slot.command = Some(command);
        Some((index, slot.cid))
    }

    /// The slot whose outstanding command has this identifier.
    pub(crate) fn find(&mut self, cid: u16) -> Option<(u16, &mut Command)> {
        let index = cid & self.index_mask;
        let slot = self.slots.get_mut(usize::from(index)).filter(|slot| slot.cid == cid)?;
        slot.command.as_mut().map(|command| (index, command))
    }

    /// Identifier of the command in slot `index`.
    pub(crate) fn cid(&self, index: u16) -> u16 {
        self.slots[usize::from(index)].cid
    }

    /// Frees a slot; its next command gets another identifier (INITIATOR-2).
    pub(crate) fn free(&mut self, index: u16) {
        let slot = &mut self.slots[usize::from(index)];
        assert!(slot.command.take().is_some(), "slot {index} is freed once");
        // A depth of 2^16 leaves no room for a generation; DEPTH_MAX is far below.
        let step = self.index_mask.wrapping_add(1);
        slot.cid = slot.cid.wrapping_add(step);
        if slot.cid == CID_NONE {
            slot.cid = slot.cid.wrapping_add(step);
        }
        self.free.push(index);
    }

    /// The outstanding command that is late first.
    pub(crate) fn earliest(&self) -> Option<(u16, Instant)> {
        let outstanding = self.slots.iter().zip(0..).filter_map(|(slot, index)| {
            slot.command.as_ref().map(|command| (index, command.deadline))
        });
        outstanding.min_by_key(|(_, deadline)| *deadline)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_freed_slot_gets_another_identifier() {
        let mut slots = Slots::new(3);
        let command = Command::new(Transfer::None, 0, Instant(5));
        let (index, cid) = slots.occupy(command).expect("free");
        assert!(slots.find(cid).is_some());
        slots.free(index);
        assert!(slots.find(cid).is_none());
        let (again, next) = slots.occupy(command).expect("free");
        assert_eq!(again, index);
        assert_ne!(next, cid);
        assert!(slots.find(cid).is_none(), "the old identifier stays dead");
        assert!(slots.find(next).is_some());
        assert!(slots.find(3).is_none(), "beyond the last slot");
    }

    #[test]
    fn identifiers_come_back_only_after_all_generations() {
        let mut slots = Slots::new(128);
        let command = Command::new(Transfer::None, 0, Instant(0));
        let (_, first) = slots.occupy(command).expect("free");
        slots.free(first & 127);
        for _ in 1..512 {
            let (index, cid) = slots.occupy(command).expect("free");
            assert_ne!(cid, first);
            slots.free(index);
        }
        assert_eq!(slots.occupy(command).expect("free").1, first);
    }
    /// Method: all slots go through more than all generations.
    #[test]
    fn no_command_has_the_identifier_that_stands_for_none() {
        for depth in [1, 2, 127, 128, 1024] {
            let mut slots = Slots::new(depth);
            let command = Command::new(Transfer::None, 0, Instant(0));
            for _ in 0..(1 << 16) / u32::from(depth) + 2 {
                for _ in 0..depth {
                    let (_, cid) = slots.occupy(command).expect("free");
                    assert_ne!(cid, 0xFFFF, "depth {depth}");
                }
                (0..depth).for_each(|index| slots.free(index));
            }
        }
    }
}
