use alloc::vec;
use alloc::vec::Vec;

use nvme_wire::SglDescriptor;
use nvme_wire::fabrics::Property;
use nvme_wire::fabrics::PropertySize;
use nvme_wire::io::DsmRange;
use zerocopy::IntoBytes;

use super::*;

const VIEW: NamespaceView = NamespaceView {
    blocks: 1000,
    sector: SectorSize::Bytes4096,
    metadata: MetadataSize::None,
    transfer_blocks_max: 256,
    read_only: false,
};

fn block(opcode: IoOpcode, slba: u64, nlb: u32) -> Sqe {
    let moves = matches!(opcode, IoOpcode::READ | IoOpcode::WRITE | IoOpcode::COMPARE);
    BlockCommand::new(slba, nlb).encode(opcode, NSID, if moves { nlb * 4096 } else { 0 })
}

fn status(sqe: &Sqe) -> Status {
    let status = decode_io(sqe, &VIEW).expect_err("refused");
    assert!(status.dnr(), "{status}: the same command would fail again");
    status.code()
}

#[test]
fn good_commands_are_understood() {
    let range = LbaRange::new(Lba(10), 5);
    let cases = [
        (block(IoOpcode::READ, 10, 5), IoCommand::Read { range }),
        (block(IoOpcode::WRITE, 10, 5), IoCommand::Write { range, fua: false }),
        (block(IoOpcode::COMPARE, 10, 5), IoCommand::Compare { range }),
        (block(IoOpcode::VERIFY, 10, 5), IoCommand::Verify { range }),
        (
            BlockCommand::new(10, 5).encode(IoOpcode::COMPARE_AND_WRITE, NSID, 2 * 5 * 4096),
            IoCommand::CompareAndWrite { range },
        ),
        (
            block(IoOpcode::WRITE_ZEROES, 10, 5),
            IoCommand::WriteZeroes { range, deallocate: false, fua: false },
        ),
        (Sqe::new(IoOpcode::FLUSH.0, NSID), IoCommand::Flush),
        (Sqe::new(IoOpcode::FLUSH.0, NSID_ALL), IoCommand::Flush),
        (DatasetManagement::deallocate(NSID, 2), IoCommand::Deallocate { ranges: 2 }),
        (Sqe::from(fabrics::Disconnect::new()), IoCommand::Disconnect),
    ];
    for (sqe, command) in cases {
        assert_eq!(decode_io(&sqe, &VIEW), Ok(command));
    }
    let options = BlockCommand { fua: true, deac: true, ..BlockCommand::new(10, 5) };
    assert_eq!(
        decode_io(&options.encode(IoOpcode::WRITE_ZEROES, NSID, 0), &VIEW),
        Ok(IoCommand::WriteZeroes { range, deallocate: true, fua: true })
    );
    let mut hint = DatasetManagement::deallocate(NSID, 1);
    hint.cdw11 = 3.into();
    assert_eq!(decode_io(&hint, &VIEW), Ok(IoCommand::Hint));
}

/// Extended LBA: every block that is transferred has its metadata behind it, and limits count blocks.
#[test]
fn transfers_carry_the_metadata_of_each_block() {
    for metadata in MetadataSize::ALL {
        let view = NamespaceView { metadata, ..VIEW };
        let block_len = 4096 + metadata.bytes() as u32;
        for (opcode, halves) in [
            (IoOpcode::READ, 1),
            (IoOpcode::WRITE, 1),
            (IoOpcode::COMPARE, 1),
            (IoOpcode::COMPARE_AND_WRITE, 2),
        ] {
            let sqe = |blocks: u32, len| BlockCommand::new(0, blocks).encode(opcode, NSID, len);
            for blocks in [1, 7, 256] {
                let len = blocks * block_len * halves;
                assert!(decode_io(&sqe(blocks, len), &view).is_ok(), "{opcode:?} {metadata:?}");
                for wrong in [blocks * 4096 * halves, len - 1, len + 1] {
                    let outcome = decode_io(&sqe(blocks, wrong), &view);
                    let refused = Err(Status::DATA_SGL_LENGTH_INVALID.with_dnr());
                    assert!(outcome == refused || wrong == len, "{opcode:?} {wrong}");
                }
            }
            let beyond = decode_io(&sqe(257, 257 * block_len * halves), &view);
            assert_eq!(beyond, Err(Status::INVALID_FIELD.with_dnr()));
        }
    }
}

/// Method: each command that moves data, with lengths that are right for either size of logical blocks.
#[test]
fn transfers_have_the_length_of_their_logical_blocks() {
    let view = NamespaceView { sector: SectorSize::Bytes512, transfer_blocks_max: 2048, ..VIEW };
    for (opcode, halves) in [
        (IoOpcode::READ, 1),
        (IoOpcode::WRITE, 1),
        (IoOpcode::COMPARE, 1),
        (IoOpcode::COMPARE_AND_WRITE, 2),
    ] {
        for blocks in [1, 7, 8, 1000] {
            let sqe = |len| BlockCommand::new(0, blocks).encode(opcode, NSID, len);
            let range = LbaRange::new(Lba(0), u64::from(blocks));
            let decoded = decode_io(&sqe(blocks * 512 * halves), &view);
            assert!(
                matches!(
                    decoded,
                    Ok(IoCommand::Read { range: found }
                        | IoCommand::Write { range: found, .. }
                        | IoCommand::Compare { range: found }
                        | IoCommand::CompareAndWrite { range: found }) if found == range
                ),
                "{opcode:?} {blocks}: {decoded:?}"
            );
            let refused = Err(Status::DATA_SGL_LENGTH_INVALID.with_dnr());
            assert_eq!(decode_io(&sqe(blocks * 4096 * halves), &view), refused, "{opcode:?}");
        }
    }
}

#[test]
fn every_other_opcode_is_invalid() {
    let known = [0x00, 0x01, 0x02, 0x05, 0x08, 0x09, 0x0C, 0x0D, 0x0E, 0x11, 0x15, 0x7F, 0x81];
    for opcode in (0..=255).filter(|opcode| !known.contains(opcode)) {
        assert_eq!(status(&Sqe::new(opcode, NSID)), Status::INVALID_OPCODE, "{opcode:#x}");
    }
    let property = Property::get(0, PropertySize::Eight);
    assert_eq!(status(&Sqe::from(property)), Status::INVALID_FIELD);
}

#[test]
fn fields_that_do_not_fit_are_refused_by_name() {
    for nsid in [0, 2, NSID_ALL] {
        let read = Sqe { nsid: nsid.into(), ..block(IoOpcode::READ, 0, 1) };
        assert_eq!(status(&read), Status::INVALID_NAMESPACE_OR_FORMAT);
    }
    for fuse in [1, 2, 3] {
        let mut read = block(IoOpcode::READ, 0, 1);
        read.flags |= fuse;
        assert_eq!(status(&read), Status::INVALID_FIELD);
    }
    let acting = BlockCommand { prinfo: PRINFO_PRACT, ..BlockCommand::new(0, 1) };
    assert_eq!(status(&acting.encode(IoOpcode::VERIFY, NSID, 0)), Status::INVALID_FIELD);
    let directive = BlockCommand { dtype: 1, ..BlockCommand::new(0, 1) };
    assert_eq!(status(&directive.encode(IoOpcode::WRITE, NSID, 4096)), Status::INVALID_FIELD);
    let moving = [IoOpcode::READ, IoOpcode::WRITE, IoOpcode::COMPARE, IoOpcode::VERIFY];
    for opcode in moving {
        assert_eq!(status(&block(opcode, 0, 257)), Status::INVALID_FIELD, "beyond MDTS or VSL");
    }
    assert!(decode_io(&block(IoOpcode::WRITE_ZEROES, 0, 1000), &VIEW).is_ok(), "has no limit");
    for length in [0, 4095, 8192] {
        let dptr = SglDescriptor::transport(length);
        let read = Sqe { dptr, ..block(IoOpcode::READ, 0, 1) };
        assert_eq!(status(&read), Status::DATA_SGL_LENGTH_INVALID);
    }
}

/// A host's protection information has no effect where the namespace has none.
#[test]
fn protection_information_that_is_not_there_is_ignored() {
    for opcode in [IoOpcode::READ, IoOpcode::WRITE, IoOpcode::COMPARE, IoOpcode::WRITE_ZEROES] {
        let plain = decode_io(&block(opcode, 0, 1), &VIEW);
        for prinfo in 1..16 {
            let said = BlockCommand { prinfo, stc: true, ..BlockCommand::new(0, 1) };
            let mut said = said.encode(opcode, NSID, 0);
            said.dptr = block(opcode, 0, 1).dptr;
            assert_eq!(decode_io(&said, &VIEW), plain, "{opcode:?} {prinfo:#x}");
        }
    }
    for prinfo in 1..PRINFO_PRACT {
        let checked = BlockCommand { prinfo, ..BlockCommand::new(0, 1) };
        assert!(decode_io(&checked.encode(IoOpcode::VERIFY, NSID, 0), &VIEW).is_ok());
    }
}

#[test]
fn ranges_end_with_the_namespace() {
    for opcode in [IoOpcode::READ, IoOpcode::WRITE, IoOpcode::VERIFY, IoOpcode::WRITE_ZEROES] {
        assert!(decode_io(&block(opcode, 999, 1), &VIEW).is_ok());
        for (slba, nlb) in [(1000, 1), (999, 2), (u64::MAX, 1), (u64::MAX, 2), (1 << 63, 256)] {
            assert_eq!(status(&block(opcode, slba, nlb)), Status::LBA_OUT_OF_RANGE);
        }
    }
}

#[test]
fn a_read_only_namespace_is_not_written() {
    let view = NamespaceView { read_only: true, ..VIEW };
    for sqe in [
        block(IoOpcode::WRITE, 0, 1),
        block(IoOpcode::WRITE_ZEROES, 0, 1),
        DatasetManagement::deallocate(NSID, 1),
    ] {
        let refused = Err(Status::NAMESPACE_WRITE_PROTECTED.with_dnr());
        assert_eq!(decode_io(&sqe, &view), refused);
    }
    assert!(decode_io(&block(IoOpcode::READ, 0, 1), &view).is_ok());
}

#[test]
fn deallocate_takes_all_ranges_or_none() {
    let ranges = [DsmRange::new(5, 8), DsmRange::new(7, 0), DsmRange::new(999, 1)];
    let data = ranges.as_bytes();
    let runs: Vec<LbaRange> = deallocate_ranges(data, 3, &VIEW).expect("inside").collect();
    assert_eq!(runs, vec![LbaRange::new(Lba(5), 8), LbaRange::new(Lba(999), 1)]);
    let too_short = deallocate_ranges(data, 4, &VIEW).map(Iterator::count);
    assert_eq!(too_short, Err(Status::DATA_SGL_LENGTH_INVALID.with_dnr()));
    for outside in [DsmRange::new(999, 2), DsmRange::new(u64::MAX, 1)] {
        let ranges = [DsmRange::new(0, 1), outside];
        let result = deallocate_ranges(ranges.as_bytes(), 2, &VIEW).map(Iterator::count);
        assert_eq!(result, Err(Status::LBA_OUT_OF_RANGE.with_dnr()));
    }
    let mut sqe = DatasetManagement::deallocate(NSID, 2);
    for (length, is_fit) in [(31, false), (32, true), (4096, true), (4097, false)] {
        sqe.dptr = SglDescriptor::transport(length);
        assert_eq!(decode_io(&sqe, &VIEW).is_ok(), is_fit, "{length}");
    }
}

#[test]
fn reserved_flags_and_fused_operations_are_refused() {
    let invalid = Err(Status::INVALID_FIELD.with_dnr());
    for flag in [1, 2, 4, 8, 0x10, 0x20] {
        let flush = Sqe::new(IoOpcode::FLUSH.0, NSID);
        for sqe in [block(IoOpcode::READ, 0, 1), flush] {
            assert_eq!(decode_io(&Sqe { flags: 0x40 | flag, ..sqe }, &VIEW), invalid);
        }
        let disconnect = Sqe::from(fabrics::Disconnect::new());
        assert!(decode_io(&disconnect, &VIEW).is_ok());
        let disconnect = Sqe { flags: 0x40 | flag, ..disconnect };
        assert_eq!(decode_io(&disconnect, &VIEW), invalid);
    }
}
