//! Sessions with etcd: begun, kept, ended, and what the host is told (SESSION-1, SESSION-2, SESSION-5, SESSION-6, SESSION-7,
//! CLAIM-6).

use std::time::Duration;

use uuid::Uuid;

use super::lab::{Fate, Host, LEASE, Lab, claim, device, keys, record, volume};
use crate::{DirectoryError, Event, HostRecord, Op, Tenure, Term, document};

const FENCE: Duration = Duration::from_secs(8);

fn seconds(time: u64) -> Duration {
    Duration::from_secs(time)
}

/// The lease under which a host's record is.
fn lease_of(lab: &Lab, host: &Host) -> i64 {
    lab.get(&keys().host(host.record.id)).expect("it lives").lease
}

/// Writes the record of another process, under a lease of its own.
fn put_host(lab: &Lab, record: &HostRecord) {
    let (key, value) = (keys().host(record.id), document(record));
    lab.etcd(|etcd| {
        let lease = Some(etcd.grant_lease(LEASE));
        etcd.txn(&[], &[Op::Put { key, value, lease }], &[]).expect("it lives");
    });
}

/// SESSION-1, CLAIM-6: a host is connected, and has its record in etcd; the first of a cluster names that.
#[test]
fn a_host_that_joins_is_connected() {
    let mut lab = Lab::default();
    let first = lab.host(record(1), Tenure::endless());
    assert!(!first.node.is_connected() && first.node.cluster().is_none());
    let refused = lab.run(first.node.claim(claim(0)));
    assert!(matches!(refused, Err(DirectoryError::Unreachable { .. })), "{refused:?}");
    lab.join(&first);
    assert!(first.node.is_connected());
    assert_eq!(first.machine.told(), [Event::Connected]);
    let cluster = lab.read::<Uuid>(&keys().cluster());
    assert!(cluster.is_some());
    assert_eq!(first.node.cluster(), cluster);
    assert_eq!(lab.read::<HostRecord>(&keys().host(record(1).id)), Some(record(1)));
    assert_eq!(first.machine.opened(), [(0, seconds(1))], "a third of the lease for each request");
    let second = lab.joined(2);
    assert_eq!(second.node.cluster(), cluster);
    lab.settle();
    let seen: Vec<Uuid> = first.node.view().hosts.keys().copied().collect();
    assert_eq!(seen, [record(1).id, record(2).id]);
    assert_eq!(lab.get(&keys().registered(record(1).id)), None, "it does not stop by itself");
}

/// CLAIM-6: a host knows its cluster, and takes part in no other; an etcd that has forgotten it learns it again.
#[test]
fn a_host_takes_part_in_its_own_cluster_only() {
    let mut lab = Lab::default();
    let host = lab.joined(1);
    let cluster = host.node.cluster().expect("it is known");
    lab.delete(keys().cluster());
    host.machine.break_watches();
    lab.pause(seconds(1));
    assert_eq!(lab.read(&keys().cluster()), Some(cluster));
    lab.put(keys().cluster(), &Uuid::from_u128(7));
    host.machine.break_watches();
    lab.pause(seconds(1));
    assert!(!host.node.is_connected());
    let reason = host.node.view().cut_off.clone().expect("it says why");
    assert!(reason.contains(&cluster.to_string()), "{reason}");
    let other = lab.joined(2);
    assert_eq!(other.node.cluster(), Some(Uuid::from_u128(7)));
}

/// A host whose kernel has rebooted waits for its own lease to end; another host of its name or id is waited for as long.
#[test]
fn a_host_waits_for_its_former_lease_and_for_no_other_host() {
    let mut lab = Lab::default();
    put_host(&lab, &HostRecord { boot: "before".into(), session: Uuid::from_u128(7), ..record(1) });
    let host = lab.joined(1);
    assert!(lab.now() >= LEASE && lab.now() < LEASE + seconds(1), "{:?}", lab.now());
    assert_eq!(host.machine.opened().len(), 11);
    // A former process under the same kernel is dead.
    let mut lab = Lab::default();
    put_host(&lab, &HostRecord { session: Uuid::from_u128(7), ..record(1) });
    lab.joined(1);
    assert_eq!(lab.now(), Duration::ZERO);
    let others = [
        HostRecord { name: "h1".into(), ..record(2) },
        HostRecord { boot: "other".into(), session: Uuid::from_u128(7), ..record(1) },
    ];
    for other in others {
        let mut lab = Lab::default();
        let (key, value) = (keys().host(other.id), document(&other));
        lab.etcd(|etcd| etcd.txn(&[], &[Op::Put { key, value, lease: None }], &[]))
            .expect("no lease");
        let host = lab.host(record(1), Tenure::endless());
        let refused = lab.run(host.node.join()).map(drop);
        assert!(matches!(refused, Err(DirectoryError::HostLives { .. })), "{refused:?}");
        assert_eq!(lab.now(), LEASE * 2);
    }
}

/// A record of a host of a newer release is no reason to stay away, and one of this very host is.
#[test]
fn a_record_that_is_not_understood_is_passed_over() {
    let mut lab = Lab::default();
    lab.put(keys().host(Uuid::from_u128(9)), &"?");
    lab.joined(1);
    let mut lab = Lab::default();
    lab.put(keys().host(record(1).id), &"?");
    let host = lab.host(record(1), Tenure::endless());
    let refused = lab.run(host.node.join()).map(drop);
    assert!(matches!(refused, Err(DirectoryError::Foreign { .. })), "{refused:?}");
}

/// SESSION-6: of two hosts of one name that register at once one does. Also a registration that is carried out twice is one.
#[test]
fn a_registration_that_is_overtaken_begins_again() {
    let mut lab = Lab::default();
    let host = lab.host(record(1), Tenure::endless());
    let namesake = HostRecord { name: "h1".into(), ..record(2) };
    let between = Fate::Behind(Box::new(move |etcd| {
        let lease = Some(etcd.grant_lease(LEASE));
        let own = Op::Put { key: keys().host(namesake.id), value: document(&namesake), lease };
        let name = Op::Put { key: keys().host_name("h1"), value: document(&namesake.id), lease };
        etcd.txn(&[], &[own, name], &[]).expect("it lives");
    }));
    // The identity, the name, the registration.
    host.machine.fates([Fate::AsAsked, Fate::AsAsked, between]);
    lab.join(&host);
    assert!(lab.now() >= LEASE, "the other one's lease had to end");
    let mut lab = Lab::default();
    let host = lab.host(record(1), Tenure::endless());
    host.machine.double_all();
    lab.join(&host);
    assert_eq!(lab.now(), Duration::ZERO);
}

/// While etcd is away its members are tried in turn, changes are refused, and the view stays as it was.
#[test]
fn a_host_that_is_cut_off_says_so_and_tries_all_members() {
    let mut lab = Lab::default();
    let host = lab.host(record(1), Tenure::endless());
    host.machine.cut_for(Duration::from_millis(500));
    lab.join(&host);
    let members = |host: &Host| host.machine.opened().iter().map(|(member, _)| *member).collect();
    let tried: Vec<usize> = members(&host);
    assert_eq!(tried, [0, 1, 2]);
    lab.run(host.node.claim(claim(0))).expect("it is free");
    host.machine.told();
    let views = host.machine.views();
    host.machine.cut_for(seconds(2));
    lab.pause(Duration::from_millis(1500));
    assert!(!host.node.is_connected());
    let told = host.machine.told();
    assert_eq!(told, [Event::CutOff { reason: "cut".into() }], "with the reason alone");
    let view = host.node.view();
    assert_eq!(view.cut_off.as_deref(), Some("no way"), "the last reason");
    assert!(view.claims.contains_key(&device(0)));
    assert_eq!(host.machine.views(), views + 2, "once for each reason");
    let refused = lab.run(host.node.reserve(volume(1, "a"), None));
    assert_eq!(refused, Err(DirectoryError::Unreachable { reason: "no way".into() }));
    lab.pause(seconds(2));
    assert!(host.node.is_connected() && host.node.view().cut_off.is_none());
    let tried: Vec<usize> = members(&host);
    assert_eq!(tried[..3], [2, 3, 4], "it goes on with the member that it had");
    assert_eq!(host.machine.told(), [Event::Connected]);
    lab.run(host.node.check(device(0))).expect("it is its own");
}

/// SESSION-1: the session ends with the lease, and with the record.
#[test]
fn a_session_ends_with_the_lease_and_the_record() {
    let mut lab = Lab::default();
    let host = lab.joined(1);
    lab.pause(seconds(20));
    assert_eq!(host.machine.told(), [], "it lasts");
    let lease = lease_of(&lab, &host);
    lab.etcd(|etcd| etcd.end_lease(lease));
    lab.pause(seconds(2));
    let ended = "the host's lease has ended".to_owned();
    assert_eq!(host.machine.told(), [Event::CutOff { reason: ended }, Event::Connected]);
    lab.delete(keys().host(host.record.id));
    lab.pause(seconds(2));
    let gone = "the host's record is gone".to_owned();
    assert_eq!(host.machine.told(), [Event::CutOff { reason: gone }, Event::Connected]);
}

/// A host's description is what etcd says of it, also if it was not answered, or was given while etcd was away.
#[test]
fn a_host_is_described_by_its_record() {
    let mut lab = Lab::default();
    let host = lab.joined(1);
    let key = keys().host(host.record.id);
    let described = |version: &str| HostRecord { version: version.to_owned(), ..record(1) };
    lab.run(host.node.describe(described("1"))).expect("etcd is there");
    assert_eq!(lab.read(&key), Some(described("1")));
    let seen = |host: &Host| host.node.view().hosts[&host.record.id].version.clone();
    assert_eq!(seen(&host), "1");
    // What another has written there is put right when the lease is kept.
    let (lease, other) = (lease_of(&lab, &host), described("?"));
    let put = Op::Put { key: key.clone(), value: document(&other), lease: Some(lease) };
    lab.etcd(|etcd| etcd.txn(&[], &[put], &[])).expect("it lives");
    lab.pause(seconds(2));
    assert_eq!(lab.read(&key), Some(described("1")));
    // What is as it is to be is not written again.
    let revision = lab.etcd(|etcd| etcd.revision());
    lab.pause(seconds(5));
    assert_eq!(lab.etcd(|etcd| etcd.revision()), revision);
    host.machine.cut_for(seconds(1));
    lab.pause(Duration::from_millis(500));
    lab.run(host.node.describe(described("2"))).unwrap_or_default();
    lab.pause(seconds(4));
    assert_eq!(lab.read(&key), Some(described("2")));
    // Another process that is this host by now is left alone.
    let other = HostRecord { session: Uuid::from_u128(7), ..described("3") };
    let put =
        Op::Put { key: key.clone(), value: document(&other), lease: Some(lease_of(&lab, &host)) };
    lab.etcd(|etcd| etcd.txn(&[], &[put], &[])).expect("it lives");
    lab.pause(seconds(2));
    assert_eq!(lab.read(&key), Some(other));
}

/// SESSION-5: a change that is not answered ends the session, and what was asked for in it has no effect in the next. A
/// question that is not answered ends nothing.
#[test]
fn a_change_that_is_not_answered_ends_the_session() {
    let mut lab = Lab::default();
    let host = lab.joined(1);
    lab.run(host.node.claim(claim(0))).expect("it is free");
    let lease = lease_of(&lab, &host);
    host.machine.fates([Fate::Lost { is_done: false }]);
    let outcome = lab.run(host.node.check(device(0)));
    assert!(matches!(outcome, Err(DirectoryError::Unreachable { .. })), "{outcome:?}");
    lab.pause(seconds(2));
    assert_eq!(lease_of(&lab, &host), lease, "nothing was asked for");
    for is_done in [false, true] {
        let lease = lease_of(&lab, &host);
        host.machine.fates([Fate::Lost { is_done }]);
        let reserved = lab.run(host.node.reserve(volume(u128::from(is_done), "a"), None));
        assert!(matches!(reserved, Err(DirectoryError::Unreachable { .. })), "{reserved:?}");
        lab.pause(seconds(1));
        assert_ne!(lease_of(&lab, &host), lease, "another session has begun");
        assert_eq!(lab.names("/t/names/").len(), usize::from(is_done));
        lab.run(host.node.check(device(0))).expect("it is its own");
    }
}

/// SESSION-5: a change in a session that has ended refuses itself.
#[test]
fn a_change_in_a_session_that_has_ended_is_refused() {
    let mut lab = Lab::default();
    let host = lab.joined(1);
    lab.run(host.node.claim(claim(0))).expect("it is free");
    let key = keys().host(host.record.id);
    let value = document(&host.record);
    let between = Fate::Behind(Box::new(move |etcd| {
        let lease = Some(etcd.grant_lease(LEASE));
        etcd.txn(&[], &[Op::Put { key, value, lease }], &[]).expect("it lives");
    }));
    host.machine.fates([between]);
    let refused = lab.run(host.node.reserve(volume(1, "a"), None));
    let reason = "the session with it has just ended".to_owned();
    assert_eq!(refused, Err(DirectoryError::Unreachable { reason }));
    assert!(lab.names("/t/names/").is_empty());
}

/// CLAIM-7: a host that stops by itself says so, is confirmed as often as its lease is kept, and stops when that ends.
#[test]
fn a_tenure_lasts_while_the_lease_is_kept() {
    let mut lab = Lab::default();
    let fenced = HostRecord { fence_after_ms: Some(8000), ..record(1) };
    let tenure = Tenure::limited(Term::new(FENCE));
    let host = lab.host(fenced, tenure.clone());
    lab.join(&host);
    assert_eq!(lab.read(&keys().registered(host.record.id)), Some(host.record.session));
    let held = |at: Duration| Event::Held { asked: crate::BootTime(at) };
    assert_eq!(host.machine.told(), [Event::Connected, held(Duration::ZERO)]);
    lab.pause(seconds(30));
    let now = crate::BootTime(lab.now());
    assert!(!tenure.is_over(|| now));
    assert_eq!(host.machine.told(), []);
    // It is over, and to be renewed by the task that is told of it.
    tenure.end();
    lab.pause(seconds(1));
    assert!(matches!(host.machine.told()[..], [Event::Held { .. }]));
    let now = crate::BootTime(lab.now());
    assert!(tenure.renew(now, now));
    host.machine.cut_for(seconds(60));
    lab.pause(seconds(6));
    let now = crate::BootTime(lab.now());
    assert!(!tenure.is_over(|| now));
    lab.pause(seconds(2));
    let now = crate::BootTime(lab.now());
    assert!(tenure.is_over(|| now));
}

/// SESSION-7: a watch that tells nothing though there is something to tell ends the session, within three lengths of the
/// lease.
#[test]
fn a_watch_that_is_silent_ends_the_session() {
    for is_removed in [false, true] {
        let mut lab = Lab::default();
        lab.put(keys().name("old"), &Uuid::from_u128(1));
        let host = lab.joined(1);
        lab.pause(seconds(1));
        host.machine.mute_for(seconds(1000));
        match is_removed {
            true => lab.delete(keys().name("old")),
            false => lab.put(keys().name("new"), &Uuid::from_u128(2)),
        }
        lab.pause(LEASE * 3);
        let told = host.machine.told();
        let silent = "its watch has told nothing of what has changed".to_owned();
        assert_eq!(told, [Event::CutOff { reason: silent }, Event::Connected], "{is_removed}");
        let names: Vec<String> = host.node.view().names.keys().cloned().collect();
        assert_eq!(names, if is_removed { vec![] } else { vec!["new", "old"] });
    }
}

/// SESSION-7: nothing is held against a watch that tells what there is, be it late; nor changes by other users of etcd.
#[test]
fn a_watch_is_not_held_to_be_silent_for_what_it_need_not_tell() {
    let mut lab = Lab::default();
    let host = lab.joined(1);
    host.machine.compares();
    lab.pause(seconds(30));
    assert_eq!(host.machine.compares(), 0, "nothing has changed in all of etcd");
    for n in 0..60_u32 {
        lab.put("/others/a".into(), &n);
        // Keys come and go here, too.
        match n % 4 {
            0 => lab.put(keys().name("a"), &Uuid::from_u128(n.into())),
            1 => lab.put(keys().name("a"), &Uuid::from_u128(n.into())),
            2 => lab.delete(keys().name("a")),
            _ => {}
        }
        lab.settle();
        lab.put("/others/a".into(), &n);
        lab.pause(seconds(1));
    }
    assert_eq!(host.machine.told(), []);
    assert!((18..=21).contains(&host.machine.compares()), "once in a lease's length");
    // Half of what happens is told a second and a half late.
    for n in 0..40_u32 {
        host.machine.mute_for(Duration::from_millis(1500));
        lab.put(keys().name("b"), &Uuid::from_u128(n.into()));
        lab.pause(seconds(3));
    }
    assert_eq!(host.machine.told(), []);
}
