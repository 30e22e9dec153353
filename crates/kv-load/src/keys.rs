//! Keys: their names, and how often each is asked for.

use std::fmt;
use std::str::FromStr;

use crate::sizes::Sizes;
use random::{Rng, mix};
use serde::{Deserialize, Serialize};

/// The shortest key. Eleven characters of 64 have room for each number of 64 bits.
pub const KEY_LEN_MIN: u32 = 11;

const ALPHABET: &[u8; 64] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_-";

/// Popularity of keys. As text: `uniform`, or `zipf:EXPONENT`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Popularity {
    /// All keys alike.
    Uniform,
    /// The key of rank n is asked for in proportion to n to the power of minus the exponent.
    Zipf(f64),
}

/// A text that is no popularity.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error(
    "`{0}` is no popularity of keys; write uniform, or zipf:0.99 with an exponent of 0.01 to 10"
)]
pub struct ParsePopularityError(String);

impl FromStr for Popularity {
    type Err = ParsePopularityError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "uniform" {
            return Ok(Self::Uniform);
        }
        let exponent: Option<f64> =
            text.strip_prefix("zipf:").and_then(|number| number.parse().ok());
        let exponent = exponent.filter(|exponent| (0.01..=10.0).contains(exponent));
        exponent.map(Self::Zipf).ok_or_else(|| ParsePopularityError(text.to_owned()))
    }
}

impl fmt::Display for Popularity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Uniform => f.write_str("uniform"),
            Self::Zipf(exponent) => write!(f, "zipf:{exponent}"),
        }
    }
}

impl TryFrom<String> for Popularity {
    type Error = ParsePopularityError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<Popularity> for String {
    fn from(popularity: Popularity) -> Self {
        popularity.to_string()
    }
}

/// Draws keys of a popularity.
#[derive(Clone, Debug)]
pub(crate) enum Chooser {
    Uniform { keys: u64 },
    Zipf(Zipf),
}

impl Chooser {
    pub(crate) fn new(popularity: Popularity, keys: u64) -> Self {
        match popularity {
            Popularity::Uniform => Self::Uniform { keys },
            Popularity::Zipf(exponent) => Self::Zipf(Zipf::new(keys, exponent)),
        }
    }

    /// The index of a key, from 0 on. With Zipf, 0 is the most popular.
    pub(crate) fn draw(&self, rng: &mut Rng) -> u64 {
        match self {
            Self::Uniform { keys } => rng.below(*keys),
            Self::Zipf(zipf) => zipf.draw(rng) - 1,
        }
    }
}

/// Zipf's distribution over 1..=n by rejection and inversion (Hörmann and Derflinger 1996): no table, whatever n is.
#[derive(Clone, Debug)]
pub(crate) struct Zipf {
    keys: u64,
    exponent: f64,
    /// The integral of the density at 1.5 minus 1, and at n + 0.5.
    low: f64,
    high: f64,
    shortcut: f64,
}

impl Zipf {
    fn new(keys: u64, exponent: f64) -> Self {
        let mut zipf = Self { keys, exponent, low: 0.0, high: 0.0, shortcut: 0.0 };
        zipf.low = zipf.integral(1.5) - 1.0;
        zipf.high = zipf.integral(keys as f64 + 0.5);
        zipf.shortcut = 2.0 - zipf.inverse(zipf.integral(2.5) - zipf.density(2.0));
        zipf
    }

    fn density(&self, x: f64) -> f64 {
        (-self.exponent * x.ln()).exp()
    }

    /// The integral of the density up to `x`.
    fn integral(&self, x: f64) -> f64 {
        let log = x.ln();
        exp_minus_one_over((1.0 - self.exponent) * log) * log
    }

    fn inverse(&self, y: f64) -> f64 {
        let t = (y * (1.0 - self.exponent)).max(-1.0);
        (log_plus_one_over(t) * y).exp()
    }

    fn draw(&self, rng: &mut Rng) -> u64 {
        loop {
            let u = self.high + rng.unit() * (self.low - self.high);
            let x = self.inverse(u);
            let rank = (x.round() as u64).clamp(1, self.keys);
            let k = rank as f64;
            if k - x <= self.shortcut || u >= self.integral(k + 0.5) - self.density(k) {
                return rank;
            }
        }
    }
}

/// (eˣ - 1) / x, also near 0.
fn exp_minus_one_over(x: f64) -> f64 {
    if x.abs() > 1e-8 { x.exp_m1() / x } else { 1.0 + x / 2.0 }
}

/// ln(1 + x) / x, also near 0.
fn log_plus_one_over(x: f64) -> f64 {
    if x.abs() > 1e-8 { x.ln_1p() / x } else { 1.0 - x / 2.0 }
}

/// Writes the name of the key of an index: the same at each call, unlike that of any other index. Neighbours in
/// rank are no neighbours in the order of names, so hot keys lie all over the database.
pub(crate) fn write_key(index: u64, sizes: &Sizes, key: &mut Vec<u8>) {
    key.clear();
    let mut rest = mix(index);
    for _ in 0..KEY_LEN_MIN {
        key.push(ALPHABET[(rest % 64) as usize]);
        rest /= 64;
    }
    // The size, too, is a function of the index.
    let size = sizes.draw(&mut Rng::of_stream(index, 1), KEY_LEN_MIN, 1 << 15);
    key.resize(size as usize, b'.');
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn keys_are_unlike_and_have_their_sizes() {
        let sizes = Sizes::Uniform(17, 21);
        let (mut all, mut lens) = (HashSet::new(), HashSet::new());
        let mut key = Vec::new();
        for index in 0..100_000 {
            write_key(index, &sizes, &mut key);
            lens.insert(key.len());
            assert!(all.insert(key.clone()), "{index}");
        }
        assert_eq!(lens, (17..=21).collect());
        let mut again = Vec::new();
        write_key(99_999, &sizes, &mut again);
        assert_eq!(again, key);
    }

    /// Counts of each rank against the probabilities of the definition, by the chi-squared statistic.
    #[test]
    fn ranks_are_drawn_as_zipf_says() {
        const KEYS: usize = 50;
        const DRAWS: usize = 200_000;
        for exponent in [0.5, 0.99, 1.0, 1.5] {
            let chooser = Chooser::new(Popularity::Zipf(exponent), KEYS as u64);
            let mut rng = Rng::of_stream(11, 0);
            let mut counts = [0u64; KEYS];
            for _ in 0..DRAWS {
                counts[chooser.draw(&mut rng) as usize] += 1;
            }
            let weight = |rank: usize| ((rank + 1) as f64).powf(-exponent);
            let whole: f64 = (0..KEYS).map(weight).sum();
            let chi_squared: f64 = counts
                .iter()
                .enumerate()
                .map(|(rank, count)| {
                    let expected = DRAWS as f64 * weight(rank) / whole;
                    (*count as f64 - expected).powi(2) / expected
                })
                .sum();
            // 49 degrees of freedom: 85 is passed by chance once in a thousand times; the seed is fixed.
            assert!(chi_squared < 85.0, "exponent {exponent}: {chi_squared}");
        }
    }

    #[test]
    fn a_zipf_of_many_keys_stays_in_range() {
        let mut rng = Rng::of_stream(3, 0);
        for keys in [1, 2, 1 << 40] {
            let chooser = Chooser::new(Popularity::Zipf(0.99), keys);
            assert!((0..10_000).all(|_| chooser.draw(&mut rng) < keys));
        }
    }

    #[test]
    fn texts_are_read_and_nonsense_is_refused() {
        assert_eq!("uniform".parse(), Ok(Popularity::Uniform));
        assert_eq!("zipf:0.99".parse(), Ok(Popularity::Zipf(0.99)));
        for text in ["", "zipf", "zipf:", "zipf:0", "zipf:-1", "zipf:nan", "hot"] {
            assert!(text.parse::<Popularity>().is_err(), "{text}");
        }
    }
}
