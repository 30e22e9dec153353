//! The probe: a client that adds no load. One connection, one read at a time.

use std::ops::Range;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use crate::connection::{Connection, Encoder, RunError};
use crate::drive::{reply_of, timespec, wake_in_time};
use crate::engine::Reply;
use crate::latency::Latencies;
use crate::workload::{Drawer, Kind};

/// Sends a read every `period`, or when the one before is answered if that is later, and measures those of `window`.
pub(crate) fn probe(
    connection: &mut Connection,
    encoder: &mut Encoder,
    mut drawer: Drawer,
    start: Instant,
    period: Duration,
    window: &Range<Duration>,
) -> Result<Latencies, RunError> {
    wake_in_time();
    let mut latencies = Latencies::default();
    let mut due = Duration::ZERO;
    while start.elapsed() < window.end {
        std::thread::sleep(due.saturating_sub(start.elapsed()));
        let begin = start.elapsed();
        due = (due + period).max(begin);
        let Some((key, _)) = drawer.next() else { break };
        encoder.encode(key, Kind::Read, &mut connection.out);
        let Some(reply) = ask(connection, start, window.end)? else { break };
        if window.contains(&begin) && reply != Reply::Error {
            latencies.record(start.elapsed() - begin);
        }
    }
    Ok(latencies)
}

/// Sends what is encoded, and waits for one reply; `None`: the time is over.
fn ask(
    connection: &mut Connection,
    start: Instant,
    until: Duration,
) -> Result<Option<Reply>, RunError> {
    loop {
        connection.send()?;
        let left = until.saturating_sub(start.elapsed());
        if left.is_zero() {
            return Ok(None);
        }
        let flags =
            if connection.wants_to_send() { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
        match poll(&mut [PollFd::new(&connection.stream, flags)], Some(&timespec(left))) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(RunError::System(error.into())),
        }
        let mut reply = None;
        connection.receive(|answer| reply.replace(reply_of(answer)).is_none())?;
        if reply.is_some() {
            return Ok(reply);
        }
    }
}
