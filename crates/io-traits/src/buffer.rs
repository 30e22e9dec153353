//! Block-aligned memory for data on its way between network and device.
//!
//! - BUFFER-1: a [`Buffer`] starts on a 4096-byte boundary and is a whole number of blocks, so that it
//!   can be handed to a device opened with `O_DIRECT`.
//! - BUFFER-2: dropped buffers are recycled per thread, most recently used first, so that a busy core
//!   keeps working in the same hot memory. At most [`POOL_BYTES_MAX`] are kept.
//! - BUFFER-3: the contents of a new buffer are unspecified, and may be another tenant's data. A caller
//!   fills all of it, or takes [`Buffer::zeroed`].

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;

use units::BLOCK_SIZE;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

/// Largest buffer that is recycled, in blocks: twice the largest transfer of 1 MiB.
const POOLED_BLOCKS_MAX: usize = 512;
/// Number of size classes: 1, 2, 4, … [`POOLED_BLOCKS_MAX`] blocks.
const CLASSES: usize = POOLED_BLOCKS_MAX.trailing_zeros() as usize + 1;
/// Bytes of idle buffers that a thread keeps.
const POOL_BYTES_MAX: usize = 16 << 20;

/// One aligned block of bytes.
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(4096))]
pub struct Block(pub [u8; BLOCK_SIZE]);

#[derive(Default)]
struct Pool {
    classes: [Vec<Vec<Block>>; CLASSES],
    retained_bytes: usize,
}

thread_local! {
    static POOL: RefCell<Pool> = RefCell::default();
}

/// Bytes of idle buffers that this thread keeps for reuse.
#[must_use]
pub fn pool_bytes_retained() -> usize {
    POOL.with_borrow(|pool| pool.retained_bytes)
}

/// Bytes of memory that a [`Buffer`] of `blocks` blocks takes: those of its size class.
#[must_use]
pub fn buffer_footprint_bytes(blocks: usize) -> usize {
    class_of(blocks).map_or(blocks, |class| 1 << class) * BLOCK_SIZE
}

fn class_of(blocks: usize) -> Option<usize> {
    let class = blocks.next_power_of_two().trailing_zeros() as usize;
    (blocks > 0 && class < CLASSES).then_some(class)
}

/// A run of blocks in memory, owned.
pub struct Buffer {
    blocks: Vec<Block>,
    /// Blocks in use; `blocks` is longer where its size class is.
    len_blocks: usize,
}

impl Buffer {
    /// A buffer of `blocks` blocks with unspecified contents (BUFFER-3).
    #[must_use]
    pub fn new(blocks: usize) -> Self {
        let Some(class) = class_of(blocks) else {
            return Self { blocks: new_zeroed(blocks), len_blocks: blocks };
        };
        let recycled = POOL.with_borrow_mut(|pool| {
            let recycled = pool.classes[class].pop()?;
            pool.retained_bytes -= recycled.len() * BLOCK_SIZE;
            Some(recycled)
        });
        Self { blocks: recycled.unwrap_or_else(|| new_zeroed(1 << class)), len_blocks: blocks }
    }

    /// A buffer of `blocks` blocks of zeroes.
    #[must_use]
    pub fn zeroed(blocks: usize) -> Self {
        let mut buffer = Self::new(blocks);
        buffer.as_mut_bytes().fill(0);
        buffer
    }

    /// A buffer that holds `bytes`, followed by zeroes up to a whole block.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Self {
        let mut buffer = Self::new(bytes.len().div_ceil(BLOCK_SIZE));
        let (data, padding) = buffer.as_mut_bytes().split_at_mut(bytes.len());
        data.copy_from_slice(bytes);
        padding.fill(0);
        buffer
    }

    /// Length in blocks.
    #[must_use]
    pub fn len_blocks(&self) -> usize {
        self.len_blocks
    }

    /// Length in bytes.
    #[must_use]
    pub fn len_bytes(&self) -> usize {
        self.len_blocks * BLOCK_SIZE
    }

    /// The contents.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.blocks[..self.len_blocks].as_bytes()
    }

    /// The contents, to be changed.
    #[must_use]
    pub fn as_mut_bytes(&mut self) -> &mut [u8] {
        self.blocks[..self.len_blocks].as_mut_bytes()
    }

    /// The whole buffer as a slice that can be shared.
    #[must_use]
    pub fn into_slice(self) -> BufferSlice {
        let len = self.len_bytes();
        BufferSlice { memory: Memory::Own(Rc::new(self)), start: 0, len }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let blocks = std::mem::take(&mut self.blocks);
        let Some(class) = class_of(blocks.len()) else { return };
        // The pool is gone while the thread ends; the memory then goes back to the allocator.
        let _ = POOL.try_with(|pool| {
            let pool = &mut *pool.borrow_mut();
            let bytes = blocks.len() * BLOCK_SIZE;
            if blocks.len() == 1 << class && pool.retained_bytes + bytes <= POOL_BYTES_MAX {
                pool.retained_bytes += bytes;
                pool.classes[class].push(blocks);
            }
        });
    }
}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buffer({} blocks)", self.len_blocks)
    }
}

fn new_zeroed(blocks: usize) -> Vec<Block> {
    Block::new_vec_zeroed(blocks).expect("memory for a buffer")
}

/// The owner of a slice's memory.
#[derive(Clone)]
enum Memory {
    Own(Rc<Buffer>),
    Lent(Rc<dyn AsRef<[u8]>>),
    Pinned(Rc<dyn AsRef<[u8]>>),
}

impl Memory {
    fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Own(buffer) => buffer.as_bytes(),
            Self::Lent(bytes) | Self::Pinned(bytes) => (**bytes).as_ref(),
        }
    }
}

impl std::fmt::Debug for Memory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Own(buffer) => buffer.fmt(f),
            Self::Lent(_) => f.write_str("lent"),
            Self::Pinned(_) => f.write_str("pinned"),
        }
    }
}

/// A shared, read-only view of a part of a [`Buffer`], or of lent memory. Cloning it copies no
/// data.
///
/// - BUFFER-4: *pinned* memory is that of a device, whose blocks are not reused meanwhile. It is released
///   within the turn of the core's loop in which it was taken; a caller that must wait, above all
///   for a peer, takes a copy first ([`BufferSlice::unpinned`]).
#[derive(Clone, Debug)]
pub struct BufferSlice {
    memory: Memory,
    start: usize,
    len: usize,
}

impl BufferSlice {
    /// All of `bytes`, which stay at their place until they are dropped, behind the last slice. Not aligned: for
    /// the network only.
    #[must_use]
    pub fn lent(bytes: Rc<dyn AsRef<[u8]>>) -> Self {
        let len = (*bytes).as_ref().len();
        Self { memory: Memory::Lent(bytes), start: 0, len }
    }

    /// All of `bytes`, which a device lends (BUFFER-4): whole blocks.
    #[must_use]
    pub fn pinned(bytes: Rc<dyn AsRef<[u8]>>) -> Self {
        let len = (*bytes).as_ref().len();
        Self { memory: Memory::Pinned(bytes), start: 0, len }
    }

    /// Returns whether it has to be released soon (BUFFER-4).
    #[must_use]
    pub fn is_pinned(&self) -> bool {
        matches!(self.memory, Memory::Pinned(_))
    }

    /// The same bytes, in memory that can be kept: a copy, if they are pinned.
    #[must_use]
    pub fn unpinned(self) -> Self {
        if !self.is_pinned() {
            return self;
        }
        let len = self.len;
        let copy = Buffer::from_bytes(self.as_bytes()).into_slice();
        Self { len, ..copy }
    }

    /// The bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.memory.as_bytes()[self.start..self.start + self.len]
    }

    /// Length in bytes.
    #[must_use]
    pub fn len_bytes(&self) -> usize {
        self.len
    }

    /// The part `range`, in bytes from the start of this slice. Panics if it lies outside.
    #[must_use]
    pub fn slice(&self, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.len, "slice outside of its buffer");
        Self { memory: self.memory.clone(), start: self.start + range.start, len: range.len() }
    }

    /// `count` blocks from block `first`. Panics if they lie outside.
    #[must_use]
    pub fn blocks(&self, first: usize, count: usize) -> Self {
        self.slice(first * BLOCK_SIZE..(first + count) * BLOCK_SIZE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_aligned_and_recycled_last_in_first_out() {
        let first = Buffer::new(3);
        assert_eq!(first.as_bytes().as_ptr() as usize % BLOCK_SIZE, 0);
        assert_eq!(first.len_bytes(), 3 * BLOCK_SIZE);
        let address = first.as_bytes().as_ptr();
        drop(first);
        assert_eq!(pool_bytes_retained(), 4 * BLOCK_SIZE);
        assert_eq!(Buffer::new(4).as_bytes().as_ptr(), address);
        assert_eq!(buffer_footprint_bytes(3), 4 * BLOCK_SIZE);
        assert_eq!(buffer_footprint_bytes(0), 0);
        assert_eq!(buffer_footprint_bytes(1025), 1025 * BLOCK_SIZE, "not recycled");
    }

    #[test]
    fn the_pool_is_bounded() {
        let held: Vec<Buffer> = (0..20).map(|_| Buffer::new(POOLED_BLOCKS_MAX)).collect();
        drop(held);
        assert!(pool_bytes_retained() <= POOL_BYTES_MAX);
    }

    #[test]
    fn slices_see_the_bytes_of_their_part() {
        let mut buffer = Buffer::zeroed(2);
        buffer.as_mut_bytes()[BLOCK_SIZE] = 7;
        let slice = buffer.into_slice();
        assert_eq!(slice.blocks(1, 1).as_bytes()[0], 7);
        assert_eq!(slice.slice(BLOCK_SIZE - 1..BLOCK_SIZE + 1).as_bytes(), [0, 7]);
    }

    #[test]
    fn lent_memory_is_given_back_behind_the_last_slice() {
        struct Lent(Rc<Vec<u8>>);
        impl AsRef<[u8]> for Lent {
            fn as_ref(&self) -> &[u8] {
                &self.0
            }
        }
        let memory = Rc::new(vec![1, 2, 3, 4]);
        let slice = BufferSlice::lent(Rc::new(Lent(memory.clone())));
        let part = slice.slice(1..3);
        assert_eq!((slice.len_bytes(), part.as_bytes()), (4, &[2, 3][..]));
        drop(slice);
        assert_eq!(Rc::strong_count(&memory), 2);
        drop(part);
        assert_eq!(Rc::strong_count(&memory), 1);
    }

    #[test]
    fn pinned_memory_is_let_go_for_a_copy() {
        let memory: Rc<dyn AsRef<[u8]>> = Rc::new(vec![7; 2 * BLOCK_SIZE]);
        let part = BufferSlice::pinned(memory.clone()).slice(5..BLOCK_SIZE + 9);
        assert!(part.is_pinned() && Rc::strong_count(&memory) == 2);
        let kept = part.unpinned();
        assert!(!kept.is_pinned() && Rc::strong_count(&memory) == 1);
        assert_eq!(kept.as_bytes(), [7; BLOCK_SIZE + 4]);
        let own = Buffer::zeroed(1).into_slice();
        let address = own.as_bytes().as_ptr();
        assert_eq!(own.unpinned().as_bytes().as_ptr(), address, "nothing to copy");
    }

    #[test]
    fn an_empty_buffer_is_possible() {
        assert!(Buffer::new(0).as_bytes().is_empty());
        assert_eq!(Buffer::from_bytes(&[1, 2]).as_bytes()[..3], [1, 2, 0]);
    }
}
