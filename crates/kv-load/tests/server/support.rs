//! A server whose replies a test makes, and the setup of a run against it.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use kv_load::{Arrivals, Loop, Popularity, Setup, Sizes, Workload, WriteCommand};
use resp::{Request, RequestDecoder, RequestLimits};

const LIMITS: RequestLimits =
    RequestLimits { arguments: 8, argument_len: 1 << 16, request_len: 1 << 17 };

/// Starts a server that replies to request `n`, counted over all connections without their greetings, by
/// `reply(n, request)`. An empty reply ends the connection.
pub(crate) fn serve(
    reply: impl Fn(usize, &Request) -> Vec<u8> + Send + Sync + 'static,
) -> SocketAddr {
    serve_greeted(reply, || {})
}

/// The same, with a call for each greeting.
pub(crate) fn serve_greeted(
    reply: impl Fn(usize, &Request) -> Vec<u8> + Send + Sync + 'static,
    greeted: impl Fn() + Send + Sync + 'static,
) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("its address");
    let (reply, greeted) = (Arc::new(reply), Arc::new(greeted));
    let count = Arc::new(AtomicUsize::new(0));
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let (reply, greeted, count) =
                (Arc::clone(&reply), Arc::clone(&greeted), Arc::clone(&count));
            thread::spawn(move || serve_client(stream, &*reply, &*greeted, &count));
        }
    });
    address
}

fn serve_client(
    mut stream: TcpStream,
    reply: &impl Fn(usize, &Request) -> Vec<u8>,
    greeted: &impl Fn(),
    count: &AtomicUsize,
) {
    // Replies are to leave at once.
    stream.set_nodelay(true).expect("a socket");
    let (mut decoder, mut buffer) = (RequestDecoder::new(LIMITS), [0; 4096]);
    loop {
        let len = stream.read(&mut buffer).unwrap_or(0);
        if len == 0 {
            return;
        }
        let mut input = &buffer[..len];
        while let Some(request) = decoder.decode(&mut input).expect("requests are well-formed") {
            let is_greeting = request.get(0) == Some(b"PING");
            let bytes = if is_greeting {
                greeted();
                b"+PONG\r\n".to_vec()
            } else {
                reply(count.fetch_add(1, Ordering::SeqCst), &request)
            };
            if bytes.is_empty() || stream.write_all(&bytes).is_err() {
                return;
            }
        }
    }
}

pub(crate) fn setup(address: SocketAddr, rate: f64, seconds: u64) -> Setup {
    Setup {
        address,
        tls: None,
        password: None,
        threads: 2,
        connections: 4,
        depth: 64,
        pace: Loop::Open { rate, arrivals: Arrivals::Uniform },
        warm_up: Duration::ZERO,
        duration: Duration::from_secs(seconds),
        drain: Duration::from_secs(60),
        probe_rate: 0.0,
        workload: Workload {
            keys: 100,
            key_sizes: Sizes::Uniform(17, 21),
            value_sizes: Sizes::Fixed(50),
            popularity: Popularity::Uniform,
            read_share: 1.0,
            write: WriteCommand::Set,
            seed: 1,
        },
    }
}
