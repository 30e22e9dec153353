//! Savings over scaling factors (figure 8) and over prices.

use serde::Serialize;

use crate::equations::{Model, Price, Requirement};

/// Savings over factors of storage (horizontal) and compute (vertical).
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SavingsMap {
    /// Factors of both axes, ascending.
    pub factors: Vec<f64>,
    /// `savings[compute][storage]`: share of the direct-attached cost.
    pub savings: Vec<Vec<f64>>,
}

/// The requirement that uses CPU and Flash of `servers` direct servers equally: figure 8's origin.
#[must_use]
pub fn balanced(model: &Model, servers: f64) -> Requirement {
    Requirement {
        capacity_gb: model.server.flash_gb * servers,
        iops: 0.0,
        qps: model.server.qps_direct * servers,
    }
}

/// Figure 8: savings as `base` is scaled by each pair of `factors`.
#[must_use]
pub fn map(model: &Model, base: &Requirement, factors: &[f64]) -> SavingsMap {
    let scaled = |storage: f64, compute: f64| Requirement {
        capacity_gb: base.capacity_gb * storage,
        iops: base.iops * storage,
        qps: base.qps * compute,
    };
    let row = |compute: f64| {
        let cells =
            factors.iter().map(|storage| model.compare(&scaled(*storage, compute)).saving());
        cells.collect()
    };
    let savings = factors.iter().map(|compute| row(*compute)).collect();
    SavingsMap { factors: factors.to_vec(), savings }
}

/// The saving at one pair of price factors.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Sensitivity {
    /// Price of Flash relative to the plan's.
    pub flash: f64,
    /// Tax relative to the plan's.
    pub tax: f64,
    /// Share of the direct-attached cost.
    pub saving: f64,
}

/// Savings of `requirement` for each pair of `flash` and `tax` factors of the prices.
#[must_use]
pub fn sensitivity(
    model: &Model,
    requirement: &Requirement,
    flash: &[f64],
    tax: &[f64],
) -> Vec<Sensitivity> {
    let one = |flash: f64, tax: f64| {
        let price =
            Price { flash: model.price.flash * flash, tax: model.price.tax * tax, ..model.price };
        let saving = Model { price, ..*model }.compare(requirement).saving();
        Sensitivity { flash, tax, saving }
    };
    flash.iter().flat_map(|flash| tax.iter().map(move |tax| one(*flash, *tax))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Plan;

    fn factors() -> Vec<f64> {
        (1..=10).map(f64::from).collect()
    }

    /// Section 4.3 and figure 8: corners save, the diagonal pays the overhead.
    #[test]
    fn the_map_has_the_paper_s_shape() {
        let model = Plan::paper().model();
        let map = map(&model, &balanced(&model, 100.0), &factors());
        let (top_left, bottom_right) = (map.savings[9][0], map.savings[0][9]);
        assert!((0.25..0.5).contains(&top_left), "{top_left}");
        assert!((0.35..0.5).contains(&bottom_right), "{bottom_right}");
        for at in 0..10 {
            let diagonal = map.savings[at][at];
            assert!((-0.20..-0.10).contains(&diagonal), "{diagonal}");
            assert!((diagonal - map.savings[0][0]).abs() < 1e-9, "the diagonal is one ratio");
        }
    }

    /// "Doubling the price of PCIe Flash leads to 50 % resource savings in the top left corner."
    #[test]
    fn dearer_flash_saves_half_in_the_top_left_corner() {
        let plan = Plan::paper();
        let model = plan.model();
        let price = Price { flash: 2.0 * plan.price.flash, ..plan.price };
        let dearer = Model { price, ..model };
        let map = map(&dearer, &balanced(&model, 100.0), &factors());
        assert!((map.savings[9][0] - 0.5).abs() < 0.03, "{}", map.savings[9][0]);
    }

    /// "If the price of Flash decreases, disaggregation becomes even more beneficial for workloads
    /// with high storage requirements."
    #[test]
    fn cheaper_flash_helps_storage_and_a_higher_tax_hurts_the_balanced() {
        let model = Plan::paper().model();
        let storage = Requirement { qps: 50e3, ..balanced(&model, 10.0) };
        let all = sensitivity(&model, &storage, &[0.5, 1.0], &[1.0]);
        assert!(all[0].saving > all[1].saving, "{all:?}");
        let all = sensitivity(&model, &balanced(&model, 10.0), &[1.0], &[1.0, 4.0]);
        assert!(all[1].saving < all[0].saving - 0.05, "{all:?}");
    }
}
