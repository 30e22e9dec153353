//! Division of a tenant's quota among hosts.
//!
//! The directory has a record of it. A change has to name the record that it is based on
//! (`directory::Regrant`).
//! - GRANT-1: a grant becomes more only if all grants together are then within the quota. Two cases are facts that
//!   cannot be refused: volumes that came with a device count for the host that serves it now, and a quota
//!   may be lowered. Then no host adds anything until what is granted is within the quota again.
//! - GRANT-2: what a host lets its cores hold (its bound) is never more than its grant: the bound is lowered, and
//!   found to be, before the grant is; it is raised behind a successful change of the record by this process. What
//!   came of a change whose answer was lost need therefore not be known.
//! - GRANT-3: a process makes its host's grant its own by writing its session into it, after it claimed its
//!   devices. Until then it adds nothing.
//! - GRANT-4: the grant of a host that is gone stays: its volumes hold an unknown number of blocks. It goes when
//!   the host has no claim and no volume of the tenant has its record there: the devices are served by
//!   others, which counted what they hold before they made the records theirs, or the volumes are deleted. By
//!   GRANT-3 a view that shows the grant shows the claims of the process that has it.
//!
//! A host asks for half of what is free while it has little left, so others find something, too. One that has
//! next to nothing left and finds nothing says so in the record; others then give half of what they do not
//! use. What was not used for a while goes back by itself.

use directory::{GrantRecord, GrantsRecord};
use units::BLOCK_SIZE;
use uuid::Uuid;

/// A grain is so small a part of what each host had if all had the same. A host with less has next to
/// nothing.
const GRAINS: u64 = 32;
/// A host has little left when it is less than so many grains,
const LITTLE_GRAINS: u64 = 4;
/// or than this: what fast drives write while the directory is asked, many times over.
const LITTLE_BLOCKS: u64 = (64 << 30) / BLOCK_SIZE as u64;

/// A host's knowledge of a tenant when it looks at the grants.
#[derive(Clone, Copy, Debug)]
pub(super) struct Own {
    pub(super) host: Uuid,
    pub(super) session: Uuid,
    pub(super) quota: u64,
    /// The most that its cores may hold.
    pub(super) bound: u64,
    /// The blocks that they hold.
    pub(super) used: u64,
    /// True if that has not grown for a while.
    pub(super) is_idle: bool,
    /// True if another host that lives is short.
    pub(super) other_is_short: bool,
}

impl Own {
    /// The grant that the host wishes. If it is less than the bound, the bound is to be lowered first.
    pub(super) fn wish(&self, record: &GrantsRecord) -> GrantRecord {
        let of_others = record.hosts.iter().filter(|(host, _)| **host != self.host);
        let (hosts, others) = of_others.fold((1_u64, 0_u64), |(hosts, sum), (_, grant)| {
            (hosts + 1, sum.saturating_add(grant.blocks))
        });
        let has = match record.hosts.get(&self.host) {
            Some(grant) if grant.session == self.session => self.bound,
            // GRANT-3.
            Some(grant) => grant.blocks,
            None => 0,
        };
        let has = has.max(self.used);
        let grain = (self.quota / hosts / GRAINS).max(1);
        let little = (LITTLE_GRAINS * grain).min(LITTLE_BLOCKS).max(grain);
        let left = has - self.used;
        let blocks = match self.quota.checked_sub(others.saturating_add(has)) {
            // GRANT-1.
            None => {
                let excess = others.saturating_add(has) - self.quota;
                has.saturating_sub(excess).max(self.used)
            }
            Some(free) if left < grain || (left < little && !self.other_is_short) => {
                has + (free / 2).max(free.min(2 * grain))
            }
            Some(free) if self.other_is_short && free < grain && left >= 2 * grain => {
                self.used + (left / 2).max(grain)
            }
            Some(_) if self.is_idle && left > 2 * little => self.used + little,
            Some(_) => has,
        };
        GrantRecord { blocks, session: self.session, is_short: blocks - self.used < grain }
    }
}

/// The record with a host's grant.
pub(super) fn with(record: &GrantsRecord, (host, grant): (Uuid, GrantRecord)) -> GrantsRecord {
    let mut after = record.clone();
    after.hosts.insert(host, grant);
    after
}

/// The record without the grants of hosts that are gone.
pub(super) fn without(record: &GrantsRecord, gone: &[Uuid]) -> GrantsRecord {
    let mut after = record.clone();
    after.hosts.retain(|host, _| !gone.contains(host));
    after
}

#[cfg(test)]
mod tests;
