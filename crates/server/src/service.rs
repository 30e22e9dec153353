//! Requests of the API, carried out by the data cores.
//!
//! - SERVICE-1: the directory says which core and device hold which volume. It is filled from the
//!   devices at the start and changed only behind a core's answer, one change at a time on each
//!   device.
//! - SERVICE-2: a change that has begun runs to its end, even if its client has gone.
//! - SERVICE-3: a change to what lies on one device never waits for another device.
//!
//! Where a new volume goes is decided in `placement.rs`; changes are in `changes.rs`, what is shown of
//! volumes in `documents.rs`, of devices in `devices.rs` and `stats.rs`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use control::{
    Caller, ChangeAuth, ChangeDevice, ChangeRestrictions, CreateVolume, CreatedVolume, Device,
    GrownDevice, HostList, Location, OtherHost, Recording, RecordingRequest, Reply, Resizing,
    Scrub, ScrubRequest, Server, ServiceError, Serving, Tokens, Volume, VolumeKey, VolumeService,
};
use schedule::Promise;
use typed_index_collections::TiVec;
use units::{CoreIndex, DeviceIndex};
use user_messages::Failure;
use uuid::Uuid;

use super::ServeConfig;
use super::access::TokenRules;
use super::allowance::{BlockQuota, Quotas};
use super::aside::Aside;
use super::cluster::Asked;
use super::cores::{CoreLink, Cores};
use super::directory::{Directory, Known, SharedDirectory};
use super::in_flight::{InFlight, Turn};
use super::membership::Membership;
use super::offers::Offers;
use super::own_conditions::OwnNotices;
use super::returns::say_of_one_name;
use super::scrub_plan::ScrubPlan;
use super::served_device::ServedDevice;
use super::sharing::{SharedDevice, slo_of};
use super::state::State;
use super::tasks::Tasks;
use super::tenure::Fencing;

/// The volumes of this server.
#[derive(Clone)]
pub(crate) struct Volumes {
    state: Arc<State>,
}

/// The time since which a server runs, and if it accepts changes.
pub(super) struct Opening {
    started: Instant,
    is_open: AtomicBool,
}

impl Opening {
    fn now() -> Self {
        Self { started: Instant::now(), is_open: AtomicBool::new(true) }
    }

    pub(super) fn uptime(&self) -> Duration {
        self.started.elapsed()
    }

    pub(super) fn is_open(&self) -> bool {
        self.is_open.load(Ordering::Relaxed)
    }

    fn close(&self) {
        self.is_open.store(false, Ordering::Relaxed);
    }
}

impl Volumes {
    /// The volumes of `cores`, which run and hold their parts of the devices.
    pub(crate) async fn load(
        config: &ServeConfig,
        cores: TiVec<CoreIndex, CoreLink>,
        membership: Membership,
        quotas: Vec<BlockQuota>,
        (absent, asides): (&BTreeMap<DeviceIndex, Failure>, Vec<Option<Aside>>),
    ) -> Result<Self, ServiceError> {
        let specs = config.devices.iter().zip(config.device_names()).zip(asides);
        let devices = specs.map(|((spec, name), aside)| {
            ServedDevice::new(SharedDevice::new(name, spec.sharing, cores.len()), aside)
        });
        let devices: TiVec<DeviceIndex, ServedDevice> = devices.collect();
        let mut directory = Directory::default();
        let mut offered = Vec::new();
        for (core, link) in cores.iter_enumerated() {
            for volume in link.volumes().await? {
                let known = Known::of(core, &volume);
                let place = known.place;
                let promise = Promise { core, slo: volume.slo };
                devices[place.device].shared(|shared| shared.admit_known(place.id, promise));
                if let Some(other) = directory.insert(known) {
                    say_of_one_name(&volume.name, place.id, other);
                }
                offered.push((place, volume));
            }
        }
        let state = State {
            cores: Cores::new(cores),
            devices,
            directory: SharedDirectory::new(directory),
            offers: Offers::default(),
            quotas: Quotas::default(),
            membership,
            fencing: Fencing::default(),
            asked: Asked::default(),
            tokens: TokenRules::of(config.authentication.as_ref()),
            opening: Opening::now(),
            in_flight: InFlight::default(),
            tasks: Tasks::default(),
            own_notices: OwnNotices::default(),
        };
        absent.iter().for_each(|(device, failure)| state.is_without(*device, failure));
        for (place, volume) in &offered {
            // A volume whose restrictions cannot be read is offered to no host.
            if let Some(access) = &volume.access {
                state.announce(*place, volume, access);
            }
        }
        state.devices.keys().for_each(|device| state.share_out(device));
        state.bound_tenants(quotas).await?;
        state.tell_of_absence();
        // Hosts find what each volume and each tenant may take in force.
        state.cores.iter().try_for_each(CoreLink::admit)?;
        state.place_devices();
        for device in state.devices.keys() {
            if let Err(error) = state.reconcile(device).await {
                tracing::warn!("records are not compared with the device yet: {error}");
            }
        }
        Ok(Self { state: Arc::new(state) })
    }

    pub(super) fn state(&self) -> &Arc<State> {
        &self.state
    }

    /// Notes when scrubs of a device begin, so that it can be shown.
    pub(super) fn plan_scrub(&self, device: DeviceIndex, plan: ScrubPlan) {
        self.state.devices[device].plan_scrubs(plan);
    }

    /// From now on nothing is answered: the server stops.
    pub(crate) fn close(&self) {
        self.state.opening.close();
    }

    /// Returns true if changes are taken.
    fn is_open(&self) -> bool {
        self.state.opening.is_open()
    }

    /// Number of volumes.
    pub(crate) fn count(&self) -> usize {
        self.state.directory(|directory| directory.len())
    }

    /// Admits a change of `caller`, unless too many of its changes are under way.
    fn turn(&self, caller: &Caller) -> Result<Option<Turn>, ServiceError> {
        self.state.in_flight.begin(caller)
    }

    /// Runs a change to its end (SERVICE-2), if it has a turn.
    async fn change<T, F>(
        &self,
        turn: Result<Option<Turn>, ServiceError>,
        change: impl FnOnce(Arc<State>) -> F + Send + 'static,
    ) -> Result<T, ServiceError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, ServiceError>> + Send + 'static,
    {
        if !self.is_open() {
            return Err(ServiceError::Unavailable);
        }
        let (turn, changing) = (turn?, change(self.state.clone()));
        let done = tokio::spawn(async move {
            let _turn = turn;
            changing.await
        });
        done.await.unwrap_or(Err(ServiceError::Unavailable))
    }
}

impl VolumeService for Volumes {
    fn create(&self, caller: Caller, request: CreateVolume) -> Reply<'_, CreatedVolume> {
        let turn = self.turn(&caller);
        Box::pin(
            self.change(turn, move |state| async move { state.create(&caller, request).await }),
        )
    }

    fn list(&self, caller: Caller) -> Reply<'_, Vec<Volume>> {
        Box::pin(async move { self.state.list(&caller).await })
    }

    fn show(&self, caller: Caller, key: VolumeKey) -> Reply<'_, Volume> {
        Box::pin(async move { self.state.show(&caller, key).await })
    }

    fn resize(&self, caller: Caller, key: VolumeKey, resizing: Resizing) -> Reply<'_, Volume> {
        let turn = self.turn(&caller);
        Box::pin(
            self.change(
                turn,
                move |state| async move { state.resize(&caller, key, resizing).await },
            ),
        )
    }

    fn set_slo(&self, caller: Caller, key: VolumeKey, slo: control::Slo) -> Reply<'_, Volume> {
        let turn = self.turn(&caller);
        Box::pin(self.change(turn, move |state| async move {
            state.set_slo(&caller, key, slo_of(slo)).await
        }))
    }

    fn change_auth(&self, caller: Caller, key: VolumeKey, change: ChangeAuth) -> Reply<'_, Tokens> {
        let turn = self.turn(&caller);
        Box::pin(self.change(turn, move |state| async move {
            state.change_auth(&caller, key, change).await
        }))
    }

    fn restrict(
        &self,
        caller: Caller,
        key: VolumeKey,
        change: ChangeRestrictions,
    ) -> Reply<'_, Volume> {
        let turn = self.turn(&caller);
        Box::pin(
            self.change(
                turn,
                move |state| async move { state.restrict(&caller, key, change).await },
            ),
        )
    }

    fn change_device(&self, name: String, change: ChangeDevice) -> Reply<'_, Device> {
        // An operator's.
        let change =
            move |state: Arc<State>| async move { state.change_device(&name, &change).await };
        Box::pin(self.change(Ok(None), change))
    }

    fn forget_device(&self, device: Uuid, down: Option<String>) -> Reply<'_, ()> {
        // An operator's.
        let change =
            move |state: Arc<State>| async move { state.forget_device(device, down).await };
        Box::pin(self.change(Ok(None), change))
    }

    fn stats(&self) -> Reply<'_, control::Stats> {
        Box::pin(self.state.stats())
    }

    fn scrub(&self, device: String, request: ScrubRequest) -> Reply<'_, Scrub> {
        Box::pin(async move { self.state.scrub(self.state.device_named(&device)?, request).await })
    }

    fn recording(&self, key: VolumeKey, request: RecordingRequest) -> Reply<'_, Recording> {
        Box::pin(self.state.recording(key, request))
    }

    fn grow_device(&self, device: String) -> Reply<'_, GrownDevice> {
        // An operator's.
        let change = move |state: Arc<State>| async move { state.grow_device(&device).await };
        Box::pin(self.change(Ok(None), change))
    }

    fn delete(&self, caller: Caller, key: VolumeKey, lose_data: bool) -> Reply<'_, ()> {
        let turn = self.turn(&caller);
        Box::pin(
            self.change(
                turn,
                move |state| async move { state.delete(&caller, key, lose_data).await },
            ),
        )
    }

    fn locate(&self, caller: &Caller, key: &VolumeKey) -> Location {
        self.state.locate(caller, key)
    }

    fn locate_new(&self, on: &str) -> Result<Location, ServiceError> {
        self.state.locate_new(on)
    }

    fn others(&self) -> Vec<OtherHost> {
        self.state.others()
    }

    fn known_elsewhere(&self, caller: &Caller, answered: &BTreeSet<Uuid>) -> Vec<Volume> {
        self.state.known_elsewhere(caller, answered)
    }

    fn hosts(&self) -> Reply<'_, HostList> {
        Box::pin(async { Ok(self.state.hosts()) })
    }

    fn serving(&self, device: Uuid) -> Serving {
        self.state.serving(device)
    }

    fn server(&self) -> Reply<'_, Server> {
        Box::pin(self.state.server())
    }

    fn is_ready(&self) -> bool {
        self.is_open() && !self.state.is_fenced()
    }
}
