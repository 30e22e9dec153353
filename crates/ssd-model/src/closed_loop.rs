//! Measures a model in its own time: a number of requests is always outstanding.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use hdrhistogram::Histogram;
use units::{Duration, Instant, Pba, PbaRange};

use crate::Model;
use random::Rng;

/// Longer latencies count as this.
const LATENCY_NS_MAX: u64 = 1_000_000_000_000;
/// Significant digits of a recorded latency.
const DIGITS: u8 = 3;

/// Distribution of requests over the blocks.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Pattern {
    /// Anywhere, at multiples of the request's size.
    Random,
    /// One behind the other, and from the start again at the end.
    Sequential,
}

/// The load of a client.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Load {
    /// Requests outstanding at any time; at least one.
    pub depth: u32,
    /// Share of reads among the requests, 0 to 1.
    pub read_share: f64,
    /// Blocks of a request; at least one.
    pub request_blocks: u64,
    /// Blocks of the drive that the client uses, from its start; at least one request.
    pub blocks: u64,
    /// Distribution of requests over the blocks.
    pub pattern: Pattern,
    /// Decides over addresses and kinds.
    pub seed: u64,
}

/// Latencies of one kind of request.
#[derive(Clone, Debug)]
pub struct Latencies {
    histogram: Histogram<u64>,
}

/// Measurements of a client.
#[derive(Clone, Debug)]
pub struct Measured {
    /// Latencies of the reads that ended within the time of measuring.
    pub reads: Latencies,
    /// Latencies of the writes that did.
    pub writes: Latencies,
    /// The time of measuring.
    pub elapsed: Duration,
    /// When it ended, for a load that follows.
    pub end: Instant,
}

impl Latencies {
    fn new() -> Self {
        let histogram = Histogram::new_with_bounds(1, LATENCY_NS_MAX, DIGITS);
        Self { histogram: histogram.expect("the bounds are constant and valid") }
    }

    /// Number of requests.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.histogram.len()
    }

    /// Their mean latency; zero if there are none.
    #[must_use]
    pub fn mean(&self) -> Duration {
        Duration::from_nanos(self.histogram.mean() as u64)
    }

    /// The latency that the share `quantile` of them did not exceed.
    #[must_use]
    pub fn quantile(&self, quantile: f64) -> Duration {
        Duration::from_nanos(self.histogram.value_at_quantile(quantile))
    }

    /// The longest.
    #[must_use]
    pub fn max(&self) -> Duration {
        Duration::from_nanos(self.histogram.max())
    }
}

impl Measured {
    /// Requests of both kinds.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.reads.count() + self.writes.count()
    }

    /// Requests of both kinds in a second.
    #[must_use]
    pub fn rate(&self) -> f64 {
        self.count() as f64 / self.elapsed.as_secs_f64()
    }

    /// Reads in a second.
    #[must_use]
    pub fn read_rate(&self) -> f64 {
        self.reads.count() as f64 / self.elapsed.as_secs_f64()
    }

    /// Writes in a second.
    #[must_use]
    pub fn write_rate(&self) -> f64 {
        self.writes.count() as f64 / self.elapsed.as_secs_f64()
    }

    /// Mean latency of all requests.
    #[must_use]
    pub fn mean(&self) -> Duration {
        let (reads, writes) = (self.reads.count() as f64, self.writes.count() as f64);
        let sum =
            reads * self.reads.mean().as_secs_f64() + writes * self.writes.mean().as_secs_f64();
        Duration::from_secs_f64(sum / (reads + writes).max(1.0))
    }

    /// The latencies of both kinds in one.
    #[must_use]
    pub fn all(&self) -> Latencies {
        let mut all = self.reads.clone();
        all.histogram.add(&self.writes.histogram).expect("equal bounds");
        all
    }
}

/// A request that is under way.
#[derive(Clone, Copy, Eq, Ord, PartialEq, PartialOrd)]
struct Outstanding {
    done: Instant,
    issued: Instant,
    is_read: bool,
}

struct Client<'a> {
    model: &'a mut Model,
    load: Load,
    rng: Rng,
    cursor: u64,
}

impl Client<'_> {
    fn issue(&mut self, now: Instant) -> Reverse<Outstanding> {
        let places = (self.load.blocks / self.load.request_blocks).max(1);
        let place = match self.load.pattern {
            Pattern::Random => self.rng.below(places),
            Pattern::Sequential => {
                self.cursor = (self.cursor + 1) % places;
                self.cursor
            }
        };
        let range = PbaRange::new(Pba(place * self.load.request_blocks), self.load.request_blocks);
        let is_read = self.rng.unit() < self.load.read_share;
        let done = if is_read { self.model.read(now, range) } else { self.model.write(now, range) };
        Reverse(Outstanding { done, issued: now, is_read })
    }
}

/// Drives `model` with `load` from `start` on: for `warm_up`, then for `measure`, of which the
/// measurement is.
pub fn closed_loop(
    model: &mut Model,
    load: Load,
    start: Instant,
    warm_up: Duration,
    measure: Duration,
) -> Measured {
    let mut client = Client { model, load, rng: Rng::new(load.seed), cursor: 0 };
    let from = start + warm_up;
    let end = from + measure;
    let (mut reads, mut writes) = (Latencies::new(), Latencies::new());
    let mut outstanding: BinaryHeap<_> =
        (0..load.depth.max(1)).map(|_| client.issue(start)).collect();
    while let Some(mut next) = outstanding.peek_mut() {
        let Reverse(request) = *next;
        if request.done >= end {
            break;
        }
        if request.done >= from {
            let latencies = if request.is_read { &mut reads } else { &mut writes };
            latencies
                .histogram
                .saturating_record((request.done - request.issued).as_nanos() as u64);
        }
        *next = client.issue(request.done);
    }
    Measured { reads, writes, elapsed: measure, end }
}
