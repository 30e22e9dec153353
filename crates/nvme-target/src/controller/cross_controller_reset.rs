//! Cross-Controller Resets that were asked of a controller (CONTROLLER-4), until they are over.

use alloc::vec::Vec;

use nvme_wire::{CrossControllerReset, Sqe, Status};

use super::{AdminReply, Controller};
use crate::SlotId;

/// Cross-Controller Resets that may be under way through one controller.
pub(super) const CROSS_CONTROLLER_RESETS_MAX: u8 = 4;

/// A Cross-Controller Reset that is under way. No two through one controller have the same.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ResetId(u64);

/// Those under way, and their commands.
#[derive(Debug, Default)]
pub(super) struct Resets {
    under_way: Vec<(ResetId, SlotId)>,
    /// Those that there have been.
    count: u64,
}

impl Resets {
    /// Takes out the commands that wait for resets; they are aborted.
    pub(super) fn abort(&mut self) -> impl Iterator<Item = SlotId> {
        self.under_way.drain(..).map(|(_, slot)| slot)
    }
}

impl Controller {
    /// Returns true if a Cross-Controller Reset through this controller may end `other` (CONTROLLER-4).
    #[must_use]
    pub fn may_reset(&self, other: &Self) -> bool {
        self.parameters.subsystem == other.parameters.subsystem
            && (self.host_nqn, self.host_id) == (other.host_nqn, other.host_id)
    }

    /// A reset that [`AdminReply::Reset`] asked for is over: the command that is to be completed. `None`: it was
    /// aborted by a controller level reset, and its slot may be another's.
    pub fn reset_ended(&mut self, id: ResetId) -> Option<SlotId> {
        let under_way = &mut self.resets.under_way;
        let place = under_way.iter().position(|(reset, _)| *reset == id)?;
        Some(under_way.remove(place).1)
    }

    /// Returns true if a command waits for the end of this reset.
    #[must_use]
    pub fn awaits_reset(&self, id: ResetId) -> bool {
        self.resets.under_way.iter().any(|(reset, _)| *reset == id)
    }

    pub(super) fn cross_controller_reset(
        &mut self,
        slot: SlotId,
        sqe: &Sqe,
    ) -> Result<AdminReply, Status> {
        let CrossControllerReset(instance) = CrossControllerReset::decode(sqe);
        if instance == self.parameters.instance {
            return Err(Status::INVALID_FIELD.with_dnr());
        }
        if self.resets.under_way.len() >= usize::from(CROSS_CONTROLLER_RESETS_MAX) {
            return Err(Status::CROSS_CONTROLLER_RESET_LIMIT);
        }
        let id = ResetId(self.resets.count);
        self.resets.count += 1;
        self.resets.under_way.push((id, slot));
        Ok(AdminReply::Reset { instance, id })
    }
}
