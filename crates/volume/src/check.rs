//! Does everything fit together? Each block in use has one owner, and each owned block is in use.

use space::Owner;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::mem::{Discriminant, discriminant};

use io_traits::{Device, DeviceError};
use units::{Lba, LbaRange, Pba};

use crate::VolumeError;
use crate::shard::{Inner, ScrubStep, Shard, Structure};
use space::{Census, DOUBTS_MAX, Doubts};

/// Owners of one block that are named.
const OWNERS_MAX: usize = 8;
/// Blocks whose owners are looked at from one word of progress to the next.
const TOLD_EVERY: u64 = 1024;
/// Name of the count that a volume's descriptor keeps.
pub(crate) const MAPPED_BLOCKS: &str = "mapped blocks of a volume";

/// Something that does not fit.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Finding {
    /// Two owners name the same block.
    Shared {
        /// The block.
        pba: Pba,
        /// The one.
        first: Owner,
        /// The other.
        second: Owner,
    },
    /// A block is named and its bitmap says that it is free.
    NotInUse {
        /// The block.
        pba: Pba,
        /// Its owner.
        owner: Owner,
    },
    /// A block is named that lies in no extent of the shard.
    Outside {
        /// The block.
        pba: Pba,
        /// Its owner.
        owner: Owner,
    },
    /// A bitmap says that a block is in use, but it has no owner.
    Leaked {
        /// The block.
        pba: Pba,
    },
    /// Blocks in use that only unreadable maps can account for.
    Unaccounted {
        /// Their number.
        blocks: u64,
    },
    /// A count that is kept differs from what is there.
    Count {
        /// The count.
        what: &'static str,
        /// The stored value.
        kept: u64,
        /// The counted value.
        found: u64,
    },
    /// A block does not match its checksum, or cannot be read.
    Unreadable(VolumeError),
    /// So many more, of kinds of which there are many.
    LeftOut {
        /// Their number.
        findings: u64,
    },
}

/// The outcome of a check.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct CheckReport {
    /// Blocks of tenants.
    pub data: u64,
    /// All other blocks in use.
    pub metadata: u64,
    /// All that does not fit.
    pub findings: Vec<Finding>,
}

impl Finding {
    /// Returns the location of the finding, if it has a single one.
    #[must_use]
    pub fn pba(&self) -> Option<Pba> {
        match self {
            Self::Shared { pba, .. }
            | Self::NotInUse { pba, .. }
            | Self::Outside { pba, .. }
            | Self::Leaked { pba } => Some(*pba),
            Self::Unreadable(
                VolumeError::Corrupt { pba, .. } | VolumeError::CorruptMap { pba, .. },
            ) => Some(*pba),
            Self::Unreadable(VolumeError::Device(DeviceError::Io { range, .. })) => {
                Some(range.start)
            }
            Self::Unreadable(_)
            | Self::Count { .. }
            | Self::Unaccounted { .. }
            | Self::LeftOut { .. } => None,
        }
    }

    /// The block of a volume that is lost, or the first one.
    #[must_use]
    pub fn lba(&self) -> Option<Lba> {
        match self {
            Self::Unreadable(
                VolumeError::Corrupt { lba, .. } | VolumeError::CorruptMap { lba, .. },
            ) => Some(*lba),
            _ => None,
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shared { pba, first, second } => {
                write!(f, "{pba} belongs to two: {first} and {second}")
            }
            Self::NotInUse { pba, owner } => write!(f, "{pba} is free, but {owner} names it"),
            Self::Outside { pba, owner } => {
                write!(f, "{pba} is in no extent of the shard, but {owner} names it")
            }
            Self::Leaked { pba } => write!(f, "{pba} is in use, but has no owner"),
            Self::Unaccounted { blocks } => {
                write!(f, "{blocks} blocks are in use which only unreadable maps can name")
            }
            Self::Count { what, kept, found } => write!(f, "{what}: {kept} kept, {found} found"),
            Self::Unreadable(error) => error.fmt(f),
            Self::LeftOut { findings } => write!(f, "{findings} more like these"),
        }
    }
}

/// Findings, and the volume of each: [`DOUBTS_MAX`] of each kind, lest a large device with much damage take all memory.
#[derive(Default)]
struct Found {
    report: CheckReport,
    volumes: Vec<Option<u32>>,
    of_kind: HashMap<Discriminant<Finding>, usize>,
    left_out: u64,
}

impl Found {
    fn push(&mut self, volume: Option<u32>, finding: Finding) {
        let count = self.of_kind.entry(discriminant(&finding)).or_default();
        *count += 1;
        if *count > DOUBTS_MAX {
            self.left_out += 1;
            return;
        }
        self.report.findings.push(finding);
        self.volumes.push(volume);
    }

    fn finish(mut self) -> (CheckReport, Vec<Option<u32>>) {
        if self.left_out > 0 {
            self.report.findings.push(Finding::LeftOut { findings: self.left_out });
            self.volumes.push(None);
        }
        (self.report, self.volumes)
    }
}

impl<D: Device> Shard<D> {
    /// Checks every invariant of the shard's space; with `read_data`, reads every block as well. No
    /// change may be under way, and no checkpoint: it then reports what is in between as wrong.
    pub async fn check(&self, read_data: bool) -> CheckReport {
        self.check_by_volume(read_data, |_| ()).await.0
    }

    /// As [`Shard::check`], with the volume of each finding. `progress` is told blocks done.
    pub(crate) async fn check_by_volume(
        &self,
        read_data: bool,
        mut progress: impl FnMut(u64),
    ) -> (CheckReport, Vec<Option<u32>>) {
        let inner = &self.inner;
        let mut found = Found::default();
        let mut census = Census::new(inner.superblock);
        let (mut mapped, mut seen, mut counts) = (0, 0_u64, BTreeMap::new());
        let unread = inner.for_each_owner(|pba, owner| {
            seen += 1;
            // Else what takes long is to read the data.
            if !read_data && seen.is_multiple_of(TOLD_EVERY) {
                progress(seen);
            }
            if let Owner::Data { volume, .. } = owner {
                mapped += 1;
                *counts.entry(volume).or_insert(0) += 1;
            }
            census.add(pba);
        });
        let unread = unread.await;
        let unreadable = !unread.is_empty() || inner.hides_blocks();
        for Unread { volume, error } in unread {
            found.push(Some(volume), Finding::Unreadable(error));
        }
        if read_data {
            let mut done = 0;
            for volume in self.volumes() {
                self.check_data(&volume, &mut found, &mut |blocks| {
                    done += blocks;
                    progress(done);
                })
                .await;
            }
        }
        found.report.data = mapped;
        found.report.metadata = census.count().saturating_sub(mapped);
        let mut unaccounted = 0;
        inner.for_each_committed(|pba| match census.has(pba) {
            true => {}
            false if unreadable => unaccounted += 1,
            false => found.push(None, Finding::Leaked { pba }),
        });
        if unaccounted > 0 {
            found.push(None, Finding::Unaccounted { blocks: unaccounted });
        }
        inner.check_owners(census, &mut found).await;
        for (what, kept, counted) in inner.counts() {
            if kept != counted {
                found.push(None, Finding::Count { what, kept, found: counted });
            }
        }
        if !unreadable {
            inner.check_entries(&counts, &mut found);
        }
        found.finish()
    }

    /// Reads the blocks of a volume, leaf by leaf: no more of the map stays in memory.
    async fn check_data(
        &self,
        volume: &crate::Volume<D>,
        found: &mut Found,
        progress: &mut dyn FnMut(u64),
    ) {
        let state = volume.state();
        let mut next = Some(0);
        while let Some(at) = next {
            let mut step = ScrubStep::default();
            next = match self.inner.scrub_leaf(state, at, &mut step).await {
                Ok(next) => next,
                Err(error) => {
                    found.push(Some(state.number), Finding::Unreadable(error));
                    None
                }
            };
            // Nodes that cannot be read were reported.
            let data = step.damaged.iter().filter(|one| one.structure == Structure::Data);
            for lba in data.filter_map(|one| one.lba) {
                match volume.verify(LbaRange::new(lba, 1)).await {
                    Ok(()) | Err(VolumeError::CorruptMap { .. }) => {}
                    Err(error) => found.push(Some(state.number), Finding::Unreadable(error)),
                }
            }
            progress(step.blocks);
        }
    }
}

impl<D: Device> Inner<D> {
    /// Checks that each owned block has one owner, lies in the shard and is in use.
    async fn check_owners(&self, mut census: Census, found: &mut Found) {
        let (mut outside, mut free) = (std::mem::take(&mut census.nowhere), Doubts::default());
        for pba in census.blocks() {
            if !self.owns_block(pba) {
                outside.add(pba);
            } else if !self.is_in_use(pba) {
                free.add(pba);
            }
        }
        let twice = census.twice;
        let is_doubtful =
            |pba: &Pba| [&twice, &outside, &free].iter().any(|doubts| doubts.blocks.contains(pba));
        if twice.blocks.is_empty() && outside.blocks.is_empty() && free.blocks.is_empty() {
            return;
        }
        let mut owners: BTreeMap<Pba, Vec<Owner>> = BTreeMap::new();
        let again = self.for_each_owner(|pba, owner| {
            if is_doubtful(&pba) {
                let owners = owners.entry(pba).or_default();
                owners.extend(Some(owner).filter(|_| owners.len() < OWNERS_MAX));
            }
        });
        again.await;
        found.left_out += twice.left_out + outside.left_out + free.left_out;
        for (pba, owners) in owners {
            let (first, others) = owners.split_first().expect("each entry has an owner");
            for second in others {
                let finding = Finding::Shared { pba, first: *first, second: *second };
                found.push(second.volume(), finding);
            }
            let owner = *first;
            if outside.blocks.contains(&pba) {
                found.push(owner.volume(), Finding::Outside { pba, owner });
            } else if free.blocks.contains(&pba) {
                found.push(owner.volume(), Finding::NotInUse { pba, owner });
            }
        }
    }

    /// Checks that each volume has as many entries as its descriptor says.
    fn check_entries(&self, counts: &BTreeMap<u32, u64>, found: &mut Found) {
        for state in self.states() {
            let kept = state.map.borrow().entries();
            let entries = counts.get(&state.number).copied().unwrap_or(0);
            if entries != kept {
                let what = MAPPED_BLOCKS;
                found.push(Some(state.number), Finding::Count { what, kept, found: entries });
            }
        }
    }

    /// Calls `visit` for each block that something names. Returns which nodes cannot be read, and why.
    pub(crate) async fn for_each_owner(&self, mut visit: impl FnMut(Pba, Owner)) -> Vec<Unread> {
        let mut unread = Vec::new();
        for state in self.states() {
            let volume = state.number;
            let failed = self.walk(&state, |pba, lba| {
                visit(pba, lba.map_or(Owner::Node { volume }, |lba| Owner::Data { volume, lba }));
            });
            let failed = failed.await.into_iter();
            unread.extend(failed.map(|(_, error)| Unread { volume, error }));
            if let Some(pba) = state.descriptor.get() {
                visit(pba, Owner::Descriptor { volume });
            }
        }
        self.for_each_table_place(|pba| visit(pba, Owner::Table));
        let journal = self.journal_area();
        (0..journal.blocks).for_each(|b| visit(journal.start.plus(b), Owner::Journal));
        self.for_each_bitmap_slot(|pba| visit(pba, Owner::Bitmap));
        unread
    }
}

/// A node that cannot be read.
pub(crate) struct Unread {
    pub(crate) volume: u32,
    pub(crate) error: VolumeError,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// However much is wrong, a report has a bounded number of findings of each kind, and says how many it left out.
    #[test]
    fn findings_of_each_kind_are_bounded() {
        let mut found = Found::default();
        for block in 0..DOUBTS_MAX as u64 + 3 {
            found.push(None, Finding::Leaked { pba: Pba(block) });
        }
        found.push(Some(1), Finding::Unaccounted { blocks: 1 });
        let (report, volumes) = found.finish();
        assert_eq!((report.findings.len(), volumes.len()), (DOUBTS_MAX + 2, DOUBTS_MAX + 2));
        assert_eq!(report.findings[DOUBTS_MAX], Finding::Unaccounted { blocks: 1 });
        assert_eq!(report.findings[DOUBTS_MAX + 1], Finding::LeftOut { findings: 3 });
    }
}
