//! Values over a number: time series, sweeps of the queue depth.

use std::ops::Range;

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::axis::{Axis, linear_ticks, ticks_between, whole_ticks_between};
use super::{Area, FONT, LABEL_PIXELS, PlotError, colour, draw_error, draw_legend, framed};

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

/// Lines over a common x, from zero upwards.
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
    /// Format of y values at their ticks.
    pub y_format: fn(f64) -> String,
}

impl LineChart {
    fn finite(&self) -> impl Iterator<Item = &(f64, f64)> {
        let points = self.series.iter().flat_map(|series| &series.points);
        points.filter(|(x, y)| x.is_finite() && y.is_finite())
    }

    /// Returns the corner in which the legend hides least of the lines and of the markers' names.
    fn emptiest_corner(&self, x: Range<f64>, top: f64) -> Corner {
        let part = |at: f64, y: f64| ((at - x.start) / (x.end - x.start), y / top);
        let mut places: Vec<_> = self.markers.iter().map(|marker| part(marker.x, top)).collect();
        // Their names stand at the left.
        let level = |level: &Level| [0.05, 0.15].map(|at| (at, level.y / top));
        places.extend(self.levels.iter().flat_map(level));
        for series in &self.series {
            for pair in series.points.windows(2) {
                let ((x0, y0), (x1, y1)) = (pair[0], pair[1]);
                places.extend((0..=STEPS).map(|step| {
                    let way = f64::from(step) / f64::from(STEPS);
                    part(x0 + (x1 - x0) * way, y0 + (y1 - y0) * way)
                }));
            }
        }
        let hidden = |corner: &Corner| places.iter().filter(|place| corner.holds(**place)).count();
        Corner::ALL.into_iter().min_by_key(hidden).expect("there are four")
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
        let ticks = linear_ticks(high_y, 5);
        let top = *ticks.last().expect("at least one tick");
        let mut chart = framed(area, &self.caption, 40)
            .build_cartesian_2d(
                Axis::linear(low_x..end_x, ticks_x, plain),
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
        draw_legend(&mut chart, self.emptiest_corner(low_x..end_x, top).position())
    }
}

/// A corner of a panel, for what must not hide a line.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Corner {
    LowerRight,
    UpperRight,
    UpperLeft,
    LowerLeft,
}

/// The part of a panel's width, and of its height, that a legend in a corner may take.
const LEGEND_WIDTH: f64 = 0.3;
const LEGEND_HEIGHT: f64 = 0.4;
/// Places of a line between two points at which it is looked for.
const STEPS: u32 = 8;

impl Corner {
    /// In the order of preference.
    const ALL: [Self; 4] = [Self::LowerRight, Self::UpperRight, Self::UpperLeft, Self::LowerLeft];

    /// Returns true if a place lies in it, given in parts of the panel's width and height.
    fn holds(self, (x, y): (f64, f64)) -> bool {
        let is_right = matches!(self, Self::LowerRight | Self::UpperRight);
        let is_upper = matches!(self, Self::UpperRight | Self::UpperLeft);
        (if is_right { 1.0 - x } else { x }) < LEGEND_WIDTH
            && (if is_upper { 1.0 - y } else { y }) < LEGEND_HEIGHT
    }

    fn position(self) -> SeriesLabelPosition {
        match self {
            Self::LowerRight => SeriesLabelPosition::LowerRight,
            Self::UpperRight => SeriesLabelPosition::UpperRight,
            Self::UpperLeft => SeriesLabelPosition::UpperLeft,
            Self::LowerLeft => SeriesLabelPosition::LowerLeft,
        }
    }
}

/// A number without needless digits.
fn plain(value: f64) -> String {
    // Sums of steps such as 0.1 are off by parts of a millionth.
    format!("{}", (value * 1e6).round() / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(points: &[(f64, f64)], markers: &[f64]) -> LineChart {
        let marker = |x: &f64| Marker { x: *x, name: "killed".to_owned() };
        LineChart {
            caption: String::new(),
            x_label: String::new(),
            y_label: String::new(),
            series: vec![Series { name: "a".to_owned(), points: points.to_vec() }],
            markers: markers.iter().map(marker).collect(),
            levels: Vec::new(),
            y_format: plain,
        }
    }

    /// The legend goes where nothing is: not over a line, nor over its part between two points far apart, nor over
    /// the name of a marker.
    #[test]
    fn the_legend_hides_no_line() {
        let corner = |points: &[(f64, f64)], markers: &[f64]| {
            chart(points, markers).emptiest_corner(0.0..10.0, 10.0)
        };
        assert_eq!(corner(&[(0.0, 5.0), (10.0, 9.0)], &[]), Corner::LowerRight);
        let along_the_ground = [(0.0, 9.0), (1.0, 1.0), (10.0, 1.0)];
        assert_eq!(corner(&along_the_ground, &[]), Corner::UpperRight);
        assert_eq!(corner(&[(0.0, 0.0), (10.0, 0.0)], &[9.0]), Corner::UpperLeft);
        let around = [(2.0, 9.0), (10.0, 9.0), (10.0, 1.0), (5.0, 1.0)];
        assert_eq!(corner(&around, &[]), Corner::LowerLeft);
    }
}
