//! Tenants that keep requests outstanding on volumes of a modelled drive.

use std::cell::Cell;
use std::rc::Rc;

use client::{Client, Options, Volume};
use device::{MemDevice, ModelDevice, SharedModel};
use io_traits::{Clock, Spawn};
use nvme_frontend::{NvmeOptions, nqn_of};
use schedule::{Ceiling, CorePart, CostModel, PolicyKind, Promise, SchedulerConfig, Slo, plan};
use sim::SimWorld;
use ssd_model::{Model, Params, Preset};
use units::{CoreIndex, DeviceIndex, Duration, Instant, Lba, ShardIndex};
use uuid::Uuid;
use volume::VolumeSpec;

use super::{SimCore, data, portal, serve_with};

/// 1 GiB.
const DRIVE_BLOCKS: u64 = 1 << 18;
/// Blocks of a volume: all of them are written before anything is measured.
pub(crate) const VOLUME_BLOCKS: u64 = 512;
/// A tenth of a P3700.
const SCALE: f64 = 0.1;
/// Half of what that does of such a mix: the journal takes its part.
pub(crate) const CEILING: Ceiling = Ceiling { reads_per_second: 4_900, writes_per_second: 2_100 };
pub(crate) const LATENCY: Duration = Duration::from_millis(10);

/// A server on a modelled drive, with volumes that are promised something.
pub(crate) struct Sharing {
    pub(crate) world: SimWorld,
    pub(crate) core: SimCore,
    slos: Vec<Slo>,
}

/// The load of a tenant; the numbers may change while it runs.
pub(crate) struct Tenant {
    pub(crate) depth: Cell<usize>,
    pub(crate) reads_percent: u64,
    pub(crate) blocks: u64,
    /// Blocks read and written.
    done_blocks: Cell<u64>,
    turn: Cell<u64>,
    latencies_us: Cell<Vec<u64>>,
}

pub(crate) fn uuid_of(volume: usize) -> Uuid {
    Uuid::from_u128(volume as u128 + 1)
}

impl Sharing {
    /// A drive with a written volume for each of `slos`, without a ceiling yet.
    pub(crate) async fn new(world: &SimWorld, slos: &[Slo]) -> Self {
        let params = Params { scale: SCALE, ..Preset::P3700.params() };
        let model = Model::new(&params, DRIVE_BLOCKS, 1).expect("a sound drive");
        let memory = MemDevice::new(DRIVE_BLOCKS).expect("memory");
        let device = ModelDevice::new(memory, world.clone(), SharedModel::new(model));
        let options = volume::FormatOptions { uuid: Uuid::from_u128(99) };
        volume::format(&device, &options).await.expect("a sound drive");
        let core = serve_with(world.clone(), device, NvmeOptions::new(portal())).await;
        for (n, slo) in slos.iter().enumerate() {
            let name = format!("volume-{n}");
            let spec = VolumeSpec { uuid: uuid_of(n), name, blocks: VOLUME_BLOCKS };
            core.create_volume(ShardIndex(0), spec, *slo).await.expect("room");
        }
        Self { world: world.clone(), core, slos: slos.to_vec() }
    }

    /// Sets the ceiling and a policy.
    pub(crate) fn schedule(&self, policy: &str) {
        let model = CostModel::Separate;
        let promises: Vec<_> =
            self.slos.iter().map(|slo| Promise { core: CoreIndex(0), slo: *slo }).collect();
        let plan = plan(CEILING, LATENCY, model, &promises, 1).expect("fits");
        let CorePart { ceiling, window_blocks } =
            plan.cores[CoreIndex(0)].expect("there are volumes");
        let policy: PolicyKind = policy.parse().expect("known");
        let config = SchedulerConfig { policy, cost_model: model, ceiling, window_blocks };
        let quotas: Vec<_> = plan.quotas.into_iter().enumerate().collect();
        let quotas: Vec<_> = quotas.into_iter().map(|(n, quota)| (uuid_of(n), quota)).collect();
        self.core.schedule(DeviceIndex(0), Some(config), &quotas);
    }

    /// Connects a host and fills the volume.
    pub(crate) async fn filled(&self, volume: usize) -> Volume<SimWorld> {
        let opened = self.open(volume).await;
        for lba in (0..VOLUME_BLOCKS).step_by(256) {
            opened.write(Lba(lba), data(lba, 256)).await.expect("written");
        }
        opened
    }

    /// Starts `tenant` on a volume with up to `workers` requests outstanding.
    pub(crate) fn start(&self, volume: &Volume<SimWorld>, workers: usize, tenant: &Rc<Tenant>) {
        for worker in 0..workers {
            let (world, volume, tenant) = (self.world.clone(), volume.clone(), tenant.clone());
            let seed = self.world.draw(|rng| rng.next_u64());
            self.world.spawn(async move { tenant.work(world, volume, worker, seed).await });
        }
    }

    /// Connects a host.
    pub(crate) async fn open(&self, volume: usize) -> Volume<SimWorld> {
        let options = Options { header_digest: false, data_digest: false, ..host(volume) };
        let nqn = nqn_of(uuid_of(volume));
        let client = Client::connect(self.world.clone(), portal(), &nqn, options).await;
        client.expect("a server").volume().await.expect("a namespace")
    }

    /// Starts all tenants, and returns when they are settled.
    pub(crate) async fn start_all(&self, tenants: &[Rc<Tenant>], workers: usize) {
        let mut volumes = Vec::new();
        for volume in 0..tenants.len() {
            volumes.push(self.filled(volume).await);
        }
        for (volume, tenant) in volumes.iter().zip(tenants) {
            self.start(volume, workers, tenant);
        }
        self.pass(Duration::from_millis(300)).await;
        tenants.iter().for_each(|tenant| drop(tenant.take()));
    }

    pub(crate) async fn pass(&self, time: Duration) {
        self.world.sleep_until(self.world.now() + time).await;
    }

    /// Returns the rates of tenants over `time`, in blocks a second.
    pub(crate) async fn rates(&self, tenants: &[Rc<Tenant>], time: Duration) -> Vec<f64> {
        tenants.iter().for_each(|tenant| drop(tenant.take()));
        self.pass(time).await;
        tenants.iter().map(|tenant| tenant.take().0 as f64 / time.as_secs_f64()).collect()
    }
}

fn host(volume: usize) -> Options {
    Options::for_host([volume as u8 + 1; 16])
}

impl Tenant {
    pub(crate) fn new(depth: usize, reads_percent: u64, blocks: u64) -> Rc<Self> {
        Rc::new(Self {
            depth: Cell::new(depth),
            reads_percent,
            blocks,
            done_blocks: Cell::new(0),
            turn: Cell::new(0),
            latencies_us: Cell::default(),
        })
    }

    /// Blocks and latencies (µs, sorted) since it was last asked.
    pub(crate) fn take(&self) -> (u64, Vec<u64>) {
        let mut latencies = self.latencies_us.take();
        latencies.sort_unstable();
        (self.done_blocks.take(), latencies)
    }

    /// The kinds alternate, so that none is ever more than one request ahead of its part.
    fn is_read(&self) -> bool {
        let turn = self.turn.get();
        self.turn.set(turn + 1);
        (turn + 1) * self.reads_percent / 100 > turn * self.reads_percent / 100
    }

    async fn work(&self, world: SimWorld, volume: Volume<SimWorld>, worker: usize, seed: u64) {
        let mut random = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        let mut draw = |below: u64| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random % below
        };
        loop {
            if worker >= self.depth.get() {
                world.sleep_until(world.now() + Duration::from_millis(1)).await;
                continue;
            }
            let began: Instant = world.now();
            let lba = Lba(draw(VOLUME_BLOCKS / self.blocks) * self.blocks);
            if self.is_read() {
                volume.read(lba, self.blocks as u32).await.expect("read");
            } else {
                volume.write(lba, data(lba.0, self.blocks as usize)).await.expect("written");
            }
            self.done_blocks.set(self.done_blocks.get() + self.blocks);
            let mut latencies = self.latencies_us.take();
            latencies.push(world.now().since(began).as_micros() as u64);
            self.latencies_us.set(latencies);
        }
    }
}
