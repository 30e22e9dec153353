//! Execution of a request on the background thread.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use client::Swap;
use io_traits::{BufferSlice, Landing, Spawn};
use local_sync::{Semaphore, oneshot};
use units::{Lba, LbaRange};

use crate::blocks::Format;
use crate::pieces::{Piece, pieces};
use crate::session::Session;
use crate::{BlockData, Data, Error, Properties, ReadBlocks, ReadData, Reply, Request};

/// Pieces of one request that are under way at a time.
const PIECES_AT_ONCE: u64 = 16;
/// Blocks of the largest write-zeroes: what the command can say.
const WRITE_ZEROES_BLOCKS_MAX: u64 = 1 << 16;

/// Carries out `request`, which was checked against `format`.
pub(crate) async fn execute(
    request: Request,
    session: &Rc<Session>,
    format: Format,
) -> Result<Reply, Error> {
    if let Some((offset, len)) = request.range() {
        check_end(session, offset, len).await?;
        if len == 0 {
            return Ok(request.of_nothing());
        }
    }
    let (properties, block) = (session.properties(), u64::from(format.block_size));
    let execution = Execution { session, properties, format, block };
    match request {
        Request::Read { offset, len } => execution.read(offset, len).await.map(Reply::Data),
        Request::ReadTo { offset, landing } => execution.read_to(offset, landing).await,
        Request::Write { offset, data } => execution.write(offset, data).await,
        Request::WriteTx { offset, data } => execution.write_tx(offset, data).await,
        Request::Compare { offset, data } => {
            execution.compare(offset, data).await.map(Reply::Equal)
        }
        Request::CompareAndSwap { offset, expected, data } => {
            execution.compare_and_swap(offset, expected, data).await.map(Reply::Swap)
        }
        Request::ReadEx { offset, len } => execution.read_ex(offset, len).await.map(Reply::Blocks),
        Request::WriteEx { offset, blocks } => execution.write_ex(offset, blocks).await,
        Request::WriteTxEx { offset, blocks } => execution.write_tx_ex(offset, blocks).await,
        Request::CompareEx { offset, blocks } => {
            execution.compare_ex(offset, blocks).await.map(Reply::Equal)
        }
        Request::CompareAndSwapEx { offset, expected, blocks } => {
            execution.compare_and_swap_ex(offset, expected, blocks).await.map(Reply::Swap)
        }
        Request::WriteZeroes { offset, len } => execution.write_zeroes(offset, len).await,
        Request::Deallocate { offset, len } => execution.deallocate(offset, len).await,
        Request::Flush => {
            session.run(true, async |volume| volume.flush().await).await?;
            Ok(Reply::Done)
        }
    }
}

/// Checks that the volume reaches so far: if not at its last known size, at the size that the target reports now.
/// It may have grown.
pub(crate) async fn check_end(session: &Rc<Session>, offset: u64, len: u64) -> Result<(), Error> {
    let is_beyond = || {
        let end = offset.checked_add(len);
        end.is_none_or(|end| end > session.properties().size_bytes)
    };
    if is_beyond() {
        session.run(true, async |volume| volume.client().volume().await).await?;
    }
    if is_beyond() { Err(Error::OutOfRange { offset, len }) } else { Ok(()) }
}

struct Execution<'a> {
    session: &'a Rc<Session>,
    properties: Properties,
    format: Format,
    /// Bytes in a block.
    block: u64,
}

impl Execution<'_> {
    async fn read(&self, offset: u64, len: usize) -> Result<ReadData, Error> {
        let block = self.block;
        let read = self.in_pieces(offset, len, async move |session, piece| {
            let (lba, blocks) = place(piece, block);
            let buffer = session.run(true, async |volume| volume.read(lba, blocks).await).await?;
            Ok(Data::of(buffer, piece.len))
        });
        Ok(ReadData { pieces: read.await? })
    }

    async fn read_to(&self, offset: u64, landing: Arc<dyn Landing>) -> Result<Reply, Error> {
        let (len, block) = (landing.len_bytes(), self.block);
        let read = self.in_pieces(offset, len, async move |session, piece| {
            let (lba, blocks) = place(piece, block);
            let read = async |volume: &client::Volume<_>| {
                volume.read_to(lba, blocks, landing.clone(), piece.at).await
            };
            session.run(true, read).await
        });
        read.await.map(|_| Reply::Done)
    }

    async fn write(&self, offset: u64, data: Data) -> Result<Reply, Error> {
        let (len, data, block) = (data.len(), data.into_slice(), self.block);
        let written = self.in_pieces(offset, len, async move |session, piece| {
            let ((lba, _), data) = (place(piece, block), part(&data, piece));
            let write = async |volume: &client::Volume<_>| volume.write(lba, data.clone()).await;
            session.run(true, write).await
        });
        written.await.map(|_| Reply::Done)
    }

    async fn write_tx(&self, offset: u64, data: Data) -> Result<Reply, Error> {
        self.check_atomic(data.len())?;
        let (lba, data) = (Lba(offset / self.block), data.into_slice());
        let write = async |volume: &client::Volume<_>| volume.write_tx(lba, data.clone()).await;
        self.session.run(true, write).await?;
        Ok(Reply::Done)
    }

    async fn compare(&self, offset: u64, data: Data) -> Result<bool, Error> {
        let (len, data, block) = (data.len(), data.into_slice(), self.block);
        let compared = self.in_pieces(offset, len, async move |session, piece| {
            let ((lba, _), data) = (place(piece, block), part(&data, piece));
            let compare =
                async |volume: &client::Volume<_>| volume.compare(lba, data.clone()).await;
            session.run(true, compare).await
        });
        Ok(compared.await?.into_iter().all(|equal| equal))
    }

    async fn compare_and_swap(
        &self,
        offset: u64,
        expected: Data,
        data: Data,
    ) -> Result<Swap, Error> {
        self.check_atomic(data.len())?;
        let (lba, expected, data) =
            (Lba(offset / self.block), expected.into_slice(), data.into_slice());
        let swap =
            async |volume: &client::Volume<_>| volume.compare_and_swap(lba, &expected, &data).await;
        self.session.run(false, swap).await
    }

    async fn read_ex(&self, offset: u64, len: usize) -> Result<ReadBlocks, Error> {
        let (format, block) = (self.format, self.block);
        let read = self.in_pieces(offset, len, async move |session, piece| {
            let (lba, blocks) = place(piece, block);
            let read = session.run(true, async |volume| volume.read_ex(lba, blocks).await).await?;
            // A foreign target could have changed its format. Callers copy by what was opened.
            format.check_metadata(piece.len, read.metadata.len())?;
            Ok((Data::of(read.data, piece.len), read.metadata))
        });
        let (pieces, metadata): (Vec<_>, Vec<_>) = read.await?.into_iter().unzip();
        Ok(ReadBlocks { data: ReadData { pieces }, metadata: metadata.concat() })
    }

    async fn write_ex(&self, offset: u64, blocks: BlockData) -> Result<Reply, Error> {
        let (len, format, block) = (blocks.data.len(), self.format, self.block);
        let written = self.in_pieces(offset, len, async move |session, piece| {
            let ((lba, _), part) = (place(piece, block), format.part(blocks.as_blocks(), piece));
            let write = async |volume: &client::Volume<_>| volume.write_ex(lba, part).await;
            session.run(true, write).await
        });
        written.await.map(|_| Reply::Done)
    }

    async fn write_tx_ex(&self, offset: u64, blocks: BlockData) -> Result<Reply, Error> {
        self.check_atomic(blocks.data.len())?;
        let (lba, blocks) = (Lba(offset / self.block), blocks.as_blocks());
        let write = async |volume: &client::Volume<_>| volume.write_tx_ex(lba, blocks).await;
        self.session.run(true, write).await?;
        Ok(Reply::Done)
    }

    async fn compare_ex(&self, offset: u64, blocks: BlockData) -> Result<bool, Error> {
        let (len, format, block) = (blocks.data.len(), self.format, self.block);
        let compared = self.in_pieces(offset, len, async move |session, piece| {
            let ((lba, _), part) = (place(piece, block), format.part(blocks.as_blocks(), piece));
            let compare = async |volume: &client::Volume<_>| volume.compare_ex(lba, part).await;
            session.run(true, compare).await
        });
        Ok(compared.await?.into_iter().all(|equal| equal))
    }

    async fn compare_and_swap_ex(
        &self,
        offset: u64,
        expected: BlockData,
        blocks: BlockData,
    ) -> Result<Swap, Error> {
        self.check_atomic(blocks.data.len())?;
        let lba = Lba(offset / self.block);
        let (expected, blocks) = (expected.as_blocks(), blocks.as_blocks());
        let swap = async |volume: &client::Volume<_>| {
            volume.compare_and_swap_ex(lba, expected, blocks).await
        };
        self.session.run(false, swap).await
    }

    async fn write_zeroes(&self, offset: u64, len: u64) -> Result<Reply, Error> {
        for range in cut(self.range(offset, len), WRITE_ZEROES_BLOCKS_MAX) {
            self.session.run(true, async |volume| volume.write_zeroes(range).await).await?;
        }
        Ok(Reply::Done)
    }

    async fn deallocate(&self, offset: u64, len: u64) -> Result<Reply, Error> {
        for range in cut(self.range(offset, len), u64::from(u32::MAX)) {
            self.session.run(true, async |volume| volume.deallocate(&[range]).await).await?;
        }
        Ok(Reply::Done)
    }

    fn range(&self, offset: u64, len: u64) -> LbaRange {
        LbaRange::new(Lba(offset / self.block), len / self.block)
    }

    /// Checks that so much data can be replaced at once.
    fn check_atomic(&self, len: usize) -> Result<(), Error> {
        let (len, limit) = (len as u64, self.properties.atomic_write_bytes);
        if len > limit { Err(Error::TooLarge { len, limit }) } else { Ok(()) }
    }

    /// Does `each` for every piece of so much data, some of them at a time; what came of them, in order. When
    /// this fails nothing of it is under way any more: what the caller writes next is not written over.
    async fn in_pieces<T: 'static>(
        &self,
        offset: u64,
        len: usize,
        each: impl AsyncFn(&Rc<Session>, Piece) -> Result<T, Error> + 'static,
    ) -> Result<Vec<T>, Error> {
        let piece_max = usize::try_from(self.properties.transfer_bytes_max).unwrap_or(usize::MAX);
        let session = self.session;
        let mut pieces = pieces(offset, len, piece_max).peekable();
        let Some(first) = pieces.next() else { return Ok(Vec::new()) };
        if pieces.peek().is_none() {
            return Ok(vec![each(session, first).await?]);
        }
        let (window, each) = (Semaphore::new(PIECES_AT_ONCE), Rc::new(each));
        let (mut started, has_failed) = (Vec::new(), Rc::new(Cell::new(false)));
        for piece in std::iter::once(first).chain(pieces) {
            let permit = window.acquire(1).await;
            if has_failed.get() {
                break;
            }
            let (sender, receiver) = oneshot();
            let (own, each, has_failed) = (session.clone(), each.clone(), has_failed.clone());
            session.world().spawn(async move {
                let outcome = each(&own, piece).await;
                has_failed.set(has_failed.get() || outcome.is_err());
                sender.send(outcome);
                drop(permit);
            });
            started.push(receiver);
        }
        let mut outcomes = Vec::with_capacity(started.len());
        for outcome in started {
            outcomes.push(outcome.await.unwrap_or(Err(Error::Stopped)));
        }
        outcomes.into_iter().collect()
    }
}

/// Returns the start of a piece and its length, in blocks of `block` bytes.
fn place(piece: Piece, block: u64) -> (Lba, u32) {
    let blocks = u32::try_from(piece.len as u64 / block).unwrap_or(u32::MAX);
    (Lba(piece.offset / block), blocks)
}

/// `range` in ranges of at most `blocks_max`.
fn cut(range: LbaRange, blocks_max: u64) -> impl Iterator<Item = LbaRange> {
    let count = range.blocks.div_ceil(blocks_max);
    (0..count).map(move |index| {
        let start = index * blocks_max;
        LbaRange::new(Lba(range.start.0 + start), blocks_max.min(range.blocks - start))
    })
}

fn part(data: &BufferSlice, piece: Piece) -> BufferSlice {
    data.slice(piece.at..piece.at + piece.len)
}
