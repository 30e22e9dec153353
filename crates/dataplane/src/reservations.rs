//! Reservations of volumes: one state for each, whatever protocols its hosts speak.
//!
//! - RESERVING-1: a command of a host is answered when its effect is durable, if it is to outlive a restart.
//! - RESERVING-2: commands of hosts, and changes of the access list, which lies in the same place on the device, follow one
//!   another.
//! - RESERVING-3: a request is checked behind all waiting, when it is about to be carried out. One that may change data, and that
//!   was checked before a command, ends before the command is answered: nothing that a preempted host has sent takes effect
//!   later.
//! - RESERVING-4: a volume that comes back with its shard has the state that is on the device, if that is there to outlive a
//!   restart; else the state goes on.
//! - RESERVING-5: a command whose session has ended before its turn is not carried out: a lock that it took would never end.
//! - RESERVING-6: hosts whose commands a command aborts are told before it waits for those under way: what is not under way by
//!   then is not carried out.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use ::access::Access as AccessList;
use io_traits::{Device, World};
use local_sync::{Notify, Permit, Semaphore};
use reservation::{Access, Command, Host, Refused, Reservations};
use volume::VolumeError;

use crate::core::Core;
use crate::export::Export;
use crate::sabotage::{Sabotage, broken};
use crate::session::{Link, Session};

/// The reason for which a reservation command was not carried out.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum NotReserved {
    /// The rules forbid it, or there is no room.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// It could not be made durable.
    #[error(transparent)]
    Volume(#[from] VolumeError),
    /// The session of the host ended before the turn of its command.
    #[error("the session has ended")]
    SessionEnded,
}

/// The reservations of one volume.
pub(crate) struct VolumeReservations {
    state: RefCell<Reservations>,
    /// Only then requests have to be checked.
    may_conflict: Cell<bool>,
    /// RESERVING-2.
    turn: Semaphore,
    /// Requests that were checked and have not ended, by the parity of the commands before them (RESERVING-3).
    passed: [Cell<u64>; 2],
    parity: Cell<usize>,
    ended: Notify,
}

/// A request that was checked, while it is carried out.
pub(crate) struct Pass<'a> {
    reservations: &'a VolumeReservations,
    parity: Parity,
}

/// The parity of the commands before a request.
#[derive(Clone, Copy)]
pub(crate) struct Parity(usize);

impl VolumeReservations {
    pub(crate) fn new(state: Reservations) -> Self {
        Self {
            may_conflict: Cell::new(state.may_conflict()),
            state: RefCell::new(state),
            turn: Semaphore::new(1),
            passed: Default::default(),
            parity: Cell::new(0),
            ended: Notify::new(),
        }
    }

    pub(crate) fn with<T>(&self, look: impl FnOnce(&Reservations) -> T) -> T {
        look(&self.state.borrow())
    }

    /// RESERVING-4.
    pub(crate) fn restore(&self, found: Reservations) {
        if found.is_persistent() || self.with(Reservations::is_persistent) {
            self.set(found);
        }
    }

    fn set(&self, state: Reservations) {
        self.may_conflict.set(state.may_conflict());
        self.state.replace(state);
    }

    /// Changes the state at once, in what no command under way may build on and what is never durable.
    fn change(&self, change: impl FnOnce(&mut Reservations)) {
        change(&mut self.state.borrow_mut());
        self.may_conflict.set(self.with(Reservations::may_conflict));
    }

    /// RESERVING-2.
    pub(crate) async fn turn(&self) -> Permit {
        self.turn.acquire(1).await
    }

    /// Returns whether a reservation excludes the host of `session` from this.
    #[inline]
    pub(crate) fn conflicts(&self, session: &dyn Session, access: Access) -> bool {
        if access == Access::Read && broken(Sabotage::AdmitReaders) {
            return false;
        }
        self.may_conflict.get()
            && self.with(|state| state.conflicts(session.reservation_host().as_deref(), access))
    }

    /// Notes that a request is carried out from now on (RESERVING-3).
    pub(crate) fn pass(&self, access: Access) -> Option<Pass<'_>> {
        (access != Access::Read).then(|| Pass { reservations: self, parity: self.begin_change() })
    }

    /// As [`VolumeReservations::pass`], for a request that may change data and whose caller ends it by
    /// [`VolumeReservations::end_change`].
    pub(crate) fn begin_change(&self) -> Parity {
        let parity = self.parity.get();
        self.passed[parity].set(self.passed[parity].get() + 1);
        Parity(parity)
    }

    /// A request that may have changed data is done.
    pub(crate) fn end_change(&self, Parity(parity): Parity) {
        let left = self.passed[parity].get() - 1;
        self.passed[parity].set(left);
        if left == 0 && parity != self.parity.get() {
            self.ended.notify_all();
        }
    }

    /// Waits for the requests that were checked before (RESERVING-3). The caller has the turn.
    async fn passed(&self) {
        let before = self.parity.get();
        self.parity.set(1 - before);
        while self.passed[before].get() > 0 {
            self.ended.notified().await;
        }
    }
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        self.reservations.end_change(self.parity);
    }
}

impl<W: World, D: Device> Export<W, D> {
    /// Ends the lock of `host`: its session is over. While there is a lock, no other command changes anything.
    pub fn unlock(&self, host: &Host) {
        self.reservations.change(|state| {
            state.unlock(host);
        });
    }

    /// Ends the lock, whichever host has it: the volume was reset.
    pub fn unlock_all(&self) {
        self.reservations.change(Reservations::unlock_all);
    }

    /// Returns whether a reservation excludes `host` from this, as of now.
    #[must_use]
    pub fn conflicts(&self, host: Option<&Host>, access: Access) -> bool {
        self.with_reservations(|state| state.conflicts(host, access))
    }
}

impl<W: World, D: Device> Core<W, D> {
    /// Carries out a reservation command of `host`, which came by the session of `link`, durably (RESERVING-1), and tells the
    /// hosts that it concerns.
    ///
    /// # Errors
    /// It is refused, and nothing has changed; or it may not be durable.
    pub async fn reserve(
        &self,
        link: &Link,
        export: &Rc<Export<W, D>>,
        host: &Host,
        command: &Command,
    ) -> Result<(), NotReserved> {
        let reservations = &export.reservations;
        let _turn = reservations.turn().await;
        let _inside = export.lane.passage().pass_alone().await;
        if !link.is_open() {
            return Err(NotReserved::SessionEnded);
        }
        let mut next = reservations.with(Reservations::clone);
        let change = next.apply(host, command)?;
        let record = next.to_record().unwrap_or_default();
        let access = export.access().ok_or(VolumeError::Deleted)?;
        if record != access.reservations && !broken(Sabotage::ReserveInMemory) {
            let access = AccessList { reservations: record, ..access.as_ref().clone() };
            let bytes = access.encode().map_err(|_| Refused::Full)?;
            export.volume().set_access(&bytes).await?;
            export.set_access(access);
        }
        reservations.set(next);
        if !change.aborted.is_empty() {
            let sessions = self.sessions().all();
            sessions.iter().for_each(|it| it.on_abort(export.id(), &change.aborted));
        }
        if !broken(Sabotage::PassByWrites) {
            reservations.passed().await;
        }
        if !change.notices.is_empty() {
            let sessions = self.sessions().all();
            sessions.iter().for_each(|it| it.on_reservations(export.id(), &change.notices));
        }
        Ok(())
    }
}
