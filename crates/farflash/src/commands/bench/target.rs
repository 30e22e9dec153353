//! What `bench` can put load on, and how it gets there.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

use client::{Client, ConnectError, Options};
use device::MemDevice;
use load::{DeviceTarget, VolumeTarget};
use nvme_wire::Nqn;
use reactor::{Handle, OpenOptions, OwnedDevice};

use super::{Bench, Finished};
use crate::device_spec::DeviceSpec;
use crate::failure::Failure;

/// `tcp://IP:PORT/NQN`, `file:PATH` or `mem:SIZE`.
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
        let address = address
            .parse()
            .map_err(|_| format!("`{address}` is no address; write IP:PORT, as 127.0.0.1:4420"))?;
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
    let connections = usize::from(bench.connections);
    match &bench.target {
        TargetArg::Volume { address, nqn } => {
            let (client, target) = connect(bench, &handle, *address, nqn).await?;
            let finished = bench.drive(&handle, vec![target; connections]).await;
            client.close().await;
            finished
        }
        TargetArg::Device(DeviceSpec::File(spec)) => {
            let options =
                OpenOptions { read_only: bench.read_percent() == 100, ..OpenOptions::default() };
            let device = OwnedDevice::open(&spec.path, options).map_err(|error| {
                Failure::runtime(error.to_string(), "name a file or block device that is free")
            })?;
            let target = DeviceTarget::new(device.attach(&handle));
            bench.drive(&handle, vec![target; connections]).await
        }
        TargetArg::Device(DeviceSpec::Mem { size }) => {
            let device = MemDevice::new(size.whole_blocks().unwrap_or(0))
                .map_err(|error| Failure::runtime(error.to_string(), "try a smaller size"))?;
            bench.drive(&handle, vec![DeviceTarget::new(device); connections]).await
        }
    }
}

async fn connect(
    bench: &Bench,
    handle: &Handle,
    address: SocketAddr,
    nqn: &Nqn,
) -> Result<(Client<Handle>, VolumeTarget<Handle>), Failure> {
    let options = Options {
        queues: bench.connections,
        depth: u16::try_from(bench.qd).expect("at most 1024"),
        header_digest: bench.hdgst,
        data_digest: bench.ddgst,
        ..Options::for_host(uuid::Uuid::new_v4().into_bytes())
    };
    let refused = |error: ConnectError| {
        let remedy = "is the server up? `farflash volume list` shows addresses and NQNs";
        Failure::runtime(format!("cannot connect to {address}: {error}"), remedy)
    };
    let client = Client::connect(handle.clone(), address, nqn, options).await.map_err(refused)?;
    let no_volume = |error: &dyn std::error::Error| {
        Failure::runtime(error.to_string(), "see what `farflash volume list` says about it")
    };
    let volume = client.volume().await.map_err(|error| no_volume(&error))?;
    let target = VolumeTarget::new(volume).map_err(|error| no_volume(&error))?;
    let blocks = bench.bs.whole_blocks().unwrap_or(0);
    if blocks > u64::from(target.request_blocks_max()) {
        let limit = units::ByteLen(u64::from(target.request_blocks_max()) * 4096);
        let what = format!("--bs {} is more than the target takes at once: {limit}", bench.bs);
        return Err(Failure::usage(what, format!("use --bs up to {limit}")));
    }
    Ok((client, target))
}
