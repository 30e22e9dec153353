//! Changes that are judged by what a tenant has on all hosts (QUOTA-1, QUOTA-2), and divisions of quotas.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use uuid::Uuid;

use super::lab::{Fate, Host, Lab, claim, device, keys, record, volume};
use crate::{
    Admit, DirectoryError, GrantRecord, GrantsRecord, Op, Regrant, Tenure, VolumeRecord,
    VolumeState, document,
};

/// So long that no watch is found silent here.
const LONG: Duration = Duration::from_secs(60);
const TENANT: &str = "/t/tenants/t";

fn with_device() -> (Lab, Host) {
    let mut lab = Lab::default();
    let host = lab.host_with(record(1), (LONG, Tenure::endless()));
    lab.join(&host);
    lab.run(host.node.claim(claim(0))).expect("it is free");
    (lab, host)
}

fn owned(n: u128, name: &str) -> VolumeRecord {
    VolumeRecord { owner: Some("t".into()), ..volume(n, name) }
}

/// Writes a volume of the tenant that lies on another host's device, as that host does.
fn put_elsewhere(lab: &Lab, n: u128) -> VolumeRecord {
    let there = VolumeRecord { device: device(9), ..owned(n, &format!("v{n}")) };
    let (key, value) = (keys().volume(there.id), document(&there));
    let counted = Op::Put { key: TENANT.into(), value: document(&there.id), lease: None };
    let ops = [Op::Put { key, value, lease: None }, counted];
    lab.etcd(|etcd| etcd.txn(&[], &ops, &[])).expect("no lease is named");
    there
}

/// Admits while the tenant has no more than so many volumes, and notes how many those were each time.
fn admit(most: usize) -> (Admit, Arc<Mutex<Vec<usize>>>) {
    let seen: Arc<Mutex<Vec<usize>>> = Arc::default();
    let asked = seen.clone();
    let admit: Admit = Arc::new(move |view| {
        asked.lock().expect("no panic").push(view.volumes.len());
        if view.volumes.len() < most { Ok(()) } else { Err("too many".to_owned()) }
    });
    (admit, seen)
}

/// QUOTA-1: a change of what counts is noted at the tenant, and another is not.
#[test]
fn a_change_is_counted_if_it_changes_what_counts() {
    let (mut lab, host) = with_device();
    let counted = |lab: &Lab| lab.get(TENANT).map_or(0, |kv| kv.mod_revision);
    let first = owned(1, "a");
    let mut last = counted(&lab);
    let mut is_counted = |lab: &Lab| std::mem::replace(&mut last, counted(lab)) != counted(lab);
    lab.run(host.node.reserve(first.clone(), None)).expect("the name is free");
    assert!(is_counted(&lab));
    let creating = VolumeRecord { state: VolumeState::Creating, ..first.clone() };
    lab.run(host.node.update(creating.clone(), None)).expect("it is there");
    assert!(!is_counted(&lab), "it counts as before");
    let larger = VolumeRecord { size_bytes: 8192, ..creating };
    lab.run(host.node.update(larger.clone(), None)).expect("it is there");
    assert!(is_counted(&lab));
    lab.run(host.node.reconcile(device(0), vec![VolumeRecord { core: 3, ..larger.clone() }]))
        .expect("held");
    assert!(!is_counted(&lab));
    lab.run(host.node.reconcile(device(0), vec![first.clone()])).expect("held");
    assert!(is_counted(&lab));
    lab.run(host.node.forget(first.clone())).expect("it is there");
    assert!(is_counted(&lab));
    lab.run(host.node.reconcile(device(0), vec![first])).expect("held");
    assert!(is_counted(&lab));
    lab.run(host.node.reconcile(device(0), Vec::new())).expect("held");
    assert!(is_counted(&lab));
}

/// QUOTA-2: a change is judged by a view of all changes before it, and judged again if another comes between.
#[test]
fn a_change_is_judged_by_all_that_the_tenant_has() {
    let (mut lab, host) = with_device();
    let (two, seen) = admit(2);
    lab.run(host.node.reserve(owned(1, "a"), Some(two.clone()))).expect("it is the first");
    put_elsewhere(&lab, 2);
    let refused = DirectoryError::NotAdmitted { detail: "too many".into() };
    assert_eq!(lab.run(host.node.reserve(owned(3, "c"), Some(two.clone()))), Err(refused.clone()));
    assert_eq!(lab.run(host.node.update(owned(1, "a"), Some(two))), Err(refused.clone()));
    assert_eq!(*seen.lock().expect("no panic"), [0, 2, 2]);
    // Another comes between the judgement and the change.
    let (three, seen) = admit(3);
    let there = VolumeRecord { device: device(9), ..owned(4, "d") };
    let between = Fate::Behind(Box::new(move |etcd| {
        let (key, value) = (keys().volume(there.id), document(&there));
        let counted = Op::Put { key: TENANT.into(), value: document(&there.id), lease: None };
        let ops = [Op::Put { key, value, lease: None }, counted];
        etcd.txn(&[], &ops, &[]).expect("no lease is named");
    }));
    host.machine.fates([Fate::AsAsked, between]);
    assert_eq!(lab.run(host.node.reserve(owned(3, "c"), Some(three))), Err(refused));
    assert_eq!(*seen.lock().expect("no panic"), [2, 3]);
    // A volume that is no tenant's is not judged.
    let (none, seen) = admit(0);
    lab.run(host.node.reserve(volume(7, "g"), Some(none))).expect("the name is free");
    assert_eq!(seen.lock().expect("no panic").len(), 0);
}

/// A host that is asked to catch up waits until it sees what others changed, and says so if it does not.
#[test]
fn catching_up_waits_for_the_view_and_not_for_ever() {
    let (mut lab, host) = with_device();
    lab.run(host.node.catch_up("t")).expect("there is nothing to be seen");
    let there = put_elsewhere(&lab, 2);
    lab.settle();
    let now = lab.now();
    // The tenant's change is the last of all.
    lab.run(host.node.catch_up("t")).expect("it is seen");
    lab.put("/t/other".into(), &1);
    lab.settle();
    lab.run(host.node.catch_up("t")).expect("it is seen, and more");
    assert_eq!(lab.now(), now, "nothing was waited for");
    host.machine.mute_for(Duration::from_secs(2));
    let third = put_elsewhere(&lab, 3);
    lab.run(host.node.catch_up("t")).expect("it is seen then");
    assert_eq!(lab.now(), now + Duration::from_secs(2));
    let volumes: Vec<Uuid> = host.node.view().volumes.keys().copied().collect();
    assert_eq!(volumes, [there.id, third.id]);
    host.machine.mute_for(LONG);
    put_elsewhere(&lab, 4);
    let now = lab.now();
    let outcome = lab.run(host.node.catch_up("t"));
    assert!(matches!(outcome, Err(DirectoryError::Unreachable { .. })), "{outcome:?}");
    assert_eq!(lab.now(), now + Duration::from_secs(10));
    // A change is judged sooner or not at all.
    let (any, _) = admit(100);
    let outcome = lab.run(host.node.reserve(owned(5, "e"), Some(any)));
    assert!(matches!(outcome, Err(DirectoryError::Unreachable { .. })), "{outcome:?}");
    assert_eq!(lab.now(), now + Duration::from_secs(13));
}

fn grants(parts: &[(u128, u64)]) -> GrantsRecord {
    let part = |blocks| GrantRecord { blocks, session: Uuid::from_u128(0x5001), is_short: false };
    let hosts: BTreeMap<Uuid, GrantRecord> =
        parts.iter().map(|(host, blocks)| (Uuid::from_u128(*host), part(*blocks))).collect();
    GrantsRecord { hosts }
}

fn regrant(before: &GrantsRecord, after: &GrantsRecord, gone: &[u128]) -> Regrant {
    let gone = gone.iter().map(|host| Uuid::from_u128(*host)).collect();
    Regrant { owner: "t".into(), before: before.clone(), after: after.clone(), gone }
}

/// A quota is divided as is said only if it is still divided as was thought, and hosts that are to be gone are.
#[test]
fn a_quota_is_divided_by_those_who_know_its_division() {
    let (mut lab, host) = with_device();
    let [none, one, two] = [grants(&[]), grants(&[(1, 10)]), grants(&[(1, 5), (2, 5)])];
    let held = |lab: &Lab| lab.read::<GrantsRecord>("/t/grants/t");
    assert_eq!(lab.run(host.node.regrant(regrant(&one, &two, &[]))), Ok(false));
    assert_eq!(held(&lab), None);
    assert_eq!(lab.run(host.node.regrant(regrant(&none, &one, &[]))), Ok(true));
    assert_eq!(held(&lab), Some(one.clone()));
    assert_eq!(host.node.view().grants.get("t").map(|it| (**it).clone()), Some(one.clone()));
    assert_eq!(lab.run(host.node.regrant(regrant(&none, &two, &[]))), Ok(false));
    assert_eq!(held(&lab), Some(one.clone()));
    let other = lab.joined(2);
    assert_eq!(lab.run(host.node.regrant(regrant(&one, &two, &[2]))), Ok(false), "it lives");
    lab.run(other.node.leave()).expect("etcd is there");
    assert_eq!(lab.run(host.node.regrant(regrant(&one, &two, &[2]))), Ok(true));
    // VOLUME-RECORD-2: a request that is carried out twice.
    host.machine.double_all();
    assert_eq!(lab.run(host.node.regrant(regrant(&two, &one, &[]))), Ok(true));
    assert_eq!(held(&lab), Some(one.clone()));
    // One that changes nothing has no work of its own that could be seen: the second answer counts.
    assert_eq!(lab.run(host.node.regrant(regrant(&one, &one, &[]))), Ok(false));
}

/// Two hosts that divide at once do not both succeed.
#[test]
fn a_division_that_comes_between_is_not_overwritten() {
    let (mut lab, host) = with_device();
    let [none, one, two] = [grants(&[]), grants(&[(1, 10)]), grants(&[(2, 10)])];
    let value = document(&two);
    let between = Fate::Behind(Box::new(move |etcd| {
        let put = Op::Put { key: "/t/grants/t".into(), value, lease: None };
        etcd.txn(&[], &[put], &[]).expect("no lease is named");
    }));
    host.machine.fates([Fate::AsAsked, between]);
    assert_eq!(lab.run(host.node.regrant(regrant(&none, &one, &[]))), Ok(false));
    assert_eq!(lab.read::<GrantsRecord>("/t/grants/t"), Some(two));
}
