//! The audit log: the caller, the time and the outcome of each requested change, in a file that is only
//! appended to.
//!
//! - AUDIT-1: a change has two lines. The first is written before the change is made; without it the change is
//!   not made. The second has the outcome. Both are on the device before the answer is sent. Where there is
//!   no room for the second, the change is made, and may have produced a secret that is shown once: the
//!   request is answered all the same, and the answer says that it is not recorded. Reading needs no line.
//!   Every authenticated caller leaves lines, also for a change that it may not ask for; not recorded are
//!   requests whose body is too long or does not come, and those of a caller that is rate-limited because
//!   too many of its changes were refused (API-REFUSAL-1).
//! - AUDIT-2: lines hold what was sent, never what was answered: no token of a volume gets there.
//! - AUDIT-3: a line has a bound, whatever was sent: of a longer request its length and hash stand there, of a longer path
//!   or method its beginning. It is plain ASCII, all else escaped: nothing that was sent ends a line, or moves the cursor of a
//!   terminal.
//! - AUDIT-4: what is done past the API, by signal or command line, has two such lines, too: see `deed.rs`.
//! - AUDIT-5: a file that was removed is made again, and a line that a crash or a full disk has torn is ended, before the next
//!   is written. A file that was moved away gets what comes until [`Audit::reopen`].
//! - AUDIT-6: that it takes no lines is told by the state of the server and by a metric, also before a change is refused for it.

use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::net::SocketAddr;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;
use serde::Serialize;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use strangers::Repeats;

use crate::hex::hex;
use crate::refusals::Refusals;
use crate::{ServerNotice, ServerNoticeKind};

/// A request's body up to this length, as a line has it, is recorded as it is. A volume's restrictions have no more.
const REQUEST_BYTES_MAX: usize = 2048;
/// So is a path or a method.
const TEXT_BYTES_MAX: usize = 512;

/// Room for both lines of a change (AUDIT-3), with its caller's name, for what a look reserves.
const ROOM_BYTES: u64 = 16 << 10;
/// The time for a look, after which its file system counts as hung.
const LOOK_TIMEOUT: Duration = Duration::from_secs(1);

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
    /// The request as it was sent; in the first line only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) request: Option<&'a Value>,
    /// Changes of this caller that were refused without a line since his last one, if there were any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) left_out: Option<u64>,
    /// The HTTP status that was answered; nothing before that.
    pub(crate) status: Option<u16>,
    /// The outcome of a deed; in its second line only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) outcome: Option<&'a str>,
}

/// The state of the file, as far as it is known.
#[derive(Default)]
struct Condition {
    wrong: Mutex<Wrong>,
    looking: AtomicBool,
}

/// Causes for which lines are not taken, each with an end of its own. A line that is written ends all of them.
#[derive(Default)]
struct Wrong {
    /// The last line was not written.
    line: Option<Unfit>,
    /// A look found no room; ends with one that finds some.
    look: Option<Unfit>,
    /// A look takes too long; ends with it.
    hangs: bool,
}

/// An error of the file.
struct Unfit {
    why: String,
    /// It had no room for a line.
    is_full: bool,
}

impl From<&io::Error> for Unfit {
    fn from(error: &io::Error) -> Self {
        let is_full = matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded);
        Self { why: error.to_string(), is_full }
    }
}

impl Condition {
    /// Notes what came of a line.
    fn wrote(&self, written: &io::Result<()>) {
        let mut wrong = self.lock();
        match written {
            Ok(()) => *wrong = Wrong::default(),
            Err(error) => wrong.line = Some(error.into()),
        }
    }

    /// Notes what came of a look.
    fn looked(&self, found: &io::Result<Room>) {
        let mut wrong = self.lock();
        wrong.hangs = false;
        match found {
            Err(error) => wrong.look = Some(error.into()),
            Ok(Room::There) => {
                wrong.look = None;
                // What was no lack of room may be as before.
                wrong.line = wrong.line.take().filter(|it| !it.is_full);
            }
            Ok(Room::Unknown) => {}
        }
    }

    /// Notes that a look takes too long.
    fn waits(&self) {
        self.lock().hangs = true;
    }

    /// The cause that is told.
    fn why(&self) -> Option<String> {
        let wrong = self.lock();
        match wrong.hangs {
            true => Some("its file system does not answer".to_owned()),
            false => wrong.line.as_ref().or(wrong.look.as_ref()).map(|it| it.why.clone()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Wrong> {
        self.wrong.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Room for more lines, as a look found it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Room {
    There,
    /// The file system reserves nothing.
    Unknown,
}

/// The file. Clones write to the same.
#[derive(Clone)]
pub struct Audit {
    path: PathBuf,
    file: Arc<Mutex<File>>,
    next_id: Arc<AtomicU64>,
    condition: Arc<Condition>,
    unwritten: Arc<Unwritten>,
    pub(crate) refusals: Arc<Refusals>,
}

/// Lines of the log about what the file did not take.
struct Unwritten {
    start: Instant,
    /// First lines of changes, by their callers: a change that is refused for want of its line can be asked for again and again.
    refused: Mutex<Repeats<String>>,
}

impl Default for Unwritten {
    fn default() -> Self {
        Self { start: Instant::now(), refused: Mutex::default() }
    }
}

impl Unwritten {
    /// Returns whether the log is to have a line about this one; tells how many it has left out of those before. Of a change that
    /// was made and has no second line, each is told.
    fn is_told(&self, line: Option<&Line<'_>>) -> bool {
        let now = u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let now = units::Instant(now);
        let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        for (caller, lines) in refused.over(now) {
            tracing::error!(
                caller,
                lines,
                "more changes were refused since the audit log cannot be written"
            );
        }
        let is_first = |line: &&Line<'_>| line.status.is_none() && line.outcome.is_none();
        line.filter(is_first).is_none_or(|line| refused.allows(line.caller.to_owned(), now))
    }
}

impl Audit {
    /// Appends to the file at `path`, which is made if it is not there, for its owner to read.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn open(path: &Path) -> io::Result<Self> {
        Ok(Self {
            path: path.to_owned(),
            file: Arc::new(Mutex::new(append_to(path)?)),
            next_id: Arc::new(now_unix_us().into()),
            condition: Arc::default(),
            unwritten: Arc::default(),
            refusals: Arc::default(),
        })
    }

    /// Appends to the file that is at the path now, or to a new one: the one before was moved away. The second line of a
    /// change may then be in another file than its first.
    ///
    /// # Errors
    /// It cannot be opened; the one before is kept.
    pub fn reopen(&self) -> io::Result<()> {
        let file = append_to(&self.path)?;
        *self.file.lock().unwrap_or_else(PoisonError::into_inner) = file;
        Ok(())
    }

    /// A number that no other change has, nor had under an earlier server.
    pub(crate) fn new_id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    /// Writes a line, durably; the log says if it cannot. Waits for the device.
    pub(crate) fn record(&self, line: &Line<'_>) -> io::Result<()> {
        let written = self.append(&ascii(line));
        if let Err(error) = &written
            && self.unwritten.is_told(Some(line))
        {
            let Line { id, caller, method, path, status, .. } = line;
            tracing::error!(
                %error, id, caller, method, path, status, "the audit log cannot be written"
            );
        }
        self.condition.wrote(&written);
        written
    }

    /// Returns what keeps lines out, if anything does, so that changes are refused (AUDIT-6).
    pub(crate) async fn trouble(&self) -> Option<ServerNotice> {
        self.unwritten.is_told(None);
        if !self.condition.looking.swap(true, Ordering::SeqCst) {
            let audit = self.clone();
            let looking = tokio::task::spawn_blocking(move || {
                audit.condition.looked(&audit.make_room());
                audit.condition.looking.store(false, Ordering::SeqCst);
            });
            // One that is cut off here goes on, and nothing else looks meanwhile.
            if tokio::time::timeout(LOOK_TIMEOUT, looking).await.is_err() {
                self.condition.waits();
            }
        }
        let why = self.condition.why()?;
        let path = self.path.display();
        let text = format!(
            "changes are refused, since the audit log {path} takes no lines ({why}): give it space, or another place with \
             --audit-log"
        );
        Some(ServerNotice { kind: ServerNoticeKind::AuditLog, text })
    }

    /// Reserves room for the next lines behind the end, as far as the file system can, and so finds out whether there is any.
    fn make_room(&self) -> io::Result<Room> {
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        if file.metadata()?.nlink() == 0 {
            *file = append_to(&self.path)?;
        }
        let found = file.metadata()?;
        if !found.is_file() {
            return Ok(Room::Unknown);
        }
        match fallocate(&*file, FallocateFlags::KEEP_SIZE, found.len(), ROOM_BYTES) {
            Ok(()) => Ok(Room::There),
            // What cannot be reserved may be there, and may not.
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INTR) => Ok(Room::Unknown),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Adds a whole line or nothing (AUDIT-5).
    fn append(&self, line: &str) -> io::Result<()> {
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        if file.metadata()?.nlink() == 0 {
            *file = append_to(&self.path)?;
        }
        let len_before = file.metadata()?.len();
        let torn_end = if ends_within_a_line(&file, len_before)? { "\n" } else { "" };
        let bytes = [torn_end, line, "\n"].concat();
        let written = file.write_all(bytes.as_bytes()).and_then(|()| file.sync_data());
        if written.is_err() {
            // Half a line would be no line. If this fails, too, the next one begins behind it.
            let _ = file.set_len(len_before);
        }
        written
    }
}

fn append_to(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(path)?;
    if file.metadata()?.len() == 0 {
        // Perhaps it has just been made: a power cut must not take it with all its lines.
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        File::open(parent.unwrap_or(Path::new(".")))?.sync_all()?;
    }
    Ok(file)
}

/// Returns true if the last of a file's `len` bytes is no end of a line.
fn ends_within_a_line(file: &File, len: u64) -> io::Result<bool> {
    let mut last = [b'\n'];
    if let Some(at) = len.checked_sub(1) {
        file.read_exact_at(&mut last, at)?;
    }
    Ok(last != [b'\n'])
}

/// JSON in plain ASCII. Only strings have other characters, and there each may be escaped.
fn ascii(value: &impl Serialize) -> String {
    // What is recorded always encodes.
    let json = serde_json::to_string(value).unwrap_or_default();
    let mut plain = String::with_capacity(json.len());
    for character in json.chars() {
        match character {
            ' '..='~' => plain.push(character),
            _ => {
                let units = &mut [0; 2];
                for unit in character.encode_utf16(units) {
                    // A `String` takes all that is written to it.
                    let _ = write!(plain, "\\u{unit:04x}");
                }
            }
        }
    }
    plain
}

/// The body of a request as a line has it (AUDIT-3).
pub(crate) fn shown(body: &[u8]) -> Value {
    let is_short =
        |value: &Value| body.len() <= REQUEST_BYTES_MAX && ascii(value).len() <= REQUEST_BYTES_MAX;
    match serde_json::from_slice(body).ok().filter(is_short) {
        Some(value) => value,
        None if body.is_empty() => Value::Null,
        None => json!({ "bytes": body.len(), "sha256": hex(&Sha256::digest(body)) }),
    }
}

/// A path or a method as a line has it (AUDIT-3).
pub(crate) fn shown_text(text: &str) -> String {
    match beginning(text) {
        whole if whole.len() == text.len() => text.to_owned(),
        beginning => format!("{beginning}… ({} bytes)", text.len()),
    }
}

/// The first characters, of so many bytes at most as a line has them.
pub(crate) fn beginning(text: &str) -> &str {
    let mut left = TEXT_BYTES_MAX;
    let too_many = |(_, character): &(usize, char)| {
        let bytes = match character {
            '"' | '\\' => 2,
            ' '..='~' => 1,
            _ => 6 * character.len_utf16(),
        };
        let is_over = bytes > left;
        left = left.saturating_sub(bytes);
        is_over
    };
    let end = text.char_indices().find(too_many).map_or(text.len(), |(at, _)| at);
    &text[..end]
}

pub(crate) fn now_unix_ms() -> u64 {
    now_unix_us() / 1000
}

fn now_unix_us() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Method: each cause is met, then another one, and then the end of one of them.
    #[test]
    fn a_cause_for_which_no_line_is_taken_ends_by_its_own_end() {
        let condition = Condition::default();
        let is_told = |part: &str| assert!(condition.why().is_some_and(|why| why.contains(part)));
        let (full, denied) = (ErrorKind::StorageFull, ErrorKind::PermissionDenied);
        condition.wrote(&Err(denied.into()));
        condition.waits();
        is_told("does not answer");
        condition.looked(&Ok(Room::Unknown));
        is_told("permission denied");
        condition.looked(&Err(full.into()));
        condition.looked(&Ok(Room::There));
        is_told("permission denied");
        condition.wrote(&Ok(()));
        assert_eq!(condition.why(), None);

        condition.wrote(&Err(full.into()));
        condition.waits();
        condition.looked(&Ok(Room::Unknown));
        is_told("storage");
        condition.looked(&Ok(Room::There));
        assert_eq!(condition.why(), None);

        condition.looked(&Err(full.into()));
        is_told("storage");
        condition.looked(&Ok(Room::There));
        assert_eq!(condition.why(), None);

        condition.looked(&Err(full.into()));
        condition.wrote(&Err(denied.into()));
        condition.wrote(&Ok(()));
        assert_eq!(condition.why(), None, "a line that is written ends all");
    }
}
