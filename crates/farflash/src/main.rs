//! farflash: a Flash server and its tools in one binary.
//!
//! This crate parses arguments and joins parts: each subcommand is a file of `commands`, and
//! `server` puts the data cores and the API together. What they do is done by the other crates.

mod address;
mod advertised;
mod belonging;
mod blank;
mod cgroup;
mod commands;
mod contents;
mod core_list;
mod device_spec;
mod failure;
mod flags;
mod interval;
mod logging;
mod memory_bound;
mod model;
mod nbd_address;
mod not_opened;
mod output;
mod owner;
mod recorded;
mod server;
mod sharing_spec;
mod shell;
mod storage;
mod threads;

use std::process::ExitCode;

use allocator::Allocator;
use clap::Parser;

#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

fn main() -> ExitCode {
    allocator::keep_huge_pages_whole();
    match commands::CommandLine::parse().run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            output::note(&failure.to_string());
            failure.exit_code()
        }
    }
}
