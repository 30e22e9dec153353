//! Until when a host may serve what it has claimed, if it is to stop by itself when it is cut off from the directory.
//!
//! ```text
//!  host A    asks          stops    ends
//!  ──────────┼───── after ──┼─grace─┼──────────────────────▶ A's clock
//!            └▶ etcd: A's record is there ... it is gone
//!                                             └▶ B sees that ── after, and a margin ──▶ B may take over
//! ```
//! - TENURE-1: a host counts from *before* it asked for what confirmed it. Its record was there after that, however late
//!   the question was carried out or the answer came.
//! - TENURE-2: [`Term::STOP`] before the end hosts are cut off, so that what is under way at the devices is done when the end
//!   comes, at which no request to a device begins any more.
//! - TENURE-3: a host that saw the record gone after that and waits for [`Term::safe_after`] acts when the other has stopped: the
//!   record was there after the host had asked for the last time, so that was before it was seen gone. Nothing is asked of the
//!   clocks but that neither runs more than 1/[`DRIFT`] faster or slower than the other.
//! - TENURE-4: a tenure that is over stays over, whichever task was the first to notice, until [`Tenure::renew`]. A confirmation
//!   that comes late does not undo it: the task that noticed has cut hosts off, and lets them in again in good order. It is over,
//!   too, when a claim was lost: no confirmation overtakes the task that acts upon that.
//!
//! The proof that the record was gone during all of a wait is in `claiming.rs`. No clock is read
//! and nothing is waited for here.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::BootTime;

/// Oscillators differ by a hundredth of this, and a clock that is being disciplined runs at most 1/2000 faster or slower.
const DRIFT: u32 = 64;
/// For what a host does between its look at the clock and the request to the device.
const MARGIN: Duration = Duration::from_secs(1);
/// Stands for a time of confirmation: it is over, because nothing has confirmed it for too long.
const OVER: u64 = 0;
/// The same, because something was lost.
const LOST: u64 = 1;

/// The time for which a host serves without being confirmed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Term {
    after: Duration,
}

impl Term {
    /// Hosts are cut off so long before the end, at most; never more than an eighth of all.
    pub const STOP: Duration = Duration::from_secs(2);

    /// A host that is not confirmed for `after` serves nothing.
    #[must_use]
    pub fn new(after: Duration) -> Self {
        Self { after }
    }

    /// When hosts are cut off (TENURE-2), from when it was asked on.
    #[must_use]
    pub fn stops_after(self) -> Duration {
        self.after - Self::STOP.min(self.after / 8)
    }

    /// When nothing begins any more.
    #[must_use]
    pub fn ends_after(self) -> Duration {
        self.after
    }

    /// Returns the time for which another host waits from when it saw the record gone (TENURE-3).
    #[must_use]
    pub fn safe_after(self) -> Duration {
        self.after.saturating_add(self.after / DRIFT).saturating_add(MARGIN)
    }
}

/// The right of a host to serve, for a time. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct Tenure(Option<Arc<Limited>>);

#[derive(Debug)]
struct Limited {
    term: Term,
    /// When it was asked for what has confirmed it last, in nanoseconds of [`BootTime`]; or [`OVER`], or [`LOST`].
    asked: AtomicU64,
    /// When requests to devices end, likewise. It only grows.
    ends: AtomicU64,
}

impl Tenure {
    /// One that ends by nothing that time does.
    #[must_use]
    pub fn endless() -> Self {
        Self(None)
    }

    /// One that has to be confirmed, and is over until then.
    #[must_use]
    pub fn limited(term: Term) -> Self {
        Self(Some(Arc::new(Limited { term, asked: AtomicU64::new(OVER), ends: AtomicU64::new(0) })))
    }

    /// Returns the time for which it lasts, if it ends.
    #[must_use]
    pub fn term(&self) -> Option<Term> {
        self.0.as_ref().map(|limited| limited.term)
    }

    /// The directory confirms it, as it was asked to at `asked` (TENURE-1). `false`: it is over (TENURE-4).
    #[must_use]
    pub fn confirm(&self, asked: BootTime) -> bool {
        let Some(limited) = &self.0 else { return true };
        let later = |before: u64| (before > LOST).then(|| before.max(nanos(asked)));
        let confirmed = limited.asked.fetch_update(Ordering::SeqCst, Ordering::SeqCst, later);
        if confirmed.is_ok() {
            limited.extend(asked);
        }
        confirmed.is_ok()
    }

    /// It goes on, as it was confirmed when asked at `asked`, even if it was over. The caller has stopped serving what was known
    /// to be lost then. `false`: by `now` it would be over again, and nothing is changed.
    pub fn renew(&self, asked: BootTime, now: BootTime) -> bool {
        let Some(limited) = &self.0 else { return true };
        if asked + limited.term.stops_after() <= now {
            return false;
        }
        limited.asked.fetch_max(nanos(asked), Ordering::SeqCst);
        limited.extend(asked);
        true
    }

    /// It is over from now on: something was lost (TENURE-4).
    pub fn end(&self) {
        if let Some(limited) = &self.0 {
            limited.asked.store(LOST, Ordering::SeqCst);
        }
    }

    /// Returns whether it is over because a claim was lost, not by time.
    #[must_use]
    pub fn has_lost(&self) -> bool {
        self.0.as_ref().is_some_and(|limited| limited.asked.load(Ordering::SeqCst) == LOST)
    }

    /// Returns whether hosts are to be cut off by `now`. If so, it is over for all clones (TENURE-4).
    pub fn is_over(&self, now: impl FnOnce() -> BootTime) -> bool {
        let Some(limited) = &self.0 else { return false };
        let now = nanos(now());
        let stops_after = nanos(BootTime(limited.term.stops_after()));
        let is_due = |asked: u64| asked > LOST && asked.saturating_add(stops_after) <= now;
        let over = |asked: u64| is_due(asked).then_some(OVER);
        // Of one that is confirmed in this very moment it is looked again.
        limited.asked.fetch_update(Ordering::SeqCst, Ordering::SeqCst, over).is_ok()
            || limited.asked.load(Ordering::SeqCst) <= LOST
    }

    /// Returns whether no request to a device may begin by `now`.
    #[inline]
    pub fn has_ended(&self, now: impl FnOnce() -> BootTime) -> bool {
        self.0.as_ref().is_some_and(|it| it.ends.load(Ordering::Relaxed) <= nanos(now()))
    }

    /// When [`Tenure::is_over`] says so next; `None` if it never does. Of one that is over this is past.
    #[must_use]
    pub fn stops_at(&self) -> Option<BootTime> {
        let limited = self.0.as_ref()?;
        Some(match limited.asked.load(Ordering::SeqCst) {
            OVER | LOST => BootTime(Duration::ZERO),
            asked => BootTime(Duration::from_nanos(asked)) + limited.term.stops_after(),
        })
    }
}

impl Limited {
    fn extend(&self, asked: BootTime) {
        self.ends.fetch_max(nanos(asked + self.term.ends_after()), Ordering::SeqCst);
    }
}

/// Never [`OVER`] or [`LOST`]: no process runs in the first nanoseconds.
fn nanos(time: BootTime) -> u64 {
    u64::try_from(time.0.as_nanos()).unwrap_or(u64::MAX).max(LOST + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TERM: Duration = Duration::from_secs(8);

    fn at(seconds: u64) -> BootTime {
        BootTime(Duration::from_secs(seconds))
    }

    fn confirmed(asked: u64) -> Tenure {
        let tenure = Tenure::limited(Term::new(TERM));
        assert!(tenure.renew(at(asked), at(asked)));
        tenure
    }

    /// TENURE-1 and TENURE-2.
    #[test]
    fn it_ends_by_when_it_was_asked_for_and_hosts_go_before_devices() {
        let tenure = confirmed(100);
        assert!(!tenure.is_over(|| at(106)) && !tenure.has_ended(|| at(107)));
        assert_eq!(tenure.stops_at(), Some(at(107)));
        assert!(tenure.confirm(at(103)), "the answer may come late");
        assert!(!tenure.is_over(|| at(109)));
        assert!(tenure.confirm(at(101)), "the answer to an older question");
        assert!(!tenure.is_over(|| at(109)) && !tenure.has_ended(|| at(110)));
        assert!(tenure.is_over(|| at(110)) && !tenure.has_ended(|| at(110)));
        assert!(tenure.has_ended(|| at(111)));
    }

    /// TENURE-4.
    #[test]
    fn what_is_over_stays_so_until_it_is_renewed() {
        let tenure = confirmed(100);
        assert!(tenure.is_over(|| at(107)));
        assert!(!tenure.confirm(at(106)), "a task has noticed");
        assert!(tenure.is_over(|| at(107)) && tenure.has_ended(|| at(108)));
        assert!(tenure.clone().is_over(|| at(100)), "for all clones");
        assert!(tenure.renew(at(120), at(121)));
        assert!(!tenure.is_over(|| at(126)) && !tenure.has_ended(|| at(127)));
        assert!(tenure.renew(at(119), at(122)));
        assert!(!tenure.is_over(|| at(126)), "a renewal takes nothing away");
        assert!(tenure.confirm(at(121)));
        assert!(!tenure.has_lost());
        tenure.end();
        assert!(tenure.is_over(|| at(122)) && !tenure.confirm(at(123)), "something was lost");
        assert_eq!(tenure.stops_at(), Some(at(0)));
        assert!(tenure.is_over(|| at(999)) && tenure.has_lost(), "time adds nothing to that");
        assert!(tenure.renew(at(124), at(124)) && !tenure.has_lost());
        assert!(tenure.is_over(|| at(131)) && !tenure.has_lost(), "by time");
    }

    /// A renewal that waited for long is none, not even for a confirmation that comes with it.
    #[test]
    fn a_renewal_counts_from_when_it_was_asked_for_too() {
        let tenure = confirmed(100);
        tenure.end();
        assert!(!tenure.renew(at(110), at(117)));
        assert!(!tenure.confirm(at(117)) && tenure.is_over(|| at(110)));
        assert!(tenure.renew(at(110), at(116)) && tenure.confirm(at(117)));
    }

    #[test]
    fn it_is_over_before_it_begins_and_never_without_a_term() {
        let tenure = Tenure::limited(Term::new(TERM));
        assert!(tenure.is_over(|| at(1)) && tenure.has_ended(|| at(1)) && !tenure.confirm(at(1)));
        let endless = Tenure::endless();
        assert!(endless.confirm(at(1)) && endless.stops_at().is_none());
        let no_clock = || -> BootTime { unreachable!("no clock is read for it") };
        assert!(!endless.is_over(no_clock) && !endless.has_ended(no_clock));
    }

    /// A machine that has just booted: the first nanoseconds of its clock are no marks of what is over or lost.
    #[test]
    fn a_tenure_of_the_first_moment_of_a_clock_is_one() {
        let tenure = confirmed(0);
        assert_eq!(tenure.term(), Some(Term::new(TERM)));
        assert!(!tenure.has_lost() && !tenure.is_over(|| at(0)) && !tenure.has_ended(|| at(0)));
        assert!(tenure.confirm(at(0)) && tenure.is_over(|| at(8)));
        assert_eq!(Tenure::endless().term(), None);
    }

    /// A 64th for clocks that run apart, and a second; a longer wait would keep volumes away for nothing.
    #[test]
    fn another_host_waits_no_longer_than_it_must() {
        for (after, safe) in [(0, 1), (64, 66), (640, 651)] {
            let term = Term::new(Duration::from_secs(after));
            assert_eq!(term.safe_after(), Duration::from_secs(safe));
        }
        assert_eq!(Term::new(Duration::MAX).safe_after(), Duration::MAX);
    }

    /// TENURE-3. Method: for terms, delays of the question and clocks that run apart, the last moment at which a host serves
    /// is before the first at which another may. Times are of a clock that both are measured by.
    #[test]
    fn a_host_that_waits_acts_when_the_other_has_stopped() {
        for after_ms in [2_000_u64, 10_000, 30_000, 3_600_000] {
            let term = Term::new(Duration::from_millis(after_ms));
            for delay in [Duration::ZERO, Duration::from_secs(5), Duration::from_secs(600)] {
                let asked = Duration::from_secs(1000);
                // It is gone in the moment in which it was confirmed, and seen so at once.
                let seen_gone = asked + delay;
                // A's clock is slow, B's is fast.
                let apart = |time: Duration| time.mul_f64(1.01);
                let ends = asked + apart(term.ends_after());
                let safe = seen_gone + term.safe_after();
                assert!(ends < safe, "{after_ms} ms, {delay:?}: {ends:?}, {safe:?}");
                assert!(term.stops_after() < term.ends_after());
            }
        }
    }
}
