//! What the disk damaged, and what that excuses.

use sim::{Damage, DamageKind, SimDevice};
use units::{Lba, LbaRange, Pba};

use super::{Leniency, Run};
use crate::content;
use crate::history::{Change, Moment};
use crate::model::VolumeModel;

impl Run {
    /// Whether the disk damaged any tenant's block.
    #[must_use]
    pub(crate) fn is_any_harmed(&self) -> bool {
        self.take_damage();
        !self.shared.harmed.borrow().is_empty()
    }

    /// Whether a block of the range may be lost, and that at this place if it is told which.
    pub(super) fn is_lost(
        &self,
        volume: &VolumeModel,
        range: LbaRange,
        from: Moment,
        place: Option<(Lba, Pba)>,
    ) -> bool {
        let range = match place {
            Some((lba, pba)) if !range.contains(lba) || !self.is_lost_at(pba, lba) => return false,
            Some((lba, _)) => LbaRange::new(lba, 1),
            None => range,
        };
        let doubtful =
            !self.shared.unread.borrow().is_empty() && volume.history.borrow().is_open(range, from);
        doubtful || self.is_harmed(volume, range, from)
    }

    /// Whether any block of the range may hold what the disk damaged.
    fn is_harmed(&self, volume: &VolumeModel, range: LbaRange, now: Moment) -> bool {
        let history = volume.history.borrow();
        let harmed = self.shared.harmed.borrow();
        let (from, to) = (range.start.0, range.start.0 + range.blocks);
        let mut inside = harmed.range((volume.id, from, 0)..(volume.id, to, 0));
        inside.any(|(_, lba, tag)| {
            let Some(write) = history.get(*tag) else { return false };
            let replaced = |later: &Change| {
                later.is_certain_before(now) && write.is_over_before(later.invoked)
            };
            !history.of_block(*lba).any(replaced)
        })
    }

    /// Takes in what the disk damaged: whose blocks these are, and what a crash may now undo.
    pub(crate) fn take_damage(&self) {
        let damage = self.shared.disk.borrow().as_ref().map(SimDevice::take_damage);
        for Damage { kind, pba, intended } in damage.iter().flatten() {
            self.count(|counts| counts.damaged += 1);
            // It passes, and excuses nothing.
            if *kind == DamageKind::MisdirectedRead {
                continue;
            }
            if let Some((id, lba, tag)) = content::owner(intended) {
                self.shared.harmed.borrow_mut().insert((id, lba, tag));
                self.shared.spoiled.borrow_mut().insert((*pba, Lba(lba)));
                let volume = self.shared.volumes.borrow().iter().find(|v| v.id == id).cloned();
                if let Some(volume) = volume
                    && let Some(write) = volume.history.borrow_mut().get_mut(tag)
                {
                    write.harmed = true;
                }
            } else if intended.iter().any(|byte| *byte != 0) || *kind != DamageKind::Overwritten {
                self.set_leniency(Leniency { metadata: true, ..self.leniency() });
            }
        }
    }
}
