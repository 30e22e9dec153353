//! Identify: what the controller and its namespace are.

use alloc::vec::Vec;

use nvme_wire::feature::HOST_BEHAVIOR_LEN;
use nvme_wire::identify::{
    CMIC_MULTIPLE_CONTROLLERS, CNTRLTYPE_DISCOVERY, CNTRLTYPE_IO, CSI_NVM, CTRATT_HOST_ID_EXTENDED,
    CTRATT_LIMITS_EXCLUDE_METADATA, Cns, CommandSetIndependentNamespace,
    DLFEAT_DEALLOCATE_WRITE_ZEROES, DLFEAT_READS_ZEROES, FLBAS_EXTENDED_LBA,
    FUSES_COMPARE_AND_WRITE, IDENTIFY_LEN, Identify, IdentifyController, IdentifyNamespace,
    LPA_COMMAND_EFFECTS, LPA_EXTENDED_DATA, LPA_SMART_PER_NAMESPACE, LbaFormat, MC_EXTENDED_LBA,
    NMIC_SHARED, NSFEAT_ATOMICS, NSFEAT_OPTIMAL_PERFORMANCE, NSFEAT_THIN, NSTAT_READY,
    NamespaceDescriptor, NamespaceIdList, NvmCommandSetController, NvmCommandSetNamespace,
    OAES_DISCOVERY_CHANGE, OAES_NAMESPACE_ATTRIBUTE, ONCS_COMPARE, ONCS_DATASET_MANAGEMENT,
    ONCS_RESERVATIONS, ONCS_SAVE_FIELD, ONCS_VERIFY, ONCS_WRITE_ZEROES, SGLS_BYTE_ALIGNED,
    SGLS_TRANSPORT, VENDOR_COMPARE_AND_WRITE, VWC_FLUSH_ALL_NAMESPACES, VWC_PRESENT,
    command_set_vectors, encode_descriptors, set_ascii, vendor_field,
};
use nvme_wire::reservation::RESCAP_ALL;
use nvme_wire::sqe::NSID_ALL;
use nvme_wire::{Sqe, Status};
use units::BLOCK_SIZE;
use zerocopy::{FromZeros, IntoBytes};

use super::property::VERSION;
use super::{AERS_MAX, AdminReply, Backend, Controller, ControllerKind, ERROR_LOG_ENTRIES};
use crate::io::NSID;

/// Concurrent Aborts, 0's based. Each is answered at once, so any number works.
const ACL: u8 = 3;
/// Keep Alive granularity in units of 100 ms.
pub(super) const KAS_100MS: u16 = 1;
/// One firmware slot, and the host cannot write it.
const FRMW_ONE_READ_ONLY_SLOT: u8 = 0b11;
/// SQES and CQES: required and largest size, as powers of two.
const SQES: u8 = 0x66;
const CQES: u8 = 0x44;
/// OFCS: the Disconnect command is supported.
const OFCS_DISCONNECT: u16 = 1;
/// Write Zeroes Size Limit, as a power of two in units of 4 KiB: as many blocks as a command can name.
const WZSL: u8 = 16;
const _: () = assert!(1 << WZSL == u16::MAX as usize + 1 && BLOCK_SIZE == 4096);
const UNIT_16: u32 = 16;
const SQE_BYTES: u32 = 64;
/// CNTID that selects the controller which answers.
const CNTID_SELF: u16 = 0xFFFF;
const _: () = assert!(HOST_BEHAVIOR_LEN == 512);

impl Controller {
    pub(super) fn identify(&self, sqe: &Sqe, backend: &dyn Backend) -> Result<AdminReply, Status> {
        if (sqe.dptr.length.get() as usize) < IDENTIFY_LEN {
            return Err(Status::DATA_SGL_LENGTH_INVALID.with_dnr());
        }
        let identify = Identify::decode(sqe);
        if identify.cns == Cns::CONTROLLER {
            return Ok(AdminReply::data(self.identify_controller().as_bytes()));
        }
        if self.parameters.kind == ControllerKind::Discovery {
            return Err(Status::INVALID_FIELD.with_dnr());
        }
        let is_nvm = identify.csi == CSI_NVM;
        let bytes = match identify.cns {
            Cns::NAMESPACE => self.identify_namespace(identify.nsid, backend)?,
            Cns::ACTIVE_NAMESPACES => active_namespaces(identify.nsid)?,
            Cns::CSI_ACTIVE_NAMESPACES if is_nvm => active_namespaces(identify.nsid)?,
            Cns::NAMESPACE_DESCRIPTORS => {
                require_nsid(identify.nsid)?;
                let uuid = self.parameters.uuid;
                encode_descriptors(&[
                    NamespaceDescriptor::Nguid(uuid),
                    NamespaceDescriptor::Uuid(uuid),
                    NamespaceDescriptor::Csi(CSI_NVM),
                ])
            }
            Cns::CSI_NAMESPACE if is_nvm => {
                require_nsid(identify.nsid)?;
                NvmCommandSetNamespace::new_zeroed().as_bytes().to_vec()
            }
            Cns::CSI_CONTROLLER if is_nvm => {
                // Verify reads the blocks, so it has the limit of a read. Write Zeroes and deallocation change the map only: the
                // one may have as many blocks as a command can name, which is said, since some hosts take MDTS for the limit if
                // nothing is; the other has no limit.
                let controller = NvmCommandSetController {
                    vsl: self.mdts(),
                    wzsl: WZSL,
                    ..FromZeros::new_zeroed()
                };
                controller.as_bytes().to_vec()
            }
            Cns::INDEPENDENT_NAMESPACE => independent_namespace(identify.nsid, backend)?,
            Cns::COMMAND_SETS => {
                if identify.cntid != CNTID_SELF && identify.cntid != self.parameters.instance.cntlid
                {
                    return Err(Status::INVALID_FIELD.with_dnr());
                }
                command_set_vectors()
            }
            _ => return Err(Status::INVALID_FIELD.with_dnr()),
        };
        Ok(AdminReply::data(bytes))
    }

    /// Maximum Data Transfer Size as a power of two in units of 4 KiB (CAP.MPSMIN).
    fn mdts(&self) -> u8 {
        let pages = self.parameters.limits.transfer_bytes_max as usize / BLOCK_SIZE;
        u8::try_from(pages.max(1).ilog2()).expect("at most 20")
    }

    fn identify_controller(&self) -> IdentifyController {
        let parameters = &self.parameters;
        let mut identify = IdentifyController::new_zeroed();
        set_ascii(&mut identify.sn, &parameters.serial);
        set_ascii(&mut identify.mn, &parameters.model);
        set_ascii(&mut identify.fr, &parameters.firmware);
        identify.mdts = self.mdts();
        identify.cntlid = parameters.instance.cntlid.into();
        identify.ver = VERSION.0.into();
        identify.ctratt = (CTRATT_HOST_ID_EXTENDED | CTRATT_LIMITS_EXCLUDE_METADATA).into();
        identify.aerl = u8::try_from(AERS_MAX - 1).expect("small");
        identify.kas = KAS_100MS.into();
        identify.maxcmd = parameters.limits.queue_entries_max.into();
        identify.sgls = (SGLS_BYTE_ALIGNED | SGLS_TRANSPORT).into();
        identify.subnqn = parameters.subsystem.to_field();
        match parameters.kind {
            ControllerKind::Io => self.fill_io_fields(&mut identify),
            ControllerKind::Discovery => {
                identify.cntrltype = CNTRLTYPE_DISCOVERY;
                identify.lpa = LPA_EXTENDED_DATA;
                identify.oaes = OAES_DISCOVERY_CHANGE.into();
            }
        }
        identify
    }

    fn fill_io_fields(&self, identify: &mut IdentifyController) {
        let parameters = &self.parameters;
        identify.cntrltype = CNTRLTYPE_IO;
        identify.cmic = CMIC_MULTIPLE_CONTROLLERS;
        identify.ciu = parameters.instance.ciu;
        identify.cirn = parameters.instance.cirn.into();
        identify.ccrl = super::cross_controller_reset::CROSS_CONTROLLER_RESETS_MAX;
        identify.oaes = OAES_NAMESPACE_ATTRIBUTE.into();
        identify.acl = ACL;
        identify.frmw = FRMW_ONE_READ_ONLY_SLOT;
        identify.elpe = u8::try_from(ERROR_LOG_ENTRIES - 1).expect("small");
        // Bit 5 would also promise the scopes of commands and the log page of NVMe-MI (13h). Log pages 00h and 12h
        // may be there without it.
        identify.lpa = LPA_SMART_PER_NAMESPACE | LPA_COMMAND_EFFECTS | LPA_EXTENDED_DATA;
        identify.sqes = SQES;
        identify.cqes = CQES;
        identify.nn = NSID.into();
        identify.mnan = NSID.into();
        identify.oncs = (ONCS_COMPARE
            | ONCS_DATASET_MANAGEMENT
            | ONCS_WRITE_ZEROES
            | ONCS_SAVE_FIELD
            | ONCS_RESERVATIONS
            | ONCS_VERIFY)
            .into();
        identify.fuses = FUSES_COMPARE_AND_WRITE.into();
        identify.vs = vendor_field(VENDOR_COMPARE_AND_WRITE);
        identify.vwc = VWC_FLUSH_ALL_NAMESPACES
            | if parameters.volatile_write_cache { VWC_PRESENT } else { 0 };
        let atomic = self.atomic_write_blocks_0s_based();
        identify.awun = atomic.into();
        identify.awupf = atomic.into();
        identify.acwu = atomic.into();
        identify.ioccsz = ((SQE_BYTES + parameters.limits.in_capsule_bytes_max) / UNIT_16).into();
        identify.iorcsz = 1.into();
        identify.msdbd = 1;
        identify.ofcs = OFCS_DISCONNECT.into();
    }

    fn atomic_write_blocks_0s_based(&self) -> u16 {
        let blocks = self.parameters.atomic_write_blocks.clamp(1, 1 << 16);
        u16::try_from(blocks - 1).expect("clamped")
    }

    fn identify_namespace(&self, nsid: u32, backend: &dyn Backend) -> Result<Vec<u8>, Status> {
        require_nsid(nsid)?;
        let mut identify = IdentifyNamespace::new_zeroed();
        let namespace = backend.namespace();
        let atomic = self.atomic_write_blocks_0s_based();
        identify.nsze = namespace.blocks.into();
        identify.ncap = namespace.blocks.into();
        identify.nuse = namespace.used_blocks.min(namespace.blocks).into();
        identify.nsfeat = NSFEAT_THIN | NSFEAT_ATOMICS;
        identify.nmic = NMIC_SHARED;
        identify.rescap = RESCAP_ALL;
        identify.dlfeat = DLFEAT_READS_ZEROES | DLFEAT_DEALLOCATE_WRITE_ZEROES;
        identify.nawun = atomic.into();
        identify.nawupf = atomic.into();
        identify.nacwu = atomic.into();
        let sector = namespace.sector;
        identify.nvmcap = (u128::from(namespace.blocks) * sector.bytes() as u128).into();
        identify.nsattr = u8::from(namespace.read_only);
        identify.nguid = self.parameters.uuid;
        if !namespace.metadata.is_none() {
            identify.flbas = FLBAS_EXTENDED_LBA;
            identify.mc = MC_EXTENDED_LBA;
        }
        if sector.per_block() > 1 {
            // A part of a block is written together with the rest, which is read; and is not deallocated, but made zeroes.
            let granularity = u16::try_from(sector.per_block() - 1).expect("7");
            identify.nsfeat |= NSFEAT_OPTIMAL_PERFORMANCE;
            identify.npwg = granularity.into();
            identify.npwa = granularity.into();
            identify.npdg = granularity.into();
            identify.npda = granularity.into();
            identify.nows = granularity.into();
        }
        identify.lbaf[0] = LbaFormat {
            ms: u16::try_from(namespace.metadata.bytes()).expect("at most 64").into(),
            lbads: u8::try_from(sector.bytes().trailing_zeros()).expect("12 or 9"),
            ..LbaFormat::new_zeroed()
        };
        Ok(identify.as_bytes().to_vec())
    }
}

/// The namespace list that starts behind `nsid`.
fn active_namespaces(nsid: u32) -> Result<Vec<u8>, Status> {
    if nsid >= NSID_ALL - 1 {
        return Err(Status::INVALID_NAMESPACE_OR_FORMAT.with_dnr());
    }
    Ok(NamespaceIdList::new((nsid < NSID).then_some(NSID)).as_bytes().to_vec())
}

fn independent_namespace(nsid: u32, backend: &dyn Backend) -> Result<Vec<u8>, Status> {
    require_nsid(nsid)?;
    let mut identify = CommandSetIndependentNamespace::new_zeroed();
    identify.nmic = NMIC_SHARED;
    identify.rescap = RESCAP_ALL;
    identify.nsattr = u8::from(backend.namespace().read_only);
    identify.nstat = NSTAT_READY;
    Ok(identify.as_bytes().to_vec())
}

fn require_nsid(nsid: u32) -> Result<(), Status> {
    if nsid == NSID { Ok(()) } else { Err(Status::INVALID_NAMESPACE_OR_FORMAT.with_dnr()) }
}
