//! Failures, notes and results as the user of a program is told of them: one line on what is wrong, one on what to do.

mod failure;
mod flags;
pub mod output;
pub mod shell;

pub use failure::Failure;
