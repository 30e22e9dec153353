//! The one source of chance in a simulation.

/// SplitMix64: small, fast, and the same on every machine.
#[derive(Clone, Debug)]
pub struct Rng {
    state: u64,
}

impl Rng {
    /// A generator that is a function of `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        let drawn = random::mix(self.state);
        self.state = self.state.wrapping_add(random::STEP);
        drawn
    }

    /// A number below `bound`, which must not be zero. The bias is below `bound` / 2^64.
    pub fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "nothing is below zero");
        random::scale(self.next_u64(), bound)
    }

    /// A number from `low` to `high`, both included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// `true` once in `one_in` draws on average; never if `one_in` is zero.
    pub fn one_in(&mut self, one_in: u64) -> bool {
        one_in > 0 && self.below(one_in) == 0
    }

    /// A generator of its own for a part of the simulation, so that parts do not disturb each other.
    #[must_use]
    pub fn fork(&mut self) -> Self {
        Self::new(self.next_u64())
    }
}
