//! Latencies and counts as they come in.

use hdrhistogram::Histogram;
use units::{BLOCK_SIZE, Instant};

use crate::outcome::{Interval, Latency, Tally};

/// Longer latencies count as this.
const LATENCY_NS_MAX: u64 = 1_000_000_000_000;
/// Relative error of a recorded latency: one in a thousand.
const DIGITS: u8 = 3;
/// Points of a latency curve for each nine, and nines.
const CURVE_STEPS_PER_NINE: u32 = 5;
const CURVE_NINES: u32 = 6;

fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LATENCY_NS_MAX, DIGITS)
        .expect("the bounds are constant and valid")
}

/// Direction of a request's data.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Kind {
    /// From the target.
    Read,
    /// To the target.
    Write,
}

/// Requests of one kind: those of this interval apart, so that each is recorded once.
struct Lane {
    current: Histogram<u64>,
    current_bytes: u64,
    done: Histogram<u64>,
    done_bytes: u64,
}

impl Lane {
    fn new() -> Self {
        Self { current: histogram(), current_bytes: 0, done: histogram(), done_bytes: 0 }
    }

    fn roll(&mut self) {
        self.done_bytes += std::mem::take(&mut self.current_bytes);
        if !self.current.is_empty() {
            self.done.add(&self.current).expect("equal bounds");
            self.current.reset();
        }
    }
}

/// Measures a run.
pub(crate) struct Meter {
    start: Instant,
    interval_start: Instant,
    last_end: Instant,
    read: Lane,
    write: Lane,
    errors: u64,
    interval_errors: u64,
    intervals: Vec<Interval>,
}

impl Meter {
    pub(crate) fn new(start: Instant) -> Self {
        Self {
            start,
            interval_start: start,
            last_end: start,
            read: Lane::new(),
            write: Lane::new(),
            errors: 0,
            interval_errors: 0,
            intervals: Vec::new(),
        }
    }

    pub(crate) fn done(&mut self, kind: Kind, blocks: u64, begin: Instant, end: Instant) {
        let lane = match kind {
            Kind::Read => &mut self.read,
            Kind::Write => &mut self.write,
        };
        lane.current_bytes += blocks * BLOCK_SIZE as u64;
        lane.current.saturating_record(end.0.saturating_sub(begin.0).max(1));
        self.last_end = end;
    }

    pub(crate) fn failed(&mut self, end: Instant) {
        self.errors += 1;
        self.interval_errors += 1;
        self.last_end = end;
    }

    pub(crate) fn errors(&self) -> u64 {
        self.errors
    }

    /// Ends the interval.
    pub(crate) fn roll(&mut self, now: Instant) -> Interval {
        let (reads, writes) = (self.read.current.len(), self.write.current.len());
        let (p50_ns, p99_ns, max_ns) = if writes == 0 {
            summary(&self.read.current)
        } else if reads == 0 {
            summary(&self.write.current)
        } else {
            let mut both = self.read.current.clone();
            both.add(&self.write.current).expect("equal bounds");
            summary(&both)
        };
        let interval = Interval {
            end_seconds: now.since(self.start).as_secs_f64(),
            seconds: now.since(self.interval_start).as_secs_f64(),
            reads,
            writes,
            bytes: self.read.current_bytes + self.write.current_bytes,
            errors: std::mem::take(&mut self.interval_errors),
            p50_ns,
            p99_ns,
            max_ns,
        };
        self.read.roll();
        self.write.roll();
        self.interval_start = now;
        self.intervals.push(interval);
        interval
    }

    pub(crate) fn seconds(&self) -> f64 {
        self.last_end.since(self.start).as_secs_f64()
    }

    pub(crate) fn tally(&self, kind: Kind) -> Tally {
        let lane = match kind {
            Kind::Read => &self.read,
            Kind::Write => &self.write,
        };
        let (done, bytes) = (&lane.done, lane.done_bytes);
        let (requests, seconds) = (done.len(), self.seconds().max(1e-9));
        Tally {
            requests,
            bytes,
            iops: requests as f64 / seconds,
            bytes_per_second: bytes as f64 / seconds,
            latency: (requests > 0).then(|| latency(done)),
        }
    }

    pub(crate) fn take_intervals(&mut self) -> Vec<Interval> {
        std::mem::take(&mut self.intervals)
    }
}

fn summary(histogram: &Histogram<u64>) -> (u64, u64, u64) {
    let at = |quantile| histogram.value_at_quantile(quantile);
    if histogram.is_empty() { (0, 0, 0) } else { (at(0.5), at(0.99), histogram.max()) }
}

fn latency(histogram: &Histogram<u64>) -> Latency {
    let at = |quantile| histogram.value_at_quantile(quantile);
    let curve = (0..=CURVE_NINES * CURVE_STEPS_PER_NINE)
        .map(|step| {
            let nines = f64::from(step) / f64::from(CURVE_STEPS_PER_NINE);
            let quantile = 1.0 - 10f64.powf(-nines);
            (quantile, at(quantile) as f64)
        })
        .collect();
    Latency {
        mean_ns: histogram.mean(),
        min_ns: histogram.min(),
        max_ns: histogram.max(),
        p50_ns: at(0.5),
        p90_ns: at(0.9),
        p99_ns: at(0.99),
        p99_9_ns: at(0.999),
        p99_99_ns: at(0.9999),
        p99_999_ns: at(0.99999),
        p99_9999_ns: at(0.999_999),
        curve,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_add_up_to_the_total() {
        let mut meter = Meter::new(Instant(1000));
        for index in 0..100 {
            meter.done(Kind::Read, 1, Instant(1000), Instant(2000 + index));
        }
        assert_eq!(meter.roll(Instant(1_000_001_000)).reads, 100);
        meter.done(Kind::Write, 3, Instant(5000), Instant(2_000_001_000));
        meter.failed(Instant(2_000_001_000));
        let second = meter.roll(Instant(2_000_001_000));
        assert_eq!((second.reads, second.writes, second.errors, second.seconds), (0, 1, 1, 1.0));
        let read = meter.tally(Kind::Read);
        let latency = read.latency.expect("reads");
        assert_eq!((read.requests, latency.min_ns), (100, 1000));
        assert!((1098..=1100).contains(&latency.p99_9999_ns), "{latency:?}");
        let write = meter.tally(Kind::Write);
        assert_eq!((write.requests, write.bytes, second.bytes), (1, 3 * 4096, 3 * 4096));
        assert_eq!(meter.seconds(), 2.0);
    }
}
