//! RocksDB's own counters, from the texts in which it hands them out.

use std::collections::BTreeMap;

/// A histogram of RocksDB, mostly of microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Histogram {
    /// Median.
    pub p50: f64,
    /// 95th percentile.
    pub p95: f64,
    /// 99th percentile.
    pub p99: f64,
    /// Largest value.
    pub max: f64,
    /// Number of values.
    pub count: u64,
    /// Sum of all values.
    pub sum: u64,
}

/// Tickers and histograms by their names, which begin with `rocksdb.`.
#[derive(Clone, Debug, Default)]
pub struct Statistics {
    tickers: BTreeMap<String, u64>,
    histograms: BTreeMap<String, Histogram>,
}

impl Statistics {
    /// Reads the text of `Options::get_statistics`. Lines of another form are passed over.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let mut statistics = Self::default();
        for line in text.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            match words.as_slice() {
                [name, "COUNT", ":", count] => {
                    let count = count.parse().unwrap_or_default();
                    statistics.tickers.insert((*name).to_owned(), count);
                }
                [name, "P50", ..] => {
                    statistics.histograms.insert((*name).to_owned(), histogram(&words));
                }
                _ => {}
            }
        }
        statistics
    }

    /// A ticker; 0 if RocksDB has none of this name.
    #[must_use]
    pub fn ticker(&self, name: &str) -> u64 {
        self.tickers.get(name).copied().unwrap_or_default()
    }

    /// A histogram; empty if RocksDB has none of this name.
    #[must_use]
    pub fn histogram(&self, name: &str) -> Histogram {
        self.histograms.get(name).copied().unwrap_or_default()
    }

    /// The share of block reads that the block cache served, from 0 to 1; `None` before the first read.
    #[must_use]
    pub fn cache_hit_rate(&self) -> Option<f64> {
        let hits = self.ticker("rocksdb.block.cache.hit");
        let all = hits + self.ticker("rocksdb.block.cache.miss");
        (all > 0).then(|| hits as f64 / all as f64)
    }

    /// The same of blocks that hold keys and values, without those of indexes and filters.
    #[must_use]
    pub fn data_hit_rate(&self) -> Option<f64> {
        let hits = self.ticker("rocksdb.block.cache.data.hit");
        let all = hits + self.ticker("rocksdb.block.cache.data.miss");
        (all > 0).then(|| hits as f64 / all as f64)
    }
}

/// A line such as `NAME P50 : 1.5 P95 : 2.0 P99 : 3.0 P100 : 4.0 COUNT : 5 SUM : 6`.
fn histogram(words: &[&str]) -> Histogram {
    let value = |label: &str| {
        let at = words.iter().position(|word| *word == label)?;
        words.get(at + 2).copied()
    };
    let float = |label| value(label).and_then(|text| text.parse().ok()).unwrap_or_default();
    let whole = |label| value(label).and_then(|text| text.parse().ok()).unwrap_or_default();
    Histogram {
        p50: float("P50"),
        p95: float("P95"),
        p99: float("P99"),
        max: float("P100"),
        count: whole("COUNT"),
        sum: whole("SUM"),
    }
}

/// Counts of stalls by cause, from the property `rocksdb.cfstats-no-file-histogram`, whose line is
/// `Stalls(count): 0 level0_slowdown, 1 level0_numfiles, …, interval 0 total count`.
#[must_use]
pub fn compaction_stalls(text: &str) -> Vec<(String, u64)> {
    let line = text.lines().find_map(|line| line.strip_prefix("Stalls(count):"));
    let parts = line.unwrap_or_default().split(',').filter_map(|part| {
        let (count, cause) = part.trim().split_once(' ')?;
        Some((cause.replace(' ', "_"), count.parse().ok()?))
    });
    parts.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_texts_of_rocksdb_are_read() {
        let text = "rocksdb.block.cache.miss COUNT : 30\nrocksdb.block.cache.hit COUNT : 10\n\
            rocksdb.db.get.micros P50 : 2.5 P95 : 9.000000 P99 : 20.1 P100 : 55.0 COUNT : 7 SUM : 90\nnonsense\n";
        let statistics = Statistics::parse(text);
        assert_eq!(statistics.ticker("rocksdb.block.cache.miss"), 30);
        assert_eq!(statistics.cache_hit_rate(), Some(0.25));
        assert_eq!(statistics.data_hit_rate(), None);
        let expected = Histogram { p50: 2.5, p95: 9.0, p99: 20.1, max: 55.0, count: 7, sum: 90 };
        assert_eq!(statistics.histogram("rocksdb.db.get.micros"), expected);
    }

    #[test]
    fn stalls_are_counted_by_cause() {
        let text = "Cumulative compaction: 0.00 GB\nStalls(count): 2 level0_slowdown, 0 level0_numfiles, \
            3 stop for pending_compaction_bytes, 1 memtable_compaction, interval 0 total count\n";
        let expected = [
            ("level0_slowdown", 2),
            ("level0_numfiles", 0),
            ("stop_for_pending_compaction_bytes", 3),
            ("memtable_compaction", 1),
        ];
        let expected = expected.map(|(cause, count)| (cause.to_owned(), count));
        assert_eq!(compaction_stalls(text), expected);
        assert_eq!(compaction_stalls(""), []);
    }
}
