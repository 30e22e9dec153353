//! Damage of the disk to tenants' blocks, and the failures that it excuses.

use sim::{Damage, DamageKind, SimDevice};
use units::{Lba, LbaRange, Pba};

use super::Run;
use crate::content;
use crate::history::{Change, Moment};
use crate::model::VolumeModel;

impl Run {
    /// Returns true if block `lba` of some volume may be damaged at `pba`: the disk damaged it there, some boot
    /// could not read it and took it for present, or a start may have undone a change of the block, whose location
    /// was used again since, and nothing replaced it before `from`.
    pub(crate) fn is_lost_at(&self, pba: Pba, lba: Lba, from: Moment) -> bool {
        self.take_damage();
        let unread = self.shared.unread.borrow().contains(&pba);
        let is_undone = |volume: &VolumeModel| volume.history.borrow().is_shaken(lba.0, from);
        unread
            || self.shared.spoiled.borrow().contains(&(pba, lba))
            || self.shared.volumes.borrow().iter().any(|volume| is_undone(volume))
    }

    /// Returns true if a block of the range may be lost, and, if a location is given, lost there.
    pub(super) fn is_lost(
        &self,
        volume: &VolumeModel,
        range: LbaRange,
        from: Moment,
        place: Option<(Lba, Pba)>,
    ) -> bool {
        let range = match place {
            Some((lba, pba)) if !range.contains(lba) || !self.is_lost_at(pba, lba, from) => {
                return false;
            }
            Some((lba, _)) => LbaRange::new(lba, 1),
            None => range,
        };
        let doubtful =
            !self.shared.unread.borrow().is_empty() && volume.history.borrow().is_open(range, from);
        let history = volume.history.borrow();
        let mut lbas = range.start.0..range.start.0 + range.blocks;
        doubtful
            || self.is_harmed(volume, range, from)
            || lbas.any(|lba| history.is_shaken(lba, from))
    }

    /// Returns true if a block of the range may hold data that the disk damaged.
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
            match kind {
                // It passes, and excuses nothing.
                DamageKind::MisdirectedRead => self.count(|counts| counts.damaged += 1),
                _ => self.note_damage(*pba, intended),
            }
        }
    }

    /// Notes that a block is damaged which should hold `intended`.
    pub(crate) fn note_damage(&self, pba: Pba, intended: &[u8]) {
        self.count(|counts| counts.damaged += 1);
        let Some((id, lba, tag)) = content::owner(intended) else {
            return self.note_harm(pba, intended);
        };
        self.shared.harmed.borrow_mut().insert((id, lba, tag));
        self.shared.spoiled.borrow_mut().insert((pba, Lba(lba)));
        let volume = self.shared.volumes.borrow().iter().find(|v| v.id == id).cloned();
        if let Some(volume) = volume
            && let Some(write) = volume.history.borrow_mut().get_mut(tag)
        {
            write.harmed = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::Failure;

    /// A start undoes a write whose data the disk lost, though it was answered. What the write had freed may have been used
    /// again: then the error names the place of the block before, which is sound.
    #[test]
    fn an_error_of_a_block_whose_write_was_undone_may_name_another_place() {
        let is_excused = |steps: &[&str]| {
            let run = Run::default();
            let model = run.new_volume(0, 100);
            let range = LbaRange::new(Lba(6), 1);
            let write = || {
                let tag = run.begin(&model, range, false);
                run.end(&model, tag, Ok(()));
                tag
            };
            write();
            let lost = write();
            run.shared.harmed.borrow_mut().insert((model.id, 6, lost));
            run.shared.spoiled.borrow_mut().insert((Pba(1288), Lba(6)));
            model.history.borrow_mut().get_mut(lost).expect("it was begun").harmed = true;
            let mut invoked = None;
            for step in steps {
                match *step {
                    "start" => run.close(),
                    "read" => invoked = Some(run.now()),
                    _ => assert!(write() > lost),
                }
            }
            let failure = Failure::Corrupt(Some((Lba(6), Pba(1290))));
            let invoked = invoked.unwrap_or_else(|| run.now());
            run.check_read(&model, range, invoked, &Err(failure));
            !run.has_failed()
        };
        assert!(!is_excused(&[]), "the disk damaged another place");
        assert!(is_excused(&["start"]));
        assert!(!is_excused(&["start", "write"]), "it was written again");
        assert!(is_excused(&["start", "read", "write"]), "it was written again while it was read");
    }
}
