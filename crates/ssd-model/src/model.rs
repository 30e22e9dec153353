//! The drive: controller, buffer and units together.

use units::{Duration, Instant, PbaRange};

use crate::controller::Controller;
use crate::timing::Timing;
use crate::unit::Unit;
use crate::wear::Wear;
use crate::{Params, ParamsError};
use random::{Rng, mix, scale};

/// Blocks in a GiB.
const GIB_BLOCKS: f64 = (1u64 << 18) as f64;

/// Units that are looked at for the next program.
const CANDIDATES: usize = 6;

/// A modelled drive. Each call is a request; its answer is the instant at which it is done.
///
/// Instants handed in must not go back; one that does counts as the latest.
#[derive(Debug)]
pub struct Model {
    timing: Timing,
    rng: Rng,
    controller: Controller,
    units: Vec<Unit>,
    wear: Wear,
    /// When the last request came.
    last_at: u64,
    page_blocks: u64,
    program_blocks: u64,
    /// Programs of a unit that the buffer holds.
    buffer_programs: u64,
    volatile_buffer: bool,
    /// The unit whose program is being filled, and the blocks in it.
    filling: usize,
    filling_blocks: u64,
    /// Programs for which there is erased space (WEAR-3), and how many there can be.
    reserve: f64,
    reserve_max: f64,
}

impl Model {
    /// A drive of `blocks` blocks that has long been used as `params` says.
    pub fn new(params: &Params, blocks: u64, seed: u64) -> Result<Self, ParamsError> {
        params.validate()?;
        let timing = Timing::new(params);
        let mut rng = Rng::new(seed);
        let units = (0..params.units).map(|_| Unit::new(&timing, &mut rng)).collect();
        let phase = rng.below(timing.pause_every_ns.max(1));
        let program_blocks = u64::from(params.program_blocks);
        let mut model = Self {
            controller: Controller::new(&timing, phase),
            units,
            wear: Wear::new(params, blocks),
            last_at: 0,
            page_blocks: u64::from(params.page_blocks),
            program_blocks,
            buffer_programs: u64::from(params.buffer_programs),
            volatile_buffer: params.volatile_buffer,
            filling: 0,
            filling_blocks: 0,
            reserve: 0.0,
            reserve_max: params.reserve_gib * GIB_BLOCKS / program_blocks as f64,
            rng,
            timing,
        };
        model.look_at_wear();
        Ok(model)
    }

    /// When a read of `range` that comes at `now` is done.
    pub fn read(&mut self, now: Instant, range: PbaRange) -> Instant {
        let busy_ns = self.timing.command_ns.max(range.blocks * self.timing.read_block_ns);
        let at = self.admit(now, busy_ns);
        let mut done = at + busy_ns - self.timing.command_ns.min(busy_ns);
        let first = range.start.0 / self.page_blocks;
        let last = range.start.0.saturating_add(range.blocks.max(1) - 1) / self.page_blocks;
        let count = self.units.len() as u64;
        for page in first..=last {
            let unit = &mut self.units[scale(mix(page), count) as usize];
            done = done.max(unit.read(at, &self.timing, &mut self.rng));
        }
        self.report(done + self.timing.read_overhead_ns)
    }

    /// When a write of `range` that comes at `now` is done: when the buffer has taken it.
    pub fn write(&mut self, now: Instant, range: PbaRange) -> Instant {
        let busy_ns = self.timing.command_ns.max(range.blocks * self.timing.write_block_ns);
        let at = self.admit(now, busy_ns);
        let mut done = at + busy_ns - self.timing.command_ns.min(busy_ns);
        let mut left = range.blocks;
        while left > 0 {
            let unit = &mut self.units[self.filling];
            let room = unit.room_at(at, self.buffer_programs, &self.timing, &mut self.rng);
            done = done.max(room);
            let count = left.min(self.program_blocks - self.filling_blocks);
            left -= count;
            self.filling_blocks += count;
            if self.filling_blocks == self.program_blocks {
                self.program_next(at);
            }
        }
        if self.wear.on_write(range) {
            self.look_at_wear();
        }
        self.report(done + self.timing.write_ns)
    }

    /// When a flush that comes at `now` is done.
    pub fn flush(&mut self, now: Instant) -> Instant {
        let at = self.admit(now, self.timing.command_ns);
        let mut done = at;
        if self.volatile_buffer {
            if self.filling_blocks > 0 {
                self.program_next(at);
            }
            for unit in &mut self.units {
                done = done.max(unit.idle_at(at, &self.timing, &mut self.rng));
            }
        }
        self.report(done + self.timing.flush_ns)
    }

    /// When a discard of `range` that comes at `now` is done.
    pub fn discard(&mut self, now: Instant, range: PbaRange) -> Instant {
        let at = self.admit(now, self.timing.command_ns);
        self.wear.on_discard(range);
        self.report(at + self.timing.discard_ns)
    }

    /// Blocks stored for each block that the host writes, as things stand.
    #[must_use]
    pub fn write_amplification(&self) -> f64 {
        1.0 + self.wear.extra()
    }

    /// Returns true if buffered writes are lost with the power.
    #[must_use]
    pub fn has_volatile_buffer(&self) -> bool {
        self.volatile_buffer
    }

    /// Lets a command in; says when it begins.
    fn admit(&mut self, now: Instant, busy_ns: u64) -> u64 {
        let idle_ns = now.0.saturating_sub(self.last_at);
        if idle_ns > self.timing.idle_ns {
            self.erase_ahead(idle_ns - self.timing.idle_ns);
        }
        self.last_at = self.last_at.max(now.0);
        self.controller.take(self.last_at, busy_ns)
    }

    /// When a command is seen to be done, with the delays that nothing explains.
    fn report(&mut self, done: u64) -> Instant {
        let done = done + self.timing.tail.draw(&mut self.rng);
        Instant(self.controller.report(done))
    }

    /// Hands the program that was filled to its unit, at `at`.
    fn program_next(&mut self, at: u64) {
        if self.reserve > 0.0 {
            self.reserve -= 1.0;
            if self.reserve <= 0.0 {
                self.look_at_wear();
            }
        }
        self.units[self.filling].enqueue(at, &self.timing, &mut self.rng);
        self.filling = self.pick_unit();
        self.filling_blocks = 0;
    }

    /// The unit for the next program: the least busy of a few, so that all keep about the same pace.
    fn pick_unit(&mut self) -> usize {
        let count = self.units.len();
        let next = (self.filling + 1) % count;
        let others = (1..CANDIDATES).map(|_| self.rng.below(count as u64) as usize);
        let candidates = std::iter::once(next).chain(others);
        let least = candidates.min_by_key(|unit| self.units[*unit].backlog_end(&self.timing));
        least.expect("the next one at least")
    }

    /// WEAR-3: what idle units erase in `idle_ns`.
    fn erase_ahead(&mut self, idle_ns: u64) {
        let ns_per_program = self.timing.collection_ns(self.wear.extra()).max(1) as f64;
        let erased = idle_ns as f64 * self.units.len() as f64 / ns_per_program;
        self.reserve = (self.reserve + erased).min(self.reserve_max);
        self.look_at_wear();
    }

    fn look_at_wear(&mut self) {
        let erased = self.reserve > 0.0;
        self.timing.set_extra(if erased { 0.0 } else { self.wear.extra() });
    }

    /// Time that the drive needs for a block of random writing, were writing all that it does.
    #[must_use]
    pub fn write_cost(&self) -> Duration {
        let blocks = self.units.len() as u64 * self.program_blocks;
        Duration::from_nanos(self.timing.cycle_ns / blocks)
    }
}
