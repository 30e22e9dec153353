//! Hosts in a simulated world that keep no more rules than a test wants, one for each protocol.
//!
//! Absent from this crate: servers, and volumes.
#![allow(
    missing_docs,
    clippy::missing_errors_doc,
    clippy::missing_panics_doc,
    clippy::must_use_candidate,
    reason = "these are steps of tests, which panic where a test is to fail"
)]

pub mod lines;
pub mod nbd;
pub mod nvme;
