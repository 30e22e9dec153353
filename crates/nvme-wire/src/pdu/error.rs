//! Errors of a PDU, in the terms of a TermReq.

use super::PduType;

/// Fatal Error Status of a TermReq PDU (TCP, figures "H2CTermReq" and "C2HTermReq").
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct FatalErrorStatus(pub u16);

impl FatalErrorStatus {
    /// A header field is invalid; FEI is the field's byte offset.
    pub const INVALID_PDU_HEADER_FIELD: Self = Self(0x01);
    /// A PDU came where it must not.
    pub const PDU_SEQUENCE_ERROR: Self = Self(0x02);
    /// The header digest does not match; FEI is the received digest.
    pub const HEADER_DIGEST_ERROR: Self = Self(0x03);
    /// Data lies outside of what was asked for.
    pub const DATA_TRANSFER_OUT_OF_RANGE: Self = Self(0x04);
    /// More data in a PDU than MAXH2CDATA (sent by a controller), or more R2Ts than MAXR2T (by a
    /// host).
    pub const LIMIT_EXCEEDED: Self = Self(0x05);
    /// A parameter is valid, but not supported; FEI is the field's byte offset.
    pub const UNSUPPORTED_PARAMETER: Self = Self(0x06);

    /// The name in the specification.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::INVALID_PDU_HEADER_FIELD => "Invalid PDU Header Field",
            Self::PDU_SEQUENCE_ERROR => "PDU Sequence Error",
            Self::HEADER_DIGEST_ERROR => "Header Digest Error",
            Self::DATA_TRANSFER_OUT_OF_RANGE => "Data Transfer Out of Range",
            Self::LIMIT_EXCEEDED => "Data Transfer or R2T Limit Exceeded",
            Self::UNSUPPORTED_PARAMETER => "Unsupported Parameter",
            _ => "reserved fatal error status",
        }
    }
}

/// Why a PDU was refused. Each ends the connection with a TermReq that carries [`PduError::fes`]
/// and [`PduError::fei`].
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum PduError {
    /// The type byte names no PDU that exists.
    #[error("PDU type {pdu_type:#04x} does not exist")]
    UnknownType {
        /// The type byte.
        pdu_type: u8,
    },
    /// A header field holds what it must not.
    #[error("{pdu} PDU: the field at byte {offset} is invalid (value {value:#x})")]
    InvalidField {
        /// The PDU's type.
        pdu: PduType,
        /// Byte offset of the field in the PDU.
        offset: u8,
        /// Value of the field.
        value: u32,
    },
    /// A parameter is valid, but not supported.
    #[error("{pdu} PDU: the parameter at byte {offset} is not supported (value {value:#x})")]
    Unsupported {
        /// The PDU's type.
        pdu: PduType,
        /// Byte offset of the field in the PDU.
        offset: u8,
        /// Value of the field.
        value: u32,
    },
    /// The PDU came where it must not.
    #[error("{pdu} PDU out of sequence")]
    Sequence {
        /// The PDU's type.
        pdu: PduType,
    },
    /// The header digest does not match.
    #[error("{pdu} PDU: header digest {received:#010x} received, {computed:#010x} computed")]
    HeaderDigest {
        /// The PDU's type.
        pdu: PduType,
        /// Digest in the PDU.
        received: u32,
        /// Digest of the bytes received.
        computed: u32,
    },
    /// Data lies outside of what was asked for.
    #[error("{pdu} PDU: {length} bytes at {offset} were not asked for")]
    DataOutOfRange {
        /// The PDU's type.
        pdu: PduType,
        /// First byte, from the start of the command's data.
        offset: u32,
        /// Number of bytes.
        length: u32,
    },
    /// More data in a PDU, or more R2Ts, than agreed.
    #[error("{pdu} PDU: {value} exceeds the limit {limit}")]
    LimitExceeded {
        /// The PDU's type.
        pdu: PduType,
        /// Value that was received.
        value: u32,
        /// Limit that was agreed on.
        limit: u32,
    },
}

impl PduError {
    /// The Fatal Error Status of the TermReq that answers this.
    #[must_use]
    pub fn fes(&self) -> FatalErrorStatus {
        match self {
            Self::UnknownType { .. } | Self::InvalidField { .. } => {
                FatalErrorStatus::INVALID_PDU_HEADER_FIELD
            }
            Self::Unsupported { .. } => FatalErrorStatus::UNSUPPORTED_PARAMETER,
            Self::Sequence { .. } => FatalErrorStatus::PDU_SEQUENCE_ERROR,
            Self::HeaderDigest { .. } => FatalErrorStatus::HEADER_DIGEST_ERROR,
            Self::DataOutOfRange { .. } => FatalErrorStatus::DATA_TRANSFER_OUT_OF_RANGE,
            Self::LimitExceeded { .. } => FatalErrorStatus::LIMIT_EXCEEDED,
        }
    }

    /// The Fatal Error Information: the byte offset of the wrong field, or the digest received.
    #[must_use]
    pub fn fei(&self) -> u32 {
        match self {
            Self::InvalidField { offset, .. } | Self::Unsupported { offset, .. } => {
                u32::from(*offset)
            }
            Self::HeaderDigest { received, .. } => *received,
            Self::UnknownType { .. }
            | Self::Sequence { .. }
            | Self::DataOutOfRange { .. }
            | Self::LimitExceeded { .. } => 0,
        }
    }
}
