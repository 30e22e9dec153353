//! Outcomes of I/O commands, as completions.

use dataplane::{IoError, Outcome, Share};
use io_traits::{Device, World};
use nvme_target::{Connection as Transport, Outbox, SlotId, digest_of_blocks};
use nvme_wire::{IoOpcode, Status};
use units::BLOCK_SIZE;
use volume::{ReadData, VolumeError};

use crate::commands::slots_of;
use crate::connection::Connection;
use crate::status::{logged_block, nvme_status};

impl<W: World, D: Device> Connection<W, D> {
    /// Completes the command, or the fused operation, that was submitted under `tag`.
    pub(crate) fn end_request(&self, tag: dataplane::Tag, outcome: Outcome) {
        let (slot, second) = slots_of(tag);
        let result = match outcome {
            Outcome::Data(data, share) => return self.complete_read(slot, data, share),
            Outcome::Done => Ok(()),
            Outcome::Extents(_) => unreachable!("no command asks for extents"),
            Outcome::Failed(error) => Err(error),
        };
        match (second, result) {
            (Some(second), result) => self.end_fused([slot, second], result),
            (None, Ok(())) => self.complete_command(slot, Status::SUCCESS, 0),
            (None, Err(IoError::Volume(error))) => self.fail(slot, &error, None),
            // It fails as the write that was a part of it.
            (None, Err(IoError::Write(error))) => self.fail(slot, &error, Some(IoOpcode::WRITE)),
            (None, Err(IoError::ReservationConflict)) => {
                self.complete_command(slot, Status::RESERVATION_CONFLICT.with_dnr(), 0);
            }
            (None, Err(IoError::Aborted)) => {
                self.complete_command(slot, Status::ABORTED_PREEMPT, 0);
            }
            (None, Err(IoError::Miscompare { offset_bytes })) => {
                self.complete_difference(slot, offset_bytes);
            }
        }
    }

    /// Dwords 0 and 1 are the first byte that differs, if the command is the vendor specific one.
    fn complete_difference(&self, slot: SlotId, offset_bytes: u64) {
        if !self.is_open() {
            return;
        }
        let is_pair = self.command(slot).opcode == IoOpcode::COMPARE_AND_WRITE.0;
        let result = if is_pair { offset_bytes } else { 0 };
        self.complete_command(slot, Status::COMPARE_FAILURE.with_dnr(), result);
    }

    fn complete_read(&self, slot: SlotId, data: ReadData, share: Share) {
        if !data.metadata.is_empty() {
            return self.complete_extended_read(slot, &data, share);
        }
        if let Some(part) = self.part_of_read(slot, &data) {
            return self.complete_partial_read(slot, &data, part, share);
        }
        self.reply(|transport, out| {
            let ReadData { pieces, crcs, .. } = data;
            answer(transport, slot, &crcs, out, |out| {
                pieces.into_iter().for_each(|piece| out.data(piece));
                out.hold(share);
            });
        });
    }

    /// Fails the command in `slot`, as the command `part` of it if that is named.
    pub(crate) fn fail(&self, slot: SlotId, error: &VolumeError, part: Option<IoOpcode>) {
        if !self.is_open() {
            return;
        }
        let sqe = self.command(slot);
        let status = nvme_status(error, part.map_or(sqe.opcode, |opcode| opcode.0));
        let queue = self.io_queue();
        let Some(lba) = logged_block(error, &sqe, queue.sector) else {
            return self.complete_command(slot, status, 0);
        };
        let status = status.with_more();
        queue.association.record_error(queue.qid, &sqe, status, lba);
        self.complete_command(slot, status, 0);
    }
}

/// Answers a read with whole blocks, which `append` puts behind their header, under the checksums that are stored with them:
/// for a data digest the data is not gone through again.
fn answer<O: Outbox>(
    transport: &mut Transport,
    slot: SlotId,
    crcs: &[u32],
    out: &mut O,
    append: impl FnOnce(&mut O),
) {
    let len_bytes = u32::try_from(crcs.len() * BLOCK_SIZE).expect("bounded by MDTS");
    transport.complete_with_data(slot, len_bytes, || digest_of_blocks(crcs), out, append);
}

#[cfg(test)]
mod tests {
    use checksum::{append_block, crc32c};
    use nvme_target::{Limits, Step};
    use nvme_wire::SglDescriptor;
    use nvme_wire::Sqe;
    use nvme_wire::fabrics::{CONNECT_DATA_LEN, Connect};
    use nvme_wire::pdu::{CapsuleCmd, Digests, IcReq};
    use units::Instant;
    use zerocopy::{FromBytes, IntoBytes};

    use super::*;

    const DIGESTS: Digests = Digests { header: false, data: true };
    const HEADER_BYTES: usize = 24;

    /// A connection with data digests, and a command that it owes an answer.
    fn connection() -> (Transport, SlotId) {
        let mut sqe = Sqe::read_from_bytes(Connect::new(1, 32, 0).as_bytes()).expect("64 bytes");
        sqe.dptr = SglDescriptor::in_capsule(CONNECT_DATA_LEN);
        let data = [0; CONNECT_DATA_LEN as usize];
        let mut said = IcReq::new(DIGESTS, 1).as_bytes().to_vec();
        said.extend_from_slice(CapsuleCmd::new(sqe, data.len(), DIGESTS, 4).as_bytes());
        said.extend_from_slice(&data);
        said.extend_from_slice(&crc32c(&data).to_le_bytes());
        let mut transport = Transport::new(Instant(0), &Limits::default());
        let (mut input, mut out) = (said.as_slice(), Vec::new());
        loop {
            match transport.poll(Instant(0), &mut input, &mut out) {
                Step::Execute { slot } => return (transport, slot),
                Step::NeedMore | Step::Closed(_) => panic!("a whole command was said"),
                _ => {}
            }
        }
    }

    /// The digest behind the data of blocks of zeroes with these checksums.
    fn digest_on_the_wire(crcs: &[u32]) -> u32 {
        let (mut transport, slot) = connection();
        let (mut out, data) = (Vec::new(), vec![0; crcs.len() * BLOCK_SIZE]);
        answer(&mut transport, slot, crcs, &mut out, |out| out.bytes(&data));
        let at = HEADER_BYTES + data.len();
        u32::from_le_bytes(out[at..at + 4].try_into().expect("four bytes"))
    }

    /// The digest is what was stored with the block. One computed from the data would differ here.
    #[test]
    fn a_data_digest_is_made_of_stored_checksums() {
        assert_eq!(digest_on_the_wire(&[0xDEAD_BEEF]), 0xDEAD_BEEF);
        let two = digest_on_the_wire(&[0xDEAD_BEEF, 0xFEED_F00D]);
        assert_eq!(two, append_block(0xDEAD_BEEF, 0xFEED_F00D));
        let right = crc32c(&[0; BLOCK_SIZE]);
        assert_eq!(digest_on_the_wire(&[right; 3]), crc32c(&[0; 3 * BLOCK_SIZE]));
    }
}
