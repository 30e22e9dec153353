//! This host's parts of tenants' quotas, kept by the rules of `grants.rs`. A host that is alone has all of them.
//!
//! Writes never wait for any of this: they are bounded by what was granted. While the directory is away
//! nothing changes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use control::ServiceError;
use directory::{DirectoryError, GrantsRecord, Regrant, View};
use tokio::sync::MutexGuard;
use tokio::time::Instant;
use uuid::Uuid;

use super::allowance::Holding;
use super::division::Divided;
use super::grants::{self, Own};
use super::state::State;

/// Pause between two looks at the grants.
const ROUND: Duration = Duration::from_secs(1);
/// The same, after something has changed.
const ROUND_IN_NEED: Duration = Duration::from_millis(100);
/// After so many looks those of hosts that are gone are looked for: that is a look at all volumes.
const GONE_ROUNDS: u32 = 10;
/// Time after which an unused part goes back.
const IDLE: Duration = Duration::from_secs(30);
/// Attempts at the start, while other hosts change the same.
const FIRST_ROUNDS: u32 = 10;

/// State that is kept from round to round.
#[derive(Default)]
pub(super) struct Granting {
    tenants: tokio::sync::Mutex<Vec<Growth>>,
    /// True if the directory knows what this host's devices held when it started (GRANT-4).
    is_accounted: AtomicBool,
}

/// The space that a tenant held in the last round, and the time since which it has not grown.
#[derive(Clone, Copy)]
pub(super) struct Growth {
    used: u64,
    since: Instant,
}

/// The record of a tenant's grants, and the hosts in it.
struct Recorded {
    grants: GrantsRecord,
    other_is_short: bool,
    gone: Vec<Uuid>,
}

/// Keeps the grants for as long as the server runs.
pub(super) async fn keep(state: Arc<State>) {
    if state.is_alone() {
        return;
    }
    for round in 1_u32.. {
        // A core that does not answer has ended, and the server ends.
        let Ok(changed) = state.regrant(round.is_multiple_of(GONE_ROUNDS)).await else { return };
        tokio::time::sleep(if changed { ROUND_IN_NEED } else { ROUND }).await;
    }
}

impl State {
    fn is_alone(&self) -> bool {
        self.membership.address.is_none()
    }

    /// Returns true if records of volumes may become this host's: others know what it holds (GRANT-4).
    pub(super) fn is_accounted(&self) -> bool {
        self.quotas.holdings().is_empty()
            || self.quotas.granting().is_accounted.load(Ordering::Relaxed)
    }

    /// Has this host know for the first time what it may hold, as far as the directory is there.
    pub(super) async fn first_grants(&self) -> Result<(), ServiceError> {
        if self.is_alone() {
            let holdings = self.quotas.holdings().all();
            holdings.iter().for_each(|holding| holding.set_bound(holding.quota_blocks()));
            self.quotas.granting().is_accounted.store(true, Ordering::Relaxed);
            return self.divide().await.map(drop);
        }
        for _ in 0..FIRST_ROUNDS {
            self.regrant(false).await?;
            if self.is_accounted() || self.view().cut_off.is_some() {
                break;
            }
            tokio::time::sleep(ROUND_IN_NEED).await;
        }
        if !self.is_accounted() {
            tracing::warn!("what tenants may hold here is not known yet: writes of more fail");
        }
        Ok(())
    }

    /// A device has come, and with it what its volumes hold: a fact, which counts at once (GRANT-1), and which
    /// others are to know before records of its volumes become this host's (GRANT-4).
    pub(super) async fn account_for_more(&self) -> Result<(), ServiceError> {
        if self.quotas.holdings().is_empty() || self.is_alone() {
            return Ok(());
        }
        let tenants = self.unaccounted().await;
        let divided = self.divide().await?;
        for (holding, divided) in self.quotas.holdings().all().iter().zip(&divided) {
            holding.set_bound(holding.bound().max(divided.given));
        }
        drop(tenants);
        self.regrant(false).await.map(drop)
    }

    /// Begins a change of the space that this host holds, or of its bounds: other hosts have to know it
    /// before records become this host's (GRANT-4). While the guard is held no grant changes.
    pub(super) async fn unaccounted(&self) -> MutexGuard<'_, Vec<Growth>> {
        let tenants = self.quotas.granting().tenants.lock().await;
        self.quotas.granting().is_accounted.store(false, Ordering::Relaxed);
        tenants
    }

    /// Looks at the grants of all tenants, and asks for more or gives back. Whether anything has changed.
    async fn regrant(&self, looks_for_gone: bool) -> Result<bool, ServiceError> {
        let mut tenants = self.quotas.granting().tenants.lock().await;
        let divided = self.divide().await?;
        let (now, holdings) = (Instant::now(), self.quotas.holdings().all());
        for (holding, divided) in holdings.iter().zip(&divided).skip(tenants.len()) {
            // What it holds came with the devices, or was there before it was bounded.
            holding.set_bound(divided.given);
            tenants.push(Growth { used: divided.used, since: now });
        }
        let (mut changed, mut all) = (false, true);
        for (number, (growth, divided)) in tenants.iter_mut().zip(&divided).enumerate() {
            if divided.used > growth.used {
                growth.since = now;
            }
            growth.used = divided.used;
            let is_idle = now - growth.since >= IDLE;
            match self.regrant_one(number, *divided, is_idle, looks_for_gone).await? {
                Ok(Some(is_done)) => {
                    changed = true;
                    all &= is_done;
                }
                Ok(None) => {}
                Err(error) => {
                    all = false;
                    tracing::debug!("what tenants may hold stays as it is: {error}");
                    if matches!(error, DirectoryError::Unreachable { .. }) {
                        // Nor would it answer for the others.
                        break;
                    }
                }
            }
        }
        if changed {
            self.divide().await?;
        }
        if all {
            self.quotas.granting().is_accounted.store(true, Ordering::Relaxed);
        }
        Ok(changed)
    }

    /// The same for one. `None`: all may stay; otherwise whether the change was made.
    async fn regrant_one(
        &self,
        number: usize,
        divided: Divided,
        is_idle: bool,
        looks_for_gone: bool,
    ) -> Result<Result<Option<bool>, DirectoryError>, ServiceError> {
        let holding = &self.quotas.holdings().all()[number];
        let recorded = match self.recorded(holding, looks_for_gone) {
            Ok(recorded) => recorded,
            Err(error) => return Ok(Err(error)),
        };
        let Recorded { grants: before, other_is_short, gone } = recorded;
        let (host, bound) = (self.membership.id, holding.bound());
        let session = self.membership.describe(|_| {}).session;
        let (quota, used) = (holding.quota_blocks(), divided.used);
        let own = Own { host, session, quota, bound, used, is_idle, other_is_short };
        let mut grant = own.wish(&grants::without(&before, &gone));
        if grant.blocks < bound {
            // GRANT-2. What was written meanwhile stays granted.
            holding.set_bound(grant.blocks);
            let given = self.divide().await?[number].given;
            grant.blocks = grant.blocks.max(given);
            holding.set_bound(grant.blocks);
        }
        let after = grants::with(&grants::without(&before, &gone), (host, grant));
        if after == before && grant.blocks == bound {
            return Ok(Ok(None));
        }
        let change = Regrant { owner: holding.owner.clone(), before, after, gone };
        let made = self.membership.directory.regrant(change).await;
        if made == Ok(true) {
            tracing::debug!(
                tenant = holding.owner,
                used,
                before = bound,
                after = grant.blocks,
                "granted"
            );
            holding.set_bound(grant.blocks);
        }
        Ok(made.map(Some))
    }

    /// The directory's record of a tenant's grants. The view is not kept: see `follow.rs`.
    fn recorded(
        &self,
        holding: &Holding,
        looks_for_gone: bool,
    ) -> Result<Recorded, DirectoryError> {
        let view = self.view();
        if let Some(reason) = &view.cut_off {
            return Err(DirectoryError::Unreachable { reason: reason.to_string() });
        }
        let grants = view.grants.get(&holding.owner).map(|grants| GrantsRecord::clone(grants));
        let grants = grants.unwrap_or_default();
        let other_is_short = grants.hosts.iter().any(|(host, grant)| {
            *host != self.membership.id && grant.is_short && view.hosts.contains_key(host)
        });
        let hosts = grants.hosts.keys().filter(|_| looks_for_gone).copied();
        let gone = hosts.filter(|host| is_gone(&view, *host, &holding.owner)).collect();
        Ok(Recorded { grants, other_is_short, gone })
    }
}

/// Returns true if a host holds nothing of `owner` for sure (GRANT-4).
fn is_gone(view: &View, host: Uuid, owner: &str) -> bool {
    let mut claims = view.claims.values();
    let mut volumes = view.volumes.values();
    !view.hosts.contains_key(&host)
        && !claims.any(|claim| claim.host == host)
        && !volumes.any(|v| v.host == host && v.owner.as_deref() == Some(owner))
}
