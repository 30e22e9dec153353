//! Data that a target has sent for reads: the host may hand out that and nothing else.
//!
//! It takes the target's words apart by their lengths alone, as the host has to.

use std::cell::RefCell;

use nvme_wire::io::BlockCommand;
use nvme_wire::pdu::{C2hData, CommonHeader, PduType};
use nvme_wire::{IoOpcode, Sqe};
use zerocopy::FromBytes;

/// First block and number of blocks.
pub(super) type Run = (u64, u32);

/// All that has been sent whole, on whatever connection.
#[derive(Default)]
pub(super) struct Witness {
    sent: RefCell<Vec<(Run, Vec<u8>)>>,
}

/// A read on a connection.
struct Read {
    cid: u16,
    run: Run,
    data: Vec<u8>,
    has_come: Vec<bool>,
}

/// Data that is sent on a connection.
#[derive(Default)]
pub(super) struct Speech {
    reads: Vec<Read>,
    /// The PDU that is not all there yet.
    rest: Vec<u8>,
}

impl Witness {
    /// Panics unless the target has sent this for a read of that run: the data of all blocks, and the metadata.
    pub(super) fn must_have_sent(&self, run: Run, data: &[u8], metadata: &[u8]) {
        let blocks = run.1 as usize;
        let (block, each) = (data.len() / blocks, metadata.len() / blocks);
        let parts = data.chunks(block).enumerate();
        let on_the_wire: Vec<u8> =
            parts.flat_map(|(at, part)| [part, &metadata[at * each..][..each]].concat()).collect();
        let sent = self.sent.borrow();
        let is_sent = sent.iter().any(|(of, bytes)| *of == run && *bytes == on_the_wire);
        assert!(is_sent, "{run:?}: the target never sent that");
    }
}

impl Speech {
    pub(super) fn on_command(&mut self, sqe: &Sqe) {
        // A command of the admin queue may look like a read; its data is not checked here.
        if sqe.opcode != IoOpcode::READ.0 {
            return;
        }
        let (command, cid) = (BlockCommand::decode(sqe), sqe.cid.get());
        let len = sqe.dptr.length.get() as usize;
        self.reads.retain(|read| read.cid != cid);
        self.reads.push(Read {
            cid,
            run: (command.slba, command.nlb),
            data: vec![0; len],
            has_come: vec![false; len],
        });
    }

    pub(super) fn on_said(&mut self, bytes: &[u8], witness: &Witness) {
        self.rest.extend_from_slice(bytes);
        while let Some(common) = CommonHeader::from_prefix(&self.rest) {
            let len = common.plen.get() as usize;
            if len < size_of::<CommonHeader>() || self.rest.len() < len {
                break;
            }
            let pdu: Vec<u8> = self.rest.drain(..len).collect();
            if common.pdu_type == PduType::C2hData as u8 {
                self.on_data(&pdu, usize::from(common.pdo), witness);
            }
        }
    }

    fn on_data(&mut self, pdu: &[u8], data_offset: usize, witness: &Witness) {
        let Ok((header, _)) = C2hData::read_from_prefix(pdu) else { return };
        let Some(data) = pdu.get(data_offset..) else { return };
        let cid = header.cccid.get();
        let Some(read) = self.reads.iter_mut().find(|read| read.cid == cid) else { return };
        let start = header.datao.get() as usize;
        let Some(place) = read.data.get_mut(start..start + data.len()) else { return };
        place.copy_from_slice(data);
        read.has_come[start..start + data.len()].fill(true);
        if read.has_come.iter().all(|has_come| *has_come) {
            witness.sent.borrow_mut().push((read.run, read.data.clone()));
        }
    }
}
