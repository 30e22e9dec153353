//! Compare and write as one: fused, or as the vendor specific command.

use std::rc::Rc;

use io_traits::{Device, World};
use nvme_target::{SlotId, decode_fused};
use nvme_wire::Status;
use schedule::Direction;
use situations::{Phase, Situation, during, situation};
use units::{Lba, LbaRange};
use volume::{Blocks, CompareError};

use crate::connection::{Connection, IoQueue, Role};
use crate::extended::{blocks_of, split};
use crate::incoming::Payload;

/// Compare and write as two commands that are executed as one.
pub(crate) struct Fused<W: World, D: Device> {
    pub(crate) queue: Rc<IoQueue<W, D>>,
    pub(crate) halves: [SlotId; 2],
    range: LbaRange,
    payloads: [Payload; 2],
}

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
        let payloads = [compared, written];
        self.queue_fused(Fused { queue, halves, range, payloads }, range.blocks);
    }

    /// What the halves of a fused operation are for.
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
        decode_fused(&compare, &write, &queue.export.view())
    }

    /// Runs a fused operation as a task.
    pub(crate) fn run_fused(self: &Rc<Self>, operation: Fused<W, D>) {
        self.core.world().spawn_now(fused(self.clone(), operation));
    }

    fn complete_halves(&self, [first, second]: [SlotId; 2], statuses: (Status, Status)) {
        self.complete(first, statuses.0, 0);
        self.complete(second, statuses.1, 0);
    }
}

async fn fused<W: World, D: Device>(connection: Rc<Connection<W, D>>, operation: Fused<W, D>) {
    let Fused { queue, halves: [first, second], range, payloads: [compared, written] } = operation;
    let lane = &queue.export.lane;
    let entered = lane.enter(Direction::Write, range.blocks, &connection.closed).await;
    let Some(_ticket) = entered else { return };
    let volume = queue.export.volume();
    let blocks = |payload: Payload| {
        let Payload { room, len_bytes, share, .. } = payload;
        (blocks_of(room.into_buffer(), len_bytes, volume.metadata_size()), share)
    };
    let ((expected, share), (data, _)) = (blocks(compared), blocks(written));
    let _under_way = during(Phase::FusedPair);
    let outcome = volume.compare_and_write(range.start, expected, data).await;
    drop(share);
    let failed = Status::ABORTED_FAILED_FUSED;
    match outcome {
        Ok(()) => {
            connection.complete_halves([first, second], (Status::SUCCESS, Status::SUCCESS));
        }
        Err(CompareError::Miscompare { .. }) => {
            situation(Situation::FusedPairDiffers);
            let statuses = (Status::COMPARE_FAILURE.with_dnr(), failed);
            connection.complete_halves([first, second], statuses);
        }
        Err(CompareError::Volume(error)) => {
            connection.fail(first, &queue, &error);
            connection.complete(second, failed, 0);
        }
        // What the comparison found is true, whatever became of the write (NVM, clause 2.1.3.1).
        Err(CompareError::Write(error)) => {
            connection.complete(first, Status::SUCCESS, 0);
            connection.fail(second, &queue, &error);
        }
    }
}

/// The vendor specific command: what is expected, and behind it what is to be written. Dwords 0 and 1
/// of a completion with Compare Failure are the first byte that differs.
pub(crate) async fn swap<W: World, D: Device>(
    connection: &Connection<W, D>,
    queue: &IoQueue<W, D>,
    slot: SlotId,
    lba: Lba,
    payload: Payload,
) {
    let Payload { room, len_bytes, share, .. } = payload;
    let (volume, half) = (queue.export.volume(), len_bytes / 2);
    let metadata = volume.metadata_size();
    let data = room.into_buffer().into_slice();
    let part = |from: usize| -> Blocks {
        let part = data.slice(from..from + half);
        if metadata.is_none() { part.into() } else { split(part.as_bytes(), metadata).0 }
    };
    let outcome = volume.compare_and_write(lba, part(0), part(half)).await;
    drop(share);
    match outcome {
        Ok(()) => connection.complete(slot, Status::SUCCESS, 0),
        Err(CompareError::Miscompare { offset_bytes }) => {
            connection.complete(slot, Status::COMPARE_FAILURE.with_dnr(), offset_bytes);
        }
        Err(CompareError::Volume(error)) => connection.fail(slot, queue, &error),
        Err(CompareError::Write(error)) => connection.fail_write(slot, queue, &error),
    }
}
