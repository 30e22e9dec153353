//! Several measurements of one thing.

use serde::Serialize;

/// Median, quartiles and extremes of repeated measurements.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// The middle value, or the mean of the two in the middle.
    pub median: f64,
    /// The smallest value.
    pub low: f64,
    /// At most a quarter of the values lies below it.
    pub lower_quartile: f64,
    /// At most a quarter of the values lies above it.
    pub upper_quartile: f64,
    /// The largest value.
    pub high: f64,
    /// Number of values.
    pub count: usize,
}

impl Spread {
    /// The spread of `values`, or `None` if there are none.
    #[must_use]
    pub fn of(values: &[f64]) -> Option<Self> {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let count = sorted.len();
        let (low, high) = (*sorted.first()?, *sorted.last()?);
        let median = (sorted[(count - 1) / 2] + sorted[count / 2]) / 2.0;
        // Of few values the extremes.
        let from_the_end = (count - 1) / 4;
        let [lower_quartile, upper_quartile] =
            [from_the_end, count - 1 - from_the_end].map(|at| sorted[at]);
        Some(Self { median, low, lower_quartile, upper_quartile, high, count })
    }

    /// The spread of `values` as [`Spread::show`] writes it, or a dash if there are none.
    #[must_use]
    pub fn shown(values: &[f64], show: impl Fn(f64) -> String) -> String {
        Self::of(values).map_or("–".to_owned(), |spread| spread.show(show))
    }

    /// `median (low–high)`, each as `show` writes it.
    #[must_use]
    pub fn show(&self, show: impl Fn(f64) -> String) -> String {
        format!("{} ({}–{})", show(self.median), show(self.low), show(self.high))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        let odd = Spread::of(&[3.0, 1.0, 2.0]).expect("values");
        assert_eq!((odd.median, odd.low, odd.high, odd.count), (2.0, 1.0, 3.0, 3));
        assert_eq!(Spread::of(&[4.0, 1.0]).expect("values").median, 2.5);
        assert_eq!(Spread::of(&[]), None);
        let whole = |value: f64| format!("{value:.0}");
        assert_eq!(Spread::shown(&[3.0, 1.0, 2.0], whole), "2 (1–3)");
        assert_eq!(Spread::shown(&[], whole), "–");
    }

    #[test]
    fn a_quarter_of_the_values_lies_beyond_each_quartile_at_most() {
        let quartiles = |values: &[f64]| {
            let spread = Spread::of(values).expect("values");
            (spread.lower_quartile, spread.upper_quartile)
        };
        assert_eq!(quartiles(&[1.0]), (1.0, 1.0));
        assert_eq!(quartiles(&[4.0, 2.0, 3.0, 1.0]), (1.0, 4.0));
        assert_eq!(quartiles(&[5.0, 4.0, 2.0, 3.0, 1.0]), (2.0, 4.0));
        let hundred: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!(quartiles(&hundred), (25.0, 76.0));
    }
}
