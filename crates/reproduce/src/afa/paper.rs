//! Results of "Performance Analysis of NVMe SSD-based All-flash Array Systems", with the place of each.
//!
//! The figures themselves are curves without numbers; these are the numbers that the text gives.

use super::Configuration;

/// A number of the paper.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stated {
    pub(super) value: f64,
    pub(super) source: &'static str,
}

/// Longest read, µs: "approximately 5 msec", "about 600", "around 90".
pub(super) const LONGEST_DEFAULT: Stated = Stated { value: 5_000.0, source: "IV-A, figure 6" };
pub(super) const LONGEST_CHRT: Stated = Stated { value: 600.0, source: "IV-B, figure 7" };
pub(super) const LONGEST_IRQ: Stated = Stated { value: 600.0, source: "IV-E, figure 9" };
pub(super) const LONGEST_FIRMWARE: Stated = Stated { value: 90.0, source: "IV-E, figure 11" };
/// Standard deviation over drives of the longest read, µs.
pub(super) const DEVIATION_DEFAULT: Stated = Stated { value: 1_644.0, source: "IV-F, figure 12" };
pub(super) const DEVIATION_IRQ: Stated = Stated { value: 4.0, source: "IV-F, figure 12" };
/// Factors by which all steps improve mean and deviation of the longest read.
pub(super) const FACTOR_MEAN: Stated = Stated { value: 8.0, source: "abstract" };
pub(super) const FACTOR_DEVIATION: Stated = Stated { value: 400.0, source: "abstract" };
/// Reads of a drive between two spikes: "around 500,000 and 2,300,000".
pub(super) const READS_BETWEEN_SPIKES: Stated =
    Stated { value: 1_800_000.0, source: "IV-E, figure 10" };
/// Mean read behind the switches, µs.
pub(super) const MEAN_READ: Stated = Stated { value: 30.0, source: "IV-A" };
/// Throughput of 64 threads, GB/s.
pub(super) const THROUGHPUT: Stated = Stated { value: 8.3, source: "IV-G" };

/// Table II, in the order of its rows.
pub(super) const TABLE_2: [Configuration; 4] = [
    Configuration {
        drives_per_core: 4,
        interrupts_per_cpu: 2,
        threads_per_cpu: 2,
        threads: 64,
        runs: 1,
    },
    Configuration {
        drives_per_core: 2,
        interrupts_per_cpu: 1,
        threads_per_cpu: 1,
        threads: 32,
        runs: 2,
    },
    Configuration {
        drives_per_core: 1,
        interrupts_per_cpu: 1,
        threads_per_cpu: 1,
        threads: 16,
        runs: 4,
    },
    // "1 FIO thread on the entire system"; the other columns are empty.
    Configuration {
        drives_per_core: 1,
        interrupts_per_cpu: 1,
        threads_per_cpu: 1,
        threads: 1,
        runs: 64,
    },
];
