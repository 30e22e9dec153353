//! One life: a machine from its first format over a row of boots, which end in every way.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use farflash_client::Cluster;

use crate::boot::{Boot, Counts, Model, Opened, lock};
use crate::cache::{Image, Survival};
use crate::control_load::{Controller, REGIONS, WITH_WORKERS};
use crate::data_load::{Region, Worker};
use crate::disk::{Access, Disk, Lie};
use crate::loop_device::LoopDevice;
use crate::model::Finding;
use crate::random::Random;
use crate::server::{Server, Settings, Started};
use crate::supply::{Plan, Supply};
use crate::verify::verify;

const MIB: usize = 1 << 20;
/// A disk of this size may be full.
const SMALL: usize = 64 * MIB;
/// The longest load of a boot whose power does not go before.
const LOAD_MILLIS: u64 = 1_200;

/// The path from the server's device to the disk.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Way {
    /// A file that is read and written past the page cache.
    Direct,
    /// A file whose file system has no direct I/O.
    Cached,
    /// A loop device past the page cache.
    Loop,
    /// A loop device whose file has a page cache.
    CachedLoop,
}

const WAYS: [Way; 5] = [Way::Direct, Way::Cached, Way::Loop, Way::Direct, Way::CachedLoop];

/// The end of a boot.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum End {
    Cut,
    Kill,
    Stop,
    StopUnderLoad,
}

/// The drawn properties of a life.
#[derive(Debug)]
struct Profile {
    way: Way,
    devices: usize,
    disk_bytes: usize,
    boots: u64,
    workers: u64,
    controllers: u64,
}

/// A caller's settings for lives.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    pub(crate) program: PathBuf,
    pub(crate) work: PathBuf,
    pub(crate) lie: Lie,
    pub(crate) cores: usize,
}

/// The result of a life.
pub(crate) struct Report {
    /// The life in a few words.
    pub(crate) summary: String,
    pub(crate) cuts: u64,
    pub(crate) findings: Vec<Finding>,
    /// Directory of log and disks, if something was found.
    pub(crate) kept: Option<PathBuf>,
}

struct Life {
    profile: Profile,
    settings: Settings,
    random: Random,
    disks: Vec<Disk>,
    supply: Supply,
    model: Model,
    stamps: Arc<AtomicU64>,
    counts: Arc<Counts>,
    directory: PathBuf,
    /// The files of the disks that are mounted, whose pages are written back now and then.
    cached: Vec<PathBuf>,
    log: File,
    begin: Instant,
    cuts: u64,
    cuts_at_start: u64,
    findings: Vec<Finding>,
}

/// Lives the life of `seed`.
pub(crate) fn live(seed: u64, wanted: &Wanted) -> io::Result<Report> {
    let mut life = Life::new(seed, wanted)?;
    life.format()?;
    // What is found is then the server's matter, and not that of the format before.
    life.disks.iter().for_each(|disk| disk.lie(wanted.lie));
    for boot in 0..life.profile.boots {
        // The last one shows what the cut before it left.
        let is_last = boot + 1 == life.profile.boots;
        let before: Vec<Image> = life.disks.iter().map(Disk::durable).collect();
        life.boot(boot, is_last)?;
        if !life.findings.is_empty() {
            life.keep(&before)?;
            break;
        }
    }
    life.report(seed)
}

impl Life {
    fn new(seed: u64, wanted: &Wanted) -> io::Result<Self> {
        let mut random = Random::new(seed);
        let profile = Profile {
            // In turn: a few lives in a row have all of them.
            way: WAYS[(seed % WAYS.len() as u64) as usize],
            devices: random.pick(&[1, 1, 1, 2]),
            disk_bytes: random.pick(&[64, 96, 128, 128]) * MIB,
            boots: random.between(5, 12),
            workers: random.between(2, 9),
            controllers: random.between(1, 4),
        };
        let settings = Settings {
            program: wanted.program.clone(),
            cores: random.pick(&[1, 1, 2]).min(wanted.cores),
            // The least that the devices take, or enough for all maps.
            map_memory: random.pick(&[if profile.devices == 1 { "4MiB" } else { "8MiB" }, "64MiB"]),
            device_options: if wanted.lie == Lie::NeverAsked { ",flush=never" } else { "" },
        };
        let directory = wanted.work.join(format!("life-{seed}"));
        let _ = fs::remove_dir_all(&directory);
        let supply = Supply::default();
        let mut disks = Vec::new();
        for number in 0..profile.devices {
            fs::create_dir_all(mount_point(&directory, number))?;
            let random = random.fork();
            disks.push(Disk::new(number, profile.disk_bytes, supply.clone(), random));
        }
        let mut log = File::create(directory.join("life.log"))?;
        writeln!(log, "life {seed}: {profile:?}, {settings:?}, {:?}", wanted.lie)?;
        Ok(Self {
            profile,
            settings,
            random,
            disks,
            supply,
            model: Model::default(),
            stamps: Arc::new(AtomicU64::new(1)),
            counts: Arc::default(),
            directory,
            cached: Vec::new(),
            log,
            begin: Instant::now(),
            cuts: 0,
            cuts_at_start: 0,
            findings: Vec::new(),
        })
    }

    fn say(&mut self, what: &str) {
        let _ = writeln!(self.log, "{:7.3} {what}", self.begin.elapsed().as_secs_f64());
    }

    /// Mounts the disks; the devices, and what they need while they are used.
    fn plug_in(&mut self) -> io::Result<(Vec<PathBuf>, Vec<LoopDevice>)> {
        let access = match self.profile.way {
            Way::Direct => Access::Direct,
            Way::Cached => Access::Cached,
            Way::Loop | Way::CachedLoop => Access::AsOpened,
        };
        let (mut devices, mut loops) = (Vec::new(), Vec::new());
        self.cached.clear();
        for (number, disk) in self.disks.iter_mut().enumerate() {
            let file = disk.mount(&mount_point(&self.directory, number), access)?;
            if matches!(self.profile.way, Way::Cached | Way::CachedLoop) {
                self.cached.push(file.clone());
            }
            if matches!(self.profile.way, Way::Direct | Way::Cached) {
                devices.push(file);
                continue;
            }
            let device = LoopDevice::on(&file, self.profile.way == Way::Loop)?;
            devices.push(device.path().to_owned());
            loops.push(device);
        }
        Ok((devices, loops))
    }

    fn unplug(&mut self, loops: Vec<LoopDevice>) -> io::Result<()> {
        drop(loops);
        self.disks.iter_mut().try_for_each(Disk::unmount)
    }

    /// Formats the devices. What is formatted stays so.
    fn format(&mut self) -> io::Result<()> {
        self.supply.arm(None);
        let (devices, loops) = self.plug_in()?;
        for device in &devices {
            let device = format!("file:{}", device.display());
            if let Err(error) = self.settings.run(&["format", "--device", &device]) {
                self.findings.push(Finding(error));
            }
        }
        self.unplug(loops)?;
        self.forget();
        Ok(())
    }

    /// The power is gone: what no flush covered survives by a rule.
    fn forget(&mut self) {
        for number in 0..self.disks.len() {
            let rule = Survival::draw(&mut self.random);
            let loss = self.disks[number].forget(rule);
            let flushes = self.disks[number].flushes();
            self.say(&format!("  disk {number}: {rule:?}: {loss}; {flushes} flushes so far"));
        }
    }

    fn draw_plan(&mut self) -> Plan {
        let is_early = self.random.chance(35);
        let requests = match is_early {
            true => self.random.below(150),
            false => self.random.between(20, 4_000),
        };
        Plan { requests, count_reads: is_early, silently: self.random.chance(50) }
    }

    /// One start to its end.
    fn boot(&mut self, number: u64, is_last: bool) -> io::Result<()> {
        let end = match self.random.below(100) {
            _ if is_last => End::Stop,
            0..76 => End::Cut,
            76..84 => End::Kill,
            84..92 => End::Stop,
            _ => End::StopUnderLoad,
        };
        let plan = (end == End::Cut).then(|| self.draw_plan());
        self.say(&format!("boot {number}: {end:?}, {plan:?}"));
        self.supply.arm(None);
        let (devices, loops) = self.plug_in()?;
        if self.random.chance(15) || is_last {
            self.check(&devices);
        }
        self.supply.arm(plan);
        let log = self.directory.join("server.log");
        match Server::start(&self.settings, &devices, &log, &self.supply)? {
            Started::Ready(server) => {
                self.say("  serves");
                self.serve(server, end)?;
            }
            Started::Cut(server) => {
                self.cuts_at_start += 1;
                self.say("  cut before it served");
                self.end_process(server);
            }
            Started::Ended(what) => self.findings.push(Finding(what)),
        }
        // Whatever is still under way cannot get through, and need not wait.
        if self.supply.is_off() {
            self.disks.iter().for_each(Disk::let_go);
        }
        self.say("  ended");
        self.unplug(loops)?;
        if self.supply.is_off() || self.random.chance(50) {
            self.cuts += 1;
            self.forget();
        }
        let found: Vec<String> = self.findings.iter().map(ToString::to_string).collect();
        found.iter().for_each(|finding| self.say(&format!("  FOUND: {finding}")));
        Ok(())
    }

    /// `fsck` finds nothing.
    fn check(&mut self, devices: &[PathBuf]) {
        for device in devices {
            let device = format!("file:{}", device.display());
            if let Err(wrong) = self.settings.run(&["fsck", "--device", &device]) {
                self.findings.push(Finding(wrong));
            }
        }
    }

    /// Kills a server whose disks may not answer.
    fn end_process(&mut self, server: Server) {
        server.kill();
        if self.supply.is_off() {
            self.disks.iter().for_each(Disk::let_go);
        }
        if let Err(wrong) = server.wait() {
            self.findings.push(Finding(wrong));
        }
    }

    fn serve(&mut self, server: Server, end: End) -> io::Result<()> {
        let cluster = Cluster::new([server.url()], None).map_err(io::Error::other)?;
        let boot = Boot {
            cluster,
            model: Mutex::new(std::mem::take(&mut self.model)),
            supply: self.supply.clone(),
            is_ending: false.into(),
            is_stopping: false.into(),
            findings: Mutex::default(),
            stamps: self.stamps.clone(),
            counts: self.counts.clone(),
            may_be_full: self.profile.disk_bytes <= SMALL,
        };
        let random = self.random.fork();
        let opened = thread::scope(|scope| {
            let (ends, ended) = mpsc::channel();
            let (server, disks, supply) = (&server, &self.disks, &self.supply);
            scope.spawn(move || kill_when_off(server, disks, supply, &ended));
            create_first(&boot, random);
            let opened = verify(&boot);
            drop::<mpsc::Sender<()>>(ends);
            opened
        });
        match opened {
            Some(opened) => {
                self.say("  verified");
                self.load(&boot, &opened, server, end);
            }
            None => {
                self.say("  cut while it was verified");
                self.end_process(server);
            }
        }
        self.model = boot.model.into_inner().map_err(|_| io::Error::other("a worker panicked"))?;
        let findings = boot.findings.into_inner();
        self.findings.extend(findings.map_err(|_| io::Error::other("a worker panicked"))?);
        Ok(())
    }

    /// Lets workers loose until the boot ends.
    fn load(&mut self, boot: &Boot, opened: &[Opened], server: Server, end: End) {
        let limit = Duration::from_millis(self.random.between(50, LOAD_MILLIS));
        let with_workers: Vec<&Opened> =
            opened.iter().filter(|opened| lock(&opened.shared).number < WITH_WORKERS).collect();
        let per_volume = self.profile.workers.div_ceil(WITH_WORKERS);
        let blocks = REGIONS / per_volume;
        let cached = self.cached.clone();
        thread::scope(|scope| {
            for index in 0..self.profile.controllers {
                let of = self.profile.controllers;
                let random = self.random.fork();
                scope.spawn(move || Controller { boot, index, of, random }.run());
            }
            for opened in with_workers {
                for index in 0..per_volume {
                    let region = Region { first: index * blocks, blocks };
                    let random = self.random.fork();
                    scope.spawn(move || Worker { boot, opened, region, random }.run());
                }
            }
            for file in &cached {
                let (random, bytes) = (self.random.fork(), self.profile.disk_bytes as u64);
                scope.spawn(move || write_back(boot, file, bytes, random));
            }
            self.end(boot, server, end, limit);
        });
    }

    fn end(&mut self, boot: &Boot, server: Server, end: End, limit: Duration) {
        // A plan that takes longer than that is cut short.
        if !self.supply.wait_until_off(limit) && end == End::Cut {
            self.supply.cut();
        }
        let code = match end {
            End::Cut => {
                // So long the server lives with a disk that is gone.
                thread::sleep(Duration::from_millis(self.random.below(20)));
                return self.end_process(server);
            }
            End::Kill => {
                boot.is_ending.store(true, Ordering::Relaxed);
                return self.end_process(server);
            }
            End::Stop => {
                boot.is_stopping.store(true, Ordering::Relaxed);
                // What is under way is answered before.
                thread::sleep(Duration::from_millis(self.random.below(20)));
                boot.is_ending.store(true, Ordering::Relaxed);
                server.terminate();
                server.wait()
            }
            End::StopUnderLoad => {
                boot.is_ending.store(true, Ordering::Relaxed);
                server.terminate();
                server.wait()
            }
        };
        if code != Ok(Some(0)) {
            boot.found(format!("the server ended with {code:?} when it was told to end"));
        }
    }

    /// Keeps the disks as the boot found them and as they are.
    fn keep(&mut self, before: &[Image]) -> io::Result<()> {
        for (number, (disk, before)) in self.disks.iter().zip(before).enumerate() {
            before.save(&self.directory.join(format!("disk-{number}-before")))?;
            disk.durable().save(&self.directory.join(format!("disk-{number}-after")))?;
        }
        Ok(())
    }

    fn report(self, seed: u64) -> io::Result<Report> {
        let Profile { way, devices, disk_bytes, .. } = self.profile;
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let summary = format!(
            "life {seed}: {way:?}, {} cores, {devices} of {} MiB: {} cuts ({} before it served), \
             {} requests, {} changes of volumes, {} without space",
            self.settings.cores,
            disk_bytes / MIB,
            self.cuts,
            self.cuts_at_start,
            count(&self.counts.data),
            count(&self.counts.control),
            count(&self.counts.no_space),
        );
        let kept = (!self.findings.is_empty()).then(|| self.directory.clone());
        if kept.is_none() {
            fs::remove_dir_all(&self.directory)?;
        }
        Ok(Report { summary, cuts: self.cuts, findings: self.findings, kept })
    }
}

/// Creates the volumes that have data workers, if there are none yet.
fn create_first(boot: &Boot, random: Random) {
    let mut first = Controller { boot, index: 0, of: 1, random };
    let is_new = lock(&boot.model).volumes.is_empty();
    while is_new && lock(&boot.model).next_volume < WITH_WORKERS && first.create() {}
}

/// Kills the server when the power goes, so that nothing waits for a disk that is silent.
fn kill_when_off(server: &Server, disks: &[Disk], supply: &Supply, ended: &mpsc::Receiver<()>) {
    const STEP: Duration = Duration::from_millis(20);
    while !supply.wait_until_off(STEP) {
        if ended.try_recv() == Err(mpsc::TryRecvError::Disconnected) {
            return;
        }
    }
    server.kill();
    disks.iter().for_each(Disk::let_go);
}

/// Has the kernel write back pages here and there, as it does by itself on machines that run for longer.
fn write_back(boot: &Boot, file: &Path, bytes: u64, mut random: Random) {
    let Ok(file) = File::open(file) else { return };
    while !boot.is_over() {
        let offset = random.below(bytes);
        let len = NonZeroU64::new(random.between(1, bytes / 4));
        // Dirty pages are written, but not waited for, before they are let go.
        let _ = rustix::fs::fadvise(&file, offset, len, rustix::fs::Advice::DontNeed);
        thread::sleep(Duration::from_micros(random.below(20_000)));
    }
}

fn mount_point(directory: &Path, number: usize) -> PathBuf {
    directory.join(format!("mount-{number}"))
}
