//! The table of tasks and the queue of those that are ready.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use crate::waker::{self, TASKS_MAX, TaskId};

type Task = Pin<Box<dyn Future<Output = ()>>>;

/// A place for a task.
struct Slot {
    generation: u32,
    /// In the ready queue (EXECUTOR-2).
    queued: bool,
    /// Taken out while the task is being polled.
    task: Option<Task>,
    free: bool,
}

/// Wakes from other threads.
pub(crate) struct Inbox {
    woken: Mutex<Vec<TaskId>>,
    /// Set after `woken` was added to; lets the owner look without the lock.
    filled: AtomicBool,
    notify_owner: Arc<dyn Fn() + Send + Sync>,
}

impl Inbox {
    pub(crate) fn wake(&self, task: TaskId) {
        self.woken.lock().unwrap_or_else(PoisonError::into_inner).push(task);
        self.filled.store(true, Ordering::Release);
        (self.notify_owner)();
    }
}

pub(crate) struct Tasks {
    id: u16,
    slots: RefCell<Vec<Slot>>,
    free: RefCell<Vec<u32>>,
    ready: RefCell<VecDeque<u32>>,
    live: Cell<usize>,
    closed: Cell<bool>,
    inbox: Arc<Inbox>,
}

impl Tasks {
    pub(crate) fn new(notify_owner: Arc<dyn Fn() + Send + Sync>) -> Rc<Self> {
        let inbox = Arc::new(Inbox {
            woken: Mutex::default(),
            filled: AtomicBool::new(false),
            notify_owner,
        });
        let id = waker::register(&inbox);
        let tasks = Rc::new(Self {
            id,
            slots: RefCell::default(),
            free: RefCell::default(),
            ready: RefCell::default(),
            live: Cell::new(0),
            closed: Cell::new(false),
            inbox,
        });
        waker::enter(id, &tasks);
        tasks
    }

    pub(crate) fn spawn(&self, task: Task) {
        if let Some(id) = self.insert(Some(task)) {
            self.wake(id);
        }
    }

    pub(crate) fn spawn_now(&self, task: Task) {
        if let Some(id) = self.insert(None) {
            self.poll(id, task);
        }
    }

    /// Marks the task as ready. Does nothing if it is gone (EXECUTOR-4) or already queued
    /// (EXECUTOR-2).
    pub(crate) fn wake(&self, task: TaskId) {
        let mut slots = self.slots.borrow_mut();
        let Some(slot) = slots.get_mut(task.index as usize) else { return };
        if slot.free || slot.queued || slot.generation != task.generation {
            return;
        }
        slot.queued = true;
        self.ready.borrow_mut().push_back(task.index);
    }

    pub(crate) fn take_inbox(&self) {
        if !self.inbox.filled.swap(false, Ordering::Acquire) {
            return;
        }
        let woken =
            mem::take(&mut *self.inbox.woken.lock().unwrap_or_else(PoisonError::into_inner));
        woken.into_iter().for_each(|task| self.wake(task));
    }

    pub(crate) fn has_ready(&self) -> bool {
        !self.ready.borrow().is_empty()
    }

    pub(crate) fn live(&self) -> usize {
        self.live.get()
    }

    /// Polls the task that has been ready longest; `false` if there is none.
    pub(crate) fn poll_next(&self) -> bool {
        let Some(index) = self.ready.borrow_mut().pop_front() else { return false };
        let taken = {
            let slot = &mut self.slots.borrow_mut()[index as usize];
            slot.queued = false;
            let id = TaskId { executor: self.id, generation: slot.generation, index };
            slot.task.take().map(|task| (id, task))
        };
        // A task that is being polled further up the stack keeps its wake for later.
        if let Some((id, task)) = taken {
            self.poll(id, task);
        }
        true
    }

    /// Drops all tasks and takes no more.
    pub(crate) fn close(&self) {
        self.closed.set(true);
        waker::unregister(self.id);
        // Dropping a task may touch the table, so none is dropped while it is borrowed.
        let slots = mem::take(&mut *self.slots.borrow_mut());
        self.ready.borrow_mut().clear();
        drop(slots);
        self.live.set(0);
    }

    fn insert(&self, task: Option<Task>) -> Option<TaskId> {
        if self.closed.get() {
            return None;
        }
        self.live.set(self.live.get() + 1);
        let mut slots = self.slots.borrow_mut();
        let index = self.free.borrow_mut().pop().unwrap_or_else(|| {
            assert!(slots.len() < TASKS_MAX, "at most {TASKS_MAX} tasks on one core");
            slots.push(Slot { generation: 0, queued: false, task: None, free: true });
            (slots.len() - 1) as u32
        });
        let slot = &mut slots[index as usize];
        slot.free = false;
        slot.queued = false;
        slot.task = task;
        Some(TaskId { executor: self.id, generation: slot.generation, index })
    }

    fn poll(&self, id: TaskId, mut task: Task) {
        let waker = id.waker();
        let polled = task.as_mut().poll(&mut Context::from_waker(&waker));
        if self.closed.get() {
            return;
        }
        match polled {
            Poll::Pending => self.slots.borrow_mut()[id.index as usize].task = Some(task),
            Poll::Ready(()) => {
                self.release(id);
                drop(task);
            }
        }
    }

    fn release(&self, id: TaskId) {
        let mut slots = self.slots.borrow_mut();
        let slot = &mut slots[id.index as usize];
        slot.free = true;
        slot.generation = TaskId::next_generation(slot.generation);
        self.live.set(self.live.get() - 1);
        if slot.queued {
            // Still in the ready queue: reuse of the place must not find a stale entry there.
            slot.queued = false;
            self.ready.borrow_mut().retain(|index| *index != id.index);
        }
        self.free.borrow_mut().push(id.index);
    }
}
