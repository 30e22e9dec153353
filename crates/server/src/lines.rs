//! Puts into words what cores say of their connections, on a thread of its own (LIFE-4).
//!
//! - LOG-LINE-1: a core never waits for it. Lines that find too many waiting are left out, and counted.
//! - LOG-LINE-2: sending a line wakes no thread while lines are gathered.
//! - LOG-LINE-3: what was said before it is told to end, is in the log when it has. A core may leave its sender behind when its
//!   thread ends.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use nvme_frontend::Line;
use process_limits::threads;
use user_messages::Failure;

use crate::logging::GATHERED_FOR;

/// Lines that wait, at most: some megabytes.
const WAITING_MAX: usize = 8192;

/// Lines that were left out (LOG-LINE-1).
static LEFT_OUT: AtomicU64 = AtomicU64::new(0);

/// The thread.
pub(super) struct Lines {
    sender: LineSender,
    thread: JoinHandle<()>,
}

/// The channel for a core's lines; `None` is the last.
#[derive(Clone)]
pub(super) struct LineSender(SyncSender<Option<Box<Line>>>);

impl LineSender {
    /// Leaves a line to be written (LOG-LINE-1).
    pub(super) fn send(&self, line: Line) {
        if self.0.try_send(Some(Box::new(line))).is_err() {
            LEFT_OUT.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Lines that were left out so far.
pub(super) fn left_out() -> u64 {
    LEFT_OUT.load(Ordering::Relaxed)
}

impl Lines {
    /// Starts the thread.
    pub(super) fn start() -> Result<Self, Failure> {
        let (sender, receiver) = sync_channel(WAITING_MAX);
        let thread = std::thread::Builder::new().name("lines".to_owned());
        let thread = thread.spawn(move || write_all(&receiver));
        let thread = thread.map_err(|error| threads::none(&error))?;
        Ok(Self { sender: LineSender(sender), thread })
    }

    /// Returns the channel for lines.
    pub(super) fn sender(&self) -> LineSender {
        self.sender.clone()
    }

    /// Ends the thread, and waits for it (LOG-LINE-3).
    pub(super) fn end(self) {
        // Both fail only if it has panicked: then no thread writes any more, and there is nothing to wait
        // for.
        let _ = self.sender.0.send(None);
        self.thread.thread().unpark();
        let _ = self.thread.join();
    }
}

fn write_all(lines: &Receiver<Option<Box<Line>>>) {
    while let Ok(Some(first)) = lines.recv() {
        reactor::leave_cores();
        // Ends early if it is told to end; now and then for no reason, which makes a batch smaller.
        std::thread::park_timeout(GATHERED_FOR);
        first.write();
        for line in lines.try_iter() {
            match line {
                Some(line) => line.write(),
                None => return,
            }
        }
    }
}
