//! Changes that are admitted by what a tenant has on all hosts.
//!
//! - QUOTA-1: each change to what a tenant's volumes count writes the key `tenants/NAME` in its
//!   transaction: an operator's, too, and one that records what a device turns out to hold. One that is
//!   judged compares the key, too. So each other change is before it or after it, whichever host makes it.
//! - QUOTA-2: it is judged by a view that shows all changes up to the one that wrote the key last. If
//!   another comes between, it is judged again.

use std::time::Duration;

use crate::{Compare, Op, document};

use super::Node;
use crate::VolumeRecord;
use crate::World;
use crate::sabotage::{Sabotage, broken};
use crate::{Admit, DirectoryError};

/// Longest wait for the view before a change.
const CATCH_UP_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest wait for it while the change is judged, when others wait for the host that makes it: less than
/// for an answer of etcd. What came since the change was prepared is about to be seen.
const JUDGE_TIMEOUT: Duration = Duration::from_secs(3);

impl<W: World> Node<W> {
    /// QUOTA-1: what belongs to a change of what `volume` counts, if it is a tenant's.
    pub(super) fn recount(&self, volume: &VolumeRecord) -> Option<Op> {
        let owner = volume.owner.as_deref()?;
        Some(Op::Put { key: self.keys.tenant(owner), value: document(&volume.id), lease: None })
    }

    /// Waits until the view shows what `owner` was given so far.
    ///
    /// # Errors
    /// It does not in time.
    pub async fn catch_up(&self, owner: &str) -> Result<(), DirectoryError> {
        self.show_all_up_to(&self.keys.tenant(owner), CATCH_UP_TIMEOUT).await.map(drop)
    }

    /// QUOTA-2: waits until the view shows all up to the last change of `key`; the revision of that.
    async fn show_all_up_to(&self, key: &str, patience: Duration) -> Result<i64, DirectoryError> {
        let connection = self.connection()?;
        let revision = self.get(&connection, key).await?.map_or(0, |kv| kv.mod_revision);
        if self.state(|state| state.seen) < revision {
            tracing::debug!(key, "waiting to see what other hosts changed");
            self.seen_within(patience, revision).await;
        }
        if self.state(|state| state.seen) < revision {
            let reason = "what other hosts changed is not seen here yet".to_owned();
            return Err(DirectoryError::Unreachable { reason });
        }
        Ok(revision)
    }

    /// QUOTA-1 and QUOTA-2: judges a change. What makes it fail if another of the tenant comes between.
    pub(super) async fn judge(
        &self,
        volume: &VolumeRecord,
        admit: Option<&Admit>,
    ) -> Result<Option<Compare>, DirectoryError> {
        let (Some(admit), Some(owner)) = (admit, &volume.owner) else { return Ok(None) };
        let key = self.keys.tenant(owner);
        let revision = self.show_all_up_to(&key, JUDGE_TIMEOUT).await?;
        let view = self.state(|state| state.view.clone());
        admit(&view).map_err(|detail| DirectoryError::NotAdmitted { detail })?;
        if broken(Sabotage::JudgeAlone) {
            return Ok(None);
        }
        Ok(Some(Compare::ModRevision(key, revision)))
    }
}
