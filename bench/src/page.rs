//! The output of a comparison: tables on the terminal, JSON, a plot, and parts of two pages.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use report::{
    Align, Bar, BarChart, BarSeries, Panel, Spread, Table, duration_ns, figure, percent, rate,
};
use serde::Serialize;

use crate::bounds;
use crate::case::{Case, Sample, Shape, Subject};
use crate::compare::Results;
use crate::goals::Verdict;
use crate::machine::Facts;
use crate::verdict;

/// The generated part of either page lies between these lines.
const BEGIN: &str = "<!-- results: begin; written by `make bench` -->";
const END: &str = "<!-- results: end -->";
/// The page of all tables, beside the page of goals.
const FIGURES: &str = "benchmark-figures.md";
/// CPUs that others keep busy, above which that disturbs the measurements.
const BUSY: f64 = 0.2;

#[derive(Serialize)]
struct Summary<'a> {
    facts: &'a Facts,
    rounds: usize,
    seconds: f64,
    cases: Vec<CaseSummary<'a>>,
    goals: &'a [Verdict],
}

#[derive(Serialize)]
struct CaseSummary<'a> {
    #[serde(flatten)]
    case: &'a Case,
    iops: Spread,
    mean_us: Spread,
    p99_us: Option<Spread>,
    cpu_us_per_request: Option<Spread>,
    system_calls_per_request: Option<Spread>,
}

impl Results {
    fn spread(&self, index: usize, of: impl Fn(&Sample) -> Option<f64>) -> Option<Spread> {
        let column = self.samples.iter().filter_map(|row| row[index].as_ref());
        Spread::of(&column.filter_map(of).collect::<Vec<f64>>())
    }

    fn summaries(&self) -> Vec<CaseSummary<'_>> {
        let summary = |(index, case)| {
            Some(CaseSummary {
                case,
                iops: self.spread(index, |sample| Some(sample.iops))?,
                mean_us: self.spread(index, |sample| Some(sample.mean_us))?,
                p99_us: self.spread(index, |sample| sample.p99_us),
                cpu_us_per_request: self.spread(index, |sample| sample.cpu_us_per_request),
                system_calls_per_request: self
                    .spread(index, |sample| sample.system_calls_per_request),
            })
        };
        self.cases.iter().enumerate().filter_map(summary).collect()
    }
}

/// Prints the results and writes them to `out`, and to `page` if there is one.
pub(crate) fn write(results: &Results, out: &Path, page: Option<&Path>) -> Result<()> {
    let summaries = results.summaries();
    let (cases, verdicts) = (case_table(&summaries), verdict_table(results.verdicts.iter()));
    let judged = bounds::judge(&results.facts);
    let bounds = verdict::table(&judged);
    println!("{}\n{}\n{}", cases.to_text(), verdicts.to_text(), bounds.to_text());
    println!("{}", facts_text(&results.facts));
    let summary = Summary {
        facts: &results.facts,
        rounds: results.samples.len(),
        seconds: results.seconds,
        cases: results.summaries(),
        goals: &results.verdicts,
    };
    fs::write(out.join("summary.json"), serde_json::to_string_pretty(&summary)? + "\n")?;
    fs::write(out.join("cases.csv"), cases.to_csv())?;
    if let Some(svg) = plot(&summaries)? {
        fs::write(out.join("rates.svg"), svg)?;
    }
    let Some(page) = page else { return Ok(()) };
    let length = format!(
        "{} rounds, {} s each measurement; median (lowest–highest).",
        results.samples.len(),
        results.seconds
    );
    let facts = facts_text(&results.facts);
    let goals = verdict_table(results.verdicts.iter().filter(|verdict| verdict.bound.is_some()));
    let goals = format!(
        "{length}\n\n{}\n{}\n{facts}",
        goals.to_markdown(),
        verdict::goals(&judged).to_markdown()
    );
    let figures = format!(
        "{length}\n\n{}\n### Goals and references\n\n{}\n### Bounds and references\n\n{}\n{facts}",
        cases.to_markdown(),
        verdicts.to_markdown(),
        bounds.to_markdown()
    );
    publish(page, (BEGIN, END), &goals, &figures)
}

/// Results of an area of benchmarks whose page has its tables, and its goals behind them.
pub(crate) struct Area<'a> {
    /// Its name among the arguments, in the names of files and in the lines around its part of a page.
    pub(crate) name: &'a str,
    /// The subject of its goals, in words.
    pub(crate) subject: &'a str,
    /// Amount of measuring, in a sentence.
    pub(crate) length: String,
    pub(crate) tables: Vec<Table>,
    pub(crate) verdicts: &'a [verdict::Verdict],
    pub(crate) facts: &'a Facts,
}

impl Area<'_> {
    /// Prints the tables, and writes `results` to `out`, and tables and goals to `page` if there is one.
    pub(crate) fn write(
        &self,
        results: &impl Serialize,
        out: &Path,
        page: Option<&Path>,
    ) -> Result<()> {
        let verdicts = verdict::table(self.verdicts);
        for table in self.tables.iter().chain([&verdicts]) {
            println!("{}", table.to_text());
        }
        let facts = busy_text(self.facts) + &machine_text(self.facts);
        println!("{facts}");
        let json = out.join(self.name).with_extension("json");
        fs::write(json, serde_json::to_string_pretty(results)? + "\n")?;
        let Some(page) = page else { return Ok(()) };
        let Self { name, subject, length, .. } = self;
        let tables: Vec<String> = self.tables.iter().map(Table::to_markdown).collect();
        let figures = format!(
            "{length}\n\n{}\n### Goals and references of {subject}\n\n{}\n{facts}",
            tables.join("\n"),
            verdicts.to_markdown()
        );
        let goals = verdict::goals(self.verdicts).to_markdown();
        let lines = (
            &*format!("<!-- {name}: begin; written by `make bench` -->"),
            &*format!("<!-- {name}: end -->"),
        );
        publish(page, lines, &format!("{length}\n\n{goals}\n{facts}"), &figures)
    }
}

/// Replaces what is between the two lines: by `goals` in `page`, by `figures` in the page of all tables.
pub(crate) fn publish(page: &Path, lines: (&str, &str), goals: &str, figures: &str) -> Result<()> {
    replace(page, lines, goals)?;
    replace(&page.with_file_name(FIGURES), lines, figures)
}

/// Puts `generated` into `page`, in place of what is between the two lines.
fn replace(page: &Path, lines: (&str, &str), generated: &str) -> Result<()> {
    let text = fs::read_to_string(page).with_context(|| format!("read {}", page.display()))?;
    let replaced = replace_between(&text, lines, generated)
        .with_context(|| format!("{} lacks the line {} or {}", page.display(), lines.0, lines.1))?;
    fs::write(page, replaced)?;
    Ok(())
}

/// `text` with `generated` in place of what is between the two lines; `None` if they are not there.
fn replace_between(text: &str, (begin, end): (&str, &str), generated: &str) -> Option<String> {
    let (head, rest) = text.split_once(begin)?;
    let (_, tail) = rest.split_once(end)?;
    Some(format!("{head}{begin}\n\n{generated}\n{end}{tail}"))
}

fn case_table(summaries: &[CaseSummary<'_>]) -> Table {
    let mut table = Table::new(&[
        ("load", Align::Left),
        ("server", Align::Left),
        ("requests/s", Align::Right),
        ("mean latency", Align::Right),
        ("99 %", Align::Right),
        ("server CPU/request", Align::Right),
        ("system calls/request", Align::Right),
    ]);
    let mut last: Option<&Shape> = None;
    for summary in summaries {
        let shape = &summary.case.shape;
        let load = if last == Some(shape) { String::new() } else { shape.name() };
        last = Some(shape);
        let us = |spread: Option<Spread>| {
            spread.map_or("–".to_owned(), |spread| duration_ns(spread.median * 1e3))
        };
        table.row([
            load,
            summary.case.subject.name().to_owned(),
            summary.iops.show(rate),
            us(Some(summary.mean_us)),
            us(summary.p99_us),
            us(summary.cpu_us_per_request),
            summary
                .system_calls_per_request
                .map_or("–".to_owned(), |spread| format!("{:.2}", spread.median)),
        ]);
    }
    table
}

fn verdict_table<'a>(verdicts: impl Iterator<Item = &'a Verdict>) -> Table {
    let columns = [
        ("4 KiB random unless said otherwise, mem: device", Align::Left),
        ("reached", Align::Right),
        ("goal", Align::Right),
        ("", Align::Left),
    ];
    let mut table = Table::new(&columns);
    for verdict in verdicts {
        let multiple = verdict.what.contains("multiples");
        let show = |value: f64| match (verdict.is_latency, multiple) {
            (true, _) => format!("{value:.1} µs"),
            (_, true) => format!("{value:.1}"),
            _ => percent(value),
        };
        let sign = if verdict.is_latency { "<" } else { "≥" };
        let met = match (verdict.reached, verdict.met) {
            (None, _) => "not measured",
            (_, Some(true)) => "met",
            (_, Some(false)) => "missed",
            (_, None) => "",
        };
        table.row([
            verdict.what.to_owned(),
            verdict.reached.map_or("–".to_owned(), |reached| reached.show(show)),
            verdict.bound.map_or(String::new(), |bound| format!("{sign} {}", show(bound))),
            met.to_owned(),
        ]);
    }
    table
}

/// Says so if other work disturbed the measurements.
pub(crate) fn busy_text(facts: &Facts) -> String {
    let Some(busy) = facts.busy_cpus.filter(|busy| *busy > BUSY) else { return String::new() };
    format!(
        "**The machine was busy with other work ({busy:.1} CPUs): only ratios mean anything, and\n\
         even they are distorted.**\n\n"
    )
}

/// Returns the description of programs and machine.
pub(crate) fn machine_text(facts: &Facts) -> String {
    let Facts { commit, kernel, cpu, cpus, congestion_control, .. } = facts;
    format!("Commit {commit}, Linux {kernel}, {cpu} ({cpus} CPUs), {congestion_control}.\n")
}

fn facts_text(facts: &Facts) -> String {
    let apart = facts.cpu_round_trip_ns.map_or_else(String::new, |spread| {
        format!(" From one to the other and back a byte takes {}.", spread.show(duration_ns))
    });
    busy_text(facts)
        + machine_text(facts).trim_end()
        + &format!(
            " Loopback TCP, server on one CPU and client on another.{apart}\n\
             One read among others (depth 1) takes {:.0} µs.\n",
            facts.idle.waking.busy_us,
        )
}

/// Rates as shares of the null server would hide the peers, so both panels show absolute rates.
fn plot(summaries: &[CaseSummary<'_>]) -> Result<Option<String>> {
    let shapes = [Shape::READ_1, Shape::READ_32, Shape::READ_128, Shape::WRITE_32];
    let mut panels = Vec::new();
    for on_file in [false, true] {
        let mut subjects: Vec<Subject> = Vec::new();
        for summary in summaries.iter().filter(|s| s.case.subject.is_on_file() == on_file) {
            if !subjects.contains(&summary.case.subject) {
                subjects.push(summary.case.subject);
            }
        }
        let bar = |subject: Subject, shape: &Shape| {
            let found = summaries
                .iter()
                .find(|summary| summary.case.subject == subject && summary.case.shape == *shape);
            found.map(|summary| Bar::from(summary.iops))
        };
        let shown: Vec<&Shape> = shapes
            .iter()
            .filter(|shape| subjects.iter().any(|subject| bar(*subject, shape).is_some()))
            .collect();
        if shown.is_empty() {
            continue;
        }
        let series = subjects
            .iter()
            .map(|subject| BarSeries {
                name: subject.name().to_owned(),
                bars: shown.iter().map(|shape| bar(*subject, shape)).collect(),
            })
            .collect();
        panels.push(Panel::Bars(BarChart {
            caption: if on_file { "On a file" } else { "In memory" }.to_owned(),
            y_label: "requests/s".to_owned(),
            groups: shown.iter().map(|shape| shape.name()).collect(),
            series,
            y_format: rate,
        }));
    }
    if panels.is_empty() {
        return Ok(None);
    }
    Ok(Some(figure("farflash beside the machine's limit and its peers", &panels, 1000, 320)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_generated_part_of_a_page_is_replaced() {
        let page = format!("# Title\n{BEGIN}\nold\n{END}\nnote\n");
        let replaced = replace_between(&page, (BEGIN, END), "new").expect("both lines");
        assert_eq!(replaced, format!("# Title\n{BEGIN}\n\nnew\n{END}\nnote\n"));
        assert_eq!(replace_between("no lines", (BEGIN, END), "new"), None);
    }
}
