//! The host's side of an exchange.

use alloc::vec::Vec;

use nvme_wire::auth::{Body, Explanation, Message};
use zeroize::Zeroizing;

use crate::response::{Question, Role, new_challenge};
use crate::{Computed, Digest, Group, Hash, Job, Outcome, Parties, Secret};

/// A controller's Challenge, while what it needs is computed.
struct Challenged {
    hash: Hash,
    group: Group,
    sequence: u32,
    challenge: Vec<u8>,
    /// C2 and S2, if the controller is to prove itself.
    own: Option<(Vec<u8>, u32)>,
}

enum State {
    /// The Negotiate was sent; it is the controller's turn.
    Negotiated,
    /// The values of the group are being computed.
    Computing(Challenged),
    /// The Reply waits to be sent.
    Replying(Vec<u8>, Option<Digest>),
    /// It is the controller's turn to say whether it believes that. What it must answer, if it must.
    Replied(Option<Digest>),
    /// The Success2 waits to be sent.
    Confirming,
    /// The Failure2 waits to be sent.
    Failing(Explanation),
    Over(Outcome),
}

/// A host that authenticates.
pub struct Host {
    parties: Parties,
    secret: Secret,
    /// The secret that the controller must know, if it has to prove itself.
    controller_secret: Option<Secret>,
    transaction: u16,
    state: State,
    is_controller_unproven: bool,
}

impl Host {
    /// Proves that it knows `secret`; with `controller_secret`, wants the controller to prove that
    /// it knows that. Returns the first message to send, too.
    #[must_use]
    pub fn new(
        parties: Parties,
        secret: Secret,
        controller_secret: Option<Secret>,
        transaction: u16,
    ) -> (Self, Vec<u8>) {
        let hashes = Hash::ALL.map(Hash::id);
        let groups = Group::ALL.map(Group::id);
        let body = Body::Negotiate { secure_channel: 0, hashes: &hashes, groups: &groups };
        let bytes = Message { transaction, body }.to_bytes();
        let host = Self {
            parties,
            secret,
            controller_secret,
            transaction,
            state: State::Negotiated,
            is_controller_unproven: false,
        };
        (host, bytes)
    }

    /// Takes the message that came with an Authentication Receive. If a job is returned, it is to be
    /// run, and its result handed to [`Host::computed`], before [`Host::message`] says how to go on.
    ///
    /// `random` fills its argument with random bytes.
    pub fn receive(&mut self, bytes: &[u8], random: &mut dyn FnMut(&mut [u8])) -> Option<Job> {
        match self.take(bytes, random) {
            Ok(job) => job,
            Err(explanation) => {
                self.state = State::Failing(explanation);
                None
            }
        }
    }

    fn take(
        &mut self,
        bytes: &[u8],
        random: &mut dyn FnMut(&mut [u8]),
    ) -> Result<Option<Job>, Explanation> {
        let message = Message::decode(bytes)?;
        if let Body::Failure1(code) = message.body {
            let explanation = Explanation::from_code(code).unwrap_or(Explanation::Failed);
            self.state = State::Over(Outcome::Failed(explanation));
            return Ok(None);
        }
        if message.transaction != self.transaction {
            return Err(Explanation::IncorrectPayload);
        }
        let state = core::mem::replace(&mut self.state, State::Failing(Explanation::Failed));
        match (message.body, state) {
            (Body::Challenge { hash, group, sequence, challenge, public }, State::Negotiated) => {
                let hash = Hash::from_id(hash).ok_or(Explanation::HashNotUsable)?;
                let group = Group::from_id(group).ok_or(Explanation::GroupNotUsable)?;
                if challenge.len() != hash.len_bytes() || public.len() != group.len_bytes() {
                    return Err(Explanation::IncorrectPayload);
                }
                let challenge = challenge.to_vec();
                let own = self.controller_secret.as_ref().map(|_| new_challenge(hash, random));
                let challenged = Challenged { hash, group, sequence, challenge, own };
                Ok(self.respond(challenged, public, random))
            }
            (Body::Success1 { response }, State::Replied(expected)) => {
                self.state = match (expected, response) {
                    (None, _) => State::Over(Outcome::Authenticated),
                    (Some(expected), Some(response)) if expected.equals(response) => {
                        State::Confirming
                    }
                    _ => {
                        self.is_controller_unproven = true;
                        return Err(Explanation::Failed);
                    }
                };
                Ok(None)
            }
            _ => Err(Explanation::IncorrectMessage),
        }
    }

    fn respond(
        &mut self,
        challenged: Challenged,
        public: &[u8],
        random: &mut dyn FnMut(&mut [u8]),
    ) -> Option<Job> {
        if challenged.group == Group::Null {
            self.reply(&challenged, &[], None);
            return None;
        }
        let group = challenged.group;
        let mut private = Zeroizing::new(alloc::vec![0; group.exponent_len_bytes()]);
        random(&mut private);
        self.state = State::Computing(challenged);
        Some(Job { group, private, public: true, peer: Some(public.to_vec()) })
    }

    /// Takes the result of a job.
    pub fn computed(&mut self, computed: &Computed) {
        let state = core::mem::replace(&mut self.state, State::Failing(Explanation::Failed));
        let State::Computing(challenged) = state else {
            self.state = state;
            return;
        };
        match computed.shared.as_ref() {
            Some(Ok(shared)) => self.reply(&challenged, &computed.public, Some(shared)),
            Some(Err(explanation)) => self.state = State::Failing(*explanation),
            None => {}
        }
    }

    fn reply(&mut self, challenged: &Challenged, public: &[u8], shared: Option<&[u8]>) {
        let Challenged { hash, sequence, challenge, own, .. } = challenged;
        let question = Question {
            hash: *hash,
            challenge,
            shared,
            sequence: *sequence,
            transaction: self.transaction,
        };
        let response = question.answer(Role::Host, &self.secret, &self.parties);
        let expected = own.as_ref().zip(self.controller_secret.as_ref());
        let expected = expected.map(|((challenge, sequence), secret)| {
            let question = Question { challenge, sequence: *sequence, ..question };
            question.answer(Role::Controller, secret, &self.parties)
        });
        let body = Body::Reply {
            sequence: own.as_ref().map_or(0, |(_, sequence)| *sequence),
            response: response.as_bytes(),
            challenge: own.as_ref().map(|(challenge, _)| challenge.as_slice()),
            public,
        };
        let bytes = Message { transaction: self.transaction, body }.to_bytes();
        self.state = State::Replying(bytes, expected);
    }

    /// The next message to send. `None` if it is the controller's turn, or nothing is left to say.
    pub fn message(&mut self) -> Option<Vec<u8>> {
        let (body, next) = match &mut self.state {
            State::Replying(bytes, expected) => {
                let bytes = core::mem::take(bytes);
                self.state = State::Replied(expected.take());
                return Some(bytes);
            }
            State::Confirming => (Body::Success2, Outcome::Authenticated),
            State::Failing(explanation) => {
                (Body::Failure2(*explanation as u8), Outcome::Failed(*explanation))
            }
            _ => return None,
        };
        let bytes = Message { transaction: self.transaction, body }.to_bytes();
        self.state = State::Over(next);
        Some(bytes)
    }

    /// Returns true if it failed because the controller has not shown that it knows its secret; this host's was
    /// accepted.
    #[must_use]
    pub fn is_controller_unproven(&self) -> bool {
        self.is_controller_unproven
    }

    /// The state of the exchange.
    #[must_use]
    pub fn outcome(&self) -> Outcome {
        match self.state {
            State::Over(outcome) => outcome,
            _ => Outcome::UnderWay,
        }
    }
}
