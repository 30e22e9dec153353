//! The data cores from outside: threads started, shares of the device handed out, and ended.

use std::net::SocketAddr;

use device::{MemDevice, SharedModel};
use io_traits::NetworkError;
use reactor::{CoreConfig, CoreThread, OwnedDevice, mailbox};
use tokio::sync::{mpsc, oneshot};
use units::ByteLen;
use volume::{ExtentAllocator, OpenError, Superblock};

use super::message::CoreMessage;
use super::service::CoreLink;
use super::{ServeConfig, core_ended, core_main, preflight};
use crate::device_spec::{DeviceSpec, FileSpec};
use crate::failure::Failure;
use crate::output::Voice;
use crate::storage::{self, Contents, Look, Made};

/// What a core needs to take its share of the device.
pub(super) struct Boot {
    pub(super) source: Source,
    pub(super) superblock: Superblock,
    pub(super) extents: ExtentAllocator,
    /// Shards of this core: the first takes new volumes.
    pub(super) shards: Vec<u16>,
    pub(super) volatile_cache: Option<bool>,
    /// Memory for the maps of its volumes.
    pub(super) map_memory: ByteLen,
    /// Told when all shards of this core are recovered, or why not.
    pub(super) recovered: oneshot::Sender<Result<(), OpenError>>,
    /// Comes when all shards of all cores are recovered.
    pub(super) go: oneshot::Receiver<()>,
    /// Told when this core serves, or why not.
    pub(super) serving: oneshot::Sender<Result<(), OpenError>>,
}

/// Where a core's device comes from.
#[derive(Clone)]
pub(super) enum Source {
    File(OwnedDevice),
    Memory(MemDevice),
    Model(MemDevice, SharedModel),
}

/// Why the cores did not take their shares of a device.
#[derive(Debug, thiserror::Error)]
enum BootError {
    #[error("it serves at most {max} cores")]
    TooManyCores { max: u16 },
    #[error("a data core has ended")]
    CoreEnded,
    #[error(transparent)]
    Open(#[from] OpenError),
}

/// The data cores.
pub(super) struct CoreThreads {
    threads: Vec<CoreThread<()>>,
    links: Vec<CoreLink>,
    boots: Vec<oneshot::Sender<Boot>>,
    /// Memory for maps, on each core.
    map_memory: ByteLen,
    /// Closes when a core ends.
    ends: mpsc::Receiver<()>,
}

impl CoreThreads {
    /// Starts a thread on each core and opens its portal. No device is touched.
    pub(super) fn start(config: &ServeConfig, portals: &[SocketAddr]) -> Result<Self, Failure> {
        let (end, ends) = mpsc::channel(1);
        let map_memory = config.map_memory;
        let (threads, links, boots) = (Vec::new(), Vec::new(), Vec::new());
        let mut cores = Self { threads, links, boots, map_memory, ends };
        for (&cpu, &portal) in config.cores.iter().zip(portals) {
            let (sender, receiver) = mailbox();
            let (boot, booted) = oneshot::channel();
            let (bound, listening) = oneshot::channel();
            // The first core answers discovery apart from its portal, if that is wanted.
            let discovery = config.discovery.filter(|_| cores.links.is_empty());
            let seat = core_main::Seat {
                listen: std::iter::once(portal).chain(discovery).collect(),
                advertise: config.advertise,
                bound,
                booted,
                mailbox: receiver,
                connections_max: config.connections_max as usize,
                memory_bytes: config.core_memory.0,
                device_timeout: config.device_timeout,
                authenticates: config.authenticates,
                ending: core_main::Ending(end.clone()),
            };
            let name = format!("core-{cpu}");
            let core = CoreConfig { cpu: Some(cpu as usize), name, ..CoreConfig::default() };
            let thread = reactor::spawn_thread(core, move |handle| core_main::run(handle, seat))
                .map_err(|error| storage::no_core(&error))?;
            cores.threads.push(thread);
            cores.boots.push(boot);
            let portal = listening.blocking_recv().map_err(|_| core_ended())?;
            let portal = portal.map_err(|error| match discovery {
                Some(address) if address_of(&error) == address => {
                    preflight::not_bound("discovery", "--discovery", &error)
                }
                _ => preflight::not_bound("a portal", "--listen", &error),
            })?;
            cores.links.push(CoreLink { cpu, portal, mailbox: sender });
        }
        Ok(cores)
    }

    /// Opens the device, checks that it is ours (or makes it so, where that was asked for), and
    /// gives each core its share.
    pub(super) fn open(&mut self, config: &ServeConfig) -> Result<(), Failure> {
        let device_spec = &config.device.device;
        let booted = match device_spec {
            DeviceSpec::File(spec) => {
                let made = match config.format_if_blank {
                    true => storage::create_if_missing(spec, config.cores.len())?,
                    false => Made::Nothing,
                };
                let device = open_file(spec, config.format_if_blank);
                let device = device.inspect_err(|_| made.undo(&spec.path))?;
                let (superblock, active) = storage::inspect(&spec.path, &device)?;
                let volatile_cache = spec.flush.volatile_cache();
                tracing::info!(device = %device_spec, shards = active.len(), "recovering");
                self.boot(&Source::File(device), superblock, &active, volatile_cache)
            }
            DeviceSpec::Mem { size } => {
                let cores = u16::try_from(self.links.len()).unwrap_or(u16::MAX);
                let device_len = memory_len(*size, cores)?;
                preflight::check_memory(device_len)?;
                let (device, superblock) = storage::memory(device_len)?;
                self.boot(&Source::Memory(device), superblock, &[], None)
            }
            DeviceSpec::Model(spec) => {
                let cores = u16::try_from(self.links.len()).unwrap_or(u16::MAX);
                let device_len = memory_len(spec.size, cores)?;
                preflight::check_memory(device_len)?;
                let model = crate::model::shared(spec, device_len)?;
                let (device, superblock) = storage::memory(device_len)?;
                self.boot(&Source::Model(device, model), superblock, &[], None)
            }
        };
        booted.map_err(|error| not_booted(device_spec, &error))
    }

    fn boot(
        &mut self,
        source: &Source,
        superblock: Superblock,
        active: &[u16],
        volatile_cache: Option<bool>,
    ) -> Result<(), BootError> {
        let count = self.links.len();
        if count > usize::from(superblock.shard_slots) {
            return Err(BootError::TooManyCores { max: superblock.shard_slots });
        }
        let extents = ExtentAllocator::new(&superblock);
        let (mut recovered, mut gos, mut serving) = (Vec::new(), Vec::new(), Vec::new());
        for (index, boot) in self.boots.drain(..).enumerate() {
            let own = u16::try_from(index).expect("no more cores than shards");
            let others = active
                .iter()
                .copied()
                .filter(|&shard| shard != own && usize::from(shard) % count == index);
            let (recovered_sender, recovered_receiver) = oneshot::channel();
            let (go_sender, go) = oneshot::channel();
            let (serving_sender, serving_receiver) = oneshot::channel();
            recovered.push(recovered_receiver);
            gos.push(go_sender);
            serving.push(serving_receiver);
            let boot = boot.send(Boot {
                source: source.clone(),
                superblock,
                extents: extents.clone(),
                shards: std::iter::once(own).chain(others).collect(),
                volatile_cache,
                map_memory: self.map_memory,
                recovered: recovered_sender,
                go,
                serving: serving_sender,
            });
            boot.map_err(|_| BootError::CoreEnded)?;
        }
        all(recovered)?;
        for go in gos {
            go.send(()).map_err(|()| BootError::CoreEnded)?;
        }
        all(serving)
    }

    pub(super) fn links(&self) -> &[CoreLink] {
        &self.links
    }

    /// Waits for a core to end.
    pub(super) async fn ended(&mut self) {
        self.ends.recv().await;
    }

    /// Lets every core finish what is in flight, write a checkpoint, and end. Says what of this went
    /// wrong.
    pub(super) async fn shut_down(self) -> Result<(), String> {
        let mut result = Ok(());
        let asked = self.links.iter().map(|link| {
            let (answer, answered) = oneshot::channel();
            // A core that is gone has nothing to finish.
            let _ = link.mailbox.send(CoreMessage::Shutdown { answer });
            answered
        });
        let asked: Vec<_> = asked.collect();
        for answered in asked {
            if let Ok(Err(error)) = answered.await {
                tracing::error!(%error, "no last checkpoint; the next start replays the journal");
                result = result.and(Err(format!("the last checkpoint failed: {error}")));
            }
        }
        // The threads end now; waiting for them lets the device be closed in good order.
        for thread in self.threads {
            let joined = tokio::task::spawn_blocking(move || thread.join()).await;
            if !matches!(joined, Ok(Ok(()))) {
                result = result.and(Err("a data core has panicked".to_owned()));
            }
        }
        result
    }
}

/// Waits for every core to report.
fn all(reports: Vec<oneshot::Receiver<Result<(), OpenError>>>) -> Result<(), BootError> {
    for report in reports {
        report.blocking_recv().map_err(|_| BootError::CoreEnded)??;
    }
    Ok(())
}

/// Length of a memory device that takes `size` of tenant data.
fn memory_len(size: ByteLen, cores: u16) -> Result<ByteLen, Failure> {
    /// The least that the engine formats.
    const LEAST: ByteLen = ByteLen(64 << 20);
    // The overhead is a few hundredths; far larger sizes must not overflow on the way.
    if size.0 > 1 << 60 {
        let what = format!("a device in memory cannot have {size}");
        return Err(Failure::usage(what, "give --device mem: a smaller size"));
    }
    Ok(ByteLen(size.0 + volume::overhead(size, cores).0).max(LEAST))
}

fn address_of(error: &NetworkError) -> SocketAddr {
    match error {
        NetworkError::AddressInUse { address }
        | NetworkError::AddressNotAvailable { address }
        | NetworkError::Refused { address }
        | NetworkError::Unreachable { address, .. }
        | NetworkError::Io { address, .. } => *address,
    }
}

fn not_booted(device: &DeviceSpec, error: &BootError) -> Failure {
    match error {
        BootError::TooManyCores { .. } => {
            Failure::usage(format!("{device}: {error}"), "name fewer cores with --cores")
        }
        BootError::CoreEnded => core_ended(),
        BootError::Open(OpenError::NoExtent) => Failure::runtime(
            format!("{device} is too small for this many cores: {error}"),
            "name fewer cores with --cores, or a larger device",
        ),
        BootError::Open(_) => Failure::runtime(
            format!("{device} cannot be opened: {error}"),
            "restore the device from a copy, or start anew with `farflash format … --force`",
        ),
    }
}

/// Opens a file or block device that is ours, or makes it so if it is blank and that is wanted.
fn open_file(spec: &FileSpec, format_if_blank: bool) -> Result<OwnedDevice, Failure> {
    let device = storage::open(spec, Voice::Log)?;
    for warning in device.warnings() {
        tracing::warn!(device = %spec.path.display(), "{warning}");
    }
    let path = spec.path.display();
    // A device that is not going to be formatted need not be read to its end.
    let look = if format_if_blank { Look::Everywhere } else { Look::Samples };
    match storage::contents(&spec.path, &device, look, Voice::Log)? {
        Contents::Ours => Ok(device),
        Contents::Blank if format_if_blank => {
            storage::format(&spec.path, &device)?;
            tracing::info!(device = %path, "formatted");
            Ok(device)
        }
        Contents::Blank => Err(Failure::runtime(
            format!("{path} is not formatted"),
            format!("run `farflash format --device file:{path}`, or add --format-if-blank"),
        )),
        Contents::Other(occupant) => Err(Failure::runtime(
            format!("{path} holds {occupant}"),
            format!(
                "name another --device, or lose what is there with \
                 `farflash format --device file:{path} --force`"
            ),
        )),
    }
}
