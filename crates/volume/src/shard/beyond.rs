//! Counts the blocks behind the new end of a volume, so that the caller that shrinks it learns how
//! much is lost.

use io_traits::Device;
use local_sync::yield_now;
use units::{Lba, LbaRange};

use super::Inner;
use crate::state::VolumeState;
use block_map::{LeafBody, Missing};

/// The most leaves looked at: those of 5 GiB written in order. More would delay the caller for a
/// number that need not be exact.
const LEAVES_MAX: u32 = 4096;

/// Written blocks behind the new end of a volume that was shrunk; they are gone.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct CutOff {
    /// Blocks that held data.
    pub blocks: u64,
    /// True if these are all. There may be more where the map is very large, or a part of it cannot
    /// be read.
    pub is_all: bool,
}

impl<D: Device> Inner<D> {
    /// Counts the blocks from `end` on that hold data. The caller has locked them.
    pub(crate) async fn count_beyond(&self, state: &VolumeState, end: Lba) -> CutOff {
        let (mut at, mut blocks) = (end.0, 0);
        for _ in 0..LEAVES_MAX {
            let Some((keys, next)) = self.leaf_keys(state, at).await else {
                return CutOff { blocks, is_all: false };
            };
            blocks +=
                keys.into_iter().filter(|key| !state.is_unmap_pending(Lba(*key))).count() as u64;
            if next == u64::MAX {
                return CutOff { blocks, is_all: true };
            }
            at = next;
            // Other requests of the core go on.
            yield_now().await;
        }
        CutOff { blocks, is_all: false }
    }

    /// The keys from `at` on of the leaf that has these, and where those of the next leaf begin; `None` if it cannot be read.
    async fn leaf_keys(&self, state: &VolumeState, at: u64) -> Option<(Vec<u64>, u64)> {
        let mut visit = self.visit(state, LbaRange::new(Lba(at), 1));
        loop {
            let site = state.map.borrow().leaf_at(at);
            let missing = match site {
                Err(missing) => missing,
                Ok(site) => match site.leaf {
                    LeafBody::Absent => return Some((Vec::new(), site.end)),
                    LeafBody::InMemory(entries) => {
                        let keys = entries.into_iter().map(|(key, _)| key);
                        return Some((keys.filter(|key| *key >= at).collect(), site.end));
                    }
                    LeafBody::OnDisk(pointer) => Missing { pointer, key: at, level: Some(0) },
                },
            };
            visit.load(missing).await.ok()?;
        }
    }
}
