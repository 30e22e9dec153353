//! One connection of the target: PDUs in, commands carried out, PDUs out.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use auth::{Controller, Key, Outcome, Parties, Policy};
use checksum::crc32c;
use io_traits::{Clock, Entropy, SendBatch, Spawn, Stream};
use local_sync::Notify;
use nvme_wire::async_event::AsyncEvent;
use nvme_wire::auth::MESSAGE_LEN_MAX;
use nvme_wire::discovery::{DiscoveryLogEntry, DiscoveryLogHeader, SUBTYPE_NVM};
use nvme_wire::fabrics::{self, ConnectData, ConnectInvalid, ConnectResult, Property};
use nvme_wire::feature::Fid;
use nvme_wire::identify::{
    Cns, FLBAS_EXTENDED_LBA, Identify, IdentifyController, IdentifyNamespace, NSFEAT_ATOMICS,
    NamespaceIdList,
};
use nvme_wire::io::{BlockCommand, DatasetManagement, dsm_ranges};
use nvme_wire::log::{CrossControllerResetEntry, CrossControllerResetLog, GetLogPage, Lid};
use nvme_wire::pdu::{
    C2hData, CapsuleResp, CommonHeader, Digests, H2cData, IcReq, IcResp, PduFlags, PduType, R2t,
};
use nvme_wire::property::{Cap, Cc, Csts, offset};
use nvme_wire::{AdminOpcode, Cqe, CrossControllerReset, FabricsType, IoOpcode, Nqn, Sqe, Status};
use sim::SimStream;
use units::{BLOCK_SIZE, Duration};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::{Reset, Target, address};

/// In-capsule data of the I/O queues; larger writes are asked for by R2T.
const IN_CAPSULE: u32 = 8192;
/// Bytes that one R2T asks for.
const R2T_LEN: u32 = 12_288;
const MAXH2CDATA: u32 = 8192;
/// CNTLID of every controller; there is one at a time.
const CNTLID: u16 = 3;
/// Log2 of MDTS in pages.
const MDTS: u8 = 5;

/// A command whose data is being collected.
struct Incoming {
    sqe: Sqe,
    data: Vec<u8>,
    total: usize,
}

pub(super) struct Connection {
    target: Rc<Target>,
    stream: SimStream,
    digests: Cell<Digests>,
    qid: Cell<u16>,
    out: RefCell<Vec<u8>>,
    more: Notify,
    ended: Cell<bool>,
    enabled: Cell<bool>,
    /// The side of the controller in an authentication exchange, once the host has connected.
    controller: RefCell<Option<Controller>>,
    incoming: RefCell<BTreeMap<u16, Incoming>>,
}

impl Connection {
    pub(super) fn new(target: Rc<Target>, stream: SimStream) -> Rc<Self> {
        Rc::new(Self {
            target,
            stream,
            digests: Cell::default(),
            qid: Cell::new(0),
            out: RefCell::default(),
            more: Notify::new(),
            ended: Cell::new(false),
            enabled: Cell::new(false),
            controller: RefCell::default(),
            incoming: RefCell::default(),
        })
    }

    pub(super) async fn send(self: Rc<Self>) {
        loop {
            let more = self.more.notified();
            let bytes = std::mem::take(&mut *self.out.borrow_mut());
            if bytes.is_empty() {
                if self.ended.get() {
                    return;
                }
                more.await;
                continue;
            }
            let mut batch = SendBatch::new();
            batch.push_bytes(&bytes);
            if self.stream.send(batch).await.is_err() {
                return;
            }
        }
    }

    pub(super) async fn receive(self: Rc<Self>) {
        let mut bytes = Vec::new();
        while let Ok(chunk) = self.stream.recv().await {
            bytes.extend_from_slice(&chunk);
            while let Some(common) = CommonHeader::from_prefix(&bytes) {
                let plen = common.plen.get() as usize;
                if bytes.len() < plen {
                    break;
                }
                let pdu: Vec<u8> = bytes.drain(..plen).collect();
                self.on_pdu(&common, &pdu);
            }
        }
        self.ended.set(true);
        self.target.open.set(self.target.open.get() - 1);
        self.more.notify_all();
    }

    fn put(&self, header: &[u8], data: &[u8], damage: bool) {
        let digests = self.digests.get();
        let mut out = self.out.borrow_mut();
        out.extend_from_slice(header);
        if digests.header {
            out.extend_from_slice(&crc32c(header).to_le_bytes());
        }
        if !data.is_empty() {
            out.extend_from_slice(data);
            if digests.data {
                out.extend_from_slice(&(crc32c(data) ^ u32::from(damage)).to_le_bytes());
            }
        }
        self.more.notify_all();
    }

    fn on_pdu(self: &Rc<Self>, common: &CommonHeader, pdu: &[u8]) {
        if self.target.silent.get() {
            return;
        }
        let digests = self.digests.get();
        let layout = common.layout(digests, 4).expect("the client is honest");
        if layout.header_digest {
            let end = layout.header_len;
            assert_eq!(pdu[end..end + 4], crc32c(&pdu[..end]).to_le_bytes());
        }
        let data = &pdu[layout.data_offset..layout.data_offset + layout.data_len];
        if layout.data_digest {
            assert_eq!(pdu[pdu.len() - 4..], crc32c(data).to_le_bytes(), "data digest");
        }
        match layout.pdu_type {
            PduType::IcReq => {
                let request = IcReq::read_from_bytes(pdu).expect("128 bytes");
                assert_eq!(request.check(), Ok(()));
                let response = IcResp::new(request.digests(), MAXH2CDATA);
                self.put(response.as_bytes(), &[], false);
                self.digests.set(request.digests());
            }
            PduType::CapsuleCmd => {
                let sqe = Sqe::read_from_bytes(&pdu[8..72]).expect("64 bytes");
                self.on_capsule(sqe, data);
            }
            PduType::H2cData => {
                let h2c = H2cData::read_from_bytes(&pdu[..24]).expect("24 bytes");
                let cid = h2c.cccid.get();
                let mut incoming = self.incoming.borrow_mut();
                let command = incoming.get_mut(&cid).expect("asked for");
                assert_eq!(h2c.datao.get() as usize, command.data.len());
                assert!(data.len() <= MAXH2CDATA as usize);
                command.data.extend_from_slice(data);
                let whole = command.data.len() == command.total;
                drop(incoming);
                if layout.flags.contains(PduFlags::LAST_PDU) && !whole {
                    self.ask(cid);
                }
                if whole {
                    let command = self.incoming.borrow_mut().remove(&cid).expect("present");
                    self.start(command.sqe, command.data);
                }
            }
            PduType::H2cTermReq if self.target.repeats_connects.get() => {}
            other => panic!("{other:?} from the client"),
        }
    }

    fn ask(&self, cid: u16) {
        let incoming = self.incoming.borrow();
        let command = &incoming[&cid];
        let done = u32::try_from(command.data.len()).expect("short");
        let rest = u32::try_from(command.total).expect("short") - done;
        let r2t = R2t::new(cid, 7, (done, rest.min(R2T_LEN)), self.digests.get());
        self.put(r2t.as_bytes(), &[], false);
    }

    fn on_capsule(self: &Rc<Self>, sqe: Sqe, data: &[u8]) {
        let target = &self.target;
        if self.qid.get() != 0 && sqe.opcode != fabrics::OPCODE {
            match target.cut_after.get() {
                Some(0) => {
                    target.cut_after.set(None);
                    target.cut();
                    return;
                }
                Some(left) => target.cut_after.set(Some(left - 1)),
                None => {}
            }
            let lba = sqe.cdw10_11();
            target.log.borrow_mut().push((sqe.opcode, lba));
            if target.fatal.get() == Some(lba) {
                target.cut();
                return;
            }
            if target.deaf.get() == Some(lba) {
                return;
            }
        }
        let wants_data = sqe.dptr.identifier == 0x5A && sqe.opcode & 3 == 1;
        if wants_data && self.qid.get() != 0 {
            let total = sqe.dptr.length.get() as usize;
            assert!(total > IN_CAPSULE as usize, "small data goes in the capsule");
            let incoming = Incoming { sqe, data: Vec::new(), total };
            assert!(self.incoming.borrow_mut().insert(sqe.cid.get(), incoming).is_none());
            self.ask(sqe.cid.get());
        } else {
            self.start(sqe, data.to_vec());
        }
    }

    fn start(self: &Rc<Self>, sqe: Sqe, data: Vec<u8>) {
        if self.target.mute.get() {
            return;
        }
        if is_authentication(&sqe) {
            return self.authenticate(&sqe, &data);
        }
        let this = self.clone();
        self.target.world.spawn(async move {
            let world = this.target.world.clone();
            world.delay(Duration::from_micros(5), Duration::from_micros(300)).await;
            this.execute(&sqe, &data).await;
        });
    }

    fn respond(&self, sqe: &Sqe, status: Status, result: u64) {
        let cqe = Cqe::with_result(sqe.cid.get(), status, result);
        self.put(CapsuleResp::new(cqe, self.digests.get()).as_bytes(), &[], false);
    }

    fn respond_data(&self, sqe: &Sqe, data: &[u8]) {
        let target = &self.target;
        let left = if self.qid.get() == 0 { &target.damage_admin } else { &target.damage };
        let damage = left.get() > 0;
        left.set(left.get().saturating_sub(1));
        // In two PDUs where it is long enough.
        let middle = if data.len() > 8192 { data.len() / 8 * 4 } else { 0 };
        let success = target.success_flag.get();
        let last = PduFlags::LAST_PDU.union(PduFlags::SUCCESS.when(success));
        for (range, flags) in [(0..middle, PduFlags::default()), (middle..data.len(), last)] {
            if range.is_empty() {
                continue;
            }
            let run = (
                u32::try_from(range.start).expect("short"),
                u32::try_from(range.len()).expect("short"),
            );
            let header = C2hData::new(sqe.cid.get(), run, flags, self.digests.get(), 4);
            self.put(header.as_bytes(), &data[range], damage);
        }
        if !success {
            self.respond(sqe, Status::SUCCESS, 0);
        }
    }

    async fn execute(&self, sqe: &Sqe, data: &[u8]) {
        if let Some((count, status)) = self.target.fail_admin.get().filter(|_| self.qid.get() == 0)
        {
            self.target.fail_admin.set((count > 1).then_some((count - 1, status)));
            return self.respond(sqe, status, 0);
        }
        assert!(self.is_trusted(), "commands follow the authentication");
        if sqe.opcode == fabrics::OPCODE {
            return self.execute_fabrics(sqe, data);
        }
        assert!(self.enabled.get() || self.qid.get() != 0, "commands follow CC.EN");
        if self.qid.get() == 0 {
            return self.execute_admin(sqe).await;
        }
        if let Some((count, status)) = self.target.fail.get() {
            self.target.fail.set((count > 1).then_some((count - 1, status)));
            return self.respond(sqe, status, 0);
        }
        self.execute_io(sqe, data);
    }

    fn execute_io(&self, sqe: &Sqe, data: &[u8]) {
        let target = &self.target;
        let command = BlockCommand::decode(sqe);
        let opcode = IoOpcode(sqe.opcode);
        let has_range = !matches!(opcode, IoOpcode::FLUSH | IoOpcode::DATASET_MANAGEMENT);
        if has_range && command.checked_end().is_none_or(|end| end > target.size.get()) {
            return self.respond(sqe, Status::LBA_OUT_OF_RANGE.with_dnr(), 0);
        }
        let status = match opcode {
            IoOpcode::READ => return self.respond_data(sqe, &target.read(&command)),
            IoOpcode::WRITE => {
                assert_eq!(data.len(), command.nlb as usize * BLOCK_SIZE);
                target.write(&command, data);
                Status::SUCCESS
            }
            IoOpcode::COMPARE if target.read(&command) == data => Status::SUCCESS,
            IoOpcode::COMPARE => Status::COMPARE_FAILURE.with_dnr(),
            IoOpcode::WRITE_ZEROES => {
                for lba in (command.slba..).take(command.nlb as usize) {
                    target.blocks.borrow_mut().remove(&lba);
                }
                Status::SUCCESS
            }
            IoOpcode::DATASET_MANAGEMENT => {
                let dsm = DatasetManagement::decode(sqe);
                for range in dsm_ranges(data, dsm.nr).expect("all ranges") {
                    for lba in (range.slba.get()..).take(range.nlb.get() as usize) {
                        target.blocks.borrow_mut().remove(&lba);
                    }
                }
                Status::SUCCESS
            }
            IoOpcode::FLUSH | IoOpcode::VERIFY => Status::SUCCESS,
            _ => Status::INVALID_OPCODE.with_dnr(),
        };
        self.respond(sqe, status, 0);
    }

    fn execute_fabrics(&self, sqe: &Sqe, data: &[u8]) {
        match fabrics::fctype(sqe) {
            FabricsType::CONNECT => {
                let connect = fabrics::Connect::from(*sqe);
                let names = ConnectData::read_from_bytes(data).expect("1024 bytes");
                let subsystem = names.subsystem().expect("valid");
                if subsystem != self.target.nqn && subsystem != Nqn::DISCOVERY {
                    let invalid = ConnectInvalid::data(ConnectData::OFFSET_SUBNQN);
                    let status = Status::CONNECT_INVALID_PARAMETERS.with_dnr();
                    return self.respond(sqe, status, invalid.to_dw0().into());
                }
                self.qid.set(connect.qid.get());
                let mut result = ConnectResult::new(CNTLID);
                if self.target.secret.borrow().is_some() {
                    let parties = Parties { host: names.host_nqn().expect("valid"), subsystem };
                    let controller = Controller::new(parties, Policy::default());
                    *self.controller.borrow_mut() = Some(controller);
                    result = result.with_authentication();
                }
                self.respond(sqe, Status::SUCCESS, result.0.into());
                if self.qid.get() > 0 && self.target.repeats_connects.get() {
                    self.respond(sqe, Status::SUCCESS, result.0.into());
                }
            }
            FabricsType::PROPERTY_GET => {
                let value = match Property::from(*sqe).ofst.get() {
                    offset::CAP => Cap::new(128, 20, Cap::CQR | self.target.command_sets.get()).0,
                    offset::CSTS => Csts::new(self.enabled.get(), false, 0).0.into(),
                    _ => 0,
                };
                self.respond(sqe, Status::SUCCESS, value);
            }
            FabricsType::PROPERTY_SET => {
                let value = u32::try_from(Property::from(*sqe).value.get()).expect("32 bits");
                self.enabled.set(Cc(value).en());
                self.target.configurations.borrow_mut().push(Cc(value));
                self.respond(sqe, Status::SUCCESS, 0);
            }
            _ => self.respond(sqe, Status::INVALID_FIELD.with_dnr(), 0),
        }
    }

    /// Its commands are carried out in order, without delay.
    fn authenticate(&self, sqe: &Sqe, data: &[u8]) {
        let mut controller = self.controller.borrow_mut();
        let controller = controller.as_mut().expect("asked for");
        if fabrics::fctype(sqe) == FabricsType::AUTHENTICATION_SEND {
            let mut random = |bytes: &mut [u8]| self.target.world.fill_random(bytes);
            let mut keys = || -> Vec<Key> {
                let secret = self.target.secret.borrow().clone();
                secret.into_iter().map(|host| Key { host, controller: None }).collect()
            };
            if let Some(job) = controller.receive(data, &mut keys, &mut random) {
                controller.computed(job.run(), &mut keys);
            }
            self.respond(sqe, Status::SUCCESS, 0);
        } else {
            let mut message = controller.message(MESSAGE_LEN_MAX).expect("there is room");
            message.resize(MESSAGE_LEN_MAX, 0);
            self.respond_data(sqe, &message);
        }
    }

    fn is_trusted(&self) -> bool {
        let controller = self.controller.borrow();
        controller.as_ref().is_none_or(|it| it.outcome() == Outcome::Authenticated)
    }

    async fn execute_admin(&self, sqe: &Sqe) {
        let target = &self.target;
        match AdminOpcode(sqe.opcode) {
            AdminOpcode::IDENTIFY => self.respond_data(sqe, &self.identify(Identify::decode(sqe))),
            AdminOpcode::SET_FEATURES if sqe.cdw10.get() == u32::from(Fid::NUMBER_OF_QUEUES.0) => {
                self.respond(sqe, Status::SUCCESS, 0x0003_0003);
            }
            AdminOpcode::SET_FEATURES => self.respond(sqe, Status::SUCCESS, 0),
            AdminOpcode::KEEP_ALIVE => {
                target.keep_alives.set(target.keep_alives.get() + 1);
                self.respond(sqe, Status::SUCCESS, 0);
            }
            AdminOpcode::ASYNC_EVENT_REQUEST => {
                target.event_requests.set(target.event_requests.get() + 1);
                while !target.changed.get() && !target.restless.get() && !self.ended.get() {
                    target.events.notified().await;
                }
                let event = AsyncEvent::NAMESPACE_ATTRIBUTE_CHANGED;
                self.respond(sqe, Status::SUCCESS, event.encode().into());
            }
            AdminOpcode::GET_LOG_PAGE => {
                let page = GetLogPage::decode(sqe);
                let mut log = vec![0; 4096];
                if page.lid == Lid::CROSS_CONTROLLER_RESET {
                    let Some(bytes) = self.reset_log(page.lsp) else {
                        return self.respond(sqe, Status::INVALID_LOG_PAGE.with_dnr(), 0);
                    };
                    log = bytes;
                }
                if page.lid == Lid::CHANGED_NAMESPACES {
                    target.changed.set(false);
                } else if page.lid == Lid::DISCOVERY {
                    log = self.discovery_log();
                }
                let start = usize::try_from(page.offset).expect("short");
                let len = usize::try_from(page.len_bytes).expect("short");
                let mut piece: Vec<u8> = log.into_iter().skip(start).take(len).collect();
                piece.resize(len, 0);
                target.world.sleep_until(target.world.now() + target.log_pause.get()).await;
                self.respond_data(sqe, &piece);
            }
            AdminOpcode::CROSS_CONTROLLER_RESET => self.reset_other(sqe).await,
            _ => self.respond(sqe, Status::INVALID_OPCODE.with_dnr(), 0),
        }
    }

    fn discovery_log(&self) -> Vec<u8> {
        let target = &self.target;
        let (generation, step) = target.generation.get();
        target.generation.set((generation + step, step));
        let header = DiscoveryLogHeader::new(generation, target.records.get());
        let mut log = header.as_bytes().to_vec();
        for _ in 0..target.records.get().min(5) {
            let entry = DiscoveryLogEntry::tcp(SUBTYPE_NVM, &target.nqn, address());
            log.extend_from_slice(entry.as_bytes());
        }
        log
    }

    async fn reset_other(&self, sqe: &Sqe) {
        let (target, now) = (&self.target, self.target.world.now());
        target.resets.set(target.resets.get() + 1);
        match target.reset.get() {
            None => self.respond(sqe, Status::INVALID_OPCODE.with_dnr(), 0),
            Some(Reset::Held(duration)) => {
                target.world.sleep_until(now + duration).await;
                self.respond(sqe, Status::SUCCESS, CrossControllerReset::DONE.into());
            }
            Some(Reset::Logged(duration, _)) => {
                target.reset_over.set(now + duration);
                self.respond(sqe, Status::SUCCESS, 0);
            }
            Some(Reset::Unlogged) => self.respond(sqe, Status::SUCCESS, 0),
            Some(Reset::LogFull) => {
                self.respond(sqe, Status::CROSS_CONTROLLER_RESET_LOG_FULL, 0);
            }
        }
    }

    fn reset_log(&self, lsp: u8) -> Option<Vec<u8>> {
        let target = &self.target;
        target.reset_logs.set(target.reset_logs.get() + 1);
        let status = match target.reset.get()? {
            Reset::Logged(_, status) => status,
            Reset::LogFull => {
                if lsp == CrossControllerResetLog::LSP_REMOVE_COMPLETED {
                    target.reset.set(Some(Reset::Held(Duration::ZERO)));
                }
                return Some(CrossControllerResetLog::new_zeroed().as_bytes().to_vec());
            }
            Reset::Held(_) | Reset::Unlogged => return None,
        };
        let is_over = target.world.now() >= target.reset_over.get();
        let mut log = CrossControllerResetLog::new_zeroed();
        log.ne = 1.into();
        (log.entries[0].icid, log.entries[0].ciu) = (CNTLID.into(), 1);
        log.entries[0].ccrs = if is_over { status } else { CrossControllerResetEntry::IN_PROGRESS };
        Some(log.as_bytes().to_vec())
    }

    fn identify(&self, identify: Identify) -> Vec<u8> {
        match identify.cns {
            Cns::CONTROLLER => {
                let mut controller = IdentifyController::new_zeroed();
                controller.mdts = MDTS;
                controller.oaes = (1 << 8).into();
                controller.ioccsz = ((64 + IN_CAPSULE) / 16).into();
                controller.kas = 1.into();
                controller.cntlid = CNTLID.into();
                controller.ciu = 1;
                controller.ccrl = u8::from(self.target.reset.get().is_some());
                controller.as_bytes().to_vec()
            }
            Cns::ACTIVE_NAMESPACES => NamespaceIdList::new([1]).as_bytes().to_vec(),
            _ => {
                let mut namespace = IdentifyNamespace::new_zeroed();
                namespace.nsze = self.target.size.get().into();
                namespace.ncap = self.target.size.get().into();
                namespace.nsfeat = NSFEAT_ATOMICS;
                namespace.nawupf = self.target.nawupf.get().into();
                namespace.lbaf[0].lbads = self.target.lbads.get();
                namespace.lbaf[0].ms = self.target.metadata_bytes.get().into();
                namespace.flbas = FLBAS_EXTENDED_LBA;
                namespace.as_bytes().to_vec()
            }
        }
    }
}

fn is_authentication(sqe: &Sqe) -> bool {
    let types = [FabricsType::AUTHENTICATION_SEND, FabricsType::AUTHENTICATION_RECEIVE];
    sqe.opcode == fabrics::OPCODE && types.contains(&fabrics::fctype(sqe))
}
