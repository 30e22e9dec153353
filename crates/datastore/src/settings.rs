//! The settings of the server: its arguments, and how memory is divided.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use units::ByteLen;

const MIB: u64 = 1 << 20;
/// The least memory for caches: a memtable and a cache of fewer bytes flush and read all the time.
const MEMORY_MIN: u64 = 16 * MIB;
/// Memory of the program itself: threads, connections, tables of open files, and the part of the page cache without which it
/// would read its own code from the disk.
const PROGRAM_BYTES: u64 = 64 * MIB;
/// The largest memtable: a larger one makes the pauses longer that a flush causes.
const MEMTABLE_MAX: u64 = 64 * MIB;
/// Threads of each kind at most.
const THREADS_MAX: i64 = 1024;
/// The largest value: replies are built in memory.
const VALUE_MAX: u64 = 64 * MIB;

/// The meaning of `SET`.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, ValueEnum)]
pub enum SetMode {
    /// The value replaces the one before
    #[default]
    Replace,
    /// The value is appended to the one before, up to --append-max, without reading it
    Append,
}

/// The time at which a write is answered.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, ValueEnum)]
pub enum Durability {
    /// When it is in the memtable; there is no log: whatever ends the server may lose it
    Memtable,
    /// When it is also in the log, in the kernel's memory: a power failure may lose it
    #[default]
    Buffered,
    /// When the log is on the device
    Synced,
}

/// The compression of data on the device.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, ValueEnum)]
pub enum Compression {
    /// None
    None,
    /// LZ4
    #[default]
    Lz4,
    /// Zstandard
    Zstd,
    /// Snappy
    Snappy,
}

/// Arguments of `farflash datastore serve`.
#[derive(Clone, Debug, Args)]
pub struct Serve {
    /// Directory of the data, made if it is missing; on a volume of Flash, local or remote
    #[arg(long, value_name = "DIRECTORY")]
    pub data: PathBuf,
    /// Address for clients
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:6379")]
    pub listen: SocketAddr,
    /// Address for Prometheus (`/metrics`) and health checks (`/healthz`)
    #[arg(long, value_name = "IP:PORT")]
    pub metrics: Option<SocketAddr>,
    /// Encrypt both with certificate.pem and key.pem of this directory, which are made if neither exists; with clients.pem
    /// there, clients have to show a certificate of one of its authorities
    #[arg(long, value_name = "DIRECTORY")]
    pub tls: Option<PathBuf>,
    /// File with the password that clients need, in its first line
    #[arg(long, value_name = "FILE")]
    pub password_file: Option<PathBuf>,
    /// Threads that serve reads
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=THREADS_MAX))]
    pub readers: u32,
    /// Threads that serve writes
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=THREADS_MAX))]
    pub writers: u32,
    /// Threads that serve connections
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=THREADS_MAX))]
    pub io_threads: u32,
    /// Meaning of SET
    #[arg(long, value_enum, default_value_t)]
    pub set: SetMode,
    /// Longest value to which APPEND, and SET with `--set append`, lets a value grow
    #[arg(long, value_name = "SIZE", default_value = "10kB")]
    pub append_max: ByteLen,
    /// Longest value of one request
    #[arg(long, value_name = "SIZE", default_value = "1MiB")]
    pub value_max: ByteLen,
    /// When a write is answered
    #[arg(long, value_enum, default_value_t)]
    pub writes: Durability,
    /// Turns of an empty loop before each request, for services that compute more
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub busy_loop: u64,
    /// Memory for memtables and block cache
    #[arg(long, value_name = "SIZE", default_value = "1GiB")]
    pub memory: ByteLen,
    /// Memory for requests and replies in flight, over all connections
    #[arg(long, value_name = "SIZE", default_value = "256MiB")]
    pub request_memory: ByteLen,
    /// All memory: that of --memory, --request-memory and the program, and the kernel's page cache of the data; bounded by a
    /// control group that the server makes for itself, or else, where none can be made, by --direct-io
    #[arg(long, value_name = "SIZE")]
    pub memory_total: Option<ByteLen>,
    /// Connections at most
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub connections: u32,
    /// Settings of RocksDB
    #[command(flatten)]
    pub tuning: Tuning,
}

/// Settings of RocksDB, with which a stall can be changed.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "RocksDB")]
pub struct Tuning {
    /// Flushes and compactions at a time
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=THREADS_MAX))]
    pub background_jobs: u32,
    /// Memtables, of which all but one may wait for their flush; they share a quarter of --memory
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(2..=64))]
    pub memtables: u32,
    /// Files in level 0 from which on a compaction begins
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..))]
    pub level0_compaction: u32,
    /// Files in level 0 from which on writes are delayed
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    pub level0_slowdown: u32,
    /// Files in level 0 from which on writes stop
    #[arg(long, value_name = "N", default_value_t = 36, value_parser = clap::value_parser!(u32).range(1..))]
    pub level0_stop: u32,
    /// Bytes that compactions may be behind before writes are delayed
    #[arg(long, value_name = "SIZE", default_value = "64GiB")]
    pub pending_slowdown: ByteLen,
    /// Bytes that compactions may be behind before writes stop
    #[arg(long, value_name = "SIZE", default_value = "256GiB")]
    pub pending_stop: ByteLen,
    /// Compression of data on the device
    #[arg(long, value_enum, default_value_t)]
    pub compression: Compression,
    /// Size of the blocks that are read and cached
    #[arg(long, value_name = "SIZE", default_value = "4KiB")]
    pub block_size: ByteLen,
    /// Read and write the device past the kernel's page cache, which --memory does not bound
    #[arg(long)]
    pub direct_io: bool,
    /// Directory for RocksDB's own log, on another file system than the data; none: it is not kept
    #[arg(long, value_name = "DIRECTORY")]
    pub rocksdb_log: Option<PathBuf>,
}

/// Settings that do not fit together. The text names them.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum SettingsError {
    /// Too little memory.
    #[error("--memory {0} is too little; {min} is the least", min = ByteLen(MEMORY_MIN))]
    TooLittleMemory(ByteLen),
    /// Less memory in all than its parts.
    #[error("--memory-total {total} is too little for --memory, --request-memory and {program} of the program itself; {min_mib} MiB is the least", program = ByteLen(PROGRAM_BYTES))]
    TooLittleInAll {
        /// The setting.
        total: ByteLen,
        /// The smallest that fits the others, in MiB.
        min_mib: u64,
    },
    /// Limits of which the first must come before the second.
    #[error("{0} must be below {1}")]
    NotBelow(&'static str, &'static str),
    /// A size out of its range.
    #[error("{name} {value} is out of range; use {min} to {max}")]
    OutOfRange {
        /// The setting.
        name: &'static str,
        /// Its value.
        value: ByteLen,
        /// The smallest.
        min: ByteLen,
        /// The largest.
        max: ByteLen,
    },
}

/// The division of `--memory`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct MemoryPlan {
    /// Bytes of one memtable.
    pub memtable: u64,
    /// Memtables at most.
    pub memtables: u32,
    /// Bytes of the block cache, with indexes and filters.
    pub block_cache: u64,
}

impl Serve {
    /// Checks what single arguments do not say, and divides the memory.
    ///
    /// # Errors
    ///
    /// Settings do not fit together.
    pub fn plan(&self) -> Result<MemoryPlan, SettingsError> {
        let Tuning { level0_compaction, level0_slowdown, level0_stop, memtables, .. } = self.tuning;
        let below = |ok: bool, first, second| {
            if ok { Ok(()) } else { Err(SettingsError::NotBelow(first, second)) }
        };
        below(level0_compaction <= level0_slowdown, "--level0-compaction", "--level0-slowdown")?;
        below(level0_slowdown < level0_stop, "--level0-slowdown", "--level0-stop")?;
        let pending = self.tuning.pending_slowdown.0 < self.tuning.pending_stop.0;
        below(pending, "--pending-slowdown", "--pending-stop")?;
        let range = |name, value: ByteLen, min: u64, max: u64| {
            let (min, max) = (ByteLen(min), ByteLen(max));
            let inside = (min.0..=max.0).contains(&value.0);
            if inside { Ok(()) } else { Err(SettingsError::OutOfRange { name, value, min, max }) }
        };
        range("--append-max", self.append_max, 1, VALUE_MAX)?;
        range("--value-max", self.value_max, 1, VALUE_MAX)?;
        range("--block-size", self.tuning.block_size, 1 << 10, 1 << 20)?;
        // A request of the longest value must fit.
        range("--request-memory", self.request_memory, 2 * self.value_max.0.max(MIB), 1 << 40)?;
        if self.memory.0 < MEMORY_MIN {
            return Err(SettingsError::TooLittleMemory(self.memory));
        }
        let min = self.memory.0.saturating_add(self.request_memory.0).saturating_add(PROGRAM_BYTES);
        if let Some(total) = self.memory_total.filter(|total| total.0 < min) {
            return Err(SettingsError::TooLittleInAll { total, min_mib: min.div_ceil(MIB) });
        }
        let memtable = (self.memory.0 / 4 / u64::from(memtables)).min(MEMTABLE_MAX);
        let block_cache = self.memory.0 - memtable * u64::from(memtables);
        Ok(MemoryPlan { memtable, memtables, block_cache })
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        serve: Serve,
    }

    fn plan(arguments: &str) -> Result<MemoryPlan, String> {
        let words = ["x", "--data", "d"].into_iter().chain(arguments.split_whitespace());
        let line = Line::try_parse_from(words).map_err(|error| error.to_string())?;
        line.serve.plan().map_err(|error| error.to_string())
    }

    #[test]
    fn memtables_and_cache_together_are_the_memory() {
        let expected = MemoryPlan { memtable: 64 * MIB, memtables: 4, block_cache: 768 * MIB };
        assert_eq!(plan(""), Ok(expected));
        let expected = MemoryPlan { memtable: 2 * MIB, memtables: 2, block_cache: 12 * MIB };
        assert_eq!(plan("--memory 16MiB --memtables 2"), Ok(expected));
        let large = plan("--memory 100GiB").expect("a plan");
        assert_eq!(large.memtable * 4 + large.block_cache, 100 << 30);
        assert_eq!(large.memtable, MEMTABLE_MAX);
    }

    #[test]
    fn settings_that_do_not_fit_are_named() {
        let cases = [
            ("--memory 1MiB", "--memory 1 MiB is too little; 16 MiB is the least"),
            ("--level0-slowdown 40", "--level0-slowdown must be below --level0-stop"),
            ("--level0-compaction 21", "--level0-compaction must be below --level0-slowdown"),
            ("--pending-stop 1GiB", "--pending-slowdown must be below --pending-stop"),
            ("--value-max 1GiB", "--value-max 1 GiB is out of range; use 1 B to 64 MiB"),
            (
                "--memory-total 1GiB",
                "--memory-total 1 GiB is too little for --memory, --request-memory and 64 MiB of the program itself; 1344 MiB is the least",
            ),
            ("--request-memory 1KiB", "--request-memory 1 KiB is out of range; use 2 MiB to 1 TiB"),
        ];
        for (arguments, message) in cases {
            assert_eq!(plan(arguments), Err(message.to_owned()));
        }
        for nonsense in ["--readers 0", "--memtables 1", "--writes maybe", "--connections 0"] {
            assert!(plan(nonsense).is_err(), "{nonsense}");
        }
    }
}
