//! The directory of many hosts: etcd.
//!
//! - E1: *connected* means that one member of etcd keeps the host's lease, has the host's record, found
//!   its claims to hold, and feeds the view. All end together, and begin anew with the next member.
//! - E2: while not connected, changes are refused at once, and the view stays as it was.
//! - E4: the session has a thread of its own (`keeper.rs`): whatever else the host is busy with, its lease is kept.
//! - E3: a change whose answer says that it was made can be seen in the view of this host.
//! - E5: a change that is not answered ends the session, and none that was asked for in a session takes effect when the
//!   next has begun: each compares that the host's record is under the session's lease. So what is read then stays so, however late
//!   a member of etcd, or what lies before it, carries out what it was asked.
//! - E6: of the hosts that live no two have one name. Who registers looks who is there, and in the transaction writes `host-names/NAME`,
//!   of which it compares that nobody has written it since before that look.
//! - E7: a watch that tells nothing though there is something to tell ends the session, within three lengths of the lease (`silence.rs`).

mod access;
mod address;
mod admission;
mod change;
mod claim;
mod gateway;
mod grants;
mod holding;
mod keeper;
mod leftovers;
mod reconcile;
mod session;
mod silence;
mod volumes;

use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, mpsc, watch};
use uuid::Uuid;

use crate::view::View;
use crate::{
    Admit, Claim, Conflict, Directory, DirectoryError, Event, Mark, Regrant, Reply, Seek, Tenure,
    Word,
};
use crate::{ClaimRecord, HostRecord, VolumeRecord};
pub use access::{EtcdAccessError, EtcdCredentials};
pub use address::{EtcdAddress, EtcdAddressError};
use cluster::{Compare, KeyValue, Keys, Op, document};
#[cfg(feature = "fuzzing")]
pub use gateway::take_answer;
use gateway::{Gateway, GatewayError};
use keeper::Keeper;

/// Longest wait for the view to show a change that was made.
const VIEW_TIMEOUT: Duration = Duration::from_secs(1);

/// How a host takes part.
#[derive(Clone, Debug)]
pub struct EtcdOptions {
    /// Where etcd is.
    pub address: EtcdAddress,
    /// What it wants to see.
    pub credentials: EtcdCredentials,
    /// After how long without a word from it a host counts as gone.
    pub lease: Duration,
    /// Confirmed as often as the lease is kept (F7).
    pub tenure: Tenure,
}

/// A host's place in a cluster whose directory is etcd.
pub struct Etcd {
    shared: Arc<Shared>,
    events: tokio::sync::Mutex<mpsc::UnboundedReceiver<Event>>,
    _keeper: Keeper,
}

struct Shared {
    options: EtcdOptions,
    seek: Seek,
    keys: Keys,
    state: Mutex<State>,
    generation: watch::Sender<u64>,
    events: mpsc::UnboundedSender<Event>,
    /// Told when a change finds etcd away, or a claim gone.
    trouble: Notify,
}

struct State {
    host: HostRecord,
    view: Arc<View>,
    /// Up to which revision the view is.
    seen: i64,
    /// How many keys the cluster has at that revision.
    keys: u64,
    /// Claims that this process made: what they say, and their epochs.
    claims: BTreeMap<Uuid, Held>,
    /// The cluster's identity, once it is known (F6).
    cluster: Option<Uuid>,
    /// E1.
    connection: Option<Connection>,
    /// The lease of the session in which a change was not answered last (E5).
    given_up: Option<i64>,
    /// Claims that a change found not to be as they were made; the session looks at them (F4).
    doubted: BTreeSet<Uuid>,
}

#[derive(Clone)]
struct Held {
    epoch: i64,
    record: ClaimRecord,
    /// When something was changed about the device last, as far as is known; 0 for never (V4 of `volumes.rs`).
    changed: i64,
}

#[derive(Clone)]
struct Connection {
    gateway: Gateway,
    lease: i64,
}

impl From<GatewayError> for DirectoryError {
    fn from(error: GatewayError) -> Self {
        match error {
            GatewayError::Foreign { .. } => Self::Foreign { what: error.to_string() },
            error => Self::Unreachable { reason: error.to_string() },
        }
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
        let (events, receiver) = mpsc::unbounded_channel();
        let keys = Keys { prefix: format!("/farflash/{}/", options.address.cluster) };
        let state = State {
            host,
            view: Arc::default(),
            seen: 0,
            keys: 0,
            claims: BTreeMap::new(),
            cluster: None,
            connection: None,
            given_up: None,
            doubted: BTreeSet::new(),
        };
        let usable = options.credentials.check(&options.address);
        usable.map_err(|error| DirectoryError::Foreign { what: error.to_string() })?;
        let shared = Arc::new(Shared {
            options,
            seek,
            keys,
            state: Mutex::new(state),
            generation: watch::Sender::new(0),
            events,
            trouble: Notify::new(),
        });
        let keeper = Keeper::start(shared.clone()).await?;
        shared.clear_leftovers().await;
        Ok(Self { shared, events: tokio::sync::Mutex::new(receiver), _keeper: keeper })
    }
}

impl State {
    fn is_connected_by(&self, connection: &Connection) -> bool {
        self.connection.as_ref().is_some_and(|now| now.lease == connection.lease)
    }
}

impl Shared {
    fn state<T>(&self, look: impl FnOnce(&mut State) -> T) -> T {
        // A panic elsewhere leaves the state whole: each change is one assignment.
        look(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn connection(&self) -> Result<Connection, DirectoryError> {
        self.state(|state| {
            state.connection.clone().ok_or_else(|| {
                let reason = state.view.cut_off.as_deref().unwrap_or("not connected yet");
                DirectoryError::Unreachable { reason: reason.to_owned() }
            })
        })
    }

    /// Notes that etcd is away, before whoever keeps the session does.
    fn failed(&self, error: GatewayError) -> DirectoryError {
        self.trouble.notify_one();
        error.into()
    }

    /// The same of a change, which ends the session if it may have been made (E5).
    fn given_up(&self, connection: &Connection, error: GatewayError) -> DirectoryError {
        if error.may_be_done() {
            self.state(|state| state.given_up = Some(connection.lease));
        }
        self.failed(error)
    }

    /// That the session of `connection` lasts (E5).
    fn in_session(&self, connection: &Connection) -> Compare {
        let host = self.state(|state| state.host.id);
        Compare::Lease(self.keys.host(host), connection.lease)
    }

    /// Waits until the view is as of `revision` (E3).
    async fn seen(&self, revision: i64) {
        self.seen_within(VIEW_TIMEOUT, revision).await;
    }

    async fn seen_within(&self, patience: Duration, revision: i64) {
        let mut changes = self.generation.subscribe();
        let seen = changes.wait_for(|_| self.state(|state| state.seen >= revision));
        // It then comes later, and only for those who read at this host.
        let _ = tokio::time::timeout(patience, seen).await;
    }

    async fn describe(&self, host: HostRecord) -> Result<(), DirectoryError> {
        let connection = self.state(|state| {
            state.host = host.clone();
            state.connection.clone()
        });
        // Whoever connects next says it.
        let Some(connection) = connection else { return Ok(()) };
        let revision = self.say(&connection, &host).await?;
        self.seen(revision).await;
        Ok(())
    }

    /// Makes the host's record this one; the revision.
    async fn say(&self, connection: &Connection, host: &HostRecord) -> Result<i64, DirectoryError> {
        let (key, lease) = (self.keys.host(host.id), Some(connection.lease));
        let put = Op::Put { key, value: document(host), lease };
        let answer = connection.gateway.txn(&[self.in_session(connection)], &[put], &[]).await;
        let answer = answer.map_err(|error| self.given_up(connection, error))?;
        match answer.succeeded {
            true => Ok(answer.revision()),
            false => Err(self.session_ended()),
        }
    }

    /// A key as it is now, which the view may not show yet.
    async fn get(
        &self,
        connection: &Connection,
        key: &str,
    ) -> Result<Option<KeyValue>, DirectoryError> {
        let read = connection.gateway.txn(&[], &[Op::Get(key.to_owned())], &[]).await;
        let read = read.map_err(|error| self.failed(error))?;
        Ok(read.read().next().flatten().cloned())
    }

    /// What makes a claim (F5).
    async fn leave(&self) -> Result<(), DirectoryError> {
        let connection = self.connection()?;
        let held: Vec<_> = self.state(|state| {
            state.claims.iter().map(|(device, held)| (held.record.volatile, *device)).collect()
        });
        // First those that others may wait for; and one that fails keeps no other.
        let mut outcome = Ok(());
        for volatile in [false, true] {
            for (_, device) in held.iter().filter(|(is_volatile, _)| *is_volatile == volatile) {
                outcome = self.give_back(*device).await.and(outcome);
            }
        }
        connection.gateway.revoke_lease(connection.lease).await?;
        outcome
    }
}

/// Attempts at a claim that changes meanwhile.
const CLAIM_ROUNDS: u32 = 8;

fn decode<T: for<'de> serde::Deserialize<'de>>(
    key: &str,
    value: &[u8],
) -> Result<T, DirectoryError> {
    serde_json::from_slice(value).map_err(|error| DirectoryError::Foreign {
        what: format!("the key {key} in etcd: {error}"),
    })
}

impl Directory for Etcd {
    fn cluster(&self) -> Option<Uuid> {
        self.shared.state(|state| state.cluster)
    }

    fn view(&self) -> Arc<View> {
        self.shared.state(|state| state.view.clone())
    }

    fn changes(&self) -> watch::Receiver<u64> {
        self.shared.generation.subscribe()
    }

    fn event(&self) -> Pin<Box<dyn Future<Output = Event> + Send + '_>> {
        Box::pin(async {
            let event = self.events.lock().await.recv().await;
            event.expect("the sender lives as long as this")
        })
    }

    fn describe(&self, host: HostRecord) -> Reply<'_, ()> {
        Box::pin(self.shared.describe(host))
    }

    fn claim(&self, claim: Claim) -> Reply<'_, Mark> {
        Box::pin(self.shared.claim(claim, None))
    }

    fn take_over(&self, claim: Claim, word: Word) -> Reply<'_, Mark> {
        Box::pin(self.shared.claim(claim, Some(word)))
    }

    fn lost(&self, device: Uuid, own: &Mark, holder: String) {
        let held = self.shared.state(|state| state.claims.get(&device).cloned());
        if let Some(held) = held.filter(|held| held.record.mark() == *own) {
            holding::lose(&self.shared, device, &held, Some(holder));
        }
    }

    fn check(&self, device: Uuid) -> Reply<'_, ()> {
        Box::pin(async move { self.shared.change(device, Vec::new(), &[]).await.map(drop) })
    }

    fn catch_up<'a>(&'a self, owner: &'a str) -> Reply<'a, ()> {
        Box::pin(self.shared.catch_up(owner))
    }

    fn reserve_if(&self, volume: VolumeRecord, admit: Option<Admit>) -> Reply<'_, ()> {
        Box::pin(self.shared.reserve(volume, admit))
    }

    fn update_if(&self, volume: VolumeRecord, admit: Option<Admit>) -> Reply<'_, ()> {
        Box::pin(self.shared.update(volume, admit))
    }

    fn update(&self, volume: VolumeRecord) -> Reply<'_, ()> {
        Box::pin(self.shared.update(volume, None))
    }

    fn forget(&self, volume: VolumeRecord) -> Reply<'_, ()> {
        Box::pin(self.shared.forget(volume))
    }

    fn reconcile(&self, device: Uuid, volumes: Vec<VolumeRecord>) -> Reply<'_, Vec<Conflict>> {
        Box::pin(reconcile::reconcile(&self.shared, device, volumes))
    }

    fn regrant(&self, change: Regrant) -> Reply<'_, bool> {
        Box::pin(self.shared.regrant(change))
    }

    fn forget_device(&self, claim: Claim, word: Word) -> Reply<'_, ()> {
        Box::pin(self.shared.forget_device(claim, word))
    }

    fn leave(&self) -> Reply<'_, ()> {
        Box::pin(self.shared.leave())
    }
}
