//! All orders in which readers and writers on several cores may come to the same blocks, by a model checker.

use std::sync::atomic::{AtomicUsize, Ordering};

use loom::cell::UnsafeCell;
use loom::model::Builder;
use loom::sync::Arc;
use loom::thread;
use pins::Pins;

/// Two blocks. The model fails when one is changed while it is accessed, or is seen as it was before an earlier change.
struct Memory {
    pins: Pins,
    blocks: [UnsafeCell<u32>; 2],
}

// SAFETY: the cells are the model's, which reports each access that is not safe.
unsafe impl Sync for Memory {}

impl Memory {
    fn new() -> Arc<Self> {
        Arc::new(Self { pins: Pins::new(2), blocks: [UnsafeCell::new(0), UnsafeCell::new(0)] })
    }

    /// Reads a block in place, if it may be.
    fn look(&self, block: usize) -> Option<u32> {
        let may_look = self.pins.pin(block..block + 1);
        let seen = may_look.then(|| {
            self.blocks[block].with(|at| {
                // SAFETY: the block is pinned.
                let first = unsafe { *at };
                thread::yield_now();
                // SAFETY: the block is pinned.
                assert_eq!(first, unsafe { *at }, "PIN-1: no pinned byte is changed");
                first
            })
        });
        self.pins.unpin(block..block + 1);
        seen
    }

    /// Reads a block from a copy.
    fn copy(&self, block: usize) -> u32 {
        let _reading = self.pins.read();
        // SAFETY: changes need the exclusive lock.
        self.blocks[block].with(|at| unsafe { *at })
    }

    /// Changes a block, unless it has a reader.
    fn change(&self, block: usize, to: u32) -> bool {
        let writing = self.pins.write();
        let is_free = writing.is_free(block..block + 1);
        if is_free {
            // SAFETY: it has no reader, and gets none.
            self.blocks[block].with_mut(|at| unsafe { *at = to });
        }
        is_free
    }
}

/// Runs `cores` side by side in all orders with at most so many switches where none has to wait.
fn in_all_orders(switches: usize, cores: &'static [fn(&Memory)]) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(switches);
    builder.check(move || {
        let memory = Memory::new();
        let run = |core: &fn(&Memory)| {
            let (memory, core) = (memory.clone(), *core);
            thread::spawn(move || core(&memory))
        };
        let threads: Vec<_> = cores.iter().map(run).collect();
        threads.into_iter().for_each(|thread| thread.join().expect("no core panics"));
    });
}

/// Readers that looked at a changed block, gave way to a writer, and kept one off, in all orders together.
static LOOKED: AtomicUsize = AtomicUsize::new(0);
static GAVE_WAY: AtomicUsize = AtomicUsize::new(0);
static KEPT_OFF: AtomicUsize = AtomicUsize::new(0);

fn reads(memory: &Memory) {
    match memory.look(0) {
        Some(1) => drop(LOOKED.fetch_add(1, Ordering::Relaxed)),
        Some(_) => {}
        None => drop(GAVE_WAY.fetch_add(1, Ordering::Relaxed)),
    }
}

fn writes(memory: &Memory) {
    if !memory.change(0, 1) {
        KEPT_OFF.fetch_add(1, Ordering::Relaxed);
    }
}

/// PIN-1 and PIN-2, also where the counts are made at that time.
#[test]
fn what_is_pinned_does_not_change() {
    in_all_orders(4, &[reads, writes]);
    for count in [&LOOKED, &GAVE_WAY, &KEPT_OFF] {
        assert!(count.load(Ordering::Relaxed) > 0, "the model came to no such order");
    }
}

#[test]
fn two_readers_and_a_writer() {
    in_all_orders(2, &[reads, reads, writes]);
}

/// PIN-3: copies are made beside a reader and a writer.
#[test]
fn copies_are_of_one_moment() {
    in_all_orders(
        3,
        &[
            |memory| {
                let (first, second) = (memory.copy(0), memory.copy(0));
                assert!(first <= second, "a copy is of an earlier moment than the one before it");
            },
            |memory| {
                memory.look(0);
                memory.change(0, 1);
            },
        ],
    );
}
