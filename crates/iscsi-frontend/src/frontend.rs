//! A core together with its iSCSI front end.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::Deref;
use std::rc::{Rc, Weak};

use dataplane::{Core, Frontend, Link, Session, spare_percent};
use io_traits::{Device, World};
use iscsi_wire::IscsiName;
use strangers::{LeftOut, Quiet, Repeats, Throttle};
use units::Instant;
use uuid::Uuid;

use crate::connection::{Connection, EndReason};
use crate::discovery::Discovery;
use crate::options::IscsiOptions;
use crate::sense::NAMES;

/// Names of targets begin with this, and end with the volume's identity.
const NAME_PREFIX: &str = "iqn.2026-01.io.farflash:";

/// Sessions to one volume.
type SessionsOf<W, D> = Vec<Weak<Connection<W, D>>>;

/// The state of the front end. It holds no core: the core holds it.
pub(crate) struct State<W: World, D: Device> {
    options: IscsiOptions,
    discovery: Discovery,
    /// Sessions by their volumes.
    sessions: RefCell<BTreeMap<Uuid, SessionsOf<W, D>>>,
    last_tsih: Cell<u16>,
    /// Lines about initiators that were refused.
    pub(crate) quiet: RefCell<Quiet>,
    /// Lines about connections that ended otherwise than by their initiator's will, by its address and the reason.
    pub(crate) ends: RefCell<Repeats<(IpAddr, EndReason)>>,
    /// Failed logins, by the volume that was asked for; those to discovery by none.
    pub(crate) throttle: RefCell<Throttle<Uuid>>,
}

/// A core that serves iSCSI. A cheap handle; clones are the same core.
pub struct IscsiCore<W: World, D: Device> {
    core: Core<W, D>,
    pub(crate) state: Rc<State<W, D>>,
}

impl<W: World, D: Device> Clone for IscsiCore<W, D> {
    fn clone(&self) -> Self {
        Self { core: self.core.clone(), state: self.state.clone() }
    }
}

impl<W: World, D: Device> Deref for IscsiCore<W, D> {
    type Target = Core<W, D>;

    fn deref(&self) -> &Core<W, D> {
        &self.core
    }
}

/// The iSCSI name of the target of the volume `uuid`, the same on every host and path for life.
#[must_use]
pub fn target_name_of(uuid: Uuid) -> String {
    format!("{NAME_PREFIX}{}", uuid.as_hyphenated())
}

/// The volume whose target has this name.
pub(crate) fn uuid_of(name: &IscsiName) -> Option<Uuid> {
    let uuid = name.as_str().strip_prefix(NAME_PREFIX)?.parse::<Uuid>().ok()?;
    (target_name_of(uuid) == name.as_str()).then_some(uuid)
}

/// The front end as the core sees it.
struct Accepting<W: World, D: Device>(Rc<State<W, D>>);

impl<W: World, D: Device> Frontend<W, D> for Accepting<W, D> {
    fn protocol(&self) -> &'static str {
        "iscsi"
    }

    fn accept(&self, core: &Core<W, D>, link: Link, stream: W::Stream) -> Rc<dyn Session> {
        let core = IscsiCore { core: core.clone(), state: self.0.clone() };
        let connection = Connection::new(&core, link, stream);
        connection.start();
        connection
    }

    fn on_tick(&self, core: &Core<W, D>, now: Instant) {
        for LeftOut { source, lines } in self.0.quiet.borrow_mut().over(now) {
            tracing::warn!(%source, lines, "lines about refused iSCSI initiators left out");
        }
        for ((source, reason), lines) in self.0.ends.borrow_mut().over(now) {
            tracing::info!(%source, %reason, lines, "iSCSI connection ended, again");
        }
        let mut sessions = self.0.sessions.borrow_mut();
        sessions.values_mut().for_each(|of_one| of_one.retain(|it| it.strong_count() > 0));
        sessions.retain(|_, of_one| !of_one.is_empty());
        drop(sessions);
        self.0.tell_of_space(core);
    }
}

impl<W: World, D: Device> State<W, D> {
    /// Tells initiators whose pool has little left.
    fn tell_of_space(&self, core: &Core<W, D>) {
        let mut spares = BTreeMap::new();
        for (uuid, sessions) in &*self.sessions.borrow() {
            let Some(export) = core.export(*uuid) else { continue };
            let spare = || spare_percent(&export.volume().shard().capacity());
            let spare = *spares.entry(export.shard()).or_insert_with(spare);
            sessions.iter().filter_map(Weak::upgrade).for_each(|session| session.on_spare(spare));
        }
    }
}

impl<W: World, D: Device> IscsiCore<W, D> {
    /// Puts the front end before a core, which may have others.
    #[must_use]
    pub fn before(core: Core<W, D>, options: IscsiOptions) -> Self {
        let state = Rc::new(State {
            options,
            discovery: Discovery::default(),
            sessions: RefCell::default(),
            last_tsih: Cell::new(0),
            quiet: RefCell::default(),
            ends: RefCell::default(),
            throttle: RefCell::default(),
        });
        core.add_frontend(Rc::new(Accepting(state.clone())), NAMES.map(|(_, name)| name));
        Self { core, state }
    }

    /// Returns the front end, for listeners that are served by [`Core::serve`].
    #[must_use]
    pub fn frontend(&self) -> Rc<dyn Frontend<W, D>> {
        Rc::new(Accepting(self.state.clone()))
    }

    pub(crate) fn options(&self) -> &IscsiOptions {
        &self.state.options
    }

    pub(crate) fn discovery(&self) -> &Discovery {
        &self.state.discovery
    }

    /// The target's part of a new session's identifier; not 0.
    pub(crate) fn next_tsih(&self) -> u16 {
        let next = self.state.last_tsih.get().checked_add(1).unwrap_or(1);
        self.state.last_tsih.set(next);
        next
    }

    /// Sessions to a volume.
    pub(crate) fn sessions_of(&self, uuid: Uuid) -> Vec<Rc<Connection<W, D>>> {
        let sessions = self.state.sessions.borrow();
        sessions.get(&uuid).into_iter().flatten().filter_map(Weak::upgrade).collect()
    }

    pub(crate) fn add_session(&self, uuid: Uuid, session: &Rc<Connection<W, D>>) {
        let mut sessions = self.state.sessions.borrow_mut();
        sessions.entry(uuid).or_default().push(Rc::downgrade(session));
    }
}
