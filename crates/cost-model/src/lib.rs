//! The cost of an application on servers with their own Flash, and on disaggregated Flash.
//!
//! The model is that of EuroSys'16, section 4.3: equations 1 and 2 over capacity, IOPS and queries per
//! second. Around it: requirements that grow over time ([`growth`]), savings over scaling factors and
//! prices ([`scaling`]), and the operating terms of SNIA's total cost of ownership ([`ownership`]).
//! A [`Plan`] is all of it as one TOML file.
//!
//! - Costs scale linearly with servers, as in the paper; [`Rounding::Whole`] rounds each count of
//!   servers up.
//! - Money is a plain number in the plan's currency; capacity is in gigabytes (10^9 bytes).
//!
//! Absent from this crate: files, plots, and where a requirement was measured.

mod equations;
pub mod growth;
pub mod ownership;
mod plan;
pub mod scaling;

pub use equations::{Comparison, Fleet, Model, Price, Requirement, Rounding, Server};
pub use plan::{EXAMPLE, Plan, PlanError};
