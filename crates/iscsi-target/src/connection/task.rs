//! Commands under way, and the data that they bring.

use alloc::boxed::Box;
use alloc::collections::VecDeque;

use iscsi_wire::Cdb;
use iscsi_wire::pdu::{FINAL, Lun, READ, ScsiCommand, WRITE};

/// Commands that a session may have under way, by its window.
pub(super) const QUEUE_DEPTH: u32 = 128;
/// Immediate commands beyond those.
const IMMEDIATE_MAX: usize = 8;
/// Tasks that a connection has at most.
pub const TASKS_MAX: usize = QUEUE_DEPTH as usize + IMMEDIATE_MAX;

/// Names a task of a connection.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct TaskId(pub u8);

/// Data that one R2T has asked for.
#[derive(Clone, Copy)]
pub(super) struct Transfer {
    pub(super) ttt: u32,
    pub(super) next: u32,
    pub(super) end: u32,
    pub(super) data_sn: u32,
}

/// A command under way.
pub(super) struct Task {
    pub(super) itt: u32,
    pub(super) lun: Lun,
    pub(super) cdb: Cdb,
    pub(super) flags: u8,
    pub(super) is_immediate: bool,
    /// Expected Data Transfer Length.
    pub(super) edtl: u32,
    /// Bytes that the command takes of those which the initiator has.
    pub(super) wanted: u32,
    /// Bytes that came without an R2T so far.
    pub(super) unsolicited: u32,
    /// More comes without an R2T.
    pub(super) has_unsolicited: bool,
    /// DataSN of the next PDU of that.
    pub(super) unsolicited_sn: u32,
    /// There is memory for all that is wanted.
    pub(super) is_granted: bool,
    /// First byte that no R2T has asked for.
    pub(super) asked: u32,
    pub(super) r2t_sn: u32,
    pub(super) transfers: VecDeque<Transfer>,
    /// All that is wanted has come, and the caller knows.
    pub(super) is_ready: bool,
    pub(super) aborted_by: Option<AbortedBy>,
}

/// The initiator by which a task was aborted.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum AbortedBy {
    /// Its own: it wants no answer any more.
    Itself,
    /// Another one: the task ends with TASK ABORTED (TAS of the Control mode page).
    Another,
}

impl Task {
    pub(super) fn new(command: &ScsiCommand, is_immediate: bool) -> Self {
        Self {
            itt: command.itt.get(),
            lun: command.lun,
            cdb: Cdb(command.cdb),
            flags: command.flags,
            is_immediate,
            edtl: command.edtl.get(),
            wanted: 0,
            unsolicited: 0,
            has_unsolicited: command.flags & FINAL == 0,
            unsolicited_sn: 0,
            is_granted: false,
            asked: 0,
            r2t_sn: 0,
            transfers: VecDeque::new(),
            is_ready: false,
            aborted_by: None,
        }
    }

    /// Bytes that the initiator takes.
    pub(super) fn readable(&self) -> u32 {
        if self.flags & READ != 0 { self.edtl } else { 0 }
    }

    /// Bytes that the initiator has.
    pub(super) fn writable(&self) -> u32 {
        if self.flags & WRITE != 0 { self.edtl } else { 0 }
    }

    /// Returns whether data that was asked for, or that comes by itself, is on its way.
    pub(super) fn awaits_data(&self) -> bool {
        self.has_unsolicited || !self.transfers.is_empty()
    }

    /// Returns whether all that is wanted has come.
    pub(super) fn has_all(&self) -> bool {
        !self.awaits_data() && self.asked.max(self.unsolicited) >= self.wanted
    }
}

/// The tasks of a connection.
pub(super) struct Tasks {
    slots: Box<[Option<Task>]>,
    /// Those that are no immediate ones.
    queued: u32,
    len: usize,
}

impl Tasks {
    pub(super) fn new() -> Self {
        Self { slots: (0..TASKS_MAX).map(|_| None).collect(), queued: 0, len: 0 }
    }

    /// Commands that may come beyond those under way.
    pub(super) fn room(&self) -> u32 {
        QUEUE_DEPTH.saturating_sub(self.queued)
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Adds a task; `None` if there are as many as there may be.
    pub(super) fn add(&mut self, task: Task) -> Option<TaskId> {
        let index = self.slots.iter().position(Option::is_none)?;
        self.queued += u32::from(!task.is_immediate);
        self.len += 1;
        self.slots[index] = Some(task);
        u8::try_from(index).ok().map(TaskId)
    }

    pub(super) fn remove(&mut self, id: TaskId) -> Option<Task> {
        let task = self.slots.get_mut(usize::from(id.0))?.take()?;
        self.queued -= u32::from(!task.is_immediate);
        self.len -= 1;
        Some(task)
    }

    pub(super) fn get(&self, id: TaskId) -> Option<&Task> {
        self.slots.get(usize::from(id.0))?.as_ref()
    }

    pub(super) fn get_mut(&mut self, id: TaskId) -> Option<&mut Task> {
        self.slots.get_mut(usize::from(id.0))?.as_mut()
    }

    /// The task with this Initiator Task Tag.
    pub(super) fn by_itt(&self, itt: u32) -> Option<TaskId> {
        self.iter().find(|(_, task)| task.itt == itt && task.aborted_by.is_none()).map(|(id, _)| id)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (TaskId, &Task)> {
        let numbered = (0..).zip(&self.slots);
        numbered.filter_map(|(index, task)| Some((TaskId(index), task.as_ref()?)))
    }
}
