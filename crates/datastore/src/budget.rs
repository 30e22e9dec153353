//! A bound on the memory of requests and replies in flight, over all connections.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The memory that connections may hold together beyond the buffers that each has anyway.
#[derive(Clone, Debug)]
pub struct Budget {
    limit: usize,
    used: Arc<AtomicUsize>,
}

/// Memory taken from a [`Budget`]; dropping it gives the memory back.
#[derive(Debug)]
pub struct Reserved {
    len: usize,
    budget: Budget,
}

impl Budget {
    /// A budget of `limit` bytes.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self { limit, used: Arc::default() }
    }

    /// Bytes that are taken.
    #[must_use]
    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// An empty share of this budget.
    #[must_use]
    pub fn share(&self) -> Reserved {
        Reserved { len: 0, budget: self.clone() }
    }
}

impl Reserved {
    /// Changes the share to `len` bytes. A smaller one always succeeds; false: there is not enough left, and the
    /// share stays as it is.
    #[must_use]
    pub fn resize(&mut self, len: usize) -> bool {
        let Budget { limit, used } = &self.budget;
        if len <= self.len {
            used.fetch_sub(self.len - len, Ordering::Relaxed);
            self.len = len;
            return true;
        }
        let more = len - self.len;
        let fits = |used: usize| used.checked_add(more).filter(|all| all <= limit);
        let taken = used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_ok();
        if taken {
            self.len = len;
        }
        taken
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.len, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_never_exceed_the_budget_and_come_back() {
        let budget = Budget::new(100);
        let (mut a, mut b) = (budget.share(), budget.share());
        assert!(a.resize(70) && !b.resize(31) && b.resize(30));
        assert_eq!(budget.used(), 100);
        assert!(a.resize(10) && b.resize(90), "what one gives back another may take");
        assert!(!a.resize(usize::MAX), "no overflow");
        drop(b);
        assert_eq!(budget.used(), 10);
        drop(a);
        assert_eq!(budget.used(), 0);
    }
}
