//! Apply, undo and verify.

use std::fmt;
use std::path::Path;

use rustix::io::Errno;
use serde::Serialize;

use crate::proposal::{Proposal, Target};
use crate::record::{Record, RecordError, Saved};
use crate::root::{Root, RootError};

/// Applies proposals below a root, and gives old values back.
#[derive(Debug)]
pub struct Tuner {
    root: Root,
    record: Record,
}

/// The outcome of one proposal.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case", tag = "outcome")]
pub enum Applied {
    /// The value was written.
    Changed,
    /// It was as proposed before.
    Unchanged,
    /// It cannot be applied to a running kernel: see the proposal.
    Left,
    /// The kernel refused.
    Refused {
        /// Why, and what to do.
        reason: String,
    },
}

/// The outcome of giving one old value back.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case", tag = "outcome")]
pub enum Undone {
    /// The old value is back.
    Restored,
    /// The file is gone, with the device that it belonged to.
    Gone,
    /// The kernel refused; the record keeps the value.
    Refused {
        /// Why.
        reason: String,
    },
}

/// An applied setting beside its file.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// As applied.
    Kept,
    /// Another program or a reboot changed it.
    Changed,
    /// The file is gone.
    Gone,
}

/// The state of one applied setting.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub struct Status {
    /// The setting's name.
    pub setting: String,
    /// The part of the machine.
    pub subject: String,
    /// The path of its file.
    pub path: String,
    /// The value that was applied.
    pub applied: String,
    /// The value now.
    pub now: Option<String>,
    /// True if they agree.
    pub state: State,
}

impl Tuner {
    /// A tuner below `root` that keeps old values in `record`.
    ///
    /// # Errors
    /// The record cannot be used.
    pub fn open(root: Root, record: &Path) -> Result<Self, RecordError> {
        Ok(Self { root, record: Record::open(record)? })
    }

    /// Old values that undo would give back.
    #[must_use]
    pub fn saved(&self) -> &[Saved] {
        self.record.saved()
    }

    /// Applies one proposal. A refusal of the kernel is an outcome, not an error.
    ///
    /// # Errors
    /// The record cannot be written; nothing was changed then.
    pub fn apply(&mut self, proposal: &Proposal) -> Result<Applied, RecordError> {
        let Target::File { path, form } = &proposal.target else { return Ok(Applied::Left) };
        let before = match self.root.read(path) {
            Ok(before) => before,
            Err(error) => return Ok(refused(proposal, &error)),
        };
        let content = String::from_utf8_lossy(&before).into_owned();
        if form.value(&content) == proposal.then {
            return Ok(Applied::Unchanged);
        }
        let is_new = self.record.of(path).is_none();
        let before = self.record.of(path).map_or(before, |saved| saved.before.clone());
        self.record.save(Saved {
            setting: proposal.setting.to_owned(),
            subject: proposal.subject.clone(),
            path: path.clone(),
            form: *form,
            before,
            applied: proposal.then.clone(),
        })?;
        match self.root.write(path, format!("{}\n", proposal.then).as_bytes()) {
            Ok(()) => Ok(Applied::Changed),
            Err(error) => {
                // The kernel took nothing, so there is nothing to give back.
                if is_new {
                    self.record.forget(path)?;
                }
                Ok(refused(proposal, &error))
            }
        }
    }

    /// Gives the old value of each saved setting back, the last one first (TUNE-2). `wanted` chooses.
    ///
    /// # Errors
    /// The record cannot be written.
    pub fn undo(
        &mut self,
        wanted: impl Fn(&Saved) -> bool,
    ) -> Result<Vec<(Saved, Undone)>, RecordError> {
        let all: Vec<Saved> = self.record.saved().iter().rev().cloned().collect();
        let mut outcomes = Vec::new();
        for saved in all.into_iter().filter(wanted) {
            let outcome = self.restore(&saved);
            if !matches!(outcome, Undone::Refused { .. }) {
                self.record.forget(&saved.path)?;
            }
            outcomes.push((saved, outcome));
        }
        Ok(outcomes)
    }

    fn restore(&self, saved: &Saved) -> Undone {
        if !self.root.has(&saved.path) {
            return Undone::Gone;
        }
        // A file of the kernel shows more than it takes; any other has the bytes that it had.
        let bytes = match self.root.is_kernels(&saved.path) {
            true => {
                let value = saved.form.value(&String::from_utf8_lossy(&saved.before));
                format!("{value}\n").into_bytes()
            }
            false => saved.before.clone(),
        };
        match self.root.write(&saved.path, &bytes) {
            Ok(()) => Undone::Restored,
            Err(error) => Undone::Refused { reason: error.with_cause() },
        }
    }

    /// Compares each applied setting with its file.
    #[must_use]
    pub fn verify(&self) -> Vec<Status> {
        let status = |saved: &Saved| {
            let now = self.root.text(&saved.path).map(|text| saved.form.value(&text));
            let state = match &now {
                None => State::Gone,
                Some(now) if *now == saved.applied => State::Kept,
                Some(_) => State::Changed,
            };
            Status {
                setting: saved.setting.clone(),
                subject: saved.subject.clone(),
                path: saved.path.clone(),
                applied: saved.applied.clone(),
                now,
                state,
            }
        };
        self.record.saved().iter().map(status).collect()
    }
}

/// The refusal of the kernel in words for the operator.
fn refused(proposal: &Proposal, error: &RootError) -> Applied {
    let errno = error.error.raw_os_error().map(Errno::from_raw_os_error);
    let cause = error.with_cause();
    let is_interrupt = proposal.setting.starts_with("irq");
    let reason = match errno {
        Some(Errno::IO) if is_interrupt => {
            "the kernel manages this interrupt itself, as it does those of a drive's queues: each queue \
             already interrupts the CPUs that use it; nothing is to be done"
                .to_owned()
        }
        Some(Errno::NOSPC) if is_interrupt => {
            "these CPUs have no interrupt vector left; give the device fewer queues, or name more CPUs \
             with --cores"
                .to_owned()
        }
        Some(Errno::ACCESS | Errno::PERM) => {
            format!("{cause}; run this as root, outside a container that hides the setting")
        }
        Some(Errno::INVAL) => format!("{cause}; this kernel or device does not take the value"),
        Some(Errno::NOENT) => format!("{cause}; this kernel does not have the setting"),
        _ => cause,
    };
    Applied::Refused { reason }
}

impl fmt::Display for Applied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Changed => f.write_str("changed"),
            Self::Unchanged => f.write_str("as it was"),
            Self::Left => f.write_str("after a reboot"),
            Self::Refused { reason } => write!(f, "refused: {reason}"),
        }
    }
}

impl fmt::Display for Undone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Restored => f.write_str("restored"),
            Self::Gone => f.write_str("gone with its device"),
            Self::Refused { reason } => write!(f, "refused: {reason}"),
        }
    }
}
