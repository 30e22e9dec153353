//! `libfarflash.so`: the C interface of `farflash-client`. The functions, and the ownership of memory, are
//! described in `include/farflash.h`, which is written by hand; a test holds the two together.
//!
//! - FFI-1: no panic leaves a function: [`edge`] turns it into `FARFLASH_FAILED`.
//! - FFI-2: pointers become references or slices at the very edge, each checked against null; behind it
//!   there is no `unsafe`.
//! - FFI-3: the memory of data to be written or compared is the caller's again when a function returns, also of a
//!   request that goes on behind it, and of one that failed: what goes to the socket is a copy, which another thread can keep for as
//!   long as the kernel needs it. What is read comes over a buffer of ours: memory to be read into may never have been
//!   set, and what receives straight into memory ([`farflash_client::Request::ReadTo`]) takes a slice, which may not be
//!   made of such memory.
//!
//! Absent: everything else.

pub mod cluster;
pub mod edge;
pub mod extended;
pub mod records;
pub mod starting;
pub mod structs;
pub mod submit;
pub mod volume;
