//! Decoders of a peer's bytes, for fuzzing.

use std::collections::VecDeque;

use crate::agent::{Frames, FromAgent, ToAgent, message_of};

const LEN_MAX: usize = 8 << 10;

/// The messages in a stream of frames, which comes in pieces of `piece` bytes; and the error that ended it.
#[must_use]
pub fn frames(stream: &[u8], piece: usize) -> (VecDeque<Vec<u8>>, Option<crate::FrameError>) {
    let (mut frames, mut all) = (Frames::new(LEN_MAX), VecDeque::new());
    for bytes in stream.chunks(piece.max(1)) {
        frames.on_bytes(bytes);
        loop {
            match frames.poll_message() {
                Ok(Some(message)) => all.push_back(message),
                Ok(None) => break,
                Err(error) => return (all, Some(error)),
            }
        }
    }
    (all, None)
}

/// Decodes a message to an agent, and encodes it again; `None`: it is refused.
#[must_use]
pub fn to_agent(message: &[u8]) -> Option<Vec<u8>> {
    message_of::<ToAgent>(message)
}

/// Decodes a message of an agent, and encodes it again; `None`: it is refused.
#[must_use]
pub fn from_agent(message: &[u8]) -> Option<Vec<u8>> {
    message_of::<FromAgent>(message)
}
