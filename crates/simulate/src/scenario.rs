//! A run from its seed: starts, requests, faults, power cuts, and checks of everything after each.

mod aging;
mod breaking;
mod refusing;
mod rest;
mod rows;
mod starting;
mod tearing;
mod trading;
mod upkeep;
mod used;
mod verifying;

use std::cell::Cell;
use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use io_traits::{Clock, Spawn};
use local_sync::Semaphore;
use sim::{DeviceFaults, Rng, SimDevice, SimWorld, Simulation, Survival};
use units::{Duration, Lba, LbaRange};
use uuid::Uuid;
use volume::FormatOptions;

use crate::content;
use crate::model::VolumeModel;
use crate::profile::{Breaks, Profile, Workload};
use crate::requests::terms::first_terms;
use crate::requests::{Worker, create};
use crate::rig::{self, Rig, Service};
use crate::run::{Leniency, Run};
use crate::seam::{Seam, SeamDevice};
use crate::tall;
use breaking::Broken;
use rows::{Asks, Ends, Plan};

/// The smallest disk that can be formatted: 64 MiB.
pub(crate) const DEVICE_BLOCKS: u64 = 16_384;
/// The smallest extents.
pub(crate) const EXTENT_BLOCKS: u32 = 1024;
/// Interval at which the power is checked.
const WATCH: Duration = Duration::from_micros(200);
/// The same when little happens.
const WATCH_IDLY: Duration = Duration::from_millis(5);
/// Time after which a run hangs. Clients give a command 30 s.
const HANG: Duration = Duration::from_secs(200);
/// Events of the disk after which what is waited for spins: it asks for more, and comes to no end. Sound runs have a tenth in all.
const EVENTS_MAX: u64 = 250_000;
/// Time for which stuck requests are stuck, and disks are gone.
const TROUBLE: Duration = Duration::from_millis(400);
/// Free blocks of an aged shard beside those for its volumes.
const SPARE_HOLES: u64 = 300;
/// Starts that a disk which fails requests may need.
const OPEN_TRIES: u32 = 4;

/// Outcome of a boot.
enum End {
    /// All requests were made.
    Finished,
    /// The power is gone.
    Crashed,
    /// Something is wrong.
    Failed,
    /// The disk could not be opened, and that is excused.
    Unusable,
}

/// A run that is about to begin.
pub(crate) struct Scenario {
    pub(crate) run: Run,
    pub(crate) profile: Profile,
    pub(crate) seam: Seam,
    pub(crate) rng: Rng,
}

impl Scenario {
    /// Runs it; what it finds is in its [`Run`].
    pub(crate) fn run(mut self) {
        self.run.set_leniency(self.leniency());
        self.run.set_metadata(self.profile.metadata);
        self.run.set_sector(self.profile.sector);
        if self.profile.stales {
            self.run.keep_versions();
        }
        let broken = Broken::default();
        let mut disk: Option<SimDevice> = None;
        let plans = Plan::draw(&self.profile, &mut self.rng);
        let mut time_of_day = None;
        for (boot, plan) in plans.iter().copied().enumerate() {
            let seed = self.rng.next_u64();
            let simulation = Simulation::with_trace(seed, self.run.trace().clone());
            let world = simulation.world();
            time_of_day.into_iter().for_each(|time| world.set_unix_time(time));
            let survival = self.draw_survival(&plans, boot);
            world.note(format_args!("boot {boot} {survival:?} {plan:?}"));
            let is_tall = self.profile.workload == Workload::Tall && self.profile.nodes.is_none();
            let unflushed = disk.as_ref().map(SimDevice::unflushed_blocks).unwrap_or_default();
            let next = match &disk {
                None if is_tall => {
                    tall::known(&self.run);
                    tall::disk(&world).with_volatile_cache(self.profile.volatile)
                }
                Some(before) => before.after_crash_with(&world, survival),
                None => self.new_disk(&world),
            };
            if let Some(before) = disk.filter(|_| !is_tall && survival != Survival::Completed) {
                self.tear(&before, &next, seed);
            }
            if boot > 0 {
                self.damage(&next, seed);
            }
            self.run.undo_lost_records(&next);
            if self.profile.deaf && (1..plans.len() - 1).contains(&boot) {
                broken.deafen(&self.run, &next, &unflushed, &mut Rng::new(!seed));
            }
            self.run.set_disk(&next);
            self.run.count(|counts| counts.boots += 1);
            let task = Boot {
                run: self.run.clone(),
                profile: plan.profile(&self.profile, &mut self.rng),
                plan,
                device: SeamDevice::new(&world, next.clone(), self.seam).told_to(&self.run),
                world: world.clone(),
                rng: self.rng.fork(),
                is_first: boot == 0 && !is_tall,
                is_last: boot + 1 == plans.len(),
                is_unflushed: survival == Survival::Completed,
                cuts_at_roots: false,
                trouble: Rc::default(),
                broken: broken.clone(),
            };
            let end = simulation.run(task.run());
            time_of_day = Some(world.unix_time() + self.time_between_boots());
            self.run.close();
            match end {
                Err(stalled) => self.run.fail(format!("nothing goes on: {stalled:?}")),
                Ok(End::Failed | End::Unusable) => return,
                Ok(End::Crashed) => self.run.count(|counts| counts.crashes += 1),
                Ok(End::Finished) => {}
            }
            if self.run.has_failed() {
                return;
            }
            self.prove_use(&next);
            disk = Some(next);
        }
    }

    /// Draws what the end of the boot before leaves on the disk.
    fn draw_survival(&mut self, plans: &[Plan], boot: usize) -> Survival {
        let mut survival = Survival::ALL[self.rng.below(Survival::ALL.len() as u64) as usize];
        // Records are there, and of the data what `tear_runs` leaves.
        if self.profile.deaf && survival != Survival::Completed && self.rng.one_in(2) {
            survival = Survival::Everything;
        }
        // Behind a flush that failed a start builds on what goes with the power, whatever is flushed later.
        match self.profile.faults.flush_error_one_in > 0 && Plan::goes_on_unflushed(plans, boot) {
            true => Survival::Completed,
            false => survival,
        }
    }

    /// The failures that the profile excuses.
    fn leniency(&self) -> Leniency {
        let faults = self.profile.faults;
        let device_errors = self.profile.goes
            || [
                faults.read_error_one_in,
                faults.write_error_one_in,
                faults.flush_error_one_in,
                faults.no_space_one_in,
            ] != [0; 4];
        let is_small = self.profile.tight || self.profile.aged || self.profile.trades;
        let no_space = is_small || faults.no_space_one_in > 0;
        // A data plane brings back what failed.
        let returns =
            self.profile.breaks != Breaks::Nothing || (self.profile.plane && device_errors);
        let cuts = self.profile.cuts;
        Leniency { device_errors, no_space, cuts, returns, ..Leniency::default() }
    }

    /// Returns the time for which nothing runs: tokens may end meanwhile.
    fn time_between_boots(&mut self) -> Duration {
        Duration::from_secs([0, 1, 10, 100, 10_000][self.rng.below(5) as usize])
    }

    fn new_disk(&self, world: &SimWorld) -> SimDevice {
        let disk = SimDevice::new(world, DEVICE_BLOCKS).with_volatile_cache(self.profile.volatile);
        disk.with_discards(!self.profile.joins && !self.profile.trades)
    }
}

struct Boot {
    run: Run,
    profile: Profile,
    plan: Plan,
    device: SeamDevice,
    world: SimWorld,
    rng: Rng,
    is_first: bool,
    is_last: bool,
    /// True if the disk's cache went on after the end of a process: the base of the start may be lost with the
    /// power.
    is_unflushed: bool,
    /// The power goes when one of the shards that were there before writes a root.
    cuts_at_roots: bool,
    /// True if disk and network are to make trouble.
    trouble: Rc<Cell<bool>>,
    /// Blocks that fail for good.
    broken: Broken,
}

/// Outcome of work that the power may cut short.
enum Watched<T> {
    Done(T),
    Ended(End),
}

impl Boot {
    async fn run(mut self) -> End {
        match self.go_on().await {
            Watched::Done(()) => End::Finished,
            Watched::Ended(end) => end,
        }
    }

    fn disk(&self) -> &SimDevice {
        self.device.disk()
    }

    /// Waits for `future` as long as there is power, and not forever.
    async fn watch<T>(&self, what: &str, future: impl Future<Output = T>) -> Watched<T> {
        let mut future = pin!(future);
        let (began, events) = (self.world.now(), self.disk().events());
        loop {
            let idle = self.world.now().since(began) > Duration::from_millis(100);
            let pause = if idle { WATCH_IDLY } else { WATCH };
            let mut timer = pin!(self.world.sleep_until(self.world.now() + pause));
            let done = std::future::poll_fn(|context| {
                if let Poll::Ready(done) = future.as_mut().poll(context) {
                    return Poll::Ready(Some(done));
                }
                timer.as_mut().poll(context).map(|()| None)
            });
            let done = done.await;
            if self.disk().has_crashed() {
                return Watched::Ended(End::Crashed);
            }
            if let Some(done) = done {
                return Watched::Done(done);
            }
            if self.run.has_failed() {
                return Watched::Ended(End::Failed);
            }
            if self.disk().events() - events > EVENTS_MAX {
                self.run.fail(format!("{what} spins at {:?}", self.world.now()));
                return Watched::Ended(End::Failed);
            }
            if self.world.now().since(began) > self.patience() {
                self.run.fail(format!("{what} hangs"));
                return Watched::Ended(End::Failed);
            }
        }
    }

    /// Longest time for all requests of a boot: more where each may wait for roots that take seconds.
    fn patience(&self) -> Duration {
        match self.profile.workload {
            Workload::Long => HANG * 100,
            _ => HANG,
        }
    }

    async fn go_on(&mut self) -> Watched<()> {
        self.make_trouble();
        let shards = match self.open().await {
            Watched::Done(shards) => shards,
            Watched::Ended(end) => return Watched::Ended(end),
        };
        let profile = &self.profile;
        let (plane, authenticates, scarce) = (profile.plane, profile.authenticates, profile.scarce);
        let returns = profile.breaks != Breaks::Nothing;
        let service = Service { plane, reconnects: profile.cuts, authenticates, returns, scarce };
        let rig = Rig::start(&self.world, shards, service);
        if let Some(after) = self.plan.cut_after(&mut self.rng) {
            self.disk().crash_at_event(self.disk().events() + after);
        }
        rig.allot_again(&self.run);
        let rng = self.rng.fork();
        if self.is_first {
            let made = Box::pin(self.make_volumes(&rig, rng));
            let made = self.watch("the creation of volumes", made).await;
            if let Watched::Ended(end) = made {
                return Watched::Ended(end);
            }
        } else if let Watched::Ended(end) =
            self.watch("the look at all", Box::pin(self.verify(&rig, rng))).await
        {
            return Watched::Ended(end);
        }
        if self.is_last {
            return self.quiesce(&rig).await;
        }
        if self.plan.asks != Asks::Nothing
            && let Watched::Ended(end) = self.make_requests(&rig).await
        {
            return Watched::Ended(end);
        }
        self.disk().set_faults(DeviceFaults::default());
        rig.look(&self.run);
        rig.compare_terms(&self.run);
        match self.plan.ends {
            Ends::Anyhow => self.end_anyhow(&rig).await,
            Ends::InOrder => self.end_in_order(&rig).await,
            Ends::AtOnce | Ends::Cut => Watched::Done(()),
        }
    }

    async fn end_anyhow(&mut self, rig: &Rig) -> Watched<()> {
        if self.profile.joins {
            let rng = self.rng.fork();
            let given_back = Box::pin(self.give_back(rig, rng));
            return self.watch("who gives extents back", given_back).await;
        }
        if self.profile.trades && self.rng.one_in(2) {
            let choice = self.rng.next_u64();
            let handed_over = Box::pin(self.hand_over(rig, choice));
            return self.watch("extents that change hands", handed_over).await;
        }
        if self.profile.breaks == Breaks::AllForAWhile {
            let rng = self.rng.fork();
            let refused = Box::pin(self.be_refused(rig, rng));
            if let Watched::Ended(end) = self.watch("a disk that refuses", refused).await {
                return Watched::Ended(end);
            }
        }
        if self.rng.one_in(2) {
            return self.quiesce(rig).await;
        }
        Watched::Done(())
    }

    async fn format(&mut self) -> Watched<()> {
        // Never the same twice.
        let uuid = Uuid::from_u128(u128::from(self.rng.next_u64()) << 64 | 1);
        let options = FormatOptions { uuid };
        let device = self.device.clone();
        let format = async { volume::format_with_extents(&device, &options, EXTENT_BLOCKS).await };
        match self.watch("format", format).await {
            Watched::Done(outcome) => {
                if let Err(error) = outcome {
                    self.run.fail(format!("format: {error}"));
                }
                Watched::Done(())
            }
            Watched::Ended(end) => Watched::Ended(end),
        }
    }

    async fn open(&mut self) -> Watched<Vec<volume::Shard<SeamDevice>>> {
        if self.is_first
            && let Watched::Ended(end) = self.format().await
        {
            return Watched::Ended(end);
        }
        let mut rng = if self.profile.joins { self.rng.fork() } else { Rng::new(0) };
        let may_cut_at_roots = self.profile.joins && self.is_unflushed && !self.is_last;
        self.cuts_at_roots = may_cut_at_roots && rng.one_in(2);
        let wanted = match self.watch("a look for shards", self.shards_of_start(rng)).await {
            Watched::Done(wanted) => wanted,
            Watched::Ended(end) => return Watched::Ended(end),
        };
        let may_be_cut = !self.is_last && !self.cuts_at_roots;
        if !self.is_first && (self.rng.one_in(3) || self.is_unflushed) && may_be_cut {
            // While it is read back, or when it begins to write.
            let spread = 1 << self.rng.between(4, 9);
            let after = self.rng.below(spread);
            self.disk().crash_at_event(self.disk().events() + after);
        }
        let misdirected_read_one_in = self.profile.faults.misdirected_read_one_in;
        let astray = DeviceFaults { misdirected_read_one_in, ..DeviceFaults::default() };
        if !self.is_first && self.rng.one_in(3) {
            self.disk().set_faults(astray);
            let looked = self.watch("fsck", self.fsck()).await;
            self.disk().set_faults(DeviceFaults::default());
            if let Watched::Ended(end) = looked {
                return Watched::Ended(end);
            }
        }
        // In the end all is on a disk that works.
        if self.is_last {
            self.mend();
        }
        self.stop_refusing();
        self.note_unread();
        let may_fail = self.run.leniency().device_errors && !self.profile.deaf;
        let flaky = may_fail && self.rng.one_in(3);
        for attempt in 0..OPEN_TRIES {
            let faults = if flaky && attempt == 0 { self.profile.faults } else { astray };
            self.disk().set_faults(faults);
            let device = self.device.clone();
            let opening = async { rig::open(&device, &wanted, self.profile.map_memory).await };
            let opened = self.watch("recovery", opening).await;
            self.disk().set_faults(DeviceFaults::default());
            match opened {
                Watched::Done(Ok(shards)) => {
                    self.disk().crash_at_event(u64::MAX);
                    return Watched::Done(shards);
                }
                // Nothing was written: the next attempt finds the disk as it was.
                Watched::Done(Err(_)) if flaky && attempt == 0 => {}
                Watched::Done(Err(_)) if !self.broken.goes_on() => self.mend(),
                Watched::Done(Err(error)) => {
                    if self.run.excuses_open(&error) {
                        if let Watched::Ended(end) = self.watch("repair", self.repair()).await {
                            return Watched::Ended(end);
                        }
                        return Watched::Ended(End::Unusable);
                    }
                    self.run.fail(format!("the disk cannot be opened: {error}"));
                    return Watched::Ended(End::Failed);
                }
                Watched::Ended(end) => return Watched::Ended(end),
            }
        }
        unreachable!("a second attempt either succeeds or fails the run")
    }

    async fn make_volumes(&self, rig: &Rig, mut rng: Rng) {
        for number in 0..self.profile.volumes {
            let shard = number as usize % usize::from(self.profile.busy_shards);
            let model = self.run.new_volume(shard, self.profile.volume_blocks);
            first_terms(&self.run, &model, &mut rng);
            let _ = create(&self.run, rig, &model, self.profile.volume_blocks).await;
            let profile = &self.profile;
            let fills = matches!(profile.workload, Workload::Paged | Workload::Tall);
            // A second volume finds the disk full, and has room when the first one has given some back.
            let takes_room = profile.tight && number == 0;
            if takes_room || profile.joins || profile.trades || fills {
                self.write_all(rig, &model).await;
            }
        }
        let filled = match (self.profile.tight, self.profile.aged) {
            (true, _) => self.fill(rig).await,
            (false, true) => {
                let blocks = self.profile.volumes * self.profile.volume_blocks;
                self.age(rig, blocks * 3 / 2 + SPARE_HOLES).await
            }
            _ => Ok(()),
        };
        if let Err(error) = filled {
            self.run.fail(format!("no room for ballast: {error}"));
        }
    }

    /// Writes each block of a volume once.
    async fn write_all(&self, rig: &Rig, model: &VolumeModel) {
        let Some(target) = rig.target(model).await else { return };
        let (size, step) = (self.profile.volume_blocks, target.transfer_blocks_max());
        for start in (0..size).step_by(step as usize) {
            let range = LbaRange::new(Lba(start), step.min(size - start));
            let tag = self.run.begin(model, range, false);
            let data = content::data(model.id, start, range.blocks, tag);
            self.run.end(model, tag, target.write(range.start, data).await);
        }
    }

    async fn make_requests(&mut self, rig: &Rig) -> Watched<()> {
        let profile = self.profile;
        self.disk().set_faults(profile.faults);
        if profile.workload == Workload::Long {
            self.hold_checkpoints_up();
        }
        if profile.trades {
            self.cut_at_a_root();
        } else if self.plan.ends != Ends::Cut && !self.rng.one_in(4) {
            let scale = if profile.workload == Workload::Long { 13 } else { 10 };
            let spread = 1 << self.rng.between(3, scale);
            let after = self.rng.below(spread);
            self.disk().crash_at_event(self.disk().events() + after);
        }
        if profile.breaks == Breaks::Some && self.rng.one_in(2) {
            let (broken, disk) = (self.broken.clone(), self.disk().clone());
            broken.break_some(&self.run, &disk, &mut self.rng);
        }
        let workers = Rc::new(Semaphore::new(profile.workers));
        for number in 0..profile.workers {
            let host = (number % profile.hosts) as usize;
            let (run, rig, rng) = (self.run.of_host(host), rig.clone(), self.rng.fork());
            let worker = Worker { run, rig, profile, rng, host };
            let permit = workers.try_acquire(1).expect("one for each");
            self.world.spawn(async move {
                worker.work().await;
                drop(permit);
            });
        }
        self.trouble.set(true);
        let all_done = workers.acquire(profile.workers);
        let ended = self.watch("a request", all_done).await;
        self.trouble.set(false);
        self.disk().set_gone(false);
        match ended {
            Watched::Done(_) => Watched::Done(()),
            Watched::Ended(end) => Watched::Ended(end),
        }
    }

    /// Starts faults that do not come with single requests: now and then, as long as `trouble` is set. Stuck
    /// requests are released sooner or later in any case.
    fn make_trouble(&mut self) {
        let (world, disk, profile) = (self.world.clone(), self.disk().clone(), self.profile);
        let (mut rng, trouble) = (self.rng.fork(), self.trouble.clone());
        let (run, broken) = (self.run.clone(), self.broken.clone());
        self.world.spawn(async move {
            loop {
                let pause = Duration::from_micros(1 << rng.between(8, 18));
                world.sleep_until(world.now() + pause).await;
                disk.release_stuck();
                if trouble.get() && profile.breaks == Breaks::Some && rng.one_in(3) {
                    broken.break_some(&run, &disk, &mut rng);
                }
                if trouble.get() && profile.goes && rng.one_in(3) {
                    disk.set_gone(true);
                    world.sleep_until(world.now() + TROUBLE).await;
                    disk.set_gone(false);
                }
                if trouble.get() && profile.cuts && rng.one_in(2) {
                    if rng.one_in(2) {
                        world.cut_connections();
                    } else {
                        let (held_up_for, told_after) = (rng.between(6, 12), rng.between(12, 16));
                        let micros = |power: u64| Duration::from_micros(1 << power);
                        world.sever_connections(micros(held_up_for), micros(told_after)).await;
                    }
                }
            }
        });
    }
}
