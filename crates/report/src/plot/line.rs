//! Values over a number: time series, sweeps of the queue depth.

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::axis::{Axis, linear_ticks, log_ticks, ticks_between, whole_ticks_between};
use super::{Area, FONT, LABEL_PIXELS, PlotError, beside_legend, colour, draw_error, framed};

/// Ticks along x, about.
const TICKS_X: usize = 8;
/// Between a marker and its name.
const MARKER_PIXELS: i32 = 4;
/// Free space after the last point, as a part of the width of all.
const MARGIN: f64 = 0.02;

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
    /// Location on the x axis.
    pub x: f64,
    /// Name of the marker.
    pub name: String,
}

/// A value of y that lines are compared with, such as a limit.
#[derive(Clone, Debug)]
pub struct Level {
    /// Location on the y axis.
    pub y: f64,
    /// Name of the level.
    pub name: String,
}

/// Lines over a common x, from zero upwards but on a logarithmic axis.
#[derive(Clone, Debug)]
pub struct LineChart {
    /// Caption above the panel.
    pub caption: String,
    /// Label of x, with its unit.
    pub x_label: String,
    /// Label of y, with its unit unless `y_format` writes it.
    pub y_label: String,
    /// The lines.
    pub series: Vec<Series>,
    /// Vertical lines.
    pub markers: Vec<Marker>,
    /// Horizontal lines, dashed.
    pub levels: Vec<Level>,
    /// Equal factors of y take equal room, and y does not begin at zero.
    pub is_logarithmic: bool,
    /// Format of y values at their ticks.
    pub y_format: fn(f64) -> String,
}

impl LineChart {
    fn finite(&self) -> impl Iterator<Item = &(f64, f64)> {
        let points = self.series.iter().flat_map(|series| &series.points);
        points.filter(|(x, y)| x.is_finite() && y.is_finite())
    }

    pub(super) fn draw(&self, area: &Area<'_>) -> Result<(), PlotError> {
        let low_x = self.finite().map(|(x, _)| *x).min_by(f64::total_cmp);
        let places = self.finite().map(|(x, _)| *x).chain(self.markers.iter().map(|m| m.x));
        let high_x = places.max_by(f64::total_cmp);
        let heights = self.finite().map(|(_, y)| *y).chain(self.levels.iter().map(|level| level.y));
        let high_y = heights.max_by(f64::total_cmp);
        let (Some(low_x), Some(high_x), Some(high_y)) = (low_x, high_x, high_y) else {
            return Err(PlotError::Empty(self.caption.clone()));
        };
        let low_x = if low_x >= 0.0 && low_x < high_x / 2.0 { 0.0 } else { low_x };
        let high_x = if high_x > low_x { high_x } else { low_x + 1.0 };
        // A line that rises where it ends does not lie on the frame.
        let end_x = high_x + (high_x - low_x) * MARGIN;
        let ticks_x = match self.finite().all(|(x, _)| x.fract() == 0.0) {
            true => whole_ticks_between(low_x, end_x, TICKS_X),
            false => ticks_between(low_x, end_x, TICKS_X),
        };
        let (foot, top, y_axis) = self.y_axis(high_y);
        let names: Vec<&str> = self.series.iter().map(|series| &*series.name).collect();
        let area = beside_legend(area, &names)?;
        let mut chart = framed(&area, &self.caption, 40)
            .build_cartesian_2d(Axis::linear(low_x..end_x, ticks_x, plain), y_axis)
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
            let points = series.points.iter().filter(|(x, y)| (x + y).is_finite());
            let points = points.map(|(x, y)| (*x, y.max(foot)));
            chart.draw_series(LineSeries::new(points, style)).map_err(draw_error)?;
        }
        for marker in &self.markers {
            let line = [(marker.x, foot), (marker.x, top)];
            let style = RED.mix(0.7).stroke_width(1);
            let is_right = marker.x - low_x > (end_x - low_x) / 2.0;
            let (side, away) =
                if is_right { (HPos::Right, -MARKER_PIXELS) } else { (HPos::Left, MARKER_PIXELS) };
            let font = TextStyle::from((FONT, LABEL_PIXELS)).pos(Pos::new(side, VPos::Top));
            let text = EmptyElement::at((marker.x, top))
                + Text::new(marker.name.clone(), (away, MARKER_PIXELS), font);
            chart.draw_series([PathElement::new(line, style)]).map_err(draw_error)?;
            chart.draw_series([text]).map_err(draw_error)?;
        }
        for level in &self.levels {
            let line = [(low_x, level.y), (end_x, level.y)];
            let dashes = DashedLineSeries::new(line, 6, 4, BLACK.mix(0.6).stroke_width(1));
            chart.draw_series(dashes).map_err(draw_error)?;
            // Above the line, where curves that rise to it are farthest.
            let text = |at| {
                EmptyElement::at(at) + Text::new(level.name.clone(), (4, -15), (FONT, LABEL_PIXELS))
            };
            chart.draw_series([text((low_x, level.y))]).map_err(draw_error)?;
        }
        Ok(())
    }

    /// Foot, top and axis of y.
    fn y_axis(&self, high: f64) -> (f64, f64, Axis<'_>) {
        let above_zero = self.finite().map(|(_, y)| *y).filter(|y| *y > 0.0);
        match above_zero.min_by(f64::total_cmp).filter(|_| self.is_logarithmic) {
            Some(low) => {
                let ticks = log_ticks(low, high);
                (ticks[0], ticks[ticks.len() - 1], Axis::logarithmic(ticks, self.y_format))
            }
            None => {
                let ticks = linear_ticks(high, 5);
                let top = *ticks.last().expect("at least one tick");
                (0.0, top, Axis::linear(0.0..top, ticks, self.y_format))
            }
        }
    }
}

/// A number without needless digits.
fn plain(value: f64) -> String {
    // Sums of steps such as 0.1 are off by parts of a millionth.
    format!("{}", (value * 1e6).round() / 1e6)
}
