//! Admission to volumes: the checks of a host that every protocol has.
//!
//! - ADMISSION-5: a host that no longer qualifies is cut as soon as that is decided: sessions are told that access has changed.
//! - ADMISSION-8: while a volume that is not here may yet come, hosts that are refused are told to come again: hosts never come
//!   again that heard that there is none.

use std::cell::Cell;
use std::fmt;
use std::net::IpAddr;
use std::rc::Rc;

use access::{Access, Restrictions, Token, UnixSeconds, Visitor};
use io_traits::{Device, World};
use uuid::Uuid;
use volume::VolumeError;

use crate::core::{Core, VolumeStatus, status_of};
use crate::export::Export;
use crate::sabotage::{Sabotage, broken};
use crate::session::VolumeEvent;

const _: () = assert!(access::ACCESS_BYTES_MAX == volume::ACCESS_BYTES_MAX);

/// A host that asks for a volume.
#[derive(Clone, Copy)]
pub struct Peer<'a> {
    /// The name that it gives.
    pub host: &'a str,
    /// Its address.
    pub address: IpAddr,
    /// Looks up the interface of the server that received its connection, if the system tells.
    pub interface: &'a dyn Fn() -> Option<&'a str>,
}

/// Volumes that may come to a core (ADMISSION-8).
#[derive(Default)]
pub(crate) struct Awaiting {
    may_come: Cell<bool>,
    /// Times at which it began to await volumes.
    beginnings: Cell<u64>,
}

/// A moment since which volumes may have been awaited (ADMISSION-8).
#[derive(Clone, Copy, Debug)]
pub struct Since {
    awaited: bool,
    awaitings: u64,
}

/// Why a host cannot open a volume. Unauthenticated hosts must not learn which it is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Refused {
    /// The host may not open it, as it comes.
    Restricted,
    /// The core serves no volume for now.
    Suspended,
    /// It is not here, and may yet come (ADMISSION-8).
    Awaited,
    /// It is not here.
    Unknown,
}

impl Refused {
    /// The rest of a sentence that begins with the volume.
    #[must_use]
    pub const fn reason(self) -> &'static str {
        match self {
            Self::Restricted => "is restricted",
            Self::Suspended => "is not served now, if it is here",
            Self::Awaited => "may be on a device that is absent",
            Self::Unknown => "does not exist",
        }
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the volume {}", self.reason())
    }
}

impl Peer<'_> {
    /// Returns whether `restrictions` admit the host as it comes.
    #[must_use]
    pub fn is_admitted_by(&self, restrictions: &Restrictions) -> bool {
        if restrictions.is_empty() || broken(Sabotage::IgnoreRestrictions) {
            return true;
        }
        // To look it up takes five system calls.
        let interface = if restrictions.interfaces.is_empty() { None } else { (self.interface)() };
        restrictions.admit(&Visitor { host: self.host, address: self.address, interface })
    }

    /// Returns whether the host may open `export` as it comes.
    #[must_use]
    pub fn qualifies<W: World, D: Device>(&self, export: &Export<W, D>) -> bool {
        export.access().is_some_and(|access| self.is_admitted_by(&access.restrictions))
    }
}

impl<W: World, D: Device> Core<W, D> {
    /// The time of day.
    fn time_of_day(&self) -> UnixSeconds {
        UnixSeconds(self.world().unix_time().as_secs())
    }

    /// Opens a volume to a host that may have it, as it comes. Whether the host knows a token is for the front end
    /// to find out, and whether there is a place for its session for [`Core::has_place_for`].
    ///
    /// # Errors
    /// There is no such volume, or the host may not open it.
    pub fn open(&self, uuid: Option<Uuid>, peer: &Peer<'_>) -> Result<Rc<Export<W, D>>, Refused> {
        self.open_if(uuid, |access| peer.is_admitted_by(&access.restrictions))
    }

    /// Opens a volume if `may_open` says so of its access list: for protocols whose clients have no names.
    ///
    /// # Errors
    /// There is no such volume, or the client may not open it.
    pub fn open_if(
        &self,
        uuid: Option<Uuid>,
        may_open: impl FnOnce(&Access) -> bool,
    ) -> Result<Rc<Export<W, D>>, Refused> {
        let found = uuid.and_then(|uuid| self.export(uuid)).filter(|_| !self.is_suspended());
        match found {
            Some(export) if export.access().is_some_and(|access| may_open(&access)) => Ok(export),
            Some(_) => Err(Refused::Restricted),
            None if self.is_suspended() => Err(Refused::Suspended),
            None if self.awaits_volumes() => Err(Refused::Awaited),
            None => Err(Refused::Unknown),
        }
    }

    /// Returns whether `export` is served now. It may have gone since it was opened.
    #[must_use]
    pub fn serves(&self, export: &Rc<Export<W, D>>) -> bool {
        let now = self.export(export.uuid());
        now.is_some_and(|now| Rc::ptr_eq(&now, export)) && !self.is_suspended()
    }

    /// The tokens of `access` that are of use now.
    #[must_use]
    pub fn valid_tokens<'a>(&self, access: &'a Access) -> Vec<&'a Token> {
        if broken(Sabotage::KeepExpiredTokens) {
            return access.tokens.iter().collect();
        }
        access.tokens_at(self.time_of_day()).collect()
    }

    /// Says whether volumes may come that are not here, such as those of a device that is absent (ADMISSION-8).
    pub fn await_volumes(&self, may_come: bool) {
        if may_come {
            self.note_awaiting();
        }
        self.state.awaiting.may_come.set(may_come);
    }

    pub(crate) fn note_awaiting(&self) {
        let awaitings = &self.state.awaiting.beginnings;
        awaitings.set(awaitings.get() + 1);
    }

    /// Returns whether hosts that are refused are to come again. A core that stopped serving by itself says so before it is
    /// told to.
    #[must_use]
    pub fn awaits_volumes(&self) -> bool {
        self.state.awaiting.may_come.get() || self.is_suspended()
    }

    /// This moment, for [`Core::awaited_volumes_since`].
    #[must_use]
    pub fn since_now(&self) -> Since {
        Since { awaited: self.awaits_volumes(), awaitings: self.state.awaiting.beginnings.get() }
    }

    /// Returns whether volumes were awaited at any time from `since` to now: a host that was looked at for so long may lack its
    /// volume for no other reason.
    #[must_use]
    pub fn awaited_volumes_since(&self, since: Since) -> bool {
        since.awaited
            || self.awaits_volumes()
            || self.state.awaiting.beginnings.get() != since.awaitings
    }

    /// Sets the hosts that may open a volume from now on, durably. Hosts that no longer qualify are cut
    /// (ADMISSION-5); those that do stay, unless `cut` ends them, too.
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
        // RESERVING-2.
        let _turn = export.reservations.turn().await;
        let reservations = export.access().map(|access| access.reservations.clone());
        let access = Access { reservations: reservations.unwrap_or_default(), ..access };
        let bytes = access.encode().map_err(|_| VolumeError::Spec)?;
        if broken(Sabotage::AccessBeforeRecord) {
            export.set_access(access.clone());
        }
        export.volume().set_access(&bytes).await?;
        if !broken(Sabotage::KeepOldAccess) {
            export.set_access(access);
        }
        let mutation = if cut { Sabotage::CutNoHost } else { Sabotage::KeepUnqualified };
        if !broken(mutation) {
            self.tell(&export, VolumeEvent::AccessChanged { revoked: cut });
        }
        Ok(status_of(&export))
    }
}
