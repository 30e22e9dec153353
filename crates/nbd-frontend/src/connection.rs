//! One connection: the driver of `nbd_server::Connection`.
//!
//! Receiving and sending are two tasks. The receiving one feeds bytes to the state machine and acts on its steps; each
//! request then runs when its turn comes, and its reply goes into the outbox. The last of both takes the connection off the
//! core's list.
//!
//! - NBD-RECEIVE-1: a connection is not read from while it has too much to be sent, too many requests under way, or no room for
//!   more.
//! - NBD-RECEIVE-2: a client owes nothing while it is not read from.
//! - NBD-RECEIVE-3: requests that were received before the client ended the connection, and were not read for that long, are not
//!   carried out.

use std::cell::{Cell, OnceCell, RefCell};
use std::fmt;
use std::pin::pin;
use std::rc::{Rc, Weak};

use dataplane::{
    Core, Export, ExportId, Filling, Link, Outbox, Outcome, Pace, Session, Tag, VolumeEvent,
};
use io_traits::{BufferSlice, Device, Stream, StreamError, World};
use local_sync::{Either, Notify, first_of};
use nbd_server::{
    CloseReason, Connection as Machine, Operation, Refused, Step, TlsOffer, decode_operation,
};
use nbd_wire::{Extent, Request as WireRequest};
use slab::Slab;
use strangers::source;
use units::{BLOCK_SIZE, Duration, Instant, LbaRange};
use volume::{ReadData, VolumeExtent};

use crate::admission::size_of;
use crate::errors::errno_of;
use crate::frontend::{NbdFrontend, NbdOptions, Way};
use crate::incoming::Incoming;
use crate::tls::TlsStream;
use crate::work::{Reply, Rest, Work, ZERO_BLOCKS, Zeroes, blocks_of};

/// Headers that wait to be sent before reading stops.
const UNSENT_BYTES_MAX: usize = 64 << 10;
/// Requests of a connection under way. `nbdcopy` and Linux send up to 128.
const REQUESTS_MAX: usize = 256;
/// Extents of one answer.
const EXTENTS_MAX: usize = 1024;
/// A client has this long for its haggling as a whole, TLS included: one that sends a byte now and then keeps no place.
const HAGGLING_TIME: Duration = Duration::from_secs(30);
/// Longest silence of a client that has something to send or to read.
const STALL_TIMEOUT: Duration = Duration::from_secs(30);
/// The time that the client has to read the last words before the connection is torn down.
const LINGER: Duration = Duration::from_secs(1);

/// The outbox, as the state machine fills it.
pub(crate) struct Out<'a, 'b>(&'a mut Filling<'b>);

impl nbd_server::Outbox for Out<'_, '_> {
    fn bytes(&mut self, bytes: &[u8]) {
        self.0.bytes(bytes);
    }
}

/// The reason for which bytes are not used up.
enum Taken {
    /// They are.
    All,
    /// There are too many requests.
    TooMany,
    /// So much memory is to be found.
    Memory(i64),
    /// TLS is to begin.
    StartTls,
    /// The connection is over.
    Over(CloseReason),
}

pub(crate) struct Connection<W: World, D: Device> {
    /// Itself, for requests that it submits.
    me: Weak<Self>,
    pub(crate) core: Core<W, D>,
    pub(crate) frontend: NbdFrontend,
    pub(crate) way: Way,
    pub(crate) link: Link,
    pub(crate) stream: TlsStream<W::Stream>,
    /// By which it came; looked up when it matters.
    interface: OnceCell<Option<String>>,
    machine: RefCell<Machine>,
    outbox: Outbox,
    pub(crate) export: RefCell<Option<Rc<Export<W, D>>>>,
    pub(crate) incoming: RefCell<Option<Incoming>>,
    requests: RefCell<Slab<Work>>,
    zeroes: OnceCell<BufferSlice>,
    /// A reason not to read may be gone.
    resume: Notify,
    is_reading: Cell<bool>,
    /// The reason for its end, unless its client ended it.
    end_reason: RefCell<Option<String>>,
    /// The beginning of the haggling.
    begun: Instant,
    received_bytes: Cell<u64>,
    sending_pace: Pace,
    reading_pace: Pace,
    tasks_left: Cell<u8>,
}

impl<W: World, D: Device> Connection<W, D> {
    pub(crate) fn new(
        core: &Core<W, D>,
        frontend: &NbdFrontend,
        way: Way,
        link: Link,
        stream: W::Stream,
    ) -> Rc<Self> {
        let resume = Notify::new();
        let stream = TlsStream::new(stream);
        let outbox = Outbox::new(stream.clone(), resume.clone());
        let NbdOptions { limits, tls } = &frontend.state.options;
        let is_offered = tls.is_some() && way == Way::Network;
        let offer = if is_offered { TlsOffer::Optional } else { TlsOffer::None };
        let machine = outbox.put(|out| Machine::new(*limits, offer, &mut Out(out)));
        Rc::new_cyclic(|me| Self {
            me: me.clone(),
            core: core.clone(),
            frontend: frontend.clone(),
            way,
            link,
            stream,
            interface: OnceCell::new(),
            machine: RefCell::new(machine),
            outbox,
            export: RefCell::default(),
            incoming: RefCell::default(),
            requests: RefCell::default(),
            zeroes: OnceCell::new(),
            resume,
            is_reading: Cell::new(true),
            end_reason: RefCell::default(),
            begun: core.running_time(),
            received_bytes: Cell::new(0),
            sending_pace: Pace::default(),
            reading_pace: Pace::default(),
            tasks_left: Cell::new(2),
        })
    }

    /// The interface by which it came, if the system tells.
    pub(crate) fn interface(&self) -> Option<&str> {
        self.interface.get_or_init(|| self.stream.interface()).as_deref()
    }

    /// Starts the two tasks.
    pub(crate) fn start(self: &Rc<Self>) {
        let connection = self.clone();
        self.core.world().spawn(async move {
            match connection.outbox.run().await {
                Ok(()) => connection.stream.shutdown_write(),
                Err(_) => connection.cut_now(),
            }
            connection.task_ended();
        });
        let connection = self.clone();
        self.core.world().spawn(async move {
            let client_has_closed = connection.receive().await;
            connection.end();
            if client_has_closed {
                connection.sent().await;
            } else {
                connection.linger().await;
            }
            connection.cut_now();
            connection.task_ended();
        });
    }

    /// Ends the connection once what is in the outbox was sent.
    fn end(&self) {
        if self.link.is_open() {
            self.link.close();
            self.incoming.take();
            self.outbox.close();
            self.resume.notify_all();
        }
    }

    /// Ends the connection now.
    fn cut_now(&self) {
        self.end();
        if self.link.cut() {
            self.stream.shutdown();
        }
    }

    fn task_ended(&self) {
        self.tasks_left.set(self.tasks_left.get() - 1);
        if self.tasks_left.get() == 0 {
            self.log_end();
            self.export.take();
            self.link.leave();
        }
    }

    /// Notes why the connection ends; the first reason is the one.
    fn note_end(&self, reason: impl fmt::Display) {
        self.end_reason.borrow_mut().get_or_insert_with(|| reason.to_string());
    }

    /// A client reconnects, often without a word to its user: an end that it did not ask for is told at `info`, the first of each
    /// reason of late.
    fn log_end(&self) {
        let (connection, peer) = (self.link.id(), self.stream.peer());
        let export = self.export.borrow().as_ref().map(|export| export.uuid().to_string());
        let export = export.as_deref();
        let Some(reason) = self.end_reason.take() else {
            return tracing::debug!(%connection, %peer, export, "NBD connection ended");
        };
        let (state, now) = (&self.frontend.state, self.core.world().now());
        let is_news = state.ends.borrow_mut().allows((source(peer.ip()), reason.clone()), now);
        if is_news && (export.is_some() || state.quiet.borrow_mut().allows(peer.ip(), now)) {
            tracing::info!(%connection, %peer, export, reason, "NBD connection ended");
        } else {
            tracing::debug!(%connection, %peer, export, reason, "NBD connection ended");
        }
    }

    /// Receives until the connection is over. Returns whether its client has closed its side.
    async fn receive(self: &Rc<Self>) -> bool {
        let mut closed = pin!(self.link.closed().notified());
        // What could not be taken in when it came. The chunk itself is not kept: others need it.
        let mut rest = Vec::new();
        while self.link.is_open() {
            if self.must_pause() {
                self.pause().await;
                // NBD-RECEIVE-3.
                match self.stream.end_by_peer() {
                    Some(end) => return end == StreamError::Closed,
                    None => continue,
                }
            }
            let taken = if rest.is_empty() {
                let chunk = match first_of(self.stream.recv(), closed.as_mut()).await.first() {
                    Some(Ok(chunk)) => chunk,
                    Some(Err(end)) => return end == StreamError::Closed,
                    None => return false,
                };
                self.received_bytes.set(self.received_bytes.get() + chunk.len() as u64);
                let mut input = &chunk[..];
                let taken = self.take_in(&mut input);
                rest.extend_from_slice(input);
                taken
            } else {
                let mut input = &rest[..];
                let taken = self.take_in(&mut input);
                let used = rest.len() - input.len();
                rest.drain(..used);
                taken
            };
            match taken {
                Taken::All | Taken::TooMany => {}
                Taken::Memory(bytes) => {
                    self.is_reading.set(false);
                    let Some(share) = self.link.window().take(bytes).await else { return false };
                    self.is_reading.set(true);
                    self.provide(share);
                }
                Taken::StartTls => match self.start_tls(&rest).await {
                    Ok(plain) => rest = plain,
                    Err(error) => {
                        self.note_end(format_args!("TLS was not begun: {error}"));
                        return false;
                    }
                },
                Taken::Over(reason) => {
                    if !reason.is_by_client() {
                        self.note_end(reason);
                    }
                    self.answered().await;
                    return false;
                }
            }
        }
        false
    }

    /// Begins TLS with what has come behind the option.
    async fn start_tls(&self, begun: &[u8]) -> Result<Vec<u8>, StreamError> {
        // NBD-TLS-1: the client hears that it may begin.
        while self.link.is_open() && self.outbox.copied_bytes() > 0 {
            self.resume.notified().await;
        }
        let state = &self.frontend.state;
        let config = state.options.tls.as_ref().expect("it was offered").current();
        let mut closed = pin!(self.link.closed().notified());
        let off_core = (self.core.world(), &state.computing);
        let started = pin!(self.stream.start(off_core, config, begun));
        let plain = first_of(started, closed.as_mut()).await.first();
        let plain = plain.unwrap_or(Err(StreamError::Reset))?;
        self.machine.borrow_mut().tls_started();
        Ok(plain)
    }

    /// NBD-RECEIVE-1. Payload that is on its way must be able to arrive, or its memory is never free again.
    fn must_pause(&self) -> bool {
        self.outbox.copied_bytes() > UNSENT_BYTES_MAX
            || self.requests.borrow().len() >= REQUESTS_MAX
            || (!self.link.window().has_room() && self.incoming.borrow().is_none())
    }

    /// Waits until it is right to read.
    async fn pause(&self) {
        self.is_reading.set(false);
        while self.link.is_open() && self.must_pause() {
            let resumed = self.resume.notified();
            if self.link.window().has_room() || self.incoming.borrow().is_some() {
                resumed.await;
            } else {
                first_of(self.link.window().room(), resumed).await;
            }
        }
        self.is_reading.set(true);
    }

    /// Waits until all requests are answered, or the connection is closed.
    async fn answered(&self) {
        while self.link.is_open() && !self.requests.borrow().is_empty() {
            self.resume.notified().await;
        }
    }

    /// Receives and drops until the client has closed its side, too, but not for long: bytes that no task reads would turn
    /// the end into a reset, and cost the client the last words.
    async fn linger(&self) {
        let world = self.core.world();
        let over = async {
            self.sent().await;
            world.sleep_until(world.now() + LINGER).await;
        };
        let mut over = pin!(over);
        while let Either::First(Ok(_)) = first_of(self.stream.recv(), over.as_mut()).await {}
        self.sent().await;
    }

    /// Waits for the end of sending.
    async fn sent(&self) {
        while !self.outbox.has_ended() {
            self.resume.notified().await;
        }
    }

    /// Acts on received bytes.
    fn take_in(&self, input: &mut &[u8]) -> Taken {
        while self.link.is_open() {
            match self.put(|machine, out| machine.poll(input, out)) {
                Step::NeedMore => return Taken::All,
                Step::StartTls => return Taken::StartTls,
                Step::List => self.list(),
                Step::Find { name, purpose } => self.find(&name, purpose),
                Step::Request(request) => {
                    self.execute(&request);
                    if self.requests.borrow().len() >= REQUESTS_MAX {
                        return Taken::TooMany;
                    }
                }
                Step::RequestWithPayload(request) => {
                    if let Some(bytes) = self.expect(request) {
                        match self.link.window().try_take(bytes) {
                            Some(share) => self.provide(share),
                            None => return Taken::Memory(bytes),
                        }
                    }
                }
                Step::Payload(bytes) => self.copy(bytes),
                Step::PayloadEnd => {
                    self.payload_complete();
                    if self.requests.borrow().len() >= REQUESTS_MAX {
                        return Taken::TooMany;
                    }
                }
                Step::Closed(reason) => return Taken::Over(reason),
            }
        }
        Taken::All
    }

    /// Checks a request for the export as it is now.
    pub(crate) fn decode(&self, request: &WireRequest) -> Result<Operation, Refused> {
        let export = self.export.borrow();
        let size_bytes = export.as_ref().map_or(0, |export| size_of(export));
        decode_operation(&self.machine.borrow(), request, size_bytes)
    }

    /// Begins a request without payload.
    fn execute(&self, request: &WireRequest) {
        let WireRequest { cookie, offset, .. } = *request;
        let operation = match self.decode(request) {
            Ok(operation) => operation,
            Err(refused) => return self.reply_refused(request, refused),
        };
        let work =
            |changes, reply, rest| Work { cookie, offset, changes, reply, rest, _share: None };
        match operation {
            Operation::Read { len_bytes: 0, .. } => {
                self.put(|machine, out| machine.reply_data((cookie, offset), 0, out, |_| {}));
            }
            Operation::Read { offset, len_bytes } => {
                let (range, skip) = blocks_of(offset, len_bytes.into());
                let reply = Reply::Data { skip: skip as usize, len_bytes: len_bytes as usize };
                let work = work(false, reply, Rest::Nothing);
                self.submit(work, dataplane::Request::Read(range));
            }
            Operation::Flush => {
                let work = work(false, Reply::Done, Rest::Nothing);
                self.submit(work, dataplane::Request::Flush);
            }
            Operation::Trim { offset, len_bytes } => {
                let rest = self.zeroes(offset, len_bytes, (false, true));
                self.begin(work(true, Reply::Done, rest));
            }
            Operation::WriteZeroes { offset, len_bytes, no_hole } => {
                let rest = self.zeroes(offset, len_bytes, (no_hole, false));
                self.begin(work(true, Reply::Done, rest));
            }
            Operation::Cache { len_bytes: 0, .. } => self.reply_done(cookie, offset),
            // The engine keeps no data, but the map, which is looked up here.
            Operation::Cache { offset, len_bytes } => {
                let (range, _) = blocks_of(offset, len_bytes);
                self.submit(work(false, Reply::Done, Rest::Nothing), extents(range));
            }
            Operation::BlockStatus { offset, len_bytes, one } => {
                let (range, skip) = blocks_of(offset, len_bytes);
                let reply = Reply::Status { skip, len_bytes, one };
                self.submit(work(false, reply, Rest::Nothing), extents(range));
            }
            Operation::Write { .. } => unreachable!("a write has a payload"),
        }
    }

    fn zeroes(
        &self,
        offset: u64,
        len_bytes: u64,
        (takes_space, whole_blocks_only): (bool, bool),
    ) -> Rest {
        let zeroes = self
            .zeroes
            .get_or_init(|| io_traits::Buffer::zeroed(ZERO_BLOCKS as usize).into_slice());
        Rest::Zeroes(Zeroes {
            bytes: offset..offset + len_bytes,
            takes_space,
            whole_blocks_only,
            has_metadata: self.has_metadata(),
            zeroes: zeroes.clone(),
        })
    }

    /// Begins what is to be done in parts.
    pub(crate) fn begin(&self, mut work: Work) {
        match work.rest.next() {
            Some(request) => self.submit(work, request),
            None => self.reply_done(work.cookie, work.offset),
        }
    }

    fn submit(&self, work: Work, request: dataplane::Request) {
        let export = self.export.borrow().clone();
        let export = export.expect("requests come behind the opening");
        let tag = self.requests.borrow_mut().insert(work);
        let tag = Tag::try_from(tag).expect("few requests are under way");
        self.core.submit(self.me(), tag, &export, request);
    }

    /// Goes on with the request of this tag, or ends it.
    fn step(&self, tag: Tag) {
        let next = self.requests.borrow_mut()[tag as usize].rest.next();
        let Some(request) = next.filter(|_| self.link.is_open()) else {
            let work = self.take_work(tag);
            return self.reply_done(work.cookie, work.offset);
        };
        let export = self.export.borrow().clone();
        let export = export.expect("requests come behind the opening");
        self.core.submit(self.me(), tag, &export, request);
    }

    fn me(&self) -> Rc<Self> {
        self.me.upgrade().expect("it is in use")
    }

    fn take_work(&self, tag: Tag) -> Work {
        let work = self.requests.borrow_mut().remove(tag as usize);
        self.resume.notify_all();
        work
    }

    pub(crate) fn reply_done(&self, cookie: u64, offset: u64) {
        self.reply(|machine, out| machine.reply_done(cookie, offset, out));
    }

    pub(crate) fn reply_refused(&self, request: &WireRequest, refused: Refused) {
        let Refused { errno, message } = refused;
        let place = (request.cookie, request.offset);
        self.count_error(errno.name());
        self.reply(|machine, out| machine.reply_error(place, errno, message, out));
    }

    fn reply_read(&self, work: &Work, data: ReadData, share: dataplane::Share) {
        let Reply::Data { skip, len_bytes } = work.reply else { unreachable!("it is a read's") };
        self.reply(|machine, out| {
            let place = (work.cookie, work.offset);
            machine.reply_data(place, len_bytes as u64, out, |out| {
                pieces_of(data, skip, len_bytes, |piece| out.0.data(piece));
                out.0.hold(share);
            });
        });
    }

    fn reply_extents(&self, work: &Work, found: &[VolumeExtent]) {
        let Reply::Status { skip, len_bytes, one } = work.reply else {
            return self.reply_done(work.cookie, work.offset);
        };
        let extents = extents_of(found, skip, len_bytes);
        let extents = if one { &extents[..1] } else { &extents[..] };
        let place = (work.cookie, work.offset);
        self.reply(|machine, out| machine.reply_status(place, extents, out));
    }

    #[cold]
    fn count_error(&self, name: &'static str) {
        if let Some(export) = &*self.export.borrow() {
            export.note_error(name);
        }
    }

    /// Puts a reply into the outbox, if its client is there to read it.
    fn reply(&self, encode: impl FnOnce(&mut Machine, &mut Out<'_, '_>)) {
        if self.link.is_open() {
            self.put(encode);
        }
    }

    /// Runs `step` on the state machine and queues what it has to send.
    pub(crate) fn put<T>(&self, step: impl FnOnce(&mut Machine, &mut Out<'_, '_>) -> T) -> T {
        self.outbox.put(|out| step(&mut self.machine.borrow_mut(), &mut Out(out)))
    }

    /// Returns whether the client, which has moved `bytes` of what it has to move, is too slow with the rest.
    fn is_too_slow(&self, pace: &Pace, now: Instant, bytes: Option<u64>) -> bool {
        let in_need = self.link.window().is_needed_by_others();
        pace.is_too_slow(now, bytes, STALL_TIMEOUT, in_need)
    }
}

/// The request for what is known of `range`.
fn extents(range: LbaRange) -> dataplane::Request {
    dataplane::Request::Extents { range, extents_max: EXTENTS_MAX }
}

/// Hands out `len_bytes` bytes of `data` behind the first `skip`.
fn pieces_of(data: ReadData, skip: usize, len_bytes: usize, mut put: impl FnMut(BufferSlice)) {
    let (mut at, end) = (0, skip + len_bytes);
    for piece in data.pieces {
        let piece_end = at + piece.len_bytes();
        let (from, to) = (skip.clamp(at, piece_end), end.clamp(at, piece_end));
        if from < to {
            let is_whole = (from, to) == (at, piece_end);
            put(if is_whole { piece } else { piece.slice(from - at..to - at) });
        }
        at = piece_end;
    }
}

/// The extents of `len_bytes` bytes, of which `skip` bytes of the first block are none.
fn extents_of(found: &[VolumeExtent], skip: u64, len_bytes: u64) -> Vec<Extent> {
    let (mut extents, mut at, end) = (Vec::new(), 0, skip + len_bytes);
    for VolumeExtent { blocks, is_mapped } in found {
        let extent_end = at + blocks * BLOCK_SIZE as u64;
        let (from, to) = (at.max(skip), extent_end.min(end));
        if from < to {
            let status = if *is_mapped { 0 } else { Extent::HOLE | Extent::ZERO };
            extents.push(Extent { len_bytes: to - from, status });
        }
        at = extent_end;
    }
    extents
}

impl<W: World, D: Device> Connection<W, D> {
    fn has_export(&self, volume: ExportId) -> bool {
        self.export.borrow().as_ref().is_some_and(|export| export.id() == volume)
    }

    /// Returns whether the client may still have its export open.
    fn still_qualifies(&self) -> bool {
        let export = self.export.borrow();
        let access = export.as_ref().and_then(|export| export.access());
        access.is_some_and(|access| self.is_admitted_by(&access))
    }
}

impl<W: World, D: Device> Session for Connection<W, D> {
    fn link(&self) -> &Link {
        &self.link
    }

    fn complete(&self, tag: Tag, outcome: Outcome) {
        match outcome {
            Outcome::Done => self.step(tag),
            Outcome::Data(data, share) => {
                let work = self.take_work(tag);
                self.reply_read(&work, data, share);
            }
            Outcome::Extents(found) => {
                let work = self.take_work(tag);
                self.reply_extents(&work, &found);
            }
            Outcome::Failed(error) => {
                let work = self.take_work(tag);
                let errno = errno_of(&error, work.changes);
                self.count_error(errno.name());
                let (place, message) = ((work.cookie, work.offset), error.to_string());
                self.reply(|machine, out| machine.reply_error(place, errno, &message, out));
            }
        }
    }

    fn requests(&self) -> usize {
        if self.link.is_open() { self.requests.borrow().len() } else { 0 }
    }

    fn has_open(&self, volume: ExportId) -> bool {
        self.has_export(volume)
    }

    fn on_volume(&self, volume: ExportId, event: VolumeEvent) {
        if !self.has_export(volume) {
            return;
        }
        match event {
            // Requests are checked against the size as it is.
            VolumeEvent::Resized => {}
            VolumeEvent::AccessChanged { revoked } => {
                if revoked || !self.still_qualifies() {
                    self.cut("the client may not have the export open any more");
                }
            }
            VolumeEvent::Suspended => self.close("the server may not serve the volume now"),
            VolumeEvent::Deleted => self.close("the volume is gone"),
        }
    }

    fn on_tick(&self, now: Instant) {
        if self.link.is_cut() {
            return;
        }
        let taken = self.outbox.taken_bytes();
        if self.is_too_slow(&self.reading_pace, now, taken) {
            return self.cut("the client does not read");
        }
        if !self.link.is_open() {
            return;
        }
        let machine = self.machine.borrow();
        let (is_transmitting, owes) = (machine.is_transmitting(), machine.owed_bytes().is_some());
        drop(machine);
        // NBD-RECEIVE-2.
        let owed = (owes && self.is_reading.get()).then(|| self.received_bytes.get());
        let is_overdue = !is_transmitting && now.since(self.begun) > HAGGLING_TIME;
        if self.is_too_slow(&self.sending_pace, now, owed) {
            self.cut("the client does not send what it owes");
        } else if is_overdue {
            self.cut("the client opens no export");
        }
    }

    fn close(&self, reason: &str) {
        self.note_end(reason);
        self.end();
    }

    fn cut(&self, reason: &str) {
        self.note_end(reason);
        self.cut_now();
    }
}
