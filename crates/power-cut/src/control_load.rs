//! Workers that create, resize, restrict, rotate and delete volumes, and write behind the regions of
//! those that change blocks. Each volume has one such worker.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use farflash_client::{
    ChangeAuth, ChangeRestrictions, Error, NewVolume, Request, ResizeOptions, Restrictions, Slo,
};

use crate::boot::{Boot, HOST, Opened, Outcome, STRANGER, Shared, admits, filled, lock, options};
use crate::contents::BLOCK;
use crate::data_load::TOGETHER;
use crate::model::{Attributes, Change, Volume, Write};
use crate::random::Random;
use crate::server::target;

/// Blocks of a volume that are the data workers', in all volumes that have such workers.
pub(crate) const REGIONS: u64 = 512;
/// The most blocks of a volume.
pub(crate) const BLOCKS_MAX: u64 = 1024;
/// The most volumes of a life.
const VOLUMES_MAX: usize = 8;
/// Volumes with these numbers have data workers.
pub(crate) const WITH_WORKERS: u64 = 3;
/// The grace of a token, beyond the end of the life.
const GRACE_SECONDS: u32 = 24 * 3600;

pub(crate) struct Controller<'a> {
    pub(crate) boot: &'a Boot,
    /// Index of the controller, of `of` controllers.
    pub(crate) index: u64,
    pub(crate) of: u64,
    pub(crate) random: Random,
}

impl Controller<'_> {
    pub(crate) fn run(mut self) {
        while !self.boot.is_over() && self.step() {}
    }

    /// Makes a change; whether there can be another.
    fn step(&mut self) -> bool {
        let mine: Vec<Shared> = {
            let model = lock(&self.boot.model);
            let is_mine = |(number, _): &(&u64, &Shared)| *number % self.of == self.index;
            model.volumes.iter().filter(is_mine).map(|(_, volume)| volume.clone()).collect()
        };
        let has_room = lock(&self.boot.model).volumes.len() < VOLUMES_MAX;
        if mine.is_empty() || (has_room && self.random.chance(15)) {
            return !has_room || self.create();
        }
        let shared = mine[self.random.below(mine.len() as u64) as usize].clone();
        self.boot.counts.control.fetch_add(1, Ordering::Relaxed);
        let has_workers = lock(&shared).number < WITH_WORKERS;
        match self.random.below(100) {
            0..20 => self.resize(&shared),
            20..40 => self.restrict(&shared),
            40..50 => self.promise(&shared),
            50..70 => self.rotate(&shared),
            70..80 if !has_workers => self.delete(&shared),
            _ => self.write(&shared),
        }
    }

    pub(crate) fn create(&mut self) -> bool {
        let number = {
            let mut model = lock(&self.boot.model);
            // The next that is this controller's.
            let number = (model.next_volume..).find(|number| number % self.of == self.index);
            let number = number.expect("numbers do not end");
            model.next_volume = model.next_volume.max(number + 1);
            number
        };
        let has_workers = number < WITH_WORKERS;
        let least = if has_workers { REGIONS } else { 1 };
        let attributes = Attributes {
            blocks: self.random.between(least, BLOCKS_MAX + 1),
            slo: Slo::Share(1 + self.random.below(500) as u32),
            restrictions: self.restrictions(has_workers),
        };
        let metadata = self.random.pick(&[0, 0, 0, 8, 16, 64]);
        let volume = Volume::new(number, metadata, attributes.clone());
        let new = NewVolume {
            metadata_size: metadata,
            slo: Some(attributes.slo),
            restrictions: Some(attributes.restrictions),
            ..NewVolume::new(&volume.name, attributes.blocks * BLOCK as u64)
        };
        let shared: Shared = Arc::new(Mutex::new(volume));
        lock(&self.boot.model).volumes.insert(number, shared.clone());
        match self.boot.outcome("the creation of a volume", self.boot.cluster.create(&new)) {
            Outcome::Gone => false,
            Outcome::NoSpace => {
                lock(&self.boot.model).volumes.remove(&number);
                true
            }
            Outcome::Done(created) => {
                let mut volume = lock(&shared);
                volume.change = None;
                volume.token = Some(created.tokens.token);
                volume.target = target(created.volume.address, &created.volume.nqn);
                true
            }
        }
    }

    fn restrictions(&mut self, is_open: bool) -> Restrictions {
        let list = |items: &[&str]| items.iter().map(|item| (*item).to_owned()).collect();
        let none = Restrictions::default();
        let open = [
            none.clone(),
            Restrictions { hosts: list(&[HOST]), ..none.clone() },
            Restrictions { networks: list(&["127.0.0.0/8"]), ..none.clone() },
            Restrictions {
                hosts: list(&[STRANGER, HOST]),
                networks: list(&["127.0.0.0/8"]),
                ..none.clone()
            },
        ];
        let closed = [
            Restrictions { hosts: list(&[STRANGER]), ..none.clone() },
            Restrictions { networks: list(&["192.0.2.0/24"]), ..none },
        ];
        let from = if is_open || self.random.chance(70) { &open[..] } else { &closed[..] };
        from[self.random.below(from.len() as u64) as usize].clone()
    }

    fn resize(&mut self, shared: &Shared) -> bool {
        let (least, before) = {
            let volume = lock(shared);
            let least = if volume.number < WITH_WORKERS { REGIONS } else { 1 };
            (least, volume.attributes.clone())
        };
        let attributes =
            Attributes { blocks: self.random.between(least, BLOCKS_MAX + 1), ..before };
        let bytes = attributes.blocks * BLOCK as u64;
        let options = ResizeOptions { lose_data: true, ..ResizeOptions::default() };
        set(self.boot, shared, attributes, |name| {
            self.boot.cluster.resize_with(name, bytes, &options)
        })
    }

    fn restrict(&mut self, shared: &Shared) -> bool {
        let has_workers = lock(shared).number < WITH_WORKERS;
        let restrictions = self.restrictions(has_workers);
        restrict(self.boot, shared, restrictions)
    }

    fn promise(&mut self, shared: &Shared) -> bool {
        let slo = Slo::Share(1 + self.random.below(500) as u32);
        let attributes = Attributes { slo, ..lock(shared).attributes.clone() };
        set(self.boot, shared, attributes, |name| self.boot.cluster.set_slo(name, slo))
    }

    fn rotate(&mut self, shared: &Shared) -> bool {
        let grace = self.random.chance(40);
        rotate(self.boot, shared, grace)
    }

    fn delete(&mut self, shared: &Shared) -> bool {
        let (number, name) = {
            let mut volume = lock(shared);
            volume.change = Some(Change::Delete);
            (volume.number, volume.name.clone())
        };
        match self
            .boot
            .outcome("the deletion of a volume", self.boot.cluster.delete_with_data(&name))
        {
            Outcome::Gone => false,
            Outcome::NoSpace => {
                lock(shared).change = None;
                true
            }
            Outcome::Done(()) => {
                let volume = lock(shared);
                let mut model = lock(&self.boot.model);
                model.volumes.remove(&number);
                let token = volume.token.clone();
                model.deleted.extend(token.map(|token| (volume.target.clone(), token)));
                true
            }
        }
    }

    /// Opens a volume by its token, and writes behind the regions of data workers.
    fn write(&mut self, shared: &Shared) -> bool {
        let (least, blocks, target, token) = {
            let volume = lock(shared);
            let least = if volume.number < WITH_WORKERS { REGIONS } else { 0 };
            let token = volume.token.clone().filter(|_| admits(&volume.attributes.restrictions));
            (least, volume.attributes.blocks, volume.target.clone(), token)
        };
        let Some(token) = token.filter(|_| least < blocks) else { return true };
        let opened = farflash_client::open(&target, &options(&token, HOST));
        let opened = self.boot.outcome("the opening of a volume by its token", opened);
        let Outcome::Done(volume) = opened else { return false };
        let opened = Opened { shared: shared.clone(), volume };
        for _ in 0..1 + self.random.below(4) {
            let count = 1 + self.random.below((blocks - least).min(64));
            let first = least + self.random.below(blocks - least - count + 1);
            let stamp = self.boot.next_stamp();
            let stamps = vec![stamp; count as usize];
            let request = {
                let mut volume = lock(shared);
                let blocks = filled(&volume, first, &stamps);
                volume.begin(stamp, Write { first, stamps, together: TOGETHER });
                let offset = first * BLOCK as u64;
                match volume.metadata {
                    0 => Request::Write { offset, data: blocks.data },
                    _ => Request::WriteEx { offset, blocks },
                }
            };
            let written = opened.volume.start(request).wait();
            match self.boot.outcome("a write", written) {
                Outcome::Gone => return false,
                Outcome::NoSpace => lock(shared).end(stamp, false),
                Outcome::Done(_) => lock(shared).end(stamp, true),
            }
        }
        true
    }
}

/// Makes a change of what the API says of a volume; whether there can be another request.
fn set<T>(
    boot: &Boot,
    shared: &Shared,
    attributes: Attributes,
    ask: impl FnOnce(&str) -> Result<T, Error>,
) -> bool {
    let name = {
        let mut volume = lock(shared);
        volume.change = Some(Change::Set(attributes.clone()));
        volume.name.clone()
    };
    match boot.outcome("a change of a volume", ask(&name)) {
        Outcome::Gone => return false,
        Outcome::NoSpace => lock(shared).change = None,
        Outcome::Done(_) => lock(shared).take(attributes),
    }
    true
}

/// Changes which hosts may open a volume; returns whether there can be another request.
pub(crate) fn restrict(boot: &Boot, shared: &Shared, restrictions: Restrictions) -> bool {
    let request = ChangeRestrictions {
        hosts: Some(restrictions.hosts.clone()),
        networks: Some(restrictions.networks.clone()),
        interfaces: None,
        nbd: None,
    };
    let attributes = Attributes { restrictions, ..lock(shared).attributes.clone() };
    set(boot, shared, attributes, |name| boot.cluster.restrict(name, &request))
}

/// Makes new tokens of a volume; whether there can be another request.
pub(crate) fn rotate(boot: &Boot, shared: &Shared, grace: bool) -> bool {
    let name = {
        let mut volume = lock(shared);
        volume.change = Some(Change::Rotate { grace });
        volume.name.clone()
    };
    let change = ChangeAuth { cut: false, grace_seconds: grace.then_some(GRACE_SECONDS) };
    match boot.outcome("new tokens", boot.cluster.change_auth(&name, &change)) {
        Outcome::Gone => return false,
        Outcome::NoSpace => lock(shared).change = None,
        Outcome::Done(tokens) => {
            let mut volume = lock(shared);
            volume.change = None;
            let before = volume.token.replace(tokens.token);
            volume.replaced = before.map(|token| (token, grace));
        }
    }
    true
}
