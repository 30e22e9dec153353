//! The real world, tried out on this host: loopback, temporary files, threads.

use std::future::Future;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use io_traits::Clock;

use crate::{CoreConfig, Handle, IdlePolicy, run_on_current_thread};

mod core;
mod net;
mod storage;

/// Longer than anything here takes, so that a hang is a failure.
const PATIENCE: Duration = Duration::from_secs(60);

fn run<F, Fut, T>(main: F) -> T
where
    F: FnOnce(Handle) -> Fut,
    Fut: Future<Output = T> + 'static,
    T: 'static,
{
    run_with(IdlePolicy::default(), main)
}

/// Runs `main` on a core that polls without end, on one that sleeps at once, and on one between:
/// sockets are served differently.
fn run_every_way<F, Fut>(main: F)
where
    F: Fn(Handle) -> Fut,
    Fut: Future<Output = ()> + 'static,
{
    for idle in [IdlePolicy::Spin, IdlePolicy::Sleep, IdlePolicy::default()] {
        run_with(idle, &main);
    }
}

fn run_with<F, Fut, T>(idle: IdlePolicy, main: F) -> T
where
    F: FnOnce(Handle) -> Fut,
    Fut: Future<Output = T> + 'static,
    T: 'static,
{
    let config = CoreConfig { idle, ..CoreConfig::default() };
    let guarded = |handle: Handle| {
        let main = main(handle.clone());
        async move {
            let mut main = std::pin::pin!(main);
            let mut alarm = std::pin::pin!(handle.sleep_until(handle.now() + PATIENCE));
            std::future::poll_fn(|context| {
                assert!(alarm.as_mut().poll(context).is_pending(), "a test hangs");
                main.as_mut().poll(context)
            })
            .await
        }
    };
    run_on_current_thread(&config, guarded).expect("this host has io_uring")
}

fn loopback() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, 0).into()
}

fn loopback_v6() -> SocketAddr {
    (Ipv6Addr::LOCALHOST, 0).into()
}

async fn pause(handle: &Handle, duration: Duration) {
    handle.sleep_until(handle.precise_now() + duration).await;
}

/// Polls `future` once, and drops it if it has to wait.
async fn poll_once_and_drop<F: Future>(future: F) -> Option<F::Output> {
    let mut future = Box::pin(future);
    std::future::poll_fn(|context| match future.as_mut().poll(context) {
        std::task::Poll::Ready(output) => std::task::Poll::Ready(Some(output)),
        std::task::Poll::Pending => std::task::Poll::Ready(None),
    })
    .await
}
