//! Requests that have times of their own: `--workload` and `--replay`, and the file of `--record`.

use std::fs::File;
use std::io::{BufReader, BufWriter, Write};
use std::path::Path;
use std::str::FromStr;

use clap::ValueEnum;
use load::{OnError, Planned, Profile, Terms, Trace};
use units::{BLOCK_SIZE, ByteLen, Duration, Lba, LbaRange};
use user_messages::Failure;
use user_messages::output;

use super::{Bench, SECONDS_DEFAULT, show};

/// Rows of table 1 of "Flash Storage Disaggregation".
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(super) enum ProfileArg {
    /// 2 000 to 10 000 reads/s of 10 kB and 100 writes/s of 500 kB for each TB
    A,
    /// 2 000 to 6 000 reads/s of 50 kB and 1 000 writes/s of 700 kB for each TB
    B,
    /// 2 000 to 4 000 reads/s of 15 kB, 75 000 for 1 % of the time, and 500 writes/s of 2 MB for each TB
    C,
    /// 2 000 to 4 000 reads/s of 25 kB and 150 writes/s of 500 kB for each TB
    D,
}

impl ProfileArg {
    pub(super) fn profile(self) -> Profile {
        Profile::ALL[self as usize]
    }
}

/// A pace of a replay.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Speed(f64);

impl FromStr for Speed {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let speed = text.parse().ok().filter(|speed| (1e-6..=1e6).contains(speed));
        speed.map(Self).ok_or_else(|| format!("`{text}` is no pace; write a factor, such as 2"))
    }
}

/// Reads a recording that has requests.
pub(super) fn read(path: &Path) -> Result<Trace, Failure> {
    let named = user_messages::shell::path(path);
    let file = File::open(path).map_err(|error| {
        Failure::usage(format!("{named} cannot be read: {error}"), "name a file of --record")
    })?;
    let trace = Trace::parse(BufReader::new(file)).map_err(|error| {
        let remedy = "mend that line, or make the file with `farflash bench --record`";
        Failure::usage(format!("{named} is no recording: {error}"), remedy)
    })?;
    if trace.requests().is_empty() {
        return Err(Failure::usage(format!("{named} has no requests"), "record a longer run"));
    }
    Ok(trace)
}

/// Writes a recording; `remedy` is for a file that cannot be written.
pub(in crate::commands) fn save(
    path: &Path,
    trace: &mut Trace,
    remedy: &str,
) -> Result<(), Failure> {
    let mut write = || {
        let mut out = BufWriter::new(File::create(path)?);
        trace.write(&mut out)?;
        out.flush()
    };
    write().map_err(|error| {
        let what = format!("the recording {} cannot be written: {error}", path.display());
        Failure::runtime(what, remedy)
    })?;
    if trace.left_out() > 0 {
        output::note(&format!(
            "the recording has the first {} requests of the run, and not the {} after them",
            trace.requests().len(),
            trace.left_out()
        ));
    }
    Ok(())
}

/// The part of a target that a recording needs.
pub(super) fn range(trace: &Trace, target_blocks: u64) -> Result<LbaRange, Failure> {
    let wanted = trace.target_blocks();
    let size = |blocks: u64| ByteLen(blocks.saturating_mul(BLOCK_SIZE as u64));
    if wanted > target_blocks {
        let what = format!(
            "the recording has requests up to {}, the target has {}",
            size(wanted),
            size(target_blocks)
        );
        return Err(Failure::usage(what, "replay it on a target of that size"));
    }
    Ok(LbaRange::new(Lba(0), wanted))
}

/// Checks that the requests of a workload fit into so many blocks.
pub(super) fn check_fit(arg: ProfileArg, blocks: u64) -> Result<(), Failure> {
    let needed = u64::from(arg.profile().blocks_max());
    if blocks >= needed {
        return Ok(());
    }
    let size = |blocks: u64| ByteLen(blocks * BLOCK_SIZE as u64);
    let what = format!(
        "a write of --workload {} has up to {}, which do not fit into {}",
        arg.profile().name,
        size(needed),
        size(blocks)
    );
    Err(Failure::usage(what, "use a larger target, or a larger --range"))
}

impl Bench {
    /// The requests of `--workload` or `--replay`, and the terms on which they are issued.
    pub(super) fn planned(
        &self,
        range: LbaRange,
        depth: u32,
    ) -> Option<(Box<dyn Iterator<Item = Planned>>, Terms)> {
        let until = |seconds: Option<f64>| seconds.map(Duration::from_secs_f64);
        let terms = |blocks_max, until| Terms {
            depth,
            blocks_max,
            until,
            interval: show::INTERVAL,
            on_error: OnError::Stop,
            seed: self.seed,
        };
        if let Some(arg) = self.workload {
            let profile = arg.profile();
            let used = ByteLen(range.blocks * BLOCK_SIZE as u64);
            let size = self.workload_size.unwrap_or(used);
            let requests = profile.requests(range, size.0 as f64, self.seed);
            let until = until(Some(self.seconds.unwrap_or(SECONDS_DEFAULT)));
            return Some((Box::new(requests), terms(profile.blocks_max(), until)));
        }
        self.replay.as_ref()?;
        let trace = self.recording.take();
        let terms = terms(trace.blocks_max(), until(self.seconds));
        Some((Box::new(trace.into_requests(self.speed.0)), terms))
    }
}
