//! Replies against a model of the database.

use std::collections::BTreeMap;

use random::SplitMix;
use resp::encode_request;

use super::support::{Client, Frame, Server};

const APPEND_MAX: usize = 64;

struct Random(SplitMix);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0.below(bound)
    }

    fn key(&mut self) -> Vec<u8> {
        format!("key-{}", self.below(12)).into_bytes()
    }

    fn value(&mut self) -> Vec<u8> {
        (0..self.below(30)).map(|_| self.below(256) as u8).collect()
    }
}

#[derive(Default)]
struct Model {
    values: BTreeMap<Vec<u8>, Vec<u8>>,
    appends: bool,
}

impl Model {
    fn bulk(&self, key: &[u8]) -> Frame {
        self.values.get(key).map_or(Frame::Null, |value| Frame::BulkString(value.clone()))
    }

    fn set(&mut self, key: &[u8], value: &[u8]) {
        let own = self.values.entry(key.to_vec()).or_default();
        if self.appends {
            let room = APPEND_MAX.saturating_sub(own.len());
            own.extend_from_slice(&value[..value.len().min(room)]);
        } else {
            *own = value.to_vec();
        }
    }

    fn append(&mut self, key: &[u8], value: &[u8]) -> Frame {
        let len = self.values.get(key).map_or(0, Vec::len);
        let all = len + value.len();
        if all > APPEND_MAX && !value.is_empty() {
            return Frame::Error(format!(
                "ERR the value would have {all} bytes, the limit is 64 (--append-max)"
            ));
        }
        self.values.entry(key.to_vec()).or_default().extend_from_slice(value);
        Frame::Integer(all as i64)
    }

    /// A request and the reply that it must have.
    fn step(&mut self, random: &mut Random) -> (Vec<Vec<u8>>, Frame) {
        let (key, other, value) = (random.key(), random.key(), random.value());
        let word = |text: &str| text.as_bytes().to_vec();
        let ok = || Frame::SimpleString(b"OK".to_vec());
        match random.below(11) {
            0 | 1 => {
                self.set(&key, &value);
                (vec![word("SET"), key, value], ok())
            }
            2 | 3 => (vec![word("GET"), key.clone()], self.bulk(&key)),
            4 => (
                vec![word("MGET"), key.clone(), other.clone()],
                Frame::Array(vec![self.bulk(&key), self.bulk(&other)]),
            ),
            5 => {
                self.values.insert(key.clone(), value.clone());
                self.values.insert(other.clone(), word("v"));
                (vec![word("MSET"), key, value, other, word("v")], ok())
            }
            6 => {
                let count = self.values.remove(&key).map_or(0, |_| 1)
                    + self.values.remove(&other).map_or(0, |_| 1);
                (vec![word("DEL"), key, other], Frame::Integer(count))
            }
            7 => {
                let reply = self.append(&key, &value);
                (vec![word("APPEND"), key, value], reply)
            }
            8 => {
                let len = self.values.get(&key).map_or(0, Vec::len);
                (vec![word("STRLEN"), key], Frame::Integer(len as i64))
            }
            9 => {
                let before = self.bulk(&key);
                let absent = before == Frame::Null;
                if absent {
                    self.set(&key, &value);
                }
                let reply = if absent { ok() } else { Frame::Null };
                (vec![word("SET"), key, value, word("NX")], reply)
            }
            _ => (vec![word("DBSIZE")], Frame::Integer(self.values.len() as i64)),
        }
    }
}

/// Replies are those of a plain map, in the order of the requests, however these are cut into pieces.
///
/// Method: random requests in pipelines of random length, so that reads, blind writes and writes that read follow
/// each other in all ways; the server's memtables are small, and it is restarted in between.
fn agrees_with_the_model(appends: bool) {
    for seed in 0..4 {
        let directory = tempfile::tempdir().expect("a directory");
        let mode = if appends { "append" } else { "replace" };
        let arguments = ["--set", mode, "--append-max", "64", "--readers", "3", "--writers", "3"];
        let (mut random, mut model) =
            (Random(SplitMix::new(seed)), Model { appends, ..Model::default() });
        for _ in 0..2 {
            let server = Server::start(directory.path(), &arguments);
            let mut client = server.client();
            for _ in 0..40 {
                pipeline(&mut client, &mut model, &mut random, seed);
            }
            assert!(server.stop().success(), "seed {seed}");
        }
    }
}

fn pipeline(client: &mut Client, model: &mut Model, random: &mut Random, seed: u64) {
    let steps: Vec<_> = (0..=random.below(30)).map(|_| model.step(random)).collect();
    let mut bytes = Vec::new();
    for (request, _) in &steps {
        encode_request(&mut bytes, &request.iter().map(Vec::as_slice).collect::<Vec<_>>());
    }
    let (head, tail) = bytes.split_at(random.below(bytes.len() as u64) as usize);
    client.send(head).expect("sent");
    client.send(tail).expect("sent");
    for (request, expected) in &steps {
        let reply = client.reply().expect("a reply");
        let shown: Vec<_> =
            request.iter().map(|argument| argument.escape_ascii().to_string()).collect();
        assert_eq!(&reply, expected, "seed {seed}: {shown:?}");
    }
}

#[test]
fn replies_are_those_of_a_map() {
    agrees_with_the_model(false);
}

#[test]
fn a_set_that_appends_grows_values_to_their_maximum() {
    agrees_with_the_model(true);
}

/// Writes that read before see each other: of appends, conditional sets and deletes of many clients at one key, each
/// length is told once, and each value is set and deleted once.
#[test]
fn writes_that_read_are_one_by_one() {
    const CLIENTS: usize = 8;
    const TURNS: usize = 200;
    let directory = tempfile::tempdir().expect("a directory");
    let server = Server::start(directory.path(), &[]);
    let address = server.address;
    let each = |line: &str| {
        let replies = std::thread::scope(|scope| {
            let work = || {
                let mut client = Client::connect(address);
                (0..TURNS).map(|_| client.text(line)).collect::<Vec<_>>()
            };
            let threads: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(work)).collect();
            threads
                .into_iter()
                .flat_map(|thread| thread.join().expect("replies"))
                .collect::<Vec<_>>()
        });
        replies.into_iter().fold(BTreeMap::new(), |mut counts, reply| {
            *counts.entry(reply).or_insert(0) += 1;
            counts
        })
    };
    let lens = each("APPEND log .");
    let expected: BTreeMap<String, i32> =
        (1..=CLIENTS * TURNS).map(|len| (len.to_string(), 1)).collect();
    assert_eq!(lens, expected);
    assert_eq!(each("SET once 1 NX").get("OK"), Some(&1));
    assert_eq!(each("DEL once").get("1"), Some(&1));
}

/// Each key is found once by a scan, whatever the size of a page, and a forgotten cursor is an error.
#[test]
fn a_scan_finds_each_key_once() {
    let directory = tempfile::tempdir().expect("a directory");
    let server = Server::start(directory.path(), &[]);
    let mut client = server.client();
    let keys: Vec<String> = (0..250).map(|n| format!("k{n:03}")).collect();
    for key in &keys {
        assert_eq!(client.text(&format!("SET {key} v")), "OK");
    }
    for (options, expected) in
        [("COUNT 7", 250), ("COUNT 1000", 250), ("MATCH k1* COUNT 10", 100), ("TYPE list", 0)]
    {
        let (mut cursor, mut found) = ("0".to_owned(), Vec::new());
        loop {
            let Frame::Array(reply) = client.ask(&scan(&cursor, options)) else {
                panic!("an array")
            };
            let [next, Frame::Array(page)] = reply.as_slice() else { panic!("a cursor and keys") };
            cursor = super::support::text(next);
            found.extend(page.iter().map(super::support::text));
            if cursor == "0" {
                break;
            }
        }
        assert_eq!(found.len(), expected, "{options}");
        found.sort();
        found.dedup();
        assert_eq!(found.len(), expected, "{options}: some twice");
    }
    assert_eq!(
        client.text("SCAN 987654"),
        "-ERR this cursor is unknown or forgotten; begin the scan again with 0"
    );
}

fn scan<'a>(cursor: &'a str, options: &'a str) -> Vec<&'a [u8]> {
    let words = ["SCAN", cursor].into_iter().chain(options.split(' '));
    words.map(str::as_bytes).collect()
}
