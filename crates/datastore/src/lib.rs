//! A key-value server on RocksDB that speaks RESP: the datastore tier, whose data lies on local or remote Flash.
//!
//! This library is the part that does no I/O, and that builds without RocksDB:
//!
//! - `settings.rs`: the arguments of `farflash datastore serve`, and how memory is divided.
//! - `command.rs`: the meaning of a request; `glob.rs` and `cursors.rs` serve `SCAN` and `CONFIG GET`.
//! - `append.rs`: the merge that appends up to a maximum length.
//! - `budget.rs`: the bound on memory of requests and replies in flight.
//! - `stalls.rs`: the cause of a write stall, and the setting that changes it.
//! - `statistics.rs`, `rates.rs`, `metrics.rs`: counters of RocksDB and of the device, and their two forms.
//! - `failure.rs`: errors of RocksDB as replies; `log_filter.rs`: which lines of the log are written.
//!
//! The program `farflash-datastore` (`server/`, feature `rocksdb`) adds RocksDB, sockets and threads.

mod append;
mod budget;
mod command;
mod cursors;
mod failure;
mod glob;
mod log_filter;
mod metrics;
mod rates;
mod settings;
mod stalls;
mod statistics;

pub use append::{appended_len, merge};
pub use budget::{Budget, Reserved};
pub use command::{
    Class, CommandError, Condition, KEY_LEN_MAX, Read, Scan, Session, Write, classify,
    command_count, config_get, parse_read, parse_session, parse_write,
};
pub use cursors::Cursors;
pub use failure::StoreErrorKind;
pub use glob::matches;
pub use log_filter::{BadLogFilter, log_filter};
pub use metrics::{Kind, Metric, Section, info_text, prometheus_text};
pub use rates::{DeviceStat, Rates, Sample};
pub use settings::{Compression, Durability, MemoryPlan, Serve, SetMode, SettingsError, Tuning};
pub use stalls::{Pressure, Severity, Stall, diagnose};
pub use statistics::{Histogram, Statistics, compaction_stalls};
