//! Datastores on file systems of this machine, over local files and over attached volumes of one Flash server. All lie on loop
//! devices, on files beside each other, so that they differ in the way to Flash alone.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use reproduce::eurosys::real_time::steps::Network;
use rustix::fs::{FileType, Mode, OFlags, SeekFrom, fstat, open, seek};
use rustix::io::Errno;
use serde::Deserialize;
use user_messages::Failure;

use super::super::real_time::{Server, Serving};
use super::load::{Load, filled};
use super::made::{Made, Mark, failed, own_program, run_command};

/// Bytes of each file system.
const VOLUME_BYTES: u64 = 2 << 30;
/// Bytes of the Flash server's device beside its volumes.
const SPARE_BYTES: u64 = 1 << 30;
/// Keys of all datastores, whose values fill several times the memory of each.
const KEYS: u64 = 40_000;
const KEYS_MIN: u64 = 15_000;
const MEMORY: &str = "64MiB";
/// Time for the compactions that filling and sets leave behind.
pub(super) const SETTLE: Duration = Duration::from_secs(5);
/// Until a program listens, or is where it is to be.
const PATIENCE: Duration = Duration::from_secs(30);
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// A drive that is modelled, without data that a datastore could keep.
pub(super) const MODELLED: &str = "model:p3600,size=2GiB";
/// Requests outstanding of an attached file, as `farflash attach` has it if nothing is said.
pub(super) const OUTSTANDING: u16 = 128;

/// The parts of an experiment.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Parts {
    /// Datastores with local Flash.
    pub(super) local: usize,
    /// Datastores with volumes of the Flash server.
    pub(super) remote: usize,
    /// Hosts and Flash server are on a network of their own.
    pub(super) has_network: bool,
}

/// A datastore, and its place.
struct Datastore {
    name: String,
    mounted: PathBuf,
    address: Option<SocketAddr>,
    process: u32,
}

/// A volume as `volume create --json` prints it.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct VolumeAddress {
    pub(super) nqn: String,
    pub(super) address: SocketAddr,
}

impl VolumeAddress {
    /// The form that `farflash bench --target` takes.
    pub(super) fn target(&self) -> String {
        format!("tcp://{}/{}", self.address, self.nqn)
    }
}

/// All parts of an experiment, set up and filled.
pub(super) struct World {
    made: Made,
    /// The state without datastores that run.
    mounted: Mark,
    /// The state without anything of remote datastores but the Flash server.
    served: Mark,
    local: Vec<Datastore>,
    remote: Vec<Datastore>,
    /// Over another way to Flash.
    beside: Option<Datastore>,
    /// The Flash server's API and process.
    url: String,
    server: u32,
    /// Process whose network hosts and Flash server use.
    network: Option<u32>,
}

impl World {
    /// Sets up `parts`, with the Flash server on a modelled drive if there are no datastores.
    pub(super) fn new(
        parts: Parts,
        beside: Option<&Path>,
        load: &Load<'_>,
    ) -> Result<Self, Failure> {
        beside.map(check_beside).transpose()?;
        let mut made = Made::new(load.out)?;
        let network = parts.has_network.then(|| own_network(&mut made)).transpose()?;
        let own = own_program()?;
        let device = if parts.remote > 0 {
            let device = format!("file:{}", made.path("device.img"));
            let bytes = VOLUME_BYTES * parts.remote as u64 + SPARE_BYTES;
            made.command(&[&own, "format", "--device", &format!("{device},size={bytes}")], &[])?;
            device
        } else {
            MODELLED.to_owned()
        };
        let serving = Serving { device: &device, within: inside(network) };
        let server = Server::start(&serving)?;
        let (url, process) = (server.url.clone(), server.process());
        made.keep(server);
        let mark = made.mark();
        let mut world = Self {
            made,
            mounted: mark,
            served: mark,
            local: Vec::new(),
            remote: Vec::new(),
            beside: None,
            url,
            server: process,
            network,
        };
        world.fill(parts, beside, load)?;
        Ok(world)
    }

    fn fill(
        &mut self,
        parts: Parts,
        beside: Option<&Path>,
        load: &Load<'_>,
    ) -> Result<(), Failure> {
        for number in 0..parts.local {
            let name = format!("local-{number}");
            let path = self.made.directory.join(format!("{name}.img"));
            let image = fs::File::create_new(&path).and_then(|file| file.set_len(VOLUME_BYTES));
            image.map_err(|error| failed(format!("{} cannot be made: {error}", path.display())))?;
            let store = self.mount(name, &path.display().to_string(), true)?;
            self.local.push(store);
        }
        self.served = self.made.mark();
        for number in 0..parts.remote {
            let name = format!("remote-{number}");
            self.volume(&name, VOLUME_BYTES)?;
            let file = self.attach(&name, OUTSTANDING)?;
            let store = self.mount(name, &file, true)?;
            self.remote.push(store);
        }
        if let Some(file) = beside {
            let file = file.display().to_string();
            self.beside = Some(self.mount("beside".to_owned(), &file, true)?);
        }
        self.mounted = self.made.mark();
        // The one beside the others leaves them as they are without it.
        let all = parts.local + parts.remote;
        if all == 0 {
            return Ok(());
        }
        self.serve(0)?;
        let keys = (2 * KEYS / all as u64).max(KEYS_MIN);
        load.keys.set(keys);
        for address in (0..3).flat_map(|way| self.addresses(way)) {
            filled(address, keys, load.seed)?;
        }
        thread::sleep(SETTLE);
        Ok(())
    }

    /// Returns whether there is a way beside local and remote.
    pub(super) fn has_beside(&self) -> bool {
        self.beside.is_some()
    }

    /// Addresses of the datastores of a way: local, remote, or the one beside them.
    pub(super) fn addresses(&self, way: usize) -> Vec<SocketAddr> {
        let stores = match way {
            0 => &*self.local,
            1 => &*self.remote,
            _ => self.beside.as_slice(),
        };
        stores.iter().filter_map(|store| store.address).collect()
    }

    /// Process of the first datastore with local Flash.
    pub(super) fn datastore(&self) -> Option<u32> {
        self.local.first().map(|store| store.process)
    }

    /// Process of the Flash server.
    pub(super) fn server(&self) -> u32 {
        self.server
    }

    /// Path in the directory of the experiment.
    pub(super) fn path(&self, name: &str) -> String {
        self.made.path(name)
    }

    /// Starts all datastores again, each with so many turns of a loop before a request.
    pub(super) fn serve(&mut self, busy_turns: u64) -> Result<(), Failure> {
        self.made.back_to(self.mounted);
        for store in self.local.iter_mut().chain(&mut self.remote).chain(&mut self.beside) {
            serve(&mut self.made, store, busy_turns)?;
        }
        Ok(())
    }

    /// Attaches the volumes of remote datastores again, by a network and with so many requests outstanding, and starts them and
    /// the local ones again.
    pub(super) fn attach_again(
        &mut self,
        network: Network,
        outstanding: u16,
    ) -> Result<(), Failure> {
        self.made.back_to(self.served);
        self.change(network)?;
        for index in 0..self.remote.len() {
            let name = self.remote[index].name.clone();
            let file = self.attach(&name, outstanding)?;
            self.remote[index] = self.mount(name, &file, false)?;
        }
        self.mounted = self.made.mark();
        self.serve(0)
    }

    /// Sets frames and offloads of the network.
    pub(super) fn change(&mut self, network: Network) -> Result<(), Failure> {
        let Network { frame_bytes, has_offload } = network;
        let (frames, offload) = (frame_bytes.to_string(), if has_offload { "on" } else { "off" });
        for words in [
            ["ip", "link", "set", "lo", "up", "mtu", &frames].as_slice(),
            ["ethtool", "-K", "lo", "tso", offload, "gso", offload, "gro", offload].as_slice(),
        ] {
            self.run(words)?;
        }
        Ok(())
    }

    /// Makes a volume on the Flash server.
    pub(super) fn volume(&mut self, name: &str, bytes: u64) -> Result<VolumeAddress, Failure> {
        let (own, url, bytes) = (own_program()?, self.url.clone(), bytes.to_string());
        let made = ["volume", "create", name, "--size", &bytes, "--api", &url, "--json"];
        let printed = self.run(&[&[own.as_str()], made.as_slice()].concat())?;
        serde_json::from_str(&printed)
            .map_err(|error| failed(format!("`volume create` printed {printed}: {error}")))
    }

    /// Runs a command of this program, or of the system, as a host of the Flash server.
    pub(super) fn run(&mut self, words: &[&str]) -> Result<String, Failure> {
        let within = inside(self.network);
        let words: Vec<String> =
            within.into_iter().chain(words.iter().map(|word| (*word).to_owned())).collect();
        run_command(&words).map_err(failed)
    }

    /// Starts a command of this program as a host of the Flash server, with its output to be read.
    pub(super) fn start(&self, arguments: &[&str]) -> Result<std::process::Child, Failure> {
        let within = inside(self.network);
        let own = own_program()?;
        let mut words =
            within.iter().map(String::as_str).chain([own.as_str()]).chain(arguments.to_vec());
        let mut command = Command::new(words.next().expect("a program"));
        command.args(words).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().map_err(|error| failed(format!("{own} cannot be started: {error}")))
    }

    /// Attaches a volume as a file, which is returned.
    pub(super) fn attach(&mut self, name: &str, outstanding: u16) -> Result<String, Failure> {
        let (own, url) = (own_program()?, self.url.clone());
        let (path, state) = (self.made.path(&format!("{name}.vol")), self.made.path("attached"));
        let (within, outstanding) = (inside(self.network), outstanding.to_string());
        let options = ["--path", &path, "--state-dir", &state, "--outstanding", &outstanding];
        let attach = [own.as_str(), "attach", name, "--api", &url];
        let words: Vec<&str> =
            within.iter().map(String::as_str).chain(attach).chain(options).collect();
        self.made.command(&words, &[&own, "detach", name, "--state-dir", &state])?;
        Ok(path)
    }

    /// The process that serves an attached file.
    pub(super) fn attached(&mut self, name: &str) -> Result<u32, Failure> {
        #[derive(Deserialize)]
        struct Entry {
            volume: String,
            process: u32,
        }
        #[derive(Deserialize)]
        struct List {
            attached: Vec<Entry>,
        }
        let (own, state) = (own_program()?, self.made.path("attached"));
        let list = self.run(&[&own, "attach", "--list", "--json", "--state-dir", &state])?;
        let entry = serde_json::from_str(&list)
            .ok()
            .and_then(|list: List| list.attached.into_iter().find(|entry| entry.volume == name));
        entry
            .map(|entry| entry.process)
            .ok_or_else(|| failed(format!("{name} is not attached: {list}")))
    }

    /// Mounts a file system on a loop device over `file`; a new one if `is_new`.
    fn mount(&mut self, name: String, file: &str, is_new: bool) -> Result<Datastore, Failure> {
        let attached = ["losetup", "--find", "--show", "--direct-io=on", file];
        let device = self.made.command(&attached, &[])?.trim().to_owned();
        self.made.at_the_end(&["losetup", "--detach", &device]);
        if is_new {
            self.made.command(&["mkfs.ext4", "-q", "-E", "lazy_itable_init=0", &device], &[])?;
        }
        let mounted = self.made.directory.join(format!("{name}.mounted"));
        fs::create_dir_all(&mounted).map_err(|error| failed(error.to_string()))?;
        let shown = mounted.display().to_string();
        self.made.command(&["mount", &device, &shown], &["umount", &shown])?;
        Ok(Datastore { name, mounted, address: None, process: 0 })
    }
}

/// Starts a datastore with its data where it is mounted.
fn serve(made: &mut Made, store: &mut Datastore, busy_turns: u64) -> Result<(), Failure> {
    let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|free| free.local_addr());
    let address = free.map_err(|error| failed(error.to_string()))?;
    let log = made.path(&format!("{}.log", store.name));
    let mut command = Command::new(own_program()?);
    command
        .args(["datastore", "serve", "--listen", &address.to_string(), "--direct-io", "--data"])
        .arg(store.mounted.join("kv"))
        .args(["--memory", MEMORY, "--set", "append", "--append-max", "10kB"])
        .args(["--busy-loop", &busy_turns.to_string()]);
    let child = made.process(command, &log)?;
    let begin = Instant::now();
    while TcpStream::connect(address).is_err() {
        let has_ended = child.try_wait().is_ok_and(|status| status.is_some());
        if has_ended || begin.elapsed() > PATIENCE {
            let said = fs::read_to_string(&log).unwrap_or_default();
            let what = format!("the datastore does not start: {}", said.trim());
            let remedy = "install the package farflash-datastore, or build it by `make datastore`";
            return Err(Failure::runtime(what, remedy));
        }
        thread::sleep(LOOK_EVERY);
    }
    (store.address, store.process) = (Some(address), child.id());
    Ok(())
}

/// Makes a network that only programs started within it use; returns the process that keeps it.
fn own_network(made: &mut Made) -> Result<u32, Failure> {
    let mut command = Command::new("unshare");
    command.args(["--net", "sleep", "infinity"]);
    let log = made.path("network.log");
    let child = made.process(command, &log)?;
    let process = child.id();
    let of = |process: &str| fs::read_link(format!("/proc/{process}/ns/net")).ok();
    let (ours, begin) = (of("self"), Instant::now());
    while of(&process.to_string()).is_none_or(|theirs| Some(theirs) == ours) {
        let has_ended = child.try_wait().is_ok_and(|status| status.is_some());
        if has_ended || begin.elapsed() > PATIENCE {
            let said = fs::read_to_string(&log).unwrap_or_default();
            let what = format!("no network can be made for the experiment: {}", said.trim());
            let remedy = "run it as root, with unshare, nsenter, ip and ethtool";
            return Err(Failure::runtime(what, remedy));
        }
        thread::sleep(LOOK_EVERY);
    }
    let up = inside(Some(process)).into_iter();
    let up: Vec<String> = up.chain(["ip", "link", "set", "lo", "up"].map(String::from)).collect();
    run_command(&up).map_err(failed)?;
    Ok(process)
}

/// Words before a command that let it run in the network of a process.
fn inside(process: Option<u32>) -> Vec<String> {
    process.map_or_else(Vec::new, |process| {
        vec!["nsenter".to_owned(), format!("--net=/proc/{process}/ns/net")]
    })
}

/// Checks that a datastore may be put on `path`: a drive that nothing else uses, or a file, and large enough.
fn check_beside(path: &Path) -> Result<(), Failure> {
    let shown = path.display();
    let refuse = |what: String| {
        let remedy =
            "name with --beside a file of 2 GiB or more, or a drive that nothing else uses";
        Failure::usage(what, remedy)
    };
    // Without O_CREAT, O_EXCL asks the kernel whether a block device has another user, such as a mount.
    let flags = OFlags::WRONLY | OFlags::CLOEXEC | OFlags::EXCL;
    let file = open(path, flags, Mode::empty()).map_err(|error| match error {
        Errno::BUSY => refuse(format!("{shown} is in use: mounted, or open for another program")),
        error => refuse(format!("{shown} cannot be opened: {}", std::io::Error::from(error))),
    })?;
    let stat = fstat(&file).map_err(|error| failed(format!("fstat {shown}: {error}")))?;
    let kind = FileType::from_raw_mode(stat.st_mode);
    if !matches!(kind, FileType::BlockDevice | FileType::RegularFile) {
        return Err(refuse(format!("{shown} is neither a drive nor a file")));
    }
    let bytes = seek(&file, SeekFrom::End(0));
    if bytes.is_ok_and(|bytes| bytes < VOLUME_BYTES) {
        return Err(refuse(format!("{shown} is smaller than 2 GiB")));
    }
    Ok(())
}
