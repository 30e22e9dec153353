//! Cost of counting and timing requests, by `bench-counting`: the same core, built so that it can leave that out.

use std::process::Command;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::process::run;

const PROGRAM: &str = "bench-counting";

/// Random reads a second at depth 32, in each round, by a core that counts and one that does not.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(super) struct Counting {
    with: Vec<f64>,
    without: Vec<f64>,
}

impl Counting {
    /// Returns the share of the rate that is left by a core that counts.
    pub(super) fn ratios(&self) -> Vec<f64> {
        self.with.iter().zip(&self.without).map(|(with, without)| with / without).collect()
    }
}

/// Nothing if the program was not built.
pub(super) fn measure(rounds: usize) -> Result<Counting> {
    let program = std::env::current_exe()?.with_file_name(PROGRAM);
    if !program.is_file() {
        eprintln!("{} is not built: the cost of counting is left out", program.display());
        return Ok(Counting::default());
    }
    eprintln!("counting");
    let output = run(Command::new(&program).args(["--rounds", &rounds.to_string()]))?;
    serde_json::from_str(&output).with_context(|| format!("not understood: {output}"))
}
