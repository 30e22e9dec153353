//! Counts of the connections that were let in, by volume and by tenant, and their limits (CROWD-4).
//!
//! - GUEST-1: a tenant that has [`OF_CONTROLLER`] gets no more than are left, whatever volumes it has: half
//!   of all if it is alone, and there are always some for one that has fewer.
//! - GUEST-2: a tenant's volume that has as many leaves, besides, as many as the tenant has: a third of all
//!   if it is alone. So its hosts leave some to those of the tenant's other volumes.
//! - GUEST-3: a volume without a tenant counts by itself, as a tenant does. Such volumes are the operator's,
//!   and the operator creates as many as are wanted: where no volume has a tenant, each has what a tenant
//!   has, and together they have all.

use std::collections::BTreeMap;
use std::rc::Rc;

use uuid::Uuid;

/// Connections of a controller that has 64 I/O queues.
pub(super) const OF_CONTROLLER: usize = 65;

/// Those that were let in to a volume.
struct OfVolume {
    count: usize,
    /// The tenant that owns it, for life.
    tenant: Option<Rc<str>>,
}

/// The connections of a core that were let in.
#[derive(Default)]
pub(super) struct Guests {
    of_volumes: BTreeMap<Uuid, OfVolume>,
    of_tenants: BTreeMap<Rc<str>, usize>,
    count: usize,
}

impl Guests {
    /// All of them.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Those of `volume`.
    pub(super) fn count_of(&self, volume: Uuid) -> usize {
        self.of_volumes.get(&volume).map_or(0, |of_volume| of_volume.count)
    }

    /// A connection is let in to `volume`, of `tenant` if it has one.
    pub(super) fn add(&mut self, volume: Uuid, tenant: Option<&str>) {
        let new = || OfVolume { count: 0, tenant: tenant.map(Rc::from) };
        let of_volume = self.of_volumes.entry(volume).or_insert_with(new);
        of_volume.count += 1;
        if let Some(tenant) = &of_volume.tenant {
            *self.of_tenants.entry(tenant.clone()).or_default() += 1;
        }
        self.count += 1;
    }

    /// One of `volume` has ended.
    pub(super) fn remove(&mut self, volume: Uuid) {
        let Some(of_volume) = self.of_volumes.get_mut(&volume) else { return };
        of_volume.count -= 1;
        self.count -= 1;
        if let Some(tenant) = &of_volume.tenant
            && let Some(count) = self.of_tenants.get_mut(tenant)
        {
            *count -= 1;
            if *count == 0 {
                self.of_tenants.remove(tenant);
            }
        }
        if of_volume.count == 0 {
            self.of_volumes.remove(&volume);
        }
    }

    /// Returns true if `volume`, of `tenant` if it has one, may have another of `max` places.
    pub(super) fn may_add(&self, volume: Uuid, tenant: Option<&str>, max: usize) -> bool {
        let (own, left) = (self.count_of(volume), max.saturating_sub(self.count));
        let may_have = |count: usize, left: usize| count < OF_CONTROLLER || count < left;
        let Some(tenant) = tenant else { return may_have(own, left) };
        let of_tenant = self.of_tenants.get(tenant).copied().unwrap_or(0);
        may_have(of_tenant, left) && may_have(own, left.saturating_sub(of_tenant))
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.count == 0 && self.of_volumes.is_empty() && self.of_tenants.is_empty()
    }
}

#[cfg(test)]
mod tests;
