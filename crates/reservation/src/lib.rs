//! Reservations of a volume: hosts that share it register, and one of them, or all, exclude the rest.
//!
//! The rules are those of NVM Express (Base 2.1, clause 8.1.22) and of SCSI (SPC-4, clause 5.13), which are the same but for
//! names: a volume has one [`Reservations`], whatever protocols its hosts speak.
//!
//! - RESERVATION-1: the holder of a reservation is registered. A reservation of all registrants ends with the last of them.
//! - RESERVATION-2: a refused command changes nothing.
//! - RESERVATION-3: the generation grows, modulo 2^32, with every command that may have changed registrations, and with no
//!   other.
//! - RESERVATION-4: the state is bounded: it always fits into [`RECORD_BYTES_MAX`] bytes.
//! - RESERVATION-5: reservations that are not persistent have no record, and so end when the server restarts.
//!
//! - RESERVATION-6: a lock (RESERVE of SPC-2) excludes all other hosts from everything, and goes with the connection of its
//!   host. No host locks a volume that has registrants, and none registers while it is locked.
//!
//! Absent from this crate: I/O, protocols' formats, connections. A host is what its protocol calls the same host over several
//! connections.
#![no_std]

extern crate alloc;

mod command;
mod host;
mod kind;
mod record;

use alloc::collections::BTreeMap;

pub use command::{Change, Command, Notice, NoticeKind, Refused};
pub use host::{Host, ISCSI_NAME_BYTES_MAX};
pub use kind::{Access, Kind};
pub use record::{RECORD_BYTES_MAX, RecordError};

/// A key that a host registers. Zero stands for no registration.
pub type Key = u64;

/// The reservation of a volume.
#[derive(Clone, Debug, Eq, PartialEq)]
struct Held {
    kind: Kind,
    /// The holder; `None` if all registrants are.
    holder: Option<Host>,
}

/// The registrations of a volume, and its reservation if there is one.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Reservations {
    registrants: BTreeMap<Host, Key>,
    held: Option<Held>,
    generation: u32,
    is_persistent: bool,
    /// The host that has locked the volume (RESERVATION-6).
    locked_by: Option<Host>,
}

/// A registered host.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Registrant<'a> {
    /// The host.
    pub host: &'a Host,
    /// Its key.
    pub key: Key,
    /// It holds the reservation, alone or with all other registrants.
    pub is_holder: bool,
}

impl Reservations {
    /// Returns all registered hosts, in an order that does not depend on when they registered.
    pub fn registrants(&self) -> impl ExactSizeIterator<Item = Registrant<'_>> {
        let is_holder = |host: &Host| self.is_holder(host);
        self.registrants.iter().map(move |(host, key)| Registrant {
            host,
            key: *key,
            is_holder: is_holder(host),
        })
    }

    /// Returns the type of the reservation, if there is one.
    #[must_use]
    pub fn kind(&self) -> Option<Kind> {
        self.held.as_ref().map(|held| held.kind)
    }

    /// Returns the key of the holder; zero if all registrants hold the reservation, or there is none.
    #[must_use]
    pub fn holder_key(&self) -> Key {
        let holder = self.held.as_ref().and_then(|held| held.holder.as_ref());
        holder.and_then(|holder| self.key_of(holder)).unwrap_or(0)
    }

    /// Returns how often registrations may have changed, modulo 2^32 (RESERVATION-3).
    #[must_use]
    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// Returns whether the state outlives a restart of the server.
    #[must_use]
    pub fn is_persistent(&self) -> bool {
        self.is_persistent
    }

    /// Returns the key of a registered host.
    #[must_use]
    pub fn key_of(&self, host: &Host) -> Option<Key> {
        self.registrants.get(host).copied()
    }

    /// Returns whether `host` holds the reservation, alone or with all other registrants.
    #[must_use]
    pub fn is_holder(&self, host: &Host) -> bool {
        self.held.as_ref().is_some_and(|held| match &held.holder {
            Some(holder) => holder == host,
            None => self.registrants.contains_key(host),
        })
    }

    /// Returns whether any host may be excluded.
    #[must_use]
    pub fn may_conflict(&self) -> bool {
        self.held.is_some() || self.locked_by.is_some()
    }

    /// Ends the lock, if `host` has it (RESERVATION-6). Returns whether it had.
    pub fn unlock(&mut self, host: &Host) -> bool {
        let is_its = self.locked_by.as_ref() == Some(host);
        self.locked_by.take_if(|_| is_its).is_some()
    }

    /// Ends the lock, whichever host has it.
    pub fn unlock_all(&mut self) {
        self.locked_by = None;
    }

    /// Returns whether a command conflicts with the reservation. A host without a name is none that can register.
    #[must_use]
    pub fn conflicts(&self, host: Option<&Host>, access: Access) -> bool {
        if self.locked_by.is_some() {
            return self.locked_by.as_ref() != host;
        }
        if access == Access::Other {
            return false;
        }
        let Some(held) = &self.held else { return false };
        if access == Access::Read && held.kind.allows_reads() {
            return false;
        }
        let may = |host: &Host| {
            self.is_holder(host)
                || held.kind.admits_registrants() && self.registrants.contains_key(host)
        };
        !host.is_some_and(may)
    }
}

#[cfg(test)]
mod tests;
