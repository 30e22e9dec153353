//! A null server that hosts visit (NULL-7): the cost for any server of hosts that come, are answered, and go, beside
//! its load.
//!
//! Each visitor is a connection of its own with as many messages as a host exchanges to be admitted; they
//! are not interpreted. Load and visitors are polled by the same two threads. Slices with visitors and without follow each other, there and back.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::outgoing::{self, Outgoing};
use super::{Blocks, Direction, NullSpec, Received, Side, pin};

/// Messages of a visitor, each with an answer: ICReq, Connect, four of authentication and of what comes with it.
const EXCHANGES: u32 = 6;
/// About the mean of these.
const MESSAGE: [u8; 256] = [0x5A; 256];
const ANSWER: [u8; 128] = [0xA5; 128];
/// Turns of the server between two checks for visitors that want to connect.
const TURNS_PER_LOOK: u32 = 8;
/// Turns of the client between two looks at the time.
const TURNS_PER_TIME_CHECK: u32 = 4;

/// Rate and kind of the visits beside the load.
#[derive(Clone, Copy)]
pub(crate) struct Visits {
    pub(crate) per_second: f64,
    pub(crate) slice: Duration,
    pub(crate) pairs: usize,
}

/// The load by slices, in requests a second, and visitors a second in those that had some.
#[derive(Debug, Default)]
pub(crate) struct Visited {
    pub(crate) without: Vec<f64>,
    pub(crate) with: Vec<f64>,
    pub(crate) visitors_per_second: Vec<f64>,
}

/// Runs a server and its load, on a CPU each, and visitors of the server beside the load.
pub(crate) fn run(server_cpu: usize, client_cpu: usize, visits: Visits) -> Result<Visited> {
    let spec = NullSpec {
        direction: Direction::Read,
        block_bytes: 4096,
        blocks: Blocks::Scattered,
        depth: 32,
        connections: 1,
        server_cpu,
        client_cpu,
        warm_up_seconds: 0.0,
        seconds: 0.0,
    };
    outgoing::memory();
    let listen = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("listen on loopback");
    let (listener, entrance) = (listen()?, listen()?);
    let addresses = [listener.local_addr()?, entrance.local_addr()?];
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let server = scope.spawn(|| serve(&spec, &listener, &entrance, &stop));
        let client = scope.spawn(|| drive(&spec, addresses, visits));
        let visited = client.join().expect("the client thread panicked");
        stop.store(true, Ordering::Relaxed);
        server.join().expect("the server thread panicked")?;
        visited
    })
}

fn serve(
    spec: &NullSpec,
    listener: &TcpListener,
    entrance: &TcpListener,
    stop: &AtomicBool,
) -> Result<()> {
    pin(spec.server_cpu)?;
    let (stream, _) = listener.accept().context("accept")?;
    let outgoing = Outgoing::scattered(0, false);
    let mut side = Side::new(stream, outgoing, [spec.reply_bytes(), spec.request_bytes()])?;
    entrance.set_nonblocking(true)?;
    let (mut visitors, mut turn) = (Vec::new(), 0_u32);
    let mut buffer = vec![0; spec.receive_bytes()];
    while !stop.load(Ordering::Relaxed) {
        match side.receive(&mut buffer)? {
            Received::Periods(requests) => side.owe(requests),
            Received::Closed => break,
        }
        side.send()?;
        turn = turn.wrapping_add(1);
        if turn.is_multiple_of(TURNS_PER_LOOK)
            && let Ok((visitor, _)) = entrance.accept()
        {
            visitors.push(ready(visitor)?);
        }
        visitors.retain_mut(answer);
    }
    Ok(())
}

/// Answers what a visitor has sent; whether it is still there.
fn answer(visitor: &mut TcpStream) -> bool {
    match visitor.read(&mut [0; MESSAGE.len()]) {
        Ok(count) => count > 0 && visitor.write_all(&ANSWER).is_ok(),
        Err(error) => error.kind() == ErrorKind::WouldBlock,
    }
}

fn ready(stream: TcpStream) -> Result<TcpStream> {
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)?;
    Ok(stream)
}

/// A visitor, as it sees itself.
struct Visitor {
    stream: TcpStream,
    /// Answers that it has had.
    answers: u32,
}

impl Visitor {
    fn come(address: SocketAddr) -> Result<Self> {
        let mut stream = ready(TcpStream::connect(address).context("connect")?)?;
        stream.write_all(&MESSAGE)?;
        Ok(Self { stream, answers: 0 })
    }

    /// Takes an answer and says the next thing; whether there is one.
    fn go_on(&mut self) -> bool {
        match self.stream.read(&mut [0; ANSWER.len()]) {
            Ok(count) => {
                self.answers += 1;
                count > 0 && self.answers < EXCHANGES && self.stream.write_all(&MESSAGE).is_ok()
            }
            Err(error) => error.kind() == ErrorKind::WouldBlock,
        }
    }
}

fn drive(spec: &NullSpec, [address, entrance]: [SocketAddr; 2], visits: Visits) -> Result<Visited> {
    pin(spec.client_cpu)?;
    let stream = TcpStream::connect(address).context("connect")?;
    let outgoing = Outgoing::pattern(spec.request_bytes());
    let mut side = Side::new(stream, outgoing, [spec.request_bytes(), spec.reply_bytes()])?;
    side.owe(spec.depth);
    let mut client = Client { side, buffer: vec![0; spec.receive_bytes()], entrance };
    let mut visited = Visited::default();
    for half in 0..2 * visits.pairs {
        // Without, with, with, without, and so on.
        let per_second = matches!(half % 4, 1 | 2).then_some(visits.per_second);
        let (rate, visitors) = client.slice(visits.slice, per_second)?;
        if per_second.is_some() {
            visited.with.push(rate);
            visited.visitors_per_second.push(visitors);
        } else {
            visited.without.push(rate);
        }
    }
    Ok(visited)
}

struct Client {
    side: Side,
    buffer: Vec<u8>,
    entrance: SocketAddr,
}

impl Client {
    /// One slice, with so many visitors a second or none: requests a second, and visitors that had all their answers.
    fn slice(&mut self, length: Duration, per_second: Option<f64>) -> Result<(f64, f64)> {
        let (begin, mut done) = (Instant::now(), 0);
        let (mut came, mut gone, mut visitors) = (0_u32, 0_u32, Vec::new());
        loop {
            for _ in 0..TURNS_PER_TIME_CHECK {
                self.side.send()?;
                match self.side.receive(&mut self.buffer)? {
                    Received::Periods(replies) => {
                        done += replies;
                        self.side.owe(replies);
                    }
                    Received::Closed => bail!("the null server went away"),
                }
                visitors.retain_mut(|visitor: &mut Visitor| {
                    let stays = visitor.go_on();
                    gone += u32::from(!stays && visitor.answers == EXCHANGES);
                    stays
                });
            }
            let seconds = begin.elapsed().as_secs_f64();
            if begin.elapsed() >= length {
                return Ok((done as f64 / seconds, f64::from(gone) / seconds));
            }
            if per_second.is_some_and(|per_second| f64::from(came) < seconds * per_second) {
                came += 1;
                visitors.push(Visitor::come(self.entrance)?);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpus;

    /// NULL-7: visitors come at the pace asked for, get all their answers, and only in every other slice.
    #[test]
    fn visitors_are_answered_beside_the_load() {
        let visits = Visits { per_second: 100.0, slice: Duration::from_millis(300), pairs: 2 };
        let visited = run(cpus::server(), cpus::client(), visits).expect("loopback");
        assert_eq!([visited.with.len(), visited.without.len()], [2, 2]);
        assert!(visited.with.iter().chain(&visited.without).all(|rate| *rate > 0.0));
        for rate in visited.visitors_per_second {
            assert!((10.0..=110.0).contains(&rate), "{rate} a second");
        }
    }
}
