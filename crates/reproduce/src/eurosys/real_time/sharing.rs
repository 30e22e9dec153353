//! Figures 7a and 7b and the tenants of a core in real time: datastores that share a Flash server.

use report::{Align, Bar, BarChart, BarSeries, Level, LineChart, Panel, Series, Spread, Table};

use super::super::{MEAN_LIMIT_US, drop_percent, near};
use super::{Rate, WAYS, WHY};
use crate::{Finding, Outcome, ReproduceError};

/// Tenants that one core supports with iSCSI.
const PAPER_TENANTS: f64 = 3.0;
/// Queries a second of one datastore at its peak with remote Flash, in the paper's worked example.
const PAPER_QUERIES: f64 = 40_000.0;

/// One round: the rate of one datastore alone and of all together, and latencies at half of the lower rate, by way.
#[derive(Clone, Copy, Debug, Default)]
pub struct Shared {
    /// Alone.
    pub alone: [Rate; 2],
    /// All together: the sum of their rates, and the mean of their latencies.
    pub together: [Rate; 2],
}

impl Shared {
    fn dropped(&self, of: impl Fn(&Shared) -> &[Rate; 2]) -> f64 {
        let [local, remote] = of(self);
        drop_percent(remote.per_second, local.per_second)
    }

    /// Percent by which remote Flash makes the tail longer.
    fn tail(&self, of: impl Fn(&Shared) -> &[Rate; 2]) -> f64 {
        let [local, remote] = of(self);
        (remote.p95_us / local.p95_us - 1.0) * 100.0
    }
}

fn median(rounds: &[Shared], of: impl Fn(&Shared) -> f64) -> f64 {
    let values: Vec<f64> = rounds.iter().map(of).collect();
    Spread::of(&values).map_or(f64::NAN, |spread| spread.median)
}

/// The outcome of figure 7a or 7b, with so many datastores on one Flash server.
///
/// # Errors
/// There are no rounds, or the plot could not be drawn.
pub fn shared(servers: usize, rounds: &[Shared]) -> Result<Outcome, ReproduceError> {
    let (figure, paper_tail) = if servers == 2 { ("7a", 25) } else { ("7b", 55) };
    let panel = |caption: &str, y_label: &str, value: fn(&Rate) -> f64| {
        let bars = |way: usize| {
            let of = |rates: fn(&Shared) -> &[Rate; 2]| {
                let values: Vec<f64> =
                    rounds.iter().map(|round| value(&rates(round)[way])).collect();
                Spread::of(&values).map(Bar::from)
            };
            vec![of(|round| &round.alone), of(|round| &round.together), None]
        };
        let series = WAYS.iter().enumerate();
        let series = series.map(|(way, name)| BarSeries { name: (*name).into(), bars: bars(way) });
        Panel::Bars(BarChart {
            caption: caption.into(),
            y_label: y_label.into(),
            groups: vec!["one alone".into(), format!("{servers} together"), String::new()],
            series: series.collect(),
            y_format: |value| format!("{value:.1}"),
        })
    };
    let panels = [
        panel("queries/s of all, 16 clients each", "thousand queries/s", |rate| {
            rate.per_second / 1e3
        }),
        panel("95 % of gets, at half of the lower rate", "ms", |rate| rate.p95_us / 1e3),
    ];
    let together = median(rounds, |round| round.dropped(|round| &round.together));
    let alone = median(rounds, |round| round.dropped(|round| &round.alone));
    let tails = [
        median(rounds, |round| round.tail(|round| &round.together)),
        median(rounds, |round| round.tail(|round| &round.alone)),
    ];
    let findings = vec![
        Finding {
            what: format!("queries/s of {servers} datastores, remote below local Flash"),
            paper: "20 %, as for one".into(),
            here: format!("{together:.0} %, and {alone:.0} % for one"),
            agrees: together < 28.0 && near(together, alone, 10.0),
        },
        Finding {
            what: "95 % of gets, longer with remote Flash".into(),
            paper: format!("{paper_tail} % with {servers}, 10 % with one, by the writes of others"),
            here: format!("{:.0} % with {servers}, {:.0} % with one", tails[0], tails[1]),
            agrees: tails[0] > tails[1] + 5.0,
        },
    ];
    let title = format!(
        "EuroSys'16, figure {figure}, in real time: {servers} datastores that share a Flash server"
    );
    let why = format!(
        "{WHY} Local datastores share its disk, too, so that writes of others delay them as they do behind a Flash server."
    );
    Ok(Outcome::new(&title, &panels, shared_table(servers, rounds), findings)?.because(&why))
}

fn shared_table(servers: usize, rounds: &[Shared]) -> Table {
    let mut data = Table::new(&[
        ("datastores", Align::Right),
        ("flash", Align::Left),
        ("round", Align::Right),
        ("queries/s", Align::Right),
        ("95 % µs at half of it", Align::Right),
    ]);
    for (round, measured) in rounds.iter().enumerate() {
        for (count, rates) in [(1, &measured.alone), (servers, &measured.together)] {
            for (way, rate) in WAYS.iter().zip(rates) {
                data.row([
                    count.to_string(),
                    (*way).to_owned(),
                    round.to_string(),
                    format!("{:.0}", rate.per_second),
                    format!("{:.1}", rate.p95_us),
                ]);
            }
        }
    }
    data
}

/// Datastores behind one core of a Flash server.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tenants {
    /// Queries a second of all, and the mean of their latencies.
    pub rate: Rate,
    /// Cores that the Flash server used.
    pub server_cores: f64,
}

/// The outcome of `tenants-per-core`: one datastore at its peak, and one, two, … of them that each ask for `part` of that.
///
/// # Errors
/// Nothing was measured, or the plot could not be drawn.
pub fn tenants(peak: &Tenants, part: f64, by_count: &[Tenants]) -> Result<Outcome, ReproduceError> {
    let percent = part * 100.0;
    let line = |name: &str, value: fn(&Tenants) -> f64| {
        let points = by_count.iter().enumerate();
        let points = points.map(|(index, tenants)| ((index + 1) as f64, value(tenants)));
        Series { name: name.into(), points: points.collect() }
    };
    let chart = |caption: String, y_label: &str, series: Series, levels: Vec<Level>| {
        Panel::Line(LineChart {
            caption,
            x_label: "datastores".into(),
            y_label: y_label.into(),
            series: vec![series],
            markers: Vec::new(),
            levels,
            is_logarithmic: false,
            y_format: |value| format!("{value:.2}"),
        })
    };
    let limit_ms = MEAN_LIMIT_US / 1e3;
    let limit = Level { y: limit_ms, name: format!("limit of {limit_ms} ms") };
    let panels = [
        chart(
            format!("mean latency; each datastore asks for {percent:.0} % of its own peak"),
            "ms",
            line("gets", |tenants| tenants.rate.mean_us / 1e3),
            vec![limit],
        ),
        chart(
            "the Flash server, which has one core".into(),
            "cores used",
            line("farflash", |tenants| tenants.server_cores),
            vec![Level { y: 1.0, name: "its core".into() }],
        ),
    ];
    let title = "EuroSys'16, section 4.2, in real time: datastores behind a core of a Flash server";
    let why = format!(
        "{WHY} A core that has little to do looks for work for a while before it sleeps, which counts as CPU time of the \
         queries."
    );
    let data = tenants_table(peak, part, by_count);
    let findings = tenants_findings(peak, by_count);
    Ok(Outcome::new(title, &panels, data, findings)?.because(&why))
}

fn tenants_table(peak: &Tenants, part: f64, by_count: &[Tenants]) -> Table {
    let mut data = Table::new(&[
        ("datastores", Align::Right),
        ("load", Align::Left),
        ("queries/s", Align::Right),
        ("mean µs", Align::Right),
        ("cores of the Flash server", Align::Right),
    ]);
    let percent = part * 100.0;
    let of_peak = format!("{percent:.0} % of its peak each");
    let counted =
        by_count.iter().enumerate().map(|(index, tenants)| (index + 1, &*of_peak, tenants));
    for (count, load, tenants) in std::iter::once((1, "peak", peak)).chain(counted) {
        data.row([
            count.to_string(),
            load.to_owned(),
            format!("{:.0}", tenants.rate.per_second),
            format!("{:.1}", tenants.rate.mean_us),
            format!("{:.3}", tenants.server_cores),
        ]);
    }
    data
}

fn tenants_findings(peak: &Tenants, by_count: &[Tenants]) -> Vec<Finding> {
    let supported = 1.0 / peak.server_cores;
    let each_us = peak.server_cores / peak.rate.per_second * 1e6;
    let at_paper = 1e6 / (each_us * PAPER_QUERIES);
    let last = by_count.last().copied().unwrap_or_default();
    vec![
        Finding {
            what: "datastores at peak load that one core supports, by the CPU time that one takes"
                .into(),
            paper: "3 with iSCSI; goal: at least that".into(),
            here: format!(
                "{supported:.1}: {:.2} cores at {:.0} queries/s",
                peak.server_cores, peak.rate.per_second
            ),
            agrees: supported >= PAPER_TENANTS,
        },
        Finding {
            what: "the same at the paper's 40 000 queries/s".into(),
            paper: "3 with iSCSI; goal: at least that".into(),
            here: format!("{at_paper:.1}: {each_us:.1} µs of the core for a query"),
            agrees: at_paper >= PAPER_TENANTS,
        },
        Finding {
            what: format!("mean of gets with {} datastores behind one core", by_count.len()),
            paper: "application performance holds with three".into(),
            here: format!("{:.2} ms", last.rate.mean_us / 1e3),
            agrees: last.rate.mean_us <= MEAN_LIMIT_US,
        },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rate(per_second: f64, us: f64) -> Rate {
        Rate { per_second, mean_us: us, p95_us: us }
    }

    fn agreeing(outcome: &Outcome) -> Vec<bool> {
        outcome.findings.iter().map(|finding| finding.agrees).collect()
    }

    #[test]
    fn sharing_costs_the_tail_and_not_the_mean() {
        let round = |tail: f64| Shared {
            alone: [rate(100.0, 100.0), rate(80.0, 110.0)],
            together: [rate(200.0, 100.0), rate(158.0, tail)],
        };
        let outcome = shared(2, &[round(125.0), round(124.0), round(900.0)]).expect("a plot");
        assert_eq!(agreeing(&outcome), [true, true], "{:?}", outcome.findings);
        assert_eq!(outcome.findings[1].here, "25 % with 2, 10 % with one");
        assert_eq!(outcome.data.to_csv().lines().count(), 1 + 3 * 4);
        let slow = Shared { together: [rate(300.0, 100.0), rate(150.0, 100.0)], ..round(0.0) };
        let outcome = shared(3, &[slow]).expect("a plot");
        assert_eq!(agreeing(&outcome), [false, false], "{:?}", outcome.findings);
        assert!(outcome.why.is_some());
    }

    /// A datastore that takes a quarter of a core at 10 000 queries/s takes a whole one at the paper's rate.
    #[test]
    fn the_tenants_of_a_core_follow_from_its_time() {
        let peak = Tenants { rate: rate(10_000.0, 900.0), server_cores: 0.25 };
        let three = Tenants { rate: rate(7_500.0, 1_600.0), server_cores: 0.3 };
        let outcome = tenants(&peak, 0.25, &[peak, peak, three]).expect("a plot");
        assert_eq!(agreeing(&outcome), [true, false, false], "{:?}", outcome.findings);
        assert!(outcome.findings[0].here.starts_with("4.0: 0.25 cores"), "{:?}", outcome.findings);
        assert!(outcome.findings[1].here.starts_with("1.0: 25.0 µs"), "{:?}", outcome.findings);
    }
}
