//! Figures of the papers, run again, and what farflash promises beyond them.
//!
//! Each figure is one file with a row in [`FIGURES`]. It says what the paper found, what it found itself,
//! and whether the two have the same shape. All is in simulated time: equal options give equal results
//! to the last digit.
//!
//! What runs is what the figure is about: a modelled drive alone in `decibel-7` and `decibel-8`, which
//! measure one; the scheduler that serves production, over such a drive, in `decibel-13`, `isolation` and
//! `eurosys-7-device`; two tiers of servers with stated times of their CPUs (`tiers`) in the others of EuroSys. Connections,
//! engine and journal are not between them, so that nine minutes at 200 000 requests a second take a
//! minute of computing. The way through everything is `decibel-13` in real time, and the data plane's
//! own tests of sharing.
//!
//! Absent from this crate: files, clocks, threads. The caller saves an [`Outcome`].

pub mod afa;
mod bench;
pub mod cost;
pub mod decibel_13;
mod decibel_7_8;
pub mod eurosys;
mod eurosys_7;
mod isolation;
mod outcome;
mod tiers;

pub use outcome::{Finding, Outcome, ReproduceError};
pub use tiers::costs::CpuCosts;

/// Options of a figure's run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Options {
    /// Part of the paper's duration, above 0 and at most 1. Figures of the array (`afa-`) keep the duration, which rare
    /// events need, and read this part of the drives: eight at least, for a shorter time below an eighth.
    pub time: f64,
    /// Decides over addresses, kinds and jitter.
    pub seed: u64,
    /// Costs of the two tiers of `eurosys-` figures.
    pub costs: CpuCosts,
}

impl Default for Options {
    fn default() -> Self {
        Self { time: 1.0, seed: 1, costs: CpuCosts::STATED }
    }
}

/// Told how far a run is: 0 to 1.
pub type Progress<'a> = &'a mut dyn FnMut(f64);

/// A figure that can be run again.
#[derive(Clone, Copy)]
pub struct Figure {
    /// The name for users.
    pub name: &'static str,
    /// The subject of the figure.
    pub about: &'static str,
    run: fn(&Options, Progress<'_>) -> Result<Outcome, ReproduceError>,
}

/// All figures.
pub const FIGURES: &[Figure] = &[
    Figure {
        name: "afa-6",
        about: "latency of 64 drives of an array, as the host is installed",
        run: afa::figure_6,
    },
    Figure {
        name: "afa-7",
        about: "the same with real-time priority for the readers",
        run: afa::figure_7,
    },
    Figure { name: "afa-8", about: "the same with isolated CPUs besides", run: afa::figure_8 },
    Figure { name: "afa-9", about: "the same with pinned interrupts besides", run: afa::figure_9 },
    Figure {
        name: "afa-10",
        about: "single reads of 32 drives over time: their housekeeping",
        run: afa::figure_10,
    },
    Figure {
        name: "afa-11",
        about: "the tuned host, and drives without housekeeping",
        run: afa::figure_11,
    },
    Figure {
        name: "afa-12",
        about: "mean and deviation over drives of the four configurations",
        run: afa::figure_12,
    },
    Figure {
        name: "afa-13",
        about: "latency with four, two and one drives on a core, and one on the host",
        run: afa::figure_13,
    },
    Figure {
        name: "afa-14",
        about: "mean and deviation over drives of the same",
        run: afa::figure_14,
    },
    Figure {
        name: "afa-table-2",
        about: "threads and interrupts of a CPU by drives on a core",
        run: afa::table_2,
    },
    Figure {
        name: "decibel-7",
        about: "throughput and latency of random reads over the queue depth",
        run: decibel_7_8::reads,
    },
    Figure {
        name: "decibel-8",
        about: "throughput and latency of random writes over the queue depth",
        run: decibel_7_8::writes,
    },
    Figure {
        name: "decibel-13",
        about: "three volumes on one drive, one of which bursts, under each policy",
        run: decibel_13::run,
    },
    Figure {
        name: "eurosys-1",
        about: "use of CPUs and Flash over half a year, of a generated fleet",
        run: eurosys::figure_1,
    },
    Figure {
        name: "eurosys-3",
        about: "reads from a Flash server by tenants and step of tuning",
        run: eurosys::figure_3,
    },
    Figure {
        name: "table-1",
        about: "requests of four key-value stores, and a drive that serves them",
        run: eurosys::table_1,
    },
    Figure {
        name: "eurosys-4a",
        about: "latency of an unloaded datastore with local and remote Flash",
        run: eurosys::figure_4a,
    },
    Figure {
        name: "eurosys-4b",
        about: "mean and tail latency of a datastore over its queries",
        run: eurosys::figure_4b,
    },
    Figure { name: "eurosys-5", about: "steps of tuning at a datastore", run: eurosys::figure_5 },
    Figure {
        name: "eurosys-6a",
        about: "peak of a datastore as its queries compute more",
        run: eurosys::figure_6a,
    },
    Figure {
        name: "eurosys-6b",
        about: "peak of a datastore as the share of writes grows",
        run: eurosys::figure_6b,
    },
    Figure {
        name: "eurosys-7a",
        about: "two datastores that share one drive of a Flash server",
        run: eurosys::figure_7a,
    },
    Figure {
        name: "eurosys-7b",
        about: "three datastores that share one drive of a Flash server",
        run: eurosys::figure_7b,
    },
    Figure {
        name: "tenants-per-core",
        about: "datastores at peak load that one core of a Flash server supports",
        run: eurosys::tenants_per_core,
    },
    Figure {
        name: "eurosys-7-device",
        about: "the tail of reads as one to three tenants with bursts of writes share a drive",
        run: eurosys_7::run,
    },
    Figure {
        name: "eurosys-8",
        about: "savings by disaggregation as storage and compute scale, and as prices change",
        run: cost::figure_8,
    },
    Figure {
        name: "cost-example",
        about: "the worked example of the cost model",
        run: cost::example,
    },
    Figure {
        name: "isolation",
        about: "equal and weighted shares, a small promise in a crowd, a reader beside a writer",
        run: isolation::run,
    },
];

impl Figure {
    /// The figure of this name.
    #[must_use]
    pub fn find(name: &str) -> Option<Self> {
        FIGURES.iter().find(|figure| figure.name == name).copied()
    }

    /// Runs it.
    ///
    /// # Errors
    /// The options make no sense, or the plot could not be drawn.
    pub fn run(
        &self,
        options: &Options,
        progress: Progress<'_>,
    ) -> Result<Outcome, ReproduceError> {
        if !(options.time > 0.0 && options.time <= 1.0) {
            return Err(ReproduceError::Time { time: options.time });
        }
        (self.run)(options, progress)
    }
}

impl std::fmt::Debug for Figure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}
