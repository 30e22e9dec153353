//! Real etcd, and a wire to it that can be cut.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use base64ct::{Base64, Encoding};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use serde_json::Value;
use tempfile::TempDir;

use crate::waiting::PATIENCE;

/// Members of one etcd, each a process that is killed when dropped.
pub struct EtcdProcesses {
    members: Vec<Member>,
    _directory: TempDir,
}

struct Member {
    arguments: Vec<String>,
    /// The folder of its data.
    data: PathBuf,
    client: SocketAddr,
    child: Option<Child>,
}

/// Two addresses that are free at this moment.
pub fn two_free_addresses_of(host: Ipv4Addr) -> (SocketAddr, SocketAddr) {
    let [one, other] = [(); 2].map(|()| TcpListener::bind((host, 0)).expect("a port"));
    (one.local_addr().expect("bound"), other.local_addr().expect("bound"))
}

/// A host on loopback that no other test uses: connections and listeners of other tests take no port of it,
/// not even while a member is down.
pub fn own_host() -> Ipv4Addr {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let [_, _, high, low] = std::process::id().to_be_bytes();
    let count = COUNT.fetch_add(1, Ordering::Relaxed) % 250;
    Ipv4Addr::new(127, high.max(1), low, 1 + count as u8)
}

impl EtcdProcesses {
    /// Starts `count` members and waits until they answer.
    pub fn start(count: usize) -> Self {
        Self::start_with(count, &[])
    }

    /// Starts `count` members with these arguments, too.
    pub fn start_with(count: usize, more: &[&str]) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let addresses = (0..count).map(|_| own_host());
        let addresses: Vec<_> = addresses.map(two_free_addresses_of).collect();
        let cluster: Vec<String> = addresses
            .iter()
            .enumerate()
            .map(|(n, (_, peer))| format!("m{n}=http://{peer}"))
            .collect();
        let members = addresses.iter().enumerate().map(|(n, (client, peer))| {
            let path = directory.path().join(format!("m{n}"));
            let arguments = [
                format!("--name=m{n}"),
                format!("--data-dir={}", path.display()),
                format!("--listen-client-urls=http://{client}"),
                format!("--advertise-client-urls=http://{client}"),
                format!("--listen-peer-urls=http://{peer}"),
                format!("--initial-advertise-peer-urls=http://{peer}"),
                format!("--initial-cluster={}", cluster.join(",")),
                "--log-level=error".to_owned(),
                // What a killed process wrote survives it, and a slow disk must not end leases.
                "--unsafe-no-fsync".to_owned(),
            ];
            let more = more.iter().map(|argument| (*argument).to_owned());
            let arguments = arguments.into_iter().chain(more).collect();
            Member { arguments, data: path, client: *client, child: None }
        });
        let mut etcd = Self { members: members.collect(), _directory: directory };
        (0..count).for_each(|member| etcd.begin(member));
        (0..count).for_each(|member| etcd.wait(member));
        etcd
    }

    /// The address of a member for clients.
    pub fn address(&self, member: usize) -> SocketAddr {
        self.members[member].client
    }

    fn begin(&mut self, member: usize) {
        let member = &mut self.members[member];
        let child = Command::new("etcd")
            .args(&member.arguments)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("etcd is installed (Debian package etcd-server)");
        member.child = Some(child);
    }

    /// Waits until the member answers with a quorum behind it.
    pub fn wait(&self, member: usize) {
        let address = self.members[member].client;
        let deadline = Instant::now() + PATIENCE;
        while !healthy(address).unwrap_or(false) {
            assert!(Instant::now() < deadline, "etcd at {address} does not get ready");
            std::thread::park_timeout(Duration::from_millis(50));
        }
    }

    /// Ends a member as a power cut would.
    pub fn kill(&mut self, member: usize) {
        if let Some(mut child) = self.members[member].child.take() {
            child.kill().expect("ours");
            child.wait().expect("ours");
        }
    }

    /// Starts a member that was killed.
    pub fn restart(&mut self, member: usize) {
        self.begin(member);
    }

    /// Takes a backup of the only member, which is away meanwhile. It replaces the one before.
    pub fn back_up(&mut self) {
        self.kill(0);
        let data = &self.members[0].data;
        copy_directory(data, &data.with_extension("backup"));
        self.begin(0);
        self.wait(0);
    }

    /// Has the only member hold what it held when the backup was taken. It has to be started after that.
    pub fn restore(&mut self) {
        self.kill(0);
        let data = &self.members[0].data;
        copy_directory(&data.with_extension("backup"), data);
    }

    /// Lets a member hang, or go on.
    pub fn signal(&self, member: usize, signal: Signal) {
        let pid = Pid::from_child(self.members[member].child.as_ref().expect("it runs"));
        kill_process(pid, signal).expect("ours");
        // Its threads stop one by one; until then they answer.
        if signal == Signal::STOP {
            waitid(WaitId::Pid(pid), WaitIdOptions::STOPPED).expect("ours");
        }
    }
}

impl Drop for EtcdProcesses {
    fn drop(&mut self) {
        (0..self.members.len()).for_each(|member| self.kill(member));
    }
}

/// Makes `to` the same as `from`.
fn copy_directory(from: &Path, to: &Path) {
    let _ = std::fs::remove_dir_all(to);
    let copied = Command::new("cp").arg("-a").args([from, to]).status().expect("cp");
    assert!(copied.success(), "{}", from.display());
}

fn healthy(address: SocketAddr) -> io::Result<bool> {
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(1))?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    write!(stream, "GET /health HTTP/1.0\r\nHost: {address}\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer.contains("\"true\""))
}

/// Stores a value under a key, past every rule.
pub fn put(etcd: SocketAddr, key: &str, value: &str) {
    let [key, value] = [key, value].map(|text| Base64::encode_string(text.as_bytes()));
    ask(etcd, "kv/put", &format!("{{\"key\":\"{key}\",\"value\":\"{value}\"}}"));
}

/// Stores values until etcd has no room for more.
pub fn fill(etcd: SocketAddr) {
    let value = Base64::encode_string(&[b'x'; 16 << 10]);
    let deadline = Instant::now() + PATIENCE;
    for number in 0.. {
        let key = Base64::encode_string(format!("/filling/{number}").as_bytes());
        let answer =
            answer(etcd, "kv/put", &format!("{{\"key\":\"{key}\",\"value\":\"{value}\"}}"));
        if answer.contains("database space exceeded") {
            return;
        }
        assert!(Instant::now() < deadline, "it has room for ever");
    }
}

/// Stores a key that is gone `seconds` later, by the clock of etcd.
pub fn put_for(etcd: SocketAddr, key: &str, seconds: u64) {
    let lease = ask(etcd, "lease/grant", &format!("{{\"TTL\":\"{seconds}\"}}"));
    let id = lease.split("\"ID\":\"").nth(1).and_then(|rest| rest.split('"').next());
    let (id, key) = (id.expect("an id"), Base64::encode_string(key.as_bytes()));
    ask(etcd, "kv/put", &format!("{{\"key\":\"{key}\",\"lease\":\"{id}\"}}"));
}

/// Returns true if a key is there.
pub fn is_there(etcd: SocketAddr, key: &str) -> bool {
    let key = Base64::encode_string(key.as_bytes());
    ask(etcd, "kv/range", &format!("{{\"key\":\"{key}\"}}")).contains("\"kvs\"")
}

/// Deletes a key, as the end of its lease does.
pub fn delete(etcd: SocketAddr, key: &str) {
    let key = Base64::encode_string(key.as_bytes());
    let answer = ask(etcd, "kv/deleterange", &format!("{{\"key\":\"{key}\"}}"));
    assert!(answer.contains("\"deleted\":\"1\""), "{answer}");
}

/// The value of a key.
pub fn get(etcd: SocketAddr, key: &str) -> String {
    let key = Base64::encode_string(key.as_bytes());
    field(&ask(etcd, "kv/range", &format!("{{\"key\":\"{key}\"}}")), "value")
}

/// The first key that begins with `prefix`, in the order of keys.
pub fn first_key(etcd: SocketAddr, prefix: &str) -> String {
    let end = Base64::encode_string(format!("{prefix}\u{7f}").as_bytes());
    let prefix = Base64::encode_string(prefix.as_bytes());
    let body = format!("{{\"key\":\"{prefix}\",\"range_end\":\"{end}\",\"limit\":\"1\"}}");
    field(&ask(etcd, "kv/range", &body), "key")
}

/// Makes the only claim of a cluster one of a release that did not say where holders are found: its holder is not to
/// be seen by anybody.
pub fn forget_addresses(etcd: SocketAddr, cluster: &str) {
    let prefix = format!("/farflash/{cluster}/devices/");
    let key = first_key(etcd, &prefix);
    let mut claim: Value = serde_json::from_str(&get(etcd, &key)).unwrap();
    for field in ["api", "api_certificate", "portals", "boot"] {
        claim.as_object_mut().unwrap().remove(field).unwrap();
    }
    put(etcd, &key, &claim.to_string());
}

/// The first bytes of this name in an answer.
fn field(answer: &str, name: &str) -> String {
    let rest = answer.split(&format!("\"{name}\":\"")).nth(1);
    let text = rest.and_then(|rest| rest.split('"').next()).expect("it is there");
    String::from_utf8(Base64::decode_vec(text).expect("Base64")).expect("text")
}

fn ask(etcd: SocketAddr, what: &str, body: &str) -> String {
    let answer = answer(etcd, what, body);
    assert!(answer.contains(" 200 OK"), "{answer}");
    answer
}

fn answer(etcd: SocketAddr, what: &str, body: &str) -> String {
    let mut stream = TcpStream::connect(etcd).expect("it runs");
    let head = format!("POST /v3/{what} HTTP/1.0\r\nContent-Length: {}", body.len());
    write!(stream, "{head}\r\n\r\n{body}").expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    answer
}

/// A wire to an address that can be cut, on which nothing is told of changes for a while, on which a request is late, or by which
/// every transaction comes twice.
pub struct Wire {
    address: SocketAddr,
    state: Arc<WireState>,
}

struct WireState {
    whole: AtomicBool,
    /// Watches rest: what etcd says by them does not get through.
    holds: AtomicBool,
    /// Connections so far.
    made: AtomicU64,
    /// Watches by connections before this one rest for ever.
    forgotten: AtomicU64,
    /// Transactions are carried out, and then asked for once more, as by what gave up waiting for the first answer.
    repeats: AtomicBool,
    /// The key that selects the request to copy, as it stands in its JSON.
    copied: Mutex<Option<String>>,
    /// The copy.
    copy: Mutex<Option<Vec<u8>>>,
    target: SocketAddr,
    late: Mutex<Late>,
    streams: Mutex<Vec<TcpStream>>,
}

/// A request, or its answer, that rests on the way.
#[derive(Default)]
struct Late {
    /// The key that selects the next request to delay, as it stands in its JSON.
    key: Option<String>,
    /// True if the request gets through, and its answer is delayed.
    is_answer: bool,
    rests: bool,
    /// True once it has been answered; the client may have gone by then.
    is_answered: bool,
}

/// The state of one connection, shared by both of its directions.
#[derive(Default)]
struct Passing {
    number: u64,
    is_watch: AtomicBool,
    was_late: AtomicBool,
}

impl Wire {
    /// A wire to `target`, which is whole.
    pub fn new(target: SocketAddr) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let address = listener.local_addr().expect("bound");
        let streams = Mutex::new(Vec::new());
        let state = Arc::new(WireState {
            whole: AtomicBool::new(true),
            holds: AtomicBool::new(false),
            made: AtomicU64::new(0),
            forgotten: AtomicU64::new(0),
            repeats: AtomicBool::new(false),
            copied: Mutex::default(),
            copy: Mutex::default(),
            target,
            late: Mutex::default(),
            streams,
        });
        let shared = state.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(near) = stream else { return };
                if !shared.whole.load(Ordering::SeqCst) {
                    continue;
                }
                let Ok(far) = TcpStream::connect(target) else { continue };
                let copy = |stream: &TcpStream| stream.try_clone().expect("descriptors");
                let mut streams = shared.streams.lock().expect("whole");
                // Cut since it came.
                if !shared.whole.load(Ordering::SeqCst) {
                    continue;
                }
                streams.extend([copy(&near), copy(&far)]);
                drop(streams);
                let number = shared.made.fetch_add(1, Ordering::SeqCst);
                let passing = Arc::new(Passing { number, ..Passing::default() });
                for (from, to, asks) in [(copy(&near), copy(&far), true), (far, near, false)] {
                    let (state, passing) = (shared.clone(), passing.clone());
                    std::thread::spawn(move || state.pass((from, to), &passing, asks));
                }
            }
        });
        Self { address, state }
    }

    /// The end that a client connects to.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Nothing passes from now on.
    pub fn cut(&self) {
        let mut streams = self.state.streams.lock().expect("whole");
        self.state.whole.store(false, Ordering::SeqCst);
        for stream in streams.drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// New connections pass again.
    pub fn mend(&self) {
        self.state.whole.store(true, Ordering::SeqCst);
    }

    /// Requests are answered, but changes are not announced.
    pub fn hold(&self) {
        self.state.holds.store(true, Ordering::SeqCst);
    }

    /// Lets the held messages through.
    pub fn release(&self) {
        self.state.holds.store(false, Ordering::SeqCst);
    }

    /// Nothing comes any more by the watches that are open, and none of them ends; those that are asked for from now on are as ever.
    pub fn forget_watches(&self) {
        self.state.forgotten.store(self.state.made.load(Ordering::SeqCst), Ordering::SeqCst);
    }

    /// From now on each transaction comes twice, and the second answer is the one that gets through.
    pub fn repeat(&self) {
        self.state.repeats.store(true, Ordering::SeqCst);
    }

    /// The next request that names `key` passes, and comes once more when it is [repeated](Self::repeat_late).
    pub fn copy(&self, key: &str) {
        *self.state.copied.lock().expect("whole") = Some(named(key));
    }

    /// Sends the copied request once more.
    pub fn repeat_late(&self) {
        let copy = self.state.copy.lock().expect("whole").take();
        self.state.carry_out(&copy.expect("it has passed"));
    }

    /// The next request that names `key` rests; what is asked after it overtakes it.
    pub fn delay(&self, key: &str) {
        self.delay_next(key, false);
    }

    /// The answer to the next request that names `key` rests.
    pub fn delay_answer(&self, key: &str) {
        self.delay_next(key, true);
    }

    fn delay_next(&self, key: &str, is_answer: bool) {
        *self.late() = Late { key: Some(named(key)), is_answer, ..Late::default() };
    }

    /// Returns true if a request or an answer is delayed.
    pub fn is_late(&self) -> bool {
        self.late().rests
    }

    /// Lets the delayed message through. It is answered even if no client waits for that.
    pub fn deliver(&self) {
        self.late().rests = false;
        while !self.late().is_answered {
            std::thread::park_timeout(Duration::from_millis(10));
        }
    }

    fn late(&self) -> MutexGuard<'_, Late> {
        self.state.late.lock().expect("whole")
    }
}

/// A key as it stands in JSON.
fn named(key: &str) -> String {
    format!("\"{}\"", Base64::encode_string(key.as_bytes()))
}

fn names(request: &[u8], key: &str) -> bool {
    request.windows(key.len()).any(|window| window == key.as_bytes())
}

impl WireState {
    /// Passes on what comes by a connection in one direction: that of questions, or that of answers.
    fn pass(&self, (mut from, mut to): (TcpStream, TcpStream), passing: &Passing, asks: bool) {
        let Passing { number, is_watch, was_late } = passing;
        let mut bytes = [0; 16 << 10];
        while let Ok(len @ 1..) = from.read(&mut bytes) {
            if bytes.starts_with(b"POST /v3/watch ") {
                is_watch.store(true, Ordering::SeqCst);
            }
            let is_forgotten = || *number < self.forgotten.load(Ordering::SeqCst);
            let is_held = || self.holds.load(Ordering::SeqCst) || is_forgotten();
            let rests = || is_watch.load(Ordering::SeqCst) && is_held();
            while rests() && self.whole.load(Ordering::SeqCst) {
                std::thread::park_timeout(Duration::from_millis(10));
            }
            if asks && self.repeats.load(Ordering::SeqCst) {
                self.carry_out(&bytes[..len]);
            }
            if asks {
                self.keep_copy(&bytes[..len]);
            }
            if asks && self.is_to_be_late(&bytes[..len]) {
                was_late.store(true, Ordering::SeqCst);
                self.rest(false);
            }
            if !asks && was_late.load(Ordering::SeqCst) {
                self.rest(true);
                self.late.lock().expect("whole").is_answered = true;
            }
            if to.write_all(&bytes[..len]).is_err() {
                break;
            }
        }
        // A client that asked and has gone does not keep the answer from being waited for.
        if !asks || !was_late.load(Ordering::SeqCst) {
            let _ = to.shutdown(Shutdown::Both);
        }
    }

    fn keep_copy(&self, request: &[u8]) {
        let mut copied = self.copied.lock().expect("whole");
        if copied.as_ref().is_some_and(|key| names(request, key)) {
            *copied = None;
            *self.copy.lock().expect("whole") = Some(request.to_vec());
        }
    }

    /// Has a transaction carried out by a connection of its own.
    fn carry_out(&self, request: &[u8]) {
        if !request.starts_with(b"POST /v3/kv/txn ") {
            return;
        }
        let Ok(mut stream) = TcpStream::connect(self.target) else { return };
        let _ = stream.write_all(request).and_then(|()| stream.read(&mut [0; 1]));
    }

    /// Returns true if these bytes belong to the request that is to be late, or to its answer.
    fn is_to_be_late(&self, bytes: &[u8]) -> bool {
        let mut late = self.late.lock().expect("whole");
        let is_it = late.key.as_ref().is_some_and(|key| names(bytes, key));
        if is_it {
            late.key = None;
            late.rests = !late.is_answer;
        }
        is_it
    }

    /// Waits while a request, or an answer, rests.
    fn rest(&self, is_answer: bool) {
        let late = || self.late.lock().expect("whole");
        if late().is_answer != is_answer || late().is_answered {
            return;
        }
        if is_answer {
            late().rests = true;
        }
        while late().rests {
            std::thread::park_timeout(Duration::from_millis(10));
        }
    }
}
