//! Arithmetic that takes long, to be done on a thread where it delays no I/O.

use alloc::vec::Vec;
use core::fmt;

use nvme_wire::auth::Explanation;
use zeroize::Zeroizing;

use crate::Group;

/// Work of an exchange; some hundred microseconds to some ten milliseconds (AUTH-4).
pub struct Job {
    pub(crate) group: Group,
    pub(crate) private: Zeroizing<Vec<u8>>,
    /// True if the public value is wanted.
    pub(crate) public: bool,
    /// The other side's public value, if it is known.
    pub(crate) peer: Option<Vec<u8>>,
}

/// The result of a [`Job`].
pub struct Computed {
    pub(crate) public: Vec<u8>,
    pub(crate) shared: Option<Result<Zeroizing<Vec<u8>>, Explanation>>,
}

impl Job {
    /// Does it.
    #[must_use]
    pub fn run(self) -> Computed {
        let Self { group, private, public, peer } = self;
        let public = if public { group.public(&private) } else { Vec::new() };
        let shared =
            peer.map(|peer| group.shared(&private, &peer).ok_or(Explanation::GroupNotUsable));
        Computed { public, shared }
    }
}

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Job({:?})", self.group)
    }
}

impl fmt::Debug for Computed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Computed")
    }
}
