//! Leaves in memory: as compact as on the device, and searched where they lie.

use layout::{Mapping, PackedMapping, key_width, leaf_capacity};
use units::MetadataSize;

use crate::sabotage::{Sabotage, broken};

/// Widths of keys of leaves that hold most entries, and of those with most among leaves of [`Keys::Wide`].
const WIDTH_LEAST: usize = 2;
const WIDTH_WIDE: usize = 4;
/// The most memory that the entries of a leaf take.
pub(crate) const LEAF_BYTES_MAX: usize = bytes_max(MetadataSize::None);
const _: () = {
    let mut of = 1;
    while of < MetadataSize::ALL.len() {
        assert!(bytes_max(MetadataSize::ALL[of]) <= LEAF_BYTES_MAX);
        of += 1;
    }
};
/// A leaf with fewer entries looks for a neighbour to merge with, or one with a quarter of what it holds.
const LEAF_LOW: usize = 64;

/// The most memory that the entries of a leaf take with so much metadata.
const fn bytes_max(metadata: MetadataSize) -> usize {
    let entry = size_of::<PackedMapping>() + metadata.bytes();
    let fixed = if metadata.is_none() { 0 } else { size_of::<Metadata>() };
    let keys = leaf_capacity(WIDTH_WIDE, metadata) * size_of::<u64>();
    fixed + leaf_capacity(WIDTH_LEAST, metadata) * entry + keys
}

/// Keys of a leaf, ascending.
#[derive(Clone, Debug)]
enum Keys {
    /// One after the other from the leaf's base on: the rule, since most volumes are filled densely
    /// somewhere. There is nothing to search.
    Dense { base: u64 },
    /// Distances from the leaf's base.
    Narrow { base: u64, offsets: Vec<u16> },
    /// The keys themselves, where they lie more than 65 535 apart.
    Wide(Vec<u64>),
}

impl Keys {
    /// The shortest form of keys in ascending order.
    fn compact(keys: Vec<u64>) -> Self {
        let (Some(&base), Some(&last)) = (keys.first(), keys.last()) else {
            return Self::Dense { base: 0 };
        };
        if last - base == keys.len() as u64 - 1 {
            Self::Dense { base }
        } else if last - base <= u64::from(u16::MAX) {
            let offset = |key: &u64| u16::try_from(key - base).expect("within the span");
            Self::Narrow { base, offsets: keys.iter().map(offset).collect() }
        } else {
            Self::Wide(keys)
        }
    }
}

/// Metadata of the blocks that a leaf leads to, in the order of its keys.
#[derive(Clone, Debug)]
struct Metadata {
    size: MetadataSize,
    bytes: Vec<u8>,
}

impl Metadata {
    fn new(size: MetadataSize, bytes: &[u8]) -> Option<Box<Self>> {
        (!size.is_none()).then(|| Box::new(Self { size, bytes: bytes.to_vec() }))
    }

    fn get(&self, index: usize) -> &[u8] {
        &self.bytes[index * self.size.bytes()..][..self.size.bytes()]
    }

    fn set(&mut self, index: usize, of_block: &[u8]) {
        let each = self.size.bytes();
        self.bytes[index * each..][..each].copy_from_slice(of_block);
    }

    fn insert(&mut self, index: usize, of_block: &[u8]) {
        let each = self.size.bytes();
        assert_eq!(of_block.len(), each, "each block has its metadata");
        if self.bytes.len() + each > self.bytes.capacity() {
            let most = leaf_capacity(WIDTH_LEAST, self.size) * each;
            let wanted = (self.bytes.len().max(4 * each) * 2).min(most);
            self.bytes.reserve_exact(wanted - self.bytes.len());
        }
        let at = index * each;
        self.bytes.splice(at..at, of_block.iter().copied());
    }

    fn split_off(&mut self, index: usize) -> Box<Self> {
        let bytes = self.bytes.split_off(index * self.size.bytes());
        Box::new(Self { size: self.size, bytes })
    }
}

/// Entries of a volume map or table.
///
/// - L1: what a leaf holds fits into a block: [`layout::leaf_capacity`] for the width of its keys.
/// - L2: an entry's metadata comes, moves and goes with it.
#[derive(Clone, Debug)]
pub(crate) struct Leaf {
    keys: Keys,
    mappings: Vec<PackedMapping>,
    /// Nothing where blocks have none.
    metadata: Option<Box<Metadata>>,
}

/// What became of an insertion.
#[derive(Debug, Eq, PartialEq)]
pub(crate) enum Inserted {
    /// The key was there; this is what it led to.
    Replaced(Mapping),
    /// The key is new.
    Added,
    /// L1: the leaf must be split before.
    Full,
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
        Self { keys: Keys::compact(keys), mappings, metadata: Metadata::new(size, metadata) }
    }

    /// What each block has.
    pub(crate) fn metadata_size(&self) -> MetadataSize {
        self.metadata.as_ref().map_or(MetadataSize::None, |metadata| metadata.size)
    }

    /// The metadata of one block.
    #[inline]
    pub(crate) fn metadata(&self, index: usize) -> &[u8] {
        self.metadata.as_ref().map_or(&[], |metadata| metadata.get(index))
    }

    /// The metadata of all blocks.
    pub(crate) fn all_metadata(&self) -> &[u8] {
        self.metadata.as_ref().map_or(&[], |metadata| &metadata.bytes)
    }

    /// Whether it should merge with a neighbour.
    pub(crate) fn is_low(&self) -> bool {
        let quarter = leaf_capacity(WIDTH_LEAST, self.metadata_size()) / 4;
        self.len() < LEAF_LOW.min(quarter)
    }

    pub(crate) fn len(&self) -> usize {
        self.mappings.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.mappings.is_empty()
    }

    /// Memory that the entries take.
    pub(crate) fn len_bytes(&self) -> usize {
        let keys = match &self.keys {
            Keys::Dense { .. } => 0,
            Keys::Narrow { offsets, .. } => offsets.capacity() * size_of::<u16>(),
            Keys::Wide(keys) => keys.capacity() * size_of::<u64>(),
        };
        let metadata = self.metadata.as_ref();
        let metadata = metadata.map_or(0, |own| size_of::<Metadata>() + own.bytes.capacity());
        keys + self.mappings.capacity() * size_of::<PackedMapping>() + metadata
    }

    pub(crate) fn key(&self, index: usize) -> u64 {
        match &self.keys {
            Keys::Dense { base } => base + index as u64,
            Keys::Narrow { base, offsets } => base + u64::from(offsets[index]),
            Keys::Wide(keys) => keys[index],
        }
    }

    pub(crate) fn mapping(&self, index: usize) -> Mapping {
        self.mappings[index].into()
    }

    pub(crate) fn entries(&self) -> impl Iterator<Item = (u64, PackedMapping)> {
        (0..self.len()).map(|index| (self.key(index), self.mappings[index]))
    }

    pub(crate) fn keys(&self) -> impl ExactSizeIterator<Item = u64> + Clone {
        (0..self.len()).map(|index| self.key(index))
    }

    pub(crate) fn packed(&self) -> impl ExactSizeIterator<Item = PackedMapping> {
        self.mappings.iter().copied()
    }

    /// Where `key` is, or where it would go.
    #[inline]
    pub(crate) fn search(&self, key: u64) -> Result<usize, usize> {
        match &self.keys {
            Keys::Dense { base } => {
                let Some(offset) = key.checked_sub(*base) else { return Err(0) };
                let index = usize::try_from(offset).unwrap_or(usize::MAX);
                if index < self.len() { Ok(index) } else { Err(self.len()) }
            }
            Keys::Narrow { base, offsets } => {
                let Some(offset) = key.checked_sub(*base) else { return Err(0) };
                let Ok(offset) = u16::try_from(offset) else { return Err(offsets.len()) };
                offsets.binary_search(&offset)
            }
            Keys::Wide(keys) => keys.binary_search(&key),
        }
    }

    pub(crate) fn insert(&mut self, key: u64, mapping: Mapping, metadata: &[u8]) -> Inserted {
        let index = match self.search(key) {
            Ok(index) => {
                if let Some(own) = &mut self.metadata
                    && !broken(Sabotage::KeepOldMetadata)
                {
                    own.set(index, metadata);
                }
                let old = std::mem::replace(&mut self.mappings[index], mapping.into());
                return Inserted::Replaced(old.into());
            }
            Err(index) => index,
        };
        if !self.has_room_for(key) {
            return Inserted::Full;
        }
        self.admit_key(key);
        let size = self.metadata_size();
        let capacity = leaf_capacity(WIDTH_LEAST, size);
        grow(&mut self.mappings, capacity);
        self.mappings.insert(index, mapping.into());
        if let Some(own) = &mut self.metadata {
            own.insert(index, metadata);
        }
        match &mut self.keys {
            Keys::Dense { base } => *base = key.min(*base),
            Keys::Narrow { base, offsets } => {
                let offset = u16::try_from(key - *base).expect("admitted");
                grow(offsets, capacity);
                offsets.insert(index, offset);
            }
            Keys::Wide(keys) => {
                grow(keys, leaf_capacity(WIDTH_WIDE, size));
                keys.insert(index, key);
            }
        }
        if let Keys::Narrow { base, offsets } = &self.keys
            && let [first, .., last] = offsets[..]
            && usize::from(last - first) + 1 == offsets.len()
        {
            self.keys = Keys::Dense { base: *base + u64::from(first) };
        }
        Inserted::Added
    }

    fn has_room_for(&self, key: u64) -> bool {
        if self.is_empty() {
            return true;
        }
        let (first, last) = (self.key(0), self.key(self.len() - 1));
        let span = last.max(key) - first.min(key);
        self.len() < leaf_capacity(key_width(span), self.metadata_size())
    }

    /// Makes the key representable.
    fn admit_key(&mut self, key: u64) {
        if let Keys::Dense { base } = &mut self.keys {
            if self.mappings.is_empty() {
                *base = key;
            }
            if key == *base + self.mappings.len() as u64 || key.checked_add(1) == Some(*base) {
                return;
            }
            self.make_sparse();
        }
        let Keys::Narrow { base, offsets } = &mut self.keys else { return };
        if key.checked_sub(*base).is_some_and(|offset| u16::try_from(offset).is_ok()) {
            return;
        }
        let first = offsets.first().map_or(key, |offset| *base + u64::from(*offset));
        let last = offsets.last().map_or(key, |offset| *base + u64::from(*offset));
        let low = first.min(key);
        if last.max(key) - low <= u64::from(u16::MAX) {
            let rebased = |offset: &u16| *base + u64::from(*offset) - low;
            *offsets = offsets
                .iter()
                .map(|offset| u16::try_from(rebased(offset)).expect("within the span"))
                .collect();
            *base = low;
        } else {
            self.keys = Keys::Wide(offsets.iter().map(|o| *base + u64::from(*o)).collect());
        }
    }

    /// Gives each key a place of its own, so that there can be gaps between them.
    fn make_sparse(&mut self) {
        if let Keys::Dense { base } = self.keys {
            let len = u16::try_from(self.len()).expect("L1");
            self.keys = Keys::Narrow { base, offsets: (0..len).collect() };
        }
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
        let mappings = self.mappings.split_off(at);
        let metadata = self.metadata.as_mut().map(|own| own.split_off(at));
        let keys = match &mut self.keys {
            Keys::Dense { base } => Keys::Dense { base: *base + at as u64 },
            Keys::Narrow { base, offsets } => {
                let upper = offsets.split_off(at);
                Keys::compact(upper.into_iter().map(|o| *base + u64::from(o)).collect())
            }
            Keys::Wide(keys) => {
                let upper = keys.split_off(at);
                self.keys = Keys::compact(std::mem::take(keys));
                Keys::compact(upper)
            }
        };
        Self { keys, mappings, metadata }
    }

    /// Takes out the entries with keys in `start..end`.
    pub(crate) fn remove_range(&mut self, start: u64, end: u64, out: &mut Vec<(u64, Mapping)>) {
        let from = self.search(start).unwrap_or_else(|index| index);
        let to = self.search(end).unwrap_or_else(|index| index);
        out.extend((from..to).map(|index| (self.key(index), self.mapping(index))));
        if from > 0 && to < self.len() {
            self.make_sparse();
        }
        self.mappings.drain(from..to);
        if let Some(own) = &mut self.metadata {
            let each = own.size.bytes();
            own.bytes.drain(from * each..to * each);
        }
        match &mut self.keys {
            Keys::Dense { base } if from == 0 => *base += to as u64,
            Keys::Dense { .. } => {}
            Keys::Narrow { offsets, .. } => drop(offsets.drain(from..to)),
            Keys::Wide(keys) => drop(keys.drain(from..to)),
        }
    }

    /// Takes in all of `upper`, whose keys are higher, if the sum leaves a quarter of the leaf free.
    pub(crate) fn try_merge(&mut self, upper: &Self) -> bool {
        let len = self.len() + upper.len();
        if self.is_empty() || upper.is_empty() {
            return false;
        }
        let span = upper.key(upper.len() - 1) - self.key(0);
        let size = self.metadata_size();
        if len > leaf_capacity(key_width(span), size) * 3 / 4 {
            return false;
        }
        let metadata = [self.all_metadata(), upper.all_metadata()].concat();
        *self = Self::from_entries(self.entries().chain(upper.entries()), size, &metadata);
        true
    }
}

/// Doubles, but never beyond what a full leaf needs.
pub(super) fn grow<T>(vec: &mut Vec<T>, capacity: usize) {
    if vec.len() == vec.capacity() {
        vec.reserve_exact((vec.len().max(4) * 2).min(capacity.max(vec.len() + 1)) - vec.len());
    }
}

#[cfg(test)]
mod tests {
    use units::Pba;

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

    /// L2, through insertions below, between and above, a split, a removal and a merge.
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
        assert!(leaf.try_merge(&upper));
        assert_eq!((check(&leaf), leaf.metadata_size()), (69, MetadataSize::Bytes16));
        assert!(matches!(leaf.insert(7, mapping(8), &[9; 16]), Inserted::Replaced(_)));
        assert_eq!(leaf.metadata(6), [9; 16]);
        assert!(leaf.len_bytes() <= LEAF_BYTES_MAX);
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
        assert!(matches!(leaf.keys, Keys::Wide(_)));
        assert!(matches!(upper.keys, Keys::Wide(_)));
    }
}
