//! `farflash attach`: volumes as local files, with real servers that are killed and restarted.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use rustix::fs::{FallocateFlags, OFlags, fallocate};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::support::cgroup::ControlGroup;
use crate::support::fuse_switch::FuseSwitch;
use crate::support::library::{api, cluster, with_token};
use crate::support::loop_device::LoopDevice;
use crate::support::skipped::skipped;
use crate::support::{Files, Outcome, PATIENCE, Server, farflash, run, succeed, until};

const MIB: u64 = 1 << 20;
const SIZE: u64 = 64 * MIB;
const BLOCK: usize = 4096;

/// Returns whether something can be attached here; else the test is skipped, with the reason.
pub fn can_attach() -> bool {
    if !rustix::process::geteuid().is_root() {
        skipped("to mount and to make loop devices takes root");
        return false;
    }
    let fuse = File::options().read(true).write(true).open("/dev/fuse");
    if fuse.is_err() {
        skipped("there is no FUSE: /dev/fuse cannot be opened");
    }
    fuse.is_ok()
}

/// A server with the volume `v`, and a list of what is attached of its own.
pub struct World {
    pub files: Files,
    pub device: String,
    server: Option<Server>,
    api: String,
    token: String,
}

impl World {
    pub fn new() -> Option<Self> {
        Self::with(&[])
    }

    /// The volume is made with these options. `None`: nothing can be attached here, and the test is skipped.
    fn with(options: &[&str]) -> Option<Self> {
        Self::on("512MiB", options)
    }

    /// The same on a device of this size.
    pub fn on(size: &str, options: &[&str]) -> Option<Self> {
        if !can_attach() {
            return None;
        }
        let files = Files::new();
        let device = files.device("image");
        succeed(&["format", "--device", &format!("{device},size={size}")]);
        let server = Server::start(&device);
        let made = server.volume_json(&[&["create", "v", "--size", "64MiB"], options].concat());
        let token = made["token"].as_str().unwrap().to_owned();
        fs::write(files.path("token"), &token).unwrap();
        let api = api(&server);
        Some(Self { files, device, server: Some(server), api, token })
    }

    pub fn server(&self) -> &Server {
        self.server.as_ref().unwrap()
    }

    pub fn path(&self, name: &str) -> String {
        self.files.path(name).to_str().unwrap().to_owned()
    }

    /// Words that attach `v`.
    pub fn words(&self, more: &[&str]) -> Vec<String> {
        let (token, state) = (self.path("token"), self.path("state"));
        let words = ["attach", "v", "--api", &self.api, "--token-file", &token];
        let words = [&words[..], &["--state-dir", &state], more].concat();
        words.into_iter().map(str::to_owned).collect()
    }

    pub fn try_attach(&self, more: &[&str]) -> Outcome {
        let words = self.words(more);
        run(&words.iter().map(String::as_str).collect::<Vec<_>>())
    }

    /// Attaches `v`; the file.
    pub fn attach(&self, more: &[&str]) -> PathBuf {
        let outcome = self.try_attach(more);
        assert_eq!(outcome.code, Some(0), "{outcome:?}");
        if let Some(way) = FuseSwitch::expected_way() {
            assert_eq!(self.list()[0]["requests_by"], way);
        }
        PathBuf::from(outcome.stdout.trim_end())
    }

    pub fn try_detach(&self, what: &str) -> Outcome {
        run(&["detach", what, "--state-dir", &self.path("state")])
    }

    pub fn detach(&self, what: &str) {
        let outcome = self.try_detach(what);
        assert_eq!(outcome.code, Some(0), "{outcome:?}");
    }

    pub fn list(&self) -> Vec<Value> {
        let list = succeed(&["attach", "--list", "--json", "--state-dir", &self.path("state")]);
        let list: Value = serde_json::from_str(&list).unwrap();
        list["attached"].as_array().unwrap().clone()
    }

    fn state(&self) -> String {
        self.list()[0]["state"].as_str().unwrap().to_owned()
    }

    /// The process that serves the file.
    fn process(&self) -> Pid {
        Pid::from_raw(self.list()[0]["process"].as_i64().unwrap() as i32).unwrap()
    }

    pub fn kill_server(&mut self) {
        let killed = self.server.take().unwrap();
        killed.signal("KILL");
        assert_eq!(killed.wait(), None);
    }

    /// Starts it again, at another portal.
    pub fn start_server(&mut self) {
        let api = self.api.trim_start_matches("http://").to_owned();
        self.server = Some(Server::start_on(&self.device, "127.0.0.1:0", &api, &[]));
    }

    pub fn kill_attach(&self) {
        kill_process(self.process(), Signal::KILL).unwrap();
        until("the process is gone", || self.state() == "dead");
    }
}

impl Drop for World {
    /// Leaves no process and no mount behind, whatever failed.
    fn drop(&mut self) {
        if thread::panicking() {
            for entry in self.list() {
                let _ =
                    Command::new("umount").arg("-l").arg(entry["path"].as_str().unwrap()).output();
                let process = entry["process"].as_i64().unwrap() as i32;
                let _ = kill_process(Pid::from_raw(process).unwrap(), Signal::KILL);
            }
        }
    }
}

fn open(path: &Path) -> File {
    File::options().read(true).write(true).open(path).unwrap()
}

fn open_direct(path: &Path) -> File {
    let direct = OFlags::DIRECT.bits() as i32;
    File::options().read(true).write(true).custom_flags(direct).open(path).unwrap()
}

fn refused(outcome: &Outcome, code: i32, what: &str, remedy: &str) {
    assert_eq!(outcome.code, Some(code), "{outcome:?}");
    let said: Vec<&str> = outcome.stderr.lines().collect();
    let [.., first, second] = said[..] else { panic!("{outcome:?}") };
    assert!(first.starts_with("error: ") && first.contains(what), "{outcome:?}");
    assert!(second.starts_with(" hint: ") && second.contains(remedy), "{outcome:?}");
}

/// Writes and reads of any bytes, through the page cache and with O_DIRECT, and holes and zeroes, beside an array of
/// bytes. Then the volume is read by the library, and attached again.
#[test]
fn any_bytes_are_written_and_read_back() {
    any_bytes(&[]);
}

#[test]
fn any_bytes_are_written_and_read_back_in_blocks_of_512() {
    any_bytes(&["--sector", "512"]);
}

pub fn any_bytes(options: &[&str]) {
    const REACH: usize = 5 << 20;
    let Some(world) = World::with(options) else { return };
    let path = world.attach(&["--path", &world.path("it's v.img")]);
    assert_eq!(path, world.files.path("it's v.img"));
    assert_eq!(fs::metadata(&path).unwrap().len(), SIZE);
    let files = [open(&path), open_direct(&path)];
    let mut model = vec![0; REACH];
    let mut random = Random(7);
    for step in 0..400_u64 {
        let (file, at) = (&files[(step % 2) as usize], random.below(REACH as u64) as usize);
        let most = if step % 10 == 0 { 2 << 20 } else { 9000 };
        let end = (at + 1 + random.below(most) as usize).min(REACH);
        let len = (end - at) as u64;
        match step % 8 {
            0..4 => {
                let data: Vec<u8> = (at..end).map(|byte| (byte as u64 + step) as u8).collect();
                file.write_all_at(&data, at as u64).unwrap();
                model[at..end].copy_from_slice(&data);
            }
            4 | 5 => {
                let mode = match step % 8 {
                    4 => FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
                    _ => FallocateFlags::ZERO_RANGE,
                };
                fallocate(file, mode, at as u64, len).unwrap();
                model[at..end].fill(0);
            }
            _ => {
                let mut back = vec![0; end - at];
                file.read_exact_at(&mut back, at as u64).unwrap();
                assert!(back == model[at..end], "step {step}: {len} bytes at {at}");
            }
        }
    }
    drop(files);
    ends_and_lengths(&path);
    world.detach("v");
    assert!(world.list().is_empty() && !path.exists());
    let volume = cluster(world.server()).open("v", &with_token(&world.token)).unwrap();
    let mut back = vec![0; REACH];
    volume.read_at(&mut back, 0).unwrap();
    assert!(back == model, "the library reads what was written to the file");
    let path = world.attach(&[]);
    assert_eq!(path, world.files.path("state").join("v"));
    open(&path).read_exact_at(&mut back, 0).unwrap();
    assert!(back == model);
    world.detach(path.to_str().unwrap());
}

/// The file is as long as the volume, whatever is done.
fn ends_and_lengths(path: &Path) {
    let mut file = open(path);
    assert_eq!(file.seek(SeekFrom::End(-3)).unwrap(), SIZE - 3);
    assert_eq!(file.write(&[9; 5]).unwrap(), 3);
    let full = file.write(&[9]).unwrap_err();
    assert_eq!(full.kind(), std::io::ErrorKind::StorageFull);
    file.seek(SeekFrom::End(-3)).unwrap();
    let mut last = Vec::new();
    file.read_to_end(&mut last).unwrap();
    assert_eq!(last, [9; 3]);
    assert!(file.set_len(SIZE + 1).is_err() && file.set_len(0).is_err());
    file.set_len(SIZE).unwrap();
    assert!(fallocate(&file, FallocateFlags::empty(), 0, 4096).is_err());
    // Opening with truncation leaves everything, as with a block device.
    drop(File::create(path).unwrap());
    let mut last = [0; 3];
    file.read_exact_at(&mut last, SIZE - 3).unwrap();
    assert_eq!((last, fs::metadata(path).unwrap().len()), ([9; 3], SIZE));
    file.sync_all().unwrap();
}

/// Threads that change different bytes of the same blocks do not undo each other's writes.
#[test]
fn writers_of_one_block_do_not_disturb_each_other() {
    writers_of_one_block(&["--outstanding", "6", "--memory", "1MiB"]);
}

pub fn writers_of_one_block(bounds: &[&str]) {
    const THREADS: usize = 8;
    const PART: usize = 150;
    let Some(world) = World::new() else { return };
    let path = world.attach(bounds);
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let file = if thread % 2 == 0 { open(&path) } else { open_direct(&path) };
            scope.spawn(move || {
                for round in 0..30_u8 {
                    for slot in (thread..240).step_by(THREADS) {
                        let data = [round ^ thread as u8; PART];
                        file.write_all_at(&data, (slot * PART) as u64).unwrap();
                    }
                }
            });
        }
    });
    let mut all = vec![0; 240 * PART];
    open(&path).read_exact_at(&mut all, 0).unwrap();
    for (slot, part) in all.chunks_exact(PART).enumerate() {
        assert!(part.iter().all(|byte| *byte == 29 ^ (slot % THREADS) as u8), "slot {slot}");
    }
    world.detach("v");
}

#[test]
fn the_file_follows_the_size_of_the_volume() {
    let Some(world) = World::new() else { return };
    let path = world.attach(&[]);
    world.server().volume_json(&["resize", "v", "--size", "128MiB"]);
    until("the file grows", || fs::metadata(&path).unwrap().len() == 128 * MIB);
    let file = open(&path);
    file.write_all_at(&[5; 100], 100 * MIB + 7).unwrap();
    until("the list knows", || world.list()[0]["size_bytes"] == 128 * MIB);
    drop(file);
    world.detach("v");
}

/// Each refusal says what to do; nothing stays behind.
#[test]
fn refusals_say_what_to_do() {
    let Some(world) = World::new() else { return };
    let state = world.path("state");
    world.server().volume_json(&["create", "m", "--size", "1MiB", "--metadata", "8"]);
    fs::write(world.files.path("full"), "data").unwrap();
    refused(&world.try_attach(&["--path", &world.path("full")]), 2, "is not empty", "--path");
    let directory = world.files.path("directory");
    fs::create_dir(&directory).unwrap();
    let outcome = world.try_attach(&["--path", directory.to_str().unwrap()]);
    refused(&outcome, 2, "is a directory", "--path ");
    let absent = world.path("no such/v");
    let outcome = world.try_attach(&["--path", &absent]);
    refused(&outcome, 2, "cannot be used", &format!("mkdir -p '{}'", world.path("no such")));
    refused(&world.try_attach(&["--memory", "1000"]), 2, "less than one request", "--memory 1MiB");
    let attach = |name: &str, more: &[&str]| {
        let words = ["attach", name, "--api", &world.api, "--state-dir", &state];
        run(&[&words[..], more].concat())
    };
    refused(&attach("other", &[]), 1, "no volume `other`", "farflash volume list");
    refused(&attach("v", &[]), 1, "v cannot be opened", "--token-file");
    let elsewhere = run(&["attach", "v", "--api", "http://127.0.0.1:1", "--state-dir", &state]);
    refused(&elsewhere, 1, "v cannot be opened", "--api");
    refused(&world.try_detach("v"), 2, "nothing is attached as v", "attach --list");
    assert!(world.list().is_empty() && !world.files.path("state").join("v").exists());
}

#[test]
fn a_volume_with_metadata_is_no_file() {
    let Some(world) = World::with(&["--metadata", "8"]) else { return };
    refused(&world.try_attach(&[]), 2, "8 bytes of metadata", "without --metadata");
}

/// A volume is attached once. A file that is open, and one below a loop device, is not detached.
#[test]
fn what_is_attached_and_in_use_stays_attached() {
    let Some(world) = World::new() else { return };
    let path = world.attach(&[]);
    let shown = path.to_str().unwrap();
    let again = world.try_attach(&["--path", &world.path("b")]);
    refused(&again, 1, &format!("v is attached at {shown}"), "farflash detach v");
    let id = world.list()[0]["id"].as_str().unwrap().to_owned();
    let words = world.words(&[]);
    let by_id: Vec<&str> =
        words.iter().map(|word| if word == "v" { id.as_str() } else { word }).collect();
    refused(&run(&by_id), 1, "is attached at", "farflash detach v");
    let file = open(&path);
    let own = format!("(process {})", std::process::id());
    refused(&world.try_detach("v"), 1, &own, "end that first");
    file.write_all_at(&[1; 10], 5).unwrap();
    drop(file);
    if let Some(device) = LoopDevice::directly_on(&path) {
        let name = device.path().to_owned();
        let outcome = world.try_detach(shown);
        refused(&outcome, 1, &format!("is used by {name}"), &format!("losetup --detach {name}"));
        assert_eq!(world.list()[0]["loop_devices"][0], name);
        drop(device);
        until("the loop device is gone", || {
            world.list()[0]["loop_devices"].as_array().unwrap().is_empty()
        });
    }
    world.detach(&id);
    assert!(world.list().is_empty());
}

/// Threads write numbers that go up, each into blocks of its own, while the server is killed and comes back
/// elsewhere. No request fails, and what was written is there.
#[test]
fn a_killed_server_costs_waiting_and_no_errors() {
    killed_server();
}

pub fn killed_server() {
    let Some(mut world) = World::new() else { return };
    let path = world.attach(&["--path", &world.path("v.img")]);
    let writers = Writers::start(&path, true);
    for round in 0..3 {
        writers.progress(30);
        world.kill_server();
        if round == 0 {
            until("it is noticed", || world.state() == "waiting");
            refused(&world.try_detach("v"), 1, "does not answer", "kill -9 ");
        }
        world.start_server();
    }
    writers.progress(30);
    until("it is noticed", || world.state() == "attached");
    let written = writers.stop();
    check(&path, &written);
    world.detach("v");
}

/// Data that was synced before the process that serves the file was killed is there when the volume is attached again. The
/// dead mount is taken away without being asked for.
#[test]
fn a_killed_attach_loses_nothing_that_was_synced() {
    killed_attach();
}

pub fn killed_attach() {
    let Some(world) = World::new() else { return };
    for round in 0..3 {
        let path = world.attach(&["--path", &world.path("v.img")]);
        let writers = Writers::start(&path, false);
        writers.progress(40);
        world.kill_attach();
        let written = writers.wait();
        let is_dead = |error: std::io::Error| error.kind() == std::io::ErrorKind::NotConnected;
        until("the mount is seen to be dead", || fs::metadata(&path).is_err_and(is_dead));
        if round == 0 {
            // It can also be forgotten.
            world.detach("v");
            assert!(world.list().is_empty() && !path.exists());
        }
        let outcome = world.try_attach(&["--path", &world.path("v.img")]);
        assert_eq!(outcome.code, Some(0), "{outcome:?}");
        assert_eq!(outcome.stderr.contains("was killed; its mount is taken away"), round > 0);
        check(&path, &written);
        world.detach("v");
    }
}

/// A file system on a loop device over the file, whose server is killed under load: no program sees an error, what was
/// synced is there, and the file system is sound.
#[test]
fn a_file_system_on_a_loop_device_outlives_its_server() {
    file_system_on_a_loop_device();
}

pub fn file_system_on_a_loop_device() {
    let Some(mut world) = World::new() else { return };
    let path = world.attach(&["--path", &world.path("v.img")]);
    let Some(device) = LoopDevice::directly_on(&path) else {
        world.detach("v");
        return skipped("there are no loop devices");
    };
    done("mkfs.ext4", &["-q", device.path()]);
    let mount = world.files.path("mount");
    fs::create_dir(&mount).unwrap();
    let mounted = FileSystem::mount(device.path(), &mount);
    let outcome = world.try_detach("v");
    let commands = format!("umount {} && losetup --detach {}", mount.display(), device.path());
    refused(&outcome, 1, "is used by", &commands);
    let count = AtomicU64::new(0);
    let stop = AtomicBool::new(false);
    let content = |number: u64| number.to_le_bytes().repeat(2000);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Acquire) {
                let number = count.load(Ordering::Acquire);
                let mut file = File::create(mount.join(format!("f{}", number % 500))).unwrap();
                file.write_all(&content(number)).unwrap();
                file.sync_all().unwrap();
                count.store(number + 1, Ordering::Release);
            }
        });
        let progress = |more: u64| {
            let goal = count.load(Ordering::Acquire) + more;
            until("files are written", || count.load(Ordering::Acquire) >= goal);
        };
        let end = AtEnd(&stop);
        for _ in 0..2 {
            progress(20);
            world.kill_server();
            world.start_server();
        }
        progress(20);
        drop(end);
    });
    let count = count.load(Ordering::Acquire);
    drop(mounted);
    done("e2fsck", &["-fn", device.path()]);
    drop(device);
    until("the loop device is gone", || world.try_detach("v").code == Some(0));
    let path = world.attach(&["--path", &world.path("w.img")]);
    let device = LoopDevice::directly_on(&path).unwrap();
    let mounted = FileSystem::mount(device.path(), &mount);
    for number in count.saturating_sub(500)..count {
        let mut text = Vec::new();
        let file = File::open(mount.join(format!("f{}", number % 500)));
        file.unwrap().read_to_end(&mut text).unwrap();
        assert!(text == content(number), "file {number}");
    }
    drop(mounted);
    drop(device);
    until("it is detached", || world.try_detach("v").code == Some(0));
}

/// In the foreground a service manager is told when the file can be used. A signal detaches, unless the file is in use;
/// a second one ends it all the same.
#[test]
fn signals_end_it_in_the_foreground() {
    let Some(world) = World::new() else { return };
    let start = || {
        let words = world.words(&["--foreground"]);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let socket = world.files.path("notify");
        let _ = fs::remove_file(&socket);
        let manager = UnixDatagram::bind(&socket).unwrap();
        manager.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut command = farflash(&words);
        let child = command.env("NOTIFY_SOCKET", &socket).stderr(Stdio::null()).spawn().unwrap();
        let mut told = [0; 100];
        let len = manager.recv(&mut told).unwrap();
        assert_eq!(told[..len].trim_ascii_end(), b"READY=1");
        assert_eq!(world.state(), "attached");
        child
    };
    let path = world.files.path("state").join("v");
    let signal = |child: &Child| kill_process(Pid::from_child(child), Signal::TERM).unwrap();
    let mut child = start();
    signal(&child);
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert!(world.list().is_empty() && !path.exists());
    let mut child = start();
    let file = open(&path);
    signal(&child);
    file.write_all_at(&[1; 10], 5).unwrap();
    file.sync_all().unwrap();
    assert_eq!(world.state(), "attached");
    signal(&child);
    assert_eq!(child.wait().unwrap().code(), Some(1));
    assert!(file.read_exact_at(&mut [0; 10], 0).is_err());
    world.detach("v");
    assert!(world.list().is_empty() && !path.exists());
}

/// A signal at which no thread can be made leaves the volume attached, and says so.
#[test]
fn a_signal_without_a_thread_leaves_it_attached() {
    let Some(world) = World::new() else { return };
    let Some(group) = ControlGroup::new("pids") else {
        return skipped("control groups with a limit on processes take root");
    };
    let words = world.words(&["--foreground"]);
    let command = farflash(&words.iter().map(String::as_str).collect::<Vec<_>>());
    let (path, log) = (world.files.path("state").join("v"), world.files.path("log"));
    let mut limited = Command::new("sh");
    limited.args(group.join()).arg(command.get_program()).args(command.get_args());
    let mut child = limited.stderr(File::create(&log).unwrap()).spawn().unwrap();
    let said = || fs::read_to_string(&log).unwrap();
    until("it is attached", || said().contains("is attached at"));
    assert_eq!(world.state(), "attached");
    let signal = |child: &Child| kill_process(Pid::from_child(child), Signal::TERM).unwrap();
    assert!(group.set("pids.max", "1"));
    for _ in 0..2 {
        fs::write(&log, "").unwrap();
        signal(&child);
        until("it says so", || said().contains("stays attached: a thread is needed"));
    }
    open(&path).read_exact_at(&mut [0; 10], 0).unwrap();
    assert!(group.set("pids.max", "max"));
    signal(&child);
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

/// Threads that write numbers which go up, some of them with O_DIRECT, and sync now and then.
struct Writers {
    threads: Vec<thread::JoinHandle<u64>>,
    written: &'static [AtomicU64],
    stop: &'static AtomicBool,
}

const WRITERS: u64 = 4;
/// Blocks of each.
const OWN: u64 = 64;

fn place(writer: u64, number: u64) -> u64 {
    (writer * OWN + number % OWN) * BLOCK as u64
}

impl Writers {
    /// `must_not_fail`: a request that fails is a failure of the test; otherwise the thread's end.
    fn start(path: &Path, must_not_fail: bool) -> Self {
        let written: &'static [AtomicU64] =
            Vec::leak((0..WRITERS).map(|_| AtomicU64::new(0)).collect());
        let stop: &'static AtomicBool = Box::leak(Box::new(AtomicBool::new(false)));
        let write = |writer: u64| {
            let file = if writer.is_multiple_of(2) { open(path) } else { open_direct(path) };
            move || {
                for number in 1_u64.. {
                    let data = number.to_le_bytes().repeat(BLOCK / 8);
                    let done = file.write_all_at(&data, place(writer, number));
                    match done.and_then(|()| file.sync_data()) {
                        Ok(()) => written[writer as usize].store(number, Ordering::Release),
                        Err(error) if must_not_fail => panic!("write {number} failed: {error}"),
                        Err(_) => return number - 1,
                    }
                    if stop.load(Ordering::Acquire) {
                        return number;
                    }
                }
                0
            }
        };
        let threads = (0..WRITERS).map(|writer| thread::spawn(write(writer))).collect();
        Self { threads, written, stop }
    }

    /// Waits until each has written so many more.
    fn progress(&self, more: u64) {
        for written in self.written {
            let goal = written.load(Ordering::Acquire) + more;
            until("writes go on", || written.load(Ordering::Acquire) >= goal);
        }
    }

    /// The numbers that were written and synced last.
    fn wait(self) -> Vec<u64> {
        self.threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    }

    fn stop(self) -> Vec<u64> {
        self.stop.store(true, Ordering::Release);
        self.wait()
    }
}

/// Checks that each block holds what was written last, or what came after that and was not synced.
fn check(path: &Path, written: &[u64]) {
    let file = open(path);
    for (writer, last) in (0..).zip(written) {
        for number in last.saturating_sub(OWN - 1).max(1)..=*last {
            let mut back = [0; BLOCK];
            file.read_exact_at(&mut back, place(writer, number)).unwrap();
            let found = u64::from_le_bytes(back[..8].try_into().unwrap());
            let is_next = found == number + OWN && found == last + 1;
            assert!(found == number || is_next, "writer {writer}: {found} instead of {number}");
            assert!(back.chunks_exact(8).all(|word| word == &back[..8]), "a torn write");
        }
    }
}

/// A mounted file system, which is unmounted when this is dropped.
pub struct FileSystem(PathBuf);

impl FileSystem {
    pub fn mount(device: &str, at: &Path) -> Self {
        done("mount", &[device, at.to_str().unwrap()]);
        Self(at.to_owned())
    }
}

impl Drop for FileSystem {
    fn drop(&mut self) {
        let lazy: &[&str] = if thread::panicking() { &["--lazy"] } else { &[] };
        let _ = Command::new("umount").args(lazy).arg(&self.0).status();
    }
}

/// Sets the flag when it goes, also by a failed assertion: the scope waits for its threads.
struct AtEnd<'a>(&'a AtomicBool);

impl Drop for AtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

pub fn done(command: &str, words: &[&str]) {
    let outcome = Command::new(command).args(words).output().unwrap();
    assert!(outcome.status.success(), "{command} {words:?}: {outcome:?}");
}

/// Numbers as a function of a seed.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}
