//! Claims of two hosts in a store in memory, the steps of one interleaved with the return of the other.

use std::time::Duration;

use super::*;
use crate::memory::MemoryStore;
use crate::sabotage::sabotage;

const FENCE: Duration = Duration::from_secs(8);

fn host(n: u128) -> HostRecord {
    let text = format!(
        r#"{{"id":"{0}","name":"h{n}","session":"{0}","boot":"b{n}","version":"","api":"[::1]:1","discovery":null,
        "fence_after_ms":8000}}"#,
        Uuid::from_u128(n)
    );
    serde_json::from_str(&text).expect("a host")
}

/// Registers `host`, and returns its lease.
fn register(store: &mut MemoryStore, keys: &Keys, host: &HostRecord) -> i64 {
    let lease = store.grant_lease(Duration::from_secs(3));
    let own = Op::Put { key: keys.host(host.id), value: document(host), lease: Some(lease) };
    let (key, value) = (keys.registered(host.id), document(&host.session));
    store.txn(&[], &[own, Op::Put { key, value, lease: None }], &[]).expect("it lives");
    lease
}

/// Drives one step. `Some`: the claim ended, and this is whether it was made.
fn step(
    store: &mut MemoryStore,
    claiming: &mut Claiming,
    lease: i64,
    now: BootTime,
) -> Option<bool> {
    match claiming.action() {
        Action::Read(keys) => {
            let gets: Vec<Op> = keys.into_iter().map(Op::Get).collect();
            let reply = store.txn(&[], &gets, &[]).expect("a read");
            claiming.on_read(&reply.read, now).err().map(|_| false)
        }
        Action::Wait { .. } => {
            claiming.on_time(now);
            None
        }
        Action::Seek(_) => claiming.on_not_seen().err().map(|_| false),
        Action::Commit => {
            let (compare, then, or_else) = claiming.transaction(lease);
            let reply = store.txn(&compare, &then, &or_else).expect("it lives");
            claiming.on_committed(&reply).map_or(Some(false), |made| made.map(|_| true))
        }
    }
}

/// A host loses its registration, and another takes over by an operator's word; the first comes back at any step.
/// Returns whether the device passed on before the fence's end, or from a host that was back.
fn is_taken_too_early(back_at: u64) -> bool {
    let (mut store, keys) = (MemoryStore::default(), Keys { prefix: "/t/".to_owned() });
    let [a, b] = [1, 2].map(host);
    let claim = Claim { device: Uuid::from_u128(9), ..Claim::default() };
    let lease = register(&mut store, &keys, &a);
    let mut first = Claiming::new(keys.clone(), &a, claim.clone(), None);
    while step(&mut store, &mut first, lease, BootTime::default()).is_none() {}
    store.advance(Duration::from_secs(3));
    let lease = register(&mut store, &keys, &b);
    let mut second = Claiming::new(keys.clone(), &b, claim, Some(Word::default()));
    let mut is_back = false;
    for second_of in 0..20 {
        let now = BootTime(Duration::from_secs(second_of));
        if second_of == back_at {
            register(&mut store, &keys, &a);
            is_back = true;
        }
        assert!(store.keep_lease(lease));
        match step(&mut store, &mut second, lease, now) {
            Some(is_made) => return is_made && (is_back || now <= BootTime(FENCE)),
            None => store.advance(Duration::from_millis(10)),
        }
    }
    false
}

/// CLAIM-7, TENURE-3: a device passes on only when its holder has stopped, and not if it is back.
#[test]
fn a_device_passes_on_only_when_its_holder_has_stopped() {
    let is_caught = || (0..20).any(is_taken_too_early);
    assert!(!is_caught());
    for which in [Sabotage::NoWaitForFence, Sabotage::TakeFromLiving] {
        sabotage(Some(which));
        let caught = is_caught();
        sabotage(None);
        assert!(caught, "{which:?}");
    }
}

/// CLAIM-9: etcd is restored from a backup in which a host had given a device back that it has claimed again since. The device
/// carries the later claim: no other host gets it without a word.
#[test]
fn a_later_claim_of_the_host_that_etcd_knows_counts_too() {
    let (mut store, keys) = (MemoryStore::default(), Keys { prefix: "/t/".to_owned() });
    let [a, b] = [1, 2].map(host);
    let lease = register(&mut store, &keys, &b);
    let device = Uuid::from_u128(9);
    let mut record = ClaimRecord::of(&a, Claim { device, ..Claim::default() });
    record.number = 4;
    let note = Op::Put { key: keys.claimed(device), value: document(&record), lease: None };
    store.txn(&[], &[note], &[]).expect("no lease is named");
    for (number, is_free) in [(4, true), (5, false)] {
        let mark = Some(Mark { number, ..record.mark() });
        let claim = Claim { device, belongs: true, mark, ..Claim::default() };
        let mut claiming = Claiming::new(keys.clone(), &b, claim, None);
        let ended = std::iter::repeat_with(|| {
            let mut apart = store.clone();
            step(&mut apart, &mut claiming, lease, BootTime::default())
        });
        assert_eq!(ended.flatten().next(), Some(is_free), "{number}");
    }
}

const DEVICE: u128 = 9;

/// An etcd in which nothing is claimed, with the keys of a cluster.
fn empty() -> (MemoryStore, Keys) {
    (MemoryStore::default(), Keys { prefix: "/t/".to_owned() })
}

fn claim_with(belongs: bool, mark: Option<Mark>) -> Claim {
    Claim { device: Uuid::from_u128(DEVICE), belongs, mark, ..Claim::default() }
}

/// Claims to the end: the steps, and what came of it.
fn attempt(
    store: &mut MemoryStore,
    keys: &Keys,
    claiming: &mut Claiming,
) -> (Vec<&'static str>, Result<Made, Refusal>) {
    let (mut steps, lease) = (Vec::new(), register(store, keys, &host(1)));
    loop {
        let refused = match claiming.action() {
            Action::Read(keys) => {
                steps.push("read");
                let gets: Vec<Op> = keys.into_iter().map(Op::Get).collect();
                let reply = store.txn(&[], &gets, &[]).expect("a read");
                claiming.on_read(&reply.read, BootTime::default())
            }
            Action::Wait { until, .. } => {
                steps.push("wait");
                claiming.on_time(until);
                Ok(())
            }
            Action::Seek(_) => {
                steps.push("seek");
                claiming.on_not_seen()
            }
            Action::Commit => {
                steps.push("commit");
                let (compare, then, or_else) = claiming.transaction(lease);
                let reply = store.txn(&compare, &then, &or_else).expect("it lives");
                match claiming.on_committed(&reply) {
                    Ok(Some(made)) => return (steps, Ok(made)),
                    Ok(None) => Ok(()),
                    Err(refusal) => Err(refusal),
                }
            }
        };
        if let Err(refusal) = refused {
            return (steps, Err(refusal));
        }
    }
}

fn down(names: &[&str]) -> Option<Word> {
    Some(Word::down(names.iter().copied()))
}

/// CLAIM-9: a device that carries the mark of a later claim is given by a word for the host of that claim, if that does not live.
#[test]
fn a_device_that_was_claimed_later_is_given_by_word() {
    let mark = Mark { number: 7, host: Uuid::from_u128(2), host_name: "h2".to_owned() };
    let try_with = |word: Option<Word>, lives: bool| {
        let (mut store, keys) = empty();
        if lives {
            register(&mut store, &keys, &host(2));
        }
        let claim = claim_with(true, Some(mark.clone()));
        let mut claiming = Claiming::new(keys.clone(), &host(1), claim, word);
        attempt(&mut store, &keys, &mut claiming)
    };
    let holder = || "h2".to_owned();
    assert_eq!(try_with(None, false).1, Err(Refusal::ClaimedLater { holder: holder() }));
    assert_eq!(try_with(down(&["h2"]), true).1, Err(Refusal::HolderLives { holder: holder() }));
    let unsaid = Err(Refusal::HolderMayServe { holder: holder() });
    assert_eq!(try_with(down(&[Word::UNKNOWN_HOST]), false).1, unsaid);
    // etcd has forgotten the host that it knew as well.
    let unknown = Err(Refusal::HolderMayServe { holder: Word::UNKNOWN_HOST.to_owned() });
    assert_eq!(try_with(down(&["h2"]), false).1, unknown);
    let (steps, made) = try_with(down(&["h2", Word::UNKNOWN_HOST]), false);
    assert_eq!(steps, ["read", "read", "commit"]);
    assert_eq!(made.expect("it is said").record.number, 8);
}

/// CLAIM-7, CLAIM-9: the host of a later claim, or the one that etcd knows, registers between the look and the transaction: it
/// keeps the device.
#[test]
fn a_holder_that_registers_before_the_transaction_keeps_its_device() {
    for is_marked in [false, true] {
        let (mut store, keys) = empty();
        let lease = register(&mut store, &keys, &host(1));
        let mark = Mark { number: 7, host: Uuid::from_u128(2), host_name: "h2".to_owned() };
        if !is_marked {
            let before = ClaimRecord::of(&host(2), claim_with(true, None));
            let ops = put_claim(&keys, Uuid::from_u128(DEVICE), &before);
            store.txn(&[], &ops, &[]).expect("no lease is named");
        }
        let claim = claim_with(true, is_marked.then_some(mark));
        let word = down(&["h2", Word::UNKNOWN_HOST]);
        let mut claiming = Claiming::new(keys.clone(), &host(1), claim, word);
        let mut now = BootTime::default();
        while claiming.action() != Action::Commit {
            assert_eq!(step(&mut store, &mut claiming, lease, now), None, "{is_marked}");
            now = now + FENCE * 2;
        }
        register(&mut store, &keys, &host(2));
        assert_eq!(
            step(&mut store, &mut claiming, lease, now),
            None,
            "it is refused, and begins again"
        );
        let (_, outcome) = attempt(&mut store, &keys, &mut claiming);
        assert_eq!(outcome, Err(Refusal::HolderLives { holder: "h2".to_owned() }), "{is_marked}");
    }
}

/// CLAIM-8: a device of the cluster of which etcd knows nothing is given by a word for a host that is forgotten; one that is new,
/// or was given back, needs none.
#[test]
fn a_device_whose_holder_is_forgotten_is_given_by_word() {
    let try_with = |belongs: bool, word: Option<Word>, is_noted: bool| {
        let (mut store, keys) = empty();
        if is_noted {
            let record = ClaimRecord::of(&host(2), claim_with(true, None));
            let note = keys.claimed(Uuid::from_u128(DEVICE));
            let put = Op::Put { key: note, value: document(&record), lease: None };
            store.txn(&[], &[put], &[]).expect("no lease is named");
        }
        let claim = claim_with(belongs, None);
        let mut claiming = Claiming::new(keys.clone(), &host(1), claim, word);
        attempt(&mut store, &keys, &mut claiming).1.map(|made| made.record.number)
    };
    assert_eq!(try_with(false, None, false), Ok(1));
    assert_eq!(try_with(true, None, true), Ok(1));
    assert_eq!(try_with(true, None, false), Err(Refusal::Forgotten));
    let unknown = Err(Refusal::HolderMayServe { holder: Word::UNKNOWN_HOST.to_owned() });
    assert_eq!(try_with(true, down(&["h2"]), false), unknown);
    assert_eq!(try_with(true, down(&[Word::UNKNOWN_HOST]), false), Ok(1));
}

/// CLAIM-2: what a process of this host claimed is this host's; if that ran under another kernel, it is looked for first.
#[test]
fn the_claim_of_a_former_process_of_the_host_is_taken() {
    for (boot, expected) in
        [("b1", &["read", "commit"][..]), ("b7", &["read", "seek", "commit"][..])]
    {
        let (mut store, keys) = empty();
        let former =
            ClaimRecord { boot: boot.into(), ..ClaimRecord::of(&host(1), claim_with(false, None)) };
        let ops = put_claim(&keys, Uuid::from_u128(DEVICE), &former);
        store.txn(&[], &ops, &[]).expect("no lease is named");
        let mut claiming = Claiming::new(keys.clone(), &host(1), claim_with(true, None), None);
        let (steps, made) = attempt(&mut store, &keys, &mut claiming);
        assert_eq!(steps, expected, "{boot}");
        assert!(made.is_ok(), "{made:?}");
    }
}

/// A claim that changes between each look and the transaction is given up after some rounds, and not before.
#[test]
fn a_claim_that_changes_all_the_time_is_given_up() {
    let (mut store, keys) = empty();
    let lease = register(&mut store, &keys, &host(1));
    let mut claiming = Claiming::new(keys.clone(), &host(1), claim_with(false, None), None);
    let mut rounds = 0;
    let refusal = loop {
        let (device, changed) = (Uuid::from_u128(DEVICE), claim_with(false, None));
        let before = ClaimRecord { number: rounds, ..ClaimRecord::of(&host(1), changed) };
        let ops = put_claim(&keys, device, &before);
        store.txn(&[], &ops, &[]).expect("no lease is named");
        match claiming.action() {
            Action::Commit => {
                rounds += 1;
                let (compare, then, or_else) = claiming.transaction(lease);
                let reply = store.txn(&compare, &then, &or_else).expect("it lives");
                match claiming.on_committed(&reply) {
                    Ok(made) => assert_eq!(made, None, "{rounds}"),
                    Err(refusal) => break refusal,
                }
            }
            _ => assert_eq!(step(&mut store, &mut claiming, lease, BootTime::default()), None),
        }
    };
    assert_eq!((refusal, rounds), (Refusal::ChangesAlways, u64::from(ROUNDS)));
}

/// VOLUME-RECORD-2: a transaction that is carried out twice has made the claim, at the revision of the first time.
#[test]
fn a_claim_that_is_carried_out_twice_is_made() {
    let (mut store, keys) = empty();
    let lease = register(&mut store, &keys, &host(1));
    let mut claiming = Claiming::new(keys, &host(1), claim_with(false, None), None);
    while claiming.action() != Action::Commit {
        assert_eq!(step(&mut store, &mut claiming, lease, BootTime::default()), None);
    }
    let (compare, then, or_else) = claiming.transaction(lease);
    let first = store.txn(&compare, &then, &or_else).expect("it lives");
    let second = store.txn(&compare, &then, &or_else).expect("it lives");
    assert!(first.succeeded && !second.succeeded);
    let made = claiming.on_committed(&second).expect("it is its own work");
    assert_eq!(made.map(|made| made.epoch), Some(first.revision));
}
