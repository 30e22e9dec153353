//! Making a device this host's (CLAIM-1, CLAIM-2, CLAIM-9).

use std::time::Duration;

use crate::{Action, Claiming, Made, Op, Refusal, TxnReply};
use uuid::Uuid;

use super::{Connection, Held, Node};
use crate::World;
use crate::sabotage::{Sabotage, broken};
use crate::store::Store;
use crate::{BootTime, Claim, ClaimRecord, DirectoryError, Mark, Term, Word};

/// The interval between looks whether an awaited holder is back.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// The interval between messages about the wait.
const SAY_EVERY: Duration = Duration::from_secs(5);

impl<W: World> Node<W> {
    /// Makes a device this host's; by an operator's word also one of a host that is gone.
    pub(super) async fn claim_by(
        &self,
        claim: Claim,
        word: Option<Word>,
    ) -> Result<Mark, DirectoryError> {
        self.connection()?;
        let (device, name) = (claim.device, claim.name.clone());
        let host = self.state(|state| state.host.clone());
        let refused = |refusal| refuse(refusal, &name);
        let mut claiming = Claiming::new(self.keys.clone(), &host, claim, word);
        let mut read_at = 0;
        loop {
            // A wait for a holder may outlast a session.
            let connection = self.connected().await?;
            match claiming.action() {
                Action::Read(keys) => {
                    let reply = self.read(&connection, keys).await?;
                    read_at = reply.revision;
                    claiming.on_read(&reply.read, self.world.now()).map_err(refused)?;
                }
                Action::Wait { until, before } => {
                    // The view may be late: in it a host may still live whose lease has ended.
                    self.seen(read_at).await;
                    self.wait_for_fence(&name, &before, until).await?;
                    claiming.on_time(self.world.now());
                }
                Action::Seek(before) => {
                    self.seek(device, &name, before).await?;
                    claiming.on_not_seen().map_err(refused)?;
                }
                Action::Commit => {
                    let (compare, then, or_else) = claiming.transaction(connection.lease);
                    let made = connection.store.txn(&compare, &then, &or_else).await;
                    let made = made.map_err(|error| self.given_up(&connection, error))?;
                    let Some(made) = claiming.on_committed(&made).map_err(refused)? else {
                        self.trouble.notify();
                        continue;
                    };
                    let Made { epoch, record } = made;
                    let mark = record.mark();
                    self.note_claim(&connection, device, Held { epoch, record, changed: 0 })?;
                    self.seen(epoch).await;
                    return Ok(mark);
                }
            }
        }
    }

    /// Reads keys at one revision.
    async fn read(
        &self,
        connection: &Connection<W::Store>,
        keys: Vec<String>,
    ) -> Result<TxnReply, DirectoryError> {
        let gets: Vec<Op> = keys.into_iter().map(Op::Get).collect();
        let answer = connection.store.txn(&[], &gets, &[]).await;
        let reply = answer.map_err(|error| self.failed(error))?;
        if reply.read.len() != gets.len() {
            let reason = "a claim or its holder was not read".to_owned();
            return Err(DirectoryError::Unreachable { reason });
        }
        Ok(reply)
    }

    /// Notes a claim that was made, unless the session in which it was asked for has ended: then it may be lost already, and
    /// the next, which looked at all that was noted before (CLAIM-4), has not looked at it.
    fn note_claim(
        &self,
        connection: &Connection<W::Store>,
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
    async fn connected(&self) -> Result<Connection<W::Store>, DirectoryError> {
        let begun = self.generation.until(|| self.is_connected());
        let _ = self.within(self.lease, begun).await;
        self.connection()
    }

    /// Waits until the holder of a claim, which was seen unregistered, has stopped by itself (TENURE-3).
    async fn wait_for_fence(
        &self,
        device: &str,
        before: &ClaimRecord,
        safe: BootTime,
    ) -> Result<(), DirectoryError> {
        let holder = before.host_name.clone();
        let after = before.fence().map(Term::ends_after).unwrap_or_default();
        let mut say = BootTime::default();
        loop {
            let is_back = self.state(|state| state.view.hosts.contains_key(&before.host));
            if is_back && !broken(Sabotage::TakeFromLiving) {
                return Err(refuse(Claiming::holder_is_back(before), device));
            }
            let now = self.world.now();
            let left = safe - now;
            if left.is_zero() {
                tracing::info!(device, holder, "has stopped by its fence: taking over");
                return Ok(());
            }
            if now >= say {
                let (left, after) = (left.as_secs() + 1, after.as_secs());
                tracing::info!(
                    device,
                    holder,
                    seconds_left = left,
                    "may still serve: it is fenced after {after} s without the directory; waiting until it has stopped"
                );
                say = now + SAY_EVERY;
            }
            self.world.sleep(left.min(LOOK_EVERY)).await;
        }
    }

    /// Looks for the holder of a claim.
    async fn seek(
        &self,
        device: Uuid,
        name: &str,
        before: ClaimRecord,
    ) -> Result<(), DirectoryError> {
        let view = self.state(|state| state.view.clone());
        match self.world.seek(device, &before, &view).await {
            None => Ok(()),
            Some(sighting) => {
                let (device, holder) = (name.to_owned(), before.host_name);
                Err(DirectoryError::HolderSeen { device, holder, sighting })
            }
        }
    }
}

/// Names the device of a refusal.
fn refuse(refusal: Refusal, name: &str) -> DirectoryError {
    let device = name.to_owned();
    match refusal {
        Refusal::ClaimedLater { holder } => DirectoryError::ClaimedLater { device, holder },
        Refusal::HolderLives { holder } => DirectoryError::HolderLives { device, holder },
        Refusal::HolderLost { holder, is_fenced } => {
            DirectoryError::HolderLost { device, holder, is_fenced }
        }
        Refusal::HolderMayServe { holder } => DirectoryError::HolderMayServe { device, holder },
        Refusal::Forgotten => DirectoryError::Forgotten { device },
        Refusal::Unreadable { what } => DirectoryError::Foreign { what },
        Refusal::ChangesAlways => {
            let reason = format!("the claim of {device} changes all the time");
            DirectoryError::Unreachable { reason }
        }
    }
}
