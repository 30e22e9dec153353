//! Namespace ID lists, CNS 02h, and Namespace Identification Descriptors, CNS 03h (Base, clauses
//! 5.1.13.2.2 and 5.1.13.2.3).

use core::mem::size_of;

use alloc::vec::Vec;
use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::IDENTIFY_LEN;

/// Up to 1024 namespace IDs in rising order; the first zero ends the list.
#[derive(Clone, Debug, Eq, PartialEq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct NamespaceIdList {
    /// The namespace IDs.
    pub nsids: [U32; 1024],
}

const _: () = assert!(size_of::<NamespaceIdList>() == IDENTIFY_LEN);

impl NamespaceIdList {
    /// The list of the first 1024 of `nsids`, which rise.
    #[must_use]
    pub fn new(nsids: impl IntoIterator<Item = u32>) -> Self {
        let mut list = Self::new_zeroed();
        for (slot, nsid) in list.nsids.iter_mut().zip(nsids) {
            *slot = nsid.into();
        }
        list
    }

    /// The namespace IDs up to the end of the list.
    pub fn iter(&self) -> impl Iterator<Item = u32> {
        self.nsids.iter().map(|nsid| nsid.get()).take_while(|nsid| *nsid != 0)
    }
}

/// One way to name a namespace.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum NamespaceDescriptor {
    /// NIDT 1h: IEEE Extended Unique Identifier.
    Eui64([u8; 8]),
    /// NIDT 2h: Namespace Globally Unique Identifier.
    Nguid([u8; 16]),
    /// NIDT 3h: Namespace UUID.
    Uuid([u8; 16]),
    /// NIDT 4h: Command Set Identifier.
    Csi(u8),
}

/// The descriptor list, padded to its length. Panics if more than fits is given: at most one of
/// each type belongs in it.
#[must_use]
pub fn encode_descriptors(descriptors: &[NamespaceDescriptor]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(IDENTIFY_LEN);
    for descriptor in descriptors {
        let (nidt, nid): (u8, &[u8]) = match descriptor {
            NamespaceDescriptor::Eui64(nid) => (1, nid),
            NamespaceDescriptor::Nguid(nid) => (2, nid),
            NamespaceDescriptor::Uuid(nid) => (3, nid),
            NamespaceDescriptor::Csi(csi) => (4, core::slice::from_ref(csi)),
        };
        bytes.extend_from_slice(&[nidt, u8::try_from(nid.len()).expect("at most 16"), 0, 0]);
        bytes.extend_from_slice(nid);
    }
    assert!(bytes.len() <= IDENTIFY_LEN, "at most one descriptor of each type");
    bytes.resize(IDENTIFY_LEN, 0);
    bytes
}

/// The descriptors in `bytes` up to the first that is empty or cut short. Unknown types and those
/// of a wrong length are passed over.
pub fn descriptors(bytes: &[u8]) -> impl Iterator<Item = NamespaceDescriptor> {
    let mut rest = bytes;
    core::iter::from_fn(move || {
        loop {
            let (&[nidt, nidl, _, _], behind) = rest.split_first_chunk()?;
            let (nid, behind) = behind.split_at_checked(usize::from(nidl))?;
            if nidl == 0 {
                return None;
            }
            rest = behind;
            let descriptor = match nidt {
                1 => nid.try_into().ok().map(NamespaceDescriptor::Eui64),
                2 => nid.try_into().ok().map(NamespaceDescriptor::Nguid),
                3 => nid.try_into().ok().map(NamespaceDescriptor::Uuid),
                4 => nid.first().copied().map(NamespaceDescriptor::Csi),
                _ => None,
            };
            if descriptor.is_some() {
                return descriptor;
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_match_the_golden_bytes_and_read_back() {
        let list = [
            NamespaceDescriptor::Eui64([1; 8]),
            NamespaceDescriptor::Nguid([2; 16]),
            NamespaceDescriptor::Uuid([3; 16]),
            NamespaceDescriptor::Csi(0),
        ];
        let bytes = encode_descriptors(&list);
        assert_eq!(bytes.len(), 4096);
        assert_eq!(bytes[..13], [1, 8, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2]);
        assert_eq!(bytes[52..58], [4, 1, 0, 0, 0, 0]);
        assert!(descriptors(&bytes).eq(list));
    }

    #[test]
    fn foreign_descriptors_do_not_panic() {
        assert!(descriptors(&[9, 2, 0, 0, 7, 7, 4, 1, 0, 0, 5]).eq([NamespaceDescriptor::Csi(5)]));
        assert_eq!(descriptors(&[2, 4, 0, 0, 1, 1, 1, 1]).count(), 0);
        assert_eq!(descriptors(&[1, 255, 0, 0, 1]).count(), 0);
        assert_eq!(descriptors(&[0xFF; 4096]).count(), 0);
    }

    #[test]
    fn a_namespace_list_ends_at_the_first_zero() {
        let list = NamespaceIdList::new([1, 5]);
        assert_eq!(list.as_bytes()[..12], [1, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0]);
        assert!(list.iter().eq([1, 5]));
    }
}
