//! Looking at what lies on a target: whether it is what was written, and whether there is anything.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use io_traits::Spawn;
use local_sync::oneshot;
use units::{Lba, LbaRange};

use crate::journal::{Expected, Journal};
use crate::target::Target;

/// Blocks that one read of a check covers.
const CHECK_BLOCKS: u64 = 32;
/// Places that are looked at to tell whether a large target holds data.
const SAMPLES: u64 = 256;
/// A range of at most so many blocks is looked at wholly by [`holds_data`].
pub const WHOLE_BLOCKS_MAX: u64 = SAMPLES * CHECK_BLOCKS;

/// Is told how many blocks have been passed, of how many.
pub type Watcher = Box<dyn FnMut(u64, u64)>;

/// Result of a check of the whole range.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Verified {
    /// Blocks read and compared.
    pub blocks: u64,
    /// Blocks among these that do not have the expected content.
    pub wrong: u64,
}

/// Why a check did not come to its end. It then says nothing about the blocks.
#[derive(Debug, thiserror::Error)]
pub enum VerifyError<E: std::error::Error + 'static> {
    /// A read failed.
    #[error(transparent)]
    Read(E),
    /// A part of the check ended without a result.
    #[error("a part of the check was lost")]
    Lost,
}

/// Returns the number of blocks that are not as expected.
pub(crate) fn compare<T: Target>(
    journal: &mut Journal,
    range: LbaRange,
    expected: &[Expected],
    data: &T::Data,
) -> u64 {
    let mut wrong = 0;
    for (index, expected) in expected.iter().enumerate() {
        let lba = range.start.plus(index as u64);
        wrong += u64::from(!journal.check(lba, *expected, T::block(data, index)));
    }
    wrong
}

struct Check<T> {
    target: T,
    journal: Rc<RefCell<Journal>>,
    next: Cell<Lba>,
    watcher: RefCell<Option<Watcher>>,
}

/// Reads every block that the journal knows of and compares it. No load may run meanwhile.
///
/// # Errors
/// A read failed, the first of several.
pub async fn verify<T, W>(
    world: &W,
    target: &T,
    journal: &Rc<RefCell<Journal>>,
    depth: u32,
    watcher: Option<Watcher>,
) -> Result<Verified, VerifyError<T::Error>>
where
    T: Target,
    W: Spawn,
{
    let check = Rc::new(Check {
        target: target.clone(),
        journal: journal.clone(),
        next: Cell::new(journal.borrow().range().start),
        watcher: RefCell::new(watcher),
    });
    let mut ends = Vec::new();
    for _ in 0..depth {
        let (done, ended) = oneshot();
        ends.push(ended);
        let check = check.clone();
        world.spawn(async move { done.send(check.share().await) });
    }
    let mut all = Verified::default();
    for ended in ends {
        // A task that ended without a word has checked nothing that could be counted on.
        let share = ended.await.ok_or(VerifyError::Lost)?.map_err(VerifyError::Read)?;
        all.blocks += share.blocks;
        all.wrong += share.wrong;
    }
    Ok(all)
}

impl<T: Target> Check<T> {
    /// Takes one piece after another until none is left.
    async fn share(&self) -> Result<Verified, T::Error> {
        let all = self.journal.borrow().range();
        let mut share = Verified::default();
        while self.next.get() < all.end() {
            let start = self.next.get();
            let range = LbaRange::new(start, CHECK_BLOCKS.min(all.end().0 - start.0));
            self.next.set(range.end());
            if !self.journal.borrow().touched(range) {
                continue;
            }
            let expected = self.journal.borrow().begin_read(range);
            let data = self.target.read(range).await?;
            let journal = &mut self.journal.borrow_mut();
            share.wrong += compare::<T>(journal, range, &expected, &data);
            share.blocks += range.blocks;
            if let Some(watch) = &mut *self.watcher.borrow_mut() {
                watch(range.end().0 - all.start.0, all.blocks);
            }
        }
        Ok(share)
    }
}

/// Looks for anything but zeroes in `range`: everywhere up to [`WHOLE_BLOCKS_MAX`] blocks, else in
/// samples. Returns the first block found.
///
/// # Errors
/// A read failed.
pub async fn holds_data<T: Target>(target: &T, range: LbaRange) -> Result<Option<Lba>, T::Error> {
    let step = (range.blocks / SAMPLES).max(CHECK_BLOCKS);
    let mut start = range.start;
    while start < range.end() {
        let piece = LbaRange::new(start, CHECK_BLOCKS.min(range.end().0 - start.0));
        let data = target.read(piece).await?;
        for index in 0..piece.blocks {
            let block = T::block(&data, index as usize);
            if block.iter().any(|byte| *byte != 0) {
                return Ok(Some(piece.start.plus(index)));
            }
        }
        start = start.plus(step);
    }
    Ok(None)
}
