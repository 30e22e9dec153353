//! Data on its way in: memory for it, the request for it, and where it goes.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use dataplane::{Crcs, Share, footprint};
use io_traits::{Buffer, BufferSlice, Device, World};
use nvme_target::{IoCommand, ReceivedBlocks, SlotId};
use nvme_wire::sqe::Fuse;
use nvme_wire::{IoOpcode, Status};
use situations::{Situation, situation};
use units::BLOCK_SIZE;

use crate::connection::{Connection, IoQueue, Role};
use crate::extended::footprint_of;

/// Memory for the data of a command. Lists of ranges and messages are shorter than a block, and a host can have one
/// of them come with each command of a queue: they do not take a block each.
pub(crate) enum Room {
    Blocks(Buffer),
    Bytes(Box<[u8]>),
    /// Whole blocks where they were received.
    Kept(BufferSlice),
}

impl Room {
    fn new(len_bytes: usize) -> Self {
        if len_bytes < BLOCK_SIZE {
            Self::Bytes(vec![0; len_bytes].into())
        } else {
            Self::Blocks(Buffer::new(len_bytes.div_ceil(BLOCK_SIZE)))
        }
    }

    fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Blocks(buffer) => buffer.as_bytes(),
            Self::Bytes(bytes) => bytes,
            Self::Kept(data) => data.as_bytes(),
        }
    }

    fn as_mut_bytes(&mut self) -> &mut [u8] {
        match self {
            Self::Blocks(buffer) => buffer.as_mut_bytes(),
            Self::Bytes(bytes) => bytes,
            Self::Kept(_) => unreachable!("all of its data has come"),
        }
    }

    /// Whole blocks, which is what they are where blocks came.
    pub(crate) fn into_buffer(self) -> Buffer {
        match self {
            Self::Blocks(buffer) => buffer,
            Self::Bytes(bytes) => Buffer::from_bytes(&bytes),
            Self::Kept(data) => Buffer::from_bytes(data.as_bytes()),
        }
    }

    /// The data, where it is.
    pub(crate) fn into_slice(self) -> BufferSlice {
        match self {
            Self::Kept(data) => data,
            room => room.into_buffer().into_slice(),
        }
    }

    pub(crate) fn is_kept(&self) -> bool {
        matches!(self, Self::Kept(_))
    }
}

/// Data on its way in, for one command.
#[derive(Default)]
struct Incoming {
    room: Option<Room>,
    /// The room is where data is received.
    is_lent: bool,
    /// There is no room yet: the data may stay where it is received.
    may_be_kept: bool,
    len_bytes: usize,
    received: ReceivedBlocks,
    share: Option<Share>,
    is_solicited: bool,
    /// The command as it was checked when it came, if it is one of a volume.
    command: Option<IoCommand>,
    /// The command came too late to be executed.
    is_late: bool,
}

impl Incoming {
    /// Lends the memory, if it is blocks.
    fn lend(&mut self) -> Option<Buffer> {
        match self.room.take() {
            Some(Room::Blocks(buffer)) => {
                self.is_lent = true;
                Some(buffer)
            }
            room => {
                self.room = room;
                None
            }
        }
    }
}

/// The data that a command is about to receive, and the memory for it.
struct Expected {
    len_bytes: usize,
    share: Share,
    is_solicited: bool,
    may_be_kept: bool,
    command: Option<IoCommand>,
}

/// The data on its way in, by slot.
#[derive(Default)]
pub(crate) struct IncomingTable {
    slots: RefCell<Vec<Incoming>>,
    /// Commands whose data was asked for and has not all come.
    solicited: Cell<usize>,
    /// Commands that came too late to be executed.
    late: Cell<usize>,
}

/// The data that came with a command.
pub(crate) struct Payload {
    pub(crate) room: Room,
    pub(crate) len_bytes: usize,
    /// CRC-32C of each whole block.
    pub(crate) crcs: Crcs,
    /// The command as it was checked when it came, if it is one of a volume.
    pub(crate) command: Option<IoCommand>,
    /// Kept until the data is no longer needed.
    pub(crate) share: Option<Share>,
}

impl Payload {
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.room.as_bytes()[..self.len_bytes]
    }
}

impl IncomingTable {
    /// Returns true if solicited data has not all come.
    pub(crate) fn is_solicited(&self) -> bool {
        self.solicited.get() > 0
    }

    /// Debt of commands that are not complete: a part of their data, or their second half, is yet to come.
    pub(crate) fn debt_bytes(&self) -> u64 {
        let slots = self.slots.borrow();
        slots.iter().filter_map(|incoming| incoming.share.as_ref()).map(Share::debt_bytes).sum()
    }

    /// Commands that came too late to be executed.
    pub(crate) fn late(&self) -> usize {
        self.late.get()
    }

    /// Gives all memory back: nothing more will come.
    pub(crate) fn clear(&self) {
        drop(self.slots.take());
        self.solicited.set(0);
    }

    fn with<T>(&self, slot: SlotId, act: impl FnOnce(&mut Incoming) -> T) -> T {
        let mut slots = self.slots.borrow_mut();
        if slots.len() <= slot.index() {
            slots.resize_with(slot.index() + 1, Incoming::default);
        }
        act(&mut slots[slot.index()])
    }

    /// Makes room for data.
    fn expect(&self, slot: SlotId, expected: Expected) {
        let Expected { len_bytes, share, is_solicited, may_be_kept, command } = expected;
        self.with(slot, |incoming| {
            incoming.may_be_kept = may_be_kept;
            incoming.room = (!may_be_kept).then(|| Room::new(len_bytes));
            incoming.len_bytes = len_bytes;
            incoming.received.reset();
            incoming.share = Some(share);
            incoming.is_solicited = is_solicited;
            incoming.command = command;
        });
        self.solicited.set(self.solicited.get() + usize::from(is_solicited));
    }

    /// Takes in data of a command, unless the command came too late. All of it may be kept where it is.
    pub(crate) fn copy(
        &self,
        slot: SlotId,
        offset: usize,
        bytes: &[u8],
        keep: impl FnOnce() -> Option<BufferSlice>,
    ) {
        self.with(slot, |incoming| {
            if std::mem::take(&mut incoming.may_be_kept) {
                let kept = if bytes.len() == incoming.len_bytes { keep() } else { None };
                if let Some(data) = kept {
                    situation(Situation::ReceivedDataIsKept);
                    incoming.room = Some(Room::Kept(data));
                    return;
                }
                incoming.room = Some(Room::new(incoming.len_bytes));
            }
            if let Some(room) = &mut incoming.room {
                incoming.received.copy(room.as_mut_bytes(), offset, bytes);
            }
        });
    }

    /// Lends the memory for data that comes next, if it is blocks. It is to come back by [`IncomingTable::landed`].
    pub(crate) fn lend(&self, slot: SlotId) -> Option<Buffer> {
        self.with(slot, |incoming| {
            // Large data is received right into its room.
            if std::mem::take(&mut incoming.may_be_kept) {
                incoming.room = Some(Room::new(incoming.len_bytes));
            }
            incoming.lend()
        })
    }

    /// The memory of a command comes back, and `len_bytes` more of its data are in it. It goes if the connection was closed
    /// meanwhile.
    pub(crate) fn landed(&self, slot: SlotId, buffer: Buffer, offset: usize, len_bytes: usize) {
        self.with(slot, |incoming| {
            if std::mem::take(&mut incoming.is_lent) {
                incoming.received.landed(buffer.as_bytes(), offset, len_bytes);
                incoming.room = Some(Room::Blocks(buffer));
            }
        });
    }

    /// The digest of data that has come; `None` if it was not taken in.
    pub(crate) fn digest(&self, slot: SlotId, offset: usize, len_bytes: usize) -> Option<u32> {
        self.with(slot, |incoming| {
            let room = incoming.room.as_ref()?;
            Some(incoming.received.digest(room.as_bytes(), offset, len_bytes))
        })
    }

    /// Returns true if all data of a command is on its way or there.
    pub(crate) fn is_expected(&self, slot: SlotId) -> bool {
        self.slots.borrow().get(slot.index()).is_some_and(|incoming| {
            incoming.room.is_some() || incoming.is_lent || incoming.may_be_kept
        })
    }

    /// The command in `slot` will not be executed and never be answered.
    pub(crate) fn set_late(&self, slot: SlotId) {
        let was_late = self.with(slot, |incoming| std::mem::replace(&mut incoming.is_late, true));
        self.late.set(self.late.get() + usize::from(!was_late));
    }

    /// The data that came with the command in `slot`, if any did.
    pub(crate) fn take(&self, slot: SlotId) -> Option<Payload> {
        let mut slots = self.slots.borrow_mut();
        let incoming = slots.get_mut(slot.index())?;
        let room = incoming.room.take()?;
        if std::mem::take(&mut incoming.is_solicited) {
            self.solicited.set(self.solicited.get() - 1);
        }
        Some(Payload {
            room,
            len_bytes: incoming.len_bytes,
            crcs: Crcs::from_slice(incoming.received.block_crcs()),
            command: incoming.command.take(),
            share: incoming.share.take(),
        })
    }
}

/// The data of the second half of a fused operation.
fn second_half(len_bytes: usize, share: Share, is_solicited: bool) -> Expected {
    Expected { len_bytes, share, is_solicited, may_be_kept: false, command: None }
}

impl<W: World, D: Device> Connection<W, D> {
    /// Finds memory for the data of a command, unless the command is refused anyway.
    pub(crate) fn prepare(self: &Rc<Self>, slot: SlotId, len_bytes: usize, is_solicited: bool) {
        if self.core.is_draining() {
            return self.incoming.set_late(slot);
        }
        if let Err(status) = self.must_authenticate(slot) {
            return self.complete_command(slot, status, 0);
        }
        if let Some(first) = self.first_half_of(slot) {
            return self.prepare_second_half([first, slot], len_bytes, is_solicited);
        }
        let command = match self.check(slot) {
            Ok(command) => command,
            Err(status) => return self.complete_command(slot, status, 0),
        };
        let bytes = self.bytes_to_charge(slot, len_bytes);
        if !is_solicited {
            let share = self.link.window().take_anyway(bytes);
            let may_be_kept = self.may_keep(len_bytes, command.as_ref());
            let expected = Expected { len_bytes, share, is_solicited, may_be_kept, command };
            return self.incoming.expect(slot, expected);
        }
        let expected =
            move |share| Expected { len_bytes, share, is_solicited, may_be_kept: false, command };
        if let Some(share) = self.link.window().try_take(bytes) {
            return self.solicit(slot, expected(share));
        }
        let connection = self.clone();
        self.core.world().spawn(async move {
            let Some(share) = connection.link.window().take(bytes).await else { return };
            if connection.core.is_draining() {
                connection.incoming.set_late(slot);
            } else if connection.is_open() {
                connection.solicit(slot, expected(share));
            }
        });
    }

    /// All that a command which brings `len_bytes` will need.
    fn bytes_to_charge(&self, slot: SlotId, len_bytes: usize) -> i64 {
        let role = self.role.borrow();
        let queue = match &*role {
            Role::Io(queue) if len_bytes >= BLOCK_SIZE || self.is_of_sectors(slot, queue) => queue,
            _ if len_bytes < BLOCK_SIZE => {
                return i64::try_from(len_bytes).expect("less than a block");
            }
            _ => return footprint(len_bytes),
        };
        let metadata = queue.export.with_volume(volume::Volume::metadata_size);
        let sector = queue.sector;
        let footprint = |len_bytes| footprint_of(len_bytes, metadata, sector);
        let sqe = self.command(slot);
        // A Compare reads as much as it brings, and, as a first half, stands for the second one, too.
        match IoOpcode(sqe.opcode) {
            IoOpcode::COMPARE if sqe.fuse() == Fuse::First => footprint(len_bytes) * 3,
            IoOpcode::COMPARE => footprint(len_bytes) * 2,
            IoOpcode::COMPARE_AND_WRITE => footprint(len_bytes) + footprint(len_bytes / 2),
            _ => footprint(len_bytes),
        }
    }

    /// Returns whether the command brings logical blocks smaller than a block.
    fn is_of_sectors(&self, slot: SlotId, queue: &IoQueue<W, D>) -> bool {
        let brings_blocks =
            [IoOpcode::WRITE, IoOpcode::COMPARE, IoOpcode::COMPARE_AND_WRITE].map(|it| it.0);
        queue.sector.per_block() > 1 && brings_blocks.contains(&self.command(slot).opcode)
    }

    /// The first half has paid for both, or waits for its turn to do so.
    fn prepare_second_half(
        self: &Rc<Self>,
        halves: [SlotId; 2],
        len_bytes: usize,
        is_solicited: bool,
    ) {
        let [_, slot] = halves;
        if let Err(statuses) = self.decode_halves(halves, &self.io_queue()) {
            return self.refuse_halves(slot, statuses);
        }
        if !is_solicited {
            let share = self.link.window().take_anyway(0);
            let expected = second_half(len_bytes, share, is_solicited);
            return self.incoming.expect(slot, expected);
        }
        let connection = self.clone();
        self.core.world().spawn(async move {
            let Some(share) = connection.link.window().take_in_turn(0).await else { return };
            if connection.core.is_draining() {
                connection.incoming.set_late(slot);
            } else if connection.is_open() {
                connection.solicit(slot, second_half(len_bytes, share, is_solicited));
            }
        });
    }

    /// Returns whether the data of a command may stay where it is received: it is written at once when its turn comes, or else
    /// copied then. Data with a digest never does: that is taken on the way into a room.
    fn may_keep(&self, len_bytes: usize, command: Option<&IoCommand>) -> bool {
        let role = self.role.borrow();
        let (Some(IoCommand::Write { range, .. }), Role::Io(queue)) = (command, &*role) else {
            return false;
        };
        queue.sector.per_block() == 1
            && range.blocks as usize * BLOCK_SIZE == len_bytes
            && !self.has_data_digests()
            && queue.export.with_volume(volume::Volume::may_hold_writes)
    }

    /// Makes room for data and asks for it.
    fn solicit(&self, slot: SlotId, expected: Expected) {
        let len_bytes = u32::try_from(expected.len_bytes).expect("bounded by MDTS");
        self.incoming.expect(slot, expected);
        let now = self.reading_time();
        self.put(|transport, out| transport.grant(now, slot, len_bytes, out));
        // It must be able to arrive, even if there is no room for more.
        self.resume.notify_all();
    }

    /// Checks that the command in `slot` is worth waiting for its data. Returns it decoded, if it is one of a volume.
    fn check(&self, slot: SlotId) -> Result<Option<IoCommand>, Status> {
        match &*self.role.borrow() {
            Role::Io(_) if self.exchange_of(slot).is_some() => Ok(None),
            Role::Io(queue) => self.decode_io(slot, queue).map(Some),
            Role::New | Role::Admin(_) => Ok(None),
        }
    }
}
