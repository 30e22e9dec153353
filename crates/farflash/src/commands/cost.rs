//! `farflash cost`: whether disaggregation pays, from a plan.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use clap::Args;
use cost_model::growth::{self, Step};
use cost_model::ownership::{Operation, Owned};
use cost_model::scaling::{self, Sensitivity};
use cost_model::{Comparison, EXAMPLE, Plan};
use report::{Align, LineChart, Panel, Series, Table, percent};
use reproduce::cost as pictures;
use user_messages::Failure;
use user_messages::output;

use super::api::ApiArgs;
use super::usage::Usage;
use crate::interval::Interval;

pub(super) const EXAMPLES: &str = "\
Examples:
  The worked example of EuroSys'16, and a plan to begin with:
    farflash cost --example
    farflash cost --template >plan.toml

  A plan of your own, with a plot of costs and savings:
    farflash cost plan.toml --out cost-out

  The same with what this service holds and is asked for, measured over a minute:
    farflash cost plan.toml --from-usage --sample 1m

Savings are of the direct-attached cost. A negative saving means that disaggregation costs more.";

/// Factors of the map of savings.
const FACTORS: [f64; 10] = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0];
/// Factors of prices in the table of sensitivities.
const PRICE_FACTORS: [f64; 3] = [0.5, 1.0, 2.0];
/// Differences below this share count as none.
const EVEN: f64 = 0.005;
const PLOT_WIDTH: u32 = 900;
const PANEL_HEIGHT: u32 = 360;

#[derive(Debug, Args)]
pub(crate) struct Cost {
    /// A plan: requirement, servers and prices as TOML (see --template)
    #[arg(value_name = "PLAN", required_unless_present_any = ["example", "template"])]
    plan: Option<PathBuf>,
    /// Compute the worked example of the paper instead of a plan
    #[arg(long, conflicts_with = "plan")]
    example: bool,
    /// Print a plan to begin with, every key explained
    #[arg(long, conflicts_with_all = ["plan", "example"])]
    template: bool,
    /// Take capacity and IOPS of the requirement from a running service
    #[arg(long)]
    from_usage: bool,
    /// Time over which --from-usage measures requests
    #[arg(long, value_name = "INTERVAL", default_value = "10s", requires = "from_usage")]
    sample: Interval,
    #[command(flatten)]
    api: ApiArgs,
    /// Directory for cost.svg and savings.csv
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A term of operation: its name, and its cost.
type Term = (&'static str, fn(&Operation) -> f64);

/// All that is said of a plan.
struct Answer {
    plan: Plan,
    usage: Option<Usage>,
    now: Comparison,
    break_even: Option<f64>,
    owned: Option<Owned>,
    steps: Vec<Step>,
    sensitivity: Vec<Sensitivity>,
}

impl Cost {
    pub(crate) fn run(self) -> Result<(), Failure> {
        if self.template {
            return output::print("give the plan somewhere to go", |out| write!(out, "{EXAMPLE}"));
        }
        let mut plan = match &self.plan {
            Some(path) => read(path)?,
            None => Plan::paper(),
        };
        if let Some(out) = &self.out {
            output::make_directory(out)?;
        }
        let usage = match self.from_usage {
            true => Some(Usage::measure(&self.api.client()?, self.sample.0)?),
            false => None,
        };
        if let Some(usage) = &usage {
            plan.requirement.capacity_gb = usage.provisioned_gb;
            plan.requirement.iops = usage.requests_per_second;
        }
        let answer = Answer::new(plan, usage);
        if let Some(out) = &self.out {
            answer.save(out)?;
        }
        output::print("give the result somewhere to go", |out| match self.json {
            true => writeln!(out, "{}", answer.to_json()),
            false => write!(out, "{}", answer.to_text()),
        })
    }
}

fn read(path: &Path) -> Result<Plan, Failure> {
    let text = std::fs::read_to_string(path).map_err(|error| {
        let what = format!("the plan {} cannot be read: {error}", path.display());
        Failure::usage(what, "write one with `farflash cost --template >plan.toml`")
    })?;
    Plan::from_toml(&text).map_err(|error| {
        let what = format!("{}: {error}", path.display());
        Failure::usage(what, "`farflash cost --template` explains every key")
    })
}

impl Answer {
    fn new(plan: Plan, usage: Option<Usage>) -> Self {
        let model = plan.model();
        let now = model.compare(&plan.requirement);
        let steps = growth::purchases(&model, &plan.periods);
        let bought = steps.last().map_or(now, |step| step.so_far);
        Self {
            now,
            break_even: model.break_even_qps(&plan.requirement),
            owned: plan.ownership.map(|terms| terms.of(&model, &bought)),
            sensitivity: scaling::sensitivity(
                &model,
                &plan.requirement,
                &PRICE_FACTORS,
                &PRICE_FACTORS,
            ),
            steps,
            plan,
            usage,
        }
    }

    /// The cost that the verdict is about: ownership, else all purchases, else the snapshot.
    fn decisive(&self) -> &Comparison {
        let bought = self.steps.last().map_or(&self.now, |step| &step.so_far);
        self.owned.as_ref().map_or(bought, |owned| &owned.total)
    }

    /// The answer in words.
    fn verdict(&self) -> String {
        let cost = self.decisive();
        let saving = cost.saving();
        let (direct, remote) = (money(cost.direct), money(cost.disaggregated));
        let mut text = match saving {
            saving if saving > EVEN => format!(
                "Disaggregation pays: {remote} instead of {direct}, {} less.",
                percent(saving)
            ),
            saving if saving < -EVEN => format!(
                "Disaggregation does not pay: {remote} instead of {direct}, {} more.",
                percent(-saving)
            ),
            _ => format!("Both cost about the same: {remote} disaggregated, {direct} direct."),
        };
        let kept = self.plan.server.qps_remote / self.plan.server.qps_direct;
        match self.break_even {
            Some(least) => {
                let _ = write!(
                    text,
                    " At the prices and the requirement of now both cost the same if a server with \
                     remote Flash kept {} of its queries; it keeps {}.",
                    percent(least),
                    percent(kept)
                );
            }
            None => text.push_str(
                " The Flash servers alone cost more than direct-attached servers: only a lower tax \
                 or a larger difference between compute and storage changes that.",
            ),
        }
        text
    }

    fn to_text(&self) -> String {
        let mut text = String::new();
        if let Some(usage) = &self.usage {
            let _ = writeln!(text, "{usage}\n");
        }
        text += &self.costs().to_text();
        if !self.steps.is_empty() {
            let _ = write!(text, "\nPurchases over time\n{}", self.growth().to_text());
        }
        let _ = write!(
            text,
            "\nSavings by price of Flash (rows) and tax (columns)\n{}",
            self.prices().to_text()
        );
        let _ = writeln!(text, "\n{}", self.verdict());
        text
    }

    fn costs(&self) -> Table {
        let mut table = Table::new(&[
            ("", Align::Left),
            ("direct-attached", Align::Right),
            ("disaggregated", Align::Right),
        ]);
        let fleet = self.now.fleet;
        let count = |servers: f64| format!("{servers:.1}");
        table.row(["servers with CPU and Flash".into(), count(fleet.direct), String::new()]);
        table.row(["Flash servers".into(), String::new(), count(fleet.flash)]);
        table.row(["datastore servers".into(), String::new(), count(fleet.datastore)]);
        let purchase = ["purchase".into(), money(self.now.direct), money(self.now.disaggregated)];
        table.row(purchase);
        if let Some(owned) = &self.owned {
            let terms: [Term; 3] = [
                ("power", |terms| terms.power),
                ("rack space", |terms| terms.rack),
                ("worn drives", |terms| terms.endurance),
            ];
            for (name, term) in terms {
                let cells = [money(term(&owned.direct)), money(term(&owned.disaggregated))];
                let [direct, remote] = cells;
                table.row([name.to_owned(), direct, remote]);
            }
            let Comparison { direct, disaggregated, .. } = owned.total;
            table.row(["ownership".into(), money(direct), money(disaggregated)]);
        }
        table
    }

    fn growth(&self) -> Table {
        let mut table = Table::new(&[
            ("month", Align::Right),
            ("direct-attached", Align::Right),
            ("disaggregated", Align::Right),
            ("saving", Align::Right),
        ]);
        for Step { month, so_far } in &self.steps {
            let costs = [money(so_far.direct), money(so_far.disaggregated)];
            let [direct, remote] = costs;
            table.row([month.to_string(), direct, remote, percent(so_far.saving())]);
        }
        table
    }

    fn prices(&self) -> Table {
        let name = |factor: f64| format!("× {factor}");
        let headings: Vec<String> = PRICE_FACTORS.iter().map(|factor| name(*factor)).collect();
        let mut columns = vec![("", Align::Left)];
        columns.extend(headings.iter().map(|heading| (heading.as_str(), Align::Right)));
        let mut table = Table::new(&columns);
        for row in self.sensitivity.chunks(PRICE_FACTORS.len()) {
            let cells = row.iter().map(|cell| percent(cell.saving));
            table.row(std::iter::once(name(row[0].flash)).chain(cells));
        }
        table
    }

    fn to_json(&self) -> serde_json::Value {
        serde_json::json!({
            "plan": self.plan,
            "usage": self.usage,
            "purchase": self.now,
            "saving": self.decisive().saving(),
            "break_even_qps_kept": self.break_even,
            "ownership": self.owned,
            "purchases": self.steps,
            "sensitivity": self.sensitivity,
            "verdict": self.verdict(),
        })
    }

    fn save(&self, out: &Path) -> Result<(), Failure> {
        let model = self.plan.model();
        let map = scaling::map(&model, &self.plan.requirement, &FACTORS);
        let mut panels = vec![
            pictures::costs(self.decisive()),
            pictures::savings_panel("savings as this requirement is scaled", &map),
        ];
        if self.steps.len() > 1 {
            panels.push(self.growth_panel());
        }
        let title = "Direct-attached and disaggregated Flash";
        let svg = report::figure(title, &panels, PLOT_WIDTH, PANEL_HEIGHT);
        let svg = svg.map_err(|error| {
            Failure::runtime(format!("the plot cannot be drawn: {error}"), "leave out --out")
        })?;
        let table = pictures::savings_table(&map).to_csv();
        let saved = std::fs::write(out.join("cost.svg"), svg)
            .and_then(|()| std::fs::write(out.join("savings.csv"), table));
        saved.map_err(|error| {
            let what = format!("results cannot be saved in {}: {error}", out.display());
            Failure::runtime(what, "name a directory that can be written with --out")
        })
    }

    fn growth_panel(&self) -> Panel {
        let line = |name: &str, cost: fn(&Comparison) -> f64| Series {
            name: name.to_owned(),
            points: self.steps.iter().map(|step| (step.month, cost(&step.so_far))).collect(),
        };
        Panel::Line(LineChart {
            caption: "spent so far".into(),
            x_label: "months".into(),
            y_label: "currency of the plan".into(),
            series: vec![
                line("direct-attached", |cost| cost.direct),
                line("disaggregated", |cost| cost.disaggregated),
            ],
            markers: Vec::new(),
            levels: Vec::new(),
            is_logarithmic: false,
            y_format: report::rate,
        })
    }
}

/// An amount with its thousands apart: `812 500`.
fn money(amount: f64) -> String {
    let digits = format!("{:.0}", amount.abs());
    let grouped: Vec<&str> = digits
        .as_bytes()
        .rchunks(3)
        .rev()
        .map(|group| std::str::from_utf8(group).expect("digits"))
        .collect();
    let sign = if amount < 0.0 && digits != "0" { "-" } else { "" };
    format!("{sign}{}", grouped.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_is_answered_to_the_dollar_and_in_words() {
        let text = Answer::new(Plan::paper(), None).to_text();
        for part in ["960 000", "812 500", "Disaggregation pays", "15.4 % less", "64.2 %", "80.0 %"]
        {
            assert!(text.contains(part), "{part} in\n{text}");
        }
    }

    #[test]
    fn amounts_keep_their_thousands_apart() {
        assert_eq!(money(0.4), "0");
        assert_eq!(money(-0.4), "0");
        assert_eq!(money(999.6), "1 000");
        assert_eq!(money(-1_234_567.0), "-1 234 567");
    }

    #[test]
    fn a_balanced_application_is_told_not_to() {
        let mut plan = Plan::paper();
        plan.requirement.capacity_gb = 240_000.0;
        let verdict = Answer::new(plan, None).verdict();
        assert!(verdict.starts_with("Disaggregation does not pay"), "{verdict}");
    }
}
