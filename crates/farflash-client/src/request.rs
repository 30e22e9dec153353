//! What a volume can be asked, and how that is carried out on the background thread.

use std::rc::Rc;

use client::Swap;
use io_traits::{BufferSlice, Spawn};
use local_sync::{Semaphore, oneshot};
use units::{Lba, LbaRange};

use crate::pieces::{Piece, pieces};
use crate::session::Session;
use crate::{Data, Error, ReadData};

/// Pieces of one request that are under way at a time.
const PIECES_AT_ONCE: u64 = 16;
/// Blocks of the largest write-zeroes: what the command can say.
const WRITE_ZEROES_BLOCKS_MAX: u64 = 1 << 16;

/// A request to a volume. Offsets and lengths are in bytes, and multiples of its block size.
#[derive(Debug)]
pub enum Request {
    /// Reads; answered by [`Reply::Data`].
    Read {
        /// From where.
        offset: u64,
        /// How much.
        len: usize,
    },
    /// Writes; answered by [`Reply::Done`]. Atomic up to [`crate::Properties::atomic_write_bytes`]; more
    /// than [`crate::Properties::transfer_bytes_max`] is several writes.
    Write {
        /// To where.
        offset: u64,
        /// What.
        data: Data,
    },
    /// Makes a range read as zeroes; answered by [`Reply::Done`].
    WriteZeroes {
        /// From where.
        offset: u64,
        /// How much.
        len: u64,
    },
    /// Gives a range's space back, so that it reads as zeroes; answered by [`Reply::Done`].
    Deallocate {
        /// From where.
        offset: u64,
        /// How much.
        len: u64,
    },
    /// Makes all that was written durable; answered by [`Reply::Done`].
    Flush,
    /// Compares; answered by [`Reply::Equal`].
    Compare {
        /// From where.
        offset: u64,
        /// With what.
        data: Data,
    },
    /// Replaces what is there if it is what is expected; answered by [`Reply::Swap`].
    CompareAndSwap {
        /// Where.
        offset: u64,
        /// What has to be there.
        expected: Data,
        /// What is to be there.
        data: Data,
    },
}

/// What came of a [`Request`].
#[derive(Debug)]
pub enum Reply {
    /// What was read.
    Data(ReadData),
    /// It is done.
    Done,
    /// Whether the data is the same.
    Equal(bool),
    /// Whether the data was replaced.
    Swap(Swap),
}

impl Request {
    /// Offset and length, if it has them.
    fn range(&self) -> Option<(u64, u64)> {
        match self {
            Self::Read { offset, len } => Some((*offset, *len as u64)),
            Self::WriteZeroes { offset, len } | Self::Deallocate { offset, len } => {
                Some((*offset, *len))
            }
            Self::Write { offset, data }
            | Self::Compare { offset, data }
            | Self::CompareAndSwap { offset, data, .. } => Some((*offset, data.len() as u64)),
            Self::Flush => None,
        }
    }

    /// What can be said against it without asking anybody.
    pub(crate) fn check(&self, block_size: u32) -> Result<(), Error> {
        if let Self::CompareAndSwap { expected, data, .. } = self
            && expected.len() != data.len()
        {
            let (expected, data) = (expected.len() as u64, data.len() as u64);
            return Err(Error::LengthsDiffer { expected, data });
        }
        let Some((offset, len)) = self.range() else { return Ok(()) };
        let block = u64::from(block_size);
        if !offset.is_multiple_of(block) || !len.is_multiple_of(block) {
            return Err(Error::Misaligned { offset, len, block_size });
        }
        Ok(())
    }

    /// Carries it out.
    pub(crate) async fn run(self, session: &Rc<Session>) -> Result<Reply, Error> {
        let properties = session.properties();
        let block = u64::from(properties.block_size);
        if let Some((offset, len)) = self.range() {
            if offset.checked_add(len).is_none_or(|end| end > properties.size_bytes) {
                return Err(Error::OutOfRange { offset, len });
            }
            if len == 0 {
                return Ok(self.of_nothing());
            }
        }
        let range = |offset: u64, len: u64| LbaRange::new(Lba(offset / block), len / block);
        let piece_max = usize::try_from(properties.transfer_bytes_max).unwrap_or(usize::MAX);
        match self {
            Self::Read { offset, len } => {
                read(session, pieces(offset, len, piece_max), block).await
            }
            Self::Write { offset, data } => {
                let (pieces, data) = (pieces(offset, data.len(), piece_max), slice(data));
                let written = in_pieces(session, pieces, async move |session, piece| {
                    let (lba, data) = (Lba(piece.offset / block), part(&data, piece));
                    let write =
                        async |volume: &client::Volume<_>| volume.write(lba, data.clone()).await;
                    session.run(true, write).await
                });
                written.await.map(|_| Reply::Done)
            }
            Self::Compare { offset, data } => {
                let (pieces, data) = (pieces(offset, data.len(), piece_max), slice(data));
                let compared = in_pieces(session, pieces, async move |session, piece| {
                    let (lba, data) = (Lba(piece.offset / block), part(&data, piece));
                    let compare =
                        async |volume: &client::Volume<_>| volume.compare(lba, data.clone()).await;
                    session.run(true, compare).await
                });
                Ok(Reply::Equal(compared.await?.into_iter().all(|equal| equal)))
            }
            Self::CompareAndSwap { offset, expected, data } => {
                let (len, limit) = (data.len() as u64, properties.atomic_write_bytes);
                if len > limit {
                    return Err(Error::TooLarge { len, limit });
                }
                let (lba, expected, data) = (Lba(offset / block), slice(expected), slice(data));
                let swap = async |volume: &client::Volume<_>| {
                    volume.compare_and_swap(lba, &expected, &data).await
                };
                session.run(false, swap).await.map(Reply::Swap)
            }
            Self::WriteZeroes { offset, len } => {
                for range in cut(range(offset, len), WRITE_ZEROES_BLOCKS_MAX) {
                    session.run(true, async |volume| volume.write_zeroes(range).await).await?;
                }
                Ok(Reply::Done)
            }
            Self::Deallocate { offset, len } => {
                for range in cut(range(offset, len), u64::from(u32::MAX)) {
                    session.run(true, async |volume| volume.deallocate(&[range]).await).await?;
                }
                Ok(Reply::Done)
            }
            Self::Flush => {
                session.run(true, async |volume| volume.flush().await).await?;
                Ok(Reply::Done)
            }
        }
    }

    /// The answer to a request for no bytes.
    fn of_nothing(&self) -> Reply {
        match self {
            Self::Read { .. } => Reply::Data(ReadData::default()),
            Self::Compare { .. } => Reply::Equal(true),
            Self::CompareAndSwap { .. } => Reply::Swap(Swap::Done),
            _ => Reply::Done,
        }
    }
}

/// Reads `pieces` of a volume with blocks of `block` bytes.
async fn read(
    session: &Rc<Session>,
    pieces: impl Iterator<Item = Piece>,
    block: u64,
) -> Result<Reply, Error> {
    let read = in_pieces(session, pieces, async move |session, piece| {
        let blocks = u32::try_from(piece.len as u64 / block).unwrap_or(u32::MAX);
        let lba = Lba(piece.offset / block);
        let buffer = session.run(true, async |volume| volume.read(lba, blocks).await).await?;
        Ok(Data { buffer, len: piece.len })
    });
    Ok(Reply::Data(ReadData { pieces: read.await? }))
}

/// `range` in ranges of at most `blocks_max`.
fn cut(range: LbaRange, blocks_max: u64) -> impl Iterator<Item = LbaRange> {
    let count = range.blocks.div_ceil(blocks_max);
    (0..count).map(move |index| {
        let start = index * blocks_max;
        LbaRange::new(Lba(range.start.0 + start), blocks_max.min(range.blocks - start))
    })
}

fn slice(data: Data) -> BufferSlice {
    let len = data.len;
    data.buffer.into_slice().slice(0..len)
}

fn part(data: &BufferSlice, piece: Piece) -> BufferSlice {
    data.slice(piece.at..piece.at + piece.len)
}

/// Does `each` for every piece, some of them at a time; what came of them, in order.
async fn in_pieces<T: 'static>(
    session: &Rc<Session>,
    pieces: impl Iterator<Item = Piece>,
    each: impl AsyncFn(&Rc<Session>, Piece) -> Result<T, Error> + 'static,
) -> Result<Vec<T>, Error> {
    let mut pieces = pieces.peekable();
    let Some(first) = pieces.next() else { return Ok(Vec::new()) };
    if pieces.peek().is_none() {
        return Ok(vec![each(session, first).await?]);
    }
    let (window, each) = (Semaphore::new(PIECES_AT_ONCE), Rc::new(each));
    let mut outcomes = Vec::new();
    for piece in std::iter::once(first).chain(pieces) {
        let permit = window.acquire(1).await;
        let (sender, receiver) = oneshot();
        let (own, each) = (session.clone(), each.clone());
        session.world().spawn(async move {
            sender.send(each(&own, piece).await);
            drop(permit);
        });
        outcomes.push(receiver);
    }
    let mut all = Vec::with_capacity(outcomes.len());
    for outcome in outcomes {
        all.push(outcome.await.ok_or(Error::Stopped)??);
    }
    Ok(all)
}
