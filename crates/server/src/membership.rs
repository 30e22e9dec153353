//! This host's place in the service: alone, or one of many that share a directory.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use control::Drive;
use device::kind::DeviceSpec;
use device::layer::Fence;
use directory::{
    Alone, BootClock as _, BootTime, Claim, CoreRecord, DeviceRecord, Directory, DirectoryError,
    Etcd, EtcdAddress, EtcdCredentials, EtcdOptions, HostRecord, Identity, Mark, Tenure, Term,
    Word,
};
use tokio::runtime::Handle;
use tokio::task::JoinSet;
use typed_index_collections::{TiSlice, TiVec};
use units::{CoreIndex, DeviceIndex};
use user_messages::Failure;
use uuid::Uuid;

use super::ServeConfig;
use super::cores::CoreLink;
use super::device_set::OpenDevice;
use super::seek::{self, Here};

/// Pause before the directory is asked again.
const ASK_AGAIN: Duration = Duration::from_secs(1);
/// Longest wait for the directory when the host leaves.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(5);

/// The membership of a host in a service.
#[derive(Clone, Debug)]
pub struct ClusterConfig {
    /// The address of the directory, if there are several hosts.
    pub directory: Option<EtcdAddress>,
    /// The credentials for it.
    pub credentials: EtcdCredentials,
    /// The name by which operators know the host.
    pub host_name: String,
    /// Labels of the host, for the placement of volumes.
    pub labels: BTreeMap<String, String>,
    /// The confirmation of an operator by which devices are taken from hosts that are gone. These hosts are
    /// looked for all the same. It holds for the devices that are there at the start, not for those that come
    /// later.
    pub take_over: Option<Word>,
    /// After how long without a word from it the host counts as gone.
    pub lease: Duration,
    /// For how long it serves without the directory.
    pub tenure: Tenure,
}

/// A device of this host.
#[derive(Clone)]
pub(super) struct OwnDevice {
    /// Its id and the mark of the claim by which it is this host's; `None` before it is claimed.
    claimed: Arc<Mutex<Option<(Uuid, Mark)>>>,
    pub(super) fence: Fence,
}

impl OwnDevice {
    fn during(tenure: Tenure) -> Self {
        Self { claimed: Arc::default(), fence: Fence::during(tenure, BootTime::now) }
    }

    /// The id of the device, if it was ever there.
    pub(super) fn id(&self) -> Option<Uuid> {
        self.claimed.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(|(id, _)| *id)
    }

    fn mark(&self) -> Option<Mark> {
        let claimed = self.claimed.lock().unwrap_or_else(PoisonError::into_inner);
        claimed.as_ref().map(|(_, mark)| mark.clone())
    }

    /// It is claimed as this, by the claim of this mark.
    fn claim_as(&self, id: Uuid, mark: Mark) {
        *self.claimed.lock().unwrap_or_else(PoisonError::into_inner) = Some((id, mark));
    }

    /// It is not going to be served as what it was claimed as.
    pub(super) fn forget(&self) {
        *self.claimed.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// By which claim a device is this host's.
#[derive(Clone, Debug)]
pub(super) struct Claimed {
    pub(super) cluster: Uuid,
    pub(super) mark: Mark,
}

/// This host in the service.
#[derive(Clone)]
pub(super) struct Membership {
    pub(super) directory: Arc<dyn Directory>,
    /// The address of the directory, if there are several hosts.
    pub(super) address: Option<String>,
    pub(super) id: Uuid,
    /// This host's name in the service.
    pub(super) name: String,
    /// The failure domains that it shares with others.
    pub(super) labels: BTreeMap<String, String>,
    /// By number.
    pub(super) devices: TiVec<DeviceIndex, OwnDevice>,
    /// For how long it serves without the directory.
    pub(super) tenure: Tenure,
    described: Arc<Mutex<HostRecord>>,
    _identity: Option<Arc<Identity>>,
}

impl Membership {
    /// Takes part from now on, as the host whose cores are `links`. Waits for a directory that is away.
    pub(super) fn join(
        config: &ServeConfig,
        api: SocketAddr,
        api_certificate: Option<String>,
        discovery: Option<SocketAddr>,
        links: &TiSlice<CoreIndex, CoreLink>,
    ) -> Result<Self, Failure> {
        let cluster = &config.cluster;
        let told = config.advertise.as_ref();
        let outside = told.map_or(config.listen.ip(), |told| told.first);
        let reached = |address: SocketAddr| match address.ip().is_unspecified() {
            true => SocketAddr::new(outside, address.port()),
            false => address,
        };
        let identity = cluster.directory.as_ref();
        let identity = identity.map(|at| Identity::take(&at.cluster, &cluster.host_name));
        let identity = identity.transpose().map_err(|error| failure(&error))?;
        let host = HostRecord {
            id: identity.as_ref().map_or_else(Uuid::new_v4, |identity| identity.id),
            name: cluster.host_name.clone(),
            session: identity.as_ref().map_or_else(Uuid::new_v4, |identity| identity.session),
            boot: identity.as_ref().map(|identity| identity.boot.clone()).unwrap_or_default(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            api: reached(api),
            api_certificate,
            discovery: discovery.map(reached),
            labels: cluster.labels.clone(),
            portals_also: told.map(|told| told.more.clone()).unwrap_or_default(),
            fence_after_ms: cluster.tenure.term().map(fence_after_ms),
            cores: links.iter().map(CoreLink::record).collect(),
            devices: Vec::new(),
        };
        let portals =
            links.iter().map(|link| SocketAddr::new(config.listen.ip(), link.portal.port()));
        let advertised = host.cores.iter().flat_map(|core| host.addresses_of(core.portal));
        let advertised = advertised.chain([host.api]);
        let own = portals.chain([api]).chain(advertised).collect();
        let here = Here { own, boot: host.boot.clone() };
        let directory = directory_of(cluster, &host, here)?;
        Ok(Self {
            directory,
            address: cluster.directory.as_ref().map(ToString::to_string),
            id: host.id,
            name: host.name.clone(),
            labels: host.labels.clone(),
            devices: config
                .devices
                .iter()
                .map(|_| OwnDevice::during(cluster.tenure.clone()))
                .collect(),
            tenure: cluster.tenure.clone(),
            described: Arc::new(Mutex::new(host)),
            _identity: identity.map(Arc::new),
        })
    }

    /// Makes the devices, by number, this host's; by an operator's word also those of hosts that are gone. If one cannot be had, the others may be this host's all the same.
    pub(super) async fn claim(
        &self,
        config: &ServeConfig,
        devices: &BTreeMap<DeviceIndex, OpenDevice>,
        word: Option<&Word>,
    ) -> Result<(), Failure> {
        // Together: a former host may have to be waited for, until it has stopped.
        let mut asked = JoinSet::new();
        for (&number, device) in devices {
            let spec = &config.devices[number].device;
            let (model, serial) = names_of(spec);
            let claim = Claim {
                device: device.superblock.uuid,
                name: device.name.clone(),
                volatile: spec.file().is_none(),
                model,
                serial,
                belongs: device.superblock.cluster.is_some(),
                mark: device.mark.clone(),
            };
            let (own, word) = (self.clone(), word.cloned());
            asked.spawn(async move { (number, own.claim_one(number, claim, word).await) });
        }
        // Also behind a refusal: a claim that is under way may have to be given back.
        let claimed: BTreeMap<_, _> = asked.join_all().await.into_iter().collect();
        claimed.into_values().collect::<Result<(), _>>().map_err(|error| failure(&error))
    }

    async fn claim_one(
        &self,
        number: DeviceIndex,
        claim: Claim,
        word: Option<Word>,
    ) -> Result<(), DirectoryError> {
        let claimed = self.patiently(|| match &word {
            None => self.directory.claim(claim.clone()),
            Some(word) => self.directory.take_over(claim.clone(), word.clone()),
        });
        self.devices[number].claim_as(claim.device, claimed.await?);
        // News that the device is lost, if it came before this, could not be related to it.
        let checked = self.patiently(|| self.directory.check(claim.device)).await;
        checked.inspect_err(|_| self.devices[number].forget())
    }

    /// The number of the device with this identity, if it is one of this host's.
    pub(super) fn number_of(&self, id: Uuid) -> Option<DeviceIndex> {
        self.devices.position(|own| own.id() == Some(id))
    }

    /// By which claim of its cluster a device is this host's; `None` if the host is a service by itself.
    pub(super) fn claimed(&self, number: DeviceIndex) -> Option<Claimed> {
        let (cluster, mark) = (self.directory.cluster()?, self.devices[number].mark()?);
        Some(Claimed { cluster, mark })
    }

    /// Acts upon the mark that a device is seen to carry (CLAIM-9). `true`: it is of a later claim than this host's.
    pub(super) fn has_lost(&self, number: DeviceIndex, found: &Mark) -> bool {
        let (Some(id), Some(claimed)) = (self.devices[number].id(), self.claimed(number)) else {
            return false;
        };
        // One of another process that is this host, too, has a higher number.
        let is_lost = found.number > claimed.mark.number || found.is_later_than(&claimed.mark);
        if is_lost {
            self.directory.lost(id, &claimed.mark, found.host_name.clone());
        }
        is_lost
    }

    /// Says which devices this host serves, beside those that it has named before.
    pub(super) async fn describe_devices(
        &self,
        config: &ServeConfig,
        devices: &BTreeMap<DeviceIndex, OpenDevice>,
    ) -> Result<(), Failure> {
        let records = devices.iter().map(|(&number, device)| {
            let (model, serial) = names_of(&config.devices[number].device);
            let (id, name) = (device.superblock.uuid, device.name.clone());
            DeviceRecord { id, name, model, serial, health: Some("good".to_owned()) }
        });
        let host = self.describe(|host| host.devices.extend(records));
        self.directory.describe(host).await.map_err(|error| failure(&error))
    }

    /// Asks until the directory is there.
    async fn patiently<'a, T>(
        &'a self,
        ask: impl Fn() -> directory::Reply<'a, T>,
    ) -> Result<T, DirectoryError> {
        let mut said: Option<String> = None;
        loop {
            let mut changes = self.directory.changes();
            match ask().await {
                Err(DirectoryError::Unreachable { reason }) => {
                    if said.as_ref() != Some(&reason) {
                        tracing::warn!("waiting for the directory: {reason}");
                    }
                    said = Some(reason);
                    // It changes when the directory is there again; one request alone may have failed.
                    let _ = tokio::time::timeout(ASK_AGAIN, changes.changed()).await;
                }
                answer => return answer,
            }
        }
    }

    /// Changes what this host says of itself; all of it.
    pub(super) fn describe(&self, change: impl FnOnce(&mut HostRecord)) -> HostRecord {
        let mut host = self.described.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut host);
        host.clone()
    }

    /// Returns the addresses at which clients reach `portal`, which is one of this host's cores'.
    pub(super) fn addresses_of(&self, portal: SocketAddr) -> Vec<SocketAddr> {
        let host = self.described.lock().unwrap_or_else(PoisonError::into_inner);
        host.addresses_of(portal)
    }

    /// Returns the known properties of a device.
    pub(super) fn drive(&self, device: DeviceIndex) -> Drive {
        let host = self.described.lock().unwrap_or_else(PoisonError::into_inner);
        let id = self.devices[device].id();
        let record = host.devices.iter().find(|record| Some(record.id) == id);
        record.map(drive_document).unwrap_or_default()
    }

    /// Gives the devices back: they are served no more.
    pub(super) async fn leave(&self) {
        match tokio::time::timeout(LEAVE_TIMEOUT, self.directory.leave()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!("the devices are not given back: {error}"),
            Err(_) => tracing::warn!("the devices are not given back: the directory hangs"),
        }
    }
}

/// Joins the directory of a cluster; a host that is alone is its own.
fn directory_of(
    cluster: &ClusterConfig,
    host: &HostRecord,
    here: Here,
) -> Result<Arc<dyn Directory>, Failure> {
    let Some(address) = &cluster.directory else { return Ok(Arc::new(Alone::new(host.clone()))) };
    if host.api.ip().is_loopback() && !address.is_local() {
        tracing::warn!(api = %host.api, "other hosts cannot reach the API here: give --api an \
            address of the network");
    }
    let credentials = cluster.credentials.clone();
    let (lease, tenure) = (cluster.lease, cluster.tenure.clone());
    let options = EtcdOptions { address: address.clone(), credentials, lease, tenure };
    let joining = Etcd::join(options, host.clone(), seek::from(here));
    let joined = Handle::current().block_on(joining).map_err(|error| failure(&error))?;
    let cluster = joined.cluster().map(tracing::field::display);
    tracing::info!(directory = %address, cluster, host = host.name, id = %host.id, "joined");
    Ok(Arc::new(joined))
}

impl CoreLink {
    fn record(&self) -> CoreRecord {
        CoreRecord { core: self.cpu, portal: self.portal }
    }
}

/// A term as records have it.
fn fence_after_ms(term: Term) -> u64 {
    u64::try_from(term.ends_after().as_millis()).unwrap_or(u64::MAX)
}

/// Converts the record of a device to the document of the API.
pub(super) fn drive_document(record: &DeviceRecord) -> Drive {
    let DeviceRecord { id, model, serial, health, .. } = record.clone();
    Drive { id, model, serial, health }
}

/// Model and serial number of a device, if it is a drive that says so.
fn names_of(device: &DeviceSpec) -> (Option<String>, Option<String>) {
    device.file().map_or((None, None), |spec| drive_names(&spec.path))
}

/// The kernel's names for the drive at `path`: its model and its serial number.
fn drive_names(path: &Path) -> (Option<String>, Option<String>) {
    let Ok(file) = std::fs::metadata(path) else { return (None, None) };
    if !file.file_type().is_block_device() {
        return (None, None);
    }
    let (major, minor) = (rustix::fs::major(file.rdev()), rustix::fs::minor(file.rdev()));
    names_below(Path::new(&format!("/sys/dev/block/{major}:{minor}")))
}

/// The names in the files of the block device `block`: its drive's model and serial number.
fn names_below(block: &Path) -> (Option<String>, Option<String>) {
    let read = |name: &str| {
        // A partition's drive is one step up; a virtual drive's serial number lies beside its device.
        let places = ["device", "../device", ".", ".."].into_iter();
        let mut texts =
            places.filter_map(|at| std::fs::read_to_string(block.join(at).join(name)).ok());
        let text = texts.find(|text| !text.trim().is_empty())?;
        Some(text.trim().to_owned())
    };
    (read("model"), read("serial"))
}

/// Advice about a host that may still serve unseen.
fn until_down(holder: &str) -> String {
    if holder == Word::UNKNOWN_HOST {
        return "see that no host runs which serves this device or a copy of it: look at each host's console, not only from \
                here; then add --confirm-down '*' to --take-over, by which you assert that"
            .to_owned();
    }
    format!(
        "see that {holder} is down: powered off, or cut off from all who use its volumes; look at its console, not only from \
         here; then add --confirm-down {holder} to --take-over, by which you assert that"
    )
}

/// The failure that a refusal of the directory means at the start.
fn failure(error: &DirectoryError) -> Failure {
    let what = error.to_string();
    match error {
        DirectoryError::HolderLives { holder, .. } => Failure::runtime(
            what,
            format!("stop {holder} first: it gives its devices back; or leave the device out"),
        ),
        DirectoryError::HolderLost { holder, is_fenced: true, .. } => Failure::runtime(
            what,
            format!(
                "start {holder} again; or, if it is not to come back, add --take-over: it has --fence-after, so \
                 that it has stopped by itself, or will in a moment that is waited for"
            ),
        ),
        DirectoryError::HolderLost { holder, .. } => Failure::runtime(
            what,
            format!(
                "start {holder} again; or, if it is not to come back, see that it is down, and add --take-over \
                 --confirm-down {holder}: it has no --fence-after, so that it may still serve unseen"
            ),
        ),
        DirectoryError::HolderMayServe { holder, .. } => Failure::runtime(what, until_down(holder)),
        DirectoryError::HolderSeen { holder, sighting, .. } => Failure::runtime(
            what,
            match sighting.answers {
                true => format!(
                    "stop {holder} there; if it cannot be stopped, power it off or cut it off its network: only \
                     then it cannot serve the device any more"
                ),
                false => format!(
                    "see what has this address: if it may be {holder}, stop it, power it off or cut it off its \
                     network; if it is something else, stop that, or keep this host from reaching it"
                ),
            },
        ),
        DirectoryError::Forgotten { .. } => Failure::runtime(
            what,
            "wait until all hosts that run are connected to it: they tell it what they serve; if none serves this device or a \
             copy of it, add --take-over --confirm-down '*': by it you assert that",
        ),
        DirectoryError::ClaimedLater { holder, .. } => Failure::runtime(
            what,
            format!(
                "start {holder} first, or wait until it is connected: it tells the directory what it serves; if it is down, and no \
                 other host serves this device, add --take-over --confirm-down {holder}: by it you assert that"
            ),
        ),
        DirectoryError::HostLives { .. } => {
            Failure::runtime(what, "give each server a --host-name of its own")
        }
        DirectoryError::NoMachineId => Failure::runtime(
            what,
            "make one with systemd-machine-id-setup, another on each machine; give a container the /etc/machine-id of the \
             machine that it runs on, read-only",
        ),
        DirectoryError::Foreign { .. } => Failure::runtime(
            what,
            "look whether --directory names etcd 3.4 or later, and a cluster of this release",
        ),
        DirectoryError::Unreachable { .. }
        | DirectoryError::NotAdmitted { .. }
        | DirectoryError::NameTaken { .. }
        | DirectoryError::Fenced { .. } => Failure::runtime(what, "look at etcd, and start again"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drives_are_known_by_what_the_kernel_says() {
        let sys = tempfile::tempdir().expect("a directory");
        let with = |block: &str, files: &[(&str, &str)]| {
            for (name, text) in files {
                let path = sys.path().join(block).join(name);
                std::fs::create_dir_all(path.parent().expect("below")).expect("made");
                std::fs::write(path, text).expect("written");
            }
            names_below(&sys.path().join(block))
        };
        let both = (Some("Model X".to_owned()), Some("S1".to_owned()));
        let nvme = [("device/model", "Model X        \n"), ("device/serial", "  S1\n")];
        assert_eq!(with("nvme0n1", &nvme), both);
        std::fs::create_dir(sys.path().join("nvme0n1/nvme0n1p1")).expect("made");
        assert_eq!(with("nvme0n1/nvme0n1p1", &[]), both, "a partition");
        assert_eq!(with("vda", &[("serial", "disk-7\n")]), (None, Some("disk-7".to_owned())));
        assert_eq!(with("vdb", &[("serial", "\n"), ("device/vendor", "x")]), (None, None));
    }
}
