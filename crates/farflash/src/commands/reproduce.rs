//! `farflash reproduce`: the papers' experiments, run again.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use clap::Args;
use report::{Align, Table};
use reproduce::{FIGURES, Figure, Options, Outcome};

use crate::failure::Failure;
use crate::output;

pub(super) const EXAMPLES: &str = "\
Examples:
  farflash reproduce --list
  farflash reproduce decibel-13
  farflash reproduce decibel-13 --time 0.05 --out /tmp/figures --json

Everything happens in simulated time on modelled drives, so that equal flags give equal results.";

/// Steps in which progress is told.
const STEPS: f64 = 1_000.0;

#[derive(Debug, Args)]
pub(crate) struct Reproduce {
    /// The figure; --list tells which there are
    #[arg(value_name = "FIGURE", required_unless_present = "list")]
    figure: Option<String>,
    /// List the figures
    #[arg(long, conflicts_with = "figure")]
    list: bool,
    /// Part of the paper's duration, above 0 and at most 1
    #[arg(long, default_value_t = 1.0, value_name = "PART")]
    time: f64,
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
        let Some(name) = &self.figure else { return self.print_list() };
        let figure = Figure::find(name).ok_or_else(|| {
            let known: Vec<&str> = FIGURES.iter().map(|figure| figure.name).collect();
            Failure::usage(
                format!("there is no figure {name}"),
                format!("choose one of {}", known.join(", ")),
            )
        })?;
        let options = Options { time: self.time, seed: self.seed };
        let mut progress = output::progress(name);
        let outcome = figure
            .run(&options, &mut |part| progress((part * STEPS) as u64, STEPS as u64))
            .map_err(|error| Failure::usage(error.to_string(), "change --time"))?;
        let document = document(&figure, &options, &outcome);
        save(&self.out, name, &outcome, &document).map_err(|error| {
            let what = format!("the figure cannot be saved in {}: {error}", self.out.display());
            Failure::runtime(what, "name a directory that can be written with --out")
        })?;
        output::print("give the result somewhere to go", |out| self.print(out, &outcome, &document))
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
            writeln!(out, "  paper: {}\n  here:  {}", finding.paper, finding.here)?;
        }
        let name = self.figure.as_deref().unwrap_or_default();
        writeln!(out, "saved {}.svg, .csv and .json", self.out.join(name).display())
    }
}

fn document(figure: &Figure, options: &Options, outcome: &Outcome) -> serde_json::Value {
    serde_json::json!({
        "figure": figure.name,
        "about": figure.about,
        "time": options.time,
        "seed": options.seed,
        "agrees": outcome.agrees(),
        "findings": outcome.findings,
    })
}

fn save(
    out: &Path,
    name: &str,
    outcome: &Outcome,
    document: &serde_json::Value,
) -> std::io::Result<()> {
    fs::create_dir_all(out)?;
    fs::write(out.join(format!("{name}.csv")), outcome.data.to_csv())?;
    fs::write(out.join(format!("{name}.svg")), &outcome.svg)?;
    let text = serde_json::to_string_pretty(document)?;
    fs::write(out.join(format!("{name}.json")), text + "\n")
}
