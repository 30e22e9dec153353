//! The front end of a core.

use std::cell::RefCell;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};

use dataplane::{Computing, Core, Frontend, Link, Session};
use io_traits::{Device, World};
use nbd_server::Limits;
use nbd_wire::Errno;
use rustls::ServerConfig;
use strangers::{LeftOut, Quiet, Repeats};
use units::Instant;
use uuid::Uuid;

use crate::connection::Connection;
use crate::errors::EXPECTED;
use crate::exports::{ExportRecord, Exports};

/// The way by which clients come to a listener.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Way {
    /// TCP.
    Network,
    /// The unix socket.
    Unix,
}

/// Options of the front end.
#[derive(Clone, Debug, Default)]
pub struct NbdOptions {
    /// Bounds on what a client can ask for.
    pub limits: Limits,
    /// Certificate and key, and the authorities whose certificates of clients count; without, there is no TLS.
    pub tls: Option<NbdTls>,
}

/// Certificate and key of all cores, and the authorities of clients, which may be replaced while connections are open: they count for
/// those that begin TLS from then on. Clones share them.
#[derive(Clone, Debug)]
pub struct NbdTls(Arc<Mutex<Arc<ServerConfig>>>);

impl NbdTls {
    /// Begins with `config`.
    #[must_use]
    pub fn new(config: Arc<ServerConfig>) -> Self {
        Self(Arc::new(Mutex::new(config)))
    }

    /// Uses `config` from now on.
    pub fn replace(&self, config: Arc<ServerConfig>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = config;
    }

    pub(crate) fn current(&self) -> Arc<ServerConfig> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The state of the front end. It holds no core: the core holds it.
pub(crate) struct State {
    pub(crate) exports: RefCell<Exports>,
    pub(crate) options: NbdOptions,
    /// Lines about clients that were refused, or have opened nothing.
    pub(crate) quiet: RefCell<Quiet>,
    /// Lines about connections that ended otherwise than by their client's will, by its address and the reason.
    pub(crate) ends: RefCell<Repeats<(IpAddr, String)>>,
    /// Handshakes of TLS.
    pub(crate) computing: Computing,
}

/// NBD before a core. A cheap handle; clones are the same front end.
#[derive(Clone)]
pub struct NbdFrontend {
    pub(crate) state: Rc<State>,
}

/// The front end at listeners of one kind.
struct Accepting {
    frontend: NbdFrontend,
    way: Way,
}

impl<W: World, D: Device> Frontend<W, D> for Accepting {
    fn protocol(&self) -> &'static str {
        "nbd"
    }

    fn accept(&self, core: &Core<W, D>, link: Link, stream: W::Stream) -> Rc<dyn Session> {
        let connection = Connection::new(core, &self.frontend, self.way, link, stream);
        connection.start();
        connection
    }

    fn on_tick(&self, _core: &Core<W, D>, now: Instant) {
        for LeftOut { source, lines } in self.frontend.state.quiet.borrow_mut().over(now) {
            tracing::warn!(%source, lines, "lines about refused NBD clients left out");
        }
        for ((source, reason), lines) in self.frontend.state.ends.borrow_mut().over(now) {
            tracing::info!(%source, reason, lines, "NBD connection ended, again");
        }
    }
}

impl NbdFrontend {
    /// Puts the front end before a core, which may have others. It has no exports before [`NbdFrontend::announce`].
    #[must_use]
    pub fn before<W: World, D: Device>(core: &Core<W, D>, options: NbdOptions) -> Self {
        let state = Rc::new(State {
            exports: RefCell::default(),
            options,
            quiet: RefCell::default(),
            ends: RefCell::default(),
            computing: Computing::default(),
        });
        let frontend = Self { state };
        core.add_frontend(frontend.at(Way::Network), EXPECTED.map(Errno::name));
        frontend
    }

    /// The front end for listeners at which clients come by `way`.
    #[must_use]
    pub fn at<W: World, D: Device>(&self, way: Way) -> Rc<dyn Frontend<W, D>> {
        Rc::new(Accepting { frontend: self.clone(), way })
    }

    /// Lets clients that may open a volume find it.
    pub fn announce(&self, record: ExportRecord) {
        self.state.exports.borrow_mut().insert(record);
    }

    /// Lets no client find the volume any more.
    pub fn withdraw(&self, uuid: Uuid) {
        self.state.exports.borrow_mut().remove(uuid);
    }
}
