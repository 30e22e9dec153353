//! The state of the server for `INFO` and `/metrics`, and the log of stalls.

use std::fmt::Display;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use datastore::{
    DeviceStat, Durability, Kind, Metric, Rates, Sample, Section, Stall, Statistics, diagnose,
};
use rocksdb::properties;
use tls_files::Doubt;
use tokio::sync::watch;

use super::listen::Server;
use super::memory_group::MemoryGroup;
use super::session::redis_version;
use super::stats::ClassStats;
use super::tls::Tls;

/// Time between two samples.
const PERIOD: Duration = Duration::from_secs(1);
/// Rates are those of the last seconds.
const WINDOW: Duration = Duration::from_secs(10);

/// Samples, and the stall, the refusal of writes and the doubt about the certificate that were seen last.
pub(crate) struct Observed {
    /// The kernel's counters of the device below the data; `None` if no block device is.
    device: Option<PathBuf>,
    rates: Mutex<Rates>,
    stall: Mutex<Option<Stall>>,
    refusal: Mutex<Option<String>>,
    doubt: Mutex<Option<Doubt>>,
}

impl Observed {
    pub(crate) fn new(data: &Path) -> Self {
        Self {
            device: device_of(data),
            rates: Mutex::new(Rates::new(WINDOW)),
            stall: Mutex::default(),
            refusal: Mutex::default(),
            doubt: Mutex::default(),
        }
    }

    /// The error with which RocksDB refuses writes, if it does.
    fn refusal(&self) -> Option<String> {
        self.refusal.lock().expect("no panic while it is held").clone()
    }

    fn device_stat(&self) -> Option<DeviceStat> {
        DeviceStat::parse(&std::fs::read_to_string(self.device.as_ref()?).ok()?)
    }
}

fn device_of(data: &Path) -> Option<PathBuf> {
    let device = std::fs::metadata(data).ok()?.dev();
    let (major, minor) = (major_of(device), minor_of(device));
    let path = PathBuf::from(format!("/sys/dev/block/{major}:{minor}/stat"));
    path.is_file().then_some(path)
}

/// Major and minor number, as the kernel packs them.
fn major_of(device: u64) -> u64 {
    ((device >> 32) & 0xFFFF_F000) | ((device >> 8) & 0xFFF)
}

fn minor_of(device: u64) -> u64 {
    ((device >> 12) & 0xFFFF_FF00) | (device & 0xFF)
}

/// Takes a sample each second, and logs where a stall, a refusal of writes, or a doubt about the certificate, begins and ends.
pub(crate) async fn watch(server: Arc<Server>, mut stopping: watch::Receiver<bool>) {
    let mut failures = 0;
    loop {
        let sample = Sample {
            at: server.started.elapsed(),
            requests: server.stats.requests(),
            device: server.observed.device_stat().unwrap_or_default(),
        };
        server.observed.rates.lock().expect("no panic while it is held").push(sample);
        note_stall(&server, diagnose(&server.store.pressure()));
        let failures_now = server.store.failures();
        if std::mem::replace(&mut failures, failures_now) != failures_now
            || server.observed.refusal().is_some()
        {
            tokio::select! {
                _ = stopping.wait_for(|stopping| *stopping) => return,
                refusal = server.writers.probe() => note_refusal(&server, refusal),
            }
        }
        note_doubt(&server, server.tls.as_ref().and_then(Tls::doubt));
        tokio::select! {
            _ = stopping.wait_for(|stopping| *stopping) => return,
            () = tokio::time::sleep(PERIOD) => {}
        }
    }
}

fn note_stall(server: &Server, stall: Option<Stall>) {
    let mut last = server.observed.stall.lock().expect("no panic while it is held");
    let key = |stall: &Option<Stall>| stall.as_ref().map(|stall| (stall.cause, stall.severity));
    if key(&last) != key(&stall) {
        match &stall {
            Some(stall) => tracing::warn!("{}", stall.text),
            None => tracing::info!("writes are neither delayed nor stopped any more"),
        }
    }
    *last = stall;
}

fn note_refusal(server: &Server, refusal: Option<String>) {
    let mut last = server.observed.refusal.lock().expect("no panic while it is held");
    if *last != refusal {
        match &refusal {
            Some(text) => tracing::error!("all writes are refused: {text}"),
            None => tracing::info!("writes are served again"),
        }
    }
    *last = refusal;
}

fn note_doubt(server: &Server, doubt: Option<Doubt>) {
    let mut last = server.observed.doubt.lock().expect("no panic while it is held");
    if *last != doubt {
        match &doubt {
            Some(Doubt::Refused(text)) => tracing::error!("{text}"),
            Some(Doubt::Expires(text)) => tracing::warn!("{text}"),
            None => tracing::info!("the certificate of --tls is good again"),
        }
    }
    *last = doubt;
}

/// A list of metrics that is being written.
struct List {
    metrics: Vec<Metric>,
    section: Section,
}

impl List {
    fn add(&mut self, kind: Kind, name: &'static str, help: &'static str, value: impl Display) {
        let metric = Metric {
            section: self.section,
            name,
            label: None,
            kind,
            help,
            value: value.to_string(),
        };
        self.metrics.push(metric);
    }

    fn text(&mut self, name: &'static str, value: impl Display) {
        self.add(Kind::Text, name, "", value);
    }

    fn gauge(&mut self, name: &'static str, help: &'static str, value: impl Display) {
        self.add(Kind::Gauge, name, help, value);
    }

    fn counter(&mut self, name: &'static str, help: &'static str, value: impl Display) {
        self.add(Kind::Counter, name, help, value);
    }

    fn labelled(
        &mut self,
        name: &'static str,
        help: &'static str,
        label: (&'static str, &str),
        value: impl Display,
    ) {
        self.counter(name, help, value);
        if let Some(last) = self.metrics.last_mut() {
            last.label = Some((label.0, label.1.to_owned()));
        }
    }
}

/// All metrics.
pub(crate) fn metrics(server: &Server) -> Vec<Metric> {
    let mut list = List { metrics: Vec::new(), section: Section::Server };
    let statistics = server.store.statistics();
    about_server(&mut list, server);
    about_clients(&mut list, server);
    about_memory(&mut list, server, &statistics);
    about_requests(&mut list, server);
    about_flash(&mut list, server, &statistics);
    about_rocksdb(&mut list, server, &statistics);
    about_stalls(&mut list, server, &statistics);
    about_errors(&mut list, server);
    list.section = Section::Keyspace;
    list.gauge(
        "keys_estimate",
        "RocksDB's estimate of the number of keys.",
        server.store.number(properties::ESTIMATE_NUM_KEYS),
    );
    list.metrics
}

fn about_server(list: &mut List, server: &Server) {
    list.section = Section::Server;
    list.text("redis_version", redis_version());
    list.text("farflash_version", env!("CARGO_PKG_VERSION"));
    list.text("rocksdb_version", &server.library);
    list.text("process_id", std::process::id());
    list.text("data", server.store.path().display());
    list.text(
        "writes",
        match server.serve.writes {
            Durability::Memtable => "memtable",
            Durability::Buffered => "buffered",
            Durability::Synced => "synced",
        },
    );
    list.gauge(
        "uptime_in_seconds",
        "Seconds since the server started.",
        server.started.elapsed().as_secs(),
    );
    list.counter(
        "panics_total",
        "Tasks and requests that failed by a fault of this program.",
        server.stats.panics.get(),
    );
    if let Some(tls) = &server.tls {
        let doubt = tls.doubt();
        list.text("certificate", doubt.as_ref().map_or("good", Doubt::text));
        list.gauge(
            "certificate_refused",
            "1 if clients refuse the certificate of --tls.",
            u8::from(matches!(doubt, Some(Doubt::Refused(_)))),
        );
        list.gauge(
            "certificate_expires_soon",
            "1 if it expires within seven days.",
            u8::from(matches!(doubt, Some(Doubt::Expires(_)))),
        );
    }
}

fn about_clients(list: &mut List, server: &Server) {
    list.section = Section::Clients;
    list.gauge("connected_clients", "Connections of clients.", server.stats.connected.get());
    list.gauge("maxclients", "Connections that are allowed.", server.serve.connections);
    list.counter(
        "connections_accepted_total",
        "Connections accepted.",
        server.stats.accepted.get(),
    );
    list.counter(
        "connections_refused_total",
        "Connections refused, as there were too many.",
        server.stats.refused.get(),
    );
}

fn about_memory(list: &mut List, server: &Server, statistics: &Statistics) {
    list.section = Section::Memory;
    let plan = server.store.plan();
    list.gauge(
        "memory_limit_bytes",
        "Memory for memtables and block cache.",
        server.serve.memory.0,
    );
    if let Some(total) = server.serve.memory_total {
        list.gauge(
            "memory_total_limit_bytes",
            "Bound on all memory, page cache included.",
            total.0,
        );
        let bound = server.memory_group.as_ref().map_or_else(
            || "direct I/O".to_owned(),
            |group| format!("control group {}", group.path().display()),
        );
        list.text("memory_bound", bound);
    }
    if let Some(used) = server.memory_group.as_ref().and_then(MemoryGroup::used) {
        list.gauge("memory_total_used_bytes", "All memory, page cache included.", used);
    }
    list.gauge("block_cache_capacity_bytes", "Size of the block cache.", plan.block_cache);
    list.gauge("block_cache_used_bytes", "Bytes in the block cache.", server.store.cache_used());
    let rate = |rate: Option<f64>| format!("{:.4}", rate.unwrap_or_default());
    list.gauge(
        "block_cache_hit_rate",
        "Share of block reads that the cache served.",
        rate(statistics.cache_hit_rate()),
    );
    list.gauge(
        "block_cache_data_hit_rate",
        "The same of blocks with keys and values.",
        rate(statistics.data_hit_rate()),
    );
    list.counter(
        "block_cache_hits_total",
        "Blocks found in the cache.",
        statistics.ticker("rocksdb.block.cache.hit"),
    );
    list.counter(
        "block_cache_misses_total",
        "Blocks not found in the cache.",
        statistics.ticker("rocksdb.block.cache.miss"),
    );
    list.gauge(
        "memtables_limit_bytes",
        "Memory for memtables.",
        plan.memtable * u64::from(plan.memtables),
    );
    list.gauge(
        "memtables_used_bytes",
        "Memory of all memtables.",
        server.store.number(properties::SIZE_ALL_MEM_TABLES),
    );
    list.gauge(
        "request_memory_limit_bytes",
        "Memory for requests and replies in flight.",
        server.serve.request_memory.0,
    );
    list.gauge(
        "request_memory_used_bytes",
        "Memory of requests and replies in flight.",
        server.budget.used(),
    );
}

fn about_requests(list: &mut List, server: &Server) {
    list.section = Section::Stats;
    let stats = &server.stats;
    let classes = [("read", &stats.reads), ("write", &stats.writes), ("session", &stats.session)];
    let mut each = |name, help, value: &dyn Fn(&ClassStats) -> u64| {
        classes
            .iter()
            .for_each(|(class, of)| list.labelled(name, help, ("class", class), value(of)));
    };
    each("requests_total", "Requests served.", &|class| class.requests.get());
    each(
        "queue_microseconds_total",
        "Time for which groups of requests waited for a thread.",
        &|class| class.waited_us.get(),
    );
    each("service_microseconds_total", "Time for which threads served requests.", &|class| {
        class.served_us.get()
    });
    let rates = server.observed.rates.lock().expect("no panic while it is held");
    let per_second = rates.per_second(|sample| sample.requests);
    list.gauge(
        "requests_per_second",
        "Requests a second, over ten seconds.",
        format!("{per_second:.1}"),
    );
    list.gauge("reads_queued", "Groups of reads that wait for a thread.", stats.reads.queued.get());
    list.gauge(
        "writes_queued",
        "Groups of writes that wait for a thread.",
        stats.writes.queued.get(),
    );
    list.counter("keyspace_hits_total", "Keys that were looked up and found.", stats.hits.get());
    list.counter(
        "keyspace_misses_total",
        "Keys that were looked up and not found.",
        stats.misses.get(),
    );
    list.counter("errors_total", "Requests answered by an error.", stats.errors.get());
    list.counter("received_bytes_total", "Bytes received from clients.", stats.bytes_in.get());
    list.counter("sent_bytes_total", "Bytes sent to clients.", stats.bytes_out.get());
}

fn about_flash(list: &mut List, server: &Server, statistics: &Statistics) {
    list.section = Section::Flash;
    if let Some(now) = server.observed.device_stat() {
        list.counter(
            "device_reads_total",
            "Reads of the device below the data, by any process.",
            now.reads,
        );
        list.counter("device_read_bytes_total", "Bytes read of it.", now.read_bytes);
        list.counter("device_writes_total", "Writes to it.", now.writes);
        list.counter("device_written_bytes_total", "Bytes written to it.", now.write_bytes);
        let rates = server.observed.rates.lock().expect("no panic while it is held");
        let [reads, read_bytes, writes, write_bytes] = [
            rates.per_second(|sample| sample.device.reads),
            rates.per_second(|sample| sample.device.read_bytes),
            rates.per_second(|sample| sample.device.writes),
            rates.per_second(|sample| sample.device.write_bytes),
        ];
        let size = |bytes: f64, count: f64| if count > 0.0 { bytes / count } else { 0.0 };
        let mut gauge = |name, help, value: f64| list.gauge(name, help, format!("{value:.1}"));
        gauge("device_reads_per_second", "Reads a second, over ten seconds.", reads);
        gauge("device_read_bytes_per_second", "Bytes read a second, over ten seconds.", read_bytes);
        gauge(
            "device_read_size_bytes",
            "Average size of a read, over ten seconds.",
            size(read_bytes, reads),
        );
        gauge("device_writes_per_second", "Writes a second, over ten seconds.", writes);
        gauge(
            "device_written_bytes_per_second",
            "Bytes written a second, over ten seconds.",
            write_bytes,
        );
        gauge(
            "device_write_size_bytes",
            "Average size of a write, over ten seconds.",
            size(write_bytes, writes),
        );
    }
    let mut ticker = |name, help, ticker: &str| list.counter(name, help, statistics.ticker(ticker));
    ticker("wal_bytes_total", "Bytes written to the log.", "rocksdb.wal.bytes");
    ticker("wal_syncs_total", "Flushes of the log to the device.", "rocksdb.wal.synced");
    ticker(
        "flush_written_bytes_total",
        "Bytes written by flushes of memtables.",
        "rocksdb.flush.write.bytes",
    );
    ticker(
        "compaction_read_bytes_total",
        "Bytes read by compactions.",
        "rocksdb.compact.read.bytes",
    );
    ticker(
        "compaction_written_bytes_total",
        "Bytes written by compactions.",
        "rocksdb.compact.write.bytes",
    );
    let reads = statistics.histogram("rocksdb.sst.read.micros");
    list.counter(
        "table_reads_total",
        "Reads of table files, by requests and compactions.",
        reads.count,
    );
    list.gauge("table_read_p50_microseconds", "Median time of a read of a table file.", reads.p50);
    list.gauge("table_read_p99_microseconds", "99th percentile of the same.", reads.p99);
}

fn about_rocksdb(list: &mut List, server: &Server, statistics: &Statistics) {
    list.section = Section::Rocksdb;
    let number = |name| server.store.number(name);
    list.gauge("flushes_running", "Flushes that run.", number(properties::NUM_RUNNING_FLUSHES));
    list.gauge(
        "compactions_running",
        "Compactions that run.",
        number(properties::NUM_RUNNING_COMPACTIONS),
    );
    list.gauge("flush_pending", "1 if a flush waits.", number(properties::MEM_TABLE_FLUSH_PENDING));
    list.gauge(
        "compaction_pending",
        "1 if a compaction waits.",
        number(properties::COMPACTION_PENDING),
    );
    let flushes = statistics.histogram("rocksdb.db.flush.micros");
    list.counter("flushes_total", "Flushes that ended.", flushes.count);
    list.counter("flush_microseconds_total", "Time that flushes took.", flushes.sum);
    let compactions = statistics.histogram("rocksdb.compaction.times.micros");
    list.counter("compactions_total", "Compactions that ended.", compactions.count);
    list.counter("compaction_microseconds_total", "Time that compactions took.", compactions.sum);
    list.gauge(
        "live_data_bytes",
        "Estimate of the size of the data.",
        number(properties::ESTIMATE_LIVE_DATA_SIZE),
    );
    list.gauge(
        "table_files_bytes",
        "Size of all table files.",
        number(properties::TOTAL_SST_FILES_SIZE),
    );
    list.counter(
        "background_errors_total",
        "Flushes and compactions that failed.",
        number(properties::BACKGROUND_ERRORS),
    );
    for (name, help, histogram) in [
        ("get_p99_microseconds", "99th percentile of a lookup.", "rocksdb.db.get.micros"),
        ("write_p99_microseconds", "99th percentile of a write.", "rocksdb.db.write.micros"),
    ] {
        list.gauge(name, help, statistics.histogram(histogram).p99);
    }
}

fn about_errors(list: &mut List, server: &Server) {
    let refusal = server.observed.refusal();
    list.gauge("writes_refused", "1 if RocksDB refuses all writes.", u8::from(refusal.is_some()));
    list.text("refusal", refusal.as_deref().unwrap_or("none"));
    for (kind, count) in server.store.errors.counts() {
        list.labelled(
            "store_errors_total",
            "Requests that met an error of RocksDB or of what lies below it, by its kind.",
            ("kind", kind.name()),
            count,
        );
    }
    list.text("last_store_error", server.store.errors.last().as_deref().unwrap_or("none"));
}

fn about_stalls(list: &mut List, server: &Server, statistics: &Statistics) {
    let pressure = server.store.pressure();
    let stall = diagnose(&pressure);
    list.text("stall", stall.map_or_else(|| "none".to_owned(), |stall| stall.text));
    list.gauge("writes_stopped", "1 if writes are stopped.", u8::from(pressure.stopped));
    list.gauge(
        "writes_delayed_to_bytes_per_second",
        "Rate to which writes are delayed; 0: none.",
        pressure.delayed_rate,
    );
    list.gauge(
        "memtables_waiting",
        "Memtables that wait for their flush.",
        pressure.immutable_memtables,
    );
    list.gauge("level0_files", "Files in level 0.", pressure.level0_files);
    list.gauge(
        "compaction_pending_bytes",
        "Bytes that compactions are behind.",
        pressure.pending_bytes,
    );
    list.counter(
        "stall_microseconds_total",
        "Time for which writes were delayed or stopped.",
        statistics.ticker("rocksdb.stall.micros"),
    );
    for (cause, count) in server.store.stalls() {
        list.labelled(
            "stalls_total",
            "Stalls by cause, as RocksDB names it.",
            ("cause", &cause),
            count,
        );
    }
}
