//! A device that counts what is asked of it.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::rc::Rc;

use io_traits::{Buffer, BufferSlice, Device, DeviceError, DeviceLimits};
use units::{BLOCK_SIZE, Pba, PbaRange};

/// Counts of requests to a device.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) reads: u64,
    pub(crate) bytes_read: u64,
    pub(crate) bytes_written: u64,
    pub(crate) flushes: u64,
}

/// A device that counts. Cheap to clone; all clones count together.
///
/// It offers no discard, so that what lies below keeps the space that was written once: whether a file
/// system has to find room for a block is no matter of what is measured here.
#[derive(Clone)]
pub(crate) struct Counted<D> {
    device: D,
    counts: Rc<Cell<Counts>>,
    /// Ranges that were read, while that is recorded.
    reads: Rc<RefCell<Option<Vec<PbaRange>>>>,
}

impl<D: Device> Counted<D> {
    pub(crate) fn new(device: D) -> Self {
        Self { device, counts: Rc::default(), reads: Rc::default() }
    }

    pub(crate) fn counts(&self) -> Counts {
        self.counts.get()
    }

    /// Records from now on what is read.
    pub(crate) fn record_reads(&self) {
        *self.reads.borrow_mut() = Some(Vec::new());
    }

    /// Ends that: what was read, in order.
    pub(crate) fn recorded_reads(&self) -> Vec<PbaRange> {
        self.reads.take().unwrap_or_default()
    }

    fn count_read(&self, range: PbaRange) {
        self.count(|counts| {
            counts.reads += 1;
            counts.bytes_read += range.blocks * BLOCK_SIZE as u64;
        });
        if let Some(reads) = &mut *self.reads.borrow_mut() {
            reads.push(range);
        }
    }

    fn count(&self, change: impl FnOnce(&mut Counts)) {
        let mut counts = self.counts.get();
        change(&mut counts);
        self.counts.set(counts);
    }
}

impl Counts {
    /// Returns the requests after `earlier`.
    pub(crate) fn since(self, earlier: Self) -> Self {
        Self {
            reads: self.reads - earlier.reads,
            bytes_read: self.bytes_read - earlier.bytes_read,
            bytes_written: self.bytes_written - earlier.bytes_written,
            flushes: self.flushes - earlier.flushes,
        }
    }
}

impl<D: Device> Device for Counted<D> {
    fn limits(&self) -> DeviceLimits {
        DeviceLimits { discards: false, ..self.device.limits() }
    }

    fn will_read(&self, range: PbaRange, fetch: impl FnMut(*const [u8])) {
        self.device.will_read(range, fetch);
    }

    fn pin(&self, range: PbaRange) -> Option<BufferSlice> {
        self.device.pin(range).inspect(|_| self.count_read(range))
    }

    fn has_room(&self) -> bool {
        self.device.has_room()
    }

    fn read(
        &self,
        pba: Pba,
        buffer: Buffer,
    ) -> impl Future<Output = Result<Buffer, DeviceError>> + 'static {
        self.count_read(PbaRange::new(pba, buffer.len_blocks() as u64));
        self.device.read(pba, buffer)
    }

    fn write(
        &self,
        pba: Pba,
        data: BufferSlice,
    ) -> impl Future<Output = Result<(), DeviceError>> + 'static {
        self.count(|counts| counts.bytes_written += data.len_bytes() as u64);
        self.device.write(pba, data)
    }

    fn flush(&self) -> impl Future<Output = Result<(), DeviceError>> + 'static {
        self.count(|counts| counts.flushes += 1);
        self.device.flush()
    }

    fn discard(&self, range: PbaRange) -> impl Future<Output = Result<(), DeviceError>> + 'static {
        self.device.discard(range)
    }
}
