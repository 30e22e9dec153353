//! The payload of one send system call: headers and data in turn.

use std::ops::Range;

use crate::BufferSlice;

/// A part of a [`SendBatch`].
#[derive(Clone, Debug)]
pub enum Segment {
    /// A range of the batch's own bytes: PDU headers, digests, small replies.
    Bytes(Range<usize>),
    /// Data that stays where it is until it was sent.
    Data(BufferSlice),
}

/// Bytes to send in order, gathered from many places. Reused from send to send.
#[derive(Debug, Default)]
pub struct SendBatch {
    bytes: Vec<u8>,
    segments: Vec<Segment>,
    len_bytes: usize,
}

impl SendBatch {
    /// An empty batch.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends a copy of `bytes`; meant for headers.
    pub fn push_bytes(&mut self, bytes: &[u8]) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        self.len_bytes += bytes.len();
        let end = self.bytes.len();
        match self.segments.last_mut() {
            Some(Segment::Bytes(range)) if range.end == start => range.end = end,
            _ => self.segments.push(Segment::Bytes(start..end)),
        }
    }

    /// Appends data without copying it.
    pub fn push_data(&mut self, data: BufferSlice) {
        self.len_bytes += data.len_bytes();
        self.segments.push(Segment::Data(data));
    }

    /// Number of bytes to send.
    #[must_use]
    pub fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    /// Returns whether there is nothing to send.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len_bytes == 0
    }

    /// Number of parts, an upper bound of the I/O vectors that it takes.
    #[must_use]
    pub fn segment_count(&self) -> usize {
        self.segments.len()
    }

    /// The parts as byte slices, in order.
    pub fn slices(&self) -> impl Iterator<Item = &[u8]> {
        self.segments.iter().map(|segment| match segment {
            Segment::Bytes(range) => &self.bytes[range.clone()],
            Segment::Data(data) => data.as_bytes(),
        })
    }

    /// Lets go of pinned memory, for copies.
    pub fn unpin(&mut self) {
        for segment in &mut self.segments {
            if let Segment::Data(data) = segment
                && data.is_pinned()
            {
                *data = data.clone().unpinned();
            }
        }
    }

    /// Returns whether some of the memory is pinned.
    #[must_use]
    pub fn is_pinned(&self) -> bool {
        self.segments
            .iter()
            .any(|segment| matches!(segment, Segment::Data(data) if data.is_pinned()))
    }

    /// Forgets the contents, keeps the memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.segments.clear();
        self.len_bytes = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Buffer;

    #[test]
    fn headers_that_follow_each_other_share_a_segment() {
        let mut batch = SendBatch::new();
        batch.push_bytes(b"ab");
        batch.push_bytes(b"c");
        batch.push_data(Buffer::zeroed(1).into_slice().slice(0..2));
        batch.push_bytes(b"d");
        let parts: Vec<&[u8]> = batch.slices().collect();
        assert_eq!(parts, [&b"abc"[..], &[0, 0], b"d"]);
        assert_eq!((batch.len_bytes(), batch.segment_count()), (6, 3));
        batch.clear();
        assert!(batch.is_empty());
    }
}
