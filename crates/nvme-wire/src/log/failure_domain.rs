//! Failure Domain, LID E0h, vendor specific: where a volume is, so that its tenant can keep what must not
//! fail together apart.
//!
//! The texts are UTF-8, padded with zeroes; one that is too long is cut between two characters.

use alloc::collections::BTreeMap;
use alloc::string::String;
use core::mem::{offset_of, size_of};

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// First bytes of the log page, so that it is not taken for another vendor's.
const MAGIC: [u8; 8] = *b"farflash";
/// Version of the layout.
const VERSION: u16 = 1;
/// Bytes for labels.
const LABEL_BYTES: usize = 3328;

/// The health of a device.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum DeviceHealth {
    /// Nothing is known.
    #[default]
    Unknown,
    /// As far as is known.
    Good,
    /// It works, but blocks were found damaged or requests failed.
    Degraded,
    /// It takes no changes.
    Failed,
}

impl DeviceHealth {
    /// The name for people and programs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Good => "good",
            Self::Degraded => "degraded",
            Self::Failed => "failed",
        }
    }

    const fn to_byte(self) -> u8 {
        match self {
            Self::Unknown => 0,
            Self::Good => 1,
            Self::Degraded => 2,
            Self::Failed => 3,
        }
    }

    const fn from_byte(byte: u8) -> Self {
        match byte {
            1 => Self::Good,
            2 => Self::Degraded,
            3 => Self::Failed,
            _ => Self::Unknown,
        }
    }
}

/// Components that a volume shares with others, and may fail with them.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct FailureDomain {
    /// Id of the host that serves it.
    pub host_id: [u8; 16],
    /// Name of that host.
    pub host: String,
    /// Labels that the host shares with other hosts, such as `rack` = `r1`.
    pub labels: BTreeMap<String, String>,
    /// The CPU that serves it.
    pub core: u32,
    /// Id of the device that holds it.
    pub device_id: [u8; 16],
    /// Name of that device at its host.
    pub device: String,
    /// Model name of the device's vendor; empty if it is not known.
    pub model: String,
    /// The device's serial number; empty if it is not known.
    pub serial: String,
    /// Health of the device.
    pub health: DeviceHealth,
}

/// The log page.
#[derive(Clone, Debug, Eq, PartialEq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct FailureDomainLog {
    /// 0..8: `farflash`.
    pub magic: [u8; 8],
    /// 8..10: version of the layout, 1.
    pub version: U16,
    /// 10: health of the device: 0 unknown, 1 good, 2 degraded, 3 failed.
    pub health: u8,
    /// 11: reserved.
    pub reserved11: u8,
    /// 12..16: the CPU.
    pub core: U32,
    /// 16..32: id of the host, as a UUID.
    pub host_id: [u8; 16],
    /// 32..48: id of the device, as a UUID.
    pub device_id: [u8; 16],
    /// 48..304: name of the host.
    pub host: [u8; 256],
    /// 304..560: name of the device.
    pub device: [u8; 256],
    /// 560..640: model of the device.
    pub model: [u8; 80],
    /// 640..720: serial number of the device.
    pub serial: [u8; 80],
    /// 720..722: labels in `labels`.
    pub label_count: U16,
    /// 722..724: labels for which there was no room.
    pub labels_left_out: U16,
    /// 724..768: reserved.
    pub reserved724: [u8; 44],
    /// 768..4096: labels, each `KEY=VALUE` and a zero.
    pub labels: [u8; LABEL_BYTES],
}

const _: () = assert!(
    size_of::<FailureDomainLog>() == 4096
        && offset_of!(FailureDomainLog, host) == 48
        && offset_of!(FailureDomainLog, model) == 560
        && offset_of!(FailureDomainLog, label_count) == 720
        && offset_of!(FailureDomainLog, labels) == 768
);

impl FailureDomainLog {
    /// The log page that says `domain`.
    #[must_use]
    pub fn new(domain: &FailureDomain) -> Self {
        let mut log = Self {
            magic: MAGIC,
            version: VERSION.into(),
            health: domain.health.to_byte(),
            core: domain.core.into(),
            host_id: domain.host_id,
            device_id: domain.device_id,
            ..Self::new_zeroed()
        };
        put(&mut log.host, &domain.host);
        put(&mut log.device, &domain.device);
        put(&mut log.model, &domain.model);
        put(&mut log.serial, &domain.serial);
        let (mut count, mut at) = (0_u16, 0);
        for (key, value) in &domain.labels {
            let len = key.len() + 1 + value.len() + 1;
            let Some(place) = log.labels.get_mut(at..at + len) else { break };
            place[..key.len()].copy_from_slice(key.as_bytes());
            place[key.len()] = b'=';
            place[key.len() + 1..len - 1].copy_from_slice(value.as_bytes());
            (count, at) = (count + 1, at + len);
        }
        let left_out = domain.labels.len() - usize::from(count);
        log.label_count = count.into();
        log.labels_left_out = u16::try_from(left_out).unwrap_or(u16::MAX).into();
        log
    }

    /// The content of the log page; `None` if it is another vendor's, or of a later layout. Bytes
    /// that are no text are replaced.
    #[must_use]
    pub fn decode(&self) -> Option<FailureDomain> {
        if self.magic != MAGIC || self.version.get() != VERSION {
            return None;
        }
        let labels = self.labels.split(|byte| *byte == 0);
        let labels = labels.take(usize::from(self.label_count.get())).filter_map(|label| {
            let label = String::from_utf8_lossy(label);
            let (key, value) = label.split_once('=')?;
            Some((key.into(), value.into()))
        });
        Some(FailureDomain {
            host_id: self.host_id,
            host: text(&self.host),
            labels: labels.collect(),
            core: self.core.get(),
            device_id: self.device_id,
            device: text(&self.device),
            model: text(&self.model),
            serial: text(&self.serial),
            health: DeviceHealth::from_byte(self.health),
        })
    }
}

/// Puts as much of `text` as there is room for.
fn put(field: &mut [u8], text: &str) {
    let len = (0..=text.len().min(field.len())).rev().find(|len| text.is_char_boundary(*len));
    let len = len.unwrap_or(0);
    field[..len].copy_from_slice(&text.as_bytes()[..len]);
}

fn text(field: &[u8]) -> String {
    let end = field.iter().position(|byte| *byte == 0).unwrap_or(field.len());
    String::from_utf8_lossy(&field[..end]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn domain() -> FailureDomain {
        let labels = [("rack", "r1"), ("row", "7")];
        FailureDomain {
            host_id: [0x11; 16],
            host: "flash-1".into(),
            labels: labels.map(|(key, value)| (key.into(), value.into())).into(),
            core: 3,
            device_id: [0x22; 16],
            device: "file:/dev/nvme0n1".into(),
            model: "Model X".into(),
            serial: "S123".into(),
            health: DeviceHealth::Degraded,
        }
    }

    #[test]
    fn the_log_page_matches_the_golden_bytes_both_ways() {
        let log = FailureDomainLog::new(&domain());
        let bytes = log.as_bytes();
        assert_eq!(bytes[..16], *b"farflash\x01\0\x02\0\x03\0\0\0");
        assert_eq!((&bytes[16..32], &bytes[32..48]), (&[0x11; 16][..], &[0x22; 16][..]));
        assert_eq!(bytes[48..56], *b"flash-1\0");
        assert_eq!(bytes[304..322], *b"file:/dev/nvme0n1\0");
        assert_eq!((&bytes[560..568], &bytes[640..645]), (&b"Model X\0"[..], &b"S123\0"[..]));
        assert_eq!(bytes[720..724], [2, 0, 0, 0]);
        assert_eq!(bytes[768..783], *b"rack=r1\0row=7\0\0");
        assert_eq!(log.decode(), Some(domain()));
    }

    #[test]
    fn what_has_no_room_is_cut_or_counted() {
        let long = FailureDomain {
            host: "é".repeat(200),
            labels: (0..40).map(|n| (alloc::format!("key-{n:02}"), "v".repeat(200))).collect(),
            ..domain()
        };
        let log = FailureDomainLog::new(&long);
        let read = log.decode().expect("ours");
        assert_eq!(read.host, "é".repeat(128));
        assert_eq!((read.labels.len(), log.labels_left_out.get()), (16, 24));
        assert!(read.labels.iter().all(|(key, value)| long.labels[key] == *value));
    }

    #[test]
    fn a_page_that_is_not_ours_says_nothing() {
        let log = FailureDomainLog::new(&domain());
        assert_eq!(FailureDomainLog { magic: *b"elsewise", ..log.clone() }.decode(), None);
        assert_eq!(FailureDomainLog { version: 2.into(), ..log }.decode(), None);
    }
}
