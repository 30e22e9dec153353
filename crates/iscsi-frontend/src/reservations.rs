//! Reservation commands of initiators, and what they are told of those of others.

use std::rc::Rc;

use dataplane::{Export, NotReserved};
use io_traits::{Device, World};
use iscsi_target::scsi::{notice_sense, refusal_sense};
use iscsi_target::{Completion, TaskId};
use iscsi_wire::sense::ScsiStatus;
use reservation::{Command, Host, Notice};

use crate::connection::Connection;
use crate::sense::refused_change;

/// The end of a command that changes reservations, and that brings `len_bytes` bytes.
fn outcome(done: Result<(), NotReserved>, len_bytes: u64) -> Completion {
    let completion = match done {
        Ok(()) => Completion::good(0),
        Err(NotReserved::Refused(refused)) => match refusal_sense(refused) {
            Some(sense) => Completion::failed(sense),
            None => Completion::refused(ScsiStatus::ReservationConflict),
        },
        Err(NotReserved::Volume(error)) => refused_change(&error),
        // It is not told to anyone.
        Err(NotReserved::SessionEnded) => Completion::refused(ScsiStatus::TaskAborted),
    };
    Completion { len_bytes, ..completion }
}

impl<W: World, D: Device> Connection<W, D> {
    /// Its initiator, as reservations know it, in full feature phase.
    pub(crate) fn host(&self) -> Option<&Rc<Host>> {
        if self.host.get().is_none()
            && let Some(session) = self.target().session()
        {
            let (name, isid) = (session.initiator.to_string(), session.isid);
            let _ = self.host.set(Rc::new(Host::Iscsi { name, isid }));
        }
        self.host.get()
    }

    /// Carries out a command that changes reservations, in its turn, and ends the one in `task`, which brings `len_bytes` bytes.
    pub(crate) fn reserve(
        self: &Rc<Self>,
        task: TaskId,
        export: &Rc<Export<W, D>>,
        command: Command,
        len_bytes: u64,
    ) {
        let Some(host) = self.host().cloned() else { return };
        let (connection, on) = (self.clone(), export.clone());
        self.core.run_in_turn(self.clone(), Some(export), 0, move || {
            if connection.target().is_aborted(task) {
                return connection.complete_task(task, &Completion::good(len_bytes));
            }
            let world = connection.core.world().clone();
            world.spawn_now(async move {
                let done = connection.core.reserve(&connection.link, &on, &host, &command).await;
                connection.complete_task(task, &outcome(done, len_bytes));
            });
        });
    }

    /// Ends the lock that goes with the session.
    pub(crate) fn unlock(&self) {
        if let (Some(export), Some(host)) = (self.export.borrow().as_ref(), self.host.get()) {
            export.unlock(host);
        }
    }

    /// Notes what another host did to the registration of this one, or to a reservation.
    pub(crate) fn on_notices(&self, notices: &[Notice]) {
        let Some(host) = self.host() else { return };
        let own = notices.iter().filter(|notice| notice.host == **host);
        own.for_each(|notice| self.raise(notice_sense(notice.kind)));
    }
}
