//! Who asked for which change, when, and what came of it: a file that is only appended to.
//!
//! - L1: a change is answered when its line is on the device. While lines cannot be written, changes are
//!   refused; reading goes on.
//! - L2: lines hold what was sent, never what was answered: no token of a volume gets there.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;
use serde_json::Value;

use crate::problem::{Problem, ProblemCode};

/// Longest request that is kept as it was sent.
const REQUEST_BYTES_MAX: usize = 4096;

/// One line.
#[derive(Debug, Serialize)]
pub(crate) struct Line<'a> {
    /// Milliseconds since 1970, UTC.
    pub(crate) time_unix_ms: u64,
    pub(crate) caller: &'a str,
    pub(crate) role: &'a str,
    pub(crate) peer: Option<SocketAddr>,
    pub(crate) method: &'a str,
    pub(crate) path: &'a str,
    pub(crate) request: Value,
    /// The HTTP status that was answered.
    pub(crate) status: u16,
}

/// The file. Clones write to the same.
#[derive(Clone)]
pub struct Audit {
    file: Arc<Mutex<File>>,
    failed: Arc<AtomicBool>,
}

impl Audit {
    /// Appends to the file at `path`, which is made if it is not there, for its owner to read.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn open(path: &Path) -> std::io::Result<Self> {
        use std::os::unix::fs::OpenOptionsExt;
        let file = OpenOptions::new().append(true).create(true).mode(0o600).open(path)?;
        Ok(Self { file: Arc::new(Mutex::new(file)), failed: Arc::default() })
    }

    /// L1: refuses a change while nothing can be written.
    pub(crate) fn check(&self) -> Result<(), Problem> {
        if self.failed.load(Ordering::Relaxed) && self.append(b"").is_err() {
            return Err(Problem::new(
                ProblemCode::Unavailable,
                "changes cannot be recorded in the audit log, so none are made",
                "give the audit log space, or another place with --audit-log",
            ));
        }
        Ok(())
    }

    /// Writes a line, durably. Waits for the device.
    pub(crate) fn write(&self, line: &Line<'_>) {
        let mut bytes = serde_json::to_vec(line).unwrap_or_default();
        bytes.push(b'\n');
        if let Err(error) = self.append(&bytes) {
            tracing::error!(%error, ?line, "the audit log cannot be written; changes are refused");
        }
    }

    fn append(&self, bytes: &[u8]) -> std::io::Result<()> {
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let written = file.write_all(bytes).and_then(|()| file.sync_data());
        self.failed.store(written.is_err(), Ordering::Relaxed);
        written
    }
}

/// The body of a request as a line has it.
pub(crate) fn shown(body: &[u8]) -> Value {
    match serde_json::from_slice(body) {
        Ok(value) if body.len() <= REQUEST_BYTES_MAX => value,
        _ if body.is_empty() => Value::Null,
        _ => Value::String(format!("{} bytes", body.len())),
    }
}

pub(crate) fn now_unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
