//! The controller's side of an exchange.

use alloc::vec::Vec;

use nvme_wire::auth::{Body, Explanation, Message};
use zeroize::Zeroizing;

use crate::response::{Question, Role, new_challenge};
use crate::{Computed, Digest, Group, Hash, Job, Outcome, Parties, Secret};

/// The algorithms that a controller agrees to, the best first.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Policy {
    /// Hash functions.
    pub hashes: Vec<Hash>,
    /// Groups.
    pub groups: Vec<Group>,
}

impl Default for Policy {
    /// All algorithms. The null group comes first: secrets that the server makes have 256 bits and
    /// more, so they cannot be guessed, and a group would cost each connection some hundred
    /// microseconds.
    fn default() -> Self {
        Self { hashes: Hash::ALL.into(), groups: Group::ALL.into() }
    }
}

/// A secret that opens something.
#[derive(Clone, Debug)]
pub struct Key {
    /// The secret that a host must know.
    pub host: Secret,
    /// With what the controller proves itself to a host that knows this one, if it can.
    pub controller: Option<Secret>,
}

/// The algorithms agreed on, and the challenge.
struct Agreed {
    hash: Hash,
    group: Group,
    sequence: u32,
    challenge: Vec<u8>,
    private: Zeroizing<Vec<u8>>,
    public: Vec<u8>,
}

/// A host's Reply, while what it needs is computed.
struct Replied {
    response: Vec<u8>,
    sequence: u32,
    challenge: Option<Vec<u8>>,
}

enum State {
    /// It is the host's turn to negotiate.
    Idle,
    /// The public value is being computed.
    Choosing(Agreed),
    /// The Challenge waits to be fetched.
    Asking(Agreed),
    /// It is the host's turn to reply.
    Asked(Agreed),
    /// The shared value is being computed.
    Checking(Agreed, Replied),
    /// The Success1 waits to be fetched, with a response if the host wants one.
    Proving(Hash, Option<Digest>),
    /// It is the host's turn to say whether it believes that.
    Proven,
    /// A Failure1 waits to be fetched.
    Failing(Explanation),
    Over(Outcome),
}

/// Says what opens it at this moment: there are two keys while one takes the place of the other.
pub type Keys<'a> = dyn FnMut() -> Vec<Key> + 'a;

/// A controller that wants a host to authenticate. What the host is to know is asked when its Reply is looked at, not
/// before: a key that was replaced meanwhile opens nothing.
pub struct Controller {
    parties: Parties,
    policy: Policy,
    transaction: u16,
    state: State,
}

impl Controller {
    /// Waits for a host.
    #[must_use]
    pub fn new(parties: Parties, policy: Policy) -> Self {
        Self { parties, policy, transaction: 0, state: State::Idle }
    }

    /// Takes the message of an Authentication Send. The command is to be completed once the job that
    /// is returned, if one is, was run and its result handed to [`Controller::computed`].
    ///
    /// `random` fills its argument with random bytes.
    pub fn receive(
        &mut self,
        bytes: &[u8],
        keys: &mut Keys<'_>,
        random: &mut dyn FnMut(&mut [u8]),
    ) -> Option<Job> {
        match self.take(bytes, keys, random) {
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
        keys: &mut Keys<'_>,
        random: &mut dyn FnMut(&mut [u8]),
    ) -> Result<Option<Job>, Explanation> {
        let message = Message::decode(bytes)?;
        let state = core::mem::replace(&mut self.state, State::Idle);
        match (message.body, state) {
            // At any time: the host begins again.
            (Body::Negotiate { secure_channel, hashes, groups }, _) => {
                self.transaction = message.transaction;
                let agreed = self.agree(secure_channel, hashes, groups, random)?;
                Ok(self.choose(agreed))
            }
            (_, State::Idle | State::Over(_)) => Err(Explanation::IncorrectMessage),
            _ if message.transaction != self.transaction => Err(Explanation::IncorrectPayload),
            (Body::Reply { sequence, response, challenge, public }, State::Asked(agreed)) => {
                let challenge = challenge.map(<[u8]>::to_vec);
                let replied = Replied { response: response.to_vec(), sequence, challenge };
                self.check_reply(agreed, replied, public, keys)
            }
            (Body::Success2, State::Proven) => {
                self.state = State::Over(Outcome::Authenticated);
                Ok(None)
            }
            (Body::Failure2(code), _) => {
                let explanation = Explanation::from_code(code).unwrap_or(Explanation::Failed);
                self.state = State::Over(Outcome::Failed(explanation));
                Ok(None)
            }
            _ => Err(Explanation::IncorrectMessage),
        }
    }

    /// Chooses of what a host offers.
    fn agree(
        &self,
        secure_channel: u8,
        hashes: &[u8],
        groups: &[u8],
        random: &mut dyn FnMut(&mut [u8]),
    ) -> Result<Agreed, Explanation> {
        if secure_channel != 0 {
            return Err(Explanation::ConcatenationMismatch);
        }
        let hash = self.policy.hashes.iter().find(|hash| hashes.contains(&hash.id()));
        let hash = *hash.ok_or(Explanation::HashNotUsable)?;
        let group = self.policy.groups.iter().find(|group| groups.contains(&group.id()));
        let group = *group.ok_or(Explanation::GroupNotUsable)?;
        let (challenge, sequence) = new_challenge(hash, random);
        let mut private = Zeroizing::new(alloc::vec![0; group.exponent_len_bytes()]);
        random(&mut private);
        Ok(Agreed { hash, group, sequence, challenge, private, public: Vec::new() })
    }

    fn choose(&mut self, agreed: Agreed) -> Option<Job> {
        if agreed.group == Group::Null {
            self.state = State::Asking(agreed);
            return None;
        }
        let (group, private) = (agreed.group, agreed.private.clone());
        self.state = State::Choosing(agreed);
        Some(Job { group, private, public: true, peer: None })
    }

    fn check_reply(
        &mut self,
        agreed: Agreed,
        replied: Replied,
        public: &[u8],
        keys: &mut Keys<'_>,
    ) -> Result<Option<Job>, Explanation> {
        let len = agreed.hash.len_bytes();
        if replied.response.len() != len || public.len() != agreed.group.len_bytes() {
            return Err(Explanation::IncorrectPayload);
        }
        // A peer that reflects our own challenge would obtain the answer from us.
        if replied.challenge.as_ref() == Some(&agreed.challenge) {
            return Err(Explanation::Failed);
        }
        if agreed.group == Group::Null {
            return self.verify(&agreed, &replied, None, keys).map(|()| None);
        }
        let (group, private) = (agreed.group, agreed.private.clone());
        self.state = State::Checking(agreed, replied);
        Ok(Some(Job { group, private, public: false, peer: Some(public.to_vec()) }))
    }

    /// Takes the result of a job.
    pub fn computed(&mut self, computed: Computed, keys: &mut Keys<'_>) {
        let result = match core::mem::replace(&mut self.state, State::Idle) {
            State::Choosing(agreed) => {
                self.state = State::Asking(Agreed { public: computed.public, ..agreed });
                Ok(())
            }
            State::Checking(agreed, replied) => {
                let shared = computed.shared.unwrap_or(Err(Explanation::Failed));
                shared.and_then(|shared| self.verify(&agreed, &replied, Some(&shared), keys))
            }
            // The host began again meanwhile; the result is of no use.
            other => {
                self.state = other;
                Ok(())
            }
        };
        if let Err(explanation) = result {
            self.state = State::Failing(explanation);
        }
    }

    fn verify(
        &mut self,
        agreed: &Agreed,
        replied: &Replied,
        shared: Option<&[u8]>,
        keys: &mut Keys<'_>,
    ) -> Result<(), Explanation> {
        let question = Question {
            hash: agreed.hash,
            challenge: &agreed.challenge,
            shared,
            sequence: agreed.sequence,
            transaction: self.transaction,
        };
        // All are looked at, so that the time tells nothing about which one it was (AUTH-1).
        let keys = keys();
        let known = keys.iter().fold(None, |known, key| {
            let expected = question.answer(Role::Host, &key.host, &self.parties);
            if expected.equals(&replied.response) { Some(key) } else { known }
        });
        let known = known.ok_or(Explanation::Failed)?;
        let response = match &replied.challenge {
            None => None,
            Some(challenge) => {
                let own = known.controller.as_ref().ok_or(Explanation::Failed)?;
                let question = Question { challenge, sequence: replied.sequence, ..question };
                Some(question.answer(Role::Controller, own, &self.parties))
            }
        };
        self.state = State::Proving(agreed.hash, response);
        Ok(())
    }

    /// The message for an Authentication Receive with room for `room` bytes. `None` if it does not
    /// fit; the exchange can go on with more room.
    pub fn message(&mut self, room: usize) -> Option<Vec<u8>> {
        let body = match &self.state {
            State::Asking(agreed) => Body::Challenge {
                hash: agreed.hash.id(),
                group: agreed.group.id(),
                sequence: agreed.sequence,
                challenge: &agreed.challenge,
                public: &agreed.public,
            },
            State::Proving(_, response) => {
                Body::Success1 { response: response.as_ref().map(Digest::as_bytes) }
            }
            State::Failing(explanation) => Body::Failure1(*explanation as u8),
            State::Over(Outcome::Failed(explanation)) => Body::Failure1(*explanation as u8),
            // It is not our turn to speak.
            _ => Body::Failure1(Explanation::IncorrectMessage as u8),
        };
        let mut bytes = Message { transaction: self.transaction, body }.to_bytes();
        if let State::Proving(hash, None) = &self.state {
            // The length of a response is told even where there is none.
            bytes[6] = hash.len_bytes() as u8;
        }
        if bytes.len() > room {
            return None;
        }
        self.state = match core::mem::replace(&mut self.state, State::Idle) {
            State::Asking(agreed) => State::Asked(agreed),
            State::Proving(_, Some(_)) => State::Proven,
            State::Proving(_, None) => State::Over(Outcome::Authenticated),
            State::Failing(explanation) => State::Over(Outcome::Failed(explanation)),
            State::Over(outcome @ Outcome::Failed(_)) => State::Over(outcome),
            _ => State::Over(Outcome::Failed(Explanation::IncorrectMessage)),
        };
        Some(bytes)
    }

    /// Returns true once the host has shown that it knows a key, also if it was not told yet.
    #[must_use]
    pub fn is_convinced(&self) -> bool {
        use State::{Over, Proven, Proving};
        matches!(self.state, Proving(..) | Proven | Over(Outcome::Authenticated))
    }

    /// Returns true once the host has failed, also if it was not told yet.
    #[must_use]
    pub fn is_failing(&self) -> bool {
        matches!(self.state, State::Failing(_) | State::Over(Outcome::Failed(_)))
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
