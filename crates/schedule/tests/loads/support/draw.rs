//! Devices, promises and loads, drawn from a seed.

use schedule::{Ceiling, CostModel, Direction, Quota, Request, Slo};
use sim::Rng;

/// The order in which requests come. Rates are in blocks a second.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Arrivals {
    /// So many are outstanding.
    Closed { depth: u64 },
    /// At random.
    Poisson { rate: f64 },
    /// At equal distances.
    Even { rate: f64 },
    /// Several at once.
    Bursts { requests: u64, rate: f64 },
    /// At random for a while, and then none for as long.
    OnOff { rate: f64, each_s: f64 },
}

/// The requests of a volume's hosts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) arrivals: Arrivals,
    blocks: u64,
    /// Up to `blocks`, and not just as many.
    varies: bool,
    reads_percent: u64,
}

fn one_of<T: Copy>(rng: &mut Rng, all: &[T]) -> T {
    all[rng.below(all.len() as u64) as usize]
}

/// From 0 to 1.
pub(crate) fn part(rng: &mut Rng) -> f64 {
    rng.below(1 << 53) as f64 / (1_u64 << 53) as f64
}

fn exponential(rng: &mut Rng) -> f64 {
    -(1.0 - part(rng)).ln()
}

pub(crate) fn ceiling(rng: &mut Rng) -> Ceiling {
    let reads_per_second = one_of(rng, &[500, 2_000, 10_000, 20_000]);
    let writes_per_second = reads_per_second * one_of(rng, &[25, 50, 100]) / 100;
    Ceiling { reads_per_second, writes_per_second }
}

pub(crate) fn cost_model(rng: &mut Rng) -> CostModel {
    match rng.one_in(3) {
        true => CostModel::WriteCosts { per_mille: rng.between(500, 6_500) as u32 },
        false => CostModel::Separate,
    }
}

pub(crate) fn slo(rng: &mut Rng, ceiling: Ceiling) -> Slo {
    let parts = [0, 5, 20, 100, 200, 300];
    let reads_per_second = ceiling.reads_per_second * one_of(rng, &parts) / 1000;
    let writes_per_second = ceiling.writes_per_second * one_of(rng, &parts) / 1000;
    if rng.one_in(3) && reads_per_second + writes_per_second > 0 {
        return Slo::Rate { reads_per_second, writes_per_second };
    }
    Slo::Share { weight: rng.between(1, 100) as u32 }
}

impl Load {
    /// A load below, at or above `quota`.
    pub(crate) fn draw(rng: &mut Rng, quota: Quota, model: CostModel) -> Self {
        let reads_percent = one_of(rng, &[0, 30, 70, 100]);
        let reads = reads_percent as f64 / 100.0;
        let [first, second] = quota.per_second;
        let of_quota = match model {
            // Of the kind that is scarcer.
            CostModel::Separate => (first / reads).min(second / (1.0 - reads)),
            CostModel::WriteCosts { per_mille } => {
                first / (reads + (1.0 - reads) * f64::from(per_mille) / 1000.0)
            }
        };
        let rate = of_quota * one_of(rng, &[0.1, 0.5, 0.8, 0.9, 0.97, 1.0, 1.3, 4.0]);
        let arrivals = match rng.below(6) {
            0 | 1 => Arrivals::Closed { depth: 1 << rng.below(7) },
            2 => Arrivals::Poisson { rate },
            3 => Arrivals::Even { rate },
            4 => Arrivals::Bursts { requests: rng.between(2, 60), rate },
            _ => Arrivals::OnOff { rate, each_s: one_of(rng, &[0.02, 0.2, 1.0]) },
        };
        let blocks = one_of(rng, &[1, 1, 4, 8, 32, 256]);
        Self { arrivals, blocks, varies: rng.one_in(2), reads_percent }
    }

    pub(crate) fn request(self, rng: &mut Rng) -> Request {
        let blocks = if self.varies { rng.between(1, self.blocks) } else { self.blocks };
        let is_read = rng.below(100) < self.reads_percent;
        let direction = if is_read { Direction::Read } else { Direction::Write };
        Request { direction, blocks: blocks as u32 }
    }

    /// Seconds from the request that comes as number `number`, at `now_s`, to the next. `None`: as soon as one is done.
    pub(crate) fn pause_s(self, rng: &mut Rng, number: u64, now_s: f64) -> Option<f64> {
        let blocks = if self.varies { (self.blocks + 1) as f64 / 2.0 } else { self.blocks as f64 };
        Some(match self.arrivals {
            Arrivals::Closed { .. } => return None,
            Arrivals::Poisson { rate } => exponential(rng) * blocks / rate,
            Arrivals::Even { rate } => blocks / rate,
            Arrivals::Bursts { requests, rate } => match number % requests {
                0 => requests as f64 * blocks / rate,
                _ => 0.0,
            },
            Arrivals::OnOff { each_s, .. } if (now_s / each_s) as u64 % 2 == 1 => each_s,
            Arrivals::OnOff { rate, .. } => exponential(rng) * blocks / rate,
        })
    }
}
