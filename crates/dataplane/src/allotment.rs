//! Limits on the space that a tenant's volumes on this core hold together.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use io_traits::{Device, World};
use volume::Allowance;

use crate::core::Core;
use crate::export::Export;
use crate::sabotage::{Sabotage, broken};

/// Space that a core's volumes of one tenant hold, and their limit.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Allotment {
    /// Blocks that they hold, those that writes under way add included.
    pub used: u64,
    /// Blocks that they may hold; `u64::MAX` before anything was said.
    pub limit: u64,
}

/// A tenant's part in this core.
#[derive(Default)]
struct Part {
    allowance: Rc<Allowance>,
    /// Space that its volumes hold, while that is counted.
    held: Cell<u64>,
}

/// The tenants whose volumes are bounded, by number.
#[derive(Default)]
pub(crate) struct Allowances {
    numbers: RefCell<BTreeMap<String, usize>>,
    parts: RefCell<Vec<Part>>,
}

impl<W: World, D: Device> Core<W, D> {
    /// Bounds the space of the volumes of these tenants from now on: the volumes of each tenant share an
    /// allotment, which has no limit yet. Tenants are numbered in this order, behind those that are bounded
    /// already. To be called once for each tenant.
    pub fn bound_tenants(&self, owners: Vec<String>) {
        let all = &self.state.allowances;
        let bounded = all.parts.borrow().len();
        all.parts.borrow_mut().extend(owners.iter().map(|_| Part::default()));
        all.numbers.borrow_mut().extend(owners.into_iter().zip(bounded..));
        if !broken(Sabotage::StartUnbound) {
            self.state.exports.borrow().values().for_each(|export| self.bound_by_allowance(export));
        }
    }

    /// Says how many blocks this core's volumes of some tenants, by number, may hold. Gives the allotments
    /// of all, with what is held for a limit where that is more.
    ///
    /// A write that would add more is refused as on a full device; others are not.
    pub fn allot(&self, limits: &[(usize, u64)]) -> Vec<Allotment> {
        let all = &self.state.allowances;
        let parts = all.parts.borrow();
        parts.iter().for_each(|part| part.held.set(0));
        // Told apart by their places in memory, which costs less than names do.
        let by_place: BTreeMap<_, &Cell<u64>> =
            parts.iter().map(|part| (Rc::as_ptr(&part.allowance), &part.held)).collect();
        for export in self.state.exports.borrow().values() {
            let volume = export.volume();
            let held = volume.allowance().and_then(|own| by_place.get(&Rc::as_ptr(&own)).copied());
            if let Some(held) = held {
                held.set(held.get() + volume.mapped_blocks());
            }
        }
        let limits: BTreeMap<usize, u64> = limits.iter().copied().collect();
        let allot = |(number, part): (usize, &Part)| {
            let (allowance, held) = (&part.allowance, part.held.get());
            // Also if it stays: what was given back since counts from now on (ALLOWANCE-2).
            allowance.set(limits.get(&number).copied().unwrap_or(allowance.limit()), held);
            let used = allowance.used(held);
            Allotment { used, limit: allowance.limit().max(used) }
        };
        parts.iter().enumerate().map(allot).collect()
    }

    /// Bounds a volume that is new here by what its tenant may hold.
    pub(crate) fn bound_by_allowance(&self, export: &Export<W, D>) {
        let all = &self.state.allowances;
        let number = export.with_owner(|owner| all.numbers.borrow().get(owner?).copied());
        if let Some(number) = number {
            export.volume().set_allowance(all.parts.borrow()[number].allowance.clone());
        }
    }
}
