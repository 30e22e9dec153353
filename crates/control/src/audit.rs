//! Who asked for which change, when, and what came of it: a file that is only appended to.
//!
//! - L1: a change has two lines: one before it is made, without which it is not, and one with what came
//!   of it. Both are on the device before the answer is sent. Reading needs none. Whoever is known leaves them,
//!   also who may not ask for the change at all.
//! - L2: lines hold what was sent, never what was answered: no token of a volume gets there.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;
use serde_json::Value;

use crate::problem::{Problem, ProblemCode};

/// One line.
#[derive(Debug, Serialize)]
pub(crate) struct Line<'a> {
    /// The same in both lines of a change.
    pub(crate) id: u64,
    /// Milliseconds since 1970, UTC.
    pub(crate) time_unix_ms: u64,
    pub(crate) caller: &'a str,
    pub(crate) role: &'a str,
    pub(crate) peer: Option<SocketAddr>,
    pub(crate) method: &'a str,
    pub(crate) path: &'a str,
    pub(crate) request: &'a Value,
    /// The HTTP status that was answered; nothing before that.
    pub(crate) status: Option<u16>,
}

/// The file. Clones write to the same.
#[derive(Clone)]
pub struct Audit {
    file: Arc<Mutex<File>>,
    next_id: Arc<AtomicU64>,
}

impl Audit {
    /// Appends to the file at `path`, which is made if it is not there, for its owner to read.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn open(path: &Path) -> std::io::Result<Self> {
        use std::os::unix::fs::OpenOptionsExt;
        let file = OpenOptions::new().append(true).create(true).mode(0o600).open(path)?;
        Ok(Self { file: Arc::new(Mutex::new(file)), next_id: Arc::new(now_unix_us().into()) })
    }

    /// A number that no other change has, nor had under an earlier server.
    pub(crate) fn new_id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    /// Writes a line, durably. Waits for the device.
    pub(crate) fn write(&self, line: &Line<'_>) -> Result<(), Problem> {
        let mut bytes = serde_json::to_vec(line).unwrap_or_default();
        bytes.push(b'\n');
        self.append(&bytes).map_err(|error| {
            tracing::error!(%error, ?line, "the audit log cannot be written");
            let detail = match line.status {
                None => "the change cannot be recorded in the audit log, so it is not made",
                Some(_) => "the change was answered, but that cannot be recorded in the audit log",
            };
            let hint = "give the audit log space, or another place with --audit-log; look at what \
                        there is before you ask again";
            Problem::new(ProblemCode::Unavailable, detail, hint)
        })
    }

    /// Adds a whole line or nothing.
    fn append(&self, bytes: &[u8]) -> std::io::Result<()> {
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let len_before = file.metadata()?.len();
        let written = file.write_all(bytes).and_then(|()| file.sync_data());
        if written.is_err() {
            // Half a line would spoil the next one. If this fails, too, so will that.
            let _ = file.set_len(len_before);
        }
        written
    }
}

/// The body of a request as a line has it.
pub(crate) fn shown(body: &[u8]) -> Value {
    match serde_json::from_slice(body) {
        Ok(value) => value,
        _ if body.is_empty() => Value::Null,
        _ => Value::String(format!("{} bytes", body.len())),
    }
}

pub(crate) fn now_unix_ms() -> u64 {
    now_unix_us() / 1000
}

fn now_unix_us() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}
