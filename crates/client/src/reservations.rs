//! Reservations: hosts that share a volume exclude one another.

use io_traits::World;
use nvme_wire::reservation::{
    REPORT_PART_LEN, RegisteredController, ReservationCommand, ReservationReport, ReservationStatus,
};
use nvme_wire::{IoOpcode, Sqe};
use zerocopy::FromBytes;

use crate::requests::{Body, Command};
use crate::{Error, Volume};

/// Bytes of a report that are asked for: 63 registrants.
const REPORT_LEN: u32 = 4096;

/// The registrations of a volume, and its reservation.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Reservations {
    /// The target counts changes of registrations with this.
    pub generation: u32,
    /// Type of the reservation (RTYPE); 0 for none.
    pub rtype: u8,
    /// All of it outlives a restart of the target.
    pub persists: bool,
    /// The first registrants, 63 at most.
    pub registrants: Vec<RegisteredController>,
}

impl<W: World> Volume<W> {
    /// Sends a Reservation Register, Acquire or Release command with its keys: the host's current one, and for the first two
    /// the new one or the one to preempt.
    ///
    /// It is not sent again when the connection is lost: after [`Error::Disconnected`] look at [`Volume::reservations`].
    pub async fn reserve(
        &self,
        opcode: IoOpcode,
        command: ReservationCommand,
        keys: [u64; 2],
    ) -> Result<(), Error> {
        let sqe = command.encode(opcode, self.nsid());
        let [current, other] = keys.map(u64::to_le_bytes);
        let both = [current, other].concat();
        let len = ReservationCommand::data_len(opcode) as usize;
        let body = Body::from_bytes(&both[..len]);
        self.run_command(Command { replay: false, ..self.command(opcode, sqe, body) }).await?;
        Ok(())
    }

    /// Returns the registrations and the reservation.
    pub async fn reservations(&self) -> Result<Reservations, Error> {
        let report = ReservationReport { len_bytes: REPORT_LEN.into(), extended: true };
        let sqe: Sqe = report.encode(self.nsid());
        let completion =
            self.run(IoOpcode::RESERVATION_REPORT, sqe, Body::to_host(REPORT_LEN)).await?;
        let buffer = completion.buffer.expect("the command receives data");
        let (head, rest) = buffer.as_bytes().split_at(REPORT_PART_LEN);
        let head = ReservationStatus::read_from_bytes(head).expect("64 bytes");
        let registrants = rest.chunks_exact(REPORT_PART_LEN);
        let registrants = registrants.take(head.registrants.get().into());
        Ok(Reservations {
            generation: head.generation.get(),
            rtype: head.rtype,
            persists: head.ptpls & 1 != 0,
            registrants: registrants
                .map(|part| RegisteredController::read_from_bytes(part).expect("64 bytes"))
                .collect(),
        })
    }
}
