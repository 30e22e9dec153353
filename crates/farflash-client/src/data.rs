//! Data of requests on its way between threads.

use io_traits::Buffer;
use units::BLOCK_SIZE;

/// Bytes to be written or compared: aligned memory that a request takes with it.
#[derive(Debug)]
pub struct Data {
    pub(crate) buffer: Buffer,
    pub(crate) len: usize,
}

impl Data {
    /// `len` bytes of zeroes, to be filled.
    #[must_use]
    pub fn zeroed(len: usize) -> Self {
        Self { buffer: Buffer::zeroed(len.div_ceil(BLOCK_SIZE)), len }
    }

    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.buffer.as_bytes()[..self.len]
    }

    /// The bytes, to be changed.
    #[must_use]
    pub fn as_mut_bytes(&mut self) -> &mut [u8] {
        &mut self.buffer.as_mut_bytes()[..self.len]
    }
}

impl From<&[u8]> for Data {
    /// A copy.
    fn from(bytes: &[u8]) -> Self {
        Self { buffer: Buffer::from_bytes(bytes), len: bytes.len() }
    }
}

/// What a read has read, in the pieces in which it came.
#[derive(Debug, Default)]
pub struct ReadData {
    pub(crate) pieces: Vec<Data>,
}

impl ReadData {
    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.pieces.iter().map(Data::len).sum()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes, piece by piece.
    pub fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        self.pieces.iter().map(Data::as_bytes)
    }

    /// Copies the bytes to `to`.
    ///
    /// # Panics
    /// `to` has another length.
    pub fn copy_to(&self, to: &mut [u8]) {
        assert_eq!(to.len(), self.len(), "as long as what was read");
        let mut rest = to;
        for piece in self.pieces() {
            let (place, after) = rest.split_at_mut(piece.len());
            place.copy_from_slice(piece);
            rest = after;
        }
    }

    /// A copy of the bytes in one piece.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        self.pieces().collect::<Vec<_>>().concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_add_up() {
        let pieces = vec![Data::from(&[1, 2][..]), Data::from(&[3][..])];
        let read = ReadData { pieces };
        assert_eq!((read.len(), read.to_vec()), (3, vec![1, 2, 3]));
        let mut copy = [0; 3];
        read.copy_to(&mut copy);
        assert_eq!(copy, [1, 2, 3]);
        assert!(Data::zeroed(0).is_empty() && ReadData::default().is_empty());
    }
}
