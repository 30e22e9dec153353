//! Cost of garbage collection: write amplification from how full and how random the drive is.
//!
//! - WEAR-1: a drive that was written at random settles where each erased block held the share `v`
//!   of data still valid, with `utilisation = (1 - v) / -ln v`; freeing a block's worth of space
//!   then costs writing `1 / (1 - v)` blocks' worth (the known result for collection in the order of
//!   writing, and a close bound for the best choice of victims).
//! - WEAR-2: a drive written sequentially frees whole blocks by itself. In between, the extra writes
//!   are in proportion to the share of random writes in the recent past.
//! - WEAR-3: space that was erased while the drive was idle serves writes without collection.

use units::PbaRange;

use crate::Params;
use crate::mapped::Mapped;

/// Sequential streams that the drive tells apart.
const STREAMS: usize = 16;
/// Writes between two looks at the amplification.
const WRITES_PER_LOOK: u32 = 256;

#[derive(Debug)]
pub(crate) struct Wear {
    mapped: Mapped,
    physical_blocks: f64,
    /// Mapped blocks when `random_extra` was computed.
    known_mapped: u64,
    /// Blocks written by collection for one block of the host, if all writes are random (WEAR-1).
    random_extra: f64,
    /// The share of random writes in the recent past.
    random: f64,
    /// Blocks that the recent past consists of.
    history_blocks: f64,
    stream_ends: [u64; STREAMS],
    next_stream: usize,
    writes_until_look: u32,
    extra: f64,
}

impl Wear {
    pub(crate) fn new(params: &Params, blocks: u64) -> Self {
        let filled = ((blocks as f64 * params.filled) as u64).min(blocks);
        let mut wear = Self {
            mapped: Mapped::new(blocks, filled),
            physical_blocks: blocks as f64 * (1.0 + params.overprovision),
            known_mapped: filled,
            random_extra: 0.0,
            random: params.random,
            history_blocks: params.history_gib * (1u64 << 18) as f64,
            stream_ends: [u64::MAX; STREAMS],
            next_stream: 0,
            writes_until_look: WRITES_PER_LOOK,
            extra: 0.0,
        };
        wear.random_extra = random_extra(filled as f64 / wear.physical_blocks);
        wear.extra = wear.random * wear.random_extra;
        wear
    }

    /// Blocks that collection writes for each block of the host.
    pub(crate) fn extra(&self) -> f64 {
        self.extra
    }

    /// Takes note of a write; says whether [`Wear::extra`] may have changed.
    pub(crate) fn on_write(&mut self, range: PbaRange) -> bool {
        self.mapped.set(range);
        let (start, end) = (range.start.0, range.start.0.saturating_add(range.blocks));
        let known = self.stream_ends.iter().position(|stream| *stream == start);
        // Blocks behind the first of a request are sequential to it.
        let random_blocks = if known.is_some() { 0.0 } else { 1.0 };
        let slot = known.unwrap_or(self.next_stream);
        self.stream_ends[slot] = end;
        if known.is_none() {
            self.next_stream = (self.next_stream + 1) % STREAMS;
        }
        let blocks = (range.blocks as f64).min(self.history_blocks);
        self.random += (random_blocks - self.random * blocks) / self.history_blocks;
        self.writes_until_look -= 1;
        if self.writes_until_look > 0 {
            return false;
        }
        self.look();
        true
    }

    pub(crate) fn on_discard(&mut self, range: PbaRange) {
        self.mapped.clear(range);
    }

    fn look(&mut self) {
        self.writes_until_look = WRITES_PER_LOOK;
        let mapped = self.mapped.count();
        if mapped.abs_diff(self.known_mapped) as f64 > self.physical_blocks / 4096.0 {
            self.known_mapped = mapped;
            self.random_extra = random_extra(mapped as f64 / self.physical_blocks);
        }
        self.extra = self.random * self.random_extra;
    }
}

/// WEAR-1: blocks that collection writes for each block of the host, on a drive written at random.
fn random_extra(utilisation: f64) -> f64 {
    if utilisation <= 0.0 {
        return 0.0;
    }
    // The condition's excess rises from below zero to above it over 0..utilisation; the other root,
    // at 1, is the one that has no meaning.
    let excess = |valid: f64| 1.0 - valid + utilisation * valid.ln();
    let (mut low, mut high) = (0.0, utilisation);
    for _ in 0..60 {
        let middle = 0.5 * (low + high);
        if excess(middle) < 0.0 {
            low = middle;
        } else {
            high = middle;
        }
    }
    high / (1.0 - high)
}

#[cfg(test)]
mod tests {
    use units::Pba;

    use super::*;
    use crate::Preset;

    #[test]
    fn amplification_is_that_of_the_known_result() {
        // Pairs of valid share and utilisation that satisfy WEAR-1.
        for valid in [0.1f64, 0.5, 0.8, 0.95] {
            let utilisation = (1.0 - valid) / -valid.ln();
            let extra = random_extra(utilisation);
            assert!((extra - valid / (1.0 - valid)).abs() < 1e-6, "valid {valid}: {extra}");
        }
        assert_eq!(random_extra(0.0), 0.0);
        assert!(random_extra(0.01) < 1e-9);
    }

    fn drive(filled: f64, random: f64) -> Wear {
        let params = Params { filled, random, history_gib: 0.25, ..Preset::P3700.params() };
        Wear::new(&params, 1 << 16)
    }

    #[test]
    fn sequential_writes_lower_it_and_random_ones_raise_it_again() {
        let mut wear = drive(1.0, 1.0);
        let steady = wear.extra();
        assert!(steady > 1.0);
        for n in 0..6 * (1 << 16) {
            wear.on_write(PbaRange::new(Pba(n % (1 << 16)), 1));
        }
        assert!(wear.extra() < 0.02 * steady, "{}", wear.extra());
        let mut rng = random::Rng::new(3);
        for _ in 0..6 * (1 << 16) {
            wear.on_write(PbaRange::new(Pba(rng.below(1 << 16)), 1));
        }
        assert!(wear.extra() > 0.98 * steady, "{}", wear.extra());
    }

    #[test]
    fn an_empty_drive_fills_and_discarding_empties_it() {
        let mut wear = drive(0.0, 1.0);
        assert_eq!(wear.extra(), 0.0);
        let mut rng = random::Rng::new(3);
        for _ in 0..10 * (1 << 16) {
            wear.on_write(PbaRange::new(Pba(rng.below(1 << 16)), 1));
        }
        assert!(wear.extra() > 0.95 * drive(1.0, 1.0).extra(), "{}", wear.extra());
        wear.on_discard(PbaRange::new(Pba(0), 1 << 15));
        wear.look();
        assert!(wear.extra() < 0.5 * drive(1.0, 1.0).extra(), "{}", wear.extra());
    }
}
