//! Features (Base, clause 5.1.25).

use crate::{AdminOpcode, Sqe};

/// Feature Identifier.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Fid(pub u8);

impl Fid {
    /// Arbitration.
    pub const ARBITRATION: Self = Self(0x01);
    /// Power Management.
    pub const POWER_MANAGEMENT: Self = Self(0x02);
    /// LBA Range Type.
    pub const LBA_RANGE_TYPE: Self = Self(0x03);
    /// Temperature Threshold.
    pub const TEMPERATURE_THRESHOLD: Self = Self(0x04);
    /// Error Recovery.
    pub const ERROR_RECOVERY: Self = Self(0x05);
    /// Volatile Write Cache.
    pub const VOLATILE_WRITE_CACHE: Self = Self(0x06);
    /// Number of Queues.
    pub const NUMBER_OF_QUEUES: Self = Self(0x07);
    /// Interrupt Coalescing.
    pub const INTERRUPT_COALESCING: Self = Self(0x08);
    /// Interrupt Vector Configuration.
    pub const INTERRUPT_VECTOR: Self = Self(0x09);
    /// Write Atomicity Normal.
    pub const WRITE_ATOMICITY: Self = Self(0x0A);
    /// Asynchronous Event Configuration.
    pub const ASYNC_EVENT_CONFIG: Self = Self(0x0B);
    /// Autonomous Power State Transition.
    pub const AUTONOMOUS_POWER_STATE: Self = Self(0x0C);
    /// Host Memory Buffer.
    pub const HOST_MEMORY_BUFFER: Self = Self(0x0D);
    /// Timestamp.
    pub const TIMESTAMP: Self = Self(0x0E);
    /// Keep Alive Timer.
    pub const KEEP_ALIVE_TIMER: Self = Self(0x0F);
    /// Host Behavior Support.
    pub const HOST_BEHAVIOR: Self = Self(0x16);
    /// I/O Command Set Profile.
    pub const IO_COMMAND_SET_PROFILE: Self = Self(0x19);
    /// Software Progress Marker.
    pub const SOFTWARE_PROGRESS: Self = Self(0x80);
    /// Host Identifier.
    pub const HOST_IDENTIFIER: Self = Self(0x81);
    /// Reservation Notification Mask.
    pub const RESERVATION_MASK: Self = Self(0x82);
    /// Reservation Persistence.
    pub const RESERVATION_PERSISTENCE: Self = Self(0x83);
    /// Namespace Write Protection Config.
    pub const WRITE_PROTECTION: Self = Self(0x84);
}

/// Select of Get Features: which value to return.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Select {
    /// The value in force.
    Current,
    /// The value after a reset.
    Default,
    /// The value saved last.
    Saved,
    /// The capabilities of the feature.
    SupportedCapabilities,
    /// A value that is reserved.
    Reserved,
}

/// Bit of dword 0 of Get Features with Select "supported capabilities": the feature can be saved.
pub const CAPABILITY_SAVEABLE: u32 = 1 << 0;
/// Likewise: it is specific to a namespace.
pub const CAPABILITY_NAMESPACE: u32 = 1 << 1;
/// Likewise: it can be changed.
pub const CAPABILITY_CHANGEABLE: u32 = 1 << 2;

/// Asynchronous Event Configuration: the critical warnings of SMART / Health.
pub const ASYNC_CONFIG_SMART: u32 = 0xFF;
/// Asynchronous Event Configuration: Attached Namespace Attribute notices.
pub const ASYNC_CONFIG_NAMESPACE_ATTRIBUTE: u32 = 1 << 8;
/// Asynchronous Event Configuration: Asymmetric Namespace Access Change notices.
pub const ASYNC_CONFIG_ANA_CHANGE: u32 = 1 << 11;
/// Asynchronous Event Configuration: Discovery Log Page Change notices.
pub const ASYNC_CONFIG_DISCOVERY_CHANGE: u32 = 1 << 31;
/// Volatile Write Cache: Write Cache Enable.
pub const VOLATILE_WRITE_CACHE_ENABLE: u32 = 1 << 0;
/// Reservation Persistence: Persist Through Power Loss.
pub const RESERVATION_PERSISTS: u32 = 1 << 0;

/// Length of the data of Host Behavior Support.
pub const HOST_BEHAVIOR_LEN: u32 = 512;
/// Host Identifier, dword 11: the 128-bit form.
pub const HOST_IDENTIFIER_EXTENDED: u32 = 1 << 0;

/// A Set Features command's fields.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct SetFeatures {
    /// The feature.
    pub fid: Fid,
    /// Save: keep it across resets.
    pub save: bool,
    /// Dword 11, the value of most features.
    pub value: u32,
    /// Namespace, for features that have one value for each.
    pub nsid: u32,
}

impl SetFeatures {
    /// The fields of `sqe`.
    #[must_use]
    pub fn decode(sqe: &Sqe) -> Self {
        let [fid, _, _, save] = sqe.cdw10.to_bytes();
        let (value, nsid) = (sqe.cdw11.get(), sqe.nsid.get());
        Self { fid: Fid(fid), save: save & 0x80 != 0, value, nsid }
    }

    /// The command, without data.
    #[must_use]
    pub fn encode(&self) -> Sqe {
        let mut sqe = Sqe::new(AdminOpcode::SET_FEATURES.0, self.nsid);
        sqe.cdw10 = (u32::from(self.fid.0) | u32::from(self.save) << 31).into();
        sqe.cdw11 = self.value.into();
        sqe
    }
}

/// A Get Features command's fields.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct GetFeatures {
    /// The feature.
    pub fid: Fid,
    /// Selects one of its values.
    pub select: Select,
    /// Dword 11, a parameter of some features.
    pub parameter: u32,
    /// Namespace, for features that have one value for each.
    pub nsid: u32,
}

impl GetFeatures {
    /// The fields of `sqe`.
    #[must_use]
    pub fn decode(sqe: &Sqe) -> Self {
        let [fid, select, ..] = sqe.cdw10.to_bytes();
        let select = match select & 0x7 {
            0 => Select::Current,
            1 => Select::Default,
            2 => Select::Saved,
            3 => Select::SupportedCapabilities,
            _ => Select::Reserved,
        };
        Self { fid: Fid(fid), select, parameter: sqe.cdw11.get(), nsid: sqe.nsid.get() }
    }

    /// The command, without data.
    #[must_use]
    pub fn encode(&self) -> Sqe {
        let mut sqe = Sqe::new(AdminOpcode::GET_FEATURES.0, self.nsid);
        let select = match self.select {
            Select::Current => 0u32,
            Select::Default => 1,
            Select::Saved => 2,
            Select::SupportedCapabilities => 3,
            Select::Reserved => 7,
        };
        sqe.cdw10 = (u32::from(self.fid.0) | select << 8).into();
        sqe.cdw11 = self.parameter.into();
        sqe
    }
}

/// Number of Queues, asked for or allocated: counts of I/O queues.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct NumberOfQueues {
    /// Submission queues, 1 to 65 535.
    pub submission: u32,
    /// Completion queues, 1 to 65 535.
    pub completion: u32,
}

impl NumberOfQueues {
    /// From dword 11 of Set Features, or dword 0 of its completion, both 0's based; `None` for
    /// FFFFh, which is not allowed.
    #[must_use]
    pub fn decode(value: u32) -> Option<Self> {
        let (submission, completion) = ((value & 0xFFFF) + 1, (value >> 16) + 1);
        (submission <= 0xFFFF && completion <= 0xFFFF).then_some(Self { submission, completion })
    }

    /// The 0's based form.
    #[must_use]
    pub const fn encode(&self) -> u32 {
        let submission = self.submission.saturating_sub(1) & 0xFFFF;
        let completion = self.completion.saturating_sub(1) & 0xFFFF;
        submission | completion << 16
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn feature_commands_make_the_round_trip() {
        let set = SetFeatures { fid: Fid::KEEP_ALIVE_TIMER, save: true, value: 15_000, nsid: 0 };
        assert_eq!(set.encode().cdw10.get(), 0x8000_000F);
        assert_eq!(SetFeatures::decode(&set.encode()), set);
        for select in
            [Select::Current, Select::Default, Select::Saved, Select::SupportedCapabilities]
        {
            let get = GetFeatures { fid: Fid::ARBITRATION, select, parameter: 7, nsid: 1 };
            assert_eq!(GetFeatures::decode(&get.encode()), get);
        }
    }

    #[test]
    fn queue_counts_are_zeroes_based_on_the_wire() {
        let queues = NumberOfQueues { submission: 4, completion: 2 };
        assert_eq!(queues.encode(), 0x0001_0003);
        assert_eq!(NumberOfQueues::decode(0x0001_0003), Some(queues));
        assert_eq!(NumberOfQueues::decode(0xFFFF), None);
        assert_eq!(NumberOfQueues::decode(0xFFFF_0000), None);
    }
}
