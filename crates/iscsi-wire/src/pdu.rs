//! Basic header segments of all PDUs (RFC 7143, clause 11). Byte ranges are given per field; reserved bytes are zero.
//!
//! ```text
//! 0        1       2        4          5          8     16    20                    48
//! +--------+-------+--------+----------+----------+-----+-----+---------------------+
//! | opcode | flags |        | AHS len  | data len | LUN | ITT | as the opcode says  |
//! +--------+-------+--------+----------+----------+-----+-----+---------------------+
//! ```

use core::mem::size_of;

use zerocopy::big_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of a basic header segment.
pub const BHS_LEN: usize = 48;
/// Bytes of a digest.
pub const DIGEST_LEN: usize = 4;
/// The tag that names no task and no transfer.
pub const NO_TAG: u32 = 0xFFFF_FFFF;
/// FINAL, in byte 1.
pub const FINAL: u8 = 0x80;
/// TRANSIT, in byte 1 of Login PDUs.
pub const TRANSIT: u8 = 0x80;
/// CONTINUE, in byte 1 of Login and Text PDUs.
pub const CONTINUE: u8 = 0x40;
/// The Immediate bit, in the opcode's byte.
pub const IMMEDIATE: u8 = 0x40;
/// READ, in byte 1 of a SCSI Command.
pub const READ: u8 = 0x40;
/// WRITE, in byte 1 of a SCSI Command.
pub const WRITE: u8 = 0x20;
/// Residual overflow, in byte 1 of SCSI Response and Data-In.
pub const OVERFLOW: u8 = 0x04;
/// Residual underflow, in byte 1 of SCSI Response and Data-In.
pub const UNDERFLOW: u8 = 0x02;
/// Status is present, in byte 1 of Data-In.
pub const HAS_STATUS: u8 = 0x01;

/// Opcodes, without the Immediate bit.
#[expect(missing_docs, reason = "named by the specification")]
pub mod opcode {
    pub const NOP_OUT: u8 = 0x00;
    pub const SCSI_COMMAND: u8 = 0x01;
    pub const TASK_REQUEST: u8 = 0x02;
    pub const LOGIN_REQUEST: u8 = 0x03;
    pub const TEXT_REQUEST: u8 = 0x04;
    pub const DATA_OUT: u8 = 0x05;
    pub const LOGOUT_REQUEST: u8 = 0x06;
    pub const SNACK: u8 = 0x10;
    pub const NOP_IN: u8 = 0x20;
    pub const SCSI_RESPONSE: u8 = 0x21;
    pub const TASK_RESPONSE: u8 = 0x22;
    pub const LOGIN_RESPONSE: u8 = 0x23;
    pub const TEXT_RESPONSE: u8 = 0x24;
    pub const DATA_IN: u8 = 0x25;
    pub const LOGOUT_RESPONSE: u8 = 0x26;
    pub const R2T: u8 = 0x31;
    pub const ASYNC_MESSAGE: u8 = 0x32;
    pub const REJECT: u8 = 0x3F;
}

macro_rules! headers {
    ($($(#[$meta:meta])* $name:ident { $($(#[$field_meta:meta])* $field:ident: $type:ty,)* })*) => {
        $(
            $(#[$meta])*
            #[derive(Clone, Copy, Debug, Eq, PartialEq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
            #[repr(C)]
            pub struct $name {
                /// 0: opcode, and the Immediate bit.
                pub opcode: u8,
                /// 1: FINAL and what the opcode says.
                pub flags: u8,
                $($(#[$field_meta])* pub $field: $type,)*
            }

            const _: () = assert!(size_of::<$name>() == BHS_LEN);

            impl $name {
                /// The header as it lies in `bytes`.
                #[must_use]
                pub fn decode(bytes: &[u8; BHS_LEN]) -> Self {
                    zerocopy::transmute!(*bytes)
                }

                /// The bytes of the header.
                #[must_use]
                pub fn encode(self) -> [u8; BHS_LEN] {
                    zerocopy::transmute!(self)
                }
            }
        )*
    };
}

/// 4..8: lengths of what follows the header.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    Eq,
    PartialEq,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
    Unaligned,
)]
#[repr(C)]
pub struct Lengths {
    /// 4: words of additional header segments.
    pub ahs_words: u8,
    /// 5..8: bytes of data, without padding.
    pub data: [u8; 3],
}

impl Lengths {
    /// Lengths of a PDU with `len_bytes` of data, at most 2^24 - 1.
    #[must_use]
    pub fn of_data(len_bytes: usize) -> Self {
        let [_, data @ ..] = u32::try_from(len_bytes).unwrap_or(u32::MAX).to_be_bytes();
        Self { ahs_words: 0, data }
    }

    /// Bytes of data.
    #[must_use]
    pub fn data_len(self) -> usize {
        let [a, b, c] = self.data;
        u32::from_be_bytes([0, a, b, c]) as usize
    }

    /// Bytes of additional header segments.
    #[must_use]
    pub fn ahs_len(self) -> usize {
        usize::from(self.ahs_words) * 4
    }
}

/// 24..36 of each PDU that a target sends: the state of its two sequences.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    Eq,
    PartialEq,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
    Unaligned,
)]
#[repr(C)]
pub struct Sequence {
    /// 24..28: number of this status, or of the next one.
    pub stat_sn: U32,
    /// 28..32: the next command that the target expects.
    pub exp_cmd_sn: U32,
    /// 32..36: the last command that it takes.
    pub max_cmd_sn: U32,
}

/// Eight bytes of a logical unit number.
pub type Lun = [u8; 8];

headers! {
    /// The common part of all headers.
    Bhs {
        /// 2..4.
        specific: [u8; 2],
        /// 4..8.
        lengths: Lengths,
        /// 8..16.
        lun: Lun,
        /// 16..20: Initiator Task Tag.
        itt: U32,
        /// 20..48.
        rest: [U32; 7],
    }
    /// SCSI Command.
    ScsiCommand {
        /// 2..4.
        reserved: [u8; 2],
        /// 4..8.
        lengths: Lengths,
        /// 8..16.
        lun: Lun,
        /// 16..20: Initiator Task Tag.
        itt: U32,
        /// 20..24: Expected Data Transfer Length.
        edtl: U32,
        /// 24..28.
        cmd_sn: U32,
        /// 28..32.
        exp_stat_sn: U32,
        /// 32..48.
        cdb: [u8; 16],
    }
    /// SCSI Response.
    ScsiResponse {
        /// 2: 0, the target completed the command.
        response: u8,
        /// 3: SCSI status.
        status: u8,
        /// 4..8.
        lengths: Lengths,
        /// 8..16.
        reserved: [u8; 8],
        /// 16..20: Initiator Task Tag.
        itt: U32,
        /// 20..24.
        snack_tag: U32,
        /// 24..36.
        sequence: Sequence,
        /// 36..40: R2Ts and Data-Ins that were sent for the command.
        exp_data_sn: U32,
        /// 40..44.
        bidi_residual: U32,
        /// 44..48.
        residual: U32,
    }
    /// Task Management Function Request.
    TaskRequest {
        /// 2..4.
        reserved: [u8; 2],
        /// 4..8.
        lengths: Lengths,
        /// 8..16.
        lun: Lun,
        /// 16..20: Initiator Task Tag.
        itt: U32,
        /// 20..24: the task that it is about.
        referenced_itt: U32,
        /// 24..28.
        cmd_sn: U32,
        /// 28..32.
        exp_stat_sn: U32,
        /// 32..36: the number of that task's command.
        ref_cmd_sn: U32,
        /// 36..40.
        exp_data_sn: U32,
        /// 40..48.
        reserved2: [u8; 8],
    }
    /// Task Management Function Response.
    TaskResponse {
        /// 2.
        response: u8,
        /// 3.
        reserved: u8,
        /// 4..8.
        lengths: Lengths,
        /// 8..16.
        reserved2: [u8; 8],
        /// 16..20: Initiator Task Tag.
        itt: U32,
        /// 20..24.
        reserved3: [u8; 4],
        /// 24..36.
        sequence: Sequence,
        /// 36..48.
        reserved4: [u8; 12],
    }
    /// SCSI Data-Out.
    DataOut {
        /// 2..4.
        reserved: [u8; 2],
        /// 4..8.
        lengths: Lengths,
        /// 8..16.
        lun: Lun,
        /// 16..20: Initiator Task Tag.
        itt: U32,
        /// 20..24: Target Transfer Tag; [`NO_TAG`] for unsolicited data.
        ttt: U32,
        /// 24..28.
        reserved2: [u8; 4],
        /// 28..32.
        exp_stat_sn: U32,
        /// 32..36.
        reserved3: [u8; 4],
        /// 36..40.
        data_sn: U32,
        /// 40..44.
        buffer_offset: U32,
        /// 44..48.
        reserved4: [u8; 4],
    }
    /// SCSI Data-In.
    DataIn {
        /// 2.
        reserved: u8,
        /// 3: SCSI status, if [`HAS_STATUS`] is set.
        status: u8,
        /// 4..8.
        lengths: Lengths,
        /// 8..16.
        lun: Lun,
        /// 16..20: Initiator Task Tag.
        itt: U32,
        /// 20..24: Target Transfer Tag.
        ttt: U32,
        /// 24..36.
        sequence: Sequence,
        /// 36..40.
        data_sn: U32,
        /// 40..44.
        buffer_offset: U32,
        /// 44..48: if [`HAS_STATUS`] is set.
        residual: U32,
    }
    /// Ready To Transfer.
    R2t {
        /// 2..4.
        reserved: [u8; 2],
        /// 4..8.
        lengths: Lengths,
        /// 8..16.
        lun: Lun,
        /// 16..20: Initiator Task Tag.
        itt: U32,
        /// 20..24: Target Transfer Tag.
        ttt: U32,
        /// 24..36.
        sequence: Sequence,
        /// 36..40.
        r2t_sn: U32,
        /// 40..44.
        buffer_offset: U32,
        /// 44..48.
        desired_len: U32,
    }
    /// Asynchronous Message.
    AsyncMessage {
        /// 2..4.
        reserved: [u8; 2],
        /// 4..8.
        lengths: Lengths,
        /// 8..16.
        lun: Lun,
        /// 16..20: [`NO_TAG`].
        itt: U32,
        /// 20..24.
        reserved2: [u8; 4],
        /// 24..36.
        sequence: Sequence,
        /// 36.
        event: u8,
        /// 37.
        vendor_code: u8,
        /// 38..44.
        parameters: [U16; 3],
        /// 44..48.
        reserved3: [u8; 4],
    }
    /// Text Request.
    TextRequest {
        /// 2..4.
        reserved: [u8; 2],
        /// 4..8.
        lengths: Lengths,
        /// 8..16.
        lun: Lun,
        /// 16..20: Initiator Task Tag.
        itt: U32,
        /// 20..24: Target Transfer Tag: the answer that goes on.
        ttt: U32,
        /// 24..28.
        cmd_sn: U32,
        /// 28..32.
        exp_stat_sn: U32,
        /// 32..48.
        reserved2: [u8; 16],
    }
    /// Text Response.
    TextResponse {
        /// 2..4.
        reserved: [u8; 2],
        /// 4..8.
        lengths: Lengths,
        /// 8..16.
        lun: Lun,
        /// 16..20: Initiator Task Tag.
        itt: U32,
        /// 20..24: Target Transfer Tag.
        ttt: U32,
        /// 24..36.
        sequence: Sequence,
        /// 36..48.
        reserved2: [u8; 12],
    }
    /// Login Request.
    LoginRequest {
        /// 2.
        version_max: u8,
        /// 3.
        version_min: u8,
        /// 4..8.
        lengths: Lengths,
        /// 8..14: initiator's part of the session's identifier.
        isid: [u8; 6],
        /// 14..16: target's part; 0 for a new session.
        tsih: U16,
        /// 16..20: Initiator Task Tag.
        itt: U32,
        /// 20..22.
        cid: U16,
        /// 22..24.
        reserved: [u8; 2],
        /// 24..28.
        cmd_sn: U32,
        /// 28..32.
        exp_stat_sn: U32,
        /// 32..48.
        reserved2: [u8; 16],
    }
    /// Login Response.
    LoginResponse {
        /// 2.
        version_max: u8,
        /// 3.
        version_active: u8,
        /// 4..8.
        lengths: Lengths,
        /// 8..14.
        isid: [u8; 6],
        /// 14..16.
        tsih: U16,
        /// 16..20: Initiator Task Tag.
        itt: U32,
        /// 20..24.
        reserved: [u8; 4],
        /// 24..36.
        sequence: Sequence,
        /// 36..38: status class and detail.
        status: [u8; 2],
        /// 38..48.
        reserved2: [u8; 10],
    }
    /// Logout Request.
    LogoutRequest {
        /// 2..4.
        reserved: [u8; 2],
        /// 4..8.
        lengths: Lengths,
        /// 8..16.
        reserved2: [u8; 8],
        /// 16..20: Initiator Task Tag.
        itt: U32,
        /// 20..22.
        cid: U16,
        /// 22..24.
        reserved3: [u8; 2],
        /// 24..28.
        cmd_sn: U32,
        /// 28..32.
        exp_stat_sn: U32,
        /// 32..48.
        reserved4: [u8; 16],
    }
    /// Logout Response.
    LogoutResponse {
        /// 2.
        response: u8,
        /// 3.
        reserved: u8,
        /// 4..8.
        lengths: Lengths,
        /// 8..16.
        reserved2: [u8; 8],
        /// 16..20: Initiator Task Tag.
        itt: U32,
        /// 20..24.
        reserved3: [u8; 4],
        /// 24..36.
        sequence: Sequence,
        /// 36..40.
        reserved4: [u8; 4],
        /// 40..42: seconds.
        time2wait: U16,
        /// 42..44: seconds.
        time2retain: U16,
        /// 44..48.
        reserved5: [u8; 4],
    }
    /// NOP-Out.
    NopOut {
        /// 2..4.
        reserved: [u8; 2],
        /// 4..8.
        lengths: Lengths,
        /// 8..16.
        lun: Lun,
        /// 16..20: Initiator Task Tag; [`NO_TAG`] if no answer is wanted.
        itt: U32,
        /// 20..24: Target Transfer Tag: of the NOP-In that it answers.
        ttt: U32,
        /// 24..28.
        cmd_sn: U32,
        /// 28..32.
        exp_stat_sn: U32,
        /// 32..48.
        reserved2: [u8; 16],
    }
    /// NOP-In.
    NopIn {
        /// 2..4.
        reserved: [u8; 2],
        /// 4..8.
        lengths: Lengths,
        /// 8..16.
        lun: Lun,
        /// 16..20: Initiator Task Tag.
        itt: U32,
        /// 20..24: Target Transfer Tag; [`NO_TAG`] if no answer is wanted.
        ttt: U32,
        /// 24..36.
        sequence: Sequence,
        /// 36..48.
        reserved2: [u8; 12],
    }
    /// Reject.
    Reject {
        /// 2.
        reason: u8,
        /// 3.
        reserved: u8,
        /// 4..8.
        lengths: Lengths,
        /// 8..16.
        reserved2: [u8; 8],
        /// 16..20: [`NO_TAG`].
        itt: U32,
        /// 20..24.
        reserved3: [u8; 4],
        /// 24..36.
        sequence: Sequence,
        /// 36..40: DataSN or R2TSN.
        data_sn: U32,
        /// 40..48.
        reserved4: [u8; 8],
    }
}

impl Bhs {
    /// The opcode, without the Immediate bit.
    #[must_use]
    pub fn operation(&self) -> u8 {
        self.opcode & 0x3F
    }

    /// Returns whether the Immediate bit is set.
    #[must_use]
    pub fn is_immediate(&self) -> bool {
        self.opcode & IMMEDIATE != 0
    }
}

/// Reasons of Reject.
#[expect(missing_docs, reason = "named by the specification")]
pub mod reject {
    pub const DATA_DIGEST: u8 = 0x02;
    pub const PROTOCOL_ERROR: u8 = 0x04;
    pub const COMMAND_NOT_SUPPORTED: u8 = 0x05;
    pub const TOO_MANY_IMMEDIATE: u8 = 0x06;
    pub const INVALID_FIELD: u8 = 0x09;
}

/// Status class and detail of a Login Response.
#[expect(missing_docs, reason = "named by the specification")]
pub mod login_status {
    pub const SUCCESS: [u8; 2] = [0x00, 0x00];
    pub const INITIATOR_ERROR: [u8; 2] = [0x02, 0x00];
    pub const AUTHENTICATION_FAILURE: [u8; 2] = [0x02, 0x01];
    pub const AUTHORIZATION_FAILURE: [u8; 2] = [0x02, 0x02];
    pub const NOT_FOUND: [u8; 2] = [0x02, 0x03];
    pub const UNSUPPORTED_VERSION: [u8; 2] = [0x02, 0x05];
    pub const MISSING_PARAMETER: [u8; 2] = [0x02, 0x07];
    pub const SESSION_TYPE: [u8; 2] = [0x02, 0x09];
    pub const NO_SUCH_SESSION: [u8; 2] = [0x02, 0x0A];
    pub const INVALID_DURING_LOGIN: [u8; 2] = [0x02, 0x0B];
    pub const TARGET_ERROR: [u8; 2] = [0x03, 0x00];
    pub const SERVICE_UNAVAILABLE: [u8; 2] = [0x03, 0x01];
    pub const OUT_OF_RESOURCES: [u8; 2] = [0x03, 0x02];
}

/// Functions of a Task Management Function Request.
#[expect(missing_docs, reason = "named by the specification")]
pub mod task_function {
    pub const ABORT_TASK: u8 = 1;
    pub const ABORT_TASK_SET: u8 = 2;
    pub const CLEAR_ACA: u8 = 3;
    pub const CLEAR_TASK_SET: u8 = 4;
    pub const LOGICAL_UNIT_RESET: u8 = 5;
    pub const TARGET_WARM_RESET: u8 = 6;
    pub const TARGET_COLD_RESET: u8 = 7;
    pub const TASK_REASSIGN: u8 = 8;
}

/// Responses of a Task Management Function Response.
#[expect(missing_docs, reason = "named by the specification")]
pub mod task_response {
    pub const COMPLETE: u8 = 0;
    pub const NO_SUCH_TASK: u8 = 1;
    pub const NO_SUCH_UNIT: u8 = 2;
    pub const NOT_SUPPORTED: u8 = 5;
    pub const REJECTED: u8 = 255;
}

/// Events of an Asynchronous Message.
#[expect(missing_docs, reason = "named by the specification")]
pub mod async_event {
    pub const SCSI: u8 = 0;
    pub const LOGOUT_REQUESTED: u8 = 1;
    pub const CONNECTION_DROPPED: u8 = 2;
    pub const SESSION_DROPPED: u8 = 3;
}

/// A header of zeroes with this opcode, FINAL set.
#[must_use]
pub fn blank<H: FromBytes + IntoBytes + Immutable>(opcode: u8) -> H {
    let mut header = H::new_zeroed();
    if let [first, second, ..] = header.as_mut_bytes() {
        (*first, *second) = (opcode, FINAL);
    }
    header
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A SCSI Command as open-iscsi sends it: READ(10) of 8 blocks from 0x100 on.
    const COMMAND: [u8; BHS_LEN] = [
        0x01, 0xC1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x10, 0, 0, 7, 0, 0, 0x80, 0, 0, 0,
        0, 9, 0, 0, 0, 5, 0x28, 0, 0, 0, 1, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0,
    ];

    #[test]
    fn a_command_lies_where_the_figure_says() {
        let command = ScsiCommand::decode(&COMMAND);
        assert_eq!((command.itt.get(), command.edtl.get()), (0x1000_0007, 0x8000));
        assert_eq!((command.cmd_sn.get(), command.exp_stat_sn.get()), (9, 5));
        assert_eq!(command.flags, FINAL | READ | 1);
        assert_eq!(command.cdb[..9], [0x28, 0, 0, 0, 1, 0, 0, 0, 8]);
        assert_eq!(command.encode(), COMMAND);
    }

    #[test]
    fn responses_lie_where_the_figures_say() {
        let sequence = Sequence { stat_sn: 1.into(), exp_cmd_sn: 2.into(), max_cmd_sn: 3.into() };
        let mut response: ScsiResponse = blank(opcode::SCSI_RESPONSE);
        (response.status, response.lengths) = (2, Lengths::of_data(0x0001_0203));
        (response.itt, response.sequence) = (4.into(), sequence);
        (response.exp_data_sn, response.residual) = (5.into(), 6.into());
        let bytes = response.encode();
        assert_eq!(bytes[..8], [0x21, 0x80, 0, 2, 0, 1, 2, 3]);
        assert_eq!(bytes[16..24], [0, 0, 0, 4, 0, 0, 0, 0]);
        assert_eq!(bytes[24..40], [0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 5]);
        assert_eq!(bytes[40..], [0, 0, 0, 0, 0, 0, 0, 6]);
        let mut r2t: R2t = blank(opcode::R2T);
        (r2t.ttt, r2t.r2t_sn, r2t.buffer_offset, r2t.desired_len) =
            (7.into(), 8.into(), 9.into(), 10.into());
        let bytes = r2t.encode();
        assert_eq!(bytes[20..24], [0, 0, 0, 7]);
        assert_eq!(bytes[36..], [0, 0, 0, 8, 0, 0, 0, 9, 0, 0, 0, 10]);
        let mut login: LoginResponse = blank(opcode::LOGIN_RESPONSE);
        (login.isid, login.tsih, login.status) = ([1, 2, 3, 4, 5, 6], 0x0708.into(), [2, 1]);
        let bytes = login.encode();
        assert_eq!((&bytes[8..16], &bytes[36..38]), (&[1, 2, 3, 4, 5, 6, 7, 8][..], &[2, 1][..]));
        let mut logout: LogoutResponse = blank(opcode::LOGOUT_RESPONSE);
        (logout.time2wait, logout.time2retain) = (0x0102.into(), 0x0304.into());
        assert_eq!(logout.encode()[40..44], [1, 2, 3, 4]);
        let mut event: AsyncMessage = blank(opcode::ASYNC_MESSAGE);
        (event.event, event.parameters) = (1, [0.into(), 2.into(), 3.into()]);
        assert_eq!(event.encode()[36..44], [1, 0, 0, 0, 0, 2, 0, 3]);
    }

    proptest! {
        #[test]
        fn every_header_comes_back(bytes in any::<[u8; 32]>(), more in any::<[u8; 16]>()) {
            let mut header = [0; BHS_LEN];
            header[..32].copy_from_slice(&bytes);
            header[32..].copy_from_slice(&more);
            prop_assert_eq!(Bhs::decode(&header).encode(), header);
            prop_assert_eq!(DataOut::decode(&header).encode(), header);
            prop_assert_eq!(DataIn::decode(&header).encode(), header);
            let bhs = Bhs::decode(&header);
            prop_assert_eq!(Lengths::of_data(bhs.lengths.data_len()).data, bhs.lengths.data);
        }
    }
}
