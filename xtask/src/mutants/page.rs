//! `docs/mutants.md`, of which the tables are made of the results.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::io;
use std::path::Path;

use super::plan::PLANS;
use super::results::{Results, Row};

/// Path of the page, relative to the repository.
pub(super) const PATH: &str = "docs/mutants.md";

/// End of the part that is written by hand.
const MARK: &str = "<!-- The rest is written by `cargo xtask mutants report`. -->\n";

/// Writes the tables below what is written by hand.
pub(super) fn write(root: &Path) -> io::Result<()> {
    let path = root.join(PATH);
    let text = fs::read_to_string(&path)?;
    fs::write(path, page(&text, &Results::load(root)?)?)
}

/// Returns whether the page says what the results say.
pub(super) fn is_current(root: &Path) -> io::Result<bool> {
    let text = fs::read_to_string(root.join(PATH))?;
    Ok(page(&text, &Results::load(root)?)? == text)
}

fn page(text: &str, results: &Results) -> io::Result<String> {
    let (by_hand, _) = text
        .split_once(MARK)
        .ok_or_else(|| io::Error::other(format!("{PATH}: there is no line `{}`", MARK.trim())))?;
    Ok(format!("{by_hand}{MARK}\n{}", tables(results)))
}

fn tables(results: &Results) -> String {
    let mut packages: BTreeMap<&str, Row> = BTreeMap::new();
    for (file, row) in &results.rows {
        packages.entry(Results::package(file)).or_default().add(file, row);
    }
    let mut out = String::from("## By crate\n\n");
    head(&mut out, "crate");
    for plan in PLANS {
        line(&mut out, plan.package, packages.get(plan.package).unwrap_or(&Row::default()));
    }
    out.push_str("\n## Files with survivors, or not run in full\n\n");
    head(&mut out, "file");
    for (file, row) in &results.rows {
        if row.not_run > 0 || !row.missed.is_empty() {
            line(&mut out, &format!("`{}`", file.trim_start_matches("crates/")), row);
        }
    }
    out.push_str("\n## Last runs\n\n");
    for (package, facts) in &results.runs {
        writeln!(out, "- `{package}`: {facts}").expect("a string takes all");
    }
    out
}

fn head(out: &mut String, first: &str) {
    writeln!(
        out,
        "| {first} | mutants | argued away | do not compile | caught | of these by time | survive | not run | share caught |"
    )
    .expect("a string takes all");
    out.push_str("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n");
}

fn line(out: &mut String, name: &str, row: &Row) {
    let share = row
        .per_mille_caught()
        .map_or_else(|| "–".to_owned(), |share| format!("{}.{} %", share / 10, share % 10));
    writeln!(
        out,
        "| {name} | {} | {} | {} | {} | {} | {} | {} | {share} |",
        row.mutants(),
        row.argued.len(),
        row.unviable,
        row.caught + row.timed_out,
        row.timed_out,
        row.missed.len(),
        row.not_run
    )
    .expect("a string takes all");
}
