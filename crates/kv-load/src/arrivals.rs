//! The schedule of requests: when each is meant to start, whatever the server does.

use std::time::Duration;

use random::Rng;
use serde::{Deserialize, Serialize};

/// The distances between requests.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Arrivals {
    /// Random, as requests of many independent users come.
    Poisson,
    /// Equal.
    Uniform,
}

/// The starts of one thread's requests, as times since the start of the run.
#[derive(Clone, Debug)]
pub(crate) struct Schedule {
    arrivals: Arrivals,
    /// Mean distance in nanoseconds.
    mean_ns: f64,
    /// The next start in nanoseconds; a float, so that rates that divide no second do not drift.
    next_ns: f64,
}

impl Schedule {
    /// Thread `index` of `threads` takes its part of `rate` requests a second.
    pub(crate) fn new(
        arrivals: Arrivals,
        rate: f64,
        index: usize,
        threads: usize,
        rng: &mut Rng,
    ) -> Self {
        let mean_ns = 1e9 * threads as f64 / rate;
        let mut schedule = Self { arrivals, mean_ns, next_ns: 0.0 };
        // Threads take turns, and do not start together.
        match arrivals {
            Arrivals::Uniform => schedule.next_ns = mean_ns * index as f64 / threads as f64,
            Arrivals::Poisson => schedule.advance(rng),
        }
        schedule
    }

    /// The start of the next request.
    pub(crate) fn next(&self) -> Duration {
        Duration::from_nanos(self.next_ns as u64)
    }

    /// Goes on to the request after it.
    pub(crate) fn advance(&mut self, rng: &mut Rng) {
        self.next_ns += match self.arrivals {
            Arrivals::Uniform => self.mean_ns,
            Arrivals::Poisson => self.mean_ns * rng.exponential(),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn starts(arrivals: Arrivals, rate: f64, threads: usize) -> Vec<f64> {
        let mut all = Vec::new();
        for index in 0..threads {
            let mut rng = Rng::of_stream(5, index as u64);
            let mut schedule = Schedule::new(arrivals, rate, index, threads, &mut rng);
            while schedule.next() < Duration::from_secs(100) {
                all.push(schedule.next().as_secs_f64());
                schedule.advance(&mut rng);
            }
        }
        all.sort_by(f64::total_cmp);
        all
    }

    #[test]
    fn equal_distances_stay_equal_over_threads() {
        let starts = starts(Arrivals::Uniform, 300.0, 3);
        assert_eq!(starts.len(), 30_000);
        assert!(starts.windows(2).all(|pair| (pair[1] - pair[0] - 1.0 / 300.0).abs() < 1e-6));
    }

    /// The rate is that which was asked for, and the distances are exponential: as far spread as their mean.
    #[test]
    fn random_distances_are_exponential_over_threads() {
        let starts = starts(Arrivals::Poisson, 1000.0, 4);
        // 100 000 are expected, give or take four times their root.
        assert!((98_735..101_265).contains(&starts.len()), "{}", starts.len());
        let distances: Vec<f64> = starts.windows(2).map(|pair| pair[1] - pair[0]).collect();
        let mean = distances.iter().sum::<f64>() / distances.len() as f64;
        let variance =
            distances.iter().map(|d| (d - mean).powi(2)).sum::<f64>() / distances.len() as f64;
        assert!((variance.sqrt() / mean - 1.0).abs() < 0.02);
        let long =
            distances.iter().filter(|d| **d > 3.0 * mean).count() as f64 / distances.len() as f64;
        assert!((long - (-3f64).exp()).abs() < 0.003, "{long}");
    }
}
