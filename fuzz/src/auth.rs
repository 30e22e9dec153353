//! Messages of an authentication, to either side.

use ::auth::{Controller, Group, Hash, Host, Key, Outcome, Parties, Policy, Secret};
use nvme_wire::Nqn;
use nvme_wire::auth::{Body, Message};

use crate::input::Input;

/// Messages of one input.
const MESSAGES_MAX: usize = 8;

fn parties() -> Parties {
    let nqn = |name| Nqn::new(name).expect("a name");
    Parties { host: nqn("nqn.2024-01.io.example:host"), subsystem: nqn("nqn.2024-01.io.example:v") }
}

fn policy() -> Policy {
    Policy { hashes: Hash::ALL.into(), groups: vec![Group::Null, Group::Ffdhe2048] }
}

fn random(bytes: &mut [u8]) {
    bytes.fill(0x5A);
}

/// Decodes a message; it must be encoded as it was, and a peer that does not know the secret must not be
/// authenticated.
pub fn run(bytes: &[u8]) {
    let mut input = Input(bytes);
    // Arithmetic is slow; most inputs do without.
    let computes = input.u8() >= 0xF0;
    let (known, other) = (Secret::new(Hash::Sha256, &[1; 64]), Secret::new(Hash::Sha512, &[2; 64]));
    let key = Key { host: known, controller: Some(other.clone()) };
    let mut keys = || vec![key.clone()];
    let mut controller = Controller::new(parties(), policy());
    let (mut host, _) = Host::new(parties(), other.clone(), Some(other), 0x0101);
    for _ in 0..MESSAGES_MAX {
        let (to_host, len) = (input.u8() & 1 == 1, usize::from(input.u16() & 0xFFF));
        let message = input.bytes(len);
        check_encoding(message);
        if to_host {
            if let Some(job) = host.receive(message, &mut random)
                && computes
            {
                host.computed(&job.run());
            }
            let _ = host.message();
        } else {
            if let Some(job) = controller.receive(message, &mut keys, &mut random)
                && computes
            {
                controller.computed(job.run(), &mut keys);
            }
            let _ = controller.message(message.len() * 2);
        }
        assert_ne!(host.outcome(), Outcome::Authenticated);
        assert_ne!(controller.outcome(), Outcome::Authenticated);
    }
}

fn check_encoding(bytes: &[u8]) {
    let Ok(message) = Message::decode(bytes) else { return };
    // The length of a response that is not there has no place in the decoded form, so that only this
    // way round nothing is lost.
    assert_eq!(Message::decode(&message.to_bytes()), Ok(message));
}

/// Each message as an input of its own, and a whole exchange.
pub fn seeds() -> Vec<Vec<u8>> {
    let bodies = [
        (0, Body::Negotiate { secure_channel: 0, hashes: &[1, 2, 3], groups: &[0, 1] }),
        (0, Body::Negotiate { secure_channel: 0, hashes: &[2], groups: &[1] }),
        (1, Body::Challenge { hash: 1, group: 0, sequence: 1, challenge: &[1; 32], public: &[] }),
        (
            1,
            Body::Challenge {
                hash: 2,
                group: 1,
                sequence: 1,
                challenge: &[1; 48],
                public: &[3; 256],
            },
        ),
        (0, Body::Reply { sequence: 0, response: &[1; 32], challenge: None, public: &[] }),
        (
            0,
            Body::Reply {
                sequence: 3,
                response: &[1; 48],
                challenge: Some(&[2; 48]),
                public: &[4; 256],
            },
        ),
        (1, Body::Success1 { response: Some(&[7; 64]) }),
        (0, Body::Success2),
        (1, Body::Failure1(1)),
        (0, Body::Failure2(7)),
    ];
    let framed = |(to_host, body): (u8, Body<'_>)| {
        let message = Message { transaction: 0x0101, body }.to_bytes();
        let mut seed = vec![to_host];
        seed.extend_from_slice(&(message.len() as u16).to_le_bytes());
        seed.extend_from_slice(&message);
        seed
    };
    let mut seeds: Vec<_> =
        bodies.map(|body| [vec![0], framed(bodies[0]), framed(body)].concat()).into();
    seeds.push([vec![0xFF], bodies.map(framed).concat()].concat());
    seeds
}
