//! One connection: the driver of `iscsi_target::Connection`.
//!
//! Receiving and sending are two tasks. The receiving one feeds bytes to the state machine and acts on its steps; requests
//! run when their turn comes, and answers go into the outbox. Both tasks end together.
//!
//! - ISCSI-RECEIVE-1: a connection is not read from while it has too much to be sent, or too much debt or no room for more and no
//!   data on its way: that would never have all its commands' data, and give nothing back.
//! - ISCSI-RECEIVE-2: the clock by which the initiator owes something stands still meanwhile.
//! - ISCSI-RECEIVE-3: the answer to a NOP-In is waited for as long as the initiator takes what was sent, since it may have more
//!   to read before it.

use std::cell::{Cell, OnceCell, Ref, RefCell};
use std::cmp::Ordering;
use std::collections::VecDeque;
use std::pin::pin;
use std::rc::{Rc, Weak};

use dataplane::{
    Export, ExportId, Filling, Link, Outbox, Outcome, Pace, SPARE_THRESHOLD_PERCENT, Session,
    Share, Tag, VolumeEvent,
};
use io_traits::{BufferSlice, Device, Stream, World};
use iscsi_target::{CloseReason, Connection as Target, Step};
use iscsi_wire::Sense;
use iscsi_wire::pdu::{async_event, login_status};
use local_sync::{Either, Notify, first_of};
use reservation::{Host, Notice};
use strangers::source;
use units::{Duration, Instant};
use uuid::Uuid;

use crate::frontend::IscsiCore;
use crate::incoming::Slots;
use crate::tasks::TaskRequests;

/// Headers and answers that wait to be sent before reading stops.
const UNSENT_BYTES_MAX: usize = 32 << 10;
/// Debt (see `dataplane/src/memory.rs`) beyond which reading stops.
const DEBT_BYTES_MAX: u64 = 128 << 10;
/// Time that the initiator has to read the last words before the connection is torn down.
const LINGER: Duration = Duration::from_secs(1);
/// Unit attentions that wait to be told; further ones take the place of the oldest.
const ATTENTIONS_MAX: usize = 8;

/// The reason for which a connection ends.
pub(crate) type EndReason = std::borrow::Cow<'static, str>;

/// The outbox, as the state machine fills it.
pub(crate) struct Out<'a, 'b>(&'a mut Filling<'b>);

impl iscsi_target::Outbox for Out<'_, '_> {
    fn bytes(&mut self, bytes: &[u8]) {
        self.0.bytes(bytes);
    }
}

impl Out<'_, '_> {
    pub(crate) fn data(&mut self, data: BufferSlice) {
        self.0.data(data);
    }

    pub(crate) fn hold(&mut self, share: Share) {
        self.0.hold(share);
    }
}

/// ISCSI-RECEIVE-2: a clock that stands still while nothing is read.
#[derive(Default)]
struct ReadingClock {
    stopped_at: Cell<Option<Instant>>,
    stopped_for: Cell<Duration>,
}

impl ReadingClock {
    fn time(&self, now: Instant) -> Instant {
        Instant(0) + self.stopped_at.get().unwrap_or(now).since(Instant(0) + self.stopped_for.get())
    }

    fn stop(&self, now: Instant) {
        self.stopped_at.set(Some(now));
    }

    fn go_on(&self, now: Instant) {
        if let Some(stopped_at) = self.stopped_at.take() {
            self.stopped_for.set(self.stopped_for.get() + now.since(stopped_at));
        }
    }
}

pub(crate) struct Connection<W: World, D: Device> {
    pub(crate) core: IscsiCore<W, D>,
    pub(crate) link: Link,
    stream: W::Stream,
    interface: OnceCell<Option<String>>,
    target: RefCell<Target>,
    outbox: Outbox,
    /// That of the data that the initiator owes, and that of the answers that it has to read.
    sending_pace: Pace,
    reading_pace: Pace,
    /// Bytes that the initiator had taken at the last look (ISCSI-RECEIVE-3).
    taken_bytes: Cell<Option<u64>>,
    pub(crate) slots: Slots,
    pub(crate) task_requests: TaskRequests,
    /// The volume that the initiator asks for, until it has logged in.
    pub(crate) candidate: RefCell<Option<Rc<Export<W, D>>>>,
    /// The volume of the target that the initiator named, whether there is one or not; nil for discovery.
    pub(crate) asked: Cell<Uuid>,
    /// The volume that it has open.
    pub(crate) export: RefCell<Option<Rc<Export<W, D>>>>,
    /// Its initiator, as reservations know it.
    pub(crate) host: OnceCell<Rc<Host>>,
    /// Unit attentions that are not told yet.
    attentions: RefCell<VecDeque<Sense>>,
    /// The pool of its volume has less left than the threshold, and the initiator was told so.
    is_short_of_space: Cell<bool>,
    end_reason: RefCell<Option<EndReason>>,
    /// That reason is no fault, or was told: the initiator has logged out, or its login was refused.
    is_end_usual: Cell<bool>,
    /// A reason not to read may be gone.
    resume: Notify,
    reading: ReadingClock,
    tasks_left: Cell<u8>,
    this: Weak<Self>,
}

impl<W: World, D: Device> Connection<W, D> {
    pub(crate) fn new(core: &IscsiCore<W, D>, link: Link, stream: W::Stream) -> Rc<Self> {
        let resume = Notify::new();
        let reading = ReadingClock::default();
        let now = reading.time(core.running_time());
        Rc::new_cyclic(|this| Self {
            this: this.clone(),
            link,
            interface: OnceCell::new(),
            target: RefCell::new(Target::new(now, &core.options().limits)),
            outbox: Outbox::new(stream.clone(), resume.clone()),
            sending_pace: Pace::default(),
            reading_pace: Pace::default(),
            taken_bytes: Cell::default(),
            slots: Slots::default(),
            task_requests: TaskRequests::default(),
            candidate: RefCell::default(),
            asked: Cell::default(),
            export: RefCell::default(),
            host: OnceCell::new(),
            attentions: RefCell::default(),
            is_short_of_space: Cell::new(false),
            end_reason: RefCell::default(),
            is_end_usual: Cell::default(),
            stream,
            resume,
            reading,
            tasks_left: Cell::new(2),
            core: core.clone(),
        })
    }

    /// The interface by which it came, if the system tells.
    pub(crate) fn interface(&self) -> Option<&str> {
        self.interface.get_or_init(|| self.stream.interface()).as_deref()
    }

    pub(crate) fn peer(&self) -> std::net::SocketAddr {
        self.stream.peer()
    }

    /// The address at which the initiator came.
    pub(crate) fn local(&self) -> std::net::SocketAddr {
        self.stream.local()
    }

    /// Itself, as the core takes it.
    pub(crate) fn this(&self) -> Option<Rc<Self>> {
        self.this.upgrade()
    }

    /// The state machine, to be looked at.
    pub(crate) fn target(&self) -> Ref<'_, Target> {
        self.target.borrow()
    }

    pub(crate) fn is_open(&self) -> bool {
        self.link.is_open()
    }

    /// Runs `step` on the state machine and queues what it has to send.
    pub(crate) fn put<T>(&self, step: impl FnOnce(&mut Target, &mut Out<'_, '_>) -> T) -> T {
        self.outbox.put(|out| step(&mut self.target.borrow_mut(), &mut Out(out)))
    }

    /// As [`Self::put`], if anybody is there to read it.
    pub(crate) fn reply(&self, encode: impl FnOnce(&mut Target, &mut Out<'_, '_>)) {
        if self.is_open() {
            self.put(encode);
        }
    }

    /// Notes a condition that the next command is answered with (SAM-5, clause 5.14).
    pub(crate) fn raise(&self, sense: Sense) {
        let mut attentions = self.attentions.borrow_mut();
        if !attentions.contains(&sense) {
            attentions.truncate(ATTENTIONS_MAX - 1);
            attentions.push_back(sense);
        }
    }

    /// Notes that so much of the pool of its volume is left. The initiator is told once that it is less than the threshold, and
    /// again after it was more.
    pub(crate) fn on_spare(&self, percent: u8) {
        match percent.cmp(&SPARE_THRESHOLD_PERCENT) {
            Ordering::Less if !self.is_short_of_space.replace(true) => {
                self.raise(Sense::THIN_THRESHOLD);
            }
            Ordering::Greater => self.is_short_of_space.set(false),
            Ordering::Less | Ordering::Equal => {}
        }
    }

    /// The condition that is told next.
    pub(crate) fn take_attention(&self) -> Option<Sense> {
        self.attentions.borrow_mut().pop_front()
    }

    /// Notes the reason for which the connection ends, if there is none yet.
    pub(crate) fn note_end<R: Into<EndReason>>(&self, reason: R) {
        self.end_reason.borrow_mut().get_or_insert(reason.into());
    }

    /// Starts the two tasks.
    pub(crate) fn start(self: &Rc<Self>) {
        let connection = self.clone();
        self.core.world().spawn(async move {
            match connection.outbox.run().await {
                Ok(()) => connection.stream.shutdown_write(),
                Err(error) => {
                    connection.note_end(error.to_string());
                    connection.cut();
                }
            }
            connection.task_ended();
        });
        let connection = self.clone();
        self.core.world().spawn(async move {
            connection.receive().await;
            connection.close();
            connection.linger().await;
            connection.cut();
            connection.task_ended();
        });
    }

    /// Ends the connection once what is in the outbox was sent.
    pub(crate) fn close(&self) {
        if !self.is_open() {
            return;
        }
        self.unlock();
        self.link.close();
        self.tasks_are_over();
        self.slots.clear();
        self.outbox.close();
        self.resume.notify_all();
    }

    /// Ends the connection now.
    pub(crate) fn cut(&self) {
        self.close();
        if self.link.cut() {
            self.stream.shutdown();
        }
    }

    fn task_ended(&self) {
        self.tasks_left.set(self.tasks_left.get() - 1);
        if self.tasks_left.get() > 0 {
            return;
        }
        self.log_end();
        self.link.leave();
        self.candidate.take();
        self.export.take();
    }

    fn log_end(&self) {
        let (connection, peer) = (self.link.id(), self.peer());
        let reason = self.end_reason.take();
        let is_usual = reason.is_none() || self.is_end_usual.get();
        let reason = reason.unwrap_or(EndReason::Borrowed("the initiator closed it"));
        let is_news = !is_usual && self.is_news(&reason);
        let target = self.target();
        let (session, export) = (target.session(), self.export.borrow());
        let initiator = session.map(|session| session.initiator.to_string());
        let (initiator, volume) =
            (initiator.as_deref(), export.as_ref().map(|export| export.uuid().to_string()));
        let volume = volume.as_deref();
        let is_told = match volume {
            Some(_) => is_usual || is_news,
            None => is_news && self.may_be_said(),
        };
        if is_told {
            tracing::info!(%connection, %peer, initiator, volume, %reason, "iSCSI connection ended");
        } else {
            tracing::debug!(%connection, %peer, initiator, volume, %reason, "iSCSI connection ended");
        }
    }

    /// Returns true if a line about an initiator that has not logged in may be written.
    fn may_be_said(&self) -> bool {
        let now = self.core.world().now();
        self.core.state.quiet.borrow_mut().allows(self.peer().ip(), now)
    }

    /// Returns whether it is the first of late that a connection from its address ends for `reason`.
    fn is_news(&self, reason: &EndReason) -> bool {
        let key = (source(self.peer().ip()), reason.clone());
        self.core.state.ends.borrow_mut().allows(key, self.core.world().now())
    }

    /// Receives until the connection is over.
    async fn receive(self: &Rc<Self>) {
        let mut closed = pin!(self.link.closed().notified());
        while self.is_open() {
            if self.must_pause() {
                self.pause().await;
                // What an initiator sent before it ended the connection is not carried out late.
                if self.stream.end_by_peer().is_some() {
                    return;
                }
                continue;
            }
            let chunk = match first_of(self.stream.recv(), closed.as_mut()).await.first() {
                Some(Ok(chunk)) => chunk,
                Some(Err(end)) => return self.note_peer_end(end),
                None => return,
            };
            if let Some(reason) = self.take_in(&chunk) {
                let is_usual =
                    matches!(reason, CloseReason::LoggedOut | CloseReason::LoginRefused(_));
                self.is_end_usual.set(is_usual);
                return self.note_end(reason.to_string());
            }
        }
    }

    fn note_peer_end(&self, end: io_traits::StreamError) {
        // One that has not logged in may be a program that looks whether the port is open.
        if end != io_traits::StreamError::Closed && self.export.borrow().is_some() {
            self.note_end(end.to_string());
        }
    }

    /// ISCSI-RECEIVE-1. Data that is on its way must be able to arrive, or its memory is never free again.
    fn must_pause(&self) -> bool {
        if self.outbox.copied_bytes() > UNSENT_BYTES_MAX {
            return true;
        }
        let target = self.target();
        if target.awaits_unsolicited() || target.awaits_solicited() {
            return false;
        }
        let window = self.link.window();
        window.debt_bytes() > DEBT_BYTES_MAX || !window.has_room()
    }

    async fn pause(&self) {
        self.reading.stop(self.core.running_time());
        while self.is_open() && self.must_pause() {
            let resumed = self.resume.notified();
            let window = self.link.window();
            if self.outbox.copied_bytes() > UNSENT_BYTES_MAX {
                resumed.await;
            } else if window.debt_bytes() > DEBT_BYTES_MAX {
                first_of(window.changed(), resumed).await;
            } else {
                first_of(window.room(), resumed).await;
            }
        }
        self.reading.go_on(self.core.running_time());
    }

    /// Data was asked for: it must be able to arrive, even if there is no room for more.
    pub(crate) fn resume_reading(&self) {
        self.resume.notify_all();
    }

    /// Time as far as the initiator had the chance to be heard (ISCSI-RECEIVE-2).
    fn reading_time(&self) -> Instant {
        self.reading.time(self.core.running_time())
    }

    /// ISCSI-RECEIVE-3.
    fn note_progress(&self, now: Instant) {
        let mut target = self.target.borrow_mut();
        if target.awaits_answer() {
            let taken = self.stream.taken_bytes();
            if self.taken_bytes.replace(taken) != taken {
                target.on_taken(now);
            }
        }
    }

    /// Returns whether the initiator, which has moved `bytes` of what it has to move, is too slow with the rest.
    fn is_too_slow(&self, pace: &Pace, now: Instant, bytes: Option<u64>) -> bool {
        let in_need = self.link.window().is_needed_by_others();
        pace.is_too_slow(now, bytes, self.core.options().limits.stall_timeout, in_need)
    }

    /// Receives and drops for a short while until the initiator has closed its side, too: unread bytes would turn
    /// the end into a reset, and cost it the last words.
    async fn linger(&self) {
        let world = self.core.world();
        let over = async {
            while !self.outbox.has_ended() {
                self.resume.notified().await;
            }
            world.sleep_until(world.now() + LINGER).await;
        };
        let mut over = pin!(over);
        while let Either::First(Ok(_)) = first_of(self.stream.recv(), over.as_mut()).await {}
        while !self.outbox.has_ended() {
            self.resume.notified().await;
        }
    }

    /// Acts on received bytes; says if the connection is over.
    fn take_in(self: &Rc<Self>, mut input: &[u8]) -> Option<CloseReason> {
        let now = self.reading_time();
        while self.is_open() {
            let step = self.put(|target, out| target.poll(now, &mut input, out));
            if matches!(step, Step::NeedMore) {
                return None;
            }
            if let Some(reason) = self.act(step) {
                return Some(reason);
            }
        }
        None
    }

    fn act(self: &Rc<Self>, step: Step<'_>) -> Option<CloseReason> {
        match step {
            Step::NeedMore => {}
            Step::Login(question) => {
                let decision = self.decide(&question);
                let next = self.put(|target, out| match decision {
                    Ok(admission) => target.admit(admission, out),
                    Err(status) => target.refuse(status, out),
                });
                return next.and_then(|next| self.act(next));
            }
            Step::LoggedIn => {
                if let Some(reason) = self.on_logged_in() {
                    self.note_end(reason);
                    self.cut();
                }
                self.log_login();
            }
            Step::Command(task) => self.on_command(task),
            Step::Data { task, offset, bytes } => self.slots.copy(task, offset as usize, bytes),
            Step::Solicit(task) => self.solicit(task),
            Step::Ready(task) => self.execute(task),
            Step::Disordered(task) => self.fail(task, Sense::DATA_PHASE),
            Step::Manage(request) => self.on_task_request(&request),
            Step::SendTargets(which) => {
                let pairs = self.send_targets(&which);
                self.put(|target, out| target.answer_text(pairs, out));
            }
            Step::Closed(reason) => {
                self.note_refusal(reason);
                return Some(reason);
            }
        }
        None
    }

    fn note_refusal(&self, reason: CloseReason) {
        let CloseReason::LoginRefused(status) = reason else { return };
        self.link.note_refused();
        let (connection, peer) = (self.link.id(), self.peer());
        let now = self.core.world().now();
        if status == login_status::AUTHENTICATION_FAILURE {
            self.note_failed_login(now);
        }
        if self.may_be_said() {
            tracing::info!(%connection, %peer, %reason, "iSCSI login refused");
        }
    }

    fn log_login(&self) {
        let (connection, peer) = (self.link.id(), self.peer());
        if let (Some(session), Some(export)) =
            (self.target().session(), self.export.borrow().as_ref())
        {
            let (initiator, volume) = (&session.initiator, export.uuid());
            tracing::info!(%connection, %peer, %initiator, %volume, "iSCSI session");
        }
    }

    /// Tells the initiator of an event.
    fn tell(&self, event: u8, parameters: [u16; 3], sense: Option<Sense>) {
        self.reply(|target, out| target.tell(event, parameters, sense, out));
    }
}

impl<W: World, D: Device> Session for Connection<W, D> {
    fn link(&self) -> &Link {
        &self.link
    }

    fn complete(&self, tag: Tag, outcome: Outcome) {
        self.end_request(tag, outcome);
    }

    fn requests(&self) -> usize {
        let has_volume = self.export.borrow().is_some();
        if self.is_open() && has_volume { self.slots.executing() } else { 0 }
    }

    fn has_open(&self, volume: ExportId) -> bool {
        self.is_open() && self.export.borrow().as_ref().is_some_and(|export| export.id() == volume)
    }

    fn on_volume(&self, volume: ExportId, event: VolumeEvent) {
        let export = self.export.borrow().clone().filter(|export| export.id() == volume);
        let Some(export) = export else { return };
        let reason = match event {
            VolumeEvent::Resized => {
                self.raise(Sense::CAPACITY_CHANGED);
                return self.tell(async_event::SCSI, [0; 3], Some(Sense::CAPACITY_CHANGED));
            }
            VolumeEvent::AccessChanged { revoked: true } => "the volume's tokens were changed",
            VolumeEvent::AccessChanged { revoked: false } if self.still_qualifies(&export) => {
                return;
            }
            VolumeEvent::AccessChanged { revoked: false } => {
                "the initiator may no longer open the volume"
            }
            VolumeEvent::Suspended => "the server may not serve the volume now",
            VolumeEvent::Deleted => "the volume is gone",
        };
        self.note_end(reason);
        self.cut();
    }

    fn reservation_host(&self) -> Option<Rc<Host>> {
        self.host().cloned()
    }

    fn on_reservations(&self, volume: ExportId, notices: &[Notice]) {
        if self.has_open(volume) {
            self.on_notices(notices);
        }
    }

    fn on_abort(&self, volume: ExportId, hosts: &[Host]) {
        let is_one = self.host().is_some_and(|host| hosts.contains(host));
        if is_one && self.has_open(volume) {
            self.link.abort_requests();
            self.abort_for_another();
        }
    }

    fn on_tick(&self, now: Instant) {
        if self.link.is_cut() {
            return;
        }
        if self.is_too_slow(&self.reading_pace, now, self.outbox.taken_bytes()) {
            self.note_end("the initiator does not read");
            return self.cut();
        }
        if !self.is_open() {
            return;
        }
        let reading_time = self.reading_time();
        self.note_progress(reading_time);
        if let Some(reason) = self.put(|target, out| target.on_tick(reading_time, out)) {
            self.note_end(reason.to_string());
            return self.cut();
        }
        let owed = self.target.borrow().owed_bytes_received();
        if self.is_too_slow(&self.sending_pace, reading_time, owed) {
            self.note_end("the initiator does not send what it owes");
            self.cut();
        }
    }

    fn close(&self, reason: &str) {
        self.note_end(reason.to_owned());
        // The initiator may come again at once.
        self.tell(async_event::SESSION_DROPPED, [0, 2, 0], None);
        Self::close(self);
    }

    fn cut(&self, reason: &str) {
        self.note_end(reason.to_owned());
        Self::cut(self);
    }
}
