//! INQUIRY: standard data and vital product data (SPC-4, clauses 6.4 and 7.8; SBC-3, clause 6.5).

use alloc::format;
use alloc::vec;
use alloc::vec::Vec;
use core::fmt::Write as _;

use iscsi_wire::{Cdb, Sense};

use super::alua::{GROUP, IMPLICIT, PORT};
use super::{Operation, UNMAP_RANGES_MAX, Unit, truncated};

/// T10 vendor identification, of eight characters.
const VENDOR: &[u8; 8] = b"FARFLASH";
/// Product identification, of sixteen characters.
const PRODUCT: &[u8; 16] = b"dVol            ";
/// SAM-5, iSCSI, SPC-4, SBC-3.
const VERSIONS: [u16; 4] = [0x00A0, 0x0960, 0x0460, 0x04C0];
/// Physical blocks of one command beyond which it gets no faster.
const OPTIMAL_BLOCKS: u32 = 256;
/// Bytes in which thresholds of provisioning are counted.
const THRESHOLD_SET_BYTES: u32 = 1 << 20;
/// Vital product data pages that there are.
const PAGES: [u8; 6] = [0x00, 0x80, 0x83, 0xB0, 0xB1, 0xB2];

/// Answers an INQUIRY of the unit.
pub(super) fn answer(cdb: &Cdb, unit: &Unit<'_>) -> Result<Operation, Sense> {
    let (len, page) = (usize::from(cdb.u16_at(3)), cdb.byte(2));
    let bytes = match cdb.byte(1) {
        0 if page != 0 => return Err(Sense::invalid_cdb(2)),
        0 => standard(0, IMPLICIT, unit.revision),
        1 => vital(page, unit)?,
        _ => return Err(Sense::invalid_cdb(1)),
    };
    Ok(Operation::Answer(truncated(bytes, len)))
}

/// Answers an INQUIRY of a unit that is not there.
pub(super) fn answer_without_unit(cdb: &Cdb) -> Result<Operation, Sense> {
    if cdb.byte(1) != 0 {
        return Err(Sense::NO_SUCH_UNIT);
    }
    Ok(Operation::Answer(truncated(standard(0x7F, 0, ""), cdb.u16_at(3).into())))
}

fn standard(peripheral: u8, tpgs: u8, revision: &str) -> Vec<u8> {
    let mut bytes = vec![0; 96];
    // SPC-4; hierarchical addresses, response format 2; queues of commands.
    (bytes[0], bytes[2], bytes[3], bytes[4], bytes[7]) = (peripheral, 0x06, 0x12, 91, 0x02);
    bytes[5] = tpgs;
    bytes[8..16].copy_from_slice(VENDOR);
    bytes[16..32].copy_from_slice(PRODUCT);
    bytes[32..36].fill(b' ');
    let revision = revision.as_bytes();
    let len = revision.len().min(4);
    bytes[32..32 + len].copy_from_slice(&revision[..len]);
    for (field, version) in bytes[58..].chunks_exact_mut(2).zip(VERSIONS) {
        field.copy_from_slice(&version.to_be_bytes());
    }
    bytes
}

fn vital(page: u8, unit: &Unit<'_>) -> Result<Vec<u8>, Sense> {
    let content = match page {
        0x00 => PAGES.to_vec(),
        0x80 => serial(unit).into_bytes(),
        0x83 => identification(unit),
        0xB0 => block_limits(unit),
        // Medium rotation rate 1: it does not rotate.
        0xB1 => [&[0, 1][..], &[0; 58]].concat(),
        // UNMAP, WRITE SAME (16) and (10) with UNMAP; zeroes are read; thin.
        0xB2 => vec![threshold_exponent(unit), 0xE4, 2, 0],
        _ => return Err(Sense::invalid_cdb(2)),
    };
    let len = u16::try_from(content.len()).expect("a short page").to_be_bytes();
    Ok([&[0, page, len[0], len[1]][..], &content].concat())
}

/// The logarithm of the blocks in which thresholds are counted: those of 1 MiB.
pub(super) fn threshold_exponent(unit: &Unit<'_>) -> u8 {
    u8::try_from((THRESHOLD_SET_BYTES / unit.block_bytes).ilog2()).expect("at most 31")
}

/// The identity as hexadecimal digits.
fn serial(unit: &Unit<'_>) -> alloc::string::String {
    let mut text = alloc::string::String::new();
    // Writing into a string does not fail.
    unit.uuid.iter().for_each(|byte| write!(text, "{byte:02x}").unwrap_or_default());
    text
}

/// Page 83h: names of the unit, of its port and of its target.
fn identification(unit: &Unit<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut put = |code_set: u8, association: u8, kind: u8, value: &[u8]| {
        // Protocol identifier 5, iSCSI, where the designator is of a port or of the target.
        let (protocol, valid) = if association == 0 { (0, 0) } else { (0x50, 0x80) };
        let len = u8::try_from(value.len()).expect("a short designator");
        bytes.extend_from_slice(&[protocol | code_set, valid | association << 4 | kind, 0, len]);
        bytes.extend_from_slice(value);
    };
    // NAA 3: assigned locally. 60 bits of the identity.
    let mut naa = [0; 8];
    naa.copy_from_slice(&unit.uuid[8..]);
    naa[0] = 0x30 | naa[0] & 0x0F;
    put(1, 0, 3, &naa);
    put(2, 0, 1, &[VENDOR.as_slice(), serial(unit).as_bytes()].concat());
    put(1, 1, 4, &[[0; 2], PORT].concat());
    put(1, 1, 5, &[[0; 2], GROUP].concat());
    for (association, name) in [(1, format!("{},t,0x0001", unit.target)), (2, unit.target.into())] {
        let mut name = name.into_bytes();
        // Ended by a zero, and a multiple of four.
        name.resize((name.len() + 1).next_multiple_of(4), 0);
        put(3, association, 8, &name);
    }
    bytes
}

/// Page B0h.
fn block_limits(unit: &Unit<'_>) -> Vec<u8> {
    let mut bytes = vec![0; 60];
    let max = unit.transfer_blocks_max.to_be_bytes();
    // WSNZ: a WRITE SAME names how many blocks.
    bytes[0] = 1;
    bytes[1] = u8::try_from(unit.transfer_blocks_max).unwrap_or(u8::MAX);
    let physical = u16::try_from(unit.per_physical).unwrap_or(u16::MAX);
    bytes[2..4].copy_from_slice(&physical.to_be_bytes());
    bytes[4..8].copy_from_slice(&max);
    let optimal = unit.transfer_blocks_max.min(OPTIMAL_BLOCKS * unit.per_physical);
    bytes[8..12].copy_from_slice(&optimal.to_be_bytes());
    bytes[16..20].copy_from_slice(&u32::MAX.to_be_bytes());
    bytes[20..24].copy_from_slice(&u32::from(UNMAP_RANGES_MAX).to_be_bytes());
    // Of a physical block that is named in part nothing is deallocated: the part is made zeroes.
    bytes[24..28].copy_from_slice(&unit.per_physical.to_be_bytes());
    bytes[28..32].copy_from_slice(&0x8000_0000_u32.to_be_bytes());
    bytes[32..40].copy_from_slice(&u64::from(unit.write_same_blocks_max()).to_be_bytes());
    // Atomic writes: as long as any, anywhere.
    bytes[40..44].copy_from_slice(&max);
    bytes
}
