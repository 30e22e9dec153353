//! Detection of drives that complete their reads all at once, not as each is done.

use std::time::{Duration, Instant};

/// Completions belong together within this part of the silence before the first of them.
const SILENCE_PARTS: u32 = 8;
/// A drive that answers sooner than this does not keep anybody waiting.
const SILENCE_MIN: Duration = Duration::from_micros(20);
/// A burst of this many reads counts for half of what is known of the drive, smaller ones for as much less.
const HALF_READS: usize = 128;
/// The part of its reads that a drive completes at a time, in the mean of its reads, if it does all at once: from here
/// on…
const PART_ON: f32 = 0.625;
/// …down to here.
const PART_OFF: f32 = 0.375;
/// Bursts after which it is forgotten how many reads there were.
const PEAK_BURSTS: u8 = 16;

/// Completions that came together.
struct Burst {
    began: Instant,
    /// The time without a completion before it, although there was something to do.
    silence: Duration,
    /// Reads that the drive had.
    given: usize,
    /// Those, and the ones held.
    wanted: usize,
    done: usize,
}

/// The statistics of a drive's bursts of completions.
#[derive(Default)]
pub(super) struct Bursts {
    /// When the drive last got something to do, or did something.
    since: Option<Instant>,
    current: Option<Burst>,
    /// The part of what the drive had that is completed along with a read, in the mean of the last few hundred.
    part: f32,
    are_all: bool,
    /// Most reads that were wanted at a time: in this run of bursts, and in the one before.
    peaks: [usize; 2],
    count: u8,
}

impl Bursts {
    /// The drive gets its first read.
    pub(super) fn start(&mut self, now: Instant) {
        self.since = Some(now);
    }

    /// A drive that had `given` reads, this one among them, completes one; `held` more are wanted of it.
    pub(super) fn complete(&mut self, now: Instant, given: usize, held: usize) {
        let together = self.current.as_ref().is_some_and(|burst| {
            let within =
                now.saturating_duration_since(burst.began) * SILENCE_PARTS <= burst.silence;
            within && burst.done < burst.given
        });
        if !together {
            self.judge();
            let silence =
                self.since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
            self.current =
                Some(Burst { began: now, silence, given, wanted: given + held, done: 0 });
        }
        if let Some(burst) = &mut self.current {
            burst.done += 1;
        }
        self.since = Some(now);
    }

    /// Returns true if the drive completes nearly all that it has at once, after a time that its
    /// askers feel.
    pub(super) fn are_all(&self) -> bool {
        self.are_all
    }

    /// Most reads that were wanted at a time of late.
    pub(super) fn peak(&self) -> usize {
        self.peaks[0].max(self.peaks[1])
    }

    /// Judges the drive by the burst that is over. One read alone says nothing.
    fn judge(&mut self) {
        let Some(burst) = self.current.take() else { return };
        self.peaks[0] = self.peaks[0].max(burst.wanted);
        self.count += 1;
        if self.count == PEAK_BURSTS {
            (self.peaks, self.count) = ([0, self.peaks[0]], 0);
        }
        if burst.given == 1 {
            return;
        }
        let is_felt = burst.silence >= SILENCE_MIN;
        let part = if is_felt { burst.done as f32 / burst.given as f32 } else { 0.0 };
        let weight = burst.done.min(HALF_READS) as f32 / (2 * HALF_READS) as f32;
        self.part += (part - self.part) * weight;
        self.are_all = self.part >= if self.are_all { PART_OFF } else { PART_ON };
    }
}
