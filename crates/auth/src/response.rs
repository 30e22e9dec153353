//! The response of a party to a challenge.

use alloc::vec::Vec;

use nvme_wire::Nqn;

use crate::{Digest, Hash, Secret};

/// The two parties of an exchange.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Parties {
    /// The host's name.
    pub host: Nqn,
    /// The subsystem's name: the controller's.
    pub subsystem: Nqn,
}

/// The party that responds.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Role {
    Host,
    Controller,
}

/// A challenge of the hash's length, and a number to go with it.
pub(crate) fn new_challenge(hash: Hash, random: &mut dyn FnMut(&mut [u8])) -> (Vec<u8>, u32) {
    let mut challenge = alloc::vec![0; hash.len_bytes()];
    random(&mut challenge);
    let mut sequence = [0; 4];
    random(&mut sequence);
    // Zero would say that nothing is asked.
    (challenge, u32::from_le_bytes(sequence).max(1))
}

/// The input of a response: the challenge, and the exchange that it belongs to.
#[derive(Clone, Copy)]
pub(crate) struct Question<'a> {
    pub(crate) hash: Hash,
    pub(crate) challenge: &'a [u8],
    /// The shared secret of the two in the group; none with the null group.
    pub(crate) shared: Option<&'a [u8]>,
    pub(crate) sequence: u32,
    pub(crate) transaction: u16,
}

impl Question<'_> {
    /// The response of a party that knows `secret`.
    pub(crate) fn answer(&self, role: Role, secret: &Secret, parties: &Parties) -> Digest {
        let (host, subsystem) = (&parties.host, &parties.subsystem);
        let (own, other, label) = match role {
            Role::Host => (host, subsystem, &b"HostHost"[..]),
            Role::Controller => (subsystem, host, &b"Controller"[..]),
        };
        // The challenge is bound to what only the two of this exchange can know.
        let augmented = self.shared.map(|shared| {
            let session = self.hash.digest(shared);
            self.hash.hmac(session.as_bytes(), &[self.challenge])
        });
        let challenge = augmented.as_ref().map_or(self.challenge, Digest::as_bytes);
        let parts: [&[u8]; 8] = [
            challenge,
            &self.sequence.to_le_bytes(),
            &self.transaction.to_le_bytes(),
            // SC_C: no secure channel follows.
            &[0],
            label,
            own.as_str().as_bytes(),
            &[0],
            other.as_str().as_bytes(),
        ];
        self.hash.hmac(&secret.key_of(own), &parts)
    }
}
