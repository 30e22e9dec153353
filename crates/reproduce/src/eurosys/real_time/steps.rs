//! Figures 3 and 5 in real time: reads from a Flash server, and a datastore with remote Flash, by step of tuning.
//!
//! The paper tunes an iSCSI target and its network cards. Here a session's processes, each of which serves one request at a
//! time, are requests that may be outstanding; cards are the loopback of a network of the experiment's own, whose frames and
//! offloads are set as those of cards are. Interrupts of cards, and their affinity, have no counterpart there.

use report::{Align, Bar, BarChart, BarSeries, Panel, Spread, Table};

use super::super::drop_percent;
use super::Rate;
use crate::{Finding, Outcome, ReproduceError};

/// The network between hosts and the Flash server.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Network {
    /// Bytes of a frame.
    pub frame_bytes: u32,
    /// TCP's segments are cut, and put together again, below the kernel's network stack.
    pub has_offload: bool,
}

/// A step of tuning, with those before.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    /// Its name in the figure.
    pub name: &'static str,
    /// Requests outstanding of each host.
    pub outstanding: u16,
    /// The network.
    pub network: Network,
}

/// All steps, in the order of the figures.
pub const STEPS: [Step; 5] = [
    step("one request at a time", 1, 1_500, false),
    step("six at a time", 6, 1_500, false),
    step("offload", 6, 1_500, true),
    step("jumbo frames", 6, 9_000, true),
    step("farflash as it is", 64, 65_536, true),
];
/// Hosts of figure 3.
pub const TENANTS: [usize; 3] = [1, 3, 6];

const WHY: &str = "Hosts, Flash server and datastore share the CPUs of this one machine, and its \
    loopback copies what a network card would send, so that frames and offloads matter less or more than between machines. \
    farflash has no processes that wait for the drive: their number is that of outstanding requests here, and more of \
    them cost it nothing.";

const fn step(name: &'static str, outstanding: u16, frame_bytes: u32, has_offload: bool) -> Step {
    Step { name, outstanding, network: Network { frame_bytes, has_offload } }
}

fn gain_percent(value: f64, of: f64) -> f64 {
    (value / of - 1.0) * 100.0
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    Spread::of(&values.collect::<Vec<_>>()).map_or(f64::NAN, |spread| spread.median)
}

/// Reads a second of all hosts together, for each of [`STEPS`] and [`TENANTS`].
pub type Reads = [[f64; TENANTS.len()]; STEPS.len()];

/// The outcome of figure 3: reads in each round, and those a second of the drive without a server.
///
/// # Errors
/// There are no rounds, or the plot could not be drawn.
pub fn reads(rounds: &[Reads], drive: f64) -> Result<Outcome, ReproduceError> {
    let of = |step: usize, column: usize| -> Option<Spread> {
        Spread::of(&rounds.iter().map(|rates| rates[step][column]).collect::<Vec<_>>())
    };
    let bar = |spread: Spread| Bar {
        value: spread.median / 1e3,
        low: spread.low / 1e3,
        high: spread.high / 1e3,
    };
    // Behind the last group is room for the legend.
    let series = STEPS.iter().enumerate().map(|(at, step)| BarSeries {
        name: step.name.into(),
        bars: (0..TENANTS.len()).map(|column| of(at, column).map(bar)).chain([None]).collect(),
    });
    let panel = Panel::Bars(BarChart {
        caption: format!(
            "all hosts, median of {} rounds; the modelled drive alone serves {:.0} thousand here",
            rounds.len(),
            drive / 1e3
        ),
        y_label: "thousand reads/s".into(),
        groups: ["1 tenant", "3 tenants", "6 tenants", ""].map(String::from).into(),
        series: series.collect(),
        y_format: |value| format!("{value:.0}"),
    });
    let medians: Reads = std::array::from_fn(|step| {
        std::array::from_fn(|column| of(step, column).map_or(f64::NAN, |spread| spread.median))
    });
    let title = "EuroSys'16, figure 3, in real time: reads of 4 KiB from a Flash server";
    let (data, findings) = (reads_table(rounds, drive), reads_findings(&medians, drive));
    Ok(Outcome::new(title, &[panel], data, findings)?.because(WHY))
}

fn reads_table(rounds: &[Reads], drive: f64) -> Table {
    let mut data = Table::new(&[
        ("step", Align::Left),
        ("tenants", Align::Right),
        ("round", Align::Right),
        ("reads/s", Align::Right),
    ]);
    for (at, step) in STEPS.iter().enumerate() {
        for (column, tenants) in TENANTS.iter().enumerate() {
            for (round, rates) in rounds.iter().enumerate() {
                let rate = format!("{:.0}", rates[at][column]);
                let numbers = [tenants.to_string(), round.to_string(), rate];
                data.row(std::iter::once(step.name.to_owned()).chain(numbers));
            }
        }
    }
    data.row(["drive alone".to_owned(), "0".to_owned(), "0".to_owned(), format!("{drive:.0}")]);
    data
}

fn reads_findings(medians: &Reads, drive: f64) -> Vec<Finding> {
    let [one, six, offload, jumbo, all] = medians;
    let last = TENANTS.len() - 1;
    let k = |rate: f64| format!("{:.1} k/s", rate / 1e3);
    let gains = |value: &[f64; 3], of: &[f64; 3]| {
        [gain_percent(value[0], of[0]), gain_percent(value[last], of[last])]
    };
    let (by_offload, by_jumbo) = (gains(offload, six), gains(jumbo, offload));
    vec![
        Finding {
            what: "one tenant, one read at a time".into(),
            paper: "10.5 k/s, and 250 k/s from the drive".into(),
            here: format!("{}, and {} from the drive", k(one[0]), k(drive)),
            agrees: one[0] < drive / 5.0,
        },
        Finding {
            what: "six at a time beside one".into(),
            paper: "4.5 times with one tenant, 2.3 with six".into(),
            here: format!("{:.1} and {:.1}", six[0] / one[0], six[last] / one[last]),
            agrees: six[0] / one[0] > 2.0 && six[0] / one[0] > six[last] / one[last],
        },
        Finding {
            what: "offload".into(),
            paper: "8 % more with one tenant, 22 % with six".into(),
            here: format!("{:.0} % and {:.0} %", by_offload[0], by_offload[1]),
            agrees: by_offload[0] > 0.0 && by_offload[1] > by_offload[0],
        },
        Finding {
            what: "jumbo frames".into(),
            paper: "3 to 12 % more".into(),
            here: format!("{:.0} % with one tenant, {:.0} % with six", by_jumbo[0], by_jumbo[1]),
            agrees: by_jumbo.iter().all(|gain| *gain > 0.0),
        },
        Finding {
            what: "all steps beside six at a time, six tenants".into(),
            paper: "1.5 times the default of eight processes".into(),
            here: format!("{:.2} times", all[last] / six[last]),
            agrees: all[last] / six[last] > 1.35,
        },
        Finding {
            what: "one tenant, all steps, below the drive".into(),
            paper: "70 %".into(),
            here: format!("{:.0} %", drop_percent(all[0], drive)),
            agrees: (60.0..85.0).contains(&drop_percent(all[0], drive)),
        },
    ]
}

/// The outcome of figure 5: queries of a datastore for each of [`STEPS`], and of one with local Flash, in each round.
///
/// # Errors
/// There are no rounds, or the plot could not be drawn.
pub fn queries(
    steps: &[Vec<Rate>; STEPS.len()],
    local: &[Rate],
) -> Result<Outcome, ReproduceError> {
    let mut data = Table::new(&[
        ("flash", Align::Left),
        ("round", Align::Right),
        ("queries/s", Align::Right),
        ("mean µs", Align::Right),
        ("95 % µs", Align::Right),
    ]);
    let all = STEPS.iter().map(|step| step.name).zip(steps.iter().map(Vec::as_slice));
    let all: Vec<(&str, &[Rate])> = all.chain([("local", local)]).collect();
    for (name, rounds) in &all {
        for (round, rate) in rounds.iter().enumerate() {
            let Rate { per_second, mean_us, p95_us } = rate;
            let cells = [(*name).to_owned(), round.to_string(), format!("{per_second:.0}")];
            data.row(cells.into_iter().chain([format!("{mean_us:.1}"), format!("{p95_us:.1}")]));
        }
    }
    let bars = all.iter().map(|(_, rounds)| {
        let rates: Vec<f64> = rounds.iter().map(|rate| rate.per_second / 1e3).collect();
        Spread::of(&rates).map(Bar::from)
    });
    let panel = Panel::Bars(BarChart {
        caption: "median of all rounds, lowest and highest".into(),
        y_label: "thousand queries/s".into(),
        groups: all.iter().map(|(name, _)| (*name).to_owned()).collect(),
        series: vec![BarSeries {
            name: "16 clients, one query at a time each".into(),
            bars: bars.collect(),
        }],
        y_format: |value| format!("{value:.1}"),
    });
    let rate = |rounds: &[Rate]| median(rounds.iter().map(|rate| rate.per_second));
    let [one, six, offload, jumbo, tuned] = [0, 1, 2, 3, 4].map(|step: usize| rate(&steps[step]));
    let local = rate(local);
    let gains = [gain_percent(offload, six), gain_percent(jumbo, offload)];
    let total = gain_percent(tuned, six);
    let findings = vec![
        Finding {
            what: "six requests at a time beside one".into(),
            paper: "over 3 times the queries/s".into(),
            here: format!("{:.1} times", six / one),
            agrees: six / one > 2.5,
        },
        Finding {
            what: "offload and jumbo frames, each beside the step before; all steps".into(),
            paper: "7 and 13 %; together over 24 %".into(),
            here: format!("{:.0} and {:.0} %; together {total:.0} %", gains[0], gains[1]),
            agrees: gains.iter().all(|gain| *gain > -1.0) && total >= 12.0,
        },
        Finding {
            what: "all steps below local Flash".into(),
            paper: "20 %".into(),
            here: format!(
                "{:.0} %: {tuned:.0} and {local:.0} queries/s",
                drop_percent(tuned, local)
            ),
            agrees: drop_percent(tuned, local) < 28.0,
        },
    ];
    let title =
        "EuroSys'16, figure 5, in real time: a datastore with remote Flash, by steps of tuning";
    Ok(Outcome::new(title, &[panel], data, findings)?.because(WHY))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agreeing(outcome: &Outcome) -> Vec<bool> {
        outcome.findings.iter().map(|finding| finding.agrees).collect()
    }

    /// Method: rates with the ratios that the paper has, and the same without any gain.
    #[test]
    fn reads_with_the_paper_s_ratios_agree() {
        let as_published = [
            [10.5, 31.0, 62.0],
            [46.5, 110.0, 143.0],
            [50.2, 125.0, 174.0],
            [54.0, 134.0, 187.0],
            [65.0, 142.0, 215.0],
        ];
        // A round in which the machine was slow decides nothing.
        let slow = as_published.map(|rates| rates.map(|rate| rate / 9.0));
        let outcome = reads(&[as_published, slow, as_published], 250.0).expect("a plot");
        assert_eq!(agreeing(&outcome), [true; 6], "{:?}", outcome.findings);
        assert_eq!(outcome.data.to_csv().lines().count(), 1 + 3 * 15 + 1);
        let flat = reads(&[[[100.0; 3]; 5]], 100.0).expect("a plot");
        assert_eq!(agreeing(&flat), [false; 6], "{:?}", flat.findings);
        assert!(flat.why.is_some());
    }

    #[test]
    fn queries_are_compared_by_the_median_of_rounds() {
        let rounds = |rates: [f64; 3]| {
            rates.map(|per_second| Rate { per_second, mean_us: 9.0, p95_us: 20.0 }).to_vec()
        };
        let steps = [
            rounds([2.0, 10.0, 10.0]),
            rounds([31.0, 30.0, 90.0]),
            rounds([33.0, 33.0, 33.0]),
            rounds([37.0, 37.0, 37.0]),
            rounds([40.0, 1.0, 40.0]),
        ];
        let outcome = queries(&steps, &rounds([50.0, 50.0, 50.0])).expect("a plot");
        assert_eq!(agreeing(&outcome), [true; 3], "{:?}", outcome.findings);
        assert!(outcome.findings[0].here.starts_with("3.1 times"), "{:?}", outcome.findings);
        assert!(outcome.findings[2].here.starts_with("20 %"), "{:?}", outcome.findings);
        let flat = queries(&std::array::from_fn(|_| rounds([10.0; 3])), &rounds([50.0; 3]));
        assert_eq!(agreeing(&flat.expect("a plot")), [false; 3]);
    }
}
