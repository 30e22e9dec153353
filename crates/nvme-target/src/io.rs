//! I/O commands, checked. Everything that the namespace's size and format decide is decided here;
//! what the data says (Compare, ranges) comes later.

use nvme_wire::io::{BlockCommand, DatasetManagement, PRINFO_PRACT, dsm_ranges};
use nvme_wire::sqe::{Fuse, NSID_ALL};
use nvme_wire::{FabricsType, IoOpcode, Sqe, Status, fabrics};
use units::{Lba, LbaRange, MetadataSize, SectorSize};

use crate::reservation::{ReservationChange, decode_reservation};

/// The only namespace of every subsystem.
pub const NSID: u32 = 1;
/// Reserved flags of a command.
const FLAGS_RESERVED: u8 = 0b0011_1100;
/// The reserved flags of a Fabrics command: fused operations are not for it.
const FABRICS_FLAGS_RESERVED: u8 = 0b0011_1111;
/// The Linux host sends room for 256 ranges, however many it uses.
const DSM_DATA_BYTES_MAX: u32 = 4096;

/// The properties of the namespace that the checks need.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct NamespaceView {
    /// Size in logical blocks (NSZE).
    pub blocks: u64,
    /// Bytes of a logical block. All ranges of commands are in logical blocks.
    pub sector: SectorSize,
    /// Metadata of each block, which is transferred behind its data (extended LBA).
    pub metadata: MetadataSize,
    /// Most blocks that one command moves or verifies (MDTS, VSL).
    pub transfer_blocks_max: u32,
    /// True if writes are refused.
    pub read_only: bool,
}

/// A command that is fit to be executed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum IoCommand {
    /// Return the blocks.
    Read {
        /// The blocks.
        range: LbaRange,
    },
    /// Store the blocks.
    Write {
        /// The blocks.
        range: LbaRange,
        /// Force Unit Access: durable before it is acknowledged, write cache or not.
        fua: bool,
    },
    /// Make every completed write durable.
    Flush,
    /// Make the blocks read as zeroes.
    WriteZeroes {
        /// The blocks.
        range: LbaRange,
        /// The host asks to deallocate them.
        deallocate: bool,
        /// Force Unit Access.
        fua: bool,
    },
    /// Deallocate the ranges in the data; read them with [`deallocate_ranges`].
    Deallocate {
        /// Number of ranges.
        ranges: u32,
    },
    /// Hints of Dataset Management that are accepted and have no effect.
    Hint,
    /// Compare the blocks with the data.
    Compare {
        /// The blocks.
        range: LbaRange,
    },
    /// Compare the blocks with the first half of the data and, if they are equal, store the second
    /// half in their place.
    CompareAndWrite {
        /// The blocks.
        range: LbaRange,
    },
    /// Read and check the blocks, return nothing.
    Verify {
        /// The blocks.
        range: LbaRange,
    },
    /// Change reservations.
    Reserve(ReservationChange),
    /// Return reservations.
    ReservationReport {
        /// Bytes to return.
        len_bytes: u32,
    },
    /// Complete with success, then end the queue: close the connection.
    Disconnect,
}

/// Checks a command of an I/O queue. For a command with data from the host this is to be called when
/// the command arrives, so that no memory is found for what is refused anyway.
pub fn decode_io(sqe: &Sqe, namespace: &NamespaceView) -> Result<IoCommand, Status> {
    let opcode = IoOpcode(sqe.opcode);
    let is_known = matches!(
        opcode,
        IoOpcode::READ
            | IoOpcode::WRITE
            | IoOpcode::FLUSH
            | IoOpcode::WRITE_ZEROES
            | IoOpcode::DATASET_MANAGEMENT
            | IoOpcode::COMPARE
            | IoOpcode::VERIFY
            | IoOpcode::COMPARE_AND_WRITE
            | IoOpcode::RESERVATION_REGISTER
            | IoOpcode::RESERVATION_REPORT
            | IoOpcode::RESERVATION_ACQUIRE
            | IoOpcode::RESERVATION_RELEASE
    );
    if !is_known {
        return if sqe.opcode == fabrics::OPCODE {
            decode_fabrics(sqe)
        } else {
            Err(Status::INVALID_OPCODE.with_dnr())
        };
    }
    let fuse_fits = match sqe.fuse() {
        Fuse::Normal => true,
        Fuse::First => opcode == IoOpcode::COMPARE,
        Fuse::Second => opcode == IoOpcode::WRITE,
        Fuse::Reserved => false,
    };
    if !fuse_fits || sqe.flags & FLAGS_RESERVED != 0 {
        return Err(Status::INVALID_FIELD.with_dnr());
    }
    let nsid = sqe.nsid.get();
    if nsid != NSID && !(nsid == NSID_ALL && opcode == IoOpcode::FLUSH) {
        return Err(Status::INVALID_NAMESPACE_OR_FORMAT.with_dnr());
    }
    match opcode {
        IoOpcode::FLUSH => Ok(IoCommand::Flush),
        IoOpcode::DATASET_MANAGEMENT => decode_dataset_management(sqe, namespace),
        IoOpcode::RESERVATION_REGISTER
        | IoOpcode::RESERVATION_REPORT
        | IoOpcode::RESERVATION_ACQUIRE
        | IoOpcode::RESERVATION_RELEASE => decode_reservation(opcode, sqe),
        _ => decode_block_command(opcode, sqe, namespace),
    }
}

/// Checks a fused operation, of which there is one: Compare and Write of the same blocks. If it cannot
/// be executed, each half has a status of its own. Where each is sound, and they name different blocks, neither is
/// right (NVM, clause 2.1.3.1): both are invalid.
pub fn decode_fused(
    first: &Sqe,
    second: &Sqe,
    namespace: &NamespaceView,
) -> Result<LbaRange, (Status, Status)> {
    let failed = Status::ABORTED_FAILED_FUSED;
    let compare = decode_io(first, namespace).map_err(|status| (status, failed))?;
    let write = decode_io(second, namespace).map_err(|status| (failed, status))?;
    match (compare, write) {
        (IoCommand::Compare { range: compared }, IoCommand::Write { range, .. })
            if compared == range
                && first.fuse() == Fuse::First
                && second.fuse() == Fuse::Second =>
        {
            Ok(range)
        }
        _ => Err((Status::INVALID_FIELD.with_dnr(), Status::INVALID_FIELD.with_dnr())),
    }
}

fn decode_fabrics(sqe: &Sqe) -> Result<IoCommand, Status> {
    if sqe.flags & FABRICS_FLAGS_RESERVED != 0 {
        return Err(Status::INVALID_FIELD.with_dnr());
    }
    match fabrics::fctype(sqe) {
        FabricsType::DISCONNECT => {
            if fabrics::Disconnect::from(*sqe).recfmt.get() != 0 {
                return Err(Status::CONNECT_INCOMPATIBLE_FORMAT.with_dnr());
            }
            Ok(IoCommand::Disconnect)
        }
        _ => Err(Status::INVALID_FIELD.with_dnr()),
    }
}

fn decode_block_command(
    opcode: IoOpcode,
    sqe: &Sqe,
    namespace: &NamespaceView,
) -> Result<IoCommand, Status> {
    let command = BlockCommand::decode(sqe);
    // Without protection information PRINFO is ignored (NVM, figure "Protection Information Field Definition"), but for
    // this bit, which no Verify may have.
    let has_action = opcode == IoOpcode::VERIFY && command.prinfo & PRINFO_PRACT != 0;
    let has_directive = opcode == IoOpcode::WRITE && command.dtype != 0;
    if has_action || has_directive {
        return Err(Status::INVALID_FIELD.with_dnr());
    }
    let is_pair = opcode == IoOpcode::COMPARE_AND_WRITE;
    let moves_data =
        is_pair || matches!(opcode, IoOpcode::READ | IoOpcode::WRITE | IoOpcode::COMPARE);
    let is_bounded = moves_data || opcode == IoOpcode::VERIFY;
    if is_bounded && command.nlb > namespace.transfer_blocks_max {
        return Err(Status::INVALID_FIELD.with_dnr());
    }
    if command.checked_end().is_none_or(|end| end > namespace.blocks) {
        return Err(Status::LBA_OUT_OF_RANGE.with_dnr());
    }
    let block_len = (namespace.sector.bytes() + namespace.metadata.bytes()) as u64;
    let data_len = u64::from(command.nlb) * block_len * if is_pair { 2 } else { 1 };
    if moves_data && u64::from(sqe.dptr.length.get()) != data_len {
        return Err(Status::DATA_SGL_LENGTH_INVALID.with_dnr());
    }
    let changes_data = is_pair || matches!(opcode, IoOpcode::WRITE | IoOpcode::WRITE_ZEROES);
    if changes_data && namespace.read_only {
        return Err(Status::NAMESPACE_WRITE_PROTECTED.with_dnr());
    }
    let range = LbaRange::new(Lba(command.slba), u64::from(command.nlb));
    let fua = command.fua;
    Ok(match opcode {
        IoOpcode::READ => IoCommand::Read { range },
        IoOpcode::WRITE => IoCommand::Write { range, fua },
        IoOpcode::COMPARE => IoCommand::Compare { range },
        IoOpcode::COMPARE_AND_WRITE => IoCommand::CompareAndWrite { range },
        IoOpcode::WRITE_ZEROES => IoCommand::WriteZeroes { range, deallocate: command.deac, fua },
        _ => IoCommand::Verify { range },
    })
}

fn decode_dataset_management(sqe: &Sqe, namespace: &NamespaceView) -> Result<IoCommand, Status> {
    let command = DatasetManagement::decode(sqe);
    let length = sqe.dptr.length.get();
    if length < command.data_len() || length > DSM_DATA_BYTES_MAX {
        return Err(Status::DATA_SGL_LENGTH_INVALID.with_dnr());
    }
    if !command.deallocate {
        return Ok(IoCommand::Hint);
    }
    if namespace.read_only {
        return Err(Status::NAMESPACE_WRITE_PROTECTED.with_dnr());
    }
    Ok(IoCommand::Deallocate { ranges: command.nr })
}

/// The ranges of [`IoCommand::Deallocate`] from its data: all of them within the namespace, or the
/// command fails as a whole. Empty ranges are left out.
pub fn deallocate_ranges<'a>(
    data: &'a [u8],
    ranges: u32,
    namespace: &NamespaceView,
) -> Result<impl Iterator<Item = LbaRange> + use<'a>, Status> {
    let ranges = dsm_ranges(data, ranges).ok_or(Status::DATA_SGL_LENGTH_INVALID.with_dnr())?;
    let is_inside = |slba: u64, nlb: u32| {
        slba.checked_add(u64::from(nlb)).is_some_and(|end| end <= namespace.blocks)
    };
    if !ranges.iter().all(|range| is_inside(range.slba.get(), range.nlb.get())) {
        return Err(Status::LBA_OUT_OF_RANGE.with_dnr());
    }
    let runs =
        ranges.iter().map(|range| LbaRange::new(Lba(range.slba.get()), u64::from(range.nlb.get())));
    Ok(runs.filter(|run| run.blocks > 0))
}

#[cfg(test)]
mod tests;
