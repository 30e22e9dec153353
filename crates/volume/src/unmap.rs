//! Deallocation.

use io_traits::Device;
use units::LbaRange;

use crate::holds::Holds;
use crate::locks::{lock, lock_all};
use crate::ops::{Change, Op};
use crate::shard::{SpaceEffect, SpaceRequest, UNMAP_AT_ONCE_MAX};
use crate::{Volume, VolumeError};

/// Ranges deallocated together: as many as a Dataset Management command has.
const UNMAP_RANGES_MAX: usize = 256;
/// Map nodes beside those that a deallocation is expected to make dirty: a tree may have grown.
const NODES_SLACK: u64 = 16;

impl<D: Device> Volume<D> {
    /// Deallocates blocks, atomically, however many: they read as zeroes. Durable when it returns;
    /// for large ranges the space comes back in the background.
    ///
    /// # Errors
    /// Out of range, or the journal is lost.
    pub async fn unmap(&self, range: LbaRange) -> Result<(), VolumeError> {
        self.check(range)?;
        if range.blocks == 0 {
            return Ok(());
        }
        let inner = self.inner();
        let at_once = range.blocks <= UNMAP_AT_ONCE_MAX;
        let guard = lock(&self.state().locks, range).await;
        let permit =
            if at_once { None } else { Some(inner.pending_unmap_permit(self.state()).await?) };
        inner.check_open()?;
        self.check(range)?;
        if self.state().map.borrow().is_empty() {
            return Ok(());
        }
        let (mut metadata, mut claim) = (0, None);
        if at_once {
            claim = inner.claim(self.state(), &[range], SpaceEffect::Growing).await?;
            self.counted(inner.preload(self.state(), range).await)?;
            let height = self.state().map.borrow().height();
            metadata = 2 * (self.state().unmap_leaves(range.blocks) + height);
        }
        let holds = match permit {
            Some(permit) => Holds::range(guard).and_unmap_place(permit),
            None => Holds::range(guard).and_node_memory(claim),
        };
        let node_blocks =
            inner.admit(SpaceRequest { data: 0, metadata, effect: SpaceEffect::Replacing }).await?;
        // In a block of its own: else the future would keep room for the operation until it is over.
        let submitted = {
            let holds = holds.and_node_blocks(node_blocks);
            inner.submit(Op::new(Change::Unmap { range }, Some(self.state().clone()), holds))
        };
        submitted.await
    }

    /// Deallocates several ranges as one: all of them or none. They may overlap. `false`, and nothing is
    /// done, if that cannot be: of more than 256, and of several that do not touch where one has more than
    /// 1 024 blocks; or if the device is so small and so full that it has no room for the map nodes.
    /// They are then deallocated one by one.
    ///
    /// # Errors
    /// One is out of range, or the journal is lost.
    pub async fn unmap_together(&self, ranges: &[LbaRange]) -> Result<bool, VolumeError> {
        ranges.iter().try_for_each(|range| self.check(*range))?;
        let ranges = joined(ranges);
        if let [range] = ranges[..] {
            return self.unmap(range).await.map(|()| true);
        }
        let are_small = ranges.iter().all(|range| range.blocks <= UNMAP_AT_ONCE_MAX);
        if ranges.len() > UNMAP_RANGES_MAX || !are_small {
            return Ok(false);
        }
        if ranges.is_empty() {
            return Ok(true);
        }
        let (inner, state) = (self.inner(), self.state());
        let guard = lock_all(&state.locks, &ranges).await;
        inner.check_open()?;
        ranges.iter().try_for_each(|range| self.check(*range))?;
        if state.map.borrow().is_empty() {
            return Ok(true);
        }
        let claim = inner.claim(state, &ranges, SpaceEffect::Growing).await?;
        for range in &ranges {
            self.counted(inner.preload(state, *range).await)?;
        }
        let request = SpaceRequest {
            data: 0,
            metadata: self.nodes_of(&ranges),
            effect: SpaceEffect::Replacing,
        };
        let holds = Holds::range(guard).and_node_memory(claim);
        let node_blocks = match inner.admit(request).await {
            Err(VolumeError::PoolFull) => return Ok(false),
            admitted => admitted?,
        };
        let submitted = {
            let holds = holds.and_node_blocks(node_blocks);
            inner.submit(Op::new(Change::UnmapAll { ranges }, Some(state.clone()), holds))
        };
        submitted.await?;
        Ok(true)
    }

    /// Map nodes that the deallocation of `ranges`, which are loaded, may make dirty.
    ///
    /// Each node that leads to them, and for each one that it merges with. Until the deallocation takes
    /// effect others may split some of these.
    fn nodes_of(&self, ranges: &[LbaRange]) -> u64 {
        let map = self.state().map.borrow();
        let of_each =
            |range: &LbaRange| 2 * (self.state().unmap_leaves(range.blocks) + map.height());
        let most: u64 = ranges.iter().map(of_each).sum();
        most.min(3 * map.nodes_of(ranges) + NODES_SLACK)
    }
}

/// Returns the same blocks as disjoint ranges that do not touch, ascending.
#[must_use]
pub fn joined(ranges: &[LbaRange]) -> Vec<LbaRange> {
    let mut sorted: Vec<LbaRange> = ranges.iter().copied().filter(|r| r.blocks > 0).collect();
    sorted.sort_unstable_by_key(|range| range.start);
    let mut joined: Vec<LbaRange> = Vec::with_capacity(sorted.len());
    for range in sorted {
        match joined.last_mut() {
            Some(last) if range.start <= last.end() => {
                let end = last.end().max(range.end());
                last.blocks = end.0 - last.start.0;
            }
            _ => joined.push(range),
        }
    }
    joined
}
