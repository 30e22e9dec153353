//! Eviction of connections when there are as many as there may be.
//!
//! - CROWD-1: a host that has been let into a volume stays. All others are strangers, those at discovery
//!   included. Of these the source that has most makes room, with its oldest, for one of a source that has
//!   fewer.
//! - CROWD-2: a client that floods a core from one source is therefore in its own way only. Where no source
//!   has so many more, the newcomer's own makes room: its oldest goes, once it had its [`CHANCE`].
//! - CROWD-3: connections that were ended and are not gone yet have [`LEAVING_MAX`] places of their own. If
//!   these are taken, too, the source that has most of them ends its oldest at once.
//! - CROWD-4: no tenant takes all places, nor does a volume without a tenant (`crowd/guests.rs`). A host
//!   that asks for more is refused; no connection is ended for it.
//! - CROWD-5: each step takes time logarithmic in the number of connections: they may come as fast as they
//!   like.
//!
//! Which connections there are is told from outside: this does no I/O, and reads no clock.

mod guests;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use units::{Duration, Instant};
use uuid::Uuid;

use guests::Guests;

/// Connections that were ended and are not gone yet, beyond those that there may be.
pub const LEAVING_MAX: usize = 64;

/// Time that a stranger stays if only its equals want its place: long enough for a host to authenticate.
const CHANCE: Duration = Duration::from_millis(500);

/// The stage of a connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Stage {
    /// Anybody's.
    Stranger,
    /// Its host may use this volume.
    LetIn(Uuid),
    /// Ended: its host has a while to hear of it.
    Lingering,
    /// Ended, and as good as gone.
    Cut,
}

struct Member {
    source: IpAddr,
    since: Instant,
    stage: Stage,
}

/// The oldest connection of a source, and how many it has.
#[derive(Default)]
struct Sources {
    /// The numbers of each source's connections.
    numbers: BTreeMap<IpAddr, BTreeSet<u64>>,
    /// Sources by how many they have.
    ranks: BTreeSet<(usize, IpAddr)>,
}

impl Sources {
    fn add(&mut self, source: IpAddr, number: u64) {
        self.change(source, |numbers| numbers.insert(number));
    }

    fn remove(&mut self, source: IpAddr, number: u64) {
        self.change(source, |numbers| numbers.remove(&number));
    }

    fn change(&mut self, source: IpAddr, change: impl FnOnce(&mut BTreeSet<u64>) -> bool) {
        let numbers = self.numbers.entry(source).or_default();
        self.ranks.remove(&(numbers.len(), source));
        change(numbers);
        if numbers.is_empty() {
            self.numbers.remove(&source);
        } else {
            self.ranks.insert((numbers.len(), source));
        }
    }

    fn count(&self, source: IpAddr) -> usize {
        self.numbers.get(&source).map_or(0, BTreeSet::len)
    }

    /// The source that has most, and how many.
    fn crowd(&self) -> Option<(IpAddr, usize)> {
        self.ranks.last().map(|(count, source)| (*source, *count))
    }

    fn oldest_of(&self, source: IpAddr) -> Option<u64> {
        self.numbers.get(&source)?.first().copied()
    }
}

/// The connections of a core, by number. Numbers rise with time.
#[derive(Default)]
pub(crate) struct Crowd {
    members: BTreeMap<u64, Member>,
    /// Those that are not ended.
    open: usize,
    strangers: Sources,
    /// The same, by age.
    by_age: BTreeSet<u64>,
    /// Those that were let in.
    guests: Guests,
    lingering: Sources,
}

impl Crowd {
    /// Connections, those that are on their way out included.
    pub(crate) fn len(&self) -> usize {
        self.members.len()
    }

    /// Connections that were let in.
    pub(crate) fn let_in_count(&self) -> usize {
        self.guests.count()
    }

    /// Those that were let in to `volume`.
    pub(crate) fn count_of(&self, volume: Uuid) -> usize {
        self.guests.count_of(volume)
    }

    /// Connections that were not ended.
    pub(crate) fn open(&self) -> usize {
        self.open
    }

    /// A connection comes.
    pub(crate) fn add(&mut self, number: u64, source: IpAddr, now: Instant) {
        self.members.insert(number, Member { source, since: now, stage: Stage::Stranger });
        self.open += 1;
        self.strangers.add(source, number);
        self.by_age.insert(number);
    }

    /// Its host has shown that it may use `volume`, which belongs to `tenant`, if it has one.
    pub(crate) fn let_in(&mut self, number: u64, volume: Uuid, tenant: Option<&str>) {
        let next = |from| (from == Stage::Stranger).then_some(Stage::LetIn(volume));
        if self.advance(number, next) {
            self.guests.add(volume, tenant);
        }
    }

    /// It was ended; what is left to be said to its host will be.
    pub(crate) fn lingers(&mut self, number: u64) {
        let is_open = |stage| matches!(stage, Stage::Stranger | Stage::LetIn(_));
        self.advance(number, |from| is_open(from).then_some(Stage::Lingering));
    }

    /// It was ended at once.
    pub(crate) fn is_cut(&mut self, number: u64) {
        self.lingers(number);
        self.advance(number, |from| (from == Stage::Lingering).then_some(Stage::Cut));
    }

    /// It is gone.
    pub(crate) fn remove(&mut self, number: u64) {
        self.is_cut(number);
        self.members.remove(&number);
    }

    /// Moves the connection to its `next` stage; returns false if there is none.
    fn advance(&mut self, number: u64, next: impl FnOnce(Stage) -> Option<Stage>) -> bool {
        let Some(member) = self.members.get_mut(&number) else { return false };
        let (from, source) = (member.stage, member.source);
        let Some(to) = next(from) else { return false };
        member.stage = to;
        match from {
            Stage::Stranger => {
                self.strangers.remove(source, number);
                self.by_age.remove(&number);
            }
            Stage::LetIn(volume) => self.guests.remove(volume),
            Stage::Lingering => self.lingering.remove(source, number),
            Stage::Cut => {}
        }
        if to == Stage::Lingering {
            self.lingering.add(source, number);
            self.open -= 1;
        }
        true
    }

    /// CROWD-4: returns true if `volume`, of `tenant` if it has one, may have another of `max` places.
    pub(crate) fn has_place_for(&self, volume: Uuid, tenant: Option<&str>, max: usize) -> bool {
        self.guests.may_add(volume, tenant, max)
    }

    /// CROWD-1 and CROWD-2: returns the connection that makes room for one of the source `newcomer`.
    pub(crate) fn who_makes_room(&self, newcomer: IpAddr, now: Instant) -> Option<u64> {
        let (crowd, most) = self.strangers.crowd()?;
        let own = self.strangers.count(newcomer);
        if own + 1 < most {
            return self.strangers.oldest_of(crowd);
        }
        // With none of its own, each source has one.
        let equal = self.strangers.oldest_of(newcomer).or_else(|| self.by_age.first().copied());
        equal.filter(|number| now.since(self.members[number].since) >= CHANCE)
    }

    /// CROWD-3: returns the connection, of those on their way out, that has to go at once; `None` if there
    /// is none.
    pub(crate) fn who_lingers_longest(&self) -> Option<u64> {
        let (crowd, _) = self.lingering.crowd()?;
        self.lingering.oldest_of(crowd)
    }
}

#[cfg(test)]
mod tests;
