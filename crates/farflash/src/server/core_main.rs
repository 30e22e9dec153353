//! A data core from inside: its portal, its share of the device, and the messages it answers.

use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use auth::Policy;
use dataplane::{Core, CoreOptions, Watched};
use device::ModelDevice;
use io_traits::{Clock, Device, Listener, Network, NetworkError, Spawn};
use reactor::{Handle, Receiver, TcpListener};
use tokio::sync::{mpsc, oneshot};
use volume::{Shard, ShardOptions};

use super::core_thread::{Boot, Source};
use super::message::CoreMessage;
use super::scrubber::Scrubber;
use crate::storage::{RELEASE_POLL, RELEASE_TIMEOUT};

/// What a core is given when its thread starts.
pub(super) struct Seat {
    /// Where it listens: its portal, and what else hosts may connect to.
    pub(super) listen: Vec<SocketAddr>,
    /// What hosts are told instead of the address listened on.
    pub(super) advertise: Option<IpAddr>,
    /// Told the portal as hosts reach it, or why a port could not be had.
    pub(super) bound: oneshot::Sender<Result<SocketAddr, NetworkError>>,
    pub(super) booted: oneshot::Receiver<Boot>,
    pub(super) mailbox: Receiver<CoreMessage>,
    pub(super) connections_max: usize,
    pub(super) memory_bytes: u64,
    pub(super) device_timeout: Duration,
    /// Whether hosts have to know a volume's token.
    pub(super) authenticates: bool,
    pub(super) ending: Ending,
}

/// Says that a core has ended, in whatever way.
pub(super) struct Ending(pub(super) mpsc::Sender<()>);

impl Drop for Ending {
    fn drop(&mut self) {
        // One message is enough: a full channel has one already.
        let _ = self.0.try_send(());
    }
}

/// Opens the portal, waits for the share of the device, and serves until told to shut down.
pub(super) async fn run(handle: Handle, seat: Seat) {
    let Seat { listen, advertise, bound, booted, mailbox, ending, .. } = seat;
    let mut listeners = Vec::new();
    for address in listen {
        match listen_patiently(&handle, address).await {
            Ok(listener) => listeners.push(listener),
            Err(error) => {
                let _ = bound.send(Err(error));
                return;
            }
        }
    }
    let local = listeners[0].local();
    let portal = SocketAddr::new(advertise.unwrap_or(local.ip()), local.port());
    let _ = bound.send(Ok(portal));
    // No share comes if another core or the device is at fault: the server then does not start.
    let Ok(boot) = booted.await else { return };
    let options = CoreOptions {
        connections_max: seat.connections_max,
        memory_bytes: seat.memory_bytes,
        authentication: seat.authenticates.then(Policy::default),
        ..CoreOptions::new(portal)
    };
    let stage = Stage { handle: handle.clone(), listeners, mailbox, options };
    match boot.source.clone() {
        Source::File(device) => {
            let device = Watched::new(device.attach(&handle), &handle, seat.device_timeout);
            stage.open(device, boot).await;
        }
        Source::Memory(device) => stage.open(device.attach(), boot).await,
        Source::Model(device, model) => {
            stage.open(ModelDevice::new(device.attach(), handle, model), boot).await;
        }
    }
    drop(ending);
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

/// A core that has everything but its device.
struct Stage {
    handle: Handle,
    listeners: Vec<TcpListener>,
    mailbox: Receiver<CoreMessage>,
    options: CoreOptions,
}

impl Stage {
    /// Recovers the core's shards, starts them together with those of the other cores, and serves.
    async fn open<D: Device>(self, device: D, boot: Boot) {
        let shard_options = ShardOptions {
            volatile_cache: boot.volatile_cache,
            map_memory: Some(boot.map_memory.0 / boot.shards.len().max(1) as u64),
            ..ShardOptions::default()
        };
        let mut recovered = Vec::new();
        for &index in &boot.shards {
            let (device, extents) = (device.clone(), boot.extents.clone());
            match Shard::recover(device, boot.superblock, index, extents, shard_options).await {
                Ok(shard) => recovered.push(shard),
                Err(error) => {
                    let _ = boot.recovered.send(Err(error));
                    return;
                }
            }
        }
        let _ = boot.recovered.send(Ok(()));
        if boot.go.await.is_err() {
            return;
        }
        let core = Core::new(&self.handle, self.options);
        for shard in recovered {
            match shard.start().await {
                Ok(shard) => core.attach(shard),
                Err(error) => {
                    let _ = boot.serving.send(Err(error));
                    return;
                }
            };
        }
        let _ = boot.serving.send(Ok(()));
        for listener in self.listeners {
            let serving = core.clone();
            self.handle.spawn(async move { serving.serve(listener).await });
        }
        let scrubber = Scrubber::new(&self.handle, &core);
        answer_messages(&self.handle, &core, &scrubber, self.mailbox).await;
    }
}

/// Answers the control side until it says to shut down, or is gone.
async fn answer_messages<D: Device>(
    handle: &Handle,
    core: &Core<Handle, D>,
    scrubber: &Rc<Scrubber<D>>,
    mut mailbox: Receiver<CoreMessage>,
) {
    while let Some(message) = mailbox.recv().await {
        match message {
            CoreMessage::Shutdown { answer } => {
                scrubber.stop();
                let _ = answer.send(core.shutdown().await);
                return;
            }
            CoreMessage::Scrub { change, answer } => {
                match change {
                    Some(Some(bytes_per_second)) => scrubber.start(bytes_per_second),
                    Some(None) => scrubber.stop(),
                    None => {}
                }
                let _ = answer.send(scrubber.report());
            }
            message => {
                // A task each, so that one which waits for the device holds up no other.
                let core = core.clone();
                handle.spawn_now(async move { act(&core, message).await });
            }
        }
    }
}

/// Does what one message asks. Whoever asked may have gone: the answer is then dropped.
async fn act<D: Device>(core: &Core<Handle, D>, message: CoreMessage) {
    /// The shard that takes new volumes.
    const OWN_SHARD: usize = 0;
    match message {
        CoreMessage::CreateVolume { spec, terms, answer } => {
            let _ = answer.send(core.create_volume(OWN_SHARD, spec, terms).await);
        }
        CoreMessage::ListVolumes { answer } => {
            let _ = answer.send(core.volumes());
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
        CoreMessage::Schedule { share: (config, quotas) } => core.schedule(config, &quotas),
        CoreMessage::Flows { answer } => {
            let _ = answer.send((core.flows(), core.stats()));
        }
        CoreMessage::DeleteVolume { id, answer } => {
            let _ = answer.send(core.delete_volume(id).await);
        }
        CoreMessage::Announce { record } => core.announce(record),
        CoreMessage::Withdraw { id } => core.withdraw(id),
        CoreMessage::Stats { answer } => {
            let _ = answer.send(core.stats());
        }
        CoreMessage::Scrub { .. } | CoreMessage::Shutdown { .. } => {
            unreachable!("handled where messages come in")
        }
    }
}
