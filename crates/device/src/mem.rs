//! A device in memory, shared by cores.
//!
//! - STRIPE-1: the memory is cut into stripes, each under a lock of its own. Cores work in
//!   different extents, far larger than a stripe, so that a lock costs one write to a cache line
//!   that the core already has, and no core waits.

use std::future::{Future, ready};
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use io_traits::{Buffer, BufferSlice, Device, DeviceError, DeviceLimits};
use units::{BLOCK_SIZE, Pba, PbaRange};

use crate::memory::Memory;
use crate::stripe::{Pinned, STRIPE_LEN, Stripe};

/// Why there is no memory for a device.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum MemError {
    /// Not one block.
    #[error("a device needs at least one block")]
    Empty,
    /// More than can be addressed, or than the limits allow.
    #[error("{blocks} blocks of memory are not to be had; lower the size or raise ulimit -v")]
    TooLarge {
        /// The size asked for.
        blocks: u64,
    },
}

/// A part of a request: stripe, bytes in the stripe, bytes in the request.
type Part<'a> = (&'a Arc<Stripe>, Range<usize>, Range<usize>);

struct Shared {
    stripes: Vec<Arc<Stripe>>,
    blocks: u64,
}

/// A device in memory. Cheap to clone, also into other threads; all clones are the same device.
#[derive(Clone)]
pub struct MemDevice {
    shared: Arc<Shared>,
}

impl MemDevice {
    /// A device of `blocks` blocks of zeroes, none of which takes memory yet.
    pub fn new(blocks: u64) -> Result<Self, MemError> {
        let too_large = MemError::TooLarge { blocks };
        let bytes = blocks.checked_mul(BLOCK_SIZE as u64).ok_or(too_large)?;
        let bytes = usize::try_from(bytes).map_err(|_| too_large)?;
        if bytes == 0 {
            return Err(MemError::Empty);
        }
        let pieces = Memory::pieces(bytes.div_ceil(STRIPE_LEN), STRIPE_LEN);
        let pieces = pieces.map_err(|_| too_large)?;
        let stripes = pieces.into_iter().map(|memory| Arc::new(Stripe::new(memory))).collect();
        Ok(Self { shared: Arc::new(Shared { stripes, blocks }) })
    }

    /// The same device for another core. Like `clone`, which it is.
    #[must_use]
    pub fn attach(&self) -> Self {
        self.clone()
    }

    /// The parts of `range`.
    fn parts(&self, range: PbaRange) -> Result<impl Iterator<Item = Part<'_>>, DeviceError> {
        if range.checked_end().is_none_or(|end| end.0 > self.shared.blocks) {
            return Err(DeviceError::OutOfRange { range });
        }
        let start = range.start.0 as usize * BLOCK_SIZE;
        let len = range.blocks as usize * BLOCK_SIZE;
        let mut done = 0;
        Ok(std::iter::from_fn(move || {
            let (at, left) = (start + done, len - done);
            let within = at % STRIPE_LEN;
            let count = left.min(STRIPE_LEN - within);
            let part = done..done + count;
            done += count;
            let stripe = (count > 0).then(|| &self.shared.stripes[at / STRIPE_LEN])?;
            Some((stripe, within..within + count, part))
        }))
    }

    fn read_now(&self, pba: Pba, mut buffer: Buffer) -> Result<Buffer, DeviceError> {
        let range = PbaRange::new(pba, buffer.len_blocks() as u64);
        for (stripe, source, target) in self.parts(range)? {
            checksum::copy(stripe.read().bytes(&source), &mut buffer.as_mut_bytes()[target]);
        }
        Ok(buffer)
    }

    fn write_now(
        &self,
        pba: Pba,
        data: &BufferSlice,
        mut crc: Option<&mut dyn FnMut(u32)>,
    ) -> Result<(), DeviceError> {
        let bytes = data.as_bytes();
        assert!(bytes.len().is_multiple_of(BLOCK_SIZE), "a write is a whole number of blocks");
        let range = PbaRange::new(pba, (bytes.len() / BLOCK_SIZE) as u64);
        for (stripe, target, source) in self.parts(range)? {
            let mut writing = stripe.write();
            let target = writing.bytes(&target).ok_or(DeviceError::Pinned { range })?;
            let Some(crc) = &mut crc else {
                checksum::copy_to_memory(&bytes[source], target);
                continue;
            };
            let blocks = bytes[source].chunks_exact(BLOCK_SIZE);
            for (block, target) in blocks.zip(target.chunks_exact_mut(BLOCK_SIZE)) {
                crc(checksum::crc32c_copy_to_memory(block, target));
            }
        }
        Ok(())
    }

    fn discard_now(&self, range: PbaRange) -> Result<(), DeviceError> {
        for (stripe, target, _) in self.parts(range)? {
            if !stripe.write().discard(&target) {
                return Err(DeviceError::Pinned { range });
            }
        }
        Ok(())
    }
}

impl Device for MemDevice {
    /// Nothing survives a power cut, and nothing pretends to: a flush has nothing to do.
    fn limits(&self) -> DeviceLimits {
        DeviceLimits {
            blocks: self.shared.blocks,
            volatile_cache: false,
            discards: true,
            pins: true,
        }
    }

    fn will_read(&self, range: PbaRange, mut fetch: impl FnMut(*const [u8])) {
        let Ok(parts) = self.parts(range) else { return };
        parts.for_each(|(stripe, source, _)| fetch(stripe.will_pin(&source)));
    }

    /// Blocks in two stripes are not lent, nor blocks that are being written.
    fn pin(&self, range: PbaRange) -> Option<BufferSlice> {
        let mut parts = self.parts(range).ok()?;
        let (stripe, bytes, _) = parts.next()?;
        if parts.next().is_some() {
            return None;
        }
        Some(BufferSlice::pinned(Rc::new(Pinned::new(stripe, bytes)?)))
    }

    fn read(
        &self,
        pba: Pba,
        buffer: Buffer,
    ) -> impl Future<Output = Result<Buffer, DeviceError>> + 'static {
        ready(self.read_now(pba, buffer))
    }

    fn write(
        &self,
        pba: Pba,
        data: BufferSlice,
    ) -> impl Future<Output = Result<(), DeviceError>> + 'static {
        ready(self.write_now(pba, &data, None))
    }

    fn write_at_once(
        &self,
        pba: Pba,
        data: &BufferSlice,
        crc: Option<&mut dyn FnMut(u32)>,
    ) -> Option<Result<(), DeviceError>> {
        Some(self.write_now(pba, data, crc))
    }

    fn flush(&self) -> impl Future<Output = Result<(), DeviceError>> + 'static {
        ready(Ok(()))
    }

    fn discard(&self, range: PbaRange) -> impl Future<Output = Result<(), DeviceError>> + 'static {
        ready(self.discard_now(range))
    }
}

/// Returns the outcome of a request that completes at once.
#[cfg(test)]
fn now<T>(future: impl Future<Output = T>) -> T {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match std::pin::pin!(future).poll(&mut context) {
        std::task::Poll::Ready(output) => output,
        std::task::Poll::Pending => panic!("a device in memory completes at once"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STRIPE_BLOCKS: u64 = (STRIPE_LEN / BLOCK_SIZE) as u64;

    fn filled(blocks: usize, byte: u8) -> BufferSlice {
        let mut buffer = Buffer::new(blocks);
        buffer.as_mut_bytes().fill(byte);
        buffer.into_slice()
    }

    fn is_all(buffer: &Buffer, byte: u8) -> bool {
        buffer.as_bytes().iter().all(|b| *b == byte)
    }

    #[test]
    fn what_was_written_is_read_across_stripes_too() {
        let device = MemDevice::new(3 * STRIPE_BLOCKS).expect("memory");
        let at = Pba(STRIPE_BLOCKS - 2);
        now(device.write(at, filled(5, 7))).expect("writes");
        assert!(is_all(&now(device.read(at, Buffer::new(5))).expect("reads"), 7));
        assert!(is_all(&now(device.read(at.plus(5), Buffer::new(9))).expect("reads"), 0));
        now(device.flush()).expect("flushes");
    }

    /// From an odd address, across stripes, with checksums and without.
    #[test]
    fn blocks_are_written_at_once_and_summed_on_the_way() {
        let device = MemDevice::new(2 * STRIPE_BLOCKS).expect("memory");
        let at = Pba(STRIPE_BLOCKS - 2);
        let bytes: Vec<u8> = (0..5 * BLOCK_SIZE + 7).map(|n| (n / 11) as u8).collect();
        let data = BufferSlice::pinned(Rc::new(bytes)).slice(7..5 * BLOCK_SIZE + 7);
        let expected: Vec<u32> = checksum::crc32c_of_blocks(data.as_bytes()).collect();
        for wants in [true, false] {
            now(device.write(at, filled(5, 0))).expect("writes");
            let mut crcs = Vec::new();
            let mut take = |crc| crcs.push(crc);
            let take: Option<&mut dyn FnMut(u32)> = if wants { Some(&mut take) } else { None };
            assert_eq!(device.write_at_once(at, &data, take), Some(Ok(())));
            assert_eq!(crcs, if wants { &expected[..] } else { &[] });
            let read = now(device.read(at, Buffer::new(5))).expect("reads");
            assert!(read.as_bytes() == data.as_bytes());
        }
        let _pinned = device.pin(PbaRange::new(at.plus(1), 1)).expect("pins");
        let refused = device.write_at_once(at, &data, None);
        assert!(matches!(refused, Some(Err(DeviceError::Pinned { .. }))), "{refused:?}");
    }

    #[test]
    fn discarded_blocks_read_as_zeroes_and_their_neighbours_stay() {
        let device = MemDevice::new(2 * STRIPE_BLOCKS).expect("memory");
        let at = Pba(STRIPE_BLOCKS - 4);
        now(device.write(at, filled(8, 7))).expect("writes");
        now(device.discard(PbaRange::new(at.plus(1), 6))).expect("discards");
        assert!(is_all(&now(device.read(at, Buffer::new(1))).expect("reads"), 7));
        assert!(is_all(&now(device.read(at.plus(1), Buffer::new(6))).expect("reads"), 0));
        assert!(is_all(&now(device.read(at.plus(7), Buffer::new(1))).expect("reads"), 7));
    }

    #[test]
    fn requests_beyond_the_end_are_refused() {
        let device = MemDevice::new(10).expect("memory");
        let range = PbaRange::new(Pba(9), 2);
        let refused = Some(DeviceError::OutOfRange { range });
        assert_eq!(now(device.write(Pba(9), filled(2, 1))).err(), refused);
        assert_eq!(now(device.read(Pba(9), Buffer::new(2))).err(), refused);
        assert_eq!(now(device.discard(range)).err(), refused);
        assert!(now(device.read(Pba(u64::MAX), Buffer::new(1))).is_err());
        now(device.read(Pba(10), Buffer::new(0))).expect("nothing, at the very end");
    }

    #[test]
    fn sizes_that_cannot_be_are_refused() {
        assert_eq!(MemDevice::new(0).err(), Some(MemError::Empty));
        for blocks in [1 << 40, 1 << 52, u64::MAX] {
            assert_eq!(MemDevice::new(blocks).err(), Some(MemError::TooLarge { blocks }));
        }
    }

    #[test]
    fn a_large_device_takes_no_memory_until_written() {
        let device = MemDevice::new(1 << 28).expect("a TiB of address space");
        let before = resident_pages();
        for n in 0..64 {
            let read = now(device.read(Pba(n << 22), Buffer::new(1))).expect("reads");
            assert!(is_all(&read, 0));
        }
        now(device.write(Pba((1 << 28) - 1), filled(1, 9))).expect("writes");
        let grown = resident_pages().saturating_sub(before);
        assert!(grown < 16_384, "{grown} pages more for one that was written");
    }

    #[test]
    fn pinned_blocks_stay_as_they_are_and_others_do_not_mind() {
        let device = MemDevice::new(2 * STRIPE_BLOCKS).expect("memory");
        now(device.write(Pba(4), filled(4, 7))).expect("writes");
        let pinned = device.pin(PbaRange::new(Pba(5), 2)).expect("memory can be looked at");
        let again = device.pin(PbaRange::new(Pba(6), 1)).expect("by many");
        assert!(pinned.as_bytes().iter().all(|byte| *byte == 7));
        for (pba, blocks) in [(Pba(5), 1), (Pba(6), 1), (Pba(4), 4)] {
            let range = PbaRange::new(pba, blocks);
            let refused = Some(DeviceError::Pinned { range });
            assert_eq!(now(device.write(pba, filled(blocks as usize, 8))).err(), refused);
            assert_eq!(now(device.discard(range)).err(), refused);
        }
        now(device.write(Pba(4), filled(1, 8))).expect("its neighbour is free");
        now(device.write(Pba(7), filled(1, 8))).expect("its neighbour is free");
        drop(pinned);
        now(device.write(Pba(5), filled(1, 9))).expect("let go");
        assert!(now(device.write(Pba(6), filled(1, 9))).is_err(), "one still looks");
        assert!(again.as_bytes().iter().all(|byte| *byte == 7));
        drop(again);
        let many: Vec<_> = (0..300).map(|_| device.pin(PbaRange::new(Pba(6), 1))).collect();
        assert!(many[0].is_some() && many[299].is_none(), "too many read copies");
        drop(many);
        now(device.discard(PbaRange::new(Pba(4), 4))).expect("let go");
        assert!(device.pin(PbaRange::new(Pba(STRIPE_BLOCKS - 1), 2)).is_none(), "two stripes");
        assert!(device.pin(PbaRange::new(Pba(2 * STRIPE_BLOCKS), 1)).is_none(), "beyond the end");
    }

    /// PIN-1: of a reader and a writer at the same time, one gives way.
    ///
    /// Method: one thread writes a block over and over, each time another byte, another pins it and
    /// looks twice.
    #[test]
    fn no_write_reaches_memory_that_is_being_read() {
        const ROUNDS: usize = 20_000;
        let device = MemDevice::new(1).expect("memory");
        let block = PbaRange::new(Pba(0), 1);
        let refused = Err(DeviceError::Pinned { range: block });
        std::thread::scope(|scope| {
            let written = device.attach();
            scope.spawn(move || {
                let blocks: Vec<_> = (0..=u8::MAX).map(|byte| filled(1, byte)).collect();
                for data in blocks.iter().cycle().take(ROUNDS) {
                    while now(written.write(Pba(0), data.clone())) == refused {
                        std::thread::yield_now();
                    }
                }
            });
            for _ in 0..ROUNDS {
                let Some(pinned) = device.pin(block) else { continue };
                let byte = pinned.as_bytes()[0];
                assert!(pinned.as_bytes().iter().all(|other| *other == byte), "half a write");
                std::thread::yield_now();
                assert!(pinned.as_bytes().iter().all(|other| *other == byte), "written meanwhile");
            }
        });
    }

    #[test]
    fn pinned_memory_outlives_the_device() {
        let device = MemDevice::new(4).expect("memory");
        now(device.write(Pba(1), filled(1, 7))).expect("writes");
        let pinned = device.pin(PbaRange::new(Pba(1), 1)).expect("pins");
        drop(device);
        assert!(pinned.as_bytes().iter().all(|byte| *byte == 7));
    }

    #[test]
    fn cores_share_the_device() {
        let device = MemDevice::new(8).expect("memory");
        std::thread::scope(|scope| {
            for n in 0..4 {
                let device = device.attach();
                scope.spawn(move || now(device.write(Pba(n), filled(1, n as u8 + 1))));
            }
        });
        for n in 0..4 {
            let read = now(device.read(Pba(n), Buffer::new(1))).expect("reads");
            assert!(is_all(&read, n as u8 + 1));
        }
    }

    fn resident_pages() -> u64 {
        let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux");
        let resident = statm.split(' ').nth(1).expect("a second column");
        resident.parse().expect("a number")
    }
}
