//! farflash: a Flash server and its tools in one binary.
//!
//! This crate parses arguments and joins parts: each subcommand is a file of `commands`, and
//! what it does is done by the other crates.

mod address;
mod commands;
mod core_list;
mod interval;

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
            user_messages::output::note(&failure.to_string());
            failure.exit_code()
        }
    }
}
