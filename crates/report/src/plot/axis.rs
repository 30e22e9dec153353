//! Axes: where ticks go, and what stands beside them.

use std::ops::Range;

use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};

/// More ticks of a logarithmic axis are too many.
const LOG_TICKS_MAX: usize = 12;

type Label<'a> = Box<dyn Fn(f64) -> String + 'a>;

/// An axis with its own ticks.
pub(super) struct Axis<'a> {
    range: Range<f64>,
    ticks: Vec<f64>,
    logarithmic: bool,
    label: Label<'a>,
}

impl<'a> Axis<'a> {
    /// Equal steps take equal room.
    pub(super) fn linear(
        range: Range<f64>,
        ticks: Vec<f64>,
        label: impl Fn(f64) -> String + 'a,
    ) -> Self {
        Self { range, ticks, logarithmic: false, label: Box::new(label) }
    }

    /// Equal factors take equal room, from the first tick to the last.
    pub(super) fn logarithmic(ticks: Vec<f64>, label: impl Fn(f64) -> String + 'a) -> Self {
        let range = ticks[0]..ticks[ticks.len() - 1];
        Self { range, ticks, logarithmic: true, label: Box::new(label) }
    }

    fn position(&self, value: f64) -> f64 {
        let Range { start, end } = self.range;
        if self.logarithmic {
            (value / start).ln() / (end / start).ln()
        } else {
            (value - start) / (end - start)
        }
    }
}

impl Ranged for Axis<'_> {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        let pixels = f64::from(limit.1 - limit.0);
        limit.0 + (self.position(*value) * pixels).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _hint: Hint) -> Vec<f64> {
        self.ticks.clone()
    }

    fn range(&self) -> Range<f64> {
        self.range.clone()
    }
}

impl ValueFormatter<f64> for Axis<'_> {
    fn format_ext(&self, value: &f64) -> String {
        (self.label)(*value)
    }
}

/// Round values from zero to at least `max`, about `count` of them.
pub(super) fn linear_ticks(max: f64, count: usize) -> Vec<f64> {
    let step = round_up(max / count.max(1) as f64);
    let last = (max / step - 1e-9).ceil().max(1.0);
    let mut ticks = Vec::new();
    let mut index = 0.0;
    while index <= last {
        ticks.push(index * step);
        index += 1.0;
    }
    ticks
}

/// Round values within `low..=high`, at most about `count` of them.
pub(super) fn ticks_between(low: f64, high: f64, count: usize) -> Vec<f64> {
    ticks_apart(low, high, count, round_up((high - low) / count.max(1) as f64))
}

/// The same of whole numbers: there is no half of what is counted.
pub(super) fn whole_ticks_between(low: f64, high: f64, count: usize) -> Vec<f64> {
    let step = round_up((high - low) / count.max(1) as f64).max(1.0);
    ticks_apart(low, high, count, if step == 2.5 { 5.0 } else { step })
}

/// Multiples of `step` within `low..=high`, at most `count` steps.
fn ticks_apart(low: f64, high: f64, count: usize, step: f64) -> Vec<f64> {
    let first = (low / step - 1e-9).ceil();
    let indices = (0..=count).map(|index| (first + index as f64) * step);
    indices.filter(|tick| *tick <= high + step * 1e-9).collect()
}

/// The next of 1, 2, 2.5 and 5 times a power of ten.
fn round_up(value: f64) -> f64 {
    if !(value.is_finite() && value > 0.0) {
        return 1.0;
    }
    let power = 10f64.powf(value.log10().floor());
    let factor = [1.0, 2.0, 2.5, 5.0].into_iter().find(|f| power * f >= value * (1.0 - 1e-9));
    power * factor.unwrap_or(10.0)
}

/// 1, 2 and 5 times powers of ten that enclose `low..=high`, at least two; both are above zero.
pub(super) fn log_ticks(low: f64, high: f64) -> Vec<f64> {
    let mut ticks = Vec::new();
    let mut power = 10f64.powf(low.log10().floor());
    loop {
        for tick in [power, power * 2.0, power * 5.0] {
            if tick <= low {
                ticks.clear();
            }
            ticks.push(tick);
            if tick >= high && ticks.len() > 1 {
                return thinned(ticks);
            }
        }
        power *= 10.0;
    }
}

/// Keeps the ends and the powers of ten if there are many ticks: more would not have room for their labels.
fn thinned(mut ticks: Vec<f64>) -> Vec<f64> {
    let ends = [ticks.first().copied(), ticks.last().copied()];
    if ticks.len() > LOG_TICKS_MAX {
        let is_power = |tick: f64| (tick.log10() - tick.log10().round()).abs() < 1e-9;
        ticks.retain(|tick| ends.contains(&Some(*tick)) || is_power(*tick));
    }
    ticks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_enclose_the_values() {
        assert_eq!(linear_ticks(930.0, 5), [0.0, 200.0, 400.0, 600.0, 800.0, 1000.0]);
        assert_eq!(linear_ticks(0.0, 5), [0.0, 1.0]);
        assert_eq!(ticks_between(0.0, 3.0, 8), [0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0]);
        assert_eq!(whole_ticks_between(0.0, 3.06, 8), [0.0, 1.0, 2.0, 3.0]);
        assert_eq!(
            whole_ticks_between(0.0, 16.0, 8),
            [0.0, 2.0, 4.0, 6.0, 8.0, 10.0, 12.0, 14.0, 16.0]
        );
        assert_eq!(whole_ticks_between(0.0, 20.0, 8), [0.0, 5.0, 10.0, 15.0, 20.0]);
        assert_eq!(log_ticks(12.0, 130.0), [10.0, 20.0, 50.0, 100.0, 200.0]);
        assert_eq!(log_ticks(5.0, 5.0), [5.0, 10.0]);
        assert_eq!(log_ticks(2.5, 45_000.0), [2.0, 10.0, 100.0, 1e3, 1e4, 5e4]);
    }
}
