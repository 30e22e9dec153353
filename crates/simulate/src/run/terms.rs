//! The terms of volumes: promises, access and allotments, and what of them may be found.

use std::cell::RefCell;

use access::Access;
use units::{Lba, LbaRange, MetadataSize, SectorSize, Slo};

use super::Run;
use crate::content::Tag;
use crate::history::{Fate, Moment};
use crate::model::VolumeModel;
use crate::register::Register;
use crate::target::Failure;

/// Owners of volumes.
pub(crate) const TENANTS: [&str; 2] = ["north", "south"];

/// The bound of a tenant's volumes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Allotted {
    /// Blocks that they may hold.
    pub limit: u64,
    /// The same, or what they held when that was said.
    pub held_max: u64,
}

/// The terms of a volume, as a server has them.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Terms {
    /// Its name.
    pub name: String,
    /// Its size in blocks of 4096 bytes.
    pub blocks: u64,
    /// Metadata of each of its blocks.
    pub metadata: MetadataSize,
    /// Its logical blocks.
    pub sector: SectorSize,
    /// Its service level.
    pub slo: Slo,
    /// Its access; `None` if that cannot be read.
    pub access: Option<Access>,
}

impl Run {
    /// Notes that a change of access is issued.
    #[must_use]
    pub(crate) fn begin_access(&self, volume: &VolumeModel, access: &Access) -> Tag {
        let tag = self.tag();
        let now = self.begin_terms(volume, tag, format_args!("access {access:?}"));
        volume.access.borrow_mut().begin(tag, access.clone(), now);
        tag
    }

    /// Notes what came of a change of access.
    pub(crate) fn end_access(&self, volume: &VolumeModel, tag: Tag, outcome: Result<(), Failure>) {
        self.end_terms(volume, &volume.access, tag, outcome);
    }

    /// Notes that another promise is issued: no two are equal. Returns the promise.
    #[must_use]
    pub(crate) fn begin_slo(&self, volume: &VolumeModel) -> (Tag, Slo) {
        let tag = self.tag();
        let slo = match tag % 3 {
            0 => Slo::Share { weight: 1 + tag as u32 },
            _ => Slo::Rate { reads_per_second: 3 * tag, writes_per_second: 3 * tag + 1 },
        };
        let now = self.begin_terms(volume, tag, format_args!("{slo:?}"));
        volume.slo.borrow_mut().begin(tag, slo, now);
        (tag, slo)
    }

    /// Notes what came of it.
    pub(crate) fn end_slo(&self, volume: &VolumeModel, tag: Tag, outcome: Result<(), Failure>) {
        self.end_terms(volume, &volume.slo, tag, outcome);
    }

    /// Notes that a reservation command is issued.
    #[must_use]
    pub(crate) fn begin_reserve(&self, volume: &VolumeModel) -> (Tag, Moment) {
        let tag = self.tag();
        (tag, self.begin_terms(volume, tag, format_args!("reservations")))
    }

    fn begin_terms(&self, volume: &VolumeModel, tag: Tag, what: std::fmt::Arguments<'_>) -> Moment {
        self.count(|counts| counts.requests += 1);
        let now = self.now();
        self.note(now, format_args!("terms {tag}: volume {}, {what}", volume.id));
        now
    }

    fn end_terms<T: Clone + PartialEq>(
        &self,
        volume: &VolumeModel,
        register: &RefCell<Register<T>>,
        tag: Tag,
        outcome: Result<(), Failure>,
    ) {
        let now = self.now();
        self.note(now, format_args!("{tag}: {outcome:?}"));
        if let Err(failure) = outcome {
            self.check_failure(volume, LbaRange::new(Lba(0), 0), (now, now), failure);
        }
        let fate = outcome.map_or_else(Failure::fate, |()| Fate::Done);
        register.borrow_mut().end(tag, fate, now);
    }

    /// Checks what a server says of a volume now: of each of its terms the last that was acknowledged, or a later one
    /// that is open, as a whole.
    pub(crate) fn check_terms(&self, volume: &VolumeModel, found: &Terms) {
        let (now, id) = (self.now(), volume.id);
        let formats = [(found.metadata, found.sector), (volume.metadata, volume.sector)];
        if found.name != volume.name() || formats[0] != formats[1] {
            self.fail(format!("volume {id} is called {} and has {:?}", found.name, formats[0]));
        }
        let blocks = found.blocks * volume.sector.per_block();
        let sizes = volume.sizes(now, now);
        if !sizes.contains(&blocks) {
            self.fail(format!("volume {id} has {blocks} blocks, and may have {sizes:?}"));
        }
        volume.sizes.borrow_mut().see(&blocks, now);
        let slo = volume.slo.borrow();
        if !slo.possible(now, now).any(|slo| *slo == found.slo) {
            let possible: Vec<&Slo> = slo.possible(now, now).collect();
            self.fail(format!("volume {id} is promised {:?}, not one of {possible:?}", found.slo));
        }
        drop(slo);
        volume.slo.borrow_mut().see(&found.slo, now);
        let access = volume.access.borrow();
        if !access.possible(now, now).any(|access| Some(access) == found.access.as_ref()) {
            let which = found.access.as_ref().map(|access| volume.describe(access));
            let possible: Vec<String> =
                access.possible(now, now).map(|access| volume.describe(access)).collect();
            self.fail(format!("volume {id} is open to {which:?}, not to one of {possible:?}"));
        }
        drop(access);
        if let Some(access) = &found.access {
            volume.access.borrow_mut().see(access, now);
        }
    }

    /// The bound of a tenant, if there is one.
    #[must_use]
    pub(crate) fn allotted(&self, tenant: usize) -> Option<Allotted> {
        self.shared.allotted.borrow()[tenant]
    }

    /// Notes the bound of a tenant.
    pub(crate) fn allot(&self, tenant: usize, allotted: Option<Allotted>) {
        self.shared.allotted.borrow_mut()[tenant] = allotted;
        if allotted.is_some() {
            self.shared.was_bounded.set(true);
        }
    }

    /// Returns true if the space of the volume's owner is limited, or may have been when a request began.
    pub(super) fn is_bounded(&self, volume: &VolumeModel) -> bool {
        let access = volume.access.borrow();
        let owner = access.latest().owner.as_deref();
        self.shared.was_bounded.get() && TENANTS.iter().any(|tenant| Some(*tenant) == owner)
    }
}

impl VolumeModel {
    /// The access as text, with the number of each secret in place of it.
    fn describe(&self, access: &Access) -> String {
        let secrets = self.secrets.borrow();
        let number = |secret| secrets.iter().position(|(known, _)| known == secret);
        let tokens: Vec<_> =
            access.tokens.iter().map(|token| (number(&token.secret), token.until)).collect();
        format!("{tokens:?}, {:?}, {:?}", access.restrictions, access.owner)
    }
}
