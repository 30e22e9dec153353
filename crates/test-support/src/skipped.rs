//! Tests that cannot run everywhere.

use std::io::Write;

/// Set where every test has to run.
const SKIP_NOTHING: &str = "FARFLASH_SKIP_NOTHING";
/// The file that takes the names of tests which were not run, for runners that do not show what passing tests print.
const SKIPPED: &str = "FARFLASH_SKIPPED";

/// Says, past what captures a test's output, that the test which calls this ends without having tested anything.
///
/// # Panics
/// Nothing may be skipped here: `.ci/run` says so.
#[track_caller]
pub fn skipped(why: &str) {
    let place = std::panic::Location::caller();
    assert!(std::env::var_os(SKIP_NOTHING).is_none(), "not run: {why}; {SKIP_NOTHING} is set");
    let line = format!("NOT RUN ({}:{}): {why}\n", place.file(), place.line());
    let _ = write!(std::io::stderr(), "\n{line}");
    if let Some(path) = std::env::var_os(SKIPPED) {
        let mut file =
            std::fs::File::options().append(true).create(true).open(path).expect("opens");
        file.write_all(line.as_bytes()).expect("writes");
    }
}
