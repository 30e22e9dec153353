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
use reproduce::{FIGURES, Figure, Options, Outcome};
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
  farflash reproduce --all --time 0.125 --page figures.md

Everything happens in simulated time on modelled drives, so that equal flags give equal results; but \
for --real-time. That is decibel-13 with hosts, NVMe/TCP and a server on a drive that is slowed down to --scale, \
afa-12 with reads of files in --out beside tasks that take all CPUs, and eurosys-4a and eurosys-4b with two \
datastores, one on a local file and one on an attached volume of a server; both files are in --out.";

/// Part of the paper's time for a run in real time: 27 s for each policy.
const REAL_TIME_DEFAULT: f64 = 0.05;
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
    /// In real time, on this machine (decibel-13, afa-12, eurosys-4a and eurosys-4b)
    #[arg(long)]
    real_time: bool,
    /// Speed of the drive in real time, relative to the paper's
    #[arg(long, default_value_t = 0.05, value_name = "PART", requires = "real_time")]
    scale: f64,
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
        let options = Options { time, seed: self.seed };
        let mut progress = output::progress(name);
        let mut tell = |part: f64| progress((part * STEPS) as u64, STEPS as u64);
        let outcome = if !self.real_time {
            simulated(&figure, &options)?
        } else if name == "decibel-13" {
            real_time::run(time, self.scale, self.seed, &mut tell)?
        } else if name == "afa-12" {
            interference::run(&self.out, time, self.seed, &mut tell)?
        } else if let Some(part) = datastores::Part::of(name) {
            datastores::run(part, &self.out, time, self.seed, &mut tell)?
        } else {
            let what = format!("{name} has no form in real time");
            let remedy =
                "leave out --real-time, or run decibel-13, afa-12, eurosys-4a or eurosys-4b";
            return Err(Failure::usage(what, remedy));
        };
        let document = document(&figure, &options, self.real_time, &outcome);
        save(&self.out, name, &outcome, &document)
            .map_err(|error| not_saved(&self.out, &error, "--out"))?;
        output::print(REMEDY, |out| self.print(out, &outcome, &document))
    }

    fn run_all(&self) -> Result<(), Failure> {
        output::make_directory(&self.out)?;
        let options = Options { time: self.time.unwrap_or(1.0), seed: self.seed };
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

    fn print(
        &self,
        out: &mut dyn Write,
        outcome: &Outcome,
        document: &serde_json::Value,
    ) -> std::io::Result<()> {
        if self.json {
            return writeln!(out, "{document}");
        }
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
        let name = self.figure.as_deref().unwrap_or_default();
        writeln!(out, "saved {}.svg, .csv and .json", self.out.join(name).display())
    }
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
