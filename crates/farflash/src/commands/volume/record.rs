//! `farflash volume record`: the requests that hosts send to a volume, fetched from the server while it records them.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use control::{
    ApiClient, ApiError, ProblemCode, RECORDING_BUFFER_MAX, RECORDING_SECONDS_MAX,
    RECORDING_UNASKED_MAX, RecordedKind, RecordedRequest, Recording, StartRecording,
};
use load::{Kind, Planned, Trace};
use serde::Serialize;
use units::{BLOCK_SIZE, ByteLen, Lba};
use user_messages::Failure;
use user_messages::output::{self as printed, counted};
use user_messages::shell;

use super::{Output, api};
use crate::commands::bench::save_recording;
use crate::commands::interrupt::Interrupt;
use crate::interval::Interval;

pub(super) const EXAMPLES: &str = "\
The server records time, kind and place of each request that hosts send to the volume, over any protocol, and no data. Ctrl-C ends \
the recording early. The file is written at the end, and not if the command is killed.

Examples:
  farflash volume record db-1 --for 60s --out db-1.txt
  farflash bench --target tcp://127.0.0.1:4420/NQN --replay db-1.txt --overwrite";

/// Advice when the start has no answer.
const LOOK: &str = "a recording that runs ends by itself within 10 s";
/// The pause between two fetches. The server's buffer holds what comes meanwhile.
const POLL: Duration = Duration::from_millis(100);

#[derive(Debug, Args)]
pub(crate) struct Record {
    /// Its name or id
    volume: String,
    /// Time of the recording, such as 60s or 10m
    #[arg(long = "for", value_name = "INTERVAL")]
    length: Interval,
    /// File for the requests, which `farflash bench --replay` takes
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Requests that the server keeps until they are fetched, up to ten times a second; they take 24 bytes each
    /// [default: 65536]
    #[arg(long, value_name = "REQUESTS")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=i64::from(RECORDING_BUFFER_MAX)))]
    buffer: Option<u32>,
    #[command(flatten)]
    output: Output,
}

/// The way in which a recording ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
enum End {
    /// Its time was over.
    Time,
    /// By Ctrl-C.
    Interrupt,
    /// The file has as many requests as a file can have.
    Full,
    /// The volume is gone, or the server.
    Failure,
}

/// The requests that were fetched.
struct Fetched {
    /// The last answer.
    last: Recording,
    /// Requests that were fetched.
    have: u64,
    trace: Trace,
    /// Requests that no line of the file can have.
    formless: u64,
}

/// The result, as `--json` has it.
#[derive(Serialize)]
struct Summary<'a> {
    volume: &'a str,
    file: String,
    ended: End,
    seconds: f64,
    requests: usize,
    reads: u64,
    read_bytes: u64,
    writes: u64,
    written_bytes: u64,
    /// Requests that found no room.
    left_out: u64,
    /// Requests that read or write no blocks.
    others: u64,
}

impl Record {
    pub(super) fn run(self) -> Result<(), Failure> {
        let seconds = u32::try_from(self.length.0.as_secs()).ok();
        let seconds =
            seconds.filter(|seconds| *seconds <= RECORDING_SECONDS_MAX).ok_or_else(|| {
                Failure::usage(
                    "--for is longer than a day",
                    "record a day at most, such as --for 24h",
                )
            })?;
        let client = self.output.client()?;
        let interrupt = Interrupt::catch(true)?;
        let request = StartRecording { seconds, buffer_requests: self.buffer };
        let begun = api::change(&client, LOOK, |api| api.start_recording(&self.volume, &request))?;
        if let Err(failure) = self.make_file() {
            let _ = client.end_recording(&begun);
            return Err(failure);
        }
        let start = Instant::now();
        let mut fetched = Fetched::new(begun);
        let ended = self.fetch(&client, &interrupt, &mut fetched);
        let seconds = match ended {
            Ok(End::Time) => f64::from(seconds),
            _ => start.elapsed().as_secs_f64(),
        };
        if ended.is_ok() {
            // All that is wanted is here. Without an answer it ends by itself.
            let _ = client.end_recording(&fetched.last);
        }
        let remedy = "the recording is over; name a file with some room with --out";
        save_recording(&self.out, &mut fetched.trace, remedy)?;
        self.show(&fetched, *ended.as_ref().unwrap_or(&End::Failure), seconds)?;
        ended.map(drop).map_err(|error| {
            let what = format!("the recording ended early: {error}");
            let file = shell::path(&self.out);
            Failure::runtime(what, format!("{file} has what was recorded until then"))
        })
    }

    /// Finds out whether the file can be written, before it takes time to fill it.
    fn make_file(&self) -> Result<(), Failure> {
        let made = OpenOptions::new().create(true).append(true).open(&self.out);
        made.map(drop).map_err(|error| {
            let what = format!("{} cannot be written: {error}", self.out.display());
            Failure::runtime(what, "name another file with --out")
        })
    }

    /// Fetches all, until the end or Ctrl-C.
    fn fetch(
        &self,
        client: &ApiClient,
        interrupt: &Interrupt,
        fetched: &mut Fetched,
    ) -> Result<End, ApiError> {
        let mut progress = printed::progress(&format!("recording {}", self.volume));
        let (start, total) = (Instant::now(), self.length.0);
        let mut answered = start;
        // Number of the request behind those that had come when Ctrl-C came.
        let mut until = None;
        loop {
            let is_interrupted = interrupt.came();
            match client.recorded(&fetched.last, fetched.have) {
                Ok(answer) => fetched.take(&answer),
                // The server still has all that was not fetched.
                Err(error)
                    if has_no_answer(&error)
                        && !is_interrupted
                        && answered.elapsed() < RECORDING_UNASKED_MAX =>
                {
                    std::thread::sleep(POLL);
                    continue;
                }
                Err(error) => return Err(error),
            }
            answered = Instant::now();
            if is_interrupted && fetched.have >= *until.get_or_insert(fetched.last.recorded) {
                return Ok(End::Interrupt);
            }
            if fetched.trace.left_out() > 0 {
                return Ok(End::Full);
            }
            let elapsed = start.elapsed().min(total);
            progress(elapsed.as_secs(), total.as_secs());
            if fetched.have < fetched.last.recorded {
                continue;
            }
            if fetched.last.is_over {
                return Ok(End::Time);
            }
            std::thread::sleep(POLL);
        }
    }

    fn show(&self, fetched: &Fetched, ended: End, seconds: f64) -> Result<(), Failure> {
        let Fetched { last, trace, formless, .. } = fetched;
        let (mut of_reads, mut of_writes) = ((0, 0), (0, 0));
        for request in trace.requests() {
            let (requests, bytes) = match request.kind {
                Kind::Read => &mut of_reads,
                Kind::Write => &mut of_writes,
            };
            *requests += 1;
            *bytes += u64::from(request.blocks) * BLOCK_SIZE as u64;
        }
        let summary = Summary {
            volume: &self.volume,
            file: self.out.display().to_string(),
            ended,
            seconds,
            requests: trace.requests().len(),
            reads: of_reads.0,
            read_bytes: of_reads.1,
            writes: of_writes.0,
            written_bytes: of_writes.1,
            left_out: last.left_out,
            others: last.others + formless,
        };
        let remedy = "the file is written; give the summary somewhere to go";
        self.output.print_done(remedy, &summary, |out| human(out, &summary))
    }
}

fn human(out: &mut dyn Write, summary: &Summary<'_>) -> std::io::Result<()> {
    let Summary { volume, file, seconds, requests, reads, writes, left_out, others, .. } = summary;
    let bytes = |bytes: u64| ByteLen(bytes);
    writeln!(
        out,
        "{volume}: {} in {seconds:.1} s are in {file}: {} of {}, {} of {}",
        counted(*requests as u64, "request"),
        counted(*reads, "read"),
        bytes(summary.read_bytes),
        counted(*writes, "write"),
        bytes(summary.written_bytes),
    )?;
    if *left_out > 0 {
        let left_out = counted(*left_out, "request");
        writeln!(out, "not in it: {left_out} that found no room; record with a larger --buffer")?;
    }
    if *others > 0 {
        let others = counted(*others, "request");
        writeln!(out, "not in it: {others} that move no data, such as flushes and deallocations")?;
    }
    Ok(())
}

impl Fetched {
    fn new(begun: Recording) -> Self {
        Self { last: begun, have: 0, trace: Trace::default(), formless: 0 }
    }

    fn take(&mut self, answer: &Recording) {
        for request in &answer.requests {
            match planned(request) {
                Some(planned) => self.trace.push(planned),
                None => self.formless += 1,
            }
        }
        self.have += answer.requests.len() as u64;
        self.last = Recording { requests: Vec::new(), ..*answer };
    }
}

/// True if the server was not reached, which may pass.
fn has_no_answer(error: &ApiError) -> bool {
    match error {
        ApiError::Unreachable { .. } => true,
        ApiError::Refused(problem) => problem.code == ProblemCode::HostUnreachable,
        _ => false,
    }
}

/// The request as the file has it; `None` for one that no line can have.
fn planned(request: &RecordedRequest) -> Option<Planned> {
    let block = BLOCK_SIZE as u64;
    let blocks = u32::try_from(request.length_bytes / block).ok()?;
    let kind = match request.kind {
        RecordedKind::Read => Kind::Read,
        RecordedKind::Write => Kind::Write,
    };
    let start = Lba(request.offset_bytes / block);
    let planned = Planned { at_ns: request.at_ns, start, blocks, kind };
    Trace::has_form_for(&planned).then_some(planned)
}
