//! `libfarflash.so`: the C face of `farflash-client`. What each function does, and who owns what, stands in
//! `include/farflash.h`, which is written by hand; a test holds the two together.
//!
//! - F1: no panic leaves a function: [`edge`] turns it into `FARFLASH_FAILED`.
//! - F2: pointers become references or slices at the very edge, each checked against null; behind it
//!   there is no `unsafe`.
//!
//! Absent: everything else.

pub mod cluster;
pub mod edge;
pub mod extended;
pub mod structs;
pub mod submit;
pub mod volume;
