//! Issues requests and takes their results.
//!
//! Each of `connections` × `depth` tasks is a plain loop: draw a request, issue it, wait, record.
//! What they share is in a cell that no task holds across a wait.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use io_traits::{Buffer, BufferSlice, Clock, Spawn};
use local_sync::{Either, Notify, first_of, oneshot, yield_now};
use units::{BLOCK_SIZE, Duration, Instant, LbaRange};

use crate::address::Addresses;
use crate::journal::{Expected, Journal};
use crate::measure::{Kind, Meter};
use crate::outcome::{Interval, Outcome};
use crate::target::Target;
use crate::verify::compare;
use crate::workload::{Arrivals, Limit, OnError, Rate, Workload, WorkloadError};
use random::Rng;

/// Draws of an address before the next free one behind it is taken.
const DRAWS_MAX: usize = 8;
/// Bytes of different data that unchecked writes send in turn; small enough to stay in cache.
const PAYLOAD_BYTES: usize = 64 << 10;
/// Requests of a task in a row before other tasks get a turn: some devices complete at once, and a task
/// would never wait.
const REQUESTS_PER_TURN: u32 = 64;

/// Interval at which the run checks whether it is to end early: short enough that the wait is not noticed.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Says whether the run is to end early.
pub type Stop = Box<dyn Fn() -> bool>;

/// Called with each interval when it ends.
pub type Observer = Box<dyn FnMut(&Interval)>;

/// Inputs of a run.
pub struct Setup<T, W, N> {
    /// Sleeps and starts tasks.
    pub world: W,
    /// Reads the time. Latencies are as precise as this.
    pub now: N,
    /// One for each connection.
    pub targets: Vec<T>,
    /// Every block that is read is checked against this, and writes are noted there.
    pub journal: Option<Rc<RefCell<Journal>>>,
    /// Called with each interval.
    pub observer: Option<Observer>,
    /// Asked again and again; what is under way is waited for then.
    pub stop: Option<Stop>,
}

struct Request {
    kind: Kind,
    range: LbaRange,
    /// When it should begin, in an open loop.
    arrival: Option<Instant>,
    /// Data of a write.
    data: Option<BufferSlice>,
    /// Contents that a checked read may find.
    expected: Vec<Expected>,
}

struct State {
    rng: Rng,
    addresses: Addresses,
    meter: Meter,
    requests_left: u64,
    deadline: Instant,
    next_arrival: Instant,
    stopped: bool,
    first_error: Option<String>,
    blocks_checked: u64,
    mismatches: u64,
}

struct Shared<W, N> {
    workload: Workload,
    world: W,
    now: N,
    journal: Option<Rc<RefCell<Journal>>>,
    payloads: Vec<BufferSlice>,
    state: RefCell<State>,
    /// Nothing more is issued.
    stopping: Notify,
    cut_short: Cell<bool>,
    finished: Cell<bool>,
}

/// Runs `workload` and waits until its last request is done.
pub async fn run<T, W, N>(
    setup: Setup<T, W, N>,
    workload: Workload,
) -> Result<Outcome, WorkloadError>
where
    T: Target,
    W: Clock + Spawn + Clone + 'static,
    N: Fn() -> Instant + 'static,
{
    let Setup { world, now, targets, journal, observer, stop } = setup;
    let blocks = targets.iter().map(Target::blocks).min().ok_or(WorkloadError::Zero)?;
    workload.check(targets.len(), blocks)?;
    if let Some(journal) = &journal {
        check_journal(&workload, targets.len(), &journal.borrow())?;
    }
    let start = now();
    let depth = workload.depth;
    let shared = Rc::new(Shared {
        payloads: payloads(&workload),
        state: RefCell::new(State::new(&workload, start)),
        workload,
        world: world.clone(),
        now,
        journal,
        stopping: Notify::new(),
        cut_short: Cell::new(false),
        finished: Cell::new(false),
    });
    let mut ends = Vec::new();
    for target in &targets {
        for _ in 0..depth {
            let (end, ended) = oneshot::<()>();
            ends.push(ended);
            let (shared, target) = (shared.clone(), target.clone());
            world.spawn(async move {
                shared.work(target).await;
                drop(end);
            });
        }
    }
    let observer = Rc::new(RefCell::new(observer));
    world.spawn(tick(shared.clone(), observer.clone(), start));
    if let Some(stop) = stop {
        world.spawn(end_early(shared.clone(), stop));
    }
    for ended in ends {
        let _ = ended.await;
    }
    shared.finished.set(true);
    let interval = shared.state.borrow_mut().meter.roll((shared.now)());
    if let Some(observe) = &mut *observer.borrow_mut() {
        observe(&interval);
    }
    Ok(shared.outcome())
}

/// Ends the intervals.
async fn tick<W, N>(
    shared: Rc<Shared<W, N>>,
    observer: Rc<RefCell<Option<Observer>>>,
    start: Instant,
) where
    W: Clock,
    N: Fn() -> Instant,
{
    let mut next = start + shared.workload.interval;
    loop {
        shared.world.sleep_until(next).await;
        if shared.finished.get() {
            return;
        }
        let interval = shared.state.borrow_mut().meter.roll((shared.now)());
        if let Some(observe) = &mut *observer.borrow_mut() {
            observe(&interval);
        }
        next = next + shared.workload.interval;
    }
}

/// Ends the run when `stop` returns true.
async fn end_early<W, N>(shared: Rc<Shared<W, N>>, stop: Stop)
where
    W: Clock,
    N: Fn() -> Instant,
{
    while !shared.finished.get() {
        if stop() {
            shared.cut_short.set(true);
            return shared.stop();
        }
        shared.world.sleep_until((shared.now)() + LOOK_EVERY).await;
    }
}

/// W1 needs a free place for every request, and a record for every block.
fn check_journal(
    workload: &Workload,
    connections: usize,
    journal: &Journal,
) -> Result<(), WorkloadError> {
    let needed = u64::from(workload.depth) * connections as u64 + 1;
    let slots = workload.slots();
    if slots < needed {
        return Err(WorkloadError::TooBusyToCheck { needed, slots });
    }
    if journal.range() != workload.range {
        return Err(WorkloadError::OtherRange { journal: journal.range(), range: workload.range });
    }
    Ok(())
}

/// Data that does not compress, for writes that are not checked.
fn payloads(workload: &Workload) -> Vec<BufferSlice> {
    let blocks = workload.blocks_per_request as usize;
    let count = (PAYLOAD_BYTES / (blocks * BLOCK_SIZE)).max(1);
    let mut rng = Rng::new(workload.seed ^ u64::MAX);
    let mut payload = || {
        let mut buffer = Buffer::new(blocks);
        for word in buffer.as_mut_bytes().as_chunks_mut::<8>().0 {
            *word = rng.next_u64().to_le_bytes();
        }
        buffer.into_slice()
    };
    (0..count).map(|_| payload()).collect()
}

impl State {
    fn new(workload: &Workload, start: Instant) -> Self {
        let blocks = u64::from(workload.blocks_per_request);
        let request_bytes = blocks * BLOCK_SIZE as u64;
        let (deadline, requests_left) = match workload.limit {
            Limit::Time(time) => (start + time, u64::MAX),
            Limit::Bytes(bytes) => (Instant(u64::MAX), bytes.div_ceil(request_bytes)),
        };
        Self {
            rng: Rng::new(workload.seed),
            addresses: Addresses::new(workload.range, blocks, workload.access),
            meter: Meter::new(start, request_bytes),
            requests_left,
            deadline,
            next_arrival: start,
            stopped: false,
            first_error: None,
            blocks_checked: 0,
            mismatches: 0,
        }
    }

    /// Takes the next arrival of an open loop.
    fn arrive(&mut self, rate: Rate) -> Instant {
        let arrival = self.next_arrival;
        let mean_ns = 1e9 / rate.per_second;
        let gap_ns = match rate.arrivals {
            Arrivals::Fixed => mean_ns,
            Arrivals::Poisson => -(1.0 - self.rng.unit()).ln() * mean_ns,
        };
        self.next_arrival = arrival + Duration::from_nanos(gap_ns as u64);
        arrival
    }
}

impl<W, N> Shared<W, N>
where
    W: Clock,
    N: Fn() -> Instant,
{
    async fn work<T: Target>(&self, target: T) {
        let mut begin = (self.now)();
        let mut in_turn = 0;
        while let Some(mut request) = self.next(begin) {
            in_turn += 1;
            if in_turn == REQUESTS_PER_TURN {
                in_turn = 0;
                yield_now().await;
                begin = (self.now)();
            }
            if let Some(arrival) = request.arrival {
                if !self.comes_to(arrival).await {
                    return;
                }
                begin = arrival;
            }
            if self.journal.is_some() {
                self.prepare_checked(&mut request);
                if request.arrival.is_none() {
                    begin = (self.now)();
                }
            }
            begin = match request.kind {
                Kind::Read => self.read(&target, &request, begin).await,
                Kind::Write => self.write(&target, request, begin).await,
            };
        }
    }

    /// Waits for a request's arrival; whether that comes before the end.
    async fn comes_to(&self, arrival: Instant) -> bool {
        if arrival <= (self.now)() {
            return true;
        }
        if self.state.borrow().stopped {
            return false;
        }
        let arrives = self.world.sleep_until(arrival);
        first_of(self.stopping.notified(), arrives).await == Either::Second(())
    }

    /// Issues nothing more.
    fn stop(&self) {
        self.state.borrow_mut().stopped = true;
        self.stopping.notify_all();
    }

    fn stop_if_wanted(&self) {
        if self.workload.on_error == OnError::Stop {
            self.stop();
        }
    }

    /// Draws a request, or `None` at the end.
    fn next(&self, now: Instant) -> Option<Request> {
        let state = &mut *self.state.borrow_mut();
        if state.stopped || state.requests_left == 0 || now >= state.deadline {
            return None;
        }
        let arrival = self.workload.rate.map(|rate| state.arrive(rate));
        if arrival.is_some_and(|arrival| arrival >= state.deadline) {
            return None;
        }
        state.requests_left -= 1;
        let kind = match self.workload.read_percent {
            100 => Kind::Read,
            0 => Kind::Write,
            percent if state.rng.below(100) < u64::from(percent) => Kind::Read,
            _ => Kind::Write,
        };
        let lba = state.addresses.next(&mut state.rng);
        let range = LbaRange::new(lba, u64::from(self.workload.blocks_per_request));
        let data = (kind == Kind::Write && self.journal.is_none()).then(|| {
            let index = state.rng.next_u64() as usize % self.payloads.len();
            self.payloads[index].clone()
        });
        Some(Request { kind, range, arrival, data, expected: Vec::new() })
    }

    /// Notes a checked request in the journal, just before it is issued. A write goes elsewhere while
    /// the place drawn is busy.
    fn prepare_checked(&self, request: &mut Request) {
        let Some(journal) = &self.journal else { return };
        let journal = &mut *journal.borrow_mut();
        if request.kind == Kind::Read {
            request.expected = journal.begin_read(request.range);
            return;
        }
        let mut buffer = Buffer::new(self.workload.blocks_per_request as usize);
        let mut draws = 0;
        while !journal.begin_write(request.range, buffer.as_mut_bytes()) {
            draws += 1;
            let state = &mut *self.state.borrow_mut();
            request.range.start = if draws < DRAWS_MAX {
                state.addresses.next(&mut state.rng)
            } else {
                // Ends: there are more places than requests.
                state.addresses.behind(request.range.start)
            };
        }
        request.data = Some(buffer.into_slice());
    }

    async fn read<T: Target>(&self, target: &T, request: &Request, begin: Instant) -> Instant {
        let result = target.read(request.range).await;
        let end = (self.now)();
        match result {
            Ok(data) => {
                self.state.borrow_mut().meter.done(Kind::Read, begin, end);
                let wrong = if let Some(journal) = &self.journal {
                    let journal = &mut journal.borrow_mut();
                    let wrong = compare::<T>(journal, request.range, &request.expected, &data);
                    let state = &mut *self.state.borrow_mut();
                    state.blocks_checked += request.range.blocks;
                    state.mismatches += wrong;
                    wrong
                } else {
                    0
                };
                if wrong > 0 {
                    self.stop_if_wanted();
                }
            }
            Err(error) => self.failed(&error, end),
        }
        end
    }

    async fn write<T: Target>(&self, target: &T, request: Request, begin: Instant) -> Instant {
        let data = request.data.expect("every write has data");
        let result = target.write(request.range, data).await;
        let end = (self.now)();
        if let Some(journal) = &self.journal {
            journal.borrow_mut().end_write(request.range, result.is_ok());
        }
        match result {
            Ok(()) => self.state.borrow_mut().meter.done(Kind::Write, begin, end),
            Err(error) => self.failed(&error, end),
        }
        end
    }

    fn failed(&self, error: &dyn std::error::Error, end: Instant) {
        {
            let state = &mut *self.state.borrow_mut();
            state.meter.failed(end);
            state.first_error.get_or_insert_with(|| error.to_string());
        }
        self.stop_if_wanted();
    }

    fn outcome(&self) -> Outcome {
        let state = &mut *self.state.borrow_mut();
        let (read, write) = (state.meter.tally(Kind::Read), state.meter.tally(Kind::Write));
        let first_mismatch = self
            .journal
            .as_ref()
            .and_then(|journal| journal.borrow().mismatches().first().map(ToString::to_string));
        Outcome {
            seconds: state.meter.seconds(),
            cut_short: self.cut_short.get(),
            requests: read.requests + write.requests,
            iops: read.iops + write.iops,
            bytes_per_second: read.bytes_per_second + write.bytes_per_second,
            read,
            write,
            errors: state.meter.errors(),
            first_error: state.first_error.take(),
            blocks_checked: state.blocks_checked,
            mismatches: state.mismatches,
            first_mismatch,
            intervals: state.meter.take_intervals(),
        }
    }
}

#[cfg(test)]
mod tests;
