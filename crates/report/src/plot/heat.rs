//! Values over two axes as colours: a map of savings, latencies of drives over time.

use plotters::prelude::*;

use super::axis::Axis;
use super::{Area, FONT, LABEL_PIXELS, PlotError, draw_error, framed};

/// Most cells in which the value itself is written.
const WRITTEN_CELLS: usize = 12;

/// A grid of coloured cells. Colours run from the lowest to the highest finite value; if both signs
/// occur, white is zero, orange below it and blue above.
#[derive(Clone, Debug)]
pub struct HeatMap {
    /// Caption above the panel.
    pub caption: String,
    /// The horizontal axis.
    pub x_label: String,
    /// The vertical axis.
    pub y_label: String,
    /// Names of the columns, left to right.
    pub columns: Vec<String>,
    /// Names of the rows, bottom to top.
    pub rows: Vec<String>,
    /// `cells[row][column]`; cells that are not finite stay empty.
    pub cells: Vec<Vec<f64>>,
    /// Format of a value in its cell, if there are few cells.
    pub format: fn(f64) -> String,
}

impl HeatMap {
    pub(super) fn draw(&self, area: &Area<'_>) -> Result<(), PlotError> {
        let finite = self.cells.iter().flatten().copied().filter(|value| value.is_finite());
        let low = finite.clone().min_by(f64::total_cmp);
        let high = finite.max_by(f64::total_cmp);
        let (Some(low), Some(high)) = (low, high) else {
            return Err(PlotError::Empty(self.caption.clone()));
        };
        let scale = Scale { low, high };
        let centres = |count: usize| (0..count).map(|at| at as f64 + 0.5).collect::<Vec<f64>>();
        let name = |names: &[String], at: f64| names.get(at as usize).cloned().unwrap_or_default();
        let (width, height) = (self.columns.len(), self.rows.len());
        let mut chart = framed(area, &self.caption, 40)
            .build_cartesian_2d(
                Axis::linear(0.0..width as f64, centres(width), |at| name(&self.columns, at)),
                Axis::linear(0.0..height as f64, centres(height), |at| name(&self.rows, at)),
            )
            .map_err(draw_error)?;
        chart
            .configure_mesh()
            .disable_mesh()
            .x_desc(&self.x_label)
            .y_desc(&self.y_label)
            .label_style((FONT, LABEL_PIXELS))
            .draw()
            .map_err(draw_error)?;
        let cells = self.cells.iter().zip(0..).flat_map(|(row, y)| {
            row.iter().zip(0..).map(move |(value, x)| (f64::from(x), f64::from(y), *value))
        });
        let cells: Vec<(f64, f64, f64)> = cells.filter(|(_, _, value)| value.is_finite()).collect();
        let bodies = cells.iter().map(|(x, y, value)| {
            Rectangle::new([(*x, *y), (x + 1.0, y + 1.0)], scale.colour(*value).filled())
        });
        chart.draw_series(bodies).map_err(draw_error)?;
        if width.max(height) <= WRITTEN_CELLS {
            let texts = cells.iter().map(|(x, y, value)| {
                let style = (FONT, LABEL_PIXELS).into_font().color(&scale.ink(*value));
                Text::new((self.format)(*value), (x + 0.3, y + 0.65), style)
            });
            chart.draw_series(texts).map_err(draw_error)?;
        }
        Ok(())
    }
}

/// From values to colours.
#[derive(Clone, Copy)]
struct Scale {
    low: f64,
    high: f64,
}

impl Scale {
    /// The part of the way from white to full colour, and whether below zero.
    fn depth(self, value: f64) -> (f64, bool) {
        let both_signs = self.low < 0.0 && self.high > 0.0;
        if both_signs {
            return (value.abs() / self.high.max(-self.low), value < 0.0);
        }
        let span = self.high - self.low;
        (if span > 0.0 { (value - self.low) / span } else { 0.5 }, false)
    }

    fn colour(self, value: f64) -> RGBColor {
        let (depth, below) = self.depth(value);
        let full = if below { RGBColor(214, 96, 0) } else { RGBColor(0, 92, 150) };
        let mix = |full: u8| (255.0 - (255.0 - f64::from(full)) * depth).round() as u8;
        RGBColor(mix(full.0), mix(full.1), mix(full.2))
    }

    /// The colour of text on it.
    fn ink(self, value: f64) -> RGBColor {
        if self.depth(value).0 > 0.55 { WHITE } else { BLACK }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_is_white_between_two_signs_and_the_extremes_have_full_colour() {
        let scale = Scale { low: -1.0, high: 4.0 };
        assert_eq!(scale.colour(0.0), WHITE);
        assert_eq!(scale.colour(4.0), RGBColor(0, 92, 150));
        assert!(scale.colour(-1.0).0 > scale.colour(-1.0).2, "orange");
        let positive = Scale { low: 1.0, high: 3.0 };
        assert_eq!((positive.colour(1.0), positive.ink(3.0)), (WHITE, WHITE));
        assert_eq!(Scale { low: 2.0, high: 2.0 }.depth(2.0), (0.5, false));
    }
}
