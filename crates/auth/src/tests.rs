//! Both sides against each other, and each against a peer that does not keep to the rules.

use alloc::boxed::Box;
use alloc::string::ToString;
use alloc::vec;
use alloc::vec::Vec;

use nvme_wire::Nqn;
use nvme_wire::auth::{Body, Explanation, Message};

use crate::response::{Question, Role};
use crate::{Controller, Group, Hash, Host, Key, Outcome, Parties, Policy, Secret, SecretError};

const ROOM: usize = 4096;

fn parties() -> Parties {
    let nqn = |name| Nqn::new(name).expect("a name");
    Parties {
        host: nqn("nqn.2014-08.org.nvmexpress:uuid:6c7a9f2e-0b1d-4f60-8f3e-2b8a51c0d9aa"),
        subsystem: nqn("nqn.2024-01.io.example:volume"),
    }
}

fn secret(byte: u8) -> Secret {
    Secret::new(Hash::Sha256, &[byte; 64])
}

/// A key whose controller cannot prove itself.
fn key(host: Secret) -> Key {
    Key { host, controller: None }
}

/// Bytes that are not random at all, and different each time.
fn counter() -> impl FnMut(&mut [u8]) {
    let mut next = 0u8;
    move |bytes: &mut [u8]| {
        for byte in bytes {
            next = next.wrapping_mul(5).wrapping_add(17);
            *byte = next;
        }
    }
}

/// The secrets that a party knows: the host's, and the controller's.
type Known = (Secret, Option<Secret>);

/// A source of random bytes.
type Source = Box<dyn FnMut(&mut [u8])>;

struct Pair {
    host: Host,
    controller: Controller,
    /// The keys that open the controller.
    keys: Vec<Key>,
    host_random: Source,
    controller_random: Source,
    /// The messages that the host sent.
    sent: Vec<Vec<u8>>,
}

impl Pair {
    fn new(host: Known, controller: Known) -> Self {
        Self::with_policy(host, controller, Policy::default())
    }

    fn with_policy((secret, asks): Known, (host_secret, own): Known, policy: Policy) -> Self {
        let (host, first) = Host::new(parties(), secret, asks, 7);
        let controller = Controller::new(parties(), policy);
        let mut other = counter();
        other(&mut [0; 100]);
        let mut pair = Self {
            host,
            controller,
            keys: vec![Key { host: host_secret, controller: own }],
            host_random: Box::new(other),
            controller_random: Box::new(counter()),
            sent: Vec::new(),
        };
        pair.send(first);
        pair
    }

    fn send(&mut self, bytes: Vec<u8>) {
        let mut keys = || self.keys.clone();
        if let Some(job) = self.controller.receive(&bytes, &mut keys, &mut self.controller_random) {
            self.controller.computed(job.run(), &mut keys);
        }
        self.sent.push(bytes);
    }

    fn fetch(&mut self) -> Vec<u8> {
        self.controller.message(ROOM).expect("room enough")
    }

    fn deliver(&mut self, bytes: &[u8]) {
        if let Some(job) = self.host.receive(bytes, &mut self.host_random) {
            self.host.computed(&job.run());
        }
    }

    /// To the end.
    fn run(&mut self) -> (Outcome, Outcome) {
        while self.host.outcome() == Outcome::UnderWay {
            match self.host.message() {
                Some(bytes) => self.send(bytes),
                None => {
                    let bytes = self.fetch();
                    self.deliver(&bytes);
                }
            }
        }
        (self.host.outcome(), self.controller.outcome())
    }
}

const GOOD: (Outcome, Outcome) = (Outcome::Authenticated, Outcome::Authenticated);

#[test]
fn who_knows_the_secret_gets_in_with_every_hash_and_group() {
    for hash in Hash::ALL {
        for group in [Group::Null, Group::Ffdhe2048, Group::Ffdhe3072] {
            let policy = || Policy { hashes: [hash].into(), groups: [group].into() };
            let one_way = ((secret(1), None), (secret(1), None));
            let mut pair = Pair::with_policy(one_way.0, one_way.1, policy());
            assert_eq!(pair.run(), GOOD, "{hash:?} {group:?}");
            let both = ((secret(1), Some(secret(2))), (secret(1), Some(secret(2))));
            let mut pair = Pair::with_policy(both.0, both.1, policy());
            assert_eq!(pair.run(), GOOD, "{hash:?} {group:?} both ways");
        }
    }
}

#[test]
fn the_largest_groups_work_too() {
    for group in [Group::Ffdhe4096, Group::Ffdhe6144, Group::Ffdhe8192] {
        let policy = Policy { hashes: [Hash::Sha512].into(), groups: [group].into() };
        let mut pair = Pair::with_policy((secret(1), None), (secret(1), None), policy);
        assert_eq!(pair.run(), GOOD, "{group:?}");
    }
}

const REFUSED: (Outcome, Outcome) =
    (Outcome::Failed(Explanation::Failed), Outcome::Failed(Explanation::Failed));

#[test]
fn who_does_not_know_the_secret_does_not() {
    for groups in [[Group::Null], [Group::Ffdhe2048]] {
        let policy = Policy { hashes: Hash::ALL.into(), groups: groups.into() };
        let mut pair = Pair::with_policy((secret(1), None), (secret(2), None), policy);
        assert_eq!(pair.run(), REFUSED);
    }
}

#[test]
fn while_a_secret_is_replaced_both_are_good() {
    for known in [1, 2, 3] {
        let mut pair = Pair::new((secret(known), None), (secret(1), None));
        pair.keys = vec![key(secret(1)), key(secret(2))];
        assert_eq!(pair.run(), if known == 3 { REFUSED } else { GOOD });
    }
}

/// Method: the key is another when the Reply comes, or when what it needs was computed.
#[test]
fn what_opens_it_is_asked_when_the_reply_is_looked_at() {
    for group in [Group::Null, Group::Ffdhe2048] {
        for (knows, expected) in [(1, REFUSED), (2, GOOD)] {
            let policy = Policy { hashes: Hash::ALL.into(), groups: vec![group] };
            let mut pair = Pair::with_policy((secret(knows), None), (secret(1), None), policy);
            pair.keys = vec![key(secret(2))];
            assert!(!pair.controller.is_convinced());
            assert_eq!(pair.run(), expected);
            assert_eq!(pair.controller.is_convinced(), expected == GOOD);
        }
    }
}

#[test]
fn a_controller_that_cannot_prove_itself_is_left() {
    // One that has no secret says itself that it cannot, in the words in which it refuses a host.
    for (known, is_caught) in [(Some(secret(3)), true), (None, false)] {
        let mut pair = Pair::new((secret(1), Some(secret(2))), (secret(1), known));
        assert_eq!(pair.run(), REFUSED);
        assert_eq!(pair.host.is_controller_unproven(), is_caught);
    }
    for (own, known) in [(4, REFUSED), (1, GOOD)] {
        let mut pair = Pair::new((secret(own), Some(secret(2))), (secret(1), Some(secret(2))));
        assert_eq!(pair.run(), known);
        assert!(!pair.host.is_controller_unproven());
    }
}

#[test]
fn a_reply_of_another_exchange_is_refused() {
    let mut first = Pair::new((secret(1), None), (secret(1), None));
    assert_eq!(first.run(), GOOD);
    // The same transaction number, another challenge.
    let mut second = Pair::new((secret(1), None), (secret(1), None));
    let _ = second.fetch();
    let (mut random, mut again) = (counter(), Pair::new((secret(1), None), (secret(1), None)));
    random(&mut [0; 50]);
    again.controller_random = Box::new(random);
    again.send(first.sent[0].clone());
    let _ = again.fetch();
    again.send(first.sent[1].clone());
    let _ = again.fetch();
    assert_eq!(again.controller.outcome(), Outcome::Failed(Explanation::Failed));
    // And a second time in the exchange that it was made for.
    first.send(first.sent[1].clone());
    let _ = first.fetch();
    assert_eq!(first.controller.outcome(), Outcome::Failed(Explanation::IncorrectMessage));
}

#[test]
fn a_challenge_sent_back_is_not_answered() {
    let mut pair = Pair::new((secret(1), None), (secret(1), Some(secret(2))));
    let bytes = pair.fetch();
    let Ok(Message { body: Body::Challenge { challenge, .. }, .. }) = Message::decode(&bytes)
    else {
        panic!("a challenge");
    };
    let body =
        Body::Reply { sequence: 1, response: challenge, challenge: Some(challenge), public: &[] };
    let reply = Message { transaction: 7, body }.to_bytes();
    pair.send(reply);
    let _ = pair.fetch();
    assert_eq!(pair.controller.outcome(), Outcome::Failed(Explanation::Failed));
}

#[test]
fn whatever_is_out_of_turn_or_broken_ends_the_exchange_with_its_reason() {
    let fresh = || Controller::new(parties(), Policy::default());
    let ask = |messages: &[&[u8]]| {
        let mut controller = fresh();
        for message in messages {
            let _ = controller.receive(message, &mut || vec![key(secret(1))], &mut counter());
        }
        let _ = controller.message(ROOM);
        controller.outcome()
    };
    let encode = |transaction, body| Message { transaction, body }.to_bytes();
    let offer = |secure_channel, hashes, groups| {
        encode(7, Body::Negotiate { secure_channel, hashes, groups })
    };
    let failed = Outcome::Failed;
    assert_eq!(ask(&[]), failed(Explanation::IncorrectMessage));
    assert_eq!(ask(&[&[]]), failed(Explanation::IncorrectPayload));
    assert_eq!(ask(&[&[9; 72]]), failed(Explanation::IncorrectMessage));
    assert_eq!(ask(&[&encode(7, Body::Success2)]), failed(Explanation::IncorrectMessage));
    assert_eq!(ask(&[&offer(1, &[1], &[0])]), failed(Explanation::ConcatenationMismatch));
    assert_eq!(ask(&[&offer(0, &[9, 0], &[0])]), failed(Explanation::HashNotUsable));
    assert_eq!(ask(&[&offer(0, &[1], &[77])]), failed(Explanation::GroupNotUsable));
    assert_eq!(ask(&[&offer(0, &[], &[])]), failed(Explanation::HashNotUsable));
    let mut controller = fresh();
    let _ = controller.receive(&offer(0, &[1], &[0]), &mut Vec::new, &mut counter());
    assert_eq!(controller.message(20), None, "a challenge has 48 bytes");
    assert!(controller.message(48).is_some());
    let other = Body::Reply { sequence: 0, response: &[0; 32], challenge: None, public: &[] };
    let _ = controller.receive(&encode(8, other), &mut Vec::new, &mut counter());
    let _ = controller.message(ROOM);
    assert_eq!(controller.outcome(), failed(Explanation::IncorrectPayload));
}

/// A response, a challenge or a public value of another length than that of what was agreed on is an incorrect
/// payload, on either side, whatever else of the message is right.
#[test]
fn a_value_of_another_length_than_was_agreed_on_is_refused() {
    let reply = |response: &[u8], public: &[u8]| {
        let mut pair = Pair::new((secret(1), None), (secret(1), None));
        let _ = pair.fetch();
        let body = Body::Reply { sequence: 0, response, challenge: None, public };
        pair.send(Message { transaction: 7, body }.to_bytes());
        let _ = pair.fetch();
        pair.controller.outcome()
    };
    let refused = Outcome::Failed(Explanation::IncorrectPayload);
    assert_eq!(reply(&[0; 48], &[]), refused, "a response of another hash");
    assert_eq!(reply(&[0; 32], &[1; 256]), refused, "a public value without a group");
    assert_eq!(reply(&[0; 32], &[]), REFUSED.0, "the right lengths");
    let challenge = |challenge: &[u8], public: &[u8], group: Group| {
        let (mut host, _) = Host::new(parties(), secret(1), None, 7);
        let (hash, group) = (Hash::Sha256.id(), group.id());
        let body = Body::Challenge { hash, group, sequence: 1, challenge, public };
        let bytes = Message { transaction: 7, body }.to_bytes();
        let job = host.receive(&bytes, &mut counter());
        (job.is_some(), host.message(), host.outcome())
    };
    let body = Body::Failure2(Explanation::IncorrectPayload as u8);
    let refused = (false, Some(Message { transaction: 7, body }.to_bytes()), refused);
    assert_eq!(challenge(&[9; 48], &[], Group::Null), refused);
    assert_eq!(challenge(&[9; 32], &[2; 256], Group::Null), refused);
    assert_eq!(challenge(&[9; 32], &[2; 255], Group::Ffdhe2048), refused);
    assert_eq!(challenge(&[9; 32], &[2; 256], Group::Ffdhe2048).2, Outcome::UnderWay);
}

/// A controller that refused a host stays so, and gives the same reason however often it is asked.
#[test]
fn a_failed_exchange_stays_failed_and_repeats_its_reason() {
    let mut pair = Pair::new((secret(1), None), (secret(2), None));
    assert!(!pair.controller.is_failing(), "under way");
    let bytes = pair.fetch();
    pair.deliver(&bytes);
    let reply = pair.host.message().expect("a reply");
    pair.send(reply);
    assert!(pair.controller.is_failing(), "before the host has heard of it");
    let body = Body::Failure1(Explanation::Failed as u8);
    let refusal = Message { transaction: 7, body }.to_bytes();
    for _ in 0..3 {
        assert_eq!(pair.fetch(), refusal);
        assert_eq!(pair.controller.outcome(), Outcome::Failed(Explanation::Failed));
        assert!(pair.controller.is_failing());
    }
    let mut good = Pair::new((secret(1), None), (secret(1), None));
    assert_eq!(good.run(), GOOD);
    assert!(!good.controller.is_failing());
}

#[test]
fn names_and_identifiers_lead_back_to_what_has_them() {
    for hash in Hash::ALL {
        assert_eq!(Hash::from_name(hash.name()), Some(hash));
        assert_eq!(Hash::from_id(hash.id()), Some(hash));
    }
    for group in Group::ALL {
        assert_eq!(Group::from_name(group.name()), Some(group));
        assert_eq!(Group::from_id(group.id()), Some(group));
    }
    assert_eq!((Hash::from_name("md5"), Group::from_name("")), (None, None));
    assert_eq!((Hash::from_id(0), Group::from_id(6)), (None, None));
}

#[test]
fn a_host_may_begin_again_at_any_time() {
    let mut pair = Pair::new((secret(1), None), (secret(1), None));
    let _ = pair.fetch();
    let (host, first) = Host::new(parties(), secret(1), None, 8);
    pair.host = host;
    pair.send(first);
    assert_eq!(pair.run(), GOOD);
    let (host, first) = Host::new(parties(), secret(2), None, 9);
    pair.host = host;
    pair.send(first);
    assert_eq!(pair.run(), REFUSED, "to have known it once does not help");
}

#[test]
fn secrets_have_their_well_known_form() {
    // By another implementation of Base64 and CRC-32.
    let text = "DHHC-1:01:AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQHMnzFi:";
    let made = secret(1).reveal();
    assert_eq!(made.as_str(), text);
    assert_eq!(made.parse::<Secret>().as_ref(), Ok(&secret(1)));
    for hash in Hash::ALL {
        let made = Secret::new(hash, &[9; 64]);
        assert_eq!(made.reveal().parse::<Secret>(), Ok(made));
    }
    assert_eq!(alloc::format!("{:?}", secret(1)), "Secret(Some(Sha256), 32 bytes)");
}

#[test]
fn texts_that_are_no_secrets_are_refused_with_the_reason() {
    let refusal = |text: &str| text.parse::<Secret>().expect_err("no secret");
    let good = secret(1).reveal().to_string();
    for text in ["", "DHHC-1", "DHHC-1:01", "DHHC-1:04:AAAA:", "DHHC-2:01:AAAA:", "DHHC-1:1:AA:"] {
        assert_eq!(refusal(text), SecretError::Form, "{text}");
    }
    assert_eq!(refusal(&good.replace(":01:", ":01::")), SecretError::Form);
    assert_eq!(refusal("DHHC-1:00:####:"), SecretError::Base64);
    assert_eq!(refusal("DHHC-1:00:AAAA:"), SecretError::Length { len: 0 });
    // At the bound of a text's length its key is looked at, beyond it not.
    let long = |len: usize| alloc::format!("DHHC-1:00:{}", "#".repeat(len - 10));
    assert_eq!(refusal(&long(128)), SecretError::Base64);
    assert_eq!([refusal(&long(129)), refusal(&long(4096))], [SecretError::Form; 2]);
    let mut mistyped = good.clone().into_bytes();
    mistyped[15] ^= 1;
    let mistyped = alloc::string::String::from_utf8(mistyped).expect("text");
    assert_eq!(refusal(&mistyped), SecretError::Checksum);
    assert!(good.trim_end_matches(':').parse::<Secret>().is_ok(), "without the last colon");
}

/// By another implementation of HMAC and SHA-2, from the specification's formulas.
#[test]
fn answers_match_the_golden_bytes() {
    let challenge: Vec<u8> = (0..48).collect();
    let question = Question {
        hash: Hash::Sha384,
        challenge: &challenge,
        shared: None,
        sequence: 0x0102_0304,
        transaction: 7,
    };
    let plain = [
        0xD5, 0x12, 0xC0, 0x9B, 0x3F, 0x01, 0xD6, 0x28, 0xDA, 0xA8, 0x35, 0x03, 0x7F, 0x69, 0x13,
        0x56, 0xDA, 0xA7, 0x81, 0x79, 0x86, 0xA4, 0xAF, 0x8B, 0x8C, 0x14, 0x0B, 0x30, 0x0F, 0xA4,
        0x08, 0xA1, 0xBD, 0xC8, 0x76, 0xCC, 0xEE, 0x6F, 0x09, 0xD2, 0xF2, 0x6E, 0x22, 0x53, 0xEB,
        0x50, 0x07, 0x37,
    ];
    assert_eq!(question.answer(Role::Host, &secret(1), &parties()).as_bytes(), plain);
    let augmented = [
        0x34, 0x8E, 0xD2, 0x00, 0x6A, 0x87, 0xC2, 0xE6, 0x3E, 0x4D, 0xE5, 0x85, 0x2D, 0x90, 0xE3,
        0xCB, 0x42, 0xDE, 0xC0, 0x5E, 0x2C, 0xD0, 0x65, 0x69, 0xAD, 0xE0, 0x57, 0x61, 0x2E, 0x5B,
        0x26, 0xE9, 0x58, 0x48, 0xED, 0xF3, 0x58, 0x66, 0x56, 0x60, 0x96, 0x74, 0xB9, 0xB3, 0xC4,
        0x63, 0x23, 0x03,
    ];
    let with_shared = Question { shared: Some(&[7; 256]), ..question };
    assert_eq!(with_shared.answer(Role::Host, &secret(1), &parties()).as_bytes(), augmented);
    let controllers = [
        0x63, 0x4C, 0x62, 0xA0, 0x32, 0x49, 0xFF, 0xFB, 0xF8, 0xED, 0x53, 0x84, 0x0F, 0x85, 0xE4,
        0xE8, 0x63, 0x84, 0xA0, 0x93, 0xFE, 0x59, 0x24, 0x45, 0xB3, 0xD2, 0xA8, 0xE2, 0x44, 0xCA,
        0x12, 0xA8, 0xBF, 0x77, 0x40, 0x7F, 0xF7, 0xB1, 0x72, 0x84, 0x7D, 0x11, 0xAC, 0x1E, 0xB0,
        0xF9, 0x2E, 0x4F,
    ];
    assert_eq!(question.answer(Role::Controller, &secret(1), &parties()).as_bytes(), controllers);
}
