//! The engine beside the device that it lies on, in one process and on one CPU.

use std::ops::Range;
use std::time::Duration;

use anyhow::{Result, ensure};
use io_traits::Device;
use load::{Limit, Target};
use reactor::Handle;
use units::BLOCK_SIZE;

use super::bed::{Background, Engine, Load, Sample, run};
use super::checked::Checked;
use super::checkpoints;
use super::counted::Counted;
use super::places::Places;
use super::samples::{AGED, Key, READ_BACK, SEQUENTIAL_WRITE, Samples, Subject, WRITES};
use super::target::{Durable, EngineTarget};
use super::written;

pub(super) const MIB: u64 = 1 << 20;
/// The volume that is overwritten, and the part of the device that is.
pub(super) const OVERWRITTEN_BYTES: u64 = 1 << 30;
/// A thin volume's size: so much more than is written to it that hardly a block comes twice.
const THIN_BYTES: u64 = 4 << 30;
/// Written and read one behind the other.
const SEQUENTIAL_BYTES: u64 = 256 * MIB;
/// Readings of that for a sample.
const SEQUENTIAL_PASSES: u64 = 4;
/// Samples in a round: each takes a tenth of a second.
const SEQUENTIAL_PAIRS: usize = 3;
const LARGE: u64 = 128 << 10;
/// The devices: that of the engine holds the volumes above.
pub(super) const RAW_BYTES: u64 = OVERWRITTEN_BYTES;
pub(super) const ENGINE_BYTES: u64 = 3 << 30;
/// On memory a second brings several GiB into thin space.
pub(super) const ENGINE_MEMORY_BYTES: u64 = 8 << 30;

/// Length of the whole measurement.
#[derive(Clone, Copy, Debug)]
pub(super) struct Length {
    pub(super) rounds: usize,
    pub(super) seconds: f64,
}

/// Two devices of one kind: one written directly, one through the engine.
pub(super) struct Suite<D: Device> {
    handle: Handle,
    place: &'static str,
    raw: Durable<D>,
    engine: Engine<D>,
    aged: EngineTarget<Counted<D>>,
    length: Length,
    samples: Samples,
}

fn random_write(depth: u32, range_bytes: u64, limit: Limit, seed: u64) -> Load {
    Load { write: true, sequential: false, block_bytes: 4096, depth, range_bytes, limit, seed }
}

fn sequential(write: bool, range_bytes: u64) -> Load {
    let limit = Limit::Bytes(range_bytes);
    Load { write, sequential: true, block_bytes: LARGE, depth: 8, range_bytes, limit, seed: 1 }
}

/// Order of the subjects: reversed in every other round. A virtual drive may allow more for a while than for long,
/// and later subjects get less of that.
fn in_turn<const N: usize>(mut subjects: [Subject; N], round: usize) -> [Subject; N] {
    if round % 2 == 1 {
        subjects.reverse();
    }
    subjects
}

/// Measures some rounds of all on two devices of a kind, which are called `place`; what does not vary from round to
/// round with the last of them.
pub(super) async fn measure<D: Device>(
    handle: Handle,
    place: &'static str,
    (raw, device): (D, D),
    (length, rounds): (Length, Range<usize>),
    samples: Samples,
) -> Result<Samples> {
    let is_end = rounds.end == length.rounds;
    let engine = Engine::format(&handle, device, Background::All).await?;
    let raw = Durable::new(raw);
    let aged = engine.volume(OVERWRITTEN_BYTES).await?;
    run(&handle, &aged, sequential(true, OVERWRITTEN_BYTES)).await?;
    run(&handle, &raw, sequential(true, OVERWRITTEN_BYTES)).await?;
    let mut suite = Suite { handle, place, raw, engine, aged, length, samples };
    suite.age().await?;
    for round in rounds {
        eprintln!("{place} round {} of {}", round + 1, length.rounds);
        suite.random_writes(round).await?;
        for pair in 0..SEQUENTIAL_PAIRS {
            suite.sequential(round * SEQUENTIAL_PAIRS + pair).await?;
        }
        checkpoints::measure(&mut suite, round).await?;
    }
    if is_end {
        written::measure(&mut suite).await?;
    }
    Ok(suite.samples)
}

impl<D: Device> Suite<D> {
    pub(super) fn handle(&self) -> &Handle {
        &self.handle
    }

    pub(super) fn engine(&self) -> &Engine<D> {
        &self.engine
    }

    pub(super) fn aged(&self) -> &EngineTarget<Counted<D>> {
        &self.aged
    }

    pub(super) fn length(&self) -> Length {
        self.length
    }

    pub(super) fn add(&mut self, load: &'static str, subject: Subject, sample: Sample) {
        let rate = report::rate(sample.requests_per_second);
        eprintln!("  {:6} {:9} {load:34} {rate:>9} requests/s", self.place, subject.name());
        self.samples.add(Key { place: self.place, load, subject }, sample);
    }

    pub(super) fn samples(&mut self) -> (&'static str, &mut Samples) {
        (self.place, &mut self.samples)
    }

    /// Overwrites so much at random that the volume's blocks lie anywhere.
    async fn age(&self) -> Result<()> {
        let limit = Limit::Bytes(OVERWRITTEN_BYTES / 2);
        run(&self.handle, &self.aged, random_write(512, OVERWRITTEN_BYTES, limit, 99)).await?;
        Ok(())
    }

    async fn random_writes(&mut self, round: usize) -> Result<()> {
        let limit = Limit::Time(Duration::from_secs_f64(self.length.seconds));
        for (depth, name) in WRITES {
            let seed = round as u64 + 1;
            let over = random_write(depth, OVERWRITTEN_BYTES, limit, seed);
            let all = [Subject::Raw, Subject::Checked, Subject::Overwrite, Subject::Thin];
            for subject in in_turn(all, round) {
                let sample = match subject {
                    Subject::Raw => run(&self.handle, &self.raw, over).await?,
                    Subject::Checked => run(&self.handle, &Checked(self.raw.clone()), over).await?,
                    Subject::Overwrite => run(&self.handle, &self.aged, over).await?,
                    _ => self.first_writes(depth, limit, seed).await?,
                };
                self.add(name, subject, sample);
            }
        }
        Ok(())
    }

    /// Writes into space that nothing was written to.
    async fn first_writes(&self, depth: u32, limit: Limit, seed: u64) -> Result<Sample> {
        let thin = self.engine.volume(THIN_BYTES).await?;
        let sample = run(&self.handle, &thin, random_write(depth, THIN_BYTES, limit, seed)).await?;
        self.engine.delete(&self.handle, thin).await?;
        Ok(sample)
    }

    async fn sequential(&mut self, pair: usize) -> Result<()> {
        let write = sequential(true, SEQUENTIAL_BYTES);
        let limit = Limit::Bytes(SEQUENTIAL_PASSES * SEQUENTIAL_BYTES);
        let read = Load { limit, ..sequential(false, SEQUENTIAL_BYTES) };
        let all = in_turn([Subject::Raw, Subject::Checked, Subject::Thin], pair);
        let thin = self.engine.volume(SEQUENTIAL_BYTES).await?;
        for subject in all {
            let sample = match subject {
                Subject::Raw => run(&self.handle, &self.raw, write).await?,
                Subject::Checked => run(&self.handle, &Checked(self.raw.clone()), write).await?,
                _ => run(&self.handle, &thin, write).await?,
            };
            self.add(SEQUENTIAL_WRITE, subject, sample);
        }
        let places = self.places_of(&thin).await?;
        for subject in all {
            let sample = match subject {
                Subject::Raw => run(&self.handle, &places, read).await?,
                Subject::Checked => run(&self.handle, &Checked(places.clone()), read).await?,
                _ => self.counted_read(&thin, read).await?,
            };
            self.add(READ_BACK, subject, sample);
        }
        self.engine.delete(&self.handle, thin).await?;
        let sample = self.counted_read(&self.aged.clone(), read).await?;
        self.add(AGED, Subject::Overwrite, sample);
        Ok(())
    }

    /// The places on the device of a volume that was written in order: others of the same disk may be twice as fast.
    async fn places_of(&self, target: &EngineTarget<Counted<D>>) -> Result<Places<Counted<D>>> {
        let device = &self.engine.device;
        device.record_reads();
        run(&self.handle, target, sequential(false, SEQUENTIAL_BYTES)).await?;
        let places =
            Places::new(device.clone(), &device.recorded_reads(), LARGE / BLOCK_SIZE as u64);
        ensure!(
            places.blocks() * BLOCK_SIZE as u64 == SEQUENTIAL_BYTES,
            "something was read twice"
        );
        Ok(places)
    }

    async fn counted_read(&self, target: &EngineTarget<Counted<D>>, load: Load) -> Result<Sample> {
        let before = self.engine.device.counts();
        let sample = run(&self.handle, target, load).await?;
        let reads = self.engine.device.counts().since(before).reads;
        let requests = SEQUENTIAL_PASSES * load.range_bytes / load.block_bytes;
        Ok(Sample { device_reads_per_request: Some(reads as f64 / requests as f64), ..sample })
    }
}
