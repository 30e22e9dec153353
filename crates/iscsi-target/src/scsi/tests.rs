use alloc::vec::Vec;

use iscsi_wire::cdb::opcode;
use iscsi_wire::{Cdb, Sense};
use proptest::prelude::*;

use super::*;

const UNIT: Unit<'static> = Unit {
    uuid: *b"a volume of test",
    target: "iqn.2026-01.io.farflash:a",
    blocks: 1000,
    block_bytes: 4096,
    per_physical: 1,
    transfer_blocks_max: 256,
    revision: "0.1",
};

fn cdb(bytes: &[u8]) -> Cdb {
    let mut all = [0; 16];
    all[..bytes.len()].copy_from_slice(bytes);
    Cdb(all)
}

fn decoded(bytes: &[u8]) -> Result<Operation, Sense> {
    decode(&cdb(bytes), Some(&UNIT))
}

fn answer(bytes: &[u8]) -> Vec<u8> {
    match decoded(bytes) {
        Ok(Operation::Answer(bytes)) => bytes,
        other => panic!("{other:?}"),
    }
}

#[test]
fn transfers_are_checked_against_the_unit() {
    let read = |lba, blocks| decode(&Cdb::with_blocks(opcode::READ_16, lba, blocks), Some(&UNIT));
    assert_eq!(read(744, 256), Ok(Operation::Read(Extent { lba: 744, blocks: 256 })));
    let beyond = Sense::LBA_OUT_OF_RANGE;
    assert_eq!(read(745, 256), Err(beyond.with_information(745)));
    assert_eq!(read(u64::MAX, 1), Err(beyond.with_information(u64::MAX)));
    assert_eq!(read(0, 257), Err(Sense::invalid_cdb(10)));
    assert_eq!(read(1000, 0), Ok(Operation::Read(Extent { lba: 1000, blocks: 0 })));
    assert_eq!(read(1001, 0), Err(beyond.with_information(1001)));
    assert_eq!(decoded(&[opcode::READ_10, 0x20, 0, 0, 0, 0, 0, 0, 1]), Err(Sense::invalid_cdb(1)));
    assert_eq!(decoded(&[0x7F]), Err(Sense::INVALID_OPCODE));
    assert_eq!(decoded(&[0x00, 0, 0, 0, 0, 0x04]), Err(Sense::invalid_cdb(5)), "NACA");
}

#[test]
fn write_same_names_its_blocks() {
    let same =
        |flags, blocks: u8| decoded(&[opcode::WRITE_SAME_10, flags, 0, 0, 0, 1, 0, 0, blocks]);
    let extent = Extent { lba: 1, blocks: 2 };
    assert_eq!(same(8, 2), Ok(Operation::WriteSame { extent, unmap: true, no_data: false }));
    assert_eq!(same(0, 0), Err(Sense::invalid_cdb(7)));
    assert_eq!(same(16, 2), Err(Sense::invalid_cdb(1)), "ANCHOR");
    assert_eq!(same(1, 2), Err(Sense::invalid_cdb(1)), "NDOB is not in ten bytes");
}

#[test]
fn capacity_says_that_the_unit_is_thin() {
    let short = answer(&[opcode::READ_CAPACITY_10]);
    assert_eq!(short, [0, 0, 3, 0xE7, 0, 0, 0x10, 0]);
    let long = answer(&[opcode::SERVICE_ACTION_IN_16, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 32]);
    assert_eq!(long[..16], [0, 0, 0, 0, 0, 0, 3, 0xE7, 0, 0, 0x10, 0, 0, 0, 0xC0, 0]);
    assert_eq!(long.len(), 32);
}

/// A unit of small blocks tells how many are a physical one, and counts all its limits in small ones.
#[test]
fn small_blocks_come_with_their_physical_ones() {
    let unit = Unit { block_bytes: 512, per_physical: 8, transfer_blocks_max: 2048, ..UNIT };
    let answer = |bytes: &[u8]| match decode(&cdb(bytes), Some(&unit)) {
        Ok(Operation::Answer(bytes)) => bytes,
        other => panic!("{other:?}"),
    };
    let capacity =
        answer(&[opcode::SERVICE_ACTION_IN_16, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 32]);
    assert_eq!(capacity[7..16], [0xE7, 0, 0, 2, 0, 0, 3, 0xC0, 0]);
    let limits = answer(&[opcode::INQUIRY, 1, 0xB0, 1, 0]);
    let word = |at: usize| u32::from_be_bytes(limits[at..at + 4].try_into().expect("four"));
    assert_eq!([word(8), word(12), word(28), word(40)], [2048, 2048, 8, 8 * 32_768]);
    assert_eq!(limits[6..8], [0, 8]);
    let same = Cdb::with_blocks(opcode::WRITE_SAME_16, 0, 1000);
    assert!(decode(&same, Some(&unit)).is_ok());
}

#[test]
fn inquiry_answers_as_long_as_it_says() {
    let standard = answer(&[opcode::INQUIRY, 0, 0, 1, 0]);
    assert_eq!((standard.len(), standard[4]), (96, 91));
    assert_eq!(standard[8..36], *b"FARFLASHdVol            0.1 ");
    let pages = answer(&[opcode::INQUIRY, 1, 0, 1, 0]);
    for page in &pages[4..] {
        let bytes = answer(&[opcode::INQUIRY, 1, *page, 1, 0]);
        assert_eq!(bytes[1], *page);
        assert_eq!(usize::from(bytes[3]), bytes.len() - 4, "page {page:#x}");
    }
    assert_eq!(decoded(&[opcode::INQUIRY, 1, 0xC0, 1, 0]), Err(Sense::invalid_cdb(2)));
    assert_eq!(decoded(&[opcode::INQUIRY, 0, 0x80, 1, 0]), Err(Sense::invalid_cdb(2)));
    assert_eq!(answer(&[opcode::INQUIRY, 0, 0, 0, 5]).len(), 5);
    let absent = decode(&cdb(&[opcode::INQUIRY, 0, 0, 0, 36]), None);
    assert!(matches!(absent, Ok(Operation::Answer(bytes)) if bytes[0] == 0x7F));
    assert_eq!(decode(&cdb(&[opcode::TEST_UNIT_READY]), None), Err(Sense::NO_SUCH_UNIT));
}

#[test]
fn mode_pages_can_be_read_and_not_changed() {
    let all = answer(&[opcode::MODE_SENSE_6, 0, 0x3F, 0, 255]);
    assert_eq!((usize::from(all[0]), all[2], all[3]), (all.len() - 1, 0x10, 8));
    let bare = answer(&[opcode::MODE_SENSE_10, 8, 0x0A, 0, 0, 0, 0, 0, 255]);
    assert_eq!((bare[1], bare.len(), bare[8]), (18, 20, 0x0A));
    assert_eq!(decoded(&[opcode::MODE_SENSE_6, 0, 0xC8, 0, 255]), Err(Sense::SAVING_NOT_SUPPORTED));
    let mut select = bare.clone();
    assert_eq!(check_mode_select(&select, true), Ok(()));
    select[10] = 4;
    assert_eq!(check_mode_select(&select, true), Err(Sense::invalid_parameter(8)));
    assert_eq!(check_mode_select(&bare[..15], true), Err(Sense::PARAMETER_LIST_LENGTH));
}

#[test]
fn unmap_lists_are_checked() {
    let mut list = [0; 40];
    (list[1], list[3]) = (38, 32);
    (list[15], list[19], list[31], list[35]) = (9, 3, 20, 0);
    assert_eq!(unmap_ranges(&list, &UNIT), Ok([Extent { lba: 9, blocks: 3 }].to_vec()));
    assert_eq!(unmap_ranges(&list[..39], &UNIT), Err(Sense::PARAMETER_LIST_LENGTH));
    assert_eq!(unmap_ranges(&[], &UNIT), Ok(Vec::new()));
    list[14] = 4;
    assert_eq!(unmap_ranges(&list, &UNIT), Err(Sense::LBA_OUT_OF_RANGE.with_information(0x409)));
}

#[test]
fn each_command_is_reported_alone_and_in_the_list() {
    let all = answer(&[opcode::MAINTENANCE_IN, 0x0C, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF]);
    let rows: Vec<&[u8]> = all[4..].chunks_exact(8).collect();
    assert_eq!(rows.len(), commands::SUPPORTED.len());
    for row in rows {
        let options = if row[5] & 1 == 1 { 2 } else { 1 };
        let one =
            answer(&[opcode::MAINTENANCE_IN, 0x0C, options, row[0], 0, row[3], 0, 0, 0xFF, 0xFF]);
        assert_eq!((one[1], one[3], one[4]), (3, row[7], row[0]));
        assert_eq!(usize::from(one[3]), one.len() - 4);
        let expected = cdb(&row[..1]).len_bytes().map(|len| len as u8);
        assert_eq!(Some(one[3]), expected, "{:#x}", row[0]);
    }
    let absent = answer(&[opcode::MAINTENANCE_IN, 0x0C, 3, 0x7E, 0, 0, 0, 0, 0xFF, 0xFF]);
    assert_eq!(absent, [0, 1, 0, 0]);
}

proptest! {
    /// Whatever a CDB asks for lies within the unit and within the limits.
    #[test]
    fn any_cdb_is_taken(bytes: [u8; 16], code in 0..commands::SUPPORTED.len(), list: Vec<u8>) {
        let mut bytes = bytes;
        bytes[0] = commands::SUPPORTED[code].opcode;
        if let Ok(operation) = decode(&Cdb(bytes), Some(&UNIT)) {
            prop_assert!(operation.data_out_len(4096) <= 2 * 256 * 4096);
            if let Operation::Read(extent) | Operation::Write(extent) = operation {
                prop_assert!(extent.lba + u64::from(extent.blocks) <= UNIT.blocks);
            }
        }
        let _ = (decode(&Cdb(bytes), None), unmap_ranges(&list, &UNIT), check_mode_select(&list, true));
    }
}
