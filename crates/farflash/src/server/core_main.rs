//! A data core from inside: its portal, its parts of the devices, and the messages it answers.

use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use auth::Policy;
use dataplane::{Core, CoreOptions, Watched};
use device::ModelDevice;
use io_traits::{Clock, Device, Listener, Network, NetworkError, Spawn};
use reactor::{Handle, Receiver, TcpListener};
use tokio::sync::{mpsc, oneshot};
use units::ByteLen;
use volume::{Recovered, Shard, ShardOptions};

use super::Discovery;
use super::any_device::AnyDevice;
use super::core_thread::{Boot, Found, Part, PartError};
use super::device_set::Source;
use super::fence::Fenced;
use super::message::{CoreMessage, Returned, VOLUMES_AT_ONCE};
use super::scrubber::Scrubber;
use crate::storage::{RELEASE_POLL, RELEASE_TIMEOUT};

/// What a core is given when its thread starts.
pub(super) struct Seat {
    /// Its CPU.
    pub(super) cpu: u32,
    /// Its portal.
    pub(super) listen: SocketAddr,
    /// Where else it answers discovery.
    pub(super) discovery: Discovery,
    /// What hosts are told instead of the address listened on.
    pub(super) advertise: Option<IpAddr>,
    /// Told where it listens, or why a port could not be had.
    pub(super) bound: oneshot::Sender<Result<Bound, NetworkError>>,
    pub(super) booted: oneshot::Receiver<Boot>,
    pub(super) mailbox: Receiver<CoreMessage>,
    pub(super) connections_max: usize,
    pub(super) memory_bytes: u64,
    /// Memory for the maps of its volumes.
    pub(super) map_memory: ByteLen,
    pub(super) device_timeout: Duration,
    /// Whether hosts have to know a volume's token.
    pub(super) authentication: Option<Policy>,
    pub(super) returned: Returns,
    pub(super) ending: Ending,
}

/// Where a core listens.
pub(super) struct Bound {
    /// The portal as hosts reach it.
    pub(super) portal: SocketAddr,
    /// Where else it answers discovery, if it does.
    pub(super) discovery: Option<SocketAddr>,
}

/// The way to say that a shard of this core has come back.
pub(super) struct Returns {
    /// Index of this core.
    pub(super) core: usize,
    pub(super) told: mpsc::UnboundedSender<Returned>,
}

/// Says that a core has ended, in whatever way.
pub(super) struct Ending(pub(super) mpsc::Sender<()>);

impl Drop for Ending {
    fn drop(&mut self) {
        // One message is enough: a full channel has one already.
        let _ = self.0.try_send(());
    }
}

/// Opens the portal, waits for the parts of the devices, and serves until told to shut down.
pub(super) async fn run(handle: Handle, seat: Seat) {
    let Seat { listen, discovery, advertise, bound, booted, mailbox, ending, .. } = seat;
    let listeners = match listen_all(&handle, listen, discovery).await {
        Ok(listeners) => listeners,
        Err(error) => {
            let _ = bound.send(Err(error));
            return;
        }
    };
    let local = listeners[0].local();
    let portal = SocketAddr::new(advertise.unwrap_or(local.ip()), local.port());
    let discovery = listeners.get(1).map(Listener::local);
    let _ = bound.send(Ok(Bound { portal, discovery }));
    // None come if another core or a device is at fault: the server then does not start.
    let Ok(boot) = booted.await else { return };
    let options = CoreOptions {
        core: seat.cpu,
        connections_max: seat.connections_max,
        memory_bytes: seat.memory_bytes,
        authentication: seat.authentication,
        ..CoreOptions::new(portal)
    };
    let (device_timeout, map_memory) = (seat.device_timeout, seat.map_memory);
    let returned = seat.returned;
    let stage = Stage { handle, listeners, mailbox, options, device_timeout, map_memory, returned };
    stage.open(boot).await;
    drop(ending);
}

/// Opens the portal, and what else the core is to listen on.
async fn listen_all(
    handle: &Handle,
    portal: SocketAddr,
    discovery: Discovery,
) -> Result<Vec<TcpListener>, NetworkError> {
    let mut listeners = vec![listen_patiently(handle, portal).await?];
    match discovery {
        Discovery::Off => {}
        Discovery::At(address) => listeners.push(listen_patiently(handle, address).await?),
        // Nobody asked for it: that it cannot be had is no reason not to serve.
        Discovery::IfFree(address) => match handle.listen(address) {
            Ok(listener) => listeners.push(listener),
            Err(error) => tracing::warn!(
                "discovery is answered on the portals only, and not on its usual port: {error}; \
                 --discovery names another, or `off`"
            ),
        },
    }
    Ok(listeners)
}

/// Takes a port; tries again for a while if it may still belong to a server that was killed.
async fn listen_patiently(
    handle: &Handle,
    address: SocketAddr,
) -> Result<TcpListener, NetworkError> {
    let deadline = handle.now() + RELEASE_TIMEOUT;
    let mut said = false;
    loop {
        match handle.listen(address) {
            Err(NetworkError::AddressInUse { .. }) if handle.now() < deadline => {
                if !std::mem::replace(&mut said, true) {
                    tracing::info!("waiting for {address}, which is in use");
                }
                handle.sleep_until(handle.now() + RELEASE_POLL).await;
            }
            listening => return listening,
        }
    }
}

/// What a core sees of a device.
type ServedDevice = Fenced<AnyDevice>;

/// A core that has everything but its devices.
struct Stage {
    handle: Handle,
    listeners: Vec<TcpListener>,
    mailbox: Receiver<CoreMessage>,
    options: CoreOptions,
    device_timeout: Duration,
    map_memory: ByteLen,
    returned: Returns,
}

/// A shard that was read back, with the number of its device.
type RecoveredPart = (usize, Recovered<ServedDevice>);

impl Stage {
    /// Recovers the core's shards, starts them together with those of the other cores, and serves.
    async fn open(self, boot: Boot) {
        let ways: Vec<_> = boot.parts.iter().map(|part| self.attach(part)).collect();
        let recovered = match self.recover(&boot.parts, &ways).await {
            Ok(recovered) => recovered,
            Err(error) => {
                let _ = boot.recovered.send(Err(error));
                return;
            }
        };
        let volumes = recovered.iter().flat_map(|(device, shard)| {
            shard.volumes().into_iter().map(|id| Found { id, device: *device })
        });
        let _ = boot.recovered.send(Ok(volumes.collect()));
        if boot.go.await.is_err() {
            return;
        }
        let core = Core::new(&self.handle, self.options);
        let mut device_of = Vec::new();
        for (device, shard) in recovered {
            match shard.start().await {
                Ok(shard) => core.attach_on(device, shard),
                Err(error) => {
                    let _ = boot.serving.send(Err(PartError { device, error }));
                    return;
                }
            };
            device_of.push(device);
        }
        let _ = boot.serving.send(Ok(()));
        // What the core uses of them it has: an old way that nobody uses is to be closed.
        let devices = boot.parts.len();
        drop(boot.parts);
        let own_shards = (0..devices)
            .map(|device| device_of.iter().position(|of| *of == device).expect("each has one"));
        let own_shards = own_shards.collect();
        let Returns { core: index, told } = self.returned;
        core.on_return(move |shard| {
            let _ = told.send(Returned { core: index, device: device_of[shard] });
        });
        let scrubbers = (0..devices).map(|device| Scrubber::new(&self.handle, &core, device));
        let scrubbers = scrubbers.collect();
        let listeners = self.listeners;
        let desk = Desk { handle: self.handle, core, listeners, scrubbers, own_shards, ways };
        desk.answer_messages(self.mailbox).await;
    }

    /// Reads the shards back, device by device. Writes nothing.
    async fn recover(
        &self,
        parts: &[Part],
        ways: &[ServedDevice],
    ) -> Result<Vec<RecoveredPart>, PartError> {
        let mut recovered = Vec::new();
        for (number, (part, device)) in parts.iter().zip(ways).enumerate() {
            let shards = parts.len() * part.shards.len();
            let options = ShardOptions {
                volatile_cache: part.volatile_cache,
                map_memory: Some(self.map_memory.0 / shards.max(1) as u64),
                ..ShardOptions::default()
            };
            for &index in &part.shards {
                let (device, extents) = (device.clone(), part.extents.clone());
                let shard = Shard::recover(device, part.superblock, index, extents, options).await;
                let shard = shard.map_err(|error| PartError { device: number, error })?;
                for loss in shard.losses().iter() {
                    tracing::error!(device = number, shard = index, "{loss}: it is not served");
                }
                for mended in shard.mended().iter() {
                    tracing::warn!(device = number, shard = index, ?mended, "damage made good");
                }
                recovered.push((number, shard));
            }
        }
        Ok(recovered)
    }

    /// The device for this core.
    fn attach(&self, part: &Part) -> ServedDevice {
        let device = match &part.source {
            Source::File(device) => {
                let device = device.attach(&self.handle);
                let fence = part.fence.clone();
                let failed = move || fence.note_failure();
                let timeout = self.device_timeout;
                AnyDevice::File(Watched::telling(device, &self.handle, timeout, failed))
            }
            Source::Memory(device) => AnyDevice::Memory(device.attach()),
            Source::Model(device, model) => {
                let (clock, model) = (self.handle.clone(), model.clone());
                AnyDevice::Model(ModelDevice::new(device.attach(), clock, model))
            }
        };
        Fenced::new(device, part.fence.clone())
    }
}

/// Where the control side's messages are answered.
struct Desk {
    handle: Handle,
    core: Core<Handle, ServedDevice>,
    /// Where hosts wait until they are let in.
    listeners: Vec<TcpListener>,
    /// By device.
    scrubbers: Vec<Rc<Scrubber<ServedDevice>>>,
    /// The shards that take new volumes, by device.
    own_shards: Vec<usize>,
    /// The ways to the devices.
    ways: Vec<ServedDevice>,
}

impl Desk {
    /// Answers until it is said to shut down, or nobody is left to ask.
    async fn answer_messages(self, mut mailbox: Receiver<CoreMessage>) {
        let Self { handle, core, mut listeners, scrubbers, own_shards, mut ways } = self;
        while let Some(message) = mailbox.recv().await {
            match message {
                CoreMessage::Admit => {
                    for listener in listeners.drain(..) {
                        let serving = core.clone();
                        handle.spawn(async move { serving.serve(listener).await });
                    }
                }
                CoreMessage::Shutdown { answer } => {
                    scrubbers.iter().for_each(|scrubber| scrubber.stop());
                    let _ = answer.send(core.shutdown().await);
                    return;
                }
                CoreMessage::Scrub { device, change, answer } => {
                    let scrubber = &scrubbers[device];
                    match change {
                        Some(Some(bytes_per_second)) => scrubber.start(bytes_per_second),
                        Some(None) => scrubber.stop(),
                        None => {}
                    }
                    let _ = answer.send(scrubber.report());
                }
                CoreMessage::Renew { device, way } => {
                    let file = way.opened.attach(&handle);
                    if let Some(file) = ways[device].behind().renewed(file) {
                        // What was opened before is closed when its failed shards are gone.
                        ways[device] = ways[device].renewed(file, way.number);
                        core.renew(device, ways[device].clone());
                    }
                }
                CoreMessage::CreateVolume { device, spec, terms, answer } => {
                    let (core, shard) = (core.clone(), own_shards[device]);
                    handle.spawn_now(async move {
                        let _ = answer.send(core.create_volume(shard, spec, terms).await);
                    });
                }
                message => {
                    // A task each, so that one which waits for a device holds up no other.
                    let core = core.clone();
                    handle.spawn_now(async move { act(&core, message).await });
                }
            }
        }
    }
}

/// Does what one message asks. Whoever asked may have gone: the answer is then dropped.
async fn act<D: Device>(core: &Core<Handle, D>, message: CoreMessage) {
    match message {
        CoreMessage::ListVolumes { first, answer } => {
            let _ = answer.send(core.volumes_from(first, VOLUMES_AT_ONCE));
        }
        CoreMessage::ShowVolumes { ids, answer } => {
            let _ = answer.send(ids.into_iter().filter_map(|id| core.volume(id)).collect());
        }
        CoreMessage::ShowVolume { id, answer } => {
            let _ = answer.send(core.volume(id));
        }
        CoreMessage::ResizeVolume { id, blocks, answer } => {
            let _ = answer.send(core.resize_volume(id, blocks).await);
        }
        CoreMessage::SetSlo { id, slo, answer } => {
            let _ = answer.send(core.set_slo(id, slo).await);
        }
        CoreMessage::SetAccess { id, access, cut, answer } => {
            let _ = answer.send(core.set_access(id, access, cut).await);
        }
        CoreMessage::Schedule { device, share: (config, quotas) } => {
            core.schedule(device, config, &quotas);
        }
        CoreMessage::Flows { first, answer } => {
            let volumes = core.volumes_from(first, VOLUMES_AT_ONCE);
            let flows = core.flows_from(first, VOLUMES_AT_ONCE);
            let _ = answer.send(volumes.into_iter().zip(flows).collect());
        }
        CoreMessage::DeleteVolume { id, answer } => {
            let _ = answer.send(core.delete_volume(id).await);
        }
        CoreMessage::Abandon { device } => core.abandon(device),
        CoreMessage::Place { device, domain } => core.place_device(device, *domain),
        CoreMessage::Announce { record } => core.announce(record),
        CoreMessage::Withdraw { id } => core.withdraw(id),
        CoreMessage::BoundTenants { owners } => core.bound_tenants(owners),
        CoreMessage::Allot { limits, answer } => {
            let _ = answer.send(core.allot(&limits));
        }
        CoreMessage::Stats { answer } => {
            let _ = answer.send(core.stats());
        }
        CoreMessage::Admit
        | CoreMessage::CreateVolume { .. }
        | CoreMessage::Renew { .. }
        | CoreMessage::Scrub { .. }
        | CoreMessage::Shutdown { .. } => unreachable!("handled where messages come in"),
    }
}
