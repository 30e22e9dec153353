//! The forms in which the server shows its state.

use std::io::{Read, Write};
use std::net::TcpStream;

use super::support::{PATIENCE, Server};

/// Flushes, the block cache and reads of Flash are seen.
#[test]
fn caches_flushes_and_reads_are_shown() {
    let directory = tempfile::tempdir().expect("a directory");
    let server = Server::start(directory.path(), &["--compression", "none"]);
    let mut client = server.client();
    let value = "v".repeat(10_000);
    for n in 0..1500 {
        assert_eq!(client.text(&format!("SET key-{n} {value}")), "OK");
    }
    // 15 MB do not fit into memtables of 4 MiB together.
    assert!(client.info("flushes_total") >= 1.0);
    assert!(client.info("flush_written_bytes_total") >= 1e6);
    for n in 0..1500 {
        assert_eq!(client.text(&format!("STRLEN key-{n}")), "10000");
    }
    assert!(client.info("block_cache_misses_total") >= 1.0);
    assert!(client.info("table_reads_total") >= 1.0);
    let rate = client.info("block_cache_hit_rate");
    assert!((0.0..=1.0).contains(&rate), "{rate}");
    let used = client.info("block_cache_used_bytes");
    assert!(used > 0.0 && used <= 1.1 * client.info("block_cache_capacity_bytes"), "{used}");
    assert!(client.info("memtables_used_bytes") <= 1.5 * client.info("memtables_limit_bytes"));
    assert_eq!(client.info("keyspace_hits_total"), 1500.0);
}

/// A stall is told with its cause and the setting that changes it, in the log and in INFO.
///
/// Method: writes without pause to a server that delays them from the second file of level 0 on, and compacts late.
#[test]
fn a_stall_says_why() {
    let directory = tempfile::tempdir().expect("a directory");
    let arguments = [
        "--compression",
        "none",
        "--level0-compaction",
        "2",
        "--level0-slowdown",
        "2",
        "--level0-stop",
        "3",
        "--background-jobs",
        "1",
    ];
    let server = Server::start(directory.path(), &arguments);
    let address = server.address;
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut client = super::support::Client::connect(address);
            let value = "v".repeat(100_000);
            let mut n = 0;
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                n += 1;
                client.text(&format!("SET key-{} {value}", n % 500));
            }
        });
        let line = server.line_with("writes are ");
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        assert!(line.contains("--level0-") || line.contains("memtables"), "{line}");
        assert!(line.contains("--background-jobs"), "{line}");
    });
    assert!(server.client().info("stall_microseconds_total") > 0.0);
}

fn http(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("it listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").expect("sent");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("an answer");
    text
}

/// Prometheus' text is well-formed: each sample has its family's type before it.
#[test]
fn metrics_are_served() {
    let directory = tempfile::tempdir().expect("a directory");
    // Taken and given back, so that it is free; another process could take it in between.
    let free = std::net::TcpListener::bind("127.0.0.1:0")
        .expect("a port")
        .local_addr()
        .expect("its address")
        .to_string();
    let server = Server::start(directory.path(), &["--metrics", &free]);
    assert_eq!(server.client().text("SET a 1"), "OK");
    let text = http(&free, "/metrics");
    assert!(text.starts_with("HTTP/1.1 200 OK\r\n"), "{text}");
    let body = text.split_once("\r\n\r\n").map(|(_, body)| body).unwrap_or_default();
    assert!(body.contains("farflash_datastore_requests_total{class=\"write\"} 1\n"), "{body}");
    let mut family = "";
    for line in body.lines() {
        match line.strip_prefix("# TYPE ") {
            Some(rest) => family = rest.split(' ').next().unwrap_or_default(),
            None if line.starts_with('#') => {}
            None => {
                let name = line.split(['{', ' ']).next().unwrap_or_default();
                assert_eq!(name, family, "{line}");
                let value = line.rsplit(' ').next().unwrap_or_default();
                assert!(value.parse::<f64>().is_ok(), "{line}");
            }
        }
    }
    assert!(http(&free, "/healthz").ends_with("ok\n"));
    assert!(http(&free, "/other").starts_with("HTTP/1.1 404 "));
}
