//! Decides about each request of a drive: warm-up, measured, slow. Pure logic; times come in.

use crate::latencies::{Latencies, NINES};
use crate::result::Slow;
use crate::timeline::Timeline;

/// One request of so many of the warm-up shows what is usual.
const USUAL_ONE_IN: u64 = 32;
/// Warm-up requests from which on their percentile is the threshold. Below, the largest one is.
const WARM_REQUESTS_MIN: u64 = 2_000;

/// The latency from which on a request is slow.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum SlowerThan {
    /// A fixed one.
    Ns(u64),
    /// The drive's 99.9th percentile in the warm-up.
    WarmUp,
}

/// The end of the measured time.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Until {
    /// A time of the clock.
    Ns(u64),
    /// So many requests, of which none failed.
    Requests(u64),
}

/// The kind of a request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Recorded {
    /// Nothing is to be done.
    Plain,
    /// It shows what is usual.
    Usual,
    /// It is slow.
    Slow,
}

/// Memory for all that is recorded of one drive. Nothing of it is taken, or first touched, while requests are recorded.
#[derive(Clone, Debug, Default)]
pub struct Room {
    warm: Latencies,
    measured: Latencies,
    timeline: Timeline,
}

/// Records the requests of one drive.
#[derive(Clone, Debug)]
pub struct Recorder {
    warm_until_ns: u64,
    until: Until,
    slower_than: SlowerThan,
    warm: Latencies,
    warm_count: u64,
    /// The threshold is known once the warm-up is over.
    is_measuring: bool,
    last_end_ns: u64,
    /// Latencies of the measured time.
    pub latencies: Latencies,
    /// The same over time.
    pub timeline: Timeline,
    /// Slow requests of the measured time.
    pub slow: Slow,
    /// Reads of the measured time that failed.
    pub errors: u64,
}

impl Recorder {
    /// A recorder whose warm-up ends at `warm_until_ns`.
    #[must_use]
    pub fn new(room: Room, warm_until_ns: u64, until: Until, slower_than: SlowerThan) -> Self {
        let Room { warm, measured, timeline } = room;
        Self {
            warm_until_ns,
            until,
            slower_than,
            warm,
            warm_count: 0,
            is_measuring: false,
            last_end_ns: warm_until_ns,
            latencies: measured,
            timeline,
            slow: Slow { threshold_ns: u64::MAX, count: 0 },
            errors: 0,
        }
    }

    /// Records a request that succeeded.
    #[inline]
    pub fn on_request(&mut self, begin_ns: u64, end_ns: u64) -> Recorded {
        let ns = end_ns.saturating_sub(begin_ns);
        if begin_ns < self.warm_until_ns {
            self.warm.record(ns);
            self.warm_count += 1;
            let is_sample = self.warm_count.is_multiple_of(USUAL_ONE_IN);
            return if is_sample { Recorded::Usual } else { Recorded::Plain };
        }
        if !self.is_measuring {
            self.is_measuring = true;
            self.slow.threshold_ns = self.threshold();
        }
        self.last_end_ns = end_ns;
        self.latencies.record(ns);
        self.timeline.record(begin_ns - self.warm_until_ns, ns);
        if ns > self.slow.threshold_ns {
            self.slow.count += 1;
            return Recorded::Slow;
        }
        Recorded::Plain
    }

    /// Records a read that failed. It has no latency: what a drive refuses at once would flatter it.
    pub fn on_error(&mut self, begin_ns: u64) {
        self.errors += u64::from(begin_ns >= self.warm_until_ns);
    }

    /// Returns true if the measured time is over.
    #[inline]
    #[must_use]
    pub fn is_over(&self, now_ns: u64) -> bool {
        match self.until {
            Until::Ns(until_ns) => now_ns >= until_ns,
            Until::Requests(count) => self.latencies.count() >= count,
        }
    }

    /// Length of the measured time.
    #[must_use]
    pub fn measured_ns(&self) -> u64 {
        self.last_end_ns.saturating_sub(self.warm_until_ns)
    }

    fn threshold(&self) -> u64 {
        match self.slower_than {
            SlowerThan::Ns(ns) => ns,
            SlowerThan::WarmUp if self.warm.count() >= WARM_REQUESTS_MIN => {
                self.warm.estimate(NINES[1]).unwrap_or(u64::MAX)
            }
            SlowerThan::WarmUp => self.warm.max_ns().unwrap_or(u64::MAX),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_warm_up_gives_the_threshold_and_is_not_measured() {
        let warm_until = 1_000_000_000;
        let mut recorder =
            Recorder::new(Room::default(), warm_until, Until::Requests(3), SlowerThan::WarmUp);
        let usual = (0..10_000)
            .filter(|n| recorder.on_request(*n, n + 1000 + n) == Recorded::Usual)
            .count();
        assert_eq!(usual, 10_000 / 32);
        assert_eq!(recorder.on_request(warm_until, warm_until + 5000), Recorded::Plain);
        let threshold = recorder.slow.threshold_ns;
        assert!((10_980..11_000).contains(&threshold), "{threshold}");
        assert_eq!(recorder.on_request(warm_until + 6000, warm_until + 20_000), Recorded::Slow);
        recorder.on_error(warm_until + 20_000);
        assert!(!recorder.is_over(u64::MAX));
        assert_eq!(recorder.on_request(warm_until + 30_000, warm_until + 31_000), Recorded::Plain);
        assert!(recorder.is_over(0));
        assert_eq!((recorder.latencies.count(), recorder.slow.count), (3, 1));
        assert_eq!((recorder.errors, recorder.measured_ns()), (1, 31_000));
    }

    #[test]
    fn a_fixed_threshold_needs_no_warm_up() {
        let mut recorder = Recorder::new(Room::default(), 0, Until::Ns(50), SlowerThan::Ns(10));
        assert_eq!(recorder.on_request(0, 10), Recorded::Plain);
        assert_eq!(recorder.on_request(20, 31), Recorded::Slow);
        assert!(!recorder.is_over(49) && recorder.is_over(50));
        // Without one, nothing is slow: there is nothing to tell it by.
        let mut recorder = Recorder::new(Room::default(), 0, Until::Ns(50), SlowerThan::WarmUp);
        assert_eq!(recorder.on_request(0, 1_000_000), Recorded::Plain);
    }

    /// Page faults of this thread so far that took no drive.
    fn minor_faults() -> u64 {
        let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
        let (_, behind_name) = stat.rsplit_once(") ").unwrap();
        behind_name.split(' ').nth(7).unwrap().parse().unwrap()
    }

    /// Method: latencies that fall into every page of both histograms, and a time that has the timeline joined several times.
    #[test]
    fn recording_waits_for_no_memory() {
        const STEPS: u64 = 40_000;
        let warm_until = 1_000_000_000_000;
        let mut recorder =
            Recorder::new(Room::default(), warm_until, Until::Ns(u64::MAX), SlowerThan::WarmUp);
        let ns = |step: u64| 1.0007f64.powf(step as f64) as u64;
        let mut count_faults = |begin_ns: u64, each_ns: u64| {
            let before = minor_faults();
            for step in 0..STEPS {
                let begin_ns = begin_ns + step * each_ns;
                recorder.on_request(begin_ns, begin_ns + ns(step));
            }
            minor_faults() - before
        };
        let faults = [count_faults(0, 0), count_faults(warm_until, 1_000_000)];
        // A histogram has some sixty pages; of the program's own a few are new.
        assert!(faults[0] + faults[1] < 10, "{faults:?}");
        assert_eq!(recorder.latencies.count(), STEPS);
        assert!(recorder.timeline.slice_ns() > 100_000_000);
    }
}
