//! A profile as it is saved, and merging.

use serde::{Deserialize, Serialize};

use crate::cause::{Cause, Period};
use crate::figures::{FIGURES, over_drives};
use crate::latencies::Latencies;
use crate::timeline::Timeline;

/// Version of the saved form.
const VERSION: u32 = 1;

/// Results of one run, or of several that were merged.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Profile {
    /// Version of this form.
    pub version: u32,
    /// The runs.
    pub runs: Vec<Run>,
    /// The drives.
    pub drives: Vec<DriveProfile>,
}

/// Circumstances of a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Run {
    /// Name of the host.
    pub host: String,
    /// Release of its kernel.
    pub kernel: String,
    /// Begin, in seconds since 1970.
    pub started: u64,
    /// Measured time.
    pub seconds: f64,
    /// CPUs of the reading threads.
    pub cpus: Vec<u32>,
    /// Reading threads, one for each drive.
    pub threads: usize,
    /// Their real-time priority, if they have one.
    pub realtime: Option<u8>,
    /// Time that the profiler itself needs for a request, outside of the measured latency.
    pub overhead_ns: f64,
    /// Slow requests were attributed to causes.
    pub is_attributed: bool,
    /// Remarks that belong to the figures.
    pub notes: Vec<String>,
    /// Means over the drives of this run: mean, nines, maximum.
    pub means_ns: Vec<Option<f64>>,
}

/// Results of one drive.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DriveProfile {
    /// Name of the host.
    pub host: String,
    /// Path on that host.
    pub path: String,
    /// Model, if the kernel knows it.
    pub model: Option<String>,
    /// The part of the drive that was read.
    pub bytes: u64,
    /// CPUs of its threads.
    pub cpus: Vec<u32>,
    /// Runs in which it was read.
    pub runs: u32,
    /// Reads that failed.
    pub errors: u64,
    /// Requests slower than the threshold, and the threshold of the last run.
    pub slow: Slow,
    /// Latencies of successful reads.
    pub latencies: Latencies,
    /// Latencies over time.
    pub timeline: Timeline,
    /// Causes of slow requests, if they were attributed.
    pub causes: Option<DriveCauses>,
}

/// Requests slower than a threshold.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Slow {
    /// The threshold.
    pub threshold_ns: u64,
    /// Number of requests that took longer.
    pub count: u64,
}

/// Causes of a drive's slow requests.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct DriveCauses {
    /// Median latency of the warm-up.
    pub usual_ns: u64,
    /// The causes.
    pub causes: Vec<CauseCount>,
    /// Slow requests that came too close together to be examined.
    pub not_examined: u64,
    /// The period in which the drive itself is slow.
    pub period: Option<Period>,
}

/// Slow requests of one cause.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CauseCount {
    /// The cause.
    pub cause: Cause,
    /// Requests.
    pub count: u64,
    /// Time that the cause took beyond what is usual, of all these requests.
    pub excess_ns: u64,
    /// Latency of the slowest.
    pub worst_ns: u64,
}

impl CauseCount {
    /// No request yet.
    #[must_use]
    pub fn new(cause: Cause) -> Self {
        Self { cause, count: 0, excess_ns: 0, worst_ns: 0 }
    }

    /// Counts a request.
    pub fn record(&mut self, latency_ns: u64, excess_ns: u64) {
        self.count += 1;
        self.excess_ns = self.excess_ns.saturating_add(excess_ns);
        self.worst_ns = self.worst_ns.max(latency_ns);
    }

    fn merge(&mut self, other: &Self) {
        self.count += other.count;
        self.excess_ns = self.excess_ns.saturating_add(other.excess_ns);
        self.worst_ns = self.worst_ns.max(other.worst_ns);
    }
}

/// Adds up counts of equal causes; the most frequent come first.
#[must_use]
pub fn add_up<'a>(counts: impl Iterator<Item = &'a CauseCount>) -> Vec<CauseCount> {
    let mut sums: Vec<CauseCount> = Vec::new();
    for count in counts {
        match sums.iter_mut().find(|sum| sum.cause == count.cause) {
            Some(sum) => sum.merge(count),
            None => sums.push(count.clone()),
        }
    }
    sums.sort_by(|a, b| b.count.cmp(&a.count).then_with(|| a.cause.cmp(&b.cause)));
    sums
}

/// A text is no saved profile.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// It is not of this form.
    #[error("it is no saved profile: {0}")]
    Form(serde_json::Error),
    /// Its version is another one.
    #[error("it has version {0} of the format, this program reads version {VERSION}")]
    Version(u32),
    /// It contradicts itself.
    #[error("its timeline of {0} is damaged")]
    Timeline(String),
    /// It has no drives.
    #[error("it holds no drives")]
    Empty,
}

/// Profiles that cannot be merged.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum MergeError {
    /// Two of them are one run.
    #[error("run {started} of host {host} is given twice: its requests would count twice")]
    SameRun {
        /// The host.
        host: String,
        /// Begin of the run.
        started: u64,
    },
}

impl Profile {
    /// The profile of one run.
    #[must_use]
    pub fn new(run: Run, drives: Vec<DriveProfile>) -> Self {
        let mut profile = Self { version: VERSION, runs: vec![run], drives };
        let means = FIGURES.iter().map(|figure| Some(over_drives(&profile, *figure)?.mean_ns));
        profile.runs[0].means_ns = means.collect();
        profile
    }

    /// Reads a saved profile.
    pub fn from_json(text: &str) -> Result<Self, ReadError> {
        #[derive(Deserialize)]
        struct Head {
            version: u32,
        }
        let head: Head = serde_json::from_str(text).map_err(ReadError::Form)?;
        if head.version != VERSION {
            return Err(ReadError::Version(head.version));
        }
        let profile: Self = serde_json::from_str(text).map_err(ReadError::Form)?;
        if profile.drives.is_empty() || profile.runs.is_empty() {
            return Err(ReadError::Empty);
        }
        match profile.drives.iter().find(|drive| !drive.timeline.is_sound()) {
            Some(drive) => Err(ReadError::Timeline(drive.path.clone())),
            None => Ok(profile),
        }
    }

    /// Adds the results of `other`. A drive that both have read is one drive.
    pub fn merge(&mut self, other: &Self) -> Result<(), MergeError> {
        let same = |one: &Run, two: &Run| {
            one.host == two.host && one.started == two.started && one.means_ns == two.means_ns
        };
        let twice = other.runs.iter().find(|run| self.runs.iter().any(|known| same(known, run)));
        if let Some(run) = twice {
            return Err(MergeError::SameRun { host: run.host.clone(), started: run.started });
        }
        self.runs.extend(other.runs.iter().cloned());
        for drive in &other.drives {
            let is_same = |known: &&mut DriveProfile| {
                known.host == drive.host && known.path == drive.path && known.model == drive.model
            };
            match self.drives.iter_mut().find(is_same) {
                Some(known) => known.merge(drive),
                None => self.drives.push(drive.clone()),
            }
        }
        Ok(())
    }

    /// Slow requests by cause, over all drives; the most frequent come first.
    #[must_use]
    pub fn causes(&self) -> Vec<CauseCount> {
        add_up(
            self.drives
                .iter()
                .filter_map(|drive| drive.causes.as_ref())
                .flat_map(|all| &all.causes),
        )
    }

    /// A drive's name: its path, with its host if there are several.
    #[must_use]
    pub fn name(&self, drive: &DriveProfile) -> String {
        if self.runs.iter().any(|run| run.host != self.runs[0].host) {
            return format!("{}:{}", drive.host, drive.path);
        }
        drive.path.clone()
    }
}

impl DriveProfile {
    fn merge(&mut self, later: &Self) {
        self.bytes = self.bytes.max(later.bytes);
        self.runs += later.runs;
        self.errors += later.errors;
        self.slow = Slow {
            threshold_ns: later.slow.threshold_ns,
            count: self.slow.count + later.slow.count,
        };
        self.latencies.merge(&later.latencies);
        self.timeline.append(&later.timeline);
        for cpu in &later.cpus {
            if !self.cpus.contains(cpu) {
                self.cpus.push(*cpu);
            }
        }
        self.causes = match (self.causes.take(), &later.causes) {
            (Some(one), Some(two)) => Some(one.merge(two)),
            (one, two) => one.or_else(|| two.clone()),
        };
    }
}

impl DriveCauses {
    fn merge(self, later: &Self) -> Self {
        Self {
            usual_ns: later.usual_ns,
            causes: add_up(self.causes.iter().chain(&later.causes)),
            not_examined: self.not_examined + later.not_examined,
            // The run in which more spikes were seen knows the period better.
            period: match (self.period, later.period) {
                (Some(one), Some(two)) if two.spikes > one.spikes => Some(two),
                (one, two) => one.or(two),
            },
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A profile with drives whose latencies are around these.
    pub(crate) fn profile(host: &str, started: u64, levels_ns: &[u64]) -> Profile {
        let drives = levels_ns.iter().enumerate().map(|(index, level)| {
            let mut latencies = Latencies::default();
            let mut timeline = Timeline::default();
            for n in 0..20_000u64 {
                let ns = level + n % 1000 * 10;
                latencies.record(ns);
                timeline.record(n * 100_000, ns);
            }
            let hog = CauseCount {
                cause: Cause::Task { name: "hog".into(), realtime: false },
                count: 3,
                excess_ns: 600_000,
                worst_ns: 900_000,
            };
            DriveProfile {
                host: host.to_owned(),
                path: format!("/dev/nvme{index}n1"),
                model: Some("P1".to_owned()),
                bytes: 1 << 30,
                cpus: vec![index as u32],
                runs: 1,
                errors: 0,
                slow: Slow { threshold_ns: 500_000, count: 4 },
                latencies,
                timeline,
                causes: Some(DriveCauses {
                    usual_ns: 80_000,
                    causes: vec![hog],
                    ..Default::default()
                }),
            }
        });
        let run = Run {
            host: host.to_owned(),
            kernel: "6.1".to_owned(),
            started,
            seconds: 2.0,
            cpus: vec![0, 1],
            threads: levels_ns.len(),
            realtime: None,
            overhead_ns: 100.0,
            is_attributed: true,
            notes: Vec::new(),
            means_ns: Vec::new(),
        };
        Profile::new(run, drives.collect())
    }

    #[test]
    fn runs_of_one_host_add_up_and_hosts_stand_beside_each_other() {
        let mut merged = profile("a", 1, &[80_000, 90_000]);
        merged.merge(&profile("a", 2, &[80_000, 90_000, 70_000])).unwrap();
        assert_eq!(merged.drives.len(), 3);
        assert_eq!(merged.drives[0].latencies.count(), 40_000);
        assert_eq!((merged.drives[0].runs, merged.drives[2].runs), (2, 1));
        assert_eq!(merged.name(&merged.drives[0]), "/dev/nvme0n1");
        merged.merge(&profile("b", 3, &[60_000])).unwrap();
        assert_eq!((merged.drives.len(), merged.runs.len()), (4, 3));
        assert_eq!(merged.name(&merged.drives[3]), "b:/dev/nvme0n1");
        assert_eq!(merged.causes()[0].count, 3 * 6);
        let again = merged.merge(&profile("a", 2, &[80_000, 90_000, 70_000]));
        assert_eq!(again, Err(MergeError::SameRun { host: "a".into(), started: 2 }));
    }

    #[test]
    fn a_saved_profile_comes_back_and_others_are_refused() {
        let saved = serde_json::to_string(&profile("a", 1, &[80_000])).unwrap();
        let read = Profile::from_json(&saved).unwrap();
        assert_eq!(serde_json::to_string(&read).unwrap(), saved);
        let newer = saved.replacen("\"version\":1", "\"version\":2", 1);
        assert!(matches!(Profile::from_json(&newer), Err(ReadError::Version(2))));
        assert!(matches!(Profile::from_json("{}"), Err(ReadError::Form(_))));
        let damaged = saved.replacen("\"slice_ns\":10000000", "\"slice_ns\":0", 1);
        assert!(matches!(Profile::from_json(&damaged), Err(ReadError::Timeline(_))));
    }
}
