//! How much of the devices each tenant's volumes may hold together.
//!
//! - H1: what cores may let a tenant hold is never more, all together, than this host's bound: limits are lowered,
//!   and found to be, before others are raised. So writes do not exceed the bound: no
//!   host is let in before the first division. What is being deleted counts no more. The bound is the tenant's
//!   quota, or of a host among others its part of that (`granting.rs`).
//! - H2: what is left is divided equally, and anew every [`ROUND`]; every [`ROUND_IN_NEED`] while somebody
//!   who has little left holds more each time. A core that has used up its part before refuses writes that
//!   others could still take.
//! - H3: a round is one question to each core, and two orders where something has changed. Cores share
//!   nothing, and a server without such quotas asks nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use control::ServiceError;
use dataplane::Allotment;
use units::BLOCK_SIZE;

use super::message::CoreMessage;
use super::state::{CoreLink, State};

/// Pause between two divisions.
const ROUND: Duration = Duration::from_secs(1);
/// The same, when less than [`LITTLE_BLOCKS`] are left and become fewer.
const ROUND_IN_NEED: Duration = Duration::from_millis(100);
/// As much as fast drives write in a [`ROUND`], several times over.
const LITTLE_BLOCKS: u64 = (64 << 30) / BLOCK_SIZE as u64;

/// What a tenant's volumes may hold together.
#[derive(Debug)]
pub(super) struct Holding {
    pub(super) owner: String,
    /// On all hosts.
    pub(super) quota_blocks: u64,
    /// On this host: read and written by whoever divides.
    bound: AtomicU64,
}

impl Holding {
    /// A tenant's, of which this host has no part yet.
    pub(super) fn new(owner: String, quota_blocks: u64) -> Self {
        Self { owner, quota_blocks, bound: AtomicU64::new(0) }
    }

    pub(super) fn bound(&self) -> u64 {
        self.bound.load(Ordering::Relaxed)
    }

    pub(super) fn set_bound(&self, blocks: u64) {
        self.bound.store(blocks, Ordering::Relaxed);
    }
}

/// What came of a division, of one tenant.
#[derive(Clone, Copy, Debug)]
pub(super) struct Divided {
    /// What its volumes held when it began.
    pub(super) used: u64,
    /// What they could still add.
    pub(super) left: u64,
    /// What the cores may hold since.
    pub(super) given: u64,
}

/// Divides for as long as the server runs. The cores know the tenants.
pub(super) async fn keep(state: Arc<State>) {
    let mut before: Vec<u64> = state.holdings.iter().map(Holding::bound).collect();
    while !state.holdings.is_empty() {
        // A core that does not answer has ended, and the server ends.
        let Ok(divided) = state.divide().await else { return };
        let left: Vec<u64> = divided.iter().map(|tenant| tenant.left).collect();
        let mut pause = ROUND;
        for ((holding, left), before) in state.holdings.iter().zip(&left).zip(&before) {
            if *left < LITTLE_BLOCKS && left < before {
                pause = ROUND_IN_NEED;
            }
            say_if_full(holding, *before, *left);
        }
        before = left;
        tokio::time::sleep(pause).await;
    }
}

fn say_if_full(Holding { owner, quota_blocks, .. }: &Holding, before: u64, left: u64) {
    let (tenant, quota_bytes) = (owner, quota_blocks * BLOCK_SIZE as u64);
    match (before, left) {
        (1.., 0) => {
            tracing::warn!(tenant, quota_bytes, "holds all that it may: writes of more fail");
        }
        (0, 1..) => tracing::info!(tenant, quota_bytes, "holds less than it may again"),
        _ => {}
    }
}

impl State {
    /// Tells the cores whose volumes are bounded, and divides for the first time.
    pub(super) async fn bound_tenants(&self) -> Result<(), ServiceError> {
        if self.holdings.is_empty() {
            return Ok(());
        }
        for core in &self.cores {
            let owners = self.holdings.iter().map(|holding| holding.owner.clone()).collect();
            let told = core.mailbox.send(CoreMessage::BoundTenants { owners });
            told.map_err(|_| ServiceError::Unavailable)?;
        }
        self.first_grants().await
    }

    /// Divides among the cores what each tenant may still add here (H1, H2).
    pub(super) async fn divide(&self) -> Result<Vec<Divided>, ServiceError> {
        // One at a time: what another finds lowered must not be raised meanwhile.
        let _alone = self.dividing.lock().await;
        let bounds: Vec<u64> = self.holdings.iter().map(Holding::bound).collect();
        // By core, then by tenant.
        let mut parts = Vec::new();
        for core in &self.cores {
            parts.push(core.allot(Vec::new()).await?);
        }
        let mut wanted = vec![Vec::new(); self.cores.len()];
        let mut divided = Vec::new();
        for (tenant, bound) in bounds.iter().enumerate() {
            let used: Vec<u64> = parts.iter().map(|core| core[tenant].used).collect();
            let sum = used.iter().sum();
            let more = bound.saturating_sub(sum);
            divided.push(Divided { used: sum, left: more, given: 0 });
            shares(&used, more).zip(&mut wanted).for_each(|(share, core)| core.push(share));
        }
        for ((core, parts), wanted) in self.cores.iter().zip(&mut parts).zip(&wanted) {
            let lower: Vec<_> = changes(parts, wanted, |limit, wanted| wanted < limit).collect();
            if !lower.is_empty() {
                *parts = core.allot(lower).await?;
            }
        }
        let given = |tenant: usize| parts.iter().map(|core| core[tenant].limit).sum::<u64>();
        divided.iter_mut().zip(0..).for_each(|(of, tenant)| of.given = given(tenant));
        let mut spare: Vec<u64> =
            bounds.iter().zip(&divided).map(|(bound, of)| bound.saturating_sub(of.given)).collect();
        for ((core, parts), wanted) in self.cores.iter().zip(&parts).zip(&wanted) {
            let mut higher = Vec::new();
            for (tenant, wanted) in changes(parts, wanted, |limit, wanted| wanted > limit) {
                let before = parts[tenant].limit;
                let more = (wanted - before).min(spare[tenant]);
                spare[tenant] -= more;
                divided[tenant].given += more;
                higher.push((tenant, before + more));
            }
            if !higher.is_empty() {
                core.allot(higher).await?;
            }
        }
        Ok(divided)
    }
}

impl CoreLink {
    async fn allot(&self, limits: Vec<(usize, u64)>) -> Result<Vec<Allotment>, ServiceError> {
        self.ask(|answer| CoreMessage::Allot { limits, answer }).await
    }
}

/// The limits by which each core gets an equal part of what is left, beside what it has `used`.
fn shares(used: &[u64], left: u64) -> impl Iterator<Item = u64> {
    let count = used.len().max(1) as u64;
    let odd = left % count;
    let share = move |(used, core): (&u64, u64)| used + left / count + u64::from(core < odd);
    used.iter().zip(0..).map(share)
}

/// The tenants whose limits are to be others, with these.
fn changes(
    parts: &[Allotment],
    wanted: &[u64],
    is_one: impl Fn(u64, u64) -> bool,
) -> impl Iterator<Item = (usize, u64)> {
    let both = parts.iter().zip(wanted).enumerate();
    let one = both.filter(move |(_, (part, wanted))| is_one(part.limit, **wanted));
    one.map(|(tenant, (_, wanted))| (tenant, *wanted))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_add_up_to_the_bound() {
        let used = [7, 0, 3];
        for left in [0, 1, 2, 3, 100] {
            let shares: Vec<u64> = shares(&used, left).collect();
            assert_eq!(shares.iter().sum::<u64>(), 10 + left);
            assert!(shares.iter().zip(&used).all(|(share, used)| share >= used));
        }
    }
}
