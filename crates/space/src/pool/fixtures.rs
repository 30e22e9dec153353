//! Pools that tests begin with.

use layout::{BITMAP_SLOTS, Superblock};
use uuid::Uuid;

use super::Pool;
use super::alloc::Cursor;

/// A shard without extents, on a device whose extents have 1 024 blocks.
fn empty() -> Pool {
    Pool::new(Superblock::with_extents(Uuid::nil(), 1 << 20, 1024).expect("in bounds"))
}

/// So many extents, of which nothing is handed out.
pub(super) fn unused(extents: u32) -> Pool {
    let mut pool = empty();
    (0..extents).for_each(|index| pool.add(index, None));
    pool
}

/// The same, which the durable state has as the shard's.
pub(super) fn owned_durably(extents: u32) -> Pool {
    let mut pool = unused(extents);
    (0..extents).for_each(|index| pool.set_owned_durably(index));
    pool
}

/// All handed out but for the last extent, where small requests are. Large ones go on in the one before.
pub(super) fn used_but_last(extents: u32) -> Pool {
    let last = extents - 1;
    let mut pool = unused(last);
    pool.large_cursor = Cursor::at(last as usize - 1);
    for index in 0..last {
        pool.take(index, BITMAP_SLOTS, 1024 - BITMAP_SLOTS);
    }
    pool.add(last, None);
    pool.cursor = Cursor::at(last as usize);
    pool
}
