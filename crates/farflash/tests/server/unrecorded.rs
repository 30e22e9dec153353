//! Messages of the command line and the Rust library about changes whose outcome could not be written to the
//! server's audit log.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread::JoinHandle;

use crate::support::file_system::{FileSystem, InMemory};
use crate::support::skipped::skipped;
use crate::support::{Files, Outcome, Server, run};
use farflash_client::{Cluster, NewVolume};
use serde_json::Value;

const WARNING: &str = "warning: the audit log";

/// A server that answers one request with this status line, header lines and document.
struct Answering {
    address: SocketAddr,
    thread: JoinHandle<()>,
}

impl Answering {
    fn start(head: &str, document: &Value) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let body = document.to_string();
        let answer = format!(
            "HTTP/1.1 {head}content-type: application/json\r\nconnection: close\r\n\
             content-length: {}\r\n\r\n{body}",
            body.len()
        );
        let thread = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            read_request(&mut stream);
            stream.write_all(answer.as_bytes()).unwrap();
        });
        Self { address, thread }
    }

    fn ask(self, words: &[&str]) -> Outcome {
        let api = format!("http://{}", self.address);
        let outcome = run(&[words, &["--api", &api]].concat());
        self.thread.join().unwrap();
        outcome
    }
}

/// Reads a request to its end.
fn read_request(stream: &mut TcpStream) {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).unwrap().to_lowercase();
    let len = head.lines().find_map(|line| line.strip_prefix("content-length:"));
    let mut body = vec![0; len.map_or(0, |len| len.trim().parse().unwrap())];
    stream.read_exact(&mut body).unwrap();
}

/// A change that was made is shown as one, and that its record is incomplete is said beside it.
///
/// Method: the answers of a real server are given by another one, with and without the header.
#[test]
fn a_change_without_a_whole_record_is_done_with_a_warning() {
    let server = Server::start_with("mem:256MiB", &["--auth", "on"]);
    let created = server.volume_json(&["create", "v", "--size", "64MiB"]);
    let tokens = server.volume_json(&["change-auth", "v"]);
    let mut volume = created.clone();
    for secret in ["token", "controller_token"] {
        volume.as_object_mut().unwrap().remove(secret);
    }
    let create = ["volume", "create", "v", "--size", "64MiB"];
    let resize = ["volume", "resize", "v", "--size", "64MiB"];
    let changes = [
        (&create[..], "201 Created", &created, created["token"].as_str()),
        (&["volume", "change-auth", "v"], "201 Created", &tokens, tokens["token"].as_str()),
        (&resize, "200 OK", &volume, Some("64 MiB")),
    ];
    for (words, status, document, shown) in changes {
        for (header, warns) in [("farflash-audit: incomplete\r\n", true), ("", false)] {
            let outcome = Answering::start(&format!("{status}\r\n{header}"), document).ask(words);
            assert_eq!(outcome.code, Some(0), "{outcome:?}");
            assert!(outcome.stdout.contains(shown.unwrap()), "{outcome:?}");
            assert_eq!(outcome.stderr.contains(WARNING), warns, "{words:?}: {outcome:?}");
            assert!(!outcome.stdout.contains(WARNING), "{outcome:?}");
        }
    }
}

/// Method: the log lies in a file system that is full; then there is room again.
#[test]
fn a_full_file_system_below_the_log_is_in_the_status() {
    let files = Files::new();
    let mount = files.path("small");
    std::fs::create_dir(&mount).unwrap();
    let Some(mounted) = InMemory::at(&mount, "64k") else {
        return skipped("nothing can be mounted");
    };
    let log = mount.join("audit.jsonl");
    let server = Server::start_with("mem:256MiB", &["--audit-log", log.to_str().unwrap()]);
    let status = || run(&["status", "--api", &server.api]);
    std::fs::write(mount.join("other"), vec![1; 1 << 20]).unwrap_err();
    let full = status();
    assert_eq!(full.code, Some(1), "{full:?}");
    assert!(full.stderr.contains("takes no lines (No space left on device"), "{full:?}");
    assert_eq!(server.volume(&["create", "v", "--size", "64MiB"]).code, Some(1));
    assert_eq!(status().code, Some(1));
    const REFUSED: usize = 40;
    let client = control::ApiClient::new(&server.api).unwrap();
    let size = control::VolumeSize::try_from(64 << 20).unwrap();
    let create = || client.create(&control::CreateVolume::new("w".parse().unwrap(), size));
    (0..REFUSED).for_each(|_| drop(create().unwrap_err()));
    std::fs::remove_file(mount.join("other")).unwrap();
    assert_eq!(status().code, Some(0));
    assert_eq!(server.volume(&["create", "v", "--size", "64MiB"]).code, Some(0));
    let log = server.log_until(|line| line["message"] == "volume created");
    let told = log.iter().filter(|line| line["message"] == "the audit log cannot be written");
    // One in ten seconds.
    assert!((1..REFUSED / 4).contains(&told.count()), "{log:?}");
    drop(mounted);
}

/// A look cannot find out whether there is room again: that a line was not taken is told until one is.
///
/// Method: the log lies in a file system that cannot reserve space, and is full; then there is room.
#[test]
fn a_full_file_system_that_reserves_nothing_is_in_the_status_until_a_line_is_written() {
    let files = Files::new();
    let Some(_mounted) = FileSystem::without_fallocate(&files.path("")) else {
        return skipped("no file system can be mounted here");
    };
    let (log, other) = (files.path("mount/audit.jsonl"), files.path("mount/other"));
    let server = Server::start_with("mem:256MiB", &["--audit-log", log.to_str().unwrap()]);
    let reserved = rustix::fs::fallocate(
        std::fs::File::options().write(true).open(&log).unwrap(),
        rustix::fs::FallocateFlags::KEEP_SIZE,
        0,
        4096,
    );
    assert_ne!(reserved, Ok(()), "the kind of file system is another one");
    // Each size leaves what the next one takes.
    let mut file = std::fs::File::create(&other).unwrap();
    for bytes in [64 << 10, 4 << 10, 1 << 10] {
        let piece = vec![1; bytes];
        assert!((0..8192).any(|_| file.write_all(&piece).is_err()), "it does not fill up");
    }
    drop(file);
    let status = || run(&["status", "--api", &server.api]);
    assert_eq!(server.volume(&["create", "v", "--size", "64MiB"]).code, Some(1));
    for _ in 0..3 {
        let full = status();
        assert_eq!(full.code, Some(1), "{full:?}");
        assert!(full.stderr.contains("takes no lines (No space left on device"), "{full:?}");
    }
    std::fs::remove_file(&other).unwrap();
    assert_eq!(server.volume(&["create", "v", "--size", "64MiB"]).code, Some(0));
    assert_eq!(status().code, Some(0));
}

/// Method: a server may write no file of more than 64 KiB, and what is beyond is an error, no signal. The log is filled until
/// it has room for the first line of a change, and not for the second.
#[test]
fn a_real_server_whose_log_is_full_says_so() {
    const LOG_BYTES: usize = 64 << 10;
    let files = Files::new();
    let log = files.path("audit.jsonl");
    let limit = ["-c", r#"trap "" XFSZ; ulimit -f 128; exec "$0" "$@""#];
    let server =
        Server::start_by("sh", &limit, "mem:256MiB", &["--audit-log", log.to_str().unwrap()]);
    let leave_half = || {
        let text = std::fs::read_to_string(&log).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        let [.., asked, answered] = lines[..] else { panic!("{text}") };
        let room = LOG_BYTES - text.len() - asked.len() - answered.len() / 2;
        let mut file = std::fs::OpenOptions::new().append(true).open(&log).unwrap();
        writeln!(file, "{}", " ".repeat(room)).unwrap();
    };
    let cluster = Cluster::new([&server.api], None).unwrap();
    let create = |name: &str| cluster.create(&NewVolume::new(name, 1 << 20));
    create("aa").unwrap();
    assert_eq!(cluster.incomplete_records(), 0);
    leave_half();
    create("ab").unwrap();
    assert_eq!((cluster.incomplete_records(), cluster.clone().incomplete_records()), (1, 1));
    let error = create("ac").unwrap_err();
    assert!(error.to_string().contains("cannot be recorded"), "{error}");
    assert_eq!(cluster.incomplete_records(), 1);
    // The same by the command line.
    std::fs::write(&log, "").unwrap();
    let resize = || server.volume(&["resize", "aa", "--size", "1MiB"]);
    assert!(!resize().stderr.contains(WARNING));
    leave_half();
    let warned = resize();
    assert_eq!(warned.code, Some(0), "{warned:?}");
    assert!(warned.stderr.contains(WARNING), "{warned:?}");
}
