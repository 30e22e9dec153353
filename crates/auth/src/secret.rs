//! Secrets in the form in which tools hand them about: `DHHC-1:01:base64:`.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::str::FromStr;

use base64ct::{Base64, Encoding};
use nvme_wire::Nqn;
use zeroize::Zeroizing;

use crate::{Digest, Hash};

const PREFIX: &str = "DHHC-1:";
/// Bytes of a key's CRC-32, behind it.
const CRC_LEN: usize = 4;
/// Most bytes of a key.
pub const KEY_LEN_MAX: usize = 64;
/// Longest text: prefix, identifier, Base64 of a key and its CRC.
const TEXT_LEN_MAX: usize = 128;
/// The text that is joined with an NQN to derive a key that works for that NQN only.
const TRANSFORM: &[u8] = b"NVMe-over-Fabrics";

/// Why a text is no secret. Says nothing of what it holds.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum SecretError {
    /// Not of the form.
    #[error("a secret has the form DHHC-1:HH:BASE64: with HH from 00 to 03")]
    Form,
    /// The part in the middle is not Base64.
    #[error("the secret's key is not Base64")]
    Base64,
    /// Not 32, 48 or 64 bytes.
    #[error("a secret's key has 32, 48 or 64 bytes, this one {len}")]
    Length {
        /// Bytes of the key.
        len: usize,
    },
    /// The checksum of the key does not match: some of it is missing, or mistyped.
    #[error("the secret's checksum does not match: part of it is missing or mistyped")]
    Checksum,
}

/// A secret that two parties share.
#[derive(Clone, Eq, PartialEq)]
pub struct Secret {
    /// The function that makes a key for one NQN of it; none if it is the key itself.
    transform: Option<Hash>,
    key: Zeroizing<Vec<u8>>,
}

impl Secret {
    /// A secret of `random` bytes, of which as many are used as `transform` yields.
    ///
    /// # Panics
    /// `random` is shorter than that.
    #[must_use]
    pub fn new(transform: Hash, random: &[u8; KEY_LEN_MAX]) -> Self {
        let key = Zeroizing::new(random[..transform.len_bytes()].to_vec());
        Self { transform: Some(transform), key }
    }

    /// The text of the secret, for a reader that may know it.
    #[must_use]
    pub fn reveal(&self) -> Zeroizing<String> {
        let id = self.transform.map_or(0, Hash::id);
        let mut bytes = Zeroizing::new(Vec::with_capacity(self.key.len() + CRC_LEN));
        bytes.extend_from_slice(&self.key);
        bytes.extend_from_slice(&crc32fast::hash(&self.key).to_le_bytes());
        let key = Zeroizing::new(Base64::encode_string(&bytes));
        Zeroizing::new(format!("{PREFIX}{id:02}:{}:", key.as_str()))
    }

    /// The key with which the party called `nqn` proves itself.
    pub(crate) fn key_of(&self, nqn: &Nqn) -> Zeroizing<Vec<u8>> {
        match self.transform {
            None => self.key.clone(),
            Some(hash) => {
                let key: Digest = hash.hmac(&self.key, &[nqn.as_str().as_bytes(), TRANSFORM]);
                Zeroizing::new(key.as_bytes().to_vec())
            }
        }
    }
}

impl FromStr for Secret {
    type Err = SecretError;

    fn from_str(text: &str) -> Result<Self, SecretError> {
        let text = text.trim_end_matches('\n');
        let rest = text.strip_prefix(PREFIX).ok_or(SecretError::Form)?;
        let (id, key) = rest.split_once(':').ok_or(SecretError::Form)?;
        let transform = match id {
            "00" => None,
            "01" => Some(Hash::Sha256),
            "02" => Some(Hash::Sha384),
            "03" => Some(Hash::Sha512),
            _ => return Err(SecretError::Form),
        };
        // Some tools leave out the colon at the end.
        let key = key.strip_suffix(':').unwrap_or(key);
        if text.len() > TEXT_LEN_MAX || key.contains(':') {
            return Err(SecretError::Form);
        }
        let mut bytes = Base64::decode_vec(key).map(Zeroizing::new);
        let bytes = bytes.as_mut().map_err(|_| SecretError::Base64)?;
        let len = bytes.len().saturating_sub(CRC_LEN);
        if !matches!(len, 32 | 48 | 64) {
            return Err(SecretError::Length { len });
        }
        let (key, crc) = bytes.split_at(len);
        if crc32fast::hash(key).to_le_bytes() != crc {
            return Err(SecretError::Checksum);
        }
        Ok(Self { transform, key: Zeroizing::new(key.to_vec()) })
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secret({:?}, {} bytes)", self.transform, self.key.len())
    }
}
