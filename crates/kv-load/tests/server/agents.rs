//! Agents and their coordinator, in one process, over real sockets.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use kv_load::{Agent, AgentError, Agents, Cause, ChannelError, Loop, Setup};
use tempfile::TempDir;
use tls_files::{CERTIFICATE_FILE, Identity, client_config, own_names, trusted_roots};

use super::support::{serve, serve_greeted, setup};

const TOKEN: &str = "a token of agents";
/// Whatever is waited for comes far sooner, on a machine that has nothing else to do.
const PATIENCE: Duration = Duration::from_secs(90);

/// Agents that share a certificate.
pub(crate) struct TestAgents {
    directory: TempDir,
    addresses: Vec<SocketAddr>,
}

impl TestAgents {
    pub(crate) fn start(count: usize) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let addresses = (0..count).map(|_| start_agent(directory.path())).collect();
        Self { directory, addresses }
    }

    pub(crate) fn coordinator(&self) -> Agents {
        coordinator(self.directory.path(), &self.addresses)
    }
}

fn start_agent(directory: &Path) -> SocketAddr {
    let identity =
        Identity::open_or_make(directory, &own_names(&[]), "test").expect("a certificate");
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("its address");
    let agent = Agent::new(&identity, TOKEN.to_owned(), |event| println!("{event:?}"));
    let agent = agent.expect("its key");
    thread::spawn(move || agent.serve(&listener));
    address
}

fn coordinator(directory: &Path, addresses: &[SocketAddr]) -> Agents {
    let certificate = directory.join(CERTIFICATE_FILE);
    let trusted = trusted_roots(Some(&certificate)).expect("one");
    Agents {
        addresses: addresses
            .iter()
            .map(|address| address.to_string().parse().expect("an address"))
            .collect(),
        token: TOKEN.to_owned(),
        tls: Arc::new(client_config(trusted, None).expect("no identity")),
    }
}

/// A way to an agent that a test can interrupt.
struct Way {
    address: SocketAddr,
    state: Arc<WayState>,
}

#[derive(Default)]
struct WayState {
    cut: AtomicBool,
    frozen: AtomicBool,
}

impl Way {
    fn to(agent: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("its address");
        let state = Arc::new(WayState::default());
        let shared = Arc::clone(&state);
        thread::spawn(move || {
            for near in listener.incoming().flatten() {
                let far = TcpStream::connect(agent).expect("the agent listens");
                for (from, to) in [(&near, &far), (&far, &near)] {
                    let (from, to) =
                        (from.try_clone().expect("a socket"), to.try_clone().expect("a socket"));
                    let state = Arc::clone(&shared);
                    thread::spawn(move || forward(from, to, &state));
                }
            }
        });
        Self { address, state }
    }
}

fn forward(mut from: TcpStream, mut to: TcpStream, state: &WayState) {
    from.set_read_timeout(Some(Duration::from_millis(20))).expect("a timeout");
    let mut buffer = [0; 4096];
    while !state.cut.load(Ordering::SeqCst) {
        match from.read(&mut buffer) {
            Ok(0) => break,
            Ok(_) if state.frozen.load(Ordering::SeqCst) => {}
            Ok(len) => {
                if to.write_all(&buffer[..len]).is_err() {
                    break;
                }
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(_) => break,
        }
    }
    // A socket may be gone already.
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}

/// A server that counts, and a run of ten minutes against it.
fn long_run() -> (Arc<AtomicUsize>, Setup) {
    let count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    let address = serve(move |_, _| {
        counted.fetch_add(1, Ordering::SeqCst);
        b"$1\r\nv\r\n".to_vec()
    });
    (count, setup(address, 200.0, 600))
}

fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < PATIENCE, "not so: {what}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// AGENT-4: an agent that is lost fails the run at once, by its name; the others stop, and serve the next coordinator.
///
/// Method: a run of ten minutes by two agents. Once both have sent requests, the way to the second one is interrupted: its
/// sockets are closed, or nothing comes through them any more.
fn lose_an_agent(interrupt: impl Fn(&WayState), is_cause: impl Fn(&Cause) -> bool) {
    let agents = TestAgents::start(2);
    let way = Way::to(agents.addresses[1]);
    let mut coordinator = coordinator(agents.directory.path(), &[agents.addresses[0], way.address]);
    let (count, setup) = long_run();
    let error = thread::scope(|scope| {
        let running = scope.spawn(|| coordinator.run(&setup));
        wait_until("requests are sent", || count.load(Ordering::SeqCst) > 20);
        interrupt(&way.state);
        running.join().expect("no panic").expect_err("the run fails")
    });
    let AgentError::Agent { agent, cause } = &error else { panic!("{error}") };
    assert!(*agent == way.address.to_string() && is_cause(cause), "{error}");
    assert!(error.to_string().contains("lost"), "{error}");
    wait_until("both agents stop", || {
        let before = count.load(Ordering::SeqCst);
        thread::sleep(Duration::from_millis(500));
        count.load(Ordering::SeqCst) == before
    });
    // The session of the lost one ends when it notices.
    coordinator.addresses = agents.coordinator().addresses;
    let short = Setup { duration: Duration::from_millis(100), ..setup };
    wait_until("both serve again", || coordinator.run(&short).is_ok());
}

#[test]
fn an_agent_whose_connection_ends_is_lost() {
    lose_an_agent(
        |way| way.cut.store(true, Ordering::SeqCst),
        |cause| matches!(cause, Cause::Lost(ChannelError::Closed | ChannelError::Broken(_))),
    );
}

#[test]
fn an_agent_that_gives_no_sign_of_life_is_lost() {
    lose_an_agent(
        |way| way.frozen.store(true, Ordering::SeqCst),
        |cause| matches!(cause, Cause::Lost(ChannelError::Silent(_))),
    );
}

/// AGENT-2: no request is sent before all agents have all of their connections; then each sends its part.
#[test]
fn agents_start_when_all_are_connected() {
    const AGENTS: usize = 3;
    let (greeted, seen) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(usize::MAX)));
    let (greetings, least) = (Arc::clone(&greeted), Arc::clone(&seen));
    let address = serve_greeted(
        move |_, _| {
            least.fetch_min(greetings.load(Ordering::SeqCst), Ordering::SeqCst);
            b"$1\r\nv\r\n".to_vec()
        },
        move || {
            greeted.fetch_add(1, Ordering::SeqCst);
        },
    );
    let setup = setup(address, 300.0, 1);
    let outcome = TestAgents::start(AGENTS).coordinator().run(&setup).expect("a run");
    assert_eq!(seen.load(Ordering::SeqCst), AGENTS * setup.connections);
    assert_eq!((outcome.reads.count, outcome.agents.len()), (300, AGENTS));
    assert!(outcome.agents.iter().all(|part| part.requests == 100), "{:?}", outcome.agents);
}

/// Four agents write each key once between them.
#[test]
fn agents_fill_together() {
    let keys = Arc::new(std::sync::Mutex::new(Vec::new()));
    let log = Arc::clone(&keys);
    let address = serve(move |_, request| {
        log.lock().expect("no panic").push(request.get(1).expect("a key").to_vec());
        b"+OK\r\n".to_vec()
    });
    let mut setup = setup(address, 1.0, 1);
    setup.workload.keys = 1003;
    let outcome = TestAgents::start(4).coordinator().fill(&setup).expect("a run");
    assert_eq!(outcome.writes.count, 1003);
    let mut keys = std::mem::take(&mut *keys.lock().expect("no panic"));
    keys.sort();
    keys.dedup();
    assert_eq!(keys.len(), 1003);
}

fn cause(agents: &Agents, setup: &Setup) -> Cause {
    match agents.run(setup) {
        Err(AgentError::Agent { cause, .. }) => cause,
        other => panic!("{other:?}"),
    }
}

/// AGENT-1: neither side works with one that does not show what it has to.
#[test]
fn strangers_are_refused_by_either_side() {
    let (count, setup) = long_run();
    let agents = TestAgents::start(1);
    let guessed = Agents { token: "another token".to_owned(), ..agents.coordinator() };
    assert!(matches!(cause(&guessed, &setup), Cause::Refused(reason) if reason.contains("token")));
    // A coordinator that does not believe the agent's certificate sends no token.
    let others = TestAgents::start(1);
    let deceived = coordinator(others.directory.path(), &agents.addresses);
    let error = cause(&deceived, &setup).to_string();
    assert!(error.contains("certificate is not trusted"), "{error}");
    // Nor one that speaks no TLS.
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let plain = listener.local_addr().expect("its address");
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = stream.write_all(b"-ERR unknown command\r\n");
        }
    });
    let error = cause(&coordinator(others.directory.path(), &[plain]), &setup);
    assert!(matches!(error, Cause::Channel(_)), "{error}");
    let free = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("its address");
    let error = cause(&coordinator(others.directory.path(), &[free]), &setup);
    assert!(matches!(error, Cause::Connect(_)), "{error}");
    assert_eq!(count.load(Ordering::SeqCst), 0);
}

/// An agent works for one coordinator at a time.
#[test]
fn a_second_coordinator_is_refused() {
    let agents = TestAgents::start(1);
    let way = Way::to(agents.addresses[0]);
    let (count, setup) = long_run();
    let first = coordinator(agents.directory.path(), &[way.address]);
    thread::scope(|scope| {
        let running = scope.spawn(|| first.run(&setup));
        wait_until("requests are sent", || count.load(Ordering::SeqCst) > 0);
        let refused = cause(&agents.coordinator(), &setup);
        assert!(
            matches!(&refused, Cause::Refused(reason) if reason.contains("another")),
            "{refused}"
        );
        way.state.cut.store(true, Ordering::SeqCst);
        assert!(running.join().expect("no panic").is_err());
    });
}

/// Failures at the server are told with the name of the agent that met them, a breach of the protocol included.
#[test]
fn failures_at_the_server_are_told() {
    let agents = TestAgents::start(2).coordinator();
    let free = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("its address");
    let failed = |address| match cause(&agents, &setup(address, 100.0, 600)) {
        Cause::Failed(error) => error,
        other => panic!("{other:?}"),
    };
    assert!(failed(free).contains("cannot be connected to"));
    let http = serve(|_, _| b"HTTP/1.1 400 Bad Request\r\n".to_vec());
    assert!(failed(http).contains("does not speak RESP"));
}

/// An agent whose own CPU is the limit is named in the outcome.
///
/// Method: a thousand million requests a second are asked for, which no thread can make.
#[test]
fn an_agent_that_cannot_keep_up_is_named() {
    let agents = TestAgents::start(2);
    let address = serve(|_, _| b"$1\r\nv\r\n".to_vec());
    let mut setup = setup(address, 1.0, 1);
    setup.pace = Loop::Open { rate: 1e9, arrivals: kv_load::Arrivals::Uniform };
    setup.drain = Duration::from_millis(100);
    let outcome = agents.coordinator().run(&setup).expect("a run");
    assert!(outcome.limited_by_generator, "{}", outcome.busiest_thread);
    let busiest = outcome.busiest_agent().expect("agents");
    assert!(agents.addresses.iter().any(|address| address.to_string() == busiest.agent));
    assert!(busiest.busiest_thread > 0.9);
}
