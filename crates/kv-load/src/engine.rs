//! One thread's requests: when each is sent, on which connection, and how long it took.
//!
//! In an open loop each request has an intended start, whatever the server does. A connection that has as many
//! requests outstanding as it may holds further ones back, and their time runs all the same:
//!
//! - KV-1: the latency of a request of an open loop is counted from its intended start.
//! - KV-2: each request whose intended start lies in the measured window is counted exactly once, as a latency,
//!   an error, or unanswered. One that is unanswered is a latency, too: of at least the time that it waited.
//!
//! Time is handed in, as the time since the run's start.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use crate::arrivals::Schedule;
use crate::latency::Latencies;
use crate::workload::{Drawer, Kind};

/// Requests that a thread holds back at most. A server that far behind does not catch up.
const BACKLOG_MAX: usize = 1 << 20;
/// Intervals of a time series at most.
pub(crate) const INTERVALS_MAX: u32 = 600;

/// A picture over time needs no more digits, and there are many intervals.
pub(crate) const INTERVAL_DIGITS: u8 = 2;

/// The pace of requests.
#[derive(Clone, Debug)]
pub(crate) enum Pace {
    /// By a schedule.
    Open(Schedule),
    /// As fast as the server answers.
    Closed,
}

/// A request to send.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct ToSend {
    pub(crate) key: u64,
    pub(crate) kind: Kind,
    /// KV-1: its latency counts from here.
    pub(crate) intended: Duration,
}

/// A reply, as far as it matters here.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Reply {
    Done,
    /// A read of a key that does not exist.
    Missing,
    Error,
}

#[derive(Debug, Default)]
struct Lane {
    /// Sent, in order, since replies come in order.
    outstanding: VecDeque<ToSend>,
    held_back: VecDeque<ToSend>,
    /// The lane is in the list of those that may send.
    is_listed: bool,
    /// It sends up to its depth, and then not until half of that is answered.
    fills: bool,
}

/// Counts of an interval of the time series.
#[derive(Clone, Debug)]
pub(crate) struct Interval {
    pub(crate) done: u64,
    pub(crate) errors: u64,
    pub(crate) latencies: Latencies,
}

/// Measurements of one thread.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    pub(crate) reads: Latencies,
    pub(crate) writes: Latencies,
    /// Lateness of requests that no connection held back: the generator's own fault.
    pub(crate) lateness: Latencies,
    pub(crate) missing: u64,
    pub(crate) errors: u64,
    pub(crate) unanswered: u64,
    pub(crate) intervals: Vec<Interval>,
}

impl Record {
    pub(crate) fn new() -> Self {
        Self {
            reads: Latencies::default(),
            writes: Latencies::default(),
            lateness: Latencies::default(),
            missing: 0,
            errors: 0,
            unanswered: 0,
            intervals: Vec::new(),
        }
    }

    /// Adds the measurements of another thread.
    pub(crate) fn merge(&mut self, other: &Self) {
        self.reads.merge(&other.reads);
        self.writes.merge(&other.writes);
        self.lateness.merge(&other.lateness);
        self.missing += other.missing;
        self.errors += other.errors;
        self.unanswered += other.unanswered;
        for (index, interval) in other.intervals.iter().enumerate() {
            let own = self.interval(index);
            own.done += interval.done;
            own.errors += interval.errors;
            own.latencies.merge(&interval.latencies);
        }
    }

    pub(crate) fn interval(&mut self, index: usize) -> &mut Interval {
        while self.intervals.len() <= index {
            let latencies = Latencies::new(INTERVAL_DIGITS);
            self.intervals.push(Interval { done: 0, errors: 0, latencies });
        }
        &mut self.intervals[index]
    }
}

/// The length of an interval of the time series: a second, or more for a long run.
pub(crate) fn interval_len(window: &Range<Duration>) -> Duration {
    let whole = window.end.saturating_sub(window.start);
    (whole / INTERVALS_MAX).max(Duration::from_secs(1))
}

#[derive(Debug)]
pub(crate) struct Engine {
    pace: Pace,
    drawer: Drawer,
    lanes: Vec<Lane>,
    /// Requests that a lane may have outstanding.
    depth: usize,
    /// Requests whose intended start lies in here are measured.
    window: Range<Duration>,
    /// Length of an interval of the time series.
    interval_ns: u64,
    /// Lanes that have something to send and may.
    listed: VecDeque<usize>,
    turn: usize,
    held_back: usize,
    outstanding: usize,
    /// Nothing is left to draw.
    exhausted: bool,
    record: Record,
}

impl Engine {
    pub(crate) fn new(
        pace: Pace,
        drawer: Drawer,
        lanes: usize,
        depth: usize,
        window: Range<Duration>,
    ) -> Self {
        let is_closed = matches!(pace, Pace::Closed);
        let lane = |_| Lane { is_listed: is_closed, fills: true, ..Lane::default() };
        let lanes: Vec<Lane> = (0..lanes).map(lane).collect();
        let listed = if is_closed { (0..lanes.len()).collect() } else { VecDeque::new() };
        Self {
            pace,
            drawer,
            lanes,
            depth,
            interval_ns: u64::try_from(interval_len(&window).as_nanos()).unwrap_or(u64::MAX),
            window,
            listed,
            turn: 0,
            held_back: 0,
            outstanding: 0,
            exhausted: false,
            record: Record::new(),
        }
    }

    /// The next request to send now, and its lane.
    pub(crate) fn poll_send(&mut self, now: Duration) -> Option<(usize, ToSend)> {
        self.take_arrivals(now);
        let index = self.listed.pop_front()?;
        self.lanes[index].is_listed = false;
        let to_send = match self.pace {
            Pace::Open(_) => self.lanes[index].held_back.pop_front(),
            Pace::Closed => self.draw(now),
        }?;
        if matches!(self.pace, Pace::Open(_)) {
            self.held_back -= 1;
        }
        self.lanes[index].outstanding.push_back(to_send);
        self.outstanding += 1;
        self.list(index);
        // A lane that is filled up goes on, so that its requests leave in one write.
        if matches!(self.pace, Pace::Closed) && self.lanes[index].is_listed {
            self.listed.rotate_right(1);
        }
        Some((index, to_send))
    }

    /// Deals the requests that are due to the lanes, in turn.
    fn take_arrivals(&mut self, now: Duration) {
        while let Pace::Open(schedule) = &mut self.pace {
            let intended = schedule.next();
            if intended > now || intended >= self.window.end || self.held_back >= BACKLOG_MAX {
                return;
            }
            schedule.advance(self.drawer.rng());
            let Some((key, kind)) = self.drawer.next() else { return };
            let index = self.turn;
            self.turn = (self.turn + 1) % self.lanes.len();
            let lane = &mut self.lanes[index];
            if self.window.contains(&intended)
                && lane.held_back.is_empty()
                && lane.outstanding.len() < self.depth
            {
                self.record.lateness.record(now - intended);
            }
            lane.held_back.push_back(ToSend { key, kind, intended });
            self.held_back += 1;
            self.list(index);
        }
    }

    fn draw(&mut self, now: Duration) -> Option<ToSend> {
        if now >= self.window.end {
            return None;
        }
        let drawn = self.drawer.next();
        self.exhausted = drawn.is_none();
        drawn.map(|(key, kind)| ToSend { key, kind, intended: now })
    }

    /// Lists a lane if it has something to send and may. In a closed loop a lane of some depth is filled up when half of
    /// its requests are answered: one by one, each would cost system calls here and at the server.
    fn list(&mut self, index: usize) {
        let lane = &mut self.lanes[index];
        let is_closed = matches!(self.pace, Pace::Closed);
        let wants = is_closed || !lane.held_back.is_empty();
        let free = self.depth.saturating_sub(lane.outstanding.len());
        lane.fills &= free > 0;
        lane.fills |= !is_closed || free >= self.depth.div_ceil(2);
        if wants && !lane.is_listed && free > 0 && lane.fills {
            lane.is_listed = true;
            self.listed.push_back(index);
        }
    }

    /// The time at which `poll_send` has something again, if no reply comes before.
    pub(crate) fn next_timeout(&self) -> Option<Duration> {
        match &self.pace {
            Pace::Open(schedule) => Some(schedule.next()).filter(|next| *next < self.window.end),
            Pace::Closed => None,
        }
    }

    /// Takes in the reply to the oldest request of a lane. False: none was outstanding.
    #[must_use]
    pub(crate) fn on_reply(&mut self, index: usize, now: Duration, reply: Reply) -> bool {
        let Some(sent) = self.lanes[index].outstanding.pop_front() else { return false };
        self.outstanding -= 1;
        self.list(index);
        self.count(&sent, now, Some(reply));
        true
    }

    fn count(&mut self, sent: &ToSend, now: Duration, reply: Option<Reply>) {
        if !self.window.contains(&sent.intended) {
            return;
        }
        let into_ns = u64::try_from((sent.intended - self.window.start).as_nanos());
        let index = into_ns.unwrap_or(u64::MAX) / self.interval_ns;
        let latency = now - sent.intended;
        let record = &mut self.record;
        let interval = record.interval(index as usize);
        if reply == Some(Reply::Error) {
            interval.errors += 1;
            record.errors += 1;
            return;
        }
        interval.done += u64::from(reply.is_some());
        interval.latencies.record(latency);
        record.missing += u64::from(reply == Some(Reply::Missing));
        record.unanswered += u64::from(reply.is_none());
        match sent.kind {
            Kind::Read => record.reads.record(latency),
            Kind::Write { .. } => record.writes.record(latency),
        }
    }

    /// True if all that is to be sent was sent and answered.
    pub(crate) fn is_finished(&self, now: Duration) -> bool {
        let is_over = match &self.pace {
            Pace::Open(schedule) => schedule.next() >= self.window.end || self.is_overloaded(),
            Pace::Closed => now >= self.window.end || self.exhausted,
        };
        is_over && self.outstanding == 0 && self.held_back == 0
    }

    /// True if the server is too far behind for the run to go on.
    pub(crate) fn is_overloaded(&self) -> bool {
        self.held_back >= BACKLOG_MAX
    }

    /// Ends the run: counts what has no reply, and hands the measurements out.
    pub(crate) fn finish(mut self, now: Duration) -> Record {
        for lane in std::mem::take(&mut self.lanes) {
            for sent in lane.outstanding.iter().chain(&lane.held_back) {
                self.count(sent, now, None);
            }
        }
        self.record
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arrivals::Arrivals;
    use crate::keys::Popularity;
    use crate::sizes::Sizes;
    use crate::workload::{Workload, WriteCommand};
    use random::Rng;

    const MS: Duration = Duration::from_millis(1);

    fn drawer(read_share: f64) -> Drawer {
        let workload = Workload {
            keys: 100,
            key_sizes: Sizes::Fixed(20),
            value_sizes: Sizes::Fixed(100),
            popularity: Popularity::Uniform,
            read_share,
            write: WriteCommand::Set,
            seed: 1,
        };
        Drawer::new(&workload, 0)
    }

    fn open(rate: f64, lanes: usize, depth: usize, window: Range<Duration>) -> Engine {
        let schedule = Schedule::new(Arrivals::Uniform, rate, 0, 1, &mut Rng::of_stream(1, 0));
        Engine::new(Pace::Open(schedule), drawer(1.0), lanes, depth, window)
    }

    /// Runs an engine against a server that begins with a request when it comes and the one before is done, and ends
    /// it by `end(begin)`. Time goes on by tenths of a millisecond.
    fn run(mut engine: Engine, end: impl Fn(Duration) -> Duration, until: Duration) -> Record {
        let mut now = Duration::ZERO;
        let mut working: VecDeque<(usize, Duration)> = VecDeque::new();
        while now < until && !engine.is_finished(now) {
            while let Some((lane, _)) = engine.poll_send(now) {
                let begin = working.back().map_or(now, |(_, before)| now.max(*before));
                working.push_back((lane, end(begin)));
            }
            while working.front().is_some_and(|(_, done)| *done <= now) {
                let (lane, _) = working.pop_front().expect("it was there");
                assert!(engine.on_reply(lane, now, Reply::Done));
            }
            now += MS / 10;
        }
        engine.finish(now)
    }

    /// KV-1: while the server stands still for a second, requests go on to be due, and wait for its end.
    ///
    /// Method: 1000 requests a second for four seconds, an answer at once, but none from second 1 to second 2.
    /// A thousand requests are due in the pause; they wait 1 s, 0.999 s, …, so their mean is half a second. A
    /// generator that waits for replies would have one slow request per connection.
    #[test]
    fn a_pause_of_the_server_counts_for_all_that_was_due_in_it() {
        let pause = Duration::from_secs(1)..Duration::from_secs(2);
        let end = |begin: Duration| if pause.contains(&begin) { pause.end } else { begin };
        for (lanes, depth) in [(1, 1), (4, 2), (4, 10_000)] {
            let engine = open(1000.0, lanes, depth, Duration::ZERO..4 * Duration::from_secs(1));
            let record = run(engine, end, Duration::from_secs(10));
            assert_eq!(record.reads.count(), 4000);
            let slow = [10, 250, 500, 990].map(|ms| {
                let below = record.reads.percentile(100.0 * (1.0 - f64::from(1000 - ms) / 4000.0));
                (below.as_millis() as i64 - i64::from(ms)).abs()
            });
            // A lane of depth 1 works off what it held back one by one, a tenth of a millisecond each.
            let allowed = if depth == 1 { 130 } else { 40 };
            assert!(
                slow.iter().all(|off| *off <= allowed),
                "lanes {lanes}, depth {depth}: {slow:?}"
            );
            assert!(record.reads.summary().max_ns >= 990_000_000);
        }
    }

    /// KV-2: warm-up, window and what is unanswered at the end add up.
    #[test]
    fn each_request_of_the_window_is_counted_once() {
        let second = Duration::from_secs(1);
        let record = run(open(1000.0, 3, 5, second..3 * second), |begin| begin, 20 * second);
        assert_eq!((record.reads.count(), record.unanswered), (2000, 0));
        assert_eq!(
            record.intervals.iter().map(|interval| interval.done).collect::<Vec<_>>(),
            [1000, 1000]
        );

        // A server that never answers.
        let record = run(open(1000.0, 3, 5, second..3 * second), |_| 100 * second, 5 * second);
        assert_eq!((record.reads.count(), record.unanswered), (2000, 2000));
        assert!(
            record.reads.summary().min_ns >= 2_000_000_000,
            "at least the time that they waited"
        );
    }

    /// Latency under load agrees with a server that serves one request at a time: M/D/1, whose mean wait is known.
    #[test]
    fn queueing_at_the_server_is_measured() {
        let mut rng = Rng::of_stream(9, 0);
        let schedule = Schedule::new(Arrivals::Poisson, 500.0, 0, 1, &mut rng);
        let window = Duration::ZERO..Duration::from_secs(200);
        let engine = Engine::new(Pace::Open(schedule), drawer(1.0), 8, 1000, window);
        // One millisecond each, so half of its time the server works: the mean is 1 ms + 0.5 ms.
        let record = run(engine, |begin| begin + MS, Duration::from_secs(300));
        // The simulation sees arrivals and ends late by up to a tenth each.
        let mean = record.reads.mean().as_secs_f64() * 1000.0;
        assert!((1.45..1.65).contains(&mean), "{mean} ms");
    }

    #[test]
    fn a_closed_loop_has_its_depth_outstanding_and_no_more() {
        let mut engine =
            Engine::new(Pace::Closed, drawer(0.5), 2, 3, Duration::ZERO..Duration::from_secs(1));
        let sent = std::iter::from_fn(|| engine.poll_send(Duration::ZERO)).map(|(lane, _)| lane);
        assert_eq!(sent.collect::<Vec<_>>(), [0, 0, 0, 1, 1, 1], "a lane is filled in one go");
        assert!((0..2).all(|_| engine.on_reply(0, MS, Reply::Done)));
        let again = std::iter::from_fn(|| engine.poll_send(MS)).map(|(lane, _)| lane);
        assert_eq!(again.collect::<Vec<_>>(), [0, 0]);
        assert_eq!(engine.poll_send(Duration::from_secs(2)), None, "the window is over");
        for (lane, count) in [(0, 3), (1, 3)] {
            assert!((0..count).all(|_| engine.on_reply(lane, MS, Reply::Done)));
            assert!(!engine.on_reply(lane, MS, Reply::Done), "a reply that no request asked for");
        }
        assert!(engine.is_finished(Duration::from_secs(2)));
    }

    /// Replies that come one by one are answered by half a pipeline at a time, and the lane never runs dry.
    #[test]
    fn a_closed_loop_fills_a_lane_up_by_halves() {
        let mut engine =
            Engine::new(Pace::Closed, drawer(1.0), 1, 8, Duration::ZERO..Duration::from_secs(1));
        let sent = |engine: &mut Engine| std::iter::from_fn(|| engine.poll_send(MS)).count();
        assert_eq!(sent(&mut engine), 8);
        for _ in 0..3 {
            assert!(engine.on_reply(0, MS, Reply::Done));
            assert_eq!(sent(&mut engine), 0);
        }
        assert!(engine.on_reply(0, MS, Reply::Done));
        assert_eq!(sent(&mut engine), 4);
        let mut whole =
            Engine::new(Pace::Closed, drawer(1.0), 1, 1, Duration::ZERO..Duration::from_secs(1));
        assert_eq!(sent(&mut whole), 1);
        assert!(whole.on_reply(0, MS, Reply::Done));
        assert_eq!(sent(&mut whole), 1);
    }

    #[test]
    fn errors_are_no_latencies() {
        let mut engine =
            Engine::new(Pace::Closed, drawer(1.0), 1, 2, Duration::ZERO..Duration::from_secs(1));
        let _ = (engine.poll_send(MS), engine.poll_send(MS));
        assert!(
            engine.on_reply(0, 2 * MS, Reply::Error) && engine.on_reply(0, 2 * MS, Reply::Missing)
        );
        let record = engine.finish(3 * MS);
        assert_eq!((record.errors, record.missing, record.reads.count()), (1, 1, 1));
    }

    /// A server that is far behind ends the run, instead of filling the generator's memory.
    #[test]
    fn what_is_held_back_is_bounded() {
        let mut engine = open(1e9, 1, 1, Duration::ZERO..Duration::from_secs(10));
        assert!(engine.poll_send(Duration::from_secs(9)).is_some());
        assert!(engine.poll_send(Duration::from_secs(9)).is_none());
        assert!(engine.is_overloaded());
        assert_eq!(engine.held_back, BACKLOG_MAX);
    }
}
