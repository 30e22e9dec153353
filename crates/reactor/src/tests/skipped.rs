//! Tests that cannot run everywhere. The tests of other crates have this file, too.

use std::io::Write;

/// Set where every test has to run.
const SKIP_NOTHING: &str = "FARFLASH_SKIP_NOTHING";

/// Says, past what captures a test's output, that the test which calls this ends without having tested anything.
///
/// # Panics
/// Nothing may be skipped here: `.ci/run` says so.
#[track_caller]
pub(crate) fn skipped(why: &str) {
    let place = std::panic::Location::caller();
    assert!(std::env::var_os(SKIP_NOTHING).is_none(), "not run: {why}; {SKIP_NOTHING} is set");
    let _ = writeln!(std::io::stderr(), "\nNOT RUN ({}:{}): {why}", place.file(), place.line());
}
