//! `bench demo`: two volumes of a real server under load, the server killed and restarted in the
//! middle, every acknowledged byte verified, and the result beside the same load on a local file.

use std::cell::RefCell;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use client::{Backoff, Client, Options, Reconnect};
use load::{
    Access, DeviceTarget, Distribution, Interval, Journal, Limit, Observer, OnError, Outcome,
    Setup, Target, Verified, VolumeTarget, Workload,
};
use reactor::{CoreConfig, Handle, OpenOptions, OwnedDevice};
use report::{Align, Table, duration_ns, json_line, rate, rate_bytes};
use units::{BLOCK_SIZE, ByteLen, Lba, LbaRange};

use crate::cpus;
use crate::demo_plot::plot;
use crate::process::{Server, VolumeAddress, run};
use crate::run_args::{directory, program};

const NAMES: [&str; 2] = ["alpha", "beta"];
const DEVICE_SIZE: &str = "4GiB";
const VOLUME_SIZE: &str = "10TiB";
const READ_PERCENT: u8 = 70;
/// Requests outstanding on each volume; on the local file as many as on both.
const DEPTH: u32 = 16;
const DOWN_FOR: Duration = Duration::from_secs(2);
/// The demo fails if the server is not back by then.
const GIVE_UP_AFTER: Duration = Duration::from_secs(20);
const INTERVAL: Duration = Duration::from_millis(500);
/// Requests of the check at the end that are outstanding at once.
const VERIFY_DEPTH: u32 = 32;

#[derive(Debug, clap::Args)]
pub(crate) struct DemoArgs {
    /// The farflash program to show
    #[arg(long)]
    farflash: PathBuf,
    /// Directory for the device, the logs and the results
    #[arg(long, default_value = "demo-out")]
    out: PathBuf,
    #[command(flatten)]
    scale: Scale,
}

/// Scale of the demonstration: less takes less time, and shows less.
#[derive(Clone, Copy, Debug, clap::Args)]
struct Scale {
    /// Bytes written and read of each volume, and of the local file
    #[arg(long, value_name = "SIZE", default_value = "256MiB")]
    range: ByteLen,
    /// Length of the load on the local file
    #[arg(long, value_name = "S", default_value_t = 6)]
    local_seconds: u64,
    /// Length of the load on the volumes
    #[arg(long, value_name = "S", default_value_t = 24)]
    seconds: u64,
    /// Seconds of that before the server is killed
    #[arg(long, value_name = "S", default_value_t = 10)]
    kill_after: u64,
}

impl Scale {
    fn range(self) -> Result<LbaRange> {
        let blocks = self.range.whole_blocks().filter(|blocks| *blocks > 0);
        Ok(LbaRange::new(Lba(0), blocks.context("--range is no multiple of 4 KiB")?))
    }
}

/// Results of the load on the volumes.
pub(crate) struct Remote {
    pub(crate) outcomes: Vec<Outcome>,
    pub(crate) killed_at: f64,
    pub(crate) back_at: f64,
    checks: Vec<Check>,
}

/// Findings of the check of a volume at the end.
struct Check {
    /// Blocks of which a write was acknowledged.
    acknowledged: u64,
    verified: Verified,
    reconnects: u64,
}

/// Runs the demo.
pub(crate) fn demo(args: &DemoArgs) -> Result<()> {
    let (begin, scale) = (Instant::now(), args.scale);
    let range = scale.range()?;
    let (out, farflash) = (directory(&args.out)?, program(&args.farflash)?);
    let (image, local_image) = (out.join("flash.img"), out.join("local.img"));
    for path in [&image, &local_image] {
        if path.exists() {
            fs::remove_file(path)?;
        }
    }
    let device = format!("file:{}", image.display());

    let cpu = cpus::server();
    step(&format!("format a sparse file of {DEVICE_SIZE} and serve it from CPU {cpu}"));
    run(Command::new(&farflash).args([
        "format",
        "--device",
        &format!("{device},size={DEVICE_SIZE}"),
    ]))?;
    let server = Server::start(&farflash, &device, cpus::server(), &out.join("server.log"))?;
    println!("  up after {:.0} ms", server.startup.as_secs_f64() * 1e3);

    step(&format!("create two thin volumes of {VOLUME_SIZE}"));
    let mut volumes = Vec::new();
    for name in NAMES {
        let volume = server.create_volume(name, VOLUME_SIZE)?;
        println!("  {name}: {}", volume.target());
        volumes.push(volume);
    }

    let load = format!("{READ_PERCENT} % random reads, {}", ByteLen(4096));
    step(&format!("local file: {load}, depth {}, {} s", 2 * DEPTH, scale.local_seconds));
    let local = local(&local_image, range, scale.local_seconds)?;
    step(&format!("both volumes: {load}, depth {DEPTH} each, {} s, digests on", scale.seconds));
    let (server, remote) = remote(server, &volumes, scale)?;
    step("stop the server");
    server.program.terminate()?;

    fs::write(out.join("demo.svg"), plot(&local, &remote)?)?;
    let mut lines = json_line(&local)?;
    for outcome in &remote.outcomes {
        lines += &json_line(outcome)?;
    }
    fs::write(out.join("demo.jsonl"), lines)?;
    println!("\n{}", table(&local, &remote).to_text());
    println!(
        "Each write was acknowledged only when durable; writes to the local file may still be in the\n\
         drive's cache. Before/after the kill; latencies include the {:.1} s in which the server was down.\n",
        remote.back_at - remote.killed_at
    );
    println!("plot: {}", out.join("demo.svg").display());
    println!("done in {:.0} s", begin.elapsed().as_secs_f64());
    judge(&local, &remote, range)
}

fn step(what: &str) {
    println!("\n== {what}");
}

/// The demo has shown something only if there was load, a kill that every volume noticed, and a check
/// of all that was acknowledged.
fn judge(local: &Outcome, remote: &Remote, range: LbaRange) -> Result<()> {
    judge_load("the local file", local)?;
    ensure!(remote.back_at > remote.killed_at, "the server was not killed and started again");
    ensure!(
        remote.outcomes.len() == NAMES.len() && remote.checks.len() == NAMES.len(),
        "a volume is missing"
    );
    for ((name, outcome), check) in NAMES.iter().zip(&remote.outcomes).zip(&remote.checks) {
        judge_load(name, outcome)?;
        let Verified { blocks, wrong } = check.verified;
        ensure!(wrong == 0, "{name}: {wrong} blocks are wrong");
        ensure!(
            check.acknowledged >= range.blocks && blocks >= check.acknowledged,
            "{name}: of {} acknowledged blocks {blocks} were read back",
            check.acknowledged
        );
        ensure!(check.reconnects > 0, "{name}: the load did not notice that the server was killed");
    }
    Ok(())
}

fn judge_load(name: &str, outcome: &Outcome) -> Result<()> {
    let Outcome { errors, mismatches, read, write, .. } = outcome;
    ensure!(*errors == 0, "{name}: {errors} requests failed");
    ensure!(*mismatches == 0, "{name}: {mismatches} blocks were wrong during the run");
    ensure!(read.requests > 0 && write.requests > 0, "{name}: nothing was read or written");
    Ok(())
}

/// Writes all of a target once.
async fn fill<T: Target>(
    handle: &Handle,
    name: &str,
    target: &T,
    journal: &Rc<RefCell<Journal>>,
) -> Result<()> {
    let (mut bytes, mut say) = (0, say_progress(format!("  {name}: filling")));
    let range = journal.borrow().range();
    let total = range.blocks * BLOCK_SIZE as u64;
    let observer: Observer = Box::new(move |interval| {
        bytes += interval.bytes;
        say(bytes, total);
    });
    let filled = load::run(setup(handle, target, journal, Some(observer)), filling(range)).await?;
    ensure!(filled.errors == 0, "{name}: {} writes failed while it was filled", filled.errors);
    let written = journal.borrow().blocks_written();
    ensure!(written == range.blocks, "{name}: {written} of {} blocks were filled", range.blocks);
    Ok(())
}

/// Says how far some work is, if it takes long.
fn say_progress(what: String) -> load::Watcher {
    let (begin, mut progress) = (Instant::now(), report::Progress::new(what));
    Box::new(move |done, total| {
        if let Some(line) = progress.line(begin.elapsed(), done, total) {
            println!("{line}");
        }
    })
}

fn filling(range: LbaRange) -> Workload {
    Workload {
        read_percent: 0,
        access: Access::Sequential,
        blocks_per_request: 32,
        depth: 8,
        limit: Limit::Bytes(range.blocks * 4096),
        ..mixed(range, DEPTH, 0)
    }
}

fn mixed(range: LbaRange, depth: u32, seconds: u64) -> Workload {
    Workload {
        read_percent: READ_PERCENT,
        access: Access::Random(Distribution::Uniform),
        blocks_per_request: 1,
        depth,
        limit: Limit::Time(Duration::from_secs(seconds)),
        rate: None,
        range,
        seed: 1,
        interval: INTERVAL,
        on_error: OnError::Stop,
    }
}

fn setup<T: Target>(
    handle: &Handle,
    target: &T,
    journal: &Rc<RefCell<Journal>>,
    observer: Option<Observer>,
) -> Setup<T, Handle, impl Fn() -> units::Instant + 'static> {
    let clock = handle.clone();
    Setup {
        world: handle.clone(),
        now: move || clock.precise_now(),
        targets: vec![target.clone()],
        journal: Some(journal.clone()),
        recorder: None,
        observer,
        stop: None,
    }
}

fn journal(range: LbaRange, seed: u64) -> Result<Rc<RefCell<Journal>>> {
    Ok(Rc::new(RefCell::new(Journal::new(range, seed)?)))
}

/// Runs `main` on a thread of its own, so that this one, and programs that it starts, stay free to
/// run on any CPU.
fn on_core<F, Fut, T>(main: F) -> Result<T>
where
    F: FnOnce(Handle) -> Fut + Send + 'static,
    Fut: Future<Output = Result<T>> + 'static,
    T: Send + 'static,
{
    let config =
        CoreConfig { cpu: Some(cpus::client()), name: "demo".to_owned(), ..CoreConfig::default() };
    let Ok(result) = reactor::spawn_thread(config, main)?.join() else {
        bail!("the thread of the load panicked");
    };
    result
}

fn local(image: &Path, range: LbaRange, seconds: u64) -> Result<Outcome> {
    reactor::create_sparse(image, range.blocks * 4096)?;
    let device = OwnedDevice::open(image, OpenOptions::default())?;
    on_core(move |handle| async move {
        let target = DeviceTarget::new(device.attach(&handle));
        let journal = journal(range, 1)?;
        fill(&handle, "local file", &target, &journal).await?;
        let observer = progress(vec!["local"], 0);
        let setup = setup(&handle, &target, &journal, Some(observer));
        anyhow::Ok(load::run(setup, mixed(range, 2 * DEPTH, seconds)).await?)
    })
}

/// Puts load on the volumes while another thread kills and restarts the server.
fn remote(mut server: Server, volumes: &[VolumeAddress], scale: Scale) -> Result<(Server, Remote)> {
    let (begin, begun) = mpsc::channel();
    let chaos = std::thread::spawn(move || -> Result<(Server, f64, f64)> {
        begun.recv().context("the load did not begin")?;
        let start = Instant::now();
        std::thread::sleep(Duration::from_secs(scale.kill_after));
        server.program.kill()?;
        let killed_at = start.elapsed().as_secs_f64();
        println!("  >>> server killed (SIGKILL)");
        std::thread::sleep(DOWN_FOR);
        server.restart(cpus::server())?;
        let back_at = start.elapsed().as_secs_f64();
        println!("  >>> server restarted");
        Ok((server, killed_at, back_at))
    });
    let volumes = volumes.to_vec();
    let driven = on_core(move |handle| drive(handle, volumes, scale, begin));
    let chaos = chaos.join();
    let Ok(chaos) = chaos else { bail!("the thread that restarts the server panicked") };
    // Why the server did not come back says more than that the load failed.
    let (server, killed_at, back_at) = chaos?;
    let mut remote = driven?;
    (remote.killed_at, remote.back_at) = (killed_at, back_at);
    Ok((server, remote))
}

async fn drive(
    handle: Handle,
    volumes: Vec<VolumeAddress>,
    scale: Scale,
    begin: mpsc::Sender<()>,
) -> Result<Remote> {
    let (mut sides, range) = (Vec::new(), scale.range()?);
    for (index, volume) in (1u8..).zip(&volumes) {
        let backoff = Backoff { give_up_after: GIVE_UP_AFTER, ..Backoff::default() };
        let options = Options {
            depth: u16::try_from(DEPTH)?,
            reconnect: Reconnect::Backoff(backoff),
            ..Options::for_host([index; 16])
        };
        let nqn = volume.nqn.parse()?;
        let client = Client::connect(handle.clone(), volume.address, &nqn, options).await?;
        let target = VolumeTarget::new(client.volume().await?)?;
        let journal = journal(range, 100 + u64::from(index))?;
        let name = NAMES[usize::from(index) - 1];
        fill(&handle, name, &target, &journal).await?;
        println!("  {name} is filled");
        sides.push((client, target, journal));
    }
    begin.send(()).context("the thread that kills the server has ended")?;
    let lines = Rc::new(RefCell::new(Progress::new(NAMES.to_vec())));
    let run = |side: usize| {
        let (_, target, journal) = &sides[side];
        let lines = lines.clone();
        let observer: Observer = Box::new(move |interval| lines.borrow_mut().show(side, interval));
        let workload = mixed(range, DEPTH, scale.seconds);
        load::run(setup(&handle, target, journal, Some(observer)), workload)
    };
    let (first, second) = join(run(0), run(1)).await;
    let outcomes = vec![first?, second?];
    let mut checks = Vec::new();
    for ((client, target, journal), name) in sides.iter().zip(NAMES) {
        let watcher = say_progress(format!("  {name}: reading everything back"));
        let verified = load::verify(&handle, target, journal, VERIFY_DEPTH, Some(watcher)).await?;
        let check = Check {
            acknowledged: journal.borrow().blocks_written(),
            verified,
            reconnects: client.counters().reconnects,
        };
        println!(
            "  {name}: {} blocks read back and verified, {} of them acknowledged",
            verified.blocks, check.acknowledged
        );
        checks.push(check);
        for mismatch in journal.borrow().mismatches() {
            println!("  {name}: {mismatch}");
        }
    }
    for (client, ..) in sides {
        client.close().await;
    }
    Ok(Remote { outcomes, checks, killed_at: 0.0, back_at: 0.0 })
}

/// Polls two futures until both are done.
async fn join<A: Future, B: Future>(first: A, second: B) -> (A::Output, B::Output) {
    let (mut first, mut second) = (std::pin::pin!(first), std::pin::pin!(second));
    let (mut one, mut two) = (None, None);
    std::future::poll_fn(move |context| {
        if one.is_none()
            && let std::task::Poll::Ready(output) = first.as_mut().poll(context)
        {
            one = Some(output);
        }
        if two.is_none()
            && let std::task::Poll::Ready(output) = second.as_mut().poll(context)
        {
            two = Some(output);
        }
        match (one.take(), two.take()) {
            (Some(one), Some(two)) => std::task::Poll::Ready((one, two)),
            (left, right) => {
                (one, two) = (left, right);
                std::task::Poll::Pending
            }
        }
    })
    .await
}

/// Live progress: a line each second with all loads beside each other.
struct Progress {
    names: Vec<&'static str>,
    last: Vec<String>,
    calls: usize,
}

impl Progress {
    fn new(names: Vec<&'static str>) -> Self {
        Self { last: vec![String::new(); names.len()], names, calls: 0 }
    }

    fn show(&mut self, side: usize, interval: &Interval) {
        self.last[side] = format!(
            "{:<6}{:>8} IOPS  {:>10}  p99 {:>8}",
            self.names[side],
            rate(interval.iops()),
            rate_bytes(interval.bytes as f64 / interval.seconds.max(1e-9)),
            duration_ns(interval.p99_ns as f64),
        );
        if side + 1 == self.names.len() {
            self.calls += 1;
            if self.calls.is_multiple_of(2) {
                println!("  {:>5.1} s  {}", interval.end_seconds, self.last.join("  |  "));
            }
        }
    }
}

fn progress(names: Vec<&'static str>, side: usize) -> Observer {
    let mut progress = Progress::new(names);
    Box::new(move |interval| progress.show(side, interval))
}

/// Mean rate of the steps that ended within a time.
fn mean_rate(outcome: &Outcome, within: std::ops::Range<f64>) -> f64 {
    let steps = outcome.intervals.iter().filter(|step| {
        step.end_seconds - step.seconds >= within.start && step.end_seconds <= within.end
    });
    let (mut requests, mut seconds) = (0, 0.0);
    for step in steps {
        requests += step.reads + step.writes;
        seconds += step.seconds;
    }
    if seconds > 0.0 { requests as f64 / seconds } else { 0.0 }
}

fn table(local: &Outcome, remote: &Remote) -> Table {
    let mut table = Table::new(&[
        ("", Align::Left),
        ("requests/s", Align::Right),
        ("read 50 %", Align::Right),
        ("99 %", Align::Right),
        ("99.9 %", Align::Right),
        ("write 50 %", Align::Right),
        ("99 %", Align::Right),
        ("99.9 %", Align::Right),
        ("errors", Align::Right),
        ("wrong", Align::Right),
    ]);
    let rows =
        std::iter::once(("local file", local)).chain(NAMES.into_iter().zip(&remote.outcomes));
    for (name, outcome) in rows {
        let requests = if name == "local file" {
            rate(outcome.iops)
        } else {
            let before = mean_rate(outcome, 0.0..remote.killed_at);
            let after = mean_rate(outcome, remote.back_at + 1.0..f64::INFINITY);
            format!("{} / {}", rate(before), rate(after))
        };
        let mut cells = vec![name.to_owned(), requests];
        for tally in [&outcome.read, &outcome.write] {
            let at = |of: fn(&load::Latency) -> u64| {
                tally.latency.as_ref().map_or("–".to_owned(), |l| duration_ns(of(l) as f64))
            };
            cells.extend([at(|l| l.p50_ns), at(|l| l.p99_ns), at(|l| l.p99_9_ns)]);
        }
        cells.extend([outcome.errors.to_string(), outcome.mismatches.to_string()]);
        table.row(cells);
    }
    let sum = |of: fn(&Check) -> u64| remote.checks.iter().map(of).sum::<u64>();
    println!(
        "\n{} acknowledged blocks verified after the kill, {} wrong; {} connections made again; {} \
         errors seen by the load.",
        sum(|check| check.acknowledged),
        sum(|check| check.verified.wrong),
        sum(|check| check.reconnects),
        remote.outcomes.iter().map(|outcome| outcome.errors).sum::<u64>()
    );
    table
}
