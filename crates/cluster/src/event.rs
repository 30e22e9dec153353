//! Events that a host acts upon, and the words of its requests.

use std::sync::Arc;

use uuid::Uuid;

use crate::{BootTime, GrantsRecord, View};

/// Says by what the cluster holds whether a change may be made; if not, why.
pub type Admit = Arc<dyn Fn(&View) -> Result<(), String> + Send + Sync>;

/// Another division of an owner's quota.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Regrant {
    /// Whose quota it is.
    pub owner: String,
    /// How it is divided; empty if nothing was recorded.
    pub before: GrantsRecord,
    /// How it is to be.
    pub after: GrantsRecord,
    /// Hosts that must be gone for that.
    pub gone: Vec<Uuid>,
}

/// A disagreement that [`crate::Node::reconcile`] leaves as it is.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Conflict {
    /// The name of this volume is another's: it is reached by its id only.
    Name {
        /// The volume.
        id: Uuid,
        /// The name.
        name: String,
        /// Whose it is.
        holder: Uuid,
    },
    /// A volume of this id lies on another device, too, and that one has the record.
    Volume {
        /// The id.
        id: Uuid,
        /// The device of the record.
        device: Uuid,
    },
}

/// What a host has to act upon.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Event {
    /// The directory is there, and all claims hold: records are to be compared with the devices.
    Connected,
    /// What this host has claimed and was not told to have lost before is its own, as the directory was asked at `asked`. Told
    /// only where the host's tenure ends by itself, and may have ended: it is to be renewed (F7).
    Held {
        /// When it was asked.
        asked: BootTime,
    },
    /// The directory is away. What is served goes on, for as long as the host's tenure lasts.
    CutOff {
        /// What is known.
        reason: String,
    },
    /// The device is another's, or was: stop to serve it (F4, F5).
    ClaimLost {
        /// The device.
        device: Uuid,
        /// The name of its host; `None` if that has given it back.
        holder: Option<String>,
    },
}
