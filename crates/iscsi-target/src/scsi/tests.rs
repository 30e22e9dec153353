use alloc::vec;
use alloc::vec::Vec;

use iscsi_wire::cdb::opcode;
use iscsi_wire::{Cdb, Sense};
use proptest::prelude::*;
use reservation::{Access, Kind};

use super::*;

const UNIT: Unit<'static> = Unit {
    uuid: *b"a volume of test",
    target: "iqn.2026-01.io.farflash:a",
    blocks: 1000,
    block_bytes: 4096,
    per_physical: 1,
    transfer_blocks_max: 256,
    access: AccessState::ActiveOptimized,
    pool_blocks: 1_000_000,
    threshold_percent: 5,
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
    assert_eq!(check_mode_select(&select, true, &UNIT), Ok(()));
    select[10] = 4;
    assert_eq!(check_mode_select(&select, true, &UNIT), Err(Sense::invalid_parameter(8)));
    assert_eq!(check_mode_select(&bare[..15], true, &UNIT), Err(Sense::PARAMETER_LIST_LENGTH));
}

/// The threshold of provisioning is a subpage: it is found by its number, among all subpages, and not among all pages.
#[test]
fn the_provisioning_threshold_is_a_subpage() {
    let ask = |page, subpage| decoded(&[opcode::MODE_SENSE_6, 8, page, subpage, 255]);
    let Ok(Operation::Answer(bytes)) = ask(0x1C, 2) else { panic!("a page") };
    assert_eq!(bytes[4..8], [0x5C, 2, 0, 20]);
    // 5 % of 1 000 000 blocks are 195 times 256.
    assert_eq!(bytes[20..28], [0x80, 1, 0, 0, 0, 0, 0, 195]);
    assert_eq!(bytes.len(), 28);
    let page = answer(&[opcode::INQUIRY, 1, 0xB2, 1, 0]);
    assert_eq!(page[4..], [8, 0xE4, 2, 0]);
    let codes = |page, subpage| {
        let Ok(Operation::Answer(bytes)) = ask(page, subpage) else { panic!("pages") };
        let (mut rest, mut codes) = (&bytes[4..], Vec::new());
        while !rest.is_empty() {
            let is_sub = rest[0] & 0x40 != 0;
            let len = if is_sub { 4 + usize::from(rest[3]) } else { 2 + usize::from(rest[1]) };
            codes.push((rest[0] & 0x3F, if is_sub { rest[1] } else { 0 }));
            rest = &rest[len..];
        }
        codes
    };
    let plain = [(1, 0), (8, 0), (0x0A, 0), (0x1C, 0)];
    assert_eq!(codes(0x3F, 0), plain);
    assert_eq!(codes(0x3F, 0xFF), [&plain[..], &[(0x1C, 2)]].concat());
    assert_eq!(codes(0x1C, 0xFF), [(0x1C, 0), (0x1C, 2)]);
    for (page, subpage, at) in [(0x1C, 1, 3), (0x0A, 2, 3), (0x3F, 2, 3), (0x02, 0, 2)] {
        assert_eq!(ask(page, subpage), Err(Sense::invalid_cdb(at)), "{page:#x}/{subpage:#x}");
    }
    // What it says can be selected, and nothing else.
    let mut select = answer(&[opcode::MODE_SENSE_10, 8, 0x1C, 0xFF, 0, 0, 0, 0, 255]);
    assert_eq!(check_mode_select(&select, true, &UNIT), Ok(()));
    let last = select.len() - 1;
    select[last] += 1;
    assert_eq!(check_mode_select(&select, true, &UNIT), Err(Sense::invalid_parameter(20)));
    assert_eq!(check_mode_select(&select[..last], true, &UNIT), Err(Sense::PARAMETER_LIST_LENGTH));
}

/// An initiator finds the one group in standard data, in the identification of its path, and in the report.
#[test]
fn all_portals_are_one_target_port_group() {
    let standard = answer(&[opcode::INQUIRY, 0, 0, 1, 0]);
    assert_eq!(standard[5] >> 4, 1, "TPGS: implicit");
    let identification = answer(&[opcode::INQUIRY, 1, 0x83, 1, 0]);
    let has = |bytes: &[u8]| identification.windows(bytes.len()).any(|it| it == bytes);
    assert!(has(&[0x51, 0x94, 0, 4, 0, 0, 0, 1]) && has(&[0x51, 0x95, 0, 4, 0, 0, 0, 1]));
    let report = |format: u8| [opcode::MAINTENANCE_IN, format << 5 | 0x0A, 0, 0, 0, 0, 0, 0, 1, 0];
    let group = [0, 0x8D, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1];
    assert_eq!(answer(&report(0)), [&[0, 0, 0, 12], &group[..]].concat());
    assert_eq!(answer(&report(1)), [&[0, 0, 0, 16, 0x10, 0, 0, 0], &group[..]].concat());
    assert_eq!(decoded(&report(2)), Err(Sense::invalid_cdb(1)));
    let mut short = report(0);
    short[8..].copy_from_slice(&[0, 5]);
    assert_eq!(answer(&short), [0, 0, 0, 12, 0]);
    assert_eq!(decoded(&[0xA4, 0x0A]), Err(Sense::INVALID_OPCODE), "SET TARGET PORT GROUPS");
}

#[test]
fn a_state_refuses_what_it_does_not_serve() {
    let outcome = |access, cdb_bytes: &[u8]| {
        decode(&cdb(cdb_bytes), Some(&Unit { access, ..UNIT })).map(drop)
    };
    let inquiry = [opcode::INQUIRY, 0, 0, 1, 0];
    let report = [opcode::MAINTENANCE_IN, 0x0A, 0, 0, 0, 0, 0, 0, 1, 0];
    let codes = [opcode::MAINTENANCE_IN, 0x0C, 0, 0, 0, 0, 0, 0, 1, 0];
    let mode = [opcode::MODE_SENSE_6, 0, 0x3F, 0, 255];
    let keys = [opcode::PERSISTENT_RESERVE_IN, 0, 0, 0, 0, 0, 0, 0, 255];
    for (access, code, sense, is_standby) in [
        (AccessState::Standby, 2, Sense::IN_STANDBY, true),
        (AccessState::Unavailable, 3, Sense::UNAVAILABLE, false),
        (AccessState::Transitioning, 15, Sense::IN_TRANSITION, false),
    ] {
        assert_eq!(outcome(access, &[opcode::READ_6, 0, 0, 0, 1]), Err(sense));
        assert_eq!(outcome(access, &[opcode::TEST_UNIT_READY]), Err(sense));
        assert_eq!(outcome(access, &codes), Err(sense));
        assert_eq!((outcome(access, &inquiry), outcome(access, &report)), (Ok(()), Ok(())));
        let in_standby = if is_standby { Ok(()) } else { Err(sense) };
        assert_eq!((outcome(access, &mode), outcome(access, &keys)), (in_standby, in_standby));
        let told = decode(&cdb(&report), Some(&Unit { access, ..UNIT }));
        assert!(matches!(told, Ok(Operation::Answer(bytes)) if bytes[4] == code));
    }
}

/// Method: runs that are longer than what is asked for, and than a count of 32 bits, in answers of all lengths.
#[test]
fn lba_status_is_told_run_by_run() {
    let ask = |lba: u8, len: u8| {
        decoded(&[opcode::SERVICE_ACTION_IN_16, 0x12, 0, 0, 0, 0, 0, 0, 0, lba, 0, 0, 0, len])
    };
    let asked = |lba, len| match ask(lba, len) {
        Ok(Operation::LbaStatus(asked)) => asked,
        other => panic!("{other:?}"),
    };
    let run = |blocks, is_mapped| Run { blocks, is_mapped };
    let runs = [run(3, true), run(5, false), run(2000, true)];
    let bytes = asked(200, 56).answer(runs);
    assert_eq!(bytes[..8], [0, 0, 0, 52, 0, 0, 0, 0]);
    assert_eq!(bytes[8..24], [0, 0, 0, 0, 0, 0, 0, 200, 0, 0, 0, 3, 0, 0, 0, 0]);
    assert_eq!(bytes[24..40], [0, 0, 0, 0, 0, 0, 0, 203, 0, 0, 0, 5, 1, 0, 0, 0]);
    // The last block is number 999.
    assert_eq!(bytes[40..], [0, 0, 0, 0, 0, 0, 0, 208, 0, 0, 3, 24, 0, 0, 0, 0]);
    assert_eq!((asked(200, 55).descriptors_max(), asked(200, 55).answer(runs)[3]), (2, 36));
    assert_eq!((asked(200, 3).descriptors_max(), asked(200, 3).answer(runs)), (1, [0; 3].to_vec()));
    assert_eq!(asked(0, 255).descriptors_max(), 15);
    let end = decode(&Cdb::with_blocks(opcode::SERVICE_ACTION_IN_16, 1000, 0), Some(&UNIT));
    assert_eq!(end, Err(Sense::invalid_cdb(1)));
    let mut beyond = cdb(&[opcode::SERVICE_ACTION_IN_16, 0x12]);
    beyond.0[2..10].copy_from_slice(&1000_u64.to_be_bytes());
    assert_eq!(decode(&beyond, Some(&UNIT)), Err(Sense::LBA_OUT_OF_RANGE.with_information(1000)));
    let large = Unit { blocks: 1 << 40, ..UNIT };
    let all = [opcode::SERVICE_ACTION_IN_16, 0x12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 40];
    let Ok(Operation::LbaStatus(asked)) = decode(&cdb(&all), Some(&large)) else { panic!("asked") };
    let bytes = asked.answer([run(1 << 40, false)]);
    assert_eq!(bytes[16..21], [0xFF, 0xFF, 0xFF, 0xFF, 1]);
    assert_eq!(bytes[24..32], u64::from(u32::MAX).to_be_bytes());
}

/// PERSISTENT RESERVE OUT with REGISTER AND MOVE, whose parameters name an initiator port.
#[test]
fn register_and_move_names_an_initiator_port() {
    let parameters = |port: u8, form: u8, text: &[u8]| {
        let mut id = [form, 0, 0, 0].to_vec();
        id.extend_from_slice(text);
        id.resize(id.len().next_multiple_of(4).max(24), 0);
        id[3] = (id.len() - 4) as u8;
        let keys = [7_u64, 9].map(u64::to_be_bytes).concat();
        [keys, vec![0, 3, 0, port, 0, 0, 0, id.len() as u8], id].concat()
    };
    let decoded = |bytes: &[u8]| {
        let mut cdb = cdb(&[opcode::PERSISTENT_RESERVE_OUT, 7]);
        cdb.0[5..9].copy_from_slice(&(bytes.len() as u32).to_be_bytes());
        match decode(&cdb, Some(&UNIT))? {
            Operation::ReserveOut(out) => {
                assert_eq!(out.len_bytes() as usize, bytes.len());
                out.with_parameters(bytes)
            }
            other => panic!("{other:?}"),
        }
    };
    let whole = parameters(1, 0x45, b"iqn.2026-01.com.Example:b,i,0x23d000002\0");
    let to = reservation::Host::Iscsi {
        name: "iqn.2026-01.com.example:b".into(),
        isid: [0, 2, 0x3D, 0, 0, 2],
    };
    let moved = Command::Move { current: 7, key: 9, to, unregisters: true, persistence: true };
    assert_eq!(decoded(&whole), Ok(moved));
    for (len, sense) in
        [(23, Sense::PARAMETER_LIST_LENGTH), (whole.len() - 1, Sense::PARAMETER_LIST_LENGTH)]
    {
        assert_eq!(decoded(&whole[..len]), Err(sense));
    }
    assert_eq!(decoded(&[0; 281]), Err(Sense::PARAMETER_LIST_LENGTH));
    let name = b"iqn.a,i,0x80";
    assert_eq!(decoded(&parameters(2, 0x45, name)), Err(Sense::invalid_parameter(18)));
    for (form, text) in [
        (0x05, &name[..]),
        (0x40, name),
        (0x45, b"iqn.a"),
        (0x45, b"iqn.a,i,0x"),
        (0x45, b"iqn.a,i,0x+1"),
        (0x45, b"iqn.a,i,0x1234567890abc"),
        (0x45, b"nqn.a,i,0x80"),
        (0x45, b"iqn.\xFF,i,0x80"),
    ] {
        let refused = decoded(&parameters(1, form, text));
        assert_eq!(refused, Err(Sense::invalid_parameter(24)), "{form:#x} {text:?}");
    }
}

/// Third parties, extents, scopes other than the unit, and registrations of other ports than the initiator's.
#[test]
fn forms_of_reservations_that_there_are_not_are_refused() {
    for (lock, unlock) in
        [(opcode::RESERVE_6, opcode::RELEASE_6), (opcode::RESERVE_10, opcode::RELEASE_10)]
    {
        assert_eq!(decoded(&[lock, 0]), Ok(Operation::Reserve(Command::Lock)));
        assert_eq!(decoded(&[unlock, 0]), Ok(Operation::Reserve(Command::Unlock)));
        for flag in [0x01, 0x02, 0x10] {
            assert_eq!(decoded(&[lock, flag]), Err(Sense::invalid_cdb(1)), "{flag:#x}");
            assert_eq!(decoded(&[unlock, flag]), Err(Sense::invalid_cdb(1)), "{flag:#x}");
        }
    }
    let out_with = |action, scope_and_type, flags, more: usize| {
        let mut parameters = [7_u64, 9].map(u64::to_be_bytes).concat();
        parameters.extend([0, 0, 0, 0, flags, 0, 0, 0]);
        parameters.resize(24 + more, 0);
        let [high, low] = ((24 + more) as u16).to_be_bytes();
        let bytes = [opcode::PERSISTENT_RESERVE_OUT, action, scope_and_type, 0, 0, 0, 0, high, low];
        match decoded(&bytes)? {
            Operation::ReserveOut(out) => out.with_parameters(&parameters),
            other => panic!("{other:?}"),
        }
    };
    let out = |action, scope_and_type, flags| out_with(action, scope_and_type, flags, 0);
    let acquired = Command::Acquire { current: 7, kind: Kind::WriteExclusive };
    assert_eq!(out(1, 0x01, 0), Ok(acquired));
    assert_eq!(out(1, 0x11, 0), Err(Sense::invalid_cdb(2)), "a scope that is no unit");
    assert_eq!(out(1, 0x02, 0), Err(Sense::invalid_cdb(2)), "a type of the past");
    let registered = Command::Set { current: Some(7), key: 9, persistence: true };
    assert_eq!(out(0, 0, 0x01), Ok(registered.clone()));
    assert_eq!(out(0, 0, 0x05), Ok(registered), "at all target ports, of which there is one");
    for action in [0, 6] {
        let refused = out(action, 0, 0x08);
        assert_eq!(refused, Err(Sense::invalid_parameter(20)), "other initiator ports");
        // Their TransportIDs follow.
        for more in [4, 28, 12 * 240] {
            let refused = out_with(action, 0, 0x09, more);
            assert_eq!(refused, Err(Sense::invalid_parameter(20)), "{more} bytes of ports");
            let refused = out_with(action, 0, 0x01, more);
            assert_eq!(refused, Err(Sense::PARAMETER_LIST_LENGTH), "{more} bytes of nothing");
        }
        assert_eq!(out_with(action, 0, 0x08, 4096), Err(Sense::PARAMETER_LIST_LENGTH));
    }
    let refused = out_with(1, 0x01, 0x08, 28);
    assert_eq!(refused, Err(Sense::PARAMETER_LIST_LENGTH), "it registers no one");
}

/// A command that tells of data counts as reading it, and one that tells of the unit does not.
#[test]
fn questions_about_data_conflict_as_reads_do() {
    let access = |action| access_of(&cdb(&[opcode::SERVICE_ACTION_IN_16, action]));
    assert_eq!(access(0x12), Some(Access::Read), "GET LBA STATUS");
    assert_eq!(access(0x10), Some(Access::Other), "READ CAPACITY");
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
        let _ = (decode(&Cdb(bytes), None), unmap_ranges(&list, &UNIT));
        let _ = check_mode_select(&list, true, &UNIT);
    }
}
