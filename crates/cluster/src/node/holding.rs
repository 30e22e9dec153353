//! Checks that the claims of this process are still its own (CLAIM-4, CLAIM-5, CLAIM-8, CLAIM-9).

use std::collections::BTreeMap;

use crate::{Compare, KeyValue, Op, last, put_claim};
use uuid::Uuid;

use super::{Held, Node};
use crate::ClaimRecord;
use crate::World;
use crate::sabotage::{Sabotage, broken};
use crate::store::Store;
use crate::{DirectoryError, Event, Mark};

/// The records of a device in etcd.
pub(super) struct Found {
    pub(super) claim: Option<KeyValue>,
    note: Option<KeyValue>,
}

impl Found {
    /// The claim; `None` if there is none, or none that is understood.
    fn record(&self) -> Option<ClaimRecord> {
        self.claim.as_ref().and_then(|claim| serde_json::from_slice(&claim.value).ok())
    }

    /// The host that the device belongs to, if it is claimed.
    fn holder(&self) -> Option<String> {
        self.claim.as_ref()?;
        Some(self.record().map_or_else(|| "unknown".to_owned(), |claim| claim.host_name))
    }

    /// When the claim was made, and when the last one was noted; 0 if never.
    pub(super) fn revisions(&self) -> [i64; 2] {
        [&self.claim, &self.note].map(|kv| kv.as_ref().map_or(0, |kv| kv.mod_revision))
    }

    /// The last claim that is known, be it given back or not (CLAIM-9): number 0 if none is, or none that is understood.
    pub(super) fn last(&self) -> Mark {
        last([&self.claim, &self.note])
    }

    /// CLAIM-8: a claim made at `epoch` is noted at that revision or, if there was another since, at a later one.
    fn is_before(&self, epoch: i64) -> bool {
        self.revisions().iter().all(|revision| *revision < epoch)
    }
}

/// The devices that this process has claimed, and of which `keys` do not say so.
pub(super) fn changed<W: World>(node: &Node<W>, keys: &[KeyValue]) -> Vec<Uuid> {
    let found: BTreeMap<&str, i64> =
        keys.iter().map(|kv| (kv.key.as_str(), kv.mod_revision)).collect();
    node.state(|state| {
        let held = state.claims.iter().filter(|(device, held)| {
            found.get(node.keys.device(**device).as_str()) != Some(&held.epoch)
        });
        held.map(|(device, _)| *device).collect()
    })
}

/// Looks whether a claim still holds, and makes it again if etcd has forgotten it.
pub(super) async fn verify<W: World>(
    node: &Node<W>,
    store: &W::Store,
    device: Uuid,
) -> Result<(), DirectoryError> {
    let Some(held) = node.state(|state| state.claims.get(&device).cloned()) else {
        return Ok(());
    };
    let found = look(node, store, device).await?;
    let claim = found.record();
    if claim.as_ref().is_some_and(|claim| claim.session == held.record.session) {
        // Perhaps of another epoch: made by us, though the answer was lost.
        let epoch = found.revisions()[0];
        note(node, device, &held, Some(epoch));
        return Ok(());
    }
    // CLAIM-9: where claims are counted, revisions of an etcd that has gone back do not matter.
    let is_forgotten = found.is_before(held.epoch) && found.last().number <= held.record.number;
    if is_forgotten && !is_served_elsewhere(node, device, &held, &found, claim).await {
        return claim_again(node, store, device, held, &found).await;
    }
    if !broken(Sabotage::KeepLost) {
        lose(node, device, &held, found.holder());
    }
    Ok(())
}

/// Marks a claim as lost, unless it was given back or made again meanwhile.
pub(super) fn lose<W: World>(node: &Node<W>, device: Uuid, held: &Held, holder: Option<String>) {
    if !note(node, device, held, None) {
        return;
    }
    // TENURE-4: nothing is confirmed before the task that is told of the loss has acted. The other devices wait for that, so
    // it is asked at once.
    node.tenure.end();
    node.world.tell(Event::ClaimLost { device, holder });
    node.trouble.notify();
}

pub(super) async fn look<W: World>(
    node: &Node<W>,
    store: &W::Store,
    device: Uuid,
) -> Result<Found, DirectoryError> {
    let keys = [node.keys.device(device), node.keys.claimed(device)];
    let answer = store.txn(&[], &keys.map(Op::Get), &[]).await?;
    let mut read = answer.read.into_iter();
    let (Some(claim), Some(note)) = (read.next(), read.next()) else {
        return Err(DirectoryError::Unreachable { reason: "a claim was not read".to_owned() });
    };
    Ok(Found { claim, note })
}

/// Returns true if the holder that a forgetful etcd names is seen to serve the device. A former process of this host is
/// dead, if it ran where this one does (IDENTITY-2).
async fn is_served_elsewhere<W: World>(
    node: &Node<W>,
    device: Uuid,
    held: &Held,
    found: &Found,
    claim: Option<ClaimRecord>,
) -> bool {
    // Of one that is not understood it is not known where it could be seen.
    let Some(claim) = claim else { return found.claim.is_some() };
    let own = &held.record;
    if (claim.host, &claim.boot) == (own.host, &own.boot) {
        return false;
    }
    let view = node.state(|state| state.view.clone());
    node.world.seek(device, &claim, &view).await.is_some()
}

/// CLAIM-8.
async fn claim_again<W: World>(
    node: &Node<W>,
    store: &W::Store,
    device: Uuid,
    held: Held,
    found: &Found,
) -> Result<(), DirectoryError> {
    let [claimed, noted] = found.revisions();
    let compare = [
        Compare::ModRevision(node.keys.device(device), claimed),
        Compare::ModRevision(node.keys.claimed(device), noted),
    ];
    let made = store.txn(&compare, &put_claim(&node.keys, device, &held.record), &[]).await?;
    if !made.succeeded {
        let reason = "a claim that it had forgotten changes just now".to_owned();
        return Err(DirectoryError::Unreachable { reason });
    }
    tracing::error!(
        %device,
        former = found.holder(),
        "the directory had forgotten that the device is this host's, as one has that is restored from an older backup: it is claimed again"
    );
    note(node, device, &held, Some(made.revision));
    Ok(())
}

/// Notes of a claim that it is of this epoch, or lost. `false`: meanwhile it was given back, or made
/// again.
fn note<W: World>(node: &Node<W>, device: Uuid, held: &Held, epoch: Option<i64>) -> bool {
    node.state(|state| {
        let is_same = state.claims.get(&device).is_some_and(|now| now.epoch == held.epoch);
        match epoch {
            _ if !is_same => {}
            Some(epoch) => drop(state.claims.insert(device, Held { epoch, ..held.clone() })),
            None => drop(state.claims.remove(&device)),
        }
        is_same
    })
}
