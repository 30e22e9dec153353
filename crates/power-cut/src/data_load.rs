//! Workers that change blocks: each has a range of a volume to itself, and one request under way.

use farflash_client::{Reply, Request, Swap};

use crate::boot::{Boot, Opened, Outcome, filled, identify, lock, read_request};
use crate::contents::{BLOCK, Stamp, ZEROES};
use crate::model::Write;
use crate::random::Random;
use std::sync::atomic::Ordering;

/// Blocks that change together: the atomic write size of a volume.
pub(crate) const TOGETHER: usize = 256;

/// Blocks that no other worker changes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Region {
    pub(crate) first: u64,
    pub(crate) blocks: u64,
}

pub(crate) struct Worker<'a> {
    pub(crate) boot: &'a Boot,
    pub(crate) opened: &'a Opened,
    pub(crate) region: Region,
    pub(crate) random: Random,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Kind {
    Write,
    WriteTx,
    Zeroes,
    Deallocate,
    Swap,
    FailingSwap,
    Compare,
    Read,
    Flush,
}

const MIX: [Kind; 20] = [
    Kind::Write,
    Kind::Write,
    Kind::Write,
    Kind::Write,
    Kind::Write,
    Kind::Write,
    Kind::Write,
    Kind::Write,
    Kind::WriteTx,
    Kind::WriteTx,
    Kind::Zeroes,
    Kind::Zeroes,
    Kind::Deallocate,
    Kind::Deallocate,
    Kind::Swap,
    Kind::Swap,
    Kind::FailingSwap,
    Kind::Compare,
    Kind::Read,
    Kind::Flush,
];

impl Worker<'_> {
    pub(crate) fn run(mut self) {
        while !self.boot.is_over() && self.step() {}
    }

    /// Makes a request; whether there can be another.
    fn step(&mut self) -> bool {
        let kind = self.random.pick(&MIX);
        let most = match kind {
            Kind::Swap | Kind::FailingSwap => 4,
            _ if self.random.chance(60) => 4,
            _ => TOGETHER as u64,
        };
        let count = 1 + self.random.below(most.min(self.region.blocks));
        let first = self.region.first + self.random.below(self.region.blocks - count + 1);
        match kind {
            Kind::Compare => self.compare(first, count),
            Kind::Read => self.read(first, count),
            Kind::Flush => {
                matches!(self.ask("a flush", Request::Flush), Outcome::Done(_))
            }
            _ => self.change(kind, first, count),
        }
    }

    fn ask(&self, what: &str, request: Request) -> Outcome<Reply> {
        let outcome = self.boot.outcome(what, self.opened.volume.start(request).wait());
        self.boot.counts.data.fetch_add(1, Ordering::Relaxed);
        outcome
    }

    fn known(&self, first: u64, count: u64) -> Vec<Stamp> {
        let volume = lock(&self.opened.shared);
        (first..first + count).map(|lba| volume.at(lba)).collect()
    }

    /// Changes blocks, and notes when that is begun and when it is acknowledged.
    fn change(&self, kind: Kind, first: u64, count: u64) -> bool {
        let stamp = self.boot.next_stamp();
        let before = self.known(first, count);
        let after = match kind {
            Kind::Zeroes | Kind::Deallocate => vec![ZEROES; before.len()],
            Kind::FailingSwap => before.clone(),
            _ => vec![stamp; before.len()],
        };
        let request = self.request(kind, stamp, first, &before, &after);
        let write = Write { first, stamps: after, together: TOGETHER };
        lock(&self.opened.shared).begin(stamp, write);
        let what = format!("{kind:?} of {count} blocks at {first}");
        let took_effect = match self.ask(&what, request) {
            Outcome::Gone => return false,
            Outcome::NoSpace => false,
            Outcome::Done(Reply::Swap(swap)) => {
                let is_right = (swap == Swap::Done) == (kind == Kind::Swap);
                if !is_right {
                    self.boot.found(format!("{what} is answered by {swap:?}"));
                }
                swap == Swap::Done
            }
            Outcome::Done(_) => true,
        };
        lock(&self.opened.shared).end(stamp, took_effect);
        true
    }

    fn request(
        &self,
        kind: Kind,
        stamp: Stamp,
        first: u64,
        before: &[Stamp],
        after: &[Stamp],
    ) -> Request {
        let volume = lock(&self.opened.shared);
        let has_metadata = volume.metadata > 0;
        let (offset, len) = (first * BLOCK as u64, (before.len() * BLOCK) as u64);
        // What is not there: the stamp is of no write.
        let mut expected = before.to_vec();
        if kind == Kind::FailingSwap {
            *expected.last_mut().expect("one block at least") = stamp;
        }
        let written =
            if kind == Kind::FailingSwap { vec![stamp; before.len()] } else { after.to_vec() };
        let (blocks, expected) =
            (filled(&volume, first, &written), filled(&volume, first, &expected));
        match kind {
            Kind::Zeroes => Request::WriteZeroes { offset, len },
            Kind::Deallocate => Request::Deallocate { offset, len },
            Kind::Swap | Kind::FailingSwap if has_metadata => {
                Request::CompareAndSwapEx { offset, expected, blocks }
            }
            Kind::Swap | Kind::FailingSwap => {
                Request::CompareAndSwap { offset, expected: expected.data, data: blocks.data }
            }
            Kind::WriteTx if has_metadata => Request::WriteTxEx { offset, blocks },
            Kind::WriteTx => Request::WriteTx { offset, data: blocks.data },
            _ if has_metadata => Request::WriteEx { offset, blocks },
            _ => Request::Write { offset, data: blocks.data },
        }
    }

    fn compare(&self, first: u64, count: u64) -> bool {
        let known = self.known(first, count);
        let request = {
            let volume = lock(&self.opened.shared);
            let (offset, blocks) = (first * BLOCK as u64, filled(&volume, first, &known));
            match volume.metadata {
                0 => Request::Compare { offset, data: blocks.data },
                _ => Request::CompareEx { offset, blocks },
            }
        };
        let Outcome::Done(reply) = self.ask("a compare", request) else { return false };
        if !matches!(reply, Reply::Equal(true)) {
            self.boot.found(format!("blocks {first} to {} differ: {reply:?}", first + count));
        }
        true
    }

    fn read(&self, first: u64, count: u64) -> bool {
        let request = read_request(&lock(&self.opened.shared), first, count);
        let Outcome::Done(reply) = self.ask("a read", request) else { return false };
        let (known, found) =
            (self.known(first, count), identify(&lock(&self.opened.shared), first, reply));
        match found {
            Ok(found) if found == known => {}
            Ok(found) => {
                self.boot.found(format!("blocks at {first} are {found:?}, and were {known:?}"));
            }
            Err(finding) => self.boot.found(finding.0),
        }
        true
    }
}
