//! Draws one plot of each kind into the file named by the first argument.

use report::{
    Bar, BarChart, BarSeries, CategoryChart, CategorySeries, LatencyChart, LatencySeries,
    LineChart, Mark, Marker, Panel, ScatterChart, Series, duration_ns, figure, rate,
};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).unwrap_or_else(|| "gallery.svg".to_owned());
    let wave = |phase: f64| {
        let point = move |second: i32| {
            let x = f64::from(second) / 4.0;
            let down = (4.0..5.5).contains(&x);
            (x, if down { 0.0 } else { 4e5 + 5e4 * (x + phase).sin() })
        };
        (0..60).map(point).collect()
    };
    let tail = |scale: f64| {
        let steps = (0..=60).map(|step| f64::from(step) / 10.0);
        steps.map(|nines| (1.0 - 10f64.powf(-nines), scale * 9e3 * (nines * 0.9).exp())).collect()
    };
    let bar = |value: f64| Some(Bar { value, low: value * 0.9, high: value * 1.08 });
    let panels = [
        Panel::Line(LineChart {
            caption: "Throughput".into(),
            x_label: "time (s)".into(),
            y_label: "requests/s".into(),
            series: vec![
                Series { name: "local device".into(), points: wave(0.0) },
                Series { name: "remote volume".into(), points: wave(2.0) },
            ],
            markers: vec![Marker { x: 4.0, name: "server killed".into() }],
            levels: Vec::new(),
            is_logarithmic: false,
            y_format: rate,
        }),
        Panel::Latency(LatencyChart {
            caption: "Latency".into(),
            series: vec![
                LatencySeries { name: "local device".into(), quantiles: tail(1.0) },
                LatencySeries { name: "remote volume".into(), quantiles: tail(1.7) },
            ],
        }),
        Panel::Bars(BarChart {
            caption: "4 KiB random reads".into(),
            y_label: "requests/s".into(),
            groups: vec!["depth 1".into(), "depth 32".into(), "depth 128".into()],
            series: vec![
                BarSeries { name: "null".into(), bars: vec![bar(9e4), bar(1e6), bar(1.7e6)] },
                BarSeries { name: "farflash".into(), bars: vec![bar(6e4), bar(5e5), bar(7e5)] },
                BarSeries { name: "nbdkit".into(), bars: vec![bar(2e4), None, bar(8e4)] },
            ],
            y_format: rate,
        }),
        Panel::Category(CategoryChart {
            caption: "Latency of drives".into(),
            y_label: "latency".into(),
            categories: ["mean", "99 %", "99.9 %", "max"].map(str::to_owned).to_vec(),
            series: [1.0, 1.1, 1.3]
                .iter()
                .map(|scale| CategorySeries {
                    name: format!("drive {scale}"),
                    values: [3e4, 4e4, 9e4, 5e6].map(|ns| ns * scale).to_vec(),
                })
                .collect(),
            marks: vec![
                Mark { name: "paper: 600 µs".into(), category: 3, value: 6e5 },
                Mark { name: "paper: 30 µs".into(), category: 0, value: 3e4 },
            ],
            y_format: duration_ns,
        }),
        Panel::Scatter(ScatterChart {
            caption: "Single reads".into(),
            x_label: "number".into(),
            y_label: "latency".into(),
            points: (0..500).map(|n| (f64::from(n) * 1e3, f64::from(n % 7) * 1e4 + 3e4)).collect(),
            x_format: rate,
            y_format: duration_ns,
        }),
    ];
    std::fs::write(path, figure("farflash", &panels, 900, 300)?)?;
    Ok(())
}
