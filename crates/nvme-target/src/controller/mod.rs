//! A controller: what the admin queue and the I/O queues of one association share.
//!
//! - CONTROLLER-1: a controller lives from the Connect of its admin queue until that connection ends or its
//!   keep alive timer expires. The driver then closes all its connections.
//! - CONTROLLER-2: before CC.EN is set, and after a shutdown, only Fabrics commands are answered, and the keep alive timer
//!   is not active. The host then has two minutes at least before the association ends (Base, clause 3.6.2).
//! - CONTROLLER-3: at most [`AERS_MAX`] Asynchronous Event Requests wait. An event is reported once, and again
//!   only after the host has read the log page that tells about it.
//! - CONTROLLER-4: a host may end what another controller of its own has under way, and no other host's (Cross-Controller
//!   Reset). Which life of a controller it means is part of the command, so a late one harms no successor.
//! - CONTROLLER-5: what Identify, features and log pages say is what the target does.
//! - CONTROLLER-6: a controller is ready when nothing is under way any more that its host sent before it was enabled: to its
//!   queues before a reset, or to controllers of it that have ended. Else what a host saw behind a reset could change by
//!   itself.

mod async_event;
mod cross_controller_reset;
mod feature;
mod identify;
mod log_page;
mod property;

use alloc::collections::VecDeque;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

use nvme_wire::io::Abort;
use nvme_wire::log::{ErrorLogEntry, FailureDomain};
use nvme_wire::property::{Cc, Csts};
use nvme_wire::{AdminOpcode, ControllerInstance, FabricsType, HostId, Nqn, Sqe, Status, fabrics};
use reservation::NoticeKind;
use units::{Duration, Instant, MetadataSize, SectorSize};
use zerocopy::FromZeros;

use crate::{ConnectRefusal, ConnectRequest, Limits, Negotiated, SlotId};
use async_event::AsyncEvents;
pub use async_event::{AERS_MAX, AsyncCompletion};
pub use cross_controller_reset::ResetId;
use cross_controller_reset::Resets;
use feature::Features;
pub use log_page::{DiscoveryLog, Health};

/// Entries that the error log keeps.
const ERROR_LOG_ENTRIES: usize = 64;
/// Default of the Keep Alive Timer where the transport requires it, as TCP does. It is also that of a discovery
/// controller whose host asks for none: such hosts come, look and go; without it, one that vanished would stay. Any command
/// restarts it there, as such a host sends no Keep Alive.
const KATO_DEFAULT_MS: u32 = 120_000;
/// Shortest time that an association is kept while its controller is disabled or shut down.
const DISABLED_TIMEOUT: Duration = Duration::from_secs(120);
/// Bits of the flags that are reserved, or mean fused operations, which there are none of.
const FLAGS_WITHOUT_PSDT: u8 = 0x3F;

/// The object that a controller gives access to.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ControllerKind {
    /// A namespace.
    Io,
    /// The discovery log.
    Discovery,
}

/// The properties that a controller reports; constant for its life.
#[derive(Clone, Debug)]
pub struct ControllerParameters {
    /// The object that it gives access to.
    pub kind: ControllerKind,
    /// Its number, at most [`crate::connect::CNTLID_MAX`], unique within the subsystem, and which of
    /// the controllers that have had this number it is.
    pub instance: ControllerInstance,
    /// Its subsystem.
    pub subsystem: Nqn,
    /// Serial number, at most 20 ASCII characters.
    pub serial: String,
    /// Model, at most 40 ASCII characters.
    pub model: String,
    /// Firmware revision, at most 8 ASCII characters.
    pub firmware: String,
    /// Limits that its connections use.
    pub limits: Limits,
    /// True if completed writes can be lost until a Flush.
    pub volatile_write_cache: bool,
    /// Logical blocks that are written all or none, also across a power failure and by a fused Compare and
    /// Write (1 to 65 536).
    pub atomic_write_blocks: u32,
    /// The volume's UUID; also its NGUID. All zeroes for a discovery controller.
    pub uuid: [u8; 16],
}

/// The namespace as it is now.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Namespace {
    /// Size in logical blocks.
    pub blocks: u64,
    /// Logical blocks that hold data.
    pub used_blocks: u64,
    /// Bytes of a logical block.
    pub sector: SectorSize,
    /// Metadata of each block.
    pub metadata: MetadataSize,
    /// True if writes are refused.
    pub read_only: bool,
}

/// Figures that change, which the driver knows and some admin commands ask for.
pub trait Backend {
    /// The namespace. A discovery controller, which has none, does not ask; and one whose volume is deleted has no
    /// connections any more.
    fn namespace(&self) -> Namespace {
        Namespace::default()
    }

    /// Health and use of what lies below.
    fn health(&self) -> Health {
        Health::default()
    }

    /// The failure domain of the volume, if it is known.
    fn failure_domain(&self) -> Option<&FailureDomain> {
        None
    }

    /// Returns whether reservations of the namespace outlive a restart.
    fn reservations_persist(&self) -> bool {
        false
    }

    /// Returns true if no command is under way any more that the controller's host sent before it was
    /// enabled (CONTROLLER-6).
    fn has_settled(&self) -> bool {
        true
    }

    /// The entries that this host may discover.
    fn discovery_log(&self) -> Option<&DiscoveryLog> {
        None
    }
}

/// The action with which an admin command is answered.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum AdminReply {
    /// Complete it.
    Complete {
        /// The status of the command.
        status: Status,
        /// Dwords 0 and 1 of the completion.
        result: u64,
    },
    /// Complete it with success and this data.
    Data {
        /// The first bytes.
        bytes: Vec<u8>,
        /// The rest of the data is this many zeroes: the host may ask for much more than there is.
        zeroes: usize,
    },
    /// It waits for an event; [`Controller::poll_event`] will name its slot.
    Pending,
    /// Make reservations of the namespace outlive a restart, or not, durably; then complete the command with how that ended.
    Persist(bool),
    /// End a controller, if it is there and [`Controller::may_reset`] it. When nothing of it is under way any more, or it
    /// is not there, ask [`Controller::reset_ended`] which command to complete with success and
    /// [`nvme_wire::CrossControllerReset::DONE`].
    Reset {
        /// The controller.
        instance: ControllerInstance,
        /// The reset's id.
        id: ResetId,
    },
}

impl AdminReply {
    fn success(result: u64) -> Self {
        Self::Complete { status: Status::SUCCESS, result }
    }

    fn data(bytes: impl Into<Vec<u8>>) -> Self {
        Self::Data { bytes: bytes.into(), zeroes: 0 }
    }
}

/// An action of the driver for a controller, beyond answering commands.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ControllerEvent {
    /// Complete an Asynchronous Event Request, or another command that waits and is aborted.
    Async(AsyncCompletion),
    /// Close the connections of all I/O queues: the host disabled the controller.
    CloseIoQueues,
}

/// A controller.
#[derive(Debug)]
pub struct Controller {
    parameters: ControllerParameters,
    host_id: HostId,
    host_nqn: Nqn,
    cc: Cc,
    csts: Csts,
    features: Features,
    events: AsyncEvents,
    close_io_queues: bool,
    resets: Resets,
    /// True for each I/O queue that is connected; index 0 is queue 1.
    io_queues: Vec<bool>,
    error_log: VecDeque<ErrorLogEntry>,
    errors: u64,
    /// When the keep alive timer was last restarted, begun or ended.
    kept_alive: Instant,
    /// Any command restarts the timer: the host asked for none.
    any_command_keeps_alive: bool,
}

impl Controller {
    /// The controller that `request`, the Connect of an admin queue, creates.
    #[must_use]
    pub fn new(now: Instant, parameters: ControllerParameters, request: &ConnectRequest) -> Self {
        let kato_ms = match (parameters.kind, request.kato_ms) {
            (ControllerKind::Discovery, 0) => KATO_DEFAULT_MS,
            (_, asked) => asked,
        };
        Self {
            host_id: request.host_id,
            host_nqn: request.host_nqn,
            cc: Cc(0),
            csts: Csts(0),
            features: Features::new(kato_ms, parameters.volatile_write_cache),
            events: AsyncEvents::default(),
            close_io_queues: false,
            resets: Resets::default(),
            io_queues: vec![false; usize::from(parameters.limits.io_queues_max)],
            error_log: VecDeque::new(),
            errors: 0,
            kept_alive: now,
            any_command_keeps_alive: parameters.kind == ControllerKind::Discovery
                && request.kato_ms == 0,
            parameters,
        }
    }

    /// The answer to the Connect that created the controller.
    #[must_use]
    pub fn accept_admin(&self, request: &ConnectRequest) -> Negotiated {
        request.negotiated(self.parameters.instance.cntlid)
    }

    /// Adds an I/O queue. The driver has found this controller by the request's subsystem and
    /// CNTLID.
    pub fn connect_io(&mut self, request: &ConnectRequest) -> Result<Negotiated, ConnectRefusal> {
        let negotiated = self.accept_io(request)?;
        self.create_io(request.qid);
        Ok(negotiated)
    }

    /// Looks whether `request` may have an I/O queue, and leaves it free: of several that ask for it the
    /// driver decides which one has it, by [`Controller::create_io`].
    pub fn accept_io(&self, request: &ConnectRequest) -> Result<Negotiated, ConnectRefusal> {
        use fabrics::{Connect, ConnectData, ConnectInvalid};
        let in_data = |offset| ConnectRefusal::invalid(ConnectInvalid::data(offset));
        if request.subsystem != self.parameters.subsystem {
            return Err(in_data(ConnectData::OFFSET_SUBNQN));
        }
        if request.cntlid != self.parameters.instance.cntlid {
            return Err(in_data(ConnectData::OFFSET_CNTLID));
        }
        if request.host_nqn != self.host_nqn {
            return Err(in_data(ConnectData::OFFSET_HOSTNQN));
        }
        if !self.has_host_id(request) {
            return Err(in_data(ConnectData::OFFSET_HOSTID));
        }
        if !self.may_be_queue(request.qid) {
            return Err(ConnectRefusal::invalid(ConnectInvalid::command(Connect::OFFSET_QID)));
        }
        if !self.is_in_use() {
            return Err(ConnectRefusal::invalid(ConnectInvalid::command(Connect::OFFSET_QID)));
        }
        if self.io_queues[usize::from(request.qid) - 1] {
            let status = Status::COMMAND_SEQUENCE_ERROR.with_dnr();
            return Err(ConnectRefusal { status, result: 0 });
        }
        Ok(request.negotiated(self.parameters.instance.cntlid))
    }

    /// Makes I/O queue `qid`. `false`: it is there already, or may not be there.
    pub fn create_io(&mut self, qid: u16) -> bool {
        let may_be = self.may_be_queue(qid) && self.is_in_use();
        may_be && !core::mem::replace(&mut self.io_queues[usize::from(qid) - 1], true)
    }

    fn may_be_queue(&self, qid: u16) -> bool {
        let most = self.features.io_queues_granted().min(self.parameters.limits.io_queues_max);
        self.parameters.kind == ControllerKind::Io && (1..=most).contains(&qid)
    }

    /// Returns true if it is enabled and was not shut down since: a shutdown ends only with a
    /// reset.
    fn is_in_use(&self) -> bool {
        self.csts.rdy() && self.csts.shst() == Csts::SHST_NORMAL
    }

    /// Says that the connection of I/O queue `qid` has ended.
    pub fn disconnect_io(&mut self, qid: u16) {
        if let Some(index) = usize::from(qid).checked_sub(1)
            && let Some(is_connected) = self.io_queues.get_mut(index)
        {
            *is_connected = false;
        }
    }

    /// The properties that the controller reports.
    #[must_use]
    pub fn parameters(&self) -> &ControllerParameters {
        &self.parameters
    }

    /// Returns true if the queue that `request` asks for is one of this controller and its host.
    #[must_use]
    pub fn belongs_to(&self, request: &ConnectRequest) -> bool {
        request.subsystem == self.parameters.subsystem
            && request.host_nqn == self.host_nqn
            && self.has_host_id(request)
    }

    fn has_host_id(&self, request: &ConnectRequest) -> bool {
        request.host_id.is_zero() || request.host_id == self.host_id
    }

    /// The host that the controller belongs to.
    #[must_use]
    pub fn host_nqn(&self) -> &Nqn {
        &self.host_nqn
    }

    /// Returns true if the controller is enabled, that is ready for I/O commands.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.csts.rdy()
    }

    /// Number of connected I/O queues.
    #[must_use]
    pub fn io_queue_count(&self) -> usize {
        self.io_queues.iter().filter(|is_connected| **is_connected).count()
    }

    /// Returns true if a write may be acknowledged before it is durable: there is a volatile write
    /// cache, and the host has not switched it off.
    #[must_use]
    pub fn write_cache_enabled(&self) -> bool {
        self.parameters.volatile_write_cache && self.features.write_cache_enabled()
    }

    /// Answers a command of the admin queue. `data` is what the host sent with it.
    pub fn on_admin(
        &mut self,
        now: Instant,
        slot: SlotId,
        sqe: &Sqe,
        data: &[u8],
        backend: &dyn Backend,
    ) -> AdminReply {
        if self.any_command_keeps_alive {
            self.keep_alive(now);
        }
        let reply = self.dispatch(now, slot, sqe, data, backend);
        match reply {
            Ok(reply) => reply,
            Err(status) => {
                self.record_error(0, sqe, status, 0);
                AdminReply::Complete { status, result: 0 }
            }
        }
    }

    fn dispatch(
        &mut self,
        now: Instant,
        slot: SlotId,
        sqe: &Sqe,
        data: &[u8],
        backend: &dyn Backend,
    ) -> Result<AdminReply, Status> {
        if sqe.flags & FLAGS_WITHOUT_PSDT != 0 {
            return Err(Status::INVALID_FIELD.with_dnr());
        }
        self.start(now, backend);
        if sqe.opcode == fabrics::OPCODE {
            return self.on_fabrics(now, sqe, backend);
        }
        if !self.is_in_use() {
            return Err(Status::COMMAND_SEQUENCE_ERROR.with_dnr());
        }
        match AdminOpcode(sqe.opcode) {
            AdminOpcode::IDENTIFY => self.identify(sqe, backend),
            AdminOpcode::GET_LOG_PAGE => self.get_log_page(sqe, backend),
            AdminOpcode::GET_FEATURES => self.get_features(sqe, backend),
            AdminOpcode::SET_FEATURES => self.set_features(now, sqe, data),
            AdminOpcode::KEEP_ALIVE => {
                self.keep_alive(now);
                Ok(AdminReply::success(0))
            }
            AdminOpcode::ASYNC_EVENT_REQUEST => {
                self.events.request(slot, sqe.cid.get())?;
                Ok(AdminReply::Pending)
            }
            AdminOpcode::ABORT if self.parameters.kind == ControllerKind::Io => {
                let abort = Abort::decode(sqe);
                let was_aborted = abort.sqid == 0 && self.events.abort(abort.cid);
                let result = if was_aborted { 0 } else { Abort::NOT_ABORTED };
                Ok(AdminReply::success(u64::from(result)))
            }
            AdminOpcode::CROSS_CONTROLLER_RESET if self.parameters.kind == ControllerKind::Io => {
                self.cross_controller_reset(slot, sqe)
            }
            _ => Err(Status::INVALID_OPCODE.with_dnr()),
        }
    }

    fn on_fabrics(
        &mut self,
        now: Instant,
        sqe: &Sqe,
        backend: &dyn Backend,
    ) -> Result<AdminReply, Status> {
        match fabrics::fctype(sqe) {
            FabricsType::PROPERTY_GET => self.property_get(sqe),
            FabricsType::PROPERTY_SET => self.property_set(now, sqe, backend),
            FabricsType::DISCONNECT => Err(Status::DISCONNECT_INVALID_QUEUE_TYPE.with_dnr()),
            _ => Err(Status::INVALID_FIELD.with_dnr()),
        }
    }

    /// Adds an entry to the error log. For I/O commands the driver calls this where a host should
    /// find out more, such as a media error at `lba`.
    pub fn record_error(&mut self, qid: u16, sqe: &Sqe, status: Status, lba: u64) {
        self.errors += 1;
        self.error_log.truncate(ERROR_LOG_ENTRIES - 1);
        self.error_log.push_front(ErrorLogEntry {
            error_count: self.errors.into(),
            sqid: qid.into(),
            cid: sqe.cid,
            status: status.to_field().into(),
            parameter_error_location: 0xFFFF.into(),
            lba: lba.into(),
            nsid: sqe.nsid,
            trtype: nvme_wire::discovery::TRTYPE_TCP,
            opcode: sqe.opcode,
            version: 1,
            ..ErrorLogEntry::new_zeroed()
        });
    }

    /// Says that the namespace's size or another attribute changed.
    pub fn on_namespace_changed(&mut self) {
        self.events.namespace_changed();
    }

    /// Returns true if the host has enabled events for critical warnings: only then the warnings need
    /// be looked up.
    #[must_use]
    pub fn wants_warnings(&self) -> bool {
        self.events.wants_warnings()
    }

    /// Says what the critical warnings are now, as in [`Health::critical_warning`].
    pub fn on_warnings(&mut self, warnings: u8) {
        self.events.note_warnings(warnings);
    }

    /// Says that a command of another host concerned this one's registration or a reservation.
    pub fn on_reservation(&mut self, notice: NoticeKind) {
        self.events.reservation_noticed(notice, self.features.reservation_mask());
    }

    /// The host's identifier, by which reservations know it.
    #[must_use]
    pub fn host_id(&self) -> HostId {
        self.host_id
    }

    /// Says that the discovery log changed.
    pub fn on_discovery_changed(&mut self) {
        self.events.discovery_changed();
    }

    /// The driver's next action, if there is one. Ask after each command, before it is completed
    /// (an aborted command is completed before its aborting command), and after each change and
    /// timeout.
    pub fn poll_event(&mut self) -> Option<ControllerEvent> {
        if core::mem::take(&mut self.close_io_queues) {
            return Some(ControllerEvent::CloseIoQueues);
        }
        self.events.poll().map(ControllerEvent::Async)
    }

    /// When the keep alive timer expires, if the host asked for one; or, while that is not active, when the host has not
    /// enabled the controller for too long (CONTROLLER-2).
    #[must_use]
    pub fn next_timeout(&self) -> Option<Instant> {
        let kato = Duration::from_millis(u64::from(self.features.kato_ms()));
        let timeout = if self.is_in_use() { kato } else { kato.max(DISABLED_TIMEOUT) };
        (kato > Duration::ZERO).then(|| self.kept_alive + timeout)
    }

    /// Restarts the keep alive timer: the host is known to be there.
    pub fn keep_alive(&mut self, now: Instant) {
        self.kept_alive = now;
    }

    /// Returns true if the controller has ended because the host did not keep it alive: close all
    /// its connections (CONTROLLER-1).
    pub fn on_timeout(&mut self, now: Instant) -> bool {
        let is_over = self.next_timeout().is_some_and(|deadline| deadline <= now);
        if is_over {
            self.csts = Csts::new(false, true, self.csts.shst());
        }
        is_over
    }
}

#[cfg(test)]
mod tests;
