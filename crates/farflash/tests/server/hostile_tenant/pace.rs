//! The rate of a host's requests while others attack, compared with its rate between their attacks.
//!
//! Both are measured in turn, in the same run, so that all other load on the machine slows both alike; and
//! the attackers' own threads give way to other threads, since real attackers would not share the processors
//! with them. The host has one request under way at a time: its rate is the inverse of its mean latency.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::nice;

use crate::support::until;

/// Number of measurements of each: the middle one of the ratios counts, for a round can coincide with
/// anything.
const ROUNDS: usize = 5;
/// Duration of each measurement, at least.
const WINDOW: Duration = Duration::from_millis(200);
/// Part of its undisturbed rate that the host keeps, at least. Volumes get equal parts, and the arithmetic of
/// exchanges is done by a thread beside the cores; but the host, the API's threads and all others share the
/// processors, which on a busy machine of two leaves a tenth. Were the arithmetic done on the core, less than
/// a hundredth would be left.
const PART_LEFT: f64 = 0.02;
const ATTACKERS: usize = 2;
/// Attacks of a window, at least: fewer would slow no host.
const ATTACKS: u64 = 4;
/// Niceness of the attackers' threads: not so high that a busy machine keeps them from attacking.
const NICENESS: i32 = 10;

/// Something that is done again and again to harm others.
pub struct Attack<'a> {
    pub what: &'a str,
    pub once: &'a (dyn Fn() + Sync),
}

/// Orders to the attackers, and their count.
#[derive(Default)]
struct Orders {
    attack: AtomicBool,
    end: AtomicBool,
    attacks: AtomicU64,
}

/// Ends the attackers when it goes, also by a failed assertion: their scope waits for them.
struct EndOf<'a>(&'a Orders);

impl Drop for EndOf<'_> {
    fn drop(&mut self) {
        self.0.end.store(true, Ordering::Relaxed);
    }
}

impl Orders {
    fn obey(&self, attack: &Attack<'_>) {
        nice(NICENESS).expect("anybody may give way to others");
        while !self.end.load(Ordering::Relaxed) {
            if self.attack.load(Ordering::Relaxed) {
                (attack.once)();
                self.attacks.fetch_add(1, Ordering::Relaxed);
            } else {
                thread::sleep(Duration::from_millis(1));
            }
        }
    }
}

/// Demands that the host that counts in `done` keeps its pace. `is_over` says whether nothing is left of an attack.
pub fn keeps_its_pace(done: &AtomicU64, attack: &Attack<'_>, is_over: impl Fn() -> bool) {
    let orders = Orders::default();
    let attacks = || orders.attacks.load(Ordering::Relaxed);
    let mut rounds = thread::scope(|scope| {
        let _end = EndOf(&orders);
        (0..ATTACKERS).for_each(|_| drop(scope.spawn(|| orders.obey(attack))));
        let round = |_| {
            until("nothing of the attack is left", &is_over);
            let before = per_second(done, || true);
            orders.attack.store(true, Ordering::Relaxed);
            let first = attacks();
            let during = per_second(done, || attacks() >= first + ATTACKS);
            orders.attack.store(false, Ordering::Relaxed);
            (during / before, before, during)
        };
        (0..ROUNDS).map(round).collect::<Vec<_>>()
    });
    rounds.sort_by(|one, other| one.0.total_cmp(&other.0));
    eprintln!("{}: {} attacks; part left, before, during: {rounds:.2?}", attack.what, attacks());
    assert!(rounds[ROUNDS / 2].0 >= PART_LEFT, "slowed by {}: {rounds:.2?}", attack.what);
}

/// Returns the number of requests done in a second, measured for a window and until it is enough.
fn per_second(done: &AtomicU64, is_enough: impl Fn() -> bool) -> f64 {
    let (first, began) = (done.load(Ordering::Relaxed), Instant::now());
    thread::sleep(WINDOW);
    until("enough is seen of an attack", is_enough);
    (done.load(Ordering::Relaxed) - first) as f64 / began.elapsed().as_secs_f64()
}
