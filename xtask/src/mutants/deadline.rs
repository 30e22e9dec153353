//! The end of a run by the clock, which holds for what it starts, too.

use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Between two looks at a program that runs.
const STEP: Duration = Duration::from_millis(10);

/// When a run is to be over, if ever.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deadline(Option<Instant>);

impl Deadline {
    /// A run that may take `time` from now on.
    pub(super) fn after(time: Option<Duration>) -> Self {
        Self(time.map(|time| Instant::now() + time))
    }

    pub(super) fn has_passed(self) -> bool {
        self.0.is_some_and(|end| Instant::now() >= end)
    }

    /// Shortens a limit of time to what is left.
    pub(super) fn within(self, limit: Duration) -> Duration {
        let left = self.0.map(|end| end.saturating_duration_since(Instant::now()));
        left.map_or(limit, |left| limit.min(left))
    }

    /// Fails with `TimedOut` if it has passed.
    pub(super) fn check(self) -> io::Result<()> {
        if self.has_passed() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(()) }
    }

    /// Runs `command` to its end and returns what it wrote. Ends it, with all that it started, when the deadline passes, and
    /// fails with `TimedOut` then.
    pub(super) fn output(self, command: &mut Command) -> io::Result<Output> {
        self.check()?;
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.process_group(0).spawn()?;
        let stdout = read(child.stdout.take().expect("it is a pipe"));
        let stderr = read(child.stderr.take().expect("it is a pipe"));
        let status = loop {
            if let Some(status) = child.try_wait()? {
                break status;
            }
            if self.has_passed() {
                end(&mut child)?;
                return Err(io::ErrorKind::TimedOut.into());
            }
            thread::sleep(STEP);
        };
        let [stdout, stderr] = [stdout, stderr].map(|reader| reader.join().expect("it reads"));
        Ok(Output { status, stdout: stdout?, stderr: stderr? })
    }
}

fn read(mut pipe: impl Read + Send + 'static) -> thread::JoinHandle<io::Result<Vec<u8>>> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        pipe.read_to_end(&mut bytes).map(|_| bytes)
    })
}

/// Ends a program that has a process group of its own, and the group.
pub(super) fn end(child: &mut Child) -> io::Result<()> {
    let group = format!("-{}", child.id());
    Command::new("kill").args(["-9", "--", &group]).stderr(Stdio::null()).status()?;
    child.wait()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_ended_with_what_it_started() {
        let endless = || {
            let mut command = Command::new("sh");
            command.args(["-c", "sleep 1000 & echo begun; wait"]);
            command
        };
        let soon = Deadline::after(Some(Duration::from_millis(50)));
        let error = soon.output(&mut endless()).expect_err("it has no end of its own");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(soon.has_passed());
        assert_eq!(soon.within(Duration::from_secs(1)), Duration::ZERO);
        let error = soon.output(&mut Command::new("true")).expect_err("it is too late");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[test]
    fn without_a_deadline_it_runs_to_its_end() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo out; echo err >&2; exit 3"]);
        let never = Deadline::after(None);
        let output = never.output(&mut command).expect("it runs");
        assert_eq!((output.stdout, output.stderr), (b"out\n".to_vec(), b"err\n".to_vec()));
        assert_eq!(output.status.code(), Some(3));
        assert_eq!(never.within(Duration::from_secs(1)), Duration::from_secs(1));
    }
}
