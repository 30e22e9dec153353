//! Faults, and what operators do.

use std::collections::BTreeSet;
use std::time::Duration;

use cluster::{ClaimRecord, Word};
use uuid::Uuid;

use super::network::{Link, lock};
use super::process::Process;
use super::{Cluster, name_of};

/// Names that volumes are given.
const NAMES: u64 = 6;
/// Time for which hosts are stopped while one takes over: it waits for their leases and fences.
const STOPPED: Duration = Duration::from_secs(22);

impl Cluster {
    /// Something happens, and some of what was broken is mended.
    pub(super) fn turn(&mut self) {
        let machine = self.rng.below(self.machines.len() as u64) as usize;
        self.mend_some(machine);
        if self.rng.one_in(self.fault_every) {
            let machine = if self.rng.one_in(3) { machine } else { self.any_holder(machine) };
            return self.fault(machine);
        }
        match self.rng.below(24) {
            0..3 => self.move_device(),
            3..8 => self.take_over(machine),
            8..11 => self.regrant(machine),
            11 => self.look_at_mark(machine),
            12..16 => self.delete(machine),
            _ => self.create(machine),
        }
    }

    fn fault(&mut self, machine: usize) {
        match self.rng.below(20) {
            0..5 => self.other_link(machine),
            5..8 => self.kill_or_start(machine),
            8..12 => self.pause_or_go_on(machine),
            12 => self.jump(machine),
            13..15 => self.break_watches(machine),
            15 => self.etcd_stops_or_goes_on(),
            16 => self.set_apart(machine),
            _ => self.back_up_or_restore(),
        }
    }

    fn mend_some(&mut self, machine: usize) {
        if self.rng.one_in(8) {
            self.start_if_dead(machine);
        }
        let is_paused = |id: u64| self.processes[&id].is_paused;
        if self.machines[machine].process.is_some_and(is_paused) && self.rng.one_in(14) {
            self.pause_or_go_on(machine);
        }
        let mut hub = lock(&self.hub);
        if hub.links[machine].cut && self.rng.one_in(20) {
            hub.links[machine].cut = false;
        }
        if hub.is_down && self.rng.one_in(6) {
            hub.is_down = false;
        }
    }

    fn other_link(&mut self, machine: usize) {
        let link = match self.rng.below(6) {
            0 => Link::default(),
            3 => Link { slow: true, doubles: 6, ..Link::default() },
            1 => Link { loses: 4, doubles: 4, delays: 6, ..Link::default() },
            2 => Link { doubles: 2, delays: 3, ..Link::default() },
            _ => Link { cut: true, ..Link::default() },
        };
        self.note(format_args!("the link of host {machine}: {link:?}"));
        lock(&self.hub).links[machine] = link;
    }

    fn kill_or_start(&mut self, machine: usize) {
        if self.machines[machine].process.is_none() {
            return self.start_if_dead(machine);
        }
        self.kill(machine);
        self.run.count(|counts| counts.crashes += 1);
        if self.rng.one_in(2) {
            self.machines[machine].boots += 1;
            let mut hub = lock(&self.hub);
            let now = hub.now;
            let clock = &mut hub.clocks[machine];
            (clock.since, clock.showed) = (now, Duration::from_millis(1));
        }
    }

    fn start_if_dead(&mut self, machine: usize) {
        let name = name_of(machine);
        let is_relied_on = self.processes.values().any(|it| it.program.relies_on_down(&name));
        if self.machines[machine].process.is_none() && !is_relied_on {
            self.start(machine);
        }
    }

    fn pause_or_go_on(&mut self, machine: usize) {
        let Some(id) = self.machines[machine].process else { return };
        let process = self.processes.get_mut(&id).expect("it runs");
        process.is_paused = !process.is_paused;
        let hangs = process.is_paused;
        {
            let mut hub = lock(&self.hub);
            hub.seen.get_mut(&id).expect("it runs").hangs = hangs;
            hub.dirty.push(id);
        }
        self.note(format_args!("process {id} hangs: {hangs}"));
    }

    /// The clock of a machine jumps ahead, as by a suspension. Of a host that waits for a fence it does not: that is the one
    /// thing which is asked of clocks.
    fn jump(&mut self, machine: usize) {
        let claims = |id: u64| self.processes[&id].program.is_claiming();
        if self.machines[machine].process.is_some_and(claims) {
            return;
        }
        let ahead = Duration::from_secs(self.rng.between(1, 30));
        lock(&self.hub).clocks[machine].showed += ahead;
        self.note(format_args!("the clock of host {machine} jumps by {ahead:?}"));
    }

    fn break_watches(&mut self, machine: usize) {
        let silently = self.rng.one_in(2);
        lock(&self.hub).break_watches(Some(machine), silently);
        self.note(format_args!("watches of host {machine} end, silently: {silently}"));
    }

    fn etcd_stops_or_goes_on(&mut self) {
        let is_down = {
            let mut hub = lock(&self.hub);
            hub.is_down = !hub.is_down;
            hub.is_down
        };
        self.note(format_args!("etcd is down: {is_down}"));
    }

    fn set_apart(&mut self, machine: usize) {
        let other = self.rng.below(self.machines.len() as u64) as usize;
        let key = (machine.min(other), machine.max(other));
        let mut hub = lock(&self.hub);
        let apart = hub.apart.entry(key).or_default();
        *apart = !*apart;
    }

    fn back_up_or_restore(&mut self) {
        if self.restores_left == 0 {
            return;
        }
        if self.backups.is_empty() || self.rng.one_in(2) {
            let backup = lock(&self.hub).etcd.backup();
            self.backups.push(backup);
            return;
        }
        let which = self.rng.below(self.backups.len() as u64) as usize;
        let silently = self.rng.one_in(4);
        lock(&self.hub).restore(&self.backups[which], silently);
        self.restores_left -= 1;
        self.plant.was_restored.set(true);
        self.note(format_args!("etcd is restored from backup {which}, silently: {silently}"));
    }

    fn any_device(&mut self) -> (Uuid, Vec<usize>) {
        let devices = self.plant.devices.borrow();
        let which = self.rng.below(devices.len() as u64) as usize;
        (devices[which].id, devices[which].reached_from.clone())
    }

    /// Has a device given back, and claimed by another host.
    fn move_device(&mut self) {
        let (device, reached_from) = self.any_device();
        let to = reached_from[self.rng.below(reached_from.len() as u64) as usize];
        let serves = |id: &&u64| self.processes[id].program.serves().contains(&device);
        if let Some(from) = self.processes.keys().find(serves) {
            let program = self.processes[from].program.clone();
            program.spawn(program.clone().give_back(device));
        }
        self.serve_at(device, to, (None, 6));
    }

    fn serve_at(&mut self, device: Uuid, machine: usize, (word, attempts): (Option<Word>, u32)) {
        if let Some(id) = self.machines[machine].process {
            self.note(format_args!("host {machine} is to serve {device}: {word:?}"));
            for other in &mut self.machines {
                other.devices.retain(|known| *known != device);
            }
            self.machines[machine].devices.push(device);
            let program = self.processes[&id].program.clone();
            program.spawn(program.clone().serve(device, word, attempts));
        }
    }

    /// SIM-CLUSTER-2.
    fn true_word(&self, device: Uuid) -> Word {
        let dead = self.machines.iter().enumerate().filter(|(_, it)| it.process.is_none());
        let mut down: BTreeSet<String> = dead.map(|(machine, _)| name_of(machine)).collect();
        if !self.processes.values().any(|it| it.program.may_have(device)) {
            down.insert(Word::UNKNOWN_HOST.to_owned());
        }
        Word { down }
    }

    /// Returns the machine whose process serves some device, or this one if none does.
    fn any_holder(&mut self, machine: usize) -> usize {
        let (device, _) = self.any_device();
        let holder = self.processes.values().find(|it| it.program.serves().contains(&device));
        holder.map_or(machine, |it| it.program.around.machine)
    }

    /// Has a device taken over: mostly one whose host is not connected.
    fn take_over(&mut self, machine: usize) {
        let (device, reached_from) = self.any_device();
        let is_well = |it: &Process| it.program.node.is_connected() && !it.is_paused;
        let of_device = |it: &&Process| it.program.serves().contains(&device);
        if self.processes.values().find(of_device).is_some_and(is_well) && !self.rng.one_in(6) {
            return;
        }
        let well = |other: &usize| {
            let process = self.machines[*other].process.map(|id| &self.processes[&id]);
            process.is_some_and(|it| is_well(it) && !of_device(&it))
        };
        let machine = reached_from.iter().copied().find(well).unwrap_or(machine);
        if reached_from.contains(&machine) {
            let word = self.true_word(device);
            self.serve_at(device, machine, (Some(word), 8));
        }
    }

    /// A host asks for a part of the quota; half of the time all others do so at once, so that divisions meet.
    fn regrant(&mut self, machine: usize) {
        let wish = self.rng.between(0, 600);
        let ask = |id: &u64| {
            let program = self.processes[id].program.clone();
            program.spawn(program.clone().regrant(wish));
        };
        match wish % 2 {
            0 => self.machines[machine].process.iter().for_each(ask),
            _ => self.machines.iter().filter_map(|it| it.process.as_ref()).for_each(ask),
        }
    }

    fn look_at_mark(&mut self, machine: usize) {
        if let Some(id) = self.machines[machine].process.filter(|id| !self.processes[id].is_paused)
        {
            let program = &self.processes[&id].program;
            program.serves().into_iter().for_each(|device| program.look_at_mark(device));
        }
    }

    fn create(&mut self, machine: usize) {
        let Some(id) = self.machines[machine].process else { return };
        let program = self.processes[&id].program.clone();
        for device in program.serves() {
            self.volumes += 1;
            let volume = Uuid::from_u128(0xf000 + u128::from(self.volumes));
            let (name, size) = (format!("v{}", self.rng.below(NAMES)), self.rng.between(1, 40));
            program.spawn(program.clone().create(device, volume, name, size));
        }
    }

    fn delete(&mut self, machine: usize) {
        let Some(id) = self.machines[machine].process else { return };
        let program = self.processes[&id].program.clone();
        for device in program.serves() {
            let held = program.plant.volumes_of(device, program.record.id);
            if let Some(volume) = held.first() {
                program.spawn(program.clone().delete(device, volume.id));
            }
        }
    }

    /// Ends all faults (SIM-CLUSTER-1).
    pub(super) fn mend_all(&mut self) {
        {
            let mut hub = lock(&self.hub);
            hub.is_down = false;
            hub.apart.clear();
            hub.links.fill(Link::default());
        }
        for machine in 0..self.machines.len() {
            self.start_if_dead(machine);
            let paused = |id: u64| self.processes[&id].is_paused;
            if self.machines[machine].process.is_some_and(paused) {
                self.pause_or_go_on(machine);
            }
        }
    }

    /// Returns the machine whose host has claimed a device, as etcd knows.
    fn holder_of(&self, device: Uuid) -> Option<usize> {
        let claim = lock(&self.hub).etcd.get(&format!("/c/devices/{device}")).cloned()?;
        let claim: ClaimRecord = serde_json::from_slice(&claim.value).ok()?;
        self.machines.iter().position(|it| it.id == claim.host)
    }

    /// Has each device served that is not, as an operator does (SIM-CLUSTER-1).
    pub(super) fn mend(&mut self) {
        let now = lock(&self.hub).now;
        if now < self.stopped_until {
            return;
        }
        (0..self.machines.len()).for_each(|machine| self.start_if_dead(machine));
        let devices: Vec<(Uuid, Vec<usize>)> =
            self.plant.devices.borrow().iter().map(|it| (it.id, it.reached_from.clone())).collect();
        for (device, reached_from) in devices {
            let has = |id: &u64| self.processes[id].program.may_have(device);
            if self.processes.keys().any(has) {
                continue;
            }
            let times = self.mends.entry(device).or_default();
            *times += 1;
            let times = *times;
            let machine = reached_from[times as usize % reached_from.len()];
            if let (1, Some(holder)) = (times, self.holder_of(device)) {
                self.serve_at(device, holder, (None, 3));
                continue;
            }
            if times % 2 == 1 {
                // None gets it while others live: it is taken over while they are stopped.
                let others = (0..self.machines.len()).filter(|other| *other != machine);
                others.collect::<Vec<_>>().into_iter().for_each(|other| self.kill(other));
                self.stopped_until = now + STOPPED;
            }
            let word = self.true_word(device);
            self.serve_at(device, machine, (Some(word), if times % 2 == 1 { 20 } else { 2 }));
            if times % 2 == 1 {
                return;
            }
        }
    }
}
