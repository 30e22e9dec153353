//! The most memory that a server takes: as many connections as it allows, each of which costs as much as it
//! can.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use crate::support::Server;
use nvme_wire::fabrics::{CONNECT_DATA_LEN, Connect, ConnectData, Property, PropertySize};
use nvme_wire::io::{BlockCommand, DatasetManagement, DsmRange};
use nvme_wire::pdu::{CapsuleCmd, Digests, H2cData, IcReq};
use nvme_wire::property::{Cc, offset};
use nvme_wire::{HostId, IoOpcode, Nqn, SglDescriptor, Sqe};
use rustix::net::sockopt::set_socket_recv_buffer_size;
use zerocopy::{FromBytes, IntoBytes};

/// Connections that the server allows. Its volumes share them: each has an admin queue, and so many others.
const CONNECTIONS_MAX: usize = 1024;
const VOLUMES: usize = 8;
const QUEUES: u16 = 112;
/// Entries of a queue that can be used.
const DEPTH: u16 = 127;
const BLOCK: usize = 4096;
/// Blocks of the largest transfer, and of what goes with a capsule.
const TRANSFER_BLOCKS: u32 = 256;
const CAPSULE_BLOCKS: u32 = 4;
/// Commands whose answers are more than what may wait to be sent, with what the kernel takes besides; and how many of them
/// are sent at a time, so that the queue is not overrun.
const FLUSHES: u16 = 12_000;
const FLUSHES_AT_ONCE: usize = 100;
/// Bytes that a host lets the kernel receive without reading them.
const RECEIVE_BYTES: usize = 4096;
/// Duration of each host's attack: longer than connections that hold memory without progress are let.
const SIEGE: Duration = Duration::from_secs(3);

/// The device is memory, too.
const DEVICE: (&str, u64) = ("64MiB", 64 << 20);
const CORE_MEMORY: (&str, u64) = ("32MiB", 32 << 20);
/// Memory that one connection may cost beyond that for data, and memory of a server besides
/// (`docs/operations/install.md`).
const CONNECTION_BYTES_MAX: u64 = 384 << 10;
const SERVER_BYTES_MAX: u64 = 64 << 20;

/// The way in which a host costs much.
#[derive(Clone, Copy, Debug)]
enum Kind {
    /// Has answers made, and reads none.
    Deaf,
    /// Sends data with its commands, and of the last only half.
    HalfSaid,
    /// Sends as many commands as it can, each with a little data.
    Petty,
    /// Asks for as much as it can, and does not read.
    Greedy,
    /// Is asked for data, and sends half of it.
    Debtor,
}

const KINDS: [Kind; 5] = [Kind::Deaf, Kind::HalfSaid, Kind::Petty, Kind::Greedy, Kind::Debtor];

fn sqe(bytes: &[u8]) -> Sqe {
    Sqe::read_from_bytes(bytes).unwrap()
}

fn capsule(cid: u16, mut sqe: Sqe, data: &[u8]) -> Vec<u8> {
    sqe.cid = cid.into();
    if !data.is_empty() {
        sqe.dptr = SglDescriptor::in_capsule(u32::try_from(data.len()).unwrap());
    }
    let head = CapsuleCmd::new(sqe, data.len(), Digests::default(), 4);
    [head.as_bytes(), data].concat()
}

/// Connects a queue. A volume lets no host in while many commands of hosts that have left are under way.
fn connect(address: SocketAddr, nqn: &Nqn, ids: (u16, u16)) -> (TcpStream, u16) {
    let mut connected = None;
    crate::support::until("the queue is let in", || {
        connected = try_to_connect(address, nqn, ids);
        connected.is_some()
    });
    connected.unwrap()
}

fn try_to_connect(
    address: SocketAddr,
    nqn: &Nqn,
    (qid, cntlid): (u16, u16),
) -> Option<(TcpStream, u16)> {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(crate::support::PATIENCE)).unwrap();
    set_socket_recv_buffer_size(&stream, RECEIVE_BYTES).unwrap();
    let host = Nqn::from_uuid(&[9; 16]);
    let data = ConnectData::new(HostId([9; 16]), &host, nqn, cntlid);
    let command = sqe(Connect::new(qid, DEPTH + 1, 0).as_bytes());
    assert_eq!(data.as_bytes().len(), CONNECT_DATA_LEN as usize);
    stream.write_all(IcReq::new(Digests::default(), 1).as_bytes()).unwrap();
    stream.write_all(&capsule(1, command, data.as_bytes())).unwrap();
    let mut heard = [0; 128 + 24];
    stream.read_exact(&mut heard).unwrap();
    let status = u16::from_le_bytes([heard[150], heard[151]]) >> 1;
    (status == 0).then(|| (stream, u16::from_le_bytes([heard[136], heard[137]])))
}

/// The queues of a host: the admin queue first.
fn host(address: SocketAddr, nqn: &Nqn) -> Vec<TcpStream> {
    let (mut admin, cntlid) = connect(address, nqn, (0, 0xFFFF));
    let enable = Property::set(offset::CC, PropertySize::Four, Cc::enabled(Cc::CSS_NVM).0.into());
    admin.write_all(&capsule(2, sqe(enable.as_bytes()), &[])).unwrap();
    admin.read_exact(&mut [0; 24]).unwrap();
    // It gets ready when nothing is under way any more that its host sent before.
    let status = Property::get(offset::CSTS, PropertySize::Four);
    crate::support::until("the controller is ready", || {
        admin.write_all(&capsule(3, sqe(status.as_bytes()), &[])).unwrap();
        let mut heard = [0; 24];
        admin.read_exact(&mut heard).unwrap();
        heard[8] & 1 != 0
    });
    let queues = (1..=QUEUES).map(|qid| connect(address, nqn, (qid, cntlid)).0);
    std::iter::once(admin).chain(queues.collect::<Vec<_>>()).collect()
}

/// The commands that a host of a kind sends at once.
fn words(kind: Kind) -> Vec<u8> {
    let block = |opcode, blocks| BlockCommand::new(0, blocks).encode(opcode, 1, 0);
    let transfer = |opcode| {
        BlockCommand::new(0, TRANSFER_BLOCKS).encode(opcode, 1, TRANSFER_BLOCKS * BLOCK as u32)
    };
    let all = |say: &dyn Fn(u16) -> Vec<u8>| (0..DEPTH).flat_map(say).collect::<Vec<u8>>();
    match kind {
        Kind::Deaf => {
            // Each is answered at once, so that there may always be more.
            let flush = Sqe::new(IoOpcode::FLUSH.0, 1);
            (0..FLUSHES).flat_map(|cid| capsule(cid, flush, &[])).collect()
        }
        Kind::HalfSaid => {
            let data = vec![7; CAPSULE_BLOCKS as usize * BLOCK];
            let mut said = all(&|cid| capsule(cid, block(IoOpcode::WRITE, CAPSULE_BLOCKS), &data));
            said.truncate(said.len() - data.len() / 2);
            said
        }
        Kind::Petty => {
            let range = DsmRange::new(0, 1);
            all(&|cid| capsule(cid, DatasetManagement::deallocate(1, 1), range.as_bytes()))
        }
        Kind::Greedy => all(&|cid| capsule(cid, transfer(IoOpcode::READ), &[])),
        Kind::Debtor => all(&|cid| capsule(cid, transfer(IoOpcode::WRITE), &[])),
    }
}

/// One queue of a host, which never waits for the server.
struct Queue {
    kind: Kind,
    stream: TcpStream,
    said: usize,
    heard: Vec<u8>,
    owed: Vec<u8>,
}

impl Queue {
    fn new(kind: Kind, stream: TcpStream) -> Self {
        stream.set_nonblocking(true).unwrap();
        Self { kind, stream, said: 0, heard: Vec::new(), owed: Vec::new() }
    }

    /// Returns true if it could send something.
    fn go_on(&mut self, words: &[u8]) -> bool {
        if matches!(self.kind, Kind::Debtor) && self.said == words.len() {
            self.answer_r2ts();
        }
        let rest = if self.said < words.len() { &words[self.said..] } else { &self.owed[..] };
        let at_once = match self.kind {
            Kind::Deaf => FLUSHES_AT_ONCE * size_of::<CapsuleCmd>(),
            _ => rest.len(),
        };
        let rest = &rest[..rest.len().min(at_once)];
        match (&self.stream).write(rest) {
            Ok(0) => false,
            Ok(count) if self.said < words.len() => {
                self.said += count;
                true
            }
            Ok(count) => {
                self.owed.drain(..count);
                true
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => false,
            // It was cut, as it should be when memory is short.
            Err(_) => false,
        }
    }

    /// Half of what each R2T asks for.
    fn answer_r2ts(&mut self) {
        let mut bytes = [0; 4096];
        if let Ok(count) = (&self.stream).read(&mut bytes) {
            self.heard.extend_from_slice(&bytes[..count]);
        }
        while self.heard.len() >= 24 {
            let r2t: Vec<u8> = self.heard.drain(..24).collect();
            let field = |at: usize| u16::from_le_bytes([r2t[at], r2t[at + 1]]);
            let len = u32::from_le_bytes(r2t[16..20].try_into().unwrap()) / 2;
            let data = H2cData::new((field(8), field(10)), (0, len), false, Digests::default(), 4);
            self.owed.extend_from_slice(data.as_bytes());
            self.owed.resize(self.owed.len() + len as usize, 7);
        }
    }
}

/// Bytes that the kernel holds for the sockets of a port: received and not read, or sent and not acknowledged.
fn kernel_bytes(port: u16) -> u64 {
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let local = format!(":{port:04X}");
    let of_port = table.lines().skip(1).map(|line| line.split_whitespace().collect::<Vec<_>>());
    let of_port = of_port.filter(|fields| fields[1].ends_with(&local));
    let queues = of_port.flat_map(|fields| {
        let (sent, received) = fields[4].split_once(':').unwrap();
        [sent, received].map(|queue| u64::from_str_radix(queue, 16).unwrap())
    });
    queues.sum()
}

/// Bytes that the kernel may hold for a socket.
fn socket_bytes_max() -> u64 {
    let most = |name: &str| {
        let figures = std::fs::read_to_string(format!("/proc/sys/net/ipv4/{name}")).unwrap();
        figures.split_whitespace().last().unwrap().parse::<u64>().unwrap()
    };
    most("tcp_rmem") + most("tcp_wmem")
}

/// Memory that a server with so many connections may take.
fn at_most(connections: u64) -> u64 {
    SERVER_BYTES_MAX + DEVICE.1 + CORE_MEMORY.1 + connections * CONNECTION_BYTES_MAX
}

/// Method: a server of one core that answers slowly, since its device has a ceiling, is besieged by hosts of each kind in
/// turn, then of all kinds, on nine of ten connections that it allows; each time its peak is looked at.
#[test]
fn as_many_of_the_worst_hosts_as_are_let_in_cost_what_is_documented() {
    let connections = CONNECTIONS_MAX.to_string();
    let memory = ["--core-memory", CORE_MEMORY.0];
    let more = [&["--auth", "off", "--connections-max", &connections][..], &memory].concat();
    let device = format!("mem:{},reads-per-second=2000,writes-per-second=2000", DEVICE.0);
    let server = Server::start_with(&device, &more);
    let port = server.portals[0].port();
    let nqns: Vec<Nqn> = (0..VOLUMES)
        .map(|n| {
            let name = format!("v{n}");
            let made = server.volume_json(&["create", &name, "--size", "8MiB"]);
            made["nqn"].as_str().unwrap().parse().unwrap()
        })
        .collect();
    let words = KINDS.map(words);
    let at_rest = server.resident_bytes();
    for only in KINDS.iter().map(Some).chain([None]) {
        let hosts: Vec<_> = nqns.iter().map(|nqn| host(server.portals[0], nqn)).collect();
        let count = hosts.iter().map(Vec::len).sum::<usize>();
        let (admins, queues): (Vec<_>, Vec<_>) =
            hosts.into_iter().map(|mut host| (host.remove(0), host)).unzip();
        let mut queues: Vec<Queue> = queues
            .into_iter()
            .flatten()
            .zip(KINDS.iter().cycle())
            .map(|(stream, kind)| Queue::new(*only.unwrap_or(kind), stream))
            .collect();
        let (end, mut kernel, mut peak) = (Instant::now() + SIEGE, 0, 0);
        let connected = server.resident_bytes();
        while Instant::now() < end {
            let mut is_over = true;
            for queue in &mut queues {
                is_over &= !queue.go_on(&words[queue.kind as usize]);
            }
            kernel = kernel.max(kernel_bytes(port));
            peak = peak.max(server.resident_bytes());
            if is_over || matches!(only, Some(Kind::Deaf)) {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        let each = peak.saturating_sub(connected) / count as u64;
        eprintln!(
            "{only:?}: {count} connections, {} MiB at rest, {} MiB connected, {} MiB at the peak, {each} bytes each; kernel {} MiB",
            at_rest >> 20,
            connected >> 20,
            peak >> 20,
            kernel >> 20,
        );
        let most = at_most(count as u64);
        assert!(peak <= most, "{only:?}: {peak} bytes are resident, {most} are allowed");
        let most = count as u64 * socket_bytes_max();
        assert!(kernel <= most, "{only:?}: the kernel holds {kernel} bytes, {most} are allowed");
        drop((admins, queues));
        let api = control::ApiClient::new(&server.api).unwrap();
        crate::support::until("they are forgotten", || {
            api.server().unwrap().cores[0].connections == 0
        });
    }
    server.signal("TERM");
    assert_eq!(server.wait(), Some(0));
}
