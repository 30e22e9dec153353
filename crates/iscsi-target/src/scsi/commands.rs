//! The commands that there are, and what REPORT SUPPORTED OPERATION CODES says of them (SPC-4, clause 6.27).

use alloc::vec::Vec;

use iscsi_wire::cdb::{maintenance_in, opcode, reserve_in, reserve_out, service_action_in};
use iscsi_wire::{Cdb, Sense};

/// A command that there is.
pub struct Supported {
    /// Its operation code.
    pub opcode: u8,
    /// Its service action.
    pub action: Option<u8>,
    /// Bits of its CDB that are looked at.
    pub usage: &'static [u8],
}

const fn plain(usage: &'static [u8]) -> Supported {
    Supported { opcode: usage[0], action: None, usage }
}

const fn with_action(action: u8, usage: &'static [u8]) -> Supported {
    Supported { opcode: usage[0], action: Some(action), usage }
}

/// Bits of CDBs with ten, twelve and sixteen bytes that name blocks; of their second byte `$flags`.
macro_rules! blocks {
    (10, $opcode:expr, $flags:literal) => {
        plain(&[$opcode, $flags, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0xFF, 0xFF, 0x07])
    };
    (12, $opcode:expr, $flags:literal) => {
        plain(&[$opcode, $flags, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0x07])
    };
    (16, $opcode:expr, $flags:literal) => {
        plain(&[
            $opcode, $flags, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF,
            0xFF, 0, 0x07,
        ])
    };
}

/// All of them (SCSI-1).
pub const SUPPORTED: &[Supported] = &[
    plain(&[opcode::TEST_UNIT_READY, 0, 0, 0, 0, 0x07]),
    plain(&[opcode::REQUEST_SENSE, 1, 0, 0, 0xFF, 0x07]),
    plain(&[opcode::READ_6, 0x1F, 0xFF, 0xFF, 0xFF, 0x07]),
    plain(&[opcode::WRITE_6, 0x1F, 0xFF, 0xFF, 0xFF, 0x07]),
    plain(&[opcode::INQUIRY, 1, 0xFF, 0xFF, 0xFF, 0x07]),
    plain(&[opcode::MODE_SELECT_6, 0x11, 0, 0, 0xFF, 0x07]),
    plain(&[opcode::RESERVE_6, 0x13, 0, 0, 0, 0x07]),
    plain(&[opcode::RELEASE_6, 0x13, 0, 0, 0, 0x07]),
    plain(&[opcode::MODE_SENSE_6, 0x08, 0xFF, 0xFF, 0xFF, 0x07]),
    plain(&[opcode::START_STOP_UNIT, 1, 0, 0x0F, 0xF7, 0x07]),
    plain(&[opcode::PREVENT_ALLOW, 0, 0, 0, 0x03, 0x07]),
    plain(&[opcode::READ_CAPACITY_10, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0, 1, 0x07]),
    blocks!(10, opcode::READ_10, 0xF8),
    blocks!(10, opcode::WRITE_10, 0xF8),
    blocks!(10, opcode::WRITE_AND_VERIFY_10, 0xF6),
    blocks!(10, opcode::VERIFY_10, 0xF6),
    blocks!(10, opcode::SYNCHRONIZE_CACHE_10, 0x02),
    blocks!(10, opcode::WRITE_SAME_10, 0xF8),
    plain(&[opcode::UNMAP, 1, 0, 0, 0, 0, 0, 0xFF, 0xFF, 0x07]),
    plain(&[opcode::MODE_SELECT_10, 0x11, 0, 0, 0, 0, 0, 0xFF, 0xFF, 0x07]),
    plain(&[opcode::RESERVE_10, 0x13, 0, 0, 0, 0, 0, 0, 0, 0x07]),
    plain(&[opcode::RELEASE_10, 0x13, 0, 0, 0, 0, 0, 0, 0, 0x07]),
    plain(&[opcode::MODE_SENSE_10, 0x18, 0xFF, 0xFF, 0, 0, 0, 0xFF, 0xFF, 0x07]),
    with_action(
        reserve_in::READ_KEYS,
        &[opcode::PERSISTENT_RESERVE_IN, 0x1F, 0, 0, 0, 0, 0, 0xFF, 0xFF, 0x07],
    ),
    with_action(
        reserve_in::READ_RESERVATION,
        &[opcode::PERSISTENT_RESERVE_IN, 0x1F, 0, 0, 0, 0, 0, 0xFF, 0xFF, 0x07],
    ),
    with_action(
        reserve_in::REPORT_CAPABILITIES,
        &[opcode::PERSISTENT_RESERVE_IN, 0x1F, 0, 0, 0, 0, 0, 0xFF, 0xFF, 0x07],
    ),
    with_action(
        reserve_in::READ_FULL_STATUS,
        &[opcode::PERSISTENT_RESERVE_IN, 0x1F, 0, 0, 0, 0, 0, 0xFF, 0xFF, 0x07],
    ),
    with_action(
        reserve_out::REGISTER,
        &[opcode::PERSISTENT_RESERVE_OUT, 0x1F, 0xFF, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0x07],
    ),
    with_action(
        reserve_out::RESERVE,
        &[opcode::PERSISTENT_RESERVE_OUT, 0x1F, 0xFF, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0x07],
    ),
    with_action(
        reserve_out::RELEASE,
        &[opcode::PERSISTENT_RESERVE_OUT, 0x1F, 0xFF, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0x07],
    ),
    with_action(
        reserve_out::CLEAR,
        &[opcode::PERSISTENT_RESERVE_OUT, 0x1F, 0xFF, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0x07],
    ),
    with_action(
        reserve_out::PREEMPT,
        &[opcode::PERSISTENT_RESERVE_OUT, 0x1F, 0xFF, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0x07],
    ),
    with_action(
        reserve_out::PREEMPT_AND_ABORT,
        &[opcode::PERSISTENT_RESERVE_OUT, 0x1F, 0xFF, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0x07],
    ),
    with_action(
        reserve_out::REGISTER_AND_IGNORE,
        &[opcode::PERSISTENT_RESERVE_OUT, 0x1F, 0xFF, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0x07],
    ),
    with_action(
        reserve_out::REGISTER_AND_MOVE,
        &[opcode::PERSISTENT_RESERVE_OUT, 0x1F, 0xFF, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0x07],
    ),
    blocks!(16, opcode::READ_16, 0xF8),
    plain(&[
        opcode::COMPARE_AND_WRITE,
        0xF8,
        0xFF,
        0xFF,
        0xFF,
        0xFF,
        0xFF,
        0xFF,
        0xFF,
        0xFF,
        0,
        0,
        0,
        0xFF,
        0,
        0x07,
    ]),
    blocks!(16, opcode::WRITE_16, 0xF8),
    blocks!(16, opcode::WRITE_AND_VERIFY_16, 0xF6),
    blocks!(16, opcode::VERIFY_16, 0xF6),
    blocks!(16, opcode::SYNCHRONIZE_CACHE_16, 0x02),
    blocks!(16, opcode::WRITE_SAME_16, 0xF9),
    plain(&[
        opcode::WRITE_ATOMIC_16,
        0xF8,
        0xFF,
        0xFF,
        0xFF,
        0xFF,
        0xFF,
        0xFF,
        0xFF,
        0xFF,
        0xFF,
        0xFF,
        0xFF,
        0xFF,
        0,
        0x07,
    ]),
    with_action(
        service_action_in::READ_CAPACITY_16,
        &[
            opcode::SERVICE_ACTION_IN_16,
            0x1F,
            0xFF,
            0xFF,
            0xFF,
            0xFF,
            0xFF,
            0xFF,
            0xFF,
            0xFF,
            0xFF,
            0xFF,
            0xFF,
            0xFF,
            1,
            0x07,
        ],
    ),
    with_action(
        service_action_in::GET_LBA_STATUS,
        &[
            opcode::SERVICE_ACTION_IN_16,
            0x1F,
            0xFF,
            0xFF,
            0xFF,
            0xFF,
            0xFF,
            0xFF,
            0xFF,
            0xFF,
            0xFF,
            0xFF,
            0xFF,
            0xFF,
            0,
            0x07,
        ],
    ),
    plain(&[opcode::REPORT_LUNS, 0, 0xFF, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0x07]),
    with_action(
        maintenance_in::REPORT_TARGET_PORT_GROUPS,
        &[opcode::MAINTENANCE_IN, 0xFF, 0, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0x07],
    ),
    with_action(
        maintenance_in::REPORT_SUPPORTED_OPCODES,
        &[opcode::MAINTENANCE_IN, 0x1F, 0x87, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0x07],
    ),
    with_action(
        maintenance_in::REPORT_SUPPORTED_TASK_FUNCTIONS,
        &[opcode::MAINTENANCE_IN, 0x1F, 0x80, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0x07],
    ),
    blocks!(12, opcode::READ_12, 0xF8),
    blocks!(12, opcode::WRITE_12, 0xF8),
    blocks!(12, opcode::WRITE_AND_VERIFY_12, 0xF6),
    blocks!(12, opcode::VERIFY_12, 0xF6),
];

/// Finds the command of `cdb`.
pub(super) fn find(cdb: &Cdb) -> Result<&'static Supported, Sense> {
    let mut rows = SUPPORTED.iter().filter(|row| row.opcode == cdb.opcode()).peekable();
    if rows.peek().is_none() {
        return Err(Sense::INVALID_OPCODE);
    }
    let action = cdb.byte(1) & 0x1F;
    rows.find(|row| row.action.is_none_or(|it| it == action)).ok_or(Sense::invalid_cdb(1))
}

/// The time in which a command is to be done is not said: a descriptor of twelve bytes without it.
const NO_TIMEOUTS: [u8; 12] = [0, 0x0A, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// Answers REPORT SUPPORTED OPERATION CODES.
pub(super) fn report(cdb: &Cdb) -> Result<Vec<u8>, Sense> {
    let (timeouts, options) = (cdb.byte(2) & 0x80 != 0, cdb.byte(2) & 7);
    let (opcode, action) = (cdb.byte(3), cdb.u16_at(4));
    match options {
        0 => Ok(report_all(timeouts)),
        1..=3 => report_one(options, opcode, action, timeouts),
        _ => Err(Sense::invalid_cdb(2)),
    }
}

fn report_all(timeouts: bool) -> Vec<u8> {
    let mut list = Vec::new();
    for row in SUPPORTED {
        let flags = u8::from(timeouts) << 1 | u8::from(row.action.is_some());
        let len = u8::try_from(row.usage.len()).expect("at most 16");
        list.extend_from_slice(&[row.opcode, 0, 0, row.action.unwrap_or(0), 0, flags, 0, len]);
        if timeouts {
            list.extend_from_slice(&NO_TIMEOUTS);
        }
    }
    let len = u32::try_from(list.len()).expect("a short list").to_be_bytes();
    [&len[..], &list].concat()
}

fn report_one(options: u8, opcode: u8, action: u16, timeouts: bool) -> Result<Vec<u8>, Sense> {
    let mut rows = SUPPORTED.iter().filter(|row| row.opcode == opcode).peekable();
    let has_actions = rows.peek().is_some_and(|row| row.action.is_some());
    // One that has actions is asked for with one, and one that has none without.
    if rows.peek().is_some() && ((options == 1 && has_actions) || (options == 2 && !has_actions)) {
        return Err(Sense::invalid_cdb(2));
    }
    let found = rows
        .find(|row| row.action.map_or(action == 0 || options == 1, |it| u16::from(it) == action));
    let Some(row) = found else { return Ok([0, 1, 0, 0].to_vec()) };
    let len = u16::try_from(row.usage.len()).expect("at most 16").to_be_bytes();
    let mut bytes = [0, 3 | u8::from(timeouts) << 7, len[0], len[1]].to_vec();
    bytes.extend_from_slice(row.usage);
    // The operation code itself, and the service action.
    if let Some(action) = row.action {
        bytes[5] = bytes[5] & 0xE0 | action;
    }
    if timeouts {
        bytes.extend_from_slice(&NO_TIMEOUTS);
    }
    Ok(bytes)
}
