//! The history of a value that requests replace as a whole, and what it may be.

use crate::content::Tag;
use crate::history::{Fate, Moment};

/// One value, from the request that set it.
#[derive(Clone, Debug)]
struct Version<T> {
    tag: Tag,
    value: T,
    invoked: Moment,
    /// When it was answered, or the power went: it took effect by then, or never does.
    ended: Option<Moment>,
    fate: Fate,
    /// A start may have undone it: it replaces nothing for sure.
    shaken: bool,
    /// When a reader saw it: what was seen is durable.
    seen: Option<Moment>,
}

/// A value and the changes of it.
#[derive(Clone, Debug)]
pub(crate) struct Register<T> {
    versions: Vec<Version<T>>,
}

impl<T: Clone + PartialEq> Register<T> {
    /// A value that is known.
    #[must_use]
    pub(crate) fn new(value: T, now: Moment) -> Self {
        let ended = Some(now);
        let fate = Fate::Done;
        let version =
            Version { tag: 0, value, invoked: now, ended, fate, shaken: false, seen: None };
        Self { versions: vec![version] }
    }

    /// Notes that a change is issued.
    pub(crate) fn begin(&mut self, tag: Tag, value: T, now: Moment) {
        let fate = Fate::Open;
        let version =
            Version { tag, value, invoked: now, ended: None, fate, shaken: false, seen: None };
        self.versions.push(version);
    }

    /// Notes what came of a change. One that is still open took effect by now, or only a later start shows it.
    pub(crate) fn end(&mut self, tag: Tag, fate: Fate, now: Moment) {
        let version = self.versions.iter_mut().find(|version| version.tag == tag);
        let version = version.expect("it was begun");
        (version.fate, version.ended) = (fate, Some(now));
    }

    /// The server is gone: nothing that is open takes effect later.
    pub(crate) fn close(&mut self, now: Moment) {
        self.versions.iter_mut().for_each(|version| {
            version.ended.get_or_insert(now);
        });
    }

    /// The next start may undo what was answered since `moment`.
    pub(crate) fn undo_since(&mut self, moment: Moment) {
        for version in &mut self.versions {
            version.shaken |= version.ended.is_none_or(|ended| ended >= moment);
        }
    }

    /// The value was found while nothing changed it: all before is over.
    pub(crate) fn settle(&mut self, value: T, now: Moment) {
        *self = Self::new(value, now);
    }

    /// The values that it may have had between two moments.
    pub(crate) fn possible(&self, from: Moment, to: Moment) -> impl Iterator<Item = &T> {
        let is_replaced = move |version: &Version<T>| {
            self.versions.iter().any(|other| {
                let is_certain = other.seen.is_some_and(|seen| seen < from)
                    || other.fate == Fate::Done && other.ended.is_some_and(|ended| ended < from);
                is_certain
                    && !other.shaken
                    && version.ended.is_some_and(|ended| ended < other.invoked)
            })
        };
        let is_possible = move |version: &&Version<T>| {
            version.fate != Fate::Refused && version.invoked <= to && !is_replaced(version)
        };
        self.versions.iter().filter(is_possible).map(|version| &version.value)
    }

    /// Notes that a reader saw `value`: no later one may see an older value, nor does a power cut bring one back.
    pub(crate) fn see(&mut self, value: &T, now: Moment) {
        let mut equal =
            self.versions.iter_mut().filter(|v| v.fate != Fate::Refused && v.value == *value);
        // Two equal versions cannot be told apart.
        if let (Some(version), None) = (equal.next(), equal.next()) {
            version.seen.get_or_insert(now);
        }
    }

    /// A value that was acknowledged, none later than it.
    #[must_use]
    pub(crate) fn latest(&self) -> &T {
        let done = self.versions.iter().rev().find(|version| version.fate == Fate::Done);
        &done.expect("the first one is").value
    }

    /// When changes were answered that were made.
    pub(crate) fn answered(&self) -> impl Iterator<Item = Moment> {
        let done = self.versions.iter().filter(|version| version.fate == Fate::Done);
        done.filter_map(|version| version.ended)
    }

    /// Changes that were issued since the value was last found.
    #[must_use]
    pub(crate) fn changes(&self) -> usize {
        self.versions.len() - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn possible(register: &Register<char>, at: Moment) -> Vec<char> {
        register.possible(at, at).copied().collect()
    }

    #[test]
    fn only_the_last_acknowledged_value_and_open_ones_behind_it_may_be_there() {
        let mut register = Register::new('a', 1);
        register.begin(1, 'b', 2);
        assert_eq!(possible(&register, 3), ['a', 'b'], "under way");
        register.end(1, Fate::Open, 3);
        assert_eq!(possible(&register, 4), ['a', 'b'], "not answered");
        register.begin(2, 'c', 5);
        register.end(2, Fate::Done, 6);
        assert_eq!(possible(&register, 7), ['c'], "what was open before is over");
        register.begin(3, 'd', 8);
        register.end(3, Fate::Refused, 9);
        assert_eq!((possible(&register, 10), *register.latest()), (vec!['c'], 'c'));
        register.begin(4, 'e', 11);
        register.begin(5, 'f', 12);
        register.end(5, Fate::Done, 13);
        register.end(4, Fate::Done, 14);
        assert_eq!(possible(&register, 15), ['e', 'f'], "side by side");
        register.begin(6, 'g', 16);
        register.see(&'g', 17);
        register.close(18);
        assert_eq!(possible(&register, 19), ['g'], "seen");
        register.settle('f', 20);
        assert_eq!((possible(&register, 21), register.changes()), (vec!['f'], 0));
    }
}
