//! Runs test programs with one mutant selected, within limits.

use std::io::{self, BufRead, BufReader};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use super::deadline;
use super::splice::{ACTIVE, REACHED};
use super::tree::Program;

/// Address space of a test program in KiB. A mutant that allocates without end fails there, and not the machine.
const ADDRESS_SPACE_KIB: u64 = 8 << 20;
/// Sets limits and becomes the program.
const LIMITED: &str = "ulimit -S -t \"$0\"; ulimit -v \"$1\"; ulimit -c 0; shift; exec \"$@\"";
/// The same, and writes to a file how much processor time the program took.
const MEASURED: &str = "ulimit -S -t \"$0\"; ulimit -v \"$1\"; ulimit -c 0; shift; \"$@\"; status=$?; \
    times >\"$FARFLASH_MUTANTS_REACHED.times\"; exit $status";

/// The signal that ends a process at its limit of processor time.
const SIGXCPU: i32 = 24;

/// The end of a test program.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Outcome {
    Passed,
    /// The test that failed, if one did by itself.
    Failed(Option<String>),
    /// It was ended at its limit of time.
    TimedOut,
}

/// Limits of a run: by the clock for one that waits for ever, by the processor's time for one that loops, since the
/// latter does not depend on the load of the machine.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) wall: Duration,
    pub(super) processor_seconds: u64,
}

impl Limits {
    /// Returns the limits of tests that take `usual` without a mutant.
    pub(super) fn of(usual: Duration) -> Self {
        Self {
            wall: Duration::from_secs(15) + 10 * usual,
            processor_seconds: 4 + 4 * usual.as_secs(),
        }
    }
}

/// A run of tests with a mutant; 0 is none.
#[derive(Clone, Copy, Debug)]
pub(super) struct Trial<'a> {
    pub(super) program: &'a Program,
    pub(super) arguments: &'a [String],
    pub(super) mutant: u32,
    pub(super) limits: Limits,
    /// A folder for temporary files, which are removed afterwards.
    pub(super) scratch: &'a Path,
    /// The file to which functions that are reached are written.
    pub(super) reached: Option<&'a Path>,
}

/// Returns the arguments with which a test program runs these tests one after the other.
pub(super) fn exactly(tests: &[String]) -> Vec<String> {
    let options = ["--exact", "--test-threads=1"].map(str::to_owned);
    options.into_iter().chain(tests.iter().cloned()).collect()
}

impl Trial<'_> {
    /// Runs the program until a test fails.
    pub(super) fn run(&self, environment: &[(&str, &str)]) -> io::Result<Outcome> {
        std::fs::create_dir_all(self.scratch)?;
        let mut command = Command::new("sh");
        let script = if self.reached.is_some() { MEASURED } else { LIMITED };
        command.args(["-c", script, &self.limits.processor_seconds.to_string()]);
        command.arg(ADDRESS_SPACE_KIB.to_string()).arg(&self.program.executable);
        command.args(self.arguments);
        command.current_dir(&self.program.directory).envs(environment.iter().copied());
        command.env(ACTIVE, self.mutant.to_string()).env("TMPDIR", self.scratch);
        command.env("CARGO_MANIFEST_DIR", &self.program.directory).env("RUST_BACKTRACE", "0");
        if let Some(path) = self.reached {
            command.env(REACHED, path);
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.process_group(0).spawn()?;
        let outcome = wait(&mut child, self.limits.wall);
        // Also what the tests started themselves.
        deadline::end(&mut child)?;
        let outcome = outcome?;
        std::fs::remove_dir_all(self.scratch)?;
        Ok(outcome)
    }
}

/// Returns the processor time of the program that wrote what it reached to `reached`.
pub(super) fn processor_time(reached: &Path) -> Duration {
    let mut path = reached.as_os_str().to_owned();
    path.push(".times");
    let text = std::fs::read_to_string(path).unwrap_or_default();
    // The second line is of what the shell ran: user and system, as `0m1.230s`.
    let line = text.lines().nth(1).unwrap_or_default();
    let seconds = line.split_whitespace().filter_map(|word| {
        let (minutes, seconds) = word.strip_suffix('s')?.split_once('m')?;
        Some(minutes.parse::<f64>().ok()? * 60.0 + seconds.parse::<f64>().ok()?)
    });
    Duration::from_secs_f64(seconds.sum())
}

fn wait(child: &mut Child, limit: Duration) -> io::Result<Outcome> {
    let deadline = Instant::now() + limit;
    let failed = watch(child);
    match failed.recv_timeout(limit) {
        Ok(test) => return Ok(Outcome::Failed(Some(test))),
        Err(RecvTimeoutError::Timeout) => return Ok(Outcome::TimedOut),
        Err(RecvTimeoutError::Disconnected) => {}
    }
    while Instant::now() < deadline {
        if let Some(status) = child.try_wait()? {
            // A shell in between tells of the signal by its own status.
            let is_limit = status.signal() == Some(SIGXCPU) || status.code() == Some(128 + SIGXCPU);
            return Ok(match status.success() {
                true => Outcome::Passed,
                false if is_limit => Outcome::TimedOut,
                false => Outcome::Failed(None),
            });
        }
        thread::sleep(Duration::from_millis(2));
    }
    Ok(Outcome::TimedOut)
}

/// Sends the name of a test that fails. The sender is dropped when the program closes its output.
fn watch(child: &mut Child) -> Receiver<String> {
    let (sender, receiver) = channel();
    let output = child.stdout.take().expect("it is a pipe");
    thread::spawn(move || {
        for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
            let line = String::from_utf8_lossy(&line);
            if let Some(test) = line.strip_suffix(" ... FAILED")
                && sender.send(test.trim_start_matches("test ").to_owned()).is_err()
            {
                return;
            }
        }
    });
    receiver
}
