//! A disk with a volatile cache, as bytes: what is durable, what is read, and the writes in between.
//!
//! - CUT-CACHE-1: a flush makes durable what had completed when it began; what is still under way it may
//!   leave out.
//! - CUT-CACHE-2: durable bytes change by flushes and cuts only. A flush never brings back what a later
//!   write replaced.
//! - CUT-CACHE-3: a cut keeps or loses whole sectors of what no flush covered, by a rule ([`Survival`]).

use std::collections::BTreeSet;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::random::Random;

/// The unit that a disk writes whole.
pub(crate) const SECTOR: usize = 512;
/// The unit in which what was never written is left out of an image.
const CHUNK_SECTORS: usize = 128;

/// Survivors of a cut among the writes that no flush covered.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Survival {
    Nothing,
    Everything,
    /// Each sector by chance, in percent.
    Sectors(u64),
    /// Each write by chance, in percent.
    Writes(u64),
    /// The first writes up to one that is torn.
    First,
    /// The last writes behind one that is torn.
    Last,
    /// Writes that had been answered.
    Answered,
    /// Writes that had not been answered.
    Unanswered,
    /// Writes below a place on the disk.
    Below,
    /// Writes above it.
    Above,
}

impl Survival {
    pub(crate) fn draw(random: &mut Random) -> Self {
        let percent = random.pick(&[10, 50, 90]);
        random.pick(&[
            Self::Nothing,
            Self::Nothing,
            Self::Everything,
            Self::Sectors(percent),
            Self::Sectors(percent),
            Self::Writes(percent),
            Self::Writes(percent),
            Self::First,
            Self::Last,
            Self::Answered,
            Self::Unanswered,
            Self::Below,
            Self::Above,
        ])
    }
}

/// The effect of a cut.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Loss {
    /// Writes that no flush covered.
    pub(crate) writes: usize,
    /// Their sectors.
    pub(crate) sectors: u64,
    /// Those of them that are gone.
    pub(crate) lost: u64,
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { writes, sectors, lost } = self;
        write!(f, "lost {lost} of {sectors} sectors in {writes} writes")
    }
}

/// The number of a write, in the order in which they came.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) struct Order(u32);

enum Data {
    Bytes(Box<[u8]>),
    Zeroes(usize),
}

/// The content of a disk, in chunks: most of a large disk was never written.
pub(crate) struct Image {
    bytes: usize,
    chunks: Vec<(usize, Box<[u8]>)>,
}

impl Image {
    pub(crate) fn save(&self, path: &Path) -> io::Result<()> {
        let file = File::create(path)?;
        file.set_len(self.bytes as u64)?;
        let mut chunks = self.chunks.iter();
        chunks.try_for_each(|(offset, bytes)| file.write_all_at(bytes, *offset as u64))
    }

    #[cfg(test)]
    pub(crate) fn byte(&self, at: usize) -> u8 {
        let chunk =
            self.chunks.iter().find(|(from, bytes)| (*from..from + bytes.len()).contains(&at));
        chunk.map_or(0, |(from, bytes)| bytes[at - from])
    }
}

struct Write {
    order: Order,
    offset: usize,
    data: Data,
    is_answered: bool,
}

impl Write {
    fn len(&self) -> usize {
        match &self.data {
            Data::Bytes(bytes) => bytes.len(),
            Data::Zeroes(len) => *len,
        }
    }

    fn sectors(&self) -> usize {
        self.len() / SECTOR
    }

    /// The first sector on the disk.
    fn first_sector(&self) -> usize {
        self.offset / SECTOR
    }

    /// Puts sector `index` of the write into `disk`.
    fn put(&self, index: usize, disk: &mut [u8]) {
        let (from, to) = (index * SECTOR, (index + 1) * SECTOR);
        let target = &mut disk[self.offset + from..self.offset + to];
        match &self.data {
            Data::Bytes(bytes) => target.copy_from_slice(&bytes[from..to]),
            Data::Zeroes(_) => target.fill(0),
        }
    }
}

/// The disk. Offsets and lengths are multiples of [`SECTOR`] within it.
pub(crate) struct Cache {
    durable: Vec<u8>,
    visible: Vec<u8>,
    /// For each sector the write that it has on the medium (CUT-CACHE-2).
    newest: Vec<Order>,
    writes: Vec<Write>,
    next: u32,
}

/// The writes that a flush is to cover.
pub(crate) struct Covered(BTreeSet<Order>);

impl Covered {
    /// Leaves out what `keep` refuses, by its byte range: for disks that lie.
    pub(crate) fn retain(&mut self, cache: &Cache, keep: impl Fn(usize, usize) -> bool) {
        for write in &cache.writes {
            if !keep(write.offset, write.offset + write.len()) {
                self.0.remove(&write.order);
            }
        }
    }
}

impl Cache {
    /// A disk of zeroes.
    pub(crate) fn new(bytes: usize) -> Self {
        assert!(bytes.is_multiple_of(SECTOR), "a disk has whole sectors");
        Self {
            durable: vec![0; bytes],
            visible: vec![0; bytes],
            newest: vec![Order(0); bytes / SECTOR],
            writes: Vec::new(),
            next: 1,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.visible.len()
    }

    /// Returns what the disk holds after a cut.
    pub(crate) fn durable(&self) -> Image {
        let chunk = |index: usize| {
            let sectors = &self.newest[index * CHUNK_SECTORS..];
            let sectors = &sectors[..sectors.len().min(CHUNK_SECTORS)];
            let is_written = sectors.iter().any(|order| *order > Order(0));
            let from = index * CHUNK_SECTORS * SECTOR;
            let bytes = &self.durable[from..from + sectors.len() * SECTOR];
            is_written.then(|| (from, bytes.into()))
        };
        let count = self.newest.len().div_ceil(CHUNK_SECTORS);
        Image { bytes: self.durable.len(), chunks: (0..count).filter_map(chunk).collect() }
    }

    pub(crate) fn read(&self, offset: usize, len: usize) -> &[u8] {
        let end = (offset + len).min(self.visible.len());
        &self.visible[offset.min(end)..end]
    }

    pub(crate) fn write(&mut self, offset: usize, bytes: &[u8]) -> Order {
        self.visible[offset..offset + bytes.len()].copy_from_slice(bytes);
        self.push(offset, Data::Bytes(bytes.into()))
    }

    pub(crate) fn zero(&mut self, offset: usize, len: usize) -> Order {
        self.visible[offset..offset + len].fill(0);
        self.push(offset, Data::Zeroes(len))
    }

    fn push(&mut self, offset: usize, data: Data) -> Order {
        let order = Order(self.next);
        self.next += 1;
        let write = Write { order, offset, data, is_answered: false };
        assert!(offset.is_multiple_of(SECTOR) && write.len().is_multiple_of(SECTOR));
        self.writes.push(write);
        order
    }

    /// The write is answered: later flushes cover it.
    pub(crate) fn answered(&mut self, order: Order) {
        // One that a flush covered while it was under way is no longer here.
        if let Ok(index) = self.writes.binary_search_by_key(&order, |write| write.order) {
            self.writes[index].is_answered = true;
        }
    }

    /// A flush begins (CUT-CACHE-1): what it covers at least, and what it covers by chance besides.
    pub(crate) fn begin_flush(&self, random: &mut Random) -> Covered {
        let covers = |write: &&Write| write.is_answered || random.chance(50);
        Covered(self.writes.iter().filter(covers).map(|write| write.order).collect())
    }

    /// The flush is done.
    pub(crate) fn end_flush(&mut self, covered: &Covered) {
        let Self { durable, newest, writes, .. } = self;
        writes.retain(|write| {
            let is_covered = covered.0.contains(&write.order);
            if is_covered {
                (0..write.sectors()).for_each(|index| keep(write, index, durable, newest));
            }
            !is_covered
        });
    }

    /// Cuts the power: what is read from now on is what survived.
    pub(crate) fn cut(&mut self, rule: Survival, random: &mut Random) -> Loss {
        let writes = std::mem::take(&mut self.writes);
        let torn = random.below(writes.len() as u64 + 1) as usize;
        let tear =
            random.below(writes.get(torn).map_or(1, |write| write.sectors() as u64)) as usize;
        let place = random.below(self.newest.len() as u64) as usize;
        let mut loss = Loss { writes: writes.len(), ..Loss::default() };
        for (number, write) in writes.iter().enumerate() {
            let whole = random.next();
            for index in 0..write.sectors() {
                let sector = write.first_sector() + index;
                let survives = match rule {
                    Survival::Nothing => false,
                    Survival::Everything => true,
                    Survival::Sectors(percent) => random.chance(percent),
                    Survival::Writes(percent) => whole % 100 < percent,
                    Survival::First => (number, index) < (torn, tear),
                    Survival::Last => (number, index) >= (torn, tear),
                    Survival::Answered => write.is_answered,
                    Survival::Unanswered => !write.is_answered,
                    Survival::Below => sector < place,
                    Survival::Above => sector >= place,
                };
                loss.sectors += 1;
                loss.lost += u64::from(!survives);
                if survives {
                    keep(write, index, &mut self.durable, &mut self.newest);
                }
            }
        }
        for write in &writes {
            let range = write.offset..write.offset + write.len();
            self.visible[range.clone()].copy_from_slice(&self.durable[range]);
        }
        loss
    }
}

/// Makes a sector of a write durable, unless a later write is (CUT-CACHE-2).
fn keep(write: &Write, index: usize, durable: &mut [u8], newest: &mut [Order]) {
    let sector = write.first_sector() + index;
    if newest[sector] < write.order {
        newest[sector] = write.order;
        write.put(index, durable);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEN: usize = 8 * SECTOR;

    fn answered(cache: &mut Cache, offset: usize, byte: u8) {
        let order = cache.write(offset, &[byte; 2 * SECTOR]);
        cache.answered(order);
    }

    fn flush(cache: &mut Cache) {
        let covered = cache.begin_flush(&mut Random::new(1));
        cache.end_flush(&covered);
    }

    fn sectors(cache: &Cache) -> Vec<u8> {
        let all = cache.read(0, LEN);
        all.chunks(SECTOR)
            .map(|sector| {
                assert!(sector.iter().all(|byte| *byte == sector[0]), "a sector is whole");
                sector[0]
            })
            .collect()
    }

    /// CUT-CACHE-1, CUT-CACHE-3.
    #[test]
    fn a_cut_takes_what_no_flush_covered_and_nothing_else() {
        for seed in 0..200 {
            let mut random = Random::new(seed);
            let rule = Survival::draw(&mut random);
            let mut cache = Cache::new(LEN);
            answered(&mut cache, 0, 1);
            answered(&mut cache, 4 * SECTOR, 2);
            flush(&mut cache);
            answered(&mut cache, SECTOR, 3);
            let zeroed = cache.zero(5 * SECTOR, SECTOR);
            cache.answered(zeroed);
            assert_eq!(sectors(&cache), [1, 3, 3, 0, 2, 0, 0, 0]);
            cache.cut(rule, &mut random);
            let left = sectors(&cache);
            assert_eq!((left[0], left[3], left[4]), (1, 0, 2), "seed {seed}, {rule:?}");
            assert!([1, 3].contains(&left[1]) && [0, 3].contains(&left[2]));
            match rule {
                Survival::Nothing | Survival::Unanswered => {
                    assert_eq!(left, [1, 1, 0, 0, 2, 2, 0, 0]);
                }
                Survival::Everything | Survival::Answered => {
                    assert_eq!(left, [1, 3, 3, 0, 2, 0, 0, 0]);
                }
                _ => {}
            }
        }
    }

    /// CUT-CACHE-1.
    #[test]
    fn a_flush_owes_nothing_to_what_completes_behind_its_beginning() {
        let mut cache = Cache::new(LEN);
        let covered = cache.begin_flush(&mut Random::new(1));
        answered(&mut cache, 0, 1);
        cache.end_flush(&covered);
        cache.cut(Survival::Nothing, &mut Random::new(1));
        assert_eq!(sectors(&cache), [0; 8]);
    }

    /// CUT-CACHE-2.
    #[test]
    fn a_late_flush_brings_nothing_old_back() {
        for seed in 0..50 {
            let mut random = Random::new(seed);
            let mut cache = Cache::new(LEN);
            let old = cache.write(0, &[1; 2 * SECTOR]);
            answered(&mut cache, SECTOR, 2);
            let covered = cache.begin_flush(&mut random);
            cache.end_flush(&covered);
            cache.answered(old);
            flush(&mut cache);
            cache.cut(Survival::Nothing, &mut random);
            assert_eq!(sectors(&cache)[..3], [1, 2, 2], "seed {seed}");
        }
    }

    /// Each rule loses something sometimes, and keeps something sometimes, where it may.
    #[test]
    fn rules_do_what_they_are_named_for() {
        let mut random = Random::new(7);
        for rule in [
            Survival::Sectors(50),
            Survival::Writes(50),
            Survival::First,
            Survival::Last,
            Survival::Below,
            Survival::Above,
        ] {
            let (mut lost, mut kept) = (0, 0);
            for _ in 0..50 {
                let mut cache = Cache::new(LEN);
                (0..4).for_each(|pair| answered(&mut cache, pair * 2 * SECTOR, 9));
                let loss = cache.cut(rule, &mut random);
                lost += loss.lost;
                kept += loss.sectors - loss.lost;
            }
            assert!(lost > 0 && kept > 0, "{rule:?}: {lost} lost, {kept} kept");
        }
    }
}
