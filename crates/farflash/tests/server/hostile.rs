//! Strangers that break the rules of the wire, at a live server, while a host works on.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::support::host::{connect, filled, on_core};
use crate::support::initiator::{self, BLOCK, Initiator, Names};
use crate::support::{Server, foreign, nbd, until};
use io_traits::Spawn;
use iscsi_wire::Cdb;
use iscsi_wire::cdb::opcode as scsi;
use iscsi_wire::pdu::{self, opcode};
use nbd_wire::Command;
use nvme_wire::fabrics::{CONNECT_DATA_LEN, Connect, ConnectData, Property, PropertySize};
use nvme_wire::io::BlockCommand;
use nvme_wire::pdu::{CapsuleCmd, Digests, H2cData, IcReq};
use nvme_wire::{AdminOpcode, HostId, IoOpcode, Nqn, SglDescriptor, Sqe, property};
use reactor::Handle;
use rustix::net::{AddressFamily, SocketType, bind, connect as connect_socket, socket};
use units::Lba;
use zerocopy::IntoBytes;

const TARGET_PREFIX: &str = "iqn.2026-01.io.farflash:";
const C2H_TERM_REQ: u8 = 3;
/// Blocks that the good host works on; no other host writes them and stays connected.
const BLOCKS: u64 = 512;
const WORKERS: u64 = 8;
/// Strangers that say everything a byte at a time.
const DAWDLERS: usize = 20;
/// A server that says nothing for so long has nothing to say.
const SILENCE: Duration = Duration::from_secs(2);
/// The part of its pace that the good host keeps while thousands of strangers come: it shares the CPUs with them, and a core that
/// stops for each of those that break a rule leaves it far less.
const PACE_PART_MIN: f64 = 0.05;
/// Duration of the strangers' attack.
const SIEGE: Duration = Duration::from_secs(4);
/// Requests of the good host before the strangers come: by then it has what memory it needs.
const REQUESTS_BEFORE: u64 = 8 * BLOCKS;
/// Memory of requests' data, at most.
const CORE_MEMORY: &str = "32MiB";
/// Memory by which the server may have grown when the strangers are gone: as much again as it may hold for
/// requests, since the allocator keeps pages, and pools keep what they once were given. If each of hundreds
/// of connections left something behind, it would show.
const GROWTH_MAX_BYTES: u64 = 64 << 20;
/// CC of a host that enables a controller: EN, 64-byte and 16-byte queue entries.
const CC_ENABLE: u64 = 1 | 6 << 16 | 4 << 20;

fn sqe(bytes: &[u8]) -> Sqe {
    zerocopy::FromBytes::read_from_bytes(bytes).unwrap()
}

fn capsule(cid: u16, mut sqe: Sqe, data: &[u8]) -> Vec<u8> {
    sqe.cid = cid.into();
    let head = CapsuleCmd::new(sqe, data.len(), Digests::default(), 4);
    [head.as_bytes(), data].concat()
}

fn connect_capsule(qid: u16, cntlid: u16, nqn: &Nqn) -> Vec<u8> {
    let mut command = sqe(Connect::new(qid, 32, 0).as_bytes());
    command.dptr = SglDescriptor::in_capsule(CONNECT_DATA_LEN);
    let host = Nqn::from_uuid(&[9; 16]);
    let data = ConnectData::new(HostId([9; 16]), &host, nqn, cntlid);
    capsule(1, command, data.as_bytes())
}

fn block_command(opcode: IoOpcode, cid: u16, slba: u64, blocks: u32) -> Vec<u8> {
    capsule(cid, BlockCommand::new(slba, blocks).encode(opcode, 1, blocks * 4096), &[])
}

fn greeting() -> Vec<u8> {
    IcReq::new(Digests::default(), 1).as_bytes().to_vec()
}

/// A session from greeting to a read, one PDU each. Writes go beyond what the good host uses.
fn session(nqn: &Nqn) -> Vec<Vec<u8>> {
    let enable = Property::set(property::offset::CC, PropertySize::Four, CC_ENABLE);
    vec![
        greeting(),
        connect_capsule(0, 0xFFFF, nqn),
        capsule(2, sqe(enable.as_bytes()), &[]),
        block_command(IoOpcode::READ, 3, 0, 1),
        block_command(IoOpcode::WRITE, 4, BLOCKS + 9, 1),
    ]
}

/// Draws numbers: the same ones for the same seed.
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % end as u64).unwrap()
    }
}

/// Flips a bit, cuts, repeats, swaps, drops or inflates; `announce` has a PDU say that far more bytes follow than it may have.
fn damage(pdus: &mut Vec<Vec<u8>>, dice: &mut Dice, announce: fn(&mut [u8])) {
    for _ in 0..=dice.below(3) {
        if pdus.is_empty() {
            return;
        }
        let at = dice.below(pdus.len());
        match dice.below(6) {
            0 => {
                let byte = dice.below(pdus[at].len());
                pdus[at][byte] ^= 1 << dice.below(8);
            }
            1 => {
                let len = dice.below(pdus[at].len()).max(1);
                pdus[at].truncate(len);
            }
            2 => pdus.insert(at, pdus[at].clone()),
            3 => {
                let other = dice.below(pdus.len());
                pdus.swap(at, other);
            }
            4 => drop(pdus.remove(at)),
            // And bytes to go with it.
            _ if pdus[at].len() >= 8 => {
                announce(&mut pdus[at]);
                pdus[at].resize(100_000, 0xA5);
            }
            _ => {}
        }
    }
}

struct Stranger(TcpStream);

impl Stranger {
    fn new(address: SocketAddr) -> Self {
        Self::over(TcpStream::connect(address).unwrap())
    }

    /// One that comes from this address.
    fn from(source: Ipv4Addr, address: SocketAddr) -> Self {
        let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        bind(&socket, &SocketAddr::from((source, 0))).unwrap();
        connect_socket(&socket, &address).unwrap();
        Self::over(socket.into())
    }

    fn over(stream: TcpStream) -> Self {
        stream.set_read_timeout(Some(SILENCE)).unwrap();
        stream.set_write_timeout(Some(Duration::from_secs(5))).unwrap();
        Self(stream)
    }

    /// Returns true if the server still reads.
    fn say(&mut self, bytes: &[u8]) -> bool {
        self.0.write_all(bytes).is_ok()
    }

    fn hear(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.0.set_read_timeout(Some(crate::support::PATIENCE)).unwrap();
        self.0.read_exact(&mut bytes).unwrap();
        self.0.set_read_timeout(Some(SILENCE)).unwrap();
        bytes
    }

    /// Returns the bytes that come until the server closes, or sends nothing for a while.
    fn hear_out(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let _ = self.0.read_to_end(&mut bytes);
        bytes
    }

    /// An I/O queue of a new controller: the stranger, and the admin queue that keeps it.
    fn io_queue(address: SocketAddr, nqn: &Nqn) -> (Self, Self) {
        let mut admin = Self::new(address);
        assert!(admin.say(&greeting()));
        admin.hear(128);
        assert!(admin.say(&connect_capsule(0, 0xFFFF, nqn)));
        let accepted = admin.hear(24);
        let cntlid = u16::from_le_bytes([accepted[8], accepted[9]]);
        assert!(admin.say(&session(nqn)[2]));
        admin.hear(24);
        let mut io = Self::new(address);
        assert!(io.say(&greeting()));
        io.hear(128);
        assert!(io.say(&connect_capsule(1, cntlid, nqn)));
        io.hear(24);
        (io, admin)
    }
}

/// PLEN beyond every limit.
fn announce_by_nvme(pdu: &mut [u8]) {
    pdu[4..8].copy_from_slice(&(1u32 << 30).to_le_bytes());
}

fn damaged_sessions(
    address: SocketAddr,
    session: &[Vec<u8>],
    announce: fn(&mut [u8]),
    end: Instant,
) -> usize {
    let mut dice = Dice(0x5EED);
    let mut count = 0;
    while Instant::now() < end || count <= 20 {
        let mut pdus = session.to_vec();
        damage(&mut pdus, &mut dice, announce);
        let mut stranger = Stranger::new(address);
        let _ = stranger.say(&pdus.concat());
        let _ = stranger.0.shutdown(Shutdown::Write);
        stranger.hear_out();
        count += 1;
    }
    count
}

/// Header faults are answered by a TermReq, even to strangers that go on sending.
fn rude_talkers(address: SocketAddr, end: Instant) {
    while Instant::now() < end {
        let mut stranger = Stranger::new(address);
        assert!(stranger.say(&greeting()));
        stranger.hear(128);
        let _ = stranger.say(&[0xEE; 30_000]);
        assert_eq!(stranger.hear(1), [C2H_TERM_REQ]);
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Says everything a byte at a time, and some of it never.
fn dawdlers(address: SocketAddr, sessions: &[Vec<Vec<u8>>], end: Instant) {
    let sessions: Vec<Vec<u8>> = sessions.iter().map(|pdus| pdus.concat()).collect();
    let mut dawdlers: Vec<Stranger> = sessions.iter().map(|_| Stranger::new(address)).collect();
    let longest = sessions.iter().map(Vec::len).max().unwrap();
    for at in 0..longest {
        for (dawdler, bytes) in dawdlers.iter_mut().zip(&sessions) {
            let _ = dawdler.say(&bytes[at.min(bytes.len())..(at + 1).min(bytes.len())]);
        }
        if Instant::now() > end {
            return;
        }
        std::thread::sleep(Duration::from_millis(3));
    }
}

/// Owes data and sends it in drops, out of order in the end; asks for data and does not read.
fn debtors(address: SocketAddr, nqn: &Nqn, end: Instant) {
    while Instant::now() < end {
        let (mut deaf, deaf_admin) = Stranger::io_queue(address, nqn);
        for cid in 0..31 {
            if !deaf.say(&block_command(IoOpcode::READ, cid, 0, 256)) {
                break;
            }
        }
        let (mut debtor, debtor_admin) = Stranger::io_queue(address, nqn);
        assert!(debtor.say(&block_command(IoOpcode::WRITE, 1, BLOCKS, 64)));
        let r2t = debtor.hear(24);
        let ttag = u16::from_le_bytes([r2t[10], r2t[11]]);
        let crumb = |datao| {
            let header = H2cData::new((1, ttag), (datao, 4), false, Digests::default(), 4);
            [header.as_bytes(), &[7; 4]].concat()
        };
        for datao in (0..80).step_by(4) {
            assert!(debtor.say(&crumb(datao)));
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = debtor.say(&crumb(4096));
        assert_eq!(debtor.hear(1), [C2H_TERM_REQ]);
        drop([deaf, deaf_admin, debtor, debtor_admin]);
    }
}

/// Writes blocks and reads them back until told to stop; counts how often.
async fn work(
    handle: Handle,
    target: (SocketAddr, Nqn),
    (stop, done): (Arc<AtomicBool>, Arc<AtomicU64>),
) {
    let volume = connect(&handle, target.0, &target.1).await;
    let workers = (0..WORKERS).map(|worker| {
        let (volume, stop, done) = (volume.clone(), stop.clone(), done.clone());
        let (sender, ended) = local_sync::oneshot();
        handle.spawn(async move {
            let mut count = 0;
            while !stop.load(Ordering::Relaxed) {
                let lba = Lba(worker + WORKERS * (count % (BLOCKS / WORKERS)));
                let stamp = count << 8 | worker;
                volume.write(lba, filled(stamp)).await.unwrap();
                let read = volume.read(lba, 1).await.unwrap();
                assert!(read.as_bytes() == filled(stamp).as_bytes(), "block {lba} is another's");
                count += 1;
                done.fetch_add(1, Ordering::Relaxed);
            }
            sender.send(());
        });
        ended
    });
    let workers: Vec<_> = workers.collect();
    for worker in workers {
        worker.await.expect("no worker fails");
    }
    assert_eq!(volume.client().counters().reconnects, 0);
}

/// A server of one core with volume `v`, which hosts of all protocols may open, and `other` for what may hit any block.
fn besieged_server() -> Server {
    let more = ["--auth", "off", "--core-memory", CORE_MEMORY, "--iscsi", "127.0.0.1:0"];
    let server = Server::start_with("mem:512MiB", &[&more[..], &["--nbd", "127.0.0.1:0"]].concat());
    for name in ["v", "other"] {
        server.volume_json(&["create", name, "--size", "64MiB"]);
        server.volume_json(&["restrict", name, "--nbd-network", "127.0.0.0/8"]);
    }
    server
}

fn text_of(server: &Server, volume: &str, field: &str) -> String {
    server.volume_json(&["show", volume])[field].as_str().unwrap().to_owned()
}

/// Holds `server` against strangers for some seconds, while `host` works on: it counts its requests until it is told to stop.
/// `attack` ends at the time that it is given, and tells how many sessions it had.
///
/// When the strangers are gone nothing of them is left: no connection, and no memory but what the allocator keeps.
fn hold_out(
    server: Server,
    host: impl FnOnce((Arc<AtomicBool>, Arc<AtomicU64>)) + Send + 'static,
    attack: impl FnOnce(Instant) -> usize,
) {
    let started = Instant::now();
    let (stop, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let shared = (stop.clone(), done.clone());
    let worker = std::thread::spawn(move || host(shared));
    let requests = || done.load(Ordering::Relaxed);
    until("the host works", || requests() > REQUESTS_BEFORE / 2 || worker.is_finished());
    let (half, since) = (requests(), Instant::now());
    until("the host works on", || requests() > REQUESTS_BEFORE || worker.is_finished());
    let pace = (requests() - half) as f64 / since.elapsed().as_secs_f64();
    let api = control::ApiClient::new(&server.api).unwrap();
    let connections = || api.server().unwrap().cores[0].connections;
    let (before, connections_before, bytes_before) =
        (requests(), connections(), server.resident_bytes());
    let since = Instant::now();
    let sessions = attack(since + SIEGE);
    let meanwhile = requests() - before;
    let part = meanwhile as f64 / since.elapsed().as_secs_f64() / pace;
    until("the strangers are forgotten", || connections() == connections_before);
    let grown = server.resident_bytes().saturating_sub(bytes_before);
    stop.store(true, Ordering::Relaxed);
    worker.join().expect("the host works on");
    eprintln!(
        "{sessions} sessions, {meanwhile} requests, {part:.2} of the pace, {grown} bytes more"
    );
    assert!(part > PACE_PART_MIN, "{sessions} sessions, {meanwhile} requests, {part} of the pace");
    assert!(grown < GROWTH_MAX_BYTES, "{grown} bytes more after {sessions} sessions");
    server.signal("TERM");
    assert_eq!(server.wait(), Some(0));
    let took = started.elapsed();
    assert!(took < crate::support::PATIENCE, "it took {took:?}");
}

/// Method: for some seconds strangers send damaged, cut, swapped, oversized and slow PDUs, owe data
/// and read nothing, while a host writes and verifies, which sees no error.
#[test]
fn strangers_at_a_live_server_harm_no_other_host() {
    let server = Server::start_with("mem:512MiB", &["--auth", "off", "--core-memory", CORE_MEMORY]);
    let made = server.volume_json(&["create", "a", "--size", "64MiB"]);
    let nqn: Nqn = made["nqn"].as_str().unwrap().parse().unwrap();
    let address = server.portals[0];
    let host = move |shared| on_core(move |handle| work(handle, (address, nqn), shared));
    hold_out(server, host, |end| {
        let session = session(&nqn);
        std::thread::scope(|scope| {
            let sessions =
                scope.spawn(|| damaged_sessions(address, &session, announce_by_nvme, end));
            scope.spawn(|| rude_talkers(address, end));
            scope.spawn(|| dawdlers(address, &vec![session.clone(); DAWDLERS], end));
            scope.spawn(|| debtors(address, &nqn, end));
            sessions.join().unwrap()
        })
    });
}

/// A host that has a volume open, and waits for each answer.
trait Host {
    fn write(&mut self, lba: u64, block: &[u8]);
    fn read(&mut self, lba: u64) -> Vec<u8>;
}

impl Host for Initiator {
    fn write(&mut self, lba: u64, block: &[u8]) {
        Self::write(self, lba, block);
    }

    fn read(&mut self, lba: u64) -> Vec<u8> {
        Self::read(self, lba, 1)
    }
}

impl Host for nbd::Client {
    fn write(&mut self, lba: u64, block: &[u8]) {
        Self::write(self, lba * BLOCK as u64, block);
    }

    fn read(&mut self, lba: u64) -> Vec<u8> {
        Self::read(self, lba * BLOCK as u64, BLOCK)
    }
}

/// Hosts with blocks of their own write them and read them back until told to stop; counts how often.
fn work_by<H: Host>(
    open: impl Fn(u64) -> H + Sync,
    (stop, done): (Arc<AtomicBool>, Arc<AtomicU64>),
) {
    std::thread::scope(|scope| {
        for worker in 0..WORKERS {
            let (open, stop, done) = (&open, &stop, &done);
            scope.spawn(move || {
                let (mut host, mut count) = (open(worker), 0);
                while !stop.load(Ordering::Relaxed) {
                    let lba = worker + WORKERS * (count % (BLOCKS / WORKERS));
                    let block = filled(count << 8 | worker);
                    host.write(lba, block.as_bytes());
                    assert!(host.read(lba) == block.as_bytes(), "block {lba} is another's");
                    count += 1;
                    done.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
}

/// Waits until the server ends a connection, whatever it says before.
fn is_ended(stream: &mut TcpStream) -> bool {
    stream.set_read_timeout(Some(crate::support::PATIENCE)).unwrap();
    let mut bytes = [0; 4096];
    loop {
        match stream.read(&mut bytes) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) => return nbd::is_gone(&error),
        }
    }
}

/// DataSegmentLength beyond every limit.
fn announce_by_iscsi(pdu: &mut [u8]) {
    pdu[5..8].copy_from_slice(&[0xFF; 3]);
}

fn initiator_of(portal: SocketAddr, name: &str, target: &str) -> Initiator {
    let names = Names { initiator: name, target: Some(target) };
    Initiator::log_in(portal, names, None).expect("it may open it")
}

/// A session of an initiator of this number from login to logout, one PDU each.
fn iscsi_session(target: &str, number: usize) -> Vec<Vec<u8>> {
    let name = format!("iqn.2026-01.com.example:odd-{number}");
    let names = [("InitiatorName", name.as_str()), ("TargetName", target)];
    let write = Cdb::with_blocks(scsi::WRITE_10, BLOCKS + 9, 1);
    let (flags, edtl) = (pdu::WRITE, BLOCK as u32);
    let mut text: pdu::TextRequest = pdu::blank(opcode::TEXT_REQUEST | pdu::IMMEDIATE);
    (text.itt, text.ttt, text.cmd_sn) = (9.into(), pdu::NO_TAG.into(), 4.into());
    let mut logout: pdu::Bhs = pdu::blank(opcode::LOGOUT_REQUEST | pdu::IMMEDIATE);
    logout.itt = 10.into();
    let read = Cdb::with_blocks(scsi::READ_10, 0, 8);
    vec![
        initiator::login(0x87, 0, &[&names[..], &[("AuthMethod", "None")]].concat()),
        initiator::command(1, Cdb([0; 16]), 0, 0, &[]),
        initiator::command(2, read, pdu::READ, 8 * edtl, &[]),
        initiator::command(3, write, flags, edtl, &[7; BLOCK]),
        initiator::pdu(text.encode(), b"SendTargets=All\0"),
        logout.encode().to_vec(),
    ]
}

/// Initiators that send nonsense once they are logged in, and before.
fn rude_initiators(portal: SocketAddr, target: &str, end: Instant) {
    while Instant::now() < end {
        let mut known = initiator_of(portal, "iqn.2026-01.com.example:rude", target);
        let _ = known.stream().write_all(&[0xEE; 30_000]);
        assert!(is_ended(known.stream()));
        let mut stranger = Stranger::new(portal);
        let _ = stranger.say(&[0xEE; 30_000]);
        assert!(is_ended(&mut stranger.0));
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Asks for data and does not read; owes data and sends it in drops, at a wrong place in the end.
fn initiators_in_debt(portal: SocketAddr, target: &str, end: Instant) {
    const LEN: u32 = 64 * BLOCK as u32;
    while Instant::now() < end {
        let mut deaf = initiator_of(portal, "iqn.2026-01.com.example:deaf", target);
        for _ in 0..100 {
            let read = Cdb::with_blocks(scsi::READ_10, 0, 256);
            if deaf.begin(read, pdu::READ, 256 * BLOCK as u32, &[]).is_err() {
                break;
            }
        }
        let mut debtor = initiator_of(portal, "iqn.2026-01.com.example:debtor", target);
        debtor.become_ready();
        let write = Cdb::with_blocks(scsi::WRITE_10, BLOCKS, 64);
        debtor.begin(write, pdu::WRITE, LEN, &[]).unwrap();
        let (bhs, _) = debtor.hear().unwrap();
        let r2t = pdu::R2t::decode(&bhs.encode());
        assert_eq!(r2t.opcode, opcode::R2T);
        let crumb = |number: u32, offset: u32| {
            let mut out: pdu::DataOut = pdu::blank(opcode::DATA_OUT);
            (out.flags, out.itt, out.ttt) = (0, r2t.itt, r2t.ttt);
            (out.data_sn, out.buffer_offset) = (number.into(), offset.into());
            initiator::pdu(out.encode(), &[7; 4])
        };
        for number in 0..20 {
            debtor.stream().write_all(&crumb(number, 4 * number)).unwrap();
            std::thread::sleep(Duration::from_millis(10));
        }
        debtor.stream().write_all(&crumb(20, 4096)).unwrap();
        assert!(is_ended(debtor.stream()));
    }
}

/// The same by iSCSI: other initiators write and verify meanwhile.
#[test]
fn strangers_at_the_iscsi_portal_of_a_live_server_harm_no_other_initiator() {
    let server = besieged_server();
    let portal = foreign::places(&server, "iSCSI portal open")[0];
    let target_of = |volume| format!("{TARGET_PREFIX}{}", text_of(&server, volume, "id"));
    let (target, other) = (target_of("v"), target_of("other"));
    let of_host = target.clone();
    let host = move |shared| {
        let open = |worker: u64| {
            let name = format!("iqn.2026-01.com.example:worker-{worker}");
            let mut initiator = initiator_of(portal, &name, &of_host);
            initiator.become_ready();
            initiator
        };
        work_by(open, shared);
    };
    hold_out(server, host, |end| {
        let damaged = &iscsi_session(&other, 0);
        let slow: Vec<_> = (0..DAWDLERS).map(|number| iscsi_session(&target, number)).collect();
        std::thread::scope(|scope| {
            let sessions =
                scope.spawn(|| damaged_sessions(portal, damaged, announce_by_iscsi, end));
            scope.spawn(|| rude_initiators(portal, &target, end));
            scope.spawn(|| dawdlers(portal, &slow, end));
            scope.spawn(|| initiators_in_debt(portal, &target, end));
            sessions.join().unwrap()
        })
    });
}

/// A length beyond every limit, of an option or of a request.
fn announce_by_nbd(words: &mut [u8]) {
    let is_option = words.get(4..12) == Some(b"IHAVEOPT");
    if let Some(len) = words.get_mut(if is_option { 16..20 } else { 24..28 }) {
        len.copy_from_slice(&[0xFF; 4]);
    }
}

/// A session from the greeting to its end, in the parts of which it consists.
fn nbd_session(export: &str) -> Vec<Vec<u8>> {
    let at = (BLOCKS + 9) * BLOCK as u64;
    let write = nbd::request(Command::WRITE, 2, at, 100);
    vec![
        nbd::go(export),
        nbd::request(Command::READ, 1, 0, 5 * BLOCK as u64),
        [&write[..], &[7; 100]].concat(),
        nbd::request(Command::FLUSH, 3, 0, 0),
        nbd::request(Command::TRIM, 4, at, BLOCK as u64),
        nbd::request(Command::DISCONNECT, 5, 0, 0),
    ]
}

/// Clients that send nonsense with an export open, and before.
fn rude_clients(place: SocketAddr, end: Instant) {
    while Instant::now() < end {
        let mut known = nbd::Client::open(place, "v").unwrap();
        let _ = known.stream().write_all(&[0xEE; 30_000]);
        assert!(is_ended(known.stream()));
        let mut stranger = Stranger::new(place);
        let _ = stranger.say(&[0xEE; 30_000]);
        assert!(is_ended(&mut stranger.0));
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Asks for data and does not read; owes data, sends it in drops, and goes.
fn clients_in_debt(place: SocketAddr, end: Instant) {
    while Instant::now() < end {
        let mut deaf = nbd::Client::open(place, "v").unwrap();
        for cookie in 0..100 {
            let read = nbd::request(Command::READ, cookie, 0, 1 << 20);
            if deaf.stream().write_all(&read).is_err() {
                break;
            }
        }
        let mut debtor = nbd::Client::open(place, "v").unwrap();
        let at = BLOCKS * BLOCK as u64;
        debtor.stream().write_all(&nbd::request(Command::WRITE, 1, at, 1 << 18)).unwrap();
        for _ in 0..20 {
            debtor.stream().write_all(&[7; 4]).unwrap();
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// The same by NBD: other clients write and verify meanwhile.
#[test]
fn strangers_at_the_nbd_port_of_a_live_server_harm_no_other_client() {
    let server = besieged_server();
    let place = foreign::places(&server, "NBD open")[0];
    let host = move |shared| work_by(|_| nbd::Client::open(place, "v").unwrap(), shared);
    hold_out(server, host, |end| {
        let (damaged, slow) = (&nbd_session("other"), vec![nbd_session("v"); DAWDLERS]);
        std::thread::scope(|scope| {
            let sessions = scope.spawn(|| damaged_sessions(place, damaged, announce_by_nbd, end));
            scope.spawn(|| rude_clients(place, end));
            scope.spawn(|| dawdlers(place, &slow, end));
            scope.spawn(|| clients_in_debt(place, end));
            sessions.join().unwrap()
        })
    });
}

/// An operator whose host is refused, and tries again and again, is told the cause: once for each, and for each place that hosts come
/// from. The ends of a host's queues for one reason are one line, too.
#[test]
fn refusals_and_ends_of_one_cause_are_one_line() {
    const TIMES: usize = 12;
    const SOURCES: [Ipv4Addr; 2] = [Ipv4Addr::new(127, 1, 2, 3), Ipv4Addr::new(127, 1, 2, 4)];
    let server = Server::start_with("mem:256MiB", &["--auth", "off"]);
    let volume = server.volume_json(&["create", "v", "--size", "64MiB"]);
    let nqn: Nqn = volume["nqn"].as_str().unwrap().parse().unwrap();
    // Behind the head of the capsule lies the command, and behind that its data.
    const COMMAND: usize = 8;
    const DATA: usize = COMMAND + 64;
    let causes: [(&str, usize, &[u8]); 3] = [
        ("HOSTNQN is no NVMe qualified name", DATA + 512, b"iqn"),
        ("HOSTID is zero", DATA, &[0; 16]),
        ("SQSIZE is zero or larger than queues may be", COMMAND + 44, &[0xFF; 2]),
    ];
    for (_, at, bytes) in causes {
        let mut connect = connect_capsule(0, 0xFFFF, &nqn);
        connect[at..at + bytes.len()].copy_from_slice(bytes);
        for source in SOURCES.into_iter().cycle().take(SOURCES.len() * TIMES) {
            let mut stranger = Stranger::from(source, server.portals[0]);
            assert!(stranger.say(&greeting()) && stranger.say(&connect));
            let refused = stranger.hear(128 + 24);
            assert_ne!(refused[128 + 22] & !1, 0, "it has a status");
        }
    }
    let mut queues: Vec<_> =
        (0..TIMES).map(|_| Stranger::io_queue(server.portals[0], &nqn)).collect();
    for (io, _) in &mut queues {
        assert!(io.say(&[0xA5; 128]));
        io.hear_out();
    }
    drop(queues);
    server.signal("TERM");
    let lines = server.log_until(|line| line["message"] == "drained");
    let count = |message: &str, field: &str, text: &str| {
        let is_one = |line: &&serde_json::Value| {
            line["message"] == message && line[field].as_str().is_some_and(|it| it.contains(text))
        };
        lines.iter().filter(is_one).count()
    };
    for (cause, ..) in causes {
        let lines = lines.iter().filter(|line| line["message"] == "Connect refused");
        let lines =
            lines.filter(|line| line["cause"].as_str().is_some_and(|it| it.contains(cause)));
        let peers = lines.map(|line| line["peer"].as_str().unwrap().parse().unwrap());
        let told: Vec<_> = peers.map(|peer: SocketAddr| peer.ip()).collect();
        assert_eq!(told, SOURCES, "{cause}");
    }
    let reason = "PDU type 0xa5 does not exist";
    assert_eq!(count("connection ended", "reason", reason), 1, "{lines:?}");
    assert_eq!(server.wait(), Some(0));
}

/// The beginning of TLS: a record of 512 bytes with a message of the handshake, which is a ClientHello.
const CLIENT_HELLO: [u8; 64] = {
    let mut record = [0xA5; 64];
    let mut at = 0;
    while at < 9 {
        record[at] = [22, 3, 1, 2, 0, 1, 0, 1, 0xFC][at];
        at += 1;
    }
    record
};

/// A client that took a port for that of another protocol is named, once for all that it tries, and so is an NBD client that
/// breaks the protocol with an export open.
#[test]
fn ends_of_connections_of_every_protocol_are_told_once() {
    const TIMES: usize = 12;
    let more = ["--auth", "off", "--iscsi", "127.0.0.1:0", "--nbd", "127.0.0.1:0"];
    let server = Server::start_with("mem:256MiB", &more);
    server.volume_json(&["create", "v", "--size", "64MiB"]);
    server.volume_json(&["restrict", "v", "--nbd-network", "127.0.0.0/8"]);
    let at = |message| foreign::places(&server, message)[0];
    let (iscsi, nbd) = (at("iSCSI portal open"), at("NBD open"));
    for _ in 0..TIMES {
        for place in [server.portals[0], iscsi, nbd] {
            let mut browser = Stranger::new(place);
            browser.say(b"GET /v1/volumes HTTP/1.1\r\nHost: flash-1.example\r\n\r\n");
            browser.hear_out();
            let mut encrypted = Stranger::new(place);
            encrypted.say(&CLIENT_HELLO);
            encrypted.hear_out();
        }
        let mut broken = foreign::nbd_open(nbd, "v");
        broken.write_all(&[0xA5; 64]).unwrap();
        // It is told what it asked for, and then that is all.
        drop(broken.read_to_end(&mut Vec::new()));
    }
    server.signal("TERM");
    let lines = server.log_until(|line| line["message"] == "drained");
    let count = |message: &str, reason: &str| {
        let is_one = |line: &&serde_json::Value| {
            line["message"] == message
                && line["reason"].as_str().is_some_and(|it| it.contains(reason))
        };
        lines.iter().filter(is_one).count()
    };
    for ended in ["connection ended", "iSCSI connection ended", "NBD connection ended"] {
        for speaks in ["speaks HTTP", "speaks TLS"] {
            assert_eq!(count(ended, speaks), 1, "{ended}, {speaks}: {lines:?}");
        }
    }
    assert_eq!(count("NBD connection ended", "a header begins with 0xa5a5a5a5"), 1, "{lines:?}");
    assert_eq!(server.wait(), Some(0));
}

/// Method: the server is stopped for longer than the host's Keep Alive Timeout, and the host is heard from soon after it goes on.
#[test]
fn no_host_is_cut_for_time_in_which_the_server_was_stopped() {
    let server = Server::start_with("mem:256MiB", &["--auth", "off"]);
    let volume = server.volume_json(&["create", "v", "--size", "64MiB"]);
    let nqn: Nqn = volume["nqn"].as_str().unwrap().parse().unwrap();
    let mut admin = Stranger::new(server.portals[0]);
    let mut connect = connect_capsule(0, 0xFFFF, &nqn);
    // KATO is in dword 12 of the command, behind the head of the capsule.
    connect[8 + 48..8 + 52].copy_from_slice(&5000_u32.to_le_bytes());
    assert!(admin.say(&greeting()) && admin.say(&connect));
    admin.hear(128 + 24);
    assert!(admin.say(&session(&nqn)[2]));
    admin.hear(24);
    server.pause();
    std::thread::sleep(Duration::from_secs(8));
    server.resume();
    std::thread::sleep(Duration::from_secs(1));
    for cid in 2..5 {
        let keep_alive = capsule(cid, Sqe::new(AdminOpcode::KEEP_ALIVE.0, 0), &[]);
        assert!(admin.say(&keep_alive));
        let answer = admin.hear(24);
        assert_eq!((answer[20], answer[22] & !1), (cid as u8, 0), "kept alive");
        std::thread::sleep(Duration::from_secs(1));
    }
}

/// The address to look at a portal by is told beside the one that hosts are told.
#[test]
fn a_portal_is_told_by_the_address_that_it_listens_on() {
    let server = Server::start_with("mem:256MiB", &["--auth", "off", "--advertise", "127.0.0.2"]);
    let lines = server.starting.iter().map(|line| &line["fields"]);
    let open: Vec<_> = lines.filter(|line| line["message"] == "portal open").collect();
    let [line] = open[..] else { panic!("{open:?}") };
    let address = |field: &str| line[field].as_str().unwrap().parse::<SocketAddr>().unwrap();
    let (listens_on, portal) = (address("listens_on"), address("portal"));
    assert!(listens_on.ip().to_string() == "127.0.0.1" && portal.ip().to_string() == "127.0.0.2");
    drop(TcpStream::connect(listens_on).unwrap());
}
