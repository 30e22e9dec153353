//! Apply, undo and verify.

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::path::Path;

use rustix::io::Errno;
use serde::Serialize;

use crate::place;
use crate::proposal::{Form, Proposal, Target};
use crate::record::{Record, RecordError, Saved};
use crate::root::{Root, RootError};
use crate::settings::refresh;

/// Applies proposals below a root, and gives old values back.
#[derive(Debug)]
pub struct Tuner {
    root: Root,
    record: Record,
    /// The boot of the machine, if it tells.
    boot: Option<String>,
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
    /// A reboot has taken the setting back, so nothing was written.
    Rebooted,
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
    /// A tuner below `root` that keeps old values in `record`. Waits for other processes that do so.
    ///
    /// # Errors
    /// The record cannot be used.
    pub fn open(root: Root, record: &Path) -> Result<Self, RecordError> {
        let record = Record::open(record, root.limit())?;
        let boot = root.text("/proc/sys/kernel/random/boot_id");
        Ok(Self { root, record, boot })
    }

    /// Old values that undo would give back.
    #[must_use]
    pub fn saved(&self) -> &[Saved] {
        self.record.saved()
    }

    /// Applies proposals. A refusal of the kernel is an outcome, not an error.
    ///
    /// # Errors
    /// The record cannot be written. If that was before all old values were in it, nothing was changed.
    pub fn apply(&mut self, proposals: &[Proposal]) -> Result<Vec<Applied>, RecordError> {
        self.apply_with(proposals, None, || Ok(()))
    }

    /// Applies proposals that are undone unless they are confirmed until `confirm_by`, in milliseconds since
    /// the boot. `guard` starts the process that undoes them, before the first of them is written.
    ///
    /// # Errors
    /// The record cannot be written, or `guard` failed; then nothing was changed.
    pub fn apply_unconfirmed(
        &mut self,
        proposals: &[Proposal],
        confirm_by: u64,
        guard: impl FnOnce() -> io::Result<()>,
    ) -> Result<Vec<Applied>, RecordError> {
        self.apply_with(proposals, Some(confirm_by), guard)
    }

    fn apply_with(
        &mut self,
        proposals: &[Proposal],
        confirm_by: Option<u64>,
        guard: impl FnOnce() -> io::Result<()>,
    ) -> Result<Vec<Applied>, RecordError> {
        let stale = self.of_earlier_boots();
        if !stale.is_empty() {
            self.record.forget(&stale)?;
        }
        let mut outcomes: Vec<Applied> = Vec::new();
        let mut saved = Vec::new();
        for proposal in proposals {
            let outcome = self.save_for(proposal, confirm_by, &mut saved);
            outcomes.push(outcome);
        }
        if saved.is_empty() {
            return Ok(outcomes);
        }
        let is_new = |saved: &&Saved| self.record.of(&saved.path).is_none();
        let new: BTreeSet<String> =
            saved.iter().filter(is_new).map(|saved| saved.path.clone()).collect();
        let directories: Vec<_> =
            saved.iter().filter(|saved| saved.form == Form::Directory).cloned().collect();
        self.record.save(saved)?;
        if let Err(error) = guard() {
            self.record.forget(&new)?;
            return Err(RecordError::Guard { error });
        }
        for directory in &directories {
            // A failure is told by the file in it, and undo passes over a directory that is not there.
            let _ = self.root.make_directory(&directory.path);
        }
        let mut refused_paths = BTreeSet::new();
        for (proposal, outcome) in proposals.iter().zip(&mut outcomes) {
            let Target::File { path, form } = &proposal.target else { continue };
            if *outcome != Applied::Changed {
                continue;
            }
            let bytes = place::bytes(*form, &proposal.then);
            if let Err(error) = place::write(&self.root, path, *form, Some(&bytes)) {
                *outcome = refused(proposal, &error);
                refused_paths.insert(path.clone());
            }
        }
        self.forget_untouched(&refused_paths, &new)?;
        Ok(outcomes)
    }

    /// The outcome of a proposal if nothing refuses it; what it changes is added to `all`.
    fn save_for(
        &self,
        proposal: &Proposal,
        confirm_by: Option<u64>,
        all: &mut Vec<Saved>,
    ) -> Applied {
        let Target::File { path, form } = &proposal.target else { return Applied::Left };
        let before = match place::read(&self.root, path, *form) {
            Ok(before) => before,
            Err(error) => return refused(proposal, &error),
        };
        let value = before.as_ref().map(|content| form.value(&String::from_utf8_lossy(content)));
        if value.as_deref() == Some(proposal.then.as_str()) {
            return Applied::Unchanged;
        }
        let saved = |path: &str, form, before, applied: &str| Saved {
            setting: proposal.setting.to_owned(),
            subject: proposal.subject.clone(),
            path: path.to_owned(),
            form,
            before,
            applied: applied.to_owned(),
            boot: self.boot.clone(),
            confirm_by,
        };
        if matches!(form, Form::Document | Form::Link) {
            let absent = parents(path).filter(|parent| !self.root.has(parent));
            let absent = absent.filter(|parent| all.iter().all(|saved| saved.path != *parent));
            let absent: Vec<_> =
                absent.map(|parent| saved(parent, Form::Directory, None, "")).collect();
            all.extend(absent);
        }
        all.push(saved(path, *form, before, &proposal.then));
        Applied::Changed
    }

    /// Forgets those of `refused` that are `new` and have their old value: the kernel took nothing.
    fn forget_untouched(
        &mut self,
        refused: &BTreeSet<String>,
        new: &BTreeSet<String>,
    ) -> Result<(), RecordError> {
        let is_untouched = |path: &&String| {
            let Some(saved) = self.record.of(path) else { return false };
            place::read(&self.root, path, saved.form).is_ok_and(|now| now == saved.before)
        };
        let untouched: BTreeSet<String> =
            refused.intersection(new).filter(is_untouched).cloned().collect();
        if untouched.is_empty() { Ok(()) } else { self.record.forget(&untouched) }
    }

    fn of_earlier_boots(&self) -> BTreeSet<String> {
        let all = self.record.saved().iter();
        let stale = all.filter(|saved| saved.is_of_earlier_boot(self.boot.as_deref()));
        stale.map(|saved| saved.path.clone()).collect()
    }

    /// Keeps what was applied until confirmed, and returns how many values that are.
    ///
    /// # Errors
    /// The record cannot be written.
    pub fn confirm(&mut self) -> Result<usize, RecordError> {
        let boot = self.boot.clone();
        let is_open = |saved: &Saved| {
            saved.confirm_by.is_some() && !saved.is_of_earlier_boot(boot.as_deref())
        };
        let open = self.record.saved().iter().filter(|saved| is_open(saved)).count();
        if open > 0 {
            self.record.change(|saved| saved.confirm_by = None)?;
        }
        Ok(open)
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
        let wanted = all.into_iter().filter(wanted);
        let mut outcomes: Vec<_> = wanted
            .map(|saved| {
                let outcome = self.restore(&saved);
                (saved, outcome)
            })
            .collect();
        let paths: Vec<&str> = outcomes.iter().map(|(saved, _)| saved.path.as_str()).collect();
        for failed in refresh(&self.root, &paths) {
            let concerned =
                outcomes.iter_mut().filter(|(saved, _)| failed.paths.contains(&saved.path));
            concerned.for_each(|(_, outcome)| {
                *outcome = Undone::Refused { reason: failed.reason.clone() }
            });
        }
        let is_back = |(_, outcome): &&(Saved, Undone)| !matches!(outcome, Undone::Refused { .. });
        let back: BTreeSet<String> =
            outcomes.iter().filter(is_back).map(|(saved, _)| saved.path.clone()).collect();
        if !back.is_empty() {
            self.record.forget(&back)?;
        }
        Ok(outcomes)
    }

    fn restore(&self, saved: &Saved) -> Undone {
        if saved.is_of_earlier_boot(self.boot.as_deref()) {
            return Undone::Rebooted;
        }
        let refused = |error: &RootError| Undone::Refused { reason: error.with_cause() };
        let now = match place::read(&self.root, &saved.path, saved.form) {
            Ok(now) => now,
            Err(error) if error.error.kind() == io::ErrorKind::NotFound => return Undone::Gone,
            Err(error) => return refused(&error),
        };
        // A file of the kernel shows more than it takes; any other has the bytes that it had.
        let is_value = saved.form.is_of_program() || self.root.is_kernels(&saved.path);
        let value = |content: &Vec<u8>| match is_value {
            true => place::bytes(saved.form, &saved.form.value(&String::from_utf8_lossy(content))),
            false => content.clone(),
        };
        let before = saved.before.as_ref().map(value);
        if now.as_ref().map(value) == before {
            return Undone::Restored;
        }
        match place::write(&self.root, &saved.path, saved.form, before.as_deref()) {
            Ok(()) => Undone::Restored,
            // Others have files in a directory that was made here.
            Err(error) if error.error.kind() == io::ErrorKind::DirectoryNotEmpty => {
                Undone::Restored
            }
            Err(error) => refused(&error),
        }
    }

    /// Compares each applied setting with its file.
    #[must_use]
    pub fn verify(&self) -> Vec<Status> {
        let status = |saved: &Saved| {
            let now = place::read(&self.root, &saved.path, saved.form).ok().flatten();
            let now = now.map(|content| saved.form.value(&String::from_utf8_lossy(&content)));
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

/// The directories above `path`, the outermost first.
fn parents(path: &str) -> impl Iterator<Item = &str> {
    path.match_indices('/').map(|(at, _)| &path[..at]).filter(|parent| !parent.is_empty())
}

/// The refusal of the kernel in words for the operator.
fn refused(proposal: &Proposal, error: &RootError) -> Applied {
    let errno = error.error.raw_os_error().map(Errno::from_raw_os_error);
    let cause = error.with_cause();
    let is_interrupt = proposal.setting.starts_with("irq");
    let is_card = matches!(proposal.target, Target::File { form, .. } if form.is_of_card());
    let is_priority = matches!(proposal.target, Target::File { form: Form::Priority, .. });
    let reason = match errno {
        _ if is_card && error.error.kind() == io::ErrorKind::NotFound => {
            "this takes the program `ethtool`, and a card that has the setting".to_owned()
        }
        _ if is_priority && error.error.kind() == io::ErrorKind::NotFound => {
            "the thread has ended, or there is no program `chrt` (apt install util-linux)".to_owned()
        }
        // Linux 6.10 and before say EIO, later ones EPERM; a user that is not root cannot even open the file.
        Some(Errno::IO | Errno::PERM) if is_interrupt => {
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
            Self::Rebooted => f.write_str("taken back by a reboot"),
            Self::Refused { reason } => write!(f, "refused: {reason}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proposal::Risk;

    /// A managed interrupt is no matter of rights, whichever errno the kernel has for it; another setting is.
    #[test]
    fn managed_interrupts_are_explained_whatever_the_kernel_says() {
        let reason = |setting: &'static str, errno: Errno| {
            let (path, form) = ("/proc/irq/32/smp_affinity_list".to_owned(), Form::Plain);
            let proposal = Proposal {
                setting,
                subject: String::new(),
                target: Target::File { path: path.clone(), form },
                now: None,
                then: "1".into(),
                why: "",
                gain: "",
                risk: Risk::Low,
                owners: Vec::new(),
            };
            let error = io::Error::from_raw_os_error(errno.raw_os_error());
            refused(&proposal, &RootError::new(&path, error)).to_string()
        };
        for errno in [Errno::IO, Errno::PERM] {
            let reason = reason("irq-drives", errno);
            assert!(reason.contains("manages this interrupt itself"), "{reason}");
        }
        assert!(reason("irq-network", Errno::NOSPC).contains("no interrupt vector left"));
        assert!(reason("block-merges", Errno::PERM).contains("run this as root"));
    }
}
