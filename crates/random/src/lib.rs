//! Random numbers as a function of a seed, for loads and models. Nothing here is for secrets.

/// xorshift64*: a few cycles a draw, which is what the path of a request can spend.
#[derive(Clone, Debug)]
pub struct Rng {
    state: u64,
}

impl Rng {
    /// Returns a generator that is a function of `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        // Neighbouring seeds give unlike states, and none gives the state 0, which has no successor.
        Self { state: mix(seed) | 1 }
    }

    /// Returns a generator that depends on `seed` and on `stream`, so that threads of one run draw differently.
    #[must_use]
    pub fn of_stream(seed: u64, stream: u64) -> Self {
        Self::new(seed ^ mix(stream))
    }

    /// Returns the next 64 bits.
    #[inline]
    pub fn next_u64(&mut self) -> u64 {
        let mut x = self.state;
        x ^= x >> 12;
        x ^= x << 25;
        x ^= x >> 27;
        self.state = x;
        x.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// Returns a number below `bound`, which is not zero.
    #[inline]
    pub fn below(&mut self, bound: u64) -> u64 {
        scale(self.next_u64(), bound)
    }

    /// Returns a number in 0..1.
    #[inline]
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Returns a number in 0..=1 that is never 0, for logarithms.
    #[inline]
    pub fn positive_unit(&mut self) -> f64 {
        1.0 - self.unit()
    }

    /// Returns a number of the exponential distribution with mean 1: a time until the next of events that know nothing of each
    /// other.
    #[inline]
    pub fn exponential(&mut self) -> f64 {
        -self.positive_unit().ln()
    }

    /// Returns a number of the standard normal distribution (Box and Muller).
    pub fn normal(&mut self) -> f64 {
        let radius = (2.0 * self.exponential()).sqrt();
        radius * (std::f64::consts::TAU * self.unit()).cos()
    }
}

/// SplitMix64: the one to fork, for simulations and tests, whose seeds are kept.
#[derive(Clone, Debug)]
pub struct SplitMix {
    state: u64,
}

impl SplitMix {
    /// Returns a generator that is a function of `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// Returns the next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        let drawn = mix(self.state);
        self.state = self.state.wrapping_add(STEP);
        drawn
    }

    /// Returns a number below `bound`, which must not be zero. The bias is below `bound` / 2^64.
    pub fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "no number is below zero");
        scale(self.next_u64(), bound)
    }

    /// Returns a number from `low` to `high`, both included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// Returns true once in `one_in` draws on average; never if `one_in` is zero.
    pub fn one_in(&mut self, one_in: u64) -> bool {
        one_in > 0 && self.below(one_in) == 0
    }

    /// Returns a generator for a part of the run, so that parts do not disturb each other.
    #[must_use]
    pub fn fork(&mut self) -> Self {
        Self::new(self.next_u64())
    }
}

/// Maps 64 bits that are spread evenly to a number below `bound`.
#[inline]
#[must_use]
pub fn scale(bits: u64, bound: u64) -> u64 {
    ((u128::from(bits) * u128::from(bound)) >> 64) as u64
}

/// The distance of the numbers that `SplitMix64` mixes one after the other.
pub const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

/// Spreads a difference in any bit over all bits. No two numbers give the same (`SplitMix64`).
#[inline]
#[must_use]
pub fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(STEP);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}
