//! All orders in which cores may come to what they share, by a model checker.

use std::future::poll_fn;
// Not the model's: what is around the flush is no part of what it looks at.
use std::sync::{Arc, Mutex};

use layout::Superblock;
use loom::future::block_on;
use loom::model::Builder;
use loom::thread;
use space::{ExtentAllocator, Flushes, Returned};
use uuid::Uuid;

/// Runs `check` in all orders with at most so many switches between cores at places where none has to wait.
fn in_all_orders(switches: usize, check: impl Fn() + Send + Sync + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(switches);
    builder.check(check);
}

/// Runs `core` on so many threads, each with its number.
fn on_cores(cores: usize, core: impl Fn(usize) + Clone + 'static) {
    let run = |at| {
        let core = core.clone();
        thread::spawn(move || core(at))
    };
    let threads: Vec<_> = (0..cores).map(run).collect();
    threads.into_iter().for_each(|thread| thread.join().expect("no core panics"));
}

/// A device with a volatile cache: writes, one of each core, and those that a flush has covered.
#[derive(Clone, Copy, Default)]
struct Disk {
    written: [bool; 3],
    durable: [bool; 3],
    is_flushing: bool,
}

/// Writes, and asks for a flush behind it. The flush of core `failing` fails.
fn write_and_flush(at: usize, flushes: &Flushes, disk: &Mutex<Disk>, failing: Option<usize>) {
    let change = |change: &dyn Fn(&mut Disk)| {
        let mut disk = disk.lock().expect("no core panics");
        change(&mut disk);
        *disk
    };
    change(&|disk| disk.written[at] = true);
    let number = flushes.next();
    let turn = block_on(poll_fn(|context| flushes.poll_turn(number, context)));
    if let Some(turn) = turn {
        let known = flushes.failures();
        let begun = change(&|disk| {
            assert!(!disk.is_flushing, "FLUSH-1: one flush is under way at a time");
            disk.is_flushing = true;
        });
        assert_eq!(
            flushes.failures(),
            known,
            "FLUSH-2: it began when all failures before it were known"
        );
        let succeeds = failing != Some(at);
        change(&|disk| {
            disk.is_flushing = false;
            if succeeds {
                disk.durable = begun.written;
            }
        });
        match succeeds {
            true => turn.end(true),
            false => drop(turn),
        }
    }
    assert!(flushes.has_ended(number));
    let is_durable = change(&|_| ()).durable[at];
    assert!(
        is_durable || flushes.failures() > 0,
        "FLUSH-2, FLUSH-3: a failure is known to all that it concerns"
    );
}

fn flush_on(cores: usize, switches: usize, failing: Option<usize>) {
    in_all_orders(switches, move || {
        let (flushes, disk) = (Flushes::default(), Arc::new(Mutex::new(Disk::default())));
        let last = flushes.clone();
        on_cores(cores, move |at| write_and_flush(at, &flushes, &disk, failing));
        let failures = last.failures();
        assert!(failures <= u64::from(failing.is_some()), "no failure is told twice");
    });
}

#[test]
fn a_flush_covers_what_was_written_before_it() {
    flush_on(2, 4, None);
    flush_on(3, 2, None);
}

#[test]
fn a_flush_that_fails_is_known_to_all() {
    flush_on(2, 4, Some(0));
    flush_on(3, 2, Some(0));
}

fn allocator() -> (ExtentAllocator, u32) {
    let superblock = Superblock::with_extents(Uuid::nil(), 1 << 14, 1024).expect("in bounds");
    let extents = ExtentAllocator::new(&superblock);
    let count = extents.unowned();
    (extents, count)
}

/// Leaves so many extents without an owner: the others are those of shard 9.
fn leave(extents: &ExtentAllocator, count: u32) {
    while extents.unowned() > count {
        extents.reserve(9).expect("one is free");
    }
}

/// Shards that want the last extent: one gets it, the others are seen to want it, and get it when it is given back.
#[test]
fn the_last_extent_goes_to_one_and_then_to_another() {
    for cores in [2, 3] {
        in_all_orders(3, move || {
            let (extents, _) = allocator();
            leave(&extents, 1);
            let got: Arc<Mutex<Vec<(u16, u32)>>> = Arc::default();
            let (shared, gained) = (extents.clone(), got.clone());
            on_cores(cores, move |at| {
                let shard = u16::try_from(at).expect("few");
                if let Some(Returned { extent, .. }) = shared.reserve(shard) {
                    gained.lock().expect("no core panics").push((shard, extent));
                }
            });
            let got = got.lock().expect("no core panics");
            let [(winner, extent)] = got[..] else { panic!("one shard gets it: {got:?}") };
            assert!(extents.is_wanted_by_others(winner), "the others want it");
            extents.release(Returned { extent, is_stale: false });
            let other = (winner + 1) % u16::try_from(cores).expect("few");
            assert_eq!(extents.reserve(other).map(|returned| returned.extent), Some(extent));
        });
    }
}

/// A shard is read back while another one takes extents: none has two owners, and none is lost.
#[test]
fn an_extent_in_dispute_goes_to_no_other_shard() {
    in_all_orders(4, || {
        let (extents, count) = allocator();
        leave(&extents, 2);
        let kept = extents.reserve(0).expect("one is free").extent;
        let given_up = extents.reserve(0).expect("one is free").extent;
        extents.dispute(0);
        let shared = extents.clone();
        let taken: Arc<Mutex<Option<u32>>> = Arc::default();
        let took = taken.clone();
        on_cores(2, move |at| match at {
            0 => {
                shared.claim(kept, 0).expect("still its own");
                shared.settle_dispute(0);
            }
            _ => {
                let extent = shared.reserve(1).map(|returned| returned.extent);
                *took.lock().expect("no core panics") = extent;
            }
        });
        let taken = *taken.lock().expect("no core panics");
        assert!(taken.is_none_or(|extent| extent == given_up), "{taken:?}");
        let owned = count - 2 - u32::from(taken.is_none()) + 2;
        assert_eq!(extents.unowned(), count - owned);
        assert!(extents.claim(kept, 1).is_err(), "it has an owner");
    });
}
