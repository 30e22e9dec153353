//! The load: which requests, with which keys and values.

use crate::keys::{Chooser, KEY_LEN_MIN, Popularity};
use crate::sizes::Sizes;
use random::Rng;
use serde::{Deserialize, Serialize};

/// Values longer than this would make the generator the bottleneck.
pub const VALUE_LEN_MAX: u32 = 1 << 20;
/// The longest key that the datastore takes.
const KEY_LEN_MAX: u32 = 32 << 10;

/// The command of a write.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WriteCommand {
    /// `SET`. A datastore with `--set append` appends.
    Set,
    /// `APPEND`, which also reads the value's length.
    Append,
}

/// A description of requests.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Workload {
    /// Number of keys.
    pub keys: u64,
    /// Sizes of keys; the size of a key is always the same.
    pub key_sizes: Sizes,
    /// Sizes of what is written.
    pub value_sizes: Sizes,
    /// Popularity of keys.
    pub popularity: Popularity,
    /// Share of reads, from 0 to 1.
    #[serde(with = "crate::exact")]
    pub read_share: f64,
    /// The command of writes.
    pub write: WriteCommand,
    /// The seed of all chance.
    pub seed: u64,
}

/// A load that cannot be made.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum WorkloadError {
    /// No keys.
    #[error("a load needs at least one key")]
    NoKeys,
    /// The share of reads is none.
    #[error("the share of reads is {0}, and has to be from 0 to 1")]
    BadShare(f64),
    /// Keys too short to be told apart, or too long.
    #[error("keys of {0} bytes cannot be made; use {KEY_LEN_MIN} to {KEY_LEN_MAX}")]
    BadKeyLen(u32),
    /// Values too long.
    #[error("values of {0} bytes are too long; {VALUE_LEN_MAX} is the most")]
    BadValueLen(u32),
}

/// The kind of a request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Kind {
    Read,
    Write { len: u32 },
}

impl Workload {
    /// Checks what single fields do not say.
    ///
    /// # Errors
    ///
    /// The load cannot be made.
    pub fn check(&self) -> Result<(), WorkloadError> {
        if self.keys == 0 {
            return Err(WorkloadError::NoKeys);
        }
        if !(0.0..=1.0).contains(&self.read_share) {
            return Err(WorkloadError::BadShare(self.read_share));
        }
        let shortest = self.key_sizes.min().filter(|len| *len < KEY_LEN_MIN);
        let longest = self.key_sizes.max().filter(|len| *len > KEY_LEN_MAX);
        if let Some(len) = shortest.or(longest) {
            return Err(WorkloadError::BadKeyLen(len));
        }
        match self.value_sizes.max().filter(|len| *len > VALUE_LEN_MAX) {
            Some(len) => Err(WorkloadError::BadValueLen(len)),
            None => Ok(()),
        }
    }
}

/// Draws the requests of one thread.
#[derive(Clone, Debug)]
pub(crate) struct Drawer {
    chooser: Chooser,
    read_share: f64,
    value_sizes: Sizes,
    rng: Rng,
    /// Keys that are written once, in order, instead of what is drawn.
    fill: Option<std::ops::Range<u64>>,
}

impl Drawer {
    pub(crate) fn new(workload: &Workload, thread: u64) -> Self {
        Self {
            chooser: Chooser::new(workload.popularity, workload.keys),
            read_share: workload.read_share,
            value_sizes: workload.value_sizes,
            rng: Rng::of_stream(workload.seed, thread),
            fill: None,
        }
    }

    /// Writes each key of a range once.
    pub(crate) fn filling(workload: &Workload, thread: u64, keys: std::ops::Range<u64>) -> Self {
        Self { fill: Some(keys), ..Self::new(workload, thread) }
    }

    pub(crate) fn rng(&mut self) -> &mut Rng {
        &mut self.rng
    }

    /// The next request; `None`: all keys were written.
    pub(crate) fn next(&mut self) -> Option<(u64, Kind)> {
        let write =
            |rng: &mut Rng, sizes: &Sizes| Kind::Write { len: sizes.draw(rng, 0, VALUE_LEN_MAX) };
        if let Some(keys) = &mut self.fill {
            let key = keys.next()?;
            return Some((key, write(&mut self.rng, &self.value_sizes)));
        }
        let key = self.chooser.draw(&mut self.rng);
        let reads = self.rng.unit() < self.read_share;
        Some((key, if reads { Kind::Read } else { write(&mut self.rng, &self.value_sizes) }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(crate) fn workload() -> Workload {
        Workload {
            keys: 1000,
            key_sizes: Sizes::Uniform(17, 21),
            value_sizes: Sizes::Fixed(100),
            popularity: Popularity::Uniform,
            read_share: 0.9,
            write: WriteCommand::Set,
            seed: 1,
        }
    }

    #[test]
    fn reads_have_their_share() {
        let mut drawer = Drawer::new(&workload(), 0);
        let reads = (0..100_000).filter(|_| matches!(drawer.next(), Some((_, Kind::Read)))).count();
        assert!((89_600..90_400).contains(&reads), "{reads}");
    }

    #[test]
    fn filling_writes_each_key_once() {
        let mut drawer = Drawer::filling(&workload(), 0, 10..15);
        let all: Vec<_> = std::iter::from_fn(|| drawer.next()).collect();
        assert_eq!(all, (10..15).map(|key| (key, Kind::Write { len: 100 })).collect::<Vec<_>>());
    }

    #[test]
    fn loads_that_cannot_be_made_are_refused() {
        assert_eq!(workload().check(), Ok(()));
        let cases = [
            (Workload { keys: 0, ..workload() }, WorkloadError::NoKeys),
            (Workload { read_share: 1.5, ..workload() }, WorkloadError::BadShare(1.5)),
            (Workload { key_sizes: Sizes::Fixed(8), ..workload() }, WorkloadError::BadKeyLen(8)),
            (
                Workload { value_sizes: Sizes::Fixed(2 << 20), ..workload() },
                WorkloadError::BadValueLen(2 << 20),
            ),
        ];
        for (workload, error) in cases {
            assert_eq!(workload.check(), Err(error));
        }
    }
}
