//! Who is served and who makes room when more want to be connected than may be.
//!
//! - C1: a connection on which somebody who is known has a request under way stays, once all of the request has come. Any
//!   other is idle: nothing, or nothing yet, or only a part, or only what everybody may ask was asked on it.
//! - C2: of the idle ones the source that has most makes room, with the one that has been idle for longest; for one of
//!   a source that has fewer. So who fills all places from one source is in his own way, and in nobody else's.
//! - C3: while others wait, who is idle for [`IDLE_TIMEOUT`] makes room for any of them. So long may a head take to come, and a
//!   body behind the head of somebody who is known.
//! - C4: of those who wait, the one whose source has fewest places is served next. [`WAITING_MAX`] wait; of more, the
//!   source that has most waiting makes room as in C2, or who comes is sent away.
//!
//! What is here only decides; `server.rs` does it.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Connections that wait, accepted and not served. Enough for each of many sources to be seen beside one that floods.
pub(crate) const WAITING_MAX: usize = 64;
/// How long a connection may be idle while others wait: time for what has been sent to come.
const IDLE_TIMEOUT: Duration = Duration::from_secs(1);

/// A connection, as it is judged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) source: IpAddr,
    /// Since when it is idle, if it is (C1).
    pub(crate) idle_since: Option<Instant>,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Step {
    /// Serve the one that waits at this index.
    Serve(usize),
    /// End the connection at this index of those that are served.
    End(usize),
}

/// What is to be done next; asked again until it is nothing. Those that wait are told by their sources, oldest first.
pub(crate) fn next_step(
    places: &[Place],
    waiting: &[IpAddr],
    places_max: usize,
    now: Instant,
) -> Option<Step> {
    let count = |source: &IpAddr| places.iter().filter(|place| place.source == *source).count();
    // Of equals the first, who has waited longest.
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

/// Which of `places` makes room for one from `newcomer` because its source has more (C2).
pub(crate) fn who_makes_room(places: &[Place], newcomer: IpAddr) -> Option<usize> {
    let mut counts: BTreeMap<IpAddr, usize> = BTreeMap::new();
    for place in places.iter().filter(|place| place.idle_since.is_some()) {
        *counts.entry(place.source).or_default() += 1;
    }
    let (crowd, most) = counts.iter().max_by_key(|(_, count)| **count)?;
    let own = places.iter().filter(|place| place.source == newcomer).count();
    // Taking turns would help nobody.
    let is_fairer = own + 1 < *most || (own == 0 && *most > 1);
    let oldest = || longest_idle(places, |place| place.source == *crowd);
    if is_fairer { oldest().map(|(index, _)| index) } else { None }
}

fn longest_idle(places: &[Place], fits: impl Fn(&Place) -> bool) -> Option<(usize, Instant)> {
    let fitting = places.iter().enumerate().filter(|(_, place)| fits(place));
    let idle = fitting.filter_map(|(index, place)| Some((index, place.idle_since?)));
    idle.min_by_key(|(_, since)| *since)
}

/// Whether a connection is idle; its server and its requests share it.
#[derive(Clone)]
pub(crate) struct Activity(Arc<Mutex<Option<Instant>>>);

impl Activity {
    /// Idle from now on.
    pub(crate) fn new() -> Self {
        Self(Arc::new(Mutex::new(Some(Instant::now()))))
    }

    /// Somebody who is known has a request under way until this is dropped. A connection has one at a time.
    pub(crate) fn begin(&self) -> UnderWay {
        self.set(None);
        UnderWay(self.clone())
    }

    /// Somebody who is known has sent the head of a request: idle from now on, until the rest has come.
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
    fn a_request_of_somebody_known_stays() {
        let mut places = idle(Instant::now(), &[1, 1, 1, 1, 2, 2]);
        places[0].idle_since = None;
        assert_eq!(who_makes_room(&places, v4(9)), Some(1));
        places.iter_mut().for_each(|place| place.idle_since = None);
        assert_eq!(who_makes_room(&places, v4(9)), None);
        let late = Instant::now() + Duration::from_secs(3600);
        assert_eq!(next_step(&places, &[v4(9)], 6, late), None);
    }

    /// Whom somebody displaced may not displace him in turn.
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
        assert_eq!(next_step(&places, &[], 3, start), None, "nobody waits");
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
