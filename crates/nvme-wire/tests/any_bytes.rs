//! NVME-WIRE-1: no bytes make a decoder panic, and what is decoded encodes to the same command.

use nvme_wire::discovery::DiscoveryLogEntry;
use nvme_wire::fabrics::{Connect, ConnectData, ConnectInvalid, Property};
use nvme_wire::feature::{GetFeatures, NumberOfQueues, SetFeatures};
use nvme_wire::identify::{Identify, IdentifyController, IdentifyNamespace, descriptors};
use nvme_wire::io::{Abort, BlockCommand, DatasetManagement, dsm_ranges};
use nvme_wire::log::{FailureDomainLog, GetLogPage};
use nvme_wire::pdu::{C2hData, CommonHeader, Digests, H2cData, IcReq, IcResp, header_from_bytes};
use nvme_wire::sgl::SglForm;
use nvme_wire::{Cqe, IoOpcode, Sqe};
use proptest::prelude::*;
use zerocopy::FromBytes;

proptest! {
    #[test]
    fn a_header_is_refused_or_its_parts_add_up(
        bytes in any::<[u8; 128]>(),
        pdu_type in 0u8..12,
        consistent in any::<bool>(),
        header in any::<bool>(),
        data in any::<bool>(),
    ) {
        let mut bytes = bytes;
        bytes[0] = pdu_type;
        if consistent {
            bytes[5..8].fill(0);
            bytes[2] = if pdu_type < 2 { 128 } else if pdu_type == 4 { 72 } else { 24 };
        }
        let digests = Digests { header, data };
        let common = CommonHeader::from_prefix(&bytes).expect("long enough");
        if let Ok(layout) = common.layout(digests, 4) {
            let digest = if layout.data_digest { 4 } else { 0 };
            prop_assert!(layout.header_end() <= layout.data_offset);
            prop_assert_eq!(layout.data_offset + layout.data_len + digest, layout.plen);
            if let Some(h2c) = header_from_bytes::<H2cData>(&bytes) {
                let _ = h2c.check(&layout);
            }
            if let Some(c2h) = header_from_bytes::<C2hData>(&bytes) {
                let _ = c2h.check(&layout);
            }
        }
        let _ = header_from_bytes::<IcReq>(&bytes).expect("long enough").check();
        let _ = header_from_bytes::<IcResp>(&bytes).expect("long enough").check(digests);
    }

    #[test]
    fn commands_decode_from_any_bytes_and_encode_to_what_was_decoded(bytes in any::<[u8; 64]>()) {
        let sqe = Sqe::read_from_bytes(&bytes).expect("64 bytes");
        let identify = Identify::decode(&sqe);
        prop_assert_eq!(Identify::decode(&identify.encode()), identify);
        let get_log = GetLogPage::decode(&sqe);
        prop_assert_eq!(GetLogPage::decode(&get_log.encode()), get_log);
        let set = SetFeatures::decode(&sqe);
        prop_assert_eq!(SetFeatures::decode(&set.encode()), set);
        let get = GetFeatures::decode(&sqe);
        prop_assert_eq!(GetFeatures::decode(&get.encode()), get);
        let block = BlockCommand::decode(&sqe);
        prop_assert_eq!(BlockCommand::decode(&block.encode(IoOpcode::READ, 1, 0)), block);
        let abort = Abort::decode(&sqe);
        prop_assert_eq!(Abort::decode(&abort.encode()), abort);
        let _ = block.checked_end();
        let dsm = DatasetManagement::decode(&sqe);
        let _ = dsm_ranges(&bytes, dsm.nr);
        let _ = (Connect::from(sqe).entries(), Property::from(sqe).size());
        let _ = NumberOfQueues::decode(sqe.cdw11.get());
        let _ = matches!(sqe.dptr.form(), SglForm::Other { .. });
        prop_assert_eq!(Sqe::from(Connect::from(sqe)), sqe);
    }

    #[test]
    fn completions_keep_their_status(bytes in any::<[u8; 16]>()) {
        let cqe = Cqe::read_from_bytes(&bytes).expect("16 bytes");
        prop_assert_eq!(cqe.status().to_field(), cqe.status.get() & !1);
        let _ = (cqe.status().to_string(), ConnectInvalid::from_dw0(cqe.dw0()));
    }

    #[test]
    fn pages_decode_from_any_bytes(bytes in proptest::collection::vec(any::<u8>(), 4096)) {
        let controller = IdentifyController::ref_from_bytes(&bytes).expect("4096 bytes");
        let _ = (controller.subsystem(), controller.transfer_bytes_max(4096));
        let _ = controller.in_capsule_bytes_max();
        let namespace = IdentifyNamespace::ref_from_bytes(&bytes).expect("4096 bytes");
        let _ = (namespace.block_bytes(), namespace.atomic_write_blocks(65_535));
        let _ = descriptors(&bytes).count();
        let mut domain = FailureDomainLog::read_from_bytes(&bytes).expect("4096 bytes");
        prop_assert_eq!(domain.decode(), None, "eight bytes by chance");
        domain.magic = *b"farflash";
        domain.version = 1.into();
        let said = domain.decode().expect("ours");
        let again = FailureDomainLog::new(&said).decode().expect("ours");
        prop_assert_eq!((again.core, again.health), (said.core, said.health));
        let entry = DiscoveryLogEntry::ref_from_bytes(&bytes[..1024]).expect("1024 bytes");
        let _ = (entry.address(), entry.subsystem());
        let connect = ConnectData::ref_from_bytes(&bytes[..1024]).expect("1024 bytes");
        let _ = (connect.subsystem(), connect.host_nqn());
    }
}
