//! The one way into the drive: takes commands at a bounded rate, and pauses for housekeeping.

use crate::timing::Timing;

#[derive(Debug)]
pub(crate) struct Controller {
    /// When it can take the next command.
    free_at: u64,
    pauses: Pauses,
}

impl Controller {
    /// `phase` is when the first pause begins.
    pub(crate) fn new(timing: &Timing, phase: u64) -> Self {
        let pauses = Pauses {
            every_ns: timing.pause_every_ns,
            len_ns: timing.pause_ns,
            start: if timing.pause_every_ns > 0 { phase } else { u64::MAX },
        };
        Self { free_at: 0, pauses }
    }

    /// Takes a command that comes at `now` and keeps the controller for `busy_ns`; says when it
    /// begins. Beginnings never go back.
    pub(crate) fn take(&mut self, now: u64, busy_ns: u64) -> u64 {
        let at = self.pauses.pass(now.max(self.free_at));
        self.free_at = at + busy_ns;
        at
    }

    /// When a command is reported that is done at `done`.
    pub(crate) fn report(&self, done: u64) -> u64 {
        self.pauses.outside(done)
    }
}

/// Times in which the drive neither takes commands nor reports them.
#[derive(Debug)]
struct Pauses {
    every_ns: u64,
    len_ns: u64,
    /// When the next one begins, or the one under way began.
    start: u64,
}

impl Pauses {
    /// Moves on to `time`, or behind the pause around it. Times never go back.
    fn pass(&mut self, time: u64) -> u64 {
        if time < self.start {
            return time;
        }
        let missed = (time - self.start) / self.every_ns;
        self.start += missed * self.every_ns;
        if time - self.start < self.len_ns {
            return self.start + self.len_ns;
        }
        self.start += self.every_ns;
        time
    }

    fn outside(&self, time: u64) -> u64 {
        if time >= self.start && time - self.start < self.len_ns {
            self.start + self.len_ns
        } else {
            time
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_hold_what_falls_into_them_and_nothing_else() {
        let mut pauses = Pauses { every_ns: 1000, len_ns: 50, start: 300 };
        assert_eq!(pauses.pass(299), 299);
        assert_eq!(pauses.outside(300), 350);
        assert_eq!(pauses.outside(350), 350);
        assert_eq!(pauses.pass(300), 350);
        assert_eq!(pauses.pass(349), 350);
        assert_eq!(pauses.pass(350), 350);
        assert_eq!(pauses.outside(1310), 1350);
        assert_eq!(pauses.pass(1_000_320), 1_000_350, "a long time later");
        assert_eq!(pauses.pass(1_001_299), 1_001_299);
    }
}
