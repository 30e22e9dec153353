//! Figures 4a and 4b of EuroSys'16 in real time, in small: two real datastores on file systems of this machine, one over a
//! local file, one over a volume of a real server that is attached as a file. Both lie on loop devices, on files beside each
//! other, so that they differ in the way to Flash alone.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use control::{CreateVolume, VolumeSize};
use kv_load::{Loop, PeakSearch, RunError, Setup, Workload, WriteCommand};
use reproduce::eurosys::real_time::{self, PERCENTILES};
use reproduce::{Outcome, Progress, ReproduceError};
use user_messages::Failure;
use user_messages::output::note;

use super::real_time::Server;
use crate::commands::interrupt::Interrupt;

/// Bytes of each file system, and of the device that has the remote one.
const VOLUME_BYTES: u64 = 2 << 30;
const DEVICE_BYTES: u64 = 3 << 30;
/// Keys, whose values fill several times the memory of a datastore.
const KEYS: u64 = 40_000;
const KEY_BYTES: &str = "uniform:17,21";
/// Values as they have grown, and what each set adds.
const GROWN_BYTES: &str = "uniform:100,10000";
const ADDED_BYTES: &str = "100";
const MEMORY: &str = "64MiB";
/// Measured time of each round and way, of which `--time` is a part.
const SECONDS: f64 = 60.0;
const WARM_UP: Duration = Duration::from_millis(500);
/// Rounds, in each of which both ways are measured.
const UNLOADED_ROUNDS: usize = 5;
const PEAK_ROUNDS: usize = 3;
/// Latency of 95 % of gets at a peak.
const LIMIT: Duration = Duration::from_micros(1_500);
const FIRST_RATE: f64 = 1_000.0;
const PEAK_TOLERANCE: f64 = 0.06;
const GETS: f64 = 0.9;
const CONNECTIONS: usize = 16;
const DEPTH: usize = 64;
/// Time for the compactions that filling leaves behind.
const SETTLE: Duration = Duration::from_secs(5);
/// Until a datastore listens.
const PATIENCE: Duration = Duration::from_secs(30);
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// A figure that has a form here.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Part {
    /// 4a: gets one at a time.
    Unloaded,
    /// 4b: the peak.
    Peak,
}

impl Part {
    /// The part that a figure is.
    pub(super) fn of(figure: &str) -> Option<Self> {
        match figure {
            "eurosys-4a" => Some(Self::Unloaded),
            "eurosys-4b" => Some(Self::Peak),
            _ => None,
        }
    }
}

/// Measures the figure, with all files in a directory in `out` that is removed at the end.
pub(super) fn run(
    part: Part,
    out: &Path,
    time: f64,
    seed: u64,
    progress: Progress<'_>,
) -> Result<Outcome, Failure> {
    if !(time > 0.0 && time <= 1.0) {
        let what = "a part of the time is above 0 and at most 1";
        return Err(Failure::usage(what, "try --time 0.05"));
    }
    let stop = Interrupt::catch(true)?.flag();
    let world = World::new(out, seed)?;
    let load = Load { seconds: Duration::from_secs_f64(SECONDS * time), seed, stop: &stop };
    let outcome = match part {
        Part::Unloaded => {
            let measure = |way| load.latencies(world.datastores[way]);
            real_time::unloaded(&by_turns(UNLOADED_ROUNDS, progress, measure)?)
        }
        Part::Peak => {
            let measure = |way| load.peak(world.datastores[way]);
            real_time::peaks(&by_turns(PEAK_ROUNDS, progress, measure)?)
        }
    };
    outcome.map_err(|error: ReproduceError| Failure::runtime(error.to_string(), "report this"))
}

/// Measures both ways in each round, the other one first in every second round.
fn by_turns<T: Copy + Default>(
    rounds: usize,
    progress: Progress<'_>,
    measure: impl Fn(usize) -> Result<T, Failure>,
) -> Result<Vec<[T; 2]>, Failure> {
    let mut all = Vec::new();
    for round in 0..rounds {
        let mut measured = [T::default(); 2];
        for turn in 0..2 {
            let way = (turn + round) % 2;
            measured[way] = measure(way)?;
            progress((2 * round + turn + 1) as f64 / (2 * rounds) as f64);
        }
        all.push(measured);
    }
    Ok(all)
}

/// Load on a datastore.
struct Load<'a> {
    seconds: Duration,
    seed: u64,
    stop: &'a AtomicBool,
}

impl Load<'_> {
    fn latencies(&self, address: SocketAddr) -> Result<[f64; PERCENTILES.len()], Failure> {
        let one = Setup { connections: 1, depth: 1, ..setup(address, self.seed)? };
        let outcome = self.measure(&one)?;
        let us = |percent| outcome.read_latencies.percentile(percent).as_secs_f64() * 1e6;
        Ok(PERCENTILES.map(us))
    }

    fn peak(&self, address: SocketAddr) -> Result<f64, Failure> {
        let mut search = PeakSearch::new(FIRST_RATE, PEAK_TOLERANCE);
        let calm = setup(address, self.seed)?;
        while let Some(rate) = search.next() {
            let pace = Loop::Open { rate, arrivals: kv_load::Arrivals::Poisson };
            let workload = Workload { read_share: GETS, ..calm.workload.clone() };
            let outcome = self.measure(&Setup { pace, workload, ..calm.clone() })?;
            search.on_result(outcome.keeps(LIMIT, |latencies| latencies.percentile(95.0)));
        }
        search.peak().ok_or_else(|| {
            let what = "95 % of gets take longer than 1.5 ms even without load";
            Failure::runtime(what, "run it on a machine that does less besides")
        })
    }

    fn measure(&self, setup: &Setup) -> Result<kv_load::Outcome, Failure> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(Failure::runtime("ended by Ctrl-C", "run it again for its figures"));
        }
        let setup = Setup { duration: self.seconds, ..setup.clone() };
        kv_load::run(&setup).map_err(|error| load_failed(&error))
    }
}

fn load_failed(error: &RunError) -> Failure {
    Failure::runtime(format!("the load of a datastore failed: {error}"), "see its log in --out")
}

/// Gets in a closed loop.
fn setup(address: SocketAddr, seed: u64) -> Result<Setup, Failure> {
    let sizes = |text: &str| {
        text.parse().map_err(|error| Failure::runtime(format!("{text}: {error}"), "report this"))
    };
    let workload = Workload {
        keys: KEYS,
        key_sizes: sizes(KEY_BYTES)?,
        value_sizes: sizes(ADDED_BYTES)?,
        popularity: kv_load::Popularity::Uniform,
        read_share: 1.0,
        write: WriteCommand::Set,
        seed,
    };
    Ok(Setup {
        address,
        tls: None,
        password: None,
        threads: 1,
        connections: CONNECTIONS,
        depth: DEPTH,
        pace: Loop::Closed,
        warm_up: WARM_UP,
        duration: WARM_UP,
        drain: PATIENCE,
        probe_rate: 0.0,
        workload,
    })
}

/// Both datastores, filled, local first.
struct World {
    datastores: [SocketAddr; 2],
    _made: Made,
}

impl World {
    fn new(out: &Path, seed: u64) -> Result<Self, Failure> {
        let mut made = Made::new(out)?;
        let local = made.directory.join("local.img");
        let image = fs::File::create_new(&local).and_then(|file| file.set_len(VOLUME_BYTES));
        image.map_err(|error| failed(format!("{} cannot be made: {error}", local.display())))?;
        let remote = made.remote_file()?;
        let mut datastores = Vec::new();
        for (name, file) in ["local", "remote"].into_iter().zip([local, remote]) {
            let mounted = made.mount(name, &file)?;
            let address = made.datastore(name, &mounted)?;
            let calm = setup(address, seed)?;
            let value_sizes = GROWN_BYTES.parse().unwrap_or(calm.workload.value_sizes);
            let grown = Workload { value_sizes, ..calm.workload.clone() };
            let filled = kv_load::fill(&Setup { workload: grown, ..calm });
            let filled = filled.map_err(|error| load_failed(&error))?;
            if let Some(error) = filled.first_error {
                return Err(failed(format!("the datastore of {name} cannot be filled: {error}")));
            }
            datastores.push(address);
        }
        thread::sleep(SETTLE);
        let datastores = datastores.try_into().expect("one for each way");
        Ok(Self { datastores, _made: made })
    }
}

fn failed(what: String) -> Failure {
    Failure::runtime(
        what,
        "run it as root, with losetup, mkfs.ext4 and /dev/fuse, and 4 GiB free in --out",
    )
}

/// Something that was made, to be taken back.
enum Step {
    Process(Child),
    Server(Server),
    Command(Vec<String>),
}

/// All that was made, taken back in reverse when this is dropped.
struct Made {
    directory: PathBuf,
    steps: Vec<Step>,
}

impl Drop for Made {
    fn drop(&mut self) {
        while let Some(step) = self.steps.pop() {
            match step {
                Step::Process(mut child) => {
                    let _ = child.kill();
                    let _ = child.wait();
                }
                Step::Server(server) => drop(server),
                Step::Command(words) => {
                    if let Err(error) = run_command(&words) {
                        note(&format!("something is left behind: {error}"));
                    }
                }
            }
        }
        if let Err(error) = fs::remove_dir_all(&self.directory) {
            note(&format!("{} is left behind: {error}", self.directory.display()));
        }
    }
}

impl Made {
    fn new(out: &Path) -> Result<Self, Failure> {
        let out = out.canonicalize().map_err(|error| failed(format!("--out: {error}")))?;
        let directory = out.join("datastores");
        fs::create_dir(&directory).map_err(|error| {
            let what = format!("{} cannot be made: {error}", directory.display());
            Failure::runtime(what, "remove what another run left there, or name another --out")
        })?;
        Ok(Self { directory, steps: Vec::new() })
    }

    fn path(&self, name: &str) -> String {
        self.directory.join(name).display().to_string()
    }

    /// Runs a command, and `back` at the end.
    fn command(&mut self, words: &[&str], back: &[&str]) -> Result<String, Failure> {
        let owned = |words: &[&str]| -> Vec<String> {
            words.iter().map(|word| (*word).to_owned()).collect()
        };
        let output = run_command(&owned(words)).map_err(failed)?;
        if !back.is_empty() {
            self.steps.push(Step::Command(owned(back)));
        }
        Ok(output)
    }

    /// A volume of a server of its own as a file.
    fn remote_file(&mut self) -> Result<PathBuf, Failure> {
        let own = own_program()?;
        let device = format!("file:{}", self.path("device.img"));
        let sized = format!("{device},size={DEVICE_BYTES}");
        self.command(&[&own, "format", "--device", &sized], &[])?;
        let server = Server::start(&device)?;
        let name = "datastore".parse().expect("a name");
        let size_bytes = VolumeSize::try_from(VOLUME_BYTES).expect("a size");
        server.api.create(&CreateVolume::new(name, size_bytes))?;
        let url = server.url.clone();
        self.steps.push(Step::Server(server));
        let (path, state) = (self.path("remote.vol"), self.path("attached"));
        let attach =
            [&own, "attach", "datastore", "--api", &url, "--path", &path, "--state-dir", &state];
        self.command(&attach, &[&own, "detach", "datastore", "--state-dir", &state])?;
        Ok(PathBuf::from(path))
    }

    /// Mounts a new file system on a loop device over `file`.
    fn mount(&mut self, name: &str, file: &Path) -> Result<PathBuf, Failure> {
        let file = file.display().to_string();
        let attached = ["losetup", "--find", "--show", "--direct-io=on", &file];
        let device = self.command(&attached, &[])?.trim().to_owned();
        self.steps.push(Step::Command(vec!["losetup".into(), "--detach".into(), device.clone()]));
        self.command(&["mkfs.ext4", "-q", "-E", "lazy_itable_init=0", &device], &[])?;
        let at = self.directory.join(format!("{name}.mounted"));
        fs::create_dir(&at).map_err(|error| failed(error.to_string()))?;
        let shown = at.display().to_string();
        self.command(&["mount", &device, &shown], &["umount", &shown])?;
        Ok(at)
    }

    /// A datastore with its data in `mounted`.
    fn datastore(&mut self, name: &str, mounted: &Path) -> Result<SocketAddr, Failure> {
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|free| free.local_addr());
        let address = free.map_err(|error| failed(error.to_string()))?;
        let (log, data) = (self.path(&format!("{name}.log")), mounted.join("kv"));
        let file = fs::File::create(&log).map_err(|error| failed(error.to_string()))?;
        let child = Command::new(own_program()?)
            .args(["datastore", "serve", "--listen", &address.to_string(), "--direct-io", "--data"])
            .arg(&data)
            .args(["--memory", MEMORY, "--set", "append", "--append-max", "10kB"])
            .stdin(Stdio::null())
            .stderr(file)
            // Ctrl-C is for this process, which ends its children in order.
            .process_group(0)
            .spawn()
            .map_err(|error| failed(error.to_string()))?;
        self.steps.push(Step::Process(child));
        let Some(Step::Process(child)) = self.steps.last_mut() else { unreachable!("just made") };
        let begin = Instant::now();
        while TcpStream::connect(address).is_err() {
            let has_ended = child.try_wait().is_ok_and(|status| status.is_some());
            if has_ended || begin.elapsed() > PATIENCE {
                let said = fs::read_to_string(&log).unwrap_or_default();
                let what = format!("the datastore does not start: {}", said.trim());
                let remedy =
                    "install the package farflash-datastore, or build it by `make datastore`";
                return Err(Failure::runtime(what, remedy));
            }
            thread::sleep(LOOK_EVERY);
        }
        Ok(address)
    }
}

fn own_program() -> Result<String, Failure> {
    let path = std::env::current_exe().map_err(|error| failed(error.to_string()))?;
    Ok(path.display().to_string())
}

fn run_command(words: &[String]) -> Result<String, String> {
    let (program, arguments) = words.split_first().expect("a program");
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("{program} cannot be run: {error}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("`{}` failed: {}", words.join(" "), said.trim()));
    }
    String::from_utf8(output.stdout).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    /// Noise that comes and goes hits both ways alike.
    #[test]
    fn ways_are_measured_by_turns() {
        let order = RefCell::new(Vec::new());
        let measured = by_turns(3, &mut |_| (), |way| {
            order.borrow_mut().push(way);
            Ok(way + 10)
        });
        assert_eq!(measured.unwrap(), [[10, 11]; 3]);
        assert_eq!(*order.borrow(), [0, 1, 1, 0, 0, 1]);
    }

    /// Steps are taken back in reverse, and one that fails does not keep the others.
    #[test]
    fn all_that_was_made_is_taken_back_in_reverse() {
        let out = tempfile::tempdir().unwrap();
        let log = out.path().join("log");
        let mut made = Made::new(out.path()).unwrap();
        assert!(Made::new(out.path()).is_err(), "another run is under way");
        for number in 0..3 {
            let say = format!("echo {number} >>{}", log.display());
            let back = ["sh", "-c", if number == 1 { "exit 1" } else { &say }];
            made.command(&["true"], &back).unwrap();
        }
        let error = made.command(&["sh", "-c", "echo no >&2; exit 1"], &["false"]).unwrap_err();
        assert!(format!("{error:?}").contains("no"), "{error:?}");
        let directory = made.directory.clone();
        drop(made);
        assert_eq!(fs::read_to_string(log).unwrap(), "2\n0\n");
        assert!(!directory.exists());
    }
}
