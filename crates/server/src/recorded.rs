//! Entries of the audit log about actions by signal or on the command line.

use control::{Audit, Deed};
use user_messages::Failure;

/// Does something that is recorded, if anything is: a line before, without which it is not done, and one with what came of
/// it. Where the second cannot be written it is done all the same, and the log says so.
pub fn recorded<T>(
    audit: Option<&Audit>,
    deed: Deed,
    act: impl FnOnce() -> Result<T, Failure>,
) -> Result<T, Failure> {
    let begun = audit.map(|audit| audit.begin(deed)).transpose().map_err(|error| {
        let what = format!("it cannot be recorded in the audit log, so it is not done: {error}");
        Failure::runtime(what, "give the audit log space, or another place with --audit-log")
    })?;
    let outcome = act();
    if let Some(begun) = begun {
        let failed = outcome.as_ref().err().map(Failure::in_one_line);
        let _ = begun.end(failed.as_deref());
    }
    outcome
}

/// The audit log at `path`.
pub fn open(path: &std::path::Path) -> Result<Audit, Failure> {
    Audit::open(path).map_err(|error| {
        let what = format!("the audit log {} cannot be opened: {error}", path.display());
        Failure::runtime(what, "name a file that can be appended to with --audit-log")
    })
}
