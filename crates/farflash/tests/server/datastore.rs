//! A datastore on remote Flash: RocksDB on ext4, on a loop device over an attached volume, of a real server. Each part is killed
//! under load, and the Flash below fails.

use std::fs;
use std::net::SocketAddr;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::attach::{FileSystem, Random, World, done};
use crate::support::datastore::{Client, Datastore, Reply, is_built};
use crate::support::loop_device::LoopDevice;
use crate::support::skipped::skipped;
use crate::support::{farflash, until};

pub const SYNCED: &[&str] = &["--writes", "synced"];

/// All of it. Fields are dropped from the top down.
pub struct Stack {
    store: Option<Datastore>,
    mounted: Option<FileSystem>,
    disk: Option<LoopDevice>,
    pub world: World,
}

impl Stack {
    /// With an empty file system. `None`: that cannot be made here, and the test is skipped.
    pub fn new() -> Option<Self> {
        if !is_built() {
            return None;
        }
        Self::over(World::new()?)
    }

    /// The same over this volume.
    pub fn over(world: World) -> Option<Self> {
        let mut stack = Self { store: None, mounted: None, disk: None, world };
        fs::create_dir(stack.world.files.path("mount")).unwrap();
        if !stack.attach() {
            stack.world.detach("v");
            skipped("there are no loop devices");
            return None;
        }
        // Blocks as the volume has them, as on large volumes: a damaged one costs no more than it holds.
        done("mkfs.ext4", &["-q", "-b", "4096", stack.disk.as_ref().unwrap().path()]);
        Some(stack)
    }

    /// False: there are no loop devices.
    pub fn attach(&mut self) -> bool {
        let path = self.world.attach(&["--path", self.world.files.path("v.img").to_str().unwrap()]);
        self.disk = LoopDevice::directly_on(&path);
        self.disk.is_some()
    }

    pub fn mount(&mut self) {
        let mount = self.world.files.path("mount");
        self.mounted = Some(FileSystem::mount(self.disk.as_ref().unwrap().path(), &mount));
    }

    /// Takes down the file system and the loop device, and what is left of the file.
    pub fn unmount(&mut self) {
        self.mounted = None;
        self.disk = None;
    }

    pub fn data(&self) -> std::path::PathBuf {
        self.world.files.path("mount").join("data")
    }

    pub fn start(&mut self, more: &[&str]) {
        self.store = Some(Datastore::start(&self.data(), more));
    }

    pub fn store(&self) -> &Datastore {
        self.store.as_ref().unwrap()
    }

    fn kill_store(&mut self) {
        self.store.as_mut().unwrap().kill();
    }

    /// SIGKILL, whose effect is waited for.
    pub fn end_store(&mut self) {
        self.kill_store();
        self.store.take().unwrap().wait();
    }

    /// Ends all in order, after what is left of the file system was checked.
    pub fn end(mut self) {
        self.store = None;
        self.mounted = None;
        done("e2fsck", &["-fn", self.disk.as_ref().unwrap().path()]);
        self.disk = None;
        until("it is detached", || self.world.try_detach("v").code == Some(0));
    }
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Part {
    Server,
    Attach,
    Store,
}

/// Parts that are killed together.
const KILLED: [&[Part]; 5] = [
    &[Part::Store],
    &[Part::Server],
    &[Part::Attach],
    &[Part::Server, Part::Store],
    &[Part::Server, Part::Attach],
];
/// Each set of parts is killed so often, times `FARFLASH_TEST_SCALE`.
const ROUNDS: usize = 2;
/// Acknowledged writes between two kills, at most.
const WRITES: u64 = 250;
/// A part that comes back is killed within this time.
const READY_MS: u64 = 300;

/// A write that was acknowledged as synced is there after any of the parts was killed, with what it wrote, RocksDB opens, and the
/// file system is sound. Clients see no error of a server that was killed and comes back.
///
/// Method: four clients send groups of writes and deletions, each after the answers to those before. After a number of answers that
/// comes from the seed some parts are killed; a server and a datastore that come back are at times killed once more meanwhile.
/// Then a client must find the state after some number of its first writes, all acknowledged ones among them.
#[test]
fn synced_writes_survive_a_kill_of_any_part() {
    let Some(mut stack) = Stack::new() else { return };
    let scale = std::env::var("FARFLASH_TEST_SCALE").ok().and_then(|text| text.parse().ok());
    let mut random = Random(0x5EED);
    stack.mount();
    stack.start(SYNCED);
    let mut writers: Vec<Writer> = (0..4).map(Writer::new).collect();
    for round in 0..ROUNDS * scale.unwrap_or(1) {
        for killed in shuffled(&mut random) {
            let shown = format!("round {round}, {killed:?} killed");
            writers = kill(&mut stack, killed, writers, &mut random);
            let mut client = stack.store().client();
            writers.iter_mut().for_each(|writer| writer.check(&mut client, &shown));
            assert_eq!(client.info("background_errors_total"), "0", "{shown}");
        }
    }
    stack.end();
}

fn shuffled(random: &mut Random) -> [&'static [Part]; 5] {
    let mut sets = KILLED;
    for last in (1..sets.len()).rev() {
        sets.swap(last, random.below(last as u64 + 1) as usize);
    }
    sets
}

/// Kills these parts under load, and brings them back.
fn kill(
    stack: &mut Stack,
    killed: &[Part],
    writers: Vec<Writer>,
    random: &mut Random,
) -> Vec<Writer> {
    let has = |part| killed.contains(&part);
    let load = Load::start(stack.store().address, writers);
    load.progress(1 + random.below(WRITES));
    if has(Part::Server) {
        stack.world.kill_server();
    }
    if has(Part::Attach) {
        stack.world.kill_attach();
    }
    if has(Part::Store) {
        stack.kill_store();
    }
    if has(Part::Server) {
        if random.below(2) == 0 {
            let mut again = farflash(&["serve", "--device", &stack.world.device]);
            again.args(["--listen", "127.0.0.1:0", "--api", "127.0.0.1:0"]);
            kill_early(&mut again, random);
        }
        stack.world.start_server();
    }
    if !has(Part::Attach) && !has(Part::Store) {
        load.progress(1 + random.below(WRITES));
        return load.stop();
    }
    let writers = load.wait();
    stack.end_store();
    if has(Part::Attach) {
        stack.unmount();
        assert!(stack.attach());
        stack.mount();
    }
    if random.below(2) == 0 {
        kill_early(&mut Datastore::command(&stack.data(), SYNCED), random);
    }
    stack.start(SYNCED);
    writers
}

/// Starts something, and kills it at a time at which it may not be ready.
fn kill_early(command: &mut std::process::Command, random: &mut Random) {
    let mut child = command.stderr(Stdio::null()).spawn().unwrap();
    thread::sleep(Duration::from_millis(random.below(READY_MS)));
    child.kill().unwrap();
    child.wait().unwrap();
}

/// Keys of a client.
const KEYS: u64 = 48;
/// Longest value.
const LEN_MAX: u64 = 12_000;
/// Writes that are sent together, at most.
const GROUP: u64 = 8;

/// A client's writes, which are numbered from 1 and are functions of their numbers.
struct Writer {
    client: u64,
    acknowledged: u64,
    sent: u64,
    random: Random,
}

impl Writer {
    fn new(client: u64) -> Self {
        Self { client, acknowledged: 0, sent: 0, random: Random(client + 1) }
    }

    /// The keys that a write changes, and whether it deletes them.
    fn keys(&self, number: u64) -> (Vec<u64>, bool) {
        let mut random = self.random_of(number);
        let (first, kind) = (random.below(KEYS), random.below(8));
        let count = if kind == 1 { 3 } else { 1 };
        ((first..first + count).map(|key| key % KEYS).collect(), kind == 0)
    }

    fn random_of(&self, number: u64) -> Random {
        let mut random =
            Random(((number << 8) | (self.client + 1)).wrapping_mul(0x9E37_79B9_7F4A_7C15));
        random.below(1);
        random
    }

    fn key(&self, key: u64) -> Vec<u8> {
        format!("client-{}:{key}", self.client).into_bytes()
    }

    fn value(&self, number: u64, key: u64) -> Vec<u8> {
        let mut random = self.random_of(number ^ (key << 32));
        let mut value = format!("{number} of client {} for {key}: ", self.client).into_bytes();
        let len = value.len() + random.below(LEN_MAX) as usize;
        value.resize_with(len, || random.below(256) as u8);
        value
    }

    fn request(&self, number: u64) -> Vec<Vec<u8>> {
        let (keys, deletes) = self.keys(number);
        let mut words = vec![if deletes { b"DEL".to_vec() } else { b"MSET".to_vec() }];
        for key in keys {
            words.push(self.key(key));
            if !deletes {
                words.push(self.value(number, key));
            }
        }
        words
    }

    /// Sends groups of writes until it is to stop, or one is refused, or the server has gone; says which. What is sent behind a
    /// write that was refused is refused, too, unless it deletes what does not exist, which writes nothing.
    fn run(&mut self, address: SocketAddr, progress: &AtomicU64, stop: &AtomicBool) -> End {
        let mut client = Client::connect(address);
        while !stop.load(Ordering::Acquire) {
            let count = 1 + self.random.below(GROUP);
            let group: Vec<_> = (1..=count).map(|ahead| self.request(self.sent + ahead)).collect();
            self.sent += count;
            if !client.send(&group) {
                return End::Gone;
            }
            let mut refused = None;
            for _ in 0..count {
                let Some(reply) = client.reply() else { return End::Gone };
                match reply.error() {
                    Some(error) => refused = Some(error.to_owned()),
                    None if refused.is_some() => {
                        assert_eq!(reply, Reply::Line("0".to_owned()), "behind {refused:?}");
                    }
                    None => {
                        self.acknowledged += 1;
                        progress.fetch_add(1, Ordering::Release);
                    }
                }
            }
            if let Some(error) = refused {
                return End::Refused(error);
            }
        }
        End::Stopped
    }

    /// Checks that the first writes are there, all that were acknowledged among them, and nothing else; those that were not
    /// acknowledged and are not there were never made.
    fn check(&mut self, client: &mut Client, shown: &str) {
        let requests: Vec<_> = (0..KEYS).map(|key| vec![b"GET".to_vec(), self.key(key)]).collect();
        assert!(client.send(&requests));
        let found: Vec<Reply> = requests.iter().map(|_| client.reply().unwrap()).collect();
        let mut last: Vec<Option<u64>> = vec![None; KEYS as usize];
        for number in 1..=self.acknowledged {
            self.apply(number, &mut last);
        }
        let mut first_fault = None;
        for number in self.acknowledged..=self.sent {
            if number > self.acknowledged {
                self.apply(number, &mut last);
            }
            let fault = (0..KEYS).find(|key| {
                let expected = last[*key as usize].map(|number| self.value(number, *key));
                found[*key as usize] != Reply::Value(expected)
            });
            let Some(key) = fault else {
                (self.acknowledged, self.sent) = (number, number);
                return;
            };
            let there = match &found[key as usize] {
                Reply::Value(Some(value)) => {
                    String::from_utf8_lossy(&value[..value.len().min(60)]).into_owned()
                }
                other => format!("{other:?}"),
            };
            let expected = last[key as usize];
            first_fault
                .get_or_insert(format!("key {key} has {there} instead of that of {expected:?}"));
        }
        let Self { client, acknowledged, sent, .. } = self;
        panic!(
            "{shown}: of client {client} {acknowledged} writes of {sent} were acknowledged, and {first_fault:?}"
        );
    }

    /// The effect of a write on the last write of each key.
    fn apply(&self, number: u64, last: &mut [Option<u64>]) {
        let (keys, deletes) = self.keys(number);
        for key in keys {
            last[key as usize] = (!deletes).then_some(number);
        }
    }
}

/// The reason for which a client ended.
#[derive(Debug)]
enum End {
    Stopped,
    Gone,
    Refused(String),
}

/// Clients under way.
struct Load {
    threads: Vec<JoinHandle<(Writer, End)>>,
    shared: Arc<(AtomicU64, AtomicBool)>,
}

impl Load {
    pub fn start(address: SocketAddr, writers: Vec<Writer>) -> Self {
        let shared = Arc::new((AtomicU64::new(0), AtomicBool::new(false)));
        let start = |mut writer: Writer| {
            let shared = shared.clone();
            thread::spawn(move || {
                let end = writer.run(address, &shared.0, &shared.1);
                (writer, end)
            })
        };
        let threads = writers.into_iter().map(start).collect();
        Self { threads, shared }
    }

    /// Waits for so many acknowledged writes more.
    fn progress(&self, more: u64) {
        let goal = self.shared.0.load(Ordering::Acquire) + more;
        until("writes go on", || self.shared.0.load(Ordering::Acquire) >= goal);
    }

    /// Ends all, none of which was refused anything.
    fn stop(self) -> Vec<Writer> {
        self.shared.1.store(true, Ordering::Release);
        let ended = |(writer, end)| match end {
            End::Stopped => writer,
            other => panic!("a client saw it: {other:?}"),
        };
        self.threads.into_iter().map(|thread| ended(thread.join().unwrap())).collect()
    }

    /// Waits until all have ended because of what was killed; an error says that the data cannot be reached.
    fn wait(self) -> Vec<Writer> {
        let ended = |(writer, end)| match end {
            End::Stopped => panic!("no client was told to stop"),
            End::Refused(error) if !is_of_storage(&error) => panic!("{error}"),
            End::Gone | End::Refused(_) => writer,
        };
        self.threads.into_iter().map(|thread| ended(thread.join().unwrap())).collect()
    }
}

fn is_of_storage(error: &str) -> bool {
    error.starts_with("IOERR ") || error.starts_with("READONLY ")
}
