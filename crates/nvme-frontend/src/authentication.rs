//! In-band authentication: nothing but the exchange is executed on a queue until its host has proved
//! that it knows the volume's secret.
//!
//! - NVME-AUTH-1: a queue is closed until the exchange has succeeded, and cut if the host takes longer for that than
//!   [`HOST_TIME_MAX`]. What the server computes for the exchange, and for other sources before, is not
//!   the host's time; what its own source has asked for before is. Meanwhile there is no keep alive timer:
//!   hosts begin to keep alive what they have opened.
//! - NVME-AUTH-2: a host that fails is told so by the protocol, then the connection ends. After a few failures, which
//!   count as soon as the Reply was wrong, its source is rate-limited for a while, whichever queue of the
//!   subsystem it asks for (`strangers::Throttle`). All queues of a controller that fail together count as
//!   one. The limit is checked again when a Reply is to be judged: nothing opens a volume to a rate-limited
//!   source, so that exchanges begun earlier are no further guesses. It gets the answer of any wrong Reply,
//!   at the same time.
//! - NVME-AUTH-3: arithmetic is done off the core, one piece at a time for each queue, and in a fair order of
//!   queues (`computing.rs`): the others wait, as connections that count.
//! - NVME-AUTH-6: a host may ask for an answer right behind its message: one Authentication Receive waits until the message has
//!   taken effect.
//! - NVME-AUTH-7: what opens a volume is looked at together with the host's Reply: neither a token that was replaced since its
//!   Connect opens it, nor one whose host may no longer, nor one of a volume that is gone. Until then the connection of a
//!   stranger goes on as one to a volume that does not exist.

use std::cell::{Cell, RefCell};
use std::fmt::Display;
use std::net::IpAddr;
use std::pin::pin;
use std::rc::Rc;

use access::{Access, TOKENS_MAX, Token};
use auth::{Computed, Controller, Hash, KEY_LEN_MAX, Key, Outcome, Parties, Secret};
use dataplane::{Export, Since, footprint};
use io_traits::{Device, World};
use local_sync::first_of;
use nvme_target::{ConnectRequest, SlotId};
use nvme_wire::auth::{Authentication, MESSAGE_LEN_MAX};
use nvme_wire::{FabricsType, Nqn, Sqe, Status, fabrics};
use units::{Duration, Instant};

use crate::admission::Subject;
use crate::association::{NO_PLACE, NOT_THE_QUEUE};
use crate::connection::{Connection, Role};
use crate::frontend::NvmeCore;
use crate::incoming::Payload;

/// Time that a host may take to authenticate. The largest group keeps a slow processor busy for seconds.
const HOST_TIME_MAX: Duration = Duration::from_secs(30);
/// Computations of the server for an exchange: its public value, and the shared one.
const JOBS_OF_EXCHANGE: u8 = 2;

/// The authentication of one queue.
pub(crate) struct QueueAuthentication<W: World, D: Device> {
    subject: Subject<W, D>,
    parties: Parties,
    exchange: RefCell<Controller>,
    /// Since when the host has had the chance; later by what was computed for it (NVME-AUTH-1).
    since: Cell<Instant>,
    passed: Cell<bool>,
    /// NVME-AUTH-3: something is being computed, or waits to be, or to be answered (EVEN-1).
    is_busy: Cell<bool>,
    /// The Receive that waits for that, and its room (NVME-AUTH-6).
    waiting: Cell<Option<(SlotId, usize)>>,
    /// Since when nothing else of its source came first.
    served_since: Cell<Option<Instant>>,
    /// Jobs so far.
    jobs: Cell<u8>,
    /// The Connect, for NVME-AUTH-8.
    begun: Since,
    /// The host was told to come again (NVME-AUTH-8).
    put_off: Cell<bool>,
    /// Its source was put off when its Reply was judged (NVME-AUTH-2).
    was_late: Cell<bool>,
}

impl<W: World, D: Device> QueueAuthentication<W, D> {
    /// The authentication that the host must complete before it may use `subject`; `None` if none is needed.
    pub(crate) fn required(
        core: &NvmeCore<W, D>,
        subject: &Subject<W, D>,
        request: &ConnectRequest,
    ) -> Option<Rc<Self>> {
        if matches!(subject, Subject::Discovery) {
            return None;
        }
        let parties = Parties { host: request.host_nqn, subsystem: request.subsystem };
        let policy = core.options().authentication.clone()?;
        Some(Rc::new(Self {
            subject: subject.clone(),
            parties,
            exchange: RefCell::new(Controller::new(parties, policy)),
            since: Cell::new(core.running_time()),
            passed: Cell::new(false),
            is_busy: Cell::new(false),
            waiting: Cell::new(None),
            served_since: Cell::new(None),
            jobs: Cell::new(0),
            begun: core.since_now(),
            put_off: Cell::new(false),
            was_late: Cell::new(false),
        }))
    }

    pub(crate) fn has_passed(&self) -> bool {
        self.passed.get()
    }

    /// Returns true if the host has used up its time (NVME-AUTH-1).
    pub(crate) fn is_overdue(&self, now: Instant) -> bool {
        let until = self.served_since.get().filter(|_| self.is_first_exchange()).unwrap_or(now);
        until.since(self.since.get()) > HOST_TIME_MAX
    }

    /// Returns true during the first exchange. A host that restarts the exchange gets no more time for
    /// computations.
    fn is_first_exchange(&self) -> bool {
        self.jobs.get() < JOBS_OF_EXCHANGE
    }

    fn job_done(&self, now: Instant) {
        self.is_busy.set(false);
        let Some(served_since) = self.served_since.take() else { return };
        if self.is_first_exchange() {
            self.since.set(self.since.get() + now.since(served_since));
            self.jobs.set(self.jobs.get() + 1);
        }
    }

    /// Returns true if a failure says nothing of the host: its volume may have been absent (NVME-AUTH-8). One that
    /// appears during the exchange was not found at its beginning.
    fn may_lack_its_volume(&self, core: &NvmeCore<W, D>) -> bool {
        match self.has_passed() {
            true => core.awaits_volumes(),
            false => core.awaited_volumes_since(self.begun),
        }
    }

    /// Returns true if the host has shown that it knows a token, even if the exchange goes on.
    pub(crate) fn is_convinced(&self) -> bool {
        self.exchange.borrow().is_convinced()
    }
}

/// Returns true if the command belongs to an exchange.
pub(crate) fn is_authentication(sqe: &Sqe) -> bool {
    let types = [FabricsType::AUTHENTICATION_SEND, FabricsType::AUTHENTICATION_RECEIVE];
    sqe.opcode == fabrics::OPCODE && types.contains(&fabrics::fctype(sqe))
}

impl<W: World, D: Device> NvmeCore<W, D> {
    /// Returns the keys of the hosts that `access` lets in: the same number if there are two tokens, one, or
    /// none (NVME-AUTH-4). Random secrets take the places of missing ones. EVEN-1 covers the remaining
    /// difference in time.
    fn keys(&self, access: Option<&Access>) -> Vec<Key> {
        let key = |token: &Token| Key {
            host: token.secret.clone(),
            controller: token.controller.clone(),
        };
        let tokens = access.map(|access| self.valid_tokens(access)).unwrap_or_default();
        let mut keys: Vec<Key> = tokens.into_iter().map(key).collect();
        // As many are drawn as there can be, however many are needed.
        for _ in 0..TOKENS_MAX {
            let mut random = [0; KEY_LEN_MAX];
            self.world().fill_random(&mut random);
            keys.push(Key { host: Secret::new(Hash::Sha256, &random), controller: None });
        }
        keys.truncate(TOKENS_MAX);
        keys
    }

    /// NVME-AUTH-2: returns whether a connection from `address` to `subsystem` is refused for now, and counts a refusal.
    pub(crate) fn is_rate_limited(&self, address: IpAddr, subsystem: Nqn) -> bool {
        self.throttle().borrow_mut().is_rate_limited(address, subsystem, self.world().now())
    }
}

impl<W: World, D: Device> Connection<W, D> {
    /// NVME-AUTH-1: says that the command has to wait for its host to authenticate.
    pub(crate) fn must_authenticate(&self, slot: SlotId) -> Result<(), Status> {
        match self.authentication.get() {
            Some(queue) if !queue.has_passed() && !is_authentication(&self.command(slot)) => {
                Err(Status::AUTHENTICATION_REQUIRED.with_dnr())
            }
            _ => Ok(()),
        }
    }

    /// NVME-AUTH-7 and NVME-AUTH-2: what opens `queue` now.
    fn keys_of(&self, queue: &QueueAuthentication<W, D>) -> Vec<Key> {
        let opens = |export: &&Rc<Export<W, D>>| self.may_open(export, &queue.parties.host);
        let access = queue.subject.export().filter(opens).and_then(|export| export.access());
        let (address, now) = (self.peer().ip(), self.core.world().now());
        let is_late =
            self.core.throttle().borrow().is_closed(address, queue.parties.subsystem, now);
        queue.was_late.set(is_late);
        self.core.keys(access.as_deref().filter(|_| !is_late))
    }

    /// The exchange that the command in `slot` belongs to, if there is one.
    pub(crate) fn exchange_of(&self, slot: SlotId) -> Option<Rc<QueueAuthentication<W, D>>> {
        let queue = self.authentication.get()?;
        is_authentication(&self.command(slot)).then(|| queue.clone())
    }

    /// Executes an Authentication Send or Receive.
    pub(crate) fn authenticate(
        self: &Rc<Self>,
        slot: SlotId,
        queue: &Rc<QueueAuthentication<W, D>>,
    ) {
        let sqe = self.command(slot);
        let payload = self.take_payload(slot);
        let command = Authentication::from(sqe);
        if command.wrong_field().is_some() || command.flags != Sqe::PSDT_SGL {
            return self.complete_command(slot, Status::INVALID_FIELD.with_dnr(), 0);
        }
        let is_send = fabrics::fctype(&sqe) == FabricsType::AUTHENTICATION_SEND;
        let length = command.length.get() as usize;
        let carried = payload.as_ref().map_or(0, |payload| payload.len_bytes);
        let room = sqe.dptr.length.get() as usize;
        if length > MESSAGE_LEN_MAX || length != if is_send { carried } else { room } {
            return self.complete_command(slot, Status::INVALID_FIELD.with_dnr(), 0);
        }
        if queue.is_busy.get() {
            // NVME-AUTH-6.
            if is_send || queue.waiting.get().is_some() {
                return self.complete_command(slot, Status::COMMAND_SEQUENCE_ERROR.with_dnr(), 0);
            }
            return queue.waiting.set(Some((slot, length)));
        }
        if is_send {
            self.take_message(slot, payload.as_ref(), queue);
        } else {
            self.give_message(slot, length, queue);
        }
    }

    fn take_message(
        self: &Rc<Self>,
        slot: SlotId,
        payload: Option<&Payload>,
        queue: &Rc<QueueAuthentication<W, D>>,
    ) {
        let came = self.core.world().now();
        let message = payload.map_or(&[][..], Payload::as_bytes);
        let mut random = |bytes: &mut [u8]| self.core.world().fill_random(bytes);
        let mut keys = || self.keys_of(queue);
        let job = queue.exchange.borrow_mut().receive(message, &mut keys, &mut random);
        let Some(job) = job else { return self.taken(slot, queue, came) };
        queue.is_busy.set(true);
        let (connection, queue) = (self.clone(), queue.clone());
        self.core.world().spawn(async move {
            let core = connection.core.clone();
            // NVME-AUTH-3: nothing is computed for a host that has gone meanwhile.
            let mut closed = pin!(connection.link.closed().notified());
            let computing = core.computing();
            let turn = async {
                let place = computing.place(connection.peer().ip()).await;
                queue.served_since.set(Some(core.running_time()));
                computing.turn(place).await
            };
            let turn = first_of(turn, closed.as_mut()).await.first();
            let Some(_turn) = turn else { return };
            let computed: Computed = core.world().offload(move || job.run()).await;
            let now = core.world().now();
            queue.job_done(core.running_time());
            queue.exchange.borrow_mut().computed(computed, &mut || connection.keys_of(&queue));
            connection.taken(slot, &queue, now);
        });
    }

    /// The message in `slot` took effect; the check of the host's proof began at `since`. A host with a wrong
    /// proof is answered at a fixed delay (EVEN-1), and cannot ask before.
    fn taken(self: &Rc<Self>, slot: SlotId, queue: &Rc<QueueAuthentication<W, D>>, since: Instant) {
        if !queue.exchange.borrow().is_failing() {
            return self.confirm(slot, queue);
        }
        self.note_failure(queue);
        queue.is_busy.set(true);
        let queue = queue.clone();
        self.answer_evenly(since, move |connection| {
            queue.is_busy.set(false);
            connection.confirm(slot, &queue);
        });
    }

    /// NVME-AUTH-2. A host that leaves since it does not believe us has not guessed.
    fn note_failure(&self, queue: &QueueAuthentication<W, D>) {
        // Nor has one whose volume may be away.
        let is_under_way = queue.exchange.borrow().outcome() == Outcome::UnderWay;
        if is_under_way && !queue.may_lack_its_volume(&self.core) {
            self.link.note_refused();
            let (address, now) = (self.peer().ip(), self.core.world().now());
            let mut throttle = self.core.throttle().borrow_mut();
            match &*self.role.borrow() {
                Role::Io(queue) if !queue.association.is_new_attempt(queue.qid) => {
                    throttle.note_further();
                }
                _ => throttle.note(address, queue.parties.subsystem, now),
            }
        }
    }

    /// Completes the message in `slot`, and answers the Receive that waits for that (NVME-AUTH-6).
    fn confirm(self: &Rc<Self>, slot: SlotId, queue: &Rc<QueueAuthentication<W, D>>) {
        self.complete_command(slot, Status::SUCCESS, 0);
        self.look_at_outcome(queue);
        self.give_to_waiting(queue);
    }

    fn give_to_waiting(self: &Rc<Self>, queue: &Rc<QueueAuthentication<W, D>>) {
        if let Some((slot, room)) = queue.waiting.take() {
            self.give_message(slot, room, queue);
        }
    }

    /// Answers an Authentication Receive; evenly (EVEN-1) if what it fetches is that the host is wrong. All else that has to
    /// be done for that is done before, or behind the answer: it takes a time of its own.
    fn give_message(
        self: &Rc<Self>,
        slot: SlotId,
        room: usize,
        queue: &Rc<QueueAuthentication<W, D>>,
    ) {
        let came = self.core.world().now();
        let is_failing = queue.exchange.borrow().is_failing();
        if is_failing && queue.may_lack_its_volume(&self.core) && !queue.has_passed() {
            // NVME-AUTH-8. It may ask again until its time is up (NVME-AUTH-1): hosts do, and would wait long for an answer that
            // does not come because the connection has ended.
            let queue = queue.clone();
            return self.answer_evenly(came, move |connection| {
                connection.complete_command(slot, Status::NAMESPACE_NOT_READY, 0);
                if !queue.put_off.replace(true) {
                    connection.log_failed(&queue, "told to come again: its volume may be away");
                }
            });
        }
        if is_failing {
            queue.is_busy.set(true);
        }
        let (connection, queue) = (self.clone(), queue.clone());
        let give = async move {
            let Some(share) = connection.link.window().take(footprint(room)).await else { return };
            let message = queue.exchange.borrow_mut().message(room);
            let answer = move |connection: &Rc<Self>| match message {
                Some(bytes) => {
                    connection.return_data(slot, &bytes, room - bytes.len(), Some(share));
                }
                None => connection.complete_command(slot, Status::INVALID_FIELD.with_dnr(), 0),
            };
            if !is_failing {
                answer(&connection);
                return connection.look_at_outcome(&queue);
            }
            connection.answer_evenly(came, move |connection| {
                answer(connection);
                let (connection, world) = (connection.clone(), connection.core.world().clone());
                // Behind the sender, which was woken before.
                world.spawn(async move {
                    queue.is_busy.set(false);
                    connection.look_at_outcome(&queue);
                    connection.give_to_waiting(&queue);
                });
            });
        };
        self.core.world().spawn_now(give);
    }

    /// Checks that the connection may now be used as the queue that it asked to be; else returns the reason.
    fn may_be_used(&self) -> Result<(), &'static str> {
        let is_new = self.unproven().is_some();
        if is_new && !self.export().is_some_and(|export| self.core.has_place_for(&export)) {
            return Err(NO_PLACE);
        }
        match &*self.role.borrow() {
            Role::Io(queue) if !queue.association.create_queue(self) => Err(NOT_THE_QUEUE),
            Role::Io(_) | Role::New | Role::Admin(_) => Ok(()),
        }
    }

    /// NVME-AUTH-2.
    fn look_at_outcome(&self, queue: &QueueAuthentication<W, D>) {
        let outcome = queue.exchange.borrow().outcome();
        match outcome {
            Outcome::UnderWay => {}
            Outcome::Authenticated => match self.may_be_used() {
                Ok(()) => {
                    queue.passed.set(true);
                    self.let_in_if_proven();
                    self.log_authenticated();
                }
                Err(reason) => {
                    self.note_end(reason);
                    self.close();
                }
            },
            Outcome::Failed(reason) => {
                self.log_failed(queue, reason);
                self.note_end("authentication failed");
                queue.passed.set(false);
                self.close();
            }
        }
    }

    fn log_failed(&self, queue: &QueueAuthentication<W, D>, reason: impl Display) {
        if !self.may_be_said() {
            return;
        }
        let volume = match queue.subject {
            _ if queue.was_late.get() => "is closed to this address, which failed too often",
            Subject::Nothing(why) => why,
            Subject::Volume(ref export) if self.may_open(export, &queue.parties.host) => {
                "is open to this host"
            }
            Subject::Volume(_) | Subject::Discovery => "is no longer open to this host",
        };
        self.log_unproven(&queue.parties, volume, reason);
    }
}
