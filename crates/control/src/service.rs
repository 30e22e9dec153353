//! The seam between the API and the service that holds the volumes.

use std::collections::BTreeSet;
use std::fmt;
use std::future::Future;
use std::pin::Pin;

use uuid::Uuid;

use crate::{
    Caller, ChangeAuth, ChangeDevice, ChangeRestrictions, CreateVolume, CreatedVolume, Device,
    GrownDevice, HostList, Location, OtherHost, Recording, RecordingRequest, Resizing, Scrub,
    ScrubRequest, Server, Serving, Slo, Stats, Tokens, Volume, VolumeName,
};

/// The answer to a request, later.
pub type Reply<'a, T> = Pin<Box<dyn Future<Output = Result<T, ServiceError>> + Send + 'a>>;

/// Names a volume in a request: by id or by name.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum VolumeKey {
    /// By its id.
    Id(Uuid),
    /// By its name.
    Name(VolumeName),
}

impl fmt::Display for VolumeKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Id(id) => id.fmt(f),
            Self::Name(name) => name.fmt(f),
        }
    }
}

/// Why a request about volumes was refused.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum ServiceError {
    /// There is no such volume (any more).
    #[error("there is no volume `{volume}`")]
    NotFound {
        /// As it was asked for.
        volume: String,
    },
    /// The name belongs to another volume.
    #[error("a volume `{name}` exists already")]
    NameTaken {
        /// The name.
        name: VolumeName,
    },
    /// The server does not run on this core.
    #[error("this server does not run on core {core}")]
    UnknownCore {
        /// The core asked for.
        core: u32,
        /// Cores that it runs on.
        cores: Vec<u32>,
    },
    /// The device has no free space for the volume's records.
    #[error("the device has no free space")]
    OutOfSpace,
    /// The table of volumes is full.
    #[error("this server holds at most {max} volumes")]
    TooManyVolumes {
        /// Its limit.
        max: u64,
    },
    /// A tenant has as much as it may have.
    #[error("{detail}")]
    Quota {
        /// The excess, and the quota.
        detail: String,
    },
    /// A tenant has as many changes under way as it may have at a time.
    #[error("{max} of your changes are under way, and no more may be at a time")]
    TooManyChanges {
        /// The largest number allowed.
        max: u32,
    },
    /// The device cannot do what would be promised.
    #[error("{detail}")]
    Promise {
        /// The excess, and the amount that is left.
        detail: String,
    },
    /// A rate was asked for of a device that has no ceiling.
    #[error("the device {device} has no ceiling, so no rate can be promised of it")]
    NoCeiling {
        /// Its name.
        device: String,
    },
    /// There is no such device.
    #[error("there is no device `{device}`")]
    UnknownDevice {
        /// As it was asked for.
        device: String,
        /// Those that there are.
        devices: Vec<String>,
    },
    /// A device cannot be shared, or a volume restricted, in this way.
    #[error("{detail}")]
    Setting {
        /// The fault of the request.
        detail: String,
    },
    /// No host is of this name or label.
    #[error("no host is `{wanted}`")]
    UnknownHost {
        /// As it was asked for.
        wanted: String,
        /// Hosts that there are.
        hosts: Vec<String>,
        /// Labels that these have, as `KEY=VALUE`, each once.
        labels: BTreeSet<String>,
    },
    /// A host of the service does not answer.
    #[error("the host {host} cannot be reached")]
    HostUnreachable {
        /// Its name.
        host: String,
    },
    /// The directory cannot be asked, and without it nothing may change.
    #[error("nothing can be changed now: {reason}")]
    DirectoryUnavailable {
        /// The reason, as far as it is known.
        reason: String,
    },
    /// Another host has taken the device over.
    #[error("the device is served by the host {holder} now")]
    DeviceLost {
        /// The name of that host.
        holder: String,
    },
    /// The device is not gone: a host serves it, or may.
    #[error("{detail}")]
    DeviceInUse {
        /// The host, and how it is known.
        detail: String,
    },
    /// The device's host is not seen, but may serve it.
    #[error("{detail}")]
    HolderMayServe {
        /// The device, and the reason.
        detail: String,
        /// That host's name.
        holder: String,
    },
    /// A device of the server is away, and what was asked needs it.
    #[error("{detail}")]
    DeviceAway {
        /// The device, and the reason.
        detail: String,
    },
    /// The volume holds data or is open, and it was not said that this may be lost.
    #[error("{detail}")]
    VolumeInUse {
        /// The data and connections that would be lost.
        detail: String,
    },
    /// The volume has another size than the change was made for.
    #[error("the volume has {found} bytes, not {wanted}")]
    SizeChanged {
        /// The size that it has.
        found: u64,
        /// The size that it was to have.
        wanted: u64,
    },
    /// The volume has a recording that has not ended.
    #[error("the requests of `{volume}` are being recorded already, by {id}")]
    RecordingRuns {
        /// The volume, as it was asked for.
        volume: String,
        /// The recording.
        id: Uuid,
    },
    /// The core of the volume has as many recordings as it may have.
    #[error("{max} recordings run on the volume's core, and no more may at a time")]
    TooManyRecordings {
        /// The largest number allowed.
        max: usize,
    },
    /// The recording has ended, and is forgotten.
    #[error("there is no such recording of `{volume}`")]
    RecordingNotFound {
        /// The volume, as it was asked for.
        volume: String,
    },
    /// The device did not do as it was asked.
    #[error("the device failed: {detail}")]
    Device {
        /// The device's error.
        detail: String,
    },
    /// The server is starting or stopping, or the core in charge is gone.
    #[error("the server is not ready to do this")]
    Unavailable,
}

/// Holds volumes, and does what the API is asked for.
///
/// - A change is durable when its reply says so. A request whose reply is never waited for is either
///   done or not; asking again tells.
/// - A caller sees and changes its own volumes only ([`Caller::may_use`]); other volumes do not exist for
///   it. New volumes belong to the caller, and count against its quota.
/// - Names are unique, also among requests at the same time.
/// - Requests about one volume take effect in some order; a deleted volume is not found.
pub trait VolumeService: Send + Sync + 'static {
    /// Makes a volume.
    fn create(&self, caller: Caller, request: CreateVolume) -> Reply<'_, CreatedVolume>;
    /// All volumes, by name.
    fn list(&self, caller: Caller) -> Reply<'_, Vec<Volume>>;
    /// One volume.
    fn show(&self, caller: Caller, key: VolumeKey) -> Reply<'_, Volume>;
    /// Changes a volume's size.
    fn resize(&self, caller: Caller, key: VolumeKey, resizing: Resizing) -> Reply<'_, Volume>;
    /// Changes what a volume is promised.
    fn set_slo(&self, caller: Caller, key: VolumeKey, slo: Slo) -> Reply<'_, Volume>;
    /// Makes new tokens for a volume.
    fn change_auth(&self, caller: Caller, key: VolumeKey, change: ChangeAuth) -> Reply<'_, Tokens>;
    /// Changes the hosts that may open a volume.
    fn restrict(
        &self,
        caller: Caller,
        key: VolumeKey,
        change: ChangeRestrictions,
    ) -> Reply<'_, Volume>;
    /// Deletes a volume and frees its space; one that holds data or that a host has open only if `lose_data`.
    fn delete(&self, caller: Caller, key: VolumeKey, lose_data: bool) -> Reply<'_, ()>;
    /// The location of a volume: from memory, without asking another host.
    fn locate(&self, caller: &Caller, key: &VolumeKey) -> Location;
    /// The location for a new volume: at a host with this name, or with a label `key=value`.
    fn locate_new(&self, on: &str) -> Result<Location, ServiceError>;
    /// The other hosts of the service that live.
    fn others(&self) -> Vec<OtherHost>;
    /// The known volumes of hosts other than those in `answered`: these volumes are unreachable.
    fn known_elsewhere(&self, caller: &Caller, answered: &BTreeSet<Uuid>) -> Vec<Volume>;
    /// The hosts of the service.
    fn hosts(&self) -> Reply<'_, HostList>;
    /// The identity of this host, and if it serves a device: from memory, without asking another host.
    fn serving(&self, device: Uuid) -> Serving;
    /// Removes the records of the volumes on a device that is gone for good, as an operator asserts: their
    /// names are free then. `down` is the name of the device's host, if the operator asserts that this host
    /// is down.
    fn forget_device(&self, device: Uuid, down: Option<String>) -> Reply<'_, ()>;
    /// The state of the server.
    fn server(&self) -> Reply<'_, Server>;
    /// Changes how a device is shared.
    fn change_device(&self, name: String, change: ChangeDevice) -> Reply<'_, Device>;
    /// The activity of volumes and devices.
    fn stats(&self) -> Reply<'_, Stats>;
    /// Begins, fetches or ends a recording of a volume's requests. The volume may be any owner's.
    fn recording(&self, key: VolumeKey, request: RecordingRequest) -> Reply<'_, Recording>;
    /// Has a device take up what its file or drive has now.
    fn grow_device(&self, device: String) -> Reply<'_, GrownDevice>;
    /// Begins, ends or shows a scrub of a device.
    fn scrub(&self, device: String, request: ScrubRequest) -> Reply<'_, Scrub>;
    /// Returns true if requests would be answered now.
    fn is_ready(&self) -> bool;
}
