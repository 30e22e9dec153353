//! Mutation testing: `cargo xtask mutants run` and `report`; `docs/mutants.md` says how to use them.
//!
//! The mutants are those of cargo-mutants. It builds a crate once for each, which takes seconds; here all of them are
//! in one build, and a number in the environment selects one ([`splice`]), so that most take milliseconds.
//!
//! - [`plan`]: the crates, and the tests that are to catch their mutants.
//! - [`list`]: the mutants, as cargo-mutants lists them. [`code`]: a file's tokens, by which they are told apart.
//! - [`splice`], [`tree`]: a copy of the repository, in which a crate is built with its mutants.
//! - [`reach`]: which tests reach which functions.
//! - [`trial`]: a run of tests with one mutant.
//! - [`slow`]: mutants that do not fit into one build, through cargo-mutants itself.
//! - [`deadline`]: the end of a run that has one.
//! - [`decided`]: what is known of single mutants on this machine.
//! - [`results`], [`page`]: what is committed. [`exclusions`]: mutants that are argued away.

mod code;
mod deadline;
mod decided;
mod exclusions;
mod list;
mod options;
mod page;
mod plan;
mod pool;
mod reach;
mod results;
mod run;
mod simulated;
mod slow;
mod splice;
mod tree;
mod trial;

use std::io;
use std::path::Path;
use std::process::ExitCode;

use options::Options;

/// Usage of the command.
pub(crate) const USAGE: &str = options::USAGE;

/// Runs `cargo xtask mutants` with `arguments`.
pub(crate) fn run(root: &Path, arguments: &[&str]) -> ExitCode {
    let outcome = match arguments {
        ["run", options @ ..] => {
            Options::parse(options).and_then(|options| run::run(root, &options))
        }
        ["report"] => page::write(root).map(|()| true),
        _ => Err(io::Error::other(USAGE)),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("mutants: {error}");
            ExitCode::from(2)
        }
    }
}

/// Returns what is wrong with the committed page and exclusions: file, line, message.
pub(crate) fn check(root: &Path) -> io::Result<Vec<(&'static str, usize, &'static str)>> {
    let mut out = Vec::new();
    if !page::is_current(root)? {
        out.push((page::PATH, 1, "differs from its results: run `cargo xtask mutants report`"));
    }
    for line in exclusions::without_reason(root)? {
        out.push((exclusions::PATH, line, "a pattern without a comment above it that says why"));
    }
    Ok(out)
}
