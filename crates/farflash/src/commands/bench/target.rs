//! Targets on which `bench` can put load, and the connections to them.

use std::fmt;
use std::net::SocketAddr;
use std::path::Path;
use std::str::FromStr;

use client::{Backoff, Client, ConnectError, Options, Reconnect};
use device::kind::{Backing, DeviceSpec};
use io_traits::{Clock, Device, Spawn};
use load::{DeviceTarget, Target, VolumeTarget};
use local_devices::blank;
use local_devices::storage;
use nvme_wire::fabrics::ConnectInvalid;
use nvme_wire::{Nqn, Status};
use reactor::{FileDevice, Handle, OpenOptions, OwnedDevice};
use units::{BLOCK_SIZE, ByteLen, Duration};
use user_messages::Failure;
use user_messages::output;

use super::{Bench, Finished, failed_read};
use crate::address::parse_address;

/// Interval at which the connections are checked for trouble.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// A volume that was deleted, or is no longer open to us, is given up after this.
const REFUSED_FOR: Duration = Duration::from_secs(5);

/// `tcp://IP:PORT/NQN`, or a device of this host.
#[derive(Clone, Debug)]
pub(crate) enum TargetArg {
    Volume { address: SocketAddr, nqn: Box<Nqn> },
    Device(DeviceSpec),
}

impl FromStr for TargetArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some(rest) = text.strip_prefix("tcp://") else {
            return text
                .parse()
                .map(Self::Device)
                .map_err(|error| format!("{error}; a volume is tcp://IP:PORT/NQN"));
        };
        let (address, nqn) = rest
            .split_once('/')
            .ok_or("a volume is tcp://IP:PORT/NQN; the NQN is missing".to_owned())?;
        let address = parse_address(address).map_err(|error| error.to_string())?;
        let nqn: Nqn = nqn.parse().map_err(|error| format!("`{nqn}` is no NQN: {error}"))?;
        Ok(Self::Volume { address, nqn: Box::new(nqn) })
    }
}

impl fmt::Display for TargetArg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Volume { address, nqn } => write!(f, "tcp://{address}/{nqn}"),
            Self::Device(spec) => spec.fmt(f),
        }
    }
}

/// `uniform`, `zipf` or `zipf:THETA`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum DistributionArg {
    Uniform,
    Zipf(f64),
}

impl FromStr for DistributionArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let theta = match text {
            "uniform" => return Ok(Self::Uniform),
            "zipf" => "0.99",
            _ => text.strip_prefix("zipf:").ok_or("there are uniform, zipf and zipf:THETA")?,
        };
        let theta: f64 = theta.parse().map_err(|_| format!("`{theta}` is no number"))?;
        if (0.01..=5.0).contains(&theta) {
            Ok(Self::Zipf(theta))
        } else {
            Err("the skew of zipf is from 0.01 to 5".to_owned())
        }
    }
}

/// Opens the target and runs the load on it.
pub(super) async fn drive(bench: &Bench, handle: Handle) -> Result<Finished, Failure> {
    match &bench.target {
        TargetArg::Volume { address, nqn } => {
            let (client, target) = connect(bench, &handle, *address, nqn).await?;
            if !bench.quiet {
                handle.spawn(tell_troubles(handle.clone(), client.clone()));
            }
            let finished = drive_volume(bench, &handle, &client, target).await;
            let reconnects = Some(client.counters().reconnects);
            let not_connected = client.last_connect_error();
            client.close().await;
            finished.map(|finished| Finished { reconnects, not_connected, ..finished })
        }
        TargetArg::Device(device) => drive_device(bench, &handle, device).await,
    }
}

/// Runs the load on a device of this host.
async fn drive_device(
    bench: &Bench,
    handle: &Handle,
    device: &DeviceSpec,
) -> Result<Finished, Failure> {
    let connections = usize::from(bench.connections);
    match device.backing() {
        Backing::File(spec) => {
            if spec.size.is_some() {
                let what = "a file is put under load as it is, without size=";
                return Err(Failure::usage(what, "leave size= out; --range says how much to use"));
            }
            let make = format!(
                "make it first (`truncate -s 1GiB {}`)",
                user_messages::shell::path(&spec.path)
            );
            storage::check_is_there(&spec.path, &make)?;
            let options = OpenOptions { read_only: !bench.writes(), ..OpenOptions::default() };
            let device = OwnedDevice::open(&spec.path, options).map_err(|error| {
                Failure::runtime(error.to_string(), "name a file or block device that is free")
            })?;
            let device = device.attach(handle);
            if bench.must_not_lose() {
                check_file(bench, &spec.path, &device).await?;
            }
            bench.drive(handle, vec![DeviceTarget::new(device); connections], bench.qd).await
        }
        Backing::Memory(size) => {
            let source = storage::unformatted(device, size)?;
            let device = storage::attach_alone(&source, handle);
            bench.drive(handle, vec![DeviceTarget::new(device); connections], bench.qd).await
        }
    }
}

/// Says why nothing goes on while connections are being made again. Ends with the core.
async fn tell_troubles(handle: Handle, client: Client<Handle>) {
    let mut told = None;
    loop {
        handle.sleep_until(handle.now() + LOOK_EVERY).await;
        let trouble = client.last_connect_error();
        if let Some(error) = trouble.filter(|_| trouble != told) {
            output::note(&format!("the connection is lost; connecting again: {error}"));
        }
        told = trouble;
    }
}

async fn drive_volume(
    bench: &Bench,
    handle: &Handle,
    client: &Client<Handle>,
    target: VolumeTarget<Handle>,
) -> Result<Finished, Failure> {
    if client.queues() < bench.connections {
        let what = format!(
            "the target grants {} connections, not the {} of --connections",
            client.queues(),
            bench.connections
        );
        return Err(Failure::usage(what, format!("use --connections {}", client.queues())));
    }
    // A queue of so many entries holds one request less.
    let depth = bench.qd.min(client.limits().queue_entries_max.saturating_sub(1).max(1));
    if depth < bench.qd && !bench.quiet {
        output::note(&format!(
            "the target's queues hold {depth} requests: that is the depth used, not --qd {}",
            bench.qd
        ));
    }
    if bench.must_not_lose() {
        check_volume(bench, &target).await?;
    }
    let targets = vec![target; usize::from(bench.connections)];
    bench.drive(handle, targets, depth).await
}

/// Refuses to write to a volume that holds data. What a small range holds is read; of a large one
/// the target says whether it holds any.
async fn check_volume(bench: &Bench, target: &VolumeTarget<Handle>) -> Result<(), Failure> {
    let range = bench.range(target.blocks())?;
    if range.blocks > load::WHOLE_BLOCKS_MAX {
        let used = target.used_blocks().await.map_err(|error| failed_read(&error))?;
        if used > 0 {
            return Err(holds_data(&format!("{} of it", ByteLen(used * BLOCK_SIZE as u64))));
        }
    }
    // Samples, in case of a target that says so of everything.
    let found = load::holds_data(target, range).await.map_err(|error| failed_read(&error))?;
    found.map_or(Ok(()), |lba| Err(holds_data(&format!("block {} is not zero", lba.0))))
}

/// Refuses to write to a file or block device that holds data: all of the range is looked at.
async fn check_file(bench: &Bench, path: &Path, device: &FileDevice) -> Result<(), Failure> {
    let range = bench.range(device.limits().blocks)?;
    let mut progress = output::progress("looking for data (--overwrite skips this)");
    let passed = |done, of| {
        if !bench.quiet {
            progress(done, of);
        }
    };
    let block = BLOCK_SIZE as u64;
    let found = match blank::file_len(path) {
        Ok(Some(_)) => {
            let bytes = range.start.0 * block..range.end().0 * block;
            blank::first_in_file(path, bytes, passed).map_err(|error| failed_read(&error))?
        }
        Ok(None) => {
            let found = blank::first_on_device(device, range, passed).await;
            found.map_err(|error| failed_read(&error))?
        }
        Err(error) => return Err(failed_read(&error)),
    };
    found.map_or(Ok(()), |at| Err(holds_data(&format!("byte {at} is not zero"))))
}

fn holds_data(what: &str) -> Failure {
    let what = format!("the target holds data: {what}");
    Failure::runtime(what, "add --overwrite if it may be lost")
}

/// Returns true if the target refuses Connect for the name of the subsystem.
fn names_subsystem(invalid: ConnectInvalid) -> bool {
    /// Place of the name in Connect's data.
    const SUBNQN: std::ops::Range<u16> = 256..512;
    invalid.in_data && SUBNQN.contains(&invalid.ipo)
}

/// Why there is no connection.
fn not_connected(address: SocketAddr, nqn: &Nqn, error: ConnectError) -> Failure {
    let remedy =
        "`farflash volume list` shows the address of each volume, `farflash volume show` its NQN";
    let what = match error {
        ConnectError::Refused { invalid: Some(invalid), .. } if names_subsystem(invalid) => {
            format!("{address} has no volume {nqn}, or not for this host")
        }
        ConnectError::Refused { status, .. }
            if status.code() == Status::CONNECT_CONTROLLER_BUSY =>
        {
            let what = format!("{address} does not take another connection to {nqn} now: {error}");
            let remedy = "try again in ten seconds; the server's log says more";
            return Failure::runtime(what, remedy);
        }
        ConnectError::Refused { .. } => {
            format!("{address} refuses the command Connect to {nqn}: {error}")
        }
        ConnectError::AuthenticationRequired => {
            let what = format!("{address} wants to see a token");
            let remedy = "give the one that `farflash volume create` has shown, in a file with \
                          --token-file or in FARFLASH_TOKEN";
            return Failure::runtime(what, remedy);
        }
        ConnectError::Unproven => {
            let what = format!("{address} does not prove who it is: it has no authentication");
            let remedy = "see that this is the server meant, and that it runs without \
                          `--auth off`; or give no controller token";
            return Failure::runtime(what, remedy);
        }
        ConnectError::WrongController => {
            let what = format!("{address} does not know the controller token");
            let remedy = "see that this is the server meant, and that the controller token is the one \
                          made with the volume's token";
            return Failure::runtime(what, remedy);
        }
        ConnectError::Authentication(_) => {
            let what = format!("{address} has no volume {nqn} that this token opens from here");
            let remedy = "see `farflash volume show` for who may open it; make a new token with \
                          `farflash volume change-auth`";
            return Failure::runtime(what, remedy);
        }
        _ => format!("cannot connect to {address}: {error}"),
    };
    Failure::runtime(what, remedy)
}

async fn connect(
    bench: &Bench,
    handle: &Handle,
    address: SocketAddr,
    nqn: &Nqn,
) -> Result<(Client<Handle>, VolumeTarget<Handle>), Failure> {
    let credentials = bench.tokens.credentials()?;
    let options = Options {
        queues: bench.connections,
        depth: u16::try_from(bench.qd).expect("at most 1024"),
        header_digest: bench.hdgst,
        data_digest: bench.ddgst,
        reconnect: Reconnect::Backoff(Backoff { refused_for: REFUSED_FOR, ..Backoff::default() }),
        credentials: credentials.clone(),
        ..Options::for_host(uuid::Uuid::new_v4().into_bytes())
    };
    let (client, target) = connect_volume(handle, address, nqn, options).await?;
    let blocks = bench.bs.whole_blocks().unwrap_or(0);
    if blocks > u64::from(target.request_blocks_max()) {
        let limit = ByteLen(u64::from(target.request_blocks_max()) * 4096);
        let what = format!("--bs {} is more than the target takes at once: {limit}", bench.bs);
        return Err(Failure::usage(what, format!("use --bs up to {limit}")));
    }
    Ok((client, target))
}

/// Connects to a volume.
pub(crate) async fn connect_volume(
    handle: &Handle,
    address: SocketAddr,
    nqn: &Nqn,
    options: Options,
) -> Result<(Client<Handle>, VolumeTarget<Handle>), Failure> {
    let client = Client::connect(handle.clone(), address, nqn, options).await;
    let client = client.map_err(|error| not_connected(address, nqn, error))?;
    let no_volume = |error: &dyn std::error::Error| {
        Failure::runtime(error.to_string(), "see what `farflash volume list` says about it")
    };
    let volume = client.volume().await.map_err(|error| no_volume(&error))?;
    let target = VolumeTarget::new(volume).map_err(|error| no_volume(&error))?;
    Ok((client, target))
}
