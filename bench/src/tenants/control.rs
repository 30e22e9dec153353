//! What hosts that connect take of the client's CPU, without anybody who connects.
//!
//! Those hosts share a CPU with the load. So that the load beside them says what they cost the server, it is
//! compared with the load beside this: a thread of the same kind and priority, which sleeps and wakes by the
//! same means and as often, and is busy for as long. It asks nobody for anything, so what the load loses to it
//! is the client's loss. It touches less memory than a host does; what that costs the load still counts
//! against the server.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Result, anyhow, ensure};
use io_traits::Clock;
use reactor::{CoreThread, Handle};
use units::Duration;

use super::thread_use::{ThreadUse, beside_load};

/// Shortest sleep: less than the server takes to answer, under load.
const PAUSE_MIN: Duration = Duration::from_micros(20);

/// A thread that wakes and is busy until it is stopped.
pub(super) struct Control {
    stop: Arc<AtomicBool>,
    thread: CoreThread<Result<ThreadUse>>,
}

impl Control {
    /// From now on a thread does `as_much`.
    pub(super) fn start(as_much: ThreadUse) -> Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopping = stop.clone();
        let thread = reactor::spawn_thread(beside_load("control"), move |handle| {
            drive(handle, as_much, stopping)
        })?;
        Ok(Self { stop, thread })
    }

    /// Ends it; what it did.
    pub(super) fn stop(self) -> Result<ThreadUse> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| anyhow!("the control's thread panicked"))?
    }
}

async fn drive(handle: Handle, as_much: ThreadUse, stop: Arc<AtomicBool>) -> Result<ThreadUse> {
    ensure!(as_much.wakes_per_second > 0.0, "hosts that connected never slept");
    let meter = ThreadUse::meter()?;
    let (begin, mut wake_number) = (handle.precise_now(), 0_u32);
    while !stop.load(Ordering::Relaxed) {
        wake_number += 1;
        let due =
            begin + Duration::from_secs_f64(f64::from(wake_number) / as_much.wakes_per_second);
        // Whoever is late sleeps all the same, as a host does until it is answered.
        handle.sleep_until(due.max(handle.precise_now() + PAUSE_MIN)).await;
        // What waking took is part of it.
        let elapsed = handle.precise_now().since(begin).as_secs_f64();
        while meter.cpu_seconds() < as_much.cpu_share * elapsed {
            std::hint::spin_loop();
        }
    }
    meter.read()
}
