//! The real binary: run to its end, or as a server that is killed when dropped.

pub mod audit;
pub mod cluster;
pub mod datastore;
pub mod file_system;
pub mod foreign;
pub mod gate;
pub mod host;
pub mod initiator;
pub mod library;
pub mod listener;
pub mod loop_device;
pub mod nbd;
pub mod networks;
pub mod proxy;
pub mod tokens;
pub mod users;

use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, mpsc};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use serde_json::Value;
pub use test_support::waiting::{PATIENCE, until};
pub use test_support::{cgroup, fuse_switch, skipped};

/// Longest run of the binary to its end. Reached only when something is wrong.
const RUN_LIMIT: Duration = Duration::from_secs(300);

/// The binary with `arguments`, not yet run.
pub fn farflash(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_farflash"));
    command.args(arguments);
    for variable in ["API", "API_TOKEN", "LOG", "TOKEN", "CONTROLLER_TOKEN"] {
        command.env_remove(format!("FARFLASH_{variable}"));
    }
    command
}

/// The result of a run.
#[derive(Debug)]
pub struct Outcome {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl From<Output> for Outcome {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

/// Runs the binary to its end. One that does not end is killed, and has no exit code then.
pub fn run(arguments: &[&str]) -> Outcome {
    let mut command = farflash(arguments);
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = child.spawn().unwrap();
    let pid = Pid::from_child(&child);
    let (ended, end) = mpsc::channel::<()>();
    let guard = std::thread::spawn(move || {
        if end.recv_timeout(RUN_LIMIT) == Err(mpsc::RecvTimeoutError::Timeout) {
            let _ = kill_process(pid, Signal::KILL);
        }
    });
    let output = child.wait_with_output().unwrap();
    drop(ended);
    guard.join().unwrap();
    output.into()
}

/// Runs it, and demands success; its standard output.
pub fn succeed(arguments: &[&str]) -> String {
    let outcome = run(arguments);
    assert_eq!(outcome.code, Some(0), "{arguments:?}: {outcome:?}");
    outcome.stdout
}

/// Runs it, and demands a refusal with this exit code, whose message has `what` and whose advice
/// has `remedy`.
pub fn refused(arguments: &[&str], code: i32, what: &str, remedy: &str) {
    let outcome = run(arguments);
    assert_eq!(outcome.code, Some(code), "{arguments:?}: {outcome:?}");
    // It may have said before that it waits for something.
    let said = outcome.stderr.lines().skip_while(|line| line.contains("waiting for "));
    let said: Vec<&str> = said.collect();
    let [first, second] = said[..] else { panic!("{arguments:?}: {outcome:?}") };
    assert!(first.starts_with("error: ") && first.contains(what), "{arguments:?}: {outcome:?}");
    let second = second.strip_prefix(" hint: ").unwrap_or_default();
    assert!(second.contains(remedy), "{arguments:?}: {outcome:?}");
    let destroys =
        outcome.stderr.contains("farflash format --device") && second.contains("--force");
    assert!(!destroys, "no message tells how to destroy what may be ours: {outcome:?}");
}

/// The first `count` CPUs that this process may use, as `--cores` takes them; `None` if there are
/// fewer.
pub fn cores(count: usize) -> Option<String> {
    let allowed = reactor::allowed_cpus();
    let cores = allowed.get(..count)?.iter().map(usize::to_string);
    Some(cores.collect::<Vec<_>>().join(","))
}

/// A host on loopback that only one test uses: the connections and listeners of others take no port of it,
/// not even while there is no listener. The etcd of a test program has hosts with other last octets.
pub fn own_host() -> Ipv4Addr {
    static LAST: AtomicU8 = AtomicU8::new(251);
    let [_, _, high, low] = std::process::id().to_be_bytes();
    let last = LAST.fetch_add(1, Ordering::Relaxed);
    assert!(last < 255, "a test program has four");
    Ipv4Addr::new(127, high.max(1), low, last)
}

/// A directory for a test's files.
pub struct Files(tempfile::TempDir);

impl Files {
    pub fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// The device specification of the file `name`.
    pub fn device(&self, name: &str) -> String {
        device(&self.path(name))
    }
}

pub fn device(path: &Path) -> String {
    format!("file:{}", path.display())
}

/// A server on ports of the kernel's choice. Volumes are opened by their tokens unless a test says otherwise. Killed when
/// dropped.
pub struct Server {
    child: Child,
    pub api: String,
    pub portals: Vec<SocketAddr>,
    /// Lines that it logged until it was ready.
    pub starting: Vec<Value>,
    /// Lines that it logs after it was ready, as they come.
    log: mpsc::Receiver<Value>,
    /// Held while a line is read.
    reading: Arc<Mutex<()>>,
}

impl Server {
    /// Starts one on one core and waits until it is ready.
    pub fn start(device: &str) -> Self {
        Self::start_with(device, &[])
    }

    pub fn start_with(device: &str, more: &[&str]) -> Self {
        Self::start_on(device, "127.0.0.1:0", "127.0.0.1:0", more)
    }

    pub fn start_on(device: &str, listen: &str, api: &str, more: &[&str]) -> Self {
        let arguments = ["serve", "--device", device, "--listen", listen, "--api", api];
        Self::from_arguments(&[&arguments[..], &["--log-json"], more].concat())
    }

    /// Starts one with these words, and waits until it is ready.
    pub fn from_arguments(arguments: &[&str]) -> Self {
        Self::spawn(&mut farflash(arguments))
    }

    /// Starts one in a network namespace, on all its addresses.
    pub fn start_within(namespace: &str, device: &str, more: &[&str]) -> Self {
        let arguments =
            ["serve", "--device", device, "--listen", "0.0.0.0:0", "--api", "127.0.0.1:0"];
        let arguments = [&arguments[..], &["--log-json"], more].concat();
        let command = farflash(&arguments);
        let mut inside = Command::new("ip");
        inside.args(["netns", "exec", namespace]).arg(command.get_program()).args(&arguments);
        Self::spawn(&mut inside)
    }

    /// Starts one by a command that becomes it: its words come before the server's.
    pub fn start_by(command: &str, words: &[&str], device: &str, more: &[&str]) -> Self {
        let arguments =
            ["serve", "--device", device, "--listen", "127.0.0.1:0", "--api", "127.0.0.1:0"];
        let arguments = [&arguments[..], &["--log-json"], more].concat();
        let mut by = Command::new(command);
        by.args(words).arg(farflash(&[]).get_program()).args(&arguments);
        Self::spawn(&mut by)
    }

    /// Starts one whose log has what `filter` lets through.
    pub fn start_logging(filter: &str, device: &str, more: &[&str]) -> Self {
        let arguments =
            ["serve", "--device", device, "--listen", "127.0.0.1:0", "--api", "127.0.0.1:0"];
        let arguments = [&arguments[..], &["--log-json"], more].concat();
        Self::spawn(farflash(&arguments).env("FARFLASH_LOG", filter))
    }

    fn spawn(command: &mut Command) -> Self {
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let (mut api, mut portals) = (None, Vec::new());
        let mut seen = Vec::new();
        while api.is_none() {
            let Some(Ok(line)) = lines.next() else { panic!("not ready: {seen:?}") };
            let whole = serde_json::from_str(&line).unwrap_or(Value::String(line));
            let fields = &whole["fields"];
            if let Some(portal) = fields["portal"].as_str() {
                portals.push(portal.parse().unwrap());
            }
            api = fields["api"].as_str().map(str::to_owned);
            seen.push(whole);
        }
        let (sender, log) = mpsc::channel();
        let reading = Arc::new(Mutex::new(()));
        let may_read = reading.clone();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let _reading = may_read.lock();
                let _ = sender.send(serde_json::from_str(&line).unwrap_or_default());
            }
        });
        Self { child, api: api.unwrap(), portals, starting: seen, log, reading }
    }

    /// Runs `farflash volume …` against this server.
    pub fn volume(&self, arguments: &[&str]) -> Outcome {
        run(&[&["volume"], arguments, &["--api", &self.api]].concat())
    }

    /// Runs `farflash volume … --json` and reads what it printed. A token in the output is kept, to open the
    /// volume with.
    pub fn volume_json(&self, arguments: &[&str]) -> Value {
        let outcome = self.volume(&[arguments, &["--json"]].concat());
        assert_eq!(outcome.code, Some(0), "{arguments:?}: {outcome:?}");
        let answer = serde_json::from_str(&outcome.stdout).unwrap();
        tokens::keep(&answer);
        answer
    }

    /// Resident memory in bytes.
    pub fn resident_bytes(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() << 10
    }

    /// The number of its process.
    pub fn process(&self) -> u32 {
        self.child.id()
    }

    /// Files and sockets that it has open.
    pub fn open_files(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.child.id())).unwrap().count()
    }

    /// Processor time used so far, in user and kernel together.
    pub fn cpu_time(&self) -> Duration {
        /// USER_HZ is 100 on all of Linux's common platforms.
        const TICK: Duration = Duration::from_millis(10);
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
        // The name in parentheses may hold anything; fields are counted behind it.
        let fields = stat.rsplit_once(')').unwrap().1.split_whitespace();
        TICK * fields.skip(11).take(2).map(|ticks| ticks.parse::<u32>().unwrap()).sum::<u32>()
    }

    /// Sends a signal: `TERM`, `INT`, `HUP`, `KILL`.
    pub fn signal(&self, name: &str) {
        let signal = match name {
            "TERM" => Signal::TERM,
            "INT" => Signal::INT,
            "HUP" => Signal::HUP,
            _ => Signal::KILL,
        };
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Stops it as it is: it answers nothing any more.
    pub fn pause(&self) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, Signal::STOP).unwrap();
        waitid(WaitId::Pid(pid), WaitIdOptions::STOPPED).unwrap();
    }

    /// Lets it go on that was stopped.
    pub fn resume(&self) {
        kill_process(Pid::from_child(&self.child), Signal::CONT).unwrap();
    }

    /// Waits until it logs a message that begins with `text`.
    pub fn wait_for_log(&self, text: &str) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let line = self.log.recv_timeout(left).expect("the message comes");
            if line["fields"]["message"].as_str().is_some_and(|message| message.starts_with(text)) {
                return;
            }
        }
    }

    /// The fields of what it logs until one of these fits.
    pub fn log_until(&self, fits: impl Fn(&Value) -> bool) -> Vec<Value> {
        let deadline = Instant::now() + PATIENCE;
        let mut lines = Vec::new();
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let line = self.log.recv_timeout(left).expect("the line comes")["fields"].take();
            let is_last = fits(&line);
            lines.push(line);
            if is_last {
                return lines;
            }
        }
    }

    /// Its log is not read until this is dropped.
    pub fn unheard(&self) -> MutexGuard<'_, ()> {
        self.reading.lock().unwrap()
    }

    /// Waits for its end; the exit code, if it was no signal that ended it.
    pub fn wait(mut self) -> Option<i32> {
        // The log closes when the process ends.
        let deadline = Instant::now() + PATIENCE;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.log.recv_timeout(left) {
                Ok(_) => {}
                Err(mpsc::RecvTimeoutError::Disconnected) => break,
                Err(mpsc::RecvTimeoutError::Timeout) => panic!("the server does not end"),
            }
        }
        self.child.wait().unwrap().code()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
