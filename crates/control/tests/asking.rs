//! The API's client against servers that are made up: what it asks, and what it makes of the answers.

#![allow(missing_docs, unreachable_pub)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

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
fn a_lost_answer_is_told_from_a_request_that_nobody_took() {
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
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let error = ApiClient::new(&format!("http://{nobody}")).unwrap().delete("db").unwrap_err();
    assert!(matches!(error, ApiError::Unreachable { sent: false, .. }), "{error}");
    assert!(!error.may_have_been_done());
    assert!(error.hint().contains("start a server"), "{}", error.hint());
}
