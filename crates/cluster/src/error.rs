//! Reasons why the directory did not do what it was asked.

#[allow(unused_imports, reason = "named by the text")]
use crate::{Sighting, Word};

/// Why the directory refused something, or did not do it.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum DirectoryError {
    /// It cannot be asked now. A change that was under way is done or not; asking later tells.
    #[error("the directory cannot be reached: {reason}")]
    Unreachable {
        /// The reason, as far as it is known.
        reason: String,
    },
    /// Another volume of the cluster has the name.
    #[error("a volume `{name}` exists already")]
    NameTaken {
        /// The name.
        name: String,
    },
    /// The check of the caller refused it: nothing was changed.
    #[error("{detail}")]
    NotAdmitted {
        /// Why.
        detail: String,
    },
    /// Another host serves the device (CLAIM-3): nothing was changed.
    #[error("the device is served by host {holder}")]
    Fenced {
        /// The name of that host.
        holder: String,
    },
    /// The device is another host's, and that host lives.
    #[error("the device {device} is served by host {holder}, which is alive")]
    HolderLives {
        /// The device's name here.
        device: String,
        /// The name of that host.
        holder: String,
    },
    /// The device was another host's, which did not give it back.
    #[error(
        "the device {device} was served by host {holder}, which is gone but did not give it back"
    )]
    HolderLost {
        /// The device's name here.
        device: String,
        /// The name of that host.
        holder: String,
        /// True if that host stops serving when its lease ends (CLAIM-7).
        is_fenced: bool,
    },
    /// The device was another host's, which is not seen, does not stop by itself, and is not said to be down: it may serve
    /// (CLAIM-2).
    #[error(
        "the device {device} was served by host {holder}, which does not stop by itself, and may still serve it unseen"
    )]
    HolderMayServe {
        /// The device's name here.
        device: String,
        /// The name of that host, or [`Word::UNKNOWN_HOST`].
        holder: String,
    },
    /// The device is another host's, whose lease has ended, but which is seen to be there; or another machine's that is this
    /// host, too.
    #[error(
        "the device {device} is host {holder}'s, which the directory has lost but which {sighting}"
    )]
    HolderSeen {
        /// The device's name here.
        device: String,
        /// The name of that host.
        holder: String,
        /// The place and the way in which it was seen.
        sighting: Sighting,
    },
    /// The device carries a claim of this cluster, and the directory has no record of its host (CLAIM-8).
    #[error(
        "the device {device} belongs to this cluster, but the directory has forgotten which host had it, as one has that is lost or \
         restored from an older backup"
    )]
    Forgotten {
        /// The device's name here.
        device: String,
    },
    /// The device carries the mark of a later claim than the directory knows of (CLAIM-9).
    #[error(
        "the device {device} was claimed by host {holder} later than the directory knows, as one does not that is restored from an \
         older backup"
    )]
    ClaimedLater {
        /// The device's name here.
        device: String,
        /// The name of that host.
        holder: String,
    },
    /// This machine has no id by which it could be told from others.
    #[error("there is no machine id in /etc/machine-id, and hosts are known by it")]
    NoMachineId,
    /// A host of this id or name lives.
    #[error("{what}")]
    HostLives {
        /// That host, and the id or name that it shares with this one.
        what: String,
    },
    /// A key under the cluster's prefix was written by another program, by a newer release, or for another cluster.
    #[error("{what}")]
    Foreign {
        /// The key, and what is wrong with it.
        what: String,
    },
}

impl DirectoryError {
    /// Returns the reason alone, without the words that the directory cannot be reached: for a view that is
    /// [cut off](crate::View::cut_off).
    #[must_use]
    pub fn reason(&self) -> String {
        match self {
            Self::Unreachable { reason } => reason.clone(),
            error => error.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_does_not_say_again_that_the_directory_is_away() {
        let away = DirectoryError::Unreachable { reason: "no route".to_owned() };
        assert_eq!(away.reason(), "no route");
        let other = DirectoryError::NameTaken { name: "a".to_owned() };
        assert_eq!(other.reason(), other.to_string());
    }
}
