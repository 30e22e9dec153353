//! Issues requests and takes their results.
//!
//! Each of `connections` × `depth` tasks is a plain loop: take a request, issue it, wait, record.
//! Their common state is in a cell that no task holds across a wait. Requests are drawn as a
//! [`Workload`] describes, or they are planned: then each has its time, and one that is larger than the
//! target takes at once is issued in pieces together.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use io_traits::{Buffer, BufferSlice, Clock, Spawn};
use local_sync::{Either, Notify, all, first_of, oneshot, yield_now};
use units::{BLOCK_SIZE, Duration, Instant, Lba, LbaRange};

use crate::address::Addresses;
use crate::journal::{Expected, Journal};
use crate::measure::{Kind, Meter};
use crate::outcome::{Interval, Outcome};
use crate::planned::{Planned, Terms};
use crate::target::Target;
use crate::trace::Trace;
use crate::verify::compare;
use crate::workload::{Arrivals, Limit, OnError, Rate, Workload, WorkloadError};
use random::Rng;

/// Draws of an address before the next free one behind it is taken.
const DRAWS_MAX: usize = 8;
/// Bytes of different data of which unchecked writes send parts; small enough to stay in cache.
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
    /// Each request that begins is noted there.
    pub recorder: Option<Rc<RefCell<Trace>>>,
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

/// Requests that a workload describes.
struct Drawn {
    workload: Workload,
    rng: Rng,
    addresses: Addresses,
    requests_left: u64,
    next_arrival: Instant,
}

/// The source of requests.
enum Source {
    Drawn(Box<Drawn>),
    Planned(Box<dyn Iterator<Item = Planned>>),
}

/// A request that is not issued yet.
struct Next {
    kind: Kind,
    range: LbaRange,
    arrival: Option<Instant>,
}

struct State {
    source: Source,
    /// Chooses the data of writes.
    rng: Rng,
    meter: Meter,
    start: Instant,
    deadline: Instant,
    stopped: bool,
    first_error: Option<String>,
    blocks_checked: u64,
    mismatches: u64,
}

struct Shared<W, N> {
    on_error: OnError,
    interval: Duration,
    world: W,
    now: N,
    journal: Option<Rc<RefCell<Journal>>>,
    recorder: Option<Rc<RefCell<Trace>>>,
    /// Data that does not compress, for writes that are not checked.
    payload: BufferSlice,
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
    let targets = setup.targets.len();
    let blocks = setup.targets.iter().map(Target::blocks).min().ok_or(WorkloadError::Zero)?;
    workload.check(targets, blocks)?;
    if let Some(journal) = &setup.journal {
        check_journal(&workload, targets, &journal.borrow())?;
    }
    let until = match workload.limit {
        Limit::Time(time) => Some(time),
        Limit::Bytes(_) => None,
    };
    let terms = Terms {
        depth: workload.depth,
        blocks_max: workload.blocks_per_request,
        until,
        interval: workload.interval,
        on_error: workload.on_error,
        seed: workload.seed,
    };
    let start = (setup.now)();
    let source = Source::Drawn(Box::new(Drawn::new(workload, start)));
    Ok(drive(setup, source, &terms, start).await)
}

/// Issues `requests`, in the order of their times, each at its time or as soon as a task is free, and waits until the last
/// one is done. Their latency counts from their times. They are not checked: `setup` has no journal.
///
/// # Errors
/// Nothing would ever be issued.
///
/// # Panics
/// There is a journal.
pub async fn play<T, W, N>(
    setup: Setup<T, W, N>,
    requests: Box<dyn Iterator<Item = Planned>>,
    terms: &Terms,
) -> Result<Outcome, WorkloadError>
where
    T: Target,
    W: Clock + Spawn + Clone + 'static,
    N: Fn() -> Instant + 'static,
{
    assert!(setup.journal.is_none(), "planned requests may overlap, and are not checked");
    if setup.targets.is_empty() || terms.depth == 0 || terms.interval.is_zero() {
        return Err(WorkloadError::Zero);
    }
    let start = (setup.now)();
    Ok(drive(setup, Source::Planned(requests), terms, start).await)
}

async fn drive<T, W, N>(
    setup: Setup<T, W, N>,
    source: Source,
    terms: &Terms,
    start: Instant,
) -> Outcome
where
    T: Target,
    W: Clock + Spawn + Clone + 'static,
    N: Fn() -> Instant + 'static,
{
    let Setup { world, now, targets, journal, recorder, observer, stop } = setup;
    let depth = terms.depth;
    let shared = Rc::new(Shared {
        on_error: terms.on_error,
        interval: terms.interval,
        payload: payload(terms),
        state: RefCell::new(State::new(source, terms, start)),
        world: world.clone(),
        now,
        journal,
        recorder,
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
    shared.outcome()
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
    let mut next = start + shared.interval;
    loop {
        shared.world.sleep_until(next).await;
        if shared.finished.get() {
            return;
        }
        let interval = shared.state.borrow_mut().meter.roll((shared.now)());
        if let Some(observe) = &mut *observer.borrow_mut() {
            observe(&interval);
        }
        next = next + shared.interval;
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

/// LOAD-JOURNAL-1 needs a free place for every request, and a record for every block.
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

/// Data that does not compress: writes send parts of it.
fn payload(terms: &Terms) -> BufferSlice {
    let blocks = (terms.blocks_max as usize).max(PAYLOAD_BYTES / BLOCK_SIZE);
    let mut rng = Rng::new(terms.seed ^ u64::MAX);
    let mut buffer = Buffer::new(blocks);
    for word in buffer.as_mut_bytes().as_chunks_mut::<8>().0 {
        *word = rng.next_u64().to_le_bytes();
    }
    buffer.into_slice()
}

impl Drawn {
    fn new(workload: Workload, start: Instant) -> Self {
        let blocks = u64::from(workload.blocks_per_request);
        let requests_left = match workload.limit {
            Limit::Time(_) => u64::MAX,
            Limit::Bytes(bytes) => bytes.div_ceil(blocks * BLOCK_SIZE as u64),
        };
        Self {
            rng: Rng::new(workload.seed),
            addresses: Addresses::new(workload.range, blocks, workload.access),
            requests_left,
            next_arrival: start,
            workload,
        }
    }

    /// Takes the next arrival of an open loop.
    fn arrive(&mut self, rate: Rate) -> Instant {
        let arrival = self.next_arrival;
        let mean_ns = 1e9 / rate.per_second;
        let gap_ns = match rate.arrivals {
            Arrivals::Fixed => mean_ns,
            Arrivals::Poisson => self.rng.exponential() * mean_ns,
        };
        self.next_arrival = arrival + Duration::from_nanos(gap_ns as u64);
        arrival
    }

    fn next(&mut self) -> Option<Next> {
        self.requests_left = self.requests_left.checked_sub(1)?;
        let arrival = self.workload.rate.map(|rate| self.arrive(rate));
        let kind = match self.workload.read_percent {
            100 => Kind::Read,
            0 => Kind::Write,
            percent if self.rng.below(100) < u64::from(percent) => Kind::Read,
            _ => Kind::Write,
        };
        let lba = self.addresses.next(&mut self.rng);
        let range = LbaRange::new(lba, u64::from(self.workload.blocks_per_request));
        Some(Next { kind, range, arrival })
    }
}

impl State {
    fn new(source: Source, terms: &Terms, start: Instant) -> Self {
        Self {
            source,
            rng: Rng::of_stream(terms.seed, u64::MAX),
            meter: Meter::new(start),
            start,
            deadline: terms.until.map_or(Instant(u64::MAX), |until| start + until),
            stopped: false,
            first_error: None,
            blocks_checked: 0,
            mismatches: 0,
        }
    }

    /// Takes the next request, or `None` at the end.
    fn next(&mut self, now: Instant) -> Option<Next> {
        if self.stopped || now >= self.deadline {
            return None;
        }
        let next = match &mut self.source {
            Source::Drawn(drawn) => drawn.next()?,
            Source::Planned(requests) => {
                let Planned { at_ns, kind, start, blocks } = requests.next()?;
                let range = LbaRange::new(start, u64::from(blocks));
                Next { kind, range, arrival: Some(self.start + Duration::from_nanos(at_ns)) }
            }
        };
        (next.arrival.is_none_or(|arrival| arrival < self.deadline)).then_some(next)
    }

    /// Chooses another place for a drawn write whose place is busy: draws it, or takes the one behind.
    fn elsewhere(&mut self, busy: Lba, draws: usize) -> Lba {
        match &mut self.source {
            Source::Drawn(drawn) if draws < DRAWS_MAX => drawn.addresses.next(&mut drawn.rng),
            // Ends: there are more places than requests.
            Source::Drawn(drawn) => drawn.addresses.behind(busy),
            Source::Planned(_) => unreachable!("planned requests are not checked"),
        }
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
            self.record(&request, begin);
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
        if self.on_error == OnError::Stop {
            self.stop();
        }
    }

    /// Takes the next request, or `None` at the end.
    fn next(&self, now: Instant) -> Option<Request> {
        let state = &mut *self.state.borrow_mut();
        let Next { kind, range, arrival } = state.next(now)?;
        let data = (kind == Kind::Write && self.journal.is_none()).then(|| {
            let blocks = usize::try_from(range.blocks).expect("a request fits into memory");
            let spare = self.payload.len_bytes() / BLOCK_SIZE - blocks;
            self.payload.blocks(state.rng.below(spare as u64 + 1) as usize, blocks)
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
        let mut buffer = Buffer::new(request.range.blocks as usize);
        let mut draws = 0;
        while !journal.begin_write(request.range, buffer.as_mut_bytes()) {
            draws += 1;
            let state = &mut *self.state.borrow_mut();
            request.range.start = state.elsewhere(request.range.start, draws);
        }
        request.data = Some(buffer.into_slice());
    }

    /// Notes a request that begins.
    fn record(&self, request: &Request, begin: Instant) {
        let Some(recorder) = &self.recorder else { return };
        let start = self.state.borrow().start;
        recorder.borrow_mut().push(Planned {
            at_ns: begin.0.saturating_sub(start.0),
            kind: request.kind,
            start: request.range.start,
            blocks: u32::try_from(request.range.blocks).expect("at most a payload"),
        });
    }

    async fn read<T: Target>(&self, target: &T, request: &Request, begin: Instant) -> Instant {
        let result = read_pieces(target, request.range).await;
        let end = (self.now)();
        match result {
            Ok(data) => {
                self.state.borrow_mut().meter.done(Kind::Read, request.range.blocks, begin, end);
                let wrong = if let (Some(journal), Some(data)) = (&self.journal, data) {
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
        let result = write_pieces(target, request.range, &data).await;
        let end = (self.now)();
        if let Some(journal) = &self.journal {
            journal.borrow_mut().end_write(request.range, result.is_ok());
        }
        match result {
            Ok(()) => {
                let blocks = request.range.blocks;
                self.state.borrow_mut().meter.done(Kind::Write, blocks, begin, end);
            }
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

/// The pieces of a request that the target takes at once.
fn pieces<T: Target>(target: &T, range: LbaRange) -> impl Iterator<Item = LbaRange> {
    let most = u64::from(target.request_blocks_max()).max(1);
    (0..range.blocks.div_ceil(most)).map(move |piece| {
        let start = piece * most;
        LbaRange::new(range.start.plus(start), most.min(range.blocks - start))
    })
}

/// Reads a request; the data only if it is one piece, as every checked read is.
async fn read_pieces<T: Target>(target: &T, range: LbaRange) -> Result<Option<T::Data>, T::Error> {
    if range.blocks <= u64::from(target.request_blocks_max()) {
        return target.read(range).await.map(Some);
    }
    let read = all(pieces(target, range).map(|piece| target.read(piece))).await;
    read.into_iter().try_for_each(|piece| piece.map(drop)).map(|()| None)
}

async fn write_pieces<T: Target>(
    target: &T,
    range: LbaRange,
    data: &BufferSlice,
) -> Result<(), T::Error> {
    if range.blocks <= u64::from(target.request_blocks_max()) {
        return target.write(range, data.clone()).await;
    }
    let written = all(pieces(target, range).map(|piece| {
        let first = (piece.start.0 - range.start.0) as usize;
        target.write(piece, data.blocks(first, piece.blocks as usize))
    }));
    written.await.into_iter().collect()
}

#[cfg(test)]
mod tests;
