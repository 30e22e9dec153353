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

/// F7, N3: a device passes on only when its holder has stopped, and not if it is back.
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

/// F9: etcd is restored from a backup in which a host had given a device back that it has claimed again since. The device
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
