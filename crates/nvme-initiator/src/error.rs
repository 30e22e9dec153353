//! Why a connection is over.

use nvme_wire::pdu::{FatalErrorStatus, PduError, PduType};

/// Why a connection is over. The driver sends [`crate::Connection::term_req`], if there is one,
/// and closes it.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum ConnectionError {
    /// The controller broke the protocol.
    #[error("the controller broke the protocol: {0}")]
    Protocol(PduError),
    /// The controller answered a command that is not outstanding.
    #[error(
        "the controller broke the protocol: {pdu} PDU for command {cid:#06x}, which is not outstanding"
    )]
    UnknownCommand {
        /// The PDU's type.
        pdu: PduType,
        /// The Command Identifier in it.
        cid: u16,
    },
    /// The controller completed a command successfully although data is missing.
    #[error(
        "the controller broke the protocol: command {cid:#06x} succeeded after {done} of {len} bytes"
    )]
    ShortData {
        /// The Command Identifier.
        cid: u16,
        /// Bytes that were moved.
        done: u32,
        /// Bytes that the command moves.
        len: u32,
    },
    /// The controller ended the connection.
    #[error("the controller ended the connection: {}, information {fei:#x}", fes.name())]
    Terminated {
        /// Its reason.
        fes: FatalErrorStatus,
        /// The place that the reason refers to.
        fei: u32,
    },
}

impl From<PduError> for ConnectionError {
    fn from(error: PduError) -> Self {
        Self::Protocol(error)
    }
}

impl ConnectionError {
    /// The error to report to the peer, unless the peer ended the connection.
    #[must_use]
    pub fn pdu_error(&self) -> Option<PduError> {
        match *self {
            Self::Protocol(error) => Some(error),
            Self::UnknownCommand { pdu, cid } => {
                // CCCID, or the CID inside the completion.
                let offset = if pdu == PduType::CapsuleResp { 20 } else { 8 };
                Some(PduError::InvalidField { pdu, offset, value: u32::from(cid) })
            }
            Self::ShortData { .. } => Some(PduError::Sequence { pdu: PduType::CapsuleResp }),
            Self::Terminated { .. } => None,
        }
    }
}
