//! The coordinator: has agents make the load, and adds up what they measured.

use std::net::{TcpStream, ToSocketAddrs};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};

use super::channel::{Channel, ChannelError, TimedStream};
use super::message::{AGENTS_MAX, FromAgent, Plan, ToAgent, VERSION, cut};
use crate::connection::RunError;
use crate::latency::Latencies;
use crate::outcome::{AgentPart, Outcome, summarise};
use crate::probe::Probe;
use crate::run::{Job, Measured, Part, Setup, filled, joined, spawn};

const CONNECT_TIME: Duration = Duration::from_secs(10);
/// An agent answers a hello, or a question for its clock, within this time.
const ANSWER_TIME: Duration = Duration::from_secs(10);
/// An agent without a sign of life for this long is lost. It gives four in a second.
const ALIVE_TIME: Duration = Duration::from_secs(10);
/// Time between two looks at the fate of the other agents.
const LOOK_PERIOD: Duration = Duration::from_millis(100);
/// An agent is lost after so many looks at which nothing had come. Time in which this process does not run is not the agent's.
const SILENT_LOOKS_MAX: u128 = ALIVE_TIME.as_millis() / LOOK_PERIOD.as_millis();
/// Questions for each agent's clock; the fastest answer counts.
const CLOCK_ROUNDS: u32 = 16;
/// The agents have this long to be told of the start.
const START_DELAY: Duration = Duration::from_millis(500);
/// Histograms of 600 intervals, all of whose buckets are used.
const MEASURED_LEN_MAX: usize = 64 << 20;

/// An agent's address, `HOST:PORT`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct AgentAddress {
    text: String,
    host: String,
}

/// A text that is no address of an agent.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("`{0}` is no address of an agent; write HOST:PORT, such as load-1.example.com:7430")]
pub struct ParseAgentError(String);

impl FromStr for AgentAddress {
    type Err = ParseAgentError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || ParseAgentError(text.to_owned());
        let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let fits = port.parse::<u16>().is_ok_and(|port| port != 0)
            && ServerName::try_from(host.to_owned()).is_ok();
        fits.then(|| Self { text: text.to_owned(), host: host.to_owned() }).ok_or_else(wrong)
    }
}

/// A run by agents that failed.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// An agent failed.
    #[error("agent {agent}: {cause}")]
    Agent {
        /// Its address.
        agent: String,
        /// The cause.
        cause: Cause,
    },
    /// More agents than a run may have.
    #[error("{0} agents are too many; {AGENTS_MAX} are the most")]
    TooMany(usize),
    /// This process failed: its probe, or a thread that it cannot start.
    #[error(transparent)]
    Own(#[from] RunError),
}

/// The failure of an agent.
#[derive(Debug, thiserror::Error)]
pub enum Cause {
    /// No connection.
    #[error("it cannot be connected to: {0}")]
    Connect(std::io::Error),
    /// It does not show a certificate that is believed, or breaks the protocol.
    #[error(transparent)]
    Channel(#[from] ChannelError),
    /// It refuses to work for this coordinator.
    #[error("it refuses: {0}")]
    Refused(String),
    /// It was lost while it worked.
    #[error("it was lost in the middle of the run: {0}")]
    Lost(ChannelError),
    /// It cannot do the work.
    #[error("{0}")]
    Failed(String),
    /// Another one failed first.
    #[error("it was stopped")]
    Stopped,
}

/// Agents, and what shows each side that the other one is right.
#[derive(Clone)]
pub struct Agents {
    /// Their addresses.
    pub addresses: Vec<AgentAddress>,
    /// The secret of coordinators and agents.
    pub token: String,
    /// The authorities of the agents' certificates.
    pub tls: Arc<ClientConfig>,
}

/// The results of a job.
struct Worked {
    /// Measurements by thread of each agent.
    measured: Vec<Measured>,
    /// Parts by agent.
    parts: Vec<AgentPart>,
    /// Latencies of the probe, if there is one.
    probed: Option<Latencies>,
}

impl Agents {
    /// Has the agents put load on the server, measured as by one process. The probe is this process's.
    ///
    /// # Errors
    ///
    /// An agent fails or is lost, or the probe's connection breaks.
    pub fn run(&self, setup: &Setup) -> Result<Outcome, AgentError> {
        let Worked { measured, parts, probed } = self.work(setup, Job::Run)?;
        let outcome = summarise(setup, &measured, probed.as_ref());
        Ok(Outcome { agents: parts, ..outcome })
    }

    /// Has the agents write each key of the workload once.
    ///
    /// # Errors
    ///
    /// See [`Self::run`].
    pub fn fill(&self, setup: &Setup) -> Result<Outcome, AgentError> {
        let setup = Setup { probe_rate: 0.0, ..setup.clone() };
        let Worked { measured, parts, .. } = self.work(&setup, Job::Fill)?;
        let took = measured.iter().map(|measured| measured.end).max().unwrap_or_default();
        let outcome = summarise(&filled(&setup, took), &measured, None);
        Ok(Outcome { agents: parts, ..outcome })
    }

    fn work(&self, setup: &Setup, job: Job) -> Result<Worked, AgentError> {
        let of = self.addresses.len();
        if of > AGENTS_MAX {
            return Err(AgentError::TooMany(of));
        }
        let probe = Probe::connect(setup)?;
        let stop = AtomicBool::new(false);
        let part = |index| Part { index, of };
        let sessions: Vec<(usize, &AgentAddress)> = self.addresses.iter().enumerate().collect();
        // AGENT-2: all are connected before the first is told when to start.
        let mut sessions = together(sessions, &stop, |(index, address)| {
            let plan = Plan { job, part: part(index), setup: setup.clone() };
            Session::prepare(self, address, plan, &stop)
        })?;
        let start = Instant::now() + START_DELAY;
        for session in &mut sessions {
            session.start_at(start)?;
        }
        let (measured, probed) = thread::scope(|scope| {
            let probing = probe.map(|probe| spawn(scope, &stop, || probe.go(start, &stop)));
            let probing = probing.transpose()?;
            let measured = together(sessions, &stop, |session| session.measured(&stop));
            // A failure of the probe stops the agents: it comes first.
            let probed = probing.map(joined).transpose()?;
            Ok::<_, AgentError>((measured?, probed))
        })?;
        let (measured, parts) = measured.into_iter().unzip();
        Ok(Worked { measured, parts, probed })
    }
}

/// Does `work` with all of `inputs` at the same time. If one fails, `stop` ends the others, and its error is that of all.
fn together<I: Send, T: Send>(
    inputs: Vec<I>,
    stop: &AtomicBool,
    work: impl Fn(I) -> Result<T, AgentError> + Sync,
) -> Result<Vec<T>, AgentError> {
    let work = &work;
    thread::scope(|scope| {
        let begin = |input| {
            thread::Builder::new()
                .spawn_scoped(scope, move || {
                    let done = work(input);
                    if done.is_err() {
                        stop.store(true, Ordering::Relaxed);
                    }
                    done
                })
                .map_err(|error| {
                    stop.store(true, Ordering::Relaxed);
                    AgentError::Own(RunError::System(error))
                })
        };
        let handles: Vec<_> = inputs.into_iter().map(begin).collect();
        let results = handles
            .into_iter()
            .map(|handle| handle?.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        let (done, mut errors): (Vec<_>, Vec<_>) = results.partition(Result::is_ok);
        let is_first = |error: &Result<T, AgentError>| {
            !matches!(error, Err(AgentError::Agent { cause: Cause::Stopped, .. }))
        };
        match errors.iter().position(is_first).or(errors.first().map(|_| 0)) {
            Some(index) => errors.swap_remove(index).map(|done| vec![done]),
            None => done.into_iter().collect(),
        }
    })
}

/// An agent that has its plan.
struct Session {
    agent: String,
    channel: Channel,
    clock: AgentClock,
}

impl Session {
    /// Connects to an agent, and has it connect to the server.
    fn prepare(
        agents: &Agents,
        address: &AgentAddress,
        plan: Plan,
        stop: &AtomicBool,
    ) -> Result<Self, AgentError> {
        let agent = address.text.clone();
        let failed = |cause| AgentError::Agent { agent: agent.clone(), cause };
        let mut channel = connect(agents, address).map_err(failed)?;
        let clock = greet(&mut channel, &agents.token).map_err(failed)?;
        let connected = (|| {
            channel.send(&ToAgent::Plan(Box::new(plan)))?;
            match answer(&mut channel, stop)? {
                FromAgent::Connected {} => Ok(()),
                _ => Err(ChannelError::OutOfTurn.into()),
            }
        })();
        connected.map_err(failed)?;
        Ok(Self { agent, channel, clock })
    }

    fn start_at(&mut self, start: Instant) -> Result<(), AgentError> {
        let at_ns = self.clock.at(start);
        let sent = self.channel.send(&ToAgent::Start { at_ns });
        sent.map_err(|error| self.failed(Cause::Lost(error)))
    }

    fn failed(&self, cause: Cause) -> AgentError {
        AgentError::Agent { agent: self.agent.clone(), cause }
    }

    /// Waits for the end of the run.
    fn measured(mut self, stop: &AtomicBool) -> Result<(Measured, AgentPart), AgentError> {
        let answered = match answer(&mut self.channel, stop) {
            Err(Cause::Channel(error)) => Err(Cause::Lost(error)),
            answered => answered,
        };
        let measured = match answered.map_err(|cause| self.failed(cause))? {
            FromAgent::Measured(measurements) => measurements.measured(),
            _ => return Err(self.failed(ChannelError::OutOfTurn.into())),
        };
        let measured =
            measured.map_err(|error| self.failed(ChannelError::Message(error).into()))?;
        let record = &measured.record;
        let part = AgentPart {
            requests: record.reads.count() + record.writes.count() + record.errors,
            busiest_thread: measured.busiest,
            start_error_ns: self.clock.error_ns,
            agent: self.agent,
        };
        Ok((measured, part))
    }
}

fn connect(agents: &Agents, address: &AgentAddress) -> Result<Channel, Cause> {
    let stream = connect_tcp(address).map_err(Cause::Connect)?;
    let broken = |error| Cause::Channel(ChannelError::Broken(error));
    let name = ServerName::try_from(address.host.clone());
    let name = name.map_err(|error| broken(std::io::Error::other(error)))?;
    let tls = ClientConnection::new(Arc::clone(&agents.tls), name);
    let tls = tls.map_err(|error| broken(std::io::Error::other(error)))?;
    let stream = TimedStream::new(stream).map_err(broken)?;
    Ok(Channel::new(Box::new(StreamOwned::new(tls, stream)), MEASURED_LEN_MAX))
}

fn connect_tcp(address: &AgentAddress) -> std::io::Result<TcpStream> {
    let mut last = std::io::ErrorKind::NotFound.into();
    for address in address.text.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, CONNECT_TIME) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Shows the token and reads the agent's clock.
fn greet(channel: &mut Channel, token: &str) -> Result<AgentClock, Cause> {
    channel.send(&ToAgent::Hello { version: VERSION, token: token.to_owned() })?;
    match channel.receive(ANSWER_TIME)? {
        FromAgent::Welcome {} => {}
        FromAgent::Refused { reason } => return Err(Cause::Refused(cut(&reason))),
        _ => return Err(ChannelError::OutOfTurn.into()),
    }
    let base = Instant::now();
    let mut best: Option<AgentClock> = None;
    for _ in 0..CLOCK_ROUNDS {
        let asked = base.elapsed();
        channel.send(&ToAgent::Clock {})?;
        let FromAgent::Clock { ns } = channel.receive(ANSWER_TIME)? else {
            return Err(ChannelError::OutOfTurn.into());
        };
        let clock = AgentClock::of(base, (asked, base.elapsed()), ns);
        if best.as_ref().is_none_or(|best| clock.error_ns < best.error_ns) {
            best = Some(clock);
        }
    }
    best.ok_or(Cause::Stopped)
}

/// Waits for a message other than a sign of life.
fn answer(channel: &mut Channel, stop: &AtomicBool) -> Result<FromAgent, Cause> {
    let mut silent_looks = 0;
    loop {
        match channel.poll(LOOK_PERIOD)? {
            Some(FromAgent::Alive {}) => silent_looks = 0,
            Some(FromAgent::Failed { error }) => return Err(Cause::Failed(cut(&error))),
            Some(message) => return Ok(message),
            None if silent_looks >= SILENT_LOOKS_MAX => {
                return Err(ChannelError::Silent(ALIVE_TIME).into());
            }
            None => silent_looks += 1,
        }
        if stop.load(Ordering::Relaxed) {
            return Err(Cause::Stopped);
        }
    }
}

/// An agent's clock, as far as it can be known from here.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct AgentClock {
    /// A time here, and the agent's time then.
    here: Instant,
    there_ns: u64,
    /// The agent's time is off by at most this.
    error_ns: u64,
}

impl AgentClock {
    /// The agent said `there_ns` at a time between `asked` and `answered` after `base`, as likely early as late.
    fn of(base: Instant, (asked, answered): (Duration, Duration), there_ns: u64) -> Self {
        let half = answered.saturating_sub(asked) / 2;
        let error_ns = u64::try_from(half.as_nanos()).unwrap_or(u64::MAX);
        Self { here: base + asked + half, there_ns, error_ns }
    }

    /// The agent's time at `at`.
    fn at(&self, at: Instant) -> u64 {
        let since = at.saturating_duration_since(self.here);
        self.there_ns.saturating_add(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_nonsense_is_refused() {
        for (text, host) in
            [("load-1:7430", "load-1"), ("192.0.2.1:1", "192.0.2.1"), ("[::1]:7430", "::1")]
        {
            assert_eq!(
                text.parse::<AgentAddress>().map(|address| address.host),
                Ok(host.to_owned())
            );
        }
        for text in ["", "load-1", "load-1:", "load-1:0", ":7430", "a b:1", "load-1:99999"] {
            assert!(text.parse::<AgentAddress>().is_err(), "{text}");
        }
    }

    /// AGENT-2: whatever part of a round trip was the way there, the start is off by its half at most.
    #[test]
    fn a_start_is_off_by_half_of_a_round_trip_at_most() {
        let base = Instant::now();
        let ms = Duration::from_millis;
        let trip = ms(8);
        for there in 0..=8 {
            // The agent's clock was 5 s when `base` was.
            let (asked, read) = (ms(100), ms(100 + there));
            let clock =
                AgentClock::of(base, (asked, asked + trip), (ms(5000) + read).as_nanos() as u64);
            assert_eq!(clock.error_ns, 4_000_000);
            let told = clock.at(base + ms(700)) as i64;
            assert!((told - 5_700_000_000).abs() <= 4_000_000, "{there} ms there: {told}");
        }
    }
}
