//! The bound of what is under way: requests, and bytes of memory for their data.
//!
//! Threads that read requests from the kernel wait here, and with them what is in the kernel. Requests leave the
//! window in callbacks of the client, which never wait, so that a full window always empties.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// The bounds of a file.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Limits {
    /// Requests that are under way at a time.
    pub requests: usize,
    /// Bytes of their data. One request is let in whatever it takes, if it is alone.
    pub bytes: usize,
}

impl Limits {
    /// Returns true if a request with so many bytes of data has to wait.
    fn are_reached(self, used: &Used, bytes: usize) -> bool {
        let outstanding = used.progress.outstanding;
        let exceeds = used.bytes.saturating_add(bytes) > self.bytes;
        outstanding >= self.requests.max(1) || (exceeds && outstanding > 0)
    }
}

/// Counts of requests, from which a caller with a clock sees that nothing is answered.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Progress {
    /// Requests under way.
    pub outstanding: usize,
    /// Requests that have ended.
    pub ended: u64,
}

#[derive(Default)]
struct Used {
    progress: Progress,
    bytes: usize,
    /// Threads that wait.
    waiting: usize,
}

pub(crate) struct Window {
    limits: Limits,
    used: Mutex<Used>,
    freed: Condvar,
}

impl Window {
    pub(crate) fn new(limits: Limits) -> Arc<Self> {
        Arc::new(Self { limits, used: Mutex::default(), freed: Condvar::new() })
    }

    /// Waits until a request with so many bytes of data may start.
    pub(crate) fn enter(self: &Arc<Self>, bytes: usize) -> Permit {
        let mut used = self.lock();
        while self.limits.are_reached(&used, bytes) {
            used.waiting += 1;
            used = self.freed.wait(used).unwrap_or_else(PoisonError::into_inner);
            used.waiting -= 1;
        }
        used.progress.outstanding += 1;
        used.bytes += bytes;
        Permit { window: self.clone(), bytes }
    }

    pub(crate) fn progress(&self) -> Progress {
        self.lock().progress
    }

    fn lock(&self) -> MutexGuard<'_, Used> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The place of a request in the window, which is given back when this is dropped.
pub(crate) struct Permit {
    window: Arc<Window>,
    bytes: usize,
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut used = self.window.lock();
        used.progress.outstanding -= 1;
        used.progress.ended += 1;
        used.bytes -= self.bytes;
        let is_waited_for = used.waiting > 0;
        drop(used);
        // A system call, also where no thread waits.
        if is_waited_for {
            self.window.freed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// Method: a thread that enters a full window reports when it is in; the main one lets a request go first.
    fn waits_for(limits: Limits, held: usize, wanted: usize) {
        let window = Window::new(limits);
        let first = window.enter(held);
        let (sender, entered) = mpsc::channel();
        let own = window.clone();
        let waiting = std::thread::spawn(move || {
            let permit = own.enter(wanted);
            sender.send(own.progress()).expect("it is listened to");
            drop(permit);
        });
        assert_eq!(window.progress(), Progress { outstanding: 1, ended: 0 });
        assert!(entered.try_recv().is_err());
        drop(first);
        assert_eq!(entered.recv(), Ok(Progress { outstanding: 1, ended: 1 }));
        waiting.join().expect("no panic");
        assert_eq!(window.progress(), Progress { outstanding: 0, ended: 2 });
    }

    #[test]
    fn requests_beyond_either_bound_wait() {
        waits_for(Limits { requests: 1, bytes: 100 }, 10, 10);
        waits_for(Limits { requests: 9, bytes: 100 }, 60, 60);
    }

    #[test]
    fn either_bound_is_kept_to_the_byte() {
        let limits = Limits { requests: 3, bytes: 100 };
        let reached = |outstanding: usize, held: usize, bytes: usize| {
            let progress = Progress { outstanding, ended: 0 };
            limits.are_reached(&Used { progress, bytes: held, waiting: 0 }, bytes)
        };
        assert_eq!([reached(2, 0, 0), reached(3, 0, 0)], [false, true]);
        assert_eq!([reached(1, 60, 40), reached(1, 60, 41)], [false, true]);
    }

    #[test]
    fn a_request_larger_than_the_memory_goes_alone() {
        let window = Window::new(Limits { requests: 9, bytes: 100 });
        drop(window.enter(1000));
        assert_eq!(window.progress().ended, 1);
    }
}
