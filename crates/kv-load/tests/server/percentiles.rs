//! Percentiles against service times that the server itself knows, by one process and by four agents.
//!
//! These measure real time, so each has the machine for itself (`.config/nextest.toml`).

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use kv_load::{Outcome, Setup, run};

use super::agents::TestAgents;
use super::support::{serve, setup};

const SECONDS: u64 = 4;
const RATE: f64 = 80.0;
/// So many that no request waits for the one before it on its connection.
const CONNECTIONS: usize = 300;
const TOLERANCE: f64 = 0.01;

/// Service times by request: the key, and the time that the server had it.
type Served = Arc<Mutex<Vec<(Vec<u8>, Duration)>>>;

/// A server that sleeps by schedule: of ten requests eight take 0.8 s, one 1.6 s and one 3.2 s.
fn sleeping_server() -> (SocketAddr, Served) {
    const SLEEPS_MS: [u64; 10] = [800, 800, 1600, 800, 800, 800, 800, 3200, 800, 800];
    let served = Served::default();
    let log = Arc::clone(&served);
    let address = serve(move |n, request| {
        let begin = Instant::now();
        thread::sleep(Duration::from_millis(SLEEPS_MS[n % 10]));
        let key = request.get(1).expect("a key").to_vec();
        // A sleep may be longer than it was asked for: what counts is how long it was.
        log.lock().expect("no panic").push((key, begin.elapsed()));
        b"$1\r\nv\r\n".to_vec()
    });
    (address, served)
}

fn sleeping_setup(address: SocketAddr, threads: usize, connections: usize) -> Setup {
    Setup { threads, connections, depth: 1, ..setup(address, RATE, SECONDS) }
}

/// Holds what was reported against what the server knows; returns how often each key was asked for.
fn check(outcome: &Outcome, served: &Served) -> BTreeMap<Vec<u8>, u32> {
    let expected = (RATE * SECONDS as f64) as usize;
    let served = std::mem::take(&mut *served.lock().expect("no panic"));
    assert_eq!((outcome.reads.count as usize, served.len()), (expected, expected));
    let mut times: Vec<f64> = served.iter().map(|(_, time)| time.as_secs_f64()).collect();
    times.sort_by(f64::total_cmp);
    for percent in [10.0, 50.0, 75.0, 85.0, 95.0, 99.0] {
        let known = times[(percent / 100.0 * expected as f64) as usize - 1];
        let reported = outcome.read_latencies.percentile(percent).as_secs_f64();
        assert!((reported / known - 1.0).abs() <= TOLERANCE, "p{percent}: {reported} of {known}");
    }
    let known = times.iter().sum::<f64>() / expected as f64;
    let reported = outcome.read_latencies.mean().as_secs_f64();
    assert!((reported / known - 1.0).abs() <= TOLERANCE, "mean: {reported} of {known}");
    let mut keys = BTreeMap::new();
    served.into_iter().for_each(|(key, _)| *keys.entry(key).or_default() += 1);
    keys
}

/// Percentiles and mean of one process, and of four agents with a quarter of its threads and connections each, are within a
/// hundredth of the server's own; and both send the same requests.
#[test]
fn percentiles_are_those_of_the_server_for_one_process_and_four_agents() {
    let (address, served) = sleeping_server();
    let alone = run(&sleeping_setup(address, 4, CONNECTIONS)).expect("a run");
    let keys_alone = check(&alone, &served);

    let agents = TestAgents::start(4);
    let outcome = agents.coordinator().run(&sleeping_setup(address, 1, CONNECTIONS / 4));
    let outcome = outcome.expect("a run");
    assert_eq!(check(&outcome, &served), keys_alone);
    let requests: Vec<u64> = outcome.agents.iter().map(|part| part.requests).collect();
    assert_eq!(requests, [80; 4]);
    assert_eq!(outcome.series.len(), alone.series.len());
}

/// While the server stands still for a second, latencies from the intended start are within a hundredth of that second.
///
/// Method: 200 requests a second for four seconds; all connections of the server stand still for a second from request 100
/// on, so that 200 of the 800 requests wait. The server notes when each came and was answered. The request that came least
/// late tells when the first was meant to start, and each later one was 5 ms behind the one before.
#[test]
fn latencies_are_right_while_the_server_stands_still() {
    let pause_end = Mutex::new(None);
    let noted: Arc<Mutex<Vec<(Instant, Instant)>>> = Arc::default();
    let log = Arc::clone(&noted);
    let address = serve(move |n, _| {
        let came = Instant::now();
        let until = {
            let mut until = pause_end.lock().expect("no panic");
            if n == 100 {
                *until = Some(came + Duration::from_secs(1));
            }
            *until
        };
        let left = |until: Instant| until.saturating_duration_since(Instant::now());
        thread::sleep(until.map_or(Duration::ZERO, left));
        log.lock().expect("no panic").push((came, Instant::now()));
        b"$1\r\nv\r\n".to_vec()
    });
    // The generator itself has to hold requests back.
    let setup = Setup { depth: 1, ..setup(address, 200.0, SECONDS) };
    let outcome = run(&setup).expect("a run");
    assert_eq!(outcome.reads.count, 800);
    let noted = std::mem::take(&mut *noted.lock().expect("no panic"));
    let (mut came, mut answered): (Vec<Instant>, Vec<Instant>) = noted.into_iter().unzip();
    came.sort();
    answered.sort();
    let behind = |n: usize| Duration::from_millis(5) * n as u32;
    let first = came.iter().enumerate().map(|(n, came)| *came - behind(n)).min().expect("requests");
    let mut known: Vec<f64> = answered
        .iter()
        .enumerate()
        .map(|(n, answered)| answered.saturating_duration_since(first + behind(n)).as_secs_f64())
        .collect();
    known.sort_by(|one, other| other.total_cmp(one));
    assert!(
        known[0] >= 0.99 && known[100] >= 0.49,
        "the pause is there: {} {}",
        known[0],
        known[100]
    );
    for slowest in [1, 20, 60, 100, 140, 180] {
        let percent = 100.0 * (1.0 - (f64::from(slowest) - 0.5) / 800.0);
        let reported = outcome.read_latencies.percentile(percent).as_secs_f64();
        let known = known[slowest as usize - 1];
        assert!((reported - known).abs() <= TOLERANCE, "{slowest}: {reported} of {known}");
    }
}
