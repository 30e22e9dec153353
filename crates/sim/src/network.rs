//! One network for all hosts of a simulation: streams that arrive in order, whole, in pieces cut by
//! chance, after a delay drawn by chance; until someone cuts them.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::future::{Future, poll_fn};
use std::net::{IpAddr, SocketAddr};
use std::rc::{Rc, Weak};
use std::task::{Poll, Waker};

use io_traits::{Clock, Listener, NetworkError, SendBatch, Spawn, Stream, StreamError};
use units::{Duration, Instant};

use crate::world::SimWorld;

/// Longest chunk that a receive gives.
const CHUNK_BYTES_MAX: u64 = 64 << 10;
/// Bytes under way in one direction before a send waits, as a socket buffer would have it.
const IN_FLIGHT_BYTES_MAX: usize = 256 << 10;
const LATENCY_MIN: Duration = Duration::from_micros(5);
const LATENCY_MAX: Duration = Duration::from_micros(50);
/// First port given to the connecting side.
const EPHEMERAL_PORT_FIRST: u16 = 32768;

#[derive(Default)]
pub(crate) struct SimNetwork {
    listeners: RefCell<BTreeMap<SocketAddr, Rc<Backlog>>>,
    next_port: Cell<u16>,
    /// Source address of connections; by default that of the host that they are made to.
    pub(crate) comes_from: Cell<Option<IpAddr>>,
    /// Connected streams: the way to the accepting end, and the way back.
    streams: RefCell<Vec<(Weak<Pipe>, Weak<Pipe>)>>,
}

impl SimNetwork {
    /// Cuts every connection: both ends find it reset, and what was under way is lost.
    pub(crate) fn cut(&self) {
        for (one, other) in self.streams.take() {
            for pipe in [one.upgrade(), other.upgrade()].into_iter().flatten() {
                pipe.closed.set(true);
                pipe.discard();
                pipe.wake_all();
            }
        }
    }

    /// Holds up what is sent to accepting ends.
    pub(crate) fn hold_up(&self) {
        let there = |(there, _): &(Weak<Pipe>, Weak<Pipe>)| there.upgrade();
        self.streams.borrow().iter().filter_map(there).for_each(|pipe| pipe.held_up.set(true));
    }

    /// Severs every connection: the ends that made them find them reset. The other ends are told after
    /// `told_after`; data under way to them arrives, late.
    pub(crate) fn sever(&self, world: &SimWorld, told_after: Duration) {
        let told_at = world.now() + told_after;
        for (there, back) in self.streams.take() {
            if let Some(back) = back.upgrade() {
                back.severed.set(true);
                back.discard();
                back.wake_all();
            }
            if let Some(there) = there.upgrade() {
                there.sever(world, told_at);
            }
        }
    }
}

#[derive(Default)]
struct Backlog {
    waiting: RefCell<VecDeque<SimStream>>,
    acceptor: RefCell<Option<Waker>>,
}

/// A listening address.
pub struct SimListener {
    world: SimWorld,
    address: SocketAddr,
    backlog: Rc<Backlog>,
}

/// One direction of a stream.
#[derive(Default)]
struct Pipe {
    /// Bytes with the time at which they arrive, in order.
    arriving: RefCell<VecDeque<(Instant, Vec<u8>)>>,
    in_flight: Cell<usize>,
    /// Bytes that the receiving end has taken.
    taken: Cell<u64>,
    closed: Cell<bool>,
    /// The data under way is lost: the receiving end finds the stream reset.
    reset: Cell<bool>,
    /// The sending end will say no more.
    finished: Cell<bool>,
    /// Data sent from now on is held up until the connection is severed.
    held_up: Cell<bool>,
    /// Data sent from now on is lost, and neither end is told of the other's end.
    severed: Cell<bool>,
    receiver: RefCell<Option<Waker>>,
    sender: RefCell<Option<Waker>>,
}

impl Pipe {
    fn discard(&self) {
        self.reset.set(true);
        self.arriving.borrow_mut().clear();
        self.in_flight.set(0);
    }

    /// Severs the stream. Data under way arrives at times up to `told_at`, when the receiving end is told of the
    /// end.
    fn sever(self: &Rc<Self>, world: &SimWorld, told_at: Instant) {
        self.severed.set(true);
        let mut earliest = world.now();
        for (at, _) in self.arriving.borrow_mut().iter_mut() {
            *at = Instant(world.draw(|rng| rng.between(earliest.0, told_at.0)));
            earliest = *at;
            self.clone().wake_receiver_at(world, *at);
        }
        let (pipe, clock) = (self.clone(), world.clone());
        world.spawn(async move {
            clock.sleep_until(told_at).await;
            pipe.closed.set(true);
            pipe.wake_all();
        });
    }

    fn wake_receiver_at(self: Rc<Self>, world: &SimWorld, at: Instant) {
        let clock = world.clone();
        world.spawn(async move {
            clock.sleep_until(at).await;
            if let Some(waker) = self.receiver.borrow_mut().take() {
                waker.wake();
            }
        });
    }

    fn wake_all(&self) {
        for waker in [&self.receiver, &self.sender] {
            if let Some(waker) = waker.borrow_mut().take() {
                waker.wake();
            }
        }
    }
}

/// One end of a simulated connection.
#[derive(Clone)]
pub struct SimStream {
    world: SimWorld,
    inbound: Rc<Pipe>,
    outbound: Rc<Pipe>,
    local: SocketAddr,
    peer: SocketAddr,
    /// This end was shut down; what has arrived is no longer of interest.
    shut: Rc<Cell<bool>>,
    /// This end made the connection.
    connecting: bool,
}

impl SimListener {
    pub(crate) fn bind(world: &SimWorld, address: SocketAddr) -> Result<Self, NetworkError> {
        let mut listeners = world.network().listeners.borrow_mut();
        if listeners.contains_key(&address) {
            return Err(NetworkError::AddressInUse { address });
        }
        let backlog = Rc::new(Backlog::default());
        listeners.insert(address, backlog.clone());
        Ok(Self { world: world.clone(), address, backlog })
    }
}

impl Drop for SimListener {
    fn drop(&mut self) {
        self.world.network().listeners.borrow_mut().remove(&self.address);
    }
}

impl Listener for SimListener {
    type Stream = SimStream;

    async fn accept(&self) -> Result<SimStream, NetworkError> {
        poll_fn(|context| match self.backlog.waiting.borrow_mut().pop_front() {
            Some(stream) => Poll::Ready(Ok(stream)),
            None => {
                *self.backlog.acceptor.borrow_mut() = Some(context.waker().clone());
                Poll::Pending
            }
        })
        .await
    }

    fn local(&self) -> SocketAddr {
        self.address
    }
}

impl SimStream {
    pub(crate) async fn connect(world: SimWorld, peer: SocketAddr) -> Result<Self, NetworkError> {
        world.delay(LATENCY_MIN, LATENCY_MAX).await;
        let network = world.network();
        let backlog = network.listeners.borrow().get(&peer).cloned();
        let backlog = backlog.ok_or(NetworkError::Refused { address: peer })?;
        let port = EPHEMERAL_PORT_FIRST + network.next_port.get();
        network.next_port.set((network.next_port.get() + 1) % (u16::MAX - EPHEMERAL_PORT_FIRST));
        let host = network.comes_from.get().unwrap_or(peer.ip());
        let local = SocketAddr::new(host, port);
        let (there, here) = (Rc::<Pipe>::default(), Rc::<Pipe>::default());
        let mut streams = network.streams.borrow_mut();
        streams.retain(|(one, other)| one.strong_count() + other.strong_count() > 0);
        streams.push((Rc::downgrade(&there), Rc::downgrade(&here)));
        drop(streams);
        let accepted = Self {
            world: world.clone(),
            inbound: there.clone(),
            outbound: here.clone(),
            local: peer,
            peer: local,
            shut: Rc::default(),
            connecting: false,
        };
        backlog.waiting.borrow_mut().push_back(accepted);
        if let Some(waker) = backlog.acceptor.borrow_mut().take() {
            waker.wake();
        }
        let shut = Rc::default();
        Ok(Self { world, inbound: here, outbound: there, local, peer, shut, connecting: true })
    }

    /// Returns true if the connection was severed, and this end knows.
    fn is_severed(&self) -> bool {
        self.connecting && self.inbound.severed.get()
    }

    /// Bytes that may arrive now, cut by chance; `None` if none have arrived.
    fn take_arrived(&self) -> Option<Vec<u8>> {
        let mut arriving = self.inbound.arriving.borrow_mut();
        let (at, bytes) = arriving.front_mut()?;
        if *at > self.world.now() {
            return None;
        }
        let longest = (bytes.len() as u64).min(CHUNK_BYTES_MAX);
        // Mostly whole, sometimes cut anywhere: both ends must cope with any cut.
        let len =
            self.world.draw(|rng| if rng.one_in(4) { rng.between(1, longest) } else { longest })
                as usize;
        let rest = bytes.split_off(len);
        let chunk = std::mem::replace(bytes, rest);
        if bytes.is_empty() {
            arriving.pop_front();
        }
        self.inbound.in_flight.set(self.inbound.in_flight.get() - chunk.len());
        self.inbound.taken.set(self.inbound.taken.get() + chunk.len() as u64);
        if let Some(waker) = self.inbound.sender.borrow_mut().take() {
            waker.wake();
        }
        Some(chunk)
    }

    fn put_under_way(&self, bytes: Vec<u8>) {
        self.outbound.in_flight.set(self.outbound.in_flight.get() + bytes.len());
        let latency = self
            .world
            .draw(|rng| rng.between(LATENCY_MIN.as_nanos() as u64, LATENCY_MAX.as_nanos() as u64));
        let mut arriving = self.outbound.arriving.borrow_mut();
        let earliest = arriving.back().map_or(Instant(0), |(at, _)| *at);
        let at = earliest.max(self.world.now() + Duration::from_nanos(latency));
        if self.outbound.held_up.get() {
            return arriving.push_back((Instant(u64::MAX), bytes));
        }
        arriving.push_back((at, bytes));
        drop(arriving);
        self.outbound.clone().wake_receiver_at(&self.world, at);
    }
}

impl Stream for SimStream {
    type Chunk = Vec<u8>;

    fn recv(&self) -> impl Future<Output = Result<Vec<u8>, StreamError>> + 'static {
        let stream = self.clone();
        // As on a ring, others may have their turn before what has come is handed over. It matters at the end, when there
        // will be nothing more to wait for.
        let mut comes_later = self.end_by_peer().is_some() && self.world.draw(|rng| rng.one_in(3));
        poll_fn(move |context| {
            if std::mem::take(&mut comes_later) {
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            if stream.shut.get() || stream.is_severed() {
                return Poll::Ready(Err(StreamError::Reset));
            }
            if let Some(chunk) = stream.take_arrived() {
                return Poll::Ready(Ok(chunk));
            }
            if let Some(end) = stream.end_by_peer()
                && stream.inbound.arriving.borrow().is_empty()
            {
                return Poll::Ready(Err(end));
            }
            *stream.inbound.receiver.borrow_mut() = Some(context.waker().clone());
            Poll::Pending
        })
    }

    fn send(
        &self,
        mut batch: SendBatch,
    ) -> impl Future<Output = Result<SendBatch, StreamError>> + 'static {
        let stream = self.clone();
        async move {
            // Nothing would arrive, and no chunk is empty.
            if batch.is_empty() {
                return Ok(batch);
            }
            poll_fn(|context| {
                let is_over = stream.outbound.closed.get() || stream.inbound.closed.get();
                if is_over || stream.is_severed() {
                    return Poll::Ready(Err(StreamError::Reset));
                }
                if stream.outbound.in_flight.get() < IN_FLIGHT_BYTES_MAX {
                    return Poll::Ready(Ok(()));
                }
                batch.unpin();
                *stream.outbound.sender.borrow_mut() = Some(context.waker().clone());
                Poll::Pending
            })
            .await?;
            if !stream.outbound.severed.get() {
                stream.put_under_way(batch.slices().flatten().copied().collect());
            }
            batch.clear();
            Ok(batch)
        }
    }

    fn end_by_peer(&self) -> Option<StreamError> {
        let is_over = self.inbound.closed.get() || self.inbound.finished.get();
        let end = if self.inbound.reset.get() { StreamError::Reset } else { StreamError::Closed };
        is_over.then_some(end)
    }

    fn shutdown_write(&self) {
        if self.is_severed() {
            return;
        }
        self.outbound.finished.set(true);
        self.outbound.wake_all();
    }

    /// As TCP does it: an end with unread bytes is a reset, and what is still on its way is lost.
    fn shutdown(&self) {
        if self.is_severed() {
            self.shut.set(true);
            return;
        }
        if !self.inbound.arriving.borrow().is_empty() {
            self.outbound.discard();
        }
        self.shut.set(true);
        self.inbound.closed.set(true);
        self.outbound.closed.set(true);
        self.inbound.wake_all();
        self.outbound.wake_all();
    }

    fn taken_bytes(&self) -> Option<u64> {
        Some(self.outbound.taken.get())
    }

    fn peer(&self) -> SocketAddr {
        self.peer
    }

    fn local(&self) -> SocketAddr {
        self.local
    }

    /// A simulated host has one.
    fn interface(&self) -> Option<String> {
        Some("sim0".to_owned())
    }
}
