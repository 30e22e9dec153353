//! Drives and askers on a clock of their own.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use super::*;

mod parts;

/// Microseconds on the tests' clock.
type Time = u64;

/// The behaviour of a drive.
#[derive(Clone, Copy)]
enum Drive {
    /// One by one, this long each; all are said to be done when none is left, after as long again.
    AtOnce(Time),
    /// All at a time, each `least` long, or less than `spread` longer.
    Each { least: Time, spread: Time },
}

/// A closed loop of `depth` requests that each take `turnaround` from being done to being asked again.
struct Loop {
    drive: Drive,
    turnaround: Time,
    window: Window<usize>,
    start: Instant,
    now: Time,
    /// When what arrives, and when the drive says that what is done.
    events: BinaryHeap<Reverse<(Time, bool, usize)>>,
    /// For a drive that completes all at once: the reads that are done and not reported yet, and
    /// the time at which all are.
    batch: Vec<usize>,
    batch_end: Time,
    done: usize,
    held_max: usize,
    /// Requests of higher numbers are not asked again.
    askers: usize,
}

impl Loop {
    fn new(drive: Drive, depth: usize, turnaround: Time) -> Self {
        let events = (0..depth).map(|read| Reverse((0, false, read))).collect();
        let window = Window::default();
        let start = Instant::now();
        let batch = Vec::new();
        Self {
            drive,
            turnaround,
            window,
            start,
            now: 0,
            events,
            batch,
            batch_end: 0,
            done: 0,
            held_max: 0,
            askers: depth,
        }
    }

    fn instant(&self) -> Instant {
        self.start + Duration::from_micros(self.now)
    }

    fn give(&mut self, read: usize) {
        match self.drive {
            Drive::AtOnce(each) => {
                if self.batch.is_empty() {
                    self.batch_end = self.now + each;
                }
                self.batch_end += each;
                self.batch.push(read);
            }
            Drive::Each { least, spread } => {
                let took = least + (read as Time * 7 + self.done as Time * 13) % spread;
                self.events.push(Reverse((self.now + took, true, read)));
            }
        }
    }

    fn complete(&mut self, read: usize) {
        self.window.complete(self.instant());
        self.done += 1;
        self.held_max = self.held_max.max(self.window.held.len());
        while let Some(next) = self.window.next() {
            self.give(next);
        }
        if read < self.askers {
            self.events.push(Reverse((self.now + self.turnaround, false, read)));
        }
    }

    /// Requests done until `end`.
    fn run(&mut self, end: Time) -> usize {
        let before = self.done;
        loop {
            let next = self.events.peek().map_or(Time::MAX, |Reverse((at, ..))| *at);
            let batch = if self.batch.is_empty() { Time::MAX } else { self.batch_end };
            if next.min(batch) >= end {
                self.now = end;
                return self.done - before;
            }
            if batch <= next {
                self.now = batch;
                for read in std::mem::take(&mut self.batch) {
                    self.complete(read);
                }
                continue;
            }
            let Some(Reverse((at, is_done, read))) = self.events.pop() else { continue };
            self.now = at;
            if is_done {
                self.complete(read);
            } else if self.window.admit(|| self.start + Duration::from_micros(self.now), read) {
                self.give(read);
            }
        }
    }
}

/// The same loop without a window.
fn unlimited(drive: Drive, depth: usize, turnaround: Time, end: Time) -> usize {
    let mut plain = Loop::new(drive, depth, turnaround);
    plain.window.fixed = Some(usize::MAX);
    plain.run(end)
}

#[test]
fn a_drive_that_does_all_at_once_has_something_to_do_while_it_is_answered() {
    for (depth, each, turnaround) in [(32, 12, 150), (8, 45, 120), (24, 12, 300)] {
        let drive = Drive::AtOnce(each);
        let mut windowed = Loop::new(drive, depth, turnaround);
        let with = windowed.run(1_000_000);
        let without = unlimited(drive, depth, turnaround, 1_000_000);
        assert!(with * 10 > without * 11, "depth {depth}: {with} with, {without} without");
    }
}

/// URING-WINDOW-2.
#[test]
fn from_a_drive_that_completes_each_nothing_is_held() {
    for depth in [4, 32, 128] {
        for turnaround in [0, 10, 1_000] {
            let mut windowed = Loop::new(Drive::Each { least: 80, spread: 40 }, depth, turnaround);
            windowed.run(200_000);
            assert_eq!(windowed.held_max, 0, "depth {depth}, turnaround {turnaround}");
        }
    }
}

/// URING-WINDOW-3, with a drive that does all reads in the same time, so that those asked together are
/// done together.
#[test]
fn from_a_drive_in_step_with_its_askers_little_is_held() {
    for depth in [4, 8, 32] {
        let drive = Drive::Each { least: 80, spread: 1 };
        let mut windowed = Loop::new(drive, depth, 10);
        let with = windowed.run(10_000_000);
        let without = unlimited(drive, depth, 10, 10_000_000);
        assert!(with * 100 > without * 98, "depth {depth}: {with} with, {without} without");
    }
}

#[test]
fn a_drive_that_answers_right_away_is_given_everything() {
    let mut windowed = Loop::new(Drive::AtOnce(0), 32, 10);
    windowed.run(20_000);
    assert_eq!(windowed.held_max, 0);
}

#[test]
fn a_drive_that_changes_its_ways_is_found_out() {
    let mut windowed = Loop::new(Drive::AtOnce(12), 32, 150);
    windowed.run(200_000);
    assert!(windowed.window.trial.holds());
    windowed.drive = Drive::Each { least: 80, spread: 40 };
    windowed.run(250_000);
    windowed.held_max = 0;
    windowed.run(400_000);
    assert_eq!(windowed.held_max, 0);
}

#[test]
fn the_window_follows_the_load() {
    let mut windowed = Loop::new(Drive::AtOnce(12), 32, 150);
    windowed.run(200_000);
    assert_eq!(windowed.window.limit(), 24);
    // Three quarters of the askers do not ask again.
    windowed.askers = 8;
    windowed.run(300_000);
    assert_eq!(windowed.window.bursts.peak(), 8);
    assert!(windowed.window.held.is_empty() || windowed.window.limit() == 6);
}

#[test]
fn few_reads_are_never_held() {
    let mut windowed = Loop::new(Drive::AtOnce(12), 3, 150);
    windowed.run(100_000);
    assert_eq!(windowed.held_max, 0);
}

/// URING-WINDOW-1, with every limit and order of events.
#[test]
fn what_is_held_goes_out_in_order() {
    for limit in 1..6 {
        let mut window = Window { fixed: Some(limit), ..Window::default() };
        let (mut out, mut given) = (Vec::new(), 0);
        let start = Instant::now();
        for step in 0..1_000_usize {
            if (step * step / 7) % 3 == 0 && given > 0 {
                window.complete(start + Duration::from_micros(step as u64));
                given -= 1;
                while let Some(next) = window.next() {
                    out.push(next);
                    given += 1;
                }
            } else if window.admit(|| start, step) {
                out.push(step);
                given += 1;
            }
            assert!(given <= limit && given == window.given);
            assert!(given == limit || window.held.is_empty(), "held although there is room");
        }
        assert!(out.is_sorted());
        assert!(out.len() > 100);
    }
}
