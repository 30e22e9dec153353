//! Changes about a device that this process has claimed.

use crate::{Compare, Op, document};
use uuid::Uuid;

use super::{CLAIM_ROUNDS, Node};
use crate::ClaimRecord;
use crate::DirectoryError;
use crate::World;
use crate::store::Store;

/// The outcome of an attempt to make a change.
enum Tried {
    Changed,
    /// A condition of the change itself does not hold.
    Refused,
    /// Something else was changed about the device (VOLUME-RECORD-4).
    Overtaken,
}

impl<W: World> Node<W> {
    /// Makes changes about a device that this process has claimed (CLAIM-3). `false`: one of the other
    /// conditions does not hold, and nothing was changed.
    pub(super) async fn change(
        &self,
        device: Uuid,
        compare: Vec<Compare>,
        then: &[Op],
    ) -> Result<bool, DirectoryError> {
        for _ in 0..CLAIM_ROUNDS {
            match self.try_change(device, compare.clone(), then).await? {
                Tried::Changed => return Ok(true),
                Tried::Refused => return Ok(false),
                Tried::Overtaken => {}
            }
        }
        let reason = "what is recorded of the device changes all the time".to_owned();
        Err(DirectoryError::Unreachable { reason })
    }

    async fn try_change(
        &self,
        device: Uuid,
        mut compare: Vec<Compare>,
        then: &[Op],
    ) -> Result<Tried, DirectoryError> {
        let connection = self.connection()?;
        let Some(held) = self.state(|state| state.claims.get(&device).cloned()) else {
            return Err(self.fenced(device));
        };
        let [key, changed] = [self.keys.device(device), self.keys.changed(device)];
        compare.push(Compare::ModRevision(key.clone(), held.epoch));
        compare.push(self.in_session(&connection));
        let mut ops = then.to_vec();
        if !then.is_empty() {
            compare.push(Compare::ModRevision(changed.clone(), held.changed));
            let (value, lease) = (document(&held.record.session), Some(connection.lease));
            ops.push(Op::Put { key: changed.clone(), value, lease });
        }
        let otherwise = [key, self.keys.host(held.record.host), changed].map(Op::Get);
        let answer = connection.store.txn(&compare, &ops, &otherwise).await;
        let answer = answer.map_err(|error| match then {
            [] => self.failed(error),
            _ => self.given_up(&connection, error),
        })?;
        if answer.succeeded {
            if !then.is_empty() {
                self.note_change(device, held.epoch, answer.revision);
                self.seen(answer.revision).await;
            }
            return Ok(Tried::Changed);
        }
        let mut read = answer.read.iter();
        let [claim, host, changed] = [(); 3].map(|()| read.next().and_then(Option::as_ref));
        if claim.is_some_and(|claim| claim.mod_revision == held.epoch) {
            if host.is_none_or(|host| host.lease != connection.lease) {
                return Err(self.session_ended());
            }
            let changed = changed.map_or(0, |kv| kv.mod_revision);
            if then.is_empty() || changed == held.changed {
                return Ok(Tried::Refused);
            }
            self.note_change(device, held.epoch, changed);
            return Ok(Tried::Overtaken);
        }
        // The session finds out what is to be done about it (CLAIM-4).
        self.state(|state| state.doubted.insert(device));
        self.trouble.notify();
        let holder = claim.and_then(|kv| serde_json::from_slice::<ClaimRecord>(&kv.value).ok());
        let holder = holder.map_or_else(|| "(none)".to_owned(), |claim| claim.host_name);
        Err(DirectoryError::Fenced { holder })
    }

    /// Notes when something was changed about a device that was claimed at `epoch` (VOLUME-RECORD-4).
    fn note_change(&self, device: Uuid, epoch: i64, changed: i64) {
        self.state(|state| {
            let held = state.claims.get_mut(&device).filter(|held| held.epoch == epoch);
            held.into_iter().for_each(|held| held.changed = changed);
        });
    }

    /// Nothing was changed, since it was asked for in a session that has ended (SESSION-5).
    pub(super) fn session_ended(&self) -> DirectoryError {
        self.trouble.notify();
        DirectoryError::Unreachable { reason: "the session with it has just ended".to_owned() }
    }

    fn fenced(&self, device: Uuid) -> DirectoryError {
        let view = self.state(|state| state.view.clone());
        let holder = view.claims.get(&device).map(|claim| claim.host_name.clone());
        DirectoryError::Fenced { holder: holder.unwrap_or_else(|| "(none)".to_owned()) }
    }
}
