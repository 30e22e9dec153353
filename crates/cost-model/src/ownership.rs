//! Operating cost: the terms of SNIA's total cost of ownership for solid state storage.
//!
//! Power, rack space and worn drives, each over the same years. A direct server draws and takes what
//! its Flash and its compute do together; a Flash server what its Flash and its tax do.

use serde::{Deserialize, Serialize};

use crate::equations::{Comparison, Fleet, Model};

const HOURS_PER_YEAR: f64 = 8766.0;
const DAYS_PER_YEAR: f64 = 365.25;

/// Terms of operation. Each that is left out costs nothing.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Ownership {
    /// Years of operation.
    pub years: f64,
    /// Watts of the Flash of one server.
    #[serde(default)]
    pub flash_watts: f64,
    /// Watts of CPU, memory and NIC of a datastore server.
    #[serde(default)]
    pub compute_watts: f64,
    /// Watts of CPU, memory and NIC of a Flash server.
    #[serde(default)]
    pub tax_watts: f64,
    /// Price of a kilowatt-hour.
    #[serde(default)]
    pub kwh_price: f64,
    /// Power usage effectiveness of the building: total power by that of the servers.
    #[serde(default = "one")]
    pub pue: f64,
    /// Rack units of a server with CPU and its own Flash.
    #[serde(default)]
    pub direct_rack_units: f64,
    /// Rack units of a Flash server, for the Flash of one server.
    #[serde(default)]
    pub flash_rack_units: f64,
    /// Rack units of a datastore server without Flash.
    #[serde(default)]
    pub datastore_rack_units: f64,
    /// Price of a rack unit for a year.
    #[serde(default)]
    pub rack_unit_price: f64,
    /// Gigabytes written to all Flash in a day.
    #[serde(default)]
    pub written_gb_per_day: f64,
    /// Writes of its whole capacity that a drive is rated for, each day of its warranty; without a
    /// bound if left out.
    #[serde(default)]
    pub drive_writes_per_day: Option<f64>,
    /// Years of a drive's warranty.
    #[serde(default = "five")]
    pub warranty_years: f64,
}

fn one() -> f64 {
    1.0
}

fn five() -> f64 {
    5.0
}

/// Cost of operation by term.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Operation {
    /// Electricity, cooling included.
    pub power: f64,
    /// Rack space.
    pub rack: f64,
    /// Drives replaced because they are worn.
    pub endurance: f64,
}

impl Operation {
    /// All terms together.
    #[must_use]
    pub fn total(&self) -> f64 {
        self.power + self.rack + self.endurance
    }
}

/// Cost of ownership of both architectures.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Owned {
    /// Purchase.
    pub purchase: Comparison,
    /// Operation with direct-attached Flash.
    pub direct: Operation,
    /// Operation with disaggregated Flash.
    pub disaggregated: Operation,
    /// Purchase and operation together.
    pub total: Comparison,
}

impl Ownership {
    /// The cost of ownership of `purchase`.
    #[must_use]
    pub fn of(&self, model: &Model, purchase: &Comparison) -> Owned {
        let Fleet { direct, flash, datastore } = purchase.fleet;
        let power =
            |watts: f64| watts / 1000.0 * self.pue * HOURS_PER_YEAR * self.years * self.kwh_price;
        let rack = |units: f64| units * self.rack_unit_price * self.years;
        let direct_terms = Operation {
            power: power(direct * (self.flash_watts + self.compute_watts)),
            rack: rack(direct * self.direct_rack_units),
            endurance: self.worn(model, direct),
        };
        let remote_terms = Operation {
            power: power(flash * (self.flash_watts + self.tax_watts))
                + power(datastore * self.compute_watts),
            rack: rack(flash * self.flash_rack_units + datastore * self.datastore_rack_units),
            endurance: self.worn(model, flash),
        };
        let total = Comparison {
            fleet: purchase.fleet,
            direct: purchase.direct + direct_terms.total(),
            disaggregated: purchase.disaggregated + remote_terms.total(),
        };
        Owned { purchase: *purchase, direct: direct_terms, disaggregated: remote_terms, total }
    }

    /// The price of the drives that `servers` wear out beyond those they were bought with. The same
    /// writes wear fewer drives faster.
    fn worn(&self, model: &Model, servers: f64) -> f64 {
        let Some(rated) = self.drive_writes_per_day else { return 0.0 };
        if servers == 0.0 {
            return 0.0;
        }
        let written = self.written_gb_per_day * DAYS_PER_YEAR * self.years;
        let life = model.server.flash_gb * rated * DAYS_PER_YEAR * self.warranty_years;
        let sets = written / (life * servers);
        (sets - 1.0).max(0.0) * servers * model.price.flash
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Plan, Requirement};

    fn free() -> Ownership {
        toml::from_str("years = 3").expect("valid")
    }

    #[test]
    fn without_terms_ownership_is_the_purchase() {
        let plan = Plan::paper();
        let purchase = plan.model().compare(&plan.requirement);
        let owned = free().of(&plan.model(), &purchase);
        assert_eq!(owned.total, purchase);
    }

    #[test]
    fn power_is_watts_by_hours() {
        let plan = Plan::paper();
        let model = plan.model();
        let one = Requirement { capacity_gb: 1200.0, iops: 0.0, qps: 50e3 };
        let terms = Ownership {
            years: 1.0,
            flash_watts: 25.0,
            compute_watts: 275.0,
            tax_watts: 10.0,
            kwh_price: 0.1,
            pue: 1.5,
            ..free()
        };
        let owned = terms.of(&model, &model.compare(&one));
        assert!((owned.direct.power - 0.3 * 1.5 * 8766.0 * 0.1).abs() < 1e-9);
        let remote = (0.035 + 0.275 * 1.25) * 1.5 * 8766.0 * 0.1;
        assert!((owned.disaggregated.power - remote).abs() < 1e-9);
    }

    /// Twice the rated writes over the warranty take every drive a second time.
    #[test]
    fn writes_beyond_the_rating_replace_drives() {
        let plan = Plan::paper();
        let model = plan.model();
        let one = Requirement { capacity_gb: 1200.0, iops: 0.0, qps: 50e3 };
        let terms = Ownership {
            years: 5.0,
            written_gb_per_day: 2400.0,
            drive_writes_per_day: Some(1.0),
            ..free()
        };
        let owned = terms.of(&model, &model.compare(&one));
        assert!((owned.direct.endurance - 2400.0).abs() < 1e-6, "{owned:?}");
        let half = Ownership { written_gb_per_day: 1200.0, ..terms };
        assert_eq!(half.of(&model, &model.compare(&one)).direct.endurance, 0.0);
    }
}
