//! The blocks that hold data, and their number.

use units::PbaRange;

/// A bit for each block. Memory is taken only where blocks differ from how the drive began.
#[derive(Debug)]
pub(crate) struct Mapped {
    blocks: u64,
    /// Blocks below this held data at the start.
    filled: u64,
    /// A bit for each block: set if its state is not that of the start.
    changed: Vec<u64>,
    /// Changed blocks; while there are none, most questions need no look at the bits.
    changed_count: u64,
    mapped: u64,
}

impl Mapped {
    pub(crate) fn new(blocks: u64, filled: u64) -> Self {
        let words = usize::try_from(blocks.div_ceil(64)).expect("fewer than 2^64 blocks");
        Self { blocks, filled, changed: vec![0; words], changed_count: 0, mapped: filled }
    }

    /// Blocks that hold data.
    pub(crate) fn count(&self) -> u64 {
        self.mapped
    }

    pub(crate) fn set(&mut self, range: PbaRange) {
        self.update(range, true);
    }

    pub(crate) fn clear(&mut self, range: PbaRange) {
        self.update(range, false);
    }

    fn update(&mut self, range: PbaRange, mapped: bool) {
        let start = range.start.0.min(self.blocks);
        let end = start.saturating_add(range.blocks).min(self.blocks);
        // The parts before and behind `filled` began differently.
        self.update_part(start.min(self.filled), end.min(self.filled), mapped, !mapped);
        self.update_part(start.max(self.filled), end.max(self.filled), mapped, mapped);
    }

    /// Makes blocks `start..end` differ from their beginning, or not, by which they become `mapped`.
    fn update_part(&mut self, start: u64, end: u64, mapped: bool, changed: bool) {
        if !changed && self.changed_count == 0 {
            return;
        }
        let mut at = start;
        while at < end {
            let (word, bit) = ((at / 64) as usize, at % 64);
            let count = (64 - bit).min(end - at);
            let mask = (u64::MAX >> (64 - count)) << bit;
            let before = self.changed[word];
            let after = if changed { before | mask } else { before & !mask };
            let flipped = u64::from((before ^ after).count_ones());
            self.changed[word] = after;
            if changed {
                self.changed_count += flipped;
            } else {
                self.changed_count -= flipped;
            }
            if mapped {
                self.mapped += flipped;
            } else {
                self.mapped -= flipped;
            }
            at += count;
        }
    }
}

#[cfg(test)]
mod tests {
    use units::Pba;

    use super::*;
    use random::Rng;

    /// Method: the same random calls on a plain vector of bits.
    #[test]
    fn counts_as_a_plain_set_of_blocks_would() {
        for (seed, filled) in [(1, 0), (2, 1000), (3, 333)] {
            let mut rng = Rng::new(seed);
            let mut plain: Vec<bool> = (0..1000).map(|block| block < filled).collect();
            let mut mapped = Mapped::new(1000, filled);
            for _ in 0..2_000 {
                let start = rng.below(1100);
                let range = PbaRange::new(Pba(start), rng.below(200));
                let to = rng.below(2) == 1;
                if to {
                    mapped.set(range)
                } else {
                    mapped.clear(range)
                }
                for block in start..(start + range.blocks).min(1000) {
                    plain[block as usize] = to;
                }
                let count = plain.iter().filter(|mapped| **mapped).count() as u64;
                assert_eq!(mapped.count(), count, "seed {seed}");
            }
        }
    }
}
