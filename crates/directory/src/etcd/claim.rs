//! Making a device this host's (F1, F2).

use super::gateway::Compare;
use super::{CLAIM_ROUNDS, Connection, Held, Shared, decode};
use crate::records::ClaimRecord;
use crate::{Claim, DirectoryError};

impl Shared {
    /// Makes a device this host's; if `by_word` also one of a host that is gone, unless that is seen.
    pub(super) async fn claim(&self, claim: Claim, by_word: bool) -> Result<(), DirectoryError> {
        let connection = self.connection()?;
        let record = self.state(|state| ClaimRecord::of(&state.host, claim.clone()));
        let key = self.keys.device(claim.device);
        // Each round fails only if what it read has changed meanwhile.
        for _ in 0..CLAIM_ROUNDS {
            let found = self.get(&connection, &key).await?;
            let mut compare = vec![Compare::ModRevision(
                key.clone(),
                found.as_ref().map_or(0, |kv| kv.mod_revision),
            )];
            let before = found.map(|kv| decode::<ClaimRecord>(&kv.key, &kv.value)).transpose()?;
            match before {
                Some(before) if before.host != record.host => {
                    compare.push(self.pass_on(&connection, &claim, before, by_word).await?);
                }
                // F2: of another kernel it is not known to be dead.
                Some(before) if before.boot != record.boot => self.seek(&claim, before).await?,
                _ => {}
            }
            let then = self.put_claim(claim.device, &record);
            let made = connection.gateway.txn(&compare, &then, &[]).await;
            let made = made.map_err(|error| self.failed(error))?;
            if made.succeeded {
                let held = Held { epoch: made.revision(), record };
                self.state(|state| state.claims.insert(claim.device, held));
                self.seen(made.revision()).await;
                return Ok(());
            }
        }
        let reason = format!("the claim of {} changes all the time", claim.name);
        Err(DirectoryError::Unreachable { reason })
    }

    /// On what condition another host's claim passes to this one (F2), if it may at all. The holder is looked
    /// for last of all, so that as little time as can be lies between that and the transaction.
    async fn pass_on(
        &self,
        connection: &Connection,
        claim: &Claim,
        before: ClaimRecord,
        by_word: bool,
    ) -> Result<Compare, DirectoryError> {
        let (device, holder) = (claim.name.clone(), before.host_name.clone());
        let host = self.keys.host(before.host);
        // The view may be late: in it a host may still live whose lease has ended.
        if self.get(connection, &host).await?.is_some() {
            return Err(DirectoryError::HolderLives { device, holder });
        }
        if !by_word {
            return Err(DirectoryError::HolderLost { device, holder });
        }
        self.seek(claim, before).await?;
        Ok(Compare::ModRevision(host, 0))
    }

    /// Looks for the holder of a claim.
    async fn seek(&self, claim: &Claim, before: ClaimRecord) -> Result<(), DirectoryError> {
        let view = self.state(|state| state.view.clone());
        match (self.seek)(claim.device, &before, &view).await {
            None => Ok(()),
            Some(sighting) => {
                let (device, holder) = (claim.name.clone(), before.host_name);
                Err(DirectoryError::HolderSeen { device, holder, sighting })
            }
        }
    }
}
