//! Acknowledged requests, and requests under way: the states that each volume may have after a cut.
//!
//! - CUT-MODEL-1: what was acknowledged is there.
//! - CUT-MODEL-2: of what was under way each change is there as a whole, or not at all.
//! - CUT-MODEL-3: what was seen after a start stays: from then on it counts as acknowledged.

use std::collections::BTreeMap;
use std::fmt;

use farflash_client::{Restrictions, Slo, VolumeRecord};

use crate::contents::{Place, Stamp, ZEROES};

/// A failure that was found.
#[derive(Clone, Debug)]
pub(crate) struct Finding(pub(crate) String);

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A change of blocks that is under way.
#[derive(Clone, Debug)]
pub(crate) struct Write {
    pub(crate) first: u64,
    /// The content that each block has to have.
    pub(crate) stamps: Vec<Stamp>,
    /// Blocks that change together: all of them, or parts of so many.
    pub(crate) together: usize,
}

/// The API's record of a volume.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Attributes {
    pub(crate) blocks: u64,
    pub(crate) slo: Slo,
    pub(crate) restrictions: Restrictions,
}

impl Attributes {
    pub(crate) fn of(record: &VolumeRecord) -> Self {
        Self {
            blocks: record.size_bytes / crate::contents::BLOCK as u64,
            slo: record.slo,
            restrictions: record.restrictions.clone(),
        }
    }
}

/// A change of a volume, other than of its blocks.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Change {
    Create,
    Delete,
    Set(Attributes),
    /// New tokens, with or without grace for those before.
    Rotate {
        grace: bool,
    },
}

/// A volume: as acknowledged, and what is under way.
#[derive(Clone, Debug)]
pub(crate) struct Volume {
    pub(crate) number: u64,
    pub(crate) name: String,
    pub(crate) metadata: u32,
    pub(crate) attributes: Attributes,
    pub(crate) change: Option<Change>,
    /// Its address, as reported last.
    pub(crate) target: String,
    /// The token that opens it; unknown if the answer that had it was lost.
    pub(crate) token: Option<String>,
    /// The token that opened it before, and whether that one is still valid.
    pub(crate) replaced: Option<(String, bool)>,
    blocks: BTreeMap<u64, Stamp>,
    writes: BTreeMap<Stamp, Write>,
}

impl Volume {
    pub(crate) fn new(number: u64, metadata: u32, attributes: Attributes) -> Self {
        Self {
            number,
            name: format!("volume-{number}"),
            metadata,
            attributes,
            change: Some(Change::Create),
            target: String::new(),
            token: None,
            replaced: None,
            blocks: BTreeMap::new(),
            writes: BTreeMap::new(),
        }
    }

    pub(crate) fn place(&self, lba: u64) -> Place {
        Place { volume: self.number, lba }
    }

    /// Returns the content of a block, if nothing is under way there.
    pub(crate) fn at(&self, lba: u64) -> Stamp {
        self.blocks.get(&lba).copied().unwrap_or(ZEROES)
    }

    pub(crate) fn begin(&mut self, id: Stamp, write: Write) {
        self.writes.insert(id, write);
    }

    /// The change of blocks was acknowledged, or, if `took_effect` is false, refused.
    pub(crate) fn end(&mut self, id: Stamp, took_effect: bool) {
        let write = self.writes.remove(&id).expect("it was begun");
        if took_effect {
            self.set(write.first, &write.stamps);
        }
    }

    fn set(&mut self, first: u64, stamps: &[Stamp]) {
        for (lba, stamp) in (first..).zip(stamps) {
            match *stamp {
                ZEROES => self.blocks.remove(&lba),
                stamp => self.blocks.insert(lba, stamp),
            };
        }
    }

    /// The size, promise or restrictions are these. What is behind the end is gone.
    pub(crate) fn take(&mut self, attributes: Attributes) {
        self.blocks.split_off(&attributes.blocks);
        self.attributes = attributes;
        self.change = None;
    }

    /// Compares the record of the volume, and takes what it says (CUT-MODEL-1 to CUT-MODEL-3).
    pub(crate) fn settle_record(&mut self, record: &VolumeRecord) -> Result<(), Finding> {
        let found = Attributes::of(record);
        let under_way = match &self.change {
            Some(Change::Set(attributes)) => Some(attributes),
            _ => None,
        };
        if found != self.attributes && Some(&found) != under_way {
            return Err(Finding(format!(
                "{} is {found:?}; acknowledged was {:?}, under way {:?}",
                self.name, self.attributes, self.change
            )));
        }
        if record.metadata_bytes != self.metadata {
            return Err(Finding(format!("{} has other metadata: {record:?}", self.name)));
        }
        if under_way.is_some() {
            self.take(found);
        }
        Ok(())
    }

    /// Compares all blocks, and takes what they hold (CUT-MODEL-1 to CUT-MODEL-3).
    pub(crate) fn settle_blocks(&mut self, found: &[Stamp]) -> Result<(), Finding> {
        let writes = std::mem::take(&mut self.writes);
        let mut wrong = Vec::new();
        for write in writes.values() {
            let mut first = write.first;
            for stamps in write.stamps.chunks(write.together.max(1)) {
                let range = first as usize..first as usize + stamps.len();
                first += stamps.len() as u64;
                let is_new = found[range.clone()] == *stamps;
                let is_old = range.clone().all(|lba| found[lba] == self.at(lba as u64));
                if is_new {
                    self.set(range.start as u64, stamps);
                } else if !is_old {
                    wrong.push(self.torn(range, stamps, found));
                }
            }
        }
        let differs = |(lba, stamp): &(usize, &Stamp)| self.at(*lba as u64) != **stamp;
        let different: Vec<_> = found.iter().enumerate().filter(differs).collect();
        for &(lba, stamp) in different.iter().take(8) {
            let acknowledged = self.at(lba as u64);
            wrong.push(format!("block {lba} is of write {stamp}, acknowledged was {acknowledged}"));
        }
        if wrong.is_empty() {
            return Ok(());
        }
        let count = different.len();
        Err(Finding(format!("{}: {count} blocks are wrong: {}", self.name, wrong.join("; "))))
    }

    fn torn(&self, range: std::ops::Range<usize>, stamps: &[Stamp], found: &[Stamp]) -> String {
        let before: Vec<Stamp> = range.clone().map(|lba| self.at(lba as u64)).collect();
        format!(
            "blocks {range:?} hold {:?}; acknowledged was {before:?}, under way {stamps:?}",
            &found[range.clone()]
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn volume() -> Volume {
        let attributes =
            Attributes { blocks: 8, slo: Slo::default(), restrictions: Restrictions::default() };
        let mut volume = Volume::new(1, 0, attributes);
        volume.begin(5, Write { first: 2, stamps: vec![5; 3], together: 3 });
        volume.end(5, true);
        volume
    }

    fn under_way(together: usize) -> Volume {
        let mut volume = volume();
        volume.begin(6, Write { first: 3, stamps: vec![6; 4], together });
        volume
    }

    #[test]
    fn what_was_acknowledged_is_demanded() {
        assert!(volume().settle_blocks(&[0, 0, 5, 5, 5, 0, 0, 0]).is_ok());
        for wrong in [[0; 8], [0, 0, 5, 5, 0, 0, 0, 0], [0, 0, 5, 5, 5, 5, 0, 0]] {
            assert!(volume().settle_blocks(&wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn what_was_under_way_is_there_as_a_whole_or_not_and_stays_so() {
        let (old, new) = ([0, 0, 5, 5, 5, 0, 0, 0], [0, 0, 5, 6, 6, 6, 6, 0]);
        for found in [old, new] {
            let mut volume = under_way(4);
            assert!(volume.settle_blocks(&found).is_ok(), "{found:?}");
            assert!(volume.settle_blocks(&found).is_ok());
            assert_eq!(volume.settle_blocks(&old).is_ok(), found == old);
        }
        let mixed = [0, 0, 5, 6, 6, 0, 0, 0];
        assert!(under_way(4).settle_blocks(&mixed).is_err());
        assert!(under_way(2).settle_blocks(&mixed).is_ok());
        assert!(under_way(2).settle_blocks(&[0, 0, 5, 6, 5, 0, 0, 0]).is_err());
    }
}
