//! What the command line says of changes whose outcome the server's audit log could not take.

#![allow(missing_docs, unreachable_pub, dead_code)]

mod support;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread::JoinHandle;

use serde_json::Value;
use support::{Outcome, Server, run};

const WARNING: &str = "warning: the audit log";

/// What answers one request in place of a server, with this status line, header lines and document.
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
