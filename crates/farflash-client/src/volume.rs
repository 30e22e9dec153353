//! An open volume.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Waker;

use client::{Options, Swap};
use io_traits::Spawn;
use nvme_wire::Nqn;
use nvme_wire::log::FailureDomain;
use units::Duration;
use uuid::Uuid;

use crate::asking::begin;
use crate::attending::attend;
use crate::blocks::Format;
use crate::directory::{Directory, Place};
use crate::execution::{check_end, execute};
use crate::pending::Completion;
use crate::pieces::{Piece, pieces};
use crate::runtime::{Core, Runtime, check_may_wait};
use crate::session::{Locator, Session};
use crate::{Data, Error, OpenOptions, Pending, ReadData, Reply, Request};

/// Bytes of one request of those in which a long read or write is done.
const STRIDE: usize = 4 << 20;
/// Such requests that are under way at a time.
const STRIDES_AT_ONCE: usize = 2;

/// The properties of a volume.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Properties {
    /// Its size.
    pub size_bytes: u64,
    /// The unit of offsets and lengths.
    pub block_size: u32,
    /// Bytes of metadata that each block has beside its data, for life; mostly 0. See [`Volume::read_ex`].
    pub metadata_size: u32,
    /// The longest write that is wholly there or wholly absent after a power failure, and the longest
    /// compare-and-swap; metadata comes on top.
    pub atomic_write_bytes: u64,
    /// The longest request that goes to the target in one piece; metadata comes on top.
    pub transfer_bytes_max: u64,
    /// The NVMe qualified name of its subsystem.
    pub nqn: Nqn,
    /// Address at which it is served.
    pub address: SocketAddr,
    /// Times that its connection was made again.
    pub reconnects: u64,
}

impl Properties {
    /// The volume's id, for life; none if the target is not a farflash server.
    #[must_use]
    pub fn uuid(&self) -> Option<Uuid> {
        self.nqn.uuid().map(Uuid::from_bytes)
    }
}

/// The location, or the name, of a volume to be opened.
pub(crate) enum Sought {
    /// There, and nowhere else.
    At(Box<Place>),
    /// The location that the cluster reports for the volume of this name or id.
    Named(Arc<Directory>, String),
}

async fn open_session(
    core: &Core,
    sought: Sought,
    options: (Options, Duration),
    is_waited_for: bool,
) -> Result<Rc<Session>, Error> {
    let open = |locator, place, options| Session::open(core.world.clone(), locator, place, options);
    let (directory, name) = match sought {
        Sought::At(place) => return open(Locator::Fixed, *place, options).await,
        Sought::Named(directory, name) => (directory, name),
    };
    let locator = Locator::Cluster(directory.clone(), name.clone());
    if let Some(place) = directory.remembered(&name) {
        let opened = open(locator.clone(), place, options.clone()).await;
        // It may be elsewhere by now, or another volume have its name.
        if opened.is_ok() {
            return opened;
        }
    }
    let locate = move || directory.locate(&name, None);
    let found = match is_waited_for {
        true => core.aside_at_once(locate).await?,
        false => core.aside(locate).await?,
    };
    open(locator, found.place, options).await
}

/// The session on the background thread; ends with the last handle, when its requests are done.
struct Shared {
    runtime: Runtime,
    session: u64,
    format: Format,
    opened: Properties,
}

impl Drop for Shared {
    fn drop(&mut self) {
        let number = self.session;
        // A thread that has ended has no session.
        let _ = self.runtime.run(move |core| {
            if let Some(session) = core.sessions.borrow_mut().remove(&number) {
                core.world.spawn(session.finish());
            }
        });
    }
}

/// An open volume. Cheap to clone, usable on any thread; closed when the last clone is gone and its
/// requests are done.
///
/// Offsets and lengths are in bytes, and multiples of [`Volume::block_size`]. Order between requests
/// that overlap and are under way at the same time is not defined.
///
/// Where blocks have metadata ([`Volume::metadata_size`]), nothing is read, written or compared without it:
/// [`Volume::read_ex`] and its like do so there, and what takes or gives data alone is refused
/// ([`Error::MetadataLeftOut`]). So no program overwrites metadata of which it does not know.
#[derive(Clone)]
pub struct Volume {
    shared: Arc<Shared>,
}

impl fmt::Debug for Volume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Volume({})", self.shared.opened.nqn)
    }
}

impl Volume {
    /// Opens a volume; waits.
    pub(crate) fn open(sought: Sought, options: &OpenOptions) -> Result<Self, Error> {
        check_may_wait()?;
        Self::begin_open(sought, options, true).wait()
    }

    /// Begins to open a volume.
    pub(crate) fn start_open(sought: Sought, options: &OpenOptions) -> Pending<Self> {
        Self::begin_open(sought, options, false)
    }

    fn begin_open(sought: Sought, options: &OpenOptions, is_waited_for: bool) -> Pending<Self> {
        let options = match options.client_options() {
            Ok(client_options) => (client_options, options.recovery_timeout),
            Err(error) => return Pending::failed(error),
        };
        begin(move |runtime, core| async move {
            let session = open_session(&core, sought, options, is_waited_for).await?;
            let (number, opened) = (runtime.next_session(), session.properties());
            core.sessions.borrow_mut().insert(number, session);
            let Properties { block_size, metadata_size, .. } = opened;
            let format = Format { block_size, metadata_size };
            Ok(Self { shared: Arc::new(Shared { runtime, session: number, format, opened }) })
        })
    }

    /// Starts `request` and returns at once.
    pub fn start(&self, request: Request) -> Pending<Reply> {
        let (pending, fill) = Pending::new();
        self.submit(request, fill);
        pending
    }

    /// Starts `request` and returns at once. `done` is called exactly once with the outcome: on the
    /// background thread, or, if the request cannot be started, on this one. It must be quick, and
    /// cannot wait for requests; it can submit more.
    pub fn submit(
        &self,
        request: Request,
        done: impl FnOnce(Result<Reply, Error>) + Send + 'static,
    ) {
        let completion = Completion::new(done);
        let (shared, format) = (&self.shared, self.shared.format);
        let fit = shared.runtime.check_process().and_then(|()| request.check(format));
        let claim = match fit.and_then(|()| shared.runtime.claim()) {
            Ok(claim) => claim,
            Err(error) => return completion.complete(Err(error)),
        };
        let completion = completion.with_claim(claim);
        self.with_session(completion, move |session| async move {
            execute(request, &session, format).await
        });
    }

    /// Carries out `request`, and waits. Nothing of it is carried out within a callback, which cannot wait.
    pub(crate) fn carry_out(&self, request: Request) -> Result<Reply, Error> {
        check_may_wait()?;
        self.start(request).wait()
    }

    /// Has the background thread run what `make` makes of the session.
    fn with_session<T, F>(
        &self,
        completion: Completion<T>,
        make: impl FnOnce(Rc<Session>) -> F + Send + 'static,
    ) where
        T: Send + 'static,
        F: Future<Output = Result<T, Error>> + 'static,
    {
        let number = self.shared.session;
        // If it cannot be run, the completion is dropped and says so.
        let _ = self.shared.runtime.run(move |core| {
            let session = core.sessions.borrow().get(&number).cloned();
            let Some(session) = session else { return completion.complete(Err(Error::Closed)) };
            let running = session.begin();
            let task = make(session);
            core.world.spawn_now(async move {
                completion.complete(task.await);
                drop(running);
            });
        });
    }

    /// Fills `to` with what is at `offset`, by one copy more than [`Request::ReadTo`] takes (see the crate's
    /// documentation).
    pub fn read_at(&self, to: &mut [u8], offset: u64) -> Result<(), Error> {
        let len = to.len();
        self.read_with(offset, len, |at, bytes| {
            to[at..at + bytes.len()].copy_from_slice(bytes);
            ControlFlow::Continue(())
        })
    }

    /// Reads `len` bytes at `offset`, and hands them to `each` in pieces as they come, in order, with
    /// their place from the start. `each` can end it early.
    pub fn read_with(
        &self,
        offset: u64,
        len: usize,
        mut each: impl FnMut(usize, &[u8]) -> ControlFlow<()>,
    ) -> Result<(), Error> {
        self.shared.format.check_has_none()?;
        let read = |piece: Piece| Request::Read { offset: piece.offset, len: piece.len };
        self.in_strides(offset, len, read, |mut at, reply| {
            for bytes in data_of(reply).pieces() {
                each(at, bytes)?;
                at += bytes.len();
            }
            ControlFlow::Continue(())
        })
    }

    /// Writes `data` to `offset`. It is durable when this returns, unless the target has a volatile
    /// cache. Atomic up to [`Properties::atomic_write_bytes`]; what is longer than
    /// [`Properties::transfer_bytes_max`] is several writes. Sends a copy of `data`, which [`Data::lent`] does not
    /// need (see the crate's documentation).
    pub fn write_at(&self, data: &[u8], offset: u64) -> Result<(), Error> {
        self.shared.format.check_has_none()?;
        let write = |piece: Piece| {
            let data = data[piece.at..piece.at + piece.len].into();
            Request::Write { offset: piece.offset, data }
        };
        self.in_strides(offset, data.len(), write, |_, _| ControlFlow::Continue(()))
    }

    /// Writes `data` to `offset`, all or nothing: after a power failure it is wholly there or wholly absent. What
    /// is longer than [`Properties::atomic_write_bytes`] is refused ([`Error::TooLarge`]), and nothing of it
    /// written. Else as [`Volume::write_at`].
    pub fn write_tx(&self, data: &[u8], offset: u64) -> Result<(), Error> {
        self.carry_out(Request::WriteTx { offset, data: data.into() }).map(drop)
    }

    /// Writes `len` bytes to `offset`, which `fill` puts into the pieces that it is handed, with their
    /// place from the start.
    pub fn write_with(
        &self,
        offset: u64,
        len: usize,
        mut fill: impl FnMut(usize, &mut [u8]),
    ) -> Result<(), Error> {
        self.shared.format.check_has_none()?;
        let write = |piece: Piece| {
            let mut data = Data::zeroed(piece.len);
            fill(piece.at, data.as_mut_bytes());
            Request::Write { offset: piece.offset, data }
        };
        self.in_strides(offset, len, write, |_, _| ControlFlow::Continue(()))
    }

    /// Does in strides what is long: `make` makes a request of each, and `each` gets the replies in order,
    /// with their places from the start. It can end it early. When this fails nothing of it is under way any
    /// more: what is written next is not written over.
    pub(crate) fn in_strides(
        &self,
        offset: u64,
        len: usize,
        mut make: impl FnMut(Piece) -> Request,
        mut each: impl FnMut(usize, Reply) -> ControlFlow<()>,
    ) -> Result<(), Error> {
        check_may_wait()?;
        self.shared.format.check_range(offset, len as u64)?;
        // Each stride is checked when it is carried out. By the last one the first are done.
        if len > STRIDE {
            self.start_check_range(offset, len as u64).wait()?;
        }
        let mut strides = pieces(offset, len, STRIDE);
        let mut started = VecDeque::new();
        loop {
            while started.len() < STRIDES_AT_ONCE {
                let Some(piece) = strides.next() else { break };
                started.push_back((piece.at, self.start(make(piece))));
            }
            let Some((at, pending)) = started.pop_front() else { return Ok(()) };
            let reply = pending.wait().inspect_err(|_| {
                started.drain(..).for_each(|(_, pending)| drop(pending.wait()));
            })?;
            if each(at, reply).is_break() {
                return Ok(());
            }
        }
    }

    /// Makes a range read as zeroes.
    pub fn write_zeroes(&self, offset: u64, len: u64) -> Result<(), Error> {
        self.carry_out(Request::WriteZeroes { offset, len }).map(drop)
    }

    /// Gives a range's space back. It reads as zeroes then.
    pub fn deallocate(&self, offset: u64, len: u64) -> Result<(), Error> {
        self.carry_out(Request::Deallocate { offset, len }).map(drop)
    }

    /// Makes all that was written durable. A farflash server does so before it answers a write, unless
    /// it was told otherwise.
    pub fn flush(&self) -> Result<(), Error> {
        self.carry_out(Request::Flush).map(drop)
    }

    /// Returns true if `data` is what is at `offset`.
    pub fn compare(&self, data: &[u8], offset: u64) -> Result<bool, Error> {
        match self.carry_out(Request::Compare { offset, data: data.into() })? {
            Reply::Equal(equal) => Ok(equal),
            other => unreachable!("a compare is answered by {other:?}"),
        }
    }

    /// Replaces what is at `offset` by `data` if it is `expected`: nothing comes between, and after a
    /// power failure the one or the other is there. Not repeated if the connection is lost:
    /// [`Error::OutcomeUnknown`].
    pub fn compare_and_swap(
        &self,
        offset: u64,
        expected: &[u8],
        data: &[u8],
    ) -> Result<Swap, Error> {
        let (expected, data) = (expected.into(), data.into());
        match self.carry_out(Request::CompareAndSwap { offset, expected, data })? {
            Reply::Swap(swap) => Ok(swap),
            other => unreachable!("a swap is answered by {other:?}"),
        }
    }

    /// Checks that `len` bytes at `offset` are whole blocks within the volume: if not at its last known size, at
    /// the size that the target reports now. For callers that split one request of theirs into several, and need it
    /// refused as one.
    pub fn start_check_range(&self, offset: u64, len: u64) -> Pending<()> {
        let (pending, fill) = Pending::new();
        let completion = Completion::new(fill);
        let fit = self.shared.runtime.check_process();
        if let Err(error) = fit.and_then(|()| self.shared.format.check_range(offset, len)) {
            completion.complete(Err(error));
            return pending;
        }
        self.with_session(completion, move |session| async move {
            check_end(&session, offset, len).await
        });
        pending
    }

    /// Returns the volume's properties; while there is no connection, the last known ones.
    pub fn properties(&self) -> Result<Properties, Error> {
        let (pending, fill) = Pending::new();
        let completion = Completion::new(fill);
        self.shared.runtime.check_process()?;
        self.with_session(completion, |session| async move { Ok(session.properties()) });
        pending.wait()
    }

    /// Returns its location, and the domain it may fail with: host, rack, core and device, as the target reports it
    /// now; `None` if the target does not report it.
    pub fn failure_domain(&self) -> Result<Option<FailureDomain>, Error> {
        self.start_failure_domain().wait()
    }

    /// Like [`Volume::failure_domain`], without waiting.
    pub fn start_failure_domain(&self) -> Pending<Option<FailureDomain>> {
        let (pending, fill) = Pending::new();
        self.submit_failure_domain(fill);
        pending
    }

    /// The same; `done` is called with the outcome, as by [`Volume::submit`].
    pub fn submit_failure_domain(
        &self,
        done: impl FnOnce(Result<Option<FailureDomain>, Error>) + Send + 'static,
    ) {
        let completion = Completion::new(done);
        let runtime = &self.shared.runtime;
        match runtime.check_process().and_then(|()| runtime.claim()) {
            Ok(claim) => self.with_session(completion.with_claim(claim), |session| async move {
                session.run(true, async |volume| volume.failure_domain().await).await
            }),
            Err(error) => completion.complete(Err(error)),
        }
    }

    /// Its size now.
    pub fn size(&self) -> Result<u64, Error> {
        Ok(self.properties()?.size_bytes)
    }

    /// The unit of offsets and lengths.
    #[must_use]
    pub fn block_size(&self) -> u32 {
        self.shared.format.block_size
    }

    /// Returns the properties that it had when it was opened.
    #[must_use]
    pub fn opened(&self) -> &Properties {
        &self.shared.opened
    }

    /// Closes it for all its handles. Requests under way fail with [`Error::Closed`], before this returns;
    /// so do later ones.
    /// Within a callback it is refused, and nothing closed.
    pub fn close(&self) -> Result<(), Error> {
        check_may_wait()?;
        self.start_close().wait()
    }

    /// Like [`Volume::close`], without waiting.
    pub fn start_close(&self) -> Pending<()> {
        let (pending, fill) = Pending::new();
        let completion = Completion::new(fill);
        let number = self.shared.session;
        if let Err(error) = self.shared.runtime.check_process() {
            completion.complete(Err(error));
            return pending;
        }
        let _ = self.shared.runtime.run(move |core| {
            let session = core.sessions.borrow_mut().remove(&number);
            core.world.spawn(async move {
                if let Some(session) = session {
                    session.close().await;
                }
                completion.complete(Ok(()));
            });
        });
        pending
    }

    /// Has the thread that carries out requests call `turn`: now, whenever `event` is signalled (an `eventfd` that
    /// waits when it is read, which no other thread does), and when the waker given to it is woken, until it returns [`ControlFlow::Break`]. For programs that
    /// get their requests from elsewhere: what they submit within `turn` goes out without a change of threads. It must not
    /// wait, as all requests would wait with it.
    ///
    /// # Errors
    /// The process was forked, or the thread has ended.
    pub fn attend(
        &self,
        event: Arc<OwnedFd>,
        turn: impl FnMut(&Waker) -> ControlFlow<()> + Send + 'static,
    ) -> Result<(), Error> {
        attend(&self.shared.runtime, event, turn)
    }

    pub(crate) fn format(&self) -> Format {
        self.shared.format
    }
}

/// The data in the answer to a read.
pub(crate) fn data_of(reply: Reply) -> ReadData {
    match reply {
        Reply::Data(data) => data,
        other => unreachable!("a read is answered by {other:?}"),
    }
}
