//! Programs that are measured: started, asked what they used, and ended.

use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use client::Credentials;
use rustix::process::{Pid, Signal, kill_process};
use serde::Deserialize;

/// Unit of processor times in /proc: USER_HZ, the same on all of Linux's common platforms.
const TICKS_PER_SECOND: f64 = 100.0;
/// Limit for a program to listen or to end.
const PATIENCE: Duration = Duration::from_secs(20);
/// Pause between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// A program in the background; killed when dropped.
pub(crate) struct Program {
    child: Child,
    log: PathBuf,
}

/// Returns an address of loopback with a free port.
pub(crate) fn free_address() -> Result<SocketAddr> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?)
}

impl Program {
    /// Starts `command` with its output behind what is in `log`.
    pub(crate) fn start(mut command: Command, log: &Path) -> Result<Self> {
        let file = File::options().create(true).append(true).open(log);
        let file = file.with_context(|| format!("write to {}", log.display()))?;
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        let child = command.spawn().with_context(|| format!("start {command:?}"))?;
        Ok(Self { child, log: log.to_owned() })
    }

    /// Waits until someone listens on `address`.
    pub(crate) fn wait_for(&mut self, address: SocketAddr) -> Result<()> {
        let begin = Instant::now();
        while TcpStream::connect(address).is_err() {
            if let Some(status) = self.child.try_wait()? {
                let log = fs::read_to_string(&self.log).unwrap_or_default();
                bail!("the server ended at once ({status}):\n{log}");
            }
            if begin.elapsed() > PATIENCE {
                bail!("no program listens on {address} after {PATIENCE:?}");
            }
            std::thread::sleep(LOOK_EVERY);
        }
        Ok(())
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Processor time used so far, in user and kernel together.
    pub(crate) fn cpu_seconds(&self) -> Result<f64> {
        cpu_seconds(self.pid())
    }

    /// Processor time used so far, in user and in kernel.
    pub(crate) fn cpu_seconds_apart(&self) -> Result<[f64; 2]> {
        cpu_seconds_apart(self.pid())
    }

    /// Resident memory in bytes.
    pub(crate) fn resident_bytes(&self) -> Result<u64> {
        resident_bytes(self.pid())
    }

    /// Ends it without warning.
    pub(crate) fn kill(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Asks it to end, and waits.
    pub(crate) fn terminate(mut self) -> Result<()> {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, Signal::TERM)?;
        let begin = Instant::now();
        while begin.elapsed() < PATIENCE {
            if let Some(status) = self.child.try_wait()? {
                if status.success() {
                    return Ok(());
                }
                bail!("the server ended with {status} when asked to end");
            }
            std::thread::sleep(LOOK_EVERY);
        }
        bail!("the server does not end when asked to");
    }
}

/// Processor time of a process so far, in user and kernel together, threads that ended included.
pub(crate) fn cpu_seconds(pid: u32) -> Result<f64> {
    Ok(cpu_seconds_apart(pid)?.iter().sum())
}

/// The same, in user and in kernel.
fn cpu_seconds_apart(pid: u32) -> Result<[f64; 2]> {
    let [user, kernel, ..] = processor_times(pid)?;
    Ok([user, kernel])
}

/// Processor time of this process so far, and of its children that have ended.
pub(crate) fn own_and_childrens_cpu_seconds() -> Result<[f64; 2]> {
    let [user, kernel, childrens_user, childrens_kernel] = processor_times(std::process::id())?;
    Ok([user + kernel, childrens_user + childrens_kernel])
}

/// Processor time in seconds of a process, in user and in kernel, and of its children that have ended, in user and in kernel.
fn processor_times(pid: u32) -> Result<[f64; 4]> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name in parentheses may hold anything; fields are counted behind it.
    let fields = stat.rsplit_once(')').context("a malformed stat file")?.1;
    let mut fields = fields.split_whitespace().skip(11);
    let mut seconds = || -> Result<f64> {
        let ticks = fields.next().and_then(|ticks| ticks.parse::<u64>().ok());
        Ok(ticks.context("a malformed stat file")? as f64 / TICKS_PER_SECOND)
    };
    Ok([seconds()?, seconds()?, seconds()?, seconds()?])
}

/// A process's resident memory in bytes.
pub(crate) fn resident_bytes(pid: u32) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")).context("no VmRSS")?;
    Ok(kib.parse::<u64>()? << 10)
}

impl Drop for Program {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The access to a server's volumes: by tokens, or open to every host.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Doors {
    Open,
    Guarded,
    /// By tokens made for SHA-512, which is what the exchange uses, too.
    GuardedBySha512,
}

impl Doors {
    /// Returns the arguments for the server.
    fn arguments(self) -> &'static [&'static str] {
        match self {
            Self::Open => &["--auth", "off"],
            Self::Guarded => &["--auth", "on"],
            Self::GuardedBySha512 => &["--auth", "on", "--auth-hashes", "sha512"],
        }
    }
}

/// A `farflash serve`.
pub(crate) struct Server {
    farflash: PathBuf,
    device: String,
    doors: Doors,
    pub(crate) portal: SocketAddr,
    pub(crate) api: SocketAddr,
    log: PathBuf,
    pub(crate) program: Program,
    /// From the start of the program until it answered.
    pub(crate) startup: Duration,
}

/// The output of `volume create --json`, as far as it is used here.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct VolumeAddress {
    pub(crate) nqn: String,
    pub(crate) address: SocketAddr,
    /// Token that opens the volume.
    pub(crate) token: String,
}

impl VolumeAddress {
    /// The form that `farflash bench --target` takes.
    pub(crate) fn target(&self) -> String {
        format!("tcp://{}/{}", self.address, self.nqn)
    }
}

impl VolumeAddress {
    /// Credentials of the volume, for the client library.
    pub(crate) fn credentials(&self) -> Result<Credentials> {
        let secret = self.token.parse().map_err(|error| anyhow!("the volume's token: {error}"))?;
        Ok(Credentials { secret, controller_secret: None })
    }
}

impl Server {
    /// Serves `device` from CPU `cpu`, to every host.
    pub(crate) fn start(farflash: &Path, device: &str, cpu: usize, log: &Path) -> Result<Self> {
        Self::start_with(farflash, device, Doors::Open, cpu, log)
    }

    /// Serves `device` from CPU `cpu`.
    pub(crate) fn start_with(
        farflash: &Path,
        device: &str,
        doors: Doors,
        cpu: usize,
        log: &Path,
    ) -> Result<Self> {
        let (portal, api) = (free_address()?, free_address()?);
        let begin = Instant::now();
        let program = launch(farflash, (device, doors), cpu, (portal, api), log)?;
        Ok(Self {
            farflash: farflash.to_owned(),
            device: device.to_owned(),
            doors,
            portal,
            api,
            log: log.to_owned(),
            program,
            startup: begin.elapsed(),
        })
    }

    /// Starts it again at the same addresses.
    pub(crate) fn restart(&mut self, cpu: usize) -> Result<()> {
        let addresses = (self.portal, self.api);
        let served = (self.device.as_str(), self.doors);
        self.program = launch(&self.farflash, served, cpu, addresses, &self.log)?;
        Ok(())
    }

    /// Creates a volume through the command line.
    pub(crate) fn create_volume(&self, name: &str, size: &str) -> Result<VolumeAddress> {
        let api = format!("http://{}", self.api);
        let args = ["volume", "create", name, "--size", size, "--api", &api, "--json"];
        let output = run(Command::new(&self.farflash).args(args))?;
        serde_json::from_str(&output).with_context(|| format!("not understood: {output}"))
    }

    /// Deletes a volume with all that it holds.
    pub(crate) fn delete_volume(&self, name: &str) -> Result<()> {
        let api = format!("http://{}", self.api);
        let args = ["volume", "delete", name, "--lose-data", "--api", &api];
        run(Command::new(&self.farflash).args(args)).map(drop)
    }
}

fn launch(
    farflash: &Path,
    (device, doors): (&str, Doors),
    cpu: usize,
    (portal, api): (SocketAddr, SocketAddr),
    log: &Path,
) -> Result<Program> {
    let mut command = Command::new(farflash);
    command.args(["serve", "--device", device]).args(doors.arguments());
    command.args(["--cores", &cpu.to_string(), "--listen", &portal.to_string()]);
    command.args(["--api", &api.to_string()]);
    let mut program = Program::start(command, log)?;
    program.wait_for(api)?;
    program.wait_for(portal)?;
    Ok(program)
}

/// Runs `command` to its end and returns what it printed.
pub(crate) fn run(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("start {command:?}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{command:?} failed ({}):\n{said}", output.status);
    }
    Ok(String::from_utf8(output.stdout)?)
}

/// Returns true if `program` can be started.
pub(crate) fn is_installed(program: &str) -> bool {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&paths).any(|directory| directory.join(program).is_file())
}
