//! Figure 13 of Decibel in real time: hosts of this process, connected by NVMe/TCP to a server of
//! its own on a modelled drive.

use std::cell::{Cell, RefCell};
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::time::Duration;

use client::{Client, Options, Volume};
use control::{ApiClient, ChangeDevice, ChangeVolume, CreateVolume, Slo, VolumeSize};
use io_traits::{Buffer, Clock, Spawn};
use local_devices::storage;
use local_sync::Notify;
use nvme_frontend::nqn_of;
use reactor::{CoreConfig, Handle};
use reproduce::decibel_13::{self, BURST, Curve, DEPTH, PART, Setting};
use reproduce::{Outcome, Progress};
use schedule::{Ceiling, POLICIES, PolicyKind};
use user_messages::Failure;
use uuid::Uuid;

/// The ceiling for a P3700 at its full speed here: half of its rate, since the journal and the machine take
/// their part.
const CEILING: Ceiling = Ceiling { reads_per_second: 49_000, writes_per_second: 21_000 };
const LATENCY_US: f64 = 1_000.0;
/// 70 % reads.
const READS_OF_TEN: u64 = 7;
const VOLUME_BLOCKS: u64 = 512;
const FILL_BLOCKS: u64 = 128;
const POINTS: u32 = 60;
/// The paper's nine minutes.
const SECONDS: f64 = 540.0;
/// Noise of a machine that does other things, too.
const TOLERANCE_PERCENT: f64 = 5.0;
/// Part of the ceiling that is lost because the server does not get its CPU.
const IDLE_PERCENT: f64 = 10.0;
const SETTLE: Duration = Duration::from_millis(500);

/// A server of ours; ends with this value.
pub(super) struct Server {
    child: Child,
    pub(super) api: ApiClient,
    /// Address of the API.
    pub(super) url: String,
    portal: SocketAddr,
}

/// The way in which a server is started.
pub(super) struct Serving<'a> {
    pub(super) device: &'a str,
    /// Words before the command, such as those that let it run in a network of its own; they become the server's process.
    pub(super) within: Vec<String>,
}

impl Drop for Server {
    fn drop(&mut self) {
        // What it holds goes with the experiment.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs the figure: `time` is the part of the paper's nine minutes for each policy, `scale` the
/// speed of the drive.
pub(super) fn run(
    time: f64,
    scale: f64,
    seed: u64,
    progress: Progress<'_>,
) -> Result<Outcome, Failure> {
    if !(time > 0.0 && time <= 1.0 && (0.001..=1.0).contains(&scale)) {
        let what = "a part of the time or of the speed is above 0 and at most 1";
        return Err(Failure::usage(what, "try --time 0.05 --scale 0.05"));
    }
    let scaled = |rate: u64| (rate as f64 * scale) as u64;
    let ceiling = Ceiling {
        reads_per_second: scaled(CEILING.reads_per_second),
        writes_per_second: scaled(CEILING.writes_per_second),
    };
    let device = format!("{},size=128MiB,scale={scale},seed={seed}", device_name());
    let server = Server::start(&Serving { device: &device, within: Vec::new() })?;
    let part = |rate: u64| (rate as f64 * PART) as u64;
    let slo = Slo::Rate {
        reads_per_second: part(ceiling.reads_per_second),
        writes_per_second: part(ceiling.writes_per_second),
    };
    let mut volumes = Vec::new();
    for n in 1..=3 {
        let name = format!("client-{n}").parse().expect("a name");
        let size_bytes = VolumeSize::try_from(VOLUME_BLOCKS * 4096).expect("a size");
        let made = server.api.create(&CreateVolume::new(name, size_bytes))?;
        volumes.push(made.volume.id);
    }
    fill(server.portal, &volumes)?;
    let change = ChangeDevice {
        reads_per_second: Some(ceiling.reads_per_second),
        writes_per_second: Some(ceiling.writes_per_second),
        latency_target_us: Some((LATENCY_US / scale) as u64),
        ..ChangeDevice::default()
    };
    server.api.change_device(&device_name(), &change)?;
    for id in &volumes {
        let change = ChangeVolume { slo: Some(slo), ..ChangeVolume::default() };
        server.api.change(&id.to_string(), &change)?;
    }
    let mut curves = Vec::new();
    let order = ["fcfs", "sts", "drr"];
    for (done, name) in order.iter().enumerate() {
        let policy = *POLICIES.iter().find(|policy| policy.name == *name).expect("known");
        let change = ChangeDevice { policy: Some((*name).to_owned()), ..ChangeDevice::default() };
        server.api.change_device(&device_name(), &change)?;
        let (portal, volumes) = (server.portal, volumes.clone());
        let step = Duration::from_secs_f64(SECONDS * time / f64::from(POINTS));
        let measured =
            reactor::run_on_current_thread(&CoreConfig::default(), |handle| async move {
                measure(&handle, portal, &volumes, policy, step).await
            });
        curves.push(measured.map_err(|error| storage::no_core(&error))??);
        progress((done + 1) as f64 / order.len() as f64);
    }
    let setting = Setting {
        title: format!("Decibel, figure 13, in real time on a P3700 at {scale} of its speed"),
        ceiling,
        seconds: SECONDS * time,
        tolerance_percent: TOLERANCE_PERCENT,
        idle_percent: IDLE_PERCENT,
    };
    decibel_13::outcome(&curves, &setting)
        .map_err(|error| Failure::runtime(error.to_string(), "report this"))
}

fn device_name() -> String {
    "model:p3700".to_owned()
}

impl Server {
    /// Serves a device to every host of this machine.
    pub(super) fn start(serving: &Serving<'_>) -> Result<Self, Failure> {
        let device = serving.device;
        let failed = |error: &dyn std::fmt::Display| {
            let what = format!("the server for this experiment does not start: {error}");
            Failure::runtime(what, format!("see whether `farflash serve --device {device}` does"))
        };
        let program = std::env::current_exe().map_err(|error| failed(&error))?;
        let mut words = serving.within.iter().map(Path::new).chain([program.as_path()]);
        let mut child = Command::new(words.next().expect("a program"))
            .args(words)
            .args(["serve", "--device", device, "--listen", "127.0.0.1:0"])
            .args(["--api", "127.0.0.1:0", "--auth", "off", "--log-json"])
            .stderr(Stdio::piped())
            // Ctrl-C is for this process, which ends its server.
            .process_group(0)
            .spawn()
            .map_err(|error| failed(&error))?;
        let mut lines = BufReader::new(child.stderr.take().expect("piped")).lines();
        let (mut portal, mut api, mut last) = (None, None, String::new());
        // Its last line before it is silent is the one that says where it is.
        while api.is_none() {
            let Some(Ok(line)) = lines.next() else { break };
            let fields = serde_json::from_str::<serde_json::Value>(&line).unwrap_or_default();
            let fields = &fields["fields"];
            portal = fields["portal"].as_str().and_then(|text| text.parse().ok()).or(portal);
            api = fields["api"].as_str().map(str::to_owned);
            last = line;
        }
        let (Some(portal), Some(api)) = (portal, api) else {
            let _ = child.wait();
            return Err(failed(&last));
        };
        // Whatever it says from now on is read, so that it never waits for a reader.
        std::thread::spawn(move || lines.map_while(Result::ok).for_each(drop));
        Ok(Self { child, api: ApiClient::new(&api)?, url: api, portal })
    }

    pub(super) fn process(&self) -> u32 {
        self.child.id()
    }
}

/// One client's requests.
#[derive(Default)]
struct Tenant {
    depth: Cell<usize>,
    changed: Notify,
    turn: Cell<u64>,
    done: Cell<u64>,
    read_latencies_us: RefCell<Vec<u64>>,
    failed: RefCell<Option<String>>,
    stopped: Cell<bool>,
}

impl Tenant {
    fn set_depth(&self, depth: u32) {
        self.depth.set(depth as usize);
        self.changed.notify_all();
    }

    async fn work(
        self: Rc<Self>,
        handle: Handle,
        volume: Volume<Handle>,
        worker: usize,
        seed: u64,
    ) {
        let mut random = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        let data = Buffer::zeroed(1).into_slice();
        while !self.stopped.get() {
            if worker >= self.depth.get() {
                self.changed.notified().await;
                continue;
            }
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let lba = units::Lba(random % VOLUME_BLOCKS);
            let turn = self.turn.replace(self.turn.get() + 1);
            let is_read = turn * READS_OF_TEN % 10 < READS_OF_TEN;
            let begin = handle.precise_now();
            let result = if is_read {
                volume.read(lba, 1).await.map(drop)
            } else {
                volume.write(lba, data.clone()).await
            };
            if let Err(error) = result {
                *self.failed.borrow_mut() = Some(error.to_string());
                return;
            }
            if is_read {
                let took_us = handle.precise_now().since(begin).as_micros();
                self.read_latencies_us
                    .borrow_mut()
                    .push(u64::try_from(took_us).unwrap_or(u64::MAX));
            }
            self.done.set(self.done.get() + 1);
        }
    }
}

fn failed(error: &dyn std::fmt::Display) -> Failure {
    let what = format!("a client failed: {error}");
    Failure::runtime(what, "look at the kernel's log, or report this")
}

async fn connect(
    handle: &Handle,
    portal: SocketAddr,
    id: Uuid,
    host: u8,
) -> Result<(Client<Handle>, Volume<Handle>), Failure> {
    let options = Options::for_host([host + 1; 16]);
    let client = Client::connect(handle.clone(), portal, &nqn_of(id), options).await;
    let client = client.map_err(|error| failed(&error))?;
    let volume = client.volume().await.map_err(|error| failed(&error))?;
    Ok((client, volume))
}

/// Writes every block, so that every read is one of the drive.
fn fill(portal: SocketAddr, volumes: &[Uuid]) -> Result<(), Failure> {
    let volumes = volumes.to_vec();
    let filled = reactor::run_on_current_thread(&CoreConfig::default(), |handle| async move {
        for id in volumes {
            let (client, volume) = connect(&handle, portal, id, 0).await?;
            for lba in (0..VOLUME_BLOCKS).step_by(FILL_BLOCKS as usize) {
                let data = Buffer::zeroed(FILL_BLOCKS as usize).into_slice();
                volume.write(units::Lba(lba), data).await.map_err(|error| failed(&error))?;
            }
            client.close().await;
        }
        Ok(())
    });
    filled.map_err(|error| storage::no_core(&error))?
}

async fn measure(
    handle: &Handle,
    portal: SocketAddr,
    volumes: &[Uuid],
    policy: PolicyKind,
    step: Duration,
) -> Result<Curve, Failure> {
    let (mut tenants, mut clients) = (Vec::new(), Vec::new());
    for (n, id) in volumes.iter().enumerate() {
        let (client, volume) = connect(handle, portal, *id, n as u8).await?;
        let tenant = Rc::new(Tenant::default());
        for worker in 0..BURST as usize {
            let seed = (n as u64) << 32 | worker as u64;
            let work = tenant.clone().work(handle.clone(), volume.clone(), worker, seed + 1);
            handle.spawn(work);
        }
        tenants.push(tenant);
        clients.push(client);
    }
    let mut curve = Curve { policy, rates: Vec::new(), read_p99_us: [[0.0; 3]; 3] };
    for phase in 0..3 {
        for (n, tenant) in tenants.iter().enumerate() {
            tenant.set_depth(if phase == 1 && n == 1 { BURST } else { DEPTH });
        }
        handle.sleep_until(handle.now() + SETTLE.min(step * 2)).await;
        tenants.iter().for_each(|tenant| tenant.read_latencies_us.borrow_mut().clear());
        for _ in 0..POINTS / 3 {
            curve.rates.push(rates(handle, &tenants, step).await);
        }
        for (p99_us, tenant) in curve.read_p99_us[phase].iter_mut().zip(&tenants) {
            let mut latencies = tenant.read_latencies_us.take();
            latencies.sort_unstable();
            *p99_us = latencies.get(latencies.len() * 99 / 100).map_or(0.0, |us| *us as f64);
        }
    }
    // Asked before the clients are closed: what is under way then fails.
    let error = tenants.iter().find_map(|tenant| tenant.failed.take());
    for tenant in &tenants {
        tenant.stopped.set(true);
        tenant.set_depth(0);
    }
    for client in clients {
        client.close().await;
    }
    error.map_or(Ok(curve), |error| Err(failed(&error)))
}

/// Requests a second of each client over `step`.
async fn rates(handle: &Handle, tenants: &[Rc<Tenant>], step: Duration) -> [f64; 3] {
    tenants.iter().for_each(|tenant| tenant.done.set(0));
    let begin = handle.precise_now();
    handle.sleep_until(handle.now() + step).await;
    let seconds = handle.precise_now().since(begin).as_secs_f64();
    let mut rates = [0.0; 3];
    for (rate, tenant) in rates.iter_mut().zip(tenants) {
        *rate = tenant.done.get() as f64 / seconds;
    }
    rates
}
