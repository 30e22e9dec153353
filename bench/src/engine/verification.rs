//! Reads with checksums beside reads without, by `bench-verification`: the same engine, built so that it
//! can leave the comparison out.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use serde::Deserialize;

use super::goals::Verification;
use super::suite::Length;
use crate::process::run;

const PROGRAM: &str = "bench-verification";
/// Rounds of one process: where its memory lies makes as much of a difference as what is asked, and stays for its life.
const ROUNDS_OF_A_PROCESS: usize = 2;

/// Output of the program: rates of each round.
#[derive(Deserialize)]
struct Rates {
    with: Vec<f64>,
    without: Vec<f64>,
}

#[derive(Deserialize)]
struct Output {
    file: Rates,
    mem: Rates,
    served: Rates,
}

/// The share of the rate that checksums cost, in each round; nothing if the program was not built.
pub(super) fn measure(out: &Path, length: Length) -> Result<Verification> {
    let program = std::env::current_exe()?.with_file_name(PROGRAM);
    if !program.is_file() {
        eprintln!("{} is not built: the cost of checksums is left out", program.display());
        return Ok(Vec::new());
    }
    eprintln!("verification");
    let mut shares = [("file", Vec::new()), ("mem", Vec::new()), ("mem, TCP", Vec::new())];
    for first in (0..length.rounds).step_by(ROUNDS_OF_A_PROCESS) {
        let rounds = ROUNDS_OF_A_PROCESS.min(length.rounds - first);
        let mut command = Command::new(&program);
        command.args(["--rounds", &rounds.to_string()]);
        command.args(["--seconds", &length.seconds.to_string()]);
        command.arg("--file").arg(out.join("engine-verification.img"));
        let output = run(&mut command)?;
        let Output { file, mem, served } =
            serde_json::from_str(&output).with_context(|| format!("not understood: {output}"))?;
        for ((_, shares), rates) in shares.iter_mut().zip([file, mem, served]) {
            let pairs = rates.with.iter().zip(&rates.without);
            shares.extend(pairs.map(|(with, without)| 1.0 - with / without));
        }
    }
    Ok(shares.into())
}
