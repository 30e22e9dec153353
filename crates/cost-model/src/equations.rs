//! Equations 1 and 2 of EuroSys'16, section 4.3.

use serde::{Deserialize, Serialize};

/// The requirement of an application in total: `GB_t`, `IOPS_t`, `QPS_t`.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Requirement {
    /// Data set, in gigabytes.
    pub capacity_gb: f64,
    /// Flash requests per second.
    #[serde(default)]
    pub iops: f64,
    /// Queries per second.
    pub qps: f64,
}

/// The capability of one server: `GB_s`, `IOPS_s`, `QPS_s`.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Server {
    /// Flash of a server, in gigabytes.
    pub flash_gb: f64,
    /// Requests per second of this Flash; unlimited if left out.
    #[serde(default = "unlimited", skip_serializing_if = "is_unlimited")]
    pub flash_iops: f64,
    /// Queries per second of a datastore server with its own Flash.
    pub qps_direct: f64,
    /// Queries per second of a datastore server with remote Flash.
    pub qps_remote: f64,
}

fn unlimited() -> f64 {
    f64::INFINITY
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde asks for a reference")]
fn is_unlimited(rate: &f64) -> bool {
    rate.is_infinite()
}

/// The price of a server's parts: `f`, `c` and `δ`.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Price {
    /// Flash of one server.
    pub flash: f64,
    /// CPU, memory and NIC of a datastore server.
    pub compute: f64,
    /// CPU, memory and NIC of a Flash server, for the Flash of one server: the tax of disaggregation.
    pub tax: f64,
}

/// The treatment of fractions of servers.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Rounding {
    /// Fractions count, as in the paper.
    #[default]
    Exact,
    /// Each count is rounded up.
    Whole,
}

impl Rounding {
    /// The count of servers that is bought for `servers`.
    #[must_use]
    pub fn apply(self, servers: f64) -> f64 {
        match self {
            Self::Exact => servers,
            // A quotient such as 3.0000000000000004 is three servers.
            Self::Whole => (servers - servers.abs() * 1e-12).ceil(),
        }
    }
}

/// Servers of either architecture.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Fleet {
    /// Servers with CPU, memory and their own Flash.
    pub direct: f64,
    /// Flash servers, each with the Flash of one direct server.
    pub flash: f64,
    /// Datastore servers with remote Flash.
    pub datastore: f64,
}

impl Fleet {
    /// The larger count of each kind: servers once bought stay.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        Self {
            direct: self.direct.max(other.direct),
            flash: self.flash.max(other.flash),
            datastore: self.datastore.max(other.datastore),
        }
    }
}

/// Cost of both architectures.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// Servers of both.
    pub fleet: Fleet,
    /// Cost with direct-attached Flash (equation 1).
    pub direct: f64,
    /// Cost with disaggregated Flash (equation 2).
    pub disaggregated: f64,
}

impl Comparison {
    /// The share of the direct-attached cost that disaggregation saves; negative if it costs more.
    #[must_use]
    pub fn saving(&self) -> f64 {
        if self.direct == 0.0 { 0.0 } else { 1.0 - self.disaggregated / self.direct }
    }
}

/// Servers, prices, and how fractions are treated.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Model {
    /// The capability of one server.
    pub server: Server,
    /// The price of its parts.
    pub price: Price,
    /// The treatment of fractions of servers.
    pub rounding: Rounding,
}

impl Model {
    /// The servers that `requirement` takes: the maxima inside equations 1 and 2.
    #[must_use]
    pub fn fleet(&self, requirement: &Requirement) -> Fleet {
        let storage = (requirement.capacity_gb / self.server.flash_gb)
            .max(requirement.iops / self.server.flash_iops);
        let compute = requirement.qps / self.server.qps_direct;
        Fleet {
            direct: self.rounding.apply(storage.max(compute)),
            flash: self.rounding.apply(storage),
            datastore: self.rounding.apply(requirement.qps / self.server.qps_remote),
        }
    }

    /// The purchase price of `fleet`.
    #[must_use]
    pub fn price_of(&self, fleet: &Fleet) -> Comparison {
        let Price { flash, compute, tax } = self.price;
        Comparison {
            fleet: *fleet,
            direct: fleet.direct * (flash + compute),
            disaggregated: fleet.flash * (flash + tax) + fleet.datastore * compute,
        }
    }

    /// Equations 1 and 2 for `requirement`.
    #[must_use]
    pub fn compare(&self, requirement: &Requirement) -> Comparison {
        self.price_of(&self.fleet(requirement))
    }

    /// The part of a direct server's queries that a server with remote Flash must keep for both
    /// architectures to cost the same, without rounding. `None` if disaggregation costs more at any
    /// rate, because its Flash alone does.
    #[must_use]
    pub fn break_even_qps(&self, requirement: &Requirement) -> Option<f64> {
        let exact = Self { rounding: Rounding::Exact, ..*self };
        let Comparison { fleet, direct, .. } = exact.compare(requirement);
        let left = direct - fleet.flash * (self.price.flash + self.price.tax);
        let compute = requirement.qps / self.server.qps_direct * self.price.compute;
        (left > 0.0).then(|| compute / left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Plan;

    /// The worked example of section 4.3, to the dollar.
    #[test]
    fn the_paper_s_example_costs_what_the_paper_says() {
        let plan = Plan::paper();
        let compared = plan.model().compare(&plan.requirement);
        assert_eq!(compared.fleet.direct, 200.0);
        assert_eq!(compared.direct.round(), 960_000.0);
        assert_eq!(compared.disaggregated.round(), 812_500.0);
        assert!((compared.saving() - 0.1536).abs() < 1e-4, "{}", compared.saving());
    }

    #[test]
    fn whole_servers_are_rounded_up_once() {
        let plan = Plan::paper();
        let model = Model { rounding: Rounding::Whole, ..plan.model() };
        let fleet = model.fleet(&plan.requirement);
        assert_eq!(fleet, Fleet { direct: 200.0, flash: 84.0, datastore: 250.0 });
        assert_eq!(Rounding::Whole.apply(0.1 * 30.0), 3.0, "no server for a rounding error");
        assert_eq!(Rounding::Whole.apply(0.0), 0.0);
    }

    #[test]
    fn at_the_break_even_both_cost_the_same() {
        let plan = Plan::paper();
        let part = plan.model().break_even_qps(&plan.requirement).expect("there is one");
        let qps_remote = plan.server.qps_direct * part;
        let model = Model { server: Server { qps_remote, ..plan.server }, ..plan.model() };
        assert!(model.compare(&plan.requirement).saving().abs() < 1e-9);
    }

    #[test]
    fn flash_that_costs_more_alone_has_no_break_even() {
        let plan = Plan::paper();
        let price = Price { tax: 1e6, ..plan.price };
        let model = Model { price, ..plan.model() };
        assert_eq!(model.break_even_qps(&plan.requirement), None);
    }
}
