//! Making a device this host's (F1, F2, F9).

use std::time::Duration;

use uuid::Uuid;

use super::gateway::{Compare, Op, document};
use super::holding::look;
use super::{CLAIM_ROUNDS, Connection, Held, Shared, decode};
use crate::records::ClaimRecord;
use crate::{BootTime, Claim, DirectoryError, Mark, Term, Word};

/// How often it is looked whether a holder is back that is waited for.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// How often it is said how long that takes.
const SAY_EVERY: Duration = Duration::from_secs(5);

impl Shared {
    /// Makes a device this host's; by an operator's word also one of a host that is gone.
    pub(super) async fn claim(
        &self,
        claim: Claim,
        word: Option<Word>,
    ) -> Result<Mark, DirectoryError> {
        let word = word.as_ref();
        self.connection()?;
        let mut record = self.state(|state| ClaimRecord::of(&state.host, claim.clone()));
        let key = self.keys.device(claim.device);
        // Each round fails only if what it read has changed meanwhile, or the session has ended.
        for _ in 0..CLAIM_ROUNDS {
            let connection = self.connected().await?;
            let found = look(self, &connection.gateway, claim.device).await;
            let found = found.inspect_err(|_| self.trouble.notify_one())?;
            let [revision, noted] = found.revisions();
            let mut compare = vec![
                Compare::ModRevision(key.clone(), revision),
                // Two claims with one given back between them have numbers of their own.
                Compare::ModRevision(self.keys.claimed(claim.device), noted),
            ];
            let known = found.last();
            compare.extend(self.is_last(&connection, &claim, &known, word).await?);
            let carried = claim.mark.as_ref().map_or(0, |mark| mark.number);
            record.number = known.number.max(carried).saturating_add(1);
            let before = found.claim.as_ref().map(|kv| decode::<ClaimRecord>(&kv.key, &kv.value));
            match before.transpose()? {
                Some(before) if before.host != record.host => {
                    compare.extend(self.pass_on(&connection, &claim, before, word).await?);
                }
                // F2: of another kernel it is not known to be dead.
                Some(before) if before.boot != record.boot => self.seek(&claim, before).await?,
                None if claim.belongs && !found.is_noted() => may_be_taken(&claim, word)?,
                _ => {}
            }
            // Who waited for a holder may have done so through the end of a session.
            let connection = self.connected().await?;
            compare.push(self.in_session(&connection));
            let then = self.put_claim(claim.device, &record);
            let made = connection.gateway.txn(&compare, &then, &[Op::Get(key.clone())]).await;
            let made = made.map_err(|error| self.given_up(&connection, error))?;
            // V2 of `volumes.rs`.
            let own_work = made
                .read()
                .next()
                .flatten()
                .filter(|now| now.mod_revision != revision && now.value == document(&record));
            let epoch = own_work.map(|now| now.mod_revision);
            if let Some(epoch) = epoch.or(made.succeeded.then(|| made.revision())) {
                let mark = record.mark();
                self.note_claim(&connection, claim.device, Held { epoch, record, changed: 0 })?;
                self.seen(epoch).await;
                return Ok(mark);
            }
            self.trouble.notify_one();
        }
        let reason = format!("the claim of {} changes all the time", claim.name);
        Err(DirectoryError::Unreachable { reason })
    }

    /// F9: refuses a device that was claimed later than by `known`, the last claim in etcd, as its mark says. On what condition it
    /// may be had by an operator's word.
    async fn is_last(
        &self,
        connection: &Connection,
        claim: &Claim,
        known: &Mark,
        word: Option<&Word>,
    ) -> Result<Option<Compare>, DirectoryError> {
        let own = self.state(|state| state.host.id);
        let later =
            claim.mark.as_ref().filter(|mark| mark.host != own && mark.is_later_than(known));
        let Some(later) = later else { return Ok(None) };
        let (device, holder) = (claim.name.clone(), later.host_name.clone());
        let Some(word) = word else {
            return Err(DirectoryError::ClaimedLater { device, holder });
        };
        let key = self.keys.host(later.host);
        match self.get(connection, &key).await? {
            Some(_) => Err(DirectoryError::HolderLives { device, holder }),
            None if !word.is_down(&holder) => {
                Err(DirectoryError::HolderMayServe { device, holder })
            }
            None => Ok(Some(Compare::ModRevision(key, 0))),
        }
    }

    /// Notes a claim that was made, unless the session in which it was asked for has ended: then it may be lost already, and
    /// the next, which looked at all that was noted before (F4), has not looked at it.
    fn note_claim(
        &self,
        connection: &Connection,
        device: Uuid,
        held: Held,
    ) -> Result<(), DirectoryError> {
        self.state(|state| {
            let lasts = state.is_connected_by(connection);
            lasts.then(|| state.claims.insert(device, held)).map(drop)
        })
        .ok_or_else(|| self.session_ended())
    }

    /// The session, also if another is about to begin.
    async fn connected(&self) -> Result<Connection, DirectoryError> {
        let mut changes = self.generation.subscribe();
        let begun = changes.wait_for(|_| self.state(|state| state.connection.is_some()));
        let _ = tokio::time::timeout(self.options.lease, begun).await;
        self.connection()
    }

    /// On what conditions another host's claim passes to this one (F2), if it may at all. The holder is looked
    /// for last of all, so that as little time as can be lies between that and the transaction.
    async fn pass_on(
        &self,
        connection: &Connection,
        claim: &Claim,
        before: ClaimRecord,
        word: Option<&Word>,
    ) -> Result<[Compare; 2], DirectoryError> {
        let (device, holder) = (claim.name.clone(), before.host_name.clone());
        let keys = [self.keys.host(before.host), self.keys.registered(before.host)];
        // The view may be late: in it a host may still live whose lease has ended.
        let both = keys.clone().map(Op::Get);
        let answer = connection.gateway.txn(&[], &both, &[]).await;
        let answer = answer.map_err(|error| self.failed(error))?;
        let mut revisions = answer.read().map(|kv| kv.map_or(0, |kv| kv.mod_revision));
        let (Some(registration), Some(noted)) = (revisions.next(), revisions.next()) else {
            let reason = "the holder's registration was not read".to_owned();
            return Err(DirectoryError::Unreachable { reason });
        };
        if registration != 0 {
            return Err(DirectoryError::HolderLives { device, holder });
        }
        let fence = before.fence();
        let Some(word) = word else {
            let is_fenced = fence.is_some();
            return Err(DirectoryError::HolderLost { device, holder, is_fenced });
        };
        if let Some(term) = fence {
            self.seen(answer.revision()).await;
            self.wait_for_fence(claim, &before, term).await?;
        }
        // Behind the look for it: who is seen need not be guessed about.
        self.seek(claim, before).await?;
        if fence.is_none() && !word.is_down(&holder) {
            return Err(DirectoryError::HolderMayServe { device, holder });
        }
        let [host, registered] = keys;
        // F7: it was not back meanwhile either.
        Ok([Compare::ModRevision(host, 0), Compare::ModRevision(registered, noted)])
    }

    /// Waits until the holder of a claim, which was seen unregistered, has stopped by itself (N3 of `tenure.rs`).
    async fn wait_for_fence(
        &self,
        claim: &Claim,
        before: &ClaimRecord,
        term: Term,
    ) -> Result<(), DirectoryError> {
        let (device, holder) = (claim.name.clone(), before.host_name.clone());
        let safe = BootTime::now() + term.safe_after();
        let mut say = BootTime::default();
        loop {
            if self.state(|state| state.view.hosts.contains_key(&before.host)) {
                return Err(DirectoryError::HolderLives { device, holder });
            }
            let now = BootTime::now();
            let left = safe - now;
            if left.is_zero() {
                tracing::info!(device, holder, "has stopped by its fence: taking over");
                return Ok(());
            }
            if now >= say {
                let (left, after) = (left.as_secs() + 1, term.ends_after());
                tracing::info!(
                    device,
                    holder,
                    seconds_left = left,
                    "may still serve: it is fenced after {after:?} without the directory; waiting until it has stopped"
                );
                say = now + SAY_EVERY;
            }
            tokio::time::sleep(left.min(LOOK_EVERY)).await;
        }
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

/// F8: whether a device of the cluster may be had of which etcd has forgotten who had it.
fn may_be_taken(claim: &Claim, word: Option<&Word>) -> Result<(), DirectoryError> {
    let device = claim.name.clone();
    match word {
        None => Err(DirectoryError::Forgotten { device }),
        Some(word) if word.is_down(Word::WHOEVER) => Ok(()),
        Some(_) => {
            let holder = Word::WHOEVER.to_owned();
            Err(DirectoryError::HolderMayServe { device, holder })
        }
    }
}
