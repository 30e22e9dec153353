//! The distance between the server's CPU and the client's: the time of a byte from one to the other and back.
//!
//! A virtual machine is not told where its CPUs are. Its host puts them next to each other, where they share a cache, or
//! far apart, and changes that within seconds; what the two programs hand each other then takes several times as long.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::Instant;

use anyhow::{Result, anyhow, ensure};

use crate::cpus;
use crate::null::pin;

/// Trips there and back that are timed together.
const TRIPS: u32 = 2_000;
/// Times that this is done; the shortest is the distance, the others were disturbed.
const TIMES: u32 = 5;

/// Nanoseconds that one trip there and back takes; `None` if both are one CPU.
pub(crate) fn round_trip_ns() -> Result<Option<f64>> {
    let (server, client) = (cpus::server(), cpus::client());
    if server == client {
        return Ok(None);
    }
    let (start, turn) = (Start::default(), AtomicU32::new(0));
    // Threads of their own: what these start stays where it is.
    thread::scope(|scope| {
        let there = scope.spawn(|| {
            start.on(client)?;
            (0..TRIPS * TIMES).for_each(|trip| pass_on(&turn, 2 * trip + 1));
            anyhow::Ok(())
        });
        let here = scope.spawn(|| {
            start.on(server)?;
            let taken = (0..TIMES).map(|time| {
                let begin = Instant::now();
                (time * TRIPS..(time + 1) * TRIPS).for_each(|trip| pass_on(&turn, 2 * trip));
                begin.elapsed().as_secs_f64() * 1e9 / f64::from(TRIPS)
            });
            anyhow::Ok(taken.fold(f64::INFINITY, f64::min))
        });
        let panicked = |_| anyhow!("a thread that measures how far apart CPUs are panicked");
        there.join().map_err(panicked)??;
        Ok(Some(here.join().map_err(panicked)??))
    })
}

/// Two threads that begin together, or not at all: alone either would wait for ever.
struct Start {
    both: Barrier,
    failed: AtomicBool,
}

impl Default for Start {
    fn default() -> Self {
        Self { both: Barrier::new(2), failed: AtomicBool::new(false) }
    }
}

impl Start {
    /// Goes to `cpu`, and returns when the other thread is where it should be, too.
    fn on(&self, cpu: usize) -> Result<()> {
        let pinned = pin(cpu);
        self.failed.fetch_or(pinned.is_err(), Ordering::Relaxed);
        self.both.wait();
        pinned?;
        ensure!(!self.failed.load(Ordering::Relaxed), "the other thread cannot go to its CPU");
        Ok(())
    }
}

/// Waits until it is turn `mine`, and makes it the next one.
fn pass_on(turn: &AtomicU32, mine: u32) {
    while turn.load(Ordering::Acquire) != mine {
        std::hint::spin_loop();
    }
    turn.store(mine + 1, Ordering::Release);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two threads of this machine. Between two CPUs a trip takes time, and not as long as a system call.
    #[test]
    fn two_cpus_are_some_way_apart() {
        let round_trip_ns = round_trip_ns().expect("CPUs that this process may use");
        assert_eq!(round_trip_ns.is_none(), cpus::server() == cpus::client());
        assert!(round_trip_ns.is_none_or(|ns| ns > 1.0 && ns.is_finite()), "{round_trip_ns:?}");
    }

    /// One thread that cannot go where it should: neither begins.
    #[test]
    fn both_begin_or_neither() {
        let start = Start::default();
        let begun = thread::scope(|scope| {
            let nowhere = scope.spawn(|| start.on(1023).is_ok());
            let somewhere = scope.spawn(|| start.on(cpus::server()).is_ok());
            [nowhere, somewhere].map(|thread| thread.join().expect("no panic"))
        });
        assert_eq!(begun, [false, false]);
    }
}
