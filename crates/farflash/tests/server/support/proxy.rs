//! Stands between a host and a portal. It ends the connection on which a certain read comes, has a certain write
//! fail, and keeps others from the server for a while, with or without their connection. Answers can be made to
//! fail where there are no digests.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// Connections refused behind each that was ended: as many as a host tries at one place at the most.
const REFUSALS: u32 = 8;
/// Time for which no host can connect after the last connection that was severed: longer than a host tries at
/// one place.
const SEVERED: Duration = Duration::from_millis(1500);
const NOTHING: u64 = u64::MAX;
/// Types of PDUs, and opcodes.
const CAPSULE: u8 = 4;
const RESPONSE: u8 = 5;
const WRITE: u8 = 1;
const READ: u8 = 2;
const COMPARE_AND_WRITE: u8 = 0x81;
/// The status field of a completion: Write Fault, do not retry.
const WRITE_FAULT: u16 = 0x8000 | 0x280 << 1;

/// See the module's head. Its threads end with their connections, the one that accepts with the process.
pub struct Proxy {
    pub address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    portal: SocketAddr,
    fatal: AtomicU64,
    ended: AtomicU32,
    refusals: AtomicU32,
    /// Until when all connections are refused.
    refused_until: Mutex<Option<Instant>>,
    /// Blocks of the writes that fail, and that are held.
    failing: AtomicU64,
    holding: AtomicU64,
    has_failed: AtomicBool,
    /// The block of the writes with which their connection is severed, and how many of them are left.
    severing: AtomicU64,
    severings: AtomicU32,
    /// Connections that have ended for the host, and not for the server.
    severed: Mutex<Vec<TcpStream>>,
    /// Commands that are held, and where they go to.
    held: Mutex<Vec<(Vec<u8>, TcpStream)>>,
}

/// One connection.
#[derive(Default)]
struct Connection {
    /// The queue's number, once its Connect has come.
    qid: AtomicU32,
    /// The command whose answer is to be made a failure.
    failing: Mutex<Option<[u8; 2]>>,
}

impl Proxy {
    pub fn start(portal: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            portal,
            fatal: AtomicU64::new(NOTHING),
            ended: AtomicU32::new(0),
            refusals: AtomicU32::new(0),
            refused_until: Mutex::default(),
            failing: AtomicU64::new(NOTHING),
            holding: AtomicU64::new(NOTHING),
            has_failed: AtomicBool::new(false),
            severing: AtomicU64::new(NOTHING),
            severings: AtomicU32::new(0),
            severed: Mutex::default(),
            held: Mutex::default(),
        });
        let own = shared.clone();
        thread::spawn(move || {
            for host in listener.incoming().map_while(Result::ok) {
                if !own.refuses() {
                    own.clone().serve(host);
                }
            }
        });
        Self { address, shared }
    }

    /// From now on a read of block `lba` ends its connection.
    pub fn end_at(&self, lba: u64) {
        self.shared.fatal.store(lba, Ordering::Release);
    }

    /// Connections ended so far.
    pub fn ended(&self) -> u32 {
        self.shared.ended.load(Ordering::Acquire)
    }

    /// The next write that begins with block `lba` is answered with a failure.
    pub fn fail_at(&self, lba: u64) {
        self.shared.has_failed.store(false, Ordering::Release);
        self.shared.failing.store(lba, Ordering::Release);
    }

    /// Returns true if the host was told of that failure.
    pub fn has_failed(&self) -> bool {
        self.shared.has_failed.load(Ordering::Acquire)
    }

    /// The next write or swap that begins with block `lba` gets no further until it is released.
    pub fn hold_at(&self, lba: u64) {
        self.shared.holding.store(lba, Ordering::Release);
    }

    /// The next `times` writes that begin with block `lba` are held, and the host loses their connections.
    /// The server hears nothing of that, nor, from now on, of any connection's end. After the last of them no
    /// host can connect for a while.
    pub fn sever_at(&self, lba: u64, times: u32) {
        self.shared.severings.store(times, Ordering::Release);
        self.shared.severing.store(lba, Ordering::Release);
    }

    /// Number of commands that it holds.
    pub fn holds(&self) -> usize {
        self.shared.held.lock().unwrap().len()
    }

    /// Passes on what it holds; how much of it was taken.
    pub fn release(&self) -> usize {
        let held = std::mem::take(&mut *self.shared.held.lock().unwrap());
        held.into_iter().filter_map(|(pdu, mut target)| target.write_all(&pdu).ok()).count()
    }
}

impl Shared {
    fn refuses(&self) -> bool {
        let take = |left: u32| left.checked_sub(1);
        let counted = self.refusals.fetch_update(Ordering::AcqRel, Ordering::Acquire, take);
        let until = *self.refused_until.lock().unwrap();
        counted.is_ok() || until.is_some_and(|until| Instant::now() < until)
    }

    fn serve(self: Arc<Self>, mut host: TcpStream) {
        let Ok(mut target) = TcpStream::connect(self.portal) else { return };
        let (mut from_target, mut to_host) =
            (target.try_clone().unwrap(), host.try_clone().unwrap());
        let connection = Arc::new(Connection::default());
        let (own, back) = (self.clone(), connection.clone());
        thread::spawn(move || {
            while let Ok(mut pdu) = read_pdu(&mut from_target) {
                let fails = own.fails(&mut pdu, &back);
                if to_host.write_all(&pdu).is_err() {
                    break;
                }
                own.has_failed.fetch_or(fails, Ordering::AcqRel);
            }
            let _ = to_host.shutdown(Shutdown::Both);
        });
        thread::spawn(move || {
            while let Ok(pdu) = read_pdu(&mut host) {
                if self.is_fatal(&pdu, &connection) {
                    self.refusals.store(REFUSALS, Ordering::Release);
                    self.ended.fetch_add(1, Ordering::AcqRel);
                    break;
                }
                if self.severs(&pdu, &target) {
                    break;
                }
                if !self.takes(&pdu, &target) && target.write_all(&pdu).is_err() {
                    break;
                }
            }
            if self.severing.load(Ordering::Acquire) == NOTHING {
                let _ = target.shutdown(Shutdown::Both);
            } else {
                self.severed.lock().unwrap().push(target);
            }
            let _ = host.shutdown(Shutdown::Both);
        });
    }

    /// Learns the queue's number from its Connect, and which command is to fail.
    fn is_fatal(&self, pdu: &[u8], connection: &Connection) -> bool {
        let [CAPSULE, ..] = pdu else { return false };
        let sqe = &pdu[8..72];
        let is_at = |at: &AtomicU64| lba(sqe) == at.load(Ordering::Acquire);
        let is_io = connection.qid.load(Ordering::Acquire) > 0;
        match (sqe[0], sqe[4]) {
            (0x7F, 0x01) => {
                let qid = u16::from_le_bytes([sqe[42], sqe[43]]);
                connection.qid.store(qid.into(), Ordering::Release);
            }
            (READ, _) if is_io => return is_at(&self.fatal),
            (WRITE, _) if is_io && is_at(&self.failing) => {
                self.failing.store(NOTHING, Ordering::Release);
                *connection.failing.lock().unwrap() = Some([sqe[2], sqe[3]]);
            }
            _ => {}
        }
        false
    }

    /// Returns true if this is the command to be held; it is taken then.
    fn takes(&self, pdu: &[u8], target: &TcpStream) -> bool {
        let [CAPSULE, ..] = pdu else { return false };
        let sqe = &pdu[8..72];
        let holding = self.holding.load(Ordering::Acquire);
        let changes = matches!(sqe[0], WRITE | COMPARE_AND_WRITE);
        let is_taken = changes && holding != NOTHING && lba(sqe) == holding;
        if is_taken {
            self.holding.store(NOTHING, Ordering::Release);
            self.hold(pdu, target);
        }
        is_taken
    }

    /// Returns true if this is a command to be held with its connection; it is taken then.
    fn severs(&self, pdu: &[u8], target: &TcpStream) -> bool {
        let [CAPSULE, ..] = pdu else { return false };
        let sqe = &pdu[8..72];
        let severing = self.severing.load(Ordering::Acquire);
        if sqe[0] != WRITE || severing == NOTHING || lba(sqe) != severing {
            return false;
        }
        let take = |left: u32| left.checked_sub(1);
        let left = self.severings.fetch_update(Ordering::AcqRel, Ordering::Acquire, take);
        if left == Ok(1) {
            *self.refused_until.lock().unwrap() = Some(Instant::now() + SEVERED);
        }
        if left.is_ok() {
            self.hold(pdu, target);
        }
        left.is_ok()
    }

    fn hold(&self, pdu: &[u8], target: &TcpStream) {
        self.held.lock().unwrap().push((pdu.to_vec(), target.try_clone().unwrap()));
    }

    /// Makes a failure of the answer, if it is the one that is to be.
    fn fails(&self, pdu: &mut [u8], connection: &Connection) -> bool {
        let [RESPONSE, ..] = pdu else { return false };
        let mut failing = connection.failing.lock().unwrap();
        let is_it = failing.is_some_and(|cid| pdu[20..22] == cid);
        if is_it {
            *failing = None;
            pdu[22..24].copy_from_slice(&WRITE_FAULT.to_le_bytes());
        }
        is_it
    }
}

fn lba(sqe: &[u8]) -> u64 {
    u64::from_le_bytes(sqe[40..48].try_into().unwrap())
}

fn read_pdu(stream: &mut TcpStream) -> std::io::Result<Vec<u8>> {
    let mut pdu = vec![0; 8];
    stream.read_exact(&mut pdu)?;
    let len = u32::from_le_bytes(pdu[4..8].try_into().unwrap());
    pdu.resize(len as usize, 0);
    stream.read_exact(&mut pdu[8..])?;
    Ok(pdu)
}
