//! A core that serves no volume for a while: whether its devices are still its own is not known.
//!
//! - U1: hosts of its volumes are cut, and none is let in. They are to retry (T8), and so are strangers,
//!   which are answered as for a volume that does not exist (T4 of `admission.rs`).
//! - U2: none of its shards is looked after, or shut down with it: whatever they wrote could be another's to write. The next
//!   start replays their journals, if it is to have them.
//! - U3: a command that waits for its turn is not carried out (C3 of `commands.rs`). Before commands run,
//!   the lease is checked ([`Core::serve_while`]): a process that was stopped therefore carries no command
//!   out when it continues, before its cores have been told.

use io_traits::{Device, World};

use crate::core::Core;
use crate::session::VolumeEvent;

/// Says whether a core may serve.
pub(crate) type MayServe = Box<dyn Fn() -> bool>;

impl<W: World, D: Device> Core<W, D> {
    /// Serves no volume until [`Core::resume`]. The caller sees to it that the devices take no more requests
    /// when they may be another's.
    pub fn suspend(&self) {
        if self.state.suspended.replace(true) {
            return;
        }
        self.note_awaiting();
        let exports: Vec<_> = self.state.exports.borrow().values().cloned().collect();
        exports.iter().for_each(|export| self.tell(export, VolumeEvent::Suspended));
    }

    /// Serves its volumes again.
    pub fn resume(&self) {
        self.state.suspended.set(false);
    }

    /// From now on asks `may_serve` before commands run, and suspends itself once that says no (U3).
    pub fn serve_while(&self, may_serve: impl Fn() -> bool + 'static) {
        *self.state.may_serve.borrow_mut() = Some(Box::new(may_serve));
    }

    /// U3.
    pub(crate) fn look_whether_to_serve(&self) {
        let may_serve = self.state.may_serve.borrow().as_ref().is_none_or(|may_serve| may_serve());
        if !may_serve {
            self.suspend();
        }
    }

    /// Returns whether it serves no volume for now.
    #[must_use]
    pub fn is_suspended(&self) -> bool {
        self.state.suspended.get()
    }
}
