//! `farflash profile --precondition`: drives are overwritten before they are measured.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use clap::Args;
use profile::{PreconditionError, Preconditioning};
use units::ByteLen;
use user_messages::Failure;
use user_messages::output;

use super::elsewhere::is_elsewhere;
use super::span;

/// A round of SNIA's specification takes a minute.
const ROUND_SECONDS: f64 = 60.0;

#[derive(Debug, Args)]
pub(super) struct Prepare {
    /// First write each drive twice, then at random until it is steady; takes --destroy-data
    #[arg(long, requires = "destroy_data")]
    precondition: bool,
    /// Agree that --precondition destroys what the drives hold
    #[arg(long, requires = "precondition")]
    destroy_data: bool,
    /// Length of a round of random writes, of which five must be alike
    #[arg(long, value_name = "SECONDS", requires = "precondition", default_value_t = ROUND_SECONDS)]
    round: f64,
}

impl Prepare {
    /// Overwrites the drives if that was asked for; returns notes for the report.
    pub(super) fn run(
        &self,
        drives: &[PathBuf],
        size: Option<ByteLen>,
        seed: u64,
        stop: &Arc<AtomicBool>,
    ) -> Result<Vec<String>, Failure> {
        // Each of both flags needs the other one.
        if !(self.precondition && self.destroy_data) {
            return Ok(Vec::new());
        }
        let is_elsewhere = |path: &&PathBuf| path.to_str().is_some_and(is_elsewhere);
        if let Some(path) = drives.iter().find(is_elsewhere) {
            let what = format!("--precondition: {} is no drive of this host", path.display());
            return Err(Failure::usage(what, "name block devices or files alone"));
        }
        let plan = Preconditioning {
            drives: drives.to_vec(),
            size: size.map(|size| size.0),
            round: span("--round", 0.01, self.round)?,
            seed,
            stop: stop.clone(),
        };
        let done =
            plan.run(output::progress("preconditioning")).map_err(|error| refused(&error))?;
        Ok(done.iter().map(profile::Preconditioned::note).collect())
    }
}

fn refused(error: &PreconditionError) -> Failure {
    let what = error.to_string();
    match error {
        PreconditionError::InUse { .. } => {
            Failure::usage(what, "unmount it, or stop the server that uses it")
        }
        PreconditionError::Open { .. } | PreconditionError::NoDrive { .. } => {
            Failure::usage(what, "name drives that this user may write")
        }
        PreconditionError::Write { .. } => {
            Failure::runtime(what, "look at the kernel's log (dmesg)")
        }
        PreconditionError::Thread(_) => {
            Failure::runtime(what, "raise the limit on threads (ulimit -u)")
        }
    }
}
