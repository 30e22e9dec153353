//! Admission of hosts to volumes.
//!
//! - NVME-AUTH-4: a host that may not open a volume meets the same answers, in the same order, as one that asks
//!   for a volume which does not exist: where hosts have to authenticate, an exchange that fails. So does the time
//!   that they take (EVEN-1).
//! - NVME-AUTH-5: a host that no longer qualifies is cut as soon as that is decided. A stranger, which has not shown
//!   that it knows a token, is not cut: its exchange fails (NVME-AUTH-7), as for a volume which
//!   does not exist (NVME-AUTH-4).
//! - NVME-AUTH-8: while a volume that is absent may still appear, each refused host is told to retry: a host that is told Do
//!   Not Retry, or that its token is wrong, never does. So is a host that fails to authenticate, if that was so at any time
//!   since its Connect. For the sake of NVME-AUTH-4 all hosts are told so, and no refusal counts as a guess (NVME-AUTH-2).

use std::rc::Rc;

use access::Restrictions;
use dataplane::{Export, Peer, VolumeEvent};
use io_traits::{Device, World};
use nvme_target::{ConnectRefusal, ConnectRequest};
use nvme_wire::Nqn;
use situations::{Situation, situation_if};
use uuid::Uuid;

use crate::association::Association;
use crate::connection::Connection;
use crate::frontend::{NvmeCore, nqn_of};

/// Why connections of a host end that no longer qualifies.
const NOT_ADMITTED: &str = "the host may no longer open the volume";

/// The subsystem that a host connects to.
pub(crate) enum Subject<W: World, D: Device> {
    /// The discovery service.
    Discovery,
    /// A volume.
    Volume(Rc<Export<W, D>>),
    /// Nothing, for this reason, which the host is not to know (NVME-AUTH-4).
    Nothing(&'static str),
}

impl<W: World, D: Device> Clone for Subject<W, D> {
    fn clone(&self) -> Self {
        match self {
            Self::Discovery => Self::Discovery,
            Self::Volume(export) => Self::Volume(export.clone()),
            Self::Nothing(why) => Self::Nothing(why),
        }
    }
}

impl<W: World, D: Device> Subject<W, D> {
    /// The volume, if it is one.
    pub(crate) fn export(&self) -> Option<&Rc<Export<W, D>>> {
        match self {
            Self::Volume(export) => Some(export),
            Self::Discovery | Self::Nothing(_) => None,
        }
    }
}

impl<W: World, D: Device> NvmeCore<W, D> {
    /// Returns whether hosts have to authenticate.
    pub(crate) fn authenticates(&self) -> bool {
        self.options().authentication.is_some()
    }

    /// Returns the subsystem that `request` on `connection` asks for, or the answer that refuses it (NVME-AUTH-4).
    pub(crate) fn subject_for(
        &self,
        connection: &Connection<W, D>,
        request: &ConnectRequest,
    ) -> Result<Subject<W, D>, ConnectRefusal> {
        let subsystem = request.subsystem;
        if subsystem == Nqn::DISCOVERY {
            return Ok(Subject::Discovery);
        }
        if self.authenticates() && self.is_rate_limited(connection.peer().ip(), subsystem) {
            return Err(ConnectRefusal::BUSY);
        }
        let uuid = subsystem.uuid().map(Uuid::from_bytes);
        let uuid = uuid.filter(|uuid| nqn_of(*uuid) == subsystem);
        let opened = connection.as_peer(&request.host_nqn, |peer| self.open(uuid, peer));
        let refused = match opened {
            // CROWD-4. A host that has to authenticate is told behind that.
            Ok(export) if self.authenticates() || self.has_place_for(&export) => {
                return Ok(Subject::Volume(export));
            }
            Ok(_) => return Err(ConnectRefusal::BUSY),
            Err(refused) => refused,
        };
        if self.authenticates() {
            // The log hears of it when the exchange has failed: a line costs time that can be measured.
            return Ok(Subject::Nothing(refused.reason()));
        }
        connection.log_unqualified(request.host_nqn, subsystem, refused.reason());
        // NVME-AUTH-8.
        Err(match self.awaits_volumes() {
            true => ConnectRefusal::BUSY,
            false => ConnectRefusal::UNKNOWN_SUBSYSTEM,
        })
    }
}

impl<W: World, D: Device> Connection<W, D> {
    /// Asks something of the host called `host`, as it comes.
    fn as_peer<T>(&self, host: &Nqn, ask: impl FnOnce(&Peer<'_>) -> T) -> T {
        let interface = || self.interface();
        ask(&Peer { host: host.as_str(), address: self.peer().ip(), interface: &interface })
    }

    /// Returns whether the host `host` may open `export` from where it is.
    pub(crate) fn qualifies(&self, export: &Export<W, D>, host: &Nqn) -> bool {
        self.as_peer(host, |peer| peer.qualifies(export))
    }

    /// Returns whether the host `host` may open `export`, which may be gone since the host asked for it.
    pub(crate) fn may_open(&self, export: &Rc<Export<W, D>>, host: &Nqn) -> bool {
        self.core.serves(export) && self.qualifies(export, host)
    }

    /// Returns whether `restrictions` admit the host `host` from where it is.
    pub(crate) fn is_admitted_by(&self, restrictions: &Restrictions, host: &Nqn) -> bool {
        self.as_peer(host, |peer| peer.is_admitted_by(restrictions))
    }
}

impl<W: World, D: Device> Association<W, D> {
    /// Acts on what becomes of its volume, `export`.
    pub(crate) fn on_volume(&self, export: &Export<W, D>, event: VolumeEvent) {
        match event {
            VolumeEvent::Resized => self.on_namespace_changed(),
            VolumeEvent::AccessChanged { revoked } => self.on_access_changed(export, revoked),
            VolumeEvent::Suspended => self.cut("the server may not serve the volume now"),
            VolumeEvent::Deleted => {
                situation_if(Situation::VolumeDeletedUnderRequests, || {
                    self.connections().iter().any(|connection| connection.requests_under_way() > 0)
                });
                self.cut("the volume is gone");
            }
        }
    }

    /// NVME-AUTH-5.
    fn on_access_changed(&self, export: &Export<W, D>, revoked: bool) {
        if revoked {
            self.cut("the volume's tokens were changed");
        } else if !self.qualifies(export) {
            self.cut(NOT_ADMITTED);
        }
        // What is not its queue yet says nothing of its host.
        for candidate in self.candidates() {
            if !candidate.is_strangers() && !candidate.qualifies(export, &self.host) {
                candidate.note_end(NOT_ADMITTED);
                candidate.cut();
            }
        }
    }

    /// Returns true if all its connections still may open `export`.
    fn qualifies(&self, export: &Export<W, D>) -> bool {
        self.connections().iter().all(|connection| connection.qualifies(export, &self.host))
    }
}
