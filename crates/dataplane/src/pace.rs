//! The pace at which a peer moves what it has to move, in one direction of a connection: data that it owes, or replies that it
//! has to read.
//!
//! - PACE-1: time is counted from the last byte, however long the whole takes.
//! - PACE-2: while the core is short of memory, and the connection holds some, the peer moves [`NEEDED_BYTES`] in each
//!   [`NEEDED_TIME`]: a trickle does not keep memory that others wait for. At other times it may.

use std::cell::Cell;

use units::{Duration, Instant};

/// Least progress in each [`NEEDED_TIME`] while memory is short: 4 KiB a second.
const NEEDED_BYTES: u64 = 20 << 10;
/// See [`NEEDED_BYTES`]. A network that has lost a few packets in a row is silent for almost as long.
const NEEDED_TIME: Duration = Duration::from_secs(5);

/// The peer's progress at some time.
#[derive(Clone, Copy)]
struct Mark {
    at: Instant,
    bytes: u64,
}

/// The pace in one direction.
#[derive(Default)]
pub struct Pace {
    /// The last progress that was seen.
    moved: Cell<Option<Mark>>,
    /// The beginning of the stretch in which [`NEEDED_BYTES`] are needed (PACE-2).
    needed: Cell<Option<Mark>>,
}

impl Pace {
    /// Looks how far the peer is: it has moved `bytes` so far and has more to move, or has nothing to move. Returns
    /// whether it is too slow: it was silent for longer than `silence_max`, or others are `in_need` of the memory.
    pub fn is_too_slow(
        &self,
        now: Instant,
        bytes: Option<u64>,
        silence_max: Duration,
        in_need: bool,
    ) -> bool {
        let here = bytes.map(|bytes| Mark { at: now, bytes });
        let same = |mark: &Mark| bytes == Some(mark.bytes);
        self.moved.set(self.moved.get().filter(same).or(here));
        let goes_on = |mark: &Mark| bytes.is_some_and(|bytes| bytes < mark.bytes + NEEDED_BYTES);
        let needed = self.needed.get().filter(goes_on).or(here);
        self.needed.set(needed.filter(|_| in_need));
        let lasts = |mark: Option<Mark>, max| mark.is_some_and(|mark| now.since(mark.at) > max);
        lasts(self.moved.get(), silence_max) || lasts(self.needed.get(), NEEDED_TIME)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SILENCE_MAX: Duration = Duration::from_secs(30);

    /// The second in which a peer that moves `bytes` a second is too slow, of the first 600.
    fn too_slow_after(bytes: u64, in_need: bool) -> Option<u64> {
        let pace = Pace::default();
        let is_too_slow = |second: &u64| {
            let now = Instant(0) + Duration::from_secs(*second);
            pace.is_too_slow(now, Some(bytes * second), SILENCE_MAX, in_need)
        };
        (0..600).find(is_too_slow)
    }

    #[test]
    fn time_counts_from_the_last_byte() {
        assert_eq!(too_slow_after(0, false), Some(31));
        assert_eq!(too_slow_after(1, false), None);
    }

    #[test]
    fn a_trickle_is_too_slow_where_others_need_the_memory() {
        assert_eq!(too_slow_after(0, true), Some(6));
        assert_eq!(too_slow_after(1000, true), Some(6));
        assert_eq!(too_slow_after(NEEDED_BYTES / 5, true), None);
    }

    #[test]
    fn time_without_need_or_without_anything_to_move_does_not_count() {
        let pace = Pace::default();
        let look = |second, bytes, in_need| {
            let now = Instant(0) + Duration::from_secs(second);
            pace.is_too_slow(now, bytes, SILENCE_MAX, in_need)
        };
        assert!(!look(0, Some(7), false) && !look(20, Some(7), true));
        assert!(!look(25, Some(7), true) && look(26, Some(7), true));
        assert!(!look(27, Some(7), false) && look(31, Some(7), false), "silent since second 0");
        assert!(!look(32, None, true) && !look(100, Some(7), true), "another thing is to be moved");
        assert!(!look(105, Some(8), true) && look(106, Some(9), true));
    }
}
