//! What the log says of a connection, so that it can be followed from its beginning to its end.
//!
//! - G1: each line about a connection has its id in the field `connection`. An id is given once while the
//!   server runs: the core, and the connection's number there.
//! - G2: a connection that came as far as Connect, or ended otherwise than by its host's will, has one line
//!   that says how it ended. Those of I/O queues are for `debug` if all went well: a host has many.
//! - G3: of hosts that have not shown who they are not every line is written (`strangers::Quiet`).

use std::cell::RefCell;
use std::fmt;

use io_traits::{Device, World};
use nvme_wire::{Nqn, Status};
use strangers::LeftOut;

use crate::admission::Subject;
use crate::connection::{Connection, Role};
use crate::core::Core;

/// Why I/O queues end whose host is done with them, or begins anew.
pub(crate) const HOST_RESET: &str = "the host reset its controller";

/// What connections are called in the log.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct ConnectionId {
    pub(crate) core: u32,
    pub(crate) number: u64,
}

impl fmt::Display for ConnectionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.core, self.number)
    }
}

/// A connection's name, and why it ends.
pub(crate) struct Life {
    pub(crate) id: ConnectionId,
    reason: RefCell<Option<String>>,
}

impl Life {
    pub(crate) fn new(id: ConnectionId) -> Self {
        Self { id, reason: RefCell::default() }
    }
}

/// Who has a connection, and for what.
struct Holder {
    host: Nqn,
    subsystem: Nqn,
    qid: u16,
    cntlid: u16,
    /// It has shown who it is, or need not.
    is_known: bool,
}

impl<W: World, D: Device> Core<W, D> {
    /// Says what was left out (G3).
    pub(crate) fn say_what_was_left_out(&self) {
        for LeftOut { source, lines } in self.quiet().borrow_mut().over(self.world().now()) {
            tracing::warn!(%source, lines, "lines about strangers left out");
        }
    }
}

impl<W: World, D: Device> Connection<W, D> {
    /// Notes why the connection ends; the first reason is the one.
    pub(crate) fn note_end(&self, reason: impl fmt::Display) {
        self.life.reason.borrow_mut().get_or_insert_with(|| reason.to_string());
    }

    /// G3: whether a line about a host that has not shown who it is may be written.
    pub(crate) fn may_be_said(&self) -> bool {
        self.core.quiet().borrow_mut().allows(self.peer().ip(), self.core.world().now())
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

    pub(crate) fn log_accepted(&self) {
        let (connection, peer) = (self.life.id, self.peer());
        tracing::debug!(%connection, %peer, interface = self.interface(), "connection accepted");
    }

    /// Of a host that has yet to show who it is [`Connection::log_authenticated`] tells.
    pub(crate) fn log_connected(&self) {
        let Some(Holder { host, subsystem, qid, cntlid, is_known }) = self.holder() else { return };
        let (connection, peer) = (self.life.id, self.peer());
        if qid > 0 || self.unproven().is_some() {
            tracing::debug!(%connection, %peer, %host, %subsystem, qid, cntlid, "connected");
        } else if is_known || self.may_be_said() {
            tracing::info!(%connection, %peer, %host, %subsystem, qid, cntlid, "connected");
        }
    }

    pub(crate) fn log_refused(&self, status: Status) {
        let (connection, peer) = (self.life.id, self.peer());
        tracing::debug!(%connection, %peer, %status, "Connect refused");
    }

    pub(crate) fn log_authenticated(&self) {
        let Some(Holder { host, subsystem, qid, cntlid, .. }) = self.holder() else { return };
        let (connection, peer) = (self.life.id, self.peer());
        if qid > 0 {
            tracing::debug!(%connection, %peer, %host, %subsystem, qid, cntlid, "authenticated");
        } else {
            tracing::info!(%connection, %peer, %host, %subsystem, qid, cntlid, "authenticated");
        }
    }

    /// G2.
    pub(crate) fn log_ended(&self) {
        let (connection, peer) = (self.life.id, self.peer());
        let reason = self.life.reason.take();
        let by_host = reason.as_deref().is_none_or(|reason| reason == HOST_RESET);
        let reason = reason.as_deref().unwrap_or("the host closed it");
        let Some(Holder { host, subsystem, qid, is_known, .. }) = self.holder() else {
            if by_host {
                tracing::debug!(%connection, %peer, reason, "connection ended");
            } else if self.may_be_said() {
                tracing::info!(%connection, %peer, reason, "connection ended");
            }
            return;
        };
        if by_host && qid > 0 {
            tracing::debug!(%connection, %peer, %host, %subsystem, qid, reason, "connection ended");
        } else if is_known || self.may_be_said() {
            tracing::info!(%connection, %peer, %host, %subsystem, qid, reason, "connection ended");
        }
    }
}
