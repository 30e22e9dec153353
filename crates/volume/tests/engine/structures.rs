//! Finds the structures on a device by the format's description, without the engine: from the
//! superblock to the root, from there down all trees, and along the journal.

use layout::{Descriptor, EXTENT_TREE, Mapping, NodeView, Record, Root, Superblock, VOLUME_TREE};
use units::{BLOCK_SIZE, Pba};

use crate::common::TestDevice;

/// Byte of a node that says how wide its keys are.
const WIDTH_AT: usize = 5;

/// A node of a tree.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct FoundNode {
    pub(crate) tree: u32,
    pub(crate) level: u8,
    /// Bytes of a key.
    pub(crate) width: u8,
    pub(crate) has_metadata: bool,
}

/// All that the newest root of shard 0 leads to, but data; and the journal behind it.
#[derive(Debug)]
pub(crate) struct Structures {
    pub(crate) superblock: Superblock,
    pub(crate) root: Root,
    pub(crate) nodes: Vec<FoundNode>,
    pub(crate) descriptors: Vec<Descriptor>,
    /// Records from the replay point on, and at which block of the journal each lies.
    pub(crate) records: Vec<(u64, Record)>,
}

impl Structures {
    /// Reads them. Panics where one is not as the pointer to it says.
    pub(crate) fn of(device: &TestDevice) -> Self {
        let superblock = Superblock::decode(&device.block(Pba(0))).expect("a superblock");
        let places = [0, 1].into_iter().flat_map(|parity| superblock.root_places(0, parity));
        let roots = places.filter_map(|place| Root::decode(&device.block(place)).ok());
        let root = roots.max_by_key(|root| root.generation).expect("a root");
        let mut found = Self {
            superblock,
            root,
            nodes: Vec::new(),
            descriptors: Vec::new(),
            records: Vec::new(),
        };
        found.walk(device, EXTENT_TREE, root.extents);
        for descriptor in found.walk(device, VOLUME_TREE, root.volumes) {
            let descriptor = Descriptor::decode(&block_of(device, descriptor)).expect("whole");
            found.walk(device, descriptor.number, descriptor.map);
            found.descriptors.push(descriptor);
        }
        found.records = records(device, &root);
        found
    }

    /// Takes in the nodes of a tree; what its leaves lead to.
    fn walk(&mut self, device: &TestDevice, tree: u32, root: Option<Mapping>) -> Vec<Mapping> {
        let (mut left, mut entries) = (Vec::from_iter(root), Vec::new());
        while let Some(pointer) = left.pop() {
            let block = block_of(device, pointer);
            let node = NodeView::decode(&block).expect("a node");
            assert_eq!(node.tree, tree, "at {}", pointer.pba);
            let has_metadata = !node.metadata_size.is_none();
            let (level, width) = (node.level, block[WIDTH_AT]);
            self.nodes.push(FoundNode { tree, level, width, has_metadata });
            let children = node.entries().map(|(_, child)| child);
            if level > 0 { left.extend(children) } else { entries.extend(children) }
        }
        entries
    }
}

fn block_of(device: &TestDevice, pointer: Mapping) -> [u8; BLOCK_SIZE] {
    let block = device.block(pointer.pba);
    assert_eq!(checksum::crc32c(&block), pointer.crc, "at {}", pointer.pba);
    block
}

/// Records from the replay point on. The next one is looked for behind the last, and then at the start of the ring.
fn records(device: &TestDevice, root: &Root) -> Vec<(u64, Record)> {
    let (mut records, mut at) = (Vec::new(), root.replay);
    loop {
        let next = [u64::from(at.position), 0].into_iter().find_map(|start| {
            let record = record_at(device, root, start)?;
            let continues = record.head.device == root.device
                && record.head.shard == root.shard
                && record.head.incarnation == root.incarnation
                && record.head.sequence == at.sequence
                && record.head.previous_crc == at.previous_crc;
            continues.then_some((start, record))
        });
        let Some((start, record)) = next else { return records };
        let end = (start + u64::from(record.blocks)) % root.journal.blocks;
        at.sequence += 1;
        at.position = u32::try_from(end).expect("less than 2^32");
        at.previous_crc = record.crc;
        records.push((start, record));
    }
}

/// The record that begins at block `start` of the journal, if a whole one does.
fn record_at(device: &TestDevice, root: &Root, start: u64) -> Option<Record> {
    if start >= root.journal.blocks {
        return None;
    }
    let first = device.block(root.journal.start.plus(start));
    let blocks = u64::from(Record::peek_blocks(&first)?);
    let end = start.checked_add(blocks).filter(|end| *end <= root.journal.blocks)?;
    let bytes: Vec<u8> =
        (start..end).flat_map(|at| device.block(root.journal.start.plus(at))).collect();
    Record::decode(&bytes).ok()
}
