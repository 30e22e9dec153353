//! Wakers that are plain numbers, and the way from a number back to its executor.
//!
//! A number holds, from the low bits: 24 bits of task index, 28 bits of task generation, 12 bits of
//! executor id. The thread's own executors are found through a thread-local list, those of other
//! threads through a registry.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{RawWaker, RawWakerVTable, Waker};

use crate::tasks::{Inbox, Tasks};

const INDEX_BITS: u32 = 24;
const GENERATION_BITS: u32 = 28;
/// Executors alive at a time in one process.
const EXECUTORS_MAX: usize = 1 << 12;
/// Tasks alive at a time in one executor.
pub(crate) const TASKS_MAX: usize = 1 << INDEX_BITS;

// A waker's number travels in a pointer.
const _: () = assert!(usize::BITS == 64);

/// Names a task across all executors of the process.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct TaskId {
    pub(crate) executor: u16,
    pub(crate) generation: u32,
    pub(crate) index: u32,
}

impl TaskId {
    fn pack(self) -> usize {
        let generation = self.generation as usize & ((1 << GENERATION_BITS) - 1);
        self.index as usize
            | generation << INDEX_BITS
            | (self.executor as usize) << (INDEX_BITS + GENERATION_BITS)
    }

    fn unpack(number: usize) -> Self {
        Self {
            index: (number & (TASKS_MAX - 1)) as u32,
            generation: (number >> INDEX_BITS) as u32 & ((1 << GENERATION_BITS) - 1),
            executor: (number >> (INDEX_BITS + GENERATION_BITS)) as u16,
        }
    }

    /// The generation that follows `generation`, within the bits that a waker has for it.
    pub(crate) fn next_generation(generation: u32) -> u32 {
        (generation + 1) & ((1 << GENERATION_BITS) - 1)
    }

    pub(crate) fn waker(self) -> Waker {
        let data = std::ptr::without_provenance(self.pack());
        // SAFETY: the vtable's functions treat the data as a number and never dereference it; they
        // may be called from any thread, any number of times, before and after the task's end.
        unsafe { Waker::from_raw(RawWaker::new(data, &VTABLE)) }
    }
}

static VTABLE: RawWakerVTable = RawWakerVTable::new(
    |data| RawWaker::new(data, &VTABLE),
    |data| wake(TaskId::unpack(data.addr())),
    |data| wake(TaskId::unpack(data.addr())),
    |_| {},
);

thread_local! {
    /// The executors of this thread: one in production, a few in the simulator.
    static LOCAL: RefCell<Vec<(u16, Rc<Tasks>)>> = const { RefCell::new(Vec::new()) };
}

static REGISTRY: Mutex<Vec<Option<Arc<Inbox>>>> = Mutex::new(Vec::new());

fn wake(task: TaskId) {
    let woken_here = LOCAL.try_with(|local| {
        let local = local.borrow();
        let found = local.iter().find(|(id, _)| *id == task.executor);
        found.map(|(_, tasks)| tasks.wake(task)).is_some()
    });
    if woken_here == Ok(true) {
        return;
    }
    let inbox = {
        let registry = REGISTRY.lock().unwrap_or_else(PoisonError::into_inner);
        registry.get(task.executor as usize).cloned().flatten()
    };
    // Without an inbox the executor is gone, and its tasks with it.
    if let Some(inbox) = inbox {
        inbox.wake(task);
    }
}

/// Takes a free executor id.
pub(crate) fn register(inbox: &Arc<Inbox>) -> u16 {
    let mut registry = REGISTRY.lock().unwrap_or_else(PoisonError::into_inner);
    let id = registry.iter().position(Option::is_none).unwrap_or(registry.len());
    assert!(id < EXECUTORS_MAX, "at most {EXECUTORS_MAX} executors in one process");
    if id == registry.len() {
        registry.push(None);
    }
    registry[id] = Some(inbox.clone());
    id as u16
}

/// Makes the executor's tasks reachable from its own thread.
pub(crate) fn enter(id: u16, tasks: &Rc<Tasks>) {
    LOCAL.with_borrow_mut(|local| local.push((id, tasks.clone())));
}

/// Gives the id back.
pub(crate) fn unregister(id: u16) {
    // The list is gone while the thread ends; then nothing is left to be woken either.
    let _ = LOCAL.try_with(|local| local.borrow_mut().retain(|(other, _)| *other != id));
    REGISTRY.lock().unwrap_or_else(PoisonError::into_inner)[id as usize] = None;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_names_its_task() {
        for task in [
            TaskId { executor: 0, generation: 0, index: 0 },
            TaskId { executor: 4095, generation: (1 << 28) - 1, index: (1 << 24) - 1 },
            TaskId { executor: 7, generation: 123_456, index: 99 },
        ] {
            assert_eq!(TaskId::unpack(task.pack()), task);
        }
    }
}
