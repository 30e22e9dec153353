//! Free space in pieces, as on a disk that has been in use for long: a write of several blocks then lies in several runs.

use io_traits::Buffer;
use sim::Rng;
use units::{Lba, LbaRange};
use uuid::Uuid;
use volume::{Volume, VolumeError, VolumeSpec};

use super::Boot;
use crate::content;
use crate::rig::Rig;
use crate::seam::SeamDevice;

/// Blocks of a write that fills the disk.
const STEP: u64 = 64;
/// Blocks of a hole, and between two of them, at most.
const PIECE_MAX: u64 = 3;
/// Holes that are made with one request.
const HOLES_AT_ONCE: usize = 64;
/// Blocks that a full shard keeps back, and that lie together: they are taken when there are holes instead.
const KEPT_BACK: u64 = 400;
/// The volume number in the data of the filling: no volume of the run has it.
const NUMBER: u64 = 1 << 32;

impl Boot {
    /// Leaves little free: what the engine keeps back, what the volumes may take, and some more, in one piece or in many.
    pub(super) async fn fill(&self, rig: &Rig) -> Result<(), VolumeError> {
        let (ballast, end) = self.take_all(rig, 0).await?;
        if self.profile.aged {
            let range = LbaRange::new(Lba(end - 4 * STEP), 4 * STEP);
            return comb(&ballast, range, STEP, &mut Rng::new(end)).await;
        }
        ballast.unmap(LbaRange::new(Lba(end - STEP), STEP)).await
    }

    /// Leaves each shard with volumes nothing but holes of a few blocks, `blocks` in all.
    pub(super) async fn age(&self, rig: &Rig, blocks: u64) -> Result<(), VolumeError> {
        for shard in 0..usize::from(self.profile.busy_shards) {
            let (ballast, end) = self.take_all(rig, shard).await?;
            let mut rng = Rng::new(end + shard as u64);
            comb(&ballast, LbaRange::new(Lba(0), end), blocks + KEPT_BACK, &mut rng).await?;
            for start in (end..end + KEPT_BACK).step_by(STEP as usize) {
                match ballast.write(Lba(start), data(start), None).await {
                    Ok(()) => {}
                    Err(VolumeError::PoolFull) => break,
                    Err(error) => return Err(error),
                }
            }
        }
        // What is damaged from now on is none of this.
        rig.checkpoint().await
    }

    /// Takes all the room that a shard can get; returns what has it, and the end of what was written.
    async fn take_all(
        &self,
        rig: &Rig,
        shard: usize,
    ) -> Result<(Volume<SeamDevice>, u64), VolumeError> {
        let (uuid, name) = (Uuid::from_u128(0x0BA1_1A57 + shard as u128), "ballast".into());
        let shard = &rig.shards()[shard];
        let ballast = shard.create_volume(VolumeSpec { uuid, name, blocks: 1 << 20 }).await?;
        for start in (0..).step_by(STEP as usize) {
            let data = if self.profile.aged { data(start) } else { zeroes() };
            match ballast.write(Lba(start), data, None).await {
                Ok(()) => {}
                Err(VolumeError::PoolFull) => return Ok((ballast, start)),
                Err(error) => return Err(error),
            }
        }
        unreachable!("the disk has an end")
    }
}

fn zeroes() -> io_traits::BufferSlice {
    Buffer::zeroed(STEP as usize).into_slice()
}

/// Such as the harness knows where it lies damaged.
fn data(start: u64) -> io_traits::BufferSlice {
    content::data(NUMBER, start, STEP, 1)
}

/// Makes holes in `range` until there are `blocks` of them, or no more can be.
async fn comb(
    ballast: &Volume<SeamDevice>,
    range: LbaRange,
    blocks: u64,
    rng: &mut Rng,
) -> Result<(), VolumeError> {
    let (mut at, mut left, mut holes) = (range.start.0, blocks, Vec::new());
    while left > 0 && at < range.end().0 {
        let hole = rng.between(1, PIECE_MAX).min(range.end().0 - at).min(left);
        holes.push(LbaRange::new(Lba(at), hole));
        left -= hole;
        at += hole + rng.between(1, PIECE_MAX);
    }
    for holes in holes.chunks(HOLES_AT_ONCE) {
        if !ballast.unmap_together(holes).await? {
            for hole in holes {
                ballast.unmap(*hole).await?;
            }
        }
    }
    Ok(())
}
