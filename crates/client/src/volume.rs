//! A volume: reads and writes of blocks.

use std::rc::Rc;
use std::sync::Arc;

use io_traits::{Buffer, BufferSlice, Landing, World};
use nvme_wire::identify::VENDOR_COMPARE_AND_WRITE;
use nvme_wire::io::{BlockCommand, DatasetManagement, DsmRange};
use nvme_wire::log::{FailureDomain, FailureDomainLog, Lid};
use nvme_wire::sqe::NSID_ALL;
use nvme_wire::{IoOpcode, Sqe, Status};
use units::{Lba, LbaRange};
use zerocopy::{FromBytes, IntoBytes};

use crate::client::Handle;
use crate::namespace::Namespace;
use crate::requests::{Body, Command, Completion};
use crate::{Client, Error};

/// A namespace of a subsystem, to be read and written. Cheap to clone.
///
/// Addresses and counts are in blocks of [`Volume::block_size`] bytes. Requests run concurrently;
/// see the crate's documentation for their order and for what happens when a connection is lost.
pub struct Volume<W: World> {
    handle: Rc<Handle<W>>,
    namespace: Rc<Namespace>,
    /// Connections of earlier clients on which its requests were sent.
    sends: u8,
}

/// Outcome of [`Volume::compare_and_swap`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Swap {
    /// The blocks were as expected, and hold the new data.
    Done,
    /// They were not, and hold what they held.
    Differs {
        /// First byte that differs, from the first block's start.
        offset_bytes: u64,
    },
}

impl<W: World> Clone for Volume<W> {
    fn clone(&self) -> Self {
        let (handle, namespace) = (self.handle.clone(), self.namespace.clone());
        Self { handle, namespace, sends: self.sends }
    }
}

impl<W: World> Volume<W> {
    pub(crate) fn new(handle: Rc<Handle<W>>, namespace: Rc<Namespace>) -> Self {
        Self { handle, namespace, sends: 0 }
    }

    /// The same volume, for a request that earlier clients have sent on `sends` connections, each of which was lost
    /// before the answer came: they count for [`crate::SENDS_MAX`] and [`crate::SUSPECT_AFTER`].
    #[must_use]
    pub fn after_sends(&self, sends: u8) -> Self {
        Self { sends, ..self.clone() }
    }

    /// Blocks of the volume. Changes when it is resized; see [`Volume::resized`].
    #[must_use]
    pub fn capacity(&self) -> u64 {
        self.namespace.shape().blocks
    }

    /// Bytes in a block.
    #[must_use]
    pub fn block_size(&self) -> u32 {
        self.namespace.shape().block_bytes
    }

    /// Bytes of metadata that each block has beside its data; see [`Volume::read_ex`].
    #[must_use]
    pub fn metadata_size(&self) -> u32 {
        self.namespace.shape().metadata_bytes
    }

    /// Blocks of the largest write that is wholly there or wholly absent after a power failure. No more than one
    /// command carries, whatever the target could do.
    #[must_use]
    pub fn atomic_write_blocks(&self) -> u32 {
        self.namespace.shape().atomic_write_blocks.min(self.max_transfer_blocks())
    }

    /// Blocks of the largest read, write or compare.
    #[must_use]
    pub fn max_transfer_blocks(&self) -> u32 {
        self.namespace.shape().transfer_blocks_max(&self.limits())
    }

    /// Blocks of the largest write-zeroes or verify, and of a range to deallocate.
    #[must_use]
    pub fn max_range_blocks(&self) -> u32 {
        BlockCommand::NLB_MAX
    }

    /// The namespace's identifier.
    #[must_use]
    pub fn nsid(&self) -> u32 {
        self.namespace.shape().nsid
    }

    /// Blocks that hold data, as the target says now. One that does not keep count says all of them.
    pub async fn used_blocks(&self) -> Result<u64, Error> {
        self.handle.0.namespace_utilization(self.nsid()).await
    }

    /// Returns the location of the volume, and the domain it may fail with; `None` if the target does not report
    /// it.
    pub async fn failure_domain(&self) -> Result<Option<FailureDomain>, Error> {
        let len = size_of::<FailureDomainLog>() as u64;
        match self.handle.0.log_page(Lid::FAILURE_DOMAIN, NSID_ALL, len).await {
            Ok(bytes) => {
                let log = FailureDomainLog::ref_from_bytes(&bytes);
                Ok(log.ok().and_then(FailureDomainLog::decode))
            }
            Err(Error::Target { status, .. }) if status.code() == Status::INVALID_LOG_PAGE => {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Waits until the volume was resized, and returns its new capacity.
    pub async fn resized(&self) -> u64 {
        let before = self.capacity();
        loop {
            let resized = self.handle.0.resized.notified();
            if self.capacity() != before {
                return self.capacity();
            }
            resized.await;
        }
    }

    /// Reads `blocks` blocks from `lba`. Should their bytes not fill whole buffer blocks of 4 KiB,
    /// zeroes follow.
    pub async fn read(&self, lba: Lba, blocks: u32) -> Result<Buffer, Error> {
        let len = self.transfer_len(u64::from(blocks))?;
        self.must_have_metadata(blocks, 0)?;
        let sqe = self.block_command(IoOpcode::READ, BlockCommand::new(lba.0, blocks));
        let completion = self.run(IoOpcode::READ, sqe, Body::to_host(len)).await?;
        Ok(completion.buffer.expect("a read has a buffer"))
    }

    /// Reads `blocks` blocks from `lba` to byte `at` of `landing`, as they come. If this fails, some of them may
    /// be there.
    pub async fn read_to(
        &self,
        lba: Lba,
        blocks: u32,
        landing: Arc<dyn Landing>,
        at: usize,
    ) -> Result<(), Error> {
        let len = self.transfer_len(u64::from(blocks))?;
        self.must_have_metadata(blocks, 0)?;
        let sqe = self.block_command(IoOpcode::READ, BlockCommand::new(lba.0, blocks));
        self.run(IoOpcode::READ, sqe, Body::to_landing(landing, at, len)).await?;
        Ok(())
    }

    /// Writes `data`, whole blocks, to `lba`. It is durable when this returns, unless the target
    /// has a volatile write cache; see [`Volume::flush`]. It is atomic up to
    /// [`Volume::atomic_write_blocks`].
    pub async fn write(&self, lba: Lba, data: BufferSlice) -> Result<(), Error> {
        self.write_command(lba, data, false).await
    }

    /// Like [`Volume::write`], all or nothing: after a power failure `data` is wholly there or wholly absent. More
    /// than [`Volume::atomic_write_blocks`] is refused ([`Error::NotAtomic`]), and nothing of it written.
    pub async fn write_tx(&self, lba: Lba, data: BufferSlice) -> Result<(), Error> {
        self.must_be_atomic(data.len_bytes())?;
        self.write_command(lba, data, false).await
    }

    /// Refuses so many bytes of data if they are not written all or nothing.
    pub(crate) fn must_be_atomic(&self, len_bytes: usize) -> Result<(), Error> {
        let blocks = (len_bytes as u64).div_ceil(u64::from(self.block_size()));
        let limit = u64::from(self.atomic_write_blocks());
        if blocks > limit { Err(Error::NotAtomic { blocks, limit }) } else { Ok(()) }
    }

    /// Like [`Volume::write`], and durable when this returns whatever cache the target has.
    pub async fn write_through(&self, lba: Lba, data: BufferSlice) -> Result<(), Error> {
        self.write_command(lba, data, true).await
    }

    async fn write_command(&self, lba: Lba, data: BufferSlice, fua: bool) -> Result<(), Error> {
        let blocks = self.blocks_of(&data)?;
        self.must_have_metadata(blocks, 0)?;
        let command = BlockCommand { fua, ..BlockCommand::new(lba.0, blocks) };
        let sqe = self.block_command(IoOpcode::WRITE, command);
        self.run(IoOpcode::WRITE, sqe, Body::ToController(data)).await?;
        Ok(())
    }

    /// Returns true if the blocks from `lba` hold `data`, whole blocks.
    pub async fn compare(&self, lba: Lba, data: BufferSlice) -> Result<bool, Error> {
        let blocks = self.blocks_of(&data)?;
        self.must_have_metadata(blocks, 0)?;
        self.compare_command(lba, blocks, Body::ToController(data)).await
    }

    pub(crate) async fn compare_command(
        &self,
        lba: Lba,
        blocks: u32,
        body: Body,
    ) -> Result<bool, Error> {
        let sqe = self.block_command(IoOpcode::COMPARE, BlockCommand::new(lba.0, blocks));
        match self.run(IoOpcode::COMPARE, sqe, body).await {
            Ok(_) => Ok(true),
            Err(Error::Target { status, .. }) if status.code() == Status::COMPARE_FAILURE => {
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Compares the blocks from `lba` with `expected` and, if they are equal, writes `data` in their
    /// place; nothing comes between, and a power failure leaves the one or the other. Both are whole
    /// blocks, as many as a write may have.
    ///
    /// It is not sent again when the connection is lost: after [`Error::Disconnected`] read what is
    /// there.
    pub async fn compare_and_swap(
        &self,
        lba: Lba,
        expected: &BufferSlice,
        data: &BufferSlice,
    ) -> Result<Swap, Error> {
        let (blocks, block_bytes) = (self.blocks_of(data)?, self.block_size());
        self.must_have_metadata(blocks, 0)?;
        if expected.len_bytes() != data.len_bytes() {
            let len_bytes = expected.len_bytes() as u64;
            return Err(Error::NotWholeBlocks { len_bytes, block_bytes });
        }
        let both = [expected.as_bytes(), data.as_bytes()].concat();
        self.swap_command(lba, blocks, Body::from_bytes(&both)).await
    }

    /// `both` sends what is expected, and behind it what is to be written.
    pub(crate) async fn swap_command(
        &self,
        lba: Lba,
        blocks: u32,
        both: Body,
    ) -> Result<Swap, Error> {
        let opcode = IoOpcode::COMPARE_AND_WRITE;
        if self.limits().vendor_commands & VENDOR_COMPARE_AND_WRITE == 0 {
            return Err(Error::Unsupported { command: opcode.name() });
        }
        let sqe = self.block_command(opcode, BlockCommand::new(lba.0, blocks));
        let command = Command { replay: false, ..self.command(opcode, sqe, both) };
        match self.run_command(command).await {
            Ok(_) => Ok(Swap::Done),
            Err(Error::Target { status, result, .. })
                if status.code() == Status::COMPARE_FAILURE =>
            {
                Ok(Swap::Differs { offset_bytes: result })
            }
            Err(error) => Err(error),
        }
    }

    /// Makes `range` read as zeroes. The target may give its space back.
    pub async fn write_zeroes(&self, range: LbaRange) -> Result<(), Error> {
        let nlb = self.range_blocks(range)?;
        let command = BlockCommand { deac: true, ..BlockCommand::new(range.start.0, nlb) };
        let sqe = self.block_command(IoOpcode::WRITE_ZEROES, command);
        self.run(IoOpcode::WRITE_ZEROES, sqe, Body::None).await?;
        Ok(())
    }

    /// Has the target read `range` and check it, without sending it.
    pub async fn verify(&self, range: LbaRange) -> Result<(), Error> {
        let nlb = self.range_blocks(range)?;
        let sqe = self.block_command(IoOpcode::VERIFY, BlockCommand::new(range.start.0, nlb));
        self.run(IoOpcode::VERIFY, sqe, Body::None).await?;
        Ok(())
    }

    /// Says that the contents of up to 256 `ranges` are no longer needed. A target may ignore it;
    /// farflash makes them read as zeroes and gives their space back.
    pub async fn deallocate(&self, ranges: &[LbaRange]) -> Result<(), Error> {
        let limit = u64::from(DatasetManagement::NR_MAX);
        let count = u32::try_from(ranges.len()).unwrap_or(u32::MAX);
        if u64::from(count) > limit {
            return Err(Error::TooLarge { blocks: u64::from(count), limit });
        }
        if ranges.is_empty() {
            return Ok(());
        }
        let mut list = Vec::with_capacity(ranges.len());
        for range in ranges {
            let limit = u64::from(u32::MAX);
            let too_large = Error::TooLarge { blocks: range.blocks, limit };
            let nlb = u32::try_from(range.blocks).map_err(|_| too_large)?;
            list.push(DsmRange::new(range.start.0, nlb));
        }
        let sqe = DatasetManagement::deallocate(self.nsid(), count);
        let body = Body::from_bytes(list.as_bytes());
        self.run(IoOpcode::DATASET_MANAGEMENT, sqe, body).await?;
        Ok(())
    }

    /// Makes every write that had completed before this call durable.
    pub async fn flush(&self) -> Result<(), Error> {
        let sqe = Sqe::new(IoOpcode::FLUSH.0, self.nsid());
        self.run(IoOpcode::FLUSH, sqe, Body::None).await?;
        Ok(())
    }

    /// The client whose volume this is.
    #[must_use]
    pub fn client(&self) -> Client<W> {
        Client::from_handle(self.handle.clone())
    }

    fn limits(&self) -> nvme_initiator::ControllerLimits {
        self.handle.0.limits.get().expect("set by the first association")
    }

    pub(crate) fn block_command(&self, opcode: IoOpcode, command: BlockCommand) -> Sqe {
        command.encode(opcode, self.nsid(), 0)
    }

    pub(crate) async fn run(
        &self,
        opcode: IoOpcode,
        sqe: Sqe,
        body: Body,
    ) -> Result<Completion, Error> {
        self.run_command(self.command(opcode, sqe, body)).await
    }

    /// A command that is sent again after a reconnect.
    pub(crate) fn command(&self, opcode: IoOpcode, sqe: Sqe, body: Body) -> Command {
        let (name, sends) = (opcode.name(), self.sends);
        let namespace = Some(self.namespace.clone());
        Command { sqe, name, body, namespace, replay: true, sends, timeout: None }
    }

    pub(crate) async fn run_command(&self, command: Command) -> Result<Completion, Error> {
        let inner = &self.handle.0;
        inner.pick_queue().run(&inner.world, command).await
    }

    /// Fails unless `given_bytes` is the size of the metadata of `blocks` blocks.
    pub(crate) fn must_have_metadata(&self, blocks: u32, given_bytes: u64) -> Result<(), Error> {
        let wanted_bytes = u64::from(blocks) * u64::from(self.metadata_size());
        if given_bytes == wanted_bytes {
            Ok(())
        } else {
            Err(Error::Metadata { given_bytes, wanted_bytes })
        }
    }

    /// Bytes of the data of `blocks` blocks that are to be transferred at once.
    pub(crate) fn transfer_len(&self, blocks: u64) -> Result<u32, Error> {
        let (limit, block_bytes) = (u64::from(self.max_transfer_blocks()), self.block_size());
        if blocks == 0 {
            return Err(Error::NotWholeBlocks { len_bytes: 0, block_bytes });
        }
        if blocks > limit {
            return Err(Error::TooLarge { blocks, limit });
        }
        let len_bytes = blocks * u64::from(block_bytes);
        u32::try_from(len_bytes).map_err(|_| Error::TooLarge { blocks, limit })
    }

    /// Blocks in `data`, which are to be transferred at once.
    fn blocks_of(&self, data: &BufferSlice) -> Result<u32, Error> {
        self.blocks_in(data.len_bytes())
    }

    /// Blocks in so many bytes of data, which are to be transferred at once.
    pub(crate) fn blocks_in(&self, len_bytes: usize) -> Result<u32, Error> {
        let (len_bytes, block_bytes) = (len_bytes as u64, self.block_size());
        let blocks = len_bytes / u64::from(block_bytes);
        if !len_bytes.is_multiple_of(u64::from(block_bytes)) {
            return Err(Error::NotWholeBlocks { len_bytes, block_bytes });
        }
        self.transfer_len(blocks)?;
        Ok(u32::try_from(blocks).expect("at most 65 536"))
    }

    /// Blocks in `range`, of which no data is transferred.
    fn range_blocks(&self, range: LbaRange) -> Result<u32, Error> {
        let limit = u64::from(self.max_range_blocks());
        if range.blocks == 0 {
            let block_bytes = self.block_size();
            return Err(Error::NotWholeBlocks { len_bytes: 0, block_bytes });
        }
        let too_large = Error::TooLarge { blocks: range.blocks, limit };
        let blocks = u32::try_from(range.blocks).map_err(|_| too_large)?;
        if u64::from(blocks) > limit { Err(too_large) } else { Ok(blocks) }
    }
}
