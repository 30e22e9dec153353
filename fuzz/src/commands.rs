//! Commands, completions and pages: whatever the bytes, what was decoded encodes to the same.

use nvme_initiator::{ControllerLimits, NamespaceShape};
use nvme_wire::async_event::AsyncEvent;
use nvme_wire::discovery::DiscoveryLogEntry;
use nvme_wire::fabrics::{Connect, ConnectData, ConnectInvalid, Property, fctype};
use nvme_wire::feature::{GetFeatures, NumberOfQueues, Select, SetFeatures};
use nvme_wire::identify::{
    Identify, IdentifyController, IdentifyNamespace, NamespaceIdList, descriptors,
    encode_descriptors,
};
use nvme_wire::io::{Abort, BlockCommand, DatasetManagement, dsm_ranges};
use nvme_wire::log::{
    ChangedNamespaces, CrossControllerResetLog, DeviceHealth, FailureDomain, FailureDomainLog,
    GetLogPage,
};
use nvme_wire::nqn::Nqn;
use nvme_wire::property::Cap;
use nvme_wire::{ControllerInstance, Cqe, CrossControllerReset, IoOpcode, Sqe};
use zerocopy::{FromBytes, IntoBytes};

/// The input is a submission queue entry and what follows it; also a completion, a name and a page.
pub fn run(bytes: &[u8]) {
    if let Ok((sqe, data)) = Sqe::read_from_prefix(bytes) {
        command(&sqe, data);
    }
    if let Ok((cqe, _)) = Cqe::read_from_prefix(bytes) {
        assert_eq!(cqe.status().to_field(), cqe.status.get() & !1);
        let _ = cqe.status().to_string();
        let _ = ConnectInvalid::from_dw0(cqe.dw0());
        let event = AsyncEvent::decode(cqe.dw0());
        assert_eq!(AsyncEvent::decode(event.encode()), event);
    }
    if let Ok(name) = std::str::from_utf8(bytes)
        && let Ok(nqn) = Nqn::new(name)
    {
        assert_eq!(Nqn::from_field(&nqn.to_field()), Ok(nqn));
        assert!(nqn.uuid().is_none_or(|uuid| Nqn::from_uuid(&uuid).uuid() == Some(uuid)));
    }
    let mut page = [0; 4096];
    let len = bytes.len().min(page.len());
    page[..len].copy_from_slice(&bytes[..len]);
    pages(&page);
}

fn command(sqe: &Sqe, data: &[u8]) {
    let identify = Identify::decode(sqe);
    assert_eq!(Identify::decode(&identify.encode()), identify);
    let get_log = GetLogPage::decode(sqe);
    assert_eq!(GetLogPage::decode(&get_log.encode()), get_log);
    let set = SetFeatures::decode(sqe);
    assert_eq!(SetFeatures::decode(&set.encode()), set);
    let get = GetFeatures::decode(sqe);
    assert_eq!(GetFeatures::decode(&get.encode()), get);
    let _ = get.select == Select::Reserved;
    let block = BlockCommand::decode(sqe);
    assert!((1..=BlockCommand::NLB_MAX).contains(&block.nlb));
    assert_eq!(BlockCommand::decode(&block.encode(IoOpcode::READ, 1, 0)), block);
    let abort = Abort::decode(sqe);
    assert_eq!(Abort::decode(&abort.encode()), abort);
    let reset = CrossControllerReset::decode(sqe);
    assert_eq!(CrossControllerReset::decode(&reset.encode()), reset);
    let dsm = DatasetManagement::decode(sqe);
    if let Some(ranges) = dsm_ranges(data, dsm.nr) {
        assert_eq!(ranges.len(), dsm.nr as usize);
    }
    if let Some(queues) = NumberOfQueues::decode(sqe.cdw11.get()) {
        assert_eq!(NumberOfQueues::decode(queues.encode()), Some(queues));
    }
    assert_eq!(Sqe::from(Connect::from(*sqe)), *sqe);
    let _ = (Property::from(*sqe).size(), fctype(sqe).name(), sqe.dptr.form());
}

fn pages(page: &[u8; 4096]) {
    let controller = IdentifyController::ref_from_bytes(page).expect("4096 bytes");
    let _ = (controller.transfer_bytes_max(4096), controller.in_capsule_bytes_max());
    let namespace = IdentifyNamespace::ref_from_bytes(page).expect("4096 bytes");
    let _ = (namespace.block_bytes(), namespace.atomic_write_blocks(0));
    let _ = (controller.subsystem(), controller.instance());
    let cap = Cap(controller.cirn.get());
    if let Ok(limits) = ControllerLimits::new(cap, controller)
        && let Ok(shape) = NamespaceShape::new(1, namespace, &limits)
    {
        assert!(limits.queue_entries_max > 0 && shape.block_bytes.is_power_of_two());
    }
    let _ = NamespaceIdList::ref_from_bytes(page).expect("4096 bytes").iter().count();
    let [cntlid0, cntlid1, ciu, ..] = *page;
    let cntlid = u16::from_le_bytes([cntlid0, cntlid1]);
    let resets = CrossControllerResetLog::ref_from_bytes(page).expect("4096 bytes");
    let _ = resets.status_of(ControllerInstance { cntlid, ciu, cirn: 0 });
    let domain = FailureDomainLog::ref_from_bytes(page).expect("4096 bytes");
    if let Some(domain) = domain.decode() {
        // Bytes that are no text were replaced: it may be longer than there is room for.
        let _ = FailureDomainLog::new(&domain).decode().expect("just encoded");
    }
    let named: Vec<_> = descriptors(page).take(8).collect();
    assert!(descriptors(&encode_descriptors(&named)).eq(named));
    let _ = ChangedNamespaces::ref_from_bytes(page).expect("4096 bytes").iter().count();
    let entry = DiscoveryLogEntry::ref_from_bytes(&page[..1024]).expect("1024 bytes");
    let _ = (entry.address(), entry.subsystem());
    let connect = ConnectData::ref_from_bytes(&page[..1024]).expect("1024 bytes");
    let _ = (connect.subsystem(), connect.host_nqn());
}

/// A command with data, a page of zeroes, and one that tells where a volume is.
pub fn seeds() -> Vec<Vec<u8>> {
    let connect = Sqe::from(Connect::new(1, 32, 5000));
    let read = BlockCommand::new(7, 8).encode(IoOpcode::READ, 1, 32768);
    let with_data = |sqe: Sqe| [sqe.as_bytes(), &[0; 1024]].concat();
    let domain = FailureDomain {
        host_id: [1; 16],
        host: "host".into(),
        labels: [("rack".into(), "r1".into())].into(),
        core: 1,
        device_id: [2; 16],
        device: "device".into(),
        model: "model".into(),
        serial: "serial".into(),
        health: DeviceHealth::Good,
    };
    let domain = FailureDomainLog::new(&domain).as_bytes().to_vec();
    let name = Nqn::DISCOVERY.as_str().into();
    vec![vec![0; 4096], with_data(connect), with_data(read), name, domain]
}
