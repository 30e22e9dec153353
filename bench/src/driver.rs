//! `farflash bench`, driven.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

use crate::case::{Sample, Shape};
use crate::cpus;
use crate::process::run;

/// The load generator, and how long each measurement takes.
pub(crate) struct Driver {
    pub(crate) farflash: PathBuf,
    pub(crate) seconds: f64,
    /// Token that opens the volumes, unless they are open to every host.
    pub(crate) token: Option<String>,
}

impl Driver {
    /// Writes the first `bytes` of a target once, so that reads find data.
    pub(crate) fn fill(&self, target: &str, bytes: &str) -> Result<()> {
        run(self
            .program()
            .args(["bench", "--target", target, "--rw", "write", "--bs", "128KiB", "--qd", "8"])
            .args(["--bytes", bytes, "--overwrite", "--quiet", "--json"]))?;
        Ok(())
    }

    fn program(&self) -> Command {
        let mut command = Command::new(&self.farflash);
        command.envs(self.token.as_ref().map(|token| ("FARFLASH_TOKEN", token)));
        command
    }

    pub(crate) fn command(&self, target: &str, shape: &Shape) -> Command {
        self.command_on(target, shape, cpu_for(target))
    }

    fn command_on(&self, target: &str, shape: &Shape, cpu: usize) -> Command {
        let mut command = self.program();
        command.args(["bench", "--target", target, "--json", "--quiet", "--overwrite"]);
        command.args(["--rw", if shape.write { "randwrite" } else { "randread" }]);
        command.args(["--bs", &shape.block_bytes.to_string(), "--qd", &shape.depth.to_string()]);
        command.args(["--connections", &shape.connections.to_string()]);
        command.args(["--range", &shape.range_bytes.to_string()]);
        command.args(["--seconds", &self.seconds.to_string()]);
        command.args(["--cpu", &cpu.to_string()]);
        command
    }

    /// Drives a target once.
    pub(crate) fn sample(&self, target: &str, shape: &Shape) -> Result<Sample> {
        self.sample_on(target, shape, cpu_for(target))
    }

    /// Drives a target once from CPU `cpu`.
    pub(crate) fn sample_on(&self, target: &str, shape: &Shape, cpu: usize) -> Result<Sample> {
        let output = run(&mut self.command_on(target, shape, cpu))?;
        let json: serde_json::Value = serde_json::from_str(&output)?;
        let lane = &json[if shape.write { "write" } else { "read" }];
        let number = |value: &serde_json::Value| value.as_f64().context("a number is missing");
        // By Little's law, as for the null server, with the depth that the target allowed.
        let outstanding = number(&json["qd"])? * f64::from(shape.connections);
        Ok(Sample {
            iops: number(&lane["iops"])?,
            mean_us: outstanding / number(&lane["iops"])? * 1e6,
            p99_us: Some(number(&lane["latency"]["p99_ns"])? / 1e3),
            cpu_us_per_request: None,
            system_calls_per_request: None,
        })
    }
}

/// The CPU for the load on a target. A local device takes the server's place: where its interrupts go makes a difference between
/// the CPUs.
fn cpu_for(target: &str) -> usize {
    if target.starts_with("tcp:") { cpus::client() } else { cpus::server() }
}
