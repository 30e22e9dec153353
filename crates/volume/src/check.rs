//! Does everything fit together? Each block in use has one owner, and each owned block is in use.

use std::collections::BTreeMap;

use io_traits::Device;
use units::{Lba, LbaRange, Pba};

use crate::shard::{Inner, Shard};
use crate::{VolumeError, WRITE_BLOCKS_MAX};

/// Who names a block.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Owner {
    /// A tenant's block.
    Data {
        /// Volume number.
        volume: u32,
        /// Which block of it.
        lba: u64,
    },
    /// A node of a volume's map.
    Node {
        /// Volume number.
        volume: u32,
    },
    /// A volume's descriptor.
    Descriptor {
        /// Volume number.
        volume: u32,
    },
    /// A node of the extent table or the volume table.
    Table,
    /// The journal.
    Journal,
    /// A bitmap slot.
    Bitmap,
}

/// Something that does not fit.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Finding {
    /// Two owners name the same block.
    Shared {
        /// Which block.
        pba: Pba,
        /// The one.
        first: Owner,
        /// The other.
        second: Owner,
    },
    /// A block is named and its bitmap says that it is free.
    NotInUse {
        /// Which block.
        pba: Pba,
        /// Who names it.
        owner: Owner,
    },
    /// A bitmap says that a block is in use, and nobody names it.
    Leaked {
        /// Which block.
        pba: Pba,
    },
    /// A count that is kept differs from what is there.
    Count {
        /// Which count.
        what: &'static str,
        /// What is kept.
        kept: u64,
        /// What is there.
        found: u64,
    },
    /// A block does not match its checksum, or cannot be read.
    Unreadable(VolumeError),
}

/// What a check found.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct CheckReport {
    /// Blocks of tenants.
    pub data: u64,
    /// All other blocks in use.
    pub metadata: u64,
    /// All that does not fit.
    pub findings: Vec<Finding>,
}

impl<D: Device> Shard<D> {
    /// Checks every invariant of the shard's space; with `read_data`, reads every block as well. No
    /// change may be under way, and no checkpoint: it then reports what is in between as wrong.
    pub async fn check(&self, read_data: bool) -> CheckReport {
        let inner = &self.inner;
        let mut report = CheckReport::default();
        for state in inner.states() {
            if let Err(error) = inner.preload(&state, LbaRange::new(Lba(0), u64::MAX)).await {
                report.findings.push(Finding::Unreadable(error));
            }
        }
        if read_data {
            for volume in self.volumes() {
                self.check_data(&volume, &mut report).await;
            }
        }
        let mut owners: BTreeMap<Pba, Owner> = BTreeMap::new();
        let mut mapped = 0;
        inner.for_each_owner(|pba, owner| {
            mapped += u64::from(matches!(owner, Owner::Data { .. }));
            if let Some(first) = owners.insert(pba, owner) {
                report.findings.push(Finding::Shared { pba, first, second: owner });
            }
        });
        report.data = mapped;
        report.metadata = owners.len() as u64 - mapped.min(owners.len() as u64);
        inner.for_each_committed(|pba| {
            if owners.remove(&pba).is_none() {
                report.findings.push(Finding::Leaked { pba });
            }
        });
        let named = owners.into_iter();
        report.findings.extend(named.map(|(pba, owner)| Finding::NotInUse { pba, owner }));
        for (what, kept, found) in inner.counts() {
            if kept != found {
                report.findings.push(Finding::Count { what, kept, found });
            }
        }
        report
    }

    async fn check_data(&self, volume: &crate::Volume<D>, report: &mut CheckReport) {
        let (mut at, end) = (0, volume.blocks());
        loop {
            let next = volume.state().map.borrow().first_key(at, end);
            let Ok(Some(first)) = next else { return };
            let blocks = WRITE_BLOCKS_MAX.min(end - first);
            if let Err(error) = volume.verify(LbaRange::new(Lba(first), blocks)).await {
                report.findings.push(Finding::Unreadable(error));
            }
            at = first + blocks;
        }
    }
}

impl<D: Device> Inner<D> {
    /// Calls `visit` for each block that something names.
    fn for_each_owner(&self, mut visit: impl FnMut(Pba, Owner)) {
        for state in self.states() {
            let volume = state.number;
            let map = state.map.borrow();
            // What could not be loaded was reported.
            let _ = map.for_each(0, u64::MAX, |lba, mapping| {
                visit(mapping.pba, Owner::Data { volume, lba });
            });
            map.for_each_place(|pba| visit(pba, Owner::Node { volume }));
            if let Some(pba) = state.descriptor.get() {
                visit(pba, Owner::Descriptor { volume });
            }
        }
        self.for_each_table_place(|pba| visit(pba, Owner::Table));
        let journal = self.journal_area();
        (0..journal.blocks).for_each(|b| visit(journal.start.plus(b), Owner::Journal));
        self.for_each_bitmap_slot(|pba| visit(pba, Owner::Bitmap));
    }
}
