//! A load generator that does only what cannot be left out: it waits for its sockets, receives, counts the replies, and sends as
//! many requests again, all of the same bytes.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::{ClockId, clock_gettime};

use super::echo::REPLY;
use crate::cpus;
use crate::null::pin;

const BUFFER_BYTES: usize = 64 << 10;

/// A connection in a closed loop.
struct Connection {
    stream: TcpStream,
    /// Bytes of a reply that is not whole yet.
    partial_bytes: usize,
}

/// Keeps `depth` requests for a key of `key_bytes` outstanding on each connection; returns the requests of a CPU second.
pub(super) fn run(
    address: SocketAddr,
    (connections, depth): (usize, usize),
    key_bytes: usize,
    length: Duration,
) -> Result<f64> {
    pin(cpus::client())?;
    let request = format!("*2\r\n$3\r\nGET\r\n${key_bytes}\r\n{}\r\n", "k".repeat(key_bytes));
    let requests = request.repeat(depth).into_bytes();
    let mut all = Vec::with_capacity(connections);
    for _ in 0..connections {
        let mut stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.write_all(&requests)?;
        stream.set_nonblocking(true)?;
        all.push(Connection { stream, partial_bytes: 0 });
    }
    let (mut buffer, mut done) = (vec![0; BUFFER_BYTES], 0);
    let (begin, used_before) = (Instant::now(), clock_gettime(ClockId::ThreadCPUTime));
    while begin.elapsed() < length {
        let ready: Vec<bool> = {
            let mut polled: Vec<PollFd<'_>> =
                all.iter().map(|it| PollFd::new(&it.stream, PollFlags::IN)).collect();
            poll(&mut polled, None)?;
            polled.iter().map(|it| !it.revents().is_empty()).collect()
        };
        for (connection, _) in all.iter_mut().zip(ready).filter(|(_, is_ready)| *is_ready) {
            let len = match connection.stream.read(&mut buffer) {
                Ok(len) => len,
                Err(error) if error.kind() == ErrorKind::WouldBlock => continue,
                Err(error) => return Err(error.into()),
            };
            ensure!(len > 0, "the server has ended the connection");
            let bytes = connection.partial_bytes + len;
            let replies = bytes / REPLY.len();
            connection.partial_bytes = bytes % REPLY.len();
            // A closed loop has room for them in the socket's buffer.
            connection.stream.write_all(&requests[..replies * request.len()])?;
            done += replies;
        }
    }
    let used = clock_gettime(ClockId::ThreadCPUTime) - used_before;
    Ok(done as f64 / Duration::try_from(used)?.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::datastore::echo;
    use crate::process::free_address;

    #[test]
    fn replies_are_counted_and_requests_sent_again() {
        let address = free_address().expect("a port");
        std::thread::spawn(move || echo::serve(address.port()));
        std::thread::sleep(Duration::from_millis(200));
        for depth in [1, 16] {
            let each_second =
                run(address, (4, depth), 20, Duration::from_millis(200)).expect("a run");
            assert!(each_second > 1000.0, "{each_second}");
        }
    }
}
