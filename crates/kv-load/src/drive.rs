//! A thread of the load: its connections, moved by the engine and the clock.

use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use resp::{Answer, AnswerKind};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::connection::{Connection, Encoder, RECEIVE_LEN, RunError};
use crate::cpu::CpuTime;
use crate::engine::{Engine, Record, Reply};

/// A thread looks at its sockets again after this many requests that it sent.
const BURST_MAX: usize = 256;
/// A thread looks this often at least if it is to stop.
const WAIT_MAX: Duration = Duration::from_millis(100);

/// The measurements of a thread.
pub(crate) struct Driven {
    pub(crate) record: Record,
    pub(crate) first_error: Option<String>,
    pub(crate) overloaded: bool,
    /// Share of the time in which the thread wanted the CPU.
    pub(crate) busy: f64,
    /// The end, since the start of the run.
    pub(crate) end: Duration,
}

/// Lets the kernel wake this thread when it asked for it, not up to 50 µs later.
pub(crate) fn wake_in_time() {
    // If it is refused, requests leave a little later, and the lateness that is reported shows it.
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
}

pub(crate) fn timespec(time: Duration) -> Timespec {
    Timespec { tv_sec: time.as_secs() as i64, tv_nsec: i64::from(time.subsec_nanos()) }
}

/// Classifies a reply.
pub(crate) fn reply_of(answer: &Answer) -> Reply {
    match answer.kind {
        AnswerKind::Error => Reply::Error,
        AnswerKind::Null => Reply::Missing,
        _ => Reply::Done,
    }
}

/// Drives `engine` from `start` until all is answered, or `give_up`, or `stop`.
pub(crate) fn drive(
    mut engine: Engine,
    connections: &mut [Connection],
    encoder: &mut Encoder,
    (start, give_up): (Instant, Duration),
    stop: &AtomicBool,
) -> Result<Driven, RunError> {
    wake_in_time();
    let cpu = CpuTime::now();
    let mut first_error = None;
    let mut buffer = vec![0; RECEIVE_LEN];
    loop {
        let now = start.elapsed();
        let sent = send(&mut engine, connections, encoder, now)?;
        if engine.is_finished(now) || engine.is_overloaded() || now >= give_up {
            break;
        }
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let until = engine.next_timeout().unwrap_or(give_up).min(give_up);
        let wait = if sent == BURST_MAX {
            Duration::ZERO
        } else {
            until.saturating_sub(start.elapsed()).min(WAIT_MAX)
        };
        for index in readable(connections, wait)? {
            let clock = || start.elapsed();
            connections[index].receive(&mut buffer, clock, |answer, now| {
                if answer.kind == AnswerKind::Error && first_error.is_none() {
                    first_error = Some(String::from_utf8_lossy(&answer.text).into_owned());
                }
                engine.on_reply(index, now, reply_of(answer))
            })?;
        }
    }
    let end = start.elapsed();
    let busy = CpuTime::now().share_since(&cpu, end);
    let overloaded = engine.is_overloaded();
    Ok(Driven { record: engine.finish(end), first_error, overloaded, busy, end })
}

/// Sends what is due, up to a burst; returns the number of requests.
fn send(
    engine: &mut Engine,
    connections: &mut [Connection],
    encoder: &mut Encoder,
    now: Duration,
) -> Result<usize, RunError> {
    let mut count = 0;
    while count < BURST_MAX
        && let Some((index, to_send)) = engine.poll_send(now)
    {
        encoder.encode(to_send.key, to_send.kind, &mut connections[index].out);
        count += 1;
    }
    connections.iter_mut().try_for_each(Connection::send)?;
    Ok(count)
}

/// Waits until a socket can be read, or written if that is wanted; returns those that can be read.
fn readable(connections: &[Connection], wait: Duration) -> Result<Vec<usize>, RunError> {
    let flags = |connection: &Connection| {
        if connection.wants_to_send() { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN }
    };
    let mut sockets: Vec<_> = connections
        .iter()
        .map(|connection| PollFd::new(&connection.stream, flags(connection)))
        .collect();
    match poll(&mut sockets, Some(&timespec(wait))) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(error) => return Err(RunError::System(error.into())),
    }
    let is_readable = |socket: &PollFd<'_>| !(socket.revents() - PollFlags::OUT).is_empty();
    Ok(sockets
        .iter()
        .enumerate()
        .filter(|(_, socket)| is_readable(socket))
        .map(|(index, _)| index)
        .collect())
}
