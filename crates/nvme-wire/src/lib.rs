//! The bytes of NVMe as far as farflash speaks it: NVM Express Base Specification 2.1 (called
//! "Base" below; what came with 2.3 says so), NVM Command Set Specification 1.1 ("NVM") and NVMe/TCP Transport Specification
//! 1.1 ("TCP").
//!
//! - NVME-WIRE-1: decoding never panics, whatever the bytes. What a field may hold is checked where it is
//!   decoded, and the error says which byte is wrong.
//! - NVME-WIRE-2: integers are little-endian; structures have no padding and may lie at any address.
//! - NVME-WIRE-3: a 0's based field is converted where it is decoded or encoded, nowhere else. A field that
//!   is still 0's based says so.
//!
//! Absent from this crate: I/O, clocks, checksums (callers compute digests), `std`.
#![no_std]

extern crate alloc;

pub mod async_event;
pub mod auth;
pub mod cqe;
pub mod cross_controller_reset;
pub mod discovery;
pub mod fabrics;
pub mod feature;
pub mod identify;
pub mod io;
pub mod log;
pub mod nqn;
pub mod opcode;
pub mod pdu;
pub mod property;
pub mod reservation;
pub mod sgl;
pub mod sqe;
pub mod status;

pub use cqe::Cqe;
pub use cross_controller_reset::{ControllerInstance, CrossControllerReset};
pub use nqn::{HostId, Nqn};
pub use opcode::{AdminOpcode, FabricsType, IoOpcode};
pub use sgl::SglDescriptor;
pub use sqe::Sqe;
pub use status::Status;
