//! Chance, as a function of the model's seed.

use random::Rng;

/// A duration that varies evenly around its mean.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Around {
    low_ns: u64,
    span_ns: u64,
    pub(crate) mean_ns: u64,
}

impl Around {
    /// `mean_ns`, more or less by up to the share `spread`.
    pub(crate) fn new(mean_ns: u64, spread: f64) -> Self {
        let half = (mean_ns as f64 * spread) as u64;
        Self { low_ns: mean_ns - half, span_ns: 2 * half + 1, mean_ns }
    }

    pub(crate) fn draw(&self, rng: &mut Rng) -> u64 {
        self.low_ns + rng.below(self.span_ns)
    }
}

/// A rare delay whose lengths follow a power law, up to a bound.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tail {
    share: f64,
    /// A draw below this has a delay.
    threshold: u64,
    scale_ns: f64,
    exponent: f64,
    max_ns: u64,
}

impl Tail {
    /// One request in `1 / share` is delayed, by at least `scale_ns`, and by more than `x` with
    /// probability `(scale_ns / x) ^ shape` among them.
    pub(crate) fn new(share: f64, scale_ns: u64, shape: f64, max_ns: u64) -> Self {
        let threshold = (share * (1u128 << 64) as f64) as u64;
        Self { share, threshold, scale_ns: scale_ns as f64, exponent: -1.0 / shape, max_ns }
    }

    pub(crate) fn draw(&self, rng: &mut Rng) -> u64 {
        let bits = rng.next_u64();
        if bits >= self.threshold {
            return 0;
        }
        let rank = (bits as f64 + 1.0) / (self.share * (1u128 << 64) as f64);
        ((self.scale_ns * rank.powf(self.exponent)) as u64).min(self.max_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_stay_within_their_spread_and_keep_their_mean() {
        let mut rng = Rng::new(1);
        let around = Around::new(10_000, 0.2);
        let draws: Vec<u64> = (0..100_000).map(|_| around.draw(&mut rng)).collect();
        assert!(draws.iter().all(|ns| (8_000..=12_000).contains(ns)));
        let mean = draws.iter().sum::<u64>() / draws.len() as u64;
        assert!((9_950..=10_050).contains(&mean), "{mean}");
        assert_eq!(Around::new(0, 0.2).draw(&mut rng), 0);
    }

    #[test]
    fn the_tail_is_as_rare_and_as_long_as_it_should_be() {
        let mut rng = Rng::new(2);
        let tail = Tail::new(0.01, 1_000, 2.0, 50_000);
        let draws: Vec<u64> = (0..1_000_000).map(|_| tail.draw(&mut rng)).collect();
        let beyond = |ns: u64| draws.iter().filter(|draw| **draw > ns).count();
        assert!((9_500..10_500).contains(&beyond(0)), "{}", beyond(0));
        // A tenth of the length is a hundred times as likely with shape 2.
        assert!((70..130).contains(&beyond(10_000)), "{}", beyond(10_000));
        assert_eq!(beyond(50_000), 0);
        let never = Tail::new(0.0, 1_000, 2.0, 50_000);
        assert!((0..1000).all(|_| never.draw(&mut rng) == 0));
    }
}
