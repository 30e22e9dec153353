//! A host's place in a cluster whose directory is etcd.
//!
//! - SESSION-1: *connected* means that one member of etcd keeps the host's lease, has the host's record, found
//!   its claims to hold, and feeds the view. All end together, and begin again with the next member.
//! - SESSION-2: while not connected, changes are refused at once, and the view stays as it was.
//! - SESSION-3: a change whose answer says that it was made can be seen in the view of this host.
//! - SESSION-5: a change that is not answered ends the session, and none that was asked for in a session takes effect when the
//!   next has begun: each compares that the host's record is under the session's lease. So what is read then stays so, however late
//!   a member of etcd, or what lies before it, carries out what it was asked.
//! - SESSION-6: of the hosts that live no two have one name. A host that registers reads the hosts that are there, and in the
//!   transaction writes `host-names/NAME`, of which it compares that it was not written since before that look.
//! - SESSION-7: a watch that tells nothing though there is something to tell ends the session, within three lengths of the lease
//!   (`silence.rs`).

mod admission;
mod change;
mod claim;
mod grants;
mod holding;
mod leftovers;
mod reconcile;
mod session;
mod silence;
mod volumes;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use uuid::Uuid;

use crate::race::{Either, race};
use crate::signal::Signal;
use crate::store::{Compare, KeyValue, Op, Store, StoreError, document};
use crate::{
    Claim, ClaimRecord, DirectoryError, HostRecord, Keys, Mark, Tenure, View, Word, World,
};
pub use session::Session;

/// Longest wait for the view to show a change that was made.
const VIEW_TIMEOUT: Duration = Duration::from_secs(1);
/// Attempts at a change of what changes meanwhile.
const CLAIM_ROUNDS: u32 = 8;
/// Changes of a transaction at most; etcd's own bound is 128 by default.
const TXN_OPS_MAX: usize = 100;

/// A host's place in a cluster: all that it knows, and all that it asks of etcd.
pub struct Node<W: World> {
    world: W,
    keys: Keys,
    /// Time without a word from it after which a host counts as gone.
    lease: Duration,
    /// Confirmed as often as the lease is kept (CLAIM-7).
    tenure: Tenure,
    state: Mutex<State<W::Store>>,
    /// Told when the view has changed, or the session.
    generation: Signal,
    /// Told when a change finds etcd away, or a claim gone.
    trouble: Signal,
}

struct State<S> {
    host: HostRecord,
    view: Arc<View>,
    /// Up to which revision the view is.
    seen: i64,
    /// The number of keys that the cluster has at that revision.
    keys: u64,
    /// Claims that this process made: what they say, and their epochs.
    claims: BTreeMap<Uuid, Held>,
    /// The cluster's identity, once it is known (CLAIM-6).
    cluster: Option<Uuid>,
    /// SESSION-1.
    connection: Option<Connection<S>>,
    /// The lease of the session in which a change was not answered last (SESSION-5).
    given_up: Option<i64>,
    /// Claims that a change found not to be as they were made; the session looks at them (CLAIM-4).
    doubted: BTreeSet<Uuid>,
}

#[derive(Clone)]
struct Held {
    epoch: i64,
    record: ClaimRecord,
    /// When something was changed about the device last, as far as is known; 0 for never (VOLUME-RECORD-4).
    changed: i64,
}

#[derive(Clone)]
struct Connection<S> {
    store: S,
    lease: i64,
}

impl<S> State<S> {
    fn is_connected_by(&self, connection: &Connection<S>) -> bool {
        self.connection.as_ref().is_some_and(|now| now.lease == connection.lease)
    }
}

impl<W: World> Node<W> {
    /// A host that is not in touch with etcd yet: see [`Node::join`]. It counts as gone when nothing is heard of it for `lease`.
    #[must_use]
    pub fn new(
        world: W,
        keys: Keys,
        host: HostRecord,
        (lease, tenure): (Duration, Tenure),
    ) -> Self {
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
        let (generation, trouble) = (Signal::default(), Signal::default());
        Self { world, keys, lease, tenure, state: Mutex::new(state), generation, trouble }
    }

    /// Returns the surroundings of the host.
    #[must_use]
    pub fn world(&self) -> &W {
        &self.world
    }

    /// Returns the cluster's identity, once it is known (CLAIM-6).
    #[must_use]
    pub fn cluster(&self) -> Option<Uuid> {
        self.state(|state| state.cluster)
    }

    /// Returns what was last seen of the cluster.
    #[must_use]
    pub fn view(&self) -> Arc<View> {
        self.state(|state| state.view.clone())
    }

    /// Returns whether the host is connected (SESSION-1).
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.state(|state| state.connection.is_some())
    }

    fn state<T>(&self, look: impl FnOnce(&mut State<W::Store>) -> T) -> T {
        // A panic elsewhere leaves the state whole: each change is one assignment.
        look(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Notes that the view has changed, or the session.
    fn view_changed(&self) {
        self.generation.notify();
        self.world.view_changed();
    }

    fn connection(&self) -> Result<Connection<W::Store>, DirectoryError> {
        self.state(|state| {
            state.connection.clone().ok_or_else(|| {
                let reason = state.view.cut_off.as_deref().unwrap_or("not connected yet");
                DirectoryError::Unreachable { reason: reason.to_owned() }
            })
        })
    }

    /// Notes that etcd is away, before the session does.
    fn failed(&self, error: StoreError) -> DirectoryError {
        self.trouble.notify();
        error.into()
    }

    /// The same of a change, which ends the session if it may have been made (SESSION-5).
    fn given_up(&self, connection: &Connection<W::Store>, error: StoreError) -> DirectoryError {
        if error.may_be_done {
            self.state(|state| state.given_up = Some(connection.lease));
        }
        self.failed(error)
    }

    /// The condition that the session of `connection` lasts (SESSION-5).
    fn in_session(&self, connection: &Connection<W::Store>) -> Compare {
        let host = self.state(|state| state.host.id);
        Compare::Lease(self.keys.host(host), connection.lease)
    }

    /// Waits for `done`, or for `patience` at most.
    async fn within<T>(&self, patience: Duration, done: impl Future<Output = T>) -> Option<T> {
        match race(done, self.world.sleep(patience)).await {
            Either::First(value) => Some(value),
            Either::Second(()) => None,
        }
    }

    /// Waits until the view is as of `revision` (SESSION-3).
    async fn seen(&self, revision: i64) {
        self.seen_within(VIEW_TIMEOUT, revision).await;
    }

    async fn seen_within(&self, patience: Duration, revision: i64) {
        let seen = self.generation.until(|| self.state(|state| state.seen >= revision));
        // The change then shows later, and only to readers at this host.
        let _ = self.within(patience, seen).await;
    }

    /// Makes the host's record this one from now on.
    ///
    /// # Errors
    /// etcd does not answer. The next session makes it so.
    pub async fn describe(&self, host: HostRecord) -> Result<(), DirectoryError> {
        let connection = self.state(|state| {
            state.host = host.clone();
            state.connection.clone()
        });
        // The next session says it.
        let Some(connection) = connection else { return Ok(()) };
        let revision = self.say(&connection, &host).await?;
        self.seen(revision).await;
        Ok(())
    }

    /// Makes the host's record this one; the revision.
    async fn say(
        &self,
        connection: &Connection<W::Store>,
        host: &HostRecord,
    ) -> Result<i64, DirectoryError> {
        let (key, lease) = (self.keys.host(host.id), Some(connection.lease));
        let put = Op::Put { key, value: document(host), lease };
        let answer = connection.store.txn(&[self.in_session(connection)], &[put], &[]).await;
        let answer = answer.map_err(|error| self.given_up(connection, error))?;
        match answer.succeeded {
            true => Ok(answer.revision),
            false => Err(self.session_ended()),
        }
    }

    /// A key as it is now, which the view may not show yet.
    async fn get(
        &self,
        connection: &Connection<W::Store>,
        key: &str,
    ) -> Result<Option<KeyValue>, DirectoryError> {
        let read = connection.store.txn(&[], &[Op::Get(key.to_owned())], &[]).await;
        let read = read.map_err(|error| self.failed(error))?;
        Ok(read.first().cloned())
    }

    /// Makes a device this host's (CLAIM-1, CLAIM-2). The mark is what the device has to carry before anything of it is served
    /// (CLAIM-9).
    ///
    /// # Errors
    /// It may be another host's, or etcd does not answer.
    pub async fn claim(&self, claim: Claim) -> Result<Mark, DirectoryError> {
        self.claim_by(claim, None).await
    }

    /// The same, also with a device of a host that is gone, by an operator's word (CLAIM-2).
    ///
    /// # Errors
    /// As for [`Node::claim`].
    pub async fn take_over(&self, claim: Claim, word: Word) -> Result<Mark, DirectoryError> {
        self.claim_by(claim, Some(word)).await
    }

    /// This host has found on a device that it serves the mark of a later claim (CLAIM-9), of the host `holder`: the device is
    /// lost. Nothing is done if it is not held under the claim that is marked by `own`.
    pub fn lost(&self, device: Uuid, own: &Mark, holder: String) {
        let held = self.state(|state| state.claims.get(&device).cloned());
        if let Some(held) = held.filter(|held| held.record.mark() == *own) {
            holding::lose(self, device, &held, Some(holder));
        }
    }

    /// Fails unless etcd is there and the device is this host's.
    ///
    /// # Errors
    /// It is not.
    pub async fn check(&self, device: Uuid) -> Result<(), DirectoryError> {
        self.change(device, Vec::new(), &[]).await.map(drop)
    }

    /// Gives back all claims, and ends the host's lease.
    ///
    /// # Errors
    /// etcd does not answer.
    pub async fn leave(&self) -> Result<(), DirectoryError> {
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
        connection.store.revoke_lease(connection.lease).await?;
        outcome
    }
}

pub(crate) fn decode<T: for<'de> serde::Deserialize<'de>>(
    key: &str,
    value: &[u8],
) -> Result<T, DirectoryError> {
    serde_json::from_slice(value).map_err(|error| DirectoryError::Foreign {
        what: format!("the key {key} in etcd: {error}"),
    })
}

#[cfg(test)]
mod tests;
