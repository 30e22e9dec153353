//! Identify Controller, CNS 01h (Base, figure "Identify Controller Data Structure").

use core::mem::{offset_of, size_of};

use zerocopy::little_endian::{U16, U32, U64, U128};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::nqn::NqnError;
use crate::property::Version;
use crate::{ControllerInstance, Nqn, Status};

/// CMIC: the subsystem has more than one port.
pub const CMIC_MULTIPLE_PORTS: u8 = 1 << 0;
/// CMIC: the subsystem has more than one controller.
pub const CMIC_MULTIPLE_CONTROLLERS: u8 = 1 << 1;
/// CNTRLTYPE: an I/O controller.
pub const CNTRLTYPE_IO: u8 = 1;
/// CNTRLTYPE: a discovery controller.
pub const CNTRLTYPE_DISCOVERY: u8 = 2;
/// OAES: Attached Namespace Attribute Changed events.
pub const OAES_NAMESPACE_ATTRIBUTE: u32 = 1 << 8;
/// OAES: Asymmetric Namespace Access Change events.
pub const OAES_ANA_CHANGE: u32 = 1 << 11;
/// OAES: Discovery Log Page Change events.
pub const OAES_DISCOVERY_CHANGE: u32 = 1 << 31;
/// CTRATT: 128-bit host identifiers.
pub const CTRATT_HOST_ID_EXTENDED: u32 = 1 << 0;
/// CTRATT: any command restarts the keep alive timer.
pub const CTRATT_TRAFFIC_KEEP_ALIVE: u32 = 1 << 6;
/// CTRATT: MDTS and the limits like it count no metadata of blocks.
pub const CTRATT_LIMITS_EXCLUDE_METADATA: u32 = 1 << 16;
/// LPA: SMART/Health log per namespace.
pub const LPA_SMART_PER_NAMESPACE: u8 = 1 << 0;
/// LPA: Commands Supported and Effects log.
pub const LPA_COMMAND_EFFECTS: u8 = 1 << 1;
/// LPA: Get Log Page takes 32-bit lengths and offsets.
pub const LPA_EXTENDED_DATA: u8 = 1 << 2;
/// ONCS: Compare.
pub const ONCS_COMPARE: u16 = 1 << 0;
/// ONCS: Write Uncorrectable.
pub const ONCS_WRITE_UNCORRECTABLE: u16 = 1 << 1;
/// ONCS: Dataset Management.
pub const ONCS_DATASET_MANAGEMENT: u16 = 1 << 2;
/// ONCS: Write Zeroes.
pub const ONCS_WRITE_ZEROES: u16 = 1 << 3;
/// ONCS: Save field in Set Features, Select in Get Features.
pub const ONCS_SAVE_FIELD: u16 = 1 << 4;
/// ONCS: reservations.
pub const ONCS_RESERVATIONS: u16 = 1 << 5;
/// ONCS: Timestamp feature.
pub const ONCS_TIMESTAMP: u16 = 1 << 6;
/// ONCS: Verify.
pub const ONCS_VERIFY: u16 = 1 << 7;
/// FUSES: Compare and Write.
pub const FUSES_COMPARE_AND_WRITE: u16 = 1 << 0;
/// First bytes of the vendor specific field of a farflash controller: `farflash`.
pub const VENDOR_MAGIC: u64 = u64::from_le_bytes(*b"farflash");
/// Vendor specific commands of a farflash controller: Compare and Write, opcode 81h.
pub const VENDOR_COMPARE_AND_WRITE: u64 = 1 << 0;
/// Words of the vendor specific field.
const VENDOR_WORDS: usize = 128;

/// The vendor specific field of a controller with these `VENDOR_*` commands.
#[must_use]
pub fn vendor_field(commands: u64) -> [U64; VENDOR_WORDS] {
    let mut field = [U64::ZERO; VENDOR_WORDS];
    field[0] = VENDOR_MAGIC.into();
    field[1] = commands.into();
    field
}
/// ONCS: Copy.
pub const ONCS_COPY: u16 = 1 << 8;
/// VWC: there is a volatile write cache.
pub const VWC_PRESENT: u8 = 1 << 0;
/// VWC: Flush with NSID FFFFFFFFh is refused.
pub const VWC_FLUSH_NOT_ALL_NAMESPACES: u8 = 0b10 << 1;
/// VWC: Flush with NSID FFFFFFFFh flushes all namespaces.
pub const VWC_FLUSH_ALL_NAMESPACES: u8 = 0b11 << 1;
/// SGLS: SGLs are supported, without alignment rules.
pub const SGLS_BYTE_ALIGNED: u32 = 0b01;
/// SGLS: keyed data blocks.
pub const SGLS_KEYED: u32 = 1 << 2;
/// SGLS: an address may be an offset into in-capsule data.
pub const SGLS_IN_CAPSULE_OFFSET: u32 = 1 << 20;
/// SGLS: Transport SGL Data Blocks.
pub const SGLS_TRANSPORT: u32 = 1 << 21;

/// Properties and capabilities of a controller. Fields that stay zero in farflash and that no host
/// of ours reads are reserved here.
#[derive(Clone, Debug, Eq, PartialEq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct IdentifyController {
    /// 0..2: PCI Vendor ID.
    pub vid: U16,
    /// 2..4: PCI Subsystem Vendor ID.
    pub ssvid: U16,
    /// 4..24: Serial Number, ASCII padded with spaces.
    pub sn: [u8; 20],
    /// 24..64: Model Number, ASCII padded with spaces.
    pub mn: [u8; 40],
    /// 64..72: Firmware Revision, ASCII padded with spaces.
    pub fr: [u8; 8],
    /// 72: Recommended Arbitration Burst, a power of two.
    pub rab: u8,
    /// 73..76: IEEE OUI Identifier.
    pub ieee: [u8; 3],
    /// 76: Controller Multi-Path I/O and Namespace Sharing Capabilities.
    pub cmic: u8,
    /// 77: Maximum Data Transfer Size: 2^MDTS memory pages, 0 for no limit.
    pub mdts: u8,
    /// 78..80: Controller ID.
    pub cntlid: U16,
    /// 80..84: Version; see [`IdentifyController::version`].
    pub ver: U32,
    /// 84..88: RTD3 Resume Latency.
    pub rtd3r: U32,
    /// 88..92: RTD3 Entry Latency in microseconds: how long a shutdown may take.
    pub rtd3e: U32,
    /// 92..96: Optional Asynchronous Events Supported.
    pub oaes: U32,
    /// 96..100: Controller Attributes.
    pub ctratt: U32,
    /// 100..111: reserved.
    pub reserved100: [u8; 11],
    /// 111: Controller Type.
    pub cntrltype: u8,
    /// 112..128: FRU Globally Unique Identifier.
    pub fguid: [u8; 16],
    /// 128..134: Command Retry Delay Times 1 to 3, in 100 ms.
    pub crdt: [U16; 3],
    /// 134: reserved.
    pub reserved134: u8,
    /// 135: Controller Instance Uniquifier (Base 2.3).
    pub ciu: u8,
    /// 136..144: Controller Instance Random Number (Base 2.3).
    pub cirn: U64,
    /// 144..256: reserved.
    pub reserved144: [u8; 112],
    /// 256..258: Optional Admin Command Support.
    pub oacs: U16,
    /// 258: Abort Command Limit, 0's based.
    pub acl: u8,
    /// 259: Asynchronous Event Request Limit, 0's based.
    pub aerl: u8,
    /// 260: Firmware Updates: slots in bits 3:1, slot 1 read-only in bit 0.
    pub frmw: u8,
    /// 261: Log Page Attributes.
    pub lpa: u8,
    /// 262: Error Log Page Entries, 0's based.
    pub elpe: u8,
    /// 263: Number of Power States Support, 0's based.
    pub npss: u8,
    /// 264: Admin Vendor Specific Command Configuration.
    pub avscc: u8,
    /// 265: Autonomous Power State Transition Attributes.
    pub apsta: u8,
    /// 266..268: Warning Composite Temperature Threshold in kelvins.
    pub wctemp: U16,
    /// 268..270: Critical Composite Temperature Threshold in kelvins.
    pub cctemp: U16,
    /// 270..280: reserved.
    pub reserved270: [u8; 10],
    /// 280..296: Total NVM Capacity in bytes.
    pub tnvmcap: U128,
    /// 296..312: Unallocated NVM Capacity in bytes.
    pub unvmcap: U128,
    /// 312..320: reserved.
    pub reserved312: [u8; 8],
    /// 320..322: Keep Alive Support: granularity of the timer in 100 ms, 0 for no timer.
    pub kas: U16,
    /// 322..328: reserved.
    pub reserved322: [u8; 6],
    /// 328..332: Sanitize Capabilities.
    pub sanicap: U32,
    /// 332..342: reserved.
    pub reserved332: [u8; 10],
    /// 342: ANA Transition Time in seconds.
    pub anatt: u8,
    /// 343: Asymmetric Namespace Access Capabilities.
    pub anacap: u8,
    /// 344..348: ANA Group Identifier Maximum.
    pub anagrpmax: U32,
    /// 348..352: Number of ANA Group Identifiers.
    pub nanagrpid: U32,
    /// 352..512: reserved.
    pub reserved352: [u8; 160],
    /// 512: Submission Queue Entry Size: required in bits 3:0, maximum in bits 7:4.
    pub sqes: u8,
    /// 513: Completion Queue Entry Size: required in bits 3:0, maximum in bits 7:4.
    pub cqes: u8,
    /// 514..516: Maximum Outstanding Commands of a queue.
    pub maxcmd: U16,
    /// 516..520: Number of Namespaces.
    pub nn: U32,
    /// 520..522: Optional NVM Command Support.
    pub oncs: U16,
    /// 522..524: Fused Operation Support.
    pub fuses: U16,
    /// 524: Format NVM Attributes.
    pub fna: u8,
    /// 525: Volatile Write Cache.
    pub vwc: u8,
    /// 526..528: Atomic Write Unit Normal, 0's based blocks.
    pub awun: U16,
    /// 528..530: Atomic Write Unit Power Fail, 0's based blocks.
    pub awupf: U16,
    /// 530: I/O Command Set Vendor Specific Command Configuration.
    pub icsvscc: u8,
    /// 531: Namespace Write Protection Capabilities.
    pub nwpc: u8,
    /// 532..534: Atomic Compare & Write Unit, 0's based blocks.
    pub acwu: U16,
    /// 534..536: Copy Descriptor Formats Supported.
    pub cdfs: U16,
    /// 536..540: SGL Support.
    pub sgls: U32,
    /// 540..544: Maximum Number of Allowed Namespaces.
    pub mnan: U32,
    /// 544..768: reserved.
    pub reserved544: [u8; 224],
    /// 768..1024: NVM Subsystem NVMe Qualified Name.
    pub subnqn: [u8; 256],
    /// 1024..1792: reserved.
    pub reserved1024: [u8; 768],
    /// 1792..1796: I/O Queue Command Capsule Supported Size, in 16 bytes, SQE included.
    pub ioccsz: U32,
    /// 1796..1800: I/O Queue Response Capsule Supported Size, in 16 bytes, CQE included.
    pub iorcsz: U32,
    /// 1800..1802: In Capsule Data Offset, in 16 bytes.
    pub icdoff: U16,
    /// 1802: Fabrics Controller Attributes; bit 0 is 0 for the dynamic controller model.
    pub fcatt: u8,
    /// 1803: Maximum SGL Data Block Descriptors, 0 for no limit.
    pub msdbd: u8,
    /// 1804..1806: Optional Fabrics Commands Supported; bit 0 is Disconnect.
    pub ofcs: U16,
    /// 1806: Discovery Controller Type.
    pub dctype: u8,
    /// 1807: Cross-Controller Reset Limit: how many may be under way, 0 if the command is not
    /// supported (Base 2.3).
    pub ccrl: u8,
    /// 1808..2048: reserved.
    pub reserved1808: [u8; 240],
    /// 2048..3072: Power State Descriptors 0 to 31; the first two bytes of each are the maximum
    /// power in 0.01 W.
    pub psd: [[u8; 32]; 32],
    /// 3072..4096: vendor specific.
    pub vs: [U64; VENDOR_WORDS],
}

const _: () = {
    assert!(size_of::<IdentifyController>() == super::IDENTIFY_LEN);
    assert!(offset_of!(IdentifyController, cntrltype) == 111);
    assert!(offset_of!(IdentifyController, ciu) == 135);
    assert!(offset_of!(IdentifyController, cirn) == 136);
    assert!(offset_of!(IdentifyController, oacs) == 256);
    assert!(offset_of!(IdentifyController, tnvmcap) == 280);
    assert!(offset_of!(IdentifyController, kas) == 320);
    assert!(offset_of!(IdentifyController, anatt) == 342);
    assert!(offset_of!(IdentifyController, sqes) == 512);
    assert!(offset_of!(IdentifyController, awun) == 526);
    assert!(offset_of!(IdentifyController, sgls) == 536);
    assert!(offset_of!(IdentifyController, subnqn) == 768);
    assert!(offset_of!(IdentifyController, ioccsz) == 1792);
    assert!(offset_of!(IdentifyController, ccrl) == 1807);
    assert!(offset_of!(IdentifyController, psd) == 2048);
};

impl IdentifyController {
    /// The `VENDOR_*` commands of a farflash controller; none for any other.
    #[must_use]
    pub fn vendor_commands(&self) -> u64 {
        if self.vs[0].get() == VENDOR_MAGIC { self.vs[1].get() } else { 0 }
    }

    /// The controller and its present life; `None` if it does not report them, or cannot be reset
    /// through another.
    #[must_use]
    pub fn instance(&self) -> Option<ControllerInstance> {
        let (cntlid, ciu, cirn) = (self.cntlid.get(), self.ciu, self.cirn.get());
        (self.ccrl > 0).then_some(ControllerInstance { cntlid, ciu, cirn })
    }

    /// Version of the specification that the controller follows.
    #[must_use]
    pub fn version(&self) -> Version {
        Version(self.ver.get())
    }

    /// The subsystem's name.
    pub fn subsystem(&self) -> Result<Nqn, NqnError> {
        Nqn::from_field(&self.subnqn)
    }

    /// Largest transfer in bytes where memory pages are `page_size` bytes; `None` for no limit.
    #[must_use]
    pub fn transfer_bytes_max(&self, page_size: u64) -> Option<u64> {
        match self.mdts {
            0 => None,
            mdts => {
                let pages = 1u64.checked_shl(u32::from(mdts)).unwrap_or(u64::MAX);
                Some(page_size.saturating_mul(pages))
            }
        }
    }

    /// Most bytes of in-capsule data on an I/O queue.
    #[must_use]
    pub fn in_capsule_bytes_max(&self) -> u64 {
        (u64::from(self.ioccsz.get()) * 16).saturating_sub(64)
    }

    /// The time that a host should wait before it retries a command that failed with `status`, in
    /// milliseconds; `None` if the controller does not specify one.
    #[must_use]
    pub fn retry_delay_ms(&self, status: Status) -> Option<u32> {
        let index = usize::from(status.crd()).checked_sub(1)?;
        Some(u32::from(self.crdt.get(index)?.get()) * 100)
    }
}

#[cfg(test)]
mod tests {
    use zerocopy::FromZeros;

    use super::*;

    #[test]
    fn fields_lie_where_the_specification_puts_them() {
        let mut controller = IdentifyController::new_zeroed();
        controller.mdts = 8;
        controller.ver = Version::new(2, 1, 0).0.into();
        controller.oncs = (ONCS_COMPARE | ONCS_VERIFY).into();
        controller.ioccsz = 260.into();
        controller.subnqn = Nqn::DISCOVERY.to_field();
        controller.crdt[1] = 7.into();
        controller.ciu = 9;
        controller.cirn = 0x1122_3344_5566_7788.into();
        controller.dctype = 1;
        let bytes = controller.as_bytes();
        assert_eq!((bytes[77], &bytes[80..84]), (8, &[0, 1, 2, 0][..]));
        assert_eq!(bytes[520..522], [0x81, 0]);
        assert_eq!(bytes[1792..1796], [0x04, 0x01, 0, 0]);
        assert_eq!(bytes[130..132], [7, 0]);
        assert_eq!((bytes[135], bytes[136], bytes[143], bytes[1806]), (9, 0x88, 0x11, 1));
        assert_eq!(controller.instance(), None);
        controller.ccrl = 4;
        let instance = ControllerInstance { cntlid: 0, ciu: 9, cirn: 0x1122_3344_5566_7788 };
        assert_eq!((controller.as_bytes()[1807], controller.instance()), (4, Some(instance)));
        assert_eq!(controller.transfer_bytes_max(4096), Some(1 << 20));
        controller.mdts = 60;
        assert_eq!(controller.transfer_bytes_max(4096), Some(u64::MAX));
        assert_eq!(controller.in_capsule_bytes_max(), 4096);
        assert_eq!(controller.subsystem(), Ok(Nqn::DISCOVERY));
        let retry = Status::from_field(0x82 << 1 | 2 << 12);
        assert_eq!(controller.retry_delay_ms(retry), Some(700));
        assert_eq!(controller.retry_delay_ms(Status::INTERNAL_ERROR), None);
    }
}
