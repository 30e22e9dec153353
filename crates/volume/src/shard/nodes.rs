//! Reading nodes, and writing the dirty nodes of a snapshot.

use std::rc::Rc;

use io_traits::{Buffer, Device, DeviceError};
use layout::{DecodeError, LEVEL_MAX, Mapping};
use local_sync::yield_now;
use units::{BLOCK_SIZE, Pba, PbaRange};

use super::Inner;
use super::checkpoint::CheckpointError;
use crate::sabotage::{Sabotage, broken, tries};
use block_map::{Body, MapSnapshot, Missing, Node, NodeCounters, Tree};
use space::SpaceSnapshot;

/// Nodes written with one device request.
const BATCH_BLOCKS: u64 = 32;

/// Attempts to read a node before it counts as damaged: what came may be another block, and the node be sound.
pub(super) const NODE_READ_TRIES: u32 = 3;

/// Why a node could not be loaded.
#[derive(Clone, Debug)]
pub(crate) enum LoadError {
    Device(DeviceError),
    Decode(DecodeError),
}

/// Reads one node. What is not the one meant is read again before that counts.
pub(crate) async fn read_node<D: Device>(
    device: &D,
    tree: Tree,
    missing: Missing,
    counters: &Rc<NodeCounters>,
) -> Result<Node, LoadError> {
    let mut node = Err(LoadError::Decode(DecodeError::Short));
    for _ in 0..tries(NODE_READ_TRIES, Sabotage::RecoverByOneRead) {
        let block = read_block(device, missing).await?;
        node = decode_node(&block, tree, missing, counters);
        if node.is_ok() {
            break;
        }
    }
    node
}

/// Reads where a node lies.
pub(super) async fn read_block<D: Device>(
    device: &D,
    missing: Missing,
) -> Result<Buffer, LoadError> {
    device.read(missing.pointer.pba, Buffer::new(1)).await.map_err(LoadError::Device)
}

/// The node meant, if `block` is that.
pub(super) fn decode_node(
    block: &Buffer,
    tree: Tree,
    missing: Missing,
    counters: &Rc<NodeCounters>,
) -> Result<Node, LoadError> {
    let node = Node::decode(block.as_bytes(), tree, missing.pointer, counters);
    let node = node.map_err(LoadError::Decode)?;
    let expected = missing.level.unwrap_or(node.level().min(LEVEL_MAX));
    if node.level() != expected {
        return Err(LoadError::Decode(DecodeError::Field("level of the node")));
    }
    Ok(node)
}

/// Writes blocks of a checkpoint where there is room, many with one request.
pub(super) struct BlockWriter<'a, D: Device> {
    inner: &'a Inner<D>,
    pub(super) space: SpaceSnapshot,
    /// Blocks handed out and not yet used.
    run: PbaRange,
    /// Blocks filled and not yet written, and where the first goes.
    buffer: Option<(Buffer, Pba)>,
    filled: u64,
    /// Nodes among them.
    nodes: Vec<Rc<Node>>,
    /// Blocks of the checkpoint before, which this one no longer needs.
    pub(super) superseded: Vec<Pba>,
    /// Bitmaps written, by extent.
    pub(super) bitmaps: Vec<(u32, Mapping)>,
}

impl<'a, D: Device> BlockWriter<'a, D> {
    pub(super) fn new(inner: &'a Inner<D>, space: SpaceSnapshot) -> Self {
        let run = PbaRange::new(Pba(0), 0);
        Self {
            inner,
            space,
            run,
            buffer: None,
            filled: 0,
            nodes: Vec::new(),
            superseded: Vec::new(),
            bitmaps: Vec::new(),
        }
    }

    /// Writes the dirty nodes of a tree, children first, and returns the pointer to its root.
    pub(super) async fn write_tree(
        &mut self,
        snapshot: &MapSnapshot,
    ) -> Result<Option<Mapping>, CheckpointError> {
        for location in &snapshot.retired {
            if let Some(old) = location.0.take() {
                self.supersede(old);
            }
        }
        let Some(root) = &snapshot.root else { return Ok(None) };
        let mut stack: Vec<(Rc<Node>, usize)> =
            root.dirty_node().map(|node| (node.clone(), 0)).into_iter().collect();
        while let Some((node, next)) = stack.last_mut() {
            if let Some(child) = next_dirty_child(node, next) {
                stack.push((child, 0));
                continue;
            }
            let (node, _) = stack.pop().expect("just looked at");
            self.write_node(node, snapshot.tree, stack.is_empty()).await?;
        }
        Ok(root.pointer())
    }

    async fn write_node(
        &mut self,
        node: Rc<Node>,
        tree: u32,
        is_root: bool,
    ) -> Result<(), CheckpointError> {
        let dirty = &self.inner.counters.snapshot;
        let mut pointer = self.write_block(dirty.get(), |block| node.encode(block, tree)).await?;
        let is_between = !is_root && node.level() > 0;
        if broken(Sabotage::KeepInnerChecksum) && is_between {
            pointer.crc ^= 1;
        }
        dirty.set(dirty.get().saturating_sub(1));
        node.placed.set(Some(pointer));
        if let Some(old) = node.location.0.replace(Some(pointer.pba)) {
            match broken(Sabotage::ReuseInnerNodes) && is_between {
                true => self.reuse_early(old),
                false => self.supersede(old),
            }
        }
        self.nodes.push(node);
        // Some microseconds each: requests come first.
        yield_now().await;
        Ok(())
    }

    /// Writes one block, of `expected` that are still to come, and returns the pointer to it.
    pub(super) async fn write_block(
        &mut self,
        expected: u64,
        encode: impl FnOnce(&mut [u8]),
    ) -> Result<Mapping, CheckpointError> {
        if self.run.blocks == 0 {
            self.write_out().await?;
            let count = expected.clamp(1, BATCH_BLOCKS);
            let run = self.inner.pool.borrow_mut().alloc_metadata(&mut self.space, count);
            self.run = run.ok_or(CheckpointError::NoSpace)?;
            let blocks = usize::try_from(self.run.blocks).expect("bounded above");
            self.buffer = Some((Buffer::new(blocks), self.run.start));
        }
        let (buffer, _) = self.buffer.as_mut().expect("as long as the run lasts");
        let at = usize::try_from(self.filled).expect("bounded above") * BLOCK_SIZE;
        let block = &mut buffer.as_mut_bytes()[at..at + BLOCK_SIZE];
        encode(block);
        let pointer = Mapping { pba: self.run.start, crc: checksum::crc32c(block) };
        self.filled += 1;
        self.run = PbaRange::new(self.run.start.plus(1), self.run.blocks - 1);
        Ok(pointer)
    }

    /// Writes what is filled, and gives back what was not used.
    pub(super) async fn write_out(&mut self) -> Result<(), CheckpointError> {
        for block in 0..self.run.blocks {
            let pba = self.run.start.plus(block);
            self.inner.pool.borrow_mut().uncommit_metadata(&mut self.space, pba);
        }
        if self.run.blocks > 0 {
            self.inner.pool.borrow_mut().release(self.run);
        }
        self.run.blocks = 0;
        let filled = usize::try_from(std::mem::take(&mut self.filled)).expect("bounded above");
        let Some((buffer, start)) = self.buffer.take() else { return Ok(()) };
        if filled > 0 {
            self.inner.write_again(start, buffer.into_slice().blocks(0, filled)).await?;
            self.nodes.drain(..).for_each(|node| node.set_stored());
            // A device that answers at once must not keep the core from its requests.
            yield_now().await;
        }
        Ok(())
    }

    /// Notes that this checkpoint no longer needs a block of the one before.
    pub(super) fn supersede(&mut self, pba: Pba) {
        if broken(Sabotage::ReuseNodes) {
            return self.reuse_early(pba);
        }
        self.inner.pool.borrow_mut().uncommit_metadata(&mut self.space, pba);
        self.superseded.push(pba);
        self.inner.gives_back.superseded.set(self.superseded.len() as u64);
    }

    /// Has it free before the next root is durable: what CHECKPOINT-2 forbids.
    fn reuse_early(&mut self, pba: Pba) {
        let mut pool = self.inner.pool.borrow_mut();
        pool.uncommit_metadata(&mut self.space, pba);
        pool.release(PbaRange::new(pba, 1));
    }
}

fn next_dirty_child(node: &Node, next: &mut usize) -> Option<Rc<Node>> {
    let Body::Inner(inner) = &node.body else { return None };
    let children = inner.children.borrow();
    while let Some(child) = children.get(*next) {
        *next += 1;
        if let Some(node) = child.dirty_node() {
            return Some(node.clone());
        }
    }
    None
}
