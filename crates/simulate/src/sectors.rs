//! A host of a volume whose logical blocks have 512 bytes: the client library takes blocks of 4096 only.
//!
//! Its commands run side by side, each on a connection of its own. Once one of these is lost the host is, as a client that does
//! not connect again.

use std::cell::{Cell, RefCell};

use io_traits::Clock;
use nvme_wire::io::{BlockCommand, DatasetManagement, DsmRange};
use nvme_wire::{IoOpcode, Sqe, Status};
use sim::SimWorld;
use units::{Duration, Lba, LbaRange, SectorSize};
use zerocopy::IntoBytes;

use crate::fused::{FusedHost, Gone, Queue};

/// Logical blocks of the largest read or write.
pub(crate) const TRANSFER_MAX: u64 = 256;
/// Interval at which it is looked whether a connection is free.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// Such a host.
pub(crate) struct SectorHost {
    world: SimWorld,
    host: FusedHost,
    sector: SectorSize,
    /// Connections that are not in use.
    idle: RefCell<Vec<Queue>>,
    is_lost: Cell<bool>,
}

impl SectorHost {
    /// Connects `host`.
    ///
    /// # Errors
    /// It is refused, or the server ends.
    pub(crate) async fn connect(
        world: &SimWorld,
        host: FusedHost,
        sector: SectorSize,
    ) -> Result<Self, Gone> {
        let idle = RefCell::new(vec![host.connect().await?]);
        Ok(Self { world: world.clone(), host, sector, idle, is_lost: Cell::new(false) })
    }

    /// Carries out one command: how it ended, and the data that it returned.
    async fn run(&self, sqe: Sqe, data: &[u8], returns: usize) -> Result<(Status, Vec<u8>), Gone> {
        if self.is_lost.get() {
            return Err(Gone);
        }
        let ended = self.run_on_any(&sqe, data, returns).await;
        self.is_lost.set(self.is_lost.get() || ended.is_err());
        ended
    }

    async fn run_on_any(
        &self,
        sqe: &Sqe,
        data: &[u8],
        returns: usize,
    ) -> Result<(Status, Vec<u8>), Gone> {
        let idle = self.idle.borrow_mut().pop();
        let mut queue = match idle {
            Some(queue) => queue,
            None => self.host.connect().await?,
        };
        let ended = queue.run(sqe, data, returns).await?;
        self.idle.borrow_mut().push(queue);
        Ok(ended)
    }

    fn command(opcode: IoOpcode, range: LbaRange, len_bytes: usize) -> Sqe {
        let blocks = u32::try_from(range.blocks).expect("a small volume");
        let len_bytes = u32::try_from(len_bytes).expect("a small request");
        BlockCommand::new(range.start.0, blocks).encode(opcode, 1, len_bytes)
    }

    /// The range that `data` fills.
    fn range_of(&self, lba: Lba, data: &[u8]) -> LbaRange {
        LbaRange::new(lba, (data.len() / self.sector.bytes()) as u64)
    }

    pub(crate) async fn read(&self, range: LbaRange) -> Result<(Status, Vec<u8>), Gone> {
        let len_bytes = range.blocks as usize * self.sector.bytes();
        self.run(Self::command(IoOpcode::READ, range, len_bytes), &[], len_bytes).await
    }

    pub(crate) async fn write(&self, lba: Lba, data: &[u8]) -> Result<Status, Gone> {
        let sqe = Self::command(IoOpcode::WRITE, self.range_of(lba, data), data.len());
        Ok(self.run(sqe, data, 0).await?.0)
    }

    pub(crate) async fn compare(&self, lba: Lba, expected: &[u8]) -> Result<Status, Gone> {
        let sqe = Self::command(IoOpcode::COMPARE, self.range_of(lba, expected), expected.len());
        Ok(self.run(sqe, expected, 0).await?.0)
    }

    /// Compares and writes, as two fused commands: how each ended.
    pub(crate) async fn swap(
        &self,
        lba: Lba,
        expected: &[u8],
        data: &[u8],
    ) -> Result<[Status; 2], Gone> {
        if self.is_lost.get() {
            return Err(Gone);
        }
        let blocks = u32::try_from(self.range_of(lba, data).blocks).expect("a small request");
        let ended = self.host.compare_and_write((lba.0, blocks), expected, data).await;
        self.is_lost.set(self.is_lost.get() || ended.is_err());
        ended
    }

    pub(crate) async fn write_zeroes(&self, range: LbaRange) -> Result<Status, Gone> {
        Ok(self.run(Self::command(IoOpcode::WRITE_ZEROES, range, 0), &[], 0).await?.0)
    }

    pub(crate) async fn deallocate(&self, ranges: &[LbaRange]) -> Result<Status, Gone> {
        let blocks = |range: &LbaRange| u32::try_from(range.blocks).expect("a small volume");
        let all: Vec<DsmRange> =
            ranges.iter().map(|range| DsmRange::new(range.start.0, blocks(range))).collect();
        let count = u32::try_from(all.len()).expect("a few");
        Ok(self.run(DatasetManagement::deallocate(1, count), all.as_bytes(), 0).await?.0)
    }

    /// Returns whether its connections are lost.
    pub(crate) async fn is_lost(&self) -> bool {
        // A further connection would say nothing of those that there are.
        while self.idle.borrow().is_empty() && !self.is_lost.get() {
            self.world.sleep_until(self.world.now() + LOOK_EVERY).await;
        }
        self.read(LbaRange::new(Lba(0), 1)).await.is_err()
    }
}
