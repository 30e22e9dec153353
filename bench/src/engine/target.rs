//! Targets of load: a volume of an engine in this process, and a device with the same durability.

use std::cell::Cell;
use std::future::Future;
use std::rc::Rc;

use io_traits::{Buffer, BufferSlice, Device, DeviceError};
use load::{DeviceTarget, Target};
use local_sync::Notify;
use units::{BLOCK_SIZE, LbaRange};
use volume::{ReadData, Volume, VolumeError};

/// A volume of an engine in this process.
pub(crate) struct EngineTarget<D: Device>(pub(crate) Volume<D>);

impl<D: Device> Clone for EngineTarget<D> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<D: Device> Target for EngineTarget<D> {
    type Data = ReadData;
    type Error = VolumeError;

    fn blocks(&self) -> u64 {
        self.0.blocks()
    }

    fn read(
        &self,
        range: LbaRange,
    ) -> impl Future<Output = Result<ReadData, VolumeError>> + 'static {
        let volume = self.0.clone();
        async move { volume.read(range).await }
    }

    fn write(
        &self,
        range: LbaRange,
        data: BufferSlice,
    ) -> impl Future<Output = Result<(), VolumeError>> + 'static {
        let volume = self.0.clone();
        async move { volume.write(range.start, data, None).await }
    }

    /// Each write was durable when it returned.
    fn flush(&self) -> impl Future<Output = Result<(), VolumeError>> + 'static {
        std::future::ready(Ok(()))
    }

    fn block(data: &ReadData, index: usize) -> &[u8] {
        let mut at = index * BLOCK_SIZE;
        for piece in &data.pieces {
            if at < piece.len_bytes() {
                return &piece.as_bytes()[at..at + BLOCK_SIZE];
            }
            at -= piece.len_bytes();
        }
        unreachable!("the read returned as many blocks as were asked for")
    }
}

/// A device whose writes return when they are durable: behind each write comes a flush, where the
/// device needs one, and one flush at a time serves all writes that were complete when it began.
#[derive(Clone)]
pub(crate) struct Durable<D> {
    target: DeviceTarget<D>,
    group: Option<Rc<Group>>,
}

/// Writes that wait for a flush.
#[derive(Default)]
struct Group {
    /// Writes completed, and how many of them a flush has covered.
    completed: Cell<u64>,
    flushed: Cell<u64>,
    is_flushing: Cell<bool>,
    changed: Notify,
}

impl<D: Device> Durable<D> {
    pub(crate) fn new(device: D) -> Self {
        let group = device.limits().volatile_cache.then(Rc::default);
        Self { target: DeviceTarget::new(device), group }
    }
}

impl<D: Device> Target for Durable<D> {
    type Data = Buffer;
    type Error = DeviceError;

    fn blocks(&self) -> u64 {
        self.target.blocks()
    }

    fn read(&self, range: LbaRange) -> impl Future<Output = Result<Buffer, DeviceError>> + 'static {
        self.target.read(range)
    }

    fn write(
        &self,
        range: LbaRange,
        data: BufferSlice,
    ) -> impl Future<Output = Result<(), DeviceError>> + 'static {
        let write = self.target.write(range, data);
        let this = self.clone();
        async move {
            write.await?;
            let Some(group) = this.group else { return Ok(()) };
            let number = group.completed.get() + 1;
            group.completed.set(number);
            while group.flushed.get() < number {
                if group.is_flushing.get() {
                    group.changed.notified().await;
                    continue;
                }
                group.is_flushing.set(true);
                let through = group.completed.get();
                let flushed = this.target.flush().await;
                group.is_flushing.set(false);
                if flushed.is_ok() {
                    group.flushed.set(through);
                }
                group.changed.notify_all();
                flushed?;
            }
            Ok(())
        }
    }

    fn flush(&self) -> impl Future<Output = Result<(), DeviceError>> + 'static {
        self.target.flush()
    }

    fn block(data: &Buffer, index: usize) -> &[u8] {
        DeviceTarget::<D>::block(data, index)
    }
}
