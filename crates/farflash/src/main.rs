//! farflash: a Flash server and its tools in one binary.
//!
//! This crate parses arguments and joins parts: each subcommand is a file of `commands`, and
//! `server` puts the data cores and the API together. What they do is done by the other crates.

mod address;
mod advertised;
mod belonging;
mod blank;
mod commands;
mod core_list;
mod device_spec;
mod failure;
mod interval;
mod logging;
mod model;
mod not_opened;
mod output;
mod recorded;
mod server;
mod sharing_spec;
mod storage;

use std::process::ExitCode;

use clap::Parser;
use mimalloc::MiMalloc;

/// Each request is a task of some kilobytes, and comes and goes within its core: what an allocator with a heap of its own
/// for each thread is good at. `docs/benchmarks.md` says what that brings.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    match commands::CommandLine::parse().run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            output::note(&failure.to_string());
            failure.exit_code()
        }
    }
}
