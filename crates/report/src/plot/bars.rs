//! Values side by side, in groups, each with its spread.

use plotters::prelude::*;

use super::axis::{Axis, linear_ticks};
use super::{Area, FONT, LABEL_PIXELS, PlotError, colour, draw_error, draw_legend, framed};
use crate::Spread;

/// Share of a group's room that its bars take.
const GROUP_FILL: f64 = 0.78;

/// One bar.
#[derive(Clone, Copy, Debug)]
pub struct Bar {
    /// Its height.
    pub value: f64,
    /// Lower end of its whisker.
    pub low: f64,
    /// Upper end of its whisker.
    pub high: f64,
}

impl From<Spread> for Bar {
    fn from(spread: Spread) -> Self {
        Self { value: spread.median, low: spread.low, high: spread.high }
    }
}

/// Bars of one colour, one in each group.
#[derive(Clone, Debug)]
pub struct BarSeries {
    /// Its name in the legend.
    pub name: String,
    /// One bar for each group, `None` where nothing was measured.
    pub bars: Vec<Option<Bar>>,
}

/// Groups of bars.
#[derive(Clone, Debug)]
pub struct BarChart {
    /// Caption above the panel.
    pub caption: String,
    /// Label of the heights.
    pub y_label: String,
    /// Names of the groups.
    pub groups: Vec<String>,
    /// The bars by colour.
    pub series: Vec<BarSeries>,
    /// Format of heights.
    pub y_format: fn(f64) -> String,
}

impl BarChart {
    pub(super) fn draw(&self, area: &Area<'_>) -> Result<(), PlotError> {
        let bars = self.series.iter().flat_map(|series| series.bars.iter().flatten());
        let high = bars.map(|bar| bar.high.max(bar.value)).filter(|v| v.is_finite());
        let Some(high) = high.max_by(f64::total_cmp) else {
            return Err(PlotError::Empty(self.caption.clone()));
        };
        // Room for the legend above the tallest bar.
        let ticks = linear_ticks(high * 1.15, 5);
        let top = *ticks.last().expect("at least one tick");
        // A group without a name is room for the legend.
        let named = self.groups.iter().enumerate().filter(|(_, name)| !name.is_empty());
        let centres: Vec<f64> = named.map(|(group, _)| group as f64 + 0.5).collect();
        let name = |x: f64| self.groups.get(x as usize).cloned().unwrap_or_default();
        let mut chart = framed(area, &self.caption, 30)
            .build_cartesian_2d(
                Axis::linear(0.0..self.groups.len() as f64, centres, name),
                Axis::linear(0.0..top, ticks, self.y_format),
            )
            .map_err(draw_error)?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(BLACK.mix(0.12))
            .y_desc(&self.y_label)
            .label_style((FONT, LABEL_PIXELS))
            .draw()
            .map_err(draw_error)?;
        for (index, series) in self.series.iter().enumerate() {
            let fill = colour(index).filled();
            let bodies = self
                .placed(index)
                .map(|(left, right, bar)| Rectangle::new([(left, 0.0), (right, bar.value)], fill));
            chart
                .draw_series(bodies)
                .map_err(draw_error)?
                .label(&series.name)
                .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 14, y + 5)], fill));
            let whiskers = self.placed(index).map(|(left, right, bar)| {
                let centre = (left + right) / 2.0;
                PathElement::new([(centre, bar.low), (centre, bar.high)], BLACK.stroke_width(1))
            });
            chart.draw_series(whiskers).map_err(draw_error)?;
        }
        draw_legend(&mut chart, SeriesLabelPosition::UpperRight)
    }

    /// Left and right edge of each bar of a series.
    fn placed(&self, index: usize) -> impl Iterator<Item = (f64, f64, &Bar)> {
        let width = GROUP_FILL / self.series.len() as f64;
        let offset = (1.0 - GROUP_FILL) / 2.0 + width * index as f64;
        let bars = self.series[index].bars.iter().take(self.groups.len()).enumerate();
        bars.filter_map(move |(group, bar)| {
            let left = group as f64 + offset;
            Some((left, left + width * 0.94, bar.as_ref()?))
        })
    }
}
