//! The machine and its array: events, and what each does to the CPUs.

use random::{Rng, mix};
use ssd_model::ParamsError;
use units::Duration;

use crate::calendar::{Calendar, NEVER};
use crate::cfs;
use crate::drive::ArrayDrive;
use crate::idle::Governor;
use crate::latencies::DriveLatencies;
use crate::layout::{CPUS, CpuIndex, Layout};
use crate::params::Params;
use crate::tuning::{Interrupts, Priority, Tuning};

/// Requests of this time are not measured: threads begin in step, and governors know nothing yet.
const WARM_UP_NS: u64 = 10_000_000;
/// Threads begin within this time.
const BEGIN_NS: u64 = 50_000;
/// Random streams: drives have those from 0 on, in the order of the whole array.
const STREAM_OF_HOST: u64 = 1 << 32;
const STREAM_OF_INTERRUPTS: u64 = 1 << 33;
const STREAM_OF_HOUSEKEEPING: u64 = 1 << 34;

/// A request that was measured.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Request {
    /// Its drive among those of the run.
    pub drive: usize,
    /// Its number among the drive's requests.
    pub index: u64,
    /// Its latency.
    pub ns: u64,
}

/// Awaited by a thread, at the time in the calendar.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Phase {
    /// The drive's data at the uplink.
    Uplink,
    /// The end of the transfer before it.
    Interrupt,
    /// Its wake-up.
    Ready,
    /// The end of the section in which the kernel could not be preempted.
    Preempting,
    /// A CPU: it is among those that wait for theirs.
    Waiting,
    /// The end of its turn.
    Running,
}

#[derive(Debug)]
struct Thread {
    cpu: CpuIndex,
    /// The CPU that handles the drive's interrupt.
    interrupted: CpuIndex,
    phase: Phase,
    submitted: u64,
    /// While it runs: the end of its request.
    finished: u64,
    requests: u64,
}

/// A background task on a CPU.
#[derive(Debug)]
struct Task {
    left_ns: u64,
    /// Time that it has run since it woke.
    ran_ns: u64,
    /// Begin of its turn, if it has the CPU.
    since: Option<u64>,
}

#[derive(Debug)]
struct Cpu {
    /// The end of the last interrupt's handler.
    handling_until: u64,
    running: Option<usize>,
    /// Threads of drives that wait for it, in their order.
    waiting: Vec<usize>,
    task: Option<Task>,
    /// The time at which it became idle, or [`NEVER`].
    idle_since: u64,
    governor: Governor,
}

impl Cpu {
    fn is_busy(&self, now: u64) -> bool {
        self.running.is_some()
            || self.handling_until > now
            || self.task.as_ref().is_some_and(|task| task.since.is_some())
    }
}

/// Times on a CPU, alone on its core and beside a busy sibling.
#[derive(Clone, Copy, Debug)]
struct Cost([u64; 2]);

impl Cost {
    fn new(ns: u64, sibling_factor: f64) -> Self {
        Self([ns, (ns as f64 * sibling_factor) as u64])
    }

    fn at(self, beside: bool) -> u64 {
        self.0[usize::from(beside)]
    }
}

/// A run: threads of one layout under one tuning.
#[derive(Debug)]
pub struct World {
    params: Params,
    tuning: Tuning,
    handler: Cost,
    to_finish: Cost,
    submit: Cost,
    rng: Rng,
    calendar: Calendar,
    threads: Vec<Thread>,
    cpus: Vec<Cpu>,
    drives: Vec<ArrayDrive>,
    uplink_free: u64,
    /// The next tick of a busy CPU, and of an isolated one.
    next_tick: [u64; 2],
    latencies: Vec<DriveLatencies>,
}

impl World {
    /// The run with number `run` of a layout, which has drives of its own. Drives and moved interrupts depend on the
    /// seed alone, so that tunings are compared on the same ones.
    ///
    /// # Errors
    /// The drive's parameters do not fit together.
    pub fn new(
        params: &Params,
        tuning: Tuning,
        layout: &Layout,
        run: usize,
        seed: u64,
    ) -> Result<Self, ParamsError> {
        let first = run * layout.cpus().len();
        let every = Duration::from_secs_f64(params.housekeeping_every_s).as_nanos() as u64;
        let phase = Rng::of_stream(seed, STREAM_OF_HOUSEKEEPING).below(every.max(1));
        let drive = |number: usize| {
            let mut rng = Rng::of_stream(seed, number as u64);
            let phase = Duration::from_nanos(phase);
            ArrayDrive::new(params, tuning.housekeeping, phase, &mut rng)
        };
        let thread = |(cpu, number): (&CpuIndex, usize)| Thread {
            cpu: *cpu,
            interrupted: handled_on(params, tuning.interrupts, *cpu, seed, number),
            phase: Phase::Running,
            submitted: 0,
            finished: 0,
            requests: 0,
        };
        let threads: Vec<Thread> = layout.cpus().iter().zip(first..).map(thread).collect();
        let drives = (first..first + threads.len()).map(drive).collect::<Result<_, _>>()?;
        let slots = threads.len() + CPUS + params.bursts.len();
        let cost = |ns| Cost::new(ns, params.sibling_factor);
        let mut world = Self {
            tuning,
            handler: cost(params.handler),
            to_finish: cost(params.switch + params.reap),
            submit: cost(params.submit),
            rng: Rng::of_stream(seed, STREAM_OF_HOST + run as u64),
            calendar: Calendar::new(slots),
            cpus: (0..CPUS).map(|_| Cpu::new()).collect(),
            drives,
            uplink_free: 0,
            next_tick: params.tick_every,
            latencies: vec![DriveLatencies::new(); threads.len()],
            threads,
            params: params.clone(),
        };
        world.begin();
        Ok(world)
    }

    fn begin(&mut self) {
        for thread in 0..self.threads.len() {
            let at = self.rng.below(BEGIN_NS);
            self.submit(thread, at);
        }
        (0..self.params.bursts.len()).for_each(|kind| self.await_burst(kind, 0));
    }

    /// Lets time pass until `end` since the beginning; `observe` is told of each measured request.
    pub fn run_until(&mut self, end: Duration, observe: &mut impl FnMut(Request)) {
        let end = end.as_nanos() as u64;
        loop {
            // ARRAY-3.
            let (slot, now) = self.calendar.earliest();
            if now >= end {
                return;
            }
            for (next, every) in self.next_tick.iter_mut().zip(self.params.tick_every) {
                while *next <= now {
                    *next += every;
                }
            }
            let threads = self.threads.len();
            match slot.checked_sub(threads) {
                None => self.on_thread(slot, now, observe),
                Some(cpu) if cpu < CPUS => self.on_turn_end(cpu, now),
                Some(other) => self.on_burst(other - CPUS, now),
            }
        }
    }

    /// Latencies of each drive of the run.
    #[must_use]
    pub fn latencies(&self) -> &[DriveLatencies] {
        &self.latencies
    }

    /// Drives whose interrupts the fullest CPU handles.
    #[must_use]
    pub fn interrupts_per_cpu(&self) -> usize {
        let mut counts = [0; CPUS];
        self.threads.iter().for_each(|thread| counts[thread.interrupted.at()] += 1);
        counts.into_iter().max().unwrap_or(0)
    }

    fn on_thread(&mut self, thread: usize, now: u64, observe: &mut impl FnMut(Request)) {
        match self.threads[thread].phase {
            Phase::Uplink => {
                let begin = self.uplink_free.max(now);
                self.uplink_free = begin + self.params.uplink;
                if begin == now {
                    self.on_interrupt(thread, now);
                } else {
                    self.plan(thread, Phase::Interrupt, begin);
                }
            }
            Phase::Interrupt => self.on_interrupt(thread, now),
            Phase::Ready => self.on_ready(thread, now),
            Phase::Preempting => self.take_cpu(thread, now),
            Phase::Running => {
                self.record(thread, observe);
                self.submit(thread, now);
                let cpu = self.threads[thread].cpu.at();
                self.cpus[cpu].running = None;
                self.run_next(cpu, now);
            }
            Phase::Waiting => unreachable!("a waiting thread has no time in the calendar"),
        }
    }

    fn plan(&mut self, thread: usize, phase: Phase, at: u64) {
        self.threads[thread].phase = phase;
        self.calendar.set(thread, at);
    }

    fn submit(&mut self, thread: usize, now: u64) {
        let socket = self.threads[thread].interrupted.socket();
        // The array's uplink ends at the second socket.
        let far = if socket == 0 { self.params.far_interrupt } else { 0 };
        self.threads[thread].submitted = now;
        let done = self.drives[thread].read(now);
        self.plan(thread, Phase::Uplink, done + self.params.fabric + self.params.uplink + far);
    }

    /// The drive's interrupt comes to its CPU, whatever runs there.
    fn on_interrupt(&mut self, thread: usize, now: u64) {
        let (own, at) = (self.threads[thread].cpu, self.threads[thread].interrupted);
        let beside = self.cpus[at.sibling().at()].is_busy(now);
        let leave_ns = self.wake(at.at(), now);
        let handler_ns = self.handler.at(beside);
        let cpu = &mut self.cpus[at.at()];
        let begin = cpu.handling_until.max(now + leave_ns);
        let end = begin + handler_ns;
        cpu.handling_until = end;
        let mut delayed = None;
        if let Some(other) = cpu.running {
            delayed = Some(other);
            let finished = &mut self.threads[other].finished;
            if *finished > begin {
                *finished += handler_ns;
            }
        } else if let Some(since) = cpu.task.as_mut().and_then(|task| task.since.as_mut()) {
            *since += handler_ns;
            delayed = Some(self.threads.len() + at.at());
        } else {
            cpu.idle_since = end;
        }
        if let Some(slot) = delayed {
            self.calendar.set(slot, self.calendar.at(slot) + handler_ns);
        }
        let to_thread = match at {
            at if at == own => 0,
            at if at.socket() == own.socket() => self.params.wake_near,
            _ => self.params.wake_far,
        };
        self.plan(thread, Phase::Ready, end + to_thread);
    }

    fn on_ready(&mut self, thread: usize, now: u64) {
        let cpu = &self.cpus[self.threads[thread].cpu.at()];
        let is_free = cpu.running.is_none();
        let tasks_turn = cpu.task.as_ref().and_then(|task| Some((task, task.since?)));
        match tasks_turn {
            Some(_) if is_free && self.tuning.priority == Priority::Realtime => {
                match self.unpreemptible_ns() {
                    0 => self.take_cpu(thread, now),
                    ns => self.plan(thread, Phase::Preempting, now + ns),
                }
            }
            Some((task, since))
                if is_free && !cfs::preempts_on_wakeup(task.ran_ns + now.saturating_sub(since)) =>
            {
                self.wait(thread);
                self.bound_turn(self.threads[thread].cpu.at(), now);
            }
            _ => self.take_cpu(thread, now),
        }
    }

    /// The rest of the section of the kernel in which a background task is found.
    fn unpreemptible_ns(&mut self) -> u64 {
        if self.rng.unit() >= self.params.unpreemptible {
            return 0;
        }
        let (mean_us, most_us) = self.params.section_us;
        let us = mean_us * self.rng.exponential();
        (us.min(most_us) * 1e3) as u64
    }

    /// Gives the CPU to a thread of a drive, unless another one has it. A background task has to leave it.
    fn take_cpu(&mut self, thread: usize, now: u64) {
        let at = self.threads[thread].cpu.at();
        if self.cpus[at].running.is_some() {
            return self.wait(thread);
        }
        self.stop_task(at, now);
        self.start(thread, now);
    }

    fn wait(&mut self, thread: usize) {
        self.plan(thread, Phase::Waiting, NEVER);
        self.cpus[self.threads[thread].cpu.at()].waiting.push(thread);
    }

    /// Starts a thread's turn on its CPU, which nothing else has.
    fn start(&mut self, thread: usize, now: u64) {
        let own = self.threads[thread].cpu;
        let beside = self.cpus[own.sibling().at()].is_busy(now);
        let leave_ns = self.wake(own.at(), now);
        let begin = self.cpus[own.at()].handling_until.max(now + leave_ns);
        let mut finished = begin + self.to_finish.at(beside);
        if finished > self.next_tick[usize::from(self.tuning.isolated)] {
            finished += self.params.tick;
        }
        self.threads[thread].finished = finished;
        // ARRAY-2.
        let before = self.cpus[own.at()].running.replace(thread);
        assert!(before.is_none(), "ARRAY-2: CPU {} runs two threads", own.0);
        self.plan(thread, Phase::Running, finished + self.submit.at(beside));
    }

    fn record(&mut self, thread: usize, observe: &mut impl FnMut(Request)) {
        let Thread { submitted, finished, requests, .. } = &mut self.threads[thread];
        if *submitted < WARM_UP_NS {
            return;
        }
        let ns = *finished - *submitted;
        self.latencies[thread].record(ns);
        observe(Request { drive: thread, index: *requests, ns });
        *requests += 1;
    }

    /// A CPU that nothing has gets its next work.
    fn run_next(&mut self, at: usize, now: u64) {
        let slot = self.threads.len() + at;
        let cpu = &mut self.cpus[at];
        if !cpu.waiting.is_empty() {
            let thread = cpu.waiting.remove(0);
            return self.start(thread, now);
        }
        if let Some(task) = &mut cpu.task {
            task.since = Some(now.max(cpu.handling_until));
            let end = now.max(cpu.handling_until) + task.left_ns;
            return self.calendar.set(slot, end);
        }
        cpu.idle_since = now.max(cpu.handling_until);
    }

    /// Wakes a CPU if it is idle; says how long that takes.
    fn wake(&mut self, at: usize, now: u64) -> u64 {
        let cpu = &mut self.cpus[at];
        let idle_since = std::mem::replace(&mut cpu.idle_since, NEVER);
        if idle_since >= now {
            return 0;
        }
        let leave_ns = cpu.governor.wake(now - idle_since);
        // `idle=poll` holds for all CPUs.
        if self.tuning.isolated { 0 } else { leave_ns }
    }

    /// Bounds a background task's turn, since a thread waits for it.
    fn bound_turn(&mut self, at: usize, now: u64) {
        let slot = self.threads.len() + at;
        let cpu = &self.cpus[at];
        let since = cpu.task.as_ref().and_then(|task| task.since).expect("the task has the CPU");
        let slice_end = since + cfs::slice_ns(1 + cpu.waiting.len());
        self.calendar.set(slot, self.calendar.at(slot).min(slice_end.max(now)));
    }

    /// Takes the CPU from a background task.
    fn stop_task(&mut self, at: usize, now: u64) {
        let cpu = &mut self.cpus[at];
        let Some(task) = &mut cpu.task else { return };
        let Some(since) = task.since.take() else { return };
        let ran_ns = now.saturating_sub(since);
        task.ran_ns += ran_ns;
        task.left_ns = task.left_ns.saturating_sub(ran_ns);
        if task.left_ns == 0 {
            cpu.task = None;
        }
        self.calendar.set(self.threads.len() + at, NEVER);
    }

    /// A background task is done, or its slice is over.
    fn on_turn_end(&mut self, at: usize, now: u64) {
        self.stop_task(at, now);
        self.run_next(at, now);
    }

    fn await_burst(&mut self, kind: usize, now: u64) {
        let seconds = self.rng.exponential() / self.params.bursts[kind].per_second;
        let at = now + Duration::from_secs_f64(seconds).as_nanos() as u64;
        self.calendar.set(self.threads.len() + CPUS + kind, at.max(now + 1));
    }

    /// A background task wakes, on a CPU that is idle at that moment if there is one: a CPU whose threads wait for
    /// their drives is.
    fn on_burst(&mut self, kind: usize, now: u64) {
        self.await_burst(kind, now);
        let us = self.params.bursts[kind].mean_us * self.rng.exponential();
        let ns = (us * 1e3) as u64 + 1;
        let is_allowed = |cpu: &CpuIndex| !self.tuning.isolated || cpu.is_systems();
        let allowed: Vec<CpuIndex> = CpuIndex::all().filter(is_allowed).collect();
        let is_idle = |cpu: &CpuIndex| self.cpus[cpu.at()].idle_since <= now;
        let idle: Vec<CpuIndex> = allowed.iter().copied().filter(is_idle).collect();
        let choice = if idle.is_empty() { allowed } else { idle };
        let at = choice[self.rng.below(choice.len() as u64) as usize].at();
        let slot = self.threads.len() + at;
        let cpu = &mut self.cpus[at];
        if let Some(task) = &mut cpu.task {
            task.left_ns += ns;
            if task.since.is_some() {
                self.calendar.set(slot, self.calendar.at(slot) + ns);
            }
            return;
        }
        cpu.task = Some(Task { left_ns: ns, ran_ns: 0, since: None });
        if cpu.running.is_none() && cpu.waiting.is_empty() {
            self.wake(at, now);
            self.run_next(at, now);
        }
    }
}

impl Cpu {
    fn new() -> Self {
        Self {
            handling_until: 0,
            running: None,
            waiting: Vec::new(),
            task: None,
            idle_since: 0,
            governor: Governor::new(),
        }
    }
}

/// The CPU that handles a drive's interrupt.
fn handled_on(
    params: &Params,
    interrupts: Interrupts,
    own: CpuIndex,
    seed: u64,
    drive: usize,
) -> CpuIndex {
    let mut rng = Rng::of_stream(seed ^ mix(STREAM_OF_INTERRUPTS), drive as u64);
    let is_moved = rng.unit() < params.moved_interrupts;
    match interrupts {
        Interrupts::Balanced if is_moved => CpuIndex(rng.below(CPUS as u64) as u8),
        Interrupts::Balanced | Interrupts::Pinned => own,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::latencies::{Column, OverDrives};
    use crate::layout::Density;

    fn run(tuning: Tuning, density: Density, seconds: f64, seed: u64) -> Vec<DriveLatencies> {
        let layout = Layout::new(density, 8);
        let mut world = World::new(&Params::default(), tuning, &layout, 0, seed).expect("a drive");
        world.run_until(Duration::from_secs_f64(seconds), &mut |_| ());
        world.latencies().to_vec()
    }

    fn over(drives: &[DriveLatencies], column: Column) -> OverDrives {
        OverDrives::of(drives, column)
    }

    /// ARRAY-1.
    #[test]
    fn equal_seeds_give_equal_latencies() {
        let figures = |seed| {
            let drives = run(Tuning::DEFAULT, Density::Four, 0.5, seed);
            Column::ALL.map(|column| over(&drives, column))
        };
        assert_eq!(figures(3), figures(3));
        assert_ne!(figures(3), figures(4));
    }

    /// IV-A: 25 µs by itself, 5 µs more behind the switches; and 8.3 GB/s for 64 threads (IV-G).
    #[test]
    fn a_lone_drive_has_the_latency_of_the_study() {
        let drives = run(Tuning::FIRMWARE, Density::Alone, 1.0, 1);
        let mean_us = over(&drives, Column::Mean).mean_us;
        assert!((28.5..31.5).contains(&mean_us), "{mean_us}");
        let cycle_us = 1e6 / drives[0].count() as f64;
        assert!((30.0..33.0).contains(&cycle_us), "{cycle_us}");
    }

    /// Without isolation a fair reader waits for background work, and one with real-time priority hardly.
    #[test]
    fn background_work_delays_fair_readers_alone() {
        let max_us = |tuning| {
            let quiet = Tuning { housekeeping: false, ..tuning };
            over(&run(quiet, Density::Four, 20.0, 5), Column::Max).mean_us
        };
        let (fair, realtime) = (max_us(Tuning::DEFAULT), max_us(Tuning::CHRT));
        let isolated = max_us(Tuning::ISOLCPUS);
        assert!(fair > 1_000.0 && realtime < 400.0, "{fair} {realtime}");
        assert!(isolated < realtime, "{isolated} {realtime}");
    }

    /// A moved interrupt costs its drive alone a wake-up from afar: drives differ until interrupts are pinned.
    #[test]
    fn moved_interrupts_make_drives_differ() {
        let deviation =
            |tuning| over(&run(tuning, Density::Four, 2.0, 2), Column::Mean).deviation_us;
        assert!(deviation(Tuning::ISOLCPUS) > 5.0 * deviation(Tuning::IRQ));
    }

    /// A drive's pause is seen once by the request in flight, whatever the host does.
    #[test]
    fn housekeeping_is_the_longest_latency_of_a_tuned_host() {
        let params = Params { housekeeping_every_s: 1.0, ..Params::default() };
        let layout = Layout::new(Density::Four, 8);
        let mut world = World::new(&params, Tuning::IRQ, &layout, 0, 9).expect("a drive");
        let mut spikes = 0;
        world.run_until(Duration::from_secs(4), &mut |request| {
            spikes += u32::from(request.ns > 500_000);
        });
        let max = over(world.latencies(), Column::Max);
        assert!((575.0..615.0).contains(&max.mean_us), "{max:?}");
        // Two pauses of each of eight drives in each second; the first and the last may lie outside.
        assert!((48..=64).contains(&spikes), "{spikes}");
    }
}
