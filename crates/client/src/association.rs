//! From an address to a controller with open queues (Base, clause 3.5 and 6).

use std::rc::Rc;

use auth::{Host, Outcome, Parties};
use io_traits::{Buffer, Stream, World};
use nvme_initiator::{Config, ControllerLimits};
use nvme_wire::fabrics::{
    CATTR_DISABLE_SQ_FLOW, CNTLID_DYNAMIC, Connect, ConnectData, ConnectInvalid, ConnectResult,
    PropertySize,
};
use nvme_wire::feature::{ASYNC_CONFIG_NAMESPACE_ATTRIBUTE, Fid, NumberOfQueues};
use nvme_wire::identify::{Cns, IdentifyController};
use nvme_wire::pdu::Digests;
use nvme_wire::property::{Cap, Cc, Csts, offset};
use nvme_wire::{Cqe, Status};
use units::Duration;

use crate::client::Inner;
use crate::queue::Queue;
use crate::requests::Command;
use crate::{ConnectError, Credentials, Disconnect, Error, admin, link};

/// Entries of an admin queue: what the Base specification asks of every controller.
pub(crate) const ADMIN_DEPTH: u16 = 31;
/// Requests under way at once on an admin queue. What is left is for the Keep Alive.
pub(crate) const ADMIN_REQUESTS: u16 = ADMIN_DEPTH - 1;
/// In-capsule data that an admin queue takes (TCP, clause 3.3.1).
const ADMIN_IN_CAPSULE: u32 = 8192;
/// Longest wait between two looks at CSTS.RDY.
const READY_POLL_MAX: Duration = Duration::from_millis(100);
/// Limit for sending what is still queued on a broken connection.
const LAST_WORDS: Duration = Duration::from_millis(100);

/// Connections that make one controller. Dropped, be it half made, it ends them all.
pub(crate) struct Association<W: World> {
    world: W,
    /// Queue, link number and stream; the admin queue first.
    links: Vec<(Rc<Queue>, u64, W::Stream)>,
}

impl<W: World> Association<W> {
    fn new(world: W) -> Self {
        Self { world, links: Vec::new() }
    }

    /// Why it is no longer whole.
    pub(crate) fn lost(&self) -> Option<Disconnect> {
        self.links.iter().find_map(|(queue, epoch, _)| queue.lost(*epoch))
    }

    /// Number of the admin queue's link.
    pub(crate) fn admin_epoch(&self) -> u64 {
        self.links.first().expect("the admin queue is the first").1
    }

    /// Ends all its connections.
    pub(crate) fn tear_down(mut self, reason: Disconnect) {
        self.end(reason);
    }

    fn end(&mut self, reason: Disconnect) {
        for (queue, epoch, stream) in self.links.drain(..) {
            queue.fail(epoch, reason);
            if matches!(reason, Disconnect::Protocol(_)) {
                let deadline = self.world.now() + LAST_WORDS;
                let clock = self.world.clone();
                self.world.spawn(async move {
                    clock.sleep_until(deadline).await;
                    stream.shutdown();
                });
            } else {
                stream.shutdown();
            }
        }
    }

    /// Connects `queue` as queue `qid` of controller `cntlid`; the controller's identifier.
    async fn connect_queue(
        &mut self,
        inner: &Inner<W>,
        queue: &Rc<Queue>,
        (qid, depth, cntlid): (u16, u16, u16),
    ) -> Result<u16, ConnectError> {
        let (world, options) = (&inner.world, &inner.options);
        let stream = world.connect(inner.address).await?;
        let config = Config {
            digests: Digests { header: options.header_digest, data: options.data_digest },
            depth,
            command_timeout: options.command_timeout,
            in_capsule_max: if qid == 0 { ADMIN_IN_CAPSULE } else { 0 },
        };
        let epoch = link::start(world, queue, &stream, &config);
        self.links.push((queue.clone(), epoch, stream));
        queue.ready(epoch).await.map_err(Error::Disconnected)?;
        let kato_ms = if qid == 0 { inner.keep_alive_ms() } else { 0 };
        let mut connect = Connect::new(qid, depth + 1, kato_ms);
        if qid > 0 {
            // No more than `depth` commands are ever under way, so the controller need not report how far it has
            // read the queue, and data needs no completion behind it. A controller may still insist on reporting
            // it.
            connect.cattr |= CATTR_DISABLE_SQ_FLOW;
        }
        let data = ConnectData::new(options.host_id, &options.host_nqn, &inner.nqn, cntlid);
        let result = inner.first_with_result(queue, admin::connect(connect, &data)).await;
        let result = ConnectResult(result.map_err(refused)?.dw0());
        if result.authentication_required() {
            inner.authenticate(queue).await?;
        } else if options.credentials.as_ref().is_some_and(|own| own.controller_secret.is_some()) {
            // A controller that does not ask for authentication does not authenticate itself either.
            return Err(ConnectError::Unproven);
        }
        Ok(result.cntlid())
    }
}

impl<W: World> Drop for Association<W> {
    /// The tasks of a link hold its stream, and would for ever.
    fn drop(&mut self) {
        self.end(Disconnect::Closed);
    }
}

/// The properties that the controller reported while its admin queue was connected.
pub(crate) struct Introduction {
    pub(crate) cap: Cap,
    pub(crate) cntlid: u16,
    pub(crate) identify: Box<IdentifyController>,
}

/// The resources that the controller granted on request, together with its introduction.
struct Granted {
    /// Number of I/O queues.
    queues: Result<Cqe, Error>,
    /// To tell of changes of namespaces. One that never does refuses.
    events: Result<Cqe, Error>,
}

impl<W: World> Inner<W> {
    /// Connects everything, within the connect timeout but for what controllers of before may take to end: until then this
    /// one does not get ready, or is not used (RESET-3).
    pub(crate) async fn bring_up(&self) -> Result<Association<W>, ConnectError> {
        let mut association = Association::new(self.world.clone());
        let (begun, timeout) = (self.world.now(), self.options.connect_timeout);
        let (cap, cntlid) = self.in_time(timeout, self.connect_admin(&mut association)).await?;
        let left = timeout.saturating_sub(self.world.now().since(begun));
        self.enable(cap).await?;
        let begun = self.world.now();
        let (introduction, granted) = self.in_time(left, self.ask_controller(cap, cntlid)).await?;
        let left = left.saturating_sub(self.world.now().since(begun));
        if introduction.identify.instance().is_some() {
            self.end_last_controller().await?;
        }
        self.in_time(left, self.connect_io(&mut association, introduction, granted)).await?;
        Ok(association)
    }

    /// Connects the admin queue alone, as for a discovery controller.
    pub(crate) async fn bring_up_admin(&self) -> Result<Association<W>, ConnectError> {
        let mut association = Association::new(self.world.clone());
        let timeout = self.options.connect_timeout;
        let (cap, _) = self.in_time(timeout, self.connect_admin(&mut association)).await?;
        self.enable(cap).await?;
        self.open(&association, ADMIN_IN_CAPSULE);
        Ok(association)
    }

    /// Limits a step of connecting to `limit`. The step is large and therefore boxed, so that the caller's future
    /// stays small.
    fn in_time<'a, T: 'a>(
        &'a self,
        limit: Duration,
        step: impl Future<Output = Result<T, ConnectError>> + 'a,
    ) -> impl Future<Output = Result<T, ConnectError>> + 'a {
        let step = Box::pin(step);
        let timed_out = Err(ConnectError::Timeout { address: self.address });
        async move { link::within(&self.world, limit, step).await.unwrap_or(timed_out) }
    }

    /// Connects the admin queue; what the controller can do, and its identifier.
    async fn connect_admin(
        &self,
        association: &mut Association<W>,
    ) -> Result<(Cap, u16), ConnectError> {
        let ids = (0, ADMIN_DEPTH, CNTLID_DYNAMIC);
        let cntlid = association.connect_queue(self, &self.admin, ids).await?;
        let get = admin::property_get(offset::CAP, PropertySize::Eight);
        Ok((Cap(self.first(get).await?.result.get()), cntlid))
    }

    async fn identify_controller(&self) -> Result<Box<IdentifyController>, Error> {
        let identify = self.admin.run_first(self.world.now(), admin::identify(Cns::CONTROLLER, 0));
        let buffer = identify.await?.buffer;
        Ok(Box::new(admin::structure::<IdentifyController>(buffer.as_ref()).clone()))
    }

    /// Asks a controller that is ready, and is to have I/O queues, for its identity, for queues and for events, all
    /// at once.
    async fn ask_controller(
        &self,
        cap: Cap,
        cntlid: u16,
    ) -> Result<(Introduction, Granted), ConnectError> {
        let wanted = admin::number_of_queues(self.wanted_queues());
        let events = admin::set_features(Fid::ASYNC_EVENT_CONFIG, ASYNC_CONFIG_NAMESPACE_ATTRIBUTE);
        let grants = link::both(self.first(wanted), self.first(events));
        let (identify, (queues, events)) = link::both(self.identify_controller(), grants).await;
        Ok((Introduction { cap, cntlid, identify: identify? }, Granted { queues, events }))
    }

    /// I/O queues to ask for: as many as requests are waiting on, if there are such.
    fn wanted_queues(&self) -> u16 {
        match self.active_queues.get() {
            0 => self.options.queues(),
            in_use => in_use,
        }
    }

    /// Authenticates the host on `queue`, and the controller as well if the options ask for that.
    async fn authenticate(&self, queue: &Queue) -> Result<(), ConnectError> {
        let Credentials { secret, controller_secret } =
            self.options.credentials.clone().ok_or(ConnectError::AuthenticationRequired)?;
        let parties = Parties { host: self.options.host_nqn, subsystem: self.nqn };
        let mut random = |bytes: &mut [u8]| self.world.fill_random(bytes);
        let mut transaction = [0; 2];
        random(&mut transaction);
        let transaction = u16::from_le_bytes(transaction);
        let (mut host, first) = Host::new(parties, secret, controller_secret, transaction);
        let mut message = Some(first);
        loop {
            let Some(bytes) = message.take().or_else(|| host.message()) else {
                return authenticated(&host);
            };
            let send = queue.run_first(self.world.now(), admin::authentication_send(&bytes));
            if host.outcome() != Outcome::UnderWay {
                send.await?;
                return authenticated(&host);
            }
            let receive = || queue.run_first(self.world.now(), admin::authentication_receive());
            // Controllers execute these in order: to ask for the answer at once saves a trip.
            let received = if queue.free_slots() > 0 {
                let (sent, received) = link::both(send, receive()).await;
                sent?;
                received
            } else {
                send.await?;
                receive().await
            };
            let buffer = received?.buffer;
            let bytes = buffer.as_ref().map_or(&[][..], Buffer::as_bytes);
            if let Some(job) = host.receive(bytes, &mut random) {
                host.computed(&self.world.offload(move || job.run()).await);
            }
        }
    }

    /// Enables the controller and waits until it is ready: as long as it says that this takes, but no longer than a command
    /// may. Each answer has the connect timeout.
    async fn enable(&self, cap: Cap) -> Result<(), ConnectError> {
        let css = match cap.css() {
            css if css & 0x01 != 0 => Cc::CSS_NVM,
            css if css & 0x40 != 0 => Cc::CSS_ALL,
            _ => Cc::CSS_ADMIN_ONLY,
        };
        let stated = Duration::from_millis(u64::from(cap.timeout_500ms()).max(1) * 500);
        let limit = stated.min(self.options.command_timeout);
        let (deadline, answer_limit) = (self.world.now() + limit, self.options.connect_timeout);
        let status = || async {
            let get = admin::property_get(offset::CSTS, PropertySize::Four);
            Ok::<_, ConnectError>(Csts(self.first(get).await?.dw0()))
        };
        // Most controllers are ready at once. One that executes the second command first is asked again.
        self.cc.set(Cc::enabled(css));
        let set = admin::property_set(offset::CC, self.cc.get().0);
        let first = async {
            let (set, csts) = link::both(self.first(set), status()).await;
            set?;
            csts
        };
        let mut csts = self.in_time(answer_limit, first).await?;
        let mut pause = Duration::from_millis(1);
        loop {
            if csts.cfs() {
                return Err(ConnectError::Fatal { csts: csts.0 });
            }
            if csts.rdy() {
                return Ok(());
            }
            if self.world.now() >= deadline {
                return Err(ConnectError::NotReady { timeout: limit });
            }
            self.world.sleep_until(self.world.now() + pause).await;
            pause = (pause * 2).min(READY_POLL_MAX);
            csts = self.in_time(answer_limit, status()).await?;
        }
    }

    /// Connects the I/O queues beside the admin queue.
    async fn connect_io(
        &self,
        association: &mut Association<W>,
        introduction: Introduction,
        granted: Granted,
    ) -> Result<(), ConnectError> {
        let limits = ControllerLimits::new(introduction.cap, &introduction.identify)?;
        if introduction.identify.oaes.get() & ASYNC_CONFIG_NAMESPACE_ATTRIBUTE != 0 {
            granted.events?;
        }
        let granted = NumberOfQueues::decode(granted.queues?.dw0())
            .map_or(0, |queues| queues.submission.min(queues.completion));
        let count = u16::try_from(granted).unwrap_or(u16::MAX).min(self.wanted_queues());
        if count == 0 || self.active_queues.get() > count {
            let needed = u32::from(self.active_queues.get().max(1));
            return Err(ConnectError::TooFewQueues { granted, needed });
        }
        let entries_max = u16::try_from(limits.queue_entries_max - 1).unwrap_or(u16::MAX);
        let depth = self.options.depth().min(entries_max).max(1);
        for (queue, qid) in self.io.iter().zip(1..=count) {
            let ids = (qid, depth, introduction.cntlid);
            association.connect_queue(self, queue, ids).await?;
        }
        self.active_queues.set(count);
        self.limits.set(Some(limits));
        self.look_at_namespaces().await?;
        self.controller.set(introduction.identify.instance());
        self.open(association, limits.in_capsule_max);
        Ok(())
    }

    /// Lets requests onto the queues.
    fn open(&self, association: &Association<W>, io_in_capsule_max: u32) {
        for (index, (queue, epoch, _)) in association.links.iter().enumerate() {
            let in_capsule_max = if index == 0 { ADMIN_IN_CAPSULE } else { io_in_capsule_max };
            queue.open(*epoch, self.world.now(), in_capsule_max);
        }
    }

    /// Runs a command of the sequence on the admin queue.
    pub(crate) async fn first(&self, command: Command) -> Result<Cqe, Error> {
        Ok(self.admin.run_first(self.world.now(), command).await?.cqe)
    }

    /// Runs a command on `queue` and keeps what it returns even if it fails.
    async fn first_with_result(
        &self,
        queue: &Queue,
        command: Command,
    ) -> Result<Cqe, (Error, Option<ConnectInvalid>)> {
        let outcome = queue.run_first(self.world.now(), command).await;
        match outcome {
            Ok(completion) => Ok(completion.cqe),
            Err(error) => Err((error, queue.last_refusal())),
        }
    }
}

/// Returns the outcome of an authentication exchange that is over.
fn authenticated(host: &Host) -> Result<(), ConnectError> {
    match host.outcome() {
        Outcome::Authenticated => Ok(()),
        Outcome::Failed(_) if host.is_controller_unproven() => Err(ConnectError::WrongController),
        Outcome::Failed(reason) => Err(ConnectError::Authentication(reason)),
        Outcome::UnderWay => unreachable!("a host that waits has sent something"),
    }
}

fn refused((error, invalid): (Error, Option<ConnectInvalid>)) -> ConnectError {
    match error {
        Error::Target { status, .. } => {
            let says = status.code() == Status::CONNECT_INVALID_PARAMETERS;
            ConnectError::Refused { status, invalid: invalid.filter(|_| says) }
        }
        other => ConnectError::Command(other),
    }
}
