//! A tenant that attacks another's volume, with all that it may do: its own token, the API, and as many
//! connections as it likes, while the other works on.

mod pace;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::support::host::{filled, on_core};
use crate::support::users::{self, User};
use crate::support::{Files, PATIENCE, Server, until};
use auth::{Group, Hash, Host, Outcome, Parties, Secret};
use client::{Client, ConnectError, Credentials, Options, Reconnect};
use io_traits::Spawn;
use nvme_wire::auth::{Authentication, Body, Message};
use nvme_wire::fabrics::{CONNECT_DATA_LEN, Connect, ConnectData};
use nvme_wire::pdu::{CapsuleCmd, Digests, IcReq};
use nvme_wire::{HostId, Nqn, SglDescriptor, Sqe};
use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
use serde_json::Value;
use units::Lba;
use zerocopy::{FromBytes, IntoBytes};

/// Exchanges that are begun and held.
const HALF_FINISHED: usize = 2_000;
/// One exchange in so many makes the server compute in the largest group.
const LARGEST_EVERY: usize = 100;
/// Room for a message of an exchange.
const MESSAGE_ROOM: u32 = 2048;
/// Blocks that the good tenant works on.
const BLOCKS: u64 = 256;

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap()
}

fn nqn(volume: &Value) -> Nqn {
    text(volume, "nqn").parse().unwrap()
}

fn token(volume: &Value) -> Secret {
    text(volume, "token").parse().unwrap()
}

/// A server with an operator and two tenants, which are told apart by their tokens.
struct Service {
    server: Server,
    operator: String,
    good: String,
    evil: String,
    _files: Files,
}

impl Service {
    fn start(connections_max: usize) -> Self {
        let files = Files::new();
        let known = [User::operator("ops"), User::tenant("good"), User::tenant("evil")];
        let users = users::list(&files, &known.each_ref().map(User::entry));
        let max = connections_max.to_string();
        let more = ["--auth", "on", "--api-users", &users, "--connections-max", &max];
        let server = Server::start_with("mem:512MiB", &more);
        let [operator, good, evil] = known.map(|user| user.token);
        Self { server, operator, good, evil, _files: files }
    }

    fn create(&self, caller: &str, name: &str) -> Value {
        let body = format!("{{\"name\":\"{name}\",\"size_bytes\":67108864}}");
        let (status, body) = self.ask(caller, "POST", "/v1/volumes", body.as_bytes());
        assert_eq!(status, 201, "{body}");
        serde_json::from_str(&body).unwrap()
    }

    fn ask(&self, caller: &str, method: &str, path: &str, body: &[u8]) -> (u16, String) {
        ask(self.server.api.strip_prefix("http://").unwrap(), caller, method, path, body)
    }

    /// Connections that its portals have.
    fn connections(&self) -> f64 {
        let (status, metrics) = self.ask(&self.operator, "GET", "/metrics", b"");
        assert_eq!(status, 200);
        let line = metrics.lines().find(|line| line.starts_with("farflash_core_connections"));
        line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).expect("a count")
    }
}

/// Sends a request as it is, and returns status and body of the answer.
fn ask(address: &str, caller: &str, method: &str, path: &str, body: &[u8]) -> (u16, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {caller}\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).unwrap();
    // A client that sends too much may find the connection closed.
    let _ = stream.write_all(body);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let status = answer.get(9..12).and_then(|code| code.parse().ok());
    let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    (status.unwrap_or_else(|| panic!("no answer to {method} {path}: {answer}")), body.to_owned())
}

/// The evil tenant's end of a connection, from an address of its own.
struct Stranger {
    stream: TcpStream,
    cid: u16,
}

impl Stranger {
    fn greeted(portal: SocketAddr) -> Self {
        let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        bind(&socket, &SocketAddr::from(([127, 0, 0, 66], 0))).unwrap();
        connect(&socket, &portal).unwrap();
        let stream = TcpStream::from(socket);
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut stranger = Self { stream, cid: 0 };
        stranger.send(IcReq::new(Digests::default(), 1).as_bytes());
        stranger.hear(128);
        stranger
    }

    fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    fn hear(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.stream.read_exact(&mut bytes).unwrap();
        bytes
    }

    /// Sends a command and returns its completion.
    fn command(&mut self, sqe: Sqe, data: &[u8]) -> Vec<u8> {
        self.send_command(sqe, data);
        self.hear(24)
    }

    fn send_command(&mut self, mut sqe: Sqe, data: &[u8]) {
        self.cid += 1;
        sqe.cid = self.cid.into();
        let head = CapsuleCmd::new(sqe, data.len(), Digests::default(), 4);
        self.send(&[head.as_bytes(), data].concat());
    }

    /// Returns the server's answer to a Connect to `nqn` by the host that it claims to be.
    fn connect(&mut self, host: &Nqn, nqn: &Nqn) -> Vec<u8> {
        let mut sqe = Sqe::read_from_bytes(Connect::new(0, 32, 0).as_bytes()).unwrap();
        sqe.dptr = SglDescriptor::in_capsule(CONNECT_DATA_LEN);
        let data = ConnectData::new(HostId([9; 16]), host, nqn, 0xFFFF);
        self.command(sqe, data.as_bytes())
    }

    fn say(&mut self, message: &[u8]) {
        let length = u32::try_from(message.len()).unwrap();
        self.command(Authentication::send(length).into(), message);
    }

    fn ask_for_message(&mut self) -> Vec<u8> {
        let room = SglDescriptor::transport(MESSAGE_ROOM);
        self.send_command(Authentication::receive(MESSAGE_ROOM, room).into(), &[]);
        let data = self.hear(24 + MESSAGE_ROOM as usize).split_off(24);
        self.hear(24);
        data
    }

    fn is_closed(&mut self) -> bool {
        let mut rest = Vec::new();
        self.stream.read_to_end(&mut rest).is_ok()
    }
}

fn negotiation(group: Group) -> Vec<u8> {
    let body =
        Body::Negotiate { secure_channel: 0, hashes: &[Hash::Sha256.id()], groups: &[group.id()] };
    Message { transaction: 3, body }.to_bytes()
}

/// Works on a volume until told to stop, and counts what it has done.
fn work(portal: SocketAddr, volume: &Value, stop: Arc<AtomicBool>, done: Arc<AtomicU64>) {
    let (nqn, secret) = (nqn(volume), token(volume));
    on_core(|handle| async move {
        let options = with(secret);
        let client = Client::connect(handle, portal, &nqn, options).await.expect("its own token");
        let volume = client.volume().await.expect("a namespace");
        while !stop.load(Ordering::Relaxed) {
            let count = done.load(Ordering::Relaxed);
            let lba = Lba(count % BLOCKS);
            volume.write(lba, filled(count)).await.expect("written");
            let read = volume.read(lba, 1).await.expect("read");
            assert!(read.as_bytes() == filled(count).as_bytes(), "block {lba} is another's");
            done.store(count + 1, Ordering::Relaxed);
        }
        assert_eq!(client.counters().reconnects, 0);
    });
}

/// Writes to a volume with all queues that one host gets, as deep as they are.
fn overwrite(portal: SocketAddr, volume: &Value) {
    let (nqn, options) = (nqn(volume), Options { queues: 4, ..with(token(volume)) });
    on_core(|handle| async move {
        let client = Client::connect(handle.clone(), portal, &nqn, options).await.expect("its own");
        let volume = client.volume().await.expect("a namespace");
        let writers: Vec<_> = (0..256_u64)
            .map(|writer| {
                let (volume, (sender, ended)) = (volume.clone(), local_sync::oneshot());
                handle.spawn(async move {
                    for round in 0..4 {
                        volume.write(Lba(writer), filled(round)).await.expect("written");
                    }
                    sender.send(());
                });
                ended
            })
            .collect();
        for ended in writers {
            ended.await.expect("no writer fails");
        }
    });
}

fn with(secret: Secret) -> Options {
    let credentials = Some(Credentials { secret, controller_secret: None });
    Options { credentials, reconnect: Reconnect::Never, ..Options::for_host([7; 16]) }
}

/// The good tenant's host, which the evil one claims to be.
fn host_of_good() -> Nqn {
    Nqn::from_uuid(&[7; 16])
}

/// Another's volume and one that is not there: the same words, in the same order.
fn cannot_tell_volumes_apart(portal: SocketAddr, theirs: &Value) {
    let met = |nqn: &Nqn| {
        let mut stranger = Stranger::greeted(portal);
        let mut connected = stranger.connect(&host_of_good(), nqn);
        // The controller's number is another each time.
        connected[8..10].fill(0);
        stranger.say(&negotiation(Group::Null));
        let challenge = stranger.ask_for_message();
        // Up to the challenge itself and its sequence number.
        (connected, challenge[..12].to_vec())
    };
    let there = met(&nqn(theirs));
    for guess in 0..4 {
        assert_eq!(met(&Nqn::from_uuid(&[guess; 16])), there);
    }
}

/// An exchange that succeeded, overheard: it opens nothing a second time.
fn replays_in_vain(portal: SocketAddr, theirs: &Value) {
    let parties = Parties { host: host_of_good(), subsystem: nqn(theirs) };
    let begun = || {
        let mut host = Stranger::greeted(portal);
        host.connect(&parties.host, &parties.subsystem);
        host
    };
    let mut owner = begun();
    let (mut exchange, first) = Host::new(parties, token(theirs), None, 3);
    owner.say(&first);
    let job = exchange.receive(&owner.ask_for_message(), &mut |bytes| bytes.fill(7));
    assert!(job.is_none(), "the null group comes first");
    let reply = exchange.message().expect("a Reply");
    owner.say(&reply);
    exchange.receive(&owner.ask_for_message(), &mut |_| {});
    assert_eq!(exchange.outcome(), Outcome::Authenticated);

    let mut thief = begun();
    thief.say(&first);
    thief.ask_for_message();
    thief.say(&reply);
    let answer = thief.ask_for_message();
    let failed = Message::decode(&answer).expect("a message");
    assert!(matches!(failed.body, Body::Failure1(_)), "{:?}", failed.body);
    assert!(thief.is_closed());
}

/// Requests of the evil tenant to the API about another tenant's volumes.
fn asks_the_api_in_vain(service: &Service, theirs: &Value) {
    let evil = service.evil.as_str();
    let (id, name) = (text(theirs, "id"), text(theirs, "name"));
    for key in [id, name, "00000000-0000-4000-8000-000000000000"] {
        let one = format!("/v1/volumes/{key}");
        for (method, path, body) in [
            ("GET", one.clone(), ""),
            ("DELETE", one.clone(), ""),
            ("PATCH", one.clone(), "{\"size_bytes\":4096}"),
            ("POST", format!("{one}/tokens"), "{\"cut\":true}"),
            ("PATCH", format!("{one}/restrictions"), "{\"hosts\":[]}"),
        ] {
            let (status, answer) = service.ask(evil, method, &path, body.as_bytes());
            assert_eq!(status, 404, "{method} {path}: {answer}");
            assert!(!answer.contains("good"), "{answer}");
        }
    }
    for path in [
        "/v1/volumes/..%2f..%2fv1%2fvolumes",
        "/v1/volumes/%2e%2e/volumes/x",
        "/v1/../../../etc/passwd",
        "/..%2f..%2f..%2fetc%2fpasswd",
        "//v1/volumes//",
        "/v1/volumes/%00",
        "/v1/volumes/..;/x",
        &format!("/v1/volumes/{}", "a".repeat(6_000)),
    ] {
        let (status, answer) = service.ask(evil, "GET", path, b"");
        assert!((400..500).contains(&status), "{path:.60}: {status} {answer}");
        assert!(!answer.contains(id) && !answer.contains("root:"), "{answer}");
    }
    let huge = vec![b'['; 8 << 20];
    let nested = [b"{\"name\":".as_slice(), &vec![b'['; 50_000]].concat();
    let wide = format!("{{\"name\":\"{}\",\"size_bytes\":4096}}", "x".repeat(40_000));
    for body in [&huge[..], &nested, wide.as_bytes(), b"{\"size_bytes\":1e400,\"name\":\"x\"}"] {
        let (status, answer) = service.ask(evil, "POST", "/v1/volumes", body);
        assert!((400..500).contains(&status), "{} bytes: {status} {answer}", body.len());
    }
    let (status, list) = service.ask(evil, "GET", "/v1/volumes", b"");
    assert_eq!(status, 200);
    assert!(!list.contains(id), "{list}");
}

/// A name that comes to belong to another: neither an open connection nor an old token follows it.
fn keeps_nothing_of_a_name(service: &Rc<Service>) {
    let service = service.clone();
    let portal = service.server.portals[0];
    let old = service.create(&service.evil, "contested");
    let (old_nqn, old_token) = (nqn(&old), token(&old));
    on_core(|handle| async move {
        let client = Client::connect(handle.clone(), portal, &old_nqn, with(old_token.clone()));
        let held = client.await.expect("its own volume").volume().await.expect("a namespace");
        held.write(Lba(0), filled(0xE71)).await.expect("written");
        let path = format!("/v1/volumes/{}?lose_data=true", text(&old, "id"));
        let (status, answer) = service.ask(&service.operator, "DELETE", &path, b"");
        assert_eq!(status, 204, "{answer}");
        let new = service.create(&service.good, "contested");
        let (new_nqn, new_token) = (nqn(&new), token(&new));
        assert_ne!(new_nqn, old_nqn);
        let client = Client::connect(handle.clone(), portal, &new_nqn, with(new_token)).await;
        let owned = client.expect("its own volume").volume().await.expect("a namespace");
        let read = owned.read(Lba(0), 1).await.expect("read");
        assert!(read.as_bytes().iter().all(|byte| *byte == 0), "what the last owner wrote");
        owned.write(Lba(0), filled(0x600D)).await.expect("written");
        held.read(Lba(0), 1).await.expect_err("the volume is gone");
        held.write(Lba(0), filled(0xE71)).await.expect_err("the volume is gone");
        let later = Client::connect(handle, portal, &new_nqn, with(old_token)).await;
        assert!(matches!(later, Err(ConnectError::Authentication(_))), "{:?}", later.err());
        let read = owned.read(Lba(0), 1).await.expect("read");
        assert!(read.as_bytes() == filled(0x600D).as_bytes());
    });
}

/// Begins an exchange with another's volume; in the largest group the server has to compute for it.
fn begin_exchange(portal: SocketAddr, theirs: &Nqn, group: Group) -> Stranger {
    let mut stranger = Stranger::greeted(portal);
    stranger.connect(&host_of_good(), theirs);
    let message = negotiation(group);
    let length = u32::try_from(message.len()).unwrap();
    stranger.send_command(Authentication::send(length).into(), &message);
    stranger
}

/// Begins exchanges with another's volume and holds them, and has the server compute.
fn begin_exchanges(portal: SocketAddr, theirs: &Value) -> Vec<Stranger> {
    let (nqn, largest) = (nqn(theirs), |number: usize| number.is_multiple_of(LARGEST_EVERY));
    let group = |number| if largest(number) { Group::Ffdhe8192 } else { Group::Null };
    (0..HALF_FINISHED).map(|number| begin_exchange(portal, &nqn, group(number))).collect()
}

#[test]
fn a_tenant_gets_nothing_of_anothers_and_harms_no_other() {
    let service = Rc::new(Service::start(4096));
    let portal = service.server.portals[0];
    let theirs = service.create(&service.good, "precious");
    let (stop, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let worker = {
        let (theirs, stop, done) = (theirs.clone(), stop.clone(), done.clone());
        std::thread::spawn(move || work(portal, &theirs, stop, done))
    };
    let works_on = |what: &str| {
        let before = done.load(Ordering::Relaxed);
        until(what, || done.load(Ordering::Relaxed) > before + BLOCKS || worker.is_finished());
        assert!(!worker.is_finished(), "the good tenant met an error: {what}");
    };
    works_on("the volume is worked on");
    cannot_tell_volumes_apart(portal, &theirs);
    replays_in_vain(portal, &theirs);
    asks_the_api_in_vain(&service, &theirs);
    keeps_nothing_of_a_name(&service);
    works_on("nothing of that is noticed");
    let before = service.server.resident_bytes();
    let strangers = begin_exchanges(portal, &theirs);
    works_on("thousands of exchanges are begun and held");
    let grown = service.server.resident_bytes().saturating_sub(before);
    assert!(grown < 256 << 20, "{grown} bytes for {HALF_FINISHED} connections");
    // Another host of the good tenant is let in meanwhile, from an address of its own.
    let (own, secret) = (nqn(&theirs), token(&theirs));
    on_core(|handle| async move {
        let another = Client::connect(handle, portal, &own, with(secret)).await;
        another.expect("who has the token is let in").volume().await.expect("a namespace");
    });
    drop(strangers);
    until("nothing of them is left", || service.connections() < 16.0);
    stop.store(true, Ordering::Relaxed);
    worker.join().expect("the good tenant met no error");
}

/// Method: a host of the good tenant works, while the evil one does each of these as fast as it can, and while it does not:
/// beginning exchanges that the server computes for, asking the API for what is not its own, and using its own volume.
#[test]
fn a_tenant_slows_no_other() {
    let service = Service::start(4096);
    let (portal, api) = (service.server.portals[0], service.server.api.clone());
    let theirs = service.create(&service.good, "precious");
    let own = service.create(&service.evil, "own");
    let (stop, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let worker = {
        let (theirs, stop, done) = (theirs.clone(), stop.clone(), done.clone());
        std::thread::spawn(move || work(portal, &theirs, stop, done))
    };
    until("the volume is worked on", || done.load(Ordering::Relaxed) > 0 || worker.is_finished());
    // Those of the host alone: what is left of an attack would count as undisturbed.
    let undisturbed = service.connections();
    let is_over = || service.connections() <= undisturbed && !worker.is_finished();

    let (name, evil) = (nqn(&theirs), service.evil.as_str());
    let begins_exchanges = || {
        let begin = |_| begin_exchange(portal, &name, Group::Ffdhe8192);
        let mut begun: Vec<Stranger> = (0..8).map(begin).collect();
        // The first is computed for; a host that has gone is not.
        begun[0].hear(24);
    };
    let address = api.strip_prefix("http://").unwrap();
    let (one, tokens) = ("/v1/volumes/precious", "/v1/volumes/precious/tokens");
    let asks = || {
        for (method, path) in [("GET", "/v1/volumes"), ("DELETE", one), ("POST", tokens)] {
            let (status, answer) = ask(address, evil, method, path, b"{}");
            assert!(status < 500, "{answer}");
        }
    };
    let uses_its_own = || overwrite(portal, &own);
    let attacks: [(&str, &(dyn Fn() + Sync)); 3] = [
        ("exchanges that are begun", &begins_exchanges),
        ("requests to the API", &asks),
        ("deep queues of another volume", &uses_its_own),
    ];
    for (what, once) in attacks {
        pace::keeps_its_pace(&done, &pace::Attack { what, once }, is_over);
    }
    stop.store(true, Ordering::Relaxed);
    worker.join().expect("the good tenant met no error");
}

/// GUEST-1. Method: the evil tenant makes volumes, and controllers of each by its own
/// token, as long as it is let.
#[test]
fn a_tenant_with_many_volumes_leaves_places_to_others() {
    const PLACES: usize = 256;
    const CONTROLLER: usize = 65;
    let service = Service::start(PLACES);
    let portal = service.server.portals[0];
    let theirs = service.create(&service.good, "precious");
    let own: Vec<Value> =
        (0..8).map(|n| service.create(&service.evil, &format!("evil-{n}"))).collect();
    on_core(|handle| async move {
        let open = async |volume: &Value, queues: u16| {
            let options = Options { queues, ..with(token(volume)) };
            Client::connect(handle.clone(), portal, &nqn(volume), options).await
        };
        let (mut held, mut refused) = (Vec::new(), 0);
        for volume in &own {
            let before = held.len();
            let refusal = loop {
                match open(volume, 1).await {
                    Ok(client) => held.push(client),
                    Err(refusal) => break refusal,
                }
                assert!(2 * held.len() < PLACES, "the evil tenant has all places");
            };
            assert!(
                matches!(refusal, ConnectError::Command(_)),
                "it is closed behind: {refusal:?}"
            );
            refused += usize::from(held.len() == before);
        }
        // A controller with one queue has two connections.
        assert!(2 * held.len() >= PLACES / 2 - 2, "it has its share: {}", held.len());
        assert!(2 * held.len() <= PLACES / 2, "it has no more: {}", held.len());
        assert!(refused > 0, "its last volumes find nothing left");
        let good = open(&theirs, CONTROLLER as u16 - 1).await.expect("a whole controller's places");
        let volume = good.volume().await.expect("a namespace");
        volume.write(Lba(0), filled(0x600D)).await.expect("served");
        // The evil tenant keeps what it has, and has it in working order.
        let kept = held[0].volume().await.expect("a namespace");
        kept.write(Lba(0), filled(0xE71)).await.expect("served");
    });
}
