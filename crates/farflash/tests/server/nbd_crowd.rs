//! Thousands of NBD clients at a live server, and what it says when there are too many.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use nbd_wire::{Command, OptionReplyKind, SIMPLE_REPLY_LEN};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::support::foreign::places;
use crate::support::nbd::{self, Client};
use crate::support::{Server, until};

const BLOCK: usize = 4096;

/// This process may have as many sockets open as the system allows.
fn raise_own_limit() {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
}

fn start(more: &[&str]) -> (Server, SocketAddr) {
    let server = Server::start_with("mem:256MiB", &[more, &["--nbd", "127.0.0.1:0"]].concat());
    let at = places(&server, "NBD open")[0];
    for name in ["v", "w"] {
        server.volume_json(&["create", name, "--size", "64MiB"]);
        server.volume_json(&["restrict", name, "--nbd-network", "127.0.0.0/8"]);
    }
    (server, at)
}

/// A client that reads its own block again and again.
struct Reader {
    stream: TcpStream,
    number: u64,
    heard: Vec<u8>,
    reads: u64,
}

impl Reader {
    fn ask(&mut self) {
        let read =
            nbd::request(Command::READ, self.reads, self.number * BLOCK as u64, BLOCK as u64);
        // A request fits into any socket's buffer.
        self.stream.write_all(&read).unwrap();
    }

    /// Takes what has come. Returns whether a read ended, and asks for the next one.
    fn go_on(&mut self) -> bool {
        let mut bytes = [0; SIMPLE_REPLY_LEN + BLOCK];
        match self.stream.read(&mut bytes[self.heard.len()..]) {
            Ok(0) => panic!("client {} was cut off", self.number),
            Ok(count) => {
                let from = self.heard.len();
                self.heard.extend_from_slice(&bytes[from..from + count]);
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => return false,
            Err(error) => panic!("client {}: {error}", self.number),
        }
        if self.heard.len() < bytes.len() {
            return false;
        }
        assert_eq!(self.heard[4..8], [0; 4], "no error");
        assert_eq!(self.heard[8..16], self.reads.to_be_bytes());
        assert!(self.heard[SIMPLE_REPLY_LEN..] == block(self.number), "client {}", self.number);
        self.heard.clear();
        self.reads += 1;
        self.ask();
        true
    }
}

fn block(number: u64) -> Vec<u8> {
    (number + 1).to_be_bytes().repeat(BLOCK / 8)
}

/// Two thousand clients connect at once, open a volume at once and read at once; none waits much longer than the others.
///
/// Method: each has one read under way at any time, for some seconds; the reads of each are counted. `--connections-max` is twice
/// what they need, since the hosts of one volume have half.
#[test]
fn two_thousand_clients_are_served_at_a_time() {
    const CLIENTS: usize = 2000;
    const THREADS: usize = 2;
    const READS: Duration = Duration::from_secs(4);
    /// Resident memory that a connection may take, its share of everything included.
    const BYTES_EACH: u64 = 64 << 10;
    raise_own_limit();
    let (server, at) = start(&["--connections-max", "4096"]);
    let began = Instant::now();
    let mut writer = Client::open(at, "v").unwrap();
    (0..CLIENTS as u64).for_each(|number| writer.write(number * BLOCK as u64, &block(number)));
    drop(writer);
    let before = server.resident_bytes();
    let streams: Vec<_> = (0..CLIENTS).map(|_| TcpStream::connect(at).unwrap()).collect();
    for mut stream in &streams {
        stream.set_nodelay(true).unwrap();
        stream.write_all(&nbd::go("v")).unwrap();
    }
    let open = |stream: TcpStream| {
        let mut client = Client::of(stream);
        assert_eq!(client.is_let_in(), Ok(()));
        client
    };
    let mut clients: Vec<Client> = streams.into_iter().map(open).collect();
    eprintln!("{CLIENTS} clients have the volume open after {:?}", began.elapsed());
    let api = control::ApiClient::new(&server.api).unwrap();
    assert_eq!(api.server().unwrap().cores[0].connections, CLIENTS as u64);

    let readers = clients.drain(..).enumerate().map(|(number, client)| {
        let stream = client.into_stream();
        stream.set_nonblocking(true).unwrap();
        Reader { stream, number: number as u64, heard: Vec::new(), reads: 0 }
    });
    let mut readers: Vec<Reader> = readers.collect();
    let end = Instant::now() + READS;
    std::thread::scope(|scope| {
        for some in readers.chunks_mut(CLIENTS / THREADS) {
            scope.spawn(move || {
                some.iter_mut().for_each(Reader::ask);
                while Instant::now() < end {
                    let mut ended = 0;
                    some.iter_mut().for_each(|reader| ended += u64::from(reader.go_on()));
                    if ended == 0 {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                }
            });
        }
    });
    let each = server.resident_bytes().saturating_sub(before) / CLIENTS as u64;
    let reads = readers.iter().map(|reader| reader.reads);
    let (least, most, all) =
        (reads.clone().min().unwrap(), reads.clone().max().unwrap(), reads.sum::<u64>());
    let mean = all / CLIENTS as u64;
    eprintln!("{all} reads, of a client {least} to {most}, {each} bytes each");
    assert!(least * 2 >= mean && least > 1, "{least} to {most} reads, {mean} in the mean");
    assert!(each < BYTES_EACH, "{each} bytes");
    drop(readers);
    until("they are forgotten", || api.server().unwrap().cores[0].connections == 0);
}

/// More clients than there may be are refused, those that are there stay, and the operator is told.
///
/// Method: first as many as the hosts of one volume may have and another one, then as many as there may be and another one.
#[test]
fn clients_beyond_the_limit_are_refused_and_told_of() {
    const MAX: usize = 160;
    let (server, at) = start(&["--connections-max", &MAX.to_string()]);
    let told = || crate::support::run(&["status", "--api", &server.api]);
    assert!(!told().stdout.contains("connections were refused"), "{:?}", told());
    let mut clients: Vec<_> = (0..MAX / 2).map(|_| Client::open(at, "v").unwrap()).collect();
    let refused = Client::open(at, "v").err();
    assert_eq!(refused, Some(OptionReplyKind::ERR_POLICY), "it is half of all");
    clients.extend((MAX / 2..MAX).map_while(|_| Client::open(at, "w").ok()));
    let lines = server.log_until(|line| line["kind"] == "connections");
    assert!(
        lines.iter().any(|line| line["reason"].as_str().is_some_and(|it| it.contains("as many"))),
        "{lines:?}"
    );
    let status = told();
    assert!(status.stdout.contains("connections were refused in the last minute"), "{status:?}");
    assert_eq!(status.code, Some(0), "a warning: {status:?}");
    let metrics = || crate::observing::metrics(&server);
    assert!(metrics().contains("farflash_notice{kind=\"connections\"} 1\n"), "{}", metrics());
    let count = || {
        let metrics = metrics();
        let line = metrics
            .lines()
            .find(|line| line.starts_with("farflash_core_connections_refused_total"));
        line.unwrap().rsplit(' ').next().unwrap().parse::<u64>().unwrap()
    };
    assert!(count() >= 1, "{}", metrics());
    for client in &mut clients {
        assert_eq!(client.read(0, 8), [0; 8], "who is in is served");
    }
    drop(clients);
    let api = control::ApiClient::new(&server.api).unwrap();
    until("they are forgotten", || api.server().unwrap().cores[0].connections == 0);
    assert_eq!(Client::open(at, "v").unwrap().read(0, 8), [0; 8], "there is room again");
}
