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

/// A round that takes longer than it waits by so much is one in which its thread did not run.
const STALL_MIN: Duration = Duration::from_secs(1);

/// The time for which a thread, its process or its machine did not run.
#[derive(Debug, Default)]
struct Stalls {
    /// The begin of the last round, and the time that it was to wait.
    last: Option<(Duration, Duration)>,
    sum: Duration,
}

impl Stalls {
    /// A round begins.
    fn note(&mut self, now: Duration) {
        if let Some((begin, wait)) = self.last.take() {
            let over = now.saturating_sub(begin + wait);
            self.sum += if over < STALL_MIN { Duration::ZERO } else { over };
        }
    }
}

/// The measurements of a thread.
pub(crate) struct Driven {
    pub(crate) record: Record,
    pub(crate) first_error: Option<String>,
    pub(crate) overloaded: bool,
    /// Share of the time in which the thread wanted the CPU.
    pub(crate) busy: f64,
    /// Time for which the thread did not run though it was to.
    pub(crate) stalled: Duration,
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

/// Drives `engine` from `start` until all is answered, or `give_up`, or `stop`. The server has the time until `give_up` that this
/// thread ran: what it did not is no silence of the server.
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
    let mut stalls = Stalls::default();
    loop {
        let now = start.elapsed();
        stalls.note(now);
        let give_up = give_up + stalls.sum;
        let sent = send(&mut engine, connections, encoder, now)?;
        if engine.is_finished(now) || engine.is_overloaded() || stop.load(Ordering::Relaxed) {
            break;
        }
        let is_over = now >= give_up;
        let until = engine.next_timeout().unwrap_or(give_up).min(give_up);
        let wait = if sent == BURST_MAX || is_over {
            Duration::ZERO
        } else {
            until.saturating_sub(start.elapsed()).min(WAIT_MAX)
        };
        stalls.last = Some((now, wait));
        for index in readable(connections, wait)? {
            let clock = || start.elapsed();
            connections[index].receive(&mut buffer, clock, |answer, now| {
                if answer.kind == AnswerKind::Error && first_error.is_none() {
                    first_error = Some(String::from_utf8_lossy(&answer.text).into_owned());
                }
                engine.on_reply(index, now, reply_of(answer))
            })?;
        }
        // Replies that lay in the sockets while this thread did not run are counted before.
        if is_over {
            break;
        }
    }
    let end = start.elapsed();
    let busy = CpuTime::now().share_since(&cpu, end);
    let overloaded = engine.is_overloaded();
    let stalled = stalls.sum;
    Ok(Driven { record: engine.finish(end), first_error, overloaded, busy, stalled, end })
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

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::thread;

    use super::*;
    use crate::engine::Pace;
    use crate::keys::Popularity;
    use crate::sizes::Sizes;
    use crate::workload::{Drawer, Workload, WriteCommand};

    fn workload() -> Workload {
        Workload {
            keys: 1,
            key_sizes: Sizes::Fixed(20),
            value_sizes: Sizes::Fixed(100),
            popularity: Popularity::Uniform,
            read_share: 1.0,
            write: WriteCommand::Set,
            seed: 1,
        }
    }

    #[test]
    fn time_in_which_a_thread_did_not_run_is_known() {
        let ms = Duration::from_millis;
        let mut stalls = Stalls::default();
        for (now, wait, sum) in
            [(0, 100, 0), (100, 100, 0), (400, 0, 0), (5400, 100, 5000), (6500, 1, 6000)]
        {
            stalls.note(ms(now));
            assert_eq!(stalls.sum, ms(sum), "{now}");
            stalls.last = Some((ms(now), ms(wait)));
        }
    }

    /// A reply that has come is no request without an answer, though its thread runs only after the run's time is over.
    #[test]
    fn replies_that_lie_there_are_read_before_time_is_over() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("bound");
        let server = thread::spawn(move || {
            let (mut client, _) = listener.accept().expect("a client");
            let _ = client.read(&mut [0; 64]).expect("a ping");
            client.write_all(b"+PONG\r\n").expect("room");
            client
        });
        let connection = Connection::open(address, None, None).expect("it answers");
        let mut client = server.join().expect("no panic");
        client.write_all(b"$1\r\nv\r\n").expect("room");
        while connection.stream.peek(&mut [0]).is_err() {
            thread::yield_now();
        }
        let workload = workload();
        let second = Duration::from_secs(1);
        let mut engine =
            Engine::new(Pace::Closed, Drawer::new(&workload, 0), 1, 1, Duration::ZERO..second);
        assert!(engine.poll_send(Duration::ZERO).is_some());
        let (start, stop) = (Instant::now(), AtomicBool::new(false));
        let mut encoder = Encoder::new(&workload);
        let driven = drive(engine, &mut [connection], &mut encoder, (start, Duration::ZERO), &stop);
        let record = driven.expect("no error").record;
        assert_eq!((record.reads.count(), record.unanswered), (1, 0));
    }
}
