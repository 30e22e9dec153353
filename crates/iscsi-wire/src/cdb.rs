//! Command descriptor blocks (SPC-4, clause 4.2; SBC-3, clause 5).

/// Operation codes.
#[expect(missing_docs, reason = "named by the specification")]
pub mod opcode {
    pub const TEST_UNIT_READY: u8 = 0x00;
    pub const REQUEST_SENSE: u8 = 0x03;
    pub const READ_6: u8 = 0x08;
    pub const WRITE_6: u8 = 0x0A;
    pub const INQUIRY: u8 = 0x12;
    pub const MODE_SELECT_6: u8 = 0x15;
    pub const RESERVE_6: u8 = 0x16;
    pub const RELEASE_6: u8 = 0x17;
    pub const MODE_SENSE_6: u8 = 0x1A;
    pub const START_STOP_UNIT: u8 = 0x1B;
    pub const PREVENT_ALLOW: u8 = 0x1E;
    pub const READ_CAPACITY_10: u8 = 0x25;
    pub const READ_10: u8 = 0x28;
    pub const WRITE_10: u8 = 0x2A;
    pub const WRITE_AND_VERIFY_10: u8 = 0x2E;
    pub const VERIFY_10: u8 = 0x2F;
    pub const PREFETCH_10: u8 = 0x34;
    pub const SYNCHRONIZE_CACHE_10: u8 = 0x35;
    pub const WRITE_SAME_10: u8 = 0x41;
    pub const UNMAP: u8 = 0x42;
    pub const MODE_SELECT_10: u8 = 0x55;
    pub const RESERVE_10: u8 = 0x56;
    pub const RELEASE_10: u8 = 0x57;
    pub const MODE_SENSE_10: u8 = 0x5A;
    pub const PERSISTENT_RESERVE_IN: u8 = 0x5E;
    pub const PERSISTENT_RESERVE_OUT: u8 = 0x5F;
    pub const READ_16: u8 = 0x88;
    pub const COMPARE_AND_WRITE: u8 = 0x89;
    pub const WRITE_16: u8 = 0x8A;
    pub const WRITE_AND_VERIFY_16: u8 = 0x8E;
    pub const VERIFY_16: u8 = 0x8F;
    pub const PREFETCH_16: u8 = 0x90;
    pub const SYNCHRONIZE_CACHE_16: u8 = 0x91;
    pub const WRITE_SAME_16: u8 = 0x93;
    pub const WRITE_ATOMIC_16: u8 = 0x9C;
    pub const SERVICE_ACTION_IN_16: u8 = 0x9E;
    pub const REPORT_LUNS: u8 = 0xA0;
    pub const MAINTENANCE_IN: u8 = 0xA3;
    pub const READ_12: u8 = 0xA8;
    pub const WRITE_12: u8 = 0xAA;
    pub const WRITE_AND_VERIFY_12: u8 = 0xAE;
    pub const VERIFY_12: u8 = 0xAF;
}

/// Service actions of [`opcode::SERVICE_ACTION_IN_16`].
#[expect(missing_docs, reason = "named by the specification")]
pub mod service_action_in {
    pub const READ_CAPACITY_16: u8 = 0x10;
    pub const GET_LBA_STATUS: u8 = 0x12;
}

/// Service actions of [`opcode::PERSISTENT_RESERVE_IN`].
#[expect(missing_docs, reason = "named by the specification")]
pub mod reserve_in {
    pub const READ_KEYS: u8 = 0x00;
    pub const READ_RESERVATION: u8 = 0x01;
    pub const REPORT_CAPABILITIES: u8 = 0x02;
    pub const READ_FULL_STATUS: u8 = 0x03;
}

/// Service actions of [`opcode::PERSISTENT_RESERVE_OUT`].
#[expect(missing_docs, reason = "named by the specification")]
pub mod reserve_out {
    pub const REGISTER: u8 = 0x00;
    pub const RESERVE: u8 = 0x01;
    pub const RELEASE: u8 = 0x02;
    pub const CLEAR: u8 = 0x03;
    pub const PREEMPT: u8 = 0x04;
    pub const PREEMPT_AND_ABORT: u8 = 0x05;
    pub const REGISTER_AND_IGNORE: u8 = 0x06;
    pub const REGISTER_AND_MOVE: u8 = 0x07;
}

/// Service actions of [`opcode::MAINTENANCE_IN`].
#[expect(missing_docs, reason = "named by the specification")]
pub mod maintenance_in {
    pub const REPORT_TARGET_PORT_GROUPS: u8 = 0x0A;
    pub const REPORT_SUPPORTED_OPCODES: u8 = 0x0C;
    pub const REPORT_SUPPORTED_TASK_FUNCTIONS: u8 = 0x0D;
}

/// A command descriptor block as PDUs carry it: 16 bytes, of which the operation code says how many count.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Cdb(pub [u8; 16]);

impl Cdb {
    /// The operation code.
    #[must_use]
    pub fn opcode(&self) -> u8 {
        self.0[0]
    }

    /// Bytes of the block; `None` for the groups of codes that do not say.
    #[must_use]
    pub fn len_bytes(&self) -> Option<usize> {
        match self.0[0] >> 5 {
            0 => Some(6),
            1 | 2 => Some(10),
            4 => Some(16),
            5 => Some(12),
            _ => None,
        }
    }

    /// CONTROL, the last byte; of six bytes if the code does not say how many count.
    #[must_use]
    pub fn control(&self) -> u8 {
        self.0[self.len_bytes().unwrap_or(6) - 1]
    }

    /// A byte.
    #[must_use]
    pub fn byte(&self, at: usize) -> u8 {
        self.0.get(at).copied().unwrap_or(0)
    }

    /// A 16-bit field.
    #[must_use]
    pub fn u16_at(&self, at: usize) -> u16 {
        u16::from_be_bytes([self.byte(at), self.byte(at + 1)])
    }

    /// A 32-bit field.
    #[must_use]
    pub fn u32_at(&self, at: usize) -> u32 {
        u32::from(self.u16_at(at)) << 16 | u32::from(self.u16_at(at + 2))
    }

    /// A 64-bit field.
    #[must_use]
    pub fn u64_at(&self, at: usize) -> u64 {
        u64::from(self.u32_at(at)) << 32 | u64::from(self.u32_at(at + 4))
    }

    /// The first block and the number of blocks of a command that names them, in the form of its group.
    #[must_use]
    pub fn blocks(&self) -> (u64, u32) {
        match self.len_bytes() {
            Some(6) => {
                let lba = self.u32_at(0) & 0x1F_FFFF;
                // In six bytes 0 stands for 256.
                let count = if self.0[4] == 0 { 256 } else { u32::from(self.0[4]) };
                (lba.into(), count)
            }
            Some(12) => (self.u32_at(2).into(), self.u32_at(6)),
            Some(16) => (self.u64_at(2), self.u32_at(10)),
            _ => (self.u32_at(2).into(), self.u16_at(7).into()),
        }
    }

    /// A block of ten bytes or more with a first block and a number of blocks, for initiators.
    #[must_use]
    pub fn with_blocks(opcode: u8, lba: u64, count: u32) -> Self {
        let mut bytes = [0; 16];
        bytes[0] = opcode;
        let [_, _, _, _, lba32 @ ..] = lba.to_be_bytes();
        match (Self(bytes)).len_bytes() {
            Some(16) => {
                bytes[2..10].copy_from_slice(&lba.to_be_bytes());
                bytes[10..14].copy_from_slice(&count.to_be_bytes());
            }
            Some(12) => {
                bytes[2..6].copy_from_slice(&lba32);
                bytes[6..10].copy_from_slice(&count.to_be_bytes());
            }
            _ => {
                bytes[2..6].copy_from_slice(&lba32);
                bytes[7..9].copy_from_slice(&count.to_be_bytes()[2..]);
            }
        }
        Self(bytes)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn blocks_are_where_each_group_has_them() {
        let read6 = Cdb([0x08, 0x1F, 0xFF, 0xFE, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(read6.blocks(), (0x1F_FFFE, 256));
        let mut read6_with_lun = read6;
        read6_with_lun.0[1] = 0xE1;
        assert_eq!(read6_with_lun.blocks().0, 0x01_FFFE);
        let read10 = Cdb([0x28, 8, 1, 2, 3, 4, 0, 5, 6, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!((read10.blocks(), read10.len_bytes()), ((0x0102_0304, 0x0506), Some(10)));
        let read12 = Cdb([0xA8, 0, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0, 0, 0]);
        assert_eq!(read12.blocks(), (0x0102_0304, 0x0506_0708));
        let read16 = Cdb([0x88, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 0, 0]);
        assert_eq!(read16.blocks(), (0x0102_0304_0506_0708, 0x090A_0B0C));
    }

    proptest! {
        #[test]
        fn blocks_come_back(lba: u32, count: u16) {
            for opcode in [0x28, 0xA8, 0x88] {
                let cdb = Cdb::with_blocks(opcode, lba.into(), count.into());
                prop_assert_eq!(cdb.blocks(), (lba.into(), count.into()));
            }
        }

        /// ISCSI-WIRE-1.
        #[test]
        fn any_bytes_are_taken(bytes: [u8; 16], at in 0_usize..32) {
            let cdb = Cdb(bytes);
            let _ = (cdb.blocks(), cdb.control(), cdb.u64_at(at), cdb.len_bytes());
        }
    }
}
