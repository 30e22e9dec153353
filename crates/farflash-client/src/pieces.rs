//! Cuts a request into what the target takes at once.

/// A part of a request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Piece {
    /// From the start of the volume.
    pub(crate) offset: u64,
    /// From the start of the request.
    pub(crate) at: usize,
    pub(crate) len: usize,
}

/// The pieces of `len` bytes at `offset`, none longer than `piece_max`.
pub(crate) fn pieces(offset: u64, len: usize, piece_max: usize) -> impl Iterator<Item = Piece> {
    (0..len).step_by(piece_max.max(1)).map(move |at| Piece {
        offset: offset + at as u64,
        at,
        len: piece_max.min(len - at),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_the_request_once() {
        let all: Vec<Piece> = pieces(100, 25, 10).collect();
        let expected = [(100, 0, 10), (110, 10, 10), (120, 20, 5)];
        assert_eq!(all, expected.map(|(offset, at, len)| Piece { offset, at, len }));
        assert_eq!(pieces(0, 10, 10).count(), 1);
        assert_eq!(pieces(0, 0, 10).count(), 0);
    }
}
