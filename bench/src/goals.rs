//! Goals of the measurements.

use report::Spread;
use serde::Serialize;

use crate::case::{Case, Sample, Shape, Subject};

/// Derivation of a goal's figure from two measurements of one round.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Figure {
    /// Requests a second of the one as a share of the other's; at least the bound.
    RateShare,
    /// Mean latency added; below the bound.
    AddedMicroseconds,
}

struct Goal {
    what: &'static str,
    figure: Figure,
    measured: Case,
    against: Case,
    /// `None`: reported without a bound.
    bound: Option<f64>,
}

/// A goal and what was reached.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Verdict {
    pub(crate) what: &'static str,
    /// `None`: not measured.
    pub(crate) reached: Option<Spread>,
    pub(crate) bound: Option<f64>,
    pub(crate) met: Option<bool>,
    pub(crate) is_latency: bool,
}

const fn case(subject: Subject, shape: Shape) -> Case {
    Case { subject, shape }
}

const fn share(what: &'static str, measured: Case, against: Case, bound: f64) -> Goal {
    Goal { what, figure: Figure::RateShare, measured, against, bound: Some(bound) }
}

const GOALS: [Goal; 21] = {
    use Subject::{FarflashFile, FarflashMem, LocalFile, NbdkitFile, NbdkitMem, Null, QemuNbdFile};
    use Subject::{FarflashMemInOrder, NullChecked, NullFile, NullScattered};
    let mem_32 = case(FarflashMem, Shape::READ_32);
    let file_32 = case(FarflashFile, Shape::READ_32);
    [
        share(
            "read, depth 32, of the null server's rate",
            mem_32,
            case(Null, Shape::READ_32),
            0.45,
        ),
        Goal {
            what: "the same, of a null server's that sends from 1 GiB",
            figure: Figure::RateShare,
            measured: mem_32,
            against: case(NullScattered, Shape::READ_32),
            bound: None,
        },
        share(
            "write, depth 32, of the null server's rate",
            case(FarflashMem, Shape::WRITE_32),
            case(Null, Shape::WRITE_32),
            0.40,
        ),
        Goal {
            what: "read, depth 1, latency added to the null server's",
            figure: Figure::AddedMicroseconds,
            measured: case(FarflashMem, Shape::READ_1),
            against: case(Null, Shape::READ_1),
            bound: Some(6.0),
        },
        Goal {
            what: "write, depth 1, latency added to the null server's",
            figure: Figure::AddedMicroseconds,
            measured: case(FarflashMem, Shape::WRITE_1),
            against: case(Null, Shape::WRITE_1),
            bound: None,
        },
        share(
            "read, depth 128, of the null server's rate",
            case(FarflashMem, Shape::READ_128),
            case(Null, Shape::READ_128),
            0.38,
        ),
        Goal {
            what: "the same, of a null server's that sends from 1 GiB",
            figure: Figure::RateShare,
            measured: case(FarflashMem, Shape::READ_128),
            against: case(NullScattered, Shape::READ_128),
            bound: None,
        },
        Goal {
            what: "read, depth 128, from a set of 16 MiB, of the null server's rate",
            figure: Figure::RateShare,
            measured: case(FarflashMem, Shape::READ_128_HOT),
            against: case(Null, Shape::READ_128),
            bound: None,
        },
        share(
            "read of 128 KiB, depth 8, of the null server's bandwidth",
            case(FarflashMem, Shape::LARGE_READ),
            case(Null, Shape::LARGE_READ),
            0.80,
        ),
        Goal {
            what: "the same, of a null server's that sends from 1 GiB",
            figure: Figure::RateShare,
            measured: case(FarflashMem, Shape::LARGE_READ),
            against: case(NullScattered, Shape::LARGE_READ),
            bound: None,
        },
        Goal {
            what: "the same, of a volume written in order, of the null server's bandwidth",
            figure: Figure::RateShare,
            measured: case(FarflashMemInOrder, Shape::LARGE_READ),
            against: case(Null, Shape::LARGE_READ),
            bound: None,
        },
        Goal {
            what: "the same, of a null server's that sends from 1 GiB and checks what it sends",
            figure: Figure::RateShare,
            measured: case(FarflashMemInOrder, Shape::LARGE_READ),
            against: case(NullChecked, Shape::LARGE_READ),
            bound: None,
        },
        Goal {
            what: "what that one reaches by itself, of the null server's bandwidth",
            figure: Figure::RateShare,
            measured: case(NullChecked, Shape::LARGE_READ),
            against: case(Null, Shape::LARGE_READ),
            bound: None,
        },
        share(
            "4 connections of depth 32, of one",
            case(FarflashMem, Shape::READ_4X32),
            mem_32,
            0.85,
        ),
        share(
            "64 connections of depth 8, of one of depth 32",
            case(FarflashMem, Shape::READ_64X8),
            mem_32,
            0.70,
        ),
        share(
            "file, read, depth 32, of the rate without network",
            file_32,
            case(LocalFile, Shape::READ_32),
            0.97,
        ),
        Goal {
            what: "the same, of a null server's of such a file",
            figure: Figure::RateShare,
            measured: file_32,
            against: case(NullFile, Shape::READ_32),
            bound: None,
        },
        Goal {
            what: "what that one reaches by itself, of the rate without network",
            figure: Figure::RateShare,
            measured: case(NullFile, Shape::READ_32),
            against: case(LocalFile, Shape::READ_32),
            bound: None,
        },
        share(
            "read, depth 32, in multiples of nbdkit",
            mem_32,
            case(NbdkitMem, Shape::READ_32),
            4.0,
        ),
        Goal {
            what: "file, read, depth 32, in multiples of nbdkit (page cache)",
            figure: Figure::RateShare,
            measured: file_32,
            against: case(NbdkitFile, Shape::READ_32),
            bound: None,
        },
        Goal {
            what: "file, read, depth 32, in multiples of qemu-nbd",
            figure: Figure::RateShare,
            measured: file_32,
            against: case(QemuNbdFile, Shape::READ_32),
            bound: None,
        },
    ]
};

/// Judges each goal. `sample` gives a case's measurement of a round.
pub(crate) fn judge(
    rounds: usize,
    sample: impl Fn(usize, &Case) -> Option<Sample>,
) -> Vec<Verdict> {
    let mut verdicts = Vec::new();
    for goal in &GOALS {
        let figures: Vec<f64> = (0..rounds)
            .filter_map(|round| {
                let measured = sample(round, &goal.measured)?;
                let against = sample(round, &goal.against)?;
                Some(match goal.figure {
                    Figure::RateShare => measured.iops / against.iops,
                    Figure::AddedMicroseconds => measured.mean_us - against.mean_us,
                })
            })
            .collect();
        let reached = Spread::of(&figures);
        let is_latency = goal.figure == Figure::AddedMicroseconds;
        let met = goal.bound.zip(reached).map(|(bound, reached)| {
            if is_latency { reached.median < bound } else { reached.median >= bound }
        });
        verdicts.push(Verdict { what: goal.what, reached, bound: goal.bound, met, is_latency });
    }
    verdicts
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ratios are taken within a round, where noise hits both sides.
    #[test]
    fn goals_compare_measurements_of_one_round() {
        let verdicts = judge(3, |round, case| {
            let noise = [1.0, 0.5, 2.0][round];
            let iops = match case.subject {
                Subject::Null => 1e6 * noise,
                Subject::FarflashMem => 5e5 * noise,
                _ => return None,
            };
            Some(Sample { iops, mean_us: 1e6 / iops, ..Sample::default() })
        });
        let read = &verdicts[0];
        let reached = read.reached.expect("measured");
        assert_eq!((reached.low, reached.high, read.met), (0.5, 0.5, Some(true)));
        assert_eq!(verdicts.len(), GOALS.len(), "a goal that was not measured is not left out");
        let unmeasured = verdicts.iter().filter(|verdict| verdict.reached.is_none());
        assert!(unmeasured.clone().all(|verdict| verdict.met.is_none()));
        assert!(unmeasured.clone().any(|verdict| verdict.what.contains("nbdkit")));
        assert_eq!(verdicts.iter().find(|v| v.is_latency).and_then(|v| v.met), Some(true));
    }
}
