//! The mutants, as `cargo mutants --list` gives them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use super::code::Code;
use super::exclusions;

/// A place in a source file: line and column, both from 1. Columns count characters.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) struct Position {
    pub(super) line: usize,
    pub(super) column: usize,
}

/// One change that cargo-mutants would make: it puts `replacement` in the place of the text from `start` to `end`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Mutant {
    /// File, line, column and the change, as cargo-mutants prints it; unique.
    pub(super) name: String,
    /// The number of tokens before it in its file, and the change: the same after a change of comments or layout.
    pub(super) place: String,
    /// Relative to the repository.
    pub(super) file: String,
    pub(super) start: Position,
    /// The first character behind the text that is replaced.
    pub(super) end: Position,
    pub(super) replacement: String,
    /// Excluded by `.cargo/mutants.toml`, which says why, or part of a planted bug.
    pub(super) argued: bool,
}

/// Lists the mutants of `package`; with `diff`, a file in the format of `git diff`, only those in changed lines.
pub(super) fn list(root: &Path, package: &str, diff: Option<&Path>) -> io::Result<Vec<Mutant>> {
    let mut all = call(root, package, diff, &["--no-config"])?;
    let counted: BTreeSet<String> =
        call(root, package, diff, &[])?.into_iter().map(|mutant| mutant.name).collect();
    let mut names = BTreeSet::new();
    all.retain(|mutant| names.insert(mutant.name.clone()));
    let mut files = BTreeMap::new();
    for mutant in &mut all {
        if !files.contains_key(&mutant.file) {
            let text = fs::read_to_string(root.join(&mutant.file))?;
            let code = Code::parse(&text)
                .map_err(|error| io::Error::other(format!("{}: {error}", mutant.file)))?;
            files.insert(mutant.file.clone(), (exclusions::planted(&text), code));
        }
        let (planted, code) = &files[&mutant.file];
        mutant.place = format!("{} {}", code.before(mutant.start), change(mutant));
        let mut ranges = planted.iter();
        mutant.argued = !counted.contains(&mutant.name)
            || ranges.any(|lines| lines.contains(&mutant.start.line));
    }
    Ok(all)
}

/// Returns the change of a mutant: its name without file, line and column.
fn change(mutant: &Mutant) -> &str {
    mutant.name.split_once(": ").map_or(&mutant.name, |(_, change)| change)
}

fn call(
    root: &Path,
    package: &str,
    diff: Option<&Path>,
    options: &[&str],
) -> io::Result<Vec<Mutant>> {
    let mut command = Command::new("cargo");
    command.current_dir(root).args(["mutants", "--list", "--json", "--package", package]);
    command.args(options);
    if let Some(diff) = diff {
        command.arg("--in-diff").arg(diff);
    }
    let output = command.output()?;
    if !output.status.success() {
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(io::Error::other(format!("cargo mutants --list of {package}: {message}")));
    }
    // Without a mutant in the diff there is no list at all.
    if output.stdout.trim_ascii().is_empty() {
        return Ok(Vec::new());
    }
    let list: Value = serde_json::from_slice(&output.stdout)?;
    let mutants = list.as_array().map(Vec::as_slice).unwrap_or_default();
    mutants.iter().map(|mutant| parse(mutant).ok_or_else(|| unknown_format(mutant))).collect()
}

fn unknown_format(mutant: &Value) -> io::Error {
    io::Error::other(format!("cargo mutants --list: a mutant in a format not known here: {mutant}"))
}

fn parse(mutant: &Value) -> Option<Mutant> {
    let text = |name: &str| mutant[name].as_str().map(str::to_owned);
    Some(Mutant {
        name: text("name")?.replace('\n', " "),
        place: String::new(),
        file: text("file")?,
        start: position(&mutant["span"]["start"])?,
        end: position(&mutant["span"]["end"])?,
        replacement: text("replacement")?,
        argued: false,
    })
}

fn position(value: &Value) -> Option<Position> {
    let number = |name: &str| usize::try_from(value[name].as_u64()?).ok();
    Some(Position { line: number("line")?, column: number("column")? })
}
