//! Commands under way: what is to be done for each, memory for its data, and the data.
//!
//! - INCOMING-1: memory for data that comes by itself is taken when its command comes, and cannot be refused; that for the rest
//!   is waited for before it is asked for.
//! - INCOMING-2: a slot that is used again has another generation: what was waited for in the name of its former command does
//!   nothing.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use dataplane::{Share, footprint};
use io_traits::{Buffer, Device, World};
use iscsi_target::scsi::Operation;
use iscsi_target::{TASKS_MAX, TaskId};
use units::{BLOCK_SIZE, SectorSize};

use crate::commands::per_block;
use crate::connection::Connection;

/// Bits of a tag that name the task.
const TASK_BITS: u32 = 8;

/// A command under way.
#[derive(Default)]
pub(crate) struct Slot {
    /// Tells the work that is to be done.
    pub(crate) operation: Option<Operation>,
    /// Bytes of data that the command takes.
    pub(crate) wanted: u32,
    room: Option<Buffer>,
    share: Option<Share>,
    generation: u32,
    /// Requests of the command that were carried out.
    pub(crate) steps: u64,
    is_executing: bool,
}

/// The commands of a connection.
pub(crate) struct Slots {
    slots: RefCell<Vec<Slot>>,
    executing: Cell<usize>,
}

impl Default for Slots {
    fn default() -> Self {
        let slots = (0..TASKS_MAX).map(|_| Slot::default()).collect();
        Self { slots: RefCell::new(slots), executing: Cell::new(0) }
    }
}

impl Slots {
    pub(crate) fn with<T>(&self, task: TaskId, act: impl FnOnce(&mut Slot) -> T) -> T {
        act(&mut self.slots.borrow_mut()[usize::from(task.0)])
    }

    /// Commands that are being executed.
    pub(crate) fn executing(&self) -> usize {
        self.executing.get()
    }

    /// Begins a command.
    pub(crate) fn begin(&self, task: TaskId, operation: Operation, wanted: u32) {
        self.with(task, |slot| {
            let generation = slot.generation.wrapping_add(1) & (u32::MAX >> TASK_BITS);
            let operation = Some(operation);
            *slot = Slot { operation, wanted, generation, ..Slot::default() };
        });
    }

    /// Marks a command as being executed, and returns the tag of its requests.
    pub(crate) fn execute(&self, task: TaskId) -> u32 {
        let tag = self.with(task, |slot| {
            slot.is_executing = true;
            slot.generation << TASK_BITS | u32::from(task.0)
        });
        self.executing.set(self.executing.get() + 1);
        tag
    }

    /// The command of a request; `None` if it is over.
    pub(crate) fn task_of(&self, tag: u32) -> Option<TaskId> {
        let task = TaskId((tag & 0xFF) as u8);
        self.with(task, |slot| {
            (slot.operation.is_some() && slot.generation == tag >> TASK_BITS).then_some(task)
        })
    }

    fn generation(&self, task: TaskId) -> u32 {
        self.with(task, |slot| slot.generation)
    }

    /// Forgets a command.
    pub(crate) fn end(&self, task: TaskId) {
        let was_executing = self.with(task, |slot| {
            let was_executing = slot.is_executing;
            *slot = Slot { generation: slot.generation, ..Slot::default() };
            was_executing
        });
        self.executing.set(self.executing.get() - usize::from(was_executing));
    }

    /// Gives all memory back: nothing more will come.
    pub(crate) fn clear(&self) {
        for slot in self.slots.borrow_mut().iter_mut() {
            (slot.room, slot.share) = (None, None);
        }
    }

    /// Makes room for the first `len_bytes` of a command's data, keeping what is there.
    fn make_room(&self, task: TaskId, len_bytes: usize, share: Share) {
        self.with(task, |slot| {
            let mut room = Buffer::new(len_bytes.div_ceil(BLOCK_SIZE));
            if let Some(before) = &slot.room {
                let len = before.len_bytes().min(room.len_bytes());
                room.as_mut_bytes()[..len].copy_from_slice(&before.as_bytes()[..len]);
            }
            (slot.room, slot.share) = (Some(room), Some(share));
        });
    }

    /// Takes in data of a command.
    pub(crate) fn copy(&self, task: TaskId, offset: usize, bytes: &[u8]) {
        self.with(task, |slot| {
            let room = slot.room.as_mut().map(Buffer::as_mut_bytes);
            if let Some(target) = room.and_then(|room| room.get_mut(offset..offset + bytes.len())) {
                checksum::copy(bytes, target);
            }
        });
    }

    /// Keeps a block that is written many times.
    pub(crate) fn keep_block(&self, task: TaskId, block: Buffer, share: Option<Share>) {
        self.with(task, |slot| (slot.room, slot.share) = (Some(block), share));
    }

    /// The block that is written many times, if one is.
    pub(crate) fn take_block(&self, task: TaskId) -> Option<(Buffer, Option<Share>)> {
        self.with(task, |slot| slot.room.take().map(|room| (room, slot.share.take())))
    }

    /// The data of a command and the memory that is charged for it.
    pub(crate) fn take_data(&self, task: TaskId) -> (Buffer, Option<Share>) {
        self.with(task, |slot| {
            (slot.room.take().unwrap_or_else(|| Buffer::new(0)), slot.share.take())
        })
    }
}

impl<W: World, D: Device> Connection<W, D> {
    /// INCOMING-1: takes memory for what comes by itself of `wanted` bytes.
    pub(crate) fn make_first_room(&self, task: TaskId, wanted: u32, extra: i64) {
        let unsolicited = self.target().unsolicited_max(task).min(wanted);
        if unsolicited > 0 {
            let is_all = unsolicited == wanted;
            let len = unsolicited as usize;
            let window = self.link.window();
            let share = match is_all {
                true => window.take_anyway(footprint(len) + extra),
                false => window.take_part(footprint(len)),
            };
            self.slots.make_room(task, len, share);
        }
    }

    /// Finds memory for all data of a command, and asks for it.
    pub(crate) fn solicit(self: &Rc<Self>, task: TaskId) {
        let sector = self.sector();
        let (wanted, extra) = self.slots.with(task, |slot| {
            let extra = slot.operation.as_ref().map_or(0, |it| extra_bytes(it, sector));
            (slot.wanted as usize, extra)
        });
        let bytes = footprint(wanted) + extra;
        if let Some(share) = self.link.window().try_take(bytes) {
            return self.grant(task, wanted, share);
        }
        let (connection, generation) = (self.clone(), self.slots.generation(task));
        self.core.world().spawn(async move {
            let Some(share) = connection.link.window().take(bytes).await else { return };
            let is_same = connection.slots.generation(task) == generation
                && connection.slots.with(task, |slot| slot.operation.is_some());
            if is_same && connection.is_open() {
                connection.grant(task, wanted, share);
            }
        });
    }

    fn grant(&self, task: TaskId, wanted: usize, share: Share) {
        self.slots.make_room(task, wanted, share);
        self.put(|target, out| target.grant(task, out));
        self.resume_reading();
    }
}

/// Memory that the execution of a command takes besides its data: a comparison reads, and what need not be whole blocks is put
/// into those of which it is a part.
pub(crate) fn extra_bytes(operation: &Operation, sector: SectorSize) -> i64 {
    let ends = if sector.per_block() > 1 { 2 * BLOCK_SIZE } else { 0 };
    let bytes = |blocks: u32| footprint(blocks as usize * sector.bytes() + ends);
    let same_max = crate::commands::SAME_BLOCKS_MAX * per_block(sector);
    match operation {
        Operation::Write(extent) | Operation::WriteAndVerify(extent) if ends > 0 => {
            bytes(extent.blocks)
        }
        Operation::Verify { extent, .. } => 2 * bytes(extent.blocks),
        Operation::CompareAndWrite(extent) => 2 * bytes(extent.blocks),
        Operation::WriteSame { extent, .. } => bytes(extent.blocks.min(same_max)),
        _ => 0,
    }
}
