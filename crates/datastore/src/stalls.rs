//! Write stalls: their causes, and the settings that change them.
//!
//! RocksDB delays or stops writes when flushes or compactions do not keep up. The rules are those of RocksDB
//! 7.8 (`ColumnFamilyData::GetWriteStallConditionAndCause`), applied to its counters.

/// Counters and limits on which RocksDB decides about a stall.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pressure {
    /// RocksDB says that writes are stopped.
    pub stopped: bool,
    /// Bytes a second that RocksDB lets through; 0: writes are not delayed.
    pub delayed_rate: u64,
    /// Memtables that wait for their flush.
    pub immutable_memtables: u64,
    /// `--memtables`.
    pub memtables: u64,
    /// Files of level 0.
    pub level0_files: u64,
    /// `--level0-slowdown`.
    pub level0_slowdown: u64,
    /// `--level0-stop`.
    pub level0_stop: u64,
    /// Bytes that compactions are behind.
    pub pending_bytes: u64,
    /// `--pending-slowdown`.
    pub pending_slowdown: u64,
    /// `--pending-stop`.
    pub pending_stop: u64,
}

/// The effect of a stall on writes.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Severity {
    /// Writes are let through at a lower rate.
    Delayed,
    /// Writes wait.
    Stopped,
}

/// A cause for which writes are delayed or stopped.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Stall {
    /// The effect.
    pub severity: Severity,
    /// The cause, as one word for programs.
    pub cause: &'static str,
    /// The cause with its numbers, and the settings that change it.
    pub text: String,
}

/// The stall that RocksDB is in, if any: the cause that it acts upon first.
#[must_use]
pub fn diagnose(pressure: &Pressure) -> Option<Stall> {
    if !pressure.stopped && pressure.delayed_rate == 0 {
        return None;
    }
    let severity = if pressure.stopped { Severity::Stopped } else { Severity::Delayed };
    let by_cause =
        [memtables, level0, pending].into_iter().find_map(|cause| cause(pressure, severity));
    let (cause, why, remedy) = by_cause.unwrap_or_else(|| {
        let why = "the cause was gone when the counters were read".to_owned();
        ("unknown", why, "--rocksdb-log has RocksDB say more")
    });
    let effect = match severity {
        Severity::Stopped => "writes are stopped".to_owned(),
        Severity::Delayed => {
            format!("writes are delayed to {} bytes a second", pressure.delayed_rate)
        }
    };
    Some(Stall { severity, cause, text: format!("{effect}: {why}; {remedy}") })
}

type Cause = (&'static str, String, &'static str);

fn memtables(pressure: &Pressure, severity: Severity) -> Option<Cause> {
    let &Pressure { immutable_memtables: full, memtables: limit, .. } = pressure;
    let holds = match severity {
        Severity::Stopped => full >= limit,
        Severity::Delayed => limit > 3 && full + 1 >= limit,
    };
    let why = format!("{full} of {limit} memtables wait for their flush");
    let remedy = "a faster device, more --background-jobs, more --memtables or more --memory helps";
    holds.then_some(("memtables", why, remedy))
}

fn level0(pressure: &Pressure, severity: Severity) -> Option<Cause> {
    let files = pressure.level0_files;
    let (limit, setting) = match severity {
        Severity::Stopped => (pressure.level0_stop, "--level0-stop"),
        Severity::Delayed => (pressure.level0_slowdown, "--level0-slowdown"),
    };
    let why =
        format!("level 0 has {files} files ({setting} {limit}), so compactions do not keep up");
    let remedy = "more --background-jobs or larger memtables (--memory) help; a higher limit puts it off and slows reads";
    (files >= limit).then_some(("level0_files", why, remedy))
}

fn pending(pressure: &Pressure, severity: Severity) -> Option<Cause> {
    let bytes = pressure.pending_bytes;
    let (limit, setting) = match severity {
        Severity::Stopped => (pressure.pending_stop, "--pending-stop"),
        Severity::Delayed => (pressure.pending_slowdown, "--pending-slowdown"),
    };
    let why = format!("compactions are {bytes} bytes behind ({setting} {limit})");
    let remedy = "more --background-jobs or a faster device helps; a higher limit puts it off and takes space";
    (bytes >= limit).then_some(("pending_compaction_bytes", why, remedy))
}

#[cfg(test)]
mod tests {
    use super::*;

    const EASY: Pressure = Pressure {
        stopped: false,
        delayed_rate: 0,
        immutable_memtables: 0,
        memtables: 4,
        level0_files: 3,
        level0_slowdown: 20,
        level0_stop: 36,
        pending_bytes: 0,
        pending_slowdown: 64,
        pending_stop: 256,
    };

    #[test]
    fn each_cause_names_its_settings() {
        let delayed = Pressure { delayed_rate: 1000, ..EASY };
        let stopped = Pressure { stopped: true, ..EASY };
        let cases = [
            (Pressure { immutable_memtables: 4, ..stopped }, "memtables", "--memtables"),
            (Pressure { immutable_memtables: 3, ..delayed }, "memtables", "--background-jobs"),
            (Pressure { level0_files: 36, ..stopped }, "level0_files", "--level0-stop 36"),
            (Pressure { level0_files: 20, ..delayed }, "level0_files", "--level0-slowdown 20"),
            (
                Pressure { pending_bytes: 256, ..stopped },
                "pending_compaction_bytes",
                "--pending-stop 256",
            ),
            (
                Pressure { pending_bytes: 64, ..delayed },
                "pending_compaction_bytes",
                "--pending-slowdown 64",
            ),
            (stopped, "unknown", "--rocksdb-log"),
        ];
        for (pressure, cause, setting) in cases {
            let stall = diagnose(&pressure).expect("a stall");
            assert_eq!(stall.cause, cause);
            assert!(stall.text.contains(setting), "{}", stall.text);
            assert_eq!(stall.severity == Severity::Stopped, pressure.stopped);
        }
    }

    #[test]
    fn pressure_without_a_stall_is_none() {
        assert_eq!(diagnose(&Pressure { level0_files: 99, immutable_memtables: 9, ..EASY }), None);
    }
}
