//! Steady state, as SNIA's performance test specification has it: five rounds that neither spread nor drift.

/// Rounds that are looked at together.
pub const WINDOW: usize = 5;
/// The largest distance between two of them, as a part of their mean.
const RANGE_MAX: f64 = 0.2;
/// The largest rise or fall of the line that fits them best, from the first to the last, as a part of their mean.
const DRIFT_MAX: f64 = 0.1;

/// The last rounds of a measurement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Window {
    /// Their mean.
    pub mean: f64,
    /// Largest less smallest, as a part of the mean.
    pub range: f64,
    /// Rise of the best line, as a part of the mean.
    pub drift: f64,
}

impl Window {
    /// The last [`WINDOW`] of `rounds`, if there are so many.
    #[must_use]
    pub fn last(rounds: &[f64]) -> Option<Self> {
        let rounds = &rounds[rounds.len().checked_sub(WINDOW)?..];
        let mean = rounds.iter().sum::<f64>() / WINDOW as f64;
        if !(mean.is_finite() && mean > 0.0) {
            return None;
        }
        let most = rounds.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let least = rounds.iter().copied().fold(f64::INFINITY, f64::min);
        let middle = (WINDOW - 1) as f64 / 2.0;
        let places = || (0..WINDOW).map(|round| round as f64 - middle);
        let products: f64 = places().zip(rounds).map(|(place, value)| place * value).sum();
        let slope = products / places().map(|place| place * place).sum::<f64>();
        let drift = slope * (WINDOW - 1) as f64 / mean;
        Some(Self { mean, range: (most - least) / mean, drift })
    }

    /// Returns true if the rounds are those of a steady state.
    #[must_use]
    pub fn is_steady(&self) -> bool {
        self.range <= RANGE_MAX && self.drift.abs() <= DRIFT_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_steady(rounds: &[f64]) -> bool {
        Window::last(rounds).is_some_and(|window| window.is_steady())
    }

    #[test]
    fn rounds_are_steady_if_they_neither_spread_nor_drift() {
        assert!(!is_steady(&[100.0; 4]), "too few");
        assert!(is_steady(&[100.0; 5]));
        assert!(is_steady(&[500.0, 300.0, 100.0, 104.0, 98.0, 101.0, 99.0]), "the last five count");
        assert!(!is_steady(&[90.0, 115.0, 100.0, 90.0, 105.0]), "spread by a quarter");
        // A range of 16 % is allowed, a drift by as much is not.
        assert!(is_steady(&[100.0, 108.0, 92.0, 108.0, 100.0]));
        assert!(!is_steady(&[92.0, 96.0, 100.0, 104.0, 108.0]));
        assert!(!is_steady(&[108.0, 104.0, 100.0, 96.0, 92.0]));
        assert!(!is_steady(&[0.0; 5]) && !is_steady(&[f64::NAN; 5]));
    }

    #[test]
    fn the_drift_is_that_of_the_best_line() {
        let window = Window::last(&[98.0, 99.0, 100.0, 101.0, 102.0]).unwrap();
        assert!((window.drift - 0.04).abs() < 1e-12 && (window.range - 0.04).abs() < 1e-12);
    }
}
