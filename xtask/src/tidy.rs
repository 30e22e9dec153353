//! Holds the source to the rules that no compiler checks.
//!
//! - [`rules`]: the tables. A change of a rule is a change there and nowhere else.
//! - [`edges`]: which crate may use which, ours and others'.
//! - [`sizes`]: lengths of files and functions.
//! - [`words`]: words and calls that have no place, or only some places.
//! - [`errors`]: errors that would be told twice.
//! - [`debug_form`]: messages in the form that Rust prints for debugging.
//! - [`mutants`]: the page of mutants says what the runs found, and no mutant is excluded without a reason.
//! - [`language`]: plain words, and the width of Markdown.
//! - [`labels`]: labels of invariants are defined once, and what cites one can be found.
//! - [`links`]: links between the Markdown files lead somewhere.
//! - [`source`]: the files, their tokens, and which of their lines are tests.
//!
//! A finding is silenced by a comment on its line or the one above, with a reason:
//! `tidy: allow(function-length) one flat match over the opcodes`. For `file-length` the comment may
//! stand anywhere in the file.

mod debug_form;
mod edges;
mod errors;
mod labels;
mod language;
mod links;
mod rules;
mod sizes;
mod source;
mod words;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// One broken rule.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
struct Finding {
    file: PathBuf,
    line: usize,
    rule: &'static str,
    message: String,
    /// True if it is shown but does not fail the run.
    warning: bool,
}

impl fmt::Display for Finding {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.warning { "warning" } else { "error" };
        let Self { file, line, rule, message, .. } = self;
        write!(formatter, "{}:{line}: {kind}: {rule}: {message}", file.display())
    }
}

/// Checks the repository at `root` and prints what it finds.
pub(crate) fn run(root: &Path) -> ExitCode {
    let findings = match check(root) {
        Ok(findings) => findings,
        Err(error) => {
            eprintln!("tidy: {error}");
            return ExitCode::FAILURE;
        }
    };
    for finding in &findings {
        println!("{finding}");
    }
    let errors = findings.iter().filter(|finding| !finding.warning).count();
    println!("tidy: {errors} errors, {} warnings", findings.len() - errors);
    if errors == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn check(root: &Path) -> io::Result<Vec<Finding>> {
    let mut findings = edges::check(root)?;
    let files = source::load_all(root)?;
    let labels = labels::Labels::of(&files);
    for file in &files {
        let mut in_file = sizes::check(file);
        in_file.extend(words::check(file));
        in_file.extend(errors::check(file));
        in_file.extend(debug_form::check(file));
        in_file.extend(labels.check(file));
        in_file.extend(language::check(file));
        in_file.retain(|finding| !file.allows(finding.rule, finding.line));
        findings.extend(in_file);
    }
    findings.extend(links::check(root)?);
    findings.extend(labels.check_documents(root)?);
    findings.extend(language::check_documents(root)?);
    findings.extend(mutants(root)?);
    findings.sort();
    Ok(findings)
}

/// Holds the page of mutants to its results, and each exclusion to a reason.
fn mutants(root: &Path) -> io::Result<Vec<Finding>> {
    let findings = crate::mutants::check(root)?.into_iter();
    Ok(findings
        .map(|(file, line, message)| {
            let (file, message) = (file.into(), message.to_owned());
            Finding { file, line, rule: "mutants", message, warning: false }
        })
        .collect())
}
