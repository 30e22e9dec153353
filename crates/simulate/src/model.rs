//! The model of a volume: its history, its size and its terms, and whether it exists.

use std::cell::{Cell, RefCell};

use access::Access;
use auth::Secret;
use units::{Lba, LbaRange, MetadataSize, SectorSize, Slo};
use uuid::Uuid;

use crate::history::{Fate, History, Moment};
use crate::register::Register;
use crate::reserved::Reserved;

/// A volume, as far as its clients can know.
#[derive(Debug)]
pub(crate) struct VolumeModel {
    /// Number; block contents name it.
    pub id: u64,
    /// The shard it is in.
    pub shard: usize,
    /// Metadata of each of its blocks.
    pub metadata: MetadataSize,
    /// Its logical blocks, which are what is counted here.
    pub sector: SectorSize,
    /// Outcome of its creation.
    pub created: Cell<Fate>,
    /// Outcome of its deletion, if that was asked for.
    pub deleted: Cell<Option<Fate>>,
    /// When these were answered.
    pub created_at: Cell<Moment>,
    pub deleted_at: Cell<Moment>,
    /// History of its blocks.
    pub history: RefCell<History>,
    /// Its size in logical blocks.
    pub sizes: RefCell<Register<u64>>,
    /// Its service level.
    pub slo: RefCell<Register<Slo>>,
    /// Its access.
    pub access: RefCell<Register<Access>>,
    /// Its reservations.
    pub reserved: RefCell<Register<Reserved>>,
    /// When commands that abort those of other hosts were under way, since the start of the server.
    pub aborts: RefCell<Vec<(Moment, Moment)>>,
    /// All secrets that were ever to open it, and the secrets by which the server proves itself beside them.
    pub secrets: RefCell<Vec<(Secret, Secret)>>,
    /// Hosts of the volume may have been cut since the start of the server.
    pub is_cut: Cell<bool>,
}

impl VolumeModel {
    /// A volume of `blocks` blocks of 4096 bytes that is about to be created.
    #[must_use]
    pub(crate) fn new(
        id: u64,
        shard: usize,
        (blocks, metadata, sector): (u64, MetadataSize, SectorSize),
        now: Moment,
    ) -> Self {
        Self {
            id,
            shard,
            metadata,
            sector,
            created: Cell::new(Fate::Open),
            deleted: Cell::new(None),
            created_at: Cell::new(now),
            deleted_at: Cell::new(now),
            history: RefCell::default(),
            sizes: RefCell::new(Register::new(blocks * sector.per_block(), now)),
            slo: RefCell::new(Register::new(Slo::default(), now)),
            access: RefCell::new(Register::new(Access::default(), now)),
            reserved: RefCell::new(Register::new(Reserved::default(), now)),
            aborts: RefCell::default(),
            secrets: RefCell::default(),
            is_cut: Cell::new(false),
        }
    }

    /// Identity.
    #[must_use]
    pub(crate) fn uuid(&self) -> Uuid {
        Uuid::from_u128(0xF1A5_0000_0000_0000_0000_0000_0000_0000 | u128::from(self.id))
    }

    /// The logical blocks of all blocks that the range lies in: the disk loses blocks of 4096 bytes.
    #[must_use]
    pub(crate) fn around(&self, range: LbaRange) -> LbaRange {
        let (blocks, per_block) = (self.sector.blocks_around(range), self.sector.per_block());
        LbaRange::new(Lba(blocks.start.0 * per_block), blocks.blocks * per_block)
    }

    /// Returns true if requests may go to it.
    #[must_use]
    pub(crate) fn is_usable(&self) -> bool {
        self.created.get() == Fate::Done && self.deleted.get().is_none()
    }

    /// Returns whether it must exist, or must not; `None` if either will do.
    #[must_use]
    pub(crate) fn must_exist(&self) -> Option<bool> {
        match (self.created.get(), self.deleted.get()) {
            (Fate::Refused, _) | (_, Some(Fate::Done)) => Some(false),
            (Fate::Done, None | Some(Fate::Refused)) => Some(true),
            _ => None,
        }
    }

    /// Records whether it exists, if that was open.
    pub(crate) fn found(&self, exists: bool) {
        if exists {
            self.created.set(Fate::Done);
            self.deleted.set(None);
        } else if self.created.get() == Fate::Done {
            self.deleted.set(Some(Fate::Done));
        } else {
            self.created.set(Fate::Refused);
        }
    }

    /// The next start may undo what was answered since `moment`, and compares the data of what was since `compared`.
    pub(crate) fn undo_since(&self, moment: Moment, compared: Moment) {
        self.history.borrow_mut().undo_since(moment, compared);
        if self.created.get() == Fate::Done && self.created_at.get() >= moment {
            self.created.set(Fate::Open);
        }
        if self.deleted.get() == Some(Fate::Done) && self.deleted_at.get() >= moment {
            self.deleted.set(Some(Fate::Open));
        }
        self.sizes.borrow_mut().undo_since(moment);
        self.slo.borrow_mut().undo_since(moment);
        self.access.borrow_mut().undo_since(moment);
    }

    /// Its name.
    #[must_use]
    pub(crate) fn name(&self) -> String {
        format!("v{}", self.id)
    }

    /// A size for a request that is made up now.
    #[must_use]
    pub(crate) fn likely_size(&self) -> u64 {
        *self.sizes.borrow().latest()
    }

    /// The sizes that it may have had between two moments.
    #[must_use]
    pub(crate) fn sizes(&self, from: Moment, to: Moment) -> Vec<u64> {
        self.sizes.borrow().possible(from, to).copied().collect()
    }

    /// Returns when a write that was answered at `ended` took effect at the latest: a host that is excluded has nothing under way
    /// when that is answered.
    #[must_use]
    pub(crate) fn effective_by(&self, host: usize, (invoked, ended): (Moment, Moment)) -> Moment {
        let reserved = self.reserved.borrow();
        let excludes = |from: Moment| {
            let mut states = reserved.possible(from, ended);
            states.all(|state| !state.admits(host, true))
        };
        let answered = reserved.answered().filter(|at| (invoked..ended).contains(at));
        let since = answered.filter(|at| excludes(at + 1)).min();
        since.unwrap_or(ended)
    }

    /// The server is gone: what was open about the volume took effect by now, or never does.
    pub(crate) fn close(&self, now: Moment) {
        self.history.borrow_mut().close(now);
        self.sizes.borrow_mut().close(now);
        self.slo.borrow_mut().close(now);
        self.access.borrow_mut().close(now);
        self.reserved.borrow_mut().close(now);
    }
}

/// The range as text.
#[must_use]
pub(crate) fn text(range: LbaRange) -> String {
    format!("{}+{}", range.start.0, range.blocks)
}
