//! Sessions as they come and go, and the places that they take (`crowd.rs`).

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::rc::Rc;

use io_traits::{Device, Stream, World};
use local_sync::Notify;
use strangers::source;

use crate::core::Core;
use crate::crowd::{Crowd, LEAVING_MAX};
use crate::export::Export;
use crate::front_ends::{FrontendCounts, FrontendStats};
use crate::session::{ConnectionId, Frontend, Link, Session};

/// The sessions of a core.
#[derive(Default)]
pub(crate) struct Sessions {
    all: RefCell<BTreeMap<u64, Rc<dyn Session>>>,
    crowd: RefCell<Crowd>,
    /// A session has gone.
    left: Notify,
    /// Sessions so far.
    connected: Cell<u64>,
    /// Connections closed as they came, and how many of them the log knows of.
    refused: Cell<u64>,
    refused_told: Cell<u64>,
    /// Counts of front ends that had a connection.
    front_ends: RefCell<Vec<Rc<FrontendCounts>>>,
}

impl Sessions {
    /// Reads or changes the occupants of the places.
    pub(crate) fn with_crowd<T>(&self, act: impl FnOnce(&mut Crowd) -> T) -> T {
        act(&mut self.crowd.borrow_mut())
    }

    /// Connections, those that are on their way out included.
    pub(crate) fn count(&self) -> usize {
        self.all.borrow().len()
    }

    /// All of them, the oldest first.
    pub(crate) fn all(&self) -> Vec<Rc<dyn Session>> {
        self.all.borrow().values().cloned().collect()
    }

    /// A session is over.
    pub(crate) fn remove(&self, number: u64) {
        let gone = self.all.borrow_mut().remove(&number);
        self.with_crowd(|crowd| crowd.remove(number));
        self.left.notify_all();
        // Behind the borrow: it may be the last that holds the session.
        drop(gone);
    }

    /// Forgets all sessions.
    pub(crate) fn clear(&self) {
        let all = self.all.take();
        drop(all);
    }

    /// Connections that were closed as they came, or found no place at their volume (CROWD-4).
    pub(crate) fn refused(&self) -> u64 {
        self.refused.get()
    }

    fn count_refused(&self) {
        self.refused.set(self.refused.get() + 1);
    }

    /// Those of them of which this has not told yet.
    pub(crate) fn take_refused(&self) -> u64 {
        self.refused.get() - self.refused_told.replace(self.refused.get())
    }

    /// Figures of each front end that had a connection.
    pub(crate) fn front_ends(&self) -> Vec<FrontendStats> {
        self.front_ends.borrow().iter().map(|counts| counts.stats()).collect()
    }

    fn counts_of(&self, protocol: &'static str) -> Rc<FrontendCounts> {
        let mut all = self.front_ends.borrow_mut();
        if let Some(counts) = all.iter().find(|counts| counts.stats().protocol == protocol) {
            return counts.clone();
        }
        let counts = Rc::new(FrontendCounts::new(protocol));
        all.push(counts.clone());
        counts
    }

    fn cut(&self, number: u64, reason: &str) {
        let session = self.all.borrow().get(&number).cloned();
        if let Some(session) = session {
            session.cut(reason);
        }
    }
}

impl<W: World, D: Device> Core<W, D> {
    /// Takes in a connection if there is room, perhaps since another was ended for it.
    pub(crate) async fn add_connection(&self, frontend: &dyn Frontend<W, D>, stream: W::Stream) {
        let (sessions, source) = (self.sessions(), source(stream.peer().ip()));
        self.wait_for_place().await;
        if self.is_draining() {
            return stream.shutdown();
        }
        if !self.has_room_for(source) {
            sessions.count_refused();
            stream.shutdown();
            return;
        }
        let number = sessions.connected.get() + 1;
        sessions.connected.set(number);
        let id = ConnectionId { core: self.options().core, number };
        sessions.with_crowd(|crowd| crowd.add(number, source, self.running_time()));
        let counts = sessions.counts_of(frontend.protocol());
        let link = Link::new(id, source, self.window(), sessions.clone(), counts);
        let session = frontend.accept(self, link, stream);
        sessions.all.borrow_mut().insert(number, session);
    }

    /// Connections that were refused since the core began.
    #[must_use]
    pub fn connections_refused(&self) -> u64 {
        self.sessions().refused()
    }

    /// CROWD-4: returns whether a host may have another connection to the volume of `export`. If not, it is counted as refused.
    #[must_use]
    pub fn has_place_for(&self, export: &Export<W, D>) -> bool {
        let (uuid, max) = (export.uuid(), self.options().connections_max);
        let has_place = |owner: Option<&str>| {
            self.sessions().with_crowd(|crowd| crowd.has_place_for(uuid, owner, max))
        };
        let has_place = export.with_owner(has_place);
        if !has_place {
            self.sessions().count_refused();
        }
        has_place
    }

    /// Waits until fewer sessions are left than may be open and may be ending (CROWD-3). A session that was cut leaves within a
    /// turn of the core's loop.
    async fn wait_for_place(&self) {
        let (sessions, max) = (self.sessions(), self.options().connections_max + LEAVING_MAX);
        loop {
            let left = sessions.left.notified();
            let (count, lingers) =
                sessions.with_crowd(|crowd| (crowd.len(), crowd.who_lingers_longest()));
            if count < max {
                return;
            }
            if let Some(number) = lingers {
                sessions.cut(number, "others wanted to connect");
            }
            left.await;
        }
    }

    /// Returns whether a connection from `newcomer` finds room. Ends another connection for it if that is fair.
    fn has_room_for(&self, newcomer: IpAddr) -> bool {
        let (sessions, now) = (self.sessions(), self.running_time());
        if sessions.with_crowd(|crowd| crowd.open()) < self.options().connections_max {
            return true;
        }
        let goes = sessions.with_crowd(|crowd| crowd.who_makes_room(newcomer, now));
        if let Some(number) = goes {
            sessions.cut(number, "others wanted to connect, and its source had its share");
        }
        goes.is_some()
    }
}
