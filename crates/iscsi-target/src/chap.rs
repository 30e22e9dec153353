//! CHAP as iSCSI uses it (RFC 7143, clause 12.1.3): a response is the hash of identifier, secret and challenge.
//!
//! - CHAP-1: a response is compared in constant time.
//! - CHAP-2: an initiator that returns the target's own challenge as its own is refused: it would have the target compute
//!   its response for it.

use alloc::vec::Vec;

use md5::{Digest, Md5};
use sha2::Sha256;
use subtle::ConstantTimeEq;

/// Longest challenge that is taken, in bytes.
pub const CHALLENGE_LEN_MAX: usize = 1024;

/// A hash of CHAP, by its registered number.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Algorithm {
    /// 5, which all initiators have.
    Md5,
    /// 7.
    Sha256,
}

impl Algorithm {
    /// The registered number.
    #[must_use]
    pub const fn number(self) -> u64 {
        match self {
            Self::Md5 => 5,
            Self::Sha256 => 7,
        }
    }

    /// The algorithm of this number.
    #[must_use]
    pub fn from_number(number: u64) -> Option<Self> {
        [Self::Md5, Self::Sha256].into_iter().find(|algorithm| algorithm.number() == number)
    }

    /// The response to `challenge`.
    #[must_use]
    pub fn response(self, id: u8, secret: &[u8], challenge: &[u8]) -> Vec<u8> {
        match self {
            Self::Md5 => {
                let hash = Md5::new().chain_update([id]).chain_update(secret);
                hash.chain_update(challenge).finalize().to_vec()
            }
            Self::Sha256 => {
                let hash = Sha256::new().chain_update([id]).chain_update(secret);
                hash.chain_update(challenge).finalize().to_vec()
            }
        }
    }

    /// CHAP-1: returns whether `response` is that to `challenge`.
    #[must_use]
    pub fn is_response(self, id: u8, secret: &[u8], challenge: &[u8], response: &[u8]) -> bool {
        self.response(id, secret, challenge).ct_eq(response).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Computed with `openssl dgst` over the byte 0x17, `a secret of 16 b` and `challenge`.
    #[test]
    fn responses_are_hashes_of_identifier_secret_and_challenge() {
        let (id, secret, challenge) = (0x17, b"a secret of 16 b", b"challenge");
        let md5 = Algorithm::Md5.response(id, secret, challenge);
        let sha = Algorithm::Sha256.response(id, secret, challenge);
        assert_eq!(md5, MD5);
        assert_eq!(sha, SHA256);
        assert!(Algorithm::Md5.is_response(id, secret, challenge, &md5));
        assert!(!Algorithm::Md5.is_response(id ^ 1, secret, challenge, &md5));
        assert!(!Algorithm::Sha256.is_response(id, secret, challenge, &md5));
        assert_eq!(Algorithm::from_number(5), Some(Algorithm::Md5));
        assert_eq!(Algorithm::from_number(6), None);
    }

    const MD5: [u8; 16] = [
        0xc0, 0x5c, 0x6c, 0xa5, 0xf7, 0xc7, 0x86, 0xfe, 0xcb, 0x4d, 0xc2, 0x0b, 0x5d, 0x13, 0xd8,
        0xca,
    ];
    const SHA256: [u8; 32] = [
        0x2b, 0xc0, 0x35, 0xa0, 0xe9, 0x6a, 0x05, 0x63, 0xcf, 0x4c, 0x2b, 0x4c, 0xe4, 0x90, 0x5d,
        0x51, 0x8a, 0x2e, 0xd0, 0xa2, 0xd3, 0x49, 0x57, 0x2e, 0x24, 0x63, 0x00, 0x08, 0xe0, 0x7b,
        0x31, 0x1b,
    ];
}
