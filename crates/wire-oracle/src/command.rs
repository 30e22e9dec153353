//! Commands: their submission queue entries as bytes, and what each must come to.

use std::collections::VecDeque;
use std::ops::Range;

use crate::setup::{Identity, Queue, Setup};

/// Opcodes of the NVM Command Set; 81h is the product's own, whose data is what is compared and, behind that, what is
/// written.
const FLUSH: u8 = 0x00;
const WRITE: u8 = 0x01;
const READ: u8 = 0x02;
const COMPARE: u8 = 0x05;
const WRITE_ZEROES: u8 = 0x08;
const DATASET_MANAGEMENT: u8 = 0x09;
const COMPARE_AND_WRITE: u8 = 0x81;
const IDENTIFY: u8 = 0x06;
const FABRICS: u8 = 0x7F;
/// PSDT: SGLs. The only one that fabrics have.
const PSDT_SGL: u8 = 0x40;
const FUSED_FIRST: u8 = 0x01;
const FUSED_SECOND: u8 = 0x02;
/// SGL Data Block descriptor with an offset into the capsule.
const SGL_IN_CAPSULE: u8 = 0x01;
/// Transport SGL Data Block descriptor.
const SGL_TRANSPORT: u8 = 0x5A;
/// CATTR: no flow control of the submission queue.
const CATTR_NO_FLOW_CONTROL: u8 = 0x04;

/// Status Code Type and Status Code of a completion.
pub(crate) type Status = u16;

pub(crate) const SUCCESS: Status = 0x000;
pub(crate) const FAILED_FUSED: Status = 0x009;
pub(crate) const TRANSIENT_TRANSPORT_ERROR: Status = 0x022;
pub(crate) const COMPARE_FAILURE: Status = 0x285;

/// The operation of a command.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Kind {
    Connect,
    Enable,
    Identify {
        cns: u8,
    },
    Read,
    Write,
    Zeroes,
    /// The blocks of each run, by its start and length.
    Deallocate(Vec<(usize, usize)>),
    Flush,
    Compare,
    CompareAndWrite,
    FusedCompare,
    FusedWrite,
}

/// An R2T of the controller that is not fully answered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    pub(crate) ttag: u16,
    pub(crate) start: usize,
    pub(crate) end: usize,
    /// First byte that was not sent.
    pub(crate) at: usize,
}

/// A command of a host.
#[derive(Clone, Debug)]
pub(crate) struct Command {
    pub(crate) kind: Kind,
    pub(crate) cid: u16,
    /// The blocks that it is about.
    pub(crate) blocks: Range<usize>,
    /// Data for the controller.
    pub(crate) data: Vec<u8>,
    pub(crate) is_in_capsule: bool,
    /// Bytes wanted from the controller.
    pub(crate) wanted: usize,
    pub(crate) received: Vec<u8>,
    pub(crate) has_last: bool,
    /// Bytes that R2Ts have asked for.
    pub(crate) solicited: usize,
    pub(crate) asked: VecDeque<Asked>,
    /// A digest of its data was damaged on purpose.
    pub(crate) is_damaged: bool,
    /// The compared data differs from the data in the volume.
    pub(crate) must_differ: bool,
    /// The other half of a fused operation.
    pub(crate) partner: Option<u16>,
    /// The status of its completion; a half is kept until the other one has ended, too.
    pub(crate) ended: Option<Status>,
}

impl Command {
    pub(crate) fn new(kind: Kind, cid: u16, blocks: Range<usize>) -> Self {
        Self {
            kind,
            cid,
            blocks,
            data: Vec::new(),
            is_in_capsule: false,
            wanted: 0,
            received: Vec::new(),
            has_last: false,
            solicited: 0,
            asked: VecDeque::new(),
            is_damaged: false,
            must_differ: false,
            partner: None,
            ended: None,
        }
    }

    /// The content of the blocks after it, if it succeeds and changes any.
    pub(crate) fn writes(&self, each: usize) -> Vec<(usize, Vec<u8>)> {
        let start = self.blocks.start;
        match &self.kind {
            Kind::Write | Kind::FusedWrite => vec![(start, self.data.clone())],
            Kind::CompareAndWrite => vec![(start, self.data[self.data.len() / 2..].to_vec())],
            Kind::Zeroes => vec![(start, vec![0; self.blocks.len() * each])],
            Kind::Deallocate(runs) => {
                runs.iter().map(|(start, count)| (*start, vec![0; count * each])).collect()
            }
            _ => Vec::new(),
        }
    }

    /// The submission queue entry.
    pub(crate) fn sqe(&self, setup: &Setup) -> [u8; 64] {
        let mut sqe = [0; 64];
        sqe[0] = self.opcode();
        sqe[1] = PSDT_SGL
            | match self.kind {
                Kind::FusedCompare => FUSED_FIRST,
                Kind::FusedWrite => FUSED_SECOND,
                _ => 0,
            };
        sqe[2..4].copy_from_slice(&self.cid.to_le_bytes());
        self.put_sgl(&mut sqe);
        let blocks = self.blocks.len() as u32;
        match &self.kind {
            Kind::Connect => put_connect(&mut sqe, setup),
            // Property Set of CC (14h): EN, entries of 64 and 16 bytes.
            Kind::Enable => {
                sqe[44..48].copy_from_slice(&0x14_u32.to_le_bytes());
                sqe[48..56].copy_from_slice(&0x0046_0001_u64.to_le_bytes());
            }
            Kind::Identify { cns } => {
                sqe[4] = u8::from(*cns == 0);
                sqe[40] = *cns;
            }
            Kind::Flush => sqe[4] = 1,
            Kind::Deallocate(runs) => {
                sqe[4] = 1;
                sqe[40] = (runs.len() - 1) as u8;
                sqe[44] = 0x04;
            }
            _ => {
                sqe[4] = 1;
                sqe[40..48].copy_from_slice(&(self.blocks.start as u64).to_le_bytes());
                sqe[48..52].copy_from_slice(&(blocks - 1).to_le_bytes());
            }
        }
        sqe
    }

    fn opcode(&self) -> u8 {
        match self.kind {
            Kind::Connect | Kind::Enable => FABRICS,
            Kind::Identify { .. } => IDENTIFY,
            Kind::Read => READ,
            Kind::Write | Kind::FusedWrite => WRITE,
            Kind::Zeroes => WRITE_ZEROES,
            Kind::Deallocate(_) => DATASET_MANAGEMENT,
            Kind::Flush => FLUSH,
            Kind::Compare | Kind::FusedCompare => COMPARE,
            Kind::CompareAndWrite => COMPARE_AND_WRITE,
        }
    }

    fn put_sgl(&self, sqe: &mut [u8; 64]) {
        let len = self.data.len().max(self.wanted) as u32;
        sqe[32..36].copy_from_slice(&len.to_le_bytes());
        sqe[39] = if self.is_in_capsule { SGL_IN_CAPSULE } else { SGL_TRANSPORT };
    }
}

fn put_connect(sqe: &mut [u8; 64], setup: &Setup) {
    sqe[4] = 0x01;
    let (qid, kato_ms) = match setup.queue {
        Queue::Admin => (0, 120_000_u32),
        Queue::Io { qid, .. } => (qid, 0),
    };
    sqe[42..44].copy_from_slice(&qid.to_le_bytes());
    sqe[44..46].copy_from_slice(&setup.sqsize.to_le_bytes());
    sqe[46] = if setup.flow_control { 0 } else { CATTR_NO_FLOW_CONTROL };
    sqe[48..52].copy_from_slice(&kato_ms.to_le_bytes());
}

/// The data of a Connect.
pub(crate) fn connect_data(identity: &Identity, queue: Queue) -> Vec<u8> {
    let mut data = vec![0; 1024];
    let cntlid = match queue {
        Queue::Admin => 0xFFFF,
        Queue::Io { cntlid, .. } => cntlid,
    };
    data[..16].copy_from_slice(&identity.hostid);
    data[16..18].copy_from_slice(&cntlid.to_le_bytes());
    data[256..256 + identity.subnqn.len()].copy_from_slice(identity.subnqn.as_bytes());
    data[512..512 + identity.hostnqn.len()].copy_from_slice(identity.hostnqn.as_bytes());
    data
}

/// The ranges of a Dataset Management command, 16 bytes each.
pub(crate) fn range_list(runs: &[(usize, usize)]) -> Vec<u8> {
    let mut list = Vec::with_capacity(16 * runs.len());
    for (start, count) in runs {
        list.extend_from_slice(&[0; 4]);
        list.extend_from_slice(&(*count as u32).to_le_bytes());
        list.extend_from_slice(&(*start as u64).to_le_bytes());
    }
    list
}
