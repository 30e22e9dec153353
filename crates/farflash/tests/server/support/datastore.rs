//! `farflash datastore serve` in a process of its own, and a client for it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Instant;

use super::skipped::skipped;
use super::{PATIENCE, farflash};

/// Returns whether the datastore is built; else the test is skipped, with the reason.
pub fn is_built() -> bool {
    let program = Path::new(env!("CARGO_BIN_EXE_farflash")).with_file_name("farflash-datastore");
    if !program.is_file() {
        skipped("farflash-datastore is not built: `make datastore-test` builds it");
    }
    program.is_file()
}

/// A running datastore, which is killed when it is dropped.
pub struct Datastore {
    child: Child,
    pub address: SocketAddr,
    log: mpsc::Receiver<String>,
}

impl Datastore {
    /// The command line of one on `data`, at a port that the kernel chooses, whose memtables are so small that it flushes
    /// and compacts all the time.
    pub fn command(data: &Path, more: &[&str]) -> Command {
        let mut command = farflash(&["datastore", "serve", "--listen", "127.0.0.1:0"]);
        command.args(["--memory", "16MiB", "--compression", "none", "--data"]).arg(data).args(more);
        command
    }

    /// Starts one, and waits until it serves.
    pub fn start(data: &Path, more: &[&str]) -> Self {
        let mut child = Self::command(data, more).stderr(Stdio::piped()).spawn().unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let (lines, log) = mpsc::channel();
        std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                let _ = lines.send(line);
            }
        });
        let mut started = Self { child, address: ([127, 0, 0, 1], 0).into(), log };
        let line = started.line_with("serving ");
        let address = line.split(" on ").nth(1).and_then(|rest| rest.split(": ").next());
        started.address = address.unwrap().parse().unwrap();
        started
    }

    /// Waits for a line of the log that contains `part`.
    pub fn line_with(&self, part: &str) -> String {
        let deadline = Instant::now() + PATIENCE;
        let mut seen = Vec::new();
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.log.recv_timeout(left) {
                Ok(line) if line.contains(part) => return line,
                Ok(line) => seen.push(line),
                Err(error) => panic!("no line with `{part}` ({error}) among {seen:#?}"),
            }
        }
    }

    pub fn client(&self) -> Client {
        Client::connect(self.address)
    }

    /// SIGKILL, whose effect is not waited for: a thread that waits for the device keeps the process.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
    }

    /// Waits for its end.
    pub fn wait(mut self) {
        self.child.wait().unwrap();
    }
}

impl Drop for Datastore {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A reply.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Reply {
    /// A status, a number, or an error with its `-`.
    Line(String),
    /// A value; `None`: there is none.
    Value(Option<Vec<u8>>),
}

impl Reply {
    /// The text of an error.
    pub fn error(&self) -> Option<&str> {
        match self {
            Self::Line(line) => line.strip_prefix('-'),
            Self::Value(_) => None,
        }
    }
}

/// A connection that waits for replies.
pub struct Client(BufReader<TcpStream>);

impl Client {
    pub fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        Self(BufReader::new(stream))
    }

    /// Sends requests in one piece; false: the server is gone.
    pub fn send(&mut self, requests: &[Vec<Vec<u8>>]) -> bool {
        let mut bytes = Vec::new();
        for request in requests {
            write!(bytes, "*{}\r\n", request.len()).unwrap();
            for word in request {
                write!(bytes, "${}\r\n", word.len()).unwrap();
                bytes.extend_from_slice(word);
                bytes.extend_from_slice(b"\r\n");
            }
        }
        self.0.get_mut().write_all(&bytes).is_ok()
    }

    /// The next reply; `None`: the server closed the connection.
    pub fn reply(&mut self) -> Option<Reply> {
        let mut line = String::new();
        match self.0.read_line(&mut line) {
            Err(error) if error.kind() != std::io::ErrorKind::ConnectionReset => {
                panic!("no reply: {error}")
            }
            Ok(len) if len > 0 && line.ends_with('\n') => {}
            _ => return None,
        }
        let line = line.trim_end();
        let Some(len) = line.strip_prefix('$') else {
            let text = line.trim_start_matches(['+', ':']);
            return Some(Reply::Line(text.to_owned()));
        };
        let Ok(len) = len.parse::<usize>() else { return Some(Reply::Value(None)) };
        let mut value = vec![0; len + 2];
        self.0.read_exact(&mut value).ok()?;
        value.truncate(len);
        Some(Reply::Value(Some(value)))
    }

    /// The reply to a request of words.
    pub fn ask(&mut self, line: &str) -> Reply {
        let words = line.split(' ').map(|word| word.as_bytes().to_vec()).collect();
        assert!(self.send(&[words]), "{line}");
        self.reply().unwrap_or_else(|| panic!("{line}: the server closed the connection"))
    }

    /// A field of `INFO`.
    pub fn info(&mut self, name: &str) -> String {
        let Reply::Value(Some(info)) = self.ask("INFO") else { panic!("no INFO") };
        let info = String::from_utf8(info).unwrap();
        let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.unwrap_or_else(|| panic!("no {name} in {info}")).trim().to_owned()
    }
}
