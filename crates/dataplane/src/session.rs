//! The seam between the core and its front ends, which speak the protocols of hosts.
//!
//! ```text
//!  Listener ── Frontend::accept ── Session ── Core::submit ──► turns, gate, volume, device
//!                 a protocol        │   ▲                              │
//!                                   │   └─── Session::complete ◄───────┘
//!                                   └─ Link: its window, its phase, its place among sessions
//! ```
//! A session is one connection of any protocol. It decodes what its host sends, opens exports with
//! [`Core::open`], hands requests in with [`Core::submit`], and encodes their outcomes.
//!
//! - PLANE-SESSION-1: each request ends in one call of [`Session::complete`], unless its session was closed.
//! - PLANE-SESSION-2: a request whose session is closed before its turn is not carried out.
//! - PLANE-SESSION-3: what becomes of a volume is told to every session; those that did not open it ignore that.

use std::cell::Cell;
use std::fmt;
use std::net::IpAddr;
use std::rc::Rc;

use io_traits::{Device, World};
use local_sync::Notify;
use reservation::{Host, Notice};
use units::Instant;

use crate::core::Core;
use crate::crowd::Crowd;
use crate::export::Export;
use crate::front_ends::FrontendCounts;
use crate::memory::Window;
use crate::request::Outcome;
use crate::sessions::Sessions;

/// Names a request in flight to the session that submitted it. The core does not look at it.
pub type Tag = u32;

/// One connection of any protocol, as the core sees it.
pub trait Session {
    /// The part of the session that is the core's.
    fn link(&self) -> &Link;

    /// Ends the request `tag`. Called once for each; of those that wait when the session is closed, for none.
    fn complete(&self, tag: Tag, outcome: Outcome);

    /// Requests under way that will be answered: the core waits for them before it shuts down.
    fn requests(&self) -> usize;

    /// Returns whether its host has the volume open through it. Of the connections of one NVMe controller one says so.
    fn has_open(&self, export: ExportId) -> bool;

    /// Tells of a volume, which the session may not have opened (PLANE-SESSION-3).
    fn on_volume(&self, export: ExportId, event: VolumeEvent);

    /// Returns its host, as reservations know hosts; `None` where the protocol has no name for it.
    fn reservation_host(&self) -> Option<Rc<Host>> {
        None
    }

    /// Tells what a command of one host did to the reservations of others. The session may be of another volume
    /// (PLANE-SESSION-3) or host.
    fn on_reservations(&self, _export: ExportId, _notices: &[Notice]) {}

    /// Aborts the commands for the volume if one of `hosts` is its host: none of them is carried out any more, but for those
    /// that are under way ([`Link::abort_requests`]). The session may be of another volume (PLANE-SESSION-3).
    fn on_abort(&self, _export: ExportId, _hosts: &[Host]) {}

    /// Acts on deadlines that have passed. Called a few times a second, with [`Core::running_time`].
    fn on_tick(&self, now: Instant);

    /// Ends the session for `reason`, once what waits to be sent was sent.
    fn close(&self, reason: &str);

    /// Ends the session for `reason` at once.
    fn cut(&self, reason: &str);
}

/// Accepts connections of one protocol.
pub trait Frontend<W: World, D: Device> {
    /// The protocol, as figures are told under it.
    fn protocol(&self) -> &'static str;

    /// Begins a session on `stream`. The session keeps `link`, and calls [`Link::leave`] when it is over.
    fn accept(&self, core: &Core<W, D>, link: Link, stream: W::Stream) -> Rc<dyn Session>;

    /// Does the work that is due now and then. Called a few times a second, after the sessions, with [`Core::running_time`].
    fn on_tick(&self, core: &Core<W, D>, now: Instant);
}

/// Tells exports of a core apart, in the order in which they came. Never reused.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ExportId(pub(crate) u64);

/// An event of a volume.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum VolumeEvent {
    /// Its size may be another.
    Resized,
    /// Other hosts may open it than before. Sessions whose host no longer may are to end.
    AccessChanged {
        /// Its tokens were replaced: all sessions are to end.
        revoked: bool,
    },
    /// The core may not serve it for now. Sessions are to end; hosts may come again.
    Suspended,
    /// It is gone. Sessions are to end.
    Deleted,
}

/// The name of a session in the log.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ConnectionId {
    /// The core that serves it.
    pub core: u32,
    /// Its number there. Given once while the server runs.
    pub number: u64,
}

impl fmt::Display for ConnectionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.core, self.number)
    }
}

/// Progress of a session towards its end.
#[derive(Clone, Copy, Eq, Ord, PartialEq, PartialOrd)]
enum Phase {
    Open,
    /// Data that waits to be sent is still sent.
    Closing,
    Cut,
}

/// The part of a session that is the core's.
pub struct Link {
    id: ConnectionId,
    source: IpAddr,
    window: Window,
    closed: Notify,
    phase: Cell<Phase>,
    is_let_in: Cell<bool>,
    has_left: Cell<bool>,
    sessions: Rc<Sessions>,
    counts: Rc<FrontendCounts>,
    /// Calls of [`Self::abort_requests`].
    aborts: Cell<u32>,
}

impl Link {
    pub(crate) fn new(
        id: ConnectionId,
        source: IpAddr,
        window: Window,
        sessions: Rc<Sessions>,
        counts: Rc<FrontendCounts>,
    ) -> Self {
        counts.change(|stats| {
            stats.connections += 1;
            stats.connected += 1;
        });
        Self {
            id,
            source,
            window,
            closed: Notify::new(),
            phase: Cell::new(Phase::Open),
            is_let_in: Cell::new(false),
            has_left: Cell::new(false),
            sessions,
            counts,
            aborts: Cell::new(0),
        }
    }

    /// Its name in the log.
    #[inline]
    #[must_use]
    pub fn id(&self) -> ConnectionId {
        self.id
    }

    /// The address, or the network, to which its host counts.
    pub(crate) fn source(&self) -> IpAddr {
        self.source
    }

    /// The memory that its requests may use.
    #[inline]
    #[must_use]
    pub fn window(&self) -> &Window {
        &self.window
    }

    /// Notified when the session is closed.
    #[inline]
    #[must_use]
    pub fn closed(&self) -> &Notify {
        &self.closed
    }

    /// Returns whether the session was neither closed nor cut.
    #[inline]
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.phase.get() == Phase::Open
    }

    /// Returns whether the session was cut.
    #[must_use]
    pub fn is_cut(&self) -> bool {
        self.phase.get() == Phase::Cut
    }

    /// Closes the session: its requests get no more memory, and those that wait for their turn are not
    /// carried out (PLANE-SESSION-2).
    pub fn close(&self) {
        if self.is_open() {
            self.phase.set(Phase::Closing);
            self.with_crowd(Crowd::lingers);
            self.window.close();
            self.closed.notify_all();
        }
    }

    /// Notes that the session was ended at once. Returns whether it was not before.
    pub fn cut(&self) -> bool {
        self.close();
        let is_first = self.phase.replace(Phase::Cut) < Phase::Cut;
        if is_first {
            self.with_crowd(Crowd::is_cut);
        }
        is_first
    }

    /// Takes one of the places of `export`, which [`Core::has_place_for`] said there is: its host may use the volume.
    pub fn let_in<W: World, D: Device>(&self, export: &Export<W, D>) {
        if !self.is_let_in.replace(true) {
            self.counts.change(|stats| stats.connections_let_in += 1);
        }
        export.with_owner(|owner| {
            self.with_crowd(|crowd, number| crowd.let_in(number, export.uuid(), owner));
        });
    }

    /// Gives its place to others: nothing of the session is left but requests under way.
    pub fn leave(&self) {
        if !self.has_left.replace(true) {
            self.counts.change(|stats| {
                stats.connections -= 1;
                stats.connections_let_in -= u64::from(self.is_let_in.get());
            });
        }
        self.sessions.remove(self.id.number);
    }

    /// Counts a client that may not open what it asked for.
    pub fn note_refused(&self) {
        self.counts.change(|stats| stats.refused += 1);
    }

    /// Fails what it has submitted and what is not carried out yet, with [`crate::IoError::Aborted`].
    pub fn abort_requests(&self) {
        self.aborts.set(self.aborts.get().wrapping_add(1));
    }

    /// Tells requests that were submitted before an abort from those behind it.
    #[inline]
    pub(crate) fn aborts(&self) -> u32 {
        self.aborts.get()
    }

    pub(crate) fn counts(&self) -> &FrontendCounts {
        &self.counts
    }

    fn with_crowd(&self, advance: impl FnOnce(&mut Crowd, u64)) {
        self.sessions.with_crowd(|crowd| advance(crowd, self.id.number));
    }
}
