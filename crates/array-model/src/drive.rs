//! A drive of the array: a modelled SSD, and the pauses in which it saves its SMART data.

use random::Rng;
use ssd_model::{Model, ParamsError};
use units::{Duration, Instant, Pba, PbaRange};

use crate::calendar::NEVER;
use crate::params::Params;

/// Blocks among which reads are spread. A lone read takes no longer on a larger drive.
const BLOCKS: u64 = 1 << 20;

#[derive(Debug)]
pub(crate) struct ArrayDrive {
    model: Model,
    places: Rng,
    pauses: Pauses,
}

impl ArrayDrive {
    /// `switched_on` is the time at which the first drives of the array had their housekeeping.
    pub(crate) fn new(
        params: &Params,
        housekeeping: bool,
        switched_on: Duration,
        rng: &mut Rng,
    ) -> Result<Self, ParamsError> {
        let (least, most) = params.tail_max_us;
        let drive = ssd_model::Params {
            tail_max_us: least + (most - least) * rng.unit(),
            ..params.drive.clone()
        };
        let model = Model::new(&drive, BLOCKS, rng.next_u64())?;
        let after = Duration::from_secs_f64(params.housekeeping_spread_s * rng.unit());
        let pauses = Pauses::new(params, housekeeping, switched_on + after);
        Ok(Self { model, places: Rng::new(rng.next_u64()), pauses })
    }

    /// The time at which a read that comes at `now` is done.
    #[inline]
    pub(crate) fn read(&mut self, now: u64) -> u64 {
        let range = PbaRange::new(Pba(self.places.below(BLOCKS)), 1);
        let begin = self.pauses.pass(now);
        let done = self.model.read(Instant(begin), range).0;
        self.pauses.pass(done)
    }
}

/// Times in which the drive neither takes commands nor reports them.
#[derive(Debug)]
struct Pauses {
    /// Begin of the next one, or of the one under way.
    start: u64,
    length_ns: u64,
    /// The one of its housekeeping, from 0.
    index: u64,
    count: u64,
    gap_ns: u64,
    every_ns: u64,
}

impl Pauses {
    fn new(params: &Params, housekeeping: bool, first: Duration) -> Self {
        let ns = |seconds: f64| Duration::from_secs_f64(seconds).as_nanos() as u64;
        Self {
            start: if housekeeping { first.as_nanos() as u64 } else { NEVER },
            length_ns: ns(params.housekeeping_pause_us * 1e-6),
            index: 0,
            count: params.housekeeping_pauses.max(1),
            gap_ns: ns(params.housekeeping_gap_ms * 1e-3),
            every_ns: ns(params.housekeeping_every_s),
        }
    }

    /// Returns `time`, or the end of the pause around it. Times never go back.
    #[inline]
    fn pass(&mut self, time: u64) -> u64 {
        while time >= self.start {
            let end = self.start + self.length_ns;
            if time < end {
                return end;
            }
            self.index = (self.index + 1) % self.count;
            self.start += match self.index {
                0 => self.every_ns - (self.count - 1) * self.gap_ns,
                _ => self.gap_ns,
            };
        }
        time
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_housekeeping_has_its_pauses_and_the_next_one_comes_in_time() {
        let params = Params {
            housekeeping_every_s: 1.0,
            housekeeping_pauses: 2,
            housekeeping_gap_ms: 5.0,
            housekeeping_pause_us: 500.0,
            ..Params::default()
        };
        let mut pauses = Pauses::new(&params, true, Duration::from_millis(100));
        let us = |us: u64| us * 1_000;
        assert_eq!(pauses.pass(us(99_999)), us(99_999));
        assert_eq!(pauses.pass(us(100_000)), us(100_500));
        assert_eq!(pauses.pass(us(100_500)), us(100_500));
        assert_eq!(pauses.pass(us(105_499)), us(105_500));
        assert_eq!(pauses.pass(us(106_000)), us(106_000));
        assert_eq!(pauses.pass(us(1_100_250)), us(1_100_500));
        let mut none = Pauses::new(&params, false, Duration::ZERO);
        assert_eq!(none.pass(us(1)), us(1));
    }
}
