//! Hosts of tests in a simulated world, for NVMe/TCP, NBD and a protocol of lines, with the front end of the last; and cores for them.
//!
//! Absent from this crate: the initiator of iSCSI, which the tests of its front end have.
#![allow(
    missing_docs,
    clippy::missing_errors_doc,
    clippy::missing_panics_doc,
    clippy::must_use_candidate,
    reason = "these are steps of tests, which panic where a test is to fail"
)]

pub mod any_disk;
pub mod cores;
pub mod lines;
pub mod nbd;
pub mod nvme;
