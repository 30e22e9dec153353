//! Status: how a command ended (Base, clause 4.2.3).

use core::fmt;

/// Status Code Type and Status Code with the More and Do Not Retry bits: the status field of a
/// completion without its phase tag.
#[derive(Clone, Copy, Eq, PartialEq)]
pub struct Status(u16);

/// Status Code Type: which table a status code is from.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum StatusCodeType {
    /// 0h: Generic Command Status.
    Generic,
    /// 1h: Command Specific Status.
    CommandSpecific,
    /// 2h: Media and Data Integrity Errors.
    Media,
    /// 3h: Path Related Status.
    Path,
    /// 7h: vendor specific.
    VendorSpecific,
    /// Any other value.
    Reserved,
}

const MORE: u16 = 1 << 13;
const DNR: u16 = 1 << 14;
const CODE_MASK: u16 = 0x07FF;

impl Status {
    /// The status `sc` of type `sct`; `sct` is cut to its three bits.
    #[must_use]
    pub const fn new(sct: u8, sc: u8) -> Self {
        Self(((sct & 0x7) as u16) << 8 | sc as u16)
    }

    /// From the last two bytes of a completion; the phase tag in bit 0 is dropped.
    #[must_use]
    pub const fn from_field(field: u16) -> Self {
        Self(field >> 1)
    }

    /// As it stands in the last two bytes of a completion, phase tag zero.
    #[must_use]
    pub const fn to_field(self) -> u16 {
        self.0 << 1
    }

    /// Status Code Type.
    #[must_use]
    pub const fn sct(self) -> u8 {
        (self.0 >> 8 & 0x7) as u8
    }

    /// Status Code.
    #[must_use]
    pub const fn sc(self) -> u8 {
        (self.0 & 0xFF) as u8
    }

    /// Command Retry Delay: which of Identify Controller's CRDT fields says how long to wait; 0
    /// for none.
    #[must_use]
    pub const fn crd(self) -> u8 {
        (self.0 >> 11 & 0x3) as u8
    }

    /// More: the error log tells more.
    #[must_use]
    pub const fn more(self) -> bool {
        self.0 & MORE != 0
    }

    /// Do Not Retry: the same command would fail again.
    #[must_use]
    pub const fn dnr(self) -> bool {
        self.0 & DNR != 0
    }

    /// This status with More set.
    #[must_use]
    pub const fn with_more(self) -> Self {
        Self(self.0 | MORE)
    }

    /// This status with Do Not Retry set.
    #[must_use]
    pub const fn with_dnr(self) -> Self {
        Self(self.0 | DNR)
    }

    /// Type and code alone, to be compared with the constants of this type.
    #[must_use]
    pub const fn code(self) -> Self {
        Self(self.0 & CODE_MASK)
    }

    /// Returns true if the command succeeded.
    #[must_use]
    pub const fn is_success(self) -> bool {
        self.0 & CODE_MASK == 0
    }

    /// The table that the code is from.
    #[must_use]
    pub const fn code_type(self) -> StatusCodeType {
        match self.sct() {
            0 => StatusCodeType::Generic,
            1 => StatusCodeType::CommandSpecific,
            2 => StatusCodeType::Media,
            3 => StatusCodeType::Path,
            7 => StatusCodeType::VendorSpecific,
            _ => StatusCodeType::Reserved,
        }
    }
}

macro_rules! statuses {
    ($($(#[$attribute:meta])* $name:ident = $sct:literal, $sc:literal, $text:literal;)*) => {
        impl Status {
            $(
                #[doc = $text]
                $(#[$attribute])*
                pub const $name: Self = Self::new($sct, $sc);
            )*

            /// The name in the specification. A command specific code whose meaning depends on the
            /// command set has all its names.
            #[must_use]
            #[allow(unreachable_patterns, reason = "codes that command sets share come once more")]
            pub const fn name(self) -> &'static str {
                match (self.sct(), self.sc()) {
                    (1, 0x80) => "Conflicting Attributes, or Connect Incompatible Format",
                    (1, 0x81) => "Invalid Protection Information, or Connect Controller Busy",
                    (1, 0x82) => {
                        "Attempted Write to Read Only Range, or Connect Invalid Parameters"
                    }
                    (1, 0x83) => "Command Size Limit Exceeded, or Connect Restart Discovery",
                    $(($sct, $sc) => $text,)*
                    _ => "unknown status",
                }
            }
        }
    };
}

statuses! {
    SUCCESS = 0, 0x00, "Successful Completion";
    INVALID_OPCODE = 0, 0x01, "Invalid Command Opcode";
    INVALID_FIELD = 0, 0x02, "Invalid Field in Command";
    COMMAND_ID_CONFLICT = 0, 0x03, "Command ID Conflict";
    DATA_TRANSFER_ERROR = 0, 0x04, "Data Transfer Error";
    ABORTED_POWER_LOSS = 0, 0x05, "Commands Aborted due to Power Loss Notification";
    INTERNAL_ERROR = 0, 0x06, "Internal Error";
    ABORT_REQUESTED = 0, 0x07, "Command Abort Requested";
    ABORTED_SQ_DELETION = 0, 0x08, "Command Aborted due to SQ Deletion";
    ABORTED_FAILED_FUSED = 0, 0x09, "Command Aborted due to Failed Fused Command";
    ABORTED_MISSING_FUSED = 0, 0x0A, "Command Aborted due to Missing Fused Command";
    INVALID_NAMESPACE_OR_FORMAT = 0, 0x0B, "Invalid Namespace or Format";
    COMMAND_SEQUENCE_ERROR = 0, 0x0C, "Command Sequence Error";
    INVALID_SGL_SEGMENT_DESCRIPTOR = 0, 0x0D, "Invalid SGL Segment Descriptor";
    INVALID_SGL_DESCRIPTOR_COUNT = 0, 0x0E, "Invalid Number of SGL Descriptors";
    DATA_SGL_LENGTH_INVALID = 0, 0x0F, "Data SGL Length Invalid";
    METADATA_SGL_LENGTH_INVALID = 0, 0x10, "Metadata SGL Length Invalid";
    SGL_DESCRIPTOR_TYPE_INVALID = 0, 0x11, "SGL Descriptor Type Invalid";
    INVALID_CMB_USE = 0, 0x12, "Invalid Use of Controller Memory Buffer";
    PRP_OFFSET_INVALID = 0, 0x13, "PRP Offset Invalid";
    ATOMIC_WRITE_UNIT_EXCEEDED = 0, 0x14, "Atomic Write Unit Exceeded";
    OPERATION_DENIED = 0, 0x15, "Operation Denied";
    SGL_OFFSET_INVALID = 0, 0x16, "SGL Offset Invalid";
    HOST_ID_INCONSISTENT_FORMAT = 0, 0x18, "Host Identifier Inconsistent Format";
    KEEP_ALIVE_TIMER_EXPIRED = 0, 0x19, "Keep Alive Timer Expired";
    KEEP_ALIVE_TIMEOUT_INVALID = 0, 0x1A, "Keep Alive Timeout Invalid";
    ABORTED_PREEMPT = 0, 0x1B, "Command Aborted due to Preempt and Abort";
    SANITIZE_FAILED = 0, 0x1C, "Sanitize Failed";
    SANITIZE_IN_PROGRESS = 0, 0x1D, "Sanitize In Progress";
    SGL_GRANULARITY_INVALID = 0, 0x1E, "SGL Data Block Granularity Invalid";
    NOT_SUPPORTED_FOR_CMB_QUEUE = 0, 0x1F, "Command Not Supported for Queue in CMB";
    NAMESPACE_WRITE_PROTECTED = 0, 0x20, "Namespace is Write Protected";
    COMMAND_INTERRUPTED = 0, 0x21, "Command Interrupted";
    TRANSIENT_TRANSPORT_ERROR = 0, 0x22, "Transient Transport Error";
    PROHIBITED_BY_LOCKDOWN = 0, 0x23, "Command Prohibited by Command and Feature Lockdown";
    ADMIN_MEDIA_NOT_READY = 0, 0x24, "Admin Command Media Not Ready";
    LBA_OUT_OF_RANGE = 0, 0x80, "LBA Out of Range";
    CAPACITY_EXCEEDED = 0, 0x81, "Capacity Exceeded";
    NAMESPACE_NOT_READY = 0, 0x82, "Namespace Not Ready";
    RESERVATION_CONFLICT = 0, 0x83, "Reservation Conflict";
    FORMAT_IN_PROGRESS = 0, 0x84, "Format In Progress";

    CQ_INVALID = 1, 0x00, "Completion Queue Invalid";
    INVALID_QUEUE_ID = 1, 0x01, "Invalid Queue Identifier";
    INVALID_QUEUE_SIZE = 1, 0x02, "Invalid Queue Size";
    ABORT_LIMIT_EXCEEDED = 1, 0x03, "Abort Command Limit Exceeded";
    ASYNC_EVENT_LIMIT_EXCEEDED = 1, 0x05, "Asynchronous Event Request Limit Exceeded";
    INVALID_FIRMWARE_SLOT = 1, 0x06, "Invalid Firmware Slot";
    INVALID_FIRMWARE_IMAGE = 1, 0x07, "Invalid Firmware Image";
    INVALID_INTERRUPT_VECTOR = 1, 0x08, "Invalid Interrupt Vector";
    INVALID_LOG_PAGE = 1, 0x09, "Invalid Log Page";
    INVALID_FORMAT = 1, 0x0A, "Invalid Format";
    FIRMWARE_NEEDS_RESET = 1, 0x0B, "Firmware Activation Requires Conventional Reset";
    INVALID_QUEUE_DELETION = 1, 0x0C, "Invalid Queue Deletion";
    FEATURE_NOT_SAVEABLE = 1, 0x0D, "Feature Identifier Not Saveable";
    FEATURE_NOT_CHANGEABLE = 1, 0x0E, "Feature Not Changeable";
    FEATURE_NOT_NAMESPACE_SPECIFIC = 1, 0x0F, "Feature Not Namespace Specific";
    FIRMWARE_NEEDS_SUBSYSTEM_RESET = 1, 0x10, "Firmware Activation Requires NVM Subsystem Reset";
    FIRMWARE_NEEDS_CONTROLLER_RESET = 1, 0x11,
        "Firmware Activation Requires Controller Level Reset";
    FIRMWARE_MAX_TIME_VIOLATION = 1, 0x12, "Firmware Activation Requires Maximum Time Violation";
    FIRMWARE_PROHIBITED = 1, 0x13, "Firmware Activation Prohibited";
    OVERLAPPING_RANGE = 1, 0x14, "Overlapping Range";
    NAMESPACE_INSUFFICIENT_CAPACITY = 1, 0x15, "Namespace Insufficient Capacity";
    NAMESPACE_ID_UNAVAILABLE = 1, 0x16, "Namespace Identifier Unavailable";
    NAMESPACE_ALREADY_ATTACHED = 1, 0x18, "Namespace Already Attached";
    NAMESPACE_PRIVATE = 1, 0x19, "Namespace Is Private";
    NAMESPACE_NOT_ATTACHED = 1, 0x1A, "Namespace Not Attached";
    THIN_PROVISIONING_NOT_SUPPORTED = 1, 0x1B, "Thin Provisioning Not Supported";
    CONTROLLER_LIST_INVALID = 1, 0x1C, "Controller List Invalid";
    SELF_TEST_IN_PROGRESS = 1, 0x1D, "Device Self-test In Progress";
    BOOT_PARTITION_PROHIBITED = 1, 0x1E, "Boot Partition Write Prohibited";
    INVALID_CONTROLLER_ID = 1, 0x1F, "Invalid Controller Identifier";
    INVALID_SECONDARY_STATE = 1, 0x20, "Invalid Secondary Controller State";
    INVALID_RESOURCE_COUNT = 1, 0x21, "Invalid Number of Controller Resources";
    INVALID_RESOURCE_ID = 1, 0x22, "Invalid Resource Identifier";
    SANITIZE_PROHIBITED_PMR = 1, 0x23,
        "Sanitize Prohibited While Persistent Memory Region is Enabled";
    ANA_GROUP_ID_INVALID = 1, 0x24, "ANA Group Identifier Invalid";
    ANA_ATTACH_FAILED = 1, 0x25, "ANA Attach Failed";
    INSUFFICIENT_CAPACITY = 1, 0x26, "Insufficient Capacity";
    NAMESPACE_ATTACHMENT_LIMIT = 1, 0x27, "Namespace Attachment Limit Exceeded";
    PROHIBITION_NOT_SUPPORTED = 1, 0x28, "Prohibition of Command Execution Not Supported";
    IO_COMMAND_SET_NOT_SUPPORTED = 1, 0x29, "I/O Command Set Not Supported";
    IO_COMMAND_SET_NOT_ENABLED = 1, 0x2A, "I/O Command Set Not Enabled";
    IO_COMMAND_SET_COMBINATION_REJECTED = 1, 0x2B, "I/O Command Set Combination Rejected";
    INVALID_IO_COMMAND_SET = 1, 0x2C, "Invalid I/O Command Set";
    IDENTIFIER_UNAVAILABLE = 1, 0x2D, "Identifier Unavailable";
    CROSS_CONTROLLER_RESET_IN_PROGRESS = 1, 0x3F, "Cross-Controller Reset in Progress";
    CROSS_CONTROLLER_RESET_LOG_FULL = 1, 0x40, "Cross-Controller Reset Log Page Full";
    CROSS_CONTROLLER_RESET_LIMIT = 1, 0x41, "Cross-Controller Reset Limit Exceeded";

    CONFLICTING_ATTRIBUTES = 1, 0x80, "Conflicting Attributes";
    INVALID_PROTECTION_INFORMATION = 1, 0x81, "Invalid Protection Information";
    WRITE_TO_READ_ONLY_RANGE = 1, 0x82, "Attempted Write to Read Only Range";
    COMMAND_SIZE_LIMIT_EXCEEDED = 1, 0x83, "Command Size Limit Exceeded";

    CONNECT_INCOMPATIBLE_FORMAT = 1, 0x80, "Connect Incompatible Format";
    CONNECT_CONTROLLER_BUSY = 1, 0x81, "Connect Controller Busy";
    CONNECT_INVALID_PARAMETERS = 1, 0x82, "Connect Invalid Parameters";
    CONNECT_RESTART_DISCOVERY = 1, 0x83, "Connect Restart Discovery";
    CONNECT_INVALID_HOST = 1, 0x84, "Connect Invalid Host";
    DISCONNECT_INVALID_QUEUE_TYPE = 1, 0x85, "Disconnect Invalid Queue Type";
    DISCOVER_RESTART = 1, 0x90, "Discover Restart";
    AUTHENTICATION_REQUIRED = 1, 0x91, "Authentication Required";

    WRITE_FAULT = 2, 0x80, "Write Fault";
    UNRECOVERED_READ_ERROR = 2, 0x81, "Unrecovered Read Error";
    GUARD_CHECK_ERROR = 2, 0x82, "End-to-end Guard Check Error";
    APPLICATION_TAG_CHECK_ERROR = 2, 0x83, "End-to-end Application Tag Check Error";
    REFERENCE_TAG_CHECK_ERROR = 2, 0x84, "End-to-end Reference Tag Check Error";
    COMPARE_FAILURE = 2, 0x85, "Compare Failure";
    ACCESS_DENIED = 2, 0x86, "Access Denied";
    DEALLOCATED_OR_UNWRITTEN = 2, 0x87, "Deallocated or Unwritten Logical Block";
    STORAGE_TAG_CHECK_ERROR = 2, 0x88, "End-to-End Storage Tag Check Error";

    INTERNAL_PATH_ERROR = 3, 0x00, "Internal Path Error";
    ANA_PERSISTENT_LOSS = 3, 0x01, "Asymmetric Access Persistent Loss";
    ANA_INACCESSIBLE = 3, 0x02, "Asymmetric Access Inaccessible";
    ANA_TRANSITION = 3, 0x03, "Asymmetric Access Transition";
    CONTROLLER_PATHING_ERROR = 3, 0x60, "Controller Pathing Error";
    HOST_PATHING_ERROR = 3, 0x70, "Host Pathing Error";
    ABORTED_BY_HOST = 3, 0x71, "Command Aborted By Host";
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fmt_as(self.name(), f)
    }
}

impl Status {
    /// Shows it under another name than [`Status::name`], for a command by which its code means something else, in the same form.
    pub fn fmt_as(&self, name: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{name} (sct {:#x} sc {:#04x}", self.sct(), self.sc())?;
        f.write_str(if self.dnr() { ", do not retry)" } else { ")" })
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Status({self})")
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use super::*;

    #[test]
    fn the_field_keeps_every_bit_but_the_phase_tag() {
        for field in [0x0000, 0xFFFE, 0x4004, 0x8100, 0x1234] {
            assert_eq!(Status::from_field(field).to_field(), field);
        }
        let status = Status::from_field(0xC503);
        assert_eq!((status.sct(), status.sc(), status.crd()), (2, 0x81, 0));
        assert!(status.more() && status.dnr());
        assert_eq!(status.code(), Status::UNRECOVERED_READ_ERROR);
    }

    #[test]
    fn a_status_is_shown_with_name_and_numbers() {
        assert_eq!(
            Status::LBA_OUT_OF_RANGE.with_dnr().to_string(),
            "LBA Out of Range (sct 0x0 sc 0x80, do not retry)"
        );
        assert_eq!(Status::new(6, 1).name(), "unknown status");
    }
}
