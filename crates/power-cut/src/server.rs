//! The real server, as a process that is killed.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::supply::Supply;

/// The longest wait for a server to be ready, or to end. Reached only when something is wrong.
const PATIENCE: Duration = Duration::from_secs(60);
/// Interval of polling while something is awaited.
const STEP: Duration = Duration::from_millis(5);

/// Settings with which a server is started.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) program: PathBuf,
    pub(crate) cores: usize,
    pub(crate) map_memory: &'static str,
    /// Stands behind each device.
    pub(crate) device_options: &'static str,
}

impl Settings {
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(arguments).stdin(Stdio::null());
        for variable in ["API", "API_TOKEN", "LOG", "TOKEN", "CONTROLLER_TOKEN"] {
            command.env_remove(format!("FARFLASH_{variable}"));
        }
        command
    }

    /// Runs the program to its end; what it printed if it did not succeed.
    pub(crate) fn run(&self, arguments: &[&str]) -> Result<(), String> {
        let output = self.command(arguments).output().map_err(|error| error.to_string())?;
        if output.status.success() {
            return Ok(());
        }
        let text = [output.stdout, output.stderr].concat();
        Err(format!("{arguments:?}: {}: {}", output.status, String::from_utf8_lossy(&text)))
    }
}

/// Outcome of a start.
pub(crate) enum Started {
    /// It serves.
    Ready(Server),
    /// The power went before. The process may still be there.
    Cut(Server),
    /// It ended by itself, with the power on.
    Ended(String),
}

pub(crate) struct Server {
    child: Child,
    /// Address of its API.
    pub(crate) api: String,
    reader: Option<JoinHandle<()>>,
}

impl Server {
    /// Starts one, and waits until it serves, or the power goes.
    pub(crate) fn start(
        settings: &Settings,
        devices: &[PathBuf],
        log: &Path,
        supply: &Supply,
    ) -> io::Result<Started> {
        let mut command = settings.command(&["serve", "--log-json", "--discovery", "off"]);
        for device in devices {
            let options = settings.device_options;
            command.arg("--device").arg(format!("file:{}{options}", device.display()));
        }
        let cores: Vec<String> = (0..settings.cores).map(|core| core.to_string()).collect();
        command.args(["--cores", &cores.join(","), "--map-memory", settings.map_memory]);
        command.args(["--core-memory", "32MiB", "--listen", "127.0.0.1:0", "--api", "127.0.0.1:0"]);
        let mut child = command.stderr(Stdio::piped()).stdout(Stdio::null()).spawn()?;
        let path = log;
        let mut log = File::options().create(true).append(true).open(path)?;
        writeln!(log, "# {command:?}")?;
        let lines = BufReader::new(child.stderr.take().expect("it is piped")).lines();
        let (said, apis) = mpsc::channel();
        let reader = thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let _ = writeln!(log, "{line}");
                let fields: Value = serde_json::from_str(&line).unwrap_or_default();
                if let Some(api) = fields["fields"]["api"].as_str() {
                    let _ = said.send(api.to_owned());
                }
            }
        });
        let mut server = Self { child, api: String::new(), reader: Some(reader) };
        let deadline = Instant::now() + PATIENCE;
        loop {
            match apis.recv_timeout(STEP) {
                Ok(api) => {
                    server.api = api;
                    return Ok(Started::Ready(server));
                }
                Err(_) if supply.is_off() => return Ok(Started::Cut(server)),
                // The power may have gone just before it ended.
                Err(mpsc::RecvTimeoutError::Disconnected) => {
                    let code = server.child.wait()?;
                    return Ok(match supply.is_off() {
                        true => Started::Cut(server),
                        false => Started::Ended(format!(
                            "the server does not start: {code}: {}",
                            last_words(path)?
                        )),
                    });
                }
                Err(mpsc::RecvTimeoutError::Timeout) if Instant::now() > deadline => {
                    return Ok(Started::Ended("the server is not ready in time".to_owned()));
                }
                Err(mpsc::RecvTimeoutError::Timeout) => {}
            }
        }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.api.trim_start_matches("http://"))
    }

    /// Kills it; it may still wait for the disk.
    pub(crate) fn kill(&self) {
        // It may have ended.
        let _ = kill_process(Pid::from_child(&self.child), Signal::KILL);
    }

    /// Tells it to end.
    pub(crate) fn terminate(&self) {
        let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
    }

    /// Waits for its end; its exit code, if it was no signal that ended it.
    pub(crate) fn wait(mut self) -> Result<Option<i32>, String> {
        let deadline = Instant::now() + PATIENCE;
        let status = loop {
            match self.child.try_wait().map_err(|error| error.to_string())? {
                Some(status) => break status,
                None if Instant::now() > deadline => {
                    return Err("the server does not end".to_owned());
                }
                None => thread::sleep(STEP),
            }
        };
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
        Ok(status.code())
    }
}

/// The last lines of a log.
fn last_words(log: &Path) -> io::Result<String> {
    const LINES: usize = 3;
    let text = std::fs::read_to_string(log)?;
    let lines: Vec<&str> = text.lines().collect();
    Ok(lines[lines.len().saturating_sub(LINES)..].join(" / "))
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The address of a portal, as a target of the library.
pub(crate) fn target(address: SocketAddr, nqn: &str) -> String {
    format!("tcp://{address}/{nqn}")
}
