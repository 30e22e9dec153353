//! A cluster: hosts with shared devices, and an etcd.
//!
//! The code under test is crate `cluster`, as servers run it. Hosts, their clocks, the network and etcd are simulated (`network.rs`);
//! a process does with its place in the cluster what a server does (`process.rs`), and operators and faults come as drawn
//! (`operator.rs`). After each step it is checked that at most one host serves a device, and that etcd holds what it may
//! (`check.rs`).
//!
//! - SIM-CLUSTER-1: in the first part of a run faults happen; in the second all is mended, and the cluster has to become healthy.
//! - SIM-CLUSTER-2: operators say of a host that it is down only if no process of it runs, and start none while a take-over
//!   relies on that.

mod check;
mod network;
mod operator;
mod plant;
mod process;

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cluster::memory::Backup;
use cluster::{HostRecord, Tenure, Term};
use sim::Rng;
use units::Instant;
use uuid::Uuid;

use crate::run::Run;
use network::{Due, Hub, Seen, Shared, Surroundings, lock};
use plant::{Plant, SharedDevice};
use process::{DEVICE_MS_MAX, Process};

/// Time in which faults happen.
const FAULTY: Duration = Duration::from_secs(80);
/// Time in which a cluster that is left alone becomes healthy.
const QUIET: Duration = Duration::from_secs(260);
/// The clocks of two hosts differ by less than the 64th that `cluster` allows for.
const SPEEDS: (u64, u64) = (993_000, 1_007_000);

/// A machine, on which processes of one host run.
struct Machine {
    id: Uuid,
    boots: u64,
    fence: Option<Duration>,
    /// Its process, if one runs.
    process: Option<u64>,
    /// Devices that a process claims at its start.
    devices: Vec<Uuid>,
}

/// A run of a cluster.
pub(crate) struct Cluster {
    run: Run,
    rng: Rng,
    hub: Shared,
    plant: Rc<Plant>,
    machines: Vec<Machine>,
    processes: BTreeMap<u64, Process>,
    started: u64,
    volumes: u64,
    backups: Vec<Backup>,
    restores_left: u64,
    /// One in so many turns is a fault.
    fault_every: u64,
    /// Attempts to have a device served in the second part (SIM-CLUSTER-1).
    mends: BTreeMap<Uuid, u64>,
    /// Until then hosts that an operator stopped stay so.
    stopped_until: Duration,
    checked_at: (usize, i64),
}

impl Cluster {
    pub(crate) fn new(run: Run, mut rng: Rng) -> Self {
        let hosts = rng.between(2, 5) as usize;
        let mut hub = Hub::new(rng.fork(), hosts);
        for clock in &mut hub.clocks {
            clock.showed = Duration::from_millis(rng.between(1, 500_000));
            clock.speed = rng.between(SPEEDS.0, SPEEDS.1);
        }
        let plant = Plant::default();
        let mut machines: Vec<Machine> = (0..hosts)
            .map(|number| Machine {
                id: Uuid::from_u128(0xa0 + number as u128),
                boots: 0,
                fence: (!rng.one_in(3)).then(|| Duration::from_secs(rng.between(4, 7))),
                process: None,
                devices: Vec::new(),
            })
            .collect();
        for number in 0..rng.between(1, 4) {
            let id = Uuid::from_u128(0xd0 + u128::from(number));
            let home = rng.below(hosts as u64) as usize;
            let mut reached_from = vec![home];
            reached_from.extend((0..hosts).filter(|other| *other != home && !rng.one_in(3)));
            machines[home].devices.push(id);
            let device = SharedDevice { id, reached_from, ..SharedDevice::default() };
            plant.devices.borrow_mut().push(device);
        }
        // Most runs keep their etcd: names and quotas are checked to the end only there.
        let restores_left = if rng.one_in(3) { rng.between(1, 2) } else { 0 };
        let fault_every = rng.between(1, 5);
        Self {
            run,
            rng,
            hub: Arc::new(Mutex::new(hub)),
            plant: Rc::new(plant),
            machines,
            processes: BTreeMap::new(),
            started: 0,
            volumes: 0,
            backups: Vec::new(),
            restores_left,
            fault_every,
            mends: BTreeMap::new(),
            stopped_until: Duration::ZERO,
            checked_at: (0, 0),
        }
    }

    /// Runs it to its end, or to the first finding.
    pub(crate) fn run(mut self) {
        (0..self.machines.len()).for_each(|machine| self.start(machine));
        {
            let mut hub = lock(&self.hub);
            hub.after(Duration::from_millis(100), Due::Client);
            hub.after(Duration::from_millis(1_500), Due::Turn);
        }
        let mut is_quiet = false;
        loop {
            let due = lock(&self.hub).next();
            let now = lock(&self.hub).now;
            if !is_quiet && now >= FAULTY {
                is_quiet = true;
                self.note(format_args!("all is mended"));
                self.mend_all();
            }
            self.step(due, is_quiet);
            self.go_on();
            self.check_step();
            if let Some(finding) = self.plant.finding() {
                self.run.fail(finding);
                return;
            }
            if now >= FAULTY + QUIET {
                break;
            }
        }
        if let Err(what) = self.check_health() {
            self.run.fail(format!("left alone, the cluster is not healthy: {what}"));
        }
    }

    fn note(&self, event: std::fmt::Arguments<'_>) {
        let now = lock(&self.hub).now;
        self.run.trace().note(Instant(now.as_nanos() as u64), event);
    }

    fn step(&mut self, due: Due, is_quiet: bool) {
        match due {
            Due::Arrive { process, request } => {
                let arrived = lock(&self.hub).arrive(process, request);
                if let Some(what) = arrived {
                    self.note(format_args!("etcd: {process}: {what}"));
                }
            }
            Due::Answer { process, request, reply } => {
                lock(&self.hub).answer(process, request, reply);
            }
            Due::Tell { watch } => lock(&self.hub).tell(watch),
            Due::Wake { process } => lock(&self.hub).dirty.push(process),
            Due::Leases => lock(&self.hub).changed(),
            Due::DeviceDone { process, device, number } => {
                self.device_done(process, device, number)
            }
            Due::Client => {
                self.client();
                let time = Duration::from_millis(self.rng.between(50, 400));
                lock(&self.hub).after(time, Due::Client);
            }
            Due::Turn => {
                let ms = match is_quiet {
                    true => {
                        self.mend();
                        4_000
                    }
                    false => {
                        self.turn();
                        self.rng.between(20, 600)
                    }
                };
                lock(&self.hub).after(Duration::from_millis(ms), Due::Turn);
            }
        }
    }

    /// Lets processes go on until all wait.
    fn go_on(&mut self) {
        loop {
            let mut dirty = std::mem::take(&mut lock(&self.hub).dirty);
            if dirty.is_empty() {
                return;
            }
            dirty.sort_unstable();
            dirty.dedup();
            for id in dirty {
                let Some(process) = self.processes.get_mut(&id).filter(|it| !it.is_paused) else {
                    continue;
                };
                process.poll();
                if process.program.has_ended.get() {
                    let machine = process.program.around.machine;
                    self.kill(machine);
                }
            }
        }
    }

    /// Starts a process on a machine that runs none.
    fn start(&mut self, machine: usize) {
        self.started += 1;
        let id = self.started;
        let it = &mut self.machines[machine];
        it.process = Some(id);
        let seen = Seen { machine, host: it.id, ..Seen::default() };
        lock(&self.hub).seen.insert(id, seen);
        let tenure = match it.fence {
            None => Tenure::endless(),
            Some(after) => Tenure::limited(Term::new(after)),
        };
        let record = HostRecord {
            id: it.id,
            name: name_of(machine),
            session: Uuid::from_u128(0x5000 + u128::from(id)),
            boot: format!("{machine}-{}", it.boots),
            version: "0".to_owned(),
            api: ([192, 0, 2, machine as u8 + 1], 7420).into(),
            api_certificate: None,
            discovery: None,
            labels: BTreeMap::new(),
            portals_also: Vec::new(),
            fence_after_ms: it.fence.map(|after| after.as_millis() as u64),
            cores: Vec::new(),
            devices: Vec::new(),
        };
        let devices = it.devices.clone();
        let events = Arc::new(Mutex::new(VecDeque::new()));
        let around = Surroundings { hub: self.hub.clone(), process: id, machine, events };
        let process = Process::start(self.plant.clone(), around, record, (tenure, devices));
        self.processes.insert(id, process);
        lock(&self.hub).dirty.push(id);
        self.run.count(|counts| counts.boots += 1);
        self.note(format_args!("host {machine} starts as process {id}"));
    }

    /// Ends the process of a machine, at once.
    fn kill(&mut self, machine: usize) {
        let Some(id) = self.machines[machine].process.take() else { return };
        self.note(format_args!("process {id} of host {machine} ends"));
        drop(self.processes.remove(&id));
        let mut hub = lock(&self.hub);
        hub.seen.remove(&id);
        hub.forget_process(id);
    }

    /// Clients write to devices.
    fn client(&mut self) {
        for (id, process) in &self.processes {
            if process.is_paused || !process.program.serves_hosts() {
                continue;
            }
            for device in process.program.serves() {
                if let Some(mark) = process.program.may_begin(device) {
                    let ms = self.rng.between(1, DEVICE_MS_MAX);
                    let due = Due::DeviceDone { process: *id, device, number: mark.number };
                    lock(&self.hub).after(Duration::from_millis(ms), due);
                }
            }
        }
    }

    fn device_done(&mut self, id: u64, device: Uuid, number: u64) {
        if let Some(process) = self.processes.get(&id) {
            self.plant.acknowledge(device, (process.program.record.id, number));
        }
    }
}

/// Returns the name of a machine's host.
fn name_of(machine: usize) -> String {
    format!("h{machine}")
}
