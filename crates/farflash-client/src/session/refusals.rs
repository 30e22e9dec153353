//! Judgement of refusals: when a server that does not take a volume's token is believed.
//!
//! - CLIENT-REFUSAL-1: it is believed once it has lasted for [`REFUSED_FOR`] while the volume should be there, by all that is
//!   known. A server that starts up refuses, too, and so does one whose device is absent, for as long as it is.
//! - CLIENT-REFUSAL-2: servers count refusals against the address that they come from, and put it off with all its volumes. So
//!   attempts come more and more slowly; and while the cluster says that the volume is not served, one comes in [`PROBE_EVERY`]
//!   at most, in case it knows less than the server.

use client::Backoff;
use units::{Duration, Instant};

use super::seeking::NoLink;
use crate::Error;

/// Time that a refusal has to last to be believed.
const REFUSED_FOR: Duration = Duration::from_secs(5);
/// Least interval between attempts while the cluster reports that the volume is not served.
const PROBE_EVERY: Duration = Duration::from_secs(30);

/// The last attempts, as far as all of them were refused.
#[derive(Default)]
pub(super) struct Refusals {
    count: u32,
    /// The last one.
    last: Option<(Instant, Error)>,
    /// Since when the volume was refused where it should be (CLIENT-REFUSAL-1).
    since: Option<Instant>,
    /// True if the cluster has reported since then that it is not served.
    is_away: bool,
}

impl Refusals {
    /// Takes in how an attempt ended; what there is to say of it.
    pub(super) fn take_in(&mut self, attempt: NoLink, now: Instant) -> Error {
        match attempt {
            NoLink::Away(refusal) => {
                self.since = None;
                self.is_away = true;
                refusal
            }
            NoLink::Failed { error, is_served } if is_refusal(&error) => {
                self.count += 1;
                self.last = Some((now, error.clone()));
                self.since = is_served.then(|| self.since.unwrap_or(now));
                self.is_away = false;
                error
            }
            NoLink::Failed { error, .. } => {
                *self = Self::default();
                error
            }
        }
    }

    /// CLIENT-REFUSAL-1.
    pub(super) fn are_believed(&self, now: Instant) -> bool {
        self.since.is_some_and(|since| now.since(since) >= REFUSED_FOR)
    }

    /// The last refusal, if the next attempt has to wait for the cluster to say that the volume is served (CLIENT-REFUSAL-2).
    pub(super) fn last(&self, now: Instant) -> Option<Error> {
        let last = self.last.as_ref().filter(|(at, _)| now.since(*at) < PROBE_EVERY);
        last.map(|(_, refusal)| refusal.clone())
    }

    /// The pause before the next attempt, if it is for refusals to say (CLIENT-REFUSAL-2): the cluster may be asked more often.
    pub(super) fn pause(&self) -> Option<Duration> {
        let slow = Backoff::default().while_unproven();
        (self.count > 0 && !self.is_away).then(|| slow.delay(self.count - 1))
    }
}

/// Returns true if authentication of the host or of the server failed.
pub(super) fn is_refusal(error: &Error) -> bool {
    matches!(error, Error::Connect { error, .. } if error.is_unproven())
}

#[cfg(test)]
mod tests {
    use client::ConnectError;

    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant::default() + Duration::from_secs(seconds)
    }

    fn refusal() -> Error {
        let address = ([192, 0, 2, 1], 4420).into();
        Error::Connect { address, error: ConnectError::AuthenticationRequired }
    }

    fn refused(refusals: &mut Refusals, now: Instant, is_served: bool) {
        refusals.take_in(NoLink::Failed { error: refusal(), is_served }, now);
    }

    /// CLIENT-REFUSAL-1.
    #[test]
    fn a_refusal_is_believed_only_where_the_volume_should_be() {
        let mut refusals = Refusals::default();
        for second in 0..600 {
            refused(&mut refusals, at(second), false);
            assert!(!refusals.are_believed(at(second)), "it is not known to be there");
        }
        refused(&mut refusals, at(600), true);
        refused(&mut refusals, at(604), true);
        assert!(!refusals.are_believed(at(604)));
        refusals.take_in(NoLink::Away(refusal()), at(605));
        refused(&mut refusals, at(606), true);
        refused(&mut refusals, at(610), true);
        assert!(!refusals.are_believed(at(610)), "it was away meanwhile");
        refusals.take_in(NoLink::Failed { error: Error::Stopped, is_served: true }, at(610));
        refused(&mut refusals, at(611), true);
        assert!(!refusals.are_believed(at(611)), "no server was there meanwhile");
        refused(&mut refusals, at(616), true);
        assert!(refusals.are_believed(at(616)));
    }

    /// CLIENT-REFUSAL-2: servers count the refusals of ten seconds.
    #[test]
    fn attempts_after_refusals_are_few() {
        let (mut refusals, mut now, mut attempts) = (Refusals::default(), at(0), Vec::new());
        while now < at(100) {
            attempts.push(now);
            refused(&mut refusals, now, false);
            now = now + refusals.pause().expect("it was refused");
        }
        let few = attempts.windows(7).all(|some| some[6].since(some[0]) >= Duration::from_secs(10));
        assert!(few, "{attempts:?}");
    }

    /// CLIENT-REFUSAL-2: where the cluster says that the volume is not served it is asked often, and the server hardly ever.
    #[test]
    fn what_is_away_is_tried_now_and_then() {
        let mut refusals = Refusals::default();
        assert!(refusals.last(at(0)).is_none() && refusals.pause().is_none());
        refused(&mut refusals, at(1), false);
        refusals.take_in(NoLink::Away(refusal()), at(2));
        assert!(refusals.pause().is_none(), "that is for others to say");
        assert!(refusals.last(at(30)).is_some() && refusals.last(at(31)).is_none());
    }
}
