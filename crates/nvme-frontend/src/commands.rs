//! Commands that are complete: authorised, decoded, and handed to the core, which carries them out in their turn.

use std::rc::Rc;

use dataplane::{Export, Payload as Blocks, Request, Tag};
use io_traits::{Device, World};
use nvme_target::io::deallocate_ranges;
use nvme_target::{IoCommand, NamespaceView, SlotId};
use nvme_wire::Status;
use units::SectorSize;

use crate::connection::{Connection, IoQueue, Role};
use crate::incoming::Payload;

/// The status of a command whose data has a length of zero where its fields promise some.
const NO_DATA: Status = Status::DATA_SGL_LENGTH_INVALID.with_dnr();

/// The tag of the command in `slot`.
pub(crate) fn tag_of(slot: SlotId) -> Tag {
    slot.0.into()
}

/// The tag of a fused operation: its first half below, its second half above, counted from 1.
pub(crate) fn tag_of_halves([first, second]: [SlotId; 2]) -> Tag {
    Tag::from(first.0) | (Tag::from(second.0) + 1) << 16
}

/// The slot of a tag, and that of the second half if there is one.
pub(crate) fn slots_of(tag: Tag) -> (SlotId, Option<SlotId>) {
    let [low, high] = [tag & 0xFFFF, tag >> 16].map(|half| half as u16);
    (SlotId(low), high.checked_sub(1).map(SlotId))
}

impl Payload {
    /// The blocks that came, as the core takes them.
    pub(crate) fn into_blocks(self) -> Box<Blocks> {
        let Self { room, len_bytes, crcs, share, .. } = self;
        let crcs = (!room.is_kept()).then_some(crcs);
        let data = room.into_slice();
        let data = if data.len_bytes() == len_bytes { data } else { data.slice(0..len_bytes) };
        Box::new(Blocks { data, crcs, share })
    }

    /// Two halves of equal length, of which the first has the share of both.
    fn into_halves(self) -> [Box<Blocks>; 2] {
        let Self { room, len_bytes, share, .. } = self;
        let (data, half) = (room.into_buffer().into_slice(), len_bytes / 2);
        let part = |from: usize, share| {
            Box::new(Blocks { data: data.slice(from..from + half), crcs: None, share })
        };
        [part(0, share), part(half, None)]
    }
}

/// The request that a command of a volume is; `None` if there is nothing to do for the volume.
fn request_of(
    command: IoCommand,
    payload: Option<Payload>,
    sector: SectorSize,
    view: impl FnOnce() -> NamespaceView,
) -> Result<Option<Request>, Status> {
    Ok(Some(match command {
        IoCommand::Read { range } => Request::read(sector, range),
        // Whether the host forces unit access makes no difference: every write is durable.
        IoCommand::Write { range, .. } => {
            Request::write(sector, range, payload.ok_or(NO_DATA)?.into_blocks())
        }
        IoCommand::Flush => Request::Flush,
        IoCommand::WriteZeroes { range, .. } => Request::write_zeroes(sector, range),
        IoCommand::Deallocate { ranges } => {
            let payload = payload.ok_or(NO_DATA)?;
            let ranges = deallocate_ranges(payload.as_bytes(), ranges, &view())?.collect();
            Request::unmap(sector, ranges, payload.share)
        }
        IoCommand::Compare { range } => {
            Request::compare(sector, range, payload.ok_or(NO_DATA)?.into_blocks())
        }
        // What is expected, and behind it what is to be written.
        IoCommand::CompareAndWrite { range } => {
            let [expected, data] = payload.ok_or(NO_DATA)?.into_halves();
            Request::compare_and_write(sector, range, expected, data)
        }
        IoCommand::Verify { range } => Request::verify(sector, range),
        IoCommand::Hint
        | IoCommand::Disconnect
        | IoCommand::Reserve(_)
        | IoCommand::ReservationReport { .. } => return Ok(None),
    }))
}

impl<W: World, D: Device> Connection<W, D> {
    /// Takes in a command that is complete; it is executed in its turn (COMMAND-1).
    pub(crate) fn execute(self: &Rc<Self>, slot: SlotId) {
        // What came before the end of service is executed, what comes behind it is not.
        let is_prepared = self.incoming.is_expected(slot);
        if self.core.is_draining() && !is_prepared {
            return self.incoming.set_late(slot);
        }
        // One that brought data was authorised and decoded before memory was found for that.
        if !is_prepared && let Err(status) = self.must_authenticate(slot) {
            return self.complete_command(slot, status, 0);
        }
        let role = self.role.borrow();
        if let Role::Io(queue) = &*role
            && self.exchange_of(slot).is_none()
        {
            return self.execute_io(slot, queue);
        }
        drop(role);
        let limits = &self.core.options().limits;
        let len_bytes = self.command(slot).dptr.length.get().min(limits.transfer_bytes_max);
        // Of a stranger it is not looked at whether there is a volume: that takes its time (EVEN-1).
        let export = if self.unproven().is_some() { None } else { self.export() };
        let connection = self.clone();
        self.run_in_turn(export.as_deref(), len_bytes, move || connection.run_other(slot));
    }

    pub(crate) fn run_in_turn(
        self: &Rc<Self>,
        export: Option<&Export<W, D>>,
        len_bytes: u32,
        call: impl FnOnce() + 'static,
    ) {
        self.core.run_in_turn(self.clone(), export, len_bytes.into(), call);
    }

    fn execute_io(self: &Rc<Self>, slot: SlotId, queue: &Rc<IoQueue<W, D>>) {
        let payload = self.take_payload(slot);
        let prepared = payload.as_ref().and_then(|payload| payload.command);
        let decoded = prepared.map_or_else(|| self.decode_io(slot, queue), Ok);
        match decoded {
            Ok(IoCommand::Reserve(change)) => {
                return self.reserve(slot, queue, change, payload.as_ref());
            }
            Ok(IoCommand::ReservationReport { len_bytes }) => {
                return self.report_reservations(slot, queue, len_bytes);
            }
            _ => {}
        }
        let request = decoded.and_then(|command| {
            let request = request_of(command, payload, queue.sector, || self.view(&queue.export))?;
            Ok((command, request))
        });
        match request {
            Ok((_, Some(request))) => self.submit(tag_of(slot), queue, request),
            Ok((command, None)) => {
                let connection = self.clone();
                self.run_in_turn(Some(&queue.export), 0, move || {
                    connection.complete_command(slot, Status::SUCCESS, 0);
                    if command == IoCommand::Disconnect {
                        connection.close();
                    }
                });
            }
            Err(status) => self.complete_command(slot, status, 0),
        }
    }

    /// Hands a request to the core.
    pub(crate) fn submit(self: &Rc<Self>, tag: Tag, queue: &IoQueue<W, D>, request: Request) {
        self.core.submit(self.clone(), tag, &queue.export, request);
    }

    /// The present state of `export`, as the checks of I/O commands need it.
    pub(crate) fn view(&self, export: &Export<W, D>) -> NamespaceView {
        let transfer_bytes_max = self.core.options().limits.transfer_bytes_max;
        export.with_volume(|volume| {
            let sector = volume.sector_size();
            NamespaceView {
                blocks: volume.blocks() * sector.per_block(),
                sector,
                metadata: volume.metadata_size(),
                transfer_blocks_max: transfer_bytes_max / sector.bytes() as u32,
                read_only: false,
            }
        })
    }

    fn run_other(self: &Rc<Self>, slot: SlotId) {
        if let Some(queue) = self.exchange_of(slot) {
            return self.authenticate(slot, &queue);
        }
        let association = match &*self.role.borrow() {
            Role::Admin(association) => Some(association.clone()),
            Role::New => None,
            Role::Io(_) => unreachable!("commands of an I/O queue are decoded as they come"),
        };
        match association {
            Some(association) => {
                let connection = self.clone();
                let task = async move { connection.execute_admin(slot, &association) };
                self.core.world().spawn_now(task);
            }
            None => self.execute_connect(slot),
        }
    }
}
