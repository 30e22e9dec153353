//! The tables behind every check.

/// A row of the layering: a crate uses only crates of earlier rows, or earlier ones of its own row.
pub(super) struct Layer {
    pub(super) name: &'static str,
    pub(super) crates: &'static [&'static str],
    /// Crates that are earlier, and still none of this layer's business.
    pub(super) must_not_use: &'static [&'static str],
}

/// The layers, lowest first. Development dependencies are free: a test may use any world.
pub(super) const LAYERS: &[Layer] = &[
    Layer {
        name: "bytes",
        crates: &[
            "mutation-points",
            "situations",
            "random",
            "units",
            "checksum",
            "nvme-wire",
            "nbd-wire",
            "iscsi-wire",
            "layout",
            "resp",
        ],
        must_not_use: &[],
    },
    Layer {
        name: "decisions",
        crates: &[
            "auth",
            "access",
            "strangers",
            "reservation",
            "cluster",
            "nvme-target",
            "nbd-server",
            "nvme-initiator",
            "iscsi-target",
            "schedule",
            "toml-mistake",
        ],
        // What goes over the wire does not depend on what lies on a device.
        must_not_use: &["layout"],
    },
    Layer { name: "seams", crates: &["io-traits"], must_not_use: PROTOCOLS },
    Layer { name: "tasks", crates: &["local-sync", "pins", "executor"], must_not_use: PROTOCOLS },
    Layer {
        name: "storage",
        crates: &["ssd-model", "block-map", "space", "volume"],
        must_not_use: &[
            "nvme-wire",
            "nvme-target",
            "nvme-initiator",
            "nbd-wire",
            "nbd-server",
            "iscsi-wire",
            "iscsi-target",
            "executor",
        ],
    },
    Layer {
        name: "data plane",
        crates: &["dataplane"],
        // It serves whatever protocol: each has a crate of its own before it.
        must_not_use: &[
            "auth",
            "layout",
            "nvme-wire",
            "nvme-target",
            "nvme-initiator",
            "nbd-wire",
            "nbd-server",
            "iscsi-wire",
            "iscsi-target",
            "executor",
        ],
    },
    Layer {
        name: "front ends",
        crates: &["nvme-frontend", "nbd-frontend", "iscsi-frontend"],
        must_not_use: &["layout", "nvme-initiator", "executor"],
    },
    Layer {
        name: "machine",
        crates: &["allocator", "uring", "reactor"],
        must_not_use: &[
            "nvme-wire",
            "nvme-target",
            "nvme-initiator",
            "nbd-wire",
            "nbd-server",
            "layout",
            "volume",
            "dataplane",
            "nvme-frontend",
            "nbd-frontend",
            "iscsi-wire",
            "iscsi-target",
            "iscsi-frontend",
        ],
    },
    Layer {
        name: "devices",
        crates: &["device"],
        // A kind of device does not know what lies on it, nor who asks.
        must_not_use: &[
            "nvme-wire",
            "nvme-target",
            "nvme-initiator",
            "nbd-wire",
            "nbd-server",
            "iscsi-wire",
            "iscsi-target",
            "layout",
            "volume",
            "dataplane",
            "nvme-frontend",
            "nbd-frontend",
            "iscsi-frontend",
            "executor",
            "uring",
        ],
    },
    Layer {
        name: "control",
        crates: &["tls-files", "directory", "control", "client"],
        must_not_use: &["dataplane", "nvme-frontend", "volume", "layout", "nvme-target", "uring"],
    },
    Layer {
        name: "libraries",
        crates: &["farflash-client", "farflash-c"],
        must_not_use: &["dataplane", "nvme-frontend", "volume", "layout", "nvme-target", "uring"],
    },
    Layer {
        name: "tools",
        crates: &[
            "attach",
            "load",
            "report",
            "cost-model",
            "host-tune",
            "profile",
            "array-model",
            "reproduce",
            "kv-load",
            "datastore",
        ],
        must_not_use: &["dataplane", "nvme-frontend", "volume", "layout", "nvme-target"],
    },
    Layer {
        name: "server",
        crates: &["user-messages", "process-limits", "local-devices", "data-core", "server"],
        // It serves; measuring, modelling and using volumes are other commands' matters.
        must_not_use: &[
            "attach",
            "load",
            "cost-model",
            "host-tune",
            "profile",
            "array-model",
            "reproduce",
            "kv-load",
            "datastore",
            "farflash-client",
            "farflash-c",
            "layout",
            "uring",
        ],
    },
    Layer {
        name: "programs",
        crates: &[
            "wire-oracle",
            "sim",
            "one-build",
            "test-support",
            "test-hosts",
            "simulate",
            "farflash",
            "power-cut",
            "bench",
            "xtask",
        ],
        must_not_use: &[],
    },
];

const PROTOCOLS: &[&str] = &[
    "nvme-wire",
    "nvme-target",
    "nvme-initiator",
    "nbd-wire",
    "nbd-server",
    "iscsi-wire",
    "iscsi-target",
    "layout",
];

/// Crates of others that have one place. Development dependencies are free here, too.
pub(super) struct External {
    pub(super) name: &'static str,
    pub(super) only_in: &'static [&'static str],
    pub(super) why: &'static str,
}

/// The crate that names others' crates for their features, and calls none.
pub(super) const ONE_BUILD: &str = "one-build";

pub(super) const EXTERNALS: &[External] = &[
    External {
        name: "tokio",
        only_in: &["directory", "control", "datastore", "data-core", "server", "farflash"],
        why: "data cores run our own executor",
    },
    External { name: "axum", only_in: &["control"], why: "the API is the control crate's" },
    External {
        name: "fuser",
        only_in: &["attach", "power-cut", "bench"],
        why: "what ships mounts in one place",
    },
    External { name: "io-uring", only_in: &["uring"], why: "rings have one owner" },
    External {
        name: "rocksdb",
        only_in: &["datastore"],
        why: "nothing else is to need its library",
    },
    External {
        name: "mimalloc",
        only_in: &["allocator"],
        why: "programs share an allocator and its options",
    },
    External { name: "libc", only_in: &["uring", "bench"], why: "use rustix" },
    External {
        name: "clap",
        only_in: &["datastore", "simulate", "farflash", "power-cut", "bench"],
        why: "only programs read arguments",
    },
    External {
        name: "rustix",
        only_in: &[
            "device",
            "uring",
            "host-tune",
            "reactor",
            "tls-files",
            "directory",
            "control",
            "user-messages",
            "process-limits",
            "local-devices",
            "server",
            "farflash",
            "power-cut",
            "test-support",
            "load",
            "kv-load",
            "profile",
            "datastore",
            "bench",
        ],
        why: "logic never touches the world",
    },
];

/// Crates that must say `#![no_std]`: no clock, thread, socket or randomly ordered map can creep in.
pub(super) const NO_STD: &[&str] = &[
    "mutation-points",
    "units",
    "nvme-wire",
    "nbd-wire",
    "layout",
    "resp",
    "nvme-target",
    "nbd-server",
    "nvme-initiator",
    "iscsi-wire",
    "iscsi-target",
    "schedule",
    "strangers",
];

/// Where a rule on words looks.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Place {
    /// Everywhere but in these crates.
    AllBut(&'static [&'static str]),
    /// In these crates only.
    Only(&'static [&'static str]),
}

/// A sequence of tokens that is not wanted.
pub(super) struct Call {
    pub(super) rule: &'static str,
    /// As Rust tokens: blanks do not matter, comments and strings are not looked at.
    pub(super) pattern: &'static str,
    pub(super) place: Place,
    pub(super) in_tests_too: bool,
    pub(super) why: &'static str,
}

const PROGRAMS: Place =
    Place::AllBut(&["datastore", "simulate", "farflash", "power-cut", "bench", "xtask"]);
const FOREIGN_BYTES: Place = Place::Only(&[
    "nvme-wire",
    "nbd-wire",
    "layout",
    "resp",
    "nvme-target",
    "nbd-server",
    "nvme-initiator",
    "iscsi-wire",
    "iscsi-target",
]);
const CLOCKS: Place = Place::AllBut(&[
    "uring",
    "reactor",
    "load",
    "kv-load",
    "profile",
    "datastore",
    "directory",
    "control",
    "simulate",
    "user-messages",
    "process-limits",
    "local-devices",
    "server",
    "farflash",
    "test-support",
    "power-cut",
    "bench",
    "xtask",
]);
/// Crates whose tests are about real time or other processes.
const REAL_TIME: Place = Place::AllBut(&[
    "uring",
    "reactor",
    "kv-load",
    "profile",
    "datastore",
    "local-devices",
    "server",
    "farflash",
    "test-support",
    "power-cut",
    "bench",
    "xtask",
]);
const THREADS: Place = Place::AllBut(&[
    "reactor",
    "client",
    "farflash-client",
    "control",
    "directory",
    "load",
    "kv-load",
    "profile",
    "datastore",
    "simulate",
    "process-limits",
    "local-devices",
    "server",
    "farflash",
    "test-support",
    "power-cut",
    "bench",
    "xtask",
]);
const NO_UNSAFE: Place = Place::AllBut(&[
    "allocator",
    "checksum",
    "uring",
    "device",
    "executor",
    "farflash-c",
    "python",
]);

pub(super) const CALLS: &[Call] = &[
    Call {
        rule: "todo",
        pattern: "todo!",
        place: Place::AllBut(&[]),
        in_tests_too: true,
        why: "finish it",
    },
    Call {
        rule: "todo",
        pattern: "unimplemented!",
        place: Place::AllBut(&[]),
        in_tests_too: true,
        why: "finish it",
    },
    Call {
        rule: "dbg",
        pattern: "dbg!",
        place: Place::AllBut(&[]),
        in_tests_too: true,
        why: "left over from debugging",
    },
    Call {
        rule: "ignored-test",
        pattern: "#[ignore]",
        place: Place::AllBut(&[]),
        in_tests_too: true,
        why: "say why; a long test reads its length from the environment instead",
    },
    Call {
        rule: "unwrap",
        pattern: ".unwrap(",
        place: FOREIGN_BYTES,
        in_tests_too: false,
        why: "a peer's bytes must not panic; use expect with the reason, or an error",
    },
    Call {
        rule: "print",
        pattern: "println!",
        place: PROGRAMS,
        in_tests_too: false,
        why: "libraries return or trace",
    },
    Call {
        rule: "print",
        pattern: "eprintln!",
        place: PROGRAMS,
        in_tests_too: false,
        why: "libraries return or trace",
    },
    Call {
        rule: "print",
        pattern: "print!",
        place: PROGRAMS,
        in_tests_too: false,
        why: "libraries return or trace",
    },
    Call {
        rule: "clock",
        pattern: "Instant::now",
        place: CLOCKS,
        in_tests_too: false,
        why: "take `now` as an argument or a Clock",
    },
    Call {
        rule: "clock",
        pattern: "SystemTime::now",
        place: CLOCKS,
        in_tests_too: false,
        why: "take the time as an argument",
    },
    Call {
        rule: "thread",
        pattern: "std::thread",
        place: THREADS,
        in_tests_too: false,
        why: "one core is one thread; threads are the reactor's",
    },
    Call {
        rule: "thread",
        pattern: "thread::sleep",
        place: REAL_TIME,
        in_tests_too: true,
        why: "wait for the event, not for time",
    },
    Call {
        rule: "unsafe",
        pattern: "unsafe",
        place: NO_UNSAFE,
        in_tests_too: false,
        why: "unsafe code has few homes, each at an edge",
    },
];

/// Words that no line of ours holds, comments included.
pub(super) const WORDS: &[&str] = &["FIXME", "XXX"];

/// A file of more lines is shown; tests are not counted.
pub(super) const FILE_LINES_WARN: usize = 500;
/// A file of more lines fails.
pub(super) const FILE_LINES_MAX: usize = 800;
/// A function of more lines fails.
pub(super) const FUNCTION_LINES_MAX: usize = 70;
/// Shorter than this, the reason behind an `allow` says nothing.
pub(super) const REASON_LEN_MIN: usize = 12;

/// Words with which no doc comment begins.
pub(super) const FIRST_WORDS: &[&str] =
    &["What", "Who", "Whose", "Whom", "Whether", "Which", "How", "Where", "Of"];

/// A word, or several in a row, that plain English does without.
pub(super) struct PlainWord {
    /// In lower case.
    pub(super) words: &'static [&'static str],
    /// What the finding proposes.
    pub(super) instead: &'static str,
    /// In names, messages and documents it may stand: there it speaks of people.
    pub(super) only_in_comments: bool,
}

const fn plain(words: &'static [&'static str], instead: &'static str) -> PlainWord {
    PlainWord { words, instead, only_in_comments: false }
}

const fn in_comments(words: &'static [&'static str], instead: &'static str) -> PlainWord {
    PlainWord { words, instead, only_in_comments: true }
}

pub(super) const PLAIN_WORDS: &[PlainWord] = &[
    plain(&["nobody"], "`no host`, `no client`, `no task`"),
    plain(&["somebody"], "which peer or task it is"),
    plain(&["whoever"], "`the host that`, `a caller that`"),
    plain(&["whom"], "the peer's name"),
    plain(&["anew"], "`again`, or what is rebuilt"),
    plain(&["stop", "to"], "`stop` with a form in -ing"),
    plain(&["stops", "to"], "`stops` with a form in -ing"),
    in_comments(&["who"], "`the host that`, `the caller that`"),
    in_comments(&["he"], "the peer's name"),
    in_comments(&["him"], "the peer's name"),
];

pub(super) const MARKDOWN_WIDTH_MAX: usize = 100;

/// Words in comments that look like labels without the prefix of their list, and are none.
pub(super) struct NoLabel {
    pub(super) words: &'static [&'static str],
    /// The crates whose comments may have them.
    pub(super) crates: &'static [&'static str],
}

pub(super) const NO_LABELS: &[NoLabel] = &[
    // Idle states of a CPU.
    NoLabel { words: &["C1", "C3", "C6"], crates: &["array-model"] },
    // A cache of a CPU.
    NoLabel { words: &["L2"], crates: &["bench"] },
    // Instructions of a CPU.
    NoLabel { words: &["SSE2"], crates: &["checksum"] },
    // Values of DH-HMAC-CHAP.
    NoLabel { words: &["C1", "C2", "R1", "R2", "S1", "S2"], crates: &["auth", "nvme-wire"] },
    // Fields of NVMe.
    NoLabel { words: &["EUI64", "RTD3", "SGL1"], crates: &["nvme-wire"] },
    // The committee of SCSI.
    NoLabel { words: &["T10"], crates: &["iscsi-target"] },
    // Percentiles and a compression, as RocksDB names them.
    NoLabel { words: &["P50", "P95", "P99", "LZ4"], crates: &["datastore"] },
    // Magic numbers of the format.
    NoLabel { words: &["FCM1", "FJR1", "FMN1", "FOM1", "FSR1", "FVD1"], crates: &["layout"] },
];

/// Macros whose text people read.
pub(super) const TEXT_MACROS: [&str; 10] = [
    "anyhow",
    "bail",
    "eprint",
    "eprintln",
    "format",
    "format_args",
    "print",
    "println",
    "write",
    "writeln",
];

/// Macros that write a line of the log.
pub(super) const LOG_MACROS: [&str; 6] = ["debug", "error", "event", "info", "trace", "warn"];

/// Crates whose messages are for those who work on farflash.
pub(super) const DEBUG_FORM_EXEMPT: [&str; 8] =
    ["bench", "fuzz", "power-cut", "sim", "simulate", "situations", "wire-oracle", "xtask"];
