//! Lines over named steps: percentiles of many drives, figures of several settings.

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::axis::{Axis, log_ticks};
use super::{
    Area, COLOURS, FONT, LABEL_PIXELS, PlotError, beside_legend, colour, draw_error, framed,
};

/// With more lines than there are colours they are told apart by nothing: they show a spread.
const LEGEND_SERIES_MAX: usize = COLOURS.len();
const MARK_PIXELS: i32 = 5;

/// A named line.
#[derive(Clone, Debug)]
pub struct CategorySeries {
    /// Its name in the legend.
    pub name: String,
    /// A value for each category; zero lies on the foot of the chart, one that is not finite is left out.
    pub values: Vec<f64>,
}

/// A single value of another source.
#[derive(Clone, Debug)]
pub struct Mark {
    /// Name beside it.
    pub name: String,
    /// Index of its category.
    pub category: usize,
    /// The value.
    pub value: f64,
}

/// Lines over categories, values on a logarithmic axis.
#[derive(Clone, Debug)]
pub struct CategoryChart {
    /// Caption above the panel.
    pub caption: String,
    /// Label of the vertical axis.
    pub y_label: String,
    /// Names of the categories, left to right.
    pub categories: Vec<String>,
    /// The lines.
    pub series: Vec<CategorySeries>,
    /// Single values.
    pub marks: Vec<Mark>,
    /// Format of values at their ticks.
    pub y_format: fn(f64) -> String,
}

/// Categories are told apart by whole numbers; their points lie in the middle.
fn place(category: usize) -> f64 {
    category as f64 + 0.5
}

fn is_shown(value: f64) -> bool {
    value.is_finite() && value >= 0.0
}

impl CategoryChart {
    pub(super) fn draw(&self, area: &Area<'_>) -> Result<(), PlotError> {
        let of_series = self.series.iter().flat_map(|series| &series.values);
        let values = of_series.chain(self.marks.iter().map(|mark| &mark.value)).copied();
        let values: Vec<f64> = values.filter(|value| is_shown(*value) && *value > 0.0).collect();
        let (Some(low), Some(high)) = (
            values.iter().copied().min_by(f64::total_cmp),
            values.iter().copied().max_by(f64::total_cmp),
        ) else {
            return Err(PlotError::Empty(self.caption.clone()));
        };
        let count = self.categories.len();
        let places: Vec<f64> = (0..count).map(place).collect();
        let name = |at: f64| self.categories.get(at as usize).cloned().unwrap_or_default();
        let has_legend = self.series.len() <= LEGEND_SERIES_MAX;
        let names: Vec<&str> = self.series.iter().map(|series| &*series.name).collect();
        let area = if has_legend { beside_legend(area, &names)? } else { area.clone() };
        let ticks = log_ticks(low, high);
        let foot = ticks[0];
        let mut chart = framed(&area, &self.caption, 40)
            .build_cartesian_2d(
                Axis::linear(0.0..count as f64, places, name),
                Axis::logarithmic(ticks, self.y_format),
            )
            .map_err(draw_error)?;
        chart
            .configure_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(BLACK.mix(0.12))
            .y_desc(&self.y_label)
            .label_style((FONT, LABEL_PIXELS))
            .draw()
            .map_err(draw_error)?;
        for (index, series) in self.series.iter().enumerate() {
            let style = colour(index).stroke_width(if has_legend { 2 } else { 1 });
            let points = series.values.iter().copied().enumerate();
            let points = points.filter(|(_, value)| is_shown(*value));
            let points = points.map(|(at, value)| (place(at), value.max(foot)));
            let points: Vec<(f64, f64)> = points.collect();
            let dots = points.iter().map(|point| Circle::new(*point, 2, colour(index).filled()));
            chart.draw_series(dots).map_err(draw_error)?;
            chart.draw_series(LineSeries::new(points, style)).map_err(draw_error)?;
        }
        for mark in self.marks.iter().filter(|mark| is_shown(mark.value)) {
            let point = (place(mark.category), mark.value.max(foot));
            chart
                .draw_series([Cross::new(point, MARK_PIXELS, BLACK.stroke_width(2))])
                .map_err(draw_error)?;
            // Above its cross and to the left, where the line that comes to it hides nothing, but in the first category.
            let (side, away) = match mark.category {
                0 => (HPos::Left, MARK_PIXELS * 2),
                _ => (HPos::Right, -MARK_PIXELS * 2),
            };
            let style = TextStyle::from((FONT, LABEL_PIXELS)).pos(Pos::new(side, VPos::Bottom));
            let text =
                EmptyElement::at(point) + Text::new(mark.name.clone(), (away, -MARK_PIXELS), style);
            chart.draw_series([text]).map_err(draw_error)?;
        }
        Ok(())
    }
}
