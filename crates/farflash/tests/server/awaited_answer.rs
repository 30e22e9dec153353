//! Messages of a command while the API does not answer, and when the answer never comes.

use std::io::{BufRead, BufReader, Read};
use std::net::{TcpListener, TcpStream};
use std::process::Stdio;
use std::thread;

use crate::support::{Server, farflash, run};

/// Runs a command on a server that is stopped until the command says something; what that is.
fn said_while_stopped(server: &Server, arguments: &[&str]) -> String {
    server.pause();
    let mut command = farflash(&[arguments, &["--api", &server.api]].concat());
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let first = lines.next().unwrap().unwrap();
    server.resume();
    let rest: Vec<String> = lines.map_while(Result::ok).collect();
    assert!(child.wait().unwrap().success(), "{first} {rest:?}");
    assert!(rest.is_empty(), "it is said once: {first} {rest:?}");
    first
}

#[test]
fn a_waiting_user_is_told_for_what_and_how_long() {
    let server = Server::start("mem:256MiB");
    let awaited = format!("waiting for the answer of {}, 60 s at most", server.api);
    for question in [&["volume", "list"][..], &["status"]] {
        assert_eq!(said_while_stopped(&server, question), awaited);
    }
    let change = ["volume", "create", "v", "--size", "64MiB"];
    let goes_on = "; the change may be made also if you do not wait";
    assert_eq!(said_while_stopped(&server, &change), format!("{awaited}{goes_on}"));
    server.volume_json(&["show", "v"]);
}

/// A server that takes each request, and goes without an answer.
fn silent() -> String {
    fn take(mut stream: TcpStream) {
        let mut head = BufReader::new(stream.try_clone().unwrap());
        let mut body_len = 0;
        loop {
            let mut line = String::new();
            if head.read_line(&mut line).is_err() || line.trim().is_empty() {
                break;
            }
            if let Some(len) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                body_len = len.trim().parse().unwrap();
            }
        }
        let _ = head.read_exact(&mut vec![0; body_len]);
        let _ = stream.shutdown(std::net::Shutdown::Both);
        let _ = stream.read(&mut [0]);
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    thread::spawn(move || listener.incoming().map_while(Result::ok).for_each(take));
    url
}

#[test]
fn a_change_without_an_answer_may_have_been_made() {
    let api = silent();
    for (change, looks) in [
        (&["create", "v", "--size", "64MiB"][..], &["volume list", "change-auth v"][..]),
        (&["change-auth", "v"], &["change-auth v"]),
        (&["resize", "v", "--size", "64MiB"], &["volume show v"]),
        (&["delete", "--lose-data", "v"], &["volume list"]),
    ] {
        let outcome = run(&[&["volume"], change, &["--api", &api]].concat());
        assert_eq!(outcome.code, Some(1), "{outcome:?}");
        for part in ["may have been made all the same"].iter().chain(looks) {
            assert!(outcome.stderr.contains(part), "{part}: {outcome:?}");
        }
    }
}
