//! The simulator, for mutants that survive the tests of their crate: the same code under faults and power cuts.

use std::io;
use std::path::Path;
use std::time::Duration;

use super::deadline::Deadline;
use super::decided::Verdict;
use super::plan::Plan;
use super::tree::{Program, Tree};
use super::trial::{Limits, Outcome, Trial};

/// Limits of the seeds of one workload, which take a few seconds to a minute without a mutant.
const LIMITS: Limits = Limits { wall: Duration::from_secs(600), processor_seconds: 180 };

/// The simulator with the mutants of a crate in it.
#[derive(Debug)]
pub(super) struct Simulator<'a> {
    program: Program,
    plan: &'a Plan,
}

impl<'a> Simulator<'a> {
    /// Builds it, if `plan` has workloads, from a copy in which the crate is built already.
    ///
    /// # Errors
    /// Seeds fail without a mutant.
    pub(super) fn build(
        tree: &Tree,
        plan: &'a Plan,
        scratch: &Path,
        deadline: Deadline,
    ) -> io::Result<Option<Self>> {
        if plan.workloads.is_empty() {
            return Ok(None);
        }
        let built = Self { program: tree.build_simulator(deadline)?, plan };
        match built.decide(0, scratch, deadline)? {
            Some(Verdict::Missed) | None => Ok(Some(built)),
            Some(verdict) => {
                Err(io::Error::other(format!("seeds fail without a mutant: {verdict:?}")))
            }
        }
    }

    /// Runs seeds until one fails. Returns nothing if the time is over before that.
    pub(super) fn decide(
        &self,
        mutant: u32,
        scratch: &Path,
        deadline: Deadline,
    ) -> io::Result<Option<Verdict>> {
        for workload in self.plan.workloads {
            if deadline.has_passed() {
                return Ok(None);
            }
            let seeds = format!("0..{}", self.plan.seeds);
            let arguments = ["--workload", workload, "--seeds", &seeds, "--threads", "1"];
            let trial = Trial {
                program: &self.program,
                arguments: &arguments.map(str::to_owned),
                mutant,
                limits: Limits { wall: deadline.within(LIMITS.wall), ..LIMITS },
                scratch,
                reached: None,
            };
            match trial.run(self.plan.environment)? {
                Outcome::Passed => {}
                Outcome::Failed(_) => return Ok(Some(Verdict::Caught)),
                Outcome::TimedOut if deadline.has_passed() => return Ok(None),
                Outcome::TimedOut => return Ok(Some(Verdict::TimedOut)),
            }
        }
        Ok(Some(Verdict::Missed))
    }
}
