//! A core: what it owns, and what the control side may ask of it.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use access::Access;
use io_traits::{Device, Listener, World};
use local_sync::{Notify, first_of};
use typed_index_collections::TiVec;
use units::{DeviceIndex, Duration, Instant, MetadataSize, SectorSize, ShardIndex, Slo};
use uuid::Uuid;
use volume::{CutOff, Terms, Volume, VolumeError, VolumeSpec};

use crate::admission::Awaiting;
use crate::allotment::Allowances;
use crate::care::ShardCare;
use crate::commands::Commands;
use crate::devices::{Attached, Gates};
use crate::export::Export;
use crate::memory::{Memory, Window};
use crate::options::CoreOptions;
use crate::recording::Recordings;
use crate::running::{CATCH_UP, RunningClock, TICK};
use crate::session::{ExportId, Frontend, Session, VolumeEvent};
use crate::sessions::Sessions;
use crate::suspended::Suspension;

/// Pause after a failed accept, such as one for want of file descriptors.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);
/// Time that [`Core::shutdown`] waits for requests under way.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);
/// Time that it then waits for hosts to disconnect.
const GOODBYE_TIMEOUT: Duration = Duration::from_millis(500);
const DRAIN_POLL: Duration = Duration::from_millis(5);
/// Why sessions end at [`Core::shutdown`].
const STOPPING: &str = "the server stops";

/// Consent of the caller that takes a volume away, or a part of it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Loss {
    /// Data may be lost, and hosts may have it open.
    Accepted,
    /// No data may be lost, and no host that has it open is cut off.
    Refused,
}

/// Reason why a volume was neither resized nor deleted.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum ChangeError {
    /// It is in use, and this was not to be lost.
    #[error("it holds {mapped_blocks} blocks and is open on {connections} connections")]
    InUse {
        /// Blocks that hold data.
        mapped_blocks: u64,
        /// Connections of hosts that have it open.
        connections: usize,
    },
    /// The engine refused.
    #[error(transparent)]
    Volume(#[from] VolumeError),
}

/// A volume as its core knows it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct VolumeStatus {
    /// Identity.
    pub uuid: Uuid,
    /// Name for people.
    pub name: String,
    /// Size in blocks.
    pub blocks: u64,
    /// Metadata of each block.
    pub metadata: MetadataSize,
    /// Logical blocks, as hosts address it.
    pub sector: SectorSize,
    /// Blocks that hold data.
    pub mapped_blocks: u64,
    /// The device it lies on, as numbered for [`Core::attach_on`].
    pub device: DeviceIndex,
    /// The shard it lies in, counted in the order of [`Core::attach`].
    pub shard: ShardIndex,
    /// The service level that it is promised.
    pub slo: Slo,
    /// The hosts that may open it; `None` if that cannot be read.
    pub access: Option<Access>,
}

pub(crate) struct State<W: World, D: Device> {
    world: W,
    options: CoreOptions,
    started: Instant,
    running: RunningClock,
    memory: Memory,
    commands: Commands<W, D>,
    pub(crate) gates: Gates<W>,
    pub(crate) shards: RefCell<TiVec<ShardIndex, Attached<D>>>,
    pub(crate) care: ShardCare<D>,
    pub(crate) suspension: Suspension,
    pub(crate) exports: RefCell<BTreeMap<Uuid, Rc<Export<W, D>>>>,
    /// Limits on the space of tenants' volumes.
    pub(crate) allowances: Allowances,
    /// Exports so far.
    exported: Cell<u64>,
    sessions: Rc<Sessions>,
    frontends: RefCell<Vec<Rc<dyn Frontend<W, D>>>>,
    /// Names of errors that front ends answer as a rule.
    pub(crate) expected_errors: RefCell<BTreeSet<&'static str>>,
    pub(crate) awaiting: Awaiting,
    recordings: Recordings<W, D>,
    draining: Cell<bool>,
    stop: Notify,
}

/// One CPU's part of a Flash server. A cheap handle; clones are the same core.
pub struct Core<W: World, D: Device> {
    pub(crate) state: Rc<State<W, D>>,
}

impl<W: World, D: Device> Clone for Core<W, D> {
    fn clone(&self) -> Self {
        Self { state: self.state.clone() }
    }
}

/// Releases what refers back to the core when the core's tasks are dropped: nothing else would free it.
struct Parting<W: World, D: Device>(Core<W, D>);

impl<W: World, D: Device> Drop for Parting<W, D> {
    fn drop(&mut self) {
        let state = &self.0.state;
        state.sessions.clear();
        drop(state.frontends.take());
        state.care.set_on_return(None);
    }
}

impl<W: World, D: Device> Core<W, D> {
    /// A core without volumes. Starts to look at deadlines, and for commands.
    #[must_use]
    pub fn new(world: &W, options: CoreOptions) -> Self {
        let state = State {
            world: world.clone(),
            started: world.now(),
            running: RunningClock::new(world.now()),
            memory: Memory::new(options.memory_bytes),
            gates: Gates::default(),
            options,
            commands: Commands::default(),
            shards: RefCell::default(),
            care: ShardCare::default(),
            suspension: Suspension::default(),
            exports: RefCell::default(),
            allowances: Allowances::default(),
            exported: Cell::new(0),
            sessions: Rc::default(),
            frontends: RefCell::default(),
            expected_errors: RefCell::default(),
            awaiting: Awaiting::default(),
            recordings: Recordings::default(),
            draining: Cell::new(false),
            stop: Notify::new(),
        };
        let core = Self { state: Rc::new(state) };
        let (ticking, running) = (core.clone(), core.clone());
        world.spawn(async move { ticking.tick().await });
        world.spawn(async move { running.run_commands().await });
        core
    }

    /// Gives a front end its share of the core's time, and learns which errors it answers as a rule, by name.
    pub fn add_frontend(
        &self,
        frontend: Rc<dyn Frontend<W, D>>,
        errors: impl IntoIterator<Item = &'static str>,
    ) {
        self.state.frontends.borrow_mut().push(frontend);
        self.state.expected_errors.borrow_mut().extend(errors);
    }

    /// Accepts connections for `frontend` until [`Core::shutdown`].
    pub async fn serve(&self, frontend: &dyn Frontend<W, D>, listener: W::Listener) {
        let mut stop = std::pin::pin!(self.state.stop.notified());
        loop {
            if self.is_draining() {
                return;
            }
            match first_of(listener.accept(), stop.as_mut()).await.first() {
                None => return,
                Some(Ok(stream)) => self.add_connection(frontend, stream).await,
                Some(Err(error)) => {
                    tracing::warn!(%error, "accept failed; trying again");
                    let retry = self.state.world.now() + ACCEPT_RETRY;
                    self.state.world.sleep_until(retry).await;
                }
            }
        }
    }

    /// Creates a volume in a shard.
    ///
    /// # Errors
    /// As [`volume::Shard::create_volume`].
    pub async fn create_volume(
        &self,
        shard: ShardIndex,
        spec: VolumeSpec,
        terms: impl Into<Terms>,
    ) -> Result<VolumeStatus, VolumeError> {
        let (target, uuid) = (self.shard(shard), spec.uuid);
        match target.create_volume_under(spec, terms.into()).await {
            Ok(volume) => {
                self.state.care.note_creation(uuid, false);
                Ok(self.add_export(volume, shard))
            }
            Err(error) => {
                // A record or a checkpoint that may or may not have been written.
                if matches!(error, VolumeError::JournalLost | VolumeError::ShutDown) {
                    self.state.care.note_creation(uuid, true);
                }
                Err(error)
            }
        }
    }

    /// Changes what a volume is promised. [`Core::schedule`] makes it good.
    ///
    /// # Errors
    /// There is no such volume, or as [`volume::Volume::set_slo`].
    pub async fn set_slo(&self, uuid: Uuid, slo: Slo) -> Result<VolumeStatus, VolumeError> {
        let export = self.export(uuid).ok_or(VolumeError::Deleted)?;
        export.volume().set_slo(slo).await?;
        Ok(status_of(&export))
    }

    /// All volumes, by identity. With thousands the core does nothing else meanwhile for milliseconds:
    /// see [`Self::volumes_from`].
    #[must_use]
    pub fn volumes(&self) -> Vec<VolumeStatus> {
        self.volumes_from(Uuid::nil(), usize::MAX)
    }

    /// The first `max` volumes, by identity, from `first` on.
    #[must_use]
    pub fn volumes_from(&self, first: Uuid, max: usize) -> Vec<VolumeStatus> {
        let exports = self.state.exports.borrow();
        exports.range(first..).take(max).map(|(_, export)| status_of(export)).collect()
    }

    /// One volume.
    #[must_use]
    pub fn volume(&self, uuid: Uuid) -> Option<VolumeStatus> {
        self.export(uuid).map(|export| status_of(&export))
    }

    /// Returns how often hosts have a volume open.
    #[must_use]
    pub fn hosts_of(&self, uuid: Uuid) -> usize {
        self.export(uuid).map_or(0, |export| self.connections_of(&export))
    }

    fn connections_of(&self, export: &Export<W, D>) -> usize {
        self.all_sessions().iter().filter(|session| session.has_open(export.id())).count()
    }

    /// Changes a volume's size and tells connected hosts. Also returned is what a smaller size cut off.
    ///
    /// # Errors
    /// There is no such volume, or as [`volume::Volume::resize`]; it is in use, and a smaller size would lose what `loss` does
    /// not accept.
    pub async fn resize_volume(
        &self,
        uuid: Uuid,
        blocks: u64,
        loss: Loss,
    ) -> Result<(VolumeStatus, Option<CutOff>), ChangeError> {
        let export = self.export(uuid).ok_or(VolumeError::Deleted)?;
        let check = |volume: &Volume<D>| match blocks < volume.blocks() {
            true => self.check_use(&export, loss),
            false => Ok(()),
        };
        // Before as well: what is refused at once delays no other request.
        check(&export.volume())?;
        let cut_off = export.volume().resize_if(blocks, check).await?;
        self.tell(&export, VolumeEvent::Resized);
        Ok((status_of(&export), cut_off))
    }

    /// Deletes a volume and cuts its connections. Until it is gone hosts find it: a host that connects
    /// meanwhile would otherwise be told that there is none, and would never retry, also if the volume
    /// stays.
    ///
    /// # Errors
    /// There is no such volume, or as [`volume::Shard::delete_volume`]; it is in use, and `loss` does not accept that it is lost.
    pub async fn delete_volume(&self, uuid: Uuid, loss: Loss) -> Result<(), ChangeError> {
        let export = self.export(uuid).ok_or(VolumeError::Deleted)?;
        // Before as well: what is refused at once delays no other request.
        self.check_use(&export, loss)?;
        self.shard(export.shard).delete_volume_if(uuid, |_| self.check_use(&export, loss)).await?;
        // Unless the shard came back meanwhile, without the volume.
        if self.state.exports.borrow_mut().remove(&uuid).is_some() {
            self.retire(&export);
        }
        Ok(())
    }

    /// Refuses the loss of a volume that holds data or that hosts have open.
    fn check_use(&self, export: &Export<W, D>, loss: Loss) -> Result<(), ChangeError> {
        let mapped_blocks = export.volume().mapped_blocks();
        let connections = self.connections_of(export);
        match loss {
            Loss::Refused if mapped_blocks > 0 || connections > 0 => {
                Err(ChangeError::InUse { mapped_blocks, connections })
            }
            Loss::Accepted | Loss::Refused => Ok(()),
        }
    }

    /// Takes no more connections and commands, lets those under way finish (also those whose data is
    /// still on its way), closes all connections, and shuts the shards down. Commands that come too
    /// late are not answered: the host finds its connection closed, and sends them again elsewhere or
    /// later.
    ///
    /// # Errors
    /// The first shard that could not write its last checkpoint; it will replay its journal.
    pub async fn shutdown(&self) -> Result<(), VolumeError> {
        self.state.draining.set(true);
        // Requests that wait for their turn proceed now: there will be no other turn.
        self.state.gates.open();
        self.release_devices();
        self.state.stop.notify_all();
        let world = &self.state.world;
        let deadline = self.running_time() + DRAIN_TIMEOUT;
        while self.running_time() < deadline
            && self.all_sessions().iter().any(|it| it.requests() > 0)
        {
            world.sleep_until(world.now() + DRAIN_POLL).await;
        }
        // Let the last replies out, and the hosts read them, before the connections go.
        self.all_sessions().iter().for_each(|session| session.close(STOPPING));
        let deadline = self.running_time() + GOODBYE_TIMEOUT;
        while self.running_time() < deadline && self.state.sessions.count() > 0 {
            world.sleep_until(world.now() + DRAIN_POLL).await;
        }
        self.all_sessions().iter().for_each(|session| session.cut(STOPPING));
        self.shut_shards_down().await
    }

    async fn tick(&self) {
        let world = &self.state.world;
        let _parting = Parting(self.clone());
        loop {
            let due = world.now() + TICK;
            world.sleep_until(due).await;
            if world.now().since(due) > TICK {
                // RUNNING-2.
                world.sleep_until(world.now() + CATCH_UP).await;
            }
            self.state.running.tick(world.now());
            let now = self.running_time();
            let refused = self.state.sessions.take_refused();
            if refused > 0 {
                let max = self.state.options.connections_max;
                tracing::warn!(refused, max, "too many connections: some were refused");
            }
            self.all_sessions().iter().for_each(|session| session.on_tick(now));
            self.look_after_recordings(now);
            self.look_after_shards();
            let frontends = self.state.frontends.borrow().clone();
            frontends.iter().for_each(|frontend| frontend.on_tick(self, now));
        }
    }

    /// The volume is gone: its sessions are to end.
    pub(crate) fn retire(&self, export: &Export<W, D>) {
        self.state.recordings.end(export, "the volume is gone");
        export.lane.close();
        self.state.commands.remove_lane(export.lane.turns());
        self.tell(export, VolumeEvent::Deleted);
    }

    /// Tells all sessions what becomes of a volume (PLANE-SESSION-3).
    pub(crate) fn tell(&self, export: &Export<W, D>, event: VolumeEvent) {
        self.all_sessions().iter().for_each(|session| session.on_volume(export.id(), event));
    }

    pub(crate) fn add_export(&self, volume: volume::Volume<D>, shard: ShardIndex) -> VolumeStatus {
        let id = ExportId(self.state.exported.get());
        self.state.exported.set(id.0 + 1);
        let device = self.state.shards.borrow()[shard].device;
        let lane = self.state.gates.get(&self.state.world, device);
        let lane = lane.add_lane(self.state.commands.add_lane());
        let export = Rc::new(Export::new(id, volume, shard, device, lane));
        self.bound_by_allowance(&export);
        let status = status_of(&export);
        self.state.exports.borrow_mut().insert(status.uuid, export);
        status
    }

    fn all_sessions(&self) -> Vec<Rc<dyn Session>> {
        self.state.sessions.all()
    }

    /// The volume of this identity, whether or not hosts may open it now.
    #[must_use]
    pub fn export(&self, uuid: Uuid) -> Option<Rc<Export<W, D>>> {
        self.state.exports.borrow().get(&uuid).cloned()
    }

    /// The world in which it runs.
    #[must_use]
    pub fn world(&self) -> &W {
        &self.state.world
    }

    pub(crate) fn options(&self) -> &CoreOptions {
        &self.state.options
    }

    pub(crate) fn commands(&self) -> &Commands<W, D> {
        &self.state.commands
    }

    pub(crate) fn recordings(&self) -> &Recordings<W, D> {
        &self.state.recordings
    }

    /// The time since it was made.
    #[must_use]
    pub fn uptime(&self) -> Duration {
        self.state.world.now().since(self.state.started)
    }

    pub(crate) fn sessions(&self) -> &Rc<Sessions> {
        &self.state.sessions
    }

    pub(crate) fn memory_used_bytes(&self) -> u64 {
        self.state.memory.used_bytes()
    }

    pub(crate) fn window(&self) -> Window {
        self.state.memory.window(self.state.options.window_bytes)
    }

    /// The time by the clock that stands still while the core does not run: by this one peers are judged (RUNNING-1).
    #[must_use]
    pub fn running_time(&self) -> Instant {
        self.state.running.time(self.state.world.now())
    }

    /// Returns whether it takes no more connections and commands.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.state.draining.get()
    }
}

pub(crate) fn status_of<W: World, D: Device>(export: &Export<W, D>) -> VolumeStatus {
    let volume = export.volume();
    VolumeStatus {
        uuid: volume.uuid(),
        name: volume.name().to_owned(),
        blocks: volume.blocks(),
        metadata: volume.metadata_size(),
        sector: volume.sector_size(),
        mapped_blocks: volume.mapped_blocks(),
        device: export.device,
        shard: export.shard,
        slo: volume.slo(),
        access: export.access().map(|access| access.as_ref().clone()),
    }
}
