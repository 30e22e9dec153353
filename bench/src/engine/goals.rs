//! Goals of the engine's measurements.

use report::Spread;

use super::checkpoints::Tail;
use super::qcow2;
use super::recovery::Recoveries;
use super::samples::{AGED, Key, READ_BACK, SEQUENTIAL_WRITE, Samples, Subject, WRITES};
use super::written::STEADY;
use crate::verdict::{Bound, Unit, Verdict};

/// Limit of p99.9 while checkpoints are taken, as a multiple of p99.9 without.
const PAUSE_MAX: f64 = 1.25;

/// Cost of verification for a read: the share of the rate that it takes.
pub(super) type Verification = Vec<(&'static str, Vec<f64>)>;

/// One of what is known of a window, by name, and how far it may go.
type Percentile = (&'static str, fn(&Tail) -> f64, Option<Bound>);

/// Judges each goal.
pub(super) fn judge(
    samples: &Samples,
    recoveries: &[Recoveries],
    verification: &Verification,
) -> Vec<Verdict> {
    let mut verdicts = Vec::new();
    for place in ["file", "mem"] {
        beside_raw(samples, place, &mut verdicts);
    }
    for name in qcow2::names() {
        let key = |subject| Key { place: qcow2::PLACE, load: name, subject };
        verdicts.push(Verdict {
            what: format!("{name}, in multiples of qemu-nbd on qcow2"),
            place: qcow2::PLACE,
            reached: samples.share(key(Subject::Farflash), key(Subject::Qcow2)),
            unit: Unit::Times,
            bound: Some(Bound::Above(1.0)),
            limit: None,
        });
    }
    for recovery in recoveries {
        let seconds: Vec<f64> = recovery.samples.iter().map(|sample| sample.seconds).collect();
        verdicts.push(Verdict {
            what: format!("recovery, {}", recovery.what),
            place: recovery.place,
            reached: Spread::of(&seconds),
            unit: Unit::Seconds,
            bound: Some(Bound::AtMost(1.0)),
            limit: None,
        });
        if recovery.mapped_bytes > 0 && recovery.writes_in_journal == 0 {
            let tb = recovery.mapped_bytes as f64 / 1e12;
            let per_tb: Vec<f64> = seconds.iter().map(|seconds| seconds / tb).collect();
            verdicts.push(Verdict {
                what: "the same for each TB mapped".to_owned(),
                place: recovery.place,
                reached: Spread::of(&per_tb),
                unit: Unit::Seconds,
                bound: Some(Bound::AtMost(1.0)),
                limit: None,
            });
        }
    }
    for (place, shares) in verification {
        verdicts.push(Verdict {
            what: "random read 4 KiB, depth 32, rate lost to checksums".to_owned(),
            place,
            reached: Spread::of(shares),
            unit: Unit::Share,
            bound: Some(Bound::AtMost(0.05)),
            limit: None,
        });
    }
    verdicts
}

fn beside_raw(samples: &Samples, place: &'static str, verdicts: &mut Vec<Verdict>) {
    let key = |load, subject| Key { place, load, subject };
    let mut add = |what: String, reached: Option<Spread>, unit: Unit, bound: Option<Bound>| {
        verdicts.push(Verdict { what, place, reached, unit, bound, limit: None });
    };
    let loads = [WRITES[0].1, WRITES[1].1, SEQUENTIAL_WRITE, READ_BACK];
    for load in loads {
        let share = samples.share(key(load, Subject::Checked), key(load, Subject::Raw));
        add(
            format!("{load}, raw with a sum of each block, of the raw rate"),
            share,
            Unit::Share,
            None,
        );
    }
    for (_, load) in WRITES {
        let of = |measured, against| samples.share(key(load, measured), key(load, against));
        let raw = Some(Bound::AtLeast(0.85));
        add(
            format!("{load}, overwrites, of the raw rate"),
            of(Subject::Overwrite, Subject::Raw),
            Unit::Share,
            raw,
        );
        add(
            format!("{load}, thin space, of the raw rate"),
            of(Subject::Thin, Subject::Raw),
            Unit::Share,
            raw,
        );
        add(
            format!("{load}, thin space, of overwrites"),
            of(Subject::Thin, Subject::Overwrite),
            Unit::Share,
            Some(Bound::AtLeast(0.90)),
        );
    }
    for (load, subject, against, bound) in [
        (SEQUENTIAL_WRITE, Subject::Thin, SEQUENTIAL_WRITE, Some(Bound::AtLeast(0.95))),
        (READ_BACK, Subject::Thin, READ_BACK, Some(Bound::AtLeast(0.95))),
        (AGED, Subject::Overwrite, READ_BACK, None),
    ] {
        let share = samples.share(key(load, subject), key(against, Subject::Raw));
        add(format!("{load}, of the raw rate"), share, Unit::Share, bound);
    }
    let tails = samples.tails.iter().find(|tails| tails.place == place);
    let percentiles: [Percentile; 3] = [
        ("p50", |tail| tail.p50_us, None),
        ("p99", |tail| tail.p99_us, None),
        ("p99.9", |tail| tail.p99_9_us, Some(Bound::AtMost(PAUSE_MAX))),
    ];
    for (percentile, of, bound) in percentiles {
        let times = tails.and_then(|tails| tails.times(of));
        let what =
            format!("{percentile} while checkpoints are taken, in multiples of that without");
        add(what, times, Unit::Times, bound);
    }
    let steady = samples.written(place, STEADY);
    let bound = Some(Bound::AtMost(1.10));
    add(format!("bytes written for each byte of {STEADY}"), steady, Unit::Times, bound);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verdict::table;

    #[test]
    fn a_goal_that_was_not_measured_is_shown_as_such() {
        let verdicts = judge(&Samples::default(), &[], &Vec::new());
        assert!(verdicts.iter().all(|verdict| verdict.is_met().is_none()));
        let text = table(&verdicts).to_text();
        assert!(text.contains("not measured") && !text.contains("missed"), "{text}");
    }
}
