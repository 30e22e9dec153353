//! Leftovers in the directory of devices that are gone: devices that ended with their host's process, and devices that an
//! operator declares gone.
//!
//! - LEFTOVER-1: records of a volatile device go when its process leaves, or, if that was killed, when the same host
//!   is back and its former process dead (CLAIM-2). No lapse of time removes them: a host that is cut off may still serve the
//!   device.
//! - LEFTOVER-2: they are removed under a claim like any other (CLAIM-2, CLAIM-3): the host takes the claim that it had, finds
//!   that the device holds nothing, and gives the claim back.
//! - LEFTOVER-3: of any other device they go by an operator's word only, and in the same way: the host claims it, taking it over
//!   if need be, as one that ends with its process. So the rest that is left by a host that dies on the way goes by LEFTOVER-1.

use crate::{Compare, Op};
use uuid::Uuid;

use super::Node;
use crate::ClaimRecord;
use crate::World;
use crate::store::Store;
use crate::{Claim, DirectoryError, Word};

impl<W: World> Node<W> {
    /// Removes what a former process of this host has left.
    pub async fn clear_leftovers(&self) {
        let leftovers = self.state(|state| {
            let is_left = |claim: &ClaimRecord| {
                claim.volatile && claim.host == state.host.id && claim.session != state.host.session
            };
            let claims = state.view.claims.iter();
            let left = claims.filter(|(_, claim)| is_left(claim));
            left.map(|(device, claim)| (*device, claim.device_name.clone())).collect::<Vec<_>>()
        });
        for (device, name) in leftovers {
            let claim = Claim { device, name: name.clone(), volatile: true, ..Claim::default() };
            let cleared = async {
                self.claim(claim).await?;
                self.give_back(device).await
            };
            match cleared.await {
                Ok(()) => tracing::info!(%device, name, "records of a device that is gone removed"),
                Err(error) => {
                    tracing::warn!(%device, name, "records of a device that is gone stay: {error}");
                }
            }
        }
    }

    /// Removes all that is known of a device that is gone for good (LEFTOVER-3).
    ///
    /// # Errors
    /// As for [`Node::take_over`].
    pub async fn forget_device(&self, claim: Claim, word: Word) -> Result<(), DirectoryError> {
        let device = claim.device;
        self.take_over(Claim { volatile: true, ..claim }, word).await?;
        self.reconcile(device, Vec::new()).await?;
        // The note of the claim stays (CLAIM-5): a former holder that was not dead after all must not go on with it.
        let revision = self.end_claim(device, None).await?;
        self.seen(revision).await;
        Ok(())
    }

    /// Gives a claim back; with the records of what is gone, if the device is.
    ///
    /// # Errors
    /// etcd does not answer.
    pub async fn give_back(&self, device: Uuid) -> Result<(), DirectoryError> {
        let held = self.state(|state| state.claims.get(&device).cloned());
        let is_volatile = held.is_some_and(|held| held.record.volatile);
        if is_volatile {
            self.reconcile(device, Vec::new()).await?;
        }
        // A device that ended with this host had no other holder and will have none: the note is
        // not needed (CLAIM-5).
        let note = is_volatile.then(|| Op::Delete(self.keys.claimed(device)));
        self.end_claim(device, note).await.map(drop)
    }

    /// Ends a claim, if it is held, and does what else is to be done with that. The revision of it.
    async fn end_claim(&self, device: Uuid, more: Option<Op>) -> Result<i64, DirectoryError> {
        let Some(held) = self.state(|state| state.claims.remove(&device)) else { return Ok(0) };
        let key = self.keys.device(device);
        let ours = [Compare::ModRevision(key.clone(), held.epoch)];
        let connection = self.connection()?;
        let mut then = vec![Op::Delete(key)];
        then.extend(more);
        let ended = connection.store.txn(&ours, &then, &[]).await;
        ended.map(|ended| ended.revision).map_err(|error| self.failed(error))
    }
}
