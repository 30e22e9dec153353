//! Compare and Write as two commands that are executed as one.

use std::rc::Rc;

use dataplane::{IoError, Request};
use io_traits::{Device, World};
use nvme_target::{SlotId, decode_fused};
use nvme_wire::Status;
use situations::{Situation, situation};
use units::LbaRange;

use crate::commands::tag_of_halves;
use crate::connection::{Connection, IoQueue, Role};

impl<W: World, D: Device> Connection<W, D> {
    /// Takes in the fused operation in two slots.
    pub(crate) fn execute_fused(self: &Rc<Self>, first: SlotId, second: SlotId) {
        let halves = [first, second];
        let expected = halves.map(|slot| self.incoming.is_expected(slot));
        // What came before the end of service is executed, what comes behind it is not.
        if self.core.is_draining() && expected != [true; 2] {
            return halves.into_iter().for_each(|slot| self.incoming.set_late(slot));
        }
        let payloads = halves.map(|slot| self.take_payload(slot));
        let queue = self.io_queue();
        let range = match self.decode_halves(halves, &queue) {
            Ok(range) => range,
            Err(statuses) => return self.complete_halves(halves, statuses),
        };
        let [Some(compared), Some(written)] = payloads else {
            let (failed, invalid) = (Status::ABORTED_FAILED_FUSED, Status::DATA_SGL_LENGTH_INVALID);
            return self.complete_halves(halves, (invalid.with_dnr(), failed));
        };
        let (expected, data) = (compared.into_blocks(), written.into_blocks());
        let request = Request::compare_and_write(queue.sector, range, expected, data);
        self.submit(tag_of_halves(halves), &queue, request);
    }

    /// Returns the I/O queue of the halves of a fused operation.
    pub(crate) fn io_queue(&self) -> Rc<IoQueue<W, D>> {
        match &*self.role.borrow() {
            Role::Io(queue) => queue.clone(),
            Role::New | Role::Admin(_) => unreachable!("only I/O queues have fused operations"),
        }
    }

    /// The blocks of the fused operation in two slots, or how each half is refused.
    pub(crate) fn decode_halves(
        &self,
        halves: [SlotId; 2],
        queue: &IoQueue<W, D>,
    ) -> Result<LbaRange, (Status, Status)> {
        let [compare, write] = halves.map(|slot| self.command(slot));
        decode_fused(&compare, &write, &self.view(&queue.export))
    }

    fn complete_halves(&self, [first, second]: [SlotId; 2], statuses: (Status, Status)) {
        self.complete_command(first, statuses.0, 0);
        self.complete_command(second, statuses.1, 0);
    }

    /// Completes both halves of a fused operation that was carried out, or was not.
    pub(crate) fn end_fused(&self, [first, second]: [SlotId; 2], result: Result<(), IoError>) {
        let failed = Status::ABORTED_FAILED_FUSED;
        match result {
            Ok(()) => self.complete_halves([first, second], (Status::SUCCESS, Status::SUCCESS)),
            Err(IoError::Miscompare { .. }) => {
                situation(Situation::FusedPairDiffers);
                let statuses = (Status::COMPARE_FAILURE.with_dnr(), failed);
                self.complete_halves([first, second], statuses);
            }
            Err(IoError::Volume(error)) => {
                self.fail(first, &error, None);
                self.complete_command(second, failed, 0);
            }
            Err(IoError::ReservationConflict) => {
                let statuses = (Status::RESERVATION_CONFLICT.with_dnr(), failed);
                self.complete_halves([first, second], statuses);
            }
            Err(IoError::Aborted) => {
                self.complete_halves([first, second], (Status::ABORTED_PREEMPT, failed));
            }
            // What the comparison found is true, whatever became of the write (NVM, clause 2.1.3.1).
            Err(IoError::Write(error)) => {
                self.complete_command(first, Status::SUCCESS, 0);
                self.fail(second, &error, None);
            }
        }
    }
}
