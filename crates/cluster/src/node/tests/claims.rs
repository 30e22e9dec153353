//! Claims of devices: made, refused, lost, forgotten by etcd, given back (CLAIM-1 to CLAIM-9, LEFTOVER-1 to
//! LEFTOVER-3).

use std::time::Duration;

use uuid::Uuid;

use super::lab::{Fate, Host, LEASE, Lab, claim, device, keys, record, volume};
use crate::{
    Claim, ClaimRecord, DirectoryError, HostRecord, Mark, Op, Tenure, Term, VolumeRecord,
    WatchEvent, Word, document,
};

const FENCE: Duration = Duration::from_secs(8);

/// A host that stops by itself.
fn fenced(n: u128) -> HostRecord {
    HostRecord { fence_after_ms: Some(FENCE.as_millis() as u64), ..record(n) }
}

fn key(n: u128) -> String {
    keys().device(device(n))
}

fn note(n: u128) -> String {
    keys().claimed(device(n))
}

/// The host that has claimed a device, as etcd knows.
fn holder(lab: &Lab, n: u128) -> Option<Uuid> {
    lab.read::<ClaimRecord>(&key(n)).map(|claim| claim.host)
}

/// The claims of another host, as that one would have made it.
fn claim_of(n: u128, number: u64) -> ClaimRecord {
    ClaimRecord { number, ..ClaimRecord::of(&record(n), claim(0)) }
}

/// Writes the claim of another host and its note, as by a transaction of that host.
fn put_claim(etcd: &mut crate::memory::MemoryStore, claim: &ClaimRecord) {
    etcd.txn(&[], &crate::put_claim(&keys(), device(0), claim), &[]).expect("no lease is named");
}

fn fenced_by(holder: &str) -> DirectoryError {
    DirectoryError::Fenced { holder: holder.to_owned() }
}

/// Has another host claim device 0 and be gone; its lease has ended.
fn with_holder_gone(record: HostRecord) -> (Lab, Host) {
    let mut lab = Lab::default();
    {
        let gone = lab.host(record, Tenure::endless());
        let session = lab.run(gone.node.join()).unwrap_or_else(|error| panic!("{error}"));
        lab.run(gone.node.claim(claim(0))).expect("it is free");
        drop(session);
    }
    lab.pause(LEASE);
    let host = lab.joined(1);
    (lab, host)
}

/// SESSION-3, CLAIM-9: a claim is counted, can be seen, and is told to the device by its mark.
#[test]
fn a_device_is_claimed_and_given_back() {
    let mut lab = Lab::default();
    let host = lab.joined(1);
    let mark = lab.run(host.node.claim(claim(0))).expect("it is free");
    assert_eq!(mark, Mark { number: 1, host: host.record.id, host_name: "h1".into() });
    assert_eq!(host.node.view().claims.get(&device(0)).map(|it| it.number), Some(1));
    let other = lab.joined(2);
    let lives = DirectoryError::HolderLives { device: "d0".into(), holder: "h1".into() };
    assert_eq!(lab.run(other.node.claim(claim(0))), Err(lives.clone()));
    assert_eq!(lab.run(other.node.take_over(claim(0), Word::down(["h1"]))), Err(lives));
    lab.run(host.node.give_back(device(0))).expect("etcd is there");
    lab.settle();
    assert_eq!(lab.run(host.node.check(device(0))), Err(fenced_by("(none)")));
    assert_eq!((holder(&lab, 0), lab.get(&note(0)).is_some()), (None, true));
    let mark = lab.run(other.node.claim(claim(0))).expect("it is free");
    assert_eq!((mark.number, holder(&lab, 0)), (2, Some(other.record.id)));
    lab.run(host.node.give_back(device(0))).expect("there is nothing to do");
    assert_eq!(holder(&lab, 0), Some(other.record.id));
}

/// CLAIM-2: each reason for which a device of a host that is gone is not given, and the words that give it.
#[test]
fn a_device_of_a_host_that_is_gone_is_taken_by_word_only() {
    let (mut lab, host) = with_holder_gone(record(2));
    let (device_name, holder_name) = (|| "d0".to_owned(), || "h2".to_owned());
    let lost = DirectoryError::HolderLost {
        device: device_name(),
        holder: holder_name(),
        is_fenced: false,
    };
    assert_eq!(lab.run(host.node.claim(claim(0))), Err(lost));
    let may_serve = DirectoryError::HolderMayServe { device: device_name(), holder: holder_name() };
    assert_eq!(lab.run(host.node.take_over(claim(0), Word::default())), Err(may_serve));
    host.machine.sight(record(2).id);
    let seen = lab.run(host.node.take_over(claim(0), Word::down(["h2"])));
    assert!(
        matches!(&seen, Err(DirectoryError::HolderSeen { holder, .. }) if holder == "h2"),
        "{seen:?}"
    );
    assert_eq!(holder(&lab, 0), Some(record(2).id));
    let (mut lab, host) = with_holder_gone(record(2));
    let mark = lab.run(host.node.take_over(claim(0), Word::down(["h2"]))).expect("it is down");
    assert_eq!((mark.number, host.machine.sought()), (2, vec![record(2).id]));
}

/// CLAIM-7: the fence of the former holder is waited for, and no longer.
#[test]
fn a_fence_is_waited_for_unless_its_host_is_back() {
    let (mut lab, host) = with_holder_gone(fenced(2));
    let lost = lab.run(host.node.claim(claim(0)));
    assert!(matches!(lost, Err(DirectoryError::HolderLost { is_fenced: true, .. })), "{lost:?}");
    let began = lab.now();
    lab.run(host.node.take_over(claim(0), Word::default())).expect("it has stopped by then");
    assert_eq!(lab.now() - began, Term::new(FENCE).safe_after());
    assert_eq!(holder(&lab, 0), Some(host.record.id));
    // The holder comes back meanwhile: that is told at once.
    let (mut lab, host) = with_holder_gone(fenced(2));
    let back = lab.host(fenced(2), Tenure::endless());
    let (began, node) = (lab.now(), back.node.clone());
    let machine = back.machine.clone();
    lab.spawn(async move {
        crate::World::sleep(&machine, Duration::from_secs(4)).await;
        let session = node.join().await.unwrap_or_else(|error| panic!("{error}"));
        node.keep(session).await;
    });
    let lives = DirectoryError::HolderLives { device: "d0".into(), holder: "h2".into() };
    assert_eq!(lab.run(host.node.take_over(claim(0), Word::default())), Err(lives));
    let waited = lab.now() - began;
    assert!(waited < Duration::from_secs(5), "{waited:?}");
}

/// A wait for a fence may outlast a session: the claim goes on in the next.
#[test]
fn a_claim_goes_on_in_the_next_session() {
    let (mut lab, host) = with_holder_gone(fenced(2));
    let machine = host.machine.clone();
    let cut_at = Term::new(FENCE).safe_after() - Duration::from_millis(100);
    lab.spawn(async move {
        crate::World::sleep(&machine, cut_at).await;
        machine.cut_for(Duration::from_secs(2));
    });
    let began = lab.now();
    lab.run(host.node.take_over(claim(0), Word::default())).expect("it has stopped by then");
    assert!(lab.now() - began > cut_at + Duration::from_secs(2));
    assert_eq!(holder(&lab, 0), Some(host.record.id));
}

/// CLAIM-4: a claim that was made in a session which has ended meanwhile is not taken for one that holds.
#[test]
fn a_claim_whose_session_ended_is_not_held() {
    let mut lab = Lab::default();
    let host = lab.joined(1);
    host.machine.fates([Fate::AsAsked, Fate::Late(Duration::from_secs(2))]);
    let machine = host.machine.clone();
    lab.spawn(async move {
        crate::World::sleep(&machine, Duration::from_millis(100)).await;
        machine.break_watches();
    });
    let claimed = lab.run(host.node.claim(claim(0)));
    assert!(matches!(claimed, Err(DirectoryError::Unreachable { .. })), "{claimed:?}");
    assert_eq!(lab.run(host.node.check(device(0))), Err(fenced_by("h1")));
    lab.run(host.node.claim(claim(0))).expect("it is its own");
    lab.run(host.node.check(device(0))).expect("it is its own");
}

/// CLAIM-4: a claim that is another's is lost, whose that is, is told, and the tenure ends with it.
#[test]
fn a_claim_that_is_anothers_is_lost() {
    let mut lab = Lab::default();
    let tenure = Tenure::limited(Term::new(FENCE));
    let host = lab.host(fenced(1), tenure.clone());
    lab.join(&host);
    let now = lab.now();
    assert!(!tenure.is_over(|| crate::BootTime(now)), "the first session begins it");
    for n in [0, 1] {
        lab.run(host.node.claim(claim(n))).expect("it is free");
    }
    lab.settle();
    assert_eq!(host.machine.lost(), []);
    // Another host has taken it.
    lab.etcd(|etcd| put_claim(etcd, &claim_of(2, 2)));
    lab.settle();
    assert_eq!(host.machine.lost(), [(device(0), Some("h2".to_owned()))]);
    assert!(tenure.has_lost());
    assert_eq!(lab.run(host.node.check(device(0))), Err(fenced_by("h2")));
    lab.run(host.node.check(device(1))).expect("this one is its own");
    // It was given back by a word (LEFTOVER-3): the note tells that it was claimed.
    lab.delete(key(1));
    lab.settle();
    assert_eq!(host.machine.lost(), [(device(1), None)]);
    lab.etcd(|etcd| put_claim(etcd, &claim_of(3, 9)));
    lab.settle();
    assert_eq!(host.machine.lost(), [], "what is not held is not lost again");
}

/// A claim that this process made, though it was not told so, is its own: under the epoch that it has.
#[test]
fn a_claim_of_the_same_process_is_its_own_whenever_it_was_made() {
    let mut lab = Lab::default();
    let host = lab.joined(1);
    lab.run(host.node.claim(claim(0))).expect("it is free");
    let made = lab.read::<ClaimRecord>(&key(0)).expect("it is claimed");
    lab.put(key(0), &made);
    lab.settle();
    lab.run(host.node.check(device(0))).expect("it is its own");
    lab.run(host.node.reserve(volume(1, "a"), None)).expect("it is its own");
    assert_eq!(host.machine.lost(), []);
}

/// CLAIM-9: the mark of a later claim on a device says that it is lost; that of an earlier one says nothing.
#[test]
fn a_later_mark_on_a_device_loses_it() {
    let mut lab = Lab::default();
    let host = lab.joined(1);
    let mark = lab.run(host.node.claim(claim(0))).expect("it is free");
    host.node.lost(device(0), &Mark { number: 7, ..mark.clone() }, "h2".into());
    assert_eq!(host.machine.lost(), []);
    lab.run(host.node.check(device(0))).expect("it is its own");
    host.node.lost(device(0), &mark, "h2".into());
    assert_eq!(host.machine.lost(), [(device(0), Some("h2".to_owned()))]);
    host.node.lost(device(0), &mark, "h2".into());
    assert_eq!(host.machine.lost(), [], "once");
}

/// Has host 1 claim device 0, and etcd go back to `before`.
fn restored(before: impl FnOnce(&mut crate::memory::MemoryStore)) -> (Lab, Host, Mark) {
    let mut lab = Lab::default();
    let host = lab.joined(1);
    lab.etcd(before);
    let backup = lab.etcd(|etcd| etcd.backup());
    // The claim that is there is given back, by a host that counts.
    lab.delete(key(0));
    lab.settle();
    let mark = lab.run(host.node.claim(claim(0))).expect("it is free");
    lab.restore(&backup, &[&host]);
    host.machine.opened();
    (lab, host, mark)
}

/// CLAIM-8: a claim that etcd has forgotten is made again, at once.
#[test]
fn a_forgotten_claim_is_made_again() {
    let (mut lab, host, mark) = restored(|_| {});
    lab.settle();
    assert_eq!(lab.read::<ClaimRecord>(&key(0)).map(|claim| claim.mark()), Some(mark.clone()));
    assert_eq!(lab.read::<ClaimRecord>(&note(0)).map(|claim| claim.mark()), Some(mark));
    lab.run(host.node.check(device(0))).expect("it is its own");
    assert_eq!(host.machine.lost(), []);
    assert_eq!(host.machine.opened().len(), 1, "by one attempt");
    assert!(host.machine.sought().is_empty());
}

/// CLAIM-8: the same where the claim changes between the look and the transaction: it is looked at again.
#[test]
fn a_forgotten_claim_is_not_made_over_another() {
    let (mut lab, host, _) = restored(|_| {});
    let between = Fate::Behind(Box::new(|etcd| put_claim(etcd, &claim_of(2, 5))));
    host.machine.fates([Fate::AsAsked, between]);
    lab.pause(Duration::from_secs(2));
    assert_eq!(holder(&lab, 0), Some(record(2).id));
    assert_eq!(host.machine.lost(), [(device(0), Some("h2".to_owned()))]);
}

/// CLAIM-8, CLAIM-9: etcd knows another host as the holder: it counts if it is seen, or if its claim is the later
/// one.
#[test]
fn a_holder_that_a_forgetful_etcd_names_counts_if_it_is_seen_or_later() {
    // Not seen: an older claim.
    let (mut lab, host, _) = restored(|etcd| put_claim(etcd, &claim_of(2, 1)));
    lab.pause(Duration::from_secs(1));
    assert_eq!((holder(&lab, 0), host.machine.lost()), (Some(host.record.id), vec![]));
    assert_eq!(host.machine.sought(), [record(2).id]);
    // Seen.
    let (mut lab, host, _) = restored(|etcd| put_claim(etcd, &claim_of(2, 1)));
    host.machine.sight(record(2).id);
    lab.pause(Duration::from_secs(1));
    assert_eq!(holder(&lab, 0), Some(record(2).id));
    assert_eq!(host.machine.lost(), [(device(0), Some("h2".to_owned()))]);
    // A claim that is not understood.
    let (mut lab, host, _) = restored(|etcd| {
        let put = Op::Put { key: key(0), value: b"?".to_vec(), lease: None };
        etcd.txn(&[], &[put], &[]).expect("no lease is named");
    });
    lab.pause(Duration::from_secs(1));
    assert_eq!(host.machine.lost(), [(device(0), Some("unknown".to_owned()))]);
    // A note of a later claim than its own.
    let (mut lab, host, mark) = restored(|_| {});
    let later = ClaimRecord { number: mark.number + 1, ..claim_of(2, 0) };
    lab.etcd(|etcd| {
        let put = Op::Put { key: note(0), value: document(&later), lease: None };
        etcd.txn(&[], &[put], &[]).expect("no lease is named");
    });
    lab.pause(Duration::from_secs(1));
    assert_eq!((holder(&lab, 0), host.machine.lost()), (None, vec![(device(0), None)]));
}

/// IDENTITY-2: a former process of this host is dead if it ran under this kernel, and is looked for if not.
#[test]
fn a_former_process_of_the_host_is_dead_if_its_kernel_is_this_one() {
    for (boot, is_sought) in [("b1", false), ("b7", true)] {
        let (mut lab, host, _) = restored(|etcd| {
            let session = Uuid::from_u128(0x77);
            let former = ClaimRecord { session, boot: boot.into(), ..claim_of(1, 1) };
            put_claim(etcd, &former);
        });
        host.machine.sight(host.record.id);
        lab.pause(Duration::from_secs(1));
        assert_eq!(host.machine.sought().is_empty(), !is_sought, "{boot}");
        let lost = host.machine.lost();
        assert_eq!(lost.is_empty(), !is_sought, "{boot}: {lost:?}");
    }
}

/// CLAIM-7: a device that is taken between the host's look at its claims and the begin of its watch is found to be
/// lost.
#[test]
fn a_claim_that_is_lost_while_a_session_begins_is_found() {
    let mut lab = Lab::default();
    let host = lab.joined(1);
    lab.run(host.node.claim(claim(0))).expect("it is free");
    lab.run(host.node.claim(claim(1))).expect("it is free");
    // Two looks at claims, the cluster's identity, the host's name, its record.
    let between = Fate::Behind(Box::new(|etcd| put_claim(etcd, &claim_of(2, 5))));
    host.machine.fates([Fate::AsAsked, Fate::AsAsked, Fate::AsAsked, Fate::AsAsked, between]);
    host.machine.break_watches();
    lab.settle();
    assert!(host.node.is_connected());
    assert_eq!(host.machine.lost(), [(device(0), Some("h2".to_owned()))]);
    lab.run(host.node.check(device(1))).expect("this one is its own");
}

/// A device that was given back while etcd was asked about it is not held again by the answer.
#[test]
fn a_device_that_is_given_back_meanwhile_stays_so() {
    let mut lab = Lab::default();
    let host = lab.joined(1);
    lab.run(host.node.claim(claim(0))).expect("it is free");
    lab.settle();
    let made = lab.read::<ClaimRecord>(&key(0)).expect("it is claimed");
    // The look at a claim that seems to be changed takes a while.
    host.machine.fates([Fate::Late(Duration::from_millis(500))]);
    lab.put(key(0), &made);
    lab.settle();
    let _ = lab.run(host.node.give_back(device(0)));
    lab.pause(Duration::from_secs(1));
    let outcome = lab.run(host.node.check(device(0)));
    assert!(matches!(outcome, Err(DirectoryError::Fenced { .. })), "{outcome:?}");
}

/// Puts volumes on devices 0 and 1 into etcd, each with its name.
fn put_volumes(lab: &Lab) {
    for (n, on) in [(1, 0), (2, 1)] {
        let volume = VolumeRecord { device: device(on), ..volume(n, &format!("v{n}")) };
        lab.put(keys().volume(volume.id), &volume);
        lab.put(keys().name(&volume.name), &volume.id);
    }
}

/// The claims of device `n` that were made since `revision`.
fn claims_made(lab: &Lab, n: u128, revision: i64) -> Vec<ClaimRecord> {
    let events = lab.etcd(|etcd| etcd.changes_after(0, &key(n), revision));
    let claims = events.iter().filter_map(WatchEvent::put);
    claims.map(|value| serde_json::from_slice(value).expect("a claim")).collect()
}

/// LEFTOVER-1: what a former process of this host left of a volatile device goes; nothing else does.
#[test]
fn leftovers_of_former_processes_go() {
    let mut lab = Lab::default();
    put_volumes(&lab);
    let session = Uuid::from_u128(0x77);
    let left = ClaimRecord { volatile: true, session, ..claim_of(1, 1) };
    let cases = [
        left.clone(),
        ClaimRecord { volatile: false, device_name: "d1".into(), ..left.clone() },
        ClaimRecord { host: record(2).id, device_name: "d2".into(), ..left.clone() },
    ];
    for (n, claim) in cases.iter().enumerate() {
        lab.put(key(n as u128), claim);
        lab.put(note(n as u128), claim);
    }
    let host = lab.joined(1);
    let own = Claim { volatile: true, ..claim(3) };
    lab.run(host.node.claim(own)).expect("it is free");
    let revision = lab.etcd(|etcd| etcd.revision());
    lab.run(host.node.clear_leftovers());
    assert_eq!((lab.get(&key(0)), lab.get(&note(0))), (None, None));
    assert_eq!(lab.names("/t/names/"), ["v2"]);
    assert_eq!(lab.names("/t/volumes/").len(), 1);
    for n in 1..=3 {
        assert!(lab.get(&key(n)).is_some() && lab.get(&note(n)).is_some(), "{n}");
    }
    let names: Vec<String> =
        claims_made(&lab, 0, revision).into_iter().map(|claim| claim.device_name).collect();
    assert_eq!(names, ["d0"]);
    lab.run(host.node.check(device(3))).expect("it is its own");
}

/// LEFTOVER-3: by an operator's word all that is known of a device goes, but for the note that it was claimed.
#[test]
fn a_device_that_is_gone_is_forgotten_by_word() {
    let (mut lab, host) = with_holder_gone(record(2));
    put_volumes(&lab);
    lab.settle();
    let refused = lab.run(host.node.forget_device(claim(0), Word::default()));
    assert!(matches!(refused, Err(DirectoryError::HolderMayServe { .. })), "{refused:?}");
    assert_eq!(lab.names("/t/names/"), ["v1", "v2"]);
    let revision = lab.etcd(|etcd| etcd.revision());
    let now = lab.now();
    lab.run(host.node.forget_device(claim(0), Word::down(["h2"]))).expect("it is down");
    assert_eq!((lab.get(&key(0)), lab.names("/t/names/")), (None, vec!["v2".to_owned()]));
    assert_eq!(lab.read::<ClaimRecord>(&note(0)).map(|claim| claim.host), Some(host.record.id));
    assert!(!host.node.view().claims.contains_key(&device(0)), "its own view shows it");
    assert_eq!(lab.now(), now);
    // If it dies on the way, the rest goes by LEFTOVER-1.
    let made = claims_made(&lab, 0, revision);
    assert!(made.len() == 1 && made[0].volatile, "{made:?}");
}

/// LEFTOVER-1: a volatile device takes its records with it, another leaves them.
#[test]
fn only_a_volatile_device_takes_its_records_with_it() {
    let mut lab = Lab::default();
    let host = lab.joined(1);
    lab.run(host.node.claim(Claim { volatile: true, ..claim(0) })).expect("it is free");
    lab.run(host.node.claim(claim(1))).expect("it is free");
    put_volumes(&lab);
    let revision = lab.etcd(|etcd| etcd.revision());
    lab.run(host.node.leave()).expect("etcd is there");
    assert_eq!(lab.names("/t/devices/"), Vec::<String>::new());
    assert_eq!(lab.names("/t/claimed/"), [device(1).to_string()]);
    assert_eq!(lab.names("/t/names/"), ["v2"]);
    assert_eq!(lab.names("/t/hosts/"), Vec::<String>::new(), "its lease has ended");
    // Those that others may wait for went first.
    let ended = lab.etcd(|etcd| etcd.changes_after(0, "/t/devices/", revision + 1));
    let ended: Vec<String> = ended.into_iter().map(|event| event.kv.key).collect();
    assert_eq!(ended, [key(1), key(0)]);
}
