//! One connection: the driver of `nvme_target::Connection`.
//!
//! Receiving and sending are two tasks. The receiving one feeds bytes to the state machine and acts
//! on its steps; each command then runs as a task of its own, and puts its reply into the outbox.
//! Both tasks end together; whoever is last takes the connection off the core's list.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use io_traits::{Buffer, Device, Stream, World};
use nvme_target::{CloseReason, Connection as Transport, ReceivedBlocks, SlotId, Step};
use nvme_wire::Status;
use units::{BLOCK_SIZE, Duration, Instant};

use crate::association::Association;
use crate::core::Core;
use crate::export::Export;
use crate::memory::{Share, Window};
use crate::outbox::Outbox;

/// How long a connection may hold memory without progress while others wait for memory.
const STALL_TIMEOUT_IN_NEED: Duration = Duration::from_secs(5);

/// What a connection is to its controller.
pub(crate) enum Role<W: World, D: Device> {
    /// No Connect yet.
    New,
    /// The admin queue.
    Admin(Rc<Association<W, D>>),
    /// An I/O queue.
    Io(Rc<IoQueue<W, D>>),
}

/// What commands of an I/O queue work on.
pub(crate) struct IoQueue<W: World, D: Device> {
    pub(crate) association: Rc<Association<W, D>>,
    pub(crate) export: Rc<Export<W, D>>,
    pub(crate) qid: u16,
}

/// Data on its way in, for one command.
#[derive(Default)]
struct Incoming {
    buffer: Option<Buffer>,
    len_bytes: usize,
    received: ReceivedBlocks,
    share: Option<Share>,
    solicited: bool,
}

/// The data that came with a command.
pub(crate) struct Payload {
    pub(crate) buffer: Buffer,
    pub(crate) len_bytes: usize,
    /// CRC-32C of each whole block.
    pub(crate) crcs: Crcs,
    /// Kept until the data is no longer needed.
    pub(crate) share: Option<Share>,
}

pub(crate) type Crcs = smallvec::SmallVec<[u32; 4]>;

impl Payload {
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.buffer.as_bytes()[..self.len_bytes]
    }
}

pub(crate) struct Connection<W: World, D: Device> {
    pub(crate) core: Core<W, D>,
    /// Place in the core's list.
    key: Cell<usize>,
    stream: W::Stream,
    transport: RefCell<Transport>,
    incoming: RefCell<Vec<Incoming>>,
    outbox: Outbox,
    pub(crate) window: Window,
    pub(crate) role: RefCell<Role<W, D>>,
    is_open: Cell<bool>,
    /// Commands whose data was asked for and has not all come.
    solicited: Cell<usize>,
    /// When bytes last arrived.
    last_received: Cell<Instant>,
    tasks_left: Cell<u8>,
}

impl<W: World, D: Device> Connection<W, D> {
    pub(crate) fn new(core: &Core<W, D>, stream: W::Stream) -> Rc<Self> {
        let now = core.world().now();
        Rc::new(Self {
            key: Cell::new(usize::MAX),
            stream,
            transport: RefCell::new(Transport::new(now, &core.options().limits)),
            incoming: RefCell::default(),
            outbox: Outbox::new(),
            window: core.window(),
            role: RefCell::new(Role::New),
            is_open: Cell::new(true),
            solicited: Cell::new(0),
            last_received: Cell::new(now),
            tasks_left: Cell::new(2),
            core: core.clone(),
        })
    }

    /// Starts the two tasks. `key` is the connection's place in the core's list.
    pub(crate) fn start(self: &Rc<Self>, key: usize) {
        self.key.set(key);
        let connection = self.clone();
        self.core.world().spawn(async move {
            let clock = connection.core.world().clone();
            let sent = connection.outbox.run(clock, connection.stream.clone()).await;
            if let Err(error) = sent {
                tracing::debug!(peer = %connection.stream.peer(), %error, "send failed");
            }
            connection.cut();
            connection.task_ended();
        });
        let connection = self.clone();
        self.core.world().spawn(async move {
            connection.receive().await;
            connection.close();
            connection.task_ended();
        });
    }

    /// Ends the connection once what is in the outbox was sent.
    pub(crate) fn close(&self) {
        self.is_open.set(false);
        self.outbox.close();
    }

    /// Ends the connection now.
    pub(crate) fn cut(&self) {
        self.close();
        self.stream.shutdown();
    }

    pub(crate) fn is_open(&self) -> bool {
        self.is_open.get()
    }

    /// Commands under way, but for those that wait for an event.
    pub(crate) fn requests(&self) -> usize {
        match &*self.role.borrow() {
            Role::Io(_) if self.is_open() => self.transport.borrow().in_flight(),
            _ => 0,
        }
    }

    /// Acts on deadlines that have passed.
    pub(crate) fn on_tick(&self, now: Instant) {
        let stall_timeout = if self.core.is_short_of_memory() && self.window.is_used() {
            STALL_TIMEOUT_IN_NEED
        } else {
            self.core.options().limits.stall_timeout
        };
        let waits_for_peer = self.outbox.sending_since().is_some() || self.solicited.get() > 0;
        let stalls = waits_for_peer && now.since(self.last_progress()) > stall_timeout;
        let reason = self.transport.borrow_mut().on_timeout(now);
        if self.is_open()
            && let Some(reason) = reason
        {
            tracing::info!(peer = %self.stream.peer(), ?reason, "connection ended");
            self.cut();
        } else if stalls {
            tracing::info!(peer = %self.stream.peer(), "connection ended: the host neither reads nor sends");
            self.cut();
        }
    }

    fn last_progress(&self) -> Instant {
        let sending_since = self.outbox.sending_since().unwrap_or(Instant(0));
        let received = if self.solicited.get() > 0 { self.last_received.get() } else { Instant(0) };
        sending_since.max(received)
    }

    async fn receive(self: &Rc<Self>) {
        while self.is_open() {
            // Data that was asked for must be able to arrive, or its memory is never free again.
            if self.solicited.get() == 0 && !self.window.has_room() {
                self.window.room().await;
                self.transport.borrow_mut().resumed(self.core.world().now());
            }
            let chunk = match self.stream.recv().await {
                Ok(chunk) => chunk,
                Err(error) => {
                    tracing::debug!(peer = %self.stream.peer(), %error, "receive ended");
                    return;
                }
            };
            if self.core.is_draining() {
                continue;
            }
            if let Some(reason) = self.take_in(&chunk) {
                tracing::info!(peer = %self.stream.peer(), ?reason, "connection ended");
                return;
            }
        }
    }

    /// Acts on received bytes; says if the connection is over.
    fn take_in(self: &Rc<Self>, mut input: &[u8]) -> Option<CloseReason> {
        let now = self.core.world().now();
        self.last_received.set(now);
        while self.is_open() {
            let step =
                self.outbox.put(|out| self.transport.borrow_mut().poll(now, &mut input, out));
            match step {
                Step::NeedMore => return None,
                Step::Prepare { slot, len_bytes, solicited } => {
                    self.prepare(slot, len_bytes as usize, solicited);
                }
                Step::Data { slot, offset, bytes } => self.copy(slot, offset as usize, bytes),
                Step::Digest { slot, offset, len_bytes, received } => {
                    if self.digest(slot, offset as usize, len_bytes as usize) != received {
                        self.transport.borrow_mut().digest_failed(slot);
                    }
                }
                Step::Execute { slot } => self.execute(slot),
                Step::Discard { slot } => drop(self.take_payload(slot)),
                Step::Closed(reason) => return Some(reason),
            }
        }
        None
    }

    /// Finds memory for the data of a command, unless the command is refused anyway.
    fn prepare(self: &Rc<Self>, slot: SlotId, len_bytes: usize, solicited: bool) {
        if let Err(status) = self.check(slot) {
            return self.complete(slot, status, 0);
        }
        let share = self.window.try_take(len_bytes);
        if share.is_some() || !solicited {
            return self.expect(slot, len_bytes, share, solicited);
        }
        let connection = self.clone();
        self.core.world().spawn(async move {
            let share = connection.window.take(len_bytes).await;
            if connection.is_open() {
                connection.expect(slot, len_bytes, Some(share), true);
            }
        });
    }

    /// Makes room for data, and asks for it if it does not come by itself.
    fn expect(&self, slot: SlotId, len_bytes: usize, share: Option<Share>, solicited: bool) {
        {
            let mut incoming = self.incoming.borrow_mut();
            if incoming.len() <= slot.index() {
                incoming.resize_with(slot.index() + 1, Incoming::default);
            }
            let incoming = &mut incoming[slot.index()];
            incoming.buffer = Some(Buffer::new(len_bytes.div_ceil(BLOCK_SIZE)));
            incoming.len_bytes = len_bytes;
            incoming.received.reset();
            incoming.share = share;
            incoming.solicited = solicited;
        }
        if solicited {
            self.solicited.set(self.solicited.get() + 1);
            let now = self.core.world().now();
            let len_bytes = u32::try_from(len_bytes).expect("bounded by MDTS");
            self.outbox.put(|out| self.transport.borrow_mut().grant(now, slot, len_bytes, out));
        }
    }

    fn copy(&self, slot: SlotId, offset: usize, bytes: &[u8]) {
        let incoming = &mut self.incoming.borrow_mut()[slot.index()];
        let buffer = incoming.buffer.as_mut().expect("prepared");
        incoming.received.copy(buffer.as_mut_bytes(), offset, bytes);
    }

    fn digest(&self, slot: SlotId, offset: usize, len_bytes: usize) -> u32 {
        let incoming = &self.incoming.borrow()[slot.index()];
        let buffer = incoming.buffer.as_ref().expect("prepared");
        incoming.received.digest(buffer.as_bytes(), offset, len_bytes)
    }

    /// The data that came with the command in `slot`, if any did.
    pub(crate) fn take_payload(&self, slot: SlotId) -> Option<Payload> {
        let mut incoming = self.incoming.borrow_mut();
        let incoming = incoming.get_mut(slot.index())?;
        let buffer = incoming.buffer.take()?;
        if std::mem::take(&mut incoming.solicited) {
            self.solicited.set(self.solicited.get() - 1);
        }
        Some(Payload {
            buffer,
            len_bytes: incoming.len_bytes,
            crcs: Crcs::from_slice(incoming.received.block_crcs()),
            share: incoming.share.take(),
        })
    }

    /// Whether the command in `slot` is worth waiting for its data.
    fn check(&self, slot: SlotId) -> Result<(), Status> {
        match &*self.role.borrow() {
            Role::Io(queue) => self.decode_io(slot, queue).map(drop),
            Role::New | Role::Admin(_) => Ok(()),
        }
    }

    pub(crate) fn decode_io(
        &self,
        slot: SlotId,
        queue: &IoQueue<W, D>,
    ) -> Result<nvme_target::IoCommand, Status> {
        let transport = self.transport.borrow();
        nvme_target::decode_io(transport.command(slot), &queue.export.view())
    }

    fn execute(self: &Rc<Self>, slot: SlotId) {
        let role = self.role.borrow();
        match &*role {
            Role::Io(queue) => self.execute_io(slot, queue),
            Role::New => {
                drop(role);
                self.execute_connect(slot);
            }
            Role::Admin(association) => {
                let association = association.clone();
                drop(role);
                self.execute_admin(slot, &association);
            }
        }
    }

    /// Completes the command in `slot`.
    pub(crate) fn complete(&self, slot: SlotId, status: Status, result: u64) {
        self.reply(|transport, out| transport.complete(slot, status, result, out));
    }

    /// Puts a reply into the outbox, if anybody is there to read it.
    pub(crate) fn reply(
        &self,
        encode: impl FnOnce(&mut Transport, &mut crate::outbox::Filling<'_>),
    ) {
        if self.is_open() {
            self.outbox.put(|out| encode(&mut self.transport.borrow_mut(), out));
        }
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
        self.core.forget_connection(self.key.get());
        self.incoming.borrow_mut().clear();
        match self.role.replace(Role::New) {
            Role::New => {}
            Role::Admin(association) => self.core.end_association(&association),
            Role::Io(queue) => queue.association.queue_ended(queue.qid),
        }
    }
}
