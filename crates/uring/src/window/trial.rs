//! Trials of holding reads, by turns with giving the drive everything, to learn which gets more of
//! them done.

use std::time::{Duration, Instant};

/// Reads of one turn: some bursts of a drive, and yet soon over.
const TURN_READS: u32 = 256;
/// Pairs of turns, one without and one with holding, that a trial has.
const PAIRS: u32 = 8;
/// Pairs in which holding has to be faster: more than chance gives a drive that does not care.
const WINS_MIN: u32 = 6;
/// Reads that the outcome is kept for: a trial is one part in 17 of all.
const KEPT_READS: u32 = 16 * 2 * PAIRS * TURN_READS;

/// The treatment of reads.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Stage {
    /// Nothing is held, and nothing tried.
    #[default]
    Off,
    /// A turn of pair `pair`.
    Turn { pair: u32, held: bool },
    /// The outcome of a trial.
    Kept { held: bool },
}

/// A trial that is repeated from time to time.
#[derive(Default)]
pub(super) struct Trial {
    stage: Stage,
    /// Reads until the stage is over.
    left: u32,
    began: Option<Instant>,
    /// The time of the turn without holding.
    free: Duration,
    wins: u32,
}

impl Trial {
    /// A read is done. There is something to try only with a drive that is `suited`.
    pub(super) fn complete(&mut self, now: Instant, suited: bool) {
        if !suited {
            self.stage = Stage::Off;
            return;
        }
        if self.stage == Stage::Off {
            self.begin(now);
        }
        self.left -= 1;
        if self.left > 0 {
            return;
        }
        let took = self.began.map_or(Duration::ZERO, |began| now.saturating_duration_since(began));
        match self.stage {
            Stage::Off | Stage::Kept { .. } => self.begin(now),
            Stage::Turn { pair, held: false } => {
                self.free = took;
                self.enter(now, Stage::Turn { pair, held: true }, TURN_READS);
            }
            Stage::Turn { pair, held: true } => {
                self.wins += u32::from(took < self.free);
                if pair + 1 < PAIRS {
                    self.enter(now, Stage::Turn { pair: pair + 1, held: false }, TURN_READS);
                } else {
                    let held = self.wins >= WINS_MIN;
                    self.enter(now, Stage::Kept { held }, KEPT_READS);
                }
            }
        }
    }

    /// Returns true if reads are held now.
    pub(super) fn holds(&self) -> bool {
        matches!(self.stage, Stage::Turn { held: true, .. } | Stage::Kept { held: true })
    }

    fn begin(&mut self, now: Instant) {
        self.wins = 0;
        self.enter(now, Stage::Turn { pair: 0, held: false }, TURN_READS);
    }

    fn enter(&mut self, now: Instant, stage: Stage, reads: u32) {
        (self.stage, self.left, self.began) = (stage, reads, Some(now));
    }
}
