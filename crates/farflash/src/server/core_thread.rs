//! The data cores from outside: threads started, parts of the devices handed out, and ended.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use io_traits::NetworkError;
use reactor::{CoreConfig, CoreThread, mailbox};
use tokio::sync::{mpsc, oneshot};
use uuid::Uuid;
use volume::{ExtentAllocator, OpenError, Superblock};

use super::device_set::{self, OpenDevice, Source};
use super::fence::Fence;
use super::membership::Membership;
use super::message::{CoreMessage, Returned};
use super::replug::Drive;
use super::state::CoreLink;
use super::{Discovery, ServeConfig, core_ended, core_main, preflight};
use crate::failure::Failure;
use crate::storage;

/// A core's part of a device.
pub(super) struct Part {
    pub(super) source: Source,
    pub(super) superblock: Superblock,
    pub(super) extents: ExtentAllocator,
    /// Shards of this core: the first takes new volumes.
    pub(super) shards: Vec<u16>,
    pub(super) volatile_cache: Option<bool>,
    pub(super) fence: Fence,
}

/// What a core needs to take its parts of the devices.
pub(super) struct Boot {
    /// By the numbers of the devices.
    pub(super) parts: Vec<Part>,
    /// Told the volumes when all shards of this core are recovered, or why they are not.
    pub(super) recovered: oneshot::Sender<Result<Vec<Found>, PartError>>,
    /// Comes when all shards of all cores are recovered.
    pub(super) go: oneshot::Receiver<()>,
    /// Told when this core serves, or why not.
    pub(super) serving: oneshot::Sender<Result<(), PartError>>,
}

/// A volume that was found on a device.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Found {
    pub(super) id: Uuid,
    /// Number of the device.
    pub(super) device: usize,
}

/// Why a core did not get its part of a device.
#[derive(Debug)]
pub(super) struct PartError {
    /// Number of the device.
    pub(super) device: usize,
    pub(super) error: OpenError,
}

/// Why the cores did not take their parts.
enum BootError {
    CoreEnded,
    Part(PartError),
}

impl From<PartError> for BootError {
    fn from(error: PartError) -> Self {
        Self::Part(error)
    }
}

/// The data cores.
pub(super) struct CoreThreads {
    threads: Vec<CoreThread<()>>,
    links: Vec<CoreLink>,
    boots: Vec<oneshot::Sender<Boot>>,
    /// Where discovery is answered apart from the portals.
    discovery: Option<SocketAddr>,
    /// What came back on its own.
    returns: Option<mpsc::UnboundedReceiver<Returned>>,
    /// The files and drives, by number, for who looks after them.
    drives: Vec<Option<Drive>>,
    /// Closes when a core ends.
    ends: mpsc::Receiver<()>,
}

impl CoreThreads {
    /// Starts a thread on each core and opens its portal. No device is touched.
    pub(super) fn start(config: &ServeConfig, portals: &[SocketAddr]) -> Result<Self, Failure> {
        let (end, ends) = mpsc::channel(1);
        let (returned, returns) = mpsc::unbounded_channel();
        let (threads, links, boots) = (Vec::new(), Vec::new(), Vec::new());
        let discovery = None;
        let (returns, drives) = (Some(returns), Vec::new());
        let mut cores = Self { threads, links, boots, discovery, returns, drives, ends };
        for (&cpu, &portal) in config.cores.iter().zip(portals) {
            let (sender, receiver) = mailbox();
            let (boot, booted) = oneshot::channel();
            let (bound, listening) = oneshot::channel();
            // The first core answers discovery apart from its portal, if that is wanted.
            let first = cores.links.is_empty();
            let discovery = if first { config.discovery } else { Discovery::Off };
            let seat = core_main::Seat {
                cpu,
                listen: portal,
                discovery,
                advertise: config.advertise,
                bound,
                booted,
                mailbox: receiver,
                connections_max: config.connections_max as usize,
                memory_bytes: config.core_memory.0,
                map_memory: config.map_memory,
                device_timeout: config.device_timeout,
                authentication: config.authentication.clone(),
                returned: core_main::Returns { core: cores.links.len(), told: returned.clone() },
                ending: core_main::Ending(end.clone()),
            };
            let name = format!("core-{cpu}");
            let core = CoreConfig { cpu: Some(cpu as usize), name, ..CoreConfig::default() };
            let thread = reactor::spawn_thread(core, move |handle| core_main::run(handle, seat))
                .map_err(|error| storage::no_core(&error))?;
            cores.threads.push(thread);
            cores.boots.push(boot);
            let bound = listening.blocking_recv().map_err(|_| core_ended())?;
            let bound = bound.map_err(|error| match discovery {
                Discovery::At(address) if address_of(&error) == address => {
                    preflight::not_bound("discovery", "--discovery", &error)
                }
                _ => preflight::not_bound("a portal", "--listen", &error),
            })?;
            cores.discovery = cores.discovery.or(bound.discovery);
            cores.links.push(CoreLink { cpu, portal: bound.portal, mailbox: sender });
        }
        Ok(cores)
    }

    /// Opens the devices, checks that they are ours (or makes them so, where that was asked for), claims
    /// them, and gives each core its parts.
    pub(super) fn open(
        &mut self,
        config: &ServeConfig,
        membership: &mut Membership,
    ) -> Result<(), Failure> {
        let devices = device_set::open(config)?;
        // Before anything of theirs is written, and before a volume is served.
        membership.claim(config, &devices)?;
        for device in &devices {
            let shards = device.active.len();
            tracing::info!(device = device.name, shards, "recovering");
        }
        self.boot(&devices)?;
        let devices = devices.into_iter().zip(&config.devices);
        self.drives = devices.map(|(device, shared)| Drive::of(device, &shared.device)).collect();
        Ok(())
    }

    /// The files and drives, by number; once.
    pub(super) fn drives(&mut self) -> Vec<Option<Drive>> {
        std::mem::take(&mut self.drives)
    }

    fn boot(&mut self, devices: &[OpenDevice]) -> Result<(), Failure> {
        let not_booted = |error: BootError| match error {
            BootError::CoreEnded => core_ended(),
            BootError::Part(PartError { device, error }) => {
                not_opened(&devices[device].name, &error)
            }
        };
        let count = self.links.len();
        let allocators: Vec<ExtentAllocator> =
            devices.iter().map(|device| ExtentAllocator::new(&device.superblock)).collect();
        let (mut recovered, mut gos, mut serving) = (Vec::new(), Vec::new(), Vec::new());
        for (index, boot) in self.boots.drain(..).enumerate() {
            let parts = devices.iter().zip(&allocators).map(|(device, extents)| Part {
                source: device.source.clone(),
                superblock: device.superblock,
                extents: extents.clone(),
                shards: shards_of(index, count, &device.active),
                volatile_cache: device.volatile_cache,
                fence: device.fence.clone(),
            });
            let (recovered_sender, recovered_receiver) = oneshot::channel();
            let (go_sender, go) = oneshot::channel();
            let (serving_sender, serving_receiver) = oneshot::channel();
            recovered.push(recovered_receiver);
            gos.push(go_sender);
            serving.push(serving_receiver);
            let parts = parts.collect();
            let boot =
                boot.send(Boot { parts, recovered: recovered_sender, go, serving: serving_sender });
            boot.map_err(|_| core_ended())?;
        }
        let found = all(recovered).map_err(not_booted)?;
        if let Some((id, one, other)) = in_two_places(found.into_iter().flatten()) {
            let (one, other) = (&devices[one].name, &devices[other].name);
            return Err(Failure::runtime(
                format!("the volume {id} is on {one} and on {other}: one is a copy of the other"),
                "give --device for one of them only",
            ));
        }
        for go in gos {
            go.send(()).map_err(|()| core_ended())?;
        }
        all(serving).map(drop).map_err(not_booted)
    }

    /// What comes back on its own from now on; once.
    pub(super) fn returns(&mut self) -> Option<mpsc::UnboundedReceiver<Returned>> {
        self.returns.take()
    }

    /// Where discovery is answered apart from the portals, if anywhere.
    pub(super) fn discovery(&self) -> Option<SocketAddr> {
        self.discovery
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

/// The shards of a device that belong to core `index` of `count`: its own, and of those that were ever
/// used (`active`) what has no core of its own.
fn shards_of(index: usize, count: usize, active: &[u16]) -> Vec<u16> {
    let own = u16::try_from(index).expect("no more cores than shards");
    let others = active.iter().copied();
    let others = others.filter(|shard| *shard != own && usize::from(*shard) % count == index);
    std::iter::once(own).chain(others).collect()
}

/// A volume that is on two devices, and these.
fn in_two_places(found: impl Iterator<Item = Found>) -> Option<(Uuid, usize, usize)> {
    let mut places = BTreeMap::new();
    for Found { id, device } in found {
        match places.insert(id, device) {
            Some(other) if other != device => {
                return Some((id, other.min(device), other.max(device)));
            }
            _ => {}
        }
    }
    None
}

/// Waits for every core to report.
fn all<T>(reports: Vec<oneshot::Receiver<Result<T, PartError>>>) -> Result<Vec<T>, BootError> {
    let report = |report: oneshot::Receiver<Result<T, PartError>>| {
        Ok(report.blocking_recv().map_err(|_| BootError::CoreEnded)??)
    };
    reports.into_iter().map(report).collect()
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

fn not_opened(device: &str, error: &OpenError) -> Failure {
    match error {
        OpenError::NoExtent => Failure::runtime(
            format!("{device} is too small for this many cores: {error}"),
            "name fewer cores with --cores, or a larger device",
        ),
        _ => Failure::runtime(
            format!("{device} cannot be opened: {error}"),
            "restore the device from a copy, or start anew with `farflash format … --force`",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_is_on_one_device() {
        let found = |id: u128, device| Found { id: Uuid::from_u128(id), device };
        let sound = [found(1, 0), found(2, 1), found(3, 0)];
        assert_eq!(in_two_places(sound.into_iter()), None);
        let copied = sound.into_iter().chain([found(3, 2)]);
        assert_eq!(in_two_places(copied), Some((Uuid::from_u128(3), 0, 2)));
    }

    #[test]
    fn every_shard_has_one_core() {
        assert_eq!(shards_of(0, 2, &[0, 1, 2, 3, 4]), [0, 2, 4]);
        assert_eq!(shards_of(1, 2, &[0, 1, 2, 3, 4]), [1, 3]);
        assert_eq!(shards_of(1, 2, &[]), [1], "a new one");
        assert_eq!(shards_of(0, 1, &[3]), [0, 3]);
    }
}
