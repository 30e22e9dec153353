//! Who gets to what.
//!
//! - T4: a host that may not open a volume meets the same answers, in the same order, as one that asks
//!   for a volume which does not exist: where hosts have to authenticate, an exchange that fails. So does the time
//!   that they take (E1 of `even.rs`).
//! - T5: a host that no longer qualifies is cut as soon as that is decided. Of a stranger, who has not shown that it knows a
//!   token, nothing is cut: its exchange fails (T7 of `authentication.rs`), as for a volume which does not exist (T4).
//! - T8: while a volume that is not here may yet come, whoever is refused is told to come again: hosts never come again
//!   that heard Do Not Retry, or that their token is wrong. All are told so, for the sake of T4, and none of them counts as one
//!   that guesses (T2 of `authentication.rs`).

use std::rc::Rc;

use access::{Access, UnixSeconds, Visitor};
use io_traits::{Device, World};
use nvme_target::{ConnectRefusal, ConnectRequest};
use nvme_wire::Nqn;
use uuid::Uuid;
use volume::VolumeError;

use crate::association::Association;
use crate::connection::Connection;
use crate::core::{Core, VolumeStatus, status_of};
use crate::export::Export;
use crate::sabotage::{Sabotage, broken};

const _: () = assert!(access::ACCESS_BYTES_MAX == volume::ACCESS_BYTES_MAX);

/// Why connections of a host end that no longer qualifies.
const NOT_ADMITTED: &str = "the host may no longer open the volume";

/// What a host talks to.
pub(crate) enum Subject<W: World, D: Device> {
    /// The discovery service.
    Discovery,
    /// A volume.
    Volume(Rc<Export<W, D>>),
    /// Nothing, for this reason, which the host is not to know (T4).
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

impl<W: World, D: Device> Core<W, D> {
    /// The time of day.
    pub(crate) fn time_of_day(&self) -> UnixSeconds {
        UnixSeconds(self.world().unix_time().as_secs())
    }

    /// Whether hosts have to authenticate.
    pub(crate) fn authenticates(&self) -> bool {
        self.options().authentication.is_some()
    }

    /// What the host that asks for `request` on `connection` gets (T4).
    pub(crate) fn subject_for(
        &self,
        connection: &Connection<W, D>,
        request: &ConnectRequest,
    ) -> Result<Subject<W, D>, ConnectRefusal> {
        if request.subsystem == Nqn::DISCOVERY {
            return Ok(Subject::Discovery);
        }
        let peer = connection.peer();
        if self.authenticates() && self.is_rate_limited(peer.ip(), request.subsystem) {
            return Err(ConnectRefusal::BUSY);
        }
        let found = self.export_by_nqn(&request.subsystem).filter(|_| !self.is_suspended());
        let reason = match found {
            Some(_) => "is restricted",
            None if self.is_suspended() => "is not served now, if it is here",
            None if self.awaits_volumes() => "may be on a device that is absent",
            None => "does not exist",
        };
        let qualified = found.filter(|export| connection.qualifies(export, &request.host_nqn));
        if let Some(export) = qualified {
            // W4 of `crowd.rs`. Who has to authenticate hears of it behind that.
            return match self.authenticates() || self.has_place_for(&export) {
                true => Ok(Subject::Volume(export)),
                false => Err(ConnectRefusal::BUSY),
            };
        }
        if self.authenticates() {
            // The log hears of it when the exchange has failed: a line costs time that can be measured.
            return Ok(Subject::Nothing(reason));
        }
        connection.log_unqualified(request.host_nqn, request.subsystem, reason);
        // T8.
        Err(match self.awaits_volumes() {
            true => ConnectRefusal::BUSY,
            false => ConnectRefusal::UNKNOWN_SUBSYSTEM,
        })
    }

    /// Says whether volumes may come that are not here, such as those of a device that is absent (T8).
    pub fn await_volumes(&self, may_come: bool) {
        self.state.awaits_volumes.set(may_come);
    }

    /// Whether hosts that are refused are to come again. A core that stopped to serve by itself says so before it is told to.
    pub(crate) fn awaits_volumes(&self) -> bool {
        self.state.awaits_volumes.get() || self.is_suspended()
    }

    /// Says who may open a volume from now on, durably. Hosts that no longer qualify are cut (T5);
    /// those that do stay, unless `cut` ends that, too.
    ///
    /// # Errors
    /// There is no such volume, too much is said, or as [`volume::Volume::set_access`].
    pub async fn set_access(
        &self,
        uuid: Uuid,
        access: Access,
        cut: bool,
    ) -> Result<VolumeStatus, VolumeError> {
        let export = self.export(uuid).ok_or(VolumeError::Deleted)?;
        let bytes = access.encode().map_err(|_| VolumeError::Spec)?;
        if broken(Sabotage::AccessBeforeRecord) {
            export.set_access(access.clone());
        }
        export.volume().set_access(&bytes).await?;
        if !broken(Sabotage::KeepOldAccess) {
            export.set_access(access);
        }
        for association in self.associations_of(&export) {
            if cut {
                if !broken(Sabotage::CutNobody) {
                    association.cut("the volume's tokens were changed");
                }
            } else if !association.qualifies(&export) && !broken(Sabotage::KeepUnqualified) {
                association.cut(NOT_ADMITTED);
            }
            // Whoever is not its queue yet says nothing of its host.
            for candidate in association.candidates() {
                if !candidate.is_strangers() && !candidate.qualifies(&export, &association.host) {
                    candidate.note_end(NOT_ADMITTED);
                    candidate.cut();
                }
            }
        }
        Ok(status_of(&export))
    }
}

impl<W: World, D: Device> Connection<W, D> {
    /// Whether the host called `host` may open `export` from where it is.
    pub(crate) fn qualifies(&self, export: &Export<W, D>, host: &Nqn) -> bool {
        export.access().is_some_and(|access| self.is_admitted_by(&access.restrictions, host))
    }

    /// Whether the host called `host` may open `export`, which may be gone since the host asked for it.
    pub(crate) fn may_open(&self, export: &Rc<Export<W, D>>, host: &Nqn) -> bool {
        let serves = self.core.export(export.uuid()).is_some_and(|now| Rc::ptr_eq(&now, export));
        serves && !self.core.is_suspended() && self.qualifies(export, host)
    }

    /// Whether `restrictions` admit the host called `host` from where it is.
    pub(crate) fn is_admitted_by(&self, restrictions: &access::Restrictions, host: &Nqn) -> bool {
        if restrictions.is_empty() || broken(Sabotage::IgnoreRestrictions) {
            return true;
        }
        let address = self.peer().ip();
        // To look it up takes five system calls.
        let interface = if restrictions.interfaces.is_empty() { None } else { self.interface() };
        restrictions.admit(&Visitor { host, address, interface })
    }
}

impl<W: World, D: Device> Association<W, D> {
    /// Whether all its connections still may open `export`.
    pub(crate) fn qualifies(&self, export: &Export<W, D>) -> bool {
        self.connections().iter().all(|connection| connection.qualifies(export, &self.host))
    }
}
