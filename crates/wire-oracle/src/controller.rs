//! The answers of a controller before I/O flows: properties, Identify, features (Base, clauses 3.1.4, 5.1 and
//! 5.2).

/// The answer to a command on the admin queue, or to a Fabrics command.
pub(crate) struct Answer {
    /// Dwords 0 and 1 of the completion.
    pub(crate) result: u64,
    /// Data for the host.
    pub(crate) data: Vec<u8>,
}

/// A controller with one namespace.
#[derive(Clone, Copy, Debug)]
pub struct Controller {
    /// Blocks of the namespace.
    pub blocks: u64,
    /// Bytes of a block's data, as a power of two.
    pub lbads: u8,
    /// Bytes of metadata behind the data of each block.
    pub metadata: u16,
    /// Most bytes of in-capsule data on an I/O queue, a multiple of 16.
    pub in_capsule_max: u32,
    /// CC.EN was set: CSTS.RDY follows at once.
    pub(crate) is_enabled: bool,
}

const CNTLID: u64 = 0x1234;

impl Controller {
    /// A controller that is not enabled.
    #[must_use]
    pub fn new(blocks: u64, lbads: u8, metadata: u16, in_capsule_max: u32) -> Self {
        Self { blocks, lbads, metadata, in_capsule_max, is_enabled: false }
    }

    /// Answers a Fabrics command; one without data for the host.
    pub(crate) fn fabrics(&mut self, sqe: &[u8]) -> Answer {
        let offset = u32::from_le_bytes(sqe[44..48].try_into().expect("four bytes"));
        let result = match (sqe[4], offset) {
            // Connect.
            (0x01, _) => CNTLID,
            // Property Get of CAP (MQES 127, CQR, TO 10 s, NVM command set), VS 2.0, CSTS.
            (0x04, 0x00) => 127 | 1 << 16 | 20 << 24 | 1 << 37,
            (0x04, 0x08) => 0x0002_0000,
            (0x04, 0x1C) => u64::from(self.is_enabled),
            // Property Set of CC.
            (0x00, 0x14) => {
                self.is_enabled = sqe[48] & 1 != 0;
                0
            }
            _ => 0,
        };
        Answer { result, data: Vec::new() }
    }

    /// Answers a command on the admin queue that wants `len` bytes.
    pub(crate) fn admin(&self, sqe: &[u8], len: usize) -> Answer {
        // Set Features (Number of Queues): one of each, 0's based.
        let mut data = match (sqe[0], sqe[40]) {
            (0x06, 0x01) => self.identify_controller(),
            (0x06, 0x00) => self.identify_namespace(),
            (0x06, 0x02) => 1_u32.to_le_bytes().to_vec(),
            _ => Vec::new(),
        };
        data.resize(len, 0);
        Answer { result: 0, data }
    }

    fn identify_controller(&self) -> Vec<u8> {
        let mut data = vec![0; 4096];
        // MDTS: 2^5 pages of 4 KiB. CNTLID. VER. KAS: 100 ms.
        data[77] = 5;
        data[78..80].copy_from_slice(&(CNTLID as u16).to_le_bytes());
        data[80..84].copy_from_slice(&0x0002_0000_u32.to_le_bytes());
        data[320] = 1;
        // SQES, CQES, NN.
        (data[512], data[513], data[516]) = (0x66, 0x44, 1);
        data[1792..1796].copy_from_slice(&((64 + self.in_capsule_max) / 16).to_le_bytes());
        data[1796] = 1;
        data
    }

    fn identify_namespace(&self) -> Vec<u8> {
        let mut data = vec![0; 4096];
        // NSZE, NCAP; FLBAS: format 0, with metadata behind the data.
        data[..8].copy_from_slice(&self.blocks.to_le_bytes());
        data[8..16].copy_from_slice(&self.blocks.to_le_bytes());
        data[26] = if self.metadata > 0 { 0x10 } else { 0 };
        data[128..130].copy_from_slice(&self.metadata.to_le_bytes());
        data[130] = self.lbads;
        data
    }
}
