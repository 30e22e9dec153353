//! Claiming a device for this host (CLAIM-1, CLAIM-2, CLAIM-7, CLAIM-8, CLAIM-9).
//!
//! ```text
//!  read claim ──▶ unclaimed, own ─────────────────────────────────▶ commit ──▶ made
//!     ▲   └─────▶ another host's ──▶ read holder ──▶ wait ──▶ seek ──┘  │
//!     └──────────────────────── changed meanwhile ─────────────────────┘
//! ```
//! The driver does each [`Action`] and hands in its result. It may drop a [`Claiming`] at any time: nothing but the
//! committed transaction changes anything.

use uuid::Uuid;

use crate::sabotage::{Sabotage, broken};
use crate::store::{Compare, KeyValue, Op, TxnReply, document};
use crate::{BootTime, Claim, ClaimRecord, HostRecord, Keys, Mark, Word};

/// Longest sequence of rounds: each fails only if what it read has changed meanwhile.
const ROUNDS: u32 = 8;

/// The next thing to do for a claim.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Action {
    /// Read these keys at one revision, then call [`Claiming::on_read`].
    Read(Vec<String>),
    /// Call [`Claiming::on_time`] at this time, with the time then; refuse with [`Claiming::holder_is_back`] if this host
    /// registers again before.
    Wait {
        /// When the former holder has stopped by its fence.
        until: BootTime,
        /// The claim of the former holder.
        before: ClaimRecord,
    },
    /// Look whether the holder of this claim is seen to serve; if it is not, call [`Claiming::on_not_seen`].
    Seek(ClaimRecord),
    /// Do the transaction of [`Claiming::transaction`], then call [`Claiming::on_committed`].
    Commit,
}

/// A claim that was made.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Made {
    /// The revision at which it was made.
    pub epoch: i64,
    /// The claim.
    pub record: ClaimRecord,
}

/// Why a device may not be claimed.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Refusal {
    /// The device carries a later claim than etcd knows (CLAIM-9).
    ClaimedLater {
        /// The host of that claim.
        holder: String,
    },
    /// The holder is registered.
    HolderLives {
        /// The host.
        holder: String,
    },
    /// The holder is gone, and an operator has to say so.
    HolderLost {
        /// The host.
        holder: String,
        /// Set if that host stops by itself.
        is_fenced: bool,
    },
    /// The holder does not stop by itself, and was not said to be down.
    HolderMayServe {
        /// The host.
        holder: String,
    },
    /// etcd has forgotten the holder of a device of the cluster (CLAIM-8).
    Forgotten,
    /// A record in etcd is not understood.
    Unreadable {
        /// The key, and why.
        what: String,
    },
    /// The claim changed in each round.
    ChangesAlways,
}

#[derive(Debug)]
enum Phase {
    ReadClaim,
    /// CLAIM-9: `later` carries a later mark than etcd.
    ReadMarked {
        later: Mark,
    },
    ReadHolder(ClaimRecord),
    Wait {
        until: BootTime,
        before: ClaimRecord,
    },
    Seek(ClaimRecord),
    Commit,
}

/// One attempt of this host to claim a device.
#[derive(Debug)]
pub struct Claiming {
    keys: Keys,
    claim: Claim,
    word: Option<Word>,
    record: ClaimRecord,
    phase: Phase,
    rounds: u32,
    /// The conditions found so far in this round.
    compare: Vec<Compare>,
    /// The claim that was read in this round, and its revision.
    before: Option<ClaimRecord>,
    revision: i64,
    is_noted: bool,
}

impl Claiming {
    /// Begins to claim a device for `host`; with an operator's `word` also from a host that is gone.
    #[must_use]
    pub fn new(keys: Keys, host: &HostRecord, claim: Claim, word: Option<Word>) -> Self {
        let record = ClaimRecord::of(host, claim.clone());
        Self {
            keys,
            claim,
            word,
            record,
            phase: Phase::ReadClaim,
            rounds: 0,
            compare: Vec::new(),
            before: None,
            revision: 0,
            is_noted: false,
        }
    }

    /// Returns what is to be done next.
    #[must_use]
    pub fn action(&self) -> Action {
        match &self.phase {
            Phase::ReadClaim => Action::Read(self.claim_keys().into()),
            Phase::ReadMarked { later } => Action::Read(vec![self.keys.host(later.host)]),
            Phase::ReadHolder(before) => Action::Read(self.holder_keys(before).into()),
            Phase::Wait { until, before } => Action::Wait { until: *until, before: before.clone() },
            Phase::Seek(before) => Action::Seek(before.clone()),
            Phase::Commit => Action::Commit,
        }
    }

    /// Takes in the keys that were asked for; they were all read before `now`.
    ///
    /// # Errors
    /// The device may not be claimed.
    ///
    /// # Panics
    /// If nothing was to be read.
    pub fn on_read(&mut self, read: &[Option<KeyValue>], now: BootTime) -> Result<(), Refusal> {
        match std::mem::replace(&mut self.phase, Phase::Commit) {
            Phase::ReadClaim => self.on_claim(read),
            Phase::ReadMarked { later } => self.on_marked(&later, read),
            Phase::ReadHolder(before) => self.on_holder(before, read, now),
            phase => panic!("nothing was to be read in {phase:?}"),
        }
    }

    /// Takes in the time. The holder is looked for last of all: little time lies between that and the transaction.
    pub fn on_time(&mut self, now: BootTime) {
        match &self.phase {
            Phase::Wait { until, before } if *until <= now => {
                self.phase = Phase::Seek(before.clone());
            }
            _ => {}
        }
    }

    /// Returns the refusal for a holder that registered while its fence was waited for.
    #[must_use]
    pub fn holder_is_back(before: &ClaimRecord) -> Refusal {
        Refusal::HolderLives { holder: before.host_name.clone() }
    }

    /// The holder is not seen to serve.
    ///
    /// # Errors
    /// It may serve all the same.
    pub fn on_not_seen(&mut self) -> Result<(), Refusal> {
        let before = self.before.as_ref().filter(|before| before.host != self.record.host);
        if let Some(before) = before
            && before.fence().is_none()
            && !self.word.as_ref().is_some_and(|word| word.is_down(&before.host_name))
        {
            return Err(Refusal::HolderMayServe { holder: before.host_name.clone() });
        }
        self.phase = Phase::Commit;
        Ok(())
    }

    /// Returns the conditions, the changes and the reads of the transaction that claims the device in the session of `lease`.
    #[must_use]
    pub fn transaction(&self, lease: i64) -> (Vec<Compare>, [Op; 2], [Op; 1]) {
        let mut compare = self.compare.clone();
        // SESSION-5.
        compare.push(Compare::Lease(self.keys.host(self.record.host), lease));
        let then = put_claim(&self.keys, self.claim.device, &self.record);
        (compare, then, [Op::Get(self.keys.device(self.claim.device))])
    }

    /// Takes in the answer to the transaction; `None` if something has changed and the claim begins again.
    ///
    /// # Errors
    /// It changes all the time.
    pub fn on_committed(&mut self, reply: &TxnReply) -> Result<Option<Made>, Refusal> {
        // VOLUME-RECORD-2: a transaction that was carried out twice refuses itself the second time.
        let now = reply.read.first().and_then(Option::as_ref);
        let own_work = now
            .filter(|now| now.mod_revision != self.revision && now.value == document(&self.record));
        let epoch = own_work.map(|now| now.mod_revision);
        if let Some(epoch) = epoch.or(reply.succeeded.then_some(reply.revision)) {
            return Ok(Some(Made { epoch, record: self.record.clone() }));
        }
        self.rounds += 1;
        if self.rounds >= ROUNDS {
            return Err(Refusal::ChangesAlways);
        }
        self.phase = Phase::ReadClaim;
        Ok(None)
    }

    fn claim_keys(&self) -> [String; 2] {
        [self.keys.device(self.claim.device), self.keys.claimed(self.claim.device)]
    }

    fn holder_keys(&self, before: &ClaimRecord) -> [String; 2] {
        [self.keys.host(before.host), self.keys.registered(before.host)]
    }

    fn on_claim(&mut self, read: &[Option<KeyValue>]) -> Result<(), Refusal> {
        let [claim, note] = two(read)?;
        self.revision = revision_of(claim);
        self.is_noted = note.is_some();
        let [device, claimed] = self.claim_keys();
        // Two claims with one given back between them have numbers of their own.
        self.compare = vec![
            Compare::ModRevision(device, self.revision),
            Compare::ModRevision(claimed, revision_of(note)),
        ];
        let known = last([claim, note]);
        self.before = claim.as_ref().map(decode).transpose()?;
        if broken(Sabotage::IgnoreMark) {
            self.claim.mark = None;
        }
        let carried = self.claim.mark.as_ref().map_or(0, |mark| mark.number);
        self.record.number = known.number.max(carried).saturating_add(1);
        let own = self.record.host;
        let later = self.claim.mark.as_ref();
        let later = later.filter(|mark| mark.host != own && mark.is_later_than(&known));
        match later {
            None => self.pass_on(),
            Some(later) if self.word.is_none() => {
                Err(Refusal::ClaimedLater { holder: later.host_name.clone() })
            }
            Some(later) => {
                self.phase = Phase::ReadMarked { later: later.clone() };
                Ok(())
            }
        }
    }

    /// CLAIM-9.
    fn on_marked(&mut self, later: &Mark, read: &[Option<KeyValue>]) -> Result<(), Refusal> {
        let holder = later.host_name.clone();
        if read.iter().any(Option::is_some) {
            return Err(Refusal::HolderLives { holder });
        }
        if !self.word.as_ref().is_some_and(|word| word.is_down(&holder)) {
            return Err(Refusal::HolderMayServe { holder });
        }
        self.compare.push(Compare::ModRevision(self.keys.host(later.host), 0));
        self.pass_on()
    }

    fn pass_on(&mut self) -> Result<(), Refusal> {
        self.phase = match &self.before {
            Some(before) if before.host != self.record.host => Phase::ReadHolder(before.clone()),
            // CLAIM-2: a process of another kernel is not known to be dead.
            Some(before) if before.boot != self.record.boot => Phase::Seek(before.clone()),
            None if self.claim.belongs && !self.is_noted => {
                self.forgotten_may_be_taken()?;
                Phase::Commit
            }
            _ => Phase::Commit,
        };
        Ok(())
    }

    /// CLAIM-8.
    fn forgotten_may_be_taken(&self) -> Result<(), Refusal> {
        match &self.word {
            None => Err(Refusal::Forgotten),
            Some(word) if word.is_down(Word::UNKNOWN_HOST) => Ok(()),
            Some(_) => Err(Refusal::HolderMayServe { holder: Word::UNKNOWN_HOST.to_owned() }),
        }
    }

    /// CLAIM-2, CLAIM-7.
    fn on_holder(
        &mut self,
        before: ClaimRecord,
        read: &[Option<KeyValue>],
        now: BootTime,
    ) -> Result<(), Refusal> {
        let [registration, noted] = two(read)?;
        let holder = before.host_name.clone();
        if registration.is_some() && !broken(Sabotage::TakeFromLiving) {
            return Err(Refusal::HolderLives { holder });
        }
        let fence = before.fence();
        if self.word.is_none() {
            return Err(Refusal::HolderLost { holder, is_fenced: fence.is_some() });
        }
        let [host, registered] = self.holder_keys(&before);
        // CLAIM-7: it was not back meanwhile either.
        if !broken(Sabotage::TakeFromLiving) {
            self.compare.push(Compare::ModRevision(host, 0));
        }
        self.compare.push(Compare::ModRevision(registered, revision_of(noted)));
        self.phase = match fence {
            // TENURE-3.
            Some(term) if !broken(Sabotage::NoWaitForFence) => {
                Phase::Wait { until: now + term.safe_after(), before }
            }
            _ => Phase::Seek(before),
        };
        Ok(())
    }
}

/// Returns the changes that make `record` the claim of a device.
#[must_use]
pub fn put_claim(keys: &Keys, device: Uuid, record: &ClaimRecord) -> [Op; 2] {
    let keys = [keys.device(device), keys.claimed(device)];
    keys.map(|key| Op::Put { key, value: document(record), lease: None })
}

/// Returns the last claim that is known, be it given back or not (CLAIM-9): number 0 if none is, or none that is understood.
#[must_use]
pub fn last(both: [&Option<KeyValue>; 2]) -> Mark {
    let both = both.into_iter().flatten();
    let records = both.filter_map(|kv| serde_json::from_slice::<ClaimRecord>(&kv.value).ok());
    records.map(|record| record.mark()).max_by_key(|mark| mark.number).unwrap_or_default()
}

fn two(read: &[Option<KeyValue>]) -> Result<[&Option<KeyValue>; 2], Refusal> {
    match read {
        [one, other] => Ok([one, other]),
        _ => Err(Refusal::Unreadable { what: "an answer lacks a key".to_owned() }),
    }
}

fn revision_of(kv: &Option<KeyValue>) -> i64 {
    kv.as_ref().map_or(0, |kv| kv.mod_revision)
}

fn decode(kv: &KeyValue) -> Result<ClaimRecord, Refusal> {
    serde_json::from_slice(&kv.value).map_err(|error| Refusal::Unreadable {
        what: format!("the key {} in etcd: {error}", kv.key),
    })
}

#[cfg(test)]
mod tests;
