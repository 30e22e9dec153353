//! CHAP secrets: made of a volume's token, so that there is nothing else to hand out, to keep or to rotate.
//!
//! ```text
//! secret = Base64url(HMAC-SHA-256(token, label)[0..12])
//! ```
//! A secret has 16 characters and 96 random bits: the most that Windows takes, and the least that RFC 7143 recommends. It does
//! not tell the token. The two directions have labels of their own, as CHAP demands secrets that differ.

use auth::Secret;
use base64ct::{Base64UrlUnpadded, Encoding};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use zeroize::Zeroizing;

/// Bytes of a secret before they are made characters.
const SECRET_BYTES: usize = 12;

/// The secrets of one token.
pub struct ChapSecrets {
    /// The initiator proves itself with this one.
    pub initiator: Zeroizing<String>,
    /// The target proves itself with this one, if the initiator asks for that.
    pub target: Zeroizing<String>,
}

/// The CHAP secrets of a token, and of the secret of its controller, if it has one.
#[must_use]
pub fn chap_secrets(token: &Secret, controller: Option<&Secret>) -> ChapSecrets {
    ChapSecrets {
        initiator: derived(token, b"farflash iSCSI CHAP initiator 1"),
        target: derived(controller.unwrap_or(token), b"farflash iSCSI CHAP target 1"),
    }
}

fn derived(token: &Secret, label: &[u8]) -> Zeroizing<String> {
    let key = token.reveal();
    let mut mac = Hmac::<Sha256>::new_from_slice(key.as_bytes()).expect("keys of any length");
    mac.update(label);
    let mac = mac.finalize().into_bytes();
    Zeroizing::new(Base64UrlUnpadded::encode_string(&mac[..SECRET_BYTES]))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Initiators keep what was derived once: it never changes.
    #[test]
    fn secrets_of_a_token_stay_the_same() {
        let token = Secret::new(auth::Hash::Sha256, &[7; 64]);
        let secrets = chap_secrets(&token, None);
        assert_eq!((secrets.initiator.len(), secrets.target.len()), (16, 16));
        assert_ne!(*secrets.initiator, *secrets.target);
        assert_eq!(*secrets.initiator, INITIATOR);
        assert_eq!(*secrets.target, TARGET);
        let controller = Secret::new(auth::Hash::Sha256, &[8; 64]);
        let with_controller = chap_secrets(&token, Some(&controller));
        assert_eq!(*with_controller.initiator, *secrets.initiator);
        assert_ne!(*with_controller.target, *secrets.target);
    }

    /// Computed with another implementation.
    const INITIATOR: &str = "XHuQLc_vMIC7a_47";
    const TARGET: &str = "TnNes4EVXiF3dRo6";
}
