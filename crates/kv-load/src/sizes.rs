//! Sizes of keys and values, by distribution.

use std::fmt;
use std::str::FromStr;

use random::Rng;
use serde::{Deserialize, Serialize};

/// A distribution of sizes in bytes.
///
/// As text: `100` or `fixed:100`, `uniform:17,21`, `normal:MEAN,DEVIATION`, `pareto:LOCATION,SCALE,SHAPE`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Sizes {
    /// Always this size.
    Fixed(u32),
    /// Each size from the first to the second, both included.
    Uniform(u32, u32),
    /// Mean and standard deviation.
    Normal(f64, f64),
    /// Location, scale and shape of the generalised Pareto distribution, as mutilate has it.
    Pareto(f64, f64, f64),
}

/// A text that is no distribution of sizes.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error(
    "`{0}` is no distribution of sizes; write 100, uniform:17,21, normal:MEAN,DEVIATION or pareto:LOCATION,SCALE,SHAPE"
)]
pub struct ParseSizesError(String);

impl Sizes {
    /// Draws a size from `min` to `max`.
    pub(crate) fn draw(&self, rng: &mut Rng, min: u32, max: u32) -> u32 {
        let drawn = match *self {
            Self::Fixed(size) => f64::from(size),
            Self::Uniform(low, high) => {
                f64::from(low) + rng.below(u64::from(high - low) + 1) as f64
            }
            Self::Normal(mean, deviation) => mean + deviation * rng.normal(),
            Self::Pareto(location, scale, shape) => {
                location + scale * pareto(rng.positive_unit(), shape)
            }
        };
        // A float beyond the range, too, becomes its nearest end.
        (drawn.round() as u32).clamp(min, max)
    }

    /// The largest size, if the distribution has one.
    #[must_use]
    pub fn max(&self) -> Option<u32> {
        match *self {
            Self::Fixed(size) | Self::Uniform(_, size) => Some(size),
            Self::Normal(..) | Self::Pareto(..) => None,
        }
    }

    /// The smallest size, if the distribution has one.
    #[must_use]
    pub fn min(&self) -> Option<u32> {
        match *self {
            Self::Fixed(size) | Self::Uniform(size, _) => Some(size),
            Self::Normal(..) => None,
            Self::Pareto(location, ..) => Some(location as u32),
        }
    }
}

/// The standard generalised Pareto distribution at a draw `u` of 0..1.
fn pareto(u: f64, shape: f64) -> f64 {
    if shape.abs() < 1e-9 { -u.ln() } else { (u.powf(-shape) - 1.0) / shape }
}

impl FromStr for Sizes {
    type Err = ParseSizesError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || ParseSizesError(text.to_owned());
        let (kind, numbers) = text.split_once(':').unwrap_or(("fixed", text));
        let numbers: Result<Vec<f64>, _> = numbers.split(',').map(str::parse).collect();
        let numbers = numbers.map_err(|_| wrong())?;
        let whole = |number: f64| {
            let fits = number >= 0.0 && number <= f64::from(u32::MAX) && number.fract() == 0.0;
            fits.then_some(number as u32).ok_or_else(wrong)
        };
        let is_finite = numbers.iter().all(|number| number.is_finite());
        match (kind, numbers.as_slice()) {
            ("fixed", [size]) => Ok(Self::Fixed(whole(*size)?)),
            ("uniform", [low, high]) if low <= high => {
                Ok(Self::Uniform(whole(*low)?, whole(*high)?))
            }
            ("normal", [mean, deviation]) if is_finite && *mean >= 0.0 && *deviation >= 0.0 => {
                Ok(Self::Normal(*mean, *deviation))
            }
            ("pareto", [location, scale, shape])
                if is_finite && *location >= 0.0 && *scale > 0.0 =>
            {
                Ok(Self::Pareto(*location, *scale, *shape))
            }
            _ => Err(wrong()),
        }
    }
}

impl TryFrom<String> for Sizes {
    type Error = ParseSizesError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<Sizes> for String {
    fn from(sizes: Sizes) -> Self {
        sizes.to_string()
    }
}

impl fmt::Display for Sizes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(size) => write!(f, "fixed:{size}"),
            Self::Uniform(low, high) => write!(f, "uniform:{low},{high}"),
            Self::Normal(mean, deviation) => write!(f, "normal:{mean},{deviation}"),
            Self::Pareto(location, scale, shape) => write!(f, "pareto:{location},{scale},{shape}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(text: &str) -> Vec<f64> {
        let sizes: Sizes = text.parse().expect("a distribution");
        let mut rng = Rng::of_stream(7, 0);
        (0..200_000).map(|_| f64::from(sizes.draw(&mut rng, 0, u32::MAX))).collect()
    }

    fn mean(all: &[f64]) -> f64 {
        all.iter().sum::<f64>() / all.len() as f64
    }

    #[test]
    fn draws_have_the_moments_of_their_distribution() {
        let normal = drawn("normal:1000,100");
        assert!((mean(&normal) - 1000.0).abs() < 2.0);
        let squares: Vec<f64> = normal.iter().map(|size| (size - 1000.0).powi(2)).collect();
        assert!((mean(&squares).sqrt() - 100.0).abs() < 2.0);
        // The mean of a generalised Pareto distribution is location + scale / (1 - shape).
        let pareto = drawn("pareto:15,214.476,0.348238");
        assert!((mean(&pareto) / (15.0 + 214.476 / (1.0 - 0.348_238)) - 1.0).abs() < 0.02);
        let uniform = drawn("uniform:17,21");
        assert!((17..=21).all(|size| uniform.contains(&f64::from(size))));
        assert!((mean(&uniform) - 19.0).abs() < 0.02);
        assert!(drawn("100").iter().all(|size| *size == 100.0));
    }

    #[test]
    fn draws_keep_their_bounds() {
        let mut rng = Rng::of_stream(1, 1);
        for sizes in [Sizes::Normal(100.0, 1e9), Sizes::Pareto(0.0, 1e9, 5.0)] {
            assert!((0..1000).all(|_| (10..=20).contains(&sizes.draw(&mut rng, 10, 20))));
        }
    }

    #[test]
    fn texts_are_read_and_nonsense_is_refused() {
        for text in ["fixed:100", "uniform:17,21", "normal:30,8", "pareto:0,214.5,0.3"] {
            assert_eq!(text.parse::<Sizes>().expect("a distribution").to_string(), text);
        }
        for text in [
            "",
            "x",
            "-1",
            "1.5",
            "uniform:5",
            "uniform:9,5",
            "normal:1,-1",
            "normal:nan,1",
            "pareto:1,0,1",
            "pareto:1,2",
        ] {
            assert!(text.parse::<Sizes>().is_err(), "{text}");
        }
    }
}
