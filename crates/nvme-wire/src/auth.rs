//! In-band authentication: the Fabrics commands that carry it, and the messages of DH-HMAC-CHAP
//! (Base, clauses 6.2, 6.3 and 8.3.4.5).
//!
//! ```text
//! host                                  controller
//!   │  Send: Negotiate ─────────────────►  │
//!   │  Receive: ◄──────────────── Challenge │
//!   │  Send: Reply ─────────────────────►  │
//!   │  Receive: ◄───────────────── Success1 │
//!   │  Send: Success2 ──────────────────►  │   only if the host asked the controller to prove itself
//! ```
//! Either side can say Failure1 or Failure2 instead of its next message.

use alloc::vec::Vec;
use core::mem::{offset_of, size_of};

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::fabrics::{OPCODE, SECP_DH_HMAC_CHAP, SPSP};
use crate::{FabricsType, SglDescriptor, Sqe};

/// Longest message: a Reply with SHA-512 and the 8192-bit group, 16 + 2 × 64 + 1024 bytes. Hosts
/// offer more room than that.
pub const MESSAGE_LEN_MAX: usize = 4096;

/// Authentication Send and Authentication Receive.
#[derive(
    Clone, Copy, Debug, Eq, PartialEq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct Authentication {
    /// 0: opcode, 7Fh.
    pub opcode: u8,
    /// 1: FUSE and PSDT.
    pub flags: u8,
    /// 2..4: Command Identifier.
    pub cid: U16,
    /// 4: FCTYPE, 05h (send) or 06h (receive).
    pub fctype: u8,
    /// 5..24: reserved.
    pub reserved: [u8; 19],
    /// 24..40: SGL1.
    pub dptr: SglDescriptor,
    /// 40: reserved.
    pub reserved2: u8,
    /// 41: SP Specific 0, [`SPSP`].
    pub spsp0: u8,
    /// 42: SP Specific 1, [`SPSP`].
    pub spsp1: u8,
    /// 43: Security Protocol, [`SECP_DH_HMAC_CHAP`].
    pub secp: u8,
    /// 44..48: Transfer or Allocation Length, bytes of the message or of the room for one.
    pub length: U32,
    /// 48..64: reserved.
    pub reserved3: [u8; 16],
}

const _: () = {
    assert!(size_of::<Authentication>() == 64);
    assert!(offset_of!(Authentication, secp) == 43 && offset_of!(Authentication, length) == 44);
};

impl Authentication {
    /// Byte offset of SPSP0 in the command.
    pub const OFFSET_SPSP0: u16 = 41;
    /// Byte offset of SPSP1 in the command.
    pub const OFFSET_SPSP1: u16 = 42;
    /// Byte offset of SECP in the command.
    pub const OFFSET_SECP: u16 = 43;
    /// Byte offset of TL or AL in the command.
    pub const OFFSET_LENGTH: u16 = 44;

    /// Sends a message of `length` bytes, in the capsule.
    #[must_use]
    pub fn send(length: u32) -> Self {
        Self {
            fctype: FabricsType::AUTHENTICATION_SEND.0,
            dptr: SglDescriptor::in_capsule(length),
            ..Self::receive(length, SglDescriptor::new_zeroed())
        }
    }

    /// Asks for the controller's message, with room for `length` bytes at `dptr`.
    #[must_use]
    pub fn receive(length: u32, dptr: SglDescriptor) -> Self {
        Self {
            opcode: OPCODE,
            flags: Sqe::PSDT_SGL,
            fctype: FabricsType::AUTHENTICATION_RECEIVE.0,
            dptr,
            spsp0: SPSP,
            spsp1: SPSP,
            secp: SECP_DH_HMAC_CHAP,
            length: length.into(),
            ..Self::new_zeroed()
        }
    }

    /// The byte offset of the first field that does not ask for DH-HMAC-CHAP, or of an empty length.
    #[must_use]
    pub fn wrong_field(&self) -> Option<u16> {
        let fields = [
            (self.secp == SECP_DH_HMAC_CHAP, Self::OFFSET_SECP),
            (self.spsp0 == SPSP, Self::OFFSET_SPSP0),
            (self.spsp1 == SPSP, Self::OFFSET_SPSP1),
            (self.length.get() > 0, Self::OFFSET_LENGTH),
        ];
        fields.into_iter().find(|(right, _)| !right).map(|(_, offset)| offset)
    }
}

super::fabrics::same_bytes_as_sqe!(Authentication);

/// Why an authentication failed (Reason Code Explanation).
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[repr(u8)]
pub enum Explanation {
    /// The response is not what the secret gives.
    #[error("authentication failed")]
    Failed = 1,
    /// No protocol offered is known.
    #[error("the authentication protocol is not usable")]
    ProtocolNotUsable = 2,
    /// A secure channel was asked for, or not, against what this side does.
    #[error("secure channel concatenation mismatch")]
    ConcatenationMismatch = 3,
    /// No hash function offered is known.
    #[error("no usable hash function")]
    HashNotUsable = 4,
    /// No Diffie-Hellman group offered is known, or the value is none of the group.
    #[error("no usable Diffie-Hellman group")]
    GroupNotUsable = 5,
    /// A field holds what it may not.
    #[error("incorrect payload")]
    IncorrectPayload = 6,
    /// It was another message's turn.
    #[error("incorrect protocol message")]
    IncorrectMessage = 7,
}

impl Explanation {
    /// From its code.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Self> {
        let all = [
            Self::Failed,
            Self::ProtocolNotUsable,
            Self::ConcatenationMismatch,
            Self::HashNotUsable,
            Self::GroupNotUsable,
            Self::IncorrectPayload,
            Self::IncorrectMessage,
        ];
        all.into_iter().find(|explanation| *explanation as u8 == code)
    }
}

/// A message.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Message<'a> {
    /// T_ID: the transaction, chosen by the host.
    pub transaction: u16,
    /// The body, by kind of message.
    pub body: Body<'a>,
}

/// The body of a [`Message`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Body<'a> {
    /// The host offers protocols.
    Negotiate {
        /// SC_C: whether and how a secure channel is to follow; 0 for none.
        secure_channel: u8,
        /// Identifiers of hash functions, the best first.
        hashes: &'a [u8],
        /// Identifiers of Diffie-Hellman groups, the best first.
        groups: &'a [u8],
    },
    /// The controller chose, and asks the host to prove itself.
    Challenge {
        /// The hash function.
        hash: u8,
        /// The group.
        group: u8,
        /// S1.
        sequence: u32,
        /// C1, as long as the hash.
        challenge: &'a [u8],
        /// The controller's public value; empty with the null group.
        public: &'a [u8],
    },
    /// The host proves itself, and may ask the controller to.
    Reply {
        /// S2; 0 if the controller need not prove itself.
        sequence: u32,
        /// R1, as long as the hash.
        response: &'a [u8],
        /// C2, if there is one.
        challenge: Option<&'a [u8]>,
        /// The host's public value; empty with the null group.
        public: &'a [u8],
    },
    /// The host is authenticated. R2, if the host asked for it.
    Success1 {
        /// R2.
        response: Option<&'a [u8]>,
    },
    /// The controller is authenticated, too.
    Success2,
    /// The controller gives up.
    Failure1(u8),
    /// The host gives up.
    Failure2(u8),
}

const COMMON: u8 = 0x00;
const DH_HMAC_CHAP: u8 = 0x01;
const NEGOTIATE: (u8, u8) = (COMMON, 0x00);
const CHALLENGE: (u8, u8) = (DH_HMAC_CHAP, 0x01);
const REPLY: (u8, u8) = (DH_HMAC_CHAP, 0x02);
const SUCCESS1: (u8, u8) = (DH_HMAC_CHAP, 0x03);
const SUCCESS2: (u8, u8) = (DH_HMAC_CHAP, 0x04);
const FAILURE2: (u8, u8) = (COMMON, 0xF0);
const FAILURE1: (u8, u8) = (COMMON, 0xF1);

/// Identifier of DH-HMAC-CHAP among the protocols of a Negotiate.
const PROTOCOL_ID: u8 = 0x01;
/// Reason Code: authentication failure, the only one there is.
const REASON_FAILURE: u8 = 0x01;
/// Bytes of a protocol descriptor, and where its two lists lie.
const DESCRIPTOR_LEN: usize = 64;
const HASHES_AT: usize = 4;
const GROUPS_AT: usize = 34;
const LIST_LEN_MAX: usize = 30;
/// Bytes of the messages before their values of variable length.
const NEGOTIATE_LEN: usize = 8;
const FAILURE_LEN: usize = 8;
const HEADER_LEN: usize = 16;

impl<'a> Message<'a> {
    /// Reads a message. Bytes behind it do not count, as a host may offer more room than it takes.
    ///
    /// # Errors
    /// [`Explanation::IncorrectMessage`] if it is none of the above, else what is wrong in it.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, Explanation> {
        let [auth_type, id, _, _, t0, t1, ..] = *bytes else {
            return Err(Explanation::IncorrectPayload);
        };
        let body = match (auth_type, id) {
            NEGOTIATE => decode_negotiate(bytes)?,
            CHALLENGE => decode_challenge(bytes)?,
            REPLY => decode_reply(bytes)?,
            SUCCESS1 => {
                let header = fixed::<HEADER_LEN>(bytes)?;
                let mut rest = &bytes[HEADER_LEN..];
                let len = usize::from(header[6]);
                let response = if header[8] & 1 == 1 { Some(take(&mut rest, len)?) } else { None };
                Body::Success1 { response }
            }
            SUCCESS2 => fixed::<HEADER_LEN>(bytes).map(|_| Body::Success2)?,
            FAILURE1 => Body::Failure1(fixed::<FAILURE_LEN>(bytes)?[7]),
            FAILURE2 => Body::Failure2(fixed::<FAILURE_LEN>(bytes)?[7]),
            _ => return Err(Explanation::IncorrectMessage),
        };
        Ok(Self { transaction: u16::from_le_bytes([t0, t1]), body })
    }

    /// The message's bytes. Lists and values of more bytes than fields can say are a mistake of the
    /// caller.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let (auth_type, id) = self.body.kind();
        let mut out = alloc::vec![auth_type, id, 0, 0];
        out.extend_from_slice(&self.transaction.to_le_bytes());
        let len_of = |value: &[u8]| u8::try_from(value.len()).expect("a hash is short");
        let public_len = |value: &[u8]| u16::try_from(value.len()).expect("at most 1024");
        match self.body {
            Body::Negotiate { secure_channel, hashes, groups } => {
                out.extend_from_slice(&[secure_channel, 1]);
                out.extend_from_slice(&[PROTOCOL_ID, 0, len_of(hashes), len_of(groups)]);
                for list in [hashes, groups] {
                    let at = out.len();
                    out.extend_from_slice(list);
                    assert!(list.len() <= LIST_LEN_MAX, "a list has 30 places");
                    out.resize(at + LIST_LEN_MAX, 0);
                }
            }
            Body::Challenge { hash, group, sequence, challenge, public } => {
                out.extend_from_slice(&[len_of(challenge), 0, hash, group]);
                out.extend_from_slice(&public_len(public).to_le_bytes());
                out.extend_from_slice(&sequence.to_le_bytes());
                out.extend_from_slice(challenge);
                out.extend_from_slice(public);
            }
            Body::Reply { sequence, response, challenge, public } => {
                out.extend_from_slice(&[len_of(response), 0, u8::from(challenge.is_some()), 0]);
                out.extend_from_slice(&public_len(public).to_le_bytes());
                out.extend_from_slice(&sequence.to_le_bytes());
                out.extend_from_slice(response);
                let at = out.len();
                out.extend_from_slice(challenge.unwrap_or_default());
                out.resize(at + response.len(), 0);
                out.extend_from_slice(public);
            }
            Body::Success1 { response } => {
                let value = response.unwrap_or_default();
                out.extend_from_slice(&[len_of(value), 0, u8::from(response.is_some())]);
                out.resize(HEADER_LEN, 0);
                out.extend_from_slice(value);
            }
            Body::Success2 => out.resize(HEADER_LEN, 0),
            Body::Failure1(explanation) | Body::Failure2(explanation) => {
                out.extend_from_slice(&[REASON_FAILURE, explanation]);
            }
        }
        out
    }
}

impl Body<'_> {
    /// AUTH_TYPE and AUTH_ID.
    fn kind(&self) -> (u8, u8) {
        match self {
            Self::Negotiate { .. } => NEGOTIATE,
            Self::Challenge { .. } => CHALLENGE,
            Self::Reply { .. } => REPLY,
            Self::Success1 { .. } => SUCCESS1,
            Self::Success2 => SUCCESS2,
            Self::Failure1(_) => FAILURE1,
            Self::Failure2(_) => FAILURE2,
        }
    }
}

/// The first `N` bytes.
fn fixed<const N: usize>(bytes: &[u8]) -> Result<&[u8; N], Explanation> {
    bytes.first_chunk().ok_or(Explanation::IncorrectPayload)
}

/// Takes `len` bytes off `rest`.
fn take<'a>(rest: &mut &'a [u8], len: usize) -> Result<&'a [u8], Explanation> {
    let (value, behind) = rest.split_at_checked(len).ok_or(Explanation::IncorrectPayload)?;
    *rest = behind;
    Ok(value)
}

/// Takes the first of several protocols that is DH-HMAC-CHAP.
fn decode_negotiate(bytes: &[u8]) -> Result<Body<'_>, Explanation> {
    let header = fixed::<NEGOTIATE_LEN>(bytes)?;
    let (secure_channel, count) = (header[6], usize::from(header[7]));
    let mut rest = &bytes[NEGOTIATE_LEN..];
    for _ in 0..count {
        let descriptor = take(&mut rest, DESCRIPTOR_LEN)?;
        if descriptor[0] != PROTOCOL_ID {
            continue;
        }
        let lens = [usize::from(descriptor[2]), usize::from(descriptor[3])];
        if lens.iter().any(|len| *len > LIST_LEN_MAX) {
            return Err(Explanation::IncorrectPayload);
        }
        let hashes = &descriptor[HASHES_AT..HASHES_AT + lens[0]];
        let groups = &descriptor[GROUPS_AT..GROUPS_AT + lens[1]];
        return Ok(Body::Negotiate { secure_channel, hashes, groups });
    }
    Err(Explanation::ProtocolNotUsable)
}

/// The length of the public value and the sequence number, which two messages have in one place.
fn public_len_and_sequence(header: &[u8; HEADER_LEN]) -> (usize, u32) {
    let [.., l0, l1, s0, s1, s2, s3] = *header;
    (usize::from(u16::from_le_bytes([l0, l1])), u32::from_le_bytes([s0, s1, s2, s3]))
}

fn decode_challenge(bytes: &[u8]) -> Result<Body<'_>, Explanation> {
    let header = fixed::<HEADER_LEN>(bytes)?;
    let (public_len, sequence) = public_len_and_sequence(header);
    let mut rest = &bytes[HEADER_LEN..];
    let challenge = take(&mut rest, usize::from(header[6]))?;
    let public = take(&mut rest, public_len)?;
    Ok(Body::Challenge { hash: header[8], group: header[9], sequence, challenge, public })
}

fn decode_reply(bytes: &[u8]) -> Result<Body<'_>, Explanation> {
    let header = fixed::<HEADER_LEN>(bytes)?;
    let (public_len, sequence) = public_len_and_sequence(header);
    let len = usize::from(header[6]);
    let mut rest = &bytes[HEADER_LEN..];
    let response = take(&mut rest, len)?;
    let challenge = take(&mut rest, len)?;
    let public = take(&mut rest, public_len)?;
    let challenge = (header[8] & 1 == 1).then_some(challenge);
    Ok(Body::Reply { sequence, response, challenge, public })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes_of(transaction: u16, body: Body<'_>) -> Vec<u8> {
        Message { transaction, body }.to_bytes()
    }

    const BODIES: [Body<'_>; 9] = [
        Body::Negotiate { secure_channel: 0, hashes: &[1, 2, 3], groups: &[0, 1, 2, 3, 4, 5] },
        Body::Challenge { hash: 1, group: 0, sequence: 9, challenge: &[7; 32], public: &[] },
        Body::Challenge { hash: 3, group: 5, sequence: 9, challenge: &[7; 64], public: &[8; 1024] },
        Body::Reply { sequence: 0, response: &[1; 48], challenge: None, public: &[2; 256] },
        Body::Reply { sequence: 5, response: &[1; 48], challenge: Some(&[3; 48]), public: &[] },
        Body::Success1 { response: None },
        Body::Success1 { response: Some(&[4; 64]) },
        Body::Success2,
        Body::Failure1(Explanation::Failed as u8),
    ];

    #[test]
    fn messages_come_back_as_they_were_and_no_part_of_one_does() {
        for body in BODIES {
            let bytes = bytes_of(0x1234, body);
            assert_eq!(Message::decode(&bytes), Ok(Message { transaction: 0x1234, body }));
            assert!(Message::decode(&bytes[..bytes.len() - 1]).is_err(), "{body:?}");
        }
    }

    /// As Linux sends it: three hash functions, six groups.
    #[test]
    fn a_negotiation_matches_the_golden_bytes() {
        let bytes = bytes_of(0x0102, BODIES[0]);
        assert_eq!(bytes.len(), 72);
        assert_eq!(bytes[..16], [0, 0, 0, 0, 2, 1, 0, 1, 1, 0, 3, 6, 1, 2, 3, 0]);
        assert_eq!(bytes[42..49], [0, 1, 2, 3, 4, 5, 0]);
        assert!(bytes[15..42].iter().chain(&bytes[48..]).all(|byte| *byte == 0));
    }

    #[test]
    fn the_fields_of_challenge_and_reply_lie_where_they_must() {
        let challenge = bytes_of(1, BODIES[2]);
        assert_eq!(challenge[..16], [1, 1, 0, 0, 1, 0, 64, 0, 3, 5, 0, 4, 9, 0, 0, 0]);
        let reply = bytes_of(1, BODIES[4]);
        assert_eq!(reply[..16], [1, 2, 0, 0, 1, 0, 48, 0, 1, 0, 0, 0, 5, 0, 0, 0]);
        assert_eq!((reply.len(), reply[16], reply[64]), (16 + 96, 1, 3));
        assert_eq!(bytes_of(7, BODIES[8]), [0, 0xF1, 0, 0, 7, 0, 1, 1]);
    }

    #[test]
    fn a_negotiation_without_the_protocol_is_told_so() {
        let mut bytes = bytes_of(1, BODIES[0]);
        bytes[8] = 2;
        assert_eq!(Message::decode(&bytes), Err(Explanation::ProtocolNotUsable));
        bytes[7] = 2;
        assert_eq!(Message::decode(&bytes), Err(Explanation::IncorrectPayload));
        (bytes[7], bytes[8], bytes[10]) = (1, 1, 31);
        assert_eq!(Message::decode(&bytes), Err(Explanation::IncorrectPayload));
    }

    #[test]
    fn the_commands_have_the_golden_bytes() {
        let send = Authentication::send(72);
        assert_eq!(send.as_bytes()[40..48], [0, 1, 1, 0xE9, 72, 0, 0, 0]);
        assert_eq!((send.fctype, send.wrong_field()), (5, None));
        let receive = Authentication::receive(0, SglDescriptor::new_zeroed());
        assert_eq!(receive.wrong_field(), Some(Authentication::OFFSET_LENGTH));
        assert_eq!(Authentication { spsp1: 0, ..send }.wrong_field(), Some(42));
    }

    #[test]
    fn explanations_have_their_codes() {
        for code in 0..=u8::MAX {
            let found = Explanation::from_code(code).map(|explanation| explanation as u8);
            assert_eq!(found, (1..=7).contains(&code).then_some(code));
        }
    }
}
