//! SCSI commands: checked when they come, executed when their data is here, answered when their requests have ended.
//!
//! - ISCSI-COMMAND-1: a command is one request of the core, or several one after the other; the first that fails ends it.

use std::rc::Rc;

use dataplane::{Export, Outcome, Payload, Request, SPARE_THRESHOLD_PERCENT, Share, Tag};
use io_traits::{Buffer, BufferSlice, Device, World};
use iscsi_target::scsi::{self, AccessState, Compare, Extent, LbaStatus, Operation, Run, Unit};
use iscsi_target::{Completion, TaskId};
use iscsi_wire::Sense;
use iscsi_wire::sense::ScsiStatus;
use reservation::Reservations;
use units::{BLOCK_SIZE, Lba, LbaRange, SectorSize};
use volume::{ReadData, VolumeExtent, WRITE_BLOCKS_MAX};

use crate::connection::Connection;
use crate::frontend::target_name_of;
use crate::incoming::extra_bytes;
use crate::sense::{completion_of, name_of};

/// Blocks of the engine that one command moves. With smaller logical blocks it can touch one more.
const TRANSFER_BLOCKS_MAX: u32 = 2048;
const _: () = assert!(TRANSFER_BLOCKS_MAX as u64 <= WRITE_BLOCKS_MAX);
/// Blocks of the engine of one request of a WRITE SAME with data.
pub(crate) const SAME_BLOCKS_MAX: u32 = 64;
/// Debt beyond which a command that brings data is to come again later, as is one of which only a part comes by itself while there
/// are many of these (MEMORY-5).
const DEBT_BYTES_MAX: u64 = 1 << 20;
/// Logical unit 0, in both forms that address it.
const UNITS: [[u8; 2]; 2] = [[0, 0], [0x40, 0]];

fn range_of(extent: Extent) -> LbaRange {
    LbaRange::new(Lba(extent.lba), extent.blocks.into())
}

/// Logical blocks of a volume.
fn sector_of<W: World, D: Device>(export: &Export<W, D>) -> SectorSize {
    export.with_volume(volume::Volume::sector_size)
}

/// Logical blocks that one command moves.
fn transfer_blocks_max(sector: SectorSize) -> u32 {
    match sector {
        SectorSize::Bytes4096 => TRANSFER_BLOCKS_MAX,
        SectorSize::Bytes512 => (TRANSFER_BLOCKS_MAX - 1) * per_block(sector),
    }
}

/// Logical blocks in a block.
pub(crate) fn per_block(sector: SectorSize) -> u32 {
    u32::try_from(sector.per_block()).expect("at most 8")
}

impl<W: World, D: Device> Connection<W, D> {
    /// Looks at a unit of the target as SCSI tells of it.
    fn with_unit<T>(&self, export: &Export<W, D>, look: impl FnOnce(&Unit<'_>) -> T) -> T {
        let sector = sector_of(export);
        let (uuid, blocks, pool_blocks) = export.with_volume(|volume| {
            let pool = volume.shard().superblock();
            (volume.uuid(), volume.blocks(), pool.data_end().0 - pool.data_start().0)
        });
        look(&Unit {
            uuid: *uuid.as_bytes(),
            target: &target_name_of(uuid),
            blocks: blocks * sector.per_block(),
            block_bytes: sector.bytes() as u32,
            per_physical: per_block(sector),
            transfer_blocks_max: transfer_blocks_max(sector),
            // A core serves no volume that is, or goes, elsewhere.
            access: AccessState::ActiveOptimized,
            pool_blocks: pool_blocks * sector.per_block(),
            threshold_percent: SPARE_THRESHOLD_PERCENT,
            revision: &self.core.options().revision,
        })
    }

    /// Logical blocks of the session's volume.
    pub(crate) fn sector(&self) -> SectorSize {
        self.export.borrow().as_deref().map(sector_of).unwrap_or_default()
    }

    /// A command came. Its data may follow.
    pub(crate) fn on_command(&self, task: TaskId) {
        match self.check(task) {
            Ok((operation, wanted)) => {
                self.put(|target, _| target.expect(task, wanted));
                let extra = extra_bytes(&operation, self.sector());
                self.slots.begin(task, operation, wanted);
                self.make_first_room(task, wanted, extra);
            }
            Err(completion) => self.complete_task(task, &completion),
        }
    }

    /// Checks a command. Returns it with the bytes that it takes of those which the initiator has.
    fn check(&self, task: TaskId) -> Result<(Operation, u32), Completion> {
        let export = self.export.borrow().clone();
        let command = self.target().command(task);
        let (Some(export), Some((cdb, lun))) = (export, command) else {
            return Err(Completion::failed(Sense::INTERNAL_FAILURE));
        };
        let is_there = UNITS.iter().any(|unit| lun[..2] == *unit) && lun[2..] == [0; 6];
        if is_there
            && !scsi::precedes_unit_attention(&cdb)
            && let Some(sense) = self.take_attention()
        {
            return Err(Completion::failed(sense));
        }
        if is_there
            && let Some(access) = scsi::access_of(&cdb)
            && export.conflicts(self.host().map(Rc::as_ref), access)
        {
            return Err(Completion::refused(ScsiStatus::ReservationConflict));
        }
        let operation =
            self.with_unit(&export, |unit| scsi::decode(&cdb, is_there.then_some(unit)));
        let operation = operation.map_err(Completion::failed)?;
        let sector = sector_of(&export);
        let needed = operation.data_out_len(sector.bytes() as u32);
        let (writable, _) = self.target().expected(task);
        let window = self.link.window();
        let has_part = (1..writable).contains(&self.target().unsolicited_max(task));
        if writable > 0 && window.debt_bytes() > DEBT_BYTES_MAX
            || has_part && window.are_parts_many()
        {
            return Err(Completion::refused(ScsiStatus::TaskSetFull));
        }
        let is_partial = operation.may_be_partial();
        let fits = match &operation {
            Operation::Unmap { .. } | Operation::ModeSelect { .. } | Operation::ReserveOut(_) => {
                u64::from(writable) >= needed
            }
            // A number of blocks that does not fit into its byte.
            Operation::CompareAndWrite(_) => u64::from(writable) == needed,
            _ => is_partial || needed == 0 || u64::from(writable) == needed,
        };
        if !fits {
            let sense = match operation {
                Operation::CompareAndWrite(_) => Sense::invalid_cdb(13),
                _ => Sense::INVALID_FIELD_IN_UNIT,
            };
            let failed = Completion::failed(sense);
            return Err(Completion { len_bytes: needed, ..failed });
        }
        let wanted = u64::from(writable).min(needed);
        if is_partial && !wanted.is_multiple_of(sector.bytes() as u64) {
            let failed = Completion::failed(Sense::INVALID_FIELD_IN_UNIT);
            return Err(Completion { len_bytes: needed, ..failed });
        }
        Ok((operation, u32::try_from(wanted).expect("bounded by the transfer length")))
    }

    /// All data of a command is here: begins to execute it.
    pub(crate) fn execute(self: &Rc<Self>, task: TaskId) {
        let export = self.export.borrow().clone();
        let (operation, wanted) =
            self.slots.with(task, |slot| (slot.operation.clone(), slot.wanted));
        let (Some(export), Some(operation)) = (export, operation) else { return };
        let tag = self.slots.execute(task);
        match operation {
            Operation::Reserve(command) => self.reserve(task, &export, command, 0),
            Operation::ReserveOut(out) => {
                let (data, _share) = self.slots.take_data(task);
                match out.with_parameters(&data.as_bytes()[..wanted as usize]) {
                    Ok(command) => self.reserve(task, &export, command, wanted.into()),
                    Err(sense) => self.fail(task, sense),
                }
            }
            Operation::Nothing
            | Operation::Answer(_)
            | Operation::RequestSense { .. }
            | Operation::ReserveIn { .. } => {
                let (connection, session) = (self.clone(), self.clone());
                let call = move || connection.answer(task, operation);
                self.core.run_in_turn(session, Some(&export), 0, call);
            }
            _ => match self.first_request(task, &operation, wanted, &export) {
                Ok(Some(request)) => self.core.submit(self.clone(), tag, &export, request),
                Ok(None) => self.end_good(task, &operation),
                Err(sense) => self.fail(task, sense),
            },
        }
    }

    /// Answers a command that needs no request.
    fn answer(&self, task: TaskId, operation: Operation) {
        let bytes = match operation {
            Operation::Answer(bytes) => bytes,
            Operation::ReserveIn { action, len } => {
                let export = self.export.borrow().clone();
                let answer = |state: &Reservations| scsi::reserve_in_answer(action, state);
                let mut bytes = export.map_or_else(Vec::new, |it| it.with_reservations(answer));
                bytes.truncate(len);
                bytes
            }
            Operation::RequestSense { len } => {
                let sense = self.take_attention().unwrap_or(Sense::NO_SENSE);
                let mut bytes = sense.encode().to_vec();
                bytes.truncate(len);
                bytes
            }
            _ => return self.complete_task(task, &Completion::good(0)),
        };
        self.complete_with_bytes(task, &bytes);
    }

    fn complete_with_bytes(&self, task: TaskId, bytes: &[u8]) {
        self.slots.end(task);
        self.reply(|target, out| target.data_in_bytes(task, bytes, out));
        self.task_is_over(task);
    }

    fn complete_lba_status(&self, task: TaskId, operation: &Operation, found: &[VolumeExtent]) {
        let Operation::LbaStatus(asked) = operation else { unreachable!("no other command asks") };
        self.complete_with_bytes(task, &asked.answer(runs_of(found, asked, self.sector())));
    }

    /// The first request of a command; `None` if there is nothing to do.
    fn first_request(
        &self,
        task: TaskId,
        operation: &Operation,
        wanted: u32,
        export: &Export<W, D>,
    ) -> Result<Option<Request>, Sense> {
        let (data, share) = self.slots.take_data(task);
        let sector = sector_of(export);
        let len = sector.bytes();
        Ok(Some(match operation {
            Operation::Flush => Request::Flush,
            Operation::LbaStatus(asked) => Request::Extents {
                range: sector.blocks_around(LbaRange::new(Lba(asked.lba), asked.blocks)),
                extents_max: asked.descriptors_max(),
            },
            Operation::Read(extent) if extent.blocks > 0 => {
                Request::read(sector, range_of(*extent))
            }
            Operation::Write(extent) | Operation::WriteAndVerify(extent) if wanted > 0 => {
                let blocks = wanted / len as u32;
                let range = range_of(Extent { blocks, ..*extent });
                let data = payload(data.into_slice().slice(0..wanted as usize), share);
                Request::write(sector, range, data)
            }
            Operation::Verify { extent, with } if extent.blocks > 0 => match with {
                Compare::Nothing => Request::verify(sector, range_of(*extent)),
                Compare::Each => {
                    let data = data.into_slice().slice(0..wanted as usize);
                    Request::compare(sector, range_of(*extent), payload(data, share))
                }
                Compare::Same => {
                    let data = repeated(&data.as_bytes()[..len], extent.blocks);
                    Request::compare(sector, range_of(*extent), payload(data, share))
                }
            },
            Operation::CompareAndWrite(extent) if extent.blocks > 0 => {
                let (data, half) = (data.into_slice(), extent.blocks as usize * len);
                let expected = payload(data.slice(0..half), share);
                let data = payload(data.slice(half..2 * half), None);
                Request::compare_and_write(sector, range_of(*extent), expected, data)
            }
            Operation::WriteSame { extent, no_data, .. } => {
                let is_zero = *no_data || data.as_bytes()[..len].iter().all(|byte| *byte == 0);
                // With UNMAP or without it, zeroes are what is read: whole blocks of them are deallocated.
                match is_zero {
                    true => Request::write_zeroes(sector, range_of(*extent)),
                    false => self.same_request(task, (*extent, sector), &data, share),
                }
            }
            Operation::Unmap { len } => {
                let list = &data.as_bytes()[..(*len).min(wanted) as usize];
                let ranges = self.with_unit(export, |unit| scsi::unmap_ranges(list, unit))?;
                if ranges.is_empty() {
                    return Ok(None);
                }
                let ranges = ranges.into_iter().map(range_of).collect();
                Request::unmap(sector, ranges, share)
            }
            Operation::ModeSelect { len, is_ten } => {
                let list = &data.as_bytes()[..(*len).min(wanted) as usize];
                let check = |unit: &Unit<'_>| scsi::check_mode_select(list, *is_ten, unit);
                return self.with_unit(export, check).map(|()| None);
            }
            _ => return Ok(None),
        }))
    }

    /// The next part of a WRITE SAME with data, which is kept for the parts behind it.
    fn same_request(
        &self,
        task: TaskId,
        (extent, sector): (Extent, SectorSize),
        block: &Buffer,
        share: Option<Share>,
    ) -> Request {
        let at_once = SAME_BLOCKS_MAX * per_block(sector);
        let done = self.slots.with(task, |slot| slot.steps) * u64::from(at_once);
        let left = u64::from(extent.blocks) - done;
        let blocks = u32::try_from(left).unwrap_or(u32::MAX).min(at_once);
        let block = &block.as_bytes()[..sector.bytes()];
        let data = repeated(block, blocks);
        self.slots.keep_block(task, Buffer::from_bytes(block), share);
        let range = range_of(Extent { lba: extent.lba + done, blocks });
        Request::write(sector, range, payload(data, None))
    }

    /// The request behind the one that was carried out; `None` if the command is done.
    fn next_request(&self, task: TaskId, operation: &Operation, wanted: u32) -> Option<Request> {
        let sector = self.sector();
        let steps = self.slots.with(task, |slot| {
            slot.steps += 1;
            slot.steps
        });
        match operation {
            Operation::WriteAndVerify(extent) if steps == 1 => {
                let blocks = wanted / sector.bytes() as u32;
                Some(Request::verify(sector, range_of(Extent { blocks, ..*extent })))
            }
            Operation::WriteSame { extent, .. } => {
                let (block, share) = self.slots.take_block(task)?;
                let at_once = u64::from(SAME_BLOCKS_MAX) * sector.per_block();
                let is_done = steps * at_once >= u64::from(extent.blocks);
                (!is_done).then(|| self.same_request(task, (*extent, sector), &block, share))
            }
            _ => None,
        }
    }

    /// A request has ended.
    pub(crate) fn end_request(&self, tag: Tag, outcome: Outcome) {
        let Some(task) = self.slots.task_of(tag) else { return };
        let (operation, wanted) =
            self.slots.with(task, |slot| (slot.operation.clone(), slot.wanted));
        let Some(operation) = operation else { return };
        match outcome {
            Outcome::Data(data, share) => self.complete_read(task, &operation, &data, share),
            Outcome::Extents(found) => self.complete_lba_status(task, &operation, &found),
            Outcome::Failed(error) => {
                self.complete_task(task, &completion_of(&error, &operation, self.sector()));
            }
            Outcome::Done => {
                let is_aborted = self.target().is_aborted(task);
                match self.next_request(task, &operation, wanted) {
                    Some(request) if !is_aborted => self.submit_next(tag, request),
                    _ => self.end_good(task, &operation),
                }
            }
        }
    }

    fn submit_next(&self, tag: Tag, request: Request) {
        let export = self.export.borrow().clone();
        if let (Some(export), Some(this)) = (export, self.this()) {
            self.core.submit(this, tag, &export, request);
        }
    }

    fn end_good(&self, task: TaskId, operation: &Operation) {
        let len = operation.data_out_len(self.sector().bytes() as u32);
        self.complete_task(task, &Completion::good(len));
    }

    /// Ends a command without data, and forgets it.
    pub(crate) fn complete_task(&self, task: TaskId, completion: &Completion) {
        if let Some(sense) = &completion.sense
            && self.is_open()
            && let Some(export) = self.export.borrow().as_ref()
        {
            export.note_error(name_of(sense));
        }
        self.slots.end(task);
        self.reply(|target, out| target.complete(task, completion, out));
        self.task_is_over(task);
    }

    #[cold]
    pub(crate) fn fail(&self, task: TaskId, sense: Sense) {
        self.complete_task(task, &Completion::failed(sense));
    }

    fn complete_read(&self, task: TaskId, operation: &Operation, data: &ReadData, share: Share) {
        let Operation::Read(extent) = operation else { unreachable!("no other command reads") };
        let (_, asked) = self.sector().blocks_of(range_of(*extent));
        self.slots.end(task);
        self.reply(|target, out| {
            let len = asked.len() as u64;
            let in_blocks =
                |part: std::ops::Range<usize>| asked.start + part.start..asked.start + part.end;
            let append = |out: &mut crate::connection::Out<'_, '_>,
                          part: std::ops::Range<usize>| {
                data.slices(in_blocks(part)).for_each(|piece| out.data(piece));
            };
            let crc = |part: std::ops::Range<usize>| {
                let mut crc = checksum::Crc32c::new();
                data.slices(in_blocks(part)).for_each(|piece| crc.update(piece.as_bytes()));
                crc.value()
            };
            target.data_in(task, len, out, append, crc);
            out.hold(share);
        });
        self.task_is_over(task);
    }
}

/// Runs of logical blocks from the first that is asked for on, as they are found in blocks from that on in which it lies.
fn runs_of(
    found: &[VolumeExtent],
    asked: &LbaStatus,
    sector: SectorSize,
) -> impl Iterator<Item = Run> {
    let per_block = sector.per_block();
    let mut skipped = asked.lba % per_block;
    found.iter().map(move |VolumeExtent { blocks, is_mapped }| Run {
        blocks: blocks * per_block - std::mem::take(&mut skipped),
        is_mapped: *is_mapped,
    })
}

fn payload(data: BufferSlice, share: Option<Share>) -> Box<Payload> {
    Box::new(Payload { data, crcs: None, share })
}

/// A logical block, `blocks` times.
fn repeated(block: &[u8], blocks: u32) -> BufferSlice {
    let len = blocks as usize * block.len();
    let mut data = Buffer::new(len.div_ceil(BLOCK_SIZE));
    let bytes = &mut data.as_mut_bytes()[..len];
    bytes.chunks_exact_mut(block.len()).for_each(|it| it.copy_from_slice(block));
    data.into_slice().slice(0..len)
}
