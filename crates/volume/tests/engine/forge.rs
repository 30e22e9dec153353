//! Changes to a device that no checksum tells of.

use layout::NodeView;
use units::{BLOCK_SIZE, Pba};

use crate::common::TestDevice;

/// Bytes of an address in a pointer, which a checksum follows.
const ADDRESS_BYTES: usize = 5;

/// Changes a block, and whatever holds its checksum, and so on.
pub(crate) fn forge(device: &TestDevice, pba: Pba, change: impl FnOnce(&mut [u8; BLOCK_SIZE])) {
    change_sealed(device, pba, Box::new(change));
}

type Change<'a> = Box<dyn FnOnce(&mut [u8; BLOCK_SIZE]) + 'a>;

fn change_sealed(device: &TestDevice, pba: Pba, change: Change<'_>) {
    let was = device.block(pba);
    let mut block = was;
    change(&mut block);
    if block == was {
        return;
    }
    seal(&mut block, &was);
    device.put(pba, block);
    let (old, new) = (checksum::crc32c(&was).to_le_bytes(), checksum::crc32c(&block).to_le_bytes());
    // All that holds checksums of others begins with a signature.
    for holder in device.find_by(|bytes| bytes[0] == b'F') {
        let holds = |block: &[u8]| block.windows(4).position(|bytes| bytes == old);
        while let Some(at) = holds(&device.block(holder)).filter(|_| holder != pba) {
            let put = |block: &mut [u8; BLOCK_SIZE]| block[at..at + 4].copy_from_slice(&new);
            change_sealed(device, holder, Box::new(put));
        }
    }
}

/// Recomputes each checksum that covers all bytes behind it.
fn seal(block: &mut [u8; BLOCK_SIZE], was: &[u8; BLOCK_SIZE]) {
    for at in [4, 8] {
        let crc = |bytes: &[u8]| checksum::crc32c(&bytes[at + 4..]).to_le_bytes();
        if was[at..at + 4] == crc(was) {
            let crc = crc(block);
            block[at..at + 4].copy_from_slice(&crc);
        }
    }
}

/// Returns the location of a volume's block, and of the leaf with it that the last checkpoint
/// wrote.
pub(crate) fn place_of(device: &TestDevice, volume: u32, lba: u64) -> (Pba, Pba) {
    let entry = |leaf: Pba| {
        let block = device.block(leaf);
        let view = NodeView::decode(&block).ok()?;
        let is_leaf = view.tree == volume && view.level == 0;
        is_leaf.then(|| view.entries().find(|(key, _)| *key == lba)).flatten()
    };
    let nodes = device.find_by(|bytes| bytes.starts_with(b"FMN1")).into_iter();
    let mut found = nodes.filter_map(|leaf| Some((leaf, entry(leaf)?.1.pba)));
    found.next_back().expect("the block is mapped")
}

/// Has the leaf of a volume's block name another, at `to`, where `crc` is right.
pub(crate) fn redirect(device: &TestDevice, volume: u32, lba: u64, (to, crc): (Pba, u32)) {
    let (leaf, from) = place_of(device, volume, lba);
    let address = &from.0.to_le_bytes()[..ADDRESS_BYTES];
    forge(device, leaf, |block| {
        let mut places = block.windows(ADDRESS_BYTES).enumerate();
        let (at, _) = places.find(|(_, bytes)| *bytes == address).expect("it is named");
        block[at..at + ADDRESS_BYTES].copy_from_slice(&to.0.to_le_bytes()[..ADDRESS_BYTES]);
        block[at + ADDRESS_BYTES..at + ADDRESS_BYTES + 4].copy_from_slice(&crc.to_le_bytes());
    });
}
