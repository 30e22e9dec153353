use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};

use cluster::WatchEvent;

use super::watch::WatchAnswer;
use super::*;
use crate::{DirectoryError, EtcdCredentials};

/// Something that gives these answers, one to each request.
struct Script {
    gateway: Gateway,
    /// The paths that it was asked for, with the tokens.
    asked: Arc<Mutex<Vec<String>>>,
}

/// A request's path and token.
fn read_request(stream: &TcpStream) -> String {
    let mut reader = BufReader::new(stream);
    let mut line = || {
        let mut line = String::new();
        reader.read_line(&mut line).expect("a line");
        line.trim_end().to_owned()
    };
    let first = line();
    let path = first.split(' ').nth(1).expect("a path").to_owned();
    let (mut len_bytes, mut token) = (0, String::new());
    loop {
        let header = line();
        match header.split_once(": ") {
            Some(("content-length", value)) => len_bytes = value.parse().expect("a length"),
            Some(("authorization", value)) => value.clone_into(&mut token),
            Some(_) => {}
            None => break,
        }
    }
    reader.read_exact(&mut vec![0; len_bytes]).expect("a body");
    format!("{path} {token}").trim_end().to_owned()
}

impl Script {
    fn new(answers: &[(u16, &'static str)]) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let authority = listener.local_addr().expect("bound").to_string();
        let address = format!("etcd://{authority}/test").parse().expect("an address");
        let user = Some(("farflash".to_owned(), "secret".to_owned()));
        let credentials = EtcdCredentials { user, ..EtcdCredentials::default() };
        let access = credentials.open(&address).expect("nothing to read");
        let gateway = Gateway::new(authority, Duration::from_secs(60), access);
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (answers, noted) = (answers.to_vec(), asked.clone());
        std::thread::spawn(move || {
            for (status, body) in answers {
                let (mut stream, _) = listener.accept().expect("a connection");
                let request = read_request(&stream);
                noted.lock().expect("whole").push(request);
                let length = body.len();
                let head = format!("HTTP/1.1 {status} -\r\nContent-Length: {length}\r\n\r\n");
                stream.write_all((head + body).as_bytes()).expect("the client listens");
            }
        });
        Self { gateway, asked }
    }

    fn asked(&self) -> Vec<String> {
        self.asked.lock().expect("whole").clone()
    }
}

const ONE: (u16, &str) = (200, "{\"token\":\"one\"}");
const TWO: (u16, &str) = (200, "{\"token\":\"two\"}");
const RANGE: (u16, &str) = (200, "{\"header\":{\"revision\":\"7\"}}");
const WATCHING: (u16, &str) = (200, "{\"result\":{\"created\":true}}\n");
/// The answer of etcd 3.4 to a watch with a token that is no longer valid.
const CANCELED: (u16, &str) = (
    200,
    "{\"result\":{\"watch_id\":\"-1\",\"created\":true,\"canceled\":true,\
     \"cancel_reason\":\"etcdserver: invalid auth token\"}}\n",
);
/// Its answer to every other request, and the answer of other releases to a watch.
const STALE: (u16, &str) = (401, "{\"error\":\"etcdserver: invalid auth token\",\"code\":16}");

/// A token may end between two requests: whatever is asked then is asked once more with another, and not
/// for ever.
#[tokio::test]
async fn a_token_that_ended_is_replaced_once() {
    for stale in [CANCELED, STALE] {
        let script = Script::new(&[ONE, RANGE, stale, TWO, WATCHING, STALE, ONE, RANGE]);
        script.gateway.range("/a/").await.expect("answered");
        let mut watch = script.gateway.watch("/a/", 8).await.expect("with the second token");
        watch.next().await.expect("what etcd said at the beginning");
        script.gateway.range("/a/").await.expect("with a third");
        let asked = [
            "/v3/auth/authenticate",
            "/v3/kv/range one",
            "/v3/watch one",
            "/v3/auth/authenticate",
            "/v3/watch two",
            "/v3/kv/range two",
            "/v3/auth/authenticate",
            "/v3/kv/range one",
        ];
        assert_eq!(script.asked(), asked);

        let script = Script::new(&[ONE, stale, TWO, stale, ONE, WATCHING]);
        let refused = script.gateway.watch("/a/", 8).await.map(drop).expect_err("refused twice");
        assert!(refused.to_string().contains("invalid auth token"), "{refused}");
        assert_eq!(script.asked().len(), 4, "{:?}", script.asked());
    }
}

/// An answer that is not JSON is not etcd's: etcd is away, and may come back. JSON of another form, or a
/// path that does not exist, belongs to another server.
#[tokio::test]
async fn what_is_not_etcds_word_is_waited_out() {
    const PAGE: &str = "<html>please wait</html>";
    let asked = async |answer: (u16, &'static str)| {
        let script = Script::new(&[ONE, answer, answer]);
        let range = script.gateway.range("/a/").await.map(drop).map_err(DirectoryError::from);
        let watch = script.gateway.watch("/a/", 1).await.map(drop).map_err(DirectoryError::from);
        [range.expect_err("no answer"), watch.expect_err("no answer")]
    };
    for answer in [(200, PAGE), (200, "{\"header\":\n"), (502, PAGE), (503, "")] {
        for error in asked(answer).await {
            assert!(matches!(error, DirectoryError::Unreachable { .. }), "{answer:?}: {error:?}");
        }
    }
    for answer in [(404, "404 page not found"), (200, "[1]\n")] {
        for error in asked(answer).await {
            assert!(matches!(error, DirectoryError::Foreign { .. }), "{answer:?}: {error:?}");
        }
    }
}

/// A request that etcd denies has not been done and will not be done, so that nothing has to be given up for it. A token that was
/// issued before the users were changed is replaced.
#[tokio::test]
async fn what_etcd_denies_is_not_done() {
    let space = r#"{"error":"etcdserver: mvcc: database space exceeded","code":8}"#;
    let leader = r#"{"error":"etcdserver: no leader","code":14}"#;
    let old = r#"{"error":"etcdserver: revision of auth store is old","code":3}"#;
    let token = r#"{"token":"t"}"#;
    let script = Script::new(&[
        (200, token),
        (429, space),
        (503, leader),
        (400, old),
        (200, token),
        (200, "{}"),
    ]);
    let mut told = Vec::new();
    for _ in 0..2 {
        let refused = script.gateway.txn(&[], &[], &[]).await.expect_err("refused");
        told.push(refused.may_be_done());
    }
    assert_eq!(told, [false, true]);
    script.gateway.txn(&[], &[], &[]).await.expect("by another token");
}

#[test]
fn a_range_ends_behind_the_last_key_of_its_prefix() {
    assert_eq!(after_prefix("/a/"), b"/a0");
}

#[test]
fn answers_are_read_with_their_fields_left_out_or_in_either_form() {
    let text = r#"{"header":{"revision":"7"},"kvs":[{"key":"L2E=","mod_revision":"5"}]}"#;
    let range: RangeAnswer = serde_json::from_str(text).expect("a range");
    assert_eq!((range.header.revision, range.kvs[0].mod_revision), (7, 5));
    assert_eq!((range.kvs[0].key.as_str(), range.kvs[0].value.len()), ("/a", 0));
    let text = r#"{"events":[{"kv":{"key":"L2E="}},{"type":"DELETE","kv":{"key":"L2E="}}]}"#;
    let watch: WatchAnswer = serde_json::from_str(text).expect("events");
    let events: Vec<WatchEvent> = watch.events.into_iter().map(Into::into).collect();
    assert_eq!((events[0].put(), events[1].put()), (Some(&[][..]), None));
}
