//! Actions of this machine's operator past the API, by a signal or on the command line, as the audit log has
//! them.

use serde_json::Value;

use crate::audit::{Audit, Line, beginning, now_unix_ms, shown, shown_text};

/// The role of an operator that needs no token, being on the machine.
const ROLE: &str = "machine";

/// Something that is done past the API.
#[derive(Clone, Debug)]
pub struct Deed {
    /// By which signal or command.
    pub by: &'static str,
    /// The action, as a method is written.
    pub what: &'static str,
    /// To what.
    pub to: String,
    /// The change, as far as it is known before; null for none. No tokens.
    pub change: Value,
}

/// A deed that is recorded as begun.
#[must_use = "its second line says what came of it"]
pub struct Begun {
    audit: Audit,
    id: u64,
    deed: Deed,
}

impl Audit {
    /// Records that `deed` is about to be done. Waits for the device, as [`Begun::end`] does.
    ///
    /// # Errors
    /// The line cannot be written; the log says so.
    pub fn begin(&self, deed: Deed) -> std::io::Result<Begun> {
        let begun = Begun { audit: self.clone(), id: self.new_id(), deed };
        let change = shown(&serde_json::to_vec(&begun.deed.change).unwrap_or_default());
        begun.line(Some(&change), None)?;
        Ok(begun)
    }
}

impl Begun {
    /// Records what came of it: nothing but that it was done, or why not.
    ///
    /// # Errors
    /// The line cannot be written; the log says so.
    pub fn end(self, failed: Option<&str>) -> std::io::Result<()> {
        self.line(None, Some(failed.map_or("done", beginning)))
    }

    fn line(&self, request: Option<&Value>, outcome: Option<&str>) -> std::io::Result<()> {
        self.audit.record(&Line {
            id: self.id,
            time_unix_ms: now_unix_ms(),
            caller: self.deed.by,
            role: ROLE,
            peer: None,
            method: self.deed.what,
            path: &shown_text(&self.deed.to),
            request,
            left_out: None,
            status: None,
            outcome,
        })
    }
}
