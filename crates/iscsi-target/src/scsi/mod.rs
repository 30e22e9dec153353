//! The logical unit: what a CDB asks for, and the answers that need no volume (SPC-4, SBC-3).
//!
//! - SCSI-1: a command is either one of [`commands::SUPPORTED`], which REPORT SUPPORTED OPERATION CODES tells, or
//!   refused.
//! - SCSI-2: what a command names is checked here, before memory is found for its data.

mod alua;
pub mod commands;
mod inquiry;
mod lba_status;
mod mode;
mod parameters;
mod reservations;

use alloc::vec;
use alloc::vec::Vec;

use iscsi_wire::cdb::{maintenance_in, opcode, service_action_in};
use iscsi_wire::{Cdb, Sense};
use reservation::Command;

pub use alua::AccessState;
pub use lba_status::{LbaStatus, Run};
pub use mode::check_mode_select;
pub use parameters::unmap_ranges;
pub use reservations::{ReserveOut, access_of, notice_sense, refusal_sense, reserve_in_answer};

/// Ranges of one UNMAP.
pub const UNMAP_RANGES_MAX: u16 = 256;
/// Physical blocks of one WRITE SAME.
pub const WRITE_SAME_BLOCKS_MAX: u32 = 32_768;

/// A logical unit, as far as answers tell of it.
#[derive(Clone, Debug)]
pub struct Unit<'a> {
    /// The identity of the volume.
    pub uuid: [u8; 16],
    /// The target's name.
    pub target: &'a str,
    /// Its size in blocks.
    pub blocks: u64,
    /// Bytes of a block.
    pub block_bytes: u32,
    /// Blocks in a physical block.
    pub per_physical: u32,
    /// Blocks that one command moves at most. Each of them is atomic.
    pub transfer_blocks_max: u32,
    /// Access to it by the ports of this server.
    pub access: AccessState,
    /// Blocks that can be mapped in its pool.
    pub pool_blocks: u64,
    /// Percentage of these below which initiators are warned.
    pub threshold_percent: u8,
    /// Product revision, at most four characters.
    pub revision: &'a str,
}

impl Unit<'_> {
    /// Blocks of one WRITE SAME.
    #[must_use]
    pub fn write_same_blocks_max(&self) -> u32 {
        WRITE_SAME_BLOCKS_MAX * self.per_physical
    }
}

/// The work of a command.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Operation {
    /// Nothing.
    Nothing,
    /// Return these bytes.
    Answer(Vec<u8>),
    /// Return the sense data of the unit.
    RequestSense {
        /// Bytes that are wanted.
        len: usize,
    },
    /// Return which blocks are mapped.
    LbaStatus(LbaStatus),
    /// Return blocks.
    Read(Extent),
    /// Store blocks.
    Write(Extent),
    /// Store blocks, and read them back.
    WriteAndVerify(Extent),
    /// Read blocks, and compare them with data.
    Verify {
        /// The blocks.
        extent: Extent,
        /// Data for the comparison.
        with: Compare,
    },
    /// Compare blocks with the first half of the data, and store the second half if they are equal.
    CompareAndWrite(Extent),
    /// Store one block many times.
    WriteSame {
        /// The blocks.
        extent: Extent,
        /// Blocks of zeroes may be deallocated.
        unmap: bool,
        /// The block is one of zeroes, and does not come.
        no_data: bool,
    },
    /// Deallocate the ranges that the parameters list.
    Unmap {
        /// Bytes of the parameters.
        len: u32,
    },
    /// Make what was written durable.
    Flush,
    /// Change mode pages.
    ModeSelect {
        /// Bytes of the parameters.
        len: u32,
        /// It has the ten bytes' form.
        is_ten: bool,
    },
    /// Return registrations or the reservation.
    ReserveIn {
        /// The service action.
        action: u8,
        /// Bytes that are wanted.
        len: usize,
    },
    /// Change them as the parameters say.
    ReserveOut(ReserveOut),
    /// Change them.
    Reserve(Command),
}

/// Data that VERIFY compares with.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Compare {
    /// None: the blocks have to be readable.
    Nothing,
    /// As many blocks.
    Each,
    /// One block.
    Same,
}

/// Blocks that a command names.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Extent {
    /// The first.
    pub lba: u64,
    /// Their number.
    pub blocks: u32,
}

impl Operation {
    /// Bytes that the command brings, with blocks of this size.
    #[must_use]
    pub fn data_out_len(&self, block_bytes: u32) -> u64 {
        let bytes = |blocks: u32| u64::from(blocks) * u64::from(block_bytes);
        match self {
            Self::Write(extent) | Self::WriteAndVerify(extent) => bytes(extent.blocks),
            Self::Verify { extent, with: Compare::Each } => bytes(extent.blocks),
            Self::Verify { with: Compare::Same, .. } | Self::WriteSame { no_data: false, .. } => {
                bytes(1)
            }
            Self::CompareAndWrite(extent) => 2 * bytes(extent.blocks),
            Self::Unmap { len } | Self::ModeSelect { len, .. } => u64::from(*len),
            Self::ReserveOut(command) => command.len_bytes().into(),
            _ => 0,
        }
    }

    /// The first block that the command names, if it names one.
    #[must_use]
    pub fn lba(&self) -> Option<u64> {
        match self {
            Self::Read(extent)
            | Self::Write(extent)
            | Self::WriteAndVerify(extent)
            | Self::CompareAndWrite(extent)
            | Self::Verify { extent, .. }
            | Self::WriteSame { extent, .. } => Some(extent.lba),
            Self::LbaStatus(asked) => Some(asked.lba),
            _ => None,
        }
    }

    /// Returns whether the initiator may bring a part of the data: whole blocks of it are stored.
    #[must_use]
    pub fn may_be_partial(&self) -> bool {
        matches!(self, Self::Write(_) | Self::WriteAndVerify(_))
    }

    /// Returns whether the command changes the medium.
    #[must_use]
    pub fn changes(&self) -> bool {
        matches!(
            self,
            Self::Write(_)
                | Self::WriteAndVerify(_)
                | Self::CompareAndWrite(_)
                | Self::WriteSame { .. }
                | Self::Unmap { .. }
        )
    }
}

/// Commands that are answered before a unit attention is told (SAM-5, clause 5.14).
#[must_use]
pub fn precedes_unit_attention(cdb: &Cdb) -> bool {
    matches!(cdb.opcode(), opcode::INQUIRY | opcode::REPORT_LUNS | opcode::REQUEST_SENSE)
}

/// Returns what `cdb` asks of the unit, or of a unit that is not there.
///
/// # Errors
/// It asks for what there is not.
pub fn decode(cdb: &Cdb, unit: Option<&Unit<'_>>) -> Result<Operation, Sense> {
    let Some(unit) = unit else { return decode_without_unit(cdb) };
    commands::find(cdb)?;
    // NACA and LINK.
    if cdb.control() & 0x07 != 0 {
        let at = cdb.len_bytes().unwrap_or(6) - 1;
        return Err(Sense::invalid_cdb(u16::try_from(at).unwrap_or(0)));
    }
    if let Some(sense) = unit.access.refusal(cdb) {
        return Err(sense);
    }
    if let Some(operation) = reservations::decode(cdb) {
        return operation;
    }
    match cdb.opcode() {
        opcode::TEST_UNIT_READY => Ok(Operation::Nothing),
        opcode::REQUEST_SENSE if cdb.byte(1) & 1 != 0 => Err(Sense::invalid_cdb(1)),
        opcode::REQUEST_SENSE => Ok(Operation::RequestSense { len: cdb.byte(4).into() }),
        opcode::INQUIRY => inquiry::answer(cdb, unit),
        opcode::REPORT_LUNS => report_luns(cdb),
        opcode::MODE_SENSE_6 | opcode::MODE_SENSE_10 => mode::sense(cdb, unit),
        opcode::MODE_SELECT_6 => mode::select(cdb, cdb.byte(4).into(), false),
        opcode::MODE_SELECT_10 => mode::select(cdb, cdb.u16_at(7).into(), true),
        opcode::START_STOP_UNIT => start_stop(cdb),
        // The medium cannot be removed anyway.
        opcode::PREVENT_ALLOW => Ok(Operation::Nothing),
        opcode::READ_CAPACITY_10 => read_capacity_10(cdb, unit),
        opcode::SERVICE_ACTION_IN_16 => service_action(cdb, unit),
        opcode::MAINTENANCE_IN => maintenance(cdb, unit),
        _ => decode_blocks(cdb, unit),
    }
}

fn decode_without_unit(cdb: &Cdb) -> Result<Operation, Sense> {
    match cdb.opcode() {
        opcode::INQUIRY => inquiry::answer_without_unit(cdb),
        opcode::REPORT_LUNS => report_luns(cdb),
        opcode::REQUEST_SENSE => {
            let len = usize::from(cdb.byte(4));
            Ok(Operation::Answer(truncated(Sense::NO_SUCH_UNIT.encode().to_vec(), len)))
        }
        _ => Err(Sense::NO_SUCH_UNIT),
    }
}

/// Decodes commands that name blocks.
fn decode_blocks(cdb: &Cdb, unit: &Unit<'_>) -> Result<Operation, Sense> {
    let (lba, blocks) = cdb.blocks();
    let is_six = cdb.len_bytes() == Some(6);
    // RDPROTECT, WRPROTECT, VRPROTECT: the blocks have no protection information.
    let is_protected = !is_six && cdb.byte(1) & 0xE0 != 0;
    match cdb.opcode() {
        opcode::UNMAP if cdb.byte(1) & 1 != 0 => return Err(Sense::invalid_cdb(1)),
        opcode::UNMAP => return Ok(Operation::Unmap { len: cdb.u16_at(7).into() }),
        opcode::SYNCHRONIZE_CACHE_10 | opcode::SYNCHRONIZE_CACHE_16 => {
            return in_range(lba, blocks, unit).map(|_| Operation::Flush);
        }
        _ if is_protected => return Err(Sense::invalid_cdb(1)),
        opcode::WRITE_SAME_10 | opcode::WRITE_SAME_16 => return write_same(cdb, unit),
        opcode::COMPARE_AND_WRITE => {
            let extent = in_range(lba, cdb.byte(13).into(), unit)?;
            return transfer(extent, unit, 13).map(Operation::CompareAndWrite);
        }
        opcode::WRITE_ATOMIC_16 => {
            if cdb.u16_at(10) != 0 {
                // No boundary is kept but that of the whole.
                return Err(Sense::invalid_cdb(10));
            }
            let extent = in_range(lba, cdb.u16_at(12).into(), unit)?;
            return transfer(extent, unit, 12).map(Operation::Write);
        }
        _ => {}
    }
    let extent = in_range(lba, blocks, unit)?;
    let at = match cdb.len_bytes() {
        Some(6) => 4,
        Some(12) => 6,
        Some(16) => 10,
        _ => 7,
    };
    match cdb.opcode() {
        opcode::VERIFY_10 | opcode::VERIFY_12 | opcode::VERIFY_16 => verify(cdb, extent, unit, at),
        opcode::READ_6 | opcode::READ_10 | opcode::READ_12 | opcode::READ_16 => {
            transfer(extent, unit, at).map(Operation::Read)
        }
        opcode::WRITE_AND_VERIFY_10 | opcode::WRITE_AND_VERIFY_12 | opcode::WRITE_AND_VERIFY_16 => {
            transfer(extent, unit, at).map(Operation::WriteAndVerify)
        }
        opcode::WRITE_6 | opcode::WRITE_10 | opcode::WRITE_12 | opcode::WRITE_16 => {
            transfer(extent, unit, at).map(Operation::Write)
        }
        _ => Err(Sense::INVALID_OPCODE),
    }
}

fn in_range(lba: u64, blocks: u32, unit: &Unit<'_>) -> Result<Extent, Sense> {
    match lba.checked_add(u64::from(blocks)) {
        Some(end) if end <= unit.blocks => Ok(Extent { lba, blocks }),
        _ => Err(Sense::LBA_OUT_OF_RANGE.with_information(lba)),
    }
}

/// Checks that one command may move so many blocks; `at` is where it says so.
fn transfer(extent: Extent, unit: &Unit<'_>, at: u16) -> Result<Extent, Sense> {
    if extent.blocks > unit.transfer_blocks_max {
        return Err(Sense::invalid_cdb(at));
    }
    Ok(extent)
}

fn verify(cdb: &Cdb, extent: Extent, unit: &Unit<'_>, at: u16) -> Result<Operation, Sense> {
    let with = match cdb.byte(1) >> 1 & 3 {
        0 => Compare::Nothing,
        1 => Compare::Each,
        3 => Compare::Same,
        _ => return Err(Sense::invalid_cdb(1)),
    };
    transfer(extent, unit, at).map(|extent| Operation::Verify { extent, with })
}

fn write_same(cdb: &Cdb, unit: &Unit<'_>) -> Result<Operation, Sense> {
    let (lba, blocks) = cdb.blocks();
    let is_long = cdb.opcode() == opcode::WRITE_SAME_16;
    let (unmap, anchor, no_data) =
        (cdb.byte(1) & 8 != 0, cdb.byte(1) & 16 != 0, cdb.byte(1) & 1 != 0);
    // Bits 1 and 2 were PBDATA and LBDATA.
    if anchor || cdb.byte(1) & 6 != 0 || (no_data && !is_long) {
        return Err(Sense::invalid_cdb(1));
    }
    let extent = in_range(lba, blocks, unit)?;
    if blocks == 0 || blocks > unit.write_same_blocks_max() {
        return Err(Sense::invalid_cdb(if is_long { 10 } else { 7 }));
    }
    Ok(Operation::WriteSame { extent, unmap, no_data })
}

fn start_stop(cdb: &Cdb) -> Result<Operation, Sense> {
    let (condition, flags) = (cdb.byte(4) >> 4, cdb.byte(4) & 0x0F);
    let (loej, start) = (flags & 2 != 0, flags & 1 != 0);
    match condition {
        // The medium cannot be removed.
        0 if loej && !start => Err(Sense::invalid_cdb(4)),
        // The medium neither moves nor sleeps.
        0..=3 | 7 | 0xA | 0xB => Ok(Operation::Nothing),
        _ => Err(Sense::invalid_cdb(4)),
    }
}

fn report_luns(cdb: &Cdb) -> Result<Operation, Sense> {
    // All units, or those that have an address; of well known ones there is none.
    let luns = match cdb.byte(2) {
        0 | 2 => 1,
        1 => 0,
        _ => return Err(Sense::invalid_cdb(2)),
    };
    let mut bytes = vec![0; 8 + 8 * luns];
    bytes[3] = u8::try_from(8 * luns).expect("one unit");
    Ok(Operation::Answer(truncated(bytes, cdb.u32_at(6) as usize)))
}

fn read_capacity_10(cdb: &Cdb, unit: &Unit<'_>) -> Result<Operation, Sense> {
    if cdb.byte(8) & 1 == 0 && cdb.u32_at(2) != 0 {
        return Err(Sense::invalid_cdb(2));
    }
    let last = u32::try_from(unit.blocks.saturating_sub(1)).unwrap_or(u32::MAX);
    let mut bytes = last.to_be_bytes().to_vec();
    bytes.extend_from_slice(&unit.block_bytes.to_be_bytes());
    Ok(Operation::Answer(bytes))
}

fn service_action(cdb: &Cdb, unit: &Unit<'_>) -> Result<Operation, Sense> {
    let len = cdb.u32_at(10) as usize;
    match cdb.byte(1) & 0x1F {
        service_action_in::READ_CAPACITY_16 => {
            let mut bytes = vec![0; 32];
            bytes[..8].copy_from_slice(&unit.blocks.saturating_sub(1).to_be_bytes());
            bytes[8..12].copy_from_slice(&unit.block_bytes.to_be_bytes());
            bytes[13] = u8::try_from(unit.per_physical.ilog2()).expect("at most 31");
            // LBPME and LBPRZ: thin, and deallocated blocks read as zeroes.
            bytes[14] = 0xC0;
            Ok(Operation::Answer(truncated(bytes, len)))
        }
        service_action_in::GET_LBA_STATUS => LbaStatus::decode(cdb, unit).map(Operation::LbaStatus),
        _ => Err(Sense::invalid_cdb(1)),
    }
}

fn maintenance(cdb: &Cdb, unit: &Unit<'_>) -> Result<Operation, Sense> {
    let len = cdb.u32_at(6) as usize;
    match cdb.byte(1) & 0x1F {
        maintenance_in::REPORT_TARGET_PORT_GROUPS => {
            alua::report(cdb, unit.access).map(|bytes| Operation::Answer(truncated(bytes, len)))
        }
        maintenance_in::REPORT_SUPPORTED_OPCODES => {
            commands::report(cdb).map(|bytes| Operation::Answer(truncated(bytes, len)))
        }
        maintenance_in::REPORT_SUPPORTED_TASK_FUNCTIONS => {
            // ABORT TASK, ABORT TASK SET, CLEAR TASK SET, LOGICAL UNIT RESET, TARGET RESET.
            let mut bytes = vec![0xDA, 0, 0, 0];
            if cdb.byte(2) & 0x80 != 0 {
                bytes = vec![0xDA, 0, 0, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
            }
            Ok(Operation::Answer(truncated(bytes, len)))
        }
        _ => Err(Sense::invalid_cdb(1)),
    }
}

/// At most `len` of the bytes.
fn truncated(mut bytes: Vec<u8>, len: usize) -> Vec<u8> {
    bytes.truncate(len);
    bytes
}

#[cfg(test)]
mod tests;
