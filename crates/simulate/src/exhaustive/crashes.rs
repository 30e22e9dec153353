//! Many programs, each crashed everywhere, on all cores.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;

use sim::Rng;
use units::MetadataSize;

use super::{Base, Program, programs};

/// Operations of the programs that every selection has.
const SHORT: usize = 2;
/// The seed by which the slice's longer programs are drawn.
const SLICE_SEED: u64 = 39;
/// Longer programs, and short ones with metadata, of which the slice has one.
const SLICE_PART: u64 = 10;
const SLICE_PART_WITH_METADATA: u64 = 3;

/// Programs to crash, each on a disk whose volume has so much metadata of each block.
#[derive(Clone, Debug)]
pub struct Crashes {
    programs: Vec<(Program, MetadataSize)>,
}

impl Crashes {
    /// All programs, and those of up to two operations once more for each size of metadata.
    #[must_use]
    pub fn all() -> Self {
        let all = programs().into_iter().map(|program| (program, MetadataSize::None));
        let sizes = MetadataSize::ALL.into_iter().filter(|size| *size != MetadataSize::None);
        let again =
            sizes.flat_map(|size| programs().into_iter().map(move |program| (program, size)));
        let short = again.filter(|(program, _)| program.steps.len() <= SHORT);
        Self { programs: all.chain(short).collect() }
    }

    /// All programs of up to two operations, a third of these once more with metadata, and one in ten of the longer ones.
    #[must_use]
    pub fn slice() -> Self {
        let mut rng = Rng::new(SLICE_SEED);
        let drawn = Self::all().programs.into_iter().filter(|(program, size)| {
            let is_short = program.steps.len() <= SHORT;
            match (is_short, *size) {
                (true, MetadataSize::None) => true,
                (true, _) => rng.one_in(SLICE_PART_WITH_METADATA),
                (false, _) => rng.one_in(SLICE_PART),
            }
        });
        Self { programs: drawn.collect() }
    }

    /// Returns the number of programs.
    #[must_use]
    pub fn count(&self) -> usize {
        self.programs.len()
    }

    /// Returns the programs, each with the size of metadata of each block.
    pub fn programs(&self) -> impl Iterator<Item = &(Program, MetadataSize)> {
        self.programs.iter()
    }

    /// Crashes them in order, so many at a time, until one finds something or `stop` is set; returns how many survivors were
    /// looked at. `each` is called with the number of programs so far.
    ///
    /// # Errors
    /// The first finding: what is wrong, and where the power was cut.
    ///
    /// # Panics
    /// The engine fails on a sound disk.
    pub fn run(
        &self,
        threads: usize,
        stop: &AtomicBool,
        each: impl Fn(usize) + Sync,
    ) -> Result<u64, String> {
        let (next, done, looked) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicU64::new(0));
        let finding = Mutex::new(None);
        let work = || {
            let bases = MetadataSize::ALL.map(|size| (size, Base::new(size)));
            while !stop.load(Ordering::Relaxed) {
                let place = next.fetch_add(1, Ordering::Relaxed);
                let Some((program, size)) = self.programs.get(place) else { return };
                let base = bases.iter().find(|(of, _)| of == size).map(|(_, base)| base);
                match base.expect("one for each size").crash_everywhere(program) {
                    Ok(survivors) => drop(looked.fetch_add(survivors, Ordering::Relaxed)),
                    Err(found) => {
                        stop.store(true, Ordering::Relaxed);
                        finding.lock().expect("no holder panics").get_or_insert(found);
                    }
                }
                each(done.fetch_add(1, Ordering::Relaxed) + 1);
            }
        };
        thread::scope(|scope| {
            for _ in 0..threads.max(1) {
                scope.spawn(work);
            }
        });
        match finding.into_inner().expect("all threads have ended") {
            Some(found) => Err(found),
            None => Ok(looked.into_inner()),
        }
    }
}
