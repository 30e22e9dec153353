//! The probe: a client that adds no load. One connection, one read at a time.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use resp::Answer;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use crate::connection::{Connection, Encoder, RECEIVE_LEN, RunError};
use crate::drive::{reply_of, timespec, wake_in_time};
use crate::engine::Reply;
use crate::latency::Latencies;
use crate::run::Setup;
use crate::tls::Dialler;
use crate::workload::{Drawer, Kind};

/// Stream of chance for the probe: no thread has it.
const PROBE_STREAM: u64 = u64::MAX;

/// A connection of the probe.
pub(crate) struct Probe<'a> {
    setup: &'a Setup,
    connection: Connection,
}

impl<'a> Probe<'a> {
    /// Connects; `None`: the setup has no probe.
    pub(crate) fn connect(setup: &'a Setup) -> Result<Option<Self>, RunError> {
        if setup.probe_rate <= 0.0 {
            return Ok(None);
        }
        Ok(Some(Self { setup, connection: Dialler::of(setup)?.connect()? }))
    }

    /// Sends a read every period, or when the one before is answered if that is later, and measures those of the window.
    pub(crate) fn go(mut self, start: Instant, stop: &AtomicBool) -> Result<Latencies, RunError> {
        let mut encoder = Encoder::new(&self.setup.workload);
        let mut drawer = Drawer::new(&self.setup.workload, PROBE_STREAM);
        let (window, period) = (self.setup.window(), 1.0 / self.setup.probe_rate);
        std::thread::sleep(start.saturating_duration_since(Instant::now()));
        wake_in_time();
        let mut latencies = Latencies::default();
        let mut due = Duration::ZERO;
        while start.elapsed() < window.end && !stop.load(Ordering::Relaxed) {
            std::thread::sleep(due.saturating_sub(start.elapsed()));
            let begin = start.elapsed();
            due = (due + Duration::from_secs_f64(period)).max(begin);
            let Some((key, _)) = drawer.next() else { break };
            encoder.encode(key, Kind::Read, &mut self.connection.out);
            let Some(reply) = ask(&mut self.connection, start, window.end)? else { break };
            if window.contains(&begin) && reply != Reply::Error {
                latencies.record(start.elapsed() - begin);
            }
        }
        Ok(latencies)
    }
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
        let take = |answer: &Answer, _| reply.replace(reply_of(answer)).is_none();
        connection.receive(&mut [0; RECEIVE_LEN], || start.elapsed(), take)?;
        if reply.is_some() {
            return Ok(reply);
        }
    }
}
