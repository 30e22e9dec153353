//! A plan: all that a comparison needs, as one TOML file.

use serde::{Deserialize, Serialize};
use toml_mistake::TomlMistake;

use crate::equations::{Model, Price, Requirement, Rounding, Server};
use crate::growth::Period;
use crate::ownership::Ownership;

/// The worked example of EuroSys'16, section 4.3, with every key explained.
pub const EXAMPLE: &str = r#"# Capital cost of direct-attached against disaggregated Flash. Prices are in one currency of your choice.
whole_servers = false       # true: each count of servers is rounded up

[requirement]               # of the application in total
capacity_gb = 100_000       # data set, in gigabytes (10^9 bytes)
iops = 0                    # Flash requests per second, if they decide
qps = 10_000_000            # queries per second

[server]                    # what one server provides
flash_gb = 1_200            # its Flash
# flash_iops = 400_000      # requests per second of its Flash; without a bound if left out
qps_direct = 50_000         # queries per second with its own Flash
qps_remote = 40_000         # queries per second with remote Flash

[price]
flash = 2_400               # Flash of one server
compute = 2_400             # CPU, memory and NIC of a datastore server
tax = 150                   # CPU, memory and NIC of a Flash server, for the Flash of one server

# Requirements over time, in place of the snapshot; prices relative to those above:
# [[period]]
# month = 12
# capacity_gb = 200_000
# qps = 12_000_000
# flash_price = 0.8
# compute_price = 1.0

# Operation (SNIA's terms); each that is left out costs nothing:
# [ownership]
# years = 3
# flash_watts = 25
# compute_watts = 275
# tax_watts = 15
# kwh_price = 0.12
# pue = 1.3
# direct_rack_units = 1
# flash_rack_units = 0.1
# datastore_rack_units = 1
# rack_unit_price = 150     # for a year
# written_gb_per_day = 50_000
# drive_writes_per_day = 1  # rated, over the warranty
# warranty_years = 5
"#;

/// A comparison to make.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// Rounds each count of servers up.
    #[serde(default)]
    pub whole_servers: bool,
    /// The requirement now.
    pub requirement: Requirement,
    /// The capability of one server.
    pub server: Server,
    /// The price of its parts.
    pub price: Price,
    /// Requirements over time, by month.
    #[serde(default, rename = "period")]
    pub periods: Vec<Period>,
    /// Terms of operation.
    #[serde(default)]
    pub ownership: Option<Ownership>,
}

/// A plan that makes no sense. The message names the key.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PlanError {
    /// No plan in this text.
    #[error(transparent)]
    Text(#[from] TomlMistake),
    /// A number out of its bounds.
    #[error("{key} = {value} {must}")]
    Number {
        /// Its key.
        key: String,
        /// Its value.
        value: f64,
        /// Its bounds.
        must: &'static str,
    },
    /// Periods out of order.
    #[error("the period of month {month} comes after a later one; put periods in order")]
    Order {
        /// The month out of order.
        month: f64,
    },
}

impl Plan {
    /// The worked example of the paper.
    ///
    /// # Panics
    /// Never: [`EXAMPLE`] is a plan.
    #[must_use]
    pub fn paper() -> Self {
        Self::from_toml(EXAMPLE).expect("the example is a plan")
    }

    /// Reads and checks a plan.
    ///
    /// # Errors
    /// The first mistake in it.
    pub fn from_toml(text: &str) -> Result<Self, PlanError> {
        let plan: Self = toml::from_str(text).map_err(|error| TomlMistake::new(text, &error))?;
        plan.check()?;
        Ok(plan)
    }

    /// The model of this plan.
    #[must_use]
    pub fn model(&self) -> Model {
        let rounding = if self.whole_servers { Rounding::Whole } else { Rounding::Exact };
        Model { server: self.server, price: self.price, rounding }
    }

    fn check(&self) -> Result<(), PlanError> {
        let Self { requirement, server, price, .. } = self;
        let above_zero = [
            ("server.flash_gb", server.flash_gb),
            ("server.flash_iops", server.flash_iops),
            ("server.qps_direct", server.qps_direct),
            ("server.qps_remote", server.qps_remote),
        ];
        for (key, value) in above_zero {
            let fits = value > 0.0;
            number(key, value, fits, "must be above 0")?;
        }
        let amounts = [
            ("requirement.capacity_gb", requirement.capacity_gb),
            ("requirement.iops", requirement.iops),
            ("requirement.qps", requirement.qps),
            ("price.flash", price.flash),
            ("price.compute", price.compute),
            ("price.tax", price.tax),
        ];
        for (key, value) in amounts {
            amount(key, value)?;
        }
        self.check_periods()?;
        self.ownership.as_ref().map_or(Ok(()), check_ownership)
    }

    fn check_periods(&self) -> Result<(), PlanError> {
        let mut before = 0.0;
        for period in &self.periods {
            let amounts = [
                ("period.month", period.month),
                ("period.capacity_gb", period.capacity_gb),
                ("period.iops", period.iops),
                ("period.qps", period.qps),
                ("period.flash_price", period.flash_price),
                ("period.compute_price", period.compute_price),
            ];
            for (key, value) in amounts {
                amount(key, value)?;
            }
            if period.month < before {
                return Err(PlanError::Order { month: period.month });
            }
            before = period.month;
        }
        Ok(())
    }
}

fn check_ownership(terms: &Ownership) -> Result<(), PlanError> {
    let amounts = [
        ("ownership.flash_watts", terms.flash_watts),
        ("ownership.compute_watts", terms.compute_watts),
        ("ownership.tax_watts", terms.tax_watts),
        ("ownership.kwh_price", terms.kwh_price),
        ("ownership.direct_rack_units", terms.direct_rack_units),
        ("ownership.flash_rack_units", terms.flash_rack_units),
        ("ownership.datastore_rack_units", terms.datastore_rack_units),
        ("ownership.rack_unit_price", terms.rack_unit_price),
        ("ownership.written_gb_per_day", terms.written_gb_per_day),
    ];
    for (key, value) in amounts {
        amount(key, value)?;
    }
    let rated = terms.drive_writes_per_day.unwrap_or(1.0);
    let above_zero = [
        ("ownership.years", terms.years),
        ("ownership.drive_writes_per_day", rated),
        ("ownership.warranty_years", terms.warranty_years),
    ];
    for (key, value) in above_zero {
        number(key, value, value > 0.0 && value.is_finite(), "must be above 0")?;
    }
    number(
        "ownership.pue",
        terms.pue,
        terms.pue >= 1.0 && terms.pue.is_finite(),
        "must be 1 or more",
    )
}

fn amount(key: &str, value: f64) -> Result<(), PlanError> {
    number(key, value, value >= 0.0 && value.is_finite(), "must be 0 or more")
}

fn number(key: &str, value: f64, fits: bool, must: &'static str) -> Result<(), PlanError> {
    if fits { Ok(()) } else { Err(PlanError::Number { key: key.to_owned(), value, must }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every line of the example that is commented out is a key that there is.
    #[test]
    fn the_example_with_all_keys_is_a_plan() {
        let keys =
            |line: &str| line.starts_with("# ") && (line.contains('=') || line.contains('['));
        let whole: Vec<String> = EXAMPLE
            .lines()
            .map(|line| if keys(line) { line[2..].to_owned() } else { line.to_owned() })
            .collect();
        let plan = Plan::from_toml(&whole.join("\n")).expect("a plan");
        assert_eq!((plan.periods.len(), plan.ownership.map(|terms| terms.years)), (1, Some(3.0)));
        assert_eq!(plan.server.flash_iops, 400_000.0);
    }

    #[test]
    fn mistakes_name_their_key() {
        let cases = [
            ("flash_gb = 1_200", "flash_gb = 0", "server.flash_gb = 0 must be above 0"),
            ("tax = 150", "tax = -1", "price.tax = -1 must be 0 or more"),
            ("tax = 150", "tax = nan", "price.tax = NaN must be 0 or more"),
            ("qps = 10_000_000", "qps = inf", "requirement.qps = inf must be 0 or more"),
            ("tax = 150", "taxes = 150", "line 18: unknown field `taxes`"),
        ];
        for (from, to, expected) in cases {
            let error = Plan::from_toml(&EXAMPLE.replacen(from, to, 1)).expect_err(to).to_string();
            assert!(error.starts_with(expected), "{error}");
        }
        let late = "\n[[period]]\nmonth = 12\ncapacity_gb = 1\nqps = 1\n[[period]]\nmonth = 6\n\
                    capacity_gb = 1\nqps = 1\n";
        let error = Plan::from_toml(&format!("{EXAMPLE}{late}")).expect_err("out of order");
        assert_eq!(error, PlanError::Order { month: 6.0 });
    }
}
