//! Runs against servers that do on purpose what real ones do by chance.
//!
//! Nothing but `percentiles.rs` asserts that something was fast: a busy machine only makes latencies longer. Counts are
//! exact, and a latency is at least what the server's schedule makes it.

mod agents;
mod percentiles;
mod support;

use std::collections::HashMap;
use std::net::TcpListener;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use kv_load::{RunError, fill, run};

use support::{serve, setup};

/// Waits on a lock-step: all connections of a server stand still until a time.
#[derive(Default)]
struct Pause(Mutex<Option<Instant>>);

impl Pause {
    fn begin(&self, len: Duration) {
        *self.0.lock().expect("no panic") = Some(Instant::now() + len);
    }

    fn wait(&self) {
        let until = *self.0.lock().expect("no panic");
        if let Some(until) = until {
            thread::sleep(until.saturating_duration_since(Instant::now()));
        }
    }
}

/// While a server stands still for a second, the requests that are due in it count with the time that they wait.
///
/// Method: 200 requests a second for three seconds; the server stops replying for a second with request 100. The
/// j-th request after it was due j times 5 ms later and is answered a second later at the earliest, so it took
/// 1000 - 5j ms or more. A generator that waits for replies before it goes on would send 4 requests in the pause.
#[test]
fn a_pause_of_a_real_server_counts_for_all_that_was_due_in_it() {
    let pause = Pause::default();
    let address = serve(move |n, _| {
        if n == 100 {
            pause.begin(Duration::from_secs(1));
        }
        pause.wait();
        b"$1\r\nv\r\n".to_vec()
    });
    let outcome = run(&setup(address, 200.0, 3)).expect("a run");
    assert_eq!((outcome.reads.count, outcome.errors, outcome.unanswered), (600, 0, 0));
    for slowest in [20, 60, 100, 140, 180] {
        let least = Duration::from_millis(1000 - 5 * slowest);
        // Of 600, the latency that all but `slowest` do not exceed; 0.1 % for the histogram.
        let percent = 100.0 * (1.0 - (slowest as f64 - 0.5) / 600.0);
        let latency = outcome.read_latencies.percentile(percent);
        assert!(latency >= least.mul_f64(0.998), "{slowest} slowest: {latency:?} of {least:?}");
    }
}

/// Latencies are at least those of the server's schedule, in the shares that it has.
#[test]
fn percentiles_follow_the_schedule_of_a_server_that_sleeps() {
    const SLEEPS_MS: [u64; 10] = [0, 0, 0, 0, 0, 0, 0, 0, 20, 40];
    let address = serve(|n, _| {
        thread::sleep(Duration::from_millis(SLEEPS_MS[n % 10]));
        b"$1\r\nv\r\n".to_vec()
    });
    let outcome = run(&setup(address, 50.0, 4)).expect("a run");
    assert_eq!(outcome.reads.count, 200);
    let at = |percent: f64| outcome.read_latencies.percentile(percent).as_secs_f64() * 1000.0;
    assert!(at(95.0) >= 39.9 && at(85.0) >= 19.9, "{} {}", at(95.0), at(85.0));
}

#[test]
fn filling_writes_each_key_once() {
    let written = Arc::new(Mutex::new(HashMap::new()));
    let log = Arc::clone(&written);
    let address = serve(move |_, request| {
        assert_eq!(request.get(0), Some(&b"SET"[..]));
        let key = request.get(1).expect("a key").to_vec();
        *log.lock().expect("no panic").entry(key).or_insert(0) +=
            request.get(2).map_or(0, <[u8]>::len);
        b"+OK\r\n".to_vec()
    });
    let mut setup = setup(address, 1.0, 1);
    setup.workload.keys = 10_007;
    let outcome = fill(&setup).expect("a run");
    assert_eq!(outcome.writes.count, 10_007);
    let written = written.lock().expect("no panic");
    assert_eq!(written.len(), 10_007);
    assert!(written.values().all(|len| *len == 50));
    assert!(written.keys().all(|key| (17..=21).contains(&key.len())));
}

#[test]
fn errors_and_missing_keys_are_told_apart_from_latencies() {
    let address = serve(|n, _| match n % 4 {
        0 => b"-ERR no\r\n".to_vec(),
        1 => b"$-1\r\n".to_vec(),
        _ => b"$1\r\nv\r\n".to_vec(),
    });
    let outcome = run(&setup(address, 200.0, 1)).expect("a run");
    assert_eq!((outcome.errors, outcome.missing, outcome.reads.count), (50, 50, 150));
    assert_eq!(outcome.first_error.as_deref(), Some("ERR no"));
    assert!(
        !outcome.keeps(Duration::from_secs(100), kv_load::Latencies::mean),
        "errors keep no target"
    );
}

/// The probe has a connection of its own, and one request at a time.
#[test]
fn the_probe_is_measured_apart() {
    let (active, most) = (AtomicUsize::new(0), Arc::new(AtomicUsize::new(0)));
    let seen = Arc::clone(&most);
    let address = serve(move |_, _| {
        seen.fetch_max(active.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        thread::sleep(Duration::from_millis(5));
        active.fetch_sub(1, Ordering::SeqCst);
        b"$1\r\nv\r\n".to_vec()
    });
    let mut setup = setup(address, 1.0, 2);
    setup.probe_rate = 100.0;
    let outcome = run(&setup).expect("a run");
    assert_eq!(outcome.reads.count, 2);
    let probe = outcome.probe.expect("a probe");
    assert!((1..=200).contains(&probe.count), "{}", probe.count);
    assert!(probe.min_ns >= 4_990_000, "{}", probe.min_ns);
    assert!(most.load(Ordering::SeqCst) <= 3, "two of the load and one of the probe");
}

#[test]
fn servers_that_misbehave_are_named() {
    let closing = serve(|_, _| Vec::new());
    let ended = run(&setup(closing, 100.0, 1));
    assert!(matches!(ended, Err(RunError::Closed { .. } | RunError::Broken { .. })));
    let http = serve(|_, _| b"HTTP/1.1 400 Bad Request\r\n".to_vec());
    assert!(matches!(run(&setup(http, 100.0, 1)), Err(RunError::Protocol { .. })));
    let twice = serve(|_, _| b"$1\r\nv\r\n$1\r\nv\r\n".to_vec());
    assert!(matches!(run(&setup(twice, 100.0, 1)), Err(RunError::Protocol { .. })));
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = silent.local_addr().expect("its address");
    let ended = run(&setup(address, 100.0, 1)).expect_err("it says nothing");
    assert!(ended.to_string().contains("does not answer within 10 s"), "{ended}");
    let free = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("its address");
    assert!(matches!(run(&setup(free, 100.0, 1)), Err(RunError::Connect { .. })));
}
