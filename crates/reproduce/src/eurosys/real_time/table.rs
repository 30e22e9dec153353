//! Table 1 in real time: the requests of its workloads to a volume, over real connections.

use load::Profile;

use super::super::table::{self, Row};
use crate::{Finding, Outcome, ReproduceError};

/// Bytes of a tenant's data: a tenth of the paper's drive.
pub const SIZE_BYTES: f64 = 40e9;
const WHY: &str = "The load generator and the Flash server, which also models the drive, share the CPUs of this one machine \
    with other programs. Requests that come late make seconds with few and with many reads, and count as slow.";
/// Deviations of chance from the mean that are not taken for a difference.
const DEVIATIONS: f64 = 3.0;

/// Requests of one workload that were served.
#[derive(Clone, Debug, Default)]
pub struct Served {
    /// Reads in each second.
    pub reads: Vec<f64>,
    /// Mean bytes of a read.
    pub read_bytes: f64,
    /// Writes in all seconds together.
    pub writes: f64,
    /// Mean bytes of a write.
    pub write_bytes: f64,
    /// 95th and 99th percentile of the latency of reads.
    pub read_ms: [f64; 2],
}

impl Served {
    fn row(&self, profile: Profile) -> Row {
        let per_tb = 1e12 / SIZE_BYTES;
        let mut reads = self.reads.clone();
        reads.sort_by(f64::total_cmp);
        if profile.burst_per_tb.is_some() {
            // A burst lifts one second in ten, or two if it lies in both.
            reads.truncate(reads.len() * 8 / 10);
        }
        let (low, high) = (reads.first().copied(), reads.last().copied());
        let seconds = self.reads.len().max(1) as f64;
        let (least, expected) =
            (profile.reads_per_tb.0 / per_tb, profile.writes_per_tb / per_tb * seconds);
        Row {
            profile,
            reads: (low.unwrap_or(0.0) * per_tb, high.unwrap_or(0.0) * per_tb),
            read_bytes: self.read_bytes,
            writes: self.writes / seconds * per_tb,
            write_bytes: self.write_bytes,
            p95_read_ms: self.read_ms[0],
            p99_read_ms: self.read_ms[1],
            off: [least, expected].map(|count| DEVIATIONS / count.sqrt()),
        }
    }
}

/// The outcome of table 1: `served` is one of each row of [`Profile::ALL`].
///
/// # Errors
/// The plot could not be drawn.
pub fn workloads(served: &[Served; 4]) -> Result<Outcome, ReproduceError> {
    let rows: Vec<Row> =
        Profile::ALL.iter().zip(served).map(|(profile, served)| served.row(*profile)).collect();
    let caption = "latency of reads of a volume of 40 GB, on a modelled P3600";
    let panels = table::panels(&rows, caption);
    let mut findings: Vec<Finding> = rows.iter().map(table::rates).collect();
    findings.push(table::latency(&rows, "95 % of reads, with 40 GB of one workload on a drive"));
    let title = "EuroSys'16, table 1, in real time: requests of key-value stores to a volume";
    Ok(Outcome::new(title, &panels, table::table(&rows), findings)?.because(WHY))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rates are those of a TB, and a burst is not taken for the rate between bursts.
    #[test]
    fn requests_as_in_the_table_agree() {
        let served = Profile::ALL.map(|profile| {
            let part = SIZE_BYTES / 1e12;
            let (low, high) = profile.reads_per_tb;
            let mut reads: Vec<f64> =
                (0..10).map(|n| (low + (high - low) * f64::from(n) / 9.0) * part).collect();
            reads[3] += profile.burst_per_tb.unwrap_or(0.0) * part / 10.0;
            Served {
                reads,
                read_bytes: profile.read_bytes,
                writes: profile.writes_per_tb * part * 10.0,
                write_bytes: profile.write_bytes,
                read_ms: [1.0, 2.0],
            }
        });
        let outcome = workloads(&served).expect("a plot");
        assert!(outcome.agrees(), "{:#?}", outcome.findings);
        let mut slow = served;
        slow[1].writes /= 2.0;
        slow[2].read_ms = [6.0, 9.0];
        let outcome = workloads(&slow).expect("a plot");
        let differing: Vec<usize> =
            (0..5).filter(|finding| !outcome.findings[*finding].agrees).collect();
        assert_eq!(differing, [1, 4], "{:#?}", outcome.findings);
        assert_eq!(outcome.findings[4].here, "not C");
    }
}
