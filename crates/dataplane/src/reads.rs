//! Reads of one block whose turn has come, worked on together.
//!
//! Most of what such a read takes is waiting for memory, step after step (`Volume::locate`). Commands come many at a time,
//! so they can wait together:
//!
//! - READ-1: up to [`GROUP`] reads take each step together; the last step before their blocks are read asks for the first
//!   line of each.
//! - READ-2: the rest of a block is asked for in parts while the one before it is read: the processor drops what is too
//!   much at a time. See [`Lines`].
//! - READ-3: a read that need not wait, neither for memory, nor for the device, nor for the map, is done and answered at
//!   once, without a task of its own. All others become tasks, as do those of several blocks.

use checksum::Lines;
use io_traits::{Device, World};
use reservation::Access;
use schedule::Direction;
use units::{BLOCK_SIZE, Lba, LbaRange};
use volume::{Located, Pinned};

use crate::execute::Job;
use crate::memory::{Share, footprint};
use crate::request::Outcome;

/// Reads that take their steps together: what one host may have done before others have their turn.
const GROUP: usize = 16;

/// Parts that are asked for before the first block is read: it, and some of the next.
const PARTS_AHEAD: usize = 5;

/// A read of one block.
pub(crate) struct Read<W: World, D: Device> {
    pub(crate) job: Job<W, D>,
    pub(crate) lba: Lba,
}

/// Reads that take their steps together.
pub(crate) struct Reads<W: World, D: Device> {
    steps: Vec<Step<W, D>>,
    ahead: Ahead,
}

/// A read, and how far it has come.
struct Step<W: World, D: Device> {
    read: Read<W, D>,
    found: Option<Located<D>>,
}

/// Blocks that will be read, in this order, and what is left of each to be asked for (READ-2).
#[derive(Default)]
struct Ahead {
    blocks: Vec<Lines>,
    /// The first of which something is left.
    next: usize,
}

impl Ahead {
    /// Asks for the first line of each block: by itself, as an atomic operation in between would wait until the
    /// address of each is translated.
    fn start(&mut self) {
        self.blocks.iter_mut().for_each(Lines::fetch_first);
        (0..PARTS_AHEAD).for_each(|_| self.ask());
    }

    /// Asks for the next part.
    fn ask(&mut self) {
        while let Some(lines) = self.blocks.get_mut(self.next) {
            if !lines.are_all_asked() {
                return lines.fetch_some();
            }
            self.next += 1;
        }
    }

    fn clear(&mut self) {
        self.blocks.clear();
        self.next = 0;
    }
}

impl<W: World, D: Device> Default for Reads<W, D> {
    fn default() -> Self {
        Self { steps: Vec::with_capacity(GROUP), ahead: Ahead::default() }
    }
}

impl<W: World, D: Device> Reads<W, D> {
    /// Takes in a read. It is done with the others of its group, at the latest by [`Reads::run`].
    pub(crate) fn push(&mut self, world: &W, read: Read<W, D>) {
        self.steps.push(Step { read, found: None });
        if self.steps.len() == GROUP {
            self.run(world);
        }
    }

    /// Does all reads that were taken in.
    pub(crate) fn run(&mut self, world: &W) {
        let Self { steps, ahead } = self;
        let is_worth_it = steps.len() > 1;
        if is_worth_it {
            steps.iter().for_each(|step| step.read.with_volume(volume::Volume::prefetch_stage1));
            let told =
                steps.iter().map(|step| step.read.with_volume(volume::Volume::prefetch_stage2));
            // All are told, not only those before the first of which that is true.
            if told.fold(false, |any, is_searched| any | is_searched) {
                let told_again = volume::Volume::prefetch_stage3;
                steps.iter().for_each(|step| step.read.with_volume(told_again));
            }
        }
        for Step { read, found } in &mut *steps {
            let fetch = |block: *const [u8]| ahead.blocks.push(Lines::of(block));
            *found = read.with_volume(|volume, lba| volume.locate(lba, fetch));
        }
        if is_worth_it {
            ahead.start();
        } else {
            ahead.clear();
        }
        for Step { read, found } in steps.drain(..) {
            read.run(world, found, ahead);
        }
        ahead.clear();
    }
}

impl<W: World, D: Device> Read<W, D> {
    fn with_volume<T>(&self, look: impl FnOnce(&volume::Volume<D>, Lba) -> T) -> T {
        self.job.export.with_volume(|volume| look(volume, self.lba))
    }

    /// READ-3. Meanwhile asks for what comes behind it (READ-2).
    fn run(self, world: &W, found: Option<Located<D>>, ahead: &mut Ahead) {
        if !self.job.session.link().is_open() {
            return;
        }
        ahead.ask();
        let share = match found.and_then(Located::pin) {
            Some(pinned) => match self.run_at_once(pinned, ahead) {
                Ok(()) => return,
                Err(share) => share,
            },
            None => None,
        };
        let range = LbaRange::new(self.lba, 1);
        self.job.read_as_task(world, range, share);
    }

    /// Fails if it has to wait, and returns its share of the memory if it has one: dropping the share would
    /// wake other requests for memory in vain.
    fn run_at_once(&self, pinned: Pinned, ahead: &mut Ahead) -> Result<(), Option<Share>> {
        let Job { session, tag, export, .. } = &self.job;
        if self.job.check(Access::Read).is_err() {
            // Its task finds that, too.
            return Err(None);
        }
        let _inside = export.lane.passage().pass_at_once().ok_or(None)?;
        let share = session.link().window().try_take(footprint(BLOCK_SIZE)).ok_or(None)?;
        let Some(_ticket) = export.lane.enter_at_once(Direction::Read, 1) else {
            return Err(Some(share));
        };
        ahead.ask();
        let data = export.with_volume(|volume| volume.read_pinned(pinned));
        ahead.ask();
        match data {
            Ok(data) => session.complete(*tag, Outcome::Data(data, share)),
            Err(error) => self.job.fail(error.into()),
        }
        ahead.ask();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ahead(blocks: usize) -> Ahead {
        let block = Box::new([0; BLOCK_SIZE]);
        Ahead { blocks: vec![Lines::of(&block[..]); blocks], next: 0 }
    }

    /// Blocks of which a part is still to be asked for.
    fn unasked(ahead: &Ahead) -> usize {
        ahead.blocks.iter().filter(|lines| !lines.are_all_asked()).count()
    }

    #[test]
    fn blocks_are_asked_for_in_parts_the_next_one_first() {
        let mut ahead = ahead(3);
        (0..3).for_each(|_| ahead.ask());
        assert_eq!(unasked(&ahead), 3);
        while !ahead.blocks[0].are_all_asked() {
            ahead.ask();
        }
        assert_eq!(unasked(&ahead), 2);
        (0..100).for_each(|_| ahead.ask());
        assert_eq!(unasked(&ahead), 0);
        ahead.clear();
        ahead.ask();
    }

    /// As reads run: four parts are asked for in each.
    #[test]
    fn a_block_is_asked_for_before_its_read_begins() {
        let mut ahead = ahead(GROUP);
        ahead.start();
        for read in 0..GROUP {
            assert!(unasked(&ahead) < GROUP - read, "read {read}");
            (0..4).for_each(|_| ahead.ask());
        }
    }
}
