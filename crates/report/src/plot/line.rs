//! Values over a number: time series, sweeps of the queue depth.

use plotters::prelude::*;

use super::axis::{Axis, linear_ticks, ticks_between};
use super::{Area, FONT, LABEL_PIXELS, PlotError, colour, draw_error, draw_legend, framed};

/// A named line.
#[derive(Clone, Debug)]
pub struct Series {
    /// Its name in the legend.
    pub name: String,
    /// Its points, in the order of x.
    pub points: Vec<(f64, f64)>,
}

/// Something that happened at one x.
#[derive(Clone, Debug)]
pub struct Marker {
    /// Where.
    pub x: f64,
    /// What.
    pub name: String,
}

/// Lines over a common x, from zero upwards.
#[derive(Clone, Debug)]
pub struct LineChart {
    /// Caption above the panel.
    pub caption: String,
    /// What x is, with its unit.
    pub x_label: String,
    /// What y is, with its unit unless `y_format` writes it.
    pub y_label: String,
    /// The lines.
    pub series: Vec<Series>,
    /// Vertical lines.
    pub markers: Vec<Marker>,
    /// How y values are written at their ticks.
    pub y_format: fn(f64) -> String,
}

impl LineChart {
    fn finite(&self) -> impl Iterator<Item = &(f64, f64)> {
        let points = self.series.iter().flat_map(|series| &series.points);
        points.filter(|(x, y)| x.is_finite() && y.is_finite())
    }

    pub(super) fn draw(&self, area: &Area<'_>) -> Result<(), PlotError> {
        let low_x = self.finite().map(|(x, _)| *x).min_by(f64::total_cmp);
        let high_x = self.finite().map(|(x, _)| *x).max_by(f64::total_cmp);
        let high_y = self.finite().map(|(_, y)| *y).max_by(f64::total_cmp);
        let (Some(low_x), Some(high_x), Some(high_y)) = (low_x, high_x, high_y) else {
            return Err(PlotError::Empty(self.caption.clone()));
        };
        let low_x = if low_x >= 0.0 && low_x < high_x / 2.0 { 0.0 } else { low_x };
        let high_x = if high_x > low_x { high_x } else { low_x + 1.0 };
        let ticks = linear_ticks(high_y, 5);
        let top = *ticks.last().expect("at least one tick");
        let mut chart = framed(area, &self.caption, 40)
            .build_cartesian_2d(
                Axis::linear(low_x..high_x, ticks_between(low_x, high_x, 8), plain),
                Axis::linear(0.0..top, ticks, self.y_format),
            )
            .map_err(draw_error)?;
        chart
            .configure_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(BLACK.mix(0.12))
            .x_desc(&self.x_label)
            .y_desc(&self.y_label)
            .label_style((FONT, LABEL_PIXELS))
            .draw()
            .map_err(draw_error)?;
        for (index, series) in self.series.iter().enumerate() {
            let style = colour(index).stroke_width(2);
            let points = series.points.iter().copied().filter(|(x, y)| (x + y).is_finite());
            chart
                .draw_series(LineSeries::new(points, style))
                .map_err(draw_error)?
                .label(&series.name)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], style));
        }
        for marker in &self.markers {
            let line = [(marker.x, 0.0), (marker.x, top)];
            let style = RED.mix(0.7).stroke_width(1);
            let text =
                Text::new(format!("\u{a0}{}", marker.name), (marker.x, top), (FONT, LABEL_PIXELS));
            chart.draw_series([PathElement::new(line, style)]).map_err(draw_error)?;
            chart.draw_series([text]).map_err(draw_error)?;
        }
        draw_legend(&mut chart, SeriesLabelPosition::LowerRight)
    }
}

/// A number without needless digits.
fn plain(value: f64) -> String {
    // Sums of steps such as 0.1 are off by parts of a millionth.
    format!("{}", (value * 1e6).round() / 1e6)
}
