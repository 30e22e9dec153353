//! The agent: waits for coordinators, and makes load for one at a time.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};
use std::thread;
use std::time::{Duration, Instant};

use rustls::{ServerConfig, ServerConnection, StreamOwned};
use subtle::ConstantTimeEq;

use super::channel::{Channel, ChannelError, TimedStream};
use super::message::{FromAgent, Plan, ToAgent, VERSION, cut};
use crate::connection::RunError;
use crate::run::Ready;

/// Connections at a time, of which one is the coordinator's.
const SESSIONS_MAX: usize = 16;
/// A peer has this long for TLS and its hello (AGENT-1).
const HELLO_TIME: Duration = Duration::from_secs(10);
const HELLO_LEN_MAX: usize = 4 << 10;
/// A connection waits this long after a wrong token.
const PENALTY: Duration = Duration::from_secs(1);
/// A coordinator has this long for its plan, and to start: other agents may take long to connect.
const PLAN_TIME: Duration = Duration::from_secs(60);
const START_TIME: Duration = Duration::from_secs(30 * 60);
/// With the certificates of authorities.
const PLAN_LEN_MAX: usize = 2 << 20;
/// Time between two signs of life.
const ALIVE_PERIOD: Duration = Duration::from_millis(250);
/// The start is at most so far away.
const START_AHEAD_MAX: Duration = Duration::from_secs(60);
/// Pause after `accept` failed, so that a lack of file descriptors does not take the whole CPU.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// An event that the agent's operator is told of.
#[derive(Debug)]
pub enum AgentEvent {
    /// A coordinator has given a plan.
    Begun {
        /// The coordinator.
        peer: SocketAddr,
        /// The server that is loaded.
        target: SocketAddr,
    },
    /// The plan is carried out, and the measurements are sent.
    Done {
        /// The coordinator.
        peer: SocketAddr,
    },
    /// The session ended otherwise.
    Ended {
        /// The peer.
        peer: SocketAddr,
        /// The cause.
        cause: String,
    },
}

/// An agent.
pub struct Agent {
    tls: Arc<ServerConfig>,
    token: String,
    on_event: fn(&AgentEvent),
    sessions: AtomicUsize,
    /// Held by the session whose load is made.
    working: Mutex<()>,
}

/// A session that counts among those of its agent until it is dropped.
struct Counted(Arc<Agent>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.sessions.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The end of a session, for the operator.
#[derive(Debug, thiserror::Error)]
enum SessionError {
    #[error(transparent)]
    Channel(#[from] ChannelError),
    #[error("refused: {0}")]
    Refused(String),
    #[error("{0}")]
    Failed(String),
}

impl Agent {
    /// An agent that shows the certificate of `tls` and works for coordinators that have `token`.
    #[must_use]
    pub fn new(tls: ServerConfig, token: String, on_event: fn(&AgentEvent)) -> Arc<Self> {
        let (tls, sessions, working) = (Arc::new(tls), AtomicUsize::new(0), Mutex::new(()));
        Arc::new(Self { tls, token, on_event, sessions, working })
    }

    /// Serves coordinators until the process ends.
    pub fn serve(self: &Arc<Self>, listener: &TcpListener) -> ! {
        loop {
            match listener.accept() {
                Ok((stream, peer)) => self.begin(stream, peer),
                Err(_) => thread::sleep(ACCEPT_PAUSE),
            }
        }
    }

    fn begin(self: &Arc<Self>, stream: TcpStream, peer: SocketAddr) {
        if self.sessions.fetch_add(1, Ordering::Relaxed) >= SESSIONS_MAX {
            self.sessions.fetch_sub(1, Ordering::Relaxed);
            return;
        }
        let counted = Counted(Arc::clone(self));
        let session = move || {
            let agent = &counted.0;
            if let Err(error) = agent.session(stream, peer) {
                (agent.on_event)(&AgentEvent::Ended { peer, cause: error.to_string() });
            }
        };
        // Without a thread the connection is closed, as one that is too many.
        let _ = thread::Builder::new().name("session".to_owned()).spawn(session);
    }

    fn session(&self, stream: TcpStream, peer: SocketAddr) -> Result<(), SessionError> {
        let tls = ServerConnection::new(Arc::clone(&self.tls)).map_err(io::Error::other);
        let tls = tls.map_err(ChannelError::Broken)?;
        let stream = TimedStream::new(stream).map_err(ChannelError::Broken)?;
        let mut channel = Channel::new(Box::new(StreamOwned::new(tls, stream)), HELLO_LEN_MAX);
        self.authenticate(&mut channel)?;
        let _working = match self.working.try_lock() {
            Ok(working) => working,
            // The lock guards no state that a panic could leave half done.
            Err(TryLockError::Poisoned(poisoned)) => PoisonError::into_inner(poisoned),
            Err(TryLockError::WouldBlock) => {
                return refuse(&mut channel, "it works for another coordinator");
            }
        };
        channel.set_max(PLAN_LEN_MAX);
        channel.send(&FromAgent::Welcome {})?;
        let epoch = Instant::now();
        let plan = receive_plan(&mut channel, epoch)?;
        (self.on_event)(&AgentEvent::Begun { peer, target: plan.setup.address });
        work(&mut channel, &plan, epoch)?;
        (self.on_event)(&AgentEvent::Done { peer });
        Ok(())
    }

    fn authenticate(&self, channel: &mut Channel) -> Result<(), SessionError> {
        let ToAgent::Hello { version, token } = channel.receive(HELLO_TIME)? else {
            return Err(ChannelError::OutOfTurn.into());
        };
        // Takes the same time for any wrong token of the right length.
        if !bool::from(self.token.as_bytes().ct_eq(token.as_bytes())) {
            thread::sleep(PENALTY);
            return refuse(channel, "the token is wrong");
        }
        if version != VERSION {
            return refuse(channel, &format!("it speaks version {VERSION}, and not {version}"));
        }
        Ok(())
    }
}

fn refuse(channel: &mut Channel, reason: &str) -> Result<(), SessionError> {
    channel.send(&FromAgent::Refused { reason: reason.to_owned() })?;
    Err(SessionError::Refused(reason.to_owned()))
}

/// Tells the coordinator of a failure, and ends the session with it.
fn fail<T>(channel: &mut Channel, error: &dyn std::fmt::Display) -> Result<T, SessionError> {
    let error = cut(&error.to_string());
    channel.send(&FromAgent::Failed { error: error.clone() })?;
    Err(SessionError::Failed(error))
}

/// Tells the time until the plan comes.
fn receive_plan(channel: &mut Channel, epoch: Instant) -> Result<Plan, SessionError> {
    let until = Instant::now() + PLAN_TIME;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        match channel.receive(left) {
            Ok(ToAgent::Clock {}) => channel.send(&FromAgent::Clock { ns: nanos_since(epoch) })?,
            Ok(ToAgent::Plan(plan)) => return Ok(*plan),
            Ok(_) => return Err(ChannelError::OutOfTurn.into()),
            Err(ChannelError::Message(error)) => return fail(channel, &error),
            Err(error) => return Err(error.into()),
        }
    }
}

fn nanos_since(epoch: Instant) -> u64 {
    u64::try_from(epoch.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// Connects, starts at the time that the coordinator says, and sends what was measured.
fn work(channel: &mut Channel, plan: &Plan, epoch: Instant) -> Result<(), SessionError> {
    let Plan { job, part, setup } = plan;
    let ready = attended(channel, |_| Ready::connect(setup, *job, *part))?;
    let ready = match ready {
        Ok(ready) => ready,
        Err(error) => return fail(channel, &error),
    };
    channel.send(&FromAgent::Connected {})?;
    let ToAgent::Start { at_ns } = channel.receive(START_TIME)? else {
        return Err(ChannelError::OutOfTurn.into());
    };
    let ahead = Duration::from_nanos(at_ns.saturating_sub(nanos_since(epoch)));
    if ahead.is_zero() {
        return fail(channel, &"the start was over when the agent was told of it");
    }
    if ahead > START_AHEAD_MAX {
        return fail(channel, &"the start is too far away");
    }
    let start = epoch + Duration::from_nanos(at_ns);
    match attended(channel, |stop| ready.go(start, stop))? {
        Ok(measured) => {
            channel.send(&FromAgent::Measured(Box::new((&measured).into())))?;
            Ok(())
        }
        Err(error) => fail(channel, &error),
    }
}

/// Does some work, gives signs of life meanwhile, and stops if the coordinator is gone (AGENT-4).
fn attended<T: Send>(
    channel: &mut Channel,
    work: impl FnOnce(&AtomicBool) -> Result<T, RunError> + Send,
) -> Result<Result<T, RunError>, ChannelError> {
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let worker = thread::Builder::new().spawn_scoped(scope, || work(&stop));
        let worker = match worker {
            Ok(worker) => worker,
            Err(error) => return Ok(Err(RunError::System(error))),
        };
        while !worker.is_finished() {
            let heard =
                channel.send(&FromAgent::Alive {}).and_then(|()| channel.poll(ALIVE_PERIOD));
            let heard: Result<Option<ToAgent>, ChannelError> = heard;
            let trouble = match heard {
                Ok(None) => continue,
                Ok(Some(_)) => ChannelError::OutOfTurn,
                Err(error) => error,
            };
            stop.store(true, Ordering::Relaxed);
            return Err(trouble);
        }
        Ok(worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })
}
