//! The owner of each extent of a device, and other state that its shards share.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::PoisonError;

use layout::Superblock;

use crate::ClaimError;
use crate::flushes::Flushes;
use crate::pool::Returned;
use crate::sync::{Arc, Mutex, MutexGuard};

/// The part of all extents that is kept unowned while several shards may need some; at least two.
const FREE_PART: u32 = 32;
const FREE_MIN: u32 = 2;

/// Hands extents out to shards. One per device, shared by all cores: cheap to clone, `Send`.
///
/// It exists in memory only, rebuilt from what the shards recover, and is asked ahead of need: no
/// request waits for it.
#[derive(Clone, Debug)]
pub struct ExtentAllocator {
    owners: Arc<Mutex<Owners>>,
    flushes: Flushes,
}

#[derive(Debug)]
struct Owners {
    /// The size that the shards use.
    superblock: Superblock,
    /// The device may have grown while its shards were closed.
    may_have_grown: bool,
    by_extent: Vec<Option<u16>>,
    free: u32,
    /// The search for the next free extent begins here.
    next: u32,
    /// The shard that found none last.
    wanted_by: Option<u16>,
    /// Extents that each shard could give back.
    spare: BTreeMap<u16, u32>,
    /// Extents of shards that are being read back. Still theirs: the device may say so.
    disputed: BTreeSet<u32>,
    /// Extents that their shard gives up to any shard that claims them (ROLLBACK-2).
    yielded: BTreeSet<u32>,
    /// Unowned extents that were given back before all of their content was discarded.
    stale: BTreeSet<u32>,
    /// Shards recovered from state that may not be durable. They may yet own extents that seem
    /// unowned.
    unflushed: BTreeSet<u16>,
    /// Number of calls.
    calls: u64,
}

impl Owners {
    fn new(superblock: Superblock) -> Self {
        let free = superblock.extent_count();
        Self {
            superblock,
            may_have_grown: false,
            by_extent: vec![None; free as usize],
            free,
            next: 0,
            wanted_by: None,
            spare: BTreeMap::new(),
            disputed: BTreeSet::new(),
            yielded: BTreeSet::new(),
            stale: BTreeSet::new(),
            unflushed: BTreeSet::new(),
            calls: 0,
        }
    }

    /// The extents behind the former end are unowned. Those before it stay, and the last of them may be longer than it was.
    fn grow(&mut self, superblock: Superblock) {
        let extents = superblock.extent_count();
        let before = self.superblock.extent_count();
        assert!(extents >= before, "a larger device has no fewer extents");
        self.by_extent.resize(extents as usize, None);
        self.free += extents - before;
        self.superblock = superblock;
        self.may_have_grown = false;
        self.wanted_by = None;
    }

    fn claim(&mut self, extent: u32, shard: u16) -> Result<(), ClaimError> {
        let owner = self.by_extent.get_mut(extent as usize).ok_or(ClaimError::NoExtent)?;
        match *owner {
            Some(first) if first == shard && self.disputed.remove(&extent) => Ok(()),
            Some(first) if first != shard && self.yielded.remove(&extent) => {
                *owner = Some(shard);
                self.disputed.remove(&extent);
                Ok(())
            }
            Some(first) => Err(ClaimError::DoubleOwner { extent, first, second: shard }),
            None => {
                *owner = Some(shard);
                self.free -= 1;
                self.stale.remove(&extent);
                Ok(())
            }
        }
    }
}

impl ExtentAllocator {
    /// All extents of the device, none owned.
    #[must_use]
    pub fn new(superblock: &Superblock) -> Self {
        let owners = Arc::new(Mutex::new(Owners::new(*superblock)));
        Self { owners, flushes: Flushes::default() }
    }

    /// Lets the shards, all of which are closed, find the device larger when they are read back.
    pub fn may_grow(&self) {
        self.locked().may_have_grown = true;
    }

    /// Returns whether `found` is the superblock of the device that the shards are of, and as large as that is or may be now:
    /// then all of it is used from now on.
    pub fn is_of_this(&self, found: &Superblock) -> bool {
        let mut owners = self.locked();
        let before = owners.superblock;
        let is_larger = found.blocks > before.blocks
            && Superblock { blocks: before.blocks, ..*found } == before;
        if is_larger && owners.may_have_grown {
            owners.grow(*found);
            return true;
        }
        *found == before
    }

    /// Extents without an owner.
    #[must_use]
    pub fn unowned(&self) -> u32 {
        self.lock().free
    }

    /// The blocks of these extents, the last of which may be shorter.
    #[must_use]
    pub fn unowned_blocks(&self) -> u64 {
        let owners = self.lock();
        let superblock = &owners.superblock;
        let whole = u64::from(superblock.extent_blocks);
        let last = superblock.extent(superblock.extent_count() - 1);
        let is_free = owners.by_extent.last().is_some_and(Option::is_none);
        let missing = if is_free { whole - last.blocks } else { 0 };
        u64::from(owners.free) * whole - missing
    }

    /// Number of calls by shards. Each may make a core wait for another, but requests make none: a
    /// shard allocates from its own extents. Flushes, which shards share, are not counted.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.locked().calls
    }

    /// Flushes of the device: each concerns all shards (COMMIT-5).
    pub fn flushes(&self) -> &Flushes {
        &self.flushes
    }

    /// Records what recovery found: `shard` owns `extent`.
    pub fn claim(&self, extent: u32, shard: u16) -> Result<(), ClaimError> {
        self.lock().claim(extent, shard)
    }

    /// As [`ExtentAllocator::claim`], for a shard that gives the extent up to any other shard that
    /// claims it, or has claimed it already (ROLLBACK-2).
    pub fn claim_unless_owned(&self, extent: u32, shard: u16) -> Result<(), ClaimError> {
        let mut owners = self.lock();
        let owner = owners.by_extent.get(extent as usize).copied().flatten();
        if owner.is_none_or(|owner| owner == shard) {
            owners.claim(extent, shard)?;
            owners.yielded.insert(extent);
        }
        Ok(())
    }

    /// Claims the extent for `shard` for good, after [`ExtentAllocator::claim_unless_owned`] (ROLLBACK-3).
    ///
    /// # Errors
    /// Another shard owns it.
    pub fn insist(&self, extent: u32, shard: u16) -> Result<(), ClaimError> {
        let mut owners = self.lock();
        if owners.by_extent.get(extent as usize) == Some(&Some(shard)) {
            owners.yielded.remove(&extent);
            return Ok(());
        }
        owners.claim(extent, shard)
    }

    /// Takes a free extent, the next one behind the last taken, for `shard`; one of which nothing is left to
    /// be discarded, if there is one.
    pub fn reserve(&self, shard: u16) -> Option<Returned> {
        let mut owners = self.lock();
        let count = u32::try_from(owners.by_extent.len()).expect("extent numbers are 32 bits");
        let free = (0..count)
            .map(|step| (owners.next + step) % count)
            .filter(|&extent| owners.by_extent[extent as usize].is_none());
        let all_stale = owners.stale.len() == owners.free as usize;
        let mut found = free.filter(|extent| all_stale || !owners.stale.contains(extent));
        let Some(found) = found.next() else {
            owners.wanted_by = Some(shard);
            return None;
        };
        owners.by_extent[found as usize] = Some(shard);
        owners.free -= 1;
        owners.next = (found + 1) % count;
        Some(Returned { extent: found, is_stale: owners.stale.remove(&found) })
    }

    /// Gives back an extent whose owner durably no longer claims it.
    pub fn release(&self, Returned { extent, is_stale }: Returned) {
        let mut owners = self.lock();
        if is_stale {
            owners.stale.insert(extent);
        }
        let owner = owners.by_extent[extent as usize].take();
        assert!(owner.is_some(), "an extent is released by its owner, once");
        owners.free += 1;
        owners.wanted_by = None;
    }

    /// Notes whether what `shard` was read back from is known to be durable (REPERSIST-5).
    pub fn set_flushed(&self, shard: u16, is_flushed: bool) {
        let mut owners = self.lock();
        match is_flushed {
            true => owners.unflushed.remove(&shard),
            false => owners.unflushed.insert(shard),
        };
    }

    /// Returns whether that holds for all shards: none is going to own more than it claims.
    pub fn are_all_flushed(&self) -> bool {
        self.lock().unflushed.is_empty()
    }

    /// `shard` is going to be read back once more: what it owned is its own only if it claims it again.
    pub fn dispute(&self, shard: u16) {
        let mut owners = self.lock();
        let owned = (0..).zip(&owners.by_extent).filter(|(_, owner)| **owner == Some(shard));
        owners.disputed =
            owned.map(|(extent, _)| extent).chain(owners.disputed.iter().copied()).collect();
    }

    /// `shard` was recovered and has a durable root: extents that it did not claim again are free.
    pub fn settle_dispute(&self, shard: u16) {
        let mut owners = self.lock();
        let disputed = std::mem::take(&mut owners.disputed);
        for extent in disputed {
            if owners.by_extent[extent as usize] == Some(shard) {
                owners.by_extent[extent as usize] = None;
                owners.free += 1;
                owners.stale.insert(extent);
                owners.yielded.remove(&extent);
            } else {
                owners.disputed.insert(extent);
            }
        }
        owners.wanted_by = None;
    }

    /// Returns whether a shard other than `shard` has found no extent.
    pub fn is_wanted_by_others(&self, shard: u16) -> bool {
        self.lock().wanted_by.is_some_and(|other| other != shard)
    }

    /// Extents that are to be given back, discarded or not, so that shards other than `shard` find some
    /// before they must wait.
    pub fn shortage(&self, shard: u16) -> u32 {
        let owners = self.lock();
        if owners.spare.keys().all(|other| *other == shard) {
            return 0;
        }
        let extents = u32::try_from(owners.by_extent.len()).expect("extent numbers are 32 bits");
        (extents / FREE_PART).max(FREE_MIN).saturating_sub(owners.free)
    }

    /// Says how many extents `shard` could give back.
    pub fn set_spare(&self, shard: u16, count: u32) {
        self.lock().spare.insert(shard, count);
    }

    /// Extents that shards other than `shard` could give back.
    pub fn spare_of_others(&self, shard: u16) -> u32 {
        let owners = self.lock();
        owners.spare.iter().filter(|(other, _)| **other != shard).map(|(_, count)| count).sum()
    }

    fn lock(&self) -> MutexGuard<'_, Owners> {
        let mut owners = self.locked();
        owners.calls += 1;
        owners
    }

    fn locked(&self) -> MutexGuard<'_, Owners> {
        // A panic elsewhere leaves the table whole: each change is a single step.
        self.owners.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    fn allocator() -> ExtentAllocator {
        let superblock = Superblock::with_extents(Uuid::nil(), 1 << 14, 1024);
        ExtentAllocator::new(&superblock.expect("in bounds"))
    }

    fn double(first: u16, second: u16) -> Result<(), ClaimError> {
        Err(ClaimError::DoubleOwner { extent: 3, first, second })
    }

    /// ROLLBACK-2: whichever shard is read back first, and however often the one that goes back is.
    #[test]
    fn what_is_left_to_others_is_whose_who_claims_it() {
        let extents = allocator();
        assert_eq!(extents.claim_unless_owned(3, 0), Ok(()));
        assert_eq!(extents.claim(3, 1), Ok(()));
        assert_eq!(extents.claim(3, 2), double(1, 2));
        assert_eq!(extents.insist(3, 0), double(1, 0));
        let extents = allocator();
        assert_eq!(extents.claim(3, 1), Ok(()));
        assert_eq!(extents.claim_unless_owned(3, 0), Ok(()));
        assert_eq!(extents.insist(3, 0), double(1, 0));
        let (extents, before) = (allocator(), allocator().unowned());
        assert_eq!(extents.claim_unless_owned(3, 0), Ok(()));
        extents.dispute(0);
        assert_eq!(extents.claim_unless_owned(3, 0), Ok(()));
        assert_eq!(extents.claim(3, 1), Ok(()));
        extents.settle_dispute(0);
        assert_eq!(extents.unowned(), before - 1, "it is still the other's");
    }

    /// A larger superblock of the same device counts once that may be, and what was added is unowned.
    #[test]
    fn extents_behind_the_former_end_are_unowned() {
        let small = Superblock::with_extents(Uuid::nil(), 1 << 14, 1024).expect("in bounds");
        let large = Superblock { blocks: 1 << 15, ..small };
        let extents = ExtentAllocator::new(&small);
        assert_eq!(extents.claim(3, 1), Ok(()));
        let before = (extents.unowned(), extents.unowned_blocks());
        assert!(extents.is_of_this(&small) && !extents.is_of_this(&large), "it may not have grown");
        extents.may_grow();
        let others = [
            Superblock { uuid: Uuid::from_u128(7), ..large },
            Superblock { cluster: Some(Uuid::from_u128(7)), ..large },
            Superblock { blocks: small.blocks - 256, ..small },
        ];
        assert!(others.iter().all(|other| !extents.is_of_this(other)));
        assert_eq!((extents.unowned(), extents.unowned_blocks()), before);
        assert!(extents.is_of_this(&small), "it may also be as it was");
        assert!(extents.is_of_this(&large) && extents.is_of_this(&large));
        assert!(!extents.is_of_this(&small), "it has grown for good");
        let added = large.extent_count() - small.extent_count();
        assert!(added >= 16);
        assert_eq!(extents.unowned(), before.0 + added);
        let whole = ExtentAllocator::new(&large).unowned_blocks();
        assert_eq!(extents.unowned_blocks(), whole - u64::from(small.extent_blocks));
        assert_eq!(extents.claim(3, 2), double(1, 2), "the owners stay");
        assert_eq!(extents.claim(large.extent_count() - 1, 2), Ok(()));
    }

    /// ROLLBACK-3.
    #[test]
    fn an_extent_a_shard_insists_on_has_one_owner() {
        let extents = allocator();
        assert_eq!(extents.claim_unless_owned(3, 0), Ok(()));
        assert_eq!(extents.insist(3, 0), Ok(()));
        assert_eq!(extents.insist(3, 0), Ok(()));
        assert_eq!(extents.claim(3, 1), double(0, 1));
        // Both go back, and one has something in it.
        let extents = allocator();
        assert_eq!(extents.claim_unless_owned(3, 0), Ok(()));
        assert_eq!(extents.claim_unless_owned(3, 1), Ok(()));
        assert_eq!(extents.insist(3, 1), Ok(()));
        assert_eq!(extents.insist(3, 0), double(1, 0));
    }
}
