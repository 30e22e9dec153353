//! The volumes of the whole service, as this host knows them from the directory.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use ::access::{Access, NbdAccess};
use control::{
    Caller, ChapSource, DirectoryStatus, Drive, Host, HostDevice, HostList, HostState, Location,
    OtherHost, Portal, ServerNotice, ServerNoticeKind, ServiceError, Serving, Volume, VolumeKey,
    VolumeName, VolumeState, connect_line, nqn,
};
use dataplane::VolumeStatus;
use directory::{
    BootClock as _, BootTime, Claim, ClaimRecord, Conflict, DirectoryError, HostRecord, NbdRecord,
    Reach, RestrictionsRecord, View, VolumeRecord, Word,
};
use units::{BLOCK_SIZE, CoreIndex, DeviceIndex};
use uuid::Uuid;

use super::access;
use super::membership::drive_document;
use super::sharing::slo_document;
use super::state::State;

/// Least time between two log lines about another host that asks for a device.
const SAY_EVERY: Duration = Duration::from_secs(60);

/// The time at which the log last said that another host asks for a device.
#[derive(Default)]
pub(super) struct Asked(Mutex<Option<Instant>>);

impl Asked {
    /// Returns true if the last line was long ago: strangers may ask, and must not fill the log.
    fn is_worth_saying(&self) -> bool {
        let mut said = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_due = said.is_none_or(|said| said.elapsed() >= SAY_EVERY);
        if is_due {
            *said = Some(Instant::now());
        }
        is_due
    }
}

impl State {
    /// The directory's record of a volume of core number `core`.
    pub(super) fn record(&self, core: CoreIndex, volume: &VolumeStatus) -> VolumeRecord {
        let link = &self.cores[core];
        let access = volume.access.as_ref();
        VolumeRecord {
            id: volume.uuid,
            name: volume.name.clone(),
            owner: access.and_then(|access| access.owner.clone()),
            size_bytes: volume.blocks * BLOCK_SIZE as u64,
            sector_bytes: volume.sector.bytes() as u64,
            host: self.membership.id,
            device: self.device_id(volume.device),
            core: link.cpu,
            portal: link.portal,
            state: directory::VolumeState::Ready,
            restrictions: access.map(|access| restrictions_record(&access.restrictions)),
            promise: serde_json::to_value(slo_document(volume.slo)).unwrap_or_default(),
            nbd: access
                .map(|access| self.nbd_record(core, &volume.name, access))
                .unwrap_or_default(),
            iscsi: self.iscsi_portal(core, volume.metadata),
        }
    }

    /// The clients of NBD of a volume as the directory has them.
    pub(super) fn nbd_record(&self, core: CoreIndex, name: &str, access: &Access) -> NbdRecord {
        let control::NbdClients { networks, certificates, unix } =
            access::nbd_document(&access.nbd);
        // A unix socket is there for programs on this host.
        let open_to = NbdAccess { unix: false, ..access.nbd.clone() };
        NbdRecord { networks, certificates, unix, uris: self.nbd_uris(core, name, &open_to) }
    }

    /// Refuses a change to what lies on a device if the directory is away, or the device another's.
    pub(super) async fn may_change(&self, device: DeviceIndex) -> Result<(), ServiceError> {
        let id = self.device_id(device);
        self.membership.directory.check(id).await.map_err(refusal)
    }

    /// Tells the directory how a volume is now. What it is not told now it is told later, when records
    /// are compared.
    pub(super) async fn publish(&self, core: CoreIndex, volume: &VolumeStatus) {
        let record = self.record(core, volume);
        if let Err(error) = self.membership.directory.update(record).await {
            tracing::warn!(
                name = volume.name,
                "the directory is not told of a change yet: {error}"
            );
            self.told(volume.device, error);
        }
    }

    /// Notes that the directory was told something of a device and did not say that it knows it: it may or
    /// may not. Records are compared soon (FOLLOW-3).
    pub(super) fn told(&self, device: DeviceIndex, error: DirectoryError) -> ServiceError {
        if matches!(error, DirectoryError::Unreachable { .. }) {
            self.devices[device].set_doubtful(true);
        }
        refusal(error)
    }

    /// The id of a device of this host in the directory.
    pub(super) fn device_id(&self, device: DeviceIndex) -> Uuid {
        self.membership.devices[device].id().unwrap_or_default()
    }

    /// Makes the directory's records those of what lies on a device. Those of one that is absent stay.
    pub(super) async fn reconcile(&self, device: DeviceIndex) -> Result<(), ServiceError> {
        if self.is_absent(device) {
            return Ok(());
        }
        if !self.is_accounted() {
            // GRANT-4. It is tried again (FOLLOW-3).
            self.devices[device].set_doubtful(true);
            let reason = "it does not know yet what this host holds of quotas".to_owned();
            return Err(ServiceError::DirectoryUnavailable { reason });
        }
        let _alone = self.alone_on(device).await?;
        let mut records = Vec::new();
        for (core, link) in self.cores.iter_enumerated() {
            let volumes = link.volumes().await?;
            let here = volumes.iter().filter(|volume| volume.device == device);
            records.extend(here.map(|volume| self.record(core, volume)));
        }
        let id = self.device_id(device);
        self.devices[device].set_doubtful(false);
        let conflicts = self.membership.directory.reconcile(id, records).await;
        for conflict in conflicts.map_err(|error| self.told(device, error))? {
            match conflict {
                Conflict::Name { id, name, holder } => tracing::error!(name, %id, %holder,
                    "the name of this volume is another's: it is reached by its id only"),
                Conflict::Volume { id, device } => tracing::error!(%id, %device,
                    "a volume of this id lies on another device, too: that one is found by hosts"),
            }
        }
        Ok(())
    }

    /// Has the directory forget a device that an operator says to be gone for good.
    pub(super) async fn forget_device(
        &self,
        id: Uuid,
        down: Option<String>,
    ) -> Result<(), ServiceError> {
        let view = self.view();
        let claim = view.claims.get(&id);
        if claim.is_none() && !view.volumes.values().any(|volume| volume.device == id) {
            let devices = self.lost_devices(&view);
            return Err(ServiceError::UnknownDevice { device: id.to_string(), devices });
        }
        let name = claim.map_or_else(|| id.to_string(), |claim| claim.device_name.clone());
        let is_its = claim.is_some_and(|claim| claim.host == self.membership.id);
        let mut own = self.membership.devices.iter().zip(&self.devices);
        // Of one that was never there since the start only the name is known.
        let is_here = own.any(|(own, device)| match own.id() {
            Some(own) => own == id,
            None => is_its && device.name() == name,
        });
        if is_here {
            let detail =
                format!("the device {name} is one of this server's, whether or not it is there");
            return Err(ServiceError::DeviceInUse { detail });
        }
        let gone = Claim { device: id, name, volatile: true, ..Claim::default() };
        let name = gone.name.clone();
        let forgotten = self.membership.directory.forget_device(gone, Word::down(down));
        forgotten.await.map_err(|error| match error {
            DirectoryError::HolderLives { .. } | DirectoryError::HolderSeen { .. } => {
                ServiceError::DeviceInUse { detail: error.to_string() }
            }
            DirectoryError::HolderMayServe { ref holder, .. } => {
                let detail = error.to_string();
                ServiceError::HolderMayServe { detail, holder: holder.clone() }
            }
            error => refusal(error),
        })?;
        tracing::warn!(device = name, %id, "forgotten, by an operator's word");
        Ok(())
    }

    /// The ids of devices that no host serves that lives.
    fn lost_devices(&self, view: &View) -> Vec<String> {
        let served = view.hosts.values().flat_map(|host| host.devices.iter().map(|it| it.id));
        let served: BTreeSet<Uuid> = served.collect();
        let known = view.volumes.values().map(|volume| volume.device);
        let known: BTreeSet<Uuid> = known.chain(view.claims.keys().copied()).collect();
        known.difference(&served).map(ToString::to_string).collect()
    }

    pub(super) fn view(&self) -> std::sync::Arc<View> {
        self.membership.directory.view()
    }

    /// Returns the location of the volume that `caller` asks about.
    pub(super) fn locate(&self, caller: &Caller, key: &VolumeKey) -> Location {
        let view = self.view();
        let record = match key {
            VolumeKey::Id(id) => view.volumes.get(id),
            VolumeKey::Name(name) => view.named(name.as_str()),
        };
        let seen = record.filter(|record| {
            caller.may_use(record.owner.as_deref())
                && record.state == directory::VolumeState::Ready
                && !self.directory(|directory| directory.has(record.id))
        });
        let Some(record) = seen else { return Location::Here };
        let known = Box::new(self.known(&view, record));
        match (view.reach(record), view.hosts.get(&record.host)) {
            (Reach::Online, Some(host)) if host.id != self.membership.id => {
                Location::There { host: other(host), known: Some(known) }
            }
            // Its deletion is not seen here yet.
            (Reach::Online, _) => Location::Here,
            (Reach::HostLost | Reach::DeviceMissing, _) => Location::Lost(known),
        }
    }

    /// Returns the location for a new volume.
    pub(super) fn locate_new(&self, on: &str) -> Result<Location, ServiceError> {
        let view = self.view();
        let fits = |host: &&std::sync::Arc<HostRecord>| match on.split_once('=') {
            Some((key, value)) => host.labels.get(key).is_some_and(|own| own == value),
            None => host.name == on,
        };
        let volumes = |host: Uuid| view.volumes.values().filter(|v| v.host == host).count();
        let fitting = view.hosts.values().filter(fits);
        let best = fitting.min_by_key(|host| (volumes(host.id), host.id != self.membership.id));
        match best {
            None => Err(ServiceError::UnknownHost {
                wanted: on.to_owned(),
                hosts: view.hosts.values().map(|host| host.name.clone()).collect(),
                labels: view.hosts.values().flat_map(|host| as_given(&host.labels)).collect(),
            }),
            Some(host) if host.id == self.membership.id => Ok(Location::Here),
            Some(host) => Ok(Location::There { host: other(host), known: None }),
        }
    }

    pub(super) fn others(&self) -> Vec<OtherHost> {
        let view = self.view();
        let others = view.hosts.values().filter(|host| host.id != self.membership.id);
        others.map(|host| other(host)).collect()
    }

    /// Tells another host, which is to take a device over, if this host serves it. No other host or directory
    /// is asked: the directory may be away, which is when this is asked.
    pub(super) fn serving(&self, device: Uuid) -> Serving {
        let own = self.membership.number_of(device);
        let has_ended = self.membership.tenure.has_ended(BootTime::now);
        let served =
            own.filter(|number| !has_ended && !self.membership.devices[*number].fence.is_shut());
        if let Some(number) = served
            && self.view().cut_off.is_some()
            && self.asked.is_worth_saying()
        {
            let device = self.devices[number].name();
            tracing::warn!(
                device,
                "another host asks for a device of this one, which is cut off from the \
                directory: it is about to take it over, and is refused while this one is seen"
            );
        }
        Serving { host: self.membership.id, serves: served.is_some() }
    }

    pub(super) fn known_elsewhere(
        &self,
        caller: &Caller,
        answered: &BTreeSet<Uuid>,
    ) -> Vec<Volume> {
        let view = self.view();
        let unheard = view.volumes.values().filter(|record| {
            let is_listed = match record.host == self.membership.id {
                true => self.directory(|directory| directory.has(record.id)),
                false => answered.contains(&record.host) && view.reach(record) == Reach::Online,
            };
            !is_listed
                && record.state == directory::VolumeState::Ready
                && caller.may_use(record.owner.as_deref())
        });
        unheard.map(|record| self.known(&view, record)).collect()
    }

    /// A volume that cannot be asked about, as it was last known.
    fn known(&self, view: &View, record: &VolumeRecord) -> Volume {
        let portal = Portal { address: record.portal, core: record.core };
        let nqn = nqn(record.id);
        let (host, labels) = view.whereabouts(record.host).unzip();
        let claim = view.claims.get(&record.device);
        let device = claim.map_or_else(|| record.device.to_string(), |c| c.device_name.clone());
        let live = view.hosts.get(&record.host).into_iter().flat_map(|host| &host.devices);
        let drive = { live }.find(|drive| drive.id == record.device).map(drive_document);
        let drive = drive.or_else(|| Some(claimed_drive(record.device, claim?)));
        let restrictions = record.restrictions.clone().unwrap_or_default();
        Volume {
            id: record.id,
            name: record.name.clone(),
            size_bytes: record.size_bytes,
            allocated_bytes: 0,
            metadata_bytes: 0,
            sector_bytes: control::SectorBytes::try_from(record.sector_bytes).unwrap_or_default(),
            address: portal.address,
            portal,
            device,
            drive: drive.unwrap_or_else(|| Drive { id: record.device, ..Drive::default() }),
            slo: serde_json::from_value(record.promise.clone()).unwrap_or_default(),
            restrictions: control::Restrictions {
                hosts: restrictions.hosts,
                networks: restrictions.networks,
                interfaces: restrictions.interfaces,
            },
            nbd: control::NbdClients {
                networks: record.nbd.networks.clone(),
                certificates: record.nbd.certificates.clone(),
                unix: record.nbd.unix,
            },
            nbd_uris: record.nbd.uris.clone(),
            nbd_connect: Vec::new(),
            iscsi_connect: record.iscsi.map(|portal| {
                let chap = ChapSource::TokenFiles { has_controller: true };
                self.iscsi_commands(record.id, portal, chap)
            }),
            absent_interfaces: Vec::new(),
            grace_until: None,
            grace_seconds_left: None,
            owner: record.owner.clone(),
            connect: connect_line(&nqn, portal.address, self.tokens.are_required),
            nqn,
            state: VolumeState::Unreachable,
            trouble: None,
            host: host.map_or_else(|| record.host.to_string(), str::to_owned),
            labels: labels.cloned().unwrap_or_default(),
            cut_off: None,
        }
    }

    pub(super) fn hosts(&self) -> HostList {
        let view = self.view();
        let mut ids: BTreeSet<Uuid> = view.hosts.keys().copied().collect();
        ids.extend(view.claims.values().map(|claim| claim.host));
        let mut hosts: Vec<Host> = ids.into_iter().map(|id| self.host(&view, id)).collect();
        hosts.sort_by(|a, b| (&a.name, a.id).cmp(&(&b.name, b.id)));
        HostList { hosts, directory: self.directory_status() }
    }

    /// The state of the directory, by which this host agrees with others.
    pub(super) fn directory_status(&self) -> DirectoryStatus {
        DirectoryStatus {
            address: self.membership.address.clone(),
            cut_off: self.view().cut_off.as_deref().map(str::to_owned),
            fence_after_seconds: self.membership.tenure.term().map(|t| t.ends_after().as_secs()),
            is_fenced: self.is_fenced(),
        }
    }

    /// Returns the conditions for which this host refuses changes.
    pub(super) fn refusing(&self) -> Vec<ServerNotice> {
        let mut all = Vec::new();
        let mut add = |kind, text| all.push(ServerNotice { kind, text });
        if self.is_fenced() {
            let after = self.membership.tenure.term().map_or(0, |term| term.ends_after().as_secs());
            add(
                ServerNoticeKind::Fence,
                format!(
                    "no volume is served until the directory confirms what is this host's (--fence-after {after}s): bring \
                     etcd back, and the way to it"
                ),
            );
        }
        match self.view().cut_off.as_deref() {
            Some(why) => add(
                ServerNoticeKind::Directory,
                format!(
                    "the directory is away, and nothing can be changed: {why}: bring etcd back, and the way to it"
                ),
            ),
            None if !self.is_accounted() => add(
                ServerNoticeKind::Quotas,
                "what tenants have on this host of their quotas is being counted, and nothing of tenants can be changed until \
                 it is: wait"
                    .to_owned(),
            ),
            None => {}
        }
        all
    }

    fn host(&self, view: &View, id: Uuid) -> Host {
        let live = view.hosts.get(&id);
        let (name, labels) = view.whereabouts(id).unzip();
        let served = live.into_iter().flat_map(|host| &host.devices);
        let mut devices: Vec<HostDevice> = served
            .map(|device| HostDevice {
                id: device.id,
                name: device.name.clone(),
                model: device.model.clone(),
                serial: device.serial.clone(),
                health: device.health.clone(),
            })
            .collect();
        for (device, claim) in view.claims.iter().filter(|(_, claim)| claim.host == id) {
            if !devices.iter().any(|known| known.id == *device) {
                let Drive { model, serial, health, .. } = claimed_drive(*device, claim);
                let name = claim.device_name.clone();
                devices.push(HostDevice { id: *device, name, model, serial, health });
            }
        }
        let cores = live.into_iter().flat_map(|host| &host.cores);
        let mut claims = view.claims.values().filter(|claim| claim.host == id);
        let fence_after_ms = match live {
            Some(host) => host.fence_after_ms,
            None => claims.find_map(|claim| claim.fence_after_ms),
        };
        Host {
            id,
            name: name.map_or_else(|| id.to_string(), str::to_owned),
            state: if live.is_some() { HostState::Online } else { HostState::Lost },
            is_this: id == self.membership.id,
            version: live.map(|host| host.version.clone()),
            api: live.map(|host| host.api),
            discovery: live.and_then(|host| host.discovery),
            labels: labels.cloned().unwrap_or_default(),
            fence_after_seconds: fence_after_ms.map(|after| after / 1000),
            cores: cores.map(|c| Portal { address: c.portal, core: c.core }).collect(),
            devices,
            volumes: view.volumes.values().filter(|volume| volume.host == id).count() as u64,
        }
    }
}

/// The known properties of a device whose host does not report that it serves it: its health is not known.
fn claimed_drive(id: Uuid, claim: &ClaimRecord) -> Drive {
    Drive { id, model: claim.model.clone(), serial: claim.serial.clone(), health: None }
}

/// Labels as they are given.
fn as_given(labels: &BTreeMap<String, String>) -> impl Iterator<Item = String> {
    labels.iter().map(|(key, value)| format!("{key}={value}"))
}

fn other(host: &HostRecord) -> OtherHost {
    OtherHost {
        id: host.id,
        name: host.name.clone(),
        api: host.api,
        api_certificate: host.api_certificate.clone(),
    }
}

pub(super) fn restrictions_record(restrictions: &::access::Restrictions) -> RestrictionsRecord {
    let control::Restrictions { hosts, networks, interfaces } = access::document(restrictions);
    RestrictionsRecord { hosts, networks, interfaces }
}

/// Maps a refusal of the directory to an error of the API.
pub(super) fn refusal(error: DirectoryError) -> ServiceError {
    match error {
        DirectoryError::NameTaken { name } => match name.parse::<VolumeName>() {
            Ok(name) => ServiceError::NameTaken { name },
            Err(_) => ServiceError::Unavailable,
        },
        DirectoryError::NotAdmitted { detail } => ServiceError::Quota { detail },
        DirectoryError::Fenced { holder } => ServiceError::DeviceLost { holder },
        error @ (DirectoryError::Unreachable { .. }
        | DirectoryError::HolderLives { .. }
        | DirectoryError::HolderLost { .. }
        | DirectoryError::HolderMayServe { .. }
        | DirectoryError::HolderSeen { .. }
        | DirectoryError::Forgotten { .. }
        | DirectoryError::ClaimedLater { .. }
        | DirectoryError::HostLives { .. }
        | DirectoryError::NoMachineId
        | DirectoryError::Foreign { .. }) => {
            ServiceError::DirectoryUnavailable { reason: error.to_string() }
        }
    }
}
