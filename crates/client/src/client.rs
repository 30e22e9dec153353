//! A client: one host's connection to one subsystem.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;

use io_traits::World;
use local_sync::Notify;
use nvme_initiator::ControllerLimits;
use nvme_wire::identify::{Cns, IdentifyController, NamespaceIdList};
use nvme_wire::log::{GetLogPage, Lid, SmartHealth};
use nvme_wire::property::{Cc, offset};
use nvme_wire::sqe::NSID_ALL;
use nvme_wire::{ControllerInstance, Nqn};
use units::{Duration, Instant};

use crate::association::ADMIN_REQUESTS;
use crate::namespace::Namespace;
use crate::queue::Queue;
use crate::{ConnectError, Counters, Error, Options, Volume, admin, link, supervisor};

/// Longest wait for an orderly shutdown.
const SHUTDOWN: Duration = Duration::from_secs(1);
/// Most bytes of a log page that one command asks for.
const LOG_PIECE: u64 = 4096;

/// The state that the handles of a client share with its tasks.
pub(crate) struct Inner<W: World> {
    pub(crate) world: W,
    pub(crate) address: SocketAddr,
    pub(crate) nqn: Nqn,
    pub(crate) options: Options,
    pub(crate) admin: Rc<Queue>,
    /// I/O queues; the first `active_queues` of them are in use.
    pub(crate) io: Vec<Rc<Queue>>,
    /// 0 until the first association is made.
    pub(crate) active_queues: Cell<u16>,
    next_queue: Cell<usize>,
    /// The controller that requests were last sent to, if it can be ended through another.
    pub(crate) controller: Cell<Option<ControllerInstance>>,
    pub(crate) limits: Cell<Option<ControllerLimits>>,
    /// The CC value that the controller was last enabled with; only CC.SHN may change while it is enabled.
    pub(crate) cc: Cell<Cc>,
    /// The namespaces in use.
    pub(crate) namespaces: RefCell<BTreeMap<u32, Rc<Namespace>>>,
    /// A shape changed.
    pub(crate) resized: Notify,
    /// A connection was lost, or the client closed.
    pub(crate) changed: Notify,
    pub(crate) closed: Cell<bool>,
    pub(crate) reconnects: Cell<u64>,
    /// When a connection last ended that had held.
    pub(crate) last_steady: Cell<Option<Instant>>,
    /// Why the last attempt to connect again failed.
    pub(crate) last_connect_error: Cell<Option<ConnectError>>,
}

impl<W: World> Inner<W> {
    pub(crate) fn new(
        world: W,
        address: SocketAddr,
        nqn: &Nqn,
        options: Options,
        io_queues: u16,
    ) -> Self {
        let changed = Notify::new();
        let queue = |depth| {
            let changed = changed.clone();
            Queue::new(depth, move || changed.notify_all())
        };
        Self {
            world,
            address,
            nqn: *nqn,
            admin: queue(ADMIN_REQUESTS),
            io: (0..io_queues).map(|_| queue(options.depth())).collect(),
            controller: Cell::new(options.predecessor),
            options,
            active_queues: Cell::new(0),
            next_queue: Cell::new(0),
            limits: Cell::new(None),
            cc: Cell::new(Cc::default()),
            namespaces: RefCell::default(),
            resized: Notify::new(),
            changed,
            closed: Cell::new(false),
            reconnects: Cell::new(0),
            last_steady: Cell::new(None),
            last_connect_error: Cell::new(None),
        }
    }

    pub(crate) fn keep_alive_ms(&self) -> u32 {
        u32::try_from(self.options.keep_alive.as_millis()).unwrap_or(u32::MAX)
    }

    /// The I/O queues in turn, those that are full only if all are.
    pub(crate) fn pick_queue(&self) -> &Queue {
        let count = usize::from(self.active_queues.get()).max(1);
        let first = self.next_queue.get() % count;
        let pick = (first..count).chain(0..first).find(|index| self.io[*index].has_room());
        let pick = pick.unwrap_or(first);
        self.next_queue.set(pick + 1);
        &self.io[pick]
    }

    /// Fails everything, now and later.
    pub(crate) fn end(&self, error: Error) {
        self.admin.end(error);
        for queue in &self.io {
            queue.end(error);
        }
    }

    fn close(&self) {
        self.closed.set(true);
        self.changed.notify_all();
    }
}

/// Closes the client when the last handle goes.
pub(crate) struct Handle<W: World>(pub(crate) Rc<Inner<W>>);

impl<W: World> Drop for Handle<W> {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// A host's connection to a subsystem. Cheap to clone; when the last clone and the last
/// [`Volume`] of it are gone, the connection is closed.
pub struct Client<W: World> {
    handle: Rc<Handle<W>>,
}

impl<W: World> Clone for Client<W> {
    fn clone(&self) -> Self {
        Self { handle: self.handle.clone() }
    }
}

impl<W: World> Client<W> {
    /// Connects to the subsystem `nqn` at `address`. One attempt; an error is told at once.
    pub async fn connect(
        world: W,
        address: SocketAddr,
        nqn: &Nqn,
        options: Options,
    ) -> Result<Self, ConnectError> {
        let queues = options.queues();
        let inner = Rc::new(Inner::new(world, address, nqn, options, queues));
        let association = inner.bring_up().await?;
        inner.world.spawn(supervisor::run(inner.clone(), association));
        Ok(Self { handle: Rc::new(Handle(inner)) })
    }

    pub(crate) fn from_handle(handle: Rc<Handle<W>>) -> Self {
        Self { handle }
    }

    fn inner(&self) -> &Inner<W> {
        &self.handle.0
    }

    /// Returns the limits of the controller.
    #[must_use]
    pub fn limits(&self) -> ControllerLimits {
        self.inner().limits.get().expect("set by the first association")
    }

    /// Why the last attempt to connect again failed; `None` if it did not. While connections are
    /// being made again, requests wait, and this says what for.
    #[must_use]
    pub fn last_connect_error(&self) -> Option<ConnectError> {
        self.inner().last_connect_error.get()
    }

    /// When the last connection ended that had held for [`STEADY`](const@crate::STEADY): since then they have been lost as
    /// soon as they were made. `None` if none has held and ended.
    #[must_use]
    pub fn last_steady(&self) -> Option<Instant> {
        self.inner().last_steady.get()
    }

    /// The controller that requests were last sent to, for [`Options::predecessor`](field@Options::predecessor) of a client
    /// that repeats them; `None` if the target cannot end a controller through another.
    #[must_use]
    pub fn controller(&self) -> Option<ControllerInstance> {
        self.inner().controller.get()
    }

    /// I/O queues in use.
    #[must_use]
    pub fn queues(&self) -> u16 {
        self.inner().active_queues.get()
    }

    /// The subsystem's only namespace, or its first. A dVol has one.
    pub async fn volume(&self) -> Result<Volume<W>, Error> {
        let first = self.namespaces().await?.first().copied();
        self.namespace(first.ok_or(Error::NoNamespace { nsid: 0 })?).await
    }

    /// Namespace `nsid`.
    pub async fn namespace(&self, nsid: u32) -> Result<Volume<W>, Error> {
        let inner = self.inner();
        let shape = inner.identify_namespace(nsid).await?;
        Ok(Volume::new(self.handle.clone(), inner.take_in(shape)?))
    }

    /// Identifiers of the subsystem's first 1024 active namespaces.
    pub async fn namespaces(&self) -> Result<Vec<u32>, Error> {
        let inner = self.inner();
        let command = admin::identify(Cns::ACTIVE_NAMESPACES, 0);
        let buffer = inner.admin.run(&inner.world, command).await?.buffer;
        Ok(admin::structure::<NamespaceIdList>(buffer.as_ref()).iter().collect())
    }

    /// Reads the controller's Identify data.
    pub async fn identify_controller(&self) -> Result<Box<IdentifyController>, Error> {
        let inner = self.inner();
        let command = admin::identify(Cns::CONTROLLER, 0);
        let buffer = inner.admin.run(&inner.world, command).await?.buffer;
        Ok(Box::new(admin::structure::<IdentifyController>(buffer.as_ref()).clone()))
    }

    /// The first `len_bytes` (cut to a multiple of four) of log page `lid`.
    pub async fn log_page(&self, lid: Lid, nsid: u32, len_bytes: u64) -> Result<Vec<u8>, Error> {
        self.inner().log_page(lid, nsid, len_bytes).await
    }

    /// The subsystem's health and use.
    pub async fn smart_health(&self) -> Result<SmartHealth, Error> {
        let inner = self.inner();
        let page = GetLogPage::new(Lid::HEALTH, NSID_ALL, 0, 512);
        let buffer = inner.admin.run(&inner.world, admin::get_log_page(&page)).await?.buffer;
        Ok(*admin::structure::<SmartHealth>(buffer.as_ref()))
    }

    /// Returns the counters so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        let inner = self.inner();
        let queues = inner.io.iter().chain([&inner.admin]);
        let sum = queues.fold(Counters::default(), |sum, queue| sum.plus(queue.counters()));
        Counters { reconnects: inner.reconnects.get(), ..sum }
    }

    /// Tells the target good-bye and closes all connections. Requests that are outstanding fail
    /// with [`Error::Closed`]; so do all later ones of other handles.
    pub async fn close(self) {
        let inner = self.inner();
        if !inner.closed.get() {
            inner.say_good_bye().await;
            inner.close();
        }
    }
}

impl<W: World> Inner<W> {
    /// Tells the controller that the host shuts down. Sends nothing while connections are being made again.
    async fn say_good_bye(&self) {
        if self.admin.is_open() {
            let cc = self.cc.get().with_shn(Cc::SHN_NORMAL);
            let shutdown = self.admin.run(&self.world, admin::property_set(offset::CC, cc.0));
            // A target that does not answer is left all the same.
            let _ = link::within(&self.world, SHUTDOWN, shutdown).await;
        }
    }

    pub(crate) async fn log_page(
        &self,
        lid: Lid,
        nsid: u32,
        len_bytes: u64,
    ) -> Result<Vec<u8>, Error> {
        let len_bytes = len_bytes & !3;
        let mut bytes = Vec::new();
        while (bytes.len() as u64) < len_bytes {
            let offset = bytes.len() as u64;
            let piece = LOG_PIECE.min(len_bytes - offset);
            let page = GetLogPage::new(lid, nsid, offset, piece);
            let buffer = self.admin.run(&self.world, admin::get_log_page(&page)).await?.buffer;
            let buffer = buffer.expect("a log page is data");
            let piece = usize::try_from(piece).expect("at most a block");
            bytes.extend_from_slice(&buffer.as_bytes()[..piece]);
        }
        Ok(bytes)
    }
}
