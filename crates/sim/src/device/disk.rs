//! The medium and the volatile cache over it, without time.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use units::BLOCK_SIZE;

use super::defects::Defects;
use super::faults::Survival;
use crate::Rng;

pub(super) const SECTOR_BYTES: usize = 512;

/// Shared with the disks of other boots until it changes.
type BlockBytes = Rc<[u8; BLOCK_SIZE]>;
type Medium = BTreeMap<u64, BlockBytes>;

pub(super) struct Disk {
    pub(super) blocks: u64,
    /// The durable content of the medium. Blocks that are not here read as zeroes.
    durable: Medium,
    /// Writes that no flush covers yet, in the order of issue: completed or not.
    unflushed: BTreeMap<u64, Unflushed>,
    /// By block, the last write of it that is durable: one before it that a flush failed is not seen any more.
    newest_durable: BTreeMap<u64, u64>,
    next_write: u64,
    /// Counts changes of all of these.
    pub(super) version: u64,
    /// Blocks whose next reads fail.
    pub(super) unreadable: BTreeSet<u64>,
    /// Blocks that fail for good.
    pub(super) defects: Defects,
}

#[derive(Clone)]
struct Unflushed {
    start: u64,
    bytes: Vec<u8>,
    completed: bool,
    /// A flush that should have covered it failed: no later one does.
    doomed: bool,
}

impl Disk {
    pub(super) fn new(blocks: u64) -> Self {
        Self {
            blocks,
            durable: Medium::new(),
            unflushed: BTreeMap::new(),
            newest_durable: BTreeMap::new(),
            next_write: 0,
            version: 0,
            unreadable: BTreeSet::new(),
            defects: Defects::default(),
        }
    }

    /// A write begins: from now on it may survive a crash. Returns its number.
    pub(super) fn begin_write(&mut self, start: u64, bytes: &[u8]) -> u64 {
        self.next_write += 1;
        self.version += 1;
        let write = Unflushed { start, bytes: bytes.to_vec(), completed: false, doomed: false };
        self.unflushed.insert(self.next_write, write);
        for block in start..start + (bytes.len() / BLOCK_SIZE) as u64 {
            self.unreadable.remove(&block);
        }
        self.next_write
    }

    /// A write is done: reads see it.
    pub(super) fn complete_write(&mut self, number: u64, volatile: bool) {
        self.unflushed.get_mut(&number).expect("still under way").completed = true;
        self.version += 1;
        if !volatile {
            self.make_durable(number);
        }
    }

    /// A write fails: any of its sectors may be on the medium.
    pub(super) fn tear_write(&mut self, number: u64, rng: &mut Rng) {
        let write = self.unflushed.remove(&number).expect("still under way");
        for sector in 0..write.sectors() {
            if rng.one_in(2) && self.defects.can_write(write.block_of(sector)) {
                write.store(&mut self.durable, sector);
            }
        }
    }

    /// A write that never was.
    pub(super) fn cancel_write(&mut self, number: u64) {
        self.unflushed.remove(&number);
    }

    /// The writes that a flush which begins now must cover.
    pub(super) fn completed(&self) -> Vec<u64> {
        self.unflushed.iter().filter(|(_, w)| w.completed && !w.doomed).map(|(n, _)| *n).collect()
    }

    pub(super) fn flush(&mut self, covered: Vec<u64>) {
        for number in covered {
            // Another flush may have been quicker, or have failed meanwhile.
            if self.unflushed.get(&number).is_some_and(|write| !write.doomed) {
                self.make_durable(number);
            }
        }
    }

    pub(super) fn fail_flush(&mut self, covered: Vec<u64>, rng: &mut Rng) {
        for number in covered {
            if rng.one_in(2) {
                self.flush(vec![number]);
            } else {
                self.doom(&[number]);
            }
        }
    }

    /// No flush covers these writes any more.
    pub(super) fn doom(&mut self, writes: &[u64]) {
        for number in writes {
            if let Some(write) = self.unflushed.get_mut(number) {
                write.doomed = true;
            }
        }
    }

    /// The blocks of writes that no flush covers yet.
    pub(super) fn blocks_of(&self, writes: &[u64]) -> impl Iterator<Item = u64> {
        writes.iter().filter_map(|number| self.unflushed.get(number)).flat_map(Unflushed::blocks)
    }

    /// Moves every completed write to the medium.
    pub(super) fn settle(&mut self) {
        let completed: Vec<u64> =
            self.unflushed.iter().filter(|(_, w)| w.completed).map(|(n, _)| *n).collect();
        completed.into_iter().for_each(|number| self.make_durable(number));
    }

    pub(super) fn has_unflushed(&self) -> bool {
        !self.unflushed.is_empty()
    }

    pub(super) fn unflushed_blocks(&self) -> impl Iterator<Item = u64> {
        self.unflushed.iter().flat_map(|(number, write)| {
            write.blocks().filter(|block| self.is_newest(*number, *block))
        })
    }

    /// Returns true if no later write of the block is durable.
    fn is_newest(&self, number: u64, block: u64) -> bool {
        self.newest_durable.get(&block).is_none_or(|durable| *durable < number)
    }

    fn make_durable(&mut self, number: u64) {
        self.version += 1;
        let write = self.unflushed.remove(&number).expect("a write that is unflushed");
        (0..write.sectors()).for_each(|sector| write.store(&mut self.durable, sector));
        self.newest_durable.extend(write.blocks().map(|block| (block, number)));
    }

    pub(super) fn read_block(&self, block: u64, out: &mut [u8]) {
        match self.durable.get(&block) {
            Some(bytes) => out.copy_from_slice(&**bytes),
            None => out.fill(0),
        }
        for (number, write) in self.unflushed.iter().filter(|(_, write)| write.completed) {
            if write.blocks().contains(&block) && self.is_newest(*number, block) {
                let at = (block - write.start) as usize * BLOCK_SIZE;
                out.copy_from_slice(&write.bytes[at..at + BLOCK_SIZE]);
            }
        }
    }

    pub(super) fn block(&self, block: u64) -> Vec<u8> {
        let mut bytes = vec![0; BLOCK_SIZE];
        self.read_block(block, &mut bytes);
        bytes
    }

    /// Returns the content that writes under way bring to the block.
    pub(super) fn under_way(&self, block: u64) -> Vec<Vec<u8>> {
        let open = self.unflushed.values().filter(|write| !write.completed);
        let bytes = open.filter_map(|write| {
            let at = usize::try_from(block.checked_sub(write.start)?).ok()? * BLOCK_SIZE;
            Some(write.bytes.get(at..at + BLOCK_SIZE)?.to_vec())
        });
        bytes.collect()
    }

    /// Flips a bit on the medium; returns what the block held.
    pub(super) fn flip_bit(&mut self, block: u64, bit: usize) -> Vec<u8> {
        let bytes = self.durable.entry(block).or_insert_with(|| Rc::new([0; BLOCK_SIZE]));
        let bytes = Rc::make_mut(bytes);
        let before = bytes.to_vec();
        bytes[bit / 8 % BLOCK_SIZE] ^= 1 << (bit % 8);
        before
    }

    /// Puts `bytes` on the medium.
    pub(super) fn replace(&mut self, block: u64, bytes: &[u8]) {
        for (sector, bytes) in bytes.chunks(SECTOR_BYTES).enumerate() {
            store_sector(&mut self.durable, block, sector, bytes);
        }
    }

    /// Takes a block back to what was durable on `before`.
    pub(super) fn lose(&mut self, block: u64, before: &Self) {
        match before.durable.get(&block) {
            Some(bytes) => self.durable.insert(block, bytes.clone()),
            None => self.durable.remove(&block),
        };
    }

    /// Fills the beginning of each block with bytes that no request wrote.
    pub(super) fn spoil(&mut self, blocks: impl Iterator<Item = u64>) {
        let garbage = [0xD5; SECTOR_BYTES];
        let blocks = blocks.filter(|block| self.defects.can_write(*block));
        blocks.for_each(|block| store_sector(&mut self.durable, block, 0, &garbage));
    }

    pub(super) fn written_blocks(&self) -> impl ExactSizeIterator<Item = u64> {
        self.durable.keys().copied()
    }

    /// The disk as the next boot finds it.
    pub(super) fn after_crash(&self, survival: Survival, rng: &mut Rng) -> Self {
        let mut durable = self.durable.clone();
        let (unreadable, defects) = (self.unreadable.clone(), self.defects.clone());
        let count = self.unflushed.len() as u64;
        let cut = rng.below(count + 1);
        if survival == Survival::Completed {
            let completed = self.unflushed.iter().filter(|(_, write)| write.completed);
            let unflushed = completed.map(|(number, write)| (*number, write.clone())).collect();
            let (next_write, newest_durable) = (self.next_write, self.newest_durable.clone());
            let fresh = Self { next_write, newest_durable, ..Self::new(self.blocks) };
            return Self { durable, unflushed, unreadable, defects, ..fresh };
        }
        for (place, (number, write)) in (0..).zip(&self.unflushed) {
            let sectors = write.sectors();
            let may_survive = |sector| {
                let block = write.block_of(sector);
                self.defects.can_write(block) && self.is_newest(*number, block)
            };
            let whole = |survives: bool| if survives { 0..sectors } else { 0..0 };
            let survivors = match survival {
                Survival::Sectors => {
                    for sector in 0..sectors {
                        if rng.one_in(2) && may_survive(sector) {
                            write.store(&mut durable, sector);
                        }
                    }
                    continue;
                }
                Survival::Writes => whole(rng.one_in(2)),
                Survival::Nothing => whole(false),
                Survival::Everything => whole(true),
                Survival::Completed => unreachable!("the cache goes on"),
                Survival::InFlight => whole(!write.completed),
                Survival::Prefix if place == cut => 0..rng.below(sectors as u64 + 1) as usize,
                Survival::Prefix => whole(place < cut),
                Survival::Suffix => whole(place >= cut),
            };
            if !write.doomed {
                let taken = survivors.filter(|sector| may_survive(*sector));
                taken.for_each(|sector| write.store(&mut durable, sector));
            }
        }
        Self { durable, unreadable, defects, ..Self::new(self.blocks) }
    }
}

impl Unflushed {
    fn sectors(&self) -> usize {
        self.bytes.len() / SECTOR_BYTES
    }

    fn blocks(&self) -> std::ops::Range<u64> {
        self.start..self.start + (self.bytes.len() / BLOCK_SIZE) as u64
    }

    fn block_of(&self, sector: usize) -> u64 {
        self.start + (sector * SECTOR_BYTES / BLOCK_SIZE) as u64
    }

    fn store(&self, medium: &mut Medium, sector: usize) {
        let bytes = &self.bytes[sector * SECTOR_BYTES..][..SECTOR_BYTES];
        store_sector(medium, self.start, sector, bytes);
    }
}

fn store_sector(medium: &mut Medium, start: u64, sector: usize, bytes: &[u8]) {
    let at = sector * SECTOR_BYTES;
    let block = start + (at / BLOCK_SIZE) as u64;
    let target = medium.entry(block).or_insert_with(|| Rc::new([0; BLOCK_SIZE]));
    Rc::make_mut(target)[at % BLOCK_SIZE..][..bytes.len()].copy_from_slice(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A write that a failed flush left in the cache is seen until a later one of the block is durable, and no longer: also in the
    /// next process, and where a power cut chooses what to tear.
    #[test]
    fn what_a_failed_flush_left_behind_is_not_seen_again() {
        for seed in 0..8 {
            let (mut disk, mut rng) = (Disk::new(8), Rng::new(seed));
            let write = |disk: &mut Disk, byte| {
                let number = disk.begin_write(3, &[byte; BLOCK_SIZE]);
                disk.complete_write(number, true);
                number
            };
            let before = write(&mut disk, 1);
            disk.fail_flush(vec![before], &mut rng);
            assert_eq!(disk.block(3)[0], 1);
            write(&mut disk, 2);
            let covered = disk.completed();
            disk.flush(covered);
            assert_eq!(disk.block(3)[0], 2, "seed {seed}");
            assert_eq!(disk.unflushed_blocks().next(), None, "seed {seed}");
            for survival in Survival::ALL {
                let block = disk.after_crash(survival, &mut rng).block(3);
                assert_eq!(block, [2; BLOCK_SIZE], "seed {seed}: {survival:?}");
            }
            let mut next = disk.after_crash(Survival::Completed, &mut rng);
            assert_eq!(next.block(3)[0], 2, "seed {seed}");
            write(&mut next, 3);
            assert_eq!(next.block(3)[0], 3, "seed {seed}");
        }
    }
}
