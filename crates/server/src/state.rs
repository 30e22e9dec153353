//! State of the control side: the data cores, the devices, and the places of volumes.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use auth::Hash;
use control::{DeviceNotice, Portal, ServerNotice, ServiceError};
use dataplane::{VolumeFlow, VolumeStatus};
use reactor::Sender;
use tokio::sync::oneshot;
use typed_index_collections::TiVec;
use units::{CoreIndex, DeviceIndex};
use uuid::Uuid;

use super::allowance::Holdings;
use super::aside::Aside;
use super::directory::Directory;
use super::front_ends::Place;
use super::granting::Granting;
use super::growing::Asks;
use super::in_flight::InFlight;
use super::membership::Membership;
use super::message::{Answer, CoreMessage, VOLUMES_AT_ONCE};
use super::nbd_tls::Certificates;
use super::offers::Offers;
use super::scrub_plan::ScrubPlan;
use super::sharing::SharedDevice;
use super::tasks::Tasks;
use super::tenure;

/// A data core, as the control side sees it.
#[derive(Clone)]
pub(crate) struct CoreLink {
    /// The CPU.
    pub(crate) cpu: u32,
    /// The address that it listens on.
    pub(crate) local: SocketAddr,
    /// The address to which hosts are told to connect.
    pub(crate) portal: SocketAddr,
    /// The places where it listens for other protocols than NVMe.
    pub(crate) places: Vec<Place>,
    /// Certificates of NBD, the same for all cores.
    pub(super) nbd_tls: Option<Certificates>,
    pub(crate) mailbox: Sender<CoreMessage>,
}

/// A device, as the control side sees it.
pub(super) struct ServedDevice {
    pub(super) name: String,
    pub(super) shared: Mutex<SharedDevice>,
    pub(super) scrubs: Mutex<Option<ScrubPlan>>,
    /// The thread for what may wait for it; of a file or drive.
    pub(super) aside: Option<Aside>,
    /// The fault that keeps it from being used, and advice, if its drive is away.
    pub(super) trouble: Mutex<Option<String>>,
    /// Conditions that were seen a moment ago and that an operator has to know.
    pub(super) notices: Mutex<Vec<DeviceNotice>>,
    /// True if it was absent when the server started, and still is.
    pub(super) absent: AtomicBool,
    /// Requests to take up what it has now.
    pub(super) grow_asks: Asks,
    /// V1: held during a change to what lies on it.
    pub(super) changing: tokio::sync::Mutex<()>,
    /// True if the directory may have other records of its volumes than it holds.
    pub(super) doubtful: AtomicBool,
}

pub(super) struct State {
    /// By number.
    pub(super) devices: TiVec<DeviceIndex, ServedDevice>,
    /// True if hosts have to know a volume's token.
    pub(super) authenticates: bool,
    /// Clients of NBD may begin TLS.
    pub(super) nbd_has_tls: bool,
    /// For which hash function new tokens are made.
    pub(super) token_hash: Hash,
    pub(super) cores: TiVec<CoreIndex, CoreLink>,
    pub(super) started: Instant,
    pub(super) ready: AtomicBool,
    /// Hosts are cut off until the directory confirms what is this host's (`tenure.rs`).
    pub(super) fenced: AtomicBool,
    /// Changes of that, for the audit log.
    pub(super) tenure_changes: tenure::Changes,
    pub(super) directory: Mutex<Directory>,
    /// The volumes that discovery here offers.
    pub(super) offers: Offers,
    /// The space that tenants may hold.
    pub(super) holdings: Holdings,
    /// Held while what they may still add is divided among the cores.
    pub(super) dividing: tokio::sync::Mutex<()>,
    /// This host's parts of their quotas.
    pub(super) granting: Granting,
    /// Changes of tenants that are under way.
    pub(super) in_flight: InFlight,
    pub(super) host_name: String,
    pub(super) labels: BTreeMap<String, String>,
    /// Tasks that have to live as long as the server.
    pub(super) tasks: Tasks,
    /// Conditions of this server that were seen a moment ago.
    pub(super) own_notices: Mutex<Vec<ServerNotice>>,
    /// This host in the service.
    pub(super) membership: Membership,
    /// When it was last said that another host asks for a device.
    pub(super) asked_for: Mutex<Option<Instant>>,
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

    /// All volumes of the core.
    pub(super) async fn volumes(&self) -> Result<Vec<VolumeStatus>, ServiceError> {
        self.in_parts(|first, answer| CoreMessage::ListVolumes { first, answer }, |v| v.uuid).await
    }

    /// Returns the state and the flows of the core's volumes.
    pub(super) async fn flows(&self) -> Result<Vec<(VolumeStatus, VolumeFlow)>, ServiceError> {
        self.in_parts(|first, answer| CoreMessage::Flows { first, answer }, |(v, _)| v.uuid).await
    }

    /// Asks for a few volumes at a time, until none are left.
    async fn in_parts<T>(
        &self,
        message: impl Fn(Uuid, Answer<Vec<T>>) -> CoreMessage,
        id: impl Fn(&T) -> Uuid,
    ) -> Result<Vec<T>, ServiceError> {
        let (mut all, mut first) = (Vec::new(), Uuid::nil());
        loop {
            let part = self.ask(|answer| message(first, answer)).await?;
            let next = part.last().and_then(|last| id(last).as_u128().checked_add(1));
            let is_last = part.len() < VOLUMES_AT_ONCE;
            all.extend(part);
            match next {
                Some(next) if !is_last => first = Uuid::from_u128(next),
                _ => return Ok(all),
            }
        }
    }

    /// Lets hosts in.
    pub(super) fn admit(&self) -> Result<(), ServiceError> {
        self.mailbox.send(CoreMessage::Admit).map_err(|_| ServiceError::Unavailable)
    }

    pub(super) fn portal(&self) -> Portal {
        Portal { address: self.portal, core: self.cpu }
    }
}

impl ServedDevice {
    pub(super) fn new(shared: SharedDevice, aside: Option<Aside>) -> Self {
        Self {
            aside,
            name: shared.name().to_owned(),
            shared: Mutex::new(shared),
            scrubs: Mutex::default(),
            trouble: Mutex::default(),
            notices: Mutex::default(),
            absent: AtomicBool::new(false),
            grow_asks: Asks::default(),
            changing: tokio::sync::Mutex::default(),
            doubtful: AtomicBool::new(false),
        }
    }

    pub(super) fn shared<T>(&self, look: impl FnOnce(&mut SharedDevice) -> T) -> T {
        // A panic elsewhere leaves the promises whole: each change is one insert or remove.
        look(&mut self.shared.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl State {
    pub(super) fn directory<T>(&self, look: impl FnOnce(&mut Directory) -> T) -> T {
        // A panic elsewhere leaves the directory whole: each change is one insert or remove.
        look(&mut self.directory.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The number of the device that the API calls `name`.
    pub(super) fn device_named(&self, name: &str) -> Result<DeviceIndex, ServiceError> {
        self.devices.position(|device| device.name == name).ok_or_else(|| {
            let devices = self.devices.iter().map(|device| device.name.clone()).collect();
            ServiceError::UnknownDevice { device: name.to_owned(), devices }
        })
    }

    /// Tells every core its part of a device, and what its volumes may count on.
    pub(super) fn share_out(&self, device: DeviceIndex) {
        let shares = self.devices[device].shared(|shared| shared.core_shares());
        for (core, share) in self.cores.iter().zip(shares) {
            // A core that has ended has no part in anything.
            let _ = core.mailbox.send(CoreMessage::Schedule { device, share });
        }
    }
}
