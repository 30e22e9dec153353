//! Rate-limits the recorded changes of a caller whose changes are often refused.
//!
//! - API-REFUSAL-1: each caller has a stock of [`STOCK`], which fills by [`PER_SECOND`]. A refused change
//!   costs one. While the stock is used up, further changes are refused without a line: a caller cannot
//!   fill the audit log with changes that it may not make. A change that is made costs nothing.
//! - API-REFUSAL-2: what was refused without a line is counted, and the caller's next line says how many
//!   there were.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use tokio::time::Instant;

/// More than a script has refused at once that is not wrong throughout.
const STOCK: f64 = 32.0;
/// Two lines each, of 6 KiB together at most.
const PER_SECOND: f64 = 1.0;

/// The remaining stock of each caller, by its name in the list of users.
#[derive(Default)]
pub(crate) struct Refusals(Mutex<BTreeMap<String, Account>>);

struct Account {
    stock: f64,
    since: Instant,
    left_out: u64,
}

impl Refusals {
    /// Admits a change that `caller` asks for, unless it is rate-limited. Returns the number of its changes
    /// that were refused without a line since the last admitted one.
    pub(crate) fn admit(&self, caller: &str, now: Instant) -> Option<u64> {
        self.account(caller, now, |account| {
            if account.stock < 1.0 {
                account.left_out += 1;
                return None;
            }
            Some(std::mem::take(&mut account.left_out))
        })
    }

    /// A change of `caller` was refused.
    pub(crate) fn note(&self, caller: &str, now: Instant) {
        self.account(caller, now, |account| account.stock = (account.stock - 1.0).max(0.0));
    }

    fn account<T>(&self, caller: &str, now: Instant, look: impl FnOnce(&mut Account) -> T) -> T {
        // A panic elsewhere leaves the accounts whole.
        let mut accounts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !accounts.contains_key(caller) {
            let new = Account { stock: STOCK, since: now, left_out: 0 };
            accounts.insert(caller.to_owned(), new);
        }
        let account = accounts.get_mut(caller).expect("it was just put there");
        let passed = now.saturating_duration_since(account.since).as_secs_f64();
        account.stock = (account.stock + passed * PER_SECOND).min(STOCK);
        account.since = now;
        look(account)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn who_is_refused_too_often_is_put_off_and_counted() {
        let (refusals, start) = (Refusals::default(), Instant::now());
        for _ in 0..32 {
            assert_eq!(refusals.admit("a", start), Some(0));
            refusals.note("a", start);
        }
        for _ in 0..5 {
            assert_eq!(refusals.admit("a", start), None);
        }
        assert_eq!(refusals.admit("b", start), Some(0), "no other caller is");
        let later = start + Duration::from_millis(1100);
        assert_eq!(refusals.admit("a", later), Some(5));
        refusals.note("a", later);
        assert_eq!(refusals.admit("a", later), None);
    }

    #[test]
    fn changes_that_are_made_cost_nothing_and_time_heals() {
        let (refusals, start) = (Refusals::default(), Instant::now());
        for _ in 0..1000 {
            assert_eq!(refusals.admit("a", start), Some(0));
        }
        (0..40).for_each(|_| refusals.note("a", start));
        let late = start + Duration::from_secs(3600);
        // No more than the stock, however long it was.
        for _ in 0..32 {
            assert_eq!(refusals.admit("a", late), Some(0));
            refusals.note("a", late);
        }
        assert_eq!(refusals.admit("a", late), None);
    }
}
