//! A flash unit: one operation at a time.
//!
//! - SSD-UNIT-1: work in the background (programs, collection, erases) begins when the unit has
//!   been free until now, or when it has let enough reads go first. What has not begun by the time
//!   of a call begins in a later one, with the same times as if it had begun on time.
//! - SSD-UNIT-2: programs are begun in the order in which they came.

use crate::timing::Timing;
use random::Rng;

/// One program's worth of collection, in the fixed point of [`Timing::garbage_per_program`].
pub(crate) const ONE_COLLECTION: u32 = 1 << 16;

#[derive(Clone, Debug, Default)]
pub(crate) struct Unit {
    /// When the operations that have begun, and the reads that were promised, are done.
    busy_until: u64,
    /// Programs that ever came, and those of them that have begun.
    queued: u64,
    begun: u64,
    /// When the last program that has begun begins and ends.
    program_start: u64,
    program_end: u64,
    /// Collection that is due, in parts of [`ONE_COLLECTION`].
    garbage: u32,
    programs_until_erase: u32,
    /// Reads that went ahead of waiting work since some of it last began.
    overtakers: u32,
    /// True if the last operation was no read.
    programming: bool,
}

impl Unit {
    /// A unit somewhere in its cycle of programs and erases.
    pub(crate) fn new(timing: &Timing, rng: &mut Rng) -> Self {
        Self {
            garbage: rng.below(u64::from(ONE_COLLECTION)) as u32,
            programs_until_erase: rng.below(u64::from(timing.programs_per_erase)) as u32 + 1,
            ..Self::default()
        }
    }

    /// Serves a read that comes at `now`; says when it is done.
    pub(crate) fn read(&mut self, now: u64, timing: &Timing, rng: &mut Rng) -> u64 {
        self.advance(now, timing, rng);
        if self.has_work() {
            if self.overtakers >= timing.reads_before_program {
                self.begin(timing, rng);
            } else {
                self.overtakers += 1;
            }
        }
        if std::mem::take(&mut self.programming) {
            self.busy_until += timing.turnaround_ns;
        }
        self.busy_until = self.busy_until.max(now) + timing.read.draw(rng);
        self.busy_until
    }

    /// Takes in a program at `now`.
    pub(crate) fn enqueue(&mut self, now: u64, timing: &Timing, rng: &mut Rng) {
        self.advance(now, timing, rng);
        // An idle unit cannot begin before it is asked to.
        self.busy_until = self.busy_until.max(now);
        self.queued += 1;
    }

    /// When everything that waits will be done, about, if nothing else comes.
    pub(crate) fn backlog_end(&self, timing: &Timing) -> u64 {
        self.end_of(self.queued - self.begun, timing)
    }

    /// When there is room for one more program among `capacity`, which counts the one under way.
    /// Reads that are yet to come may make it later, by a few operations at most.
    pub(crate) fn room_at(
        &mut self,
        now: u64,
        capacity: u64,
        timing: &Timing,
        rng: &mut Rng,
    ) -> u64 {
        if self.queued - self.begun + 1 < capacity {
            return now;
        }
        self.advance(now, timing, rng);
        let Some(leaving) = self.queued.checked_sub(capacity) else { return now };
        let end = if leaving >= self.begun {
            self.end_of(leaving - self.begun + 1, timing)
        } else if leaving + 1 == self.begun {
            self.program_end
        } else {
            // It ended before a later one began.
            self.program_start
        };
        end.max(now)
    }

    /// When everything that waits will be done, if nothing else comes.
    pub(crate) fn idle_at(&mut self, now: u64, timing: &Timing, rng: &mut Rng) -> u64 {
        self.advance(now, timing, rng);
        match self.queued - self.begun {
            0 => self.program_end,
            waiting => self.end_of(waiting, timing),
        }
    }

    /// When the next `programs` that wait will have ended, about: in mean times.
    fn end_of(&self, programs: u64, timing: &Timing) -> u64 {
        let Some(behind_next) = programs.checked_sub(1) else { return self.busy_until };
        let collections = u64::from(self.garbage / ONE_COLLECTION);
        let next_ns = collections * timing.collect.mean_ns + timing.program.mean_ns;
        self.busy_until + next_ns + behind_next * timing.cycle_ns
    }

    /// Begins what would have begun before `now` (SSD-UNIT-1).
    fn advance(&mut self, now: u64, timing: &Timing, rng: &mut Rng) {
        while self.busy_until < now && self.has_work() {
            self.begin(timing, rng);
        }
    }

    fn has_work(&self) -> bool {
        self.queued > self.begun || self.garbage >= ONE_COLLECTION || self.programs_until_erase == 0
    }

    /// Begins the operation in the background that is next, of which there is one.
    fn begin(&mut self, timing: &Timing, rng: &mut Rng) {
        self.overtakers = 0;
        self.programming = true;
        let start = self.busy_until;
        if self.programs_until_erase == 0 {
            self.programs_until_erase = timing.programs_per_erase;
            self.busy_until = start + timing.erase.draw(rng);
            return;
        }
        self.programs_until_erase -= 1;
        if self.garbage >= ONE_COLLECTION {
            self.garbage -= ONE_COLLECTION;
            self.busy_until = start + timing.collect.draw(rng);
            return;
        }
        self.begun += 1;
        self.garbage = self.garbage.saturating_add(timing.garbage_per_program);
        self.program_start = start;
        self.program_end = start + timing.program.draw(rng);
        self.busy_until = self.program_end;
    }
}
