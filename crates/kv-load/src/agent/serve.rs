//! The agent: waits for coordinators, and makes load for one at a time.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};
use std::thread;
use std::time::{Duration, Instant};

use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use subtle::ConstantTimeEq;
use tls_files::{Clients, Doubt, Identity, ShownCertificate, TlsError, Words};

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
    /// The agent's certificate: coordinators refuse it, or soon will.
    Certificate(Doubt),
    /// Connections cannot be accepted, for this reason, and wait.
    Deaf(io::Error),
    /// The session ended otherwise.
    Ended {
        /// The peer.
        peer: SocketAddr,
        /// The cause.
        cause: String,
    },
}

/// The words of messages about the agent's certificate.
const WORDS: Words = Words {
    name: "the agent's certificate",
    renewal: "put a new one there and start the agent again",
    another: "have another one made, or remove certificate.pem and key.pem, and the agent makes both when it starts",
};

/// An agent.
pub struct Agent {
    tls: Arc<ServerConfig>,
    certificate: Vec<CertificateDer<'static>>,
    token: String,
    on_event: fn(&AgentEvent),
    sessions: AtomicUsize,
    /// The doubt about the certificate that was told last.
    doubt: Mutex<Option<Doubt>>,
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
    /// An agent that shows the certificate of `identity` and works for coordinators that have `token`.
    ///
    /// # Errors
    /// The key is not that of the certificate.
    pub fn new(
        identity: &Identity,
        token: String,
        on_event: fn(&AgentEvent),
    ) -> Result<Arc<Self>, TlsError> {
        Ok(Arc::new(Self {
            tls: Arc::new(identity.server_config(Clients::Unasked)?),
            certificate: identity.chain().to_vec(),
            token,
            on_event,
            sessions: AtomicUsize::new(0),
            doubt: Mutex::default(),
            working: Mutex::new(()),
        }))
    }

    /// Serves coordinators until the process ends.
    pub fn serve(self: &Arc<Self>, listener: &TcpListener) -> ! {
        let mut is_deaf = false;
        self.look_at_certificate(UnixTime::now());
        loop {
            match listener.accept() {
                Ok((stream, peer)) => {
                    is_deaf = false;
                    self.begin(stream, peer);
                }
                Err(error) => {
                    if !std::mem::replace(&mut is_deaf, true) {
                        (self.on_event)(&AgentEvent::Deaf(error));
                    }
                    thread::sleep(ACCEPT_PAUSE);
                }
            }
        }
    }

    /// Tells of the certificate if there is a new doubt about it: at the start, and when a coordinator is about to see it.
    fn look_at_certificate(&self, now: UnixTime) {
        let shown = ShownCertificate { words: WORDS, chain: &self.certificate };
        let doubt = shown.doubt(now);
        let mut told = self.doubt.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(doubt) = doubt.clone().filter(|doubt| told.as_ref() != Some(doubt)) {
            (self.on_event)(&AgentEvent::Certificate(doubt));
        }
        *told = doubt;
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
        self.look_at_certificate(UnixTime::now());
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

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    thread_local! {
        static TOLD: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
    }

    fn tell(event: &AgentEvent) {
        let AgentEvent::Certificate(doubt) = event else { panic!("{event:?}") };
        TOLD.with_borrow_mut(|told| told.push(doubt.text().to_owned()));
    }

    /// Method: the clock of an agent whose certificate ends with the year 9999 goes on.
    #[test]
    fn a_certificate_that_expires_is_told_of_once() {
        const YEAR_9999: u64 = 253_370_764_800;
        let directory = tempfile::tempdir().expect("a directory");
        let names = ["localhost".to_owned()];
        let identity =
            Identity::open_or_make(directory.path(), &names, "test").expect("a certificate");
        let agent = Agent::new(&identity, "token".to_owned(), tell).expect("its key");
        for day in [0, 350, 361, 362, 370, 371] {
            let seconds = YEAR_9999 + day * 86_400;
            agent.look_at_certificate(UnixTime::since_unix_epoch(Duration::from_secs(seconds)));
        }
        let told = TOLD.take();
        let [soon, now] = &told[..] else { panic!("{told:#?}") };
        assert!(soon.starts_with("the agent's certificate expires on 9999-12-31"), "{soon}");
        assert!(now.contains("has expired on") && now.contains("start the agent again"), "{now}");
    }
}
