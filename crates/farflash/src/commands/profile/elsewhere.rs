//! Drives that are no files: volumes of a Flash server, and modelled drives.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::num::NonZeroU64;

use client::{Credentials, Options};
use device::kind::{Kind, ModelSpec};
use load::{Target, VolumeTarget};
use nvme_wire::Nqn;
use profile::{Drive, Read, Reader, Source, now_ns, sleep_until_ns};
use reactor::{CoreConfig, Handle};
use units::{BLOCK_SIZE, Instant, Lba, LbaRange, Pba, PbaRange};
use user_messages::Failure;

use crate::commands::bench::{TargetArg, connect_volume};
use crate::commands::tokens::TokenArgs;

const VOLUME: &str = "tcp://";
const MODEL: &str = "model:";

/// True if `name` is no path.
pub(super) fn is_elsewhere(name: &str) -> bool {
    name.starts_with(VOLUME) || name.starts_with(MODEL)
}

/// Opens what `name` stands for. `size`: the part from its beginning that is read.
pub(super) fn open(name: &str, size: Option<u64>, tokens: &TokenArgs) -> Result<Drive, Failure> {
    let (there, source) = match name.strip_prefix(MODEL) {
        Some(drive) => modelled(drive)?,
        None => volume(name, tokens)?,
    };
    let bytes = size.unwrap_or(there);
    if bytes > there || bytes < BLOCK_SIZE as u64 {
        let what = format!("{name} has {there} bytes: not the part that is asked for");
        return Err(Failure::usage(what, "name a smaller --size, of 4 KiB at least"));
    }
    Ok(Drive::other(name, bytes, source))
}

type Opened = (u64, Box<dyn Source>);

fn volume(name: &str, tokens: &TokenArgs) -> Result<Opened, Failure> {
    let parsed = name.parse().map_err(|error: String| {
        Failure::usage(
            format!("{name}: {error}"),
            "`farflash volume show` has the address and the NQN",
        )
    })?;
    let TargetArg::Volume { address, nqn } = parsed else {
        return Err(Failure::usage(format!("{name} is no volume"), "write tcp://IP:PORT/NQN"));
    };
    let volume = Volume { address, nqn, credentials: tokens.credentials()? };
    let looked = volume.clone();
    let config = CoreConfig { name: "profile".to_owned(), ..CoreConfig::default() };
    let bytes = reactor::run_on_current_thread(&config, |handle| async move {
        let (client, target) = looked.connect(&handle).await?;
        client.close().await;
        Ok(target.blocks() * BLOCK_SIZE as u64)
    });
    let bytes =
        bytes.map_err(|error| Failure::runtime(error.to_string(), "look at `dmesg`")).flatten()?;
    Ok((bytes, Box::new(volume)))
}

/// A volume of a Flash server.
#[derive(Clone)]
struct Volume {
    address: SocketAddr,
    nqn: Box<Nqn>,
    credentials: Option<Credentials>,
}

impl fmt::Debug for Volume {
    /// Leaves the token out.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Volume").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Volume {
    async fn connect(
        &self,
        handle: &Handle,
    ) -> Result<(client::Client<Handle>, VolumeTarget<Handle>), Failure> {
        let options = Options {
            credentials: self.credentials.clone(),
            ..Options::for_host(uuid::Uuid::new_v4().into_bytes())
        };
        connect_volume(handle, self.address, &self.nqn, options).await
    }
}

impl Source for Volume {
    fn run(&self, reader: Reader) -> io::Result<Read> {
        let volume = self.clone();
        // The thread is pinned already.
        let config = CoreConfig { name: "profile".to_owned(), ..CoreConfig::default() };
        let read = reactor::run_on_current_thread(&config, |handle| async move {
            let connected = volume.connect(&handle).await;
            let (client, target) =
                connected.map_err(|failure| io::Error::other(failure.in_one_line()))?;
            let block = |offset| LbaRange::new(Lba(offset / BLOCK_SIZE as u64), 1);
            let read = async |offset| match target.read(block(offset)).await {
                Ok(_) => Ok(()),
                Err(error) => Err(io::Error::other(error.to_string())),
            };
            let read = reader.run(read).await;
            client.close().await;
            Ok(read)
        });
        read.map_err(io::Error::other)?
    }
}

fn modelled(drive: &str) -> Result<Opened, Failure> {
    let spec = ModelSpec::parse(drive)
        .map_err(|error| Failure::usage(error.to_string(), "try model:m2-960"))?;
    // A drive that nothing describes is told before anything is measured.
    spec.model().map_err(|error| Failure::usage(error.what, error.remedy))?;
    Ok((spec.size.0, Box::new(Modelled(spec))))
}

/// A modelled drive: its thread sleeps until the model has the block.
#[derive(Debug)]
struct Modelled(ModelSpec);

impl Source for Modelled {
    fn run(&self, reader: Reader) -> io::Result<Read> {
        let mut model = self.0.model().map_err(|error| io::Error::other(error.what))?;
        // A hint; the drive is merely less precise without it.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
        Ok(reader.run_at_once(|offset| {
            let block = PbaRange::new(Pba(offset / BLOCK_SIZE as u64), 1);
            let Instant(ready) = model.read(Instant(now_ns()), block);
            sleep_until_ns(ready);
            Ok(())
        }))
    }
}
