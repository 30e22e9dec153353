//! `farflash reproduce`: the papers' experiments, run again.

mod datastores;
mod hogs;
mod interference;
mod page;
mod real_time;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use clap::Args;
use report::{Align, Table};
use reproduce::{CpuCosts, FIGURES, Figure, Options, Outcome};
use user_messages::Failure;
use user_messages::output;

pub(super) const EXAMPLES: &str = "\
Examples:
  farflash reproduce --list
  farflash reproduce decibel-13
  farflash reproduce decibel-13 --time 0.05 --out /tmp/figures --json
  farflash reproduce decibel-13 --real-time --scale 0.05
  farflash reproduce afa-12 --out /tmp/figures
  farflash reproduce afa-12 --real-time
  farflash reproduce eurosys-4a --real-time
  farflash reproduce eurosys-6b --real-time --time 0.2
  farflash reproduce --all --time 0.125 --page figures.md

Everything happens in simulated time on modelled drives, so that equal flags give equal results; but \
for --real-time. That is decibel-13 with hosts, NVMe/TCP and a server on a drive that is slowed down to --scale, and \
afa-12 with reads of files in --out beside tasks that take all CPUs. eurosys-3 to eurosys-7b, table-1 and \
tenants-per-core in real time start a server and, but for eurosys-3 and table-1, datastores on local files and on \
attached volumes, all in --out. They also measure CPU costs, and run the figure in simulated time with these as \
FIGURE-at-scale.";

/// Part of the paper's time for a run in real time: 27 s for each policy.
const REAL_TIME_DEFAULT: f64 = 0.05;
/// Added to the reason why a figure with measured costs differs.
const COSTS_OF_THIS_MACHINE: &str = "The costs of farflash and of the datastore are those of this machine and of its load \
    during the run, the costs of iSCSI those of the paper's CPUs.";
const REMEDY: &str = "give the result somewhere to go";
/// Steps in which progress is told.
const STEPS: f64 = 1_000.0;

#[derive(Debug, Args)]
pub(crate) struct Reproduce {
    /// The figure; --list tells which there are
    #[arg(value_name = "FIGURE")]
    figure: Option<String>,
    /// List the figures
    #[arg(long, conflicts_with_all = ["figure", "all"])]
    list: bool,
    /// Run all figures, in simulated time
    #[arg(long, conflicts_with_all = ["figure", "real_time"])]
    all: bool,
    /// Markdown page with the findings of all figures; their pictures go into a directory of its name beside it
    #[arg(long, value_name = "FILE", requires = "all")]
    page: Option<PathBuf>,
    /// Part of the paper's duration, for afa figures of its drives, above 0 and at most 1 [default: 1, in real time 0.05]
    #[arg(long, value_name = "PART")]
    time: Option<f64>,
    /// In real time, on this machine (decibel-13, afa-12, eurosys-3 to eurosys-7b, table-1, tenants-per-core)
    #[arg(long)]
    real_time: bool,
    /// Speed of the drive in real time, relative to the paper's
    #[arg(long, default_value_t = 0.05, value_name = "PART", requires = "real_time")]
    scale: f64,
    /// File or drive of another way to Flash, of 2 GiB or more: eurosys-4a and 4b measure a third datastore on it (takes
    /// --destroy-data)
    #[arg(long, value_name = "PATH", requires = "real_time", requires = "destroy_data")]
    beside: Option<PathBuf>,
    /// Overwrite what --beside names: all its data is lost
    #[arg(long, requires = "beside")]
    destroy_data: bool,
    /// Seed of all that is random
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Directory for FIGURE.csv, FIGURE.json and FIGURE.svg
    #[arg(long, default_value = "figures", value_name = "DIR")]
    out: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A figure in simulated time, with CPU costs that were measured.
struct AtScale {
    costs: CpuCosts,
    outcome: Outcome,
    document: serde_json::Value,
}

impl Reproduce {
    pub(crate) fn run(self) -> Result<(), Failure> {
        if self.all {
            return self.run_all();
        }
        let Some(name) = &self.figure else {
            if self.list {
                return self.print_list();
            }
            let remedy = "name one; `farflash reproduce --list` says which there are";
            return Err(Failure::usage("no figure is named", remedy));
        };
        let figure = Figure::find(name).ok_or_else(|| {
            let known: Vec<&str> = FIGURES.iter().map(|figure| figure.name).collect();
            Failure::usage(
                format!("there is no figure {name}"),
                format!("choose one of {}", known.join(", ")),
            )
        })?;
        output::make_directory(&self.out)?;
        let time = self.time.unwrap_or(if self.real_time { REAL_TIME_DEFAULT } else { 1.0 });
        let options = Options { time, seed: self.seed, ..Options::default() };
        let mut progress = output::progress(name);
        let mut tell = |part: f64| progress((part * STEPS) as u64, STEPS as u64);
        let mut at_scale = None;
        let beside = self.beside.as_deref();
        if beside.is_some() {
            datastores::Form::check_beside(name)?;
        }
        let outcome = if !self.real_time {
            simulated(&figure, &options)?
        } else if name == "decibel-13" {
            real_time::run(time, self.scale, self.seed, &mut tell)?
        } else if name == "afa-12" {
            interference::run(&self.out, time, self.seed, &mut tell)?
        } else if let Some(form) = datastores::Form::of(name) {
            let (costs, outcome) = form.run(&self.out, beside, time, self.seed, &mut tell)?;
            let scaled = costs.map(|costs| self.at_scale(&figure, &Options { costs, ..options }));
            at_scale = scaled.transpose()?;
            outcome
        } else {
            return Err(no_real_time(name));
        };
        let mut document = document(&figure, &options, self.real_time, &outcome);
        if let Some(at_scale) = &at_scale {
            document["at_scale"] = at_scale.document.clone();
        }
        save(&self.out, name, &outcome, &document)
            .map_err(|error| not_saved(&self.out, &error, "--out"))?;
        output::print(REMEDY, |out| {
            if self.json {
                return writeln!(out, "{document}");
            }
            self.print(out, name, &outcome)?;
            let Some(AtScale { costs, outcome, .. }) = &at_scale else { return Ok(()) };
            writeln!(
                out,
                "\nat the paper's scale, in simulated time, with CPU costs of this run:"
            )?;
            write!(out, "{}", reproduce::eurosys::real_time::costs::table(costs).to_text())?;
            self.print(out, &name_at_scale(name), outcome)
        })
    }

    /// Runs a figure in simulated time with measured CPU costs, and saves it.
    fn at_scale(&self, figure: &Figure, options: &Options) -> Result<AtScale, Failure> {
        let mut outcome = simulated(figure, options)?;
        outcome.why = outcome.why.map(|why| format!("{why} {COSTS_OF_THIS_MACHINE}"));
        let mut document = document(figure, options, false, &outcome);
        document["costs"] = serde_json::json!(options.costs);
        save(&self.out, &name_at_scale(figure.name), &outcome, &document)
            .map_err(|error| not_saved(&self.out, &error, "--out"))?;
        Ok(AtScale { costs: options.costs, outcome, document })
    }

    fn run_all(&self) -> Result<(), Failure> {
        output::make_directory(&self.out)?;
        let options =
            Options { time: self.time.unwrap_or(1.0), seed: self.seed, ..Options::default() };
        let page = self.page.as_deref().map(|file| {
            page::Page::new(file, options).map_err(|error| not_saved(file, &error, "--page"))
        });
        let mut page = page.transpose()?;
        for figure in FIGURES {
            let outcome = simulated(figure, &options)?;
            let document = document(figure, &options, false, &outcome);
            save(&self.out, figure.name, &outcome, &document)
                .map_err(|error| not_saved(&self.out, &error, "--out"))?;
            if let Some((page, file)) = page.as_mut().zip(self.page.as_deref()) {
                page.add(figure, &outcome).map_err(|error| not_saved(file, &error, "--page"))?;
            }
            output::print(REMEDY, |out| {
                if self.json {
                    return writeln!(out, "{document}");
                }
                let agreeing = outcome.findings.iter().filter(|finding| finding.agrees).count();
                let of = outcome.findings.len();
                writeln!(out, "{}: {agreeing} of {of} statements agree", figure.name)
            })?;
        }
        match page.zip(self.page.as_deref()) {
            Some((page, file)) => page.save().map_err(|error| not_saved(file, &error, "--page")),
            None => Ok(()),
        }
    }

    fn print_list(&self) -> Result<(), Failure> {
        output::print("give the list somewhere to go", |out| {
            if self.json {
                let entry = |figure: &Figure| serde_json::json!({ "name": figure.name, "about": figure.about });
                let all: Vec<_> = FIGURES.iter().map(entry).collect();
                return writeln!(out, "{}", serde_json::json!({ "figures": all }));
            }
            let mut table = Table::new(&[("figure", Align::Left), ("shows", Align::Left)]);
            FIGURES.iter().for_each(|figure| table.row([figure.name, figure.about]));
            write!(out, "{}", table.to_text())
        })
    }

    fn print(&self, out: &mut dyn Write, name: &str, outcome: &Outcome) -> std::io::Result<()> {
        for finding in &outcome.findings {
            let verdict = if finding.agrees { "agrees" } else { "DIFFERS" };
            writeln!(out, "{} ({verdict})", finding.what)?;
            // What no paper has is measured against a goal.
            let (source, said) = match finding.paper.strip_prefix("goal: ") {
                Some(goal) => ("goal: ", goal),
                None => ("paper:", finding.paper.as_str()),
            };
            writeln!(out, "  {source} {said}\n  here:  {}", finding.here)?;
        }
        if let Some(why) = &outcome.why {
            writeln!(out, "why: {why}")?;
        }
        writeln!(out, "saved {}.svg, .csv and .json", self.out.join(name).display())
    }
}

/// Name of the files of a figure in simulated time with measured CPU costs.
fn name_at_scale(name: &str) -> String {
    format!("{name}-at-scale")
}

fn no_real_time(name: &str) -> Failure {
    let others = ["decibel-13", "afa-12"].into_iter();
    let all: Vec<&str> = others.chain(datastores::FORMS.iter().map(|form| form.name)).collect();
    let what = format!("{name} has no form in real time");
    Failure::usage(what, format!("leave out --real-time, or run one of {}", all.join(", ")))
}

fn simulated(figure: &Figure, options: &Options) -> Result<Outcome, Failure> {
    let mut progress = output::progress(figure.name);
    let mut tell = |part: f64| progress((part * STEPS) as u64, STEPS as u64);
    figure
        .run(options, &mut tell)
        .map_err(|error| Failure::usage(error.to_string(), "change --time"))
}

fn not_saved(place: &Path, error: &std::io::Error, option: &str) -> Failure {
    let what = format!("the figure cannot be saved in {}: {error}", place.display());
    Failure::runtime(what, format!("name a place that can be written with {option}"))
}

fn document(
    figure: &Figure,
    options: &Options,
    real_time: bool,
    outcome: &Outcome,
) -> serde_json::Value {
    serde_json::json!({
        "figure": figure.name,
        "about": figure.about,
        "time": options.time,
        "seed": options.seed,
        "real_time": real_time,
        "agrees": outcome.agrees(),
        "findings": outcome.findings,
        "why": outcome.why,
        "data": outcome.data.to_json(),
    })
}

fn save(
    out: &Path,
    name: &str,
    outcome: &Outcome,
    document: &serde_json::Value,
) -> std::io::Result<()> {
    fs::write(out.join(format!("{name}.csv")), outcome.data.to_csv())?;
    fs::write(out.join(format!("{name}.svg")), &outcome.svg)?;
    let text = serde_json::to_string_pretty(document)?;
    fs::write(out.join(format!("{name}.json")), text + "\n")
}
