//! The reservations of a volume, as the harness expects them. The rules are written out here once more (NVM Express Base 2.1,
//! clause 8.1.22): those of the product are what is tested.

use std::collections::BTreeMap;

use nvme_wire::IoOpcode;
use nvme_wire::reservation::{
    CPTPL_CLEAR, CPTPL_KEEP, CPTPL_SET, RACQA_ACQUIRE, RACQA_PREEMPT, RACQA_PREEMPT_AND_ABORT,
    RREGA_REGISTER, RREGA_REPLACE, RREGA_UNREGISTER, RRELA_CLEAR, RRELA_RELEASE,
    ReservationCommand,
};
use sim::Rng;

/// Types of reservations, by their codes.
const TYPES: u64 = 6;

/// A reservation command, and the keys in its data.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ask {
    pub opcode: IoOpcode,
    pub command: ReservationCommand,
    pub keys: [u64; 2],
}

/// The refusal of a command.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Refusal {
    /// A reservation conflict.
    Conflict,
    /// A field makes no sense.
    Invalid,
}

/// The state of a volume's reservations.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Reserved {
    /// Keys of registered hosts, by the hosts' numbers.
    pub keys: BTreeMap<usize, u64>,
    /// The type of the reservation and the host that holds it, which is `None` where all registrants do.
    pub held: Option<(u8, Option<usize>)>,
    /// The state outlives the server.
    pub persists: bool,
}

impl Reserved {
    /// Returns whether a host may write, or read.
    pub(crate) fn admits(&self, host: usize, writes: bool) -> bool {
        let Some((kind, holder)) = self.held else { return true };
        let is_registered = self.keys.contains_key(&host);
        match kind {
            // Write exclusive.
            1 | 3 | 5 if !writes => true,
            // Only the holder.
            1 | 2 => holder == Some(host),
            _ => is_registered,
        }
    }

    /// The state that a start finds.
    pub(crate) fn restarted(&self) -> Self {
        if self.persists { self.clone() } else { Self::default() }
    }

    fn is_holder(&self, host: usize) -> bool {
        match self.held {
            Some((_, None)) => self.keys.contains_key(&host),
            Some((_, holder)) => holder == Some(host),
            None => false,
        }
    }

    fn hold(&mut self, host: usize, kind: u8) {
        let is_of_all = kind >= 5;
        self.held = Some((kind, (!is_of_all).then_some(host)));
    }

    /// The reservation goes with its last holder.
    fn end_without_holder(&mut self) {
        self.held = self.held.filter(|(_, holder)| match holder {
            Some(holder) => self.keys.contains_key(holder),
            None => !self.keys.is_empty(),
        });
    }

    /// The state behind a command of a host, or its refusal.
    pub(crate) fn behind(mut self, host: usize, ask: &Ask) -> Result<Self, Refusal> {
        let ReservationCommand { action, rtype, cptpl, .. } = ask.command;
        let [current, other] = ask.keys;
        let own = self.keys.get(&host).copied();
        let registers = ask.opcode == IoOpcode::RESERVATION_REGISTER && action == RREGA_REGISTER;
        if registers && own.is_some_and(|own| own != other) || !registers && own != Some(current) {
            return Err(Refusal::Conflict);
        }
        if ask.opcode == IoOpcode::RESERVATION_REGISTER {
            match action {
                RREGA_UNREGISTER => drop(self.keys.remove(&host)),
                _ => drop(self.keys.insert(host, other)),
            }
            self.end_without_holder();
            match cptpl {
                CPTPL_SET => self.persists = true,
                CPTPL_CLEAR => self.persists = false,
                _ => {}
            }
        } else if ask.opcode == IoOpcode::RESERVATION_RELEASE {
            match (action, self.held) {
                (RRELA_CLEAR, _) => (self.keys, self.held) = (BTreeMap::new(), None),
                (_, Some((kind, _))) if self.is_holder(host) => match kind == rtype {
                    true => self.held = None,
                    false => return Err(Refusal::Invalid),
                },
                _ => {}
            }
        } else if action == RACQA_ACQUIRE {
            match self.held {
                None => self.hold(host, rtype),
                Some((kind, _)) if kind == rtype && self.is_holder(host) => {}
                Some(_) => return Err(Refusal::Conflict),
            }
        } else {
            self.preempt(host, other, rtype)?;
        }
        Ok(self)
    }

    fn preempt(&mut self, host: usize, victim: u64, kind: u8) -> Result<(), Refusal> {
        let takes_over = match self.held {
            Some((_, None)) => victim == 0,
            Some((_, Some(holder))) => self.keys[&holder] == victim,
            None => false,
        };
        let before = self.keys.len();
        match (victim, takes_over) {
            (0, true) => self.keys.retain(|other, _| *other == host),
            (0, false) => return Err(Refusal::Invalid),
            _ => self.keys.retain(|other, key| *key != victim || takes_over && *other == host),
        }
        if takes_over {
            self.hold(host, kind);
        } else if self.keys.len() == before {
            return Err(Refusal::Conflict);
        }
        self.end_without_holder();
        Ok(())
    }

    /// Draws a command of `host`, one of `hosts`: mostly one that makes sense. `new_key` is a key that none has or had.
    pub(crate) fn draw(&self, host: usize, hosts: usize, new_key: u64, rng: &mut Rng) -> Ask {
        let own = self.keys.get(&host).copied();
        let key = if rng.one_in(12) { new_key } else { own.unwrap_or(new_key) };
        let kind = 1 + rng.below(TYPES) as u8;
        let persistence = [CPTPL_KEEP, CPTPL_KEEP, CPTPL_SET, CPTPL_SET, CPTPL_CLEAR];
        let cptpl = persistence[rng.below(5) as usize];
        let ask = |opcode, action, rtype, cptpl, keys| {
            let command = ReservationCommand { action, ignore_key: false, rtype, cptpl };
            Ask { opcode, command, keys }
        };
        let register = |action, keys| ask(IoOpcode::RESERVATION_REGISTER, action, 0, cptpl, keys);
        let acquire = |action, keys| ask(IoOpcode::RESERVATION_ACQUIRE, action, kind, 0, keys);
        if own.is_none() && !rng.one_in(8) {
            return register(RREGA_REGISTER, [0, new_key]);
        }
        let held = self.held.map_or(kind, |(held, _)| if rng.one_in(6) { kind } else { held });
        let release =
            |action, rtype| ask(IoOpcode::RESERVATION_RELEASE, action, rtype, 0, [key, 0]);
        match rng.below(16) {
            0 => register(RREGA_REGISTER, [0, key]),
            1 => register(RREGA_REPLACE, [key, new_key]),
            2 => register(RREGA_UNREGISTER, [key, 0]),
            3..8 => acquire(RACQA_ACQUIRE, [key, 0]),
            8..12 => {
                let victim = (host + 1 + rng.below(hosts.max(2) as u64 - 1) as usize) % hosts;
                let is_of_all = matches!(self.held, Some((_, None)));
                let victim = match is_of_all && rng.one_in(2) {
                    true => 0,
                    false => self.keys.get(&victim).copied().unwrap_or(new_key),
                };
                let aborts = rng.one_in(2);
                let action = if aborts { RACQA_PREEMPT_AND_ABORT } else { RACQA_PREEMPT };
                acquire(action, [key, victim])
            }
            12 => release(RRELA_CLEAR, 0),
            _ => release(RRELA_RELEASE, held),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(keys: &[(usize, u64)], held: Option<(u8, Option<usize>)>) -> Reserved {
        Reserved { keys: keys.iter().copied().collect(), held, persists: false }
    }

    #[test]
    fn each_type_admits_its_hosts() {
        // Holder, registrant, stranger: reading, then writing.
        for (kind, reads, writes) in [
            (1, [true; 3], [true, false, false]),
            (2, [true, false, false], [true, false, false]),
            (3, [true; 3], [true, true, false]),
            (4, [true, true, false], [true, true, false]),
            (5, [true; 3], [true, true, false]),
            (6, [true, true, false], [true, true, false]),
        ] {
            let holder = (kind < 5).then_some(0);
            let state = state(&[(0, 10), (1, 20)], Some((kind, holder)));
            assert_eq!([0, 1, 2].map(|host| state.admits(host, false)), reads, "{kind}");
            assert_eq!([0, 1, 2].map(|host| state.admits(host, true)), writes, "{kind}");
        }
    }

    #[test]
    fn a_preemption_takes_registrations_and_the_reservation_of_their_holder() {
        let preempt = |state: Reserved, victim| {
            let command =
                ReservationCommand { action: RACQA_PREEMPT, ignore_key: false, rtype: 2, cptpl: 0 };
            let opcode = IoOpcode::RESERVATION_ACQUIRE;
            state.behind(0, &Ask { opcode, command, keys: [10, victim] })
        };
        let all = [(0, 10), (1, 20), (2, 30)];
        let held = state(&all, Some((1, Some(1))));
        let taken = state(&[(0, 10), (2, 30)], Some((2, Some(0))));
        assert_eq!(preempt(held.clone(), 20), Ok(taken));
        let left = state(&[(0, 10), (1, 20)], Some((1, Some(1))));
        assert_eq!(preempt(held.clone(), 30), Ok(left));
        assert_eq!(preempt(held.clone(), 99), Err(Refusal::Conflict));
        assert_eq!(preempt(held, 0), Err(Refusal::Invalid));
        let of_all = state(&all, Some((5, None)));
        assert_eq!(preempt(of_all, 0), Ok(state(&[(0, 10)], Some((2, Some(0))))));
    }
}
