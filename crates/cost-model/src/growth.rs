//! Requirements over time: servers are bought when they are first needed, and stay.
//!
//! Direct-attached servers are bought for whichever of compute and storage is ahead; disaggregated
//! ones for each by itself. The longer the two grow apart, the more that is worth (section 4.3,
//! "cost benefits of disaggregation").

use serde::{Deserialize, Serialize};

use crate::equations::{Comparison, Fleet, Model, Price, Requirement};

/// The requirement from some month on.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Period {
    /// Months since the start.
    pub month: f64,
    /// Data set, in gigabytes.
    pub capacity_gb: f64,
    /// Flash requests per second.
    #[serde(default)]
    pub iops: f64,
    /// Queries per second.
    pub qps: f64,
    /// Price of Flash relative to the plan's.
    #[serde(default = "one")]
    pub flash_price: f64,
    /// Price of CPU, memory and NIC relative to the plan's.
    #[serde(default = "one")]
    pub compute_price: f64,
}

fn one() -> f64 {
    1.0
}

impl Period {
    fn requirement(&self) -> Requirement {
        Requirement { capacity_gb: self.capacity_gb, iops: self.iops, qps: self.qps }
    }
}

/// The state of both architectures after the purchases of one period.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Step {
    /// Months since the start.
    pub month: f64,
    /// Servers owned, and money spent so far.
    pub so_far: Comparison,
}

/// The purchases of each period in turn. `periods` are in order of their months.
#[must_use]
pub fn purchases(model: &Model, periods: &[Period]) -> Vec<Step> {
    let mut owned = Fleet::default();
    let (mut direct, mut disaggregated) = (0.0, 0.0);
    let step = |period: &Period| {
        let wanted = owned.max(model.fleet(&period.requirement()));
        let bought = Fleet {
            direct: wanted.direct - owned.direct,
            flash: wanted.flash - owned.flash,
            datastore: wanted.datastore - owned.datastore,
        };
        let price = Price {
            flash: model.price.flash * period.flash_price,
            compute: model.price.compute * period.compute_price,
            tax: model.price.tax * period.compute_price,
        };
        let paid = Model { price, ..*model }.price_of(&bought);
        owned = wanted;
        direct += paid.direct;
        disaggregated += paid.disaggregated;
        Step { month: period.month, so_far: Comparison { fleet: owned, direct, disaggregated } }
    };
    periods.iter().map(step).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Plan;

    fn period(month: f64, capacity_gb: f64, qps: f64) -> Period {
        Period { month, capacity_gb, iops: 0.0, qps, flash_price: 1.0, compute_price: 1.0 }
    }

    #[test]
    fn one_period_is_the_snapshot() {
        let plan = Plan::paper();
        let Requirement { capacity_gb, qps, .. } = plan.requirement;
        let steps = purchases(&plan.model(), &[period(0.0, capacity_gb, qps)]);
        assert_eq!(steps[0].so_far, plan.model().compare(&plan.requirement));
    }

    #[test]
    fn what_shrinks_is_not_given_back_and_what_returns_is_not_bought_again() {
        let plan = Plan::paper();
        let periods =
            [period(0.0, 100e3, 10e6), period(12.0, 50e3, 5e6), period(24.0, 100e3, 10e6)];
        let steps = purchases(&plan.model(), &periods);
        assert_eq!(steps[0].so_far, steps[1].so_far);
        assert_eq!(steps[0].so_far, steps[2].so_far);
    }

    /// Compute first, then storage: servers with both are bought for each in turn.
    #[test]
    fn needs_that_peak_at_different_times_cost_direct_servers_once_for_the_larger() {
        let plan = Plan::paper();
        let steps =
            purchases(&plan.model(), &[period(0.0, 1.2e3, 10e6), period(12.0, 240e3, 50e3)]);
        let [first, last] = [steps[0].so_far.fleet, steps[1].so_far.fleet];
        assert_eq!((first.direct, first.flash, first.datastore), (200.0, 1.0, 250.0));
        assert_eq!((last.direct, last.flash, last.datastore), (200.0, 200.0, 250.0));
    }

    #[test]
    fn later_purchases_are_paid_at_later_prices() {
        let plan = Plan::paper();
        let cheaper = Period { flash_price: 0.5, ..period(12.0, 200e3, 0.0) };
        let steps = purchases(&plan.model(), &[period(0.0, 100e3, 0.0), cheaper]);
        let each = 100e3 / 1.2e3;
        let paid = steps[1].so_far.disaggregated - steps[0].so_far.disaggregated;
        assert!((paid - each * (1200.0 + 150.0)).abs() < 1e-6, "{paid}");
    }
}
