//! Records of volumes and their names (SESSION-3, VOLUME-RECORD-1 to VOLUME-RECORD-4).

use std::time::Duration;

use uuid::Uuid;

use super::lab::{Fate, Host, Lab, claim, device, keys, volume};
use crate::{ClaimRecord, Conflict, DirectoryError, Op, VolumeRecord, VolumeState, document};

/// A host that has claimed device 0.
fn with_device() -> (Lab, Host) {
    let mut lab = Lab::default();
    let host = lab.joined(1);
    lab.run(host.node.claim(claim(0))).expect("it is free");
    (lab, host)
}

fn taken(name: &str) -> DirectoryError {
    DirectoryError::NameTaken { name: name.to_owned() }
}

fn is_unreachable<T: std::fmt::Debug>(outcome: &Result<T, DirectoryError>) -> bool {
    matches!(outcome, Err(DirectoryError::Unreachable { .. }))
}

/// The record of a volume in etcd.
fn stored(lab: &Lab, volume: &VolumeRecord) -> Option<VolumeRecord> {
    lab.read(&keys().volume(volume.id))
}

/// SESSION-3: when a change is answered, the host's own view shows it, and no time has passed for that.
#[test]
fn an_answer_comes_with_the_view_that_shows_the_change() {
    let (mut lab, host) = with_device();
    let small = volume(1, "a");
    let large = VolumeRecord { size_bytes: 8192, ..small.clone() };
    assert!(host.node.view().claims.contains_key(&device(0)));
    let before = (lab.now(), host.machine.views());
    lab.run(host.node.reserve(small.clone(), None)).expect("the name is free");
    assert_eq!(host.node.view().named("a").map(|it| (**it).clone()), Some(small.clone()));
    lab.run(host.node.update(large.clone(), None)).expect("it is there");
    assert_eq!(host.node.view().named("a").map(|it| it.size_bytes), Some(8192));
    assert_eq!(stored(&lab, &small), Some(large.clone()));
    lab.run(host.node.forget(large)).expect("it is there");
    assert!(host.node.view().volumes.is_empty() && host.node.view().names.is_empty());
    assert_eq!(stored(&lab, &small), None);
    assert!(lab.names("/t/names/").is_empty());
    assert_eq!(lab.now(), before.0, "a view is told of changes, and not waited for");
    assert_eq!(host.machine.views(), before.1 + 3);
}

/// A name is that of one volume; the answer names what is wrong.
#[test]
fn a_name_is_taken_once_and_free_when_its_volume_is_gone() {
    let (mut lab, host) = with_device();
    let (first, second) = (volume(1, "a"), volume(2, "a"));
    lab.run(host.node.reserve(first.clone(), None)).expect("the name is free");
    assert_eq!(lab.run(host.node.reserve(second.clone(), None)), Err(taken("a")));
    assert_eq!(stored(&lab, &second), None);
    // Of one whose name is another's only the record goes.
    lab.put(keys().volume(second.id), &second);
    lab.run(host.node.forget(second.clone())).expect("it is there");
    assert_eq!((stored(&lab, &second), lab.names("/t/names/")), (None, vec!["a".to_owned()]));
    lab.run(host.node.forget(first)).expect("it is there");
    lab.run(host.node.reserve(second.clone(), None)).expect("the name is free");
    assert_eq!(lab.read::<Uuid>("/t/names/a"), Some(second.id));
    // The same id under another name, while the first is there.
    let again =
        lab.run(host.node.reserve(VolumeRecord { name: "b".into(), ..second.clone() }, None));
    assert!(is_unreachable(&again), "{again:?}");
    // The same name of the same volume, with another record.
    let other = VolumeRecord { size_bytes: 8192, ..second };
    assert_eq!(lab.run(host.node.reserve(other, None)), Err(taken("a")));
}

/// VOLUME-RECORD-2: a request that etcd carries out twice is answered as one that was carried out.
#[test]
fn a_change_that_is_carried_out_twice_is_done() {
    let (mut lab, host) = with_device();
    host.machine.double_all();
    let small = volume(1, "a");
    let large = VolumeRecord { size_bytes: 8192, ..small.clone() };
    lab.run(host.node.reserve(small.clone(), None)).expect("it is its own work");
    lab.run(host.node.update(large.clone(), None)).expect("it is its own work");
    assert_eq!(stored(&lab, &small), Some(large.clone()));
    let conflicts = lab.run(host.node.reconcile(device(0), vec![volume(2, "b")]));
    assert_eq!(conflicts, Ok(Vec::new()));
    assert_eq!((stored(&lab, &small), lab.names("/t/names/")), (None, vec!["b".to_owned()]));
    lab.run(host.node.forget(volume(2, "b"))).expect("it is its own work");
    assert_eq!(lab.names("/t/volumes/"), Vec::<String>::new());
    lab.run(host.node.forget(volume(2, "b"))).expect("nothing is left to be done");
}

/// CLAIM-3, VOLUME-RECORD-4: the changes of a device are in one row; each says so under the session's lease.
#[test]
fn a_change_of_a_device_is_noted_and_a_question_is_none() {
    let (mut lab, host) = with_device();
    let changed = keys().changed(device(0));
    lab.run(host.node.check(device(0))).expect("it is the host's");
    assert_eq!(lab.get(&changed), None);
    lab.run(host.node.reserve(volume(1, "a"), None)).expect("the name is free");
    let noted = lab.get(&changed).expect("a change is noted");
    assert_eq!(noted.lease, lab.get(&keys().host(host.record.id)).expect("it lives").lease);
    host.machine.changes();
    lab.run(host.node.update(volume(1, "a"), None)).expect("it is there");
    assert_eq!(host.machine.changes(), 1, "it knows of its own change");
    // Something late was carried out since: the next change is tried once more.
    lab.put(changed, &host.record.session);
    lab.run(host.node.check(device(0))).expect("it is the host's");
    host.machine.changes();
    lab.run(host.node.update(volume(1, "a"), None)).expect("it is there");
    assert_eq!(host.machine.changes(), 2);
    // If that goes on all the time, it says so.
    let late = || {
        Fate::Behind(Box::new(|etcd| {
            let put = Op::Put { key: keys().changed(device(0)), value: Vec::new(), lease: None };
            etcd.txn(&[], &[put], &[]).expect("no lease is named");
        }))
    };
    host.machine.fates((0..100).map(|_| late()));
    let outcome = lab.run(host.node.reconcile(device(0), Vec::new()));
    assert!(is_unreachable(&outcome), "{outcome:?}");
}

/// CLAIM-3: nothing is changed about a device that is another host's, or none's; the answer names the host.
#[test]
fn changes_of_a_device_that_is_not_the_hosts_are_refused() {
    let (mut lab, host) = with_device();
    let fenced = |holder: &str| DirectoryError::Fenced { holder: holder.to_owned() };
    let other = VolumeRecord { device: device(1), ..volume(1, "a") };
    assert_eq!(lab.run(host.node.check(device(1))), Err(fenced("(none)")));
    assert_eq!(lab.run(host.node.reserve(other.clone(), None)), Err(fenced("(none)")));
    let third = lab.joined(3);
    lab.run(third.node.claim(claim(1))).expect("it is free");
    lab.settle();
    assert_eq!(lab.run(host.node.check(device(1))), Err(fenced("h3")));
    assert_eq!(lab.run(host.node.forget(other)), Err(fenced("h3")));
    // One that was the host's until now, before its watch tells.
    host.machine.mute_for(Duration::from_secs(1));
    let taken = ClaimRecord::of(&third.record, claim(0));
    lab.put(keys().device(device(0)), &taken);
    assert_eq!(lab.run(host.node.reserve(volume(2, "b"), None)), Err(fenced("h3")));
    assert!(lab.names("/t/names/").is_empty());
    // The session looks at the claim at once, and finds it lost.
    lab.settle();
    assert_eq!(host.machine.lost(), [(device(0), Some("h3".to_owned()))]);
}

/// VOLUME-RECORD-3: the record of a volume that another device holds, too, stays as it is, and the device that has it is
/// named.
#[test]
fn a_record_that_is_another_devices_stays() {
    let (mut lab, host) = with_device();
    let there = VolumeRecord { device: device(1), ..volume(1, "a") };
    let here = volume(1, "a");
    lab.put(keys().volume(there.id), &there);
    lab.put(keys().name("a"), &there.id);
    lab.run(host.node.update(here.clone(), None)).expect("nothing is to be done");
    lab.run(host.node.forget(here.clone())).expect("nothing is to be done");
    let admit = lab.run(host.node.update(here.clone(), Some(std::sync::Arc::new(|_| Ok(())))));
    assert!(matches!(admit, Err(DirectoryError::NotAdmitted { .. })), "{admit:?}");
    let conflict = Conflict::Volume { id: here.id, device: device(1) };
    assert_eq!(lab.run(host.node.reconcile(device(0), vec![here])), Ok(vec![conflict]));
    lab.run(host.node.reconcile(device(0), Vec::new())).expect("it is the host's");
    assert_eq!(stored(&lab, &there), Some(there.clone()));
    assert_eq!(lab.read::<Uuid>("/t/names/a"), Some(there.id));
}

/// VOLUME-RECORD-1: a change is made to what etcd holds, also if that changes between its question and its transaction.
#[test]
fn a_change_that_comes_between_is_not_overwritten_blindly() {
    let (mut lab, host) = with_device();
    let known = volume(1, "a");
    lab.run(host.node.reserve(known.clone(), None)).expect("the name is free");
    let between = |record: VolumeRecord| {
        Fate::Behind(Box::new(move |etcd| {
            let (key, value) = (keys().volume(record.id), document(&record));
            etcd.txn(&[], &[Op::Put { key, value, lease: None }], &[]).expect("no lease is named");
        }))
    };
    let other = VolumeRecord { core: 7, ..known.clone() };
    let wanted = VolumeRecord { size_bytes: 8192, ..known.clone() };
    // A question, and the transaction.
    host.machine.fates([Fate::AsAsked, between(other.clone())]);
    host.machine.changes();
    lab.run(host.node.update(wanted.clone(), None)).expect("it is tried again");
    assert_eq!((stored(&lab, &known), host.machine.changes()), (Some(wanted.clone()), 2));
    // What is there already is not taken for its own work before it has asked for anything.
    lab.run(host.node.update(wanted.clone(), None)).expect("it is there");
    assert_eq!(host.machine.changes(), 1);
    host.machine.fates([Fate::AsAsked, between(other.clone())]);
    lab.run(host.node.forget(wanted.clone())).expect("it is tried again");
    assert_eq!(stored(&lab, &known), None);
    let always = (0..100).map(|at| match at % 2 {
        0 => Fate::AsAsked,
        _ => between(VolumeRecord { core: at, ..known.clone() }),
    });
    host.machine.fates(always);
    let outcome = lab.run(host.node.update(wanted, None));
    assert!(is_unreachable(&outcome), "{outcome:?}");
}

/// Reconciling makes the records those of what a device holds: others go, with their names.
#[test]
fn records_become_those_of_what_a_device_holds() {
    let (mut lab, host) = with_device();
    let [kept, renamed, gone, elsewhere] =
        [(1, "a"), (2, "b"), (3, "c"), (4, "d")].map(|(n, name)| volume(n, name));
    let elsewhere = VolumeRecord { device: device(1), ..elsewhere };
    for volume in [&kept, &renamed, &gone, &elsewhere] {
        lab.put(keys().volume(volume.id), volume);
        lab.put(keys().name(&volume.name), &volume.id);
    }
    let newly = volume(5, "e");
    // It takes the name of the one that is gone: free in the second round only.
    let renamed = VolumeRecord { name: "c".into(), ..renamed };
    let held = vec![kept.clone(), renamed.clone(), newly.clone()];
    assert_eq!(lab.run(host.node.reconcile(device(0), held.clone())), Ok(Vec::new()));
    for volume in [&kept, &renamed, &newly, &elsewhere] {
        assert_eq!(stored(&lab, volume).as_ref(), Some(volume));
        assert_eq!(lab.read::<Uuid>(&keys().name(&volume.name)), Some(volume.id));
    }
    assert_eq!(stored(&lab, &gone), None);
    // What is as it is to be is not written again.
    let before = lab.etcd(|etcd| etcd.revision());
    assert_eq!(lab.run(host.node.reconcile(device(0), held)), Ok(Vec::new()));
    assert_eq!(lab.get(&keys().volume(kept.id)).map(|kv| kv.mod_revision < before), Some(true));
    // A name that is another volume's is named, and the first of two on one device has it.
    let held = vec![volume(1, "d"), volume(5, "f"), volume(6, "f")];
    let conflict = Conflict::Name { id: kept.id, name: "d".into(), holder: elsewhere.id };
    assert_eq!(lab.run(host.node.reconcile(device(0), held)), Ok(vec![conflict]));
    assert_eq!(lab.read::<Uuid>("/t/names/f"), Some(newly.id));
    assert_eq!(lab.names("/t/volumes/").len(), 4);
}

/// A device of many volumes is reconciled by transactions that etcd takes, and by no more of them than need be.
#[test]
fn many_records_make_few_transactions() {
    let owned = |n: u128, owner: Option<String>| {
        let state = VolumeState::Ready;
        VolumeRecord { owner, state, ..volume(n, &format!("v{n}")) }
    };
    let own_tenant = |n: u128| owned(n, Some(format!("t{n}")));
    let one_tenant = |n: u128| owned(n, Some("t".to_owned()));
    let no_tenant = |n: u128| owned(n, None);
    // Records and names are two changes for each volume; each tenant is one for each transaction. A hundred is the most.
    type Make<'a> = &'a dyn Fn(u128) -> VolumeRecord;
    let cases: [(Make<'_>, u128, u32); 8] = [
        (&no_tenant, 50, 1),
        (&no_tenant, 51, 2),
        (&no_tenant, 200, 4),
        (&own_tenant, 33, 1),
        (&own_tenant, 34, 2),
        (&own_tenant, 132, 4),
        (&one_tenant, 49, 1),
        (&one_tenant, 50, 2),
    ];
    for (make, count, transactions) in cases {
        let (mut lab, host) = with_device();
        let volumes: Vec<VolumeRecord> = (0..count).map(make).collect();
        host.machine.changes();
        assert_eq!(lab.run(host.node.reconcile(device(0), volumes)), Ok(Vec::new()));
        assert_eq!(host.machine.changes(), transactions, "{count}");
        assert_eq!(lab.names("/t/volumes/").len() as u128, count);
        assert_eq!(lab.names("/t/names/").len() as u128, count);
    }
}

/// VOLUME-RECORD-1: nothing is written behind a transaction that was refused; all is read again.
#[test]
fn a_reconciliation_that_is_overtaken_begins_again() {
    let (mut lab, host) = with_device();
    let volumes: Vec<VolumeRecord> = (0..120).map(|n| volume(n, &format!("v{n}"))).collect();
    let first = volumes[0].id;
    let between = Fate::Behind(Box::new(move |etcd| {
        let put = Op::Put { key: keys().volume(first), value: b"?".to_vec(), lease: None };
        etcd.txn(&[], &[put], &[]).expect("no lease is named");
    }));
    host.machine.fates([between]);
    host.machine.changes();
    assert_eq!(lab.run(host.node.reconcile(device(0), volumes.clone())), Ok(Vec::new()));
    assert_eq!(host.machine.changes(), 1 + 3);
    assert!(volumes.iter().all(|volume| stored(&lab, volume).as_ref() == Some(volume)));
}
