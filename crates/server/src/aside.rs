//! Work that may wait for a device or a file system, on a thread of its own that is made when the server starts.
//!
//! A device that hangs holds up its thread, also beyond the end of the server: nothing waits for the thread. What comes next
//! waits for it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc;

use process_limits::threads;
use user_messages::Failure;

type Work = Box<dyn FnOnce() + Send>;

/// The thread. It ends when the last clone is dropped and its work is done.
#[derive(Clone)]
pub(super) struct Aside(mpsc::Sender<Work>);

/// The work panicked, and the log has why.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Panicked;

impl Aside {
    pub(super) fn start(name: &str) -> Result<Self, Failure> {
        let (sender, receiver) = mpsc::channel::<Work>();
        let run = move || receiver.into_iter().for_each(|work| work());
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(run);
        thread.map(|_| Self(sender)).map_err(|error| threads::none(&error))
    }

    /// Has the thread do `work`.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Panicked> {
        let (sender, done) = tokio::sync::oneshot::channel();
        // The thread outlives a panic.
        let run = move || match catch_unwind(AssertUnwindSafe(work)) {
            // Nothing waits for it when the server ends.
            Ok(output) => drop(sender.send(output)),
            Err(_) => drop(sender),
        };
        // If there were no thread, the work would be dropped, and `sender` with it.
        let _ = self.0.send(Box::new(run));
        done.await.map_err(|_| Panicked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panic_ends_the_work_and_not_the_thread() {
        let aside = Aside::start("test").expect("a thread");
        assert_eq!(aside.run(|| 1).await, Ok(1));
        assert_eq!(aside.run(|| panic!("on purpose")).await, Err::<(), _>(Panicked));
        assert_eq!(aside.run(|| 2).await, Ok(2));
    }
}
