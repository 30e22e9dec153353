//! The library for ordinary threads, against several real servers that share real etcd: a volume is opened through any
//! host, found where it goes, and opened again without asking anybody.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::etcd::EtcdProcesses;
use crate::support::cluster::{self, host_with, knows, lease_ends};
use crate::support::gate::Gate;
use crate::support::{Files, Server, until};
use farflash_client::{
    Cluster, CreatedVolume, Data, NewVolume, OpenOptions, Pending, Reply, Request, Volume,
    VolumeRecord,
};
use uuid::Uuid;

const BLOCK: usize = 4096;
const MIB: u64 = 1 << 20;

/// State that hosts have in common.
struct Service {
    name: &'static str,
    etcd: EtcdProcesses,
    files: Files,
}

impl Service {
    fn new(name: &'static str) -> Self {
        Self { name, etcd: EtcdProcesses::start(1), files: Files::new() }
    }

    fn directory(&self) -> String {
        cluster::url(self.etcd.address(0), self.name)
    }

    /// A device in a file.
    fn device(&self, name: &str) -> String {
        cluster::format(&self.files, name)
    }

    /// A server on portals of the kernel's choice: another one each time.
    fn host(&self, name: &str, device: &str, more: &[&str]) -> Server {
        host_with(&self.directory(), name, device, more)
    }
}

fn address(server: &Server) -> &str {
    server.api.trim_start_matches("http://")
}

fn url(server: &Server) -> String {
    format!("http://{}", address(server))
}

fn new(name: &str, on: &str) -> NewVolume {
    NewVolume { on: Some(on.to_owned()), ..NewVolume::new(name, 64 * MIB) }
}

fn open(cluster: &Cluster, volume: &str, token: &str) -> Volume {
    let token = Some(token.to_owned());
    cluster.open(volume, &OpenOptions { token, ..OpenOptions::default() }).unwrap()
}

fn kill(server: Server) {
    server.signal("KILL");
    server.wait();
}

/// Returns true if `v` is the volume `id` to all of these, each for itself.
fn is_known_to(servers: &[&Server], id: Uuid) -> bool {
    let known = |server: &&Server| Cluster::new([url(server)], None).unwrap().show("v");
    servers.iter().all(|server| known(server).is_ok_and(|record| record.id == id))
}

/// The outcome of a request, which must come in the time that waiting is worth.
#[track_caller]
fn done(pending: Pending<Reply>) -> Reply {
    pending.wait_timeout(crate::support::PATIENCE).ok().expect("an outcome in time").unwrap()
}

fn write(volume: &Volume, stamp: u8) -> Pending<Reply> {
    let data = Data::from(&[stamp; BLOCK][..]);
    volume.start(Request::Write { offset: u64::from(stamp) * BLOCK as u64, data })
}

/// Demands that the block of `stamp` is what was written.
#[track_caller]
fn holds(volume: &Volume, stamp: u8) {
    let offset = u64::from(stamp) * BLOCK as u64;
    let Reply::Data(data) = done(volume.start(Request::Read { offset, len: BLOCK })) else {
        panic!("a read gives data")
    };
    assert_eq!(data.to_vec(), [stamp; BLOCK]);
}

#[track_caller]
fn is_at(volume: &Volume, server: &Server, host: &str) {
    let address = volume.properties().unwrap().address;
    assert!(server.portals.contains(&address), "{address}, not {:?}", server.portals);
    let domain = volume.failure_domain().unwrap().expect("a farflash server says it");
    assert_eq!((domain.host, domain.labels["rack"].clone()), (host.into(), format!("of-{host}")));
}

/// Its host is killed and comes back at another portal; then it is killed, and another host takes its device over. The
/// library knows one API, which is neither's.
#[test]
fn an_open_volume_is_found_wherever_it_goes() {
    let service = Service::new("library-moves");
    let (a, device) = (service.host("a", &service.device("a"), &[]), service.device("b"));
    let b = service.host("b", &device, &[]);
    knows(&a, "b");
    let cluster = Cluster::new([url(&a)], None).unwrap();
    let CreatedVolume { volume: created, tokens } = cluster.create(&new("v", "rack=of-b")).unwrap();
    let open = |volume: &str| open(&cluster, volume, &tokens.token);
    until("it is known here", || cluster.show("v").is_ok());
    assert_eq!((created.host.as_str(), created.address), ("b", b.portals[0]));
    let (by_name, by_id) = (open("v"), open(&created.id.to_string()));
    for (volume, stamp) in [(&by_name, 1), (&by_id, 2)] {
        is_at(volume, &b, "b");
        done(write(volume, stamp));
    }

    kill(b);
    let waiting = [write(&by_name, 3), write(&by_id, 4)];
    let b = service.host("b", &device, &[]);
    waiting.into_iter().for_each(|pending| drop(done(pending)));
    is_at(&by_name, &b, "b");

    kill(b);
    let waiting = [write(&by_name, 5), write(&by_id, 6)];
    lease_ends(&service.directory(), "c", &device);
    let c = service.host("c", &device, &["--take-over", "--confirm-down", "b"]);
    waiting.into_iter().for_each(|pending| drop(done(pending)));
    for volume in [&by_name, &by_id] {
        is_at(volume, &c, "c");
        (1..=6).for_each(|stamp| holds(volume, stamp));
        assert_eq!(volume.properties().unwrap().uuid(), Some(created.id));
        assert!(volume.properties().unwrap().reconnects >= 2);
    }
}

/// Its host comes back without the device, and refuses hosts that want its volumes as it refuses a wrong
/// token.
#[test]
fn an_open_volume_is_sought_while_its_device_is_absent() {
    let service = Service::new("library-absent");
    let a = service.host("a", &service.device("a"), &[]);
    let (one, two) = (service.device("one"), service.device("two"));
    let with_two = ["--device", two.as_str(), "--auth", "on"];
    let b = service.host("b", &one, &with_two);
    knows(&a, "b");
    let gate = Gate::start(address(&a));
    let cluster = Cluster::new([&gate.url], None).unwrap();
    let on_two = NewVolume { device: Some(two.clone()), ..new("v", "b") };
    let token = Some(cluster.create(&on_two).unwrap().tokens.token);
    until("it is known here", || cluster.show("v").is_ok());
    let volume = cluster.open("v", &OpenOptions { token, ..OpenOptions::default() }).unwrap();
    done(write(&volume, 1));

    kill(b);
    let mut waiting = Some(write(&volume, 2));
    let (at, gone) = (service.files.path("two"), service.files.path("gone"));
    std::fs::rename(&at, &gone).unwrap();
    let b = service.host("b", &one, &with_two);
    let asked = gate.passed();
    until("it is asked for longer than a wrong token is tried", || {
        let waited = waiting.take().unwrap().wait_timeout(Duration::ZERO);
        waiting = Some(waited.expect_err("it is not given up"));
        gate.passed() > asked + 12
    });
    std::fs::rename(&gone, &at).unwrap();
    done(waiting.unwrap());
    is_at(&volume, &b, "b");
    (1..=2).for_each(|stamp| holds(&volume, stamp));
}

/// A volume that was open once is opened again without an API; an address that is out of date is found out,
/// and the new one remembered.
#[test]
fn a_volume_is_opened_again_without_asking_and_a_stale_place_is_found_out() {
    let service = Service::new("library-remembers");
    let (a, device) = (service.host("a", &service.device("a"), &[]), service.device("b"));
    let b = service.host("b", &device, &[]);
    // Two APIs, of which neither answers once it is told not to.
    let gates = [address(&b), address(&a)].map(Gate::start);
    let cluster = Cluster::new(gates.each_ref().map(|gate| gate.url.clone()), None).unwrap();
    let CreatedVolume { volume: VolumeRecord { id, .. }, tokens } =
        cluster.create(&new("v", "b")).unwrap();
    until("it is known to both", || is_known_to(&[&a, &b], id));
    done(write(&open(&cluster, "v", &tokens.token), 1));
    open(&cluster, &id.to_string(), &tokens.token).close().unwrap();

    // The host comes back elsewhere while no client has the volume open: its old place is tried, and the
    // other API tells.
    kill(b);
    let b = service.host("b", &device, &[]);
    let sees = |place: SocketAddr| {
        let record = |volume: &VolumeRecord| (volume.host.clone(), volume.address);
        let volumes = Cluster::new([url(&a)], None).unwrap().list().unwrap();
        volumes.iter().map(record).eq([("b".to_owned(), place)])
    };
    until("the other host has seen it", || sees(b.portals[0]));
    let volume = open(&cluster, "v", &tokens.token);
    is_at(&volume, &b, "b");
    holds(&volume, 1);
    volume.close().unwrap();

    // That place is remembered: no API is asked.
    gates.iter().for_each(Gate::hang);
    let volume = open(&cluster, "v", &tokens.token);
    is_at(&volume, &b, "b");
    holds(&volume, 1);
    assert_eq!(gates.each_ref().map(Gate::held), [0, 0]);
    drop(volume);

    // Another volume has the name, at the other host. A client that remembers the old one opens the new one.
    let knowing = Cluster::new([url(&b), url(&a)], None).unwrap();
    open(&knowing, "v", &tokens.token).close().unwrap();
    let other = Cluster::new([url(&a)], None).unwrap();
    other.delete_with_data("v").unwrap();
    let mut again = None;
    until("the name is free here, too", || {
        again = other.create(&new("v", "a")).ok();
        again.is_some()
    });
    let CreatedVolume { volume: again, tokens } = again.unwrap();
    until("it is known to both", || is_known_to(&[&a, &b], again.id));
    let volume = open(&knowing, "v", &tokens.token);
    is_at(&volume, &a, "a");
    assert_eq!(volume.properties().unwrap().uuid(), Some(again.id));
}

/// Ranges that etcd has answered. It counts them by the method's name.
fn ranges(etcd: SocketAddr) -> u64 {
    let mut stream = TcpStream::connect(etcd).unwrap();
    write!(stream, "GET /metrics HTTP/1.0\r\nHost: {etcd}\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let lines = text.lines().filter(|line| {
        line.starts_with("grpc_server_handled_total") && line.contains("grpc_method=\"Range\"")
    });
    let count = |line: &str| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap() as u64;
    lines.map(count).sum()
}

/// A client that opens a volume and uses it asks a host, which knows the answer from its watches: etcd is not
/// asked.
#[test]
fn neither_requests_nor_openings_ask_etcd() {
    const OPENINGS: usize = 50;
    let service = Service::new("cached");
    let device = service.device("a");
    let server = service.host("a", &device, &[]);
    let cluster = Cluster::new([url(&server)], None).unwrap();
    let token = cluster.create(&new("v", "a")).unwrap().tokens.token;
    let before = ranges(service.etcd.address(0));
    assert!(before > 0, "the server has asked when it started");
    for _ in 0..OPENINGS {
        let volume = open(&cluster, "v", &token);
        (0..=99).for_each(|stamp| assert!(matches!(done(write(&volume, stamp)), Reply::Done)));
        (0..=99).for_each(|stamp| holds(&volume, stamp));
    }
    let asked = ranges(service.etcd.address(0)) - before;
    assert!(asked < OPENINGS as u64 / 5, "etcd was asked {asked} times");
}
