//! Stands between a host and a portal, and ends the connection on which a certain read comes.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::thread;

/// Connections refused behind each that was ended: as many as a host tries at one place at the most.
const REFUSALS: u32 = 8;
const NOTHING: u64 = u64::MAX;

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
        });
        let own = shared.clone();
        thread::spawn(move || {
            for host in listener.incoming().map_while(Result::ok) {
                let take = |left: u32| left.checked_sub(1);
                let refused = own.refusals.fetch_update(Ordering::AcqRel, Ordering::Acquire, take);
                if refused.is_err() {
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
}

impl Shared {
    fn serve(self: Arc<Self>, mut host: TcpStream) {
        let Ok(mut target) = TcpStream::connect(self.portal) else { return };
        let (mut from_target, mut to_host) =
            (target.try_clone().unwrap(), host.try_clone().unwrap());
        thread::spawn(move || {
            let _ = std::io::copy(&mut from_target, &mut to_host);
            let _ = to_host.shutdown(Shutdown::Both);
        });
        thread::spawn(move || {
            let mut qid = 0;
            while let Ok(pdu) = read_pdu(&mut host) {
                if self.is_fatal(&pdu, &mut qid) {
                    self.refusals.store(REFUSALS, Ordering::Release);
                    self.ended.fetch_add(1, Ordering::AcqRel);
                    break;
                }
                if target.write_all(&pdu).is_err() {
                    break;
                }
            }
            let _ = target.shutdown(Shutdown::Both);
            let _ = host.shutdown(Shutdown::Both);
        });
    }

    /// Learns the queue's number from its Connect.
    fn is_fatal(&self, pdu: &[u8], qid: &mut u16) -> bool {
        const CAPSULE: u8 = 4;
        let [CAPSULE, ..] = pdu else { return false };
        let sqe = &pdu[8..72];
        match (sqe[0], sqe[4]) {
            (0x7F, 0x01) => *qid = u16::from_le_bytes([sqe[42], sqe[43]]),
            (0x02, _) if *qid > 0 => {
                let lba = u64::from_le_bytes(sqe[40..48].try_into().unwrap());
                return lba == self.fatal.load(Ordering::Acquire);
            }
            _ => {}
        }
        false
    }
}

fn read_pdu(stream: &mut TcpStream) -> std::io::Result<Vec<u8>> {
    let mut pdu = vec![0; 8];
    stream.read_exact(&mut pdu)?;
    let len = u32::from_le_bytes(pdu[4..8].try_into().unwrap());
    pdu.resize(len as usize, 0);
    stream.read_exact(&mut pdu[8..])?;
    Ok(pdu)
}
