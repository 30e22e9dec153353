//! The Redis serialization protocol (RESP), versions 2 and 3, as bytes.
//!
//! - `request.rs`: [`RequestDecoder`] for the server, [`encode_request`] for the client.
//! - `reply.rs`: [`Reply`] writes replies in the version that a connection asked for.
//! - `answer.rs`: [`AnswerDecoder`] finds where each reply ends, for the client.
//!
//! Both decoders take bytes in pieces of any size, look at each byte once, never recurse, and hold no more
//! than their limits say, whatever a length field claims.
//!
//! Absent from this crate: sockets, clocks, and the meaning of any command.

#![no_std]

extern crate alloc;

mod answer;
mod reply;
mod request;

pub use answer::{Answer, AnswerDecoder, AnswerError, AnswerKind};
pub use reply::{Protocol, Reply};
pub use request::{Request, RequestDecoder, RequestError, RequestLimits, encode_request};
