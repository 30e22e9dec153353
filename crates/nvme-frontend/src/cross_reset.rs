//! Cross-Controller Reset: a host that has lost a controller ends it for certain, through another.
//!
//! A host that loses a connection sends what was outstanding again, on the next. What the lost one
//! left behind must not come after that: a write that had waited there would undo whatever was written to its
//! blocks since. The target drops it when it hears of the end, and the network may keep that from it.
//!
//! - CROSS-RESET-1: when the command is completed, nothing that was sent to the impacted controller is under way, and
//!   nothing of it will be carried out.
//! - CROSS-RESET-2: that holds for a controller, too, whose connections have ended already.
//! - CROSS-RESET-3: a host ends its own controllers of the same subsystem; those of others do not exist for it.
//! - CROSS-RESET-4: a controller level reset of the controller that was asked aborts the command; its waiter is
//!   released.
//! - CROSS-RESET-5: what does without the command, as stock hosts do, has the same as far as the target heard of the end: a
//!   controller gets ready only when nothing is under way any more that its host sent to one that has ended, or to its own queues
//!   before a reset (CONTROLLER-6).

use std::cell::RefCell;
use std::rc::Rc;

use dataplane::Export;
use io_traits::{Device, World};
use nvme_target::ResetId;
use nvme_wire::{ControllerInstance, CrossControllerReset, Status};
use units::Duration;

use crate::association::Association;
use crate::connection::Connection;
use crate::frontend::NvmeCore;

/// Interval at which it is checked if the last command of a controller has ended.
const LOOK: Duration = Duration::from_millis(1);

/// Controllers that are over, and have commands under way.
pub(crate) struct Leaving<W: World, D: Device>(RefCell<Vec<Rc<Association<W, D>>>>);

impl<W: World, D: Device> Default for Leaving<W, D> {
    fn default() -> Self {
        Self(RefCell::default())
    }
}

impl<W: World, D: Device> Leaving<W, D> {
    /// `association` has no admin queue any more. Others are looked at, too: hosts that come and go all the time would leave many
    /// behind until the next tick, for each that comes to go through.
    pub(crate) fn add(&self, association: &Rc<Association<W, D>>) {
        self.forget_those_at_rest();
        if association.subject.export().is_some() {
            self.0.borrow_mut().push(association.clone());
        }
    }

    /// Queues to `export` that such controllers had and that have commands under way.
    pub(crate) fn former_queues_of(&self, export: &Rc<Export<W, D>>) -> usize {
        let all = self.0.borrow();
        let of_it = |one: &&Rc<Association<W, D>>| {
            one.subject.export().is_some_and(|other| Rc::ptr_eq(other, export))
        };
        all.iter().filter(of_it).map(|one| one.former_queues()).sum()
    }

    /// Forgets those that have nothing under way any more.
    pub(crate) fn forget_those_at_rest(&self) {
        self.0.borrow_mut().retain(|association| !association.is_at_rest());
    }

    fn find(&self, instance: ControllerInstance) -> Option<Rc<Association<W, D>>> {
        self.0.borrow().iter().find(|one| one.instance() == instance).cloned()
    }
}

impl<W: World, D: Device> NvmeCore<W, D> {
    /// Returns true if nothing is under way any more that the host of `association` sent before that is
    /// enabled (CROSS-RESET-5).
    pub(crate) fn has_settled(&self, association: &Association<W, D>) -> bool {
        let own = association.controller.borrow();
        let leaving = self.leaving().0.borrow();
        // Names are compared only of those that have something under way.
        let mut former = leaving.iter().filter(|one| !one.is_at_rest());
        association.has_no_former_queue()
            && former.all(|one| !own.may_reset(&one.controller.borrow()))
    }

    /// The controller in this of its lives, also if it is over and has commands under way.
    fn association_of(&self, instance: ControllerInstance) -> Option<Rc<Association<W, D>>> {
        let present = self.association(instance.cntlid);
        let present = present.filter(|association| association.instance() == instance);
        present.or_else(|| self.leaving().find(instance))
    }
}

impl<W: World, D: Device> Connection<W, D> {
    /// Carries out the Cross-Controller Reset `id`, which came to `association`.
    pub(crate) fn reset_other(
        self: &Rc<Self>,
        association: &Rc<Association<W, D>>,
        instance: ControllerInstance,
        id: ResetId,
    ) {
        let own = association.clone();
        let impacted = self
            .core
            .association_of(instance)
            .filter(|other| own.controller.borrow().may_reset(&other.controller.borrow()));
        if let Some(impacted) = &impacted {
            impacted.cut("its host ends it through another controller");
        }
        let connection = self.clone();
        self.core.world().spawn_now(async move {
            let world = connection.core.world();
            let is_awaited = || connection.is_open() && own.controller.borrow().awaits_reset(id);
            while is_awaited() && impacted.as_ref().is_some_and(|one| !one.is_at_rest()) {
                world.sleep_until(world.now() + LOOK).await;
            }
            let slot = own.controller.borrow_mut().reset_ended(id);
            if let Some(slot) = slot {
                let done = u64::from(CrossControllerReset::DONE);
                connection.complete_command(slot, Status::SUCCESS, done);
            }
        });
    }
}
