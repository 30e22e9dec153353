//! Events that a host acts upon, and the words of its requests.

use std::sync::Arc;

use uuid::Uuid;

use crate::{BootTime, GrantsRecord, View};

/// Decides by a view of the cluster whether a change may be made; an error says why not.
pub type Admit = Arc<dyn Fn(&View) -> Result<(), String> + Send + Sync>;

/// Another division of an owner's quota.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Regrant {
    /// The tenant that has the quota.
    pub owner: String,
    /// The present division; empty if none is recorded.
    pub before: GrantsRecord,
    /// The division to be recorded.
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
        /// The volume that has the name.
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

/// A change in the cluster that a host must act upon.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Event {
    /// The directory is there, and all claims hold: records are to be compared with the devices.
    Connected,
    /// All devices that this host has claimed and not lost were still its own when the directory was asked. Sent only where
    /// the host's tenure ends by itself and may have ended: it is to be renewed (CLAIM-7).
    Held {
        /// The time at which the directory was asked.
        asked: BootTime,
    },
    /// The directory is away. What is served goes on, for as long as the host's tenure lasts.
    CutOff {
        /// The reason, as far as it is known.
        reason: String,
    },
    /// Another host has claimed the device, or had: stop serving it (CLAIM-4, CLAIM-5).
    ClaimLost {
        /// The device.
        device: Uuid,
        /// The name of its host; `None` if that has given it back.
        holder: Option<String>,
    },
}
