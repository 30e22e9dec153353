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
        is_logarithmic: false,
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

/// Centres of the dots of a chart, by their height: plotters writes a circle for each.
fn dots(svg: &str) -> Vec<f64> {
    let circles = svg.split("<circle ").skip(1);
    let height = |circle: &str| circle.split_once("cy=\"")?.1.split_once('"')?.0.parse().ok();
    circles.filter_map(height).collect()
}

/// A deviation of zero is the best of all: it is no gap in the line.
#[test]
fn zero_lies_on_the_foot_of_a_logarithmic_chart() {
    let of = |values: Vec<f64>| {
        let series = CategorySeries { name: "a".into(), values };
        let categories = vec!["x".into(), "y".into(), "z".into()];
        let (caption, y_label) = (String::new(), String::new());
        let marks = Vec::new();
        let y_format = rate;
        let chart =
            CategoryChart { caption, y_label, categories, series: vec![series], marks, y_format };
        dots(&figure("zero", &[Panel::Category(chart)], 800, 300).expect("a figure"))
    };
    let with_zero = of(vec![5.0, 0.0, 100.0]);
    assert_eq!(with_zero.len(), 3);
    assert!(with_zero[1] >= with_zero[0] && with_zero[0] > with_zero[2], "{with_zero:?}");
    assert_eq!(of(vec![5.0, f64::NAN, 100.0]).len(), 2);
}

/// Method: names of lines as long as they come, in each kind of chart with lines; all of the lines lie left of the names.
#[test]
fn a_legend_lies_beside_its_lines() {
    let mut long = line(vec![(0.0, 1e6), (2.0, 2e6)]);
    let name = "a line with a name that is long".to_owned();
    if let Panel::Line(chart) = &mut long {
        chart.series[0].name = name.clone();
    }
    let svg = figure("legend", &[long], 800, 300).expect("a figure");
    let text = svg.split("<text ").find(|text| text.contains(&name)).expect("it is named");
    let number = |text: &str| text.split('"').next()?.parse::<f64>().ok();
    let left = text.split_once("x=\"").and_then(|(_, rest)| number(rest)).expect("a place");
    let lines = svg.split("points=\"").skip(1).filter_map(|points| points.split('"').next());
    let xs = lines.flat_map(|points| points.split_whitespace());
    let xs: Vec<f64> = xs.filter_map(|point| point.split_once(',')?.0.parse().ok()).collect();
    assert!(!xs.is_empty() && xs.iter().all(|x| *x < left), "{left}: {xs:?}");
}

#[test]
fn a_logarithmic_axis_has_equal_room_for_equal_factors() {
    let mut curve = line(vec![(0.0, 20.0), (1.0, 200.0), (2.0, 20_000.0)]);
    if let Panel::Line(chart) = &mut curve {
        chart.is_logarithmic = true;
    }
    let svg = figure("log", &[curve], 800, 300).expect("a figure");
    let lines = svg.split("points=\"").skip(1).filter_map(|points| points.split('"').next());
    let heights = |line: &str| -> Vec<f64> {
        let points = line.split_whitespace();
        points.filter_map(|point| point.split_once(',')?.1.parse().ok()).collect()
    };
    // That of the curve is the only line with three points.
    let curve = lines.map(heights).find(|heights| heights.len() == 3).expect("a curve");
    let [first, second] = [curve[0] - curve[1], curve[1] - curve[2]];
    assert!(
        first > 0.0 && (second / first - 2.0).abs() < 0.1,
        "a factor of 10 and of 100: {curve:?}"
    );
}
