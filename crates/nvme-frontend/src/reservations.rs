//! Reservation commands of hosts, and what hosts are told of those of others.

use std::rc::Rc;

use dataplane::{Export, NotReserved, footprint};
use io_traits::{Device, World};
use nvme_target::{ReservationChange, SlotId, reservation_report, reservation_status};
use nvme_wire::{IoOpcode, Status};
use reservation::{Command, Notice};

use crate::association::Association;
use crate::connection::{Connection, IoQueue};
use crate::incoming::Payload;
use crate::status::nvme_status;

fn status_of(outcome: Result<(), NotReserved>) -> Status {
    match outcome {
        Ok(()) => Status::SUCCESS,
        Err(NotReserved::Refused(refused)) => reservation_status(refused),
        Err(NotReserved::Volume(error)) => nvme_status(&error, IoOpcode::WRITE.0),
        // It is not told to anyone.
        Err(NotReserved::SessionEnded) => Status::ABORTED_SQ_DELETION,
    }
}

impl<W: World, D: Device> Connection<W, D> {
    /// Carries out a command that changes reservations, in its turn.
    pub(crate) fn reserve(
        self: &Rc<Self>,
        slot: SlotId,
        queue: &IoQueue<W, D>,
        change: ReservationChange,
        payload: Option<&Payload>,
    ) {
        let data = payload.map_or(&[][..], Payload::as_bytes);
        match change.with_keys(data) {
            Ok(command) => {
                self.change_reservations(slot, &queue.export, &queue.association, command)
            }
            Err(status) => self.complete_command(slot, status, 0),
        }
    }

    /// Carries out `command` for the host of `association`, and then completes the command in `slot`.
    pub(crate) fn change_reservations(
        self: &Rc<Self>,
        slot: SlotId,
        export: &Rc<Export<W, D>>,
        association: &Association<W, D>,
        command: Command,
    ) {
        let (connection, on) = (self.clone(), export.clone());
        let host = association.reservation_host.clone();
        self.run_in_turn(Some(export), 0, move || {
            let world = connection.core.world().clone();
            world.spawn_now(async move {
                let done = connection.core.reserve(&connection.link, &on, &host, &command).await;
                let status = status_of(done);
                connection.complete_command(slot, status, 0);
            });
        });
    }

    /// Returns the reservations, in its turn.
    pub(crate) fn report_reservations(
        self: &Rc<Self>,
        slot: SlotId,
        queue: &IoQueue<W, D>,
        len_bytes: u32,
    ) {
        let (connection, export) = (self.clone(), queue.export.clone());
        self.run_in_turn(Some(&queue.export), len_bytes, move || {
            let world = connection.core.world().clone();
            world.spawn_now(async move {
                let len = len_bytes as usize;
                let Some(share) = connection.link.window().take(footprint(len)).await else {
                    return;
                };
                let bytes = export.with_reservations(|state| reservation_report(state, len));
                connection.return_data(slot, &bytes, len - bytes.len(), Some(share));
            });
        });
    }
}

impl<W: World, D: Device> Association<W, D> {
    /// Tells its host what a command of another did to it.
    pub(crate) fn on_reservations(&self, notices: &[Notice]) {
        let own = notices.iter().filter(|notice| notice.host == *self.reservation_host);
        own.for_each(|notice| self.controller.borrow_mut().on_reservation(notice.kind));
        self.pump();
    }
}
