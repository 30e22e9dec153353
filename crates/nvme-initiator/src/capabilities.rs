//! What a controller and a namespace say that matters to a host.

use nvme_wire::identify::{
    CTRATT_LIMITS_EXCLUDE_METADATA, FLBAS_EXTENDED_LBA, IdentifyController, IdentifyNamespace,
    VWC_PRESENT,
};
use nvme_wire::property::{Cap, Version};

/// What a controller can take.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ControllerLimits {
    /// Version of the specification that it follows.
    pub version: Version,
    /// Entries of its largest queue.
    pub queue_entries_max: u32,
    /// Bytes of its largest transfer; `u64::MAX` for no limit.
    pub transfer_bytes_max: u64,
    /// Whether metadata of blocks comes on top of that.
    pub limits_exclude_metadata: bool,
    /// Most bytes of in-capsule data on an I/O queue.
    pub in_capsule_max: u32,
    /// Whether completed writes may be lost with the power until a Flush.
    pub volatile_write_cache: bool,
    /// Vendor specific commands of a farflash controller, the `VENDOR_*` bits.
    pub vendor_commands: u64,
    /// Granularity of the keep alive timer; 0 if there is none.
    pub keep_alive_granularity_ms: u32,
    /// Atomic Write Unit Power Fail, 0's based, for namespaces that state none of their own.
    awupf: u16,
}

/// What a namespace is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct NamespaceShape {
    /// Its identifier.
    pub nsid: u32,
    /// Blocks that it has.
    pub blocks: u64,
    /// Bytes in a block, a power of two.
    pub block_bytes: u32,
    /// Bytes of metadata that follow the data of each block in a transfer.
    pub metadata_bytes: u32,
    /// Blocks of the largest write that is wholly there or wholly absent after a power failure.
    pub atomic_write_blocks: u32,
}

/// Why a controller or a namespace cannot be used.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum CapabilityError {
    /// The controller does not know the NVM command set.
    #[error("the controller does not support the NVM command set (CAP.CSS {css:#04x})")]
    NoNvmCommandSet {
        /// CAP.CSS.
        css: u8,
    },
    /// The namespace's format is none that this host can use.
    #[error(
        "namespace {nsid}: LBA format {flbas:#04x} cannot be used (blocks of 512 to 65536 bytes can, with metadata behind the data of each or without)"
    )]
    Format {
        /// The namespace.
        nsid: u32,
        /// FLBAS.
        flbas: u8,
    },
}

impl ControllerLimits {
    /// From the capabilities and the identify data of a controller.
    pub fn new(cap: Cap, identify: &IdentifyController) -> Result<Self, CapabilityError> {
        // Bit 0: NVM; bit 6: command sets that are chosen one by one, NVM always among them.
        if cap.css() & 0x41 == 0 {
            return Err(CapabilityError::NoNvmCommandSet { css: cap.css() });
        }
        // Data at an offset in the capsule (ICDOFF) is in nobody's use: such a controller gets
        // its data by R2T.
        let in_capsule_max = match identify.icdoff.get() {
            0 => u32::try_from(identify.in_capsule_bytes_max()).unwrap_or(u32::MAX),
            _ => 0,
        };
        let page_size = cap.page_size_min();
        Ok(Self {
            version: identify.version(),
            queue_entries_max: cap.queue_entries_max(),
            transfer_bytes_max: identify.transfer_bytes_max(page_size).unwrap_or(u64::MAX),
            limits_exclude_metadata: identify.ctratt.get() & CTRATT_LIMITS_EXCLUDE_METADATA != 0,
            in_capsule_max,
            volatile_write_cache: identify.vwc & VWC_PRESENT != 0,
            vendor_commands: identify.vendor_commands(),
            keep_alive_granularity_ms: u32::from(identify.kas.get()) * 100,
            awupf: identify.awupf.get(),
        })
    }
}

impl NamespaceShape {
    /// From the identify data of namespace `nsid` of a controller.
    pub fn new(
        nsid: u32,
        identify: &IdentifyNamespace,
        controller: &ControllerLimits,
    ) -> Result<Self, CapabilityError> {
        let unusable = CapabilityError::Format { nsid, flbas: identify.flbas };
        let format = identify.format().ok_or(unusable)?;
        // Metadata in a buffer of its own cannot come over a fabric; of protection information nothing is
        // known here.
        let has_metadata = format.ms.get() > 0;
        let is_extended = identify.flbas & FLBAS_EXTENDED_LBA != 0 && identify.dps == 0;
        if !(9..=16).contains(&format.lbads) || (has_metadata && !is_extended) {
            return Err(unusable);
        }
        Ok(Self {
            nsid,
            blocks: identify.nsze.get(),
            block_bytes: 1 << format.lbads,
            metadata_bytes: u32::from(format.ms.get()),
            atomic_write_blocks: identify.atomic_write_blocks(controller.awupf),
        })
    }
}
