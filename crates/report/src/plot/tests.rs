//! Tests of the content of figures. Their look is for eyes: `examples/gallery.rs` draws one of each.

use super::*;
use crate::{duration_ns, percent, rate};

fn line(points: Vec<(f64, f64)>) -> Panel {
    Panel::Line(LineChart {
        caption: "throughput".into(),
        x_label: "seconds".into(),
        y_label: "requests/s".into(),
        series: vec![Series { name: "remote".into(), points }],
        markers: vec![Marker { x: 1.0, name: "killed".into() }],
        levels: Vec::new(),
        y_format: rate,
    })
}

#[test]
fn names_and_labels_appear_as_text() {
    let latency = Panel::Latency(LatencyChart {
        caption: "latency".into(),
        series: vec![LatencySeries {
            name: "local".into(),
            quantiles: vec![(0.0, 8e3), (0.5, 1e4), (0.999, 5e4), (1.0, 2e5)],
        }],
    });
    let bars = Panel::Bars(BarChart {
        caption: "peers".into(),
        y_label: "time".into(),
        groups: vec!["depth 1".into(), "depth 32".into()],
        series: vec![BarSeries {
            name: "farflash".into(),
            bars: vec![Some(Bar { value: 1.0, low: 0.5, high: 2.0 }), None],
        }],
        y_format: duration_ns,
    });
    let heat = Panel::Heat(HeatMap {
        caption: "savings".into(),
        x_label: "storage".into(),
        y_label: "compute".into(),
        columns: vec!["1 x".into(), "2 x".into()],
        rows: vec!["1 y".into()],
        cells: vec![vec![-0.12, f64::NAN]],
        format: percent,
    });
    let category = Panel::Category(CategoryChart {
        caption: "drives".into(),
        y_label: "latency".into(),
        categories: vec!["mean".into(), "worst".into()],
        series: vec![CategorySeries { name: "untuned".into(), values: vec![3e4, 5e6] }],
        marks: vec![Mark { name: "paper".into(), category: 1, value: 6e5 }],
        y_format: duration_ns,
    });
    let scatter = Panel::Scatter(ScatterChart {
        caption: "samples".into(),
        x_label: "number".into(),
        y_label: "latency".into(),
        points: vec![(1e5, 6e5), (2e5, 3e4)],
        x_format: rate,
        y_format: duration_ns,
    });
    let first = line(vec![(0.0, 1e6), (2.0, 2e6)]);
    let panels = [first, latency, bars, heat, category, scatter];
    let svg = figure("all", &panels, 800, 300).expect("a figure");
    for text in [
        "killed", "remote", "1.00 M", "99.9 %", "200 µs", "depth 32", "farflash", "2 x", "1 y",
        "-12.0 %", "untuned", "worst", "paper", "samples", "600 µs",
    ] {
        assert!(svg.contains(text), "{text}");
    }
}

#[test]
fn a_panel_without_values_is_an_error_that_names_it() {
    let error = figure("none", &[line(vec![(0.0, f64::NAN)])], 800, 300).expect_err("no values");
    assert_eq!(error.to_string(), "the panel `throughput` has no finite value");
}

#[test]
fn a_single_point_is_drawn() {
    figure("one", &[line(vec![(3.0, 0.0)])], 800, 300).expect("a figure");
}

/// Sixty-four drives are a spread: their names would hide it.
#[test]
fn many_lines_have_no_legend() {
    let series = |n: usize| CategorySeries { name: format!("drive {n}"), values: vec![1.0, 2.0] };
    let chart = |count: usize| {
        let chart = CategoryChart {
            caption: "drives".into(),
            y_label: String::new(),
            categories: vec!["a".into(), "b".into()],
            series: (0..count).map(series).collect(),
            marks: Vec::new(),
            y_format: rate,
        };
        figure("spread", &[Panel::Category(chart)], 800, 300).expect("a figure")
    };
    assert!(chart(7).contains("drive 6") && !chart(8).contains("drive 6"));
}
