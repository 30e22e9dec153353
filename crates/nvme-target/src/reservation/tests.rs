use nvme_wire::sqe::NSID_ALL;
use reservation::Host;
use units::{MetadataSize, SectorSize};
use zerocopy::FromBytes;

use super::*;
use crate::io::{NSID, NamespaceView, decode_io};

const VIEW: NamespaceView = NamespaceView {
    blocks: 1000,
    sector: SectorSize::Bytes4096,
    metadata: MetadataSize::None,
    transfer_blocks_max: 256,
    read_only: false,
};
const REGISTER: IoOpcode = IoOpcode::RESERVATION_REGISTER;
const ACQUIRE: IoOpcode = IoOpcode::RESERVATION_ACQUIRE;
const RELEASE: IoOpcode = IoOpcode::RESERVATION_RELEASE;
const INVALID: Result<IoCommand, Status> = Err(Status::INVALID_FIELD.with_dnr());
const WRONG_LENGTH: Result<IoCommand, Status> = Err(Status::DATA_SGL_LENGTH_INVALID.with_dnr());

fn fields(action: u8) -> ReservationCommand {
    ReservationCommand { action, ignore_key: false, rtype: 0, cptpl: CPTPL_KEEP }
}

fn decoded(opcode: IoOpcode, fields: ReservationCommand) -> Result<IoCommand, Status> {
    decode_io(&fields.encode(opcode, NSID), &VIEW)
}

/// The command with 0x11 as the first key of its data, and 0x22 as the second if it has two.
fn command(opcode: IoOpcode, fields: ReservationCommand) -> Command {
    let Ok(IoCommand::Reserve(change)) = decoded(opcode, fields) else { panic!("{fields:?}") };
    let keys = [0x11_u64.to_le_bytes(), 0x22_u64.to_le_bytes()].concat();
    change.with_keys(&keys[..ReservationCommand::data_len(opcode) as usize]).expect("keys")
}

#[test]
fn a_register_command_is_understood() {
    let persistences = [(CPTPL_KEEP, None), (CPTPL_CLEAR, Some(false)), (CPTPL_SET, Some(true))];
    for (cptpl, persistence) in persistences {
        for (ignore_key, current) in [(false, Some(0x11)), (true, None)] {
            let with = |action| {
                command(REGISTER, ReservationCommand { ignore_key, cptpl, ..fields(action) })
            };
            assert_eq!(with(RREGA_REGISTER), Command::Register { key: 0x22, persistence });
            assert_eq!(with(RREGA_UNREGISTER), Command::Unregister { current, persistence });
            let replaced = Command::Replace { current, key: 0x22, persistence };
            assert_eq!(with(RREGA_REPLACE), replaced);
        }
    }
}

#[test]
fn acquire_and_release_commands_are_understood() {
    for kind in Kind::ALL {
        let typed = |action| ReservationCommand { rtype: kind.nvme_code(), ..fields(action) };
        let (current, victim) = (0x11, 0x22);
        let acquired = command(ACQUIRE, typed(RACQA_ACQUIRE));
        assert_eq!(acquired, Command::Acquire { current, kind });
        for (action, aborts) in [(RACQA_PREEMPT, false), (RACQA_PREEMPT_AND_ABORT, true)] {
            let preempted = command(ACQUIRE, typed(action));
            assert_eq!(preempted, Command::Preempt { current, victim, kind, aborts });
        }
        let released = command(RELEASE, typed(RRELA_RELEASE));
        assert_eq!(released, Command::Release { current, kind });
    }
    assert_eq!(command(RELEASE, fields(RRELA_CLEAR)), Command::Clear { current: 0x11 });
}

#[test]
fn commands_that_cannot_be_are_refused() {
    let typed = |action| ReservationCommand { rtype: 1, ..fields(action) };
    let ignoring = |fields| ReservationCommand { ignore_key: true, ..fields };
    for action in RREGA_REPLACE + 1..8 {
        assert_eq!(decoded(REGISTER, fields(action)), INVALID, "{action}");
    }
    let cptpl = ReservationCommand { cptpl: 1, ..fields(RREGA_REGISTER) };
    assert_eq!(decoded(REGISTER, cptpl), INVALID);
    for action in RACQA_PREEMPT_AND_ABORT + 1..8 {
        assert_eq!(decoded(ACQUIRE, typed(action)), INVALID, "{action}");
    }
    for action in RRELA_CLEAR + 1..8 {
        assert_eq!(decoded(RELEASE, typed(action)), INVALID, "{action}");
    }
    let of_no_type = [(ACQUIRE, RACQA_ACQUIRE), (ACQUIRE, RACQA_PREEMPT), (RELEASE, RRELA_RELEASE)];
    for (opcode, action) in of_no_type {
        for rtype in [0, 7, 0xFF] {
            let fields = ReservationCommand { rtype, ..fields(action) };
            assert_eq!(decoded(opcode, fields), INVALID, "{action} {rtype}");
        }
        assert_eq!(decoded(opcode, ignoring(typed(action))), INVALID, "{action}");
    }
    assert_eq!(decoded(RELEASE, ignoring(fields(RRELA_CLEAR))), INVALID);
}

#[test]
fn the_keys_have_their_length() {
    for (opcode, wrong) in
        [(REGISTER, [8, 12, 15, 17]), (ACQUIRE, [8, 12, 15, 17]), (RELEASE, [0, 7, 9, 16])]
    {
        let sqe = ReservationCommand { rtype: 1, ..fields(0) }.encode(opcode, NSID);
        assert!(decode_io(&sqe, &VIEW).is_ok());
        for len in wrong {
            let mut sqe = sqe;
            sqe.dptr.length = len.into();
            assert_eq!(decode_io(&sqe, &VIEW), WRONG_LENGTH, "{opcode:?} {len}");
        }
        let Ok(IoCommand::Reserve(change)) = decode_io(&sqe, &VIEW) else { panic!("refused") };
        let short = change.with_keys(&[0; 7]);
        assert_eq!(short, Err(Status::DATA_SGL_LENGTH_INVALID.with_dnr()), "{opcode:?}");
    }
}

#[test]
fn a_report_is_of_hosts_with_long_identifiers_and_has_room() {
    let report = ReservationReport { len_bytes: 64, extended: true };
    let expected = Ok(IoCommand::ReservationReport { len_bytes: 64 });
    let mut sqe = report.encode(NSID);
    for (room, outcome) in [(64, expected), (68, expected), (63, WRONG_LENGTH), (0, WRONG_LENGTH)] {
        sqe.dptr.length = room.into();
        assert_eq!(decode_io(&sqe, &VIEW), outcome, "{room}");
    }
    let short_identifiers = ReservationReport { extended: false, ..report }.encode(NSID);
    let refused = Err(Status::HOST_ID_INCONSISTENT_FORMAT.with_dnr());
    assert_eq!(decode_io(&short_identifiers, &VIEW), refused);
    let of_all = decode_io(&report.encode(NSID_ALL), &VIEW);
    assert_eq!(of_all, Err(Status::INVALID_NAMESPACE_OR_FORMAT.with_dnr()));
}

#[test]
fn a_report_names_each_registrant() {
    let [holder, other] = [[7; 16], [9; 16]].map(Host::Nvme);
    let mut state = Reservations::default();
    let none = ReservationStatus::read_from_bytes(&reservation_report(&state, 4096)).expect("64");
    assert_eq!((none.rtype, none.registrants.get(), none.ptpls), (0, 0, 0));
    for (host, key) in [(&holder, 0x11), (&other, 0x22)] {
        let register = Command::Register { key, persistence: Some(true) };
        state.apply(host, &register).expect("room");
    }
    let kind = Kind::ExclusiveAccessRegistrants;
    state.apply(&holder, &Command::Acquire { current: 0x11, kind }).expect("free");
    let bytes = reservation_report(&state, 4096);
    assert_eq!(bytes.len(), 3 * REPORT_PART_LEN);
    let head = ReservationStatus::read_from_bytes(&bytes[..64]).expect("64 bytes");
    let expected = ReservationStatus {
        generation: state.generation().into(),
        rtype: 4,
        registrants: 2.into(),
        ptpls: 1,
        ..FromZeros::new_zeroed()
    };
    assert!(state.generation() > 0);
    assert_eq!(head, expected);
    let mut found: Vec<_> = bytes[64..]
        .chunks(64)
        .map(|part| RegisteredController::read_from_bytes(part).expect("64 bytes"))
        .collect();
    found.sort_by_key(|registrant| registrant.rkey.get());
    let registrant = |host_id, rkey: u64, rcsts| RegisteredController {
        cntlid: 0xFFFF.into(),
        rcsts,
        rkey: rkey.into(),
        host_id,
        ..FromZeros::new_zeroed()
    };
    assert_eq!(found, [registrant([7; 16], 0x11, 1), registrant([9; 16], 0x22, 0)]);
    assert_eq!(reservation_report(&state, 100), bytes[..100], "cut where the host's room ends");
}

#[test]
fn refusals_have_a_status_each() {
    let conflict = Status::RESERVATION_CONFLICT.with_dnr();
    let invalid = Status::INVALID_FIELD.with_dnr();
    for (refused, status) in [
        (Refused::Conflict, conflict),
        (Refused::ZeroKey, invalid),
        (Refused::OtherKind, invalid),
        (Refused::SameHost, invalid),
        (Refused::Full, Status::CAPACITY_EXCEEDED),
    ] {
        assert_eq!(reservation_status(refused), status, "{refused}");
    }
}
