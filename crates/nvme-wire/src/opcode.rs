//! Opcodes (Base, clauses 5 and 6; NVM, clause 3).

macro_rules! opcodes {
    ($(#[$attribute:meta])* $type:ident { $($name:ident = $value:literal, $text:literal;)* }) => {
        $(#[$attribute])*
        #[derive(Clone, Copy, Debug, Eq, PartialEq)]
        pub struct $type(pub u8);

        impl $type {
            $(
                #[doc = $text]
                pub const $name: Self = Self($value);
            )*

            /// The name in the specification.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self.0 {
                    $($value => $text,)*
                    _ => "unknown command",
                }
            }
        }
    };
}

opcodes! {
    /// Opcode of a command on the admin queue.
    AdminOpcode {
        DELETE_IO_SQ = 0x00, "Delete I/O Submission Queue";
        CREATE_IO_SQ = 0x01, "Create I/O Submission Queue";
        GET_LOG_PAGE = 0x02, "Get Log Page";
        DELETE_IO_CQ = 0x04, "Delete I/O Completion Queue";
        CREATE_IO_CQ = 0x05, "Create I/O Completion Queue";
        IDENTIFY = 0x06, "Identify";
        ABORT = 0x08, "Abort";
        SET_FEATURES = 0x09, "Set Features";
        GET_FEATURES = 0x0A, "Get Features";
        ASYNC_EVENT_REQUEST = 0x0C, "Asynchronous Event Request";
        NAMESPACE_MANAGEMENT = 0x0D, "Namespace Management";
        FIRMWARE_COMMIT = 0x10, "Firmware Commit";
        FIRMWARE_IMAGE_DOWNLOAD = 0x11, "Firmware Image Download";
        DEVICE_SELF_TEST = 0x14, "Device Self-test";
        NAMESPACE_ATTACHMENT = 0x15, "Namespace Attachment";
        KEEP_ALIVE = 0x18, "Keep Alive";
        DIRECTIVE_SEND = 0x19, "Directive Send";
        DIRECTIVE_RECEIVE = 0x1A, "Directive Receive";
        VIRTUALIZATION_MANAGEMENT = 0x1C, "Virtualization Management";
        NVME_MI_SEND = 0x1D, "NVMe-MI Send";
        NVME_MI_RECEIVE = 0x1E, "NVMe-MI Receive";
        CAPACITY_MANAGEMENT = 0x20, "Capacity Management";
        LOCKDOWN = 0x24, "Lockdown";
        CROSS_CONTROLLER_RESET = 0x38, "Cross-Controller Reset";
        DOORBELL_BUFFER_CONFIG = 0x7C, "Doorbell Buffer Config";
        FABRICS = 0x7F, "Fabrics Command";
        FORMAT_NVM = 0x80, "Format NVM";
        SECURITY_SEND = 0x81, "Security Send";
        SECURITY_RECEIVE = 0x82, "Security Receive";
        SANITIZE = 0x84, "Sanitize";
        GET_LBA_STATUS = 0x86, "Get LBA Status";
    }
}

opcodes! {
    /// Opcode of an NVM command on an I/O queue.
    IoOpcode {
        FLUSH = 0x00, "Flush";
        WRITE = 0x01, "Write";
        READ = 0x02, "Read";
        WRITE_UNCORRECTABLE = 0x04, "Write Uncorrectable";
        COMPARE = 0x05, "Compare";
        WRITE_ZEROES = 0x08, "Write Zeroes";
        DATASET_MANAGEMENT = 0x09, "Dataset Management";
        VERIFY = 0x0C, "Verify";
        RESERVATION_REGISTER = 0x0D, "Reservation Register";
        RESERVATION_REPORT = 0x0E, "Reservation Report";
        RESERVATION_ACQUIRE = 0x11, "Reservation Acquire";
        IO_MANAGEMENT_RECEIVE = 0x12, "I/O Management Receive";
        RESERVATION_RELEASE = 0x15, "Reservation Release";
        CANCEL = 0x18, "Cancel";
        COPY = 0x19, "Copy";
        IO_MANAGEMENT_SEND = 0x1D, "I/O Management Send";
        FABRICS = 0x7F, "Fabrics Command";
        COMPARE_AND_WRITE = 0x81, "Compare and Write (vendor specific)";
    }
}

opcodes! {
    /// FCTYPE of a Fabrics command (opcode 7Fh).
    FabricsType {
        PROPERTY_SET = 0x00, "Property Set";
        CONNECT = 0x01, "Connect";
        PROPERTY_GET = 0x04, "Property Get";
        AUTHENTICATION_SEND = 0x05, "Authentication Send";
        AUTHENTICATION_RECEIVE = 0x06, "Authentication Receive";
        DISCONNECT = 0x08, "Disconnect";
    }
}

/// The direction of a command's data: the low two bits of every opcode but the Fabrics one, for
/// which FCTYPE gives it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum DataDirection {
    /// No data.
    None,
    /// Host to controller.
    ToController,
    /// Controller to host.
    ToHost,
    /// Both ways; no command that we know.
    Both,
}

impl DataDirection {
    /// From an opcode or an FCTYPE.
    #[must_use]
    pub const fn of(opcode_or_fctype: u8) -> Self {
        match opcode_or_fctype & 0x3 {
            0 => Self::None,
            1 => Self::ToController,
            2 => Self::ToHost,
            _ => Self::Both,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opcodes_say_where_their_data_goes() {
        assert_eq!(DataDirection::of(IoOpcode::READ.0), DataDirection::ToHost);
        assert_eq!(DataDirection::of(IoOpcode::WRITE.0), DataDirection::ToController);
        assert_eq!(DataDirection::of(IoOpcode::WRITE_ZEROES.0), DataDirection::None);
        assert_eq!(DataDirection::of(FabricsType::CONNECT.0), DataDirection::ToController);
        assert_eq!(AdminOpcode::IDENTIFY.name(), "Identify");
    }
}
