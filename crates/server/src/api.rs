//! The API, for as long as the server runs.
//!
//! One that fails by a fault of this program is begun again, as other tasks are (`tasks.rs`): without it a server that serves its
//! hosts could be neither asked nor changed. Its port stays open meanwhile, and closes when the server drains.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};

use control::{Guard, Limits};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::service::Volumes;
use super::tasks::Tasks;

/// Resolves when the API has to end.
type Stop = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Serves the API until `stop` is dropped, and drains it then.
pub(super) fn serve(
    listener: TcpListener,
    volumes: Volumes,
    guard: Guard,
    stop: watch::Receiver<()>,
) -> JoinHandle<()> {
    let (tasks, volumes) = (volumes.state().tasks.clone(), Arc::new(volumes));
    keep(&tasks, listener, stop, move |listener, stop| {
        control::serve(listener, volumes.clone(), guard.clone(), Limits::default(), stop)
    })
}

/// Runs what `serve` makes of the listener until it has ended without a fault.
fn keep<F>(
    tasks: &Tasks,
    listener: TcpListener,
    stop: watch::Receiver<()>,
    serve: impl Fn(Arc<TcpListener>, Stop) -> F + Send + 'static,
) -> JoinHandle<()>
where
    F: Future<Output = ()> + Send + 'static,
{
    let kept = Arc::new(Mutex::new(Some(Arc::new(listener))));
    tasks.keep("API", move || {
        let listener = kept.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let (mut stop, kept) = (stop.clone(), kept.clone());
        let stop = async move {
            while stop.changed().await.is_ok() {}
            // The one that is served is dropped before it drains: then none is left.
            kept.lock().unwrap_or_else(PoisonError::into_inner).take();
        };
        let serving = listener.map(|listener| serve(listener, Box::pin(stop)));
        async move {
            if let Some(serving) = serving {
                serving.await;
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use tokio::net::TcpStream;
    use tokio::sync::oneshot;

    use super::*;

    /// Clients that come while the API is down are served once it is begun again; none comes while it drains.
    ///
    /// Method: the first one that serves accepts a connection and panics.
    #[tokio::test]
    async fn an_api_that_fails_is_begun_again_at_its_port() {
        let tasks = Tasks::default();
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let port = listener.local_addr().expect("bound");
        let (stop, stopped) = watch::channel(());
        let (has_failed, (drain, drained)) = (AtomicBool::new(false), oneshot::channel());
        let drained = Mutex::new(Some(drained));
        let api = keep(&tasks, listener, stopped, move |listener, stop| {
            let fails = !has_failed.swap(true, Ordering::Relaxed);
            let drained = drained.lock().expect("no panic").take_if(|_| !fails);
            async move {
                let _client = listener.accept().await.expect("a client");
                assert!(!fails, "on purpose");
                stop.await;
                drop(listener);
                let _ = drained.expect("it fails once").await;
            }
        });
        let mut clients = Vec::new();
        for panics in [1, 1] {
            clients.push(TcpStream::connect(port).await.expect("the port is open"));
            while tasks.panics() < panics {
                tokio::task::yield_now().await;
            }
        }
        assert!(tasks.notices()[0].text.contains("`API` failed 1 time"), "{:?}", tasks.notices());
        drop(stop);
        while TcpStream::connect(port).await.is_ok() {
            tokio::task::yield_now().await;
        }
        assert!(!api.is_finished(), "it drains");
        drain.send(()).expect("it waits");
        api.await.expect("it has ended in good order");
        assert_eq!(tasks.panics(), 1);
    }
}
