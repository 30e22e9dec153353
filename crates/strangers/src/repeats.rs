//! Lines that say the same again.
//!
//! - REPEAT-1: of lines with one key, which is the peer that they are about and the reason, one is written in a [`PERIOD`]; of
//!   the others it is said how many they were when the period is over.
//! - REPEAT-2: [`KEYS_MAX`] keys are told apart in a period. Lines with other keys are not written, so that the log is bounded.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use units::{Duration, Instant};

const PERIOD: Duration = Duration::from_secs(10);
const KEYS_MAX: usize = 256;

struct Repeated {
    since: Instant,
    left_out: u64,
}

/// Lines by their keys.
pub struct Repeats<K> {
    keys: BTreeMap<K, Repeated>,
}

impl<K> Default for Repeats<K> {
    fn default() -> Self {
        Self { keys: BTreeMap::new() }
    }
}

impl<K: Clone + Ord> Repeats<K> {
    /// Returns whether a line with this key may be written now; counts one that may not.
    #[must_use]
    pub fn allows(&mut self, key: K, now: Instant) -> bool {
        if let Some(repeated) = self.keys.get_mut(&key) {
            repeated.left_out += 1;
            return false;
        }
        let has_room = self.keys.len() < KEYS_MAX;
        if has_room {
            self.keys.insert(key, Repeated { since: now, left_out: 0 });
        }
        has_room
    }

    /// The keys whose period is over, with the number of lines that were left out where some were. To be asked now and then: a
    /// key has no new period before.
    #[must_use]
    pub fn over(&mut self, now: Instant) -> Vec<(K, u64)> {
        let mut over = Vec::new();
        self.keys.retain(|key, repeated| {
            let goes_on = now.since(repeated.since) < PERIOD;
            if !goes_on && repeated.left_out > 0 {
                over.push((key.clone(), repeated.left_out));
            }
            goes_on
        });
        over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_of_each_key_is_written_in_a_period() {
        let mut repeats = Repeats::default();
        let now = Instant(5);
        let written = (0..300).filter(|n| repeats.allows(n % 3, now)).count();
        assert_eq!(written, 3);
        assert_eq!(repeats.over(now + PERIOD / 2), []);
        assert!(repeats.allows(7, now + PERIOD / 2));
        assert_eq!(repeats.over(now + PERIOD), [(0, 99), (1, 99), (2, 99)]);
        assert!(repeats.allows(1, now + PERIOD), "a new period");
        assert_eq!(repeats.over(now + PERIOD * 3), [], "nothing was left out");
    }

    #[test]
    fn many_keys_write_a_bounded_number_of_lines() {
        let mut repeats = Repeats::default();
        let written = (0..100_000).filter(|n| repeats.allows(*n, Instant(0))).count();
        assert_eq!(written, KEYS_MAX);
    }
}
