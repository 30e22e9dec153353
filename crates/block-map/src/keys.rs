//! The keys of a leaf in memory, as compact as the distances between them allow.

use std::ops::Range;

use super::leaf::grow;
use crate::sabotage::{Sabotage, broken};

/// Keys, ascending.
#[derive(Clone, Debug)]
pub(super) enum Keys {
    /// One after the other from the leaf's base on: the rule, since most volumes are filled densely
    /// somewhere. There is nothing to search.
    Dense { base: u64 },
    /// Keys that span at most 65 535.
    Narrow(Offsets<u16>),
    /// Keys that span less than 2^32, as they do unless a volume of many TiB is nearly empty.
    Wide(Offsets<u32>),
    /// The keys themselves.
    Far(Vec<u64>),
}

/// Keys as distances from a base, which is at most the first.
#[derive(Clone, Debug)]
pub(super) struct Offsets<T> {
    base: u64,
    offsets: Vec<T>,
}

impl<T: Copy + Ord + Into<u64> + TryFrom<u64>> Offsets<T> {
    fn new(base: u64, keys: impl Iterator<Item = u64>) -> Self {
        let offset = |key| T::try_from(key - base).ok().expect("within the span");
        Self { base, offsets: keys.map(offset).collect() }
    }

    fn key(&self, index: usize) -> u64 {
        self.base + self.offsets[index].into()
    }

    fn fits(&self, key: u64) -> bool {
        key.checked_sub(self.base).is_some_and(|offset| T::try_from(offset).is_ok())
    }

    fn search(&self, key: u64) -> Result<usize, usize> {
        let Some(offset) = key.checked_sub(self.base) else { return Err(0) };
        let Ok(offset) = T::try_from(offset) else { return Err(self.offsets.len()) };
        self.offsets.binary_search(&offset)
    }

    fn insert(&mut self, index: usize, key: u64, most: usize) {
        let offset = T::try_from(key - self.base).ok().expect("it was made to fit");
        grow(&mut self.offsets, most);
        self.offsets.insert(index, offset);
    }
}

impl Keys {
    /// The shortest form of keys in ascending order.
    pub(super) fn compact(keys: &[u64]) -> Self {
        let (Some(&base), Some(&last)) = (keys.first(), keys.last()) else {
            return Self::Dense { base: 0 };
        };
        if last - base == keys.len() as u64 - 1 {
            return Self::Dense { base };
        }
        Self::spanning(base, last, keys.iter().copied())
    }

    /// The shortest form for keys from `low` to `high`.
    fn spanning(low: u64, high: u64, keys: impl Iterator<Item = u64>) -> Self {
        let span = high - low;
        if span <= u64::from(u16::MAX) {
            Self::Narrow(Offsets::new(low, keys))
        } else if span <= u64::from(u32::MAX) {
            Self::Wide(Offsets::new(low, keys))
        } else {
            Self::Far(keys.collect())
        }
    }

    /// Memory that they take.
    pub(super) fn len_bytes(&self) -> usize {
        match self {
            Self::Dense { .. } => 0,
            Self::Narrow(keys) => keys.offsets.capacity() * size_of::<u16>(),
            Self::Wide(keys) => keys.offsets.capacity() * size_of::<u32>(),
            Self::Far(keys) => keys.capacity() * size_of::<u64>(),
        }
    }

    pub(super) fn get(&self, index: usize) -> u64 {
        match self {
            Self::Dense { base } => base + index as u64,
            Self::Narrow(keys) => keys.key(index),
            Self::Wide(keys) => keys.key(index),
            Self::Far(keys) => keys[index],
        }
    }

    /// Counts the keys that follow each other without a gap from `index` on, where `key` is; at
    /// most `most`.
    pub(super) fn count_in_order(&self, index: usize, key: u64, most: usize) -> usize {
        match self {
            Self::Dense { .. } => most,
            _ => (1..most).find(|n| self.get(index + n) != key + *n as u64).unwrap_or(most),
        }
    }

    /// Says that they will be searched soon. `false` if there is nothing to search.
    pub(super) fn will_search(&self) -> bool {
        match self {
            Self::Dense { .. } => return false,
            Self::Narrow(keys) => checksum::prefetch(&keys.offsets[..]),
            Self::Wide(keys) => checksum::prefetch(&keys.offsets[..]),
            Self::Far(keys) => checksum::prefetch(&keys[..]),
        }
        true
    }

    /// Finds `key` among the first `len` keys, or the index where it would go.
    #[inline]
    pub(super) fn search(&self, key: u64, len: usize) -> Result<usize, usize> {
        match self {
            Self::Dense { base } => {
                let Some(offset) = key.checked_sub(*base) else { return Err(0) };
                let index = usize::try_from(offset).unwrap_or(usize::MAX);
                if index < len { Ok(index) } else { Err(len) }
            }
            Self::Narrow(keys) => keys.search(key),
            Self::Wide(keys) => keys.search(key),
            Self::Far(keys) => keys.binary_search(&key),
        }
    }

    /// Puts `key` at `index` of `len`; there are never more than `most`.
    pub(super) fn insert(&mut self, index: usize, key: u64, len: usize, most: usize) {
        self.admit(key, len);
        match self {
            Self::Dense { base } => *base = key.min(*base),
            Self::Narrow(keys) => keys.insert(index, key, most),
            Self::Wide(keys) => keys.insert(index, key, most),
            Self::Far(keys) => {
                grow(keys, most);
                keys.insert(index, key);
            }
        }
        if let Self::Narrow(keys) = self
            && let [first, .., last] = keys.offsets[..]
            && usize::from(last - first) + 1 == keys.offsets.len()
        {
            *self = Self::Dense { base: keys.base + u64::from(first) };
        }
    }

    /// Makes `key` representable.
    fn admit(&mut self, key: u64, len: usize) {
        let fits = match self {
            Self::Dense { base } => {
                if len == 0 {
                    *base = key;
                }
                key == *base + len as u64 || key.checked_add(1) == Some(*base)
            }
            Self::Narrow(keys) => keys.fits(key),
            Self::Wide(keys) => keys.fits(key),
            Self::Far(_) => true,
        };
        if fits {
            return;
        }
        let (first, last) = if len == 0 { (key, key) } else { (self.get(0), self.get(len - 1)) };
        let keys = (0..len).map(|index| self.get(index));
        *self = Self::spanning(first.min(key), last.max(key), keys);
    }

    /// Keeps the first `at` of `len`, and returns the others.
    pub(super) fn split_off(&mut self, at: usize, len: usize) -> Self {
        if let Self::Dense { base } = self {
            return Self::Dense { base: *base + at as u64 };
        }
        let keys: Vec<u64> = (0..len).map(|index| self.get(index)).collect();
        let (lower, upper) = keys.split_at(at);
        *self = Self::compact(lower);
        Self::compact(upper)
    }

    /// Takes out those in `gone`, of `len`.
    pub(super) fn drain(&mut self, gone: Range<usize>, len: usize) {
        if let Self::Dense { base } = self {
            if gone.start == 0 {
                *base += if broken(Sabotage::DrainKeepsBase) { 0 } else { gone.end as u64 };
                return;
            }
            if gone.end == len {
                return;
            }
            let base = *base;
            *self = Self::Narrow(Offsets::new(base, (0..len as u64).map(|index| base + index)));
        }
        match self {
            Self::Dense { .. } => unreachable!("made narrow above"),
            Self::Narrow(keys) => drop(keys.offsets.drain(gone)),
            Self::Wide(keys) => drop(keys.offsets.drain(gone)),
            Self::Far(keys) => drop(keys.drain(gone)),
        }
    }
}
