//! Workloads of key-value stores on Flash as blocks: table 1 of "Flash Storage Disaggregation" (EuroSys'16).
//!
//! The table has rates per TB and sizes, the text has the rest: reads are random, writes are large, sequential
//! and come in bursts (flushes and compactions). This much is chosen here:
//!
//! - The rate of reads is drawn for each second, evenly between the bounds of the table. Within a second, and
//!   within a burst, requests come independently of each other.
//! - Where the table tells of a higher rate 1 % of the time, that is 0.1 s in each 10 s, at a place that is drawn.
//! - Writes come in 0.4 s of each 2 s, at five times their mean rate; that place is drawn, too.
//! - A size that is no multiple of 4 KiB is rounded up or down by chance, so that its mean is that of the table.

use random::Rng;
use units::{BLOCK_SIZE, Lba, LbaRange};

use crate::measure::Kind;
use crate::planned::Planned;

/// Bytes of the table's unit of capacity.
const TB: f64 = 1e12;
/// Length of a time with an equal rate of reads.
const STEP_S: f64 = 1.0;
/// A burst of reads: so long, once in each period.
const READ_BURST: Bursts = Bursts { period_s: 10.0, length_s: 0.1 };
/// The time in which writes come.
const WRITE_BURST: Bursts = Bursts { period_s: 2.0, length_s: 0.4 };

/// A row of the table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Profile {
    /// Its letter, as small one.
    pub name: &'static str,
    /// Reads a second for each TB, lowest and highest.
    pub reads_per_tb: (f64, f64),
    /// Reads a second for each TB, 1 % of the time.
    pub burst_per_tb: Option<f64>,
    /// Mean bytes of a read.
    pub read_bytes: f64,
    /// Writes a second for each TB, in the mean.
    pub writes_per_tb: f64,
    /// Mean bytes of a write.
    pub write_bytes: f64,
}

impl Profile {
    /// All rows.
    pub const ALL: [Self; 4] = [
        Self::row("a", (2e3, 10e3), None, [10e3, 100.0, 500e3]),
        Self::row("b", (2e3, 6e3), None, [50e3, 1000.0, 700e3]),
        Self::row("c", (2e3, 4e3), Some(75e3), [15e3, 500.0, 2000e3]),
        Self::row("d", (2e3, 4e3), None, [25e3, 150.0, 500e3]),
    ];

    const fn row(
        name: &'static str,
        reads_per_tb: (f64, f64),
        burst_per_tb: Option<f64>,
        [read_bytes, writes_per_tb, write_bytes]: [f64; 3],
    ) -> Self {
        Self { name, reads_per_tb, burst_per_tb, read_bytes, writes_per_tb, write_bytes }
    }

    /// Blocks of its largest request.
    #[must_use]
    pub fn blocks_max(&self) -> u32 {
        (self.read_bytes.max(self.write_bytes) / BLOCK_SIZE as f64).ceil() as u32
    }

    /// The requests of a volume of `size_bytes`, placed in `range`, which holds the largest of them. They do not end.
    pub fn requests(
        self,
        range: LbaRange,
        size_bytes: f64,
        seed: u64,
    ) -> impl Iterator<Item = Planned> + 'static {
        assert!(range.blocks >= u64::from(self.blocks_max()), "{range} holds no write");
        let part = size_bytes / TB;
        let (low, high) = self.reads_per_tb;
        let burst = self.burst_per_tb.map(|rate| (rate * part, Burst::new(READ_BURST)));
        let reads = Stepped {
            bounds: (low * part, high * part),
            rate: 0.0,
            end_s: 0.0,
            burst,
            outside: Outside::AsStepped,
        };
        // In so short a time all of them come.
        let factor = WRITE_BURST.period_s / WRITE_BURST.length_s;
        let rate = self.writes_per_tb * part * factor;
        let writes = Stepped {
            bounds: (0.0, 0.0),
            rate: 0.0,
            end_s: 0.0,
            burst: Some((rate, Burst::new(WRITE_BURST))),
            outside: Outside::Nothing,
        };
        let mut lanes = [
            Lane::new(Kind::Read, reads, self.read_bytes, Rng::of_stream(seed, 0)),
            Lane::new(Kind::Write, writes, self.write_bytes, Rng::of_stream(seed, 1)),
        ];
        std::iter::from_fn(move || {
            let [reads, writes] = &mut lanes;
            let first = if reads.next_s <= writes.next_s { reads } else { writes };
            Some(first.take(range))
        })
    }
}

/// A rate that holds for a part of each period.
#[derive(Clone, Copy, Debug)]
struct Bursts {
    period_s: f64,
    length_s: f64,
}

/// The burst of one period.
#[derive(Clone, Copy, Debug)]
struct Burst {
    of: Bursts,
    start_s: f64,
    period_end_s: f64,
}

impl Burst {
    fn new(of: Bursts) -> Self {
        Self { of, start_s: 0.0, period_end_s: 0.0 }
    }

    /// Returns true if `at_s` lies in a burst, and until when that holds.
    fn holds(&mut self, at_s: f64, rng: &mut Rng) -> (bool, f64) {
        if at_s >= self.period_end_s {
            let room_s = self.of.period_s - self.of.length_s;
            self.start_s = self.period_end_s + rng.unit() * room_s;
            self.period_end_s += self.of.period_s;
        }
        let end_s = self.start_s + self.of.length_s;
        match () {
            () if at_s < self.start_s => (false, self.start_s),
            () if at_s < end_s => (true, end_s),
            () => (false, self.period_end_s),
        }
    }
}

/// The rate between bursts.
#[derive(Clone, Copy, Debug)]
enum Outside {
    /// That of the step.
    AsStepped,
    /// Nothing comes.
    Nothing,
}

/// A rate that is drawn for each step, and another one in bursts.
#[derive(Clone, Debug)]
struct Stepped {
    bounds: (f64, f64),
    rate: f64,
    end_s: f64,
    burst: Option<(f64, Burst)>,
    outside: Outside,
}

impl Stepped {
    /// The rate at `at_s`, which does not go back, and until when it holds.
    fn at(&mut self, at_s: f64, rng: &mut Rng) -> (f64, f64) {
        if at_s >= self.end_s {
            let (low, high) = self.bounds;
            self.rate = low + rng.unit() * (high - low);
            self.end_s += STEP_S;
        }
        let Some((in_burst, burst)) = &mut self.burst else { return (self.rate, self.end_s) };
        let (holds, until_s) = burst.holds(at_s, rng);
        let rate = match self.outside {
            _ if holds => *in_burst,
            Outside::AsStepped => self.rate,
            Outside::Nothing => 0.0,
        };
        (rate, until_s.min(self.end_s))
    }
}

/// Requests of one kind.
struct Lane {
    kind: Kind,
    rate: Stepped,
    /// Mean blocks of a request.
    blocks: f64,
    rng: Rng,
    next_s: f64,
    /// The place behind the last write.
    behind: u64,
}

impl Lane {
    fn new(kind: Kind, rate: Stepped, bytes: f64, rng: Rng) -> Self {
        let blocks = bytes / BLOCK_SIZE as f64;
        let mut lane = Self { kind, rate, blocks, rng, next_s: 0.0, behind: 0 };
        lane.advance();
        lane
    }

    /// Goes on to the next arrival. A time at which the rate changes forgets what was drawn before: arrivals are independent.
    fn advance(&mut self) {
        loop {
            let (rate, until_s) = self.rate.at(self.next_s, &mut self.rng);
            let gap_s = self.rng.exponential() / rate;
            if self.next_s + gap_s < until_s {
                self.next_s += gap_s;
                return;
            }
            self.next_s = until_s;
        }
    }

    fn take(&mut self, range: LbaRange) -> Planned {
        let more = self.rng.unit() < self.blocks.fract();
        let blocks = self.blocks as u32 + u32::from(more);
        let places = range.blocks - u64::from(blocks) + 1;
        let place = match self.kind {
            Kind::Read => self.rng.below(places),
            Kind::Write if self.behind < places => self.behind,
            Kind::Write => 0,
        };
        self.behind = place + u64::from(blocks);
        let at_ns = (self.next_s * 1e9) as u64;
        let planned = Planned { at_ns, start: Lba(range.start.0 + place), blocks, kind: self.kind };
        self.advance();
        planned
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECONDS: u64 = 300;
    const RANGE: LbaRange = LbaRange::new(Lba(1000), 1 << 20);

    fn requests(profile: Profile, size_bytes: f64, seconds: u64) -> Vec<Planned> {
        let all = profile.requests(RANGE, size_bytes, 5);
        all.take_while(|request| request.at_ns < seconds * 1_000_000_000).collect()
    }

    fn of(requests: &[Planned], kind: Kind) -> Vec<Planned> {
        requests.iter().copied().filter(|request| request.kind == kind).collect()
    }

    fn per_step(requests: &[Planned], step_ns: u64, seconds: u64) -> Vec<u64> {
        let mut counts = vec![0; (seconds * 1_000_000_000 / step_ns) as usize];
        requests.iter().for_each(|request| counts[(request.at_ns / step_ns) as usize] += 1);
        counts
    }

    /// Mean bytes of `requests`.
    fn mean_bytes(requests: &[Planned]) -> f64 {
        let blocks: u64 = requests.iter().map(|request| u64::from(request.blocks)).sum();
        blocks as f64 * BLOCK_SIZE as f64 / requests.len() as f64
    }

    /// Means within 5 %, sizes within 1 %, and no second beyond the bounds by more than chance makes likely.
    #[test]
    fn rates_and_sizes_are_those_of_the_table() {
        for profile in Profile::ALL {
            let all = requests(profile, 1e12, SECONDS);
            assert!(all.is_sorted_by_key(|request| request.at_ns), "{}", profile.name);
            let (reads, writes) = (of(&all, Kind::Read), of(&all, Kind::Write));
            let (low, high) = profile.reads_per_tb;
            let burst = profile.burst_per_tb.map_or(0.0, |rate| rate * 0.01);
            let mean = (low + high) / 2.0 * if burst > 0.0 { 0.99 } else { 1.0 } + burst;
            let near = |value: f64, wanted: f64, off: f64| {
                assert!((value / wanted - 1.0).abs() < off, "{}: {value} {wanted}", profile.name);
            };
            near(reads.len() as f64 / SECONDS as f64, mean, 0.05);
            near(writes.len() as f64 / SECONDS as f64, profile.writes_per_tb, 0.05);
            near(mean_bytes(&reads), profile.read_bytes, 0.01);
            near(mean_bytes(&writes), profile.write_bytes, 0.01);
            if profile.burst_per_tb.is_none() {
                let chance = 5.0 * high.sqrt();
                let seconds = per_step(&reads, 1_000_000_000, SECONDS);
                let bounds = (low - chance) as u64..=(high + chance) as u64;
                assert!(seconds.iter().all(|count| bounds.contains(count)), "{}", profile.name);
                // They do wander: a tenth of the seconds lie in the lowest and the highest fifth.
                let fifth = (high - low) / 5.0;
                let count = |range: std::ops::Range<f64>| {
                    seconds.iter().filter(|count| range.contains(&(**count as f64))).count() as u64
                };
                assert!(count(0.0..low + fifth) > SECONDS / 10, "{}", profile.name);
                assert!(count(high - fifth..1e9) > SECONDS / 10, "{}", profile.name);
            }
        }
    }

    #[test]
    fn the_third_workload_bursts_one_percent_of_the_time() {
        let [_, _, c, _] = Profile::ALL;
        let reads = of(&requests(c, 1e12, SECONDS), Kind::Read);
        // Steps of 10 ms at 75 000 a second have 750 reads, else 20 to 40.
        let steps = per_step(&reads, 10_000_000, SECONDS);
        let busy = steps.iter().filter(|count| **count > 375).count();
        assert!((270..=330).contains(&busy), "{busy} of {}", steps.len());
        // As a burst fills most steps of 10 ms that it touches, its rate is seen.
        let highest = *steps.iter().max().expect("steps");
        assert!((700..900).contains(&highest), "{highest}");
    }

    #[test]
    fn writes_are_sequential_and_come_in_bursts() {
        for profile in Profile::ALL {
            let writes = of(&requests(profile, 1e12, SECONDS), Kind::Write);
            let follow = |pair: &[Planned]| {
                pair[1].start == pair[0].start.plus(u64::from(pair[0].blocks))
                    || pair[1].start == RANGE.start
            };
            assert!(writes.windows(2).all(follow), "{}", profile.name);
            // In steps of 100 ms nothing comes for at least 14 of 20, as a burst of 4 touches 5.
            let steps = per_step(&writes, 100_000_000, SECONDS);
            let silent = steps.iter().filter(|count| **count == 0).count() as f64;
            assert!(silent / steps.len() as f64 > 0.7, "{}: {silent}", profile.name);
        }
    }

    #[test]
    fn rates_scale_with_the_size_and_requests_stay_in_the_range() {
        let [a, ..] = Profile::ALL;
        let small = requests(a, 1e9, 1000);
        let reads = of(&small, Kind::Read).len() as f64 / 1000.0;
        assert!((5.5..6.5).contains(&reads), "{reads}");
        assert!(of(&small, Kind::Write).len() > 60, "{}", small.len());
        let inside = |request: &Planned| {
            request.start >= RANGE.start
                && request.start.0 + u64::from(request.blocks) <= RANGE.end().0
                && request.blocks <= a.blocks_max()
        };
        assert!(small.iter().all(inside));
        assert_eq!(small, requests(a, 1e9, 1000), "equal seeds, equal requests");
    }
}
