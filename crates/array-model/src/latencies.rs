//! Latencies of drives, and what the study shows of them.

use hdrhistogram::Histogram;

/// Longer latencies count as this one, but for the maximum.
const NS_MAX: u64 = 1_000_000_000;

/// A figure of a drive: a column of the study's plots.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Column {
    /// The mean.
    Mean,
    /// The percentile with so many nines: 3 is 99.9 %.
    Nines(u8),
    /// The longest.
    Max,
}

impl Column {
    /// All of them, in the order of the study's plots.
    pub const ALL: [Self; 7] = [
        Self::Mean,
        Self::Nines(2),
        Self::Nines(3),
        Self::Nines(4),
        Self::Nines(5),
        Self::Nines(6),
        Self::Max,
    ];

    /// Its name below a plot.
    #[must_use]
    pub fn name(self) -> String {
        match self {
            Self::Mean => "mean".into(),
            Self::Nines(2) => "99 %".into(),
            Self::Nines(nines) => format!("99.{} %", "9".repeat(usize::from(nines) - 2)),
            Self::Max => "max".into(),
        }
    }
}

/// Latencies of one drive in one run.
#[derive(Clone, Debug)]
pub struct DriveLatencies {
    histogram: Histogram<u64>,
    sum_ns: u128,
    max_ns: u64,
}

impl DriveLatencies {
    pub(crate) fn new() -> Self {
        let histogram = Histogram::new_with_bounds(1_000, NS_MAX, 3).expect("valid bounds");
        Self { histogram, sum_ns: 0, max_ns: 0 }
    }

    #[inline]
    pub(crate) fn record(&mut self, ns: u64) {
        self.histogram.saturating_record(ns);
        self.sum_ns += u128::from(ns);
        self.max_ns = self.max_ns.max(ns);
    }

    /// Requests.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.histogram.len()
    }

    /// A figure in µs; zero if there were no requests.
    #[must_use]
    pub fn us(&self, column: Column) -> f64 {
        let ns = match column {
            Column::Mean => self.sum_ns as f64 / self.count().max(1) as f64,
            Column::Nines(nines) => {
                let share = 1.0 - 10f64.powi(-i32::from(nines));
                self.histogram.value_at_quantile(share) as f64
            }
            Column::Max => self.max_ns as f64,
        };
        ns / 1e3
    }
}

/// Mean and standard deviation of a figure over drives, in µs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OverDrives {
    /// The mean.
    pub mean_us: f64,
    /// The standard deviation; zero for a single drive.
    pub deviation_us: f64,
}

impl OverDrives {
    /// The figure over these drives.
    #[must_use]
    pub fn of(drives: &[DriveLatencies], column: Column) -> Self {
        let count = drives.len().max(1) as f64;
        let values = || drives.iter().map(|drive| drive.us(column));
        let mean_us = values().sum::<f64>() / count;
        let squares: f64 = values().map(|us| (us - mean_us).powi(2)).sum();
        Self { mean_us, deviation_us: (squares / (count - 1.0).max(1.0)).sqrt() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_those_of_the_sample() {
        let mut drive = DriveLatencies::new();
        (1..=100_000).for_each(|n: u64| drive.record(n * 100));
        let near = |column, us: f64| (drive.us(column) / us - 1.0).abs() < 0.002;
        assert!(near(Column::Mean, 5_000.05) && near(Column::Max, 10_000.0));
        assert!(near(Column::Nines(2), 9_900.0) && near(Column::Nines(4), 9_999.0));
        let names: Vec<String> = Column::ALL.into_iter().map(Column::name).collect();
        assert_eq!(names, ["mean", "99 %", "99.9 %", "99.99 %", "99.999 %", "99.9999 %", "max"]);
    }

    #[test]
    fn the_spread_is_over_drives() {
        let drives = [10_000, 14_000].map(|ns| {
            let mut drive = DriveLatencies::new();
            drive.record(ns);
            drive
        });
        let over = OverDrives::of(&drives, Column::Max);
        assert!(
            (over.mean_us - 12.0).abs() < 1e-9 && (over.deviation_us - 8f64.sqrt()).abs() < 1e-9
        );
    }
}
