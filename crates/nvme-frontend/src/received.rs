//! Chunks of received bytes, and data that is written from where it was received.
//!
//! - RECEIVED-1: data that came whole in one chunk, and is written at once when its turn comes, is not copied out of the chunk
//!   before.
//! - RECEIVED-2: a core keeps at most [`KEPT_MAX`] chunks for that, whatever its hosts send. Beyond them data is copied, so
//!   that what waits for its turn leaves chunks to be received into.

use std::cell::Cell;
use std::ops::Deref;
use std::rc::Rc;

use io_traits::BufferSlice;

/// Chunks with data that waits to be written, and the one that is being looked at: few of those that a core has.
const KEPT_MAX: usize = 8;

/// The number of chunks of a core that are kept.
pub(crate) type Kept = Rc<Cell<usize>>;

/// A chunk, and its place among those that are kept.
pub(crate) struct Received<C> {
    chunk: C,
    kept: Kept,
}

impl<C> Received<C> {
    pub(crate) fn new(chunk: C, kept: &Kept) -> Rc<Self> {
        kept.set(kept.get() + 1);
        Rc::new(Self { chunk, kept: kept.clone() })
    }
}

impl<C: Deref<Target = [u8]> + 'static> Received<C> {
    /// Returns `bytes`, which are a part of the chunk, where they are; `None` if as many chunks are kept as may be
    /// (RECEIVED-2).
    pub(crate) fn keep(self: &Rc<Self>, bytes: &[u8]) -> Option<BufferSlice> {
        if self.kept.get() > KEPT_MAX {
            return None;
        }
        let start = bytes.as_ptr().addr() - self.chunk.as_ptr().addr();
        Some(BufferSlice::pinned(self.clone()).slice(start..start + bytes.len()))
    }
}

impl<C: Deref<Target = [u8]>> AsRef<[u8]> for Received<C> {
    fn as_ref(&self) -> &[u8] {
        &self.chunk
    }
}

impl<C> Drop for Received<C> {
    fn drop(&mut self) {
        self.kept.set(self.kept.get() - 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_chunk_are_kept_until_the_last_is_gone_and_no_more_than_few() {
        let kept = Kept::default();
        let chunk = |byte: u8| Received::new(vec![byte; 100].into_boxed_slice(), &kept);
        let first = chunk(1);
        let part = first.keep(&(*first).as_ref()[10..30]).expect("the only one");
        drop(first);
        assert_eq!((part.as_bytes(), kept.get()), (&[1; 20][..], 1));
        let others: Vec<_> = (1..KEPT_MAX as u8).map(chunk).collect();
        let last = others.last().expect("some");
        assert!(last.keep((**last).as_ref()).is_some());
        let beyond = chunk(9);
        assert!(beyond.keep(&(*beyond).as_ref()[..1]).is_none());
        drop(part);
        assert!(beyond.keep(&(*beyond).as_ref()[..1]).is_some());
        drop((others, beyond));
        assert_eq!(kept.get(), 0);
    }
}
