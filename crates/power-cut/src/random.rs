//! Random numbers of a seed.

use random::SplitMix;

#[derive(Clone, Debug)]
pub(crate) struct Random(SplitMix);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(SplitMix::new(seed))
    }

    /// Returns an independent generator, for another thread or purpose.
    pub(crate) fn fork(&mut self) -> Self {
        Self(self.0.fork())
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Returns a number in `0..limit`.
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0.below(limit.max(1))
    }

    /// Returns a number in `from..to`.
    pub(crate) fn between(&mut self, from: u64, to: u64) -> u64 {
        from + self.below(to - from)
    }

    /// Returns true in `percent` of 100 cases.
    pub(crate) fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }
}
