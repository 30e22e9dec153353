//! The database: RocksDB with the settings of the server.

use std::borrow::Cow;
use std::ffi::CStr;
use std::hash::{BuildHasher, RandomState};
use std::path::Path;
use std::sync::{Mutex, RwLock};

use datastore::{
    Compression, Cursors, Durability, MemoryPlan, Pressure, Serve, Statistics, StoreErrorKind,
    Tuning, merge,
};
use rocksdb::{
    BlockBasedOptions, Cache, DB, DBCompressionType, Error, ErrorKind, FlushOptions, LogLevel,
    MergeOperands, Options, WriteBatch, WriteOptions, properties,
};

use super::store_errors::StoreErrors;
use super::threads;

/// Locks of keys. More make collisions rarer, and cost 8 bytes each.
const STRIPES: usize = 1024;
/// Scans that can go on. Each is a key of at most 32 KiB, kept twice.
const CURSORS_MAX: usize = 1024;
/// Bits of the filters for each key: 1 % of searches look into a file without the key.
const FILTER_BITS: f64 = 10.0;

/// An open database.
pub(crate) struct Store {
    pub(super) db: DB,
    options: Options,
    cache: Cache,
    plan: MemoryPlan,
    pub(super) serve: Serve,
    /// Requests that read before they write hold the lock of their key alone; others share it.
    pub(super) stripes: Vec<RwLock<()>>,
    hasher: RandomState,
    pub(super) cursors: Mutex<Cursors>,
    pub(super) errors: StoreErrors,
}

impl Store {
    /// Opens the directory of the data, and makes it if it is missing.
    pub(crate) fn open(serve: &Serve, plan: MemoryPlan) -> Result<Self, Error> {
        let cache = Cache::new_lru_cache(usize::try_from(plan.block_cache).unwrap_or(usize::MAX))?;
        let options = options(serve, plan, &cache);
        let db = DB::open(&options, &serve.data)?;
        let stripes = (0..STRIPES).map(|_| RwLock::new(())).collect();
        let cursors = Mutex::new(Cursors::new(CURSORS_MAX));
        let hasher = RandomState::new();
        let errors = StoreErrors::new();
        Ok(Self {
            db,
            options,
            cache,
            plan,
            serve: serve.clone(),
            stripes,
            hasher,
            cursors,
            errors,
        })
    }

    /// The lock of a key.
    pub(super) fn stripe(&self, key: &[u8]) -> usize {
        (self.hasher.hash_one(key) % STRIPES as u64) as usize
    }

    /// The way in which writes are written.
    pub(super) fn write_options(&self) -> WriteOptions {
        let mut options = WriteOptions::default();
        match self.serve.writes {
            Durability::Memtable => options.disable_wal(true),
            Durability::Buffered => {}
            Durability::Synced => options.set_sync(true),
        }
        options
    }

    /// Notes an error of RocksDB, and returns the reply to the request that met it.
    pub(super) fn reply_of(&self, error: &Error) -> Cow<'static, str> {
        self.errors.note(error.as_ref()).into()
    }

    /// Returns the error with which RocksDB refuses writes, if it does. An empty write finds that out: no counter tells.
    pub(super) fn refusal(&self) -> Option<String> {
        let mut options = self.write_options();
        options.set_sync(false);
        options.set_no_slowdown(true);
        let error = self.db.write_opt(WriteBatch::default(), &options).err()?;
        // A stall, which is told of as one.
        if error.kind() == ErrorKind::Incomplete {
            return None;
        }
        let message = error.as_ref();
        Some(StoreErrorKind::of(message).reply(message))
    }

    /// Makes all that was written durable, before the server ends.
    pub(crate) fn finish(&self) -> Result<(), Error> {
        if self.serve.writes == Durability::Memtable {
            let mut options = FlushOptions::default();
            options.set_wait(true);
            self.db.flush_opt(&options)
        } else {
            self.db.flush_wal(true)
        }
    }

    /// RocksDB's counters.
    pub(crate) fn statistics(&self) -> Statistics {
        Statistics::parse(&self.options.get_statistics().unwrap_or_default())
    }

    /// A number that RocksDB keeps; 0 if it has none of this name.
    pub(crate) fn number(&self, name: &CStr) -> u64 {
        self.db.property_int_value(name).ok().flatten().unwrap_or_default()
    }

    /// The same of a number that RocksDB hands out as text only.
    fn number_in_text(&self, name: &CStr) -> u64 {
        let text = self.db.property_value(name).ok().flatten().unwrap_or_default();
        text.trim().parse().unwrap_or_default()
    }

    /// Failures of flushes and compactions, and errors that requests met.
    pub(super) fn failures(&self) -> u64 {
        let met: u64 = self.errors.counts().map(|(_, count)| count).sum();
        self.number(properties::BACKGROUND_ERRORS) + met
    }

    /// Counts of stalls by cause.
    pub(crate) fn stalls(&self) -> Vec<(String, u64)> {
        let text = self.db.property_value(properties::CFSTATS_NO_FILE_HISTOGRAM).ok().flatten();
        datastore::compaction_stalls(&text.unwrap_or_default())
    }

    /// The numbers on which RocksDB decides about stalls.
    pub(crate) fn pressure(&self) -> Pressure {
        let Tuning {
            level0_slowdown, level0_stop, pending_slowdown, pending_stop, memtables, ..
        } = self.serve.tuning;
        let level0 = properties::num_files_at_level(0);
        Pressure {
            stopped: self.number(properties::IS_WRITE_STOPPED) != 0,
            delayed_rate: self.number(properties::ACTUAL_DELAYED_WRITE_RATE),
            immutable_memtables: self.number(properties::NUM_IMMUTABLE_MEM_TABLE),
            memtables: u64::from(memtables),
            level0_files: self.number_in_text(&level0),
            level0_slowdown: u64::from(level0_slowdown),
            level0_stop: u64::from(level0_stop),
            pending_bytes: self.number(properties::ESTIMATE_PENDING_COMPACTION_BYTES),
            pending_slowdown: pending_slowdown.0,
            pending_stop: pending_stop.0,
        }
    }

    /// Bytes in the block cache.
    pub(crate) fn cache_used(&self) -> u64 {
        self.cache.get_usage() as u64
    }

    /// The division of the memory.
    pub(crate) fn plan(&self) -> MemoryPlan {
        self.plan
    }

    /// The directory of the data.
    pub(crate) fn path(&self) -> &Path {
        &self.serve.data
    }
}

fn options(serve: &Serve, plan: MemoryPlan, cache: &Cache) -> Options {
    let tuning = &serve.tuning;
    let signed = |number: u32| i32::try_from(number).unwrap_or(i32::MAX);
    let size = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
    let mut options = Options::default();
    options.create_if_missing(true);
    options.enable_statistics();
    options.set_paranoid_checks(true);
    log(serve, &mut options);
    options.set_write_buffer_size(size(plan.memtable));
    options.set_max_write_buffer_number(signed(tuning.memtables));
    options.set_max_background_jobs(signed(tuning.background_jobs));
    options.set_max_file_opening_threads(threads::opening(serve));
    options.set_level_zero_file_num_compaction_trigger(signed(tuning.level0_compaction));
    options.set_level_zero_slowdown_writes_trigger(signed(tuning.level0_slowdown));
    options.set_level_zero_stop_writes_trigger(signed(tuning.level0_stop));
    options.set_soft_pending_compaction_bytes_limit(size(tuning.pending_slowdown.0));
    options.set_hard_pending_compaction_bytes_limit(size(tuning.pending_stop.0));
    options.set_level_compaction_dynamic_level_bytes(true);
    options.set_bytes_per_sync(1 << 20);
    // Writers that wait for their group would spin, and with more writers than CPUs take these from the leader.
    options.set_enable_write_thread_adaptive_yield(false);
    options.set_use_direct_reads(tuning.direct_io);
    options.set_use_direct_io_for_flush_and_compaction(tuning.direct_io);
    options.set_compression_type(match tuning.compression {
        Compression::None => DBCompressionType::None,
        Compression::Lz4 => DBCompressionType::Lz4,
        Compression::Zstd => DBCompressionType::Zstd,
        Compression::Snappy => DBCompressionType::Snappy,
    });
    let len_max = size(serve.append_max.0);
    let full = move |_: &[u8], base: Option<&[u8]>, operands: &MergeOperands| {
        Some(merge(base, operands, len_max))
    };
    let partial = move |_: &[u8], _: Option<&[u8]>, operands: &MergeOperands| {
        Some(merge(None, operands, len_max))
    };
    options.set_merge_operator("farflash.append", full, partial);
    options.set_block_based_table_factory(&table(tuning, cache));
    options
}

/// RocksDB's own log. Debian's library is built with assertions, and one of them ends the process when the log is
/// written to again after its file system was full. So next to the data RocksDB logs nothing but its options, when
/// it is opened; all else only goes to a directory that was named for it.
fn log(serve: &Serve, options: &mut Options) {
    // A log of 1 MiB, and the one before.
    options.set_max_log_file_size(1 << 20);
    options.set_keep_log_file_num(2);
    options.set_stats_dump_period_sec(0);
    match &serve.tuning.rocksdb_log {
        Some(directory) => options.set_db_log_dir(directory),
        None => options.set_log_level(LogLevel::Fatal),
    }
}

/// Indexes and filters lie in the block cache, too, so that it bounds all memory for reads.
fn table(tuning: &Tuning, cache: &Cache) -> BlockBasedOptions {
    let mut table = BlockBasedOptions::default();
    table.set_block_cache(cache);
    table.set_block_size(usize::try_from(tuning.block_size.0).unwrap_or(usize::MAX));
    table.set_cache_index_and_filter_blocks(true);
    table.set_pin_l0_filter_and_index_blocks_in_cache(true);
    table.set_bloom_filter(FILTER_BITS, false);
    table.set_format_version(5);
    table
}
