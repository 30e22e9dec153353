//! Admission of API connections, and eviction where more clients want to be connected than may be.
//!
//! - API-CROWD-1: a connection with a request of an authenticated caller under way stays, once the whole request has
//!   come. Any other is idle: nothing was asked on it, or only a part has come, or only an open path was
//!   asked for.
//! - API-CROWD-2: the idle connection that makes room is of the source that has most, and there the one that has been
//!   idle for longest; it makes room only for a source that has fewer. A client that fills all places from
//!   one source is therefore in its own way only.
//! - API-CROWD-3: while others wait, a connection that is idle for [`IDLE_TIMEOUT`] makes room for any of them. This
//!   is also the time within which a head must come, and a body behind the head of an authenticated caller.
//! - API-CROWD-4: of the waiting connections, the one whose source has fewest places is served next. [`WAITING_MAX`]
//!   wait; of more, the source that has most waiting makes room as in API-CROWD-2, or the newcomer is closed.
//!
//! What is here only decides; `server.rs` does it.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Connections that wait, accepted and not served. Enough for each of many sources to be seen beside one that floods.
pub(crate) const WAITING_MAX: usize = 64;
/// Time that a connection may be idle while others wait, so that sent bytes can arrive.
const IDLE_TIMEOUT: Duration = Duration::from_secs(1);

/// A connection, as it is judged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) source: IpAddr,
    /// Since when it is idle, if it is (API-CROWD-1).
    pub(crate) idle_since: Option<Instant>,
}

/// The next action of the server.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Step {
    /// Serve the one that waits at this index.
    Serve(usize),
    /// End the connection at this index of those that are served.
    End(usize),
}

/// Returns the next action; called again until there is none. `waiting` holds the sources of the waiting
/// connections, oldest first.
pub(crate) fn next_step(
    places: &[Place],
    waiting: &[IpAddr],
    places_max: usize,
    now: Instant,
) -> Option<Step> {
    let count = |source: &IpAddr| places.iter().filter(|place| place.source == *source).count();
    // Of equals the first, which has waited longest.
    let (next, newcomer) = waiting.iter().enumerate().min_by_key(|(_, source)| count(source))?;
    if places.len() < places_max {
        return Some(Step::Serve(next));
    }
    let outstayed = || {
        let (index, since) = longest_idle(places, |_| true)?;
        (now.duration_since(since) >= IDLE_TIMEOUT).then_some(index)
    };
    who_makes_room(places, *newcomer).or_else(outstayed).map(Step::End)
}

/// Returns the index in `places` of the connection that makes room for one from `newcomer` because its
/// source has more (API-CROWD-2).
pub(crate) fn who_makes_room(places: &[Place], newcomer: IpAddr) -> Option<usize> {
    let mut counts: BTreeMap<IpAddr, usize> = BTreeMap::new();
    for place in places.iter().filter(|place| place.idle_since.is_some()) {
        *counts.entry(place.source).or_default() += 1;
    }
    let (crowd, most) = counts.iter().max_by_key(|(_, count)| **count)?;
    let own = places.iter().filter(|place| place.source == newcomer).count();
    // Taking turns would help no source.
    let is_fairer = own + 1 < *most || (own == 0 && *most > 1);
    let oldest = || longest_idle(places, |place| place.source == *crowd);
    if is_fairer { oldest().map(|(index, _)| index) } else { None }
}

fn longest_idle(places: &[Place], fits: impl Fn(&Place) -> bool) -> Option<(usize, Instant)> {
    let fitting = places.iter().enumerate().filter(|(_, place)| fits(place));
    let idle = fitting.filter_map(|(index, place)| Some((index, place.idle_since?)));
    idle.min_by_key(|(_, since)| *since)
}

/// Idle state of a connection; its server and its requests share it.
#[derive(Clone)]
pub(crate) struct Activity(Arc<Mutex<Option<Instant>>>);

impl Activity {
    /// Idle from now on.
    pub(crate) fn new() -> Self {
        Self(Arc::new(Mutex::new(Some(Instant::now()))))
    }

    /// Marks a request of an authenticated caller as under way until this is dropped. A connection has one
    /// at a time.
    pub(crate) fn begin(&self) -> UnderWay {
        self.set(None);
        UnderWay(self.clone())
    }

    /// Notes that an authenticated caller has sent the head of a request: idle from now on, until the rest
    /// has come.
    pub(crate) fn renew(&self) {
        self.set(Some(Instant::now()));
    }

    pub(crate) fn idle_since(&self) -> Option<Instant> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, since: Option<Instant>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = since;
    }
}

/// A request under way.
pub(crate) struct UnderWay(Activity);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.set(Some(Instant::now()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v4(number: u32) -> IpAddr {
        IpAddr::V4(std::net::Ipv4Addr::from_bits(number))
    }

    /// Idle places of these sources, the first for longest.
    fn idle(start: Instant, sources: &[u32]) -> Vec<Place> {
        let place = |(source, at): (&u32, u64)| Place {
            source: v4(*source),
            idle_since: Some(start + Duration::from_millis(at)),
        };
        sources.iter().zip(0..).map(place).collect()
    }

    #[test]
    fn the_longest_idle_of_the_source_that_has_most_makes_room() {
        let places = idle(Instant::now(), &[2, 1, 1, 3, 1]);
        assert_eq!(who_makes_room(&places, v4(9)), Some(1));
        assert_eq!(who_makes_room(&places, v4(2)), Some(1));
        assert_eq!(who_makes_room(&places, v4(1)), None, "it has most itself");
    }

    #[test]
    fn a_request_of_an_authenticated_caller_stays() {
        let mut places = idle(Instant::now(), &[1, 1, 1, 1, 2, 2]);
        places[0].idle_since = None;
        assert_eq!(who_makes_room(&places, v4(9)), Some(1));
        places.iter_mut().for_each(|place| place.idle_since = None);
        assert_eq!(who_makes_room(&places, v4(9)), None);
        let late = Instant::now() + Duration::from_secs(3600);
        assert_eq!(next_step(&places, &[v4(9)], 6, late), None);
    }

    /// A connection that was displaced may not displace its successor.
    #[test]
    fn equals_do_not_displace_each_other() {
        let start = Instant::now();
        assert_eq!(who_makes_room(&idle(start, &[1, 1, 2, 2]), v4(1)), None);
        assert_eq!(who_makes_room(&idle(start, &[1, 1, 2]), v4(2)), None);
        assert_eq!(who_makes_room(&idle(start, &[1, 2]), v4(3)), None);
        assert!(who_makes_room(&idle(start, &[1, 1, 2, 2]), v4(3)).is_some());
    }

    #[test]
    fn the_source_with_fewest_places_is_served_next() {
        let start = Instant::now();
        let places = idle(start, &[1, 1, 2]);
        let waiting = [v4(1), v4(2), v4(3), v4(3)];
        assert_eq!(next_step(&places, &waiting, 4, start), Some(Step::Serve(2)));
        assert_eq!(next_step(&places, &waiting, 3, start), Some(Step::End(0)));
        assert_eq!(next_step(&places, &[], 3, start), None, "no connection waits");
    }

    /// One source alone: each has its time, and no more while others wait.
    #[test]
    fn who_is_idle_too_long_makes_room_for_anybody() {
        let start = Instant::now();
        let places = idle(start, &[1, 1]);
        let soon = start + IDLE_TIMEOUT - Duration::from_millis(1);
        assert_eq!(next_step(&places, &[v4(1)], 2, soon), None);
        assert_eq!(next_step(&places, &[v4(1)], 2, start + IDLE_TIMEOUT), Some(Step::End(0)));
    }
}
