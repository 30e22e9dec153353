//! An open volume, on the background thread.
//!
//! ```text
//!  request ──► link() ──► Open ──────────► the client's volume ──► outcome
//!                │          │ ended                                 │ it gave up
//!                ▼          ▼                                       │
//!              Lost ──► Recovering: locate, connect, wait ◄─────────┘
//! ```
//! - CLIENT-SESSION-1: a request has one outcome; while the connection is made again it waits.
//! - CLIENT-SESSION-2: an open volume stays the same volume: once its id is known, the cluster is asked by that.
//!   And its blocks stay what they were when it was opened: requests were counted in them. Where they are others, it is not
//!   taken for the volume.
//! - CLIENT-SESSION-3: the cluster is asked only when the place that is known does not answer, and a cluster that does
//!   not answer does not keep a volume from being found at its old place (`seeking.rs`).
//! - CLIENT-SESSION-4: a request ends: it is sent on at most [`SENDS_MAX`] connections, of all clients together, and is not
//!   tried again once the recovery timeout is over since it first met with a lost one. What was sent on [`SUSPECT_AFTER`] goes
//!   on one at a time, so that the one on which the server dies does not take the others with it.
//! - CLIENT-SESSION-5: a connection that does not hold for [`client::STEADY`] does not end a recovery: neither does its time
//!   start again, nor do its delays. It makes no difference whether a client made it again or a session.
//! - CLIENT-SESSION-6: there is one client at a time: the next one is opened when the last has ended, and with it all that was
//!   under way there, and ends its controller before anything is sent. One that has lost its connection, and makes it
//!   again ([`client::Reconnect::Backoff`], which all have), has not ended: it ends its lost controllers itself. So nothing is
//!   sent again before the controller that it was last sent to has ended.
//! - CLIENT-SESSION-7: a session that is closed, or that has no owner any more and whose requests are done, has no connection,
//!   and makes none.

mod refusals;
mod seeking;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use client::{
    Backoff, Client, ConnectError, ControllerInstance, Disconnect, Options, SENDS_MAX,
    SUSPECT_AFTER,
};
use io_traits::World;
use local_sync::{Either, Notify, Semaphore, first_of};
use reactor::Handle;
use units::{Duration, Instant};
use uuid::Uuid;

use crate::directory::{Directory, Place};
use crate::{Error, Properties};
use refusals::Refusals;
use seeking::Question;

/// The means by which a volume is found.
#[derive(Clone)]
pub(crate) enum Locator {
    /// It is there and nowhere else.
    Fixed,
    /// The cluster knows it by this name or id.
    Cluster(Arc<Directory>, String),
}

struct Link<W: World> {
    client: Client<W>,
    volume: client::Volume<W>,
    epoch: u64,
}

impl<W: World> Clone for Link<W> {
    fn clone(&self) -> Self {
        Self { client: self.client.clone(), volume: self.volume.clone(), epoch: self.epoch }
    }
}

enum State<W: World> {
    Open(Link<W>),
    Recovering,
    /// Recovery failed, for this reason.
    Lost(Error),
    Closed,
}

/// In the world of the background thread; tests have others.
pub(crate) struct Session<W: World = Handle> {
    world: W,
    locator: Locator,
    place: Cell<Place>,
    options: Options,
    recovery_timeout: Duration,
    state: RefCell<State<W>>,
    changed: Notify,
    epochs: Cell<u64>,
    /// When the trouble began that is not known to be over (CLIENT-SESSION-5), and the attempts that it took so far. `None`:
    /// with the next recovery.
    trouble: Cell<Option<(Instant, u32)>>,
    /// The controller that requests were sent to which are sent again.
    predecessor: Cell<Option<ControllerInstance>>,
    /// The question to the cluster that is not answered yet.
    question: RefCell<Option<Question>>,
    /// The turn of requests that go on one at a time (CLIENT-SESSION-4).
    suspects: Semaphore,
    /// Requests under way.
    running: Cell<usize>,
    idle: Notify,
    /// As last seen.
    properties: Cell<Properties>,
}

impl<W: World> Session<W> {
    /// Opens the volume at `place`.
    pub(crate) async fn open(
        world: W,
        locator: Locator,
        place: Place,
        (options, recovery_timeout): (Options, Duration),
    ) -> Result<Rc<Self>, Error> {
        let link = connect(&world, &place, &options, 0).await?;
        // CLIENT-SESSION-2
        let locator = match (locator, place.nqn.uuid()) {
            (Locator::Cluster(directory, _), Some(id)) => {
                Locator::Cluster(directory, Uuid::from_bytes(id).to_string())
            }
            (locator, _) => locator,
        };
        let properties = Cell::new(properties(&link, &place));
        Ok(Rc::new(Self {
            trouble: Cell::new(Some((world.now(), 0))),
            predecessor: Cell::new(None),
            question: RefCell::new(None),
            suspects: Semaphore::new(1),
            world,
            locator,
            place: Cell::new(place),
            options,
            recovery_timeout,
            state: RefCell::new(State::Open(link)),
            changed: Notify::new(),
            epochs: Cell::new(0),
            running: Cell::new(0),
            idle: Notify::new(),
            properties,
        }))
    }

    pub(crate) fn world(&self) -> &W {
        &self.world
    }

    /// Returns the volume's properties: the present ones, or the last known ones.
    pub(crate) fn properties(&self) -> Properties {
        if let State::Open(link) = &*self.state.borrow() {
            let reconnects = self.epochs.get() + link.client.counters().reconnects;
            let now = Properties { reconnects, ..properties(link, &self.place.get()) };
            self.properties.set(now);
        }
        self.properties.get()
    }

    /// Carries out a request, across connections; `repeatable` says whether twice is as good as once.
    pub(crate) async fn run<T>(
        self: &Rc<Self>,
        repeatable: bool,
        request: impl AsyncFn(&client::Volume<W>) -> Result<T, client::Error>,
    ) -> Result<T, Error> {
        let (mut since, mut sent) = (None, 0);
        let mut alone = None;
        loop {
            // CLIENT-SESSION-4
            if sent >= SUSPECT_AFTER && alone.is_none() {
                alone = Some(self.suspects.acquire(1).await);
            }
            let link = self.link().await?;
            let error = match request(&link.volume.after_sends(sent)).await {
                Ok(value) => return Ok(value),
                Err(error) => error,
            };
            // CLIENT-SESSION-6
            let (has_ended, sends, last) = match error {
                // What waited when the client gave up was not sent by it.
                client::Error::Disconnected(Disconnect::GaveUp) => (true, sent, Disconnect::GaveUp),
                client::Error::Disconnected(reason) if !repeatable => {
                    return Err(Error::OutcomeUnknown(reason));
                }
                client::Error::Disconnected(reason) => (false, sent + 1, reason),
                // As often as it may be: by a client that goes on.
                client::Error::Unanswered { sends, last } => (sends < SENDS_MAX, sends, last),
                client::Error::Closed => (true, sent, Disconnect::Closed),
                error => return Err(Error::Request(error)),
            };
            if has_ended {
                self.lost(link.epoch);
            }
            sent = sends;
            if sent >= SENDS_MAX {
                return Err(Error::Request(client::Error::Unanswered { sends: sent, last }));
            }
            let now = self.world.now();
            let after = now.since(since.unwrap_or(now));
            if since.is_some() && after >= self.recovery_timeout {
                return Err(Error::Lost { after, last: Arc::new(Error::Request(error)) });
            }
            since = since.or(Some(now));
        }
    }

    /// Counts a request as under way until what this returns is dropped.
    pub(crate) fn begin(self: &Rc<Self>) -> Running<W> {
        self.running.set(self.running.get() + 1);
        Running(self.clone())
    }

    /// Says good-bye. What is outstanding fails; all of it has its outcome when this returns.
    pub(crate) async fn close(&self) {
        let state = self.state.replace(State::Closed);
        self.changed.notify_all();
        if let State::Open(link) = state {
            drop(link.volume);
            link.client.close().await;
        }
        while self.running.get() > 0 {
            self.idle.notified().await;
        }
    }

    /// The session has no owner any more: closes it when its requests are done.
    pub(crate) async fn finish(self: Rc<Self>) {
        while self.running.get() > 0 {
            self.idle.notified().await;
        }
        self.close().await;
    }

    /// The connection; waits while there is none.
    async fn link(self: &Rc<Self>) -> Result<Link<W>, Error> {
        let mut has_waited = false;
        loop {
            let changed = self.changed.notified();
            let is_lost = match &*self.state.borrow() {
                State::Open(link) => return Ok(link.clone()),
                State::Closed => return Err(Error::Closed),
                State::Lost(error) if has_waited => return Err(error.clone()),
                State::Lost(_) => true,
                State::Recovering => false,
            };
            if is_lost {
                self.begin_recovery();
            }
            has_waited = true;
            changed.await;
        }
    }

    /// The client of `epoch` has ended.
    fn lost(self: &Rc<Self>, epoch: u64) {
        let is_current = matches!(&*self.state.borrow(), State::Open(link) if link.epoch == epoch);
        if is_current {
            self.begin_recovery();
        }
    }

    fn begin_recovery(self: &Rc<Self>) {
        if let State::Open(link) = self.state.replace(State::Recovering) {
            self.predecessor.set(link.client.controller());
            // CLIENT-SESSION-5
            if let Some(end) = link.client.last_steady() {
                self.trouble.set(Some((end, 0)));
            }
        }
        self.world.spawn(self.clone().recover());
    }

    /// Seeks the volume until it is found or given up, or no request waits for it any more (CLIENT-SESSION-7).
    async fn recover(self: Rc<Self>) {
        if let Either::Second(outcome) = first_of(self.until_closed(), self.recovery()).await {
            self.state.replace(outcome);
            self.changed.notify_all();
        }
    }

    async fn until_closed(&self) {
        loop {
            let changed = self.changed.notified();
            if matches!(&*self.state.borrow(), State::Closed) {
                return;
            }
            changed.await;
        }
    }

    async fn recovery(&self) -> State<W> {
        let backoff = Backoff {
            delay_min: Duration::from_millis(20),
            delay_max: Duration::from_secs(1),
            ..Backoff::default()
        };
        // CLIENT-SESSION-5
        let (since, mut attempts) = self.trouble.take().unwrap_or((self.world.now(), 0));
        let mut refusals = Refusals::default();
        loop {
            if attempts > 0 {
                let pause = refusals.pause().unwrap_or_else(|| backoff.delay(attempts - 1));
                self.world.sleep_until(self.world.now() + pause).await;
            }
            attempts += 1;
            let error = match self.connect_again(refusals.last(self.world.now())).await {
                Ok(link) => {
                    self.trouble.set(Some((since, attempts)));
                    return State::Open(link);
                }
                Err(attempt) => refusals.take_in(attempt, self.world.now()),
            };
            let now = self.world.now();
            if matches!(error, Error::NotFound { .. }) || refusals.are_believed(now) {
                return State::Lost(error);
            }
            let after = now.since(since);
            if after >= self.recovery_timeout {
                return State::Lost(Error::Lost { after, last: Arc::new(error) });
            }
        }
    }
}

/// A request that is under way.
pub(crate) struct Running<W: World>(Rc<Session<W>>);

impl<W: World> Drop for Running<W> {
    fn drop(&mut self) {
        let left = self.0.running.get() - 1;
        self.0.running.set(left);
        if left == 0 {
            self.0.idle.notify_all();
        }
    }
}

async fn connect<W: World>(
    world: &W,
    place: &Place,
    options: &Options,
    epoch: u64,
) -> Result<Link<W>, Error> {
    let address = place.address;
    let connected = Client::connect(world.clone(), address, &place.nqn, options.clone()).await;
    let client = connected.map_err(|error| Error::Connect { address, error })?;
    let volume = client.volume().await;
    let volume =
        volume.map_err(|error| Error::Connect { address, error: ConnectError::Command(error) })?;
    Ok(Link { client, volume, epoch })
}

fn properties<W: World>(link: &Link<W>, place: &Place) -> Properties {
    let volume = &link.volume;
    let block_size = volume.block_size();
    let bytes = |blocks: u32| u64::from(blocks) * u64::from(block_size);
    Properties {
        size_bytes: volume.capacity() * u64::from(block_size),
        block_size,
        metadata_size: volume.metadata_size(),
        atomic_write_bytes: bytes(volume.atomic_write_blocks()),
        transfer_bytes_max: bytes(volume.max_transfer_blocks()),
        nqn: place.nqn,
        address: place.address,
        reconnects: link.epoch,
    }
}

#[cfg(test)]
mod tests;
