//! Log lines about a connection, from its beginning to its end.
//!
//! - LIFE-1: each line about a connection has its id in the field `connection`. An id is given once while the
//!   server runs: the core, and the connection's number there.
//! - LIFE-2: a connection that came as far as Connect, or ended otherwise than by its host's will, has one line
//!   that says how it ended. Those of I/O queues are for `debug` if all went well: a host has many.
//!   Where one host has many that end for one reason, the first line stands for all (`strangers::Repeats`).
//! - LIFE-3: not every line is written about hosts that have not authenticated (`strangers::Quiet`).
//! - LIFE-4: a core only says what happened. To put it into words takes 13 µs of a core whose caches hold other things, so a
//!   server has a thread for that.

use std::borrow::Cow;
use std::cell::RefCell;
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use auth::Parties;
use dataplane::ConnectionId;
use io_traits::{Device, World};
use nvme_target::ConnectRefusal;
use nvme_wire::{Nqn, Status};
use strangers::{LeftOut, source};
use tracing::Level;

use crate::admission::Subject;
use crate::connection::{Connection, Role};
use crate::frontend::NvmeCore;

/// Why a connection ended whose host was asked to authenticate, and has not. It may have no token.
const LEFT_UNPROVEN: &str = "the host went without having authenticated";
/// The reason for which I/O queues end when their host is done with them, or reconnects.
pub(crate) const HOST_RESET: &str = "the host reset its controller";

/// The reason for the end of a connection, once there is one.
#[derive(Default)]
pub(crate) struct EndReason(RefCell<Option<String>>);

/// The host that has a connection, and the queue that it is.
struct Holder {
    host: Nqn,
    subsystem: Nqn,
    qid: u16,
    cntlid: u16,
    /// The host has authenticated, or need not.
    is_known: bool,
}

/// The host and the reason of a line: lines that say the same again are left out.
#[derive(Clone, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) struct Cause {
    source: IpAddr,
    /// The host, if it has gone so far as to name itself.
    host: Option<Nqn>,
    event: &'static str,
    reason: Cow<'static, str>,
}

/// Something that happened to a connection (LIFE-4).
pub struct Line {
    connection: ConnectionId,
    peer: SocketAddr,
    event: Event,
    level: Level,
}

enum Event {
    Accepted {
        interface: Option<String>,
    },
    Connected(Holder),
    Refused {
        status: Status,
        cause: &'static str,
    },
    Authenticated(Holder),
    /// An authentication that failed.
    Unproven {
        host: Nqn,
        subsystem: Nqn,
        volume: &'static str,
        reason: String,
    },
    /// A host that may not open the subsystem that it names, without authentication.
    Unqualified {
        host: Nqn,
        subsystem: Nqn,
        reason: &'static str,
    },
    Ended {
        holder: Option<Holder>,
        reason: Cow<'static, str>,
    },
}

/// Writes a line of a level that is only known when it is written.
macro_rules! write_at {
    ($level:expr, $($line:tt)*) => {
        match $level {
            Level::DEBUG => tracing::debug!($($line)*),
            Level::WARN => tracing::warn!($($line)*),
            _ => tracing::info!($($line)*),
        }
    };
}

impl Line {
    /// Writes it into the log.
    pub fn write(&self) {
        let Self { connection, peer, event, level } = self;
        let level = *level;
        match event {
            Event::Accepted { interface } => {
                let interface = interface.as_deref();
                write_at!(level, %connection, %peer, interface, "connection accepted");
            }
            Event::Connected(Holder { host, subsystem, qid, cntlid, .. }) => {
                write_at!(level, %connection, %peer, %host, %subsystem, qid, cntlid, "connected");
            }
            Event::Refused { status, cause } => {
                write_at!(level, %connection, %peer, %status, cause, "Connect refused");
            }
            Event::Authenticated(Holder { host, subsystem, qid, cntlid, .. }) => {
                write_at!(level, %connection, %peer, %host, %subsystem, qid, cntlid, "authenticated");
            }
            Event::Unproven { host, subsystem, volume, reason } => {
                tracing::warn!(%connection, %peer, %host, %subsystem, volume, %reason, "authentication failed");
            }
            Event::Unqualified { host, subsystem, reason } => {
                tracing::info!(%connection, %peer, %host, %subsystem, reason, "host refused");
            }
            Event::Ended { holder: None, reason } => {
                let reason = reason.as_ref();
                write_at!(level, %connection, %peer, reason, "connection ended");
            }
            Event::Ended { holder: Some(Holder { host, subsystem, qid, .. }), reason } => {
                let reason = reason.as_ref();
                write_at!(level, %connection, %peer, %host, %subsystem, qid, reason, "connection ended");
            }
        }
    }
}

/// Returns true if lines about connections of `level` are written.
fn is_written(level: Level) -> bool {
    match level {
        Level::DEBUG => tracing::enabled!(Level::DEBUG),
        Level::WARN => tracing::enabled!(Level::WARN),
        _ => tracing::enabled!(Level::INFO),
    }
}

impl<W: World, D: Device> NvmeCore<W, D> {
    /// From now on `tell` is given each line about a connection, and has it written (LIFE-4). Without this they are written at
    /// once.
    pub fn on_line(&self, tell: impl Fn(Line) + 'static) {
        *self.state.on_line.borrow_mut() = Box::new(tell);
    }

    /// Logs how many lines were left out (LIFE-3).
    pub(crate) fn log_suppressed(&self) {
        for LeftOut { source, lines } in self.quiet().borrow_mut().over(self.world().now()) {
            tracing::warn!(%source, lines, "lines about strangers left out");
        }
        for (cause, lines) in self.state.repeats.borrow_mut().over(self.world().now()) {
            let Cause { source, host, event, reason } = cause;
            let host = host.as_ref().map(Nqn::as_str);
            let reason = reason.as_ref();
            tracing::info!(%source, host, reason, lines, "{event}, again");
        }
    }
}

impl<W: World, D: Device> Connection<W, D> {
    /// Notes why the connection ends; the first reason is the one.
    pub(crate) fn note_end(&self, reason: impl fmt::Display) {
        self.end_reason.0.borrow_mut().get_or_insert_with(|| reason.to_string());
    }

    /// LIFE-3: returns true if a line about a host that has not authenticated may be written.
    pub(crate) fn may_be_said(&self) -> bool {
        self.core.quiet().borrow_mut().allows(self.peer().ip(), self.core.world().now())
    }

    /// Returns whether the line about `event` is the first of late about this host and for this `reason`.
    fn is_news(&self, host: Option<Nqn>, event: &'static str, reason: Cow<'static, str>) -> bool {
        let cause = Cause { source: source(self.peer().ip()), host, event, reason };
        self.core.state.repeats.borrow_mut().allows(cause, self.core.world().now())
    }

    fn holder(&self) -> Option<Holder> {
        let role = self.role.borrow();
        let (association, qid) = match &*role {
            Role::New => return None,
            Role::Admin(association) => (association, 0),
            Role::Io(queue) => (&queue.association, queue.qid),
        };
        let controller = association.controller.borrow();
        let parameters = controller.parameters();
        let has_passed = self.authentication.get().is_none_or(|queue| queue.has_passed());
        Some(Holder {
            host: association.host,
            subsystem: parameters.subsystem,
            qid,
            cntlid: parameters.instance.cntlid,
            is_known: has_passed && matches!(association.subject, Subject::Volume(_)),
        })
    }

    fn say(&self, level: Level, event: Event) {
        let line = Line { connection: self.link.id(), peer: self.peer(), event, level };
        (self.core.state.on_line.borrow())(line);
    }

    pub(crate) fn log_accepted(&self) {
        if is_written(Level::DEBUG) {
            self.say(
                Level::DEBUG,
                Event::Accepted { interface: self.interface().map(str::to_owned) },
            );
        }
    }

    /// Logs a new connection. For a host that has yet to authenticate, [`Connection::log_authenticated`] does
    /// so.
    pub(crate) fn log_connected(&self) {
        let Some(holder) = self.holder() else { return };
        let is_detail = holder.qid > 0 || self.unproven().is_some();
        let level = if is_detail { Level::DEBUG } else { Level::INFO };
        if is_written(level) && (is_detail || holder.is_known || self.may_be_said()) {
            self.say(level, Event::Connected(holder));
        }
    }

    /// A host retries what is refused, often without a word to its user: the first time is told at `info`.
    pub(crate) fn log_refused(&self, refusal: &ConnectRefusal) {
        self.link.note_refused();
        let (status, cause) = (refusal.status, refusal.cause());
        // That there is no such subsystem for the host was told with its name.
        let is_told = *refusal == ConnectRefusal::UNKNOWN_SUBSYSTEM && self.is_told.get();
        let is_news = !is_told && self.is_news(None, "Connect refused", Cow::Borrowed(cause));
        let level = if is_news && self.may_be_said() { Level::INFO } else { Level::DEBUG };
        if is_written(level) {
            self.say(level, Event::Refused { status, cause });
        }
    }

    pub(crate) fn log_authenticated(&self) {
        let Some(holder) = self.holder() else { return };
        let level = if holder.qid > 0 { Level::DEBUG } else { Level::INFO };
        if is_written(level) {
            self.say(level, Event::Authenticated(holder));
        }
    }

    /// An authentication of one of `parties` has failed for `reason`, which may be said (LIFE-3); `volume` says what is with
    /// that.
    pub(crate) fn log_unproven(
        &self,
        parties: &Parties,
        volume: &'static str,
        reason: impl fmt::Display,
    ) {
        let (Parties { host, subsystem }, reason) = (*parties, reason.to_string());
        self.say(Level::WARN, Event::Unproven { host, subsystem, volume, reason });
    }

    /// `host` may not open `subsystem`, for `reason`, and is told that there is none.
    pub(crate) fn log_unqualified(&self, host: Nqn, subsystem: Nqn, reason: &'static str) {
        self.is_told.set(true);
        if self.may_be_said() {
            self.say(Level::INFO, Event::Unqualified { host, subsystem, reason });
        }
    }

    /// LIFE-2.
    pub(crate) fn log_ended(&self) {
        let reason = self.end_reason.0.take();
        let by_host = reason.as_deref().is_none_or(|reason| reason == HOST_RESET);
        // As one does that has no token, or none that it was asked for.
        let is_unfinished = reason.is_none() && self.unproven().is_some();
        if is_unfinished {
            self.core.throttle().borrow_mut().note_unfinished();
        }
        let usual = if is_unfinished { LEFT_UNPROVEN } else { "the host closed it" };
        let reason = reason.map_or(Cow::Borrowed(usual), Cow::Owned);
        let holder = self.holder();
        let is_detail =
            by_host && !is_unfinished && holder.as_ref().is_none_or(|holder| holder.qid > 0);
        let is_known = holder.as_ref().is_some_and(|holder| holder.is_known);
        let host = holder.as_ref().map(|holder| holder.host);
        let is_repeated = !by_host && !self.is_news(host, "connection ended", reason.clone());
        let is_detail = is_detail || is_repeated;
        let level = match () {
            () if is_detail => Level::DEBUG,
            () if is_unfinished => Level::WARN,
            () => Level::INFO,
        };
        if is_written(level) && (is_detail || is_known || self.may_be_said()) {
            self.say(level, Event::Ended { holder, reason });
        }
    }
}
