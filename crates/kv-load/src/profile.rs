//! Loads of key-value stores on Flash, by the letters of table 1 of "Flash Storage Disaggregation" (EuroSys'16).
//!
//! The paper describes the first one: keys of 17 to 21 bytes, values that grow by 100 bytes up to 10 kB. Of the others it has
//! what they read and write of Flash. So this much is chosen here: a value grows to the size of a read of Flash, by a
//! hundredth of that at a time; and the ratio of reads and writes is that of the table's reads to its written bytes, if
//! compaction writes each value that changed [`AMPLIFICATION`] times.

use crate::sizes::Sizes;

/// Times that a value is written to Flash for one change; compactions of levels usually write ten to thirty.
const AMPLIFICATION: f64 = 10.0;

/// A load.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Profile {
    /// Its letter, as small one.
    pub name: &'static str,
    /// The size to which a value grows; `--append-max` of the datastore.
    pub value_max: u32,
    /// Share of reads.
    pub read_share: f64,
}

impl Profile {
    /// All of them.
    pub const ALL: [Self; 4] = [
        // Mean reads/s for each TB, bytes of a read, writes/s for each TB, bytes of a write.
        Self::of_flash("a", 6e3, 10_000, 100.0 * 500e3),
        Self::of_flash("b", 4e3, 50_000, 1000.0 * 700e3),
        // 75 000 for 1 % of the time are in the mean.
        Self::of_flash("c", 3.72e3, 15_000, 500.0 * 2e6),
        Self::of_flash("d", 3e3, 25_000, 150.0 * 500e3),
    ];

    const fn of_flash(name: &'static str, reads: f64, value_max: u32, written: f64) -> Self {
        let sets = written / value_max as f64 / AMPLIFICATION;
        Self { name, value_max, read_share: reads / (reads + sets) }
    }

    /// Sizes of keys.
    #[must_use]
    pub fn key_sizes(&self) -> Sizes {
        Sizes::Uniform(17, 21)
    }

    /// Sizes of what is written, which a datastore with `--set append` appends.
    #[must_use]
    pub fn value_sizes(&self) -> Sizes {
        Sizes::Fixed(self.value_max / 100)
    }

    /// Sizes of values that have grown for some time, with which a store is filled.
    #[must_use]
    pub fn grown_sizes(&self) -> Sizes {
        Sizes::Uniform(self.value_max / 100, self.value_max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first one as the paper describes it, and all in the order that the table gives: the third writes most.
    #[test]
    fn loads_follow_from_the_table() {
        let [a, b, c, d] = Profile::ALL;
        assert_eq!((a.value_max, a.value_sizes()), (10_000, Sizes::Fixed(100)));
        assert_eq!(a.key_sizes(), Sizes::Uniform(17, 21));
        let per_set = |profile: Profile| profile.read_share / (1.0 - profile.read_share);
        assert!((per_set(a) - 12.0).abs() < 0.01 && (per_set(d) - 10.0).abs() < 0.01);
        assert!((per_set(b) - 4.0 / 1.4).abs() < 0.01, "{b:?}");
        assert!((per_set(c) - 3.72 / 6.667).abs() < 0.01, "{c:?}");
    }
}
