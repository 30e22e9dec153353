//! Datastores in `farflash top`: their requests, their use of Flash, and what holds them up.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Instant;

use clap::Args;
use kv_load::{Observer, RunError, TargetTls};
use report::{Align, Table, duration_ns, percent, rate, rate_bytes};
use serde::Serialize;
use user_messages::Failure;

use crate::commands::kv_load::Target;
use crate::commands::token_file;

/// Addresses of datastores, and secrets for them.
#[derive(Debug, Args)]
pub(super) struct DatastoreArgs {
    /// Show this datastore instead of volumes and devices; give it again for more
    #[arg(long, value_name = "HOST:PORT")]
    datastore: Vec<Target>,
    /// File with the datastores' password in its first line
    #[arg(long, value_name = "FILE", requires = "datastore")]
    password_file: Option<PathBuf>,
    /// Speak TLS with the datastores
    #[arg(long, requires = "datastore")]
    tls: bool,
    /// Certificates by which the datastores are believed, in PEM
    /// [default: those that this machine trusts]
    #[arg(long, value_name = "FILE", requires = "tls")]
    tls_ca: Option<PathBuf>,
    /// Directory of certificate.pem and key.pem, which the datastores are shown
    #[arg(long, value_name = "DIRECTORY", requires = "tls")]
    tls_identity: Option<PathBuf>,
}

/// Datastores that are looked at.
pub(super) struct Datastores(Vec<Watched>);

struct Watched {
    name: String,
    observer: Observer,
    before: Sample,
}

/// Figures of a datastore, and the time at which they were read.
struct Sample {
    at: Instant,
    figures: BTreeMap<String, String>,
}

impl Sample {
    fn read(name: &str, observer: &mut Observer) -> Result<Self, Failure> {
        let figures = observer.figures().map_err(|error| failed(name, &error))?;
        Ok(Self { at: Instant::now(), figures })
    }

    /// A field; 0 if the server has none of this name, as one that is no datastore of ours.
    fn number(&self, name: &str) -> f64 {
        self.figures.get(name).and_then(|value| value.parse().ok()).unwrap_or_default()
    }

    /// A text; `None` where it says that there is none.
    fn text(&self, name: &str) -> Option<String> {
        self.figures.get(name).filter(|text| *text != "none").cloned()
    }
}

fn failed(name: &str, error: &RunError) -> Failure {
    Failure::runtime(
        format!("{name}: {error}"),
        "see whether the datastore runs, and --password-file and --tls",
    )
}

/// A datastore in an interval.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    name: String,
    seconds: f64,
    reads_per_second: f64,
    writes_per_second: f64,
    /// Time for which a request waited for a thread, and was served.
    read_wait_us: f64,
    read_service_us: f64,
    write_wait_us: f64,
    write_service_us: f64,
    block_cache_hit_rate: f64,
    device_reads_per_second: f64,
    device_read_size_bytes: f64,
    device_writes_per_second: f64,
    device_write_size_bytes: f64,
    flush_bytes_per_second: f64,
    compaction_bytes_per_second: f64,
    errors_per_second: f64,
    /// The cause for which writes are delayed or stopped, with the setting that changes it.
    stall: Option<String>,
    /// The error with which all writes are refused.
    refusal: Option<String>,
}

impl DatastoreArgs {
    /// Connects to all that were named; `None`: volumes are to be shown.
    pub(super) fn connect(&self) -> Result<Option<Datastores>, Failure> {
        if self.datastore.is_empty() {
            return Ok(None);
        }
        let unreadable = |path: &PathBuf, error: std::io::Error| {
            Failure::usage(format!("{}: {error}", path.display()), "name a file that can be read")
        };
        let password = self
            .password_file
            .as_ref()
            .map(|path| token_file::read_password(path).map_err(|error| unreadable(path, error)));
        let password = password.transpose()?;
        let authorities = self
            .tls_ca
            .as_ref()
            .map(|path| std::fs::read_to_string(path).map_err(|error| unreadable(path, error)));
        let authorities = authorities.transpose()?;
        let connect = |target: &Target| {
            let name = target.to_string();
            let tls = self.tls.then(|| TargetTls {
                name: target.host.clone(),
                authorities: authorities.clone(),
                identity: self.tls_identity.clone(),
            });
            let mut observer = Observer::connect(target.address, tls.as_ref(), password.as_deref())
                .map_err(|error| failed(&name, &error))?;
            let before = Sample::read(&name, &mut observer)?;
            Ok(Watched { name, observer, before })
        };
        self.datastore
            .iter()
            .map(connect)
            .collect::<Result<_, _>>()
            .map(|all| Some(Datastores(all)))
    }
}

impl Datastores {
    /// The interval since the last call, or since the connections were made.
    pub(super) fn interval(&mut self) -> Result<Vec<Row>, Failure> {
        self.0.iter_mut().map(Watched::row).collect()
    }
}

impl Watched {
    fn row(&mut self) -> Result<Row, Failure> {
        let now = Sample::read(&self.name, &mut self.observer)?;
        let row = Row::new(&self.name, &self.before, &now);
        self.before = now;
        Ok(row)
    }
}

impl Row {
    fn new(name: &str, before: &Sample, now: &Sample) -> Self {
        let seconds = (now.at - before.at).as_secs_f64().max(1e-9);
        // A server that was started again counts from zero.
        let since = |name: &str| (now.number(name) - before.number(name)).max(0.0);
        let per_second = |name: &str| since(name) / seconds;
        let each = |time: &str, class: &str| {
            let requests = since(&format!("requests_total_{class}"));
            let total = since(&format!("{time}_microseconds_total_{class}"));
            if requests > 0.0 { total / requests } else { 0.0 }
        };
        Self {
            name: name.to_owned(),
            seconds,
            reads_per_second: per_second("requests_total_read"),
            writes_per_second: per_second("requests_total_write"),
            read_wait_us: each("queue", "read"),
            read_service_us: each("service", "read"),
            write_wait_us: each("queue", "write"),
            write_service_us: each("service", "write"),
            block_cache_hit_rate: now.number("block_cache_hit_rate"),
            device_reads_per_second: now.number("device_reads_per_second"),
            device_read_size_bytes: now.number("device_read_size_bytes"),
            device_writes_per_second: now.number("device_writes_per_second"),
            device_write_size_bytes: now.number("device_write_size_bytes"),
            flush_bytes_per_second: per_second("flush_written_bytes_total"),
            compaction_bytes_per_second: per_second("compaction_written_bytes_total"),
            errors_per_second: per_second("errors_total"),
            stall: now.text("stall"),
            refusal: now.text("refusal"),
        }
    }
}

/// The table, and below it what holds datastores up.
pub(super) fn text(rows: &[Row]) -> String {
    let right = [
        "READ/S",
        "WRITE/S",
        "ERR/S",
        "READ",
        "WRITE",
        "CACHE",
        "FLASH R/S",
        "SIZE",
        "FLASH W/S",
        "SIZE",
        "FLUSH",
        "COMPACT",
    ];
    let mut columns = vec![("DATASTORE", Align::Left)];
    columns.extend(right.map(|name| (name, Align::Right)));
    let mut table = Table::new(&columns);
    for row in rows {
        let time = |wait: f64, service: f64| duration_ns((wait + service) * 1e3);
        let size = |bytes: f64| format!("{:.1} kB", bytes / 1e3);
        table.row([
            row.name.clone(),
            rate(row.reads_per_second),
            rate(row.writes_per_second),
            rate(row.errors_per_second),
            time(row.read_wait_us, row.read_service_us),
            time(row.write_wait_us, row.write_service_us),
            percent(row.block_cache_hit_rate),
            rate(row.device_reads_per_second),
            size(row.device_read_size_bytes),
            rate(row.device_writes_per_second),
            size(row.device_write_size_bytes),
            rate_bytes(row.flush_bytes_per_second),
            rate_bytes(row.compaction_bytes_per_second),
        ]);
    }
    let mut text = table.to_text();
    for row in rows {
        for (what, said) in [("stall", &row.stall), ("writes are refused", &row.refusal)] {
            if let Some(said) = said {
                text += &format!("{}: {what}: {said}\n", row.name);
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn sample(at: Instant, figures: &[(&str, &str)]) -> Sample {
        let figures = figures.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        Sample { at, figures: figures.collect() }
    }

    /// Counters are told as rates since the look before, texts as they are now.
    #[test]
    fn an_interval_has_rates_and_what_holds_writes_up() {
        let begin = Instant::now();
        let before = sample(
            begin,
            &[
                ("requests_total_read", "1000"),
                ("queue_microseconds_total_read", "500"),
                ("errors_total", "9"),
            ],
        );
        let now = sample(
            begin + Duration::from_secs(2),
            &[
                ("requests_total_read", "3000"),
                ("queue_microseconds_total_read", "20500"),
                ("service_microseconds_total_read", "180000"),
                ("errors_total", "4"),
                ("block_cache_hit_rate", "0.9"),
                ("stall", "none"),
                ("refusal", "IOERR the device"),
            ],
        );
        let row = Row::new("kv-1:6379", &before, &now);
        assert_eq!((row.seconds, row.reads_per_second), (2.0, 1000.0));
        assert_eq!((row.read_wait_us, row.read_service_us), (10.0, 90.0));
        assert_eq!((row.errors_per_second, row.write_wait_us), (0.0, 0.0), "it was started again");
        assert_eq!((&row.stall, row.refusal.as_deref()), (&None, Some("IOERR the device")));
        let text = text(&[row]);
        assert!(text.contains("100 µs") && text.contains("90"), "{text}");
        assert!(text.ends_with("kv-1:6379: writes are refused: IOERR the device\n"), "{text}");
    }
}
