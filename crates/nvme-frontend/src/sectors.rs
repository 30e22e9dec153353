//! Logical blocks smaller than the engine's: what of a read is sent, and the logical block that an error names.

use std::ops::Range;

use checksum::Crc32c;
use dataplane::Share;
use io_traits::{Device, World};
use nvme_target::SlotId;
use nvme_wire::io::BlockCommand;
use nvme_wire::{IoOpcode, Sqe};
use units::{Lba, LbaRange, SectorSize};
use volume::ReadData;

use crate::connection::{Connection, Out, Role};

/// The first logical block of `block` that `sqe` can mean.
pub(crate) fn first_sector_of(block: Lba, sector: SectorSize, sqe: &Sqe) -> Lba {
    let first = block.0.saturating_mul(sector.per_block());
    // Ranges to be deallocated are not in the command, and are of whole blocks.
    if sector == SectorSize::Bytes4096 || sqe.opcode == IoOpcode::DATASET_MANAGEMENT.0 {
        return Lba(first);
    }
    Lba(first.max(BlockCommand::decode(sqe).slba))
}

impl<W: World, D: Device> Connection<W, D> {
    /// The bytes of `data` that the read in `slot` asked for; `None` for all.
    pub(crate) fn part_of_read(&self, slot: SlotId, data: &ReadData) -> Option<Range<usize>> {
        let sector = match &*self.role.borrow() {
            Role::Io(queue) => queue.sector,
            Role::New | Role::Admin(_) => return None,
        };
        if sector == SectorSize::Bytes4096 || !self.is_open() {
            return None;
        }
        let command = BlockCommand::decode(&self.command(slot));
        let range = LbaRange::new(Lba(command.slba), u64::from(command.nlb));
        let (_, part) = sector.blocks_of(range);
        (part.len() < data.len_bytes()).then_some(part)
    }

    /// Answers a read with a part of what was read. No checksum is stored of that: the data digest is computed.
    pub(crate) fn complete_partial_read(
        &self,
        slot: SlotId,
        data: &ReadData,
        part: Range<usize>,
        share: Share,
    ) {
        let len_bytes = u32::try_from(part.len()).expect("bounded by MDTS");
        self.reply(|transport, out| {
            let digest = || {
                let mut digest = Crc32c::new();
                data.slices(part.clone()).for_each(|slice| digest.update(slice.as_bytes()));
                digest.value()
            };
            let append = |out: &mut Out<'_, '_>| {
                data.slices(part.clone()).for_each(|slice| out.data(slice));
                out.hold(share);
            };
            transport.complete_with_data(slot, len_bytes, digest, out, append);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_a_logical_block_of_its_command() {
        let sqe = BlockCommand::new(19, 40).encode(IoOpcode::READ, 1, 40 * 512);
        let named = |block, sector| first_sector_of(Lba(block), sector, &sqe).0;
        assert_eq!(named(2, SectorSize::Bytes512), 19, "its first one");
        assert_eq!(named(3, SectorSize::Bytes512), 24);
        assert_eq!(named(30, SectorSize::Bytes4096), 30);
    }
}
