//! Measurements, by place, load and subject.

use report::Spread;
use serde::Serialize;

use super::bed::Sample;
use super::checkpoints::{Tail, Tails};

/// Random writes of 4 KiB: their depth and name.
pub(super) const WRITES: [(u32, &str); 2] =
    [(1, "random write 4 KiB, depth 1"), (32, "random write 4 KiB, depth 32")];
pub(super) const SEQUENTIAL_WRITE: &str = "sequential write 128 KiB, depth 8";
pub(super) const READ_BACK: &str = "sequential read 128 KiB, depth 8";
/// Reads of a volume that was overwritten at random.
pub(super) const AGED: &str = "the same after random overwriting";

/// The device or volume that was written or read.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Subject {
    /// The device itself, at the same durability.
    Raw,
    /// The same, with a sum of each block taken.
    Checked,
    /// Blocks of a volume that hold data.
    Overwrite,
    /// A volume that was empty.
    Thin,
    /// A volume behind the server.
    Farflash,
    /// An image behind qemu-nbd.
    Qcow2,
}

/// Identifies a measurement.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
pub(crate) struct Key {
    pub(crate) place: &'static str,
    pub(crate) load: &'static str,
    pub(crate) subject: Subject,
}

/// Bytes and flushes that writes cause.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Written {
    pub(crate) per_byte: f64,
    pub(crate) flushes_per_request: f64,
}

/// All repetitions of one measurement, in the order of the rounds.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    #[serde(flatten)]
    pub(crate) key: Key,
    pub(crate) samples: Vec<Sample>,
}

/// The same for what writes cause.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct WrittenRow {
    pub(crate) place: &'static str,
    pub(crate) pattern: &'static str,
    pub(crate) samples: Vec<Written>,
}

/// Everything that was measured.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Samples {
    pub(crate) rows: Vec<Row>,
    pub(crate) written: Vec<WrittenRow>,
    pub(crate) tails: Vec<Tails>,
}

impl Subject {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Checked => "raw, checked",
            Self::Overwrite => "engine, overwrites",
            Self::Thin => "engine, thin",
            Self::Farflash => "farflash",
            Self::Qcow2 => "qemu-nbd, qcow2",
        }
    }
}

impl Samples {
    pub(super) fn add(&mut self, key: Key, sample: Sample) {
        match self.rows.iter_mut().find(|row| row.key == key) {
            Some(row) => row.samples.push(sample),
            None => self.rows.push(Row { key, samples: vec![sample] }),
        }
    }

    pub(super) fn add_written(
        &mut self,
        place: &'static str,
        pattern: &'static str,
        sample: Written,
    ) {
        let of = |row: &&mut WrittenRow| row.place == place && row.pattern == pattern;
        match self.written.iter_mut().find(of) {
            Some(row) => row.samples.push(sample),
            None => self.written.push(WrittenRow { place, pattern, samples: vec![sample] }),
        }
    }

    pub(super) fn add_tails(&mut self, place: &'static str, without: Tail, with: Tail) {
        match self.tails.iter_mut().find(|tails| tails.place == place) {
            Some(tails) => {
                tails.without.push(without);
                tails.with.push(with);
            }
            None => self.tails.push(Tails { place, without: vec![without], with: vec![with] }),
        }
    }

    /// Takes in what was measured elsewhere.
    pub(super) fn join(&mut self, other: Self) {
        self.rows.extend(other.rows);
        self.written.extend(other.written);
        self.tails.extend(other.tails);
    }

    pub(super) fn get(&self, key: Key) -> Option<&Row> {
        self.rows.iter().find(|row| row.key == key)
    }

    /// The rate of `measured` as a share of that of `against`, within each round.
    pub(super) fn share(&self, measured: Key, against: Key) -> Option<Spread> {
        let pairs = self.get(measured)?.samples.iter().zip(&self.get(against)?.samples);
        let shares: Vec<f64> = pairs
            .map(|(measured, against)| measured.requests_per_second / against.requests_per_second)
            .collect();
        Spread::of(&shares)
    }

    pub(super) fn written(&self, place: &str, pattern: &str) -> Option<Spread> {
        let row = self.written.iter().find(|row| row.place == place && row.pattern == pattern)?;
        row.spread(|written| written.per_byte)
    }
}

impl Row {
    pub(super) fn spread(&self, of: impl Fn(&Sample) -> Option<f64>) -> Option<Spread> {
        Spread::of(&self.samples.iter().filter_map(of).collect::<Vec<f64>>())
    }
}

impl WrittenRow {
    pub(super) fn spread(&self, of: impl Fn(&Written) -> f64) -> Option<Spread> {
        Spread::of(&self.samples.iter().map(of).collect::<Vec<f64>>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(subject: Subject) -> Key {
        Key { place: "file", load: READ_BACK, subject }
    }

    fn sample(requests_per_second: f64) -> Sample {
        Sample { requests_per_second, mean_us: 1.0, p99_us: 1.0, device_reads_per_request: None }
    }

    /// Noise hits both sides of a round alike, and must not show in a share.
    #[test]
    fn shares_are_taken_within_a_round() {
        let mut samples = Samples::default();
        for noise in [1.0, 0.25, 3.0] {
            samples.add(key(Subject::Raw), sample(100.0 * noise));
            samples.add(key(Subject::Thin), sample(90.0 * noise));
        }
        let share = samples.share(key(Subject::Thin), key(Subject::Raw)).expect("both measured");
        assert!((share.low - 0.9).abs() < 1e-9 && (share.high - 0.9).abs() < 1e-9);
        assert!(samples.share(key(Subject::Qcow2), key(Subject::Raw)).is_none());
    }
}
