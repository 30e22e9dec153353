//! The crates whose mutants are tried, and the tests that are to catch them.

/// One crate with its tests.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) package: &'static str,
    /// Parts of the paths of files whose mutants are not run, since only tests that take no part reach them.
    pub(super) skip_files: &'static [&'static str],
    /// Test programs that take no part.
    pub(super) skip_programs: &'static [&'static str],
    /// Tests that take no part, by a part of their name.
    pub(super) skip_tests: &'static [&'static str],
    pub(super) environment: &'static [(&'static str, &'static str)],
    /// A test that takes more of the processor without a mutant takes no part.
    pub(super) test_seconds_max: u64,
    /// Processor time for the tests of one mutant, in seconds; the cheap ones come first.
    pub(super) budget_seconds: f64,
    /// The tests of mutants that go through cargo-mutants, as `cargo test` takes them.
    pub(super) slow_tests: &'static [&'static str],
    /// Workloads of the simulator for what survives these tests.
    pub(super) workloads: &'static [&'static str],
    /// Seeds of each workload: 0 up to this one.
    pub(super) seeds: u64,
}

const QUICK: Plan = Plan {
    package: "",
    skip_files: &[],
    skip_programs: &[],
    skip_tests: &[],
    environment: &[],
    test_seconds_max: 20,
    budget_seconds: 60.0,
    slow_tests: &["--lib", "--tests"],
    workloads: &[],
    seeds: 60,
};

/// All crates of `make mutants`, in the order in which they are run.
pub(super) const PLANS: &[Plan] = &[
    Plan { package: "layout", ..QUICK },
    // These programs start etcd. `--all-tests` takes them, on a machine that does nothing else.
    Plan {
        package: "directory",
        skip_files: &["/etcd/"],
        skip_programs: &["cluster", "fenced", "secured"],
        slow_tests: &["--lib"],
        ..QUICK
    },
    Plan { package: "uring", ..QUICK },
    Plan { package: "auth", ..QUICK },
    Plan { package: "access", ..QUICK },
    Plan { package: "schedule", ..QUICK },
    Plan { package: "checksum", ..QUICK },
    Plan { package: "nvme-wire", ..QUICK },
    Plan { package: "nvme-target", ..QUICK },
    // Most of it is tested by the simulator alone.
    Plan { package: "cluster", workloads: &["cluster"], seeds: 200, ..QUICK },
    Plan { package: "block-map", workloads: &["crash", "reuse", "corrupt", "paged"], ..QUICK },
    Plan { package: "space", workloads: &["crash", "reuse", "full", "errors", "trade"], ..QUICK },
    Plan {
        package: "volume",
        // What takes longer than this is found sooner by the simulator.
        budget_seconds: 20.0,
        slow_tests: &["--lib"],
        workloads: &[
            "crash", "reuse", "churn", "errors", "corrupt", "full", "broken", "paged", "starts",
            "trade", "long", "control",
        ],
        ..QUICK
    },
];
