//! Two profiles beside each other: the figures that changed by more than their spread.

use serde::Serialize;

use crate::figures::{FIGURES, Figure, OverDrives, spread, values};
use crate::result::Profile;

/// Standard errors beyond which a difference is no chance: 99 % of a normal distribution.
const SIGMAS: f64 = 2.576;
/// Smaller differences are no change, however sure: the precision of two measurements together.
const SHARE_MIN: f64 = 0.02;
/// Runs from which on the spread between runs is taken.
const RUNS_MIN: usize = 3;

/// The outcome for a figure.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// Higher latency, beyond the spread.
    Worse,
    /// Lower latency, beyond the spread.
    Better,
    /// Within the spread.
    Same,
    /// One of the samples does not carry the figure.
    Unknown,
}

/// The source of a spread.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Basis {
    /// Several runs on each side.
    Runs,
    /// The drives of each side.
    Drives,
    /// The order of one drive's sample.
    Sample,
}

/// A figure on both sides.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Change {
    /// The figure.
    pub figure: String,
    /// Before: mean and standard deviation, or half of the bounds of a single sample.
    pub before: Option<OverDrives>,
    /// After.
    pub after: Option<OverDrives>,
    /// The largest difference that can be chance.
    pub allowed_ns: Option<f64>,
    /// The outcome.
    pub verdict: Verdict,
}

/// All figures of two profiles.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// The source of the spread.
    pub basis: Basis,
    /// The figures.
    pub changes: Vec<Change>,
}

/// Compares `after` with `before`.
#[must_use]
pub fn compare(before: &Profile, after: &Profile) -> Comparison {
    let least = |count: fn(&Profile) -> usize| count(before).min(count(after));
    let basis = if least(|profile| profile.runs.len()) >= RUNS_MIN {
        Basis::Runs
    } else if least(|profile| profile.drives.len()) >= 2 {
        Basis::Drives
    } else {
        Basis::Sample
    };
    let changes = FIGURES.into_iter().enumerate().map(|(index, figure)| {
        let side = |profile| side(profile, basis, index, figure);
        change(figure, side(before), side(after), basis)
    });
    Comparison { basis, changes: changes.collect() }
}

impl Comparison {
    /// The figures with this outcome.
    #[must_use]
    pub fn with(&self, verdict: Verdict) -> Vec<&str> {
        let changes = self.changes.iter().filter(|change| change.verdict == verdict);
        changes.map(|change| change.figure.as_str()).collect()
    }
}

/// A figure of one side, with its spread.
fn side(profile: &Profile, basis: Basis, index: usize, figure: Figure) -> Option<OverDrives> {
    match basis {
        Basis::Runs => {
            let runs = profile.runs.iter().map(|run| run.means_ns.get(index).copied().flatten());
            spread(&runs.collect::<Option<Vec<f64>>>()?)
        }
        Basis::Drives => {
            let values = values(profile, figure);
            (values.len() == profile.drives.len()).then(|| spread(&values)).flatten()
        }
        Basis::Sample => {
            let latencies = &profile.drives.first()?.latencies;
            let mean_ns = figure.of(latencies)?;
            let deviation_ns = match figure {
                Figure::Nines(nines) => {
                    let (low, high) = latencies.bounds(nines)?;
                    (high - low) as f64 / 2.0 / SIGMAS
                }
                // A single sample says nothing about the spread of its mean over time, nor of its largest value.
                Figure::Mean | Figure::Max => return None,
            };
            Some(OverDrives { mean_ns, deviation_ns, drives: 1 })
        }
    }
}

fn change(
    figure: Figure,
    before: Option<OverDrives>,
    after: Option<OverDrives>,
    basis: Basis,
) -> Change {
    let figure = figure.label();
    let (Some(one), Some(two)) = (before, after) else {
        return Change { figure, before, after, allowed_ns: None, verdict: Verdict::Unknown };
    };
    let square = |side: OverDrives| side.deviation_ns.powi(2) / side.drives.max(1) as f64;
    let allowed_ns = (SIGMAS * (square(one) + square(two)).sqrt()).max(SHARE_MIN * one.mean_ns);
    let difference = two.mean_ns - one.mean_ns;
    let verdict = match difference.abs() > allowed_ns {
        // One drive far off does not make a group: with two or three, a difference must exceed the whole spread.
        true if basis != Basis::Sample
            && one.drives.min(two.drives) < 4
            && difference.abs() < one.deviation_ns + two.deviation_ns =>
        {
            Verdict::Same
        }
        true if difference > 0.0 => Verdict::Worse,
        true => Verdict::Better,
        false => Verdict::Same,
    };
    Change { figure, before, after, allowed_ns: Some(allowed_ns), verdict }
}

#[cfg(test)]
mod tests {
    use random::Rng;

    use super::*;
    use crate::result::tests::profile;

    fn levels(rng: &mut Rng, count: usize, mean: f64, deviation: f64) -> Vec<u64> {
        (0..count).map(|_| (mean + deviation * rng.normal()) as u64).collect()
    }

    #[test]
    fn like_arrays_are_the_same_and_a_shift_is_seen() {
        let (mut changed, mut missed) = (0, 0);
        for seed in 0..40 {
            let mut rng = Rng::new(seed);
            let before = profile("a", 1, &levels(&mut rng, 8, 80_000.0, 2_000.0));
            let after = profile("a", 2, &levels(&mut rng, 8, 80_000.0, 2_000.0));
            let worse = profile("a", 3, &levels(&mut rng, 8, 95_000.0, 2_000.0));
            changed += usize::from(compare(&before, &after).changes[0].verdict != Verdict::Same);
            missed += usize::from(compare(&before, &worse).changes[0].verdict != Verdict::Worse);
            assert_eq!(compare(&worse, &before).changes[0].verdict, Verdict::Better);
        }
        assert!(changed <= 2, "{changed} of 40 pairs of like arrays differ");
        assert_eq!(missed, 0, "shifts that were not seen");
    }

    #[test]
    fn single_drives_are_compared_by_their_samples() {
        let (before, after) = (profile("a", 1, &[80_000]), profile("a", 2, &[90_000]));
        let found = compare(&before, &after);
        assert_eq!(found.basis, Basis::Sample);
        assert_eq!(found.with(Verdict::Worse), ["99 %", "99.9 %"]);
        assert_eq!(found.with(Verdict::Unknown).len(), 5);
        assert!(compare(&before, &before).with(Verdict::Worse).is_empty());
    }

    /// Runs of one host differ more than its drives do: where there are enough, their spread counts.
    #[test]
    fn the_spread_between_runs_counts_where_there_are_three() {
        let merged = |levels: [u64; 3], first: u64| {
            let mut all = profile("a", first, &[levels[0], levels[0] + 10]);
            for (run, level) in (1..).zip(&levels[1..]) {
                all.merge(&profile("a", first + run, &[*level, level + 10])).unwrap();
            }
            all
        };
        let (one, two) =
            (merged([80_000, 90_000, 100_000], 1), merged([85_000, 96_000, 104_000], 9));
        let found = compare(&one, &two);
        assert_eq!((found.basis, found.changes[0].verdict), (Basis::Runs, Verdict::Same));
        let far = merged([180_000, 190_000, 200_000], 20);
        assert_eq!(compare(&one, &far).changes[0].verdict, Verdict::Worse);
    }
}
