//! Ctrl-C during a run: the first one ends the run, whose figures are shown, and a second one ends the program.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};
use user_messages::Failure;
use user_messages::output;

/// Exit code of a program that SIGINT has ended, as shells have it.
const ENDED_BY_SIGINT: i32 = 130;

/// Becomes true when Ctrl-C comes.
pub(super) struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// From now on Ctrl-C does not end the program, but a second one does; `tells`: the first one is answered by a note.
    pub(super) fn catch(tells: bool) -> Result<Self, Failure> {
        let came = Arc::new(AtomicBool::new(false));
        let catch = |came: Arc<AtomicBool>| {
            let runtime = Builder::new_current_thread().enable_io().build()?;
            let mut interrupt = {
                let _runtime = runtime.enter();
                signal(SignalKind::interrupt())?
            };
            // A thread of its own: that of the load has no time to wait for signals.
            let wait = async move {
                let _ = interrupt.recv().await;
                came.store(true, Ordering::Relaxed);
                if tells {
                    output::note("the run ends early; Ctrl-C again ends without its figures");
                }
                let _ = interrupt.recv().await;
                std::process::exit(ENDED_BY_SIGINT);
            };
            std::thread::Builder::new()
                .name("ctrl-c".to_owned())
                .spawn(move || runtime.block_on(wait))
        };
        catch(came.clone()).map_err(|error: std::io::Error| {
            let what = format!("Ctrl-C cannot be waited for: {error}");
            Failure::runtime(what, "raise the limits on open files and threads (ulimit -n, -u)")
        })?;
        Ok(Self(came))
    }

    /// The flag itself, for threads that look at it often.
    pub(super) fn flag(&self) -> Arc<AtomicBool> {
        self.0.clone()
    }

    pub(super) fn came(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
