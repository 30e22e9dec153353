//! A target that computes a checksum of each block, as any engine that verifies has to: what remains of a device's
//! rate then.

use std::future::Future;
use std::hint::black_box;

use io_traits::BufferSlice;
use load::Target;
use units::{BLOCK_SIZE, LbaRange};

/// Sums up the blocks that are read and written, and does nothing with the sums.
#[derive(Clone)]
pub(crate) struct Checked<T>(pub(crate) T);

impl<T: Target> Target for Checked<T> {
    type Data = T::Data;
    type Error = T::Error;

    fn blocks(&self) -> u64 {
        self.0.blocks()
    }

    fn read(&self, range: LbaRange) -> impl Future<Output = Result<T::Data, T::Error>> + 'static {
        let read = self.0.read(range);
        async move {
            let data = read.await?;
            let blocks = usize::try_from(range.blocks).expect("it is in memory");
            for index in 0..blocks {
                let next = if index + 1 < blocks { T::block(&data, index + 1) } else { &[] };
                black_box(checksum::crc32c_ahead(T::block(&data, index), next));
            }
            Ok(data)
        }
    }

    fn write(
        &self,
        range: LbaRange,
        data: BufferSlice,
    ) -> impl Future<Output = Result<(), T::Error>> + 'static {
        for block in data.as_bytes().chunks_exact(BLOCK_SIZE) {
            black_box(checksum::crc32c(block));
        }
        self.0.write(range, data)
    }

    fn flush(&self) -> impl Future<Output = Result<(), T::Error>> + 'static {
        self.0.flush()
    }

    fn block(data: &T::Data, index: usize) -> &[u8] {
        T::block(data, index)
    }
}
