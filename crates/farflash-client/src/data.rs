//! Data of requests on its way between threads.

use std::fmt;
use std::rc::Rc;

use io_traits::{Buffer, BufferSlice};
use units::BLOCK_SIZE;

/// Bytes to be written or compared: memory that a request takes with it.
#[derive(Debug)]
pub struct Data(Memory);

enum Memory {
    /// The first so many bytes of a buffer.
    Own(Buffer, usize),
    Lent(Box<dyn AsRef<[u8]> + Send + Sync>),
}

/// Lent memory, as a slice keeps it.
struct Lent(Box<dyn AsRef<[u8]> + Send + Sync>);

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        (*self.0).as_ref()
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Own(_, len) => write!(f, "{len} bytes"),
            Self::Lent(bytes) => write!(f, "{} bytes that are lent", (**bytes).as_ref().len()),
        }
    }
}

impl Data {
    /// `len` bytes of zeroes, to be filled.
    #[must_use]
    pub fn zeroed(len: usize) -> Self {
        Self::of(Buffer::zeroed(len.div_ceil(BLOCK_SIZE)), len)
    }

    /// `bytes` as they are: no copy is made on the way to the socket. They stay at their place until they are
    /// dropped, which may be a moment after the request has its outcome. If they are changed before that, the data
    /// written is undefined, or the request fails.
    #[must_use]
    pub fn lent(bytes: impl AsRef<[u8]> + Send + Sync + 'static) -> Self {
        Self(Memory::Lent(Box::new(bytes)))
    }

    /// The first `len` bytes of `buffer`.
    pub(crate) fn of(buffer: Buffer, len: usize) -> Self {
        Self(Memory::Own(buffer, len))
    }

    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.as_bytes().len()
    }

    /// Returns true if there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        match &self.0 {
            Memory::Own(buffer, len) => &buffer.as_bytes()[..*len],
            Memory::Lent(bytes) => (**bytes).as_ref(),
        }
    }

    /// The bytes, to be changed; a copy of them, if they are lent.
    #[must_use]
    pub fn as_mut_bytes(&mut self) -> &mut [u8] {
        if let Memory::Lent(bytes) = &self.0 {
            *self = (**bytes).as_ref().into();
        }
        match &mut self.0 {
            Memory::Own(buffer, len) => &mut buffer.as_mut_bytes()[..*len],
            Memory::Lent(_) => unreachable!("it is a copy now"),
        }
    }

    /// As it goes to the socket.
    pub(crate) fn into_slice(self) -> BufferSlice {
        match self.0 {
            Memory::Own(buffer, len) => buffer.into_slice().slice(0..len),
            Memory::Lent(bytes) => BufferSlice::lent(Rc::new(Lent(bytes))),
        }
    }
}

impl From<&[u8]> for Data {
    /// A copy.
    fn from(bytes: &[u8]) -> Self {
        Self::of(Buffer::from_bytes(bytes), bytes.len())
    }
}

/// The data of a read, in the pieces in which it came.
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

    /// Returns true if there are none.
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

    #[test]
    fn what_is_lent_goes_as_it_is_and_is_changed_as_a_copy() {
        static LENT: &[u8] = &[1, 2, 3];
        let mut data = Data::lent(LENT);
        assert_eq!(data.as_bytes().as_ptr(), LENT.as_ptr());
        data.as_mut_bytes()[0] = 7;
        assert_eq!((data.as_bytes(), LENT), (&[7, 2, 3][..], &[1, 2, 3][..]));
        let sent = Data::lent(LENT).into_slice();
        assert_eq!(sent.as_bytes().as_ptr(), LENT.as_ptr());
    }
}
