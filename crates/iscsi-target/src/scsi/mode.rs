//! Mode pages (SPC-4, clauses 6.11 to 6.14 and 7.5; SBC-3, clause 6.4).

use alloc::vec;
use alloc::vec::Vec;

use iscsi_wire::cdb::opcode;
use iscsi_wire::{Cdb, Sense};

use super::inquiry::threshold_exponent;
use super::{Operation, Unit, truncated};

/// DPOFUA, in the device-specific parameter.
const DPOFUA: u8 = 0x10;
/// Stands for all pages.
const ALL_PAGES: u8 = 0x3F;
/// Stands for all subpages.
const ALL_SUBPAGES: u8 = 0xFF;
/// SPF: the page is a subpage, and its header is longer.
const SUBPAGE_FORMAT: u8 = 0x40;

/// A page, of which nothing can be changed.
struct Page {
    code: u8,
    subpage: u8,
    /// All behind code and length.
    content: Vec<u8>,
}

/// Returns all pages, in the order of their codes.
fn pages(unit: &Unit<'_>) -> [Page; 5] {
    let page = |code, subpage, content: &[u8]| Page { code, subpage, content: content.to_vec() };
    [
        // Read-Write Error Recovery: reallocation by itself.
        page(0x01, 0, &[0xC0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
        // Caching: WCE is 0, as what is acknowledged is durable.
        page(0x08, 0, &[0; 18]),
        // Control: commands may be reordered; those that another initiator aborts end with TASK ABORTED (TAS).
        page(0x0A, 0, &[0, 0x10, 0, 0x40, 0, 0, 0, 0, 0, 0]),
        // Informational Exceptions Control: none is reported.
        page(0x1C, 0, &[0; 10]),
        page(0x1C, 2, &provisioning(unit)),
    ]
}

/// Logical Block Provisioning: one soft threshold, which all initiators are told of (SITUA is 0).
fn provisioning(unit: &Unit<'_>) -> [u8; 20] {
    /// Enabled, soft, armed while resources decrease.
    const DECREASING: u8 = 0x80;
    /// Resources that are left to map blocks to.
    const AVAILABLE: u8 = 1;
    let blocks = unit.pool_blocks / 100 * u64::from(unit.threshold_percent);
    let sets = u32::try_from(blocks >> threshold_exponent(unit)).unwrap_or(u32::MAX).max(1);
    let mut content = [0; 20];
    (content[12], content[13]) = (DECREASING, AVAILABLE);
    content[16..].copy_from_slice(&sets.to_be_bytes());
    content
}

impl Page {
    /// Encodes the page, with zeroes for its contents if what can be changed is asked for.
    fn encode(&self, is_changeable: bool) -> Vec<u8> {
        let len = u8::try_from(self.content.len()).expect("a short page");
        let mut bytes = match self.subpage {
            0 => vec![self.code, len],
            subpage => vec![SUBPAGE_FORMAT | self.code, subpage, 0, len],
        };
        match is_changeable {
            true => bytes.resize(bytes.len() + self.content.len(), 0),
            false => bytes.extend_from_slice(&self.content),
        }
        bytes
    }
}

/// Answers MODE SENSE.
pub(super) fn sense(cdb: &Cdb, unit: &Unit<'_>) -> Result<Operation, Sense> {
    let is_ten = cdb.opcode() == opcode::MODE_SENSE_10;
    let (control, page, subpage) = (cdb.byte(2) >> 6, cdb.byte(2) & 0x3F, cdb.byte(3));
    if control == 3 {
        return Err(Sense::SAVING_NOT_SUPPORTED);
    }
    let mut wanted =
        pages(unit).into_iter().filter(|it| page == ALL_PAGES || page == it.code).peekable();
    if wanted.peek().is_none() {
        return Err(Sense::invalid_cdb(2));
    }
    // Of all pages some subpages can be asked for only with all others.
    let mut of_subpage = wanted
        .filter(|it| subpage == ALL_SUBPAGES || subpage == it.subpage)
        .filter(|_| page != ALL_PAGES || matches!(subpage, 0 | ALL_SUBPAGES))
        .peekable();
    if of_subpage.peek().is_none() {
        return Err(Sense::invalid_cdb(3));
    }
    let pages: Vec<u8> = of_subpage.flat_map(|it| it.encode(control == 1)).collect();
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
pub fn check_mode_select(bytes: &[u8], is_ten: bool, unit: &Unit<'_>) -> Result<(), Sense> {
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
    while !rest.is_empty() {
        let (code, subpage, content, behind) = next_page(rest).ok_or(short)?;
        let at = u16::try_from(bytes.len() - rest.len()).unwrap_or(u16::MAX);
        let is_same = |page: &Page| {
            (page.code, page.subpage, page.content.as_slice()) == (code, subpage, content)
        };
        if !pages(unit).iter().any(is_same) {
            return Err(Sense::invalid_parameter(at));
        }
        rest = behind;
    }
    Ok(())
}

/// The code, the subpage and the content of the first page of `bytes`, and what lies behind it; `None` if it is cut short.
fn next_page(bytes: &[u8]) -> Option<(u8, u8, &[u8], &[u8])> {
    let (first, rest) = bytes.split_first()?;
    let (subpage, len, rest) = match first & SUBPAGE_FORMAT {
        0 => {
            let (len, rest) = rest.split_first()?;
            (0, usize::from(*len), rest)
        }
        _ => {
            let ([subpage, len @ ..], rest) = rest.split_first_chunk::<3>()?;
            (*subpage, usize::from(u16::from_be_bytes(*len)), rest)
        }
    };
    let (content, behind) = rest.split_at_checked(len)?;
    Some((first & 0x3F, subpage, content, behind))
}
