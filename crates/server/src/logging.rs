//! The log: to stderr, for people or as one JSON object a line. `FARFLASH_LOG` filters it.
//!
//! A thread of its own writes it: a thread that logs never waits for the reader of the log. Lines that find
//! too many waiting are left out, and counted.

use std::ffi::OsString;
use std::io::{self, IsTerminal, Stderr, Write};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use process_limits::threads;
use tracing::Level;
use tracing_appender::non_blocking::{ErrorCounter, NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::EnvFilter;
use user_messages::Failure;

/// Lines that wait to be written, at most: some megabytes.
const WAITING_LINES_MAX: usize = 8192;

/// Time for which lines are gathered. A core that logs wakes the writer no more often, and writes nothing
/// itself: to interrupt another CPU takes it some 20 µs in a virtual machine.
pub(crate) const GATHERED_FOR: Duration = Duration::from_millis(50);
/// Bytes that are written at once.
const GATHERED_BYTES_MAX: usize = 64 << 10;

/// It warns of each alert that a stranger sends, so that any client could fill the log: its lines are not
/// written unless the filter names it.
const TLS_LIBRARY: &str = "rustls";

/// Lines that were left out.
static LEFT_OUT: OnceLock<ErrorCounter> = OnceLock::new();
/// As long as it is there, lines are written.
static WRITER: Mutex<Option<WorkerGuard>> = Mutex::new(None);

/// The log as long as it is written. What was said before it is dropped, is written.
pub struct Log(());

impl Drop for Log {
    fn drop(&mut self) {
        finish();
    }
}

/// Starts logging. Call it once.
pub fn start(json: bool) -> Result<Log, Failure> {
    // The library panics without a thread.
    threads::check(1)?;
    let wanted = std::env::var_os(VARIABLE).unwrap_or_default();
    let parsed = filter(&wanted.to_string_lossy());
    let (filter, refused) = match parsed {
        Ok(filter) => (filter, None),
        Err(error) => (default_filter(), Some(error)),
    };
    let (writer, guard) = NonBlockingBuilder::default()
        .buffered_lines_limit(WAITING_LINES_MAX)
        .lossy(true)
        .thread_name("log")
        .finish(Gathering { out: io::stderr(), gathered: Vec::new() });
    LEFT_OUT.get_or_init(|| writer.error_counter());
    *WRITER.lock().unwrap_or_else(PoisonError::into_inner) = Some(guard);
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(writer);
    if json {
        log.json().init();
    } else {
        log.with_ansi(is_coloured(io::stderr().is_terminal(), std::env::var_os("NO_COLOR")))
            .with_target(false)
            .init();
    }
    if let Some(error) = refused {
        tracing::warn!(
            "{error}; logging at `info`. Set {VARIABLE} to a level ({LEVELS}), or to `MODULE=LEVEL,…`"
        );
    }
    Ok(Log(()))
}

/// The variable that says which lines are written.
const VARIABLE: &str = "FARFLASH_LOG";
const LEVELS: &str = "off, error, warn, info, debug, trace";

/// A value of the variable that says nothing that can be done.
#[derive(Debug, Eq, PartialEq, thiserror::Error)]
#[error("{VARIABLE} is not used, since `{directive}` names no level")]
struct BadFilter {
    directive: String,
}

fn default_filter() -> EnvFilter {
    filter("").expect("nothing is wrong with nothing")
}

/// Returns the filter that `wanted` asks for: a level, and levels of modules, separated by commas.
fn filter(wanted: &str) -> Result<EnvFilter, BadFilter> {
    let directives = wanted.split(',').map(str::trim).filter(|directive| !directive.is_empty());
    let directives: Vec<&str> = directives.collect();
    for directive in &directives {
        // Without a level the library takes any word for a module, and then writes nothing of all others.
        let level = directive.rsplit_once('=').map_or(*directive, |(_, level)| level);
        if !LEVELS.split(", ").any(|name| name.eq_ignore_ascii_case(level)) {
            return Err(BadFilter { directive: (*directive).to_owned() });
        }
    }
    let directives = directives.join(",");
    let filter = EnvFilter::builder().with_default_directive(Level::INFO.into()).parse(&directives);
    let filter = filter.map_err(|_| BadFilter { directive: directives })?;
    if wanted.contains(TLS_LIBRARY) {
        return Ok(filter);
    }
    Ok(filter.add_directive(format!("{TLS_LIBRARY}=off").parse().expect("a directive")))
}

/// Returns true if lines have colours: on a terminal, unless its user has set `NO_COLOR`.
fn is_coloured(is_terminal: bool, no_color: Option<OsString>) -> bool {
    is_terminal && no_color.is_none_or(|value| value.is_empty())
}

/// Waits until everything is written, but not for long if the log is not read. Later lines are lost. For
/// callers that end the process without dropping the [`Log`].
pub(crate) fn finish() {
    drop(WRITER.lock().unwrap_or_else(PoisonError::into_inner).take());
}

/// Lines that were left out so far because earlier ones had not been read.
pub(crate) fn lines_left_out() -> u64 {
    LEFT_OUT.get().map_or(0, |left_out| left_out.dropped_lines() as u64)
}

/// Writes lines that come within a while together.
struct Gathering {
    out: Stderr,
    gathered: Vec<u8>,
}

impl Write for Gathering {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.gathered.is_empty() {
            reactor::leave_cores();
            std::thread::sleep(GATHERED_FOR);
        } else if self.gathered.len() + bytes.len() > GATHERED_BYTES_MAX {
            self.flush()?;
        }
        self.gathered.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let written = self.out.write_all(&self.gathered);
        self.gathered.clear();
        written
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_is_levels_and_nothing_else() {
        for (wanted, most) in [
            ("", Level::INFO),
            ("debug", Level::DEBUG),
            (" error ", Level::ERROR),
            ("WARN", Level::WARN),
            ("info,volume=trace", Level::TRACE),
            ("info, rustls=debug", Level::DEBUG),
        ] {
            let filter = filter(wanted).unwrap_or_else(|error| panic!("{wanted}: {error}"));
            assert_eq!(filter.max_level_hint(), Some(most.into()), "{wanted}");
        }
        for (wanted, wrong) in [
            ("warning", "warning"),
            ("verbose", "verbose"),
            ("3", "3"),
            ("info,volume=loud", "volume=loud"),
            ("info;debug", "info;debug"),
        ] {
            assert_eq!(filter(wanted).err(), Some(BadFilter { directive: wrong.to_owned() }));
        }
    }

    #[test]
    fn colours_are_for_terminals_whose_user_wants_them() {
        let no_color = |value: &str| Some(OsString::from(value));
        assert!(is_coloured(true, None) && is_coloured(true, no_color("")));
        assert!(!is_coloured(true, no_color("1")) && !is_coloured(false, None));
    }
}
