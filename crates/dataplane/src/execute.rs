//! Requests whose turn has come: from the volume to their outcome.

use std::rc::Rc;

use io_traits::{Device, World};
use local_sync::all;
use reservation::Access;
use schedule::Direction;
use situations::{Phase, Situation, during, situation};
use units::{BLOCK_SIZE, Lba, LbaRange, MetadataSize};
use volume::{Volume, VolumeError};

use crate::export::Export;
use crate::memory::{Share, footprint};
use crate::payload::split;
use crate::request::{BlockPart, IoError, Outcome, PartPayload, Payload, Request};
use crate::sectors::zero_part;
use crate::session::{Link, Session, Tag};
use crate::shards::log_findings;

/// Parts of blocks that one deallocation makes zeroes at a time.
const ENDS_AT_ONCE: usize = 16;

/// A request of one session, for one export.
pub(crate) struct Job<W: World, D: Device> {
    pub(crate) session: Rc<dyn Session>,
    pub(crate) tag: Tag,
    pub(crate) export: Rc<Export<W, D>>,
    /// Aborts of its session before it was submitted.
    pub(crate) aborts: u32,
}

impl<W: World, D: Device> Job<W, D> {
    /// Carries out the request as a task. One that need not wait is done on return.
    pub(crate) fn run(self, world: &W, request: Request) {
        match request {
            Request::Read(range) => self.read_as_task(world, range, None),
            Request::Write { range, data } => {
                if let Err((job, mut data)) = self.write_at_once(range, data) {
                    data.let_go();
                    world.spawn_now(run(job, Request::Write { range, data }));
                }
            }
            _ => world.spawn_now(run(self, request)),
        }
    }

    /// Checks that its commands were not aborted, and that no reservation excludes its host from this.
    #[inline]
    pub(crate) fn check(&self, access: Access) -> Result<(), IoError> {
        if self.session.link().aborts() != self.aborts {
            return Err(IoError::Aborted);
        }
        match self.export.reservations.conflicts(&*self.session, access) {
            true => Err(IoError::ReservationConflict),
            false => Ok(()),
        }
    }

    /// Reads in a task, which has `share` of the memory already, or finds its own.
    pub(crate) fn read_as_task(self, world: &W, range: LbaRange, share: Option<Share>) {
        world.spawn_now(read(self, range, share));
    }

    /// Ends the request.
    pub(crate) fn end(&self, result: Result<(), IoError>) {
        let outcome = match result {
            Ok(()) => Outcome::Done,
            Err(error) => return self.fail(error),
        };
        self.session.complete(self.tag, outcome);
    }

    #[cold]
    pub(crate) fn fail(&self, error: IoError) {
        if let Some(error) = error.volume_error() {
            self.export.on_error(error);
            if is_finding(error) {
                log_findings(self.export.volume().shard());
            }
        }
        self.session.complete(self.tag, Outcome::Failed(error));
    }
}

/// Returns whether the error may be one of what lies below the engine.
fn is_finding(error: &VolumeError) -> bool {
    matches!(
        error,
        VolumeError::Corrupt { .. }
            | VolumeError::CorruptMap { .. }
            | VolumeError::Device(_)
            | VolumeError::JournalLost
    )
}

async fn read<W: World, D: Device>(job: Job<W, D>, range: LbaRange, share: Option<Share>) {
    let link = job.session.link();
    let share = match share {
        Some(share) => share,
        None => {
            let metadata = job.export.with_volume(Volume::metadata_size);
            let Some(share) = memory_for(link, transfer_bytes(range, metadata)).await else {
                return;
            };
            share
        }
    };
    let lane = &job.export.lane;
    let Some(_ticket) = lane.enter(Direction::Read, range.blocks, link.closed()).await else {
        return;
    };
    let Some(_inside) = lane.passage().pass(link).await else { return };
    if let Err(error) = job.check(Access::Read) {
        return job.fail(error);
    }
    match job.export.volume().read(range).await {
        Ok(data) => job.session.complete(job.tag, Outcome::Data(data, share)),
        Err(error) => job.fail(error.into()),
    }
}

/// Bytes of `range` as they are transferred.
fn transfer_bytes(range: LbaRange, metadata: MetadataSize) -> usize {
    let blocks = usize::try_from(range.blocks).expect("front ends bound transfers");
    blocks * (BLOCK_SIZE + metadata.bytes())
}

/// Memory for so many bytes; `None` if the session ends first.
async fn memory_for(link: &Link, len_bytes: usize) -> Option<Share> {
    let bytes = footprint(len_bytes);
    match link.window().try_take(bytes) {
        Some(share) => Some(share),
        None => {
            situation(Situation::RequestAwaitsBuffers);
            Box::pin(link.window().take(bytes)).await
        }
    }
}

/// Memory for what the request reads and writes by itself, if it does that; `None` if the session ends first.
async fn memory_of_its_own(link: &Link, request: &Request) -> Option<Option<Share>> {
    match request {
        Request::Verify(range) => {
            memory_for(link, transfer_bytes(*range, MetadataSize::None)).await.map(Some)
        }
        // A block is read, and one is written.
        Request::UnmapParts { ends, .. } => {
            memory_for(link, 2 * ends.len().min(ENDS_AT_ONCE) * BLOCK_SIZE).await.map(Some)
        }
        _ => Some(None),
    }
}

async fn run<W: World, D: Device>(job: Job<W, D>, request: Request) {
    let link = job.session.link();
    // Memory first: no request holds up the device while it waits for memory.
    let Some(_share) = memory_of_its_own(link, &request).await else {
        return;
    };
    let ticket = match request.cost() {
        Some((direction, blocks)) => {
            let entered = job.export.lane.enter(direction, blocks, link.closed()).await;
            if entered.is_none() {
                return;
            }
            entered
        }
        None => None,
    };
    let Some(_inside) = job.export.lane.passage().pass(link).await else { return };
    // Behind all waiting: the host may have been excluded meanwhile.
    if let Err(error) = job.check(request.access()) {
        return job.fail(error);
    }
    let _pass = job.export.reservations.pass(request.access());
    // The shard may have come back meanwhile, and the volume with it.
    let volume = job.export.volume();
    let result = match request {
        Request::Read(_) => unreachable!("reads have a task of their own"),
        Request::Write { range, data } => write(&volume, range.start, data).await,
        Request::Flush => volume.flush().await.map_err(IoError::from),
        Request::WriteZeroes(range) => volume.unmap(range).await.map_err(IoError::from),
        // By themselves: they are seldom, and the tasks of others need not have room for them.
        Request::Unmap { ranges, share: _share } => {
            match Box::pin(unmap(&job, &volume, &ranges)).await {
                Some(result) => result,
                None => return,
            }
        }
        Request::Compare { range, expected } => {
            Box::pin(compare(&volume, range.start, *expected)).await
        }
        Request::CompareAndWrite { range, expected, data } => {
            Box::pin(compare_and_write(&volume, range.start, *expected, *data)).await
        }
        Request::Verify(range) => volume.verify(range).await.map_err(IoError::from),
        // By themselves, as unmaps are.
        Request::WritePart { range, data } => Box::pin(write_part(&volume, range, *data)).await,
        Request::ComparePart { range, skip, expected } => {
            Box::pin(compare_part(&volume, range.start, skip, *expected)).await
        }
        Request::CompareAndWritePart { range, expected, data } => {
            Box::pin(compare_and_write_part(&volume, range.start, *expected, *data)).await
        }
        Request::UnmapParts { ranges, ends, share: _share } => {
            match Box::pin(unmap_parts(&job, &volume, &ranges, ends)).await {
                Some(result) => result,
                None => return,
            }
        }
        Request::Extents { range, extents_max } => {
            match Box::pin(volume.extents(range, extents_max)).await {
                Ok(extents) => {
                    return job.session.complete(job.tag, Outcome::Extents(extents));
                }
                Err(error) => Err(error.into()),
            }
        }
    };
    drop(ticket);
    job.end(result);
}

async fn write<D: Device>(
    volume: &Volume<D>,
    lba: Lba,
    payload: Box<Payload>,
) -> Result<(), IoError> {
    let Payload { data, crcs, share } = *payload;
    let metadata = volume.metadata_size();
    let written = if metadata.is_none() {
        volume.write(lba, data, crcs.as_deref()).await
    } else {
        // Checksums that were taken as the data came are of other pieces than blocks.
        let (blocks, crcs) = split(data.as_bytes(), metadata);
        drop(data);
        volume.write(lba, blocks, Some(&crcs)).await
    };
    drop(share);
    written.map_err(IoError::from)
}

async fn write_part<D: Device>(
    volume: &Volume<D>,
    range: LbaRange,
    payload: PartPayload,
) -> Result<(), IoError> {
    let PartPayload { buffer, part, share } = payload;
    let written = volume.write_part(range.start, buffer, part).await;
    drop(share);
    written.map_err(IoError::from)
}

/// Deallocates as [`unmap`] does, then makes the parts zeroes, some at a time: they become durable together.
async fn unmap_parts<W: World, D: Device>(
    job: &Job<W, D>,
    volume: &Volume<D>,
    ranges: &[LbaRange],
    ends: Vec<BlockPart>,
) -> Option<Result<(), IoError>> {
    if let Err(error) = unmap(job, volume, ranges).await? {
        return Some(Err(error));
    }
    for ends in ends.chunks(ENDS_AT_ONCE) {
        if !job.session.link().is_open() {
            return None;
        }
        let volume = job.export.volume();
        let zeroed = all(ends.iter().map(|end| zero_part(&volume, end.clone()))).await;
        if let Err(error) = zeroed.into_iter().collect::<Result<(), _>>() {
            return Some(Err(error.into()));
        }
    }
    Some(Ok(()))
}

async fn compare_part<D: Device>(
    volume: &Volume<D>,
    lba: Lba,
    skip: usize,
    expected: Payload,
) -> Result<(), IoError> {
    let compared = volume.compare_part(lba, skip, expected.data.as_bytes()).await;
    compared.map_err(IoError::from)
}

async fn compare_and_write_part<D: Device>(
    volume: &Volume<D>,
    lba: Lba,
    expected: Payload,
    data: PartPayload,
) -> Result<(), IoError> {
    let PartPayload { buffer, part, share } = data;
    let _under_way = during(Phase::CompareAndWrite);
    let compared = expected.data.as_bytes();
    let outcome = volume.compare_and_write_part(lba, compared, buffer, part).await;
    drop((expected, share));
    outcome.map_err(IoError::from)
}

/// Deallocates as one if that can be, else range by range. `None`: the session ended on the way, and no more is done.
async fn unmap<W: World, D: Device>(
    job: &Job<W, D>,
    volume: &Volume<D>,
    ranges: &[LbaRange],
) -> Option<Result<(), IoError>> {
    match volume.unmap_together(ranges).await {
        Ok(true) => return Some(Ok(())),
        Ok(false) => {}
        Err(error) => return Some(Err(error.into())),
    }
    for range in ranges {
        if !job.session.link().is_open() {
            return None;
        }
        if let Err(error) = job.export.volume().unmap(*range).await {
            return Some(Err(error.into()));
        }
    }
    Some(Ok(()))
}

async fn compare<D: Device>(
    volume: &Volume<D>,
    lba: Lba,
    expected: Payload,
) -> Result<(), IoError> {
    let blocks = expected.blocks(volume.metadata_size());
    // The share is also for the blocks that are read.
    let Payload { share, .. } = expected;
    let compared = volume.compare(lba, blocks).await;
    drop(share);
    compared.map_err(IoError::from)
}

async fn compare_and_write<D: Device>(
    volume: &Volume<D>,
    lba: Lba,
    expected: Payload,
    data: Payload,
) -> Result<(), IoError> {
    let metadata = volume.metadata_size();
    let (compared, written) = (expected.blocks(metadata), data.blocks(metadata));
    let shares = (expected.share, data.share);
    let _under_way = during(Phase::CompareAndWrite);
    let outcome = volume.compare_and_write(lba, compared, written).await;
    drop(shares);
    outcome.map_err(IoError::from)
}
