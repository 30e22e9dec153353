//! A core together with its NVMe front end.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Deref;
use std::rc::Rc;

use dataplane::{Computing, Core, ErrorCounts, Export, Frontend, Link, Session};
use io_traits::{Device, World};
use nvme_target::ConnectRefusal;
use nvme_wire::log::{DeviceHealth, FailureDomain};
use nvme_wire::{Nqn, Status};
use slab::Slab;
use strangers::{Quiet, Repeats, Throttle};
use units::{DeviceIndex, Instant};
use uuid::Uuid;

use crate::association::Association;
use crate::connection::Connection;
use crate::cross_reset::Leaving;
use crate::discovery::Discovery;
use crate::life::{Cause, Line};
use crate::options::NvmeOptions;
use crate::received::Kept;
use crate::status::{ADMIN_STATUSES, ENGINE_STATUSES};

/// Takes each line about a connection.
type OnLine = Box<dyn Fn(Line)>;

/// The state of the front end. It holds no core: the core holds it.
pub(crate) struct State<W: World, D: Device> {
    options: NvmeOptions,
    pub(crate) on_line: RefCell<OnLine>,
    /// The key is the controller identifier.
    associations: RefCell<Slab<Rc<Association<W, D>>>>,
    leaving: Leaving<W, D>,
    /// The uniquifier of the last association.
    uniquifier: Cell<u8>,
    discovery: Discovery,
    /// Failure domains of the core's devices, by their numbers.
    domains: RefCell<BTreeMap<DeviceIndex, Rc<FailureDomain>>>,
    /// Errors that were answered to other commands than I/O.
    pub(crate) errors: RefCell<ErrorCounts>,
    throttle: RefCell<Throttle<Nqn>>,
    quiet: RefCell<Quiet>,
    pub(crate) repeats: RefCell<Repeats<Cause>>,
    /// Exchanges that are computed for.
    computing: Computing,
    /// Chunks of received bytes that are kept.
    pub(crate) kept: Kept,
}

/// Counts of the front end. They go on for ever.
#[derive(Clone, Debug, Default)]
pub struct NvmeStats {
    /// Authentications that failed.
    pub authentication_failures: u64,
    /// Authentications that hosts began, or were asked for, and left.
    pub authentications_unfinished: u64,
    /// Connects that were put off, after such failures.
    pub connects_put_off: u64,
    /// Errors that were answered to commands which are no volume's I/O: on admin queues, and to Connect.
    pub errors: ErrorCounts,
}

/// A core that serves NVMe/TCP. A cheap handle; clones are the same core.
pub struct NvmeCore<W: World, D: Device> {
    core: Core<W, D>,
    pub(crate) state: Rc<State<W, D>>,
}

impl<W: World, D: Device> Clone for NvmeCore<W, D> {
    fn clone(&self) -> Self {
        Self { core: self.core.clone(), state: self.state.clone() }
    }
}

impl<W: World, D: Device> Deref for NvmeCore<W, D> {
    type Target = Core<W, D>;

    fn deref(&self) -> &Core<W, D> {
        &self.core
    }
}

/// The NVMe qualified name of the volume `uuid`, the same on every host and path for life.
#[must_use]
pub fn nqn_of(uuid: Uuid) -> Nqn {
    Nqn::from_uuid(uuid.as_bytes())
}

/// The front end as the core sees it.
struct Accepting<W: World, D: Device>(Rc<State<W, D>>);

impl<W: World, D: Device> Accepting<W, D> {
    fn of(&self, core: &Core<W, D>) -> NvmeCore<W, D> {
        NvmeCore { core: core.clone(), state: self.0.clone() }
    }
}

impl<W: World, D: Device> Frontend<W, D> for Accepting<W, D> {
    fn protocol(&self) -> &'static str {
        "nvme"
    }

    fn accept(&self, core: &Core<W, D>, link: Link, stream: W::Stream) -> Rc<dyn Session> {
        let connection = Connection::new(&self.of(core), link, stream);
        connection.start();
        connection
    }

    fn on_tick(&self, core: &Core<W, D>, now: Instant) {
        let core = self.of(core);
        core.log_suppressed();
        core.all_associations().iter().for_each(|association| association.on_tick(now));
        core.state.leaving.forget_those_at_rest();
        core.tell_warnings();
    }
}

impl<W: World, D: Device> NvmeCore<W, D> {
    /// A core without volumes that serves NVMe/TCP.
    #[must_use]
    pub fn new(world: &W, options: NvmeOptions) -> Self {
        Self::before(Core::new(world, options.core.clone()), options)
    }

    /// Puts the front end before a core, which may have others.
    #[must_use]
    pub fn before(core: Core<W, D>, options: NvmeOptions) -> Self {
        let state = Rc::new(State {
            options,
            on_line: RefCell::new(Box::new(|line| line.write())),
            associations: RefCell::default(),
            leaving: Leaving::default(),
            uniquifier: Cell::new(0),
            discovery: Discovery::default(),
            domains: RefCell::default(),
            errors: RefCell::new(ErrorCounts::expecting(ADMIN_STATUSES.map(Status::name))),
            throttle: RefCell::default(),
            quiet: RefCell::default(),
            repeats: RefCell::default(),
            computing: Computing::default(),
            kept: Kept::default(),
        });
        let frontend = Rc::new(Accepting(state.clone()));
        core.add_frontend(frontend, ENGINE_STATUSES.map(Status::name));
        Self { core, state }
    }

    /// The front end, for listeners of the core.
    #[must_use]
    pub fn frontend(&self) -> Rc<dyn Frontend<W, D>> {
        Rc::new(Accepting(self.state.clone()))
    }

    /// Accepts connections until [`Core::shutdown`].
    pub async fn serve(&self, listener: W::Listener) {
        self.core.serve(&Accepting(self.state.clone()), listener).await;
    }

    /// The counts of the front end; those of the core are [`Core::stats`].
    #[must_use]
    pub fn nvme_stats(&self) -> NvmeStats {
        let throttle = self.throttle().borrow();
        NvmeStats {
            authentication_failures: throttle.total(),
            authentications_unfinished: throttle.unfinished(),
            connects_put_off: throttle.put_off(),
            errors: self.state.errors.borrow().clone(),
        }
    }

    /// Says where a device is, for hosts that ask it of its volumes.
    pub fn place_device(&self, device: DeviceIndex, domain: FailureDomain) {
        self.state.domains.borrow_mut().insert(device, Rc::new(domain));
    }

    /// Returns the failure domain of a volume, if it was set.
    pub(crate) fn failure_domain(&self, export: &Export<W, D>) -> Option<Rc<FailureDomain>> {
        let mut domain = self.state.domains.borrow().get(&export.device())?.clone();
        if export.takes_no_changes() {
            // Known here before anybody else is told.
            Rc::make_mut(&mut domain).health = DeviceHealth::Failed;
        }
        Some(domain)
    }

    /// Makes an association under a free controller identifier.
    pub(crate) fn add_association(
        &self,
        make: impl FnOnce(u16) -> Result<Rc<Association<W, D>>, ConnectRefusal>,
    ) -> Result<Rc<Association<W, D>>, ConnectRefusal> {
        let mut associations = self.state.associations.borrow_mut();
        let entry = associations.vacant_entry();
        // Identifiers count from 1: some tools take 0 for "none".
        let cntlid = u16::try_from(entry.key() + 1).map_err(|_| ConnectRefusal::BUSY)?;
        let association = make(cntlid)?;
        entry.insert(association.clone());
        Ok(association)
    }

    pub(crate) fn association(&self, cntlid: u16) -> Option<Rc<Association<W, D>>> {
        let key = usize::from(cntlid).checked_sub(1)?;
        self.state.associations.borrow().get(key).cloned()
    }

    /// The admin queue is gone, and the controller with it.
    pub(crate) fn end_association(&self, association: &Rc<Association<W, D>>) {
        association.cut("the admin queue is gone");
        let key = usize::from(association.instance().cntlid) - 1;
        self.state.associations.borrow_mut().remove(key);
        self.state.leaving.add(association);
    }

    /// ASSOCIATION-3.
    pub(crate) fn former_queues_of(&self, export: &Rc<Export<W, D>>) -> usize {
        let present = self.associations_of(export);
        let sum =
            |sum: usize, association: &Rc<Association<W, D>>| sum + association.former_queues();
        present.iter().fold(self.state.leaving.former_queues_of(export), sum)
    }

    /// Controllers without an admin queue.
    pub(crate) fn leaving(&self) -> &Leaving<W, D> {
        &self.state.leaving
    }

    /// Tells two controllers apart that have the same number one after the other, unless by chance: their random numbers
    /// do in any case. Never 0.
    pub(crate) fn next_uniquifier(&self) -> u8 {
        let next = self.state.uniquifier.get().checked_add(1).unwrap_or(1);
        self.state.uniquifier.set(next);
        next
    }

    pub(crate) fn all_associations(&self) -> Vec<Rc<Association<W, D>>> {
        self.state.associations.borrow().iter().map(|(_, a)| a.clone()).collect()
    }

    /// The associations whose hosts hear what becomes of a volume: those of strangers do not (NVME-AUTH-4).
    fn associations_of(&self, export: &Rc<Export<W, D>>) -> Vec<Rc<Association<W, D>>> {
        let is_of = |association: &Rc<Association<W, D>>| {
            let subject = association.subject.export();
            subject.is_some_and(|other| Rc::ptr_eq(other, export)) && !association.is_strangers()
        };
        self.all_associations().into_iter().filter(is_of).collect()
    }

    pub(crate) fn computing(&self) -> &Computing {
        &self.state.computing
    }

    pub(crate) fn quiet(&self) -> &RefCell<Quiet> {
        &self.state.quiet
    }

    pub(crate) fn throttle(&self) -> &RefCell<Throttle<Nqn>> {
        &self.state.throttle
    }

    pub(crate) fn discovery(&self) -> &Discovery {
        &self.state.discovery
    }

    pub(crate) fn options(&self) -> &NvmeOptions {
        &self.state.options
    }
}
