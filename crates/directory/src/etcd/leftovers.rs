//! What is left in the directory of devices that ended with their host's process.
//!
//! - L1: records of a volatile device go when its process leaves, or, if that was killed, when the same host
//!   is back and its former process dead (F2). No lapse of time removes them: a host that is cut off may still serve the
//!   device.
//! - L2: they are removed under a claim like any other (F2, F3): the host takes the claim that it had, finds
//!   that the device holds nothing, and gives the claim back.

use uuid::Uuid;

use super::gateway::{Compare, Op};
use super::{Shared, reconcile};
use crate::records::ClaimRecord;
use crate::{Claim, DirectoryError};

impl Shared {
    /// Removes what a former process of this host has left.
    pub(super) async fn clear_leftovers(&self) {
        let leftovers = self.state(|state| {
            let is_left = |claim: &ClaimRecord| {
                claim.volatile && claim.host == state.host.id && claim.session != state.host.session
            };
            let claims = state.view.claims.iter();
            let left = claims.filter(|(_, claim)| is_left(claim));
            left.map(|(device, claim)| (*device, claim.device_name.clone())).collect::<Vec<_>>()
        });
        for (device, name) in leftovers {
            let claim =
                Claim { device, name: name.clone(), volatile: true, model: None, serial: None };
            let cleared = async {
                self.claim(claim, false).await?;
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

    /// Gives a claim back; with the records of what is gone, if the device is.
    pub(super) async fn give_back(&self, device: Uuid) -> Result<(), DirectoryError> {
        let Some(held) = self.state(|state| state.claims.get(&device).cloned()) else {
            return Ok(());
        };
        if held.record.volatile {
            reconcile::reconcile(self, device, Vec::new()).await?;
        }
        let held = self.state(|state| state.claims.remove(&device)).unwrap_or(held);
        let key = self.keys.device(device);
        let ours = [Compare::ModRevision(key.clone(), held.epoch)];
        let connection = self.connection()?;
        let mut then = vec![Op::Delete(key)];
        // What ended with this host no other had or will have: nobody asks for the note (F5).
        then.extend(held.record.volatile.then(|| Op::Delete(self.keys.claimed(device))));
        let given = connection.gateway.txn(&ours, &then, &[]).await;
        given.map_err(|error| self.failed(error)).map(drop)
    }
}
