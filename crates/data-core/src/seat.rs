//! A data core from inside: its portal, its parts of the devices, and the messages it answers.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use auth::Policy;
use dataplane::{Core, CoreOptions, Frontend};
use device::kind::{AnyDevice, Attach};
use device::layer::Fenced;
use directory::{BootClock as _, BootTime, Tenure};
use io_traits::{Device, Entropy, Listener, Spawn};
use nbd_frontend::NbdTls;
use nvme_frontend::{Line, NvmeCore, NvmeOptions};
use reactor::{CoreConfig, CoreThread, Handle, Receiver, StartError, TcpListener};
use tokio::sync::{mpsc, oneshot};
use typed_index_collections::TiVec;
use units::{ByteLen, CoreIndex, DeviceIndex, ShardIndex};
use user_messages::Failure;
use volume::{OpenError, Recovered, Shard, ShardOptions, VolumeError};

use crate::advertised::Advertised;
use crate::front_ends::{Bounds, FrontEnds, Place};
use crate::listening::{Discovery, listen_all};
use crate::message::{CoreMessage, NewWay, Part, Returned, TakeUp, VOLUMES_AT_ONCE};
use crate::scrubber::Scrubber;

/// Settings of a core when its thread starts.
pub struct Seat {
    /// Its CPU.
    pub cpu: u32,
    /// Its portal.
    pub listen: SocketAddr,
    /// The address at which it answers discovery, besides its portal.
    pub discovery: Discovery,
    /// The places where it listens for other protocols than NVMe.
    pub places: Vec<Place>,
    /// The server's side of TLS for NBD, if clients may begin it.
    pub nbd_tls: Option<NbdTls>,
    /// The address that hosts are told instead of the one that it listens on.
    pub advertise: Option<Advertised>,
    /// Told where it listens, or why a port could not be had.
    pub bound: oneshot::Sender<Result<Bound, Failure>>,
    /// Number of devices of the server.
    pub devices: usize,
    /// Messages of the control side.
    pub mailbox: Receiver<CoreMessage>,
    /// Most connections of hosts.
    pub connections_max: usize,
    /// Memory for data of requests.
    pub memory_bytes: u64,
    /// Memory for the maps of its volumes.
    pub map_memory: ByteLen,
    /// The longest that a request to a device may take.
    pub device_timeout: Duration,
    /// The policy of authentication, if hosts have to know a volume's token.
    pub authentication: Option<Policy>,
    /// For how long it serves.
    pub tenure: Tenure,
    /// The way to say that a shard has come back.
    pub returned: Returns,
    /// Takes what the core says of its connections, and never waits.
    pub lines: Box<dyn Fn(Line) + Send>,
    /// Says that the core has ended.
    pub ending: Ending,
}

/// The addresses at which a core listens.
pub struct Bound {
    /// The address that it listens on.
    pub local: SocketAddr,
    /// The portal as hosts reach it.
    pub portal: SocketAddr,
    /// The address at which it answers discovery, besides its portal, if it does.
    pub discovery: Option<SocketAddr>,
    /// The places where it listens for other protocols.
    pub places: Vec<Place>,
}

/// The way to say that a shard of this core has come back.
pub struct Returns {
    /// Index of this core.
    pub core: CoreIndex,
    /// The way to the control side.
    pub told: mpsc::UnboundedSender<Returned>,
}

/// Says that a core has ended, in whatever way.
pub struct Ending(pub mpsc::Sender<()>);

impl Drop for Ending {
    fn drop(&mut self) {
        // One message is enough: a full channel has one already.
        let _ = self.0.try_send(());
    }
}

/// Starts a core on a thread of its own.
///
/// # Errors
/// The thread cannot be had, or this machine lets it do no I/O.
pub fn start(seat: Seat) -> Result<CoreThread<()>, StartError> {
    let cpu = seat.cpu;
    let config = CoreConfig {
        cpu: Some(cpu as usize),
        name: format!("core-{cpu}"),
        has_files: true,
        ..CoreConfig::default()
    };
    reactor::spawn_thread(config, move |handle| run(handle, seat))
}

/// Opens the portal, and serves what it is given until told to shut down.
async fn run(handle: Handle, seat: Seat) {
    let Seat { listen, discovery, advertise, bound, mailbox, ending, devices, .. } = seat;
    let listening = listen_all(&handle, (listen, discovery), seat.places).await;
    let (listeners, others) = match listening {
        Ok(listening) => listening,
        Err(error) => {
            let _ = bound.send(Err(error));
            return;
        }
    };
    let local = listeners[0].local();
    let (told, portal_also) =
        advertise.map_or((local.ip(), Vec::new()), |told| (told.first, told.more));
    let portal = SocketAddr::new(told, local.port());
    let discovery = listeners.get(1).map(Listener::local);
    let places = others.iter().map(|(place, _)| place.clone()).collect();
    let _ = bound.send(Ok(Bound { local, portal, discovery, places }));
    let core_options = CoreOptions {
        core: seat.cpu,
        connections_max: seat.connections_max,
        memory_bytes: seat.memory_bytes,
        ..CoreOptions::default()
    };
    let options = NvmeOptions {
        core: core_options,
        portal_also,
        authentication: seat.authentication,
        ..NvmeOptions::new(portal)
    };
    let authenticates = options.authentication.is_some();
    let core = NvmeCore::new(&handle, options);
    let bounds = Bounds { memory_bytes: seat.memory_bytes, authenticates };
    let front_ends = FrontEnds::before(core.clone(), bounds, seat.nbd_tls);
    let at = |(place, listener)| (front_ends.at(&place), listener);
    let nvme = listeners.into_iter().map(|listener| (core.frontend(), listener));
    let doors = nvme.chain(others.into_iter().map(at)).collect();
    let tenure = seat.tenure;
    if tenure.term().is_some() {
        core.serve_while(move || !tenure.is_over(BootTime::now));
    }
    let lines = seat.lines;
    core.on_line(lines);
    let device_of: Rc<RefCell<TiVec<ShardIndex, DeviceIndex>>> = Rc::default();
    let (of, Returns { core: index, told }) = (device_of.clone(), seat.returned);
    core.on_return(move |shard, lost| {
        let _ = told.send(Returned { core: index, device: of.borrow()[shard], lost });
    });
    let devices = || (0..devices).map(DeviceIndex);
    let scrubbers = devices().map(|device| Scrubber::new(&handle, &core, device)).collect();
    let served = RefCell::new(devices().map(|_| None).collect());
    let (device_timeout, map_memory) = (seat.device_timeout, seat.map_memory);
    let desk =
        Desk { handle, front_ends, device_timeout, map_memory, device_of, scrubbers, served };
    Rc::new(desk).answer_messages(doors, mailbox).await;
    drop(ending);
}

/// A device as a core sees it.
type ServedDevice = Fenced<AnyDevice>;
/// A device of which this core has taken its part.
struct Served {
    /// The way to it.
    way: ServedDevice,
    /// The shard that takes new volumes.
    own_shard: ShardIndex,
}

/// Answers messages of the control side.
struct Desk {
    handle: Handle,
    front_ends: FrontEnds<ServedDevice>,
    device_timeout: Duration,
    map_memory: ByteLen,
    /// By shard.
    device_of: Rc<RefCell<TiVec<ShardIndex, DeviceIndex>>>,
    /// By device.
    scrubbers: TiVec<DeviceIndex, Rc<Scrubber<ServedDevice>>>,
    /// By device; nothing of one that is absent.
    served: RefCell<TiVec<DeviceIndex, Option<Served>>>,
}

impl Desk {
    /// Answers until it is told to shut down, or the control side has gone. Until hosts are let in they wait
    /// at the listeners.
    async fn answer_messages(
        self: Rc<Self>,
        mut doors: Vec<(Rc<dyn Frontend<Handle, ServedDevice>>, TcpListener)>,
        mut mailbox: Receiver<CoreMessage>,
    ) {
        while let Some(message) = mailbox.recv().await {
            let core = self.core().clone();
            match message {
                CoreMessage::TakeUp(asked) => {
                    let desk = self.clone();
                    self.handle.spawn(async move { desk.take_up(*asked).await });
                }
                CoreMessage::Admit => {
                    for (frontend, listener) in doors.drain(..) {
                        let serving = core.clone();
                        self.handle.spawn(async move {
                            let core: &Core<_, _> = &serving;
                            core.serve(&*frontend, listener).await;
                        });
                    }
                }
                CoreMessage::Shutdown { answer } => {
                    self.scrubbers.iter().for_each(|scrubber| scrubber.stop());
                    let _ = answer.send(core.shutdown().await);
                    return;
                }
                CoreMessage::Scrub { device, change, answer } => {
                    let scrubber = &self.scrubbers[device];
                    match change {
                        Some(Some(bytes_per_second)) => scrubber.start(bytes_per_second),
                        Some(None) => scrubber.stop(),
                        None => {}
                    }
                    let _ = answer.send(scrubber.report());
                }
                CoreMessage::ScrubCounts { answer } => {
                    let counts = self.scrubbers.iter().map(|scrubber| scrubber.counts());
                    let _ = answer.send(counts.collect());
                }
                CoreMessage::Announce(announcement) => self.front_ends.announce(*announcement),
                CoreMessage::Withdraw { id } => self.front_ends.withdraw(id),
                CoreMessage::Renew { device, way } => {
                    if let Some(way) = self.renewed(device, &way) {
                        core.renew(device, way);
                    }
                }
                CoreMessage::ReopenDevice { device, way, answer } => {
                    let way = way.and_then(|way| self.renewed(device, &way));
                    self.handle.spawn_now(async move {
                        let _ = answer.send(core.reopen_device(device, way).await);
                    });
                }
                CoreMessage::CreateVolume { device, spec, terms, answer } => {
                    let own = self.served.borrow()[device].as_ref().map(|it| it.own_shard);
                    self.handle.spawn_now(async move {
                        let _ = answer.send(match own {
                            Some(shard) => core.create_volume(shard, spec, terms).await,
                            None => Err(VolumeError::ShutDown),
                        });
                    });
                }
                message => {
                    // A task each, so that one which waits for a device holds up no other.
                    self.handle.spawn_now(async move { act(&core, message).await });
                }
            }
        }
    }

    fn core(&self) -> &NvmeCore<Handle, ServedDevice> {
        &self.front_ends.nvme
    }

    /// The way to a device that was reopened; `None` if there is no other.
    fn renewed(&self, device: DeviceIndex, new: &NewWay) -> Option<ServedDevice> {
        let file = new.opened.attach(&self.handle);
        let mut served = self.served.borrow_mut();
        let Served { way, .. } = served[device].as_mut()?;
        let file = way.renewed(file, new.number);
        let device_behind = way.behind().renewed(file)?;
        // What was opened before is closed when its failed shards are gone.
        *way = way.renewed(device_behind, new.number);
        Some(way.clone())
    }

    /// Takes this core's part of a device, in step with the other cores. What it has of it goes if they or the
    /// control side stop on the way.
    async fn take_up(&self, asked: TakeUp) {
        let TakeUp { device, part, recovered, confirm, confirmed, start, .. } = asked;
        let TakeUp { started, serve, serving, .. } = asked;
        let way = self.attach(&part);
        let mut shards = match self.recover(device, &part, &way).await {
            Ok(shards) => shards,
            Err(error) => return drop(recovered.send(Err(error))),
        };
        // The core has its own handle: an old one that is not in use is to be closed.
        drop(part);
        let volumes = shards.iter().flat_map(|shard| shard.volumes()).collect();
        let _ = recovered.send(Ok(volumes));
        if confirm.await.is_err() {
            return;
        }
        let all_confirmed = match Recovered::confirm_all(&mut shards).await {
            Ok(all) => all,
            Err(error) => return drop(confirmed.send(Err(error))),
        };
        let _ = confirmed.send(Ok(()));
        if start.await.is_err() {
            return;
        }
        let mut running = Vec::new();
        for shard in all_confirmed {
            match shard.start_even_full().await {
                Ok(shard) => running.push(shard),
                Err(error) => return drop(started.send(Err(error))),
            }
        }
        let _ = started.send(Ok(()));
        if serve.await.is_err() {
            return;
        }
        let mut own_shard = None;
        for shard in running {
            let number = self.core().attach_on(device, shard);
            self.device_of.borrow_mut().push(device);
            own_shard = own_shard.or(Some(number));
        }
        let own_shard = own_shard.expect("each core has one");
        self.served.borrow_mut()[device] = Some(Served { way, own_shard });
        let _ = serving.send(());
    }

    /// Reads the shards of a device back. Writes nothing.
    async fn recover(
        &self,
        number: DeviceIndex,
        part: &Part,
        device: &ServedDevice,
    ) -> Result<Vec<Recovered<ServedDevice>>, OpenError> {
        let mut recovered = Vec::new();
        let shards = self.scrubbers.len() * part.shards.len();
        let options = ShardOptions {
            volatile_cache: part.volatile_cache,
            map_memory: Some(self.map_memory.0 / shards.max(1) as u64),
            ..ShardOptions::default()
        };
        for &index in &part.shards {
            let options = ShardOptions { secret: self.draw_secret(), ..options };
            let (device, extents) = (device.clone(), part.extents.clone());
            let shard = Shard::recover(device, part.superblock, index, extents, options).await?;
            for loss in shard.losses().iter() {
                tracing::error!(device = number.0, shard = index, "{loss}: it is not served");
            }
            for mended in shard.mended().iter() {
                tracing::warn!(device = number.0, shard = index, "damage made good: {mended}");
            }
            recovered.push(shard);
        }
        Ok(recovered)
    }

    fn draw_secret(&self) -> u64 {
        let mut bytes = [0; 8];
        self.handle.fill_random(&mut bytes);
        // 0 is none.
        u64::from_le_bytes(bytes) | 1
    }

    /// The device for this core.
    fn attach(&self, part: &Part) -> ServedDevice {
        let (handle, fence, timeout) = (&self.handle, &part.fence, self.device_timeout);
        let device = part.source.attach(&Attach { handle, fence, timeout });
        Fenced::new(device, fence.clone())
    }
}

/// Does what one message asks. The asking task may have gone: the answer is then dropped.
async fn act<D: Device>(core: &NvmeCore<Handle, D>, message: CoreMessage) {
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
        CoreMessage::ResizeVolume { id, blocks, loss, answer } => {
            let _ = answer.send(core.resize_volume(id, blocks, loss).await);
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
        CoreMessage::Record { volume, command, answer } => {
            let _ = answer.send(core.recording(volume, command));
        }
        CoreMessage::DeleteVolume { id, loss, answer } => {
            let _ = answer.send(core.delete_volume(id, loss).await);
        }
        CoreMessage::CloseDevice { device, answer } => {
            let _ = answer.send(core.close_device(device).await);
        }
        CoreMessage::Abandon { device } => core.abandon(device),
        CoreMessage::Suspend => core.suspend(),
        CoreMessage::Resume => core.resume(),
        CoreMessage::AwaitVolumes { may_come } => core.await_volumes(may_come),
        CoreMessage::Place { device, domain } => core.place_device(device, *domain),
        CoreMessage::BoundTenants { owners } => core.bound_tenants(owners),
        CoreMessage::Allot { limits, answer } => {
            let _ = answer.send(core.allot(&limits));
        }
        CoreMessage::Refused { answer } => {
            let _ = answer.send(core.connections_refused());
        }
        CoreMessage::Stats { answer } => {
            let _ = answer.send((core.stats(), core.nvme_stats()));
        }
        CoreMessage::TakeUp(_)
        | CoreMessage::Admit
        | CoreMessage::Announce(_)
        | CoreMessage::Withdraw { .. }
        | CoreMessage::CreateVolume { .. }
        | CoreMessage::Renew { .. }
        | CoreMessage::ReopenDevice { .. }
        | CoreMessage::Scrub { .. }
        | CoreMessage::ScrubCounts { .. }
        | CoreMessage::Shutdown { .. } => unreachable!("handled where messages come in"),
    }
}
