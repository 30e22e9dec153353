//! I/O commands: from the queue to the volume and back.

use std::rc::Rc;

use io_traits::{Device, World};
use nvme_target::io::deallocate_ranges;
use nvme_target::{Connection as Transport, IoCommand, Outbox, SlotId, digest_of_blocks};
use nvme_wire::{IoOpcode, Status};
use schedule::Direction;
use situations::{Situation, situation};
use units::{BLOCK_SIZE, Lba, LbaRange, MetadataSize};
use volume::{CompareError, ReadData, Volume, VolumeError};

use crate::connection::{Connection, IoQueue};
use crate::extended::{blocks_of, split, transfer_bytes};
use crate::incoming::Payload;
use crate::memory::{Share, footprint};
use crate::status::{logged_block, nvme_status};
use crate::swap::swap;

impl<W: World, D: Device> Connection<W, D> {
    /// Runs the command in `slot` as a task. One that need not wait is done on return.
    pub(crate) fn run_io(
        self: &Rc<Self>,
        slot: SlotId,
        queue: Rc<IoQueue<W, D>>,
        command: IoCommand,
        payload: Option<Box<Payload>>,
    ) {
        match command {
            IoCommand::Read { range } => self.read_as_task(slot, queue, range, None),
            _ => {
                let task = run(self.clone(), queue, slot, command, payload);
                self.core.world().spawn_now(task);
            }
        }
    }

    /// Reads for the command in `slot` in a task, which has `share` of the memory already, or finds its own.
    pub(crate) fn read_as_task(
        self: &Rc<Self>,
        slot: SlotId,
        queue: Rc<IoQueue<W, D>>,
        range: LbaRange,
        share: Option<Share>,
    ) {
        self.core.world().spawn_now(read(self.clone(), queue, slot, range, share));
    }

    pub(crate) fn complete_read(&self, slot: SlotId, data: ReadData, share: Share) {
        if !data.metadata.is_empty() {
            return self.complete_extended_read(slot, &data, share);
        }
        self.reply(|transport, out| {
            let ReadData { pieces, crcs, .. } = data;
            answer(transport, slot, &crcs, out, |out| {
                pieces.into_iter().for_each(|piece| out.data(piece));
                out.hold(share);
            });
        });
    }

    fn complete_with(&self, slot: SlotId, queue: &IoQueue<W, D>, result: Result<(), VolumeError>) {
        match result {
            Ok(()) => self.complete(slot, Status::SUCCESS, 0),
            Err(error) => self.fail(slot, queue, &error),
        }
    }

    pub(crate) fn fail(&self, slot: SlotId, queue: &IoQueue<W, D>, error: &VolumeError) {
        self.fail_as(slot, queue, error, None);
    }

    /// Fails a command as the write that was a part of it.
    pub(crate) fn fail_write(&self, slot: SlotId, queue: &IoQueue<W, D>, error: &VolumeError) {
        self.fail_as(slot, queue, error, Some(IoOpcode::WRITE));
    }

    fn fail_as(
        &self,
        slot: SlotId,
        queue: &IoQueue<W, D>,
        error: &VolumeError,
        part: Option<IoOpcode>,
    ) {
        queue.export.on_error(error);
        if !self.is_open() {
            return;
        }
        let sqe = self.command(slot);
        let status = nvme_status(error, part.map_or(sqe.opcode, |opcode| opcode.0));
        let Some(lba) = logged_block(error, &sqe) else { return self.complete(slot, status, 0) };
        self.core.tell_findings(queue.export.volume().shard());
        let status = status.with_more();
        queue.association.record_error(queue.qid, &sqe, status, lba);
        self.complete(slot, status, 0);
    }
}

/// Answers a read with whole blocks, which `append` puts behind their header, under the checksums that are stored with them:
/// for a data digest the data is not gone through again.
fn answer<O: Outbox>(
    transport: &mut Transport,
    slot: SlotId,
    crcs: &[u32],
    out: &mut O,
    append: impl FnOnce(&mut O),
) {
    let len_bytes = u32::try_from(crcs.len() * BLOCK_SIZE).expect("bounded by MDTS");
    transport.complete_with_data(slot, len_bytes, || digest_of_blocks(crcs), out, append);
}

async fn read<W: World, D: Device>(
    connection: Rc<Connection<W, D>>,
    queue: Rc<IoQueue<W, D>>,
    slot: SlotId,
    range: LbaRange,
    share: Option<Share>,
) {
    let share = match share {
        Some(share) => share,
        None => {
            let metadata = queue.export.view().metadata;
            let bytes = footprint(transfer_bytes(range, metadata));
            let Some(share) = memory_for(&connection, bytes).await else { return };
            share
        }
    };
    let lane = &queue.export.lane;
    let entered = lane.enter(Direction::Read, range.blocks, &connection.closed).await;
    let Some(_ticket) = entered else { return };
    match queue.export.volume().read(range).await {
        Ok(data) => connection.complete_read(slot, data, share),
        Err(error) => connection.fail(slot, &queue, &error),
    }
}

/// So much memory; `None` if the connection ends first.
async fn memory_for<W: World, D: Device>(
    connection: &Connection<W, D>,
    bytes: i64,
) -> Option<Share> {
    match connection.window.try_take(bytes) {
        Some(share) => Some(share),
        None => {
            situation(Situation::RequestAwaitsBuffers);
            Box::pin(connection.window.take(bytes)).await
        }
    }
}

/// What a command asks of the device.
fn cost(command: &IoCommand) -> Option<(Direction, u64)> {
    match command {
        IoCommand::Read { range } | IoCommand::Compare { range } | IoCommand::Verify { range } => {
            Some((Direction::Read, range.blocks))
        }
        IoCommand::Write { range, .. } | IoCommand::CompareAndWrite { range } => {
            Some((Direction::Write, range.blocks))
        }
        // A record in the journal, however much is deallocated.
        IoCommand::WriteZeroes { .. } => Some((Direction::Write, 1)),
        IoCommand::Deallocate { ranges } => Some((Direction::Write, u64::from(*ranges))),
        IoCommand::Flush | IoCommand::Hint | IoCommand::Disconnect => None,
    }
}

async fn run<W: World, D: Device>(
    connection: Rc<Connection<W, D>>,
    queue: Rc<IoQueue<W, D>>,
    slot: SlotId,
    command: IoCommand,
    payload: Option<Box<Payload>>,
) {
    // Memory first: nobody holds up the device while he waits for it.
    let _share = match command {
        IoCommand::Verify { range } => {
            let bytes = footprint(transfer_bytes(range, MetadataSize::None));
            match memory_for(&connection, bytes).await {
                Some(share) => Some(share),
                None => return,
            }
        }
        _ => None,
    };
    let ticket = match cost(&command) {
        Some((direction, blocks)) => {
            let entered = queue.export.lane.enter(direction, blocks, &connection.closed).await;
            if entered.is_none() {
                return;
            }
            entered
        }
        None => None,
    };
    // Behind all waiting: the shard may have come back meanwhile, and the volume with it.
    let volume = queue.export.volume();
    let result = match command {
        IoCommand::Read { .. } => unreachable!("reads have a task of their own"),
        IoCommand::Write { range, .. } => {
            let Some(payload) = payload else { return refuse_without_data(&connection, slot) };
            // Whether the host forces unit access makes no difference: every write is durable.
            write(&volume, range.start, payload).await
        }
        IoCommand::Flush => volume.flush().await,
        IoCommand::WriteZeroes { range, .. } => volume.unmap(range).await,
        IoCommand::Deallocate { ranges } => {
            let Some(payload) = payload else { return refuse_without_data(&connection, slot) };
            return deallocate(&connection, &queue, slot, ranges, &payload).await;
        }
        IoCommand::Hint => Ok(()),
        IoCommand::Compare { range } => {
            let Some(payload) = payload else { return refuse_without_data(&connection, slot) };
            return compare(&connection, &queue, slot, range.start, *payload).await;
        }
        IoCommand::CompareAndWrite { range } => {
            let Some(payload) = payload else { return refuse_without_data(&connection, slot) };
            // By itself: it is the largest, and the others need not have room for it.
            return Box::pin(swap(&connection, &queue, slot, range.start, *payload)).await;
        }
        IoCommand::Verify { range } => volume.verify(range).await,
        IoCommand::Disconnect => {
            connection.complete(slot, Status::SUCCESS, 0);
            return connection.close();
        }
    };
    drop(ticket);
    connection.complete_with(slot, &queue, result);
}

async fn write<D: Device>(
    volume: &Volume<D>,
    lba: Lba,
    payload: Box<Payload>,
) -> Result<(), VolumeError> {
    let Payload { room, len_bytes, crcs, share, .. } = *payload;
    let buffer = room.into_buffer();
    let metadata = volume.metadata_size();
    let written = if metadata.is_none() {
        volume.write(lba, buffer.into_slice(), Some(&crcs)).await
    } else {
        // What was taken on the way in are checksums of other pieces than blocks.
        let (blocks, crcs) = split(&buffer.as_bytes()[..len_bytes], metadata);
        drop(buffer);
        volume.write(lba, blocks, Some(&crcs)).await
    };
    drop(share);
    written
}

/// A command whose data has a length of zero where its fields promise some.
fn refuse_without_data<W: World, D: Device>(connection: &Connection<W, D>, slot: SlotId) {
    connection.complete(slot, Status::DATA_SGL_LENGTH_INVALID.with_dnr(), 0);
}

async fn deallocate<W: World, D: Device>(
    connection: &Connection<W, D>,
    queue: &IoQueue<W, D>,
    slot: SlotId,
    ranges: u32,
    payload: &Payload,
) {
    let runs = match deallocate_ranges(payload.as_bytes(), ranges, &queue.export.view()) {
        Ok(runs) => runs,
        Err(status) => return connection.complete(slot, status, 0),
    };
    let runs: Vec<LbaRange> = runs.collect();
    match queue.export.volume().unmap_together(&runs).await {
        Ok(true) => return connection.complete(slot, Status::SUCCESS, 0),
        Ok(false) => {}
        Err(error) => return connection.fail(slot, queue, &error),
    }
    for run in runs {
        // A host that is gone, or has reset its controller, must not see more of it happen.
        if !connection.is_open() {
            return;
        }
        if let Err(error) = queue.export.volume().unmap(run).await {
            return connection.fail(slot, queue, &error);
        }
    }
    connection.complete(slot, Status::SUCCESS, 0);
}

async fn compare<W: World, D: Device>(
    connection: &Connection<W, D>,
    queue: &IoQueue<W, D>,
    slot: SlotId,
    lba: Lba,
    payload: Payload,
) {
    // The share is also for the blocks that are read.
    let (volume, share) = (queue.export.volume(), payload.share);
    let expected = blocks_of(payload.room.into_buffer(), payload.len_bytes, volume.metadata_size());
    let compared = volume.compare(lba, expected).await;
    drop(share);
    match compared {
        Ok(()) => connection.complete(slot, Status::SUCCESS, 0),
        Err(CompareError::Miscompare { .. }) => {
            connection.complete(slot, Status::COMPARE_FAILURE.with_dnr(), 0);
        }
        Err(CompareError::Volume(error) | CompareError::Write(error)) => {
            connection.fail(slot, queue, &error);
        }
    }
}

#[cfg(test)]
mod tests {
    use checksum::{append_block, crc32c};
    use nvme_target::{Limits, Step};
    use nvme_wire::SglDescriptor;
    use nvme_wire::Sqe;
    use nvme_wire::fabrics::{CONNECT_DATA_LEN, Connect};
    use nvme_wire::pdu::{CapsuleCmd, Digests, IcReq};
    use units::Instant;
    use zerocopy::{FromBytes, IntoBytes};

    use super::*;

    const DIGESTS: Digests = Digests { header: false, data: true };
    const HEADER_BYTES: usize = 24;

    /// A connection with data digests, and a command that it owes an answer.
    fn connection() -> (Transport, SlotId) {
        let mut sqe = Sqe::read_from_bytes(Connect::new(1, 32, 0).as_bytes()).expect("64 bytes");
        sqe.dptr = SglDescriptor::in_capsule(CONNECT_DATA_LEN);
        let data = [0; CONNECT_DATA_LEN as usize];
        let mut said = IcReq::new(DIGESTS, 1).as_bytes().to_vec();
        said.extend_from_slice(CapsuleCmd::new(sqe, data.len(), DIGESTS, 4).as_bytes());
        said.extend_from_slice(&data);
        said.extend_from_slice(&crc32c(&data).to_le_bytes());
        let mut transport = Transport::new(Instant(0), &Limits::default());
        let (mut input, mut out) = (said.as_slice(), Vec::new());
        loop {
            match transport.poll(Instant(0), &mut input, &mut out) {
                Step::Execute { slot } => return (transport, slot),
                Step::NeedMore | Step::Closed(_) => panic!("a whole command was said"),
                _ => {}
            }
        }
    }

    /// What stands behind the data of blocks of zeroes with these checksums.
    fn digest_on_the_wire(crcs: &[u32]) -> u32 {
        let (mut transport, slot) = connection();
        let (mut out, data) = (Vec::new(), vec![0; crcs.len() * BLOCK_SIZE]);
        answer(&mut transport, slot, crcs, &mut out, |out| out.bytes(&data));
        let at = HEADER_BYTES + data.len();
        u32::from_le_bytes(out[at..at + 4].try_into().expect("four bytes"))
    }

    /// The digest is what was stored with the block. One computed from the data would differ here.
    #[test]
    fn a_data_digest_is_made_of_stored_checksums() {
        assert_eq!(digest_on_the_wire(&[0xDEAD_BEEF]), 0xDEAD_BEEF);
        let two = digest_on_the_wire(&[0xDEAD_BEEF, 0xFEED_F00D]);
        assert_eq!(two, append_block(0xDEAD_BEEF, 0xFEED_F00D));
        let right = crc32c(&[0; BLOCK_SIZE]);
        assert_eq!(digest_on_the_wire(&[right; 3]), crc32c(&[0; 3 * BLOCK_SIZE]));
    }
}
