//! The seam to a volume: requests for whole blocks, answered by callbacks.

use std::ops::ControlFlow;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::task::Waker;

use farflash_client::{Data, Error, Reply, Request, Volume};

/// Called once with the bytes read.
pub type ReadDone = Box<dyn FnOnce(Result<&[u8], Error>) + Send>;
/// Called once when a request has ended.
pub type Done = Box<dyn FnOnce(Result<(), Error>) + Send>;

/// Called on the thread that carries out requests, until it returns [`ControlFlow::Break`]. It must not wait.
pub type Turn = Box<dyn FnMut(&Waker) -> ControlFlow<()> + Send>;

/// The way in which a range is made to read as zeroes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Clearing {
    /// Its space is given back.
    Deallocate,
    /// It is written.
    WriteZeroes,
}

/// A volume. Offsets and lengths are multiples of its block size. No method waits, and callbacks must not wait
/// either: they may be called on the thread that carries out all requests.
pub trait Backing: Send + Sync + 'static {
    /// Bytes in a block.
    fn block_size(&self) -> usize;
    /// Reads `len` bytes at `offset`.
    fn read(&self, offset: u64, len: usize, done: ReadDone);
    /// Writes `data` to `offset`.
    fn write(&self, offset: u64, data: Data, done: Done);
    /// Makes `len` bytes at `offset` read as zeroes.
    fn clear(&self, offset: u64, len: u64, how: Clearing, done: Done);
    /// Makes durable what was written.
    fn flush(&self, done: Done);
}

/// The thread that carries out requests, for what is to run there.
pub trait Attend {
    /// Has it call `turn`: now, whenever `event` is signalled, and when the waker is woken.
    fn attend(&self, event: Arc<OwnedFd>, turn: Turn) -> Result<(), Error>;
}

impl Attend for Volume {
    fn attend(&self, event: Arc<OwnedFd>, turn: Turn) -> Result<(), Error> {
        Volume::attend(self, event, turn)
    }
}

impl Backing for Volume {
    fn block_size(&self) -> usize {
        Volume::block_size(self) as usize
    }

    fn read(&self, offset: u64, len: usize, done: ReadDone) {
        self.submit(Request::Read { offset, len }, move |reply| match reply {
            Ok(Reply::Data(data)) => {
                let mut pieces = data.pieces();
                match (pieces.next(), pieces.next()) {
                    // As it comes from servers that take a request of this length at once.
                    (Some(piece), None) => done(Ok(piece)),
                    _ => done(Ok(&data.to_vec())),
                }
            }
            Ok(other) => unreachable!("a read is answered by {other:?}"),
            Err(error) => done(Err(error)),
        });
    }

    fn write(&self, offset: u64, data: Data, done: Done) {
        self.submit(Request::Write { offset, data }, |reply| done(reply.map(drop)));
    }

    fn clear(&self, offset: u64, len: u64, how: Clearing, done: Done) {
        let request = match how {
            Clearing::Deallocate => Request::Deallocate { offset, len },
            Clearing::WriteZeroes => Request::WriteZeroes { offset, len },
        };
        self.submit(request, |reply| done(reply.map(drop)));
    }

    fn flush(&self, done: Done) {
        self.submit(Request::Flush, |reply| done(reply.map(drop)));
    }
}
