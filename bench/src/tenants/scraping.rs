//! Somebody who reads the metrics.

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

/// Readings at equal distances, so that slices of one length have equally many.
pub(super) struct Scraping {
    thread: JoinHandle<Result<Vec<f64>>>,
}

impl Scraping {
    /// Reads `times` within `length` from now on.
    pub(super) fn start(api: SocketAddr, length: Duration, times: u32) -> Self {
        let thread = std::thread::spawn(move || {
            let begin = Instant::now();
            let mut took_ms = Vec::new();
            for number in 0..times {
                // In the middle of its part of the slice.
                let due = length * (2 * number + 1) / (2 * times);
                std::thread::sleep(due.saturating_sub(begin.elapsed()));
                took_ms.push(read(api)?.took_ms);
            }
            Ok(took_ms)
        });
        Self { thread }
    }

    /// Waits for the last; how many milliseconds each took.
    pub(super) fn finish(self) -> Result<Vec<f64>> {
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
