//! Ends of the server: by force under load, and in order.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use super::support::{Client, Server};

const CLIENTS: usize = 6;
/// Writes of each client that are answered before the server is killed.
const ANSWERED: u64 = 150;

/// Writes rising numbers to one key, and notes each that was answered, until the connection breaks.
fn write_until_it_ends(address: SocketAddr, client: usize, answered: &AtomicU64) {
    let mut connection = Client::connect(address);
    for number in 1.. {
        let request = format!("SET client-{client} {number}\r\nAPPEND log-{client} .\r\n");
        if connection.send(request.as_bytes()).is_err() {
            return;
        }
        for _ in 0..2 {
            let Some(reply) = connection.reply() else { return };
            assert!(!super::support::text(&reply).starts_with('-'), "{reply:?}");
        }
        answered.store(number, Ordering::SeqCst);
    }
}

/// A write that was answered is there after the server was killed in the middle of others, and RocksDB opens.
///
/// Method: six clients write rising numbers, each after the answer to the one before; once each has got enough
/// answers the server is killed. What a client wrote last may be there without an answer, but nothing less.
/// The kernel goes on, so writes that are only in its memory survive, too; those without a log would not.
fn keeps_what_was_answered(writes: &str) {
    let directory = tempfile::tempdir().expect("a directory");
    let arguments = ["--writes", writes, "--append-max", "1MiB"];
    let mut least = [0; CLIENTS];
    for round in 0..3 {
        let server = Server::start(directory.path(), &arguments);
        check(&server, &least);
        let answered: [AtomicU64; CLIENTS] = Default::default();
        thread::scope(|scope| {
            for (client, answered) in answered.iter().enumerate() {
                scope.spawn(move || write_until_it_ends(server.address, client, answered));
            }
            while answered.iter().any(|answered| answered.load(Ordering::SeqCst) < ANSWERED) {
                thread::yield_now();
            }
            server.kill();
        });
        for (least, answered) in least.iter_mut().zip(&answered) {
            *least = answered.load(Ordering::SeqCst);
            assert!(*least >= ANSWERED, "round {round}");
        }
    }
    check(&Server::start(directory.path(), &arguments), &least);
}

fn check(server: &Server, least: &[u64; CLIENTS]) {
    let mut client = server.client();
    for (index, least) in least.iter().enumerate() {
        let found = client.text(&format!("GET client-{index}"));
        let found = found.parse().unwrap_or(0);
        assert!(*least <= found && found <= least + 1, "client {index}: {found} of {least}");
        let len: u64 = client.text(&format!("STRLEN log-{index}")).parse().expect("a length");
        assert!(*least <= len, "client {index}: {len} appended of {least}");
    }
}

#[test]
fn synced_writes_survive_a_kill() {
    keeps_what_was_answered("synced");
}

#[test]
fn buffered_writes_survive_a_kill_of_the_process() {
    keeps_what_was_answered("buffered");
}

/// Without a log, the end in order writes the memtables.
#[test]
fn an_end_in_order_keeps_all() {
    for writes in ["memtable", "buffered", "synced"] {
        let directory = tempfile::tempdir().expect("a directory");
        let server = Server::start(directory.path(), &["--writes", writes]);
        assert_eq!(server.client().text("SET a 1"), "OK");
        assert!(server.stop().success(), "{writes}");
        let server = Server::start(directory.path(), &["--writes", writes]);
        assert_eq!(server.client().text("GET a"), "1", "{writes}");
    }
}

/// A synced write flushes the log to the device before it is answered.
#[test]
fn synced_writes_flush_the_log() {
    for (writes, syncs) in [("synced", true), ("buffered", false)] {
        let directory = tempfile::tempdir().expect("a directory");
        let server = Server::start(directory.path(), &["--writes", writes]);
        let mut client = server.client();
        let before = client.info("wal_syncs_total");
        for n in 0..10 {
            assert_eq!(client.text(&format!("SET key-{n} 1")), "OK");
        }
        let more = client.info("wal_syncs_total") - before;
        assert_eq!(more >= 10.0, syncs, "{writes}: {more} flushes");
    }
}
