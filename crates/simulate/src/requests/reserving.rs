//! Reservations: commands of hosts, and whether what is answered to their requests agrees with them.

use client::Error;
use nvme_wire::reservation::RACQA_PREEMPT_AND_ABORT;
use nvme_wire::{IoOpcode, Status};

use super::Worker;
use crate::history::{Fate, Moment};
use crate::hosts::{HOSTS, host_id};
use crate::model::VolumeModel;
use crate::reserved::{Refusal, Reserved};
use crate::rig::Rig;
use crate::run::Run;
use crate::target::{Failure, Target};

impl Worker {
    /// Carries out a reservation command, one of a volume at a time.
    pub(super) async fn reserve(&mut self) -> Result<(), Failure> {
        let Some((model, Target::Plane(volume, _))) = self.pick().await else { return Ok(()) };
        let _alone = self.rig.change_alone(&model).await;
        let Some(before) = self.rig.reserved(&model) else { return Ok(()) };
        self.run.check_reserved(&model, &before);
        let (tag, from) = self.run.begin_reserve(&model);
        let ask = before.draw(self.host, HOSTS, tag, &mut self.rng);
        let expected = before.clone().behind(self.host, &ask);
        self.run.note(from, format_args!("{tag}: host {}: {ask:?}", self.host));
        let next = expected.clone().unwrap_or(before);
        model.reserved.borrow_mut().begin(tag, next.clone(), from);
        let aborts = ask.opcode == IoOpcode::RESERVATION_ACQUIRE
            && ask.command.action == RACQA_PREEMPT_AND_ABORT;
        if aborts {
            model.aborts.borrow_mut().push((from, Moment::MAX));
        }
        let outcome = volume.reserve(ask.opcode, ask.command, ask.keys).await;
        let now = self.run.now();
        if aborts && let Some((_, ended)) = model.aborts.borrow_mut().last_mut() {
            *ended = now;
        }
        self.run.note(now, format_args!("{tag}: {outcome:?}, expected {expected:?}"));
        let found = match outcome {
            Ok(()) => Ok(next),
            Err(Error::Target { status, .. }) => match status.code() {
                Status::RESERVATION_CONFLICT => Err(Refusal::Conflict),
                Status::INVALID_FIELD => Err(Refusal::Invalid),
                // It may have been carried out, as where the server ends.
                _ => return Err(status.into()),
            },
            Err(error) => return Err(error.into()),
        };
        if found != expected {
            self.run.fail(format!("volume {}: {ask:?}: {found:?}, not {expected:?}", model.id));
        }
        let fate = if found.is_ok() { Fate::Done } else { Fate::Refused };
        model.reserved.borrow_mut().end(tag, fate, now);
        Ok(())
    }

    /// Checks that a request which was made since `from` may end so under the reservations of its volume.
    pub(super) fn check_excluded(
        &self,
        model: &VolumeModel,
        writes: bool,
        from: Moment,
        outcome: Result<(), Failure>,
    ) {
        let to = self.run.now();
        let register = model.reserved.borrow();
        let mut admits = register.possible(from, to).map(|state| state.admits(self.host, writes));
        let is_possible = match outcome {
            Ok(()) => admits.any(|admits| admits),
            Err(Failure::Conflict) => admits.any(|admits| !admits),
            Err(Failure::Aborted) => model.aborts.borrow().iter().any(|(_, ended)| *ended >= from),
            Err(_) => true,
        };
        if !is_possible {
            let states: Vec<&Reserved> = register.possible(from, to).collect();
            let (id, host) = (model.id, self.host);
            self.run.fail(format!("volume {id}: host {host}: {outcome:?} under {states:?}"));
        }
    }
}

impl Rig {
    /// The reservations of a volume that is served.
    pub(crate) fn reserved(&self, model: &VolumeModel) -> Option<Reserved> {
        let export = self.core()?.export(model.uuid())?;
        Some(export.with_reservations(|state| {
            let number = |host: &[u8; 16]| (0..HOSTS).find(|number| host_id(*number) == *host);
            let registrants: Vec<_> = state
                .registrants()
                .filter_map(|it| Some((number(&it.host.short_id())?, it.key, it.is_holder)))
                .collect();
            let holder = registrants.iter().find(|(.., is_holder)| *is_holder);
            let holder = holder.map(|(number, ..)| *number);
            let held = state.kind().map(|kind| {
                let holder = if kind.is_held_by_all() { None } else { holder };
                (kind.nvme_code(), holder)
            });
            let keys = registrants.iter().map(|(number, key, _)| (*number, *key)).collect();
            Reserved { keys, held, persists: state.is_persistent() }
        }))
    }
}

impl Run {
    /// Checks the reservations of a volume while no command changes them.
    pub(crate) fn check_reserved(&self, model: &VolumeModel, found: &Reserved) {
        let now = self.now();
        let register = model.reserved.borrow();
        if !register.possible(now, now).any(|state| state == found) {
            let possible: Vec<&Reserved> = register.possible(now, now).collect();
            self.fail(format!("volume {}: {found:?}, not one of {possible:?}", model.id));
        }
    }

    /// Checks the reservations that a start found, which are known then.
    pub(crate) fn check_restarted(&self, model: &VolumeModel, found: &Reserved) {
        let now = self.now();
        let mut register = model.reserved.borrow_mut();
        let possible: Vec<Reserved> =
            register.possible(now, now).map(Reserved::restarted).collect();
        if !possible.contains(found) {
            self.fail(format!("volume {} restarts with {found:?}: {possible:?}", model.id));
        }
        register.settle(found.clone(), now);
        model.aborts.borrow_mut().clear();
    }
}
