//! A controller and the connections that are its queues.
//!
//! - ASSOCIATION-1: an I/O queue belongs to the connection on which its host has authenticated first; without
//!   authentication, to the one that asked first. Until then any number may ask for it: a stranger that has
//!   only overheard the host's name keeps the host from nothing, unless it fails from the host's own address:
//!   that address is rate-limited after too many failures.
//! - ASSOCIATION-2: when the owner of a queue is decided, the other connections that asked for it are cut. A later
//!   connection is refused, as for any queue that is there.
//! - ASSOCIATION-3: a connection that has ended has no place among connections, and its commands at the device go on. A host that
//!   comes, sends what takes a device long, and goes, again and again, leaves a bounded number of them: a volume that
//!   has [`FORMER_QUEUES_MAX`] such connections gets no new queue.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::rc::{Rc, Weak};

use access::Restrictions;
use io_traits::{Device, World};
use nvme_target::{
    ConnectRefusal, ConnectRequest, Controller, ControllerEvent, DiscoveryLog, Negotiated,
};
use nvme_wire::{ControllerInstance, Nqn, Sqe, Status};
use reservation::Host;
use units::{Instant, Lba};

use crate::admission::Subject;
use crate::connection::Connection;
use crate::life::HOST_RESET;

/// Why a connection ends that asked to be a queue which is another's (ASSOCIATION-2).
pub(crate) const NOT_THE_QUEUE: &str = "another connection is the queue that it asked for";

/// Why a connection ends whose host was let in, but not to this many (CROWD-4).
pub(crate) const NO_PLACE: &str =
    "its volume, or the tenant whose it is, has as many connections as it may have";

/// Connections of a volume that have ended, and have commands under way, beyond which there is no new one (ASSOCIATION-3).
const FORMER_QUEUES_MAX: usize = 64;

/// A connection that asked to be an I/O queue.
struct Queue<W: World, D: Device> {
    qid: u16,
    connection: Weak<Connection<W, D>>,
    /// It is the queue (ASSOCIATION-1).
    is_created: bool,
}

impl<W: World, D: Device> Queue<W, D> {
    fn is(&self, connection: &Connection<W, D>) -> bool {
        std::ptr::eq(self.connection.as_ptr(), connection)
    }
}

/// One host's use of one subsystem.
pub(crate) struct Association<W: World, D: Device> {
    pub(crate) controller: RefCell<Controller>,
    /// The NQN of its host.
    pub(crate) host: Nqn,
    /// The same host, as reservations know it.
    pub(crate) reservation_host: Rc<Host>,
    /// The subsystem that it is connected to.
    pub(crate) subject: Subject<W, D>,
    /// The discovery log as its host sees it, while that is kept (NVME-DISCOVERY-2).
    pub(crate) log: RefCell<Weak<DiscoveryLog>>,
    /// The number of times that it has changed.
    pub(crate) generation: Cell<u64>,
    admin: Weak<Connection<W, D>>,
    /// Those that are queues, and those that would be.
    io: RefCell<Vec<Queue<W, D>>>,
    /// Those that were, and may have commands under way.
    ended: RefCell<Vec<Weak<Connection<W, D>>>>,
    /// I/O queues that failed to authenticate in the last attempt of their host.
    failed: RefCell<BTreeSet<u16>>,
}

impl<W: World, D: Device> Association<W, D> {
    pub(crate) fn new(
        controller: Controller,
        subject: Subject<W, D>,
        admin: &Rc<Connection<W, D>>,
    ) -> Rc<Self> {
        Rc::new(Self {
            host: *controller.host_nqn(),
            reservation_host: Rc::new(Host::Nvme(controller.host_id().0)),
            controller: RefCell::new(controller),
            subject,
            log: RefCell::default(),
            generation: Cell::new(0),
            admin: Rc::downgrade(admin),
            io: RefCell::default(),
            ended: RefCell::default(),
            failed: RefCell::default(),
        })
    }

    pub(crate) fn instance(&self) -> ControllerInstance {
        self.controller.borrow().parameters().instance
    }

    /// Returns true if none of its connections is left, nor a command that is under way: each command holds
    /// its connection. A connection that only asked to be a queue carries out nothing, and may be a
    /// stranger's (ASSOCIATION-1).
    pub(crate) fn is_at_rest(&self) -> bool {
        let is_gone = |connection: &Weak<Connection<W, D>>| connection.strong_count() == 0;
        is_gone(&self.admin)
            && self.io.borrow().iter().all(|queue| !queue.is_created || is_gone(&queue.connection))
            && self.has_no_former_queue()
    }

    /// Returns true if nothing is under way any more on queues that it had, before a reset or until they
    /// ended.
    pub(crate) fn has_no_former_queue(&self) -> bool {
        self.former_queues() == 0
    }

    /// Queues that it had and that have commands under way.
    pub(crate) fn former_queues(&self) -> usize {
        self.ended.borrow().iter().filter(|connection| connection.strong_count() > 0).count()
    }

    /// Notes a failure, and returns whether that of I/O queue `qid` to authenticate begins another attempt of its host: each queue fails once in one.
    pub(crate) fn is_new_attempt(&self, qid: u16) -> bool {
        let mut failed = self.failed.borrow_mut();
        if failed.contains(&qid) {
            failed.clear();
        }
        failed.insert(qid);
        failed.len() == 1
    }

    /// Takes in a connection that asks to be an I/O queue. It is one at once, or when its host has
    /// authenticated (ASSOCIATION-1).
    pub(crate) fn join(
        &self,
        connection: &Rc<Connection<W, D>>,
        request: &ConnectRequest,
        at_once: bool,
    ) -> Result<Negotiated, ConnectRefusal> {
        let qid = request.qid;
        // CROSS-RESET-1: it may be over, and not known to all yet.
        if !self.admin.upgrade().is_some_and(|admin| admin.is_open()) {
            return Err(ConnectRefusal::BUSY);
        }
        let mut controller = self.controller.borrow_mut();
        let negotiated = controller.accept_io(request)?;
        // Only behind that: now it is known that the controller's host was let in.
        let core = &connection.core;
        let has_place = |export: &Rc<_>| {
            core.has_place_for(export) && core.former_queues_of(export) < FORMER_QUEUES_MAX
        };
        if !self.subject.export().is_some_and(has_place) {
            return Err(ConnectRefusal::BUSY);
        }
        let is_created = at_once && controller.create_io(qid);
        let connection = Rc::downgrade(connection);
        self.io.borrow_mut().push(Queue { qid, connection, is_created });
        Ok(negotiated)
    }

    /// Makes `connection`, whose host has authenticated, the queue that it asked to be. `false`: another is
    /// it, or the controller was reset meanwhile.
    pub(crate) fn create_queue(&self, connection: &Connection<W, D>) -> bool {
        let mut queues = self.io.borrow_mut();
        let own = queues.iter_mut().find(|queue| queue.is(connection) && connection.is_open());
        let Some(own) = own else { return false };
        if own.is_created {
            return true;
        }
        own.is_created = self.controller.borrow_mut().create_io(own.qid);
        if !own.is_created {
            return false;
        }
        let qid = own.qid;
        drop(queues);
        // ASSOCIATION-2.
        for other in self.io_where(|other| other.qid == qid && !other.is_created) {
            other.note_end(NOT_THE_QUEUE);
            other.cut();
        }
        true
    }

    /// `connection`, which asked to be an I/O queue, has ended. After a reset its number may be another's.
    pub(crate) fn queue_ended(&self, connection: &Connection<W, D>) {
        let mut queues = self.io.borrow_mut();
        if let Some(place) = queues.iter().position(|queue| queue.is(connection)) {
            let queue = queues.remove(place);
            if queue.is_created {
                self.controller.borrow_mut().disconnect_io(queue.qid);
            }
            drop(queues);
            self.note_ended([queue]);
        }
    }

    fn note_ended(&self, queues: impl IntoIterator<Item = Queue<W, D>>) {
        let mut ended = self.ended.borrow_mut();
        ended.retain(|connection| connection.strong_count() > 0);
        let created = queues.into_iter().filter(|queue| queue.is_created);
        ended.extend(created.map(|queue| queue.connection));
    }

    /// Does what the controller asks for. Called after whatever may have changed it.
    pub(crate) fn pump(&self) {
        loop {
            let event = self.controller.borrow_mut().poll_event();
            match event {
                None => return,
                Some(ControllerEvent::Async(event)) => {
                    if let Some(admin) = self.admin.upgrade() {
                        admin.complete_command(event.slot, event.status, event.result);
                    }
                }
                Some(ControllerEvent::CloseIoQueues) => {
                    self.cut_io(HOST_RESET);
                    let reset = self.io.take();
                    self.note_ended(reset);
                }
            }
        }
    }

    pub(crate) fn on_namespace_changed(&self) {
        self.controller.borrow_mut().on_namespace_changed();
        self.pump();
    }

    pub(crate) fn on_warnings(&self, warnings: u8) {
        self.controller.borrow_mut().on_warnings(warnings);
        self.pump();
    }

    pub(crate) fn on_discovery_changed(&self) {
        self.controller.borrow_mut().on_discovery_changed();
        self.pump();
    }

    pub(crate) fn record_error(&self, qid: u16, sqe: &Sqe, status: Status, lba: Lba) {
        self.controller.borrow_mut().record_error(qid, sqe, status, lba.0);
    }

    /// Ends the association if its host let the keep alive timer expire.
    pub(crate) fn on_tick(&self, now: Instant) {
        // NVME-AUTH-1, which has a deadline of its own.
        if self.admin.upgrade().is_some_and(|admin| admin.unproven().is_some()) {
            return self.controller.borrow_mut().keep_alive(now);
        }
        if self.controller.borrow_mut().on_timeout(now) {
            self.cut("the keep alive timer expired");
        }
    }

    /// Closes all connections, and says why in the log.
    pub(crate) fn cut(&self, reason: &str) {
        self.cut_io(reason);
        if let Some(admin) = self.admin.upgrade() {
            admin.note_end(reason);
            admin.cut();
        }
    }

    /// Closes all connections but one, which has last words.
    pub(crate) fn cut_others(&self, one: &Connection<W, D>, reason: &str) {
        for connection in self.connections().into_iter().chain(self.candidates()) {
            if !std::ptr::eq(&*connection, one) {
                connection.note_end(reason);
                connection.cut();
            }
        }
    }

    /// The connections that are its queues.
    pub(crate) fn connections(&self) -> Vec<Rc<Connection<W, D>>> {
        self.admin.upgrade().into_iter().chain(self.io_where(|queue| queue.is_created)).collect()
    }

    /// The connections that asked to be queues, and are none so far: they may be anybody's (ASSOCIATION-1).
    pub(crate) fn candidates(&self) -> Vec<Rc<Connection<W, D>>> {
        self.io_where(|queue| !queue.is_created)
    }

    fn io_where(&self, fits: impl Fn(&Queue<W, D>) -> bool) -> Vec<Rc<Connection<W, D>>> {
        let queues = self.io.borrow();
        let fitting = queues.iter().filter(|queue| fits(queue));
        fitting.filter_map(|queue| queue.connection.upgrade()).collect()
    }

    /// Returns true if its host has not shown yet that it may use the subsystem.
    pub(crate) fn is_strangers(&self) -> bool {
        self.admin.upgrade().is_some_and(|admin| admin.is_strangers())
    }

    /// Returns true if `restrictions` admit its host, by its name and by its connection.
    pub(crate) fn is_admitted_by(&self, restrictions: &Restrictions) -> bool {
        self.admin.upgrade().is_some_and(|admin| admin.is_admitted_by(restrictions, &self.host))
    }

    /// The address at which its host came, while that is there.
    pub(crate) fn local(&self) -> Option<SocketAddr> {
        self.admin.upgrade().map(|admin| admin.local())
    }

    fn cut_io(&self, reason: &str) {
        for connection in self.io_where(|_| true) {
            connection.note_end(reason);
            connection.cut();
        }
    }
}
