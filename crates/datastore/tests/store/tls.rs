//! TLS: clients that others wrote, the load generator, metrics, certificates of clients, and renewal.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use kv_load::{
    Arrivals, Loop, Popularity, RunError, Setup, Sizes, TargetTls, Workload, WriteCommand,
};
use rcgen::{CertificateParams, KeyPair};
use rustls::{ClientConnection, StreamOwned};
use tls_files::{
    CERTIFICATE_FILE, CLIENTS_FILE, Identity, KEY_FILE, client_config, own_names, trusted_roots,
};

use super::support::{PATIENCE, Server, skipped};

/// Directories of a server with TLS, and of a client's certificate.
struct Place {
    directory: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let place = Self { directory: tempfile::tempdir().expect("a directory") };
        Identity::open_or_make(&place.path("client"), &["client".to_owned()], "client")
            .expect("made");
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn start(&self, more: &[&str]) -> Server {
        let tls = self.path("tls").display().to_string();
        Server::start(&self.path("data"), &[&["--tls", &tls], more].concat())
    }

    fn certificate(&self) -> PathBuf {
        self.path("tls").join(CERTIFICATE_FILE)
    }

    /// Has clients show the certificate of `client`.
    fn ask_clients(&self) {
        fs::create_dir_all(self.path("tls")).expect("a directory");
        let certificate = self.path("client").join(CERTIFICATE_FILE);
        fs::copy(certificate, self.path("tls").join(CLIENTS_FILE)).expect("copied");
    }
}

/// Runs a tool of Redis with TLS; what it said, and if it succeeded.
fn tool(name: &str, server: &Server, trusted: &Path, more: &[&str]) -> Option<(bool, String)> {
    let port = server.address.port().to_string();
    let mut command = Command::new(name);
    command.args(["-p", &port, "--tls", "--cacert"]).arg(trusted).args(more);
    let output = command.output().ok()?;
    let text = [output.stdout, output.stderr].concat();
    Some((output.status.success(), String::from_utf8_lossy(&text).into_owned()))
}

#[test]
fn tools_of_redis_speak_tls() {
    let place = Place::new();
    let server = place.start(&[]);
    let trusted = place.certificate();
    let Some(said) = tool("redis-cli", &server, &trusted, &["SET", "a", "1"]) else {
        return skipped("redis-cli, of the package redis-tools");
    };
    assert_eq!(said, (true, "OK\n".to_owned()));
    let arguments =
        ["--csv", "-n", "2000", "-c", "20", "-P", "16", "-r", "100", "-t", "set,get,mset"];
    let (ended_well, said) =
        tool("redis-benchmark", &server, &trusted, &arguments).expect("a tool");
    assert!(ended_well && said.contains("\"MSET (10 keys)\","), "{said}");
    // A value of many records, both ways.
    let long = "v".repeat(100_000);
    let (_, said) = tool("redis-cli", &server, &trusted, &["SET", "long", &long]).expect("a tool");
    assert_eq!(said, "OK\n");
    let (_, said) = tool("redis-cli", &server, &trusted, &["GET", "long"]).expect("a tool");
    assert_eq!(said.trim_end(), long);
    // Another certificate is not believed.
    let other = place.path("client").join(CERTIFICATE_FILE);
    let (ended_well, said) = tool("redis-cli", &server, &other, &["GET", "a"]).expect("a tool");
    assert!(!ended_well && said.contains("certificate verify failed"), "{said}");
    // Nor does the server take what is not encrypted.
    let mut plain = TcpStream::connect(server.address).expect("it listens");
    plain.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    plain.write_all(b"PING\r\n").expect("sent");
    let mut said = Vec::new();
    let _ = plain.read_to_end(&mut said);
    assert!(!said.windows(4).any(|word| word == b"PONG"), "{said:?}");
    assert!(server.stop().success());
}

#[test]
fn clients_show_certificates_where_they_are_asked_for() {
    let place = Place::new();
    place.ask_clients();
    let server = place.start(&[]);
    let trusted = place.certificate();
    let Some((ended_well, said)) = tool("redis-cli", &server, &trusted, &["PING"]) else {
        return skipped("redis-cli, of the package redis-tools");
    };
    assert!(!ended_well || !said.contains("PONG"), "{said}");
    let with = |directory: &str| {
        let [certificate, key] = [CERTIFICATE_FILE, KEY_FILE]
            .map(|file| place.path(directory).join(file).display().to_string());
        tool("redis-cli", &server, &trusted, &["--cert", &certificate, "--key", &key, "PING"])
    };
    assert_eq!(with("client"), Some((true, "PONG\n".to_owned())));
    // One that the authorities did not issue: the server's own.
    let (ended_well, said) = with("tls").expect("a tool");
    assert!(!ended_well || !said.contains("PONG"), "{said}");
}

fn load(address: SocketAddr, authorities: &Path, identity: Option<PathBuf>) -> Setup {
    let authorities = fs::read_to_string(authorities).expect("a certificate");
    let name = address.ip().to_string();
    Setup {
        address,
        tls: Some(TargetTls { name, authorities: Some(authorities), identity }),
        password: None,
        threads: 1,
        connections: 4,
        depth: 64,
        pace: Loop::Open { rate: 500.0, arrivals: Arrivals::Uniform },
        warm_up: Duration::ZERO,
        duration: Duration::from_secs(1),
        drain: Duration::from_secs(60),
        probe_rate: 10.0,
        workload: Workload {
            keys: 100,
            key_sizes: Sizes::Uniform(17, 21),
            value_sizes: Sizes::Uniform(1, 100_000),
            popularity: Popularity::Uniform,
            read_share: 0.9,
            write: WriteCommand::Set,
            seed: 1,
        },
    }
}

/// The load generator's requests, with values of several records of TLS, are all answered.
#[test]
fn the_load_generator_speaks_tls() {
    let place = Place::new();
    place.ask_clients();
    let server = place.start(&[]);
    let setup = load(server.address, &place.certificate(), Some(place.path("client")));
    let filled = kv_load::fill(&setup).expect("a run");
    assert_eq!((filled.writes.count, filled.errors), (100, 0));
    let outcome = kv_load::run(&setup).expect("a run");
    let all = outcome.reads.count + outcome.writes.count;
    assert_eq!((all, outcome.errors, outcome.missing, outcome.unanswered), (500, 0, 0, 0));
    assert!(outcome.probe.is_some_and(|probe| probe.count > 0));

    let other = place.path("client").join(CERTIFICATE_FILE);
    let error = kv_load::run(&load(server.address, &other, None)).expect_err("not believed");
    assert!(matches!(error, RunError::Handshake { .. }), "{error}");
    assert!(error.to_string().contains("certificate is not trusted"), "{error}");
    let mut misnamed = setup.clone();
    misnamed.tls.as_mut().expect("it has TLS").name = "elsewhere.example.com".to_owned();
    let error = kv_load::run(&misnamed).expect_err("not believed").to_string();
    assert!(error.contains("and not for elsewhere.example.com"), "{error}");
    let unknown = kv_load::run(&load(server.address, &place.certificate(), None));
    assert!(unknown.is_err(), "it shows no certificate");
}

/// Answers of the metrics' address, to a client that believes `certificate`.
fn http(address: SocketAddr, certificate: &Path, path: &str) -> std::io::Result<String> {
    let trusted = trusted_roots(Some(certificate)).expect("one");
    let config = client_config(trusted, None).expect("no identity");
    let name = "localhost".try_into().expect("a name");
    let tls = ClientConnection::new(Arc::new(config), name).expect("a client");
    let stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut stream = StreamOwned::new(tls, stream);
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text).or_else(|error| match error.kind() {
        std::io::ErrorKind::UnexpectedEof => Ok(0),
        _ => Err(error),
    })?;
    Ok(text)
}

/// Metrics are encrypted, too, and need no certificate of their reader. SIGHUP has both addresses show what lies in the
/// directory then; what cannot be used changes nothing.
#[test]
fn certificates_are_renewed_without_a_restart() {
    let place = Place::new();
    place.ask_clients();
    // Taken and given back, so that it is free; another process could take it in between.
    let free = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("its address");
    let server = place.start(&["--metrics", &free.to_string()]);
    let before = place.path("before.pem");
    fs::copy(place.certificate(), &before).expect("copied");
    assert!(http(free, &before, "/metrics").expect("an answer").contains("farflash_datastore_"));

    let key = place.path("tls").join(KEY_FILE);
    fs::write(&key, "no key").expect("written");
    server.signal("HUP");
    server.line_with("the certificates stay as they were");
    assert!(http(free, &before, "/healthz").expect("an answer").ends_with("ok\n"));

    fs::remove_file(&key).expect("removed");
    fs::remove_file(place.certificate()).expect("removed");
    Identity::open_or_make(&place.path("tls"), &own_names(&[]), "renewed").expect("made");
    server.signal("HUP");
    server.line_with("read again");
    assert!(http(free, &place.certificate(), "/healthz").expect("an answer").ends_with("ok\n"));
    assert!(http(free, &before, "/healthz").is_err());
    let setup = load(server.address, &place.certificate(), Some(place.path("client")));
    assert_eq!(kv_load::fill(&setup).expect("a run").writes.count, 100);
}

/// The parts of a directory that cannot be used are told, each with its file.
#[test]
fn directories_that_cannot_be_used_are_refused() {
    let place = Place::new();
    let tls = place.path("tls");
    fs::create_dir_all(&tls).expect("a directory");
    fs::write(tls.join(KEY_FILE), "no key").expect("written");
    let refused = |part: &str| {
        let path = tls.display().to_string();
        let mut command = super::support::command(&place.path("data"), &["--tls", &path]);
        let output = command.output().expect("it runs");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(1) && said.contains(part), "{said}");
    };
    refused("key.pem is there, but");
    fs::copy(place.path("client").join(CERTIFICATE_FILE), tls.join(CERTIFICATE_FILE))
        .expect("copied");
    refused("no private key in PEM");
    fs::copy(place.path("client").join(KEY_FILE), tls.join(KEY_FILE)).expect("copied");
    fs::write(tls.join(CLIENTS_FILE), "").expect("written");
    refused("clients.pem holds no certificate");
}

/// Has the server show a certificate that ends at a time.
fn put_certificate(place: &Place, begin: SystemTime, end: SystemTime) {
    let key = KeyPair::generate().expect("a key");
    let mut params = CertificateParams::new(own_names(&[])).expect("names");
    params.not_before = begin.into();
    params.not_after = end.into();
    let made = params.self_signed(&key).expect("a certificate");
    fs::create_dir_all(place.path("tls")).expect("a directory");
    fs::write(place.path("tls").join(KEY_FILE), key.serialize_pem()).expect("written");
    fs::write(place.certificate(), made.pem()).expect("written");
}

/// A certificate that expires soon, or has expired, is told in the log and by metrics, and so is the end of that.
#[test]
fn a_certificate_that_expires_is_told_of() {
    const DAY: Duration = Duration::from_secs(86_400);
    let (place, now) = (Place::new(), SystemTime::now());
    put_certificate(&place, now - DAY, now + 3 * DAY);
    let free = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("its address");
    let server = place.start(&["--metrics", &free.to_string()]);
    server.line_with("the certificate of --tls expires on 2");
    let metrics = http(free, &place.certificate(), "/metrics").expect("an answer");
    for metric in ["certificate_refused 0\n", "certificate_expires_soon 1\n"] {
        assert!(metrics.contains(&format!("farflash_datastore_{metric}")), "{metrics}");
    }
    put_certificate(&place, now - 2 * DAY, now - DAY);
    server.signal("HUP");
    server.line_with("the certificate of --tls has expired on 2");
    put_certificate(&place, now - DAY, now + 30 * DAY);
    server.signal("HUP");
    server.line_with("the certificate of --tls is good again");
    let metrics = http(free, &place.certificate(), "/metrics").expect("an answer");
    assert!(metrics.contains("farflash_datastore_certificate_expires_soon 0\n"), "{metrics}");
}

/// Clients that cannot be served are told of once, with the reason: those without TLS where there is TLS, and the reverse.
#[test]
fn clients_of_other_protocols_are_told_of_once() {
    let place = Place::new();
    let servers = [place.start(&[]), Server::start(&place.path("plain"), &[])];
    let hello = [22, 3, 1, 0, 200, 1, 0, 0, 196, 3, 3];
    let said = [
        "no TLS was begun: what the client sent is no TLS",
        "it speaks TLS, and this server has no --tls",
    ];
    for (server, (bytes, said)) in
        servers.into_iter().zip([&b"*1\r\n$4\r\nPING\r\n"[..], &hello].into_iter().zip(said))
    {
        for _ in 0..5 {
            let mut stream = TcpStream::connect(server.address).expect("it listens");
            stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
            stream.write_all(bytes).expect("sent");
            // Until the server has closed it.
            let _ = stream.read_to_end(&mut Vec::new());
        }
        let log = server.stop_and_read();
        let told: Vec<&String> = log.iter().filter(|line| line.contains("was refused")).collect();
        assert!(told.len() == 1 && told[0].contains(said), "{log:#?}");
    }
}
