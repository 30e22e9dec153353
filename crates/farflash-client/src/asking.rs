//! Questions to a cluster's API that no thread of the caller's waits for. The API's client blocks, so each has a thread of
//! its own meanwhile.

use std::future::Future;
use std::sync::Arc;

use io_traits::Spawn;
use reactor::mailbox;

use crate::pending::Completion;
use crate::runtime::{Core, Runtime};
use crate::{Error, Pending};

/// Questions of a process that are under way at a time and that no thread waits for; further ones wait for their turn.
pub(crate) const ASKING_MAX: u64 = 16;

impl Core {
    /// Has another thread do `work`, which waits for an API, when it is its turn.
    pub(crate) async fn aside<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let _turn = self.asking.acquire(1).await;
        self.aside_at_once(work).await
    }

    /// The same without waiting for a turn: for what a thread of the caller's waits for, of which there are as many as
    /// there are such threads.
    pub(crate) async fn aside_at_once<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let (answer, mut answered) = mailbox();
        let thread = std::thread::Builder::new().name("farflash-ask".to_owned());
        let asked = thread.spawn(move || {
            // The receiver is gone if the process ends.
            let _ = answer.send(work());
        });
        asked.map_err(|error| Error::NoThread(Arc::new(error)))?;
        answered.recv().await.unwrap_or(Err(Error::Stopped))
    }
}

/// Begins what `make` makes, on the background thread, which is started if there is none.
pub(crate) fn begin<T, F>(make: impl FnOnce(Runtime, Core) -> F + Send + 'static) -> Pending<T>
where
    T: Send + 'static,
    F: Future<Output = Result<T, Error>> + 'static,
{
    let begun = Runtime::shared().and_then(|runtime| Ok((runtime.claim()?, runtime)));
    let (claim, runtime) = match begun {
        Ok(begun) => begun,
        Err(error) => return Pending::failed(error),
    };
    let (pending, fill) = Pending::new();
    let completion = Completion::new(fill).with_claim(claim);
    let own = runtime.clone();
    // If it cannot be run, the completion is dropped and says so.
    let _ = runtime.run(move |core| {
        let task = make(own, core.clone());
        core.world.spawn(async move { completion.complete(task.await) });
    });
    pending
}
