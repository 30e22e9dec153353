//! The directory of a single host, and what follows from a view.
//!
//! Method: no answer waits for anything, so each is polled once, and the view is compared before and behind it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use directory::{
    Admit, Alone, BootClock as _, BootTime, Claim, ClaimRecord, Conflict, CoreRecord, DeviceRecord,
    Directory, DirectoryError, GrantRecord, GrantsRecord, HostRecord, Mark, NbdRecord, Reach,
    Regrant, View, VolumeRecord, VolumeState, Word,
};
use uuid::Uuid;

fn id(number: u128) -> Uuid {
    Uuid::from_u128(number)
}

const HOST: u128 = 1;
/// The device that the host has claimed, another that it has claimed, too, and one that it has not.
const DEVICE: u128 = 20;
const OTHER: u128 = 21;
const UNCLAIMED: u128 = 22;

fn address(port: u16) -> SocketAddr {
    SocketAddr::from(([192, 0, 2, 1], port))
}

fn host() -> HostRecord {
    let device = |number| DeviceRecord {
        id: id(number),
        name: format!("d{number}"),
        model: None,
        serial: None,
        health: None,
    };
    HostRecord {
        id: id(HOST),
        name: "here".into(),
        session: id(2),
        boot: "boot".into(),
        version: "1".into(),
        api: address(1),
        api_certificate: Some("certificate".into()),
        discovery: None,
        labels: BTreeMap::from([("rack".into(), "r1".into())]),
        portals_also: vec![[198, 51, 100, 7].into()],
        fence_after_ms: Some(8000),
        cores: vec![CoreRecord { core: 0, portal: address(4420) }],
        devices: vec![device(DEVICE), device(OTHER)],
    }
}

fn volume(number: u128, name: &str, device: u128) -> VolumeRecord {
    VolumeRecord {
        id: id(number),
        name: name.into(),
        owner: None,
        size_bytes: 4096,
        sector_bytes: 4096,
        host: id(HOST),
        device: id(device),
        core: 0,
        portal: address(4420),
        state: VolumeState::Creating,
        promise: serde_json::Value::Null,
        nbd: NbdRecord::default(),
        iscsi: None,
        restrictions: None,
    }
}

/// Returns the answer to a question that waits for nothing.
fn now<T>(reply: impl Future<Output = T>) -> T {
    match pin!(reply).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => answer,
        Poll::Pending => panic!("it waits"),
    }
}

fn claim(device: u128) -> Claim {
    Claim {
        device: id(device),
        name: format!("d{device}"),
        volatile: true,
        model: Some("model".into()),
        serial: Some("serial".into()),
        ..Claim::default()
    }
}

fn with_two_devices() -> Alone {
    let alone = Alone::new(host());
    let mark = Mark { number: 0, host: id(HOST), host_name: "here".into() };
    assert_eq!(now(alone.claim(claim(DEVICE))), Ok(mark.clone()));
    assert_eq!(now(alone.take_over(claim(OTHER), Word::default())), Ok(mark));
    alone
}

/// Returns names and ids of the view's volumes, and checks that each name leads to one of them.
fn volumes(view: &View) -> Vec<(String, u128)> {
    for (name, volume) in &view.names {
        let found = view.named(name).expect("a name leads to a volume");
        assert_eq!((found.id, &found.name), (*volume, name));
    }
    let mut volumes: Vec<_> =
        view.volumes.values().map(|volume| (volume.name.clone(), volume.id.as_u128())).collect();
    volumes.sort();
    volumes
}

fn listed(volumes: &[(&str, u128)]) -> Vec<(String, u128)> {
    volumes.iter().map(|(name, number)| ((*name).to_owned(), *number)).collect()
}

#[test]
fn a_claim_says_whose_it_is_and_where_that_host_is_seen() {
    let alone = with_two_devices();
    assert_eq!(alone.cluster(), None);
    let view = alone.view();
    assert_eq!(view.hosts[&id(HOST)].as_ref(), &host());
    let expected = ClaimRecord {
        host: id(HOST),
        host_name: "here".into(),
        session: id(2),
        labels: host().labels,
        device_name: "d20".into(),
        volatile: true,
        model: Some("model".into()),
        serial: Some("serial".into()),
        boot: "boot".into(),
        api: Some(address(1)),
        api_certificate: Some("certificate".into()),
        portals: vec![address(4420)],
        fence_after_ms: Some(8000),
        number: 0,
    };
    assert_eq!(view.claims[&id(DEVICE)].as_ref(), &expected);
    assert_eq!(expected.fence().map(|term| term.ends_after().as_secs()), Some(8));
    let also = SocketAddr::from(([198, 51, 100, 7], 4420));
    assert_eq!(host().addresses_of(address(4420)), [address(4420), also]);
    assert_eq!([now(alone.check(id(DEVICE))), now(alone.check(id(OTHER)))], [Ok(()), Ok(())]);
    let fenced = Err(DirectoryError::Fenced { holder: "(none)".into() });
    assert_eq!(now(alone.check(id(UNCLAIMED))), fenced);
    assert_eq!(now(alone.catch_up("owner")), Ok(()));
}

/// Every change is seen by the tasks that wait for changes, and one of a device that is not held
/// changes nothing.
#[test]
fn a_device_that_is_not_claimed_refuses_every_change_of_its_volumes() {
    let alone = with_two_devices();
    let mut changes = alone.changes();
    assert!(!changes.has_changed().expect("it lives"));
    let lost = || volume(9, "lost", UNCLAIMED);
    let fenced = DirectoryError::Fenced { holder: "(none)".into() };
    assert_eq!(now(alone.reserve(lost())), Err(fenced.clone()));
    assert_eq!(now(alone.update(lost())), Err(fenced.clone()));
    assert_eq!(now(alone.update_if(lost(), None)), Err(fenced.clone()));
    assert_eq!(now(alone.forget(lost())), Err(fenced.clone()));
    assert_eq!(now(alone.reconcile(id(UNCLAIMED), vec![lost()])), Err(fenced));
    assert_eq!(volumes(&alone.view()), []);
    assert!(changes.has_changed().expect("it lives"));
    let before = *changes.borrow_and_update();
    assert_eq!(now(alone.reserve(volume(3, "a", DEVICE))), Ok(()));
    assert!(changes.has_changed().expect("it lives") && *changes.borrow() > before);
}

#[test]
fn a_name_is_one_volumes_until_that_is_forgotten() {
    let alone = with_two_devices();
    let taken = |name: &str| Err(DirectoryError::NameTaken { name: name.into() });
    assert_eq!(now(alone.reserve(volume(3, "a", DEVICE))), Ok(()));
    assert_eq!(now(alone.reserve(volume(4, "a", OTHER))), taken("a"));
    assert_eq!(now(alone.reserve(volume(4, "b", OTHER))), Ok(()));
    assert_eq!(volumes(&alone.view()), listed(&[("a", 3), ("b", 4)]));
    let ready = VolumeRecord { state: VolumeState::Ready, ..volume(3, "a", DEVICE) };
    assert_eq!(now(alone.update(ready.clone())), Ok(()));
    assert_eq!(alone.view().named("a").map(AsRef::as_ref), Some(&ready));
    // Of the same id on another device: the record stays.
    let elsewhere = volume(3, "a", OTHER);
    assert_eq!(now(alone.update(elsewhere.clone())), Ok(()));
    assert_eq!(now(alone.forget(elsewhere)), Ok(()));
    assert_eq!(alone.view().named("a").map(AsRef::as_ref), Some(&ready));
    assert_eq!(now(alone.forget(ready)), Ok(()));
    assert_eq!(volumes(&alone.view()), listed(&[("b", 4)]));
    assert_eq!(now(alone.reserve(volume(5, "a", DEVICE))), Ok(()));
}

/// The judge sees the view as it is, and its no changes nothing.
#[test]
fn a_change_is_made_only_if_it_is_admitted() {
    let alone = with_two_devices();
    let none: Admit = Arc::new(|view: &View| match view.volumes.len() {
        0 => Ok(()),
        count => Err(format!("{count} already")),
    });
    let refused = Err(DirectoryError::NotAdmitted { detail: "1 already".into() });
    assert_eq!(now(alone.reserve_if(volume(3, "a", DEVICE), Some(none.clone()))), Ok(()));
    assert_eq!(now(alone.reserve_if(volume(4, "b", DEVICE), Some(none.clone()))), refused);
    assert_eq!(volumes(&alone.view()), listed(&[("a", 3)]));
    let larger = VolumeRecord { size_bytes: 8192, ..volume(3, "a", DEVICE) };
    assert_eq!(now(alone.update_if(larger.clone(), Some(none))), refused);
    assert_eq!(alone.view().volumes[&id(3)].size_bytes, 4096);
    assert_eq!(now(alone.update_if(larger, None)), Ok(()));
    assert_eq!(alone.view().volumes[&id(3)].size_bytes, 8192);
}

/// The device is right: what it does not hold goes, with its name; what it holds gets a record, and the name if that is free.
#[test]
fn records_become_those_of_what_a_device_holds() {
    let alone = with_two_devices();
    let there = [(3, "a", DEVICE), (4, "b", DEVICE), (5, "c", OTHER), (8, "e", OTHER)];
    for (number, name, device) in there {
        assert_eq!(now(alone.reserve(volume(number, name, device))), Ok(()));
    }
    let found = vec![
        volume(4, "b", DEVICE),
        volume(5, "c", DEVICE),
        volume(6, "c", DEVICE),
        volume(7, "d", DEVICE),
    ];
    let conflicts = vec![
        Conflict::Volume { id: id(5), device: id(OTHER) },
        Conflict::Name { id: id(6), name: "c".into(), holder: id(5) },
    ];
    assert_eq!(now(alone.reconcile(id(DEVICE), found)), Ok(conflicts));
    let view = alone.view();
    assert_eq!(volumes(&view), listed(&[("b", 4), ("c", 5), ("c", 6), ("d", 7), ("e", 8)]));
    assert_eq!(view.volumes[&id(5)].device, id(OTHER));
    let names: Vec<_> = view.names.iter().map(|(name, id)| (name.as_str(), id.as_u128())).collect();
    assert_eq!(names, [("b", 4), ("c", 5), ("d", 7), ("e", 8)]);
    // One without the name goes without it.
    assert_eq!(now(alone.forget(volume(6, "c", DEVICE))), Ok(()));
    assert_eq!(alone.view().names.get("c"), Some(&id(5)));
}

#[test]
fn a_quota_is_divided_only_as_its_record_was_and_without_the_hosts_that_must_be_gone() {
    let alone = with_two_devices();
    let grants = |blocks| GrantsRecord {
        hosts: BTreeMap::from([(
            id(HOST),
            GrantRecord { blocks, session: id(2), is_short: false },
        )]),
    };
    let regrant = |before: &GrantsRecord, after: &GrantsRecord, gone: &[Uuid]| {
        let (before, after, gone) = (before.clone(), after.clone(), gone.to_vec());
        now(alone.regrant(Regrant { owner: "o".into(), before, after, gone }))
    };
    let recorded = || alone.view().grants.get("o").map(|grants| grants.as_ref().clone());
    let none = GrantsRecord::default();
    assert_eq!((regrant(&grants(1), &grants(2), &[]), recorded()), (Ok(false), None));
    assert_eq!((regrant(&none, &grants(1), &[id(HOST)]), recorded()), (Ok(false), None));
    assert_eq!((regrant(&none, &grants(1), &[id(9)]), recorded()), (Ok(true), Some(grants(1))));
    assert_eq!((regrant(&none, &grants(2), &[]), recorded()), (Ok(false), Some(grants(1))));
    assert_eq!(regrant(&grants(1), &grants(2), &[id(9), id(HOST)]), Ok(false));
    assert_eq!((regrant(&grants(1), &grants(2), &[]), recorded()), (Ok(true), Some(grants(2))));
}

#[test]
fn a_device_that_is_gone_takes_its_records_along_and_who_leaves_all() {
    let alone = with_two_devices();
    assert_eq!(now(alone.reserve(volume(3, "a", DEVICE))), Ok(()));
    assert_eq!(now(alone.reserve(volume(4, "b", OTHER))), Ok(()));
    assert_eq!(now(alone.forget_device(claim(DEVICE), Word::default())), Ok(()));
    assert_eq!(volumes(&alone.view()), listed(&[("b", 4)]));
    assert!(now(alone.check(id(DEVICE))).is_err() && now(alone.check(id(OTHER))).is_ok());
    let described = HostRecord { name: "renamed".into(), ..host() };
    assert_eq!(now(alone.describe(described.clone())), Ok(()));
    assert_eq!(alone.view().hosts[&id(HOST)].as_ref(), &described);
    let mark = now(alone.claim(claim(DEVICE))).expect("it is free");
    assert_eq!(mark.host_name, "renamed");
    assert_eq!(now(alone.leave()), Ok(()));
    let view = alone.view();
    assert!(view.hosts.is_empty() && view.claims.is_empty() && view.volumes.is_empty());
    assert!(view.names.is_empty());
}

/// A volume is reached where its host lives, lists its device, and has claimed it.
#[test]
fn a_volume_is_reached_through_a_host_that_lives_has_its_device_and_claimed_it() {
    let alone = with_two_devices();
    let view = alone.view();
    let on = |device| volume(3, "a", device);
    assert_eq!(view.reach(&on(DEVICE)), Reach::Online);
    assert_eq!(view.reach(&on(UNCLAIMED)), Reach::DeviceMissing);
    assert_eq!(view.reach(&VolumeRecord { host: id(9), ..on(DEVICE) }), Reach::HostLost);
    let changed = |change: &dyn Fn(&mut View)| {
        let mut view = (*view).clone();
        change(&mut view);
        view.reach(&on(DEVICE))
    };
    let unclaimed = changed(&|view: &mut View| {
        view.claims.remove(&id(DEVICE));
    });
    let taken = changed(&|view: &mut View| {
        let claim = (*view.claims[&id(DEVICE)]).clone();
        view.claims.insert(id(DEVICE), Arc::new(ClaimRecord { host: id(9), ..claim }));
    });
    let unplugged = changed(&|view: &mut View| {
        view.hosts.insert(id(HOST), Arc::new(HostRecord { devices: Vec::new(), ..host() }));
    });
    let another = changed(&|view: &mut View| {
        let devices = host().devices.split_off(1);
        view.hosts.insert(id(HOST), Arc::new(HostRecord { devices, ..host() }));
    });
    assert_eq!([unclaimed, taken, unplugged, another], [Reach::DeviceMissing; 4]);
}

/// A host that lives says itself how it is called and where it is; one that is gone is known by its claims.
#[test]
fn the_whereabouts_of_a_host_that_is_gone_are_those_of_its_claims() {
    let mut view = (*with_two_devices().view()).clone();
    let labels = host().labels;
    assert_eq!(view.whereabouts(id(HOST)), Some(("here", &labels)));
    assert_eq!(view.whereabouts(id(9)), None);
    view.hosts.clear();
    assert_eq!(view.whereabouts(id(HOST)), Some(("here", &labels)));
    assert_eq!(view.whereabouts(id(9)), None);
    let claim = (*view.claims[&id(OTHER)]).clone();
    let other = ClaimRecord { host: id(9), host_name: "there".into(), ..claim };
    view.claims.insert(id(OTHER), Arc::new(other));
    assert_eq!(view.whereabouts(id(9)).map(|(name, _)| name), Some("there"));
    assert_eq!(view.named("a"), None);
}

/// A mark is later if it counts further, or as far and another host left it: two claims of one number were made by directories that did
/// not know of each other.
#[test]
fn a_mark_is_later_if_it_counts_further_or_another_host_as_far() {
    let mark = |number, host| Mark { number, host: id(host), host_name: String::new() };
    let known = mark(5, 1);
    for (number, host, is_later) in
        [(4, 2, false), (5, 2, true), (6, 2, true), (4, 1, false), (5, 1, false), (6, 1, true)]
    {
        assert_eq!(mark(number, host).is_later_than(&known), is_later, "{number} of {host}");
    }
}

/// Why the directory cannot be asked is told once: an error that is just that adds no words of its own.
#[test]
fn the_reason_of_an_error_is_told_without_what_is_known_already() {
    let away = DirectoryError::Unreachable { reason: "refused".into() };
    assert_eq!(
        (away.reason(), away.to_string().contains("cannot be reached")),
        ("refused".into(), true)
    );
    assert_eq!(DirectoryError::NoMachineId.reason(), DirectoryError::NoMachineId.to_string());
    let word = Word::down(["a", "b"]);
    assert_eq!(word.down.iter().map(String::as_str).collect::<Vec<_>>(), ["a", "b"]);
}

#[test]
fn the_clock_of_leases_goes_on_and_differences_are_never_negative() {
    let earlier = BootTime::now();
    let at = |seconds| earlier + Duration::from_secs(seconds);
    assert_eq!([at(7) - at(4), at(4) - at(7)].map(|time| time.as_secs()), [3, 0]);
    assert_eq!(at(4) + Duration::from_secs(3), at(7));
    assert_eq!(at(4) + Duration::MAX, at(0) + Duration::MAX);
    assert!(BootTime::now() >= earlier);
}
