//! SMART / Health Information, LID 02h.

use core::mem::{offset_of, size_of};

use zerocopy::little_endian::{U16, U32, U128};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Critical warning: available spare is below its threshold.
pub const CRITICAL_SPARE: u8 = 1 << 0;
/// Critical warning: a temperature is beyond a threshold.
pub const CRITICAL_TEMPERATURE: u8 = 1 << 1;
/// Critical warning: reliability is degraded by media or internal errors.
pub const CRITICAL_RELIABILITY: u8 = 1 << 2;
/// Critical warning: all media are read-only.
pub const CRITICAL_READ_ONLY: u8 = 1 << 3;

/// Health and use of a drive.
#[derive(
    Clone, Copy, Debug, Eq, PartialEq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct SmartHealth {
    /// 0: Critical Warning.
    pub critical_warning: u8,
    /// 1..3: Composite Temperature in kelvins.
    pub temperature: U16,
    /// 3: Available Spare in per cent.
    pub available_spare: u8,
    /// 4: Available Spare Threshold in per cent.
    pub available_spare_threshold: u8,
    /// 5: Percentage Used.
    pub percentage_used: u8,
    /// 6: Endurance Group Critical Warning Summary.
    pub endurance_group_warning: u8,
    /// 7..32: reserved.
    pub reserved7: [u8; 25],
    /// 32..48: Data Units Read; see [`data_units`].
    pub data_units_read: U128,
    /// 48..64: Data Units Written; see [`data_units`].
    pub data_units_written: U128,
    /// 64..80: Host Read Commands.
    pub host_reads: U128,
    /// 80..96: Host Write Commands.
    pub host_writes: U128,
    /// 96..112: Controller Busy Time in minutes.
    pub busy_minutes: U128,
    /// 112..128: Power Cycles.
    pub power_cycles: U128,
    /// 128..144: Power On Hours.
    pub power_on_hours: U128,
    /// 144..160: Unexpected Power Losses.
    pub unsafe_shutdowns: U128,
    /// 160..176: Media and Data Integrity Errors.
    pub media_errors: U128,
    /// 176..192: Number of Error Information Log Entries over the controller's life.
    pub error_log_entries: U128,
    /// 192..196: Warning Composite Temperature Time in minutes.
    pub warning_temperature_minutes: U32,
    /// 196..200: Critical Composite Temperature Time in minutes.
    pub critical_temperature_minutes: U32,
    /// 200..216: Temperature Sensors 1 to 8 in kelvins, 0 for none.
    pub temperature_sensors: [U16; 8],
    /// 216..512: thermal management counters and reserved bytes.
    pub reserved216: [u8; 296],
}

const _: () = {
    assert!(size_of::<SmartHealth>() == 512);
    assert!(offset_of!(SmartHealth, data_units_read) == 32);
    assert!(offset_of!(SmartHealth, error_log_entries) == 176);
    assert!(offset_of!(SmartHealth, temperature_sensors) == 200);
};

/// `bytes` in thousands of 512 bytes, rounded up as the specification asks.
#[must_use]
pub const fn data_units(bytes: u128) -> u128 {
    bytes.div_ceil(512 * 1000)
}

#[cfg(test)]
mod tests {
    use zerocopy::FromZeros;

    use super::*;

    #[test]
    fn fields_lie_where_the_specification_puts_them() {
        let health = SmartHealth {
            critical_warning: CRITICAL_SPARE,
            temperature: 0x0131.into(),
            available_spare: 99,
            data_units_written: data_units(512_001).into(),
            unsafe_shutdowns: 3.into(),
            ..SmartHealth::new_zeroed()
        };
        let bytes = health.as_bytes();
        assert_eq!(bytes[..4], [1, 0x31, 0x01, 99]);
        assert_eq!((bytes[48], bytes[144]), (2, 3));
    }
}
