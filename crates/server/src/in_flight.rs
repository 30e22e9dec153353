//! Limits the changes of one tenant that are under way at a time on this host.
//!
//! - IN-FLIGHT-1: a tenant has at most [`CHANGES_MAX`] of them; further ones are refused at once. Changes to
//!   what lies on a device are made one behind the other, in the order in which they came: so a change waits
//!   there for no more than that of each other tenant, however many one asks for at once.
//! - IN-FLIGHT-2: a change counts until it is done, even if its client has gone.
//!
//! Operators have no such bound.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use control::{Caller, ServiceError};

/// Enough for a script that makes some volumes at once; few enough that the last of them is soon done.
const CHANGES_MAX: u32 = 8;

/// Changes under way, by tenant; a tenant without any has no entry.
#[derive(Clone, Default)]
pub(super) struct InFlight(Arc<Mutex<BTreeMap<String, u32>>>);

/// A change under way, until this is dropped.
pub(super) struct Turn {
    all: InFlight,
    tenant: String,
}

impl InFlight {
    /// Begins a change of `caller`. An operator's has no turn.
    pub(super) fn begin(&self, caller: &Caller) -> Result<Option<Turn>, ServiceError> {
        let Caller::Tenant(tenant) = caller else { return Ok(None) };
        self.counts(|counts| {
            let count = counts.entry(tenant.name.clone()).or_default();
            if *count >= CHANGES_MAX {
                return Err(ServiceError::TooManyChanges { max: CHANGES_MAX });
            }
            *count += 1;
            Ok(Some(Turn { all: self.clone(), tenant: tenant.name.clone() }))
        })
    }

    fn counts<T>(&self, look: impl FnOnce(&mut BTreeMap<String, u32>) -> T) -> T {
        // A panic elsewhere leaves the counts whole: each change is one entry's.
        look(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.all.counts(|counts| {
            if let Some(count) = counts.get_mut(&self.tenant) {
                *count -= 1;
            }
            counts.retain(|_, count| *count > 0);
        });
    }
}

#[cfg(test)]
mod tests {
    use control::{Quota, Tenant};

    use super::*;

    fn tenant(name: &str) -> Caller {
        Caller::Tenant(Arc::new(Tenant { name: name.to_owned(), quota: Quota::default() }))
    }

    #[test]
    fn a_tenant_has_so_many_changes_at_a_time_and_takes_none_from_others() {
        let all = InFlight::default();
        let begin = |name: &str| all.begin(&tenant(name));
        let mut turns: Vec<Turn> =
            (0..CHANGES_MAX).map(|_| begin("a").expect("room").expect("a turn")).collect();
        let refused = begin("a").err().expect("no room");
        assert_eq!(refused, ServiceError::TooManyChanges { max: CHANGES_MAX });
        let other = begin("b").expect("others have their own");
        turns.pop();
        turns.extend(begin("a").expect("one is done"));
        assert!(begin("a").is_err());
        drop((turns, other));
        assert_eq!(all.counts(|counts| counts.len()), 0, "nothing is kept of who has none");
    }

    #[test]
    fn operators_have_no_bound() {
        let all = InFlight::default();
        for _ in 0..1000 {
            assert!(matches!(all.begin(&Caller::Operator("ops".into())), Ok(None)));
        }
    }
}
