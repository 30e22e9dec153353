//! One connection: the driver of `nvme_target::Connection`.
//!
//! Receiving and sending are two tasks. The receiving one feeds bytes to the state machine and acts
//! on its steps; each command then runs when its turn comes (`commands.rs`), and its reply goes into the outbox.
//! Both tasks end together; the last one takes the connection off the core's list.
//!
//! - NVME-RECEIVE-1: a connection is not read from while it has too much to be sent, too much debt, or neither
//!   room for more nor data on its way that was asked for: what comes in is bounded by what goes out.
//! - NVME-RECEIVE-2: the clock by which the host owes something stands still meanwhile, and while the core does not run.
//! - NVME-RECEIVE-3: what the host owes and what it has to read are judged apart: none makes up for the other.
//! - NVME-RECEIVE-4: what a host had sent before it ended the connection, and was not read for this long, is not carried
//!   out: it may have sent it again elsewhere.
//! - NVME-RECEIVE-5: a closed connection holds no memory but that of requests under way.

use std::cell::{Cell, OnceCell, RefCell};
use std::pin::pin;
use std::rc::Rc;

use dataplane::{
    Export, ExportId, Filling, Link, Outbox, Outcome, Pace, Session, Share, Tag, VolumeEvent,
};
use io_traits::{Buffer, BufferSlice, Device, Landed, Stream, StreamError, World};
use local_sync::{Either, Notify, first_of};
use nvme_target::{Awaited, CloseReason, Connection as Transport, SlotId, Step};
use nvme_wire::Status;
use reservation::{Host, Notice};
use situations::{Situation, situation_if};
use units::{Duration, Instant, SectorSize};

use crate::association::Association;
use crate::authentication::QueueAuthentication;
use crate::frontend::NvmeCore;
use crate::incoming::{IncomingTable, Payload};
use crate::life::EndReason;
use crate::received::Received;

/// Headers, completions and R2Ts that wait to be sent before reading stops. A host that keeps to its
/// queue's depth never has as many: 128 answers of at most 160 bytes each, padding and digests included.
const UNSENT_BYTES_MAX: usize = 32 << 10;
/// Debt (see `dataplane/src/memory.rs`) beyond which reading stops, as long as some of it is of commands that are complete and end
/// by themselves. A command of which a part is missing may owe more alone, and can pay nothing back before the rest has come.
const DEBT_BYTES_MAX: u64 = 32 << 10;
/// Bytes of data that are worth being received right where they belong: less comes with what is before and behind it.
const LANDED_BYTES_MIN: u32 = 16 << 10;
/// Most of them in one receive, so that other connections get their turns.
const LANDED_BYTES_MAX: usize = 128 << 10;
/// Time for the host to read the last PDU before the connection is torn down.
const LINGER: Duration = Duration::from_secs(1);

/// The role of a connection in its controller.
pub(crate) enum Role<W: World, D: Device> {
    /// No Connect yet.
    New,
    /// The admin queue.
    Admin(Rc<Association<W, D>>),
    /// An I/O queue.
    Io(Rc<IoQueue<W, D>>),
}

/// The objects that commands of an I/O queue work on.
pub(crate) struct IoQueue<W: World, D: Device> {
    pub(crate) association: Rc<Association<W, D>>,
    pub(crate) export: Rc<Export<W, D>>,
    /// Logical blocks of the volume.
    pub(crate) sector: SectorSize,
    pub(crate) qid: u16,
}

/// The outbox, as the state machine fills it.
pub(crate) struct Out<'a, 'b>(&'a mut Filling<'b>);

impl nvme_target::Outbox for Out<'_, '_> {
    fn bytes(&mut self, bytes: &[u8]) {
        self.0.bytes(bytes);
    }
}

impl Out<'_, '_> {
    /// Appends data, as [`Filling::data`].
    pub(crate) fn data(&mut self, data: BufferSlice) {
        self.0.data(data);
    }

    /// Keeps a share of memory, as [`Filling::hold`].
    pub(crate) fn hold(&mut self, share: Share) {
        self.0.hold(share);
    }
}

/// NVME-RECEIVE-2: a clock that stands still while nothing is read.
#[derive(Default)]
struct ReadingClock {
    stopped_at: Cell<Option<Instant>>,
    stopped_for: Cell<Duration>,
}

impl ReadingClock {
    fn time(&self, now: Instant) -> Instant {
        Instant(0) + self.stopped_at.get().unwrap_or(now).since(Instant(0) + self.stopped_for.get())
    }

    fn stop(&self, now: Instant) {
        self.stopped_at.set(Some(now));
    }

    fn go_on(&self, now: Instant) {
        if let Some(stopped_at) = self.stopped_at.take() {
            self.stopped_for.set(self.stopped_for.get() + now.since(stopped_at));
        }
    }
}

pub(crate) struct Connection<W: World, D: Device> {
    pub(crate) core: NvmeCore<W, D>,
    pub(crate) link: Link,
    pub(crate) end_reason: EndReason,
    /// The log has been told the reason for which its Connect is refused.
    pub(crate) is_told: Cell<bool>,
    stream: W::Stream,
    /// The interface by which it came; looked up when it is needed.
    interface: OnceCell<Option<String>>,
    transport: RefCell<Transport>,
    pub(crate) incoming: IncomingTable,
    outbox: Outbox,
    /// The host's paces: with what it owes, and with what it has to read.
    sending_pace: Pace,
    reading_pace: Pace,
    pub(crate) role: RefCell<Role<W, D>>,
    /// The authentication that this connection must complete; set when its subsystem is known.
    pub(crate) authentication: OnceCell<Rc<QueueAuthentication<W, D>>>,
    /// A reason not to read may be gone.
    pub(crate) resume: Notify,
    reading: ReadingClock,
    tasks_left: Cell<u8>,
}

impl<W: World, D: Device> Connection<W, D> {
    pub(crate) fn new(core: &NvmeCore<W, D>, link: Link, stream: W::Stream) -> Rc<Self> {
        let resume = Notify::new();
        Rc::new(Self {
            link,
            end_reason: EndReason::default(),
            is_told: Cell::new(false),
            transport: RefCell::new(Transport::new(core.running_time(), &core.options().limits)),
            incoming: IncomingTable::default(),
            outbox: Outbox::new(stream.clone(), resume.clone()),
            sending_pace: Pace::default(),
            reading_pace: Pace::default(),
            interface: OnceCell::new(),
            stream,
            role: RefCell::new(Role::New),
            authentication: OnceCell::new(),
            resume,
            reading: ReadingClock::default(),
            tasks_left: Cell::new(2),
            core: core.clone(),
        })
    }

    /// The interface by which it came, if the system tells.
    pub(crate) fn interface(&self) -> Option<&str> {
        self.interface.get_or_init(|| self.stream.interface()).as_deref()
    }

    /// Starts the two tasks.
    pub(crate) fn start(self: &Rc<Self>) {
        self.log_accepted();
        let connection = self.clone();
        self.core.world().spawn(async move {
            match connection.outbox.run().await {
                Ok(()) => connection.stream.shutdown_write(),
                Err(error) => {
                    connection.note_end(error);
                    connection.cut();
                }
            }
            connection.task_ended();
        });
        let connection = self.clone();
        self.core.world().spawn(async move {
            let host_has_closed = connection.receive().await;
            connection.close();
            if host_has_closed {
                connection.sent().await;
            } else {
                connection.linger().await;
            }
            connection.cut();
            connection.task_ended();
        });
    }

    /// Ends the connection once what is in the outbox was sent.
    pub(crate) fn close(&self) {
        if !self.is_open() {
            return;
        }
        self.note_what_is_cut_short();
        // NVME-RECEIVE-5.
        self.link.close();
        self.incoming.clear();
        self.outbox.close();
        self.resume.notify_all();
    }

    fn note_what_is_cut_short(&self) {
        situation_if(Situation::ConnectionEndsUnderRequests, || self.requests_under_way() > 0);
        situation_if(Situation::ConnectionEndsUnderData, || self.incoming.is_solicited());
        let is_halved = || self.transport.borrow().awaits_second_half();
        situation_if(Situation::FusedPairSeparated, is_halved);
    }

    /// Ends the connection now.
    pub(crate) fn cut(&self) {
        self.close();
        if self.link.cut() {
            self.stream.shutdown();
        }
    }

    pub(crate) fn is_open(&self) -> bool {
        self.link.is_open()
    }

    /// Commands under way that will be answered, but for those that wait for an event.
    pub(crate) fn requests_under_way(&self) -> usize {
        match &*self.role.borrow() {
            Role::Io(_) if self.is_open() => {
                // Half an operation is not waited for.
                let transport = self.transport.borrow();
                let unfinished = self.incoming.late() + usize::from(transport.awaits_second_half());
                transport.in_flight().saturating_sub(unfinished)
            }
            _ => 0,
        }
    }

    /// Time as far as the host had the chance to be heard (NVME-RECEIVE-2).
    pub(crate) fn reading_time(&self) -> Instant {
        self.reading.time(self.core.running_time())
    }

    /// Acts on deadlines that have passed.
    fn look_at_deadlines(&self, now: Instant) {
        if self.link.is_cut() {
            return;
        }
        if self.is_too_slow(&self.reading_pace, now, self.outbox.taken_bytes()) {
            self.note_end("the host does not read");
            return self.cut();
        }
        if !self.is_open() {
            return;
        }
        if self.unproven().is_some_and(|queue| queue.is_overdue(now)) {
            self.note_end("the host does not authenticate");
            return self.cut();
        }
        let reading_time = self.reading_time();
        let reason = self.transport.borrow_mut().on_timeout(reading_time);
        let owed = self.transport.borrow().owed_bytes_received();
        if let Some(reason) = reason {
            self.note_end(reason);
            self.cut();
        } else if self.is_too_slow(&self.sending_pace, reading_time, owed) {
            self.note_end(CloseReason::Stalled);
            self.cut();
        }
    }

    /// The volume that it is a queue to, or asked to be.
    pub(crate) fn export(&self) -> Option<Rc<Export<W, D>>> {
        match &*self.role.borrow() {
            Role::New => None,
            Role::Io(queue) => Some(queue.export.clone()),
            Role::Admin(association) => association.subject.export().cloned(),
        }
    }

    /// If nothing is left to be shown, its host may use its volume from now on.
    pub(crate) fn let_in_if_proven(&self) {
        if let Some(export) = self.export().filter(|_| self.unproven().is_none()) {
            self.link.let_in(&export);
        }
    }

    /// The authentication that the host has not passed yet.
    pub(crate) fn unproven(&self) -> Option<&Rc<QueueAuthentication<W, D>>> {
        self.authentication.get().filter(|queue| !queue.has_passed())
    }

    /// Returns true if its host has to authenticate, and has not shown yet that it knows a token.
    pub(crate) fn is_strangers(&self) -> bool {
        self.unproven().is_some_and(|queue| !queue.is_convinced())
    }

    /// Returns whether the host, which has moved `bytes` of what it has to move, is too slow with the rest.
    fn is_too_slow(&self, pace: &Pace, now: Instant, bytes: Option<u64>) -> bool {
        let in_need = self.link.window().is_needed_by_others();
        pace.is_too_slow(now, bytes, self.core.options().limits.stall_timeout, in_need)
    }

    /// Receives until the connection is over; whether its host has closed its side.
    async fn receive(self: &Rc<Self>) -> bool {
        let mut closed = pin!(self.link.closed().notified());
        while self.is_open() {
            if self.must_pause() {
                self.pause().await;
                // NVME-RECEIVE-4.
                match self.stream.end_by_peer() {
                    Some(end) => return self.ended_by_host(end),
                    None => continue,
                }
            }
            let taken = match first_of(self.receive_once(), closed.as_mut()).await.first() {
                Some(Ok(taken)) => taken,
                Some(Err(end)) => return self.ended_by_host(end),
                None => return false,
            };
            if let Some(reason) = taken {
                self.note_end(reason);
                if let (CloseReason::QueueOverrun, Role::Io(queue)) = (reason, &*self.role.borrow())
                {
                    queue.association.cut_others(self, "one of its queues was overrun");
                }
                return false;
            }
        }
        false
    }

    /// Receives once, and acts on what has come; says if the connection is over.
    async fn receive_once(self: &Rc<Self>) -> Result<Option<CloseReason>, StreamError> {
        let Some((awaited, buffer)) = self.lend() else {
            let chunk = self.stream.recv().await?;
            return Ok(self.take_in(&Received::new(chunk, &self.core.state.kept), 0));
        };
        let (start, len_bytes) = (awaited.offset as usize, awaited.len_bytes as usize);
        let part = start..start + len_bytes.min(LANDED_BYTES_MAX);
        let landed = self.stream.recv_into(buffer, part).await?;
        Ok(self.take_in_landed(awaited, landed))
    }

    /// The data that comes next, and the memory that it belongs in, if there is enough of it to be received right there.
    fn lend(&self) -> Option<(Awaited, Buffer)> {
        let awaited = self.transport.borrow().awaited()?;
        let is_much = awaited.len_bytes >= LANDED_BYTES_MIN;
        let buffer = is_much.then(|| self.incoming.lend(awaited.slot)).flatten()?;
        Some((awaited, buffer))
    }

    fn take_in_landed(
        self: &Rc<Self>,
        awaited: Awaited,
        Landed { buffer, len_bytes, chunk, behind_from }: Landed<<W::Stream as Stream>::Chunk>,
    ) -> Option<CloseReason> {
        self.incoming.landed(awaited.slot, buffer, awaited.offset as usize, len_bytes);
        if self.is_open() {
            let len_bytes = u32::try_from(len_bytes).expect("no more than was awaited");
            self.transport.borrow_mut().landed(self.reading_time(), len_bytes);
        }
        self.take_in(&Received::new(chunk, &self.core.state.kept), behind_from)
    }

    /// Returns true if the stream was ended by the host.
    fn ended_by_host(&self, end: StreamError) -> bool {
        let is_closed = end == StreamError::Closed;
        if !is_closed {
            self.note_end(end);
        }
        is_closed
    }

    /// NVME-RECEIVE-1. Data that is on its way must be able to arrive, or its memory is never free again.
    fn must_pause(&self) -> bool {
        let is_awaited = || {
            let transport = self.transport.borrow();
            self.incoming.is_solicited() || transport.is_in_data() || transport.awaits_second_half()
        };
        self.owes_too_much() || (!self.link.window().has_room() && !is_awaited())
    }

    fn owes_too_much(&self) -> bool {
        let debt = self.link.window().debt_bytes();
        self.outbox.copied_bytes() > UNSENT_BYTES_MAX
            || (debt > DEBT_BYTES_MAX && debt > self.incoming.debt_bytes())
    }

    /// Waits until it is right to read.
    async fn pause(&self) {
        self.reading.stop(self.core.running_time());
        while self.is_open() && self.must_pause() {
            let resumed = self.resume.notified();
            if self.outbox.copied_bytes() > UNSENT_BYTES_MAX {
                resumed.await;
            } else if self.owes_too_much() {
                self.link.window().changed().await;
            } else {
                first_of(self.link.window().room(), resumed).await;
            }
        }
        self.reading.go_on(self.core.running_time());
    }

    /// Receives and drops until the host has closed its side, too, but not for long: unread bytes would turn
    /// the end into a reset, and cost the host the last PDU.
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

    /// Acts on received bytes, those of `chunk` from `from` on; says if the connection is over.
    fn take_in(
        self: &Rc<Self>,
        chunk: &Rc<Received<<W::Stream as Stream>::Chunk>>,
        from: usize,
    ) -> Option<CloseReason> {
        let mut input = &(**chunk).as_ref()[from..];
        let now = self.reading_time();
        while self.is_open() {
            match self.put(|transport, out| transport.poll(now, &mut input, out)) {
                Step::NeedMore => return None,
                Step::Prepare { slot, len_bytes, solicited } => {
                    self.prepare(slot, len_bytes as usize, solicited);
                }
                Step::Data { slot, offset, bytes } => {
                    let keep = || chunk.keep(bytes);
                    self.incoming.copy(slot, offset as usize, bytes, keep);
                }
                Step::Digest { slot, offset, len_bytes, received } => {
                    let computed = self.incoming.digest(slot, offset as usize, len_bytes as usize);
                    if computed.is_some_and(|computed| computed != received) {
                        self.transport.borrow_mut().digest_failed(slot);
                    }
                }
                Step::Execute { slot } => self.execute(slot),
                Step::ExecuteFused { first, second } => match self.must_authenticate(first) {
                    Ok(()) => self.execute_fused(first, second),
                    Err(status) => [first, second]
                        .iter()
                        .for_each(|slot| self.complete_command(*slot, status, 0)),
                },
                Step::Discard { slot, status } => {
                    self.count_error(status);
                    drop(self.take_payload(slot));
                }
                Step::Refused { status } => self.count_error(status),
                Step::Closed(reason) => return Some(reason),
            }
        }
        None
    }

    /// The data that came with the command in `slot`, if any did.
    pub(crate) fn take_payload(&self, slot: SlotId) -> Option<Payload> {
        self.incoming.take(slot)
    }

    pub(crate) fn decode_io(
        &self,
        slot: SlotId,
        queue: &IoQueue<W, D>,
    ) -> Result<nvme_target::IoCommand, Status> {
        nvme_target::decode_io(self.transport.borrow().command(slot), &self.view(&queue.export))
    }

    /// Returns whether data comes with digests.
    pub(crate) fn has_data_digests(&self) -> bool {
        self.transport.borrow().digests().data
    }

    /// The first half of the operation whose second half is in `slot`, while data is on its way.
    pub(crate) fn first_half_of(&self, slot: SlotId) -> Option<SlotId> {
        self.transport.borrow().first_half_of(slot)
    }

    /// Completes the command in `slot`.
    pub(crate) fn complete_command(&self, slot: SlotId, status: Status, result: u64) {
        if !status.is_success() && self.is_open() {
            self.count_error(status);
        }
        self.reply(|transport, out| transport.complete(slot, status, result, out));
    }

    /// Completes the second half of a fused operation, in `slot`, and gives the first one a status of its own.
    pub(crate) fn refuse_halves(&self, slot: SlotId, statuses: (Status, Status)) {
        self.count_error(statuses.1);
        self.reply(|transport, out| transport.refuse_halves(slot, statuses, out));
    }

    /// The host is answered with an error.
    #[cold]
    fn count_error(&self, status: Status) {
        match &*self.role.borrow() {
            Role::Io(queue) => queue.export.note_error(status.name()),
            Role::New | Role::Admin(_) => self.core.state.errors.borrow_mut().note(status.name()),
        }
    }

    /// Puts a reply into the outbox, if anybody is there to read it.
    pub(crate) fn reply(&self, encode: impl FnOnce(&mut Transport, &mut Out<'_, '_>)) {
        if self.is_open() {
            self.put(encode);
        }
    }

    /// Runs `step` on the state machine and queues what it has to send.
    pub(crate) fn put<T>(&self, step: impl FnOnce(&mut Transport, &mut Out<'_, '_>) -> T) -> T {
        self.outbox.put(|out| step(&mut self.transport.borrow_mut(), &mut Out(out)))
    }

    pub(crate) fn peer(&self) -> std::net::SocketAddr {
        self.stream.peer()
    }

    /// The address at which the host came.
    pub(crate) fn local(&self) -> std::net::SocketAddr {
        self.stream.local()
    }

    /// A copy of the command in `slot`.
    pub(crate) fn command(&self, slot: SlotId) -> nvme_wire::Sqe {
        *self.transport.borrow().command(slot)
    }

    fn task_ended(self: &Rc<Self>) {
        self.tasks_left.set(self.tasks_left.get() - 1);
        if self.tasks_left.get() > 0 {
            return;
        }
        self.log_ended();
        self.link.leave();
        match self.role.replace(Role::New) {
            Role::New => {}
            Role::Admin(association) => self.core.end_association(&association),
            Role::Io(queue) => queue.association.queue_ended(self),
        }
    }
}

impl<W: World, D: Device> Connection<W, D> {
    /// The association that has `volume` open, if this is the connection of its admin queue, which acts for all of its
    /// controller.
    fn association_of(&self, volume: ExportId) -> Option<Rc<Association<W, D>>> {
        let association = match &*self.role.borrow() {
            Role::Admin(association) => association.clone(),
            Role::New | Role::Io(_) => return None,
        };
        let is_it = |export: &Rc<Export<W, D>>| export.id() == volume;
        let has_it = association.subject.export().is_some_and(is_it) && !association.is_strangers();
        has_it.then_some(association)
    }
}

impl<W: World, D: Device> Session for Connection<W, D> {
    fn link(&self) -> &Link {
        &self.link
    }

    fn complete(&self, tag: Tag, outcome: Outcome) {
        self.end_request(tag, outcome);
    }

    fn requests(&self) -> usize {
        self.requests_under_way()
    }

    fn has_open(&self, volume: ExportId) -> bool {
        self.association_of(volume).is_some()
    }

    fn on_volume(&self, volume: ExportId, event: VolumeEvent) {
        if let Some(association) = self.association_of(volume)
            && let Some(export) = association.subject.export()
        {
            association.on_volume(export, event);
        }
    }

    fn reservation_host(&self) -> Option<Rc<Host>> {
        match &*self.role.borrow() {
            Role::Io(queue) => Some(queue.association.reservation_host.clone()),
            Role::New | Role::Admin(_) => None,
        }
    }

    fn on_reservations(&self, volume: ExportId, notices: &[Notice]) {
        if let Some(association) = self.association_of(volume) {
            association.on_reservations(notices);
        }
    }

    fn on_abort(&self, volume: ExportId, hosts: &[Host]) {
        if let Role::Io(queue) = &*self.role.borrow()
            && queue.export.id() == volume
            && hosts.contains(&queue.association.reservation_host)
        {
            self.link.abort_requests();
        }
    }

    fn on_tick(&self, now: Instant) {
        self.look_at_deadlines(now);
    }

    fn close(&self, reason: &str) {
        self.note_end(reason);
        Self::close(self);
    }

    fn cut(&self, reason: &str) {
        self.note_end(reason);
        Self::cut(self);
    }
}
