//! `xtask/mutants.txt`: what the last runs found, by file. It is committed, and `docs/mutants.md` is made of it.

use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::fs;
use std::io;
use std::path::Path;

use super::decided::{Content, Verdict};
use super::list::Mutant;

/// Path of the results, relative to the repository.
pub(super) const PATH: &str = "xtask/mutants.txt";

const HEAD: &str = "# Written by `cargo xtask mutants`. A line for each file; below it the mutants that survived, or are argued away, each behind\n# the number of tokens that stand before it in its file.\n";

/// The mutants of one file.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(super) struct Row {
    pub(super) source: u64,
    pub(super) tests: u64,
    pub(super) unviable: usize,
    pub(super) caught: usize,
    pub(super) timed_out: usize,
    pub(super) not_run: usize,
    /// The places of the mutants in the file.
    pub(super) missed: Vec<String>,
    pub(super) argued: Vec<String>,
}

impl Row {
    /// Counts what is known of the mutants of a file; `not_run` are those of which nothing is.
    pub(super) fn count(verdicts: &[(&Mutant, Option<Verdict>)], content: Content) -> Self {
        let mut row = Self { source: content.source, tests: content.tests, ..Self::default() };
        for (mutant, verdict) in verdicts {
            let name = || mutant.place.clone();
            match verdict {
                _ if mutant.argued => row.argued.push(name()),
                None => row.not_run += 1,
                Some(Verdict::Unviable) => row.unviable += 1,
                Some(Verdict::Caught) => row.caught += 1,
                Some(Verdict::TimedOut) => row.timed_out += 1,
                Some(Verdict::Missed) => row.missed.push(name()),
            }
        }
        row
    }

    /// Returns how many mutants there are.
    pub(super) fn mutants(&self) -> usize {
        let run = self.unviable + self.caught + self.timed_out + self.missed.len();
        run + self.argued.len() + self.not_run
    }

    /// Takes over what an earlier run of the same source counted apart: the verdicts that were read from the results
    /// tell only what was missed.
    pub(super) fn keep_apart(&mut self, before: &Self) {
        let apart = before.unviable + before.timed_out;
        if self.source == before.source
            && self.unviable + self.timed_out == 0
            && self.caught >= apart
        {
            self.caught -= apart;
            self.unviable = before.unviable;
            self.timed_out = before.timed_out;
        }
    }

    /// Adds the numbers of another file, and the names of its survivors.
    pub(super) fn add(&mut self, file: &str, row: &Self) {
        self.unviable += row.unviable;
        self.caught += row.caught;
        self.timed_out += row.timed_out;
        self.not_run += row.not_run;
        self.missed.extend(row.missed.iter().map(|name| format!("{file}:{name}")));
        self.argued.extend(row.argued.iter().map(|name| format!("{file}:{name}")));
    }

    /// Returns how many of a thousand that compile, were run and are not argued away are caught.
    pub(super) fn per_mille_caught(&self) -> Option<usize> {
        let caught = self.caught + self.timed_out;
        (1000 * caught).checked_div(caught + self.missed.len())
    }

    fn set(&mut self, name: &str, value: &str) -> Option<()> {
        match name {
            "source" => self.source = u64::from_str_radix(value, 16).ok()?,
            "tests" => self.tests = u64::from_str_radix(value, 16).ok()?,
            "unviable" => self.unviable = value.parse().ok()?,
            "caught" => self.caught = value.parse().ok()?,
            "timeout" => self.timed_out = value.parse().ok()?,
            "unrun" => self.not_run = value.parse().ok()?,
            _ => {}
        }
        Some(())
    }
}

impl fmt::Display for Row {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "{} mutants, {} argued away, {} do not compile, {} caught, {} by a limit of time, {} survive, {} not run",
            self.mutants(),
            self.argued.len(),
            self.unviable,
            self.caught + self.timed_out,
            self.timed_out,
            self.missed.len(),
            self.not_run
        )
    }
}

/// Everything in the file of results.
#[derive(Debug, Default, Eq, PartialEq)]
pub(super) struct Results {
    /// By the file's path.
    pub(super) rows: BTreeMap<String, Row>,
    /// Facts of each crate's last run, such as the number of its tests and seconds per mutant.
    pub(super) runs: BTreeMap<String, String>,
}

impl Results {
    pub(super) fn load(root: &Path) -> io::Result<Self> {
        match fs::read_to_string(root.join(PATH)) {
            Ok(text) => Self::parse(&text),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(error),
        }
    }

    pub(super) fn save(&self, root: &Path) -> io::Result<()> {
        fs::write(root.join(PATH), self.print())
    }

    /// Returns the crate of a file.
    pub(super) fn package(file: &str) -> &str {
        file.split('/').nth(1).unwrap_or(file)
    }

    fn parse(text: &str) -> io::Result<Self> {
        let mut results = Self::default();
        let mut last: Option<&mut Row> = None;
        for (index, line) in text.lines().enumerate() {
            let wrong =
                || io::Error::other(format!("{PATH}:{}: not understood: {line}", index + 1));
            if line.starts_with('#') {
                continue;
            }
            if let Some(name) = line.strip_prefix("  missed ") {
                last.as_mut().ok_or_else(wrong)?.missed.push(name.to_owned());
            } else if let Some(name) = line.strip_prefix("  argued ") {
                last.as_mut().ok_or_else(wrong)?.argued.push(name.to_owned());
            } else if let Some(run) = line.strip_prefix("run ") {
                let (package, facts) = run.split_once(' ').ok_or_else(wrong)?;
                results.runs.insert(package.to_owned(), facts.to_owned());
            } else {
                let mut words = line.split(' ');
                let file = words.next().ok_or_else(wrong)?;
                let row = results.rows.entry(file.to_owned()).or_default();
                for word in words {
                    let (name, value) = word.split_once('=').ok_or_else(wrong)?;
                    row.set(name, value).ok_or_else(wrong)?;
                }
                last = Some(row);
            }
        }
        Ok(results)
    }

    fn print(&self) -> String {
        let mut out = String::from(HEAD);
        for (package, facts) in &self.runs {
            writeln!(out, "run {package} {facts}").expect("a string takes all");
        }
        for (file, row) in &self.rows {
            writeln!(
                out,
                "{file} source={:016x} tests={:016x} unviable={} caught={} timeout={} unrun={}",
                row.source, row.tests, row.unviable, row.caught, row.timed_out, row.not_run
            )
            .expect("a string takes all");
            for name in &row.missed {
                writeln!(out, "  missed {name}").expect("a string takes all");
            }
            for name in &row.argued {
                writeln!(out, "  argued {name}").expect("a string takes all");
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_survive_their_file() {
        let row = Row {
            source: 0xA,
            tests: u64::MAX,
            unviable: 1,
            caught: 2,
            timed_out: 3,
            not_run: 4,
            missed: vec!["34 replace + with - in sum".to_owned()],
            argued: vec!["56 delete ! in fmt".to_owned()],
        };
        assert_eq!((row.mutants(), row.per_mille_caught()), (12, Some(833)));
        let results = Results {
            rows: BTreeMap::from([("crates/a/src/b.rs".to_owned(), row)]),
            runs: BTreeMap::from([("a".to_owned(), "mutants=12 each=0.10s".to_owned())]),
        };
        assert_eq!(Results::parse(&results.print()).expect("just written"), results);
    }
}
