//! A disk as the engine sees it, which may break its promises: the simulator must notice.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::Future;
use std::rc::Rc;

use io_traits::{Buffer, BufferSlice, Device, DeviceError, DeviceLimits, Spawn};
use sim::{SimDevice, SimWorld};
use units::{BLOCK_SIZE, Pba, PbaRange};

use crate::run::Run;

/// The promise of [`io_traits::Device`] that is broken.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Seam {
    /// None.
    #[default]
    Honest,
    /// A flush does nothing, and says that it is done.
    SwallowedFlush,
    /// A volatile cache is called durable.
    LyingCache,
    /// A write says that it is done before it has begun.
    EarlyWrite,
    /// A flush says that it is done before it has begun.
    EarlyFlush,
    /// The last block of a write of several is left out.
    ShortWrite,
    /// The first two blocks of a write of several change places.
    SwappedBlocks,
    /// A block once read is given again, whatever was written meanwhile.
    StaleRead,
    /// A write goes to the block behind the one that was meant.
    OffByOne,
}

impl Seam {
    /// All that break anything.
    pub const BROKEN: [Self; 8] = [
        Self::SwallowedFlush,
        Self::LyingCache,
        Self::EarlyWrite,
        Self::EarlyFlush,
        Self::ShortWrite,
        Self::SwappedBlocks,
        Self::StaleRead,
        Self::OffByOne,
    ];
}

type Kept = Rc<RefCell<BTreeMap<u64, Vec<u8>>>>;

/// A disk behind a seam. Cheap to clone.
#[derive(Clone)]
pub(crate) struct SeamDevice {
    world: SimWorld,
    device: SimDevice,
    seam: Seam,
    /// Contents that stale reads return.
    kept: Kept,
    /// The run that is told what is written.
    told: Option<Run>,
}

impl SeamDevice {
    /// `device`, with one promise broken or none.
    #[must_use]
    pub(crate) fn new(world: &SimWorld, device: SimDevice, seam: Seam) -> Self {
        Self { world: world.clone(), device, seam, kept: Kept::default(), told: None }
    }

    /// The same; `run` is told of its writes.
    #[must_use]
    pub(crate) fn told_to(self, run: &Run) -> Self {
        Self { told: Some(run.clone()), ..self }
    }

    /// The disk itself.
    #[must_use]
    pub(crate) fn disk(&self) -> &SimDevice {
        &self.device
    }

    fn tampered(&self, pba: Pba, data: BufferSlice) -> (Pba, BufferSlice) {
        let blocks = data.len_bytes() / BLOCK_SIZE;
        match self.seam {
            Seam::ShortWrite if blocks > 1 => (pba, data.blocks(0, blocks - 1)),
            Seam::SwappedBlocks if blocks > 1 => {
                let mut swapped = Buffer::from_bytes(data.as_bytes());
                let (first, rest) = swapped.as_mut_bytes().split_at_mut(BLOCK_SIZE);
                first.swap_with_slice(&mut rest[..BLOCK_SIZE]);
                (pba, swapped.into_slice())
            }
            // The superblock and its neighbours are where they must be, so that the disk opens.
            Seam::OffByOne if pba.0 > 1024 => (pba.plus(1), data),
            _ => (pba, data),
        }
    }
}

impl Device for SeamDevice {
    fn limits(&self) -> DeviceLimits {
        let limits = self.device.limits();
        let volatile_cache = limits.volatile_cache && self.seam != Seam::LyingCache;
        let pins = limits.pins && self.seam == Seam::Honest;
        DeviceLimits { volatile_cache, pins, ..limits }
    }

    /// Promises are broken for requests only, so blocks are pinned only where none is broken.
    fn pin(&self, range: PbaRange) -> Option<BufferSlice> {
        if self.seam == Seam::Honest { self.device.pin(range) } else { None }
    }

    fn has_room(&self) -> bool {
        self.device.has_room()
    }

    fn read(
        &self,
        pba: Pba,
        buffer: Buffer,
    ) -> impl Future<Output = Result<Buffer, DeviceError>> + 'static {
        let reading = self.device.read(pba, buffer);
        let kept = (self.seam == Seam::StaleRead).then(|| self.kept.clone());
        async move {
            let mut buffer = reading.await?;
            if let Some(kept) = kept {
                let mut kept = kept.borrow_mut();
                for (at, block) in (pba.0..).zip(buffer.as_mut_bytes().chunks_mut(BLOCK_SIZE)) {
                    block.copy_from_slice(kept.entry(at).or_insert_with(|| block.to_vec()));
                }
            }
            Ok(buffer)
        }
    }

    fn write(
        &self,
        pba: Pba,
        data: BufferSlice,
    ) -> impl Future<Output = Result<(), DeviceError>> + 'static {
        if let Some(run) = &self.told {
            run.note_write(pba, data.as_bytes());
        }
        let (pba, data) = self.tampered(pba, data);
        let writing = self.device.write(pba, data);
        let early = (self.seam == Seam::EarlyWrite).then(|| self.world.clone());
        async move {
            let Some(world) = early else { return writing.await };
            world.spawn(async move {
                let _ = writing.await;
            });
            Ok(())
        }
    }

    fn write_at_once(
        &self,
        pba: Pba,
        data: &BufferSlice,
        crc: Option<&mut dyn FnMut(u32)>,
    ) -> Option<Result<(), DeviceError>> {
        let done =
            if self.limits().pins { self.device.write_at_once(pba, data, crc) } else { None }?;
        if let Some(run) = &self.told {
            run.note_write(pba, data.as_bytes());
        }
        Some(done)
    }

    fn flush(&self) -> impl Future<Output = Result<(), DeviceError>> + 'static {
        let (device, world, seam) = (self.device.clone(), self.world.clone(), self.seam);
        async move {
            match seam {
                Seam::SwallowedFlush => Ok(()),
                Seam::EarlyFlush => {
                    world.spawn(async move {
                        let _ = device.flush().await;
                    });
                    Ok(())
                }
                _ => device.flush().await,
            }
        }
    }

    fn discard(&self, range: PbaRange) -> impl Future<Output = Result<(), DeviceError>> + 'static {
        self.device.discard(range)
    }
}
