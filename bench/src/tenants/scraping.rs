//! A reader of the metrics.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};

/// A text of metrics.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reading {
    pub(super) took_ms: f64,
    pub(super) bytes: usize,
}

/// A reading in the middle of a slice.
pub(super) struct Scraping {
    thread: JoinHandle<Result<Reading>>,
}

impl Scraping {
    /// Reads when half of `length` is over.
    pub(super) fn start(api: SocketAddr, length: Duration) -> Self {
        let thread = std::thread::spawn(move || {
            std::thread::sleep(length / 2);
            read(api)
        });
        Self { thread }
    }

    /// Waits for it.
    pub(super) fn finish(self) -> Result<Reading> {
        self.thread.join().map_err(|_| anyhow!("the thread that reads metrics panicked"))?
    }
}

/// Reads them once.
pub(super) fn read(api: SocketAddr) -> Result<Reading> {
    let begin = Instant::now();
    let mut stream = TcpStream::connect(api)?;
    write!(stream, "GET /metrics HTTP/1.0\r\nHost: {api}\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let took_ms = begin.elapsed().as_secs_f64() * 1e3;
    ensure!(answer.contains("farflash_uptime_seconds "), "no metrics: {answer}");
    Ok(Reading { took_ms, bytes: answer.len() })
}
