//! `farflash-datastore`: the key-value server on RocksDB. `farflash datastore serve` runs it.
//!
//! ```text
//! sockets ─ connection tasks (tokio, --io-threads) ─┬─ reader threads ─┐
//!           decode, group by class, keep the order  └─ writer threads ─┴─ store: RocksDB
//! ```
//!
//! - `connection.rs`, `session.rs`: a client's requests, in order, one group at a time.
//! - `pool.rs`: reader and writer threads with a queue each.
//! - `store.rs`, `reads.rs`, `writes.rs`: RocksDB; `store_errors.rs`: its errors. `version.rs` refuses another library than the one built for.
//! - `tls.rs`: certificates, and the handshake.
//! - `accepting.rs`: connections, where descriptors may be lacking. `lines.rs`: what is told again and again. `tasks.rs`: tasks that must not end.
//! - `memory_group.rs`: a control group that bounds all memory.
//! - `threads.rs`: all threads are made at the start, where they have a limit.
//! - `stats.rs`, `observe.rs`, `http.rs`: counters, `INFO`, `/metrics`, the log of stalls.

mod accepting;
mod connection;
mod http;
mod lines;
mod listen;
mod memory_group;
mod observe;
mod pool;
mod reads;
mod session;
mod stats;
mod store;
mod store_errors;
mod tasks;
mod threads;
mod tls;
mod version;
mod writes;

use std::fmt::Display;
use std::io::IsTerminal;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use datastore::Serve;

/// A key-value server on RocksDB that speaks RESP.
#[derive(Debug, Parser)]
#[command(name = "farflash-datastore", version, max_term_width = 100)]
struct CommandLine {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve a directory of data
    Serve(Box<Serve>),
}

/// A start that failed, and the way out.
#[derive(Debug)]
struct Failure {
    what: String,
    remedy: &'static str,
    code: u8,
}

impl Failure {
    fn usage(what: &dyn Display, remedy: &'static str) -> Self {
        Self { what: what.to_string(), remedy, code: 2 }
    }

    fn runtime(what: &dyn Display, remedy: &'static str) -> Self {
        Self { what: what.to_string(), remedy, code: 1 }
    }
}

fn main() -> ExitCode {
    let Command::Serve(serve) = CommandLine::parse().command;
    let wanted = std::env::var_os("FARFLASH_LOG").unwrap_or_default();
    let directives = datastore::log_filter(&wanted.to_string_lossy());
    let filter = tracing_subscriber::EnvFilter::builder()
        .with_default_directive(tracing::Level::INFO.into())
        .parse_lossy(directives.as_deref().unwrap_or_default());
    let colours = std::io::stderr().is_terminal();
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(colours)
        .with_writer(std::io::stderr)
        .init();
    if let Err(refused) = directives {
        tracing::warn!("{refused}; logging at `info`");
    }
    match listen::run(*serve) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure { what, remedy, code }) => {
            eprintln!("error: {what}\n hint: {remedy}");
            ExitCode::from(code)
        }
    }
}
