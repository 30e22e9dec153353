//! Figure 3: reads of 4 kB from a Flash server, by tenants and step of tuning.

use report::{Align, Bar, BarChart, BarSeries, Panel, Table};

use super::remote;
use crate::tiers::costs::{Stack, Step, iscsi};
use crate::tiers::{Flash, Load, Setup, run as simulate};
use crate::{Finding, Options, Outcome, Progress, ReproduceError};

/// Tenants of the figure, and those with which the drive is said to be the limit.
const TENANTS: [usize; 4] = [1, 3, 6, 8];
/// Reads of a tenant outstanding.
const DEPTH: u32 = 64;
const SECONDS: f64 = 2.0;
const SECONDS_MIN: f64 = 0.1;

/// Rates of one way by number of tenants.
struct Way {
    name: &'static str,
    rates: Vec<f64>,
}

impl Way {
    fn measure(
        name: &'static str,
        flash: Flash,
        options: &Options,
    ) -> Result<Self, ReproduceError> {
        let seconds = (SECONDS * options.time).max(SECONDS_MIN);
        let rate = |tenants: &usize| {
            let tenants = vec![Load::Reads { depth: DEPTH }; *tenants];
            let Options { seed, costs, .. } = *options;
            simulate(&Setup { tenants, flash, costs, seconds, seed })
                .map(|measured| measured.per_second)
        };
        Ok(Self { name, rates: TENANTS.iter().map(rate).collect::<Result<_, _>>()? })
    }

    fn at(&self, tenants: usize) -> f64 {
        self.rates[TENANTS.iter().position(|count| *count == tenants).expect("one of them")]
    }
}

/// Runs `eurosys-3`.
pub(crate) fn run(options: &Options, progress: Progress<'_>) -> Result<Outcome, ReproduceError> {
    let steps = Step::ALL.map(|step| (step.name(), iscsi(step)));
    let default = (Step::EightProcesses.name(), iscsi(Step::EightProcesses));
    let stacks: Vec<(&str, Stack)> =
        steps.into_iter().chain([("farflash", options.costs.farflash()), default]).collect();
    let mut ways = Vec::new();
    for (name, stack) in &stacks {
        ways.push(Way::measure(name, remote(*stack), options)?);
        progress(ways.len() as f64 / (stacks.len() + 1) as f64);
    }
    let local = Way::measure("local", Flash::Local, options)?.at(1);
    progress(1.0);
    let mut table = Table::new(&[
        ("target", Align::Left),
        ("tenants", Align::Right),
        ("reads/s", Align::Right),
    ]);
    for way in &ways {
        for (tenants, rate) in TENANTS.iter().zip(&way.rates) {
            table.row([way.name.to_owned(), tenants.to_string(), format!("{rate:.0}")]);
        }
    }
    let bar = |rate: &f64| Some(Bar { value: rate / 1e3, low: rate / 1e3, high: rate / 1e3 });
    // The default is no step of the figure.
    let series = ways
        .iter()
        .take(steps.len() + 1)
        // Behind them is room for the legend.
        .map(|way| BarSeries {
            name: way.name.into(),
            bars: way.rates.iter().map(bar).chain([None, None]).collect(),
        });
    let panel = Panel::Bars(BarChart {
        caption: format!(
            "all tenants together; the drive serves {:.0} thousand (paper: 250)",
            local / 1e3
        ),
        y_label: "thousand reads/s".into(),
        groups: ["1 tenant", "3 tenants", "6 tenants", "8 tenants", "", ""]
            .map(String::from)
            .into(),
        series: series.collect(),
        y_format: |value| format!("{value:.0}"),
    });
    let title = "EuroSys'16, figure 3: reads of 4 kB from a Flash server, by steps of tuning";
    let why = "By the gains that the paper prints for six tenants, a read costs six cores 28 µs each, which \
        leaves 212 000 reads/s; its figure has the drive's 250 000.";
    Ok(Outcome::new(title, &[panel], table, findings(&ways, local))?.because(why))
}

fn findings(ways: &[Way], local: f64) -> Vec<Finding> {
    let [one, six, offload, _, tuned, farflash, default] = ways else {
        unreachable!("one for each way")
    };
    let k = |rate: f64| format!("{:.1} k/s", rate / 1e3);
    vec![
        Finding {
            what: "one tenant, one process".into(),
            paper: "10.5 k/s, and 250 k/s from the drive".into(),
            here: format!("{}, and {}", k(one.at(1)), k(local)),
            agrees: (8e3..13e3).contains(&one.at(1)) && (225e3..275e3).contains(&local),
        },
        Finding {
            what: "six processes beside one".into(),
            paper: "4.5 times with one tenant, 2.3 with six".into(),
            here: format!("{:.1} and {:.1}", six.at(1) / one.at(1), six.at(6) / one.at(6)),
            agrees: six.at(1) / one.at(1) > six.at(6) / one.at(6) && six.at(6) / one.at(6) > 1.8,
        },
        Finding {
            what: "NIC offload".into(),
            paper: "8 % with one tenant, 22 % with six".into(),
            here: format!(
                "{:.0} % and {:.0} %",
                (offload.at(1) / six.at(1) - 1.0) * 100.0,
                (offload.at(6) / six.at(6) - 1.0) * 100.0
            ),
            agrees: offload.at(6) / six.at(6) > offload.at(1) / six.at(1),
        },
        Finding {
            what: "all steps beside the default of eight processes, six tenants".into(),
            paper: "1.5 times".into(),
            here: format!("{:.2} times", tuned.at(6) / default.at(6)),
            agrees: (1.35..1.75).contains(&(tuned.at(6) / default.at(6))),
        },
        Finding {
            what: "one tenant, all steps, below the drive".into(),
            paper: "70 %".into(),
            here: format!("{:.0} %", (1.0 - tuned.at(1) / local) * 100.0),
            agrees: (60.0..85.0).contains(&((1.0 - tuned.at(1) / local) * 100.0)),
        },
        Finding {
            what: "eight tenants".into(),
            paper: "the drive is the limit, at 250 k/s".into(),
            here: format!("{} with all steps", k(tuned.at(8))),
            agrees: tuned.at(8) > 0.95 * local,
        },
        Finding {
            what: "one tenant of farflash".into(),
            paper: "goal: 90 % of the drive".into(),
            here: format!("{} of {}", k(farflash.at(1)), k(local)),
            agrees: farflash.at(1) > 0.9 * local,
        },
    ]
}
