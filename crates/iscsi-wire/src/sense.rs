//! Status and sense data (SPC-4, clause 4.5).

/// Bytes of sense data in the fixed format.
pub const SENSE_LEN: usize = 18;

/// Status of a command (SAM-5, clause 5.3.1).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub enum ScsiStatus {
    /// Done.
    Good = 0x00,
    /// Not done, or not as asked; sense data says why.
    CheckCondition = 0x02,
    /// Later, perhaps.
    Busy = 0x08,
    /// Another initiator has reserved the unit.
    ReservationConflict = 0x18,
    /// The queue is full.
    TaskSetFull = 0x28,
    /// The command was aborted by another initiator.
    TaskAborted = 0x40,
}

/// Sense keys.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
#[expect(missing_docs, reason = "named by the specification")]
pub enum SenseKey {
    NoSense = 0x0,
    NotReady = 0x2,
    MediumError = 0x3,
    HardwareError = 0x4,
    IllegalRequest = 0x5,
    UnitAttention = 0x6,
    DataProtect = 0x7,
    AbortedCommand = 0xB,
    Miscompare = 0xE,
}

/// Sense data: a condition as initiators are told of it. Formed by the constants of this type, and the methods that add to them.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Sense {
    /// The kind of the condition.
    pub key: SenseKey,
    /// Additional sense code and its qualifier.
    pub code: [u8; 2],
    /// INFORMATION: a block or an offset. Told only if it fits into 32 bits.
    pub information: Option<u64>,
    /// The byte of the command, or of its parameters, that is wrong.
    pub field: Option<Field>,
}

/// A field that is wrong (SPC-4, clause 4.5.2.4.2).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Field {
    /// It is in the CDB, not in the parameters.
    pub in_cdb: bool,
    /// Its first byte.
    pub byte: u16,
}

macro_rules! senses {
    ($($(#[$meta:meta])* $name:ident = $key:ident, $code:literal, $qualifier:literal;)*) => {
        impl Sense {
            $($(#[$meta])* pub const $name: Self = Self::new(SenseKey::$key, [$code, $qualifier]);)*
        }
    };
}

senses! {
    /// Nothing is to be told.
    NO_SENSE = NoSense, 0x00, 0x00;
    /// The unit is getting ready.
    BECOMING_READY = NotReady, 0x04, 0x01;
    /// LOGICAL UNIT NOT ACCESSIBLE, ASYMMETRIC ACCESS STATE TRANSITION.
    IN_TRANSITION = NotReady, 0x04, 0x0A;
    /// LOGICAL UNIT NOT ACCESSIBLE, TARGET PORT IN STANDBY STATE.
    IN_STANDBY = NotReady, 0x04, 0x0B;
    /// LOGICAL UNIT NOT ACCESSIBLE, TARGET PORT IN UNAVAILABLE STATE.
    UNAVAILABLE = NotReady, 0x04, 0x0C;
    /// WRITE ERROR.
    WRITE_ERROR = MediumError, 0x0C, 0x00;
    /// UNRECOVERED READ ERROR.
    READ_ERROR = MediumError, 0x11, 0x00;
    /// INTERNAL TARGET FAILURE.
    INTERNAL_FAILURE = HardwareError, 0x44, 0x00;
    /// PARAMETER LIST LENGTH ERROR.
    PARAMETER_LIST_LENGTH = IllegalRequest, 0x1A, 0x00;
    /// INVALID COMMAND OPERATION CODE.
    INVALID_OPCODE = IllegalRequest, 0x20, 0x00;
    /// LOGICAL BLOCK ADDRESS OUT OF RANGE.
    LBA_OUT_OF_RANGE = IllegalRequest, 0x21, 0x00;
    /// INVALID FIELD IN CDB.
    INVALID_FIELD_IN_CDB = IllegalRequest, 0x24, 0x00;
    /// LOGICAL UNIT NOT SUPPORTED.
    NO_SUCH_UNIT = IllegalRequest, 0x25, 0x00;
    /// INVALID FIELD IN PARAMETER LIST.
    INVALID_FIELD_IN_PARAMETERS = IllegalRequest, 0x26, 0x00;
    /// INVALID RELEASE OF PERSISTENT RESERVATION.
    INVALID_RELEASE = IllegalRequest, 0x26, 0x04;
    /// SAVING PARAMETERS NOT SUPPORTED.
    SAVING_NOT_SUPPORTED = IllegalRequest, 0x39, 0x00;
    /// INSUFFICIENT REGISTRATION RESOURCES.
    REGISTRATION_RESOURCES = IllegalRequest, 0x55, 0x04;
    /// INVALID FIELD IN COMMAND INFORMATION UNIT: the initiator's transfer length does not fit the command.
    INVALID_FIELD_IN_UNIT = IllegalRequest, 0x0E, 0x03;
    /// POWER ON, RESET, OR BUS DEVICE RESET OCCURRED.
    POWER_ON = UnitAttention, 0x29, 0x00;
    /// BUS DEVICE RESET FUNCTION OCCURRED.
    UNIT_RESET = UnitAttention, 0x29, 0x03;
    /// RESERVATIONS PREEMPTED.
    RESERVATIONS_PREEMPTED = UnitAttention, 0x2A, 0x03;
    /// RESERVATIONS RELEASED.
    RESERVATIONS_RELEASED = UnitAttention, 0x2A, 0x04;
    /// REGISTRATIONS PREEMPTED.
    REGISTRATIONS_PREEMPTED = UnitAttention, 0x2A, 0x05;
    /// CAPACITY DATA HAS CHANGED.
    CAPACITY_CHANGED = UnitAttention, 0x2A, 0x09;
    /// THIN PROVISIONING SOFT THRESHOLD REACHED.
    THIN_THRESHOLD = UnitAttention, 0x38, 0x07;
    /// SPACE ALLOCATION FAILED WRITE PROTECT.
    NO_SPACE = DataProtect, 0x27, 0x07;
    /// PROTOCOL SERVICE CRC ERROR.
    DIGEST_ERROR = AbortedCommand, 0x47, 0x05;
    /// DATA PHASE ERROR.
    DATA_PHASE = AbortedCommand, 0x4B, 0x00;
    /// MISCOMPARE DURING VERIFY OPERATION.
    MISCOMPARE = Miscompare, 0x1D, 0x00;
}

impl Sense {
    const fn new(key: SenseKey, code: [u8; 2]) -> Self {
        Self { key, code, information: None, field: None }
    }

    /// INVALID FIELD IN CDB, and where.
    #[must_use]
    pub const fn invalid_cdb(byte: u16) -> Self {
        Self { field: Some(Field { in_cdb: true, byte }), ..Self::INVALID_FIELD_IN_CDB }
    }

    /// INVALID FIELD IN PARAMETER LIST, and where.
    #[must_use]
    pub const fn invalid_parameter(byte: u16) -> Self {
        Self { field: Some(Field { in_cdb: false, byte }), ..Self::INVALID_FIELD_IN_PARAMETERS }
    }

    /// The same, with INFORMATION.
    #[must_use]
    pub const fn with_information(self, information: u64) -> Self {
        Self { information: Some(information), ..self }
    }

    /// The bytes in the fixed format.
    #[must_use]
    pub fn encode(&self) -> [u8; SENSE_LEN] {
        let mut bytes = [0; SENSE_LEN];
        bytes[0] = 0x70;
        bytes[2] = self.key as u8;
        if let Some(information) = self.information.and_then(|value| u32::try_from(value).ok()) {
            bytes[0] |= 0x80;
            bytes[3..7].copy_from_slice(&information.to_be_bytes());
        }
        bytes[7] = (SENSE_LEN - 8) as u8;
        [bytes[12], bytes[13]] = self.code;
        if let Some(Field { in_cdb, byte }) = self.field {
            bytes[15] = 0x80 | u8::from(in_cdb) << 6;
            bytes[16..18].copy_from_slice(&byte.to_be_bytes());
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sense_data_has_the_fixed_format() {
        assert_eq!(
            Sense::invalid_cdb(7).encode(),
            [0x70, 0, 5, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x24, 0, 0, 0xC0, 0, 7]
        );
        assert_eq!(
            Sense::MISCOMPARE.with_information(0x1234).encode(),
            [0xF0, 0, 0xE, 0, 0, 0x12, 0x34, 10, 0, 0, 0, 0, 0x1D, 0, 0, 0, 0, 0]
        );
        assert_eq!(Sense::READ_ERROR.with_information(1 << 32).encode()[0], 0x70, "does not fit");
    }
}
