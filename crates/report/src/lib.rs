//! Output of measurements for people: aligned tables, Markdown, CSV, JSON lines, and SVG plots.
//!
//! Everything here turns values into text and writes no file. Plots name a font family and leave the glyphs to the
//! viewer, so that no font has to be installed where they are made.
//!
//! Absent from this crate: I/O, clocks, and any knowledge of what is measured.

mod format;
mod plot;
mod progress;
mod spread;
mod table;

pub use format::{duration_ns, percent, rate, rate_bytes};
pub use plot::{
    Bar, BarChart, BarSeries, CategoryChart, CategorySeries, HeatMap, LatencyChart, LatencySeries,
    Level, LineChart, Mark, Marker, Panel, PlotError, ScatterChart, Series, figure,
};
pub use progress::Progress;
pub use spread::Spread;
pub use table::{Align, Table, json_line};
