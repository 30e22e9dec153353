//! Phases of a shard's life.

use std::cell::Cell;

/// A phase. Each comes behind the one before, and none comes back.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
enum Phase {
    /// It is being made or read back: failures end its start.
    Starting,
    /// The background loop has begun.
    Running,
    /// It takes no more changes.
    Stopping,
    /// No record is written any more.
    CommitterEnded,
    /// The last checkpoint is over. Another shard may own the blocks from here on.
    Ended,
    /// Nothing of the background loop is on its way to the device.
    Quiet,
}

/// The phase that a shard is in.
pub(super) struct Life {
    phase: Cell<Phase>,
}

impl Life {
    pub(super) const fn new() -> Self {
        Self { phase: Cell::new(Phase::Starting) }
    }

    pub(super) fn has_begun(&self) -> bool {
        self.phase.get() >= Phase::Running
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.phase.get() >= Phase::Stopping
    }

    pub(super) fn has_committer_ended(&self) -> bool {
        self.phase.get() >= Phase::CommitterEnded
    }

    pub(super) fn has_ended(&self) -> bool {
        self.phase.get() >= Phase::Ended
    }

    pub(super) fn is_quiet(&self) -> bool {
        self.phase.get() >= Phase::Quiet
    }

    /// The background loop begins, which it may do when the shard is to stop already.
    pub(super) fn begin(&self) {
        self.phase.set(self.phase.get().max(Phase::Running));
    }

    /// It is to stop. More than one may say so.
    pub(super) fn stop(&self) {
        self.phase.set(self.phase.get().max(Phase::Stopping));
    }

    pub(super) fn end_committer(&self) {
        self.pass(Phase::Stopping, Phase::CommitterEnded);
    }

    pub(super) fn end(&self) {
        self.pass(Phase::CommitterEnded, Phase::Ended);
    }

    pub(super) fn be_quiet(&self) {
        self.pass(Phase::Ended, Phase::Quiet);
    }

    fn pass(&self, from: Phase, to: Phase) {
        let phase = self.phase.replace(to);
        assert!(phase == from, "a shard goes from {from:?} to {to:?}, not from {phase:?}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shard_passes_through_all_phases() {
        let life = Life::new();
        assert!(!life.has_begun());
        life.begin();
        assert!(life.has_begun() && !life.is_stopping());
        life.stop();
        life.stop();
        assert!(life.is_stopping() && !life.has_committer_ended());
        life.end_committer();
        assert!(life.has_committer_ended() && !life.has_ended());
        life.end();
        assert!(life.has_ended() && !life.is_quiet());
        life.stop();
        life.be_quiet();
        assert!(life.is_quiet());
    }

    #[test]
    fn a_shard_that_stops_before_it_begins_does_not_run_again() {
        let life = Life::new();
        life.stop();
        life.begin();
        assert!(life.is_stopping());
    }

    #[test]
    #[should_panic(expected = "a shard goes from CommitterEnded to Ended, not from Stopping")]
    fn no_phase_is_left_out() {
        let life = Life::new();
        life.stop();
        life.end();
    }
}
