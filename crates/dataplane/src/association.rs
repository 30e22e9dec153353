//! A controller and the connections that are its queues.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};

use access::Restrictions;
use io_traits::{Device, World};
use nvme_target::{
    ConnectRefusal, ConnectRequest, Controller, ControllerEvent, DiscoveryLog, Negotiated,
};
use nvme_wire::{Nqn, Sqe, Status};
use units::{Instant, Lba};

use crate::admission::Subject;
use crate::connection::Connection;
use crate::life::HOST_RESET;

/// An I/O queue by its number.
type Queue<W, D> = (u16, Weak<Connection<W, D>>);

/// One host's use of one subsystem.
pub(crate) struct Association<W: World, D: Device> {
    pub(crate) controller: RefCell<Controller>,
    /// Who uses it.
    pub(crate) host: Nqn,
    /// What is served.
    pub(crate) subject: Subject<W, D>,
    /// What its host sees of the discovery log.
    pub(crate) log: RefCell<Option<Rc<DiscoveryLog>>>,
    /// How often that has changed.
    pub(crate) generation: Cell<u64>,
    admin: Weak<Connection<W, D>>,
    io: RefCell<Vec<Queue<W, D>>>,
}

impl<W: World, D: Device> Association<W, D> {
    pub(crate) fn new(
        controller: Controller,
        subject: Subject<W, D>,
        admin: &Rc<Connection<W, D>>,
    ) -> Rc<Self> {
        Rc::new(Self {
            host: *controller.host_nqn(),
            controller: RefCell::new(controller),
            subject,
            log: RefCell::default(),
            generation: Cell::new(0),
            admin: Rc::downgrade(admin),
            io: RefCell::default(),
        })
    }

    pub(crate) fn cntlid(&self) -> u16 {
        self.controller.borrow().parameters().cntlid
    }

    /// Takes in an I/O queue.
    pub(crate) fn join(
        &self,
        connection: &Rc<Connection<W, D>>,
        request: &ConnectRequest,
    ) -> Result<Negotiated, ConnectRefusal> {
        let negotiated = self.controller.borrow_mut().connect_io(request)?;
        self.io.borrow_mut().push((request.qid, Rc::downgrade(connection)));
        Ok(negotiated)
    }

    /// `connection`, once I/O queue `qid`, has ended. After a reset its number may be another's.
    pub(crate) fn queue_ended(&self, qid: u16, connection: &Rc<Connection<W, D>>) {
        let is_it = |(_, other): &Queue<W, D>| std::ptr::eq(other.as_ptr(), Rc::as_ptr(connection));
        let mut queues = self.io.borrow_mut();
        if let Some(place) = queues.iter().position(is_it) {
            queues.remove(place);
            self.controller.borrow_mut().disconnect_io(qid);
        }
    }

    /// Does what the controller asks for. Called after whatever may have changed it.
    pub(crate) fn pump(&self) {
        loop {
            let event = self.controller.borrow_mut().poll_event();
            match event {
                None => return,
                Some(ControllerEvent::Async(event)) => {
                    if let Some(admin) = self.admin.upgrade() {
                        admin.complete(event.slot, event.status, event.result);
                    }
                }
                Some(ControllerEvent::CloseIoQueues) => {
                    self.cut_io(HOST_RESET);
                    self.io.borrow_mut().clear();
                }
            }
        }
    }

    pub(crate) fn on_namespace_changed(&self) {
        self.controller.borrow_mut().on_namespace_changed();
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

    /// The connections that are its queues.
    pub(crate) fn connections(&self) -> Vec<Rc<Connection<W, D>>> {
        let io = self.io.borrow();
        self.admin.upgrade().into_iter().chain(io.iter().filter_map(|(_, c)| c.upgrade())).collect()
    }

    /// Whether `restrictions` admit its host as it came.
    pub(crate) fn is_admitted_by(&self, restrictions: &Restrictions) -> bool {
        self.admin.upgrade().is_some_and(|admin| admin.is_admitted_by(restrictions, &self.host))
    }

    fn cut_io(&self, reason: &str) {
        let queues: Vec<_> = self.io.borrow().iter().filter_map(|(_, c)| c.upgrade()).collect();
        for connection in queues {
            connection.note_end(reason);
            connection.cut();
        }
    }
}
