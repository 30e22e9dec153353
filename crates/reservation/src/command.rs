//! Commands of hosts, and what they do to the state.

use alloc::vec::Vec;

use crate::host::Host;
use crate::kind::Kind;
use crate::{Held, Key, Reservations};

/// A command of a host. `current` is the key under which the host says it is registered.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Command {
    /// Register the host, which may be registered under that key already.
    Register {
        /// Its key.
        key: Key,
        /// The state outlives a restart from now on, or does not, if that changes.
        persistence: Option<bool>,
    },
    /// Give a registered host another key.
    Replace {
        /// Its key so far; `None` if that is not checked.
        current: Option<Key>,
        /// Its new key.
        key: Key,
        /// The state outlives a restart from now on, or does not, if that changes.
        persistence: Option<bool>,
    },
    /// End the registration of the host.
    Unregister {
        /// Its key; `None` if that is not checked.
        current: Option<Key>,
        /// The state outlives a restart from now on, or does not, if that changes.
        persistence: Option<bool>,
    },
    /// Give the host this key, whether or not it has one: zero ends its registration, and is its key before that. This is how
    /// SCSI hosts register.
    Set {
        /// Its key so far; `None` if that is not checked.
        current: Option<Key>,
        /// Its new key.
        key: Key,
        /// The state outlives a restart from now on.
        persistence: bool,
    },
    /// Reserve the volume.
    Acquire {
        /// The host's key.
        current: Key,
        /// The type of the reservation.
        kind: Kind,
    },
    /// End the registrations of `victim`, and take the reservation over if one of them holds it.
    Preempt {
        /// The host's key.
        current: Key,
        /// The key of other hosts; zero for all of them, where all hold the reservation.
        victim: Key,
        /// The type of the reservation, if it is taken over.
        kind: Kind,
        /// Commands of the hosts that lose their registrations are aborted.
        aborts: bool,
    },
    /// Register another host, and hand the reservation over to it.
    Move {
        /// The host's key.
        current: Key,
        /// The key of the other host from now on.
        key: Key,
        /// The other host.
        to: Host,
        /// The registration of the host ends.
        unregisters: bool,
        /// The state outlives a restart from now on.
        persistence: bool,
    },
    /// End the reservation, if the host holds it.
    Release {
        /// The host's key.
        current: Key,
        /// The type of the reservation.
        kind: Kind,
    },
    /// End the reservation and all registrations.
    Clear {
        /// The host's key.
        current: Key,
    },
    /// Change only whether the state outlives a restart.
    Persist(bool),
    /// Exclude all other hosts (RESERVATION-6).
    Lock,
    /// End that, if it was this host.
    Unlock,
}

/// Why a command was not carried out.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Refused {
    /// The host is not registered, has another key, or is excluded.
    #[error("reservation conflict")]
    Conflict,
    /// A key is zero where that has no meaning.
    #[error("the key is zero")]
    ZeroKey,
    /// The reservation that the host holds is of another type.
    #[error("the reservation is of another type")]
    OtherKind,
    /// A host cannot hand the reservation over to itself.
    #[error("the reservation would stay with its holder")]
    SameHost,
    /// There is no room for another registration.
    #[error("no room for another registration")]
    Full,
}

/// The effect of a command on another host, which is to be told of it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum NoticeKind {
    /// Its registration was preempted.
    RegistrationPreempted,
    /// A reservation that did not exclude it was released.
    ReservationReleased,
    /// Its registration ended as all were cleared.
    ReservationPreempted,
}

/// An effect that one host is to be told of.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Notice {
    /// The host.
    pub host: Host,
    /// The effect on it.
    pub kind: NoticeKind,
}

/// The effects of a command.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Change {
    /// The effects that other hosts are to be told of.
    pub notices: Vec<Notice>,
    /// Hosts whose commands are to be aborted.
    pub aborted: Vec<Host>,
}

impl Change {
    fn tell<'a>(&mut self, hosts: impl IntoIterator<Item = &'a Host>, kind: NoticeKind) {
        self.notices.extend(hosts.into_iter().map(|host| Notice { host: host.clone(), kind }));
    }

    fn abort_preempted(&mut self) {
        let preempted =
            self.notices.iter().filter(|notice| notice.kind == NoticeKind::RegistrationPreempted);
        self.aborted = preempted.map(|notice| notice.host.clone()).collect();
    }
}

impl Reservations {
    /// Carries out a command of `host`.
    ///
    /// # Errors
    /// The command is refused; nothing has changed (RESERVATION-2).
    pub fn apply(&mut self, host: &Host, command: &Command) -> Result<Change, Refused> {
        let mut next = self.clone();
        let change = next.try_apply(host, command)?;
        if !next.fits() {
            return Err(Refused::Full);
        }
        *self = next;
        Ok(change)
    }

    fn try_apply(&mut self, host: &Host, command: &Command) -> Result<Change, Refused> {
        let is_about_lock = matches!(command, Command::Lock | Command::Unlock);
        if self.locked_by.is_some() && !is_about_lock {
            return Err(Refused::Conflict);
        }
        match *command {
            Command::Register { key, persistence } => {
                let is_other = self.key_of(host).is_some_and(|registered| registered != key);
                if is_other {
                    return Err(Refused::Conflict);
                }
                self.register(host, key, persistence)
            }
            Command::Replace { current, key, persistence } => {
                self.check_registered(host, current)?;
                self.register(host, key, persistence)
            }
            Command::Unregister { current, persistence } => {
                self.check_registered(host, current)?;
                Ok(self.unregister(host, persistence))
            }
            Command::Set { current, key, persistence } => self.set(host, current, key, persistence),
            Command::Acquire { current, kind } => self.acquire(host, current, kind),
            Command::Preempt { current, victim, kind, aborts } => {
                self.check_registered(host, Some(current))?;
                let mut change = self.preempt(host, victim, kind)?;
                if aborts {
                    change.abort_preempted();
                }
                self.count();
                Ok(change)
            }
            Command::Move { current, key, ref to, unregisters, persistence } => {
                self.check_registered(host, Some(current))?;
                self.hand_over(host, key, to)?;
                if unregisters {
                    self.registrants.remove(host);
                }
                self.is_persistent = persistence;
                self.count();
                Ok(Change::default())
            }
            Command::Release { current, kind } => self.release(host, current, kind),
            Command::Clear { current } => self.clear(host, current),
            Command::Lock => {
                let is_anothers = self.locked_by.as_ref().is_some_and(|other| other != host);
                if is_anothers || !self.registrants.is_empty() {
                    return Err(Refused::Conflict);
                }
                self.locked_by = Some(host.clone());
                Ok(Change::default())
            }
            Command::Unlock => {
                self.unlock(host);
                Ok(Change::default())
            }
            Command::Persist(is_persistent) => {
                self.is_persistent = is_persistent;
                Ok(Change::default())
            }
        }
    }

    fn check_registered(&self, host: &Host, current: Option<Key>) -> Result<(), Refused> {
        let registered = self.key_of(host).ok_or(Refused::Conflict)?;
        match current {
            Some(current) if current != registered => Err(Refused::Conflict),
            _ => Ok(()),
        }
    }

    /// RESERVATION-3.
    fn count(&mut self) {
        self.generation = self.generation.wrapping_add(1);
    }

    fn others<'a>(&'a self, host: &'a Host) -> impl Iterator<Item = &'a Host> {
        self.registrants.keys().filter(move |other| *other != host)
    }

    fn register(
        &mut self,
        host: &Host,
        key: Key,
        persistence: Option<bool>,
    ) -> Result<Change, Refused> {
        if key == 0 {
            return Err(Refused::ZeroKey);
        }
        self.registrants.insert(host.clone(), key);
        self.is_persistent = persistence.unwrap_or(self.is_persistent);
        self.count();
        Ok(Change::default())
    }

    fn unregister(&mut self, host: &Host, persistence: Option<bool>) -> Change {
        self.registrants.remove(host);
        self.is_persistent = persistence.unwrap_or(self.is_persistent);
        self.count();
        let mut change = Change::default();
        if let Some(kind) = self.end_if_without_holder()
            && kind.admits_registrants()
        {
            change.tell(self.registrants.keys(), NoticeKind::ReservationReleased);
        }
        change
    }

    fn set(
        &mut self,
        host: &Host,
        current: Option<Key>,
        key: Key,
        persistence: bool,
    ) -> Result<Change, Refused> {
        let registered = self.key_of(host);
        if current.is_some_and(|current| current != registered.unwrap_or(0)) {
            return Err(Refused::Conflict);
        }
        match (registered, key) {
            (_, 1..) => self.register(host, key, Some(persistence)),
            (Some(_), 0) => Ok(self.unregister(host, Some(persistence))),
            // Nothing was registered, and nothing is to be.
            (None, 0) => Ok(Change::default()),
        }
    }

    /// RESERVATION-1: ends the reservation if its holder is no longer registered; returns its type then.
    fn end_if_without_holder(&mut self) -> Option<Kind> {
        let held = self.held.as_ref()?;
        let has_holder = match &held.holder {
            Some(holder) => self.registrants.contains_key(holder),
            None => !self.registrants.is_empty(),
        };
        if has_holder { None } else { self.held.take().map(|held| held.kind) }
    }

    fn acquire(&mut self, host: &Host, current: Key, kind: Kind) -> Result<Change, Refused> {
        self.check_registered(host, Some(current))?;
        match &self.held {
            None => self.hold(host, kind),
            Some(held) if held.kind == kind && self.is_holder(host) => {}
            Some(_) => return Err(Refused::Conflict),
        }
        Ok(Change::default())
    }

    fn hold(&mut self, host: &Host, kind: Kind) {
        let holder = (!kind.is_held_by_all()).then(|| host.clone());
        self.held = Some(Held { kind, holder });
    }

    fn preempt(&mut self, host: &Host, victim: Key, kind: Kind) -> Result<Change, Refused> {
        let takes_over = match &self.held {
            None => false,
            Some(held) => match &held.holder {
                None => victim == 0,
                Some(holder) => self.key_of(holder) == Some(victim),
            },
        };
        if victim == 0 && !takes_over {
            return Err(Refused::ZeroKey);
        }
        let is_victim = |key: Key| victim == 0 || key == victim;
        let victims: Vec<Host> = self
            .registrants
            .iter()
            .filter(|(other, key)| is_victim(**key) && !(takes_over && *other == host))
            .map(|(other, _)| other.clone())
            .collect();
        if victims.is_empty() && !takes_over {
            return Err(Refused::Conflict);
        }
        self.registrants.retain(|other, _| !victims.contains(other));
        let mut change = Change::default();
        let others = victims.iter().filter(|victim| *victim != host);
        change.tell(others, NoticeKind::RegistrationPreempted);
        let before = self.kind();
        if takes_over {
            self.hold(host, kind);
        } else {
            self.end_if_without_holder();
        }
        if self.kind() != before {
            change.tell(self.others(host), NoticeKind::ReservationReleased);
        }
        Ok(change)
    }

    /// Registers `to`, and makes it the holder in the place of `host`, which is to be the only one.
    fn hand_over(&mut self, host: &Host, key: Key, to: &Host) -> Result<(), Refused> {
        let held = self.held.as_mut().filter(|held| held.holder.as_ref() == Some(host));
        let held = held.ok_or(Refused::Conflict)?;
        match (key, to == host) {
            (0, _) => Err(Refused::ZeroKey),
            (_, true) => Err(Refused::SameHost),
            _ => {
                held.holder = Some(to.clone());
                self.registrants.insert(to.clone(), key);
                Ok(())
            }
        }
    }

    fn release(&mut self, host: &Host, current: Key, kind: Kind) -> Result<Change, Refused> {
        self.check_registered(host, Some(current))?;
        let mut change = Change::default();
        if !self.is_holder(host) {
            return Ok(change);
        }
        if self.kind() != Some(kind) {
            return Err(Refused::OtherKind);
        }
        self.held = None;
        if kind.admits_registrants() {
            change.tell(self.others(host), NoticeKind::ReservationReleased);
        }
        Ok(change)
    }

    fn clear(&mut self, host: &Host, current: Key) -> Result<Change, Refused> {
        self.check_registered(host, Some(current))?;
        let mut change = Change::default();
        change.tell(self.others(host), NoticeKind::ReservationPreempted);
        self.held = None;
        self.registrants.clear();
        self.count();
        Ok(change)
    }
}
