//! The division of a device: from the ceiling and the promises to quotas and windows.

use alloc::vec::Vec;

use typed_index_collections::TiVec;
use units::{CoreIndex, Duration};

use crate::sabotage::{Sabotage, broken};
use crate::{CLASSES, Ceiling, CostModel, Direction, Quota, Slo};

/// The least of a device that a volume without a rate can count on: a ten thousandth. Promises by
/// rate stop short of the ceiling for these.
const SHARE_MIN: f64 = 1e-4;
/// A core has no less than this for all classes together, however slow the device: one large request.
const WINDOW_BLOCKS_MIN: u32 = 32;

/// A volume's place and promise.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Promise {
    /// The core that serves it.
    pub core: CoreIndex,
    /// The service level that it is promised.
    pub slo: Slo,
}

/// Why a promise cannot be made.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum AdmissionError {
    /// Not enough is left.
    #[error(
        "the device has {left} {what} a second left to promise, of a ceiling of {ceiling}; \
         {asked} were asked for"
    )]
    TooMuch {
        /// "reads" or "writes".
        what: &'static str,
        /// Blocks a second that were asked for.
        asked: u64,
        /// Blocks a second that are left.
        left: u64,
        /// Blocks a second that the device can do.
        ceiling: u64,
    },
    /// A weight of zero would promise nothing.
    #[error("a share needs a weight of at least 1")]
    NoWeight,
    /// A rate of zero in both directions would promise nothing.
    #[error("a rate needs reads or writes; give at least one a second")]
    NoRate,
}

/// The quotas and windows that follow from all promises.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// A quota for each volume, in the order of the promises.
    pub quotas: Vec<Quota>,
    /// The part of each core; none for cores without volumes.
    pub cores: TiVec<CoreIndex, Option<CorePart>>,
}

/// A core's part of a device's capacity.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CorePart {
    /// Blocks a second of each class.
    pub ceiling: Quota,
    /// Blocks of each class that it may have under way.
    pub window_blocks: [u32; CLASSES],
}

/// Checks the promises, the last of which is new, and divides the device.
///
/// - Volumes with a rate get it; the others divide the rest by weight.
/// - A core's ceiling is the sum of its volumes' quotas, its windows the same part of the device's
///   (Decibel, section 3.2).
/// - The device's windows follow from Little's law: what is under way when the device does its
///   ceiling within `latency`. Each class has its own part of it, so that a few large writes do not
///   keep reads out for as long as they take.
///
/// # Errors
/// The ceiling does not allow all promises.
pub fn plan(
    ceiling: Ceiling,
    latency: Duration,
    model: CostModel,
    promises: &[Promise],
    cores: usize,
) -> Result<Plan, AdmissionError> {
    let rest = check(ceiling, model, promises)?;
    let weights: f64 = promises.iter().map(|promise| weight(promise.slo)).sum();
    let whole = ceiling.quota(model);
    let quotas: Vec<Quota> = promises
        .iter()
        .map(|promise| match promise.slo {
            Slo::Rate { reads_per_second: reads, writes_per_second: writes } => {
                Quota::new(model, reads as f64, writes as f64, true)
            }
            // By class, so that a promise of reads alone leaves all of the writes.
            Slo::Share { weight } => {
                let all = if broken(Sabotage::RestForEach) { f64::from(weight) } else { weights };
                let part = f64::from(weight) / all;
                Quota::new(model, rest[0] * part, rest[1] * part, false)
            }
        })
        .collect();
    let windows = window_blocks(ceiling, latency, model);
    let mut sums: TiVec<CoreIndex, Option<Quota>> = TiVec::new();
    sums.resize(cores, None);
    for (promise, quota) in promises.iter().zip(&quotas) {
        let sum = &mut sums[promise.core];
        *sum = Some(sum.unwrap_or_default().plus(*quota));
    }
    let all = sums.iter().flatten().fold(Quota::default(), |all, sum| all.plus(*sum));
    let core = |sum: Quota| {
        // Its part of all that is promised: the sum over the cores is the ceiling.
        let part = part_of(sum, all);
        let parts: [f64; CLASSES] = core::array::from_fn(|class| {
            let (sum, all) = (sum.per_second[class], all.per_second[class]);
            if all > 0.0 && !broken(Sabotage::PartsByPart) { sum / all } else { part }
        });
        let mut ceiling = whole;
        ceiling.per_second.iter_mut().zip(parts).for_each(|(rate, part)| *rate *= part);
        let blocks = |class: usize| (windows[class] * parts[class]) as u32;
        CorePart { ceiling, window_blocks: at_least(core::array::from_fn(blocks)) }
    };
    let cores = sums.into_iter().map(|sum| sum.map(core)).collect();
    Ok(Plan { quotas, cores })
}

/// Refuses what is too much; returns what is left for volumes without a rate, reads and writes.
fn check(
    ceiling: Ceiling,
    model: CostModel,
    promises: &[Promise],
) -> Result<[f64; 2], AdmissionError> {
    // In thousandths, so that what a write costs is not rounded away.
    let mut rest = [ceiling.reads_per_second, ceiling.writes_per_second].map(thousandths);
    let has_shares = promises.iter().any(|promise| weight(promise.slo) > 0.0);
    for promise in promises {
        match promise.slo {
            Slo::Share { weight: 0 } => return Err(AdmissionError::NoWeight),
            Slo::Share { .. } => {}
            Slo::Rate { reads_per_second: 0, writes_per_second: 0 } => {
                return Err(AdmissionError::NoRate);
            }
            Slo::Rate { reads_per_second, writes_per_second } => {
                let (reads, writes) = (thousandths(reads_per_second), writes_per_second);
                let [reads, writes] = match model {
                    CostModel::Separate => [reads, thousandths(writes)],
                    // All of it comes off the reads, in which writes are counted.
                    CostModel::WriteCosts { per_mille } => {
                        [reads + u128::from(writes) * u128::from(per_mille), 0]
                    }
                };
                let asked =
                    [(Direction::Read, "reads", reads), (Direction::Write, "writes", writes)];
                for ((direction, what, asked), left) in asked.into_iter().zip(&mut rest) {
                    let too_much = AdmissionError::TooMuch {
                        what,
                        asked: whole(asked.div_ceil(1000)),
                        left: whole(*left / 1000),
                        ceiling: ceiling.rate(direction),
                    };
                    *left = left.checked_sub(asked).ok_or(too_much)?;
                }
            }
        }
    }
    let least = |left: u128, ceiling: u64| {
        let least = if has_shares { ceiling as f64 * SHARE_MIN } else { 0.0 };
        (left as f64 / 1000.0).max(least)
    };
    let [reads, writes] = rest;
    Ok([least(reads, ceiling.reads_per_second), least(writes, ceiling.writes_per_second)])
}

fn thousandths(blocks: u64) -> u128 {
    u128::from(blocks) * 1000
}

fn whole(blocks: u128) -> u64 {
    u64::try_from(blocks).unwrap_or(u64::MAX)
}

fn weight(slo: Slo) -> f64 {
    match slo {
        Slo::Share { weight } => f64::from(weight),
        Slo::Rate { .. } => 0.0,
    }
}

/// The part of `all` that `sum` is, both classes together, so that the parts add up to 1.
fn part_of(sum: Quota, all: Quota) -> f64 {
    let total = |quota: Quota| quota.per_second.into_iter().sum::<f64>();
    if total(all) > 0.0 { total(sum) / total(all) } else { 0.0 }
}

/// Brings windows up to the least that they are together. What is missing goes to the largest, and to
/// none of a class that the cost model does not use.
fn at_least(mut windows: [u32; CLASSES]) -> [u32; CLASSES] {
    let missing = WINDOW_BLOCKS_MIN.saturating_sub(windows.iter().sum());
    let largest =
        (0..CLASSES).rev().max_by_key(|class| windows[*class]).expect("there are classes");
    windows[largest] += missing;
    windows
}

/// Blocks of each class under way at the ceiling, if each takes `latency`.
fn window_blocks(ceiling: Ceiling, latency: Duration, model: CostModel) -> [f64; CLASSES] {
    let mut blocks = [0.0; CLASSES];
    for direction in [Direction::Read, Direction::Write] {
        let rate = ceiling.rate(direction) as f64;
        blocks[model.class(direction)] += rate * latency.as_secs_f64();
    }
    blocks
}

#[cfg(test)]
mod tests {
    use super::*;

    const CEILING: Ceiling = Ceiling { reads_per_second: 140_000, writes_per_second: 60_000 };
    const LATENCY: Duration = Duration::from_micros(500);

    fn share(core: usize, weight: u32) -> Promise {
        Promise { core: CoreIndex(core), slo: Slo::Share { weight } }
    }

    fn rate(core: usize, reads: u64, writes: u64) -> Promise {
        let slo = Slo::Rate { reads_per_second: reads, writes_per_second: writes };
        Promise { core: CoreIndex(core), slo }
    }

    #[test]
    fn shares_divide_what_rates_leave() {
        let promises = [rate(0, 40_000, 0), share(0, 1), share(1, 3)];
        let plan = plan(CEILING, LATENCY, CostModel::Separate, &promises, 3).expect("fits");
        let quotas: Vec<_> = plan.quotas.iter().map(|quota| quota.per_second).collect();
        assert_eq!(quotas, [[40_000.0, 0.0], [25_000.0, 15_000.0], [75_000.0, 45_000.0]]);
        assert!(plan.cores[CoreIndex(2)].is_none());
        let parts = || plan.cores.iter().flatten();
        let ceilings: Vec<_> = parts().map(|part| part.ceiling.per_second).collect();
        assert_eq!(ceilings, [[65_000.0, 15_000.0], [75_000.0, 45_000.0]]);
        // 140 000 reads and 60 000 writes a second, half a millisecond each.
        let windows: Vec<_> = parts().map(|part| part.window_blocks).collect();
        assert_eq!(windows, [[32, 7], [37, 22]]);
    }

    /// A kind of request that no volume is promised is divided among cores as the other kind is.
    #[test]
    fn what_is_promised_to_none_is_divided_by_what_is() {
        let promises = [rate(0, 20_000, 0), rate(1, 60_000, 0)];
        let plan = plan(CEILING, LATENCY, CostModel::Separate, &promises, 2).expect("fits");
        let ceilings: Vec<_> = plan.cores.iter().flatten().map(|p| p.ceiling.per_second).collect();
        assert_eq!(ceilings, [[35_000.0, 15_000.0], [105_000.0, 45_000.0]]);
        let windows: Vec<_> = plan.cores.iter().flatten().map(|part| part.window_blocks).collect();
        assert_eq!(windows, [[25, 7], [52, 22]]);
    }

    /// All is promised by rate, and the least is left for shares; without shares nothing is.
    #[test]
    fn shares_have_their_least() {
        let all = rate(0, CEILING.reads_per_second, CEILING.writes_per_second);
        let quotas = |promises: &[Promise]| {
            let plan = plan(CEILING, LATENCY, CostModel::Separate, promises, 1).expect("fits");
            plan.quotas.iter().map(|quota| quota.per_second).collect::<Vec<_>>()
        };
        assert_eq!(quotas(&[all, share(0, 7)])[1], [14.0, 6.0]);
        assert_eq!(check(CEILING, CostModel::Separate, &[all]), Ok([0.0, 0.0]));
        assert_eq!(check(CEILING, CostModel::Separate, &[all, share(0, 1)]), Ok([14.0, 6.0]));
    }

    #[test]
    fn too_much_is_refused_with_what_is_left() {
        let promises = [rate(0, 100_000, 10_000), rate(0, 50_000, 1)];
        let error =
            plan(CEILING, LATENCY, CostModel::Separate, &promises, 1).expect_err("too much");
        let left = AdmissionError::TooMuch {
            what: "reads",
            asked: 50_000,
            left: 40_000,
            ceiling: 140_000,
        };
        assert_eq!(error, left);
    }

    #[test]
    fn in_one_currency_writes_come_off_the_reads() {
        let model = CostModel::WriteCosts { per_mille: 2_500 };
        let promises = [rate(0, 40_000, 20_000), share(0, 1)];
        let plan = plan(CEILING, LATENCY, model, &promises, 1).expect("fits");
        let quotas: Vec<_> = plan.quotas.iter().map(|quota| quota.per_second).collect();
        assert_eq!(quotas, [[90_000.0, 0.0], [50_000.0, 0.0]]);
        // All in one.
        assert_eq!(plan.cores[CoreIndex(0)].expect("it has volumes").window_blocks, [100, 0]);
        let more = [rate(0, 40_000, 20_000), rate(0, 0, 20_001)];
        let error = super::plan(CEILING, LATENCY, model, &more, 1).expect_err("too much");
        let left = AdmissionError::TooMuch {
            what: "reads",
            asked: 50_003,
            left: 50_000,
            ceiling: 140_000,
        };
        assert_eq!(error, left);
    }

    /// Each volume's writes cost a fraction more than a whole number of reads.
    #[test]
    fn fractions_of_writes_count_as_promised() {
        let model = CostModel::WriteCosts { per_mille: 1_600 };
        let promises = alloc::vec![rate(0, 0, 1); 87_500];
        let all = plan(CEILING, LATENCY, model, &promises, 1).expect("140 000 reads");
        let sum: f64 = all.quotas.iter().map(|quota| quota.per_second[0]).sum();
        assert!((sum - 140_000.0).abs() < 1e-3, "{sum}");
        let more = [&promises[..], &[rate(0, 0, 1)]].concat();
        let error = plan(CEILING, LATENCY, model, &more, 1).expect_err("too much");
        let left = AdmissionError::TooMuch { what: "reads", asked: 2, left: 0, ceiling: 140_000 };
        assert_eq!(error, left);
    }

    /// A ceiling of zero is a device that does nothing yet, and its parts are numbers.
    #[test]
    fn nothing_is_divided_into_nothing() {
        let ceiling = Ceiling { reads_per_second: 0, writes_per_second: 0 };
        let promises = [share(0, 1), share(1, 3)];
        let plan = plan(ceiling, LATENCY, CostModel::Separate, &promises, 2).expect("fits");
        for part in plan.cores.iter().flatten() {
            assert_eq!(part.ceiling.per_second, [0.0, 0.0]);
            assert_eq!(part.window_blocks.iter().sum::<u32>(), WINDOW_BLOCKS_MIN);
        }
    }

    #[test]
    fn empty_promises_are_refused() {
        let refusal = |promise| plan(CEILING, LATENCY, CostModel::Separate, &[promise], 1);
        assert_eq!(refusal(share(0, 0)), Err(AdmissionError::NoWeight));
        assert_eq!(refusal(rate(0, 0, 0)), Err(AdmissionError::NoRate));
    }

    #[test]
    fn ten_requests_a_second_are_a_promise() {
        let promises = [rate(0, 10, 10), share(0, 100), rate(1, 10, 10)];
        let plan = plan(CEILING, LATENCY, CostModel::Separate, &promises, 2).expect("fits");
        assert_eq!(plan.quotas[0].per_second, [10.0, 10.0]);
        // A core with next to nothing can still have a large request under way.
        assert_eq!(plan.cores[CoreIndex(1)].expect("it has a volume").window_blocks, [32, 0]);
    }
}
