extern crate std;

use alloc::string::ToString;
use alloc::vec;
use alloc::vec::Vec;

use proptest::prelude::*;

use super::*;
use Command::{
    Acquire, Clear, Move, Persist, Preempt, Register, Release, Replace, Set, Unregister,
};

fn host(n: u8) -> Host {
    if n.is_multiple_of(2) {
        Host::Nvme([n; 16])
    } else {
        let name = "iqn.2026-11.example:".to_string() + &n.to_string();
        Host::Iscsi { name, isid: [n; 6] }
    }
}

/// A state in which hosts 0 to 3 have the keys 10 to 13.
fn registered() -> Reservations {
    let mut state = Reservations::default();
    for n in 0..4 {
        let register = Register { key: 10 + u64::from(n), persistence: None };
        assert_eq!(state.apply(&host(n), &register), Ok(Change::default()));
    }
    state
}

fn reserved(kind: Kind) -> Reservations {
    let mut state = registered();
    assert_eq!(state.apply(&host(0), &Acquire { current: 10, kind }), Ok(Change::default()));
    state
}

fn told(change: &Change) -> Vec<(Host, NoticeKind)> {
    change.notices.iter().map(|notice| (notice.host.clone(), notice.kind)).collect()
}

fn each(hosts: impl IntoIterator<Item = u8>, kind: NoticeKind) -> Vec<(Host, NoticeKind)> {
    let mut all: Vec<_> = hosts.into_iter().map(|n| (host(n), kind)).collect();
    all.sort_by(|a, b| a.0.cmp(&b.0));
    all
}

#[test]
fn codes_are_those_of_both_protocols() {
    let scsi = Kind::ALL.map(Kind::scsi_code);
    assert_eq!((Kind::ALL.map(Kind::nvme_code), scsi), ([1, 2, 3, 4, 5, 6], [1, 3, 5, 6, 7, 8]));
    for kind in Kind::ALL {
        assert_eq!(Kind::from_nvme_code(kind.nvme_code()), Some(kind));
        assert_eq!(Kind::from_scsi_code(kind.scsi_code()), Some(kind));
    }
    assert_eq!((Kind::from_nvme_code(0), Kind::from_nvme_code(7)), (None, None));
    assert_eq!((Kind::from_scsi_code(2), Kind::from_scsi_code(4)), (None, None));
}

/// For each type, whether the holder, another registrant and a stranger may read and write.
#[test]
fn commands_conflict_as_the_type_says() {
    let may = [(true, true), (true, false), (false, false)];
    let [all, read, none] = may;
    for (kind, registrant, stranger) in [
        (Kind::WriteExclusive, read, read),
        (Kind::ExclusiveAccess, none, none),
        (Kind::WriteExclusiveRegistrants, all, read),
        (Kind::ExclusiveAccessRegistrants, all, none),
        (Kind::WriteExclusiveAll, all, read),
        (Kind::ExclusiveAccessAll, all, none),
    ] {
        let state = reserved(kind);
        let may = |host: Option<&Host>| {
            let may = |access| !state.conflicts(host, access);
            (may(Access::Read), may(Access::Write))
        };
        assert_eq!(may(Some(&host(0))), all, "holder, {kind:?}");
        assert_eq!(may(Some(&host(1))), registrant, "registrant, {kind:?}");
        assert_eq!(may(Some(&host(9))), stranger, "stranger, {kind:?}");
        assert_eq!(may(None), stranger, "without a name, {kind:?}");
    }
    assert!(!registered().conflicts(None, Access::Write));
}

#[test]
fn a_host_registers_replaces_and_unregisters() {
    let (mut state, first) = (Reservations::default(), host(0));
    let register = |key| Register { key, persistence: None };
    assert_eq!(state.apply(&first, &register(0)), Err(Refused::ZeroKey));
    assert_eq!(state.apply(&first, &register(7)), Ok(Change::default()));
    assert_eq!(state.apply(&first, &register(7)), Ok(Change::default()));
    assert_eq!(state.apply(&first, &register(8)), Err(Refused::Conflict));
    let replace = |current, key| Replace { current, key, persistence: None };
    assert_eq!(state.apply(&first, &replace(Some(8), 9)), Err(Refused::Conflict));
    assert_eq!(state.apply(&host(1), &replace(None, 9)), Err(Refused::Conflict));
    assert_eq!(state.apply(&first, &replace(Some(7), 9)), Ok(Change::default()));
    assert_eq!(state.apply(&first, &replace(None, 10)), Ok(Change::default()));
    assert_eq!((state.key_of(&first), state.generation()), (Some(10), 4));
    let unregister = |current| Unregister { current, persistence: None };
    assert_eq!(state.apply(&first, &unregister(Some(9))), Err(Refused::Conflict));
    assert_eq!(state.apply(&first, &unregister(None)), Ok(Change::default()));
    assert_eq!(state.apply(&first, &unregister(None)), Err(Refused::Conflict));
    assert_eq!((state.registrants().len(), state.generation()), (0, 5));
}

#[test]
fn a_scsi_host_registers_by_setting_its_key() {
    let (mut state, first) = (Reservations::default(), host(1));
    let set = |current, key| Set { current, key, persistence: false };
    let done = Ok(Change::default());
    assert_eq!(state.apply(&first, &set(Some(3), 4)), Err(Refused::Conflict), "not registered");
    assert_eq!(state.apply(&first, &set(Some(0), 0)), done);
    assert_eq!((state.key_of(&first), state.generation()), (None, 0));
    assert_eq!(state.apply(&first, &set(Some(0), 4)), done);
    assert_eq!(state.apply(&first, &set(Some(0), 5)), Err(Refused::Conflict), "registered");
    assert_eq!(state.apply(&first, &set(Some(4), 5)), done);
    assert_eq!(state.apply(&first, &set(None, 6)), done);
    assert_eq!(state.key_of(&first), Some(6));
    assert_eq!(state.apply(&first, &set(Some(6), 0)), done);
    assert_eq!((state.key_of(&first), state.generation()), (None, 4));
}

#[test]
fn one_reservation_excludes_another() {
    let mut state = reserved(Kind::WriteExclusive);
    let acquire = |current, kind| Acquire { current, kind };
    for (n, current, kind, outcome) in [
        (0, 10, Kind::WriteExclusive, Ok(Change::default())),
        (0, 10, Kind::ExclusiveAccess, Err(Refused::Conflict)),
        (0, 11, Kind::WriteExclusive, Err(Refused::Conflict)),
        (1, 11, Kind::WriteExclusive, Err(Refused::Conflict)),
        (9, 0, Kind::WriteExclusive, Err(Refused::Conflict)),
    ] {
        let before = state.clone();
        assert_eq!(state.apply(&host(n), &acquire(current, kind)), outcome);
        assert_eq!(state, before);
    }
    let mut all = reserved(Kind::ExclusiveAccessAll);
    let again = acquire(11, Kind::ExclusiveAccessAll);
    assert_eq!(all.apply(&host(1), &again), Ok(Change::default()), "it holds it already");
}

#[test]
fn only_the_holder_releases() {
    for kind in Kind::ALL {
        let mut state = reserved(kind);
        if !kind.is_held_by_all() {
            let by_another = state.apply(&host(1), &Release { current: 11, kind });
            assert_eq!((by_another, state.kind()), (Ok(Change::default()), Some(kind)));
        }
        let other = Kind::ALL.into_iter().find(|other| *other != kind).expect("six");
        let wrong = state.apply(&host(0), &Release { current: 10, kind: other });
        assert_eq!(wrong, Err(Refused::OtherKind));
        let change = state.apply(&host(0), &Release { current: 10, kind }).expect("the holder");
        let hosts = if kind.admits_registrants() { 1..4 } else { 0..0 };
        assert_eq!(told(&change), each(hosts, NoticeKind::ReservationReleased), "{kind:?}");
        assert_eq!((state.kind(), state.registrants().len()), (None, 4));
    }
}

#[test]
fn the_reservation_ends_with_its_holders_registration() {
    let unregister = Unregister { current: None, persistence: None };
    for kind in Kind::ALL.into_iter().filter(|kind| !kind.is_held_by_all()) {
        let mut state = reserved(kind);
        let change = state.apply(&host(0), &unregister).expect("it is registered");
        let hosts = if kind.admits_registrants() { 1..4 } else { 0..0 };
        assert_eq!(told(&change), each(hosts, NoticeKind::ReservationReleased), "{kind:?}");
        assert_eq!(state.kind(), None);
    }
    let mut all = reserved(Kind::WriteExclusiveAll);
    for n in 0..4 {
        assert_eq!(all.kind(), Some(Kind::WriteExclusiveAll));
        assert_eq!(all.apply(&host(n), &unregister), Ok(Change::default()));
    }
    assert_eq!(all.kind(), None);
}

#[test]
fn a_holder_is_preempted_by_its_key() {
    let mut state = reserved(Kind::WriteExclusive);
    let preempt = Preempt { current: 11, victim: 10, kind: Kind::ExclusiveAccess, aborts: false };
    let change = state.apply(&host(1), &preempt).expect("the key is there");
    let mut expected = each([0], NoticeKind::RegistrationPreempted);
    expected.extend(each(2..4, NoticeKind::ReservationReleased));
    assert_eq!(told(&change), expected);
    assert_eq!((state.kind(), state.holder_key()), (Some(Kind::ExclusiveAccess), 11));
    assert!(state.is_holder(&host(1)) && state.key_of(&host(0)).is_none());
    let itself = Preempt { current: 11, victim: 11, kind: Kind::ExclusiveAccess, aborts: false };
    assert_eq!(state.apply(&host(1), &itself), Ok(Change::default()), "nothing changes");
    assert_eq!((state.registrants().len(), state.generation()), (3, 6));
}

#[test]
fn registrations_are_preempted_beside_the_reservation() {
    let mut state = reserved(Kind::WriteExclusive);
    let preempt =
        |victim| Preempt { current: 11, victim, kind: Kind::ExclusiveAccess, aborts: false };
    let change = state.apply(&host(1), &preempt(12)).expect("the key is there");
    assert_eq!(told(&change), each([2], NoticeKind::RegistrationPreempted));
    assert_eq!((state.kind(), state.holder_key()), (Some(Kind::WriteExclusive), 10));
    assert_eq!(state.apply(&host(1), &preempt(12)), Err(Refused::Conflict), "it is gone");
    assert_eq!(state.apply(&host(1), &preempt(0)), Err(Refused::ZeroKey));
    assert_eq!(state.apply(&host(1), &preempt(11)), Ok(Change::default()), "its own");
    assert_eq!(state.key_of(&host(1)), None);
}

#[test]
fn zero_preempts_all_registrants() {
    let mut state = reserved(Kind::WriteExclusiveAll);
    let one = Preempt { current: 11, victim: 13, kind: Kind::ExclusiveAccess, aborts: false };
    let change = state.apply(&host(1), &one).expect("the key is there");
    assert_eq!(told(&change), each([3], NoticeKind::RegistrationPreempted));
    assert_eq!(state.kind(), Some(Kind::WriteExclusiveAll));
    let all = Preempt { current: 11, victim: 0, kind: Kind::ExclusiveAccess, aborts: false };
    let change = state.apply(&host(1), &all).expect("all hold it");
    assert_eq!(told(&change), each([0, 2], NoticeKind::RegistrationPreempted));
    assert_eq!((state.kind(), state.registrants().len()), (Some(Kind::ExclusiveAccess), 1));
}

/// A holder hands the reservation to a host that is registered or not, and stays registered or not.
#[test]
fn a_reservation_moves_to_another_host() {
    let moved = |current, key, to, unregisters| Move {
        current,
        key,
        to: host(to),
        unregisters,
        persistence: true,
    };
    for (to, unregisters, registrants) in [(3, false, 4), (3, true, 3), (5, false, 5), (5, true, 4)]
    {
        let mut state = reserved(Kind::WriteExclusive);
        let change = state.apply(&host(0), &moved(10, 99, to, unregisters));
        assert_eq!(change, Ok(Change::default()));
        assert!(state.is_holder(&host(to)) && !state.is_holder(&host(0)));
        assert_eq!((state.kind(), state.holder_key()), (Some(Kind::WriteExclusive), 99));
        assert_eq!((state.registrants().len(), state.generation()), (registrants, 5));
        assert_eq!(state.key_of(&host(0)), (!unregisters).then_some(10));
        assert!(state.is_persistent());
    }
    let mut state = reserved(Kind::WriteExclusive);
    for (by, command, refused) in [
        (0, moved(11, 99, 3, false), Refused::Conflict),
        (1, moved(11, 99, 3, false), Refused::Conflict),
        (9, moved(0, 99, 3, false), Refused::Conflict),
        (0, moved(10, 0, 3, false), Refused::ZeroKey),
        (0, moved(10, 99, 0, false), Refused::SameHost),
    ] {
        assert_eq!(state.apply(&host(by), &command), Err(refused), "{command:?}");
    }
    assert_eq!(state, reserved(Kind::WriteExclusive));
    let mut all = reserved(Kind::ExclusiveAccessAll);
    assert_eq!(all.apply(&host(0), &moved(10, 99, 3, false)), Err(Refused::Conflict));
    assert_eq!(registered().apply(&host(0), &moved(10, 99, 3, false)), Err(Refused::Conflict));
}

#[test]
fn only_a_preemption_that_aborts_names_hosts_to_abort() {
    for aborts in [false, true] {
        let mut state = reserved(Kind::WriteExclusiveRegistrants);
        let preempt = Preempt { current: 11, victim: 10, kind: Kind::ExclusiveAccess, aborts };
        let change = state.apply(&host(1), &preempt).expect("the key is there");
        let expected = if aborts { vec![host(0)] } else { Vec::new() };
        assert_eq!(change.aborted, expected);
        assert!(change.notices.len() == 3, "those that are only told are not aborted");
    }
}

#[test]
fn clearing_tells_all_others() {
    let mut state = reserved(Kind::WriteExclusive);
    assert_eq!(state.apply(&host(2), &Clear { current: 10 }), Err(Refused::Conflict));
    let change = state.apply(&host(2), &Clear { current: 12 }).expect("it is registered");
    assert_eq!(told(&change), each([0, 1, 3], NoticeKind::ReservationPreempted));
    assert_eq!((state.kind(), state.registrants().len()), (None, 0));
}

#[test]
fn a_lock_excludes_other_hosts_from_everything() {
    let mut state = Reservations::default();
    let done = Ok(Change::default());
    assert_eq!(state.apply(&host(1), &Command::Lock), done);
    assert_eq!(state.apply(&host(1), &Command::Lock), done);
    assert_eq!(state.apply(&host(3), &Command::Lock), Err(Refused::Conflict));
    assert_eq!(state.apply(&host(3), &Command::Unlock), done, "of no effect");
    for access in [Access::Read, Access::Write, Access::Other] {
        assert!(state.conflicts(Some(&host(3)), access) && state.conflicts(None, access));
        assert!(!state.conflicts(Some(&host(1)), access));
    }
    let register = Register { key: 7, persistence: Some(true) };
    assert_eq!(state.apply(&host(1), &register), Err(Refused::Conflict));
    assert_eq!(state.apply(&host(0), &Persist(true)), Err(Refused::Conflict));
    assert!(!state.unlock(&host(3)) && state.may_conflict());
    assert!(state.unlock(&host(1)) && !state.may_conflict());
    assert_eq!(state, Reservations::default());
    assert_eq!(state.apply(&host(1), &register), done);
    assert_eq!(state.apply(&host(1), &Command::Lock), Err(Refused::Conflict));
}

#[test]
fn registrations_are_bounded() {
    let mut state = Reservations::default();
    let register = Register { key: 1, persistence: None };
    let long = |n: u8| Host::Iscsi { name: "n".repeat(ISCSI_NAME_BYTES_MAX), isid: [n; 6] };
    for n in 0..5 {
        assert_eq!(state.apply(&long(n), &register), Ok(Change::default()));
    }
    let before = state.clone();
    assert_eq!((state.apply(&long(5), &register), &state), (Err(Refused::Full), &before));
    let too_long = Host::Iscsi { name: "n".repeat(ISCSI_NAME_BYTES_MAX + 1), isid: [0; 6] };
    let empty = Reservations::default().apply(&too_long, &register);
    assert_eq!(empty, Err(Refused::Full));
}

/// The bytes of a record, as the documents of the format have them.
#[test]
fn a_record_has_its_form() {
    let mut state = Reservations::default();
    let register = |key| Register { key, persistence: Some(true) };
    state.apply(&Host::Nvme([7; 16]), &register(0x0102)).expect("room");
    let name = "iqn.a".to_string();
    let second = Host::Iscsi { name, isid: [1, 2, 3, 4, 5, 6] };
    state.apply(&second, &register(3)).expect("room");
    state
        .apply(&second, &Acquire { current: 3, kind: Kind::WriteExclusiveRegistrants })
        .expect("free");
    let mut expected = vec![1, 3, 1, 0, 2, 0, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0, 0];
    expected.extend([7; 16]);
    expected.extend([3, 0, 0, 0, 0, 0, 0, 0, 1, 5, 1, 2, 3, 4, 5, 6]);
    expected.extend(b"iqn.a");
    assert_eq!(state.to_record(), Some(expected.clone()));
    assert_eq!(Reservations::from_record(&expected), Ok(state.clone()));
    for len in 0..expected.len() {
        assert_ne!(Reservations::from_record(&expected[..len]), Ok(state.clone()), "{len} bytes");
    }
    for (at, value, error) in [
        (0, 2, RecordError::Version(2)),
        (1, 7, RecordError::Field("the holder")),
        (1, 5, RecordError::Field("the holder")),
        (1, 0, RecordError::Field("the holder")),
        (2, 2, RecordError::Field("the holder")),
        (16, 2, RecordError::Field("the form of a host")),
        (33, 0, RecordError::Field("a registrant")),
        (41, 9, RecordError::Field("the form of a host")),
        (42, 9, RecordError::Short),
    ] {
        let mut bytes = expected.clone();
        bytes[at] = value;
        assert_eq!(Reservations::from_record(&bytes), Err(error), "byte {at} is {value}");
    }
}

/// A record gives every host back byte by byte: names beyond ASCII, up to the longest, and identifiers that are no text.
#[test]
fn hosts_come_back_as_they_were_whatever_bytes_they_have() {
    let longest = "iqn.2026-11.example:".to_string() + &"東".repeat(67) + "é";
    assert_eq!(longest.len(), ISCSI_NAME_BYTES_MAX);
    let names = ["iqn.2026-11.example:ärzte", "iqn.2026-11.example:日本", "eui.𐐨", &longest];
    let iscsi = names
        .map(|name| Host::Iscsi { name: name.to_string(), isid: [0x80, 0xFF, 0, 27, 10, 0xC3] });
    let ids = [
        [0xFF; 16],
        [0; 16],
        *b"\x1b[2J\x1b]0;names\x07\0\xC3",
        *b"\xF0\x9F\r\n{\"a\":1}\\\0\x80\xA8'",
    ];
    let hosts: Vec<Host> = iscsi.into_iter().chain(ids.map(Host::Nvme)).collect();
    let mut state = Reservations::default();
    for (n, host) in hosts.iter().enumerate() {
        let register = Register { key: 1 + n as u64, persistence: Some(true) };
        assert_eq!(state.apply(host, &register), Ok(Change::default()), "{host:?}");
    }
    for (n, holder) in hosts.iter().enumerate() {
        let current = 1 + n as u64;
        state.apply(holder, &Acquire { current, kind: Kind::WriteExclusive }).expect("free");
        let record = state.to_record().expect("persistent");
        assert_eq!(Reservations::from_record(&record).as_ref(), Ok(&state), "{holder:?}");
        state.apply(holder, &Release { current, kind: Kind::WriteExclusive }).expect("held");
    }
    // A name that is cut within a character is no name.
    let record = state.to_record().expect("persistent");
    let cut = record.windows(3).position(|bytes| bytes == "日".as_bytes()).expect("it is there");
    let mut record = record;
    record[cut] = b'a';
    assert_eq!(Reservations::from_record(&record), Err(RecordError::Field("a name")));
}

fn command() -> impl Strategy<Value = Command> {
    let key = || 0..4_u64;
    let kind = || prop::sample::select(Kind::ALL.to_vec());
    let current = || prop::option::of(key());
    let persistence = || prop::option::of(any::<bool>());
    prop_oneof![
        (key(), persistence()).prop_map(|(key, persistence)| Register { key, persistence }),
        (current(), key(), persistence()).prop_map(|(current, key, persistence)| Replace {
            current,
            key,
            persistence
        }),
        (current(), persistence())
            .prop_map(|(current, persistence)| Unregister { current, persistence }),
        (current(), key(), any::<bool>()).prop_map(|(current, key, persistence)| Set {
            current,
            key,
            persistence
        }),
        (key(), kind()).prop_map(|(current, kind)| Acquire { current, kind }),
        (key(), key(), kind(), any::<bool>()).prop_map(|(current, victim, kind, aborts)| Preempt {
            current,
            victim,
            kind,
            aborts
        }),
        (key(), key(), 0..4_u8, any::<bool>()).prop_map(|(current, key, to, unregisters)| Move {
            current,
            key,
            to: host(to),
            unregisters,
            persistence: true
        }),
        (key(), kind()).prop_map(|(current, kind)| Release { current, kind }),
        key().prop_map(|current| Clear { current }),
        any::<bool>().prop_map(Persist),
    ]
}

/// RESERVATION-1, and that a preemptor that takes over is registered.
fn check_holder(state: &Reservations) {
    let holders = state.registrants().filter(|registrant| registrant.is_holder).count();
    match state.kind() {
        None => assert_eq!(holders, 0),
        Some(kind) if kind.is_held_by_all() => {
            assert!(holders > 0 && holders == state.registrants().len());
        }
        Some(_) => assert_eq!(holders, 1),
    }
    assert!(state.registrants().all(|registrant| registrant.key != 0));
}

proptest! {
    #[test]
    fn rules_hold_after_any_commands(
        commands in prop::collection::vec((0..4_u8, command()), 1..60),
    ) {
        let mut state = Reservations::default();
        for (n, command) in commands {
            let (before, by) = (state.clone(), host(n));
            match state.apply(&by, &command) {
                // RESERVATION-2.
                Err(_) => prop_assert_eq!(&state, &before),
                Ok(change) => {
                    let grown = state.generation().wrapping_sub(before.generation());
                    prop_assert!(grown <= 1);
                    let keys = |state: &Reservations| state.registrants.clone();
                    // RESERVATION-3.
                    prop_assert!(grown == 1 || keys(&state) == keys(&before));
                    prop_assert!(change.notices.iter().all(|notice| notice.host != by));
                    let knows = |notice: &Notice| before.key_of(&notice.host).is_some();
                    prop_assert!(change.notices.iter().all(knows));
                    // A host whose registration another ended is told so.
                    for gone in before.registrants.keys().filter(|it| state.key_of(it).is_none()) {
                        let is_told = change.notices.iter().any(|notice| notice.host == *gone);
                        prop_assert!(is_told || *gone == by);
                    }
                }
            }
            check_holder(&state);
            // RESERVATION-5.
            let record = state.to_record();
            prop_assert_eq!(record.is_some(), state.is_persistent());
            if let Some(record) = record {
                prop_assert!(record.len() <= RECORD_BYTES_MAX);
                prop_assert_eq!(Reservations::from_record(&record), Ok(state.clone()));
            }
        }
    }

    #[test]
    fn any_bytes_are_read_or_refused(
        bytes in prop::collection::vec(any::<u8>(), 0..120),
        changed in prop::option::of((0..100_usize, any::<u8>())),
    ) {
        let mut state = reserved(Kind::WriteExclusive);
        state.apply(&host(0), &Persist(true)).expect("no conflict");
        let mut record = state.to_record().expect("persistent");
        if let Some((at, value)) = changed {
            record[at] = value;
        }
        for bytes in [bytes, record] {
            if let Ok(state) = Reservations::from_record(&bytes) {
                check_holder(&state);
                prop_assert_eq!(state.to_record(), Some(bytes));
            }
        }
    }
}
