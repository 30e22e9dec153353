//! NVMe/TCP PDUs (TCP, clause 3.6).
//!
//! ```text
//! 0            8        HLEN       +4        PDO            +n      +4 = PLEN
//! +------------+--------+----------+---------+--------------+-------+
//! | common hdr | type's | HDGST if | padding | DATA if any  | DDGST |
//! +------------+--------+----------+---------+--------------+-------+
//! ```
//! [`CommonHeader::layout`] checks the lengths as soon as eight bytes are there; the header proper
//! is then decoded by its own type. Digests are computed by the caller.

mod capsule;
mod data;
mod error;
mod header;
mod ic;
mod term;

pub use capsule::{CapsuleCmd, CapsuleResp};
pub use data::{C2hData, H2cData, R2t};
pub use error::{FatalErrorStatus, PduError};
pub use header::{
    CommonHeader, DIGEST_LEN, Digests, PduFlags, PduLayout, PduType, header_from_bytes,
};
pub use ic::{
    DIGEST_DATA, DIGEST_HEADER, IcReq, IcResp, MAXH2CDATA_MIN, PFV_1_0, alignment_from_pda,
};
pub use term::{TERM_REQ_DATA_MAX, TermReq};
