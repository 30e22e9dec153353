//! Reads of one block whose turn has come, worked on together.
//!
//! Most of what such a read takes is waiting for memory, step after step (`Volume::find`). Commands come many at a time,
//! so they can wait together:
//!
//! - A1: up to [`GROUP`] reads take each step together; the last step before their blocks are read asks for the first line
//!   of each.
//! - A2: the rest of a block is asked for in parts while the one before it is read: the processor drops what is too much
//!   at a time. See [`Lines`].
//! - A3: a read that need not wait, neither for memory, nor for the device, nor for the map, is done and answered at once,
//!   without a task of its own. All others become tasks, as do those of several blocks.

use std::rc::Rc;

use checksum::Lines;
use io_traits::{Device, World};
use nvme_target::SlotId;
use schedule::Direction;
use units::{BLOCK_SIZE, Lba, LbaRange};
use volume::Found;

use crate::connection::{Connection, IoQueue};
use crate::memory::footprint;

/// Reads that take their steps together: what one host may have done before others have their turn.
pub(crate) const GROUP: usize = 16;

/// A read of one block.
pub(crate) struct Read<W: World, D: Device> {
    pub(crate) connection: Rc<Connection<W, D>>,
    pub(crate) queue: Rc<IoQueue<W, D>>,
    pub(crate) slot: SlotId,
    pub(crate) lba: Lba,
}

/// How far a read has come.
struct Step<W: World, D: Device> {
    read: Read<W, D>,
    found: Option<Found<D>>,
    /// What is left of its block to be asked for.
    lines: Lines,
}

/// Reads that take their steps together.
pub(crate) struct Reads<W: World, D: Device> {
    steps: Vec<Step<W, D>>,
}

impl<W: World, D: Device> Default for Reads<W, D> {
    fn default() -> Self {
        Self { steps: Vec::with_capacity(GROUP) }
    }
}

impl<W: World, D: Device> Reads<W, D> {
    /// Takes in a read. It is done with the others of its group, at the latest by [`Reads::run`].
    pub(crate) fn push(&mut self, read: Read<W, D>) {
        self.steps.push(Step { read, found: None, lines: Lines::NONE });
        if self.steps.len() == GROUP {
            self.run();
        }
    }

    /// Does all reads that were taken in.
    pub(crate) fn run(&mut self) {
        if self.steps.len() > 1 {
            self.steps.iter().for_each(|step| step.read.with_volume(volume::Volume::will_search));
            self.steps.iter().for_each(|step| step.read.with_volume(volume::Volume::will_look_up));
        }
        let is_alone = self.steps.len() == 1;
        for Step { read, found, lines } in &mut self.steps {
            let fetch = |bytes: &[u8]| *lines = Lines::of(bytes);
            *found = read.with_volume(|volume, lba| volume.find(lba, fetch));
            if !is_alone {
                lines.fetch_first();
            }
        }
        let mut ahead = 1;
        let mut steps = std::mem::take(&mut self.steps);
        for at in 0..steps.len() {
            let found = steps[at].found.take();
            let mut ask = || {
                ahead = ahead.max(at + 1);
                while steps.get(ahead).is_some_and(|step| step.lines.are_all_asked()) {
                    ahead += 1;
                }
                if let Some(step) = steps.get_mut(ahead) {
                    step.lines.fetch_some();
                }
            };
            ask();
            ask();
            ask();
            steps[at].read.run(found);
        }
        steps.clear();
        self.steps = steps;
    }
}

impl<W: World, D: Device> Read<W, D> {
    fn with_volume<T>(&self, look: impl FnOnce(&volume::Volume<D>, Lba) -> T) -> T {
        self.queue.export.with_volume(|volume| look(volume, self.lba))
    }

    /// A3.
    fn run(&self, found: Option<Found<D>>) {
        if !self.connection.is_open() {
            return;
        }
        let done = found.and_then(|found| self.run_at_once(found));
        if done.is_none() {
            let range = LbaRange::new(self.lba, 1);
            self.connection.read_as_task(self.slot, self.queue.clone(), range);
        }
    }

    fn run_at_once(&self, found: Found<D>) -> Option<()> {
        let Self { connection, queue, slot, .. } = self;
        let lent = found.lent()?;
        let share = connection.window.try_take(footprint(BLOCK_SIZE))?;
        let _ticket = queue.export.lane.enter_at_once(Direction::Read, 1)?;
        match queue.export.with_volume(|volume| volume.read_lent(lent)) {
            Ok(data) => connection.complete_read(*slot, data, share),
            Err(error) => connection.fail(*slot, queue, &error),
        }
        Some(())
    }
}
