//! A volume as the workload sees it: through the engine, or through the whole data plane.

use std::future::Future;
use std::rc::Rc;

use client::Swap;
use dataplane::ChangeError;
use io_traits::BufferSlice;
use nvme_wire::Status;
use sim::SimWorld;
use units::{BLOCK_SIZE, Lba, LbaRange, MetadataSize, Pba};
use volume::{Blocks, CompareError, VolumeError};

use crate::content;
use crate::fused::{FusedHost, Gone};
use crate::history::Fate;
use crate::seam::SeamDevice;
use crate::sectors::{self, SectorHost};

/// The destination of requests.
#[derive(Clone)]
pub(crate) enum Target {
    /// To the engine.
    Engine(volume::Volume<SeamDevice>),
    /// Through initiator, network and server to the engine; fused commands by connections of their own, unless the
    /// host has to authenticate.
    Plane(client::Volume<SimWorld>, Option<Rc<FusedHost>>),
    /// The same to a volume of logical blocks of 512 bytes.
    Sectors(Rc<SectorHost>),
}

/// Why a request failed, as far as the checks tell cases apart.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Failure {
    /// It ends behind the volume.
    OutOfRange,
    /// There is no room.
    NoSpace,
    /// A block is damaged: which, and where it lies, as far as that is told. Where it is not, it may be the map.
    Corrupt(Option<(Lba, Pba)>),
    /// The map is damaged, at this place.
    CorruptMap(Pba),
    /// The device failed.
    Device,
    /// The journal cannot be written.
    JournalLost,
    /// Another host has reserved the volume.
    Conflict,
    /// A reservation command of another host ended it before it began.
    Aborted,
    /// There is no such volume any more.
    Deleted,
    /// The server ends, or the connection to it is lost.
    Lost,
    /// An error that the engine should never return.
    Unexpected,
}

impl Failure {
    /// Returns the fate of a change that failed so.
    #[must_use]
    pub(crate) fn fate(self) -> Fate {
        match self {
            Self::JournalLost | Self::Lost => Fate::Open,
            _ => Fate::Refused,
        }
    }
}

impl From<&VolumeError> for Failure {
    fn from(error: &VolumeError) -> Self {
        match error {
            VolumeError::OutOfRange { .. } => Self::OutOfRange,
            VolumeError::PoolFull | VolumeError::AllowanceSpent => Self::NoSpace,
            VolumeError::Corrupt { lba, pba, .. } => Self::Corrupt(Some((*lba, *pba))),
            VolumeError::CorruptMap { pba, .. } => Self::CorruptMap(*pba),
            VolumeError::Device(_) => Self::Device,
            VolumeError::JournalLost => Self::JournalLost,
            VolumeError::Deleted => Self::Deleted,
            VolumeError::ShutDown => Self::Lost,
            _ => Self::Unexpected,
        }
    }
}

impl From<VolumeError> for Failure {
    fn from(error: VolumeError) -> Self {
        Self::from(&error)
    }
}

impl From<ChangeError> for Failure {
    fn from(error: ChangeError) -> Self {
        match error {
            ChangeError::Volume(error) => Self::from(error),
            // All loss is accepted.
            ChangeError::InUse { .. } => Self::Unexpected,
        }
    }
}

impl From<client::Error> for Failure {
    fn from(error: client::Error) -> Self {
        let client::Error::Target { status, .. } = error else {
            return match error {
                client::Error::Disconnected(_)
                | client::Error::Unanswered { .. }
                | client::Error::Closed => Self::Lost,
                // The volume ends where it did not when the request was made up.
                _ => Self::Unexpected,
            };
        };
        Self::from(status)
    }
}

impl From<Gone> for Failure {
    fn from(_: Gone) -> Self {
        Self::Lost
    }
}

impl From<Status> for Failure {
    fn from(status: Status) -> Self {
        match status.code() {
            Status::LBA_OUT_OF_RANGE => Self::OutOfRange,
            Status::CAPACITY_EXCEEDED => Self::NoSpace,
            // What may succeed at once is not lost for good.
            Status::UNRECOVERED_READ_ERROR | Status::WRITE_FAULT if !status.dnr() => Self::Device,
            Status::UNRECOVERED_READ_ERROR => Self::Corrupt(None),
            Status::INTERNAL_ERROR => Self::Device,
            Status::WRITE_FAULT => Self::JournalLost,
            Status::INVALID_NAMESPACE_OR_FORMAT => Self::Deleted,
            Status::NAMESPACE_NOT_READY => Self::Lost,
            Status::RESERVATION_CONFLICT => Self::Conflict,
            Status::ABORTED_PREEMPT => Self::Aborted,
            _ => Self::Unexpected,
        }
    }
}

/// The contents that a comparison expects.
#[derive(Clone)]
pub(crate) struct Expected {
    /// Blocks, each with the metadata that goes with it.
    pub data: BufferSlice,
    /// One of them has other metadata, if there is any.
    pub altered: Option<usize>,
}

/// The result of a comparison.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Compared {
    /// Everything is equal.
    Equal,
    /// Something differs: which byte, if that is told.
    Differs(Option<u64>),
}

impl Target {
    /// Reads blocks.
    ///
    /// # Errors
    /// Why not.
    pub(crate) async fn read(&self, range: LbaRange) -> Result<Vec<u8>, Failure> {
        match self {
            Self::Engine(volume) => {
                let (range, part) = volume.sector_size().blocks_of(range);
                let found = volume.read(range).await?;
                if part.len() < found.len_bytes() {
                    return Ok(found.to_vec()[part].to_vec());
                }
                let size = volume.metadata_size();
                Ok(content::with_metadata(found.to_vec(), &found.metadata, size))
            }
            Self::Plane(volume, _) => {
                let blocks = u32::try_from(range.blocks).expect("a small volume");
                let found = volume.read_ex(range.start, blocks).await?;
                let data = found.data.as_bytes().to_vec();
                Ok(content::with_metadata(data, &found.metadata, self.metadata_size()))
            }
            Self::Sectors(host) => {
                let (status, data) = host.read(range).await?;
                done(status).map(|()| data)
            }
        }
    }

    /// Reads blocks, and looks at them where they lie until `done`.
    ///
    /// # Errors
    /// Why not.
    pub(crate) async fn read_for(
        &self,
        range: LbaRange,
        done: impl Future<Output = ()>,
    ) -> Result<Vec<u8>, Failure> {
        let Self::Engine(volume) = self else { return self.read(range).await };
        let found = volume.read(range).await?;
        done.await;
        Ok(content::with_metadata(found.to_vec(), &found.metadata, volume.metadata_size()))
    }

    /// Writes blocks.
    ///
    /// # Errors
    /// Why not.
    pub(crate) async fn write(&self, lba: Lba, data: BufferSlice) -> Result<(), Failure> {
        match self {
            Self::Engine(volume) => Ok(volume.write(lba, self.blocks(data), None).await?),
            Self::Plane(volume, _) if self.metadata_size().is_none() => {
                Ok(volume.write(lba, data).await?)
            }
            Self::Plane(volume, _) => {
                let blocks = self.blocks(data);
                Ok(volume.write_ex(lba, on_wire(&blocks)).await?)
            }
            Self::Sectors(host) => done(host.write(lba, data.as_bytes()).await?),
        }
    }

    /// Deallocates blocks, or writes zeroes: they read as zeroes afterwards.
    ///
    /// # Errors
    /// Why not.
    pub(crate) async fn clear(&self, range: LbaRange, deallocate: bool) -> Result<(), Failure> {
        match self {
            Self::Engine(volume) => Ok(volume.unmap(range).await?),
            Self::Plane(volume, _) if deallocate => Ok(volume.deallocate(&[range]).await?),
            Self::Plane(volume, _) => Ok(volume.write_zeroes(range).await?),
            Self::Sectors(host) if deallocate => done(host.deallocate(&[range]).await?),
            Self::Sectors(host) => done(host.write_zeroes(range).await?),
        }
    }

    /// Deallocates several ranges by one command: they read as zeroes afterwards.
    ///
    /// # Errors
    /// Why not. Some of them may be deallocated.
    pub(crate) async fn clear_several(&self, ranges: &[LbaRange]) -> Result<(), Failure> {
        match self {
            Self::Engine(volume) => {
                if !volume.unmap_together(ranges).await? {
                    for range in ranges {
                        volume.unmap(*range).await?;
                    }
                }
                Ok(())
            }
            Self::Plane(volume, _) => Ok(volume.deallocate(ranges).await?),
            Self::Sectors(host) => done(host.deallocate(ranges).await?),
        }
    }

    /// Returns true if the connection of the host is lost.
    pub(crate) async fn is_lost(&self) -> bool {
        use client::Error::{Closed, Disconnected, Unanswered};
        let volume = match self {
            Self::Engine(_) => return false,
            Self::Plane(volume, _) => volume,
            Self::Sectors(host) => return host.is_lost().await,
        };
        let read = volume.read_ex(Lba(0), 1).await;
        matches!(read, Err(Disconnected(_) | Unanswered { .. } | Closed))
    }

    /// Compares blocks with what is expected.
    ///
    /// # Errors
    /// Why not.
    pub(crate) async fn compare(&self, lba: Lba, expected: Expected) -> Result<Compared, Failure> {
        let blocks = self.expected(expected);
        match self {
            Self::Engine(volume) => self.compared(volume.compare(lba, blocks).await),
            Self::Plane(volume, _) => Ok(match volume.compare_ex(lba, on_wire(&blocks)).await? {
                true => Compared::Equal,
                false => Compared::Differs(None),
            }),
            Self::Sectors(host) => match host.compare(lba, blocks.data.as_bytes()).await?.code() {
                Status::SUCCESS => Ok(Compared::Equal),
                Status::COMPARE_FAILURE => Ok(Compared::Differs(None)),
                status => Err(status.into()),
            },
        }
    }

    /// Writes `data` if `expected` is there.
    ///
    /// # Errors
    /// Why not.
    pub(crate) async fn compare_and_write(
        &self,
        lba: Lba,
        expected: Expected,
        data: BufferSlice,
    ) -> Result<Compared, Failure> {
        let (expected, blocks) = (self.expected(expected), self.blocks(data));
        match self {
            Self::Engine(volume) => {
                self.compared(volume.compare_and_write(lba, expected, blocks).await)
            }
            Self::Plane(volume, _) => {
                let (expected, blocks) = (on_wire(&expected), on_wire(&blocks));
                Ok(match volume.compare_and_swap_ex(lba, expected, blocks).await? {
                    Swap::Done => Compared::Equal,
                    Swap::Differs { offset_bytes } => self.differs(offset_bytes),
                })
            }
            Self::Sectors(host) => {
                let (expected, data) = (expected.data.as_bytes(), blocks.data.as_bytes());
                swapped(host.swap(lba, expected, data).await?)
            }
        }
    }

    /// As [`Target::compare_and_write`], by fused commands where there is a data plane.
    ///
    /// # Errors
    /// Why not.
    pub(crate) async fn fused(
        &self,
        lba: Lba,
        expected: Expected,
        data: BufferSlice,
    ) -> Result<Compared, Failure> {
        let Self::Plane(_, Some(host)) = self else {
            return self.compare_and_write(lba, expected, data).await;
        };
        let blocks = u32::try_from(data.len_bytes() / BLOCK_SIZE).expect("a small request");
        let (expected, data) = (extended(&self.expected(expected)), extended(&self.blocks(data)));
        swapped(host.compare_and_write((lba.0, blocks), &expected, &data).await?)
    }

    fn metadata_size(&self) -> MetadataSize {
        match self {
            Self::Engine(volume) => volume.metadata_size(),
            Self::Plane(volume, _) => MetadataSize::from_bytes(u64::from(volume.metadata_size()))
                .expect("a size that there is"),
            Self::Sectors(_) => MetadataSize::None,
        }
    }

    /// The data with what goes with it.
    fn blocks(&self, data: BufferSlice) -> Blocks {
        let metadata = content::metadata(data.as_bytes(), self.metadata_size());
        Blocks { data, metadata: metadata.into() }
    }

    fn expected(&self, expected: Expected) -> Blocks {
        let mut blocks = self.blocks(expected.data);
        let each = self.metadata_size().bytes();
        if let Some(altered) = expected.altered
            && let Some(last) = blocks.metadata.get_mut(altered * each..(altered + 1) * each)
            && let Some(last) = last.last_mut()
        {
            *last ^= 1;
        }
        blocks
    }

    fn compared(&self, outcome: Result<(), CompareError>) -> Result<Compared, Failure> {
        match outcome {
            Ok(()) => Ok(Compared::Equal),
            Err(CompareError::Miscompare { offset_bytes }) => Ok(self.differs(offset_bytes)),
            Err(CompareError::Volume(error) | CompareError::Write(error)) => Err(error.into()),
        }
    }

    /// Returns the first byte that differs, where metadata counts as a part of its block's last byte.
    fn differs(&self, offset_bytes: u64) -> Compared {
        let data = BLOCK_SIZE as u64;
        let each = data + self.metadata_size().bytes() as u64;
        Compared::Differs(Some(offset_bytes / each * data + (offset_bytes % each).min(data - 1)))
    }

    /// Most blocks of a read or a write.
    #[must_use]
    pub(crate) fn transfer_blocks_max(&self) -> u64 {
        match self {
            Self::Engine(_) => volume::WRITE_BLOCKS_MAX,
            Self::Plane(volume, _) => u64::from(volume.max_transfer_blocks()),
            Self::Sectors(_) => sectors::TRANSFER_MAX,
        }
    }
}

/// The outcome of a command that ended so.
fn done(status: Status) -> Result<(), Failure> {
    if status.is_success() { Ok(()) } else { Err(status.into()) }
}

/// The outcome of a pair of fused commands that ended so.
fn swapped(ended: [Status; 2]) -> Result<Compared, Failure> {
    let aborted = Status::ABORTED_FAILED_FUSED;
    match ended.map(Status::code) {
        [Status::SUCCESS, Status::SUCCESS] => Ok(Compared::Equal),
        [Status::COMPARE_FAILURE, second] if second == aborted => Ok(Compared::Differs(None)),
        [_, second] if second == aborted => Err(ended[0].into()),
        [Status::SUCCESS, _] => Err(ended[1].into()),
        _ => Err(Failure::Unexpected),
    }
}

/// Each block with its metadata behind it.
fn extended(blocks: &Blocks) -> Vec<u8> {
    let data = blocks.data.as_bytes().chunks_exact(BLOCK_SIZE);
    let each = blocks.metadata.len() / data.len().max(1);
    let with_metadata = data
        .enumerate()
        .map(|(at, block)| [block, &blocks.metadata[at * each..(at + 1) * each]].concat());
    with_metadata.flatten().collect()
}

fn on_wire(blocks: &Blocks) -> client::Blocks<'_> {
    client::Blocks { data: blocks.data.as_bytes(), metadata: &blocks.metadata }
}
