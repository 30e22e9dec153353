//! Leaves in memory: as compact as on the device, and searched where they lie.

use layout::{Mapping, PackedMapping, key_width};
use situations::{Situation, situation_if};
use units::{LbaRange, MetadataSize, Pba};

use super::capacity::leaf_capacity;
use super::keys::Keys;
use super::metadata::Metadata;
use super::run::Run;
use crate::Neighbours;
use crate::sabotage::{Sabotage, broken};

/// The width of keys of leaves that hold most entries.
pub(super) const WIDTH_LEAST: usize = 2;
/// The most memory that the entries of a leaf take.
pub(crate) const LEAF_BYTES_MAX: usize = bytes_max(MetadataSize::None);
const _: () = {
    let mut of = 1;
    while of < MetadataSize::ALL.len() {
        assert!(bytes_max(MetadataSize::ALL[of]) <= LEAF_BYTES_MAX);
        of += 1;
    }
};
/// The most memory that the entries of a leaf take with so much metadata.
const fn bytes_max(metadata: MetadataSize) -> usize {
    let entry = size_of::<PackedMapping>() + metadata.bytes();
    let fixed = if metadata.is_none() { 0 } else { size_of::<Metadata>() };
    // Room for entries stays from when keys were narrow; room for keys is allocated with each form.
    let keys = max(
        layout::leaf_capacity(4, metadata) * size_of::<u32>(),
        layout::leaf_capacity(7, metadata) * size_of::<u64>(),
    );
    fixed + layout::leaf_capacity(WIDTH_LEAST, metadata) * entry + keys
}

const fn max(a: usize, b: usize) -> usize {
    if a > b { a } else { b }
}

/// Entries of a volume map or table.
///
/// - LEAF-1: what a leaf holds fits into a block: [`layout::leaf_capacity`] for the width of its keys.
/// - LEAF-2: an entry's metadata comes, moves and goes with it.
#[derive(Clone, Debug)]
pub struct Leaf {
    keys: Keys,
    mappings: Vec<PackedMapping>,
    /// Nothing where blocks have none.
    metadata: Option<Box<Metadata>>,
}

/// The outcome of an insertion.
#[derive(Debug, Eq, PartialEq)]
pub(crate) enum Inserted {
    /// The key was there; this is what it led to.
    Replaced(Mapping),
    /// The key is new.
    Added,
    /// LEAF-1: the leaf must be split before.
    Full,
}

/// The part of a run that a leaf took: keys that were present, or else keys that were not.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct RunPart {
    pub replaced: usize,
    pub added: usize,
}

impl Leaf {
    pub(crate) fn single(key: u64, mapping: Mapping, metadata: &[u8]) -> Self {
        let size = MetadataSize::from_bytes(metadata.len() as u64);
        let size = size.expect("a block has metadata of a size that there is");
        Self::from_entries([(key, mapping.into())].into_iter(), size, metadata)
    }

    /// A leaf of entries in ascending order, which fit, each with its metadata.
    pub(crate) fn from_entries(
        entries: impl Iterator<Item = (u64, PackedMapping)>,
        size: MetadataSize,
        metadata: &[u8],
    ) -> Self {
        let (keys, mappings): (Vec<u64>, Vec<PackedMapping>) = entries.unzip();
        Self { keys: Keys::compact(&keys), mappings, metadata: Metadata::new(size, metadata) }
    }

    /// The metadata size of each block.
    pub fn metadata_size(&self) -> MetadataSize {
        self.metadata.as_ref().map_or(MetadataSize::None, |metadata| metadata.size)
    }

    /// The metadata of one block.
    #[inline]
    pub fn metadata(&self, index: usize) -> &[u8] {
        self.metadata.as_ref().map_or(&[], |metadata| metadata.get(index))
    }

    /// The metadata of all blocks.
    pub(crate) fn all_metadata(&self) -> &[u8] {
        self.metadata.as_ref().map_or(&[], |metadata| &metadata.bytes)
    }

    /// Returns the number of entries that the leaf may have, with `key` among them (LEAF-1).
    fn capacity_with(&self, key: Option<u64>) -> usize {
        let ends =
            if self.is_empty() { None } else { Some((self.key(0), self.key(self.len() - 1))) };
        let (first, last) = ends.or(key.map(|key| (key, key))).unwrap_or_default();
        let span = key.map_or(last, |key| key.max(last)) - key.map_or(first, |key| key.min(first));
        leaf_capacity(key_width(span), self.metadata_size())
    }

    /// Entries that it has.
    pub fn len(&self) -> usize {
        self.mappings.len()
    }

    /// Returns true if it has none.
    pub fn is_empty(&self) -> bool {
        self.mappings.is_empty()
    }

    /// Memory that the entries take.
    pub fn len_bytes(&self) -> usize {
        let metadata = self.metadata.as_ref();
        let metadata = metadata.map_or(0, |own| size_of::<Metadata>() + own.bytes.capacity());
        self.keys.len_bytes() + self.mappings.capacity() * size_of::<PackedMapping>() + metadata
    }

    /// The key of an entry.
    pub fn key(&self, index: usize) -> u64 {
        self.keys.get(index)
    }

    pub(crate) fn mapping(&self, index: usize) -> Mapping {
        self.mappings[index].into()
    }

    /// Its entries, in the order of their keys.
    pub fn entries(&self) -> impl Iterator<Item = (u64, PackedMapping)> {
        (0..self.len()).map(|index| (self.key(index), self.mappings[index]))
    }

    /// Their keys, in order.
    pub fn keys(&self) -> impl ExactSizeIterator<Item = u64> + Clone {
        (0..self.len()).map(|index| self.key(index))
    }

    pub(crate) fn packed(&self) -> impl ExactSizeIterator<Item = PackedMapping> {
        self.mappings.iter().copied()
    }

    /// Says that `key` will be asked for soon. `true` if the keys have to be searched for it: they are asked for, and
    /// [`Leaf::will_get_searched`] can go on once they are there.
    pub fn will_get(&self, key: u64) -> bool {
        let is_sparse = self.keys.will_search();
        if !is_sparse {
            self.will_get_searched(key);
        }
        is_sparse
    }

    /// Says that `key` will be asked for soon, and searches it.
    pub fn will_get_searched(&self, key: u64) {
        if let Ok(index) = self.search(key) {
            checksum::prefetch(&self.mappings[index]);
        }
    }

    /// Returns the locations of the blocks right before `range`, at its start and right behind it.
    pub fn neighbours(&self, range: LbaRange) -> Neighbours {
        let found = self.search(range.start.0);
        let (index, entries) = match found {
            Ok(index) => (index, range.blocks as usize),
            Err(index) => (index, 0),
        };
        let place = |index: Option<usize>, key: Option<u64>| {
            let index = index.filter(|index| *index < self.len())?;
            (Some(self.key(index)) == key).then(|| self.mapping(index).pba)
        };
        Neighbours {
            before: place(index.checked_sub(1), range.start.0.checked_sub(1)),
            own: found.ok().map(|index| self.mapping(index).pba),
            // Where only a part of the range is mapped, this misses it.
            behind: place(index.checked_add(entries), Some(range.end().0)),
        }
    }

    /// Finds `key`, or the index where it would go.
    #[inline]
    pub(crate) fn search(&self, key: u64) -> Result<usize, usize> {
        self.keys.search(key, self.len())
    }

    pub(crate) fn insert(&mut self, key: u64, mapping: Mapping, metadata: &[u8]) -> Inserted {
        let index = match self.search(key) {
            Ok(index) => {
                if let Some(own) = &mut self.metadata
                    && !broken(Sabotage::KeepOldMetadata)
                {
                    own.set_all(index, metadata);
                }
                let old = std::mem::replace(&mut self.mappings[index], mapping.into());
                return Inserted::Replaced(old.into());
            }
            Err(index) => index,
        };
        if !self.has_room_for(key) {
            return Inserted::Full;
        }
        let capacity = leaf_capacity(WIDTH_LEAST, self.metadata_size());
        self.keys.insert(index, key, self.len(), self.capacity_with(Some(key)));
        grow(&mut self.mappings, capacity);
        self.mappings.insert(index, mapping.into());
        if let Some(own) = &mut self.metadata {
            own.insert(index, metadata);
        }
        Inserted::Added
    }

    /// Puts as much of `run` in, from `key` on, as takes one step: keys that are there and follow each other, or as many
    /// new ones as fit behind the last of a dense leaf, or one. Nothing if the leaf must be split before (LEAF-1). Keys
    /// from `end` on are for the next leaf.
    pub(super) fn put_run(
        &mut self,
        key: u64,
        end: u64,
        run: Run<'_>,
        replaced: impl FnMut(Mapping),
    ) -> RunPart {
        match self.search(key) {
            Ok(index) => self.replace_run(index, key, run, replaced),
            Err(_) if self.is_appended_by(key) => self.append_run(key, end, run),
            Err(_) => {
                let mapping = Mapping { pba: run.start, crc: run.crcs[0] };
                let of_block = &run.metadata[..self.metadata_size().bytes()];
                let is_added = self.insert(key, mapping, of_block) == Inserted::Added;
                RunPart { replaced: 0, added: usize::from(is_added) }
            }
        }
    }

    fn replace_run(
        &mut self,
        index: usize,
        key: u64,
        run: Run<'_>,
        mut replaced: impl FnMut(Mapping),
    ) -> RunPart {
        let most = run.crcs.len().min(self.len() - index);
        let mut count = self.keys.count_in_order(index, key, most);
        if broken(Sabotage::RunFillsGap) {
            count = most.min(count + 1);
        }
        let blocks = (run.start.0..).map(Pba).zip(run.crcs);
        for (place, (pba, crc)) in self.mappings[index..index + count].iter_mut().zip(blocks) {
            let mapping = Mapping { pba, crc: *crc };
            replaced(std::mem::replace(place, mapping.into()).into());
        }
        if let Some(own) = &mut self.metadata
            && !broken(Sabotage::KeepOldMetadata)
        {
            own.set_all(index, &run.metadata[..count * own.size.bytes()]);
        }
        RunPart { replaced: count, added: 0 }
    }

    /// Returns whether `key` comes right behind the last of keys that lie in order.
    fn is_appended_by(&self, key: u64) -> bool {
        matches!(self.keys, Keys::Dense { base } if !self.is_empty() && key == base + self.len() as u64)
    }

    fn append_run(&mut self, key: u64, end: u64, run: Run<'_>) -> RunPart {
        let most = leaf_capacity(WIDTH_LEAST, self.metadata_size());
        let mut of_others = usize::try_from(end - key).unwrap_or(usize::MAX);
        if broken(Sabotage::RunForgetsLeaf) {
            of_others = usize::MAX;
        }
        let count = run.crcs.len().min(most - self.len()).min(of_others);
        situation_if(Situation::RunEndsAtNextLeaf, || count == of_others && count < run.crcs.len());
        while self.mappings.capacity() < self.len() + count {
            let wanted = grown(self.mappings.capacity(), most);
            self.mappings.reserve_exact(wanted - self.len());
        }
        let blocks = (run.start.0..).map(Pba).zip(run.crcs).take(count);
        self.mappings
            .extend(blocks.map(|(pba, crc)| PackedMapping::from(Mapping { pba, crc: *crc })));
        if let Some(own) = &mut self.metadata {
            own.append(&run.metadata[..count * own.size.bytes()]);
        }
        RunPart { replaced: 0, added: count }
    }

    pub(super) fn has_room_for(&self, key: u64) -> bool {
        self.is_empty() || self.len() < self.capacity_with(Some(key))
    }

    /// Makes room for `key` by moving the upper part into a new leaf. At either end only the new key
    /// goes apart, so that ascending and descending fills leave full leaves behind.
    pub(crate) fn split(&mut self, key: u64) -> Self {
        let at = match self.search(key).unwrap_or_else(|index| index) {
            0 => 0,
            index if index == self.len() => index,
            _ => self.len() / 2,
        };
        self.split_at(at)
    }

    /// Moves the entries from `at` on into a new leaf.
    fn split_at(&mut self, at: usize) -> Self {
        let keys = self.keys.split_off(at, self.len());
        let mappings = self.mappings.split_off(at);
        self.mappings.shrink_to_fit();
        let metadata = self.metadata.as_mut().map(|own| own.split_off(at));
        let mut upper = Self { keys, mappings, metadata };
        if broken(Sabotage::SplitLosesFirst) && upper.len() > 1 {
            let first = upper.key(0);
            upper.remove_range(first, first + 1, &mut Vec::new());
        }
        upper
    }

    /// Takes out the entries with keys in `start..end`.
    pub(crate) fn remove_range(&mut self, start: u64, end: u64, out: &mut Vec<(u64, Mapping)>) {
        let from = self.search(start).unwrap_or_else(|index| index);
        let mut to = self.search(end).unwrap_or_else(|index| index);
        if broken(Sabotage::RemoveTakesEnd) {
            to = self.len().min(to + usize::from(self.search(end).is_ok()));
        }
        out.extend((from..to).map(|index| (self.key(index), self.mapping(index))));
        self.keys.drain(from..to, self.len());
        self.mappings.drain(from..to);
        if let Some(own) = &mut self.metadata {
            let each = own.size.bytes();
            own.bytes.drain(from * each..to * each);
        }
    }

    /// All of `lower` and of `upper`, whose keys are higher, if that leaves an eighth of the leaf free.
    pub(super) fn merged(lower: &Self, upper: &Self) -> Option<Self> {
        let len = lower.len() + upper.len();
        if lower.is_empty() || upper.is_empty() {
            return None;
        }
        let span = upper.key(upper.len() - 1) - lower.key(0);
        let size = lower.metadata_size();
        if len > leaf_capacity(key_width(span), size) * 7 / 8 {
            return None;
        }
        let mut metadata = [lower.all_metadata(), upper.all_metadata()];
        if broken(Sabotage::MergeSwapsMetadata) {
            metadata.swap(0, 1);
        }
        let metadata = metadata.concat();
        Some(Self::from_entries(lower.entries().chain(upper.entries()), size, &metadata))
    }

    /// The entries of `leaves`, which follow each other, in `parts` equal parts, if that leaves room in each: a sixteenth,
    /// so that it is not soon done again.
    pub(super) fn spread(leaves: &[&Self], parts: usize) -> Option<Vec<Self>> {
        let (size, len) = (leaves[0].metadata_size(), leaves.iter().map(|leaf| leaf.len()).sum());
        let most = parts * leaf_capacity(WIDTH_LEAST, size) * 15 / 16;
        if leaves.iter().any(|leaf| leaf.is_empty()) || !(parts..=most).contains(&len) {
            return None;
        }
        let entries: Vec<_> = leaves.iter().flat_map(|leaf| leaf.entries()).collect();
        let metadata: Vec<&[u8]> = leaves.iter().map(|leaf| leaf.all_metadata()).collect();
        let metadata = metadata.concat();
        let bounds = (0..parts).map(|part| (part * len / parts, (part + 1) * len / parts));
        let spread = bounds.map(|(from, to)| {
            let part = &entries[from..to];
            // Up to where the next one begins, keys go into this one.
            let end = entries.get(to).map_or(part[part.len() - 1].0, |next| next.0);
            let capacity = leaf_capacity(key_width(end - part[0].0), size);
            let metadata = &metadata[from * size.bytes()..to * size.bytes()];
            let leaf = || Self::from_entries(part.iter().copied(), size, metadata);
            (part.len() * 16 <= capacity * 15).then(leaf)
        });
        spread.collect()
    }
}

/// Gives a vector that is full some room, but never beyond what a full leaf needs.
pub(super) fn grow<T>(vec: &mut Vec<T>, most: usize) {
    if vec.len() == vec.capacity() {
        vec.reserve_exact(grown(vec.len(), most) - vec.len());
    }
}

/// Entries for which there is room when there was only for `len`: twice as many at first, an eighth more
/// where that is much.
pub(super) fn grown(len: usize, most: usize) -> usize {
    (len + len.clamp(4, 16).max(len / 8)).min(most.max(len + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapping(n: u64) -> Mapping {
        Mapping { pba: Pba(n), crc: n as u32 }
    }

    #[test]
    fn dense_leaves_hold_369_entries_and_sparse_ones_fewer() {
        let fill = |step: u64| {
            let mut leaf = Leaf::single(100, mapping(0), &[]);
            (1..).find(|i| leaf.insert(100 + i * step, mapping(*i), &[]) == Inserted::Full)
        };
        assert_eq!((fill(1), fill(300), fill(1 << 45)), (Some(369), Some(312), Some(254)));
    }

    /// LEAF-2, through insertions below, between and above, a split, a removal and a merge.
    #[test]
    fn metadata_stays_with_its_entry() {
        let of = |key: u64| [key as u8; 16];
        let check = |leaf: &Leaf| {
            for (index, key) in leaf.keys().enumerate() {
                assert_eq!(leaf.metadata(index), of(key), "key {key}");
            }
            leaf.len()
        };
        let mut leaf = Leaf::single(50, mapping(1), &of(50));
        for key in (1..50).rev().chain(52..100).chain([51]) {
            assert_eq!(leaf.insert(key, mapping(key), &of(key)), Inserted::Added);
        }
        assert_eq!(check(&leaf), 99);
        let mut upper = leaf.split(40);
        assert_eq!((check(&leaf), check(&upper)), (49, 50));
        upper.remove_range(60, 90, &mut Vec::new());
        assert_eq!(check(&upper), 20);
        let mut leaf = Leaf::merged(&leaf, &upper).expect("room");
        assert_eq!((check(&leaf), leaf.metadata_size()), (69, MetadataSize::Bytes16));
        assert!(matches!(leaf.insert(7, mapping(8), &[9; 16]), Inserted::Replaced(_)));
        assert_eq!(leaf.metadata(6), [9; 16]);
        leaf.remove_range(7, 8, &mut Vec::new());
        let upper = leaf.split(60);
        leaf.remove_range(5, 30, &mut Vec::new());
        let parts = Leaf::spread(&[&leaf, &upper], 3).expect("room");
        assert!(parts.iter().all(|part| check(part).abs_diff(check(&parts[0])) <= 1));
        assert_eq!(parts.iter().map(Leaf::len).sum::<usize>(), leaf.len() + upper.len());
        leaf = Leaf::merged(&leaf, &upper).expect("room");
        assert!(leaf.len_bytes() <= LEAF_BYTES_MAX);
    }

    #[test]
    fn neighbours_are_those_next_to_a_range() {
        let mut leaf = Leaf::single(10, mapping(110), &[]);
        for key in [11, 12, 13, 20] {
            leaf.insert(key, mapping(100 + key), &[]);
        }
        let of = |start, blocks| {
            let Neighbours { before, own, behind } =
                leaf.neighbours(LbaRange::new(units::Lba(start), blocks));
            [before, own, behind].map(|found| found.map_or(0, |pba| pba.0))
        };
        assert_eq!(of(11, 1), [110, 111, 112]);
        assert_eq!(of(11, 2), [110, 111, 113]);
        assert_eq!(of(10, 1), [0, 110, 111]);
        assert_eq!(of(13, 1), [112, 113, 0]);
        assert_eq!(of(14, 6), [113, 0, 120]);
        assert_eq!(of(0, 1), [0, 0, 0]);
        assert_eq!(of(21, 4), [120, 0, 0]);
    }

    #[test]
    fn keys_far_apart_and_below_the_base_are_found_again() {
        let mut leaf = Leaf::single(1 << 40, mapping(1), &[]);
        let keys = [(1 << 40) - 5, 3, (1 << 40) + 70_000, (1 << 40) + 1];
        for key in keys {
            assert_eq!(leaf.insert(key, mapping(key & 0xFFFF), &[]), Inserted::Added);
        }
        for key in keys {
            let index = leaf.search(key).expect("just inserted");
            assert_eq!(leaf.mapping(index), mapping(key & 0xFFFF));
        }
        assert_eq!(leaf.insert(3, mapping(9), &[]), Inserted::Replaced(mapping(3)));
        let upper = leaf.split(4);
        assert_eq!((leaf.len(), upper.len()), (2, 3));
        assert!(matches!(leaf.keys, Keys::Far(_)));
        assert!(matches!(upper.keys, Keys::Wide(_)));
    }
}
