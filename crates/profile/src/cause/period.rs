//! Periods in the times at which a drive was slow: its own housekeeping.

use serde::{Deserialize, Serialize};

/// Spikes from which on a period is looked for.
const SPIKES_MIN: usize = 5;
/// Slow requests that are no further apart than this share of the whole time are one spike.
const SPIKE_SHARE: f64 = 0.002;
/// Distance from a whole multiple of the period, as a share of it.
const TOLERANCE: f64 = 0.08;
/// Multiples of the period that are counted: a spike may hit no request.
const MULTIPLES_MAX: f64 = 3.0;
/// Share of distances that must fit.
const FIT_MIN: f64 = 0.8;

/// A period of slow requests.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Period {
    /// Its length.
    pub seconds: f64,
    /// Spikes that were seen.
    pub spikes: usize,
}

/// Finds the period of the times at which a drive was slow, if they have one. `span_ns` is the length of the run.
#[must_use]
pub fn period(times_ns: &[u64], span_ns: u64) -> Option<Period> {
    let mut times: Vec<f64> = times_ns.iter().map(|ns| *ns as f64 / 1e9).collect();
    times.sort_by(f64::total_cmp);
    let apart = span_ns as f64 / 1e9 * SPIKE_SHARE;
    let mut spikes: Vec<f64> = Vec::new();
    let mut last = f64::NEG_INFINITY;
    for time in times {
        if time - last > apart {
            spikes.push(time);
        }
        last = time;
    }
    if spikes.len() < SPIKES_MIN {
        return None;
    }
    let gaps: Vec<f64> = spikes.windows(2).map(|pair| pair[1] - pair[0]).collect();
    let mut sorted = gaps.clone();
    sorted.sort_by(f64::total_cmp);
    let first_guess = sorted[sorted.len() / 2];
    let multiple = |gap: f64| (gap / first_guess).round();
    let fits = |gap: &&f64| {
        let times = multiple(**gap);
        let off = (**gap / first_guess - times).abs();
        (1.0..=MULTIPLES_MAX).contains(&times) && off <= TOLERANCE
    };
    let fitting: Vec<f64> = gaps.iter().filter(fits).copied().collect();
    if (fitting.len() as f64) < FIT_MIN * gaps.len() as f64 || fitting.len() + 1 < SPIKES_MIN {
        return None;
    }
    let multiples: f64 = fitting.iter().map(|gap| multiple(*gap)).sum();
    Some(Period { seconds: fitting.iter().sum::<f64>() / multiples, spikes: spikes.len() })
}

#[cfg(test)]
mod tests {
    use random::Rng;

    use super::*;

    const SECOND: f64 = 1e9;

    #[test]
    fn spikes_at_regular_times_have_a_period_even_if_some_are_missed() {
        for seed in 0..200 {
            let mut rng = Rng::new(seed);
            let seconds = 0.5 + 4.0 * rng.unit();
            let mut times = Vec::new();
            for n in 0..30 {
                if rng.unit() < 0.9 {
                    let spike = (f64::from(n) + 0.02 * rng.unit()) * seconds * SECOND;
                    // A spike hits one request, or several that follow each other.
                    times.extend((0..1 + rng.below(3)).map(|k| spike as u64 + k * 400_000));
                }
            }
            let found = period(&times, (30.0 * seconds * SECOND) as u64);
            let found = found.unwrap_or_else(|| panic!("seed {seed}: no period"));
            assert!((found.seconds / seconds - 1.0).abs() < 0.02, "seed {seed}: {found:?}");
        }
    }

    #[test]
    fn spikes_by_chance_have_none() {
        let mut found = 0;
        for seed in 0..1000 {
            let mut rng = Rng::new(seed);
            let count = 5 + rng.below(60);
            let times: Vec<u64> = (0..count).map(|_| (60.0 * SECOND * rng.unit()) as u64).collect();
            found += u32::from(period(&times, (60.0 * SECOND) as u64).is_some());
        }
        assert!(found <= 10, "{found} of 1000 random schedules have a period");
        assert_eq!(period(&[], 1), None);
        assert_eq!(period(&[5, 6, 7], 1_000_000_000), None);
    }
}
