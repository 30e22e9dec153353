//! The bytes of iSCSI (RFC 7143) and of the SCSI commands that farflash speaks (SPC-4, SBC-3, SAM-5).
//!
//! - ISCSI-WIRE-1: decoding never panics, whatever the bytes.
//! - ISCSI-WIRE-2: integers are big-endian; structures have no padding and may lie at any address.
//! - ISCSI-WIRE-3: a field that counts from 0 in the specification is converted where it is decoded,
//!   nowhere else.
//!
//! Absent from this crate: I/O, clocks, checksums (callers compute digests), `std`.
#![no_std]

extern crate alloc;

pub mod cdb;
pub mod name;
pub mod pdu;
pub mod sense;
pub mod text;

pub use cdb::Cdb;
pub use name::{IscsiName, NameError};
pub use sense::Sense;
