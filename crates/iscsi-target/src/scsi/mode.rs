//! Mode pages (SPC-4, clauses 6.11 to 6.14 and 7.5; SBC-3, clause 6.4).

use alloc::vec;
use alloc::vec::Vec;

use iscsi_wire::cdb::opcode;
use iscsi_wire::{Cdb, Sense};

use super::{Operation, Unit, truncated};

/// DPOFUA, in the device-specific parameter.
const DPOFUA: u8 = 0x10;

/// A page: its code, its contents behind code and length, none of which can be changed.
type Page = (u8, &'static [u8]);

const PAGES: [Page; 4] = [
    // Read-Write Error Recovery: reallocation by itself.
    (0x01, &[0xC0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
    // Caching: WCE is 0, as what is acknowledged is durable.
    (0x08, &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
    // Control: commands may be reordered.
    (0x0A, &[0, 0x10, 0, 0, 0, 0, 0, 0, 0, 0]),
    // Informational Exceptions Control: none is reported.
    (0x1C, &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
];

/// Answers MODE SENSE.
pub(super) fn sense(cdb: &Cdb, unit: &Unit<'_>) -> Result<Operation, Sense> {
    let is_ten = cdb.opcode() == opcode::MODE_SENSE_10;
    let (control, page, subpage) = (cdb.byte(2) >> 6, cdb.byte(2) & 0x3F, cdb.byte(3));
    if control == 3 {
        return Err(Sense::SAVING_NOT_SUPPORTED);
    }
    if subpage != 0 && (page != 0x3F || subpage != 0xFF) {
        return Err(Sense::invalid_cdb(3));
    }
    let wanted = PAGES.iter().filter(|(code, _)| page == 0x3F || page == *code);
    let mut pages = Vec::new();
    for (code, content) in wanted {
        pages.extend_from_slice(&[*code, u8::try_from(content.len()).expect("a short page")]);
        match control {
            // Nothing can be changed.
            1 => pages.resize(pages.len() + content.len(), 0),
            _ => pages.extend_from_slice(content),
        }
    }
    if pages.is_empty() {
        return Err(Sense::invalid_cdb(2));
    }
    let (is_bare, is_long) = (cdb.byte(1) & 8 != 0, is_ten && cdb.byte(1) & 0x10 != 0);
    let descriptor = if is_bare { Vec::new() } else { block_descriptor(unit, is_long) };
    let mut bytes = header(is_ten, is_long, descriptor.len(), pages.len());
    bytes.extend_from_slice(&descriptor);
    bytes.extend_from_slice(&pages);
    let len = if is_ten { usize::from(cdb.u16_at(7)) } else { usize::from(cdb.byte(4)) };
    Ok(Operation::Answer(truncated(bytes, len)))
}

fn header(is_ten: bool, is_long: bool, descriptor: usize, pages: usize) -> Vec<u8> {
    let short = |len: usize| u8::try_from(len).expect("a short header");
    if !is_ten {
        return vec![short(3 + descriptor + pages), 0, DPOFUA, short(descriptor)];
    }
    vec![0, short(6 + descriptor + pages), 0, DPOFUA, u8::from(is_long), 0, 0, short(descriptor)]
}

fn block_descriptor(unit: &Unit<'_>, is_long: bool) -> Vec<u8> {
    if is_long {
        return [&unit.blocks.to_be_bytes()[..], &[0; 4], &unit.block_bytes.to_be_bytes()].concat();
    }
    let blocks = u32::try_from(unit.blocks).unwrap_or(u32::MAX);
    let [_, len @ ..] = unit.block_bytes.to_be_bytes();
    [&blocks.to_be_bytes()[..], &[0], &len].concat()
}

/// Decodes MODE SELECT.
pub(super) fn select(cdb: &Cdb, len: u32, is_ten: bool) -> Result<Operation, Sense> {
    // SP: pages are not saved; PF: they have the standard's form.
    match cdb.byte(1) & 0x11 {
        0x10 => Ok(Operation::ModeSelect { len, is_ten }),
        _ => Err(Sense::invalid_cdb(1)),
    }
}

/// Checks the parameters of MODE SELECT, which may say what is so already.
///
/// # Errors
/// They are cut short, or would change something.
pub fn check_mode_select(bytes: &[u8], is_ten: bool) -> Result<(), Sense> {
    if bytes.is_empty() {
        return Ok(());
    }
    let header = if is_ten { 8 } else { 4 };
    let short = Sense::PARAMETER_LIST_LENGTH;
    let descriptor = match is_ten {
        true => bytes.get(6..8).map(|len| usize::from(u16::from_be_bytes([len[0], len[1]]))),
        false => bytes.get(3).map(|len| usize::from(*len)),
    };
    let mut rest = bytes.get(header + descriptor.ok_or(short)?..).ok_or(short)?;
    while let [code, len, tail @ ..] = rest {
        let content = tail.get(..usize::from(*len)).ok_or(short)?;
        let at = u16::try_from(bytes.len() - rest.len()).unwrap_or(u16::MAX);
        let page = PAGES.iter().find(|page| page.0 == *code & 0x3F);
        if page.is_none_or(|page| page.1 != content) {
            return Err(Sense::invalid_parameter(at));
        }
        rest = &tail[usize::from(*len)..];
    }
    if rest.is_empty() { Ok(()) } else { Err(short) }
}
