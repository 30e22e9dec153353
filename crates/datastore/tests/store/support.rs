//! A server in a process of its own, and a client for it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};

use redis_protocol::resp2::decode::decode;
pub(crate) use redis_protocol::resp2::types::OwnedFrame as Frame;
use resp::encode_request;
pub(crate) use test_support::skipped::skipped;
pub(crate) use test_support::waiting::PATIENCE;

/// A running server, which is killed when it is dropped.
pub(crate) struct Server {
    child: Child,
    pub(crate) address: SocketAddr,
    log: Receiver<String>,
}

/// The command line of a server on `data`, at a port that the kernel chooses.
pub(crate) fn command(data: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_farflash-datastore"));
    command.args(["serve", "--listen", "127.0.0.1:0", "--memory", "16MiB", "--data"]).arg(data);
    command.args(arguments);
    command
}

impl Server {
    pub(crate) fn start(data: &Path, arguments: &[&str]) -> Self {
        Self::spawn(&mut command(data, arguments))
    }

    /// Starts one by a command that becomes it.
    pub(crate) fn spawn(command: &mut Command) -> Self {
        let mut child = command.stderr(Stdio::piped()).spawn().expect("the server starts");
        let stderr = BufReader::new(child.stderr.take().expect("a pipe"));
        let (lines, log) = channel();
        std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                let _ = lines.send(line);
            }
        });
        let mut server = Self { child, address: "127.0.0.1:0".parse().expect("an address"), log };
        let line = server.line_with("serving ");
        let address = line.split(" on ").nth(1).and_then(|rest| rest.split(": ").next());
        server.address = address.and_then(|text| text.parse().ok()).expect("an address in the log");
        server
    }

    /// Waits for a line of the log that contains `part`.
    pub(crate) fn line_with(&self, part: &str) -> String {
        let mut seen = Vec::new();
        loop {
            match self.log.recv_timeout(PATIENCE) {
                Ok(line) if line.contains(part) => return line,
                Ok(line) => seen.push(line),
                Err(error) => panic!("no line with `{part}` ({error}) among {seen:#?}"),
            }
        }
    }

    pub(crate) fn client(&self) -> Client {
        Client::connect(self.address)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal, by its name.
    pub(crate) fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        let sent = Command::new("kill").args(["-s", name, &pid]).status();
        assert!(sent.expect("kill runs").success());
    }

    /// SIGKILL.
    pub(crate) fn kill(mut self) {
        self.child.kill().expect("it runs");
        self.child.wait().expect("it ends");
    }

    /// SIGTERM; returns the lines of the log that no test has waited for.
    pub(crate) fn stop_and_read(mut self) -> Vec<String> {
        self.signal("TERM");
        self.child.wait().expect("it ends");
        std::iter::from_fn(|| self.log.recv_timeout(PATIENCE).ok()).collect()
    }

    /// SIGTERM.
    pub(crate) fn stop(mut self) -> ExitStatus {
        self.signal("TERM");
        self.child.wait().expect("it ends")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A connection that waits for each reply.
pub(crate) struct Client {
    stream: TcpStream,
    received: Vec<u8>,
}

impl Client {
    pub(crate) fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).expect("the server accepts");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        Self { stream, received: Vec::new() }
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.stream.write_all(bytes)
    }

    /// The next reply; `None`: the server closed the connection.
    pub(crate) fn reply(&mut self) -> Option<Frame> {
        loop {
            if let Some((frame, len)) = decode(&self.received).expect("replies are RESP2") {
                self.received.drain(..len);
                return Some(frame);
            }
            let mut buffer = [0; 4096];
            match self.stream.read(&mut buffer) {
                Ok(0) => return None,
                Ok(len) => self.received.extend_from_slice(&buffer[..len]),
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("no reply: {error}"),
            }
        }
    }

    pub(crate) fn ask(&mut self, arguments: &[&[u8]]) -> Frame {
        let mut bytes = Vec::new();
        encode_request(&mut bytes, arguments);
        self.send(&bytes).expect("the server takes it");
        self.reply().expect("a reply")
    }

    /// The reply to words, as text: an error with its `-`.
    pub(crate) fn text(&mut self, line: &str) -> String {
        let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        text(&self.ask(&words))
    }

    /// A number of `INFO`.
    pub(crate) fn info(&mut self, name: &str) -> f64 {
        let info = self.text("INFO");
        let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.and_then(|value| value.trim().parse().ok())
            .unwrap_or_else(|| panic!("no {name} in {info}"))
    }
}

pub(crate) fn text(frame: &Frame) -> String {
    match frame {
        Frame::SimpleString(bytes) | Frame::BulkString(bytes) => {
            String::from_utf8_lossy(bytes).into_owned()
        }
        Frame::Error(text) => format!("-{text}"),
        Frame::Integer(number) => number.to_string(),
        Frame::Null => "null".to_owned(),
        Frame::Array(frames) => {
            format!("[{}]", frames.iter().map(text).collect::<Vec<_>>().join(" "))
        }
    }
}
