//! Changes under way: from the moment they are queued for the journal until they took effect.

use std::rc::Rc;
use std::task::Waker;

use io_traits::DeviceError;
use layout::{Entry, write_entry_len};
use smallvec::SmallVec;
use units::{Lba, LbaRange, Slo};

use crate::VolumeError;
use crate::holds::Holds;
use crate::sabotage::{Sabotage, broken};
use crate::state::VolumeState;
use space::Runs;

/// Place of an operation in the shard's table.
pub(crate) type OpId = usize;

/// CRC-32C of the blocks of a write.
pub type Crcs = SmallVec<[u32; 4]>;

/// The change that an operation makes.
#[derive(Debug)]
pub(crate) enum Change {
    Write {
        lba: Lba,
        runs: Runs,
        crcs: Crcs,
        /// The metadata of each block, one after the other.
        metadata: Box<[u8]>,
    },
    Unmap {
        range: LbaRange,
    },
    /// Several small ranges.
    UnmapAll {
        ranges: Vec<LbaRange>,
    },
    Reserve {
        extent: u32,
    },
    Create,
    Resize {
        blocks: u64,
    },
    SetSlo {
        slo: Slo,
    },
    SetAccess {
        access: Rc<[u8]>,
    },
    Delete,
    /// Undoes a write whose data failed after its entry was on its way.
    Restore {
        failed: OpId,
        record: u64,
        entries: Vec<Entry<'static>>,
    },
}

/// One operation.
pub(crate) struct Op {
    pub(crate) change: Change,
    /// Every change but [`Change::Reserve`] and [`Change::Restore`] has one.
    pub(crate) volume: Option<Rc<VolumeState>>,
    pub(crate) holds: Holds,
    pub(crate) data_pending: bool,
    pub(crate) data_error: Option<DeviceError>,
    /// The record that carries it.
    pub(crate) record: Option<u64>,
    pub(crate) outcome: Option<Result<(), VolumeError>>,
    pub(crate) waker: Option<Waker>,
    /// No task waits for the outcome.
    pub(crate) detached: bool,
    /// A write whose outcome is told.
    pub(crate) told: Option<Told>,
}

/// Takes the outcome of a write. It is called in the midst of the engine's work, and asks nothing of the engine itself.
pub type Tell = Box<dyn FnOnce(Result<(), VolumeError>)>;

/// A write that no task waits for.
pub(crate) struct Told {
    pub(crate) blocks: u64,
    pub(crate) tell: Tell,
}

impl Op {
    /// An operation, not queued yet.
    pub(crate) fn new(change: Change, volume: Option<Rc<VolumeState>>, holds: Holds) -> Self {
        Self {
            change,
            volume,
            holds,
            data_pending: false,
            data_error: None,
            record: None,
            outcome: None,
            waker: None,
            detached: false,
            told: None,
        }
    }

    /// Bytes that it takes in a record.
    pub(crate) fn len_bytes(&self) -> usize {
        match &self.change {
            Change::Write { runs, crcs, metadata, .. } => {
                write_entry_len(runs.len(), crcs.len(), metadata.len())
            }
            Change::Restore { entries, .. } => entries.iter().map(Entry::len_bytes).sum(),
            Change::UnmapAll { .. } => self.unmaps().map(|entry| entry.len_bytes()).sum(),
            _ => self.entry().len_bytes(),
        }
    }

    /// Writes its entries to the start of `bytes`. Returns their number and length.
    pub(crate) fn encode(&self, bytes: &mut [u8]) -> (u32, usize) {
        if let Change::Restore { entries, .. } = &self.change {
            let mut at = 0;
            for entry in entries {
                at += entry.encode(&mut bytes[at..]);
            }
            return (u32::try_from(entries.len()).expect("bounded by one write"), at);
        }
        if let Change::UnmapAll { .. } = &self.change {
            let (mut at, mut count) = (0, 0);
            for entry in self.unmaps() {
                at += entry.encode(&mut bytes[at..]);
                count += 1;
            }
            return (count, at);
        }
        (1, self.entry().encode(bytes))
    }

    /// The entries of [`Change::UnmapAll`].
    fn unmaps(&self) -> impl Iterator<Item = Entry<'static>> {
        let volume = self.volume.as_ref().map_or(0, |state| state.number);
        let ranges = match &self.change {
            Change::UnmapAll { ranges } => ranges.as_slice(),
            _ => &[],
        };
        let named = if broken(Sabotage::RecordFirstRange) { 1 } else { usize::MAX };
        let ranges = ranges.iter().take(named);
        ranges.map(move |range| Entry::Unmap { volume, range: *range })
    }

    fn entry(&self) -> Entry<'_> {
        let state = || self.volume.as_deref().expect("the change is one of a volume");
        match &self.change {
            Change::Write { lba, runs, crcs, metadata } => Entry::Write {
                volume: state().number,
                lba: *lba,
                trusted: false,
                runs: runs.as_slice().into(),
                crcs: crcs.as_slice().into(),
                metadata: metadata.as_ref().into(),
            },
            Change::Unmap { range } => Entry::Unmap { volume: state().number, range: *range },
            Change::Reserve { extent } => Entry::Reserve { extent: *extent },
            Change::Create => Entry::Create {
                volume: state().number,
                uuid: state().uuid,
                blocks: state().blocks.get(),
                slo: state().slo.get(),
                name: state().name.as_str().into(),
                access: state().access().to_vec().into(),
            },
            Change::Resize { blocks } => Entry::Resize { volume: state().number, blocks: *blocks },
            Change::SetSlo { slo } => Entry::SetSlo { volume: state().number, slo: *slo },
            Change::SetAccess { access } => {
                Entry::SetAccess { volume: state().number, access: access.as_ref().into() }
            }
            Change::Delete => Entry::Delete { volume: state().number },
            Change::Restore { .. } | Change::UnmapAll { .. } => {
                unreachable!("has a list of entries")
            }
        }
    }
}
