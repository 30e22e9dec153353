//! Reads of a device at locations that another run has read.

use std::future::Future;
use std::rc::Rc;

use io_traits::{Buffer, BufferSlice, Device, DeviceError};
use load::{DeviceTarget, Target};
use units::{Lba, LbaRange, Pba, PbaRange};

/// Locations on a device as if they lay one after the other, all of them equally long: to read where another run
/// has read.
#[derive(Clone)]
pub(crate) struct Places<D> {
    target: DeviceTarget<D>,
    starts: Rc<Vec<Pba>>,
    blocks_each: u64,
}

impl<D: Device> Places<D> {
    /// The places on `device` at which blocks lie that were read in this order. Requests are `blocks_each` long; one that lies
    /// apart is read from its first block on.
    pub(crate) fn new(device: D, reads: &[PbaRange], blocks_each: u64) -> Self {
        let last = device.limits().blocks - blocks_each;
        let blocks = reads.iter().flat_map(|read| read.start.0..read.end().0);
        let starts = blocks.step_by(blocks_each as usize).map(|block| Pba(block.min(last)));
        let starts = Rc::new(starts.collect());
        Self { target: DeviceTarget::new(device), starts, blocks_each }
    }

    fn place(&self, range: LbaRange) -> LbaRange {
        let start = self.starts[(range.start.0 / self.blocks_each) as usize];
        LbaRange::new(Lba(start.0), range.blocks)
    }
}

impl<D: Device> Target for Places<D> {
    type Data = Buffer;
    type Error = DeviceError;

    fn blocks(&self) -> u64 {
        self.starts.len() as u64 * self.blocks_each
    }

    fn read(&self, range: LbaRange) -> impl Future<Output = Result<Buffer, DeviceError>> + 'static {
        self.target.read(self.place(range))
    }

    fn write(
        &self,
        range: LbaRange,
        data: BufferSlice,
    ) -> impl Future<Output = Result<(), DeviceError>> + 'static {
        self.target.write(self.place(range), data)
    }

    fn flush(&self) -> impl Future<Output = Result<(), DeviceError>> + 'static {
        self.target.flush()
    }

    fn block(data: &Buffer, index: usize) -> &[u8] {
        DeviceTarget::<D>::block(data, index)
    }
}

#[cfg(test)]
mod tests {
    use device::MemDevice;
    use reactor::{CoreConfig, run_on_current_thread};

    use super::*;

    /// Blocks 8 to 13, 2 and 3, 1022 and 1023 in requests of 4: the second request lies apart, and is read from block 12 on; the last
    /// would end behind the device.
    #[test]
    fn places_follow_each_other_as_they_were_read() {
        let read = |start, blocks| PbaRange::new(Pba(start), blocks);
        let main = |_| async move {
            let device = MemDevice::new(1024).expect("memory");
            let mut stamped = Buffer::new(1024);
            let blocks = stamped.as_mut_bytes().chunks_mut(units::BLOCK_SIZE);
            blocks.zip(0_u32..).for_each(|(block, n)| block[..4].copy_from_slice(&n.to_le_bytes()));
            device.write(Pba(0), stamped.into_slice()).await.expect("written");
            let reads = [read(8, 6), read(2, 2), read(1022, 2)];
            let places = Places::new(device, &reads, 4);
            assert_eq!(places.blocks(), 12);
            for (request, first) in [8_u32, 12, 1020].into_iter().enumerate() {
                let range = LbaRange::new(Lba(4 * request as u64), 4);
                let data = places.read(range).await.expect("read");
                let found = Places::<MemDevice>::block(&data, 1)[..4].try_into().expect("4 bytes");
                assert_eq!(u32::from_le_bytes(found), first + 1, "request {request}");
            }
        };
        run_on_current_thread(&CoreConfig::default(), main).expect("this host has io_uring");
    }
}
