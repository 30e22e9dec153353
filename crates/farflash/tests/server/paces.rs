//! Hosts on slow networks, and hosts that send drop by drop to hold memory.

use std::cell::Cell;
use std::io::{Read, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use client::{Client, Options, Reconnect, Volume};
use io_traits::{Buffer, Clock, Spawn};
use nvme_wire::Nqn;
use reactor::Handle;
use serde_json::Value;
use units::Lba;

use crate::support::host::on_core;
use crate::support::{Server, tokens};

/// Memory of the server's only core for the data of requests.
const CORE_MEMORY: &str = "32MiB";
/// Blocks of 1 MiB.
const MIB_BLOCKS: usize = 256;
/// Time between two pieces on a slow network.
const STEP: Duration = Duration::from_millis(100);
/// Longer than the time in which a host has to move something where others need its memory, and well within that of a request.
const LONG: units::Duration = units::Duration::from_secs(8);

/// A network between hosts and a portal, which passes so many bytes of a connection in each [`STEP`] towards the portal.
#[derive(Clone)]
struct Network {
    address: SocketAddr,
    bytes: Arc<AtomicUsize>,
}

impl Network {
    fn to(portal: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let bytes = Arc::new(AtomicUsize::new(usize::MAX));
        let own = bytes.clone();
        std::thread::spawn(move || {
            for host in listener.incoming().map_while(Result::ok) {
                let Ok(target) = TcpStream::connect(portal) else { continue };
                let back = (target.try_clone().unwrap(), host.try_clone().unwrap());
                std::thread::spawn(move || pass(back, &AtomicUsize::new(usize::MAX)));
                let bytes = own.clone();
                std::thread::spawn(move || pass((host, target), &bytes));
            }
        });
        Self { address, bytes }
    }

    fn pass_in_each_step(&self, bytes: usize) {
        self.bytes.store(bytes, Ordering::Relaxed);
    }
}

fn pass((mut from, mut to): (TcpStream, TcpStream), bytes: &AtomicUsize) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        let mut rest = &buffer[..count];
        while !rest.is_empty() {
            let at_once = bytes.load(Ordering::Relaxed);
            let (piece, later) = rest.split_at(at_once.min(rest.len()));
            if to.write_all(piece).is_err() {
                break;
            }
            if at_once < buffer.len() {
                std::thread::sleep(STEP);
            }
            rest = later;
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}

/// A host with one queue, which does not connect a second time.
async fn host(handle: &Handle, address: SocketAddr, nqn: &Nqn) -> Volume<Handle> {
    let once = Options {
        reconnect: Reconnect::Never,
        queues: 1,
        command_timeout: units::Duration::from_secs(80),
        ..tokens::options(nqn, 7)
    };
    let client = Client::connect(handle.clone(), address, nqn, once).await.unwrap();
    client.volume().await.unwrap()
}

/// A write of 1 MiB, as a task of its own.
struct Write {
    /// Set once it has failed.
    has_failed: Rc<Cell<bool>>,
    ended: local_sync::Receiver<()>,
}

impl Write {
    fn begin(handle: &Handle, volume: &Volume<Handle>, at: u64) -> Self {
        let (sender, ended) = local_sync::oneshot();
        let (volume, has_failed) = (volume.clone(), Rc::new(Cell::new(false)));
        let failed = has_failed.clone();
        handle.spawn(async move {
            let data = Buffer::zeroed(MIB_BLOCKS).into_slice();
            let place = Lba(at * MIB_BLOCKS as u64);
            failed.set(volume.write(place, data).await.is_err());
            sender.send(());
        });
        Self { has_failed, ended }
    }

    async fn succeeds(self) -> bool {
        self.ended.await.expect("the task ends");
        !self.has_failed.get()
    }
}

fn start() -> (Server, Nqn) {
    let server = Server::start_with("mem:256MiB", &["--core-memory", CORE_MEMORY]);
    let volume: Value = server.volume_json(&["create", "v", "--size", "64MiB"]);
    (server, volume["nqn"].as_str().unwrap().parse().unwrap())
}

/// Hosts that send steadily are waited for, however long their writes take, and though others wait for the memory.
///
/// Method: 48 hosts send 1 MiB each to a core with memory for fewer, at 100 KiB a second.
#[test]
fn hosts_on_a_slow_network_are_waited_for() {
    let (server, nqn) = start();
    let network = Network::to(server.portals[0]);
    on_core(|handle| async move {
        let mut hosts = Vec::new();
        for _ in 0..48 {
            hosts.push(host(&handle, network.address, &nqn).await);
        }
        network.pass_in_each_step(10 << 10);
        let all = hosts.iter().zip(0..).map(|(volume, at)| Write::begin(&handle, volume, at));
        for written in all.collect::<Vec<_>>() {
            assert!(written.succeeds().await, "it was cut off");
        }
    });
}

/// Hosts that send drop by drop keep what they hold as long as there is enough for all, and no longer.
///
/// Method: 28 hosts hold 28 of 32 MiB and send 2 KiB a second; then another one writes more than what is left at a time.
#[test]
fn hosts_that_trickle_keep_no_memory_that_others_need() {
    let (server, nqn) = start();
    let network = Network::to(server.portals[0]);
    let portal = server.portals[0];
    on_core(|handle| async move {
        let mut slow = Vec::new();
        for _ in 0..28 {
            slow.push(host(&handle, network.address, &nqn).await);
        }
        network.pass_in_each_step(200);
        let held: Vec<_> =
            slow.iter().zip(0..).map(|(volume, at)| Write::begin(&handle, volume, at)).collect();
        handle.sleep_until(handle.now() + LONG).await;
        assert!(held.iter().all(|it| !it.has_failed.get()), "there was memory for all");
        let other = host(&handle, portal, &nqn).await;
        let needed: Vec<_> = (32..64).map(|at| Write::begin(&handle, &other, at)).collect();
        for written in needed {
            assert!(written.succeeds().await, "it was held up");
        }
        for written in held {
            assert!(!written.succeeds().await, "it was cut off before its end");
        }
    });
}
