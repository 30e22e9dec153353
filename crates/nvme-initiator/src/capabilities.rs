//! The properties of a controller and a namespace that matter to a host.

use nvme_wire::identify::{
    CTRATT_LIMITS_EXCLUDE_METADATA, FLBAS_EXTENDED_LBA, IdentifyController, IdentifyNamespace,
    VWC_PRESENT,
};
use nvme_wire::io::BlockCommand;
use nvme_wire::property::{Cap, Version};

/// Most bytes that a command moves, whatever the controller can take. So what stands on the wire of it, both halves of a
/// Compare and Write among that, is counted in 32 bits with ease.
pub const TRANSFER_BYTES_MAX: u64 = 1 << 30;

/// The limits of a controller.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ControllerLimits {
    /// Version of the specification that it follows.
    pub version: Version,
    /// Entries of its largest queue.
    pub queue_entries_max: u32,
    /// Bytes of its largest transfer; `u64::MAX` for no limit.
    pub transfer_bytes_max: u64,
    /// True if metadata of blocks comes on top of that.
    pub limits_exclude_metadata: bool,
    /// Most bytes of in-capsule data on an I/O queue.
    pub in_capsule_max: u32,
    /// True if completed writes may be lost with the power until a Flush.
    pub volatile_write_cache: bool,
    /// Vendor specific commands of a farflash controller, the `VENDOR_*` bits.
    pub vendor_commands: u64,
    /// Granularity of the keep alive timer; 0 if there is none.
    pub keep_alive_granularity_ms: u32,
    /// Atomic Write Unit Power Fail, 0's based, for namespaces that state none of their own.
    awupf: u16,
}

/// The properties of a namespace.
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
    /// The namespace has more bytes than can be counted.
    #[error(
        "namespace {nsid} cannot be used: it says that it has {blocks} blocks of {block_bytes} bytes, which is 2^64 bytes or more"
    )]
    Size {
        /// The namespace.
        nsid: u32,
        /// NSZE.
        blocks: u64,
        /// Bytes in a block.
        block_bytes: u32,
    },
    /// Not even one block fits into a transfer.
    #[error(
        "namespace {nsid} cannot be used: the controller moves {transfer_bytes_max} bytes at most at once, and a block has more"
    )]
    Transfer {
        /// The namespace.
        nsid: u32,
        /// Largest transfer by MDTS.
        transfer_bytes_max: u64,
    },
}

impl ControllerLimits {
    /// From the capabilities and the identify data of a controller.
    pub fn new(cap: Cap, identify: &IdentifyController) -> Result<Self, CapabilityError> {
        // Bit 0: NVM; bit 6: command sets that are chosen one by one, NVM always among them.
        if cap.css() & 0x41 == 0 {
            return Err(CapabilityError::NoNvmCommandSet { css: cap.css() });
        }
        // Data at an offset in the capsule (ICDOFF) is not used in practice: such a controller gets
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
        let shape = Self {
            nsid,
            blocks: identify.nsze.get(),
            block_bytes: 1 << format.lbads,
            metadata_bytes: u32::from(format.ms.get()),
            atomic_write_blocks: identify.atomic_write_blocks(controller.awupf),
        };
        let Self { blocks, block_bytes, .. } = shape;
        if blocks.checked_mul(u64::from(block_bytes)).is_none() {
            return Err(CapabilityError::Size { nsid, blocks, block_bytes });
        }
        if shape.transfer_blocks_max(controller) == 0 {
            let transfer_bytes_max = controller.transfer_bytes_max;
            return Err(CapabilityError::Transfer { nsid, transfer_bytes_max });
        }
        Ok(shape)
    }

    /// Blocks of the largest read, write or compare: what the controller can take, within [`TRANSFER_BYTES_MAX`].
    #[must_use]
    pub fn transfer_blocks_max(&self, controller: &ControllerLimits) -> u32 {
        let whole = u64::from(self.block_bytes) + u64::from(self.metadata_bytes);
        let counted = match controller.limits_exclude_metadata {
            true => u64::from(self.block_bytes),
            false => whole,
        };
        let blocks = (controller.transfer_bytes_max / counted).min(TRANSFER_BYTES_MAX / whole);
        u32::try_from(blocks).unwrap_or(u32::MAX).min(BlockCommand::NLB_MAX)
    }
}

#[cfg(test)]
mod tests {
    use nvme_wire::identify::LbaFormat;
    use zerocopy::FromZeros;

    use super::*;

    const CAP: Cap = Cap(1 << 37 | 127);

    /// A controller with this MDTS, and what it says of a namespace of so many blocks of `1 << lbads` bytes.
    fn shape_of(mdts: u8, nsze: u64, format: LbaFormat) -> Result<(u64, u32), CapabilityError> {
        let mut controller = IdentifyController::new_zeroed();
        controller.mdts = mdts;
        let limits = ControllerLimits::new(CAP, &controller).expect("the NVM command set");
        let mut namespace = IdentifyNamespace::new_zeroed();
        (namespace.nsze, namespace.lbaf[0]) = (nsze.into(), format);
        namespace.flbas = FLBAS_EXTENDED_LBA;
        let shape = NamespaceShape::new(1, &namespace, &limits)?;
        Ok((shape.blocks, shape.transfer_blocks_max(&limits)))
    }

    fn format(lbads: u8, ms: u16) -> LbaFormat {
        LbaFormat { ms: ms.into(), lbads, ..LbaFormat::new_zeroed() }
    }

    /// Method: the sizes on either side of what 64 bits count, and MDTS on either side of a block.
    #[test]
    fn a_namespace_that_cannot_be_counted_or_transferred_is_refused() {
        let blocks = u64::MAX >> 12;
        assert_eq!(shape_of(5, blocks, format(12, 0)), Ok((blocks, 32)));
        for nsze in [blocks + 1, u64::MAX] {
            let size = CapabilityError::Size { nsid: 1, blocks: nsze, block_bytes: 4096 };
            assert_eq!(shape_of(5, nsze, format(12, 0)), Err(size));
        }
        assert_eq!(shape_of(4, 1, format(16, 0)), Ok((1, 1)));
        let transfer =
            |transfer_bytes_max| CapabilityError::Transfer { nsid: 1, transfer_bytes_max };
        assert_eq!(shape_of(3, 1, format(16, 0)), Err(transfer(8 * 4096)));
        assert_eq!(shape_of(4, 1, format(16, 8)), Err(transfer(16 * 4096)), "with metadata");
        for lbads in [0, 8, 17, 63, 64, 255] {
            let unusable = CapabilityError::Format { nsid: 1, flbas: FLBAS_EXTENDED_LBA };
            assert_eq!(shape_of(0, 1, format(lbads, 0)), Err(unusable), "{lbads}");
        }
    }

    /// Covers a controller without a limit, and one whose limit is out of all bounds.
    #[test]
    fn a_transfer_is_bounded_whatever_the_controller_says() {
        for mdts in [0, 40, 64, 255] {
            for (lbads, ms) in [(9, 0), (12, 64), (16, 0), (16, 0xFFFF), (9, 0xFFFF)] {
                let (_, blocks) = shape_of(mdts, 1, format(lbads, ms)).expect("usable");
                let bytes = u64::from(blocks) * ((1 << lbads) + u64::from(ms));
                assert!(bytes <= TRANSFER_BYTES_MAX, "MDTS {mdts}: {blocks} blocks");
                assert!((1..=BlockCommand::NLB_MAX).contains(&blocks), "MDTS {mdts}");
            }
        }
    }
}
