//! A run: a pinned thread for each drive, and the collector of causes.

use std::io;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Barrier};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::thread::gettid;

use crate::cpus;
use crate::drive::{BLOCK, Drive};
use crate::reader::{Limit, Read, Reader, overhead_ns};
use crate::recorder::{Recorder, Room, SlowerThan};
use crate::result::{DriveCauses, DriveProfile, Profile, Run};
use crate::trace::{Collector, Note, Tracer};

/// Drives of a run at most, as in the study.
pub const DRIVES_MAX: usize = 64;
/// Spikes of a run that ends after a number of requests are told apart as in a run of this length.
const SPAN_OF_REQUESTS: Duration = Duration::from_secs(60);

/// A run that is to be made.
#[derive(Debug)]
pub struct Plan {
    /// The drives.
    pub drives: Vec<Drive>,
    /// CPUs of the threads; some of those that this process may use if empty.
    pub cpus: Vec<u32>,
    /// Its length.
    pub limit: Limit,
    /// Time before it that is not measured.
    pub warm_up: Duration,
    /// The latency from which on a request is slow.
    pub slower_than: SlowerThan,
    /// Real-time priority of the threads, 1 to 99.
    pub realtime: Option<u8>,
    /// Slow requests are to be attributed to causes.
    pub attribute: bool,
    /// Seed of the places that are read.
    pub seed: u64,
    /// Ends the run early once it is true.
    pub stop: Arc<AtomicBool>,
}

/// A run that cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The kernel starts no thread.
    #[error("no thread can be started: {0}")]
    Thread(io::Error),
    /// A thread cannot be pinned.
    #[error("no thread can run on CPU {cpu}: {error}")]
    Pin {
        /// The CPU.
        cpu: u32,
        /// The error.
        error: io::Error,
    },
    /// The priority is refused.
    #[error("the kernel refuses the real-time priority {priority}: {error}")]
    Realtime {
        /// The priority.
        priority: u8,
        /// The error.
        error: String,
    },
    /// A drive gave nothing.
    #[error("{}: no read succeeded: {error}", .path.display())]
    NoRead {
        /// The drive.
        path: PathBuf,
        /// The last error.
        error: String,
    },
}

type ReadThread = JoinHandle<Result<Read, RunError>>;
type CauseThread = JoinHandle<Vec<DriveCauses>>;

/// Reads all drives at once.
pub fn run(mut plan: Plan) -> Result<Profile, RunError> {
    if plan.cpus.is_empty() {
        plan.cpus = cpus::default_cpus(plan.drives.len());
    }
    let mut notes: Vec<String> = plan.drives.iter().flat_map(Drive::notes).cloned().collect();
    if plan.drives.len() > plan.cpus.len() {
        let threads = counted(plan.drives.len(), "thread");
        let cpus = counted(plan.cpus.len(), "CPU");
        notes.push(format!(
            "{threads} share {cpus}: a request may wait while that of another drive is handled"
        ));
    }
    let overhead_ns = overhead_ns();
    let drives: Vec<Arc<Drive>> = plan.drives.drain(..).map(Arc::new).collect();
    let (sender, receiver) = channel();
    let collector = collect(&plan, drives.len(), receiver, &mut notes)?;
    let is_attributed = collector.is_some();
    let started = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let readers = start(&plan, &drives, is_attributed.then_some(sender))?;
    // All threads are waited for before an error of one of them ends the run: the collector ends with the last.
    let read: Vec<Result<Read, RunError>> = readers.into_iter().map(join).collect();
    let mut causes = collector.map(join).unwrap_or_default().into_iter();
    let read = read.into_iter().collect::<Result<Vec<Read>, RunError>>()?;
    let system = rustix::system::uname();
    let text = |name: &std::ffi::CStr| name.to_string_lossy().into_owned();
    let measured_ns = read.iter().map(|read| read.recorder.measured_ns()).max().unwrap_or(0);
    let mut run = Run {
        host: text(system.nodename()),
        kernel: text(system.release()),
        started,
        seconds: measured_ns as f64 / 1e9,
        threads: drives.len(),
        cpus: plan.cpus,
        realtime: plan.realtime,
        overhead_ns,
        is_attributed,
        notes,
        means_ns: Vec::new(),
    };
    let mut profiles = Vec::new();
    for (index, (drive, read)) in drives.iter().zip(read).enumerate() {
        run.notes.extend(trouble(drive, &read)?);
        let cpu = run.cpus[index % run.cpus.len()];
        profiles.push(profile(drive, &run.host, cpu, read, causes.next()));
    }
    Ok(Profile::new(run, profiles))
}

/// A number of things, in words.
pub(crate) fn counted(count: usize, thing: &str) -> String {
    format!("{count} {thing}{}", if count == 1 { "" } else { "s" })
}

/// Starts the tracer and its collector. A kernel that refuses costs the causes, not the figures.
fn collect(
    plan: &Plan,
    drives: usize,
    receiver: Receiver<Note>,
    notes: &mut Vec<String>,
) -> Result<Option<CauseThread>, RunError> {
    if !plan.attribute {
        return Ok(None);
    }
    let (tracer, decoder) = match Tracer::start() {
        Ok(started) => started,
        Err(error) => {
            notes.push(format!(
                "no causes were looked for: {error}; run the profiler as root on a kernel with tracefs, \
                 or leave causes out by --no-causes"
            ));
            return Ok(None);
        }
    };
    if !tracer.missing().is_empty() {
        let missing = tracer.missing().join(", ");
        notes.push(format!("this kernel lacks the events {missing}: what they show stays unknown"));
    }
    let span = match plan.limit {
        Limit::Time(time) => time,
        Limit::Requests(_) => SPAN_OF_REQUESTS,
    };
    let collector = Collector::new(tracer, decoder, cpus::leave_idle_ns(), drives);
    let readers = plan.cpus.clone();
    let thread = spawn("profile-trace".to_owned(), move || {
        cpus::leave(&readers);
        collector.run(&receiver, span.as_nanos() as u64)
    });
    thread.map(Some)
}

/// Starts a thread for each drive.
fn start(
    plan: &Plan,
    drives: &[Arc<Drive>],
    notes: Option<Sender<Note>>,
) -> Result<Vec<ReadThread>, RunError> {
    let ready = Arc::new(Barrier::new(drives.len()));
    let thread = |(index, drive): (usize, &Arc<Drive>)| {
        let reader = Reader {
            index,
            cpu: plan.cpus[index % plan.cpus.len()],
            is_elsewhere: drive.is_elsewhere(),
            blocks: drive.bytes() / BLOCK as u64,
            warm_up: plan.warm_up,
            limit: plan.limit,
            slower_than: plan.slower_than,
            seed: plan.seed,
            stop: plan.stop.clone(),
            notes: notes.clone(),
            room: Room::default(),
        };
        let (drive, ready, realtime) = (drive.clone(), ready.clone(), plan.realtime);
        spawn(format!("profile-{index}"), move || {
            let prepared = prepare(reader.cpu, realtime);
            // All meet, even if one cannot begin: the others would wait for it.
            ready.wait();
            prepared?;
            drive.run(reader).map_err(|error| RunError::NoRead {
                path: drive.path().to_owned(),
                error: error.to_string(),
            })
        })
    };
    let threads = drives.iter().enumerate().map(thread).collect();
    // The collector ends when the last sender is gone: those of the threads alone are left.
    drop(notes);
    threads
}

/// Pins the calling thread, and gives it its priority.
fn prepare(cpu: u32, realtime: Option<u8>) -> Result<(), RunError> {
    cpus::pin(&[cpu]).map_err(|error| RunError::Pin { cpu, error })?;
    realtime.map_or(Ok(()), become_realtime)
}

/// Gives the calling thread a real-time priority. rustix has no such call, so the program of util-linux makes it.
fn become_realtime(priority: u8) -> Result<(), RunError> {
    let refused = |error: String| RunError::Realtime { priority, error };
    let tid = gettid().as_raw_nonzero().to_string();
    let output =
        Command::new("chrt").args(["--fifo", "--pid", &priority.to_string(), &tid]).output();
    let output = output.map_err(|error| refused(format!("chrt: {error}")))?;
    if output.status.success() {
        return Ok(());
    }
    Err(refused(String::from_utf8_lossy(&output.stderr).trim().to_owned()))
}

fn profile(
    drive: &Drive,
    host: &str,
    cpu: u32,
    read: Read,
    causes: Option<DriveCauses>,
) -> DriveProfile {
    let Recorder { latencies, timeline, slow, errors, .. } = read.recorder;
    DriveProfile {
        host: host.to_owned(),
        path: drive.path().display().to_string(),
        model: drive.model().map(str::to_owned),
        bytes: drive.bytes(),
        cpus: vec![cpu],
        runs: 1,
        errors,
        slow,
        latencies,
        timeline,
        causes,
    }
}

/// Says what went wrong with a drive that gave figures all the same.
fn trouble(drive: &Drive, read: &Read) -> Result<Option<String>, RunError> {
    let Some(error) = &read.last_error else { return Ok(None) };
    let path = drive.path();
    if read.recorder.latencies.count() == 0 {
        return Err(RunError::NoRead { path: path.to_owned(), error: error.to_string() });
    }
    let end = if read.gave_up { "; it was read no more" } else { "" };
    let errors = read.recorder.errors;
    Ok(Some(format!("{}: {errors} reads failed, the last one by: {error}{end}", path.display())))
}

fn spawn<T: Send + 'static>(
    name: String,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>, RunError> {
    Builder::new().name(name).spawn(work).map_err(RunError::Thread)
}

/// A panic of a thread is one of the whole run.
fn join<T>(thread: JoinHandle<T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
