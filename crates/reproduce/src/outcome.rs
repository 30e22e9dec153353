//! Results of a run.

use report::{Panel, PlotError, Table};
use serde::Serialize;

/// Pixels of a plot.
const WIDTH: u32 = 900;
const PANEL_HEIGHT: u32 = 320;

/// One statement of the paper beside the same here.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    /// The subject of the comparison.
    pub what: String,
    /// As the paper has it.
    pub paper: String,
    /// As it came out.
    pub here: String,
    /// True if the shape is the same.
    pub agrees: bool,
}

/// All that a figure shows.
#[derive(Debug)]
pub struct Outcome {
    /// The data behind the plot.
    pub data: Table,
    /// The paper and this run.
    pub findings: Vec<Finding>,
    /// The reason, where a statement is not met.
    pub why: Option<String>,
    /// The plot, as SVG.
    pub svg: String,
}

/// Why a figure could not be run.
#[derive(Debug, thiserror::Error)]
pub enum ReproduceError {
    /// Not a part of the paper's time.
    #[error("a run takes a part of the paper's time, above 0 and at most 1, not {time}")]
    Time {
        /// The time that was requested.
        time: f64,
    },
    /// A drive's parameters do not fit together.
    #[error(transparent)]
    Drive(#[from] ssd_model::ParamsError),
    /// A promise that the ceiling does not allow.
    #[error(transparent)]
    Promise(#[from] schedule::AdmissionError),
    /// The plot.
    #[error(transparent)]
    Plot(#[from] PlotError),
}

impl Outcome {
    pub(crate) fn new(
        title: &str,
        panels: &[Panel],
        data: Table,
        findings: Vec<Finding>,
    ) -> Result<Self, ReproduceError> {
        let svg = report::figure(title, panels, WIDTH, PANEL_HEIGHT)?;
        Ok(Self { data, findings, why: None, svg })
    }

    /// Adds the reason for statements that are not met; without such a statement there is none.
    pub(crate) fn because(mut self, why: &str) -> Self {
        self.why = (!self.agrees()).then(|| why.to_owned());
        self
    }

    /// Returns true if every finding has the shape of the paper's.
    #[must_use]
    pub fn agrees(&self) -> bool {
        self.findings.iter().all(|finding| finding.agrees)
    }
}
