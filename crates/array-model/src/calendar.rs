//! The next event of each of a fixed number of things.

/// A time that does not come.
pub(crate) const NEVER: u64 = u64::MAX;

/// The earliest of one time for each slot: a tournament, of which a change replays one path.
#[derive(Debug)]
pub(crate) struct Calendar {
    at: Vec<u64>,
    /// A binary tree from its root at 1: each place has the slot with the earlier time of the two below.
    winners: Vec<u16>,
    leaves: usize,
}

impl Calendar {
    pub(crate) fn new(slots: usize) -> Self {
        let leaves = slots.next_power_of_two();
        let mut calendar = Self { at: vec![NEVER; leaves], winners: vec![0; 2 * leaves], leaves };
        for slot in 0..leaves {
            calendar.winners[leaves + slot] = slot as u16;
        }
        (1..leaves).rev().for_each(|place| calendar.replay(place));
        calendar
    }

    pub(crate) fn at(&self, slot: usize) -> u64 {
        self.at[slot]
    }

    #[inline]
    pub(crate) fn set(&mut self, slot: usize, at: u64) {
        self.at[slot] = at;
        let mut place = (self.leaves + slot) / 2;
        while place >= 1 {
            self.replay(place);
            place /= 2;
        }
    }

    /// The slot with the earliest time; of equal ones the first.
    #[inline]
    pub(crate) fn earliest(&self) -> (usize, u64) {
        let slot = usize::from(self.winners[1]);
        (slot, self.at[slot])
    }

    #[inline]
    fn replay(&mut self, place: usize) {
        let (left, right) = (self.winners[2 * place], self.winners[2 * place + 1]);
        let is_left = self.at[usize::from(left)] <= self.at[usize::from(right)];
        self.winners[place] = if is_left { left } else { right };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use random::Rng;

    #[test]
    fn the_earliest_slot_is_that_of_a_search() {
        let mut rng = Rng::new(1);
        let mut calendar = Calendar::new(11);
        let mut times = [NEVER; 11];
        assert_eq!(calendar.earliest().1, NEVER);
        for _ in 0..10_000 {
            let (slot, at) = (rng.below(11) as usize, rng.below(50));
            times[slot] = at;
            calendar.set(slot, at);
            let first = (0..11).min_by_key(|slot| times[*slot]).map(|slot| (slot, times[slot]));
            assert_eq!(Some(calendar.earliest()), first);
            assert_eq!(calendar.at(slot), at);
        }
    }
}
