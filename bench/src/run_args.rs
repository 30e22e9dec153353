//! Arguments of all benchmarks that publish their results.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

/// Fewer say too little about how much the results vary to be published.
const PUBLISHED_ROUNDS_MIN: usize = 5;

#[derive(Debug, clap::Args)]
pub(crate) struct RunArgs {
    /// The farflash program to measure
    #[arg(long)]
    farflash: PathBuf,
    /// Page whose goals of this benchmark are replaced; the tables go to benchmark-figures.md beside it
    #[arg(long, conflicts_with = "quick")]
    pub(crate) report: Option<PathBuf>,
    /// Directory for results, and for files that are measured
    #[arg(long, default_value = "bench-out")]
    out: PathBuf,
    /// Little of everything, to try things out
    #[arg(long)]
    pub(crate) quick: bool,
}

impl RunArgs {
    /// The program, wherever this process goes.
    pub(crate) fn farflash(&self) -> Result<PathBuf> {
        program(&self.farflash)
    }

    /// The directory for results, which is made.
    pub(crate) fn out(&self) -> Result<PathBuf> {
        directory(&self.out)
    }

    /// Returns the number of rounds: as many as are `wanted`, or else `usual`.
    ///
    /// # Errors
    /// There are too few of them for a page.
    pub(crate) fn rounds(&self, wanted: Option<usize>, usual: usize) -> Result<usize> {
        let rounds = wanted.unwrap_or(usual).max(1);
        ensure!(
            self.report.is_none() || rounds >= PUBLISHED_ROUNDS_MIN,
            "--report needs at least {PUBLISHED_ROUNDS_MIN} --rounds"
        );
        Ok(rounds)
    }
}

/// A program that is there.
pub(crate) fn program(farflash: &Path) -> Result<PathBuf> {
    farflash.canonicalize().context("there is no such farflash program")
}

/// A directory, which is made.
pub(crate) fn directory(path: &Path) -> Result<PathBuf> {
    fs::create_dir_all(path)?;
    Ok(path.canonicalize()?)
}
