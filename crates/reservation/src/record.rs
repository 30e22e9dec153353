//! Reservations as they lie on a device.
//!
//! ```text
//! 0         1      2        4            8
//! +---------+------+--------+------------+-----------------------------+
//! | version | kind | holder | generation | registrants, one behind the |
//! |         |      |        |            | other                       |
//! +---------+------+--------+------------+-----------------------------+
//! ```
//! Numbers are little-endian. The kind is the NVMe code, zero for no reservation; the holder is the number of its registrant,
//! counted from zero, FFFFh if all hold the reservation or there is none. A registrant: key (8), form (1); form 0: an NVMe
//! Host Identifier (16); form 1: length of the name (1), ISID (6), the name. Registrants lie in their order.

use alloc::string::String;
use alloc::vec::Vec;
use core::str;

use crate::host::{Host, ISCSI_NAME_BYTES_MAX};
use crate::kind::Kind;
use crate::{Held, Key, Reservations};

/// Most bytes of a record. The rest of the place on the device is for what else is kept of the volume.
pub const RECORD_BYTES_MAX: usize = 1280;

const VERSION: u8 = 1;
const HEADER_BYTES: usize = 8;
const NO_HOLDER: u16 = 0xFFFF;
const FORM_NVME: u8 = 0;
const FORM_ISCSI: u8 = 1;

/// Why bytes are no record of reservations.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum RecordError {
    /// The record is of a version that this program does not know.
    #[error("reservations of version {0}, which this version does not know")]
    Version(u8),
    /// The record ends early.
    #[error("the reservations are cut short")]
    Short,
    /// A field holds what it may not.
    #[error("the reservations are invalid: {0}")]
    Field(&'static str),
}

impl Host {
    /// Bytes of a registrant of this host.
    fn record_bytes(&self) -> usize {
        match self {
            Self::Nvme(id) => 9 + id.len(),
            Self::Iscsi { name, isid } => 10 + isid.len() + name.len(),
        }
    }
}

impl Reservations {
    /// RESERVATION-4.
    pub(crate) fn fits(&self) -> bool {
        let each = self.registrants.keys().map(Host::record_bytes);
        let are_named = self.registrants.keys().all(|host| match host {
            Host::Nvme(_) => true,
            Host::Iscsi { name, .. } => name.len() <= ISCSI_NAME_BYTES_MAX,
        });
        are_named && HEADER_BYTES + each.sum::<usize>() <= RECORD_BYTES_MAX
    }

    /// Returns the bytes that bring the state back after a restart; `None` if nothing is to come back (RESERVATION-5).
    #[must_use]
    pub fn to_record(&self) -> Option<Vec<u8>> {
        if !self.is_persistent {
            return None;
        }
        let holder = self.held.as_ref().and_then(|held| held.holder.as_ref());
        let holder = holder.and_then(|it| self.registrants.keys().position(|host| host == it));
        let holder = holder.map_or(NO_HOLDER, |at| u16::try_from(at).expect("RESERVATION-4"));
        let mut bytes = Vec::new();
        bytes.push(VERSION);
        bytes.push(self.kind().map_or(0, Kind::nvme_code));
        bytes.extend_from_slice(&holder.to_le_bytes());
        bytes.extend_from_slice(&self.generation.to_le_bytes());
        for (host, key) in &self.registrants {
            bytes.extend_from_slice(&key.to_le_bytes());
            match host {
                Host::Nvme(id) => {
                    bytes.push(FORM_NVME);
                    bytes.extend_from_slice(id);
                }
                Host::Iscsi { name, isid } => {
                    bytes.extend([FORM_ISCSI, u8::try_from(name.len()).expect("RESERVATION-4")]);
                    bytes.extend_from_slice(isid);
                    bytes.extend_from_slice(name.as_bytes());
                }
            }
        }
        Some(bytes)
    }

    /// Returns the state that a record brings back.
    ///
    /// # Errors
    /// The bytes are no record, or are of another version.
    pub fn from_record(bytes: &[u8]) -> Result<Self, RecordError> {
        let ([version, kind, holder @ ..], rest) =
            bytes.split_first_chunk::<4>().ok_or(RecordError::Short)?;
        if *version != VERSION {
            return Err(RecordError::Version(*version));
        }
        let (generation, mut rest) = rest.split_first_chunk::<4>().ok_or(RecordError::Short)?;
        let mut state = Self {
            generation: u32::from_le_bytes(*generation),
            is_persistent: true,
            ..Self::default()
        };
        while !rest.is_empty() {
            let (host, key, behind) = registrant(rest).ok_or(RecordError::Short)??;
            let is_behind = state.registrants.last_key_value().is_none_or(|(last, _)| *last < host);
            if key == 0 || !is_behind {
                return Err(RecordError::Field("a registrant"));
            }
            state.registrants.insert(host, key);
            rest = behind;
        }
        let holder = u16::from_le_bytes(*holder);
        state.held = state.held_from(*kind, holder).ok_or(RecordError::Field("the holder"))?;
        if state.fits() { Ok(state) } else { Err(RecordError::Field("too long")) }
    }

    /// The reservation that a record names; `None` if that cannot be.
    fn held_from(&self, kind: u8, holder: u16) -> Option<Option<Held>> {
        if kind == 0 {
            return (holder == NO_HOLDER).then_some(None);
        }
        let kind = Kind::from_nvme_code(kind)?;
        let named = self.registrants.keys().nth(holder.into()).cloned();
        let is_sound = match kind.is_held_by_all() {
            true => holder == NO_HOLDER && !self.registrants.is_empty(),
            false => named.is_some(),
        };
        is_sound.then_some(Some(Held { kind, holder: named }))
    }
}

/// The first registrant of `bytes`, and what lies behind it; `None` if it is cut short.
#[expect(clippy::type_complexity, reason = "only for its caller")]
fn registrant(bytes: &[u8]) -> Option<Result<(Host, Key, &[u8]), RecordError>> {
    let (key, rest) = bytes.split_first_chunk::<8>()?;
    let (form, rest) = rest.split_first()?;
    let (host, rest) = match *form {
        FORM_NVME => {
            let (id, rest) = rest.split_first_chunk()?;
            (Host::Nvme(*id), rest)
        }
        FORM_ISCSI => {
            let (len, rest) = rest.split_first()?;
            let (isid, rest) = rest.split_first_chunk()?;
            let (name, rest) = rest.split_at_checked(usize::from(*len))?;
            let Ok(name) = str::from_utf8(name) else {
                return Some(Err(RecordError::Field("a name")));
            };
            (Host::Iscsi { name: String::from(name), isid: *isid }, rest)
        }
        _ => return Some(Err(RecordError::Field("the form of a host"))),
    };
    Some(Ok((host, Key::from_le_bytes(*key), rest)))
}
