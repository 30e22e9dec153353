//! Single measurements as points.

use plotters::prelude::*;

use super::axis::{Axis, linear_ticks, ticks_between};
use super::{Area, FONT, LABEL_PIXELS, PlotError, colour, draw_error, framed};

const TICKS_X: usize = 8;
const TICKS_Y: usize = 6;

/// Points over a number, both axes from zero.
#[derive(Clone, Debug)]
pub struct ScatterChart {
    /// Caption above the panel.
    pub caption: String,
    /// Label of x, with its unit.
    pub x_label: String,
    /// Label of y, with its unit unless `y_format` writes it.
    pub y_label: String,
    /// The points.
    pub points: Vec<(f64, f64)>,
    /// Format of x values at their ticks.
    pub x_format: fn(f64) -> String,
    /// Format of y values at their ticks.
    pub y_format: fn(f64) -> String,
}

impl ScatterChart {
    pub(super) fn draw(&self, area: &Area<'_>) -> Result<(), PlotError> {
        let shown = || self.points.iter().filter(|(x, y)| x.is_finite() && y.is_finite());
        let high_x = shown().map(|(x, _)| *x).max_by(f64::total_cmp);
        let high_y = shown().map(|(_, y)| *y).max_by(f64::total_cmp);
        let (Some(high_x), Some(high_y)) = (high_x, high_y) else {
            return Err(PlotError::Empty(self.caption.clone()));
        };
        let high_x = high_x.max(f64::MIN_POSITIVE) * 1.02;
        let ticks_y = linear_ticks(high_y, TICKS_Y);
        let top = *ticks_y.last().expect("at least one tick");
        let mut chart = framed(area, &self.caption, 40)
            .build_cartesian_2d(
                Axis::linear(0.0..high_x, ticks_between(0.0, high_x, TICKS_X), self.x_format),
                Axis::linear(0.0..top, ticks_y, self.y_format),
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
        let dots = shown().map(|point| Circle::new(*point, 1, colour(0).filled()));
        chart.draw_series(dots).map_err(draw_error)?;
        Ok(())
    }
}
