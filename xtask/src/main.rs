//! Chores of this repository that are easier to say in Rust than in a shell.
//!
//! - `cargo xtask tidy` holds the source to the rules that no compiler checks; see `tidy`.
//! - `cargo xtask mutants` tells which changes of the source no test notices; see `mutants`.

mod mutants;
mod tidy;

use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["tidy"] => tidy::run(&root),
        ["mutants", ref arguments @ ..] => mutants::run(&root, arguments),
        _ => {
            eprintln!("usage: cargo xtask tidy\n{}", mutants::USAGE);
            ExitCode::from(2)
        }
    }
}
