//! Controller properties, which a host reads and writes with Property Get and Set (Base, clause
//! 3.1.4).

use core::fmt;

/// Property offsets.
pub mod offset {
    /// Controller Capabilities, 8 bytes.
    pub const CAP: u32 = 0x00;
    /// Version, 4 bytes.
    pub const VS: u32 = 0x08;
    /// Controller Configuration, 4 bytes.
    pub const CC: u32 = 0x14;
    /// Controller Status, 4 bytes.
    pub const CSTS: u32 = 0x1C;
    /// NVM Subsystem Reset, 4 bytes.
    pub const NSSR: u32 = 0x20;
    /// Controller Ready Timeouts, 4 bytes.
    pub const CRTO: u32 = 0x68;
}

/// `width` bits of `value` from bit `shift`.
const fn bits(value: u64, shift: u32, width: u32) -> u64 {
    value >> shift & ((1 << width) - 1)
}

/// Controller Capabilities.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Cap(pub u64);

impl Cap {
    /// Contiguous Queues Required: bit 16, set on fabrics.
    pub const CQR: u64 = 1 << 16;
    /// CSS: the NVM command set.
    pub const CSS_NVM: u64 = 1 << 37;
    /// CSS: I/O command sets are chosen one by one (CC.CSS 110b).
    pub const CSS_IO_COMMAND_SETS: u64 = 1 << 43;
    /// CSS: no I/O command set, as a discovery controller has it.
    pub const CSS_NO_IO: u64 = 1 << 44;
    /// CRMS: Controller Ready With Media.
    pub const CRWMS: u64 = 1 << 59;

    /// A capability register: queues of up to `queue_entries_max` entries (2 to 65 536), ready
    /// within `timeout_500ms` half seconds, the other bits as given.
    #[must_use]
    pub const fn new(queue_entries_max: u32, timeout_500ms: u8, other_bits: u64) -> Self {
        let mqes = queue_entries_max.saturating_sub(1) & 0xFFFF;
        Self(mqes as u64 | (timeout_500ms as u64) << 24 | other_bits)
    }

    /// Maximum Queue Entries Supported, converted from 0's based.
    #[must_use]
    pub const fn queue_entries_max(self) -> u32 {
        bits(self.0, 0, 16) as u32 + 1
    }

    /// Timeout (TO): longest wait for CSTS.RDY in half seconds.
    #[must_use]
    pub const fn timeout_500ms(self) -> u8 {
        bits(self.0, 24, 8) as u8
    }

    /// Command Sets Supported, eight bits: bit 0 NVM, bit 6 I/O command sets, bit 7 none.
    #[must_use]
    pub const fn css(self) -> u8 {
        bits(self.0, 37, 8) as u8
    }

    /// Memory Page Size Minimum in bytes. MDTS counts in it.
    #[must_use]
    pub const fn page_size_min(self) -> u64 {
        1 << (12 + bits(self.0, 48, 4))
    }
}

/// Version: major, minor, tertiary.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub struct Version(pub u32);

impl Version {
    /// Version `major.minor.tertiary`.
    #[must_use]
    pub const fn new(major: u16, minor: u8, tertiary: u8) -> Self {
        Self((major as u32) << 16 | (minor as u32) << 8 | tertiary as u32)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.0 >> 16, self.0 >> 8 & 0xFF, self.0 & 0xFF)
    }
}

/// Controller Configuration.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Cc(pub u32);

impl Cc {
    /// CC.CSS: the NVM command set.
    pub const CSS_NVM: u8 = 0b000;
    /// CC.CSS: all supported I/O command sets.
    pub const CSS_ALL: u8 = 0b110;
    /// CC.CSS: admin commands only.
    pub const CSS_ADMIN_ONLY: u8 = 0b111;
    /// SHN: no shutdown.
    pub const SHN_NONE: u8 = 0b00;
    /// SHN: normal shutdown.
    pub const SHN_NORMAL: u8 = 0b01;
    /// SHN: abrupt shutdown.
    pub const SHN_ABRUPT: u8 = 0b10;
    /// SHN: reserved.
    pub const SHN_RESERVED: u8 = 0b11;
    /// CSS, MPS, AMS, IOSQES, IOCQES, CRIME.
    const SETUP: u32 = 0x01FF_3FF0;

    /// Enabled, 64-byte submission and 16-byte completion entries, 4 KiB pages, round robin.
    #[must_use]
    pub const fn enabled(css: u8) -> Self {
        Self(1 | (css as u32 & 0x7) << 4 | 6 << 16 | 4 << 20)
    }

    /// Enable.
    #[must_use]
    pub const fn en(self) -> bool {
        self.0 & 1 != 0
    }

    /// I/O Command Set Selected.
    #[must_use]
    pub const fn css(self) -> u8 {
        (self.0 >> 4 & 0x7) as u8
    }

    /// Memory Page Size: 2^(12 + MPS) bytes.
    #[must_use]
    pub const fn mps(self) -> u8 {
        (self.0 >> 7 & 0xF) as u8
    }

    /// Arbitration Mechanism Selected.
    #[must_use]
    pub const fn ams(self) -> u8 {
        (self.0 >> 11 & 0x7) as u8
    }

    /// Shutdown Notification.
    #[must_use]
    pub const fn shn(self) -> u8 {
        (self.0 >> 14 & 0x3) as u8
    }

    /// This with another Shutdown Notification.
    #[must_use]
    pub const fn with_shn(self, shn: u8) -> Self {
        Self(self.0 & !(0x3 << 14) | (shn as u32 & 0x3) << 14)
    }

    /// This with nothing but the fields that may be modified only while EN is 0: CSS, MPS, AMS, IOSQES, IOCQES, CRIME.
    #[must_use]
    pub const fn setup(self) -> Self {
        Self(self.0 & Self::SETUP)
    }

    /// I/O Submission Queue Entry Size, as a power of two.
    #[must_use]
    pub const fn iosqes(self) -> u8 {
        (self.0 >> 16 & 0xF) as u8
    }

    /// I/O Completion Queue Entry Size, as a power of two.
    #[must_use]
    pub const fn iocqes(self) -> u8 {
        (self.0 >> 20 & 0xF) as u8
    }

    /// Controller Ready Independent of Media Enable.
    #[must_use]
    pub const fn crime(self) -> bool {
        self.0 & 1 << 24 != 0
    }
}

/// Controller Status.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Csts(pub u32);

impl Csts {
    /// SHST: no shutdown has been asked for.
    pub const SHST_NORMAL: u8 = 0b00;
    /// SHST: shutting down.
    pub const SHST_OCCURRING: u8 = 0b01;
    /// SHST: shut down.
    pub const SHST_COMPLETE: u8 = 0b10;

    /// A status of these parts.
    #[must_use]
    pub const fn new(rdy: bool, cfs: bool, shst: u8) -> Self {
        Self(rdy as u32 | (cfs as u32) << 1 | (shst as u32 & 0x3) << 2)
    }

    /// Ready.
    #[must_use]
    pub const fn rdy(self) -> bool {
        self.0 & 1 != 0
    }

    /// Controller Fatal Status.
    #[must_use]
    pub const fn cfs(self) -> bool {
        self.0 & 1 << 1 != 0
    }

    /// Shutdown Status.
    #[must_use]
    pub const fn shst(self) -> u8 {
        (self.0 >> 2 & 0x3) as u8
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use super::*;

    #[test]
    fn bits_lie_where_the_specification_puts_them() {
        let cap = Cap::new(128, 30, Cap::CQR | Cap::CSS_NVM | Cap::CSS_IO_COMMAND_SETS);
        assert_eq!(cap.0, 0x0000_0820_1E01_007F);
        assert_eq!((cap.queue_entries_max(), cap.timeout_500ms(), cap.css()), (128, 30, 0x41));
        assert_eq!(cap.page_size_min(), 4096);
        // What the Linux host writes to enable a controller.
        let cc = Cc(0x0046_0001);
        assert_eq!(Cc::enabled(Cc::CSS_NVM), cc);
        assert_eq!((cc.en(), cc.iosqes(), cc.iocqes(), cc.shn()), (true, 6, 4, 0));
        assert_eq!(cc.with_shn(Cc::SHN_NORMAL).0, 0x0046_4001);
        assert_eq!(Cc(u32::MAX).with_shn(0).setup().0, 0x01FF_3FF0);
        assert_eq!(Csts::new(true, false, Csts::SHST_COMPLETE).0, 0b1001);
        assert_eq!(Version::new(2, 1, 0).to_string(), "2.1.0");
    }
}
