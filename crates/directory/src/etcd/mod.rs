//! The directory of many hosts: etcd. What a host decides there is `cluster::Node`; here are the machine and the network.
//!
//! - SESSION-4: the session has a thread of its own (`keeper.rs`): whatever else the host is busy with, its lease is
//!   kept.
//!
//! SESSION-1 to SESSION-3 and SESSION-5 to SESSION-7 are those of `cluster::Node`.

mod access;
mod address;
mod gateway;
mod keeper;

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use cluster::{Keys, Node, StoreError, World};
use tokio::sync::{mpsc, watch};
use uuid::Uuid;

use crate::{
    Admit, BootClock as _, BootTime, Claim, ClaimRecord, Conflict, Directory, DirectoryError,
    Event, HostRecord, Mark, Regrant, Reply, Seek, Sighting, Tenure, View, VolumeRecord, Word,
};
pub use access::{EtcdAccessError, EtcdCredentials};
pub use address::{EtcdAddress, EtcdAddressError};
#[cfg(feature = "fuzzing")]
pub use gateway::take_answer;
use gateway::{Gateway, GatewayError};
use keeper::Keeper;

/// The settings with which a host joins a cluster.
#[derive(Clone, Debug)]
pub struct EtcdOptions {
    /// The address of etcd.
    pub address: EtcdAddress,
    /// The credentials that etcd requires.
    pub credentials: EtcdCredentials,
    /// After how long without a word from it a host counts as gone.
    pub lease: Duration,
    /// Confirmed as often as the lease is kept (CLAIM-7).
    pub tenure: Tenure,
}

/// A host's place in a cluster whose directory is etcd.
pub struct Etcd {
    node: Arc<Node<Machine>>,
    events: tokio::sync::Mutex<mpsc::UnboundedReceiver<Event>>,
    _keeper: Keeper,
}

/// The machine that a host runs on, and its network.
struct Machine {
    address: EtcdAddress,
    credentials: EtcdCredentials,
    seek: Seek,
    events: mpsc::UnboundedSender<Event>,
    generation: watch::Sender<u64>,
}

impl World for Machine {
    type Store = Gateway;

    fn now(&self) -> BootTime {
        BootTime::now()
    }

    fn sleep(&self, time: Duration) -> impl Future<Output = ()> + Send {
        tokio::time::sleep(time)
    }

    fn open(&self, member: usize, patience: Duration) -> Result<Gateway, DirectoryError> {
        let members = &self.address.members;
        let authority = members[member % members.len()].clone();
        // Certificates end, and others take their places.
        let access = self.credentials.open(&self.address);
        let access =
            access.map_err(|error| DirectoryError::Unreachable { reason: error.to_string() })?;
        Ok(Gateway::new(authority, patience, access))
    }

    fn seek(
        &self,
        device: Uuid,
        claim: &ClaimRecord,
        view: &View,
    ) -> impl Future<Output = Option<Sighting>> + Send {
        (self.seek)(device, claim, view)
    }

    fn new_id(&self) -> Uuid {
        Uuid::new_v4()
    }

    fn tell(&self, event: Event) {
        // A host that leaves does not listen any more.
        let _ = self.events.send(event);
    }

    fn view_changed(&self) {
        self.generation.send_modify(|generation| *generation += 1);
    }
}

impl From<GatewayError> for DirectoryError {
    fn from(error: GatewayError) -> Self {
        match error {
            GatewayError::Foreign { .. } => Self::Foreign { what: error.to_string() },
            error => Self::Unreachable { reason: error.to_string() },
        }
    }
}

impl From<GatewayError> for StoreError {
    fn from(error: GatewayError) -> Self {
        Self { may_be_done: error.may_be_done(), error: error.into() }
    }
}

impl Etcd {
    /// Takes part as `host`, which looks for the holders of claims by `seek`. Waits for etcd as long as it takes; a host
    /// that must not take part is refused.
    ///
    /// # Errors
    /// A host of this id or name lives; or what is in etcd cannot be read.
    pub async fn join(
        options: EtcdOptions,
        host: HostRecord,
        seek: Seek,
    ) -> Result<Self, DirectoryError> {
        let EtcdOptions { address, credentials, lease, tenure } = options;
        let (events, receiver) = mpsc::unbounded_channel();
        let keys = Keys { prefix: format!("/farflash/{}/", address.cluster) };
        let usable = credentials.check(&address);
        usable.map_err(|error| DirectoryError::Foreign { what: error.to_string() })?;
        let generation = watch::Sender::new(0);
        let machine = Machine { address, credentials, seek, events, generation };
        let node = Arc::new(Node::new(machine, keys, host, (lease, tenure)));
        let keeper = Keeper::start(node.clone()).await?;
        node.clear_leftovers().await;
        Ok(Self { node, events: tokio::sync::Mutex::new(receiver), _keeper: keeper })
    }
}

impl Directory for Etcd {
    fn cluster(&self) -> Option<Uuid> {
        self.node.cluster()
    }

    fn view(&self) -> Arc<View> {
        self.node.view()
    }

    fn changes(&self) -> watch::Receiver<u64> {
        self.node.world().generation.subscribe()
    }

    fn event(&self) -> Pin<Box<dyn Future<Output = Event> + Send + '_>> {
        Box::pin(async {
            let event = self.events.lock().await.recv().await;
            event.expect("the sender lives as long as this")
        })
    }

    fn describe(&self, host: HostRecord) -> Reply<'_, ()> {
        Box::pin(self.node.describe(host))
    }

    fn claim(&self, claim: Claim) -> Reply<'_, Mark> {
        Box::pin(self.node.claim(claim))
    }

    fn take_over(&self, claim: Claim, word: Word) -> Reply<'_, Mark> {
        Box::pin(self.node.take_over(claim, word))
    }

    fn lost(&self, device: Uuid, own: &Mark, holder: String) {
        self.node.lost(device, own, holder);
    }

    fn check(&self, device: Uuid) -> Reply<'_, ()> {
        Box::pin(self.node.check(device))
    }

    fn catch_up<'a>(&'a self, owner: &'a str) -> Reply<'a, ()> {
        Box::pin(self.node.catch_up(owner))
    }

    fn reserve_if(&self, volume: VolumeRecord, admit: Option<Admit>) -> Reply<'_, ()> {
        Box::pin(self.node.reserve(volume, admit))
    }

    fn update_if(&self, volume: VolumeRecord, admit: Option<Admit>) -> Reply<'_, ()> {
        Box::pin(self.node.update(volume, admit))
    }

    fn update(&self, volume: VolumeRecord) -> Reply<'_, ()> {
        Box::pin(self.node.update(volume, None))
    }

    fn forget(&self, volume: VolumeRecord) -> Reply<'_, ()> {
        Box::pin(self.node.forget(volume))
    }

    fn reconcile(&self, device: Uuid, volumes: Vec<VolumeRecord>) -> Reply<'_, Vec<Conflict>> {
        Box::pin(self.node.reconcile(device, volumes))
    }

    fn regrant(&self, change: Regrant) -> Reply<'_, bool> {
        Box::pin(self.node.regrant(change))
    }

    fn forget_device(&self, claim: Claim, word: Word) -> Reply<'_, ()> {
        Box::pin(self.node.forget_device(claim, word))
    }

    fn leave(&self) -> Reply<'_, ()> {
        Box::pin(self.node.leave())
    }
}
