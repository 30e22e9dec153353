//! A core that serves no volume for a while: whether its devices are still its own is not known.
//!
//! - SUSPENDED-1: hosts of its volumes are cut, and none is let in. They are to retry (ADMISSION-8), and so are strangers,
//!   which are answered as for a volume that does not exist (NVME-AUTH-4).
//! - SUSPENDED-2: none of its shards is looked after, or shut down with it: whatever they wrote could be another's to write.
//!   The next start replays their journals, if it is to have them.
//! - SUSPENDED-3: a command that waits for its turn is not carried out (COMMAND-3). Before commands run,
//!   the lease is checked ([`Core::serve_while`]): a process that was stopped therefore carries no command
//!   out when it continues, before its cores have been told.

use std::cell::{Cell, RefCell};

use io_traits::{Device, World};

use crate::core::Core;
use crate::session::VolumeEvent;

/// Says whether a core may serve.
type MayServe = Box<dyn Fn() -> bool>;

/// The state of a core that can be suspended.
#[derive(Default)]
pub(crate) struct Suspension {
    is_suspended: Cell<bool>,
    may_serve: RefCell<Option<MayServe>>,
}

impl<W: World, D: Device> Core<W, D> {
    /// Serves no volume until [`Core::resume`]. The caller sees to it that the devices take no more requests
    /// when they may be another's.
    pub fn suspend(&self) {
        if self.state.suspension.is_suspended.replace(true) {
            return;
        }
        self.note_awaiting();
        let exports: Vec<_> = self.state.exports.borrow().values().cloned().collect();
        exports.iter().for_each(|export| self.tell(export, VolumeEvent::Suspended));
    }

    /// Serves its volumes again.
    pub fn resume(&self) {
        self.state.suspension.is_suspended.set(false);
    }

    /// From now on asks `may_serve` before commands run, and suspends itself once that says no (SUSPENDED-3).
    pub fn serve_while(&self, may_serve: impl Fn() -> bool + 'static) {
        *self.state.suspension.may_serve.borrow_mut() = Some(Box::new(may_serve));
    }

    /// SUSPENDED-3.
    pub(crate) fn look_whether_to_serve(&self) {
        let may_serve = self.state.suspension.may_serve.borrow();
        let is_refused = may_serve.as_ref().is_some_and(|may_serve| !may_serve());
        drop(may_serve);
        if is_refused {
            self.suspend();
        }
    }

    /// Returns whether it serves no volume for now.
    #[must_use]
    pub fn is_suspended(&self) -> bool {
        self.state.suspension.is_suspended.get()
    }
}
