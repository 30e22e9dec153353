//! What the API asks, done by the data cores: names, placement, and messages.
//!
//! - V1: the directory here says which core holds which volume. It is filled from the devices at
//!   the start and changed only behind a core's answer, one change at a time.
//! - V2: a change that has begun runs to its end, even if the one who asked has gone.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use ::access::{Access, Restrictions};
use control::{
    Caller, ChangeAuth, ChangeDevice, ChangeRestrictions, CreateVolume, CreatedVolume, Device,
    Portal, Reply, Scrub, ScrubRequest, Server, ServiceError, Tokens, Volume, VolumeKey,
    VolumeName, VolumeService, VolumeSize, connect_line, nqn,
};
use dataplane::{DiscoveryRecord, VolumeStatus};
use reactor::Sender;
use schedule::{Promise, Slo};
use tokio::sync::oneshot;
use units::BLOCK_SIZE;
use uuid::Uuid;
use volume::{Terms, VolumeError, VolumeSpec};

use super::ServeConfig;
use super::access;
use super::directory::{Directory, Place};
use super::message::{Answer, CoreMessage};
use super::quota::{self, Wanted};
use super::scrub_plan::ScrubPlan;
use super::sharing::{SharedDevice, slo_document, slo_of};

/// Volumes of a server at most: what the directory and the answers of the API are made for.
const VOLUMES_MAX: usize = 65_536;
/// A data core, as the control side sees it.
#[derive(Clone)]
pub(crate) struct CoreLink {
    /// The CPU.
    pub(crate) cpu: u32,
    /// Where hosts are told to connect to.
    pub(crate) portal: SocketAddr,
    pub(crate) mailbox: Sender<CoreMessage>,
}

pub(super) struct State {
    pub(super) device: String,
    /// Whether hosts have to know a volume's token.
    pub(super) authenticates: bool,
    pub(super) cores: Vec<CoreLink>,
    pub(super) started: Instant,
    ready: AtomicBool,
    directory: Mutex<Directory>,
    shared: Mutex<SharedDevice>,
    pub(super) scrubs: Mutex<Option<ScrubPlan>>,
    /// V1: held during a change.
    changing: tokio::sync::Mutex<()>,
}

/// The volumes of this server.
#[derive(Clone)]
pub(crate) struct Volumes {
    state: Arc<State>,
}

impl CoreLink {
    /// Asks the core something. An answer that does not come says that the core has ended.
    pub(crate) async fn ask<T>(
        &self,
        message: impl FnOnce(Answer<T>) -> CoreMessage,
    ) -> Result<T, ServiceError> {
        let (answer, answered) = oneshot::channel();
        self.mailbox.send(message(answer)).map_err(|_| ServiceError::Unavailable)?;
        answered.await.map_err(|_| ServiceError::Unavailable)
    }
}

impl Volumes {
    /// The volumes of `cores`, which run and hold their shares of `device`.
    pub(crate) async fn load(
        config: &ServeConfig,
        cores: Vec<CoreLink>,
    ) -> Result<Self, ServiceError> {
        let spec = &config.device;
        let device = spec.device.to_string();
        let mut directory = Directory::default();
        let mut shared = SharedDevice::new(device.clone(), spec.sharing, cores.len());
        let mut known = Vec::new();
        for (core, link) in cores.iter().enumerate() {
            for volume in link.ask(|answer| CoreMessage::ListVolumes { answer }).await? {
                let place = Place { id: volume.uuid, core };
                // Of a volume of which it cannot be read who may open it nobody is told.
                known.extend(volume.access.clone().map(|access| (place, access.restrictions)));
                let access = volume.access.clone().unwrap_or_default();
                shared.admit_known(volume.uuid, Promise { core, slo: volume.slo });
                if let Some(other) = directory.insert(&volume.name, place, access.owner) {
                    tracing::error!(name = volume.name, one = %other, another = %place.id,
                        "two volumes have one name: name them by their ids");
                }
            }
        }
        let state = State {
            device,
            authenticates: config.authenticates,
            cores,
            started: Instant::now(),
            ready: AtomicBool::new(true),
            directory: Mutex::new(directory),
            shared: Mutex::new(shared),
            scrubs: Mutex::default(),
            changing: tokio::sync::Mutex::default(),
        };
        known.into_iter().for_each(|(place, restrictions)| state.announce(place, restrictions));
        state.share_out();
        Ok(Self { state: Arc::new(state) })
    }

    /// Notes when scrubs begin, for whoever asks.
    pub(super) fn plan_scrub(&self, plan: ScrubPlan) {
        *self.state.scrubs.lock().unwrap_or_else(PoisonError::into_inner) = Some(plan);
    }

    /// Asks something of the device's scrub.
    pub(super) async fn scrub_own(&self, request: ScrubRequest) -> Result<Scrub, ServiceError> {
        self.state.scrub(self.state.device.clone(), request).await
    }

    /// From now on nothing is answered: the server stops.
    pub(crate) fn close(&self) {
        self.state.ready.store(false, Ordering::Relaxed);
    }

    /// How many volumes there are.
    pub(crate) fn count(&self) -> usize {
        self.state.directory(|directory| directory.len())
    }

    /// Runs a change to its end, alone (V1, V2).
    async fn change<T, F>(
        &self,
        change: impl FnOnce(Arc<State>) -> F + Send + 'static,
    ) -> Result<T, ServiceError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, ServiceError>> + Send + 'static,
    {
        let state = self.state.clone();
        let task = tokio::spawn(async move {
            let _alone = state.changing.lock().await;
            if !state.ready.load(Ordering::Relaxed) {
                return Err(ServiceError::Unavailable);
            }
            change(state.clone()).await
        });
        task.await.unwrap_or(Err(ServiceError::Unavailable))
    }
}

impl State {
    fn directory<T>(&self, look: impl FnOnce(&mut Directory) -> T) -> T {
        // A panic elsewhere leaves the directory whole: each change is one insert or remove.
        look(&mut self.directory.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn shared<T>(&self, look: impl FnOnce(&mut SharedDevice) -> T) -> T {
        // A panic elsewhere leaves the promises whole: each change is one insert or remove.
        look(&mut self.shared.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Tells every core its part of the device, and what its volumes may count on.
    pub(super) fn share_out(&self) {
        let shares = self.shared(|shared| shared.core_shares());
        for (core, share) in self.cores.iter().zip(shares) {
            // A core that has ended has no part in anything.
            let _ = core.mailbox.send(CoreMessage::Schedule { share });
        }
    }

    /// Lets hosts find a volume at the discovery service of every core.
    fn announce(&self, place: Place, restrictions: Restrictions) {
        let address = self.cores[place.core].portal;
        let record = DiscoveryRecord { uuid: place.id, address, restrictions };
        for core in &self.cores {
            // A core that has ended answers no host either.
            let _ = core.mailbox.send(CoreMessage::Announce { record: record.clone() });
        }
    }

    fn withdraw(&self, id: Uuid) {
        for core in &self.cores {
            let _ = core.mailbox.send(CoreMessage::Withdraw { id });
        }
    }

    fn place(&self, caller: &Caller, key: &VolumeKey) -> Result<Place, ServiceError> {
        self.directory(|directory| directory.find(caller, key)).ok_or_else(|| not_found(key))
    }

    async fn create(
        &self,
        caller: &Caller,
        request: CreateVolume,
    ) -> Result<CreatedVolume, ServiceError> {
        let CreateVolume { name, size_bytes, core, slo, restrictions, owner } = request;
        let owner = quota::owner_for(caller, owner)?;
        let slo = slo.unwrap_or_default();
        let wanted = Wanted { id: None, size_bytes: size_bytes.bytes(), slo };
        if let Caller::Tenant(tenant) = caller {
            quota::check(tenant, &self.list(caller).await?, wanted)?;
        }
        let core = self.choose_core(&name, core)?;
        let id = Uuid::new_v4();
        let slo = slo_of(slo);
        let (access, tokens) = access::create(restrictions, owner.clone())?;
        self.shared(|shared| shared.admit(id, Promise { core, slo }))?;
        let spec = VolumeSpec { uuid: id, name: name.to_string(), blocks: size_bytes.blocks() };
        let terms = Terms { slo, access: access.encode().expect("looked at") };
        let made = self.cores[core]
            .ask(|answer| CoreMessage::CreateVolume { spec, terms, answer })
            .await
            .and_then(|made| made.map_err(|error| refusal(&VolumeKey::Name(name.clone()), &error)))
            .inspect_err(|_| self.shared(|shared| shared.remove(id)))?;
        self.share_out();
        let place = Place { id, core };
        self.directory(|directory| directory.insert(name.as_str(), place, owner));
        self.announce(place, access.restrictions);
        let cpu = self.cores[core].cpu;
        tracing::info!(%name, %id, size_bytes = size_bytes.bytes(), core = cpu, "volume created");
        Ok(CreatedVolume { volume: self.document(core, &made), tokens })
    }

    /// Who may open the volume now. Where that cannot be read it cannot be changed in part.
    async fn access(&self, key: &VolumeKey, place: Place) -> Result<Access, ServiceError> {
        let (id, core) = (place.id, &self.cores[place.core]);
        let state = core.ask(|answer| CoreMessage::ShowVolume { id, answer }).await?;
        let access = state.ok_or_else(|| not_found(key))?.access;
        access.ok_or_else(|| ServiceError::Device {
            detail:
                "it cannot be read who may open the volume; a newer version may have written it"
                    .to_owned(),
        })
    }

    async fn change_auth(
        &self,
        caller: &Caller,
        key: VolumeKey,
        change: ChangeAuth,
    ) -> Result<Tokens, ServiceError> {
        let place = self.place(caller, &key)?;
        let before = self.access(&key, place).await?;
        let (access, tokens) = access::rotated(before, change.grace_seconds)?;
        let set = self.set_access(&key, place, access, change.cut).await?;
        tracing::info!(name = set.name, id = %set.uuid, cut = change.cut,
            grace_seconds = change.grace_seconds, "tokens changed");
        Ok(tokens)
    }

    async fn restrict(
        &self,
        caller: &Caller,
        key: VolumeKey,
        change: ChangeRestrictions,
    ) -> Result<Volume, ServiceError> {
        let place = self.place(caller, &key)?;
        let access = access::restricted(self.access(&key, place).await?, change)?;
        let restrictions = access.restrictions.clone();
        let set = self.set_access(&key, place, access, false).await?;
        tracing::info!(name = set.name, id = %set.uuid, ?restrictions, "volume restricted");
        self.announce(place, restrictions);
        Ok(self.document(place.core, &set))
    }

    async fn set_access(
        &self,
        key: &VolumeKey,
        Place { id, core }: Place,
        access: Access,
        cut: bool,
    ) -> Result<VolumeStatus, ServiceError> {
        self.cores[core]
            .ask(|answer| CoreMessage::SetAccess { id, access, cut, answer })
            .await?
            .map_err(|error| refusal(key, &error))
    }

    /// Refuses another size or promise of a volume that would be more than its tenant may have.
    async fn check_quota(
        &self,
        caller: &Caller,
        id: Uuid,
        size_bytes: Option<u64>,
        slo: Option<control::Slo>,
    ) -> Result<(), ServiceError> {
        let Caller::Tenant(tenant) = caller else { return Ok(()) };
        let own = self.list(caller).await?;
        let Some(volume) = own.iter().find(|volume| volume.id == id) else { return Ok(()) };
        let size_bytes = size_bytes.unwrap_or(volume.size_bytes);
        let slo = slo.unwrap_or(volume.slo);
        quota::check(tenant, &own, Wanted { id: Some(id), size_bytes, slo })
    }

    fn choose_core(&self, name: &VolumeName, wanted: Option<u32>) -> Result<usize, ServiceError> {
        let (taken, full, emptiest) = self.directory(|directory| {
            let taken = directory.has_name(name.as_str());
            let full = directory.len() >= VOLUMES_MAX;
            (taken, full, directory.emptiest_core(self.cores.len()))
        });
        if taken {
            return Err(ServiceError::NameTaken { name: name.clone() });
        }
        if full {
            return Err(ServiceError::TooManyVolumes { max: VOLUMES_MAX as u64 });
        }
        let Some(cpu) = wanted else { return Ok(emptiest) };
        self.cores.iter().position(|core| core.cpu == cpu).ok_or_else(|| {
            let cores = self.cores.iter().map(|core| core.cpu).collect();
            ServiceError::UnknownCore { core: cpu, cores }
        })
    }

    async fn resize(
        &self,
        caller: &Caller,
        key: VolumeKey,
        size: VolumeSize,
    ) -> Result<Volume, ServiceError> {
        let Place { id, core } = self.place(caller, &key)?;
        let blocks = size.blocks();
        self.check_quota(caller, id, Some(size.bytes()), None).await?;
        let resized = self.cores[core]
            .ask(|answer| CoreMessage::ResizeVolume { id, blocks, answer })
            .await?
            .map_err(|error| refusal(&key, &error))?;
        tracing::info!(name = resized.name, %id, size_bytes = size.bytes(), "volume resized");
        Ok(self.document(core, &resized))
    }

    async fn set_slo(
        &self,
        caller: &Caller,
        key: VolumeKey,
        slo: Slo,
    ) -> Result<Volume, ServiceError> {
        let Place { id, core } = self.place(caller, &key)?;
        self.check_quota(caller, id, None, Some(slo_document(slo))).await?;
        let before = self.shared(|shared| {
            let before = shared.promise(id);
            shared.admit(id, Promise { core, slo }).map(|()| before)
        })?;
        let set = self.cores[core].ask(|answer| CoreMessage::SetSlo { id, slo, answer }).await;
        let set = set.and_then(|set| set.map_err(|error| refusal(&key, &error)));
        let set = set.inspect_err(|_| {
            if let Some(before) = before {
                self.shared(|shared| shared.admit_known(id, before));
            }
        })?;
        self.share_out();
        tracing::info!(name = set.name, %id, ?slo, "volume promised");
        Ok(self.document(core, &set))
    }

    async fn delete(&self, caller: &Caller, key: VolumeKey) -> Result<(), ServiceError> {
        let Place { id, core } = self.place(caller, &key)?;
        let deleted =
            self.cores[core].ask(|answer| CoreMessage::DeleteVolume { id, answer }).await?;
        // One that was said to have failed may have come true when the device came back.
        if let Err(error) = deleted
            && error != VolumeError::Deleted
        {
            return Err(refusal(&key, &error));
        }
        self.directory(|directory| directory.remove(id));
        self.shared(|shared| shared.remove(id));
        self.share_out();
        self.withdraw(id);
        tracing::info!(volume = %key, %id, "volume deleted");
        Ok(())
    }

    async fn list(&self, caller: &Caller) -> Result<Vec<Volume>, ServiceError> {
        let mut volumes = Vec::new();
        for (core, link) in self.cores.iter().enumerate() {
            let states = link.ask(|answer| CoreMessage::ListVolumes { answer }).await?;
            let owner = |state: &VolumeStatus| state.access.as_ref()?.owner.clone();
            let own = states.iter().filter(|state| caller.may_use(owner(state).as_deref()));
            volumes.extend(own.map(|state| self.document(core, state)));
        }
        volumes.sort_by(|a, b| (&a.name, a.id).cmp(&(&b.name, b.id)));
        Ok(volumes)
    }

    async fn show(&self, caller: &Caller, key: VolumeKey) -> Result<Volume, ServiceError> {
        let Place { id, core } = self.place(caller, &key)?;
        let state = self.cores[core].ask(|answer| CoreMessage::ShowVolume { id, answer }).await?;
        Ok(self.document(core, &state.ok_or_else(|| not_found(&key))?))
    }

    fn document(&self, core: usize, volume: &VolumeStatus) -> Volume {
        let portal = self.cores[core].portal();
        let nqn = nqn(volume.uuid);
        let access = volume.access.clone().unwrap_or_default();
        Volume {
            id: volume.uuid,
            name: volume.name.clone(),
            size_bytes: volume.blocks * BLOCK_SIZE as u64,
            allocated_bytes: volume.mapped_blocks * BLOCK_SIZE as u64,
            address: portal.address,
            portal,
            device: self.device.clone(),
            slo: slo_document(volume.slo),
            restrictions: access::document(&access.restrictions),
            owner: access.owner,
            connect: connect_line(&nqn, portal.address, self.authenticates),
            nqn,
        }
    }
}

impl CoreLink {
    pub(super) fn portal(&self) -> Portal {
        Portal { address: self.portal, core: self.cpu }
    }
}

fn not_found(key: &VolumeKey) -> ServiceError {
    ServiceError::NotFound { volume: key.to_string() }
}

/// What the engine's refusal means to the API.
fn refusal(key: &VolumeKey, error: &VolumeError) -> ServiceError {
    match error {
        VolumeError::Deleted => not_found(key),
        VolumeError::PoolFull => ServiceError::OutOfSpace,
        VolumeError::ShutDown => ServiceError::Unavailable,
        VolumeError::Device(_)
        | VolumeError::JournalLost
        | VolumeError::Corrupt { .. }
        | VolumeError::CorruptMap { .. }
        // The API lets through no size or name that the engine would refuse, and ids are drawn.
        | VolumeError::OutOfRange { .. }
        | VolumeError::Length { .. }
        | VolumeError::Exists(_)
        | VolumeError::Spec => ServiceError::Device { detail: error.to_string() },
    }
}

impl VolumeService for Volumes {
    fn create(&self, caller: Caller, request: CreateVolume) -> Reply<'_, CreatedVolume> {
        Box::pin(self.change(move |state| async move { state.create(&caller, request).await }))
    }

    fn list(&self, caller: Caller) -> Reply<'_, Vec<Volume>> {
        Box::pin(async move { self.state.list(&caller).await })
    }

    fn show(&self, caller: Caller, key: VolumeKey) -> Reply<'_, Volume> {
        Box::pin(async move { self.state.show(&caller, key).await })
    }

    fn resize(&self, caller: Caller, key: VolumeKey, size: VolumeSize) -> Reply<'_, Volume> {
        Box::pin(self.change(move |state| async move { state.resize(&caller, key, size).await }))
    }

    fn set_slo(&self, caller: Caller, key: VolumeKey, slo: control::Slo) -> Reply<'_, Volume> {
        Box::pin(
            self.change(move |state| async move { state.set_slo(&caller, key, slo_of(slo)).await }),
        )
    }

    fn change_auth(&self, caller: Caller, key: VolumeKey, change: ChangeAuth) -> Reply<'_, Tokens> {
        Box::pin(
            self.change(move |state| async move { state.change_auth(&caller, key, change).await }),
        )
    }

    fn restrict(
        &self,
        caller: Caller,
        key: VolumeKey,
        change: ChangeRestrictions,
    ) -> Reply<'_, Volume> {
        Box::pin(
            self.change(move |state| async move { state.restrict(&caller, key, change).await }),
        )
    }

    fn change_device(&self, name: String, change: ChangeDevice) -> Reply<'_, Device> {
        Box::pin(self.change(move |state| async move { state.change_device(name, change).await }))
    }

    fn stats(&self) -> Reply<'_, control::Stats> {
        Box::pin(self.state.stats())
    }

    fn scrub(&self, device: String, request: ScrubRequest) -> Reply<'_, Scrub> {
        Box::pin(self.state.scrub(device, request))
    }

    fn delete(&self, caller: Caller, key: VolumeKey) -> Reply<'_, ()> {
        Box::pin(self.change(move |state| async move { state.delete(&caller, key).await }))
    }

    fn server(&self) -> Reply<'_, Server> {
        Box::pin(self.state.server())
    }

    fn is_ready(&self) -> bool {
        self.state.ready.load(Ordering::Relaxed)
    }
}
