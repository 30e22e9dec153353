//! Two tiers in simulated time: datastore servers, and drives of their own or of a Flash server.
//!
//! ```text
//!  client ─► CPU ─► reader thread ─┬─ cache ──────────────────────────────┐
//!                                  ├─ own drive ──────────────────────────┤
//!                                  └─ CPU ─► connection ─► process ─► CPU │
//!                                      ▲        (Flash server)        ▼   ▼
//!                                     CPU ◄─────────── link ◄────── drive CPU ─► client
//! ```
//! A get goes this way; a set is done when its CPU time is over, and what it changes is written to Flash later, in bursts. CPU
//! times vary evenly by half up and down. All waits are in the order of arrival.

pub(crate) mod costs;
mod parts;

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use hdrhistogram::Histogram;
use random::Rng;
use ssd_model::{Model, Preset};
use units::{Instant, Pba, PbaRange};

use self::costs::{
    BYTES_PER_SET, CORES, CpuCosts, GET_BEFORE, HITS, HOP_NS, INTERRUPT_NS, LINK_BYTES_PER_SECOND,
    READ_BLOCKS, READERS, Stack, WRITE_BLOCKS, WRITE_BURST_NS, WRITE_PERIOD_NS, WRITES_MAX,
};
use self::parts::{Cpus, Pool};
use crate::ReproduceError;

/// 400 GB.
const DRIVE_BLOCKS: u64 = 400_000_000_000 / 4096;
const BLOCK_BYTES: u64 = 4096;
/// Longer latencies count as this.
const LATENCY_NS_MAX: u64 = 60_000_000_000;
/// More requests than this at once: the load is beyond what is served, and the run ends.
const OUTSTANDING_MAX: usize = 20_000;
/// Phase by which each datastore's bursts are behind those of the one before.
const BURST_SHIFT: f64 = 0.37;

/// The load of a tenant.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Load {
    /// Queries of a datastore, which come by themselves.
    Queries {
        per_second: f64,
        /// Share of gets.
        gets: f64,
        /// CPU time that is added to each query.
        busy_ns: u64,
    },
    /// So many reads of 4 KiB outstanding, without a datastore.
    Reads { depth: u32 },
}

/// The place of Flash.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Flash {
    /// A drive in each tenant's server.
    Local,
    /// A server with so many cores and one drive for all, or one for each tenant.
    Remote { stack: Stack, cores: u32, drive_each: bool },
}

/// A run.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) tenants: Vec<Load>,
    pub(crate) flash: Flash,
    pub(crate) costs: CpuCosts,
    /// Measured time, behind a quarter of it that is not.
    pub(crate) seconds: f64,
    pub(crate) seed: u64,
}

/// Results of a run.
#[derive(Clone, Debug)]
pub(crate) struct Measured {
    /// Latencies of gets, or of reads without a datastore.
    pub(crate) latencies: Histogram<u64>,
    /// Requests of tenants a second.
    pub(crate) per_second: f64,
    /// Use of the Flash server's CPUs.
    pub(crate) flash_cpu: f64,
    /// The load was more than could be served.
    pub(crate) overloaded: bool,
}

impl Measured {
    pub(crate) fn mean_us(&self) -> f64 {
        if self.overloaded { f64::INFINITY } else { self.latencies.mean() / 1e3 }
    }

    pub(crate) fn quantile_us(&self, quantile: f64) -> f64 {
        match self.overloaded {
            true => f64::INFINITY,
            false => self.latencies.value_at_quantile(quantile) as f64 / 1e3,
        }
    }
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Kind {
    Get,
    Set,
    Read,
    Write,
}

/// The next step of a job.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
enum Stage {
    /// The query is at the datastore's server.
    Query,
    /// It wants a reader thread.
    Thread,
    /// Flash is to be read or written.
    Access,
    /// The request is at the Flash server.
    Arrived,
    /// The connection has taken it.
    Taken,
    /// The connection is done with it.
    Received,
    /// A process has it.
    Process,
    /// It goes to the drive.
    Issue,
    /// The drive is done.
    Stored,
    /// The answer is at the datastore's server.
    Answered,
    /// Flash is done with.
    Ready,
    /// The query is done.
    Done,
}

#[derive(Clone, Copy, Debug)]
struct Job {
    tenant: usize,
    kind: Kind,
    start_ns: u64,
    blocks: u64,
    stage: Stage,
}

#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
enum Event {
    Step(usize),
    Arrival(usize),
    Flush(usize),
}

struct Tenant {
    load: Load,
    cpus: Cpus,
    readers: Pool,
    connection: Pool,
    processes: Pool,
    /// Writes that are due and not issued.
    due: u32,
    writing: u32,
    /// Place behind its last write.
    behind: u64,
}

struct World {
    now_ns: u64,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    sequence: u64,
    jobs: Vec<Job>,
    free: Vec<usize>,
    tenants: Vec<Tenant>,
    flash: Flash,
    costs: CpuCosts,
    flash_cpus: Cpus,
    /// The Flash server's link, out.
    link: Cpus,
    drives: Vec<Model>,
    rng: Rng,
    from_ns: u64,
    done: u64,
    latencies: Histogram<u64>,
}

/// Lets `setup` run.
pub(crate) fn run(setup: &Setup) -> Result<Measured, ReproduceError> {
    let warm_up_ns = (setup.seconds * 0.25e9) as u64;
    let end_ns = warm_up_ns + (setup.seconds * 1e9) as u64;
    let mut world = World::new(setup, warm_up_ns)?;
    let mut overloaded = false;
    while let Some(Reverse((at_ns, _, event))) = world.events.pop() {
        if at_ns >= end_ns {
            break;
        }
        world.now_ns = at_ns;
        match event {
            Event::Step(job) => world.step(job),
            Event::Arrival(tenant) => world.arrive(tenant),
            Event::Flush(tenant) => world.flush(tenant),
        }
        overloaded = world.jobs.len() - world.free.len() > OUTSTANDING_MAX;
        if overloaded {
            break;
        }
    }
    Ok(Measured {
        per_second: world.done as f64 / setup.seconds,
        flash_cpu: world.flash_cpus.busy(world.now_ns),
        latencies: world.latencies,
        overloaded,
    })
}

impl World {
    fn new(setup: &Setup, from_ns: u64) -> Result<Self, ReproduceError> {
        let (cores, processes, drives) = match setup.flash {
            Flash::Local => (1, None, setup.tenants.len()),
            Flash::Remote { stack, cores, drive_each } => {
                (cores, stack.processes, if drive_each { setup.tenants.len() } else { 1 })
            }
        };
        let tenant = |load: &Load| Tenant {
            load: *load,
            cpus: Cpus::new(CORES),
            readers: Pool::new(READERS),
            connection: Pool::new(1),
            processes: Pool::new(processes.unwrap_or(u32::MAX)),
            due: 0,
            writing: 0,
            behind: 0,
        };
        // What key-value stores write is large and sequential, and so was the drive's past.
        let params = ssd_model::Params { random: 0.0, ..Preset::P3600.params() };
        let drives = (0..drives as u64)
            .map(|drive| Model::new(&params, DRIVE_BLOCKS, setup.seed ^ drive))
            .collect::<Result<_, _>>()?;
        let mut world = Self {
            now_ns: 0,
            events: BinaryHeap::new(),
            sequence: 0,
            jobs: Vec::new(),
            free: Vec::new(),
            tenants: setup.tenants.iter().map(tenant).collect(),
            flash: setup.flash,
            costs: setup.costs,
            flash_cpus: Cpus::new(cores),
            link: Cpus::new(1),
            drives,
            rng: Rng::new(setup.seed),
            from_ns,
            done: 0,
            latencies: Histogram::new_with_max(LATENCY_NS_MAX, 3).expect("valid bounds"),
        };
        for tenant in 0..world.tenants.len() {
            match world.tenants[tenant].load {
                Load::Queries { .. } => {
                    world.at(0, Event::Arrival(tenant));
                    world.at(0, Event::Flush(tenant));
                }
                Load::Reads { depth } => (0..depth).for_each(|_| world.read_on(tenant)),
            }
        }
        Ok(world)
    }

    fn at(&mut self, at_ns: u64, event: Event) {
        self.sequence += 1;
        self.events.push(Reverse((at_ns, self.sequence, event)));
    }

    fn add(&mut self, job: Job, at_ns: u64) {
        let index = self.free.pop().unwrap_or(self.jobs.len());
        match self.jobs.get_mut(index) {
            Some(place) => *place = job,
            None => self.jobs.push(job),
        }
        self.at(at_ns, Event::Step(index));
    }

    fn go_on(&mut self, job: usize, stage: Stage, at_ns: u64) {
        self.jobs[job].stage = stage;
        self.at(at_ns, Event::Step(job));
    }

    /// A CPU time of about `mean_ns`.
    fn cost(&mut self, mean_ns: f64) -> u64 {
        (mean_ns * (0.5 + self.rng.unit())) as u64
    }

    /// A time after `mean_ns`, of events that know nothing of each other.
    fn gap(&mut self, per_second: f64) -> u64 {
        (self.rng.exponential() / per_second * 1e9) as u64
    }

    /// From one host to another.
    fn hop(&mut self) -> u64 {
        HOP_NS + self.rng.below(INTERRUPT_NS)
    }

    fn arrive(&mut self, tenant: usize) {
        let Load::Queries { per_second, gets, .. } = self.tenants[tenant].load else { return };
        let next_ns = self.now_ns + self.gap(per_second);
        self.at(next_ns, Event::Arrival(tenant));
        let kind = if self.rng.unit() < gets { Kind::Get } else { Kind::Set };
        let start_ns = self.now_ns;
        let at_ns = start_ns + self.hop();
        self.add(Job { tenant, kind, start_ns, blocks: READ_BLOCKS, stage: Stage::Query }, at_ns);
    }

    fn read_on(&mut self, tenant: usize) {
        let start_ns = self.now_ns;
        let job = Job { tenant, kind: Kind::Read, start_ns, blocks: 1, stage: Stage::Access };
        self.add(job, start_ns);
    }

    /// Lets the next write of a datastore become due.
    fn flush(&mut self, tenant: usize) {
        let Load::Queries { per_second, gets, .. } = self.tenants[tenant].load else { return };
        let bytes = (WRITE_BLOCKS * BLOCK_BYTES) as f64;
        let burst = WRITE_PERIOD_NS as f64 / WRITE_BURST_NS as f64;
        let writes_per_second = per_second * (1.0 - gets) * BYTES_PER_SET / bytes * burst;
        if writes_per_second <= 0.0 {
            return;
        }
        let shift_ns = (WRITE_PERIOD_NS as f64 * BURST_SHIFT) as u64 * tenant as u64;
        let phase_ns = (self.now_ns + shift_ns) % WRITE_PERIOD_NS;
        if phase_ns >= WRITE_BURST_NS {
            return self.at(self.now_ns + WRITE_PERIOD_NS - phase_ns, Event::Flush(tenant));
        }
        let next_ns = self.now_ns + self.gap(writes_per_second);
        self.at(next_ns, Event::Flush(tenant));
        self.tenants[tenant].due += 1;
        self.write_on(tenant);
    }

    fn write_on(&mut self, tenant: usize) {
        while self.tenants[tenant].due > 0 && self.tenants[tenant].writing < WRITES_MAX {
            self.tenants[tenant].due -= 1;
            self.tenants[tenant].writing += 1;
            let start_ns = self.now_ns;
            let (kind, blocks, stage) = (Kind::Write, WRITE_BLOCKS, Stage::Access);
            self.add(Job { tenant, kind, start_ns, blocks, stage }, start_ns);
        }
    }

    fn step(&mut self, index: usize) {
        let job = self.jobs[index];
        match job.stage {
            Stage::Query => self.query(index, job),
            Stage::Thread => {
                if self.tenants[job.tenant].readers.take(index) {
                    self.read_or_hit(index);
                }
            }
            Stage::Access => self.access(index, job),
            Stage::Arrived => {
                if self.tenants[job.tenant].connection.take(index) {
                    self.go_on(index, Stage::Taken, self.now_ns);
                }
            }
            Stage::Taken | Stage::Received | Stage::Process => self.at_target(index, job),
            Stage::Issue => self.issue(index, job, Stage::Stored),
            Stage::Stored => self.stored(index, job),
            Stage::Answered => {
                let cost = self.initiator(job) - self.initiator(job) / 2.0;
                let cost_ns = self.cost(cost);
                let end_ns = self.tenants[job.tenant].cpus.run(self.now_ns, cost_ns);
                self.go_on(index, Stage::Ready, end_ns);
            }
            Stage::Ready => self.ready(index, job),
            Stage::Done => self.query_done(index, job),
        }
    }

    fn query(&mut self, index: usize, job: Job) {
        let Load::Queries { busy_ns, .. } = self.tenants[job.tenant].load else { return };
        let (cost, next) = match job.kind {
            Kind::Set => (self.costs.set_ns as f64, Stage::Done),
            _ => (self.costs.get_ns as f64 * GET_BEFORE, Stage::Thread),
        };
        let cost_ns = self.cost(cost) + busy_ns;
        let end_ns = self.tenants[job.tenant].cpus.run(self.now_ns, cost_ns);
        self.go_on(index, next, end_ns);
    }

    fn read_or_hit(&mut self, index: usize) {
        let hits = self.rng.unit() < HITS;
        self.go_on(index, if hits { Stage::Ready } else { Stage::Access }, self.now_ns);
    }

    /// CPU time of the datastore's server for a request to remote Flash.
    fn initiator(&self, job: Job) -> f64 {
        let Flash::Remote { stack, .. } = self.flash else { return 0.0 };
        stack.initiator_ns as f64 + further_bytes(job) * stack.ns_per_byte
    }

    fn access(&mut self, index: usize, job: Job) {
        if matches!(self.flash, Flash::Local) {
            return self.issue(index, job, Stage::Ready);
        }
        let cost = self.initiator(job) / 2.0;
        let cost_ns = self.cost(cost);
        let end_ns = self.tenants[job.tenant].cpus.run(self.now_ns, cost_ns);
        let at_ns = end_ns + self.hop();
        self.go_on(index, Stage::Arrived, at_ns);
    }

    fn at_target(&mut self, index: usize, job: Job) {
        let Flash::Remote { stack, .. } = self.flash else { return };
        match job.stage {
            Stage::Taken => {
                let cost_ns = self.cost(stack.serial_ns as f64);
                let end_ns = self.flash_cpus.run(self.now_ns, cost_ns);
                self.go_on(index, Stage::Received, end_ns);
            }
            Stage::Received => {
                if let Some(next) = self.tenants[job.tenant].connection.give_back() {
                    self.go_on(next, Stage::Taken, self.now_ns);
                }
                if self.tenants[job.tenant].processes.take(index) {
                    self.go_on(index, Stage::Process, self.now_ns);
                }
            }
            _ => {
                let own = (stack.target_ns - stack.serial_ns) as f64;
                let cost_ns = self.cost(own + further_bytes(job) * stack.ns_per_byte);
                let end_ns = self.flash_cpus.run(self.now_ns, cost_ns);
                self.go_on(index, Stage::Issue, end_ns);
            }
        }
    }

    fn issue(&mut self, index: usize, job: Job, then: Stage) {
        let drive = if self.drives.len() > 1 { job.tenant } else { 0 };
        // Each tenant has its part of the drive.
        let part = DRIVE_BLOCKS / self.tenants.len() as u64;
        let base = part * job.tenant as u64;
        let now = Instant(self.now_ns);
        let done = if job.kind == Kind::Write {
            let behind = &mut self.tenants[job.tenant].behind;
            let place = if *behind + job.blocks <= part { *behind } else { 0 };
            *behind = place + job.blocks;
            self.drives[drive].write(now, PbaRange::new(Pba(base + place), job.blocks))
        } else {
            let place = self.rng.below(part - job.blocks);
            self.drives[drive].read(now, PbaRange::new(Pba(base + place), job.blocks))
        };
        self.go_on(index, then, done.0);
    }

    fn stored(&mut self, index: usize, job: Job) {
        if let Some(next) = self.tenants[job.tenant].processes.give_back() {
            self.go_on(next, Stage::Process, self.now_ns);
        }
        let bytes = if job.kind == Kind::Write { 0 } else { job.blocks * BLOCK_BYTES };
        let on_link_ns = (bytes as f64 / LINK_BYTES_PER_SECOND * 1e9) as u64;
        let at_ns = self.link.run(self.now_ns, on_link_ns) + self.hop();
        self.go_on(index, Stage::Answered, at_ns);
    }

    fn ready(&mut self, index: usize, job: Job) {
        match job.kind {
            Kind::Read => {
                self.record(job.start_ns, self.now_ns);
                self.free.push(index);
                self.read_on(job.tenant);
            }
            Kind::Write => {
                self.free.push(index);
                self.tenants[job.tenant].writing -= 1;
                self.write_on(job.tenant);
            }
            Kind::Get | Kind::Set => {
                let cost_ns = self.cost(self.costs.get_ns as f64 * (1.0 - GET_BEFORE));
                let end_ns = self.tenants[job.tenant].cpus.run(self.now_ns, cost_ns);
                self.go_on(index, Stage::Done, end_ns);
            }
        }
    }

    fn query_done(&mut self, index: usize, job: Job) {
        self.free.push(index);
        let end_ns = self.now_ns + self.hop();
        if job.kind == Kind::Set {
            self.done += u64::from(self.now_ns >= self.from_ns);
            return;
        }
        if let Some(next) = self.tenants[job.tenant].readers.give_back() {
            self.read_or_hit(next);
        }
        self.record(job.start_ns, end_ns);
    }

    fn record(&mut self, start_ns: u64, end_ns: u64) {
        if self.now_ns >= self.from_ns {
            self.done += 1;
            self.latencies.saturating_record((end_ns - start_ns).max(1));
        }
    }
}

/// Bytes of a request beyond those that its fixed costs have.
fn further_bytes(job: Job) -> f64 {
    ((job.blocks - 1) * BLOCK_BYTES) as f64
}

#[cfg(test)]
mod tests {
    use super::costs::{Step, iscsi};
    use super::*;

    const COSTS: CpuCosts = CpuCosts::STATED;

    fn measure(tenants: &[Load], flash: Flash) -> Measured {
        let tenants = tenants.to_vec();
        let setup = Setup { tenants, flash, costs: COSTS, seconds: 4.0, seed: 3 };
        run(&setup).expect("a drive")
    }

    const fn gets(per_second: f64) -> Load {
        Load::Queries { per_second, gets: 1.0, busy_ns: 0 }
    }

    fn remote(stack: Stack, cores: u32) -> Flash {
        Flash::Remote { stack, cores, drive_each: false }
    }

    /// Without load nothing waits, so that a mean is the sum of its parts.
    #[test]
    fn an_unloaded_get_takes_the_sum_of_its_parts() {
        let hop_us = (HOP_NS + INTERRUPT_NS / 2) as f64 / 1e3;
        let local = measure(&[gets(500.0)], Flash::Local);
        let parts_us = 2.0 * hop_us + COSTS.get_ns as f64 / 1e3 + (1.0 - HITS) * 95.0;
        assert!((local.mean_us() / parts_us - 1.0).abs() < 0.05, "{} {parts_us}", local.mean_us());
        assert!((local.per_second / 500.0 - 1.0).abs() < 0.1, "{}", local.per_second);

        let stack = iscsi(Step::Affinity);
        let bytes = (READ_BLOCKS * BLOCK_BYTES) as f64;
        let further_us = (bytes - 4096.0) * stack.ns_per_byte / 1e3;
        let sides_us = (stack.initiator_ns + stack.target_ns) as f64 / 1e3 + 2.0 * further_us;
        let added_us = sides_us + 2.0 * hop_us + bytes / LINK_BYTES_PER_SECOND * 1e6;
        let far = measure(&[gets(500.0)], remote(stack, 6));
        let added = far.mean_us() - local.mean_us();
        assert!((added / ((1.0 - HITS) * added_us) - 1.0).abs() < 0.1, "{added} {added_us}");
        let cpu = 500.0 * (1.0 - HITS) * (stack.target_ns as f64 / 1e3 + further_us) / 6e6;
        assert!((far.flash_cpu / cpu - 1.0).abs() < 0.1, "{} {cpu}", far.flash_cpu);
    }

    /// Each stage in turn is the one that limits.
    #[test]
    fn the_slowest_stage_decides() {
        let reads = |depth| [Load::Reads { depth }];
        let stack =
            Stack { target_ns: 40_000, serial_ns: 2_000, processes: None, ..COSTS.farflash() };
        let rate = |stack: Stack, cores| measure(&reads(64), remote(stack, cores)).per_second;
        let near = |value: f64, wanted: f64| {
            assert!((value / wanted - 1.0).abs() < 0.05, "{value} {wanted}");
        };
        near(rate(stack, 1), 25_000.0);
        near(rate(stack, 3), 75_000.0);
        near(rate(Stack { serial_ns: 20_000, ..stack }, 6), 50_000.0);
        // A process waits for about 93 µs of the drive and 38 µs of CPU.
        let one = rate(Stack { processes: Some(1), ..stack }, 6);
        assert!((7_000.0..8_000.0).contains(&one), "{one}");
        let drive = measure(&reads(512), Flash::Local).per_second;
        near(drive, 252_000.0);
    }

    #[test]
    fn more_than_can_be_served_is_told() {
        let measured = measure(&[gets(60_000.0)], Flash::Local);
        assert!(measured.overloaded && measured.mean_us().is_infinite());
    }

    /// Writes of one tenant delay the reads of another on one drive, and on drives of their own they do not.
    #[test]
    fn tenants_meet_at_the_drive_they_share() {
        let tenants =
            [gets(2_000.0), Load::Queries { per_second: 20_000.0, gets: 0.0, busy_ns: 0 }];
        let p99 = |tenants: &[Load], drive_each| {
            let flash = Flash::Remote { stack: COSTS.farflash(), cores: 6, drive_each };
            measure(tenants, flash).quantile_us(0.99)
        };
        let alone = p99(&tenants[..1], false);
        let (apart, together) = (p99(&tenants, true), p99(&tenants, false));
        assert!((apart / alone - 1.0).abs() < 0.1, "{alone} {apart}");
        assert!(together > 1.5 * alone, "{alone} {together}");
    }
}
