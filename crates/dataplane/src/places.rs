//! Connections as they come and go, and the places that they take (`crowd.rs`).

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::rc::Rc;

use io_traits::{Device, Stream, World};
use local_sync::Notify;
use strangers::source;

use crate::connection::Connection;
use crate::core::Core;
use crate::crowd::{Crowd, LEAVING_MAX};
use crate::export::Export;
use crate::life::ConnectionId;

/// The connections of a core.
pub(crate) struct Places<W: World, D: Device> {
    taken: RefCell<BTreeMap<u64, Rc<Connection<W, D>>>>,
    crowd: RefCell<Crowd>,
    /// A connection has gone.
    left: Notify,
    /// Connections so far.
    connected: Cell<u64>,
    /// Connections closed as they came, and how many of them the log knows of.
    refused: Cell<u64>,
    refused_told: Cell<u64>,
}

impl<W: World, D: Device> Default for Places<W, D> {
    fn default() -> Self {
        Self {
            taken: RefCell::default(),
            crowd: RefCell::default(),
            left: Notify::new(),
            connected: Cell::new(0),
            refused: Cell::new(0),
            refused_told: Cell::new(0),
        }
    }
}

impl<W: World, D: Device> Places<W, D> {
    /// Looks at, or changes, who has them.
    pub(crate) fn with_crowd<T>(&self, act: impl FnOnce(&mut Crowd) -> T) -> T {
        act(&mut self.crowd.borrow_mut())
    }

    /// Connections, those that are on their way out included.
    pub(crate) fn count(&self) -> usize {
        self.taken.borrow().len()
    }

    /// Connections that were closed as they came.
    pub(crate) fn refused(&self) -> u64 {
        self.refused.get()
    }

    /// Those of them of which this has not told yet.
    pub(crate) fn take_refused(&self) -> u64 {
        self.refused.get() - self.refused_told.replace(self.refused.get())
    }

    fn cut(&self, number: u64, reason: &str) {
        let connection = self.taken.borrow().get(&number).cloned();
        if let Some(connection) = connection {
            connection.note_end(reason);
            connection.cut();
        }
    }
}

impl<W: World, D: Device> Core<W, D> {
    /// Takes in a connection if there is room, perhaps since another was ended for it.
    pub(crate) async fn add_connection(&self, stream: W::Stream) {
        let (places, source) = (self.places(), source(stream.peer().ip()));
        self.wait_for_place().await;
        if self.is_draining() {
            return stream.shutdown();
        }
        if !self.has_room_for(source) {
            places.refused.set(places.refused.get() + 1);
            stream.shutdown();
            return;
        }
        let number = places.connected.get() + 1;
        places.connected.set(number);
        let id = ConnectionId { core: self.options().core, number };
        let connection = Connection::new(self, stream, id);
        places.taken.borrow_mut().insert(number, connection.clone());
        places.with_crowd(|crowd| crowd.add(number, source, self.world().now()));
        connection.start();
    }

    /// W4: whether a host may have another connection to the volume of `export`.
    pub(crate) fn has_place_for(&self, export: &Export<W, D>) -> bool {
        let (uuid, max) = (export.uuid(), self.options().connections_max);
        let has_place = |owner: Option<&str>| {
            self.places().with_crowd(|crowd| crowd.has_place_for(uuid, owner, max))
        };
        export.with_owner(has_place)
    }

    pub(crate) fn forget_connection(&self, connection: &Connection<W, D>) {
        let (places, number) = (self.places(), connection.life.id.number);
        places.taken.borrow_mut().remove(&number);
        places.with_crowd(|crowd| crowd.remove(number));
        places.left.notify_all();
    }

    /// All connections, the oldest first.
    pub(crate) fn all_connections(&self) -> Vec<Rc<Connection<W, D>>> {
        self.places().taken.borrow().values().cloned().collect()
    }

    /// Waits until the places beyond those that there may be are not all taken. They soon are not: whoever was cut is
    /// gone in a turn of the core's loop (W3).
    async fn wait_for_place(&self) {
        let (places, max) = (self.places(), self.options().connections_max + LEAVING_MAX);
        loop {
            let left = places.left.notified();
            let (count, lingers) =
                places.with_crowd(|crowd| (crowd.len(), crowd.who_lingers_longest()));
            if count < max {
                return;
            }
            if let Some(number) = lingers {
                places.cut(number, "others wanted to connect");
            }
            left.await;
        }
    }

    /// Whether there is room for a connection of the source `newcomer`, perhaps since another was ended for it.
    fn has_room_for(&self, newcomer: IpAddr) -> bool {
        let (places, now) = (self.places(), self.world().now());
        if places.with_crowd(|crowd| crowd.open()) < self.options().connections_max {
            return true;
        }
        let goes = places.with_crowd(|crowd| crowd.who_makes_room(newcomer, now));
        if let Some(number) = goes {
            places.cut(number, "others wanted to connect, and its source had its share");
        }
        goes.is_some()
    }
}
