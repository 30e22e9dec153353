//! Figures of EuroSys'16 in real time, in small: real datastores, a real Flash server and real connections on this machine. One
//! world serves all of them; each is a row of a table that says which parts of it are needed.

mod costs;
mod figures;
mod load;
mod made;
mod world;

use std::cell::Cell;
use std::path::Path;

use reproduce::{CpuCosts, Outcome, Progress, ReproduceError};
use user_messages::Failure;

use self::load::Load;
use self::world::{Parts, World};
use crate::commands::interrupt::Interrupt;

/// Share of the progress that setting up is, and that CPU costs are.
const SET_UP: f64 = 0.2;
const COSTS: f64 = 0.1;

/// A figure that has a form here.
pub(super) struct Form {
    pub(super) name: &'static str,
    parts: Parts,
    /// CPU costs are part of the figure in simulated time.
    has_costs: bool,
    /// Another way to Flash can be measured beside local and remote.
    takes_beside: bool,
    measure: fn(&mut World, &Load<'_>, Progress<'_>) -> Result<Outcome, Failure>,
}

/// All of them.
pub(super) const FORMS: &[Form] = &[
    Form {
        name: "eurosys-3",
        parts: Parts { local: 0, remote: 0, has_network: true },
        has_costs: true,
        takes_beside: false,
        measure: figures::reads,
    },
    Form {
        name: "table-1",
        parts: Parts { local: 0, remote: 0, has_network: false },
        has_costs: false,
        takes_beside: false,
        measure: figures::workloads,
    },
    Form {
        name: "eurosys-4a",
        parts: ONE_EACH,
        has_costs: true,
        takes_beside: true,
        measure: figures::unloaded,
    },
    Form {
        name: "eurosys-4b",
        parts: ONE_EACH,
        has_costs: true,
        takes_beside: true,
        measure: figures::peak,
    },
    Form {
        name: "eurosys-5",
        parts: Parts { has_network: true, ..ONE_EACH },
        has_costs: true,
        takes_beside: false,
        measure: figures::tuning,
    },
    Form {
        name: "eurosys-6a",
        parts: ONE_EACH,
        has_costs: true,
        takes_beside: false,
        measure: figures::busy,
    },
    Form {
        name: "eurosys-6b",
        parts: ONE_EACH,
        has_costs: true,
        takes_beside: false,
        measure: figures::sets,
    },
    Form {
        name: "eurosys-7a",
        parts: Parts { local: 2, remote: 2, has_network: false },
        has_costs: true,
        takes_beside: false,
        measure: figures::shared,
    },
    Form {
        name: "eurosys-7b",
        parts: Parts { local: 3, remote: 3, has_network: false },
        has_costs: true,
        takes_beside: false,
        measure: figures::shared,
    },
    Form {
        name: "tenants-per-core",
        parts: Parts { local: 1, remote: 3, has_network: false },
        has_costs: true,
        takes_beside: false,
        measure: figures::tenants,
    },
];

const ONE_EACH: Parts = Parts { local: 1, remote: 1, has_network: false };

impl Form {
    /// The form of a figure.
    pub(super) fn of(figure: &str) -> Option<&'static Self> {
        FORMS.iter().find(|form| form.name == figure)
    }

    /// Refuses another way to Flash beside a figure that does not take it.
    pub(super) fn check_beside(figure: &str) -> Result<(), Failure> {
        let takes = FORMS.iter().filter(|form| form.takes_beside).map(|form| form.name);
        let takes: Vec<&str> = takes.collect();
        if takes.contains(&figure) {
            return Ok(());
        }
        let what = format!("{figure} is not measured on another way to Flash");
        Err(Failure::usage(what, format!("leave --beside out; {} take it", takes.join(" and "))))
    }

    /// Measures the figure, and CPU costs if it has any in simulated time, with all files in a directory in `out` that is removed at
    /// the end. A third datastore lies on what is at `beside`, whose data is lost.
    pub(super) fn run(
        &self,
        out: &Path,
        beside: Option<&Path>,
        time: f64,
        seed: u64,
        progress: Progress<'_>,
    ) -> Result<(Option<CpuCosts>, Outcome), Failure> {
        if !(time > 0.0 && time <= 1.0) {
            let what = "a part of the time is above 0 and at most 1";
            return Err(Failure::usage(what, "try --time 0.05"));
        }
        let stop = Interrupt::catch(true)?.flag();
        let load = Load { out, time, seed, stop: &stop, keys: Cell::new(1) };
        let mut world = World::new(self.parts, beside, &load)?;
        progress(SET_UP);
        let rest = 1.0 - SET_UP - COSTS;
        let mut tell = |part: f64| progress(SET_UP + rest * part);
        let outcome = (self.measure)(&mut world, &load, &mut tell)?;
        // Costs come last, since their sets leave compactions behind.
        let costs = self.has_costs.then(|| {
            world.serve(0)?;
            costs::measure(&mut world, &load)
        });
        let costs = costs.transpose()?;
        progress(1.0);
        Ok((costs, outcome))
    }
}

/// A figure whose measurements cannot be shown.
fn not_shown(error: &ReproduceError) -> Failure {
    Failure::runtime(error.to_string(), "report this")
}

#[cfg(test)]
mod tests {
    use super::*;
    use reproduce::Figure;

    /// Each is a figure that also has a form in simulated time, to which the costs go.
    #[test]
    fn every_form_is_one_of_a_figure() {
        for form in FORMS {
            assert!(Figure::find(form.name).is_some(), "{}", form.name);
            assert_eq!(Form::of(form.name).map(|found| found.name), Some(form.name));
            let Parts { local, remote, .. } = form.parts;
            assert!(local > 0 || remote == 0, "{}: no datastore to measure costs with", form.name);
        }
        assert!(Form::of("eurosys-8").is_none());
    }
}
