//! Addresses of requests.

use units::{Lba, LbaRange};

use crate::workload::{Access, Distribution};
use random::Rng;

/// Odd, and no multiple of a small prime: ranks of a skewed draw are spread over the range with it.
const SCATTER: u64 = 0x9E37_79B1;

/// Draws aligned requests from a range.
#[derive(Clone, Debug)]
pub(crate) struct Addresses {
    start: Lba,
    blocks_per_request: u64,
    /// Requests that fit into the range.
    slots: u64,
    next_slot: u64,
    kind: Kind,
}

#[derive(Clone, Debug)]
enum Kind {
    Sequential,
    Uniform,
    Skewed(Zipf),
}

impl Addresses {
    /// `range` holds at least one request.
    pub(crate) fn new(range: LbaRange, blocks_per_request: u64, access: Access) -> Self {
        let slots = range.blocks / blocks_per_request;
        let kind = match access {
            Access::Sequential => Kind::Sequential,
            Access::Random(Distribution::Uniform) => Kind::Uniform,
            Access::Random(Distribution::Zipf { theta }) => Kind::Skewed(Zipf::new(slots, theta)),
        };
        Self { start: range.start, blocks_per_request, slots, next_slot: 0, kind }
    }

    pub(crate) fn next(&mut self, rng: &mut Rng) -> Lba {
        let slot = match &self.kind {
            Kind::Sequential => {
                let slot = self.next_slot;
                self.next_slot = if slot + 1 == self.slots { 0 } else { slot + 1 };
                slot
            }
            Kind::Uniform => rng.below(self.slots),
            Kind::Skewed(zipf) => scatter(zipf.draw(rng) - 1, self.slots),
        };
        self.start.plus(slot * self.blocks_per_request)
    }

    /// The place behind `lba`, the first behind the last.
    pub(crate) fn behind(&self, lba: Lba) -> Lba {
        let slot = (lba.0 - self.start.0) / self.blocks_per_request + 1;
        self.start.plus(slot % self.slots * self.blocks_per_request)
    }
}

/// Puts neighbouring ranks far apart, so that popular blocks share no neighbourhood. One to one
/// where `slots` is no multiple of [`SCATTER`], which is a product of large primes.
fn scatter(rank: u64, slots: u64) -> u64 {
    (u128::from(rank) * u128::from(SCATTER) % u128::from(slots)) as u64
}

/// Zipf's distribution by rejection-inversion (Hörmann and Derflinger 1996): constant time for any
/// number of elements, nothing to prepare. Rank `k` has weight `k^-theta`.
#[derive(Clone, Debug)]
struct Zipf {
    elements: f64,
    theta: f64,
    integral_low: f64,
    integral_high: f64,
    accept: f64,
}

impl Zipf {
    fn new(elements: u64, theta: f64) -> Self {
        let elements = elements as f64;
        let mut zipf = Self { elements, theta, integral_low: 0.0, integral_high: 0.0, accept: 0.0 };
        zipf.integral_low = zipf.integral(1.5) - 1.0;
        zipf.integral_high = zipf.integral(elements + 0.5);
        zipf.accept = 2.0 - zipf.inverse(zipf.integral(2.5) - zipf.weight(2.0));
        zipf
    }

    fn weight(&self, x: f64) -> f64 {
        x.powf(-self.theta)
    }

    /// Integral of the weight, up to a constant.
    fn integral(&self, x: f64) -> f64 {
        let log = x.ln();
        let exponent = (1.0 - self.theta) * log;
        if exponent.abs() < 1e-8 { log } else { exponent.exp_m1() / (1.0 - self.theta) }
    }

    fn inverse(&self, area: f64) -> f64 {
        let t = (area * (1.0 - self.theta)).max(-1.0);
        if t.abs() < 1e-8 { area.exp() } else { (t.ln_1p() / (1.0 - self.theta)).exp() }
    }

    /// A rank from 1 on.
    fn draw(&self, rng: &mut Rng) -> u64 {
        loop {
            let area = self.integral_high + rng.unit() * (self.integral_low - self.integral_high);
            let x = self.inverse(area);
            let rank = x.round().clamp(1.0, self.elements);
            if rank - x <= self.accept || area >= self.integral(rank + 0.5) - self.weight(rank) {
                return rank as u64;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draws(access: Access, blocks: u64, per_request: u64, count: usize) -> Vec<u64> {
        let range = LbaRange::new(Lba(100), blocks);
        let mut addresses = Addresses::new(range, per_request, access);
        let mut rng = Rng::new(1);
        (0..count).map(|_| addresses.next(&mut rng).0).collect()
    }

    #[test]
    fn requests_are_aligned_and_inside_the_range() {
        for access in [
            Access::Sequential,
            Access::Random(Distribution::Uniform),
            Access::Random(Distribution::Zipf { theta: 0.99 }),
            Access::Random(Distribution::Zipf { theta: 1.0 }),
        ] {
            for lba in draws(access, 35, 4, 2000) {
                assert!((100..100 + 32).contains(&lba) && lba % 4 == 0, "{access:?}: {lba}");
            }
        }
    }

    #[test]
    fn a_sequential_load_wraps_at_the_end() {
        assert_eq!(draws(Access::Sequential, 8, 4, 3), [100, 104, 100]);
    }

    /// With theta 1 over 1000 elements the first rank has a share of 1 / H(1000), some 13.4 %.
    #[test]
    fn the_most_popular_block_has_its_share() {
        let access = Access::Random(Distribution::Zipf { theta: 1.0 });
        let all = draws(access, 1000, 1, 100_000);
        let hits = all.iter().filter(|lba| **lba == 100).count();
        assert!((12_900..13_900).contains(&hits), "{hits}");
    }

    #[test]
    fn popular_blocks_are_spread_one_to_one() {
        let mut slots: Vec<u64> = (0..4096).map(|rank| scatter(rank, 4096)).collect();
        slots.sort_unstable();
        assert!(slots.into_iter().eq(0..4096));
    }
}
