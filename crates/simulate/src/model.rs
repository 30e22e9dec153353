//! What must be true of a volume: its history, its size, and whether it exists.

use std::cell::{Cell, RefCell};

use units::{LbaRange, MetadataSize};
use uuid::Uuid;

use crate::content::Tag;
use crate::history::{Fate, History, Moment};

/// A change of a volume's size.
#[derive(Clone, Copy, Debug)]
struct Resize {
    tag: Tag,
    blocks: u64,
    invoked: Moment,
    ended: Option<Moment>,
    fate: Fate,
    /// A start may have undone it.
    shaken: bool,
}

/// A volume, as far as anyone who asked for it can know.
#[derive(Debug)]
pub(crate) struct VolumeModel {
    /// Number; block contents name it.
    pub id: u64,
    /// The shard it is in.
    pub shard: usize,
    /// What its blocks have beside their data.
    pub metadata: MetadataSize,
    /// What came of its creation.
    pub created: Cell<Fate>,
    /// What came of its deletion, if that was asked for.
    pub deleted: Cell<Option<Fate>>,
    /// When these were answered.
    pub created_at: Cell<Moment>,
    pub deleted_at: Cell<Moment>,
    /// What happened to its blocks.
    pub history: RefCell<History>,
    sizes: RefCell<Vec<Resize>>,
}

impl VolumeModel {
    /// A volume of `blocks` blocks that is about to be created.
    #[must_use]
    pub(crate) fn new(
        id: u64,
        shard: usize,
        (blocks, metadata): (u64, MetadataSize),
        now: Moment,
    ) -> Self {
        let size = Resize {
            tag: 0,
            blocks,
            invoked: now,
            ended: Some(now),
            fate: Fate::Done,
            shaken: false,
        };
        Self {
            id,
            shard,
            metadata,
            created: Cell::new(Fate::Open),
            deleted: Cell::new(None),
            created_at: Cell::new(now),
            deleted_at: Cell::new(now),
            history: RefCell::default(),
            sizes: RefCell::new(vec![size]),
        }
    }

    /// Identity.
    #[must_use]
    pub(crate) fn uuid(&self) -> Uuid {
        Uuid::from_u128(0xF1A5_0000_0000_0000_0000_0000_0000_0000 | u128::from(self.id))
    }

    /// Whether requests may go to it.
    #[must_use]
    pub(crate) fn is_usable(&self) -> bool {
        self.created.get() == Fate::Done && self.deleted.get().is_none()
    }

    /// Whether its being there, or not, is as it must be; `None` if either will do.
    #[must_use]
    pub(crate) fn must_exist(&self) -> Option<bool> {
        match (self.created.get(), self.deleted.get()) {
            (Fate::Refused, _) | (_, Some(Fate::Done)) => Some(false),
            (Fate::Done, None | Some(Fate::Refused)) => Some(true),
            _ => None,
        }
    }

    /// What was open about its existence is known.
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

    /// Notes that a resize is issued.
    pub(crate) fn begin_resize(&self, tag: Tag, blocks: u64, now: Moment) {
        let resize =
            Resize { tag, blocks, invoked: now, ended: None, fate: Fate::Open, shaken: false };
        self.sizes.borrow_mut().push(resize);
    }

    /// Notes what came of it.
    pub(crate) fn end_resize(&self, tag: Tag, fate: Fate, now: Moment) {
        let mut sizes = self.sizes.borrow_mut();
        let resize = sizes.iter_mut().find(|resize| resize.tag == tag).expect("it was begun");
        resize.fate = fate;
        resize.ended = (fate != Fate::Open).then_some(now);
    }

    /// The next start may undo what was answered since `moment`.
    pub(crate) fn undo_since(&self, moment: Moment) {
        self.history.borrow_mut().undo_since(moment);
        if self.created.get() == Fate::Done && self.created_at.get() >= moment {
            self.created.set(Fate::Open);
        }
        if self.deleted.get() == Some(Fate::Done) && self.deleted_at.get() >= moment {
            self.deleted.set(Some(Fate::Open));
        }
        for size in &mut *self.sizes.borrow_mut() {
            size.shaken |= size.ended.is_none_or(|ended| ended >= moment);
        }
    }

    /// The size was found to be `blocks` by someone whom nobody disturbed.
    pub(crate) fn set_size(&self, blocks: u64, now: Moment) {
        let ended = Some(now);
        let size = Resize { tag: 0, blocks, invoked: now, ended, fate: Fate::Done, shaken: false };
        *self.sizes.borrow_mut() = vec![size];
    }

    /// The sizes that it may have had between two moments.
    #[must_use]
    pub(crate) fn sizes(&self, from: Moment, to: Moment) -> Vec<u64> {
        let sizes = self.sizes.borrow();
        let possible = |size: &&Resize| {
            let replaced = sizes.iter().any(|other| {
                other.fate == Fate::Done
                    && !other.shaken
                    && other.ended.is_some_and(|ended| ended < from)
                    && size.ended.is_some_and(|ended| ended < other.invoked)
            });
            size.fate != Fate::Refused && size.invoked <= to && !replaced
        };
        sizes.iter().filter(possible).map(|size| size.blocks).collect()
    }

    /// A size for a request that is made up now.
    #[must_use]
    pub(crate) fn likely_size(&self) -> u64 {
        let sizes = self.sizes.borrow();
        let done = sizes.iter().rev().find(|size| size.fate == Fate::Done);
        done.map_or(0, |size| size.blocks)
    }
}

/// The range as text.
#[must_use]
pub(crate) fn text(range: LbaRange) -> String {
    format!("{}+{}", range.start.0, range.blocks)
}
