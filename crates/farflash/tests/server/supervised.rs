//! Notifications of a real server to its service manager.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixDatagram;
use std::process::{Child, Stdio};

use crate::support::{Files, PATIENCE, farflash, own_host};
use rustix::process::{Pid, Signal, kill_process};
use rustix::time::{ClockId, clock_gettime};

/// A process that ends with this.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn heard(manager: &UnixDatagram) -> String {
    let mut bytes = [0; 64];
    let len = manager.recv(&mut bytes).expect("it is told");
    String::from_utf8(bytes[..len].trim_ascii_end().to_vec()).unwrap()
}

fn monotonic_micros() -> i64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec * 1_000_000 + now.tv_nsec / 1000
}

/// The manager hears nothing before hosts and API are answered, then that it is ready, that it reads again what it can and is
/// done with that, and in the end that it stops.
///
/// Method: another process has the portal's port until the server was seen to wait for it.
#[test]
fn a_server_is_ready_when_it_serves() {
    let files = Files::new();
    let socket = files.path("notify");
    let manager = UnixDatagram::bind(&socket).unwrap();
    manager.set_read_timeout(Some(PATIENCE)).unwrap();
    let taken = TcpListener::bind((own_host(), 0)).unwrap();
    let portal = taken.local_addr().unwrap();
    let listen = portal.to_string();
    let words = ["serve", "--device", "mem:64MiB", "--listen", &listen, "--api", "127.0.0.1:0"];
    let mut command = farflash(&[&words[..], &["--discovery", "off", "--log-json"]].concat());
    command.env("NOTIFY_SOCKET", &socket).stderr(Stdio::piped());
    let mut server = Running(command.spawn().unwrap());
    let mut log = BufReader::new(server.0.stderr.take().unwrap()).lines().map(|line| {
        serde_json::from_str::<serde_json::Value>(&line.unwrap()).unwrap()["fields"].take()
    });
    let says = |line: &serde_json::Value, what: &str| {
        line["message"].as_str().is_some_and(|message| message.starts_with(what))
    };
    log.find(|line| says(line, "waiting for")).expect("the port is not free");
    manager.set_nonblocking(true).unwrap();
    let silence = manager.recv(&mut [0; 64]).expect_err("it does not serve yet").kind();
    assert_eq!(silence, ErrorKind::WouldBlock);
    manager.set_nonblocking(false).unwrap();
    drop(taken);

    assert_eq!(heard(&manager), "READY=1");
    TcpStream::connect(portal).expect("hosts are let in");
    let ready = log.find(|line| says(line, "ready")).expect("it is");
    let api = ready["api"].as_str().unwrap().strip_prefix("http://").unwrap();
    let mut asked = TcpStream::connect(api).unwrap();
    asked.write_all(b"GET /readyz HTTP/1.0\r\n\r\n").unwrap();
    let mut answer = String::new();
    asked.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.0 200"), "{answer}");

    let before = monotonic_micros();
    kill_process(Pid::from_child(&server.0), Signal::HUP).unwrap();
    let reloading = heard(&manager);
    let since = reloading.strip_prefix("RELOADING=1\nMONOTONIC_USEC=").expect("it is told");
    assert!((before..=monotonic_micros()).contains(&since.parse().unwrap()), "{since}");
    assert_eq!(heard(&manager), "READY=1");
    log.find(|line| says(line, "SIGHUP: read again")).expect("it has read");

    kill_process(Pid::from_child(&server.0), Signal::TERM).unwrap();
    assert_eq!(heard(&manager), "STOPPING=1");
    // So that nothing that it says still waits for a reader.
    log.for_each(drop);
    assert_eq!(server.0.wait().unwrap().code(), Some(0));
}
