//! Test whether two samples of times can be told apart.
//!
//! - SAMPLES-1: nothing is assumed of how times are spread: all figures are of ranks. What is rare and large, such
//!   as a thread that lost its CPU, counts no more than any other rank.
//! - SAMPLES-2: the chance to say which is which, given one time of each, is the area under the ROC curve: of all
//!   pairs, those whose first is longer, and half of those that are equal. 50 % says nothing.

use serde::Serialize;

/// Standard errors at either side of a figure within which it lies with 95 %.
const Z95: f64 = 1.96;

/// A figure, and where it lies with 95 %.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Estimate {
    pub(super) value: f64,
    pub(super) low: f64,
    pub(super) high: f64,
}

impl Estimate {
    fn new(value: f64, error: f64) -> Self {
        Self { value, low: value - Z95 * error, high: value + Z95 * error }
    }
}

/// The difference of two samples.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Comparison {
    pub(super) medians: [f64; 2],
    /// The first's median less the second's.
    pub(super) difference: Estimate,
    /// That one of the first is longer than one of the second (SAMPLES-2).
    pub(super) longer: Estimate,
}

impl Comparison {
    /// Compares `first` with `second`; `None` if either has fewer than two values.
    pub(super) fn of(first: &[f64], second: &[f64]) -> Option<Self> {
        if first.len() < 2 || second.len() < 2 {
            return None;
        }
        let (first, second) = (sorted(first), sorted(second));
        let medians = [median(&first), median(&second)];
        let error = median_error(&first).hypot(median_error(&second));
        let difference = Estimate::new(medians[0] - medians[1], error);
        Some(Self { medians, difference, longer: longer(&first, &second) })
    }

    /// Returns the chance of telling the samples apart by their length, knowing which tends to be longer: 50 % and
    /// more.
    pub(super) fn chance(&self) -> Estimate {
        let Estimate { value, low, high } = self.longer;
        if value >= 0.5 {
            return self.longer;
        }
        Estimate { value: 1.0 - value, low: 1.0 - high, high: 1.0 - low }
    }
}

/// Standard error of the chance between two samples of `count` that cannot be told apart.
pub(super) fn chance_error(count: usize) -> f64 {
    let count = count as f64;
    ((2.0 * count + 1.0) / (12.0 * count * count)).sqrt()
}

fn sorted(values: &[f64]) -> Vec<f64> {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values
}

fn median(sorted: &[f64]) -> f64 {
    let count = sorted.len();
    (sorted[(count - 1) / 2] + sorted[count / 2]) / 2.0
}

/// Standard error of a median: how far from it the ranks lie between which the true one is with 95 %.
fn median_error(sorted: &[f64]) -> f64 {
    let last = sorted.len() - 1;
    let (middle, reach) = (last as f64 / 2.0, Z95 * (sorted.len() as f64).sqrt() / 2.0);
    let low = sorted[(middle - reach).max(0.0).floor() as usize];
    let high = sorted[((middle + reach).ceil() as usize).min(last)];
    (high - low) / (2.0 * Z95)
}

/// SAMPLES-2, with the error that DeLong, DeLong and Clarke-Pearson give it (Biometrics 44, 1988).
fn longer(first: &[f64], second: &[f64]) -> Estimate {
    let above: Vec<f64> = first.iter().map(|value| share_below(second, *value)).collect();
    let below: Vec<f64> = second.iter().map(|value| 1.0 - share_below(first, *value)).collect();
    let error =
        (variance(&above) / first.len() as f64 + variance(&below) / second.len() as f64).sqrt();
    Estimate::new(mean(&above), error)
}

/// The part of `sorted` that is less than `value`; what is equal counts half.
fn share_below(sorted: &[f64], value: f64) -> f64 {
    let less = sorted.partition_point(|other| *other < value);
    let not_more = sorted.partition_point(|other| *other <= value);
    (less + not_more) as f64 / 2.0 / sorted.len() as f64
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

fn variance(values: &[f64]) -> f64 {
    let mean = mean(values);
    values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (values.len() - 1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Multiples of an irrational number, modulo one: spread evenly, without chance.
    fn spread(count: usize, step: f64) -> Vec<f64> {
        (1..=count).map(|index| (index as f64 * step).fract()).collect()
    }

    const GOLDEN: f64 = 0.618_033_988_749_895;
    const ROOT_TWO: f64 = std::f64::consts::SQRT_2;

    fn compare(first: &[f64], second: &[f64]) -> Comparison {
        Comparison::of(first, second).expect("two values each")
    }

    /// By hand: of the nine pairs, 4 > 1 and so on: six are longer, one is equal.
    #[test]
    fn small_samples_give_what_counting_does() {
        let compared = compare(&[4.0, 2.0, 6.0], &[3.0, 1.0, 4.0]);
        assert_eq!(compared.medians, [4.0, 3.0]);
        assert!((compared.longer.value - 6.5 / 9.0).abs() < 1e-12, "{compared:?}");
        // Placements of the first: 1/3, 2.5/3, 1; of the second: 2/3, 1, 1.5/3.
        let variances = [1.0 / 3.0, 2.5 / 3.0, 1.0, 2.0 / 3.0, 1.0, 0.5];
        let error = (variance(&variances[..3]) / 3.0 + variance(&variances[3..]) / 3.0).sqrt();
        let width = compared.longer.high - compared.longer.low;
        assert!((width - 2.0 * Z95 * error).abs() < 1e-12, "{compared:?}");
        assert_eq!(Comparison::of(&[1.0], &[1.0, 2.0]), None);
    }

    #[test]
    fn what_is_equally_spread_cannot_be_told_apart() {
        let compared = compare(&spread(4000, GOLDEN), &spread(4000, ROOT_TWO));
        assert!((compared.longer.value - 0.5).abs() < chance_error(4000), "{compared:?}");
        assert!(compared.difference.low < 0.0 && compared.difference.high > 0.0, "{compared:?}");
        let same = compare(&[5.0; 9], &[5.0; 7]);
        assert_eq!((same.longer.value, same.difference.value), (0.5, 0.0));
    }

    /// With both even over one, a shift by d makes the first longer with 1 - (1 - d)² / 2.
    #[test]
    fn what_is_shifted_is_told_apart_from_either_side() {
        let (plain, shift) = (spread(4000, ROOT_TWO), 0.05);
        let shifted: Vec<f64> = spread(4000, GOLDEN).iter().map(|value| value + shift).collect();
        let expected = 1.0 - (1.0 - shift).powi(2) / 2.0;
        let there = compare(&shifted, &plain);
        assert!((there.longer.value - expected).abs() < 0.001, "{there:?}");
        assert!(there.longer.low > 0.5 + 4.0 * chance_error(4000), "{there:?}");
        assert!(there.difference.low < shift && shift < there.difference.high, "{there:?}");
        assert!(there.difference.low > 0.0, "{there:?}");
        let back = compare(&plain, &shifted);
        assert!((back.longer.value + there.longer.value - 1.0).abs() < 1e-12);
        let (chance, other) = (back.chance(), there.chance());
        assert!((chance.value - other.value).abs() < 1e-12 && chance.low <= chance.value);
        assert!((chance.high - other.high).abs() < 1e-12, "{chance:?} {other:?}");
    }

    /// SAMPLES-1: a few that are very late change neither figure by much.
    #[test]
    fn what_is_rare_and_large_does_not_hide_the_rest() {
        let (plain, mut late) = (spread(2000, ROOT_TWO), spread(2000, GOLDEN));
        late.iter_mut().step_by(100).for_each(|value| *value += 1e9);
        let compared = compare(&late, &plain);
        assert!(compared.longer.value < 0.51, "{compared:?}");
        assert!(compared.difference.value < 0.01, "{compared:?}");
    }

    /// The variance of U over the product of the counts, squared: Mann and Whitney's.
    #[test]
    fn noise_alone_has_its_error() {
        assert!((chance_error(8000) - 0.004_564).abs() < 1e-6);
        let compared = compare(&spread(8000, GOLDEN), &spread(8000, ROOT_TWO));
        let error = (compared.longer.high - compared.longer.value) / Z95;
        assert!((error / chance_error(8000) - 1.0).abs() < 0.01, "{compared:?}");
    }
}
