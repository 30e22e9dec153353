//! Figures over drives: mean, standard deviation, and the drives that are far off.

use serde::Serialize;

use crate::latencies::{Latencies, NINES, Nines};
use crate::result::Profile;

/// A drive is far off if it is this many robust standard deviations away from the median of all.
const FAR_DEVIATIONS: f64 = 5.0;
/// And at least this share of the median.
const FAR_SHARE: f64 = 0.1;
/// Drives below which none can be called far off.
const DRIVES_MIN: usize = 4;
/// The median absolute deviation of a normal distribution times this is its standard deviation.
const MAD_TO_DEVIATION: f64 = 1.4826;

/// A figure of a distribution.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Figure {
    /// The mean.
    Mean,
    /// A percentile.
    Nines(Nines),
    /// The largest.
    Max,
}

/// All figures, in the order in which they are shown.
pub const FIGURES: [Figure; 7] = [
    Figure::Mean,
    Figure::Nines(NINES[0]),
    Figure::Nines(NINES[1]),
    Figure::Nines(NINES[2]),
    Figure::Nines(NINES[3]),
    Figure::Nines(NINES[4]),
    Figure::Max,
];

impl Figure {
    /// Its value, if the sample carries it.
    #[must_use]
    pub fn of(self, latencies: &Latencies) -> Option<f64> {
        match self {
            Self::Mean => latencies.mean_ns(),
            Self::Nines(nines) => latencies.nines(nines).map(|ns| ns as f64),
            Self::Max => latencies.max_ns().map(|ns| ns as f64),
        }
    }

    /// `mean`, `99.9 %`, `max`.
    #[must_use]
    pub fn label(self) -> String {
        match self {
            Self::Mean => "mean".to_owned(),
            Self::Nines(nines) => nines.label(),
            Self::Max => "max".to_owned(),
        }
    }

    /// The name of its field in JSON.
    #[must_use]
    pub fn field(self) -> String {
        match self {
            Self::Mean => "mean_ns".to_owned(),
            Self::Nines(nines) => nines.field(),
            Self::Max => "max_ns".to_owned(),
        }
    }
}

/// A figure over the drives of a profile.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct OverDrives {
    /// Mean.
    pub mean_ns: f64,
    /// Standard deviation; 0 with one drive.
    pub deviation_ns: f64,
    /// Drives that carry the figure.
    pub drives: usize,
}

/// The mean and standard deviation of some values.
#[must_use]
pub(crate) fn spread(values: &[f64]) -> Option<OverDrives> {
    let count = values.len();
    if count == 0 {
        return None;
    }
    let mean = values.iter().sum::<f64>() / count as f64;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    let deviation = if count > 1 { (squares / (count - 1) as f64).sqrt() } else { 0.0 };
    Some(OverDrives { mean_ns: mean, deviation_ns: deviation, drives: count })
}

pub(crate) fn values(profile: &Profile, figure: Figure) -> Vec<f64> {
    profile.drives.iter().filter_map(|drive| figure.of(&drive.latencies)).collect()
}

/// Mean and standard deviation of a figure over all drives, or `None` if a drive does not carry it: over some of
/// the drives it would be compared with what it is not.
#[must_use]
pub fn over_drives(profile: &Profile, figure: Figure) -> Option<OverDrives> {
    let values = values(profile, figure);
    if values.len() < profile.drives.len() {
        return None;
    }
    spread(&values)
}

/// A drive that is far off the others.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Outlier {
    /// Its name.
    pub drive: String,
    /// The figure.
    pub figure: String,
    /// The drive's value.
    pub ns: f64,
    /// The median of all drives.
    pub median_ns: f64,
}

/// Drives that are far off the others in the mean or a percentile. The largest latency is left out: it is a matter
/// of chance.
#[must_use]
pub fn outliers(profile: &Profile) -> Vec<Outlier> {
    let figures = FIGURES.into_iter().filter(|figure| *figure != Figure::Max);
    figures.flat_map(|figure| far_off(profile, figure)).collect()
}

fn far_off(profile: &Profile, figure: Figure) -> Vec<Outlier> {
    let values = values(profile, figure);
    if values.len() < DRIVES_MIN {
        return Vec::new();
    }
    let median = median(&values);
    let distances: Vec<f64> = values.iter().map(|value| (value - median).abs()).collect();
    let deviation = self::median(&distances) * MAD_TO_DEVIATION;
    let far = (FAR_DEVIATIONS * deviation).max(FAR_SHARE * median);
    let drives =
        profile.drives.iter().filter_map(|drive| Some((drive, figure.of(&drive.latencies)?)));
    let off = drives.filter(|(_, ns)| (ns - median).abs() > far);
    off.map(|(drive, ns)| Outlier {
        drive: profile.name(drive),
        figure: figure.label(),
        ns,
        median_ns: median,
    })
    .collect()
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let count = sorted.len();
    (sorted[(count - 1) / 2] + sorted[count / 2]) / 2.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::tests::profile;

    #[test]
    fn mean_and_deviation_are_those_over_drives() {
        let all = over_drives(&profile("a", 1, &[80_000, 90_000, 100_000]), Figure::Mean).unwrap();
        assert_eq!(all.drives, 3);
        assert!((all.mean_ns - 94_995.0).abs() < 1.0, "{all:?}");
        assert!((all.deviation_ns - 10_000.0).abs() < 1.0, "{all:?}");
    }

    #[test]
    fn a_figure_that_one_drive_does_not_carry_has_no_mean() {
        let mut some = profile("a", 1, &[80_000, 90_000]);
        assert!(over_drives(&some, Figure::Nines(NINES[1])).is_some());
        some.drives[1].latencies = Latencies::default();
        some.drives[1].latencies.record(5);
        assert_eq!(over_drives(&some, Figure::Nines(NINES[1])), None);
        assert!(over_drives(&some, Figure::Max).is_some());
    }

    #[test]
    fn one_drive_off_is_named_and_like_drives_are_not() {
        let like: Vec<u64> = (0..16).map(|n| 80_000 + n * 300).collect();
        assert!(outliers(&profile("a", 1, &like)).is_empty());
        // Fifteen equal drives have no spread, and still one is not far off for a hundredth.
        let mut nearly = [80_000; 16];
        nearly[3] = 81_000;
        assert!(outliers(&profile("a", 1, &nearly)).is_empty());
        let mut off = like.clone();
        off[7] = 160_000;
        let found = outliers(&profile("a", 1, &off));
        assert!(found.iter().all(|outlier| outlier.drive == "/dev/nvme7n1"), "{found:?}");
        assert_eq!(found[0].figure, "mean");
        assert!(outliers(&profile("a", 1, &[80_000, 160_000, 80_000])).is_empty());
    }
}
