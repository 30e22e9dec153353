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

/// What the program prints: rates of each round.
#[derive(Deserialize)]
struct Rates {
    with: Vec<f64>,
    without: Vec<f64>,
}

#[derive(Deserialize)]
struct Output {
    file: Rates,
    mem: Rates,
}

/// The share of the rate that checksums cost, in each round; nothing if the program was not built.
pub(super) fn measure(out: &Path, length: Length) -> Result<Verification> {
    let program = std::env::current_exe()?.with_file_name(PROGRAM);
    if !program.is_file() {
        eprintln!("{} is not built: the cost of checksums is left out", program.display());
        return Ok(Vec::new());
    }
    eprintln!("verification");
    let mut command = Command::new(program);
    command.args([
        "--rounds",
        &length.rounds.to_string(),
        "--seconds",
        &length.seconds.to_string(),
    ]);
    command.arg("--file").arg(out.join("engine-verification.img"));
    let output = run(&mut command)?;
    let Output { file, mem } =
        serde_json::from_str(&output).with_context(|| format!("not understood: {output}"))?;
    let lost = |rates: Rates| {
        let pairs = rates.with.iter().zip(&rates.without);
        pairs.map(|(with, without)| 1.0 - with / without).collect::<Vec<f64>>()
    };
    Ok(vec![("file", lost(file)), ("mem", lost(mem))])
}
