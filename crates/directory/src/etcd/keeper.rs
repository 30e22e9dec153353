//! The thread that keeps a host's session (SESSION-4).
//!
//! Leases are short, and what else the control side does may take long at a stretch: a list of ten thousand volumes is
//! encoded at once, for as many as ask for it. On one thread with that a lease would end for no other reason.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use cluster::Node;
use tokio::runtime::Builder;
use tokio::sync::oneshot;

use super::Machine;
use crate::DirectoryError;

/// Longer than a server runs.
const KEPT_FOR: Duration = Duration::from_secs(10 * 365 * 86_400);

/// The thread. It ends when this is dropped.
pub(super) struct Keeper {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Keeper {
    /// Begins the first session; see [`Node::join`].
    pub(super) async fn start(node: Arc<Node<Machine>>) -> Result<Self, DirectoryError> {
        let (stop, stopped) = oneshot::channel::<()>();
        let (answer, joined) = oneshot::channel();
        let runtime = Builder::new_current_thread()
            .enable_all()
            .thread_name("names")
            .thread_keep_alive(KEPT_FOR)
            .build()
            .map_err(|error| no_thread(&error))?;
        let keep = async move {
            match node.join().await {
                Ok(first) => {
                    // The caller may have gone, which is seen below.
                    let _ = answer.send(Ok(()));
                    Box::pin(node.keep(first)).await;
                }
                Err(error) => drop(answer.send(Err(error))),
            }
        };
        let run = move || {
            // The thread that looks up names: the runtime would panic if it had none and could make none.
            runtime.spawn_blocking(|| ());
            let kept = catch_unwind(AssertUnwindSafe(|| {
                runtime.block_on(async {
                    tokio::select! {
                        biased;
                        _ = stopped => {}
                        () = keep => {}
                    }
                });
            }));
            if kept.is_err() {
                tracing::error!(
                    "the session with the directory has ended by a fault of this program: restart the server"
                );
            }
            // A name that is being looked up is nothing to wait for.
            runtime.shutdown_background();
        };
        let thread = std::thread::Builder::new().name("directory".to_owned()).spawn(run);
        let keeper =
            Self { stop: Some(stop), thread: Some(thread.map_err(|error| no_thread(&error))?) };
        joined.await.map_err(|_| no_thread(&io::ErrorKind::Interrupted.into()))??;
        Ok(keeper)
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        drop(self.stop.take());
        // Nothing is said in this host's name any more when this returns.
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn no_thread(error: &io::Error) -> DirectoryError {
    DirectoryError::Unreachable { reason: format!("its session has no thread: {error}") }
}
