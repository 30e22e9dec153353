//! Plots as SVG: one or more panels below each other.

mod axis;
mod bars;
mod category;
mod heat;
mod latency;
mod line;
mod scatter;

use plotters::chart::ChartContext;
use plotters::coord::{CoordTranslate, Shift};
use plotters::prelude::*;

pub use bars::{Bar, BarChart, BarSeries};
pub use category::{CategoryChart, CategorySeries, Mark};
pub use heat::HeatMap;
pub use latency::{LatencyChart, LatencySeries};
pub use line::{Level, LineChart, Marker, Series};
pub use scatter::ScatterChart;

/// Font family of all text; every viewer has one of that name.
const FONT: &str = "sans-serif";
const TITLE_PIXELS: u32 = 20;
const CAPTION_PIXELS: u32 = 15;
const LABEL_PIXELS: u32 = 12;
/// Colours that stay apart for colour-blind readers and in grey (after Okabe and Ito).
const COLOURS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(230, 130, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 70, 140),
    RGBColor(86, 180, 233),
    RGBColor(120, 94, 60),
    RGBColor(90, 90, 90),
];

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Why a plot could not be drawn.
#[derive(Debug, thiserror::Error)]
pub enum PlotError {
    /// A panel has nothing to show; leave it out.
    #[error("the panel `{0}` has no finite value")]
    Empty(String),
    /// The drawing library refused.
    #[error("drawing failed: {0}")]
    Draw(String),
}

/// One chart of a figure.
#[derive(Clone, Debug)]
pub enum Panel {
    /// Values over a number.
    Line(LineChart),
    /// Latency at each quantile.
    Latency(LatencyChart),
    /// Values side by side.
    Bars(BarChart),
    /// Values as colours over two axes.
    Heat(HeatMap),
    /// Values at named steps.
    Category(CategoryChart),
    /// Single measurements.
    Scatter(ScatterChart),
}

fn colour(index: usize) -> RGBColor {
    COLOURS[index % COLOURS.len()]
}

fn draw_error(error: impl std::fmt::Display) -> PlotError {
    PlotError::Draw(error.to_string())
}

/// A chart on `area` in the frame that all have: its caption, margins, and room for the labels of its axes, of which those
/// of x are `x_labels_pixels` high.
fn framed<'a, 'b>(
    area: &'a Area<'b>,
    caption: &str,
    x_labels_pixels: u32,
) -> ChartBuilder<'a, 'static, SVGBackend<'b>> {
    let mut chart = ChartBuilder::on(area);
    chart
        .caption(caption, (FONT, CAPTION_PIXELS))
        .margin(12)
        .margin_right(28)
        .x_label_area_size(x_labels_pixels)
        .y_label_area_size(76);
    chart
}

/// Pixels of a line in a legend, from there to its name, of a character, and from one name to the next.
const LEGEND_LINE: u32 = 16;
const LEGEND_GAP: u32 = 8;
const CHARACTER_PIXELS: u32 = 7;
const LEGEND_STEP: i32 = 18;

/// Draws the legend of lines at the right of `area`, where it hides none, and returns what is left for the chart.
fn beside_legend<'a>(area: &Area<'a>, names: &[&str]) -> Result<Area<'a>, PlotError> {
    let longest = names.iter().map(|name| name.chars().count()).max().unwrap_or(0);
    let text = u32::try_from(longest).map_err(draw_error)? * CHARACTER_PIXELS;
    let (width, height) = area.dim_in_pixel();
    let legend = (LEGEND_LINE + LEGEND_GAP + text).min(width / 2);
    let (chart, legend) = area.split_horizontally(width - legend);
    let style = TextStyle::from((FONT, LABEL_PIXELS));
    let first = (height / 5).cast_signed();
    for ((index, name), y) in names.iter().enumerate().zip((first..).step_by(LEGEND_STEP as usize))
    {
        let line = [(0, y), (LEGEND_LINE.cast_signed(), y)];
        let line = PathElement::new(line, colour(index).stroke_width(2));
        legend.draw(&line).map_err(draw_error)?;
        let at = ((LEGEND_LINE + LEGEND_GAP).cast_signed(), y - LABEL_PIXELS.cast_signed() / 2);
        legend.draw_text(name, &style, at).map_err(draw_error)?;
    }
    Ok(chart)
}

/// Says in a chart what its series are.
fn draw_legend<'a, 'b: 'a, C: CoordTranslate>(
    chart: &mut ChartContext<'a, SVGBackend<'b>, C>,
    position: SeriesLabelPosition,
) -> Result<(), PlotError> {
    chart
        .configure_series_labels()
        .position(position)
        .background_style(WHITE.mix(0.85))
        .label_font((FONT, LABEL_PIXELS))
        .draw()
        .map_err(draw_error)
}

/// Draws `panels` below each other, each `width` by `panel_height` pixels, and returns the SVG text.
pub fn figure(
    title: &str,
    panels: &[Panel],
    width: u32,
    panel_height: u32,
) -> Result<String, PlotError> {
    let mut svg = String::new();
    let title_height = TITLE_PIXELS * 2;
    let count = u32::try_from(panels.len()).map_err(draw_error)?;
    {
        let size = (width, title_height + panel_height * count);
        let root = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        root.fill(&WHITE).map_err(draw_error)?;
        let (head, body) = root.split_vertically(title_height);
        let style = (FONT, TITLE_PIXELS).into_font().into_text_style(&head);
        head.draw_text(title, &style, (14, 12)).map_err(draw_error)?;
        for (panel, area) in panels.iter().zip(body.split_evenly((panels.len(), 1))) {
            match panel {
                Panel::Line(chart) => chart.draw(&area)?,
                Panel::Latency(chart) => chart.draw(&area)?,
                Panel::Bars(chart) => chart.draw(&area)?,
                Panel::Heat(map) => map.draw(&area)?,
                Panel::Category(chart) => chart.draw(&area)?,
                Panel::Scatter(chart) => chart.draw(&area)?,
            }
        }
        root.present().map_err(draw_error)?;
    }
    Ok(svg)
}

#[cfg(test)]
mod tests;
