//! The log: to stderr, for people or as one JSON object a line. `FARFLASH_LOG` filters it.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

/// Starts logging. Call it once.
pub(crate) fn start(json: bool) {
    let filter = EnvFilter::builder()
        .with_default_directive(tracing::Level::INFO.into())
        .with_env_var("FARFLASH_LOG")
        .from_env_lossy();
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    if json {
        log.json().init();
    } else {
        log.with_ansi(std::io::stderr().is_terminal()).with_target(false).init();
    }
}
