//! Limits on the space that the volumes of each tenant hold together.
//!
//! - TENANT-ALLOWANCE-1: what cores may let a tenant hold is never more, all together, than this host's bound: limits are
//!   lowered, and found to be, before others are raised. So writes do not exceed the bound: no host is let in before the
//!   first division. What is being deleted counts no more. The bound is the tenant's quota, or of a host among others its
//!   part of that (`granting.rs`). A tenant that is bounded while the server runs exceeds it by what its writes under way
//!   add just then.
//! - TENANT-ALLOWANCE-2: the rest is divided equally, and again every [`ROUND`]; every [`ROUND_IN_NEED`] while a tenant
//!   that has little left holds more each time. A core that has used up its part before refuses writes that others could
//!   still take.
//! - TENANT-ALLOWANCE-3: a round is one question to each core, and two orders where something has changed (`division.rs`).
//!   Cores share nothing, and a server without such quotas asks nothing.
//! - TENANT-ALLOWANCE-4: a tenant has one number for as long as the server runs, here and in all cores, and none goes:
//!   cores know it before it is divided.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use control::ServiceError;
use data_core::CoreMessage;
use dataplane::Allotment;
use units::BLOCK_SIZE;

use super::cores::CoreLink;
use super::division::{Divided, Division, Order};
use super::granting::Granting;
use super::state::State;

/// Pause between two divisions.
const ROUND: Duration = Duration::from_secs(1);
/// The same, when less than [`LITTLE_BLOCKS`] are left and become fewer.
const ROUND_IN_NEED: Duration = Duration::from_millis(100);
/// As much as fast drives write in a [`ROUND`], several times over.
const LITTLE_BLOCKS: u64 = (64 << 30) / BLOCK_SIZE as u64;

/// The quota, in blocks, of a tenant that is bounded no more: no device has so many.
const UNBOUNDED: u64 = u64::MAX / BLOCK_SIZE as u64;

/// The space that a tenant may hold, in blocks; `None`: as much as there is.
pub(super) struct BlockQuota {
    pub(super) owner: String,
    pub(super) blocks: Option<u64>,
}

/// The space that a tenant's volumes may hold together.
#[derive(Debug)]
pub(super) struct Holding {
    pub(super) owner: String,
    /// On all hosts.
    quota: AtomicU64,
    /// The bound on this host: read and written by the task that divides.
    bound: AtomicU64,
}

impl Holding {
    /// A tenant's, of which this host has no part yet.
    fn new(owner: String, quota_blocks: u64) -> Self {
        Self { owner, quota: AtomicU64::new(quota_blocks), bound: AtomicU64::new(0) }
    }

    pub(super) fn quota_blocks(&self) -> u64 {
        self.quota.load(Ordering::Relaxed)
    }

    fn set_quota(&self, blocks: Option<u64>) {
        self.quota.store(blocks.unwrap_or(UNBOUNDED), Ordering::Relaxed);
    }

    pub(super) fn bound(&self) -> u64 {
        self.bound.load(Ordering::Relaxed)
    }

    pub(super) fn set_bound(&self, blocks: u64) {
        self.bound.store(blocks, Ordering::Relaxed);
    }
}

/// The tenants whose volumes are bounded, by number (TENANT-ALLOWANCE-4).
#[derive(Debug, Default)]
pub(super) struct Holdings(Mutex<Vec<Arc<Holding>>>);

impl Holdings {
    pub(super) fn is_empty(&self) -> bool {
        self.list().is_empty()
    }

    pub(super) fn all(&self) -> Vec<Arc<Holding>> {
        self.list().clone()
    }

    // A panic elsewhere leaves the list whole: it only gets longer.
    fn list(&self) -> MutexGuard<'_, Vec<Arc<Holding>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes the quotas of known tenants, and returns the new ones that have a quota.
    fn update(&self, quotas: Vec<BlockQuota>) -> Vec<Arc<Holding>> {
        let list = self.list();
        let mut new = Vec::new();
        for BlockQuota { owner, blocks } in quotas {
            match (list.iter().find(|known| known.owner == owner), blocks) {
                (Some(known), _) => known.set_quota(blocks),
                (None, Some(blocks)) => new.push(Arc::new(Holding::new(owner, blocks))),
                (None, None) => {}
            }
        }
        new
    }
}

/// The space that tenants may hold here: the bounded ones, and how what they may still add is divided and granted.
#[derive(Default)]
pub(super) struct Quotas {
    holdings: Holdings,
    /// Held while what they may still add is divided among the cores.
    dividing: tokio::sync::Mutex<()>,
    /// This host's parts of their quotas.
    granting: Granting,
}

impl Quotas {
    pub(super) fn holdings(&self) -> &Holdings {
        &self.holdings
    }

    pub(super) fn granting(&self) -> &Granting {
        &self.granting
    }
}

/// Divides for as long as the server runs. The cores know the tenants.
pub(super) async fn keep(state: Arc<State>) {
    let mut before = Vec::new();
    loop {
        // A core that does not answer has ended, and the server ends.
        let Ok(divided) = state.divide().await else { return };
        let holdings = state.quotas.holdings.all();
        // The new tenants.
        before.extend(holdings.iter().skip(before.len()).map(|holding| holding.bound()));
        let left: Vec<u64> = divided.iter().map(|tenant| tenant.left).collect();
        let mut pause = ROUND;
        for ((holding, left), before) in holdings.iter().zip(&left).zip(&before) {
            if *left < LITTLE_BLOCKS && left < before {
                pause = ROUND_IN_NEED;
            }
            say_if_full(holding, *before, *left);
        }
        before = left;
        tokio::time::sleep(pause).await;
    }
}

fn say_if_full(holding: &Holding, before: u64, left: u64) {
    let (tenant, quota_bytes) = (&holding.owner, holding.quota_blocks() * BLOCK_SIZE as u64);
    match (before, left) {
        (1.., 0) => {
            tracing::warn!(tenant, quota_bytes, "holds all that it may: writes of more fail");
        }
        (0, 1..) => tracing::info!(tenant, quota_bytes, "holds less than it may again"),
        _ => {}
    }
}

impl State {
    /// Bounds tenants by these quotas from now on, and divides by them. Of a tenant that is not among them the quota stays.
    pub(super) async fn bound_tenants(&self, quotas: Vec<BlockQuota>) -> Result<(), ServiceError> {
        let new = self.quotas.holdings.update(quotas);
        if !new.is_empty() {
            self.bound_more(new).await?;
        }
        if self.quotas.holdings.is_empty() {
            return Ok(());
        }
        self.first_grants().await
    }

    /// Tells the cores of tenants whose volumes are bounded, too (TENANT-ALLOWANCE-4).
    async fn bound_more(&self, new: Vec<Arc<Holding>>) -> Result<(), ServiceError> {
        let _no_grants = self.unaccounted().await;
        let _alone = self.quotas.dividing.lock().await;
        for core in self.cores.iter() {
            let owners = new.iter().map(|holding| holding.owner.clone()).collect();
            let told = core.mailbox.send(CoreMessage::BoundTenants { owners });
            told.map_err(|_| ServiceError::Unavailable)?;
        }
        self.quotas.holdings.list().extend(new);
        Ok(())
    }

    /// Divides among the cores what each tenant may still add here (TENANT-ALLOWANCE-1, TENANT-ALLOWANCE-2).
    pub(super) async fn divide(&self) -> Result<Vec<Divided>, ServiceError> {
        // One at a time: what another finds lowered must not be raised meanwhile.
        let _alone = self.quotas.dividing.lock().await;
        let bounds: Vec<u64> =
            self.quotas.holdings.all().iter().map(|holding| holding.bound()).collect();
        if bounds.is_empty() {
            return Ok(Vec::new());
        }
        let mut division = Division::new(bounds, self.cores.len());
        while let Some(Order { core, limits }) = division.next() {
            division.answered(core, self.cores[core].allot(limits).await?);
        }
        Ok(division.outcome())
    }
}

impl CoreLink {
    async fn allot(&self, limits: Vec<(usize, u64)>) -> Result<Vec<Allotment>, ServiceError> {
        self.ask(|answer| CoreMessage::Allot { limits, answer }).await
    }
}
