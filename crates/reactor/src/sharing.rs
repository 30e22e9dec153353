//! Sharing of a core's CPU with other threads: when the core yields it.
//!
//! - CPU-SHARING-1: Flushes, requests that a file system cannot complete at once, and the ends of writes to files are work of
//!   kernel threads. Each runs on the CPU of the thread that asked, or on the one that the device interrupts,
//!   whichever core that belongs to. A kernel thread that is woken on the CPU of a polling thread may wait for a
//!   part of a millisecond, several times as long as a drive takes for a write: above all where this process has a
//!   raised priority. So a core that polls yields the CPU between its polls, and a core that waits for such threads
//!   yields once a turn: that returns at once if no thread wants the CPU, and soon if a kernel thread does.
//! - CPU-SHARING-2: To yield to a program that wants all of the CPU costs a slice of some milliseconds. Beside one, a core
//!   yields ever more seldom, and sleeps where it would poll. The other has the CPU then, and may be what the next request
//!   waits for; a thread that used little of its CPU soon has it back.
//! - CPU-SHARING-3: A yield also takes long where the hypervisor gave the CPU to another machine. That is no reason to sleep: only
//!   a yield counts in which the thread waited for most of the time.

use std::time::Duration;

use units::Instant;

/// A yield that takes longer was to no thread of the kernel: their turns take some 10 µs.
const LONG: Duration = Duration::from_millis(1);
/// Time that a core keeps its CPU after a long yield: longer each time, up to a limit.
const KEEP_MIN: Duration = Duration::from_millis(4);
const KEEP_MAX: Duration = Duration::from_secs(4);

/// The state of sharing the core's CPU with other threads.
#[derive(Debug)]
pub(crate) struct Sharing {
    /// Until when it keeps its CPU (CPU-SHARING-2).
    keeps_until: Instant,
    /// For how long it has done so last.
    keep: Duration,
}

impl Sharing {
    pub(crate) fn new(now: Instant) -> Self {
        Self { keeps_until: now, keep: Duration::ZERO }
    }

    /// Returns true if a core that has reason to may yield its CPU: no other program wants that, as far as is
    /// known.
    pub(crate) fn may_yield(&self, now: Instant) -> bool {
        now >= self.keeps_until
    }

    /// Returns true if the core should sleep rather than poll (CPU-SHARING-2).
    pub(crate) fn should_sleep(&self, now: Instant) -> bool {
        !self.may_yield(now)
    }

    /// The core has yielded at some time after `start`, and has its CPU at `end`. `waited` says for how long it waited
    /// while other threads had that, if it is known.
    pub(crate) fn on_yielded(
        &mut self,
        start: Instant,
        end: Instant,
        waited: impl FnOnce() -> Option<Duration>,
    ) {
        let took = end.since(start);
        // CPU-SHARING-3
        if took <= LONG || waited().is_some_and(|waited| waited < took / 2) {
            return;
        }
        // A short yield proves nothing: the other may have used up its share. A time without a long one does.
        let is_alone = start.since(self.keeps_until) > KEEP_MAX;
        let doubled = if is_alone { KEEP_MIN } else { self.keep * 2 };
        self.keep = doubled.clamp(KEEP_MIN, KEEP_MAX);
        self.keeps_until = end + self.keep;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLICE: Duration = Duration::from_millis(4);

    fn after_ms(ms: u64) -> Instant {
        Instant(1_000_000_000) + Duration::from_millis(ms)
    }

    /// CPU-SHARING-1.
    #[test]
    fn a_core_beside_kernel_threads_goes_on_yielding() {
        let mut sharing = Sharing::new(after_ms(0));
        for ms in 0..100 {
            assert!(sharing.may_yield(after_ms(ms)) && !sharing.should_sleep(after_ms(ms)));
            let took = Duration::from_micros(50);
            sharing.on_yielded(after_ms(ms), after_ms(ms) + took, || Some(took));
        }
    }

    /// CPU-SHARING-2.
    #[test]
    fn a_core_beside_another_program_yields_ever_more_seldom() {
        for is_known in [false, true] {
            let mut sharing = Sharing::new(after_ms(0));
            let (mut now, mut yields) = (after_ms(0), 0);
            while now < after_ms(60_000) {
                now = now + Duration::from_micros(100);
                if sharing.may_yield(now) {
                    // Each second one returns at once.
                    let took = if yields % 2 == 0 { SLICE } else { Duration::ZERO };
                    sharing.on_yielded(now, now + took, || is_known.then_some(took));
                    (now, yields) = (now + took, yields + 1);
                } else {
                    assert!(sharing.should_sleep(now));
                }
            }
            assert!((20..60).contains(&yields), "{yields} in a minute");
            let alone = now + 3 * KEEP_MAX;
            assert!(sharing.may_yield(alone));
            sharing.on_yielded(alone, alone + SLICE, || is_known.then_some(SLICE));
            assert!(sharing.may_yield(alone + SLICE + KEEP_MIN), "what was is forgotten");
        }
    }

    /// CPU-SHARING-3.
    #[test]
    fn a_machine_that_stood_still_is_no_program() {
        let mut sharing = Sharing::new(after_ms(0));
        for ms in 0..100 {
            let (start, end) = (after_ms(10 * ms), after_ms(10 * ms) + SLICE);
            sharing.on_yielded(start, end, || Some(Duration::from_micros(300)));
            assert!(sharing.may_yield(end) && !sharing.should_sleep(end));
        }
    }
}
