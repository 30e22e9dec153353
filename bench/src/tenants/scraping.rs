//! Somebody who reads the metrics all the time.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};

/// Pause between two scrapes: a hundred and fifty times as often as Prometheus does by default.
pub(super) const EVERY: Duration = Duration::from_millis(100);

/// Scrapes until it is stopped.
pub(super) struct Scraping {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<Vec<f64>>>,
}

impl Scraping {
    pub(super) fn start(api: SocketAddr) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopping = stop.clone();
        let thread = std::thread::spawn(move || {
            let mut took_ms = Vec::new();
            while !stopping.load(Ordering::Relaxed) {
                let begin = Instant::now();
                scrape(api)?;
                took_ms.push(begin.elapsed().as_secs_f64() * 1e3);
                std::thread::sleep(EVERY);
            }
            Ok(took_ms)
        });
        Self { stop, thread }
    }

    /// Ends it; how many milliseconds each took.
    pub(super) fn stop(self) -> Result<Vec<f64>> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| anyhow!("the thread that scrapes panicked"))?
    }
}

fn scrape(api: SocketAddr) -> Result<()> {
    let mut stream = TcpStream::connect(api)?;
    write!(stream, "GET /metrics HTTP/1.0\r\nHost: {api}\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    ensure!(answer.contains("farflash_"), "no metrics: {answer}");
    Ok(())
}
