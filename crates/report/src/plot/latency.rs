//! Latency at each quantile, on an axis that gives every further nine the same room.

use plotters::prelude::*;

use super::axis::{Axis, log_ticks};
use super::{Area, FONT, LABEL_PIXELS, PlotError, beside_legend, colour, draw_error, framed};
use crate::duration_ns;

/// The axis ends at this many nines.
const NINES_MAX: f64 = 6.0;

/// One measured distribution.
#[derive(Clone, Debug)]
pub struct LatencySeries {
    /// Its name in the legend.
    pub name: String,
    /// Quantiles in 0..=1 and the latency in nanoseconds that this share does not exceed.
    pub quantiles: Vec<(f64, f64)>,
}

/// Latency distributions, latency on a logarithmic axis.
#[derive(Clone, Debug)]
pub struct LatencyChart {
    /// Caption above the panel.
    pub caption: String,
    /// The distributions.
    pub series: Vec<LatencySeries>,
}

/// 0.9 is 1, 0.99 is 2, 0.999 is 3.
fn nines(quantile: f64) -> f64 {
    -(1.0 - quantile).log10()
}

fn nines_label(nines: f64) -> String {
    match nines {
        n if n < 0.1 => "0 %".to_owned(),
        n if n < 0.5 => "50 %".to_owned(),
        n if n < 1.5 => "90 %".to_owned(),
        n if n < 2.5 => "99 %".to_owned(),
        n => format!("99.{} %", "9".repeat((n - 1.5) as usize)),
    }
}

impl LatencyChart {
    pub(super) fn draw(&self, area: &Area<'_>) -> Result<(), PlotError> {
        let lines: Vec<Vec<(f64, f64)>> = self.series.iter().map(LatencySeries::points).collect();
        let values = || lines.iter().flatten().map(|(_, ns)| *ns);
        let (Some(low), Some(high)) =
            (values().min_by(f64::total_cmp), values().max_by(f64::total_cmp))
        else {
            return Err(PlotError::Empty(self.caption.clone()));
        };
        let ticks = log_ticks(low, high);
        let marks = vec![0.0, nines(0.5), 1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
        let names: Vec<&str> = self.series.iter().map(|series| &*series.name).collect();
        let area = beside_legend(area, &names)?;
        let mut chart = framed(&area, &self.caption, 40)
            .build_cartesian_2d(
                Axis::linear(0.0..NINES_MAX, marks, nines_label),
                Axis::logarithmic(ticks, duration_ns),
            )
            .map_err(draw_error)?;
        chart
            .configure_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(BLACK.mix(0.12))
            .x_desc("share of requests")
            .y_desc("latency")
            .label_style((FONT, LABEL_PIXELS))
            .draw()
            .map_err(draw_error)?;
        for (index, points) in lines.into_iter().enumerate() {
            let style = colour(index).stroke_width(2);
            chart.draw_series(LineSeries::new(points, style)).map_err(draw_error)?;
        }
        Ok(())
    }
}

impl LatencySeries {
    fn points(&self) -> Vec<(f64, f64)> {
        let shown = |(quantile, ns): &(f64, f64)| {
            let x = nines(*quantile).clamp(0.0, NINES_MAX);
            (ns.is_finite() && *ns > 0.0 && !x.is_nan()).then_some((x, *ns))
        };
        self.quantiles.iter().filter_map(shown).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_nine_has_its_label() {
        for (quantile, label) in
            [(0.0, "0 %"), (0.5, "50 %"), (0.9, "90 %"), (0.99, "99 %"), (0.999, "99.9 %")]
        {
            assert_eq!(nines_label(nines(quantile)), label);
        }
        assert_eq!(nines_label(6.0), "99.9999 %");
    }
}
