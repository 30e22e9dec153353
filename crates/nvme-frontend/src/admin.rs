//! Connect and the admin queue.

use std::cell::OnceCell;
use std::rc::Rc;

use checksum::Crc32c;
use dataplane::{Export, Share, footprint};
use io_traits::{Buffer, BufferSlice, Device, World};
use nvme_target::connect::CNTLID_MAX;
use nvme_target::controller::Namespace;
use nvme_target::{
    AdminReply, Backend, ConnectRefusal, ConnectRequest, Controller, ControllerKind,
    ControllerParameters, DiscoveryLog, Health, Negotiated, SlotId,
};
use nvme_wire::log::FailureDomain;
use nvme_wire::opcode::DataDirection;
use nvme_wire::{ControllerInstance, Sqe, Status};
use reservation::{Command, Reservations};
use units::{BLOCK_SIZE, SectorSize};

use crate::admission::Subject;
use crate::association::Association;
use crate::authentication::QueueAuthentication;
use crate::connection::{Connection, IoQueue, Role};
use crate::frontend::NvmeCore;
use crate::incoming::Payload;

/// Bytes of zeroes that a thread keeps to pad log pages with.
const ZEROES_BYTES: usize = 64 << 10;

thread_local! {
    static ZEROES: BufferSlice = Buffer::zeroed(ZEROES_BYTES / BLOCK_SIZE).into_slice();
}

/// Logical blocks that are written all or none: what a transfer may carry, and the engine does more.
fn atomic_write_blocks(transfer_bytes_max: u32, sector: SectorSize) -> u32 {
    let blocks = u64::from(transfer_bytes_max) / BLOCK_SIZE as u64;
    let blocks = blocks.min(volume::WRITE_BLOCKS_MAX) * sector.per_block();
    u32::try_from(blocks).expect("a minimum of 32 bits")
}

/// The subject of admin commands: the volume and the host's view of the service.
struct Figures<'a, W: World, D: Device> {
    core: &'a NvmeCore<W, D>,
    association: &'a Association<W, D>,
    export: Option<&'a Export<W, D>>,
    has_settled: bool,
    /// Looked up when it is asked for, as the next one is made.
    domain: OnceCell<Option<Rc<FailureDomain>>>,
    log: OnceCell<Rc<DiscoveryLog>>,
}

impl<W: World, D: Device> Backend for Figures<'_, W, D> {
    fn namespace(&self) -> Namespace {
        let Some(export) = self.export else { return Namespace::default() };
        let volume = export.volume();
        let (metadata, sector) = (volume.metadata_size(), volume.sector_size());
        let [blocks, used_blocks] =
            [volume.blocks(), volume.mapped_blocks()].map(|count| count * sector.per_block());
        Namespace { blocks, used_blocks, sector, metadata, read_only: false }
    }

    fn health(&self) -> Health {
        self.export.map_or_else(Health::default, |export| self.core.health_of(export))
    }

    fn failure_domain(&self) -> Option<&FailureDomain> {
        let look_up = || self.export.and_then(|export| self.core.failure_domain(export));
        self.domain.get_or_init(look_up).as_deref()
    }

    fn reservations_persist(&self) -> bool {
        self.export.is_some_and(|it| it.with_reservations(Reservations::is_persistent))
    }

    fn has_settled(&self) -> bool {
        self.has_settled
    }

    fn discovery_log(&self) -> Option<&DiscoveryLog> {
        if !matches!(self.association.subject, Subject::Discovery) {
            return None;
        }
        Some(self.log.get_or_init(|| self.core.discovery_log(self.association)))
    }
}

impl<W: World, D: Device> Connection<W, D> {
    /// Runs an admin command, as soon as there is memory for what it may return.
    pub(crate) fn execute_admin(
        self: &Rc<Self>,
        slot: SlotId,
        association: &Rc<Association<W, D>>,
    ) {
        let sqe = self.command(slot);
        let payload = self.take_payload(slot);
        let returned = match DataDirection::of(sqe.opcode) {
            DataDirection::ToHost => sqe.dptr.length.get().min(self.transfer_bytes_max()),
            _ => 0,
        };
        let bytes = footprint(returned as usize);
        if returned == 0 {
            return self.run_admin(slot, &sqe, payload.as_ref(), None, association);
        }
        if let Some(share) = self.link.window().try_take(bytes) {
            return self.run_admin(slot, &sqe, payload.as_ref(), Some(share), association);
        }
        let (connection, association) = (self.clone(), association.clone());
        self.core.world().spawn(async move {
            if let Some(share) = connection.link.window().take(bytes).await {
                connection.run_admin(slot, &sqe, payload.as_ref(), Some(share), &association);
            }
        });
    }

    fn run_admin(
        self: &Rc<Self>,
        slot: SlotId,
        sqe: &Sqe,
        payload: Option<&Payload>,
        share: Option<Share>,
        association: &Rc<Association<W, D>>,
    ) {
        let data = payload.map_or(&[][..], Payload::as_bytes);
        let now = self.core.running_time();
        let export = association.subject.export().map(Rc::as_ref);
        let figures = Figures {
            core: &self.core,
            export,
            domain: OnceCell::new(),
            has_settled: self.core.has_settled(association),
            association,
            log: OnceCell::new(),
        };
        let reply = association.controller.borrow_mut().on_admin(now, slot, sqe, data, &figures);
        // What the command does to others comes before its own completion: an aborted command is
        // over when the Abort is, the queues are when a reset is.
        association.pump();
        match reply {
            AdminReply::Complete { status, result } => self.complete_command(slot, status, result),
            AdminReply::Data { bytes, zeroes } => self.return_data(slot, &bytes, zeroes, share),
            AdminReply::Pending => {}
            AdminReply::Persist(is_persistent) => match association.subject.export() {
                Some(export) => {
                    let command = Command::Persist(is_persistent);
                    self.change_reservations(slot, export, association, command);
                }
                None => self.complete_command(slot, Status::INVALID_FIELD.with_dnr(), 0),
            },
            AdminReply::Reset { instance, id } => self.reset_other(association, instance, id),
        }
    }

    /// Completes an admin command with `bytes`, followed by `zeroes` zeroes, of which there is only
    /// one block.
    pub(crate) fn return_data(
        &self,
        slot: SlotId,
        bytes: &[u8],
        zeroes: usize,
        share: Option<Share>,
    ) {
        let len_bytes = u32::try_from(bytes.len() + zeroes).expect("bounded by MDTS");
        let padding = || {
            let parts = (0..zeroes).step_by(ZEROES_BYTES);
            parts.map(|at| ZEROES.with(|all| all.slice(0..ZEROES_BYTES.min(zeroes - at))))
        };
        let digest = || {
            let mut crc = Crc32c::new();
            crc.update(bytes);
            padding().for_each(|zeroes| crc.update(zeroes.as_bytes()));
            crc.value()
        };
        self.reply(|transport, out| {
            transport.complete_with_data(slot, len_bytes, digest, out, |out| {
                out.data(Buffer::from_bytes(bytes).into_slice().slice(0..bytes.len()));
                padding().for_each(|zeroes| out.data(zeroes));
                share.into_iter().for_each(|share| out.hold(share));
            });
        });
    }

    fn transfer_bytes_max(&self) -> u32 {
        self.core.options().limits.transfer_bytes_max
    }

    pub(crate) fn execute_connect(self: &Rc<Self>, slot: SlotId) {
        let came = self.core.world().now();
        let payload = self.take_payload(slot);
        let data = payload.as_ref().map_or(&[][..], |payload| payload.as_bytes());
        let limits = &self.core.options().limits;
        let outcome = ConnectRequest::decode(&self.command(slot), data, limits)
            .and_then(|request| self.connect(&request));
        match outcome {
            Ok((negotiated, role)) => {
                *self.role.borrow_mut() = role;
                self.let_in_if_proven();
                self.log_connected();
                let accept = move |connection: &Rc<Self>| {
                    connection.reply(|transport, out| transport.accept(slot, &negotiated, out));
                };
                // The host may be a stranger, which has to authenticate for a volume that is not there, too
                // (NVME-AUTH-4).
                match self.unproven() {
                    Some(_) => self.answer_evenly(came, accept),
                    None => accept(self),
                }
            }
            Err(refusal) => {
                self.log_refused(&refusal);
                self.answer_evenly(came, move |connection| {
                    connection.complete_command(slot, refusal.status, refusal.result);
                });
            }
        }
    }

    fn connect(
        self: &Rc<Self>,
        request: &ConnectRequest,
    ) -> Result<(Negotiated, Role<W, D>), ConnectRefusal> {
        if request.qid == 0 {
            let association = self.core.new_association(self, request)?;
            let mut negotiated = association.controller.borrow().accept_admin(request);
            self.ask_to_authenticate(&association.subject, request, &mut negotiated);
            return Ok((negotiated, Role::Admin(association)));
        }
        // A source that failed has to wait here, too (NVME-AUTH-2): any number may ask for a queue that is
        // not made yet.
        if self.core.authenticates()
            && self.core.is_rate_limited(self.peer().ip(), request.subsystem)
        {
            return Err(ConnectRefusal::BUSY);
        }
        let association = self.core.association(request.cntlid);
        let association = association.filter(|association| self.may_join(association, request));
        let association = association.ok_or(ConnectRefusal::UNKNOWN_CONTROLLER)?;
        let at_once = !self.core.authenticates();
        let mut negotiated = association.join(self, request, at_once)?;
        let export = association.subject.export().cloned();
        let export = export.expect("only the controller of a volume is ever ready");
        self.ask_to_authenticate(&association.subject, request, &mut negotiated);
        let sector = export.with_volume(volume::Volume::sector_size);
        let queue = IoQueue { association, export, sector, qid: request.qid };
        Ok((negotiated, Role::Io(Rc::new(queue))))
    }
}

impl<W: World, D: Device> Connection<W, D> {
    /// Returns true if the queue that `request` asks for may be one of `association`. Where hosts have to
    /// authenticate, a stranger does not learn which part of its guess was wrong (NVME-AUTH-4).
    fn may_join(&self, association: &Association<W, D>, request: &ConnectRequest) -> bool {
        let is_guess =
            self.core.authenticates() && !association.controller.borrow().belongs_to(request);
        match &association.subject {
            Subject::Discovery => false,
            Subject::Volume(export) => !is_guess && self.qualifies(export, &request.host_nqn),
            Subject::Nothing(_) => !is_guess,
        }
    }

    /// Tells the host to authenticate if that is wanted.
    fn ask_to_authenticate(
        &self,
        subject: &Subject<W, D>,
        request: &ConnectRequest,
        negotiated: &mut Negotiated,
    ) {
        if let Some(required) = QueueAuthentication::required(&self.core, subject, request) {
            negotiated.result = negotiated.result.with_authentication();
            assert!(self.authentication.set(required).is_ok(), "a connection becomes a queue once");
        }
    }
}

impl<W: World, D: Device> NvmeCore<W, D> {
    /// Makes the controller that a Connect of an admin queue asks for.
    pub(crate) fn new_association(
        &self,
        admin: &Rc<Connection<W, D>>,
        request: &ConnectRequest,
    ) -> Result<Rc<Association<W, D>>, ConnectRefusal> {
        let subject = self.subject_for(admin, request)?;
        self.add_association(|cntlid| {
            if cntlid > CNTLID_MAX {
                return Err(ConnectRefusal::BUSY);
            }
            let parameters = self.parameters(self.new_instance(cntlid), &subject, request);
            let controller = Controller::new(self.running_time(), parameters, request);
            Ok(Association::new(controller, subject, admin))
        })
    }

    fn new_instance(&self, cntlid: u16) -> ControllerInstance {
        let mut cirn = [0; 8];
        self.world().fill_random(&mut cirn);
        ControllerInstance { cntlid, ciu: self.next_uniquifier(), cirn: u64::from_le_bytes(cirn) }
    }

    fn parameters(
        &self,
        instance: ControllerInstance,
        subject: &Subject<W, D>,
        request: &ConnectRequest,
    ) -> ControllerParameters {
        let options = self.options();
        let export = subject.export();
        let sector = export.map(|export| export.with_volume(volume::Volume::sector_size));
        let uuid = export.map_or([0; 16], |export| export.volume().uuid().into_bytes());
        let kind = match subject {
            Subject::Discovery => ControllerKind::Discovery,
            Subject::Volume(_) | Subject::Nothing(_) => ControllerKind::Io,
        };
        // A serial number has 20 characters, half a UUID 16.
        let serial: String = uuid[..8].iter().map(|byte| format!("{byte:02x}")).collect();
        ControllerParameters {
            kind,
            instance,
            subsystem: request.subsystem,
            serial,
            model: options.model.clone(),
            firmware: options.firmware.clone(),
            limits: options.limits,
            volatile_write_cache: false,
            atomic_write_blocks: atomic_write_blocks(
                options.limits.transfer_bytes_max,
                sector.unwrap_or_default(),
            ),
            uuid,
        }
    }
}
