//! Damaged structures, and what each of them can reach.
//!
//! | damaged | reach |
//! | --- | --- |
//! | one copy of a superblock or a root | nothing: a look at the disk names it |
//! | both superblocks | the disk does not open |
//! | both copies of a root | its shard goes back: errors of any of its blocks, and it may not open; volumes that this root brought |
//! | a journal record | it does not open, or changes that were answered since the record was made are undone by the next start. What they had freed was used again: so are writes before them of which no record says that their data is there, and of the other blocks they cover come errors |
//! | a node of a table | the disk does not open, or the table is rebuilt |
//! | a bitmap | the same |
//! | a descriptor | its volume is gone; its blocks stay in use |
//! | a node of a map | errors of the node's volume that name it, blocks in use that it names, the count of mapped blocks; a start that needs it fails |
//!
//! A structure other than a journal record lies below a checksum that another one has. So it never excuses older blocks.

use std::collections::{BTreeMap, BTreeSet};

use layout::{Root, VOLUME_TREE};
use sim::{Rng, SimDevice};
use units::{BLOCK_SIZE, Pba, PbaRange};
use uuid::Uuid;
use volume::{Fault, Finding, Loss, OpenError, Problem, Structure, Superblock, VolumeError};

use super::Run;
use crate::content;
use crate::history::Moment;
use crate::model::VolumeModel;
use crate::scenario::{DEVICE_BLOCKS, EXTENT_BLOCKS};

/// Data writes that are remembered, each of one run.
const RUNS_KEPT: usize = 24;

/// Bytes of a structure's name that say which kind it is of.
const KIND_BYTES: usize = 6;

/// A journal record: shard, incarnation, sequence.
type RecordId = (u16, u64, u64);

/// The blocks that were written, by place.
type Version = (Pba, Vec<u8>);

/// A structure.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) enum Part {
    /// A copy of the superblock.
    Superblock,
    /// A copy of a root: of which shard, and which generation it should be.
    Root(u16, u64),
    /// A bitmap.
    Bitmap,
    /// A journal record.
    Record(RecordId),
    /// A node of a table.
    Table,
    /// A node of the map of the volume with this number in its shard.
    Node(u32),
    /// A volume's descriptor.
    Descriptor(Uuid),
}

/// The locations of written structures, as far as that tells the owner of a damaged block.
#[derive(Debug, Default)]
pub(super) struct Written {
    /// The record whose block was written last at each place of a journal.
    records: BTreeMap<Pba, RecordId>,
    /// When each record was first written, and up to which record it calls the data settled.
    since: BTreeMap<RecordId, (Moment, u64)>,
    /// The newest durable root that a record of each shard names.
    rooted: BTreeMap<u16, u64>,
    /// Numbers of volumes.
    numbers: BTreeMap<Uuid, u32>,
    /// Locations of the latest writes of tenants' blocks, run by run.
    runs: Vec<PbaRange>,
    /// The last two versions of each node and descriptor, if they are kept, and where each was written.
    versions: Option<BTreeMap<Vec<u8>, Vec<Version>>>,
}

/// The damaged structures.
#[derive(Debug, Default)]
pub(super) struct Harm {
    parts: BTreeMap<Pba, BTreeSet<Part>>,
    /// Shards of which no copy of the newest root was left.
    gone_back: BTreeSet<u16>,
}

fn number<const N: usize>(block: &[u8], at: usize) -> [u8; N] {
    block[at..at + N].try_into().expect("within a block")
}

/// The disk as it is formatted.
fn superblock() -> Superblock {
    let superblock = Superblock::with_extents(Uuid::nil(), DEVICE_BLOCKS, EXTENT_BLOCKS);
    superblock.expect("large enough")
}

/// The shard of which a copy of a root lies here.
fn shard_of_root(pba: Pba) -> Option<u16> {
    let superblock = superblock();
    let is_there = |shard: &u16| {
        [0, 1].iter().any(|slot| superblock.root_places(*shard, *slot).contains(&pba))
    };
    (0..superblock.shard_slots).find(is_there)
}

impl Written {
    fn note(&mut self, pba: Pba, bytes: &[u8], now: Moment) {
        if bytes.starts_with(b"FJR1") {
            let shard = u16::from_le_bytes(number(bytes, 52));
            let incarnation = u64::from_le_bytes(number(bytes, 16));
            let id = (shard, incarnation, u64::from_le_bytes(number(bytes, 8)));
            let settled = u64::from_le_bytes(number(bytes, 40));
            self.since.entry(id).or_insert((now, settled));
            let generation = u64::from_le_bytes(number(bytes, 64));
            let rooted = self.rooted.entry(shard).or_default();
            *rooted = generation.max(*rooted);
            let blocks = (bytes.len() / BLOCK_SIZE) as u64;
            self.records.extend((0..blocks).map(|block| (pba.plus(block), id)));
            return;
        }
        if content::is_of_tenant(bytes) {
            if self.runs.len() == RUNS_KEPT {
                self.runs.remove(0);
            }
            self.runs.push(PbaRange::new(pba, (bytes.len() / BLOCK_SIZE) as u64));
        }
        for block in bytes.chunks_exact(BLOCK_SIZE).filter(|block| block.starts_with(b"FVD1")) {
            let uuid = Uuid::from_bytes(number(block, 8));
            self.numbers.insert(uuid, u32::from_le_bytes(number(block, 40)));
        }
        let Some(versions) = &mut self.versions else { return };
        for (pba, block) in (pba.0..).map(Pba).zip(bytes.chunks_exact(BLOCK_SIZE)) {
            // Whether it is of a table, level, tree and first key of a node; whose a descriptor is. The kind comes first.
            let name = match &block[..4] {
                b"FMN1" => {
                    let tree = u32::from_le_bytes(number(block, 8));
                    let is_table = u8::from(tree >= VOLUME_TREE);
                    [&[is_table], &block[..5], &block[8..12], &block[16..24]].concat()
                }
                b"FVD1" => [&[0], &block[..4], &[0], &block[8..24]].concat(),
                _ => continue,
            };
            let known = versions.entry(name).or_default();
            known.push((pba, block.to_vec()));
            if known.len() > 2 {
                known.remove(0);
            }
        }
    }

    /// When the record was first written, and the first one whose data is compared by a start that ends before it.
    fn since(&self, id: RecordId) -> Option<(Moment, Moment)> {
        let (shard, incarnation, sequence) = id;
        let (since, _) = *self.since.get(&id)?;
        let before = self.since.get(&(shard, incarnation, sequence.saturating_sub(1)));
        let settled = before.map_or(sequence, |(_, settled)| *settled);
        let compared = self.since.get(&(shard, incarnation, settled + 1));
        Some((since, compared.map_or(since, |(moment, _)| since.min(*moment))))
    }

    /// The structure that a block is of which holds `bytes`, or should.
    fn part(&self, pba: Pba, bytes: &[u8]) -> Option<Part> {
        let superblock = superblock();
        if Superblock::places(DEVICE_BLOCKS).contains(&pba) {
            return Some(Part::Superblock);
        }
        if let Some(shard) = shard_of_root(pba) {
            // Zero where no root was written.
            return Some(Part::Root(shard, u64::from_le_bytes(number(bytes, 24))));
        }
        if superblock.is_bitmap(pba) {
            return Some(Part::Bitmap);
        }
        if let Some(id) = self.records.get(&pba) {
            return Some(Part::Record(*id));
        }
        match &bytes[..4] {
            b"FMN1" => {
                let tree = u32::from_le_bytes(number(bytes, 8));
                Some(if tree >= VOLUME_TREE { Part::Table } else { Part::Node(tree) })
            }
            b"FVD1" => Some(Part::Descriptor(Uuid::from_bytes(number(bytes, 8)))),
            _ => None,
        }
    }
}

impl Run {
    /// Notes that blocks are to be written.
    pub(crate) fn note_write(&self, pba: Pba, bytes: &[u8]) {
        let now = self.now();
        self.shared.written.borrow_mut().note(pba, bytes, now);
    }

    /// Keeps what [`Run::make_stale`] needs.
    pub(crate) fn keep_versions(&self) {
        self.shared.written.borrow_mut().versions.get_or_insert_default();
    }

    /// Puts the version before in the place of a node or a descriptor, as a disk leaves it that loses the write of the last one.
    pub(crate) fn make_stale(&self, disk: &SimDevice, rng: &mut Rng) {
        let stale = {
            let written = self.shared.written.borrow();
            let is_there = |(pba, bytes): &Version| disk.peek(*pba) == *bytes;
            let versions = written.versions.iter().flatten();
            let known =
                versions.filter(|(_, versions)| versions.len() == 2 && is_there(&versions[1]));
            // There are more leaves than anything else.
            let mut kinds: BTreeMap<&[u8], Vec<_>> = BTreeMap::new();
            for (name, versions) in known {
                kinds.entry(&name[..KIND_BYTES]).or_default().push(versions);
            }
            if kinds.is_empty() {
                return;
            }
            let kind = rng.below(kinds.len() as u64) as usize;
            let known = kinds.into_values().nth(kind).expect("below their number");
            known[rng.below(known.len() as u64) as usize].clone()
        };
        let (pba, intended) = &stale[1];
        disk.replace(*pba, &stale[0].1);
        self.note_damage(*pba, intended);
    }

    /// Returns whether a record of the shard proves that a root of this generation, or of a later one, was durable.
    pub(crate) fn is_root_proven(&self, shard: u16, generation: u64) -> bool {
        let written = self.shared.written.borrow();
        written.rooted.get(&shard).is_some_and(|newest| *newest >= generation)
    }

    /// Returns the locations of the latest writes of tenants' blocks, run by run.
    pub(crate) fn last_runs(&self) -> Vec<PbaRange> {
        self.shared.written.borrow().runs.clone()
    }

    /// Notes that a block is damaged which is no tenant's.
    pub(super) fn note_harm(&self, pba: Pba, intended: &[u8]) {
        let Some(part) = self.shared.written.borrow().part(pba, intended) else { return };
        let mut harm = self.shared.harm.borrow_mut();
        harm.parts.entry(pba).or_default().insert(part);
        let Part::Root(shard, 1..) = part else { return };
        let superblock = superblock();
        for slot in [0, 1] {
            let places = superblock.root_places(shard, slot);
            if places.iter().all(|at| harm.parts.get(at).is_some_and(|p| p.contains(&part))) {
                harm.gone_back.insert(shard);
            }
        }
    }

    fn is_harmed_at(&self, pba: Pba, is_meant: impl Fn(&Part) -> bool) -> bool {
        self.shared.harm.borrow().parts.get(&pba).is_some_and(|parts| parts.iter().any(is_meant))
    }

    fn is_any_part(&self, is_meant: impl Fn(&Part) -> bool) -> bool {
        self.shared.harm.borrow().parts.values().flatten().any(is_meant)
    }

    /// Returns true if a host may not be let in, or be cut, where it should not: its volume may be gone, or fail.
    pub(crate) fn excuses_refusal(&self, volume: &VolumeModel) -> bool {
        self.take_damage();
        self.is_descriptor_harmed(volume)
            || self.goes_back(volume.shard)
            || self.is_map_harmed(volume, None)
            || self.is_any_part(|part| matches!(part, Part::Record(_) | Part::Table | Part::Bitmap))
    }

    /// Returns true if the blocks that volumes hold may be others than were acknowledged.
    pub(crate) fn excuses_held(&self) -> bool {
        self.take_damage();
        let is_meant =
            |part: &Part| matches!(part, Part::Node(_) | Part::Record(_) | Part::Descriptor(_));
        self.is_any_part(is_meant) || self.any_goes_back()
    }

    /// Returns true if a copy of a root, or of the superblock, was damaged.
    pub(crate) fn is_any_copy_harmed(&self) -> bool {
        self.take_damage();
        self.is_any_part(|part| matches!(part, Part::Superblock | Part::Root(..)))
    }

    /// Returns true if a shard lost its newest root, and goes on from the one before: what only the newest leads to
    /// may be gone, and errors may concern anything in the shard.
    pub(super) fn goes_back(&self, shard: usize) -> bool {
        let harm = self.shared.harm.borrow();
        harm.gone_back.iter().any(|gone| usize::from(*gone) == shard)
    }

    /// The same of any shard.
    pub(super) fn any_goes_back(&self) -> bool {
        !self.shared.harm.borrow().gone_back.is_empty()
    }

    /// Returns true if a node of the volume's map was damaged, at `place` if one is given.
    pub(super) fn is_map_harmed(&self, volume: &VolumeModel, place: Option<Pba>) -> bool {
        let known = self.shared.written.borrow().numbers.get(&volume.uuid()).copied();
        let is_meant = |part: &Part| match part {
            Part::Node(number) => known.is_none_or(|known| known == *number),
            _ => false,
        };
        match place {
            Some(pba) => self.is_harmed_at(pba, is_meant),
            None => self.is_any_part(is_meant),
        }
    }

    /// Returns true if the volume's descriptor was damaged.
    fn is_descriptor_harmed(&self, volume: &VolumeModel) -> bool {
        self.is_any_part(|part| *part == Part::Descriptor(volume.uuid()))
    }

    /// Returns true if the volume may be gone, or have come back, against what was acknowledged.
    pub(crate) fn excuses_existence(&self, volume: &VolumeModel, exists: bool) -> bool {
        self.take_damage();
        !exists && (self.is_descriptor_harmed(volume) || self.goes_back(volume.shard))
    }

    /// Returns true if blocks may be in use that only damaged structures name.
    fn hides_blocks(&self) -> bool {
        let hides = |part: &Part| matches!(part, Part::Node(_) | Part::Descriptor(_));
        self.is_any_part(hides) || self.any_goes_back()
    }

    /// Returns true if a scrub may call this block damaged.
    pub(super) fn excuses_damage(&self, structure: Structure, pba: Pba) -> bool {
        match structure {
            Structure::Superblock => self.is_harmed_at(pba, |part| *part == Part::Superblock),
            Structure::Root => self.is_harmed_at(pba, |part| matches!(part, Part::Root(..))),
            Structure::Bitmap => self.is_harmed_at(pba, |part| *part == Part::Bitmap),
            Structure::Table => {
                self.is_harmed_at(pba, |part| matches!(part, Part::Table | Part::Descriptor(_)))
            }
            Structure::Node => {
                self.any_goes_back() || self.is_harmed_at(pba, |part| matches!(part, Part::Node(_)))
            }
            // A damaged node of which all is deallocated goes, and what it named stays in use.
            Structure::Leaked => self.hides_blocks(),
            Structure::Count => self.is_any_part(|part| matches!(part, Part::Node(_))),
            _ => false,
        }
    }

    /// Returns true if a full check may find this.
    pub(crate) fn excuses_finding(&self, finding: &Finding) -> bool {
        match finding {
            Finding::Unreadable(VolumeError::Corrupt { pba, lba, .. }) => {
                self.is_lost_at(*pba, *lba, self.now()) || self.any_goes_back()
            }
            Finding::Unreadable(VolumeError::CorruptMap { pba, .. }) => {
                self.excuses_damage(Structure::Node, *pba)
            }
            Finding::Unaccounted { .. } | Finding::Leaked { .. } => self.hides_blocks(),
            Finding::Count { what: "mapped blocks of a volume", .. } => {
                self.is_any_part(|part| matches!(part, Part::Node(_)))
            }
            _ => false,
        }
    }

    /// Returns true if this error may keep the disk from being opened.
    pub(crate) fn excuses_open(&self, error: &OpenError) -> bool {
        self.take_damage();
        let torn = self.leniency().roots;
        let is_root = |part: &Part, of: u16| matches!(part, Part::Root(shard, _) if *shard == of);
        match error {
            OpenError::Superblock(_) => self.is_any_part(|part| *part == Part::Superblock),
            OpenError::Root(shard) => {
                let harm = self.shared.harm.borrow();
                let copies = harm.parts.values().flatten().filter(|part| is_root(part, *shard));
                let count = copies.count();
                count > 1 || (torn && count > 0)
            }
            OpenError::Journal { shard, sequence } => {
                let is_it = |part: &Part| match part {
                    Part::Record((of, _, number)) => (of, number) == (shard, sequence),
                    _ => false,
                };
                self.goes_back(usize::from(*shard)) || self.is_any_part(is_it)
            }
            // A copy that the power tore may be of the newest root, and what is damaged in this one gone in that.
            OpenError::Damaged { what: "root", .. } if torn && self.hides_blocks() => true,
            OpenError::Damaged { shard, pba, .. } => {
                self.goes_back(usize::from(*shard)) || self.is_harmed_at(*pba, |_| true)
            }
            _ => false,
        }
    }

    /// Returns true if a look at the disk may find this.
    pub(crate) fn excuses_fault(&self, fault: &Fault) -> bool {
        self.take_damage();
        let at = |structure| fault.pba.is_some_and(|pba| self.excuses_damage(structure, pba));
        // The checkpoint behind a lost root wrote over what the root before names.
        let goes_back = fault.shard.is_some_and(|shard| self.goes_back(usize::from(shard)));
        match &fault.problem {
            Problem::Superblock(_) => at(Structure::Superblock),
            Problem::Root { .. } => self.leniency().roots || at(Structure::Root),
            Problem::NewestRoot => self.any_goes_back(),
            Problem::Bitmap { .. } => goes_back || at(Structure::Bitmap),
            Problem::Extents => goes_back || at(Structure::Table),
            Problem::Lost(Loss::Journal { .. }) => {
                goes_back || self.is_any_part(|part| matches!(part, Part::Record(_)))
            }
            Problem::Lost(loss) => goes_back || self.is_harmed_at(loss.pba(), |_| true),
            Problem::Unopened(error) => self.excuses_open(error),
            // It goes on without a node of the volume table, and so without what the volumes in it name.
            Problem::Check(Finding::Unaccounted { .. })
                if self.is_any_part(|p| *p == Part::Table) =>
            {
                true
            }
            Problem::Check(finding) => self.excuses_finding(finding),
        }
    }

    /// The next start finds `disk`: it undoes what was answered since a damaged record was made, unless the newest root of the
    /// shard is from behind that record.
    pub(crate) fn undo_lost_records(&self, disk: &SimDevice) {
        self.take_damage();
        let parts: BTreeSet<Part> =
            self.shared.harm.borrow().parts.values().flatten().copied().collect();
        for part in parts {
            let Part::Record(id) = part else { continue };
            let since = self.shared.written.borrow().since(id);
            let (Some((since, compared)), false) = (since, is_covered(disk, id)) else { continue };
            for volume in self.volumes().iter().filter(|v| v.shard == usize::from(id.0)) {
                volume.undo_since(since, compared);
            }
        }
    }
}

/// Returns true if the newest root of the shard is from after the record.
fn is_covered(disk: &SimDevice, (shard, incarnation, sequence): RecordId) -> bool {
    let superblock = superblock();
    let places = [0, 1].into_iter().flat_map(|slot| superblock.root_places(shard, slot));
    let roots = places.filter_map(|pba| Root::decode(&disk.peek(pba)).ok());
    let newest = roots.filter(|root| root.shard == shard).max_by_key(|root| root.generation);
    newest.is_some_and(|root| (root.incarnation, root.replay.sequence) > (incarnation, sequence))
}
