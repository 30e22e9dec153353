use alloc::rc::Rc;
use nvme_wire::async_event::AsyncEvent;
use nvme_wire::discovery::{DiscoveryLogEntry, DiscoveryLogHeader, SUBTYPE_NVM};
use nvme_wire::fabrics::{Connect, ConnectData, Property, PropertySize};
use nvme_wire::feature::{Fid, GetFeatures, NumberOfQueues, Select, SetFeatures};
use nvme_wire::identify::{
    Cns, Identify, IdentifyController, IdentifyNamespace, NamespaceDescriptor, NamespaceIdList,
    NvmCommandSetController, descriptors,
};
use nvme_wire::log::{
    CRITICAL_READ_ONLY, CRITICAL_RELIABILITY, CRITICAL_SPARE, CRITICAL_TEMPERATURE,
    ChangedNamespaces, CommandEffects, FailureDomain, GetLogPage, Lid, SmartHealth,
};
use nvme_wire::property::{Cap, Version, offset};
use nvme_wire::sqe::NSID_ALL;
use nvme_wire::{IoOpcode, SglDescriptor};
use zerocopy::{FromBytes, IntoBytes};

use super::*;

mod cross_controller_reset;
mod disabling;
mod events;
mod features;
mod pages;

const NOW: Instant = Instant(1_000_000_000);
const INSTANCE: ControllerInstance = ControllerInstance { cntlid: 7, ciu: 2, cirn: 0xABCD };
const UUID: [u8; 16] = *b"\x01\x02\x03\x04\x05\x06\x47\x08\x89\x0a\x0b\x0c\x0d\x0e\x0f\x10";

struct Facts {
    namespace: Namespace,
    health: Health,
    domain: Option<FailureDomain>,
    log: DiscoveryLog,
    has_settled: bool,
}

impl Backend for Facts {
    fn namespace(&self) -> Namespace {
        self.namespace
    }

    fn health(&self) -> Health {
        self.health
    }

    fn failure_domain(&self) -> Option<&FailureDomain> {
        self.domain.as_ref()
    }

    fn has_settled(&self) -> bool {
        self.has_settled
    }

    fn discovery_log(&self) -> Option<&DiscoveryLog> {
        Some(&self.log)
    }
}

fn facts() -> Facts {
    let namespace = Namespace { blocks: 2560, used_blocks: 17, ..Namespace::default() };
    let health = Health { bytes_written: 512_001, unsafe_shutdowns: 3, ..Health::default() };
    Facts { namespace, health, domain: None, log: DiscoveryLog::default(), has_settled: true }
}

fn request(kind: ControllerKind, qid: u16, kato_ms: u32) -> ConnectRequest {
    let host = Nqn::new("nqn.2014-08.org.example:host").expect("a name");
    let subsystem = subsystem(kind);
    let cntlid = if qid == 0 { 0xFFFF } else { 7 };
    let data = ConnectData::new(HostId([3; 16]), &host, &subsystem, cntlid);
    let sqe = Sqe::from(Connect::new(qid, 32, kato_ms));
    ConnectRequest::decode(&sqe, data.as_bytes(), &Limits::default()).expect("well formed")
}

fn subsystem(kind: ControllerKind) -> Nqn {
    match kind {
        ControllerKind::Io => Nqn::from_uuid(&UUID),
        ControllerKind::Discovery => Nqn::DISCOVERY,
    }
}

struct Harness {
    controller: Controller,
    facts: Facts,
}

impl Harness {
    fn disabled(kind: ControllerKind, volatile_write_cache: bool) -> Self {
        let parameters = ControllerParameters {
            kind,
            instance: INSTANCE,
            subsystem: subsystem(kind),
            serial: "S1".into(),
            model: "farflash dVol".into(),
            firmware: "0.1.0".into(),
            limits: Limits::default(),
            volatile_write_cache,
            atomic_write_blocks: 256,
            uuid: UUID,
        };
        let controller = Controller::new(NOW, parameters, &request(kind, 0, 5000));
        Self { controller, facts: facts() }
    }

    fn enabled(kind: ControllerKind) -> Self {
        let mut harness = Self::disabled(kind, false);
        harness.enable();
        harness
    }

    fn io() -> Self {
        Self::enabled(ControllerKind::Io)
    }

    fn enable(&mut self) {
        assert_eq!(self.set_cc(Cc::enabled(Cc::CSS_NVM)), Ok(0));
    }

    fn set_cc(&mut self, cc: Cc) -> Result<u64, Status> {
        let set = Property::set(offset::CC, PropertySize::Four, u64::from(cc.0));
        self.value(&Sqe::from(set))
    }

    fn cc(&mut self) -> Cc {
        let get = Property::get(offset::CC, PropertySize::Four);
        Cc(u32::try_from(self.value(&Sqe::from(get)).expect("a property")).expect("32 bits"))
    }

    fn csts(&mut self) -> Csts {
        let get = Property::get(offset::CSTS, PropertySize::Four);
        Csts(u32::try_from(self.value(&Sqe::from(get)).expect("a property")).expect("32 bits"))
    }

    fn run_with(&mut self, sqe: &Sqe, data: &[u8]) -> AdminReply {
        self.controller.on_admin(NOW, SlotId(0), sqe, data, &self.facts)
    }

    /// The completion's result, or its status without DNR, which it must have.
    fn value(&mut self, sqe: &Sqe) -> Result<u64, Status> {
        match self.run_with(sqe, &[]) {
            AdminReply::Complete { status, result } if status.is_success() => Ok(result),
            AdminReply::Complete { status, .. } => {
                assert!(status.dnr(), "{status}");
                Err(status.code())
            }
            reply => panic!("no data expected: {reply:?}"),
        }
    }

    fn data(&mut self, sqe: &Sqe) -> Vec<u8> {
        match self.run_with(sqe, &[]) {
            AdminReply::Data { mut bytes, zeroes } => {
                bytes.resize(bytes.len() + zeroes, 0);
                bytes
            }
            reply => panic!("data expected: {reply:?}"),
        }
    }

    fn identify(&mut self, cns: Cns, nsid: u32) -> Vec<u8> {
        let bytes = self.data(&Identify::new(cns, nsid).encode());
        assert_eq!(bytes.len(), 4096);
        bytes
    }

    fn identify_status(&mut self, cns: Cns, nsid: u32) -> Status {
        self.value(&Identify::new(cns, nsid).encode()).expect_err("refused")
    }

    fn log(&mut self, lid: Lid, offset: u64, len: u64) -> Vec<u8> {
        let bytes = self.data(&GetLogPage::new(lid, NSID_ALL, offset, len).encode());
        assert_eq!(bytes.len() as u64, len);
        bytes
    }

    fn set(&mut self, fid: Fid, value: u32) -> Result<u64, Status> {
        self.value(&SetFeatures { fid, save: false, value, nsid: 0 }.encode())
    }

    fn get(&mut self, fid: Fid, select: Select) -> Result<u64, Status> {
        self.value(&GetFeatures { fid, select, parameter: 0, nsid: 0 }.encode())
    }

    fn wait_for_event(&mut self, slot: u16) -> AdminReply {
        let mut sqe = Sqe::new(AdminOpcode::ASYNC_EVENT_REQUEST.0, 0);
        sqe.cid = (0x100 + slot).into();
        self.controller.on_admin(NOW, SlotId(slot), &sqe, &[], &self.facts)
    }

    fn event(&mut self) -> Option<(SlotId, Status, u64)> {
        match self.controller.poll_event()? {
            ControllerEvent::Async(done) => Some((done.slot, done.status, done.result)),
            ControllerEvent::CloseIoQueues => panic!("an event expected"),
        }
    }
}

#[test]
fn properties_are_what_a_host_needs_to_enable_the_controller() {
    let mut harness = Harness::disabled(ControllerKind::Io, false);
    let get = |ofst, size| Sqe::from(Property::get(ofst, size));
    let cap = Cap(harness.value(&get(offset::CAP, PropertySize::Eight)).expect("CAP"));
    assert_eq!((cap.queue_entries_max(), cap.css(), cap.page_size_min()), (128, 1, 4096));
    let version = harness.value(&get(offset::VS, PropertySize::Four));
    assert_eq!(version, Ok(u64::from(Version::new(2, 0, 0).0)));
    assert_eq!(harness.value(&get(offset::NSSR, PropertySize::Four)), Ok(0));
    for (ofst, size) in [
        (offset::CAP, PropertySize::Four),
        (offset::VS, PropertySize::Eight),
        (0x0C, PropertySize::Four),
        (0x1000, PropertySize::Four),
    ] {
        assert_eq!(harness.value(&get(ofst, size)), Err(Status::INVALID_FIELD), "{ofst:#x}");
    }
    let set = Sqe::from(Property::set(offset::CSTS, PropertySize::Four, 1));
    assert_eq!(harness.value(&set), Err(Status::INVALID_FIELD));

    assert!(!harness.csts().rdy());
    harness.enable();
    assert!(harness.csts().rdy());
}

#[test]
fn a_configuration_that_cannot_be_is_a_fatal_status() {
    for wrong in [0x0046_0081, 0x0046_0801, 0x0046_0061, 0x0046_0071, 0x0045_0001, 0x0036_0001] {
        let mut harness = Harness::disabled(ControllerKind::Io, false);
        assert_eq!(harness.set_cc(Cc(wrong)), Ok(0));
        let csts = harness.csts();
        assert!(csts.cfs() && !csts.rdy(), "{wrong:#x}");
    }
}

#[test]
fn shutdown_and_reset_end_the_io_queues() {
    let mut harness = Harness::io();
    let enabled = Cc::enabled(Cc::CSS_NVM);
    assert_eq!(harness.set_cc(enabled.with_shn(Cc::SHN_NORMAL)), Ok(0));
    assert_eq!(harness.csts().shst(), Csts::SHST_COMPLETE);
    assert_eq!(harness.controller.poll_event(), Some(ControllerEvent::CloseIoQueues));
    assert_eq!(harness.controller.poll_event(), None);
    let queue = request(ControllerKind::Io, 1, 0);
    let refusal = harness.controller.connect_io(&queue).expect_err("it is shut down");
    assert_eq!(refusal.status, Status::CONNECT_INVALID_PARAMETERS.with_dnr());
    assert!(!harness.controller.create_io(1), "nor does who asked before have it");
    assert_eq!(harness.set_cc(Cc(enabled.0 & !1)), Ok(0));
    assert_eq!(harness.csts(), Csts(0));
    assert_eq!(harness.controller.poll_event(), Some(ControllerEvent::CloseIoQueues));
    harness.enable();
    assert_eq!(harness.csts(), Csts::new(true, false, Csts::SHST_NORMAL));
    assert!(harness.controller.connect_io(&queue).is_ok());
}

/// Connections take their time to end, and hosts do not wait for it.
#[test]
fn a_reset_frees_the_queue_numbers_at_once() {
    let mut harness = Harness::io();
    let queue = request(ControllerKind::Io, 1, 0);
    assert!(harness.controller.connect_io(&queue).is_ok());
    assert_eq!(harness.set_cc(Cc(0)), Ok(0));
    harness.enable();
    assert_eq!(harness.controller.io_queue_count(), 0);
    assert!(harness.controller.connect_io(&queue).is_ok());
}

#[test]
fn a_discovery_controller_has_a_keep_alive_timer_even_if_its_host_wants_none() {
    for (kind, timeout) in [
        (ControllerKind::Discovery, Some(NOW + Duration::from_secs(120))),
        (ControllerKind::Io, None),
    ] {
        let parameters = Harness::disabled(kind, false).controller.parameters;
        let controller = Controller::new(NOW, parameters, &request(kind, 0, 0));
        assert_eq!(controller.next_timeout(), timeout);
    }
}

/// A host that asked for no timer sends no Keep Alive: that it asks for anything says that it is there.
#[test]
fn any_command_keeps_a_discovery_controller_without_a_timer_of_its_hosts() {
    let period = Duration::from_secs(119);
    for (kato_ms, lives) in [(0, true), (120_000, false)] {
        let mut harness = Harness::disabled(ControllerKind::Discovery, false);
        let parameters = harness.controller.parameters.clone();
        let asked = request(ControllerKind::Discovery, 0, kato_ms);
        harness.controller = Controller::new(NOW, parameters, &asked);
        harness.enable();
        let read = GetLogPage::new(Lid::DISCOVERY, 0, 0, 1024).encode();
        let mut now = NOW;
        let is_over = (0..10).any(|_| {
            now = now + period;
            let is_over = harness.controller.on_timeout(now);
            harness.controller.on_admin(now, SlotId(0), &read, &[], &harness.facts);
            is_over
        });
        assert_eq!(is_over, !lives, "{kato_ms}");
        assert!(harness.controller.on_timeout(now + Duration::from_secs(120)), "silent");
    }
    let mut harness = Harness::disabled(ControllerKind::Discovery, false);
    let parameters = harness.controller.parameters.clone();
    let asked = request(ControllerKind::Discovery, 0, 0);
    harness.controller = Controller::new(NOW, parameters, &asked);
    harness.enable();
    assert_eq!(harness.set(Fid::KEEP_ALIVE_TIMER, 5000), Ok(0));
    let read = GetLogPage::new(Lid::DISCOVERY, 0, 0, 1024).encode();
    let later = NOW + Duration::from_secs(4);
    harness.controller.on_admin(later, SlotId(0), &read, &[], &harness.facts);
    assert!(harness.controller.on_timeout(NOW + Duration::from_secs(5)), "it asked for one");
}

#[test]
fn reserved_flags_are_refused() {
    for flag in [1, 2, 4, 8, 0x10, 0x20] {
        let mut harness = Harness::io();
        let get = Property::get(offset::CSTS, PropertySize::Four);
        let sqe = Sqe { flags: 0x40 | flag, ..Sqe::from(get) };
        assert_eq!(harness.value(&sqe), Err(Status::INVALID_FIELD), "Fabrics {flag:#x}");
        let sqe = Sqe { flags: 0x40 | flag, ..Sqe::new(AdminOpcode::KEEP_ALIVE.0, 0) };
        assert_eq!(harness.value(&sqe), Err(Status::INVALID_FIELD), "admin {flag:#x}");
    }
}

/// The part of a request beyond the end of a page takes no memory.
#[test]
fn padding_of_log_pages_is_not_made() {
    let mut harness = Harness::io();
    let sqe = GetLogPage::new(Lid::ERROR, NSID_ALL, 0, 1 << 20).encode();
    match harness.run_with(&sqe, &[]) {
        AdminReply::Data { bytes, zeroes } => {
            assert_eq!((bytes.len(), bytes.len() + zeroes), (4096, 1 << 20));
        }
        reply => panic!("data expected: {reply:?}"),
    }
    let sqe = GetLogPage::new(Lid::HEALTH, NSID_ALL, 500, 8192).encode();
    match harness.run_with(&sqe, &[]) {
        AdminReply::Data { bytes, zeroes } => assert_eq!((bytes.len(), zeroes), (12, 8180)),
        reply => panic!("data expected: {reply:?}"),
    }
}

#[test]
fn a_read_of_the_changed_namespaces_that_fails_changes_nothing() {
    let mut harness = Harness::io();
    harness.controller.on_namespace_changed();
    let sqe = GetLogPage::new(Lid::CHANGED_NAMESPACES, NSID_ALL, 4096, 4096).encode();
    assert_eq!(harness.value(&sqe), Err(Status::INVALID_FIELD));
    let list = harness.log(Lid::CHANGED_NAMESPACES, 0, 4096);
    assert_eq!(list[..4], [1, 0, 0, 0], "still listed");
}

#[test]
fn nothing_but_properties_is_answered_before_it_is_enabled() {
    let mut harness = Harness::disabled(ControllerKind::Io, false);
    let status = harness.identify_status(Cns::CONTROLLER, 0);
    assert_eq!(status, Status::COMMAND_SEQUENCE_ERROR);
}

#[test]
fn io_queues_join_their_own_controller_once() {
    let mut harness = Harness::io();
    let good = request(ControllerKind::Io, 1, 0);
    let refused = |harness: &mut Harness, request: &ConnectRequest| {
        let refusal = harness.controller.connect_io(request).expect_err("refused");
        (refusal.status.code(), refusal.result)
    };
    let invalid = Status::CONNECT_INVALID_PARAMETERS;
    let other_host = ConnectRequest { host_nqn: Nqn::DISCOVERY, ..good.clone() };
    assert_eq!(refused(&mut harness, &other_host), (invalid, 0x1_0200));
    let other_id = ConnectRequest { host_id: HostId([4; 16]), ..good.clone() };
    assert_eq!(refused(&mut harness, &other_id), (invalid, 0x1_0000));
    let no_id = ConnectRequest { host_id: HostId([0; 16]), ..good.clone() };
    assert!(harness.controller.accept_io(&no_id).is_ok(), "then it is not looked at");
    assert!(harness.controller.belongs_to(&no_id) && !harness.controller.belongs_to(&other_id));
    let other_cntlid = ConnectRequest { cntlid: 8, ..good.clone() };
    assert_eq!(refused(&mut harness, &other_cntlid), (invalid, 0x1_0010));
    let other_subsystem = ConnectRequest { subsystem: Nqn::DISCOVERY, ..good.clone() };
    assert_eq!(refused(&mut harness, &other_subsystem), (invalid, 0x1_0100));

    let negotiated = harness.controller.connect_io(&good).expect("free");
    assert_eq!((negotiated.qid, negotiated.entries, negotiated.result.cntlid()), (1, 32, 7));
    assert_eq!(refused(&mut harness, &good), (Status::COMMAND_SEQUENCE_ERROR, 0));
    harness.controller.disconnect_io(1);
    assert!(harness.controller.connect_io(&good).is_ok(), "the queue is free again");

    harness.controller.disconnect_io(1);
    let three = NumberOfQueues { submission: 3, completion: 5 };
    assert!(harness.set(Fid::NUMBER_OF_QUEUES, three.encode()).is_ok());
    let fourth = ConnectRequest { qid: 4, ..good.clone() };
    assert_eq!(refused(&mut harness, &fourth), (invalid, 42), "three were granted");
    assert!(harness.controller.connect_io(&ConnectRequest { qid: 3, ..good.clone() }).is_ok());

    let mut disabled = Harness::disabled(ControllerKind::Io, false);
    assert_eq!(refused(&mut disabled, &good), (invalid, 42));
    let mut discovery = Harness::enabled(ControllerKind::Discovery);
    let io = request(ControllerKind::Discovery, 1, 0);
    assert_eq!(refused(&mut discovery, &io), (invalid, 42));
}

#[test]
fn identify_controller_says_what_is_true() {
    let mut harness = Harness::io();
    let bytes = harness.identify(Cns::CONTROLLER, 0);
    let identify = IdentifyController::read_from_bytes(&bytes).expect("4096 bytes");
    assert_eq!(&identify.sn[..4], b"S1  ");
    assert_eq!((identify.mdts, identify.cntlid.get(), identify.cntrltype), (8, 7, 1));
    assert_eq!(identify.transfer_bytes_max(4096), Some(1 << 20));
    assert_eq!(identify.in_capsule_bytes_max(), 16 << 10);
    assert_eq!((identify.iorcsz.get(), identify.icdoff.get(), identify.msdbd), (1, 0, 1));
    let atomic = [identify.awun, identify.awupf, identify.acwu].map(|unit| unit.get());
    assert_eq!(atomic, [255; 3], "0's based; a fused operation may be as large as a write");
    assert_eq!((identify.nn.get(), identify.mnan.get(), identify.maxcmd.get()), (1, 1, 128));
    assert_eq!((identify.sqes, identify.cqes), (0x66, 0x44));
    assert_ne!(identify.kas.get(), 0, "the Linux host insists on keep alive");
    assert_eq!(identify.sgls.get() & 3, 1, "and on SGLs");
    assert_eq!(identify.sgls.get() >> 20, 0b10, "transport descriptors, no in-capsule offsets");
    assert_eq!(identify.oncs.get(), 0xBD);
    assert_eq!((identify.lpa, identify.elpe), (0b111, 63));
    assert_eq!((identify.fuses.get(), identify.vwc), (1, 6));
    assert_eq!(identify.subsystem(), Ok(Nqn::from_uuid(&UUID)));

    let mut cached = Harness::disabled(ControllerKind::Io, true);
    cached.enable();
    let bytes = cached.identify(Cns::CONTROLLER, 0);
    assert_eq!(IdentifyController::read_from_bytes(&bytes).expect("4096 bytes").vwc, 7);

    let mut discovery = Harness::enabled(ControllerKind::Discovery);
    let bytes = discovery.identify(Cns::CONTROLLER, 0);
    let identify = IdentifyController::read_from_bytes(&bytes).expect("4096 bytes");
    assert_eq!((identify.cntrltype, identify.oaes.get()), (2, 1 << 31));
    assert_eq!(identify.elpe, 0, "it has no error log");
    assert_eq!(discovery.identify_status(Cns::NAMESPACE, 1), Status::INVALID_FIELD);
}

#[test]
fn identify_namespace_says_what_is_true() {
    let mut harness = Harness::io();
    let bytes = harness.identify(Cns::NAMESPACE, 1);
    let identify = IdentifyNamespace::read_from_bytes(&bytes).expect("4096 bytes");
    let sizes = (identify.nsze.get(), identify.ncap.get(), identify.nuse.get());
    assert_eq!(sizes, (2560, 2560, 17));
    assert_eq!((identify.nsfeat, identify.nmic, identify.dlfeat), (3, 1, 9));
    assert_eq!((identify.block_bytes(), identify.atomic_write_blocks(0)), (Some(4096), 256));
    let atomic = [identify.nawun, identify.nawupf, identify.nacwu].map(|unit| unit.get());
    assert_eq!(atomic, [255; 3]);
    let boundaries = [identify.nabsn, identify.nabspf, identify.nabo].map(|unit| unit.get());
    assert_eq!(boundaries, [0; 3], "none: wherever it begins");
    assert_eq!((identify.nguid, identify.nvmcap.get()), (UUID, 10 << 20));
    for nsid in [0, 2, NSID_ALL] {
        let status = harness.identify_status(Cns::NAMESPACE, nsid);
        assert_eq!(status, Status::INVALID_NAMESPACE_OR_FORMAT);
    }
}

#[test]
fn namespace_lists_and_descriptors_name_the_namespace() {
    let mut harness = Harness::io();
    let list = |bytes: &[u8]| -> Vec<u32> {
        NamespaceIdList::read_from_bytes(bytes).expect("4096 bytes").iter().collect()
    };
    assert_eq!(list(&harness.identify(Cns::ACTIVE_NAMESPACES, 0)), [1]);
    assert_eq!(list(&harness.identify(Cns::CSI_ACTIVE_NAMESPACES, 0)), [1]);
    assert_eq!(list(&harness.identify(Cns::ACTIVE_NAMESPACES, 1)), []);
    for nsid in [NSID_ALL - 1, NSID_ALL] {
        let status = harness.identify_status(Cns::ACTIVE_NAMESPACES, nsid);
        assert_eq!(status, Status::INVALID_NAMESPACE_OR_FORMAT);
    }
    let bytes = harness.identify(Cns::NAMESPACE_DESCRIPTORS, 1);
    let expected = [
        NamespaceDescriptor::Nguid(UUID),
        NamespaceDescriptor::Uuid(UUID),
        NamespaceDescriptor::Csi(0),
    ];
    assert!(descriptors(&bytes).eq(expected));
}

#[test]
fn other_identify_structures_are_there_or_refused() {
    let mut harness = Harness::io();
    assert_eq!(harness.identify(Cns::CSI_NAMESPACE, 1), vec![0; 4096]);
    let bytes = harness.identify(Cns::CSI_CONTROLLER, 0);
    let limits = NvmCommandSetController::read_from_bytes(&bytes).expect("4096 bytes");
    assert_eq!((limits.vsl, limits.wzsl), (8, 16), "1 MiB, 256 MiB");
    assert_eq!(harness.identify(Cns::INDEPENDENT_NAMESPACE, 1)[14], 1, "ready");
    for cns in [0x04, 0x09, 0x10, 0x13, 0x7F, 0xFF] {
        assert_eq!(harness.identify_status(Cns(cns), 1), Status::INVALID_FIELD, "{cns:#x}");
    }
    let zoned = Identify { csi: 2, ..Identify::new(Cns::CSI_NAMESPACE, 1) };
    assert_eq!(harness.value(&zoned.encode()), Err(Status::INVALID_FIELD));
    let short =
        Sqe { dptr: SglDescriptor::transport(4092), ..Identify::new(Cns::CONTROLLER, 0).encode() };
    assert_eq!(harness.value(&short), Err(Status::DATA_SGL_LENGTH_INVALID));
}

#[test]
fn log_pages_can_be_read_whole_and_in_parts() {
    let mut harness = Harness::io();
    let health = harness.log(Lid::HEALTH, 0, 512);
    let smart = SmartHealth::read_from_bytes(&health).expect("512 bytes");
    assert_eq!((smart.data_units_written.get(), smart.unsafe_shutdowns.get()), (2, 3));
    assert_eq!(harness.log(Lid::HEALTH, 48, 16), health[48..64]);
    assert_eq!(&harness.log(Lid::FIRMWARE_SLOT, 0, 512)[..16], b"\x01\0\0\0\0\0\0\x000.1.0   ");
    let effects = harness.log(Lid::COMMAND_EFFECTS, 0, 4096);
    let effects = CommandEffects::read_from_bytes(&effects).expect("4096 bytes");
    assert_eq!(effects.io[usize::from(IoOpcode::WRITE.0)].get(), 3);
    assert_eq!(effects.io[usize::from(IoOpcode::COPY.0)].get(), 0);
    let get = GetLogPage::new(Lid::FAILURE_DOMAIN, NSID_ALL, 0, 512).encode();
    assert_eq!(harness.value(&get), Err(Status::INVALID_LOG_PAGE), "the failure domain is unknown");
    harness.facts.domain = Some(FailureDomain { host: "flash-1".into(), ..Default::default() });
    assert_eq!(harness.log(Lid::FAILURE_DOMAIN, 48, 8), *b"flash-1\0");
    let supported = harness.log(Lid::SUPPORTED, 0, 1024);
    assert_eq!(supported[0xE0 * 4], 1);
    for lid in 0..=255u8 {
        let is_listed = supported[usize::from(lid) * 4] == 1;
        let get = GetLogPage::new(Lid(lid), NSID_ALL, 0, 512).encode();
        let answer = harness.run_with(&get, &[]);
        assert_eq!(matches!(answer, AdminReply::Data { .. }), is_listed, "LID {lid:#x}");
    }
    let beyond = GetLogPage::new(Lid::HEALTH, NSID_ALL, 512, 4).encode();
    assert_eq!(harness.value(&beyond), Err(Status::INVALID_FIELD));
    let unaligned = GetLogPage::new(Lid::HEALTH, NSID_ALL, 2, 4).encode();
    assert_eq!(harness.value(&unaligned), Err(Status::INVALID_FIELD));
    let foreign = GetLogPage::new(Lid::HEALTH, 2, 0, 512).encode();
    assert_eq!(harness.value(&foreign), Err(Status::INVALID_NAMESPACE_OR_FORMAT));
    for lid in (0..=255u8).map(Lid).filter(|lid| supported[usize::from(lid.0) * 4] == 1) {
        let of_namespace = harness.run_with(&GetLogPage::new(lid, 1, 0, 512).encode(), &[]);
        let status = Status::INVALID_FIELD.with_dnr();
        let is_refused = of_namespace == AdminReply::Complete { status, result: 0 };
        assert_eq!(is_refused, lid != Lid::HEALTH, "{lid:?}");
    }
    let unknown = GetLogPage::new(Lid::TELEMETRY_HOST, NSID_ALL, 0, 512).encode();
    assert_eq!(harness.value(&unknown), Err(Status::INVALID_LOG_PAGE));
    let mut short = GetLogPage::new(Lid::HEALTH, NSID_ALL, 0, 512).encode();
    short.dptr = SglDescriptor::transport(256);
    assert_eq!(harness.value(&short), Err(Status::DATA_SGL_LENGTH_INVALID));
}

#[test]
fn the_error_log_holds_the_latest_errors_and_counts_all() {
    let mut harness = Harness::io();
    for cid in 0..100u16 {
        let mut sqe = Sqe::new(0xC0, 1);
        sqe.cid = cid.into();
        assert_eq!(harness.value(&sqe), Err(Status::INVALID_OPCODE));
    }
    let bytes = harness.log(Lid::ERROR, 0, 64 * 64);
    let newest = ErrorLogEntry::read_from_prefix(&bytes).expect("64 bytes").0;
    assert_eq!((newest.error_count.get(), newest.cid.get(), newest.opcode), (100, 99, 0xC0));
    let oldest = ErrorLogEntry::read_from_bytes(&bytes[63 * 64..]).expect("64 bytes");
    assert_eq!(oldest.error_count.get(), 37);
    let smart = SmartHealth::read_from_bytes(&harness.log(Lid::HEALTH, 0, 512)).expect("512");
    assert_eq!(smart.error_log_entries.get(), 100);
}

#[test]
fn waiting_requests_can_be_aborted() {
    let mut harness = Harness::io();
    harness.wait_for_event(3);
    let abort = |sqid, cid| Abort { sqid, cid }.encode();
    assert_eq!(harness.value(&abort(0, 0x999)), Ok(1), "there is no such command");
    assert_eq!(harness.value(&abort(1, 0x103)), Ok(1), "not on that queue");
    assert_eq!(harness.value(&abort(0, 0x103)), Ok(0));
    assert_eq!(harness.event(), Some((SlotId(3), Status::ABORT_REQUESTED, 0)));
}

#[test]
fn a_host_that_falls_silent_loses_its_controller() {
    let mut harness = Harness::io();
    let kato = Duration::from_millis(5000);
    assert_eq!(harness.controller.next_timeout(), Some(NOW + kato));
    let later = NOW + Duration::from_millis(4900);
    assert!(!harness.controller.on_timeout(later));
    let keep_alive = Sqe::new(AdminOpcode::KEEP_ALIVE.0, 0);
    harness.controller.on_admin(later, SlotId(0), &keep_alive, &[], &harness.facts);
    assert_eq!(harness.controller.next_timeout(), Some(later + kato));
    assert!(harness.controller.on_timeout(later + kato));
    assert!(!harness.controller.is_ready());

    let mut harness = Harness::io();
    assert_eq!(harness.set(Fid::KEEP_ALIVE_TIMER, 120_050), Ok(0));
    assert_eq!(harness.get(Fid::KEEP_ALIVE_TIMER, Select::Current), Ok(120_100), "rounded up");
    let invalid = Err(Status::KEEP_ALIVE_TIMEOUT_INVALID);
    assert_eq!(harness.set(Fid::KEEP_ALIVE_TIMER, 0), invalid, "TCP requires it");
    let timeout = NOW + Duration::from_millis(120_100);
    assert_eq!(harness.controller.next_timeout(), Some(timeout), "as it was");
    for select in [Select::Default, Select::Saved] {
        assert_eq!(harness.get(Fid::KEEP_ALIVE_TIMER, select), Ok(120_000));
    }
}

#[test]
fn the_discovery_log_can_be_read_in_pieces() {
    let mut harness = Harness::enabled(ControllerKind::Discovery);
    let entries: Vec<Rc<DiscoveryLogEntry>> = (0..5u16)
        .map(|n| {
            let address = core::net::SocketAddr::from(([192, 0, 2, 1], 4420 + n));
            Rc::new(DiscoveryLogEntry::tcp(SUBTYPE_NVM, &Nqn::from_uuid(&UUID), address))
        })
        .collect();
    harness.facts.log = DiscoveryLog { genctr: 9, entries };
    assert_eq!(harness.facts.log.len_bytes(), 6144);
    let whole = harness.log(Lid::DISCOVERY, 0, 6144);
    let header = DiscoveryLogHeader::read_from_prefix(&whole).expect("a header").0;
    assert_eq!((header.genctr.get(), header.numrec.get()), (9, 5));
    for piece in [16, 1000, 1024, 4096] {
        let mut parts = Vec::new();
        for at in (0..6144).step_by(piece) {
            parts.extend(harness.log(Lid::DISCOVERY, at, piece as u64));
        }
        assert_eq!(parts[..6144], whole, "pieces of {piece}");
        assert!(parts[6144..].iter().all(|byte| *byte == 0));
    }
    assert_eq!(harness.log(Lid::DISCOVERY, 1 << 40, 1024), vec![0; 1024]);
    let health = GetLogPage::new(Lid::HEALTH, NSID_ALL, 0, 512).encode();
    assert_eq!(harness.value(&health), Err(Status::INVALID_LOG_PAGE));
}

#[test]
fn unsupported_commands_are_invalid_opcodes() {
    let mut harness = Harness::io();
    let known = [0x02, 0x06, 0x08, 0x09, 0x0A, 0x0C, 0x18, 0x38, 0x7F];
    for opcode in (0..=255).filter(|opcode| !known.contains(opcode)) {
        let status = harness.value(&Sqe::new(opcode, 0));
        assert_eq!(status, Err(Status::INVALID_OPCODE), "{opcode:#x}");
    }
    let mut fused = Identify::new(Cns::CONTROLLER, 0).encode();
    fused.flags |= 1;
    assert_eq!(harness.value(&fused), Err(Status::INVALID_FIELD));
    let mut fabrics = Sqe::new(0x7F, 0x05);
    assert_eq!(harness.value(&fabrics), Err(Status::INVALID_FIELD), "authentication");
    fabrics.nsid = 0x08.into();
    assert_eq!(harness.value(&fabrics), Err(Status::DISCONNECT_INVALID_QUEUE_TYPE));
}

#[test]
fn a_queue_is_made_once_while_the_controller_is_ready() {
    let mut harness = Harness::disabled(ControllerKind::Io, false);
    assert!(!harness.controller.is_ready());
    assert!(!harness.controller.create_io(1));
    harness.enable();
    assert!(harness.controller.is_ready());
    assert!(harness.controller.create_io(1));
    assert!(!harness.controller.create_io(1), "it is there already");
    harness.controller.disconnect_io(1);
    assert!(harness.controller.create_io(1));
    assert_eq!(harness.set_cc(Cc(0)), Ok(0));
    assert!(!harness.controller.is_ready());
}

#[test]
fn a_discovery_controller_has_nothing_to_abort_or_reset() {
    let mut harness = Harness::enabled(ControllerKind::Discovery);
    for opcode in [AdminOpcode::ABORT, AdminOpcode::CROSS_CONTROLLER_RESET] {
        assert_eq!(harness.value(&Sqe::new(opcode.0, 0)), Err(Status::INVALID_OPCODE));
    }
}

#[test]
fn the_error_log_keeps_the_last_errors() {
    let mut harness = Harness::io();
    for error in 1..=100_u64 {
        let sqe = Sqe::new(IoOpcode::READ.0, 1);
        harness.controller.record_error(1, &sqe, Status::INTERNAL_ERROR, error);
        let kept = usize::try_from(error).expect("small").min(ERROR_LOG_ENTRIES);
        assert_eq!(harness.controller.error_log.len(), kept);
        assert_eq!(harness.controller.error_log[0].lba.get(), error, "the last comes first");
    }
}
