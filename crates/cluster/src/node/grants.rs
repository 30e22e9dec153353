//! The division of a quota of blocks among hosts.
//!
//! The key `grants/NAME` is changed only by a host that read its latest value, in one transaction: two hosts
//! that divide at once do not both succeed. Releases that know nothing of it leave it as it is.

use crate::{Compare, Op, document};

use super::{Node, decode};
use crate::GrantsRecord;
use crate::World;
use crate::sabotage::{Sabotage, broken};
use crate::store::Store;
use crate::{DirectoryError, Regrant};

impl<W: World> Node<W> {
    /// Divides a quota in another way, if it is still divided as is said. `false`: it is not, or a host lives that must not, and
    /// nothing was changed.
    ///
    /// # Errors
    /// etcd does not answer.
    pub async fn regrant(&self, change: Regrant) -> Result<bool, DirectoryError> {
        let Regrant { owner, before, after, gone } = change;
        let connection = self.connection()?;
        let key = self.keys.grants(&owner);
        let found = self.get(&connection, &key).await?;
        let revision = found.as_ref().map_or(0, |kv| kv.mod_revision);
        let now = found.map(|kv| decode::<GrantsRecord>(&kv.key, &kv.value)).transpose()?;
        if now.unwrap_or_default() != before && !broken(Sabotage::RegrantBlindly) {
            return Ok(false);
        }
        let absent = gone.iter().map(|host| Compare::ModRevision(self.keys.host(*host), 0));
        let mut compare: Vec<Compare> = absent.collect();
        compare.push(Compare::ModRevision(key.clone(), revision));
        compare.push(self.in_session(&connection));
        let put = Op::Put { key: key.clone(), value: document(&after), lease: None };
        let answer = connection.store.txn(&compare, &[put], &[Op::Get(key)]).await;
        let answer = answer.map_err(|error| self.given_up(&connection, error))?;
        let found = answer.first();
        // VOLUME-RECORD-2: the new value was not there before, and no other host writes it.
        let is_own_work = after != before && found.is_some_and(|kv| kv.value == document(&after));
        let is_made = answer.succeeded || is_own_work;
        if is_made {
            self.seen(answer.revision).await;
        }
        Ok(is_made)
    }
}
