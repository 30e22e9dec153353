//! Clients are answered while another client takes all the places that there are.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crate::support::{Api, user};
use control::{ApiToken, Guard, Limits, Users};
use tokio::net::TcpSocket;

const PLACES: usize = 8;
const PATIENCE: Duration = Duration::from_secs(20);

/// Places are few, and no client loses its place by the time alone.
fn limits() -> Limits {
    let hour = Duration::from_secs(3600);
    Limits {
        connections_max: PLACES,
        head_timeout: hour,
        write_timeout: hour,
        connection_time: hour,
        ..Limits::default()
    }
}

/// Connects as the host `127.0.0.LAST`.
fn connect_from(last: u8, api: SocketAddr) -> TcpStream {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let stream = runtime.block_on(async {
        let socket = TcpSocket::new_v4().unwrap();
        let host = IpAddr::V4(Ipv4Addr::new(127, 0, 0, last));
        socket.bind(SocketAddr::new(host, 0)).unwrap();
        socket.connect(api).await.unwrap().into_std().unwrap()
    });
    stream.set_nonblocking(false).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// The status of the next answer on `stream` to a request of `head`; nothing if it was cut.
fn ask(stream: &mut TcpStream, head: &str) -> Option<u16> {
    stream.write_all(format!("{head}\r\n\r\n").as_bytes()).ok()?;
    let mut answer = [0; 4096];
    let len = stream.read(&mut answer).ok()?;
    std::str::from_utf8(&answer[..len]).ok()?.split(' ').nth(1)?.parse().ok()
}

const HEALTH: &str = "GET /healthz HTTP/1.1\r\nhost: api";

/// API-CROWD-2. Method: one host takes all places, each with a connection that has been answered once, and takes
/// each place again that it loses, as fast as it can. Another one asks, again and again, on new connections.
#[test]
fn a_client_that_fills_all_places_keeps_no_other_host_out() {
    let api = Api::with(limits(), Duration::ZERO);
    let (stop, filled) = (AtomicBool::new(false), AtomicUsize::new(0));
    let fill = || {
        while !stop.load(Ordering::Relaxed) {
            let mut stream = connect_from(1, api.address);
            if ask(&mut stream, HEALTH) == Some(200) {
                filled.fetch_add(1, Ordering::Relaxed);
            }
            // Until it is cut.
            stream.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
            while !stop.load(Ordering::Relaxed) {
                match stream.read(&mut [0; 64]) {
                    Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                    _ => break,
                }
            }
        }
    };
    std::thread::scope(|scope| {
        let fillers: Vec<_> = (0..PLACES + 2).map(|_| scope.spawn(fill)).collect();
        while filled.load(Ordering::Relaxed) < PLACES {
            std::thread::yield_now();
        }
        let answers: Vec<_> =
            (0..20).map(|_| ask(&mut connect_from(2, api.address), HEALTH)).collect();
        stop.store(true, Ordering::Relaxed);
        fillers.into_iter().for_each(|filler| filler.join().unwrap());
        assert_eq!(answers, vec![Some(200); 20]);
    });
}

/// A guard that knows one operator, and his token.
fn guarded() -> (Guard, String) {
    let token = ApiToken::new(&[1; 32]);
    let list = user("operator", "ops", &token);
    (Guard { users: Users::from_toml(&list).unwrap(), ..Guard::default() }, token.token)
}

/// API-CROWD-1. Method: the answer to an authenticated caller, on the only place, takes longer than a connection
/// may be idle; others come, wait, and are answered when that caller has its answer.
#[test]
fn a_request_of_an_authenticated_caller_is_not_cut_off() {
    let (guard, token) = guarded();
    let limits = Limits { connections_max: 1, ..limits() };
    let api = Api::guarded(guard, limits, Duration::from_secs(3));
    let mut known = connect_from(1, api.address);
    let head =
        format!("GET /v1/volumes HTTP/1.1\r\nhost: api\r\nauthorization: Bearer {token}\r\n\r\n");
    known.write_all(head.as_bytes()).unwrap();
    let others: Vec<_> = (2..12).map(|host| connect_from(host, api.address)).collect();
    let mut answer = [0; 4096];
    let len = known.read(&mut answer).unwrap();
    assert!(answer[..len].starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer));
    for mut other in others {
        assert_eq!(ask(&mut other, HEALTH), Some(200));
    }
}

/// API-CROWD-1 and API-CROWD-3. Method: an authenticated caller has all places, each with half of a request's
/// body; others are answered, one of them at the same address.
#[test]
fn requests_that_do_not_come_keep_no_other_client_out() {
    let (guard, token) = guarded();
    let api = Api::guarded(guard, limits(), Duration::ZERO);
    let head = format!(
        "POST /v1/volumes HTTP/1.1\r\nhost: api\r\nauthorization: Bearer {token}\r\n\
         content-type: application/json\r\nexpect: 100-continue\r\ncontent-length: 100"
    );
    let begin = |_| {
        let mut stream = connect_from(1, api.address);
        // The server asks for the body: so it knows the sender.
        assert_eq!(ask(&mut stream, &head), Some(100));
        stream.write_all(b"{").unwrap();
        stream
    };
    let begun: Vec<TcpStream> = (0..PLACES).map(begin).collect();
    for host in [2, 1] {
        assert_eq!(ask(&mut connect_from(host, api.address), HEALTH), Some(200), "{host}");
    }
    drop(begun);
}

/// API-CROWD-3. Method: one host alone has all places and says nothing on them; what it asks on one more is
/// answered.
#[test]
fn who_says_nothing_makes_room_for_those_who_do() {
    let api = Api::with(limits(), Duration::ZERO);
    let silent: Vec<_> = (0..PLACES).map(|_| connect_from(1, api.address)).collect();
    assert_eq!(ask(&mut connect_from(1, api.address), HEALTH), Some(200));
    drop(silent);
}
