//! Strangers without any credential at the door of an encrypted API, as fast as they can.

use std::collections::VecDeque;
use std::io::Write;
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crate::support::users::{self, User};
use crate::support::{Files, Server, refused, until};
use control::{ApiClient, CERTIFICATE_FILE};
use farflash_client::{Cluster, ClusterOptions, ErrorKind, NewVolume};
use rustix::net::{AddressFamily, SocketType, bind, connect, socket, sockopt};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

/// Connections of strangers, at least.
const CONNECTIONS: usize = 4000;
/// Those that each kind of stranger holds at a time. All together they are more than there are places.
const HELD: usize = 48;
/// Memory that strangers may have the server take: of each of 256 places a handshake that does not end, and what TLS takes.
const MEMORY_BYTES_MAX: u64 = 64 << 20;
/// Files beside those that are open anyhow: places, those that wait, and those that are about to be closed.
const FILES_MAX: usize = 256 + 64 + 64;

/// A stranger's knowledge of the server: its address, and its certificate, which is shown to all.
struct Door {
    api: SocketAddr,
    config: Arc<ClientConfig>,
}

impl Door {
    fn connect_from(&self, last: u8) -> std::io::Result<TcpStream> {
        let stranger = socket(AddressFamily::INET, SocketType::STREAM, None)?;
        bind(&stranger, &SocketAddr::from((Ipv4Addr::new(127, 0, 0, last), 0)))?;
        connect(&stranger, &self.api)?;
        let stream = TcpStream::from(stranger);
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(Duration::from_millis(100)))?;
        Ok(stream)
    }

    fn session(&self) -> ClientConnection {
        ClientConnection::new(self.config.clone(), "localhost".try_into().unwrap()).unwrap()
    }

    /// The first record of a handshake.
    fn hello(&self) -> Vec<u8> {
        let mut hello = Vec::new();
        self.session().write_tls(&mut hello).unwrap();
        hello
    }
}

/// A record of a handshake.
fn record(fragment: &[u8]) -> Vec<u8> {
    let len = u16::try_from(fragment.len()).unwrap();
    [&[22, 3, 1], &len.to_be_bytes()[..], fragment].concat()
}

/// A stranger's action on a connection; returns nothing if the connection is over.
type Attack = fn(&Door, TcpStream) -> std::io::Result<Option<TcpStream>>;

const ATTACKS: [Attack; 10] = [
    silent,
    drips,
    garbage,
    endless_hello,
    hello_in_crumbs,
    alerts,
    new_keys,
    half_closes,
    resets,
    no_tls,
];

fn silent(_: &Door, stream: TcpStream) -> std::io::Result<Option<TcpStream>> {
    Ok(Some(stream))
}

fn drips(door: &Door, mut stream: TcpStream) -> std::io::Result<Option<TcpStream>> {
    let hello = door.hello();
    for byte in &hello[..hello.len() - 1] {
        stream.write_all(&[*byte])?;
    }
    Ok(Some(stream))
}

fn garbage(_: &Door, mut stream: TcpStream) -> std::io::Result<Option<TcpStream>> {
    stream.write_all(&[0x80; 64 << 10])?;
    Ok(Some(stream))
}

/// One of 16 MiB, in the longest records.
fn endless_hello(_: &Door, mut stream: TcpStream) -> std::io::Result<Option<TcpStream>> {
    stream.write_all(&record(&[&[1, 0xff, 0xff, 0xff][..], &[0; 16380]].concat()))?;
    for _ in 0..1024 {
        stream.write_all(&record(&[0; 16384]))?;
    }
    Ok(Some(stream))
}

/// One of nearly as much as is taken, a byte in each record.
fn hello_in_crumbs(_: &Door, mut stream: TcpStream) -> std::io::Result<Option<TcpStream>> {
    let crumbs: Vec<u8> = [1, 0, 0xff, 0xf0].iter().flat_map(|byte| record(&[*byte])).collect();
    stream.write_all(&crumbs)?;
    stream.write_all(&record(&[0]).repeat(0xff00))?;
    Ok(Some(stream))
}

/// Warnings, of which a few are taken.
fn alerts(_: &Door, mut stream: TcpStream) -> std::io::Result<Option<TcpStream>> {
    stream.write_all(&[21, 3, 1, 0, 2, 1, 112].repeat(16))?;
    Ok(Some(stream))
}

/// A whole handshake, and new keys again and again instead of a request.
fn new_keys(door: &Door, stream: TcpStream) -> std::io::Result<Option<TcpStream>> {
    let mut stream = StreamOwned::new(door.session(), stream);
    for _ in 0..256 {
        stream.flush()?;
        if stream.conn.refresh_traffic_keys().is_err() {
            break;
        }
    }
    Ok(Some(stream.sock))
}

fn half_closes(door: &Door, mut stream: TcpStream) -> std::io::Result<Option<TcpStream>> {
    stream.write_all(&door.hello()[..100])?;
    stream.shutdown(Shutdown::Write)?;
    Ok(Some(stream))
}

fn resets(_: &Door, stream: TcpStream) -> std::io::Result<Option<TcpStream>> {
    sockopt::set_socket_linger(&stream, Some(Duration::ZERO))?;
    drop(stream);
    Ok(None)
}

fn no_tls(_: &Door, mut stream: TcpStream) -> std::io::Result<Option<TcpStream>> {
    stream.write_all(b"GET /v1/volumes HTTP/1.1\r\nhost: api\r\n\r\n")?;
    Ok(Some(stream))
}

/// Method: from an address for each kind of stranger, connections that hold as many places as they get. An operator and a
/// tenant ask meanwhile, each time on a connection of its own, which no stranger may cost them; memory, files and lines of
/// the log are counted.
#[test]
fn strangers_keep_no_client_out_and_leave_nothing() {
    let files = Files::new();
    let (ops, acme) = (User::operator("ops"), User::tenant("acme"));
    let users = users::list(&files, &[ops.entry(), acme.entry()]);
    let tls = files.path("tls");
    let flags = ["--api-tls", tls.to_str().unwrap(), "--api-users", &users];
    let server = Server::start_with("mem:256MiB", &flags);
    let certificate = tls.join(CERTIFICATE_FILE);
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(&certificate).unwrap()).unwrap();
    let door = Door {
        api: server.api.trim_start_matches("https://").parse().unwrap(),
        config: Arc::new(
            ClientConfig::builder().with_root_certificates(roots).with_no_client_auth(),
        ),
    };
    let clients = [&ops, &acme].map(|user| {
        let client = ApiClient::trusting(&server.api, Some(&certificate)).unwrap();
        client.with_token(&user.token)
    });
    let ask = || clients.iter().map(ApiClient::list).find_map(Result::err);
    assert!(ask().is_none());
    let (memory_before, files_before) = (server.resident_bytes(), server.open_files());
    let (stop, connections) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for (last, attack) in (2..).zip(ATTACKS) {
            let (door, stop, connections) = (&door, &stop, &connections);
            scope.spawn(move || {
                let mut held = VecDeque::new();
                while !stop.load(Ordering::Relaxed) {
                    // A connection that was cut off meanwhile is begun again.
                    let attacked = door.connect_from(last).and_then(|stream| attack(door, stream));
                    held.extend(attacked.ok().flatten());
                    if held.len() > HELD {
                        held.pop_front();
                    }
                    connections.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let _stops = Stops(&stop);
        let mut asked = 0;
        while asked < 50 || connections.load(Ordering::Relaxed) < CONNECTIONS {
            if let Some(error) = ask() {
                panic!("after {asked} questions: {error}");
            }
            asked += 1;
            let memory = server.resident_bytes().saturating_sub(memory_before);
            assert!(memory < MEMORY_BYTES_MAX, "{memory} bytes");
            let files = server.open_files().saturating_sub(files_before);
            assert!(files < FILES_MAX, "{files} files");
        }
    });
    until("nothing is left of them", || server.open_files() <= files_before);
    server.signal("HUP");
    let said = server.log_until(|line| line["message"] == "SIGHUP: read again");
    assert!(said.len() < 50, "{} lines: {:?}", said.len(), &said[..10]);
    assert!(ask().is_none());
}

/// Method: the address of a server with another scheme than it has, for a question and for a change.
#[test]
fn a_wrong_scheme_is_named_and_nothing_is_done() {
    let files = Files::new();
    let tls = files.path("tls");
    let encrypted = Server::start_with("mem:256MiB", &["--api-tls", tls.to_str().unwrap()]);
    let plain = Server::start("mem:256MiB");
    let (certificate, address) = (tls.join(CERTIFICATE_FILE), |server: &Server| {
        server.api.split_once("://").unwrap().1.to_owned()
    });
    let without = format!("http://{}", address(&encrypted));
    let with = format!("https://{}", address(&plain));
    for ask in [&["volume", "list"][..], &["volume", "create", "v", "--size", "1MiB"]] {
        let to = |api: &[&str]| [ask, api].concat().into_iter().map(str::to_owned).collect();
        let refusal = |words: Vec<String>, what: &str, remedy: &str| {
            refused(&words.iter().map(String::as_str).collect::<Vec<_>>(), 1, what, remedy);
        };
        refusal(to(&["--api", &without]), "without TLS", "https://");
        let trusting = ["--api", &with, "--api-ca", certificate.to_str().unwrap()];
        refusal(to(&trusting), "does not speak TLS", "http://");
    }
    let kind = |api: &str| {
        let options = ClusterOptions {
            urls: vec![api.to_owned()],
            api_ca: Some(certificate.clone()),
            ..ClusterOptions::default()
        };
        let cluster = Cluster::with(&options).unwrap();
        cluster.create(&NewVolume::new("v", 1 << 20)).unwrap_err().kind()
    };
    assert_eq!(kind(&without), ErrorKind::InvalidArgument);
    assert_eq!(kind(&with), ErrorKind::Unreachable);
    assert_eq!(plain.volume_json(&["list"])["volumes"], serde_json::json!([]));
}

/// Sets a flag when dropped: also when something fails, strangers stop.
struct Stops<'a>(&'a AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
