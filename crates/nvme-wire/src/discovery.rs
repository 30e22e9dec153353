//! Discovery log page: which subsystems a host may connect to, and where (Base, clause 5.1.12.3.1).

use core::mem::{offset_of, size_of};

use zerocopy::little_endian::{U16, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::Nqn;
use crate::nqn::NqnError;

/// TRTYPE: TCP.
pub const TRTYPE_TCP: u8 = 3;
/// ADRFAM: IPv4.
pub const ADRFAM_IPV4: u8 = 1;
/// ADRFAM: IPv6.
pub const ADRFAM_IPV6: u8 = 2;
/// SUBTYPE: a referral to another discovery service.
pub const SUBTYPE_REFERRAL: u8 = 1;
/// SUBTYPE: an NVM subsystem.
pub const SUBTYPE_NVM: u8 = 2;
/// SUBTYPE: the discovery subsystem that answers.
pub const SUBTYPE_CURRENT_DISCOVERY: u8 = 3;
/// TREQ: nothing is said about a secure channel. Some hosts take "not required" for a wish to have
/// one, and ask a kernel for TLS that knows none.
pub const TREQ_NOT_SPECIFIED: u8 = 0;
/// TREQ: the controller can do without submission queue flow control.
pub const TREQ_DISABLE_SQ_FLOW: u8 = 1 << 2;
/// EFLAGS: another entry of this log leads to the same log.
pub const EFLAGS_DUPLICATE: u16 = 1 << 0;
/// EFLAGS: the discovery controller keeps connections open and sends events.
pub const EFLAGS_EXPLICIT_PERSISTENT: u16 = 1 << 1;
/// CNTLID of an entry whose subsystem uses the dynamic controller model.
pub const CNTLID_DYNAMIC: u16 = 0xFFFF;
/// TSAS: no security, first byte.
pub const TSAS_SECTYPE_NONE: u8 = 0;

/// Head of the discovery log page; `numrec` entries follow.
#[derive(
    Clone, Copy, Debug, Eq, PartialEq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct DiscoveryLogHeader {
    /// 0..8: Generation Counter: changes when the log does.
    pub genctr: U64,
    /// 8..16: Number of Records.
    pub numrec: U64,
    /// 16..18: Record Format, 0.
    pub recfmt: U16,
    /// 18..1024: reserved.
    pub reserved: [u8; 1006],
}

const _: () = assert!(size_of::<DiscoveryLogHeader>() == 1024);

impl DiscoveryLogHeader {
    /// The head of a log of `numrec` entries.
    #[must_use]
    pub fn new(genctr: u64, numrec: u64) -> Self {
        Self { genctr: genctr.into(), numrec: numrec.into(), ..Self::new_zeroed() }
    }
}

/// One way to one subsystem.
#[derive(
    Clone, Copy, Debug, Eq, PartialEq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct DiscoveryLogEntry {
    /// 0: Transport Type.
    pub trtype: u8,
    /// 1: Address Family.
    pub adrfam: u8,
    /// 2: Subsystem Type.
    pub subtype: u8,
    /// 3: Transport Requirements.
    pub treq: u8,
    /// 4..6: Port ID.
    pub portid: U16,
    /// 6..8: Controller ID.
    pub cntlid: U16,
    /// 8..10: Admin Max SQ Size, not 0's based.
    pub asqsz: U16,
    /// 10..12: Entry Flags.
    pub eflags: U16,
    /// 12..32: reserved.
    pub reserved: [u8; 20],
    /// 32..64: Transport Service Identifier: the TCP port in decimal, padded with spaces or
    /// zeroes.
    pub trsvcid: [u8; 32],
    /// 64..256: reserved.
    pub reserved2: [u8; 192],
    /// 256..512: NVM Subsystem Qualified Name.
    pub subnqn: [u8; 256],
    /// 512..768: Transport Address: the IP address as text.
    pub traddr: [u8; 256],
    /// 768..1024: Transport Specific Address Subtype; byte 0 is SECTYPE on TCP.
    pub tsas: [u8; 256],
}

const _: () = {
    assert!(size_of::<DiscoveryLogEntry>() == 1024);
    assert!(offset_of!(DiscoveryLogEntry, trsvcid) == 32);
    assert!(offset_of!(DiscoveryLogEntry, traddr) == 512);
};

impl DiscoveryLogEntry {
    /// `subsystem` can be reached over TCP at `address`, with flow control of submission queues or without.
    #[must_use]
    pub fn tcp(subtype: u8, subsystem: &Nqn, address: core::net::SocketAddr) -> Self {
        use alloc::string::ToString;
        let mut entry = Self {
            trtype: TRTYPE_TCP,
            adrfam: if address.is_ipv4() { ADRFAM_IPV4 } else { ADRFAM_IPV6 },
            subtype,
            treq: TREQ_NOT_SPECIFIED | TREQ_DISABLE_SQ_FLOW,
            cntlid: CNTLID_DYNAMIC.into(),
            asqsz: 32.into(),
            subnqn: subsystem.to_field(),
            ..Self::new_zeroed()
        };
        let (traddr, trsvcid) = (address.ip().to_string(), address.port().to_string());
        entry.traddr[..traddr.len()].copy_from_slice(traddr.as_bytes());
        entry.trsvcid[..trsvcid.len()].copy_from_slice(trsvcid.as_bytes());
        entry
    }

    /// The subsystem's name.
    pub fn subsystem(&self) -> Result<Nqn, NqnError> {
        Nqn::from_field(&self.subnqn)
    }

    /// The entry's address, if it is for TCP and holds a numeric address and port.
    #[must_use]
    pub fn address(&self) -> Option<core::net::SocketAddr> {
        if self.trtype != TRTYPE_TCP {
            return None;
        }
        let ip = text(&self.traddr)?.parse().ok()?;
        let port = text(&self.trsvcid)?.parse().ok()?;
        Some(core::net::SocketAddr::new(ip, port))
    }
}

/// The text of a field that is padded with zeroes or spaces.
fn text(field: &[u8]) -> Option<&str> {
    let len = field.iter().position(|byte| *byte == 0).unwrap_or(field.len());
    Some(core::str::from_utf8(&field[..len]).ok()?.trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_matches_the_golden_bytes_and_reads_back() {
        let address = "192.0.2.7:4420".parse().expect("an address");
        let entry = DiscoveryLogEntry::tcp(SUBTYPE_NVM, &Nqn::DISCOVERY, address);
        let bytes = entry.as_bytes();
        assert_eq!(bytes[..12], [3, 1, 2, 4, 0, 0, 0xFF, 0xFF, 32, 0, 0, 0]);
        assert_eq!(bytes[32..37], *b"4420\0");
        assert_eq!(bytes[512..522], *b"192.0.2.7\0");
        assert_eq!(entry.address(), Some(address));
        assert_eq!(entry.subsystem(), Ok(Nqn::DISCOVERY));
        let v6 = "[2001:db8::1]:8009".parse().expect("an address");
        assert_eq!(DiscoveryLogEntry::tcp(SUBTYPE_NVM, &Nqn::DISCOVERY, v6).address(), Some(v6));
    }

    #[test]
    fn foreign_entries_do_not_panic() {
        assert_eq!(
            DiscoveryLogEntry { trtype: 1, ..DiscoveryLogEntry::new_zeroed() }.address(),
            None
        );
        let noise = DiscoveryLogEntry::read_from_bytes(&[0xA5; 1024]).expect("any bytes");
        assert_eq!(noise.address(), None);
        assert!(noise.subsystem().is_err());
    }
}
