//! Lengths, from which residuals follow: what a command moves, what its allocation length allows, and what the initiator expects.

use iscsi_wire::Cdb;
use iscsi_wire::cdb::{maintenance_in, opcode as scsi, reserve_in, service_action_in};
use sim::SimWorld;

use crate::strict::{Ended, Initiator};
use crate::{BLOCK, BLOCKS, VOLUME, failed, good, pattern, read, serve, session, simulate};

/// A command that returns data, and the place and the size of its allocation length.
struct Asking {
    cdb: Vec<u8>,
    at: usize,
    len_bytes: usize,
}

impl Asking {
    /// The command with an allocation length of `len`.
    fn with_len(&self, len: usize) -> Cdb {
        let mut bytes = [0; 16];
        bytes[..self.cdb.len()].copy_from_slice(&self.cdb);
        let len = (len as u32).to_be_bytes();
        bytes[self.at..self.at + self.len_bytes].copy_from_slice(&len[4 - self.len_bytes..]);
        Cdb(bytes)
    }
}

/// All commands that have an allocation length.
fn asking() -> Vec<Asking> {
    let ask = |cdb: &[u8], at, len_bytes| Asking { cdb: cdb.to_vec(), at, len_bytes };
    let mut all = vec![
        ask(&[scsi::REQUEST_SENSE], 4, 1),
        ask(&[scsi::INQUIRY], 3, 2),
        ask(&[scsi::MODE_SENSE_6, 0, 0x3F, 0xFF], 4, 1),
        ask(&[scsi::MODE_SENSE_10, 0x10, 0x3F, 0xFF], 7, 2),
        ask(&[scsi::REPORT_LUNS], 6, 4),
        ask(&[scsi::SERVICE_ACTION_IN_16, service_action_in::READ_CAPACITY_16], 10, 4),
        ask(&[scsi::SERVICE_ACTION_IN_16, service_action_in::GET_LBA_STATUS], 10, 4),
        ask(&[scsi::MAINTENANCE_IN, maintenance_in::REPORT_TARGET_PORT_GROUPS], 6, 4),
        ask(&[scsi::MAINTENANCE_IN, maintenance_in::REPORT_SUPPORTED_OPCODES], 6, 4),
        ask(&[scsi::MAINTENANCE_IN, maintenance_in::REPORT_SUPPORTED_OPCODES, 0x81, 0xA0], 6, 4),
        ask(&[scsi::MAINTENANCE_IN, maintenance_in::REPORT_SUPPORTED_TASK_FUNCTIONS], 6, 4),
    ];
    for page in [0x00, 0x80, 0x83, 0xB0, 0xB1, 0xB2] {
        all.push(ask(&[scsi::INQUIRY, 1, page], 3, 2));
    }
    for action in [
        reserve_in::READ_KEYS,
        reserve_in::READ_RESERVATION,
        reserve_in::REPORT_CAPABILITIES,
        reserve_in::READ_FULL_STATUS,
    ] {
        all.push(ask(&[scsi::PERSISTENT_RESERVE_IN, action], 7, 2));
    }
    all
}

/// The answer ends with the shorter of both lengths, and the residual tells of the difference between what the command returns
/// by its allocation length and what the initiator expects.
#[test]
fn short_and_long_answers_come_with_their_residuals() {
    simulate(async |world| {
        let _core = serve(&world, false).await;
        let mut initiator = session(&world, VOLUME).await;
        for asking in asking() {
            let whole = asking.with_len(if asking.len_bytes == 1 { 255 } else { 4096 });
            let whole = initiator.command(whole, &[], 4096).await;
            assert_eq!((whole.status, whole.residual), (0, whole.data.len() as i64 - 4096));
            let (whole, max) = (whole.data, if asking.len_bytes == 1 { 255 } else { 4096 });
            assert!(whole.len() >= 4, "{:x?}", asking.cdb);
            for len in [0, 1, 3, 4, 5, 8, whole.len() - 1, whole.len(), whole.len() + 3, max] {
                let returned = len.min(whole.len()).min(max);
                for expected in [0, 1, len.saturating_sub(1), len, len + 7, 9000] {
                    let ended = initiator
                        .command(asking.with_len(len.min(max)), &[], expected as u32)
                        .await;
                    let data = whole[..returned.min(expected)].to_vec();
                    let residual = returned as i64 - expected as i64;
                    let right = Ended { status: 0, sense: None, data, residual };
                    assert_eq!(ended, right, "{:x?}: {len} bytes, {expected} expected", asking.cdb);
                }
            }
        }
    });
}

/// READ CAPACITY (10) and reads have no allocation length.
#[test]
fn reads_that_are_longer_or_shorter_than_expected_tell_by_how_much() {
    simulate(async |world| {
        let _core = serve(&world, false).await;
        let mut initiator = session(&world, VOLUME).await;
        let data = pattern(40, 1);
        let write = Cdb::with_blocks(scsi::WRITE_16, 0, 40);
        assert_eq!(initiator.command(write, &data, 0).await, good(0));
        for opcode in [scsi::READ_6, scsi::READ_10, scsi::READ_12, scsi::READ_16] {
            for blocks in [1, 2, 16, 17, 40] {
                let mut cdb = Cdb::with_blocks(opcode, 0, blocks);
                if opcode == scsi::READ_6 {
                    (cdb.0[4], cdb.0[7]) = (blocks as u8, 0);
                    cdb.0[8..10].fill(0);
                }
                let len = blocks as usize * BLOCK;
                for expected in [0, 1, 511, len - 1, len, len + 1, len + 70_000] {
                    let ended = initiator.command(cdb, &[], expected as u32).await;
                    assert_eq!(
                        ended.residual,
                        len as i64 - expected as i64,
                        "{opcode:#x} {blocks}"
                    );
                    assert!(ended.status == 0 && ended.data == data[..len.min(expected)]);
                }
            }
            let nothing = Cdb::with_blocks(opcode, 0, 0);
            if opcode != scsi::READ_6 {
                assert_eq!(initiator.command(nothing, &[], 512).await, good(-512));
            }
        }
        let capacity = Cdb([scsi::READ_CAPACITY_10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        for expected in [0, 3, 8, 20] {
            let ended = initiator.command(capacity, &[], expected).await;
            assert_eq!((ended.status, ended.residual), (0, 8 - i64::from(expected)));
            assert_eq!(ended.data.len(), expected.min(8) as usize);
        }
    });
}

/// Commands that bring data: what they need, and whether a part of it will do.
async fn bringing(initiator: &mut Initiator) -> Vec<(Cdb, Vec<u8>, bool)> {
    let blocks = |opcode, count| Cdb::with_blocks(opcode, 8, count);
    let mut all = Vec::new();
    for opcode in [
        scsi::WRITE_10,
        scsi::WRITE_12,
        scsi::WRITE_16,
        scsi::WRITE_AND_VERIFY_10,
        scsi::WRITE_AND_VERIFY_12,
        scsi::WRITE_AND_VERIFY_16,
    ] {
        all.push((blocks(opcode, 20), pattern(20, opcode), true));
    }
    let mut atomic = Cdb([0; 16]);
    (atomic.0[0], atomic.0[9], atomic.0[13]) = (scsi::WRITE_ATOMIC_16, 8, 20);
    all.push((atomic, pattern(20, 5), true));
    // The block that is compared is that which is written, so that the command can be sent again.
    let mut swap = Cdb([0; 16]);
    (swap.0[0], swap.0[9], swap.0[13]) = (scsi::COMPARE_AND_WRITE, 8, 2);
    all.push((swap, pattern(2, 5).repeat(2), false));
    for opcode in [scsi::VERIFY_10, scsi::VERIFY_12, scsi::VERIFY_16] {
        let mut verify = blocks(opcode, 2);
        verify.0[1] = 2;
        all.push((verify, pattern(2, 5), false));
    }
    for opcode in [scsi::WRITE_SAME_10, scsi::WRITE_SAME_16] {
        all.push((blocks(opcode, 3), pattern(1, 6), false));
    }
    let mut sense = Cdb([0; 16]);
    (sense.0[0], sense.0[2], sense.0[7]) = (scsi::MODE_SENSE_10, 0x3F, 2);
    let mut pages = initiator.command(sense, &[], 512).await.data;
    pages[..2].fill(0);
    let mut select = Cdb([0; 16]);
    (select.0[0], select.0[1], select.0[8]) = (scsi::MODE_SELECT_10, 0x10, pages.len() as u8);
    all.push((select, pages, false));
    all
}

/// Method: each command with all it needs, with more, with less, and with nothing at all. Where it fails, nothing of it was
/// taken, and the residual is that between what it would have taken and what the initiator has.
#[test]
fn data_that_is_longer_or_shorter_than_needed_is_told_by_residuals() {
    simulate(async |world| {
        let core = serve(&world, false).await;
        let mut initiator = session(&world, VOLUME).await;
        for (cdb, data, is_partial) in bringing(&mut initiator).await {
            let opcode = cdb.0[0];
            let needed = data.len() as i64;
            assert_eq!(initiator.command(cdb, &data, 0).await, good(0), "{opcode:#x}");
            let longer = [data.as_slice(), &[0xEE; 5000]].concat();
            let takes_more = is_partial || opcode == scsi::MODE_SELECT_10;
            let ended = initiator.command(cdb, &longer, 0).await;
            let field = if opcode == scsi::COMPARE_AND_WRITE { (0x24, 0) } else { (0x0E, 3) };
            let refused = |residual| failed(5, field.0, field.1, residual);
            let expected = if takes_more { good(-5000) } else { refused(-5000) };
            assert_eq!(ended, expected, "{opcode:#x}, longer");
            for less in [1, 100, 4095] {
                if less < needed {
                    let short = &data[..(needed - less) as usize];
                    let ended = initiator.command(cdb, short, 0).await;
                    assert_eq!(ended, refused(less), "{opcode:#x}, {less} less");
                }
            }
            if is_partial {
                let half = &data[..data.len() / 2];
                assert_eq!(initiator.command(cdb, half, 0).await, good(needed / 2), "{opcode:#x}");
                assert_eq!(initiator.command(cdb, &[], 0).await, good(needed), "{opcode:#x}");
                assert!(read(&mut initiator, 8, 20).await == data, "what did not come stays");
            } else {
                assert_eq!(initiator.command(cdb, &[], 0).await, refused(needed), "{opcode:#x}");
            }
        }
        initiator.log_out().await;
        assert_eq!(core.stats().memory_used_bytes, 0, "all that was charged is given back");
    });
}

/// Data that comes by itself for a command that has failed already is dropped, and the numbers go on.
#[test]
fn data_of_refused_commands_is_dropped() {
    simulate(async |world| {
        let _core = serve(&world, false).await;
        let mut initiator = session(&world, VOLUME).await;
        for len in [1, 4096, 4097, 16_384, 100_000] {
            let data = vec![7; len];
            let beyond = Cdb::with_blocks(scsi::WRITE_16, BLOCKS, 1);
            let ended = initiator.command(beyond, &data, 0).await;
            assert_eq!(ended, failed(5, 0x21, 0, -(len as i64)), "{len} bytes");
            let unknown = initiator.command(Cdb([0x7F; 16]), &data, 0).await;
            assert_eq!(unknown, failed(5, 0x20, 0, -(len as i64)), "{len} bytes");
        }
        assert!(read(&mut initiator, 0, 1).await == [0; BLOCK]);
    });
}

/// Commands without data for which the initiator has some, or expects some.
#[test]
fn commands_without_data_leave_all_that_was_expected() {
    simulate(async |world: SimWorld| {
        let _core = serve(&world, false).await;
        let mut initiator = session(&world, VOLUME).await;
        let command = |bytes: &[u8]| {
            let mut all = [0; 16];
            all[..bytes.len()].copy_from_slice(bytes);
            Cdb(all)
        };
        for cdb in [
            command(&[scsi::TEST_UNIT_READY]),
            command(&[scsi::START_STOP_UNIT, 0, 0, 0, 1]),
            command(&[scsi::PREVENT_ALLOW]),
            command(&[scsi::SYNCHRONIZE_CACHE_10]),
            command(&[scsi::SYNCHRONIZE_CACHE_16]),
            command(&[scsi::VERIFY_10, 0, 0, 0, 0, 0, 0, 0, 1]),
            command(&[scsi::RESERVE_6]),
            command(&[scsi::RELEASE_6]),
        ] {
            assert_eq!(initiator.command(cdb, &[], 0).await, good(0), "{cdb:x?}");
            assert_eq!(initiator.command(cdb, &[], 100).await, good(-100), "{cdb:x?}");
            assert_eq!(initiator.command(cdb, &[1; 9000], 0).await, good(-9000), "{cdb:x?}");
        }
    });
}
