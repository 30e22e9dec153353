//! An operator's statement about hosts that are gone.

use std::collections::BTreeSet;

/// An operator's word, by which a device may be taken from a host that is gone (CLAIM-2).
///
/// That a host is *down* is asserted of it by name: it is powered off, or cut off from all clients of its volumes. It has to be asserted
/// of each host that does not stop by itself (CLAIM-7), since such a one may serve on where no host sees it.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Word {
    /// The names of the hosts that are down. [`Word::UNKNOWN_HOST`] among them is the host of a device of which the directory has forgotten it.
    pub down: BTreeSet<String>,
}

impl Word {
    /// Stands for a host whose name the directory has forgotten (CLAIM-8). It is no name that a host can have, and stands for no
    /// host that is known: what was said about one host is not to count for the next.
    pub const UNKNOWN_HOST: &str = "*";

    /// Takes over from hosts that stop by themselves, and from those that are named as down.
    pub fn down<Name: Into<String>>(names: impl IntoIterator<Item = Name>) -> Self {
        Self { down: names.into_iter().map(Into::into).collect() }
    }

    /// Returns whether a host is asserted to be down.
    pub fn is_down(&self, host: &str) -> bool {
        self.down.contains(host)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An assertion about one host counts for no other, nor does the word for one that is forgotten.
    #[test]
    fn a_host_is_down_only_by_its_own_name() {
        let word = Word::down(["a", Word::UNKNOWN_HOST]);
        assert!(word.is_down("a") && word.is_down(Word::UNKNOWN_HOST));
        assert!(!word.is_down("b") && !word.is_down("") && !Word::default().is_down("a"));
    }
}
