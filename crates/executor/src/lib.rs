//! One core's task executor, without any I/O: the reactor and the simulator both run it.
//!
//! - EXECUTOR-1: a task is polled only on the thread that made the executor. Wakers may go to any
//!   thread: a wake from elsewhere is put into an inbox and the owner is told.
//! - EXECUTOR-2: a task that was woken is polled once, however often it was woken before; ready
//!   tasks are polled in the order in which they were first woken.
//! - EXECUTOR-3: waking and polling allocate nothing: a waker is a number. Spawning allocates the
//!   future.
//! - EXECUTOR-4: a waker that outlives its task wakes at most a later task in the same place, for
//!   nothing.
//!
//! Absent from this crate: system calls, clocks, randomness.

mod tasks;
mod waker;

use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;

use tasks::Tasks;

/// Runs the tasks of one thread.
pub struct Executor {
    tasks: Rc<Tasks>,
}

/// Spawns tasks on an [`Executor`] of the same thread. Cheap to clone.
#[derive(Clone)]
pub struct Spawner {
    tasks: Rc<Tasks>,
}

impl Executor {
    /// An executor of the current thread. `wake_remote` is called, on the waking thread, after a
    /// wake from another thread was put into the inbox; it has to make the owner call
    /// [`Executor::run_ready`] soon.
    #[must_use]
    pub fn new(wake_remote: Arc<dyn Fn() + Send + Sync>) -> Self {
        Self { tasks: Tasks::new(wake_remote) }
    }

    /// A handle that spawns tasks here.
    #[must_use]
    pub fn spawner(&self) -> Spawner {
        Spawner { tasks: self.tasks.clone() }
    }

    /// Polls ready tasks, at most `budget`; returns how many it polled.
    pub fn run_ready(&self, budget: usize) -> usize {
        self.tasks.take_inbox();
        (0..budget).take_while(|_| self.tasks.poll_next()).count()
    }

    /// Returns true if a task is ready to be polled.
    #[must_use]
    pub fn has_ready(&self) -> bool {
        self.tasks.take_inbox();
        self.tasks.has_ready()
    }

    /// Number of tasks that have not ended.
    #[must_use]
    pub fn task_count(&self) -> usize {
        self.tasks.live()
    }
}

impl Drop for Executor {
    /// Drops every task, so that what they hold is let go in an orderly way.
    fn drop(&mut self) {
        self.tasks.close();
    }
}

impl Spawner {
    /// Queues `task`. It is first polled by a later turn of [`Executor::run_ready`].
    pub fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        self.tasks.spawn(Box::pin(task));
    }

    /// Polls `task` once at once, and keeps it if it has to wait.
    pub fn spawn_now(&self, task: impl Future<Output = ()> + 'static) {
        self.tasks.spawn_now(Box::pin(task));
    }
}

#[cfg(test)]
mod tests;
