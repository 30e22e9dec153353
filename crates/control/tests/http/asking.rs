//! The API's client against servers that are made up: what it asks, and what it makes of the answers.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use control::{ApiClient, ApiError, ChangeAuth};
use serde_json::json;

/// A server that keeps its connections, and answers each request line by a document or by closing.
struct Made {
    url: String,
    connections: Arc<AtomicUsize>,
}

impl Made {
    fn start(answer: impl Fn(&str) -> Option<String> + Clone + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let connections = Arc::new(AtomicUsize::new(0));
        let count = connections.clone();
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                count.fetch_add(1, Ordering::AcqRel);
                let answer = answer.clone();
                thread::spawn(move || serve(stream, answer));
            }
        });
        Self { url, connections }
    }

    fn client(&self) -> ApiClient {
        ApiClient::new(&self.url).unwrap()
    }
}

fn serve(stream: TcpStream, answer: impl Fn(&str) -> Option<String>) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut stream = stream;
    loop {
        let mut head = Vec::new();
        let mut body_len = 0;
        loop {
            let mut line = String::new();
            match reader.read_line(&mut line) {
                Ok(0) | Err(_) => return,
                Ok(_) if line == "\r\n" => break,
                Ok(_) => {}
            }
            if let Some(len) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                body_len = len.trim().parse().unwrap();
            }
            head.push(line);
        }
        reader.read_exact(&mut vec![0; body_len]).unwrap();
        let Some(document) = answer(&head[0]) else { return };
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", document.len());
        if stream.write_all(format!("{head}{document}").as_bytes()).is_err() {
            return;
        }
    }
}

/// A process that forks must not share a connection with its child.
#[test]
fn no_connection_outlives_its_question() {
    let server = Made::start(|_| Some(json!({"volumes": []}).to_string()));
    let client = server.client();
    for asked in 1..=3 {
        client.list().unwrap();
        assert_eq!(server.connections.load(Ordering::Acquire), asked);
    }
}

#[test]
fn an_answer_about_another_volume_is_none() {
    let id = "6c7a9f2e-0b1d-4f60-8f3e-2b8a51c0d9aa";
    let volume = json!({
        "id": id, "name": "mine", "nqn": "nqn.2014-08.com.example:mine", "size_bytes": 4096,
        "allocated_bytes": 0, "address": "192.0.2.1:4420", "device": "0", "connect": "",
        "portal": {"address": "192.0.2.1:4420", "core": 0},
    });
    let server = Made::start(move |_| Some(volume.to_string()));
    let client = server.client();
    for asked in ["mine", id, &id.to_uppercase()] {
        assert_eq!(client.show(asked).unwrap().name, "mine");
    }
    let error = client.show("yours").unwrap_err();
    assert!(matches!(error, ApiError::OtherVolume { .. }), "{error}");
    assert!(error.to_string().contains("`mine`"), "{error}");
}

/// A change is asked for by a server that takes it and goes, that answers nonsense, and that gave up.
#[test]
fn a_lost_answer_is_told_from_a_request_that_no_server_took() {
    let problem = json!({
        "title": "", "status": 504, "code": "timeout", "detail": "too long", "hint": "",
    });
    let with = |answer: Option<String>| Made::start(move |_| answer.clone()).client();
    let silent = with(None).delete("db").unwrap_err();
    assert!(matches!(silent, ApiError::Unreachable { sent: true, .. }), "{silent}");
    assert!(silent.hint().contains("may have been done"), "{}", silent.hint());
    let nonsense = with(Some("[".to_owned()));
    let nonsense = nonsense.change_auth("db", &ChangeAuth::default()).unwrap_err();
    assert!(matches!(nonsense, ApiError::NotAnApi { status: 200, .. }), "{nonsense}");
    let late = ApiError::Refused(serde_json::from_value(problem).unwrap());
    for error in [silent, nonsense, late] {
        assert!(error.may_have_been_done(), "{error}");
    }
    let unused = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let error = ApiClient::new(&format!("http://{unused}")).unwrap().delete("db").unwrap_err();
    assert!(matches!(error, ApiError::Unreachable { sent: false, .. }), "{error}");
    assert!(!error.may_have_been_done());
    assert!(error.hint().contains("start a server"), "{}", error.hint());
}

/// A server that answers each connection with `head`, and then with `piece` again and again for as long as
/// that is taken: returns its client, and the count of the pieces that were taken. An empty piece is
/// silence.
fn endless(head: &'static str, piece: Vec<u8>) -> (ApiClient, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let taken = Arc::new(AtomicUsize::new(0));
    let count = taken.clone();
    thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let (count, piece) = (count.clone(), piece.clone());
            thread::spawn(move || {
                let _ = stream.write_all(head.as_bytes());
                while !piece.is_empty() && stream.write_all(&piece).is_ok() {
                    count.fetch_add(1, Ordering::AcqRel);
                }
                // Until the client leaves.
                let _ = stream.read_to_end(&mut Vec::new());
            });
        }
    });
    (ApiClient::new(&url).unwrap(), taken)
}

/// A chunk of 64 KiB of `byte`, with its length and end.
fn chunk(byte: u8) -> Vec<u8> {
    [&b"10000\r\n"[..], &[byte; 64 << 10], b"\r\n"].concat()
}

const CHUNKED: &str = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";

/// Method: a body without end, one of 256 MiB by its length, and nested brackets without end, in pieces of 64 KiB. What sockets
/// hold comes on top of what is read.
#[test]
fn no_answer_about_one_thing_is_read_without_bound() {
    let long = "HTTP/1.1 200 OK\r\ncontent-length: 268435456\r\n\r\n";
    for (head, byte) in [(CHUNKED, b' '), (long, b' '), (CHUNKED, b'[')] {
        let (client, taken) = endless(head, chunk(byte));
        for error in [client.show("db").unwrap_err(), client.delete("db").unwrap_err()] {
            assert!(matches!(error, ApiError::NotAnApi { status: 200, .. }), "{head}: {error}");
            assert!(error.may_have_been_done(), "{error}");
        }
        let taken = taken.load(Ordering::Acquire);
        assert!(taken < 512, "{head}: {taken} pieces for two answers");
    }
}

/// Method: nothing, half a head, half a body. A client that waits for the rest waits for ever.
#[test]
fn an_answer_that_does_not_end_is_not_waited_for() {
    for head in ["", "HTTP/1.1 200 OK\r\ncontent-", "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{"]
    {
        let error =
            endless(head, Vec::new()).0.show_within("db", Duration::from_millis(300)).unwrap_err();
        assert!(matches!(error, ApiError::Unreachable { sent: true, .. }), "{head}: {error}");
    }
}

/// A redirection leads nowhere, be it in a circle: it would send the token to another server.
#[test]
fn no_redirection_is_followed() {
    const MOVED: &str =
        "HTTP/1.1 307 Moved\r\nlocation: /v1/volumes/db\r\ncontent-length: 0\r\n\r\n";
    let error = endless(MOVED, Vec::new()).0.show("db").unwrap_err();
    assert!(matches!(error, ApiError::NotAnApi { status: 307, .. }), "{error}");
}
