//! `farflash calibrate`: what a device can do, and the ceiling that follows.

mod curve;

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use device::kind::{self, Backing, DeviceSpec};
use io_traits::Device;
use load::{Access, DeviceTarget, Distribution, Limit, OnError, Setup, Target, Workload};
use local_devices::contents::{self, Contents, Look};
use local_devices::sharing_spec::parse_latency;
use local_devices::storage;
use reactor::{CoreConfig, Handle};
use ssd_model::{Observed, fit};
use units::{BLOCK_SIZE, ByteLen, Lba, LbaRange};
use user_messages::Failure;
use user_messages::output::{self, Voice};
use user_messages::shell;

use self::curve::{Curve, Point, Proposal};

pub(super) const EXAMPLES: &str = "\
Writes to the device, unless only reads are measured (--reads 100), and is refused if it holds \
anything. What was never written is read faster than flash, so a device is filled before.

Examples:
  farflash calibrate file:/dev/nvme1n1 --latency-target 500us
  farflash calibrate file:/srv/scratch.img,size=4GiB --seconds 0.5 --out /tmp/curve
  farflash calibrate model:p3700,scale=0.1 --latency-target 5ms
  farflash calibrate file:/dev/nvme1n1 --fit mine.toml && farflash serve --device model:mine.toml …";

/// Requests of the sequential fill, and how many of them are outstanding.
const FILL_BLOCKS: u32 = 64;
const FILL_DEPTH: u32 = 8;
const RANGE_DEFAULT: ByteLen = ByteLen(1 << 30);

#[derive(Clone, Debug, Args)]
pub(crate) struct Calibrate {
    #[arg(help = kind::forms(true))]
    device: DeviceSpec,
    /// Requests outstanding, one after the other
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8,16,32,64,128,256")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=4096), value_name = "LIST")]
    depths: Vec<u32>,
    /// Shares of reads, in percent
    #[arg(long, value_delimiter = ',', default_value = "100,70,0", value_name = "LIST")]
    #[arg(value_parser = clap::value_parser!(u8).range(0..=100))]
    reads: Vec<u8>,
    /// Duration of the measurement of each point
    #[arg(long, default_value_t = 2.0, value_name = "SECONDS")]
    seconds: f64,
    /// The part of the device that is used [default: 1GiB, or what there is]
    #[arg(long, value_name = "SIZE")]
    range: Option<ByteLen>,
    /// Time that 95 % of requests are to take at most under the ceiling
    #[arg(long, default_value = "500us", value_name = "TIME")]
    latency_target: String,
    /// Write to the device whatever it holds: all of that is lost
    #[arg(long)]
    overwrite: bool,
    /// Propose a description of the drive, as `model:FILE` takes it
    #[arg(long, value_name = "FILE")]
    fit: Option<PathBuf>,
    /// Directory for calibration.csv and calibration.svg
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Calibrate {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let latency = parse_latency(&self.latency_target)
            .map_err(|error| Failure::usage(error.to_string(), "mend --latency-target"))?;
        if !(0.01..=3600.0).contains(&self.seconds) {
            return Err(Failure::usage("--seconds is no time to measure", "try --seconds 2"));
        }
        if self.fit.is_some() && !(self.reads.contains(&100) && self.reads.contains(&0)) {
            let what = "a fit needs reads alone and writes alone";
            return Err(Failure::usage(what, "leave --reads as it is, or give --reads 100,0"));
        }
        if self.fit.is_some() && !self.depths.contains(&1) {
            let what = "a fit needs the time of a request that has the device to itself";
            return Err(Failure::usage(what, "have 1 among --depths"));
        }
        if let Some(out) = &self.out {
            output::make_directory(out)?;
        }
        let curves = self.measure()?;
        let proposal = Proposal::of(&curves, latency);
        if let Some(path) = &self.fit {
            write_fit(path, &curves)?;
        }
        if let Some(out) = &self.out {
            curve::save(out, &curves, latency).map_err(|error| {
                let what = format!("the curves cannot be saved in {}: {error}", out.display());
                Failure::runtime(what, "name a directory that can be written with --out")
            })?;
        }
        output::print("give the result somewhere to go", |out| {
            if self.json {
                let document = serde_json::json!({
                    "device": self.device.to_string(), "curves": curves, "proposal": proposal,
                });
                return writeln!(out, "{document}");
            }
            write!(out, "{}", curve::table(&curves).to_text())?;
            match &proposal {
                Some(proposal) => writeln!(
                    out,
                    "within {} for 95 % of requests:\n  --device {}",
                    self.latency_target,
                    shell::word(&format!("{},{proposal}", self.device.with_options()))
                ),
                None if self.reads.len() == 1 => {
                    writeln!(out, "a ceiling needs reads and writes to be measured, or a mix")
                }
                None => writeln!(
                    out,
                    "at no depth do 95 % of requests take {} at most: try a longer one",
                    self.latency_target
                ),
            }
        })
    }

    fn writes(&self) -> bool {
        self.reads.iter().any(|share| *share < 100)
    }

    fn measure(&self) -> Result<Vec<Curve>, Failure> {
        let core = CoreConfig::default();
        let this = self.clone();
        match self.device.backing() {
            Backing::File(spec) => {
                if self.writes() {
                    storage::create_if_missing(spec, 1)?;
                }
                let size = "give it a size to have it made, such as file:PATH,size=4GiB";
                storage::check_is_there(&spec.path, size)?;
                let device = storage::open(spec, Voice::Notes)?;
                if self.writes() && !self.overwrite {
                    self.check_blank(spec, &device)?;
                }
                reactor::run_on_current_thread(&core, |handle| async move {
                    this.sweep(&handle, device.attach(&handle)).await
                })
            }
            Backing::Memory(size) => {
                let source = storage::unformatted(&self.device, size)?;
                reactor::run_on_current_thread(&core, |handle| async move {
                    this.sweep(&handle, storage::attach_alone(&source, &handle)).await
                })
            }
        }
        .map_err(|error| storage::no_core(&error))?
    }

    fn check_blank(
        &self,
        spec: &device::kind::FileSpec,
        device: &reactor::OwnedDevice,
    ) -> Result<(), Failure> {
        let occupant = match contents::look_at(&spec.path, device, Look::Everywhere, Voice::Notes)?
        {
            Contents::Blank => return Ok(()),
            Contents::Ours(_) => "a farflash format".to_owned(),
            Contents::NotServed { what, .. } => what,
            Contents::Other(occupant) => occupant,
        };
        Err(Failure::runtime(
            format!("{} holds {occupant}", spec.path.display()),
            "measure reads alone (--reads 100), or lose all of it with --overwrite",
        ))
    }

    async fn sweep<D: Device>(self, handle: &Handle, device: D) -> Result<Vec<Curve>, Failure> {
        let blocks = device.limits().blocks;
        let wanted = self.range.unwrap_or(RANGE_DEFAULT).0 / BLOCK_SIZE as u64;
        let range = LbaRange::new(Lba(0), wanted.clamp(u64::from(FILL_BLOCKS), blocks));
        let target = DeviceTarget::new(device);
        let base = Workload {
            read_percent: 0,
            access: Access::Sequential,
            blocks_per_request: FILL_BLOCKS,
            depth: FILL_DEPTH,
            limit: Limit::Bytes(range.blocks * BLOCK_SIZE as u64),
            rate: None,
            range,
            seed: 1,
            interval: Duration::from_secs(1),
            on_error: OnError::Stop,
        };
        if self.writes() {
            run(handle, &target, base.clone()).await?;
        }
        let (mut progress, mut done) = (output::progress("calibrating"), 0);
        let total = (self.reads.len() * self.depths.len()) as u64;
        let mut curves = Vec::new();
        for &read_percent in &self.reads {
            let mut points = Vec::new();
            for &depth in &self.depths {
                let workload = Workload {
                    read_percent,
                    access: Access::Random(Distribution::Uniform),
                    blocks_per_request: 1,
                    depth,
                    limit: Limit::Time(Duration::from_secs_f64(self.seconds)),
                    ..base.clone()
                };
                points.push(Point::new(depth, &run(handle, &target, workload).await?));
                done += 1;
                progress(done, total);
            }
            curves.push(Curve { read_percent, points });
        }
        Ok(curves)
    }
}

async fn run<T: Target>(
    handle: &Handle,
    target: &T,
    workload: Workload,
) -> Result<load::Outcome, Failure> {
    let precise = handle.clone();
    let setup = Setup {
        world: handle.clone(),
        now: move || precise.precise_now(),
        targets: vec![target.clone()],
        journal: None,
        recorder: None,
        observer: None,
        stop: None,
    };
    let outcome = load::run(setup, workload)
        .await
        .map_err(|error| Failure::usage(error.to_string(), "give another --range"))?;
    match &outcome.first_error {
        None => Ok(outcome),
        Some(error) => {
            let what = format!("a request failed: {error}");
            Err(Failure::runtime(what, "look at the kernel's log (dmesg)"))
        }
    }
}

fn write_fit(path: &std::path::Path, curves: &[Curve]) -> Result<(), Failure> {
    let curve = |share: u8| curves.iter().find(|curve| curve.read_percent == share);
    let (reads, writes) = (curve(100).expect("checked"), curve(0).expect("checked"));
    let best = |curve: &Curve| curve.points.iter().map(|point| point.rate).fold(0.0, f64::max);
    let alone_us = |curve: &Curve| {
        let alone = curve.points.iter().find(|point| point.depth == 1);
        alone.expect("checked").mean_us
    };
    let observed = Observed {
        read_us: alone_us(reads),
        reads_per_second: best(reads),
        write_us: alone_us(writes),
        writes_per_second: best(writes),
    };
    let params = fit(&observed).map_err(|error| {
        let what = format!("no modelled drive is like this: {error}");
        Failure::runtime(what, "measure for longer, or describe the drive by hand")
    })?;
    let text = format!(
        "# Proposed by `farflash calibrate`: the measured speed with the habits of a P3700. Jitter,\n\
         # tails, collection and pauses are not measured; docs/ssd-model.md explains every key.\n{}",
        params.to_toml()
    );
    std::fs::write(path, text).map_err(|error| {
        let what = format!("{} cannot be written: {error}", path.display());
        Failure::runtime(what, "name a file that can be written with --fit")
    })
}
