//! Counts of free blocks, and of those that lie scattered.

use super::{Extent, Pool};

/// An extent is roomy if at least this part of it is free. What is free in others lies scattered: it is what groups
/// keep (ALLOC-5), mostly.
const ROOMY_PART: u32 = 4;
/// Extents that a search for a roomy one looks at (ALLOC-2).
const SEARCH_MAX: usize = 64;

/// Free blocks, counted.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct Free {
    pub(super) all: u64,
    /// Those in extents that are not roomy.
    pub(super) scattered: u64,
}

impl Free {
    /// So many of an extent, which comes to the pool, are free.
    pub(super) fn add(&mut self, extent: &Extent) {
        self.all += u64::from(extent.free);
        self.scattered += extent.scattered();
    }

    /// The extent goes.
    pub(super) fn remove(&mut self, extent: &Extent) {
        self.all -= u64::from(extent.free);
        self.scattered -= extent.scattered();
    }

    /// From now on `free` of an extent's blocks are.
    pub(super) fn set(&mut self, extent: &mut Extent, free: u32) {
        self.remove(extent);
        extent.free = free;
        self.add(extent);
    }
}

impl Extent {
    fn is_roomy(&self) -> bool {
        self.free >= self.blocks / ROOMY_PART
    }

    fn scattered(&self) -> u64 {
        if self.is_roomy() { 0 } else { u64::from(self.free) }
    }
}

impl Pool {
    /// Blocks that can be handed out.
    pub fn free(&self) -> u64 {
        self.free.all
    }

    /// Counts afresh those that lie scattered, and compares: both must be the same.
    pub fn recount_scattered(&self) -> (u64, u64) {
        let found = self.extents.iter().flatten().map(|extent| extent.scattered());
        (self.free.scattered, found.sum())
    }

    /// Those that do not lie scattered over extents that are all but full.
    pub fn free_in_roomy_extents(&self) -> u64 {
        self.free.all - self.free.scattered
    }

    /// Returns the place where small requests continue behind the extent at `place`. Free blocks
    /// that groups keep are left to them as long as a roomy extent is near.
    pub(super) fn next_place(&self, place: usize) -> usize {
        let next = |step: usize| (place + step) % self.owned.len();
        let is_roomy = |place: &usize| self.extent(self.owned[*place]).is_roomy();
        let near = 1..=SEARCH_MAX.min(self.owned.len());
        let roomy = (self.free_in_roomy_extents() > 0).then(|| near.map(next).find(is_roomy));
        roomy.flatten().unwrap_or(next(1))
    }
}
