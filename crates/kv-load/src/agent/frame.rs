//! Frames: the length of a message in four bytes, big-endian, then the message.

const HEAD_LEN: usize = 4;

/// A frame that is refused.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum FrameError {
    /// Longer than a message may be here.
    #[error("a message of {len} bytes came, and {max} are the most")]
    TooLong {
        /// Its length.
        len: usize,
        /// The bound.
        max: usize,
    },
}

/// Takes frames out of a stream of bytes.
#[derive(Debug)]
pub(crate) struct Frames {
    max: usize,
    held: Vec<u8>,
}

impl Frames {
    /// Takes messages of up to `max` bytes.
    pub(crate) fn new(max: usize) -> Self {
        Self { max, held: Vec::new() }
    }

    /// From now on messages may have up to `max` bytes.
    pub(crate) fn set_max(&mut self, max: usize) {
        self.max = max;
    }

    /// Takes in bytes as they come.
    pub(crate) fn on_bytes(&mut self, bytes: &[u8]) {
        self.held.extend_from_slice(bytes);
    }

    /// Returns the next message, if all of it is here.
    pub(crate) fn poll_message(&mut self) -> Result<Option<Vec<u8>>, FrameError> {
        let Some(head) = self.held.first_chunk::<HEAD_LEN>() else { return Ok(None) };
        let len = u32::from_be_bytes(*head) as usize;
        if len > self.max {
            return Err(FrameError::TooLong { len, max: self.max });
        }
        if self.held.len() < HEAD_LEN + len {
            return Ok(None);
        }
        let rest = self.held.split_off(HEAD_LEN + len);
        let mut message = std::mem::replace(&mut self.held, rest);
        message.drain(..HEAD_LEN);
        Ok(Some(message))
    }
}

/// Puts a message into a frame.
pub(crate) fn framed(message: &[u8]) -> Vec<u8> {
    let len = u32::try_from(message.len()).expect("messages are shorter than 4 GiB");
    let mut frame = len.to_be_bytes().to_vec();
    frame.extend_from_slice(message);
    frame
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_out_as_they_went_in_whatever_the_pieces() {
        let stream: Vec<u8> = [&b"one"[..], b"", b"three"].into_iter().flat_map(framed).collect();
        for piece in 1..=stream.len() {
            let (mut frames, mut all) = (Frames::new(5), Vec::new());
            for bytes in stream.chunks(piece) {
                frames.on_bytes(bytes);
                while let Some(message) = frames.poll_message().expect("no message is too long") {
                    all.push(message);
                }
            }
            assert_eq!(all, [b"one".to_vec(), Vec::new(), b"three".to_vec()], "pieces of {piece}");
        }
    }

    #[test]
    fn a_message_that_is_too_long_is_refused_before_it_is_here() {
        let mut frames = Frames::new(100);
        frames.on_bytes(&101u32.to_be_bytes());
        assert_eq!(frames.poll_message(), Err(FrameError::TooLong { len: 101, max: 100 }));
    }
}
